//! Ops that make or take indices; every index is in range.

use super::{Class, Maker};
use crate::{BinaryOp, DType, Dim, NodeId, Op, Scalar, ScatterKind, TensorType};

impl Maker<'_> {
    pub(super) fn sort(&mut self) -> Option<NodeId> {
        let x = self.pick_ranked(Class::Computable, 1)?;
        let axis = self.draw_axis(x);
        let length = self.ty(x).shape[axis].clone();
        let few = Dim::from(self.rng.below(self.number(&length) + 1));
        let count = if self.rng.chance(0.5) { length } else { few };
        let descending = self.rng.chance(0.5);
        let order = self.add(Op::SortIndices { axis, descending, count }, &[x])?;
        // What sorting is for: the elements in that order.
        if self.rng.chance(0.5) { self.add(Op::Gather { axis }, &[x, order]) } else { Some(order) }
    }

    pub(super) fn gather(&mut self) -> Option<NodeId> {
        let x = self.pick_ranked(Class::Any, 1)?;
        let axis = self.draw_axis(x);
        let mut shape = self.ty(x).shape;
        let range = self.number(&shape[axis]);
        shape[axis] = self.draw_size();
        let index = self.index(&shape, axis, range)?;
        self.add(Op::Gather { axis }, &[x, index])
    }

    pub(super) fn scatter(&mut self, kind: ScatterKind) -> Option<NodeId> {
        let x = self.pick_ranked(kind.accepts(), 1)?;
        let ty = self.ty(x);
        let axis = self.draw_axis(x);
        let mut shape = ty.shape.clone();
        let range = self.number(&shape[axis]);
        shape[axis] = self.draw_size();
        let index = self.index(&shape, axis, range)?;
        let updates = self.like(ty.dtype, &shape)?;
        self.add(Op::Scatter { axis, kind }, &[x, index, updates])
    }

    /// Indices below `range` in this shape: an input of their own, a count, one number, or any integers clamped.
    fn index(&mut self, shape: &[Dim], axis: usize, range: usize) -> Option<NodeId> {
        if (range == 0 && self.elements(shape) > 0) || !self.fits(shape) {
            return None;
        }
        let dtype = *self.rng.choose(&[DType::I32, DType::I64]);
        let last = Dim::from(range.saturating_sub(1));
        match self.rng.below(6) {
            0 if self.number(&shape[axis]) <= range => self.add(Op::Iota { dtype, shape: shape.to_vec(), axis }, &[]),
            1 if range > 0 => {
                let value = Scalar::int(dtype, self.rng.below(range) as i64);
                self.add(Op::Full { value, shape: shape.to_vec() }, &[])
            }
            2 | 3 if range > 0 => {
                let x = self.like(dtype, shape)?;
                let mut bound =
                    |value: i64| self.add(Op::Full { value: Scalar::int(dtype, value), shape: shape.to_vec() }, &[]);
                let (low, high) = (bound(0)?, bound(last.as_const()?)?);
                let x = self.add(Op::Binary(BinaryOp::Max), &[x, low])?;
                self.add(Op::Binary(BinaryOp::Min), &[x, high])
            }
            _ => {
                let source = self.source();
                self.graph.input(TensorType::new(dtype, shape), source).ok()
            }
        }
    }
}
