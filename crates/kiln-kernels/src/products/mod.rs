//! Products of a few rows read every weight once, at the speed of memory: what is done before, after and beside them costs
//! nothing if it is done in the same launch, and a launch of its own if not.
//!
//! ```text
//!  operands   up ─▶ temp, gate·temp ─▶ out          becomes  one product with two right operands and one epilogue
//!             q ─▶ temp, rope(temp) ─▶ out          becomes  one product whose right operands are the halves of a head
//!  rows       norm(x) ─▶ temp, temp·w ─▶ out        becomes  one product that normalises its rows first
//!  apart      x·k ─▶ keys, x·v ─▶ values in one      becomes  two products of one launch
//!  parallel   x·q ─▶ …, x·k ─▶ …, x·v ─▶ …          becomes  one launch of all three
//! ```
//!
//! Only for targets that ask for it, see [`Target`](crate::Target).

mod apart;
mod operands;
mod parallel;
mod rows;

use crate::dag::{map_dims, map_operands};
use crate::kernel::{Access, Axis, BufferArg, Inst, InstKind, Kernel, KernelBody, MatmulBody, ValueId};
use crate::schedule::{BufferId, Role, Schedule, Step};
use crate::update::{can_move, retire};
use kiln_ir::{DType, Dim, Symbol};
use std::sync::Arc;

/// Joins products of at most `few_rows` rows with what is before, after and beside them, and those of at most `rows_beside` with each other.
pub(crate) fn join_products(schedule: &mut Schedule, few_rows: i64, rows_beside: i64) {
    if few_rows == 0 {
        if rows_beside > 0 {
            parallel::join_if(schedule, rows_beside, &|step| product(step, rows_beside).is_some());
            schedule.steps.retain(|step| !step.args.is_empty());
        }
        return;
    }
    operands::join(schedule, few_rows);
    rows::join(schedule, few_rows);
    schedule.steps.retain(|step| !step.args.is_empty());
    parallel::join(schedule, few_rows);
    schedule.steps.retain(|step| !step.args.is_empty());
    parallel::join_last(schedule);
    schedule.steps.retain(|step| !step.args.is_empty());
}

/// The product of a step, if it has few rows of a known length and no batch.
fn product(step: &Step, few_rows: i64) -> Option<&MatmulBody> {
    let KernelBody::Matmul(body) = &step.kernel.body else { return None };
    let rows = count(&body.m)?;
    let fits = body.batch.is_empty() && body.k.len() == 1 && (1..=few_rows).contains(&rows) && count(&body.k).is_some();
    (fits && !step.args.is_empty() && has_own_sizes(step)).then_some(body)
}

/// The number of points of axes of known sizes.
fn count(axes: &[Axis]) -> Option<i64> {
    axes.iter().try_fold(1i64, |n, axis| n.checked_mul(axis.size.as_const()?))
}

/// Whether the kernel's sizes are the graph's, under the same names.
fn has_own_sizes(step: &Step) -> bool {
    step.kernel.sizes.iter().zip(&step.sizes).all(|(symbol, value)| value.as_symbol() == Some(*symbol))
}

/// Scratch memory that is not returned.
fn is_temporary(schedule: &Schedule, buffer: BufferId) -> bool {
    schedule.buffers[buffer.index()].role == Role::Temp && !schedule.outputs.contains(&buffer)
}

/// The steps that have a buffer as an argument.
fn users(schedule: &Schedule, buffer: BufferId) -> Vec<usize> {
    let uses = |at: &usize| schedule.steps[*at].args.contains(&buffer);
    (0..schedule.steps.len()).filter(uses).collect()
}

/// The arguments of a launch that is made of several.
#[derive(Default)]
struct Arguments {
    args: Vec<BufferId>,
    buffers: Vec<BufferArg>,
}

impl Arguments {
    /// Adds those of a step; gives the new number of each.
    fn add(&mut self, step: &Step) -> Vec<usize> {
        step.args.iter().zip(&step.kernel.buffers).map(|(&arg, decl)| self.one(arg, decl)).collect()
    }

    fn one(&mut self, arg: BufferId, decl: &BufferArg) -> usize {
        let known = self.args.iter().zip(&self.buffers).position(|(own, had)| *own == arg && had.dtype == decl.dtype);
        if let Some(at) = known {
            if self.buffers[at].access != decl.access {
                self.buffers[at].access = Access::ReadWrite;
            }
            return at;
        }
        self.args.push(arg);
        self.buffers.push(decl.clone());
        self.args.len() - 1
    }

    /// The launch, of those arguments that `body` refers to; it does what `steps` did but for writing `gone`.
    fn step(self, mut body: KernelBody, steps: &[&Step], gone: Option<BufferId>) -> Step {
        let mut used = vec![false; self.args.len()];
        body.buffers().into_iter().for_each(|buffer| used[buffer] = true);
        let map: Vec<usize> = (0..used.len()).map(|at| used[..at].iter().filter(|used| **used).count()).collect();
        body.renumber_buffers(&map);
        let keep = |at: &usize| used[*at];
        let args = (0..used.len()).filter(keep).map(|at| self.args[at]).collect();
        let buffers = (0..used.len()).filter(keep).map(|at| self.buffers[at].clone()).collect();
        let mut sizes: Vec<Symbol> = steps.iter().flat_map(|step| step.kernel.sizes.iter().copied()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let values = sizes.iter().map(|&size| Dim::from(size)).collect();
        let mut nodes: Vec<_> = steps.iter().flat_map(|step| step.nodes.iter().copied()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        // The first and the last say enough.
        let mut labels: Vec<&str> = steps.iter().map(|step| step.label.as_str()).collect();
        labels.drain(1..labels.len().max(2) - 1);
        labels.dedup();
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for step in steps {
            reads.extend(step.reads.iter().filter(|read| Some(read.buffer) != gone).copied());
            writes.extend(step.writes.iter().filter(|written| Some(written.buffer) != gone).cloned());
        }
        reads.sort_by_key(|read| (read.node, read.buffer));
        reads.dedup();
        let label = labels.join("_");
        let kernel = Arc::new(Kernel { buffers, sizes, body });
        Step { kernel, args, sizes: values, nodes, label, reads, writes }
    }
}

/// Instructions that are put together from others, numbered in their order.
#[derive(Default)]
struct Insts {
    list: Vec<Inst>,
    /// The numbers that the values of the list last added have here.
    numbers: Vec<Option<ValueId>>,
}

impl Insts {
    fn push(&mut self, dtype: DType, kind: InstKind) -> ValueId {
        let id = ValueId(self.list.len() as u32);
        self.list.push(Inst { id, dtype, kind });
        id
    }

    /// Begins to add another list of instructions.
    fn begin(&mut self) {
        self.numbers.clear();
    }

    /// Makes a value of the other list one that is here.
    fn bind(&mut self, old: ValueId, new: ValueId) {
        let at = old.0 as usize;
        if self.numbers.len() <= at {
            self.numbers.resize(at + 1, None);
        }
        self.numbers[at] = Some(new);
    }

    fn value(&self, old: ValueId) -> ValueId {
        self.numbers.get(old.0 as usize).copied().flatten().unwrap_or(old)
    }

    /// Adds an instruction with buffers by other numbers and axes replaced.
    fn add(&mut self, inst: &Inst, buffers: &[usize], axes: &dyn Fn(Symbol) -> Option<Dim>) -> ValueId {
        let mut kind = moved(inst, buffers, axes).kind;
        map_operands(&mut kind, &|old| self.value(old));
        let new = self.push(inst.dtype, kind);
        self.bind(inst.id, new);
        new
    }

    /// A value as it would be after a store to memory of this type and a load.
    fn stored(&mut self, value: ValueId, dtype: DType) -> ValueId {
        if dtype == dtype.compute_type() {
            value
        } else {
            self.push(dtype.compute_type(), InstKind::Round(value, dtype))
        }
    }
}

/// An instruction with buffers by other numbers and axes replaced.
fn moved(inst: &Inst, buffers: &[usize], axes: &dyn Fn(Symbol) -> Option<Dim>) -> Inst {
    let mut inst = inst.clone();
    map_dims(&mut inst.kind, &|dim| dim.substitute(axes));
    if let Some(place) = inst.kind.place_mut() {
        place.buffer = buffers[place.buffer];
    }
    inst
}
