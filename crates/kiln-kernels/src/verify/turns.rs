//! The elements that a counted loop reads of what it is given, turn by turn.
//!
//! What its launches write, and read of what others of them wrote, is the verified schedule of its body. Whether a loop until a condition fails
//! has a turn, and which side of a choice runs, depends on data: nothing is said of these.

use super::elements::touches;
use super::places::{Env, Touch};
use crate::kernel::{Access, Kernel, KernelBody, RepeatBody, TurnBuffer};

/// Loads of a launch in a loop.
pub(super) struct TurnLoad {
    /// The argument of the loop.
    pub(super) buffer: usize,
    /// Where it begins at the first turn.
    first: i64,
    /// Elements from turn to turn and the number of turns, of the innermost loop first.
    moves: Vec<(i64, i64)>,
    touch: Touch,
}

impl TurnLoad {
    /// How many elements it touches.
    pub(super) fn count(&self) -> i64 {
        self.moves.iter().fold(self.touch.count(), |n, (_, turns)| n.saturating_mul(*turns))
    }

    /// Calls `visit` with every element that is read for certain.
    pub(super) fn each<E>(&self, visit: &mut dyn FnMut(i64) -> Result<(), E>) -> Result<(), E> {
        let turns: i64 = self.moves.iter().map(|(_, turns)| turns).product();
        for number in 0..turns {
            let (mut rest, mut start) = (number, self.first);
            for (stride, turns) in &self.moves {
                start += stride * (rest % turns);
                rest /= turns;
            }
            self.touch.each(&mut |_, element, sure| if sure { visit(start + element) } else { Ok(()) })?;
        }
        Ok(())
    }
}

/// What a loop reads of arguments that it does not write; nothing for other kernels, and where some size has no value.
pub(super) fn loads(kernel: &Kernel, env: &Env) -> Vec<TurnLoad> {
    match &kernel.body {
        KernelBody::Repeat(body) if !body.is_conditional && body.choice.is_none() => {
            let all = loads_of(body, env).unwrap_or_default();
            let is_given =
                |load: &TurnLoad| kernel.buffers.get(load.buffer).is_some_and(|own| own.access == Access::Read);
            all.into_iter().filter(is_given).collect()
        }
        _ => Vec::new(),
    }
}

fn loads_of(body: &RepeatBody, env: &Env) -> Option<Vec<TurnLoad>> {
    let turns = env.eval(&body.turns).filter(|turns| *turns > 0)?;
    let mut all = Vec::new();
    for launch in &body.launches {
        let values =
            launch.kernel.sizes.iter().zip(&launch.sizes).map(|(&symbol, size)| Some((symbol, env.eval(size)?)));
        let own = Env(values.collect::<Option<Vec<_>>>()?);
        let inner = match &launch.kernel.body {
            KernelBody::Repeat(_) => loads(&launch.kernel, &own),
            _ => {
                let loads = touches(&launch.kernel, &own)?.into_iter().filter(|touch| !touch.store);
                loads.map(|touch| TurnLoad { buffer: touch.buffer, first: 0, moves: Vec::new(), touch }).collect()
            }
        };
        for load in inner {
            let (buffer, offset, stride) = match body.buffers.get(*launch.args.get(load.buffer)?)? {
                TurnBuffer::Whole { buffer, offset } => (*buffer, offset, None),
                TurnBuffer::Row { buffer, offset, stride } => (*buffer, offset, Some(env.eval(stride)?)),
                // The first turn finds what was there before.
                TurnBuffer::Carried(at) => {
                    let carried = body.carried.get(*at)?;
                    (carried.first, &carried.offset, None)
                }
                TurnBuffer::Next(_) => continue,
            };
            let first = load.first + env.eval(offset)?;
            let mut moves = load.moves;
            moves.extend(stride.map(|stride| (stride, turns)));
            all.push(TurnLoad { buffer, first, moves, touch: load.touch });
        }
    }
    Some(all)
}
