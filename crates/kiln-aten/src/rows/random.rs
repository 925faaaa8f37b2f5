//! Random numbers, from the seed that the graph takes.

use crate::call::{Context, one, real};
use crate::error::Error;
use crate::rows::Row;
use kiln_ir::{BinaryOp, CompareOp, DType, Dim, NodeId, build};
use std::f64::consts::PI;

/// Whole numbers in a range have [`open`]'s 48 bits: of a range of so many they still are evenly distributed.
const WIDEST_RANGE: f64 = (1_u64 << 40) as f64;

/// Evenly distributed in 0 < x < 1, as f64, with 48 bits: neither end is ever drawn, so that logarithms are finite and not zero.
fn open(c: &mut Context<'_>, shape: &[Dim]) -> Result<NodeId, Error> {
    let (seed, stream) = c.draw()?;
    let high = build::uniform(&mut c.b, &seed, shape, stream, DType::F64)?;
    let (seed, stream) = c.draw()?;
    let low = build::uniform(&mut c.b, &seed, shape, stream, DType::F64)?;
    let low = build::mul_scalar(&mut c.b, &low, (-24_f64).exp2())?;
    let sum = build::add(&mut c.b, &high, &low)?;
    Ok(build::add_scalar(&mut c.b, &sum, (-49_f64).exp2())?)
}

/// Exponentially distributed with mean 1, as f64.
fn exponential(c: &mut Context<'_>, shape: &[Dim]) -> Result<NodeId, Error> {
    let drawn = open(c, shape)?;
    let logarithm = build::log(&mut c.b, &drawn)?;
    Ok(build::neg(&mut c.b, &logarithm)?)
}

/// Whole numbers from `from` on below `to`, as i64.
fn whole(c: &mut Context<'_>, shape: &[Dim], from: &str, to: &str) -> Result<NodeId, Error> {
    let low = c.optional_dim(from)?.unwrap_or_default();
    let range = &c.dim(to)? - &low;
    if range.as_const().is_some_and(|range| range <= 0 || range as f64 > WIDEST_RANGE) {
        return c.unsupported(format!("of a range of {range} numbers"));
    }
    let drawn = open(c, shape)?;
    let range = build::size_value(&mut c.b, &range, DType::F64)?;
    let places = build::mul(&mut c.b, &drawn, &range)?;
    let places = build::floor(&mut c.b, &places)?;
    let places = build::cast(&mut c.b, &places, DType::I64)?;
    let low = build::size_value(&mut c.b, &low, DType::I64)?;
    Ok(build::add(&mut c.b, &places, &low)?)
}

/// For each row of weights the places of `count` elements drawn by them.
fn multinomial(c: &mut Context<'_>) -> Result<NodeId, Error> {
    let x = c.tensor("self")?;
    let (weights, shape) = (c.cast_to("self", DType::F64)?, c.shape(x));
    let (axis, count) = (shape.len() - 1, c.dim("num_samples")?);
    if !c.flag_or("replacement", false)? || count.as_const() == Some(1) {
        // Of exponential numbers with these rates the first to come are drawn.
        let waits = exponential(c, &shape)?;
        let rates = build::div(&mut c.b, &weights, &waits)?;
        return Ok(build::topk(&mut c.b, &rates, count, axis, true)?.1);
    }
    let sums = build::cumsum(&mut c.b, &weights, axis)?;
    // The last of the sums, to the bit.
    let total = build::max_over(&mut c.b, &sums, &[axis], true)?;
    let below = build::div(&mut c.b, &sums, &total)?;
    let mut drawn_shape = shape;
    drawn_shape[axis] = count;
    let drawn = open(c, &drawn_shape)?;
    let (below, drawn) = (build::unsqueeze(&mut c.b, &below, axis)?, build::unsqueeze(&mut c.b, &drawn, axis + 1)?);
    let passed = build::compare(&mut c.b, CompareOp::Le, &below, &drawn)?;
    let passed = build::cast(&mut c.b, &passed, DType::I64)?;
    Ok(build::sum(&mut c.b, &passed, &[axis + 1], false)?)
}

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.rand.default"],
        text: "`uniform`",
        build: |c| {
            let (shape, dtype) = (c.dims("size")?, c.dtype("dtype")?.unwrap_or(DType::F32));
            let (seed, stream) = c.draw()?;
            Ok(vec![real(build::uniform(&mut c.b, &seed, &shape, stream, dtype)?)])
        },
    },
    Row {
        ops: &["aten.randn.default", "aten.randn.generator", "aten.randn_like.default"],
        text: "`normal`",
        build: |c| {
            let (sizes, like) = (c.dims("size")?, c.optional("self")?);
            let shape = like.map_or(sizes, |x| c.shape(x));
            let otherwise = like.map_or(DType::F32, |x| c.ty(x).dtype);
            let dtype = c.dtype("dtype")?.unwrap_or(otherwise);
            let (seed, stream) = c.draw()?;
            Ok(vec![real(build::normal(&mut c.b, &seed, &shape, stream, dtype)?)])
        },
    },
    Row {
        ops: &["aten.uniform.default", "aten.normal_functional.default"],
        text: "`uniform` or `normal`, `mul_scalar` and `add_scalar`",
        build: |c| {
            let ty = c.ty(c.tensor("self")?);
            let uniform = c.name() == "uniform";
            let (shift, scale) = if uniform {
                let (low, high) = (c.float_or("from", 0.0)?, c.float_or("to", 1.0)?);
                (low, high - low)
            } else {
                (c.float_or("mean", 0.0)?, c.float_or("std", 1.0)?)
            };
            let (seed, stream) = c.draw()?;
            let drawn = match uniform {
                true => build::uniform(&mut c.b, &seed, &ty.shape, stream, ty.dtype)?,
                false => build::normal(&mut c.b, &seed, &ty.shape, stream, ty.dtype)?,
            };
            let scaled = build::mul_scalar(&mut c.b, &drawn, scale)?;
            Ok(vec![real(build::add_scalar(&mut c.b, &scaled, shift)?)])
        },
    },
    Row {
        ops: &["aten.bernoulli.p"],
        text: "`bernoulli` and `cast`",
        build: |c| {
            let (ty, p) = (c.ty(c.tensor("self")?), c.float("p")?);
            let (seed, stream) = c.draw()?;
            let drawn = build::bernoulli(&mut c.b, &seed, &ty.shape, stream, p)?;
            Ok(vec![real(build::cast(&mut c.b, &drawn, ty.dtype)?)])
        },
    },
    Row {
        ops: &["aten.native_dropout.default"],
        text: "`dropout_with_mask`",
        build: |c| {
            let x = c.node("input")?;
            let probability = if c.flag_or("train", true)? { c.float("p")? } else { 0.0 };
            let (seed, stream) = c.draw()?;
            let (y, mask) = build::dropout_with_mask(&mut c.b, &x, &seed, stream, probability)?;
            Ok([y, mask].map(real).to_vec())
        },
    },
    Row {
        ops: &[
            "aten.randint.default",
            "aten.randint.low",
            "aten.randint_like.default",
            "aten.randint_like.low_dtype",
            "aten.random.from",
            "aten.random.to",
        ],
        text: "`uniform` (two draws), `mul`, `floor`, `cast` and `add`",
        build: |c| {
            let like = c.optional("self")?;
            let shape = match like {
                Some(x) => c.shape(x),
                None => c.dims("size")?,
            };
            let dtype = c.dtype("dtype")?.unwrap_or(like.map_or(DType::I64, |x| c.ty(x).dtype));
            let (from, to) = if c.name() == "random" { ("from", "to") } else { ("low", "high") };
            let drawn = whole(c, &shape, from, to)?;
            one(build::cast(&mut c.b, &drawn, dtype)?)
        },
    },
    Row {
        ops: &["aten.randperm.default"],
        text: "`uniform` (two draws) and `sort`",
        build: |c| {
            let (size, dtype) = (c.dim("n")?, c.dtype("dtype")?.unwrap_or(DType::I64));
            let keys = open(c, &[size])?;
            let (_, places) = build::sort(&mut c.b, &keys, 0, false)?;
            one(build::cast(&mut c.b, &places, dtype)?)
        },
    },
    Row {
        ops: &["aten.multinomial.default"],
        text: "exponential numbers, `div` and `topk`; with replacement `cumsum`, `compare` and `sum`",
        build: |c| one(multinomial(c)?),
    },
    Row {
        ops: &["aten.exponential.default", "aten.geometric.default", "aten.cauchy.default", "aten.log_normal.default"],
        text: "`uniform` (two draws) through the inverse of the distribution function; `normal` and `exp`",
        build: |c| {
            let ty = c.ty(c.tensor("self")?);
            let drawn = match c.name() {
                "exponential" => {
                    let (drawn, rate) = (exponential(c, &ty.shape)?, c.float_or("lambd", 1.0)?);
                    build::div_scalar(&mut c.b, &drawn, rate)?
                }
                "geometric" => {
                    let (drawn, p) = (exponential(c, &ty.shape)?, c.float("p")?);
                    let trials = build::div_scalar(&mut c.b, &drawn, -(-p).ln_1p())?;
                    let trials = build::ceil(&mut c.b, &trials)?;
                    build::binary_scalar(&mut c.b, BinaryOp::Max, &trials, 1.0)?
                }
                "cauchy" => {
                    let (drawn, median, sigma) =
                        (open(c, &ty.shape)?, c.float_or("median", 0.0)?, c.float_or("sigma", 1.0)?);
                    let centred = build::add_scalar(&mut c.b, &drawn, -0.5)?;
                    let angle = build::mul_scalar(&mut c.b, &centred, PI)?;
                    let slope = build::tan(&mut c.b, &angle)?;
                    let scaled = build::mul_scalar(&mut c.b, &slope, sigma)?;
                    build::add_scalar(&mut c.b, &scaled, median)?
                }
                _ => {
                    let (mean, std) = (c.float_or("mean", 1.0)?, c.float_or("std", 2.0)?);
                    let (seed, stream) = c.draw()?;
                    let normal = build::normal(&mut c.b, &seed, &ty.shape, stream, DType::F64)?;
                    let scaled = build::mul_scalar(&mut c.b, &normal, std)?;
                    let shifted = build::add_scalar(&mut c.b, &scaled, mean)?;
                    build::exp(&mut c.b, &shifted)?
                }
            };
            one(build::cast(&mut c.b, &drawn, ty.dtype)?)
        },
    },
];
