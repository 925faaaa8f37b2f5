//! A short last axis whose results lie between each other's: its points become parts of one body, which are stored together.

use super::interleave::interleaved;
use super::ops::weight;
use kiln_ir::{Dim, Symbol};
use kiln_kernels::kernel::{BufferArg, Inst, InstKind, LoopBody, Stage, ValueId, map_dims, map_operands, visit_dims};

/// The longest axis that is unrolled.
const LONGEST: i64 = 4;
/// The weight of all parts together, beyond which the body is left as it is.
const HEAVIEST: u32 = 64;

/// Unrolls the last axis of a body without a row where that makes every store one of a group along the axis before, and every load one that is
/// contiguous along it or the same for all of its points: an image that grows by a whole factor, and the gradient of pooling.
pub(super) fn unroll_last(body: &mut LoopBody, buffers: &[BufferArg]) {
    let ([.., along, last], [stage]) = (body.grid.as_slice(), body.stages.as_slice()) else { return };
    let Some(times) = last.size.as_const().filter(|times| (2..=LONGEST).contains(times)) else { return };
    let heavy = stage.insts.iter().map(|inst| weight(&inst.kind)).sum::<u32>() * times as u32 > HEAVIEST;
    // Lanes of the unrolled body are as many as the axis before is long.
    let short = along.size.as_const().is_some_and(|n| n < 8);
    if heavy || short || !body.row.is_empty() || !loads_repeat(stage, along.var, last.var) {
        return;
    }
    let Some(unrolled) = unrolled(stage, last.var, times) else { return };
    let groups = interleaved(buffers, &unrolled.insts, along.var);
    let together = |inst: &Inst| match &inst.kind {
        InstKind::Store { place, .. } => groups.iter().any(|one| one.is(place, true)),
        _ => true,
    };
    if unrolled.insts.iter().all(together) {
        body.stages = vec![unrolled];
        body.grid.pop();
    }
}

/// Whether loads are the same at all points of the last axis, of which some are contiguous along the one before it.
fn loads_repeat(stage: &Stage, along: Symbol, last: Symbol) -> bool {
    let (mut fits, mut any) = (true, false);
    for inst in &stage.insts {
        let InstKind::Load { place, guard } = &inst.kind else { continue };
        let step = place.offset.linear_in(along).map(|(step, _)| step);
        fits &= guard.is_none() && place.indirect.is_empty() && !place.offset.contains(last);
        fits &= step.as_ref().is_some_and(|step| step.is_one() || step.is_zero());
        any |= step.is_some_and(|step| step.is_one());
    }
    fits && any
}

/// The stage at each point of an axis, one after the other, with all stores at the end.
fn unrolled(stage: &Stage, last: Symbol, times: i64) -> Option<Stage> {
    let is_store = |inst: &Inst| matches!(inst.kind, InstKind::Store { .. });
    let count = stage.insts.iter().map(|inst| inst.id.0).filter(|&id| id != u32::MAX).max()?.checked_add(1)?;
    let (mut values, mut stores) = (Vec::new(), Vec::new());
    for point in 0..times {
        let shift = count.checked_mul(point as u32)?;
        for inst in &stage.insts {
            let mut inst = inst.clone();
            let at = |e: &Dim| e.substitute(&|s| (s == last).then(|| Dim::from(point)));
            let mut changes = false;
            visit_dims(&inst.kind, &mut |e| changes |= e.contains(last));
            if changes {
                map_dims(&mut inst.kind, &at);
            }
            if inst.id.0 != u32::MAX {
                inst.id.0 = inst.id.0.checked_add(shift)?;
            }
            map_operands(&mut inst.kind, &|v| ValueId(v.0 + shift));
            if is_store(&inst) { stores.push(inst) } else { values.push(inst) }
        }
    }
    values.append(&mut stores);
    Some(Stage { domain: stage.domain, insts: values, reductions: stage.reductions.clone() })
}
