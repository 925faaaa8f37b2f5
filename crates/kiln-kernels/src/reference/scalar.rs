//! Ops on single values of compute types.

use kiln_ir::{ArgKind, CompareOp, DType, ReduceKind, Scalar};

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

pub(super) fn reduce(kind: ReduceKind, dtype: DType, list: &[Scalar]) -> Scalar {
    // In 64 bits, rounded once.
    let wide = if dtype.is_float() { DType::F64 } else { DType::I64 };
    let combine = |sum: Scalar, value: &Scalar| kind.combine().eval(sum, value.cast(wide)).unwrap_or(sum);
    list.iter().fold(kind.identity(dtype).cast(wide), combine).cast(dtype)
}

pub(super) fn arg_reduce(kind: ArgKind, list: &[Scalar]) -> Scalar {
    let beats = |a: Scalar, b: Scalar| match (a, b) {
        (Scalar::Float(_, a), Scalar::Float(_, b)) if a.is_nan() || b.is_nan() => a.is_nan() && !b.is_nan(),
        _ => (if kind == ArgKind::Max { CompareOp::Gt } else { CompareOp::Lt }).eval(a, b),
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
