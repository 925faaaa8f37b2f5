//! Rows that are written into a larger tensor (a step's keys and values into their cache): a scatter of a few rows joins the
//! loop that computes them, and so do other scatters of as many rows to the same places. One launch does the work of three.
//!
//! ```text
//!  loop: rope(k) ─▶ temp      scatter: temp ─▶ keys[rows]      scatter: v ─▶ values[rows]
//!  becomes
//!  loop: rope(k) ─▶ keys[rows], v ─▶ values[rows]
//! ```
//!
//! Two rows may have the same place, of which the last is to stay: such a loop runs in order, which is why it must be short.

use crate::axes;
use crate::kernel::{
    Access, BufferArg, Inst, InstKind, Kernel, KernelBody, LoopBody, Place, RoutineBody, Stage, Strided, ValueId,
};
use crate::schedule::{BufferId, Role, Schedule, Step};
use crate::update::{can_move, depends, retire};
use kiln_ir::{BinaryOp, CompareOp, DType, Dim, Scalar, ScatterKind};
use std::sync::Arc;

/// Elements above which rows are better written by several threads.
const MOST: i64 = 1 << 13;

/// A scatter of whole rows.
struct Rows<'a> {
    /// Rows of the output, rows written, and elements of each.
    size: &'a Dim,
    count: i64,
    width: i64,
    index: &'a Strided,
    updates: &'a Strided,
    output: &'a Strided,
}

impl Rows<'_> {
    fn of(step: &Step) -> Option<Rows<'_>> {
        let KernelBody::Routine(RoutineBody::Scatter { shape, updates_shape, axis: 0, kind, index, updates, output }) =
            &step.kernel.body
        else {
            return None;
        };
        let ([size, _], [count, width]) = (shape.as_slice(), updates_shape.as_slice()) else { return None };
        let (count, width) = (count.as_const()?, width.as_const()?);
        let short = (1..=MOST).contains(&count.checked_mul(width)?);
        let whole = *kind == ScatterKind::Set && index.strides[1].is_zero();
        (short && whole).then_some(Rows { size, count, width, index, updates, output })
    }
}

/// A loop that writes rows at places that an index says.
struct Writer {
    /// Where it is among the steps.
    at: usize,
    index: (BufferId, Strided),
    count: i64,
    width: i64,
    /// Row and column of each of its stores, and the two values that say where.
    places: Vec<(Dim, Dim)>,
    checked: ValueId,
    guard: ValueId,
}

/// Joins scatters of rows with the loops that compute them.
pub(crate) fn join_writes(schedule: &mut Schedule) {
    let mut writers: Vec<Writer> = Vec::new();
    for at in 0..schedule.steps.len() {
        if let Some((from, writer)) = join_producer(schedule, at) {
            moved(&mut writers, from, at);
            writers.push(writer);
        }
    }
    for at in 0..schedule.steps.len() {
        if let Some(mate) = find_mate(schedule, &writers, at) {
            let from = writers[mate].at;
            join_mate(schedule, &writers[mate], at);
            moved(&mut writers, from, from.max(at));
        }
    }
    schedule.steps.retain(|step| !step.args.is_empty());
}

/// A step is another one now; it may be the loop of several writers.
fn moved(writers: &mut [Writer], from: usize, to: usize) {
    writers.iter_mut().filter(|writer| writer.at == from).for_each(|writer| writer.at = to);
}

/// The buffer of a view.
fn buffer(step: &Step, view: &Strided) -> BufferId {
    step.args[view.buffer]
}

/// Lets the loop that computes a scatter's rows write them where they belong, in the scatter's place; gives where it was.
fn join_producer(schedule: &mut Schedule, at: usize) -> Option<(usize, Writer)> {
    let steps = &schedule.steps;
    let rows = Rows::of(&steps[at])?;
    let rows_buffer = buffer(&steps[at], rows.updates);
    let (index, output) = (buffer(&steps[at], rows.index), buffer(&steps[at], rows.output));
    // A single row may have any stride between rows.
    let [between, along] = rows.updates.strides.as_slice() else { return None };
    let plain = along.is_one() && (rows.count == 1 || between.as_const() == Some(rows.width));
    let temporary =
        schedule.buffers[rows_buffer.index()].role == Role::Temp && !schedule.outputs.contains(&rows_buffer);
    if !temporary || !plain || [index, output].contains(&rows_buffer) {
        return None;
    }
    let mut users = (0..steps.len()).filter(|&s| steps[s].args.contains(&rows_buffer));
    let (Some(from), Some(to), None) = (users.next(), users.next(), users.next()) else { return None };
    if to != at || !can_move(steps, from, at, from) || steps[from].args.contains(&output) {
        return None;
    }
    let producer = &steps[from];
    let KernelBody::Loop(body) = &producer.kernel.body else { return None };
    let [Stage { insts, .. }] = body.stages.as_slice() else { return None };
    let temp = producer.args.iter().position(|arg| *arg == rows_buffer)?;
    let mut places = Vec::new();
    for inst in insts {
        // What goes elsewhere (queries beside keys) still does.
        if let InstKind::Store { place, guard, .. } = &inst.kind
            && place.buffer == temp
        {
            if guard.is_some() || !place.indirect.is_empty() {
                return None;
            }
            places.push(row_and_column(body, &(&place.offset - &rows.updates.offset), rows.width)?);
        }
    }
    // Every place once: that is all of them.
    let points = body.grid.iter().try_fold(1, |n: i64, axis| n.checked_mul(axis.size.as_const()?))?;
    if !body.row.is_empty() || points.checked_mul(places.len() as i64)? != rows.count * rows.width {
        return None;
    }
    let mut editor = Editor::new(producer, body);
    // The index may be read by the loop already.
    let (checked, guard) = editor.place(index, rows.index, &steps[at], &places, rows.size)?;
    let out = editor.argument(output, &steps[at], rows.output.buffer, Access::ReadWrite);
    editor.redirect(temp, out, rows.output, &places, checked, guard);
    let writer =
        Writer { at, index: (index, rows.index.clone()), count: rows.count, width: rows.width, places, checked, guard };
    let joined = editor.finish(producer, &steps[at], rows_buffer);
    schedule.steps[at] = joined;
    retire(&mut schedule.steps[from]);
    Some((from, writer))
}

/// Row and column of an element at `offset` in rows of `width`, if the axes that rows move along count them one after another,
/// so that they are taken in order.
fn row_and_column(body: &LoopBody, offset: &Dim, width: i64) -> Option<(Dim, Dim)> {
    let (mut row, mut column, mut rest) = (Dim::default(), Dim::default(), offset.clone());
    // How far rows move by one step of the axis outside, and the last column.
    let (mut outer, mut most) = (i64::MAX, 0);
    for axis in &body.grid {
        let (step, other) = rest.linear_in(axis.var)?;
        let (step, size) = (step.as_const()?, axis.size.as_const()?);
        rest = other;
        if step % width == 0 {
            let rows = step / width;
            if rows != 0 {
                // All of this axis comes before the next step of the one outside.
                if rows < 0 || rows.checked_mul(size)? > outer {
                    return None;
                }
                outer = rows;
            }
            row += Dim::from(axis.var) * rows;
        } else if step > 0 {
            most += step * (size - 1);
            column += Dim::from(axis.var) * step;
        } else {
            return None;
        }
    }
    let rest = rest.as_const()?;
    row += Dim::from(rest.div_euclid(width));
    column += Dim::from(rest.rem_euclid(width));
    (most + rest.rem_euclid(width) < width).then_some((row, column))
}

/// A writer to the same rows that a scatter can join.
fn find_mate(schedule: &Schedule, writers: &[Writer], at: usize) -> Option<usize> {
    let step = &schedule.steps[at];
    let rows = Rows::of(step).filter(|_| !step.args.is_empty())?;
    let index = (buffer(step, rows.index), &rows.index.offset, &rows.index.strides);
    let output = buffer(step, rows.output);
    writers.iter().position(|writer| {
        let same = (writer.index.0, &writer.index.1.offset, &writer.index.1.strides) == index;
        let (first, last) = (writer.at.min(at), writer.at.max(at));
        let other = &schedule.steps[writer.at];
        same && (writer.count, writer.width) == (rows.count, rows.width)
            && !depends(step, other)
            && !other.args.contains(&output)
            && can_move(&schedule.steps, first, last, first)
    })
}

/// Lets a writer write the rows of another scatter too, at the position of the later one.
fn join_mate(schedule: &mut Schedule, writer: &Writer, at: usize) {
    let (step, other) = (&schedule.steps[at], &schedule.steps[writer.at]);
    let (Some(rows), KernelBody::Loop(body)) = (Rows::of(step), &other.kernel.body) else { return };
    let mut editor = Editor::new(other, body);
    let from = editor.argument(buffer(step, rows.updates), step, rows.updates.buffer, Access::Read);
    let to = editor.argument(buffer(step, rows.output), step, rows.output.buffer, Access::ReadWrite);
    editor.copy(from, to, &rows, writer);
    let joined = editor.finish(other, step, buffer(step, rows.output));
    let (first, last) = (writer.at.min(at), writer.at.max(at));
    schedule.steps[last] = joined;
    retire(&mut schedule.steps[first]);
}

/// A loop kernel of one stage being changed.
struct Editor {
    args: Vec<BufferId>,
    buffers: Vec<BufferArg>,
    body: LoopBody,
    loads: Vec<Inst>,
    stores: Vec<Inst>,
    next: u32,
}

impl Editor {
    fn new(step: &Step, body: &LoopBody) -> Editor {
        let insts = body.stages.iter().flat_map(|stage| stage.insts.iter().cloned());
        let (stores, loads): (Vec<Inst>, Vec<Inst>) =
            insts.partition(|inst| matches!(inst.kind, InstKind::Store { .. }));
        let next = loads.iter().chain(&stores).map(|inst| inst.id.0 + 1).max().unwrap_or(0);
        let (args, buffers) = (step.args.clone(), step.kernel.buffers.clone());
        Editor { args, buffers, body: body.clone(), loads, stores, next }
    }

    /// The number of a buffer that `step` has as its argument `from`.
    fn argument(&mut self, buffer: BufferId, step: &Step, from: usize, access: Access) -> usize {
        let dtype = step.kernel.buffers[from].dtype;
        let known = self.args.iter().zip(&self.buffers).position(|(arg, own)| *arg == buffer && own.dtype == dtype);
        known.unwrap_or_else(|| {
            self.args.push(buffer);
            self.buffers.push(BufferArg { dtype, access });
            self.args.len() - 1
        })
    }

    fn add(&mut self, dtype: DType, kind: InstKind) -> ValueId {
        let id = ValueId(self.next);
        self.next += 1;
        let list = if matches!(kind, InstKind::Store { .. }) { &mut self.stores } else { &mut self.loads };
        list.push(Inst { id, dtype, kind });
        id
    }

    /// The index of the row that all stores of a point have, checked, and whether it was in range.
    fn place(
        &mut self,
        buffer: BufferId,
        view: &Strided,
        step: &Step,
        places: &[(Dim, Dim)],
        size: &Dim,
    ) -> Option<(ValueId, ValueId)> {
        let (row, _) = places.first()?;
        if places.iter().any(|(other, _)| other != row) {
            return None;
        }
        let size = Dim::from(size.as_const()?);
        let number = self.argument(buffer, step, view.buffer, Access::Read);
        let dtype = self.buffers[number].dtype.compute_type();
        let offset = &view.offset + row * &view.strides[0];
        let place = Place { buffer: number, offset, indirect: Vec::new() };
        let mut index = self.add(dtype, InstKind::Load { place, guard: None });
        if dtype != DType::I64 {
            index = self.add(DType::I64, InstKind::Cast(index));
        }
        let checked = self.add(DType::I64, InstKind::CheckIndex { value: index, size: size.clone() });
        let zero = self.add(DType::I64, InstKind::Const(Scalar::int(DType::I64, 0)));
        let end = self.add(DType::I64, InstKind::Const(Scalar::int(DType::I64, size.as_const()?)));
        let low = self.add(DType::Bool, InstKind::Compare(CompareOp::Ge, index, zero));
        let high = self.add(DType::Bool, InstKind::Compare(CompareOp::Lt, index, end));
        Some((checked, self.add(DType::Bool, InstKind::Binary(BinaryOp::And, low, high))))
    }

    /// The address of column `column` of the checked row.
    fn target(buffer: usize, view: &Strided, column: &Dim, checked: ValueId) -> Place {
        let offset = &view.offset + column * &view.strides[1];
        Place { buffer, offset, indirect: vec![(checked, view.strides[0].clone())] }
    }

    /// Lets the stores to `from` go to rows of `to`.
    fn redirect(
        &mut self,
        from: usize,
        to: usize,
        view: &Strided,
        places: &[(Dim, Dim)],
        checked: ValueId,
        ok: ValueId,
    ) {
        let own = self.stores.iter_mut().filter_map(|inst| match &mut inst.kind {
            InstKind::Store { place, guard, .. } if place.buffer == from => Some((place, guard)),
            _ => None,
        });
        for ((place, guard), (_, column)) in own.zip(places) {
            *place = Editor::target(to, view, column, checked);
            *guard = Some(ok);
        }
    }

    /// Copies the rows of another scatter, element by element as the loop goes.
    fn copy(&mut self, from: usize, to: usize, rows: &Rows<'_>, writer: &Writer) {
        let dtype = self.buffers[from].dtype.compute_type();
        for (row, column) in &writer.places {
            let Strided { offset, strides, .. } = rows.updates;
            let offset = offset + row * &strides[0] + column * &strides[1];
            let place = Place { buffer: from, offset, indirect: Vec::new() };
            let value = self.add(dtype, InstKind::Load { place, guard: None });
            let place = Editor::target(to, rows.output, column, writer.checked);
            self.add(dtype, InstKind::Store { place, value, guard: Some(writer.guard) });
        }
    }

    /// The launch, which does what both did and no longer needs `gone` if nothing refers to it.
    fn finish(mut self, one: &Step, other: &Step, gone: BufferId) -> Step {
        let insts: Vec<Inst> = self.loads.into_iter().chain(self.stores).collect();
        let mut used = vec![false; self.args.len()];
        for inst in &insts {
            if let InstKind::Load { place, .. } | InstKind::LoadBlock { place, .. } | InstKind::Store { place, .. } =
                &inst.kind
            {
                used[place.buffer] = true;
            }
        }
        let map: Vec<usize> = (0..used.len()).map(|at| used[..at].iter().filter(|used| **used).count()).collect();
        let mut keep = used.iter();
        self.args.retain(|_| keep.next() == Some(&true));
        let mut keep = used.iter();
        self.buffers.retain(|_| keep.next() == Some(&true));
        let insts = insts.into_iter().map(|mut inst| {
            if let Some(place) = inst.kind.place_mut() {
                place.buffer = map[place.buffer];
            }
            inst
        });
        if let Some(stage) = self.body.stages.first_mut() {
            stage.insts = insts.collect();
        }
        let mut nodes = [one.nodes.as_slice(), &other.nodes].concat();
        nodes.sort_unstable();
        nodes.dedup();
        let suffix = format!("_{}", other.label);
        let label = if one.label.ends_with(&suffix) { one.label.clone() } else { one.label.clone() + &suffix };
        let mut reads = one.reads.clone();
        reads.extend(other.reads.iter().filter(|read| read.buffer != gone && !one.reads.contains(read)));
        let mut writes = one.writes.clone();
        writes.retain(|written| written.buffer != gone);
        writes.extend(other.writes.iter().cloned());
        let insts = self.body.stages.iter().flat_map(|stage| &stage.insts);
        let sizes = axes::size_symbols(self.body.grid.iter(), insts);
        let values = sizes.iter().map(|&size| Dim::from(size)).collect();
        let kernel = Kernel { buffers: self.buffers, sizes, body: KernelBody::Loop(self.body) };
        Step { kernel: Arc::new(kernel), args: self.args, sizes: values, nodes, label, reads, writes }
    }
}
