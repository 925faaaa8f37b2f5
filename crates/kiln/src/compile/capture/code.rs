//! The code of a segment, and what is done with it when it first runs.

use super::options::Options;
use super::segment::{InputSource, Sizes, at_sizes, symbol_sizes};
use crate::compile::freeze::FrozenGraph;
use crate::tensor::call_input::CallInputs;
use crate::tensor::compiled_graph::CompiledGraph;
use crate::tensor::scratch::Scratch;
use crate::{Error, Result, Tensor};
use kiln_ir::{Graph, Source};
use kiln_runtime::{Program, phase};
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

/// The code of a segment; clones share it.
#[derive(Clone)]
pub(super) enum Code {
    /// None is needed.
    Nothing,
    Ready(Arc<Ready>),
    /// A thread is at it; until then, or if it fails, the graph runs an op at a time.
    Pending(Arc<OnceLock<Option<Arc<Ready>>>>),
}

/// Code that is there.
pub(super) struct Ready {
    kind: Kind,
    verify: bool,
    /// Set once every kernel agreed with the interpreter.
    verified: OnceLock<()>,
    /// How long the ways to run its kernels may be measured, for each of a few sizes.
    tune: Option<Duration>,
    /// The sizes that they were measured for.
    tuned: RwLock<Vec<Sizes>>,
    /// Whether launches are resolved once and outputs recycled.
    replay: bool,
}

/// Sizes that a program is tuned for; others run as the first was made.
const SIZES_TUNED: usize = 32;

pub(super) enum Kind {
    Compiled(Arc<CompiledGraph>),
    Frozen(Arc<FrozenGraph>),
}

impl Kind {
    /// Returns the folder that `KILN_DEBUG` made.
    pub(super) fn dumped(&self) -> Option<&Path> {
        match self {
            Kind::Compiled(code) => code.dumped(),
            Kind::Frozen(code) => code.dumped(),
        }
    }
}

impl Ready {
    pub(super) fn new(kind: Kind, options: &Options) -> Ready {
        let tune = options.mode.tunes().then_some(options.tuning_budget);
        let (verify, replay) = (options.verify, options.mode.replays());
        Ready { kind, verify, verified: OnceLock::new(), tune, tuned: RwLock::default(), replay }
    }

    /// Bytes that it holds besides the graph; an estimate.
    pub(super) fn bytes(&self) -> usize {
        match &self.kind {
            Kind::Compiled(code) => code.program().bytes(),
            Kind::Frozen(code) => code.bytes(),
        }
    }

    /// What runs at every call.
    pub(super) fn program(&self) -> &Program {
        match &self.kind {
            Kind::Compiled(code) => code.program(),
            Kind::Frozen(code) => code.program(),
        }
    }

    /// The inputs that change only with their version.
    pub(super) fn frozen(&self) -> &[usize] {
        match &self.kind {
            Kind::Compiled(_) => &[],
            Kind::Frozen(code) => code.frozen(),
        }
    }

    /// Runs the graph that it is the code of; `each` gets the first `wanted` outputs, in order.
    ///
    /// # Safety
    /// Nobody else uses the memory of the inputs that the graph updates meanwhile, and none of it is given as another input.
    pub(super) unsafe fn run(
        &self,
        graph: &Graph,
        inputs: &dyn CallInputs,
        versions: &[u64],
        wanted: usize,
        each: &mut dyn FnMut(Tensor),
        at: &Source,
    ) -> Result<()> {
        if self.verify || self.tune.is_some() {
            self.prepare(graph, &inputs.list(), versions, at)?;
        }
        match &self.kind {
            // SAFETY: the caller's promise.
            Kind::Compiled(code) => unsafe { code.execute("call", inputs, self.replay, wanted, each, at) },
            // SAFETY: the caller's promise.
            Kind::Frozen(code) => unsafe { code.execute(inputs, versions, wanted, each, at) },
        }
    }

    /// What is to be done before a run with these inputs, once, or once for their sizes.
    #[cold]
    fn prepare(&self, graph: &Graph, inputs: &[&Tensor], versions: &[u64], at: &Source) -> Result<()> {
        if self.verify && self.verified.get().is_none() {
            phase::timed("verify", || check(&self.kind, inputs, versions, at))?;
            // Whoever was first; another did the same.
            let _ = self.verified.set(());
        }
        match self.tune {
            Some(budget) => self.tune(budget, graph, inputs, versions),
            None => Ok(()),
        }
    }

    /// Takes the fastest way to run each kernel at these sizes.
    fn tune(&self, budget: Duration, graph: &Graph, inputs: &[&Tensor], versions: &[u64]) -> Result<()> {
        let sizes = symbol_sizes(graph, inputs);
        let is_done = |tuned: &[Sizes]| tuned.len() >= SIZES_TUNED || tuned.contains(&sizes);
        if is_done(&self.tuned.read().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(());
        }
        // One at a time, or they would measure each other.
        let mut tuned = self.tuned.write().unwrap_or_else(PoisonError::into_inner);
        if is_done(&tuned) {
            return Ok(());
        }
        phase::timed("tune", || match &self.kind {
            Kind::Compiled(code) => code.tune(inputs, budget),
            Kind::Frozen(code) => code.tune(inputs, versions, budget),
        })?;
        tuned.push(sizes);
        Ok(())
    }
}

/// Compares every kernel with the interpreter.
#[cold]
fn check(kind: &Kind, inputs: &[&Tensor], versions: &[u64], at: &Source) -> Result<()> {
    let inputs: Vec<Tensor> = inputs.iter().map(|tensor| tensor.detached()).collect();
    let report = match kind {
        Kind::Compiled(code) => code.verify(&inputs)?,
        Kind::Frozen(code) => code.verify(&inputs.iter().collect::<Vec<_>>(), versions)?,
    };
    if report.is_right() {
        return Ok(());
    }
    Err(Error::Verify { report: report.to_string(), at: at.clone() })
}

impl Code {
    /// The code, once it is there.
    pub(super) fn ready(&self) -> Option<&Ready> {
        match self {
            Code::Ready(code) => Some(code),
            Code::Pending(slot) => slot.get().and_then(|code| code.as_deref()),
            Code::Nothing => None,
        }
    }

    /// The code, if it was there when the versions were read: it may have come since, and wants more of them then.
    pub(super) fn ready_for(&self, versions: &[u64]) -> Option<&Ready> {
        self.ready().filter(|ready| ready.frozen().len() == versions.len())
    }

    /// What runs, once it is there.
    pub(super) fn kind(&self) -> Option<&Kind> {
        self.ready().map(|ready| &ready.kind)
    }

    /// Whether a thread is still at it.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Code::Pending(slot) if slot.get().is_none())
    }
}

/// Runs a graph without code. Views are copied: whoever reads the outputs has code for row-major order.
pub(super) fn run_an_op_at_a_time(graph: &Graph, inputs: Vec<Tensor>, at: &Source) -> Result<Vec<Tensor>> {
    let outputs = crate::run_eagerly(&*at_sizes(graph, &inputs.iter().collect::<Vec<_>>())?, &inputs)?;
    outputs.iter().map(|output| output.contiguous_at(at)).collect()
}

/// The inputs that change only with their version, and are worth preparing.
pub(super) fn frozen(from: &[InputSource], updates: &[usize]) -> Vec<bool> {
    let is_frozen = |(input, from): (usize, &InputSource)| {
        matches!(from, InputSource::Held(_) | InputSource::Var(_)) && !updates.contains(&input)
    };
    from.iter().enumerate().map(is_frozen).collect()
}

/// The versions of these inputs.
pub(super) fn versions(from: &[InputSource], frozen: &[usize]) -> Scratch<u64> {
    let version = |&input: &usize| match &from[input] {
        InputSource::Var(var) => var.version(),
        _ => 0,
    };
    frozen.iter().map(version).collect()
}
