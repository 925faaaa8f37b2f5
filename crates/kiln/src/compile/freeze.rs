//! Graphs with frozen inputs: what depends on weights alone is computed once, products of few rows run beside each other,
//! and weights are packed into the layout that the backend reads fastest, where that pays ([`PackWeights`](crate::PackWeights)). Weights
//! remain arguments: a call with another version of one repeats this preparation, and nothing else. Programs that read the same
//! variables share their panels ([`kiln_runtime::packed`]).
//!
//! ```text
//!  Graph ──split_frozen──▶ prepare:  weights ──▶ values           once a version
//!                     │    packer:   weights, values ──▶ panels   once a version
//!                     └──▶ main:     arguments, values, panels ──▶ outputs
//! ```

use super::inspect::verify_at;
use crate::pipeline::{self, Built, Freeze, FreezeOptions, Unit, dump};
use crate::tensor::call_input::{CallInputs, new_pin};
use crate::tensor::compiled_graph::{failed, handing_over, layouts_or_contiguous, locate, tensors, view};
use crate::tensor::tracer;
use crate::{DType, Error, Result, Tensor};
use kiln_inspect::verify::VerifyReport;
use kiln_ir::{Graph, Source};
use kiln_kernels::InputLayout;
use kiln_passes::{MainInput, Split};
use kiln_runtime::event::{self, Category, Event};
use kiln_runtime::{Buffer, InputView, Inputs, Packer, Pinned, Program, RawInput, TuneReport, phase};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A graph compiled with some of its inputs frozen. It can be called from many threads.
///
/// ```
/// use kiln::{FreezeOptions, FrozenGraph};
/// use kiln::{DType, Device, Tensor, ir::Graph};
/// let graph = Graph::parse("graph(%0: f32[n], %1: f32[1]) {
///   %2: f32[1] = exp %1
///   %3: f32[n] = expand %2
///   %4: f32[n] = mul %0, %3
///   return %4
/// }").unwrap();
/// let frozen = FrozenGraph::new(&graph, &[], &[false, true], &FreezeOptions::default())?;
/// let x = Tensor::ones(3, DType::F32, Device::Cpu)?;
/// let w = Tensor::zeros(1, DType::F32, Device::Cpu)?;
/// let y = frozen.run(&[&x, &w], &[0])?.remove(0);
/// assert_eq!(y.to_vec::<f32>()?, [1.0; 3]);
/// frozen.run(&[&x, &w], &[0])?;
/// assert_eq!(frozen.memory().prepares, 1);
/// # Ok::<(), kiln::Error>(())
/// ```
pub struct FrozenGraph {
    /// The graph as it was given, and how it was compiled.
    graph: Arc<Graph>,
    layouts: Vec<InputLayout>,
    options: FreezeOptions,
    main: Program,
    prepare: Option<Program>,
    packer: Packer,
    /// The frozen inputs, in order: versions are theirs.
    frozen: Vec<usize>,
    prepare_inputs: Vec<usize>,
    /// Where the inputs of the main program came from before packing.
    unpacked: Vec<MainInput>,
    /// Where they come from now.
    arguments: Vec<Argument>,
    /// The inputs of the main program that are given and not frozen.
    given: Vec<u32>,
    /// The frozen inputs that values or panels are made of.
    sources: Vec<usize>,
    ready: RwLock<Option<Arc<Ready>>>,
    making: Mutex<()>,
    prepares: AtomicU64,
    memory: FrozenMemory,
    dumped: Option<PathBuf>,
}

/// Where an input of the main program comes from.
#[derive(Debug, Clone, Copy)]
enum Argument {
    Given(usize),
    Prepared(usize),
    Packed(usize),
}

impl Argument {
    fn view<'a>(self, inputs: &'a dyn CallInputs, ready: &'a Ready, packer: &'a Packer) -> InputView<'a> {
        match self {
            Argument::Given(input) => view(inputs.tensor(input)),
            Argument::Prepared(value) => view(ready.prepared(value)),
            Argument::Packed(number) => packer.view(number, &ready.packed[number]),
        }
    }
}

/// The inputs of the program that every call runs.
struct MainInputs<'a> {
    graph: &'a FrozenGraph,
    inputs: &'a dyn CallInputs,
    ready: &'a Ready,
}

// SAFETY: prepared values and panels are those of `ready`, for which its own number stands. Frozen inputs that the program
// reads unpacked are pinned where the contract of `CallInputs` says so, all others are fetched at each run.
unsafe impl Inputs for MainInputs<'_> {
    fn count(&self) -> usize {
        self.graph.arguments.len()
    }

    fn view(&self, input: usize) -> InputView<'_> {
        self.graph.arguments[input].view(self.inputs, self.ready, &self.graph.packer)
    }

    fn pinned(&self) -> Option<Pinned<'_>> {
        let (key, _) = self.inputs.pinned()?.key;
        Some(Pinned { key: (key, self.ready.pin), others: &self.graph.given })
    }
}

/// The two parts of a frozen graph with their inputs, before packing.
struct Inspected {
    split: Split,
    prepare_inputs: Vec<Tensor>,
    main_inputs: Vec<Tensor>,
    ready: Arc<Ready>,
}

/// What was made of one set of weights.
pub(crate) struct Ready {
    /// Stands for the values and panels.
    pin: u64,
    versions: Vec<u64>,
    /// Only those that the main program reads.
    prepared: Vec<Option<Tensor>>,
    packed: Vec<Buffer>,
    /// For each input of the main program that is one of these, what a call on addresses gives it.
    raw: Vec<Option<Owned>>,
}

/// An input of the main program that the frozen graph owns, as [`Program::call_raw`] takes it.
struct Owned {
    ptr: *mut u8,
    dtype: DType,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

// SAFETY: an address of memory that the buffers of the same `Ready` hold, which nothing writes.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    fn new(view: &InputView<'_>) -> Owned {
        let bytes = view.offset * view.dtype.size_in_bits() / 8;
        Owned {
            ptr: view.buffer.ptr().wrapping_add(bytes),
            dtype: view.dtype,
            shape: view.shape.iter().map(|&size| size as i64).collect(),
            strides: view.strides.iter().map(|&stride| stride as i64).collect(),
        }
    }

    fn input(&self) -> RawInput<'_> {
        RawInput { ptr: self.ptr, dtype: self.dtype, shape: &self.shape, strides: &self.strides, is_value: false }
    }
}

/// What freezing costs and what it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrozenMemory {
    /// Bytes of packed weights, some of which other programs may read, too: see [`kiln_runtime::packed::bytes`].
    pub packed_bytes: usize,
    /// Bytes of packed weights that were not made: they would not pay for more than a cache holds, or exceed the bound.
    pub unpacked_bytes: usize,
    /// Bytes of other values computed from weights and kept.
    pub prepared_bytes: usize,
    /// Weights that are no longer read in their own layout: their memory could be freed.
    pub unread: usize,
    /// How often weights were prepared and packed: once per set of versions.
    pub prepares: u64,
}

impl FrozenGraph {
    /// Compiles a graph for inputs with these layouts (an empty list means row-major), freezing those that `frozen` marks.
    /// Inputs that the graph updates cannot be frozen.
    #[track_caller]
    pub fn new(
        graph: &Graph,
        layouts: &[InputLayout],
        frozen: &[bool],
        options: &FreezeOptions,
    ) -> Result<FrozenGraph> {
        let at = Source::caller();
        graph.verify().map_err(|cause| Error::Graph { cause: Box::new(cause) })?;
        let layouts = layouts_or_contiguous(graph, layouts);
        FrozenGraph::new_at(Arc::new(graph.clone()), &layouts, &Freeze { inputs: frozen, variables: &[], options }, &at)
    }

    /// Compiles a graph that is known to be valid.
    pub(crate) fn new_at(
        graph: Arc<Graph>,
        layouts: &[InputLayout],
        freeze: &Freeze<'_>,
        at: &Source,
    ) -> Result<FrozenGraph> {
        let Freeze { inputs: frozen, options, .. } = *freeze;
        let unit = Unit { graph: &graph, layouts, options: &options.compile, freeze: Some(*freeze), at };
        let Built { program: main, passes, frozen: Some(built) } = pipeline::build(&unit)? else {
            unreachable!("a unit with frozen inputs is built in two parts");
        };
        let dumped = dump::if_asked(&unit, &main, passes);
        let pipeline::Frozen { split, prepare, packer } = built;
        let kept = packer.kept().iter().map(|&input| match split.main_inputs[input] {
            MainInput::Given(input) => Argument::Given(input),
            MainInput::Prepared(value) => Argument::Prepared(value),
        });
        let arguments: Vec<Argument> = kept.chain((0..packer.sources().len()).map(Argument::Packed)).collect();
        let frozen: Vec<usize> = (0..graph.inputs().len()).filter(|&i| frozen.get(i) == Some(&true)).collect();
        let bytes = |value: usize| {
            let shape = split.prepare.ty(split.prepare.outputs()[value].node);
            shape.elements().as_const().and_then(|n| shape.dtype.bytes_for(n as usize)).unwrap_or(0)
        };
        let is_given = |argument: &Argument| matches!(argument, Argument::Given(input) if !frozen.contains(input));
        let given = (0..arguments.len() as u32).filter(|&input| is_given(&arguments[input as usize])).collect();
        let made_of = |from: MainInput| match from {
            MainInput::Given(input) => vec![input],
            MainInput::Prepared(_) => Vec::new(),
        };
        let packed_from = packer.sources().flat_map(|source| made_of(split.main_inputs[source]));
        let mut sources: Vec<usize> = packed_from.chain(split.prepare_inputs.iter().copied()).collect();
        sources.sort_unstable();
        sources.dedup();
        let is_read =
            |&&input: &&usize| arguments.iter().any(|a| matches!(a, Argument::Given(given) if *given == input));
        let memory = FrozenMemory {
            packed_bytes: packer.bytes(),
            unpacked_bytes: packer.unpacked_bytes(),
            prepared_bytes: arguments
                .iter()
                .map(|argument| match argument {
                    Argument::Prepared(value) => bytes(*value),
                    _ => 0,
                })
                .sum(),
            unread: frozen.iter().filter(|input| !is_read(input)).count(),
            prepares: 0,
        };
        Ok(FrozenGraph {
            graph,
            layouts: layouts.to_vec(),
            options: options.clone(),
            main,
            prepare,
            packer,
            frozen,
            prepare_inputs: split.prepare_inputs,
            unpacked: split.main_inputs,
            arguments,
            given,
            sources,
            ready: RwLock::default(),
            making: Mutex::default(),
            prepares: AtomicU64::new(0),
            memory,
            dumped,
        })
    }

    /// Returns the program that every call runs. Its inputs are not those of the graph.
    pub fn program(&self) -> &Program {
        &self.main
    }

    /// Returns the program that runs when a weight has changed, if there is anything to compute.
    pub fn prepare_program(&self) -> Option<&Program> {
        self.prepare.as_ref()
    }

    /// Returns what freezing costs, and how often it was done.
    pub fn memory(&self) -> FrozenMemory {
        FrozenMemory { prepares: self.prepares.load(Ordering::Relaxed), ..self.memory }
    }

    /// Returns the numbers of the frozen inputs, in order. [`FrozenGraph::run`] takes a version of each.
    pub fn frozen(&self) -> &[usize] {
        &self.frozen
    }

    /// Returns the numbers of the frozen inputs that values were computed or panels packed of, in order: only their versions
    /// matter.
    pub fn sources(&self) -> &[usize] {
        &self.sources
    }

    /// Returns the graph as it was given.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the folder that `KILN_DEBUG` made, with the graphs, kernels and machine code of the main program.
    pub fn dumped(&self) -> Option<&Path> {
        self.dumped.as_deref()
    }

    /// Returns an estimate of the bytes it holds, see [`Program::bytes`]. Prepared and packed weights are not included: see
    /// [`FrozenGraph::memory`].
    pub fn bytes(&self) -> usize {
        self.main.bytes() + self.prepare.as_ref().map_or(0, Program::bytes)
    }

    /// Returns whether there are prepared or packed weights.
    pub fn is_ready(&self) -> bool {
        self.ready.read().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Frees the prepared and packed weights.
    pub fn clear(&self) {
        *self.ready.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Runs the graph on all of its inputs; those that it updates are copied, and their new values are among the results.
    /// `versions` has a number for each frozen input ([`FrozenGraph::frozen`]) that changes whenever the elements of the
    /// input do.
    #[track_caller]
    pub fn run(&self, inputs: &[&Tensor], versions: &[u64]) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        if self.main.updates().is_empty() {
            return self.run_at(inputs, versions, &at);
        }
        let mut copies = Vec::new();
        for &updated in self.main.updates() {
            if let Some(Argument::Given(input)) = self.arguments.get(updated).copied()
                && let Some(tensor) = inputs.get(input)
            {
                copies.push((input, tensor.duplicate(&at)?));
            }
        }
        let mut inputs = inputs.to_vec();
        copies.iter().for_each(|(input, copy)| inputs[*input] = copy);
        self.run_at(&inputs, versions, &at)
    }

    /// Runs the graph on its inputs; those that it updates are written in place.
    ///
    /// # Safety
    /// Nothing else accesses the memory of the updated inputs during the call, and no other input shares it.
    #[track_caller]
    pub unsafe fn run_updating(&self, inputs: &[&Tensor], versions: &[u64]) -> Result<Vec<Tensor>> {
        self.run_at(inputs, versions, &Source::caller())
    }

    /// Runs the graph. Updated inputs are the caller's to give away.
    fn run_at(&self, inputs: &[&Tensor], versions: &[u64], at: &Source) -> Result<Vec<Tensor>> {
        self.check(inputs, versions, at)?;
        let mut outputs = Vec::with_capacity(self.main.output_types().len());
        // SAFETY: the caller of `run_updating` vouches for updated inputs, and `run` gives copies of its own.
        unsafe { self.execute(&inputs, versions, outputs.capacity(), &mut |output| outputs.push(output), at) }?;
        Ok(outputs)
    }

    /// Runs the graph; `each` gets the first `wanted` outputs, in order. `versions` are as many as there are frozen inputs.
    ///
    /// # Safety
    /// Nobody else uses the memory of the inputs that the graph updates meanwhile, and none of it is given as another input.
    pub(crate) unsafe fn execute(
        &self,
        inputs: &dyn CallInputs,
        versions: &[u64],
        wanted: usize,
        each: &mut dyn FnMut(Tensor),
        at: &Source,
    ) -> Result<()> {
        let wrong = |cause| failed("run", cause, inputs, at);
        let ready = self.ready(inputs, versions).map_err(wrong)?;
        let input = |number: usize| match self.arguments[number] {
            Argument::Given(input) => inputs.as_output(input),
            Argument::Prepared(value) => ready.prepared(value).clone(),
            Argument::Packed(_) => unreachable!("no output of a graph is a packed input"),
        };
        let main = MainInputs { graph: self, inputs, ready: &ready };
        let mut each = handing_over(wanted, &input, each);
        // SAFETY: the caller's promise. Frozen inputs, prepared values and panels are never updated.
        unsafe { self.main.run_each(&main, self.options.recycle, &mut each) }.map_err(wrong)
    }

    /// Runs the graph on memory of the caller: [`Program::call_raw`] with the inputs of the whole graph, of which the program reads
    /// those that were neither prepared nor packed where they are. With `recorded` launches are recorded
    /// ([`Program::replay_raw`]).
    ///
    /// ```
    /// use kiln::{DType, FreezeOptions, FrozenGraph, ir::Graph, runtime::RawInput};
    /// let graph = Graph::parse("graph(%0: f32[2], %1: f32[2]) {
    ///   %2: f32[2] = exp %1
    ///   %3: f32[2] = mul %0, %2
    ///   return %3
    /// }").unwrap();
    /// let frozen = FrozenGraph::new(&graph, &[], &[false, true], &FreezeOptions::default())?;
    /// let (mut x, mut w, mut y) = ([1f32, 2.0], [0f32; 2], [0f32; 2]);
    /// let raw = |list: &mut [f32; 2]| {
    ///     RawInput { ptr: list.as_mut_ptr().cast(), dtype: DType::F32, shape: &[2], strides: &[1], is_value: false }
    /// };
    /// // SAFETY: all are arrays of two elements.
    /// unsafe { frozen.call_raw(&[], &[raw(&mut x), raw(&mut w)], &[0], &[y.as_mut_ptr().cast()], false) }?;
    /// assert_eq!((y, frozen.memory().prepares), (x, 1));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    ///
    /// # Safety
    /// As [`Program::call_raw`].
    #[track_caller]
    pub unsafe fn call_raw(
        &self,
        symbols: &[i64],
        inputs: &[RawInput<'_>],
        versions: &[u64],
        outputs: &[*mut u8],
        recorded: bool,
    ) -> Result<()> {
        let at = Source::caller();
        let wrong = |cause| locate("run", cause, &at);
        self.count(inputs.len(), versions, &at)?;
        let ready = match self.made(versions) {
            Some(ready) => ready,
            None => {
                // SAFETY: the caller's promise; the tensors are gone before the call ends.
                let list = inputs.iter().map(|input| unsafe { Tensor::over(input) }).collect::<Result<Vec<_>>>()?;
                let list: Vec<&Tensor> = list.iter().collect();
                phase::timed("pack", || self.make_ready(&list, versions)).map_err(wrong)?
            }
        };
        let mut given: Vec<RawInput<'_>> = Vec::with_capacity(self.arguments.len());
        for (argument, own) in self.arguments.iter().zip(&ready.raw) {
            given.push(match (own, argument) {
                (Some(own), _) => own.input(),
                (None, Argument::Given(input)) => inputs[*input],
                (None, _) => unreachable!("what is not given is owned"),
            });
        }
        // SAFETY: the caller's promise for what is given; the rest is held by `ready`.
        unsafe {
            match recorded {
                true => self.main.replay_raw(symbols, &given, outputs),
                false => self.main.call_raw(symbols, &given, outputs),
            }
        }
        .map_err(wrong)
    }

    /// Measures the variants of each kernel of the main program on these inputs, for about `budget`, and uses the fastest
    /// from then on.
    #[track_caller]
    pub fn tune(&self, inputs: &[&Tensor], versions: &[u64], budget: Duration) -> Result<TuneReport> {
        let at = Source::caller();
        let wrong = |cause| locate("tune", cause, &at);
        self.check(inputs, versions, &at)?;
        let ready = self.ready(&inputs, versions).map_err(wrong)?;
        self.main.tune(&self.views(&inputs, &ready), budget).map_err(wrong)
    }

    fn check(&self, inputs: &[&Tensor], versions: &[u64], at: &Source) -> Result<()> {
        if inputs.iter().any(|t| t.is_traced()) {
            return Err(tracer::break_at("runs a frozen graph", at));
        }
        self.count(inputs.len(), versions, at)
    }

    /// Refuses another number of inputs or versions than there are.
    fn count(&self, inputs: usize, versions: &[u64], at: &Source) -> Result<()> {
        let wrong = |cause| locate("run", cause, at);
        let expected = self.graph.inputs().len();
        if inputs != expected {
            return Err(wrong(kiln_runtime::Error::InputCount { expected, got: inputs }));
        }
        if versions.len() != self.frozen.len() {
            return Err(wrong(kiln_runtime::Error::VersionCount { expected: self.frozen.len(), got: versions.len() }));
        }
        Ok(())
    }

    /// What was made of these versions of the weights, made now if need be.
    fn ready(&self, inputs: &dyn CallInputs, versions: &[u64]) -> Result<Arc<Ready>, kiln_runtime::Error> {
        match self.made(versions) {
            Some(ready) => Ok(ready),
            None => phase::timed("pack", || self.make_ready(&inputs.list(), versions)),
        }
    }

    /// Prepares and packs these versions of the weights, unless another thread just did.
    #[cold]
    fn make_ready(&self, inputs: &[&Tensor], versions: &[u64]) -> Result<Arc<Ready>, kiln_runtime::Error> {
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ready) = self.made(versions) {
            return Ok(ready);
        }
        let start = Instant::now();
        let prepared = self.prepare(inputs)?.into_iter().map(Some).collect();
        let (packed, raw) = Default::default();
        let mut ready = Ready { pin: new_pin(), versions: versions.to_vec(), prepared, packed, raw };
        let version = |input| self.frozen.binary_search(&input).map_or(0, |number| versions[number]);
        ready.packed = self.packer.pack(&|input| match self.unpacked[input] {
            MainInput::Given(input) => (view(inputs[input]), version(input)),
            MainInput::Prepared(value) => (view(ready.prepared(value)), 0),
        })?;
        for value in 0..ready.prepared.len() {
            if !self.arguments.iter().any(|a| matches!(a, Argument::Prepared(read) if *read == value)) {
                ready.prepared[value] = None;
            }
        }
        let raw = self.arguments.iter().map(|argument| match *argument {
            Argument::Given(_) => None,
            Argument::Prepared(value) => Some(Owned::new(&view(ready.prepared(value)))),
            Argument::Packed(number) => Some(Owned::new(&self.packer.view(number, &ready.packed[number]))),
        });
        ready.raw = raw.collect();
        self.prepares.fetch_add(1, Ordering::Relaxed);
        if event::is_enabled(Category::Perf) {
            // Somebody listens to how long it takes, not to how long it takes to queue it.
            self.program().backend().synchronize()?;
        }
        event::emit(Category::Perf, || Event::Frozen {
            inputs: self.frozen.len(),
            prepared_bytes: self.memory.prepared_bytes,
            packed_bytes: self.memory.packed_bytes,
            unpacked_bytes: self.memory.unpacked_bytes,
            took: start.elapsed(),
        });
        let ready = Arc::new(ready);
        *self.ready.write().unwrap_or_else(PoisonError::into_inner) = Some(ready.clone());
        Ok(ready)
    }

    /// Computes what depends on the weights alone.
    fn prepare(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, kiln_runtime::Error> {
        let Some(program) = &self.prepare else { return Ok(Vec::new()) };
        let views: Vec<InputView<'_>> = self.prepare_inputs.iter().map(|&input| view(inputs[input])).collect();
        let shapes = program.output_shapes(&views)?;
        let produced = program.run(&views)?;
        Ok(tensors(program, produced, &shapes, &|input| inputs[self.prepare_inputs[input]].clone()))
    }

    /// The inputs of the program that every call runs.
    pub(crate) fn views<'a>(&'a self, inputs: &'a dyn CallInputs, ready: &'a Ready) -> Vec<InputView<'a>> {
        self.arguments.iter().map(|argument| argument.view(inputs, ready, &self.packer)).collect()
    }

    /// Compares every kernel that runs with the interpreter on these inputs, which are not changed: the kernels that
    /// prepare the weights, and those of the main program, which read prepared and packed weights. See
    /// [`crate::inspect::verify_program`].
    #[track_caller]
    pub fn verify(&self, inputs: &[&Tensor], versions: &[u64]) -> Result<VerifyReport> {
        let at = Source::caller();
        let frozen = self.inspect(inputs, versions, &at)?;
        if let Some(program) = self.prepare_program() {
            let views: Vec<InputView<'_>> = frozen.prepare_inputs.iter().map(view).collect();
            let report = verify_at(&frozen.split.prepare, program, &frozen.prepare_inputs, &views, &at)?;
            if !report.is_right() {
                return Ok(report);
            }
        }
        verify_at(&frozen.split.main, self.program(), &frozen.main_inputs, &self.views(&inputs, &frozen.ready), &at)
    }

    /// The graphs of both programs and their inputs, for whoever checks the programs.
    fn inspect(&self, inputs: &[&Tensor], versions: &[u64], at: &Source) -> Result<Inspected> {
        self.check(inputs, versions, at)?;
        let wrong = |cause| locate("verify", cause, at);
        let frozen: Vec<bool> = (0..self.graph.inputs().len()).map(|input| self.frozen.contains(&input)).collect();
        let freeze = Freeze { inputs: &frozen, variables: &[], options: &self.options };
        let unit =
            Unit { graph: &self.graph, layouts: &self.layouts, options: &self.options.compile, freeze: None, at };
        let split = pipeline::split(&unit, &freeze, &mut |_, _| {})?;
        let prepared = self.prepare(inputs).map_err(wrong)?;
        let main_inputs = self.unpacked.iter().map(|from| match *from {
            MainInput::Given(input) => inputs[input].detached(),
            MainInput::Prepared(value) => prepared[value].clone(),
        });
        let main_inputs = main_inputs.collect();
        let prepare_inputs = self.prepare_inputs.iter().map(|&input| inputs[input].detached()).collect();
        Ok(Inspected { split, prepare_inputs, main_inputs, ready: self.ready(&inputs, versions).map_err(wrong)? })
    }

    fn made(&self, versions: &[u64]) -> Option<Arc<Ready>> {
        let ready = self.ready.read().unwrap_or_else(PoisonError::into_inner);
        ready.as_ref().filter(|ready| ready.versions == versions).cloned()
    }
}

impl Ready {
    /// A value that the main program reads.
    fn prepared(&self, value: usize) -> &Tensor {
        self.prepared[value].as_ref().expect("values that are read are kept")
    }
}
