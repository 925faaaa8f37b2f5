//! Chooses among the variants of each kernel of a program by measurement.
//!
//! ```text
//!  rounds of the whole program: in each, every kernel runs one of its candidates     caches are as in a real run
//!    1. every candidate a few times            ──▶ the best few
//!    2. those and the present, alternating     ──▶ medians; a gain of less than 3 % is ignored
//!  outcome ──▶ memory and disk, by target, machine, kernel and sizes
//! ```
//!
//! All candidates compute the same, up to the order of sums.

use crate::disk::{self, Key, Kind};
use crate::event::{self, Category, Event};
use crate::program::Inspection;
use crate::sizing::CompiledVariant;
use crate::{Backend, Error, Executable, InputView, Keep, Program, Variant, kernel_cache};
use kiln_kernels::Role;
use kiln_kernels::kernel::{InstKind, Kernel};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A candidate must take at most this fraction of the present variant's time.
const GAIN: f64 = 0.97;
/// Rounds of the first measurement; the first of them only warms up.
const FIRST_ROUNDS: usize = 4;
/// Candidates that are measured again, beside the present variant.
const FINALISTS: usize = 3;
/// The most rounds of the second measurement, and the fewest needed for a decision.
const LAST_ROUNDS: usize = 21;
const FEWEST_ROUNDS: usize = 7;
/// How often the neighbourhood of the best candidate is searched.
const WAVES: usize = 2;

/// The outcome of tuning.
#[derive(Debug, Clone, Default)]
pub struct TuneReport {
    /// One entry for each distinct kernel and sizes with more than one variant.
    pub kernels: Vec<TunedKernel>,
    /// The time it took.
    pub took: Duration,
    /// Whether the budget ended before everything was measured.
    pub out_of_time: bool,
}

/// The outcome for one kernel at given sizes.
#[derive(Debug, Clone)]
pub struct TunedKernel {
    /// A short name of its ops.
    pub label: String,
    /// The launches of the program that run it.
    pub steps: Vec<usize>,
    /// The chosen variant.
    pub chosen: Variant,
    /// Candidates measured, without the present variant.
    pub tried: usize,
    /// Whether the variant has changed.
    pub changed: bool,
    /// Time of one launch before.
    pub before: Duration,
    /// Time of one launch now.
    pub after: Duration,
    /// The origin of the choice.
    pub from: TunedFrom,
}

impl TunedKernel {
    /// How many times as fast as before.
    pub fn gain(&self) -> f64 {
        self.before.as_secs_f64() / self.after.as_secs_f64().max(1e-12)
    }
}

/// The origin of a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TunedFrom {
    /// It was measured now.
    Measured,
    /// It was measured by this process before.
    Memory,
    /// It was measured by another process.
    Disk,
    /// There was no time to decide.
    Undecided,
}

impl TuneReport {
    /// The sum of all launch times before tuning.
    pub fn before(&self) -> Duration {
        self.kernels.iter().map(|k| k.before * k.steps.len() as u32).sum()
    }

    /// The sum of all launch times after tuning.
    pub fn after(&self) -> Duration {
        self.kernels.iter().map(|k| k.after * k.steps.len() as u32).sum()
    }
}

/// A kernel being measured.
struct Subject {
    steps: Vec<usize>,
    kernel: Arc<Kernel>,
    sizes: Vec<i64>,
    label: String,
    key: Key,
    candidates: Vec<Candidate>,
    /// The candidate that is run in the current round.
    turn: usize,
    /// Everything that was or is a candidate.
    tried: Vec<Variant>,
    /// Nothing more is to be measured for now.
    decided: bool,
    /// The outcome so far.
    found: Option<StoredOutcome>,
}

struct Candidate {
    variant: Variant,
    code: Arc<dyn Executable>,
    /// Nanoseconds of one launch, one sample per round.
    samples: Vec<f64>,
}

/// An outcome as it is stored.
#[derive(Debug, Clone, PartialEq)]
struct StoredOutcome {
    choices: String,
    before: f64,
    after: f64,
    tried: usize,
}

impl StoredOutcome {
    fn to_text(&self) -> String {
        format!("{}\n{}\n{}\n{}", self.choices, self.before, self.after, self.tried)
    }

    fn parse(bytes: &[u8]) -> Option<StoredOutcome> {
        let mut lines = std::str::from_utf8(bytes).ok()?.split('\n');
        let choices = lines.next()?.to_owned();
        let mut number = || lines.next()?.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
        let (before, after, tried) = (number()?, number()?, number()? as usize);
        Some(StoredOutcome { choices, before, after, tried })
    }
}

static MEMORY: LazyLock<Mutex<HashMap<[u8; 32], StoredOutcome>>> = LazyLock::new(Mutex::default);
/// Outcomes in memory, a few hundred bytes each; beyond that all are forgotten, and read from the disk again.
const OUTCOMES_KEPT: usize = 8192;

fn remember(key: &Key, kept: &StoredOutcome) {
    let mut memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    if memory.len() >= OUTCOMES_KEPT {
        memory.clear();
    }
    memory.insert(*key.digest(), kept.clone());
}

fn recall(key: &Key) -> Option<(StoredOutcome, TunedFrom)> {
    let memory = MEMORY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = memory.get(key.digest()) {
        return Some((kept.clone(), TunedFrom::Memory));
    }
    drop(memory);
    let bytes = disk::get(Kind::Tuning, key)?;
    let Some(kept) = StoredOutcome::parse(&bytes) else {
        disk::reject(Kind::Tuning, key, "it is not an outcome of tuning");
        return None;
    };
    remember(key, &kept);
    Some((kept, TunedFrom::Disk))
}

fn keep(key: &Key, kept: &StoredOutcome) {
    disk::put(Kind::Tuning, key, kept.to_text().as_bytes());
    remember(key, kept);
}

/// Forgets what this process has measured; what is on the disk stays.
pub fn forget() {
    MEMORY.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

impl Program {
    /// Measures the variants of each kernel on these inputs, for about as long as `budget` says, and takes the fastest. What
    /// was measured before on this machine, by this process or another one, is taken over without measuring. The inputs are not
    /// changed.
    ///
    /// Outcomes hold for the sizes of these inputs; other sizes are run as before. Calls of other threads go on meanwhile,
    /// which makes measurements less certain.
    pub fn tune(&self, inputs: &[InputView<'_>], budget: Duration) -> Result<TuneReport, Error> {
        let start = Instant::now();
        let mut report = TuneReport::default();
        let mut subjects = Vec::new();
        let inspection = self.inspect(inputs)?;
        let (sizing, compiled_variants) = (inspection.sizing.clone(), inspection.compiled_variants.clone());
        for subject in self.subjects(&inspection) {
            match recall(&subject.key).and_then(|(kept, from)| self.recalled(&subject, &kept, from)) {
                Some(found) => report.kernels.push(found),
                // Not asked of what is known: the backend may have to make every candidate's text to tell.
                None if self.has_choice(&subject) => subjects.push(subject),
                None => {}
            }
        }
        let begin = counters(self, inputs, &inspection)?;
        let mut inspection = inspection;
        if self.backend.is_asynchronous() && !subjects.is_empty() {
            // What a launch alone reads is there.
            inspection.launch_all()?;
        }
        let mut rounds = Rounds { program: self, inspection, deadline: start + budget, begin };
        for wave in 0..WAVES {
            rounds.prepare(&mut subjects, wave)?;
            if subjects.iter().all(|subject| subject.decided) {
                break;
            }
            rounds.measure(&mut subjects)?;
        }
        report.out_of_time = subjects.iter().any(|subject| !subject.decided);
        report.kernels.extend(subjects.iter().map(Subject::measured));
        let mut compiled_variants = compiled_variants.to_vec();
        for found in &report.kernels {
            self.choose(found, &mut compiled_variants)?;
        }
        sizing.set_compiled_variants(compiled_variants.into());
        report.took = start.elapsed();
        event::emit(Category::Perf, || Event::ProgramTuned {
            kernels: report.kernels.len(),
            changed: report.kernels.iter().filter(|k| k.changed).count(),
            before: report.before(),
            after: report.after(),
            took: report.took,
        });
        Ok(report)
    }

    /// The distinct kernels of a program, each in its untuned variant.
    fn subjects(&self, inspection: &Inspection<'_>) -> Vec<Subject> {
        let mut subjects: Vec<Subject> = Vec::new();
        let (target, machine) = (self.backend.target(), self.backend.machine());
        // Launches of an asynchronous device are timed alone, on what the program left in memory: a place that data decide would
        // be any place, and its index out of range.
        let alone = self.backend.is_asynchronous();
        for (number, step) in self.steps.iter().enumerate() {
            if alone && step.kernel.insts().any(|inst| matches!(inst.kind, InstKind::CheckIndex { .. })) {
                continue;
            }
            let sizes = inspection.launch_sizes(number);
            let same = |s: &&mut Subject| {
                s.kernel == step.kernel && s.sizes == sizes && s.candidates[0].variant == step.variant
            };
            if let Some(subject) = subjects.iter_mut().find(same) {
                subject.steps.push(number);
                continue;
            }
            let key = Key::build()
                .part("target", &target)
                .part("machine", &machine)
                .content("kernel", step.kernel.to_string().as_bytes())
                .part("variant", &step.variant.to_string())
                .part("sizes", &format!("{sizes:?}"))
                .note("label", step.label())
                .finish();
            let now = Candidate { variant: step.variant.clone(), code: step.code.clone(), samples: Vec::new() };
            subjects.push(Subject {
                steps: vec![number],
                kernel: step.kernel.clone(),
                sizes: sizes.to_vec(),
                label: step.label().to_owned(),
                key,
                candidates: vec![now],
                turn: 0,
                tried: Vec::new(),
                decided: false,
                found: None,
            });
        }
        subjects
    }

    fn has_choice(&self, subject: &Subject) -> bool {
        !self.backend.variants(&subject.kernel, &subject.candidates[0].variant, &subject.sizes).is_empty()
    }

    /// A known outcome, if its code can still be compiled.
    fn recalled(&self, subject: &Subject, kept: &StoredOutcome, from: TunedFrom) -> Option<TunedKernel> {
        let chosen = subject.candidates[0].variant.choosing(kept.choices.clone());
        kernel_cache::get_variant(&*self.backend, &subject.kernel, &chosen, &subject.label, self.keep).ok()?;
        Some(subject.outcome(kept, from))
    }

    /// Applies the outcomes to the launches.
    fn choose(&self, found: &TunedKernel, compiled_variants: &mut [CompiledVariant]) -> Result<(), Error> {
        for &number in &found.steps {
            if compiled_variants[number].variant == found.chosen {
                continue;
            }
            let step = &self.steps[number];
            let (code, _) =
                kernel_cache::get_variant(&*self.backend, &step.kernel, &found.chosen, step.label(), self.keep)?;
            compiled_variants[number] = CompiledVariant { variant: found.chosen.clone(), code };
        }
        if let Some(&first) = found.steps.first().filter(|_| found.changed) {
            event::emit(Category::Perf, || Event::KernelTuned {
                label: found.label.clone(),
                chosen: found.chosen.to_string(),
                gain: found.gain(),
                tried: found.tried,
                at: self.steps[first].source().clone(),
            });
        }
        Ok(())
    }
}

/// Rounds of a whole program.
struct Rounds<'a> {
    program: &'a Program,
    inspection: Inspection<'a>,
    deadline: Instant,
    /// The contents that every round begins with.
    begin: Vec<(usize, Vec<u8>)>,
}

/// Integers that the program updates, by buffer. A position that advances with every round would soon be out of range of what
/// it indexes; other updated inputs may hold anything.
fn counters(
    program: &Program,
    inputs: &[InputView<'_>],
    inspection: &Inspection<'_>,
) -> Result<Vec<(usize, Vec<u8>)>, Error> {
    let mut counters = Vec::new();
    for (buffer, decl) in program.schedule.buffers.iter().enumerate() {
        if let Role::Input(input) = decl.role
            && program.updates.contains(&input)
            && !inputs[input].dtype.is_float()
        {
            counters.push((buffer, inspection.read(buffer)?));
        }
    }
    Ok(counters)
}

impl Rounds<'_> {
    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Gives every subject its candidates: neighbours of the present variant, or of the best so far.
    fn prepare(&self, subjects: &mut [Subject], wave: usize) -> Result<(), Error> {
        let (backend, keep): (&dyn Backend, Keep) = (&*self.program.backend, self.program.keep);
        let mut searched: Vec<(&mut Subject, Vec<Variant>)> = Vec::new();
        for subject in subjects.iter_mut().filter(|s| wave == 0 || s.decided) {
            // The best comes last; after a decision only it and the present variant are left.
            let best = subject.candidates.len() - 1;
            if wave > 0 && best == 0 {
                continue;
            }
            let mut near = backend.variants(&subject.kernel, &subject.candidates[best].variant, &subject.sizes);
            near.retain(|variant| subject.candidates[0].variant != *variant && !subject.tried.contains(variant));
            searched.push((subject, near));
        }
        let of_subject = |(subject, near): &'_ (&mut Subject, Vec<Variant>)| {
            near.iter()
                .map(|variant| (subject.kernel.clone(), variant.clone(), subject.label.clone()))
                .collect::<Vec<_>>()
        };
        let list: Vec<_> = searched.iter().flat_map(of_subject).collect();
        let list: Vec<_> =
            list.iter().map(|(kernel, variant, label)| (kernel, variant.clone(), label.as_str())).collect();
        kernel_cache::prepare_variants(backend, &list, keep);
        for (subject, near) in searched {
            let mut fresh = 0;
            for variant in near {
                // A variant that cannot be compiled is dropped.
                let made = kernel_cache::get_variant(backend, &subject.kernel, &variant, &subject.label, keep);
                if let Ok((code, _)) = made {
                    subject.candidates.push(Candidate { variant: variant.clone(), code, samples: Vec::new() });
                    subject.tried.push(variant);
                    fresh += 1;
                }
            }
            subject.decided = fresh == 0;
        }
        Ok(())
    }

    /// Measures until every subject is decided or time is up.
    fn measure(&mut self, subjects: &mut [Subject]) -> Result<(), Error> {
        let most = subjects.iter().filter(|s| !s.decided).map(|s| s.candidates.len()).max().unwrap_or(0);
        self.rounds(subjects, most * FIRST_ROUNDS, 0)?;
        for subject in subjects.iter_mut().filter(|s| !s.decided) {
            subject.drop_slow();
        }
        let most = subjects.iter().filter(|s| !s.decided).map(|s| s.candidates.len()).max().unwrap_or(0);
        self.rounds(subjects, most * LAST_ROUNDS, most * FEWEST_ROUNDS)?;
        for subject in subjects.iter_mut().filter(|s| !s.decided) {
            subject.decide();
        }
        Ok(())
    }

    /// Runs the program `count` times, every subject with its next candidate in each. Once every subject is settled, `fewest`
    /// rounds are enough.
    fn rounds(&mut self, subjects: &mut [Subject], count: usize, fewest: usize) -> Result<(), Error> {
        for subject in subjects.iter_mut().filter(|s| !s.decided) {
            subject.candidates.iter_mut().for_each(|c| c.samples.clear());
            subject.turn = 0;
        }
        let mut owner = vec![None; self.program.steps.len()];
        // A backend that times by itself, with cold caches, need not run the rest of the program; and one launch is like the others.
        let alone = self.program.backend.is_asynchronous();
        for (number, subject) in subjects.iter().enumerate().filter(|(_, s)| !s.decided) {
            let steps = if alone { &subject.steps[..1] } else { &subject.steps };
            steps.iter().for_each(|&step| owner[step] = Some(number));
        }
        let start = Instant::now();
        for round in 0..count {
            let enough = fewest > 0 && round >= fewest && start.elapsed() > Duration::from_millis(200);
            if self.is_late() || enough {
                break;
            }
            for (buffer, bytes) in &self.begin {
                self.inspection.write(*buffer, bytes)?;
            }
            let mut spent = vec![Duration::ZERO; subjects.len()];
            for (step, owner) in owner.iter().enumerate() {
                match owner {
                    Some(number) => {
                        let subject = &subjects[*number];
                        spent[*number] += self.inspection.launch_as(step, &*subject.candidates[subject.turn].code)?;
                    }
                    None if alone => {}
                    None => {
                        self.inspection.launch(step)?;
                    }
                }
            }
            for (subject, spent) in subjects.iter_mut().zip(spent).filter(|(s, _)| !s.decided) {
                let launches = if alone { 1 } else { subject.steps.len() };
                let nanos = spent.as_nanos() as f64 / launches as f64;
                subject.candidates[subject.turn].samples.push(nanos);
                subject.turn = (subject.turn + 1) % subject.candidates.len();
            }
        }
        Ok(())
    }
}

impl Candidate {
    fn least(&self) -> f64 {
        // The first sample is of cold code.
        self.samples.iter().skip(1).copied().fold(f64::INFINITY, f64::min)
    }

    fn median(&self) -> f64 {
        let mut samples = self.samples.clone();
        samples.sort_by(f64::total_cmp);
        samples.get(samples.len() / 2).copied().unwrap_or(f64::INFINITY)
    }
}

impl Subject {
    /// Keeps the present variant and the best few others.
    fn drop_slow(&mut self) {
        let now = self.candidates.remove(0);
        self.candidates.sort_by(|a, b| a.least().total_cmp(&b.least()));
        self.candidates.truncate(FINALISTS);
        self.candidates.insert(0, now);
    }

    /// Chooses, if there are enough samples, and stores the outcome.
    fn decide(&mut self) {
        if self.candidates.iter().any(|c| c.samples.len() < FEWEST_ROUNDS) {
            return;
        }
        let (before, least) = (self.candidates[0].median(), self.candidates[0].least());
        let others = self.candidates.iter().enumerate().skip(1);
        let best = others.min_by(|(_, a), (_, b)| a.median().total_cmp(&b.median())).map(|(at, _)| at);
        let faster = |c: &Candidate| c.median() < before * GAIN && c.least() < least;
        let best = best.filter(|&at| faster(&self.candidates[at]));
        let chosen = best.map(|at| self.candidates.swap_remove(at));
        self.candidates.truncate(1);
        self.candidates.extend(chosen);
        self.decided = true;
        let last = &self.candidates[self.candidates.len() - 1];
        let kept = StoredOutcome {
            choices: last.variant.choices.clone(),
            before,
            after: last.median(),
            tried: self.tried.len(),
        };
        keep(&self.key, &kept);
        self.found = Some(kept);
    }

    /// The outcome as reported to the user.
    fn outcome(&self, kept: &StoredOutcome, from: TunedFrom) -> TunedKernel {
        let time = |nanos: f64| Duration::from_secs_f64(if nanos.is_finite() { nanos / 1e9 } else { 0.0 });
        let was = &self.candidates[0].variant;
        let chosen = was.choosing(kept.choices.clone());
        TunedKernel {
            label: self.label.clone(),
            steps: self.steps.clone(),
            changed: chosen != *was,
            chosen,
            tried: kept.tried,
            before: time(kept.before),
            after: time(kept.after),
            from,
        }
    }

    /// The outcome of a measurement.
    fn measured(&self) -> TunedKernel {
        match &self.found {
            Some(kept) => self.outcome(kept, TunedFrom::Measured),
            None => {
                let (now, time) = (&self.candidates[0].variant, self.candidates[0].median());
                let kept =
                    StoredOutcome { choices: now.choices.clone(), before: time, after: time, tried: self.tried.len() };
                self.outcome(&kept, TunedFrom::Undecided)
            }
        }
    }
}
