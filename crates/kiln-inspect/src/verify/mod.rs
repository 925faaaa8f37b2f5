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

/// The outcome of verifying a program. `Display` is a table of its kernels and, if one is wrong, the details of the first such.
#[derive(Debug, Clone)]
pub struct VerifyReport {
    /// The kernels, in the order they run.
    pub kernels: Vec<KernelReport>,
    /// Memory that was overwritten before it was read, when the kernels ran one after another as in a call.
    pub clobbered: Option<Clobbered>,
    /// The outputs of that run, each against the interpreter's: the accumulated errors of all kernels.
    pub outputs: Vec<Deviation>,
    /// How long the check took.
    pub took: Duration,
}

/// The outcome of verifying one launch of a program.
#[derive(Debug, Clone)]
pub struct KernelReport {
    /// Its number in the program.
    pub number: usize,
    /// A short name of what it computes.
    pub label: String,
    /// The nodes it computes, each with its type and op as text and the user's line.
    pub nodes: Vec<(NodeId, String, Source)>,
    /// How far what it wrote is from the interpreter's values.
    pub deviation: Deviation,
    /// Whether that is within the error bound.
    pub verdict: Verdict,
    /// The kernel's text.
    pub text: String,
}

/// Whether a kernel did what it should.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Verdict {
    /// Every element is within its error bound.
    Right,
    /// It cannot be decided, for this reason.
    Unclear(String),
    /// An element is outside of its error bound.
    Wrong {
        /// The node whose value it is an element of.
        node: NodeId,
        /// Its row-major position.
        element: usize,
        /// The value that the kernel computed.
        got: String,
        /// The interpreter's value.
        want: String,
        /// The error bound.
        tolerance: f64,
        /// Which stage of the compiler is at fault.
        blame: Blame,
    },
    /// It changed memory outside of its results.
    WroteOutside {
        /// The buffer.
        buffer: String,
        /// The first byte that changed.
        byte: usize,
    },
    /// The launch failed, though the interpreter did not.
    Failed {
        /// The launch's error.
        error: String,
    },
}

/// Which stage of the compiler made a kernel wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// Code generation: the kernel is right when it is interpreted.
    Code,
    /// The scheduler: the kernel is wrong when it is interpreted, too.
    Kernel,
    /// Unknown: the kernel is too large to be interpreted.
    Open,
}

/// Memory that was overwritten between the launch that filled it and one that reads it: an error of the memory plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Clobbered {
    /// The buffer.
    pub buffer: String,
    /// The launch that wrote it last.
    pub writer: usize,
    /// The launch that reads it and finds other bytes.
    pub reader: usize,
}

impl VerifyReport {
    /// Returns whether no kernel is wrong and no memory was overwritten early.
    pub fn is_right(&self) -> bool {
        self.first_wrong().is_none() && self.clobbered.is_none()
    }

    /// Returns the first kernel that is wrong, in the order of execution.
    pub fn first_wrong(&self) -> Option<&KernelReport> {
        self.kernels.iter().find(|kernel| kernel.verdict.is_wrong())
    }
}

impl Verdict {
    /// Returns whether the kernel is known to be wrong.
    pub fn is_wrong(&self) -> bool {
        !matches!(self, Verdict::Right | Verdict::Unclear(_))
    }
}

/// Compares every kernel of a program with the interpreter: first each launch alone, on the interpreter's values, then all of them in
/// a row, looking for memory that is overwritten too early.
///
/// `graph` is what the program was built from, after the passes, and `inputs` are the graph's inputs. `views` are the program's, which
/// differ from them where weights are packed. Nothing they view is changed, not even inputs that the program updates.
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
