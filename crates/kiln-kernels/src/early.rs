//! The order of launches: one that reads memory and takes no more than it frees runs as soon as it can.
//!
//! Graphs list nodes in the order of the user's code: a training step has all its weight gradients at the end, though each
//! needs an activation and a gradient that have no other readers left. Run early, they find their operands in cache, and the
//! arena holds one layer's operands instead of all.

use crate::cost;
use crate::kernel::Access;
use crate::schedule::{Role, Schedule, Step};
use kiln_ir::Ranges;

/// Launches with results of at most this many bytes may be moved forward at any time.
const FEW_BYTES: i64 = 4096;

/// Moves launches forward that free memory.
pub(crate) fn free_early(schedule: &mut Schedule, known: &Ranges) {
    let bytes: Vec<i64> = schedule
        .buffers
        .iter()
        .map(|b| match b.role {
            Role::Temp => cost::guess(&b.elements, known).saturating_mul(b.dtype.size_in_bits() as i64) / 8,
            _ => 0,
        })
        .collect();
    let needs = dependencies(&schedule.steps, bytes.len());
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
    for (at, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|&n| users[n].push(at));
    }
    let mut missing: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut uses = vec![0usize; bytes.len()];
    schedule.steps.iter().flat_map(|s| &s.args).for_each(|b| uses[b.index()] += 1);
    let mut alive = vec![false; bytes.len()];
    let mut ready: Vec<usize> = (0..missing.len()).filter(|&at| missing[at] == 0).collect();
    let mut order = Vec::with_capacity(missing.len());
    while !ready.is_empty() {
        // Bytes that go, less bytes that come; only launches that give at least what they take are moved. One that gives
        // nothing yet is one reader less to wait for.
        let gain = |at: usize| -> Option<i64> {
            let args = &schedule.steps[at].args;
            let freed: i64 = args.iter().filter(|b| uses[b.index()] == 1).map(|b| bytes[b.index()]).sum();
            let taken: i64 = args.iter().filter(|b| !alive[b.index()]).map(|b| bytes[b.index()]).sum();
            let reads = args.iter().any(|b| alive[b.index()] && bytes[b.index()] > 0);
            // Others may wait for a few numbers, which take next to no memory.
            ((reads && freed >= taken) || (1..=FEW_BYTES).contains(&taken)).then_some(freed - taken)
        };
        let best = (0..ready.len()).filter_map(|i| gain(ready[i]).map(|gain| (i, gain)));
        let best = best.max_by_key(|&(i, gain)| (gain, std::cmp::Reverse(ready[i])));
        let (next, _) = best.unwrap_or_else(|| {
            let first = (0..ready.len()).min_by_key(|&i| ready[i]).unwrap_or_default();
            (first, 0)
        });
        let at = ready.swap_remove(next);
        order.push(at);
        for arg in &schedule.steps[at].args {
            alive[arg.index()] = true;
            uses[arg.index()] -= 1;
        }
        for &user in &users[at] {
            missing[user] -= 1;
            if missing[user] == 0 {
                ready.push(user);
            }
        }
    }
    let mut old: Vec<Option<Step>> = std::mem::take(&mut schedule.steps).into_iter().map(Some).collect();
    schedule.steps = order.into_iter().filter_map(|at| old[at].take()).collect();
}

/// For each launch those it must stay behind: the last to write what it touches, and all who read what it writes.
fn dependencies(steps: &[Step], buffers: usize) -> Vec<Vec<usize>> {
    let mut writer: Vec<Option<usize>> = vec![None; buffers];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); buffers];
    let mut all = Vec::with_capacity(steps.len());
    for (at, step) in steps.iter().enumerate() {
        let mut needs = Vec::new();
        for (arg, decl) in step.args.iter().zip(&step.kernel.buffers) {
            let buffer = arg.index();
            needs.extend(writer[buffer]);
            if decl.access == Access::Read {
                readers[buffer].push(at);
            } else {
                needs.append(&mut readers[buffer]);
                writer[buffer] = Some(at);
            }
        }
        needs.sort_unstable();
        needs.dedup();
        needs.retain(|&n| n != at);
        all.push(needs);
    }
    all
}

#[cfg(test)]
mod tests {
    use crate::{InputLayout, ScheduleOptions, plan, schedule};
    use kiln_ir::Graph;

    /// y = x·a·b·…, and then the products of each pair of neighbours, listed last as gradients are.
    #[test]
    fn what_frees_memory_runs_early() {
        let (length, size) = (8, 64 * 64 * 4);
        let mut text = String::from("graph(%0: f32[64, 64]) {\n");
        let dims = "lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]";
        for id in 1..=length {
            text += &format!("  %{id}: f32[64, 64] = dot %{}, %0 {{{dims}}}\n", id - 1);
        }
        for id in length + 1..=2 * length {
            let (a, b) = (id - length, id - length - 1);
            text += &format!("  %{id}: f32[64, 64] = dot %{a}, %{b} {{{dims}}}\n");
        }
        let outputs: Vec<String> = (length + 1..=2 * length).map(|id| format!("%{id}")).collect();
        text += &format!("  return {}\n}}", outputs.join(", "));
        let graph = Graph::parse(&text).expect("a graph");
        let layouts = [InputLayout::contiguous(graph.ty(graph.inputs()[0]))];
        let schedule = schedule(&graph, &layouts, &ScheduleOptions::default()).expect("a schedule");
        assert_eq!(schedule.steps.len(), 2 * length);
        let plan = plan(&schedule, &|_| None).expect("a plan");
        assert_eq!(plan.arena_bytes, 2 * size, "two neighbours at a time, of {length}");
    }
}
