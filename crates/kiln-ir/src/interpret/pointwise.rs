//! Ops that look at one element a time.

use super::Fault;
use crate::{BinaryOp, CompareOp, HostTensor, UnaryOp};

/// Fails for shapes that had to agree and do not.
fn check_shapes(x: &HostTensor, y: &HostTensor) -> Result<(), Fault> {
    if x.shape() == y.shape() {
        return Ok(());
    }
    Err(Fault::SizesDiffer { what: "shapes", lhs: x.shape().to_vec(), rhs: y.shape().to_vec() })
}

pub(super) fn unary(op: UnaryOp, x: &HostTensor) -> Result<HostTensor, Fault> {
    let (dtype, result) = (x.dtype(), op.result(x.dtype()));
    match (op.row().float, op.row().int) {
        _ if dtype.is_storage_only() => Err(Fault::NoArithmetic { dtype }),
        (Some(f), _) if dtype.is_float() => {
            let values: Vec<f64> = x.to_f64().into_iter().map(f).collect();
            Ok(HostTensor::from_f64(result, x.shape(), &values)?)
        }
        (_, Some(f)) if !dtype.is_float() => {
            let values: Vec<i64> = x.to_i64().into_iter().map(|v| f(dtype, v)).collect();
            Ok(HostTensor::from_i64(result, x.shape(), &values)?)
        }
        _ => Err(Fault::NoArithmetic { dtype }),
    }
}

pub(super) fn binary(op: BinaryOp, x: &HostTensor, y: &HostTensor) -> Result<HostTensor, Fault> {
    check_shapes(x, y)?;
    let dtype = x.dtype();
    match (op.row().float, op.row().int) {
        _ if dtype.is_storage_only() => Err(Fault::NoArithmetic { dtype }),
        (Some(f), _) if dtype.is_float() => {
            let values: Vec<f64> = x.to_f64().into_iter().zip(y.to_f64()).map(|(a, b)| f(a, b)).collect();
            Ok(HostTensor::from_f64(dtype, x.shape(), &values)?)
        }
        (_, Some(f)) if !dtype.is_float() => {
            let values: Vec<i64> = x.to_i64().into_iter().zip(y.to_i64()).map(|(a, b)| f(dtype, a, b)).collect();
            Ok(HostTensor::from_i64(dtype, x.shape(), &values)?)
        }
        _ => Err(Fault::NoArithmetic { dtype }),
    }
}

pub(super) fn compare(op: CompareOp, x: &HostTensor, y: &HostTensor) -> Result<HostTensor, Fault> {
    check_shapes(x, y)?;
    fn all<T: PartialOrd>(op: CompareOp, x: Vec<T>, y: Vec<T>) -> Vec<bool> {
        x.iter().zip(&y).map(|(a, b)| op.holds(a, b)).collect()
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
