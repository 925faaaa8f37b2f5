//! Attention and its gradients.

use crate::call::{Context, real};
use crate::rows::Row;
use kiln_ir::build::{self, AttentionOptions, AttentionRecord};
use kiln_ir::{Dim, NodeId};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten._scaled_dot_product_flash_attention_for_cpu.default"],
        text: "`scaled_dot_product_attention` and `attention_logsumexp`",
        build: |c| {
            let (q, k, v) = (c.node("query")?, c.node("key")?, value(c)?);
            let options = options(c)?;
            let y = build::scaled_dot_product_attention(&mut c.b, &q, &k, &v, &options)?;
            let logsumexp = build::attention_logsumexp(&mut c.b, &q, &k, &options)?;
            Ok([y, logsumexp].map(real).to_vec())
        },
    },
    Row {
        ops: &["aten._scaled_dot_product_flash_attention_for_cpu_backward.default"],
        text: "`attention_backward`",
        build: |c| {
            let record = AttentionRecord {
                q: c.node("query")?,
                k: c.node("key")?,
                v: value(c)?,
                output: c.node("out")?,
                logsumexp: c.node("logsumexp")?,
            };
            let (gradient, options) = (c.node("grad_out")?, options(c)?);
            Ok(build::attention_backward(&mut c.b, &gradient, &record, &options)?.map(real).to_vec())
        },
    },
];

/// The values, with the length of the keys: where both are symbols, PyTorch may not have found that they are the same.
fn value(c: &mut Context) -> Result<NodeId, crate::Error> {
    let (v, length) = (c.node("value")?, c.shape(c.tensor("key")?)[2].clone());
    let own = &c.shape(c.tensor("value")?)[2];
    let is_known = own.as_const().is_some() && length.as_const().is_some();
    if *own == length || is_known { Ok(v) } else { Ok(build::narrow(&mut c.b, &v, 2, 0, length)?) }
}

fn options(c: &mut Context) -> Result<AttentionOptions<NodeId>, crate::Error> {
    let (rows, columns) = (c.shape(c.tensor("query")?)[2].clone(), c.shape(c.tensor("key")?)[2].clone());
    let mut options = AttentionOptions {
        mask: c.optional_node("attn_mask")?,
        causal: c.flag("is_causal")?,
        scale: c.optional_float("scale")?,
    };
    // In PyTorch the first column alone is visible to the first row; in Kiln all are to the last. They agree for squares.
    if options.causal && rows != columns {
        options.causal = false;
        options.mask = Some(build::causal_mask(&mut c.b, &rows, &columns, &Dim::from(0))?);
    }
    Ok(options)
}
