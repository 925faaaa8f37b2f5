//! Every kernel of a program against the reference interpreter, on live inputs.
//!
//! The interpreter runs the graph, and what it says of every node that goes through memory is the truth. Each launch then gets
//! true inputs, and what it writes is held against the truth. So a kernel that is found wrong is wrong by itself, and the
//! first one is where to look. How far a right kernel may be off is found by [`crate::bounds`]: by perturbing the
//! interpreter's results by as much as each op of the kernel may round.

mod run;
mod text;

use crate::{Deviation, Result};
use kiln_ir::{Graph, HostTensor, NodeId, Source};
use kiln_runtime::event::{self, Category, Event};
use kiln_runtime::{InputView, Program};
use std::time::{Duration, Instant};

/// What became of the check of a program. `Display` is a table of its kernels and, where one is wrong, what is known of it.
#[derive(Debug, Clone)]
pub struct VerifyReport {
    /// The kernels, in the order they run.
    pub kernels: Vec<KernelReport>,
    /// Memory that was overwritten before it was read, when the kernels ran one after another as they do in a call.
    pub clobbered: Option<Clobbered>,
    /// The outputs of such a run, each against the interpreter's: the errors of all kernels together.
    pub outputs: Vec<Deviation>,
    /// How long the check took.
    pub took: Duration,
}

/// One launch of a program, checked.
#[derive(Debug, Clone)]
pub struct KernelReport {
    /// Its number in the program.
    pub number: usize,
    /// A short name of what it computes.
    pub label: String,
    /// Its nodes, each with its op and type in words and the user's line.
    pub nodes: Vec<(NodeId, String, Source)>,
    /// What it wrote, against the truth.
    pub deviation: Deviation,
    /// Whether that is as it should be.
    pub verdict: Verdict,
    /// The kernel's text.
    pub text: String,
}

/// Whether a kernel did what it should.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// As right as rounding lets it be.
    Right,
    /// Nobody can tell, and why.
    Unclear(String),
    /// An element is further off than rounding explains.
    Wrong {
        /// The node it is an element of.
        node: NodeId,
        /// Its row-major position.
        element: usize,
        /// What it is.
        got: String,
        /// What it should be.
        want: String,
        /// How far off it may be.
        tolerance: f64,
        /// Who is to blame.
        blame: Blame,
    },
    /// It changed memory beside what it should write.
    WroteOutside {
        /// The buffer.
        buffer: String,
        /// The first byte that changed.
        byte: usize,
    },
    /// The launch failed, though the interpreter did not.
    Failed {
        /// How.
        error: String,
    },
}

/// Where the fault of a wrong kernel lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The kernel, interpreted, is right: its machine code is wrong.
    Code,
    /// The kernel itself does not compute its nodes: the scheduler made a wrong one.
    Kernel,
    /// Not found out: the kernel is too large to be interpreted.
    Open,
}

/// Memory that another launch wrote between the launch that filled it and one that reads it: a fault of the memory plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clobbered {
    /// The buffer.
    pub buffer: String,
    /// The launch that wrote it last.
    pub writer: usize,
    /// The launch that reads it and finds something else.
    pub reader: usize,
}

impl VerifyReport {
    /// Whether nothing wrong was found.
    pub fn is_right(&self) -> bool {
        self.first_wrong().is_none() && self.clobbered.is_none()
    }

    /// The first kernel that is wrong, in the order they run.
    pub fn first_wrong(&self) -> Option<&KernelReport> {
        self.kernels.iter().find(|kernel| kernel.verdict.is_wrong())
    }
}

impl Verdict {
    /// Whether something is wrong for sure.
    pub fn is_wrong(&self) -> bool {
        !matches!(self, Verdict::Right | Verdict::Unclear(_))
    }
}

/// Holds every kernel of a program against the interpreter on live inputs: each launch alone, with true inputs; then all of
/// them in a row, looking for memory that is overwritten too early. `graph` is what the program was built from, after the passes,
/// and `inputs` are its inputs. `views` are those of the program, which differ where some lie packed; all of them stay as they are,
/// those that the program updates included.
///
/// ```
/// use kiln_ir::{DType, Graph, HostTensor};
/// use kiln_kernels::{InputLayout, ScheduleOptions};
/// use kiln_runtime::{Backend, InputView, Program, ReferenceBackend};
/// let graph = Graph::parse("graph(%0: f32[2]) {
///   %1: f32[2] = exp %0
///   return %1
/// }").unwrap();
/// let x = HostTensor::from_slice(&[2], &[0f32, 1.0]).unwrap();
/// let buffer = ReferenceBackend.allocate(8)?;
/// buffer.write_from_host(0, x.bytes())?;
/// let layouts = [InputLayout::contiguous(graph.ty(graph.inputs()[0]))];
/// let program = Program::build(&graph, &layouts, std::sync::Arc::new(ReferenceBackend), &ScheduleOptions::default())?;
/// let view = InputView { buffer: &buffer, dtype: DType::F32, shape: &[2], strides: &[1], offset: 0 };
/// let report = kiln_inspect::verify(&graph, &program, vec![x], &[view])?;
/// assert!(report.is_right(), "{report}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn verify(
    graph: &Graph,
    program: &Program,
    inputs: Vec<HostTensor>,
    views: &[InputView<'_>],
) -> Result<VerifyReport> {
    let start = Instant::now();
    let mut report = run::check(graph, program, inputs, views)?;
    report.took = start.elapsed();
    event::emit(Category::Kernels, || Event::Verified {
        kernels: report.kernels.len(),
        wrong: report.fault(),
        took: report.took,
    });
    Ok(report)
}
