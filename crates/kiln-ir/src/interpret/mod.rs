//! The reference interpreter: the semantics of every op, in plain loops. Simple on purpose, not fast; eager execution and
//! compiled programs are compared with it.
//!
//! A pointwise float op computes in f64 and rounds once to its node's dtype; sums, products of matrices and attention
//! accumulate in f64, and those of f64 in twice its precision. Integers are computed exactly and wrap at their width.

mod attention;
mod compensated;
mod error;
mod loops;
mod magnitude;
mod pointwise;
mod products;
mod random;
mod reduce;
pub mod special;
mod views;

pub use error::{Fault, InterpretError};
pub use magnitude::magnitudes;

use crate::host::element_count;
use crate::{Dim, Graph, HostTensor, Node, NodeId, Op, OpKind, Symbol};
use attention::{Backward, Scores};

/// The most elements that a tensor may have here; a larger one is an error rather than an exhausted machine.
pub const MAX_ELEMENTS: usize = 1 << 28;

/// The values of a graph's symbols.
struct Sizes(Vec<(Symbol, i64)>);

impl Sizes {
    fn get(&self, symbol: Symbol) -> Option<i64> {
        self.0.iter().find(|(s, _)| *s == symbol).map(|&(_, n)| n)
    }

    fn signed(&self, dim: &Dim) -> Result<i64, Fault> {
        dim.as_const().or_else(|| dim.eval(&|s| self.get(s))).ok_or_else(|| Fault::Unbound { dim: dim.clone() })
    }

    fn size(&self, dim: &Dim) -> Result<usize, Fault> {
        let value = self.signed(dim)?;
        usize::try_from(value).map_err(|_| Fault::NegativeSize { dim: dim.clone(), value })
    }

    fn shape(&self, dims: &[Dim]) -> Result<Vec<usize>, Fault> {
        dims.iter().map(|d| self.size(d)).collect()
    }
}

/// Runs a graph on inputs and returns its outputs, updates included, in order.
///
/// Symbols take their values from input axes that are a symbol or a multiple of one; every size is evaluated and checked.
///
/// ```
/// use kiln_ir::{BinaryOp, DType, Graph, HostTensor, Op, Source, TensorType, interpret};
/// let mut graph = Graph::new();
/// let x = graph.input(TensorType::fixed(DType::F32, &[2]), Source::caller()).unwrap();
/// let y = graph.add(Op::Binary(BinaryOp::Add), &[x, x], Source::caller()).unwrap();
/// graph.output(y);
/// let input = HostTensor::from_slice(&[2], &[1.0f32, 2.5]).unwrap();
/// assert_eq!(interpret::run(&graph, &[input]).unwrap()[0].to_f64(), [2.0, 5.0]);
/// ```
pub fn run(graph: &Graph, inputs: &[HostTensor]) -> Result<Vec<HostTensor>, InterpretError> {
    interpret(graph, inputs, &[], &mut Silent)
}

/// [`run`] with sizes for symbols that no input gives.
pub fn run_at(
    graph: &Graph,
    inputs: &[HostTensor],
    sizes: &[(Symbol, i64)],
) -> Result<Vec<HostTensor>, InterpretError> {
    interpret(graph, inputs, sizes, &mut Silent)
}

/// Observes, and may change, the values of an interpreted graph: to find where a program is wrong, or how much a small error in
/// one op changes the result.
pub trait Observer {
    /// Called before a node reads operand number `position`; a returned value is read instead.
    fn operand(&mut self, _node: NodeId, _position: usize, _value: &HostTensor) -> Option<HostTensor> {
        None
    }
    /// Called with a node's value before it is read.
    fn value(&mut self, _node: NodeId, _value: &mut HostTensor) {}
    /// Called before each turn of a loop and before a side of a choice, with the number of the graph in [`Op::bodies`]; what it returns
    /// observes the nodes there.
    fn turn(&mut self, _node: NodeId, _body: usize) -> Option<Box<dyn Observer + '_>> {
        None
    }
}

/// Observes nothing.
struct Silent;
impl Observer for Silent {}

/// [`run`] with an observer.
pub fn run_with(
    graph: &Graph,
    inputs: &[HostTensor],
    observer: &mut dyn Observer,
) -> Result<Vec<HostTensor>, InterpretError> {
    interpret(graph, inputs, &[], observer)
}

fn interpret(
    graph: &Graph,
    inputs: &[HostTensor],
    sizes: &[(Symbol, i64)],
    observer: &mut dyn Observer,
) -> Result<Vec<HostTensor>, InterpretError> {
    let sizes = bind(graph, inputs, sizes)?;
    let last_use = last_uses(graph);
    let mut values: Vec<Option<HostTensor>> = vec![None; graph.nodes().len()];
    for (id, node) in graph.iter() {
        let read = |o: &NodeId| values[o.index()].as_ref().expect("operands come first and live to their last use");
        let replaced: Vec<Option<HostTensor>> =
            node.operands.iter().enumerate().map(|(i, o)| observer.operand(id, i, read(o))).collect();
        let operands: Vec<&HostTensor> =
            node.operands.iter().zip(&replaced).map(|(o, other)| other.as_ref().unwrap_or_else(|| read(o))).collect();
        let computed = match &node.op {
            Op::Loop { region, result } => loops::run(region, *result, &operands, &sizes, id, observer),
            Op::Cond { branches, result } => loops::choose(branches, *result, &operands, &sizes, id, observer),
            _ => compute(node, &operands, inputs, &sizes),
        };
        let mut value = computed.map_err(|cause| InterpretError::Node {
            node: id,
            op: node.op.kind(),
            cause,
            at: node.source.clone(),
        })?;
        observer.value(id, &mut value);
        for operand in &node.operands {
            if last_use[operand.index()] == id.index() {
                values[operand.index()] = None;
            }
        }
        values[id.index()] = Some(value);
    }
    let outputs = graph.outputs();
    Ok(outputs.iter().map(|o| values[o.node.index()].clone().expect("outputs live to the end")).collect())
}

/// For each node the index of the last node that reads it; outputs are read after the last node.
fn last_uses(graph: &Graph) -> Vec<usize> {
    let mut last = vec![0; graph.nodes().len()];
    for (id, node) in graph.iter() {
        for operand in &node.operands {
            last[operand.index()] = id.index();
        }
    }
    for output in graph.outputs() {
        last[output.node.index()] = usize::MAX;
    }
    last
}

/// Gives each symbol its number and checks every input against its declaration.
fn bind(graph: &Graph, inputs: &[HostTensor], given: &[(Symbol, i64)]) -> Result<Sizes, InterpretError> {
    if inputs.len() != graph.inputs().len() {
        return Err(InterpretError::InputCount { expected: graph.inputs().len(), got: inputs.len() });
    }
    let mut sizes = Sizes(given.to_vec());
    for (input, (tensor, &id)) in inputs.iter().zip(graph.inputs()).enumerate() {
        let ty = graph.ty(id);
        if tensor.dtype() != ty.dtype || tensor.rank() != ty.rank() {
            return Err(InterpretError::InputType {
                input,
                expected: ty.clone(),
                dtype: tensor.dtype(),
                shape: tensor.shape().to_vec(),
            });
        }
        for (dim, &got) in ty.shape.iter().zip(tensor.shape()) {
            if let Some((symbol, factor)) = dim.as_multiple()
                && sizes.get(symbol).is_none()
            {
                sizes.0.push((symbol, got as i64 / factor));
            }
        }
    }
    for (input, (tensor, &id)) in inputs.iter().zip(graph.inputs()).enumerate() {
        for (axis, (dim, &got)) in graph.ty(id).shape.iter().zip(tensor.shape()).enumerate() {
            let bound = sizes.signed(dim).map_err(|cause| InterpretError::Node {
                node: id,
                op: OpKind::Input,
                cause,
                at: graph.node(id).source.clone(),
            })?;
            if bound != got as i64 {
                return Err(InterpretError::InputSize { input, axis, dim: dim.clone(), got, bound });
            }
        }
    }
    Ok(sizes)
}

/// The value of one node.
fn compute(node: &Node, operands: &[&HostTensor], inputs: &[HostTensor], sizes: &Sizes) -> Result<HostTensor, Fault> {
    let shape = sizes.shape(&node.ty.shape)?;
    if element_count(&shape).is_none_or(|n| n > MAX_ELEMENTS) {
        return Err(Fault::TooLarge { shape });
    }
    match (&node.op, operands) {
        (Op::Input { index }, _) => Ok(inputs[*index].clone()),
        (Op::Full { value, .. }, _) => Ok(HostTensor::full(&shape, *value)?),
        (Op::Constant(literal), _) => Ok(HostTensor::from_literal(literal)?),
        (Op::Iota { dtype, axis, .. }, _) => views::iota(*dtype, &shape, *axis),
        (Op::RandomBits { stream, .. }, &[seed]) => random::bits(seed, &shape, *stream),
        (Op::Unary(op), &[x]) => pointwise::unary(*op, x),
        (Op::Binary(op), &[x, y]) => pointwise::binary(*op, x, y),
        (Op::Compare(op), &[x, y]) => pointwise::compare(*op, x, y),
        (Op::Select, &[condition, x, y]) => pointwise::select(condition, x, y),
        (Op::Cast(dtype), &[x]) => Ok(x.cast(*dtype)?),
        (Op::Bitcast(dtype), &[x]) => Ok(HostTensor::from_bytes(*dtype, x.shape(), x.bytes().to_vec())?),
        (Op::Reduce { kind, axes }, &[x]) => reduce::reduce(*kind, axes, x),
        (Op::ArgReduce { kind, axis }, &[x]) => reduce::arg_reduce(*kind, *axis, x),
        (Op::Scan { kind, axis, reverse }, &[x]) => reduce::scan(*kind, *axis, *reverse, x),
        (Op::SortIndices { axis, descending, .. }, &[x]) => reduce::sort_indices(*axis, *descending, shape[*axis], x),
        (Op::ReduceWindow { kind, dims }, &[x]) => reduce::reduce_window(*kind, dims, &shape, x),
        (Op::Reshape { .. }, &[x]) => views::reshape(x, &shape),
        (Op::Permute { order }, &[x]) => views::permute(x, order),
        (Op::Expand { .. }, &[x]) => views::expand(x, &shape),
        (Op::Slice { start, step, .. }, &[x]) => views::slice(x, &sizes.shape(start)?, &shape, step),
        (Op::Pad { low, high, value }, &[x]) => views::pad(x, &sizes.shape(low)?, &sizes.shape(high)?, *value),
        (Op::Flip { axes }, &[x]) => views::flip(x, axes),
        (Op::Unfold { axis, stride, dilation, .. }, &[x]) => views::unfold(x, *axis, *stride, *dilation, &shape),
        (Op::Concat { axis }, parts) => views::concat(parts, *axis, &shape),
        (Op::Gather { axis }, &[x, index]) => views::gather(x, index, *axis),
        (Op::Scatter { axis, kind }, &[x, index, updates]) => views::scatter(x, index, updates, *axis, *kind),
        (Op::Dot { dims, out }, &[x, y]) => products::dot(dims, *out, x, y),
        (Op::Dequantize { format }, &[x]) => products::dequantize(*format, &shape, x),
        (Op::Conv(dims), &[x, w]) => products::conv(dims, &shape, x, w),
        (Op::Attention { causal, scale, .. }, &[q, k, v, ref mask @ ..]) => {
            attention::attention(&Scores::new(*causal, scale.as_f64(), q, k, mask.first().copied())?, v)
        }
        (Op::AttentionLogsumexp { causal, scale, .. }, &[q, k, ref mask @ ..]) => {
            attention::logsumexp(&Scores::new(*causal, scale.as_f64(), q, k, mask.first().copied())?)
        }
        (Op::AttentionGradient { of, causal, scale, .. }, &[q, k, v, gradient, logsumexp, delta, ref mask @ ..]) => {
            let scores = Scores::new(*causal, scale.as_f64(), q, k, mask.first().copied())?;
            attention::gradient(*of, &scores, &Backward { q, k, v, gradient, logsumexp, delta })
        }
        _ => unreachable!("the verifier checks the number of operands"),
    }
}

/// Row-major strides, in elements.
fn strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; shape.len()];
    for axis in (0..shape.len().saturating_sub(1)).rev() {
        // A zero size makes the strides before it irrelevant, but they must not overflow.
        strides[axis] = strides[axis + 1] * shape[axis + 1].max(1) as isize;
    }
    strides
}

/// The sizes before an axis, of it, and after it, multiplied up.
fn around(shape: &[usize], axis: usize) -> (usize, usize, usize) {
    let product = |sizes: &[usize]| element_count(sizes).unwrap_or(0);
    (product(&shape[..axis]), shape[axis], product(&shape[axis + 1..]))
}

/// Positions `offset + Σ index·stride` for every index of a shape, in row-major order.
struct Walk<'a> {
    shape: &'a [usize],
    strides: &'a [isize],
    index: Vec<usize>,
    position: isize,
    left: usize,
}

impl<'a> Walk<'a> {
    fn new(shape: &'a [usize], strides: &'a [isize], offset: isize) -> Walk<'a> {
        let left = element_count(shape).unwrap_or(0);
        Walk { shape, strides, index: vec![0; shape.len()], position: offset, left }
    }
}

impl Iterator for Walk<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let at = self.position as usize;
        for axis in (0..self.shape.len()).rev() {
            self.index[axis] += 1;
            self.position += self.strides[axis];
            if self.index[axis] < self.shape[axis] {
                break;
            }
            self.position -= self.strides[axis] * self.shape[axis] as isize;
            self.index[axis] = 0;
        }
        Some(at)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}
