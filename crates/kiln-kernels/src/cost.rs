//! What things cost, in rough units of one vector addition; a load from the nearest cache is three.

use crate::kernel::InstKind;
use kiln_ir::{Dim, Op, Ranges};

/// A load that is neither guarded nor indirect.
pub(crate) const LOAD: u32 = 3;
/// Reading a row temporary; writing one costs the same.
pub(crate) const TEMP: u32 = 2;
/// Above this, recomputing a value costs more than keeping it.
pub(crate) const EXPENSIVE: u32 = 8;
/// What an operand of a product may cost that is computed as it is read.
pub(crate) const PROLOGUE: u32 = 5;
/// The most inlined nodes of one value.
pub(crate) const MAX_INLINE: u32 = 64;
/// A reduction of at most this many elements is computed inline.
pub(crate) const SHORT_ROW: i64 = 9;
/// The same for a sum of products under a window, where the target asks for it: 7×7.
pub(crate) const WINDOW: i64 = 49;
/// The most roots of one kernel.
pub(crate) const MAX_ROOTS: usize = 128;
/// Groups that read the same memory and do not fit together with which another reader of it is tried.
pub(crate) const MAX_APART: usize = 4;
/// A row longer than this leaves the nearest cache, so that keeping it costs more.
pub(crate) const LONG_ROW: i64 = 16 * 1024;

/// The cost of one instruction.
pub(crate) fn of_inst(kind: &InstKind) -> u32 {
    match kind {
        InstKind::Const(_) | InstKind::Accumulator(_) => 0,
        InstKind::Load { place, guard } if place.indirect.is_empty() => LOAD + u32::from(guard.is_some()),
        InstKind::Load { .. } | InstKind::LoadBlock { .. } => 2 * LOAD,
        InstKind::LoadTemp(_) | InstKind::StoreTemp(..) => TEMP,
        InstKind::Store { .. } => LOAD,
        InstKind::Unary(op, _) => op.row().cost,
        InstKind::Binary(op, ..) => op.row().cost,
        InstKind::Random { .. } => 20,
        _ => 1,
    }
}

/// The cost of one node when its value is computed inline.
pub(crate) fn of_op(op: &Op) -> u32 {
    match op {
        Op::Unary(op) => op.row().cost,
        Op::Binary(op) => op.row().cost,
        Op::RandomBits { .. } => 20,
        Op::Full { .. } | Op::Constant(_) => 0,
        Op::Gather { .. } => 2 * LOAD,
        Op::Concat { .. } | Op::Pad { .. } => 2,
        op if op.is_view() => 0,
        _ => 1,
    }
}

/// A size as a number: the constant, or a guess from what is known.
pub(crate) fn guess(size: &Dim, known: &Ranges) -> i64 {
    const UNKNOWN: i64 = 512;
    let typical = |symbol| {
        let (low, high) = known.get(symbol).unwrap_or((0, None));
        Some(high.map_or(UNKNOWN, |h| h.min(UNKNOWN)).max(low))
    };
    size.eval(&typical).unwrap_or(UNKNOWN)
}
