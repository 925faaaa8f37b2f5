//! Bodies of loops: what is recorded in one is a graph of its own, whose inputs are its operands and what comes in from around it.

use super::super::breaks::{Cause, Refusal};
use super::{Recording, ValueLocation};
use crate::tensor::tape::{self, Operands};
use crate::{Device, Error, Result, Tensor};
use kiln_ir::build::GraphBuilder;
use kiln_ir::{Graph, NodeId, Source, TensorType};
use std::collections::HashSet;

/// The body of a loop, or, while that is recorded, what is around it.
#[derive(Default)]
pub(super) struct LoopBody {
    builder: GraphBuilder,
    segment: u32,
    stops: HashSet<NodeId>,
    links: Vec<(NodeId, NodeId)>,
    operations: Vec<Operands>,
    /// Values of what is around it that it uses: their tensors, and the inputs that they are.
    pub(super) captured: Vec<(u32, Tensor, NodeId)>,
    /// The first that it did which is not part of a graph.
    refusal: Option<Refusal>,
    /// Whether gradients stop in a body inside of it.
    has_inner_stops: bool,
}

impl LoopBody {
    fn exchange(&mut self, recording: &mut Recording) {
        std::mem::swap(&mut self.builder, &mut recording.builder);
        std::mem::swap(&mut self.segment, &mut recording.segment);
        std::mem::swap(&mut self.stops, &mut recording.stops);
        std::mem::swap(&mut self.links, &mut recording.links);
        std::mem::swap(&mut self.operations, &mut recording.operations);
    }
}

impl Recording {
    /// Whether the body of a loop is being recorded.
    pub(in super::super) fn is_in_body(&self) -> bool {
        !self.bodies.is_empty()
    }

    /// What a body of a graph's loop cannot do makes the loop run turn by turn instead: whoever records it sees that.
    pub(in super::super) fn must_not_be_in_body(&mut self, cause: Cause, at: &Source) -> Result<()> {
        let Some(body) = self.bodies.last_mut() else { return Ok(()) };
        body.refusal.get_or_insert_with(|| Refusal { cause, at: at.clone() });
        Err(Error::GraphBreak { what: cause.what(), at: at.clone() })
    }

    /// Whether the body that is being recorded did what is not part of a graph.
    pub(in super::super) fn is_refused(&self) -> bool {
        self.bodies.last().is_some_and(|body| body.refusal.is_some())
    }

    /// Begins the body of a loop: what is recorded from here on is a graph of its own.
    pub(in super::super) fn begin_body(&mut self) {
        let segment = self.next_segment();
        let mut body = LoopBody { segment, ..LoopBody::default() };
        body.exchange(self);
        self.builder.set_sizes(self.fixed.clone());
        self.bodies.push(body);
    }

    /// An input of the body.
    pub(in super::super) fn body_input(&mut self, ty: TensorType, device: Device, at: &Source) -> Result<Tensor> {
        let node = self.builder.input(ty.clone()).map_err(|cause| Error::Graph { cause: Box::new(cause) })?;
        self.tensor(Some(node), ty, ValueLocation::Here, device, None, at)
    }

    /// Ends the body with these outputs, if it is a graph; says what came in from around it, and whether gradients stop in it, which the graph
    /// does not say.
    pub(in super::super) fn end_body(&mut self, outputs: Option<&[NodeId]>) -> Option<(Graph, Vec<Tensor>, bool)> {
        let mut body = self.bodies.pop()?;
        let segment = self.segment;
        body.exchange(self);
        for value in &mut self.values {
            if value.node.is_some_and(|(own, _)| own == segment) {
                value.home = ValueLocation::Gone;
            }
        }
        self.refusal = body.refusal.take();
        let outputs = outputs.filter(|_| self.refusal.is_none())?;
        outputs.iter().for_each(|&node| body.builder.output(node));
        // Where nothing is on a tape they stop behind the op.
        let has_stops = tape::is_enabled() && (body.has_inner_stops || !body.stops.is_empty());
        if has_stops {
            self.note_inner_stops();
        }
        let captured = body.captured.into_iter().map(|(_, tensor, _)| tensor).collect();
        Some((body.builder.finish(), captured, has_stops))
    }

    /// Notes that gradients stop in a body inside of the one that is being recorded, if one is.
    pub(in super::super) fn note_inner_stops(&mut self) {
        if let Some(body) = self.bodies.last_mut() {
            body.has_inner_stops = true;
        }
    }

    /// Records around the body of a loop.
    pub(super) fn around_body<T>(&mut self, work: impl FnOnce(&mut Recording) -> T) -> T {
        let Some(mut body) = self.bodies.pop() else { return work(self) };
        body.exchange(self);
        let result = work(self);
        body.exchange(self);
        self.bodies.push(body);
        result
    }
}
