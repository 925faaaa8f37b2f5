//! Compiles an existing graph in one call: passes, schedule and code.

use crate::pipeline::{self, Built, CompileOptions, Unit, dump};
use crate::tensor::call_input::{CallInputs, Views};
use crate::tensor::layout::Layout;
use crate::tensor::tracer;
use crate::{DType, Error, Result, Tensor};
use kiln_ir::{Graph, Source};
use kiln_kernels::InputLayout;
use kiln_runtime::event::{self, Category, Event};
use kiln_runtime::{InputView, Produced, Program, TuneReport};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A graph compiled for one device, with its kernels fused. It can be called from many threads.
pub struct CompiledGraph {
    program: Program,
    /// The graph as it was given.
    graph: Arc<Graph>,
    layouts: Vec<InputLayout>,
    options: CompileOptions,
    /// How long the passes took.
    passes: Duration,
    /// Where `KILN_DEBUG` put its dump.
    dumped: Option<PathBuf>,
}

/// Compiles a graph for inputs with these layouts; an empty list means row-major.
///
/// ```
/// use kiln::{DType, Device, Tensor, ir::Graph};
/// let graph = Graph::parse("graph(%0: f32[n], %1: f32[n]) {
///   %2: f32[n] = mul %0, %1
///   %3: f32[n] = exp %2
///   return %3
/// }").unwrap();
/// let fused = kiln::compile_graph(&graph, &[])?;
/// let x = Tensor::from_vec(vec![0f32, 1., 2.], 3, Device::Cpu)?;
/// let y = fused.run(&[x.clone(), (x * -1.0)?])?.remove(0);
/// assert_eq!(y.to_vec::<f32>()?[0], 1.0);
/// assert_eq!(fused.program().steps().len(), 1);
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn compile_graph(graph: &Graph, layouts: &[InputLayout]) -> Result<CompiledGraph> {
    CompiledGraph::new(graph, layouts, &CompileOptions::default())
}

impl CompiledGraph {
    /// [`compile_graph`] with options.
    #[track_caller]
    pub fn new(graph: &Graph, layouts: &[InputLayout], options: &CompileOptions) -> Result<CompiledGraph> {
        graph.verify().map_err(|cause| Error::Graph { cause: Box::new(cause) })?;
        let at = Source::caller();
        CompiledGraph::new_at(Arc::new(graph.clone()), &layouts_or_contiguous(graph, layouts), options, &at)
    }

    /// Compiles a graph that is known to be valid.
    pub(crate) fn new_at(
        graph: Arc<Graph>,
        layouts: &[InputLayout],
        options: &CompileOptions,
        at: &Source,
    ) -> Result<CompiledGraph> {
        let unit = Unit { graph: &graph, layouts, options, freeze: None, at };
        let Built { program, passes, .. } = pipeline::build(&unit)?;
        let dumped = dump::if_asked(&unit, &program, passes);
        let (layouts, options) = (layouts.to_vec(), options.clone());
        Ok(CompiledGraph { program, graph, layouts, options, passes, dumped })
    }

    /// What it was made of.
    pub(crate) fn unit<'a>(&'a self, at: &'a Source) -> Unit<'a> {
        Unit { graph: &self.graph, layouts: &self.layouts, options: &self.options, freeze: None, at }
    }

    /// Returns the graph as it was given.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the graph after the passes, whose nodes the program's kernels refer to.
    #[track_caller]
    pub fn optimised(&self) -> Result<Graph> {
        pipeline::optimise(&self.unit(&Source::caller()), self.graph().clone(), &mut |_, _| {})
    }

    /// Returns the options it was compiled with.
    pub fn options(&self) -> &CompileOptions {
        &self.options
    }

    /// Returns the folder that `KILN_DEBUG` made for it.
    pub fn dumped(&self) -> Option<&Path> {
        self.dumped.as_deref()
    }

    /// Returns how long the passes took.
    pub fn passes_took(&self) -> Duration {
        self.passes
    }

    /// Returns the program: kernels, code and the fusion rejections.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns an estimate of the bytes it holds, including the graph and constants; see [`Program::bytes`].
    pub fn bytes(&self) -> usize {
        self.graph.bytes() + self.program.bytes()
    }

    /// Measures the variants of each kernel on these inputs, for about `budget`, and uses the fastest from then on. The
    /// choices are kept in the disk cache.
    #[track_caller]
    pub fn tune(&self, inputs: &[&Tensor], budget: Duration) -> Result<TuneReport> {
        let at = Source::caller();
        if inputs.iter().any(|t| t.is_traced()) {
            return Err(tracer::break_at("tunes a compiled graph", &at));
        }
        let views: Vec<InputView<'_>> = inputs.iter().map(|t| view(t)).collect();
        self.program.tune(&views, budget).map_err(|e| locate("tune", e, &at))
    }

    /// Runs the graph. Inputs must have the layouts that the graph was compiled for. Inputs that the graph updates are not
    /// changed: their new values are returned in new memory; see [`CompiledGraph::run_owned`].
    #[track_caller]
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        if self.program.updates().is_empty() {
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            return self.run_at("run", &inputs, &at);
        }
        self.update_at(inputs.to_vec(), &at)
    }

    /// Runs the graph on inputs passed by value. An updated input whose memory has no other handle is written in place;
    /// otherwise it is copied first, which is reported as an event.
    #[track_caller]
    pub fn run_owned(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let at = Source::caller();
        if self.program.updates().is_empty() {
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            return self.run_at("run", &inputs, &at);
        }
        self.update_at(inputs, &at)
    }

    pub(crate) fn run_at(&self, op: &'static str, inputs: &[&Tensor], at: &Source) -> Result<Vec<Tensor>> {
        if inputs.iter().any(|t| t.is_traced()) {
            return Err(tracer::break_at("runs a compiled graph", at));
        }
        let mut outputs = Vec::with_capacity(self.program.output_types().len());
        // SAFETY: a program that updates inputs is run by `update_at`.
        unsafe { self.execute(op, &inputs, false, outputs.capacity(), &mut |output| outputs.push(output), at) }?;
        Ok(outputs)
    }

    /// Runs a graph that only updates its first input.
    ///
    /// # Safety
    /// Nothing else accesses the memory of the first input during the call, and no other input shares it.
    pub(crate) unsafe fn run_in_place(&self, op: &'static str, inputs: &[&Tensor], at: &Source) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.execute(op, &inputs, false, 0, &mut |_| (), at) }
    }

    fn update_at(&self, mut inputs: Vec<Tensor>, at: &Source) -> Result<Vec<Tensor>> {
        if inputs.iter().any(|tensor| tensor.is_traced()) {
            return Err(tracer::break_at("runs a compiled graph", at));
        }
        for &updated in self.program.updates() {
            if let Some(tensor) = inputs.get_mut(updated) {
                make_writable(tensor, updated, at)?;
            }
        }
        let mut outputs = Vec::with_capacity(self.program.output_types().len());
        // SAFETY: each updated input is the only handle of its memory, and `inputs` is ours.
        unsafe { self.execute("run", &inputs, false, outputs.capacity(), &mut |output| outputs.push(output), at) }?;
        Ok(outputs)
    }

    /// Runs the program; `each` gets the first `wanted` outputs, in order. With `recycles` they take the memory of earlier ones that
    /// nobody holds any more.
    ///
    /// # Safety
    /// Nothing else accesses the memory of updated inputs during the call, and no other input shares it.
    pub(crate) unsafe fn execute(
        &self,
        op: &'static str,
        inputs: &dyn CallInputs,
        recycles: bool,
        wanted: usize,
        each: &mut dyn FnMut(Tensor),
        at: &Source,
    ) -> Result<()> {
        let input = |input: usize| inputs.as_output(input);
        let mut each = handing_over(wanted, &input, each);
        // SAFETY: the caller's promise.
        let outcome = unsafe { self.program.run_each(&Views(inputs), recycles, &mut each) };
        outcome.map_err(|cause| failed(op, cause, inputs, at))
    }
}

/// Makes tensors of the first `wanted` outputs of a program.
pub(crate) fn handing_over<'a>(
    wanted: usize,
    input: &'a dyn Fn(usize) -> Tensor,
    each: &'a mut dyn FnMut(Tensor),
) -> impl FnMut(Produced, &[usize], DType) + 'a {
    let mut count = 0;
    move |produced, shape, dtype| {
        count += 1;
        if count <= wanted {
            each(match produced {
                Produced::Buffer(buffer) => Tensor::from_parts(buffer, Layout::contiguous(shape), dtype),
                Produced::Input(number) => input(number),
            });
        }
    }
}

/// The error of a run. A tensor of a function being captured has no memory, so that a run of it fails.
#[cold]
pub(crate) fn failed(op: &'static str, cause: kiln_runtime::Error, inputs: &dyn CallInputs, at: &Source) -> Error {
    if inputs.iter().any(Tensor::is_traced) {
        return tracer::break_at("runs a compiled graph", at);
    }
    locate(op, cause, at)
}

/// Sees to it that an input may be written: one whose memory has other handles is copied, which is reported as an event.
pub(crate) fn make_writable(tensor: &mut Tensor, input: usize, at: &Source) -> Result<()> {
    if tensor.is_sole_owner() && tensor.buffer().is_writable() {
        return Ok(());
    }
    event::emit(Category::Perf, || Event::Slow {
        text: format!(
            "input {input} of {:?} is shared, so its update copies it; drop the other handles first",
            tensor.shape()
        ),
        at: at.clone(),
    });
    *tensor = tensor.duplicate(at)?;
    Ok(())
}

/// Tensors over what a program produced.
pub(crate) fn tensors(
    program: &Program,
    produced: Vec<Produced>,
    shapes: &[Vec<usize>],
    input: &dyn Fn(usize) -> Tensor,
) -> Vec<Tensor> {
    let types = program.output_types();
    let tensor = |((produced, shape), ty): ((Produced, &Vec<usize>), &kiln_ir::TensorType)| match produced {
        Produced::Buffer(buffer) => Tensor::from_parts(buffer, Layout::contiguous(shape), ty.dtype),
        Produced::Input(i) => input(i),
    };
    produced.into_iter().zip(shapes).zip(types).map(tensor).collect()
}

pub(crate) fn view(tensor: &Tensor) -> InputView<'_> {
    InputView {
        buffer: tensor.buffer(),
        dtype: tensor.dtype(),
        shape: tensor.shape(),
        strides: tensor.strides(),
        offset: tensor.layout().offset(),
    }
}

/// An error of a run, at the line of the op that failed where that is known.
pub(crate) fn locate(op: &'static str, cause: kiln_runtime::Error, at: &Source) -> Error {
    use kiln_runtime::{Error as Cause, LaunchError};
    match cause {
        Cause::Launch { op, cause: LaunchError::IndexOutOfRange { index, size }, at: line } => {
            let at = if line.is_unknown() { at.clone() } else { line };
            out_of_range(op, index, size, at)
        }
        cause => Error::Runtime { op: op.into(), cause: Box::new(cause), at: at.clone() },
    }
}

/// The error for an index that a kernel found outside its axis. Divisors are checked as indices are
/// ([`kiln_ir::build::check_divisor`]); the functions that divide check nothing else.
pub(crate) fn out_of_range(op: String, index: i64, size: i64, at: Source) -> Error {
    const DIVISIONS: [&str; 5] = ["rem", "fmod", "remainder", "div_floor", "div_trunc"];
    if DIVISIONS.contains(&op.as_str()) {
        return Error::DivisionByZero { op, at };
    }
    Error::ElementOutOfRange { op, index, size, at }
}

/// The layouts, or row-major ones for an empty list.
pub(crate) fn layouts_or_contiguous<'a>(graph: &Graph, layouts: &'a [InputLayout]) -> Cow<'a, [InputLayout]> {
    if !layouts.is_empty() {
        return Cow::Borrowed(layouts);
    }
    Cow::Owned(graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect())
}

/// The layout of a tensor, as a compiled graph wants to know it.
impl From<&Tensor> for InputLayout {
    fn from(tensor: &Tensor) -> InputLayout {
        input_layout(tensor.layout())
    }
}

/// Offsets start at the lowest place touched, so that a tensor's place in its buffer is no part of the code.
pub(crate) fn input_layout(layout: &Layout) -> InputLayout {
    let first = layout.reach().map_or(0, |(low, _)| -low);
    let stride = |(&stride, &size): (&isize, &usize)| if size == 1 { 0i64 } else { stride as i64 };
    let strides = layout.strides().iter().zip(layout.shape()).map(|pair| stride(pair).into()).collect();
    InputLayout { strides, offset: (first as i64).into() }
}
