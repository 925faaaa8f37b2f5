//! One account of a compiled function: graphs with the user's lines, kernels with their ops, bytes and measured times, memory,
//! what was not fused and why, guards, breaks, recompiles and where the first call's time went. As text (`Display`) and as
//! one HTML page that needs nothing else ([`Explanation::to_html`]).

mod html;
mod measure;
mod memory;
mod source;
mod text;

pub use measure::{Machine, Measured, machine};

use crate::Result;
use kiln_ir::{Graph, NodeId, Op, Source, Symbol};
use kiln_kernels::kernel::KernelBody;
use kiln_kernels::schedule::Role;
use kiln_runtime::{InputView, Program};
use std::sync::Arc;
use std::time::Duration;

/// The explanation of a compiled function or graph. `Display` is a report for the terminal.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The name of the function or graph.
    pub name: String,
    /// The device it was measured on.
    pub machine: Machine,
    /// Its graphs, in the order they ran.
    pub segments: Vec<Segment>,
    /// The graph breaks of the function.
    pub breaks: Vec<Break>,
    /// The programs, each with its guards as text.
    pub programs: Vec<Vec<String>>,
    /// Why it was recompiled, in order.
    pub recompiles: Vec<String>,
    /// Other events during the call: fallbacks, slow paths, cache hits and misses.
    pub remarks: Vec<String>,
    /// The phases of the first call, in order.
    pub first_call: Vec<(String, Duration)>,
    /// The time of a call once everything is compiled; `None` for a function with side effects, which is called once.
    pub call: Option<Measured>,
}

/// A graph break.
#[derive(Debug, Clone)]
pub struct Break {
    /// What the function does there.
    pub what: String,
    /// What the user can do about it.
    pub fix: String,
    /// The user's line.
    pub at: Source,
    /// What it costs a call, where that was measured.
    pub cost: Option<BreakCost>,
}

/// The cost of a graph break: what happens between two graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakCost {
    /// The time from the end of a graph to the beginning of the next.
    pub took: Duration,
    /// Bytes that are read, or that a disabled part gives.
    pub bytes: usize,
}

/// One graph with its program.
#[derive(Debug, Clone)]
pub struct Segment {
    /// The target it runs on.
    pub target: String,
    /// A description of each input.
    pub inputs: Vec<String>,
    /// The graph as it was captured.
    pub captured: Graph,
    /// The passes that changed it, each with the number of nodes after it.
    pub passes: Vec<(String, usize)>,
    /// The graph that was cut into kernels. Nodes below refer to this graph.
    pub graph: Graph,
    /// Its launches, in order.
    pub kernels: Vec<Kernel>,
    /// Its memory.
    pub buffers: Vec<Memory>,
    /// Bytes of the arena that temporaries share.
    pub arena_bytes: usize,
    /// Bytes that temporaries would take without sharing.
    pub temp_bytes: usize,
    /// The pairs of nodes that were not fused and why, the most bytes first.
    pub not_fused: Vec<NotFused>,
    /// How long a run of the whole program takes.
    pub run: Measured,
    /// How long passes, schedule and code took, and how many kernels were compiled.
    pub made: Made,
}

/// The time that making a program took, by phase.
#[derive(Debug, Clone, Copy, Default)]
pub struct Made {
    /// Reading it from the disk cache, including its code; then there are no passes and no schedule.
    pub read: Duration,
    /// Graph to graph.
    pub passes: Duration,
    /// Graph to kernels.
    pub schedule: Duration,
    /// Kernels to code, or looking it up.
    pub code: Duration,
    /// Kernels whose code was not in a cache.
    pub compiled: usize,
}

impl Made {
    /// Returns the sum of the phases.
    pub fn total(&self) -> Duration {
        self.read + self.passes + self.schedule + self.code
    }

    /// Returns the sum of both.
    pub fn and(self, other: Made) -> Made {
        Made {
            read: self.read + other.read,
            passes: self.passes + other.passes,
            schedule: self.schedule + other.schedule,
            code: self.code + other.code,
            compiled: self.compiled + other.compiled,
        }
    }

    /// Returns the phases that took time, by name.
    pub fn parts(self) -> Vec<(String, Duration)> {
        let parts = [("read", self.read), ("passes", self.passes), ("schedule", self.schedule), ("code", self.code)];
        let taken = parts.into_iter().filter(|(_, took)| !took.is_zero());
        taken.map(|(name, took)| (name.to_owned(), took)).collect()
    }
}

/// One launch.
#[derive(Debug, Clone)]
pub struct Kernel {
    /// A short name of its ops.
    pub label: String,
    /// "pointwise", "reduction", "matmul", "attention" or "routine".
    pub kind: &'static str,
    /// The nodes of the graph that it computes.
    pub nodes: Vec<NodeId>,
    /// The numbers of the buffers it uses.
    pub args: Vec<usize>,
    /// The numbers of the graph's inputs among them.
    pub inputs: Vec<usize>,
    /// The least bytes it has to read.
    pub read: u64,
    /// The least bytes it has to write.
    pub written: u64,
    /// Arithmetic operations.
    pub flops: u64,
    /// Its time: the median of several runs on the live inputs.
    pub time: Duration,
    /// The fastest of these runs.
    pub fastest: Duration,
    /// Bytes of machine code of its own.
    pub code_bytes: usize,
    /// The kernel's text.
    pub text: String,
    /// The backend's intermediate form.
    pub intermediate: Option<String>,
    /// Its machine code.
    pub assembly: Option<String>,
    /// An earlier launch of the same kernel.
    pub same_as: Option<usize>,
    /// The variant it runs, where that is not the backend's default: what was tuned.
    pub variant: Option<String>,
}

/// A buffer of a program.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Its name in the schedule.
    pub name: String,
    /// Element type and count.
    pub ty: String,
    /// Bytes.
    pub bytes: usize,
    /// Its offset in the arena, for temporaries.
    pub offset: Option<usize>,
    /// The first and last launch that use it.
    pub life: Option<(usize, usize)>,
}

/// Two nodes that were not fused into one kernel.
#[derive(Debug, Clone)]
pub struct NotFused {
    /// The node whose value goes through memory.
    pub producer: NodeId,
    /// The node that reads it.
    pub consumer: NodeId,
    /// The reason.
    pub reason: String,
    /// The bytes that go through memory because of it.
    pub bytes: Option<u64>,
}

impl Kernel {
    /// Bytes a second, in GB/s.
    pub fn bandwidth(&self) -> f64 {
        per_nanosecond(self.read.saturating_add(self.written), self.time)
    }

    /// Operations a second, in billions.
    pub fn throughput(&self) -> f64 {
        per_nanosecond(self.flops, self.time)
    }
}

fn per_nanosecond(amount: u64, time: Duration) -> f64 {
    let nanos = time.as_nanos();
    if nanos == 0 { 0.0 } else { amount as f64 / nanos as f64 }
}

impl Segment {
    /// The measured time of all kernels.
    pub fn kernel_time(&self) -> Duration {
        self.kernels.iter().map(|kernel| kernel.time).sum()
    }

    /// What the variables and held tensors that a kernel uses are called: the weights' names in a compiled module.
    pub fn weights_of(&self, kernel: &Kernel) -> Vec<&str> {
        let names = kernel.inputs.iter().filter_map(|&input| self.inputs.get(input));
        let mut weights: Vec<&str> = names.filter_map(|name| name.strip_prefix("variable ")).collect();
        weights.iter_mut().for_each(|name| *name = name.split(':').next().unwrap_or(name));
        weights.retain(|name| *name != "var");
        weights.dedup();
        weights
    }

    /// The user's lines of a kernel, each once, in the order of its nodes. Constants, which equal ones of other lines may stand
    /// for, have none.
    pub fn lines_of(&self, kernel: &Kernel) -> Vec<Source> {
        let mut lines: Vec<Source> = Vec::new();
        for &id in &kernel.nodes {
            let node = self.graph.node(id);
            let constant = matches!(node.op, Op::Full { .. } | Op::Constant(_));
            if !constant && !node.source.is_unknown() && !lines.contains(&node.source) {
                lines.push(node.source.clone());
            }
        }
        lines
    }
}

impl Explanation {
    /// The explanation of one compiled graph.
    pub fn of_graph(name: &str, machine: Machine, segment: Segment) -> Explanation {
        Explanation {
            name: if name.is_empty() { "graph".to_owned() } else { name.to_owned() },
            machine,
            call: Some(segment.run),
            first_call: segment.made.parts(),
            segments: vec![segment],
            breaks: Vec::new(),
            programs: Vec::new(),
            recompiles: Vec::new(),
            remarks: Vec::new(),
        }
    }
}

/// A compiled graph to be explained: the graphs on its way, and the program.
pub struct Subject<'a> {
    /// The graph as it was captured.
    pub captured: &'a Graph,
    /// The passes that changed it, each with the number of nodes after it.
    pub passes: Vec<(String, usize)>,
    /// How long the passes took when the program was made.
    pub passes_took: Duration,
    /// The graph after the passes.
    pub graph: Graph,
    /// What was made of it.
    pub program: &'a Program,
}

impl Segment {
    /// Explains a compiled graph and measures its kernels on these inputs, which are not changed. `names` are the names of
    /// the inputs; if empty, they are numbered.
    ///
    /// ```
    /// use kiln_inspect::explain::{Explanation, Segment, Subject, machine};
    /// use kiln_ir::{DType, Graph};
    /// use kiln_kernels::{InputLayout, ScheduleOptions};
    /// use kiln_runtime::{Backend, InputView, Program, ReferenceBackend};
    /// let graph = Graph::parse("graph(%0: f32[2]) {
    ///   %1: f32[2] = exp %0
    ///   return %1
    /// }").unwrap();
    /// let layouts = [InputLayout::contiguous(graph.ty(graph.inputs()[0]))];
    /// let program = Program::build(&graph, &layouts, std::sync::Arc::new(ReferenceBackend), &ScheduleOptions::default())?;
    /// let buffer = ReferenceBackend.allocate(8)?;
    /// let view = InputView { buffer: &buffer, dtype: DType::F32, shape: &[2], strides: &[1], offset: 0 };
    /// let (passes, passes_took) = Default::default();
    /// let subject = Subject { captured: &graph, passes, passes_took, graph: graph.clone(), program: &program };
    /// let segment = Segment::measured(subject, &[view], vec!["x".to_owned()])?;
    /// let explanation = Explanation::of_graph("exp", machine(&ReferenceBackend)?, segment);
    /// assert_eq!(explanation.segments[0].kernels[0].label, "exp");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn measured(subject: Subject<'_>, views: &[InputView<'_>], names: Vec<String>) -> Result<Segment> {
        let Subject { captured, passes, passes_took, graph, program } = subject;
        let schedule = program.schedule();
        let mut stopped = program.inspect(views)?;
        let (times, run) = measure::kernels(&mut stopped)?;
        let size = |symbol: Symbol| stopped.size(symbol);
        let variants = program.variants(views)?;
        let mut kernels: Vec<Kernel> = Vec::with_capacity(schedule.steps.len());
        for (number, (step, planned)) in program.steps().iter().zip(&schedule.steps).enumerate() {
            let work = schedule.work(planned, &size).unwrap_or_default();
            let same_as = schedule.steps[..number].iter().position(|s| Arc::ptr_eq(&s.kernel, &planned.kernel));
            kernels.push(Kernel {
                label: step.label().to_owned(),
                kind: kind(&planned.kernel.body),
                nodes: step.nodes().to_vec(),
                args: planned.args.iter().map(|arg| arg.index()).collect(),
                inputs: planned.args.iter().filter_map(|arg| schedule.buffers[arg.index()].role.input()).collect(),
                read: work.read,
                written: work.written,
                flops: work.flops,
                time: times[number].median,
                fastest: times[number].fastest,
                code_bytes: step.code().code_bytes(),
                text: step.kernel().to_string(),
                intermediate: step.code().intermediate(),
                assembly: step.code().disassembly(),
                same_as,
                variant: variants.get(number).filter(|v| !v.is_default()).map(ToString::to_string),
            });
        }
        let plan = kiln_kernels::plan(schedule, &size).unwrap_or_default();
        let buffers = schedule.buffers.iter().enumerate().map(|(index, decl)| {
            let uses = |kernel: &Kernel| kernel.args.contains(&index);
            Memory {
                name: schedule.buffer_name(index),
                ty: format!("{}[{}]", decl.dtype, decl.elements),
                bytes: plan.bytes.get(index).copied().unwrap_or(0),
                offset: plan.offsets.get(index).copied().flatten().filter(|_| decl.role == Role::Temp),
                life: kernels.iter().position(uses).zip(kernels.iter().rposition(uses)),
            }
        });
        let buffers = buffers.collect();
        let bytes = |id: NodeId| {
            let ty = graph.ty(id);
            let elements = usize::try_from(ty.elements().eval(&size)?).ok()?;
            ty.dtype.bytes_for(elements).map(|n| n as u64)
        };
        let not_fused = schedule.notes.iter().map(|note| NotFused {
            producer: note.producer,
            consumer: note.consumer,
            reason: note.reason.to_string(),
            bytes: bytes(note.producer),
        });
        // What costs most comes first.
        let mut not_fused: Vec<NotFused> = not_fused.collect();
        not_fused.sort_by_key(|pair| std::cmp::Reverse(pair.bytes));
        let made = program.times();
        let names =
            if names.is_empty() { (0..views.len()).map(|number| format!("input {number}")).collect() } else { names };
        Ok(Segment {
            target: program.backend().target(),
            inputs: names,
            captured: captured.clone(),
            passes,
            kernels,
            buffers,
            arena_bytes: plan.arena_bytes,
            temp_bytes: plan.temp_bytes,
            not_fused,
            run,
            made: Made {
                read: made.read,
                passes: passes_took,
                schedule: made.schedule,
                code: made.code,
                compiled: made.compiled,
            },
            graph,
        })
    }
}

fn kind(body: &KernelBody) -> &'static str {
    match body {
        KernelBody::Loop(body) if body.stages.iter().any(|stage| !stage.reductions.is_empty()) => "reduction",
        KernelBody::Loop(_) => "pointwise",
        KernelBody::Matmul(_) => "matmul",
        KernelBody::Attention(_) => "attention",
        KernelBody::AttentionBackward(_) => "attention backward",
        KernelBody::Routine(_) => "routine",
        KernelBody::Repeat(_) => "loop",
        KernelBody::Parallel(_) => "parallel",
    }
}
