//! A compiled graph: kernels in order, and what has to be known to launch them.

use crate::event::{self, Category, Event};
use crate::sizing::{InputSpec, Sizing, Sizings};
use crate::{Backend, Buffer, Device, Error, Executable, LaunchError, RawBuffer, Variant, kernel_cache, phase};
use kiln_ir::{DType, Dim, Graph, NodeId, Op, Source, TensorType};
use kiln_kernels::kernel::Kernel;
use kiln_kernels::schedule::{Role, Schedule, Step};
use kiln_kernels::{InputLayout, ScheduleOptions};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

mod inspect;

pub use inspect::Inspection;

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
    frames: Mutex<Vec<Frame>>,
    times: BuildTimes,
}

/// How long it took to make a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BuildTimes {
    /// Cutting the graph into kernels.
    pub schedule: Duration,
    /// Finding or making the kernels' code.
    pub code: Duration,
    /// Kernels whose code was not there yet.
    pub compiled: usize,
}

/// One launch of a program.
pub struct CompiledStep {
    pub(crate) kernel: Arc<Kernel>,
    /// How the kernel is run.
    pub(crate) variant: Variant,
    pub(crate) code: Arc<dyn Executable>,
    pub(crate) args: Vec<usize>,
    pub(crate) label: String,
    source: Source,
    /// The op whose indices the kernel checks, and its line.
    indexed: Option<(String, Source)>,
    nodes: Vec<NodeId>,
}

impl CompiledStep {
    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// How the kernel is run: which arguments lie packed, what was tuned.
    pub fn variant(&self) -> &Variant {
        &self.variant
    }

    /// Its code.
    pub fn code(&self) -> &Arc<dyn Executable> {
        &self.code
    }

    /// A short name of what it computes.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// A line of the user's that it computes.
    pub fn source(&self) -> &Source {
        &self.source
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
    /// Elements an axis step moves.
    pub strides: &'a [isize],
    /// Place of the first element in the buffer, in elements.
    pub offset: usize,
}

/// An output of one run.
#[derive(Debug, Clone)]
pub enum Produced {
    /// New memory with the elements in row-major order.
    Buffer(Buffer),
    /// The output is this input, as it was given, now with its new value if the graph updates it.
    Input(usize),
}

/// What a run needs besides inputs and outputs; kept from run to run.
#[derive(Default)]
struct Frame {
    arena: Option<Buffer>,
    /// By buffer of the schedule.
    buffers: Vec<RawBuffer>,
    args: Vec<RawBuffer>,
}

/// Frames kept a program: as many threads run it without allocating.
const FRAMES_KEPT: usize = 8;

impl Program {
    /// Schedules a graph and compiles its kernels. The graph has been through the passes.
    pub fn build(
        graph: &Graph,
        layouts: &[InputLayout],
        backend: Arc<dyn Backend>,
        options: &ScheduleOptions,
    ) -> Result<Program, Error> {
        let start = Instant::now();
        let schedule = phase::timed("schedule", || kiln_kernels::schedule(graph, layouts, options))
            .map_err(|cause| Error::Schedule { cause: Box::new(cause) })?;
        let scheduled = start.elapsed();
        report_notes(graph, &schedule);
        let mut compiled = 0;
        let mut steps = Vec::with_capacity(schedule.steps.len());
        for step in &schedule.steps {
            let (code, fresh) = phase::timed("code", || kernel_cache::get(&*backend, &step.kernel, &step.label))?;
            compiled += fresh as usize;
            steps.push(CompiledStep::new(graph, step, code));
        }
        let mut constants = Vec::with_capacity(schedule.buffers.len());
        for decl in &schedule.buffers {
            constants.push(match &decl.role {
                Role::Constant(literal) => {
                    let buffer = backend.allocate(literal.bytes.len())?;
                    buffer.write_from_host(0, &literal.bytes)?;
                    Some(buffer)
                }
                _ => None,
            });
        }
        let input = |(&id, layout): (&NodeId, &InputLayout)| InputSpec::new(graph.ty(id), layout);
        let inputs: Vec<InputSpec> = graph.inputs().iter().zip(layouts).map(input).collect();
        let output_types: Vec<TensorType> = graph.outputs().iter().map(|o| graph.ty(o.node).clone()).collect();
        let sizings = phase::timed("plan", || Sizings::new(&inputs, &output_types, &schedule))?;
        event::emit(Category::Kernels, || Event::ProgramBuilt {
            nodes: graph.nodes().len(),
            launches: steps.len(),
            compiled,
            took: start.elapsed(),
        });
        let updates = graph.outputs().iter().filter_map(|o| o.updates).collect();
        let frames = Mutex::default();
        let times = BuildTimes { schedule: scheduled, code: start.elapsed().saturating_sub(scheduled), compiled };
        Ok(Program { backend, schedule, steps, constants, inputs, output_types, updates, sizings, frames, times })
    }

    /// Where it runs.
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

    /// How the graph was cut, with the reasons for what was not fused.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// How long it took to make it.
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
        self.execute(inputs, given)
    }

    /// Runs a program that overwrites inputs.
    ///
    /// # Safety
    /// Nobody else uses the memory of the updated inputs (see [`Program::updates`]) meanwhile, and none of it is given as
    /// another input.
    pub unsafe fn run_updating(
        &self,
        inputs: &[InputView<'_>],
        given: &[Option<Buffer>],
    ) -> Result<Vec<Produced>, Error> {
        for &input in &self.updates {
            if let Some(view) = inputs.get(input).filter(|view| !view.buffer.is_writable()) {
                return Err(Error::ReadOnly { bytes: view.buffer.bytes_len() });
            }
        }
        self.execute(inputs, given)
    }

    fn execute(&self, inputs: &[InputView<'_>], given: &[Option<Buffer>]) -> Result<Vec<Produced>, Error> {
        let start = event::is_enabled(Category::Run).then(Instant::now);
        let sizing = self.sizings.get(&self.inputs, &self.output_types, &self.schedule, inputs)?;
        let mut frame = self.take_frame();
        let outcome = self.execute_in(&mut frame, &sizing, inputs, given);
        self.put_frame(frame);
        if let Some(start) = start {
            let launches = self.steps.len();
            event::emit(Category::Run, || Event::ProgramRun { launches, took: start.elapsed() });
        }
        outcome
    }

    fn execute_in(
        &self,
        frame: &mut Frame,
        sizing: &Sizing,
        inputs: &[InputView<'_>],
        given: &[Option<Buffer>],
    ) -> Result<Vec<Produced>, Error> {
        let produced = self.outputs(sizing, given)?;
        let arena = match &frame.arena {
            Some(arena) if arena.bytes_len() >= sizing.arena_bytes => arena.clone(),
            _ => frame.arena.insert(self.backend.allocate(sizing.arena_bytes)?).clone(),
        };
        frame.buffers.clear();
        for (index, decl) in self.schedule.buffers.iter().enumerate() {
            frame.buffers.push(match &decl.role {
                Role::Input(input) => sizing.inputs[*input].raw(*input, &inputs[*input], self.device())?,
                Role::Output(output) => match &produced[*output] {
                    Produced::Buffer(buffer) => raw(buffer),
                    Produced::Input(_) => return Err(Error::BrokenSchedule { buffer: index }),
                },
                Role::Constant(_) => {
                    self.constants[index].as_ref().map(raw).ok_or(Error::BrokenSchedule { buffer: index })?
                }
                Role::Temp => sizing.temp(index, &arena)?,
            });
        }
        for (step, sizes) in self.steps.iter().zip(&sizing.step_sizes) {
            frame.args.clear();
            frame.args.extend(step.args.iter().map(|&buffer| frame.buffers[buffer]));
            // SAFETY: the inputs were checked to lie in their buffers with the layout the kernels were made for, outputs,
            // temporaries and constants have the sizes the schedule asked for at these sizes, and the caller of `run_updating`
            // vouches for the inputs that are written.
            unsafe { step.code.launch(&frame.args, sizes) }.map_err(|cause| step.error(cause))?;
        }
        Ok(produced)
    }

    /// The outputs' memory.
    fn outputs(&self, sizing: &Sizing, given: &[Option<Buffer>]) -> Result<Vec<Produced>, Error> {
        let mut produced: Vec<Produced> = Vec::with_capacity(self.schedule.outputs.len());
        for (output, id) in self.schedule.outputs.iter().enumerate() {
            let needed = sizing.buffer_bytes[id.index()];
            let one = match &self.schedule.buffers[id.index()].role {
                Role::Input(input) => Produced::Input(*input),
                Role::Output(first) if *first < output => produced[*first].clone(),
                Role::Output(_) => match given.get(output) {
                    Some(Some(buffer)) => Produced::Buffer(self.check_given(output, buffer, needed)?),
                    _ => Produced::Buffer(self.backend.allocate(needed)?),
                },
                Role::Constant(_) => match &self.constants[id.index()] {
                    Some(buffer) => Produced::Buffer(buffer.clone()),
                    None => return Err(Error::BrokenSchedule { buffer: id.index() }),
                },
                Role::Temp => return Err(Error::BrokenSchedule { buffer: id.index() }),
            };
            produced.push(one);
        }
        Ok(produced)
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

    fn take_frame(&self) -> Frame {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    fn put_frame(&self, frame: Frame) {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if frames.len() < FRAMES_KEPT {
            frames.push(frame);
        }
    }
}

impl CompiledStep {
    fn new(graph: &Graph, step: &Step, code: Arc<dyn Executable>) -> CompiledStep {
        let nodes = || step.nodes.iter().map(|&id| graph.node(id));
        let is_indexed = |op: &Op| matches!(op, Op::Gather { .. } | Op::Scatter { .. });
        let indexed = nodes().find(|n| is_indexed(&n.op)).map(|n| (n.op.kind().name(), n.source.clone()));
        let source = nodes().map(|n| &n.source).find(|s| !s.is_unknown()).cloned().unwrap_or_default();
        let args = step.args.iter().map(|id| id.index()).collect();
        let (kernel, label, nodes) = (step.kernel.clone(), step.label.clone(), step.nodes.clone());
        let variant = Variant::default();
        CompiledStep { kernel, variant, code, args, label, source, indexed, nodes }
    }

    #[cold]
    fn error(&self, cause: LaunchError) -> Error {
        let (op, at) = match (&cause, &self.indexed) {
            (LaunchError::IndexOutOfRange { .. }, Some((op, at))) => (op.clone(), at.clone()),
            _ => (self.label.clone(), self.source.clone()),
        };
        Error::Launch { op, cause, at }
    }
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
        let text = format!("{}: one kernel of {} nodes", step.label, step.nodes.len());
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
