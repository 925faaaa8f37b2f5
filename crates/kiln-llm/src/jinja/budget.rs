//! What one rendering may use: steps, bytes and levels. Everything that a template can make grow is paid for here before it
//! is made, in proportion to its size.

use super::{Fault, Limit};

/// Steps that every rendering may take.
const STEPS: u64 = 4_000_000;
/// Bytes of texts and lists that every rendering may make.
const BYTES: usize = 64 << 20;
/// How many times the size of what is rendered may be made beyond that.
const TIMES: usize = 64;
/// Expressions within blocks within macros.
const LEVELS: usize = 400;
/// Bytes that are looked at in a step.
const SCANNED: usize = 32;

/// What is left.
#[derive(Debug)]
pub(super) struct Budget {
    steps: u64,
    most_steps: u64,
    bytes: usize,
    most_bytes: usize,
    levels: usize,
}

impl Budget {
    /// For a rendering of values of this size.
    pub(super) fn new(weight: usize) -> Budget {
        let most_bytes = BYTES.saturating_add(weight.saturating_mul(TIMES));
        let most_steps = STEPS.saturating_add((weight as u64).saturating_mul(TIMES as u64));
        Budget { steps: most_steps, most_steps, bytes: most_bytes, most_bytes, levels: LEVELS }
    }

    /// For values that come from outside, whose size is known only when they are there.
    pub(super) fn unlimited() -> Budget {
        Budget { steps: u64::MAX, most_steps: u64::MAX, bytes: usize::MAX, most_bytes: usize::MAX, levels: LEVELS }
    }

    pub(super) fn step(&mut self) -> Result<(), Fault> {
        self.steps(1)
    }

    fn steps(&mut self, count: u64) -> Result<(), Fault> {
        let left = self.steps.checked_sub(count);
        self.steps = left.ok_or(Fault::Limit(Limit::Steps { most: self.most_steps }))?;
        Ok(())
    }

    /// For looking at so many bytes or items.
    pub(super) fn scan(&mut self, size: usize) -> Result<(), Fault> {
        self.steps(1 + (size / SCANNED) as u64)
    }

    /// For making so many bytes of text.
    pub(super) fn bytes(&mut self, count: usize) -> Result<(), Fault> {
        self.room(count)?;
        self.bytes -= count;
        self.scan(count)
    }

    /// For making so many items.
    pub(super) fn nodes(&mut self, count: usize) -> Result<(), Fault> {
        self.bytes(count.saturating_mul(size_of::<super::value::Value>()))
    }

    /// Whether so many bytes could be made.
    pub(super) fn room(&self, count: usize) -> Result<(), Fault> {
        if count > self.bytes { Err(Fault::Limit(Limit::Bytes { most: self.most_bytes })) } else { Ok(()) }
    }

    /// Whether a value may be so large: what is shared counts as often as it is there, for it is walked over as often.
    pub(super) fn fits(&self, weight: usize) -> Result<(), Fault> {
        if weight > self.most_bytes { Err(Fault::Limit(Limit::Bytes { most: self.most_bytes })) } else { Ok(()) }
    }

    /// One level deeper; [`Budget::up`] goes back.
    pub(super) fn down(&mut self) -> Result<(), Fault> {
        self.levels = self.levels.checked_sub(1).ok_or(Fault::Limit(Limit::Nesting { most: LEVELS }))?;
        Ok(())
    }

    pub(super) fn up(&mut self) {
        self.levels += 1;
    }
}
