//! Runs what a capture meets on its way: segments that end at a break, questions, disabled parts. What the call did already
//! before the function was called again is only compared.

use super::segment::{Draft, From, Segment};
use super::tree::{Answer, Question, Stop, Walk};
use super::workshop::{Arguments, Workshop};
use crate::autograd::tape;
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
    workshop: Arc<Workshop>,
    arguments: Vec<Tensor>,
    layouts: Arguments,
    slots: Vec<Tensor>,
    outside: Vec<u8>,
    /// What disabled parts gave, and how many tensors each.
    produced: Vec<(Rc<dyn Any>, usize)>,
    /// What the call did before the function was called.
    done: Vec<Stop>,
    /// The stops so far.
    path: Vec<Stop>,
    /// How many of them are disabled parts.
    parts: usize,
    /// Whether segments may run.
    runs: bool,
    /// Whether gradients are recorded where the function is called.
    records: bool,
}

impl Driver {
    /// For a call that did nothing yet.
    pub(super) fn new(workshop: Arc<Workshop>, arguments: &[&Tensor], layouts: Arguments) -> Driver {
        let arguments = arguments.iter().map(|&tensor| tensor.clone()).collect();
        let (slots, outside, produced) = (Vec::new(), Vec::new(), Vec::new());
        Driver {
            workshop,
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
    pub(super) fn asking_only(workshop: Arc<Workshop>, arguments: &[&Tensor], layouts: Arguments) -> Driver {
        Driver { runs: false, ..Driver::new(workshop, arguments, layouts) }
    }

    /// For a call that came as far as `walk`.
    pub(super) fn after(workshop: Arc<Workshop>, walk: &mut Walk<'_>, layouts: Arguments) -> Driver {
        let mut driver = Driver::new(workshop, &walk.arguments, layouts);
        driver.slots = std::mem::take(&mut walk.slots);
        driver.done = std::mem::take(&mut walk.trail);
        driver.produced = std::mem::take(&mut walk.produced);
        driver
    }

    /// Whether the function may read elements.
    pub(super) fn may_break(&self) -> bool {
        self.runs && !self.workshop.options().fullgraph
    }

    /// Whether segments may run.
    pub(super) fn may_run(&self) -> bool {
        self.runs
    }

    /// Whether anything ran, or was asked that ends a graph.
    pub(super) fn is_at_start(&self) -> bool {
        !self.path.iter().any(|stop| match stop {
            Stop::Question(question, _) => question.is_break(),
            Stop::Segment(_) | Stop::Outside { .. } => true,
        })
    }

    /// The stops so far, and the slots.
    pub(super) fn into_parts(self) -> (Vec<Stop>, Vec<Tensor>) {
        (self.path, self.slots)
    }

    /// A tensor that is there already.
    pub(super) fn tensor(&self, from: &From, at: &Source) -> Result<Tensor> {
        let tensor = match from {
            From::Argument(number) => self.arguments.get(*number).cloned(),
            From::Held(tensor) | From::Data(tensor) => Some(tensor.clone()),
            From::Slot(slot) => self.slots.get(*slot).cloned(),
            From::Var(_) | From::Gradient(_) | From::Key(..) => None,
        };
        tensor.ok_or_else(|| Error::Escaped { at: at.clone() })
    }

    /// A stop that the call made already.
    fn made(&self) -> Option<&Stop> {
        self.done.get(self.path.len())
    }

    /// Takes a stop that the call made already, if it is the same.
    fn repeat(&mut self, is_same: impl Fn(&Stop) -> bool, at: &Source) -> Result<bool> {
        let Some(made) = self.made() else { return Ok(false) };
        if !is_same(made) {
            return Err(Error::NotAFunction { at: at.clone() });
        }
        self.path.push(made.clone());
        Ok(true)
    }

    /// A segment has ended: it runs.
    pub(super) fn segment(&mut self, draft: Draft, at: &Source) -> Result<()> {
        if draft.is_empty() {
            return Ok(());
        }
        if self.repeat(|stop| matches!(stop, Stop::Segment(made) if made.draft.is_same(&draft)), at)? {
            return Ok(());
        }
        let segment = Arc::new(self.workshop.build(Arc::new(draft), &self.layouts, at)?);
        self.go(Stop::Segment(segment), at)
    }

    /// The function asks for something.
    pub(super) fn ask(&mut self, question: Question, at: &Source) -> Result<Answer> {
        if let Some(Stop::Question(_, answer)) = self.made() {
            let answer = answer.clone();
            let asked = Stop::Question(question, answer.clone());
            self.repeat(|stop| stop.is(&asked), at)?;
            return Ok(answer);
        }
        let answer = self.with_walk(|walk| walk.answer(&question, at))?;
        if let Question::Elements { what, at, .. } = &question {
            event::emit(Category::Breaks, || Event::GraphBreak {
                what: (*what).to_owned(),
                fix: BREAK_FIX.to_owned(),
                at: at.clone(),
            });
        }
        self.path.push(Stop::Question(question, answer.clone()));
        Ok(answer)
    }

    /// Runs a disabled part; says what it gave, and how many tensors.
    pub(super) fn outside(&mut self, stop: Stop, at: &Source) -> Result<(Rc<dyn Any>, usize)> {
        let number = self.parts;
        self.parts += 1;
        if !self.repeat(|made| made.is(&stop), at)? {
            self.go(stop, at)?;
        }
        self.produced.get(number).cloned().ok_or_else(|| Error::NotAFunction { at: at.clone() })
    }

    fn go(&mut self, stop: Stop, at: &Source) -> Result<()> {
        // What runs while the function is captured is no part of capturing it.
        phase::timed(phase::RUN, || self.with_walk(|walk| walk.pass(&stop, at)))?;
        self.path.push(stop);
        Ok(())
    }

    fn with_walk<T>(&mut self, work: impl FnOnce(&mut Walk<'_>) -> T) -> T {
        let mut walk = Walk::new(self.arguments.iter().collect());
        std::mem::swap(&mut walk.slots, &mut self.slots);
        std::mem::swap(&mut walk.outside, &mut self.outside);
        std::mem::swap(&mut walk.produced, &mut self.produced);
        let result = tape::with_enabled(self.records, || work(&mut walk));
        (self.slots, self.outside, self.produced) = (walk.slots, walk.outside, walk.produced);
        result
    }
}

impl Segment {
    /// The kernels of a segment, in words.
    pub(super) fn kernels(&self) -> Vec<String> {
        let steps = self.code.ready().map(|code| code.program().steps());
        steps.unwrap_or_default().iter().map(|step| step.label().to_owned()).collect()
    }
}
