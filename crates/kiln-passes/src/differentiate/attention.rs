//! The rules of attention: the weights are computed again from queries and keys instead of being kept.
//!
//! ```text
//!  delta = Σ g∘y        dq, dk, dv = attention_gradient(q, k, v, g, logsumexp, delta)        dmask = ds
//! ```

use super::{DifferentiateError, DifferentiateOptions, Gradients, Seeds, differentiate, when};
use kiln_ir::build::{BuildError, Emit, GraphBuilder, cast, mul, sum};
use kiln_ir::decompose::{AttentionBackward, AttentionScores, decompose, kept_by};
use kiln_ir::{AttentionOperand, Graph, NodeId, Op, Scalar, Source, TensorType, TypeError};

/// The cotangents of queries, keys, values and, if there is one, the mask.
#[allow(clippy::too_many_arguments)]
pub(super) fn attention<E: Emit>(
    e: &mut E,
    causal: bool,
    scale: Scalar,
    [q, k, v]: [&E::Value; 3],
    mask: Option<&E::Value>,
    y: &E::Value,
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    // Gradients have no bounds.
    let mask = match mask {
        Some(mask) => Some(kept_by(e, mask, &e.ty(k).shape[2])?),
        None => None,
    };
    let mask = mask.as_ref();
    let wide = e.ty(q).dtype.compute_type();
    let (wide_y, wide_g) = (cast(e, y, wide)?, cast(e, g, wide)?);
    let both = mul(e, &wide_g, &wide_y)?;
    let delta = sum(e, &both, &[3], true)?;
    let masked = mask.is_some();
    let of_scores: Vec<E::Value> = [q, k].into_iter().chain(mask).cloned().collect();
    let logsumexp = when::<E>(wanted[..3].contains(&true), || {
        e.emit(Op::AttentionLogsumexp { causal, scale, mask: masked }, &of_scores)
    })?;
    let mut gradients = vec![None; 3 + usize::from(masked)];
    if let Some(logsumexp) = &logsumexp {
        let operands: Vec<E::Value> = [q, k, v, g, logsumexp, &delta].into_iter().chain(mask).cloned().collect();
        // That of the values needs the weights alone.
        for (at, of) in [(2, AttentionOperand::Values), (0, AttentionOperand::Queries), (1, AttentionOperand::Keys)] {
            gradients[at] =
                when::<E>(wanted[at], || e.emit(Op::AttentionGradient { of, causal, scale, mask: masked }, &operands))?;
        }
    }
    if let Some(mask) = mask {
        let mask_dtype = e.ty(mask).dtype;
        gradients[3] = when::<E>(wanted[3], || {
            let scores = AttentionScores { causal, scale, q, k, mask: Some(mask) };
            let weights = scores.weights(e)?;
            let d = AttentionBackward { scores, weights, v, gradient: g, delta: &delta }.of_scores(e)?;
            cast(e, &d, mask_dtype)
        })?;
    }
    Ok(gradients)
}

/// The cotangents of the operands of an op by those of the small ops that it stands for: of the gradients of attention, which
/// are differentiated where a gradient is.
pub(super) fn by_parts<E: Emit>(
    e: &mut E,
    op: &Op,
    operands: &[E::Value],
    g: &E::Value,
    wanted: &[bool],
) -> Gradients<E> {
    let types: Vec<TensorType> = operands.iter().map(|x| e.ty(x)).collect();
    let asked: Vec<usize> = (0..operands.len()).filter(|&i| wanted[i]).collect();
    let failed = |_| {
        let cause = TypeError::BadAttribute { what: "an op that cannot be differentiated", ty: types[0].clone() };
        BuildError { function: "differentiate", cause: Box::new(cause), at: Source::default() }
    };
    let joint = joint(op, &types, &asked).map_err(failed)?;
    let mut values: Vec<E::Value> = Vec::with_capacity(joint.nodes().len());
    for node in joint.nodes() {
        let value = match &node.op {
            Op::Input { index } => operands.get(*index).unwrap_or(g).clone(),
            op => {
                let operands: Vec<E::Value> = node.operands.iter().map(|o| values[o.index()].clone()).collect();
                e.emit(op.clone(), &operands)?
            }
        };
        values.push(value);
    }
    let mut gradients = vec![None; operands.len()];
    for (&operand, output) in asked.iter().zip(&joint.outputs()[1..]) {
        gradients[operand] = Some(values[output.node.index()].clone());
    }
    Ok(gradients)
}

/// The graph of an op's parts and their gradients in some of the operands; the last input is the result's cotangent.
fn joint(op: &Op, operands: &[TensorType], asked: &[usize]) -> Result<Graph, DifferentiateError> {
    let mut b = GraphBuilder::new();
    let inputs = operands.iter().map(|ty| b.input(ty.clone())).collect::<Result<Vec<NodeId>, _>>()?;
    let y = b.emit(op.clone(), &inputs)?;
    b.output(y);
    let parts = decompose(&b.finish(), &|_| false)?;
    let options = DifferentiateOptions { seeds: Seeds::Inputs, ..Default::default() };
    differentiate(&parts, &[0], asked, &options)
}
