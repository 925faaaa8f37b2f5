//! A text told while somebody watches: which part of the time was compiling, and which was the model's own.
//!
//! ```text
//!  call ──capture, passes, code──▶│──kernels──▶ first token ──capture, passes, code──▶│──kernels──▶ second token ─▶ …
//!        └──── compile ──────────┘                          └─────── compile ───────┘
//! ```
//!
//! A program is made on the way of the first call that needs it; the events of the runtime say when it was there.

use crate::terminal::{Progress, format};
use kiln_llm::{Generated, Generator, Request, Stop};
use kiln_runtime::event::{self, Category, Event, Listening};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What was heard of compiling.
#[derive(Debug, Default)]
struct Heard {
    /// When the newest program was ready.
    ready: Option<Instant>,
    /// Programs and kernels made.
    programs: usize,
    kernels: usize,
    /// Time for the code of ops on their own.
    took: Duration,
    progress: Option<Progress>,
}

/// Hears what is compiled until it is dropped.
#[derive(Debug)]
struct Watch {
    heard: Arc<Mutex<Heard>>,
    _listening: Listening,
}

impl Watch {
    fn start(progress: Option<Progress>) -> Watch {
        let heard = Arc::new(Mutex::new(Heard { progress, ..Heard::default() }));
        let into = heard.clone();
        let listening = event::listen(&[Category::Kernels, Category::Cache, Category::Perf], move |event| {
            let mut heard = into.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Event::KernelCompiled { .. } => heard.kernels += 1,
                Event::ProgramBuilt { took, .. } => {
                    heard.programs += 1;
                    heard.took += *took;
                }
                Event::KernelTuned { label, .. } => {
                    if let Some(progress) = &heard.progress {
                        progress.note(format!("tuning {label}"));
                    }
                }
                Event::DiskCache(_) | Event::Frozen { .. } | Event::ProgramTuned { .. } => {}
                _ => return,
            }
            heard.ready = Some(Instant::now());
            if let (Some(progress), Event::KernelCompiled { .. }) = (&heard.progress, event) {
                progress.note(format::plural(heard.kernels, "kernel", "kernels"));
            }
        });
        Watch { heard, _listening: listening }
    }

    /// How long something was compiled between two moments.
    fn between(&self, from: Instant, to: Instant) -> Duration {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.ready.map_or(Duration::ZERO, |ready| ready.min(to).saturating_duration_since(from))
    }

    fn took(&self) -> Duration {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).took
    }

    fn clear_progress(&self) {
        let gone = self.heard.lock().unwrap_or_else(PoisonError::into_inner).progress.take();
        drop(gone);
    }
}

/// A text and its times.
#[derive(Debug, Clone)]
pub struct Told {
    /// The new tokens.
    pub ids: Vec<u32>,
    /// Why there are no more.
    pub stop: Stop,
    /// Tokens of the prompt that were in the cache already.
    pub reused: usize,
    /// Compiling, all in.
    pub compile: Duration,
    /// Until the first token was there, without compiling.
    pub first_token: Duration,
    /// For all tokens after the first, without compiling and without what the listener did.
    pub decoding: Duration,
}

impl Told {
    /// Tokens a second, the first one not counted; none where there is no second.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let more = self.ids.len().saturating_sub(1);
        (more > 0).then(|| more as f64 / self.decoding.as_secs_f64().max(1e-9))
    }
}

/// Continues a prompt; `each` hears every new token. With `progress`, a line on standard error shows what is compiled before the
/// first token. `eager` says that the generator compiles ops one by one, between the runs of others.
pub fn tell(
    generator: &mut Generator,
    prompt: &[u32],
    request: &Request,
    eager: bool,
    progress: Option<Progress>,
    mut each: impl FnMut(u32) -> ControlFlow<()>,
) -> kiln_llm::Result<Told> {
    let watch = Watch::start(progress);
    let began = Instant::now();
    // When the first token came, what was compiled before it, and when and what after it up to the second.
    let mut first: Option<(Instant, Duration)> = None;
    let mut second: Option<Duration> = None;
    let (mut resumed, mut listener) = (began, Duration::ZERO);
    let compiled = |from: Instant, to: Instant, took: Duration| match eager {
        true => watch.took().saturating_sub(took),
        false => watch.between(from, to),
    };
    let mut took = Duration::ZERO;
    let Generated { ids, stop, reused, .. } = generator.generate_with(prompt, request, |id| {
        let now = Instant::now();
        if first.is_none() {
            first = Some((now, compiled(began, now, took)));
            took = watch.took();
            watch.clear_progress();
        } else if second.is_none() {
            second = Some(compiled(resumed, now, took));
        }
        let go_on = each(id);
        resumed = Instant::now();
        listener += resumed - now;
        go_on
    })?;
    let ended = Instant::now();
    let (first, before, after) = match first {
        Some((first, before)) => (first, before, second.unwrap_or_else(|| compiled(resumed, ended, took))),
        None => (ended, compiled(began, ended, took), Duration::ZERO),
    };
    Ok(Told {
        ids,
        stop,
        reused,
        compile: before + after,
        first_token: (first - began).saturating_sub(before),
        decoding: (ended - first).saturating_sub(listener + after),
    })
}
