//! Composites: functions that users think of as ops — softmax, layer norm, gelu, pooling, embedding — written once over the
//! primitives, for any executor of the primitives.
//!
//! ```text
//!  softmax(e, x, axis) ──▶ e.emit(Reduce), e.emit(Sub), …     e: a graph under construction, or an eager executor
//! ```
//!
//! Functions broadcast as NumPy does and leave type promotion to the caller. On short floats those that chain several
//! steps compute in f32 and round once at the end, as PyTorch does. Axes are counted from 0; [`axis`] converts a negative one
//! into that. Every function is `#[track_caller]`, so that nodes and errors name the user's line.

mod activation;
mod attention;
mod attention_backward;
mod blocks;
mod complex;
mod conv;
mod digamma;
mod einsum;
mod erfc;
mod fold;
mod fourier;
mod index;
mod index_axes;
mod integer;
mod loss;
mod norm;
mod pad;
mod pointwise;
mod pool;
mod pool_backward;
mod product;
mod random;
mod real_fourier;
mod reduce;
mod resize;
mod sample;
mod scatter;
mod search;
mod shape;
mod special;

pub use activation::*;
pub use attention::*;
pub use attention_backward::*;
pub use blocks::*;
pub use complex::*;
pub use conv::*;
pub use digamma::digamma;
pub use einsum::einsum;
pub use erfc::erfc;
pub use fold::*;
pub use index::*;
pub use index_axes::*;
pub use integer::*;
pub use loss::*;
pub use norm::*;
pub use pad::*;
pub use pointwise::*;
pub use pool::*;
pub use pool_backward::*;
pub use product::*;
pub use random::*;
pub use real_fourier::{dft_of_real, dft_to_real};
pub use reduce::*;
pub use resize::*;
pub use sample::*;
pub use scatter::*;
pub use search::*;
pub use shape::*;
pub use special::*;

use crate::{Dim, Error, Graph, NodeId, Op, Source, Symbol, TensorType, TypeError};
use std::sync::Arc;

/// An executor of primitive ops: it adds nodes to a graph, or computes.
pub trait Emit {
    /// The operands and results of ops.
    type Value: Clone;
    /// The error of an op.
    type Error: From<BuildError>;

    /// Executes one op.
    #[track_caller]
    fn emit(&mut self, op: Op, operands: &[Self::Value]) -> Result<Self::Value, Self::Error>;

    /// The dtype and shape of a value.
    fn ty(&self, value: &Self::Value) -> TensorType;
}

/// The result of a composite.
pub type Built<E> = Result<<E as Emit>::Value, <E as Emit>::Error>;

/// An error of a composite's arguments.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{function}: {cause}, at {at}")]
pub struct BuildError {
    /// The composite.
    pub function: &'static str,
    /// The cause.
    pub cause: Box<TypeError>,
    /// The user's line.
    pub at: Source,
}

/// The error of a composite, at its caller's line.
#[track_caller]
fn fail<T, E: Emit>(function: &'static str, cause: TypeError) -> Result<T, E::Error> {
    Err(E::Error::from(BuildError { function, cause: Box::new(cause), at: Source::caller() }))
}

/// The axis from 0 that `axis`, counted from the end when negative, names in a tensor of some rank.
///
/// ```
/// use kiln_ir::build::axis;
/// assert_eq!((axis(3, 1), axis(3, -1), axis(3, 3), axis(3, -4)), (Some(1), Some(2), None, None));
/// ```
pub fn axis(rank: usize, axis: i64) -> Option<usize> {
    let from_zero = if axis < 0 { axis.checked_add_unsigned(rank as u64)? } else { axis };
    usize::try_from(from_zero).ok().filter(|&a| a < rank)
}

/// Builds a graph; each node's source is the line of the call.
///
/// ```
/// use kiln_ir::build::{GraphBuilder, softmax};
/// use kiln_ir::{DType, HostTensor, TensorType, interpret};
/// let mut b = GraphBuilder::new();
/// let x = b.input(TensorType::fixed(DType::F32, &[2])).unwrap();
/// let y = softmax(&mut b, &x, 0).unwrap();
/// b.output(y);
/// let graph = b.finish();
/// let x = HostTensor::from_slice(&[2], &[0f32, 0.0]).unwrap();
/// assert_eq!(interpret::run(&graph, &[x]).unwrap()[0].to_f64(), [0.5, 0.5]);
/// ```
#[derive(Debug, Clone, Default)]
pub struct GraphBuilder {
    graph: Graph,
    source: Option<Source>,
    /// What symbols are replaced by.
    sizes: Option<Arc<[(Symbol, i64)]>>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> GraphBuilder {
        GraphBuilder::default()
    }

    /// Continues a graph.
    pub fn extend(graph: Graph) -> GraphBuilder {
        GraphBuilder { graph, source: None, sizes: None }
    }

    /// Gives every node from now on this source; `None` goes back to the caller's line.
    pub fn set_source(&mut self, source: Option<Source>) {
        self.source = source;
    }

    /// Replaces these symbols by these sizes in whatever ops are added from now on.
    pub fn set_sizes(&mut self, sizes: Option<Arc<[(Symbol, i64)]>>) {
        self.sizes = sizes;
    }

    /// Adds the next input.
    #[track_caller]
    pub fn input(&mut self, ty: TensorType) -> Result<NodeId, Error> {
        let source = self.here();
        self.graph.input(ty, source)
    }

    /// Makes a node a result of the graph.
    pub fn output(&mut self, node: NodeId) {
        self.graph.output(node);
    }

    /// Makes a node the new value of an input.
    pub fn update(&mut self, node: NodeId, input: usize) {
        self.graph.update(node, input);
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph.
    pub fn finish(self) -> Graph {
        self.graph
    }

    #[track_caller]
    fn here(&self) -> Source {
        match &self.source {
            Some(source) => source.clone(),
            None => Source::caller(),
        }
    }
}

impl Emit for GraphBuilder {
    type Value = NodeId;
    type Error = Error;

    #[track_caller]
    fn emit(&mut self, op: Op, operands: &[NodeId]) -> Result<NodeId, Error> {
        let source = self.here();
        let op = match &self.sizes {
            Some(sizes) => {
                let size = |symbol| sizes.iter().find(|(known, _)| *known == symbol).map(|(_, size)| Dim::from(*size));
                op.map_dims(&|dim| if dim.as_const().is_some() { dim.clone() } else { dim.substitute(&size) })
            }
            None => op,
        };
        self.graph.add(op, operands, source)
    }

    fn ty(&self, value: &NodeId) -> TensorType {
        self.graph.ty(*value).clone()
    }
}
