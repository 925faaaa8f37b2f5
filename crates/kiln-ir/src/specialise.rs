//! Giving symbols of a graph their values.

use crate::{Dim, Error, Graph, Op, Symbol};
use std::sync::Arc;

impl Op {
    /// The op with `f` applied to every size in its attributes.
    pub fn map_dims(&self, f: &dyn Fn(&Dim) -> Dim) -> Op {
        let all = |dims: &[Dim]| dims.iter().map(f).collect::<Vec<_>>();
        match self {
            Op::Full { value, shape } => Op::Full { value: *value, shape: all(shape) },
            Op::Iota { dtype, shape, axis } => Op::Iota { dtype: *dtype, shape: all(shape), axis: *axis },
            Op::RandomBits { shape, stream } => Op::RandomBits { shape: all(shape), stream: *stream },
            Op::SortIndices { axis, descending, count } => {
                Op::SortIndices { axis: *axis, descending: *descending, count: f(count) }
            }
            Op::Reshape { shape } => Op::Reshape { shape: all(shape) },
            Op::Expand { shape } => Op::Expand { shape: all(shape) },
            Op::Slice { start, size, step } => Op::Slice { start: all(start), size: all(size), step: step.clone() },
            Op::Pad { low, high, value } => Op::Pad { low: all(low), high: all(high), value: *value },
            Op::Loop { region, result } => Op::Loop { region: Arc::new(region.map_dims(f)), result: *result },
            Op::Cond { branches, result } => Op::Cond { branches: Arc::new(branches.map_dims(f)), result: *result },
            other => other.clone(),
        }
    }
}

impl Graph {
    /// The same graph with symbols replaced by what `values` gives for them, every type checked again.
    ///
    /// ```
    /// use kiln_ir::{Dim, Graph};
    /// let graph = Graph::parse("graph(%0: f32[b, 4]) { %1: f32[b, 4] = exp %0 return %1 }").unwrap();
    /// let fixed = graph.specialise(&|_| Some(Dim::from(3i64))).unwrap();
    /// assert_eq!(fixed.ty(fixed.outputs()[0].node).to_string(), "f32[3, 4]");
    /// ```
    pub fn specialise(&self, values: &dyn Fn(Symbol) -> Option<Dim>) -> Result<Graph, Error> {
        let replace = |dim: &Dim| if dim.as_const().is_some() { dim.clone() } else { dim.substitute(values) };
        let mut graph = Graph::new();
        for (_, node) in self.iter() {
            match &node.op {
                Op::Input { .. } => {
                    let mut ty = node.ty.clone();
                    ty.shape.iter_mut().for_each(|d| *d = replace(d));
                    graph.input(ty, node.source.clone())?;
                }
                op => {
                    graph.add(op.map_dims(&replace), &node.operands, node.source.clone())?;
                }
            }
        }
        for output in self.outputs() {
            match output.updates {
                Some(input) => graph.update(output.node, input),
                None => graph.output(output.node),
            }
        }
        Ok(graph)
    }
}
