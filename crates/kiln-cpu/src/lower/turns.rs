//! Several vectors of one body in turns: where a value takes a long chain of instructions that wait for each other, those of other vectors
//! stand between them. A processor finds such work by itself, but looks only a few hundred instructions ahead, which is one or two vectors of a
//! body with several functions in a row.

use super::{Lowerer, ops};
use kiln_kernels::kernel::{Axis, InstKind, Stage, visit_operands};

/// Instructions that wait for each other from which on vectors take turns: one long function, or two short ones.
const LONG_CHAIN: u32 = 24;
/// The same for twice as many vectors as usual: two long functions, or three short ones.
const LONGER_CHAIN: u32 = 40;
/// Elements of a vector, of any target at the most.
const LANES: i64 = 16;
/// Registers for what a function computes on the way and for constants.
const RESERVED: usize = 10;

impl Lowerer<'_> {
    /// How many vectors along an axis of a body without a row take turns.
    pub(super) fn copies_of_chains(&self, axis: &Axis) -> usize {
        match self.body.stages.as_slice() {
            [stage] => self.copies_in_turns(stage, axis),
            _ => 1,
        }
    }

    /// How many vectors of a stage along an axis take turns.
    pub(super) fn copies_in_turns(&self, stage: &Stage, axis: &Axis) -> usize {
        let usual = if longest_chain(stage, self.uses.len()) >= LONGER_CHAIN { 8 } else { 4 };
        let most = axis.size.as_const().map_or(usual, |size| (size / LANES).clamp(1, usual as i64) as usize);
        [8, 4, 2].into_iter().find(|&copies| copies <= most && self.takes_turns(stage, copies)).unwrap_or(1)
    }

    /// Whether so many copies of a stage take turns: its chains are long, and registers have room for the values of all. Stores to places that
    /// data decide are done in order.
    pub(super) fn takes_turns(&self, stage: &Stage, copies: usize) -> bool {
        let in_order = |kind: &InstKind| matches!(kind, InstKind::Store { place, .. } if !place.indirect.is_empty());
        copies > 1
            && self.interleaved.is_empty()
            && self.packed.is_none()
            && !stage.insts.iter().any(|inst| in_order(&inst.kind))
            && longest_chain(stage, self.uses.len()) >= LONG_CHAIN
            && most_alive(stage, self.uses.len()) * copies + RESERVED <= self.options.registers
    }
}

/// The most instructions of a stage that wait for each other.
fn longest_chain(stage: &Stage, values: usize) -> u32 {
    let mut depths = vec![0u32; values];
    for inst in &stage.insts {
        let mut depth = 0;
        visit_operands(&inst.kind, &mut |v| depth = depth.max(depths.get(v.0 as usize).copied().unwrap_or(0)));
        if let Some(slot) = depths.get_mut(inst.id.0 as usize) {
            *slot = (*slot).max(depth.saturating_add(ops::weight(&inst.kind)));
        }
    }
    depths.into_iter().max().unwrap_or(0)
}

/// The most values of a stage that are needed later at any point of it, constants and indices aside.
fn most_alive(stage: &Stage, values: usize) -> usize {
    let mut last_use = vec![0usize; values];
    for (at, inst) in stage.insts.iter().enumerate() {
        visit_operands(&inst.kind, &mut |v| last_use[v.0 as usize] = at);
    }
    for reduction in &stage.reductions {
        last_use[reduction.value.0 as usize] = usize::MAX;
    }
    let is_held = |kind: &InstKind| !matches!(kind, InstKind::Const(_) | InstKind::Index(_) | InstKind::Store { .. });
    let (mut ends, mut most): (Vec<usize>, usize) = (Vec::new(), 0);
    for (at, inst) in stage.insts.iter().enumerate() {
        ends.retain(|&end| end > at);
        if is_held(&inst.kind) && last_use[inst.id.0 as usize] > at {
            ends.push(last_use[inst.id.0 as usize]);
        }
        most = most.max(ends.len());
    }
    most
}
