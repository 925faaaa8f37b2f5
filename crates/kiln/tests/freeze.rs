//! Frozen graphs: the same answers, weights prepared and packed once a version, by whichever thread comes first.

use kiln::runtime::Program;
use kiln::runtime::event::{self, Category};
use kiln::{CompiledGraph, Conv, DType, Device, FreezeOptions, FrozenGraph, PackWeights, Tensor};
use kiln_ir::build::{self, ConvOptions, GraphBuilder};
use kiln_ir::{Graph, HostTensor, TensorType, generate};
use kiln_kernels::kernel::KernelBody;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

/// x·Wqᵀ + bq, x·Wkᵀ + bk with different widths, a product with weights that are dequantised, and one with bf16 weights.
const BLOCK: &str = "graph(%0: f32[b, 64], %1: f32[96, 64], %2: f32[40, 64], %3: f32[96], %4: f32[40], %5: i8[64, 48], %6: f32[48], %7: bf16[136, 64]) {
  %8: f32[b, 96] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %9: f32[1, 96] = reshape %3
  %10: f32[b, 96] = expand %9
  %11: f32[b, 96] = add %8, %10
  %12: f32[b, 40] = dot %0, %2 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %13: f32[1, 40] = reshape %4
  %14: f32[b, 40] = expand %13
  %15: f32[b, 40] = add %12, %14
  %16: f32[64, 48] = cast %5
  %17: f32[1, 48] = reshape %6
  %18: f32[64, 48] = expand %17
  %19: f32[64, 48] = mul %16, %18
  %20: f32[b, 48] = dot %0, %19 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %21: f32[136, 64] = cast %7
  %22: f32[b, 136] = dot %0, %21 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  return %11, %15, %20, %22
}";

const FROZEN: [bool; 8] = [false, true, true, true, true, true, true, true];

/// Packing everything, whether it pays on this machine or not.
fn packed() -> FreezeOptions {
    FreezeOptions { pack: PackWeights::Always, ..Default::default() }
}

fn block() -> Graph {
    Graph::parse(BLOCK).unwrap()
}

fn tensors(graph: &Graph, rows: usize, seed: u64) -> Vec<Tensor> {
    let fixed = graph.specialise(&|_| Some(rows.into())).unwrap();
    let place = |host: &HostTensor| Tensor::from_bytes(host.bytes(), host.shape(), host.dtype(), Device::Cpu).unwrap();
    let hosts: Vec<HostTensor> = generate::inputs(&fixed, seed);
    // Ordinary numbers: the generator also makes infinities.
    hosts
        .iter()
        .enumerate()
        .map(|(i, host)| {
            let count = host.elements() as u64;
            let number = |n: u64| ((n * 2_654_435_761 + seed * 97 + i as u64 * 13) % 1009) as f64 / 504.5 - 1.0;
            let scale = if host.dtype() == DType::I8 { 100.0 } else { 1.0 };
            let values: Vec<f64> = (0..count).map(|n| (number(n) * scale).trunc() + number(n).fract()).collect();
            let values: Vec<f64> = values.iter().map(|v| if scale > 1.0 { v.trunc() } else { *v }).collect();
            place(&HostTensor::from_f64(host.dtype(), host.shape(), &values).unwrap())
        })
        .collect()
}

fn close(a: &[Tensor], b: &[Tensor]) -> bool {
    let near = |a: &Tensor, b: &Tensor| {
        let (a, b) = (a.to_vec::<f32>().unwrap(), b.to_vec::<f32>().unwrap());
        let scale = b.iter().fold(1e-3f32, |m, v| m.max(v.abs()));
        a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 1e-5 * scale)
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| near(a, b))
}

fn products(program: &Program) -> usize {
    program.steps().iter().filter(|step| matches!(step.kernel().body, KernelBody::Matmul(_))).count()
}

fn run(frozen: &FrozenGraph, inputs: &[Tensor], versions: &[u64]) -> Vec<Tensor> {
    frozen.run(&inputs.iter().collect::<Vec<_>>(), versions).unwrap()
}

#[test]
fn a_block_gives_what_it_gives_unfrozen() {
    let graph = block();
    let plain = CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
    let frozen = FrozenGraph::new(&graph, &[], &FROZEN, &packed()).unwrap();
    let memory = frozen.memory();
    assert!(memory.packed_bytes >= (136 * 64 + 48 * 64) * 4 + 136 * 64 * 2, "{memory:?}");
    assert_eq!(memory.prepared_bytes, 0, "{memory:?}");
    assert_eq!(memory.unread, 5, "only the biases are read as they lie");
    assert_eq!((products(frozen.program()), products(plain.program())), (4, 4));
    for rows in [1, 2, 3, 5, 16, 33, 130, 0] {
        let inputs = tensors(&graph, rows, 3);
        assert!(close(&run(&frozen, &inputs, &[0; 7]), &plain.run(&inputs).unwrap()), "{rows} rows");
    }
    assert_eq!(frozen.memory().prepares, 1);
}

/// Convolutions of 3 × 3 (also strided and dilated) and 1 × 1 pixels with their weights in panels, of images in either order.
#[test]
fn weights_of_convolutions_are_packed() {
    let mut b = GraphBuilder::new();
    let input = |b: &mut GraphBuilder, shape: &[usize]| b.input(TensorType::fixed(DType::F32, shape)).unwrap();
    let mut y = input(&mut b, &[2, 10, 9, 11]);
    let mut floats = 0;
    for (stride, dilation, w) in
        [(1, 1, [40, 10, 3, 3]), (2, 1, [65, 40, 3, 3]), (1, 2, [32, 65, 3, 3]), (1, 1, [48, 32, 1, 1])]
    {
        let weight = input(&mut b, &w);
        let padding = dilation * (w[2] / 2);
        let options =
            ConvOptions { stride: vec![stride; 2], padding: vec![padding; 2], dilation: vec![dilation; 2], groups: 1 };
        y = build::conv(&mut b, &y, &weight, None, &options).unwrap();
        y = build::relu(&mut b, &y).unwrap();
        floats += w.iter().product::<usize>();
    }
    b.output(y);
    let graph = b.finish();
    let plain = CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
    let frozen = FrozenGraph::new(&graph, &[], &[false, true, true, true, true], &packed()).unwrap();
    let mut inputs = tensors(&graph, 1, 3);
    for (version, scale) in [1.0f32, 0.5].into_iter().enumerate() {
        inputs[2] = (&inputs[2] * scale).unwrap();
        let versions = [0, version as u64, 0, 0];
        assert!(close(&run(&frozen, &inputs, &versions), &plain.run(&inputs).unwrap()), "version {version}");
    }
    // Where there is code for it, all of them are; the portable executor packs what is a product.
    let memory = frozen.memory();
    if kiln_cpu::features::Isa::get() != kiln_cpu::features::Isa::Portable {
        assert!(memory.packed_bytes >= 4 * floats, "{memory:?}");
    }
    let last = inputs[0].permute([0, 2, 3, 1]).unwrap().contiguous().unwrap().permute([0, 3, 1, 2]).unwrap();
    let compiled =
        kiln::compile(|(x, w): &(Tensor, Tensor)| x.conv2d(w, None, &Conv { padding: [1, 1], ..Conv::default() }));
    let results = [&inputs[0], &last].map(|x| compiled.call(&(x.clone(), inputs[1].clone())).unwrap());
    assert!(close(&results[..1], &results[1..]));
}

/// The number of images may be a symbol: panels are the same for one image, several and none.
#[test]
fn weights_are_packed_for_any_number_of_images() {
    let mut b = GraphBuilder::new();
    let images = kiln::ir::Dim::from(kiln::ir::Symbol::new("b").unwrap());
    let shape = [images, 24.into(), 11.into(), 13.into()];
    let mut y = b.input(TensorType::new(DType::F32, shape)).unwrap();
    let weights = [(1, [40, 24, 3, 3]), (2, [48, 40, 3, 3]), (1, [64, 48, 1, 1])];
    for (stride, w) in weights {
        let weight = b.input(TensorType::fixed(DType::F32, &w)).unwrap();
        let padding = vec![w[2] / 2; 2];
        let options = ConvOptions { stride: vec![stride; 2], padding, dilation: vec![1; 2], groups: 1 };
        y = build::conv(&mut b, &y, &weight, None, &options).unwrap();
        y = build::relu(&mut b, &y).unwrap();
    }
    b.output(y);
    let graph = b.finish();
    let plain = CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
    let frozen = FrozenGraph::new(&graph, &[], &[false, true, true, true], &packed()).unwrap();
    for images in [2, 1, 5, 0] {
        let inputs = tensors(&graph, images, 3);
        assert!(close(&run(&frozen, &inputs, &[0; 3]), &plain.run(&inputs).unwrap()), "{images} images");
    }
    let memory = frozen.memory();
    let floats: usize = weights.iter().map(|(_, w)| w.iter().product::<usize>()).sum();
    if kiln_cpu::features::Isa::get() != kiln_cpu::features::Isa::Portable {
        assert!(memory.packed_bytes >= 4 * floats, "{memory:?}");
    }
}

/// What an epilogue reads as it lies is not packed: a bias behind the weights in one vector, and weights that are added to their own results.
#[test]
fn weights_that_an_epilogue_reads_stay_as_they_are() {
    let input = |b: &mut GraphBuilder, shape: &[usize]| b.input(TensorType::fixed(DType::F32, shape)).unwrap();
    let same = ConvOptions { stride: vec![1; 2], padding: vec![1; 2], dilation: vec![1; 2], groups: 1 };
    let mut b = GraphBuilder::new();
    let (x, flat) = (input(&mut b, &[1, 32, 8, 8]), input(&mut b, &[32 * 32 * 9 + 32]));
    let weight = build::narrow(&mut b, &flat, 0, 0, 32 * 32 * 9).unwrap();
    let weight = build::reshape(&mut b, &weight, &[32, 32, 3, 3].map(kiln::ir::Dim::from)).unwrap();
    let bias = build::narrow(&mut b, &flat, 0, 32 * 32 * 9, 32).unwrap();
    let y = build::conv(&mut b, &x, &weight, Some(&bias), &same).unwrap();
    b.output(y);
    let in_one_vector = b.finish();
    let mut b = GraphBuilder::new();
    let (x, weight) = (input(&mut b, &[32, 32, 5, 5]), input(&mut b, &[32, 32, 3, 3]));
    let inside = ConvOptions { padding: vec![0; 2], ..same };
    let y = build::conv(&mut b, &x, &weight, None, &inside).unwrap();
    let y = build::add(&mut b, &y, &weight).unwrap();
    b.output(y);
    for graph in [in_one_vector, b.finish()] {
        let plain = CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
        let frozen = FrozenGraph::new(&graph, &[], &[false, true], &packed()).unwrap();
        let inputs = tensors(&graph, 1, 3);
        assert!(close(&run(&frozen, &inputs, &[0; 1]), &plain.run(&inputs).unwrap()), "{graph}");
    }
}

#[test]
fn every_part_can_be_left_out() {
    let graph = block();
    let plain = CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
    let inputs = tensors(&graph, 20, 3);
    let want = plain.run(&inputs).unwrap();
    use PackWeights::{Always, Never, WherePays};
    for (join, pack, growth) in [(false, Always, 4), (true, Never, 4), (true, Always, 1), (false, WherePays, 1)] {
        let options = FreezeOptions { join, pack, growth, ..Default::default() };
        let frozen = FrozenGraph::new(&graph, &[], &FROZEN, &options).unwrap();
        assert!(close(&run(&frozen, &inputs, &[0; 7]), &want), "{options:?}");
        let memory = frozen.memory();
        let packed = frozen.program().steps().iter().any(|step| !step.variant().is_default());
        assert_eq!(packed, memory.packed_bytes > 0);
        assert!(pack == WherePays || packed == (pack == Always), "{memory:?}");
    }
}

/// Products of few rows run beside each other in one launch, which makes no copy of their weights.
#[test]
fn products_of_few_rows_are_one_launch() {
    for rows in [1usize, 5, 16, 17] {
        let graph = kiln_passes::run(block().specialise(&|_| Some(rows.into())).unwrap()).unwrap();
        let plain = CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
        let inputs = tensors(&graph, rows, 3);
        let want = plain.run(&inputs).unwrap();
        for join in [true, false] {
            let options = FreezeOptions { join, pack: PackWeights::Never, growth: 1, ..Default::default() };
            let frozen = FrozenGraph::new(&graph, &[], &FROZEN, &options).unwrap();
            for _ in 0..3 {
                assert!(close(&run(&frozen, &inputs, &[0; 7]), &want), "{rows} rows, {join}");
            }
            let memory = frozen.memory();
            assert_eq!((memory.packed_bytes, memory.prepared_bytes), (0, 0));
            let beside = join && rows <= 16;
            assert_eq!(products(frozen.program()) < products(plain.program()), beside, "{rows} rows");
            let mut bodies = frozen.program().steps().iter().map(|step| step.kernel().bodies().len());
            assert_eq!(bodies.any(|count| count == 4), beside, "{rows} rows");
        }
    }
}

#[test]
fn outputs_are_recycled_when_asked_for() {
    let graph = block();
    let options = FreezeOptions { recycle: true, ..packed() };
    let frozen = FrozenGraph::new(&graph, &[], &FROZEN, &options).unwrap();
    let inputs = tensors(&graph, 9, 1);
    let first = run(&frozen, &inputs, &[0; 7]);
    let (place, want) = (first[0].buffer().ptr(), first[0].to_vec::<f32>().unwrap());
    let second = run(&frozen, &inputs, &[0; 7]);
    assert_ne!(second[0].buffer().ptr(), place, "the first result is still held");
    drop(first);
    let third = run(&frozen, &inputs, &[0; 7]);
    assert_eq!(third[0].buffer().ptr(), place);
    assert_eq!((third[0].to_vec::<f32>().unwrap(), second[0].to_vec::<f32>().unwrap()), (want.clone(), want));
}

#[test]
fn a_changed_weight_is_packed_again_and_only_then() {
    let graph = block();
    let plain = CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
    let frozen = FrozenGraph::new(&graph, &[], &FROZEN, &packed()).unwrap();
    let mut inputs = tensors(&graph, 9, 1);
    let mut versions = [0u64; 7];
    let before = run(&frozen, &inputs, &versions);
    // Another x is no reason.
    inputs[0] = tensors(&graph, 9, 2).swap_remove(0);
    run(&frozen, &inputs, &versions);
    assert_eq!(frozen.memory().prepares, 1);
    for changed in 1..8 {
        inputs[changed] = tensors(&graph, 9, 2).swap_remove(changed);
        versions[changed - 1] += 1;
        let got = run(&frozen, &inputs, &versions);
        assert!(close(&got, &plain.run(&inputs).unwrap()), "input {changed} changed");
        assert!(!close(&got, &before));
        run(&frozen, &inputs, &versions);
        assert_eq!(frozen.memory().prepares, 1 + changed as u64);
    }
    frozen.clear();
    run(&frozen, &inputs, &versions);
    assert_eq!(frozen.memory().prepares, 9);
}

#[test]
fn many_threads_pack_once_and_get_what_their_weights_give() {
    let graph = block();
    let plain = CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
    let frozen = FrozenGraph::new(&graph, &[], &FROZEN, &packed()).unwrap();
    let sets: Vec<Vec<Tensor>> = (0..2).map(|seed| tensors(&graph, 7, seed)).collect();
    let want: Vec<Vec<Tensor>> = sets.iter().map(|inputs| plain.run(inputs).unwrap()).collect();
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                for _ in 0..20 {
                    assert!(close(&run(&frozen, &sets[0], &[0; 7]), &want[0]));
                }
                barrier.wait();
                assert_eq!(frozen.memory().prepares, 1);
                barrier.wait();
                // Both sets of weights at once: each call gets its own.
                for turn in 0..20 {
                    let set = turn % 2;
                    assert!(close(&run(&frozen, &sets[set], &[set as u64; 7]), &want[set]));
                }
            });
        }
    });
}

#[test]
fn caches_are_updated_in_place_beside_frozen_weights() {
    let text = "graph(%0: f32[4, 64], %1: f32[64, 64], %2: f32[4, 64]) {
  %3: f32[4, 64] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %4: f32[4, 64] = add %2, %3
  %5: f32[4, 64] = mul %4, %0
  return %5, %4 -> input 2
}";
    let graph = Graph::parse(text).unwrap();
    let inputs = tensors(&graph, 4, 5);
    let want = kiln::run_eagerly(&graph, &inputs).unwrap();
    let frozen = FrozenGraph::new(&graph, &[], &[false, true, true], &packed()).unwrap();
    assert_eq!(frozen.frozen(), [1, 2]);
    let cache = inputs[2].to_vec::<f32>().unwrap();
    assert!(close(&run(&frozen, &inputs, &[0, 0]), &want));
    assert_eq!(inputs[2].to_vec::<f32>().unwrap(), cache, "run leaves its inputs alone");
    let refs: Vec<&Tensor> = inputs.iter().collect();
    // SAFETY: the cache is this test's alone.
    let got = unsafe { frozen.run_updating(&refs, &[0, 0]) }.unwrap();
    assert!(close(&got, &want));
    assert!(close(&[inputs[2].clone()], &want[1..]), "the cache was written in place");
}

#[test]
fn wrong_calls_are_errors() {
    let graph = block();
    let frozen = FrozenGraph::new(&graph, &[], &FROZEN, &packed()).unwrap();
    let inputs = tensors(&graph, 3, 0);
    let refs: Vec<&Tensor> = inputs.iter().collect();
    let text = frozen.run(&refs, &[0; 3]).unwrap_err().to_string();
    assert!(text.contains("7 frozen inputs, but 3 versions"), "{text}");
    let text = frozen.run(&refs[..5], &[0; 7]).unwrap_err().to_string();
    assert!(text.contains("takes 8 inputs, not 5"), "{text}");
    let narrow = Tensor::zeros([96, 32], DType::F32, Device::Cpu).unwrap();
    let mut wrong = refs.clone();
    wrong[1] = &narrow;
    assert!(frozen.run(&wrong, &[0; 7]).is_err());
    // A failed call leaves nothing behind.
    assert_eq!(frozen.memory().prepares, 0);
    frozen.run(&refs, &[0; 7]).unwrap();
}

#[test]
fn packing_is_told() {
    let graph = block();
    let heard = Arc::new(AtomicUsize::new(0));
    let into = heard.clone();
    let listening = event::listen(&[Category::Perf], move |event| {
        if event.to_string().starts_with("prepared 7 frozen inputs: 0 bytes of values") {
            into.fetch_add(1, Ordering::Relaxed);
        }
    });
    let frozen = FrozenGraph::new(&graph, &[], &FROZEN, &packed()).unwrap();
    let inputs = tensors(&graph, 3, 0);
    run(&frozen, &inputs, &[0; 7]);
    drop(listening);
    assert!(heard.load(Ordering::Relaxed) >= 1);
}
