//! A whole training step as one graph: loss, gradients and AdamW, with parameters and moments as updated inputs.

use super::models::Model;
use kiln_ir::build::{self, Built, Emit, GraphBuilder};
use kiln_ir::{DType, Graph, NodeId, TensorType};
use kiln_passes::{DifferentiateError, DifferentiateOptions, differentiate};

/// AdamW's numbers, PyTorch's defaults.
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    /// Learning rate.
    pub rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// Weights shrink by this times the rate.
    pub decay: f64,
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW { rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 0.01 }
    }
}

/// The graph of a batch's loss: inputs are the batch and the parameters.
pub fn loss_graph(model: &Model) -> Result<Graph, kiln_ir::Error> {
    let mut b = GraphBuilder::new();
    let [x, y] = model.batch();
    let (x, y) = (b.input(x)?, b.input(y)?);
    let parameters = inputs(&mut b, model)?;
    let loss = model.loss(&mut b, [&x, &y], &parameters)?;
    b.output(loss);
    Ok(b.finish())
}

fn inputs(b: &mut GraphBuilder, model: &Model) -> Result<Vec<NodeId>, kiln_ir::Error> {
    model.parameters().iter().map(|p| b.input(TensorType::fixed(DType::F32, &p.shape))).collect()
}

/// [`loss_graph`] with the gradients of all parameters behind the loss.
pub fn gradient_graph(model: &Model) -> Result<Graph, DifferentiateError> {
    let graph = loss_graph(model)?;
    let parameters: Vec<usize> = (2..graph.inputs().len()).collect();
    differentiate(&graph, &[0], &parameters, &DifferentiateOptions::default())
}

/// The training step: inputs are the batch, the parameters, the number of steps done, the first moments and the second
/// ones. Results are the loss and then the new values of all inputs but the batch.
pub fn step_graph(model: &Model, options: &AdamW) -> Result<Graph, DifferentiateError> {
    let (nodes, outputs) = gradient_graph(model)?.into_parts();
    let mut graph = Graph::new();
    for node in nodes {
        graph.keep(node)?;
    }
    let count = outputs.len() - 1;
    let parameters: Vec<NodeId> = graph.inputs()[2..].to_vec();
    graph.output(outputs[0].node);
    let mut b = GraphBuilder::extend(graph);
    let done = b.input(TensorType::fixed(DType::F32, &[]))?;
    let now = build::add_scalar(&mut b, &done, 1.0)?;
    let moments = [inputs(&mut b, model)?, inputs(&mut b, model)?];
    let corrections = [correction(&mut b, options.beta1, &now)?, correction(&mut b, options.beta2, &now)?];
    let mut new = Vec::with_capacity(count);
    for i in 0..count {
        let state = [&parameters[i], &moments[0][i], &moments[1][i]];
        new.push(adamw(&mut b, options, state, &outputs[i + 1].node, [&corrections[0], &corrections[1]])?);
    }
    new.iter().enumerate().for_each(|(i, new)| b.update(new[0], 2 + i));
    b.update(now, 2 + count);
    for moment in 0..2 {
        new.iter().enumerate().for_each(|(i, new)| b.update(new[1 + moment], 3 + (1 + moment) * count + i));
    }
    Ok(b.finish())
}

/// 1 − β^t.
fn correction<E: Emit>(e: &mut E, beta: f64, step: &E::Value) -> Built<E> {
    let power = build::mul_scalar(e, step, beta.ln())?;
    let power = build::expm1(e, &power)?;
    build::neg(e, &power)
}

/// A parameter and its moments after a step.
fn adamw<E: Emit>(
    e: &mut E,
    options: &AdamW,
    [parameter, first, second]: [&E::Value; 3],
    gradient: &E::Value,
    [correction1, correction2]: [&E::Value; 2],
) -> Result<[E::Value; 3], E::Error> {
    let blend = |e: &mut E, old: &E::Value, new: &E::Value, beta: f64| {
        let (old, new) = (build::mul_scalar(e, old, beta)?, build::mul_scalar(e, new, 1.0 - beta)?);
        build::add(e, &old, &new)
    };
    let first = blend(e, first, gradient, options.beta1)?;
    let square = build::mul(e, gradient, gradient)?;
    let second = blend(e, second, &square, options.beta2)?;
    let root = build::sqrt(e, &second)?;
    let scale = build::sqrt(e, correction2)?;
    let root = build::div(e, &root, &scale)?;
    let root = build::add_scalar(e, &root, options.epsilon)?;
    let rate = build::recip(e, correction1)?;
    let rate = build::mul_scalar(e, &rate, options.rate)?;
    let move_by = build::div(e, &first, &root)?;
    let move_by = build::mul(e, &move_by, &rate)?;
    let kept = build::mul_scalar(e, parameter, 1.0 - options.rate * options.decay)?;
    Ok([build::sub(e, &kept, &move_by)?, first, second])
}
