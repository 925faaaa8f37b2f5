//! Products that a body computes more than once. `x·x − max(x·x)` must be 0 where x·x is the largest, so a product that is
//! rounded in one place is not fused with a sum in another.

use crate::vir::FastHasher;
use kiln_kernels::kernel::{InstKind, LoopBody};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use super::visit_operands;

/// For each value, whether it is a product that another instruction computes as well.
pub(super) fn repeated_products(body: &LoopBody, count: usize) -> Vec<bool> {
    // A value's hash says how it is computed; a reduction's result and a row temporary are known by their numbers.
    let mut hashes: Vec<u64> = (0..count as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    let mut products: HashMap<u64, u32> = HashMap::new();
    for inst in body.stages.iter().flat_map(|stage| &stage.insts) {
        let at = inst.id.0 as usize;
        if at >= count || matches!(inst.kind, InstKind::Store { .. } | InstKind::StoreTemp(..)) {
            continue;
        }
        let mut h = FastHasher::default();
        inst.dtype.hash(&mut h);
        std::mem::discriminant(&inst.kind).hash(&mut h);
        match &inst.kind {
            InstKind::Const(c) => c.hash(&mut h),
            InstKind::Load { place, .. } => (place.buffer, &place.offset).hash(&mut h),
            InstKind::Unary(op, _) => op.hash(&mut h),
            InstKind::Binary(op, ..) => op.hash(&mut h),
            InstKind::Compare(op, ..) => op.hash(&mut h),
            InstKind::Round(_, to) => to.hash(&mut h),
            InstKind::Index(e) => e.hash(&mut h),
            InstKind::LoadTemp(n) => n.hash(&mut h),
            InstKind::Cast(_) | InstKind::Bitcast(_) | InstKind::Select(..) => {}
            _ => at.hash(&mut h),
        }
        visit_operands(&inst.kind, &mut |v| hashes.get(v.0 as usize).hash(&mut h));
        hashes[at] = h.finish();
        if matches!(inst.kind, InstKind::Binary(kiln_ir::BinaryOp::Mul, ..)) {
            *products.entry(hashes[at]).or_default() += 1;
        }
    }
    if products.values().all(|&n| n < 2) {
        return vec![false; count];
    }
    hashes.iter().map(|h| products.get(h).is_some_and(|&n| n > 1)).collect()
}
