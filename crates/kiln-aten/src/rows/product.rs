//! Products of matrices and convolutions.

use crate::Error;
use crate::call::{Context, one, real};
use crate::rows::Row;
use kiln_ir::build::{self, ConvOptions, Emit};
use kiln_ir::{CompareOp, DType, DotDims, NodeId, Op, Scalar};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.mm.default", "aten.bmm.default"],
        text: "`matmul`",
        build: |c| {
            let (x, y) = (c.node("self")?, c.node("mat2")?);
            one(build::matmul(&mut c.b, &x, &y)?)
        },
    },
    Row {
        ops: &["aten._int_mm.default"],
        text: "`dot` of bytes with sums of 32 bits",
        build: |c| {
            let (x, y) = (c.node("self")?, c.node("mat2")?);
            let dims = DotDims { lhs_contract: vec![1], rhs_contract: vec![0], ..DotDims::default() };
            one(c.b.emit(Op::Dot { dims: dims.into(), out: DType::I32 }, &[x, y])?)
        },
    },
    Row {
        ops: &["aten._weight_int8pack_mm.default"],
        text: "`dot` with the weights of bytes as floats, times the scale of each column, rounded once",
        build: |c| {
            let (x, w, scales) = (c.node("self")?, c.node("mat2")?, c.node("scales")?);
            let dtype = c.b.ty(&x).dtype;
            let (w, out) = (build::cast(&mut c.b, &w, dtype)?, dtype.compute_type());
            let dims = DotDims { lhs_contract: vec![1], rhs_contract: vec![1], ..DotDims::default() };
            let sum = c.b.emit(Op::Dot { dims: dims.into(), out }, &[x, w])?;
            let scales = build::cast(&mut c.b, &scales, out)?;
            let scaled = build::mul(&mut c.b, &sum, &scales)?;
            one(build::cast(&mut c.b, &scaled, dtype)?)
        },
    },
    Row {
        ops: &["aten.addmm.default", "aten.baddbmm.default"],
        text: "`matmul` and `add`, each times its factor",
        build: |c| {
            let batched = c.op().contains("baddbmm");
            let (x, y) = if batched { ("batch1", "batch2") } else { ("mat1", "mat2") };
            let (bias, x, y) = (c.node("self")?, c.node(x)?, c.node(y)?);
            one(scaled_sum(c, bias, x, y)?)
        },
    },
    Row {
        ops: &["transformers.grouped_mm_fallback.default"],
        text: "`grouped_matmul`",
        build: |c| {
            let (x, w, ends) = (c.node("input")?, c.node("weight")?, c.node("offs")?);
            one(build::grouped_matmul(&mut c.b, &x, &w, &ends)?)
        },
    },
    Row {
        ops: &["aten._grouped_mm.default"],
        text: "`grouped_matmul`; of two matrices `grouped_inner`",
        build: |c| {
            let (x, w, ends) = (c.node("self")?, c.tensor("mat2")?, c.node("offs")?);
            one(match c.rank(w) {
                2 => build::grouped_inner(&mut c.b, &x, &w.id, &ends)?,
                _ => build::grouped_matmul(&mut c.b, &x, &w.id, &ends)?,
            })
        },
    },
    Row {
        ops: &["aten.convolution.default"],
        text: "`conv` or `conv_transpose`",
        build: |c| {
            let (x, w, bias) = (c.node("input")?, c.node("weight")?, c.optional_node("bias")?);
            let options = options(c)?;
            one(if c.flag("transposed")? {
                {
                    let padding = c.sizes("output_padding")?;
                    let padding = if padding.len() == 1 { vec![padding[0]; options.stride.len()] } else { padding };
                    build::conv_transpose(&mut c.b, &x, &w, bias.as_ref(), &options, &padding)?
                }
            } else {
                build::conv(&mut c.b, &x, &w, bias.as_ref(), &options)?
            })
        },
    },
    Row {
        ops: &["aten.convolution_backward.default"],
        text: "`conv_backward` or `conv_transpose_backward`",
        build: |c| {
            let (gradient, x, w) = (c.node("grad_output")?, c.node("input")?, c.node("weight")?);
            let options = options(c)?;
            let gradients = if c.flag("transposed")? {
                build::conv_transpose_backward(&mut c.b, &gradient, &x, &w, &options)?
            } else {
                build::conv_backward(&mut c.b, &gradient, &x, &w, &options)?
            };
            Ok([gradients.input, gradients.weight, gradients.bias].map(real).to_vec())
        },
    },
];

/// `beta`·bias + `alpha`·x·y, over a batch that the bias does not have summed. Short floats are rounded once, after the sum.
pub(super) fn scaled_sum(c: &mut Context, bias: NodeId, x: NodeId, y: NodeId) -> Result<NodeId, Error> {
    let (told_alpha, told_beta) = (c.told_by_call("alpha")?, c.told_by_call("beta")?);
    // A factor that only the call tells is neither 1 nor 0 as far as the graph knows.
    let factor = |c: &Context, name: &str, told: Option<NodeId>| match told {
        Some(_) => Ok(f64::NAN),
        None => c.float_or(name, 1.0),
    };
    let (alpha, beta) = (factor(c, "alpha", told_alpha)?, factor(c, "beta", told_beta)?);
    let (ty, y_rank) = (c.b.ty(&x), c.b.ty(&y).rank());
    let dtype = ty.dtype;
    let out = if dtype.is_float() && (alpha != 1.0 || beta != 1.0) { dtype.compute_type() } else { dtype };
    let batch: Vec<usize> = (0..ty.rank().saturating_sub(2)).collect();
    let contract = (vec![ty.rank().saturating_sub(1)], vec![y_rank.saturating_sub(2)]);
    let dims =
        DotDims { lhs_batch: batch.clone(), rhs_batch: batch, lhs_contract: contract.0, rhs_contract: contract.1 };
    let mut sum = c.b.emit(Op::Dot { dims: dims.into(), out }, &[x, y])?;
    if c.name() == "addbmm" {
        sum = build::sum(&mut c.b, &sum, &[0], false)?;
    }
    if told_alpha.is_some() {
        let alpha = c.cast_to("alpha", out)?;
        sum = build::mul(&mut c.b, &sum, &alpha)?;
    } else if alpha != 1.0 {
        sum = build::mul_scalar(&mut c.b, &sum, alpha)?;
    }
    // A factor of 0 leaves out even NaN.
    if beta != 0.0 {
        let mut bias = build::cast(&mut c.b, &bias, out)?;
        if told_beta.is_some() {
            let beta = c.cast_to("beta", out)?;
            // What it is times 0 may be no number; it is nothing.
            let zero = build::full(&mut c.b, Scalar::int(out, 0), &[])?;
            let is_nothing = build::compare(&mut c.b, CompareOp::Eq, &beta, &zero)?;
            let scaled = build::mul(&mut c.b, &bias, &beta)?;
            bias = build::select(&mut c.b, &is_nothing, &zero, &scaled)?;
        } else if beta != 1.0 {
            bias = build::mul_scalar(&mut c.b, &bias, beta)?;
        }
        sum = build::add(&mut c.b, &bias, &sum)?;
    }
    Ok(build::cast(&mut c.b, &sum, dtype)?)
}

/// Strides, padding and the like; one number stands for all axes.
fn options(c: &Context) -> Result<ConvOptions, Error> {
    let axes = c.rank(c.tensor("weight")?).saturating_sub(2);
    let each = |name: &str| {
        let list = c.sizes(name)?;
        Ok::<Vec<usize>, Error>(if list.len() == 1 { vec![list[0]; axes] } else { list })
    };
    let (stride, padding, dilation) = (each("stride")?, each("padding")?, each("dilation")?);
    Ok(ConvOptions { stride, padding, dilation, groups: c.size("groups")? })
}
