//! Chooses which nodes are materialised, where they are stored, and which work writes them.
//!
//! A materialised node is stored in a row-major buffer of its own, or in a part of the buffer of a later node that only moves
//! its elements (a permutation, a reshape, one operand of a concatenation): then the producer writes straight into it.

use crate::cost;
use crate::index::contiguous_strides;
use crate::memory_order::{memory_orders, order_of, row_pitches, strides_in};
use crate::pages::gather_below;
use crate::repeat::join_results;
use crate::scaled::scaled_image;
use crate::schedule::{BufferDecl, BufferId, InputLayout, Role, ScheduleOptions, Target};
use crate::trace::{Storage, literal_scalar};
use kiln_ir::{BinaryOp, DType, Dim, Graph, Node, NodeId, Op, ReduceKind, TensorType};

/// Elements from which on a value is large.
const LARGE: i64 = 1 << 20;

/// A destination of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Buffer and layout.
    pub storage: Storage,
    /// The nodes that are read from here, this write making up all or a part of them.
    pub nodes: Vec<NodeId>,
    /// Written even if no kernel reads it: an output.
    pub required: bool,
    /// The node may be read from here: it is not overwritten later.
    pub readable: bool,
}

/// A node that some kernel computes for all its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Work {
    /// The node.
    pub node: NodeId,
    /// The destinations of its value.
    pub into: Vec<Destination>,
    /// The node is in memory already and is only copied.
    pub copy: bool,
}

/// The materialised nodes of a graph.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    /// Every buffer that may be needed.
    pub buffers: Vec<BufferDecl>,
    /// For each materialised node, the storage that it is read from.
    pub storage: Vec<Option<Storage>>,
    /// The works, in the graph's order.
    pub works: Vec<Work>,
    /// For each node: the works that write it.
    pub writers: Vec<Vec<usize>>,
    /// The buffer of each output.
    pub outputs: Vec<BufferId>,
    /// Loops go through what they read and write in the order in which most of it lies.
    pub by_neighbours: bool,
}

/// The cost of computing a node inline.
#[derive(Debug, Clone, Copy, Default)]
struct Inline {
    cost: u32,
    loads: usize,
    nodes: u32,
}

/// True for ops that end a kernel: their results are combined from many elements.
pub(crate) fn is_anchor(op: &Op) -> bool {
    let is_routine = matches!(op, Op::Scan { .. } | Op::SortIndices { .. } | Op::Scatter { .. });
    op.is_attention() || is_routine || op.has_bodies() || matches!(op, Op::Dot { .. })
}

/// True for reductions.
fn is_reduction(op: &Op) -> bool {
    matches!(op, Op::Reduce { .. } | Op::ArgReduce { .. })
}

/// For each node how many elements it combines, if it is a reduction of a few elements that are computed one by one where the
/// result is needed; zero for every other node. Pooling, for instance. A result that is broadcast along the reduced axes again
/// (a softmax or a norm over a few elements) is better computed with a row.
pub(crate) fn inline_reductions(graph: &Graph, target: Target) -> Vec<u32> {
    let (uses, mut repeated) = count_uses(graph, target);
    if target.separate_windows {
        // Windows that overlap read what a kernel of its own computes: its reductions may be short.
        repeated = broadcast(graph);
    }
    for (id, node) in graph.iter().rev() {
        if repeated[id.index()] && (node.op.is_pointwise() || node.op.is_view()) {
            node.operands.iter().for_each(|o| repeated[o.index()] = true);
        }
    }
    let count = |(id, node): (NodeId, &Node)| {
        let Op::Reduce { axes, .. } = &node.op else { return 0 };
        let shape = &graph.ty(node.operands[0]).shape;
        let size = axes.iter().try_fold(1i64, |n, &axis| n.checked_mul(shape[axis].as_const()?)).unwrap_or(0);
        let mut base = node.operands[0];
        while graph.node(base).op.is_view() {
            base = graph.node(base).operands[0];
        }
        let alone = matches!(graph.node(base).op, Op::Input { .. }) || uses[base.index()] <= 1;
        let most = if target.unrolled_windows && is_window_sum(graph, node) { cost::WINDOW } else { cost::SHORT_ROW };
        let short = if alone && !repeated[id.index()] { most } else { 1 };
        if (1..=short).contains(&size) { size as u32 } else { 0 }
    };
    graph.iter().map(count).collect()
}

/// True for a sum of products with elements under windows: a depthwise convolution.
fn is_window_sum(graph: &Graph, node: &Node) -> bool {
    let Op::Reduce { kind: ReduceKind::Sum, .. } = node.op else { return false };
    let product = graph.node(node.operands[0]);
    let unfolds = |&operand: &NodeId| {
        let mut at = graph.node(operand);
        while !matches!(at.op, Op::Unfold { .. }) {
            if !at.op.is_view() && !matches!(at.op, Op::Cast(_)) {
                return false;
            }
            at = graph.node(at.operands[0]);
        }
        true
    };
    matches!(product.op, Op::Binary(BinaryOp::Mul)) && product.operands.iter().any(unfolds)
}

/// True for views that move every element to exactly one place.
pub(crate) fn is_rearrangement(op: &Op) -> bool {
    matches!(op, Op::Reshape { .. } | Op::Permute { .. } | Op::Flip { .. })
}

/// Chooses the nodes that are materialised. `required` are nodes that some kernel can only read from memory.
pub(crate) fn choose(
    graph: &Graph,
    inline_counts: &[u32],
    required: &[NodeId],
    layouts: &[InputLayout],
    options: &ScheduleOptions,
) -> Vec<bool> {
    let count = graph.nodes().len();
    let (uses, repeated) = count_uses(graph, options.target);
    let windowed = if options.target.stored_windows { read_in_windows(graph) } else { vec![false; count] };
    let mut materialised = match options.target.separate_windows {
        true => reduced_twice(graph, inline_counts),
        false => vec![false; count],
    };
    required.iter().for_each(|id| materialised[id.index()] = true);
    graph.outputs().iter().for_each(|output| materialised[output.node.index()] = true);
    mark_operands(graph, inline_counts, &uses, options, &mut materialised);
    let mut inline: Vec<Inline> = Vec::with_capacity(count);
    // Results of products and of their pointwise users: an epilogue can store these instead.
    let mut after_product = vec![false; count];
    // The same, and what rearranges them on the way.
    let mut from_product = vec![false; count];
    // Those whose rows are no rows of the product: images of channels, where the product gives channels of pixels.
    let mut turned = vec![false; count];
    let reduced = read_by_reductions(graph);
    let channels_last = from_channels_last(graph, layouts);
    for (id, node) in graph.iter() {
        let at = id.index();
        let in_memory = match &node.op {
            Op::Input { .. } => true,
            Op::Constant(literal) => literal_scalar(literal).is_none(),
            // A copy that was asked for.
            Op::Reshape { shape } if *shape == graph.ty(node.operands[0]).shape => true,
            op => is_anchor(op) || (is_reduction(op) && inline_counts[at] == 0),
        };
        let mut own = Inline { cost: cost::of_op(&node.op), loads: 0, nodes: 1 };
        for operand in &node.operands {
            let part = inline[operand.index()];
            own.cost = own.cost.saturating_add(part.cost);
            own.loads = own.loads.saturating_add(part.loads);
            own.nodes = own.nodes.saturating_add(part.nodes);
        }
        if inline_counts[at] > 1 {
            let times = inline_counts[at];
            own = Inline {
                cost: own.cost.saturating_mul(times),
                loads: own.loads.saturating_mul(times as usize),
                nodes: own.nodes.saturating_mul(times),
            };
        }
        if matches!(&node.op, Op::Expand { shape } if *shape != graph.ty(node.operands[0]).shape) {
            own.loads = 0;
        }
        let follows = |o: &NodeId| after_product[o.index()] && uses[o.index()] == 1;
        after_product[at] = match &node.op {
            Op::Dot { .. } => true,
            op => op.is_pointwise() && node.operands.iter().any(follows),
        };
        let from = |o: &NodeId| from_product[o.index()] && uses[o.index()] == 1;
        from_product[at] = after_product[at]
            || (node.op.is_pointwise() || is_rearrangement(&node.op)) && node.operands.iter().any(from);
        let follows = |o: &NodeId| {
            let sole = if node.op.is_view() { uses[at] } else { 1 };
            turned[o.index()] && uses[o.index()] == sole
        };
        let turns = match &node.op {
            Op::Permute { order } => {
                let of = node.operands[0].index();
                let sole = after_product[of] && uses[of] == uses[at];
                sole && !channels_last[of] && moves_columns(order, &graph.ty(node.operands[0]).shape)
            }
            _ => false,
        };
        turned[at] = !options.target.product_order
            && (turns || (node.op.is_pointwise() || is_rearrangement(&node.op)) && node.operands.iter().any(follows));
        // In the order in which reductions and several readers go through it.
        let for_rows = turned[at] && (turns || node.op.is_pointwise()) && (uses[at] > 1 || reduced[at]);
        // In the order in which windows read it.
        let for_windows = windowed[at] && from_product[at] && !matches!(node.op, Op::Dot { .. });
        let mut stored_instead = after_product[at] && uses[at] > 1 && node.op.is_pointwise();
        let recomputes = options.target.recomputed > 0 && is_large(&node.ty);
        if stored_instead
            && recomputes
            && let Op::Cast(to) = node.op
        {
            let of = node.operands[0];
            if graph.ty(of).dtype.size_in_bits() < to.size_in_bits() {
                // What is cast takes less memory.
                materialised[of.index()] = true;
                inline[of.index()] = Inline { cost: cost::LOAD, loads: 1, nodes: 1 };
                own = Inline { cost: cost::LOAD + 1, loads: 1, nodes: 2 };
                stored_instead = false;
            }
        }
        let expensive = if recomputes { options.target.recomputed } else { cost::EXPENSIVE };
        let shared = uses[at] > 1 || repeated[at];
        // A step on the way from a short value to another takes more memory than either.
        if recomputes && uses[at] > 1 && node.op.is_pointwise() && !is_short(node.ty.dtype) {
            let chain = distinct(graph, id, &materialised, inline_counts);
            let cheap = chain.loads <= 1 && chain.cost <= expensive && chain.nodes <= cost::MAX_INLINE;
            if cheap {
                stored_instead = false;
                own = Inline { loads: 1, cost: chain.cost + cost::LOAD, nodes: chain.nodes };
            }
        }
        // The cost of loading the operands again at every use, against loading the value.
        let many_loads = own.loads > 1 && (own.loads - 1) * (uses[at].max(2) - 1) > 1;
        let dear = own.cost > expensive + cost::LOAD * own.loads as u32 || many_loads;
        let wide_concat = matches!(&node.op, Op::Concat { .. }) && (node.operands.len() > 3 || dear);
        let separate = options.no_fusion && !node.op.is_view() && uses[at] > 0 && own.loads > 0;
        let large = own.nodes > cost::MAX_INLINE;
        // Views are index arithmetic in their readers, except for very long chains of them.
        let moves = node.op.is_view() && own.nodes <= 4 * cost::MAX_INLINE;
        let worth_it = (shared && dear) || stored_instead || large;
        // Blocks that are not part of a product have been dequantised before.
        let unpacked = matches!(node.op, Op::Dequantize { .. });
        materialised[at] |=
            in_memory || for_windows || for_rows || (((worth_it && !moves) || wide_concat || separate) && !unpacked);
        inline.push(if materialised[at] { Inline { cost: cost::LOAD, loads: 1, nodes: 1 } } else { own });
    }
    materialised
}

/// What a value takes whose parts are computed once each: the elements that it reads of values in memory of its own size, and the cost of the
/// ops on the way.
fn distinct(graph: &Graph, id: NodeId, materialised: &[bool], inline_counts: &[u32]) -> Inline {
    let mut seen = vec![id];
    let mut own = Inline { cost: 0, loads: 0, nodes: 0 };
    let mut at = 0;
    while let Some(&next) = seen.get(at).filter(|_| at <= cost::MAX_INLINE as usize) {
        at += 1;
        let node = graph.node(next);
        let in_memory = match &node.op {
            Op::Input { .. } | Op::Constant(_) => true,
            op => is_anchor(op) || (is_reduction(op) && inline_counts[next.index()] == 0),
        };
        if next != id && (in_memory || materialised[next.index()]) {
            own.loads += 1;
            continue;
        }
        own.cost = own.cost.saturating_add(cost::of_op(&node.op));
        own.nodes += 1;
        // What is the same for many elements is loaded for all of them.
        let is_broadcast = matches!(&node.op, Op::Expand { shape } if *shape != graph.ty(node.operands[0]).shape);
        for &operand in node.operands.iter().filter(|_| !is_broadcast) {
            if !seen.contains(&operand) {
                seen.push(operand);
            }
        }
    }
    own
}

/// True for values that do not stay in a cache.
fn is_large(ty: &TensorType) -> bool {
    ty.elements().as_const().is_some_and(|elements| elements >= LARGE)
}

/// How often each node is read (through views), and whether each of its elements is read repeatedly.
fn count_uses(graph: &Graph, target: Target) -> (Vec<usize>, Vec<bool>) {
    let count = graph.nodes().len();
    let (mut uses, mut repeated) = (vec![0usize; count], vec![false; count]);
    for output in graph.outputs() {
        uses[output.node.index()] += 1;
    }
    for (id, node) in graph.iter().rev() {
        let at = id.index();
        let (through, again) = match &node.op {
            op if op.is_view() => (uses[at], repeated[at]),
            Op::Pad { .. } => (1, repeated[at] && target.stored_windows),
            _ => (1, false),
        };
        for (n, operand) in node.operands.iter().enumerate() {
            let repeats = match &node.op {
                Op::Expand { shape } => *shape != graph.ty(*operand).shape,
                Op::Unfold { size, stride, .. } => size > stride,
                Op::Gather { .. } => n == 0,
                _ => false,
            };
            uses[operand.index()] = uses[operand.index()].saturating_add(through);
            repeated[operand.index()] |= again || repeats;
        }
    }
    (uses, repeated)
}

/// For each node whether each of its elements is read repeatedly, but for windows that overlap.
fn broadcast(graph: &Graph) -> Vec<bool> {
    let mut repeated = vec![false; graph.nodes().len()];
    for (id, node) in graph.iter().rev() {
        for (n, &operand) in node.operands.iter().enumerate() {
            repeated[operand.index()] |= match &node.op {
                Op::Expand { shape } => *shape != graph.ty(operand).shape,
                Op::Gather { .. } => n == 0,
                op => repeated[id.index()] && (op.is_view() || matches!(op, Op::Pad { .. })),
            };
        }
    }
    repeated
}

/// For each node whether it is a reduction of a few elements whose result another one combines, and these are many elements together: each is
/// better computed by itself.
fn reduced_twice(graph: &Graph, inline_counts: &[u32]) -> Vec<bool> {
    let mut times = vec![1u32; graph.nodes().len()];
    let mut twice = vec![false; graph.nodes().len()];
    for (id, node) in graph.iter().rev() {
        let (at, own) = (id.index(), inline_counts[id.index()].max(1));
        twice[at] = own > 1 && times[at] > 1 && i64::from(own.saturating_mul(times[at])) > cost::SHORT_ROW;
        let passes = node.op.is_pointwise() || node.op.is_view() || matches!(node.op, Op::Pad { .. }) || own > 1;
        let inside = match passes {
            true if twice[at] => own,
            true => own.saturating_mul(times[at]),
            false => 1,
        };
        for operand in &node.operands {
            times[operand.index()] = times[operand.index()].max(inside);
        }
    }
    twice
}

/// For each node whether windows that overlap read it, through views and padding.
fn read_in_windows(graph: &Graph) -> Vec<bool> {
    let mut windowed = vec![false; graph.nodes().len()];
    for (id, node) in graph.iter().rev() {
        let again = windowed[id.index()] && (node.op.is_view() || matches!(node.op, Op::Pad { .. }));
        let overlaps = matches!(&node.op, Op::Unfold { size, stride, .. } if size > stride);
        if again || overlaps {
            node.operands.iter().for_each(|operand| windowed[operand.index()] = true);
        }
    }
    windowed
}

/// For each node whether a reduction reads it, through views.
fn read_by_reductions(graph: &Graph) -> Vec<bool> {
    let mut reduced = vec![false; graph.nodes().len()];
    for (id, node) in graph.iter().rev() {
        if is_reduction(&node.op) || reduced[id.index()] && node.op.is_view() {
            node.operands.iter().for_each(|operand| reduced[operand.index()] = true);
        }
    }
    reduced
}

/// For each node whether it is computed from images whose channels lie last in memory, as those of a product do.
fn from_channels_last(graph: &Graph, layouts: &[InputLayout]) -> Vec<bool> {
    let mut found = vec![false; graph.nodes().len()];
    for (id, node) in graph.iter() {
        found[id.index()] = match &node.op {
            Op::Input { index } if node.ty.rank() > 2 => {
                let order = order_of(&layouts[*index].strides);
                order.is_some_and(|order| moves_columns(&order, &node.ty.shape))
            }
            _ => node.operands.iter().any(|operand| found[operand.index()]),
        };
    }
    found
}

/// True for a permutation whose innermost axis was further out.
fn moves_columns(order: &[usize], from: &[Dim]) -> bool {
    let long = order.iter().copied().filter(|&axis| !from[axis].is_one());
    long.clone().next_back() != long.max()
}

/// Operands of products, attention and routines are materialised: the first node under the views, or under a cast for a
/// product, or under zeros around it where products read through them; or both sides of a scaled image where products scale images.
fn mark_operands(
    graph: &Graph,
    inline_counts: &[u32],
    uses: &[usize],
    options: &ScheduleOptions,
    materialised: &mut [bool],
) {
    let target = options.target;
    for (id, node) in graph.iter() {
        if !is_anchor(&node.op) {
            continue;
        }
        for (number, &operand) in node.operands.iter().enumerate() {
            // Quantised blocks are unpacked by the product; their bytes are in memory.
            if let Op::Dequantize { .. } = graph.node(operand).op {
                materialised[graph.node(operand).operands[0].index()] = true;
                continue;
            }
            let casts = matches!(node.op, Op::Dot { .. });
            let is_blocks = |operand: &NodeId| matches!(graph.node(*operand).op, Op::Dequantize { .. });
            let through = Through {
                casts,
                zeros: casts && target.guarded_operands,
                narrowing: !target.short_operands,
                widening: target.short_operands && casts && node.operands.iter().any(is_blocks),
            };
            let mut chain = Chain { left: cost::PROLOGUE, narrowest: usize::MAX };
            let bits = graph.ty(operand).dtype.size_in_bits();
            if casts && is_short_chain(graph, operand, materialised, &mut chain) && chain.narrowest < bits {
                continue;
            }
            // Pages of keys and values are read through their table.
            let paged = matches!(node.op, Op::Attention { .. }) && matches!(number, 1 | 2);
            let gather = gather_below(graph, operand).filter(|gather| paged && !materialised[gather.index()]);
            let scaled = scaled_image(graph, id, number, uses, options).filter(|scaled| !materialised[scaled.index()]);
            let below = gather.or(scaled).map_or(vec![operand], |node| graph.node(node).operands.to_vec());
            for operand in below {
                if let Some(base) = base_of_operand(graph, operand, inline_counts, materialised, through) {
                    materialised[base.index()] = true;
                }
            }
        }
    }
}

/// The state of a search for operands that can be computed while they are read.
struct Chain {
    /// The cost that its ops may still have.
    left: u32,
    /// Bits of the narrowest element read.
    narrowest: usize,
}

/// True if an operand takes a few cheap ops on inputs. If these are narrower than the operand (quantised weights), a product
/// computes it while reading them: less memory is read than if the operand were materialised.
fn is_short_chain(graph: &Graph, id: NodeId, materialised: &[bool], chain: &mut Chain) -> bool {
    let node = graph.node(id);
    let price = match &node.op {
        Op::Full { .. } => return true,
        Op::Input { .. } | Op::Constant(_) => {
            chain.narrowest = chain.narrowest.min(node.ty.dtype.size_in_bits());
            return true;
        }
        _ if materialised[id.index()] => return false,
        op if op.is_view() => 0,
        Op::Bitcast(_) => return false,
        op if op.is_pointwise() => cost::of_op(op),
        _ => return false,
    };
    if price > chain.left {
        return false;
    }
    chain.left -= price;
    node.operands.iter().all(|&operand| is_short_chain(graph, operand, materialised, chain))
}

/// What an operand is read through beside views.
#[derive(Clone, Copy)]
struct Through {
    casts: bool,
    /// Zeros around elements.
    zeros: bool,
    /// Casts to short floats too.
    narrowing: bool,
    /// Casts of short floats to longer ones, even if a kernel computes these: they stay short in memory.
    widening: bool,
}

/// True for f16 and bf16.
pub(crate) fn is_short(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16)
}

/// True for zeros around elements, which a guarded load gives by itself.
pub(crate) fn pads_with_zeros(op: &Op) -> bool {
    matches!(op, Op::Pad { value, .. } if value.as_f64().to_bits() == 0)
}

/// The node under an anchor op's operand that must be materialised; `None` if it already is.
fn base_of_operand(
    graph: &Graph,
    operand: NodeId,
    inline_counts: &[u32],
    materialised: &[bool],
    through: Through,
) -> Option<NodeId> {
    let mut at = operand;
    let mut first = None;
    loop {
        let node = graph.node(at);
        let in_memory = match &node.op {
            Op::Input { .. } | Op::Constant(_) => true,
            op => materialised[at.index()] || is_anchor(op) || (is_reduction(op) && inline_counts[at.index()] == 0),
        };
        if in_memory {
            // A cast of a value that a kernel computes anyway is better stored after the cast.
            let computed = !matches!(node.op, Op::Input { .. } | Op::Constant(_));
            return if computed { first } else { None };
        }
        match &node.op {
            op if op.is_view() => at = node.operands[0],
            op if through.zeros && pads_with_zeros(op) => at = node.operands[0],
            Op::Cast(to) if through.casts => {
                let from = graph.ty(node.operands[0]).dtype;
                let widens = is_short(from) && from.size_in_bits() < to.size_in_bits();
                if !(through.widening && widens) {
                    first = first.or(Some(at));
                }
                if !through.narrowing && is_short(*to) && from.size_in_bits() > to.size_in_bits() {
                    return first;
                }
                at = node.operands[0];
            }
            _ => return first.or(Some(at)),
        }
    }
}

/// Assigns storage to materialised nodes and lists the work.
pub(crate) fn lay_out(graph: &Graph, materialised: &[bool], layouts: &[InputLayout], target: Target) -> Memory {
    let count = graph.nodes().len();
    let orders = if target.product_order { memory_orders(graph, layouts) } else { vec![None; count] };
    let pitches = row_pitches(graph, target.row_alignment);
    let is_plain = read_or_written_by_loops(graph);
    let mut memory = Memory {
        buffers: Vec::new(),
        storage: vec![None; count],
        works: Vec::new(),
        writers: vec![Vec::new(); count],
        outputs: Vec::new(),
        by_neighbours: target.product_order,
    };
    for (index, (&id, layout)) in graph.inputs().iter().zip(layouts).enumerate() {
        let buffer = memory.declare(graph, id, Role::Input(index));
        let (offset, strides) = (layout.offset.clone(), layout.strides.clone());
        memory.storage[id.index()] = Some(Storage { buffer, offset, strides });
    }
    for (id, node) in graph.iter() {
        if let Op::Constant(literal) = &node.op
            && materialised[id.index()]
            && literal_scalar(literal).is_none()
        {
            let buffer = memory.declare(graph, id, Role::Constant(literal.clone()));
            memory.storage[id.index()] = Some(row_major(buffer, &node.ty.shape));
        }
    }
    let mut pending: Vec<Vec<Destination>> = vec![Vec::new(); count];
    for (k, output) in graph.outputs().iter().enumerate() {
        let role = if output.updates.is_some() { Role::Temp } else { Role::Output(k) };
        let buffer = memory.declare(graph, output.node, role);
        memory.outputs.push(buffer);
        let storage = row_major(buffer, &graph.ty(output.node).shape);
        pending[output.node.index()].push(Destination { storage, nodes: Vec::new(), required: true, readable: true });
    }
    for (id, node) in graph.iter().rev() {
        let at = id.index();
        let in_memory = memory.storage[at].is_some();
        // A loop does not read what is elsewhere in another order.
        let fits = |d: &Destination| !is_plain[at] || is_row_major(&d.storage.strides, &node.ty.shape);
        let readable = |list: &[Destination]| list.iter().position(|d| d.readable && fits(d));
        if materialised[at] && readable(&pending[at]).is_none() && !in_memory {
            let buffer = memory.declare(graph, id, Role::Temp);
            let mut storage = row_major(buffer, &node.ty.shape);
            if is_plain[at] {
                // As loops want it.
            } else if let Some(order) = &orders[at] {
                storage.strides = strides_in(&node.ty.shape, order);
            } else if let Some(pitch) = pitches[at] {
                let rank = node.ty.rank();
                let padded: Vec<Dim> = node.ty.shape[..rank - 1].iter().cloned().chain([Dim::from(pitch)]).collect();
                storage.strides = contiguous_strides(&padded);
                memory.buffers[buffer.index()].elements = padded.iter().product();
            }
            pending[at].push(Destination { storage, nodes: Vec::new(), required: false, readable: true });
        }
        let mut into = std::mem::take(&mut pending[at]);
        if into.is_empty() {
            continue;
        }
        if let Some(first) = readable(&into).filter(|_| !in_memory) {
            into.swap(0, first);
            memory.storage[at] = Some(into[0].storage.clone());
            into[0].nodes.push(id);
        }
        if let Some(parts) = hand_down(graph, id, &into) {
            for (operand, destinations) in parts {
                pending[operand.index()].extend(destinations);
            }
            continue;
        }
        if node.op.has_bodies() && into[0].storage != row_major(into[0].storage.buffer, &node.ty.shape) {
            // A loop writes rows one after the other; what is elsewhere is copied there.
            let storage = row_major(memory.declare(graph, id, Role::Temp), &node.ty.shape);
            into[0].nodes.retain(|&node| node != id);
            memory.storage[at] = Some(storage.clone());
            into.insert(0, Destination { storage, nodes: vec![id], required: false, readable: true });
        }
        if is_anchor(&node.op) && !matches!(node.op, Op::Dot { .. }) && into.len() > 1 {
            memory.works.push(Work { node: id, into: into.split_off(1), copy: true });
        }
        if let Op::Scatter { .. } = node.op {
            // The base is written where the result will be; then the scatter changes it.
            let base = Destination { nodes: vec![id], required: false, readable: false, ..into[0].clone() };
            pending[node.operands[0].index()].push(base);
        }
        memory.works.push(Work { node: id, into, copy: in_memory });
    }
    memory.works.reverse();
    memory.works.retain(|work| !graph.ty(work.node).shape.iter().any(Dim::is_zero));
    join_results(graph, &mut memory.works);
    for (number, work) in memory.works.iter().enumerate() {
        for node in work.into.iter().flat_map(|d| &d.nodes) {
            memory.writers[node.index()].push(number);
        }
    }
    memory
}

/// Whether elements with these strides are in row-major order, one after the other.
pub(crate) fn is_row_major(strides: &[Dim], shape: &[Dim]) -> bool {
    let fits = |((size, own), stride): ((&Dim, &Dim), &Dim)| size.is_one() || own == stride;
    shape.iter().zip(strides).zip(&contiguous_strides(shape)).all(fits)
}

/// For each node whether a loop reads or writes it, which wants row-major order.
fn read_or_written_by_loops(graph: &Graph) -> Vec<bool> {
    let mut plain = vec![false; graph.nodes().len()];
    for (id, node) in graph.iter().filter(|(_, node)| node.op.has_bodies()) {
        plain[id.index()] = true;
        node.operands.iter().for_each(|operand| plain[operand.index()] = true);
    }
    plain
}

impl Memory {
    fn declare(&mut self, graph: &Graph, id: NodeId, role: Role) -> BufferId {
        let ty = graph.ty(id);
        let buffer = BufferId(self.buffers.len() as u32);
        self.buffers.push(BufferDecl { dtype: ty.dtype, elements: ty.elements(), role });
        buffer
    }
}

pub(crate) fn row_major(buffer: BufferId, shape: &[Dim]) -> Storage {
    Storage { buffer, offset: Dim::default(), strides: contiguous_strides(shape) }
}

/// Destinations of a node that only moves elements, as destinations of its operands. `None` if the node is computed itself.
fn hand_down(graph: &Graph, id: NodeId, into: &[Destination]) -> Option<Vec<(NodeId, Vec<Destination>)>> {
    let node = graph.node(id);
    match &node.op {
        Op::Concat { axis } => {
            let mut start = Dim::default();
            let mut parts = Vec::with_capacity(node.operands.len());
            for &operand in &node.operands {
                let moved = |d: &Destination| {
                    let mut d = d.clone();
                    d.storage.offset += &start * &d.storage.strides[*axis];
                    d
                };
                parts.push((operand, into.iter().map(moved).collect()));
                start += &graph.ty(operand).shape[*axis];
            }
            Some(parts)
        }
        op if is_rearrangement(op) => {
            let operand = node.operands[0];
            // Copies of what is in memory stay copies, in the view's own order.
            if !is_computed(graph, operand) {
                return None;
            }
            let moved: Option<Vec<Destination>> = into
                .iter()
                .map(|d| {
                    let storage = unview(op, &graph.ty(operand).shape, &node.ty.shape, &d.storage)?;
                    Some(Destination { storage, nodes: d.nodes.clone(), required: d.required, readable: d.readable })
                })
                .collect();
            Some(vec![(operand, moved?)])
        }
        _ => None,
    }
}

/// True if the node, looked at through rearrangements, is computed by a kernel.
fn is_computed(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    match &node.op {
        Op::Input { .. } | Op::Constant(_) => false,
        op if is_rearrangement(op) => is_computed(graph, node.operands[0]),
        op => !op.is_view(),
    }
}

/// The storage of a view's operand, given that of the view.
fn unview(op: &Op, operand_shape: &[Dim], shape: &[Dim], storage: &Storage) -> Option<Storage> {
    let Storage { buffer, offset, strides } = storage;
    match op {
        Op::Permute { order } => {
            let mut out = vec![Dim::default(); order.len()];
            for (at, &axis) in order.iter().enumerate() {
                out[axis] = strides[at].clone();
            }
            Some(Storage { buffer: *buffer, offset: offset.clone(), strides: out })
        }
        Op::Flip { axes } => {
            let (mut offset, mut out) = (offset.clone(), strides.clone());
            for &axis in axes {
                offset += (&shape[axis] - 1) * &strides[axis];
                out[axis] = -&strides[axis];
            }
            Some(Storage { buffer: *buffer, offset, strides: out })
        }
        Op::Reshape { .. } => {
            let out = reshape_strides(shape, strides, operand_shape)?;
            Some(Storage { buffer: *buffer, offset: offset.clone(), strides: out })
        }
        _ => None,
    }
}

/// Strides under shape `to` of elements that have `strides` under shape `from`; `None` if they are not evenly spaced.
pub(crate) fn reshape_strides(from: &[Dim], strides: &[Dim], to: &[Dim]) -> Option<Vec<Dim>> {
    let mut runs: Vec<(Dim, Dim)> = Vec::new();
    for (size, stride) in from.iter().zip(strides).filter(|(size, _)| !size.is_one()) {
        match runs.last_mut() {
            Some((run, inner)) if *inner == stride * size => {
                *run *= size;
                *inner = stride.clone();
            }
            _ => runs.push((size.clone(), stride.clone())),
        }
    }
    let mut out = vec![Dim::default(); to.len()];
    let mut run = runs.pop();
    for at in (0..to.len()).rev().filter(|&at| !to[at].is_one()) {
        let (left, stride) = run.take().or_else(|| runs.pop())?;
        out[at] = stride.clone();
        let rest = left.div_exact(&to[at])?;
        run = (!rest.is_one()).then(|| (rest, stride * &to[at]));
    }
    Some(out)
}
