//! Pointwise ops.

use crate::context::{Context, Entry, Results, Value, as_float, real};
use kiln_ir::build::{self, Emit};
use kiln_ir::{BinaryOp, CompareOp, DType, Error, NodeId, Op, UnaryOp};

fn one(id: NodeId) -> Results {
    Ok(vec![real(id)])
}

/// The middle of a name: `aten.sin.default` is sin.
fn name<'a>(c: &Context<'a>) -> &'a str {
    c.call.op.split('.').nth(1).unwrap()
}

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.add.Tensor", "aten.add.Scalar", "aten.sub.Tensor"],
        text: "`add` or `sub`, y times alpha by `mul`",
        build: |c| {
            let (x, mut y) = c.pair("self", "other")?;
            let dtype = c.b.ty(&x).dtype;
            if c.call.float("alpha") != 1.0 {
                let alpha = build::full(&mut c.b, c.call.scalar("alpha", dtype), &[])?;
                y = build::mul(&mut c.b, &y, &alpha)?;
            }
            one(if name(c) == "add" { build::add(&mut c.b, &x, &y)? } else { build::sub(&mut c.b, &x, &y)? })
        },
    },
    Entry {
        ops: &["aten.mul.Tensor", "aten.mul.Scalar"],
        text: "`mul`; of complex numbers `complex_mul` or `complex_scale`",
        build: |c| {
            let complex = |name: &str| c.optional(name).is_some_and(|x| x.complex);
            let id = match (complex("self"), complex("other")) {
                (false, false) => {
                    let (x, y) = c.pair("self", "other")?;
                    return one(build::mul(&mut c.b, &x, &y)?);
                }
                (true, true) => {
                    let (x, y) = (c.node("self"), c.node("other"));
                    build::complex_mul(&mut c.b, &x, &y)?
                }
                (first, _) => {
                    let (x, y) = if first { ("self", "other") } else { ("other", "self") };
                    let dtype = c.ty(c.tensor(x)).dtype;
                    let y = c.cast_to(y, dtype)?;
                    let x = c.node(x);
                    build::complex_scale(&mut c.b, &x, &y)?
                }
            };
            Ok(vec![Value { id, complex: true }])
        },
    },
    Entry {
        ops: &["aten.div.Tensor", "aten.div.Scalar"],
        text: "`div` of floats, integers by `cast`",
        build: |c| {
            let dtype = as_float(c.promoted(&["self", "other"]));
            let (x, y) = (c.cast_to("self", dtype)?, c.cast_to("other", dtype)?);
            one(build::div(&mut c.b, &x, &y)?)
        },
    },
    Entry {
        ops: &["aten.div.Tensor_mode"],
        text: "`floor_div`, or `div` and, of floats, `trunc`",
        build: |c| {
            let mode = c.call.word("rounding_mode").map(str::to_owned);
            let mut dtype = c.promoted(&["self", "other"]);
            if mode.is_none() {
                dtype = as_float(dtype);
            }
            let (x, y) = (c.cast_to("self", dtype)?, c.cast_to("other", dtype)?);
            if mode.as_deref() == Some("floor") {
                return one(build::floor_div(&mut c.b, &x, &y)?);
            }
            let quotient = build::div(&mut c.b, &x, &y)?;
            let whole = mode.is_some() && dtype.is_float();
            one(if whole { build::trunc(&mut c.b, &quotient)? } else { quotient })
        },
    },
    Entry {
        ops: &["prims.div.default"],
        text: "`div`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            one(build::div(&mut c.b, &x, &y)?)
        },
    },
    Entry {
        ops: &["prims.fma.default"],
        text: "`mul` and `add`",
        build: |c| {
            let (x, y, z) = (c.node("a"), c.node("b"), c.node("c"));
            let product = build::mul(&mut c.b, &x, &y)?;
            one(build::add(&mut c.b, &product, &z)?)
        },
    },
    Entry {
        ops: &["aten.fmod.Scalar"],
        text: "`rem`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            one(build::rem(&mut c.b, &x, &y)?)
        },
    },
    Entry {
        ops: &["aten.remainder.Scalar", "aten.remainder.Tensor", "aten.remainder.Scalar_Tensor"],
        text: "`remainder`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            one(build::remainder(&mut c.b, &x, &y)?)
        },
    },
    Entry {
        ops: &["aten.where.self"],
        text: "`select`; the condition of complex numbers by `unsqueeze`",
        build: |c| {
            let (x, complex) = (c.tensor("self"), c.tensor("self").complex);
            let mut condition = c.node("condition");
            if complex {
                let rank = c.rank(real(condition));
                condition = build::unsqueeze(&mut c.b, &condition, rank)?;
                let y = c.node("other");
                let id = build::select(&mut c.b, &condition, &x.id, &y)?;
                return Ok(vec![Value { id, complex }]);
            }
            let (x, y) = c.pair("self", "other")?;
            one(build::select(&mut c.b, &condition, &x, &y)?)
        },
    },
    Entry {
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
            let op = CompareOp::from_name(name(c)).unwrap();
            let (x, y) = c.pair("self", "other")?;
            one(build::compare(&mut c.b, op, &x, &y)?)
        },
    },
    Entry {
        ops: &["aten.logical_not.default"],
        text: "`cast` to bool, `not`",
        build: |c| {
            let x = truth(c, "self")?;
            one(build::not(&mut c.b, &x)?)
        },
    },
    Entry {
        ops: &["aten.logical_and.default"],
        text: "`cast` to bool, `and`",
        build: |c| {
            let (x, y) = (truth(c, "self")?, truth(c, "other")?);
            one(build::and(&mut c.b, &x, &y)?)
        },
    },
    Entry {
        ops: &["aten.bitwise_and.Tensor", "aten.bitwise_or.Tensor"],
        text: "`and` or `or`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            let op = if name(c) == "bitwise_and" { BinaryOp::And } else { BinaryOp::Or };
            one(build::binary(&mut c.b, op, &x, &y)?)
        },
    },
    Entry {
        ops: &["aten.bitwise_not.default"],
        text: "`not`",
        build: |c| {
            let x = c.node("self");
            one(build::not(&mut c.b, &x)?)
        },
    },
    Entry {
        ops: &["aten.neg.default", "aten.abs.default", "aten.floor.default", "aten.ceil.default", "aten.round.default"],
        text: "the primitive of that name",
        build: |c| {
            let op = UnaryOp::from_name(name(c)).unwrap();
            let x = c.node("self");
            one(c.b.emit(Op::Unary(op), &[x])?)
        },
    },
    Entry {
        ops: &[
            "aten.sin.default",
            "aten.cos.default",
            "aten.acos.default",
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
            let op = UnaryOp::from_name(name(c)).unwrap();
            let x = c.float_node("self")?;
            one(c.b.emit(Op::Unary(op), &[x])?)
        },
    },
    Entry {
        ops: &["aten.sign.default"],
        text: "`sign`, of NaN 0 by `masked_fill`",
        build: |c| {
            let x = c.tensor("self");
            let sign = build::sign(&mut c.b, &x.id)?;
            if !c.ty(x).dtype.is_float() {
                return one(sign);
            }
            let nan = build::is_nan(&mut c.b, &x.id)?;
            one(build::masked_fill(&mut c.b, &sign, &nan, 0.0)?)
        },
    },
    Entry {
        ops: &["aten.reciprocal.default"],
        text: "`recip`, of integers after `cast`",
        build: |c| {
            let x = c.float_node("self")?;
            one(build::recip(&mut c.b, &x)?)
        },
    },
    Entry {
        ops: &["aten.erfinv.default"],
        text: "`erf_inv`",
        build: |c| {
            let x = c.float_node("self")?;
            one(build::erf_inv(&mut c.b, &x)?)
        },
    },
    Entry {
        ops: &["aten.sigmoid.default"],
        text: "`sigmoid`",
        build: |c| {
            let x = c.float_node("self")?;
            one(build::sigmoid(&mut c.b, &x)?)
        },
    },
    Entry {
        ops: &["aten.relu.default"],
        text: "`relu`",
        build: |c| {
            let x = c.node("self");
            one(build::relu(&mut c.b, &x)?)
        },
    },
    Entry {
        ops: &["aten.leaky_relu.default"],
        text: "`leaky_relu`",
        build: |c| {
            let x = c.node("self");
            one(build::leaky_relu(&mut c.b, &x, c.call.float("negative_slope"))?)
        },
    },
    Entry {
        ops: &["aten.elu.default"],
        text: "`elu_scaled`",
        build: |c| {
            let x = c.node("self");
            one(build::elu_scaled(
                &mut c.b,
                &x,
                c.call.float("alpha"),
                c.call.float("scale"),
                c.call.float("input_scale"),
            )?)
        },
    },
    Entry {
        ops: &["aten.gelu.default"],
        text: "`gelu` or `gelu_tanh`",
        build: |c| {
            let x = c.node("self");
            let tanh = c.call.word("approximate") == Some("tanh");
            one(if tanh { build::gelu_tanh(&mut c.b, &x)? } else { build::gelu(&mut c.b, &x)? })
        },
    },
    Entry {
        ops: &["aten.glu.default"],
        text: "`glu`",
        build: |c| {
            let x = c.tensor("self");
            let axis = c.axis(x, c.call.int("dim"));
            one(build::glu(&mut c.b, &x.id, axis)?)
        },
    },
    Entry {
        ops: &["aten.hardtanh.default"],
        text: "`clamp`",
        build: |c| {
            let x = c.node("self");
            one(build::clamp(&mut c.b, &x, Some(c.call.float("min_val")), Some(c.call.float("max_val")))?)
        },
    },
    Entry {
        ops: &[
            "aten.clamp.default",
            "aten.clamp.Tensor",
            "aten.clamp_min.default",
            "aten.clamp_min.Tensor",
            "aten.clamp_max.default",
        ],
        text: "`maximum`, then `minimum`",
        build: |c| {
            let given = |bound: &&str| c.optional(bound).is_some() || c.call.attribute(bound).is_some();
            let bounds: Vec<&str> = ["min", "max"].into_iter().filter(|bound| given(bound)).collect();
            let names: Vec<&str> = ["self"].into_iter().chain(bounds.iter().copied()).collect();
            let dtype = c.promoted(&names);
            let mut x = c.cast_to("self", dtype)?;
            for bound in bounds {
                let op = if bound == "min" { BinaryOp::Max } else { BinaryOp::Min };
                let limit = c.cast_to(bound, dtype)?;
                x = build::binary(&mut c.b, op, &x, &limit)?;
            }
            one(x)
        },
    },
    Entry {
        ops: &["aten.minimum.default", "aten.maximum.default"],
        text: "`minimum` or `maximum`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            let op = if name(c) == "minimum" { BinaryOp::Min } else { BinaryOp::Max };
            one(build::binary(&mut c.b, op, &x, &y)?)
        },
    },
    Entry {
        ops: &["aten.pow.Tensor_Scalar"],
        text: "`pow_scalar`",
        build: |c| {
            let dtype = c.promoted(&["self", "exponent"]);
            let x = c.cast_to("self", dtype)?;
            one(build::pow_scalar(&mut c.b, &x, c.call.float("exponent"))?)
        },
    },
    Entry {
        ops: &["aten.pow.Scalar", "aten.pow.Tensor_Tensor"],
        text: "`pow`",
        build: |c| {
            let (x, y) = c.pair("self", "exponent")?;
            one(build::pow(&mut c.b, &x, &y)?)
        },
    },
    Entry {
        ops: &["aten.gcd.default"],
        text: "`gcd`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            one(build::gcd(&mut c.b, &x, &y)?)
        },
    },
    Entry {
        ops: &["aten.lcm.default"],
        text: "`lcm`",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            one(build::lcm(&mut c.b, &x, &y)?)
        },
    },
];

/// An argument as a bool.
fn truth(c: &mut Context, name: &str) -> Result<NodeId, Error> {
    c.cast_to(name, DType::Bool)
}
