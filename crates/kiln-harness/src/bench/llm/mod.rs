//! Language models: every mode of Kiln and of its peers is a process of its own, all read the same weights, and they take
//! turns.
//!
//! ```text
//!  model ─▶ folder with safetensors ─┬▶ kiln eager ─┐
//!                                    ├▶ kiln default ├▶ turn, turn, … ─▶ memory ─▶ logits ─▶ records
//!                                    └▶ torch …     ─┘
//! ```

mod agreement;
mod kiln_side;
pub mod models;
pub mod sides;

use super::record::{MemoryUse, Record, Subject};
use super::side::{Side, SideError};
use agreement::{ExactError, Expected, agreeing};
use kiln_llm::WeightFormat;
use kiln_terminal::failure::without_own_lines;
use models::Source;
use serde_json::{Value, json};
use sides::Role;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kiln_side::SERIAL;
pub use kiln_side::{options, run as serve};

/// One comparison.
pub struct Plan {
    /// `decode` or `forward`.
    pub what: &'static str,
    /// Files that all sides read.
    pub source: Source,
    /// `f32`, `bf16`, `f16`.
    pub dtype: String,
    /// Where.
    pub device: String,
    /// Of all sides.
    pub threads: usize,
    /// Texts at a time.
    pub batch: usize,
    /// Steps that Kiln launches ahead of the token it reads; the device's own number where it is not given.
    pub ahead: Option<usize>,
    /// The folder of Kiln's disk cache, which is off where there is none.
    pub cache: Option<PathBuf>,
    /// Whether the logits of all sides are held against those of float32.
    pub exact: bool,
    /// Tokens of the prompt, or of a pass.
    pub prompt: usize,
    /// Tokens of a text after the first.
    pub tokens: usize,
    /// Samples a side.
    pub repeats: usize,
    /// Turns in which they are taken.
    pub turns: usize,
    /// Seconds of samples a side at the most.
    pub seconds: f64,
    /// Whether to show the launches of a pass.
    pub explain: bool,
    /// Who takes part.
    pub roles: Vec<Role>,
    /// For the peers.
    pub python: String,
    /// How long a side may take to open.
    pub patience: Duration,
    /// No peer is begun after this.
    pub deadline: Option<Instant>,
}

/// Calls at the start of a turn that are not counted: the other sides had the caches.
const WARM_UP: usize = 2;

/// Calls after the first text until a peak is read.
const WEIGHED: usize = 8;

/// Positions of a pass whose logits are compared.
const ROWS: usize = 32;

/// Tokens behind the prompt whose logits are compared when decoding.
const FOLLOWING: usize = 64;

/// What a side gave: its figures, the tokens of its texts, and its logits.
type Results = (Record, Vec<Vec<u32>>, Vec<f32>);

/// A side that is open.
struct Open {
    side: Side,
    record: Record,
    ids: Vec<Vec<u32>>,
}

impl Plan {
    fn subject(&self) -> Subject {
        Subject {
            what: self.what.into(),
            model: self.source.name.clone(),
            device: self.device.clone(),
            dtype: self.dtype.clone(),
            batch: self.batch,
            prompt: self.prompt,
            threads: self.threads,
            tokens_a_call: if self.what == "decode" { 1 } else { self.prompt },
        }
    }

    /// Ids below the vocabulary's size, the same in every run.
    fn prompts(&self) -> Vec<Vec<u32>> {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 33) as usize
        };
        // The first few ids are control tokens in most vocabularies.
        let (low, high) = (3.min(self.source.vocabulary - 1), self.source.vocabulary);
        let mut text = || (0..self.prompt).map(|_| (low + next() % (high - low)) as u32).collect();
        (0..self.batch).map(|_| text()).collect()
    }

    fn context(&self) -> usize {
        let wanted = if self.what == "decode" { self.prompt + self.tokens + 1 } else { self.prompt };
        wanted.next_multiple_of(64).min(self.source.longest)
    }

    /// Bytes that a pass over the largest bucket has beside weights and cache: one layer of it, and the logits.
    fn activations(&self) -> u64 {
        let (bucket, rows) = match self.what {
            "decode" => (self.prompt.next_power_of_two().clamp(16, 512), 1),
            _ => (self.prompt, self.prompt),
        };
        let elements = self.batch * (bucket * self.source.width + rows * self.source.vocabulary);
        elements as u64 * if self.dtype == "f32" { 4 } else { 2 }
    }

    /// The same, with no peer begun after a time and none waited for much longer.
    pub fn until(self, deadline: Instant) -> Plan {
        Plan { deadline: Some(deadline), ..self }
    }

    /// What a side is asked to open.
    fn request(&self, role: &Role, dtype: &str) -> Value {
        let folder = if role.side == "kiln" { &self.source.whole } else { &self.source.path };
        json!({
            "do": "open", "what": self.what, "folder": folder, "layers": self.source.layers, "style": role.style(), "mode": role.mode,
            "dtype": dtype, "weights": self.source.weights.name(), "device": self.device, "threads": self.threads, "context": self.context(),
            "prompts": self.prompts(), "tokens": self.tokens, "ahead": self.ahead, "cache": self.cache,
        })
    }

    /// The logits of the same tokens in float32, by a side that is opened for them alone: PyTorch where it takes part, which is the
    /// judge of both then, Kiln's eager mode elsewhere. Weights are widened, which is exact.
    fn float32(&self, follow: &[Vec<u32>], file: &Path) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
        let has_torch = self.roles.iter().any(|role| role.side.starts_with("torch"));
        let role = if has_torch { Role::peer("torch:eager")? } else { Role::kiln("eager")? };
        tell(&format!("{} {}: float32 by {}", self.what, self.source.name, role.label()));
        let mut side = role.start(self.what, &self.python)?;
        side.ask(&self.request(&role, "f32"), self.patience)?;
        side.ask(&json!({"do": "check", "file": file, "rows": ROWS, "follow": follow}), self.patience)?;
        Ok(read_logits(file))
    }

    fn open(&self, role: &Role) -> (Record, Result<Open, SideError>) {
        let mut record = Record::new(&self.subject(), &role.side, &role.mode);
        let left = self.deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() && role.side != "kiln" {
            let late = SideError::Failed("left out: the time was up".into());
            record.error = Some(late.to_string());
            record.left_out = true;
            return (record, Err(late));
        }
        let patience = self.patience.min(left.max(Duration::from_secs(60)));
        let request = self.request(role, &self.dtype);
        let opened = role.start(self.what, &self.python).and_then(|mut side| {
            let answer = side.ask(&request, patience)?;
            // Where this fails the peak stays unknown.
            let weighed = if role.side == "kiln" { self.weigh(role, &request, patience).ok() } else { None };
            let (peak, process) = weighed.unwrap_or_default();
            record.first_call_s = answer["first_call_s"].as_f64();
            record.kernels = answer["kernels"].as_u64();
            record.launches = answer["launches"].as_u64();
            record.peer = answer["peer"].as_str().map(str::to_owned);
            if let Some(ahead) = answer["ahead"].as_u64() {
                record.extra = json!({"steps_ahead": ahead});
            }
            for name in ["first_call_ms", "later_ms"].into_iter().filter(|name| answer[*name].is_object()) {
                record.extra[name] = answer[name].clone();
            }
            if role.side == "kiln" {
                record.extra["disk_cache"] = json!(self.cache.is_some());
            }
            if self.source.weights != WeightFormat::AsStored {
                record.extra["weights"] = json!(self.source.weights.name());
            }
            record.memory = Some(MemoryUse {
                peak,
                process,
                weights: answer["weights_bytes"].as_u64().unwrap_or(0),
                kv: answer["kv_bytes"].as_u64().unwrap_or(0),
                activations: self.activations(),
            });
            Ok(Open { side, record: record.clone(), ids: ids(&answer) })
        });
        if let Err(error) = &opened {
            record.error = Some(without_own_lines(&error.to_string()));
        }
        (record, opened)
    }

    /// The peak of one of Kiln's modes and what its bare process holds. In a process of its own: there every page of the
    /// program is read before anything is loaded, which would make a first call look shorter than it is.
    fn weigh(&self, role: &Role, request: &Value, patience: Duration) -> Result<(u64, u64), SideError> {
        let mut side = role.start(self.what, &self.python)?;
        let mut request = request.clone();
        request["weigh"] = json!(true);
        side.ask(&request, patience)?;
        side.ask(&json!({"do": "turn", "repeats": WEIGHED, "seconds": 5.0}), patience)?;
        let answer = side.ask(&json!({"do": "memory"}), patience)?;
        let bytes = |name: &str| answer[name].as_u64().unwrap_or(0);
        Ok((bytes("peak_bytes"), bytes("process_bytes")))
    }

    /// Samples of one turn.
    fn turn(&self, open: &mut Open) -> Result<(), SideError> {
        let repeats = match self.what {
            // A turn is a text.
            "decode" => self.tokens,
            _ => self.repeats.div_ceil(self.turns) + WARM_UP,
        };
        let seconds = self.seconds / self.turns as f64;
        let limit = Duration::from_secs_f64(seconds * 4.0 + 120.0);
        let answer = open.side.ask(&json!({"do": "turn", "repeats": repeats, "seconds": seconds}), limit)?;
        let samples: Vec<f64> = answer["ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let drained = answer["drained"].as_u64().unwrap_or(0) as usize;
        open.record.cut |= samples.len() + drained < repeats;
        open.record.samples.extend(samples.into_iter().skip(WARM_UP));
        if let Some(prefill) = answer["prefill_ms"].as_f64() {
            let least = open.record.prefill_ms.map_or(prefill, |before| before.min(prefill));
            open.record.prefill_ms = Some(least);
        }
        Ok(())
    }

    /// Opens every side, lets them take turns, then asks each for its memory and its logits.
    pub fn run(&self) -> Result<Vec<Record>, Box<dyn std::error::Error>> {
        let scratch = models::Scratch::new()?;
        let mut all: Vec<Result<Open, Record>> = Vec::new();
        for role in &self.roles {
            tell(&format!("{} {}: {} opens", self.what, self.source.name, role.label()));
            let (record, opened) = self.open(role);
            all.push(opened.map_err(|_| record));
        }
        for turn in 0..self.turns {
            tell(&format!("{} {}: turn {} of {}", self.what, self.source.name, turn + 1, self.turns));
            for slot in &mut all {
                let Ok(open) = slot else { continue };
                if let Err(error) = self.turn(open) {
                    let mut record = open.record.clone();
                    record.error = Some(without_own_lines(&error.to_string()));
                    *slot = Err(record);
                }
            }
        }
        if self.explain {
            for open in all.iter_mut().flatten().filter(|open| open.record.is_kiln() && open.record.is_compiled()) {
                let answer = open.side.ask(&json!({"do": "explain"}), self.patience)?;
                println!("{}: {}", open.record.label(), answer["text"].as_str().unwrap_or_default());
            }
        }
        tell(&format!("{} {}: memory and results", self.what, self.source.name));
        let follow = following(&all);
        let mut found = Vec::new();
        for (number, slot) in all.into_iter().enumerate() {
            found.push(match slot {
                Ok(open) => self.finish(open, &follow, &scratch.path().join(format!("logits-{number}"))),
                Err(record) => (record, Vec::new(), Vec::new()),
            });
        }
        if self.exact {
            let exact = self.float32(&follow, &scratch.path().join("logits-f32"))?;
            for (record, _, logits) in &mut found {
                if let Some(error) = ExactError::of(logits, &exact) {
                    record.extra["float32"] =
                        json!({"rmse": error.rmse, "max_abs_err": error.largest, "logits_rms": error.scale});
                }
            }
        }
        same_bits(&mut found);
        tell("");
        Ok(self.compare(found))
    }

    /// Asks a side for its memory and its logits, all sides for those of the same tokens.
    fn finish(&self, mut open: Open, follow: &[Vec<u32>], file: &Path) -> Results {
        let limit = Duration::from_secs(600);
        if !open.record.is_kiln()
            && let (Ok(answer), Some(memory)) =
                (open.side.ask(&json!({"do": "memory"}), limit), &mut open.record.memory)
        {
            memory.peak = answer["peak_bytes"].as_u64().unwrap_or(0);
        }
        let request = json!({"do": "check", "file": file, "rows": ROWS, "follow": follow});
        let logits = match open.side.ask(&request, limit) {
            Ok(_) => read_logits(file),
            Err(error) => {
                open.record.error = Some(without_own_lines(&error.to_string()));
                Vec::new()
            }
        };
        (open.record, open.ids, logits)
    }

    /// Holds every side's tokens and logits against those of Kiln's eager mode, or of its first mode without one.
    fn compare(&self, found: Vec<Results>) -> Vec<Record> {
        let kiln = |(record, _, logits): &&Results| record.is_kiln() && !logits.is_empty();
        let eager = found.iter().filter(kiln).find(|(record, ..)| !record.is_compiled());
        let reference = eager.or_else(|| found.iter().find(kiln)).map(|(_, ids, logits)| (ids.clone(), logits.clone()));
        let mut records = Vec::new();
        for (mut record, ids, logits) in found {
            if let Some((right, expected)) = &reference
                && !logits.is_empty()
            {
                let expected = Expected::new(expected, self.source.vocabulary, &self.dtype);
                let found = expected.compare(&logits);
                record.max_abs_err = Some(found.error);
                record.logits_bound = Some(found.bound);
                record.logits_compared = Some(found.positions);
                record.other_choices = Some((found.other_choices, found.positions));
                let mut same = found.is_right();
                if !right.is_empty() {
                    record.same_ids = Some(agreeing(&ids, right));
                    same &= expected.allows(&ids, right, self.dtype == "f32");
                }
                record.matches_eager = Some(same);
            }
            records.push(record);
        }
        records
    }
}

/// Holds the logits of modes in which launches do not overlap against the same modes in which they do: an overlap that is right
/// changes no bit.
fn same_bits(found: &mut [Results]) {
    let serial = format!("+{SERIAL}");
    let bits = |logits: &[f32]| logits.iter().map(|logit| logit.to_bits()).collect::<Vec<u32>>();
    for at in 0..found.len() {
        let Some(mode) = found[at].0.mode.strip_suffix(&serial).filter(|_| found[at].0.is_kiln()) else { continue };
        let Some((_, _, other)) = found.iter().find(|(record, ..)| record.is_kiln() && record.mode == mode) else {
            continue;
        };
        let same = !other.is_empty() && bits(other) == bits(&found[at].2);
        let record = &mut found[at].0;
        record.extra["same_bits"] = json!(same);
        if !same && record.error.is_none() {
            record.error = Some("its logits are not those of launches that overlap, bit by bit".to_owned());
        }
    }
}

/// The tokens that every side is fed to compare logits: those of Kiln's eager mode, or of its first mode without one.
fn following(sides: &[Result<Open, Record>]) -> Vec<Vec<u32>> {
    let kiln = || sides.iter().flatten().filter(|open| open.record.is_kiln());
    let Some(open) = kiln().find(|open| !open.record.is_compiled()).or_else(|| kiln().next()) else {
        return Vec::new();
    };
    // Nothing comes after the last one.
    let cut = |ids: &Vec<u32>| ids[..ids.len().saturating_sub(1).min(FOLLOWING)].to_vec();
    open.ids.iter().map(cut).collect()
}

/// Tells on standard error how far a run is, where somebody watches.
fn tell(text: &str) {
    use std::io::{IsTerminal, Write};
    let mut errors = std::io::stderr().lock();
    if errors.is_terminal() {
        // Only a courtesy.
        let _ = write!(errors, "\r\x1b[2K\x1b[2m{text}\x1b[0m").and_then(|()| errors.flush());
    }
}

fn ids(answer: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(answer["ids"].clone()).unwrap_or_default()
}

fn read_logits(file: &Path) -> Vec<f32> {
    let bytes = std::fs::read(file).unwrap_or_default();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}
