//! Pointwise ops.

use crate::Error;
use crate::call::{Context, Value, one, real};
use crate::promote::as_float;
use crate::rows::Row;
use kiln_ir::build::{self, Emit};
use kiln_ir::{BinaryOp, CompareOp, DType, NodeId, Op, UnaryOp};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &[
            "aten.add.Tensor",
            "aten.add.Scalar",
            "aten.sub.Tensor",
            "aten.sub.Scalar",
            "aten.rsub.Scalar",
            "aten.rsub.Tensor",
        ],
        text: "`add` or `sub`, y times alpha by `mul`; of complex numbers both parts",
        build: |c| {
            let complex = |name: &str| Ok::<bool, Error>(c.optional(name)?.is_some_and(|x| x.complex));
            let complex = complex("self")? || complex("other")?;
            let (mut x, mut y) = match complex {
                true => (as_complex(c, "self", "other")?, as_complex(c, "other", "self")?),
                false => c.pair("self", "other")?,
            };
            if c.name() == "rsub" {
                (x, y) = (y, x);
            }
            let dtype = c.b.ty(&x).dtype;
            if c.told_by_call("alpha")?.is_some() || c.float_or("alpha", 1.0)? != 1.0 {
                let alpha = c.cast_to("alpha", dtype)?;
                y = build::mul(&mut c.b, &y, &alpha)?;
            }
            let id = if c.name() == "add" { build::add(&mut c.b, &x, &y)? } else { build::sub(&mut c.b, &x, &y)? };
            Ok(vec![Value { id, complex }])
        },
    },
    Row {
        ops: &["aten.mul.Tensor", "aten.mul.Scalar"],
        text: "`mul`, of short floats and a number in f32; of complex numbers `complex_mul` or `complex_scale`",
        build: |c| {
            let complex = |name: &str| Ok::<bool, Error>(c.optional(name)?.is_some_and(|x| x.complex));
            let id = match (complex("self")?, complex("other")?) {
                (false, false) => {
                    let dtype = c.promoted(&["self", "other"])?;
                    let (x, y) = c.factors("self", "other", dtype)?;
                    let product = build::mul(&mut c.b, &x, &y)?;
                    return one(build::cast(&mut c.b, &product, dtype)?);
                }
                (true, true) => {
                    let (x, y) = (as_complex(c, "self", "other")?, as_complex(c, "other", "self")?);
                    build::complex_mul(&mut c.b, &x, &y)?
                }
                (first, _) => {
                    let (x, y) = if first { ("self", "other") } else { ("other", "self") };
                    let scaled = as_complex(c, x, y)?;
                    let dtype = c.promoted(&["self", "other"])?;
                    let y = c.cast_to(y, dtype)?;
                    build::complex_scale(&mut c.b, &scaled, &y)?
                }
            };
            Ok(vec![Value { id, complex: true }])
        },
    },
    Row {
        ops: &["aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor"],
        text: "`div` of floats, integers by `cast`, short floats and a number in f32",
        build: |c| {
            let dtype = as_float(c.promoted(&["self", "other"])?);
            let (x, y) = c.factors("self", "other", dtype)?;
            let quotient = build::div(&mut c.b, &x, &y)?;
            one(build::cast(&mut c.b, &quotient, dtype)?)
        },
    },
    Row {
        ops: &["aten.div.Tensor_mode", "aten.div.Scalar_mode"],
        text: "`floor_div`, or `div` and, of floats, `trunc`",
        build: |c| {
            let mode = c.word("rounding_mode")?.map(str::to_owned);
            let mut dtype = c.promoted(&["self", "other"])?;
            if mode.is_none() {
                dtype = as_float(dtype);
            }
            let (x, y) = c.factors("self", "other", dtype)?;
            let quotient = match mode.as_deref() {
                Some("floor") => build::floor_div(&mut c.b, &x, &y)?,
                _ => build::div(&mut c.b, &x, &y)?,
            };
            let is_cut = mode.as_deref() == Some("trunc") && dtype.is_float();
            let quotient = if is_cut { build::trunc(&mut c.b, &quotient)? } else { quotient };
            one(build::cast(&mut c.b, &quotient, dtype)?)
        },
    },
    Row {
        ops: &["prims.div.default"],
        text: "`div`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            one(build::div(&mut c.b, &x, &y)?)
        },
    },
    Row {
        ops: &["prims.fma.default"],
        text: "`mul` and `add`",
        build: |c| {
            let (x, y, z) = (c.node("a")?, c.node("b")?, c.node("c")?);
            let product = build::mul(&mut c.b, &x, &y)?;
            one(build::add(&mut c.b, &product, &z)?)
        },
    },
    Row {
        ops: &["aten.fmod.Scalar", "aten.fmod.Tensor"],
        text: "`rem`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            one(build::rem(&mut c.b, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.remainder.Scalar", "aten.remainder.Tensor", "aten.remainder.Scalar_Tensor"],
        text: "`remainder`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            one(build::remainder(&mut c.b, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.where.self"],
        text: "`select`; the condition of complex numbers by `unsqueeze`",
        build: |c| {
            let (x, complex) = (c.tensor("self")?, c.tensor("self")?.complex);
            let mut condition = c.node("condition")?;
            if complex {
                let rank = c.rank(real(condition));
                condition = build::unsqueeze(&mut c.b, &condition, rank)?;
                let y = c.tensor("other")?.id;
                let id = build::select(&mut c.b, &condition, &x.id, &y)?;
                return Ok(vec![Value { id, complex }]);
            }
            let (x, y) = c.pair("self", "other")?;
            one(build::select(&mut c.b, &condition, &x, &y)?)
        },
    },
    Row {
        ops: &[
            "aten.eq.Scalar",
            "aten.eq.Tensor",
            "aten.ne.Scalar",
            "aten.ne.Tensor",
            "aten.gt.Scalar",
            "aten.gt.Tensor",
            "aten.ge.Scalar",
            "aten.ge.Tensor",
            "aten.lt.Scalar",
            "aten.lt.Tensor",
            "aten.le.Scalar",
            "aten.le.Tensor",
        ],
        text: "`compare`",
        build: |c| {
            let Some(op) = CompareOp::from_name(c.name()) else { return c.unsupported("") };
            let (x, y) = c.pair("self", "other")?;
            one(build::compare(&mut c.b, op, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.logical_not.default"],
        text: "`cast` to bool, `not`",
        build: |c| {
            let x = truth(c, "self")?;
            one(build::not(&mut c.b, &x)?)
        },
    },
    Row {
        ops: &["aten.logical_and.default", "aten.logical_or.default", "aten.logical_xor.default"],
        text: "`cast` to bool, `and`, `or` or `xor`",
        build: |c| {
            let (x, y) = (truth(c, "self")?, truth(c, "other")?);
            let op = bitwise(c.name());
            one(build::binary(&mut c.b, op, &x, &y)?)
        },
    },
    Row {
        ops: &[
            "aten.bitwise_and.Tensor",
            "aten.bitwise_and.Scalar",
            "aten.bitwise_or.Tensor",
            "aten.bitwise_or.Scalar",
            "aten.bitwise_xor.Tensor",
            "aten.bitwise_xor.Scalar",
        ],
        text: "`and`, `or` or `xor`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            let op = bitwise(c.name());
            one(build::binary(&mut c.b, op, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.bitwise_not.default"],
        text: "`not`",
        build: |c| {
            let x = c.node("self")?;
            one(build::not(&mut c.b, &x)?)
        },
    },
    Row {
        ops: &["aten.neg.default", "aten.abs.default", "aten.floor.default", "aten.ceil.default", "aten.round.default"],
        text: "the primitive of that name; integers are whole",
        build: |c| {
            let Some(op) = UnaryOp::from_name(c.name()) else { return c.unsupported("") };
            let x = c.tensor("self")?;
            if x.complex && op == UnaryOp::Neg {
                return Ok(vec![Value { id: build::neg(&mut c.b, &x.id)?, complex: true }]);
            }
            let x = c.node("self")?;
            if matches!(op, UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round) && !c.b.ty(&x).dtype.is_float() {
                return one(x);
            }
            one(c.b.emit(Op::Unary(op), &[x])?)
        },
    },
    Row {
        ops: &[
            "aten.sin.default",
            "aten.cos.default",
            "aten.acos.default",
            "aten.asin.default",
            "aten.atan.default",
            "aten.tan.default",
            "aten.exp2.default",
            "aten.exp.default",
            "aten.expm1.default",
            "aten.log.default",
            "aten.log1p.default",
            "aten.log2.default",
            "aten.tanh.default",
            "aten.erf.default",
            "aten.lgamma.default",
            "aten.sqrt.default",
            "aten.rsqrt.default",
        ],
        text: "the primitive of that name, of integers after `cast`",
        build: |c| {
            let Some(op) = UnaryOp::from_name(c.name()) else { return c.unsupported("") };
            let x = c.float_node("self")?;
            one(c.b.emit(Op::Unary(op), &[x])?)
        },
    },
    Row {
        ops: &["aten.sign.default"],
        text: "`sign`, of NaN 0 by `masked_fill`",
        build: |c| {
            let x = c.tensor("self")?;
            if c.ty(x).dtype == DType::Bool {
                return Ok(vec![x]);
            }
            let sign = build::sign(&mut c.b, &x.id)?;
            if !c.ty(x).dtype.is_float() {
                return one(sign);
            }
            let nan = build::is_nan(&mut c.b, &x.id)?;
            one(build::masked_fill(&mut c.b, &sign, &nan, 0.0)?)
        },
    },
    Row {
        ops: &["aten.reciprocal.default"],
        text: "`recip`, of integers after `cast`",
        build: |c| {
            let x = c.float_node("self")?;
            one(build::recip(&mut c.b, &x)?)
        },
    },
    Row {
        ops: &["aten.erfinv.default"],
        text: "`erf_inv`",
        build: |c| {
            let x = c.float_node("self")?;
            one(build::erf_inv(&mut c.b, &x)?)
        },
    },
    Row {
        ops: &["aten.sigmoid.default"],
        text: "`sigmoid`",
        build: |c| {
            let x = c.float_node("self")?;
            one(build::sigmoid(&mut c.b, &x)?)
        },
    },
    Row {
        ops: &["aten.relu.default"],
        text: "`relu`",
        build: |c| {
            let x = c.node("self")?;
            one(build::relu(&mut c.b, &x)?)
        },
    },
    Row {
        ops: &["aten.leaky_relu.default"],
        text: "`leaky_relu`",
        build: |c| {
            let x = c.node("self")?;
            if c.told_by_call("negative_slope")?.is_some() {
                let slope = c.cast_to("negative_slope", c.b.ty(&x).dtype)?;
                let is_above = build::compare_scalar(&mut c.b, CompareOp::Gt, &x, 0.0)?;
                let below = build::mul(&mut c.b, &x, &slope)?;
                return one(build::select(&mut c.b, &is_above, &x, &below)?);
            }
            let slope = c.float_or("negative_slope", 0.01)?;
            one(build::leaky_relu(&mut c.b, &x, slope)?)
        },
    },
    Row {
        ops: &["aten.elu.default"],
        text: "`elu_scaled`",
        build: |c| {
            let x = c.node("self")?;
            let (alpha, scale) = (c.float_or("alpha", 1.0)?, c.float_or("scale", 1.0)?);
            let input_scale = c.float_or("input_scale", 1.0)?;
            one(build::elu_scaled(&mut c.b, &x, alpha, scale, input_scale)?)
        },
    },
    Row {
        ops: &["aten.gelu.default"],
        text: "`gelu` or `gelu_tanh`",
        build: |c| {
            let x = c.node("self")?;
            let tanh = c.word("approximate")? == Some("tanh");
            one(if tanh { build::gelu_tanh(&mut c.b, &x)? } else { build::gelu(&mut c.b, &x)? })
        },
    },
    Row {
        ops: &["aten.glu.default"],
        text: "`glu`",
        build: |c| {
            let x = c.tensor("self")?;
            let axis = c.axis(x, c.int_or("dim", -1)?)?;
            one(build::glu(&mut c.b, &x.id, axis)?)
        },
    },
    Row {
        ops: &["aten.hardtanh.default"],
        text: "`clamp`",
        build: |c| {
            let x = c.node("self")?;
            let (low, high) = (c.float_or("min_val", -1.0)?, c.float_or("max_val", 1.0)?);
            one(build::clamp(&mut c.b, &x, Some(low), Some(high))?)
        },
    },
    Row {
        ops: &[
            "aten.clamp.default",
            "aten.clamp.Tensor",
            "aten.clamp_min.default",
            "aten.clamp_min.Tensor",
            "aten.clamp_max.default",
        ],
        text: "`maximum`, then `minimum`",
        build: |c| {
            let given = |bound: &&str| c.given(bound).is_some();
            let bounds: Vec<&str> = ["min", "max"].into_iter().filter(|bound| given(bound)).collect();
            let names: Vec<&str> = ["self"].into_iter().chain(bounds.iter().copied()).collect();
            let dtype = c.promoted(&names)?;
            let mut x = c.cast_to("self", dtype)?;
            for bound in bounds {
                let op = if bound == "min" { BinaryOp::Max } else { BinaryOp::Min };
                let limit = c.cast_to(bound, dtype)?;
                x = build::binary(&mut c.b, op, &x, &limit)?;
            }
            one(x)
        },
    },
    Row {
        ops: &["aten.minimum.default", "aten.maximum.default"],
        text: "`minimum` or `maximum`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            let op = if c.name() == "minimum" { BinaryOp::Min } else { BinaryOp::Max };
            one(build::binary(&mut c.b, op, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.pow.Tensor_Scalar"],
        text: "`pow_scalar`",
        build: |c| {
            let dtype = c.promoted(&["self", "exponent"])?;
            let x = c.cast_to("self", dtype)?;
            if c.told_by_call("exponent")?.is_some() {
                let exponent = c.cast_to("exponent", dtype)?;
                return one(build::pow(&mut c.b, &x, &exponent)?);
            }
            let exponent = c.float("exponent")?;
            one(build::pow_scalar(&mut c.b, &x, exponent)?)
        },
    },
    Row {
        ops: &["aten.pow.Scalar", "aten.pow.Tensor_Tensor"],
        text: "`pow`",
        build: |c| {
            let (x, y) = c.pair("self", "exponent")?;
            one(build::pow(&mut c.b, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.gcd.default"],
        text: "`gcd`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            one(build::gcd(&mut c.b, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.lcm.default"],
        text: "`lcm`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            one(build::lcm(&mut c.b, &x, &y)?)
        },
    },
];

/// An argument as complex numbers, in the precision that PyTorch computes in with another.
fn as_complex(c: &mut Context, name: &str, other: &str) -> Result<NodeId, Error> {
    let dtype = c.promoted(&[name, other])?;
    if let Some(x) = c.optional(name)?.filter(|x| x.complex) {
        return Ok(build::cast(&mut c.b, &x.id, dtype)?);
    }
    let x = c.cast_to(name, dtype)?;
    Ok(build::complex_from_real(&mut c.b, &x)?)
}

/// The primitive of `bitwise_and`, `logical_or` and those like them.
fn bitwise(name: &str) -> BinaryOp {
    match name.rsplit('_').next() {
        Some("and") => BinaryOp::And,
        Some("or") => BinaryOp::Or,
        _ => BinaryOp::Xor,
    }
}

/// An argument as a bool.
fn truth(c: &mut Context, name: &str) -> Result<NodeId, Error> {
    c.cast_to(name, DType::Bool)
}
