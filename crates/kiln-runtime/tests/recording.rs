//! Programs on a backend that records launches: they are recorded once, replayed with the arguments of each run, and recorded again when
//! the recording does not fit any more.

use kiln_ir::{DType, Graph};
use kiln_kernels::kernel::Kernel;
use kiln_kernels::{InputLayout, ScheduleOptions};
use kiln_runtime::{
    Backend, Buffer, Device, Error, Executable, InputView, Launch, LaunchError, Memory, Produced, Program, RawBuffer,
    RawInput, Recording, ReferenceBackend,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts of what a backend did.
#[derive(Default)]
struct Counts {
    launched: AtomicUsize,
    recorded: AtomicUsize,
    replayed: AtomicUsize,
}

/// The reference executor, with recordings.
#[derive(Default)]
struct Recorder {
    counts: Arc<Counts>,
    /// Whether somebody captures what is launched.
    captured: Arc<AtomicBool>,
}

struct Counting {
    inner: Arc<dyn Executable>,
    counts: Arc<Counts>,
}

struct Recorded {
    /// The codes of the launches, how many buffers each has, and its sizes.
    launches: Vec<(Arc<dyn Executable>, usize, Vec<i64>)>,
    /// The first address that it was made for: an odd multiple of 64 needs another recording than an even one.
    parity: usize,
    counts: Arc<Counts>,
}

fn parity(arguments: &[RawBuffer]) -> usize {
    arguments[0].ptr.addr() / 64 % 2
}

impl Backend for Recorder {
    fn device(&self) -> Device {
        Device::Cpu
    }
    fn target(&self) -> String {
        "recorder".into()
    }
    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        ReferenceBackend.allocate(bytes)
    }
    fn readable_memory(&self) -> Option<&'static dyn Memory> {
        ReferenceBackend.readable_memory()
    }
    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        Ok(Arc::new(Counting { inner: ReferenceBackend.compile(kernel)?, counts: self.counts.clone() }))
    }
    fn is_captured(&self) -> bool {
        self.captured.load(Ordering::Relaxed)
    }
    fn record(&self, launches: &[Launch<'_>]) -> Result<Option<Box<dyn Recording>>, Error> {
        self.counts.recorded.fetch_add(1, Ordering::Relaxed);
        let of = |launch: &Launch<'_>| {
            let code = launch.code.as_any().and_then(|code| code.downcast_ref::<Counting>()).expect("its own code");
            (code.inner.clone(), launch.arguments.len(), launch.sizes.to_vec())
        };
        let parity = parity(launches[0].arguments);
        let launches = launches.iter().map(of).collect();
        Ok(Some(Box::new(Recorded { launches, parity, counts: self.counts.clone() })))
    }
}

impl Executable for Counting {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        self.counts.launched.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.inner.launch(buffers, sizes) }
    }
    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}

impl Recording for Recorded {
    unsafe fn replay(&mut self, mut arguments: &[RawBuffer]) -> Result<bool, LaunchError> {
        if parity(arguments) != self.parity {
            return Ok(false);
        }
        self.counts.replayed.fetch_add(1, Ordering::Relaxed);
        for (code, count, sizes) in &self.launches {
            let (own, others) = arguments.split_at(*count);
            arguments = others;
            // SAFETY: the caller's promise.
            unsafe { code.launch(own, sizes) }?;
        }
        Ok(true)
    }
}

#[test]
fn launches_are_recorded_once_and_replayed() {
    let graph = Graph::parse("graph(%0: f32[4]) {\n  %1: f32[4] = exp %0\n  return %1\n}").unwrap();
    let layout = InputLayout::contiguous(graph.ty(graph.inputs()[0]));
    let backend = Recorder::default();
    let counts = backend.counts.clone();
    let program = Program::build(&graph, &[layout], Arc::new(backend), &ScheduleOptions::default()).unwrap();
    // 64 bytes apart, so that neighbours differ in what the recording depends on.
    let memory = ReferenceBackend.allocate(64 * 8).unwrap();
    let mut produced = Vec::new();
    let mut run = |at: usize, value: f32| {
        memory.write_from_host(at * 64, &[value; 4].map(f32::to_le_bytes).concat()).unwrap();
        let input = InputView { buffer: &memory, dtype: DType::F32, shape: &[4], strides: &[1], offset: at * 16 };
        program.replay(&[input], &mut produced).unwrap();
        let Produced::Buffer(output) = &produced[0] else { panic!("an output") };
        let mut bytes = [0; 4];
        output.read_to_host(12, &mut bytes).unwrap();
        assert!((f32::from_le_bytes(bytes) - value.exp()).abs() < 1e-5);
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        (of(&counts.launched), of(&counts.recorded), of(&counts.replayed))
    };
    assert_eq!(run(0, 0.5), (1, 0, 0), "what runs once is not worth recording");
    assert_eq!(run(0, 1.0), (1, 1, 1));
    assert_eq!(run(2, 1.5), (1, 1, 2), "another address of the same kind");
    assert_eq!(run(1, 2.0), (2, 1, 2), "one that it was not made for: one by one");
    assert_eq!(run(1, 2.5), (2, 2, 3), "and then recorded again");
}

#[test]
fn calls_on_addresses_are_recorded_unless_they_are_captured() {
    // Other kernels than the test above: code is shared by backends of one target, and counts for the first.
    let text = "graph(%0: f32[4]) {\n  %1: f32[4] = cos %0\n  %2: f32[4] = scan_sum %1 {axis=0, reverse=false}\n  return %2\n}";
    let graph = Graph::parse(text).unwrap();
    let layout = InputLayout::contiguous(graph.ty(graph.inputs()[0]));
    let backend = Recorder::default();
    let (counts, captured) = (backend.counts.clone(), backend.captured.clone());
    let program = Program::build(&graph, &[layout], Arc::new(backend), &ScheduleOptions::default()).unwrap();
    let launches = program.steps().len();
    let (input, output) = (ReferenceBackend.allocate(16).unwrap(), ReferenceBackend.allocate(16).unwrap());
    input.write_from_host(0, &[0f32; 4].map(f32::to_le_bytes).concat()).unwrap();
    let run = |recorded: bool| {
        let (shape, strides) = (&[4][..], &[1][..]);
        let given = [RawInput { ptr: input.ptr(), dtype: DType::F32, shape, strides, is_value: false }];
        // SAFETY: memory with as many elements.
        unsafe {
            match recorded {
                true => program.replay_raw(&[], &given, &[output.ptr()]),
                false => program.call_raw(&[], &given, &[output.ptr()]),
            }
        }
        .unwrap();
        let mut bytes = [0; 4];
        output.read_to_host(12, &mut bytes).unwrap();
        assert_eq!(f32::from_le_bytes(bytes), 4.0);
        let of = |count: &AtomicUsize| count.swap(0, Ordering::Relaxed);
        (of(&counts.launched), of(&counts.recorded), of(&counts.replayed))
    };
    assert_eq!(run(false), (launches, 0, 0));
    assert_eq!(run(true), (launches, 0, 0), "what runs once is not worth recording");
    assert_eq!(run(true), (0, 1, 1));
    captured.store(true, Ordering::Relaxed);
    assert_eq!(run(true), (launches, 0, 0), "with launches of its own");
    captured.store(false, Ordering::Relaxed);
    assert_eq!(run(true), (0, 0, 1), "and memory of its own: the recording is as it was");
}

/// A loop of known length is recorded turn by turn, one inside of it too; the rows of a turn move with the arguments.
#[test]
fn counted_loops_are_recorded_turn_by_turn() {
    let text = "graph(%0: f32[2], %1: f32[3, 2]) {
  %2: f32[3, 2] = loop %0, %1 {turns=3, carried=1, scanned=1, result=1, body=graph(%0: f32[2], %1: f32[2]) {
    %2: f32[2] = loop %0, %1 {turns=2, carried=1, scanned=0, result=0, body=graph(%0: f32[2], %1: f32[2]) {
      %2: f32[2] = mul %0, %1
      return %2
    }}
    return %2, %2
  }}
  %3: f32[3, 2] = atan %2
  return %3
}";
    let graph = Graph::parse(text).unwrap();
    let layouts: Vec<InputLayout> =
        graph.inputs().iter().map(|&input| InputLayout::contiguous(graph.ty(input))).collect();
    let backend = Recorder::default();
    let counts = backend.counts.clone();
    let program = Program::build(&graph, &layouts, Arc::new(backend), &ScheduleOptions::default()).unwrap();
    let memory = ReferenceBackend.allocate(64 * 16).unwrap();
    let mut produced = Vec::new();
    let mut run = |at: usize, rows: [f32; 6]| {
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        memory.write_from_host(at * 64, &bytes(&[1.0, 2.0])).unwrap();
        memory.write_from_host((at + 1) * 64, &bytes(&rows)).unwrap();
        let view = |at: usize, shape: &'static [usize], strides: &'static [isize]| InputView {
            buffer: &memory,
            dtype: DType::F32,
            shape,
            strides,
            offset: at * 16,
        };
        program.replay(&[view(at, &[2], &[1]), view(at + 1, &[3, 2], &[2, 1])], &mut produced).unwrap();
        let Produced::Buffer(output) = &produced[0] else { panic!("an output") };
        let mut got = [0; 24];
        output.read_to_host(0, &mut got).unwrap();
        let mut carried = [1.0f32, 2.0];
        for (row, got) in rows.chunks(2).zip(got.chunks(8)) {
            for ((own, by), got) in carried.iter_mut().zip(row).zip(got.chunks(4)) {
                *own *= by * by;
                let got = f32::from_le_bytes(got.try_into().unwrap());
                assert!((got - own.atan()).abs() < 1e-5 * own.atan().abs(), "{got} for {}", own.atan());
            }
        }
        let of = |count: &AtomicUsize| count.swap(0, Ordering::Relaxed);
        (of(&counts.launched), of(&counts.recorded), of(&counts.replayed))
    };
    let (launched, ..) = run(0, [1.0, 2.0, 3.0, 0.5, 0.25, 1.5]);
    assert!(launched > 6, "two products a turn: {launched}");
    assert_eq!(run(0, [0.5, 2.0, 1.0, 0.5, 2.0, 1.5]), (0, 1, 1));
    assert_eq!(run(4, [1.5, 2.0, 1.0, 1.5, 2.0, 0.5]), (0, 0, 1), "other addresses");
    assert_eq!(run(3, [1.5, 1.0, 1.0, 1.5, 1.0, 0.5]).0, launched, "addresses that it was not made for");
}

/// A loop until a condition fails is led by the host: nothing around it is recorded.
#[test]
fn loops_until_a_condition_fails_are_not_recorded() {
    let text = "graph(%0: f32[], %1: bool[]) {
  %2: f32[] = loop %0, %1 {while=true, result=0, body=graph(%0: f32[], %1: bool[]) {
    %2: f32[] = add %0, %0
    %3: f32[] = full {value=50.5}
    %4: bool[] = lt %2, %3
    return %2, %4
  }}
  return %2
}";
    let graph = Graph::parse(text).unwrap();
    let layouts: Vec<InputLayout> =
        graph.inputs().iter().map(|&input| InputLayout::contiguous(graph.ty(input))).collect();
    let backend = Recorder::default();
    let counts = backend.counts.clone();
    let program = Program::build(&graph, &layouts, Arc::new(backend), &ScheduleOptions::default()).unwrap();
    let memory = ReferenceBackend.allocate(128).unwrap();
    memory.write_from_host(0, &3f32.to_le_bytes()).unwrap();
    let mut produced = Vec::new();
    for (goes_on, want) in [(1, 96f32), (0, 3.0), (1, 96.0)] {
        memory.write_from_host(64, &[goes_on]).unwrap();
        let view = |dtype, offset| InputView { buffer: &memory, dtype, shape: &[], strides: &[], offset };
        program.replay(&[view(DType::F32, 0), view(DType::Bool, 64)], &mut produced).unwrap();
        let Produced::Buffer(output) = &produced[0] else { panic!("an output") };
        let mut got = [0; 4];
        output.read_to_host(0, &mut got).unwrap();
        assert_eq!(f32::from_le_bytes(got), want);
    }
    assert_eq!((counts.recorded.load(Ordering::Relaxed), counts.replayed.load(Ordering::Relaxed)), (0, 0));
}
