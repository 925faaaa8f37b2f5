//! The primitive ops: every tensor program is made of these and nothing else. Softmax, layer norm, gelu and the like are
//! functions over them ([`crate::build`]).
//!
//! An op is defined once: its attributes live here, its shape rule in `infer`, its reference semantics in `interpret`,
//! its text in `text`. A test walks over [`OpKind::all`] and fails for the op that lacks a part.

use crate::{BlockFormat, DType, Dim, Scalar};
use std::sync::Arc;

/// Declares an enum of plain op names with `ALL`, `name` and `from_name`.
macro_rules! named_ops {
    ($(#[$meta:meta])* $enum:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $enum { $($(#[$doc])* $variant,)* }
        impl $enum {
            /// Every variant, in the order of the declaration.
            pub const ALL: &'static [$enum] = &[$($enum::$variant,)*];
            /// The name in the text form.
            pub const fn name(self) -> &'static str {
                match self { $($enum::$variant => $name,)* }
            }
            /// The variant of that name.
            pub fn from_name(name: &str) -> Option<$enum> {
                Self::ALL.iter().copied().find(|v| v.name() == name)
            }
        }
    };
}

named_ops! {
    /// Pointwise functions of one operand. The result has the operand's dtype, but for `IsNan`, which gives `Bool`.
    UnaryOp {
        /// −x (integers wrap).
        Neg = "neg",
        /// |x| (integers wrap).
        Abs = "abs",
        /// −1, 0 or 1; NaN and ±0 stay.
        Sign = "sign",
        /// Towards −∞ (floats).
        Floor = "floor",
        /// Towards +∞ (floats).
        Ceil = "ceil",
        /// To the nearest integer, ties to even (floats).
        Round = "round",
        /// Towards zero (floats).
        Trunc = "trunc",
        /// √x.
        Sqrt = "sqrt",
        /// 1/√x.
        Rsqrt = "rsqrt",
        /// 1/x.
        Recip = "recip",
        /// eˣ.
        Exp = "exp",
        /// 2ˣ.
        Exp2 = "exp2",
        /// eˣ − 1 without loss near 0.
        Expm1 = "expm1",
        /// Natural logarithm.
        Log = "log",
        /// Logarithm to base 2.
        Log2 = "log2",
        /// ln(1 + x) without loss near 0.
        Log1p = "log1p",
        /// Sine.
        Sin = "sin",
        /// Cosine.
        Cos = "cos",
        /// Tangent.
        Tan = "tan",
        /// Arc sine.
        Asin = "asin",
        /// Arc cosine.
        Acos = "acos",
        /// Arc tangent.
        Atan = "atan",
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// Error function.
        Erf = "erf",
        /// Inverse error function.
        ErfInv = "erf_inv",
        /// ln|Γ(x)|.
        Lgamma = "lgamma",
        /// Bitwise not of integers, logical not of bools.
        Not = "not",
        /// True where x is NaN.
        IsNan = "is_nan",
    }
}

named_ops! {
    /// Pointwise functions of two operands of one dtype and shape; the result has the operands' dtype.
    BinaryOp {
        /// x + y (integers wrap; or on bools).
        Add = "add",
        /// x − y.
        Sub = "sub",
        /// x · y (and on bools).
        Mul = "mul",
        /// x / y; integers truncate towards zero, a zero divisor gives 0.
        Div = "div",
        /// Remainder with the sign of x, as C's `fmod` and `%`; an integer zero divisor gives 0.
        Rem = "rem",
        /// xʸ (floats).
        Pow = "pow",
        /// The angle of (y: first operand, x: second operand).
        Atan2 = "atan2",
        /// The larger; NaN if either is NaN.
        Max = "max",
        /// The smaller; NaN if either is NaN.
        Min = "min",
        /// Bitwise and of integers, logical and of bools.
        And = "and",
        /// Bitwise or.
        Or = "or",
        /// Bitwise exclusive or.
        Xor = "xor",
        /// x shifted left by y bits; 0 when y is not in 0..width (integers).
        Shl = "shl",
        /// x shifted right by y bits, arithmetically for signed types; y is clamped to width − 1, a negative y counts as width − 1.
        Shr = "shr",
    }
}

named_ops! {
    /// Comparisons of two operands of one dtype and shape; the result is `Bool`. Comparisons with NaN are false but `Ne`.
    CompareOp {
        /// x = y.
        Eq = "eq",
        /// x ≠ y.
        Ne = "ne",
        /// x < y.
        Lt = "lt",
        /// x ≤ y.
        Le = "le",
        /// x > y.
        Gt = "gt",
        /// x ≥ y.
        Ge = "ge",
    }
}

named_ops! {
    /// What a reduction, a scan or a window combines with. Max and Min give NaN if any element is NaN. Bools: Max is
    /// *any*, Min is *all*. An empty Sum is 0, Prod 1, Max the lowest value (−∞), Min the highest (+∞).
    ReduceKind {
        /// Sum; short floats accumulate in f32.
        Sum = "sum",
        /// Product.
        Prod = "prod",
        /// Largest.
        Max = "max",
        /// Smallest.
        Min = "min",
    }
}

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
    /// How a scatter combines with what is there. With several writes to one place, `Set` keeps the last in row-major order.
    ScatterKind {
        /// Replace.
        Set = "set",
        /// Add.
        Add = "add",
        /// Keep the larger.
        Max = "max",
        /// Keep the smaller.
        Min = "min",
        /// Multiply.
        Mul = "mul",
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

/// Attributes of [`Op::Conv`], one entry a spatial axis.
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

/// Attributes of [`Op::ReduceWindow`], one entry an axis of the operand.
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
    /// `(seed: i64[])`: 32 random bits an element as `i32`: word 0 of Philox-4x32-10 with the seed as key and the element's
    /// row-major position plus `2⁶⁴·stream` as counter.
    RandomBits {
        /// The result's shape.
        shape: Vec<Dim>,
        /// Tells apart several draws from one seed.
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
        /// What to combine with.
        kind: ReduceKind,
        /// The axes, ascending.
        axes: Axes,
    },
    /// `(x)`: index of the extreme element along an axis, which stays with size 1; gives `i64`.
    ArgReduce {
        /// Which extreme.
        kind: ArgKind,
        /// The axis.
        axis: usize,
    },
    /// `(x)`: inclusive running combination along an axis.
    Scan {
        /// What to combine with.
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
        /// How many to keep.
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
    /// `(x)`: `start`, `start + step`, … `size` elements an axis. Steps are positive.
    Slice {
        /// First index an axis.
        start: Vec<Dim>,
        /// Number of elements an axis.
        size: Vec<Dim>,
        /// Step an axis.
        step: Vec<i64>,
    },
    /// `(x)`: add `value` around; amounts are not negative.
    Pad {
        /// Elements before, an axis.
        low: Vec<Dim>,
        /// Elements after, an axis.
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
    /// `(x…)`: one after another along an axis.
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
        /// How to combine.
        kind: ScatterKind,
    },
    /// `(lhs, rhs)`: sum of products over the contracted axes, accumulated in f32 (f64, i32, i64 for those types).
    Dot {
        /// Which axes do what.
        dims: Box<DotDims>,
        /// The result's dtype: the operands' own, or `F32` for short floats, or `I32` for `I8`/`U8`.
        out: DType,
    },
    /// `(x: u8[…, blocks·bytes])` → `f32[…, blocks·elements]`: the elements that quantised blocks stand for, along the last axis.
    Dequantize {
        /// How a block lies in bytes.
        format: BlockFormat,
    },
    /// `(x: [n, c, spatial…], w: [o, c/groups, kernel…])`: cross-correlation; accumulated as [`Op::Dot`].
    Conv(Box<ConvDims>),
    /// `(x)`: combine over windows (pooling).
    ReduceWindow {
        /// What to combine with.
        kind: ReduceKind,
        /// The windows.
        dims: Box<WindowDims>,
    },
    /// `(q: [b, h, t, d], k: [b, g, s, d], v: [b, g, s, e]` and, if `mask`, `mask: [b, h, t, s])` → `[b, h, t, e]`:
    /// softmax(q·kᵀ·scale + mask)·v with h a multiple of g. A bool mask keeps what is true; a float mask (the operands' dtype or f32) is added. A row with
    /// everything masked gives 0. What a masked row of v contributes is 0 times its value: 0, or, if it holds infinities or NaN, anything
    /// (a backend may skip it). Accumulated in f32.
    Attention {
        /// Row i sees columns j ≤ i + s − t.
        causal: bool,
        /// Factor on q·kᵀ, an f64 bit pattern held as an `F64` scalar.
        scale: Scalar,
        /// A fourth operand is the mask.
        mask: bool,
    },
}

/// An op without its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum OpKind {
    Input,
    Full,
    Constant,
    Iota,
    RandomBits,
    Unary(UnaryOp),
    Binary(BinaryOp),
    Compare(CompareOp),
    Select,
    Cast,
    Bitcast,
    Reduce(ReduceKind),
    ArgReduce(ArgKind),
    Scan(ReduceKind),
    SortIndices,
    Reshape,
    Permute,
    Expand,
    Slice,
    Pad,
    Flip,
    Unfold,
    Concat,
    Gather,
    Scatter(ScatterKind),
    Dot,
    Dequantize,
    Conv,
    ReduceWindow(ReduceKind),
    Attention,
}

impl OpKind {
    /// Every kind of op.
    pub fn all() -> Vec<OpKind> {
        use OpKind::*;
        let mut all = vec![Input, Full, Constant, Iota, RandomBits];
        all.extend(UnaryOp::ALL.iter().map(|&o| Unary(o)));
        all.extend(BinaryOp::ALL.iter().map(|&o| Binary(o)));
        all.extend(CompareOp::ALL.iter().map(|&o| Compare(o)));
        all.extend([Select, Cast, Bitcast]);
        all.extend(ReduceKind::ALL.iter().map(|&o| Reduce(o)));
        all.extend(ArgKind::ALL.iter().map(|&o| ArgReduce(o)));
        all.extend(ReduceKind::ALL.iter().map(|&o| Scan(o)));
        all.extend([SortIndices, Reshape, Permute, Expand, Slice, Pad, Flip, Unfold, Concat, Gather]);
        all.extend(ScatterKind::ALL.iter().map(|&o| Scatter(o)));
        all.extend([Dot, Dequantize, Conv]);
        all.extend(ReduceKind::ALL.iter().map(|&o| ReduceWindow(o)));
        all.push(Attention);
        all
    }

    /// The name in the text form.
    pub fn name(self) -> String {
        match self {
            OpKind::Unary(o) => o.name().into(),
            OpKind::Binary(o) => o.name().into(),
            OpKind::Compare(o) => o.name().into(),
            OpKind::Reduce(k) => format!("reduce_{}", k.name()),
            OpKind::ArgReduce(k) => k.name().into(),
            OpKind::Scan(k) => format!("scan_{}", k.name()),
            OpKind::Scatter(k) => format!("scatter_{}", k.name()),
            OpKind::ReduceWindow(k) => format!("window_{}", k.name()),
            OpKind::Input => "input".into(),
            OpKind::Full => "full".into(),
            OpKind::Constant => "constant".into(),
            OpKind::Iota => "iota".into(),
            OpKind::RandomBits => "random_bits".into(),
            OpKind::Select => "select".into(),
            OpKind::Cast => "cast".into(),
            OpKind::Bitcast => "bitcast".into(),
            OpKind::SortIndices => "sort_indices".into(),
            OpKind::Reshape => "reshape".into(),
            OpKind::Permute => "permute".into(),
            OpKind::Expand => "expand".into(),
            OpKind::Slice => "slice".into(),
            OpKind::Pad => "pad".into(),
            OpKind::Flip => "flip".into(),
            OpKind::Unfold => "unfold".into(),
            OpKind::Concat => "concat".into(),
            OpKind::Gather => "gather".into(),
            OpKind::Dot => "dot".into(),
            OpKind::Dequantize => "dequantize".into(),
            OpKind::Conv => "conv".into(),
            OpKind::Attention => "attention".into(),
        }
    }
}

impl Op {
    /// The op without its attributes.
    pub fn kind(&self) -> OpKind {
        match self {
            Op::Input { .. } => OpKind::Input,
            Op::Full { .. } => OpKind::Full,
            Op::Constant(_) => OpKind::Constant,
            Op::Iota { .. } => OpKind::Iota,
            Op::RandomBits { .. } => OpKind::RandomBits,
            Op::Unary(o) => OpKind::Unary(*o),
            Op::Binary(o) => OpKind::Binary(*o),
            Op::Compare(o) => OpKind::Compare(*o),
            Op::Select => OpKind::Select,
            Op::Cast(_) => OpKind::Cast,
            Op::Bitcast(_) => OpKind::Bitcast,
            Op::Reduce { kind, .. } => OpKind::Reduce(*kind),
            Op::ArgReduce { kind, .. } => OpKind::ArgReduce(*kind),
            Op::Scan { kind, .. } => OpKind::Scan(*kind),
            Op::SortIndices { .. } => OpKind::SortIndices,
            Op::Reshape { .. } => OpKind::Reshape,
            Op::Permute { .. } => OpKind::Permute,
            Op::Expand { .. } => OpKind::Expand,
            Op::Slice { .. } => OpKind::Slice,
            Op::Pad { .. } => OpKind::Pad,
            Op::Flip { .. } => OpKind::Flip,
            Op::Unfold { .. } => OpKind::Unfold,
            Op::Concat { .. } => OpKind::Concat,
            Op::Gather { .. } => OpKind::Gather,
            Op::Scatter { kind, .. } => OpKind::Scatter(*kind),
            Op::Dot { .. } => OpKind::Dot,
            Op::Dequantize { .. } => OpKind::Dequantize,
            Op::Conv(_) => OpKind::Conv,
            Op::ReduceWindow { kind, .. } => OpKind::ReduceWindow(*kind),
            Op::Attention { .. } => OpKind::Attention,
        }
    }

    /// True for ops that compute each element of the result from the elements at the same place of the operands.
    pub fn is_pointwise(&self) -> bool {
        matches!(self, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast(_) | Op::Bitcast(_))
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
