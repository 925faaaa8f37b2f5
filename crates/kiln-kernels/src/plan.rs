//! One arena for all temporaries: each gets an offset, and two share memory only if their lifetimes do not meet.

use crate::schedule::{Error, Role, Schedule};
use kiln_ir::{Dim, Symbol};

/// Every offset is a multiple of this.
pub const ALIGNMENT: usize = 64;

/// The offsets of temporaries for given sizes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Bytes of the arena; the peak.
    pub arena_bytes: usize,
    /// For each buffer of the schedule its offset in the arena, if it is a temporary.
    pub offsets: Vec<Option<usize>>,
    /// For each buffer of the schedule its bytes, in any role.
    pub bytes: Vec<usize>,
    /// Bytes that all temporaries would take without sharing.
    pub temp_bytes: usize,
}

/// Steps during which a buffer is in use, both ends included.
#[derive(Clone, Copy)]
struct Lifetime {
    first: usize,
    last: usize,
}

/// Places the temporaries of a schedule, given the values of size symbols.
pub fn plan(schedule: &Schedule, size: &dyn Fn(Symbol) -> Option<i64>) -> Result<Plan, Error> {
    let bytes = schedule.buffers.iter().map(|b| bytes_of(b.dtype, &b.elements, size)).collect::<Result<Vec<_>, _>>()?;
    let mut lives: Vec<Option<Lifetime>> = vec![None; bytes.len()];
    for (at, step) in schedule.steps.iter().enumerate() {
        for arg in &step.args {
            let life = lives[arg.index()].get_or_insert(Lifetime { first: at, last: at });
            life.last = at;
        }
    }
    let mut order: Vec<usize> = (0..bytes.len()).filter(|&b| schedule.buffers[b].role == Role::Temp).collect();
    // Large ones first: small ones then fit into the gaps.
    order.sort_by_key(|&b| (std::cmp::Reverse(bytes[b]), b));
    let mut plan = Plan { arena_bytes: 0, offsets: vec![None; bytes.len()], bytes, temp_bytes: 0 };
    let mut placed: Vec<(usize, usize, Lifetime)> = Vec::with_capacity(order.len());
    for buffer in order {
        let Some(life) = lives[buffer] else {
            plan.offsets[buffer] = Some(0);
            continue;
        };
        let too_large = || Error::NoValue { size: schedule.buffers[buffer].elements.clone() };
        let room = plan.bytes[buffer].checked_next_multiple_of(ALIGNMENT).ok_or_else(too_large)?;
        let offset = best_gap(&placed, life, room);
        let end = offset.checked_add(room).ok_or_else(too_large)?;
        placed.push((offset, end, life));
        placed.sort_unstable_by_key(|&(offset, end, _)| (offset, end));
        plan.offsets[buffer] = Some(offset);
        plan.arena_bytes = plan.arena_bytes.max(end);
        plan.temp_bytes = plan.temp_bytes.saturating_add(room);
    }
    if kiln_ir::verify::verifiers_run() {
        let broken = |violation| Error::Invalid { stage: "plan", violation: Box::new(violation) };
        crate::verify::memory(schedule, &plan, size).map_err(broken)?;
    }
    Ok(plan)
}

/// The start of the smallest gap that holds `size` bytes among what is alive at the same time; the end if there is none.
fn best_gap(placed: &[(usize, usize, Lifetime)], life: Lifetime, size: usize) -> usize {
    let (mut free, mut best): (usize, Option<(usize, usize)>) = (0, None);
    for &(offset, end, other) in placed {
        if other.last < life.first || life.last < other.first {
            continue;
        }
        if offset >= free && offset - free >= size && best.is_none_or(|(gap, _)| offset - free < gap) {
            best = Some((offset - free, free));
        }
        free = free.max(end);
    }
    best.map_or(free, |(_, at)| at)
}

fn bytes_of(dtype: kiln_ir::DType, elements: &Dim, size: &dyn Fn(Symbol) -> Option<i64>) -> Result<usize, Error> {
    let count = elements.eval(size).and_then(|n| usize::try_from(n).ok());
    count.and_then(|n| dtype.bytes_for(n)).ok_or_else(|| Error::NoValue { size: elements.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{InputLayout, ScheduleOptions, schedule};
    use kiln_ir::Graph;

    /// Products in a row: each result is alive during two steps, so that two places are enough.
    fn chain(length: usize) -> Schedule {
        let mut text = String::from("graph(%0: f32[b, 64], %1: f32[64, 64]) {\n");
        let dims = "lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]";
        let mut x = 0;
        for id in 2..2 + length {
            text += &format!("  %{id}: f32[b, 64] = dot %{x}, %1 {{{dims}}}\n");
            x = id;
        }
        text += &format!("  return %{x}\n}}");
        let graph = Graph::parse(&text).expect("a graph");
        let layouts: Vec<InputLayout> =
            graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
        schedule(&graph, &layouts, &ScheduleOptions::default()).expect("a schedule")
    }

    #[test]
    fn temporaries_share_memory_when_their_lifetimes_do_not_meet() {
        let schedule = chain(9);
        for rows in [0, 1, 3, 100] {
            let plan = plan(&schedule, &|_| Some(rows)).expect("a plan");
            let one = (rows as usize * 64 * 4).next_multiple_of(ALIGNMENT);
            assert_eq!(plan.temp_bytes, 8 * one);
            assert_eq!(plan.arena_bytes, 2 * one);
            assert!(plan.offsets.iter().flatten().all(|offset| offset % ALIGNMENT == 0));
        }
    }

    #[test]
    fn sizes_without_a_value_or_too_large_are_errors() {
        let schedule = chain(2);
        assert!(matches!(plan(&schedule, &|_| None), Err(Error::NoValue { .. })));
        assert!(matches!(plan(&schedule, &|_| Some(i64::MAX / 8)), Err(Error::NoValue { .. })));
        assert!(matches!(plan(&schedule, &|_| Some(-1)), Err(Error::NoValue { .. })));
    }
}
