//! Greedy fusion: groups that feed each other, then groups that read the same memory, become one wherever the values of
//! both can be computed at the same points.

use crate::cost;
use crate::domain::{Domain, Root, axis_number};
use crate::group::{Anchor, Group, trace_group};
use crate::hash::FastMap;
use crate::index::{Division, forward_index, product, reshape_index, view_index};
use crate::materialise::{Memory, is_rearrangement};
use crate::order::{Between, Order, topological};
use crate::schedule::{BufferId, Error, Note, Reason};
use crate::trace::{Scope, kept_index};
use kiln_ir::{DType, Dim, NodeId, Op, Ranges, Symbol};

/// The groups of a graph while they are being merged.
pub(crate) struct Fusion<'a> {
    scope: Scope<'a>,
    memory: &'a Memory,
    /// Groups; merged ones are gone.
    pub groups: Vec<Option<Group>>,
    /// The group of each work.
    pub group_of: Vec<usize>,
    /// The groups in an order in which they could run.
    order: Order,
    /// What was not merged and why.
    pub notes: Vec<Note>,
    noted: FastMap<(NodeId, NodeId), ()>,
}

/// Roots of two groups over one domain, with divisions that splitting its axes may make exact.
struct Placed {
    domain: Domain,
    roots: Vec<Root>,
    open: Vec<Division>,
}

impl<'a> Fusion<'a> {
    /// One group for each piece of work.
    pub fn new(scope: Scope<'a>, memory: &'a Memory) -> Result<Fusion<'a>, Error> {
        let count = memory.works.len();
        let groups = (0..count).map(|number| Some(Group::of_work(scope, memory, number))).collect();
        let (group_of, order) = ((0..count).collect(), Order::default());
        let mut fusion =
            Fusion { scope, memory, groups, group_of, order, notes: Vec::new(), noted: FastMap::default() };
        fusion.order = Order::new(fusion.order()?);
        Ok(fusion)
    }

    /// Groups in topological order: writers before readers.
    pub fn order(&self) -> Result<Vec<usize>, Error> {
        let needs: Vec<Vec<usize>> = (0..self.groups.len()).map(|at| self.needs(at)).collect();
        topological(&needs).map_err(|cycle| {
            let kernel = |at: usize| {
                let roots = self.group(at).map(|group| group.roots.as_slice()).unwrap_or_default();
                let named =
                    |root: &Root| format!("{} = {}", root.node, self.scope.graph.node(root.node).op.kind().name());
                roots.iter().map(named).collect::<Vec<_>>().join(", ")
            };
            Error::Cycle { kernels: cycle.into_iter().map(kernel).collect() }
        })
    }

    /// The groups that write what a group reads, but for itself.
    fn needs(&self, at: usize) -> Vec<usize> {
        let reads = self.group(at).map(|group| group.reads.as_slice()).unwrap_or_default();
        let mut needs: Vec<usize> = reads.iter().flat_map(|&r| self.writers(r)).filter(|&w| w != at).collect();
        needs.sort_unstable();
        needs.dedup();
        needs
    }

    /// Merges what can be merged.
    pub fn run(&mut self) {
        for at in 0..self.groups.len() {
            while self.merge_producer(at) {}
        }
        self.merge_siblings();
    }

    /// Notes one reason for every pair of groups that goes through memory.
    pub fn note_all(&mut self, reason: Reason) {
        for group in self.groups.iter().flatten() {
            let written = group.reads.iter().filter(|r| !self.memory.writers[r.index()].is_empty());
            let consumer = group.roots[0].node;
            self.notes.extend(written.map(|&producer| Note { producer, consumer, reason }));
        }
    }

    fn group(&self, at: usize) -> Option<&Group> {
        self.groups[at].as_ref()
    }

    /// The groups that write a node.
    pub fn writers(&self, node: NodeId) -> impl Iterator<Item = usize> {
        self.memory.writers[node.index()].iter().map(|&work| self.group_of[work])
    }

    /// Merges one producer into group `at`; false if none is left that fits.
    fn merge_producer(&mut self, at: usize) -> bool {
        let Some(consumer) = self.group(at) else { return false };
        let mut candidates: Vec<(i64, NodeId, usize)> = Vec::new();
        for &read in &consumer.reads {
            let bytes = cost::guess(&self.scope.graph.ty(read).elements(), self.scope.known);
            let writers = self.writers(read).filter(|&w| w != at);
            candidates.extend(writers.map(|writer| (bytes, read, writer)));
        }
        candidates.sort_by_key(|&(bytes, read, _)| (std::cmp::Reverse(bytes), read));
        for (_, read, producer) in candidates {
            match self.try_merge(producer, at, Some(read)) {
                Ok(()) => return true,
                Err(reason) => {
                    let consumer = self.group(at).map_or(read, |g| g.roots[0].node);
                    if read != consumer && self.noted.insert((read, consumer), ()).is_none() {
                        self.notes.push(Note { producer: read, consumer, reason });
                    }
                }
            }
        }
        false
    }

    fn merge_siblings(&mut self) {
        let graph = self.scope.graph;
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes().len()];
        for (at, group) in self.groups.iter().enumerate() {
            let Some(group) = group.as_ref().filter(|g| g.anchor == Anchor::Loop) else { continue };
            let total = cost::guess(&group.domain.total(), self.scope.known);
            for read in &group.reads {
                // Sharing a small table is not worth a common kernel.
                if cost::guess(&graph.ty(*read).elements(), self.scope.known) >= total {
                    readers[read.index()].push(at);
                }
            }
        }
        for list in readers.iter().filter(|list| list.len() > 1) {
            // Readers that do not go together, each perhaps merged with others: slices of one product (the queries and keys of a
            // step) have readers of more than one size.
            let mut apart: Vec<usize> = Vec::new();
            for &reader in list {
                if !apart.iter().any(|&first| self.merge_sibling(first, reader)) && apart.len() < cost::MAX_APART {
                    apart.push(reader);
                }
            }
        }
    }

    /// Merges the groups of two works that read the same memory; true if they are one, now or before.
    fn merge_sibling(&mut self, first: usize, other: usize) -> bool {
        let (first, other) = (self.group_of[first], self.group_of[other]);
        let (a, b) = (first.min(other), first.max(other));
        // The group that writes less is merged into the other; both orders are tried.
        a == b || self.try_merge(a, b, None).or_else(|_| self.try_merge(b, a, None)).is_ok()
    }

    /// What is between two groups that are to become one, which will need `more` in addition to what both need.
    fn between(&self, producer: usize, consumer: usize, more: &[usize]) -> Between {
        self.order.between(producer, consumer, &|at| {
            let mut needs = self.needs(at);
            if at == producer || at == consumer {
                needs.extend(more);
            }
            needs
        })
    }

    /// Merges group `producer` into group `consumer`, which reads `read` from it or nothing at all.
    fn try_merge(&mut self, producer: usize, consumer: usize, read: Option<NodeId>) -> Result<(), Reason> {
        let (Some(p), Some(c)) = (self.group(producer), self.group(consumer)) else { return Err(Reason::OtherSpace) };
        match (p.anchor, c.anchor) {
            (Anchor::Matmul(_) | Anchor::Alone(_), Anchor::Matmul(_) | Anchor::Alone(_)) => {
                return Err(Reason::OneAnchor);
            }
            (_, Anchor::Matmul(_) | Anchor::Alone(_)) => return Err(Reason::Operand),
            (Anchor::Alone(_), _) => return Err(Reason::OneAnchor),
            _ => {}
        }
        if p.roots.len() + c.roots.len() > cost::MAX_ROOTS {
            return Err(Reason::TooLarge);
        }
        let placed = match (read, p.anchor) {
            (Some(read), Anchor::Matmul(_)) => self.over_producer(p, c, read),
            (Some(read), _) => self.over_consumer(p, c, read).or_else(|| self.over_producer(p, c, read)),
            (None, _) => self.side_by_side(p, c),
        };
        let Placed { mut domain, mut roots, open } = placed.ok_or(match p.anchor {
            Anchor::Matmul(_) if c.domain.has_row() => Reason::Row,
            _ => Reason::OtherSpace,
        })?;
        if let Some((split, axes)) = domain.split(&open, self.scope.known) {
            let ranges = split.ranges(self.scope.known);
            roots = roots.iter().map(|root| root.rebased(&axes, &ranges)).collect();
            domain = split;
        }
        if self.idles(&domain, p, c) {
            return Err(Reason::Parallelism);
        }
        if self.between(producer, consumer, &[]) == Between::Third {
            return Err(Reason::Between);
        }
        if read.is_none() && self.depends(producer, consumer) {
            return Err(Reason::Between);
        }
        roots.sort_by_key(|root| root.node);
        let mut works: Vec<usize> = p.works.iter().chain(&c.works).copied().collect();
        works.sort_unstable_by_key(|&w| self.memory.works[w].node);
        let mut own = p.written(self.memory);
        own.extend(c.written(self.memory));
        let anchor = p.anchor;
        let trace = trace_group(self.scope, anchor, &mut domain, &mut roots, &own);
        let trace = trace.map_err(|_| Reason::OtherElements)?;
        // Memory that a launch writes is one argument of it, of one type: not read as another one beside that.
        let mut written = works.iter().flat_map(|&work| &self.memory.works[work].into).map(|to| to.storage.buffer);
        let is_own = |buffer: BufferId, dtype: DType| self.memory.buffers[buffer.index()].dtype == dtype;
        if written.any(|to| trace.args.iter().any(|&(from, dtype)| from == to && !is_own(from, dtype))) {
            return Err(Reason::OtherElements);
        }
        let mut reads: Vec<NodeId> = p.reads.iter().chain(&c.reads).copied().filter(|r| !own.contains(r)).collect();
        // A node that the group writes a part of is computed again from its operands, which may be in memory.
        reads.extend(&trace.reads);
        reads.sort_unstable();
        reads.dedup();
        let more: Vec<usize> = trace.reads.iter().flat_map(|&r| self.writers(r)).collect();
        let Between::Acyclic(needed) = self.between(producer, consumer, &more) else { return Err(Reason::Between) };
        self.order.merge(producer, consumer, &needed);
        for &work in &works {
            self.group_of[work] = consumer;
        }
        self.groups[producer] = None;
        self.groups[consumer] = Some(Group { anchor, domain, roots, works, reads, trace: Some(trace) });
        Ok(())
    }

    fn depends(&self, a: usize, b: usize) -> bool {
        let reads = |x: usize, y: usize| {
            self.group(x).is_some_and(|g| g.reads.iter().any(|&r| self.writers(r).any(|w| w == y)))
        };
        reads(a, b) || reads(b, a)
    }

    /// A long row on a grid of a few points keeps one core busy; the pointwise part alone would keep all.
    fn idles(&self, domain: &Domain, p: &Group, c: &Group) -> bool {
        const FEW: i64 = 8;
        const LONG: i64 = 32 * 1024;
        let known = self.scope.known;
        let free = |g: &Group| !g.domain.has_row() && cost::guess(&g.domain.total(), known) > LONG;
        domain.has_row()
            && cost::guess(&product(&domain.sizes(false)), known) < FEW
            && cost::guess(&product(&domain.sizes(true)), known) > LONG
            && (free(p) || free(c))
    }

    /// Both over the consumer's domain: the producer's roots take the index at which the consumer reads `read`. Axes that
    /// this index does not use become the row.
    fn over_consumer(&self, p: &Group, c: &Group, read: NodeId) -> Option<Placed> {
        let mut domain = c.domain.clone();
        let mut roots = c.roots.clone();
        let ranges = domain.ranges(self.scope.known);
        let mut open = Vec::new();
        let (producer, index) = c.roots.iter().find_map(|root| {
            let path = self.find_path(root.node, p, c, read)?;
            self.follow_down(root, &path, &ranges, &mut open)
        })?;
        let producer = p.roots.iter().find(|root| root.node == producer)?;
        let kept = kept_index(self.scope, producer);
        let mut axes: Vec<Option<Dim>> = vec![None; p.domain.shape.len()];
        for (own, at) in kept.iter().zip(&index) {
            match own.as_symbol().and_then(axis_number) {
                Some(axis) => axes[axis] = Some(at.clone()),
                None if own.is_zero() => {}
                None => return None,
            }
        }
        let moves_along = |d: usize, list: &[&Dim]| list.iter().any(|at| at.contains(Symbol::axis(d)));
        let along = |domain: &Domain, list: &[&Dim]| -> Vec<bool> {
            (0..domain.shape.len()).map(|d| moves_along(d, list)).collect()
        };
        let sizes_where = |domain: &Domain, which: &[bool]| -> Dim {
            domain.shape.iter().zip(which).filter(|(_, w)| **w).map(|(size, _)| size).product()
        };
        let mapped: Vec<bool> = axes.iter().map(Option::is_some).collect();
        let used = along(&domain, &index.iter().collect::<Vec<_>>());
        if sizes_where(&domain, &used) != sizes_where(&p.domain, &mapped) {
            return None;
        }
        let unused: Vec<bool> = used.iter().map(|u| !u).collect();
        let whole = p.domain.has_row() && !mapped.contains(&false);
        let wanted = if whole {
            // The row is the image of the producer's row.
            let row: Vec<&Dim> = p.domain.axes(true).filter_map(|axis| axes[axis].as_ref()).collect();
            let grid: Vec<&Dim> = p.domain.axes(false).filter_map(|axis| axes[axis].as_ref()).collect();
            let (row, grid) = (along(&domain, &row), along(&domain, &grid));
            if unused.contains(&true) || row.iter().zip(&grid).any(|(r, g)| *r && *g) {
                return None;
            }
            row
        } else if p.domain.axes(true).any(|axis| mapped[axis]) || p.domain.axes(false).any(|axis| !mapped[axis]) {
            return None;
        } else {
            unused.clone()
        };
        if domain.has_row() {
            let free = !p.domain.has_row() && !unused.contains(&true);
            if wanted != domain.row && !free {
                return None;
            }
        } else if wanted.contains(&true) {
            // Without a reduction a row is worth it only where it runs along memory.
            let inner = wanted.iter().skip_while(|w| !**w).all(|w| *w);
            if !p.domain.has_row() && !inner {
                return None;
            }
            domain.row = wanted;
        } else if p.domain.has_row() {
            for size in p.domain.sizes(true) {
                domain.shape.push(size);
                domain.row.push(true);
            }
        }
        let mut axes: Vec<Dim> = axes.into_iter().map(Option::unwrap_or_default).collect();
        if p.domain.has_row() && !whole {
            let (from, to) = (domain.sizes(true), p.domain.sizes(true));
            if product(&from) != product(&to) {
                return None;
            }
            let index: Vec<Dim> = domain.axes(true).map(Dim::axis).collect();
            let inner = reshape_index(&from, &index, &to, &domain.ranges(self.scope.known), &mut open);
            p.domain.axes(true).zip(inner).for_each(|(axis, at)| axes[axis] = at);
        }
        let ranges = domain.ranges(self.scope.known);
        roots.extend(p.roots.iter().map(|root| root.rebased(&axes, &ranges)));
        Some(Placed { domain, roots, open })
    }

    /// Both over the producer's domain: the consumer's roots take the index to which the producer's element goes.
    fn over_producer(&self, p: &Group, c: &Group, read: NodeId) -> Option<Placed> {
        let graph = self.scope.graph;
        if c.domain.has_row() {
            return None;
        }
        let ranges = p.domain.ranges(self.scope.known);
        let mut open = Vec::new();
        let (consumer, index) = c.roots.iter().find_map(|root| {
            let path = self.find_path(root.node, p, c, read)?;
            let producer = p.roots.iter().find(|r| Some(&r.node) == path.last())?;
            let mut index = kept_index(self.scope, producer);
            for pair in path.windows(2).rev() {
                let (user, operand) = (graph.node(pair[0]), pair[1]);
                if user.op.is_pointwise() {
                    continue;
                }
                let shapes = (graph.ty(operand).shape.as_slice(), user.ty.shape.as_slice());
                index = forward_index(&user.op, shapes, &index, &ranges, &mut open)?;
            }
            Some((root, index))
        })?;
        let mut axes = vec![Dim::default(); c.domain.shape.len()];
        for (own, at) in consumer.index.iter().zip(index) {
            match own.as_symbol().and_then(axis_number) {
                Some(axis) => axes[axis] = at,
                None if own.is_zero() => {}
                None => return None,
            }
        }
        let mut roots = p.roots.clone();
        roots.extend(c.roots.iter().map(|root| root.rebased(&axes, &ranges)));
        Some(Placed { domain: p.domain.clone(), roots, open })
    }

    /// Groups that do not feed each other, over one of their domains.
    fn side_by_side(&self, p: &Group, c: &Group) -> Option<Placed> {
        let compatible = !p.domain.has_row() || p.domain.row == c.domain.row && p.domain.shape == c.domain.shape;
        if p.anchor != Anchor::Loop || !compatible {
            return None;
        }
        let mut open: Vec<Division> = Vec::new();
        let axes = c.domain.axes_of(&p.domain, self.scope.known, &mut open)?;
        let ranges = c.domain.ranges(self.scope.known);
        let mut roots = c.roots.clone();
        roots.extend(p.roots.iter().map(|root| root.rebased(&axes, &ranges)));
        Some(Placed { domain: c.domain.clone(), roots, open })
    }

    /// Nodes from `from` down to a root of `p`, passing only through ops that keep or move elements, and not through memory
    /// that others write nor through other roots of `c`.
    fn find_path(&self, from: NodeId, p: &Group, c: &Group, read: NodeId) -> Option<Vec<NodeId>> {
        let graph = self.scope.graph;
        let is_root = |g: &Group, id: NodeId| g.roots.iter().any(|r| r.node == id);
        let writes = |g: &Group, id: NodeId| self.memory.writers[id.index()].iter().any(|w| g.works.contains(w));
        let passes = |id: NodeId| {
            let op = &graph.node(id).op;
            let moves = op.is_pointwise() || is_rearrangement(op) || matches!(op, Op::Expand { .. });
            let reachable = self.memory.storage[id.index()].is_none() || id == read || writes(p, id) || writes(c, id);
            if id == from { moves || self.scope.is_reduction(id) } else { moves && reachable && !is_root(c, id) }
        };
        let mut path = vec![from];
        let mut seen: Vec<NodeId> = Vec::new();
        // Depth first, with the position of the next operand to try at each node of the path.
        let mut next = vec![0usize];
        while let (Some(&at), Some(operand)) = (path.last(), next.last_mut()) {
            if at != from && is_root(p, at) {
                return Some(path);
            }
            match graph.node(at).operands.get(*operand) {
                Some(&down) if passes(at) => {
                    *operand += 1;
                    if !seen.contains(&down) {
                        seen.push(down);
                        path.push(down);
                        next.push(0);
                    }
                }
                _ => {
                    path.pop();
                    next.pop();
                }
            }
        }
        None
    }

    /// The index at which the last node of a path is read when the first is computed at the root's index.
    fn follow_down(
        &self,
        root: &Root,
        path: &[NodeId],
        ranges: &Ranges,
        open: &mut Vec<Division>,
    ) -> Option<(NodeId, Vec<Dim>)> {
        let graph = self.scope.graph;
        let mut index = root.index.clone();
        for pair in path.windows(2) {
            let (user, operand) = (graph.node(pair[0]), pair[1]);
            let shape = &graph.ty(operand).shape;
            index = match &user.op {
                Op::Reshape { .. } => reshape_index(&user.ty.shape, &index, shape, ranges, open),
                op if op.is_view() => view_index(op, shape, &index)?,
                // A reduction's root holds its operand's index already.
                _ => index,
            };
        }
        Some((*path.last()?, index))
    }
}
