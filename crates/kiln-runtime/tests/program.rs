//! Programs on a backend whose kernels only mark what they write: what is checked here is memory, sizes and caching.

use kiln_ir::{DType, Graph};
use kiln_kernels::kernel::{Access, Kernel};
use kiln_kernels::{InputLayout, ScheduleOptions};
use kiln_runtime::{
    Backend, Buffer, Device, Error, Executable, HostMemory, InputView, LaunchError, Produced, Program, RawBuffer,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Fills every written buffer with a number that is not zero.
struct Marker {
    target: &'static str,
    compiled: AtomicUsize,
    allocated: AtomicUsize,
    launches: Arc<AtomicUsize>,
    fail: Option<LaunchError>,
}

struct Marks {
    written: Vec<usize>,
    buffers: usize,
    launches: Arc<AtomicUsize>,
    fail: Option<LaunchError>,
}

impl Marker {
    fn new(target: &'static str) -> Arc<Marker> {
        Arc::new(Marker {
            target,
            compiled: AtomicUsize::new(0),
            allocated: AtomicUsize::new(0),
            launches: Arc::default(),
            fail: None,
        })
    }
}

impl Backend for Marker {
    fn device(&self) -> Device {
        Device::Cpu
    }
    fn target(&self) -> String {
        self.target.to_owned()
    }
    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        self.allocated.fetch_add(1, Ordering::Relaxed);
        HostMemory::allocate(bytes)
    }
    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let written = (0..kernel.buffers.len()).filter(|&i| kernel.buffers[i].access != Access::Read).collect();
        let (launches, fail) = (self.launches.clone(), self.fail.clone());
        Ok(Arc::new(Marks { written, buffers: kernel.buffers.len(), launches, fail }))
    }
}

impl Executable for Marks {
    unsafe fn launch(&self, buffers: &[RawBuffer], _sizes: &[i64]) -> Result<(), LaunchError> {
        assert_eq!(buffers.len(), self.buffers);
        let mark = self.launches.fetch_add(1, Ordering::Relaxed) as u8 | 1;
        for &i in &self.written {
            // SAFETY: the launch's contract: the buffer is valid and not shared.
            unsafe { std::ptr::write_bytes(buffers[i].ptr, mark, buffers[i].bytes) }
        }
        match &self.fail {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }
}

fn build(backend: Arc<Marker>, text: &str) -> Program {
    let graph = Graph::parse(text).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    Program::build(&graph, &layouts, backend, &ScheduleOptions::default()).unwrap()
}

fn view<'a>(buffer: &'a Buffer, shape: &'a [usize], strides: &'a [isize]) -> InputView<'a> {
    InputView { buffer, dtype: DType::F32, shape, strides, offset: 0 }
}

const EXP: &str = "graph(%0: f32[n, 4]) {\n  %1: f32[n, 4] = exp %0\n  return %1\n}";

#[test]
fn sizes_are_taken_from_the_inputs() {
    let backend = Marker::new("marker-sizes");
    let program = build(backend.clone(), EXP);
    for n in [3, 1, 0, 7, 3] {
        let input = HostMemory::allocate(n * 16).unwrap();
        let shape = [n, 4];
        let views = [view(&input, &shape, &[4, 1])];
        let produced = program.run(&views).unwrap();
        let [Produced::Buffer(output)] = &produced[..] else { panic!("one new buffer") };
        assert_eq!(output.bytes_len(), n * 16);
        assert_eq!(program.output_shapes(&views).unwrap(), [vec![n, 4]]);
    }
    assert_eq!(backend.compiled.load(Ordering::Relaxed), 1);
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let program = build(Marker::new("marker-refuse"), EXP);
    let input = HostMemory::allocate(48).unwrap();
    assert!(matches!(program.run(&[]), Err(Error::InputCount { expected: 1, got: 0 })));
    let run = |v: InputView<'_>| program.run(&[v]).unwrap_err();
    assert!(matches!(run(view(&input, &[3, 5], &[5, 1])), Error::InputType { input: 0, .. }));
    assert!(matches!(run(view(&input, &[12], &[1])), Error::InputType { .. }));
    let wrong = InputView { dtype: DType::I32, ..view(&input, &[3, 4], &[4, 1]) };
    assert!(matches!(run(wrong), Error::InputType { dtype: DType::I32, .. }));
    assert!(matches!(run(view(&input, &[3, 4], &[1, 3])), Error::InputStrides { .. }));
    assert!(matches!(run(view(&input, &[4, 4], &[4, 1])), Error::InputOutsideBuffer { input: 0, bytes: 48 }));
    let beyond = InputView { offset: usize::MAX, ..view(&input, &[3, 4], &[4, 1]) };
    assert!(matches!(run(beyond), Error::InputOutsideBuffer { .. }));
    let text = run(view(&input, &[3, 5], &[5, 1])).to_string();
    assert_eq!(text, "input 0 is f32[3, 5], the program was built for f32[n, 4]");
}

#[test]
fn an_axis_of_one_may_have_any_stride() {
    let program = build(Marker::new("marker-one"), EXP);
    let input = HostMemory::allocate(16).unwrap();
    assert!(program.run(&[view(&input, &[1, 4], &[999, 1])]).is_ok());
}

#[test]
fn outputs_may_be_given() {
    let program = build(Marker::new("marker-given"), EXP);
    let input = HostMemory::allocate(48).unwrap();
    let given = HostMemory::allocate(48).unwrap();
    let views = [view(&input, &[3, 4], &[4, 1])];
    let produced = program.run_into(&views, &[Some(given.clone())]).unwrap();
    assert!(matches!(&produced[..], [Produced::Buffer(b)] if b.same(&given)));
    let small = HostMemory::allocate(47).unwrap();
    let error = program.run_into(&views, &[Some(small)]).unwrap_err();
    assert!(matches!(error, Error::OutputTooSmall { output: 0, needed: 48, bytes: 47 }));
}

#[test]
fn equal_kernels_compile_once_and_runs_allocate_only_outputs() {
    let backend = Marker::new("marker-cache");
    let text = "graph(%0: f32[64, 64], %1: f32[64, 64]) {
  %2: f32[64, 64] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %3: f32[64, 64] = dot %2, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  return %3
}";
    let program = build(backend.clone(), text);
    assert_eq!(program.steps().len(), 2);
    assert_eq!(backend.compiled.load(Ordering::Relaxed), 1);
    let input = HostMemory::allocate(64 * 64 * 4).unwrap();
    let views = [view(&input, &[64, 64], &[64, 1]); 2];
    program.run(&views).unwrap();
    let before = backend.allocated.load(Ordering::Relaxed);
    for _ in 0..5 {
        program.run(&views).unwrap();
    }
    assert_eq!(backend.allocated.load(Ordering::Relaxed) - before, 5);
    build(backend.clone(), text);
    assert_eq!(backend.compiled.load(Ordering::Relaxed), 1);
}

#[test]
fn a_failing_launch_names_the_line() {
    let fail = Some(LaunchError::IndexOutOfRange { index: 9, size: 4 });
    let backend = Arc::new(Marker { fail, ..Arc::into_inner(Marker::new("marker-fail")).unwrap() });
    let text = "graph(%0: f32[4], %1: i64[2]) {
  %2: f32[2] = gather %0, %1 {axis=0}   @ src/model.rs:41
  return %2
}";
    let program = build(backend, text);
    let (x, index) = (HostMemory::allocate(16).unwrap(), HostMemory::allocate(16).unwrap());
    let index = InputView { dtype: DType::I64, ..view(&index, &[2], &[1]) };
    let error = program.run(&[view(&x, &[4], &[1]), index]).unwrap_err();
    assert_eq!(error.to_string(), "gather: index 9 is out of range for an axis of 4, at src/model.rs:41");
}

#[test]
fn updates_need_permission() {
    let text = "graph(%0: f32[4]) {\n  %1: f32[4] = neg %0\n  return %1 -> input 0\n}";
    let program = build(Marker::new("marker-update"), text);
    assert_eq!(program.updates(), [0]);
    let input = HostMemory::allocate(16).unwrap();
    let views = [view(&input, &[4], &[1])];
    assert!(matches!(program.run(&views), Err(Error::UpdatesInput { input: 0 })));
    // SAFETY: the buffer is not shared.
    let produced = unsafe { program.run_updating(&views, &[]) }.unwrap();
    assert!(matches!(produced[..], [Produced::Input(0)]));
    assert_ne!(input.host_bytes().unwrap()[0], 0);
}

#[test]
fn many_threads_run_one_program() {
    let program = build(Marker::new("marker-threads"), EXP);
    std::thread::scope(|scope| {
        for thread in 0..8usize {
            let program = &program;
            scope.spawn(move || {
                for n in (0..50).map(|i| (i + thread) % 5) {
                    let input = HostMemory::allocate(n * 16).unwrap();
                    let shape = [n, 4];
                    let produced = program.run(&[view(&input, &shape, &[4, 1])]).unwrap();
                    assert!(matches!(&produced[..], [Produced::Buffer(b)] if b.bytes_len() == n * 16));
                }
            });
        }
    });
}
