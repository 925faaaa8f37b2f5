//! The graph pass: walks a graph backwards, collects what the users of each node give it, and applies the rules.

use super::{accumulate, gradient, is_differentiable, loops, shift, zeros};
use kiln_ir::build::{Emit, GraphBuilder, full};
use kiln_ir::{DType, Error, Graph, NodeId, Op, Scalar, Source, TensorType};

/// The cotangents of the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Seeds {
    /// 1, for outputs of one element.
    #[default]
    One,
    /// New inputs behind the old ones, of the types of the differentiated outputs in order.
    Inputs,
}

/// Choices of [`differentiate`].
#[derive(Debug, Clone, Default)]
pub struct DifferentiateOptions {
    /// The cotangents of the outputs.
    pub seeds: Seeds,
    /// Nodes at which gradients stop: they are treated as constants.
    pub stops: Vec<NodeId>,
}

/// An error of [`differentiate`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DifferentiateError {
    /// An output that the graph does not have.
    #[error("there is no output {output}: the graph has {count}")]
    UnknownOutput {
        /// The requested output.
        output: usize,
        /// The number of outputs.
        count: usize,
    },
    /// An input that the graph does not have.
    #[error("there is no input {input}: the graph has {count}")]
    UnknownInput {
        /// The requested input.
        input: usize,
        /// The number of inputs.
        count: usize,
    },
    /// An output whose type carries no gradient.
    #[error("output {output} is {dtype}: only floats can be differentiated, at {at}")]
    OutputType {
        /// The output's index.
        output: usize,
        /// Its dtype.
        dtype: DType,
        /// The user's line.
        at: Source,
    },
    /// An input whose type carries no gradient.
    #[error("input {input} is {dtype}: only floats can be differentiated by, at {at}")]
    InputType {
        /// The input's index.
        input: usize,
        /// Its dtype.
        dtype: DType,
        /// The user's line.
        at: Source,
    },
    /// An output of several elements without a seed.
    #[error("output {output} is {ty}: without a seed only one element can be differentiated, at {at}")]
    SeedNeeded {
        /// The output's index.
        output: usize,
        /// Its type.
        ty: TensorType,
        /// The user's line.
        at: Source,
    },
    /// An op whose gradient cannot be written down, or a mistake in a rule.
    #[error("differentiate: {cause}")]
    Rule {
        /// The cause.
        cause: Error,
    },
}

impl From<Error> for DifferentiateError {
    fn from(cause: Error) -> DifferentiateError {
        DifferentiateError::Rule { cause }
    }
}

/// The graph that computes the outputs of a graph and then the gradients of the sum of some of them (`of`, each weighted by
/// its seed) with respect to some of its inputs, in the order of `with_respect_to`. The inputs are the old ones and then, if
/// the options ask for them, the seeds. An input without a path to the outputs gets zeros. The new nodes carry the source
/// lines of the nodes that they are the gradients of.
///
/// ```
/// use kiln_ir::{Graph, HostTensor, interpret};
/// use kiln_passes::{DifferentiateOptions, differentiate};
/// let graph = Graph::parse("graph(%0: f32[3]) {
///   %1: f32[3] = mul %0, %0
///   %2: f32[1] = reduce_sum %1 {axes=[0]}
///   return %2
/// }").unwrap();
/// let joint = differentiate(&graph, &[0], &[0], &DifferentiateOptions::default()).unwrap();
/// let x = HostTensor::from_slice(&[3], &[1f32, 2.0, 3.0]).unwrap();
/// let results = interpret::run(&joint, &[x]).unwrap();
/// assert_eq!(results[1].to_f64(), [2.0, 4.0, 6.0]);
/// ```
pub fn differentiate(
    graph: &Graph,
    of: &[usize],
    with_respect_to: &[usize],
    options: &DifferentiateOptions,
) -> Result<Graph, DifferentiateError> {
    let targets = check_outputs(graph, of)?;
    let sources = check_inputs(graph, with_respect_to)?;
    let mut left_out = vec![false; graph.nodes().len()];
    options.stops.iter().for_each(|stop| left_out[stop.index()] = true);
    let every = dependents(graph, &sources, &left_out);
    let shifts = shift::find(graph, &targets, &every);
    left_out.iter_mut().zip(shifts).for_each(|(left_out, shift)| *left_out |= shift);
    let depends = dependents(graph, &sources, &left_out);
    let mut b = GraphBuilder::extend(graph.clone());
    let mut cotangents: Vec<Vec<NodeId>> = vec![Vec::new(); graph.nodes().len()];
    for (&output, &node) in of.iter().zip(&targets) {
        let (ty, at) = (graph.ty(node), &graph.node(node).source);
        b.set_source(Some(at.clone()));
        let seed = match options.seeds {
            Seeds::Inputs => b.input(ty.clone())?,
            Seeds::One if ty.shape.iter().any(|size| !size.is_one()) => {
                return Err(DifferentiateError::SeedNeeded { output, ty: ty.clone(), at: at.clone() });
            }
            Seeds::One if !depends[node.index()] => continue,
            Seeds::One => full(&mut b, Scalar::float(ty.dtype, 1.0), &ty.shape)?,
        };
        cotangents[node.index()].push(seed);
    }
    for (id, node) in graph.iter().rev() {
        if !(depends[id.index()] || node.op.has_bodies()) || matches!(node.op, Op::Input { .. }) {
            continue;
        }
        b.set_source(Some(node.source.clone()));
        let wanted: Vec<bool> = node.operands.iter().map(|o| depends[o.index()]).collect();
        let found = match &node.op {
            // All results of a loop or a choice at once, where the first of them stands.
            op if op.has_bodies() => {
                let results = graph.results_of(id);
                if results.first() != Some(&id) {
                    continue;
                }
                let mut given = vec![Vec::new(); op.bodies()[0].outputs().len()];
                for other in results {
                    if let Some(result) = graph.node(other).op.result_number() {
                        given[result].append(&mut cotangents[other.index()]);
                    }
                }
                let given = given.iter().map(|all| accumulate(&mut b, all)).collect::<Result<Vec<_>, Error>>()?;
                if given.iter().all(Option::is_none) || !wanted.contains(&true) {
                    continue;
                }
                loops::body_gradients(&mut b, op, &node.operands, &given, &wanted)
            }
            op => {
                let Some(cotangent) = accumulate(&mut b, &cotangents[id.index()])? else { continue };
                gradient(&mut b, op, &node.operands, &id, &cotangent, &wanted)
            }
        };
        let found = found.map_err(|cause| at_line(cause, &node.source))?;
        for (operand, found) in node.operands.iter().zip(found) {
            let Some(found) = found else { continue };
            let (declared, inferred) = (graph.ty(*operand), b.ty(&found));
            if *declared != inferred {
                let (declared, at) = (declared.clone(), node.source.clone());
                return Err(Error::WrongType { node: found, declared, inferred, at }.into());
            }
            cotangents[operand.index()].push(found);
        }
    }
    for &input in &sources {
        b.set_source(Some(graph.node(input).source.clone()));
        let found = match accumulate(&mut b, &cotangents[input.index()])? {
            Some(found) => found,
            None => zeros(&mut b, graph.ty(input))?,
        };
        // The sum is not added up again where an input is requested twice.
        cotangents[input.index()] = vec![found];
        b.output(found);
    }
    let joint = b.finish();
    if cfg!(debug_assertions) {
        joint.verify()?;
    }
    Ok(joint)
}

fn check_outputs(graph: &Graph, of: &[usize]) -> Result<Vec<NodeId>, DifferentiateError> {
    let find = |&output: &usize| {
        let count = graph.outputs().len();
        let node = graph.outputs().get(output).ok_or(DifferentiateError::UnknownOutput { output, count })?.node;
        let dtype = graph.ty(node).dtype;
        if is_differentiable(dtype) {
            return Ok(node);
        }
        Err(DifferentiateError::OutputType { output, dtype, at: graph.node(node).source.clone() })
    };
    of.iter().map(find).collect()
}

fn check_inputs(graph: &Graph, with_respect_to: &[usize]) -> Result<Vec<NodeId>, DifferentiateError> {
    let find = |&input: &usize| {
        let count = graph.inputs().len();
        let node = *graph.inputs().get(input).ok_or(DifferentiateError::UnknownInput { input, count })?;
        let dtype = graph.ty(node).dtype;
        if is_differentiable(dtype) {
            return Ok(node);
        }
        Err(DifferentiateError::InputType { input, dtype, at: graph.node(node).source.clone() })
    };
    with_respect_to.iter().map(find).collect()
}

/// For each node whether a gradient of it is of use: it is one of the sources, or an op that has a derivative of such and is
/// not left out.
fn dependents(graph: &Graph, sources: &[NodeId], left_out: &[bool]) -> Vec<bool> {
    let mut depends = vec![false; graph.nodes().len()];
    sources.iter().for_each(|source| depends[source.index()] = true);
    for (id, node) in graph.iter() {
        let rule = super::derivative(node.op.kind()) == super::Derivative::Rule && is_differentiable(node.ty.dtype);
        let reaches = node.operands.iter().any(|operand| depends[operand.index()]);
        depends[id.index()] |= rule && reaches && !left_out[id.index()];
    }
    depends
}

/// A composite's error at the line of the node whose gradient it is part of.
fn at_line(cause: Error, at: &Source) -> Error {
    match cause {
        Error::Build(mut cause) => {
            cause.at = at.clone();
            Error::Build(cause)
        }
        other => other,
    }
}
