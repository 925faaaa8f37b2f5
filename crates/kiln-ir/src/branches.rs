//! The two sides of [`Op::Cond`]: graphs with the same inputs and outputs, of which one runs.
//!
//! ```text
//!  operands   predicate    x₀ x₁ …
//!                 │         │
//!  true   ─▶ then(x₀, x₁ …) ─┐
//!  false  ─▶ otherwise(x₀, x₁ …) ─▶ results
//! ```
//!
//! As with [`crate::Region`], a node is one result, and nodes with the same sides and operands run as one.

use crate::{DType, Dim, Graph, Op, Source, TensorType, TypeError};
use std::sync::Arc;

/// Two graphs, of which one runs.
///
/// ```
/// use kiln_ir::Graph;
/// let graph = Graph::parse("graph(%0: bool[], %1: f32[2]) {
///   %2: f32[2] = cond %0, %1 {result=0, then=graph(%0: f32[2]) {
///     %1: f32[2] = exp %0
///     return %1
///   }, otherwise=graph(%0: f32[2]) {
///     return %0
///   }}
///   return %2
/// }").unwrap();
/// let x = kiln_ir::HostTensor::from_slice(&[2], &[0f32, 2.0]).unwrap();
/// let side = |predicate: bool| kiln_ir::HostTensor::from_slice(&[], &[predicate]).unwrap();
/// let run = |predicate| kiln_ir::interpret::run(&graph, &[side(predicate), x.clone()]).unwrap()[0].to_f64();
/// assert_eq!((run(true)[0], run(false)), (1.0, vec![0.0, 2.0]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Branches {
    then: Graph,
    otherwise: Graph,
}

impl Branches {
    /// The sides for true and false. Their nodes have no source lines: the line is that of the choice.
    pub fn new(then: Graph, otherwise: Graph) -> Branches {
        let plain = |graph: Graph| graph.map_sources(&mut |_| Source::default());
        Branches { then: plain(then), otherwise: plain(otherwise) }
    }

    /// What runs if the predicate is true.
    pub fn then(&self) -> &Graph {
        &self.then
    }

    /// What runs if it is false.
    pub fn otherwise(&self) -> &Graph {
        &self.otherwise
    }

    /// The number of results.
    pub fn results(&self) -> usize {
        self.then.outputs().len()
    }

    /// The same choice with `f` applied to every size.
    pub fn map_dims(&self, f: &dyn Fn(&Dim) -> Dim) -> Branches {
        Branches { then: self.then.map_dims(f), otherwise: self.otherwise.map_dims(f) }
    }

    /// The type of a result.
    pub(crate) fn infer(&self, result: usize, operands: &[&TensorType]) -> Result<TensorType, TypeError> {
        let wrong = |what| Err(TypeError::BadCond { what });
        let Some((predicate, given)) = operands.split_first() else { return wrong("there is no predicate") };
        if predicate.dtype != DType::Bool || predicate.rank() != 0 {
            return wrong("the predicate is not a bool without axes");
        }
        for side in [&self.then, &self.otherwise] {
            if !side.inputs().iter().map(|&input| side.ty(input)).eq(given.iter().copied()) {
                return wrong("a side takes other operands than there are");
            }
            if side.outputs().iter().any(|output| output.updates.is_some()) {
                return wrong("a side updates an input");
            }
        }
        let types = |side: &Graph| side.outputs().iter().map(|output| side.ty(output.node).clone()).collect::<Vec<_>>();
        let (own, other) = (types(&self.then), types(&self.otherwise));
        if own != other {
            return wrong("its sides differ in the types of their results");
        }
        match own.into_iter().nth(result) {
            Some(ty) if ty.dtype == DType::I4 => wrong("a result has elements of half a byte"),
            Some(ty) => Ok(ty),
            None => wrong("its sides have too few results"),
        }
    }
}

/// What ops with graphs inside have in common.
impl Op {
    /// The graphs that it runs: the body of a loop, the sides of a choice.
    pub fn bodies(&self) -> Vec<&Graph> {
        match self {
            Op::Loop { region, .. } => vec![region.body()],
            Op::Cond { branches, .. } => vec![branches.then(), branches.otherwise()],
            _ => Vec::new(),
        }
    }

    /// Whether there are graphs inside.
    pub fn has_bodies(&self) -> bool {
        matches!(self, Op::Loop { .. } | Op::Cond { .. })
    }

    /// Which of the results of its graphs it is.
    pub fn result_number(&self) -> Option<usize> {
        match self {
            Op::Loop { result, .. } | Op::Cond { result, .. } => Some(*result),
            _ => None,
        }
    }

    /// Whether both are results of the same graphs: with the same operands they run as one.
    pub fn has_bodies_of(&self, other: &Op) -> bool {
        match (self, other) {
            (Op::Loop { region, .. }, Op::Loop { region: own, .. }) => Arc::ptr_eq(own, region) || own == region,
            (Op::Cond { branches, .. }, Op::Cond { branches: own, .. }) => {
                Arc::ptr_eq(own, branches) || own == branches
            }
            _ => false,
        }
    }

    /// Changes the graphs inside.
    fn change_bodies<E>(&mut self, change: &mut dyn FnMut(Graph) -> Result<Graph, E>) -> Result<(), E> {
        match self {
            Op::Loop { region, .. } => *region = Arc::new(region.with_body(change(region.body().clone())?)),
            Op::Cond { branches, .. } => {
                let (then, otherwise) = (branches.then.clone(), branches.otherwise.clone());
                *branches = Arc::new(Branches::new(change(then)?, change(otherwise)?));
            }
            _ => {}
        }
        Ok(())
    }

    /// The same result of the graphs of another op.
    fn take_bodies(&mut self, other: &Op) {
        match (self, other) {
            (Op::Loop { region, .. }, Op::Loop { region: new, .. }) => *region = new.clone(),
            (Op::Cond { branches, .. }, Op::Cond { branches: new, .. }) => *branches = new.clone(),
            _ => {}
        }
    }
}

impl Graph {
    /// Whether there are loops or choices in it.
    pub fn has_bodies(&self) -> bool {
        self.nodes().iter().any(|node| node.op.has_bodies())
    }

    /// The same graph with other bodies of loops and sides of choices; `change` is asked once for each.
    pub fn map_bodies<E>(mut self, change: &mut dyn FnMut(Graph) -> Result<Graph, E>) -> Result<Graph, E> {
        let mut changed: Vec<(Op, Op)> = Vec::new();
        let mut failure = None;
        self.change_nodes(&mut |node| {
            if !node.op.has_bodies() || failure.is_some() {
                return;
            }
            if let Some((_, new)) = changed.iter().find(|(old, _)| is_shared(old, &node.op)) {
                node.op.take_bodies(new);
                return;
            }
            let old = node.op.clone();
            match node.op.change_bodies(change) {
                Ok(()) => changed.push((old, node.op.clone())),
                Err(error) => failure = Some(error),
            }
        });
        failure.map_or(Ok(self), Err)
    }

    /// The nodes that are results of the same graphs as this one, in order: itself alone where it has none.
    pub fn results_of(&self, id: crate::NodeId) -> Vec<crate::NodeId> {
        let node = self.node(id);
        if !node.op.has_bodies() {
            return vec![id];
        }
        let is_it = |(_, other): &(crate::NodeId, &crate::Node)| {
            node.op.has_bodies_of(&other.op) && other.operands == node.operands
        };
        self.iter().filter(is_it).map(|(id, _)| id).collect()
    }
}

/// Whether two ops have the very same graphs.
fn is_shared(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (Op::Loop { region: a, .. }, Op::Loop { region: b, .. }) => Arc::ptr_eq(a, b),
        (Op::Cond { branches: a, .. }, Op::Cond { branches: b, .. }) => Arc::ptr_eq(a, b),
        _ => false,
    }
}
