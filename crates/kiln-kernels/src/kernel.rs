//! The definition of a kernel: the contract between the scheduler above and the code generators below. Target-neutral.
//!
//! A kernel works on numbered buffers and never knows what they hold. Sizes are [`Dim`]s: constants, or expressions over the
//! kernel's size symbols, whose values a launch brings. Positions are [`Dim`]s too, over the size symbols and the axis
//! variables, in *elements* from the start of the buffer.
//!
//! ```text
//!  Loop        for each point of grid:  stage 0 over the row, stage 1 over the row, …      pointwise and reduction kernels
//!  Matmul      accⱼ[b, m, n] = Σₖ lhs(b, m, k) · rhsⱼ(b, k, n), then an epilogue body at each (b, m, n)
//!  Attention   online softmax over tiles of keys
//!  AttentionBackward   the logarithms of its sums, or its gradients
//!  Routine     scan, sort, scatter: written by hand in each backend
//!  Repeat      launches of a loop's body, turn after turn; run by the runtime, never by a backend
//!  Parallel    several of these that do not depend on each other, in any order or at once
//! ```
//!
//! What the scheduler promises beyond the types: in a stage all stores come after all loads, so that a kernel may write the
//! place it reads; values that do not move along the row are in `Point` stages; axes of size one do not occur, and
//! neighbouring axes are merged wherever every position allows it; each prologue and the epilogue of a product number their
//! values from zero. A `Row` stage need not have a reduction, and a row need not be the innermost axis of memory.
//! [`Kernel::verify`] checks what can be checked without a launch.

use kiln_ir::{
    ArgKind, BinaryOp, BlockFormat, CompareOp, DType, Dim, ReduceKind, Scalar, ScatterKind, Symbol, UnaryOp,
};

pub use crate::dag::{map_dims, map_operands, visit_dims, visit_operands};
pub use crate::repeat::{CarriedBuffer, ChoiceBody, RepeatBody, TurnBuffer, TurnLaunch};

/// A kernel: one launch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// The buffers, in launch order.
    pub buffers: Vec<BufferArg>,
    /// Size symbols whose values a launch brings, in order. Empty when every size is constant.
    pub sizes: Vec<Symbol>,
    /// The computation.
    pub body: KernelBody,
}

/// One buffer argument of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BufferArg {
    /// Element type in memory.
    pub dtype: DType,
    /// Whether it is read, written or both.
    pub access: Access,
}

/// How a kernel uses a buffer. No two arguments of a launch overlap unless all of them are only read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Only read.
    Read,
    /// Only written.
    Write,
    /// Read and written.
    ReadWrite,
}

/// The computation of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum KernelBody {
    /// Pointwise and reduction kernels.
    Loop(LoopBody),
    /// Products.
    Matmul(MatmulBody),
    /// Attention.
    Attention(Box<AttentionBody>),
    /// Gradients of attention.
    AttentionBackward(Box<AttentionBackwardBody>),
    /// Hand-written routines.
    Routine(RoutineBody),
    /// Loops.
    Repeat(Box<RepeatBody>),
    /// Independent bodies, none of them of this kind: what one writes no other touches. Each has its own axes and values.
    Parallel(Vec<KernelBody>),
}

/// A loop variable and its size: `0 ≤ var < size`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Axis {
    /// The variable, as it appears in positions.
    pub var: Symbol,
    /// The number of steps.
    pub size: Dim,
}

/// A value inside a body. Values are numbered across all stages of one body, in the order of definition; stores take numbers too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// For each point of `grid` (independent, any order, in parallel) the stages run one after another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LoopBody {
    /// Independent axes, outermost first. May be empty (one point).
    pub grid: Vec<Axis>,
    /// Axes that a `Row` stage runs over, outermost first. Empty for a pointwise kernel, which has one `Point` stage.
    pub row: Vec<Axis>,
    /// The stages, in order of execution.
    pub stages: Vec<Stage>,
    /// Row temporaries: storage for `row`'s points, private to a grid point, addressed by row position.
    pub temps: Vec<DType>,
}

/// A part of a loop kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Stage {
    /// The points that it runs at.
    pub domain: Domain,
    /// Instructions in order. Values defined in a `Row` stage are visible only in that stage (use temps to carry them); values
    /// of `Point` stages and results of reductions are visible in all later stages.
    pub insts: Vec<Inst>,
    /// Combinations over the row, only in `Row` stages; the results are visible after the stage.
    pub reductions: Vec<Reduction>,
}

/// The points that a stage runs at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Domain {
    /// Once at each grid point.
    Point,
    /// At each point of the row.
    Row,
}

/// A combination of one value over the row.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reduction {
    /// How values are combined.
    pub kind: ReductionKind,
    /// The value combined at each point, of type `dtype`.
    pub value: ValueId,
    /// The accumulator's type: a compute type (F32, F64, I32, I64, Bool). For `Arg` the type of the compared value.
    pub dtype: DType,
    /// The result: of type `dtype`, or I64 for `Arg` (the linear position in the row).
    pub result: ValueId,
}

/// How a reduction combines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReductionKind {
    /// A reduction of values.
    Reduce(ReduceKind),
    /// Position of the extreme; the first wins among equals, NaN is the extreme.
    Arg(ArgKind),
}

/// An instruction: defines `id` of type `dtype` (stores and checks define nothing and have `id` unused).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Inst {
    /// The value defined.
    pub id: ValueId,
    /// Its type. Values are of compute types: F32, F64, I32, I64, Bool; short types exist only in memory and in `Round`.
    pub dtype: DType,
    /// The computation.
    pub kind: InstKind,
}

/// A place in a buffer: `offset + Σ value·stride` elements from its start.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index of the buffer among the kernel's arguments.
    pub buffer: usize,
    /// The affine (or div/mod) part, over axis variables and size symbols.
    pub offset: Dim,
    /// Data-dependent parts: I64 values times strides.
    pub indirect: Vec<(ValueId, Dim)>,
}

/// What an instruction computes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum InstKind {
    /// A constant of the instruction's dtype.
    Const(Scalar),
    /// The value of an index expression over axis variables and sizes, as I64 (or I32).
    Index(Dim),
    /// True where `low ≤ expr < high`.
    InRange {
        /// The expression over axis variables and sizes.
        expr: Dim,
        /// Inclusive bound.
        low: Dim,
        /// Exclusive bound.
        high: Dim,
    },
    /// Element of a buffer, widened to its compute type. With a guard: memory is touched only where it is true, elsewhere 0.
    Load {
        /// The address of the element.
        place: Place,
        /// Bool value.
        guard: Option<ValueId>,
    },
    /// Element number `element` of the quantised blocks that begin at a place (in bytes), as F32. Only ever the whole of a
    /// product's right prologue, with the summed axis as `element`.
    LoadBlock {
        /// Where the first block is.
        place: Place,
        /// Index of the element in the blocks.
        element: Dim,
        /// Layout of a block.
        format: BlockFormat,
    },
    /// Writes a value, narrowed to the buffer's dtype (short floats round to nearest even, short integers wrap). With a
    /// guard: only where it is true. Stores to one buffer never hit one place twice, except through `guard`-exclusive stores and
    /// at data-dependent places: a kernel with those runs its grid in order, one point after another, and the last stays.
    Store {
        /// The address of the element.
        place: Place,
        /// The value that is written.
        value: ValueId,
        /// Bool value.
        guard: Option<ValueId>,
    },
    /// Element of a row temporary at the current row point.
    LoadTemp(usize),
    /// Writes a row temporary at the current row point.
    StoreTemp(usize, ValueId),
    /// Pointwise op at the operands' (compute) type.
    Unary(UnaryOp, ValueId),
    /// Pointwise op at the operands' (compute) type.
    Binary(BinaryOp, ValueId, ValueId),
    /// Comparison; the instruction's dtype is Bool.
    Compare(CompareOp, ValueId, ValueId),
    /// `condition ? then : else`.
    Select(ValueId, ValueId, ValueId),
    /// Conversion between compute types, with [`kiln_ir::Op::Cast`]'s semantics.
    Cast(ValueId),
    /// Reinterpretation between compute types of one width (F32↔I32, F64↔I64).
    Bitcast(ValueId),
    /// Rounds an F32 to F16/Bf16/F8 precision, or wraps an I32 to I8/I16/U8/I4, staying in the compute type.
    Round(ValueId, DType),
    /// The I64 index unchanged if `0 ≤ value < size`; else 0, and the launch reports index `value` out of range.
    CheckIndex {
        /// The index.
        value: ValueId,
        /// Exclusive bound.
        size: Dim,
    },
    /// Word 0 of Philox-4x32-10 as I32: key = the I64 seed, counter = position + 2⁶⁴·stream.
    Random {
        /// I64 value.
        seed: ValueId,
        /// Row-major position, an index expression.
        position: Dim,
        /// Stream number.
        stream: u32,
    },
    /// The accumulator of a matmul's right operand of this number at the current (b, m, n); only in an epilogue.
    Accumulator(usize),
}

/// A body that yields one value at each point of some axes: an operand's prologue. The usual one is a single `Load`, or a
/// `Load` and a `Cast`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Prologue {
    /// Instructions in order.
    pub insts: Vec<Inst>,
    /// The value yielded.
    pub value: ValueId,
}

/// How exact products of F32 have to be: what the kernels may do, not what they must. As PyTorch's
/// `set_float32_matmul_precision` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Precision {
    /// Operands may be rounded to about 8 bits: as BF16, or as small integers with shared scales.
    Medium,
    /// Operands keep at least the 11 bits of TF32, or 16 bits of the largest element of a few beside them.
    High,
    /// Operands are not rounded; beside quantised blocks by 2⁻²¹ at the most of the largest of the 16 or 32 elements that share a scale.
    #[default]
    Highest,
}

impl Precision {
    /// All, the most exact first.
    pub const ALL: [Precision; 3] = [Precision::Highest, Precision::High, Precision::Medium];

    /// The name in text and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Precision::Medium => "medium",
            Precision::High => "high",
            Precision::Highest => "highest",
        }
    }

    /// The precision of this name.
    pub fn named(name: &str) -> Option<Precision> {
        Precision::ALL.into_iter().find(|precision| precision.name() == name)
    }
}

/// `accⱼ[b, m, n] = Σₖ lhs · rhsⱼ` for every right operand, then the epilogue at each (b, m, n).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MatmulBody {
    /// Batch axes, outermost first.
    pub batch: Vec<Axis>,
    /// Row axes of the result.
    pub m: Vec<Axis>,
    /// Column axes of the result.
    pub n: Vec<Axis>,
    /// Summed axes.
    pub k: Vec<Axis>,
    /// Runs at each (batch, m) before the sums: a loop over these axes whose row is `k` and that stores in its temporaries only.
    /// The left operand may load them.
    pub before: Option<LoopBody>,
    /// Yields the left operand over (batch, m, k).
    pub lhs: Prologue,
    /// Yield the right operands over (batch, k, n); one or more.
    pub rhs: Vec<Prologue>,
    /// The accumulator's type: F32, F64, I32 or I64.
    pub acc: DType,
    /// How exact it has to be where the operands are F32; else the highest.
    pub precision: Precision,
    /// Runs at each (batch, m, n); its stores are the kernel's results.
    pub epilogue: Vec<Inst>,
}

/// softmax(q·kᵀ·scale + mask)·v; see [`kiln_ir::Op::Attention`]. Operands are plain strided loads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttentionBody {
    /// Batch size.
    pub batch: Dim,
    /// Query heads.
    pub heads: Dim,
    /// Key/value heads; `heads` is a multiple.
    pub kv_heads: Dim,
    /// Query rows.
    pub queries: Dim,
    /// Key rows.
    pub keys: Dim,
    /// Width of q and k.
    pub width: Dim,
    /// Width of v and of the result.
    pub value_width: Dim,
    /// [b, h, t, d].
    pub q: Strided,
    /// [b, g, s, d].
    pub k: Strided,
    /// [b, g, s, e].
    pub v: Strided,
    /// The page table of `k`, if it is paged: its strides are then those inside a page, and that of the batch is not used.
    pub k_pages: Option<Pages>,
    /// The page table of `v`, if it is paged.
    pub v_pages: Option<Pages>,
    /// [b, h, t, s]; bool keeps, float adds. I64: [b, h, t, 2], the first visible key and the end of the visible keys.
    pub mask: Option<Strided>,
    /// [b, h, t, e].
    pub out: Strided,
    /// [b, h, t, 1]: the logarithms of the rows' sums, in the type that is computed in; see
    /// [`kiln_ir::Op::AttentionLogsumexp`].
    pub logsumexp: Option<Strided>,
    /// Causal mask: keys j ≤ i + s − t are visible to row i.
    pub causal: bool,
    /// Factor on q·kᵀ (an F64 scalar).
    pub scale: Scalar,
}

/// What gradients of attention are made of, from its scores. Operands are plain strided loads.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttentionBackwardBody {
    /// Batch size.
    pub batch: Dim,
    /// Query heads.
    pub heads: Dim,
    /// Key/value heads; `heads` is a multiple.
    pub kv_heads: Dim,
    /// Query rows.
    pub queries: Dim,
    /// Key rows.
    pub keys: Dim,
    /// Width of q and k.
    pub width: Dim,
    /// [b, h, t, d].
    pub q: Strided,
    /// [b, g, s, d].
    pub k: Strided,
    /// [b, h, t, s]; bool keeps, float adds.
    pub mask: Option<Strided>,
    /// Causal mask: keys j ≤ i + s − t are visible to row i.
    pub causal: bool,
    /// Factor on q·kᵀ (an F64 scalar).
    pub scale: Scalar,
    /// What is computed.
    pub part: AttentionPart,
}

/// A part of the backward direction of attention.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AttentionPart {
    /// See [`kiln_ir::Op::AttentionLogsumexp`].
    Logsumexp {
        /// [b, h, t, 1].
        out: Strided,
    },
    /// See [`kiln_ir::Op::AttentionGradient`]. One result or more.
    Gradients(Box<AttentionGradients>),
}

/// Operands and results of the gradients of attention.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AttentionGradients {
    /// Width of v and of the gradient.
    pub value_width: Dim,
    /// [b, g, s, e].
    pub v: Strided,
    /// [b, h, t, e]: the gradient of the result.
    pub gradient: Strided,
    /// [b, h, t, 1].
    pub logsumexp: Strided,
    /// [b, h, t, 1].
    pub delta: Strided,
    /// [b, h, t, d]: the gradient of q.
    pub queries: Option<Strided>,
    /// [b, g, s, d]: that of k.
    pub keys: Option<Strided>,
    /// [b, g, s, e]: that of v.
    pub values: Option<Strided>,
}

/// A view of a body, its name, its shape, and whether it is written.
pub(crate) struct BodyView<'a> {
    pub name: &'static str,
    pub view: &'a Strided,
    pub shape: [&'a Dim; 4],
    pub written: bool,
}

impl AttentionBackwardBody {
    /// Every view: the operands in the op's order, then the results.
    pub(crate) fn views(&self) -> Vec<BodyView<'_>> {
        static ONE: std::sync::LazyLock<Dim> = std::sync::LazyLock::new(|| Dim::from(1));
        let (b, h, g, t, s, d) = (&self.batch, &self.heads, &self.kv_heads, &self.queries, &self.keys, &self.width);
        let row = [b, h, t, &*ONE];
        let view = |name, view, shape, written| BodyView { name, view, shape, written };
        let mut all = vec![view("q", &self.q, [b, h, t, d], false), view("k", &self.k, [b, g, s, d], false)];
        if let AttentionPart::Gradients(of) = &self.part {
            let e = &of.value_width;
            all.push(view("v", &of.v, [b, g, s, e], false));
            all.push(view("gradient", &of.gradient, [b, h, t, e], false));
            all.push(view("logsumexp", &of.logsumexp, row, false));
            all.push(view("delta", &of.delta, row, false));
        }
        all.extend(self.mask.iter().map(|mask| view("mask", mask, [b, h, t, s], false)));
        match &self.part {
            AttentionPart::Logsumexp { out } => all.push(view("out", out, row, true)),
            AttentionPart::Gradients(of) => {
                let e = &of.value_width;
                all.extend(of.queries.iter().map(|out| view("queries", out, [b, h, t, d], true)));
                all.extend(of.keys.iter().map(|out| view("keys", out, [b, g, s, d], true)));
                all.extend(of.values.iter().map(|out| view("values", out, [b, g, s, e], true)));
            }
        }
        all
    }
}

/// Paged keys or values: key `s` of a batch is row `s % length` of the page that entry `s / length` of its table names. Entries
/// are checked as [`InstKind::CheckIndex`] checks an index, also those of pages without visible keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pages {
    /// [b, n], I32 or I64.
    pub table: Strided,
    /// Keys of a page.
    pub length: Dim,
    /// Elements from one page to the next.
    pub stride: Dim,
    /// The number of pages.
    pub count: Dim,
}

/// A strided view of a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Strided {
    /// Index of the buffer among the kernel's arguments.
    pub buffer: usize,
    /// Elements from the buffer's start.
    pub offset: Dim,
    /// Elements from one index of each axis to the next.
    pub strides: Vec<Dim>,
}

/// Hand-written routines over strided views.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RoutineBody {
    /// Running combination along `axis` (accumulating in the compute type).
    Scan {
        /// Sizes of input and output.
        shape: Vec<Dim>,
        /// The axis.
        axis: usize,
        /// How elements are combined.
        kind: ReduceKind,
        /// Scans from the end.
        reverse: bool,
        /// The input.
        input: Strided,
        /// The result.
        output: Strided,
    },
    /// [`kiln_ir::Op::SortIndices`].
    SortIndices {
        /// Sizes of the input.
        shape: Vec<Dim>,
        /// The axis.
        axis: usize,
        /// Largest first.
        descending: bool,
        /// Results kept along the axis.
        count: Dim,
        /// The input.
        input: Strided,
        /// I64 indices.
        output: Strided,
    },
    /// [`kiln_ir::Op::Scatter`] into `output`, which already holds the base (an earlier kernel copied it, or it is
    /// updated in place).
    Scatter {
        /// Sizes of the output.
        shape: Vec<Dim>,
        /// Sizes of index and updates.
        updates_shape: Vec<Dim>,
        /// The axis.
        axis: usize,
        /// How updates are combined with the output.
        kind: ScatterKind,
        /// I32 or I64 indices.
        index: Strided,
        /// The updates.
        updates: Strided,
        /// The base, which becomes the result.
        output: Strided,
    },
}

impl InstKind {
    /// The place that the instruction reads or writes.
    pub(crate) fn place(&self) -> Option<&Place> {
        match self {
            InstKind::Load { place, .. } | InstKind::LoadBlock { place, .. } | InstKind::Store { place, .. } => {
                Some(place)
            }
            _ => None,
        }
    }

    /// The place that the instruction reads or writes.
    pub(crate) fn place_mut(&mut self) -> Option<&mut Place> {
        match self {
            InstKind::Load { place, .. } | InstKind::LoadBlock { place, .. } | InstKind::Store { place, .. } => {
                Some(place)
            }
            _ => None,
        }
    }
}

impl Kernel {
    /// The bodies that run in parallel; usually the kernel's own alone.
    pub fn bodies(&self) -> &[KernelBody] {
        match &self.body {
            KernelBody::Parallel(bodies) => bodies,
            body => std::slice::from_ref(body),
        }
    }

    /// Every instruction of loops and products, in order; none for attention and routines.
    pub fn insts(&self) -> impl Iterator<Item = &Inst> {
        self.bodies().iter().flat_map(KernelBody::insts)
    }

    /// Calls `change` with every instruction of [`Kernel::insts`].
    pub(crate) fn each_inst_mut(&mut self, change: &mut dyn FnMut(&mut Inst)) {
        let bodies = match &mut self.body {
            KernelBody::Parallel(bodies) => bodies.as_mut_slice(),
            body => std::slice::from_mut(body),
        };
        bodies.iter_mut().for_each(|body| body.each_inst_mut(change));
    }
}

impl KernelBody {
    /// Every instruction of a loop or a product, in order; none for attention, routines and bodies of their own.
    pub(crate) fn insts(&self) -> impl Iterator<Item = &Inst> {
        let stages = match self {
            KernelBody::Loop(body) => body.stages.as_slice(),
            KernelBody::Matmul(MatmulBody { before: Some(body), .. }) => &body.stages,
            _ => &[],
        };
        let (lhs, rhs, epilogue): (&[Inst], &[Prologue], &[Inst]) = match self {
            KernelBody::Matmul(body) => (&body.lhs.insts, &body.rhs, &body.epilogue),
            _ => (&[], &[], &[]),
        };
        let operands = lhs.iter().chain(rhs.iter().flat_map(|rhs| &rhs.insts));
        stages.iter().flat_map(|stage| &stage.insts).chain(operands).chain(epilogue)
    }

    /// The buffers that the body refers to, some of them more than once.
    pub(crate) fn buffers(&self) -> Vec<usize> {
        let views = |list: &[&Strided]| list.iter().map(|view| view.buffer).collect::<Vec<usize>>();
        match self {
            KernelBody::Loop(_) | KernelBody::Matmul(_) => {
                self.insts().filter_map(|inst| inst.kind.place()).map(|place| place.buffer).collect()
            }
            KernelBody::Attention(a) => {
                let pages = [&a.k_pages, &a.v_pages].into_iter().flatten().map(|pages| &pages.table);
                let own = [&a.q, &a.k, &a.v, &a.out].into_iter().chain(&a.mask).chain(&a.logsumexp);
                views(&own.chain(pages).collect::<Vec<_>>())
            }
            KernelBody::AttentionBackward(body) => body.views().iter().map(|view| view.view.buffer).collect(),
            KernelBody::Routine(RoutineBody::Scan { input, output, .. })
            | KernelBody::Routine(RoutineBody::SortIndices { input, output, .. }) => views(&[input, output]),
            KernelBody::Routine(RoutineBody::Scatter { index, updates, output, .. }) => {
                views(&[index, updates, output])
            }
            KernelBody::Repeat(body) => body.clone().arguments_mut().into_iter().map(|argument| *argument).collect(),
            KernelBody::Parallel(bodies) => bodies.iter().flat_map(KernelBody::buffers).collect(),
        }
    }

    /// Renumbers the buffers of loops, products and routines.
    pub(crate) fn renumber_buffers(&mut self, map: &[usize]) {
        let renumber = |view: &mut Strided| view.buffer = map[view.buffer];
        match self {
            KernelBody::Parallel(bodies) => bodies.iter_mut().for_each(|body| body.renumber_buffers(map)),
            KernelBody::Repeat(body) => {
                body.arguments_mut().into_iter().for_each(|argument| *argument = map[*argument])
            }
            KernelBody::Routine(RoutineBody::Scan { input, output, .. })
            | KernelBody::Routine(RoutineBody::SortIndices { input, output, .. }) => {
                [input, output].into_iter().for_each(renumber);
            }
            KernelBody::Routine(RoutineBody::Scatter { index, updates, output, .. }) => {
                [index, updates, output].into_iter().for_each(renumber);
            }
            body => body.each_inst_mut(&mut |inst| {
                if let Some(place) = inst.kind.place_mut() {
                    place.buffer = map[place.buffer];
                }
            }),
        }
    }

    fn each_inst_mut(&mut self, change: &mut dyn FnMut(&mut Inst)) {
        match self {
            KernelBody::Loop(body) => body.each_inst_mut(change),
            KernelBody::Matmul(body) => {
                body.before.iter_mut().for_each(|before| before.each_inst_mut(change));
                let operands = body.lhs.insts.iter_mut().chain(body.rhs.iter_mut().flat_map(|rhs| &mut rhs.insts));
                operands.chain(&mut body.epilogue).for_each(change);
            }
            KernelBody::Attention(_) | KernelBody::AttentionBackward(_) => {}
            KernelBody::Routine(_) | KernelBody::Repeat(_) | KernelBody::Parallel(_) => {}
        }
    }
}

impl LoopBody {
    fn each_inst_mut(&mut self, change: &mut dyn FnMut(&mut Inst)) {
        self.stages.iter_mut().flat_map(|stage| &mut stage.insts).for_each(change);
    }
}

impl MatmulBody {
    /// The right operand, where there is one.
    pub fn single_rhs(&self) -> Option<&Prologue> {
        match self.rhs.as_slice() {
            [rhs] => Some(rhs),
            _ => None,
        }
    }
}
