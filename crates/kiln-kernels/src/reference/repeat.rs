//! Loops, a launch after the other.

use super::{Env, Fault, malformed, run_kernel, tensor};
use crate::kernel::{Access, Kernel, RepeatBody, TurnBuffer};
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
    if turns <= 0 {
        for carried in &body.carried {
            let parts = [part(buffers, carried.first, env.eval(&carried.offset)?)?, part(buffers, carried.last, 0)?];
            launch(env, buffers, &carried.copy, &parts, &carried.sizes)?;
        }
        return Ok(());
    }
    for turn in 0..turns {
        let row = if body.reverse { turns - 1 - turn } else { turn };
        // The last turn writes to `last`.
        let is_last = |turn: i64| (turns - 1 - turn) % 2 == 0;
        for step in &body.launches {
            let place = |arg: &usize| match &body.buffers[*arg] {
                TurnBuffer::Whole { buffer, offset } => part(buffers, *buffer, env.eval(offset)?),
                TurnBuffer::Row { buffer, offset, stride } => {
                    part(buffers, *buffer, env.eval(offset)? + row * env.eval(stride)?)
                }
                TurnBuffer::Carried(at) => {
                    let carried = &body.carried[*at];
                    match turn {
                        0 => part(buffers, carried.first, env.eval(&carried.offset)?),
                        _ => part(buffers, if is_last(turn - 1) { carried.last } else { carried.other }, 0),
                    }
                }
                TurnBuffer::Next(at) => {
                    let carried = &body.carried[*at];
                    part(buffers, if is_last(turn) { carried.last } else { carried.other }, 0)
                }
            };
            let parts = step.args.iter().map(place).collect::<Result<Vec<Part>, Fault>>()?;
            launch(env, buffers, &step.kernel, &parts, &step.sizes)?;
        }
    }
    Ok(())
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
