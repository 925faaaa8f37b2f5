//! The steps of decoding that are launched and not yet read.

use super::Row;
use crate::Result;
use kiln::{Pending, Tensor};
use std::collections::VecDeque;

/// Steps in flight, in order. A step needs nothing of the host but to be launched: tokens and positions are variables of the
/// program. What runs beyond the end of a text writes to the cache behind its last token, where no token sees it before it is
/// overwritten.
pub(super) struct Steps {
    /// How many are launched before the oldest is read.
    ahead: usize,
    flying: VecDeque<Tokens>,
}

/// The tokens of a step.
enum Tokens {
    /// On the device.
    There(Tensor),
    /// On their way.
    Pending(Pending<i64>),
}

impl Steps {
    pub fn new(ahead: usize) -> Steps {
        Steps { ahead, flying: VecDeque::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.flying.is_empty()
    }

    /// The number of new tokens that texts have before the next step to launch; nothing if enough are in flight, or if the
    /// tokens in flight are all that any text has room for.
    pub fn next_length(&self, rows: &[Row]) -> Option<usize> {
        if self.flying.len() > self.ahead {
            return None;
        }
        let after = |row: &Row| (row.left() > self.flying.len()).then(|| row.ids().len() + self.flying.len());
        rows.iter().filter_map(after).max()
    }

    /// A step that was launched.
    pub fn push(&mut self, next: Tensor) -> Result<()> {
        let tokens = if self.ahead == 0 { Tokens::There(next) } else { Tokens::Pending(next.read_later()?) };
        self.flying.push_back(tokens);
        Ok(())
    }

    /// The tokens of the oldest step, which is waited for.
    pub fn read(&mut self, into: &mut [i64]) -> Result<()> {
        match (self.flying.pop_front(), into) {
            (Some(Tokens::There(next)), [token]) => *token = next.item::<i64>()?,
            (Some(Tokens::There(next)), into) => into.copy_from_slice(&next.to_vec::<i64>()?),
            (Some(Tokens::Pending(next)), into) => into.copy_from_slice(&next.wait()?),
            (None, _) => {}
        }
        Ok(())
    }
}
