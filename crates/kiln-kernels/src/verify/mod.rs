//! Verifiers of schedules and memory plans, from scratch: nothing here relies on how the scheduler came to its result.
//!
//! ```text
//!  kernel   one kernel: values, dtypes, buffers, symbols; and the addresses of each launch that are out of bounds for all sizes
//!  order    launches, for all sizes: writers before readers, old values read before they are overwritten
//!  memory   a plan for given sizes: live temporaries do not overlap; then every element that a launch accesses, where known
//! ```
//!
//! They run after scheduling and planning where [`kiln_ir::verify::verifiers_run`]: in debug builds, and on demand in others.

mod elements;
mod kernel;
mod order;
mod places;
mod plan;
mod turns;

pub use kernel::{KernelViolation, Location, Part, Rule};
pub use order::order;

use crate::plan::Plan;
use crate::schedule::{BufferId, Schedule, Step};
use kiln_ir::{NodeId, Ranges, Symbol};
use std::collections::HashSet;
use std::sync::Arc;

/// A rule that a schedule or a plan breaks. Always a fault of the scheduler, never of the graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A kernel breaks the contract of kernels.
    #[error("{at}: {cause}")]
    Kernel {
        /// The launch.
        at: Launch,
        /// The rule, and where it is broken.
        cause: Box<KernelViolation>,
    },
    /// A launch has other arguments than its kernel.
    #[error("{at} has {args} arguments, its kernel {buffers}")]
    Arguments {
        /// The launch.
        at: Launch,
        /// Its arguments.
        args: usize,
        /// The kernel's buffers.
        buffers: usize,
    },
    /// A buffer is an argument twice, and one of them is written.
    #[error("{at} writes {buffer}, which it has as another argument too")]
    Aliased {
        /// The launch.
        at: Launch,
        /// The buffer.
        buffer: BufferId,
    },
    /// A launch writes a constant, or an input that no output updates.
    #[error("{at} writes {buffer}, which is not to be changed")]
    ReadOnly {
        /// The launch.
        at: Launch,
        /// The buffer.
        buffer: BufferId,
    },
    /// A launch reads memory that no launch before it has written.
    #[error("{at} reads {buffer} before it is written")]
    Unwritten {
        /// The launch.
        at: Launch,
        /// The buffer.
        buffer: BufferId,
    },
    /// A launch reads a node before all of it is there.
    #[error("{at} reads {node} from {buffer}, a part of which {writer} writes later")]
    Incomplete {
        /// The launch.
        at: Launch,
        /// The node that it reads.
        node: NodeId,
        /// The buffer.
        buffer: BufferId,
        /// The launch that writes it too late.
        writer: Launch,
    },
    /// A launch reads a node that no launch writes.
    #[error("{at} reads {node} from {buffer}, which no launch writes there")]
    Missing {
        /// The launch.
        at: Launch,
        /// The node that it reads.
        node: NodeId,
        /// The buffer.
        buffer: BufferId,
    },
    /// A launch reads the value that an input had, after another one has changed it.
    #[error("{at} reads the old value of {buffer}, which {writer} has changed")]
    Overwritten {
        /// The launch.
        at: Launch,
        /// The buffer.
        buffer: BufferId,
        /// The launch that changed it.
        writer: Launch,
    },
    /// Two launches put the same node into the same place.
    #[error("{at} writes {node} to {buffer}, where {writer} has put it already")]
    WrittenTwice {
        /// The launch.
        at: Launch,
        /// The node that it writes.
        node: NodeId,
        /// The buffer.
        buffer: BufferId,
        /// The launch that wrote it before.
        writer: Launch,
    },
    /// An output that no launch writes.
    #[error("output {output} in {buffer} is never written")]
    NoOutput {
        /// The output's index.
        output: usize,
        /// Its buffer.
        buffer: BufferId,
    },
    /// Two temporaries that are alive at the same time share memory.
    #[error("{buffer} and {other} are both alive at {at} and share bytes of the arena")]
    Shared {
        /// A launch during which both are.
        at: Launch,
        /// The first.
        buffer: BufferId,
        /// The second.
        other: BufferId,
    },
    /// A temporary outside of the arena, or not aligned, or with another number of bytes than it has.
    #[error("{buffer} has no proper place in the arena")]
    Misplaced {
        /// The buffer.
        buffer: BufferId,
    },
    /// A launch touches an element that a buffer does not have.
    #[error("{at} touches element {element} of {buffer}, which has {elements}")]
    OutOfBounds {
        /// The launch.
        at: Launch,
        /// The buffer.
        buffer: BufferId,
        /// The element.
        element: i64,
        /// The number of elements of the buffer.
        elements: usize,
    },
    /// A launch reads an element that no launch before it has written.
    #[error("{at} reads element {element} of {buffer} before it is written")]
    UnwrittenElement {
        /// The launch.
        at: Launch,
        /// The buffer.
        buffer: BufferId,
        /// The element.
        element: i64,
    },
    /// A launch reads an element of an input's old value that is changed already.
    #[error("{at} reads the old value of element {element} of {buffer}, which is changed by then")]
    OverwrittenElement {
        /// The launch.
        at: Launch,
        /// The buffer.
        buffer: BufferId,
        /// The element.
        element: i64,
    },
    /// An element is stored twice.
    #[error("{at} stores element {element} of {buffer}, which was stored before")]
    StoredTwice {
        /// The launch.
        at: Launch,
        /// The buffer.
        buffer: BufferId,
        /// The element.
        element: i64,
    },
    /// One iteration of a launch reads what another one writes.
    #[error("{at} reads element {element} of {buffer} in one iteration and stores it in another")]
    Race {
        /// The launch.
        at: Launch,
        /// The buffer.
        buffer: BufferId,
        /// The element.
        element: i64,
    },
    /// An element of an output that no launch stores.
    #[error("element {element} of output {output} in {buffer} is never stored")]
    NoElement {
        /// The output's index.
        output: usize,
        /// Its buffer.
        buffer: BufferId,
        /// The element.
        element: usize,
    },
}

/// A launch of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Its number among the steps.
    pub step: usize,
    /// The kernel's name.
    pub kernel: String,
}

impl Launch {
    fn of(step: usize, steps: &[Step]) -> Launch {
        Launch { step, kernel: steps.get(step).map(|s| s.label.clone()).unwrap_or_default() }
    }
}

impl std::fmt::Display for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "step {} ({})", self.step, self.kernel)
    }
}

/// Verifies each kernel of a schedule, and the addresses of each launch where they are known without sizes.
pub fn kernels(schedule: &Schedule, known: &Ranges) -> Result<(), Violation> {
    let mut seen = HashSet::new();
    for (number, step) in schedule.steps.iter().enumerate() {
        if seen.insert(Arc::as_ptr(&step.kernel)) {
            let at = || Launch::of(number, &schedule.steps);
            step.kernel.verify().map_err(|cause| Violation::Kernel { at: at(), cause: Box::new(cause) })?;
        }
    }
    kernel::bounds(schedule, known)
}

/// Verifies a plan of a schedule for given sizes.
pub fn memory(schedule: &Schedule, plan: &Plan, size: &dyn Fn(Symbol) -> Option<i64>) -> Result<(), Violation> {
    plan::verify(schedule, plan)?;
    elements::verify(schedule, size)
}
