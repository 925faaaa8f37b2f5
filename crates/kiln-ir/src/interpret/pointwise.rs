//! Ops that look at one element a time.

use super::{Fault, special};
use crate::{BinaryOp, CompareOp, DType, HostTensor, UnaryOp};

/// The larger, or NaN if either is NaN.
pub(super) fn max(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() { f64::NAN } else { x.max(y) }
}

/// The smaller, or NaN if either is NaN.
pub(super) fn min(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() { f64::NAN } else { x.min(y) }
}

/// xʸ; the powers that one rounding gives are given so, which the library's are not always.
fn pow(x: f64, y: f64) -> f64 {
    if y == 2.0 {
        x * x
    } else if y == -1.0 {
        1.0 / x
    } else {
        x.powf(y)
    }
}

/// Fails for shapes that had to agree and do not.
fn check_shapes(x: &HostTensor, y: &HostTensor) -> Result<(), Fault> {
    if x.shape() == y.shape() {
        return Ok(());
    }
    Err(Fault::SizesDiffer { what: "shapes", lhs: x.shape().to_vec(), rhs: y.shape().to_vec() })
}

pub(super) fn unary(op: UnaryOp, x: &HostTensor) -> Result<HostTensor, Fault> {
    let dtype = x.dtype();
    if dtype.is_storage_only() {
        return Err(Fault::NoArithmetic { dtype });
    }
    if !dtype.is_float() {
        return unary_int(op, x);
    }
    let map = |f: fn(f64) -> f64| {
        let values: Vec<f64> = x.to_f64().into_iter().map(f).collect();
        Ok(HostTensor::from_f64(dtype, x.shape(), &values)?)
    };
    match op {
        UnaryOp::Neg => map(|v| -v),
        UnaryOp::Abs => map(f64::abs),
        UnaryOp::Sign => map(|v| if v.is_nan() || v == 0.0 { v } else { v.signum() }),
        UnaryOp::Floor => map(f64::floor),
        UnaryOp::Ceil => map(f64::ceil),
        UnaryOp::Round => map(f64::round_ties_even),
        UnaryOp::Trunc => map(f64::trunc),
        UnaryOp::Sqrt => map(f64::sqrt),
        UnaryOp::Rsqrt => map(|v| 1.0 / v.sqrt()),
        UnaryOp::Recip => map(f64::recip),
        UnaryOp::Exp => map(f64::exp),
        UnaryOp::Exp2 => map(f64::exp2),
        UnaryOp::Expm1 => map(f64::exp_m1),
        UnaryOp::Log => map(f64::ln),
        UnaryOp::Log2 => map(f64::log2),
        UnaryOp::Log1p => map(f64::ln_1p),
        UnaryOp::Sin => map(f64::sin),
        UnaryOp::Cos => map(f64::cos),
        UnaryOp::Tan => map(f64::tan),
        UnaryOp::Asin => map(f64::asin),
        UnaryOp::Acos => map(f64::acos),
        UnaryOp::Atan => map(f64::atan),
        UnaryOp::Tanh => map(f64::tanh),
        UnaryOp::Erf => map(special::erf),
        UnaryOp::ErfInv => map(special::erf_inv),
        UnaryOp::Lgamma => map(special::lgamma),
        UnaryOp::Not => Err(Fault::NoArithmetic { dtype }),
        UnaryOp::IsNan => {
            let values: Vec<bool> = x.to_f64().into_iter().map(f64::is_nan).collect();
            Ok(HostTensor::from_slice(x.shape(), &values)?)
        }
    }
}

fn unary_int(op: UnaryOp, x: &HostTensor) -> Result<HostTensor, Fault> {
    let dtype = x.dtype();
    let map = |f: fn(i64) -> i64| {
        let values: Vec<i64> = x.to_i64().into_iter().map(f).collect();
        Ok(HostTensor::from_i64(dtype, x.shape(), &values)?)
    };
    match op {
        UnaryOp::Neg => map(i64::wrapping_neg),
        UnaryOp::Abs => map(i64::wrapping_abs),
        UnaryOp::Sign => map(i64::signum),
        UnaryOp::Not if dtype == DType::Bool => map(|v| (v == 0) as i64),
        UnaryOp::Not => map(|v| !v),
        _ => Err(Fault::NoArithmetic { dtype }),
    }
}

pub(super) fn binary(op: BinaryOp, x: &HostTensor, y: &HostTensor) -> Result<HostTensor, Fault> {
    check_shapes(x, y)?;
    let dtype = x.dtype();
    if dtype.is_storage_only() {
        return Err(Fault::NoArithmetic { dtype });
    }
    if !dtype.is_float() {
        return binary_int(op, x, y);
    }
    let zip = |f: fn(f64, f64) -> f64| {
        let values: Vec<f64> = x.to_f64().into_iter().zip(y.to_f64()).map(|(a, b)| f(a, b)).collect();
        Ok(HostTensor::from_f64(dtype, x.shape(), &values)?)
    };
    match op {
        BinaryOp::Add => zip(|a, b| a + b),
        BinaryOp::Sub => zip(|a, b| a - b),
        BinaryOp::Mul => zip(|a, b| a * b),
        BinaryOp::Div => zip(|a, b| a / b),
        BinaryOp::Rem => zip(|a, b| a % b),
        BinaryOp::Pow => zip(pow),
        BinaryOp::Atan2 => zip(f64::atan2),
        BinaryOp::Max => zip(max),
        BinaryOp::Min => zip(min),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => {
            Err(Fault::NoArithmetic { dtype })
        }
    }
}

fn binary_int(op: BinaryOp, x: &HostTensor, y: &HostTensor) -> Result<HostTensor, Fault> {
    let dtype = x.dtype();
    let width = dtype.size_in_bits() as i64;
    let zip = |f: &dyn Fn(i64, i64) -> i64| {
        let values: Vec<i64> = x.to_i64().into_iter().zip(y.to_i64()).map(|(a, b)| f(a, b)).collect();
        Ok(HostTensor::from_i64(dtype, x.shape(), &values)?)
    };
    match op {
        BinaryOp::Add => zip(&i64::wrapping_add),
        BinaryOp::Sub => zip(&i64::wrapping_sub),
        BinaryOp::Mul => zip(&i64::wrapping_mul),
        BinaryOp::Div => zip(&|a, b| if b == 0 { 0 } else { a.wrapping_div(b) }),
        BinaryOp::Rem => zip(&|a, b| if b == 0 { 0 } else { a.wrapping_rem(b) }),
        BinaryOp::Max => zip(&i64::max),
        BinaryOp::Min => zip(&i64::min),
        BinaryOp::And => zip(&|a, b| a & b),
        BinaryOp::Or => zip(&|a, b| a | b),
        BinaryOp::Xor => zip(&|a, b| a ^ b),
        BinaryOp::Shl => zip(&|a, b| if (0..width).contains(&b) { a << b } else { 0 }),
        BinaryOp::Shr => zip(&|a, b| a >> if (0..width).contains(&b) { b } else { width - 1 }),
        BinaryOp::Pow | BinaryOp::Atan2 => Err(Fault::NoArithmetic { dtype }),
    }
}

pub(super) fn compare(op: CompareOp, x: &HostTensor, y: &HostTensor) -> Result<HostTensor, Fault> {
    check_shapes(x, y)?;
    fn all<T: PartialOrd>(op: CompareOp, x: Vec<T>, y: Vec<T>) -> Vec<bool> {
        let f: fn(&T, &T) -> bool = match op {
            CompareOp::Eq => T::eq,
            CompareOp::Ne => T::ne,
            CompareOp::Lt => T::lt,
            CompareOp::Le => T::le,
            CompareOp::Gt => T::gt,
            CompareOp::Ge => T::ge,
        };
        x.iter().zip(&y).map(|(a, b)| f(a, b)).collect()
    }
    let values = if x.dtype().is_float() { all(op, x.to_f64(), y.to_f64()) } else { all(op, x.to_i64(), y.to_i64()) };
    Ok(HostTensor::from_slice(x.shape(), &values)?)
}

pub(super) fn select(condition: &HostTensor, x: &HostTensor, y: &HostTensor) -> Result<HostTensor, Fault> {
    check_shapes(condition, x)?;
    check_shapes(x, y)?;
    let choose = condition.bytes().iter().zip(x.to_words()).zip(y.to_words());
    let words: Vec<u64> = choose.map(|((&c, a), b)| if c != 0 { a } else { b }).collect();
    Ok(HostTensor::from_words(x.dtype(), x.shape(), &words)?)
}
