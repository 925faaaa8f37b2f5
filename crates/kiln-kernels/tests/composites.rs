//! What users write: composites and random chains of them, through the passes and the scheduler. Each schedule must give what
//! the interpreter gives, and the well-known ones must be one kernel.

use kiln_ir::build::{self, GraphBuilder, RopeStyle};
use kiln_ir::examples::Random;
use kiln_ir::{DType, Dim, Error, Graph, HostTensor, NodeId, Scalar, Symbol, TensorType, Tolerance, interpret};
use kiln_kernels::{InputLayout, Schedule, ScheduleOptions, reference, schedule};

/// Sizes of symbols.
fn size(symbol: Symbol) -> Option<i64> {
    match symbol.as_str() {
        "b" => Some(2),
        "t" => Some(5),
        _ => None,
    }
}

/// The schedule of a graph after the passes; it must agree with the interpreter.
fn scheduled(graph: &Graph, seed: u64) -> Schedule {
    let simple = kiln_passes::run(graph.clone()).unwrap();
    let layouts: Vec<InputLayout> = simple.inputs().iter().map(|&id| InputLayout::contiguous(simple.ty(id))).collect();
    let schedule = schedule(&simple, &layouts, &ScheduleOptions::default()).unwrap();
    let mut random = Random(seed);
    let mut inputs = Vec::new();
    for &id in graph.inputs() {
        let ty = graph.ty(id);
        let shape: Vec<usize> = ty.shape.iter().map(|d| d.eval(&size).unwrap() as usize).collect();
        let mut tensor = HostTensor::zeros(ty.dtype, &shape).unwrap();
        let (low, high) = if ty.dtype.is_int() { (0.0, 3.0) } else { (-1.0, 1.0) };
        (0..tensor.elements()).for_each(|i| tensor.set(i, random.scalar(ty.dtype, low, high)));
        inputs.push(tensor);
    }
    let wanted = interpret::run(graph, &inputs).unwrap();
    let mut memory: Vec<HostTensor> = inputs.iter().map(|t| t.clone().reshape(&[t.elements()]).unwrap()).collect();
    let got = reference::run(&schedule, &mut memory, &size).unwrap_or_else(|e| panic!("{e}\n{simple}\n{schedule}"));
    for (got, wanted) in got.into_iter().zip(wanted) {
        let got = got.reshape(wanted.shape()).unwrap();
        if let Err(e) = got.compare(&wanted, Tolerance::of(wanted.dtype()).times(20.0)) {
            panic!("seed {seed}: {e}\n{simple}\n{schedule}");
        }
    }
    schedule
}

/// How many kernels a composite of some inputs becomes.
fn kernels(inputs: &[&str], build: impl Fn(&mut GraphBuilder, &[NodeId]) -> Result<Vec<NodeId>, Error>) -> usize {
    let mut builder = GraphBuilder::new();
    let ids: Vec<NodeId> = inputs.iter().map(|ty| builder.input(ty.parse::<TensorType>().unwrap()).unwrap()).collect();
    for output in build(&mut builder, &ids).unwrap() {
        builder.output(output);
    }
    scheduled(&builder.finish(), 1).steps.len()
}

#[test]
fn well_known_composites_are_one_kernel() {
    for x in ["f32[b, t, 48]", "bf16[b, t, 48]"] {
        let w = &x.replace("b, t, ", "");
        assert_eq!(kernels(&[x], |e, v| Ok(vec![build::softmax(e, &v[0], 2)?])), 1);
        assert_eq!(kernels(&[x], |e, v| Ok(vec![build::softmax(e, &v[0], 1)?])), 1);
        assert_eq!(kernels(&[x], |e, v| Ok(vec![build::log_softmax(e, &v[0], 2)?])), 1);
        assert_eq!(kernels(&[x], |e, v| Ok(vec![build::logsumexp(e, &v[0], &[2], false)?])), 1);
        assert_eq!(kernels(&[x], |e, v| Ok(vec![build::std_dev(e, &v[0], &[2], 1.0, false)?])), 1);
        let norm = |e: &mut GraphBuilder, v: &[NodeId]| {
            Ok(vec![build::layer_norm(e, &v[0], 1, Some(&v[1]), Some(&v[2]), 1e-5)?])
        };
        assert_eq!(kernels(&[x, w, w], norm), 1);
        let residual = |e: &mut GraphBuilder, v: &[NodeId]| {
            let sum = build::add(e, &v[0], &v[1])?;
            let normal = build::rms_norm(e, &sum, 1, Some(&v[2]), 1e-5)?;
            Ok(vec![sum, normal])
        };
        assert_eq!(kernels(&[x, x, w], residual), 1);
        let masked = |e: &mut GraphBuilder, v: &[NodeId]| {
            let masked = build::masked_fill(e, &v[0], &v[1], -1e4)?;
            let y = build::softmax(e, &masked, 2)?;
            let z = build::gelu(e, &y)?;
            Ok(vec![build::argmax(e, &z, 2, false)?, z])
        };
        assert_eq!(kernels(&[x, "bool[b, t, 48]"], masked), 1);
        let swiglu = |e: &mut GraphBuilder, v: &[NodeId]| {
            let gate = build::silu(e, &v[0])?;
            Ok(vec![build::mul(e, &gate, &v[1])?])
        };
        assert_eq!(kernels(&[x, x], swiglu), 1);
        assert_eq!(kernels(&[x], |e, v| Ok(vec![build::glu(e, &v[0], 2)?])), 1);
        for style in [RopeStyle::Half, RopeStyle::Interleaved] {
            let rope = |e: &mut GraphBuilder, v: &[NodeId]| Ok(vec![build::rope(e, &v[0], &v[1], &v[2], style)?]);
            assert_eq!(kernels(&["f32[b, 4, t, 16]", "f32[t, 8]", "f32[t, 8]"], rope), 1, "{style:?}");
        }
    }
    let embedding = |e: &mut GraphBuilder, v: &[NodeId]| Ok(vec![build::embedding(e, &v[0], &v[1])?]);
    assert_eq!(kernels(&["f32[50, 16]", "i64[b, t]"], embedding), 1);
    let linear = |e: &mut GraphBuilder, v: &[NodeId]| {
        let y = build::linear(e, &v[0], &v[1], Some(&v[2]))?;
        Ok(vec![build::gelu_tanh(e, &y)?])
    };
    assert_eq!(kernels(&["f32[b, t, 24]", "f32[96, 24]", "f32[96]"], linear), 1);
    let group = |e: &mut GraphBuilder, v: &[NodeId]| Ok(vec![build::group_norm(e, &v[0], 4, None, None, 1e-5)?]);
    assert_eq!(kernels(&["f32[b, 8, 6, 6]"], group), 1);
    let pool = |e: &mut GraphBuilder, v: &[NodeId]| {
        Ok(vec![build::avg_pool(e, &v[0], &build::PoolOptions::new(&[2, 2]), true)?])
    };
    assert_eq!(kernels(&["f32[b, 3, 8, 8]"], pool), 1);
}

/// One more step on a random one of the values so far, all of which are `[2, 6, 8]`-like.
fn grow(e: &mut GraphBuilder, values: &[NodeId], random: &mut Random) -> Result<NodeId, Error> {
    let x = *random.choose(values);
    let y = *random.choose(values);
    let (xs, ys) = (build::Emit::ty(e, &x).shape, build::Emit::ty(e, &y).shape);
    let axis = random.below(3);
    let half = xs[axis].floor_div(&Dim::from(2));
    match random.below(16) {
        0 => build::softmax(e, &x, axis),
        1 => build::layer_norm(e, &x, 1 + random.below(2), None, None, 1e-2),
        2 => build::rms_norm(e, &x, 1, None, 1e-2),
        3 => build::gelu(e, &x),
        4 => build::tanh(e, &x),
        5 | 6 if xs == ys => build::add(e, &x, &y),
        7 if xs == ys => build::mul(e, &x, &y),
        8 => build::transpose(e, &x, axis, (axis + 1) % 3),
        9 => {
            let rest = &xs[axis] - &half;
            let (a, b) = (build::narrow(e, &x, axis, 0, half.clone())?, build::narrow(e, &x, axis, half, rest)?);
            let b = build::neg(e, &b)?;
            build::concat(e, &[b, a], axis)
        }
        10 => {
            let mean = build::mean(e, &x, &[axis], true)?;
            build::sub(e, &x, &mean)
        }
        11 => {
            let flat = build::reshape(e, &x, &[&xs[0] * &xs[1], xs[2].clone()])?;
            let t = build::softmax(e, &flat, 1)?;
            build::reshape(e, &t, &xs)
        }
        12 => build::flip(e, &x, &[axis]),
        13 => {
            // x·xᵀ·x / size keeps the shape.
            let transposed = build::transpose(e, &x, 1, 2)?;
            let product = build::matmul(e, &x, &transposed)?;
            let product = build::matmul(e, &product, &x)?;
            build::mul_scalar(e, &product, 0.02)
        }
        14 => {
            let largest = build::reduce(e, kiln_ir::ReduceKind::Max, &x, &[axis], true)?;
            let scale = build::exp(e, &largest)?;
            let wide = build::broadcast_to(e, &scale, &xs)?;
            build::div(e, &x, &wide)
        }
        15 => {
            let split =
                build::reshape(e, &x, &[xs[0].clone(), Dim::from(2), xs[1].floor_div(&Dim::from(2)), xs[2].clone()])?;
            let turned = build::permute(e, &split, &[0, 2, 1, 3])?;
            build::reshape(e, &turned, &xs)
        }
        _ => build::sigmoid(e, &x),
    }
}

#[test]
fn random_chains_agree() {
    let count = std::env::var("KILN_FUZZ_COUNT").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    for seed in 0..count {
        let mut random = Random(seed + 1);
        let mut builder = GraphBuilder::new();
        let mut values = Vec::new();
        for _ in 0..2 {
            let ty = TensorType::fixed(DType::F32, &[2, 6, 8]);
            values.push(builder.input(ty).unwrap());
        }
        for _ in 0..3 + random.below(10) {
            // Axes may have changed places; a step that does not fit is left out.
            if let Ok(value) = grow(&mut builder, &values, &mut random) {
                values.push(value);
            }
        }
        let last = *values.last().unwrap();
        builder.output(last);
        if random.chance(0.5) {
            builder.output(values[values.len() / 2]);
        }
        let one = build::full(&mut builder, Scalar::float(DType::F32, 1.0), &[Dim::from(3)]).unwrap();
        if random.chance(0.1) {
            builder.output(one);
        }
        scheduled(&builder.finish(), seed);
    }
}

/// The transform of some rows, against its definition in f64.
#[test]
fn transforms_are_those_of_the_definition() {
    for n in (2..=40).chain([48, 60, 63, 64, 77, 100, 121, 128, 143, 169, 210, 256, 1000]) {
        for forward in [true, false] {
            let mut builder = GraphBuilder::new();
            let x = builder.input(TensorType::fixed(DType::F64, &[2, n, 3, 2])).unwrap();
            let y = build::dft(&mut builder, &x, 1, forward, 0.5).unwrap();
            builder.output(y);
            let mut random = Random(n as u64);
            let mut input = HostTensor::zeros(DType::F64, &[2, n, 3, 2]).unwrap();
            (0..input.elements()).for_each(|i| input.set(i, random.scalar(DType::F64, -1.0, 1.0)));
            let got = interpret::run(&builder.finish(), &[input.clone()]).unwrap()[0].to_f64();
            let given = input.to_f64();
            let turn = if forward { -1.0 } else { 1.0 } * std::f64::consts::TAU / n as f64;
            for (row, column) in [(0, 0), (1, 2)] {
                let at = |j: usize| 2 * ((row * n + j) * 3 + column);
                for k in 0..n {
                    let (mut real, mut imaginary) = (0.0, 0.0);
                    for j in 0..n {
                        let angle = turn * (j * k % n) as f64;
                        let (a, b) = (given[at(j)], given[at(j) + 1]);
                        real += 0.5 * (a * angle.cos() - b * angle.sin());
                        imaginary += 0.5 * (a * angle.sin() + b * angle.cos());
                    }
                    let off = (got[at(k)] - real).abs().max((got[at(k) + 1] - imaginary).abs());
                    assert!(off < 1e-12 * n as f64, "{k} of {n}: {off:e}");
                }
            }
        }
    }
}

/// Transforms of real numbers and to them, along an axis in the middle: the complex one of half the length, and of odd lengths the whole.
#[test]
fn real_transforms_are_the_sums_that_define_them() {
    for n in [2, 3, 4, 5, 6, 8, 9, 10, 16, 22, 34, 74, 96] {
        for forward in [true, false] {
            let half = n / 2 + 1;
            let turn = if forward { -1.0 } else { 1.0 } * std::f64::consts::TAU / n as f64;
            let mut builder = GraphBuilder::new();
            let x = builder.input(TensorType::fixed(DType::F64, &[2, n, 3])).unwrap();
            let z = builder.input(TensorType::fixed(DType::F64, &[2, half, 3, 2])).unwrap();
            let there = build::dft_of_real(&mut builder, &x, 1, forward, 0.5).unwrap();
            let back = build::dft_to_real(&mut builder, &z, 1, &Dim::from(n), forward, 0.5).unwrap();
            builder.output(there);
            builder.output(back);
            let mut random = Random(n as u64);
            let mut inputs = [
                HostTensor::zeros(DType::F64, &[2, n, 3]).unwrap(),
                HostTensor::zeros(DType::F64, &[2, half, 3, 2]).unwrap(),
            ];
            for input in &mut inputs {
                (0..input.elements()).for_each(|i| input.set(i, random.scalar(DType::F64, -1.0, 1.0)));
            }
            let [x, z] = [0, 1].map(|i| inputs[i].to_f64());
            let got = interpret::run(&builder.finish(), &inputs).unwrap();
            let (there, back) = (got[0].to_f64(), got[1].to_f64());
            for (row, column) in [(0, 0), (1, 2)] {
                let at = |j: usize| (row * n + j) * 3 + column;
                let pair = |k: usize| 2 * ((row * half + k) * 3 + column);
                for k in 0..half {
                    let angles = (0..n).map(|j| (j, turn * (j * k % n) as f64));
                    let real: f64 = angles.clone().map(|(j, angle)| 0.5 * x[at(j)] * angle.cos()).sum();
                    let imaginary: f64 = angles.map(|(j, angle)| 0.5 * x[at(j)] * angle.sin()).sum();
                    let off = (there[pair(k)] - real).abs().max((there[pair(k) + 1] - imaginary).abs());
                    assert!(off < 1e-12 * n as f64, "{k} of {n}: {off:e}");
                }
                for j in 0..n {
                    // The first element, and the middle one of an even length, count by their real parts.
                    let real: f64 = (0..n)
                        .map(|k| {
                            let angle = turn * (j * k % n) as f64;
                            let (a, b) = if k < half { (k, 1.0) } else { (n - k, -1.0) };
                            let b = if k == 0 || 2 * k == n { 0.0 } else { b * z[pair(a) + 1] };
                            0.5 * (z[pair(a)] * angle.cos() - b * angle.sin())
                        })
                        .sum();
                    let off = (back[at(j)] - real).abs();
                    assert!(off < 1e-12 * n as f64, "{j} of {n}: {off:e}");
                }
            }
        }
    }
}

#[test]
fn a_transform_takes_as_many_kernels_as_passes() {
    let transform = |e: &mut GraphBuilder, v: &[NodeId]| Ok(vec![build::dft(e, &v[0], 1, true, 1.0)?]);
    assert_eq!(kernels(&["f32[4, 8, 2]"], transform), 1);
    assert_eq!(kernels(&["f32[4, 64, 2]"], transform), 2);
    assert_eq!(kernels(&["f32[4, 1024, 2]"], transform), 3);
}

/// Views of strides that are slices, and those that are not, read and written.
#[test]
fn strided_views_are_the_elements_that_strides_say() {
    let views: &[(&[usize], &[usize], usize)] = &[
        (&[6, 5], &[10, 1], 3),
        (&[5, 6], &[1, 10], 3),
        (&[3, 2, 5], &[20, 10, 2], 1),
        (&[2, 3, 1, 4], &[5, 20, 7, 1], 0),
        (&[60], &[1], 0),
        (&[], &[], 59),
        (&[4, 4], &[4, 3], 2),
        (&[3, 4], &[7, 1], 5),
        (&[9, 9], &[1, 1], 0),
    ];
    for &(shape, strides, offset) in views {
        let dims = |numbers: &[usize]| -> Vec<Dim> { numbers.iter().map(|&n| Dim::from(n)).collect() };
        let distinct = strides != [1, 1] && strides != [4, 3];
        let mut builder = GraphBuilder::new();
        let x = builder.input(TensorType::fixed(DType::F32, &[60])).unwrap();
        let part = builder.input(TensorType::fixed(DType::F32, shape)).unwrap();
        let (strides_of, start) = (dims(strides), Dim::from(offset));
        let read = build::as_strided(&mut builder, &x, &dims(shape), &strides_of, &start).unwrap();
        builder.output(read);
        if distinct {
            let written = build::as_strided_scatter(&mut builder, &x, &part, &strides_of, &start).unwrap();
            builder.output(written);
        }
        let count: usize = shape.iter().product();
        let numbers = |from: usize, count: usize| (from..from + count).map(|n| n as f32).collect::<Vec<f32>>();
        let (whole, new) = (numbers(0, 60), numbers(1000, count));
        let inputs = [HostTensor::from_slice(&[60], &whole).unwrap(), HostTensor::from_slice(shape, &new).unwrap()];
        let got = interpret::run(&builder.finish(), &inputs).unwrap();
        let mut wanted = whole.clone();
        for (n, new) in new.iter().enumerate() {
            let (mut rest, mut place) = (n, offset);
            for (size, stride) in shape.iter().zip(strides).rev() {
                place += rest % size * stride;
                rest /= size;
            }
            assert_eq!(got[0].to_vec::<f32>().unwrap()[n], whole[place], "{shape:?} {strides:?}");
            wanted[place] = *new;
        }
        if distinct {
            assert_eq!(got[1].to_vec::<f32>().unwrap(), wanted, "{shape:?} {strides:?}");
        }
    }
}
