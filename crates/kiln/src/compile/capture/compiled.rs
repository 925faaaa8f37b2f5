//! `compile(f)`: a function with its programs, each behind its guards.

use super::broken::{CapturedSymbols, Finished};
use super::bucketed::KnownCuts;
use super::callable::Callable;
use super::code::Kind;
use super::driver::Driver;
use super::dynamic::{Plan, ROUNDS, Verdict};
use super::guard::{self, Guard};
use super::held_bytes::Return;
use super::limits::{LimitRecord, Limits, Reason};
use super::never_slower::{Effects, race};
use super::options::Options;
use super::recompilations::Recompilations;
use super::segment::SegmentGraph;
use super::segment_compiler::{Arguments, SegmentCompiler};
use super::sizes::{Accepted, Sizes};
use super::stance::{Stance, stance};
use super::tree::{
    BranchGuard, BranchOutcome, Execution, Node, Reached, Returned, SIZE_OF_DATA, STOPS_KEPT, TraceStep,
};
use super::{Captured, Outcome, capture};
use crate::compile::freeze::FrozenGraph;
use crate::pipeline::dump;
use crate::tensor::autocast;
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::tensor::compiled_graph::CompiledGraph;
use crate::tensor::dim::Scope;
use crate::tensor::scratch::Scratch;
use crate::tensor::tracer::is_active;
use crate::{Error, Result, Tensor};
use kiln_ir::{Graph, Source};
use kiln_runtime::event::{self, Category, Event};
use kiln_runtime::phase;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Counters of a [`Compiled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Calls that found their program.
    pub hits: u64,
    /// Programs compiled.
    pub compiles: u64,
    /// Calls that ran the function eagerly.
    pub fallbacks: u64,
    /// Calls that reached a new outcome and recorded the function on from there; only what is new of it is compiled.
    pub branches: u64,
    /// How many times a reason reached [`Options::recompile_limit`], after which the function is not captured again for it.
    pub limits: u64,
    /// Calls that ran the function eagerly because of such a limit; also counted in [`Stats::fallbacks`].
    pub limited: u64,
    /// Programs there are now.
    pub programs: usize,
    /// Graph breaks in all of them: lines that read elements, disabled parts, results whose sizes depend on data.
    pub breaks: usize,
    /// Graphs compiled, over all programs, branches and sizes so far.
    pub graphs: u64,
    /// Nodes of all programs' trees: segments, guards, returns.
    pub nodes: usize,
    /// Bytes that programs hold, approximately: what [`Options::cache_bytes`] bounds.
    pub bytes: usize,
    /// Time spent capturing and compiling.
    pub capturing: Duration,
}

/// A program of a [`Compiled`].
#[derive(Debug, Clone)]
pub struct ProgramSummary {
    /// The guards on the arguments, as text.
    pub guards: Vec<String>,
    /// The kernels in execution order, branch after branch.
    pub kernels: Vec<String>,
    /// The graph breaks, with their lines.
    pub breaks: Vec<String>,
    /// The graphs between the breaks.
    pub segments: Vec<SegmentSummary>,
}

/// A graph of a [`Compiled`], from one graph break to the next.
#[derive(Clone)]
pub struct SegmentSummary {
    /// The graph as it was captured.
    pub graph: Arc<Graph>,
    /// A description of each input.
    pub inputs: Vec<String>,
    /// Its code, once compiled, if its weights are not frozen.
    pub code: Option<Arc<CompiledGraph>>,
    /// Its code with frozen weights, once compiled.
    pub frozen: Option<Arc<FrozenGraph>>,
}

impl std::fmt::Debug for SegmentSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SegmentSummary").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

/// A function that is compiled when it is called. See [`compile`]. It dereferences to the function or module itself.
pub struct Compiled<F, A, R, E = Error> {
    pub(super) f: F,
    pub(super) apply: fn(&F, &A) -> Result<R, E>,
    pub(super) segment_compiler: Arc<SegmentCompiler>,
    pub(super) entries: RwLock<Vec<Arc<Entry<R>>>>,
    /// Held while compiling, so that threads that need the same program wait for one of them; hits do not.
    compiling: Mutex<()>,
    clock: AtomicU64,
    hits: AtomicU64,
    compiles: AtomicU64,
    fallbacks: AtomicU64,
    branches: AtomicU64,
    limited: AtomicU64,
    /// Nanoseconds.
    capturing: AtomicU64,
    pub(super) limits: Limits,
    /// Why there is more than one program, the oldest first.
    recompiles: Recompilations,
    /// Which axes of results were padded.
    pub(super) cuts: Mutex<KnownCuts>,
    arguments: PhantomData<fn(&A)>,
    /// The last field, so that it is dropped last.
    pub(super) memory: Return,
}

/// A program with its guards.
pub(super) struct Entry<R> {
    pub(super) guards: Vec<Guard>,
    /// Which arguments are on the same tape.
    shared_tapes: Vec<usize>,
    pub(super) used: AtomicU64,
    pub(super) root: Arc<Node<R>>,
    /// How calls fare that meet a limit on the way.
    limit_record: LimitRecord,
    /// Nanoseconds that it is faster than the function itself, once that was measured.
    gain: AtomicU64,
    /// The capture, if it was of one graph.
    pub(super) whole: Option<Whole<R>>,
    /// The shapes of the arguments' tensors then.
    pub(super) shapes: Vec<Vec<usize>>,
    /// The sizes that are symbols, if it was of several graphs for many sizes: what is captured later is for these, too.
    pub(super) plan: Option<Plan>,
    pub(super) sizes: Sizes,
    /// Whether the function itself was measured to be faster.
    is_slower: OnceLock<bool>,
}

/// A function captured as one graph.
pub(super) struct Whole<R> {
    /// The guards it passed before; none on elements.
    pub(super) path: Vec<TraceStep>,
    pub(super) recorded: Arc<SegmentGraph>,
    pub(super) returned: Arc<Returned<R>>,
}

/// The result of a program lookup.
enum Found<R> {
    Program(Arc<Entry<R>>, Scratch<usize>),
    /// Programs whose guards pass, but which have not been checked at these sizes.
    Unchecked(Vec<(Arc<Entry<R>>, Vec<usize>)>),
}

/// The result of a call that found no program.
enum Made<R> {
    /// A program was made.
    Entry(Arc<Entry<R>>),
    /// The call ran this far while it was captured; the rest remains to be run.
    Rest(Rest<R>),
}

/// An outcome that has no branch.
struct Unknown<R> {
    branch: Arc<Node<R>>,
    guard: BranchGuard,
    outcome: BranchOutcome,
    /// What a branch for it counts for; none is kept without.
    reason: Option<Reason>,
}

/// What is left to run of a call, the slots so far, and the steps so far.
pub(super) type Rest<R> = (Arc<Node<R>>, Scratch<Tensor>, Vec<TraceStep>);

/// Compiles a function of tensors: the first call captures it as a graph, and later calls run the graph's fused kernels.
///
/// The function must be a pure function of its arguments and of the tensors, variables and settings it holds: it is called
/// only to be captured, so prints, counters and changes to Rust variables do not happen again. Other dtypes, shapes,
/// strides or plain values among the arguments capture it again. Where it reads elements (`item`, `to_vec`) there is a
/// graph break, and each outcome has its own branch; [`Options::fullgraph`] makes that an error.
///
/// ```
/// use kiln::{DType, Device, Tensor};
/// let weight = Tensor::ones([4, 2], DType::F32, Device::Cpu)?;
/// let fast = kiln::compile(move |x: &Tensor| x.matmul(&weight)?.relu());
/// let x = Tensor::ones([3, 4], DType::F32, Device::Cpu)?;
/// assert_eq!(fast.call(&x)?.to_vec::<f32>()?, [4.0; 6]);
/// assert_eq!(fast.call(&x)?.shape(), [3, 2]);
/// assert_eq!((fast.stats().compiles, fast.stats().hits), (1, 1));
/// # Ok::<(), kiln::Error>(())
/// ```
///
/// A module is compiled by its [`crate::nn::Forward`] and remains a module:
///
/// ```
/// use kiln::nn::{Linear, Module};
/// use kiln::{DType, Device, Tensor};
/// let fast = kiln::compile(Linear::new(4, 2)?);
/// assert_eq!(fast.call(&Tensor::ones([3, 4], DType::F32, Device::Cpu)?)?.shape(), [3, 2]);
/// assert_eq!(fast.weight.shape(), [2, 4]);
/// assert_eq!(fast.state_dict().into_keys().collect::<Vec<_>>(), ["bias", "weight"]);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn compile<F, A, R, Kind>(f: F) -> Compiled<F, A, R, F::Error>
where
    F: Callable<A, R, Kind>,
    A: Bundle,
    R: Bundle,
{
    compile_with(f, Options::default())
}

/// [`compile`] with options.
///
/// ```
/// use kiln::{DType, Device, Options, Tensor};
/// let options = Options { fullgraph: true, ..Options::default() };
/// let fast = kiln::compile_with(|x: &Tensor| if x.sum(..)?.item::<f32>()? > 0.0 { x.exp() } else { x.log() }, options);
/// let message = fast.call(&Tensor::ones(2, DType::F32, Device::Cpu)?).unwrap_err().to_string();
/// assert!(message.contains("reads a tensor's element"));
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn compile_with<F, A, R, Kind>(f: F, options: Options) -> Compiled<F, A, R, F::Error>
where
    F: Callable<A, R, Kind>,
    A: Bundle,
    R: Bundle,
{
    Compiled::new(f, F::apply, options)
}

impl<F, A, R, E> Compiled<F, A, R, E>
where
    A: Bundle,
    R: Bundle,
    E: From<Error>,
{
    /// Compiles what `apply` does with `f`.
    pub(crate) fn new(f: F, apply: fn(&F, &A) -> Result<R, E>, options: Options) -> Compiled<F, A, R, E> {
        Compiled {
            f,
            apply,
            segment_compiler: Arc::new(SegmentCompiler::new(options)),
            entries: RwLock::default(),
            compiling: Mutex::default(),
            clock: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            compiles: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
            branches: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            capturing: AtomicU64::new(0),
            limits: Limits::default(),
            recompiles: Recompilations::default(),
            cuts: Mutex::default(),
            arguments: PhantomData,
            memory: Return::default(),
        }
    }

    /// Calls the function: runs the program for these arguments, compiling it first if there is none.
    #[track_caller]
    #[inline]
    pub fn call(&self, arguments: &A) -> Result<R, E> {
        self.call_at(arguments, Source::caller())
    }

    /// [`Compiled::call`] from this line.
    pub(crate) fn call_at(&self, arguments: &A, at: Source) -> Result<R, E> {
        // Inside of another function being captured this one becomes part of it.
        if self.options().disable || is_active() {
            return (self.apply)(&self.f, arguments);
        }
        let stance = stance();
        if stance == Stance::ForceEager {
            return self.fall_back(arguments);
        }
        if !self.options().buckets.is_empty() {
            return self.call_padded(arguments, stance, &at);
        }
        self.call_with(arguments, &[], stance, &at)
    }

    /// Calls the function, with the lengths that [`Options::buckets`] asks for.
    pub(super) fn call_with(&self, arguments: &A, lengths: &[Tensor], stance: Stance, at: &Source) -> Result<R, E> {
        let mut leaves = leaves_of(arguments);
        leaves.extend(lengths.iter().map(Leaf::Tensor));
        leaves.extend(autocast::leaf());
        let mut execution = Execution::new(tensors_of(&leaves));
        let (rest, entry) = match self.find(&leaves) {
            Found::Program(entry, sizes) => {
                execution.sizes = sizes;
                if entry.limit_record.is_eager() {
                    return self.run_limited(arguments);
                }
                if entry.limit_record.wants_measure() {
                    let start = Instant::now();
                    let result = self.fall_back(arguments);
                    entry.limit_record.note_eager(start.elapsed());
                    return result;
                }
                self.hits.fetch_add(1, Ordering::Relaxed);
                if self.options().never_slower {
                    if self.is_slower(&entry, arguments, &leaves, at)? {
                        return self.fall_back(arguments);
                    }
                    self.limits.save(entry.gain.load(Ordering::Relaxed));
                }
                execution.may_grow = entry.may_grow();
                (None, Some(entry))
            }
            Found::Unchecked(unchecked) => {
                if unchecked.is_empty() && stance == Stance::EagerOnRecompile {
                    return self.fall_back(arguments);
                }
                if unchecked.is_empty() && stance == Stance::FailOnRecompile {
                    return Err(Error::Recompile { guard: self.failed_guard(&leaves), at: at.clone() }.into());
                }
                self.check_declared(&leaves, at)?;
                if let Some(reason) = self.reason(&leaves).filter(|reason| self.is_over(reason)) {
                    self.reach(&reason, || self.failed_guard(&leaves), at);
                    return self.run_limited(arguments);
                }
                match phase::timed("capture", || self.make(arguments, &leaves, at))? {
                    Made::Entry(entry) => {
                        if self.options().never_slower && self.is_slower(&entry, arguments, &leaves, at)? {
                            return self.fall_back(arguments);
                        }
                        execution.may_grow = entry.may_grow();
                        execution.sizes = entry.sizes_of(&leaves);
                        (None, Some(entry))
                    }
                    Made::Rest((node, slots, trail)) => {
                        (execution.slots, execution.trail) = (slots, trail.into_iter().collect());
                        (Some(node), None)
                    }
                }
            }
        };
        let node = rest.as_ref().or(entry.as_ref().map(|entry| &entry.root));
        let node = node.ok_or_else(|| Error::Escaped { at: at.clone() })?;
        self.run(node, entry.as_deref(), execution, arguments, &leaves, at)
    }

    /// Runs the function itself, because it was captured as often as it may be.
    fn run_limited(&self, arguments: &A) -> Result<R, E> {
        self.limited.fetch_add(1, Ordering::Relaxed);
        self.fall_back(arguments)
    }

    #[cold]
    fn fall_back(&self, arguments: &A) -> Result<R, E> {
        self.fallbacks.fetch_add(1, Ordering::Relaxed);
        (self.apply)(&self.f, arguments)
    }

    /// Whether the function itself is faster than a program: measured once, when the program is there.
    fn is_slower(&self, entry: &Entry<R>, arguments: &A, leaves: &[Leaf<'_>], at: &Source) -> Result<bool, E> {
        if let Some(slower) = entry.is_slower.get() {
            return Ok(*slower);
        }
        let mut pending = false;
        entry.root.visit(&mut |node| {
            if let Node::Step { step: TraceStep::Segment(segment), .. } = node {
                pending |= segment.code.is_pending();
            }
        });
        if pending {
            return Ok(false);
        }
        let Some(effects) = Effects::of(&entry.root) else { return Ok(false) };
        // Where the function has not been captured so far, it is not known what it changes: another call measures.
        let compiled = || -> Result<bool, E> {
            let mut execution = Execution::new(tensors_of(leaves));
            execution.sizes = entry.sizes_of(leaves);
            let result = execution.go(&entry.root, at);
            effects.undo(at)?;
            Ok(matches!(result?, Reached::Returned(_)))
        };
        let eager = || -> Result<bool, E> {
            let result = (self.apply)(&self.f, arguments);
            effects.undo(at)?;
            result.map(|_| true)
        };
        // A call that fails says so when it is made.
        let Ok(Some((compiled, eager))) = race(compiled, eager) else { return Ok(false) };
        let slower = *entry.is_slower.get_or_init(|| eager < compiled);
        entry.gain.store(eager.saturating_sub(compiled).as_nanos() as u64, Ordering::Relaxed);
        event::emit(Category::Perf, || Event::Remark {
            text: format!(
                "never_slower: compiled {compiled:.1?}, eager {eager:.1?}; {} is kept",
                if slower { "eager" } else { "compiled" }
            ),
            at: at.clone(),
        });
        Ok(slower)
    }

    /// Goes down the tree from a node; where it ends, the function is captured on from there.
    fn run(
        &self,
        from: &Arc<Node<R>>,
        entry: Option<&Entry<R>>,
        mut execution: Execution<'_>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<R, E> {
        let mut rest;
        let mut node = from;
        let start = entry.filter(|entry| entry.limit_record.is_fresh()).map(|_| Instant::now());
        let mut is_fresh = false;
        loop {
            node = match execution.go(node, at)? {
                Reached::Returned(returned) => {
                    if let Some(entry) = entry {
                        match is_fresh {
                            true => entry.limit_record.note_fresh(start.map(|start| start.elapsed())),
                            false => entry.limit_record.hit(),
                        }
                    }
                    return Ok(execution.fill(&returned));
                }
                Reached::Unknown { at: branch, guard, outcome } => {
                    let reason = Reason::of(&guard, &execution.trail);
                    let is_over = self.is_over(&reason) && branch.branch(&outcome, &execution.sizes).is_none();
                    if is_over {
                        self.reach(&reason, || guard.news(), at);
                        if execution.may_start_again() {
                            if let Some(entry) = entry {
                                entry.limit_record.miss();
                            }
                            return self.run_limited(arguments);
                        }
                        // What it changed so far cannot be done twice: this call is captured to its end, the next begins eagerly.
                        if let Some(entry) = entry {
                            entry.limit_record.give_up();
                        }
                    }
                    let ask = Unknown { branch, guard, outcome, reason: (!is_over).then_some(reason) };
                    let compiled = self.segment_compiler.compiled();
                    rest = phase::timed("capture", || self.branch(&mut execution, entry, ask, arguments, leaves, at))?;
                    is_fresh = self.segment_compiler.compiled() == compiled;
                    &rest
                }
            }
        }
    }

    /// Captures how the function goes on after an outcome that has no branch yet.
    #[cold]
    fn branch(
        &self,
        execution: &mut Execution<'_>,
        entry: Option<&Entry<R>>,
        unknown: Unknown<R>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Result<Arc<Node<R>>, E> {
        let _alone = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let Unknown { branch, guard, outcome, reason } = unknown;
        execution.trail.push(TraceStep::BranchGuard(guard, outcome));
        if let Some(next) = branch.branch(&outcome, &execution.sizes) {
            return Ok(next);
        }
        let (start, compiled) = (Instant::now(), self.segment_compiler.compiled());
        self.branches.fetch_add(1, Ordering::Relaxed);
        let done = execution.trail.len();
        let mut plan = entry.and_then(|entry| entry.plan.clone());
        let exactly = plan.as_mut().map_or_else(Vec::new, |plan| plan.set_now(&execution.sizes));
        let mut driver = Driver::after(self.segment_compiler.clone(), execution, Arguments::of(leaves));
        if let Some(plan) = &plan {
            driver = driver.with_symbols(plan.homes(), plan.slot_sizes());
        }
        let (captured, symbols) = self.capture(arguments, leaves, plan, driver, at)?;
        let Finished { rest, ran, checks, mut later, .. } =
            self.finish(*captured, None, symbols, done, arguments, leaves, at)?;
        let checks = checks.unwrap_or(exactly);
        let took = self.took(start);
        // What needs no new code costs no more than recording it, and is kept as long as there are few.
        let is_new = self.segment_compiler.compiled() > compiled;
        let is_kept = is_new || branch.branch_count() < self.options().recompile_limit;
        if let Some(reason) = reason.filter(|_| execution.may_grow && is_kept) {
            if is_new {
                self.limits.count(reason.clone(), took);
            }
            let next = Node::join(ran.path[done..].to_vec(), &mut later, rest.clone());
            let is_kept = ran.path.len() < STOPS_KEPT && {
                branch.grow(&outcome, checks, next.clone());
                entry.is_none_or(|entry| self.make_room(entry))
            };
            if !is_kept {
                branch.cut(&next);
                self.limits.exhaust(reason);
            }
        }
        (execution.slots, execution.trail) = (ran.slots, ran.path.into_iter().collect());
        Ok(rest)
    }

    /// Notes the time since `start` as spent on capturing.
    fn took(&self, start: Instant) -> Duration {
        let took = start.elapsed();
        self.capturing.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        took
    }

    /// Captures the function; a break that cannot be is an error. What follows a size that depends on data is recorded with
    /// symbols, and so is all of it if there is a plan; where that cannot be, it goes on without.
    fn capture(
        &self,
        arguments: &A,
        leaves: &[Leaf<'_>],
        mut plan: Option<Plan>,
        mut driver: Driver,
        at: &Source,
    ) -> Result<(Box<Captured<R>>, CapturedSymbols), E> {
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        for round in 0..ROUNDS {
            let types = plan.as_ref().map(Plan::types);
            match &plan {
                Some(plan) => {
                    driver = driver.with_symbols(plan.homes(), plan.slot_sizes());
                    plan.scope().enter();
                }
                None => drop(Scope::leave()),
            }
            let sizes = driver.slot_sizes();
            let outcome = capture(&f, arguments, types.as_deref(), Some(driver), at);
            let scope = Scope::leave();
            let (broken, ran) = match outcome? {
                Outcome::Whole(captured) => {
                    let Some(scope) = scope else { return Ok((captured, CapturedSymbols::None)) };
                    let mut plan = plan.unwrap_or_else(|| Plan::without_symbols(leaves));
                    plan.adopt(sizes.take());
                    // What ran in earlier rounds has symbols that are gone.
                    let symbols =
                        if round == 0 { CapturedSymbols::These(plan, scope) } else { CapturedSymbols::Again(plan) };
                    return Ok((captured, symbols));
                }
                Outcome::Broken(broken, ran) => (broken, ran),
            };
            let error = || Error::GraphBreak { what: broken.what, at: broken.at.clone() };
            let (Some(ran), Some(scope)) = (ran, scope.filter(|scope| scope.outcome().is_some())) else {
                return Err(error().into());
            };
            let mut own = plan.unwrap_or_else(|| Plan::without_symbols(leaves));
            own.adopt(sizes.take());
            driver = ran.going_on();
            match own.judge(&scope, None, at) {
                Verdict::Again => plan = Some(own),
                _ => {
                    plan = None;
                    driver = driver.without_symbols();
                }
            }
        }
        Err(Error::NotAFunction { at: at.clone() }.into())
    }

    /// The program for these parts. Read-locked only for the look.
    fn find(&self, leaves: &[Leaf<'_>]) -> Found<R> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut unchecked = Vec::new();
        let shared_tapes = guard::shared_tapes(leaves);
        for entry in entries.iter() {
            let mut sizes = Scratch::filled(guard::UNKNOWN, entry.sizes.count());
            // Empty lists are compared here: `memcmp` of none reads a page that is not there, which takes a microcode assist.
            let same_tapes = match (&*entry.shared_tapes, &*shared_tapes) {
                ([], []) => true,
                (known, now) => known == now,
            };
            let is_for = guard::check(&entry.guards, leaves, &mut sizes).is_ok() && same_tapes;
            if !is_for || !entry.is_on_its_way() {
                continue;
            }
            match entry.sizes.accept(&sizes) {
                Accepted::Yes => {
                    self.touch(entry);
                    return Found::Program(entry.clone(), sizes);
                }
                Accepted::No(_) => {}
                Accepted::Unchecked => unchecked.push((entry.clone(), sizes.to_vec())),
            }
        }
        Found::Unchecked(unchecked)
    }

    fn touch(&self, entry: &Entry<R>) {
        entry.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Captures the function for arguments that there is no program for yet.
    #[cold]
    fn make(&self, arguments: &A, leaves: &[Leaf<'_>], at: &Source) -> Result<Made<R>, E> {
        let _alone = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let unchecked = match self.find(leaves) {
            Found::Program(entry, _) => return Ok(Made::Entry(entry)),
            Found::Unchecked(entries) => entries,
        };
        let start = Instant::now();
        let reason = self.reason(leaves);
        let plan = self.plan(leaves);
        let driver = Driver::new(self.segment_compiler.clone(), &tensors_of(leaves), Arguments::of(leaves));
        let (captured, symbols) = self.capture(arguments, leaves, None, driver.deferred(plan.is_some()), at)?;
        if !captured.driver.as_ref().is_none_or(Driver::is_at_start) {
            self.report(leaves, at);
            self.compiles.fetch_add(1, Ordering::Relaxed);
            let rest = self.make_broken(*captured, plan, symbols, arguments, leaves, at)?;
            self.count(reason, start);
            return Ok(Made::Rest(rest));
        }
        let Captured { driver, last: recorded, returned } = *captured;
        let path = driver.map(Driver::into_ran).unwrap_or_default().path;
        let whole = Whole { path, recorded: Arc::new(recorded), returned: Arc::new(returned) };
        for (entry, sizes) in unchecked {
            if entry.accepts(&whole, sizes) {
                self.touch(&entry);
                self.took(start);
                return Ok(Made::Entry(entry));
            }
        }
        self.report(leaves, at);
        self.compiles.fetch_add(1, Ordering::Relaxed);
        let entry = self.make_whole(whole, arguments, leaves, plan, at)?;
        self.count(reason, start);
        Ok(Made::Entry(entry))
    }

    /// Counts one more program; the first has no reason.
    fn count(&self, reason: Option<Reason>, start: Instant) {
        let took = self.took(start);
        if let Some(reason) = reason {
            self.limits.count(reason, took);
        }
    }

    /// Says why there is one more program.
    fn report(&self, leaves: &[Leaf<'_>], at: &Source) {
        if !self.entries.read().unwrap_or_else(PoisonError::into_inner).is_empty() {
            self.recompiles.note(self.failed_guard(leaves), self.advice(leaves), at.clone());
        }
    }

    /// Says what a new program is for.
    fn announce(&self, entry: &Entry<R>, at: &Source) {
        let guards = || entry.guard_texts();
        event::emit(Category::Guards, || Event::Guarded { guards: guards(), at: at.clone() });
        entry.root.visit(&mut |node| {
            if let Node::Step { step: TraceStep::Segment(segment), .. } = node
                && let Some(folder) = segment.code.kind().and_then(Kind::dumped)
            {
                dump::add(folder, "guards.txt", "what arguments have to be", &(guards().join("\n") + "\n"));
            }
        });
    }

    pub(super) fn keep(&self, entry: Entry<R>, at: &Source) -> Arc<Entry<R>> {
        self.announce(&entry, at);
        let entry = Arc::new(entry);
        self.touch(&entry);
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        while entries.len() >= self.options().cache_limit.max(1) {
            let oldest = entries.iter().enumerate().min_by_key(|(_, entry)| entry.used.load(Ordering::Relaxed));
            let Some((oldest, _)) = oldest else { break };
            entries.remove(oldest);
        }
        entries.push(entry.clone());
        drop(entries);
        if !self.make_room(&entry) {
            // Larger than all programs together may be: the call that made it is its last.
            self.entries.write().unwrap_or_else(PoisonError::into_inner).retain(|known| !Arc::ptr_eq(known, &entry));
            self.limits.note_length();
        }
        entry
    }

    /// Compiles programs for arguments like these without running them: the elements of the tensors do not matter. What
    /// follows the first graph break is compiled when it is first reached.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let fast = kiln::compile(|x: &Tensor| x.exp());
    /// let shapes = [[1, 8], [16, 8]];
    /// let examples: Vec<Tensor> = shapes.iter().map(|&s| Tensor::zeros(s, DType::F32, Device::Cpu)).collect::<Result<_, _>>()?;
    /// fast.warm_up(&examples)?;
    /// assert_eq!(fast.stats().compiles, 2);
    /// fast.call(&Tensor::ones([16, 8], DType::F32, Device::Cpu)?)?;
    /// assert_eq!((fast.stats().compiles, fast.stats().hits), (2, 1));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn warm_up<'a>(&self, examples: impl IntoIterator<Item = &'a A>) -> Result<(), E>
    where
        A: 'a,
    {
        let at = Source::caller();
        for arguments in examples {
            if self.options().buckets.is_empty() {
                self.prepare(arguments, &[], &at)?;
            } else {
                self.prepare_padded(arguments, &at)?;
            }
        }
        Ok(())
    }

    /// Makes a program without running it, with the lengths that [`Options::buckets`] asks for.
    pub(super) fn prepare(&self, arguments: &A, lengths: &[Tensor], at: &Source) -> Result<(), E> {
        let mut leaves = leaves_of(arguments);
        leaves.extend(lengths.iter().map(Leaf::Tensor));
        leaves.extend(autocast::leaf());
        let _alone = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(self.find(&leaves), Found::Program(..)) {
            return Ok(());
        }
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        let driver = Driver::asking_only(self.segment_compiler.clone(), &tensors_of(&leaves), Arguments::of(&leaves));
        match capture(&f, arguments, None, Some(driver), at)? {
            Outcome::Whole(captured) => {
                let Captured { driver, last: recorded, returned } = *captured;
                let path = driver.map(Driver::into_ran).unwrap_or_default().path;
                let whole = Whole { path, recorded: Arc::new(recorded), returned: Arc::new(returned) };
                self.compiles.fetch_add(1, Ordering::Relaxed);
                self.make_whole(whole, arguments, &leaves, self.plan(&leaves), at)?;
            }
            Outcome::Broken(broken, _) if self.options().fullgraph => {
                return Err(Error::GraphBreak { what: broken.what, at: broken.at }.into());
            }
            Outcome::Broken(broken, _) => event::emit(Category::Breaks, || Event::GraphBreak {
                what: broken.what.to_owned(),
                fix: String::new(),
                at: broken.at.clone(),
            }),
        }
        Ok(())
    }
}

impl<F, A, R, E> Compiled<F, A, R, E> {
    pub(super) fn options(&self) -> &Options {
        self.segment_compiler.options()
    }

    /// Returns the function itself.
    pub fn inner(&self) -> &F {
        &self.f
    }

    /// Returns the function itself, mutably; call [`Compiled::reset`] after any change other than of a variable.
    pub fn inner_mut(&mut self) -> &mut F {
        &mut self.f
    }

    /// Returns the function itself and drops its programs.
    pub fn into_inner(self) -> F {
        self.f
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let held = self.held();
        Stats {
            hits: read(&self.hits),
            compiles: read(&self.compiles),
            fallbacks: read(&self.fallbacks),
            branches: read(&self.branches),
            limits: self.limits.reached(),
            limited: read(&self.limited),
            programs: self.entries.read().unwrap_or_else(PoisonError::into_inner).len(),
            breaks: held.breaks,
            graphs: self.segment_compiler.compiled(),
            nodes: held.nodes,
            bytes: held.bytes,
            capturing: Duration::from_nanos(read(&self.capturing)),
        }
    }

    /// Returns why there is more than one program, the oldest reason first.
    pub fn recompiles(&self) -> Vec<String> {
        self.recompiles.texts()
    }

    /// Returns the programs, in the order they were made.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let fast = kiln::compile(|x: &Tensor| x.exp()?.add(1.0)?.log());
    /// fast.call(&Tensor::zeros(100, DType::F32, Device::Cpu)?)?;
    /// let programs = fast.programs();
    /// assert_eq!((programs.len(), programs[0].kernels.len()), (1, 1));
    /// assert!(programs[0].guards[0].starts_with("f32[100]"));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn programs(&self) -> Vec<ProgramSummary> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().map(|entry| entry.summary()).collect()
    }
}

impl<F, A, R, E> std::ops::Deref for Compiled<F, A, R, E> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.f
    }
}

impl<R> Entry<R> {
    /// A program for arguments like these.
    pub(super) fn new(
        guards: Vec<Guard>,
        leaves: &[Leaf<'_>],
        root: Arc<Node<R>>,
        whole: Option<Whole<R>>,
        sizes: Sizes,
    ) -> Entry<R> {
        let (used, limit_record, gain, is_slower) = Default::default();
        Entry {
            guards,
            shared_tapes: guard::shared_tapes(leaves).to_vec(),
            used,
            root,
            limit_record,
            gain,
            whole,
            shapes: shapes_of(leaves),
            plan: None,
            sizes,
            is_slower,
        }
    }

    /// Whether what is captured at a call is for all sizes that the program is for.
    fn may_grow(&self) -> bool {
        self.sizes.is_fixed() || self.plan.is_some()
    }

    /// The sizes of its symbols for these parts, which pass its guards.
    fn sizes_of(&self, leaves: &[Leaf<'_>]) -> Scratch<usize> {
        let mut sizes = Scratch::filled(guard::UNKNOWN, self.sizes.count());
        // They pass.
        let _ = guard::check(&self.guards, leaves, &mut sizes);
        sizes
    }

    /// Whether the function goes the way now that it went when this was captured, as far as that is decided by settings and the
    /// like. A program that grows has branches for the other ways; one graph for many sizes has none.
    fn is_on_its_way(&self) -> bool {
        if self.may_grow() {
            return true;
        }
        let execution = Execution::new(Scratch::new());
        let holds = |step: &TraceStep| match step {
            TraceStep::BranchGuard(guard, known) => {
                execution.outcome(guard, &Source::default()).is_ok_and(|outcome| outcome == *known)
            }
            _ => true,
        };
        self.whole.as_ref().is_none_or(|whole| whole.path.iter().all(holds))
    }

    /// Returns the guards as text.
    pub(super) fn guard_texts(&self) -> Vec<String> {
        self.guards.iter().map(Guard::to_string).chain(self.sizes.check_texts()).collect()
    }

    fn summary(&self) -> ProgramSummary {
        let mut summary = ProgramSummary {
            guards: self.guard_texts(),
            kernels: Vec::new(),
            breaks: Vec::new(),
            segments: Vec::new(),
        };
        self.root.visit(&mut |node| match node {
            Node::Step { step: TraceStep::Segment(segment), .. } => {
                summary.kernels.extend(segment.kernels());
                summary.segments.push(SegmentSummary {
                    graph: segment.recorded.graph.clone(),
                    inputs: segment.recorded.from.iter().map(|from| from.to_string()).collect(),
                    code: match segment.code.kind() {
                        Some(Kind::Compiled(code)) => Some(code.clone()),
                        _ => None,
                    },
                    frozen: match segment.code.kind() {
                        Some(Kind::Frozen(code)) => Some(code.clone()),
                        _ => None,
                    },
                });
            }
            Node::Step { step: TraceStep::Outside { is_pure, at, .. }, .. } => {
                let what = if *is_pure { SIZE_OF_DATA } else { "calls a disabled part" };
                summary.breaks.push(format!("{what}, at {at}"));
            }
            Node::Branch { guard: BranchGuard::Elements { what, at, .. }, .. } => {
                summary.breaks.push(format!("{what}, at {at}"));
            }
            _ => {}
        });
        summary
    }
}

pub(super) fn exact_guards(leaves: &[Leaf<'_>]) -> Vec<Guard> {
    leaves.iter().map(Guard::exactly).collect()
}

pub(super) fn tensors_of<'a>(leaves: &[Leaf<'a>]) -> Scratch<&'a Tensor> {
    let tensor = |leaf: &Leaf<'a>| match *leaf {
        Leaf::Tensor(tensor) => Some(tensor),
        _ => None,
    };
    leaves.iter().filter_map(tensor).collect()
}

pub(super) fn shapes_of(leaves: &[Leaf<'_>]) -> Vec<Vec<usize>> {
    tensors_of(leaves).iter().map(|t| t.shape().to_vec()).collect()
}
