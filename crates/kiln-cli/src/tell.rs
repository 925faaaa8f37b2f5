//! Prints a text as it is generated, and separates the time of compiling from that of the model.
//!
//! ```text
//!  call ──capture, passes, code──▶│──kernels──▶ … first token ──capture, passes, code──▶│──kernels──▶ second token ─▶ …
//!        └──── compile ──────────┘                            └─────── compile ───────┘
//! ```
//!
//! A program is compiled during the first call that needs it, which may be any: a long prompt runs in parts, and each part
//! may need another program. So the time of compiling is what the compiler's phases measured on this thread; nothing is
//! inferred from when something happened.

use kiln_llm::{Generated, Generator, Request, Stop};
use kiln_runtime::event::{self, Category, Event, Listening};
use kiln_runtime::phase;
use kiln_terminal::{Progress, format};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Shows what is compiled until it is dropped.
#[derive(Debug)]
struct Watch {
    progress: Arc<Mutex<Option<Progress>>>,
    _listening: Listening,
}

impl Watch {
    fn start(progress: Progress) -> Watch {
        let progress = Arc::new(Mutex::new(Some(progress)));
        let (shown, kernels) = (progress.clone(), Mutex::new(0));
        let listening = event::listen(&[Category::Kernels, Category::Perf], move |event| {
            let shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(progress) = &*shown else { return };
            match event {
                Event::KernelCompiled { .. } => {
                    let mut kernels = kernels.lock().unwrap_or_else(PoisonError::into_inner);
                    *kernels += 1;
                    progress.note(format::plural(*kernels, "kernel", "kernels"));
                }
                Event::KernelTuned { label, .. } => progress.note(format!("tuning {label}")),
                _ => {}
            }
        });
        Watch { progress, _listening: listening }
    }

    fn clear(&self) {
        let gone = self.progress.lock().unwrap_or_else(PoisonError::into_inner).take();
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
/// first token.
pub fn tell(
    generator: &mut Generator,
    prompt: &[u32],
    request: &Request,
    progress: Option<Progress>,
    mut each: impl FnMut(u32) -> ControlFlow<()>,
) -> kiln_llm::Result<Told> {
    let watch = progress.map(Watch::start);
    let began = Instant::now();
    // When the first token came, and what was compiled before it.
    let mut first: Option<(Instant, Duration)> = None;
    let mut listener = Duration::ZERO;
    let (generated, phases) = phase::recorded(|| {
        generator.generate_with(prompt, request, |id| {
            let now = Instant::now();
            if first.is_none() {
                first = Some((now, phase::compiling_so_far()));
                if let Some(watch) = &watch {
                    watch.clear();
                }
            }
            let go_on = each(id);
            listener += now.elapsed();
            go_on
        })
    });
    let Generated { ids, stop, reused, .. } = generated?;
    let (ended, compile) = (Instant::now(), phase::compiling(&phases));
    let (first, before) = first.unwrap_or((ended, compile));
    Ok(Told {
        ids,
        stop,
        reused,
        compile,
        first_token: (first - began).saturating_sub(before),
        decoding: (ended - first).saturating_sub(listener + compile.saturating_sub(before)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_llm::GeneratorOptions;

    fn told(generator: &mut Generator, prompt: &[u32], tokens: usize) -> (Told, Duration) {
        let request = Request { max_tokens: tokens, ..Request::default() };
        let began = Instant::now();
        let told = tell(generator, prompt, &request, None, |_| ControlFlow::Continue(())).unwrap();
        (told, began.elapsed())
    }

    /// Parts of a prompt that run before the last program is ready are no compiling. 200 tokens go in a hundred parts of two,
    /// and the program of the last part is made after all others have run.
    #[test]
    fn parts_of_a_prompt_that_run_are_no_compiling() {
        let opened = kiln_llm::embedded().unwrap();
        let options = GeneratorOptions { context: 256, prefill: 2, ..GeneratorOptions::default() };
        let prompt: Vec<u32> = (0..200).map(|at| 3 + at % 400).collect();
        let mut generator = Generator::new(opened.model.clone(), options.clone()).unwrap();
        let (first, whole) = told(&mut generator, &prompt, 2);
        let (again, _) = told(&mut generator, &prompt, 2);
        assert_eq!((again.compile, &first.ids), (Duration::ZERO, &again.ids));
        assert!(!first.compile.is_zero() && first.compile + first.first_token + first.decoding <= whole, "{first:?}");
        // The parts took as long as they did the second time; what was called compiling before was nearly all of it.
        assert!(first.first_token * 4 > again.first_token, "{first:?}, then {again:?}");
    }

    /// Where nothing is compiled, everything is the model's own time; eager too.
    #[test]
    fn what_is_there_is_not_compiled() {
        let opened = kiln_llm::embedded().unwrap();
        for compile in [None, Some(kiln::Options::default())] {
            let options = GeneratorOptions { context: 64, compile, ..GeneratorOptions::default() };
            let mut generator = Generator::new(opened.model.clone(), options).unwrap();
            told(&mut generator, &[1, 403, 407], 4);
            let (again, whole) = told(&mut generator, &[1, 403, 407], 4);
            assert_eq!(again.compile, Duration::ZERO);
            assert!(!again.first_token.is_zero() && again.first_token + again.decoding <= whole, "{again:?}");
        }
    }
}
