//! Whether a program is faster than the function itself: measured, with everything that either changes put back.

use super::segment::{InputSource, UpdateTarget};
use super::tree::{Node, TraceStep};
use crate::{Error, Generator, Result, Tensor, Var};
use kiln_ir::Source;
use std::time::{Duration, Instant};

/// What running a function changes, as it was before.
pub(super) struct Effects {
    values: Vec<(Var, Tensor)>,
    gradients: Vec<(Var, Option<Tensor>)>,
    draws: Vec<(Generator, u64)>,
}

impl Effects {
    /// Remembers whatever the segments of a tree change. Nothing where parts of it run outside of any graph: what these change
    /// is not known, and cannot be put back.
    pub(super) fn of<R>(root: &Node<R>) -> Option<Effects> {
        let mut effects = Effects { values: Vec::new(), gradients: Vec::new(), draws: Vec::new() };
        let mut is_known = true;
        root.visit(&mut |node| {
            let segment = match node {
                Node::Step { step: TraceStep::Segment(segment), .. } => segment,
                Node::Step { step: TraceStep::Outside { pure: None, .. }, .. } => {
                    is_known = false;
                    return;
                }
                _ => return,
            };
            let updates = segment.recorded.updates.iter().map(|(set, _)| set);
            for set in updates.chain(segment.recorded.sets.iter().map(|(set, _)| set)) {
                match set {
                    UpdateTarget::Value(var) => effects.values.push((var.clone(), var.snapshot())),
                    UpdateTarget::Gradient(var) => effects.gradients.push((var.clone(), var.snapshot_grad())),
                }
            }
            for from in &segment.recorded.from {
                if let InputSource::Key(generator, _) = from {
                    effects.draws.push((generator.clone(), generator.draws()));
                }
            }
        });
        is_known.then_some(effects)
    }

    /// Puts everything back.
    pub(super) fn undo(&self, at: &Source) -> Result<()> {
        // Of several for one thing the first was there before.
        for (var, value) in self.values.iter().rev() {
            var.put(value.clone(), at)?;
        }
        for (var, gradient) in self.gradients.iter().rev() {
            var.put_grad(gradient.clone());
        }
        for (generator, draws) in self.draws.iter().rev() {
            generator.set_draws(*draws);
        }
        Ok(())
    }
}

/// How long a measurement may take.
const BUDGET: Duration = Duration::from_millis(300);
/// Turns at the least and at the most.
const TURNS: std::ops::Range<usize> = 3..50;

/// The best times of two ways to compute the same, measured in turns; the first turn of each does not count. Nothing if one of
/// them cannot be measured, which says so. What they launch is waited for before the clock stops.
pub(super) fn race<E: From<Error>>(
    mut one: impl FnMut() -> Result<bool, E>,
    mut other: impl FnMut() -> Result<bool, E>,
) -> Result<Option<(Duration, Duration)>, E> {
    let start = Instant::now();
    let mut best = (Duration::MAX, Duration::MAX);
    let timed = |work: &mut dyn FnMut() -> Result<bool, E>| -> Result<Option<Duration>, E> {
        let start = Instant::now();
        let is_measured = work()?;
        crate::synchronize()?;
        Ok(is_measured.then(|| start.elapsed()))
    };
    // What was queued before belongs to neither.
    crate::synchronize()?;
    for turn in 0..TURNS.end {
        let Some(first) = timed(&mut one)? else { return Ok(None) };
        let Some(second) = timed(&mut other)? else { return Ok(None) };
        let times = (first, second);
        if turn > 0 {
            best = (best.0.min(times.0), best.1.min(times.1));
        }
        if turn >= TURNS.start && start.elapsed() > BUDGET {
            break;
        }
    }
    Ok(Some(best))
}
