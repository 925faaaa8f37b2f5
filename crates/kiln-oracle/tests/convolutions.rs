//! Interpreter, eager and compiled agree on convolutions of all attributes, in chains, with gradients and of no images
//! (`KILN_FUZZ_GRAPHS` says how many).

use kiln_ir::build::{self, Emit, GraphBuilder};
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
