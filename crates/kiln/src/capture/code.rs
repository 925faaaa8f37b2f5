//! The code of a segment, and what is done with it when it first runs.

use super::options::Options;
use super::segment::{From, at_sizes};
use crate::compile::CompiledGraph;
use crate::freeze::FrozenGraph;
use crate::{Error, Result, Tensor};
use kiln_ir::{Graph, Source};
use kiln_runtime::Program;
use std::sync::{Arc, OnceLock};

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
    pub(super) kind: Kind,
    /// Done before the first run, with its inputs.
    checked: OnceLock<()>,
    verify: bool,
    /// Whether launches are resolved once and outputs recycled.
    replay: bool,
}

pub(super) enum Kind {
    Compiled(Arc<CompiledGraph>),
    Frozen(Arc<FrozenGraph>),
}

impl Ready {
    pub(super) fn new(kind: Kind, options: &Options) -> Ready {
        Ready { kind, checked: OnceLock::new(), verify: options.verify, replay: options.mode.replays() }
    }

    /// What runs at every call.
    pub(super) fn program(&self) -> &Program {
        match &self.kind {
            Kind::Compiled(code) => code.program(),
            Kind::Frozen(code) => code.program(),
        }
    }

    /// Checks and measures that belong before the first run.
    fn prepare(&self, graph: &Graph, inputs: &[&Tensor], at: &Source) -> Result<()> {
        if self.checked.get().is_some() {
            return Ok(());
        }
        if self.verify {
            self.check(graph, inputs, at)?;
        }
        // Whoever was first; the other did the same.
        let _ = self.checked.set(());
        Ok(())
    }

    /// Compares every kernel with the interpreter.
    #[cold]
    fn check(&self, graph: &Graph, inputs: &[&Tensor], at: &Source) -> Result<()> {
        let inputs: Vec<Tensor> = inputs.iter().map(|tensor| tensor.detached()).collect();
        let report = match &self.kind {
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
        ready.prepare(graph, inputs, at)?;
        match &ready.kind {
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
        ready.prepare(graph, &inputs.iter().collect::<Vec<_>>(), at)?;
        match &ready.kind {
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
