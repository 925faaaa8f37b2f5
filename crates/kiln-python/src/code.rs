//! A compiled graph on memory of PyTorch, with weights frozen or without.

use kiln::inspect::{Explanation, VerifyReport};
use kiln::pipeline::{CompileOptions, FreezeOptions, PackWeights};
use kiln::{CompiledGraph, FrozenGraph, Tensor};
use kiln_ir::Graph;
use kiln_kernels::InputLayout;
use kiln_runtime::{PinnedRaw, Program, RawInput, TuneReport};
use std::sync::Arc;
use std::time::Duration;

/// What a graph was compiled to.
pub(crate) enum Code {
    Plain(Box<CompiledGraph>),
    /// With the graph's layouts and options, for whoever explains it.
    Frozen(Arc<FrozenGraph>, Vec<InputLayout>),
}

/// The inputs of one call.
#[derive(Clone, Copy)]
pub(crate) enum Inputs<'a> {
    All(&'a [RawInput<'a>]),
    Pinned(PinnedRaw<'a>),
}

/// The addresses of one call.
pub(crate) struct Call<'a> {
    pub(crate) symbols: &'a [i64],
    pub(crate) inputs: Inputs<'a>,
    pub(crate) outputs: &'a [*mut u8],
    /// For each frozen input, a number that changes with its elements.
    pub(crate) versions: &'a [u64],
    /// PyTorch's stream, where the device has such.
    pub(crate) stream: Option<usize>,
    /// Whether launches may be recorded.
    pub(crate) recorded: bool,
}

// SAFETY: addresses of tensors that the caller holds; nothing of Python is in it.
unsafe impl Send for Call<'_> {}
// SAFETY: as above.
unsafe impl Sync for Call<'_> {}

impl Call<'_> {
    /// The inputs as tensors.
    ///
    /// # Safety
    /// The tensors are gone before the caller lets go of PyTorch's.
    unsafe fn tensors(&self) -> kiln::Result<Vec<Tensor>> {
        // Whoever asks for tensors has asked for a call without pins.
        let (Inputs::All(inputs) | Inputs::Pinned(PinnedRaw { inputs, .. })) = self.inputs;
        // SAFETY: the caller's promise.
        inputs.iter().map(|input| unsafe { Tensor::over(input) }).collect()
    }
}

impl Code {
    /// Compiles a graph; `frozen` marks the inputs that change rarely.
    pub(crate) fn new(
        graph: &Graph,
        layouts: Vec<InputLayout>,
        frozen: Option<(&[bool], PackWeights)>,
        compile: &CompileOptions,
    ) -> kiln::Result<Code> {
        Ok(match frozen {
            None => Code::Plain(Box::new(CompiledGraph::new(graph, &layouts, compile)?)),
            Some((frozen, pack)) => {
                let options = FreezeOptions { compile: compile.clone(), pack, ..FreezeOptions::default() };
                Code::Frozen(Arc::new(FrozenGraph::new(graph, &layouts, frozen, &options)?), layouts)
            }
        })
    }

    /// The program that every call runs.
    pub(crate) fn program(&self) -> &Program {
        match self {
            Code::Plain(compiled) => compiled.program(),
            Code::Frozen(frozen, _) => frozen.program(),
        }
    }

    /// Kernels that were compiled for it, and seconds that reading or making it took.
    pub(crate) fn made(&self) -> (usize, Duration, bool) {
        let prepare = match self {
            Code::Plain(_) => None,
            Code::Frozen(frozen, _) => frozen.prepare_program(),
        };
        let passes = match self {
            Code::Plain(compiled) => compiled.passes_took(),
            Code::Frozen(..) => Duration::ZERO,
        };
        let programs = || [Some(self.program()), prepare].into_iter().flatten().map(Program::times);
        let compiled = programs().map(|times| times.compiled).sum();
        let took = programs().map(|times| times.read + times.schedule + times.code).sum::<Duration>() + passes;
        (compiled, took, programs().all(|times| !times.read.is_zero()))
    }

    /// Runs it.
    ///
    /// # Safety
    /// As [`Program::call_raw`].
    pub(crate) unsafe fn run(&self, call: &Call<'_>) -> Result<(), String> {
        let Some(stream) = call.stream else {
            // SAFETY: the caller's promise.
            return unsafe { self.launch(call) };
        };
        let mut outcome = Ok(());
        // SAFETY: the stream is PyTorch's, which keeps its streams; the caller's promise.
        let queued = unsafe {
            self.program().backend().on_stream(stream, &mut || {
                outcome = self.launch(call);
                Ok(())
            })
        };
        queued.map_err(|error| error.to_string()).and(outcome)
    }

    /// Launches everything.
    ///
    /// # Safety
    /// As [`Program::call_raw`].
    unsafe fn launch(&self, call: &Call<'_>) -> Result<(), String> {
        let Call { symbols, inputs, outputs, versions, recorded, .. } = *call;
        // SAFETY: the caller's promise.
        unsafe {
            match (self, inputs) {
                (Code::Frozen(frozen, _), Inputs::All(inputs)) => {
                    return frozen.call_raw(symbols, inputs, versions, outputs, recorded).map_err(|e| e.to_string());
                }
                (code, Inputs::Pinned(inputs)) => code.program().call_pinned(symbols, inputs, outputs, recorded),
                (code, Inputs::All(inputs)) if recorded => code.program().replay_raw(symbols, inputs, outputs),
                (code, Inputs::All(inputs)) => code.program().call_raw(symbols, inputs, outputs),
            }
        }
        .map_err(|error| error.to_string())
    }

    /// Compares every kernel with the interpreter on the inputs of a call, which are not changed.
    ///
    /// # Safety
    /// The inputs can be read.
    pub(crate) unsafe fn verify(&self, call: &Call<'_>) -> kiln::Result<VerifyReport> {
        // SAFETY: the caller's promise; the tensors end here.
        let tensors = unsafe { call.tensors() }?;
        match self {
            Code::Plain(compiled) => compiled.verify(&tensors),
            Code::Frozen(frozen, _) => frozen.verify(&tensors.iter().collect::<Vec<_>>(), call.versions),
        }
    }

    /// Chooses the fastest variant of each kernel on the inputs of a call, which are not changed.
    ///
    /// # Safety
    /// The inputs can be read.
    pub(crate) unsafe fn tune(&self, call: &Call<'_>, budget: Duration) -> kiln::Result<TuneReport> {
        // SAFETY: the caller's promise; the tensors end here.
        let tensors = unsafe { call.tensors() }?;
        let tensors: Vec<&Tensor> = tensors.iter().collect();
        match self {
            Code::Plain(compiled) => compiled.tune(&tensors, budget),
            Code::Frozen(frozen, _) => frozen.tune(&tensors, call.versions, budget),
        }
    }

    /// Explains it on the inputs of a call, which are not changed. Frozen weights are explained as inputs.
    ///
    /// # Safety
    /// The inputs can be read.
    pub(crate) unsafe fn explain(&self, call: &Call<'_>, options: &CompileOptions) -> kiln::Result<Explanation> {
        // SAFETY: the caller's promise; the tensors end here.
        let tensors = unsafe { call.tensors() }?;
        match self {
            Code::Plain(compiled) => compiled.explain(&tensors),
            Code::Frozen(frozen, layouts) => CompiledGraph::new(frozen.graph(), layouts, options)?.explain(&tensors),
        }
    }
}
