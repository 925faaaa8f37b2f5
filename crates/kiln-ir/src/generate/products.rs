//! Products: dot, convolution, attention.

use super::{Class, Maker};
use crate::{AttentionOperand, BinaryOp, BlockFormat, ConvDims, DType, Dim, DotDims, NodeId, Op, ReduceKind, Scalar};

/// Multiplications that one product may take.
const MAX_WORK: usize = 1 << 18;

impl Maker<'_> {
    pub(super) fn dot(&mut self) -> Option<NodeId> {
        let lhs = self.pick(Class::Number)?;
        let ty = self.ty(lhs);
        let mut dims = DotDims::default();
        // Each axis of the left is batch, summed or free; the right has the first two and free ones of its own.
        let mut axes: Vec<usize> = (0..ty.rank()).collect();
        self.rng.shuffle(&mut axes);
        let mut rhs: Vec<(Dim, u8, usize)> = Vec::new();
        for axis in axes {
            let role = *self.rng.choose(&[0, 1, 1, 2]);
            match role {
                0 => dims.lhs_batch.push(axis),
                1 => dims.lhs_contract.push(axis),
                _ => continue,
            }
            let place = if role == 0 { dims.lhs_batch.len() } else { dims.lhs_contract.len() };
            rhs.push((ty.shape[axis].clone(), role, place - 1));
        }
        for _ in 0..self.rng.below(3) {
            rhs.push((self.draw_size(), 2, 0));
        }
        if rhs.len() > 5 {
            return None;
        }
        self.rng.shuffle(&mut rhs);
        dims.rhs_batch = vec![0; dims.lhs_batch.len()];
        dims.rhs_contract = vec![0; dims.lhs_contract.len()];
        for (axis, (_, role, place)) in rhs.iter().enumerate() {
            match role {
                0 => dims.rhs_batch[*place] = axis,
                1 => dims.rhs_contract[*place] = axis,
                _ => {}
            }
        }
        let shape: Vec<Dim> = rhs.iter().map(|(size, ..)| size.clone()).collect();
        let free = rhs.iter().filter(|(_, role, _)| *role == 2).fold(1, |n: usize, (size, ..)| n * self.number(size));
        if self.elements(&ty.shape).saturating_mul(free) > MAX_WORK {
            return None;
        }
        let rhs = self.like(ty.dtype, &shape)?;
        let wider = match ty.dtype {
            DType::F16 | DType::Bf16 => DType::F32,
            DType::I8 | DType::U8 => DType::I32,
            other => other,
        };
        let out = if self.rng.chance(0.5) { wider } else { ty.dtype };
        self.add(Op::Dot { dims: dims.into(), out }, &[lhs, rhs])
    }

    /// Blocks, and often the product of something with their elements, as in a linear layer.
    pub(super) fn dequantize(&mut self) -> Option<NodeId> {
        let format = *self.rng.choose(&BlockFormat::ALL);
        let most = if format.elements() > 32 { 2 } else { 4 };
        let blocks = 1 + self.rng.below(most);
        let mut shape = vec![Dim::from(*self.rng.choose(&[1, 2, 3, 5]))];
        if self.rng.chance(0.2) {
            shape.insert(0, self.draw_size());
        }
        shape.push(Dim::from(blocks * format.bytes()));
        let bytes = self.like(DType::U8, &shape)?;
        let weight = self.add(Op::Dequantize { format }, &[bytes])?;
        let k = blocks * format.elements();
        if self.rng.chance(0.4) {
            return Some(weight);
        }
        let rows = self.draw_size();
        if self.number(&rows) * self.elements(&self.ty(weight).shape) > MAX_WORK {
            return Some(weight);
        }
        let x = self.like(DType::F32, &[rows, Dim::from(k)])?;
        let last = self.ty(weight).rank() - 1;
        let dims = DotDims { lhs_contract: vec![1], rhs_contract: vec![last], ..DotDims::default() };
        self.add(Op::Dot { dims: dims.into(), out: DType::F32 }, &[x, weight])
    }

    pub(super) fn conv(&mut self) -> Option<NodeId> {
        let dtype = self.draw_dtype(Class::Number);
        let spatial = 1 + self.rng.below(2);
        let (groups, small) = (1 + self.rng.below(2), [1, 2, 3]);
        let (inner, outer) = (*self.rng.choose(&small), *self.rng.choose(&small));
        let mut x = vec![Dim::from(1 + self.rng.below(2)), Dim::from(inner * groups)];
        let mut w = vec![Dim::from(outer * groups), Dim::from(inner)];
        let mut dims = ConvDims { stride: vec![], padding: vec![], dilation: vec![], input_dilation: vec![], groups };
        for _ in 0..spatial {
            let size = 3 + self.rng.below(6);
            let kernel = 1 + self.rng.below(3);
            x.push(Dim::from(size));
            w.push(Dim::from(kernel));
            dims.stride.push(1 + self.rng.below(2));
            dims.dilation.push(1 + self.rng.below(2));
            dims.input_dilation.push(if self.rng.chance(0.2) { 2 } else { 1 });
            dims.padding.push((self.rng.below(4) as i64 - 1, self.rng.below(4) as i64 - 1));
        }
        let x = self.like(dtype, &x)?;
        let w = self.like(dtype, &w)?;
        self.add(Op::Conv(dims.into()), &[x, w])
    }

    pub(super) fn attention(&mut self) -> Option<NodeId> {
        let (op, operands) = self.attention_operands(&[DType::I64])?;
        self.add(op, &operands)
    }

    /// The logarithms of the sums of some attention.
    pub(super) fn attention_logsumexp(&mut self) -> Option<NodeId> {
        let (op, mut operands) = self.attention_operands(&[])?;
        let Op::Attention { causal, scale, mask } = op else { return None };
        operands.remove(2);
        self.add(Op::AttentionLogsumexp { causal, scale, mask }, &operands)
    }

    /// A gradient of some attention, from its own logarithms and its own sums.
    pub(super) fn attention_gradient(&mut self, of: AttentionOperand) -> Option<NodeId> {
        let (op, operands) = self.attention_operands(&[])?;
        let Op::Attention { causal, scale, mask } = op else { return None };
        let mut of_scores = operands.clone();
        of_scores.remove(2);
        let logsumexp = self.add(Op::AttentionLogsumexp { causal, scale, mask }, &of_scores)?;
        let y = self.add(op, &operands)?;
        let ty = self.graph.ty(y).clone();
        let gradient = self.like(ty.dtype, &ty.shape)?;
        let wide = ty.dtype.compute_type();
        let (wide_y, wide_g) = (self.add(Op::Cast(wide), &[y])?, self.add(Op::Cast(wide), &[gradient])?);
        let products = self.add(Op::Binary(BinaryOp::Mul), &[wide_y, wide_g])?;
        let delta = self.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![3] }, &[products])?;
        let mut all = operands[..3].to_vec();
        all.extend([gradient, logsumexp, delta]);
        all.extend(&operands[3..]);
        self.add(Op::AttentionGradient { of, causal, scale, mask }, &all)
    }

    /// Attention and its operands; a mask may have one of these types too.
    fn attention_operands(&mut self, more: &[DType]) -> Option<(Op, Vec<NodeId>)> {
        let dtype = self.draw_dtype(Class::Float);
        let (batch, groups) = (1 + self.rng.below(2), 1 + self.rng.below(2));
        let heads = groups * (1 + self.rng.below(2));
        let [rows, columns, depth, width] = [5, 7, 8, 8].map(|n| 1 + self.rng.below(n));
        let shape = |dims: [usize; 4]| dims.map(Dim::from);
        let q = self.like(dtype, &shape([batch, heads, rows, depth]))?;
        let k = self.like(dtype, &shape([batch, groups, columns, depth]))?;
        let v = self.like(dtype, &shape([batch, groups, columns, width]))?;
        let mut operands = vec![q, k, v];
        let mask = self.rng.chance(0.5);
        if mask {
            let dtype = *self.rng.choose(&[&[DType::Bool, dtype, DType::F32], more].concat());
            let columns = if dtype == DType::I64 { 2 } else { columns };
            operands.push(self.like(dtype, &shape([batch, heads, rows, columns]))?);
        }
        let scale = Scalar::float(DType::F64, 1.0 / (depth as f64).sqrt());
        let causal = self.rng.chance(0.5);
        Some((Op::Attention { causal, scale, mask }, operands))
    }
}
