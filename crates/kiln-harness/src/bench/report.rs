//! The table and the JSON of a benchmark.

use super::cases::Case;
use super::clock::Timing;
use super::record::{Record, Subject};
use kiln_terminal::output;
use serde_json::json;

/// One measured case.
pub struct Row {
    /// What.
    pub case: Case,
    /// Launches a call.
    pub kernels: usize,
    /// Seconds from graph to code, all in.
    pub compile: f64,
    /// Bytes of inputs and outputs.
    pub bytes: usize,
    /// The fused program.
    pub kiln: Timing,
    /// A copy that moves the same bytes.
    pub copy: Timing,
    /// Kiln, op by op.
    pub eager: Timing,
    /// PyTorch eager.
    pub torch_eager: Option<Timing>,
    /// torch.compile.
    pub torch_compile: Option<Timing>,
    /// Seconds of torch.compile's first call.
    pub torch_first: f64,
    /// Why the peer has no figures.
    pub peer_error: Option<String>,
    /// The reference interpreter's word.
    pub agrees: Option<bool>,
}

/// The first line.
pub fn header(peer: bool) {
    print!(
        "{:<38} {:>2} {:>7} {:>3} {:>9} {:>7} {:>7} {:>7}",
        "case", "T", "compile", "ker", "time", "GB/s", "copy", "eager"
    );
    println!("{}", if peer { "   torch  t.comp  (how many times slower the other side is)" } else { "" });
}

/// One line of the table.
pub fn line(row: &Row) {
    let ratio =
        |other: &Option<Timing>| other.as_ref().map_or("–".to_owned(), |t| format!("{:.2}", t.min / row.kiln.min));
    let rate = if row.case.operations() > 0.0 {
        format!("{:.1} GF", row.case.operations() / row.kiln.min / 1e9)
    } else {
        format!("{:.1}", row.bytes as f64 / row.kiln.min / 1e9)
    };
    print!(
        "{:<38} {:>2} {:>5.0}µs {:>3} {:>7.1}µs {:>7} {:>7.2} {:>7.2}",
        row.case.name(),
        row.case.threads,
        row.compile * 1e6,
        row.kernels,
        row.kiln.min * 1e6,
        rate,
        row.copy.min / row.kiln.min,
        row.eager.min / row.kiln.min,
    );
    if row.torch_eager.is_some() || row.peer_error.is_some() {
        print!(" {:>7} {:>7}", ratio(&row.torch_eager), ratio(&row.torch_compile));
    }
    match (&row.peer_error, row.agrees) {
        (Some(error), _) => println!("  {error}"),
        (_, Some(false)) => println!("  DISAGREES WITH THE INTERPRETER"),
        _ => println!(),
    }
    // A long run is watched as it goes.
    output::flush();
}

fn geomean(values: Vec<f64>) -> Option<f64> {
    (!values.is_empty()).then(|| (values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp())
}

/// A ratio below which a row counts as clearly behind.
const CLEARLY: f64 = 0.9;

/// One line on how many times slower another side is.
pub fn tell(name: &str, ratios: Vec<f64>) {
    let below = |bound: f64| ratios.iter().filter(|r| **r < bound).count();
    let (behind, clearly) = (below(1.0), below(CLEARLY));
    let worst = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let count = ratios.len();
    if let Some(mean) = geomean(ratios) {
        println!(
            "{name}: {mean:.2}× as fast (geometric mean of {count}), behind on {behind} ({clearly} below {CLEARLY}), worst {worst:.2}×"
        );
    }
}

/// What the table says as a whole.
pub fn summary(rows: &[Row], torch: Option<&str>) {
    println!();
    tell("against eager Kiln", rows.iter().map(|r| r.eager.min / r.kiln.min).collect());
    let against = |pick: fn(&Row) -> Option<&Timing>| -> Vec<f64> {
        rows.iter().filter_map(|r| pick(r).map(|t| t.min / r.kiln.min)).collect()
    };
    if let Some(version) = torch {
        tell(&format!("against torch {version} eager"), against(|r| r.torch_eager.as_ref()));
        tell("against torch.compile", against(|r| r.torch_compile.as_ref()));
        let firsts: Vec<f64> = rows.iter().map(|r| r.torch_first).filter(|s| s.is_finite()).collect();
        if let Some(mean) = geomean(firsts) {
            println!("torch.compile's first call: {mean:.1} s (geometric mean)");
        }
    }
    let compile: Vec<f64> = rows.iter().map(|r| r.compile * 1e6).collect();
    if let Some(mean) = geomean(compile.clone()) {
        println!(
            "Kiln's compile: {mean:.0} µs (geometric mean), longest {:.0} µs",
            compile.iter().copied().fold(0.0, f64::max)
        );
    }
}

/// The sides of a row, in the form that all benchmarks have.
pub fn records(what: &str, row: &Row) -> Vec<Record> {
    let subject = Subject {
        what: what.to_owned(),
        model: row.case.name(),
        device: "cpu".into(),
        dtype: row.case.dtype.name().into(),
        batch: 1,
        prompt: 0,
        threads: row.case.threads,
        tokens_a_call: 0,
    };
    let mut kiln = Record::timed(&subject, "kiln", "default", &row.kiln);
    kiln.first_call_s = Some(row.compile + row.kiln.min);
    kiln.launches = Some(row.kernels as u64);
    kiln.kernels = Some(row.kernels as u64);
    kiln.extra = json!({
        "kind": row.case.kind, "shape": row.case.shape, "compile_s": row.compile, "bytes": row.bytes,
        "copy_min_ms": row.copy.min * 1e3, "matches_interpreter": row.agrees, "peer_error": row.peer_error,
    });
    let mut records = vec![Record::timed(&subject, "kiln", "eager", &row.eager), kiln];
    if let Some(torch) = &row.torch_eager {
        records.push(Record::timed(&subject, "torch", "eager", torch));
    }
    if let Some(torch) = &row.torch_compile {
        let mut record = Record::timed(&subject, "torch", "default", torch);
        record.first_call_s = row.torch_first.is_finite().then_some(row.torch_first);
        records.push(record);
    }
    records.extend(Record::without_figures(&subject, "torch", row.peer_error.as_deref()));
    records
}
