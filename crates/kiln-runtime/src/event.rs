//! Events: whatever the runtime does that a user may want to know of. Off by default and then one relaxed load.
//!
//! `KILN_LOG=compile,cache` (or `all`) prints events of these categories to stderr; [`set_sink`] sends them elsewhere.

use kiln_ir::Source;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Once, PoisonError, RwLock};
use std::time::Duration;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Category {
    /// Code made for a kernel.
    Compile = 1,
    /// Programs and kernels found or not found in a cache.
    Cache = 2,
    /// What fused and what did not.
    Fusion = 4,
    /// Programs run.
    Run = 8,
    /// Something slower than it should be, for instance a copy to make a tensor contiguous.
    Slow = 16,
    /// Functions captured again because a guard failed.
    Recompiles = 32,
    /// Functions that could not be captured and run eagerly.
    Breaks = 64,
}

impl Category {
    /// Every category.
    pub const ALL: [Category; 7] = [
        Category::Compile,
        Category::Cache,
        Category::Fusion,
        Category::Run,
        Category::Slow,
        Category::Recompiles,
        Category::Breaks,
    ];

    /// The name in `KILN_LOG`.
    pub const fn name(self) -> &'static str {
        match self {
            Category::Compile => "compile",
            Category::Cache => "cache",
            Category::Fusion => "fusion",
            Category::Run => "run",
            Category::Slow => "slow",
            Category::Recompiles => "recompiles",
            Category::Breaks => "breaks",
        }
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
        /// How long it took.
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
        /// How long it took.
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
        /// How long it took on the host.
        took: Duration,
    },
    /// A compiled function met arguments that none of its programs is for.
    Recompile {
        /// The guard that failed.
        guard: String,
        /// The line of the call.
        at: Source,
    },
    /// A function does what a graph cannot, so it runs eagerly.
    GraphBreak {
        /// What it does.
        what: String,
        /// The user's line.
        at: Source,
    },
    /// Work that a different layout or dtype would have saved.
    Slow {
        /// What was done and why.
        text: String,
        /// The user's line.
        at: Source,
    },
}

impl Event {
    /// What it is about.
    pub fn category(&self) -> Category {
        match self {
            Event::KernelCompiled { .. } => Category::Compile,
            Event::ProgramBuilt { .. } => Category::Cache,
            Event::Fusion { .. } => Category::Fusion,
            Event::ProgramRun { .. } => Category::Run,
            Event::Slow { .. } => Category::Slow,
            Event::Recompile { .. } => Category::Recompiles,
            Event::GraphBreak { .. } => Category::Breaks,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::KernelCompiled { target, label, code_bytes, took } => {
                write!(f, "compiled {label} for {target}: {code_bytes} bytes in {took:.1?}")
            }
            Event::ProgramBuilt { nodes, launches, compiled, took } => {
                write!(
                    f,
                    "built a program of {launches} launches ({compiled} compiled) from {nodes} nodes in {took:.1?}"
                )
            }
            Event::Fusion { text, at } | Event::Slow { text, at } => write!(f, "{text}, at {at}"),
            Event::Recompile { guard, at } => write!(f, "recompiling: {guard}, called at {at}"),
            Event::GraphBreak { what, at } => write!(f, "running eagerly: the function {what}, at {at}"),
            Event::ProgramRun { launches, took } => write!(f, "ran {launches} launches in {took:.1?}"),
        }
    }
}

/// Receives events; called on the thread that caused them.
pub type Sink = Arc<dyn Fn(&Event) + Send + Sync>;

static ENABLED: AtomicU32 = AtomicU32::new(0);
static SINK: RwLock<Option<Sink>> = RwLock::new(None);
static FROM_ENVIRONMENT: Once = Once::new();

/// Sends events of these categories to `sink`, instead of what `KILN_LOG` says.
///
/// ```
/// use kiln_runtime::event::{self, Category};
/// event::set_sink(&[Category::Compile], |event| eprintln!("{event}"));
/// assert!(event::is_enabled(Category::Compile) && !event::is_enabled(Category::Run));
/// ```
pub fn set_sink(categories: &[Category], sink: impl Fn(&Event) + Send + Sync + 'static) {
    FROM_ENVIRONMENT.call_once(|| ());
    *SINK.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(sink));
    ENABLED.store(categories.iter().fold(0, |mask, &c| mask | c as u32), Ordering::Relaxed);
}

/// Whether anybody listens to a category.
#[inline]
pub fn is_enabled(category: Category) -> bool {
    if !FROM_ENVIRONMENT.is_completed() {
        FROM_ENVIRONMENT.call_once(read_environment);
    }
    ENABLED.load(Ordering::Relaxed) & category as u32 != 0
}

/// Reports what `event` makes, if anybody listens to the category.
#[inline]
pub fn emit(category: Category, event: impl FnOnce() -> Event) {
    if is_enabled(category) {
        deliver(&event());
    }
}

#[cold]
fn deliver(event: &Event) {
    let sink = SINK.read().unwrap_or_else(PoisonError::into_inner).clone();
    match sink {
        Some(sink) => sink(event),
        None => eprintln!("kiln {}: {event}", event.category().name()),
    }
}

fn read_environment() {
    let Ok(text) = std::env::var("KILN_LOG") else { return };
    let mut mask = 0;
    for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
        match Category::ALL.into_iter().find(|c| c.name() == word) {
            Some(category) => mask |= category as u32,
            None if word == "all" => mask = u32::MAX,
            None => {
                let known: Vec<&str> = Category::ALL.iter().map(|c| c.name()).collect();
                eprintln!("kiln: KILN_LOG has no category '{word}'; there are {} and all", known.join(", "));
            }
        }
    }
    ENABLED.store(mask, Ordering::Relaxed);
}
