//! Functions of numbers that captured models seldom have.

use crate::Error;
use crate::call::{Context, one};
use crate::promote::as_float;
use crate::rows::Row;
use kiln_ir::build::{self, Emit};
use kiln_ir::{BinaryOp, DType, NodeId, Op, Scalar, UnaryOp};

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.signbit.default"],
        text: "`bitcast` to an integer and `compare`, of integers `compare`",
        build: |c| {
            let x = c.node("self")?;
            sign_bits(c, x)?;
            one(build::sign_bit(&mut c.b, &x)?)
        },
    },
    Row {
        ops: &["aten.copysign.Tensor", "aten.copysign.Scalar"],
        text: "`abs`, `neg` and `select` by the sign's bit, which `bitcast` shows",
        build: |c| {
            let dtype = as_float(c.promoted(&["self", "other"])?);
            let (x, y) = (c.cast_to("self", dtype)?, c.cast_to("other", dtype)?);
            sign_bits(c, y)?;
            one(build::copysign(&mut c.b, &x, &y)?)
        },
    },
    Row {
        ops: &[
            "aten.bitwise_left_shift.Tensor",
            "aten.bitwise_left_shift.Tensor_Scalar",
            "aten.bitwise_right_shift.Tensor",
            "aten.bitwise_right_shift.Tensor_Scalar",
        ],
        text: "`shl` or `shr` of signed integers; bytes as i16 by at most 8 bits",
        build: |c| {
            let (mut x, mut y) = c.pair("self", "other")?;
            let dtype = c.b.ty(&x).dtype;
            if dtype == DType::U8 {
                // By more bits nothing is left, as by 8.
                let most = build::full(&mut c.b, Scalar::int(DType::U8, 8), &[])?;
                y = build::binary(&mut c.b, BinaryOp::Min, &y, &most)?;
                (x, y) = (build::cast(&mut c.b, &x, DType::I16)?, build::cast(&mut c.b, &y, DType::I16)?);
                let op = if c.name() == "bitwise_left_shift" { BinaryOp::Shl } else { BinaryOp::Shr };
                let shifted = build::binary(&mut c.b, op, &x, &y)?;
                return one(build::cast(&mut c.b, &shifted, DType::U8)?);
            }
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
            one(build::hypot(&mut c.b, &x, &y)?)
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
            one(build::round_decimals(&mut c.b, &x, decimals as i32)?)
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
            one(build::digamma_with_poles(&mut c.b, &x)?)
        },
    },
];

/// Refuses floats whose bits no integer type shows.
fn sign_bits(c: &mut Context, x: NodeId) -> Result<(), Error> {
    match c.b.ty(&x).dtype {
        DType::F64 | DType::F32 | DType::F16 | DType::Bf16 => Ok(()),
        dtype if dtype.is_float() => c.unsupported(format!("of {dtype}")),
        _ => Ok(()),
    }
}
