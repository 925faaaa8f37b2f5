//! Ops that move elements without looking at them, as raw words: views, padding, joining, gather and scatter.

use super::compensated::Compensated;
use super::reduce::{float_rule, int_rule};
use super::{Fault, Walk, around, strides};
use crate::host::{element_count, try_filled};
use crate::{DType, HostTensor, Scalar, ScatterKind};

/// The elements of `x` at `offset + Σ index·step` for every index of a shape.
fn strided(x: &HostTensor, shape: &[usize], steps: &[isize], offset: isize) -> Result<HostTensor, Fault> {
    let words = x.to_words();
    let picked: Vec<u64> = Walk::new(shape, steps, offset).map(|i| words[i]).collect();
    Ok(HostTensor::from_words(x.dtype(), shape, &picked)?)
}

fn differ(what: &'static str, lhs: &[usize], rhs: &[usize]) -> Fault {
    Fault::SizesDiffer { what, lhs: lhs.to_vec(), rhs: rhs.to_vec() }
}

pub(super) fn iota(dtype: DType, shape: &[usize], axis: usize) -> Result<HostTensor, Fault> {
    let mut steps = vec![0; shape.len()];
    steps[axis] = 1;
    let values: Vec<i64> = Walk::new(shape, &steps, 0).map(|i| i as i64).collect();
    Ok(HostTensor::from_i64(dtype, shape, &values)?)
}

pub(super) fn reshape(x: &HostTensor, shape: &[usize]) -> Result<HostTensor, Fault> {
    if element_count(shape) != Some(x.elements()) {
        return Err(differ("reshape", x.shape(), shape));
    }
    Ok(HostTensor::from_bytes(x.dtype(), shape, x.bytes().to_vec())?)
}

pub(super) fn permute(x: &HostTensor, order: &[usize]) -> Result<HostTensor, Fault> {
    let from = strides(x.shape());
    let shape: Vec<usize> = order.iter().map(|&a| x.shape()[a]).collect();
    let steps: Vec<isize> = order.iter().map(|&a| from[a]).collect();
    strided(x, &shape, &steps, 0)
}

pub(super) fn expand(x: &HostTensor, shape: &[usize]) -> Result<HostTensor, Fault> {
    if x.rank() != shape.len() || x.shape().iter().zip(shape).any(|(&a, &b)| a != b && a != 1) {
        return Err(differ("expand", x.shape(), shape));
    }
    let steps: Vec<isize> =
        strides(x.shape()).iter().zip(x.shape()).zip(shape).map(|((&s, &a), &b)| if a == b { s } else { 0 }).collect();
    strided(x, shape, &steps, 0)
}

pub(super) fn slice(x: &HostTensor, start: &[usize], size: &[usize], step: &[i64]) -> Result<HostTensor, Fault> {
    let from = strides(x.shape());
    let mut steps = Vec::with_capacity(from.len());
    let mut offset = 0isize;
    for axis in 0..size.len() {
        let step = usize::try_from(step[axis]).unwrap_or(0);
        // One past the last element read; an empty slice may start at the end.
        let end = match size[axis].checked_sub(1) {
            None => Some(start[axis]),
            Some(last) => {
                last.checked_mul(step).and_then(|n| n.checked_add(start[axis])).and_then(|n| n.checked_add(1))
            }
        };
        if end.is_none_or(|end| end > x.shape()[axis]) {
            return Err(differ("slice (start, size, step of an axis)", &[start[axis], size[axis], step], x.shape()));
        }
        steps.push(from[axis] * step as isize);
        offset += from[axis] * start[axis] as isize;
    }
    strided(x, size, &steps, offset)
}

pub(super) fn pad(x: &HostTensor, low: &[usize], high: &[usize], value: Scalar) -> Result<HostTensor, Fault> {
    let sums = x.shape().iter().zip(low).zip(high).map(|((&n, &l), &h)| n.checked_add(l)?.checked_add(h));
    let shape: Vec<usize> = sums.collect::<Option<_>>().ok_or_else(|| differ("pad", low, high))?;
    let mut padded = HostTensor::full(&shape, value)?.to_words();
    let steps = strides(&shape);
    let offset = steps.iter().zip(low).map(|(&s, &l)| s * l as isize).sum();
    for (place, word) in Walk::new(x.shape(), &steps, offset).zip(x.to_words()) {
        padded[place] = word;
    }
    Ok(HostTensor::from_words(x.dtype(), &shape, &padded)?)
}

pub(super) fn flip(x: &HostTensor, axes: &[usize]) -> Result<HostTensor, Fault> {
    let mut steps = strides(x.shape());
    let mut offset = 0;
    for &axis in axes {
        offset += steps[axis] * x.shape()[axis].saturating_sub(1) as isize;
        steps[axis] = -steps[axis];
    }
    strided(x, x.shape(), &steps, offset)
}

pub(super) fn unfold(
    x: &HostTensor,
    axis: usize,
    stride: usize,
    dilation: usize,
    shape: &[usize],
) -> Result<HostTensor, Fault> {
    let (windows, size) = (shape[axis], shape[x.rank()]);
    if windows > 0 && size > 0 && (windows - 1) * stride + (size - 1) * dilation >= x.shape()[axis] {
        return Err(differ("unfold (windows, size)", &[windows, size], x.shape()));
    }
    let mut steps = strides(x.shape());
    steps.push(steps[axis] * dilation as isize);
    steps[axis] *= stride as isize;
    strided(x, shape, &steps, 0)
}

pub(super) fn concat(parts: &[&HostTensor], axis: usize, shape: &[usize]) -> Result<HostTensor, Fault> {
    let (outer, _, _) = around(shape, axis);
    let words: Vec<Vec<u64>> = parts.iter().map(|p| p.to_words()).collect();
    let mut joined = Vec::new();
    for o in 0..outer {
        for part in &words {
            let n = part.len() / outer;
            joined.extend_from_slice(&part[o * n..(o + 1) * n]);
        }
    }
    Ok(HostTensor::from_words(parts[0].dtype(), shape, &joined)?)
}

/// For each element of `index`, the position in `x` that it names. Fails at the first index out of range.
fn targets(x: &HostTensor, index: &HostTensor, axis: usize) -> Result<Vec<usize>, Fault> {
    let agree = |(a, (m, n)): (usize, (&usize, &usize))| a == axis || m == n;
    if x.rank() != index.rank() || !x.shape().iter().zip(index.shape()).enumerate().all(agree) {
        return Err(differ("x and index", x.shape(), index.shape()));
    }
    let size = x.shape()[axis];
    let (_, count, inner) = around(index.shape(), axis);
    let target = |(n, i): (usize, i64)| match usize::try_from(i) {
        Ok(i) if i < size => Ok((n / (count * inner) * size + i) * inner + n % inner),
        _ => Err(Fault::IndexOutOfRange { index: i, size }),
    };
    index.to_i64().into_iter().enumerate().map(target).collect()
}

pub(super) fn gather(x: &HostTensor, index: &HostTensor, axis: usize) -> Result<HostTensor, Fault> {
    let words = x.to_words();
    let picked: Vec<u64> = targets(x, index, axis)?.into_iter().map(|i| words[i]).collect();
    Ok(HostTensor::from_words(x.dtype(), index.shape(), &picked)?)
}

pub(super) fn scatter(
    x: &HostTensor,
    index: &HostTensor,
    updates: &HostTensor,
    axis: usize,
    kind: ScatterKind,
) -> Result<HostTensor, Fault> {
    if index.shape() != updates.shape() {
        return Err(differ("index and updates", index.shape(), updates.shape()));
    }
    fn run<T: Copy>(mut values: Vec<T>, places: &[usize], updates: Vec<T>, combine: impl Fn(T, T) -> T) -> Vec<T> {
        for (&place, update) in places.iter().zip(updates) {
            values[place] = combine(values[place], update);
        }
        values
    }
    let places = targets(x, index, axis)?;
    let dtype = x.dtype();
    let Some(reduction) = kind.reduction() else {
        let words = run(x.to_words(), &places, updates.to_words(), |_, new| new);
        return Ok(HostTensor::from_words(dtype, x.shape(), &words)?);
    };
    if dtype.is_storage_only() {
        return Err(Fault::NoArithmetic { dtype });
    }
    if dtype == DType::F64 && matches!(kind, ScatterKind::Add | ScatterKind::Mul) {
        let combine = if kind == ScatterKind::Add { Compensated::add } else { Compensated::multiply };
        let values = run(Compensated::of(x), &places, Compensated::of(updates), combine);
        return Ok(HostTensor::from_f64(dtype, x.shape(), &Compensated::round(&values))?);
    }
    if dtype.is_float() {
        let values = run(x.to_f64(), &places, updates.to_f64(), float_rule(reduction).1);
        return Ok(HostTensor::from_f64(dtype, x.shape(), &values)?);
    }
    let values = run(x.to_i64(), &places, updates.to_i64(), int_rule(reduction, dtype).1);
    Ok(HostTensor::from_i64(dtype, x.shape(), &values)?)
}

/// Room for the result of an op, or the fault that says there is none.
pub(super) fn filled<T: Clone>(shape: &[usize], value: T) -> Result<Vec<T>, Fault> {
    element_count(shape).and_then(|n| try_filled(n, value)).ok_or_else(|| Fault::TooLarge { shape: shape.to_vec() })
}
