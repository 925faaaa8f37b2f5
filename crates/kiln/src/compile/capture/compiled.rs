//! `compile(f)`: a function with its programs, each behind its guards.

use super::bucketed::KnownCuts;
use super::callable::Callable;
use super::entry::Entry;
use super::guard::Guard;
use super::held_bytes::Return;
use super::limits::Limits;
use super::options::Options;
use super::recompilations::Recompilations;
use super::segment_compiler::SegmentCompiler;
use super::stance::{Stance, stance};
use crate::compile::freeze::FrozenGraph;
use crate::tensor::bundle::{Bundle, Leaf};
use crate::tensor::compiled_graph::CompiledGraph;
use crate::tensor::scratch::Scratch;
use crate::tensor::tracer::is_active;
use crate::{Error, Result, Tensor};
use kiln_ir::{Graph, Source};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

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
    pub(super) compiling: Mutex<()>,
    pub(super) clock: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) compiles: AtomicU64,
    pub(super) fallbacks: AtomicU64,
    pub(super) branches: AtomicU64,
    pub(super) limited: AtomicU64,
    /// Nanoseconds.
    pub(super) capturing: AtomicU64,
    pub(super) limits: Limits,
    /// Why there is more than one program, the oldest first.
    pub(super) recompiles: Recompilations,
    /// Which axes of results were padded.
    pub(super) cuts: Mutex<KnownCuts>,
    arguments: PhantomData<fn(&A)>,
    /// The last field, so that it is dropped last.
    pub(super) memory: Return,
}

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
            return self.fall_back(&|| (self.apply)(&self.f, arguments));
        }
        if !self.options().buckets.is_empty() {
            return self.call_padded(arguments, stance, &at);
        }
        self.call_with(arguments, &[], stance, &at)
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
