//! The traversal that the rewriting passes share: nodes are taken in order, their operands replaced by what they became, and a
//! rule may replace each of them. Nodes that no rule changes are moved, not copied.

use crate::Rewritten;
use kiln_ir::{Error, Graph, Node, NodeId, Op, Output, Scalar, TensorType, infer};

/// The result of a rule: the node to use instead, or nothing.
pub(crate) type Found = Result<Option<NodeId>, Error>;

/// A rule, applied to a node whose operands are already in the new graph.
pub(crate) type Rule = fn(&mut Rewriter, &Node) -> Found;

/// How often a rule is applied to its own results before they are left for the next round.
const MAX_DEPTH: u32 = 16;

/// The graph being built.
pub(crate) struct Rewriter {
    graph: Graph,
    rule: Rule,
    depth: u32,
}

/// Rebuilds a graph under one rule. The replacement of a node must have the node's type.
pub(crate) fn rewrite(graph: Graph, rule: Rule) -> Result<Rewritten, Error> {
    let (nodes, outputs) = graph.into_parts();
    let mut rewriter = Rewriter { graph: Graph::with_capacity(nodes.len()), rule, depth: 0 };
    let mut map: Vec<NodeId> = Vec::with_capacity(nodes.len());
    let mut changed = false;
    for mut node in nodes {
        for operand in &mut node.operands {
            *operand = map[operand.index()];
        }
        let id = match rule(&mut rewriter, &node)? {
            Some(id) => {
                changed = true;
                rewriter.same_type(id, &node)?;
                id
            }
            None => rewriter.graph.keep(node)?,
        };
        map.push(id);
    }
    let mut graph = rewriter.graph;
    set_outputs(&mut graph, outputs, &map);
    Ok(Rewritten { graph, changed })
}

/// Gives a rebuilt graph its results; `map` says what each old node became.
pub(crate) fn set_outputs(graph: &mut Graph, outputs: Vec<Output>, map: &[NodeId]) {
    for output in outputs {
        match output.updates {
            Some(input) => graph.update(map[output.node.index()], input),
            None => graph.output(map[output.node.index()]),
        }
    }
}

impl Rewriter {
    /// The op of a node of the new graph.
    pub fn op(&self, id: NodeId) -> &Op {
        &self.graph.node(id).op
    }

    /// A node of the new graph.
    pub fn node(&self, id: NodeId) -> &Node {
        self.graph.node(id)
    }

    /// The new graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The type of a node of the new graph.
    pub fn ty(&self, id: NodeId) -> &TensorType {
        self.graph.ty(id)
    }

    /// The first operand of a node of the new graph.
    pub fn operand(&self, id: NodeId) -> NodeId {
        self.graph.node(id).operands[0]
    }

    /// The value that every element of a node has, where it is known.
    pub fn splat(&self, id: NodeId) -> Option<Scalar> {
        match self.op(id) {
            Op::Full { value, .. } => Some(*value),
            _ => None,
        }
    }

    /// Adds a node that replaces `at`, whose source line it takes; the rule is applied to it as well.
    pub fn emit(&mut self, at: &Node, op: Op, operands: &[NodeId]) -> Result<NodeId, Error> {
        let types: Vec<&TensorType> = operands.iter().map(|&o| self.graph.ty(o)).collect();
        let ty = match infer(&op, &types) {
            Ok(ty) => ty,
            Err(cause) => {
                let node = NodeId(self.graph.nodes().len() as u32);
                let at = at.source.clone();
                return Err(Error::Type { node, op: op.kind().name(), cause: Box::new(cause), at });
            }
        };
        let node = Node { op, operands: operands.to_vec(), ty, source: at.source.clone() };
        if self.depth < MAX_DEPTH {
            self.depth += 1;
            let found = (self.rule)(self, &node);
            self.depth -= 1;
            if let Some(id) = found? {
                self.same_type(id, &node)?;
                return Ok(id);
            }
        }
        self.graph.keep(node)
    }

    /// [`Rewriter::emit`], as what a rule returns.
    pub fn replace(&mut self, at: &Node, op: Op, operands: &[NodeId]) -> Found {
        self.emit(at, op, operands).map(Some)
    }

    /// Replaces `at` by one value everywhere.
    pub fn replace_by_full(&mut self, at: &Node, value: Scalar) -> Found {
        debug_assert_eq!(value.dtype(), at.ty.dtype);
        self.replace(at, Op::Full { value, shape: at.ty.shape.clone() }, &[])
    }

    /// One value in the shape of `like`.
    pub fn full_like(&mut self, at: &Node, value: Scalar, like: NodeId) -> Result<NodeId, Error> {
        let shape = self.ty(like).shape.clone();
        self.emit(at, Op::Full { value, shape }, &[])
    }

    fn same_type(&self, id: NodeId, node: &Node) -> Result<(), Error> {
        if self.ty(id) == &node.ty {
            return Ok(());
        }
        let (declared, inferred) = (node.ty.clone(), self.ty(id).clone());
        Err(Error::WrongType { node: id, declared, inferred, at: node.source.clone() })
    }
}
