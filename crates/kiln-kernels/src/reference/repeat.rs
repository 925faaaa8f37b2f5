//! Loops, a launch after the other.

use super::{Env, Fault, malformed, run_kernel, tensor};
use crate::kernel::{Access, CarriedBuffer, Kernel, RepeatBody, TurnBuffer};
use kiln_ir::{Dim, HostTensor};

/// Part of an argument: its number, the first byte, and as many bytes as there are from there on.
struct Part {
    argument: usize,
    start: usize,
}

pub(super) fn run(env: &Env, buffers: &mut [HostTensor], body: &RepeatBody) -> Result<(), Fault> {
    let turns = env.eval(&body.turns)?;
    let part = |buffers: &[HostTensor], argument: usize, element: i64| -> Result<Part, Fault> {
        let bits = buffers[argument].dtype().size_in_bits() as i64;
        let start = usize::try_from(element * bits / 8).map_err(|_| malformed("a place before its buffer"))?;
        Ok(Part { argument, start })
    };
    let copy = |buffers: &mut [HostTensor], some: fn(&CarriedBuffer) -> bool, from: fn(&CarriedBuffer) -> usize| {
        for carried in body.carried.iter().filter(|carried| some(carried)) {
            let offset = if from(carried) == carried.first { env.eval(&carried.offset)? } else { 0 };
            let parts = [part(buffers, from(carried), offset)?, part(buffers, carried.last, 0)?];
            launch(env, buffers, &carried.copy, &parts, &carried.sizes)?;
        }
        Ok::<(), Fault>(())
    };
    let mut launches = &body.launches;
    if let Some(choice) = &body.choice {
        let element = env.eval(&choice.offset)? as usize;
        if buffers[choice.predicate].bytes().get(element).is_none_or(|byte| *byte == 0) {
            launches = &choice.otherwise;
        }
    }
    let mut turn = 0;
    loop {
        // Where a turn leaves what it carries on: the last one at `last`, if it is known which that is.
        let is_at_last = |turn: i64| if body.is_conditional { turn % 2 == 0 } else { (turns - 1 - turn) % 2 == 0 };
        let found = |carried: &CarriedBuffer| match turn {
            _ if turn > 0 && carried.is_in_place() => Ok((carried.last, 0)),
            0 => Ok::<_, Fault>((carried.first, env.eval(&carried.offset)?)),
            _ if is_at_last(turn - 1) => Ok((carried.last, 0)),
            _ => Ok((carried.other, 0)),
        };
        let goes_on = match (body.is_conditional, body.carried.last()) {
            (true, Some(condition)) => {
                let (buffer, element) = found(condition)?;
                buffers[buffer].bytes().get(element as usize).is_some_and(|byte| *byte != 0)
            }
            _ => turn < turns,
        };
        if !goes_on {
            return match turn {
                0 => copy(buffers, |_| true, |carried| carried.first),
                _ if is_at_last(turn - 1) => Ok(()),
                _ => copy(buffers, |carried| !carried.is_in_place(), |carried| carried.other),
            };
        }
        if turn == 0 {
            copy(buffers, CarriedBuffer::is_in_place, |carried| carried.first)?;
        }
        let row = if body.reverse { turns - 1 - turn } else { turn };
        for step in launches {
            let place = |arg: &usize| match &body.buffers[*arg] {
                TurnBuffer::Whole { buffer, offset } => part(buffers, *buffer, env.eval(offset)?),
                TurnBuffer::Row { buffer, offset, stride } => {
                    part(buffers, *buffer, env.eval(offset)? + row * env.eval(stride)?)
                }
                TurnBuffer::Carried(at) => {
                    let (buffer, element) = found(&body.carried[*at])?;
                    part(buffers, buffer, element)
                }
                TurnBuffer::Next(at) => {
                    let carried = &body.carried[*at];
                    part(buffers, if is_at_last(turn) { carried.last } else { carried.other }, 0)
                }
            };
            let parts = step.args.iter().map(place).collect::<Result<Vec<Part>, Fault>>()?;
            launch(env, buffers, &step.kernel, &parts, &step.sizes)?;
        }
        turn += 1;
    }
}

fn launch(env: &Env, buffers: &mut [HostTensor], kernel: &Kernel, parts: &[Part], sizes: &[Dim]) -> Result<(), Fault> {
    let sizes = sizes.iter().map(|size| env.eval(size)).collect::<Result<Vec<i64>, Fault>>()?;
    let take = |(part, wanted): (&Part, &crate::kernel::BufferArg)| {
        let bytes =
            buffers[part.argument].bytes().get(part.start..).ok_or_else(|| malformed("a place after its buffer"))?;
        tensor(wanted.dtype, bytes.to_vec())
    };
    let mut own = parts.iter().zip(&kernel.buffers).map(take).collect::<Result<Vec<_>, Fault>>()?;
    run_kernel(kernel, &mut own, &sizes)?;
    for ((part, wanted), own) in parts.iter().zip(&kernel.buffers).zip(own) {
        if wanted.access != Access::Read {
            buffers[part.argument].bytes_mut()[part.start..].copy_from_slice(own.bytes());
        }
    }
    Ok(())
}
