//! Reductions, scans, sorting and counting.

use crate::Error;
use crate::call::{Context, Value, one, real};
use crate::promote::{as_float, as_total};
use crate::rows::Row;
use kiln_ir::{DType, Dim, NodeId, ReduceKind, build};

/// Axes of the argument `dim`, and whether they stay.
fn over(c: &Context, x: Value) -> Result<(Vec<usize>, bool), Error> {
    Ok((c.axes(x, "dim")?, c.flag_or("keepdim", false)?))
}

/// The axis of the argument `dim`.
fn axis(c: &Context, x: Value) -> Result<usize, Error> {
    c.axis(x, c.int_or("dim", -1)?)
}

/// The requested dtype of a sum of the real and of the imaginary parts, which are axes of their own, or of real numbers.
fn part_dtype(c: &Context, x: Value) -> Result<Option<DType>, Error> {
    match c.dtype("dtype")? {
        Some(_) if x.complex => c.unsupported("of complex numbers as real ones"),
        dtype => Ok(dtype),
    }
}

/// An argument in the dtype of a sum, or in the requested one.
fn total(c: &mut Context, x: Value) -> Result<NodeId, Error> {
    let dtype = c.dtype("dtype")?.unwrap_or(as_total(c.ty(x).dtype));
    Ok(build::cast(&mut c.b, &x.id, dtype)?)
}

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.mean.dim", "aten.mean.default"],
        text: "`mean`",
        build: |c| {
            let x = c.tensor("self")?;
            let (axes, keep) = over(c, x)?;
            let dtype = part_dtype(c, x)?.unwrap_or(c.ty(x).dtype);
            let id = build::cast(&mut c.b, &x.id, dtype)?;
            Ok(vec![Value { id: build::mean(&mut c.b, &id, &axes, keep)?, complex: x.complex }])
        },
    },
    Row {
        ops: &["aten.sum.dim_IntList", "aten.sum.default"],
        text: "`sum`, of integers and bools as i64",
        build: |c| {
            let x = c.tensor("self")?;
            let (axes, keep) = over(c, x)?;
            let dtype = part_dtype(c, x)?.unwrap_or(as_total(c.ty(x).dtype));
            let id = build::cast(&mut c.b, &x.id, dtype)?;
            Ok(vec![Value { id: build::sum(&mut c.b, &id, &axes, keep)?, complex: x.complex }])
        },
    },
    Row {
        ops: &["aten.prod.default", "aten.prod.dim_int"],
        text: "`prod`, of integers and bools as i64",
        build: |c| {
            let x = c.tensor("self")?;
            let (axes, keep) = over(c, x)?;
            if x.complex {
                return c.unsupported("of complex numbers");
            }
            let x = total(c, x)?;
            one(build::prod(&mut c.b, &x, &axes, keep)?)
        },
    },
    Row {
        ops: &["aten.any.dim", "aten.any.default", "aten.any.dims"],
        text: "`any`",
        build: |c| {
            let x = c.tensor("self")?;
            let (axes, keep) = over(c, x)?;
            one(build::any(&mut c.b, &x.id, &axes, keep)?)
        },
    },
    Row {
        ops: &["aten.amax.default", "aten.amin.default", "aten.max.default", "aten.min.default"],
        text: "`max_over` or `min_over`",
        build: |c| {
            let x = c.tensor("self")?;
            let (axes, keep) = over(c, x)?;
            let kind = if c.name().ends_with("min") { ReduceKind::Min } else { ReduceKind::Max };
            one(build::reduce(&mut c.b, kind, &x.id, &axes, keep)?)
        },
    },
    Row {
        ops: &["aten.max.dim", "aten.min.dim"],
        text: "`max_over` and `argmax`, or `min_over` and `argmin`",
        build: |c| {
            let given = c.tensor("self")?;
            let (axis, keep) = (axis(c, given)?, c.flag_or("keepdim", false)?);
            let x = c.with_an_axis(given)?;
            let (extreme, index) = if c.name() == "max" {
                (build::max_over(&mut c.b, &x.id, &[axis], keep)?, build::argmax(&mut c.b, &x.id, axis, keep)?)
            } else {
                (build::min_over(&mut c.b, &x.id, &[axis], keep)?, build::argmin(&mut c.b, &x.id, axis, keep)?)
            };
            Ok(vec![real(c.without_it(given, extreme)?), real(c.without_it(given, index)?)])
        },
    },
    Row {
        ops: &["aten.argmax.default", "aten.argmin.default"],
        text: "`argmax` or `argmin`, of all elements after `reshape`",
        build: |c| {
            let x = c.tensor("self")?;
            let (mut id, mut at, count) = (x.id, 0, c.ty(x).elements());
            let whole = c.given("dim").is_none() || c.rank(x) == 0;
            match whole {
                false => at = axis(c, x)?,
                true => id = build::reshape(&mut c.b, &x.id, &[count])?,
            }
            let keep = c.flag_or("keepdim", false)?;
            let largest = c.op().contains("argmax");
            let kept = keep && !whole;
            let found =
                if largest { build::argmax(&mut c.b, &id, at, kept)? } else { build::argmin(&mut c.b, &id, at, kept)? };
            if whole && keep {
                let shape = vec![Dim::from(1); c.rank(x)];
                return one(build::reshape(&mut c.b, &found, &shape)?);
            }
            one(found)
        },
    },
    Row {
        ops: &["aten.var.correction"],
        text: "`var`",
        build: |c| {
            let x = c.tensor("self")?;
            let (axes, keep) = over(c, x)?;
            let correction = c.optional_float("correction")?.unwrap_or(1.0);
            one(build::var(&mut c.b, &x.id, &axes, correction, keep)?)
        },
    },
    Row {
        ops: &["aten.var_mean.correction"],
        text: "`var` and `mean`",
        build: |c| {
            let x = c.tensor("self")?;
            let (axes, keep) = over(c, x)?;
            let correction = c.optional_float("correction")?.unwrap_or(1.0);
            let variance = build::var(&mut c.b, &x.id, &axes, correction, keep)?;
            let mean = build::mean(&mut c.b, &x.id, &axes, keep)?;
            Ok(vec![real(variance), real(mean)])
        },
    },
    Row {
        ops: &["aten.linalg_vector_norm.default"],
        text: "`norm`",
        build: |c| {
            let x = c.tensor("self")?;
            let (axes, keep) = over(c, x)?;
            let shape = c.ty(x).shape;
            let dtype = c.dtype("dtype")?.unwrap_or(c.ty(x).dtype);
            let x = build::cast(&mut c.b, &x.id, dtype)?;
            let order = c.float_or("ord", 2.0)?;
            // The norm of one number is that number for any order but 0, also where its power overflows.
            if order != 0.0 && axes.iter().all(|&axis| shape[axis].as_const() == Some(1)) {
                let y = build::abs(&mut c.b, &x)?;
                let rest = (0..shape.len()).filter(|axis| keep || !axes.contains(axis));
                let rest: Vec<Dim> = rest.map(|axis| shape[axis].clone()).collect();
                return one(build::reshape(&mut c.b, &y, &rest)?);
            }
            one(build::norm(&mut c.b, &x, order, &axes, keep)?)
        },
    },
    Row {
        ops: &["aten._softmax.default"],
        text: "`softmax`",
        build: |c| {
            let given = c.tensor("self")?;
            let (axis, x) = (axis(c, given)?, c.with_an_axis(given)?);
            let y = build::softmax(&mut c.b, &x.id, axis)?;
            one(c.without_it(given, y)?)
        },
    },
    Row {
        ops: &["aten._log_softmax.default"],
        text: "`log_softmax`",
        build: |c| {
            let given = c.tensor("self")?;
            let (axis, x) = (axis(c, given)?, c.with_an_axis(given)?);
            let y = build::log_softmax(&mut c.b, &x.id, axis)?;
            one(c.without_it(given, y)?)
        },
    },
    Row {
        ops: &["aten.cumsum.default"],
        text: "`cumsum`, of integers and bools as i64",
        build: |c| {
            let given = c.tensor("self")?;
            let (axis, x) = (axis(c, given)?, c.with_an_axis(given)?);
            let x = total(c, x)?;
            let y = build::cumsum(&mut c.b, &x, axis)?;
            one(c.without_it(given, y)?)
        },
    },
    Row {
        ops: &["aten.topk.default"],
        text: "`topk`",
        build: |c| {
            let given = c.tensor("self")?;
            let (axis, x) = (axis(c, given)?, c.with_an_axis(given)?);
            let (k, largest) = (c.dim("k")?, c.flag_or("largest", true)?);
            let (values, indices) = build::topk(&mut c.b, &x.id, k, axis, largest)?;
            Ok(vec![real(c.without_it(given, values)?), real(c.without_it(given, indices)?)])
        },
    },
    Row {
        ops: &["aten.sort.default", "aten.sort.stable"],
        text: "`sort`",
        build: |c| {
            let given = c.tensor("self")?;
            let (axis, x) = (axis(c, given)?, c.with_an_axis(given)?);
            let descending = c.flag_or("descending", false)?;
            let (values, indices) = build::sort(&mut c.b, &x.id, axis, descending)?;
            Ok(vec![real(c.without_it(given, values)?), real(c.without_it(given, indices)?)])
        },
    },
    Row {
        ops: &["aten.bucketize.Tensor"],
        text: "`bucketize`",
        build: |c| {
            let (x, boundaries) = c.pair("self", "boundaries")?;
            let dtype = if c.flag_or("out_int32", false)? { DType::I32 } else { DType::I64 };
            let right = c.flag_or("right", false)?;
            one(build::bucketize(&mut c.b, &x, &boundaries, right, dtype)?)
        },
    },
    Row {
        ops: &["aten.histc.default"],
        text: "`histogram`",
        build: |c| {
            let x = c.tensor("self")?;
            let dtype = as_float(c.ty(x).dtype);
            let x = build::cast(&mut c.b, &x.id, dtype)?;
            let bins = if c.given("bins").is_some() { c.size("bins")? } else { 100 };
            let (low, high) = (c.float_or("min", 0.0)?, c.float_or("max", 0.0)?);
            one(build::histogram(&mut c.b, &x, bins, low, high)?)
        },
    },
];
