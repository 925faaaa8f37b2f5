//! Products of the same rows that do not depend on each other (queries, keys and values) become one launch.

use super::{Arguments, can_move, count, product, retire};
use crate::kernel::KernelBody;
use crate::schedule::{Schedule, Step};
use crate::update::depends;

/// Launches between two that may become one.
const FAR: usize = 12;
/// Bodies of a launch at the most.
const MOST: usize = 4;

/// Lets products run beside each other.
pub(super) fn join(schedule: &mut Schedule, few_rows: i64) {
    for first in 0..schedule.steps.len() {
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

/// Whether a later product can run with some others, at the place of the first, where it depends on none of them.
fn goes_along(steps: &[Step], members: &[usize], other: usize, few_rows: i64) -> bool {
    let (Some(one), Some(two)) = (product(&steps[members[0]], few_rows), product(&steps[other], few_rows)) else {
        return false;
    };
    let alike = (count(&one.m), count(&one.k), one.acc) == (count(&two.m), count(&two.k), two.acc);
    alike && !depends(&steps[other], &steps[members[0]]) && can_move(steps, members[0], other, other)
}

fn joined(steps: &[Step], members: &[usize]) -> Step {
    let mut arguments = Arguments::default();
    let body = |&member: &usize| {
        let mut body = steps[member].kernel.body.clone();
        body.renumber_buffers(&arguments.add(&steps[member]));
        body
    };
    let bodies = KernelBody::Parallel(members.iter().map(body).collect());
    let all: Vec<&Step> = members.iter().map(|&member| &steps[member]).collect();
    arguments.step(bodies, &all, None)
}
