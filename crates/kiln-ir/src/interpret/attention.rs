//! Attention, the logarithms of its sums and its gradients, row by row in f64.

use super::Fault;
use super::products::check_arithmetic;
use super::reduce::float_rule;
use super::views::filled;
use crate::{AttentionOperand, DType, HostTensor, ReduceKind};

/// What the scores of attention are computed from.
pub(super) struct Scores {
    shape: [usize; 7],
    dtype: DType,
    causal: bool,
    scale: f64,
    queries: Vec<f64>,
    keys: Vec<f64>,
    keep: Option<Vec<f64>>,
    bias: Option<Vec<f64>>,
}

impl Scores {
    pub(super) fn new(
        causal: bool,
        scale: f64,
        q: &HostTensor,
        k: &HostTensor,
        mask: Option<&HostTensor>,
    ) -> Result<Scores, Fault> {
        check_arithmetic(q.dtype())?;
        let (&[b, h, t, d], &[_, g, s, _]) = (q.shape(), k.shape()) else {
            return Err(Fault::SizesDiffer { what: "q and k", lhs: q.shape().to_vec(), rhs: k.shape().to_vec() });
        };
        let (mut keep, mut bias) = (None, None);
        match mask.map(HostTensor::dtype) {
            Some(DType::I64) => keep = mask.map(|bounds| kept_by(&bounds.to_f64(), s)),
            Some(DType::Bool) => keep = mask.map(HostTensor::to_f64),
            _ => bias = mask.map(HostTensor::to_f64),
        }
        let shape = [b, h, g, t, s, d, b * h * t];
        Ok(Scores { shape, dtype: q.dtype(), causal, scale, queries: q.to_f64(), keys: k.to_f64(), keep, bias })
    }

    /// The number of the heads' keys that a row looks at, among those of all batches.
    fn group(&self, row: usize) -> usize {
        let [_, h, g, t, ..] = self.shape;
        row / (h * t) * g + row / t % h / (h / g)
    }

    /// The scores of a row, −∞ where a key is not visible.
    fn row(&self, row: usize, scores: &mut [f64]) {
        let [_, _, _, t, s, d, _] = self.shape;
        let (i, group) = (row % t, self.group(row));
        let query = &self.queries[row * d..(row + 1) * d];
        for (j, score) in scores.iter_mut().enumerate() {
            let key = &self.keys[(group * s + j) * d..(group * s + j + 1) * d];
            let product: f64 = query.iter().zip(key).map(|(&x, &y)| x * y).sum();
            *score = product * self.scale;
            if let Some(mask) = &self.bias {
                *score += mask[row * s + j];
            }
            let dropped = self.keep.as_ref().is_some_and(|keep| keep[row * s + j] == 0.0);
            if dropped || self.causal && (j as i64) > i as i64 + s as i64 - t as i64 {
                *score = f64::NEG_INFINITY;
            }
        }
    }
}

/// What bounds of the visible keys keep, row by row, as a mask of 0 and 1.
fn kept_by(bounds: &[f64], keys: usize) -> Vec<f64> {
    let row = |bounds: &[f64]| {
        let (first, end) = (bounds[0], bounds[1]);
        (0..keys).map(move |key| f64::from(first <= key as f64 && (key as f64) < end))
    };
    bounds.chunks_exact(2).flat_map(row).collect()
}

/// The largest of some scores.
fn largest(scores: &[f64]) -> f64 {
    let (lowest, max) = float_rule(ReduceKind::Max);
    scores.iter().copied().fold(lowest, max)
}

pub(super) fn attention(scores: &Scores, v: &HostTensor) -> Result<HostTensor, Fault> {
    let [b, h, _, t, s, _, rows] = scores.shape;
    let e = v.shape()[3];
    let values = v.to_f64();
    let mut result = filled(&[b, h, t, e], 0.0)?;
    let mut weights = vec![0.0; s];
    for row in 0..rows {
        scores.row(row, &mut weights);
        let top = largest(&weights);
        if top == f64::NEG_INFINITY {
            continue;
        }
        weights.iter_mut().for_each(|score| *score = (*score - top).exp());
        let total: f64 = weights.iter().sum();
        let group = scores.group(row);
        for (column, out) in result[row * e..(row + 1) * e].iter_mut().enumerate() {
            let sum: f64 = weights.iter().enumerate().map(|(j, p)| p * values[(group * s + j) * e + column]).sum();
            *out = sum / total;
        }
    }
    Ok(HostTensor::from_f64(scores.dtype, &[b, h, t, e], &result)?)
}

pub(super) fn logsumexp(scores: &Scores) -> Result<HostTensor, Fault> {
    let [b, h, _, t, s, _, rows] = scores.shape;
    let shape = [b, h, t, 1];
    let mut result = filled(&shape, f64::NEG_INFINITY)?;
    let mut row_scores = vec![0.0; s];
    for (row, out) in result.iter_mut().enumerate().take(rows) {
        scores.row(row, &mut row_scores);
        let top = largest(&row_scores);
        if top != f64::NEG_INFINITY {
            *out = top + row_scores.iter().map(|score| (score - top).exp()).sum::<f64>().ln();
        }
    }
    Ok(HostTensor::from_f64(scores.dtype.compute_type(), &shape, &result)?)
}

/// The operands of a gradient beside the scores: queries and keys as factors of the gradients, values, the gradient of the
/// result, the logarithms of the sums and what is subtracted from the gradients of the weights.
pub(super) struct Backward<'a> {
    pub q: &'a HostTensor,
    pub k: &'a HostTensor,
    pub v: &'a HostTensor,
    pub gradient: &'a HostTensor,
    pub logsumexp: &'a HostTensor,
    pub delta: &'a HostTensor,
}

pub(super) fn gradient(of: AttentionOperand, scores: &Scores, from: &Backward<'_>) -> Result<HostTensor, Fault> {
    let [_, _, _, _, s, d, rows] = scores.shape;
    let e = from.v.shape()[3];
    let like = match of {
        AttentionOperand::Queries => from.q,
        AttentionOperand::Keys => from.k,
        AttentionOperand::Values => from.v,
    };
    let [q, k, v, g, logsumexp, delta] =
        [from.q, from.k, from.v, from.gradient, from.logsumexp, from.delta].map(HostTensor::to_f64);
    let mut result = filled(like.shape(), 0.0)?;
    let mut row_scores = vec![0.0; s];
    for row in 0..rows {
        scores.row(row, &mut row_scores);
        let gradient = &g[row * e..(row + 1) * e];
        let first = scores.group(row) * s;
        for (j, &score) in row_scores.iter().enumerate() {
            if score == f64::NEG_INFINITY {
                continue;
            }
            let weight = (score - logsumexp[row]).exp();
            let key = first + j;
            let product: f64 = gradient.iter().zip(&v[key * e..]).map(|(&x, &y)| x * y).sum();
            let slope = weight * (product - delta[row]) * scores.scale;
            let (at, width, factor, by) = match of {
                AttentionOperand::Queries => (row, d, slope, &k[key * d..]),
                AttentionOperand::Keys => (key, d, slope, &q[row * d..]),
                AttentionOperand::Values => (key, e, weight, gradient),
            };
            for (out, &x) in result[at * width..(at + 1) * width].iter_mut().zip(by) {
                *out += factor * x;
            }
        }
    }
    Ok(HostTensor::from_f64(scores.dtype, like.shape(), &result)?)
}
