//! Temporaries in the arena.

use super::{Launch, Violation};
use crate::plan::{ALIGNMENT, Plan};
use crate::schedule::{BufferId, Role, Schedule};

/// A temporary: bytes of the arena, and the launches that use it.
struct LiveTemporary {
    buffer: BufferId,
    start: usize,
    end: usize,
    first: usize,
    last: usize,
}

/// Every temporary has room of its own for as long as it is used.
pub(super) fn verify(schedule: &Schedule, plan: &Plan) -> Result<(), Violation> {
    let mut used: Vec<Option<(usize, usize)>> = vec![None; schedule.buffers.len()];
    for (at, step) in schedule.steps.iter().enumerate() {
        for arg in &step.args {
            let (_, last) = used[arg.index()].get_or_insert((at, at));
            *last = at;
        }
    }
    let mut lived: Vec<LiveTemporary> = Vec::new();
    for (number, (decl, used)) in schedule.buffers.iter().zip(used).enumerate() {
        let (buffer, bytes) = (BufferId(number as u32), plan.bytes.get(number).copied().unwrap_or(0));
        let Some((first, last)) = used.filter(|_| decl.role == Role::Temp && bytes > 0) else { continue };
        let start = plan.offsets.get(number).copied().flatten();
        let place = start.and_then(|start| Some((start, start.checked_add(bytes)?)));
        let fits = |&(start, end): &(usize, usize)| end <= plan.arena_bytes && start.is_multiple_of(ALIGNMENT);
        let (start, end) = place.filter(fits).ok_or(Violation::Misplaced { buffer })?;
        lived.push(LiveTemporary { buffer, start, end, first, last });
    }
    lived.sort_by_key(|lived| lived.start);
    for (at, one) in lived.iter().enumerate() {
        for other in lived[at + 1..].iter().take_while(|other| other.start < one.end) {
            let (first, last) = (one.first.max(other.first), one.last.min(other.last));
            if first <= last {
                let at = Launch::of(first, &schedule.steps);
                return Err(Violation::Shared { at, buffer: one.buffer, other: other.buffer });
            }
        }
    }
    Ok(())
}
