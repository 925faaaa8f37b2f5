//! A concatenation inside a pointwise kernel is a select at each point. Where it depends on which of a few equal parts of an
//! axis the point is in, the kernel runs over one part and computes all of them, each without a select.

use crate::dag::Def;
use crate::domain::{Domain, Root};
use crate::group::{Anchor, Group, trace_group};
use crate::kernel::InstKind;
use crate::materialise::Memory;
use crate::trace::{Scope, Trace};
use kiln_ir::{Dim, Symbol};

/// The most parts.
const MAX_PARTS: i64 = 4;

/// Runs a loop group over one part of an axis, if that removes all selects.
pub(crate) fn split_choices(scope: Scope<'_>, memory: &Memory, group: &mut Group) {
    if group.anchor != Anchor::Loop || group.domain.has_row() {
        return;
    }
    let own = group.written(memory);
    if group.trace.is_none() {
        group.trace = trace_group(scope, Anchor::Loop, &mut group.domain, &mut group.roots, &own).ok();
    }
    let Some((axis, part, parts)) = group.trace.as_ref().and_then(|t| find_parts(t, &group.domain)) else { return };
    let mut domain = group.domain.clone();
    // An axis of one step does not count.
    if part.is_one() {
        domain.shape.remove(axis);
        domain.row.remove(axis);
    } else {
        domain.shape[axis] = part.clone();
    }
    let (mut roots, mut works): (Vec<Root>, Vec<usize>) = (Vec::new(), Vec::new());
    for (root, &work) in group.roots.iter().zip(&group.works) {
        // A root that does not move along the axis would be written once for each part.
        if !root.index.iter().any(|at| at.contains(Symbol::axis(axis))) {
            return;
        }
        for number in 0..parts {
            let mut axes = domain.index();
            if part.is_one() {
                axes.insert(axis, Dim::from(number));
            } else {
                axes[axis] = &axes[axis] + &part * number;
            }
            roots.push(root.rebased(&axes, &domain.ranges(scope.known)));
            works.push(work);
        }
    }
    let Ok(trace) = trace_group(scope, Anchor::Loop, &mut domain, &mut roots, &own) else { return };
    if choices(&trace).next().is_none() {
        (group.domain, group.roots, group.works, group.trace) = (domain, roots, works, Some(trace));
    }
}

fn choices(trace: &Trace) -> impl Iterator<Item = (&Dim, &Dim, &Dim)> {
    trace.dag.values().iter().filter_map(|value| match &value.def {
        Def::Inst(InstKind::InRange { expr, low, high }) => Some((expr, low, high)),
        _ => None,
    })
}

/// The axis, the size of a part and the number of parts that all selects agree on.
fn find_parts(trace: &Trace, domain: &Domain) -> Option<(usize, Dim, i64)> {
    let (first, ..) = choices(trace).next()?;
    let axis = (0..domain.shape.len()).find(|&d| first.as_symbol() == Some(Symbol::axis(d)))?;
    let size = &domain.shape[axis];
    let mut cuts: Vec<&Dim> = Vec::new();
    for (expr, low, high) in choices(trace) {
        if expr != first {
            return None;
        }
        cuts.extend([low, high]);
    }
    cuts.retain(|cut| !cut.is_zero() && *cut != size);
    let multiple = |of: &Dim, part: &Dim| of.div_exact(part).and_then(|n| n.as_const());
    let part = *cuts.iter().find(|part| cuts.iter().all(|cut| multiple(cut, part).is_some_and(|n| n > 0)))?;
    let parts = multiple(size, part).filter(|n| (2..=MAX_PARTS).contains(n))?;
    Some((axis, part.clone(), parts))
}
