//! Pointwise ops on values: compute types inside, and where short types round or wrap.
//!
//! Short floats are computed in F32, short integers in I32. Integers wrap after every op that can leave their range.
//! Floats round where the user casts and, under [`Numerics::Eager`], after every op.

use crate::dag::{Dag, Def};
use crate::kernel::{InstKind, ValueId};
use crate::schedule::Numerics;
use kiln_ir::{BinaryOp, CompareOp, DType, Op, Scalar};

impl Dag {
    /// The value of a pointwise op of result type `dtype` on values that hold elements of type `operand`. `None` for an op
    /// that cannot be computed on values (a bitcast of a short float reads memory under another type instead).
    pub fn pointwise(
        &mut self,
        op: &Op,
        dtype: DType,
        operand: DType,
        args: &[ValueId],
        numerics: Numerics,
    ) -> Option<ValueId> {
        let value = match (op, args) {
            (Op::Unary(op), [x]) => {
                let value = self.unary(*op, *x);
                return Some(self.settle(value, dtype, (op.row().fits)(dtype), numerics));
            }
            (Op::Binary(op), [x, y]) => {
                let y = if *op == BinaryOp::Shr && dtype == DType::U8 { self.clamp_shift(*y) } else { *y };
                let value = self.binary(*op, *x, y);
                return Some(self.settle(value, dtype, (op.row().fits)(dtype), numerics));
            }
            (Op::Compare(op), [x, y]) => self.compare(*op, *x, *y),
            (Op::Select, [c, x, y]) => self.select(*c, *x, *y),
            (Op::Cast(to), [x]) => self.convert(*x, operand, *to),
            (Op::Bitcast(to), [x]) => return self.reinterpret(*x, operand, *to),
            _ => return None,
        };
        Some(value)
    }

    /// Rounds or wraps the result of an op of type `dtype`, unless it is `in_range` by the op's nature.
    pub fn settle(&mut self, value: ValueId, dtype: DType, in_range: bool, numerics: Numerics) -> ValueId {
        if in_range || dtype == dtype.compute_type() || (dtype.is_float() && numerics == Numerics::Fast) {
            return value;
        }
        self.round(value, dtype)
    }

    /// [`Op::Cast`]. A cast to a short float rounds under either numerics: the user requested it.
    pub fn convert(&mut self, x: ValueId, from: DType, to: DType) -> ValueId {
        if from == to {
            return x;
        }
        let wide = self.cast(x, to.compute_type());
        let fits = match (from, to) {
            (DType::Bool, _) | (_, DType::Bool) => true,
            (DType::I4, DType::I8 | DType::I16) | (DType::I8 | DType::U8, DType::I16) => true,
            // Up to 8 bits: every short float but those of 8 bits holds them.
            (DType::I4 | DType::I8 | DType::U8, DType::F16 | DType::Bf16) => true,
            (DType::F8E4M3 | DType::F8E5M2, DType::F16) => true,
            (DType::F8E4M3 | DType::F8E5M2, DType::Bf16) => true,
            _ => to == to.compute_type(),
        };
        if fits { wide } else { self.round(wide, to) }
    }

    fn reinterpret(&mut self, x: ValueId, from: DType, to: DType) -> Option<ValueId> {
        if from == to {
            return Some(x);
        }
        if from == from.compute_type() && to == to.compute_type() && from.size_in_bits() >= 32 {
            return Some(self.inst(InstKind::Bitcast(x), to));
        }
        if from.is_int() && to.is_int() {
            return Some(self.round(x, to));
        }
        if from == DType::Bool && to.is_int() {
            return Some(self.cast(x, DType::I32));
        }
        None
    }

    /// A shift of unsigned bytes: anything outside 0..8 counts as 7.
    fn clamp_shift(&mut self, y: ValueId) -> ValueId {
        let (zero, seven) = (self.constant(Scalar::int(DType::I32, 0)), self.constant(Scalar::int(DType::I32, 7)));
        let clamped = self.binary(BinaryOp::Min, y, seven);
        let negative = self.compare(CompareOp::Lt, y, zero);
        self.select(negative, seven, clamped)
    }

    /// The value to store into a buffer of type `dtype`: a rounding that the store does anyway is left out.
    pub fn unrounded(&self, value: ValueId, dtype: DType) -> ValueId {
        match self.value(value).def {
            Def::Inst(InstKind::Round(x, to)) if to == dtype => x,
            _ => value,
        }
    }
}

/// True if a bitcast between these types can be computed on values.
pub(crate) fn bitcast_on_values(from: DType, to: DType) -> bool {
    from == to
        || (from == from.compute_type() && to == to.compute_type() && from.size_in_bits() >= 32)
        || (to.is_int() && (from.is_int() || from == DType::Bool))
}
