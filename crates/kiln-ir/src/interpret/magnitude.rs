//! How large the terms of a sum are: what its rounding errors are a part of.

use super::{products, reduce, views};
use crate::{DType, HostTensor, Op, ReduceKind, ScatterKind};

/// Σ |term| of every element that an op adds up from `operands`, and the most terms of one; `None` for ops that add nothing up.
/// Terms of attention are the rows of V, weighted.
pub fn magnitudes(op: &Op, operands: &[HostTensor], shape: &[usize]) -> Option<(Vec<f64>, usize)> {
    let absolute: Vec<HostTensor> = operands.iter().map(absolute).collect::<Option<_>>()?;
    let sum = match (op, &absolute[..], operands) {
        (Op::Reduce { kind: ReduceKind::Sum, axes }, [x], _) => reduce::reduce(ReduceKind::Sum, axes, x),
        (Op::Scan { kind: ReduceKind::Sum, axis, reverse }, [x], _) => {
            reduce::scan(ReduceKind::Sum, *axis, *reverse, x)
        }
        (Op::ReduceWindow { kind: ReduceKind::Sum, dims }, [x], _) => {
            reduce::reduce_window(ReduceKind::Sum, dims, shape, x)
        }
        (Op::Scatter { axis, kind: ScatterKind::Add }, [x, _, updates], [_, index, _]) => {
            views::scatter(x, index, updates, *axis, ScatterKind::Add)
        }
        (Op::Dot { dims, .. }, [x, y], _) => products::dot(dims, DType::F64, x, y),
        (Op::Conv(dims), [x, w], _) => products::conv(dims, shape, x, w),
        (Op::Attention { causal, scale, .. }, [_, _, v, ..], [q, k, _, mask @ ..]) => {
            let [q, k] = [q, k].map(|x| x.cast(DType::F64).ok());
            products::attention(*causal, scale.as_f64(), &q?, &k?, v, mask.first())
        }
        _ => return None,
    };
    Some((sum.ok()?.to_f64(), terms(op, operands)))
}

/// The most terms of one sum.
fn terms(op: &Op, operands: &[HostTensor]) -> usize {
    let size = |operand: usize, axes: &[usize]| axes.iter().map(|&axis| operands[operand].shape()[axis]).product();
    match op {
        Op::Reduce { axes, .. } => size(0, axes),
        Op::Scan { axis, .. } => size(0, &[*axis]),
        Op::ReduceWindow { dims, .. } => dims.size.iter().product(),
        Op::Scatter { axis, .. } => size(1, &[*axis]) + 1,
        Op::Dot { dims, .. } => size(0, &dims.lhs_contract),
        Op::Conv(_) => operands[1].shape()[1..].iter().product(),
        Op::Attention { .. } => size(1, &[2]) + size(1, &[3]),
        _ => 1,
    }
}

/// The sizes of a tensor's elements, in f64.
fn absolute(x: &HostTensor) -> Option<HostTensor> {
    let values: Vec<f64> = x.to_f64().into_iter().map(f64::abs).collect();
    HostTensor::from_f64(DType::F64, x.shape(), &values).ok()
}
