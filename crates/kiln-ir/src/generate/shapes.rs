//! Views and windows.

use super::{Class, Maker};
use crate::{Dim, NodeId, Op, ReduceKind, WindowDims};

impl Maker<'_> {
    pub(super) fn reshape(&mut self) -> Option<NodeId> {
        let x = self.pick(Class::Any)?;
        let mut shape = self.ty(x).shape;
        for _ in 0..1 + self.rng.below(3) {
            match self.rng.below(5) {
                0 => shape = vec![shape.iter().cloned().product()],
                1 if shape.len() >= 2 => {
                    let axis = self.rng.below(shape.len() - 1);
                    let next = shape.remove(axis + 1);
                    shape[axis] = &shape[axis] * &next;
                }
                2 if !shape.is_empty() && shape.len() < 5 => {
                    let axis = self.rng.below(shape.len());
                    let divisors: Vec<i64> =
                        (2..=16).filter(|&d| shape[axis].div_exact(&Dim::from(d)).is_some()).collect();
                    if let Some(&divisor) = divisors.get(self.rng.below(divisors.len()))
                        && let Some(rest) = shape[axis].div_exact(&Dim::from(divisor))
                    {
                        shape[axis] = rest;
                        shape.insert(axis + self.rng.below(2), Dim::from(divisor));
                    }
                }
                3 if shape.len() < 5 => shape.insert(self.rng.below(shape.len() + 1), Dim::from(1)),
                _ => shape.retain(|size| !size.is_one()),
            }
        }
        self.add(Op::Reshape { shape }, &[x])
    }

    pub(super) fn permute(&mut self) -> Option<NodeId> {
        let x = self.pick(Class::Any)?;
        let mut order: Vec<usize> = (0..self.graph.ty(x).rank()).collect();
        self.rng.shuffle(&mut order);
        self.add(Op::Permute { order }, &[x])
    }

    pub(super) fn expand(&mut self) -> Option<NodeId> {
        let mut x = self.pick(Class::Any)?;
        let mut shape = self.ty(x).shape;
        if !shape.iter().any(Dim::is_one) && shape.len() < 5 {
            shape.insert(self.rng.below(shape.len() + 1), Dim::from(1));
            x = self.add(Op::Reshape { shape: shape.clone() }, &[x])?;
        }
        for size in &mut shape {
            if size.is_one() && self.rng.chance(0.7) {
                *size = self.draw_size();
            }
        }
        self.add(Op::Expand { shape }, &[x])
    }

    pub(super) fn slice(&mut self) -> Option<NodeId> {
        let x = self.pick(Class::Any)?;
        let shape = self.ty(x).shape;
        let (mut starts, mut sizes, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for length in &shape {
            let n = self.number(length);
            if self.rng.chance(0.4) {
                starts.push(Dim::from(0));
                sizes.push(length.clone());
                steps.push(1);
                continue;
            }
            let start = self.rng.below(n + 1);
            let step = *self.rng.choose(&[1, 1, 1, 2, 3]);
            let most = (n - start).div_ceil(step);
            // All that is left, as an expression, or a number of elements.
            let to_end = step == 1 && self.rng.chance(0.5);
            starts.push(Dim::from(start));
            sizes.push(if to_end { length - Dim::from(start) } else { Dim::from(self.rng.below(most + 1)) });
            steps.push(step as i64);
        }
        self.add(Op::Slice { start: starts, size: sizes, step: steps }, &[x])
    }

    pub(super) fn pad(&mut self) -> Option<NodeId> {
        let x = self.pick(Class::Computable)?;
        let ty = self.ty(x);
        let value = self.draw_scalar(ty.dtype);
        let mut amounts =
            || -> Vec<Dim> { ty.shape.iter().map(|_| Dim::from(*self.rng.choose(&[0, 0, 1, 2, 5]))).collect() };
        let (low, high) = (amounts(), amounts());
        self.add(Op::Pad { low, high, value }, &[x])
    }

    pub(super) fn unfold(&mut self) -> Option<NodeId> {
        let x = self.pick_ranked(Class::Any, 1)?;
        let axis = self.draw_axis(x);
        let n = self.number(&self.graph.ty(x).shape[axis]);
        let (size, stride, dilation) = (1 + self.rng.below(3), 1 + self.rng.below(3), 1 + self.rng.below(2));
        if (size - 1) * dilation + 1 > n || self.graph.ty(x).rank() >= 5 {
            return None;
        }
        self.add(Op::Unfold { axis, size, stride, dilation }, &[x])
    }

    pub(super) fn concat(&mut self) -> Option<NodeId> {
        let x = self.pick_ranked(Class::Any, 1)?;
        let ty = self.ty(x);
        let axis = self.draw_axis(x);
        let mut parts = vec![x];
        for _ in 0..self.rng.below(3) {
            let mut shape = ty.shape.clone();
            if self.rng.chance(0.6) {
                shape[axis] = self.draw_size();
            }
            parts.push(self.like(ty.dtype, &shape)?);
        }
        self.rng.shuffle(&mut parts);
        self.add(Op::Concat { axis }, &parts)
    }

    pub(super) fn reduce_window(&mut self, kind: ReduceKind) -> Option<NodeId> {
        let x = self.pick_ranked(kind.accepts(), 1)?;
        let shape = self.ty(x).shape;
        let mut dims = WindowDims { size: vec![], stride: vec![], dilation: vec![], padding: vec![] };
        for length in &shape {
            let n = self.number(length);
            let idle = self.rng.chance(0.4);
            let (size, stride, dilation) = match idle {
                true => (1, 1, 1),
                false => (1 + self.rng.below(3), 1 + self.rng.below(3), 1 + self.rng.below(2)),
            };
            let extent = (size - 1) * dilation + 1;
            let mut padding = if idle { (0, 0) } else { (self.rng.below(size), self.rng.below(size)) };
            if n + padding.0 + padding.1 < extent {
                padding.1 = extent - n - padding.0;
            }
            dims.size.push(size);
            dims.stride.push(stride);
            dims.dilation.push(dilation);
            dims.padding.push(padding);
        }
        self.add(Op::ReduceWindow { kind, dims: dims.into() }, &[x])
    }
}
