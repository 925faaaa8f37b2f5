//! The primitive ops: every tensor program is made of these and nothing else. Softmax, layer norm, gelu and the like are
//! functions over them ([`crate::build`]).
//!
//! An op is defined once: its attributes live here, its shape rule in `infer`, its reference semantics in `interpret`,
//! its text in `text`; all of a pointwise function in its row of the [table](crate::table). A test walks over [`OpKind::all`]
//! and fails for the op that lacks a part.

use crate::table::named_ops;
use crate::{BinaryOp, BlockFormat, Branches, CompareOp, DType, Dim, ReduceKind, Region, Scalar, ScatterKind, UnaryOp};
use std::sync::Arc;

named_ops! {
    /// Which element's index a reduction gives. The first wins among equals; NaN counts as the extreme.
    ArgKind {
        /// Index of the largest.
        Max = "argmax",
        /// Index of the smallest.
        Min = "argmin",
    }
}

named_ops! {
    /// An operand of attention, by which it is differentiated.
    AttentionOperand {
        /// The queries.
        Queries = "queries",
        /// The keys.
        Keys = "keys",
        /// The values.
        Values = "values",
    }
}

/// A list of axes or per-axis numbers.
pub type Axes = Vec<usize>;

/// Elements of a constant tensor, in row-major order, packed as the dtype stores them (little-endian).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Literal {
    /// The element type.
    pub dtype: DType,
    /// Constant sizes.
    pub shape: Vec<usize>,
    /// The packed elements.
    pub bytes: Arc<[u8]>,
}

/// Dimension numbers of [`Op::Dot`]: which axes of each side are batch axes and which are summed over. The result has the
/// batch axes, then the left's free axes, then the right's free axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct DotDims {
    /// Batch axes of the left operand.
    pub lhs_batch: Axes,
    /// Batch axes of the right operand, in the same order.
    pub rhs_batch: Axes,
    /// Summed axes of the left operand.
    pub lhs_contract: Axes,
    /// Summed axes of the right operand, in the same order.
    pub rhs_contract: Axes,
}

/// Attributes of [`Op::Conv`], one entry per spatial axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvDims {
    /// Step of the window.
    pub stride: Vec<usize>,
    /// Zeros added before and after; negative numbers crop.
    pub padding: Vec<(i64, i64)>,
    /// Spacing between the kernel's taps.
    pub dilation: Vec<usize>,
    /// Zeros put between the input's elements (transposed convolution); 1 puts none.
    pub input_dilation: Vec<usize>,
    /// Channel groups.
    pub groups: usize,
}

/// Attributes of [`Op::ReduceWindow`], one entry per axis of the operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WindowDims {
    /// Size of the window.
    pub size: Vec<usize>,
    /// Step of the window.
    pub stride: Vec<usize>,
    /// Spacing inside the window.
    pub dilation: Vec<usize>,
    /// Identity elements added before and after.
    pub padding: Vec<(usize, usize)>,
}

/// A primitive op with its attributes. Operands are listed in each variant's text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    /// `()`: argument number `index` of the graph; its type is given, not inferred.
    Input {
        /// Position among the graph's inputs.
        index: usize,
    },
    /// `()`: one value expanded to a shape.
    Full {
        /// The value; its dtype is the result's.
        value: Scalar,
        /// The result's shape.
        shape: Vec<Dim>,
    },
    /// `()`: a tensor of given elements.
    Constant(Literal),
    /// `()`: the index along one axis, as `dtype`.
    Iota {
        /// The result's dtype.
        dtype: DType,
        /// The result's shape.
        shape: Vec<Dim>,
        /// The axis counted along.
        axis: usize,
    },
    /// `(seed: i64[])`: 32 random bits per element as `i32`: word 0 of Philox-4x32-10 with the seed as key and the element's
    /// row-major position plus `2⁶⁴·stream` as counter.
    RandomBits {
        /// The result's shape.
        shape: Vec<Dim>,
        /// Distinguishes several draws from one seed.
        stream: u32,
    },
    /// `(x)`.
    Unary(UnaryOp),
    /// `(x, y)`.
    Binary(BinaryOp),
    /// `(x, y)`.
    Compare(CompareOp),
    /// `(condition: bool, then, else)`.
    Select,
    /// `(x)`: convert. Float to integer truncates and saturates (see [`Scalar::float`]), integers wrap, to bool is `≠ 0`.
    Cast(DType),
    /// `(x)`: the same bits as another dtype of the same width.
    Bitcast(DType),
    /// `(x)`: combine over axes, which stay with size 1.
    Reduce {
        /// How elements are combined.
        kind: ReduceKind,
        /// The axes, ascending.
        axes: Axes,
    },
    /// `(x)`: index of the extreme element along an axis, which stays with size 1; gives `i64`.
    ArgReduce {
        /// The largest or the smallest.
        kind: ArgKind,
        /// The axis.
        axis: usize,
    },
    /// `(x)`: inclusive running combination along an axis.
    Scan {
        /// How elements are combined.
        kind: ReduceKind,
        /// The axis.
        axis: usize,
        /// Run from the end to the beginning.
        reverse: bool,
    },
    /// `(x)`: the indices (`i64`) that a stable sort would put first along an axis, the first `count` of them.
    /// NaN sorts as the largest.
    SortIndices {
        /// The axis.
        axis: usize,
        /// Largest first.
        descending: bool,
        /// The number of indices that are kept.
        count: Dim,
    },
    /// `(x)`: the same elements in row-major order under another shape.
    Reshape {
        /// The result's shape.
        shape: Vec<Dim>,
    },
    /// `(x)`: axis `i` of the result is axis `order[i]` of x.
    Permute {
        /// A permutation of the axes.
        order: Axes,
    },
    /// `(x)`: repeat axes of size 1; same rank.
    Expand {
        /// The result's shape.
        shape: Vec<Dim>,
    },
    /// `(x)`: `start`, `start + step`, … `size` elements of each axis. Steps are positive.
    Slice {
        /// First index of each axis.
        start: Vec<Dim>,
        /// Number of elements of each axis.
        size: Vec<Dim>,
        /// Step of each axis.
        step: Vec<i64>,
    },
    /// `(x)`: add `value` around; amounts are not negative.
    Pad {
        /// Elements before, for each axis.
        low: Vec<Dim>,
        /// Elements after, for each axis.
        high: Vec<Dim>,
        /// The value added, of x's dtype.
        value: Scalar,
    },
    /// `(x)`: reverse axes.
    Flip {
        /// The axes, ascending.
        axes: Axes,
    },
    /// `(x)`: overlapping windows along one axis: the axis becomes the window's number and a new last axis counts inside it:
    /// `y[…, i, …, j] = x[…, i·stride + j·dilation, …]`.
    Unfold {
        /// The axis.
        axis: usize,
        /// Size of the window.
        size: usize,
        /// Step from window to window.
        stride: usize,
        /// Step inside the window.
        dilation: usize,
    },
    /// `(x…)`: concatenation along an axis.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// `(x, index: i32|i64)`: `y[…, i, …] = x[…, index[…, i, …], …]`; x and index agree on the other axes. An index outside
    /// 0..size is an error at run time.
    Gather {
        /// The axis.
        axis: usize,
    },
    /// `(x, index: i32|i64, updates)`: x with `x[…, index[…, i, …], …] ∘= updates[…, i, …]`; index and updates have one
    /// shape, which agrees with x on the other axes. An index outside 0..size is an error at run time.
    Scatter {
        /// The axis.
        axis: usize,
        /// How updates are combined with the base.
        kind: ScatterKind,
    },
    /// `(lhs, rhs)`: sum of products over the contracted axes, accumulated in f32 (f64, i32, i64 for those types).
    Dot {
        /// Batch and contracted axes.
        dims: Box<DotDims>,
        /// The result's dtype: the operands' own, or `F32` for short floats, or `I32` for `I8`/`U8`.
        out: DType,
    },
    /// `(x: u8[…, blocks·bytes])` → `f32[…, blocks·elements]`: the elements that quantised blocks stand for, along the last axis.
    Dequantize {
        /// The layout of a block.
        format: BlockFormat,
    },
    /// `(x: [n, c, spatial…], w: [o, c/groups, kernel…])`: cross-correlation; accumulated as [`Op::Dot`].
    Conv(Box<ConvDims>),
    /// `(x)`: combine over windows (pooling).
    ReduceWindow {
        /// How elements are combined.
        kind: ReduceKind,
        /// The windows.
        dims: Box<WindowDims>,
    },
    /// `(q: [b, h, t, d], k: [b, g, s, d], v: [b, g, s, e]` and, if `mask`, `mask: [b, h, t, s])` → `[b, h, t, e]`:
    /// softmax(q·kᵀ·scale + mask)·v with h a multiple of g. A bool mask keeps what is true; a float mask (the operands' dtype
    /// or f32) is added; an i64 mask is `[b, h, t, 2]`, the bounds of the keys that a row sees: first ≤ j < end (see
    /// [`mask_columns`]); the logarithms and gradients of attention have no such mask. A fully masked row gives 0. A masked row of v contributes 0 times its value: 0, or, if it holds
    /// infinities or NaN, anything (a backend may skip it). Accumulated in f32.
    Attention {
        /// Causal mask: columns j ≤ i + s − t are visible to row i.
        causal: bool,
        /// Factor on q·kᵀ, an f64 bit pattern held as an `F64` scalar.
        scale: Scalar,
        /// A fourth operand is the mask.
        mask: bool,
    },
    /// `(q, k` and, if `mask`, `mask)`, all as in [`Op::Attention`] → `[b, h, t, 1]`: the logarithm of the sum of the exponentials
    /// of each row's scores, of the type that the operands are computed in; −∞ for a fully masked row.
    AttentionLogsumexp {
        /// As in [`Op::Attention`].
        causal: bool,
        /// As in [`Op::Attention`].
        scale: Scalar,
        /// A third operand is the mask.
        mask: bool,
    },
    /// `(q, k, v, gradient: [b, h, t, e], logsumexp: [b, h, t, 1], delta: [b, h, t, 1]` and, if `mask`, `mask)`: the gradient of
    /// attention in one of its operands, of that operand's type. `gradient` is that of the result, `logsumexp` that of
    /// [`Op::AttentionLogsumexp`] and `delta` the sum of gradient · result over the width, both of the type that the operands are
    /// computed in. With p = exp(q·kᵀ·scale + mask − logsumexp), 0 where a score is −∞, and
    /// ds = p ∘ (gradient·vᵀ − delta): scale·ds·k for queries, scale·dsᵀ·q for keys, pᵀ·gradient for values; the
    /// heads that share keys are added up. Hidden pairs contribute 0 times their elements, as in [`Op::Attention`]. Accumulated in f32;
    /// short floats may round p and ds.
    AttentionGradient {
        /// The operand.
        of: AttentionOperand,
        /// As in [`Op::Attention`].
        causal: bool,
        /// As in [`Op::Attention`].
        scale: Scalar,
        /// A seventh operand is the mask.
        mask: bool,
    },
    /// `(carried…, over…, same…)`: one result of a [`Region`] that runs for each turn: what the last turn carried on, or the results
    /// of all turns along a new first axis. Without a turn what is carried is as it was.
    Loop {
        /// The loop, which its other results share.
        region: Arc<Region>,
        /// Which of its results.
        result: usize,
    },
    /// `(predicate: bool[], x…)`: one result of the first of two graphs where the predicate is true, and of the second where it is false.
    Cond {
        /// The graphs, which its other results share.
        branches: Arc<Branches>,
        /// Which of their results.
        result: usize,
    },
}

/// The size of the last axis of a mask of attention: one column a key, or, where an i64 mask holds bounds, the first visible key and the
/// end of the visible keys.
pub fn mask_columns(dtype: DType, keys: &Dim) -> Dim {
    if dtype == DType::I64 { Dim::from(2) } else { keys.clone() }
}

/// Declares the kinds of op in the order of [`OpKind::all`]: `Variant = name`, or, where a part of the op's attributes belongs to the
/// kind, `Variant(attribute: type of it) = name`.
macro_rules! op_kinds {
    (@all $kind:ident) => { vec![OpKind::$kind] };
    (@all $kind:ident $of:ident) => { $of::ALL.iter().map(|&of| OpKind::$kind(of)).collect() };
    ($($kind:ident $(($field:tt $of:ident: $type:ident))? = $name:expr,)*) => {
        /// An op without its attributes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs)]
        pub enum OpKind { $($kind $(($type))?,)* }

        impl OpKind {
            /// Every kind of op.
            pub fn all() -> Vec<OpKind> {
                let all: &[Vec<OpKind>] = &[$(op_kinds!(@all $kind $($type)?),)*];
                all.concat()
            }

            /// The name in the text form.
            pub fn name(self) -> String {
                match self { $(OpKind::$kind $({ 0: $of })? => $name.to_string(),)* }
            }
        }

        impl Op {
            /// The op without its attributes.
            pub fn kind(&self) -> OpKind {
                match self { $(Op::$kind { $($field: $of,)? .. } => OpKind::$kind $((*$of))?,)* }
            }
        }
    };
}

op_kinds! {
    Input = "input",
    Full = "full",
    Constant = "constant",
    Iota = "iota",
    RandomBits = "random_bits",
    Unary(0 op: UnaryOp) = op.name(),
    Binary(0 op: BinaryOp) = op.name(),
    Compare(0 op: CompareOp) = op.name(),
    Select = "select",
    Cast = "cast",
    Bitcast = "bitcast",
    Reduce(kind kind: ReduceKind) = format!("reduce_{}", kind.name()),
    ArgReduce(kind kind: ArgKind) = kind.name(),
    Scan(kind kind: ReduceKind) = format!("scan_{}", kind.name()),
    SortIndices = "sort_indices",
    Reshape = "reshape",
    Permute = "permute",
    Expand = "expand",
    Slice = "slice",
    Pad = "pad",
    Flip = "flip",
    Unfold = "unfold",
    Concat = "concat",
    Gather = "gather",
    Scatter(kind kind: ScatterKind) = format!("scatter_{}", kind.name()),
    Dot = "dot",
    Dequantize = "dequantize",
    Conv = "conv",
    ReduceWindow(kind kind: ReduceKind) = format!("window_{}", kind.name()),
    Attention = "attention",
    AttentionLogsumexp = "attention_logsumexp",
    AttentionGradient(of of: AttentionOperand) = format!("attention_gradient_{}", of.name()),
    Loop = "loop",
    Cond = "cond",
}

impl Op {
    /// True for ops that compute each element of the result from the elements at the same index of the operands.
    pub fn is_pointwise(&self) -> bool {
        matches!(self, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast(_) | Op::Bitcast(_))
    }

    /// True for attention, the logarithms of its sums, and its gradients.
    pub fn is_attention(&self) -> bool {
        matches!(self, Op::Attention { .. } | Op::AttentionLogsumexp { .. } | Op::AttentionGradient { .. })
    }

    /// True for ops that only say where an element comes from.
    pub fn is_view(&self) -> bool {
        matches!(
            self,
            Op::Reshape { .. }
                | Op::Permute { .. }
                | Op::Expand { .. }
                | Op::Slice { .. }
                | Op::Flip { .. }
                | Op::Unfold { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Graphs of whole models have thousands of nodes, which passes copy; attributes that take more are boxed.
    #[test]
    fn an_op_is_nine_words_at_the_most() {
        assert!(size_of::<Op>() <= 9 * size_of::<usize>(), "{}", size_of::<Op>());
    }
}
