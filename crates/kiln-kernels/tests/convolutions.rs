//! Convolutions for a target whose products read through padding: what the interpreter gives, and no copy of what is padded.

use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::decompose::{Ways, decompose, decompose_by};
use kiln_ir::examples::Random;
use kiln_ir::{ConvDims, DType, Graph, HostTensor, Op, ReduceKind, TensorType, Tolerance, WindowDims, interpret};
use kiln_kernels::kernel::{InstKind, KernelBody, MatmulBody, Prologue};
use kiln_kernels::{InputLayout, Schedule, ScheduleOptions, Target, reference, schedule};

/// A convolution: sizes of images and kernels, `[n, c, …]` and `[o, c / groups, …]`.
#[derive(Clone)]
struct Case {
    x: Vec<usize>,
    w: Vec<usize>,
    dims: ConvDims,
}

fn case(x: &[usize], w: &[usize], stride: usize, padding: (i64, i64), dilation: usize, groups: usize) -> Case {
    let spatial = x.len() - 2;
    let dims = ConvDims {
        stride: vec![stride; spatial],
        padding: vec![padding; spatial],
        dilation: vec![dilation; spatial],
        input_dilation: vec![1; spatial],
        groups,
    };
    Case { x: x.to_vec(), w: w.to_vec(), dims }
}

fn spread(mut case: Case, by: usize) -> Case {
    case.dims.input_dilation.fill(by);
    case
}

fn cases() -> Vec<Case> {
    vec![
        case(&[2, 16, 9], &[12, 16, 3], 1, (1, 1), 1, 1),
        case(&[2, 16, 11], &[12, 8, 3], 2, (2, 0), 2, 2),
        case(&[2, 3, 8, 7], &[8, 3, 3, 3], 1, (1, 1), 1, 1),
        case(&[1, 3, 9, 9], &[16, 3, 5, 5], 2, (2, 2), 1, 1),
        case(&[2, 8, 6, 6], &[8, 4, 3, 3], 1, (2, 2), 2, 2),
        case(&[2, 8, 5, 5], &[16, 8, 1, 1], 2, (0, 0), 1, 1),
        case(&[2, 8, 5, 5], &[16, 8, 1, 1], 1, (1, 1), 1, 1),
        case(&[2, 8, 7, 7], &[16, 8, 3, 3], 1, (-1, 2), 1, 1),
        case(&[1, 4, 5, 4, 6], &[8, 4, 3, 3, 3], 1, (1, 1), 1, 1),
        case(&[1, 4, 5, 4, 6], &[8, 4, 2, 2, 2], 2, (1, 0), 1, 1),
    ]
}

/// The convolution, its gradients in input and kernel where asked for, without the op itself.
fn graph(case: &Case, dtype: DType, gradients: bool) -> Graph {
    let mut b = GraphBuilder::new();
    let x = b.input(TensorType::fixed(dtype, &case.x)).unwrap();
    let w = b.input(TensorType::fixed(dtype, &case.w)).unwrap();
    let op = Op::Conv(case.dims.clone().into());
    let y = b.emit(op.clone(), &[x, w]).unwrap();
    if gradients {
        let g = b.input(b.ty(&y)).unwrap();
        for d in kiln_passes::gradient(&mut b, &op, &[x, w], &y, &g, &[true, true]).unwrap() {
            b.output(d.unwrap());
        }
    } else {
        b.output(y);
    }
    kiln_passes::run(decompose(&b.finish(), &|_| false).unwrap()).unwrap()
}

/// Row-major, or with the channels last.
fn layouts(graph: &Graph, channels_last: bool) -> Vec<InputLayout> {
    let layout = |ty: &TensorType| {
        let mut layout = InputLayout::contiguous(ty);
        if channels_last {
            let mut step = kiln_ir::Dim::from(1);
            for axis in [1].into_iter().chain((2..ty.rank()).rev()).chain([0]) {
                layout.strides[axis] = step.clone();
                step *= &ty.shape[axis];
            }
        }
        layout
    };
    graph.inputs().iter().map(|&id| layout(graph.ty(id))).collect()
}

fn check(graph: &Graph, channels_last: bool) -> Schedule {
    check_for(Target { guarded_operands: true, ..Target::default() }, graph, channels_last)
}

fn check_for(target: Target, graph: &Graph, channels_last: bool) -> Schedule {
    let options = ScheduleOptions { target, ..ScheduleOptions::default() };
    let layouts = layouts(graph, channels_last);
    let schedule = schedule(graph, &layouts, &options).unwrap();
    let (mut inputs, mut memory) = (Vec::new(), Vec::new());
    for ((seed, &id), layout) in graph.inputs().iter().enumerate().zip(&layouts) {
        let ty = graph.ty(id);
        let shape: Vec<usize> = ty.shape.iter().map(|d| d.as_usize().unwrap()).collect();
        let mut tensor = HostTensor::zeros(ty.dtype, &shape).unwrap();
        let mut flat = HostTensor::zeros(ty.dtype, &[tensor.elements()]).unwrap();
        let mut random = Random(seed as u64 + 1);
        for i in 0..tensor.elements() {
            let value = random.scalar(ty.dtype, -2.0, 2.0);
            let (mut rest, mut at) = (i, 0);
            for (size, stride) in shape.iter().zip(&layout.strides).rev() {
                at += rest % size * stride.as_usize().unwrap();
                rest /= size;
            }
            tensor.set(i, value);
            flat.set(at, value);
        }
        inputs.push(tensor);
        memory.push(flat);
    }
    let wanted = interpret::run(graph, &inputs).unwrap();
    let got = reference::run(&schedule, &mut memory, &|_| None).unwrap_or_else(|e| panic!("{e}\n{schedule}"));
    for (got, wanted) in got.into_iter().zip(wanted) {
        let tolerance = Tolerance::of(wanted.dtype()).times(4.0);
        let outcome = got.reshape(wanted.shape()).unwrap().compare(&wanted, tolerance);
        outcome.unwrap_or_else(|e| panic!("{e}\n{schedule}"));
    }
    schedule
}

/// For each product whether the elements of its operands along the first summed axis, the channels, are neighbours.
fn reads_neighbours(schedule: &Schedule) -> Vec<[bool; 2]> {
    let bodies = schedule.steps.iter().flat_map(|step| step.kernel.bodies());
    let products = bodies.filter_map(|body| if let KernelBody::Matmul(body) = body { Some(body) } else { None });
    let of = |body: &MatmulBody, operand: &Prologue| {
        operand.insts.iter().any(|inst| match &inst.kind {
            InstKind::Load { place, .. } => {
                place.offset.linear_in(body.k[0].var).is_some_and(|(step, _)| step.is_one())
            }
            _ => false,
        })
    };
    products.map(|body| [of(body, &body.lhs), of(body, &body.rhs[0])]).collect()
}

/// Launches that are products, and those that are not.
fn launches(schedule: &Schedule) -> (usize, usize) {
    let products = schedule.steps.iter().filter(|step| matches!(step.kernel.body, KernelBody::Matmul(_))).count();
    (products, schedule.steps.len() - products)
}

#[test]
fn a_convolution_is_one_launch() {
    for case in cases() {
        for channels_last in [false, true] {
            for dtype in [DType::F32, DType::Bf16, DType::I32] {
                let schedule = check(&graph(&case, dtype, false), channels_last);
                assert_eq!(launches(&schedule), (1, 0), "{schedule}");
            }
        }
    }
}

#[test]
fn gradients_of_steps_of_one_are_two_launches() {
    for case in cases() {
        let schedule = check(&graph(&case, DType::F32, true), false);
        let spread = case.dims.stride.iter().any(|&stride| stride > 1);
        // Zeros between elements are copied; those around them are not.
        assert!(launches(&schedule).0 == 2 && launches(&schedule).1 <= usize::from(spread), "{schedule}");
        check(&graph(&case, DType::F32, true), true);
    }
}

#[test]
fn zeros_between_elements_are_copied_and_those_around_are_not() {
    let case = spread(case(&[2, 8, 5, 5], &[8, 8, 3, 3], 1, (1, 2), 1, 1), 2);
    let schedule = check(&graph(&case, DType::F32, false), false);
    assert_eq!(launches(&schedule), (1, 1), "{schedule}");
    let [KernelBody::Matmul(body)] = schedule.steps[1].kernel.bodies() else { panic!("{schedule}") };
    assert!(body.lhs.insts.iter().any(|inst| matches!(inst.kind, InstKind::Load { guard: Some(_), .. })), "{schedule}");
}

/// Where temporaries lie in the order of products, the kernels of a convolution are copied into the order that its images have; where they
/// have it, nothing is.
#[test]
fn kernels_follow_the_order_of_images() {
    let target = Target { guarded_operands: true, product_order: true, ..Target::default() };
    let mut b = GraphBuilder::new();
    let x = b.input(TensorType::fixed(DType::Bf16, &[2, 16, 6, 6])).unwrap();
    let first = b.input(TensorType::fixed(DType::Bf16, &[24, 16, 3, 3])).unwrap();
    let second = b.input(TensorType::fixed(DType::Bf16, &[8, 24, 3, 3])).unwrap();
    let op = Op::Conv(case(&[2, 16, 6, 6], &[24, 16, 3, 3], 1, (1, 1), 1, 1).dims.into());
    let y = b.emit(op.clone(), &[x, first]).unwrap();
    let y = b.emit(Op::Unary(kiln_ir::UnaryOp::Tanh), &[y]).unwrap();
    let y = b.emit(op, &[y, second]).unwrap();
    b.output(y);
    let graph = kiln_passes::run(decompose(&b.finish(), &|_| false).unwrap()).unwrap();
    let schedule = check_for(target, &graph, false);
    assert_eq!(launches(&schedule), (2, 1), "{schedule}");
    assert_eq!(reads_neighbours(&schedule), [[false, false], [true, true]], "{schedule}");
    let schedule = check_for(target, &graph, true);
    assert_eq!(launches(&schedule), (2, 0), "{schedule}");
    assert_eq!(reads_neighbours(&schedule), [[true, true], [true, true]], "{schedule}");
    for case in cases() {
        for channels_last in [false, true] {
            let schedule = check_for(target, &self::graph(&case, DType::Bf16, false), channels_last);
            assert_eq!(launches(&schedule), (1, 0), "{schedule}");
        }
        check_for(target, &self::graph(&case, DType::Bf16, true), true);
        check_for(target, &self::graph(&case, DType::Bf16, true), false);
    }
}

#[test]
fn a_convolution_of_each_channel_is_a_loop() {
    let case = case(&[2, 8, 9, 9], &[8, 1, 3, 3], 1, (1, 1), 1, 8);
    for channels_last in [false, true] {
        let schedule = check(&graph(&case, DType::Bf16, false), channels_last);
        assert_eq!(launches(&schedule), (0, 1), "{schedule}");
    }
}

/// Where a target has one kernel for many channels, their products are not taken apart, however small each is; few channels, volumes and
/// targets without such a kernel have sums.
#[test]
fn small_windows_of_many_channels_stay_products() {
    let target = Target { guarded_operands: true, depthwise_products: true, ..Target::default() };
    let sums = Target { depthwise_products: false, ..target };
    let deep = case(&[1, 32, 3, 3, 3], &[32, 1, 3, 3, 3], 1, (1, 1), 1, 32);
    for (case, target, is_product) in [
        (case(&[1, 32, 7, 7], &[32, 1, 3, 3], 1, (1, 1), 1, 32), target, true),
        (case(&[1, 32, 9], &[32, 1, 3], 2, (1, 1), 1, 32), target, true),
        (case(&[1, 4, 7, 7], &[4, 1, 3, 3], 1, (1, 1), 1, 4), target, false),
        (deep, target, false),
        (case(&[1, 32, 7, 7], &[32, 1, 3, 3], 1, (1, 1), 1, 32), sums, false),
    ] {
        let mut b = GraphBuilder::new();
        let x = b.input(TensorType::fixed(DType::F32, &case.x)).unwrap();
        let w = b.input(TensorType::fixed(DType::F32, &case.w)).unwrap();
        let y = b.emit(Op::Conv(case.dims.clone().into()), &[x, w]).unwrap();
        b.output(y);
        let ways = Ways { depthwise_products: true, ..Ways::default() };
        let graph = kiln_passes::run(decompose_by(&b.finish(), &|_| false, ways).unwrap()).unwrap();
        let schedule = check_for(target, &graph, false);
        let has = schedule.steps.iter().any(|step| matches!(step.kernel.body, KernelBody::Matmul(_)));
        assert_eq!(has, is_product, "{:?}: {schedule}", case.x);
    }
}

/// What lies between two convolutions is computed once, by the first one's epilogue: it is not computed again under every tap of the second.
#[test]
fn what_windows_read_is_stored_by_the_product_before() {
    let target = Target { guarded_operands: true, stored_windows: true, unrolled_windows: true, ..Target::default() };
    let first = case(&[2, 8, 9, 9], &[16, 8, 3, 3], 1, (1, 1), 1, 1);
    for (second, wanted) in [
        (case(&[2, 16, 9, 9], &[8, 16, 3, 3], 1, (1, 1), 1, 1), (2, 0)),
        (case(&[2, 16, 9, 9], &[16, 1, 3, 3], 1, (1, 1), 1, 16), (1, 1)),
        (case(&[2, 16, 9, 9], &[16, 1, 5, 5], 2, (2, 2), 1, 16), (1, 1)),
        (case(&[2, 16, 9, 9], &[16, 1, 7, 7], 1, (3, 3), 1, 16), (1, 1)),
    ] {
        let mut b = GraphBuilder::new();
        let input = |b: &mut GraphBuilder, shape: &[usize]| b.input(TensorType::fixed(DType::F32, shape)).unwrap();
        let x = input(&mut b, &first.x);
        let weights = [&first.w, &second.w].map(|shape| input(&mut b, shape));
        let y = b.emit(Op::Conv(first.dims.clone().into()), &[x, weights[0]]).unwrap();
        let y = kiln_ir::build::relu(&mut b, &y).unwrap();
        let y = b.emit(Op::Conv(second.dims.clone().into()), &[y, weights[1]]).unwrap();
        let y = kiln_ir::build::relu6(&mut b, &y).unwrap();
        b.output(y);
        let graph = kiln_passes::run(decompose(&b.finish(), &|_| false).unwrap()).unwrap();
        let schedule = check_for(target, &graph, false);
        assert_eq!(launches(&schedule), wanted, "{schedule}");
        let KernelBody::Matmul(body) = &schedule.steps[0].kernel.body else { panic!("{schedule}") };
        assert!(body.epilogue.len() > 2, "the first one has no epilogue\n{schedule}");
    }
}

/// For each product whether it stores neighbours along the innermost axis of its pixels, and not along its channels.
fn stores_pixels(schedule: &Schedule) -> Vec<bool> {
    let bodies = schedule.steps.iter().flat_map(|step| step.kernel.bodies());
    let products = bodies.filter_map(|body| if let KernelBody::Matmul(body) = body { Some(body) } else { None });
    let of = |body: &MatmulBody| {
        let pixel = body.m.last().unwrap().var;
        body.epilogue.iter().any(|inst| match &inst.kind {
            InstKind::Store { place, .. } => place.offset.linear_in(pixel).is_some_and(|(step, _)| step.is_one()),
            _ => false,
        })
    };
    products.map(of).collect()
}

/// What a norm of batches reads twice, and a mean of pixels once, lies image by channel as they go through it; where images have their
/// channels last, so do results.
#[test]
fn reductions_read_results_in_their_own_order() {
    let case = case(&[2, 5, 9, 8], &[6, 5, 3, 3], 1, (1, 1), 1, 1);
    for (reads, biased) in [(2, false), (2, true), (1, false), (1, true)] {
        let mut b = GraphBuilder::new();
        let x = b.input(TensorType::fixed(DType::F32, &case.x)).unwrap();
        let w = b.input(TensorType::fixed(DType::F32, &case.w)).unwrap();
        let mut y = b.emit(Op::Conv(case.dims.clone().into()), &[x, w]).unwrap();
        if biased {
            y = build::relu(&mut b, &y).unwrap();
        }
        let mean = build::mean(&mut b, &y, &[0, 2, 3], true).unwrap();
        let result = if reads == 2 { build::sub(&mut b, &y, &mean).unwrap() } else { mean };
        b.output(result);
        let graph = kiln_passes::run(decompose(&b.finish(), &|_| false).unwrap()).unwrap();
        assert_eq!(stores_pixels(&check(&graph, false)), [true], "{reads} reads, {biased}");
        assert_eq!(stores_pixels(&check(&graph, true)), [false], "{reads} reads, {biased}, channels last");
    }
}

/// Large windows, and small ones that overlap in both axes, are reduced an axis at a time, each by a kernel that has no loop over the window;
/// others at once. What reductions of reductions combine is stored in between, if it is many elements together.
#[test]
fn windows_are_reduced_an_axis_at_a_time() {
    let target = Target { stored_windows: true, separate_windows: true, ..Target::default() };
    for (size, stride, padding, wanted) in [
        ([5, 5], [1, 1], 2, 2),
        ([3, 3], [1, 1], 1, 2),
        ([4, 4], [4, 4], 0, 2),
        ([3, 3], [2, 2], 1, 1),
        ([2, 2], [2, 2], 0, 1),
        ([4, 12], [4, 12], 0, 1),
    ] {
        for (kind, dtype) in
            [(ReduceKind::Max, DType::F32), (ReduceKind::Sum, DType::F32), (ReduceKind::Max, DType::Bf16)]
        {
            let dims = WindowDims {
                size: [1, 1].into_iter().chain(size).collect(),
                stride: [1, 1].into_iter().chain(stride).collect(),
                dilation: vec![1; 4],
                padding: [(0, 0), (0, 0), (padding, padding), (padding, padding)].to_vec(),
            };
            let mut b = GraphBuilder::new();
            let x = b.input(TensorType::fixed(dtype, &[2, 3, 12, 12])).unwrap();
            let y = b.emit(Op::ReduceWindow { kind, dims: dims.into() }, &[x]).unwrap();
            b.output(y);
            let ways = Ways { separate_windows: true, ..Ways::default() };
            let graph = kiln_passes::run(decompose_by(&b.finish(), &|_| false, ways).unwrap()).unwrap();
            let schedule = check_for(target, &graph, false);
            let loops = schedule.steps.iter().flat_map(|step| step.kernel.bodies());
            let is_short = |body: &KernelBody| matches!(body, KernelBody::Loop(body) if body.row.is_empty());
            let short = loops.filter(|body| is_short(body)).count();
            assert_eq!(schedule.steps.len(), wanted, "{size:?} {stride:?}: {schedule}");
            assert!(wanted == 1 || short == 2, "{size:?} {stride:?}: {schedule}");
        }
    }
}
