//! Events: what the runtime does that a user may want to know. Off by default, at the cost of one relaxed load.
//!
//! ```text
//!  emit ──▶ does the category have listeners?     ──▶ the log (stderr, what KILN_LOG names; or the sink set instead of it)
//!                                                ├──▶ listener, as long as its guard lives
//!                                                └──▶ listener …
//! ```
//!
//! `KILN_LOG=breaks,recompiles` (or `all`) prints events of these categories to stderr, a line each; [`set_sink`] sends them
//! elsewhere; [`listen`] adds a listener for as long as its guard lives. Warnings ([`warn`]) are printed to stderr even without
//! `KILN_LOG`; `KILN_LOG=off` silences them. An event says what happened, at which line of the user's code, and the remedy
//! where there is one.

use crate::disk::Activity;
use crate::environment::{self, Problem};
use kiln_ir::Source;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Once, PoisonError, RwLock};
use std::time::Duration;

/// The category of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Category {
    /// Functions that could not be captured whole.
    Breaks = 1,
    /// The guards of programs.
    Guards = 2,
    /// Functions captured again because a guard failed.
    Recompiles = 4,
    /// Fused nodes, and those that were not fused and why.
    Fusion = 8,
    /// Programs and code made, checked and dumped.
    Kernels = 16,
    /// Programs and kernels found, not found and kept in a cache.
    Cache = 32,
    /// Something slower than it should be, for instance a copy to make a tensor contiguous; and what tuning chose.
    Perf = 64,
    /// Programs run: one line per call.
    Run = 128,
}

impl Category {
    /// Every category.
    pub const ALL: [Category; 8] = [
        Category::Breaks,
        Category::Guards,
        Category::Recompiles,
        Category::Fusion,
        Category::Kernels,
        Category::Cache,
        Category::Perf,
        Category::Run,
    ];

    /// The name in `KILN_LOG`.
    pub const fn name(self) -> &'static str {
        match self {
            Category::Breaks => "breaks",
            Category::Guards => "guards",
            Category::Recompiles => "recompiles",
            Category::Fusion => "fusion",
            Category::Kernels => "kernels",
            Category::Cache => "cache",
            Category::Perf => "perf",
            Category::Run => "run",
        }
    }

    /// The category of a name in `KILN_LOG`.
    ///
    /// ```
    /// use kiln_runtime::event::Category;
    /// assert_eq!(Category::named("kernels"), Some(Category::Kernels));
    /// assert_eq!(Category::named("compile"), Some(Category::Kernels), "another word for it");
    /// ```
    pub fn named(name: &str) -> Option<Category> {
        match name {
            "compile" => Some(Category::Kernels),
            "slow" => Some(Category::Perf),
            _ => Category::ALL.into_iter().find(|c| c.name() == name),
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that happened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// A backend made code for a kernel.
    KernelCompiled {
        /// The backend's target.
        target: String,
        /// The ops in the kernel.
        label: String,
        /// Size of the code.
        code_bytes: usize,
        /// The time it took.
        took: Duration,
    },
    /// A graph became a program.
    ProgramBuilt {
        /// Nodes of the graph.
        nodes: usize,
        /// Launches of the program.
        launches: usize,
        /// Kernels that had to be compiled for it.
        compiled: usize,
        /// The time it took.
        took: Duration,
    },
    /// A part of making a program or of making a device ready ended.
    Phase {
        /// Its name; see [`crate::phase`].
        name: &'static str,
        /// The time it took, without the phases inside of it.
        took: Duration,
    },
    /// Everything about a program was written to a folder.
    Dumped {
        /// The folder.
        folder: PathBuf,
    },
    /// The kernels of a program were checked against the interpreter.
    Verified {
        /// The number of kernels.
        kernels: usize,
        /// A description of the first that is wrong.
        wrong: Option<String>,
        /// The time it took.
        took: Duration,
    },
    /// A remark of the scheduler: what was fused, or was not and why.
    Fusion {
        /// The remark.
        text: String,
        /// The user's line.
        at: Source,
    },
    /// A program ran.
    ProgramRun {
        /// Launches.
        launches: usize,
        /// The time it took on the host.
        took: Duration,
    },
    /// A program was made; it is run for arguments that pass its guards.
    Guarded {
        /// The guards, rendered.
        guards: Vec<String>,
        /// The line of the call.
        at: Source,
    },
    /// A program is for fewer sizes than it could be.
    Specialised {
        /// What it is specialised to, and why.
        what: String,
        /// What the user can do about it; empty where nothing.
        fix: String,
        /// The user's line.
        at: Source,
    },
    /// A compiled function was called with arguments that no program's guards accept.
    Recompile {
        /// The guard that failed.
        guard: String,
        /// What the user can do about it; empty where nothing.
        fix: String,
        /// The line of the call.
        at: Source,
    },
    /// A function reached its limit of captures: calls that need another one run the function itself.
    RecompileLimit {
        /// The number of its programs.
        programs: usize,
        /// The guard that keeps failing, or the outcome that keeps being new.
        guard: String,
        /// What the user can do about it.
        fix: String,
        /// The line that decides: of the call, or of what is read.
        at: Source,
    },
    /// A function that was compiled more than once is gone.
    RecompileSummary {
        /// How often it was compiled again.
        recompiles: usize,
        /// Why, the most frequent reason first.
        reasons: Vec<RecompileReason>,
    },
    /// A graph break.
    GraphBreak {
        /// The operation that breaks the graph.
        what: String,
        /// What the user can do about it; empty where nothing.
        fix: String,
        /// The user's line.
        at: Source,
    },
    /// The disk cache found, missed, stored, removed or could not write something.
    DiskCache(Activity),
    /// Frozen inputs were prepared and packed, because they are new or have changed.
    Frozen {
        /// The number of frozen inputs.
        inputs: usize,
        /// Bytes of values computed from them.
        prepared_bytes: usize,
        /// Bytes of their packed copies, whether made now or by another program.
        packed_bytes: usize,
        /// Bytes of packed copies that were not made: they would not fit a cache, or be beyond the bound.
        unpacked_bytes: usize,
        /// The time it took.
        took: Duration,
    },
    /// The outcome of work on another thread, or of a measurement.
    Remark {
        /// The outcome.
        text: String,
        /// The user's line.
        at: Source,
    },
    /// A kernel has a new variant that measured faster.
    KernelTuned {
        /// The ops in the kernel.
        label: String,
        /// The variant that was chosen.
        chosen: String,
        /// How many times as fast as before.
        gain: f64,
        /// Candidates measured.
        tried: usize,
        /// The user's line.
        at: Source,
    },
    /// The kernels of a program were tuned.
    ProgramTuned {
        /// Different kernels that have a choice.
        kernels: usize,
        /// Those whose variant has changed.
        changed: usize,
        /// The sum of their launches' times before.
        before: Duration,
        /// The same after.
        after: Duration,
        /// The time it took.
        took: Duration,
    },
    /// A variable of the environment that is not understood; it is taken as not set.
    Environment(Problem),
    /// Work that a different layout or dtype would have saved.
    Slow {
        /// What was done and why.
        text: String,
        /// The user's line.
        at: Source,
    },
}

impl Event {
    /// Its category.
    pub fn category(&self) -> Category {
        match self {
            Event::KernelCompiled { .. }
            | Event::ProgramBuilt { .. }
            | Event::Phase { .. }
            | Event::Dumped { .. }
            | Event::Verified { .. }
            | Event::Remark { .. } => Category::Kernels,
            Event::DiskCache(_) => Category::Cache,
            Event::Fusion { .. } => Category::Fusion,
            Event::ProgramRun { .. } => Category::Run,
            Event::Slow { .. }
            | Event::Environment(_)
            | Event::Frozen { .. }
            | Event::KernelTuned { .. }
            | Event::ProgramTuned { .. } => Category::Perf,
            Event::Guarded { .. } | Event::Specialised { .. } => Category::Guards,
            Event::Recompile { .. } | Event::RecompileLimit { .. } | Event::RecompileSummary { .. } => {
                Category::Recompiles
            }
            Event::GraphBreak { .. } => Category::Breaks,
        }
    }

    /// The user's line, where there is one.
    pub fn at(&self) -> Option<&Source> {
        match self {
            Event::Fusion { at, .. }
            | Event::Slow { at, .. }
            | Event::KernelTuned { at, .. }
            | Event::Remark { at, .. }
            | Event::Guarded { at, .. }
            | Event::Specialised { at, .. }
            | Event::Recompile { at, .. }
            | Event::RecompileLimit { at, .. }
            | Event::GraphBreak { at, .. } => Some(at).filter(|at| !at.is_unknown()),
            _ => None,
        }
    }
}

/// Why a function was compiled again; see [`Event::RecompileSummary`].
#[derive(Debug, Clone, PartialEq)]
pub struct RecompileReason {
    /// How often.
    pub count: usize,
    /// The guard that failed the last time.
    pub guard: String,
    /// What the user can do about it; empty where nothing.
    pub fix: String,
    /// The line of the calls.
    pub at: Source,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::KernelCompiled { target, label, code_bytes, took } => {
                write!(f, "compiled {label} for {target}: {code_bytes} bytes in {took:.1?}")
            }
            Event::ProgramBuilt { nodes, launches, compiled, took } => {
                let (launches, nodes) = (launches_of(*launches), counted(*nodes, "node", "nodes"));
                write!(f, "built a program of {launches} ({compiled} compiled) from {nodes} in {took:.1?}")
            }
            Event::Phase { name, took } => write!(f, "phase {name}: {took:.1?}"),
            Event::Dumped { folder } => write!(f, "wrote graphs, kernels and code to {}", folder.display()),
            Event::Verified { kernels, wrong: None, took } => {
                write!(
                    f,
                    "{} right by the interpreter (checked in {took:.1?})",
                    counted(*kernels, "kernel is", "kernels are")
                )
            }
            Event::Verified { kernels, wrong: Some(wrong), .. } => write!(f, "of {kernels} kernels, {wrong}"),
            Event::Fusion { text, .. } | Event::Slow { text, .. } | Event::Remark { text, .. } => f.write_str(text),
            Event::Guarded { guards, .. } => write!(f, "a program for {}", guards.join("; ")),
            Event::Specialised { what, .. } => f.write_str(what),
            Event::Recompile { guard, .. } => write!(f, "recompiling: {guard}"),
            Event::RecompileLimit { programs, guard, .. } => write!(
                f,
                "recompile limit: {} and none fits, because {guard}; such calls run eagerly from now on",
                counted(*programs, "program", "programs")
            ),
            Event::RecompileSummary { recompiles, reasons } => {
                write!(f, "a function had {}", counted(recompiles + 1, "program", "programs"))?;
                for RecompileReason { count, guard, fix, at } in reasons {
                    write!(f, "; {count} × {guard}")?;
                    if !at.is_unknown() {
                        write!(f, " at {at}")?;
                    }
                    if !fix.is_empty() {
                        write!(f, " ({fix})")?;
                    }
                }
                Ok(())
            }
            Event::GraphBreak { what, .. } => write!(f, "the graph breaks: the function {what}"),
            Event::DiskCache(activity) => activity.fmt(f),
            Event::Environment(problem) => problem.fmt(f),
            Event::Frozen { inputs, prepared_bytes, packed_bytes, unpacked_bytes, took } => {
                write!(
                    f,
                    "prepared {inputs} frozen inputs: {prepared_bytes} bytes of values, {packed_bytes} bytes packed"
                )?;
                if *unpacked_bytes > 0 {
                    write!(f, " ({unpacked_bytes} more would not pay or be too much)")?;
                }
                write!(f, ", in {took:.1?}")
            }
            Event::KernelTuned { label, chosen, gain, tried, .. } => {
                write!(f, "tuned {label}: {gain:.2}× as fast with {chosen}, of {tried} tried")
            }
            Event::ProgramTuned { kernels, changed, before, after, took } => write!(
                f,
                "tuned {changed} of {kernels} kernels: {before:.1?} before, {after:.1?} now, measured in {took:.1?}"
            ),
            Event::ProgramRun { launches, took } => write!(f, "ran {} in {took:.1?}", launches_of(*launches)),
        }?;
        if let Some(at) = self.at() {
            write!(f, ", at {at}")?;
        }
        match self {
            Event::Specialised { fix, .. }
            | Event::Recompile { fix, .. }
            | Event::RecompileLimit { fix, .. }
            | Event::GraphBreak { fix, .. }
                if !fix.is_empty() =>
            {
                write!(f, "; {fix}")
            }
            _ => Ok(()),
        }
    }
}

fn launches_of(count: usize) -> String {
    counted(count, "launch", "launches")
}

/// A count with its noun.
pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Receives events; called on the thread that caused them.
pub type Sink = Arc<dyn Fn(&Event) + Send + Sync>;

/// The receivers of events, by category.
struct Listener {
    /// 0 is the log.
    id: u64,
    mask: u32,
    sink: Sink,
}

/// The union of all listeners' categories.
static ENABLED: AtomicU32 = AtomicU32::new(0);
static LISTENERS: RwLock<Vec<Listener>> = RwLock::new(Vec::new());
static FROM_ENVIRONMENT: Once = Once::new();
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The log's number among listeners.
const LOG: u64 = 0;

/// Sends events of these categories to `sink`, instead of what `KILN_LOG` says. Listeners stay.
///
/// ```
/// use kiln_runtime::event::{self, Category};
/// event::set_sink(&[Category::Kernels], |event| eprintln!("{event}"));
/// assert!(event::is_enabled(Category::Kernels) && !event::is_enabled(Category::Run));
/// ```
pub fn set_sink(categories: &[Category], sink: impl Fn(&Event) + Send + Sync + 'static) {
    FROM_ENVIRONMENT.call_once(|| ());
    change(|listeners| {
        listeners.retain(|listener| listener.id != LOG);
        listeners.push(Listener { id: LOG, mask: mask(categories), sink: Arc::new(sink) });
    });
}

/// Receives events until it is dropped; see [`listen`].
#[must_use = "a listener hears nothing once it is dropped"]
#[derive(Debug)]
pub struct Listening {
    id: u64,
}

/// Sends events of these categories to `sink` as well, until the returned guard is dropped. Neither the log nor other listeners
/// lose anything. Events of all threads are received.
///
/// ```
/// use kiln_runtime::event::{self, Category, Event};
/// use std::sync::{Arc, Mutex};
/// let heard = Arc::new(Mutex::new(Vec::new()));
/// let into = heard.clone();
/// let listening = event::listen(&[Category::Perf], move |event| into.lock().unwrap().push(event.to_string()));
/// let slow = || Event::Slow { text: "a copy".into(), at: Default::default() };
/// event::emit(Category::Perf, slow);
/// drop(listening);
/// event::emit(Category::Perf, slow);
/// assert_eq!(*heard.lock().unwrap(), ["a copy"]);
/// ```
pub fn listen(categories: &[Category], sink: impl Fn(&Event) + Send + Sync + 'static) -> Listening {
    FROM_ENVIRONMENT.call_once(read_environment);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    change(|listeners| listeners.push(Listener { id, mask: mask(categories), sink: Arc::new(sink) }));
    Listening { id }
}

impl Drop for Listening {
    fn drop(&mut self) {
        change(|listeners| listeners.retain(|listener| listener.id != self.id));
    }
}

fn mask(categories: &[Category]) -> u32 {
    categories.iter().fold(0, |mask, &c| mask | c as u32)
}

/// Changes the listeners, and with them which events are made at all.
fn change(edit: impl FnOnce(&mut Vec<Listener>)) {
    let mut listeners = LISTENERS.write().unwrap_or_else(PoisonError::into_inner);
    edit(&mut listeners);
    ENABLED.store(listeners.iter().fold(0, |mask, l| mask | l.mask), Ordering::Relaxed);
}

/// Whether a category has listeners.
#[inline]
pub fn is_enabled(category: Category) -> bool {
    if !FROM_ENVIRONMENT.is_completed() {
        FROM_ENVIRONMENT.call_once(read_environment);
    }
    ENABLED.load(Ordering::Relaxed) & category as u32 != 0
}

/// Reports the event that `event` makes, if the category has listeners.
#[inline]
pub fn emit(category: Category, event: impl FnOnce() -> Event) {
    if is_enabled(category) {
        deliver(category, &event());
    }
}

/// Reports a warning: to the listeners of its category and, where no log was requested, as a line on stderr. `KILN_LOG=off`, or
/// a sink, keeps stderr quiet.
#[cold]
pub fn warn(event: &Event) {
    let category = event.category();
    if is_enabled(category) {
        deliver(category, event);
    }
    let listeners = LISTENERS.read().unwrap_or_else(PoisonError::into_inner);
    let has_log = listeners.iter().any(|listener| listener.id == LOG);
    drop(listeners);
    if !has_log {
        eprintln!("kiln warning: {event}");
    }
}

#[cold]
fn deliver(category: Category, event: &Event) {
    // Sinks are called without the lock, so that one may listen, stop listening or run programs itself.
    let sinks: Vec<Sink> = {
        let listeners = LISTENERS.read().unwrap_or_else(PoisonError::into_inner);
        listeners.iter().filter(|l| l.mask & category as u32 != 0).map(|l| l.sink.clone()).collect()
    };
    sinks.iter().for_each(|sink| sink(event));
}

fn read_environment() {
    let Ok(text) = std::env::var(environment::LOG.name) else { return };
    // No event: there can be no listener before this has been read.
    if let Err(problem) = environment::LOG.read() {
        environment::print_warning(&problem);
    }
    let log = |event: &Event| {
        // A log that cannot be written is no reason to stop.
        let _ = writeln!(std::io::stderr(), "kiln {}: {event}", event.category());
    };
    change(|listeners| listeners.push(Listener { id: LOG, mask: mask(&parse(&text).0), sink: Arc::new(log) }));
}

/// The categories that a value of `KILN_LOG` names, and the words that name none.
pub(crate) fn parse(text: &str) -> (Vec<Category>, Vec<&str>) {
    let (mut categories, mut unknown) = (Vec::new(), Vec::new());
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        match Category::named(word) {
            Some(category) => categories.push(category),
            None if word == "all" => categories.extend(Category::ALL),
            None if word == "off" => {}
            None => unknown.push(word),
        }
    }
    (categories, unknown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_name_of_a_category_is_understood() {
        let (categories, unknown) = parse("breaks,guards, recompiles,fusion,kernels,cache,perf,run");
        assert_eq!((categories.as_slice(), unknown.len()), (&Category::ALL[..], 0));
        assert_eq!(parse("slow,compile").0, [Category::Perf, Category::Kernels]);
        assert_eq!(parse("all").0, Category::ALL);
        assert_eq!(parse("off"), (vec![], vec![]));
        assert_eq!(parse("fusoin,,cache"), (vec![Category::Cache], vec!["fusoin"]));
    }

    #[test]
    fn a_sink_may_itself_listen_and_emit() {
        let heard = Arc::new(Mutex::new(0));
        let count = heard.clone();
        let listening = listen(&[Category::Cache], move |_| {
            let _inner = listen(&[Category::Guards], |_| ());
            emit(Category::Guards, || Event::Guarded { guards: vec![], at: Source::default() });
            *count.lock().unwrap() += 1;
        });
        emit(Category::Cache, || Event::Dumped { folder: PathBuf::new() });
        drop(listening);
        assert_eq!(*heard.lock().unwrap(), 1);
    }

    #[test]
    fn the_way_out_comes_last() {
        let at = Source::new("model.rs", 7);
        let event = Event::GraphBreak { what: "reads an element".into(), fix: "use select".into(), at };
        assert_eq!(event.to_string(), "the graph breaks: the function reads an element, at model.rs:7; use select");
    }
}
