//! Products of the same rows that do not depend on each other (queries, keys and values) become one launch, and so do small loops
//! (positions, masks and tables at the beginning of a step, and what nothing else of a step needs: updates of small parameters) and
//! small scatters (a step's keys and values into their caches).

use super::{Arguments, apart, can_move, count, has_own_sizes, product, retire};
use crate::kernel::{KernelBody, RoutineBody};
use crate::schedule::{Schedule, Step};
use crate::update::depends;

/// Launches between two that may become one.
const FAR: usize = 12;
/// Bodies of a launch at the most.
const MOST: usize = 6;
/// Points of a small loop, and elements of a small scatter, at the most.
const SMALL: i64 = 1 << 14;

/// Lets products run beside each other, and small loops too.
pub(super) fn join(schedule: &mut Schedule, few_rows: i64) {
    join_if(schedule, few_rows, &|_| true);
}

/// Lets those of the products and small loops that `wanted` says run beside each other.
pub(super) fn join_if(schedule: &mut Schedule, few_rows: i64, wanted: &dyn Fn(&Step) -> bool) {
    for first in 0..schedule.steps.len() {
        if !wanted(&schedule.steps[first]) {
            continue;
        }
        let mut members = vec![first];
        for other in first + 1..schedule.steps.len().min(first + FAR) {
            if members.len() < MOST && goes_along(&schedule.steps, &members, other, few_rows) {
                members.push(other);
            }
        }
        if members.len() > 1 {
            schedule.steps[first] = joined(&schedule.steps, &members);
            members[1..].iter().for_each(|&at| retire(&mut schedule.steps[at]));
        }
    }
}

/// Whether a later launch can run with some others, at the place of the first, where it depends on none of them.
fn goes_along(steps: &[Step], members: &[usize], other: usize, few_rows: i64) -> bool {
    let (first, later) = (&steps[members[0]], &steps[other]);
    let alike = match (product(first, few_rows), product(later, few_rows)) {
        (Some(one), Some(two)) => (count(&one.m), count(&one.k), one.acc) == (count(&two.m), count(&two.k), two.acc),
        (None, None) => [is_small_loop, is_small_scatter].iter().any(|small| small(first) && small(later)),
        _ => false,
    };
    alike && !depends(later, first) && can_move(steps, members[0], other, other)
}

/// A loop that takes about as long as its launch.
fn is_small_loop(step: &Step) -> bool {
    is_loop_of(step, SMALL)
}

/// A scatter that takes about as long as its launch.
fn is_small_scatter(step: &Step) -> bool {
    let KernelBody::Routine(RoutineBody::Scatter { updates_shape, .. }) = &step.kernel.body else { return false };
    let elements = updates_shape.iter().try_fold(1i64, |n, size| n.checked_mul(size.as_const()?));
    !step.args.is_empty() && has_own_sizes(step) && elements.is_some_and(|elements| elements <= SMALL)
}

/// A loop of at most so many points.
fn is_loop_of(step: &Step, most: i64) -> bool {
    let KernelBody::Loop(body) = &step.kernel.body else { return false };
    let points = count(&body.grid).zip(count(&body.row)).and_then(|(grid, row)| grid.checked_mul(row));
    !step.args.is_empty() && has_own_sizes(step) && points.is_some_and(|points| points <= most)
}

/// Bodies of a launch of what nothing needs at the most, and points of each. On a GPU each body has up to 4 kilobytes of shared memory of its
/// own for its sums, and a launch has 48 in all.
const MOST_LAST: usize = 8;
const SMALL_LAST: i64 = 1 << 18;

/// Lets loops that no later launch depends on run beside each other, at the place of the last of each launch's.
pub(super) fn join_last(schedule: &mut Schedule) {
    let steps = &schedule.steps;
    let is_last = |&at: &usize| {
        let own = &steps[at];
        is_loop_of(own, SMALL_LAST) && !steps[at + 1..].iter().any(|later| depends(later, own))
    };
    let found: Vec<usize> = (0..steps.len()).filter(is_last).collect();
    // Equal kernels beside each other make equal launches.
    let mut last = found.clone();
    last.sort_by_key(|&at| first_alike(steps, &found, at));
    for members in last.chunks(MOST_LAST).filter(|members| members.len() > 1) {
        let place = *members.iter().max().unwrap_or(&0);
        let step = joined(&schedule.steps, members);
        members.iter().for_each(|&at| retire(&mut schedule.steps[at]));
        schedule.steps[place] = step;
    }
}

/// The first of some launches that has the same kernel as one of them, and its own place.
fn first_alike(steps: &[Step], among: &[usize], at: usize) -> (usize, usize) {
    let same = among.iter().find(|&&other| steps[other].kernel == steps[at].kernel);
    (same.copied().unwrap_or(at), at)
}

fn joined(steps: &[Step], members: &[usize]) -> Step {
    let mut arguments = Arguments::default();
    let own = |&member: &usize| {
        let mut body = steps[member].kernel.body.clone();
        body.renumber_buffers(&arguments.add(&steps[member]));
        match body {
            KernelBody::Matmul(body) => apart::products(body).into_iter().map(KernelBody::Matmul).collect(),
            body => vec![body],
        }
    };
    let bodies = KernelBody::Parallel(members.iter().flat_map(own).collect());
    let all: Vec<&Step> = members.iter().map(|&member| &steps[member]).collect();
    arguments.step(bodies, &all, None)
}
