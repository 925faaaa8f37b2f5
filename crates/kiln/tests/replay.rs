//! A program replayed allocates nothing: neither for its launch list, nor for outputs whose last handle is gone, nor inside
//! kernels. One test a process, since every allocation of the process is counted.

use kiln::runtime::{InputView, PackOptions, Produced, Program};
use kiln::{CompiledGraph, Device, Tensor};
use kiln_cpu::features::Isa;
use kiln_ir::{Graph, HostTensor};
use kiln_kernels::InputLayout;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counted.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const POINTWISE: &str = "graph(%0: f32[b, 700], %1: f32[700]) {
  %2: f32[1, 700] = reshape %1
  %3: f32[b, 700] = expand %2
  %4: f32[b, 700] = mul %0, %3
  %5: f32[b, 700] = tanh %4
  return %5, %4
}";

const SOFTMAX: &str = "graph(%0: f32[b, 300]) {
  %1: f32[b, 1] = reduce_max %0 {axes=[1]}
  %2: f32[b, 300] = expand %1
  %3: f32[b, 300] = sub %0, %2
  %4: f32[b, 300] = exp %3
  %5: f32[b, 1] = reduce_sum %4 {axes=[1]}
  %6: f32[b, 300] = expand %5
  %7: f32[b, 300] = div %4, %6
  return %7
}";

/// Two products with bias and activation, a temporary between them.
const MLP: &str = "graph(%0: f32[b, 128], %1: f32[256, 128], %2: f32[256], %3: f32[128, 256]) {
  %4: f32[b, 256] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %5: f32[1, 256] = reshape %2
  %6: f32[b, 256] = expand %5
  %7: f32[b, 256] = add %4, %6
  %8: f32[b, 256] = tanh %7
  %9: f32[b, 128] = dot %8, %3 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %10: f32[b, 128] = add %9, %0
  return %10
}";

/// A product whose left operand is made on the way.
const SCALED: &str = "graph(%0: f32[b, 128], %1: f32[128], %2: f32[64, 128]) {
  %3: f32[1, 128] = reshape %1
  %4: f32[b, 128] = expand %3
  %5: f32[b, 128] = mul %0, %4
  %6: f32[b, 64] = dot %5, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  return %6
}";

const ATTENTION: &str = "graph(%0: f32[1, 4, b, 32], %1: f32[1, 4, b, 32], %2: f32[1, 4, b, 32]) {
  %3: f32[1, 4, b, 32] = attention %0, %1, %2 {scale=0.17, causal=true}
  return %3
}";

fn inputs(graph: &Graph, rows: usize) -> Vec<Tensor> {
    let fixed = graph.specialise(&|_| Some(rows.into())).unwrap();
    let tensor = |&id: &kiln_ir::NodeId| {
        let ty = fixed.ty(id);
        let shape = ty.fixed_shape().unwrap();
        let count: usize = shape.iter().product();
        let values: Vec<f64> = (0..count).map(|n| (n * 37 % 101) as f64 / 50.0 - 1.0).collect();
        let host = HostTensor::from_f64(ty.dtype, &shape, &values).unwrap();
        Tensor::from_bytes(host.bytes(), &shape[..], ty.dtype, Device::Cpu).unwrap()
    };
    fixed.inputs().iter().map(tensor).collect()
}

fn views(inputs: &[Tensor]) -> Vec<InputView<'_>> {
    let view = |t| {
        let t: &Tensor = t;
        InputView { buffer: t.buffer(), dtype: t.dtype(), shape: t.shape(), strides: t.strides(), offset: 0 }
    };
    inputs.iter().map(view).collect()
}

/// Allocations of a run, once it is warm.
fn allocations(run: &mut dyn FnMut()) -> usize {
    (0..20).for_each(|_| run());
    let mut least = usize::MAX;
    for _ in 0..20 {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        run();
        least = least.min(ALLOCATIONS.load(Ordering::Relaxed) - before);
    }
    least
}

fn bytes(produced: &[Produced]) -> Vec<Vec<u8>> {
    let bytes = |one: &Produced| match one {
        Produced::Buffer(buffer) => buffer.host_bytes().unwrap().to_vec(),
        Produced::Input(_) => Vec::new(),
    };
    produced.iter().map(bytes).collect()
}

fn check(name: &str, program: &Program, rows: usize, views: &[InputView<'_>]) {
    let want = bytes(&program.run(views).unwrap());
    let mut produced = Vec::new();
    let count = allocations(&mut || {
        produced.clear();
        let shapes = program.replay(views, &mut produced).unwrap();
        assert_eq!(shapes.len(), produced.len());
    });
    // The portable executor interprets vector IR and has values to keep.
    assert!(count == 0 || Isa::get() == Isa::Portable, "{name}, {rows} rows: {count} allocations");
    assert_eq!(bytes(&produced), want, "{name}, {rows} rows");
    // While somebody holds a result, the next one lies elsewhere.
    let held = produced.clone();
    program.replay(views, &mut produced).unwrap();
    for (held, now) in held.iter().zip(&produced) {
        if let (Produced::Buffer(held), Produced::Buffer(now)) = (held, now) {
            assert!(!held.same(now), "{name}: a result that is held was overwritten");
        }
    }
    assert_eq!(bytes(&held), want);
}

#[test]
fn nothing_is_allocated() {
    let cases =
        [("pointwise", POINTWISE), ("softmax", SOFTMAX), ("mlp", MLP), ("scaled", SCALED), ("attention", ATTENTION)];
    for (name, text) in cases {
        let symbolic = Graph::parse(text).unwrap();
        for rows in [1usize, 7, 64, 400] {
            let inputs = inputs(&symbolic, rows);
            let views = views(&inputs);
            let fixed = symbolic.specialise(&|_| Some(rows.into())).unwrap();
            for graph in [&symbolic, &fixed] {
                let compiled = CompiledGraph::new(graph, &[], &Default::default()).unwrap();
                check(name, compiled.program(), rows, &views);
            }
        }
    }
    let graph = Graph::parse(MLP).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let program = Program::build(&graph, &layouts, kiln::backend(Device::Cpu), &Default::default()).unwrap();
    let (program, packer) =
        program.pack(&[false, true, true, true], &PackOptions { always: true, ..Default::default() }).unwrap();
    assert_eq!(packer.kept(), [0, 2], "both weights are packed, the bias is not");
    for rows in [1, 64] {
        let inputs = inputs(&graph, rows);
        let all = views(&inputs);
        let packed = packer.pack(&|input| (all[input], 0)).unwrap();
        let kept = packer.kept().iter().map(|&input| all[input]);
        let packed = packed.iter().enumerate().map(|(number, buffer)| packer.view(number, buffer));
        check("packed", &program, rows, &kept.chain(packed).collect::<Vec<_>>());
    }
}
