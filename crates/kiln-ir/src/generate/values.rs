//! Input values: ordinary numbers mostly, then small whole ones, then everything IEEE 754 has corners for.

use super::symbol_value;
use crate::examples::Random;
use crate::{DType, Graph, HostTensor, NodeId, Op, Scalar};

/// Inputs that fit a graph of constant sizes or of symbols that name their value. An input that indexes a gather or a
/// scatter is within range.
pub fn inputs(graph: &Graph, seed: u64) -> Vec<HostTensor> {
    let ranges = index_ranges(graph);
    let inputs = graph.inputs().iter().enumerate().map(|(index, &id)| {
        // By the line that an input comes from, so that it keeps its values when others are taken away.
        let source = &graph.node(id).source;
        let own = if source.is_unknown() { index as u64 } else { u64::from(source.line) + (1 << 32) };
        let mut rng = Random(seed.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ Random(own).bits());
        let ty = graph.ty(id);
        let sizes = ty.shape.iter().map(|size| size.eval(&symbol_value).map_or(0, |n| n.max(0) as usize));
        let shape: Vec<usize> = sizes.collect();
        let Some(range) = ranges[id.index()] else { return tensor(&mut rng, ty.dtype, &shape) };
        let values: Vec<i64> = (0..shape.iter().product()).map(|_| rng.below(range) as i64).collect();
        HostTensor::from_i64(ty.dtype, &shape, &values).unwrap_or_else(|_| nothing())
    });
    inputs.collect()
}

fn nothing() -> HostTensor {
    HostTensor::scalar(Scalar::bool(false))
}

/// For each node that is an index, possibly seen through views, below what its values must be.
fn index_ranges(graph: &Graph) -> Vec<Option<usize>> {
    let mut ranges: Vec<Option<usize>> = vec![None; graph.nodes().len()];
    let lower = |ranges: &mut Vec<Option<usize>>, id: NodeId, n: usize| {
        let range = &mut ranges[id.index()];
        *range = Some(range.map_or(n, |old| old.min(n)));
    };
    for (id, node) in graph.iter().rev() {
        if let Op::Gather { axis } | Op::Scatter { axis, .. } = node.op {
            let size = &graph.ty(node.operands[0]).shape[axis];
            let n = size.eval(&symbol_value).map_or(0, |n| n.max(0) as usize);
            lower(&mut ranges, node.operands[1], n);
        }
        if let Some(n) = ranges[id.index()]
            && (node.op.is_view() || matches!(node.op, Op::Concat { .. }))
        {
            node.operands.iter().for_each(|&operand| lower(&mut ranges, operand, n));
        }
    }
    ranges
}

/// A tensor of random values.
pub(super) fn tensor(rng: &mut Random, dtype: DType, shape: &[usize]) -> HostTensor {
    let count: usize = shape.iter().product();
    let made = if dtype.is_float() {
        let style = rng.below(10);
        let values: Vec<f64> = (0..count).map(|_| float(rng, dtype, style)).collect();
        HostTensor::from_f64(dtype, shape, &values)
    } else {
        let style = rng.below(4);
        let values: Vec<i64> = (0..count).map(|_| int(rng, dtype, style)).collect();
        HostTensor::from_i64(dtype, shape, &values)
    };
    made.unwrap_or_else(|_| nothing())
}

fn float(rng: &mut Random, dtype: DType, style: usize) -> f64 {
    let corners = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        1e-40,
        -1e-40,
        1e-45,
        6e-8,
        -6e-8,
        65504.0,
        3.4e38,
        -3.4e38,
        1e300,
        f64::MIN_POSITIVE,
        0.5,
        2.0,
        88.8,
        -104.0,
        16777216.0,
    ];
    match style {
        // Small whole numbers: ties, equal elements, zeros of both signs.
        0 | 1 => [-3.0, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 3.0, 4.0][rng.below(9)],
        2 if rng.chance(0.3) => *rng.choose(&corners),
        3 => (rng.unit() - 0.5) * 10f64.powi(rng.below(13) as i32 - 6),
        // Infinity is what the wide ranges become in the narrow types; keep some of them narrow.
        4 if dtype != DType::F64 => (rng.unit() - 0.5) * 64.0,
        _ => (rng.unit() - 0.5) * 4.0,
    }
}

fn int(rng: &mut Random, dtype: DType, style: usize) -> i64 {
    match style {
        _ if dtype == DType::Bool => rng.below(2) as i64,
        0 => rng.bits() as i64,
        1 if rng.chance(0.2) => {
            *rng.choose(&[i64::MIN, i64::MAX, i32::MIN.into(), i32::MAX.into(), -128, 127, 255, 0, -1])
        }
        _ => rng.below(17) as i64 - 8,
    }
}
