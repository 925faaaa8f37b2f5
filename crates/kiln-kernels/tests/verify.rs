//! The verifiers of schedules and plans detect every mutation: schedules of random graphs are changed one thing at a time, and
//! each change that makes them wrong is refused.

use kiln_ir::decompose::decompose;
use kiln_ir::examples::Random;
use kiln_ir::generate::{self, symbol_value};
use kiln_ir::{Graph, Op};
use kiln_kernels::kernel::{Access, InstKind, Kernel, KernelBody, RoutineBody, TurnBuffer};
use kiln_kernels::verify::{self, Violation};
use kiln_kernels::{BufferId, Error, InputLayout, Plan, Role, Schedule, ScheduleOptions, Step, plan, schedule};
use std::collections::HashMap;
use std::sync::Arc;

/// A valid schedule with its graph and its plan.
struct Case {
    graph: Graph,
    schedule: Schedule,
    plan: Plan,
}

impl Case {
    fn of(graph: Graph) -> Option<Case> {
        let graph = decompose(&graph, &|op| !matches!(op, Op::Conv(_) | Op::ReduceWindow { .. })).unwrap();
        let layouts: Vec<InputLayout> =
            graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
        let schedule = schedule(&graph, &layouts, &ScheduleOptions::default()).ok()?;
        let plan = plan(&schedule, &symbol_value).unwrap();
        Some(Case { graph, schedule, plan })
    }

    fn parse(text: &str) -> Case {
        Case::of(Graph::parse(text).unwrap()).unwrap()
    }

    /// What the verifiers say to a changed schedule.
    fn verify(&self, schedule: &Schedule, plan: &Plan) -> Result<(), Violation> {
        verify::order(&self.graph, schedule)?;
        verify::memory(schedule, plan, &symbol_value)
    }

    /// The verdict on a changed schedule, planned anew.
    fn changed(&self, change: impl FnOnce(&mut Schedule)) -> Result<(), String> {
        let mut schedule = self.schedule.clone();
        change(&mut schedule);
        verify::order(&self.graph, &schedule).map_err(|violation| violation.to_string())?;
        match plan(&schedule, &symbol_value) {
            Ok(plan) => verify::memory(&schedule, &plan, &symbol_value).map_err(|violation| violation.to_string()),
            // The plan is verified as it is made.
            Err(error) => Err(error.to_string()),
        }
    }
}

fn cases(count: u64) -> impl Iterator<Item = (u64, Case)> {
    (0..count).filter_map(|seed| {
        let options = generate::Options { max_elements: 256, nodes: 16, sharing: 0.6, ..Default::default() };
        Some((seed, Case::of(generate::graph(seed, &options))?))
    })
}

fn access(step: &Step, buffer: BufferId, wanted: fn(Access) -> bool) -> bool {
    step.args.iter().zip(&step.kernel.buffers).any(|(arg, decl)| *arg == buffer && wanted(decl.access))
}

fn writes(step: &Step, buffer: BufferId) -> bool {
    access(step, buffer, |access| access != Access::Read)
}

fn size(schedule: &Schedule, buffer: BufferId) -> i64 {
    schedule.buffers[buffer.index()].elements.eval(&symbol_value).unwrap()
}

/// True if two launches may not change places: one reads, with places known without data, what the other wrote.
fn feeds(schedule: &Schedule, first: &Step, second: &Step) -> bool {
    let parts = first.writes.iter().flat_map(|w| w.parts_of.iter().map(move |&node| (node, w.buffer)));
    let read = |(node, buffer)| second.reads.iter().any(|r| (r.node, r.buffer) == (node, buffer));
    parts.into_iter().any(|part| read(part) && size(schedule, part.1) > 0)
}

#[test]
fn random_schedules_are_valid() {
    let mut steps = 0;
    for (seed, case) in cases(600) {
        case.verify(&case.schedule, &case.plan).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", case.schedule));
        steps += case.schedule.steps.len();
    }
    assert!(steps > 2000, "{steps}");
}

#[test]
fn steps_in_another_order_are_refused() {
    let mut tried = 0;
    for (seed, case) in cases(400) {
        for at in 1..case.schedule.steps.len() {
            for before in 0..at {
                let steps = &case.schedule.steps;
                if !feeds(&case.schedule, &steps[before], &steps[at]) {
                    continue;
                }
                tried += 1;
                let moved = case.changed(|schedule| schedule.steps[before..=at].rotate_right(1));
                assert!(moved.is_err(), "seed {seed}: step {at} before {before}\n{}", case.schedule);
                let swapped = case.changed(|schedule| schedule.steps.swap(before, at));
                assert!(swapped.is_err(), "seed {seed}: steps {before} and {at} swapped\n{}", case.schedule);
            }
        }
    }
    assert!(tried > 300, "{tried}");
}

fn has_choices(kernel: &Kernel) -> bool {
    let KernelBody::Repeat(body) = &kernel.body else { return false };
    body.is_conditional || body.choice.is_some() || body.launches.iter().any(|launch| has_choices(&launch.kernel))
}

/// Whether a launch of a loop reads an argument of it.
fn is_read(kernel: &Kernel, argument: usize) -> bool {
    let KernelBody::Repeat(body) = &kernel.body else { return kernel.buffers[argument].access != Access::Write };
    let is_it = |place: &TurnBuffer| match place {
        TurnBuffer::Whole { buffer, .. } | TurnBuffer::Row { buffer, .. } => *buffer == argument,
        TurnBuffer::Carried(at) => body.carried[*at].first == argument,
        TurnBuffer::Next(_) => false,
    };
    body.launches.iter().any(|launch| {
        let mut own = launch.args.iter().enumerate().filter(|(_, place)| is_it(&body.buffers[**place]));
        own.any(|(number, _)| is_read(&launch.kernel, number))
    })
}

/// Whether a buffer is written in parts and given to a loop that need not read all of them: one until a condition fails or a choice, which
/// depend on data, or one whose body uses nothing of it.
fn is_parts_of_loop(schedule: &Schedule, buffer: BufferId) -> bool {
    let writers = schedule.steps.iter().filter(|step| writes(step, buffer)).count();
    let mut readers = schedule.steps.iter().filter(|step| access(step, buffer, |access| access == Access::Read));
    let may_not_read = |step: &Step| {
        let own = |argument: usize| step.args[argument] == buffer && is_read(&step.kernel, argument);
        has_choices(&step.kernel) || !(0..step.args.len()).any(own)
    };
    writers > 1 && readers.any(may_not_read)
}

/// Whether dropping a launch leaves something undone: it stores, at places known without data, what is returned or read.
fn is_needed(schedule: &Schedule, at: usize) -> bool {
    let step = &schedule.steps[at];
    let indirect = step.kernel.insts().any(|inst| match &inst.kind {
        InstKind::Store { place, guard, .. } => !place.indirect.is_empty() || guard.is_some(),
        _ => false,
    });
    // A scatter may write nothing at all.
    let scatter = matches!(step.kernel.body, KernelBody::Routine(RoutineBody::Scatter { .. }));
    let is_wanted = |buffer: BufferId| match schedule.buffers[buffer.index()].role {
        Role::Output(_) => true,
        Role::Temp if is_parts_of_loop(schedule, buffer) => false,
        Role::Temp => schedule.steps[at + 1..].iter().any(|later| later.args.contains(&buffer)),
        _ => false,
    };
    let mut written = step.args.iter().filter(|buffer| writes(step, **buffer) && size(schedule, **buffer) > 0);
    !indirect && !scatter && written.any(|buffer| is_wanted(*buffer))
}

#[test]
fn dropped_steps_are_missed() {
    let mut tried = 0;
    for (seed, case) in cases(400) {
        for at in (0..case.schedule.steps.len()).filter(|&at| is_needed(&case.schedule, at)) {
            tried += 1;
            let dropped = case.changed(|schedule| drop(schedule.steps.remove(at)));
            assert!(dropped.is_err(), "seed {seed}: without step {at}\n{}", case.schedule);
        }
    }
    assert!(tried > 500, "{tried}");
}

#[test]
fn doubled_steps_are_refused() {
    let mut tried = 0;
    for (seed, case) in cases(400) {
        for at in 0..case.schedule.steps.len() {
            let step = &case.schedule.steps[at];
            if step.writes.is_empty() || step.writes.iter().all(|w| size(&case.schedule, w.buffer) == 0) {
                continue;
            }
            tried += 1;
            let doubled = case.changed(|schedule| schedule.steps.push(schedule.steps[at].clone()));
            assert!(doubled.is_err(), "seed {seed}: step {at} twice\n{}", case.schedule);
        }
    }
    assert!(tried > 500, "{tried}");
}

/// Every argument exchanged for another buffer of the same type and size.
#[test]
fn exchanged_arguments_are_refused() {
    let (mut tried, mut missed) = (0, HashMap::<u64, usize>::new());
    for (seed, case) in cases(300) {
        for at in 0..case.schedule.steps.len() {
            for arg in 0..case.schedule.steps[at].args.len() {
                let (own, access) =
                    (case.schedule.steps[at].args[arg], case.schedule.steps[at].kernel.buffers[arg].access);
                // What is written elsewhere is missed where it was to be.
                let decl = &case.schedule.buffers[own.index()];
                if access != Access::Write
                    || !matches!(decl.role, Role::Temp | Role::Output(_))
                    || size(&case.schedule, own) == 0
                    || is_parts_of_loop(&case.schedule, own)
                {
                    continue;
                }
                for other in 0..case.schedule.buffers.len() {
                    let (to, other) = (&case.schedule.buffers[other], BufferId(other as u32));
                    if other == own || (to.dtype, &to.elements) != (decl.dtype, &decl.elements) {
                        continue;
                    }
                    // Any other memory that nothing else uses is as good for what a loop has for itself.
                    let step = &case.schedule.steps[at];
                    let is_scratch = matches!(step.kernel.body, KernelBody::Repeat(_))
                        && !step.writes.iter().any(|written| written.buffer == own);
                    if is_scratch && !step.args.contains(&other) {
                        continue;
                    }
                    tried += 1;
                    let changed = case.changed(|schedule| schedule.steps[at].args[arg] = other);
                    if changed.is_ok() {
                        *missed.entry(seed).or_default() += 1;
                    }
                }
            }
        }
    }
    assert!(tried > 300 && missed.is_empty(), "{tried} tried, missed: {missed:?}");
}

#[test]
fn changed_places_are_refused() {
    let mut tried = 0;
    for (seed, case) in cases(300) {
        for at in 0..case.schedule.steps.len() {
            let step = &case.schedule.steps[at];
            let outputs = |buffer: usize| {
                let id = step.args[buffer];
                matches!(case.schedule.buffers[id.index()].role, Role::Temp | Role::Output(_))
                    && size(&case.schedule, id) > 0
            };
            let KernelBody::Loop(body) = &step.kernel.body else { continue };
            let moves = body.stages.iter().flat_map(|stage| &stage.insts).any(|inst| match &inst.kind {
                InstKind::Store { place, guard: None, .. } => place.indirect.is_empty() && outputs(place.buffer),
                _ => false,
            });
            if !moves {
                continue;
            }
            tried += 1;
            // The first such store goes one place further: beyond the end, over another's, or leaves the first element out.
            let changed = case.changed(|schedule| {
                let kernel = Arc::make_mut(&mut schedule.steps[at].kernel);
                let KernelBody::Loop(body) = &mut kernel.body else { return };
                let mut insts = body.stages.iter_mut().flat_map(|stage| &mut stage.insts);
                let store = insts.find_map(|inst| match &mut inst.kind {
                    InstKind::Store { place, guard: None, .. }
                        if place.indirect.is_empty() && outputs(place.buffer) =>
                    {
                        Some(place)
                    }
                    _ => None,
                });
                if let Some(place) = store {
                    place.offset = &place.offset + 1;
                }
            });
            assert!(changed.is_err(), "seed {seed}: step {at}\n{}", case.schedule);
        }
    }
    assert!(tried > 300, "{tried}");
}

#[test]
fn plans_that_overlap_are_refused() {
    let mut random = Random(1);
    let (mut shared, mut outside, mut skewed) = (0, 0, 0);
    for (seed, case) in cases(500) {
        let used = |b: &usize| case.schedule.steps.iter().any(|step| step.args.contains(&BufferId(*b as u32)));
        let temps: Vec<usize> = (0..case.plan.offsets.len())
            .filter(|b| case.plan.offsets[*b].is_some() && case.plan.bytes[*b] > 0 && used(b))
            .collect();
        let life = |b: usize| {
            let uses = |at: &usize| case.schedule.steps[*at].args.contains(&BufferId(b as u32));
            let mut uses = (0..case.schedule.steps.len()).filter(uses);
            let first = uses.next().unwrap();
            (first, uses.next_back().unwrap_or(first))
        };
        for &one in &temps {
            let mut plan = case.plan.clone();
            plan.offsets[one] = Some(case.plan.arena_bytes.next_multiple_of(64));
            assert!(matches!(case.verify(&case.schedule, &plan), Err(Violation::Misplaced { .. })), "seed {seed}");
            plan.offsets[one] = None;
            assert!(matches!(case.verify(&case.schedule, &plan), Err(Violation::Misplaced { .. })), "seed {seed}");
            outside += 1;
            plan.offsets[one] = case.plan.offsets[one].map(|offset| offset + 1 + random.below(63));
            skewed += usize::from(case.verify(&case.schedule, &plan).is_err());
            for &other in temps.iter().filter(|&&other| other != one) {
                let ((first, last), (begin, end)) = (life(one), life(other));
                if last < begin || end < first || case.plan.bytes[one] > case.plan.bytes[other] {
                    continue;
                }
                // Both are alive: sharing the place of the larger one is wrong.
                let mut plan = case.plan.clone();
                plan.offsets[one] = plan.offsets[other];
                assert!(matches!(case.verify(&case.schedule, &plan), Err(Violation::Shared { .. })), "seed {seed}");
                shared += 1;
            }
        }
    }
    assert!(shared > 100 && outside > 300 && skewed == outside, "{shared} {outside} {skewed}");
}

/// An update that is computed in place, with a reader of the old value before it.
const UPDATE: &str = "graph(%0: f32[8], %1: f32[8, 8]) {
  %2: f32[8] = scan_sum %0 {axis=0, reverse=false}
  %3: f32[8] = dot %1, %0 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %4: f32[8] = scan_max %3 {axis=0, reverse=false}
  %5: f32[8] = exp %4
  return %2, %5 -> input 0, %4
}";

#[test]
fn an_update_before_the_last_reader_of_the_old_value_is_refused() {
    let case = Case::parse(UPDATE);
    let input = BufferId(0);
    let update = case.schedule.steps.iter().position(|step| writes(step, input)).expect("an update in place");
    let readers = (0..update).filter(|&at| access(&case.schedule.steps[at], input, |access| access == Access::Read));
    let mut refused = 0;
    for reader in readers.collect::<Vec<_>>() {
        let late = case.changed(|schedule| schedule.steps[reader..=update].rotate_left(1));
        assert!(late.is_err(), "step {reader} after {update}\n{}", case.schedule);
        refused += 1;
    }
    assert!(refused > 0, "{}", case.schedule);
    let mut without = case.schedule.clone();
    without.steps.remove(update);
    let missing = verify::order(&case.graph, &without);
    assert!(matches!(missing, Err(Violation::NoOutput { output: 1, buffer: BufferId(0) })), "{missing:?}");
}

/// Each element of the input is read by the iteration that replaces it; once reversed, by another one.
#[test]
fn reading_what_another_iteration_replaces_is_a_race() {
    let case = Case::parse(
        "graph(%0: f32[8]) {
           %1: f32[8] = exp %0
           return %1 -> input 0
         }",
    );
    let changed = case.changed(|schedule| {
        let kernel = Arc::make_mut(&mut schedule.steps[0].kernel);
        let KernelBody::Loop(body) = &mut kernel.body else { panic!("a loop") };
        for inst in body.stages.iter_mut().flat_map(|stage| &mut stage.insts) {
            if let InstKind::Load { place, .. } = &mut inst.kind {
                place.offset = kiln_ir::Dim::from(7) - &place.offset;
            }
        }
    });
    assert!(changed.as_ref().is_err_and(|text| text.contains("in one iteration")), "{changed:?}");
}

#[test]
fn a_violation_names_step_kernel_and_buffer() {
    let case = Case::parse(UPDATE);
    let mut reversed = case.schedule.clone();
    reversed.steps.reverse();
    let violation = verify::order(&case.graph, &reversed).unwrap_err();
    assert!(violation.to_string().starts_with("step 0 ("), "{violation}");
    let error = Error::Invalid { stage: "write_updates", violation: Box::new(violation.clone()) };
    assert_eq!(error.to_string(), format!("write_updates: {violation}"));
    assert!(violation.to_string().contains("buffer "), "{violation}");
}

/// The rows of an update that the scheduler puts together from parts of its own are read after it: that is the new value.
#[test]
fn the_new_value_of_an_update_made_of_parts_may_be_read() {
    let case = Case::parse(
        "graph(%2: f32[2, 256]) {
           %0: u8[2, 144] = full {value=1}
           %1: f32[2, 256] = dequantize %0 {format=q4_k}
           %3: f32[2, 86, 1] = unfold %1 {axis=1, size=1, stride=3, dilation=2}
           return %1 -> input 0, %2, %3
         }",
    );
    let memory = |schedule: &Schedule| verify::memory(schedule, &case.plan, &symbol_value);
    memory(&case.schedule).unwrap_or_else(|e| panic!("{e}\n{}", case.schedule));
    let input = BufferId(0);
    let update = case.schedule.steps.iter().position(|step| writes(step, input)).expect("an update in place");
    let initial = |step: &Step| step.reads.iter().any(|read| read.initial && read.buffer == input);
    let reader = case.schedule.steps.iter().position(initial).expect("a copy of the old value");
    let mut late = case.schedule.clone();
    late.steps[reader..=update].rotate_left(1);
    assert!(matches!(memory(&late), Err(Violation::OverwrittenElement { .. })), "{late}");
}
