//! A device whose launches return before they are done: results, errors and times are those of the launches, not of the queue.

use kiln_ir::{DType, Graph};
use kiln_kernels::{InputLayout, ScheduleOptions};
use kiln_runtime::{Backend, Buffer, Device, InputView, Produced, Program, QueuedBackend, ReferenceBackend};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const DELAY: Duration = Duration::from_millis(20);

/// A device of its own for each test: compiled code belongs to one.
fn backend() -> Arc<QueuedBackend> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let device = Device::Cuda(NEXT.fetch_add(1, Ordering::Relaxed));
    Arc::new(QueuedBackend::new(Arc::new(ReferenceBackend), device, DELAY))
}

fn program(text: &str, backend: &Arc<QueuedBackend>) -> Program {
    let graph = Graph::parse(text).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    Program::build(&graph, &layouts, backend.clone(), &ScheduleOptions::default()).unwrap()
}

fn floats(buffer: &Buffer, values: [f32; 2]) {
    buffer.write_from_host(0, &values.map(f32::to_le_bytes).concat()).unwrap();
}

fn view<'a>(buffer: &'a Buffer, dtype: DType, shape: &'a [usize]) -> InputView<'a> {
    InputView { buffer, dtype, shape, strides: &[1], offset: 0 }
}

const EXP: &str = "graph(%0: f32[2]) {\n  %1: f32[2] = exp %0\n  return %1\n}";

fn output(produced: &[Produced]) -> &Buffer {
    let Produced::Buffer(output) = &produced[0] else { panic!("an output") };
    output
}

#[test]
fn a_run_returns_before_its_launch_is_done_and_a_read_waits() {
    let backend = backend();
    let program = program(EXP, &backend);
    let input = backend.allocate(8).unwrap();
    floats(&input, [0.0, 1.0]);
    let start = Instant::now();
    let produced = program.run(&[view(&input, DType::F32, &[2])]).unwrap();
    assert!(start.elapsed() < DELAY, "the run waited");
    let mut bytes = [0; 4];
    output(&produced).read_to_host(0, &mut bytes).unwrap();
    assert!(start.elapsed() >= DELAY, "the read did not wait");
    assert_eq!(f32::from_le_bytes(bytes), 1.0);
}

/// Whatever is queued later, what was asked for is what was there.
#[test]
fn reads_are_in_the_order_of_the_queue() {
    let backend = backend();
    let program = program(EXP, &backend);
    let input = backend.allocate(8).unwrap();
    let mut pending = Vec::new();
    let mut produced = Vec::new();
    for value in [0.0, 1.0, 2.0] {
        floats(&input, [value, 0.0]);
        program.replay(&[view(&input, DType::F32, &[2])], &mut produced).unwrap();
        pending.push(output(&produced).read_later(0, 4).unwrap());
    }
    assert_eq!(backend.waits(), 0);
    for (read, value) in pending.into_iter().zip([0f32, 1.0, 2.0]) {
        let bytes: [u8; 4] = read.wait().unwrap().try_into().unwrap();
        assert!((f32::from_le_bytes(bytes) - value.exp()).abs() < 1e-5, "{value}");
    }
    assert_eq!(backend.waits(), 0, "a read waits for itself only");
}

#[test]
fn times_are_those_of_launches() {
    let backend = backend();
    let program = program(EXP, &backend);
    let input = backend.allocate(8).unwrap();
    floats(&input, [0.0, 1.0]);
    let views = [view(&input, DType::F32, &[2])];
    let mut stopped = program.inspect(&views).unwrap();
    assert!(stopped.launch(0).unwrap() >= DELAY);
    assert!(stopped.launch_all().unwrap() >= DELAY);
}

#[test]
fn an_index_out_of_range_names_its_op_at_the_next_read() {
    let backend = backend();
    let gather = "graph(%0: f32[2], %1: i64[2]) {\n  %2: f32[2] = gather %0, %1 {axis=0}\n  return %2\n}";
    let program = program(gather, &backend);
    let (values, indices) = (backend.allocate(8).unwrap(), backend.allocate(16).unwrap());
    floats(&values, [0.0, 1.0]);
    indices.write_from_host(0, &[0i64, 7].map(i64::to_le_bytes).concat()).unwrap();
    let views = [view(&values, DType::F32, &[2]), view(&indices, DType::I64, &[2])];
    let produced = program.run(&views).unwrap();
    let error = output(&produced).read_later(0, 4).unwrap().wait().unwrap_err().to_string();
    assert!(error.contains("gather") && error.contains('7'), "{error}");
    backend.synchronize().expect("an error is reported once");
}
