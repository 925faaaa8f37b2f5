//! A compiled graph: kernels in order, and all that is needed to launch them.

use crate::event::{self, Category, Event};
use crate::sizing::{InputSpec, Sizing, Sizings};
use crate::{
    Backend, Buffer, Device, Error, Executable, Keep, LaunchError, RawBuffer, Variant, kernel_cache, phase, sites,
};
use kiln_ir::{DType, Dim, Graph, NodeId, Op, Source, TensorType};
use kiln_kernels::kernel::Kernel;
use kiln_kernels::schedule::{BufferDecl, Role, Schedule, Step};
use kiln_kernels::{InputLayout, ScheduleOptions};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod call;
mod frame;
pub mod idle;
mod inspect;
mod recorded;
mod saved;

pub use call::{PinnedRaw, RawInput};
use frame::{Frame, Outputs};
use idle::Frames;
pub use inspect::Inspection;
pub(crate) use inspect::in_memory;
pub use saved::RestoreError;

/// A graph compiled for one backend and for inputs of known dtypes, shapes and strides; sizes may be symbolic. Many threads may run it
/// at once.
pub struct Program {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) schedule: Schedule,
    pub(crate) steps: Vec<CompiledStep>,
    /// The constants' memory, by buffer.
    pub(crate) constants: Vec<Option<Buffer>>,
    pub(crate) inputs: Vec<InputSpec>,
    pub(crate) output_types: Vec<TensorType>,
    pub(crate) updates: Vec<usize>,
    pub(crate) sizings: Sizings,
    frames: Arc<Frames>,
    /// Those of calls that somebody captured, for as long as there is the program.
    captured: Mutex<Vec<Frame>>,
    times: BuildTimes,
    /// The retention of its kernels' code.
    pub(crate) keep: Keep,
}

/// The time it took to make a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BuildTimes {
    /// Loading a stored program, its code included; zero for one that was built.
    pub read: Duration,
    /// Scheduling the graph.
    pub schedule: Duration,
    /// Finding or compiling the kernels' code.
    pub code: Duration,
    /// Kernels that were compiled.
    pub compiled: usize,
}

/// One launch of a program.
pub struct CompiledStep {
    pub(crate) kernel: Arc<Kernel>,
    /// The variant and code of the kernel.
    pub(crate) variant: Variant,
    pub(crate) code: Arc<dyn Executable>,
    pub(crate) args: Vec<usize>,
    origin: Arc<Origin>,
    /// The number that a fault on an asynchronous device names it by.
    site: u32,
    nodes: Vec<NodeId>,
}

/// What an error says of a launch.
struct Origin {
    label: String,
    source: Source,
    /// The nodes whose indices the kernel checks.
    indexed: Vec<Indexed>,
}

impl CompiledStep {
    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The variant of the kernel: which arguments are packed, and the tuned choices.
    pub fn variant(&self) -> &Variant {
        &self.variant
    }

    /// Its code.
    pub fn code(&self) -> &Arc<dyn Executable> {
        &self.code
    }

    /// A short name of its ops.
    pub fn label(&self) -> &str {
        &self.origin.label
    }

    /// A line of the user's that it computes.
    pub fn source(&self) -> &Source {
        &self.origin.source
    }

    /// The graph's nodes in it.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }
}

/// An input of one run.
#[derive(Debug, Clone, Copy)]
pub struct InputView<'a> {
    /// The memory.
    pub buffer: &'a Buffer,
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: &'a [usize],
    /// Elements from one index of each axis to the next.
    pub strides: &'a [isize],
    /// The first element's index in the buffer.
    pub offset: usize,
}

/// The inputs of one run, requested by number.
///
/// # Safety
/// Two runs for which [`Inputs::pinned`] gives the same key have the same views of all inputs that are not among
/// [`Pinned::others`]; this is relied on for the addresses that kernels read.
pub unsafe trait Inputs {
    /// The number of inputs.
    fn count(&self) -> usize;

    /// An input.
    fn view(&self, input: usize) -> InputView<'_>;

    /// What is known about inputs that stay the same from run to run, such as weights: a run need not look at them again.
    fn pinned(&self) -> Option<Pinned<'_>> {
        None
    }
}

/// Inputs that are the same at every run with this key.
#[derive(Debug, Clone, Copy)]
pub struct Pinned<'a> {
    /// Identifies the views of the pinned inputs; never used for others.
    pub key: PinKey,
    /// The inputs that are not pinned.
    pub others: &'a [u32],
}

/// A number that identifies pinned inputs; two of them where they have two origins.
pub type PinKey = (u64, u64);

// SAFETY: nothing is pinned.
unsafe impl Inputs for &[InputView<'_>] {
    fn count(&self) -> usize {
        self.len()
    }

    fn view(&self, input: usize) -> InputView<'_> {
        self[input]
    }
}

/// An output of one run.
#[derive(Debug, Clone)]
pub enum Produced {
    /// New memory with the elements in row-major order.
    Buffer(Buffer),
    /// The output is this input, as it was given, now with its new value if the graph updates it.
    Input(usize),
}

/// The sizes of a run's outputs, by output.
#[derive(Clone)]
pub struct OutputShapes(Arc<Sizing>);

impl std::ops::Deref for OutputShapes {
    type Target = [Vec<usize>];

    fn deref(&self) -> &[Vec<usize>] {
        &self.0.output_shapes
    }
}

impl Program {
    /// Schedules a graph and compiles its kernels. The graph has been through the passes.
    pub fn build(
        graph: &Graph,
        layouts: &[InputLayout],
        backend: Arc<dyn Backend>,
        options: &ScheduleOptions,
    ) -> Result<Program, Error> {
        Program::build_kept(graph, layouts, backend, options, Keep::Disk)
    }

    /// [`Program::build`], with the given retention of the kernels' code.
    pub fn build_kept(
        graph: &Graph,
        layouts: &[InputLayout],
        backend: Arc<dyn Backend>,
        options: &ScheduleOptions,
        keep: Keep,
    ) -> Result<Program, Error> {
        let start = Instant::now();
        let options = &ScheduleOptions { target: backend.schedule_target(), ..options.clone() };
        let schedule = phase::timed("schedule", || kiln_kernels::schedule(graph, layouts, options))
            .map_err(|cause| Error::Schedule { cause: Box::new(cause) })?;
        let scheduled = start.elapsed();
        report_notes(graph, &schedule);
        let kernels = schedule.steps.iter().map(|step| (&step.kernel, step.label.as_str()));
        let mut compiled = phase::timed("code", || kernel_cache::prepare(&*backend, kernels, keep));
        let mut steps = Vec::with_capacity(schedule.steps.len());
        for step in &schedule.steps {
            let (code, fresh) =
                phase::timed("code", || kernel_cache::get_kept(&*backend, &step.kernel, &step.label, keep))?;
            compiled += fresh as usize;
            steps.push(CompiledStep::new(graph, step, code, &*backend));
        }
        let launches = steps.len();
        let mut program = Program::assemble(graph, layouts, backend, schedule, steps, keep)?;
        event::emit(Category::Kernels, || Event::ProgramBuilt {
            nodes: graph.nodes().len(),
            launches,
            compiled,
            took: start.elapsed(),
        });
        program.times = BuildTimes {
            schedule: scheduled,
            code: start.elapsed().saturating_sub(scheduled),
            compiled,
            ..BuildTimes::default()
        };
        Ok(program)
    }

    /// A program of launches that are compiled; its times are not known yet.
    fn assemble(
        graph: &Graph,
        layouts: &[InputLayout],
        backend: Arc<dyn Backend>,
        schedule: Schedule,
        steps: Vec<CompiledStep>,
        keep: Keep,
    ) -> Result<Program, Error> {
        let input = |(&id, layout): (&NodeId, &InputLayout)| InputSpec::new(graph.ty(id), layout);
        let inputs: Vec<InputSpec> = graph.inputs().iter().zip(layouts).map(input).collect();
        let output_types: Vec<TensorType> = graph.outputs().iter().map(|o| graph.ty(o.node).clone()).collect();
        Ok(Program {
            constants: constants(&schedule, &*backend)?,
            updates: graph.outputs().iter().filter_map(|o| o.updates).collect(),
            sizings: phase::timed("plan", || Sizings::new(&inputs, &output_types, &schedule))?,
            frames: Arc::default(),
            captured: Mutex::default(),
            times: BuildTimes::default(),
            backend,
            schedule,
            steps,
            inputs,
            output_types,
            keep,
        })
    }

    /// The device it runs on.
    pub fn device(&self) -> Device {
        self.backend.device()
    }

    /// The backend it was compiled by.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Its launches, in order.
    pub fn steps(&self) -> &[CompiledStep] {
        &self.steps
    }

    /// The schedule, with the reasons for what was not fused.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Reports what was fused and what was not as events, if there is a listener; `graph` is the one after the passes.
    pub fn report_fusion(&self, graph: &Graph) {
        report_notes(graph, &self.schedule);
    }

    /// Bytes that it holds for as long as it is kept: constants and what describes its launches; an estimate. The memory of its frames
    /// ([`crate::idle`]) and its code, which programs share, are no part of it.
    pub fn bytes(&self) -> usize {
        let constant = |decl: &BufferDecl| match &decl.role {
            // Once as encoded, once where kernels read it.
            Role::Constant(literal) => 2 * literal.bytes.len(),
            _ => 0,
        };
        let arguments: usize = self.steps.iter().map(|step| step.args.len() + step.nodes.len()).sum();
        self.schedule.buffers.iter().map(constant).sum::<usize>()
            + self.schedule.buffers.len() * size_of::<BufferDecl>()
            + self.steps.len() * (size_of::<CompiledStep>() + size_of::<Step>())
            + arguments * 2 * size_of::<usize>()
    }

    /// The time it took to make it.
    pub fn times(&self) -> BuildTimes {
        self.times
    }

    /// The types of its inputs.
    pub fn input_types(&self) -> impl ExactSizeIterator<Item = &TensorType> {
        self.inputs.iter().map(InputSpec::ty)
    }

    /// The types of its outputs.
    pub fn output_types(&self) -> &[TensorType] {
        &self.output_types
    }

    /// The inputs that a run overwrites.
    pub fn updates(&self) -> &[usize] {
        &self.updates
    }

    /// The sizes of every output for inputs of these shapes.
    pub fn output_shapes(&self, inputs: &[InputView<'_>]) -> Result<Vec<Vec<usize>>, Error> {
        Ok(self.sizings.get(&self.inputs, &self.output_types, &self.schedule, inputs)?.output_shapes.clone())
    }

    /// Runs the program. A program that updates inputs is refused: see [`Program::run_updating`].
    pub fn run(&self, inputs: &[InputView<'_>]) -> Result<Vec<Produced>, Error> {
        self.run_into(inputs, &[])
    }

    /// Runs the program and writes output `i` to `given[i]` where there is one.
    pub fn run_into(&self, inputs: &[InputView<'_>], given: &[Option<Buffer>]) -> Result<Vec<Produced>, Error> {
        if let Some(&input) = self.updates.first() {
            return Err(Error::UpdatesInput { input });
        }
        self.execute_given(inputs, given)
    }

    fn execute_given(&self, inputs: &[InputView<'_>], given: &[Option<Buffer>]) -> Result<Vec<Produced>, Error> {
        let mut produced = Vec::with_capacity(self.schedule.outputs.len());
        self.with_frame(&inputs, |frame, sizing| {
            frame.run(self, sizing, &inputs, Outputs::Given(given), &mut produced)
        })?;
        Ok(produced)
    }

    /// Runs a program that overwrites inputs.
    ///
    /// # Safety
    /// Nothing else uses the memory of the updated inputs (see [`Program::updates`]) meanwhile, and none of it is given as
    /// another input.
    pub unsafe fn run_updating(
        &self,
        inputs: &[InputView<'_>],
        given: &[Option<Buffer>],
    ) -> Result<Vec<Produced>, Error> {
        self.check_updates(&inputs)?;
        self.execute_given(inputs, given)
    }

    /// Runs the program without allocating: the launch list is resolved for the sizes of these inputs once, and outputs reuse
    /// the memory of earlier ones that are no longer held. `produced` gets the outputs; give the same vector each time. A
    /// program that updates inputs is refused: see [`Program::replay_updating`].
    ///
    /// ```
    /// use kiln_ir::{DType, Graph};
    /// use kiln_kernels::{InputLayout, ScheduleOptions};
    /// use kiln_runtime::{Backend, InputView, Produced, Program, ReferenceBackend};
    /// use std::sync::Arc;
    /// let graph = Graph::parse("graph(%0: f32[2]) {
    ///   %1: f32[2] = neg %0
    ///   return %1
    /// }").unwrap();
    /// let layout = InputLayout::contiguous(graph.ty(graph.inputs()[0]));
    /// let program = Program::build(&graph, &[layout], Arc::new(ReferenceBackend), &ScheduleOptions::default())?;
    /// let buffer = ReferenceBackend.allocate(8)?;
    /// let inputs = [InputView { buffer: &buffer, dtype: DType::F32, shape: &[2], strides: &[1], offset: 0 }];
    /// let mut produced = Vec::new();
    /// let mut places = Vec::new();
    /// for _ in 0..2 {
    ///     let shapes = program.replay(&inputs, &mut produced)?;
    ///     assert_eq!(shapes[0], [2]);
    ///     let Produced::Buffer(output) = &produced[0] else { unreachable!() };
    ///     places.push(output.ptr());
    ///     produced.clear();
    /// }
    /// assert_eq!(places[0], places[1]);
    /// # Ok::<(), kiln_runtime::Error>(())
    /// ```
    pub fn replay(&self, inputs: &[InputView<'_>], produced: &mut Vec<Produced>) -> Result<OutputShapes, Error> {
        if let Some(&input) = self.updates.first() {
            return Err(Error::UpdatesInput { input });
        }
        self.recycle(inputs, produced)
    }

    /// [`Program::replay`] for a program that overwrites inputs.
    ///
    /// # Safety
    /// As [`Program::run_updating`].
    pub unsafe fn replay_updating(
        &self,
        inputs: &[InputView<'_>],
        produced: &mut Vec<Produced>,
    ) -> Result<OutputShapes, Error> {
        self.check_updates(&inputs)?;
        self.recycle(inputs, produced)
    }

    /// Runs the program without a list of its inputs or outputs: it requests inputs by number, and `each` gets every output
    /// with its sizes and dtype, in order. With `recycles` outputs reuse the memory of earlier ones ([`Program::replay`]), and
    /// the run allocates nothing.
    ///
    /// # Safety
    /// As [`Program::run_updating`].
    pub unsafe fn run_each(
        &self,
        inputs: &dyn Inputs,
        recycles: bool,
        each: &mut dyn FnMut(Produced, &[usize], DType),
    ) -> Result<(), Error> {
        self.check_updates(inputs)?;
        let outputs = if recycles { Outputs::Recycled } else { Outputs::Given(&[]) };
        self.with_frame(inputs, |frame, sizing| {
            let mut produced = std::mem::take(&mut frame.produced);
            let outcome = frame.run(self, sizing, inputs, outputs, &mut produced);
            if outcome.is_ok() {
                let types = sizing.output_shapes.iter().zip(&self.output_types);
                for (produced, (shape, ty)) in produced.drain(..).zip(types) {
                    each(produced, shape, ty.dtype);
                }
            }
            produced.clear();
            frame.produced = produced;
            outcome
        })
    }

    fn check_updates(&self, inputs: &dyn Inputs) -> Result<(), Error> {
        for &input in &self.updates {
            if input < inputs.count() && !inputs.view(input).buffer.is_writable() {
                return Err(Error::ReadOnly { bytes: inputs.view(input).buffer.bytes_len() });
            }
        }
        Ok(())
    }

    /// Does `work` with a frame for the sizes of these inputs.
    fn with_frame<T>(
        &self,
        inputs: &dyn Inputs,
        work: impl FnOnce(&mut Frame, &Arc<Sizing>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let start = event::is_enabled(Category::Run).then(Instant::now);
        let found;
        let sizing = match self.sizings.fixed(inputs.count(), &self.inputs)? {
            Some(sizing) => sizing,
            None => {
                found = self.sizings.find(&self.inputs, &self.output_types, &self.schedule, inputs)?;
                &found
            }
        };
        let mut frame = self.take_frame(sizing);
        let outcome = work(&mut frame, sizing);
        self.put_frame(frame);
        if let Some(start) = start {
            if outcome.is_ok() {
                // Somebody listens to how long runs take, not to how long it takes to queue them.
                self.backend.synchronize()?;
            }
            let launches = self.steps.len();
            event::emit(Category::Run, || Event::ProgramRun { launches, took: start.elapsed() });
        }
        outcome
    }

    fn recycle(&self, inputs: &[InputView<'_>], produced: &mut Vec<Produced>) -> Result<OutputShapes, Error> {
        self.with_frame(&inputs, |frame, sizing| {
            frame.run(self, sizing, &inputs, Outputs::Recycled, produced)?;
            Ok(OutputShapes(sizing.clone()))
        })
    }

    fn check_given(&self, output: usize, buffer: &Buffer, needed: usize) -> Result<Buffer, Error> {
        if buffer.device() != self.device() {
            let (what, index, device, expected) = ("output", output, buffer.device(), self.device());
            return Err(Error::WrongDevice { what, index, device, expected });
        }
        if buffer.bytes_len() < needed {
            return Err(Error::OutputTooSmall { output, needed, bytes: buffer.bytes_len() });
        }
        if !buffer.is_writable() {
            return Err(Error::ReadOnly { bytes: buffer.bytes_len() });
        }
        Ok(buffer.clone())
    }
}

impl CompiledStep {
    fn new(graph: &Graph, step: &Step, code: Arc<dyn Executable>, backend: &dyn Backend) -> CompiledStep {
        let indexed = indexed_nodes(graph, step).map(|id| Indexed::new(graph, id)).collect();
        let source = source_node(graph, step).map(|id| graph.node(id).source.clone()).unwrap_or_default();
        CompiledStep::from_origin(step, code, Origin { label: step.label.clone(), source, indexed }, backend)
    }

    fn from_origin(step: &Step, code: Arc<dyn Executable>, origin: Origin, backend: &dyn Backend) -> CompiledStep {
        let origin = Arc::new(origin);
        let site = match backend.is_asynchronous() {
            true => {
                let origin = origin.clone();
                sites::register(Arc::new(move |cause| origin.error(cause)))
            }
            false => 0,
        };
        let args = step.args.iter().map(|id| id.index()).collect();
        let (kernel, nodes) = (step.kernel.clone(), step.nodes.clone());
        CompiledStep { kernel, variant: Variant::default(), code, args, origin, site, nodes }
    }

    #[cold]
    fn error(&self, cause: LaunchError) -> Error {
        self.origin.error(cause)
    }
}

impl Origin {
    fn error(&self, cause: LaunchError) -> Error {
        let cause = match cause {
            LaunchError::Earlier { cause } => return *cause,
            own => own,
        };
        let indexed = match &cause {
            // Of several the one whose axis has the size that was reported, if that is known.
            LaunchError::IndexOutOfRange { size, .. } => {
                let fits = |indexed: &&Indexed| indexed.size.is_none_or(|own| own == *size);
                self.indexed.iter().find(fits).or(self.indexed.first())
            }
            _ => None,
        };
        let (op, at) = match indexed {
            Some(Indexed { op, at, .. }) => (op.clone(), at.clone()),
            None => (self.label.clone(), self.source.clone()),
        };
        Error::Launch { op, cause, at }
    }
}

/// The node whose line a launch has.
fn source_node(graph: &Graph, step: &Step) -> Option<NodeId> {
    step.nodes.iter().copied().find(|&id| !graph.node(id).source.is_unknown())
}

/// The nodes whose indices a launch checks.
fn indexed_nodes<'a>(graph: &'a Graph, step: &'a Step) -> impl Iterator<Item = NodeId> + 'a {
    let is_indexed = |op: &Op| matches!(op, Op::Gather { .. } | Op::Scatter { .. });
    step.nodes.iter().copied().filter(move |&id| is_indexed(&graph.node(id).op))
}

/// A node whose indices a launch checks: what an error says of it.
#[derive(Debug, Clone)]
struct Indexed {
    /// The function that the user called, or else the op.
    op: String,
    at: Source,
    /// The size of the indexed axis, where it is constant.
    size: Option<i64>,
}

impl Indexed {
    fn new(graph: &Graph, id: NodeId) -> Indexed {
        let node = graph.node(id);
        let size = indexed_size(graph, id);
        Indexed { op: called(&node.source, node.op.kind().name()), at: node.source.clone(), size }
    }
}

/// The size of the axis that a node indexes, where it is constant.
fn indexed_size(graph: &Graph, id: NodeId) -> Option<i64> {
    let node = graph.node(id);
    match (&node.op, node.operands.as_slice()) {
        (Op::Gather { axis } | Op::Scatter { axis, .. }, &[x, ..]) => graph.ty(x).shape[*axis].as_const(),
        _ => None,
    }
}

/// The function that a line calls, or else the op itself.
fn called(source: &Source, op: String) -> String {
    source.function.name().map_or(op, str::to_owned)
}

/// Memory of a schedule's constants, by buffer.
fn constants(schedule: &Schedule, backend: &dyn Backend) -> Result<Vec<Option<Buffer>>, Error> {
    let constant = |decl: &BufferDecl| match &decl.role {
        Role::Constant(literal) => {
            let buffer = backend.allocate(literal.bytes.len())?;
            buffer.write_from_host(0, &literal.bytes)?;
            Ok(Some(buffer))
        }
        _ => Ok(None),
    };
    schedule.buffers.iter().map(constant).collect()
}

pub(crate) fn raw(buffer: &Buffer) -> RawBuffer {
    RawBuffer { ptr: buffer.ptr(), bytes: buffer.bytes_len() }
}

fn report_notes(graph: &Graph, schedule: &Schedule) {
    if !event::is_enabled(Category::Fusion) {
        return;
    }
    for step in &schedule.steps {
        let at = step.nodes.iter().map(|&id| &graph.node(id).source).find(|s| !s.is_unknown()).cloned();
        let text = format!("{}: one kernel of {}", step.label, event::counted(step.nodes.len(), "node", "nodes"));
        event::emit(Category::Fusion, || Event::Fusion { text, at: at.unwrap_or_default() });
    }
    for note in &schedule.notes {
        let name = |id: NodeId| format!("{id} = {}", graph.node(id).op.kind().name());
        let text = format!("{} and {} are not fused: {}", name(note.producer), name(note.consumer), note.reason);
        event::emit(Category::Fusion, || Event::Fusion { text, at: graph.node(note.consumer).source.clone() });
    }
}

/// A size that must have a value.
pub(crate) fn unbound(size: &Dim) -> Error {
    Error::UnboundSize { size: size.to_string() }
}
