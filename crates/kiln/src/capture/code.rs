//! The code of a segment, and what is done with it when it first runs.

use super::options::Options;
use super::segment::{From, at_sizes};
use crate::compile::CompiledGraph;
use crate::freeze::FrozenGraph;
use crate::{Error, Result, Tensor};
use kiln_ir::{Graph, Source};
use kiln_runtime::Program;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
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
    /// What runs, once it is checked and measured.
    settled: OnceLock<Kind>,
    /// What is still to be checked or measured, with the inputs of the first run.
    unsettled: Mutex<Option<Kind>>,
    /// The inputs that change only with their version.
    frozen: Vec<usize>,
    verify: bool,
    /// How long the ways to run its kernels may be measured.
    tune: Option<Duration>,
    /// Whether launches are resolved once and outputs recycled.
    replay: bool,
}

pub(super) enum Kind {
    Compiled(Arc<CompiledGraph>),
    Frozen(Arc<FrozenGraph>),
}

impl Kind {
    /// What runs at every call.
    pub(super) fn program(&self) -> &Program {
        match self {
            Kind::Compiled(code) => code.program(),
            Kind::Frozen(code) => code.program(),
        }
    }
}

impl Ready {
    pub(super) fn new(kind: Kind, options: &Options) -> Ready {
        let tune = options.mode.tunes().then_some(options.tuning_budget);
        let (verify, replay) = (options.verify, options.mode.replays());
        let (settled, unsettled) = (OnceLock::new(), Mutex::new(None));
        let frozen = match &kind {
            Kind::Compiled(_) => Vec::new(),
            Kind::Frozen(code) => code.frozen().to_vec(),
        };
        let ready = Ready { settled, unsettled, frozen, verify, tune, replay };
        if verify || tune.is_some() {
            *ready.unsettled.lock().unwrap_or_else(PoisonError::into_inner) = Some(kind);
        } else {
            let _ = ready.settled.set(kind);
        }
        ready
    }

    /// How many launches it has.
    pub(super) fn launches(&self) -> usize {
        let unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
        self.settled.get().or(unsettled.as_ref()).map_or(0, |kind| kind.program().steps().len())
    }

    /// The inputs that change only with their version.
    pub(super) fn frozen(&self) -> &[usize] {
        &self.frozen
    }

    /// What runs; checked and measured first, with these inputs, if that is still to be done.
    fn settle(&self, graph: &Graph, inputs: &[&Tensor], versions: &[u64], at: &Source) -> Result<&Kind> {
        if let Some(kind) = self.settled.get() {
            return Ok(kind);
        }
        let mut unsettled = self.unsettled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kind) = unsettled.as_mut() {
            if self.verify {
                check(kind, graph, inputs, at)?;
            }
            if let Some(budget) = self.tune {
                tune(kind, inputs, versions, budget)?;
            }
        }
        if let Some(kind) = unsettled.take() {
            let _ = self.settled.set(kind);
        }
        self.settled.get().ok_or_else(|| Error::Escaped { at: at.clone() })
    }
}

/// Takes the fastest way to run each kernel on these inputs.
#[cold]
fn tune(kind: &mut Kind, inputs: &[&Tensor], versions: &[u64], budget: Duration) -> Result<()> {
    // Nobody else has seen it yet.
    match kind {
        Kind::Compiled(code) => Arc::get_mut(code).map(|code| code.tune(inputs, budget)),
        Kind::Frozen(code) => Arc::get_mut(code).map(|code| code.tune(inputs, versions, budget)),
    }
    .transpose()
    .map(drop)
}

/// Compares every kernel with the interpreter.
#[cold]
fn check(kind: &Kind, graph: &Graph, inputs: &[&Tensor], at: &Source) -> Result<()> {
    let inputs: Vec<Tensor> = inputs.iter().map(|tensor| tensor.detached()).collect();
    let report = match kind {
        Kind::Compiled(code) => code.verify(&inputs)?,
        // The packed program takes other inputs; the graph itself is checked as it is.
        Kind::Frozen(_) => {
            crate::compile_graph(graph, &inputs.iter().map(Into::into).collect::<Vec<_>>())?.verify(&inputs)?
        }
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

    /// What runs, once it is there.
    pub(super) fn kind(&self) -> Option<&Kind> {
        self.ready().and_then(|ready| ready.settled.get())
    }

    /// Whether a thread is still at it.
    pub(super) fn is_pending(&self) -> bool {
        matches!(self, Code::Pending(slot) if slot.get().is_none())
    }

    /// Runs a graph that updates nothing.
    pub(super) fn run(&self, graph: &Graph, inputs: &[&Tensor], versions: &[u64], at: &Source) -> Result<Vec<Tensor>> {
        let Some(ready) = self.ready() else {
            let inputs: Vec<Tensor> = inputs.iter().map(|tensor| tensor.detached()).collect();
            return crate::run_eagerly(&*at_sizes(graph, &inputs.iter().collect::<Vec<_>>())?, &inputs);
        };
        match ready.settle(graph, inputs, versions, at)? {
            Kind::Compiled(code) if ready.replay => code.replay_at(inputs, at),
            Kind::Compiled(code) => code.run_at("call", inputs, at),
            Kind::Frozen(code) => code.run_at(inputs, versions, at),
        }
    }

    /// Runs a graph that updates inputs; afterwards `inputs` has their new values.
    pub(super) fn run_updating(
        &self,
        graph: &Graph,
        updates: &[usize],
        inputs: &mut [Tensor],
        versions: &[u64],
        at: &Source,
    ) -> Result<Vec<Tensor>> {
        let Some(ready) = self.ready() else {
            let outputs = crate::run_eagerly(&*at_sizes(graph, &inputs.iter().collect::<Vec<_>>())?, inputs)?;
            let first = outputs.len() - updates.len();
            for (&input, new) in updates.iter().zip(&outputs[first..]) {
                inputs[input] = new.clone();
            }
            return Ok(outputs);
        };
        match ready.settle(graph, &inputs.iter().collect::<Vec<_>>(), versions, at)? {
            Kind::Compiled(code) => code.update_in(inputs, ready.replay, at),
            Kind::Frozen(code) => code.update_in(updates, inputs, versions, at),
        }
    }
}

/// The inputs that change only with their version, and are worth preparing.
pub(super) fn frozen(from: &[From], updates: &[usize]) -> Vec<bool> {
    let is_frozen =
        |(input, from): (usize, &From)| matches!(from, From::Held(_) | From::Var(_)) && !updates.contains(&input);
    from.iter().enumerate().map(is_frozen).collect()
}

/// The versions of these inputs.
pub(super) fn versions(from: &[From], frozen: &[usize]) -> Vec<u64> {
    let version = |&input: &usize| match &from[input] {
        From::Var(var) => var.version(),
        _ => 0,
    };
    frozen.iter().map(version).collect()
}
