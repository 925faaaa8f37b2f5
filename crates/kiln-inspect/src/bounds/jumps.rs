//! Where ops jump: the points at which a small error of an operand becomes another answer altogether, such as the integers for
//! `floor`, zero for `log` and the poles of `lgamma`.
//!
//! Random perturbations find such a point only by luck: they would have to hit the one float that is it. So the points within reach
//! of an operand are looked for, and tried.

use super::rounding::largest;
use kiln_ir::table::Operand;
use kiln_ir::{DType, Op, ReduceKind, Scalar, ScatterKind};

/// An element of an operand, with the elements and errors that decide how the op treats it.
#[derive(Debug, Clone, Copy)]
pub(super) struct OperandElement {
    /// The number of the operand.
    pub position: usize,
    pub value: f64,
    /// How far off it may be.
    pub reach: f64,
    /// The other operand's element, of a pointwise op.
    pub other: f64,
    /// How far off that one may be.
    pub other_reach: f64,
    /// Whether some element of the operands is infinite or NaN.
    pub beside_infinity: bool,
}

/// Whether an op has points at which it jumps.
pub(super) fn has_jumps(op: &Op) -> bool {
    match op {
        Op::Unary(op) => op.row().jump.is_some(),
        Op::Binary(op) => op.row().jumps.is_some(),
        Op::Compare(_) | Op::Bitcast(_) | Op::ArgReduce { .. } | Op::SortIndices { .. } | Op::Dot { .. } => true,
        Op::Cast(_) => true,
        Op::Reduce { kind, .. } | Op::Scan { kind, .. } | Op::ReduceWindow { kind, .. } => *kind == ReduceKind::Prod,
        Op::Scatter { kind, .. } => *kind == ScatterKind::Mul,
        _ => false,
    }
}

/// A point within reach of an operand's element at which the op jumps.
pub(super) fn point(op: &Op, dtype: DType, at: OperandElement) -> Option<f64> {
    let OperandElement { position, value, reach, other, .. } = at;
    let within = |point: f64| (point.is_finite() && (point - value).abs() <= reach).then_some(point);
    match op {
        Op::Unary(op) => within((op.row().jump?)(value, largest(dtype))),
        Op::Binary(op) => {
            let operand = Operand { position, value, other, other_reach: at.other_reach };
            (op.row().jumps?)(operand).into_iter().find_map(within)
        }
        // Both may move.
        Op::Compare(_) => ((value - other).abs() <= reach + at.other_reach).then_some(other),
        Op::Cast(DType::Bool) => within(0.0),
        Op::Cast(to) if to.is_float() => {
            let rounded = |value: f64| Scalar::float(*to, value).as_f64();
            (rounded(value - reach) != rounded(value + reach)).then_some(value)
        }
        Op::Cast(_) => within(value.round()),
        // Every bit counts, every other order.
        Op::Bitcast(_) | Op::ArgReduce { .. } | Op::SortIndices { .. } => Some(value),
        Op::Dot { .. } | Op::Reduce { .. } | Op::Scan { .. } | Op::ReduceWindow { .. } | Op::Scatter { .. } => {
            within(0.0).filter(|_| at.beside_infinity)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_ir::{BinaryOp, CompareOp, UnaryOp};

    fn of(op: Op, value: f64, reach: f64, other: f64) -> Option<f64> {
        let place = OperandElement { position: 0, value, reach, other, other_reach: 0.0, beside_infinity: false };
        point(&op, DType::F32, place)
    }

    #[test]
    fn jumps_are_found_within_reach_alone() {
        let unary = |op, value, reach| of(Op::Unary(op), value, reach, f64::NAN);
        assert_eq!(unary(UnaryOp::Floor, 2.99, 0.02), Some(3.0));
        assert_eq!(unary(UnaryOp::Floor, 2.97, 0.02), None);
        assert_eq!(unary(UnaryOp::Round, 2.49, 0.02), Some(2.5));
        assert_eq!(unary(UnaryOp::Log1p, -1.0, 1e-7), Some(-1.0));
        assert_eq!(unary(UnaryOp::Log2, 1e-45, 1e-45), Some(0.0));
        assert_eq!(unary(UnaryOp::Lgamma, -7.001, 0.01), Some(-7.0));
        assert_eq!(unary(UnaryOp::Lgamma, 7.001, 0.01), None);
        assert_eq!(unary(UnaryOp::Exp, 88.7, 0.1), Some(f64::from(f32::MAX).ln()));
        assert_eq!(of(Op::Compare(CompareOp::Ne), 1.0, 1e-7, 1.0 + 5e-8), Some(1.0 + 5e-8));
        assert_eq!(of(Op::Compare(CompareOp::Ne), 1.0, 1e-7, 1.1), None);
        assert_eq!(of(Op::Binary(BinaryOp::Mul), 1e-9, 1e-8, f64::INFINITY), Some(0.0));
        assert_eq!(of(Op::Binary(BinaryOp::Mul), 1e-9, 1e-8, 1e30), None);
        assert_eq!(of(Op::Binary(BinaryOp::Rem), 5.999, 0.01, 2.0), Some(6.0));
        assert_eq!(of(Op::Cast(DType::I32), -3.0001, 0.01, f64::NAN), Some(-3.0));
        // Between 1 and 1.125, the next number of eight bits.
        assert_eq!(of(Op::Cast(DType::F8E4M3), 1.06, 0.01, f64::NAN), Some(1.06));
        assert_eq!(of(Op::Cast(DType::F8E4M3), 1.02, 0.01, f64::NAN), None);
    }
}
