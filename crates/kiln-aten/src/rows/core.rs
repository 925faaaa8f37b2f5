//! Ops of core ATen that captured models seldom have.

use crate::call::{Context, one, real};
use crate::promote::{as_float, as_total};
use crate::rows::Row;
use kiln_ir::build::{self, Emit};
use kiln_ir::{BinaryOp, CompareOp, DType, Dim, Op, ReduceKind, Scalar};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &[
            "aten.sinh.default",
            "aten.cosh.default",
            "aten.asinh.default",
            "aten.acosh.default",
            "aten.atanh.default",
            "aten.log10.default",
        ],
        text: "`sinh`, `cosh`, `asinh`, `acosh`, `atanh`; `log` times a number",
        build: |c| {
            let x = c.float_node("self")?;
            one(match c.name() {
                "sinh" => build::sinh(&mut c.b, &x)?,
                "cosh" => build::cosh(&mut c.b, &x)?,
                "asinh" => build::asinh(&mut c.b, &x)?,
                "acosh" => build::acosh(&mut c.b, &x)?,
                "atanh" => build::atanh(&mut c.b, &x)?,
                _ => build::log10(&mut c.b, &x)?,
            })
        },
    },
    Row {
        ops: &["aten.trunc.default"],
        text: "`trunc`; integers are whole",
        build: |c| {
            let x = c.tensor("self")?;
            if !c.ty(x).dtype.is_float() {
                return one(x.id);
            }
            one(build::trunc(&mut c.b, &x.id)?)
        },
    },
    Row {
        ops: &["aten.atan2.default"],
        text: "`atan2`, of integers after `cast`",
        build: |c| {
            let dtype = as_float(c.promoted(&["self", "other"])?);
            let (x, y) = (c.cast_to("self", dtype)?, c.cast_to("other", dtype)?);
            one(build::binary(&mut c.b, BinaryOp::Atan2, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.isnan.default", "aten.isinf.default"],
        text: "`is_nan`; `abs` and `compare`; false for integers",
        build: |c| {
            let x = c.tensor("self")?;
            if !c.ty(x).dtype.is_float() {
                let shape = c.shape(x);
                return one(build::full(&mut c.b, Scalar::bool(false), &shape)?);
            }
            if c.name() == "isnan" {
                return one(build::is_nan(&mut c.b, &x.id)?);
            }
            let size = build::abs(&mut c.b, &x.id)?;
            one(build::compare_scalar(&mut c.b, kiln_ir::CompareOp::Eq, &size, f64::INFINITY)?)
        },
    },
    Row {
        ops: &["aten.fill.Scalar", "aten.fill.Tensor"],
        text: "`cast` and `broadcast_to`",
        build: |c| {
            let x = c.tensor("self")?;
            let (dtype, shape) = (c.ty(x).dtype, c.shape(x));
            let value = c.cast_to("value", dtype)?;
            one(build::broadcast_to(&mut c.b, &value, &shape)?)
        },
    },
    Row {
        ops: &[
            "aten.zeros_like.default",
            "aten.ones_like.default",
            "aten.zeros.default",
            "aten.ones.default",
            "aten.new_zeros.default",
            "aten.new_ones.default",
            "aten.new_full.default",
        ],
        text: "`full`",
        build: |c| {
            let like = c.optional("self")?;
            let dtype = c.dtype("dtype")?.unwrap_or(like.map_or(DType::F32, |x| c.ty(x).dtype));
            let shape = match (c.given("size"), like) {
                (None, Some(x)) => c.shape(x),
                _ => c.dims("size")?,
            };
            let value = match c.name().contains("full") {
                true => c.cast_to("fill_value", dtype)?,
                false => {
                    let value = Scalar::int(dtype, i64::from(c.name().contains("ones")));
                    build::full(&mut c.b, value, &[])?
                }
            };
            one(build::broadcast_to(&mut c.b, &value, &shape)?)
        },
    },
    Row {
        ops: &[
            "aten.silu.default",
            "aten.hardswish.default",
            "aten.hardsigmoid.default",
            "aten.softplus.default",
            "aten.mish.default",
        ],
        text: "`silu`, `hardswish`, `hardsigmoid`, `softplus`, `mish`",
        build: |c| {
            let x = c.float_node("self")?;
            one(match c.name() {
                "silu" => build::silu(&mut c.b, &x)?,
                "hardswish" => build::hardswish(&mut c.b, &x)?,
                "hardsigmoid" => build::hardsigmoid(&mut c.b, &x)?,
                "mish" => build::mish(&mut c.b, &x)?,
                "softplus" => {
                    let (beta, threshold) = (c.float_or("beta", 1.0)?, c.float_or("threshold", 20.0)?);
                    build::softplus(&mut c.b, &x, beta, threshold)?
                }
                _ => return c.unsupported(""),
            })
        },
    },
    Row {
        ops: &["aten.all.default", "aten.all.dim", "aten.all.dims"],
        text: "`all`",
        build: |c| {
            let x = c.tensor("self")?;
            let (axes, keep) = (c.axes(x, "dim")?, c.flag_or("keepdim", false)?);
            one(build::all(&mut c.b, &x.id, &axes, keep)?)
        },
    },
    Row {
        ops: &["aten.cumprod.default"],
        text: "`cumprod`, of integers and bools as i64",
        build: |c| {
            let given = c.tensor("self")?;
            let (axis, x) = (c.axis(given, c.int("dim")?)?, c.with_an_axis(given)?);
            let dtype = c.dtype("dtype")?.unwrap_or(as_total(c.ty(x).dtype));
            let x = build::cast(&mut c.b, &x.id, dtype)?;
            let y = build::cumprod(&mut c.b, &x, axis)?;
            one(c.without_it(given, y)?)
        },
    },
    Row {
        ops: &["aten.cummax.default", "aten.cummin.default"],
        text: "`scan_max` or `scan_min`, and `scan_max` of the places that give it",
        build: |c| {
            let given = c.tensor("self")?;
            let (axis, x) = (c.axis(given, c.int("dim")?)?, c.with_an_axis(given)?);
            let (own, shape) = (c.ty(x).dtype, c.shape(x));
            let dtype = if own == DType::Bool { DType::U8 } else { own };
            let x = build::cast(&mut c.b, &x.id, dtype)?;
            let kind = if c.name() == "cummin" { ReduceKind::Min } else { ReduceKind::Max };
            let values = c.b.emit(Op::Scan { kind, axis, reverse: false }, &[x])?;
            // The last of equal elements is meant, and of several NaN the last.
            let mut is_new = build::compare(&mut c.b, CompareOp::Eq, &x, &values)?;
            if dtype.is_float() {
                let is_nan = build::is_nan(&mut c.b, &x)?;
                is_new = build::binary(&mut c.b, BinaryOp::Or, &is_new, &is_nan)?;
            }
            let place = build::iota(&mut c.b, DType::I64, &shape, axis)?;
            let first = build::full(&mut c.b, Scalar::int(DType::I64, 0), &shape)?;
            let place = build::select(&mut c.b, &is_new, &place, &first)?;
            let indices = c.b.emit(Op::Scan { kind: ReduceKind::Max, axis, reverse: false }, &[place])?;
            let values = build::cast(&mut c.b, &values, own)?;
            Ok(vec![real(c.without_it(given, values)?), real(c.without_it(given, indices)?)])
        },
    },
    Row {
        ops: &["aten.logcumsumexp.default"],
        text: "`logcumsumexp`",
        build: |c| {
            let given = c.tensor("self")?;
            if given.complex {
                return c.unsupported("of complex numbers");
            }
            let (axis, x) = (c.axis(given, c.int("dim")?)?, c.with_an_axis(given)?);
            let y = build::logcumsumexp(&mut c.b, &x.id, axis)?;
            one(c.without_it(given, y)?)
        },
    },
    Row {
        ops: &["aten.logsumexp.default"],
        text: "`logsumexp`",
        build: |c| {
            let x = c.float_node("self")?;
            let (axes, keep) = (c.axes(real(x), "dim")?, c.flag_or("keepdim", false)?);
            one(build::logsumexp(&mut c.b, &x, &axes, keep)?)
        },
    },
    Row {
        ops: &["aten.tril.default", "aten.triu.default"],
        text: "`tril` or `triu`",
        build: |c| {
            let (x, diagonal) = (c.node("self")?, c.int_or("diagonal", 0)?);
            one(match c.name() {
                "tril" => build::tril(&mut c.b, &x, diagonal)?,
                _ => build::triu(&mut c.b, &x, diagonal)?,
            })
        },
    },
    Row {
        ops: &["aten.masked_fill.Scalar", "aten.masked_fill.Tensor"],
        text: "`select`",
        build: |c| {
            let x = c.tensor("self")?;
            let (mask, dtype) = (c.node("mask")?, c.ty(x).dtype);
            let value = c.cast_to("value", dtype)?;
            one(build::select(&mut c.b, &mask, &value, &x.id)?)
        },
    },
    Row {
        ops: &["aten.t.default", "aten.transpose.int"],
        text: "`transpose`",
        build: |c| {
            let x = c.tensor("self")?;
            let rank = c.rank(x);
            if rank < 2 {
                return Ok(vec![x]);
            }
            let (a, b) = (c.axis(x, c.int_or("dim0", 0)?)?, c.axis(x, c.int_or("dim1", 1)?)?);
            let mut order: Vec<usize> = (0..rank + usize::from(x.complex)).collect();
            order.swap(a, b);
            let id = build::permute(&mut c.b, &x.id, &order)?;
            Ok(vec![crate::Value { id, complex: x.complex }])
        },
    },
    Row {
        ops: &["aten.fmax.default", "aten.fmin.default"],
        text: "`maximum` or `minimum`, a NaN being the other operand by `select`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            let op = if c.name() == "fmax" { BinaryOp::Max } else { BinaryOp::Min };
            one(build::extreme_number(&mut c.b, op, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.addmv.default", "aten.addbmm.default"],
        text: "`matmul`, over batches `sum`, and `add`, each times its factor",
        build: |c| {
            let batched = c.name() == "addbmm";
            let (x, y) = if batched { ("batch1", "batch2") } else { ("mat", "vec") };
            let (bias, x, y) = (c.node("self")?, c.node(x)?, c.node(y)?);
            one(super::product::scaled_sum(c, bias, x, y)?)
        },
    },
    Row {
        ops: &["aten.complex.default"],
        text: "`stack` of both parts",
        build: |c| {
            let (x, y) = c.pair("real", "imag")?;
            let (x, y) = build::broadcast(&mut c.b, &x, &y)?;
            let axis = c.rank(real(x));
            let id = build::stack(&mut c.b, &[x, y], axis)?;
            Ok(vec![crate::Value { id, complex: true }])
        },
    },
    Row {
        ops: &["aten.real.default", "aten.imag.default"],
        text: "`pick` of a part",
        build: |c| {
            let x = c.tensor("self")?;
            if !x.complex {
                return c.unsupported("of real numbers");
            }
            let (axis, part) = (c.rank(x), i64::from(c.name() == "imag"));
            one(build::pick(&mut c.b, &x.id, axis, part)?)
        },
    },
    Row {
        ops: &["aten.view.dtype"],
        text: "`bitcast` to a dtype of the same width",
        build: |c| {
            let x = c.node("self")?;
            let Some(dtype) = c.dtype("dtype")? else { return c.unsupported("without a dtype") };
            let own = c.ty(real(x)).dtype;
            if own == dtype {
                return one(x);
            }
            if own.size_in_bits() != dtype.size_in_bits() || own == DType::Bool || dtype == DType::Bool {
                return c.unsupported(format!("of {own} as {dtype}"));
            }
            one(c.b.emit(Op::Bitcast(dtype), &[x])?)
        },
    },
    Row {
        ops: &["aten.linear.default"],
        text: "`linear`",
        build: |c| {
            let (x, w, bias) = (c.node("input")?, c.node("weight")?, c.optional_node("bias")?);
            one(build::linear(&mut c.b, &x, &w, bias.as_ref())?)
        },
    },
    Row {
        ops: &["aten.matmul.default", "aten.mv.default", "aten.dot.default"],
        text: "`matmul`",
        build: |c| {
            let other = ["other", "vec", "tensor"].into_iter().find(|name| c.given(name).is_some()).unwrap_or("other");
            let (x, y) = (c.node("self")?, c.node(other)?);
            one(build::matmul(&mut c.b, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.diagonal.default"],
        text: "`gather` of places on the diagonal, after `permute`",
        build: |c| {
            let x = c.tensor("self")?;
            let (offset, shape) = (c.int_or("offset", 0)?, c.shape(x));
            let (a, b) = (c.axis(x, c.int_or("dim1", 0)?)?, c.axis(x, c.int_or("dim2", 1)?)?);
            let (Some(rows), Some(columns)) = (shape[a].as_const(), shape[b].as_const()) else {
                return c.unsupported("of symbolic sizes");
            };
            let node = c.node("self")?;
            diagonal(c, node, &shape, (a, rows), (b, columns), offset)
        },
    },
];

/// The diagonal of two axes, as a last axis.
fn diagonal(
    c: &mut Context,
    x: kiln_ir::NodeId,
    shape: &[Dim],
    (a, rows): (usize, i64),
    (b, columns): (usize, i64),
    offset: i64,
) -> crate::Results {
    let length = (rows + offset.min(0)).min(columns - offset.max(0)).max(0);
    let others: Vec<usize> = (0..shape.len()).filter(|axis| *axis != a && *axis != b).collect();
    let order: Vec<usize> = others.iter().copied().chain([a, b]).collect();
    let x = build::permute(&mut c.b, &x, &order)?;
    let mut flat: Vec<Dim> = others.iter().map(|&axis| shape[axis].clone()).collect();
    flat.push(Dim::from(rows * columns));
    let x = build::reshape(&mut c.b, &x, &flat)?;
    // Element i is at row i − min(offset, 0) and column i + max(offset, 0).
    let first = -offset.min(0) * columns + offset.max(0);
    let index = build::arange(&mut c.b, DType::I64, first as f64, (columns + 1) as f64, length as usize)?;
    one(build::index_select(&mut c.b, &x, others.len(), &index)?)
}
