//! A function being captured: the values it made so far, and the segment of its graph that is being recorded.
//!
//! A *value* is what a traced tensor stands for. It outlives its segment if the function can still use it when the
//! segment ends: then it has a *slot*, from which later segments take it.

mod bodies;
mod locals;

use super::breaks::{Cause, Refusal};
use super::segment::{InputSource, Leaf, LeafOf, SegmentGraph, UpdateTarget};
use crate::tensor::Weak;
use crate::tensor::dim;
use crate::tensor::setting::Setting;
use crate::tensor::tape::{self, Operands, Tape};
use crate::tensor::tracer::Traced;
use crate::{Device, Error, Result, Tensor, Var};
use bodies::LoopBody;
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{Dim, Graph, NodeId, Op, Source, Symbol, TensorType};
use kiln_passes::is_differentiable;
use locals::LocalVar;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A function being captured.
pub(super) struct Recording {
    pub(super) id: u32,
    /// The line of the call.
    pub(super) at: Source,
    builder: GraphBuilder,
    /// Where the inputs of this segment come from.
    from: Vec<InputSource>,
    values: Vec<Value>,
    /// The first value of this segment: those before it are settled, or gone.
    first: usize,
    /// The number of this segment, or of the body of a loop in it, and the last one that was given away.
    segment: u32,
    last_segment: u32,
    /// Bodies of loops that are being recorded, each in the one before.
    bodies: Vec<LoopBody>,
    /// Whether gradients go through the bodies that are being recorded: loops until a condition fails are bounded there.
    pub(super) has_bounds: bool,
    /// Why the body that was recorded last is no graph.
    pub(super) refusal: Option<Refusal>,
    /// Tensors with memory met on the way and their values, by where the memory is.
    held: HashMap<usize, Vec<(Tensor, u32)>>,
    /// Variables met in this segment.
    cells: Vec<Cell>,
    /// Variables that the function made and has not dropped, and how many it made.
    locals: Vec<LocalVar>,
    made: u32,
    /// Slots given away by segments that ended.
    slots: usize,
    /// Settings read so far, with what was read.
    pub(super) settings: Vec<(Setting, u64)>,
    pub(super) broken: Option<Break>,
    /// Why a comparison of numbers could not be made: nothing is recorded after that.
    pub(super) failure: Option<Error>,
    /// How many comparisons had any outcome since then.
    pub(super) unanswered: u32,
    /// Whether elements were read: what the function makes of numbers from then on may be made of these.
    pub(super) has_read: bool,
    /// How often variables were changed, keys drawn and disabled parts called.
    changes: u64,
    /// Nodes of this segment that gradients do not go past.
    pub(super) stops: HashSet<NodeId>,
    /// What operations of several nodes were made of: an operation's results, and its operands.
    links: Vec<(NodeId, NodeId)>,
    /// The operations of this segment that are more than one node.
    pub(super) operations: Vec<Operands>,
    /// Nodes of this segment that tapes start at: the values of variables it has changed, where gradients of these are wanted,
    /// and what no variable is behind.
    leaves: Vec<(NodeId, LeafOf)>,
    /// Results of functions with gradients of their own in this segment, each with its operands.
    functions: Vec<(NodeId, Vec<NodeId>)>,
    /// The lines that called those of them that are running, each in the one before.
    pub(super) running: Vec<Source>,
    /// What symbols were replaced by, once they were.
    fixed: Option<Arc<[(Symbol, i64)]>>,
    /// Whether gradients are recorded where the function is called, and whether the function depends on it.
    pub(super) records: bool,
    pub(super) asked_records: bool,
    /// Whether the function asked for a setting, whether there is a gradient, or whether gradients are recorded.
    pub(super) has_asked: bool,
}

/// What a function does whose gradients are wanted outside, through a function that has one of its own.
pub(super) const FUNCTION_LEFT: &str = "returns what a function with a gradient of its own gave";

/// What a function does whose own functions with gradients of their own depend on elements.
pub(super) const FUNCTION_READS: &str = "reads elements in a function with a gradient of its own";

/// What a function did that a graph cannot say.
#[derive(Debug, Clone)]
pub(super) struct Break {
    pub(super) what: &'static str,
    pub(super) at: Source,
}

impl Break {
    /// Whether the same is recorded once more, with functions that have gradients of their own as parts outside of the graph.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self.what, FUNCTION_LEFT | FUNCTION_READS)
    }

    /// Whether that is so for calls with other arguments on tapes, too.
    pub(super) fn is_of_all_calls(&self) -> bool {
        self.what == FUNCTION_READS
    }
}

/// What a traced tensor stands for.
struct Value {
    /// The tensor; dead when the function can no longer use it.
    handle: Weak,
    /// Its node, and the number of the segment that this is in.
    node: Option<(u32, NodeId)>,
    ty: TensorType,
    device: Device,
    home: ValueLocation,
}

/// Where a value is when its node is not in the segment being recorded.
#[derive(Clone)]
enum ValueLocation {
    /// It is computed in this segment.
    Here,
    /// Any segment can take it from there.
    From(InputSource),
    /// Nowhere: nobody could use it when its segment ended.
    Gone,
}

/// A variable, or its gradient, in this segment.
struct Cell {
    var: Var,
    is_gradient: bool,
    /// Its value at the start of the segment, if that was read.
    input: Option<usize>,
    /// What it is now; a gradient may be none.
    now: Option<u32>,
    is_changed: bool,
}

/// Where a tensor of the function's result is found.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ResultLocation {
    Argument(usize),
    Slot(usize),
    /// The tensor itself: it has memory.
    Itself,
}

impl Recording {
    pub(super) fn new(id: u32, at: &Source) -> Recording {
        let mut builder = GraphBuilder::new();
        builder.set_source(Some(at.clone()));
        Recording {
            id,
            at: at.clone(),
            builder,
            from: Vec::new(),
            values: Vec::new(),
            first: 0,
            segment: 0,
            last_segment: 0,
            bodies: Vec::new(),
            has_bounds: false,
            refusal: None,
            held: HashMap::new(),
            cells: Vec::new(),
            locals: Vec::new(),
            made: 0,
            slots: 0,
            settings: Vec::new(),
            broken: None,
            failure: None,
            unanswered: 0,
            has_read: false,
            changes: 0,
            stops: HashSet::new(),
            links: Vec::new(),
            operations: Vec::new(),
            leaves: Vec::new(),
            functions: Vec::new(),
            running: Vec::new(),
            fixed: None,
            records: tape::is_enabled(),
            asked_records: false,
            has_asked: false,
        }
    }

    /// The segment being recorded.
    pub(super) fn builder(&mut self) -> &mut GraphBuilder {
        &mut self.builder
    }

    /// A traced tensor for a value of this type that segments take from `from`.
    pub(super) fn outside(
        &mut self,
        from: InputSource,
        ty: TensorType,
        device: Device,
        tape: Option<Tape>,
        at: &Source,
    ) -> Result<Tensor> {
        self.tensor(None, ty, ValueLocation::From(from), device, tape, at)
    }

    /// A traced tensor for a node of this segment.
    pub(super) fn inside(&mut self, node: NodeId, device: Device, at: &Source) -> Result<Tensor> {
        let ty = self.builder.graph().ty(node).clone();
        self.tensor(Some(node), ty, ValueLocation::Here, device, None, at)
    }

    fn tensor(
        &mut self,
        node: Option<NodeId>,
        ty: TensorType,
        home: ValueLocation,
        device: Device,
        tape: Option<Tape>,
        at: &Source,
    ) -> Result<Tensor> {
        let Some(sizes) = dim::scope::sizes(&ty) else { return Err(Error::Escaped { at: at.clone() }) };
        let value = self.next_value(at)?;
        let tensor = Tensor::from_traced(Traced { recording: self.id, value, device }, sizes, ty.dtype, tape);
        let node = node.map(|node| (self.segment, node));
        self.values.push(Value { handle: tensor.downgrade(), node, ty, device, home });
        Ok(tensor)
    }

    /// Another tensor for the value of one, with another tape.
    pub(super) fn alias(&mut self, tensor: &Tensor, tape: Option<Tape>, at: &Source) -> Result<Tensor> {
        let value = self.value_of(tensor, at)?;
        let Value { node, ty, device, home, .. } = &self.values[value as usize];
        let (node, ty, home, device) = (*node, ty.clone(), home.clone(), *device);
        let traced = Traced { recording: self.id, value: self.next_value(at)?, device };
        let alias = Tensor::from_traced(traced, tensor.sizes(), ty.dtype, tape);
        self.values.push(Value { handle: alias.downgrade(), node, ty, device, home });
        Ok(alias)
    }

    fn next_value(&self, at: &Source) -> Result<u32> {
        u32::try_from(self.values.len()).map_err(|_| Error::Escaped { at: at.clone() })
    }

    /// The number of the argument that a traced tensor is.
    pub(super) fn argument_number(&self, tensor: &Tensor) -> Option<usize> {
        let traced = tensor.traced().filter(|traced| traced.recording == self.id)?;
        match self.values.get(traced.value as usize)?.home {
            ValueLocation::From(InputSource::Argument(number)) => Some(number),
            _ => None,
        }
    }

    /// A number that comes with the arguments.
    pub(super) fn extra_argument(&mut self, number: usize, device: Device, at: &Source) -> Result<Tensor> {
        self.outside(InputSource::Argument(number), TensorType::fixed(kiln_ir::DType::I64, &[]), device, None, at)
    }

    /// The node of a tensor in this segment; one from elsewhere becomes an input.
    pub(super) fn node_of(&mut self, tensor: &Tensor, at: &Source) -> Result<NodeId> {
        let value = self.value_of(tensor, at)?;
        let known = &self.values[value as usize];
        let own = known.node.filter(|(segment, _)| *segment == self.segment);
        match (own, self.bodies.last_mut()) {
            (Some((_, node)), _) => Ok(node),
            (None, None) => self.node(value, at),
            // What is not computed in a body comes in from around it.
            (None, Some(body)) => {
                if let Some((_, _, node)) = body.captured.iter().find(|(known, ..)| *known == value) {
                    return Ok(*node);
                }
                let made = self.builder.input(known.ty.clone());
                let node = made.map_err(|cause| Error::Graph { cause: Box::new(cause) })?;
                body.captured.push((value, tensor.clone(), node));
                Ok(node)
            }
        }
    }

    /// The value of a tensor; one with memory gets one.
    pub(super) fn value_of(&mut self, tensor: &Tensor, at: &Source) -> Result<u32> {
        match tensor.traced() {
            Some(traced) if traced.recording == self.id => Ok(traced.value),
            Some(_) => Err(Error::Escaped { at: at.clone() }),
            None => {
                let place = tensor.buffer().ptr() as usize;
                let mut known = self.held.get(&place).into_iter().flatten();
                if let Some((_, value)) = known.find(|(known, _)| super::same_elements(known, tensor)) {
                    return Ok(*value);
                }
                let from = InputSource::Held(tensor.clone());
                let traced = self.outside(from, tensor.ty(), tensor.device(), None, at)?;
                let value = traced.traced().map_or(0, |traced| traced.value);
                self.held.entry(place).or_default().push((tensor.clone(), value));
                Ok(value)
            }
        }
    }

    fn node(&mut self, value: u32, at: &Source) -> Result<NodeId> {
        let known = &self.values[value as usize];
        if let Some((_, node)) = known.node.filter(|(segment, _)| *segment == self.segment) {
            return Ok(node);
        }
        let ValueLocation::From(from) = &known.home else { return Err(Error::Escaped { at: at.clone() }) };
        let (from, ty) = (from.clone(), known.ty.clone());
        let node = self.input(from, ty)?;
        self.values[value as usize].node = Some((self.segment, node));
        Ok(node)
    }

    fn input(&mut self, from: InputSource, ty: TensorType) -> Result<NodeId> {
        let node = self.builder.input(ty).map_err(|cause| Error::Graph { cause: Box::new(cause) })?;
        self.from.push(from);
        Ok(node)
    }

    /// Where a value is that no segment under way has to compute.
    pub(super) fn settled(&self, value: u32) -> Option<&InputSource> {
        match &self.values[value as usize].home {
            ValueLocation::From(from @ (InputSource::Argument(_) | InputSource::Held(_) | InputSource::Slot(_))) => {
                Some(from)
            }
            _ => None,
        }
    }

    /// What a variable is now.
    pub(super) fn read_var(&mut self, var: &Var, at: &Source) -> Result<Tensor> {
        if self.is_in_body() {
            return self.around_body(|recording| recording.read_var(var, at));
        }
        if let Some(local) = self.local(var, at)? {
            return self.read_local(local, var, at);
        }
        let cell = self.cell(var, false);
        if let Some(now) = self.cells[cell].now {
            return if self.cells[cell].is_changed { self.changed(var, now, at) } else { self.handle(now, at) };
        }
        let tensor = self.enter(InputSource::Var(var.clone()), var, at)?;
        self.cells[cell].input = Some(self.from.len() - 1);
        self.cells[cell].now = tensor.traced().map(|traced| traced.value);
        Ok(tensor)
    }

    /// What a variable is that this segment has changed: gradients do not go on to what it was computed from.
    fn changed(&mut self, var: &Var, now: u32, at: &Source) -> Result<Tensor> {
        if !is_differentiable(var.dtype()) {
            return self.handle(now, at);
        }
        let (node, device) = (self.node(now, at)?, self.values[now as usize].device);
        let same = self.same(node)?;
        if var.is_trainable() {
            self.leaves.push((same, LeafOf::Var(var.clone())));
        } else {
            self.stops.insert(same);
        }
        self.inside(same, device, at)
    }

    /// Notes that these nodes are one operation. An eager operation is on the tape of its operands whatever it does with them, and
    /// so are its results here.
    pub(super) fn link(&mut self, operands: &[NodeId], results: &[NodeId]) {
        let is_float = |node: &NodeId| is_differentiable(self.builder.graph().ty(*node).dtype);
        let mut pairs = Vec::new();
        // A result that was there before is what it was.
        for &result in results.iter().filter(|result| is_float(result)) {
            let earlier = operands.iter().filter(|operand| is_float(operand) && **operand < result);
            if operands.iter().all(|operand| *operand < result) {
                pairs.extend(earlier.map(|&operand| (result, operand)));
            }
        }
        self.links.extend(pairs);
    }

    /// The value of a tensor as the start of a tape.
    pub(super) fn start(&mut self, tensor: &Tensor, at: &Source) -> Result<Tensor> {
        self.must_not_be_in_body(Cause::StartsTape, at)?;
        let node = self.node_of(tensor, at)?;
        let same = self.same(node)?;
        self.leaves.push((same, LeafOf::Nothing));
        let ty = self.builder.graph().ty(same).clone();
        self.tensor(Some(same), ty, ValueLocation::Here, tensor.device(), Some(Tape::start()), at)
    }

    /// The results of a function with a gradient of its own, as nodes that gradients do not go past.
    pub(super) fn function_results(
        &mut self,
        operands: &[Tensor],
        results: Vec<Tensor>,
        at: &Source,
    ) -> Result<Vec<Tensor>> {
        let operands = operands.iter().map(|operand| self.node_of(operand, at)).collect::<Result<Vec<_>>>()?;
        let mut own = Vec::with_capacity(results.len());
        for result in results {
            if !is_differentiable(result.dtype()) {
                own.push(result);
                continue;
            }
            let node = self.node_of(&result, at)?;
            let same = self.same(node)?;
            self.stops.insert(same);
            self.functions.push((same, operands.clone()));
            // What its gradient saved of the results is this one, unless it is an operand as it is.
            if !operands.contains(&node) && self.stops.contains(&node) {
                self.functions.push((node, operands.clone()));
            }
            own.push(self.inside(same, result.device(), at)?);
        }
        Ok(own)
    }

    /// Refuses the segment if gradients of what leaves it would go through a function that has one of its own: recorded once more, such
    /// functions are parts outside of the graph.
    fn check_functions(&mut self, outputs: &[NodeId], taped: &[bool], reach: &[Vec<usize>], at: &Source) -> Result<()> {
        let (functions, links) = (std::mem::take(&mut self.functions), &self.links);
        if functions.is_empty() || !self.records {
            return Ok(());
        }
        let graph = self.builder.graph();
        let functions: HashMap<NodeId, Vec<NodeId>> = functions.into_iter().collect();
        let mut goes_through = vec![false; graph.nodes().len()];
        for (id, node) in graph.iter().filter(|(_, node)| is_differentiable(node.ty.dtype)) {
            goes_through[id.index()] = match functions.get(&id) {
                Some(operands) => {
                    operands.iter().any(|operand| goes_through[operand.index()] || !reach[operand.index()].is_empty())
                }
                None if self.stops.contains(&id) => false,
                None => node.operands.iter().chain(linked(links, id)).any(|operand| goes_through[operand.index()]),
            };
        }
        let leaves = outputs.iter().zip(taped).any(|(output, taped)| *taped && goes_through[output.index()]);
        match leaves {
            false => Ok(()),
            true => {
                self.broken.get_or_insert(Break { what: FUNCTION_LEFT, at: at.clone() });
                Err(Error::GraphBreak { what: FUNCTION_LEFT, at: at.clone() })
            }
        }
    }

    /// Refuses the recording where a function with a gradient of its own reads elements: as a part of its own, it does so at every call
    /// without deciding which program is run.
    pub(super) fn must_not_be_in_function(&mut self) -> Result<()> {
        let Some(at) = self.running.first().cloned() else { return Ok(()) };
        self.broken.get_or_insert(Break { what: FUNCTION_READS, at: at.clone() });
        Err(Error::GraphBreak { what: FUNCTION_READS, at })
    }

    /// Nothing is recorded or runs after a comparison that could not be made: the function went on with any outcome of it.
    pub(super) fn must_not_have_failed(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Another node for the value of one.
    fn same(&mut self, node: NodeId) -> Result<NodeId> {
        let shape = self.builder.graph().ty(node).shape.clone();
        self.builder.emit(Op::Reshape { shape }, &[node]).map_err(|cause| Error::Graph { cause: Box::new(cause) })
    }

    /// A variable becomes another tensor.
    pub(super) fn write_var(&mut self, var: &Var, tensor: &Tensor, at: &Source) -> Result<()> {
        self.must_not_be_in_body(Cause::ChangesVar, at)?;
        self.changes += 1;
        if let Some(local) = self.local(var, at)? {
            return self.write_local(local, tensor, at);
        }
        let value = self.value_of(tensor, at)?;
        let cell = self.cell(var, false);
        self.cells[cell].now = Some(value);
        self.cells[cell].is_changed = true;
        Ok(())
    }

    /// What the gradient of a variable is now. `is_there` says whether it has one outside.
    pub(super) fn read_gradient(&mut self, var: &Var, is_there: bool, at: &Source) -> Result<Option<Tensor>> {
        if self.is_in_body() {
            return self.around_body(|recording| recording.read_gradient(var, is_there, at));
        }
        if let Some(local) = self.local(var, at)? {
            return Ok(self.locals[local].gradient.clone());
        }
        let cell = self.cell(var, true);
        if self.cells[cell].is_changed || self.cells[cell].now.is_some() {
            return self.cells[cell].now.map(|now| self.handle(now, at)).transpose();
        }
        if !is_there {
            return Ok(None);
        }
        let tensor = self.enter(InputSource::Gradient(var.clone()), var, at)?;
        self.cells[cell].input = Some(self.from.len() - 1);
        self.cells[cell].now = tensor.traced().map(|traced| traced.value);
        Ok(Some(tensor))
    }

    /// The gradient of a variable becomes another tensor, or none.
    pub(super) fn write_gradient(&mut self, var: &Var, tensor: Option<&Tensor>, at: &Source) -> Result<()> {
        self.must_not_be_in_body(Cause::ChangesGradient, at)?;
        self.changes += 1;
        if let Some(local) = self.local(var, at)? {
            self.locals[local].gradient = tensor.cloned();
            return Ok(());
        }
        let value = tensor.map(|tensor| self.value_of(tensor, at)).transpose()?;
        let cell = self.cell(var, true);
        self.cells[cell].now = value;
        self.cells[cell].is_changed = true;
        Ok(())
    }

    /// How often variables were changed, keys drawn and disabled parts called so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Something outside of any graph may have changed variables.
    pub(super) fn note_change(&mut self) {
        self.changes += 1;
    }

    /// Whether this segment has met the gradient of a variable.
    pub(super) fn knows_gradient(&self, var: &Var) -> bool {
        var.is_local() || self.cells.iter().any(|cell| cell.is_gradient && cell.var.id() == var.id())
    }

    /// An input of this segment that changes from call to call, with a tensor for it.
    fn enter(&mut self, from: InputSource, var: &Var, at: &Source) -> Result<Tensor> {
        let ty = TensorType::fixed(var.dtype(), var.shape());
        let node = self.input(from.clone(), ty.clone())?;
        self.tensor(Some(node), ty, ValueLocation::From(from), var.device(), None, at)
    }

    /// A new random key: an input of its own.
    pub(super) fn key(&mut self, generator: &crate::Generator, device: Device, at: &Source) -> Result<Tensor> {
        self.must_not_be_in_body(Cause::Random, at)?;
        self.changes += 1;
        let ty = TensorType::fixed(kiln_ir::DType::I64, &[]);
        let node = self.input(InputSource::Key(generator.clone(), device), ty.clone())?;
        self.tensor(Some(node), ty, ValueLocation::From(InputSource::Key(generator.clone(), device)), device, None, at)
    }

    fn cell(&mut self, var: &Var, is_gradient: bool) -> usize {
        let known = self.cells.iter().position(|cell| cell.is_gradient == is_gradient && cell.var.id() == var.id());
        known.unwrap_or_else(|| {
            let cell = Cell { var: var.clone(), is_gradient, input: None, now: None, is_changed: false };
            self.cells.push(cell);
            self.cells.len() - 1
        })
    }

    /// A tensor for a value that is known already.
    fn handle(&mut self, value: u32, at: &Source) -> Result<Tensor> {
        let known = &self.values[value as usize];
        if let Some(tensor) = known.handle.upgrade() {
            return Ok(tensor);
        }
        if let ValueLocation::From(InputSource::Held(tensor)) = &known.home {
            return Ok(tensor.clone());
        }
        let device = known.device;
        let node = self.node(value, at)?;
        self.inside(node, device, at)
    }

    /// Values of this segment that the function can still use. Those of earlier ones are settled.
    fn live(&self) -> Vec<u32> {
        let is_live = |value: &Value| !matches!(value.home, ValueLocation::Gone) && value.handle.is_alive();
        let own = (0..).zip(&self.values).skip(self.first);
        own.filter(|(_, value)| is_live(value)).map(|(number, _)| number).collect()
    }

    /// Ends the segment. Those of its values that can still be used get slots; the next segment begins.
    pub(super) fn end_segment(&mut self, at: &Source) -> Result<SegmentGraph> {
        self.forget_locals();
        let live = self.live();
        self.end_with(&live, at)
    }

    fn end_with(&mut self, wanted: &[u32], at: &Source) -> Result<SegmentGraph> {
        // A function may hide the error that says so.
        if let Some(Break { what, at }) = self.broken.as_ref().filter(|broken| broken.is_refusal()) {
            return Err(Error::GraphBreak { what, at: at.clone() });
        }
        let base = self.slots;
        let mut outputs: Vec<NodeId> = Vec::new();
        let mut kept: Vec<usize> = Vec::new();
        let mut homes: Vec<(u32, Slotted)> = Vec::new();
        for &number in wanted {
            let Some(slotted) = self.slotted(number, &mut outputs, &mut kept, at)? else { continue };
            homes.push((number, slotted));
        }
        let mut sets = Vec::new();
        let mut updates = Vec::new();
        for mut cell in std::mem::take(&mut self.cells) {
            if !cell.is_changed {
                continue;
            }
            let Some(now) = cell.now else {
                sets.push((UpdateTarget::Gradient(cell.var), None));
                continue;
            };
            let node = self.node(now, at)?;
            let is_input = self.builder.graph().inputs().contains(&node);
            if !cell.is_gradient && cell.input.is_none() && !is_input {
                // Written without having been read: still written in place.
                let ty = TensorType::fixed(cell.var.dtype(), cell.var.shape());
                self.input(InputSource::Var(cell.var.clone()), ty)?;
                cell.input = Some(self.from.len() - 1);
            }
            let target =
                if cell.is_gradient { UpdateTarget::Gradient(cell.var) } else { UpdateTarget::Value(cell.var) };
            match cell.input {
                Some(input) if self.builder.graph().inputs()[input] == node => {}
                Some(input) if !is_input => updates.push((target, input, node)),
                _ => {
                    let place = self.place(node, &mut outputs, &mut kept);
                    sets.push((target, Some(place)));
                }
            }
        }
        let leaves = std::mem::take(&mut self.leaves);
        let nodes: Vec<NodeId> = leaves.iter().map(|(node, _)| *node).collect();
        let mut links = std::mem::take(&mut self.links);
        links.sort_unstable();
        let mut reach = reach(self.builder.graph(), &self.stops, &nodes, &links);
        let may_be_taped = self.may_be_taped(&homes, outputs.len());
        self.links = links;
        self.check_functions(&outputs, &may_be_taped, &reach, at)?;
        self.links.clear();
        let mut taped = Vec::with_capacity(outputs.len());
        for (output, may_be) in outputs.iter().zip(may_be_taped) {
            taped.push(if may_be { std::mem::take(&mut reach[output.index()]) } else { Vec::new() });
        }
        let leaves = self.used_leaves(leaves, &mut taped, &mut outputs);
        let count = outputs.len();
        for &node in &outputs {
            self.builder.output(node);
        }
        for (_, input, node) in &updates {
            self.builder.update(*node, *input);
        }
        let slot = |slotted: &Slotted| match slotted {
            Slotted::Output(n) => base + n,
            Slotted::Kept(n) => base + count + n,
        };
        self.slots = base + count + kept.len();
        // Nodes of an earlier segment are no nodes of this one, so that only the values of this one are looked at: a function with
        // many breaks is recorded in time that grows with their number, not with its square.
        self.segment = self.next_segment();
        for value in &mut self.values[self.first..] {
            if !matches!(
                value.home,
                ValueLocation::From(InputSource::Argument(_) | InputSource::Held(_) | InputSource::Slot(_))
            ) {
                value.home = ValueLocation::Gone;
            }
        }
        for (number, slotted) in &homes {
            self.values[*number as usize].home = ValueLocation::From(InputSource::Slot(slot(slotted)));
        }
        self.first = self.values.len();
        let sets = sets.into_iter().map(|(set, place)| (set, place.as_ref().map(slot))).collect();
        let updates = updates.into_iter().map(|(set, input, _)| (set, input)).collect();
        let mut next = GraphBuilder::new();
        next.set_source(Some(at.clone()));
        next.set_sizes(self.fixed.clone());
        let mut graph = std::mem::replace(&mut self.builder, next).finish();
        // It is kept for as long as the program is.
        graph.shrink_to_fit();
        let from = std::mem::take(&mut self.from);
        let mut stops: Vec<NodeId> = self.stops.drain().collect();
        stops.sort_unstable();
        let (graph, is_private) = (Arc::new(graph), self.has_read);
        let operations = Arc::new(std::mem::take(&mut self.operations));
        Ok(SegmentGraph {
            graph,
            from,
            base,
            outputs: count,
            kept,
            updates,
            sets,
            stops,
            operations,
            taped,
            leaves,
            is_private,
            bound: 0,
        })
    }

    /// For each output, whether it may go on a tape: not if its gradients were computed in the function already.
    fn may_be_taped(&self, homes: &[(u32, Slotted)], count: usize) -> Vec<bool> {
        let mut taped = vec![true; count];
        for (number, slotted) in homes {
            let tensor = self.values[*number as usize].handle.upgrade();
            if let (Slotted::Output(output), Some(tensor)) = (slotted, tensor) {
                taped[*output] &= !tensor.tape().is_some_and(Tape::is_released);
            }
        }
        taped
    }

    /// The leaves that gradients of outputs reach, which become outputs too. In `taped` they stand after the inputs.
    fn used_leaves(
        &self,
        leaves: Vec<(NodeId, LeafOf)>,
        taped: &mut Vec<Vec<usize>>,
        outputs: &mut Vec<NodeId>,
    ) -> Vec<Leaf> {
        let inputs = self.builder.graph().inputs().len();
        let mut used = Vec::new();
        for (number, (node, of)) in leaves.into_iter().enumerate() {
            let (old, new) = (inputs + number, inputs + used.len());
            let places = taped.iter_mut().flatten().filter(|source| **source == old);
            if places.map(|source| *source = new).count() == 0 {
                // Gradients read it like any other value.
                continue;
            }
            let output = outputs.iter().position(|&known| known == node).unwrap_or_else(|| {
                outputs.push(node);
                taped.push(Vec::new());
                outputs.len() - 1
            });
            used.push(Leaf { node, of, output });
        }
        used
    }

    /// Where a value will be found once the segment has run; nothing where it needs no new slot.
    fn slotted(
        &mut self,
        number: u32,
        outputs: &mut Vec<NodeId>,
        kept: &mut Vec<usize>,
        at: &Source,
    ) -> Result<Option<Slotted>> {
        if self.settled(number).is_some() {
            return Ok(None);
        }
        let node = self.node(number, at)?;
        Ok(Some(self.place(node, outputs, kept)))
    }

    fn place(&self, node: NodeId, outputs: &mut Vec<NodeId>, kept: &mut Vec<usize>) -> Slotted {
        fn index<T: PartialEq>(list: &mut Vec<T>, item: T) -> usize {
            list.iter().position(|known| *known == item).unwrap_or_else(|| {
                list.push(item);
                list.len() - 1
            })
        }
        match self.builder.graph().inputs().iter().position(|&input| input == node) {
            Some(input) => Slotted::Kept(index(kept, input)),
            None => Slotted::Output(index(outputs, node)),
        }
    }

    /// Ends the last segment: the values of `returned` are wanted. Says where each of them is.
    pub(super) fn finish(&mut self, returned: &[&Tensor], at: &Source) -> Result<(SegmentGraph, Vec<ResultLocation>)> {
        let mut wanted = Vec::with_capacity(returned.len());
        for tensor in returned {
            match tensor.traced() {
                Some(traced) if traced.recording != self.id => return Err(Error::Escaped { at: at.clone() }),
                Some(traced) if !wanted.contains(&traced.value) => wanted.push(traced.value),
                _ => {}
            }
        }
        let recorded = self.end_with(&wanted, at)?;
        let place = |tensor: &&Tensor| match tensor.traced() {
            None => Ok(ResultLocation::Itself),
            Some(traced) => match self.settled(traced.value) {
                Some(InputSource::Argument(number)) => Ok(ResultLocation::Argument(*number)),
                Some(InputSource::Slot(slot)) => Ok(ResultLocation::Slot(*slot)),
                _ => Err(Error::Escaped { at: at.clone() }),
            },
        };
        let places = returned.iter().map(place).collect::<Result<_>>()?;
        Ok((recorded, places))
    }

    fn next_segment(&mut self) -> u32 {
        self.last_segment += 1;
        self.last_segment
    }

    /// Makes symbols the sizes that they are, in all that is recorded from here on and in this segment.
    pub(super) fn fix_sizes(&mut self, sizes: Arc<[(Symbol, i64)]>) -> Result<()> {
        let size = |symbol| sizes.iter().find(|(known, _)| *known == symbol).map(|(_, size)| Dim::from(*size));
        let fixed = self.builder.graph().specialise(&size).map_err(|cause| Error::Graph { cause: Box::new(cause) })?;
        self.builder = GraphBuilder::extend(fixed);
        self.builder.set_sizes(Some(sizes.clone()));
        for value in self.values.iter_mut().filter(|value| value.ty.fixed_shape().is_none()) {
            value.ty.shape.iter_mut().for_each(|dim| *dim = dim.substitute(&size));
        }
        self.fixed = Some(sizes.clone());
        Ok(())
    }

    /// Slots for values made outside of any segment.
    pub(super) fn take_slots(&mut self, count: usize) -> usize {
        self.slots += count;
        self.slots - count
    }
}

/// A slot of the segment that ends, before the number of its outputs is known.
enum Slotted {
    Output(usize),
    Kept(usize),
}

/// The operands of the operation that gave a node, by links in the order of their results.
fn linked(links: &[(NodeId, NodeId)], id: NodeId) -> impl Iterator<Item = &NodeId> {
    let first = links.partition_point(|(result, _)| *result < id);
    links[first..].iter().take_while(move |(result, _)| *result == id).map(|(_, operand)| operand)
}

/// For each node the inputs that gradients of it reach by floats alone, and by number after these the leaves, which gradients
/// do not go past. Links, in the order of their results, are reached too.
fn reach(graph: &Graph, stops: &HashSet<NodeId>, leaves: &[NodeId], links: &[(NodeId, NodeId)]) -> Vec<Vec<usize>> {
    let inputs = graph.inputs();
    let mut reach: Vec<Vec<usize>> = Vec::with_capacity(graph.nodes().len());
    for (id, node) in graph.iter() {
        let own: Vec<usize> = if !is_differentiable(node.ty.dtype) || stops.contains(&id) {
            Vec::new()
        } else if let Op::Input { index } = node.op {
            vec![index]
        } else if let Some(leaf) = leaves.iter().position(|leaf| *leaf == id) {
            vec![inputs.len() + leaf]
        } else {
            let operands = node.operands.iter().chain(linked(links, id));
            let mut own: Vec<usize> = operands.flat_map(|operand| reach[operand.index()].iter().copied()).collect();
            own.sort_unstable();
            own.dedup();
            own
        };
        reach.push(own);
    }
    reach
}
