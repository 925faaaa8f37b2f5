//! Attention and its gradients.

use crate::call::{Context, real};
use crate::rows::Row;
use kiln_ir::build::{self, AttentionOptions, AttentionRecord};
use kiln_ir::{DType, Dim, NodeId, Scalar};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten._scaled_dot_product_flash_attention_for_cpu.default"],
        text: "`scaled_dot_product_attention` and `attention_logsumexp`",
        build: |c| Ok(forward(c)?.map(real).to_vec()),
    },
    Row {
        ops: &["aten._scaled_dot_product_flash_attention_for_cpu_backward.default"],
        text: "`attention_backward`",
        build: |c| Ok(backward(c, "grad_out")?.map(real).to_vec()),
    },
    // On CUDA PyTorch has three, which differ in what they return beside the result: nothing of it but the logarithms means anything
    // where nothing is dropped.
    Row {
        ops: &[
            "aten._scaled_dot_product_flash_attention.default",
            "aten._scaled_dot_product_efficient_attention.default",
            "aten._scaled_dot_product_cudnn_attention.default",
        ],
        text: "`scaled_dot_product_attention` and `attention_logsumexp`, without dropout",
        build: |c| {
            let [y, logsumexp] = forward(c)?;
            let logsumexp = match c.result_meta_at(1).cloned() {
                Some(meta) => in_rows(c, logsumexp, &meta.shape)?,
                None => logsumexp,
            };
            let mut results = [y, logsumexp].map(real).to_vec();
            for number in 2..c.result_count() {
                let (dtype, shape) = match c.result_meta_at(number) {
                    Some(meta) => (meta.element.dtype, meta.shape.clone()),
                    None => (DType::I64, vec![]),
                };
                results.push(real(build::full(&mut c.b, Scalar::int(DType::I64, 0).cast(dtype), &shape)?));
            }
            Ok(results)
        },
    },
    Row {
        ops: &[
            "aten._scaled_dot_product_flash_attention_backward.default",
            "aten._scaled_dot_product_efficient_attention_backward.default",
            "aten._scaled_dot_product_cudnn_attention_backward.default",
        ],
        text: "`attention_backward`, without dropout and without the gradient of the mask",
        build: |c| {
            if c.result_meta_at(3).is_some() {
                return c.unsupported("with the gradient of the mask");
            }
            let gradient = if c.given("grad_out_").is_some() { "grad_out_" } else { "grad_out" };
            Ok(backward(c, gradient)?.map(real).to_vec())
        },
    },
];

/// The result, and the logarithms of the sums of its rows.
fn forward(c: &mut Context) -> Result<[NodeId; 2], crate::Error> {
    let (q, k, v) = (c.node("query")?, c.node("key")?, value(c)?);
    let options = options(c)?;
    let y = build::scaled_dot_product_attention(&mut c.b, &q, &k, &v, &options)?;
    Ok([y, build::attention_logsumexp(&mut c.b, &q, &k, &options)?])
}

/// The gradients of queries, keys and values.
fn backward(c: &mut Context, gradient: &str) -> Result<[NodeId; 3], crate::Error> {
    let (q, k, v) = (c.node("query")?, c.node("key")?, value(c)?);
    let (batch, heads, rows) = {
        let shape = c.shape(c.tensor("query")?);
        (shape[0].clone(), shape[1].clone(), shape[2].clone())
    };
    let logsumexp = c.node("logsumexp")?;
    let logsumexp = match c.b.graph().ty(logsumexp).rank() {
        4 => build::reshape(&mut c.b, &logsumexp, &[batch, heads, rows])?,
        _ => build::narrow(&mut c.b, &logsumexp, 2, 0, rows)?,
    };
    let record = AttentionRecord { q, k, v, output: c.node("out")?, logsumexp };
    let (gradient, options) = (c.node(gradient)?, options(c)?);
    Ok(build::attention_backward(&mut c.b, &gradient, &record, &options)?)
}

/// Logarithms `[batch, heads, rows]` as PyTorch keeps them: none of them, more rows than there are, or an axis more.
fn in_rows(c: &mut Context, logsumexp: NodeId, shape: &[Dim]) -> Result<NodeId, crate::Error> {
    let own = c.b.graph().ty(logsumexp).clone();
    if shape.len() != own.rank() {
        return Ok(build::reshape(&mut c.b, &logsumexp, shape)?);
    }
    if shape[2] == own.shape[2] {
        return Ok(logsumexp);
    }
    if shape[2].is_zero() {
        return Ok(build::narrow(&mut c.b, &logsumexp, 2, 0, 0)?);
    }
    let mut rest = own.shape.clone();
    rest[2] = shape[2].clone() - own.shape[2].clone();
    let rest = build::full(&mut c.b, Scalar::float(own.dtype, f64::INFINITY), &rest)?;
    Ok(build::concat(&mut c.b, &[logsumexp, rest], 2)?)
}

/// The values, with the length of the keys: where both are symbols, PyTorch may not have found that they are the same.
fn value(c: &mut Context) -> Result<NodeId, crate::Error> {
    let (v, length) = (c.node("value")?, c.shape(c.tensor("key")?)[2].clone());
    let own = &c.shape(c.tensor("value")?)[2];
    let is_known = own.as_const().is_some() && length.as_const().is_some();
    if *own == length || is_known { Ok(v) } else { Ok(build::narrow(&mut c.b, &v, 2, 0, length)?) }
}

fn options(c: &mut Context) -> Result<AttentionOptions<NodeId>, crate::Error> {
    let (rows, columns) = (c.shape(c.tensor("query")?)[2].clone(), c.shape(c.tensor("key")?)[2].clone());
    if c.float_or("dropout_p", 0.0)? != 0.0 {
        return c.unsupported("with dropout");
    }
    let mask = if c.given("attn_bias").is_some() { "attn_bias" } else { "attn_mask" };
    let mut options = AttentionOptions {
        mask: c.optional_node(mask)?,
        causal: c.flag_or("is_causal", false)?,
        scale: c.optional_float("scale")?,
    };
    // In PyTorch the first column alone is visible to the first row; in Kiln all are to the last. They agree for squares.
    if options.causal && rows != columns {
        options.causal = false;
        options.mask = Some(build::causal_mask(&mut c.b, &rows, &columns, &Dim::from(0))?);
    }
    Ok(options)
}
