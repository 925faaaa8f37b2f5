//! What happens to the values of a body: which are only moved, and which change along an axis.

use super::{DType, Symbol, ValueId};
use kiln_kernels::kernel::{Domain, InstKind, Kernel, LoopBody, visit_dims, visit_operands};

/// Values that are loaded from short floats and only stored to such, so that nothing has to be widened and rounded again: their bits
/// are moved. Where a guard leaves a load out its value is zero, whose bits are zero. One that is loaded once a row and stored along it is
/// none of them: pairs of it would have to be made.
pub(super) fn moved_values(kernel: &Kernel, body: &LoopBody, count: usize) -> Vec<bool> {
    let dtype = |buffer: usize| kernel.buffers.get(buffer).map(|buffer| buffer.dtype);
    let mut from: Vec<Option<(DType, Domain)>> = vec![None; count];
    let insts = || body.stages.iter().flat_map(|stage| stage.insts.iter().map(|inst| (stage.domain, inst)));
    for (domain, inst) in insts() {
        if let InstKind::Load { place, .. } = &inst.kind
            && let Some(short @ (DType::Bf16 | DType::F16)) = dtype(place.buffer)
            && let Some(slot) = from.get_mut(inst.id.0 as usize)
        {
            *slot = Some((short, domain));
        }
    }
    for (domain, inst) in insts() {
        // The stored value alone: an operand of any other kind is computed with.
        let stored = match &inst.kind {
            InstKind::Store { place, value, .. }
                if from.get(value.0 as usize).is_some_and(|f| *f == dtype(place.buffer).map(|to| (to, domain))) =>
            {
                Some(*value)
            }
            _ => None,
        };
        visit_operands(&inst.kind, &mut |v: ValueId| {
            if Some(v) != stored
                && let Some(slot) = from.get_mut(v.0 as usize)
            {
                *slot = None;
            }
        });
    }
    for reduction in body.stages.iter().flat_map(|stage| &stage.reductions) {
        if let Some(slot) = from.get_mut(reduction.value.0 as usize) {
            *slot = None;
        }
    }
    from.into_iter().map(|from| from.is_some()).collect()
}

/// Values that are not the same at all points of an axis; those of reductions and of row temporaries count as such.
pub(super) fn varying_values(body: &LoopBody, var: Symbol, count: usize) -> Vec<bool> {
    let mut varying = vec![true; count];
    for inst in body.stages.iter().flat_map(|stage| &stage.insts) {
        let mut varies = matches!(inst.kind, InstKind::LoadTemp(_) | InstKind::Accumulator(_));
        visit_dims(&inst.kind, &mut |e| varies |= e.contains(var));
        visit_operands(&inst.kind, &mut |v: ValueId| varies |= varying.get(v.0 as usize) != Some(&false));
        // Stores define nothing, whatever their number.
        if !matches!(inst.kind, InstKind::Store { .. } | InstKind::StoreTemp { .. })
            && let Some(slot) = varying.get_mut(inst.id.0 as usize)
        {
            *slot = varies;
        }
    }
    varying
}
