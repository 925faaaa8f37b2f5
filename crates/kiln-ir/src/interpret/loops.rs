//! Loops, turn by turn.

use super::{Fault, MAX_ELEMENTS, Observer, Silent, Sizes, interpret};
use crate::host::element_count;
use crate::{Branches, HostTensor, NodeId, Region};

/// The most turns of a loop until a condition fails.
const MOST_TURNS: usize = 1 << 16;

/// One result of a loop.
pub(super) fn run(
    region: &Region,
    result: usize,
    operands: &[&HostTensor],
    sizes: &Sizes,
    node: NodeId,
    observer: &mut dyn Observer,
) -> Result<HostTensor, Fault> {
    let (carried, scanned) = (region.carried(), region.scanned());
    let turns = sizes.size(region.turns())?;
    let mut state: Vec<HostTensor> = operands[..carried].iter().map(|&tensor| tensor.clone()).collect();
    let ty = region.body().ty(region.body().outputs()[result].node);
    let mut shape = sizes.shape(&ty.shape)?;
    shape.insert(0, turns);
    if element_count(&shape).is_none_or(|elements| elements > MAX_ELEMENTS) {
        return Err(Fault::TooLarge { shape });
    }
    let mut rows: Vec<Vec<u8>> = vec![Vec::new(); if result < carried { 0 } else { turns }];
    let most = if region.is_conditional() { usize::MAX } else { turns };
    for turn in 0..most {
        if region.is_conditional() {
            if !state.last().is_some_and(|goes_on| goes_on.get(0).as_f64() != 0.0) {
                break;
            }
            if turn == MOST_TURNS {
                return Err(Fault::Endless { turns: turn });
            }
        }
        let place = if region.reverse() { turns - 1 - turn } else { turn };
        let mut inputs = std::mem::take(&mut state);
        for operand in &operands[carried..carried + scanned] {
            inputs.push(row(operand, place)?);
        }
        inputs.extend(operands[carried + scanned..].iter().map(|&tensor| tensor.clone()));
        let wrong = |cause| Fault::Turn { turn, cause: Box::new(cause) };
        let mut outputs = match observer.turn(node, 0) {
            Some(mut observer) => interpret(region.body(), &inputs, &sizes.0, &mut *observer),
            None => interpret(region.body(), &inputs, &sizes.0, &mut Silent),
        }
        .map_err(wrong)?;
        if result >= carried {
            rows[place] = outputs[result].bytes().to_vec();
        }
        outputs.truncate(carried);
        state = outputs;
    }
    match state.into_iter().nth(result).filter(|_| result < carried) {
        Some(last) => Ok(last),
        None => Ok(HostTensor::from_bytes(ty.dtype, &shape, rows.concat())?),
    }
}

/// One result of a choice.
pub(super) fn choose(
    branches: &Branches,
    result: usize,
    operands: &[&HostTensor],
    sizes: &Sizes,
    node: NodeId,
    observer: &mut dyn Observer,
) -> Result<HostTensor, Fault> {
    let is_true = operands.first().is_some_and(|predicate| predicate.get(0).as_f64() != 0.0);
    let side = if is_true { branches.then() } else { branches.otherwise() };
    let inputs: Vec<HostTensor> = operands.iter().skip(1).map(|&tensor| tensor.clone()).collect();
    let outputs = match observer.turn(node, usize::from(!is_true)) {
        Some(mut observer) => interpret(side, &inputs, &sizes.0, &mut *observer),
        None => interpret(side, &inputs, &sizes.0, &mut Silent),
    };
    let mut outputs = outputs.map_err(|cause| Fault::Side { cause: Box::new(cause) })?;
    Ok(outputs.swap_remove(result))
}

/// The row of a tensor along its first axis.
fn row(tensor: &HostTensor, place: usize) -> Result<HostTensor, Fault> {
    let shape = &tensor.shape()[1..];
    let bytes = tensor.bytes().len() / tensor.shape()[0].max(1);
    Ok(HostTensor::from_bytes(tensor.dtype(), shape, tensor.bytes()[place * bytes..(place + 1) * bytes].to_vec())?)
}
