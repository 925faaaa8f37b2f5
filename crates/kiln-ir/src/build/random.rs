//! Random numbers from the counter-based bits of [`Op::RandomBits`]: the same seed and stream give the same numbers on every
//! device. Streams below 2³¹ are the caller's; the others serve second draws.

use super::{
    Built, Emit, add_scalar, and, cast, compare_scalar, cos, full, full_like, log, mul, mul_scalar, not, select, shr,
    sqrt,
};
use crate::{CompareOp, DType, Dim, Op, Scalar};
use std::f64::consts::TAU;

/// Set in the stream of a second draw.
const SECOND: u32 = 1 << 31;

/// Whole numbers below 2^`bits` as f32, exact up to 24 bits.
#[track_caller]
fn whole<E: Emit>(e: &mut E, seed: &E::Value, shape: &[Dim], stream: u32, bits: u32) -> Built<E> {
    let words = e.emit(Op::RandomBits { shape: shape.to_vec(), stream }, std::slice::from_ref(seed))?;
    let shift = full(e, Scalar::int(DType::I32, 32 - bits as i64), shape)?;
    let high = shr(e, &words, &shift)?;
    let mask = full(e, Scalar::int(DType::I32, (1 << bits) - 1), shape)?;
    let high = and(e, &high, &mask)?;
    cast(e, &high, DType::F32)
}

/// Evenly distributed in 0 ≤ x < 1, with as many bits as the dtype's mantissa holds (24 for f64).
#[track_caller]
pub fn uniform<E: Emit>(e: &mut E, seed: &E::Value, shape: &[Dim], stream: u32, dtype: DType) -> Built<E> {
    let bits = match dtype {
        DType::F16 => 11,
        DType::Bf16 => 8,
        _ => 24,
    };
    let number = whole(e, seed, shape, stream, bits)?;
    let fraction = mul_scalar(e, &number, (-f64::from(bits)).exp2())?;
    cast(e, &fraction, dtype)
}

/// Normally distributed with mean 0 and variance 1, by the method of Box and Muller.
#[track_caller]
pub fn normal<E: Emit>(e: &mut E, seed: &E::Value, shape: &[Dim], stream: u32, dtype: DType) -> Built<E> {
    const UNIT: f64 = 1.0 / (1u32 << 24) as f64;
    let radius = whole(e, seed, shape, stream, 24)?;
    // In 0 < u ≤ 1, so that its logarithm is finite.
    let radius = add_scalar(e, &radius, 1.0)?;
    let radius = mul_scalar(e, &radius, UNIT)?;
    let logarithm = log(e, &radius)?;
    let square = mul_scalar(e, &logarithm, -2.0)?;
    let length = sqrt(e, &square)?;
    let angle = whole(e, seed, shape, stream | SECOND, 24)?;
    let angle = mul_scalar(e, &angle, UNIT * TAU)?;
    let direction = cos(e, &angle)?;
    let y = mul(e, &length, &direction)?;
    cast(e, &y, dtype)
}

/// True with a probability.
#[track_caller]
pub fn bernoulli<E: Emit>(e: &mut E, seed: &E::Value, shape: &[Dim], stream: u32, probability: f64) -> Built<E> {
    let number = uniform(e, seed, shape, stream, DType::F32)?;
    compare_scalar(e, CompareOp::Lt, &number, probability)
}

/// x with each element zeroed with a probability and the others scaled up to keep the mean.
#[track_caller]
pub fn dropout<E: Emit>(e: &mut E, x: &E::Value, seed: &E::Value, stream: u32, probability: f64) -> Built<E> {
    Ok(dropout_with_mask(e, x, seed, stream, probability)?.0)
}

/// [`dropout`], and true where an element was kept.
#[track_caller]
pub fn dropout_with_mask<E: Emit>(
    e: &mut E,
    x: &E::Value,
    seed: &E::Value,
    stream: u32,
    probability: f64,
) -> Result<(E::Value, E::Value), E::Error> {
    let shape = e.ty(x).shape;
    if probability <= 0.0 {
        return Ok((x.clone(), full(e, Scalar::bool(true), &shape)?));
    }
    let zero = full_like(e, x, 0.0)?;
    if probability >= 1.0 {
        return Ok((zero, full(e, Scalar::bool(false), &shape)?));
    }
    let dropped = bernoulli(e, seed, &shape, stream, probability)?;
    let scaled = mul_scalar(e, x, 1.0 / (1.0 - probability))?;
    let y = select(e, &dropped, &zero, &scaled)?;
    Ok((y, not(e, &dropped)?))
}
