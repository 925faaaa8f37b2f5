//! `verify` and `bisect`: right programs are found right, and a wrong kernel, a wrong memory plan and a wrong pass are named.

use kiln::inspect::bisect::Stage;
use kiln::inspect::verify::{Blame, Verdict};
use kiln::inspect::{bisect_passes, bisect_stages, verify_program};
use kiln::ir::{BinaryOp, DType, Graph, Op, Source, TensorType, generate};
use kiln::runtime::{Backend, Buffer, Device, Executable, InputView, LaunchError, Program, RawBuffer};
use kiln::{CompileOptions, CompiledGraph, FreezeOptions, FrozenGraph, Generator, PackWeights, Tensor, compile_graph};
use kiln_kernels::kernel::{Access, Kernel};
use kiln_kernels::{InputLayout, ScheduleOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn random(shape: &[usize]) -> Tensor {
    let seed = shape.iter().fold(7, |seed, &n| seed * 31 + n as u64);
    Generator::new(seed).randn(shape.to_vec(), DType::F32, Device::Cpu).unwrap()
}

/// exp, a product with a bias, and a softmax over its rows: three kernels.
fn network() -> Graph {
    Graph::parse(
        "graph(%0: f32[6, 40], %1: f32[40, 24], %2: f32[1, 24]) {
  %3: f32[6, 40] = exp %0
  %4: f32[6, 24] = dot %3, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %5: f32[6, 24] = expand %2
  %6: f32[6, 24] = add %4, %5
  %7: f32[6, 1] = reduce_max %6 {axes=[1]}
  %8: f32[6, 24] = expand %7
  %9: f32[6, 24] = sub %6, %8
  %10: f32[6, 24] = exp %9
  %11: f32[6, 1] = reduce_sum %10 {axes=[1]}
  %12: f32[6, 24] = expand %11
  %13: f32[6, 24] = div %10, %12
  return %13
}",
    )
    .unwrap()
}

fn inputs() -> Vec<Tensor> {
    vec![random(&[6, 40]), random(&[40, 24]), random(&[1, 24])]
}

fn layouts(graph: &Graph) -> Vec<InputLayout> {
    graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect()
}

/// The CPU, but what the kernel number `broken` does is spoilt by `spoil`.
struct Spoilt {
    inner: Arc<dyn Backend>,
    name: &'static str,
    broken: usize,
    compiled: AtomicUsize,
    spoil: fn(&[RawBuffer], &Kernel),
}

impl Spoilt {
    fn new(name: &'static str, broken: usize, spoil: fn(&[RawBuffer], &Kernel)) -> Arc<Spoilt> {
        let inner = kiln::backend(Device::Cpu);
        Arc::new(Spoilt { inner, name, broken, compiled: AtomicUsize::new(0), spoil })
    }
}

impl Backend for Spoilt {
    fn device(&self) -> Device {
        self.inner.device()
    }
    fn target(&self) -> String {
        self.name.to_owned()
    }
    fn allocate(&self, bytes: usize) -> Result<Buffer, kiln::runtime::Error> {
        self.inner.allocate(bytes)
    }
    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, kiln::runtime::Error> {
        let code = self.inner.compile(kernel)?;
        let spoilt = self.compiled.fetch_add(1, Ordering::Relaxed) == self.broken;
        Ok(Arc::new(Code { code, kernel: kernel.clone(), spoil: spoilt.then_some(self.spoil) }))
    }
}

struct Code {
    code: Arc<dyn Executable>,
    kernel: Kernel,
    spoil: Option<fn(&[RawBuffer], &Kernel)>,
}

impl Executable for Code {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the same promise.
        unsafe { self.code.launch(buffers, sizes)? };
        if let Some(spoil) = self.spoil {
            spoil(buffers, &self.kernel);
        }
        Ok(())
    }
}

/// Adds a little to one element of what a kernel writes.
fn shift_one(buffers: &[RawBuffer], kernel: &Kernel) {
    let at = kernel.buffers.iter().position(|b| b.access == Access::Write).unwrap();
    // SAFETY: the kernel may write this buffer, whose elements are floats.
    unsafe { *buffers[at].ptr.cast::<f32>().add(5) += 0.01 };
}

/// Changes what the kernel read, as if the memory of two buffers overlapped.
fn trample(buffers: &[RawBuffer], kernel: &Kernel) {
    let at = kernel.buffers.iter().position(|b| b.access == Access::Read).unwrap();
    // SAFETY: what the kernel reads is a temporary of the program's, which nobody else uses meanwhile.
    unsafe { *buffers[at].ptr.cast::<f32>() = 77.0 };
}

#[test]
fn a_right_program_is_found_right() {
    let report = compile_graph(&network(), &[]).unwrap().verify(&inputs()).unwrap();
    assert!(report.is_right(), "{report}");
    assert!(report.kernels.len() >= 2, "{report}");
    assert!(report.kernels.iter().all(|k| k.verdict == Verdict::Right), "{report}");
    let text = report.to_string();
    assert!(text.contains("nothing wrong was found") && text.contains("max ulp"), "{text}");
}

#[test]
fn a_kernel_of_wrong_code_is_named_and_blamed() {
    let graph = kiln_passes::run(network()).unwrap();
    let kernels = compile_graph(&network(), &[]).unwrap().program().steps().len();
    for broken in 0..kernels {
        let name: &'static str = ["spoilt-0", "spoilt-1", "spoilt-2", "spoilt-3", "spoilt-4"][broken];
        let backend = Spoilt::new(name, broken, shift_one);
        let program = Program::build(&graph, &layouts(&graph), backend, &ScheduleOptions::default()).unwrap();
        let report = verify_program(&graph, &program, &inputs()).unwrap();
        let wrong = report.first_wrong().expect("one is wrong");
        assert_eq!(wrong.number, broken, "{report}");
        assert!(matches!(wrong.verdict, Verdict::Wrong { element: 5, blame: Blame::Code, .. }), "{report}");
        assert!(!wrong.nodes.is_empty() && !wrong.text.is_empty());
        let bad = report.kernels.iter().filter(|k| k.verdict.is_wrong()).count();
        assert_eq!(bad, 1, "kernels after it had true inputs: {report}");
        let text = report.to_string();
        println!("{text}");
        let said = format!("kernel {broken} ({}) is the first that is wrong", wrong.label);
        assert!(text.contains(&said) && text.contains("machine code is wrong"), "{text}");
    }
}

#[test]
fn the_users_line_is_named() {
    let mut graph = Graph::new();
    let at = |line| Source::new("model.rs", line);
    let x = graph.input(TensorType::fixed(DType::F32, &[64]), at(1)).unwrap();
    let y = graph.add(Op::Binary(BinaryOp::Mul), &[x, x], at(17)).unwrap();
    graph.output(y);
    let backend = Spoilt::new("spoilt-line", 0, shift_one);
    let program = Program::build(&graph, &layouts(&graph), backend, &ScheduleOptions::default()).unwrap();
    let report = verify_program(&graph, &program, &[random(&[64])]).unwrap();
    assert!(report.fault().unwrap().contains("model.rs:17"), "{report}");
}

#[test]
fn updated_inputs_concatenations_and_scatters_are_followed_through_memory() {
    let graph = Graph::parse(
        "graph(%0: f32[8, 4], %1: f32[2, 4], %2: i64[2, 4], %3: f32[3, 4]) {
  %4: f32[8, 4] = scatter_add %0, %2, %1 {axis=0}
  %5: f32[11, 4] = concat %4, %3 {axis=0}
  %6: f32[11, 4] = tanh %5
  return %4 -> input 0, %6
}",
    );
    let graph = graph.unwrap();
    let index = Tensor::from_vec(vec![0i64, 1, 2, 3, 4, 5, 6, 7], [2, 4], Device::Cpu).unwrap();
    let x = random(&[8, 4]);
    let before = x.to_vec::<f32>().unwrap();
    let inputs = [x.clone(), random(&[2, 4]), index, random(&[3, 4])];
    let report = compile_graph(&graph, &[]).unwrap().verify(&inputs).unwrap();
    assert!(report.is_right() && report.outputs.len() == 2, "{report}");
    assert_eq!(x.to_vec::<f32>().unwrap(), before, "inputs stay as they are");
}

#[test]
fn long_reductions_with_a_step_of_their_own_are_checked_too() {
    let graph = Graph::parse(
        "graph(%0: f32[131072]) { %1: f32[131072] = mul %0, %0 %2: f32[1] = reduce_sum %1 {axes=[0]} return %2 }",
    )
    .unwrap();
    let compiled = compile_graph(&graph, &[]).unwrap();
    let report = compiled.verify(&[random(&[131072])]).unwrap();
    assert!(report.is_right(), "{report}");
    assert!(report.kernels.iter().all(|k| k.deviation.elements > 0), "{report}");
}

#[test]
fn sizes_may_be_symbols_and_floats_short() {
    let graph = Graph::parse(
        "graph(%0: bf16[n, 32]) {
  %1: bf16[n, 1] = reduce_max %0 {axes=[1]}
  %2: bf16[n, 32] = expand %1
  %3: bf16[n, 32] = sub %0, %2
  %4: bf16[n, 32] = exp %3
  %5: bf16[n, 1] = reduce_sum %4 {axes=[1]}
  %6: bf16[n, 32] = expand %5
  %7: bf16[n, 32] = div %4, %6
  return %7
}",
    )
    .unwrap();
    let compiled = compile_graph(&graph, &[]).unwrap();
    for rows in [1, 7, 64] {
        let report = compiled.verify(&[random(&[rows, 32]).to_dtype(DType::Bf16).unwrap()]).unwrap();
        assert!(report.is_right(), "{rows} rows: {report}");
    }
}

#[test]
fn memory_that_is_overwritten_too_early_is_found() {
    let options = ScheduleOptions { no_fusion: true, ..ScheduleOptions::default() };
    let graph = Graph::parse(
        "graph(%0: f32[64]) {
  %1: f32[64] = exp %0
  %2: f32[64] = neg %1
  %3: f32[64] = mul %1, %2
  return %3
}",
    )
    .unwrap();
    let backend = Spoilt::new("spoilt-memory", 1, trample);
    let program = Program::build(&graph, &layouts(&graph), backend, &options).unwrap();
    assert_eq!(program.steps().len(), 3);
    let report = verify_program(&graph, &program, &[random(&[64])]).unwrap();
    let clobbered = report.clobbered.as_ref().expect("the result of kernel 0 is another when kernel 2 reads it");
    assert_eq!((clobbered.writer, clobbered.reader), (0, 2), "{report}");
    assert!(!report.is_right() && report.first_wrong().is_none(), "{report}");
    assert!(report.fault().unwrap().contains("the memory plan is wrong"), "{report}");
}

#[test]
fn right_kernels_of_random_graphs_are_found_right() {
    let options = generate::Options::default();
    for seed in 7_000_000..7_000_150 {
        let graph = generate::graph(seed, &options);
        let host = generate::inputs(&graph, seed);
        let inputs: Vec<Tensor> = host
            .iter()
            .map(|t| Tensor::from_bytes(t.bytes(), t.shape().to_vec(), t.dtype(), Device::Cpu).unwrap())
            .collect();
        let compiled = compile_graph(&graph, &[]).unwrap();
        // Some graphs fail on their inputs: an index out of range.
        let Ok(report) = compiled.verify(&inputs) else { continue };
        assert!(report.is_right(), "seed {seed}: {report}\n{graph}");
    }
}

#[test]
fn wrong_inputs_are_errors() {
    let compiled = compile_graph(&network(), &[]).unwrap();
    assert!(compiled.verify(&[random(&[6, 40])]).is_err());
    let mut wrong = inputs();
    wrong[0] = random(&[6, 41]);
    assert!(compiled.verify(&wrong).is_err());
}

#[test]
fn the_passes_are_right() {
    let report = bisect_passes(&network(), &inputs()).unwrap();
    assert!(report.first_wrong().is_none(), "{report}");
}

#[test]
fn a_wrong_pass_is_named() {
    let graph = network();
    let wrong = Graph::parse(&graph.to_string().replace("%9: f32[6, 24] = sub", "%9: f32[6, 24] = add")).unwrap();
    let dtype = Graph::parse("graph(%0: f32[6, 40], %1: f32[40, 24], %2: f32[1, 24]) { return %0 }").unwrap();
    let stage = |pass: &str, graph: &Graph| Stage { pass: pass.to_owned(), graph: graph.clone() };
    let stages = [stage("tidy", &graph), stage("spoil", &wrong), stage("after", &graph)];
    let report = bisect_stages(&graph, &stages, &inputs()).unwrap();
    assert_eq!(report.first_wrong().map(|p| p.pass.as_str()), Some("spoil"), "{report}");
    assert_eq!(report.passes.len(), 2, "what comes after does not matter");
    assert!(report.around.is_some() && report.to_string().contains("pass spoil is the first that changes the answer"));
    let report = bisect_stages(&graph, &[stage("retype", &dtype)], &inputs()).unwrap();
    assert!(report.to_string().contains("instead of"), "{report}");
}

#[test]
fn a_view_of_another_layout_is_checked_where_it_lies() {
    let graph = Graph::parse("graph(%0: f32[4, 6]) { %1: f32[4, 6] = exp %0 return %1 }").unwrap();
    let x = random(&[6, 4]).transpose(0, 1).unwrap();
    let compiled = CompiledGraph::new(&graph, &[InputLayout::from(&x)], &CompileOptions::default()).unwrap();
    let report = compiled.verify(&[x]).unwrap();
    assert!(report.is_right(), "{report}");
    let views: &[InputView<'_>] = &[];
    assert!(compiled.program().inspect(views).is_err());
}

/// Weights that change without a new version are packed as they were: the program that runs computes with the old ones, which a check
/// of any other program would not find.
#[test]
fn the_frozen_program_that_runs_is_the_one_that_is_checked() {
    let plain = "graph(%0: f32[8, 64], %1: f32[64, 32]) {
       %2: f32[8, 32] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
       return %2
     }";
    let prepared = "graph(%0: f32[8, 64], %1: f32[64, 32]) {
       %2: f32[64, 32] = exp %1
       %3: f32[8, 32] = dot %0, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
       return %3
     }";
    for text in [plain, prepared] {
        let graph = Graph::parse(text).unwrap();
        let options = FreezeOptions { pack: PackWeights::Always, ..FreezeOptions::default() };
        let frozen = FrozenGraph::new(&graph, &[], &[false, true], &options).unwrap();
        assert!(frozen.memory().packed_bytes > 0, "{text}");
        let (x, weight) = (random(&[8, 64]), random(&[64, 32]));
        let other = weight.mul(2.0).unwrap();
        let report = frozen.verify(&[&x, &weight], &[1]).unwrap();
        assert!(report.is_right() && !report.kernels.is_empty(), "{report}");
        let stale = frozen.verify(&[&x, &other], &[1]).unwrap();
        assert!(!stale.is_right(), "{stale}");
        let fresh = frozen.verify(&[&x, &other], &[2]).unwrap();
        assert!(fresh.is_right(), "{fresh}");
    }
}
