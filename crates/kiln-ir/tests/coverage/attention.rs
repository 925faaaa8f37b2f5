//! Attention and its gradients.

use crate::context::{Context, Entry, real};
use kiln_ir::build::{self, AttentionOptions, AttentionRecord};
use kiln_ir::{Dim, Error, NodeId};

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten._scaled_dot_product_flash_attention_for_cpu.default"],
        text: "`scaled_dot_product_attention` and `attention_logsumexp`",
        build: |c| {
            let (q, k, v) = (c.node("query"), c.node("key"), c.node("value"));
            let options = options(c)?;
            let y = build::scaled_dot_product_attention(&mut c.b, &q, &k, &v, &options)?;
            let logsumexp = build::attention_logsumexp(&mut c.b, &q, &k, &options)?;
            Ok([y, logsumexp].map(real).to_vec())
        },
    },
    Entry {
        ops: &["aten._scaled_dot_product_flash_attention_for_cpu_backward.default"],
        text: "`attention_backward`",
        build: |c| {
            let record = AttentionRecord {
                q: c.node("query"),
                k: c.node("key"),
                v: c.node("value"),
                output: c.node("out"),
                logsumexp: c.node("logsumexp"),
            };
            let (gradient, options) = (c.node("grad_out"), options(c)?);
            Ok(build::attention_backward(&mut c.b, &gradient, &record, &options)?.map(real).to_vec())
        },
    },
];

fn options(c: &mut Context) -> Result<AttentionOptions<NodeId>, Error> {
    let (rows, columns) = (c.shape(c.tensor("query"))[2].clone(), c.shape(c.tensor("key"))[2].clone());
    let mut options = AttentionOptions {
        mask: c.optional_node("attn_mask"),
        causal: c.call.flag("is_causal"),
        scale: c.call.attribute("scale").map(|_| c.call.float("scale")),
    };
    // In PyTorch the first column alone is visible to the first row; in Kiln all are to the last. They agree for squares.
    if options.causal && rows != columns {
        options.causal = false;
        options.mask = Some(build::causal_mask(&mut c.b, &rows, &columns, &Dim::from(0))?);
    }
    Ok(options)
}
