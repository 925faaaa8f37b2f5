//! Runs what a capture meets on its way: segments that end at a break, guards, disabled parts. What the call did already
//! before the function was called again is only compared.

use super::breaks;
use super::code::Code;
use super::dynamic::{SizeHome, SlotSizes, bind};
use super::guard;
use super::options::Dynamic;
use super::recording::{Break, FUNCTION_READS};
use super::segment::{InputSource, Segment, SegmentGraph};
use super::segment_compiler::{Arguments, SegmentCompiler};
use super::tree::{BranchGuard, BranchOutcome, Execution, Numbers, TraceStep};
use crate::tensor::dim::{Scope, scope};
use crate::tensor::scratch::Scratch;
use crate::tensor::tape;
use crate::{Error, Result, Tensor};
use kiln_ir::{Dim, Source, TensorType};
use kiln_runtime::phase;
use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// What a function does that cannot be recorded for sizes that are not known.
pub(super) const SIZES_NEEDED: &str = "needs to know sizes";

/// The running half of a capture.
pub(super) struct Driver {
    segment_compiler: Arc<SegmentCompiler>,
    arguments: Vec<Tensor>,
    layouts: Arguments,
    /// The numbers among the arguments that the function is taken to decide by, before anything else.
    numbers: Numbers,
    slots: Scratch<Tensor>,
    outside: Vec<u8>,
    /// What disabled parts gave, and how many tensors each.
    produced: Vec<(Rc<dyn Any>, usize)>,
    /// What the call did before the function was called.
    done: Vec<TraceStep>,
    /// How many of these steps are as they are, with symbols for these sizes of slots and not for those.
    kept: usize,
    /// How many are of a program.
    of_program: usize,
    /// The steps so far.
    path: Vec<TraceStep>,
    /// How many of them are disabled parts.
    parts: usize,
    /// Whether segments may run.
    runs: bool,
    /// Whether segments run an op at a time: the code of the program is made when all of it is known.
    defers: bool,
    /// Where symbols come from, if segments are recorded with some.
    homes: Option<Vec<SizeHome>>,
    /// Whether sizes that depend on data may be symbols.
    may_have_symbols: bool,
    sizes: Rc<RefCell<SlotSizes>>,
    /// The segments so far, if nothing runs and everything is compared with what was done.
    replay: Option<Vec<SegmentGraph>>,
    /// Whether gradients are recorded where the function is called.
    records: bool,
    /// Whether something that ran failed: what it did until then is done.
    has_failed: bool,
    /// Where functions with gradients of their own are recorded.
    functions: OwnGradients,
    /// Whether what ran is not what a program would run.
    has_left_program: bool,
    /// After this step there are no symbols, but there are before it.
    fixes_sizes: Option<usize>,
    /// Where those symbols are found, once there are none.
    fixed_homes: Option<Vec<SizeHome>>,
}

/// Where a recording has functions with gradients of their own: in its graphs, or in parts of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct OwnGradients {
    /// Whether they are parts where gradients are recorded outside, for calls with the same arguments on tapes. Where none are recorded,
    /// nobody asks a graph for theirs.
    pub(super) are_outside: bool,
    /// How many of the lines are known whose functions read elements: these are parts in any case.
    pub(super) reading: usize,
    /// From this step on all are parts: what was before it had run when it was found that they cannot be in graphs. No such recording is
    /// kept.
    pub(super) until: Option<usize>,
}

impl OwnGradients {
    /// Whether others go the same way.
    pub(super) fn is_kept(self) -> bool {
        self.until.is_none()
    }
}

/// What a capture did on its way.
#[derive(Default)]
pub(super) struct Ran {
    pub(super) path: Vec<TraceStep>,
    pub(super) slots: Scratch<Tensor>,
    pub(super) produced: Vec<(Rc<dyn Any>, usize)>,
    /// Where the symbols of segments are found, if these have some.
    pub(super) homes: Vec<SizeHome>,
    pub(super) functions: OwnGradients,
}

impl Driver {
    /// For a call that did nothing yet.
    pub(super) fn new(segment_compiler: Arc<SegmentCompiler>, arguments: &[&Tensor], layouts: Arguments) -> Driver {
        let arguments: Vec<Tensor> = arguments.iter().map(|&tensor| tensor.clone()).collect();
        let (slots, outside, produced) = (Scratch::new(), Vec::new(), Vec::new());
        let may_have_symbols = segment_compiler.options().dynamic != Dynamic::Static;
        let functions = segment_compiler.functions(&guard::taped(&arguments));
        let changing = segment_compiler.numbers().parts();
        let numbers = layouts.numbers.iter().filter(|(part, _)| changing.contains(part)).copied().collect();
        drop(changing);
        Driver {
            segment_compiler,
            arguments,
            layouts,
            numbers,
            slots,
            outside,
            produced,
            done: Vec::new(),
            kept: 0,
            of_program: 0,
            path: Vec::new(),
            parts: 0,
            runs: true,
            defers: false,
            homes: None,
            may_have_symbols,
            sizes: Rc::default(),
            replay: None,
            records: tape::is_enabled(),
            has_failed: false,
            functions,
            has_left_program: false,
            fixes_sizes: None,
            fixed_homes: None,
        }
    }

    /// For no call: nothing can run.
    pub(super) fn asking_only(
        segment_compiler: Arc<SegmentCompiler>,
        arguments: &[&Tensor],
        layouts: Arguments,
    ) -> Driver {
        Driver { runs: false, numbers: Numbers::new(), ..Driver::new(segment_compiler, arguments, layouts) }
    }

    /// Runs segments an op at a time.
    pub(super) fn deferred(self, defers: bool) -> Driver {
        Driver { defers, ..self }
    }

    /// Records with symbols, which are found at `homes`.
    pub(super) fn with_symbols(self, homes: Vec<SizeHome>, sizes: SlotSizes) -> Driver {
        Driver { defers: true, homes: Some(homes), fixed_homes: None, sizes: Rc::new(RefCell::new(sizes)), ..self }
    }

    /// Goes on where a capture ended.
    pub(super) fn going_on(self) -> Driver {
        let done = if self.path.len() < self.done.len() { self.done } else { self.path };
        let kept = done.len();
        Driver { done, kept, path: Vec::new(), parts: 0, defers: true, ..self }
    }

    /// Goes on where a capture ended that failed for want of sizes: what it had recorded until then is recorded as it was, with its
    /// symbols, and what follows without, as in a program that was made so. Says whether it does: not where it failed before the first
    /// step, or where that was tried already.
    pub(super) fn going_on_fixed(self) -> (Driver, bool) {
        let (recorded, was_tried) = (self.path.len(), self.fixes_sizes.is_some());
        let driver = self.going_on();
        match recorded == 0 || was_tried {
            true => (driver, false),
            false => (Driver { fixes_sizes: Some(recorded), ..driver }, true),
        }
    }

    /// Whether a capture that failed for want of sizes did so within a program which has symbols from there on: with what was found out
    /// about them it comes further.
    pub(super) fn is_in_symbols(&self) -> bool {
        let rest = self.done.get(self.path.len()..self.of_program).unwrap_or_default();
        rest.iter().any(TraceStep::is_symbolic)
    }

    /// Whether all that has symbols was recorded again; if so, what follows has none.
    pub(super) fn is_past_symbols(&mut self) -> bool {
        if self.fixes_sizes.is_none_or(|step| self.path.len() < step) {
            return false;
        }
        (self.fixes_sizes, self.may_have_symbols) = (None, false);
        self.fixed_homes = Some(self.homes.take().unwrap_or_default());
        true
    }

    /// Records without symbols.
    pub(super) fn without_symbols(self) -> Driver {
        let kept = self.of_program;
        Driver {
            homes: None,
            sizes: Rc::default(),
            may_have_symbols: false,
            fixes_sizes: None,
            fixed_homes: None,
            kept,
            ..self
        }
    }

    /// The sizes of slots that it meets.
    pub(super) fn slot_sizes(&self) -> Rc<RefCell<SlotSizes>> {
        self.sizes.clone()
    }

    /// For a call that is done but for its last segment and is recorded again: nothing runs. The first `kept` steps are
    /// as they are, with symbols or without.
    pub(super) fn replaying(
        segment_compiler: Arc<SegmentCompiler>,
        arguments: &[&Tensor],
        layouts: Arguments,
        ran: &Ran,
        kept: usize,
    ) -> Driver {
        let mut driver = Driver::new(segment_compiler, arguments, layouts);
        driver.slots = ran.slots.iter().cloned().collect();
        driver.done = ran.path.clone();
        driver.decide_as_before();
        driver.produced = ran.produced.clone();
        (driver.replay, driver.may_have_symbols, driver.kept) = (Some(Vec::new()), false, kept);
        driver.functions = ran.functions;
        driver
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
        driver.decide_as_before();
        driver.kept = driver.done.len();
        driver.of_program = driver.kept;
        driver.produced = std::mem::take(&mut execution.produced);
        driver.functions = execution.functions;
        driver
    }

    /// Takes the function to decide by those numbers that the call so far decided by.
    fn decide_as_before(&mut self) {
        let Driver { layouts, done, .. } = self;
        let decided = |&part: &usize| {
            done.iter().any(
                |step| matches!(step, TraceStep::BranchGuard(BranchGuard::Number { part: known }, _) if *known == part),
            )
        };
        self.numbers = layouts.numbers.iter().filter(|(part, _)| decided(part)).copied().collect();
    }

    /// Asks for the numbers among the arguments, before the function is called; says whether there are any.
    pub(super) fn ask_numbers(&mut self, at: &Source) -> Result<bool> {
        let parts: Vec<usize> = self.numbers.iter().map(|(part, _)| *part).collect();
        for &part in &parts {
            self.ask(BranchGuard::Number { part }, at)?;
        }
        Ok(!parts.is_empty())
    }

    /// Whether the function may read elements.
    pub(super) fn may_break(&self) -> bool {
        self.runs && !self.is_fullgraph()
    }

    /// Whether a break is an error.
    pub(super) fn is_fullgraph(&self) -> bool {
        self.segment_compiler.options().fullgraph
    }

    /// Whether something that ran failed, so that it may not run again.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
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

    /// What was done.
    pub(super) fn into_ran(self) -> Ran {
        let Driver { path, slots, produced, functions, .. } = self;
        Ran { path, slots, produced, homes: self.homes.or(self.fixed_homes).unwrap_or_default(), functions }
    }

    /// The steps of a call that was recorded again, with segments that have no code, if that is all it did; and where its sizes
    /// are found.
    pub(super) fn into_replayed(self) -> Option<(Vec<TraceStep>, Vec<SizeHome>)> {
        let mut segments = self.replay?.into_iter();
        let mut path = self.path;
        for step in &mut path {
            if let TraceStep::Segment(segment) = step {
                *segment = Arc::new(Segment::new(Arc::new(segments.next()?), Code::Nothing));
            }
        }
        (path.len() == self.done.len()).then_some((path, self.homes.unwrap_or_default()))
    }

    /// The types of what a part left in slots: with symbols, where the call is recorded again with some. `most` is said of sizes
    /// that depend on data.
    pub(super) fn slot_types(
        &mut self,
        tensors: &[&Tensor],
        slot: usize,
        most: Option<Option<usize>>,
        at: &Source,
    ) -> Result<Vec<TensorType>> {
        if tensors.is_empty() {
            return Ok(Vec::new());
        }
        if most.is_some() && self.may_have_symbols && self.homes.is_none() {
            // From here on there are symbols.
            self.homes = Some(Vec::new());
            Scope::new(Vec::new()).enter();
        }
        let step = self.path.len();
        let kept = self.made().filter(|_| step < self.kept);
        let is_symbolic = match kept {
            Some(TraceStep::BranchGuard(BranchGuard::Sizes { is_symbolic, .. }, _)) => *is_symbolic,
            _ => self.homes.is_some(),
        };
        self.ask(BranchGuard::Sizes { slot, count: tensors.len(), is_symbolic }, at)?;
        let fixed = || Ok(tensors.iter().map(|tensor| tensor.ty()).collect());
        // In a program's steps sizes are what they are there, whatever else they are equal to at this call.
        let of_program: Vec<Option<TensorType>> =
            (slot..slot + tensors.len()).map(|slot| self.program_type(slot, step)).collect();
        let Some(homes) = self.homes.as_mut().filter(|_| is_symbolic) else { return fixed() };
        let mut sizes = self.sizes.borrow_mut();
        let mut types = Vec::with_capacity(tensors.len());
        for (number, tensor) in tensors.iter().enumerate() {
            // Of what depends on data that is the first axis.
            let size = |(axis, &size): (usize, &usize)| match most {
                Some(_) if axis > 0 => {
                    sizes.meet(size, step, None, None, at)?;
                    Some(Dim::from(size))
                }
                most => {
                    let known = of_program[number].as_ref().and_then(|ty| ty.shape.get(axis));
                    sizes.meet(size, step, most, known, at)
                }
            };
            let shape: Option<Vec<Dim>> = tensor.shape().iter().enumerate().map(size).collect();
            let shape = shape.ok_or_else(|| Error::Escaped { at: at.clone() })?;
            let ty = TensorType::new(tensor.dtype(), shape);
            homes.push((InputSource::Slot(slot + number), ty.clone()));
            types.push(ty);
        }
        Ok(types)
    }

    /// The type that a slot, filled at a step, has in the segments of the program that this call came along.
    fn program_type(&self, slot: usize, step: usize) -> Option<TensorType> {
        let steps = self.done.get(step..self.of_program).unwrap_or_default();
        steps.iter().find_map(|step| {
            let TraceStep::Segment(segment) = step else { return None };
            let is_slot = |from: &InputSource| matches!(from, InputSource::Slot(known) if *known == slot);
            let input = segment.raw.from.iter().position(is_slot)?;
            let graph = &segment.raw.graph;
            Some(graph.ty(*graph.inputs().get(input)?).clone())
        })
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
        self.must_know_sizes(at)?;
        if recorded.is_empty() {
            return Ok(());
        }
        let mut recorded = recorded;
        if let Some(homes) = &self.homes {
            bind(&mut recorded, homes).ok_or_else(|| Error::NotAFunction { at: at.clone() })?;
        }
        if let Some(segments) = &mut self.replay {
            match self.done.get(self.path.len()) {
                Some(step @ TraceStep::Segment(made)) if made.raw.is_wired_like(&recorded) => {
                    self.path.push(step.clone());
                }
                _ => return Err(Error::NotAFunction { at: at.clone() }),
            }
            segments.push(recorded);
            return Ok(());
        }
        // Sizes that were symbols are made numbers by operations of their own, which a recording without symbols does not have.
        let is_past_symbols = self.fixed_homes.is_some();
        let is_same = |step: &TraceStep| match step {
            TraceStep::Segment(made) if is_past_symbols => made.raw.is_wired_like(&recorded),
            TraceStep::Segment(made) => made.raw.is_same(&recorded),
            _ => false,
        };
        if self.repeat(is_same, at)? {
            return Ok(());
        }
        let recorded = Arc::new(recorded);
        let segment = match self.defers {
            true => Segment::new(recorded, Code::Nothing),
            false => self.segment_compiler.build(recorded, &self.layouts, at)?,
        };
        self.go(TraceStep::Segment(Arc::new(segment)), at)
    }

    /// The function asks for something.
    pub(super) fn ask(&mut self, guard: BranchGuard, at: &Source) -> Result<BranchOutcome> {
        self.must_know_sizes(at)?;
        if let Some(TraceStep::BranchGuard(_, outcome)) = self.made() {
            let outcome = *outcome;
            let asked = TraceStep::BranchGuard(guard, outcome);
            self.repeat(|step| step.is(&asked), at)?;
            // Sizes may be symbols here and numbers there.
            if let TraceStep::BranchGuard(guard @ BranchGuard::Sizes { .. }, _) = asked {
                let outcome = self.with_execution(|execution| execution.outcome(&guard, at))?;
                self.path.pop();
                self.path.push(TraceStep::BranchGuard(guard, outcome));
            }
            return Ok(outcome);
        }
        self.must_run(at)?;
        let outcome = self.with_execution(|execution| execution.outcome(&guard, at))?;
        if let Some((what, fix, at)) = guard.reading() {
            breaks::emit(&what, fix, at);
        }
        self.path.push(TraceStep::BranchGuard(guard, outcome));
        Ok(outcome)
    }

    /// Runs a disabled part; says what it gave, and how many tensors.
    pub(super) fn outside(&mut self, step: TraceStep, at: &Source) -> Result<(Rc<dyn Any>, usize)> {
        self.must_know_sizes(at)?;
        let number = self.parts;
        self.parts += 1;
        // What follows a size that depends on data is compiled for all of them.
        if step.is_sized_by_data() {
            self.defers |= self.may_have_symbols;
        }
        if !self.repeat(|made| made.is(&step), at)? {
            if let TraceStep::Outside { why, at, .. } = &step {
                why.emit(at);
            }
            self.go(step, at)?;
        }
        self.produced.get(number).cloned().ok_or_else(|| Error::NotAFunction { at: at.clone() })
    }

    /// Whether a function with a gradient of its own, called at this line, is recorded here.
    pub(super) fn records_function(&self, at: &Source) -> bool {
        let OwnGradients { are_outside, reading, until } = self.functions;
        // After a size that depends on data there are symbols, which a recording that is refused would have to give up.
        let is_outside = self.path.iter().any(TraceStep::is_sized_by_data)
            || until.is_some_and(|step| self.path.len() >= step)
            || are_outside && self.records
            || self.segment_compiler.reads_elements(at, reading);
        !is_outside
    }

    /// Goes on where a capture was refused, with such functions as parts of their own: in what ran already they are what they were.
    pub(super) fn with_functions_outside(self, refused: &Break) -> Driver {
        let taped = self.taped();
        match refused.what {
            FUNCTION_READS => self.segment_compiler.note_reading(&refused.at),
            _ => self.segment_compiler.put_functions_outside(&taped),
        }
        let driver = self.going_on();
        // What was only asked is asked again: a segment may have begun before it. What a part gave besides elements is known once.
        let runs = |step: &TraceStep| matches!(step, TraceStep::Segment(_) | TraceStep::Outside { .. });
        let of_part = |step: &TraceStep| {
            matches!(step, TraceStep::BranchGuard(BranchGuard::Outside | BranchGuard::Sizes { .. }, _))
        };
        let last = driver.done.iter().rposition(runs).map_or(0, |last| last + 1);
        let ran = last + driver.done[last..].iter().take_while(|step| of_part(step)).count();
        let mut done = driver.done;
        done.truncate(ran);
        let functions = match ran {
            0 => driver.segment_compiler.functions(&taped),
            _ => OwnGradients { until: Some(ran), ..driver.functions },
        };
        let (kept, of_program) = (ran, driver.of_program.min(ran));
        let driver = Driver { done, kept, of_program, functions, has_left_program: true, ..driver };
        driver.without_symbols()
    }

    /// The arguments, by number, that are on tapes.
    pub(super) fn taped(&self) -> Vec<usize> {
        guard::taped(&self.arguments)
    }

    /// How many of its steps are of a program, and whether it went another way than the program before that was over.
    pub(super) fn of_program(&self) -> (usize, bool) {
        (self.of_program, self.has_left_program)
    }

    /// Where a call is only recorded again, nothing is new.
    fn must_run(&self, at: &Source) -> Result<()> {
        if self.replay.is_none() { Ok(()) } else { Err(Error::NotAFunction { at: at.clone() }) }
    }

    /// Where an operation failed for want of sizes the function is captured again. It may have hidden the error: nothing of what it
    /// does after that runs.
    fn must_know_sizes(&self, at: &Source) -> Result<()> {
        if scope::has_refused() { Err(Error::GraphBreak { what: SIZES_NEEDED, at: at.clone() }) } else { Ok(()) }
    }

    fn go(&mut self, step: TraceStep, at: &Source) -> Result<()> {
        self.must_run(at)?;
        // What runs while the function is captured is no part of capturing it.
        let outcome = phase::timed(phase::RUN, || self.with_execution(|execution| execution.pass(&step, at)));
        self.has_failed |= outcome.is_err();
        outcome?;
        self.path.push(step);
        Ok(())
    }

    fn with_execution<T>(&mut self, work: impl FnOnce(&mut Execution<'_>) -> T) -> T {
        // What runs may capture functions of its own.
        let scope = Scope::leave();
        let mut execution = Execution::new(self.arguments.iter().collect());
        execution.numbers.clone_from(&self.numbers);
        std::mem::swap(&mut execution.slots, &mut self.slots);
        std::mem::swap(&mut execution.outside, &mut self.outside);
        std::mem::swap(&mut execution.produced, &mut self.produced);
        let result = tape::with_enabled(self.records, || work(&mut execution));
        std::mem::swap(&mut execution.slots, &mut self.slots);
        (self.outside, self.produced) = (execution.outside, execution.produced);
        if let Some(scope) = scope {
            scope.enter();
        }
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
