//! Interpreter, eager and compiled agree on convolutions of all attributes, in chains, with gradients and of no images
//! (`KILN_FUZZ_GRAPHS` says how many).

use kiln_ir::build::{self, ConvOptions, Emit, GraphBuilder};
use kiln_ir::examples::Random;
use kiln_ir::{ConvDims, DType, Error, Graph, NodeId, Op, TensorType, generate};
use kiln_oracle::{self as oracle, Config, LayoutChoice, Tally};

/// Attributes of a convolution, and the sizes of its kernel.
struct Conv {
    dims: ConvDims,
    w: Vec<usize>,
}

/// Any convolution of images of this shape.
fn conv(random: &mut Random, x: &[usize]) -> Conv {
    let spatial = x.len() - 2;
    let divides = |groups: &usize| x[1].is_multiple_of(*groups);
    let groups = [1, 1, 2, x[1]].into_iter().filter(divides).nth(random.below(3)).unwrap_or(1);
    let outputs = if groups == x[1] { groups } else { groups * (1 + random.below(20 / groups)) };
    let kernel: Vec<usize> = (0..spatial).map(|_| *random.choose(&[1, 2, 3, 3, 4, 5, 7])).collect();
    let each = |random: &mut Random, of: &[usize]| (0..spatial).map(|_| *random.choose(of)).collect::<Vec<usize>>();
    let dims = ConvDims {
        stride: each(random, &[1, 1, 2, 3]),
        padding: (0..spatial).map(|_| (random.below(5) as i64 - 1, random.below(5) as i64 - 1)).collect(),
        dilation: each(random, &[1, 1, 1, 2]),
        input_dilation: if random.chance(0.2) { each(random, &[1, 2, 3]) } else { vec![1; spatial] },
        groups,
    };
    Conv { dims, w: [outputs, x[1] / groups].into_iter().chain(kernel).collect() }
}

/// One convolution or two with something between them, or the gradients of one.
fn graph(seed: u64, random: &mut Random) -> Result<Graph, Error> {
    let spatial = *random.choose(&[1, 2, 2, 2, 3]);
    let channels = *random.choose(&[1, 3, 4, 8, 17]);
    let images = if random.chance(0.05) { 0 } else { 1 + random.below(3) };
    let size = if spatial == 3 { 6 } else { 20 };
    let x: Vec<usize> = [images, channels].into_iter().chain((0..spatial).map(|_| 1 + random.below(size))).collect();
    let mut b = GraphBuilder::new();
    let mut y = b.input(TensorType::fixed(DType::F32, &x))?;
    let input = y;
    let gradients = seed.is_multiple_of(4) && images > 0;
    for last in [gradients || random.chance(0.5), true] {
        let shape = b.ty(&y).fixed_shape().unwrap_or_default();
        let Conv { dims, w } = conv(random, &shape);
        let w = b.input(TensorType::fixed(DType::F32, &w))?;
        let op = Op::Conv(dims.into());
        let z = b.emit(op.clone(), &[y, w])?;
        if gradients {
            let g = b.input(b.ty(&z))?;
            for gradient in
                kiln_passes::gradient(&mut b, &op, &[input, w], &z, &g, &[true, true])?.into_iter().flatten()
            {
                b.output(gradient);
            }
            return Ok(b.finish());
        }
        y = between(&mut b, random, z)?;
        if last {
            break;
        }
    }
    b.output(y);
    Ok(b.finish())
}

/// A bias, an activation, a residual, or nothing.
fn between(b: &mut GraphBuilder, random: &mut Random, y: NodeId) -> Result<NodeId, Error> {
    match random.below(4) {
        0 => Ok(y),
        1 => build::relu(b, &y),
        2 => {
            let residual = b.input(b.ty(&y))?;
            build::add(b, &y, &residual)
        }
        _ => {
            let ty = b.ty(&y);
            let bias = b.input(TensorType::fixed(DType::F32, &[ty.shape[1].as_usize().unwrap_or(1)]))?;
            let bias = build::along_axis(b, &bias, ty.rank(), 1)?;
            let y = build::add(b, &y, &bias)?;
            build::silu(b, &y)
        }
    }
}

#[test]
fn on_convolutions() {
    let default = if kiln_cpu::features::Isa::get() == kiln_cpu::features::Isa::Portable { 100 } else { 300 };
    let count = std::env::var("KILN_FUZZ_GRAPHS").ok().and_then(|n| n.parse().ok()).unwrap_or(default);
    let mut tally = Tally::default();
    for seed in 0..count {
        // Windows that fit nowhere are refused.
        let Ok(graph) = graph(seed, &mut Random(seed)) else { continue };
        let layout = LayoutChoice::ALL[(seed % 4) as usize];
        let config = Config { layout, ..Default::default() };
        match oracle::compare(&graph, &generate::inputs(&graph, seed), &config) {
            Ok(agreement) => tally.add(&agreement),
            Err(error) => panic!("seed {seed}, {layout:?}: {error}\n{graph}"),
        }
    }
    assert!(tally.comparisons > count / 3, "{tally}");
}

/// A convolution with a bias whose images, weights and results have their channels last in memory.
fn channels_last(dtype: DType, x: [usize; 4], w: [usize; 4], stride: usize, groups: usize) -> Result<Graph, Error> {
    let mut b = GraphBuilder::new();
    let mut input = |[n, c, height, width]: [usize; 4]| {
        let last = b.input(TensorType::fixed(dtype, &[n, height, width, c]))?;
        build::permute(&mut b, &last, &[0, 3, 1, 2])
    };
    let (x, kernel) = (input(x)?, input(w)?);
    let bias = b.input(TensorType::fixed(dtype, &w[..1]))?;
    let (padding, stride) = (vec![w[2] / 2, w[3] / 2], vec![stride; 2]);
    let options = ConvOptions { stride, padding, dilation: vec![1; 2], groups };
    let y = build::conv(&mut b, &x, &kernel, Some(&bias), &options)?;
    let y = build::permute(&mut b, &y, &[0, 2, 3, 1])?;
    b.output(y);
    Ok(b.finish())
}

#[test]
fn with_channels_last() {
    // Images, channels, results, height, width, taps, stride, groups.
    const CASES: &[[usize; 8]] = &[
        // Channels are the innermost loop, with results of one vector, one panel and several.
        [2, 20, 40, 7, 13, 3, 1, 1],
        [1, 17, 16, 9, 6, 3, 2, 1],
        [1, 34, 100, 5, 7, 5, 1, 1],
        [0, 20, 40, 7, 13, 3, 1, 1],
        // Few channels; channels that are no whole number of pairs.
        [1, 3, 33, 15, 17, 7, 2, 1],
        // One pixel, of a few results.
        [2, 24, 40, 7, 11, 1, 1, 1],
        [1, 26, 130, 9, 16, 1, 1, 1],
        // Several groups in a vector, and a last one that is not full; a vector a group; pixels far apart.
        [1, 32, 32, 6, 11, 3, 1, 8],
        [2, 24, 24, 5, 9, 3, 1, 3],
        [1, 48, 48, 7, 10, 3, 1, 3],
        [1, 512, 512, 2, 14, 3, 1, 32],
        // Single channels, in vectors that are full, and in a last one that is not.
        [1, 40, 40, 9, 20, 3, 1, 40],
        [2, 32, 32, 8, 5, 5, 2, 32],
        [0, 40, 40, 9, 20, 3, 1, 40],
    ];
    for dtype in [DType::F32, DType::Bf16, DType::F16] {
        for (seed, &[images, channels, outputs, height, width, taps, stride, groups]) in CASES.iter().enumerate() {
            let (x, w) = ([images, channels, height, width], [outputs, channels / groups, taps, taps]);
            let graph = channels_last(dtype, x, w, stride, groups).unwrap();
            let inputs = generate::inputs(&graph, seed as u64);
            if let Err(error) = oracle::compare(&graph, &inputs, &Config::default()) {
                panic!("{dtype} {x:?} {w:?} stride {stride}: {error}");
            }
        }
    }
}
