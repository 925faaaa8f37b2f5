//! Products of matrices and convolutions.

use crate::context::{Context, Entry, Results, real};
use kiln_ir::build::{self, ConvOptions};
use kiln_ir::{Error, NodeId};

fn one(id: NodeId) -> Results {
    Ok(vec![real(id)])
}

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.mm.default", "aten.bmm.default"],
        text: "`matmul`",
        build: |c| {
            let (x, y) = (c.node("self"), c.node("mat2"));
            one(build::matmul(&mut c.b, &x, &y)?)
        },
    },
    Entry {
        ops: &["aten.addmm.default", "aten.baddbmm.default"],
        text: "`matmul` and `add`, each times its factor",
        build: |c| {
            let batched = c.call.op.contains("baddbmm");
            let (x, y) = if batched { ("batch1", "batch2") } else { ("mat1", "mat2") };
            let (bias, x, y) = (c.node("self"), c.node(x), c.node(y));
            let product = build::matmul(&mut c.b, &x, &y)?;
            let product = times(c, product, "alpha")?;
            // A factor of 0 leaves out even NaN.
            if c.call.float("beta") == 0.0 {
                return one(product);
            }
            let bias = times(c, bias, "beta")?;
            one(build::add(&mut c.b, &bias, &product)?)
        },
    },
    Entry {
        ops: &["transformers.grouped_mm_fallback.default"],
        text: "`grouped_matmul`",
        build: |c| {
            let (x, w, ends) = (c.node("input"), c.node("weight"), c.node("offs"));
            one(build::grouped_matmul(&mut c.b, &x, &w, &ends)?)
        },
    },
    Entry {
        ops: &["aten._grouped_mm.default"],
        text: "`grouped_matmul`; of two matrices `grouped_inner`",
        build: |c| {
            let (x, w, ends) = (c.node("self"), c.tensor("mat2"), c.node("offs"));
            one(match c.rank(w) {
                2 => build::grouped_inner(&mut c.b, &x, &w.id, &ends)?,
                _ => build::grouped_matmul(&mut c.b, &x, &w.id, &ends)?,
            })
        },
    },
    Entry {
        ops: &["aten.convolution.default"],
        text: "`conv` or `conv_transpose`",
        build: |c| {
            let (x, w, bias) = (c.node("input"), c.node("weight"), c.optional_node("bias"));
            let options = options(c);
            one(if c.call.flag("transposed") {
                build::conv_transpose(&mut c.b, &x, &w, bias.as_ref(), &options, &c.call.sizes("output_padding"))?
            } else {
                build::conv(&mut c.b, &x, &w, bias.as_ref(), &options)?
            })
        },
    },
    Entry {
        ops: &["aten.convolution_backward.default"],
        text: "`conv_backward` or `conv_transpose_backward`",
        build: |c| {
            let (gradient, x, w) = (c.node("grad_output"), c.node("input"), c.node("weight"));
            let options = options(c);
            let gradients = if c.call.flag("transposed") {
                build::conv_transpose_backward(&mut c.b, &gradient, &x, &w, &options)?
            } else {
                build::conv_backward(&mut c.b, &gradient, &x, &w, &options)?
            };
            Ok([gradients.input, gradients.weight, gradients.bias].map(real).to_vec())
        },
    },
];

fn times(c: &mut Context, x: NodeId, name: &str) -> Result<NodeId, Error> {
    let factor = c.call.float(name);
    if factor == 1.0 { Ok(x) } else { build::mul_scalar(&mut c.b, &x, factor) }
}

fn options(c: &Context) -> ConvOptions {
    ConvOptions {
        stride: c.call.sizes("stride"),
        padding: c.call.sizes("padding"),
        dilation: c.call.sizes("dilation"),
        groups: c.call.size("groups"),
    }
}
