//! Random numbers, from the seed that the graph takes.

use crate::call::real;
use crate::rows::Row;
use kiln_ir::{DType, build};

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
];
