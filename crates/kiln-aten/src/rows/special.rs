//! Functions of numbers that captured models seldom have.

use crate::Error;
use crate::call::{Context, one};
use crate::promote::as_float;
use crate::rows::Row;
use kiln_ir::build::{self, Emit};
use kiln_ir::{BinaryOp, CompareOp, DType, NodeId, Op, Scalar, UnaryOp};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.signbit.default"],
        text: "`bitcast` to an integer and `compare`, of integers `compare`",
        build: |c| {
            let x = c.node("self")?;
            one(sign_bit(c, x)?)
        },
    },
    Row {
        ops: &["aten.copysign.Tensor", "aten.copysign.Scalar"],
        text: "`abs`, `neg` and `select` by the sign's bit, which `bitcast` shows",
        build: |c| {
            let dtype = as_float(c.promoted(&["self", "other"])?);
            let (x, y) = (c.cast_to("self", dtype)?, c.cast_to("other", dtype)?);
            let size = build::abs(&mut c.b, &x)?;
            let negative = build::neg(&mut c.b, &size)?;
            let sign = sign_bit(c, y)?;
            one(build::select(&mut c.b, &sign, &negative, &size)?)
        },
    },
    Row {
        ops: &[
            "aten.bitwise_left_shift.Tensor",
            "aten.bitwise_left_shift.Tensor_Scalar",
            "aten.bitwise_right_shift.Tensor",
            "aten.bitwise_right_shift.Tensor_Scalar",
        ],
        text: "`shl` or `shr` of signed integers",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            let dtype = c.b.ty(&x).dtype;
            if !matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64) {
                return c.unsupported(format!("of {dtype}"));
            }
            let op = if c.name() == "bitwise_left_shift" { BinaryOp::Shl } else { BinaryOp::Shr };
            one(build::binary(&mut c.b, op, &x, &y)?)
        },
    },
    Row {
        ops: &["aten.hypot.default"],
        text: "the larger of both times `sqrt` of 1 and the square of their quotient",
        build: |c| {
            let (x, y) = c.pair("self", "other")?;
            let dtype = c.b.ty(&x).dtype;
            if !dtype.is_float() {
                return c.unsupported("of integers");
            }
            let (x, y) = (build::abs(&mut c.b, &x)?, build::abs(&mut c.b, &y)?);
            let large = build::binary(&mut c.b, BinaryOp::Max, &x, &y)?;
            let small = build::binary(&mut c.b, BinaryOp::Min, &x, &y)?;
            let quotient = build::div(&mut c.b, &small, &large)?;
            let square = build::mul(&mut c.b, &quotient, &quotient)?;
            let sum = build::add_scalar(&mut c.b, &square, 1.0)?;
            let root = build::sqrt(&mut c.b, &sum)?;
            let length = build::mul(&mut c.b, &large, &root)?;
            // Of two zeros there is no quotient, and beside an infinity even NaN does not count.
            let zero = build::compare_scalar(&mut c.b, CompareOp::Eq, &large, 0.0)?;
            let length = build::select(&mut c.b, &zero, &large, &length)?;
            let infinite_x = build::compare_scalar(&mut c.b, CompareOp::Eq, &x, f64::INFINITY)?;
            let infinite_y = build::compare_scalar(&mut c.b, CompareOp::Eq, &y, f64::INFINITY)?;
            let infinite = build::binary(&mut c.b, BinaryOp::Or, &infinite_x, &infinite_y)?;
            let infinity = build::full(&mut c.b, Scalar::float(dtype, f64::INFINITY), &[])?;
            one(build::select(&mut c.b, &infinite, &infinity, &length)?)
        },
    },
    Row {
        ops: &["aten.ldexp.Tensor"],
        text: "`mul` by `exp2`",
        build: |c| {
            let power = as_float(c.promoted(&["other"])?);
            let exponent = c.cast_to("other", power)?;
            let factor = c.b.emit(Op::Unary(UnaryOp::Exp2), &[exponent])?;
            let dtype = as_float(c.promoted(&["self", "other"])?);
            let x = c.cast_to("self", dtype)?;
            let factor = build::cast(&mut c.b, &factor, dtype)?;
            one(build::mul(&mut c.b, &x, &factor)?)
        },
    },
    Row {
        ops: &["aten.round.decimals"],
        text: "`round` of the number times or by a power of ten",
        build: |c| {
            let (x, decimals) = (c.node("self")?, c.int("decimals")?);
            let dtype = c.b.ty(&x).dtype;
            if !matches!(dtype, DType::F32 | DType::F64) || decimals.abs() > 9 {
                return c.unsupported(format!("of {dtype} to {decimals} decimals"));
            }
            let factor = 10f64.powi(decimals.unsigned_abs() as i32);
            let scaled = match decimals > 0 {
                true => build::mul_scalar(&mut c.b, &x, factor)?,
                false => build::div_scalar(&mut c.b, &x, factor)?,
            };
            let whole = build::round(&mut c.b, &scaled)?;
            one(match decimals > 0 {
                true => build::div_scalar(&mut c.b, &whole, factor)?,
                false => build::mul_scalar(&mut c.b, &whole, factor)?,
            })
        },
    },
    Row {
        ops: &["aten.erfc.default"],
        text: "`erfc`",
        build: |c| {
            let x = c.float_node("self")?;
            one(build::erfc(&mut c.b, &x)?)
        },
    },
    Row {
        ops: &["aten.digamma.default"],
        text: "`digamma`, in f32 at least; of negative whole numbers NaN, of zero an infinity",
        build: |c| {
            let x = c.float_node("self")?;
            let own = c.b.ty(&x).dtype;
            let wide = if own == DType::F64 { DType::F64 } else { DType::F32 };
            let x = build::cast(&mut c.b, &x, wide)?;
            let y = build::digamma(&mut c.b, &x)?;
            let floor = build::floor(&mut c.b, &x)?;
            let whole = build::compare(&mut c.b, CompareOp::Eq, &floor, &x)?;
            let negative = build::compare_scalar(&mut c.b, CompareOp::Lt, &x, 0.0)?;
            let pole = build::binary(&mut c.b, BinaryOp::And, &whole, &negative)?;
            let y = build::masked_fill(&mut c.b, &y, &pole, f64::NAN)?;
            let zero = build::compare_scalar(&mut c.b, CompareOp::Eq, &x, 0.0)?;
            let inverse = build::recip(&mut c.b, &x)?;
            let infinity = build::neg(&mut c.b, &inverse)?;
            let y = build::select(&mut c.b, &zero, &infinity, &y)?;
            one(build::cast(&mut c.b, &y, own)?)
        },
    },
];

/// Whether the sign's bit is set, also of −0 and NaN.
fn sign_bit(c: &mut Context, x: NodeId) -> Result<NodeId, Error> {
    let bits = match c.b.ty(&x).dtype {
        DType::F64 => DType::I64,
        DType::F32 => DType::I32,
        DType::F16 | DType::Bf16 => DType::I16,
        dtype if dtype.is_float() => return c.unsupported(format!("of {dtype}")),
        _ => return Ok(build::compare_scalar(&mut c.b, CompareOp::Lt, &x, 0.0)?),
    };
    let bits = c.b.emit(Op::Bitcast(bits), &[x])?;
    Ok(build::compare_scalar(&mut c.b, CompareOp::Lt, &bits, 0.0)?)
}
