//! Ops on single values of compute types.

use kiln_ir::interpret::special;
use kiln_ir::{ArgKind, BinaryOp, CompareOp, DType, ReduceKind, Scalar, UnaryOp};

/// A memory element in its compute type.
pub(super) fn widen(value: Scalar) -> Scalar {
    match value {
        Scalar::Float(dtype, v) => Scalar::Float(dtype.compute_type(), v),
        Scalar::Int(dtype, v) => Scalar::Int(dtype.compute_type(), v),
    }
}

pub(super) fn zero(dtype: DType) -> Scalar {
    if dtype.is_float() { Scalar::float(dtype, 0.0) } else { Scalar::int(dtype, 0) }
}

fn max(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() { f64::NAN } else { x.max(y) }
}

fn min(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() { f64::NAN } else { x.min(y) }
}

pub(super) fn unary(op: UnaryOp, x: Scalar) -> Option<Scalar> {
    let (dtype, v) = match x {
        Scalar::Float(dtype, v) => (dtype, v),
        Scalar::Int(dtype, v) => {
            let result = match op {
                UnaryOp::Neg => v.wrapping_neg(),
                UnaryOp::Abs => v.wrapping_abs(),
                UnaryOp::Sign => v.signum(),
                UnaryOp::Not if dtype == DType::Bool => i64::from(v == 0),
                UnaryOp::Not => !v,
                _ => return None,
            };
            return Some(Scalar::int(dtype, result));
        }
    };
    let result = match op {
        UnaryOp::Neg => -v,
        UnaryOp::Abs => v.abs(),
        UnaryOp::Sign => {
            if v.is_nan() || v == 0.0 {
                v
            } else {
                v.signum()
            }
        }
        UnaryOp::Floor => v.floor(),
        UnaryOp::Ceil => v.ceil(),
        UnaryOp::Round => v.round_ties_even(),
        UnaryOp::Trunc => v.trunc(),
        UnaryOp::Sqrt => v.sqrt(),
        UnaryOp::Rsqrt => 1.0 / v.sqrt(),
        UnaryOp::Recip => v.recip(),
        UnaryOp::Exp => v.exp(),
        UnaryOp::Exp2 => v.exp2(),
        UnaryOp::Expm1 => v.exp_m1(),
        UnaryOp::Log => v.ln(),
        UnaryOp::Log2 => v.log2(),
        UnaryOp::Log1p => v.ln_1p(),
        UnaryOp::Sin => v.sin(),
        UnaryOp::Cos => v.cos(),
        UnaryOp::Tan => v.tan(),
        UnaryOp::Asin => v.asin(),
        UnaryOp::Acos => v.acos(),
        UnaryOp::Atan => v.atan(),
        UnaryOp::Tanh => v.tanh(),
        UnaryOp::Erf => special::erf(v),
        UnaryOp::ErfInv => special::erf_inv(v),
        UnaryOp::Lgamma => special::lgamma(v),
        UnaryOp::IsNan => return Some(Scalar::bool(v.is_nan())),
        UnaryOp::Not => return None,
    };
    Some(Scalar::float(dtype, result))
}

pub(super) fn binary(op: BinaryOp, x: Scalar, y: Scalar) -> Option<Scalar> {
    if x.dtype() != y.dtype() {
        return None;
    }
    let (dtype, a, b) = match (x, y) {
        (Scalar::Float(dtype, a), Scalar::Float(_, b)) => (dtype, a, b),
        _ => return binary_int(op, x, y),
    };
    let result = match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => a % b,
        BinaryOp::Pow => a.powf(b),
        BinaryOp::Atan2 => a.atan2(b),
        BinaryOp::Max => max(a, b),
        BinaryOp::Min => min(a, b),
        _ => return None,
    };
    Some(Scalar::float(dtype, result))
}

fn binary_int(op: BinaryOp, x: Scalar, y: Scalar) -> Option<Scalar> {
    let (dtype, a, b) = (x.dtype(), x.as_i64(), y.as_i64());
    let width = dtype.size_in_bits() as i64;
    let result = match op {
        BinaryOp::Add if dtype == DType::Bool => a | b,
        BinaryOp::Add => a.wrapping_add(b),
        BinaryOp::Sub => a.wrapping_sub(b),
        BinaryOp::Mul => a.wrapping_mul(b),
        BinaryOp::Div | BinaryOp::Rem if b == 0 => 0,
        BinaryOp::Div => a.wrapping_div(b),
        BinaryOp::Rem => a.wrapping_rem(b),
        BinaryOp::Max => a.max(b),
        BinaryOp::Min => a.min(b),
        BinaryOp::And => a & b,
        BinaryOp::Or => a | b,
        BinaryOp::Xor => a ^ b,
        BinaryOp::Shl if (0..width).contains(&b) => a << b,
        BinaryOp::Shl => 0,
        BinaryOp::Shr => a >> if (0..width).contains(&b) { b } else { width - 1 },
        BinaryOp::Pow | BinaryOp::Atan2 => return None,
    };
    Some(Scalar::int(dtype, result))
}

pub(super) fn compare(op: CompareOp, x: Scalar, y: Scalar) -> bool {
    fn all<T: PartialOrd>(op: CompareOp, a: T, b: T) -> bool {
        match op {
            CompareOp::Eq => a == b,
            CompareOp::Ne => a != b,
            CompareOp::Lt => a < b,
            CompareOp::Le => a <= b,
            CompareOp::Gt => a > b,
            CompareOp::Ge => a >= b,
        }
    }
    match (x, y) {
        (Scalar::Float(_, a), Scalar::Float(_, b)) => all(op, a, b),
        _ => all(op, x.as_i64(), y.as_i64()),
    }
}

pub(super) fn reduce(kind: ReduceKind, dtype: DType, list: &[Scalar]) -> Scalar {
    if dtype.is_float() {
        let values = list.iter().map(|v| v.as_f64());
        return Scalar::float(
            dtype,
            match kind {
                ReduceKind::Sum => values.fold(0.0, |a, b| a + b),
                ReduceKind::Prod => values.product(),
                ReduceKind::Max => values.fold(f64::NEG_INFINITY, max),
                ReduceKind::Min => values.fold(f64::INFINITY, min),
            },
        );
    }
    let values = list.iter().map(|v| v.as_i64());
    let (low, high) = match dtype {
        DType::Bool => (0, 1),
        DType::I32 => (i32::MIN.into(), i32::MAX.into()),
        _ => (i64::MIN, i64::MAX),
    };
    Scalar::int(
        dtype,
        match kind {
            ReduceKind::Sum => values.fold(0, i64::wrapping_add),
            ReduceKind::Prod => values.fold(1, i64::wrapping_mul),
            ReduceKind::Max => values.fold(low, i64::max),
            ReduceKind::Min => values.fold(high, i64::min),
        },
    )
}

pub(super) fn arg_reduce(kind: ArgKind, list: &[Scalar]) -> Scalar {
    let beats = |a: Scalar, b: Scalar| match (a, b) {
        (Scalar::Float(_, a), Scalar::Float(_, b)) if a.is_nan() || b.is_nan() => a.is_nan() && !b.is_nan(),
        _ => compare(if kind == ArgKind::Max { CompareOp::Gt } else { CompareOp::Lt }, a, b),
    };
    let mut best = 0;
    for at in 1..list.len() {
        if beats(list[at], list[best]) {
            best = at;
        }
    }
    Scalar::int(DType::I64, best as i64)
}

pub(super) fn bitcast(x: Scalar, to: DType) -> Scalar {
    match (x, to) {
        (Scalar::Float(DType::F32, v), DType::I32) => Scalar::int(to, (v as f32).to_bits().into()),
        (Scalar::Float(_, v), DType::I64) => Scalar::int(to, v.to_bits() as i64),
        (Scalar::Int(_, v), DType::F32) => Scalar::float(to, f32::from_bits(v as u32).into()),
        (Scalar::Int(_, v), DType::F64) => Scalar::float(to, f64::from_bits(v as u64)),
        _ => x,
    }
}

/// Word 0 of Philox-4x32-10.
pub(super) fn random(seed: i64, position: i64, stream: u32) -> Scalar {
    let mut counter = [position as u32, (position >> 32) as u32, stream, 0];
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..10 {
        let (a, b) = (u64::from(counter[0]) * 0xD251_1F53, u64::from(counter[2]) * 0xCD9E_8D57);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    Scalar::int(DType::I32, i64::from(counter[0] as i32))
}
