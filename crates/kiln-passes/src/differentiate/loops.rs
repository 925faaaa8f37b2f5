//! The rules of ops with graphs inside. The gradient of a loop is a loop from the last turn to the first, that of a choice a choice.
//!
//! ```text
//!  forward    carried ─▶ body ─▶ carried on        what each turn finds is stacked: the states
//!  backward   cotangent of carried ◀─ gradient of the body ◀─ cotangent of carried on
//! ```
//!
//! A turn of the backward loop computes the body again, from the state that the turn found and its rows; what is the same at every turn
//! gets the sum of all turns' cotangents, which is carried.

use super::graph::{DifferentiateOptions, Seeds, differentiate};
use super::{Gradients, is_differentiable, zeros};
use kiln_ir::build::{BuildError, Built, Emit, cast};
use kiln_ir::{BinaryOp, Branches, Error, Graph, NodeId, Op, Region, Source, TensorType, TypeError};
use std::sync::Arc;

/// The loop with what each turn finds of what is carried as its last results; itself if these are there already.
pub fn with_states(region: &Arc<Region>) -> Arc<Region> {
    let (body, carried) = (region.body(), region.carried());
    let states = body.inputs()[..carried].iter();
    let first = region.results().checked_sub(carried).filter(|first| *first >= carried);
    if first.is_some_and(|first| body.outputs()[first..].iter().map(|output| &output.node).eq(states.clone())) {
        return region.clone();
    }
    let mut body = body.clone();
    states.copied().collect::<Vec<_>>().into_iter().for_each(|input| body.output(input));
    Arc::new(region.with_body(body))
}

/// The cotangents of the operands of a loop or a choice, given those of its results: nothing where one is 0.
pub fn body_gradients<E: Emit>(
    e: &mut E,
    op: &Op,
    operands: &[E::Value],
    cotangents: &[Option<E::Value>],
    wanted: &[bool],
) -> Gradients<E> {
    match op {
        Op::Loop { region, .. } => loop_gradients(e, region, operands, cotangents, wanted),
        Op::Cond { branches, .. } => cond_gradients(e, branches, operands, cotangents, wanted),
        _ => Ok(vec![None; operands.len()]),
    }
}

/// The gradient of a choice is a choice by the same predicate between the gradients of its sides, each of which computes its side again.
fn cond_gradients<E: Emit>(
    e: &mut E,
    branches: &Branches,
    operands: &[E::Value],
    cotangents: &[Option<E::Value>],
    wanted: &[bool],
) -> Gradients<E> {
    let side = branches.then();
    let is_float = |at: &usize| is_differentiable(side.ty(side.inputs()[*at]).dtype);
    let by: Vec<usize> = (0..side.inputs().len()).filter(|at| wanted[at + 1]).filter(is_float).collect();
    let of: Vec<usize> = (0..branches.results()).filter(|&at| cotangents[at].is_some()).collect();
    let gradient = |side: &Graph| -> Result<Graph, super::DifferentiateError> {
        let options = DifferentiateOptions { seeds: Seeds::Inputs, stops: Vec::new() };
        differentiate(side, &of, &by, &options)
    };
    let joint = gradient(branches.then()).and_then(|then| Ok([then, gradient(branches.otherwise())?]));
    let [then, otherwise] =
        joint.map_err(|_| no_gradient("cond", TypeError::BadCond { what: "a side has no gradient" }))?;
    // The results of the sides themselves are not asked for again, and what neither gradient reads is no operand: a gradient that does
    // not depend on a value has none by it.
    let count = branches.results();
    let [read, read_otherwise] = [&then, &otherwise].map(|joint| read_inputs(joint, count));
    let read: Vec<bool> = read.iter().zip(read_otherwise).map(|(one, other)| *one || other).collect();
    let sides = last_results(&then, count, &read)
        .and_then(|then| Ok(Branches::new(then, last_results(&otherwise, count, &read)?)))
        .map_err(|_| no_gradient("cond", TypeError::BadCond { what: "a side has no gradient" }))?;
    let sides = Arc::new(sides);
    let seeds = of.iter().filter_map(|&at| cotangents[at].clone());
    let inputs = operands[1..].iter().cloned().chain(seeds).zip(&read).filter(|(_, read)| **read);
    let given: Vec<E::Value> = operands[..1].iter().cloned().chain(inputs.map(|(value, _)| value)).collect();
    let mut found: Vec<Option<E::Value>> = vec![None; operands.len()];
    for (result, &at) in by.iter().enumerate() {
        found[at + 1] = Some(e.emit(Op::Cond { branches: sides.clone(), result }, &given)?);
    }
    Ok(found)
}

/// The nodes that the results from a number on depend on.
fn nodes_behind(graph: &Graph, first: usize) -> Vec<bool> {
    let mut behind = vec![false; graph.nodes().len()];
    graph.outputs()[first..].iter().for_each(|output| behind[output.node.index()] = true);
    for (id, node) in graph.iter().rev() {
        if behind[id.index()] {
            node.operands.iter().for_each(|operand| behind[operand.index()] = true);
        }
    }
    behind
}

/// Which inputs the results from a number on depend on.
fn read_inputs(graph: &Graph, first: usize) -> Vec<bool> {
    let behind = nodes_behind(graph, first);
    graph.inputs().iter().map(|input| behind[input.index()]).collect()
}

/// The graph of the results from a number on, with the inputs that are named alone.
fn last_results(graph: &Graph, first: usize, inputs: &[bool]) -> Result<Graph, Error> {
    let behind = nodes_behind(graph, first);
    let mut part = Graph::with_capacity(graph.nodes().len());
    let mut moved: Vec<Option<NodeId>> = vec![None; graph.nodes().len()];
    for (id, node) in graph.iter() {
        let mut node = node.clone();
        match &mut node.op {
            Op::Input { index } if inputs[*index] => *index = part.inputs().len(),
            op if matches!(op, Op::Input { .. }) || !behind[id.index()] => continue,
            _ => {}
        }
        node.operands = node.operands.iter().filter_map(|operand| moved[operand.index()]).collect();
        moved[id.index()] = Some(part.keep(node)?);
    }
    graph.outputs()[first..].iter().filter_map(|output| moved[output.node.index()]).for_each(|node| part.output(node));
    Ok(part)
}

/// The cotangents of a loop's operands, given those of its results: nothing where one is 0.
fn loop_gradients<E: Emit>(
    e: &mut E,
    region: &Arc<Region>,
    operands: &[E::Value],
    cotangents: &[Option<E::Value>],
    wanted: &[bool],
) -> Gradients<E> {
    if region.is_conditional() {
        return Err(refused(
            "how many turns there were is not known afterwards: a loop until a condition fails has no gradient",
        )
        .into());
    }
    let plan = Backward::new(region, cotangents.iter().map(Option::is_some).collect(), wanted);
    let plan = plan.map_err(|_| refused("its body has no gradient"))?;
    let states = with_states(region);
    let (carried, turns) = (region.carried(), region.turns());
    let mut given: Vec<E::Value> = Vec::new();
    for &at in &plan.carried {
        given.push(match &cotangents[at] {
            Some(cotangent) => cotangent.clone(),
            None => zeros(e, region.body().ty(region.body().inputs()[at]))?,
        });
    }
    for &at in &plan.sums {
        let ty = e.ty(&operands[at]);
        given.push(zeros(e, &TensorType::new(ty.dtype.compute_type(), ty.shape))?);
    }
    for at in 0..carried {
        let result = states.results() - carried + at;
        given.push(e.emit(Op::Loop { region: states.clone(), result }, operands)?);
    }
    given.extend(operands[carried..carried + region.scanned()].iter().cloned());
    given.extend(plan.rows.iter().filter_map(|&at| cotangents[at].clone()));
    given.extend(operands[carried + region.scanned()..].iter().cloned());
    let count = plan.carried.len() + plan.sums.len();
    let scanned = carried + region.scanned() + plan.rows.len();
    let backward = Arc::new(Region::new(plan.body, turns.clone(), count, scanned, !region.reverse()));
    let mut result_of = |result: usize| -> Built<E> { e.emit(Op::Loop { region: backward.clone(), result }, &given) };
    let mut found: Vec<Option<E::Value>> = vec![None; operands.len()];
    for (result, &operand) in plan.carried.iter().chain(&plan.sums).chain(&plan.scanned).enumerate() {
        if wanted[operand] {
            found[operand] = Some(result_of(result)?);
        }
    }
    for &at in &plan.sums {
        let dtype = e.ty(&operands[at]).dtype;
        if let Some(sum) = &found[at] {
            found[at] = Some(cast(e, sum, dtype)?);
        }
    }
    Ok(found)
}

fn refused(what: &'static str) -> BuildError {
    no_gradient("loop", TypeError::BadLoop { what })
}

fn no_gradient(function: &'static str, cause: TypeError) -> BuildError {
    BuildError { function, cause: Box::new(cause), at: Source::default() }
}

/// The body of the backward loop. Its inputs are the cotangents of what is carried, the sums of those of what is the same at every turn, the
/// states, the rows, the rows of cotangents, and what is the same; its outputs the first two, and the cotangents of rows.
struct Backward {
    body: Graph,
    /// What is carried and has a cotangent, by operand.
    carried: Vec<usize>,
    /// What is the same at every turn and whose cotangent is wanted, by operand.
    sums: Vec<usize>,
    /// What is looped over and whose cotangent is wanted, by operand.
    scanned: Vec<usize>,
    /// The stacked results that have a cotangent, by result.
    rows: Vec<usize>,
}

impl Backward {
    fn new(region: &Region, given: Vec<bool>, wanted: &[bool]) -> Result<Backward, super::DifferentiateError> {
        let (body, carried, scanned) = (region.body(), region.carried(), region.scanned());
        let input = |at: usize| body.ty(body.inputs()[at]).clone();
        let is_float = |at: &usize| is_differentiable(input(*at).dtype);
        let carries: Vec<usize> = (0..carried).filter(is_float).collect();
        let rows: Vec<usize> = (carried..region.results()).filter(|&at| given[at]).collect();
        let wants = |at: &usize| wanted[*at] && is_float(at);
        let sums: Vec<usize> = (carried + scanned..body.inputs().len()).filter(wants).collect();
        let over: Vec<usize> = (carried..carried + scanned).filter(wants).collect();
        let of: Vec<usize> = carries.iter().chain(&rows).copied().collect();
        let by: Vec<usize> = carries.iter().chain(&sums).chain(&over).copied().collect();
        let options = DifferentiateOptions { seeds: Seeds::Inputs, stops: Vec::new() };
        let joint = differentiate(body, &of, &by, &options)?;
        let mut graph = Graph::with_capacity(joint.nodes().len());
        let mut add = |ty: TensorType| graph.input(ty, Source::default());
        let seeds = carries.iter().map(|&at| add(input(at))).collect::<Result<Vec<NodeId>, Error>>()?;
        let wide = |at: &usize| TensorType::new(input(*at).dtype.compute_type(), input(*at).shape);
        let before = sums.iter().map(|at| add(wide(at))).collect::<Result<Vec<NodeId>, Error>>()?;
        let mut inputs = (0..carried + scanned).map(|at| add(input(at))).collect::<Result<Vec<NodeId>, Error>>()?;
        let output = |at: &usize| body.ty(body.outputs()[*at].node).clone();
        let cotangents = rows.iter().map(|at| add(output(at))).collect::<Result<Vec<NodeId>, Error>>()?;
        for at in carried + scanned..body.inputs().len() {
            inputs.push(add(input(at))?);
        }
        inputs.extend(seeds.into_iter().chain(cotangents));
        let mut new: Vec<NodeId> = Vec::with_capacity(joint.nodes().len());
        for (_, node) in joint.iter() {
            new.push(match &node.op {
                Op::Input { index } => inputs[*index],
                _ => {
                    let mut node = node.clone();
                    node.operands.iter_mut().for_each(|operand| *operand = new[operand.index()]);
                    graph.keep(node)?
                }
            });
        }
        let found = joint.outputs()[region.results()..].iter().map(|output| new[output.node.index()]);
        let mut found: Vec<NodeId> = found.collect();
        for (at, &sum) in before.iter().enumerate() {
            let term = &mut found[carries.len() + at];
            let (dtype, own) = (graph.ty(sum).dtype, graph.ty(*term).dtype);
            let mut wide = *term;
            if own != dtype {
                wide = graph.add(Op::Cast(dtype), &[wide], Source::default())?;
            }
            *term = graph.add(Op::Binary(BinaryOp::Add), &[sum, wide], Source::default())?;
        }
        found.into_iter().for_each(|node| graph.output(node));
        Ok(Backward { body: graph, carried: carries, sums, scanned: over, rows })
    }
}

/// The rule for one result.
pub(super) fn result<E: Emit>(
    e: &mut E,
    op: &Op,
    operands: &[E::Value],
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let count = op.bodies().first().map_or(0, |body| body.outputs().len());
    let mut cotangents = vec![None; count];
    if let Some(place) = op.result_number().and_then(|result| cotangents.get_mut(result)) {
        *place = Some(g.clone());
    }
    body_gradients(e, op, operands, &cotangents, wanted)
}
