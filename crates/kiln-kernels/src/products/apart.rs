//! A product with several right operands whose results have nothing to do with each other becomes several products beside each other:
//! each is read by more threads, may have another format of its weights, and takes its own part of the GPU.
//!
//! ```text
//!  acc₀, acc₁ ─▶ rotated keys,  acc₂, acc₃ ─▶ values     becomes   (acc₀, acc₁ ─▶ keys)  beside  (acc₀, acc₁ ─▶ values)
//! ```

use super::Insts;
use crate::dag::visit_operands;
use crate::kernel::{Inst, InstKind, MatmulBody, ValueId};
use std::collections::BTreeSet;

/// The products that one is made of; itself where its results depend on each other.
pub(super) fn products(body: MatmulBody) -> Vec<MatmulBody> {
    let mut groups: Vec<Group> = Vec::new();
    for store in body.epilogue.iter().filter(|inst| matches!(inst.kind, InstKind::Store { .. })) {
        let mut group = Group::of(&body.epilogue, store);
        if group.accumulators.is_empty() {
            return vec![body];
        }
        let (same, others) = groups.into_iter().partition::<Vec<_>, _>(|other| other.meets(&group));
        groups = others;
        same.into_iter().for_each(|other| group.take(other));
        groups.push(group);
    }
    let used: usize = groups.iter().map(|group| group.accumulators.len()).sum();
    if groups.len() < 2 || used < body.rhs.len() {
        return vec![body];
    }
    groups.sort_by_key(|group| group.accumulators.first().copied());
    groups.iter().map(|group| group.product(&body)).collect()
}

/// Stores that need the same accumulators, or touch the same memory.
#[derive(Default)]
struct Group {
    accumulators: BTreeSet<usize>,
    /// What is needed for them, the stores included.
    values: BTreeSet<ValueId>,
    reads: BTreeSet<usize>,
    writes: BTreeSet<usize>,
}

impl Group {
    /// What a store needs.
    fn of(insts: &[Inst], store: &Inst) -> Group {
        let mut group = Group { values: BTreeSet::from([store.id]), ..Group::default() };
        for inst in insts.iter().rev() {
            if !group.values.contains(&inst.id) {
                continue;
            }
            visit_operands(&inst.kind, &mut |operand| {
                group.values.insert(operand);
            });
            match &inst.kind {
                InstKind::Accumulator(number) => {
                    group.accumulators.insert(*number);
                }
                InstKind::Store { place, .. } => {
                    group.writes.insert(place.buffer);
                }
                kind => group.reads.extend(kind.place().map(|place| place.buffer)),
            }
        }
        group
    }

    /// Whether one of them has to be with the other.
    fn meets(&self, other: &Group) -> bool {
        let touches =
            |one: &Group, two: &Group| !one.writes.is_disjoint(&two.writes) || !one.writes.is_disjoint(&two.reads);
        !self.accumulators.is_disjoint(&other.accumulators) || touches(self, other) || touches(other, self)
    }

    fn take(&mut self, other: Group) {
        self.accumulators.extend(other.accumulators);
        self.values.extend(other.values);
        self.reads.extend(other.reads);
        self.writes.extend(other.writes);
    }

    /// The product of these accumulators.
    fn product(&self, body: &MatmulBody) -> MatmulBody {
        let mut insts = Insts::default();
        let most = body.epilogue.iter().filter_map(|inst| inst.kind.place().map(|place| place.buffer)).max();
        let buffers: Vec<usize> = (0..=most.unwrap_or(0)).collect();
        for inst in body.epilogue.iter().filter(|inst| self.values.contains(&inst.id)) {
            let mut inst = inst.clone();
            if let InstKind::Accumulator(number) = &mut inst.kind {
                *number = self.accumulators.range(..*number).count();
            }
            insts.add(&inst, &buffers, &|_| None);
        }
        let rhs = self.accumulators.iter().map(|&number| body.rhs[number].clone()).collect();
        MatmulBody { rhs, epilogue: insts.list, ..body.clone() }
    }
}
