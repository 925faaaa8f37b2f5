//! Normalisations and their statistics.

use crate::call::real;
use crate::rows::Row;
use kiln_ir::{DType, Dim, Scalar, build};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.native_layer_norm.default"],
        text: "`layer_norm_statistics`",
        build: |c| {
            let (x, weight, bias) = (c.node("input")?, c.optional_node("weight")?, c.optional_node("bias")?);
            let axes = c.ints("normalized_shape")?.len();
            let (weight, bias, epsilon) = (weight.as_ref(), bias.as_ref(), c.float("eps")?);
            let (y, statistics) = build::layer_norm_statistics(&mut c.b, &x, axes, weight, bias, epsilon)?;
            c.as_traced(&[y, statistics.mean, statistics.rstd])
        },
    },
    Row {
        ops: &["aten.native_group_norm.default"],
        text: "`group_norm_statistics`",
        build: |c| {
            let (x, weight, bias) = (c.node("input")?, c.optional_node("weight")?, c.optional_node("bias")?);
            let (weight, bias, epsilon) = (weight.as_ref(), bias.as_ref(), c.float("eps")?);
            let groups = c.size("group")?;
            let (y, statistics) = build::group_norm_statistics(&mut c.b, &x, groups, weight, bias, epsilon)?;
            c.as_traced(&[y, statistics.mean, statistics.rstd])
        },
    },
    Row {
        ops: &["aten._native_batch_norm_legit_no_training.default"],
        text: "`batch_norm`; the statistics are empty",
        build: |c| {
            let (x, weight, bias) = (c.node("input")?, c.optional_node("weight")?, c.optional_node("bias")?);
            let (mean, variance) = (c.node("running_mean")?, c.node("running_var")?);
            let (weight, bias, epsilon) = (weight.as_ref(), bias.as_ref(), c.float("eps")?);
            let y = build::batch_norm(&mut c.b, &x, &mean, &variance, weight, bias, epsilon)?;
            let dtype = c.ty(real(mean)).dtype;
            let empty = build::full(&mut c.b, Scalar::int(dtype, 0), &[Dim::from(0)])?;
            c.as_traced(&[y, empty, empty])
        },
    },
    Row {
        ops: &["aten._native_batch_norm_legit.no_stats"],
        text: "`batch_norm_statistics`",
        build: |c| {
            let (x, weight, bias) = (c.node("input")?, c.optional_node("weight")?, c.optional_node("bias")?);
            let (weight, bias, epsilon) = (weight.as_ref(), bias.as_ref(), c.float("eps")?);
            let (y, statistics) = build::batch_norm_statistics(&mut c.b, &x, weight, bias, epsilon)?;
            c.as_traced(&[y, statistics.mean, statistics.rstd])
        },
    },
    Row {
        ops: &["aten._native_batch_norm_legit_functional.default", "aten._batch_norm_with_update_functional.default"],
        text: "`batch_norm_statistics`, `running_average` of the mean and of the `unbiased_variance`; `batch_norm` where it does not train",
        build: |c| {
            let (x, weight, bias) = (c.node("input")?, c.optional_node("weight")?, c.optional_node("bias")?);
            let (mean, variance) = (c.node("running_mean")?, c.node("running_var")?);
            let (weight, bias, epsilon) = (weight.as_ref(), bias.as_ref(), c.float("eps")?);
            let with_reserve = c.name() == "_batch_norm_with_update_functional";
            if !with_reserve && !c.flag("training")? {
                let y = build::batch_norm(&mut c.b, &x, &mean, &variance, weight, bias, epsilon)?;
                let dtype = c.ty(real(mean)).dtype;
                let empty = build::full(&mut c.b, Scalar::int(dtype, 0), &[Dim::from(0)])?;
                return c.as_traced(&[y, empty, empty, mean, variance]);
            }
            let (y, statistics) = build::batch_norm_statistics(&mut c.b, &x, weight, bias, epsilon)?;
            let momentum = c.float("momentum")?;
            let mean = build::running_average(&mut c.b, &mean, &statistics.mean, momentum)?;
            let channels = c.shape(real(x))[1].clone();
            let Some(count) = c.ty(real(x)).elements().div_exact(&channels) else {
                return c.unsupported("of a symbolic number of channels");
            };
            let unbiased = build::unbiased_variance(&mut c.b, &statistics.variance, &count)?;
            let variance = build::running_average(&mut c.b, &variance, &unbiased, momentum)?;
            if with_reserve {
                let reserve = build::full(&mut c.b, Scalar::int(DType::U8, 0), &[Dim::from(0)])?;
                return c.as_traced(&[y, statistics.mean, statistics.rstd, reserve, mean, variance]);
            }
            c.as_traced(&[y, statistics.mean, statistics.rstd, mean, variance])
        },
    },
    Row {
        ops: &["aten._weight_norm_interface.default"],
        text: "`weight_norm`",
        build: |c| {
            let (direction, magnitude) = (c.node("v")?, c.node("g")?);
            let axis = c.axis(c.tensor("v")?, c.int_or("dim", 0)?)?;
            let (y, norms) = build::weight_norm(&mut c.b, &direction, &magnitude, axis)?;
            Ok([y, norms].map(real).to_vec())
        },
    },
    Row {
        ops: &["aten._weight_norm_interface_backward.default"],
        text: "`weight_norm_backward`",
        build: |c| {
            let (gradient, direction) = (c.node("grad_w")?, c.node("saved_v")?);
            let (magnitude, norms) = (c.node("saved_g")?, c.node("saved_norms")?);
            let axis = c.axis(c.tensor("saved_v")?, c.int("dim")?)?;
            let (direction, magnitude) =
                build::weight_norm_backward(&mut c.b, &gradient, &direction, &magnitude, &norms, axis)?;
            Ok([direction, magnitude].map(real).to_vec())
        },
    },
];
