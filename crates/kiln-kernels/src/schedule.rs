//! The scheduler's result: buffers, and kernels in launch order.

use crate::kernel::{Kernel, Precision};
use crate::verify::Violation;
use kiln_ir::{DType, Dim, Literal, NodeId, Ranges, TensorType};
use std::sync::Arc;

/// Where short floats are rounded inside a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Numerics {
    /// Values stay in F32 inside a kernel; explicit casts still round.
    #[default]
    Fast,
    /// Every op rounds to its dtype, as if each ran alone.
    Eager,
}

/// What a target of schedules does better in one launch than in several. The default is a CPU's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Target {
    /// Products of up to so many rows take the time of reading their weights, and a launch costs as much as a few hundred
    /// kilobytes of them: they are joined with what is before, after and beside them.
    pub few_rows: i64,
    /// The position of the extreme of a longer row than this, where there are few rows, is found in parts; 0 for never.
    pub long_row: i64,
    /// Products read their operands through padding: loads of an operand may be guarded by its position, so that what a
    /// convolution pads is not copied.
    pub guarded_operands: bool,
    /// Products of images with at least so many results a pixel read pixels of floats times factors of their channels in place
    /// (squeeze-excite before a 1 × 1 convolution), where there are more pixels than results; 0 for never.
    pub scaled_operands: i64,
    /// Transposed convolutions, and gradients of strided ones, are given by phases.
    pub split_phases: bool,
    /// Depthwise convolutions are products of a channel each: there is code for all groups of a convolution at once.
    pub depthwise_products: bool,
    /// What overlapping windows read is computed once and stored, by the epilogue of a product where it follows one.
    pub stored_windows: bool,
    /// Sums of products under a window (depthwise convolutions) are computed one by one, without a loop over the window.
    pub unrolled_windows: bool,
    /// Windows over several axes are reduced an axis at a time where that takes less, and so are reductions of reductions of a few elements.
    pub separate_windows: bool,
    /// Temporaries that products store, and those computed from them element by element, lie in the order of the product's axes:
    /// what a convolution gives has its channels last.
    pub product_order: bool,
    /// There are kernels for the gradients of attention.
    pub attention_gradients: bool,
    /// One of these computes all gradients of an attention; elsewhere those of the queries, sums along other lines, are apart.
    pub joined_gradients: bool,
    /// Attention takes bounds of the visible keys of a row as data.
    pub visible_keys: bool,
    /// Products of short floats read them from memory as they are: what is cast to them is stored first, not cast on the way. So do
    /// products of quantised blocks with what is cast from them.
    pub short_operands: bool,
    /// Reductions over all axes but the innermost to fewer elements than this are done in parts, about so many in all; 0 for never.
    pub many_columns: i64,
    /// Results of a product that keep all of the target busy: products under windows with fewer, and long sums, are done in parts; 0 for
    /// never.
    pub busy_results: i64,
    /// Arithmetic is so cheap beside memory that large values which take up to so much of it (see `cost.rs`) are computed again by each
    /// reader, and stored in the shortest type that they have on the way; 0 for what is right for a CPU.
    pub recomputed: u32,
    /// Scatters of one element a line are choices between elements, and sums of parts between zeros are concatenations: both are then
    /// computed on the way or written in place.
    pub direct_gradients: bool,
    /// Rows of large temporaries of short floats that products write or read begin at multiples of so many bytes; 0 for right after each
    /// other.
    pub row_alignment: i64,
}

/// Options of the scheduler.
#[derive(Debug, Clone, Default)]
pub struct ScheduleOptions {
    /// Where short floats are rounded.
    pub numerics: Numerics,
    /// The required precision of products of F32.
    pub precision: Precision,
    /// Known ranges of the graph's size symbols.
    pub ranges: Ranges,
    /// What the schedule is for.
    pub target: Target,
    /// Products of up to so many rows run beside each other in one launch where they do not depend on each other: queries, keys and values.
    /// Targets that join products of few rows by themselves ([`Target::few_rows`]) do more than this.
    pub rows_beside: i64,
    /// One kernel per node: nothing is fused but views and constants. For comparison and for finding a wrong kernel.
    pub no_fusion: bool,
}

/// The layout of an input in its buffer, in elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InputLayout {
    /// Elements from one index of each axis to the next; may be zero or negative.
    pub strides: Vec<Dim>,
    /// The element at index zero, from the buffer's start.
    pub offset: Dim,
}

impl InputLayout {
    /// Row-major from the buffer's start.
    pub fn contiguous(ty: &TensorType) -> InputLayout {
        InputLayout { strides: crate::index::contiguous_strides(&ty.shape), offset: Dim::default() }
    }
}

impl Role {
    /// The number of the input.
    pub fn input(&self) -> Option<usize> {
        match self {
            Role::Input(input) => Some(*input),
            Role::Output(_) | Role::Temp | Role::Constant(_) => None,
        }
    }
}

/// The index of a buffer of the schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    /// The index into [`Schedule::buffers`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Display for BufferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "buffer {}", self.0)
    }
}

/// The role of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Memory of the caller: input number `.0`. Written only if an output updates it.
    Input(usize),
    /// Memory that is returned to the caller: output number `.0`.
    Output(usize),
    /// Scratch memory, placed by [`crate::plan`].
    Temp,
    /// Constant elements.
    Constant(Literal),
}

/// A buffer of the schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferDecl {
    /// Element type.
    pub dtype: DType,
    /// Number of elements. For an input with strides: of its tensor, not of the memory it spans.
    pub elements: Dim,
    /// Its role.
    pub role: Role,
}

/// One launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// Its buffers, in the kernel's order.
    pub args: Vec<BufferId>,
    /// The values of the kernel's size symbols, in the kernel's order, over the graph's symbols.
    pub sizes: Vec<Dim>,
    /// The graph's nodes that this launch computes, inlined ones included.
    pub nodes: Vec<NodeId>,
    /// A short name for logs and profiles.
    pub label: String,
    /// The values in memory that this launch reads. Nodes that the scheduler introduced itself are not listed.
    pub reads: Vec<ReadFrom>,
    /// The values that this launch writes to memory. Nodes that the scheduler introduced itself are not listed.
    pub writes: Vec<Written>,
}

/// A node's value that a launch reads from memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadFrom {
    /// The node of the graph.
    pub node: NodeId,
    /// The buffer.
    pub buffer: BufferId,
    /// True if the value is the old value of an input, which an update replaces.
    pub initial: bool,
}

/// A node's value that a launch writes to memory: element `index` is at `offset + Σ index·stride`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The node of the graph.
    pub node: NodeId,
    /// The buffer.
    pub buffer: BufferId,
    /// The element at index zero, in elements from the buffer's start.
    pub offset: Dim,
    /// Elements from one index of each axis to the next.
    pub strides: Vec<Dim>,
    /// The nodes that are read from here, of which the value makes up all or a part.
    pub parts_of: Vec<NodeId>,
}

/// A producer and a consumer that were not fused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The node whose value is materialised.
    pub producer: NodeId,
    /// A node that reads it.
    pub consumer: NodeId,
    /// The reason.
    pub reason: Reason,
}

/// The reason why two groups were not fused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The consumer reads elements that another iteration computes.
    OtherElements,
    /// The iteration spaces cannot be brought together.
    OtherSpace,
    /// An epilogue gets one element at a time, the consumer needs a row of them.
    Row,
    /// A kernel between them needs the producer and feeds the consumer.
    Between,
    /// The operand of a product, of attention or of a routine is read many times and therefore materialised.
    Operand,
    /// Two products, attentions or routines.
    OneAnchor,
    /// One kernel would leave most cores idle.
    Parallelism,
    /// One kernel would be too large.
    TooLarge,
    /// Fusion is switched off.
    Off,
}

/// A graph partitioned into kernels.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schedule {
    /// Every buffer.
    pub buffers: Vec<BufferDecl>,
    /// The launches, in order of execution.
    pub steps: Vec<Step>,
    /// The buffer of each output of the graph. An output that updates an input has that input's buffer.
    pub outputs: Vec<BufferId>,
    /// Values that are in place without a launch: updates, or parts of them, that leave an input unchanged.
    pub unchanged: Vec<Written>,
    /// What was not fused, and why.
    pub notes: Vec<Note>,
}

impl Schedule {
    /// Keeps some of the buffers, by number, and renumbers references to them. Those that are dropped must be unused.
    pub fn retain_buffers(&mut self, keep: &[bool]) {
        let mut next = 0;
        let number = |&keep: &bool| {
            next += u32::from(keep);
            keep.then(|| BufferId(next - 1))
        };
        let new: Vec<Option<BufferId>> = keep.iter().map(number).collect();
        let new = |id: BufferId| new.get(id.index()).copied().flatten();
        let mut kept = keep.iter();
        self.buffers.retain(|_| kept.next() == Some(&true));
        let writes = self.steps.iter_mut().map(|step| &mut step.writes).chain([&mut self.unchanged]);
        for writes in writes {
            writes.retain(|written| new(written.buffer).is_some());
            writes.iter_mut().for_each(|written| written.buffer = new(written.buffer).unwrap_or(written.buffer));
        }
        for step in &mut self.steps {
            step.reads.retain(|read| new(read.buffer).is_some() && step.args.contains(&read.buffer));
            step.reads.iter_mut().for_each(|read| read.buffer = new(read.buffer).unwrap_or(read.buffer));
        }
        let args = self.steps.iter_mut().flat_map(|step| &mut step.args);
        args.chain(&mut self.outputs).for_each(|id| *id = new(*id).unwrap_or(*id));
    }
}

/// An error of scheduling.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number of layouts is not that of the inputs.
    #[error("{inputs} inputs but {layouts} layouts")]
    LayoutCount {
        /// Inputs of the graph.
        inputs: usize,
        /// Layouts given.
        layouts: usize,
    },
    /// A layout of another rank than its input.
    #[error("input {input} has rank {rank} but its layout has {strides} strides")]
    LayoutRank {
        /// The input's index.
        input: usize,
        /// Its rank.
        rank: usize,
        /// Strides given.
        strides: usize,
    },
    /// An op that must be decomposed before scheduling.
    #[error("{node} = {op} has no kernel, at {at}")]
    Unsupported {
        /// The node.
        node: NodeId,
        /// Its op.
        op: String,
        /// The user's line.
        at: kiln_ir::Source,
    },
    /// A size named like a kernel's own variables.
    #[error("the size {symbol} has a name that kernels use for their own variables")]
    ReservedSymbol {
        /// The size's name.
        symbol: kiln_ir::Symbol,
    },
    /// Kernels that need each other's results, so that there is no order to launch them in: a fault of this crate.
    #[error("no order of launches: each of these kernels needs the next, and the last one the first: {}", kernels.join("; "))]
    Cycle {
        /// The nodes that each kernel writes.
        kernels: Vec<String>,
    },
    /// A schedule or a plan that the verifier refuses: a fault of this crate.
    #[error("{stage}: {violation}")]
    Invalid {
        /// The stage of the pipeline that made it.
        stage: &'static str,
        /// The violation.
        violation: Box<Violation>,
    },
    /// A rewrite that does not type: a fault of this crate.
    #[error(transparent)]
    Graph(#[from] kiln_ir::Error),
    /// A size that does not evaluate, or is too large.
    #[error("the size {size} has no value")]
    NoValue {
        /// The expression.
        size: Dim,
    },
}
