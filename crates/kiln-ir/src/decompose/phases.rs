//! Transposed convolutions by phases. Results whose places are equal modulo the distance of the input's elements meet the same taps: each
//! such *phase* is an ordinary convolution with every so-manieth tap, and the phases are interleaved. No zero is put between elements.

use crate::build::{Built, Emit, GraphBuilder, concat, reshape, slice_axis};
use crate::{ConvDims, Dim, Error, Graph, NodeId, Op, Scalar};

/// The graph with convolutions of spread inputs rewritten into phases, where their sizes are known and their step is one along spread
/// axes; others stay.
///
/// ```
/// use kiln_ir::decompose::split_phases;
/// use kiln_ir::{ConvDims, DType, Graph, Op, Source, TensorType};
/// let mut graph = Graph::new();
/// let x = graph.input(TensorType::fixed(DType::F32, &[1, 3, 8]), Source::caller()).unwrap();
/// let w = graph.input(TensorType::fixed(DType::F32, &[4, 3, 4]), Source::caller()).unwrap();
/// let dims = ConvDims { stride: vec![1], padding: vec![(2, 2)], dilation: vec![1], input_dilation: vec![2], groups: 1 };
/// let y = graph.add(Op::Conv(dims.into()), &[x, w], Source::caller()).unwrap();
/// graph.output(y);
/// let phases = split_phases(&graph).unwrap();
/// let spread = |op: &Op| matches!(op, Op::Conv(dims) if dims.input_dilation != [1]);
/// assert!(!phases.nodes().iter().any(|node| spread(&node.op)));
/// ```
pub fn split_phases(graph: &Graph) -> Result<Graph, Error> {
    let axes_of = |id: NodeId| {
        let node = graph.node(id);
        match &node.op {
            Op::Conv(dims) if dims.input_dilation.iter().any(|&spread| spread > 1) => axes(graph, id, dims),
            _ => None,
        }
    };
    if !graph.iter().any(|(id, _)| axes_of(id).is_some()) {
        return Ok(graph.clone());
    }
    let mut b = GraphBuilder::new();
    let mut renamed: Vec<NodeId> = Vec::with_capacity(graph.nodes().len());
    for (id, node) in graph.iter() {
        b.set_source(Some(node.source.clone()));
        let operands: Vec<NodeId> = node.operands.iter().map(|o| renamed[o.index()]).collect();
        renamed.push(match (&node.op, axes_of(id)) {
            (Op::Input { .. }, _) => b.input(node.ty.clone())?,
            (Op::Conv(dims), Some(axes)) => phases(&mut b, dims, &axes, operands[0], operands[1], &node.ty.shape)?,
            (op, _) => b.emit(op.clone(), &operands)?,
        });
    }
    for output in graph.outputs() {
        match output.updates {
            Some(input) => b.update(renamed[output.node.index()], input),
            None => b.output(renamed[output.node.index()]),
        }
    }
    Ok(b.finish())
}

/// One spatial axis of a convolution: sizes of input, kernel and result, and its attributes.
struct SpatialAxis {
    length: i64,
    taps: i64,
    places: i64,
    stride: usize,
    padding: (i64, i64),
    dilation: i64,
    /// Distance of the input's elements.
    spread: i64,
}

/// What one phase is along one axis.
struct Phase {
    /// First tap, and how many there are.
    first: i64,
    taps: i64,
    padding: (i64, i64),
}

impl SpatialAxis {
    /// Results of each phase.
    fn count(&self) -> i64 {
        (self.places + self.spread - 1) / self.spread
    }

    fn phase(&self, number: i64) -> Phase {
        if self.spread == 1 {
            return Phase { first: 0, taps: self.taps, padding: self.padding };
        }
        // The taps that fall on elements: number + tap · dilation ≡ padding, modulo the distance.
        let meets = |tap: &i64| (number + tap * self.dilation - self.padding.0).rem_euclid(self.spread) == 0;
        let first = (0..self.spread).find(meets).unwrap_or(self.taps).min(self.taps);
        let taps = (self.taps - first + self.spread - 1) / self.spread;
        let low = (self.padding.0 - number - first * self.dilation).div_euclid(self.spread);
        let high = self.count() - self.length - low + (taps - 1) * self.dilation;
        Phase { first, taps, padding: (low, high) }
    }
}

/// The axes of a convolution that can be split; `None` for others.
fn axes(graph: &Graph, id: NodeId, dims: &ConvDims) -> Option<Vec<SpatialAxis>> {
    let node = graph.node(id);
    let (x, w) = (graph.ty(node.operands[0]), graph.ty(node.operands[1]));
    let axis = |i: usize| {
        let (spread, dilation) = (dims.input_dilation[i] as i64, dims.dilation[i] as i64);
        let axis = SpatialAxis {
            length: x.shape[i + 2].as_const()?,
            taps: w.shape[i + 2].as_const()?,
            places: node.ty.shape[i + 2].as_const()?,
            stride: dims.stride[i],
            padding: dims.padding[i],
            dilation,
            spread,
        };
        let splits = spread == 1 || (axis.stride == 1 && common_divisor(dilation, spread) == 1);
        (splits && axis.length > 0 && axis.taps > 0 && axis.places > 0).then_some(axis)
    };
    (0..dims.stride.len()).map(axis).collect()
}

fn common_divisor(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Every phase, interleaved.
fn phases(
    b: &mut GraphBuilder,
    dims: &ConvDims,
    axes: &[SpatialAxis],
    x: NodeId,
    w: NodeId,
    out: &[Dim],
) -> Built<GraphBuilder> {
    let total: i64 = axes.iter().map(|axis| axis.spread).product();
    let mut parts = Vec::with_capacity(total as usize);
    for mut number in 0..total {
        let mut numbers = vec![0; axes.len()];
        for (at, axis) in numbers.iter_mut().zip(axes).rev() {
            *at = number % axis.spread;
            number /= axis.spread;
        }
        let phases: Vec<Phase> = axes.iter().zip(&numbers).map(|(axis, &number)| axis.phase(number)).collect();
        let y = phase(b, dims, axes, &phases, x, w, out)?;
        // A place of its own for the number of the phase behind each axis.
        let places = axes.iter().flat_map(|axis| [Dim::from(result_size(axis)), Dim::from(1)]);
        let shape: Vec<Dim> = out[..2].iter().cloned().chain(places).collect();
        parts.push(reshape(b, &y, &shape)?);
    }
    for (i, axis) in axes.iter().enumerate().rev() {
        let groups = parts.chunks(axis.spread as usize).map(<[NodeId]>::to_vec).collect::<Vec<_>>();
        parts.clear();
        for group in groups {
            parts.push(if group.len() == 1 { group[0] } else { concat(b, &group, 3 + 2 * i)? });
        }
    }
    let whole = axes.iter().map(|axis| Dim::from(result_size(axis) * axis.spread));
    let shape: Vec<Dim> = out[..2].iter().cloned().chain(whole).collect();
    let mut y = reshape(b, &parts[0], &shape)?;
    for (i, size) in out.iter().enumerate().skip(2) {
        y = slice_axis(b, &y, i, &Dim::from(0), size, 1)?;
    }
    Ok(y)
}

/// Results of a phase along an axis.
fn result_size(axis: &SpatialAxis) -> i64 {
    if axis.spread == 1 { axis.places } else { axis.count() }
}

fn phase(
    b: &mut GraphBuilder,
    dims: &ConvDims,
    axes: &[SpatialAxis],
    phases: &[Phase],
    x: NodeId,
    w: NodeId,
    out: &[Dim],
) -> Built<GraphBuilder> {
    if phases.iter().any(|phase| phase.taps == 0) {
        let places = axes.iter().map(|axis| Dim::from(result_size(axis)));
        let shape = out[..2].iter().cloned().chain(places).collect();
        let value = Scalar::int(b.ty(&x).dtype, 0);
        return b.emit(Op::Full { value, shape }, &[]);
    }
    let mut taps = w;
    for (i, (axis, phase)) in axes.iter().zip(phases).enumerate() {
        taps = slice_axis(b, &taps, i + 2, &Dim::from(phase.first), &Dim::from(phase.taps), axis.spread)?;
    }
    let dims = ConvDims {
        stride: dims.stride.clone(),
        padding: phases.iter().map(|phase| phase.padding).collect(),
        dilation: dims.dilation.clone(),
        input_dilation: vec![1; axes.len()],
        groups: dims.groups,
    };
    b.emit(Op::Conv(dims.into()), &[x, taps])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::Random;
    use crate::{DType, HostTensor, TensorType, Tolerance, interpret};

    fn check(x: &[usize], w: &[usize], dims: ConvDims) {
        let mut b = GraphBuilder::new();
        let inputs = [x, w].map(|shape| b.input(TensorType::fixed(DType::F32, shape)).unwrap());
        let y = b.emit(Op::Conv(dims.clone().into()), &inputs).unwrap();
        b.output(y);
        let graph = b.finish();
        let phases = split_phases(&graph).unwrap();
        let spread = |op: &Op| matches!(op, Op::Conv(dims) if dims.input_dilation.iter().any(|&d| d > 1));
        assert!(!phases.nodes().iter().any(|node| spread(&node.op)), "{phases}");
        let mut random = Random(3);
        let tensors = [x, w].map(|shape| {
            let mut tensor = HostTensor::zeros(DType::F32, shape).unwrap();
            (0..tensor.elements()).for_each(|i| tensor.set(i, random.scalar(DType::F32, -2.0, 2.0)));
            tensor
        });
        let wanted = interpret::run(&graph, &tensors).unwrap();
        let got = interpret::run(&phases, &tensors).unwrap();
        got[0].compare(&wanted[0], Tolerance::of(DType::F32)).unwrap_or_else(|e| panic!("{dims:?}: {e}\n{phases}"));
    }

    #[test]
    fn phases_are_the_convolution() {
        let dims = |padding: (i64, i64), dilation: usize, spread: usize| ConvDims {
            stride: vec![1; 2],
            padding: vec![padding; 2],
            dilation: vec![dilation; 2],
            input_dilation: vec![spread; 2],
            groups: 1,
        };
        for spread in [2, 3] {
            for taps in 1..=4 {
                for padding in [(0, 0), (taps as i64, taps as i64 - 1), (-1, 2)] {
                    check(&[2, 3, 4, 5], &[2, 3, taps, taps], dims(padding, 1, spread));
                }
            }
        }
        check(&[1, 2, 5, 5], &[2, 2, 3, 3], dims((3, 3), 3, 2));
        check(&[0, 2, 5, 5], &[2, 2, 3, 3], dims((1, 1), 1, 2));
        let one_axis = ConvDims { input_dilation: vec![1, 2], stride: vec![2, 1], groups: 2, ..dims((1, 1), 1, 1) };
        check(&[1, 4, 5, 6], &[6, 2, 3, 3], one_axis);
    }
}
