//! Explaining, verifying and dumping compiled graphs: their graphs, programs and inputs are handed to [`kiln_inspect`].

use crate::pipeline::{self, dump as dumps};
use crate::tensor::compiled_graph::{CompiledGraph, locate, view};
use crate::{Error, Result, Tensor};
use kiln_inspect::bisect::{self, BisectReport, Stage};
use kiln_inspect::explain::{self, Explanation, Segment, Subject};
use kiln_inspect::verify::VerifyReport;
use kiln_ir::{Graph, HostTensor, Source};
use kiln_kernels::Form;
use kiln_runtime::{InputView, Program};
use std::io;
use std::path::{Path, PathBuf};

impl CompiledGraph {
    /// Explains the graph and measures its kernels on these inputs, which are not changed.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor, ir::Graph};
    /// let graph = Graph::parse("graph(%0: f32[64, 256]) {
    ///   %1: f32[64, 256] = exp %0
    ///   %2: f32[64, 256] = mul %1, %0
    ///   return %2
    /// }").unwrap();
    /// let compiled = kiln::compile_graph(&graph, &[])?;
    /// let explanation = compiled.explain(&[Tensor::randn([64, 256], DType::F32, Device::Cpu)?])?;
    /// assert_eq!(explanation.segments[0].kernels.len(), 1);
    /// assert!(explanation.to_string().contains("exp_mul"));
    /// assert!(explanation.to_html().starts_with("<!doctype html>"));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn explain(&self, inputs: &[Tensor]) -> Result<Explanation> {
        let at = Source::caller();
        let segment = self.segment(inputs, Vec::new(), &at)?;
        let machine = explain::machine(&**self.program().backend()).map_err(|cause| locate("explain", cause, &at))?;
        Ok(Explanation::of_graph(&self.options().name, machine, segment))
    }

    /// Explains the graph as one of several; `names` say what its inputs are.
    pub(crate) fn segment(&self, inputs: &[Tensor], names: Vec<String>, at: &Source) -> Result<Segment> {
        let mut passes = Vec::new();
        let graph = pipeline::optimise(&self.unit(at), self.graph().clone(), &mut |pass, form| {
            if let Form::Graph(graph) = form {
                passes.push((pass.to_owned(), graph.nodes().len()));
            }
        })?;
        let (captured, program, passes_took) = (self.graph(), self.program(), self.passes_took());
        let subject = Subject { captured, passes, passes_took, graph, program };
        let views: Vec<InputView<'_>> = inputs.iter().map(view).collect();
        Segment::measured(subject, &views, names).map_err(|cause| located("explain", cause, at))
    }

    /// Compares every kernel with the interpreter on these inputs, which are not changed. See [`verify_program`].
    ///
    /// ```
    /// use kiln::{Tensor, Device, ir::Graph};
    /// let graph = Graph::parse("graph(%0: f32[n, 16], %1: f32[16, 16]) {
    ///   %2: f32[n, 16] = exp %0
    ///   %3: f32[n, 16] = dot %2, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
    ///   return %3
    /// }").unwrap();
    /// let compiled = kiln::compile_graph(&graph, &[])?;
    /// let (x, w) = (Tensor::randn([4, 16], kiln::DType::F32, Device::Cpu)?, Tensor::randn([16, 16], kiln::DType::F32, Device::Cpu)?);
    /// let report = compiled.verify(&[x, w])?;
    /// assert!(report.is_right(), "{report}");
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn verify(&self, inputs: &[Tensor]) -> Result<VerifyReport> {
        let graph = self.optimised()?;
        verify_program(&graph, self.program(), inputs)
    }
}

/// Compares every kernel of a program with the interpreter on live inputs; see [`kiln_inspect::verify()`]. `graph` is what
/// the program was built from, after the passes.
#[track_caller]
pub fn verify_program(graph: &Graph, program: &Program, inputs: &[Tensor]) -> Result<VerifyReport> {
    let views: Vec<InputView<'_>> = inputs.iter().map(view).collect();
    verify_at(graph, program, inputs, &views, &Source::caller())
}

/// [`verify_program`] for a program whose inputs differ from the graph's because some are packed.
pub(crate) fn verify_at(
    graph: &Graph,
    program: &Program,
    inputs: &[Tensor],
    views: &[InputView<'_>],
    at: &Source,
) -> Result<VerifyReport> {
    kiln_inspect::verify(graph, program, hosts(inputs, at)?, views).map_err(|cause| located("verify", cause, at))
}

/// Runs the passes on a graph and checks with the interpreter after each whether the results are still the same.
///
/// ```
/// use kiln::{Device, Tensor, ir::Graph};
/// let graph = Graph::parse("graph(%0: f32[4]) {
///   %1: f32[4] = neg %0
///   %2: f32[4] = neg %1
///   %3: f32[4] = exp %2
///   return %3
/// }").unwrap();
/// let x = Tensor::from_vec(vec![0f32, 1., 2., 3.], 4, Device::Cpu)?;
/// let report = kiln::inspect::bisect_passes(&graph, &[x])?;
/// assert!(report.first_wrong().is_none() && !report.passes.is_empty(), "{report}");
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn bisect_passes(graph: &Graph, inputs: &[Tensor]) -> Result<BisectReport> {
    let at = Source::caller();
    let stages = bisect::stages(graph).map_err(|cause| located("bisect", cause, &at))?;
    bisect_at(graph, &stages, inputs, &at)
}

/// [`bisect_passes`] for existing graphs: compares each stage with the one before it, and the first with `graph`.
#[track_caller]
pub fn bisect_stages(graph: &Graph, stages: &[Stage], inputs: &[Tensor]) -> Result<BisectReport> {
    bisect_at(graph, stages, inputs, &Source::caller())
}

fn bisect_at(graph: &Graph, stages: &[Stage], inputs: &[Tensor], at: &Source) -> Result<BisectReport> {
    bisect::bisect(graph, stages, &hosts(inputs, at)?).map_err(|cause| located("bisect", cause, at))
}

/// Writes everything about a program to a new folder within `into`, which is created if needed: graphs after each pass,
/// kernels, vector IR, machine code and memory plan. `KILN_DEBUG=1` does this for every program.
///
/// ```
/// use kiln::ir::Graph;
/// let graph = Graph::parse("graph(%0: f32[8]) {
///   %1: f32[8] = exp %0
///   return %1
/// }").unwrap();
/// let compiled = kiln::compile_graph(&graph, &[])?;
/// let folder = kiln::inspect::dump(&compiled, &std::env::temp_dir().join("kiln_debug_example")).unwrap();
/// assert!(folder.join("index.txt").is_file());
/// # std::fs::remove_dir_all(folder.parent().unwrap()).unwrap();
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn dump(compiled: &CompiledGraph, into: &Path) -> io::Result<PathBuf> {
    dumps::dump(&compiled.unit(&Source::default()), compiled.program(), compiled.passes_took(), into)
}

/// Copies the elements of a tensor to the host, for the reference interpreter.
///
/// ```
/// use kiln::{Device, Tensor};
/// let x = Tensor::new([1f32, 2.0], Device::Cpu)?;
/// assert_eq!(kiln::inspect::to_host(&x)?.to_f64(), [1.0, 2.0]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn to_host(tensor: &Tensor) -> Result<HostTensor> {
    host(tensor, &Source::caller())
}

fn host(tensor: &Tensor, at: &Source) -> Result<HostTensor> {
    let unreadable = |reason| Error::Unreadable { reason, at: at.clone() };
    let bytes = tensor.to_bytes().map_err(|error| unreadable(error.to_string()))?;
    HostTensor::from_bytes(tensor.dtype(), tensor.shape(), bytes).map_err(|error| unreadable(error.to_string()))
}

fn hosts(tensors: &[Tensor], at: &Source) -> Result<Vec<HostTensor>> {
    tensors.iter().map(|tensor| host(tensor, at)).collect()
}

/// An error of an inspection, with the operation and the user's line.
fn located(op: &str, cause: kiln_inspect::Error, at: &Source) -> Error {
    use kiln_inspect::Error as Cause;
    let at = at.clone();
    match cause {
        Cause::Graph { cause } => Error::Graph { cause },
        Cause::Passes { cause } => Error::Passes { cause, at },
        Cause::Interpret { cause } => Error::Interpret { cause, at },
        Cause::Runtime { cause } => Error::Runtime { op: op.into(), cause, at },
    }
}
