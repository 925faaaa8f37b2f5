//! The table in the terminal, with how many times slower every other side is.

use super::record::{MemoryUse, Record, best_kiln, best_peer};
use super::stats::VARIATION;
use kiln_terminal::format::{bytes, ratio, seconds};
use kiln_terminal::{Align, Paint, Table, columns, format, hung, output};

/// A time in milliseconds.
pub fn duration(ms: f64) -> String {
    seconds(ms / 1e3)
}

fn maybe<T>(value: Option<T>, tell: impl Fn(T) -> String) -> String {
    value.map_or("–".into(), tell)
}

/// What was measured, in a line.
pub fn title(record: &Record) -> String {
    let s = &record.subject;
    let tokens = match s.what.as_str() {
        "decode" => format!(", after {}", format::plural(s.prompt, "token", "tokens")),
        "forward" => format!(", {}", format::plural(s.prompt, "token", "tokens")),
        _ => String::new(),
    };
    let threads = format::plural(s.threads, "thread", "threads");
    format!("{} {}: {} on {}, batch {}{tokens}, {threads}", s.what, s.model, s.dtype, s.device, s.batch)
}

/// Prints the records of one subject.
pub fn print(records: &[Record]) {
    let Some(first) = records.first() else { return };
    let paint = Paint::stdout();
    println!("\n{}", paint.bold(title(first)));
    let eager = records.iter().find(|r| r.is_kiln() && !r.is_compiled());
    let peer = best_peer(records);
    let mut titles = vec![("mode", Align::Left)];
    let figures = [
        "first call",
        "median",
        "mean",
        "± std",
        "p90",
        "p99",
        "min",
        "tokens/s",
        "launches",
        "peak",
        "× eager",
        "× best peer",
    ];
    titles.extend(figures.map(|title| (title, Align::Right)));
    titles.push(("as Kiln eager", Align::Left));
    // A report and --json have all of them.
    let spare = ["p99", "p90", "mean", "min", "launches", "peak", "± std", "first call"];
    let mut table = Table::new(&titles).may_drop(&spare);
    for record in records {
        table.row(cells(record, eager, peer, paint));
    }
    print!("{}", table.render(paint));
    for note in notes(records) {
        let note = if note.starts_with('!') { paint.yellow(note) } else { paint.dim(note) };
        println!("{}", hung(&format!("  {note}"), columns(), 2));
    }
    if let Some(line) = headline(records) {
        println!("{}", hung(&format!("  {}", paint.bold_green(line)), columns(), 2));
    }
    // A long run is watched as it goes.
    output::flush();
}

/// How Kiln's fastest mode stands against the fastest of the others.
pub fn headline(records: &[Record]) -> Option<String> {
    let (kiln, peer) = (best_kiln(records)?, best_peer(records)?);
    let first = match (kiln.first_call_s, first_call_of_peers(records)) {
        (Some(kiln), Some(peer)) if kiln > 0.0 => format!("; first call {} sooner", ratio(peer / kiln)),
        _ => String::new(),
    };
    let (times, least) = (ratio(kiln.ratio(peer)?), ratio(kiln.ratio_of_minima(peer)?));
    let (kiln, peer) = (kiln.label(), peer.label());
    Some(format!("Kiln {kiln} is {times} as fast as {peer}, the fastest of the others ({least} by minima){first}"))
}

/// Seconds of the quickest first call of a compiled peer.
pub fn first_call_of_peers<'a>(records: impl IntoIterator<Item = &'a Record>) -> Option<f64> {
    let compiled = records.into_iter().filter(|r| !r.is_kiln() && r.is_compiled() && r.side != "llama.cpp");
    compiled.filter_map(|r| r.first_call_s).min_by(f64::total_cmp)
}

fn cells(record: &Record, eager: Option<&Record>, peer: Option<&Record>, paint: Paint) -> Vec<String> {
    let label = if record.is_kiln() { paint.ember(record.label()) } else { record.label() };
    let Some(s) = record.statistics() else {
        let mut cells = vec![label];
        cells.resize(13, String::new());
        cells.push(paint.red(if record.error.is_some() { "failed" } else { "no samples" }));
        return cells;
    };
    let against = |other: Option<&Record>| maybe(other.and_then(|other| record.ratio(other)), ratio);
    let memory = record.memory.filter(|m| m.peak > 0);
    vec![
        label,
        maybe(record.first_call_s, seconds),
        paint.bold(duration(s.median)),
        duration(s.mean),
        duration(s.std),
        duration(s.p90),
        duration(s.p99),
        duration(s.min),
        maybe(record.tokens_per_s(), format::rate),
        maybe(record.launches, |n| n.to_string()),
        maybe(memory, |m| peak(record, &m)),
        against(eager),
        against(peer),
        agreement(record),
    ]
}

/// The peak, and whether it is more than Kiln is allowed.
pub fn peak(record: &Record, memory: &MemoryUse) -> String {
    let over = record.is_kiln() && memory.within() == Some(false);
    format!("{}{}", bytes(memory.peak), if over { " !" } else { "" })
}

/// How the results compare with Kiln's eager mode.
pub fn agreement(record: &Record) -> String {
    let ids = record.same_ids.map(|(same, all)| {
        if same == all { format!("{all} tokens") } else { format!("{same} of {all} tokens, then another") }
    });
    let other = record.other_choices.filter(|(other, _)| *other > 0);
    let other = other.map_or(String::new(), |(other, all)| format!(", {other} of {all} choices differ"));
    let error = record.max_abs_err.map(|error| format!("logits ± {error:.1e}{other}"));
    match (ids, error) {
        (Some(ids), Some(error)) => format!("{ids}, {error}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => maybe(record.matches_eager, |same| if same { "yes".into() } else { "NO".into() }),
    }
}

/// What a reader has to know before quoting: variation, cut runs, disagreement, memory beyond its limit.
pub fn notes(records: &[Record]) -> Vec<String> {
    let mut notes = Vec::new();
    let varying: Vec<String> = records
        .iter()
        .filter_map(|record| {
            let statistics = record.statistics().filter(|s| s.variation() > VARIATION)?;
            Some(format!("{} {:.0} %", record.label(), statistics.variation() * 100.0))
        })
        .collect();
    if !varying.is_empty() {
        notes.push(format!("! varies by more than 5 % of the mean, is the machine quiet? {}", varying.join(", ")));
    }
    let short: Vec<String> = records
        .iter()
        .filter(|record| record.cut && record.samples.len() > 0)
        .map(|record| format!("{} {}", record.label(), record.samples.len()))
        .collect();
    if !short.is_empty() {
        notes.push(format!("! fewer samples than requested, the time was up: {}", short.join(", ")));
    }
    let parted =
        |record: &&Record| record.matches_eager == Some(true) && record.same_ids.is_some_and(|(same, all)| same < all);
    if let Some(bound) = records.iter().find(parted).and_then(|record| record.logits_bound) {
        notes.push(format!(
            "texts part from Kiln eager's at ties: fed the same tokens, logits differ by less than {bound:.1e}, and so do those of \
             the two tokens"
        ));
    }
    for record in records {
        let (label, exact) = (record.label(), &record.extra["float32"]);
        if let (Some(rmse), Some(largest), Some(rms)) =
            (exact["rmse"].as_f64(), exact["max_abs_err"].as_f64(), exact["logits_rms"].as_f64())
        {
            let share = 100.0 * rmse / rms;
            notes.push(format!(
                "{label} against float32: rmse {rmse:.4e} ({share:.3} % of the logits), at the most {largest:.3e}"
            ));
        }
        if record.extra["same_bits"].as_bool() == Some(true) {
            notes.push(format!("{label}: the same bits as with launches that overlap"));
        }
        if let Some(error) = &record.error {
            notes.push(format!("! {label}: {error}"));
        }
        if record.matches_eager == Some(false) {
            notes.push(format!("! {label} differs from Kiln eager ({})", agreement(record)));
        }
        if let Some(memory) = record.memory.filter(|memory| record.is_kiln() && memory.within() == Some(false)) {
            notes.push(format!("! {label} exceeds its memory: {}", allowed(&memory)));
        }
    }
    let weights = |kiln: bool| {
        records.iter().filter(move |r| r.is_kiln() == kiln).find_map(|r| Some(r.memory?.weights).filter(|w| *w > 0))
    };
    if let (Some(own), Some(other)) = (weights(true), weights(false))
        && own.abs_diff(other) * 50 > other
    {
        notes.push(format!(
            "! not the same bytes: Kiln holds weights of {}, the others of {} (short floats stay as they are stored)",
            bytes(own),
            bytes(other)
        ));
    }
    let small = records.iter().filter(|record| record.is_kiln()).filter_map(|record| record.memory);
    if let Some(most) = small.filter(MemoryUse::is_too_small).max_by_key(|memory| memory.peak) {
        notes.push(format!(
            "memory not judged, what any model takes is more than a tenth of this one: {}",
            allowed(&most)
        ));
    }
    let within = records.iter().filter(|record| record.is_kiln()).filter_map(|record| record.memory);
    if let Some(most) = within.filter(|memory| memory.within() == Some(true)).max_by_key(|memory| memory.peak) {
        notes.push(format!("memory ok: {}", allowed(&most)));
    }
    notes
}

/// The peak beside what is allowed.
fn allowed(memory: &MemoryUse) -> String {
    format!(
        "peak {} of {} (weights {}, keys and values {}, 10 % of both, activations {}) beside the {} of the bare process",
        bytes(memory.peak),
        bytes(memory.limit()),
        bytes(memory.weights),
        bytes(memory.kv),
        bytes(memory.activations),
        bytes(memory.process)
    )
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::record;
    use super::*;

    #[test]
    fn weights_of_other_sizes_are_told() {
        let side = |side: &str, weights| {
            let mut record = record(side, "default", &[1.0]);
            record.memory = Some(MemoryUse { weights, ..MemoryUse::default() });
            record
        };
        let told =
            |own, other| notes(&[side("kiln", own), side("torch", other)]).join(" ").contains("not the same bytes");
        assert!(told(30_400_000, 60_800_000) && !told(60_800_000, 60_800_000));
    }

    #[test]
    fn memory_beyond_its_limit_is_told() {
        let side = |side: &str, peak| {
            let mut record = record(side, "default", &[1.0]);
            record.memory =
                Some(MemoryUse { peak, weights: 1_000_000_000, process: 9_000_000, ..MemoryUse::default() });
            record
        };
        let told = |record: &Record| {
            let memory = record.memory.expect("it is known");
            (peak(record, &memory).ends_with('!'), notes(std::slice::from_ref(record)).join(" "))
        };
        let (marked, notes) = told(&side("kiln", 1_100_000_001));
        assert!(marked && notes.contains("exceeds its memory") && !notes.contains("memory ok"), "{notes}");
        let (marked, notes) = told(&side("kiln", 1_100_000_000));
        assert!(!marked && notes.contains("memory ok") && notes.contains("9.0 MB of the bare process"), "{notes}");
        assert!(!told(&side("torch", 9_000_000_000)).0);
        // A model so small that the bound says nothing of it is neither marked nor praised.
        let mut small = side("kiln", 2_800_000);
        small.memory = small.memory.map(|memory| MemoryUse { weights: 1_000_000, ..memory });
        let (marked, notes) = told(&small);
        assert!(!marked && notes.contains("not judged") && !notes.contains("ok"), "{notes}");
    }

    #[test]
    fn notes_say_what_keeps_a_figure_from_being_quoted() {
        let mut noisy = record("kiln", "default", &[1.0, 2.0]);
        noisy.cut = true;
        noisy.matches_eager = Some(false);
        noisy.same_ids = Some((3, 9));
        let notes = notes(&[noisy]).join("\n");
        assert!(notes.contains("quiet? default 33 %"), "{notes}");
        assert!(notes.contains("time was up: default 2"), "{notes}");
        assert!(notes.contains("3 of 9 tokens, then another"), "{notes}");
    }
}
