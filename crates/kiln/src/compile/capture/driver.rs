//! Runs what a capture meets on its way: segments that end at a break, guards, disabled parts. What the call did already
//! before the function was called again is only compared.

use super::segment::{InputSource, Segment, SegmentGraph};
use super::segment_compiler::{Arguments, SegmentCompiler};
use super::tree::{BranchGuard, BranchOutcome, Execution, TraceStep};
use crate::tensor::scratch::Scratch;
use crate::tensor::tape;
use crate::{Error, Result, Tensor};
use kiln_ir::Source;
use kiln_runtime::event::{self, Category, Event};
use kiln_runtime::phase;
use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;

/// The way out of a break.
pub(super) const BREAK_FIX: &str = "the graph ends there and another begins; `where_` instead of `if` keeps one";

/// The running half of a capture.
pub(super) struct Driver {
    segment_compiler: Arc<SegmentCompiler>,
    arguments: Vec<Tensor>,
    layouts: Arguments,
    slots: Scratch<Tensor>,
    outside: Vec<u8>,
    /// What disabled parts gave, and how many tensors each.
    produced: Vec<(Rc<dyn Any>, usize)>,
    /// What the call did before the function was called.
    done: Vec<TraceStep>,
    /// The steps so far.
    path: Vec<TraceStep>,
    /// How many of them are disabled parts.
    parts: usize,
    /// Whether segments may run.
    runs: bool,
    /// Whether gradients are recorded where the function is called.
    records: bool,
}

impl Driver {
    /// For a call that did nothing yet.
    pub(super) fn new(segment_compiler: Arc<SegmentCompiler>, arguments: &[&Tensor], layouts: Arguments) -> Driver {
        let arguments = arguments.iter().map(|&tensor| tensor.clone()).collect();
        let (slots, outside, produced) = (Scratch::new(), Vec::new(), Vec::new());
        Driver {
            segment_compiler,
            arguments,
            layouts,
            slots,
            outside,
            produced,
            done: Vec::new(),
            path: Vec::new(),
            parts: 0,
            runs: true,
            records: tape::is_enabled(),
        }
    }

    /// For no call: nothing can run.
    pub(super) fn asking_only(
        segment_compiler: Arc<SegmentCompiler>,
        arguments: &[&Tensor],
        layouts: Arguments,
    ) -> Driver {
        Driver { runs: false, ..Driver::new(segment_compiler, arguments, layouts) }
    }

    /// For a call that came as far as `execution`.
    pub(super) fn after(
        segment_compiler: Arc<SegmentCompiler>,
        execution: &mut Execution<'_>,
        layouts: Arguments,
    ) -> Driver {
        let mut driver = Driver::new(segment_compiler, &execution.arguments, layouts);
        driver.slots = std::mem::take(&mut execution.slots);
        driver.done = execution.trail.drain().collect();
        driver.produced = std::mem::take(&mut execution.produced);
        driver
    }

    /// Whether the function may read elements.
    pub(super) fn may_break(&self) -> bool {
        self.runs && !self.segment_compiler.options().fullgraph
    }

    /// Whether segments may run.
    pub(super) fn may_run(&self) -> bool {
        self.runs
    }

    /// Whether anything ran, or was asked that ends a graph.
    pub(super) fn is_at_start(&self) -> bool {
        !self.path.iter().any(|step| match step {
            TraceStep::BranchGuard(guard, _) => guard.is_break(),
            TraceStep::Segment(_) | TraceStep::Outside { .. } => true,
        })
    }

    /// The steps so far, and the slots.
    pub(super) fn into_parts(self) -> (Vec<TraceStep>, Scratch<Tensor>) {
        (self.path, self.slots)
    }

    /// A tensor that is there already.
    pub(super) fn tensor(&self, from: &InputSource, at: &Source) -> Result<Tensor> {
        let tensor = match from {
            InputSource::Argument(number) => self.arguments.get(*number).cloned(),
            InputSource::Held(tensor) | InputSource::Data(tensor) => Some(tensor.clone()),
            InputSource::Slot(slot) => self.slots.get(*slot).cloned(),
            InputSource::Var(_) | InputSource::Gradient(_) | InputSource::Key(..) => None,
        };
        tensor.ok_or_else(|| Error::Escaped { at: at.clone() })
    }

    /// A step that the call made already.
    fn made(&self) -> Option<&TraceStep> {
        self.done.get(self.path.len())
    }

    /// Takes a step that the call made already, if it is the same.
    fn repeat(&mut self, is_same: impl Fn(&TraceStep) -> bool, at: &Source) -> Result<bool> {
        let Some(made) = self.made() else { return Ok(false) };
        if !is_same(made) {
            return Err(Error::NotAFunction { at: at.clone() });
        }
        self.path.push(made.clone());
        Ok(true)
    }

    /// A segment has ended: it runs.
    pub(super) fn segment(&mut self, recorded: SegmentGraph, at: &Source) -> Result<()> {
        if recorded.is_empty() {
            return Ok(());
        }
        if self.repeat(|step| matches!(step, TraceStep::Segment(made) if made.recorded.is_same(&recorded)), at)? {
            return Ok(());
        }
        let segment = Arc::new(self.segment_compiler.build(Arc::new(recorded), &self.layouts, at)?);
        self.go(TraceStep::Segment(segment), at)
    }

    /// The function asks for something.
    pub(super) fn ask(&mut self, guard: BranchGuard, at: &Source) -> Result<BranchOutcome> {
        if let Some(TraceStep::BranchGuard(_, outcome)) = self.made() {
            let outcome = *outcome;
            let asked = TraceStep::BranchGuard(guard, outcome);
            self.repeat(|step| step.is(&asked), at)?;
            return Ok(outcome);
        }
        let outcome = self.with_execution(|execution| execution.outcome(&guard, at))?;
        if let BranchGuard::Elements { what, at, .. } = &guard {
            event::emit(Category::Breaks, || Event::GraphBreak {
                what: (*what).to_owned(),
                fix: BREAK_FIX.to_owned(),
                at: at.clone(),
            });
        }
        self.path.push(TraceStep::BranchGuard(guard, outcome));
        Ok(outcome)
    }

    /// Runs a disabled part; says what it gave, and how many tensors.
    pub(super) fn outside(&mut self, step: TraceStep, at: &Source) -> Result<(Rc<dyn Any>, usize)> {
        let number = self.parts;
        self.parts += 1;
        if !self.repeat(|made| made.is(&step), at)? {
            self.go(step, at)?;
        }
        self.produced.get(number).cloned().ok_or_else(|| Error::NotAFunction { at: at.clone() })
    }

    fn go(&mut self, step: TraceStep, at: &Source) -> Result<()> {
        // What runs while the function is captured is no part of capturing it.
        phase::timed(phase::RUN, || self.with_execution(|execution| execution.pass(&step, at)))?;
        self.path.push(step);
        Ok(())
    }

    fn with_execution<T>(&mut self, work: impl FnOnce(&mut Execution<'_>) -> T) -> T {
        let mut execution = Execution::new(self.arguments.iter().collect());
        std::mem::swap(&mut execution.slots, &mut self.slots);
        std::mem::swap(&mut execution.outside, &mut self.outside);
        std::mem::swap(&mut execution.produced, &mut self.produced);
        let result = tape::with_enabled(self.records, || work(&mut execution));
        std::mem::swap(&mut execution.slots, &mut self.slots);
        (self.outside, self.produced) = (execution.outside, execution.produced);
        result
    }
}

impl Segment {
    /// Returns the labels of the segment's kernels.
    pub(super) fn kernels(&self) -> Vec<String> {
        let steps = self.code.ready().map(|code| code.program().steps());
        steps.unwrap_or_default().iter().map(|step| step.label().to_owned()).collect()
    }
}
