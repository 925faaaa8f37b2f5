//! Normalisations and their statistics.

use crate::context::{Entry, real};
use kiln_ir::{Dim, Scalar, build};

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.native_layer_norm.default"],
        text: "`layer_norm_statistics`",
        build: |c| {
            let (x, weight, bias) = (c.node("input"), c.optional_node("weight"), c.optional_node("bias"));
            let axes = c.call.ints("normalized_shape").len();
            let (weight, bias, epsilon) = (weight.as_ref(), bias.as_ref(), c.call.float("eps"));
            let (y, statistics) = build::layer_norm_statistics(&mut c.b, &x, axes, weight, bias, epsilon)?;
            Ok([y, statistics.mean, statistics.rstd].map(real).to_vec())
        },
    },
    Entry {
        ops: &["aten.native_group_norm.default"],
        text: "`group_norm_statistics`",
        build: |c| {
            let (x, weight, bias) = (c.node("input"), c.optional_node("weight"), c.optional_node("bias"));
            let (weight, bias, epsilon) = (weight.as_ref(), bias.as_ref(), c.call.float("eps"));
            let (y, statistics) =
                build::group_norm_statistics(&mut c.b, &x, c.call.size("group"), weight, bias, epsilon)?;
            Ok([y, statistics.mean, statistics.rstd].map(real).to_vec())
        },
    },
    Entry {
        ops: &["aten._native_batch_norm_legit_no_training.default"],
        text: "`batch_norm`; the statistics are empty",
        build: |c| {
            let (x, weight, bias) = (c.node("input"), c.optional_node("weight"), c.optional_node("bias"));
            let (mean, variance) = (c.node("running_mean"), c.node("running_var"));
            let (weight, bias, epsilon) = (weight.as_ref(), bias.as_ref(), c.call.float("eps"));
            let y = build::batch_norm(&mut c.b, &x, &mean, &variance, weight, bias, epsilon)?;
            let dtype = c.ty(real(mean)).dtype;
            let empty = build::full(&mut c.b, Scalar::int(dtype, 0), &[Dim::from(0)])?;
            Ok([y, empty, empty].map(real).to_vec())
        },
    },
    Entry {
        ops: &["aten._native_batch_norm_legit.no_stats"],
        text: "`batch_norm_statistics`",
        build: |c| {
            let (x, weight, bias) = (c.node("input"), c.optional_node("weight"), c.optional_node("bias"));
            let (weight, bias, epsilon) = (weight.as_ref(), bias.as_ref(), c.call.float("eps"));
            let (y, statistics) = build::batch_norm_statistics(&mut c.b, &x, weight, bias, epsilon)?;
            Ok([y, statistics.mean, statistics.rstd].map(real).to_vec())
        },
    },
    Entry {
        ops: &["aten._native_batch_norm_legit_functional.default"],
        text: "`batch_norm_statistics`, `running_average` of the mean and of the `unbiased_variance`",
        build: |c| {
            let (x, weight, bias) = (c.node("input"), c.optional_node("weight"), c.optional_node("bias"));
            let (mean, variance) = (c.node("running_mean"), c.node("running_var"));
            let (weight, bias, epsilon) = (weight.as_ref(), bias.as_ref(), c.call.float("eps"));
            let (y, statistics) = build::batch_norm_statistics(&mut c.b, &x, weight, bias, epsilon)?;
            let momentum = c.call.float("momentum");
            let mean = build::running_average(&mut c.b, &mean, &statistics.mean, momentum)?;
            let count = c.ty(real(x)).elements().div_exact(&c.shape(real(x))[1]).unwrap();
            let unbiased = build::unbiased_variance(&mut c.b, &statistics.variance, &count)?;
            let variance = build::running_average(&mut c.b, &variance, &unbiased, momentum)?;
            Ok([y, statistics.mean, statistics.rstd, mean, variance].map(real).to_vec())
        },
    },
    Entry {
        ops: &["aten._weight_norm_interface.default"],
        text: "`weight_norm`",
        build: |c| {
            let (direction, magnitude) = (c.node("v"), c.node("g"));
            let axis = c.axis(c.tensor("v"), c.call.int("dim"));
            let (y, norms) = build::weight_norm(&mut c.b, &direction, &magnitude, axis)?;
            Ok([y, norms].map(real).to_vec())
        },
    },
    Entry {
        ops: &["aten._weight_norm_interface_backward.default"],
        text: "`weight_norm_backward`",
        build: |c| {
            let (gradient, direction) = (c.node("grad_w"), c.node("saved_v"));
            let (magnitude, norms) = (c.node("saved_g"), c.node("saved_norms"));
            let axis = c.axis(c.tensor("saved_v"), c.call.int("dim"));
            let (direction, magnitude) =
                build::weight_norm_backward(&mut c.b, &gradient, &direction, &magnitude, &norms, axis)?;
            Ok([direction, magnitude].map(real).to_vec())
        },
    },
];
