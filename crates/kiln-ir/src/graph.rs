//! The graph: a list of nodes in SSA form, each made of one [`Op`], its operands and its inferred type. A graph is
//! functional: no node has an effect. An output may be marked as the new value of an input (*updated*), which the plan then
//! writes in place.

use crate::infer::{self, infer};
use crate::{DType, Dim, Error, Op, Source};
use std::fmt;

/// The index of a node in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The index into [`Graph::nodes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Dtype and shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Sizes, possibly symbolic.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// A type of symbolic or constant sizes.
    pub fn new(dtype: DType, shape: impl Into<Vec<Dim>>) -> TensorType {
        TensorType { dtype, shape: shape.into() }
    }

    /// A type of constant sizes.
    pub fn fixed(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType { dtype, shape: shape.iter().map(|&n| Dim::from(n)).collect() }
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// The product of the sizes.
    pub fn elements(&self) -> Dim {
        self.shape.iter().fold(Dim::from(1usize), |n, d| n * d.clone())
    }

    /// The sizes if all of them are constants.
    pub fn fixed_shape(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(|d| d.as_const().and_then(|n| usize::try_from(n).ok())).collect()
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.shape.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

/// One op applied to earlier nodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// The operands; all earlier in the graph.
    pub operands: Vec<NodeId>,
    /// The result's type.
    pub ty: TensorType,
    /// The user's line.
    pub source: Source,
}

/// A result of the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Output {
    /// The node whose value it is.
    pub node: NodeId,
    /// The input that this value replaces, if the output is an update in place.
    pub updates: Option<usize>,
}

/// A functional tensor program. Nodes are in topological order: operands come first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    inputs: Vec<NodeId>,
    outputs: Vec<Output>,
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// An empty graph with memory for so many nodes.
    pub fn with_capacity(nodes: usize) -> Graph {
        Graph { nodes: Vec::with_capacity(nodes), ..Graph::default() }
    }

    /// Any graph, valid or not.
    #[cfg(test)]
    pub(crate) fn from_parts(nodes: Vec<Node>, inputs: Vec<NodeId>, outputs: Vec<Output>) -> Graph {
        Graph { nodes, inputs, outputs }
    }

    /// Adds the next input.
    pub fn input(&mut self, ty: TensorType, source: Source) -> Result<NodeId, Error> {
        if let Err(cause) = infer::check_type(&ty) {
            return Err(Error::InputType { index: self.inputs.len(), cause: Box::new(cause), at: source });
        }
        let id = self.push(Node { op: Op::Input { index: self.inputs.len() }, operands: vec![], ty, source })?;
        self.inputs.push(id);
        Ok(id)
    }

    /// Adds an op, inferring and checking its type.
    pub fn add(&mut self, op: Op, operands: &[NodeId], source: Source) -> Result<NodeId, Error> {
        if let Some(&bad) = operands.iter().find(|o| o.index() >= self.nodes.len()) {
            return Err(Error::UnknownNode { node: bad, at: source });
        }
        let types: Vec<&TensorType> = operands.iter().map(|&o| self.ty(o)).collect();
        let ty = match infer(&op, &types) {
            Ok(ty) => ty,
            Err(cause) => {
                let node = NodeId(self.nodes.len() as u32);
                return Err(Error::Type { node, op: op.kind().name(), cause: Box::new(cause), at: source });
            }
        };
        self.push(Node { op, operands: operands.to_vec(), ty, source })
    }

    /// Adds a node without inferring its type, for passes that move nodes whose types are known from one graph to another.
    /// Operands must be there already and inputs must come in order; the type is trusted until [`Graph::verify`] checks it.
    pub fn keep(&mut self, node: Node) -> Result<NodeId, Error> {
        if let Some(&bad) = node.operands.iter().find(|o| o.index() >= self.nodes.len()) {
            return Err(Error::UnknownNode { node: bad, at: node.source });
        }
        let input = match node.op {
            Op::Input { index } if index != self.inputs.len() => {
                return Err(Error::InputOrder { node: NodeId(self.nodes.len() as u32) });
            }
            Op::Input { .. } => true,
            _ => false,
        };
        let id = self.push(node)?;
        if input {
            self.inputs.push(id);
        }
        Ok(id)
    }

    /// The same graph with other source lines: `line` gives each node's, in order.
    pub fn map_sources(mut self, line: &mut dyn FnMut(&Source) -> Source) -> Graph {
        for node in &mut self.nodes {
            node.source = line(&node.source);
        }
        self
    }

    /// Changes nodes where they stand.
    pub(crate) fn change_nodes(&mut self, change: &mut dyn FnMut(&mut Node)) {
        self.nodes.iter_mut().for_each(change);
    }

    /// Bytes that it takes in memory, elements of constants included; an estimate.
    pub fn bytes(&self) -> usize {
        let node = |node: &Node| {
            let elements = match &node.op {
                Op::Constant(literal) => literal.bytes.len(),
                op => op.bodies().into_iter().map(Graph::bytes).sum(),
            };
            size_of_val(node.operands.as_slice()) + size_of_val(node.ty.shape.as_slice()) + elements
        };
        self.nodes.len() * size_of::<Node>() + self.nodes.iter().map(node).sum::<usize>()
    }

    /// Releases memory that was reserved for more nodes, for graphs that are kept.
    pub fn shrink_to_fit(&mut self) {
        self.nodes.shrink_to_fit();
        self.inputs.shrink_to_fit();
        self.outputs.shrink_to_fit();
    }

    /// The nodes and the results, for passes that rebuild a graph without copying it.
    pub fn into_parts(self) -> (Vec<Node>, Vec<Output>) {
        (self.nodes, self.outputs)
    }

    fn push(&mut self, node: Node) -> Result<NodeId, Error> {
        let id = u32::try_from(self.nodes.len()).map_err(|_| Error::TooManyNodes)?;
        self.nodes.push(node);
        Ok(NodeId(id))
    }

    /// Makes a node a result of the graph.
    pub fn output(&mut self, node: NodeId) {
        self.outputs.push(Output { node, updates: None });
    }

    /// Makes a node the new value of an input.
    pub fn update(&mut self, node: NodeId, input: usize) {
        self.outputs.push(Output { node, updates: Some(input) });
    }

    /// Every node, operands first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Every node with its id.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// The node of an id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The type of a node.
    pub fn ty(&self, id: NodeId) -> &TensorType {
        &self.nodes[id.index()].ty
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> &[NodeId] {
        &self.inputs
    }

    /// The results, in order.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// For each node, the nodes that use it, in order (once for each use).
    pub fn users(&self) -> Vec<Vec<NodeId>> {
        let mut users = vec![Vec::new(); self.nodes.len()];
        for (id, node) in self.iter() {
            for operand in &node.operands {
                users[operand.index()].push(id);
            }
        }
        users
    }

    /// Checks every rule of the graph: operands come first, types are what the ops infer, inputs are numbered in order,
    /// outputs exist, an updated input has the type of its new value and is updated once.
    pub fn verify(&self) -> Result<(), Error> {
        crate::verify::verify(self)
    }
}
