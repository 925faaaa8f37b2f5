//! From nodes to values: a node is traced back at an index, through views (index arithmetic) and pointwise ops (values),
//! until memory is reached.

mod choose;

use crate::dag::{Dag, Def};
use crate::domain::{Domain, Root};
use crate::hash::FastMap;
use crate::index::{Division, contiguous_strides, reshape_index, view_index};
use crate::kernel::{InstKind, Place, Precision, ReductionKind, ValueId};
use crate::materialise::is_anchor;
use crate::pointwise::bitcast_on_values;
use crate::schedule::{BufferId, Numerics, Target};
use kiln_ir::{BinaryOp, BlockFormat, DType, Dim, Graph, NodeId, Op, Ranges, ReduceKind, Scalar, Symbol};
use std::rc::Rc;

/// Where a node's elements are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Storage {
    /// The buffer.
    pub buffer: BufferId,
    /// The element at index zero.
    pub offset: Dim,
    /// Elements from one index of each axis to the next.
    pub strides: Vec<Dim>,
}

impl Storage {
    /// The element at an index.
    pub fn position(&self, index: &[Dim]) -> Dim {
        let mut at = self.offset.clone();
        for (i, stride) in index.iter().zip(&self.strides) {
            at += i * stride;
        }
        at
    }
}

impl Scope<'_> {
    /// True for a node that combines over a row.
    pub fn is_reduction(&self, id: NodeId) -> bool {
        let op = &self.graph.node(id).op;
        matches!(op, Op::Reduce { .. } | Op::ArgReduce { .. }) && self.inline[id.index()] == 0
    }
}

/// The context that all traces of one graph share.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The storage of nodes that are in memory before or after some kernel.
    pub storage: &'a [Option<Storage>],
    /// For each node how many elements it combines inline; see [`crate::materialise::inline_reductions`].
    pub inline: &'a [u32],
    /// Where short floats round.
    pub numerics: Numerics,
    /// The required precision of products of F32.
    pub precision: Precision,
    /// What the schedule is for.
    pub target: Target,
    /// Known ranges of size symbols.
    pub known: &'a Ranges,
}

/// The reason why a group of nodes is not one kernel: `node` is read at elements that another iteration computes, or depends on
/// the row where it must not, or cannot be computed on values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FusionRejection {
    /// The node.
    pub node: NodeId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct IndexId(u32);

/// Interned index vectors.
#[derive(Debug, Clone, Default)]
struct IndexTable {
    list: Vec<Rc<[Dim]>>,
    ids: FastMap<Rc<[Dim]>, IndexId>,
}

impl IndexTable {
    fn intern(&mut self, index: Vec<Dim>) -> IndexId {
        if let Some(&id) = self.ids.get(index.as_slice()) {
            return id;
        }
        let id = IndexId(self.list.len() as u32);
        let index: Rc<[Dim]> = index.into();
        self.list.push(index.clone());
        self.ids.insert(index, id);
        id
    }

    fn get(&self, id: IndexId) -> Rc<[Dim]> {
        self.list[id.0 as usize].clone()
    }
}

/// The values of a group of roots.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    /// Values.
    pub dag: Dag,
    /// The buffers read, in the order of first use, with the type they are read as.
    pub args: Vec<(BufferId, DType)>,
    /// The value of each root, in the order given.
    pub values: Vec<ValueId>,
    /// Nodes computed, roots and inlined ones.
    pub nodes: Vec<NodeId>,
    /// Nodes read from memory.
    pub reads: Vec<NodeId>,
    /// Divisions that ranges did not decide.
    pub open: Vec<Division>,
}

/// Traces roots over a domain.
pub(crate) struct Tracer<'a> {
    scope: Scope<'a>,
    ranges: Ranges,
    trace: Trace,
    indexes: IndexTable,
    memo: FastMap<(NodeId, IndexId, Option<ValueId>), ValueId>,
    /// Nodes not read from memory: a root has the index it is computed at, others are computed at any index.
    inside: FastMap<NodeId, Vec<IndexId>>,
    /// Data-dependent indices: symbols that stand for values in index expressions.
    indirect: Vec<(Symbol, ValueId)>,
}

/// The index of the root's own elements: a reduction's axes have index zero.
pub(crate) fn kept_index(scope: Scope<'_>, root: &Root) -> Vec<Dim> {
    let mut index = root.index.clone();
    if !scope.is_reduction(root.node) {
        return index;
    }
    match &scope.graph.node(root.node).op {
        Op::Reduce { axes, .. } => axes.iter().for_each(|&axis| index[axis] = Dim::default()),
        Op::ArgReduce { axis, .. } => index[*axis] = Dim::default(),
        _ => {}
    }
    index
}

impl<'a> Tracer<'a> {
    /// A tracer over a domain.
    pub fn new(scope: Scope<'a>, domain: &Domain) -> Tracer<'a> {
        let trace = Trace {
            dag: Dag::default(),
            args: Vec::new(),
            values: Vec::new(),
            nodes: Vec::new(),
            reads: Vec::new(),
            open: Vec::new(),
        };
        Tracer {
            scope,
            ranges: domain.ranges(scope.known),
            trace,
            indexes: IndexTable::default(),
            memo: FastMap::default(),
            inside: FastMap::default(),
            indirect: Vec::new(),
        }
    }

    /// The values of `roots`, which must be in the graph's order; with the divisions that stayed open if they do not fit.
    /// The nodes in `own` are in memory that these roots write: they cannot be read from there.
    pub fn run(
        mut self,
        domain: &Domain,
        roots: &[Root],
        own: &[NodeId],
    ) -> Result<Trace, (FusionRejection, Vec<Division>)> {
        self.hide(own);
        for root in roots {
            // A loop never computes an anchor op's result; it copies it.
            if is_anchor(&self.scope.graph.node(root.node).op) {
                continue;
            }
            let index = self.indexes.intern(kept_index(self.scope, root));
            self.inside.entry(root.node).or_default().push(index);
        }
        for root in roots {
            match self.root(domain, root) {
                Ok(value) => self.trace.values.push(value),
                Err(rejection) => return Err((rejection, self.trace.open)),
            }
        }
        Ok(self.trace)
    }

    /// Nodes that must not be read from memory.
    pub fn hide(&mut self, nodes: &[NodeId]) {
        for &node in nodes {
            self.inside.entry(node).or_default();
        }
    }

    /// Makes `value` the value of `node` at `index`, before any other source.
    pub fn provide(&mut self, node: NodeId, index: Vec<Dim>, value: ValueId) {
        let index = self.indexes.intern(index);
        self.inside.entry(node).or_default().push(index);
        self.memo.insert((node, index, None), value);
    }

    /// The values built so far.
    pub fn dag(&mut self) -> &mut Dag {
        &mut self.trace.dag
    }

    /// Ends the trace with what was built.
    pub fn finish(self) -> Trace {
        self.trace
    }

    /// The value of one node at one index.
    pub fn value_at(&mut self, node: NodeId, index: Vec<Dim>) -> Result<ValueId, FusionRejection> {
        let index = self.indexes.intern(index);
        self.emit(node, index, None)
    }

    fn root(&mut self, domain: &Domain, root: &Root) -> Result<ValueId, FusionRejection> {
        let node = self.scope.graph.node(root.node);
        let (kind, reduced) = match &node.op {
            _ if !self.scope.is_reduction(root.node) => return self.value_at(root.node, root.index.clone()),
            Op::Reduce { kind, axes } => (ReductionKind::Reduce(*kind), axes.as_slice()),
            Op::ArgReduce { kind, axis } => (ReductionKind::Arg(*kind), std::slice::from_ref(axis)),
            _ => return self.value_at(root.node, root.index.clone()),
        };
        let kept = self.indexes.intern(kept_index(self.scope, root));
        if let Some(&value) = self.memo.get(&(root.node, kept, None)) {
            return Ok(value);
        }
        let shape = &self.scope.graph.ty(node.operands[0]).shape;
        let dtype = node.ty.dtype;
        let empty = reduced.iter().any(|&axis| shape[axis].is_zero());
        let result = if empty || reduced.iter().all(|&axis| shape[axis].is_one()) {
            let value = match kind {
                ReductionKind::Reduce(kind) => kind.identity(dtype),
                ReductionKind::Arg(_) => Scalar::int(DType::I64, 0),
            };
            self.trace.dag.constant(value)
        } else {
            self.check_row(domain, root, reduced, matches!(kind, ReductionKind::Arg(_)))?;
            let value = self.value_at(node.operands[0], root.index.clone())?;
            let acc = self.trace.dag.value(value).dtype;
            let of = if matches!(kind, ReductionKind::Arg(_)) { DType::I64 } else { acc };
            let mut result = self.trace.dag.add(Def::Reduced { kind, value }, of);
            let never_empty = reduced.iter().all(|&axis| shape[axis].as_const().is_some_and(|n| n > 0));
            if let Some((op, start)) = identity(kind, dtype).filter(|_| !never_empty) {
                let start = self.trace.dag.constant(start);
                result = self.trace.dag.binary(op, result, start);
            }
            let in_range = matches!(kind, ReductionKind::Reduce(ReduceKind::Max | ReduceKind::Min));
            self.trace.dag.settle(result, dtype, in_range, self.scope.numerics)
        };
        self.memo.insert((root.node, kept, None), result);
        self.trace.nodes.push(root.node);
        Ok(result)
    }

    /// A reduction's kept axes may move along the grid only, its reduced axes along the row only, all of it.
    fn check_row(&self, domain: &Domain, root: &Root, reduced: &[usize], ordered: bool) -> Result<(), FusionRejection> {
        let rejection = Err(FusionRejection { node: root.node });
        for (axis, at) in root.index.iter().enumerate() {
            let wanted = reduced.contains(&axis);
            if (0..domain.shape.len()).any(|d| domain.row[d] != wanted && at.contains(Symbol::axis(d))) {
                return rejection;
            }
        }
        let covered = domain.axes(true).all(|d| reduced.iter().any(|&a| root.index[a].contains(Symbol::axis(d))));
        if !covered {
            return rejection;
        }
        if ordered {
            let index: Vec<Dim> = domain.axes(true).map(Dim::axis).collect();
            let strides = contiguous_strides(&domain.sizes(true));
            let linear: Dim = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
            if reduced.iter().any(|&axis| root.index[axis] != linear) {
                return rejection;
            }
        }
        Ok(())
    }

    fn emit(&mut self, id: NodeId, index: IndexId, guard: Option<ValueId>) -> Result<ValueId, FusionRejection> {
        let mut guard = guard;
        if let Some(at) = self.inside.get(&id) {
            if !at.contains(&index) && !at.is_empty() {
                return Err(FusionRejection { node: id });
            }
            guard = guard.filter(|_| at.is_empty());
        } else if let Some(storage) = &self.scope.storage[id.index()] {
            return self.load(id, storage, index, guard);
        }
        if let Some(&value) = self.memo.get(&(id, index, guard)) {
            return Ok(value);
        }
        let value = self.compute(id, index, guard)?;
        self.memo.insert((id, index, guard), value);
        self.trace.nodes.push(id);
        Ok(value)
    }

    fn compute(&mut self, id: NodeId, index: IndexId, guard: Option<ValueId>) -> Result<ValueId, FusionRejection> {
        let graph = self.scope.graph;
        let node = graph.node(id);
        let rejection = FusionRejection { node: id };
        match &node.op {
            Op::Full { value, .. } => Ok(self.trace.dag.constant(*value)),
            Op::Constant(literal) if literal_scalar(literal).is_some() => {
                literal_scalar(literal).map(|c| self.trace.dag.constant(c)).ok_or(rejection)
            }
            Op::Constant(_) | Op::Input { .. } => {
                let storage = self.scope.storage[id.index()].as_ref().ok_or(rejection)?;
                self.load_as(id, storage, node.ty.dtype, index, guard).ok_or(rejection)
            }
            Op::Iota { dtype, axis, .. } => {
                let expr = self.indexes.get(index)[*axis].clone();
                let fits = expr.bounds(&self.ranges).1.is_some_and(|high| high <= i32::MAX.into());
                let of = if *dtype != DType::I64 && fits { DType::I32 } else { DType::I64 };
                let value = self.index_value(&expr, of).ok_or(rejection)?;
                Ok(self.trace.dag.convert(value, of, *dtype))
            }
            Op::RandomBits { shape, stream } => {
                let seed = self.value_at(node.operands[0], Vec::new())?;
                let index = self.indexes.get(index);
                let strides = contiguous_strides(shape);
                let position: Dim = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
                if self.indirect.iter().any(|(symbol, _)| position.contains(*symbol)) {
                    return Err(rejection);
                }
                Ok(self.trace.dag.inst(InstKind::Random { seed, position, stream: *stream }, DType::I32))
            }
            Op::Bitcast(to) => {
                let operand = node.operands[0];
                let from = graph.ty(operand).dtype;
                if !bitcast_on_values(from, *to) {
                    let storage =
                        self.scope.storage[operand.index()].as_ref().ok_or(FusionRejection { node: operand })?;
                    if self.inside.contains_key(&operand) {
                        return Err(FusionRejection { node: operand });
                    }
                    return self.load_as(operand, storage, *to, index, guard).ok_or(rejection);
                }
                self.pointwise(id, index, guard)
            }
            op if op.is_pointwise() => self.pointwise(id, index, guard),
            Op::Reshape { .. } => {
                let (from, to) = (&node.ty.shape, &graph.ty(node.operands[0]).shape);
                let at = self.indexes.get(index);
                let inner = reshape_index(from, &at, to, &self.ranges, &mut self.trace.open);
                let inner = self.indexes.intern(inner);
                self.emit(node.operands[0], inner, guard)
            }
            op if op.is_view() => {
                let at = self.indexes.get(index);
                let inner = view_index(op, &graph.ty(node.operands[0]).shape, &at).ok_or(rejection)?;
                let inner = self.indexes.intern(inner);
                self.emit(node.operands[0], inner, guard)
            }
            Op::Reduce { kind, axes } => self.reduce_inline(id, *kind, axes, index, guard),
            Op::Pad { low, value, .. } => self.pad(node.operands[0], low, *value, index, guard),
            Op::Concat { axis } => self.concat(&node.operands, *axis, index, guard),
            Op::Dequantize { format } => self.block(id, *format, index, guard),
            Op::Gather { axis } => self.gather(node.operands[0], node.operands[1], *axis, index, guard),
            _ => Err(rejection),
        }
    }

    /// An element of quantised blocks, whose bytes are contiguous in memory.
    fn block(
        &mut self,
        id: NodeId,
        format: BlockFormat,
        index: IndexId,
        guard: Option<ValueId>,
    ) -> Result<ValueId, FusionRejection> {
        let rejection = FusionRejection { node: id };
        let bytes = self.scope.graph.node(id).operands[0];
        let storage = self.scope.storage[bytes.index()].as_ref().ok_or(rejection)?;
        let adjoining = storage.strides.last().is_some_and(Dim::is_one);
        if !adjoining || guard.is_some() || self.inside.contains_key(&bytes) {
            return Err(rejection);
        }
        let mut index = self.indexes.get(index).to_vec();
        let element = index.last_mut().map(std::mem::take).ok_or(rejection)?;
        let position = storage.position(&index).simplify(&self.ranges);
        let (offset, indirect) = self.split_indirect(position).ok_or(rejection)?;
        self.reads_from(bytes);
        let buffer = self.argument(storage.buffer, DType::U8);
        let place = Place { buffer, offset, indirect };
        Ok(self.trace.dag.inst(InstKind::LoadBlock { place, element, format }, DType::F32))
    }

    fn pointwise(&mut self, id: NodeId, index: IndexId, guard: Option<ValueId>) -> Result<ValueId, FusionRejection> {
        let node = self.scope.graph.node(id);
        let mut args = [ValueId(0); 3];
        let count = node.operands.len().min(args.len());
        for (slot, &operand) in args.iter_mut().zip(&node.operands) {
            *slot = self.emit(operand, index, guard)?;
        }
        let operand = self.scope.graph.ty(node.operands[0]).dtype;
        let value = self.trace.dag.pointwise(&node.op, node.ty.dtype, operand, &args[..count], self.scope.numerics);
        value.ok_or(FusionRejection { node: id })
    }

    fn load(
        &mut self,
        id: NodeId,
        storage: &Storage,
        index: IndexId,
        guard: Option<ValueId>,
    ) -> Result<ValueId, FusionRejection> {
        if let Some(&value) = self.memo.get(&(id, index, guard)) {
            return Ok(value);
        }
        let dtype = self.scope.graph.ty(id).dtype;
        let value = self.load_as(id, storage, dtype, index, guard).ok_or(FusionRejection { node: id })?;
        self.memo.insert((id, index, guard), value);
        Ok(value)
    }

    fn load_as(
        &mut self,
        id: NodeId,
        storage: &Storage,
        dtype: DType,
        index: IndexId,
        guard: Option<ValueId>,
    ) -> Option<ValueId> {
        self.reads_from(id);
        let position = storage.position(&self.indexes.get(index)).simplify(&self.ranges);
        let (offset, indirect) = self.split_indirect(position)?;
        let buffer = self.argument(storage.buffer, dtype);
        let kind = InstKind::Load { place: Place { buffer, offset, indirect }, guard };
        Some(self.trace.dag.inst(kind, dtype.compute_type()))
    }

    fn reads_from(&mut self, node: NodeId) {
        if !self.trace.reads.contains(&node) {
            self.trace.reads.push(node);
        }
    }

    /// The kernel's number of a buffer.
    fn argument(&mut self, buffer: BufferId, dtype: DType) -> usize {
        let args = &mut self.trace.args;
        args.iter().position(|a| *a == (buffer, dtype)).unwrap_or_else(|| {
            args.push((buffer, dtype));
            args.len() - 1
        })
    }
}

/// The element of a constant that has one.
pub(crate) fn literal_scalar(literal: &kiln_ir::Literal) -> Option<Scalar> {
    if literal.shape.iter().product::<usize>() == 1 { literal.element(0) } else { None }
}

/// The clamp for the largest or smallest of no short integers: an accumulator starts from the identity of its own, wider type.
fn identity(kind: ReductionKind, dtype: DType) -> Option<(BinaryOp, Scalar)> {
    if !dtype.is_int() || dtype == dtype.compute_type() {
        return None;
    }
    match kind {
        ReductionKind::Reduce(kind @ (ReduceKind::Max | ReduceKind::Min)) => {
            Some((kind.combine(), kind.identity(dtype)))
        }
        _ => None,
    }
}
