//! The loop nest: axes of size one are removed, axes that step together are merged, and one axis is chosen as the vector axis.

use super::interleave::interleaved;
use super::moved::varying_values;
use super::ops::weight;
use super::place::repeated;
use super::unroll::unroll_last;
use kiln_ir::{Dim, Symbol};
use kiln_kernels::kernel::{Axis, BufferArg, Domain, Inst, InstKind, LoopBody, Place, Stage, map_dims, visit_dims};

/// The axis that runs along the lanes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VectorAxis {
    /// The last grid axis: each lane is a grid point of its own, reductions stay in their lanes.
    Grid,
    /// The last row axis: all lanes belong to one grid point, reductions end by combining lanes.
    Row,
}

/// A body with as few axes as possible, with the vector axis last in its list.
pub struct Nest {
    /// The rewritten body.
    pub body: LoopBody,
    /// The choice. `Grid` with an empty grid is a kernel of one point.
    pub vector: VectorAxis,
    /// A grid axis, taken out of the grid, that runs inside the loop over vectors: loads with a large stride along the vector
    /// axis walk through their cache lines along this one.
    pub inner: Option<Axis>,
}

/// Replaces every index expression of a stage.
pub(super) fn rewrite_stage(stage: &mut Stage, f: &dyn Fn(&Dim) -> Dim) {
    stage.insts.iter_mut().for_each(|inst| map_dims(&mut inst.kind, f));
}

fn rewrite(body: &mut LoopBody, f: &dyn Fn(&Dim) -> Dim) {
    body.stages.iter_mut().for_each(|stage| rewrite_stage(stage, f));
}

/// Simplifies the nest and chooses the vector axis.
pub fn arrange(body: &LoopBody, buffers: &[BufferArg]) -> Nest {
    let mut body = body.clone();
    drop_units(&mut body);
    merge(&mut body, false);
    merge(&mut body, true);
    // Of two stores to one element the last wins: points are taken in the order of the grid.
    if body.row.is_empty() && stores_where_data_say(&body) {
        return Nest { body, vector: VectorAxis::Grid, inner: None };
    }
    unroll_last(&mut body, buffers);
    join_repeats(&mut body);
    let vector = choose(&mut body, buffers);
    let inner = if vector == VectorAxis::Grid && body.row.is_empty() { take_inner(&mut body) } else { None };
    Nest { body, vector, inner }
}

/// Whether some store has a data-dependent address.
pub(crate) fn stores_where_data_say(body: &LoopBody) -> bool {
    let scatters = |inst: &Inst| matches!(&inst.kind, InstKind::Store { place, .. } if !place.indirect.is_empty());
    body.stages.iter().flat_map(|stage| &stage.insts).any(scatters)
}

/// Takes out the grid axis along which a load with a large stride along the vector axis is contiguous.
fn take_inner(body: &mut LoopBody) -> Option<Axis> {
    let (vector, outer) = body.grid.split_last()?;
    let jumps = |e: &Dim| match e.linear_in(vector.var) {
        Some((stride, _)) => stride.as_const().is_none_or(|n| n.unsigned_abs() >= 16),
        None => false,
    };
    let mut found = None;
    for inst in body.stages.iter().flat_map(|stage| &stage.insts) {
        let InstKind::Load { place, .. } = &inst.kind else { continue };
        if !place.indirect.is_empty() || !place.offset.contains(vector.var) || !jumps(&place.offset) {
            continue;
        }
        found = found.or_else(|| {
            outer.iter().position(|axis| {
                let steps = place.offset.linear_in(axis.var).and_then(|(stride, _)| stride.as_const());
                steps.is_some_and(|n| n != 0 && n.unsigned_abs() <= 4) && axis.size.as_const().is_none_or(|n| n >= 4)
            })
        });
    }
    if let Some(at) = found {
        return Some(body.grid.remove(at));
    }
    let at = outer.iter().rposition(|axis| repeats_work(body, axis))?;
    if body.grid[at].size.as_const().is_some_and(|n| n <= MOST_INSIDE) {
        return Some(body.grid.remove(at));
    }
    // A part of a longer one.
    let is_free = |symbol: &Symbol| body.grid.iter().all(|axis| axis.var != *symbol);
    let var = (0..).map(Symbol::axis).find(is_free)?;
    let (long, part) = (body.grid[at].var, Dim::from(PART_INSIDE));
    body.grid[at].size = body.grid[at].size.floor_div(&part);
    let place = Dim::from(long) * &part + Dim::from(var);
    rewrite(body, &|e| {
        if e.contains(long) { e.substitute(&|s| (s == long).then(|| place.clone())) } else { e.clone() }
    });
    Some(Axis { var, size: part })
}

/// The longest axis that runs inside the loop over vectors to save work: that many rows of what is read and written are in use at once.
const MOST_INSIDE: i64 = 64;
/// As much of a longer axis does.
const PART_INSIDE: i64 = 8;

/// What a check of indices takes, in vector instructions.
const CHECK: u32 = 8;

/// Whether most of what is computed is the same at all points of an axis, places that data choose among it (the channels of an image that
/// is read at computed places): inside the loop over vectors it is computed once.
fn repeats_work(body: &LoopBody, axis: &Axis) -> bool {
    let insts = || body.stages.iter().flat_map(|stage| &stage.insts);
    let chosen = insts().any(|inst| matches!(inst.kind, InstKind::CheckIndex { .. }));
    let fits = |n: i64| (4..=MOST_INSIDE).contains(&n) || n > MOST_INSIDE && n % PART_INSIDE == 0;
    if !chosen || !axis.size.as_const().is_some_and(fits) {
        return false;
    }
    let count = insts().map(|inst| inst.id.0).filter(|&id| id != u32::MAX).max().map_or(0, |id| id as usize + 1);
    let varying = varying_values(body, axis.var, count);
    let (mut same, mut other, mut places) = (0, 0, false);
    for inst in insts() {
        let stays = !matches!(inst.kind, InstKind::Store { .. }) && varying.get(inst.id.0 as usize) == Some(&false);
        let checks = matches!(inst.kind, InstKind::CheckIndex { .. });
        *if stays { &mut same } else { &mut other } += if checks { CHECK } else { weight(&inst.kind) };
        places |= stays && checks;
    }
    places && same >= other
}

fn drop_units(body: &mut LoopBody) {
    let gone: Vec<Symbol> =
        body.grid.iter().chain(&body.row).filter(|axis| axis.size.is_one()).map(|axis| axis.var).collect();
    if gone.is_empty() {
        return;
    }
    let had_row = !body.row.is_empty();
    body.grid.retain(|axis| !gone.contains(&axis.var));
    let last = body.row.last().cloned();
    body.row.retain(|axis| !gone.contains(&axis.var));
    // A row of one point is still a row: its stages run once.
    if had_row && body.row.is_empty() {
        body.row.extend(last);
    }
    let kept = body.row.first().map(|axis| axis.var);
    rewrite(body, &|e| e.substitute(&|s| (gone.contains(&s) && Some(s) != kept).then(|| Dim::from(0))));
}

/// Merges neighbours `outer, inner` wherever every expression steps by `inner.size` times as much along `outer`.
fn merge(body: &mut LoopBody, row: bool) {
    let mut at = if row { body.row.len() } else { body.grid.len() };
    while at >= 2 {
        at -= 1;
        let axes = if row { &body.row } else { &body.grid };
        let (outer, inner) = (axes[at - 1].clone(), axes[at].clone());
        if !composes(body, &outer, &inner) {
            continue;
        }
        // o·(c·n) + i·c with o = 0 and i running over both.
        rewrite(body, &|e| {
            if e.contains(outer.var) { e.substitute(&|s| (s == outer.var).then(|| Dim::from(0))) } else { e.clone() }
        });
        let axes = if row { &mut body.row } else { &mut body.grid };
        axes[at - 1] = Axis { var: inner.var, size: &outer.size * &inner.size };
        axes.remove(at);
    }
}

/// An axis shorter than this leaves most of a vector empty.
const SHORT: i64 = 16;

/// Joins a short last axis with the one before it where all of the results lie side by side along both, and every load takes the same
/// element along the short one (an image that grows by a whole factor): along the joined axis an element is in several lanes.
fn join_repeats(body: &mut LoopBody) {
    let [.., outer, inner] = body.grid.as_slice() else { return };
    let Some(times) = inner.size.as_const().filter(|times| (2..SHORT).contains(times)) else { return };
    let (outer, inner) = (outer.clone(), inner.clone());
    let absent = |e: &Dim| !e.contains(outer.var) && !e.contains(inner.var);
    let repeats = |e: &Dim| !e.contains(inner.var) && e.linear_in(outer.var).is_some_and(|(step, _)| step.is_one());
    let (mut fits, mut any) = (body.row.is_empty(), false);
    for inst in body.stages.iter().flat_map(|stage| &stage.insts) {
        if let InstKind::Load { place, guard: None } = &inst.kind
            && place.indirect.is_empty()
            && repeats(&place.offset)
        {
            any = true;
            continue;
        }
        visit_dims(&inst.kind, &mut |e| fits = fits && (absent(e) || steps_together(e, &outer, &inner)));
    }
    if !fits || !any {
        return;
    }
    let joined = Dim::from(inner.var).floor_div(&Dim::from(times));
    rewrite(body, &|e| {
        let with = if repeats(e) { joined.clone() } else { Dim::from(0) };
        if e.contains(outer.var) { e.substitute(&|s| (s == outer.var).then(|| with.clone())) } else { e.clone() }
    });
    body.grid.pop();
    body.grid.pop();
    body.grid.push(Axis { var: inner.var, size: &outer.size * &inner.size });
}

fn composes(body: &LoopBody, outer: &Axis, inner: &Axis) -> bool {
    let mut fits = true;
    for inst in body.stages.iter().flat_map(|stage| &stage.insts) {
        visit_dims(&inst.kind, &mut |e| {
            fits = fits && (!e.contains(outer.var) && !e.contains(inner.var) || steps_together(e, outer, inner));
        });
        if !fits {
            return false;
        }
    }
    fits
}

fn steps_together(e: &Dim, outer: &Axis, inner: &Axis) -> bool {
    let Some((by_outer, rest)) = e.linear_in(outer.var) else { return false };
    let Some((by_inner, _)) = rest.linear_in(inner.var) else { return false };
    !by_outer.contains(inner.var) && by_outer == &by_inner * &inner.size
}

/// The cost of one access along an axis, in rough cycles per element.
fn access_cost(offset: &Dim, indirect: bool, var: Symbol, store: bool) -> f64 {
    match offset.linear_in(var) {
        _ if indirect => 4.0,
        Some((c, _)) if c.is_zero() => {
            if store {
                2.0
            } else {
                0.0
            }
        }
        Some((c, _)) if c.is_one() => 0.5,
        // Two vectors with gaps between elements.
        Some((c, _)) if store && c.as_const() == Some(2) => 2.0,
        // Each element in a cache line of its own.
        Some((c, _)) if !store && c.as_const().is_some_and(|n| n.unsigned_abs() >= 16) => 2.5,
        Some(_) => {
            if store {
                3.0
            } else {
                2.0
            }
        }
        // A vector and a permutation of it.
        None if !store && repeated(offset, var).is_some() => 1.0,
        None => 4.0,
    }
}

fn cost(body: &LoopBody, buffers: &[BufferArg], var: Symbol, row: bool) -> f64 {
    let has_row = !body.row.is_empty();
    // What an axis inside the loop over vectors does not change is loaded once for all of its points.
    let mut others = body.grid.iter().filter(|axis| axis.var != var && !has_row);
    let inside = others.rfind(|axis| repeats_work(body, axis));
    let once = |place: &Place| inside.is_some_and(|axis| place.indirect.is_empty() && !place.offset.contains(axis.var));
    let mut sum = 0.0;
    for stage in &body.stages {
        // Point stages of row kernels run once per row.
        let weight = if stage.domain == Domain::Point && has_row { 0.02 } else { 1.0 };
        let groups = interleaved(buffers, &stage.insts, var);
        for inst in &stage.insts {
            let (place, store) = match &inst.kind {
                InstKind::Load { place, .. } => (place, false),
                InstKind::Store { place, .. } => (place, true),
                _ => continue,
            };
            if (stage.domain == Domain::Row || !row) && !once(place) {
                let together = groups.iter().find(|one| one.is(place, store)).map(|one| one.cost());
                let alone = || access_cost(&place.offset, !place.indirect.is_empty(), var, store);
                sum += weight * together.unwrap_or_else(alone);
            }
        }
    }
    sum
}

/// Moves the best axis last in its list. Short axes waste lanes, so they must be cheaper to win.
fn choose(body: &mut LoopBody, buffers: &[BufferArg]) -> VectorAxis {
    let short = |axis: &Axis| match axis.size.as_const() {
        Some(n) if n < 16 => 1.0 + 0.25 * (16 - n) as f64,
        _ => 1.0,
    };
    let mut best: Option<(f64, bool, usize)> = None;
    // In order of preference among equals: the last row axis, then grid axes from the last.
    if let Some((at, axis)) = body.row.iter().enumerate().next_back() {
        best = Some(((cost(body, buffers, axis.var, true) + 0.25) * short(axis), true, at));
    }
    for (at, axis) in body.grid.iter().enumerate().rev() {
        let price = (cost(body, buffers, axis.var, false) + 0.25) * short(axis);
        if best.is_none_or(|(other, ..)| price < other) {
            best = Some((price, false, at));
        }
    }
    match best {
        Some((_, false, at)) => {
            let axis = body.grid.remove(at);
            body.grid.push(axis);
            VectorAxis::Grid
        }
        Some((_, true, _)) => VectorAxis::Row,
        None => VectorAxis::Grid,
    }
}
