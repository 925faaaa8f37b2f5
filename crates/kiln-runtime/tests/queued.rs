//! A device whose launches return before they are done: results, errors and times are those of the launches, not of the queue.

use kiln_ir::{DType, Graph};
use kiln_kernels::{InputLayout, ScheduleOptions};
use kiln_runtime::{Backend, Buffer, Device, InputView, Produced, Program, QueuedBackend, RawInput, ReferenceBackend};
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
    assert_eq!(backend.waits(), 0, "the run waited");
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

/// Numbers given by value: one copy a run for all of them, none where they are the same again, and runs in flight have their own.
#[test]
fn values_of_a_run_are_one_copy() {
    let backend = backend();
    let program = program(
        "graph(%0: f32[2], %1: f32[], %2: f32[]) {
           %3: f32[1] = reshape %1
           %4: f32[2] = expand %3
           %5: f32[1] = reshape %2
           %6: f32[2] = expand %5
           %7: f32[2] = mul %0, %4
           %8: f32[2] = add %7, %6
           return %8
         }",
        &backend,
    );
    let input = backend.allocate(8).unwrap();
    floats(&input, [1.0, 10.0]);
    let number = |value: f32| Buffer::by_value(&value.to_le_bytes(), backend.device()).unwrap();
    fn scalar(buffer: &Buffer) -> InputView<'_> {
        InputView { buffer, dtype: DType::F32, shape: &[], strides: &[], offset: 0 }
    }
    let before = backend.copies();
    let mut results = Vec::new();
    for run in 0..6 {
        // The last two runs have the same numbers.
        let (factor, term) = (number(run.min(4) as f32), number(0.5));
        let mut produced = Vec::new();
        program.replay(&[view(&input, DType::F32, &[2]), scalar(&factor), scalar(&term)], &mut produced).unwrap();
        results.push(produced);
    }
    assert_eq!(backend.copies() - before, 5);
    for (run, produced) in results.iter().enumerate() {
        let mut bytes = [0; 8];
        output(produced).read_to_host(0, &mut bytes).unwrap();
        let found = [0, 4].map(|at| f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
        let factor = run.min(4) as f32;
        assert_eq!(found, [factor + 0.5, 10.0 * factor + 0.5], "run {run}");
    }
    // What stops between launches has them in memory.
    let (factor, term) = (number(3.0), number(1.0));
    let inputs = [view(&input, DType::F32, &[2]), scalar(&factor), scalar(&term)];
    program.inspect(&inputs).unwrap();
    program.tune(&inputs, Duration::ZERO).unwrap();
    // A number of another device is refused, and none can be written.
    let other = Buffer::by_value(&[0; 4], Device::Cpu).unwrap();
    assert!(program.run(&[view(&input, DType::F32, &[2]), scalar(&other), scalar(&term)]).is_err());
    assert!(factor.write_from_host(0, &[0; 4]).is_err());
    let target = backend.allocate(4).unwrap();
    factor.copy_to(0, &target, 4).unwrap();
    let mut bytes = [0; 4];
    target.read_to_host(0, &mut bytes).unwrap();
    assert_eq!(f32::from_le_bytes(bytes), 3.0);
    assert_eq!(factor.read_later(1, 2).unwrap().wait().unwrap(), 3f32.to_le_bytes()[1..3]);
}

/// A number of the host is copied when the call is made, in the order of the queue.
#[test]
fn numbers_of_the_host_are_inputs_of_calls_on_addresses() {
    let backend = backend();
    let text = "graph(%0: f32[2], %1: f32[1]) {\n  %2: f32[2] = expand %1\n  %3: f32[2] = mul %0, %2\n  return %3\n}";
    let program = program(text, &backend);
    let input = backend.allocate(8).unwrap();
    floats(&input, [1.0, 2.0]);
    let outputs = [backend.allocate(8).unwrap(), backend.allocate(8).unwrap()];
    for (output, mut factor) in outputs.iter().zip([3f32, 5.0]) {
        let raw = |ptr, shape, strides, is_value| RawInput { ptr, dtype: DType::F32, shape, strides, is_value };
        let given = [raw(input.ptr(), &[2], &[1], false), raw((&raw mut factor).cast(), &[1], &[1], true)];
        // SAFETY: memory of the device with as many elements, and a number.
        unsafe { program.call_raw(&[], &given, &[output.ptr()]) }.unwrap();
    }
    assert_eq!(backend.waits(), 0);
    for (output, want) in outputs.iter().zip([6f32, 10.0]) {
        let mut bytes = [0; 4];
        output.read_to_host(4, &mut bytes).unwrap();
        assert_eq!(f32::from_le_bytes(bytes), want);
    }
}
