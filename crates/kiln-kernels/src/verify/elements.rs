//! Every element that the launches of a schedule touch at given sizes: read after it was written, written once, not in a race.
//!
//! Values are not computed. A gather may read any element of its range; a place or a guard that depends on data otherwise says nothing.
//! Launches that touch very many elements are taken at their word.

use super::places::{Condition, Env, Touch};
use super::turns::{self, TurnLoad};
use super::{Launch, Violation};
use crate::hash::FastMap;
use crate::kernel::{Access, Axis, BodyView, Domain, Inst, Kernel, KernelBody, RoutineBody};
use crate::schedule::{BufferId, Role, Schedule, Step};
use kiln_ir::op::mask_columns;
use kiln_ir::{Dim, Symbol};

/// Elements that are looked at in a launch, and in all of them.
const MOST_IN_LAUNCH: i64 = 1 << 15;
const MOST: i64 = 1 << 17;

/// What is known of a buffer.
enum State {
    /// Which elements are written.
    Elements(Vec<bool>),
    /// Memory of the caller or constants, all of it there; the elements that were changed since.
    Given(FastMap<i64, ()>),
    /// Written by a launch that was not looked at.
    Unknown,
}

/// Verifies every element that launches touch.
pub(super) fn verify(schedule: &Schedule, size: &dyn Fn(Symbol) -> Option<i64>) -> Result<(), Violation> {
    let state = |decl: &crate::BufferDecl| match decl.role {
        Role::Input(_) | Role::Constant(_) => State::Given(FastMap::default()),
        Role::Output(_) | Role::Temp => match decl.elements.eval(size).and_then(|n| usize::try_from(n).ok()) {
            Some(elements) if elements as i64 <= MOST => State::Elements(vec![false; elements]),
            _ => State::Unknown,
        },
    };
    let states = schedule.buffers.iter().map(state).collect();
    let mut shadow = Shadow { schedule, states, left: MOST };
    for (at, step) in schedule.steps.iter().enumerate() {
        let values = step.kernel.sizes.iter().zip(&step.sizes).map(|(&s, value)| Some((s, value.eval(size)?)));
        let env = values.collect::<Option<Vec<_>>>().map(Env);
        let count = |touches: &Vec<Touch>| touches.iter().fold(0i64, |n, touch| n.saturating_add(touch.count()));
        let all = env.as_ref().and_then(|env| touches(&step.kernel, env));
        match all.filter(|touches| shadow.affords(count(touches))) {
            Some(touches) => shadow.launch(at, step, &touches)?,
            None => {
                let loads = env.as_ref().map(|env| turns::loads(&step.kernel, env)).unwrap_or_default();
                shadow.turns(at, step, &loads)?;
                shadow.skip(step);
            }
        }
    }
    shadow.outputs()
}

/// What a launch touches: loads, then stores; `None` where some size has no value.
pub(super) fn touches(kernel: &Kernel, env: &Env) -> Option<Vec<Touch>> {
    let mut all = Vec::new();
    kernel.bodies().iter().try_for_each(|body| touches_of(kernel, body, env, &mut all))?;
    Some(all)
}

fn touches_of(kernel: &Kernel, body: &KernelBody, env: &Env, all: &mut Vec<Touch>) -> Option<()> {
    let mut add = |insts: &[Inst], known: &[&Inst], axes: &[&Axis], grid: Option<usize>| {
        for inst in insts {
            if let Some(touch) = Touch::of(inst, known, axes, grid, env) {
                all.push(touch.ok()?);
            }
        }
        Some(())
    };
    match body {
        KernelBody::Loop(body) => {
            let grid: Vec<_> = body.grid.iter().collect();
            let row: Vec<_> = body.grid.iter().chain(&body.row).collect();
            // Guards and indices may come from earlier stages.
            let known: Vec<&Inst> = body.stages.iter().flat_map(|stage| &stage.insts).collect();
            for stage in &body.stages {
                let axes = if stage.domain == Domain::Row { &row } else { &grid };
                add(&stage.insts, &known, axes, Some(grid.len()))?;
            }
        }
        KernelBody::Matmul(body) => {
            let [batch, m, n, k] = [&body.batch, &body.m, &body.n, &body.k];
            // Many iterations read an element of an operand.
            let left: Vec<&Axis> = batch.iter().chain(m).chain(k).collect();
            let right: Vec<&Axis> = batch.iter().chain(k).chain(n).collect();
            if let Some(before) = &body.before {
                let known: Vec<&Inst> = before.stages.iter().flat_map(|stage| &stage.insts).collect();
                before.stages.iter().try_for_each(|stage| add(&stage.insts, &known, &left, None))?;
            }
            let operands =
                [(&body.lhs.insts, &left)].into_iter().chain(body.rhs.iter().map(|rhs| (&rhs.insts, &right)));
            for (insts, axes) in operands {
                add(insts, &insts.iter().collect::<Vec<_>>(), axes, None)?;
            }
            let axes: Vec<&Axis> = batch.iter().chain(m).chain(n).collect();
            add(&body.epilogue, &body.epilogue.iter().collect::<Vec<_>>(), &axes, Some(axes.len()))?;
        }
        KernelBody::Attention(a) => {
            let (b, h, g, t, s) = (&a.batch, &a.heads, &a.kv_heads, &a.queries, &a.keys);
            all.push(Touch::view(&a.q, &[b, h, t, &a.width], false, env)?);
            for (view, pages, width) in [(&a.k, &a.k_pages, &a.width), (&a.v, &a.v_pages, &a.value_width)] {
                if pages.is_none() {
                    all.push(Touch::view(view, &[b, g, s, width], false, env)?);
                }
            }
            if let Some(mask) = &a.mask {
                let columns = mask_columns(kernel.buffers[mask.buffer].dtype, s);
                all.push(Touch::view(mask, &[b, h, t, &columns], false, env)?);
            }
            all.push(Touch::view(&a.out, &[b, h, t, &a.value_width], true, env)?);
            if let Some(logsumexp) = &a.logsumexp {
                all.push(Touch::view(logsumexp, &[b, h, t, &Dim::from(1)], true, env)?);
            }
        }
        KernelBody::AttentionBackward(body) => {
            for BodyView { view, shape, written, .. } in body.views() {
                all.push(Touch::view(view, &shape, written, env)?);
            }
        }
        KernelBody::Routine(RoutineBody::Scan { shape, input, output, .. }) => {
            let shape: Vec<&Dim> = shape.iter().collect();
            all.push(Touch::view(input, &shape, false, env)?);
            all.push(Touch::view(output, &shape, true, env)?);
        }
        KernelBody::Routine(RoutineBody::SortIndices { shape, axis, count, input, output, .. }) => {
            let mut shape: Vec<&Dim> = shape.iter().collect();
            all.push(Touch::view(input, &shape, false, env)?);
            *shape.get_mut(*axis)? = count;
            all.push(Touch::view(output, &shape, true, env)?);
        }
        KernelBody::Routine(RoutineBody::Scatter { shape, updates_shape, index, updates, output, .. }) => {
            let from: Vec<&Dim> = updates_shape.iter().collect();
            all.push(Touch::view(index, &from, false, env)?);
            all.push(Touch::view(updates, &from, false, env)?);
            // Any element may be changed: what was there must be.
            let mut touch = Touch::view(output, &shape.iter().collect::<Vec<_>>(), true, env)?;
            touch.condition = Condition::Unknown;
            all.push(touch);
        }
        // Places that move from turn to turn: see `turns`.
        KernelBody::Repeat(_) | KernelBody::Parallel(_) => return None,
    }
    Some(())
}

/// Whether a launch reads what a buffer had before all of them.
fn is_initial(step: &Step, buffer: BufferId) -> bool {
    let mut reads = step.reads.iter().filter(|read| read.buffer == buffer).peekable();
    reads.peek().is_some() && reads.all(|read| read.initial)
}

struct Shadow<'a> {
    schedule: &'a Schedule,
    states: Vec<State>,
    /// Elements that may still be looked at.
    left: i64,
}

impl Shadow<'_> {
    fn affords(&mut self, count: i64) -> bool {
        let affordable = count <= MOST_IN_LAUNCH && count <= self.left;
        self.left -= if affordable { count } else { 0 };
        affordable
    }

    /// What a loop reads of what it is given. Launches of a turn that touch very many elements are taken at their word.
    fn turns(&mut self, at: usize, step: &Step, loads: &[TurnLoad]) -> Result<(), Violation> {
        for load in loads {
            let buffer = *step.args.get(load.buffer).ok_or(self.arguments(at, step))?;
            if self.affords(load.count()) {
                let old = is_initial(step, buffer);
                load.each(&mut |element| self.load(at, buffer, element, old))?;
            }
        }
        Ok(())
    }

    /// A launch that is not looked at: what it writes is all there afterwards.
    fn skip(&mut self, step: &Step) {
        for (arg, decl) in step.args.iter().zip(&step.kernel.buffers) {
            if decl.access != Access::Read {
                self.states[arg.index()] = State::Unknown;
            }
        }
    }

    fn launch(&mut self, at: usize, step: &Step, touches: &[Touch]) -> Result<(), Violation> {
        let stored: Vec<usize> = touches.iter().filter(|t| t.store).map(|t| t.buffer).collect();
        // Elements that are read and stored by one launch: the iteration that reads each.
        let mut readers: FastMap<(BufferId, i64), Option<i64>> = FastMap::default();
        for touch in touches.iter().filter(|touch| !touch.store) {
            let buffer = *step.args.get(touch.buffer).ok_or(self.arguments(at, step))?;
            let shared = stored.iter().any(|&number| step.args.get(number) == Some(&buffer));
            let old = is_initial(step, buffer);
            touch.each(&mut |iteration, element, sure| {
                if !sure {
                    return Ok(());
                }
                self.load(at, buffer, element, old)?;
                if shared {
                    readers
                        .entry((buffer, element))
                        .and_modify(|i| *i = i.filter(|_| *i == iteration))
                        .or_insert(iteration);
                }
                Ok(())
            })?;
        }
        for touch in touches.iter().filter(|touch| touch.store) {
            let buffer = *step.args.get(touch.buffer).ok_or(self.arguments(at, step))?;
            touch.each(&mut |iteration, element, sure| {
                self.store(at, buffer, element, sure)?;
                match readers.get(&(buffer, element)) {
                    Some(reader) if reader.is_none() || *reader != iteration => {
                        Err(Violation::Race { at: Launch::of(at, &self.schedule.steps), buffer, element })
                    }
                    _ => Ok(()),
                }
            })?;
        }
        Ok(())
    }

    fn arguments(&self, at: usize, step: &Step) -> Violation {
        let (args, buffers) = (step.args.len(), step.kernel.buffers.len());
        Violation::Arguments { at: Launch::of(at, &self.schedule.steps), args, buffers }
    }

    fn load(&self, at: usize, buffer: BufferId, element: i64, old: bool) -> Result<(), Violation> {
        let launch = || Launch::of(at, &self.schedule.steps);
        match &self.states[buffer.index()] {
            State::Elements(written) => match usize::try_from(element).ok().and_then(|at| written.get(at)) {
                Some(true) => Ok(()),
                Some(false) => Err(Violation::UnwrittenElement { at: launch(), buffer, element }),
                None => Err(Violation::OutOfBounds { at: launch(), buffer, element, elements: written.len() }),
            },
            State::Given(changed) if old && changed.contains_key(&element) => {
                Err(Violation::OverwrittenElement { at: launch(), buffer, element })
            }
            _ => Ok(()),
        }
    }

    fn store(&mut self, at: usize, buffer: BufferId, element: i64, sure: bool) -> Result<(), Violation> {
        let launch = || Launch::of(at, &self.schedule.steps);
        match &mut self.states[buffer.index()] {
            State::Elements(written) => {
                let elements = written.len();
                match usize::try_from(element).ok().and_then(|at| written.get_mut(at)) {
                    // What may or may not be changed is there already.
                    Some(false) if !sure => Err(Violation::UnwrittenElement { at: launch(), buffer, element }),
                    Some(true) if sure => Err(Violation::StoredTwice { at: launch(), buffer, element }),
                    Some(written) => {
                        *written = true;
                        Ok(())
                    }
                    None => Err(Violation::OutOfBounds { at: launch(), buffer, element, elements }),
                }
            }
            State::Given(changed) => match changed.insert(element, ()) {
                Some(()) if sure => Err(Violation::StoredTwice { at: launch(), buffer, element }),
                _ => Ok(()),
            },
            State::Unknown => Ok(()),
        }
    }

    fn outputs(&self) -> Result<(), Violation> {
        for (output, &buffer) in self.schedule.outputs.iter().enumerate() {
            if let State::Elements(written) = &self.states[buffer.index()]
                && let Some(element) = written.iter().position(|written| !written)
            {
                return Err(Violation::NoElement { output, buffer, element });
            }
        }
        Ok(())
    }
}
