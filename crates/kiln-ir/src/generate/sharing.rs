//! Graphs in which much memory is shared: all nodes of one or two types, so that scatters have common bases, scans and
//! concatenations are between kernels that could otherwise be fused, inputs are read after their update is computed, and values
//! are returned more than once. Random types hardly ever coincide like that.

use super::{Class, Maker};
use crate::{DType, Dim, NodeId, Op, OpKind, ReduceKind, ScatterKind};

/// The types of a graph that is about sharing.
pub(super) struct Sharing {
    dtypes: Vec<DType>,
    shape: Vec<Dim>,
}

impl Maker<'_> {
    /// From now on most nodes are of the same few types.
    pub(super) fn share(&mut self) {
        let dtype = self.draw_dtype(Class::Number);
        let other = if self.rng.chance(0.5) { DType::I64 } else { self.draw_dtype(Class::Computable) };
        let mut shape: Vec<Dim> = (0..1 + self.rng.below(2)).map(|_| self.draw_size()).collect();
        while !self.fits(&shape) {
            shape.pop();
        }
        self.sharing = Some(Sharing { dtypes: vec![dtype, dtype, dtype, other], shape });
    }

    /// The shared dtype, if the class has it.
    pub(super) fn shared_dtype(&mut self, class: Class) -> Option<DType> {
        let dtypes = self.sharing.as_ref().map(|sharing| sharing.dtypes.clone())?;
        let dtype = *self.rng.choose(&dtypes);
        (class.has(dtype) && self.rng.chance(0.8)).then_some(dtype)
    }

    /// The shared shape.
    pub(super) fn shared_shape(&mut self) -> Option<Vec<Dim>> {
        let shape = self.sharing.as_ref().map(|sharing| sharing.shape.clone())?;
        self.rng.chance(0.85).then_some(shape)
    }

    /// An op that writes memory in more than one go, or that a kernel ends with.
    pub(super) fn draw_memory_kind(&mut self) -> Option<OpKind> {
        if self.sharing.is_none() || self.rng.chance(0.35) {
            return None;
        }
        let kind = match self.rng.below(10) {
            0..=3 => OpKind::Scatter(*self.rng.choose(&[ScatterKind::Add, ScatterKind::Set, ScatterKind::Max])),
            4 | 5 => OpKind::Scan(*self.rng.choose(&[ReduceKind::Sum, ReduceKind::Max])),
            6 => OpKind::Concat,
            7 => OpKind::Flip,
            8 => OpKind::Reduce(ReduceKind::Max),
            _ => OpKind::Slice,
        };
        self.options.ops.contains(&kind).then_some(kind)
    }

    /// Returns values once more, and lets outputs update inputs wherever the types allow it.
    pub(super) fn return_again(&mut self, updated: &mut [bool]) {
        let inputs: Vec<NodeId> = self.graph.inputs().to_vec();
        for number in 0..self.graph.nodes().len() {
            let id = NodeId(number as u32);
            if !self.rng.chance(0.15) || matches!(self.graph.node(id).op, Op::Input { .. }) {
                continue;
            }
            let fitting = |&i: &usize| !updated[i] && self.graph.ty(inputs[i]) == self.graph.ty(id);
            let fitting: Vec<usize> = (0..inputs.len()).filter(fitting).collect();
            if !fitting.is_empty() && self.rng.chance(0.6) {
                let input = *self.rng.choose(&fitting);
                updated[input] = true;
                self.graph.update(id, input);
            } else {
                self.graph.output(id);
            }
        }
    }
}
