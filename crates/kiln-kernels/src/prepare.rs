//! Rewrites before scheduling, graph to graph: small products become sums of products, which fuse with their neighbours,
//! quantised blocks that no product reads directly become shifts and masks of their bytes, and long reductions to a few
//! elements become two steps, the first of which keeps every core busy. So do the search for the largest of many elements and products of
//! very long sums, where the target asks for it. Gradients of parts of a tensor become what is written in place (`direct.rs`). A reshape
//! to the same shape is a copy, which the scheduler gives rows that begin where products can read them.

use crate::direct::{Direct, direct_of, needed};
use crate::materialise::{is_row_major, is_short};
use crate::matmul::{accumulator, free_axes};
use crate::memory_order::{memory_orders, row_pitches};
use crate::schedule::{InputLayout, Target};
use kiln_ir::build::{GraphBuilder, dequantize_by_parts};
use kiln_ir::{
    ArgKind, BinaryOp, BlockFormat, DType, Dim, DotDims, Error, Graph, Node, NodeId, Op, ReduceKind, Scalar, Source,
};

/// A rewritten graph, and the original node that each of its nodes belongs to.
pub(crate) struct Prepared {
    /// The graph.
    pub graph: Graph,
    /// For each node the original one.
    pub origin: Vec<NodeId>,
    /// For each original node the one with its value.
    pub results: Vec<NodeId>,
}

/// Products of at most this many multiplications (a batch element) are sums.
const SMALL_PRODUCT: i64 = 1024;
/// Reductions to fewer elements than this leave cores idle.
const FEW: i64 = 8;
/// Channels of a depthwise convolution from which on its small products are worth a kernel of their own.
const MANY_CHANNELS: i64 = 16;
/// Reductions of more elements than this are worth a second step.
const LONG: i64 = 64 * 1024;
/// Searches for extremes beside each other that are worth a second step at the most.
const MOST_SEARCHES: i64 = 64;
/// Elements of a column that are worth a second step.
const LONG_COLUMN: i64 = 2048;
/// Elements that a part of a column has at the least.
const SHORT_PART: i64 = 64;
/// Elements that a part of a product sums at the least.
const LONG_PART: i64 = 512;
/// In how many parts a long reduction is done at the most.
const MAX_PARTS: i64 = 256;

/// The place of a node that the rewritten graph does not have.
const NOWHERE: NodeId = NodeId(u32::MAX);

/// The rewrite of a node.
enum Rewrite {
    Sum,
    Parts {
        axis: usize,
        parts: i64,
    },
    ArgParts {
        parts: i64,
    },
    Direct(Direct),
    /// The sum of products of the parts of a summed axis, the one at this place among them.
    ProductParts {
        place: usize,
        parts: i64,
    },
}

/// The rewritten graph; `None` if it stays as it is. `dequantised` are quantised blocks that no product can read.
pub(crate) fn prepare(
    graph: &Graph,
    layouts: &[InputLayout],
    dequantised: &[NodeId],
    target: Target,
) -> Result<Option<Prepared>, Error> {
    let orders = if target.product_order { memory_orders(graph, layouts) } else { vec![None; graph.nodes().len()] };
    let rewrite_of = |node: &Node| {
        rewrite_of(graph, node, target)
            .or_else(|| column_rewrite_of(graph, node, &orders, target))
            .or_else(|| product_rewrite_of(graph, node, target))
            .or_else(|| arg_rewrite_of(graph, node, target))
            .or_else(|| direct_of(graph, node, target).map(Rewrite::Direct))
    };
    let copied = odd_inputs(graph, layouts, target);
    let blocks = Blocks::of(graph, layouts, dequantised);
    let transposed = |node: &Node| blocks.read_by(graph, node).is_some_and(|(right, _)| node.operands[1] != right);
    let turned = |node: &Node| turned_right(graph, node, target);
    let is_strided = |id: NodeId| match graph.node(id).op {
        Op::Input { index } => !is_row_major(&layouts[index].strides, &graph.ty(id).shape),
        _ => false,
    };
    // Loops read rows that are one after the other.
    let for_loop = |node: &Node| node.op.has_bodies() && node.operands.iter().any(|&id| is_strided(id));
    let same =
        |node: &Node| rewrite_of(node).is_none() && !transposed(node) && turned(node).is_none() && !for_loop(node);
    if !blocks.dequantised.contains(&true) && !copied.contains(&true) && graph.iter().all(|(_, node)| same(node)) {
        return Ok(None);
    }
    let mut made =
        Prepared { graph: Graph::with_capacity(graph.nodes().len()), origin: Vec::new(), results: Vec::new() };
    let mut new: Vec<NodeId> = Vec::with_capacity(graph.nodes().len());
    // The blocks that products read, where `new` has their elements for all other readers.
    let mut whole: Vec<Option<NodeId>> = vec![None; graph.nodes().len()];
    let needed = needed(graph, target);
    for (id, node) in graph.iter() {
        if !needed[id.index()] {
            new.push(NOWHERE);
            continue;
        }
        let mut operands: Vec<NodeId> = node.operands.iter().map(|o| new[o.index()]).collect();
        let mut op = node.op.clone();
        if let (Some((right, by)), Op::Dot { dims, .. }) = (blocks.read_by(graph, node), &mut op) {
            operands[1] = whole[right.index()].unwrap_or(new[right.index()]);
            **dims = by;
        }
        let mut builder = Builder { made: &mut made.graph, source: node.source.clone() };
        let to = match (&op, rewrite_of(node)) {
            (Op::Input { index }, _) => {
                let input = builder.made.input(node.ty.clone(), node.source.clone())?;
                match copied[*index] {
                    true => builder.add(Op::Reshape { shape: node.ty.shape.clone() }, &[input])?,
                    false => input,
                }
            }
            (Op::Dot { dims, out }, Some(Rewrite::Sum)) => builder.sum_of_products(dims, *out, &operands)?,
            (Op::Dot { out, .. }, None) if let Some((order, dims)) = turned(node) => {
                let right = builder.add(Op::Permute { order }, &operands[1..])?;
                builder.add(Op::Dot { dims: dims.into(), out: *out }, &[operands[0], right])?
            }
            (Op::Dot { dims, out }, Some(Rewrite::ProductParts { place, parts })) => {
                builder.product_in_parts(dims, *out, &operands, place, parts)?
            }
            (Op::Reduce { kind, axes }, Some(Rewrite::Parts { axis, parts })) => {
                builder.reduce_in_parts(*kind, axes, operands[0], axis, parts)?
            }
            (Op::ArgReduce { kind, axis }, Some(Rewrite::ArgParts { parts })) => {
                builder.arg_reduce_in_parts(*kind, operands[0], *axis, parts)?
            }
            (_, Some(Rewrite::Direct(direct))) => {
                let places: Vec<NodeId> = direct.operands(node).iter().map(|o| new[o.index()]).collect();
                direct.build(&node.op, &places, |op, operands| builder.add(op, operands), &node.ty)?
            }
            (Op::Dequantize { format }, _) if blocks.dequantised[id.index()] => {
                if blocks.whole[id.index()] {
                    whole[id.index()] = Some(builder.add(node.op.clone(), &operands)?);
                }
                builder.elements_of_blocks(operands[0], *format)?
            }
            (Op::Loop { .. } | Op::Cond { .. }, _) if for_loop(node) => {
                for (operand, &old) in operands.iter_mut().zip(&node.operands).filter(|(_, old)| is_strided(**old)) {
                    *operand = builder.add(Op::Reshape { shape: graph.ty(old).shape.clone() }, &[*operand])?;
                }
                builder.add(op.clone(), &operands)?
            }
            (op, _) => builder.add(op.clone(), &operands)?,
        };
        new.push(to);
        made.origin.resize(made.graph.nodes().len(), id);
    }
    for output in graph.outputs() {
        match output.updates {
            Some(input) => made.graph.update(new[output.node.index()], input),
            None => made.graph.output(new[output.node.index()]),
        }
    }
    made.results = new;
    Ok(Some(made))
}

/// The readers of quantised blocks, for each node that is some.
struct Blocks {
    /// Some product reads them in their own layout.
    whole: Vec<bool>,
    /// Some other node needs their elements.
    dequantised: Vec<bool>,
    /// They are contiguous in memory.
    readable: Vec<bool>,
    /// See [`bases`].
    bases: Vec<Option<(NodeId, Vec<usize>)>>,
}

impl Blocks {
    fn of(graph: &Graph, layouts: &[InputLayout], dequantised: &[NodeId]) -> Blocks {
        let none = vec![false; graph.nodes().len()];
        let mut blocks = Blocks { whole: none.clone(), dequantised: none.clone(), readable: none, bases: bases(graph) };
        for (id, node) in graph.iter().filter(|(_, node)| matches!(node.op, Op::Dequantize { .. })) {
            let adjoining = match &graph.node(node.operands[0]).op {
                Op::Input { index } => layouts[*index].strides.last().is_some_and(Dim::is_one),
                op => !op.is_view(),
            };
            blocks.readable[id.index()] = adjoining && !dequantised.contains(&id);
        }
        for (id, node) in graph.iter() {
            if blocks.bases[id.index()].is_some() {
                continue;
            }
            let right = blocks.read_by(graph, node).map(|(right, _)| right);
            for (at, &operand) in node.operands.iter().enumerate() {
                let Some(of) = blocks.bases[operand.index()].as_ref().map(|(of, _)| *of) else { continue };
                match right {
                    Some(right) if at == 1 => blocks.whole[right.index()] = true,
                    _ => blocks.dequantised[of.index()] = true,
                }
            }
        }
        for output in graph.outputs() {
            if let Some(of) = blocks.bases[output.node.index()].as_ref().map(|(of, _)| *of) {
                blocks.dequantised[of.index()] = true;
            }
        }
        blocks
    }

    /// The blocks that a product reads in their own layout, and its dimensions over them: its right operand is a matrix of
    /// them, perhaps transposed, summed along their rows.
    fn read_by(&self, graph: &Graph, node: &Node) -> Option<(NodeId, DotDims)> {
        let Op::Dot { dims, out: DType::F32 } = &node.op else { return None };
        let (right, order) = self.bases[node.operands[1].index()].clone()?;
        if !self.readable[right.index()] || rewrite_of(graph, node, Target::default()).is_some() {
            return None;
        }
        let mapped = |axes: &[usize]| axes.iter().map(|&axis| order[axis]).collect::<Vec<usize>>();
        let dims = DotDims {
            rhs_batch: mapped(&dims.rhs_batch),
            rhs_contract: mapped(&dims.rhs_contract),
            ..(**dims).clone()
        };
        let matrix = free_axes(order.len(), &dims.rhs_batch, &dims.rhs_contract).len() <= 1;
        (matrix && dims.rhs_contract == [order.len() - 1]).then_some((right, dims))
    }
}

/// For each node that is quantised blocks under permutations: the blocks, and which of their axes each axis is.
fn bases(graph: &Graph) -> Vec<Option<(NodeId, Vec<usize>)>> {
    let mut all: Vec<Option<(NodeId, Vec<usize>)>> = Vec::with_capacity(graph.nodes().len());
    for (id, node) in graph.iter() {
        let own = match &node.op {
            Op::Dequantize { .. } => Some((id, (0..node.ty.rank()).collect())),
            Op::Permute { order } => all[node.operands[0].index()]
                .as_ref()
                .map(|(of, below)| (*of, order.iter().map(|&axis| below[axis]).collect())),
            _ => None,
        };
        all.push(own);
    }
    all
}

fn rewrite_of(graph: &Graph, node: &Node, target: Target) -> Option<Rewrite> {
    match &node.op {
        Op::Dot { dims, .. } => {
            let (lhs, rhs) = (graph.ty(node.operands[0]), graph.ty(node.operands[1]));
            let total = |sizes: Vec<&Dim>| sizes.into_iter().product::<Dim>();
            let free = |ty: &kiln_ir::TensorType, batch: &[usize], contract: &[usize]| -> Dim {
                free_axes(ty.rank(), batch, contract).into_iter().map(|axis| &ty.shape[axis]).product()
            };
            let m = free(lhs, &dims.lhs_batch, &dims.lhs_contract);
            let n = free(rhs, &dims.rhs_batch, &dims.rhs_contract);
            let k = total(dims.lhs_contract.iter().map(|&axis| &lhs.shape[axis]).collect());
            let small = (&m * &n * &k).as_const().is_some_and(|work| work <= SMALL_PRODUCT);
            // A longer sum than there are results is the gradient of a window.
            let is_forward = || (&m * &n).as_const() >= k.as_const();
            let small = small && !(target.depthwise_products && is_forward() && is_depthwise(graph, node, dims));
            (small || k.is_one() || (m.is_one() && n.is_one())).then_some(Rewrite::Sum)
        }
        Op::Reduce { axes, .. } => {
            let shape = &graph.ty(node.operands[0]).shape;
            let kept = node.ty.elements().as_const()?;
            let reduced = axes.iter().map(|&axis| &shape[axis]).product::<Dim>().as_const()?;
            if kept >= FEW || kept == 0 || reduced <= LONG {
                return None;
            }
            let axis = *axes.iter().find(|&&axis| !shape[axis].is_one())?;
            let size = shape[axis].as_const()?;
            let parts = (FEW..=MAX_PARTS.min(size / 2)).rev().find(|parts| size % parts == 0)?;
            Some(Rewrite::Parts { axis, parts })
        }
        _ => None,
    }
}

/// The order of the right operand's axes with the first summed one last, and the dimensions of the product over them: what a
/// convolution's product reads with as many neighbours as it reads channels, if the operand is materialised in this order.
fn turned_right(graph: &Graph, node: &Node, target: Target) -> Option<(Vec<usize>, DotDims)> {
    let Op::Dot { dims, .. } = &node.op else { return None };
    let (rank, ty) = (graph.ty(node.operands[1]).rank(), graph.ty(node.operands[0]));
    let &[first, _, ..] = dims.rhs_contract.as_slice() else { return None };
    if !target.product_order || !is_short(ty.dtype) || first == rank - 1 {
        return None;
    }
    let order: Vec<usize> = (0..rank).filter(|&axis| axis != first).chain([first]).collect();
    let moved = |axes: &[usize]| axes.iter().filter_map(|axis| order.iter().position(|from| from == axis)).collect();
    let (rhs_batch, rhs_contract) = (moved(&dims.rhs_batch), moved(&dims.rhs_contract));
    Some((order, DotDims { rhs_batch, rhs_contract, ..(**dims).clone() }))
}

/// A reduction of columns in parts: threads beside each other take columns beside each other, of which there are too few.
fn column_rewrite_of(graph: &Graph, node: &Node, orders: &[Option<Vec<usize>>], target: Target) -> Option<Rewrite> {
    let Op::Reduce { axes, .. } = &node.op else { return None };
    let shape = &graph.ty(node.operands[0]).shape;
    let order = orders[node.operands[0].index()].clone().unwrap_or_else(|| (0..shape.len()).collect());
    let innermost = order.into_iter().rev().find(|&axis| !shape[axis].is_one())?;
    let kept = node.ty.elements().as_const()?;
    let reduced = axes.iter().map(|&axis| &shape[axis]).product::<Dim>().as_const()?;
    if axes.contains(&innermost) || !(FEW..target.many_columns).contains(&kept) || reduced < LONG_COLUMN {
        return None;
    }
    let most = (target.many_columns / kept).min(reduced / SHORT_PART).min(MAX_PARTS);
    let in_parts = |&axis: &usize| {
        let size = shape[axis].as_const()?;
        Some(((2..=most.min(size)).rev().find(|parts| size % parts == 0)?, axis))
    };
    // The first of the axes that can be cut into the most parts.
    let (parts, axis) = axes.iter().rev().filter_map(in_parts).max_by_key(|(parts, _)| *parts)?;
    Some(Rewrite::Parts { axis, parts })
}

/// A product under windows (the gradient of a convolution in its weight) that sums so many elements for so few results that most of the
/// target would be idle.
fn product_rewrite_of(graph: &Graph, node: &Node, target: Target) -> Option<Rewrite> {
    let Op::Dot { dims, .. } = &node.op else { return None };
    let shape = &graph.ty(node.operands[0]).shape;
    let results = node.ty.elements().as_const().filter(|&results| results > 0)?;
    let depth = dims.lhs_contract.iter().map(|&axis| &shape[axis]).product::<Dim>().as_const()?;
    let needed = (target.busy_results + results - 1) / results;
    let is_windowed = || node.operands.iter().any(|&operand| reads_windows(graph, operand));
    if dims.lhs_contract.len() < 2 || needed < 2 || depth < needed * LONG_PART || !is_windowed() {
        return None;
    }
    // The smallest number of parts that keeps the target busy, or the largest that there is.
    let parts_of = |(place, &axis): (usize, &usize)| {
        let size = shape[axis].as_const()?;
        let divides = |parts: &i64| size % parts == 0;
        let enough = (needed..=(4 * needed).min(size)).find(divides);
        let parts = enough.or_else(|| (2..needed.min(size + 1)).rev().find(divides))?;
        Some((parts.min(needed), -parts, place))
    };
    let (_, parts, place) = dims.lhs_contract.iter().enumerate().filter_map(parts_of).max()?;
    Some(Rewrite::ProductParts { place, parts: -parts })
}

/// Whether a value is read under windows.
/// Whether this is a depthwise convolution of many channels: small products, which a target has one kernel for all together.
fn is_depthwise(graph: &Graph, node: &Node, dims: &DotDims) -> bool {
    let [lhs, rhs] = [0, 1].map(|side| &graph.ty(node.operands[side]).shape);
    let long = |shape: &[Dim], axes: &[usize]| axes.iter().filter(|&&axis| !shape[axis].is_one()).count();
    let channels = dims.lhs_batch.iter().map(|&axis| &lhs[axis]).product::<Dim>();
    let is_single =
        |shape: &[Dim], batch: &[usize], contract: &[usize]| long(shape, &free_axes(shape.len(), batch, contract)) == 0;
    let is_weights =
        [is_single(lhs, &dims.lhs_batch, &dims.lhs_contract), is_single(rhs, &dims.rhs_batch, &dims.rhs_contract)];
    // Windows of volumes have no such kernel.
    let is_flat = long(lhs, &dims.lhs_contract) <= 2;
    let reads = |side: usize| is_weights[1 - side] && !is_weights[side] && reads_windows(graph, node.operands[side]);
    channels.as_const().is_some_and(|n| n >= MANY_CHANNELS) && is_flat && (reads(0) || reads(1))
}

fn reads_windows(graph: &Graph, mut at: NodeId) -> bool {
    loop {
        let node = graph.node(at);
        match &node.op {
            Op::Unfold { .. } => return true,
            op if op.is_view() || matches!(op, Op::Cast(_)) => at = node.operands[0],
            _ => return false,
        }
    }
}

/// The inputs that are copied first: large matrices of short floats that products read, whose rows begin where nothing reads several
/// elements at once.
fn odd_inputs(graph: &Graph, layouts: &[InputLayout], target: Target) -> Vec<bool> {
    let mut copied = vec![false; layouts.len()];
    if target.row_alignment == 0 {
        return copied;
    }
    let pitches = row_pitches(graph, target.row_alignment);
    for (id, node) in graph.iter() {
        let Op::Input { index } = node.op else { continue };
        let strides: Option<Vec<i64>> = layouts[index].strides.iter().map(Dim::as_const).collect();
        let step = target.row_alignment * 8 / node.ty.dtype.size_in_bits().max(1) as i64;
        let Some([.., row, 1]) = strides.as_deref() else { continue };
        let is_updated = graph.outputs().iter().any(|output| output.updates == Some(index));
        copied[index] = pitches[id.index()].is_some() && row % step != 0 && !is_updated;
    }
    copied
}

/// The search for an extreme in parts.
fn arg_rewrite_of(graph: &Graph, node: &Node, target: Target) -> Option<Rewrite> {
    let Op::ArgReduce { axis, .. } = &node.op else { return None };
    let size = graph.ty(node.operands[0]).shape[*axis].as_const()?;
    let kept = node.ty.elements().as_const()?;
    if target.long_row == 0 || size <= target.long_row || !(1..=MOST_SEARCHES).contains(&kept) {
        return None;
    }
    let parts = (FEW..=MAX_PARTS).rev().find(|parts| size % parts == 0)?;
    Some(Rewrite::ArgParts { parts })
}

struct Builder<'a> {
    made: &'a mut Graph,
    source: Source,
}

impl Builder<'_> {
    fn add(&mut self, op: Op, operands: &[NodeId]) -> Result<NodeId, Error> {
        self.made.add(op, operands, self.source.clone())
    }

    fn reshape(&mut self, x: NodeId, shape: Vec<Dim>) -> Result<NodeId, Error> {
        if self.made.ty(x).shape == shape { Ok(x) } else { self.add(Op::Reshape { shape }, &[x]) }
    }

    fn cast(&mut self, x: NodeId, dtype: DType) -> Result<NodeId, Error> {
        if self.made.ty(x).dtype == dtype { Ok(x) } else { self.add(Op::Cast(dtype), &[x]) }
    }

    fn elements_of_blocks(&mut self, bytes: NodeId, format: BlockFormat) -> Result<NodeId, Error> {
        let mut builder = GraphBuilder::extend(std::mem::take(self.made));
        builder.set_source(Some(self.source.clone()));
        let elements = dequantize_by_parts(&mut builder, &bytes, format);
        *self.made = builder.finish();
        elements
    }

    /// Both operands over (batch, m, n, k), multiplied and summed.
    fn sum_of_products(&mut self, dims: &DotDims, out: DType, operands: &[NodeId]) -> Result<NodeId, Error> {
        let acc = accumulator(self.made.ty(operands[0]).dtype);
        let (lhs_rank, rhs_rank) = (self.made.ty(operands[0]).rank(), self.made.ty(operands[1]).rank());
        let m_axes = free_axes(lhs_rank, &dims.lhs_batch, &dims.lhs_contract);
        let n_axes = free_axes(rhs_rank, &dims.rhs_batch, &dims.rhs_contract);
        let pick = |graph: &Graph, x: NodeId, axes: &[usize]| -> Vec<Dim> {
            axes.iter().map(|&axis| graph.ty(x).shape[axis].clone()).collect()
        };
        let batch = pick(self.made, operands[0], &dims.lhs_batch);
        let (m, n) = (pick(self.made, operands[0], &m_axes), pick(self.made, operands[1], &n_axes));
        let k = pick(self.made, operands[0], &dims.lhs_contract);
        let ones = |count: usize| vec![Dim::from(1); count];
        let all = [batch.clone(), m.clone(), n.clone(), k.clone()].concat();
        let mut sides = Vec::with_capacity(2);
        for (x, order, shape) in [
            (
                operands[0],
                [dims.lhs_batch.as_slice(), &m_axes, &dims.lhs_contract].concat(),
                [batch.clone(), m.clone(), ones(n.len()), k.clone()].concat(),
            ),
            (
                operands[1],
                [dims.rhs_batch.as_slice(), &n_axes, &dims.rhs_contract].concat(),
                [batch.clone(), ones(m.len()), n.clone(), k.clone()].concat(),
            ),
        ] {
            let x = self.cast(x, acc)?;
            let x = if order.is_sorted() { x } else { self.add(Op::Permute { order }, &[x])? };
            let x = self.reshape(x, shape)?;
            sides.push(if self.made.ty(x).shape == all {
                x
            } else {
                self.add(Op::Expand { shape: all.clone() }, &[x])?
            });
        }
        let product = self.add(Op::Binary(BinaryOp::Mul), &sides)?;
        let first = batch.len() + m.len() + n.len();
        let axes: Vec<usize> = (first..first + k.len()).collect();
        let sum = self.add(Op::Reduce { kind: ReduceKind::Sum, axes }, &[product])?;
        let sum = self.reshape(sum, [batch, m, n].concat())?;
        self.cast(sum, out)
    }

    /// A product for each part of a summed axis, then their sum.
    fn product_in_parts(
        &mut self,
        dims: &DotDims,
        out: DType,
        operands: &[NodeId],
        place: usize,
        parts: i64,
    ) -> Result<NodeId, Error> {
        let acc = accumulator(self.made.ty(operands[0]).dtype);
        let mut split = |x: NodeId, batch: &[usize], contract: &[usize]| {
            let axis = contract[place];
            let mut shape = self.made.ty(x).shape.clone();
            let inner = shape[axis].floor_div(&Dim::from(parts));
            shape.splice(axis..=axis, [Dim::from(parts), inner]);
            let moved = |&a: &usize| if a >= axis { a + 1 } else { a };
            let batch: Vec<usize> = [axis].into_iter().chain(batch.iter().map(moved)).collect();
            Ok::<_, Error>((self.reshape(x, shape)?, batch, contract.iter().map(moved).collect()))
        };
        let (lhs, lhs_batch, lhs_contract) = split(operands[0], &dims.lhs_batch, &dims.lhs_contract)?;
        let (rhs, rhs_batch, rhs_contract) = split(operands[1], &dims.rhs_batch, &dims.rhs_contract)?;
        let dims = DotDims { lhs_batch, rhs_batch, lhs_contract, rhs_contract };
        let partial = self.add(Op::Dot { dims: dims.into(), out: acc }, &[lhs, rhs])?;
        let whole = self.add(Op::Reduce { kind: ReduceKind::Sum, axes: vec![0] }, &[partial])?;
        let shape = self.made.ty(whole).shape[1..].to_vec();
        let whole = self.reshape(whole, shape)?;
        self.cast(whole, out)
    }

    /// The extreme of each part and where it is, then the part that has the extreme of all.
    fn arg_reduce_in_parts(&mut self, kind: ArgKind, x: NodeId, axis: usize, parts: i64) -> Result<NodeId, Error> {
        let mut shape = self.made.ty(x).shape.clone();
        let inner = shape[axis].floor_div(&Dim::from(parts));
        shape.splice(axis..=axis, [Dim::from(parts), inner.clone()]);
        let x = self.reshape(x, shape.clone())?;
        let extreme = match kind {
            ArgKind::Max => ReduceKind::Max,
            ArgKind::Min => ReduceKind::Min,
        };
        shape.remove(axis + 1);
        let values = self.add(Op::Reduce { kind: extreme, axes: vec![axis + 1] }, &[x])?;
        let values = self.reshape(values, shape.clone())?;
        let places = self.add(Op::ArgReduce { kind, axis: axis + 1 }, &[x])?;
        let places = self.reshape(places, shape)?;
        let part = self.add(Op::ArgReduce { kind, axis }, &[values])?;
        let place = self.add(Op::Gather { axis }, &[places, part])?;
        let value = Scalar::int(DType::I64, inner.as_const().unwrap_or_default());
        let length = self.add(Op::Full { value, shape: self.made.ty(part).shape.clone() }, &[])?;
        let before = self.add(Op::Binary(BinaryOp::Mul), &[part, length])?;
        self.add(Op::Binary(BinaryOp::Add), &[before, place])
    }

    /// The axis in `parts` parts, each reduced on its own, then the parts.
    fn reduce_in_parts(
        &mut self,
        kind: ReduceKind,
        axes: &[usize],
        x: NodeId,
        axis: usize,
        parts: i64,
    ) -> Result<NodeId, Error> {
        let dtype = self.made.ty(x).dtype;
        // Partial sums keep the accumulator's precision.
        let x = self.cast(x, dtype.compute_type())?;
        let mut shape = self.made.ty(x).shape.clone();
        let kept: Vec<Dim> = shape
            .iter()
            .enumerate()
            .map(|(at, size)| if axes.contains(&at) { Dim::from(1) } else { size.clone() })
            .collect();
        let inner = shape[axis].floor_div(&Dim::from(parts));
        shape.splice(axis..=axis, [Dim::from(parts), inner]);
        let x = self.reshape(x, shape)?;
        let shifted = axes.iter().map(|&a| if a >= axis { a + 1 } else { a }).collect();
        let partial = self.add(Op::Reduce { kind, axes: shifted }, &[x])?;
        let whole = self.add(Op::Reduce { kind, axes: vec![axis] }, &[partial])?;
        let whole = self.reshape(whole, kept)?;
        self.cast(whole, dtype)
    }
}
