//! Where the time of a compiled function goes: its launches by what they compute, the longest first.

use kiln::inspect::explain::{Explanation, Kernel};
use kiln_terminal::{Align, Paint, Table, format};
use std::collections::HashMap;
use std::time::Duration;

/// Launches with the same label.
#[derive(Default)]
struct Group {
    launches: usize,
    time: Duration,
    bytes: u64,
    flops: u64,
}

/// The table, and how many launches there are.
pub fn table(explanation: &Explanation) -> String {
    let mut groups: HashMap<(&str, &str), Group> = HashMap::new();
    let kernels = || explanation.segments.iter().flat_map(|segment| &segment.kernels);
    for Kernel { label, kind, time, read, written, flops, .. } in kernels() {
        let group = groups.entry((label, kind)).or_default();
        group.launches += 1;
        group.time += *time;
        group.bytes += read + written;
        group.flops += flops;
    }
    let mut list: Vec<_> = groups.into_iter().collect();
    list.sort_by_key(|(name, group)| (std::cmp::Reverse(group.time), *name));
    let total: Duration = kernels().map(|kernel| kernel.time).sum();
    let mut table = Table::new(&[
        ("launches", Align::Right),
        ("kernel", Align::Left),
        ("kind", Align::Left),
        ("time", Align::Right),
        ("of all", Align::Right),
        ("bytes", Align::Right),
        ("GB/s", Align::Right),
        ("GFLOP/s", Align::Right),
    ]);
    for ((label, kind), group) in list {
        let (seconds, all) = (group.time.as_secs_f64().max(1e-12), total.as_secs_f64().max(1e-12));
        table.row([
            group.launches.to_string(),
            label.to_owned(),
            kind.to_owned(),
            format!("{:.1} µs", seconds * 1e6),
            format!("{:.1} %", 100.0 * seconds / all),
            format::bytes(group.bytes),
            format!("{:.0}", group.bytes as f64 / seconds / 1e9),
            format!("{:.0}", group.flops as f64 / seconds / 1e9),
        ]);
    }
    let (table, all) = (table.render_in(Paint::stdout(), None), total.as_secs_f64() * 1e3);
    format!("\n{table}\n{} launches, {all:.2} ms one by one", kernels().count())
}
