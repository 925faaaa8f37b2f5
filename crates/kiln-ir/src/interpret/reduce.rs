//! Ops that combine elements along axes: reductions, scans, windows, sorting.

use super::compensated::Compensated;
use super::{Fault, MAX_ELEMENTS, Walk, around, strides};
use crate::host::{element_count, try_filled};
use crate::{ArgKind, DType, HostTensor, ReduceKind, WindowDims};
use std::cmp::Ordering;

/// How floats combine, and from what.
pub(super) fn float_rule(kind: ReduceKind) -> (f64, fn(f64, f64) -> f64) {
    (kind.float_identity(), kind.combine().row().float.unwrap_or(|a, _| a))
}

/// How floats of 64 bits combine, and from what.
fn double_rule(kind: ReduceKind) -> (Compensated, impl Fn(Compensated, Compensated) -> Compensated) {
    let (initial, combine) = float_rule(kind);
    let combine = move |a: Compensated, b| match kind {
        ReduceKind::Sum => a.add(b),
        ReduceKind::Prod => a.multiply(b),
        ReduceKind::Max | ReduceKind::Min => a.pick(b, combine),
    };
    (initial.into(), combine)
}

/// How integers and bools combine, and from what.
pub(super) fn int_rule(kind: ReduceKind, dtype: DType) -> (i64, impl Fn(i64, i64) -> i64) {
    let combine = kind.combine().row().int.unwrap_or(|_, a, _| a);
    (kind.identity(dtype).as_i64(), move |a, b| combine(dtype, a, b))
}

fn check_arithmetic(dtype: DType) -> Result<(), Fault> {
    if dtype.is_storage_only() { Err(Fault::NoArithmetic { dtype }) } else { Ok(()) }
}

/// Combines each element into the place of the result that `places` names for it.
fn fold<T: Clone>(
    values: Vec<T>,
    places: impl Iterator<Item = usize>,
    shape: &[usize],
    (initial, combine): (T, impl Fn(T, T) -> T),
) -> Result<Vec<T>, Fault> {
    let too_large = || Fault::TooLarge { shape: shape.to_vec() };
    let mut result = element_count(shape).and_then(|n| try_filled(n, initial)).ok_or_else(too_large)?;
    for (value, place) in values.into_iter().zip(places) {
        result[place] = combine(result[place].clone(), value);
    }
    Ok(result)
}

pub(super) fn reduce(kind: ReduceKind, axes: &[usize], x: &HostTensor) -> Result<HostTensor, Fault> {
    let dtype = x.dtype();
    check_arithmetic(dtype)?;
    let mut shape = x.shape().to_vec();
    axes.iter().for_each(|&a| shape[a] = 1);
    let mut steps = strides(&shape);
    axes.iter().for_each(|&a| steps[a] = 0);
    let places = Walk::new(x.shape(), &steps, 0);
    if dtype == DType::F64 {
        let values = fold(Compensated::of(x), places, &shape, double_rule(kind))?;
        Ok(HostTensor::from_f64(dtype, &shape, &Compensated::round(&values))?)
    } else if dtype.is_float() {
        let values = fold(x.to_f64(), places, &shape, float_rule(kind))?;
        Ok(HostTensor::from_f64(dtype, &shape, &values)?)
    } else {
        let values = fold(x.to_i64(), places, &shape, int_rule(kind, dtype))?;
        Ok(HostTensor::from_i64(dtype, &shape, &values)?)
    }
}

/// Every line of elements along an axis, as the positions of its elements.
fn lines(shape: &[usize], axis: usize) -> impl Iterator<Item = impl DoubleEndedIterator<Item = usize>> {
    let (outer, size, inner) = around(shape, axis);
    (0..outer).flat_map(move |o| (0..inner).map(move |i| (0..size).map(move |k| (o * size + k) * inner + i)))
}

pub(super) fn scan(kind: ReduceKind, axis: usize, reverse: bool, x: &HostTensor) -> Result<HostTensor, Fault> {
    fn run<T: Copy>(
        values: &mut [T],
        shape: &[usize],
        axis: usize,
        reverse: bool,
        (initial, combine): (T, impl Fn(T, T) -> T),
    ) {
        for line in lines(shape, axis) {
            let mut sum = initial;
            let mut step = |i: usize| {
                sum = combine(sum, values[i]);
                values[i] = sum;
            };
            if reverse { line.rev().for_each(&mut step) } else { line.for_each(&mut step) }
        }
    }
    let dtype = x.dtype();
    check_arithmetic(dtype)?;
    if dtype == DType::F64 {
        let mut values = Compensated::of(x);
        run(&mut values, x.shape(), axis, reverse, double_rule(kind));
        Ok(HostTensor::from_f64(dtype, x.shape(), &Compensated::round(&values))?)
    } else if dtype.is_float() {
        let mut values = x.to_f64();
        run(&mut values, x.shape(), axis, reverse, float_rule(kind));
        Ok(HostTensor::from_f64(dtype, x.shape(), &values)?)
    } else {
        let mut values = x.to_i64();
        run(&mut values, x.shape(), axis, reverse, int_rule(kind, dtype));
        Ok(HostTensor::from_i64(dtype, x.shape(), &values)?)
    }
}

/// Ascending order in which NaN is the largest and equals itself.
fn float_order(a: &f64, b: &f64) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

pub(super) fn arg_reduce(kind: ArgKind, axis: usize, x: &HostTensor) -> Result<HostTensor, Fault> {
    fn run<T: Copy>(values: &[T], shape: &[usize], axis: usize, beats: impl Fn(T, T) -> bool) -> Vec<i64> {
        let best_of = |line: &mut dyn Iterator<Item = usize>| {
            let (mut best, mut best_value) = (0, None);
            for (k, i) in line.enumerate() {
                if best_value.is_none_or(|b| beats(values[i], b)) {
                    (best, best_value) = (k as i64, Some(values[i]));
                }
            }
            best
        };
        lines(shape, axis).map(|mut line| best_of(&mut line)).collect()
    }
    check_arithmetic(x.dtype())?;
    let mut shape = x.shape().to_vec();
    let empty = std::mem::replace(&mut shape[axis], 1) == 0;
    if empty && !shape.contains(&0) {
        return Err(Fault::EmptyAxis { axis });
    }
    let indices = match (x.dtype().is_float(), kind) {
        (true, ArgKind::Max) => run(&x.to_f64(), x.shape(), axis, |a, b| a > b || (a.is_nan() && !b.is_nan())),
        (true, ArgKind::Min) => run(&x.to_f64(), x.shape(), axis, |a, b| a < b || (a.is_nan() && !b.is_nan())),
        (false, ArgKind::Max) => run(&x.to_i64(), x.shape(), axis, |a, b| a > b),
        (false, ArgKind::Min) => run(&x.to_i64(), x.shape(), axis, |a, b| a < b),
    };
    Ok(HostTensor::from_slice(&shape, &indices)?)
}

pub(super) fn sort_indices(axis: usize, descending: bool, count: usize, x: &HostTensor) -> Result<HostTensor, Fault> {
    fn run<T>(values: &[T], x: &HostTensor, axis: usize, count: usize, order: impl Fn(&T, &T) -> Ordering) -> Vec<i64> {
        let (outer, _, inner) = around(x.shape(), axis);
        let mut result = vec![0; outer * count * inner];
        for (n, line) in lines(x.shape(), axis).enumerate() {
            let line: Vec<usize> = line.collect();
            let mut sorted: Vec<usize> = (0..line.len()).collect();
            sorted.sort_by(|&a, &b| order(&values[line[a]], &values[line[b]]));
            for (k, &index) in sorted[..count].iter().enumerate() {
                result[(n / inner * count + k) * inner + n % inner] = index as i64;
            }
        }
        result
    }
    check_arithmetic(x.dtype())?;
    if count > x.shape()[axis] {
        return Err(Fault::SizesDiffer { what: "count and axis", lhs: vec![count], rhs: vec![x.shape()[axis]] });
    }
    let turn = |order: Ordering| if descending { order.reverse() } else { order };
    let indices = if x.dtype().is_float() {
        run(&x.to_f64(), x, axis, count, |a, b| turn(float_order(a, b)))
    } else {
        run(&x.to_i64(), x, axis, count, |a, b| turn(a.cmp(b)))
    };
    let mut shape = x.shape().to_vec();
    shape[axis] = count;
    Ok(HostTensor::from_slice(&shape, &indices)?)
}

pub(super) fn reduce_window(
    kind: ReduceKind,
    dims: &WindowDims,
    shape: &[usize],
    x: &HostTensor,
) -> Result<HostTensor, Fault> {
    fn run<T: Copy>(
        values: &[T],
        dims: &WindowDims,
        shape: &[usize],
        from: &[usize],
        (initial, combine): (T, impl Fn(T, T) -> T),
    ) -> Vec<T> {
        let steps = strides(from);
        let windows = element_count(shape).unwrap_or(0);
        let taps = element_count(&dims.size).unwrap_or(0);
        let mut result = vec![initial; windows];
        for (window, sum) in result.iter_mut().enumerate() {
            'taps: for tap in 0..taps {
                let (mut w, mut t, mut position) = (window, tap, 0);
                for axis in (0..shape.len()).rev() {
                    let (i, j) = (w % shape[axis], t % dims.size[axis]);
                    (w, t) = (w / shape[axis], t / dims.size[axis]);
                    let Some(at) = (i * dims.stride[axis] + j * dims.dilation[axis]).checked_sub(dims.padding[axis].0)
                    else {
                        continue 'taps;
                    };
                    if at >= from[axis] {
                        continue 'taps;
                    }
                    position += at * steps[axis] as usize;
                }
                *sum = combine(*sum, values[position]);
            }
        }
        result
    }
    let dtype = x.dtype();
    check_arithmetic(dtype)?;
    if element_count(&dims.size).is_none_or(|n| n > MAX_ELEMENTS) {
        return Err(Fault::TooLarge { shape: dims.size.clone() });
    }
    if dtype == DType::F64 {
        let values = run(&Compensated::of(x), dims, shape, x.shape(), double_rule(kind));
        Ok(HostTensor::from_f64(dtype, shape, &Compensated::round(&values))?)
    } else if dtype.is_float() {
        let values = run(&x.to_f64(), dims, shape, x.shape(), float_rule(kind));
        Ok(HostTensor::from_f64(dtype, shape, &values)?)
    } else {
        let values = run(&x.to_i64(), dims, shape, x.shape(), int_rule(kind, dtype));
        Ok(HostTensor::from_i64(dtype, shape, &values)?)
    }
}
