//! Loops with bodies of a few ops whose results stay small.

use super::{Class, Maker};
use crate::{
    BinaryOp, Branches, CompareOp, DType, Dim, Graph, NodeId, Op, ReduceKind, Region, Scalar, Source, TensorType,
    UnaryOp,
};
use std::sync::Arc;

impl Maker<'_> {
    /// Whole numbers after a number of turns that is counted down.
    fn until(&mut self) -> Option<NodeId> {
        let x = self.pick(Class::Integer)?;
        let ty = self.ty(x);
        if ty.dtype == DType::I4 || ty.dtype.is_storage_only() || self.number(&ty.elements()) == 0 {
            return None;
        }
        let scalar = |dtype| TensorType::new(dtype, Vec::<Dim>::new());
        let (count, true_) = (Scalar::int(DType::I32, self.rng.below(5) as i64), Scalar::bool(self.rng.chance(0.8)));
        let count = self.add(Op::Full { value: count, shape: vec![] }, &[])?;
        let first = self.add(Op::Full { value: true_, shape: vec![] }, &[])?;
        let mut body = Graph::new();
        let types = [ty.clone(), scalar(DType::I32), scalar(DType::Bool)];
        let mut input = |ty: &TensorType| body.input(ty.clone(), Source::default()).ok();
        let (own, left, _) = (input(&types[0])?, input(&types[1])?, input(&types[2])?);
        let mut add = |op: Op, operands: &[NodeId]| body.add(op, operands, Source::default()).ok();
        let one = add(Op::Full { value: Scalar::int(DType::I32, 1), shape: vec![] }, &[])?;
        let left = add(Op::Binary(BinaryOp::Sub), &[left, one])?;
        let zero = add(Op::Full { value: Scalar::int(DType::I32, 0), shape: vec![] }, &[])?;
        let goes_on = add(Op::Compare(CompareOp::Gt), &[left, zero])?;
        let next = self.body_op(&mut body, &[own], &ty)?;
        [next, left, goes_on].into_iter().for_each(|node| body.output(node));
        let region = Arc::new(Region::conditional(body));
        let result = self.rng.below(2);
        self.add(Op::Loop { region, result }, &[x, count, first])
    }

    /// One or two results of a loop over the first axis of a node.
    pub(super) fn repeat(&mut self) -> Option<NodeId> {
        if self.rng.chance(0.2) {
            return self.until();
        }
        let x = self.pick_ranked(Class::Any, 1)?;
        let ty = self.ty(x);
        if ty.dtype == DType::I4 || ty.dtype.is_storage_only() {
            return None;
        }
        let (turns, row) = (ty.shape[0].clone(), TensorType::new(ty.dtype, &ty.shape[1..]));
        if self.number(&turns) > 9 {
            return None;
        }
        let (carried, same) = (self.like(row.dtype, &row.shape)?, self.like(row.dtype, &row.shape)?);
        let mut body = Graph::new();
        let mut values = Vec::new();
        for _ in 0..3 {
            values.push(body.input(row.clone(), Source::default()).ok()?);
        }
        for _ in 0..1 + self.rng.below(4) {
            values.extend(self.body_op(&mut body, &values, &row));
        }
        let computed = values[values.len().saturating_sub(1)];
        body.output(computed);
        for _ in 0..self.rng.below(3) {
            body.output(*self.rng.choose(&values));
        }
        let results = body.outputs().len();
        let region = Arc::new(Region::new(body, turns, 1, 1, self.rng.chance(0.3)));
        let other = self.rng.below(results);
        let first = self.add(Op::Loop { region: region.clone(), result: other }, &[carried, x, same]);
        match self.rng.chance(0.5) {
            true => self.add(Op::Loop { region, result: 0 }, &[carried, x, same]).or(first),
            false => first,
        }
    }

    /// One or two results of a choice between graphs of a few ops.
    pub(super) fn choice(&mut self) -> Option<NodeId> {
        let x = self.pick(Class::Any)?;
        let ty = self.ty(x);
        if ty.dtype == DType::I4 || ty.dtype.is_storage_only() {
            return None;
        }
        let y = self.like(ty.dtype, &ty.shape)?;
        let predicate = self.like(DType::Bool, &[])?;
        let results = 1 + self.rng.below(2);
        let side = |own: &mut Self| {
            let mut body = Graph::new();
            let mut values = Vec::new();
            for _ in 0..2 {
                values.push(body.input(ty.clone(), Source::default()).ok()?);
            }
            for _ in 0..own.rng.below(4) {
                values.extend(own.body_op(&mut body, &values, &ty));
            }
            for _ in 0..results {
                body.output(*own.rng.choose(&values));
            }
            Some(body)
        };
        let branches = Arc::new(Branches::new(side(self)?, side(self)?));
        let first = self.add(Op::Cond { branches: branches.clone(), result: 0 }, &[predicate, x, y]);
        match results > 1 && self.rng.chance(0.7) {
            true => self.add(Op::Cond { branches, result: 1 }, &[predicate, x, y]).or(first),
            false => first,
        }
    }

    /// An op of a body, on values of one type.
    fn body_op(&mut self, body: &mut Graph, values: &[NodeId], row: &TensorType) -> Option<NodeId> {
        let (x, y) = (*self.rng.choose(values), *self.rng.choose(values));
        let mut add = |op: Op, operands: &[NodeId]| body.add(op, operands, Source::default()).ok();
        if row.dtype == DType::Bool {
            return add(Op::Binary(*self.rng.choose(&[BinaryOp::And, BinaryOp::Or, BinaryOp::Xor])), &[x, y]);
        }
        match self.rng.below(6) {
            0 => add(Op::Binary(BinaryOp::Sub), &[x, y]),
            1 => add(Op::Binary(*self.rng.choose(&[BinaryOp::Max, BinaryOp::Min])), &[x, y]),
            2 if row.dtype.is_float() => {
                let small = add(Op::Unary(*self.rng.choose(&[UnaryOp::Tanh, UnaryOp::Sin])), &[x])?;
                add(Op::Binary(BinaryOp::Mul), &[small, y])
            }
            3 if row.rank() > 0 => {
                let axis = self.rng.below(row.rank());
                let most = add(Op::Reduce { kind: ReduceKind::Max, axes: vec![axis] }, &[x])?;
                let wide: Vec<Dim> = row.shape.clone();
                let most = add(Op::Expand { shape: wide }, &[most])?;
                add(Op::Binary(BinaryOp::Sub), &[most, y])
            }
            4 => add(Op::Unary(UnaryOp::Neg), &[x]),
            _ => add(Op::Binary(BinaryOp::Add), &[x, y]),
        }
    }
}
