//! The pipeline on one page: every stage from a function to launches, in order ([`STAGES`]), and the two ways through them
//! (`build`). Eager operations, compiled functions, frozen graphs, tuned programs and programs from disk all come by here.
//!
//! ```text
//!                                          ┌── restored from disk ─────────────────┐
//!  capture ▶ differentiate ▶ the passes ───┴▶ prepare ▶ … ▶ schedule ▶ … ▶ plan ▶ code ┴─▶ Program ──▶ tune
//!                                │                                                   ▲        ▲
//!                                └─ frozen inputs: split_frozen ─────────────────────┘ twice  └── pack
//! ```

pub(crate) mod dump;
mod options;
mod stages;
mod stored;

pub use options::{CompileOptions, FreezeOptions, PackWeights};
pub use stages::{STAGES, Stage};

pub(crate) use options::EAGER;

use crate::{Error, Result};
use kiln_ir::{Graph, NodeId, Source};
use kiln_kernels::{Form, InputLayout, Numerics, Observe, ScheduleOptions};
use kiln_passes::{MainInput, Pass, Split, SplitOptions, fold_norms, split_frozen};
use kiln_runtime::disk::{self, Kind};
use kiln_runtime::event::{self, Category, Event};
use kiln_runtime::{PackOptions, Packer, Program, phase};
use std::borrow::Cow;
use std::time::{Duration, Instant};

/// A captured graph, and how it is to be compiled.
pub(crate) struct Unit<'a> {
    pub(crate) graph: &'a Graph,
    /// The layout of each input.
    pub(crate) layouts: &'a [InputLayout],
    pub(crate) options: &'a CompileOptions,
    pub(crate) freeze: Option<Freeze<'a>>,
    /// The user's line that asks for it.
    pub(crate) at: &'a Source,
}

/// Inputs that change rarely.
#[derive(Clone, Copy)]
pub(crate) struct Freeze<'a> {
    /// Which inputs they are.
    pub(crate) inputs: &'a [bool],
    /// The numbers of those that are variables; programs that read the same ones share packed copies.
    pub(crate) variables: &'a [Option<u64>],
    pub(crate) options: &'a FreezeOptions,
}

/// What the pipeline made of a graph.
pub(crate) struct Built {
    /// The program that every call runs.
    pub(crate) program: Program,
    /// How long the passes took; zero for a program from disk.
    pub(crate) passes: Duration,
    pub(crate) frozen: Option<Frozen>,
}

/// What the pipeline made of frozen inputs.
pub(crate) struct Frozen {
    /// The graph in two parts, and where the inputs of each come from.
    pub(crate) split: Split,
    /// The program of the part that depends on frozen inputs alone, if there is one.
    pub(crate) prepare: Option<Program>,
    /// Fills the layouts that the backend's own code reads.
    pub(crate) packer: Packer,
}

/// How far a graph has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// No pass has run on it.
    Captured,
    /// It has been through the passes.
    Optimised,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Captured => "captured",
            Level::Optimised => "optimised",
        }
    }
}

/// Compiles a graph that is known to be valid.
pub(crate) fn build(unit: &Unit<'_>) -> Result<Built> {
    let Some(freeze) = &unit.freeze else {
        let (program, passes) = program(unit, unit.graph, unit.layouts, Level::Captured)?;
        return Ok(Built { program, passes, frozen: None });
    };
    let start = Instant::now();
    let split = phase::timed("passes", || split(unit, freeze, &mut |_, _| {}))?;
    let passes = start.elapsed();
    let prepare = match split.prepare.outputs() {
        [] => None,
        _ => {
            let layouts: Vec<InputLayout> = split.prepare_inputs.iter().map(|&i| unit.layouts[i].clone()).collect();
            Some(program(unit, &split.prepare, &layouts, Level::Optimised)?.0)
        }
    };
    let options = main_options(unit, freeze);
    let main = Unit { options: &options, freeze: None, ..*unit };
    let (main, _) = program(&main, &split.main, &main_layouts(unit, &split), Level::Optimised)?;
    let is_frozen = |from: &MainInput| match *from {
        MainInput::Given(input) => freeze.inputs.get(input) == Some(&true),
        MainInput::Prepared(_) => true,
    };
    let variable = |from: &MainInput| match *from {
        MainInput::Given(input) => freeze.variables.get(input).copied().flatten(),
        MainInput::Prepared(_) => None,
    };
    let may_pack = freeze.options.pack != PackWeights::Never;
    let can_pack: Vec<bool> = split.main_inputs.iter().map(|from| may_pack && is_frozen(from)).collect();
    let variables: Vec<Option<u64>> = split.main_inputs.iter().map(variable).collect();
    let how = PackOptions { always: freeze.options.pack == PackWeights::Always, variables: &variables };
    let packed = phase::timed("pack", || main.pack(&can_pack, &how));
    let (program, packer) = packed.map_err(|cause| failed(unit, cause))?;
    Ok(Built { program, passes, frozen: Some(Frozen { split, prepare, packer }) })
}

/// Runs the stages from graph to schedule once more and shows what each made; returns the graph that was scheduled.
pub(crate) fn show(unit: &Unit<'_>, observe: Observe<'_>) -> Result<Graph> {
    observe("capture", Form::Graph(unit.graph));
    let (graph, layouts, options) = match &unit.freeze {
        None => {
            let graph = optimise(unit, unit.graph.clone(), observe)?;
            (graph, Cow::Borrowed(unit.layouts), Cow::Borrowed(unit.options))
        }
        Some(freeze) => {
            let split = split(unit, freeze, observe)?;
            let layouts = main_layouts(unit, &split);
            (split.main, Cow::Owned(layouts), Cow::Owned(main_options(unit, freeze)))
        }
    };
    let target = crate::backend(unit.options.device).schedule_target();
    let schedule = ScheduleOptions { target, ..options.schedule.clone() };
    let shown = kiln_kernels::schedule_with(&graph, &layouts, &schedule, observe);
    shown.map_err(|cause| failed(unit, kiln_runtime::Error::Schedule { cause: Box::new(cause) }))?;
    Ok(graph)
}

/// The passes of the list, and what a budget of memory asks for.
pub(crate) fn optimise(unit: &Unit<'_>, graph: Graph, observe: Observe<'_>) -> Result<Graph> {
    let graph = passes(unit, graph, observe)?;
    within_budget(unit, graph, &unit.options.schedule, observe)
}

/// The graph with values computed again as far as a budget of memory asks for that and it helps.
fn within_budget(unit: &Unit<'_>, graph: Graph, schedule: &ScheduleOptions, observe: Observe<'_>) -> Result<Graph> {
    let Some(budget) = unit.options.memory_budget.filter(|_| !unit.options.no_passes) else { return Ok(graph) };
    let target = crate::backend(unit.options.device).schedule_target();
    let schedule = ScheduleOptions { target, ..schedule.clone() };
    let mut least: Option<usize> = None;
    let mut arena = |graph: &Graph| {
        // Whatever the layouts of inputs are, temporaries are about the same.
        let layouts: Vec<_> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
        let schedule = kiln_kernels::schedule(graph, &layouts, &schedule).ok()?;
        let bytes = kiln_kernels::plan(&schedule, &|_| None).ok()?.arena_bytes;
        least = Some(least.map_or(bytes, |least| least.min(bytes)));
        Some(bytes)
    };
    let rounds_each = schedule.numerics == Numerics::Eager;
    let smaller = kiln_passes::recompute(&graph, budget, rounds_each, &mut arena);
    let smaller = smaller.map_err(|cause| Error::Graph { cause: Box::new(cause) })?;
    let slow = |text| event::emit(Category::Perf, || Event::Slow { text, at: unit.at.clone() });
    match least {
        None => {
            slow(format!("the memory budget of {budget} bytes is ignored: the program is for sizes that are symbols"))
        }
        Some(bytes) if bytes > budget => {
            slow(format!(
                "temporaries take {bytes} bytes, more than the memory budget of {budget}: nothing else is cheap to compute again"
            ));
        }
        Some(_) => {}
    }
    if let Some(smaller) = &smaller {
        observe("recompute", Form::Graph(smaller));
    }
    Ok(smaller.unwrap_or(graph))
}

/// The passes of the list.
fn passes(unit: &Unit<'_>, graph: Graph, observe: Observe<'_>) -> Result<Graph> {
    let failed = |cause| Error::Passes { cause: Box::new(cause), at: unit.at.clone() };
    let target = crate::backend(unit.options.device).schedule_target();
    let options = kiln_passes::Options {
        keep_attention_gradients: target.attention_gradients,
        keep_bounds: target.visible_keys,
        split_phases: target.split_phases,
        depthwise_products: target.depthwise_products,
        separate_windows: target.separate_windows,
        ..Default::default()
    };
    match (unit.options.no_passes, Pass::named("decompose")) {
        (true, Some(decompose)) => {
            let graph = decompose.run(graph, &options).map_err(failed)?.graph;
            observe(decompose.name, Form::Graph(&graph));
            Ok(graph)
        }
        _ => {
            let observe = &mut |pass, graph: &Graph| observe(pass, Form::Graph(graph));
            kiln_passes::run_options(graph, &options, observe).map_err(failed)
        }
    }
}

/// Rows of products that run beside each other under `freeze`.
const ROWS_BESIDE: i64 = 16;

/// How the part of a graph that every call runs is compiled. Weights that are packed are each a launch's own.
fn main_options(unit: &Unit<'_>, freeze: &Freeze<'_>) -> CompileOptions {
    let mut options = unit.options.clone();
    if freeze.options.join && freeze.options.pack != PackWeights::Always {
        options.schedule.rows_beside = ROWS_BESIDE;
    }
    options
}

/// The passes, and the one for frozen inputs: what depends on them alone, and the rest.
pub(crate) fn split(unit: &Unit<'_>, freeze: &Freeze<'_>, observe: Observe<'_>) -> Result<Split> {
    let broken = |cause| Error::Graph { cause: Box::new(cause) };
    let cut = SplitOptions { growth: freeze.options.growth };
    // Where every op rounds as if it ran alone, weights stay as they are.
    let exact = unit.options.no_passes || unit.options.schedule.numerics == Numerics::Eager;
    let folded = if exact { None } else { fold_norms(unit.graph, freeze.inputs).map_err(broken)? };
    if let Some(folded) = &folded {
        observe("fold_norms", Form::Graph(folded));
    }
    let graph = passes(unit, folded.unwrap_or_else(|| unit.graph.clone()), observe)?;
    let mut split = split_frozen(&graph, freeze.inputs, &cut).map_err(broken)?;
    // What is prepared is no temporary: a budget is that of what every call runs.
    split.main = within_budget(unit, split.main, &main_options(unit, freeze).schedule, observe)?;
    observe("split_frozen", Form::Graph(&split.prepare));
    observe("split_frozen", Form::Graph(&split.main));
    Ok(split)
}

/// Returns the layouts of the main program's inputs.
fn main_layouts(unit: &Unit<'_>, split: &Split) -> Vec<InputLayout> {
    let layout = |(from, &id): (&MainInput, &NodeId)| match *from {
        MainInput::Given(input) => unit.layouts[input].clone(),
        MainInput::Prepared(_) => InputLayout::contiguous(split.main.ty(id)),
    };
    split.main_inputs.iter().zip(split.main.inputs()).map(layout).collect()
}

/// The program of a graph, and how long the passes took: from disk if it is there, else scheduled, planned, compiled and kept there.
fn program(unit: &Unit<'_>, graph: &Graph, layouts: &[InputLayout], level: Level) -> Result<(Program, Duration)> {
    let backend = crate::backend(unit.options.device);
    let store = disk::store().filter(|_| unit.options.disk_cache);
    let stored = store.map(|store| {
        let key = phase::timed("key", || stored::key(graph, level, layouts, &*backend, unit.options));
        (store, key)
    });
    if let Some((store, key)) = &stored
        && let Some(program) = stored::find(store, key, graph, layouts, &backend)
    {
        if event::is_enabled(Category::Fusion) {
            program.report_fusion(&*optimised(unit, graph, level)?);
        }
        return Ok((program, Duration::ZERO));
    }
    let start = Instant::now();
    let (scheduled, origin) = phase::timed("passes", || match &stored {
        Some(_) => optimised_with_origin(unit, graph, level),
        None => Ok((optimised(unit, graph, level)?, Vec::new())),
    })?;
    let passes = start.elapsed();
    let keep = unit.options.keep(&*backend);
    let built = Program::build_kept(&scheduled, layouts, backend, &unit.options.schedule, keep);
    let program = built.map_err(|cause| failed(unit, cause))?;
    if let Some((store, key)) = stored {
        phase::timed("store", || {
            store.put(Kind::Program, &stored::described(key, graph, &program), &program.save(&scheduled, &origin));
        });
    }
    Ok((program, passes))
}

/// The graph after the passes.
fn optimised<'g>(unit: &Unit<'_>, graph: &'g Graph, level: Level) -> Result<Cow<'g, Graph>> {
    Ok(match level {
        Level::Optimised => Cow::Borrowed(graph),
        Level::Captured => Cow::Owned(optimise(unit, graph.clone(), &mut |_, _| {})?),
    })
}

/// The graph after the passes, and for each node the node of the given graph that it comes from: a stored program has no lines of its own.
fn optimised_with_origin<'g>(
    unit: &Unit<'_>,
    graph: &'g Graph,
    level: Level,
) -> Result<(Cow<'g, Graph>, Vec<Option<NodeId>>)> {
    if level == Level::Optimised {
        return Ok((Cow::Borrowed(graph), graph.iter().map(|(id, _)| Some(id)).collect()));
    }
    match optimise(unit, stored::tagged(graph), &mut |_, _| {}) {
        Ok(tagged) => {
            let (optimised, origin) = stored::untagged(tagged, graph);
            Ok((Cow::Owned(optimised), origin))
        }
        // Once more, for an error with the user's lines.
        Err(_) => Ok((optimised(unit, graph, level)?, Vec::new())),
    }
}

fn failed(unit: &Unit<'_>, cause: kiln_runtime::Error) -> Error {
    let op = if unit.freeze.is_some() { "freeze" } else { "compile" };
    Error::Runtime { op: op.into(), cause: Box::new(cause), at: unit.at.clone() }
}
