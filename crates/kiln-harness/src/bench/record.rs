//! One measured mode of one side: a line of JSON, a row of the table, a series of the plots.

use super::clock::Timing;
use super::machine;
use super::stats::{Samples, Statistics};
use kiln_terminal::failure::{Failure, Outcome};
use serde_json::{Value, json};

/// What was measured: the same for every side.
#[derive(Debug, Clone, PartialEq)]
pub struct Subject {
    /// `decode`, `forward`, `train`, `vision`, `ops`, `calls`.
    pub what: String,
    /// Name of the model or case.
    pub model: String,
    /// Where it ran.
    pub device: String,
    /// Of weights and activations.
    pub dtype: String,
    /// Texts at a time.
    pub batch: usize,
    /// Tokens of the prompt, or of the pass.
    pub prompt: usize,
    /// Threads of all sides.
    pub threads: usize,
    /// Tokens a call gives or takes, for the rate; 0 where there is no such thing.
    pub tokens_a_call: usize,
}

/// Memory of one side, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MemoryUse {
    /// The most that the process held beyond [`MemoryUse::process`].
    pub peak: u64,
    /// What the process held before anything was loaded, its program and libraries included; 0 where a side does not tell.
    pub process: u64,
    /// The weights.
    pub weights: u64,
    /// Keys and values.
    pub kv: u64,
    /// What a pass over the largest bucket needs beside them.
    pub activations: u64,
}

/// Graphs, programs, their code, stacks and what the allocator keeps are a few megabytes of any model. Where a tenth of the weights is
/// less than that, a peak beyond the limit does not tell a second copy of them from these.
const FIXED_COST: u64 = 16 << 20;

impl MemoryUse {
    /// Weights and keys and values with a tenth on top, and the activations of the bucket: no room for a second copy of weights.
    /// Graphs, programs, their code, stacks and whatever the allocator keeps have to fit into the tenth.
    pub fn limit(&self) -> u64 {
        (self.weights + self.kv) / 10 * 11 + self.activations
    }

    /// Whether the peak keeps to [`MemoryUse::limit`]; `None` where the peak is unknown, or the model is so small that what any model
    /// takes is more than the tenth.
    pub fn within(&self) -> Option<bool> {
        let fixed = self.weights + self.kv + self.activations + FIXED_COST;
        match self.peak {
            0 => None,
            peak if peak <= self.limit() => Some(true),
            peak if peak <= fixed => None,
            _ => Some(false),
        }
    }

    /// Whether the peak is known and the model too small to judge it.
    pub fn is_too_small(&self) -> bool {
        self.peak > 0 && self.within().is_none()
    }
}

/// One side in one mode.
#[derive(Debug, Clone)]
pub struct Record {
    /// What was measured.
    pub subject: Subject,
    /// `kiln`, `torch`, `torch-lean`, `llama.cpp`.
    pub side: String,
    /// `eager`, `default`, …
    pub mode: String,
    /// Name and version of the peer.
    pub peer: Option<String>,
    /// Seconds of the first call: capture, compile, run.
    pub first_call_s: Option<f64>,
    /// Milliseconds from the prompt to the first token, once compiled.
    pub prefill_ms: Option<f64>,
    /// Calls, warm-up not counted.
    pub samples: Samples,
    /// Kernels that were compiled.
    pub kernels: Option<u64>,
    /// Kernels that run in one call.
    pub launches: Option<u64>,
    /// Memory.
    pub memory: Option<MemoryUse>,
    /// Whether the results are those of Kiln's eager mode.
    pub matches_eager: Option<bool>,
    /// Largest difference of the logits from those of Kiln's eager mode; when decoding, after the prompt and after each further
    /// token, with the tokens of the eager mode fed to every side.
    pub max_abs_err: Option<f64>,
    /// How large that difference may be: what rounding of the dtype explains.
    pub logits_bound: Option<f64>,
    /// Positions whose logits were compared, over all texts.
    pub logits_compared: Option<usize>,
    /// Positions at which another token is the likeliest, of how many, with the same tokens fed.
    pub other_choices: Option<(usize, usize)>,
    /// How many leading tokens are those of Kiln's eager mode, of how many.
    pub same_ids: Option<(usize, usize)>,
    /// Whether there are fewer samples than requested, because the time was up.
    pub cut: bool,
    /// Why there are no figures.
    pub error: Option<String>,
    /// It was not tried, because the time was up.
    pub left_out: bool,
    /// What this kind of benchmark has to tell besides: an object, or nothing.
    pub extra: Value,
}

impl Record {
    /// With the samples of a side that was timed in this process.
    pub fn timed(subject: &Subject, side: &str, mode: &str, timing: &Timing) -> Record {
        Record { samples: timing.samples.clone(), ..Record::new(subject, side, mode) }
    }

    /// The records of PyTorch: of the modes that were timed, and of its failure if it failed. The first call is that of the default mode.
    pub fn of_torch<'a>(
        subject: &Subject,
        modes: impl Iterator<Item = (&'static str, Option<&'a Timing>)>,
        first_call: f64,
        version: Option<&str>,
        error: Option<&str>,
    ) -> Vec<Record> {
        let timed = modes.filter_map(|(mode, timing)| {
            let first_call_s = Some(first_call).filter(|first| mode == "default" && first.is_finite());
            let peer = version.map(str::to_owned);
            Some(Record { peer, first_call_s, ..Record::timed(subject, "torch", mode, timing?) })
        });
        timed.chain(Record::without_figures(subject, "torch", error)).collect()
    }

    /// Of a peer that failed, if it did: why.
    pub fn without_figures(subject: &Subject, side: &str, error: Option<&str>) -> Option<Record> {
        error.map(|error| Record { error: Some(error.to_owned()), ..Record::new(subject, side, "default") })
    }

    /// Nothing is known yet.
    pub fn new(subject: &Subject, side: &str, mode: &str) -> Record {
        Record {
            subject: subject.clone(),
            side: side.to_owned(),
            mode: mode.to_owned(),
            peer: None,
            first_call_s: None,
            prefill_ms: None,
            samples: Samples::default(),
            kernels: None,
            launches: None,
            memory: None,
            matches_eager: None,
            max_abs_err: None,
            logits_bound: None,
            logits_compared: None,
            other_choices: None,
            same_ids: None,
            cut: false,
            error: None,
            left_out: false,
            extra: Value::Null,
        }
    }

    /// `default` of Kiln, `torch:default` of a peer.
    pub fn label(&self) -> String {
        if self.is_kiln() { self.mode.clone() } else { format!("{}:{}", self.side, self.mode) }
    }

    /// Whether this is Kiln.
    pub fn is_kiln(&self) -> bool {
        self.side == "kiln"
    }

    /// Whether this is a compiler's work rather than one op after the other.
    pub fn is_compiled(&self) -> bool {
        self.mode != "eager"
    }

    /// Whether it was asked to be as exact as eager execution is.
    pub fn is_exact(&self) -> bool {
        !self.mode.split('+').any(|word| matches!(word, "high" | "medium"))
    }

    /// The figures; `None` of a side that failed.
    pub fn statistics(&self) -> Option<Statistics> {
        self.samples.statistics()
    }

    /// Calls a second, by the median as all ratios are.
    pub fn calls_per_s(&self) -> Option<f64> {
        self.statistics().filter(|s| s.median > 0.0).map(|s| 1e3 / s.median)
    }

    /// Tokens a second, by the median as all ratios are.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let tokens = self.subject.batch * self.subject.tokens_a_call;
        self.calls_per_s().filter(|_| tokens > 0).map(|calls| tokens as f64 * calls)
    }

    /// How many times as long another record's calls take, by medians.
    pub fn ratio(&self, other: &Record) -> Option<f64> {
        Some(other.statistics()?.median / self.statistics()?.median)
    }

    /// [`Record::ratio`] of the fastest samples, which noise of the machine affects the least.
    pub fn ratio_of_minima(&self, other: &Record) -> Option<f64> {
        Some(other.statistics()?.min / self.statistics()?.min)
    }

    /// The line of JSON.
    pub fn to_json(&self) -> Value {
        let s = &self.subject;
        let mut line = json!({
            "what": s.what, "model": s.model, "device": s.device, "dtype": s.dtype, "batch": s.batch, "prompt": s.prompt,
            "mode": self.label(), "side": self.side, "threads": s.threads, "first_call_s": self.first_call_s,
            "median_ms": null, "mean_ms": null, "std_ms": null, "p90_ms": null, "p99_ms": null, "min_ms": null,
            "max_ms": null, "repeats": 0, "tokens_per_s": self.tokens_per_s(), "prefill_ms": self.prefill_ms,
            "kernels": self.kernels, "launches": self.launches, "peak_bytes": null, "matches_eager": self.matches_eager,
            "max_abs_err": self.max_abs_err, "logits_bound": self.logits_bound, "logits_compared": self.logits_compared,
            "other_choices": self.other_choices.map(|(other, _)| other), "peer": self.peer, "cut_by_time": self.cut,
        });
        if let Some(statistics) = self.statistics() {
            statistics.write(&mut line);
        }
        if let Some(memory) = &self.memory {
            line["peak_bytes"] = json!(memory.peak);
            line["process_bytes"] = json!((memory.process > 0).then_some(memory.process));
            line["limit_bytes"] = json!(memory.limit());
            line["weights_bytes"] = json!(memory.weights);
            line["kv_bytes"] = json!(memory.kv);
            line["activation_bytes"] = json!(memory.activations);
            line["within_memory"] = json!(memory.within());
        }
        if let Some((same, all)) = self.same_ids {
            line["same_ids"] = json!(same);
            line["ids"] = json!(all);
        }
        if let Some(error) = &self.error {
            line["error"] = json!(error);
        }
        if let Some(line) = line.as_object_mut() {
            for more in [&self.extra, &machine::describe()] {
                line.extend(more.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), value.clone())));
            }
        }
        line
    }
}

/// A mode of Kiln that gives other results than eager fails the command, and so does a side without figures, a peer too. A lower
/// precision may give others, and a peer that was left out for want of time was not tried.
pub fn failed(records: &[Record]) -> Outcome {
    let differs = |record: &Record| record.is_kiln() && record.is_exact() && record.matches_eager == Some(false);
    let bad: Vec<&Record> =
        records.iter().filter(|record| (record.error.is_some() && !record.left_out) || differs(record)).collect();
    let Some(first) = bad.iter().find(|record| record.is_kiln()).or(bad.first()) else { return Ok(()) };
    let why = match &first.error {
        Some(error) => error.clone(),
        None => format!("it differs from eager: {}", super::table::agreement(first)),
    };
    let more = match bad.len() {
        1 => String::new(),
        all => format!(" (and {} of {} more)", all - 1, records.len()),
    };
    Err(Failure::new(format!("{} of {}: {why}{more}", first.label(), first.subject.model)).into())
}

/// The record to beat: the peer's fastest, by median, of those that have figures.
pub fn best_peer<'a>(records: impl IntoIterator<Item = &'a Record>) -> Option<&'a Record> {
    let peers = records.into_iter().filter(|record| !record.is_kiln());
    let timed = peers.filter_map(|record| Some((record.statistics()?.median, record)));
    timed.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, record)| record)
}

/// Kiln's fastest mode.
pub fn best_kiln<'a>(records: impl IntoIterator<Item = &'a Record>) -> Option<&'a Record> {
    let kiln = records.into_iter().filter(|record| record.is_kiln());
    let timed = kiln.filter_map(|record| Some((record.statistics()?.median, record)));
    timed.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, record)| record)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn subject() -> Subject {
        Subject {
            what: "decode".into(),
            model: "tiny".into(),
            device: "cpu".into(),
            dtype: "f32".into(),
            batch: 2,
            prompt: 16,
            threads: 1,
            tokens_a_call: 1,
        }
    }

    pub fn record(side: &str, mode: &str, ms: &[f64]) -> Record {
        let mut record = Record::new(&subject(), side, mode);
        record.samples.extend(ms.iter().copied());
        record
    }

    #[test]
    fn a_line_has_the_fields_that_were_promised() {
        let line = record("kiln", "default", &[1.0, 3.0]).to_json();
        let promised = "what model device dtype batch prompt mode first_call_s median_ms mean_ms std_ms p90_ms p99_ms \
                        tokens_per_s kernels launches peak_bytes matches_eager max_abs_err peer threads cpu date kiln";
        for field in promised.split_whitespace() {
            assert!(line.get(field).is_some(), "no {field} in {line}");
        }
        assert_eq!(line["mean_ms"], 2.0);
        // Two texts, one token each a call of 2 ms.
        assert_eq!(line["tokens_per_s"], 1000.0);
        assert_eq!(line["std_ms"], 1.0);
    }

    #[test]
    fn a_peer_names_itself_in_its_mode() {
        assert_eq!(record("kiln", "default", &[]).label(), "default");
        assert_eq!(record("torch-lean", "default", &[]).label(), "torch-lean:default");
    }

    #[test]
    fn the_peer_to_beat_is_the_fastest_one() {
        let all = [
            record("kiln", "default", &[1.0]),
            record("torch", "eager", &[9.0]),
            record("torch-lean", "default", &[4.0, 4.0, 400.0]),
            record("torch", "default", &[]),
        ];
        let best = best_peer(&all).expect("a peer");
        assert_eq!(best.label(), "torch-lean:default");
        assert_eq!(all[0].ratio(best), Some(4.0));
        assert_eq!(best_kiln(&all).map(Record::label).as_deref(), Some("default"));
    }

    #[test]
    fn memory_has_a_tenth_to_spare() {
        let mut memory = MemoryUse { weights: 900, kv: 100, activations: 7, process: 50_000, ..MemoryUse::default() };
        assert_eq!(memory.within(), None);
        memory.peak = 1107;
        assert_eq!(memory.within(), Some(true));
        // A tenth of a small model is less than what any model takes.
        memory.peak = 1108;
        assert_eq!((memory.within(), memory.is_too_small()), (None, true));
        memory.peak = 1007 + FIXED_COST + 1;
        assert_eq!((memory.within(), memory.is_too_small()), (Some(false), false));
        // That of a large one is more.
        let mut memory = MemoryUse { weights: 1_000_000_000, ..MemoryUse::default() };
        memory.peak = 1_100_000_001;
        assert_eq!(memory.within(), Some(false));
    }

    /// Rates, ratios and the order of sides are all of medians, so that the longer bar has the larger ×.
    #[test]
    fn one_statistic_orders_rates_and_ratios() {
        // The mean of the first is larger, its median smaller.
        let (a, b) = (record("kiln", "default", &[1.0, 1.0, 100.0]), record("torch", "default", &[2.0, 2.0, 2.0]));
        assert!(a.statistics().unwrap().mean > b.statistics().unwrap().mean);
        assert_eq!(a.ratio(&b), Some(2.0));
        assert_eq!(a.tokens_per_s().unwrap() / b.tokens_per_s().unwrap(), 2.0);
        assert_eq!(a.calls_per_s().unwrap() / b.calls_per_s().unwrap(), 2.0);
    }

    #[test]
    fn a_side_without_figures_fails_the_command() {
        let fine = record("kiln", "default", &[1.0]);
        let mut peer = record("torch", "default", &[]);
        assert!(failed(&[fine.clone(), peer.clone()]).is_ok());
        peer.error = Some("no compiler".into());
        let error = failed(&[fine.clone(), peer.clone()]).unwrap_err().to_string();
        assert_eq!(error, "torch:default of tiny: no compiler");
        peer.left_out = true;
        assert!(failed(&[fine.clone(), peer.clone()]).is_ok());
        let mut other = record("kiln", "default+high", &[1.0]);
        other.matches_eager = Some(false);
        assert!(failed(&[other.clone()]).is_ok(), "a lower precision may differ");
        other.mode = "default".into();
        assert!(failed(&[other]).is_err());
        peer.left_out = false;
        peer.matches_eager = Some(false);
        peer.error = None;
        assert!(failed(&[fine, peer]).is_ok(), "a peer may differ");
    }
}
