//! Rewrites the large ops — convolution, windows, attention and its gradients, quantised blocks — into the small ones, for
//! crates that do not have them.
//!
//! ```text
//!  conv           pad → unfold each spatial axis → dot
//!  reduce_window  pad with the identity → unfold each axis → reduce; or an axis at a time
//!  dequantize     shifts and masks of the bytes, times the scales
//!  attention      dot → scale, mask → exp(x − max) → dot → divide by the sum; its gradients from the weights
//! ```

mod attention;
mod phases;

pub use attention::{AttentionBackward, AttentionScores, kept_by};
pub use phases::split_phases;

use crate::build::{
    Built, Emit, GraphBuilder, add, along_axis, broadcast_to, cast, dequantize_by_parts, iota, mul, mul_scalar,
    permute, reshape, slice_axis, squeeze, sum,
};
use crate::{
    ConvDims, DType, Dim, DotDims, Error, Graph, Node, NodeId, Op, ReduceKind, Scalar, TensorType, WindowDims,
};

/// The graph with every convolution, window, attention and block rewritten, but for those for which `keep` returns true.
/// Inputs, outputs, updates and source lines stay; a graph without such ops is returned unchanged.
///
/// ```
/// use kiln_ir::decompose::decompose;
/// use kiln_ir::{ConvDims, DType, Graph, Op, Source, TensorType};
/// let mut graph = Graph::new();
/// let x = graph.input(TensorType::fixed(DType::F32, &[1, 3, 8]), Source::caller()).unwrap();
/// let w = graph.input(TensorType::fixed(DType::F32, &[4, 3, 3]), Source::caller()).unwrap();
/// let dims = ConvDims { stride: vec![1], padding: vec![(1, 1)], dilation: vec![1], input_dilation: vec![1], groups: 1 };
/// let y = graph.add(Op::Conv(dims.into()), &[x, w], Source::caller()).unwrap();
/// graph.output(y);
/// let small = decompose(&graph, &|_| false).unwrap();
/// assert!(small.nodes().iter().all(|n| !matches!(n.op, Op::Conv(_))));
/// ```
pub fn decompose(graph: &Graph, keep: &dyn Fn(&Op) -> bool) -> Result<Graph, Error> {
    decompose_by(graph, keep, Ways::default())
}

/// What large ops become where there are several ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ways {
    /// Depthwise convolutions of floats are products, a channel each, instead of sums of products: for targets that have code for
    /// convolutions of groups.
    pub depthwise_products: bool,
    /// Windows over several axes are reduced an axis at a time where that takes fewer loads, and where they are so large that a loop would
    /// go over each.
    pub separate_windows: bool,
}

/// [`decompose`], with a choice where there are several ways.
pub fn decompose_by(graph: &Graph, keep: &dyn Fn(&Op) -> bool, ways: Ways) -> Result<Graph, Error> {
    let is_large =
        |op: &Op| op.is_attention() || matches!(op, Op::Conv(_) | Op::ReduceWindow { .. } | Op::Dequantize { .. });
    if !graph.nodes().iter().any(|n| is_large(&n.op) && !keep(&n.op)) {
        return Ok(graph.clone());
    }
    let mut b = GraphBuilder::new();
    let mut renamed: Vec<NodeId> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        b.set_source(Some(node.source.clone()));
        let operands: Vec<NodeId> = node.operands.iter().map(|o| renamed[o.index()]).collect();
        let id = match (&node.op, &operands[..]) {
            (Op::Input { .. }, _) => b.input(node.ty.clone())?,
            (op, _) if keep(op) => b.emit(op.clone(), &operands)?,
            (Op::Conv(dims), &[x, w]) => conv(&mut b, dims, x, w, &node.ty.shape, ways.depthwise_products)?,
            (Op::ReduceWindow { kind, dims }, &[x]) => {
                let separate = ways.separate_windows && is_separate(*kind, dims, &node.ty);
                match separate {
                    true => reduce_window_by_axes(&mut b, *kind, dims, x, &node.ty.shape)?,
                    false => reduce_window(&mut b, *kind, dims, x, &node.ty.shape)?,
                }
            }
            (Op::Attention { causal, scale, .. }, [q, k, v, mask @ ..]) => {
                let scores = AttentionScores { causal: *causal, scale: *scale, q, k, mask: mask.first() };
                attention::attention(&mut b, &scores, v)?
            }
            (Op::AttentionLogsumexp { causal, scale, .. }, [q, k, mask @ ..]) => {
                let scores = AttentionScores { causal: *causal, scale: *scale, q, k, mask: mask.first() };
                attention::logsumexp(&mut b, &scores)?
            }
            (Op::AttentionGradient { of, causal, scale, .. }, [q, k, v, gradient, logsumexp, delta, mask @ ..]) => {
                let scores = AttentionScores { causal: *causal, scale: *scale, q, k, mask: mask.first() };
                let weights = match is_own_logsumexp(graph, node) {
                    true => scores.weights(&mut b)?,
                    false => scores.weights_by(&mut b, logsumexp)?,
                };
                let from = AttentionBackward { scores, weights, v, gradient, delta };
                attention::gradient(&mut b, *of, &from)?
            }
            (Op::Dequantize { format }, &[x]) => dequantize_by_parts(&mut b, &x, *format)?,
            (op, _) => b.emit(op.clone(), &operands)?,
        };
        renamed.push(id);
    }
    finish(b, graph, &renamed)
}

/// The graph that was built, with the outputs of another, whose nodes have these names in it.
fn finish(mut b: GraphBuilder, graph: &Graph, renamed: &[NodeId]) -> Result<Graph, Error> {
    for output in graph.outputs() {
        match output.updates {
            Some(input) => b.update(renamed[output.node.index()], input),
            None => b.output(renamed[output.node.index()]),
        }
    }
    Ok(b.finish())
}

/// The graph with masks of bools instead of bounds, for targets whose kernels know no bounds.
pub fn masks_of_bounds(graph: &Graph) -> Result<Graph, Error> {
    let mut b = GraphBuilder::new();
    let mut renamed: Vec<NodeId> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        b.set_source(Some(node.source.clone()));
        let mut operands: Vec<NodeId> = node.operands.iter().map(|o| renamed[o.index()]).collect();
        let id = match &node.op {
            Op::Input { .. } => b.input(node.ty.clone())?,
            op => {
                if has_bounds(graph, node) {
                    let keys = graph.ty(node.operands[1]).shape[2].clone();
                    operands[3] = kept_by(&mut b, &operands[3], &keys)?;
                }
                b.emit(op.clone(), &operands)?
            }
        };
        renamed.push(id);
    }
    finish(b, graph, &renamed)
}

/// Whether a node is attention with bounds of the visible keys.
pub fn has_bounds(graph: &Graph, node: &Node) -> bool {
    matches!(node.op, Op::Attention { mask: true, .. }) && graph.ty(node.operands[3]).dtype == DType::I64
}

/// True for a gradient of attention whose logarithms are those of its own scores: they need not be computed.
fn is_own_logsumexp(graph: &Graph, gradient: &Node) -> bool {
    let Op::AttentionGradient { causal, scale, mask, .. } = gradient.op else { return false };
    let logsumexp = graph.node(gradient.operands[4]);
    let of_scores = [&gradient.operands[..2], &gradient.operands[6..]].concat();
    logsumexp.op == Op::AttentionLogsumexp { causal, scale, mask } && logsumexp.operands == of_scores
}

/// Windows along an axis: it becomes their number and a new last axis counts inside them. A window of one element only
/// strides and adds no axis; one of symbolic size is read through computed indices.
fn windows<E: Emit>(
    b: &mut E,
    x: &E::Value,
    axis: usize,
    size: &Dim,
    stride: usize,
    dilation: usize,
    count: &Dim,
) -> Built<E> {
    if size.is_one() {
        return slice_axis(b, x, axis, &Dim::from(0), count, stride as i64);
    }
    if let Some(size) = size.as_usize() {
        return b.emit(Op::Unfold { axis, size, stride, dilation }, std::slice::from_ref(x));
    }
    let mut shape = b.ty(x).shape;
    let rank = shape.len();
    let index_shape = [count.clone(), size.clone()];
    let window = iota(b, DType::I64, &index_shape, 0)?;
    let window = mul_scalar(b, &window, stride as f64)?;
    let inside = iota(b, DType::I64, &index_shape, 1)?;
    let inside = mul_scalar(b, &inside, dilation as f64)?;
    let index = add(b, &window, &inside)?;
    let index = reshape(b, &index, &[count * size])?;
    let index = along_axis(b, &index, rank, axis)?;
    shape[axis] = count * size;
    let index = broadcast_to(b, &index, &shape)?;
    let gathered = b.emit(Op::Gather { axis }, &[x.clone(), index])?;
    shape[axis] = count.clone();
    shape.insert(axis + 1, size.clone());
    let split = reshape(b, &gathered, &shape)?;
    let order: Vec<usize> = (0..=rank).filter(|&a| a != axis + 1).chain([axis + 1]).collect();
    permute(b, &split, &order)
}

/// `dilation − 1` zeros between the elements of an axis.
fn spread<E: Emit>(b: &mut E, x: &E::Value, axis: usize, dilation: usize) -> Built<E> {
    if dilation == 1 {
        return Ok(x.clone());
    }
    let ty = b.ty(x);
    let zeros = Dim::from(dilation - 1);
    let mut shape = ty.shape.clone();
    shape.insert(axis + 1, Dim::from(1));
    let single = reshape(b, x, &shape)?;
    let mut high = vec![Dim::from(0); shape.len()];
    high[axis + 1] = zeros.clone();
    let low = vec![Dim::from(0); shape.len()];
    let padded = b.emit(Op::Pad { low, high, value: Scalar::int(ty.dtype, 0) }, &[single])?;
    let size = &ty.shape[axis];
    let mut joined = ty.shape.clone();
    joined[axis] = size * &Dim::from(dilation);
    let joined = reshape(b, &padded, &joined)?;
    // Written as the type rule of a convolution writes it, so that the sizes stay equal.
    let spread = Dim::max_of([(size - 1) * Dim::from(dilation) + 1, Dim::from(0)]);
    slice_axis(b, &joined, axis, &Dim::from(0), &spread, 1)
}

/// A value added around the axes from `first` on; negative amounts crop. What is added comes first, so that cropping may
/// reach into it.
fn pad<E: Emit>(b: &mut E, x: &E::Value, first: usize, amounts: &[(i64, i64)], value: Scalar) -> Built<E> {
    let mut y = x.clone();
    let rank = b.ty(x).rank();
    let added = |n: i64| Dim::from(n.max(0));
    if amounts.iter().any(|&(low, high)| low > 0 || high > 0) {
        let zeros = vec![Dim::from(0); rank];
        let (mut low, mut high) = (zeros.clone(), zeros);
        for (i, &(l, h)) in amounts.iter().enumerate() {
            (low[first + i], high[first + i]) = (added(l), added(h));
        }
        y = b.emit(Op::Pad { low, high, value }, &[y])?;
    }
    for (i, &(low, high)) in amounts.iter().enumerate() {
        let size = &b.ty(&y).shape[first + i] + low.min(0) + high.min(0);
        y = slice_axis(b, &y, first + i, &added(low.saturating_neg()), &size, 1)?;
    }
    Ok(y)
}

/// The input elements under every tap of a convolution at every place, `[n, c, out…, kernel…]` without the kernel axes of
/// size 1: what its products, and those of its gradient in the kernel, are made of.
pub fn conv_taps<E: Emit>(b: &mut E, dims: &ConvDims, x: &E::Value, kernel: &[Dim], out: &[Dim]) -> Built<E> {
    let dtype = b.ty(x).dtype;
    let mut taps = x.clone();
    for (i, &dilation) in dims.input_dilation.iter().enumerate() {
        taps = spread(b, &taps, i + 2, dilation)?;
    }
    taps = pad(b, &taps, 2, &dims.padding, Scalar::int(dtype, 0))?;
    for (i, size) in kernel.iter().enumerate() {
        taps = windows(b, &taps, i + 2, size, dims.stride[i], dims.dilation[i], &out[i])?;
    }
    Ok(taps)
}

fn conv(
    b: &mut GraphBuilder,
    dims: &ConvDims,
    x: NodeId,
    w: NodeId,
    out: &[Dim],
    products: bool,
) -> Result<NodeId, Error> {
    let (x_ty, w_ty) = (b.ty(&x), b.ty(&w));
    let spatial = x_ty.rank() - 2;
    let taps = conv_taps(b, dims, &x, &w_ty.shape[2..], &out[2..])?;
    // Taps: [n, c, out…, kernel…] without the kernel axes of size 1, which w then loses too.
    let kernel: Vec<Dim> = w_ty.shape[2..].iter().filter(|d| !d.is_one()).cloned().collect();
    let groups = Dim::from(dims.groups);
    let channels = w_ty.shape[1].clone();
    let outputs = w_ty.shape[0].div_exact(&groups).unwrap_or_else(|| w_ty.shape[0].floor_div(&groups));
    let products = products && !kernel.is_empty() && matches!(x_ty.dtype, DType::F32 | DType::Bf16 | DType::F16);
    if channels.is_one() && outputs.is_one() && !products {
        return depthwise(b, taps, w, spatial, &kernel, out);
    }
    let first_kernel = spatial + 2;
    let kernel_axes = |first: usize| first..first + kernel.len();
    if dims.groups == 1 {
        let w_shape: Vec<Dim> = w_ty.shape[..2].iter().chain(&kernel).cloned().collect();
        let w = reshape(b, &w, &w_shape)?;
        let contract = DotDims {
            lhs_contract: [1].into_iter().chain(kernel_axes(first_kernel)).collect(),
            rhs_contract: [1].into_iter().chain(kernel_axes(2)).collect(),
            ..DotDims::default()
        };
        // [n, out…, o]
        let y = b.emit(Op::Dot { dims: contract.into(), out: x_ty.dtype }, &[taps, w])?;
        let order: Vec<usize> = [0, spatial + 1].into_iter().chain(1..=spatial).collect();
        return permute(b, &y, &order);
    }
    let mut shape = b.ty(&taps).shape;
    shape.splice(1..2, [groups.clone(), channels.clone()]);
    let taps = reshape(b, &taps, &shape)?;
    let w_shape: Vec<Dim> = [groups.clone(), outputs, channels].into_iter().chain(kernel.iter().cloned()).collect();
    let w = reshape(b, &w, &w_shape)?;
    let dot = DotDims {
        lhs_batch: vec![1],
        rhs_batch: vec![0],
        lhs_contract: [2].into_iter().chain(kernel_axes(first_kernel + 1)).collect(),
        rhs_contract: [2].into_iter().chain(kernel_axes(3)).collect(),
    };
    // [groups, n, out…, o / groups]
    let y = b.emit(Op::Dot { dims: dot.into(), out: x_ty.dtype }, &[taps, w])?;
    let order: Vec<usize> = [1, 0, spatial + 2].into_iter().chain(2..spatial + 2).collect();
    let y = permute(b, &y, &order)?;
    reshape(b, &y, out)
}

/// Depthwise, one channel in and out per group: a product and a short sum, which fuse where a dot of width 1 would not.
fn depthwise(
    b: &mut GraphBuilder,
    taps: NodeId,
    w: NodeId,
    spatial: usize,
    kernel: &[Dim],
    out: &[Dim],
) -> Result<NodeId, Error> {
    let dtype = b.ty(&taps).dtype;
    let wide = if dtype.is_float() { dtype.compute_type() } else { dtype };
    let mut shape = vec![Dim::from(1), out[1].clone()];
    shape.extend(std::iter::repeat_n(Dim::from(1), spatial));
    shape.extend(kernel.iter().cloned());
    let w = reshape(b, &w, &shape)?;
    let (taps, w) = (cast(b, &taps, wide)?, cast(b, &w, wide)?);
    let products = mul(b, &taps, &w)?;
    let axes: Vec<usize> = (spatial + 2..spatial + 2 + kernel.len()).collect();
    let y = if axes.is_empty() { products } else { sum(b, &products, &axes, false)? };
    cast(b, &y, dtype)
}

fn reduce_window(
    b: &mut GraphBuilder,
    kind: ReduceKind,
    dims: &WindowDims,
    x: NodeId,
    out: &[Dim],
) -> Result<NodeId, Error> {
    let ty = b.ty(&x);
    let amounts: Vec<(i64, i64)> = dims.padding.iter().map(|&(low, high)| (low as i64, high as i64)).collect();
    let mut y = pad(b, &x, 0, &amounts, kind.identity(ty.dtype))?;
    for (axis, count) in out.iter().enumerate() {
        let size = Dim::from(dims.size[axis]);
        y = windows(b, &y, axis, &size, dims.stride[axis], dims.dilation[axis], count)?;
    }
    let axes: Vec<usize> = (ty.rank()..b.ty(&y).rank()).collect();
    if axes.is_empty() {
        return Ok(y);
    }
    let y = b.emit(Op::Reduce { kind, axes: axes.clone() }, &[y])?;
    squeeze(b, &y, &axes)
}

/// Elements of a window that are combined one by one, without a loop over the window.
const SHORT_WINDOW: usize = 9;

/// Whether windows over several axes are reduced an axis at a time. Short floats are not: they would be rounded in between.
fn is_separate(kind: ReduceKind, dims: &WindowDims, result: &TensorType) -> bool {
    let long: Vec<usize> = (0..dims.size.len()).filter(|&axis| dims.size[axis] > 1).collect();
    let rounds = result.dtype.is_float() && result.dtype.size_in_bits() < 32;
    let exact = matches!(kind, ReduceKind::Max | ReduceKind::Min);
    let (Some((&last, before)), true) = (long.split_last(), exact || !rounds) else { return false };
    // What is left of the last axis would be no vector: whole rows are one sum.
    if before.is_empty() || result.shape[last].is_one() {
        return false;
    }
    let together: usize = long.iter().map(|&axis| dims.size[axis]).fold(1, usize::saturating_mul);
    // Loads of each result: of the last axis, and of as many results of the axes before as it goes on by, which are stored and loaded.
    let mut apart = dims.size[last];
    let mut results = 1;
    for (&axis, &after) in before.iter().zip(&long[1..]).rev() {
        results *= dims.stride[after].min(dims.size[after]);
        apart += results * (dims.size[axis] + 2);
    }
    together > SHORT_WINDOW || apart < together
}

/// The same an axis at a time, the outermost first: the rows of its results are as long as those of the operand.
fn reduce_window_by_axes(
    b: &mut GraphBuilder,
    kind: ReduceKind,
    dims: &WindowDims,
    x: NodeId,
    out: &[Dim],
) -> Result<NodeId, Error> {
    let rank = dims.size.len();
    let mut y = x;
    for axis in 0..rank {
        let one = |all: &[usize]| (0..rank).map(|other| if other == axis { all[axis] } else { 1 }).collect();
        let padding = (0..rank).map(|other| if other == axis { dims.padding[axis] } else { (0, 0) }).collect();
        let along =
            WindowDims { size: one(&dims.size), stride: one(&dims.stride), dilation: one(&dims.dilation), padding };
        let mut shape = b.ty(&y).shape;
        shape[axis] = out[axis].clone();
        y = reduce_window(b, kind, &along, y, &shape)?;
    }
    Ok(y)
}
