//! Reductions under their usual names, and what is made of them: means, variances, softmax, sorting.

use super::shape::check_axis;
use super::{
    Built, Emit, abs, add, add_scalar, binary, binary_scalar, cast, compare_scalar, div, exp, fail, full_like, iota,
    log, masked_fill, mul, pow_scalar, select, size_value, sqrt, squeeze, sub, widen,
};
use crate::{ArgKind, BinaryOp, CompareOp, DType, Dim, Op, ReduceKind, TypeError};

/// A reduction over axes in any order, which stay with size 1 if `keep` and go otherwise.
#[track_caller]
pub fn reduce<E: Emit>(e: &mut E, kind: ReduceKind, x: &E::Value, axes: &[usize], keep: bool) -> Built<E> {
    let mut axes = axes.to_vec();
    axes.sort_unstable();
    let y = e.emit(Op::Reduce { kind, axes: axes.clone() }, std::slice::from_ref(x))?;
    if keep { Ok(y) } else { squeeze(e, &y, &axes) }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $kind:ident,)*) => {$(
        $(#[$doc])*
        #[track_caller]
        pub fn $name<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize], keep: bool) -> Built<E> {
            reduce(e, ReduceKind::$kind, x, axes, keep)
        }
    )*};
}

reductions! {
    /// Sum over axes.
    sum = Sum,
    /// Product over axes.
    prod = Prod,
    /// Largest over axes.
    max_over = Max,
    /// Smallest over axes.
    min_over = Min,
}

/// True where any element is not zero.
#[track_caller]
pub fn any<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize], keep: bool) -> Built<E> {
    let truth = cast(e, x, DType::Bool)?;
    reduce(e, ReduceKind::Max, &truth, axes, keep)
}

/// True where every element is not zero.
#[track_caller]
pub fn all<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize], keep: bool) -> Built<E> {
    let truth = cast(e, x, DType::Bool)?;
    reduce(e, ReduceKind::Min, &truth, axes, keep)
}

/// Index of the largest element along an axis.
#[track_caller]
pub fn argmax<E: Emit>(e: &mut E, x: &E::Value, axis: usize, keep: bool) -> Built<E> {
    arg_reduce(e, ArgKind::Max, x, axis, keep)
}

/// Index of the smallest element along an axis.
#[track_caller]
pub fn argmin<E: Emit>(e: &mut E, x: &E::Value, axis: usize, keep: bool) -> Built<E> {
    arg_reduce(e, ArgKind::Min, x, axis, keep)
}

#[track_caller]
fn arg_reduce<E: Emit>(e: &mut E, kind: ArgKind, x: &E::Value, axis: usize, keep: bool) -> Built<E> {
    let y = e.emit(Op::ArgReduce { kind, axis }, std::slice::from_ref(x))?;
    if keep { Ok(y) } else { squeeze(e, &y, &[axis]) }
}

/// How many elements a reduction over axes combines.
#[track_caller]
fn reduced_size<E: Emit>(e: &E, name: &'static str, x: &E::Value, axes: &[usize]) -> Result<Dim, E::Error> {
    for &axis in axes {
        check_axis(e, name, x, axis)?;
    }
    let shape = e.ty(x).shape;
    Ok(axes.iter().fold(Dim::from(1), |n, &a| n * &shape[a]))
}

/// Fails for values that are not floats.
#[track_caller]
pub(super) fn check_float<E: Emit>(e: &E, name: &'static str, x: &E::Value) -> Result<(), E::Error> {
    let got = e.ty(x).dtype;
    if got.is_float() {
        Ok(())
    } else {
        fail::<_, E>(name, TypeError::WrongDType { operand: 0, got, expected: "a float" })
    }
}

/// Mean over axes.
#[track_caller]
pub fn mean<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize], keep: bool) -> Built<E> {
    check_float(e, "mean", x)?;
    let count = reduced_size(e, "mean", x, axes)?;
    let (x, dtype) = widen(e, x)?;
    let total = sum(e, &x, axes, keep)?;
    let wide = e.ty(&x).dtype;
    let count = size_value(e, &count, wide)?;
    let y = div(e, &total, &count)?;
    cast(e, &y, dtype)
}

/// Variance over axes: the sum of squared distances from the mean divided by the count less `correction` (1 for the
/// unbiased estimate, 0 for that of the whole population).
#[track_caller]
pub fn var<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize], correction: f64, keep: bool) -> Built<E> {
    check_float(e, "var", x)?;
    let count = reduced_size(e, "var", x, axes)?;
    let (x, dtype) = widen(e, x)?;
    let wide = e.ty(&x).dtype;
    let center = mean(e, &x, axes, true)?;
    let distance = sub(e, &x, &center)?;
    let square = mul(e, &distance, &distance)?;
    let total = sum(e, &square, axes, keep)?;
    let mut count = size_value(e, &count, wide)?;
    if correction != 0.0 {
        count = add_scalar(e, &count, -correction)?;
        count = binary_scalar(e, BinaryOp::Max, &count, 0.0)?;
    }
    let y = div(e, &total, &count)?;
    cast(e, &y, dtype)
}

/// Standard deviation over axes; `correction` as for [`var`].
#[track_caller]
pub fn std_dev<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize], correction: f64, keep: bool) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let variance = var(e, &x, axes, correction, keep)?;
    let y = sqrt(e, &variance)?;
    cast(e, &y, dtype)
}

/// The p-norm over axes; p may be 0 (how many are not zero) and ±∞.
#[track_caller]
pub fn norm<E: Emit>(e: &mut E, x: &E::Value, p: f64, axes: &[usize], keep: bool) -> Built<E> {
    check_float(e, "norm", x)?;
    let (x, dtype) = widen(e, x)?;
    let y = if p == 2.0 {
        let square = mul(e, &x, &x)?;
        let total = sum(e, &square, axes, keep)?;
        sqrt(e, &total)?
    } else if p == 0.0 {
        let nonzero = compare_scalar(e, CompareOp::Ne, &x, 0.0)?;
        let wide = e.ty(&x).dtype;
        let ones = cast(e, &nonzero, wide)?;
        sum(e, &ones, axes, keep)?
    } else {
        let magnitude = abs(e, &x)?;
        if p == f64::INFINITY {
            max_over(e, &magnitude, axes, keep)?
        } else if p == f64::NEG_INFINITY {
            min_over(e, &magnitude, axes, keep)?
        } else {
            let powers = pow_scalar(e, &magnitude, p)?;
            let total = sum(e, &powers, axes, keep)?;
            pow_scalar(e, &total, 1.0 / p)?
        }
    };
    cast(e, &y, dtype)
}

/// eˣ along an axis, scaled so that it sums to 1.
#[track_caller]
pub fn softmax<E: Emit>(e: &mut E, x: &E::Value, axis: usize) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let largest = max_over(e, &x, &[axis], true)?;
    let shifted = sub(e, &x, &largest)?;
    let powers = exp(e, &shifted)?;
    let total = sum(e, &powers, &[axis], true)?;
    let y = div(e, &powers, &total)?;
    cast(e, &y, dtype)
}

/// The logarithm of [`softmax`].
#[track_caller]
pub fn log_softmax<E: Emit>(e: &mut E, x: &E::Value, axis: usize) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let largest = max_over(e, &x, &[axis], true)?;
    let shifted = sub(e, &x, &largest)?;
    let powers = exp(e, &shifted)?;
    let total = sum(e, &powers, &[axis], true)?;
    let logarithm = log(e, &total)?;
    let y = sub(e, &shifted, &logarithm)?;
    cast(e, &y, dtype)
}

/// The logarithm of the sum of eˣ over axes.
#[track_caller]
pub fn logsumexp<E: Emit>(e: &mut E, x: &E::Value, axes: &[usize], keep: bool) -> Built<E> {
    let (x, dtype) = widen(e, x)?;
    let largest = max_over(e, &x, axes, true)?;
    // An infinite maximum would give ∞ − ∞.
    let magnitude = abs(e, &largest)?;
    let infinite = compare_scalar(e, CompareOp::Eq, &magnitude, f64::INFINITY)?;
    let shift = masked_fill(e, &largest, &infinite, 0.0)?;
    let shifted = sub(e, &x, &shift)?;
    let powers = exp(e, &shifted)?;
    let total = sum(e, &powers, axes, true)?;
    let logarithm = log(e, &total)?;
    let y = add(e, &logarithm, &shift)?;
    let y = if keep { y } else { squeeze(e, &y, axes)? };
    cast(e, &y, dtype)
}

/// Running sum along an axis.
#[track_caller]
pub fn cumsum<E: Emit>(e: &mut E, x: &E::Value, axis: usize) -> Built<E> {
    e.emit(Op::Scan { kind: ReduceKind::Sum, axis, reverse: false }, std::slice::from_ref(x))
}

/// Running product along an axis.
#[track_caller]
pub fn cumprod<E: Emit>(e: &mut E, x: &E::Value, axis: usize) -> Built<E> {
    e.emit(Op::Scan { kind: ReduceKind::Prod, axis, reverse: false }, std::slice::from_ref(x))
}

/// The logarithm of the running sum of exponentials along an axis.
#[track_caller]
pub fn logcumsumexp<E: Emit>(e: &mut E, x: &E::Value, axis: usize) -> Built<E> {
    let ty = e.ty(x);
    // In f64, whose exponents hold differences of ±700 from the largest finite element.
    let wide = cast(e, x, DType::F64)?;
    let bounded = compare_scalar(e, CompareOp::Lt, &wide, f64::INFINITY)?;
    let lowest = full_like(e, &wide, f64::NEG_INFINITY)?;
    let bounded = select(e, &bounded, &wide, &lowest)?;
    let largest = reduce(e, ReduceKind::Max, &bounded, &[axis], true)?;
    let none = compare_scalar(e, CompareOp::Eq, &largest, f64::NEG_INFINITY)?;
    let shift = masked_fill(e, &largest, &none, 0.0)?;
    let lower = sub(e, &wide, &shift)?;
    let powers = exp(e, &lower)?;
    let sums = cumsum(e, &powers, axis)?;
    let logs = log(e, &sums)?;
    let y = add(e, &logs, &shift)?;
    // Beyond them the sum is lost, but not where it has to lie: n elements have one to n times the exponential of their largest.
    let least = e.emit(Op::Scan { kind: ReduceKind::Max, axis, reverse: false }, &[wide])?;
    let count = iota(e, DType::F64, &ty.shape, axis)?;
    let count = add_scalar(e, &count, 1.0)?;
    let count = log(e, &count)?;
    let most = add(e, &least, &count)?;
    let y = binary(e, BinaryOp::Max, &y, &least)?;
    let y = binary(e, BinaryOp::Min, &y, &most)?;
    cast(e, &y, ty.dtype)
}

/// Values and indices sorted along an axis; equal elements keep their order.
#[track_caller]
pub fn sort<E: Emit>(e: &mut E, x: &E::Value, axis: usize, descending: bool) -> Result<(E::Value, E::Value), E::Error> {
    check_axis(e, "sort", x, axis)?;
    let count = e.ty(x).shape[axis].clone();
    topk(e, x, count, axis, descending)
}

/// Values and indices of the `count` largest (or smallest) elements along an axis, in order.
#[track_caller]
pub fn topk<E: Emit>(
    e: &mut E,
    x: &E::Value,
    count: impl Into<Dim>,
    axis: usize,
    largest: bool,
) -> Result<(E::Value, E::Value), E::Error> {
    let op = Op::SortIndices { axis, descending: largest, count: count.into() };
    let indices = e.emit(op, std::slice::from_ref(x))?;
    let values = e.emit(Op::Gather { axis }, &[x.clone(), indices.clone()])?;
    Ok((values, indices))
}
