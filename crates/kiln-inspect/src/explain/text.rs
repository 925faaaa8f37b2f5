//! An explanation for the terminal, and how figures are written in it and on the page.

use super::{Break, BreakCost, Explanation, Kernel, NotFused, Segment};
use std::fmt::{self, Write};
use std::time::Duration;

/// Bytes with a unit.
pub(super) struct Bytes(pub u64);

/// A count with a unit.
pub(super) struct Count(pub u64);

/// A time with a unit.
pub(super) struct Time(pub Duration);

fn scaled(f: &mut fmt::Formatter<'_>, value: f64, units: &[&str]) -> fmt::Result {
    let (mut value, mut at) = (value, 0);
    while value >= 999.5 && at + 1 < units.len() {
        value /= 1000.0;
        at += 1;
    }
    let digits = if at == 0 || value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    let mut text = String::new();
    write!(text, "{value:.digits$}{}", units[at])?;
    f.pad(&text)
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0 as f64, &[" B", " kB", " MB", " GB", " TB"])
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0 as f64, &["", " k", " M", " G", " T"])
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos() as f64;
        scaled(f, nanos, &[" ns", " µs", " ms", " s"])
    }
}

/// `1 kernel`, `2 kernels`.
pub(super) fn plural(count: usize, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

impl Explanation {
    /// What it all comes to, in a line.
    pub(super) fn summary(&self) -> String {
        let kernels: usize = self.segments.iter().map(|segment| segment.kernels.len()).sum();
        let time: Duration = self.segments.iter().map(Segment::kernel_time).sum();
        let call = match self.call {
            Some(call) => format!("{} a call, {} in kernels", Time(call.median), Time(time)),
            None => format!("{} in kernels", Time(time)),
        };
        format!("{}, {}, {call}", plural(self.segments.len(), "graph"), plural(kernels, "kernel"))
    }
}

/// A width (`{explanation:80}`) says how many columns there are: where the table of kernels is wider, each has lines of its own.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.name, self.summary())?;
        let copy = self.machine.copy;
        match &self.machine.device {
            None => {
                let threads = plural(self.machine.threads, "thread");
                writeln!(f, "measured with {threads}; this machine copies memory at {copy:.1} GB/s")?;
            }
            Some(device) => writeln!(f, "measured on {device}, which copies its memory at {copy:.1} GB/s")?,
        }
        let total: Duration = self.first_call.iter().map(|(_, took)| *took).sum();
        if !self.first_call.is_empty() {
            let parts: Vec<String> =
                self.first_call.iter().map(|(what, took)| format!("{what} {}", Time(*took))).collect();
            writeln!(f, "first call {}: {}", Time(total), parts.join(", "))?;
        }
        for (number, segment) in self.segments.iter().enumerate() {
            writeln!(f)?;
            write_segment(f, number, segment, self.machine.copy)?;
        }
        list(f, "breaks: the function is more than one graph", &self.breaks, |b| {
            let fix = if b.fix.is_empty() { String::new() } else { format!("; {}", b.fix) };
            format!("{}: the function {}{}{fix}", b.at, b.what, costs(b))
        })?;
        for (number, guards) in self.programs.iter().enumerate() {
            list(f, &format!("guards of program {number}"), guards, Clone::clone)?;
        }
        list(f, "compiled again", &self.recompiles, Clone::clone)?;
        list(f, "also reported", &self.remarks, Clone::clone)
    }
}

/// What a graph break costs, in parentheses.
pub(super) fn costs(broken: &Break) -> String {
    let cost = broken
        .cost
        .map(|BreakCost { took, bytes }| format!(" ({} between the graphs, {})", Time(took), Bytes(bytes as u64)));
    cost.unwrap_or_default()
}

fn list<T>(f: &mut fmt::Formatter<'_>, title: &str, items: &[T], line: impl Fn(&T) -> String) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}")?;
    items.iter().try_for_each(|item| writeln!(f, "  {}", line(item)))
}

/// Names of weights shown for a kernel.
const WEIGHTS_SHOWN: usize = 4;

fn write_segment(f: &mut fmt::Formatter<'_>, number: usize, segment: &Segment, copy: f64) -> fmt::Result {
    writeln!(
        f,
        "graph {number}: {} captured, {} after the passes, {} for {}",
        plural(segment.captured.nodes().len(), "node"),
        segment.graph.nodes().len(),
        plural(segment.kernels.len(), "kernel"),
        segment.target
    )?;
    let width = segment.kernels.iter().map(|k| k.label.len()).max().unwrap_or(0).clamp(6, 40);
    let is_narrow = f.width().is_some_and(|columns| columns < BESIDE_LABELS + width);
    if !is_narrow {
        write_head(f, width)?;
    }
    let all = segment.kernel_time();
    for (at, kernel) in segment.kernels.iter().enumerate() {
        match is_narrow {
            true => write_block(f, at, kernel, share(kernel, all), copy)?,
            false => write_row(f, at, kernel, share(kernel, all), copy, width)?,
        }
        let lines: Vec<String> = segment.lines_of(kernel).iter().map(ToString::to_string).collect();
        if !lines.is_empty() {
            writeln!(f, "      at {}", lines.join(", "))?;
        }
        let weights = segment.weights_of(kernel);
        if !weights.is_empty() {
            let more = weights.len().saturating_sub(WEIGHTS_SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            writeln!(f, "      of {}{more}", weights[..weights.len().min(WEIGHTS_SHOWN)].join(", "))?;
        }
        if let Some(variant) = &kernel.variant {
            writeln!(f, "      tuned: {variant}")?;
        }
    }
    let temps = segment.buffers.iter().filter(|buffer| buffer.offset.is_some()).count();
    if temps > 0 {
        writeln!(
            f,
            "memory: {} of {} in an arena of {}",
            plural(temps, "temporary").replace("temporarys", "temporaries"),
            Bytes(segment.temp_bytes as u64),
            Bytes(segment.arena_bytes as u64)
        )?;
    }
    list(f, "not fused", &alike(&segment.not_fused), |(pair, others)| segment.describe(pair, *others))
}

/// Of the pairs with one value and one reason the first, and how many others there are.
fn alike(pairs: &[NotFused]) -> Vec<(&NotFused, usize)> {
    let mut found: Vec<(&NotFused, usize)> = Vec::new();
    for pair in pairs {
        let same = |known: &&mut (&NotFused, usize)| known.0.producer == pair.producer && known.0.reason == pair.reason;
        match found.iter_mut().find(same) {
            Some((_, others)) => *others += 1,
            None => found.push((pair, 0)),
        }
    }
    found
}

/// Columns of the table of kernels beside their labels.
const BESIDE_LABELS: usize = 90;

fn write_head(f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
    writeln!(
        f,
        "{:>4}  {:width$}  {:10}  {:>8}  {:>8}  {:>7}  {:>8}  {:>5}  {:>6}  {:>5}  {:>7}",
        "", "kernel", "kind", "read", "written", "flops", "time", "share", "GB/s", "copy", "GFLOP/s"
    )
}

fn write_row(
    f: &mut fmt::Formatter<'_>,
    at: usize,
    kernel: &Kernel,
    share: f64,
    copy: f64,
    width: usize,
) -> fmt::Result {
    writeln!(
        f,
        "{at:>4}  {:width$}  {:10}  {:>8}  {:>8}  {:>7}  {:>8}  {:>4.0}%  {:>6.1}  {:>4.0}%  {:>7.1}",
        kernel.label,
        kernel.kind,
        Bytes(kernel.read),
        Bytes(kernel.written),
        Count(kernel.flops),
        Time(kernel.time),
        100.0 * share,
        kernel.bandwidth(),
        100.0 * kernel.bandwidth() / copy,
        kernel.throughput(),
    )
}

/// What a row says, in lines that a narrow terminal has room for.
fn write_block(f: &mut fmt::Formatter<'_>, at: usize, kernel: &Kernel, share: f64, copy: f64) -> fmt::Result {
    writeln!(f, "{at:>4}  {}  ({})", kernel.label, kernel.kind)?;
    writeln!(f, "      {}, {:.0}% of the time", Time(kernel.time), 100.0 * share)?;
    let (read, written) = (Bytes(kernel.read), Bytes(kernel.written));
    writeln!(f, "      {read} read, {written} written")?;
    let (bandwidth, part) = (kernel.bandwidth(), 100.0 * kernel.bandwidth() / copy);
    writeln!(f, "      {bandwidth:.1} GB/s ({part:.0}% of copying)")?;
    writeln!(f, "      {} flops, {:.1} GFLOP/s", Count(kernel.flops), kernel.throughput())
}

/// The part of a time that a kernel takes.
pub(super) fn share(kernel: &Kernel, all: Duration) -> f64 {
    if all.is_zero() { 0.0 } else { kernel.time.as_secs_f64() / all.as_secs_f64() }
}

impl Segment {
    /// Describes why a value and a reader of it, and so many others, were not fused.
    fn describe(&self, pair: &NotFused, others: usize) -> String {
        let node = |id: kiln_ir::NodeId| {
            let node = self.graph.node(id);
            let at = if node.source.is_unknown() { String::new() } else { format!(" at {}", node.source) };
            format!("{id} {}{at}", node.op.kind().name())
        };
        let bytes = pair.bytes.map_or(String::new(), |bytes| format!(" ({} through memory)", Bytes(bytes)));
        let more = if others == 0 { String::new() } else { format!(" (and {others} more)") };
        format!("{} and {}{more}: {}{bytes}", node(pair.producer), node(pair.consumer), pair.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let text = |n| Bytes(n).to_string();
        assert_eq!(
            [text(0), text(999), text(1000), text(12_345), text(999_499)],
            ["0 B", "999 B", "1.00 kB", "12.3 kB", "999 kB"]
        );
        assert_eq!(Count(2_500_000).to_string(), "2.50 M");
        let time = |nanos| Time(Duration::from_nanos(nanos)).to_string();
        assert_eq!([time(870), time(1500), time(123_456_000)], ["870 ns", "1.50 µs", "123 ms"]);
    }
}
