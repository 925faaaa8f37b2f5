//! Products: operands as prologues over (batch, m, k) and (batch, k, n), and the nodes after them as an epilogue at (batch, m,
//! n).

use crate::assemble::{Needed, argument, arguments, renumber, step, stores};
use crate::axes::{self, Renamed};
use crate::cost;
use crate::dag::{Dag, Def, visit_operands};
use crate::domain::{Domain, Root};
use crate::group::{Group, trace_group};
use crate::kernel::{Axis, InstKind, Kernel, KernelBody, MatmulBody, Precision, Prologue, ValueId};
use crate::materialise::{Memory, is_short, pads_with_zeros, row_major};
use crate::schedule::{BufferId, Step};
use crate::stages::straight;
use crate::trace::{FusionRejection, Scope, Trace, Tracer};
use kiln_ir::{BinaryOp, DType, Dim, DotDims, Graph, NodeId, Op, Symbol};

/// The free axes of an operand: neither batch nor summed.
pub(crate) fn free_axes(rank: usize, batch: &[usize], contract: &[usize]) -> Vec<usize> {
    (0..rank).filter(|axis| !batch.contains(axis) && !contract.contains(axis)).collect()
}

/// The type that products are accumulated in.
pub(crate) fn accumulator(dtype: DType) -> DType {
    dtype.compute_type()
}

fn dims_of(graph: &Graph, dot: NodeId) -> Option<&DotDims> {
    match &graph.node(dot).op {
        Op::Dot { dims, .. } => Some(dims),
        _ => None,
    }
}

/// Makes the accumulator the value of the product.
pub(crate) fn provide_accumulator(
    scope: Scope<'_>,
    tracer: &mut Tracer<'_>,
    dot: NodeId,
    roots: &[Root],
) -> Result<(), FusionRejection> {
    let node = scope.graph.node(dot);
    let root = roots.iter().find(|r| r.node == dot).ok_or(FusionRejection { node: dot })?;
    let acc = accumulator(scope.graph.ty(node.operands[0]).dtype);
    let dag = tracer.dag();
    let value = dag.inst(InstKind::Accumulator(0), acc);
    let value = dag.cast(value, node.ty.dtype.compute_type());
    let value = dag.settle(value, node.ty.dtype, false, scope.numerics);
    tracer.provide(dot, root.index.clone(), value);
    Ok(())
}

/// The axes of a product: the result's, then the summed ones; with the index of each operand.
struct Space {
    domain: Domain,
    lhs: Vec<Dim>,
    rhs: Vec<Dim>,
    /// Axis numbers of batch, m, n, k.
    lists: [Vec<usize>; 4],
}

/// `index` is the result's index over `result`, whose axes may be parts of the result's own.
fn space(graph: &Graph, dot: NodeId, result: &Domain, index: &[Dim]) -> Option<Space> {
    let node = graph.node(dot);
    let dims = dims_of(graph, dot)?;
    let (lhs_ty, rhs_ty) = (graph.ty(node.operands[0]), graph.ty(node.operands[1]));
    let mut domain = result.clone();
    let (mut lhs, mut rhs) = (vec![Dim::default(); lhs_ty.rank()], vec![Dim::default(); rhs_ty.rank()]);
    let mut lists: [Vec<usize>; 4] = Default::default();
    let mut places = index.iter();
    let mut place = |list: &mut Vec<usize>| {
        let at = places.next()?.clone();
        list.extend((0..result.shape.len()).filter(|&d| at.contains(Symbol::axis(d))));
        Some(at)
    };
    for (&l, &r) in dims.lhs_batch.iter().zip(&dims.rhs_batch) {
        lhs[l] = place(&mut lists[0])?;
        rhs[r] = lhs[l].clone();
    }
    for axis in free_axes(lhs_ty.rank(), &dims.lhs_batch, &dims.lhs_contract) {
        lhs[axis] = place(&mut lists[1])?;
    }
    for axis in free_axes(rhs_ty.rank(), &dims.rhs_batch, &dims.rhs_contract) {
        rhs[axis] = place(&mut lists[2])?;
    }
    for (&l, &r) in dims.lhs_contract.iter().zip(&dims.rhs_contract) {
        let size = &lhs_ty.shape[l];
        if !size.is_one() {
            let axis = domain.shape.len();
            lists[3].push(axis);
            (lhs[l], rhs[r]) = (Dim::axis(axis), Dim::axis(axis));
            domain.shape.push(size.clone());
            domain.row.push(false);
        }
    }
    Some(Space { domain, lhs, rhs, lists })
}

/// An operand's value over the product's axes; its buffers are added to `args`.
fn prologue(
    scope: Scope<'_>,
    space: &Space,
    operand: NodeId,
    index: &[Dim],
    args: &mut Vec<(BufferId, DType)>,
) -> Result<Prologue, FusionRejection> {
    let Some((trace, value)) = traced(scope, space, operand, index)? else {
        return Err(FusionRejection { node: to_materialise(scope, space, operand, index) });
    };
    let (mut insts, value) = straight(&trace.dag, &[], Some(value));
    let map: Vec<usize> = trace.args.iter().map(|&(buffer, dtype)| argument(args, buffer, dtype)).collect();
    renumber(&mut insts, &map);
    let value = value.ok_or(FusionRejection { node: operand })?;
    Ok(Prologue { insts, value })
}

/// The trace of an operand and its value; `None` if it is not one that a product reads in place.
fn traced(
    scope: Scope<'_>,
    space: &Space,
    operand: NodeId,
    index: &[Dim],
) -> Result<Option<(Trace, ValueId)>, FusionRejection> {
    let mut tracer = Tracer::new(scope, &space.domain);
    let value = tracer.value_at(operand, index.to_vec())?;
    let trace = tracer.finish();
    let is_block = matches!(&trace.dag.value(value).def, Def::Inst(kind) if is_block_of_row(kind, space));
    let axes = Axes { rank: space.domain.shape.len(), guards: scope.target.guarded_operands };
    Ok((is_block || is_cheap(&trace.dag, value, axes)).then_some((trace, value)))
}

/// What has to be in memory for an operand to be read in place: of the zeros around elements that it is read through, the
/// nearest to memory that suffices (zeros between elements make positions that are not linear); else the operand itself, or what it
/// permutes where products read any order and store their results in that of their axes.
fn to_materialise(scope: Scope<'_>, space: &Space, operand: NodeId, index: &[Dim]) -> NodeId {
    let mut pads = Vec::new();
    let mut at = operand;
    while scope.target.guarded_operands && scope.storage[at.index()].is_none() {
        let node = scope.graph.node(at);
        match &node.op {
            op if pads_with_zeros(op) => pads.push(at),
            op if op.is_view() || matches!(op, Op::Cast(_)) => {}
            _ => break,
        }
        at = node.operands[0];
    }
    let suffices = |pad: &NodeId| {
        let mut storage = scope.storage.to_vec();
        storage[pad.index()] = Some(row_major(BufferId(0), &scope.graph.ty(*pad).shape));
        matches!(traced(Scope { storage: &storage, ..scope }, space, operand, index), Ok(Some(_)))
    };
    let mut base = operand;
    while let Op::Permute { .. } = scope.graph.node(base).op {
        base = scope.graph.node(base).operands[0];
    }
    let reshaped = matches!(scope.graph.node(base).op, Op::Reshape { .. }) && scope.target.product_order;
    pads.into_iter().rev().chain(reshaped.then_some(base)).find(suffices).unwrap_or(operand)
}

/// True for an element of quantised blocks that the summed axis counts, in rows that are linear in every other axis.
fn is_block_of_row(kind: &InstKind, space: &Space) -> bool {
    let InstKind::LoadBlock { place, element, .. } = kind else { return false };
    let [k] = space.lists[3][..] else { return false };
    let rank = space.domain.shape.len();
    let linear = |d| place.offset.linear_in(Symbol::axis(d)).is_some_and(|(coef, _)| is_fixed(&coef, rank));
    *element == Dim::axis(k) && place.indirect.is_empty() && (0..rank).all(linear)
}

/// The axes of a product that an operand is read along.
#[derive(Clone, Copy)]
struct Axes {
    rank: usize,
    /// Whether loads may be guarded by positions.
    guards: bool,
}

impl Axes {
    /// True for an expression that is linear in every axis.
    fn is_linear(self, expr: &Dim) -> bool {
        let linear = |d| expr.linear_in(Symbol::axis(d)).is_some_and(|(coef, _)| is_fixed(&coef, self.rank));
        (0..self.rank).all(linear)
    }

    /// True for a guard of ranges of linear expressions, all of which must hold.
    fn is_guard(self, dag: &Dag, guard: ValueId) -> bool {
        match &dag.value(guard).def {
            Def::Inst(InstKind::Binary(BinaryOp::And, x, y)) => self.is_guard(dag, *x) && self.is_guard(dag, *y),
            Def::Inst(InstKind::InRange { expr, low, high }) => {
                self.guards && self.is_linear(expr) && is_fixed(low, self.rank) && is_fixed(high, self.rank)
            }
            _ => false,
        }
    }
}

/// True for loads at addresses that are linear in every axis, and a few cheap ops on them.
fn is_cheap(dag: &Dag, value: ValueId, axes: Axes) -> bool {
    let (mut open, mut seen, mut price) = (vec![value], vec![false; dag.values().len()], 0);
    while let Some(id) = open.pop() {
        if std::mem::replace(&mut seen[id.0 as usize], true) {
            continue;
        }
        let Def::Inst(kind) = &dag.value(id).def else { return false };
        match kind {
            InstKind::Load { place, guard } if place.indirect.is_empty() => {
                if !axes.is_linear(&place.offset) || guard.is_some_and(|guard| !axes.is_guard(dag, guard)) {
                    return false;
                }
            }
            InstKind::Const(_) => {}
            InstKind::Unary(..)
            | InstKind::Binary(..)
            | InstKind::Compare(..)
            | InstKind::Select(..)
            | InstKind::Cast(_)
            | InstKind::Round(..) => {
                price += cost::of_inst(kind);
                visit_operands(kind, &mut |x| open.push(x));
            }
            _ => return false,
        }
    }
    price <= cost::PROLOGUE
}

fn is_fixed(coef: &Dim, rank: usize) -> bool {
    (0..rank).all(|d| !coef.contains(Symbol::axis(d)))
}

/// Checks that a product's operands can be read in place; the error names the operand that cannot.
pub(crate) fn check_operands(scope: Scope<'_>, dot: NodeId) -> Result<(), FusionRejection> {
    let node = scope.graph.node(dot);
    let (result, index) = Domain::of_shape(&node.ty.shape, &[]);
    let space = space(scope.graph, dot, &result, &index).ok_or(FusionRejection { node: dot })?;
    let mut args = Vec::new();
    let lhs = prologue(scope, &space, node.operands[0], &space.lhs, &mut args)?;
    let rhs = prologue(scope, &space, node.operands[1], &space.rhs, &mut args)?;
    if scope.target.product_order && reads_in_another_order(scope, &space, node.operands[1], [&lhs, &rhs]) {
        return Err(FusionRejection { node: node.operands[1] });
    }
    Ok(())
}

/// Whether the left operand has neighbours along a summed axis along which the right one has none, and would have if it were in memory
/// in the order of its axes: the kernels of a convolution whose images have their channels last.
fn reads_in_another_order(scope: Scope<'_>, space: &Space, right: NodeId, [lhs, rhs]: [&Prologue; 2]) -> bool {
    /// Elements that are read at once.
    const NEIGHBOURS: i64 = 8;
    let Some(axis) = space.rhs.last().and_then(|index| space.lists[3].iter().find(|&&k| *index == Dim::axis(k))) else {
        return false;
    };
    let steps_by_one = |prologue: &Prologue| {
        let is_one = |dim: &Dim| dim.linear_in(Symbol::axis(*axis)).is_some_and(|(step, _)| step.is_one());
        prologue.insts.iter().any(|inst| matches!(&inst.kind, InstKind::Load { place, .. } if is_one(&place.offset)))
    };
    let whole = space.domain.shape[*axis].as_const().is_some_and(|size| size % NEIGHBOURS == 0);
    let unread = scope.storage[right.index()].is_none() && matches!(scope.graph.node(right).op, Op::Permute { .. });
    unread
        && is_short(scope.graph.ty(right).dtype)
        && whole
        && space.lists[3].len() > 1
        && steps_by_one(lhs)
        && !steps_by_one(rhs)
}

/// The launch of a product and its epilogue.
pub(crate) fn matmul_step(
    scope: Scope<'_>,
    memory: &Memory,
    group: &mut Group,
    dot: NodeId,
    needed: &Needed<'_>,
) -> Result<Step, FusionRejection> {
    let node = scope.graph.node(dot);
    let own = group.written(memory);
    let mut trace = match group.trace.take() {
        Some(trace) => trace,
        None => trace_group(scope, group.anchor, &mut group.domain, &mut group.roots, &own)?,
    };
    let root = group.roots.iter().find(|r| r.node == dot).ok_or(FusionRejection { node: dot })?;
    let space = space(scope.graph, dot, &group.domain, &root.index).ok_or(FusionRejection { node: dot })?;
    let mut args = Vec::new();
    let mut lhs = prologue(scope, &space, node.operands[0], &space.lhs, &mut args)?;
    let mut rhs = prologue(scope, &space, node.operands[1], &space.rhs, &mut args)?;
    let stores = stores(scope, memory, &group.domain, &group.roots, &mut trace, needed);
    let (mut epilogue, _) = straight(&trace.dag, &stores, None);
    let map: Vec<usize> = trace.args.iter().map(|&(buffer, dtype)| argument(&mut args, buffer, dtype)).collect();
    renumber(&mut epilogue, &map);
    let dims = axes::moving_dims(lhs.insts.iter().chain(&rhs.insts).chain(&epilogue));
    let renamed = axes::merge(&space.domain, &space.lists, dims);
    renamed.apply(&mut lhs.insts);
    renamed.apply(&mut rhs.insts);
    renamed.apply(&mut epilogue);
    let Renamed { lists, .. } = renamed;
    let [batch, m, n, k] = <[Vec<Axis>; 4]>::try_from(lists).unwrap_or_default();
    let (buffers, ids, map) = arguments(&args, lhs.insts.iter().chain(&rhs.insts).chain(&epilogue));
    renumber(&mut lhs.insts, &map);
    renumber(&mut rhs.insts, &map);
    renumber(&mut epilogue, &map);
    let axes = batch.iter().chain(&m).chain(&n).chain(&k);
    let sizes = axes::size_symbols(axes, lhs.insts.iter().chain(&rhs.insts).chain(&epilogue));
    let operand = scope.graph.ty(node.operands[0]).dtype;
    let acc = accumulator(operand);
    let precision = if operand == DType::F32 { scope.precision } else { Precision::Highest };
    let body = MatmulBody { batch, m, n, k, before: None, lhs, rhs: vec![rhs], acc, precision, epilogue };
    let mut nodes = trace.nodes;
    nodes.push(dot);
    Ok(step(scope, Kernel { buffers, sizes, body: KernelBody::Matmul(body) }, ids, nodes))
}
