//! Loops of which few states are kept: those of a loop around them, whose turns are loops of so many turns each.
//!
//! ```text
//!  n turns      ┌ k turns ┐┌ k turns ┐ … ┌ k turns ┐   and n mod k turns by themselves
//!  kept         ●          ●             ●             what each turn of the loop around finds, which its gradient computes again from
//! ```

use super::loops::{Turn, record_loop};
use crate::tensor::dim::Dim;
use crate::{Result, Tensor};
use kiln_ir::Source;

/// Records a loop over the first axis of `over` as ops of the graph: see [`record_loop`]. One state in `every` is kept for gradients.
pub(super) fn record(
    carried: &[&Tensor],
    over: &[&Tensor],
    every: usize,
    body: Turn<'_>,
    at: &Source,
) -> Result<Option<Vec<Tensor>>> {
    let lengths: Option<Vec<Dim>> = over.iter().map(|rows| rows.sizes().first().copied()).collect();
    let Some((&turns, others)) = lengths.as_ref().and_then(|lengths| lengths.split_first()) else {
        return record_loop(carried, over, false, body, at);
    };
    let is_short = turns.is_plain() && turns.hint() <= every as i64;
    if is_short || others.iter().any(|other| other.expression() != turns.expression()) {
        return record_loop(carried, over, false, body, at);
    }
    let count = carried.len();
    let parts = turns / every;
    let covered = parts * every;
    let mut chunks = Vec::with_capacity(over.len());
    for rows in over {
        let sizes = rows.sizes();
        let shape: Vec<Dim> = [parts, every.into()].into_iter().chain(sizes[1..].iter().copied()).collect();
        chunks.push(rows.narrow(0, 0, covered)?.reshape_to(shape, at)?);
    }
    let mut part = |tensors: &[Tensor]| {
        let tensors: Vec<&Tensor> = tensors.iter().collect();
        let (state, rows) = tensors.split_at(count);
        record_loop(state, rows, false, &mut *body, at)
    };
    let Some(mut results) = record_loop(carried, &chunks.iter().collect::<Vec<_>>(), false, &mut part, at)? else {
        return Ok(None);
    };
    for stacked in &mut results[count..] {
        let sizes = stacked.sizes();
        let shape: Vec<Dim> = [covered].into_iter().chain(sizes[2..].iter().copied()).collect();
        *stacked = stacked.reshape_to(shape, at)?;
    }
    let left = turns - covered;
    if left.is_plain() && left.hint() == 0 {
        return Ok(Some(results));
    }
    let rest = over.iter().map(|rows| rows.narrow(0, covered, left)).collect::<Result<Vec<Tensor>>>()?;
    let (state, stacked) = results.split_at(count);
    let (state, rest) = (state.iter().collect::<Vec<_>>(), rest.iter().collect::<Vec<_>>());
    let Some(mut last) = record_loop(&state, &rest, false, body, at)? else { return Ok(None) };
    for (last, first) in last[count..].iter_mut().zip(stacked) {
        *last = Tensor::cat(&[first.clone(), last.clone()], 0)?;
    }
    Ok(Some(last))
}
