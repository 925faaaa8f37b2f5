//! How large the terms of a sum are: what its rounding errors are a part of.

use super::attention::{self, Backward, Scores};
use super::{products, reduce, special, views};
use crate::{AttentionOperand, DType, HostTensor, Op, ReduceKind, Scalar, ScatterKind, UnaryOp};

/// Σ |term| of every element that an op adds up from `operands`, and the most terms of one; `None` for ops that add nothing up.
/// Terms of attention are the rows of V, weighted; the logarithm of a sum is as far off as the sum is beside its largest term, and
/// as that term's own logarithm, which is added to it. ln|Γ| of a negative number is the difference of two logarithms.
pub fn magnitudes(op: &Op, operands: &[HostTensor], shape: &[usize]) -> Option<(Vec<f64>, usize)> {
    let sizes: Vec<HostTensor> = operands.iter().map(absolute).collect::<Option<_>>()?;
    let sum = match (op, &sizes[..], operands) {
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
            attention::attention(&scores(*causal, *scale, q, k, mask)?, v)
        }
        (Op::Unary(UnaryOp::Lgamma), _, [x]) => {
            return Some((x.to_f64().into_iter().map(special::lgamma_terms).collect(), 1));
        }
        (Op::AttentionLogsumexp { causal, scale, .. }, _, [q, k, mask @ ..]) => {
            let keys = k.shape()[2].max(1) as f64;
            let size = |x: f64| 1.0 + x.abs() + keys.ln();
            let scores = scores(*causal, *scale, q, k, mask)?;
            let sizes: Vec<f64> = attention::logsumexp(&scores).ok()?.to_f64().into_iter().map(size).collect();
            return Some((sizes, terms(op, operands)));
        }
        (
            Op::AttentionGradient { of, causal, scale, .. },
            [abs_q, abs_k, v, gradient, _, delta, ..],
            [q, k, _, _, logsumexp, _, mask @ ..],
        ) => {
            // Both terms of what a weight is multiplied by count.
            let less: Vec<f64> = delta.to_f64().into_iter().map(|x| -x).collect();
            let delta = &HostTensor::from_f64(DType::F64, delta.shape(), &less).ok()?;
            let scores = scores(*causal, *scale, q, k, mask)?;
            let from = Backward { q: abs_q, k: abs_k, v, gradient, logsumexp, delta };
            attention::gradient(*of, &scores, &from).map(|sum| absolute(&sum).unwrap_or(sum))
        }
        _ => return None,
    };
    Some((sum.ok()?.to_f64(), terms(op, operands)))
}

/// The scores of attention, so that what is computed from them is not rounded.
fn scores(causal: bool, scale: Scalar, q: &HostTensor, k: &HostTensor, mask: &[HostTensor]) -> Option<Scores> {
    let [q, k] = [q, k].map(|x| x.cast(DType::F64).ok());
    Scores::new(causal, scale.as_f64(), &q?, &k?, mask.first()).ok()
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
        Op::Attention { .. } | Op::AttentionLogsumexp { .. } => size(1, &[2]) + size(1, &[3]),
        Op::AttentionGradient { of: AttentionOperand::Queries, .. } => size(1, &[2]) + size(1, &[3]),
        Op::AttentionGradient { .. } => size(0, &[1, 2]) / size(1, &[1]).max(1) + size(1, &[3]),
        _ => 1,
    }
}

/// The sizes of a tensor's elements, in f64.
fn absolute(x: &HostTensor) -> Option<HostTensor> {
    let values: Vec<f64> = x.to_f64().into_iter().map(f64::abs).collect();
    HostTensor::from_f64(DType::F64, x.shape(), &values).ok()
}
