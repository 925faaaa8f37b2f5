//! Makes code for segments: equal graphs share it.

use super::code::{self, Code, Kind, Ready};
use super::compiled::tensors_of;
use super::driver::OwnGradients;
use super::numbers::ChangingNumbers;
use super::options::Options;
use super::segment::{InputSource, Segment, SegmentGraph, is_same_graph};
use super::tree::{Numbers, numbers_of};
use crate::compile::freeze::FrozenGraph;
use crate::pipeline::{CompileOptions, Freeze, FreezeOptions};
use crate::tensor::Weak;
use crate::tensor::bundle::Leaf;
use crate::tensor::compiled_graph::{CompiledGraph, input_layout};
use crate::{Device, Result};
use kiln_ir::{Graph, Ranges, Source, TensorType};
use kiln_kernels::{InputLayout, ScheduleOptions};
use kiln_runtime::HostMemory;
use kiln_runtime::event::{self, Category, Event};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Makes code for the segments of one compiled function.
pub(super) struct SegmentCompiler {
    options: Options,
    made: Mutex<Kept>,
    numbers: ChangingNumbers,
    /// Graphs that were compiled.
    compiled: AtomicU64,
    /// See [`SegmentCompiler::functions`].
    functions_outside: Mutex<Vec<Vec<usize>>>,
    /// Lines that call functions with gradients of their own that read elements, in the order in which that was seen.
    reading: Mutex<Vec<Source>>,
}

/// Code that is there already, by a hash of what it is for.
#[derive(Default)]
struct Kept {
    made: HashMap<u64, Vec<Made>>,
    count: usize,
    bytes: usize,
    clock: u64,
}

/// Code that is there already.
struct Made {
    graph: Arc<Graph>,
    layouts: Vec<InputLayout>,
    ranges: Ranges,
    /// The weights that are frozen into it.
    weights: Vec<Weight>,
    code: Code,
    used: u64,
    bytes: usize,
}

/// A weight that is frozen into code: its elements are part of what was prepared, so that another's code is of no use.
enum Weight {
    Var(u64),
    Held(Weak),
}

impl Weight {
    fn of(from: &InputSource) -> Option<Weight> {
        match from {
            InputSource::Var(var) => Some(Weight::Var(var.id())),
            InputSource::Held(tensor) => Some(Weight::Held(tensor.downgrade())),
            _ => None,
        }
    }

    fn is(&self, from: &InputSource) -> bool {
        match (self, from) {
            (Weight::Var(id), InputSource::Var(var)) => *id == var.id(),
            (Weight::Held(own), InputSource::Held(tensor)) => own.upgrade().is_some_and(|own| own.same(tensor)),
            _ => false,
        }
    }
}

impl Kept {
    /// Code that `is_it`, which is then the one used last.
    fn find(&mut self, key: u64, is_it: impl Fn(&Made) -> bool) -> Option<Code> {
        self.clock += 1;
        let made = self.made.get_mut(&key)?.iter_mut().find(|made| is_it(made))?;
        made.used = self.clock;
        Some(made.code.clone())
    }

    /// Keeps code; beyond so many bytes, or too many graphs, what was not used for longest goes.
    fn keep(&mut self, key: u64, made: Made, most_bytes: usize) {
        self.count += 1;
        self.bytes += made.bytes;
        self.made.entry(key).or_default().push(made);
        if self.count <= GRAPHS_KEPT && self.bytes <= most_bytes {
            return;
        }
        let mut ages: Vec<(u64, usize)> = self.made.values().flatten().map(|made| (made.used, made.bytes)).collect();
        ages.sort_unstable();
        let (mut count, mut bytes, mut oldest) = (self.count, self.bytes, 0);
        for (used, size) in ages {
            if count <= GRAPHS_KEPT / 2 && bytes <= most_bytes / 2 {
                break;
            }
            (count, bytes, oldest) = (count - 1, bytes - size, used);
        }
        self.made.retain(|_, list| {
            list.retain(|made| made.used > oldest);
            !list.is_empty()
        });
        (self.count, self.bytes) = (count, bytes);
    }
}

/// The layouts of the arguments, and their device.
#[derive(Clone)]
pub(super) struct Arguments {
    pub(super) layouts: Vec<InputLayout>,
    device: Option<Device>,
    /// The numbers beside the tensors.
    pub(super) numbers: Numbers,
}

impl Arguments {
    /// Describes the arguments of this call.
    pub(super) fn of(leaves: &[Leaf<'_>]) -> Arguments {
        let tensors = tensors_of(leaves);
        let layouts = tensors.iter().map(|tensor| input_layout(tensor.layout())).collect();
        let numbers = numbers_of(leaves);
        // Numbers are on the host whatever they are used for.
        let devices = || tensors.iter().map(|tensor| tensor.device());
        let device = devices().find(|device| *device != Device::Cpu).or_else(|| devices().next());
        Arguments { layouts, device, numbers }
    }
}

/// Graphs whose code is remembered; beyond that the half unused for longest goes. Programs in use keep theirs.
const GRAPHS_KEPT: usize = 512;
/// The part of [`Options::cache_bytes`] that is for code of programs that are gone, one in so many.
pub(super) const SPARE: usize = 4;
/// Nodes from which on what compiling has freed goes back to the system: megabytes by then, and far less work than the compile.
const LARGE_GRAPH: usize = 1000;

impl SegmentCompiler {
    pub(super) fn new(options: Options) -> SegmentCompiler {
        SegmentCompiler {
            options,
            made: Mutex::default(),
            numbers: ChangingNumbers::default(),
            compiled: AtomicU64::new(0),
            functions_outside: Mutex::default(),
            reading: Mutex::default(),
        }
    }

    /// Where functions with gradients of their own are recorded for calls with [these arguments on tapes](super::guard::taped): outside
    /// once it was seen of such a call that gradients go through them outside of the compiled function.
    pub(super) fn functions(&self, taped: &[usize]) -> OwnGradients {
        let reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner).len();
        let outside = self.functions_outside.lock().unwrap_or_else(PoisonError::into_inner);
        OwnGradients { are_outside: outside.iter().any(|known| known == taped), reading, until: None }
    }

    /// Whether a function that is called at this line was seen to read elements, by the first `known` of these lines.
    pub(super) fn reads_elements(&self, at: &Source, known: usize) -> bool {
        let reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        reading.iter().take(known).any(|line| line == at)
    }

    /// Notes that such a function reads elements: it is no part of graphs from now on.
    pub(super) fn note_reading(&self, at: &Source) {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if !reading.contains(at) {
            reading.push(at.clone());
        }
    }

    /// Has them outside from now on where these arguments are on tapes.
    pub(super) fn put_functions_outside(&self, taped: &[usize]) {
        let mut outside = self.functions_outside.lock().unwrap_or_else(PoisonError::into_inner);
        if !outside.iter().any(|known| known == taped) {
            outside.push(taped.to_vec());
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    /// How many graphs were compiled.
    pub(super) fn compiled(&self) -> u64 {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Forgets all code.
    pub(super) fn clear(&self) {
        self.numbers.clear();
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Kept::default();
    }

    /// Builds a segment of fixed sizes with its code, for arguments of these layouts.
    pub(super) fn build(&self, recorded: Arc<SegmentGraph>, arguments: &Arguments, at: &Source) -> Result<Segment> {
        self.build_for(recorded, arguments, &Ranges::default(), at)
    }

    /// The numbers that change.
    pub(super) fn numbers(&self) -> &ChangingNumbers {
        &self.numbers
    }

    /// A segment with its code, for sizes in these ranges.
    pub(super) fn build_for(
        &self,
        recorded: Arc<SegmentGraph>,
        arguments: &Arguments,
        ranges: &Ranges,
        at: &Source,
    ) -> Result<Segment> {
        if !recorded.computes() {
            return Ok(Segment::new(recorded, Code::Nothing));
        }
        let raw = recorded;
        let lifted = self.numbers.lifted(&raw, device(&raw, arguments), at);
        let recorded = lifted.map_or_else(|| raw.clone(), Arc::new);
        let graph = &recorded.graph;
        let types = graph.inputs().iter().map(|&id| graph.ty(id));
        let layouts: Vec<InputLayout> =
            recorded.from.iter().zip(types).map(|(from, ty)| layout(from, ty, arguments)).collect();
        let key = key(graph, &layouts);
        let updates: Vec<usize> = recorded.updates.iter().map(|(_, input)| *input).collect();
        let frozen = if self.options.freeze { code::frozen(&recorded.from, &updates) } else { Vec::new() };
        let weights = || recorded.from.iter().zip(&frozen).filter(|(_, frozen)| **frozen).map(|(from, _)| from);
        let known = |made: &Made| {
            made.layouts == layouts
                && made.ranges == *ranges
                && is_same_graph(&made.graph, graph)
                && made.weights.len() == weights().count()
                && made.weights.iter().zip(weights()).all(|(own, from)| own.is(from))
        };
        if let Some(code) = self.made.lock().unwrap_or_else(PoisonError::into_inner).find(key, known) {
            return Ok(Segment::of(raw, recorded, code));
        }
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let schedule = ScheduleOptions {
            numerics: self.options.numerics,
            precision: self.options.precision,
            ranges: ranges.clone(),
            ..ScheduleOptions::default()
        };
        // What was read stays in this process.
        let (device, disk_cache) = (device(&recorded, arguments), !recorded.is_private);
        let options = CompileOptions {
            device,
            schedule,
            disk_cache,
            memory_budget: self.options.memory_budget,
            ..CompileOptions::default()
        };
        let weights = weights().filter_map(Weight::of).collect();
        let variables = recorded.from.iter().map(variable).collect();
        let (graph_of, layouts_of) = (graph.clone(), layouts.clone());
        let job = Job { graph: graph_of, layouts: layouts_of, frozen, variables, compile: options, at: at.clone() };
        let code = if self.options.background {
            in_background(job, self.options.clone())
        } else {
            Code::Ready(Arc::new(job.make(&self.options)?))
        };
        let bytes = graph.bytes() + code.ready().map_or(0, Ready::bytes);
        let (graph, ranges, most) = (graph.clone(), ranges.clone(), self.options.cache_bytes / SPARE);
        let mut kept = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let made = Made { graph, layouts, ranges, weights, code: code.clone(), used: kept.clock, bytes };
        kept.keep(key, made, most);
        drop(kept);
        Ok(Segment::of(raw, recorded, code))
    }
}

/// Code to be made.
struct Job {
    graph: Arc<Graph>,
    layouts: Vec<InputLayout>,
    frozen: Vec<bool>,
    /// The numbers of the inputs that are variables.
    variables: Vec<Option<u64>>,
    compile: CompileOptions,
    at: Source,
}

impl Job {
    fn make(&self, options: &Options) -> Result<Ready> {
        let kind = if self.frozen.contains(&true) {
            let freeze = FreezeOptions {
                compile: self.compile.clone(),
                recycle: options.mode.replays(),
                pack: options.pack,
                ..FreezeOptions::default()
            };
            let freeze = Freeze { inputs: &self.frozen, variables: &self.variables, options: &freeze };
            let frozen = FrozenGraph::new_at(self.graph.clone(), &self.layouts, &freeze, &self.at)?;
            Kind::Frozen(Arc::new(frozen))
        } else {
            let compiled = CompiledGraph::new_at(self.graph.clone(), &self.layouts, &self.compile, &self.at)?;
            Kind::Compiled(Arc::new(compiled))
        };
        if self.graph.nodes().len() >= LARGE_GRAPH {
            HostMemory::return_freed();
        }
        Ok(Ready::new(kind, options))
    }
}

/// Compiles on another thread.
fn in_background(job: Job, options: Options) -> Code {
    let slot = Arc::new(OnceLock::new());
    let own = slot.clone();
    let spawned = std::thread::Builder::new().name("kiln-compile".into()).spawn(move || {
        let made = job.make(&options);
        let text = match &made {
            Ok(made) => format!("compiled in the background: {} launches", made.program().steps().len()),
            Err(error) => format!("compiling in the background failed, eager execution goes on: {error}"),
        };
        // Whoever asks from now on gets it.
        let _ = own.set(made.ok().map(Arc::new));
        event::emit(Category::Kernels, || Event::Remark { text, at: job.at });
    });
    if spawned.is_err() {
        let _ = slot.set(None);
    }
    Code::Pending(slot)
}

/// Returns the number of an input that is a variable.
fn variable(from: &InputSource) -> Option<u64> {
    match from {
        InputSource::Var(var) => Some(var.id()),
        _ => None,
    }
}

/// Returns the layout of an input.
fn layout(from: &InputSource, ty: &TensorType, arguments: &Arguments) -> InputLayout {
    match from {
        InputSource::Argument(number) => arguments.layouts[*number].clone(),
        InputSource::Held(tensor) | InputSource::Data(tensor) => input_layout(tensor.layout()),
        InputSource::Var(_) | InputSource::Gradient(_) | InputSource::Key(..) | InputSource::Slot(_) => {
            InputLayout::contiguous(ty)
        }
    }
}

/// Where a segment runs.
fn device(recorded: &SegmentGraph, arguments: &Arguments) -> Device {
    let own = |from: &InputSource| match from {
        InputSource::Held(tensor) | InputSource::Data(tensor) => Some(tensor.device()),
        InputSource::Var(var) | InputSource::Gradient(var) => Some(var.device()),
        InputSource::Key(_, device) => Some(*device),
        InputSource::Argument(_) | InputSource::Slot(_) => None,
    };
    arguments.device.or_else(|| recorded.from.iter().find_map(own)).unwrap_or_default()
}

/// A hash of what has to be equal for code to be shared.
fn key(graph: &Graph, layouts: &[InputLayout]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for node in graph.nodes() {
        node.op.hash(&mut hasher);
        node.operands.hash(&mut hasher);
    }
    for output in graph.outputs() {
        (output.node, output.updates).hash(&mut hasher);
    }
    for &input in graph.inputs() {
        graph.ty(input).hash(&mut hasher);
    }
    layouts.hash(&mut hasher);
    hasher.finish()
}
