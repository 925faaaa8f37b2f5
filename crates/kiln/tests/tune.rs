//! Tuning: every way to run a kernel gives the same result, the faster one is taken, and what was measured is remembered.

use kiln::runtime::disk::{self, Store};
use kiln::runtime::event::{self, Category};
use kiln::runtime::{
    Backend, Buffer, Error, Executable, InputView, Keep, LaunchError, Produced, Program, RawBuffer, TunedFrom, Variant,
    tune,
};
use kiln::{Device, Tensor};
use kiln_cpu::features::Isa;
use kiln_cpu::{CpuBackend, pool};
use kiln_ir::{Graph, HostTensor, NodeId};
use kiln_kernels::{InputLayout, Kernel};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Graphs whose results are well conditioned, with the kernels that models have.
const GRAPHS: &[&str] = &[
    "graph(%0: f32[37, 700], %1: f32[37, 700]) {
  %2: f32[37, 700] = mul %0, %1
  %3: f32[37, 700] = tanh %2
  return %3
}",
    "graph(%0: bf16[9, 1031]) {
  %1: bf16[9, 1031] = exp %0
  return %1
}",
    "graph(%0: f32[5, 9000]) {
  %1: f32[5, 1] = reduce_max %0 {axes=[1]}
  %2: f32[5, 9000] = expand %1
  %3: f32[5, 9000] = sub %0, %2
  %4: f32[5, 9000] = exp %3
  %5: f32[5, 1] = reduce_sum %4 {axes=[1]}
  %6: f32[5, 9000] = expand %5
  %7: f32[5, 9000] = div %4, %6
  return %7
}",
    "graph(%0: f32[3, 70001]) {
  %1: f32[3, 1] = reduce_sum %0 {axes=[1]}
  %2: i64[3, 1] = argmax %0 {axis=1}
  return %1, %2
}",
    "graph(%0: f32[600, 130]) {
  %1: f32[1, 130] = reduce_sum %0 {axes=[0]}
  return %1
}",
    "graph(%0: f32[1, 600], %1: f32[70, 600]) {
  %2: f32[1, 70] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  return %2
}",
    "graph(%0: f32[33, 600], %1: f32[600, 190]) {
  %2: f32[33, 190] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %3: f32[33, 190] = tanh %2
  return %3
}",
    "graph(%0: bf16[120, 300], %1: bf16[97, 300]) {
  %2: bf16[120, 97] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  return %2
}",
    "graph(%0: f32[6, 20, 300], %1: f32[6, 300, 40]) {
  %2: f32[6, 20, 40] = dot %0, %1 {lhs_batch=[0], rhs_batch=[0], lhs_contract=[2], rhs_contract=[1]}
  return %2
}",
    "graph(%0: f64[40, 290], %1: f64[290, 50]) {
  %2: f64[40, 50] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  return %2
}",
    "graph(%0: f32[2, 3, 70, 32], %1: f32[2, 3, 600, 32], %2: f32[2, 3, 600, 24]) {
  %3: f32[2, 3, 70, 24] = attention %0, %1, %2 {scale=0.2, causal=true}
  return %3
}",
    "graph(%0: f32[1, 2, 1, 64], %1: f32[1, 2, 1500, 64], %2: f32[1, 2, 1500, 64]) {
  %3: f32[1, 2, 1, 64] = attention %0, %1, %2 {scale=0.2, causal=false}
  return %3
}",
];

fn inputs(graph: &Graph) -> Vec<Tensor> {
    let tensor = |(number, &id): (usize, &NodeId)| {
        let ty = graph.ty(id);
        let shape = ty.fixed_shape().unwrap();
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|n| ((n + number) * 7919 % 2003) as f64 / 1001.5 - 1.0).collect();
        let host = HostTensor::from_f64(ty.dtype, &shape, &values).unwrap();
        Tensor::from_bytes(host.bytes(), &shape[..], ty.dtype, Device::Cpu).unwrap()
    };
    graph.inputs().iter().enumerate().map(tensor).collect()
}

fn views(inputs: &[Tensor]) -> Vec<InputView<'_>> {
    let view = |t| {
        let t: &Tensor = t;
        InputView { buffer: t.buffer(), dtype: t.dtype(), shape: t.shape(), strides: t.strides(), offset: 0 }
    };
    inputs.iter().map(view).collect()
}

fn build(graph: &Graph, backend: Arc<dyn Backend>) -> Program {
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    Program::build(graph, &layouts, backend, &Default::default()).unwrap()
}

/// The outputs as numbers.
fn run(program: &Program, inputs: &[Tensor]) -> Vec<Vec<f64>> {
    let produced = program.run(&views(inputs)).unwrap();
    let numbers = |(produced, ty): (Produced, &kiln_ir::TensorType)| {
        let Produced::Buffer(buffer) = produced else { panic!("an output of its own") };
        let shape = ty.fixed_shape().unwrap();
        HostTensor::from_bytes(ty.dtype, &shape, buffer.host_bytes().unwrap().to_vec()).unwrap().to_f64()
    };
    produced.into_iter().zip(program.output_types()).map(numbers).collect()
}

fn close(got: &[Vec<f64>], want: &[Vec<f64>], short: bool) -> bool {
    let tolerance = if short { 1e-2 } else { 2e-5 };
    let scale = |list: &[f64]| list.iter().fold(1e-6f64, |m, v| m.max(v.abs()));
    got.iter().zip(want).all(|(got, want)| {
        let scale = scale(want);
        got.iter().zip(want).all(|(g, w)| (g - w).abs() <= tolerance * scale)
    })
}

/// The CPU, which runs every kernel in one of its variants.
struct Forced {
    cpu: CpuBackend,
    name: String,
    /// Which variant, and of that which.
    pick: (usize, Option<usize>),
    picked: Mutex<Option<Variant>>,
}

impl Backend for Forced {
    fn device(&self) -> Device {
        Device::Cpu
    }
    fn target(&self) -> String {
        self.name.clone()
    }
    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        self.cpu.allocate(bytes)
    }
    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        let sizes = vec![0; kernel.sizes.len()];
        let mut variant = Variant::default();
        for pick in [Some(self.pick.0), self.pick.1].into_iter().flatten() {
            match self.cpu.variants(kernel, &variant, &sizes).into_iter().nth(pick) {
                Some(next) => variant = next,
                None => return self.cpu.compile(kernel),
            }
        }
        *self.picked.lock().unwrap() = Some(variant.clone());
        self.cpu.compile_variant(kernel, &variant, Keep::Process)
    }
}

/// The portable executor has few choices, and one thread has fewer than several.
fn has_choices() -> bool {
    Isa::get() != Isa::Portable && pool::threads() > 1
}

#[test]
fn every_variant_gives_the_same() {
    let mut compared = 0;
    for (number, text) in GRAPHS.iter().enumerate() {
        let graph = kiln_passes::run(Graph::parse(text).unwrap()).unwrap();
        let inputs = inputs(&graph);
        let want = run(&build(&graph, Arc::new(CpuBackend::new())), &inputs);
        let short = text.contains("bf16");
        let mut each = |pick: (usize, Option<usize>)| {
            let name = format!("forced {number} {pick:?}");
            let forced = Arc::new(Forced { cpu: CpuBackend::new(), name, pick, picked: Mutex::default() });
            let program = build(&graph, forced.clone());
            let Some(picked) = forced.picked.lock().unwrap().clone() else { return false };
            for _ in 0..2 {
                assert!(close(&run(&program, &inputs), &want, short), "{picked}\n{graph}");
            }
            compared += 1;
            true
        };
        let mut first = 0;
        while each((first, None)) {
            let mut second = 0;
            while each((first, Some(second))) {
                second += 1;
            }
            first += 1;
        }
        assert!(first > 0 || !has_choices(), "no variant of\n{graph}");
    }
    assert!(compared > 300 || !has_choices(), "only {compared} variants");
}

/// A backend with one kernel that has a slow default and a fast variant.
struct Slow {
    name: &'static str,
    launched: Arc<AtomicUsize>,
    machine: Mutex<String>,
}

struct Waiting {
    micros: u64,
    inner: Arc<dyn Executable>,
    launched: Arc<AtomicUsize>,
}

impl Executable for Waiting {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        self.launched.fetch_add(1, Ordering::Relaxed);
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_micros(self.micros) {
            std::hint::spin_loop();
        }
        // SAFETY: the same promise.
        unsafe { self.inner.launch(buffers, sizes) }
    }
}

impl Backend for Slow {
    fn device(&self) -> Device {
        Device::Cpu
    }
    fn target(&self) -> String {
        self.name.to_owned()
    }
    fn machine(&self) -> String {
        self.machine.lock().unwrap().clone()
    }
    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        CpuBackend::new().allocate(bytes)
    }
    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        self.compile_variant(kernel, &Variant::default(), Keep::Process)
    }
    fn variants(&self, _: &Kernel, now: &Variant, _: &[i64]) -> Vec<Variant> {
        ["500", "4000", "none"].map(|micros| now.choosing(micros)).into()
    }
    fn compile_variant(&self, kernel: &Kernel, variant: &Variant, _: Keep) -> Result<Arc<dyn Executable>, Error> {
        let micros = match variant.choices.as_str() {
            "" => 2000,
            text => text
                .parse()
                .map_err(|_| Error::Compile { target: self.target(), reason: format!("no variant {text}") })?,
        };
        let (inner, launched) = (CpuBackend::new().compile(kernel)?, self.launched.clone());
        Ok(Arc::new(Waiting { micros, inner, launched }))
    }
}

const ADD: &str = "graph(%0: f32[8], %1: f32[8]) {
  %2: f32[8] = add %0, %1
  return %2
}";

/// One test: the store and what was measured are the process's.
#[test]
fn the_fastest_is_taken_and_remembered() {
    let folder = std::env::temp_dir().join(format!("kiln-tune-{}", std::process::id()));
    disk::set_store(Some(Store::open(&folder, disk::DEFAULT_MOST_BYTES).unwrap()));
    let graph = Graph::parse(ADD).unwrap();
    let inputs = inputs(&graph);
    let want = run(&build(&graph, Arc::new(CpuBackend::new())), &inputs);
    let launched = Arc::new(AtomicUsize::new(0));
    let backend =
        Arc::new(Slow { name: "slow", launched: launched.clone(), machine: Mutex::new("a machine".to_owned()) });
    let heard = Arc::new(Mutex::new(Vec::new()));
    let into = heard.clone();
    let listening = event::listen(&[Category::Perf], move |event| into.lock().unwrap().push(event.to_string()));

    // Measured.
    let program = build(&graph, backend.clone());
    let report = program.tune(&views(&inputs), Duration::from_secs(5)).unwrap();
    let [kernel] = &report.kernels[..] else { panic!("{report:?}") };
    assert_eq!((kernel.chosen.choices.as_str(), kernel.from, kernel.changed), ("500", TunedFrom::Measured, true));
    assert_eq!(kernel.tried, 2, "what cannot be compiled is not tried");
    assert!(kernel.gain() > 1.5 && kernel.gain() < 6.0, "{report:?}");
    assert!(!report.out_of_time && report.before() > report.after());
    assert_eq!(program.variants(&views(&inputs)).unwrap()[0].choices, "500");
    assert!(close(&run(&program, &inputs), &want, false));
    drop(listening);
    let heard = heard.lock().unwrap();
    assert!(
        heard.iter().any(|line| line.starts_with("tuned add") && line.contains("as fast with 500, of 2 tried")),
        "{heard:?}"
    );
    assert!(heard.iter().any(|line| line.starts_with("tuned 1 of 1 kernels")), "{heard:?}");

    // Known to the process, then to the disk alone.
    let before = launched.load(Ordering::Relaxed);
    for from in [TunedFrom::Memory, TunedFrom::Disk] {
        let program = build(&graph, backend.clone());
        let report = program.tune(&views(&inputs), Duration::from_secs(5)).unwrap();
        assert_eq!((report.kernels[0].from, report.kernels[0].chosen.choices.as_str()), (from, "500"));
        assert_eq!(program.variants(&views(&inputs)).unwrap()[0].choices, "500");
        tune::forget();
    }
    assert_eq!(launched.load(Ordering::Relaxed), before, "nothing was launched");

    // Another machine measures anew; without time nothing is changed, nor kept.
    *backend.machine.lock().unwrap() = "another".to_owned();
    let program = build(&graph, backend.clone());
    let report = program.tune(&views(&inputs), Duration::ZERO).unwrap();
    assert!(report.out_of_time);
    assert_eq!((report.kernels[0].from, report.kernels[0].changed), (TunedFrom::Undecided, false));
    assert!(program.variants(&views(&inputs)).unwrap()[0].is_default());
    let report = program.tune(&views(&inputs), Duration::from_secs(5)).unwrap();
    assert_eq!(report.kernels[0].from, TunedFrom::Measured);
    disk::set_store(None);
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn each_size_is_tuned_for_itself() {
    let text = "graph(%0: f32[b, 64], %1: f32[64, 64]) {
  %2: f32[b, 64] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  return %2
}";
    let graph = Graph::parse(text).unwrap();
    let launched = Arc::new(AtomicUsize::new(0));
    let backend = Arc::new(Slow { name: "slow by size", launched, machine: Mutex::default() });
    let program = build(&graph, backend);
    let sized = |rows: usize| inputs(&graph.specialise(&|_| Some(rows.into())).unwrap());
    let (few, many) = (sized(3), sized(40));
    let choices = |inputs: &[Tensor]| program.variants(&views(inputs)).unwrap()[0].choices.clone();
    std::thread::scope(|scope| {
        // Another thread runs the program all the while.
        let running = scope.spawn(|| (0..200).for_each(|_| drop(program.run(&views(&many)).unwrap())));
        program.tune(&views(&few), Duration::from_secs(5)).unwrap();
        running.join().unwrap();
    });
    assert_eq!((choices(&few).as_str(), choices(&many).as_str()), ("500", ""));
    program.tune(&views(&many), Duration::from_secs(5)).unwrap();
    assert_eq!((choices(&few).as_str(), choices(&many).as_str()), ("500", "500"));
    let time = |inputs: &[Tensor]| {
        let views = views(inputs);
        let once = || {
            let start = std::time::Instant::now();
            program.run(&views).unwrap();
            start.elapsed()
        };
        (0..20).map(|_| once()).min().unwrap()
    };
    assert!(time(&few) < Duration::from_micros(1500) && time(&many) < Duration::from_micros(1500));
}

#[test]
fn whole_programs_are_tuned() {
    let text = "graph(%0: f32[40, 256], %1: f32[300, 256], %2: f32[256, 300]) {
  %3: f32[40, 300] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %4: f32[40, 300] = tanh %3
  %5: f32[40, 256] = dot %4, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %6: f32[40, 1] = reduce_sum %5 {axes=[1]}
  return %6
}";
    let graph = Graph::parse(text).unwrap();
    let inputs = inputs(&graph);
    let compiled = kiln::compile_graph(&graph, &[]).unwrap();
    let want = run(compiled.program(), &inputs);
    let tensors: Vec<&Tensor> = inputs.iter().collect();
    let report = compiled.tune(&tensors, Duration::from_secs(10)).unwrap();
    assert!(report.kernels.len() == 3 || !has_choices(), "{report:?}");
    assert!(report.after() <= report.before());
    assert!(close(&run(compiled.program(), &inputs), &want, false));
}
