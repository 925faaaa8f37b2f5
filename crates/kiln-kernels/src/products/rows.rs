//! A loop that computes the rows on the left of products (a norm) becomes a part of each of them.

use super::{Arguments, count, has_own_sizes, is_temporary, moved, product, retire, users};
use crate::dag::map_operands;
use crate::kernel::{
    Access, Axis, Domain, Inst, InstKind, KernelBody, LoopBody, MatmulBody, Reduction, ReductionKind, Stage, ValueId,
};
use crate::schedule::{BufferId, Schedule, Step};
use kiln_ir::{DType, Dim, Symbol};

/// Elements of all rows together that every part of a launch may compute again.
const MOST: i64 = 1 << 14;

/// Makes loops before products parts of them.
pub(super) fn join(schedule: &mut Schedule, few_rows: i64) {
    for at in 0..schedule.steps.len() {
        let Some(rows) = rows_of(schedule, at) else { continue };
        let readers: Vec<usize> = users(schedule, rows).into_iter().filter(|&user| user != at).collect();
        let joined: Option<Vec<Step>> =
            readers.iter().map(|&reader| joined(schedule, at, reader, rows, few_rows)).collect();
        // A loop that has to be run for one reader is run for all.
        let Some(joined) = joined.filter(|joined| !joined.is_empty()) else { continue };
        for (reader, step) in readers.into_iter().zip(joined) {
            schedule.steps[reader] = step;
        }
        retire(&mut schedule.steps[at]);
    }
}

/// The one buffer that a loop over rows writes, once an element, if it is temporary.
fn rows_of(schedule: &Schedule, at: usize) -> Option<BufferId> {
    let step = &schedule.steps[at];
    let KernelBody::Loop(body) = &step.kernel.body else { return None };
    let mut reductions = body.stages.iter().flat_map(|stage| &stage.reductions);
    if reductions.any(|reduction| matches!(reduction.kind, ReductionKind::Arg(_))) {
        return None;
    }
    let mut stores = body.stages.iter().flat_map(|stage| &stage.insts).filter_map(|inst| match &inst.kind {
        InstKind::Store { place, guard, .. } => Some((place, guard)),
        _ => None,
    });
    let ((place, guard), None) = (stores.next()?, stores.next()) else { return None };
    let buffer = *step.args.get(place.buffer)?;
    let plain = guard.is_none() && place.indirect.is_empty() && !body.row.is_empty();
    (plain && is_temporary(schedule, buffer)).then_some(buffer)
}

/// The product at `reader` with the loop at `at` in it, if it reads the loop's rows as its left operand and nowhere else.
fn joined(schedule: &Schedule, at: usize, reader: usize, rows: BufferId, few_rows: i64) -> Option<Step> {
    let steps = &schedule.steps;
    let body = product(&steps[reader], few_rows).filter(|body| body.before.is_none())?;
    let KernelBody::Loop(before) = &steps[at].kernel.body else { return None };
    if reader < at || !has_own_sizes(&steps[at]) || !keeps_inputs(steps, at, reader) {
        return None;
    }
    if count(&body.m)?.checked_mul(count(&body.k)?)? > MOST {
        return None;
    }
    let own = steps[reader].args.iter().position(|arg| *arg == rows)?;
    let mut reads = body.lhs.insts.iter().filter(|inst| reads_buffer(inst, own));
    let (load, None) = (reads.next()?, reads.next()) else { return None };
    let elsewhere = body.rhs.iter().flat_map(|rhs| &rhs.insts).chain(&body.epilogue);
    let InstKind::Load { place, guard: None } = &load.kind else { return None };
    if elsewhere.clone().any(|inst| reads_buffer(inst, own)) || !place.indirect.is_empty() {
        return None;
    }
    let names = renaming(before, body)?;
    let axes = |symbol: Symbol| names.iter().find(|(from, _)| *from == symbol).map(|(_, to)| Dim::from(*to));
    let mut arguments = Arguments::default();
    let left = arguments.add(&steps[at]);
    let right = arguments.add(&steps[reader]);
    let temp = before.temps.len();
    let dtype = steps[reader].kernel.buffers[own].dtype;
    let stages = with_temp(before, &left, &axes, temp, &place.offset, dtype)?;
    let mut made = body.clone();
    let mut temps = before.temps.clone();
    temps.push(dtype.compute_type());
    let grid = made.m.clone();
    made.before = Some(LoopBody { grid, row: made.k.clone(), stages, temps });
    for inst in &mut made.lhs.insts {
        if inst.id == load.id {
            inst.kind = InstKind::LoadTemp(temp);
        }
    }
    let same = |_: Symbol| None;
    let lists = made.rhs.iter_mut().map(|rhs| &mut rhs.insts).chain([&mut made.lhs.insts, &mut made.epilogue]);
    lists.flatten().for_each(|inst| *inst = moved(inst, &right, &same));
    Some(arguments.step(KernelBody::Matmul(made), &[&steps[at], &steps[reader]], Some(rows)))
}

/// Whether nothing that the step at `at` touches changes before `reader`.
fn keeps_inputs(steps: &[Step], at: usize, reader: usize) -> bool {
    steps[at + 1..reader].iter().all(|between| {
        let written = between.args.iter().zip(&between.kernel.buffers).filter(|(_, decl)| decl.access != Access::Read);
        written.into_iter().all(|(arg, _)| !steps[at].args.contains(arg))
    })
}

fn reads_buffer(inst: &Inst, buffer: usize) -> bool {
    inst.kind.place().is_some_and(|place| place.buffer == buffer)
}

/// The product's name of each axis of the loop, if their axes are the same.
fn renaming(before: &LoopBody, body: &MatmulBody) -> Option<Vec<(Symbol, Symbol)>> {
    let same = |from: &[Axis], to: &[Axis]| {
        from.len() == to.len() && from.iter().zip(to).all(|(from, to)| from.size == to.size)
    };
    let fits = same(&before.grid, &body.m) && same(&before.row, &body.k);
    let pairs = before.grid.iter().zip(&body.m).chain(before.row.iter().zip(&body.k));
    fits.then(|| pairs.map(|(from, to)| (from.var, to.var)).collect())
}

/// The stages of a loop that keeps in a temporary what it would store at `offset`, rounded as memory of `dtype` does.
fn with_temp(
    before: &LoopBody,
    buffers: &[usize],
    axes: &dyn Fn(Symbol) -> Option<Dim>,
    temp: usize,
    offset: &Dim,
    dtype: DType,
) -> Option<Vec<Stage>> {
    let mut numbers: Vec<Option<ValueId>> = Vec::new();
    let mut next = 0;
    let mut number = |numbers: &mut Vec<Option<ValueId>>, old: Option<ValueId>| {
        let new = ValueId(next);
        next += 1;
        if let Some(at) = old.map(|old| old.0 as usize) {
            numbers.resize(numbers.len().max(at + 1), None);
            numbers[at] = Some(new);
        }
        new
    };
    let mut stages = Vec::new();
    for stage in &before.stages {
        let mut insts: Vec<Inst> = Vec::new();
        for inst in &stage.insts {
            let mut inst = moved(inst, buffers, axes);
            map_operands(&mut inst.kind, &|old| numbers.get(old.0 as usize).copied().flatten().unwrap_or(old));
            if let InstKind::Store { place, value, .. } = &inst.kind {
                if stage.domain != Domain::Row || place.offset != *offset {
                    return None;
                }
                let mut value = *value;
                let compute = dtype.compute_type();
                if compute != dtype {
                    let id = number(&mut numbers, None);
                    insts.push(Inst { id, dtype: compute, kind: InstKind::Round(value, dtype) });
                    value = id;
                }
                inst.kind = InstKind::StoreTemp(temp, value);
            }
            inst.id = number(&mut numbers, Some(inst.id));
            insts.push(inst);
        }
        let mut reductions: Vec<Reduction> = Vec::new();
        for reduction in &stage.reductions {
            let value = numbers.get(reduction.value.0 as usize).copied().flatten()?;
            let result = number(&mut numbers, Some(reduction.result));
            reductions.push(Reduction { value, result, ..reduction.clone() });
        }
        stages.push(Stage { domain: stage.domain, insts, reductions });
    }
    Some(stages)
}
