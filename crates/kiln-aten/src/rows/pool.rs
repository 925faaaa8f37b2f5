//! Pooling and its gradients.

use crate::Error;
use crate::call::{Context, Value, one, real};
use crate::rows::Row;
use kiln_ir::build::{self, Emit, PoolOptions};
use kiln_ir::{DType, Dim, NodeId};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default"],
        text: "`max_pool_with_indices`",
        build: |c| {
            let (x, options) = (c.node("self")?, options(c)?);
            let (values, indices) = build::max_pool_with_indices(&mut c.b, &x, &options)?;
            Ok([values, indices].map(real).to_vec())
        },
    },
    Row {
        ops: &["aten.max_pool2d_with_indices_backward.default", "aten.max_pool3d_with_indices_backward.default"],
        text: "`max_pool_windows_backward`",
        build: |c| {
            let (gradient, x, indices) = (c.node("grad_output")?, c.tensor("self")?, c.node("indices")?);
            let (shape, options) = (c.shape(x), options(c)?);
            one(build::max_pool_windows_backward(&mut c.b, &gradient, &indices, &shape, &options)?)
        },
    },
    Row {
        ops: &[
            "aten.adaptive_max_pool2d_backward.default",
            "aten.adaptive_max_pool3d_backward.default",
            "aten.fractional_max_pool2d_backward.default",
            "aten.fractional_max_pool3d_backward.default",
        ],
        text: "`max_pool_backward`",
        build: |c| {
            let (gradient, x, indices) = (c.node("grad_output")?, c.tensor("self")?, c.node("indices")?);
            let (shape, axes) = (c.shape(x), pooled_axes(c));
            one(build::max_pool_backward(&mut c.b, &gradient, &indices, &shape, axes)?)
        },
    },
    Row {
        ops: &["prims._low_memory_max_pool_with_offsets.default"],
        text: "`max_pool_with_offsets`",
        build: |c| {
            let (x, options) = (c.node("self")?, options(c)?);
            let (values, offsets) = build::max_pool_with_offsets(&mut c.b, &x, &options)?;
            let offsets = build::cast(&mut c.b, &offsets, DType::I8)?;
            Ok([values, offsets].map(real).to_vec())
        },
    },
    Row {
        ops: &["prims._low_memory_max_pool_offsets_to_indices.default"],
        text: "`pool_indices`",
        build: |c| {
            let (offsets, options) = (c.node("self")?, options(c)?);
            let lengths: Vec<Dim> = c.dims("input_size")?;
            one(build::pool_indices(&mut c.b, &offsets, &lengths, &options)?)
        },
    },
    Row {
        ops: &["aten.avg_pool2d.default", "aten.avg_pool3d.default"],
        text: "`avg_pool`; with a divisor of its own `sum_pool` and `div_scalar`",
        build: |c| {
            let (x, options) = (c.node("self")?, options(c)?);
            if c.given("divisor_override").is_some() {
                let total = build::sum_pool(&mut c.b, &x, &options)?;
                let divisor = c.float("divisor_override")?;
                return one(build::div_scalar(&mut c.b, &total, divisor)?);
            }
            let padded = c.flag_or("count_include_pad", true)?;
            one(build::avg_pool(&mut c.b, &x, &options, padded)?)
        },
    },
    Row {
        ops: &["aten.avg_pool2d_backward.default", "aten.avg_pool3d_backward.default"],
        text: "`avg_pool_backward`; with a divisor of its own `sum_pool_backward`",
        build: |c| {
            let (gradient, x, options) = (c.node("grad_output")?, c.tensor("self")?, options(c)?);
            if c.given("divisor_override").is_some() {
                let divisor = c.float("divisor_override")?;
                let share = build::div_scalar(&mut c.b, &gradient, divisor)?;
                let shape = c.shape(x);
                return one(build::sum_pool_backward(&mut c.b, &share, &shape, &options)?);
            }
            let padded = c.flag_or("count_include_pad", true)?;
            one(build::avg_pool_backward(&mut c.b, &gradient, &x.id, &options, padded)?)
        },
    },
    Row {
        ops: &["aten._adaptive_avg_pool2d.default", "aten._adaptive_avg_pool3d.default"],
        text: "`adaptive_avg_pool`",
        build: |c| {
            let x = floats(c)?;
            let sizes = c.sizes("output_size")?;
            one(build::adaptive_avg_pool(&mut c.b, &x, &sizes)?)
        },
    },
    Row {
        ops: &["aten.adaptive_max_pool2d.default", "aten.adaptive_max_pool3d.default"],
        text: "`adaptive_max_pool`",
        build: |c| {
            let x = floats(c)?;
            let sizes = c.sizes("output_size")?;
            let (values, indices) = build::adaptive_max_pool(&mut c.b, &x, &sizes)?;
            Ok([values, indices].map(real).to_vec())
        },
    },
    Row {
        ops: &["aten.im2col.default"],
        text: "`image_to_columns`",
        build: |c| {
            let (x, options) = (c.node("self")?, options(c)?);
            one(build::image_to_columns(&mut c.b, &x, &options)?)
        },
    },
    Row {
        ops: &["aten.col2im.default"],
        text: "`columns_to_image`",
        build: |c| {
            let (x, options) = (c.node("self")?, options(c)?);
            let sizes: Vec<Dim> = c.dims("output_size")?;
            one(build::columns_to_image(&mut c.b, &x, &sizes, &options)?)
        },
    },
    Row {
        ops: &["aten._adaptive_avg_pool2d_backward.default", "aten._adaptive_avg_pool3d_backward.default"],
        text: "`adaptive_avg_pool_backward`",
        build: |c| {
            let (gradient, x): (NodeId, Value) = (c.node("grad_output")?, c.tensor("self")?);
            let (shape, axes) = (c.shape(x), pooled_axes(c));
            one(build::adaptive_avg_pool_backward(&mut c.b, &gradient, &shape, axes)?)
        },
    },
];

/// The tensor `self` of floats; PyTorch has no adaptive pooling of integers.
fn floats(c: &Context) -> Result<NodeId, Error> {
    let x = c.node("self")?;
    if c.b.ty(&x).dtype.is_float() { Ok(x) } else { c.unsupported("of integers") }
}

/// How many axes an op pools.
fn pooled_axes(c: &Context) -> usize {
    if c.op().contains("3d") { 3 } else { 2 }
}

/// Windows; a step not given is as long as the window.
fn options(c: &Context) -> Result<PoolOptions, Error> {
    let axes = pooled_axes(c);
    let or = |name: &str, otherwise: Vec<usize>| {
        let given = c.sizes(name)?;
        Ok::<Vec<usize>, Error>(match given.len() {
            0 => otherwise,
            1 => vec![given[0]; axes],
            _ => given,
        })
    };
    let size = or("kernel_size", vec![1; axes])?;
    Ok(PoolOptions {
        stride: or("stride", size.clone())?,
        padding: or("padding", vec![0; size.len()])?,
        dilation: or("dilation", vec![1; size.len()])?,
        ceil: c.flag_or("ceil_mode", false)?,
        size,
    })
}
