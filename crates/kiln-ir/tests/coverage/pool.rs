//! Pooling and its gradients.

use crate::context::{Context, Entry, Results, Value, real};
use kiln_ir::build::{self, PoolOptions};
use kiln_ir::{DType, Dim, NodeId};

fn one(id: NodeId) -> Results {
    Ok(vec![real(id)])
}

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default"],
        text: "`max_pool_with_indices`",
        build: |c| {
            let (x, options) = (c.node("self"), options(c));
            let (values, indices) = build::max_pool_with_indices(&mut c.b, &x, &options)?;
            Ok([values, indices].map(real).to_vec())
        },
    },
    Entry {
        ops: &["aten.max_pool2d_with_indices_backward.default"],
        text: "`max_pool_backward`",
        build: |c| {
            let (gradient, x, indices) = (c.node("grad_output"), c.tensor("self"), c.node("indices"));
            let shape = c.shape(x);
            one(build::max_pool_backward(&mut c.b, &gradient, &indices, &shape, 2)?)
        },
    },
    Entry {
        ops: &["prims._low_memory_max_pool_with_offsets.default"],
        text: "`max_pool_with_offsets`",
        build: |c| {
            let (x, options) = (c.node("self"), options(c));
            let (values, offsets) = build::max_pool_with_offsets(&mut c.b, &x, &options)?;
            let offsets = build::cast(&mut c.b, &offsets, DType::I8)?;
            Ok([values, offsets].map(real).to_vec())
        },
    },
    Entry {
        ops: &["prims._low_memory_max_pool_offsets_to_indices.default"],
        text: "`pool_indices`",
        build: |c| {
            let (offsets, options) = (c.node("self"), options(c));
            let lengths: Vec<Dim> = c.call.ints("input_size").into_iter().map(Dim::from).collect();
            one(build::pool_indices(&mut c.b, &offsets, &lengths, &options)?)
        },
    },
    Entry {
        ops: &["aten.avg_pool2d.default", "aten.avg_pool3d.default"],
        text: "`avg_pool`; with a divisor of its own `sum_pool` and `div_scalar`",
        build: |c| {
            let (x, options) = (c.node("self"), options(c));
            if c.call.attribute("divisor_override").is_some() {
                let total = build::sum_pool(&mut c.b, &x, &options)?;
                return one(build::div_scalar(&mut c.b, &total, c.call.float("divisor_override"))?);
            }
            one(build::avg_pool(&mut c.b, &x, &options, c.call.flag("count_include_pad"))?)
        },
    },
    Entry {
        ops: &["aten.avg_pool2d_backward.default"],
        text: "`avg_pool_backward`; with a divisor of its own `sum_pool_backward`",
        build: |c| {
            let (gradient, x, options) = (c.node("grad_output"), c.tensor("self"), options(c));
            if c.call.attribute("divisor_override").is_some() {
                let share = build::div_scalar(&mut c.b, &gradient, c.call.float("divisor_override"))?;
                let shape = c.shape(x);
                return one(build::sum_pool_backward(&mut c.b, &share, &shape, &options)?);
            }
            one(build::avg_pool_backward(&mut c.b, &gradient, &x.id, &options, c.call.flag("count_include_pad"))?)
        },
    },
    Entry {
        ops: &["aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default"],
        text: "`adaptive_avg_pool`",
        build: |c| {
            let x = c.node("self");
            one(build::adaptive_avg_pool(&mut c.b, &x, &c.call.sizes("output_size"))?)
        },
    },
    Entry {
        ops: &["aten.adaptive_max_pool2d.default"],
        text: "`adaptive_max_pool`",
        build: |c| {
            let x = c.node("self");
            let (values, indices) = build::adaptive_max_pool(&mut c.b, &x, &c.call.sizes("output_size"))?;
            Ok([values, indices].map(real).to_vec())
        },
    },
    Entry {
        ops: &["aten.im2col.default"],
        text: "`image_to_columns`",
        build: |c| {
            let (x, options) = (c.node("self"), options(c));
            one(build::image_to_columns(&mut c.b, &x, &options)?)
        },
    },
    Entry {
        ops: &["aten.col2im.default"],
        text: "`columns_to_image`",
        build: |c| {
            let (x, options) = (c.node("self"), options(c));
            let sizes: Vec<Dim> = c.call.ints("output_size").into_iter().map(Dim::from).collect();
            one(build::columns_to_image(&mut c.b, &x, &sizes, &options)?)
        },
    },
    Entry {
        ops: &["aten._adaptive_avg_pool2d_backward.default"],
        text: "`adaptive_avg_pool_backward`",
        build: |c| {
            let (gradient, x): (NodeId, Value) = (c.node("grad_output"), c.tensor("self"));
            let shape = c.shape(x);
            one(build::adaptive_avg_pool_backward(&mut c.b, &gradient, &shape, 2)?)
        },
    },
];

/// Windows; a step not given is as long as the window.
fn options(c: &Context) -> PoolOptions {
    let size = c.call.sizes("kernel_size");
    let or = |name: &str, otherwise: Vec<usize>| {
        let given = c.call.sizes(name);
        match given.len() {
            0 => otherwise,
            1 => vec![given[0]; size.len()],
            _ => given,
        }
    };
    PoolOptions {
        stride: or("stride", size.clone()),
        padding: or("padding", vec![0; size.len()]),
        dilation: or("dilation", vec![1; size.len()]),
        ceil: c.call.attribute("ceil_mode").is_some_and(|_| c.call.flag("ceil_mode")),
        size,
    }
}
