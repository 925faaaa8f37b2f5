//! Reductions, scans, sorting and counting.

use crate::context::{Context, Entry, Results, Value, as_float, as_total, real};
use kiln_ir::{DType, Dim, Error, NodeId, ReduceKind, build};

fn one(id: NodeId) -> Results {
    Ok(vec![real(id)])
}

/// Axes of the argument `dim`, and whether they stay.
fn over(c: &Context, x: Value) -> (Vec<usize>, bool) {
    (c.axes(x, "dim"), c.call.attribute("keepdim").is_some_and(|_| c.call.flag("keepdim")))
}

/// The axis of the argument `dim`.
fn axis(c: &Context, x: Value) -> usize {
    c.axis(x, c.call.int("dim"))
}

/// An argument in the dtype of a sum, or in the requested one.
fn total(c: &mut Context, x: Value) -> Result<NodeId, Error> {
    let dtype = c.call.dtype("dtype").map_or(as_total(c.ty(x).dtype), |d| d.0);
    build::cast(&mut c.b, &x.id, dtype)
}

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.mean.dim", "aten.mean.default"],
        text: "`mean`",
        build: |c| {
            let x = c.tensor("self");
            let (axes, keep) = over(c, x);
            let dtype = c.call.dtype("dtype").map_or(c.ty(x).dtype, |d| d.0);
            let x = build::cast(&mut c.b, &x.id, dtype)?;
            one(build::mean(&mut c.b, &x, &axes, keep)?)
        },
    },
    Entry {
        ops: &["aten.sum.dim_IntList", "aten.sum.default"],
        text: "`sum`, of integers and bools as i64",
        build: |c| {
            let x = c.tensor("self");
            let (axes, keep) = over(c, x);
            let x = total(c, x)?;
            one(build::sum(&mut c.b, &x, &axes, keep)?)
        },
    },
    Entry {
        ops: &["aten.prod.default", "aten.prod.dim_int"],
        text: "`prod`, of integers and bools as i64",
        build: |c| {
            let x = c.tensor("self");
            let (axes, keep) = over(c, x);
            let x = total(c, x)?;
            one(build::prod(&mut c.b, &x, &axes, keep)?)
        },
    },
    Entry {
        ops: &["aten.any.dim", "aten.any.default", "aten.any.dims"],
        text: "`any`",
        build: |c| {
            let x = c.tensor("self");
            let (axes, keep) = over(c, x);
            one(build::any(&mut c.b, &x.id, &axes, keep)?)
        },
    },
    Entry {
        ops: &["aten.amax.default", "aten.max.default", "aten.min.default"],
        text: "`max_over` or `min_over`",
        build: |c| {
            let x = c.tensor("self");
            let (axes, keep) = over(c, x);
            let kind = if c.call.op == "aten.min.default" { ReduceKind::Min } else { ReduceKind::Max };
            one(build::reduce(&mut c.b, kind, &x.id, &axes, keep)?)
        },
    },
    Entry {
        ops: &["aten.max.dim"],
        text: "`max_over` and `argmax`",
        build: |c| {
            let x = c.tensor("self");
            let (axis, keep) = (axis(c, x), c.call.flag("keepdim"));
            let largest = build::max_over(&mut c.b, &x.id, &[axis], keep)?;
            let index = build::argmax(&mut c.b, &x.id, axis, keep)?;
            Ok(vec![real(largest), real(index)])
        },
    },
    Entry {
        ops: &["aten.argmax.default", "aten.argmin.default"],
        text: "`argmax` or `argmin`, of all elements after `reshape`",
        build: |c| {
            let x = c.tensor("self");
            let (mut id, mut at, count) = (x.id, 0, c.ty(x).elements());
            match c.call.attribute("dim") {
                Some(_) => at = axis(c, x),
                None => id = build::reshape(&mut c.b, &x.id, &[count])?,
            }
            let keep = c.call.flag("keepdim");
            let largest = c.call.op.contains("argmax");
            one(if largest { build::argmax(&mut c.b, &id, at, keep)? } else { build::argmin(&mut c.b, &id, at, keep)? })
        },
    },
    Entry {
        ops: &["aten.var.correction"],
        text: "`var`",
        build: |c| {
            let x = c.tensor("self");
            let (axes, keep) = over(c, x);
            let correction = c.call.attribute("correction").map_or(1.0, |_| c.call.float("correction"));
            one(build::var(&mut c.b, &x.id, &axes, correction, keep)?)
        },
    },
    Entry {
        ops: &["aten.var_mean.correction"],
        text: "`var` and `mean`",
        build: |c| {
            let x = c.tensor("self");
            let (axes, keep) = over(c, x);
            let correction = c.call.attribute("correction").map_or(1.0, |_| c.call.float("correction"));
            let variance = build::var(&mut c.b, &x.id, &axes, correction, keep)?;
            let mean = build::mean(&mut c.b, &x.id, &axes, keep)?;
            Ok(vec![real(variance), real(mean)])
        },
    },
    Entry {
        ops: &["aten.linalg_vector_norm.default"],
        text: "`norm`",
        build: |c| {
            let x = c.tensor("self");
            let (axes, keep) = over(c, x);
            let dtype = c.call.dtype("dtype").map_or(c.ty(x).dtype, |d| d.0);
            let x = build::cast(&mut c.b, &x.id, dtype)?;
            one(build::norm(&mut c.b, &x, c.call.float("ord"), &axes, keep)?)
        },
    },
    Entry {
        ops: &["aten._softmax.default"],
        text: "`softmax`",
        build: |c| {
            let x = c.tensor("self");
            let axis = axis(c, x);
            one(build::softmax(&mut c.b, &x.id, axis)?)
        },
    },
    Entry {
        ops: &["aten._log_softmax.default"],
        text: "`log_softmax`",
        build: |c| {
            let x = c.tensor("self");
            let axis = axis(c, x);
            one(build::log_softmax(&mut c.b, &x.id, axis)?)
        },
    },
    Entry {
        ops: &["aten.cumsum.default"],
        text: "`cumsum`, of integers and bools as i64",
        build: |c| {
            let x = c.tensor("self");
            let axis = axis(c, x);
            let x = total(c, x)?;
            one(build::cumsum(&mut c.b, &x, axis)?)
        },
    },
    Entry {
        ops: &["aten.topk.default"],
        text: "`topk`",
        build: |c| {
            let x = c.tensor("self");
            let axis = axis(c, x);
            let (values, indices) =
                build::topk(&mut c.b, &x.id, Dim::from(c.call.int("k")), axis, c.call.flag("largest"))?;
            Ok(vec![real(values), real(indices)])
        },
    },
    Entry {
        ops: &["aten.sort.default"],
        text: "`sort`",
        build: |c| {
            let x = c.tensor("self");
            let axis = axis(c, x);
            let (values, indices) = build::sort(&mut c.b, &x.id, axis, c.call.flag("descending"))?;
            Ok(vec![real(values), real(indices)])
        },
    },
    Entry {
        ops: &["aten.bucketize.Tensor"],
        text: "`bucketize`",
        build: |c| {
            let (x, boundaries) = c.pair("self", "boundaries")?;
            let dtype = if c.call.flag("out_int32") { DType::I32 } else { DType::I64 };
            one(build::bucketize(&mut c.b, &x, &boundaries, c.call.flag("right"), dtype)?)
        },
    },
    Entry {
        ops: &["aten.histc.default"],
        text: "`histogram`",
        build: |c| {
            let x = c.tensor("self");
            let dtype = as_float(c.ty(x).dtype);
            let x = build::cast(&mut c.b, &x.id, dtype)?;
            one(build::histogram(&mut c.b, &x, c.call.size("bins"), c.call.float("min"), c.call.float("max"))?)
        },
    },
];
