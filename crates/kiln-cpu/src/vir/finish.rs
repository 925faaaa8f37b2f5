//! The last step of building: removal of unused instructions, and what the code generators ask about the whole.

use super::*;

/// Eliminates dead instructions and finds out whether 64-bit vectors, or packed ones, occur.
pub(super) fn finish(mut insts: Vec<Inst>, types: Vec<Ty>, is_variable: &dyn Fn(V) -> bool) -> Function {
    let mut used = vec![false; types.len()];
    let mut keep = vec![true; insts.len()];
    for (at, inst) in insts.iter().enumerate().rev() {
        let needed = match inst.op {
            Op::Loop { .. }
            | Op::If
            | Op::End
            | Op::Store(_)
            | Op::StoreInt { .. }
            | Op::CheckIndex
            | Op::Transpose(_) => true,
            // Variables may be read earlier in the text than they are assigned, in the next iteration of a loop.
            Op::Copy => true,
            _ => used[inst.dst.index()] || is_variable(inst.dst),
        };
        keep[at] = needed;
        if needed {
            for v in inst.args.into_iter().filter(|v| v.is_some()) {
                used[v.index()] = true;
            }
        }
    }
    let mut at = 0;
    insts.retain(|_| {
        at += 1;
        keep[at - 1]
    });
    let wide = insts.iter().any(|inst| {
        let result = inst.dst.is_some() && types[inst.dst.index()].lane_bytes() == 8;
        result || inst.ty.lane_bytes() == 8 || matches!(inst.op, Op::Convert(from) if from.lane_bytes() == 8)
    });
    let short = insts.iter().map(|inst| inst.ty.lane_bytes()).find(|bytes| matches!(bytes, 1 | 2));
    Function { insts, types, wide, packed: short.unwrap_or(0) as u8, local_bytes: 0 }
}
