//! The vector IR: straight-line vector code inside explicit loops, without a lane count.
//!
//! ```text
//!  v0: int  = arg 0                       scalars (`Int`) live in general-purpose registers: pointers, indices, bounds
//!  loop v5 <= v9 step 1·lanes {           a loop's counter is a scalar, its step a number or a number of lane counts
//!    v6: f32 = load.f32 [v1 + v5]         vectors have as many lanes as the target gives
//!    v7: f32 = mul v6, v2
//!    store.f32 [v3 + v5], v7
//!  }
//! ```
//!
//! Code is one flat list in which `Loop`/`End` and `If`/`End` bracket each other. A value is assigned once, but for
//! *variables* (accumulators and counters), which are assigned again inside loops; that is what carries a value round a loop.
//!
//! If a 64-bit vector value occurs anywhere, a vector has `bits / 64` lanes and 32-bit values use registers of half the
//! width; otherwise it has `bits / 32` lanes. A function that only moves elements of one or two bytes has no other vectors than of
//! those, and as many lanes as fill a register (AVX-512 alone, which has masks for them).

mod builder;
mod call;
mod finish;
mod text;
mod transpose;
mod verify;

pub use builder::{Builder, FastHasher};
pub use call::ScalarFn;
pub use kiln_ir::{CompareOp, DType};
pub use transpose::{TransposeFn, transpose};
pub use verify::{VirRule, VirViolation, verify};

/// A value: a scalar, a vector or a mask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct V(pub u32);

impl V {
    /// No value: an absent operand or result.
    pub const NONE: V = V(u32::MAX);

    /// Whether there is a value.
    pub fn is_some(self) -> bool {
        self != V::NONE
    }

    /// The value's place in tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl std::fmt::Debug for V {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_some() { write!(f, "v{}", self.0) } else { f.write_str("_") }
    }
}

/// What a value is. Which arithmetic is done on it is a property of the instruction, so `F32` and `I32` (`F64` and `I64`)
/// values may stand for each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ty {
    /// Vector of 32-bit floats.
    F32,
    /// Vector of 64-bit floats.
    F64,
    /// Vector of 32-bit integers.
    I32,
    /// Vector of 64-bit integers.
    I64,
    /// Vector of elements of two bytes that are moved as they are.
    I16,
    /// Vector of bytes that are moved as they are.
    I8,
    /// One truth value a lane.
    Mask,
    /// A 64-bit scalar.
    Int,
}

impl Ty {
    /// Bytes of a lane; 0 for masks and scalars.
    pub const fn lane_bytes(self) -> usize {
        match self {
            Ty::F32 | Ty::I32 => 4,
            Ty::F64 | Ty::I64 => 8,
            Ty::I16 => 2,
            Ty::I8 => 1,
            Ty::Mask | Ty::Int => 0,
        }
    }

    /// Whether lanes are floats.
    pub const fn is_float(self) -> bool {
        matches!(self, Ty::F32 | Ty::F64)
    }

    /// The integer type of the same width.
    pub const fn as_int(self) -> Ty {
        match self {
            Ty::F32 => Ty::I32,
            Ty::F64 => Ty::I64,
            other => other,
        }
    }

    /// The vector type a compute dtype is held in.
    pub const fn of(dtype: DType) -> Ty {
        match dtype.compute_type() {
            DType::F32 => Ty::F32,
            DType::F64 => Ty::F64,
            DType::I64 => Ty::I64,
            DType::Bool => Ty::Mask,
            _ => Ty::I32,
        }
    }
}

/// Scalar arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IntOp {
    /// a + b
    Add,
    /// a − b
    Sub,
    /// a · b
    Mul,
    /// a / b towards −∞; b = 0 gives 0.
    FloorDiv,
    /// a − b · floor_div(a, b); b = 0 gives 0.
    Modulo,
    /// The smaller.
    Min,
    /// The larger.
    Max,
}

/// Vector arithmetic. Masks take `And`, `Or`, `Xor` and `AndNot`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BinOp {
    /// a + b
    Add,
    /// a − b
    Sub,
    /// a · b
    Mul,
    /// a / b of floats; of 32-bit integers towards zero, 0 where b is 0.
    Div,
    /// Signed integers: the smaller. Floats: `a < b ? a : b`, so b where either is NaN.
    Min,
    /// Signed integers: the larger. Floats: `a > b ? a : b`, so b where either is NaN.
    Max,
    /// As `Min`, but a where a is NaN: NaN if either is.
    MinNan,
    /// As `Max`, but a where a is NaN: NaN if either is.
    MaxNan,
    /// Bits of a and b.
    And,
    /// Bits of a or b.
    Or,
    /// Bits of a or b but not both.
    Xor,
    /// Bits of b that a has not.
    AndNot,
    /// a shifted left by b, a number of bits below the width.
    Shl,
    /// a shifted right by b, a number of bits below the width; copies of the sign come in.
    Sar,
    /// a shifted right by b, a number of bits below the width; zeros come in.
    Shr,
    /// Products of unsigned 32-bit integers in even lanes: the low half of each in the even lane, the high half in the odd one after it.
    MulEven,
    /// 32-bit lanes: the even lanes of a, and those of b in the odd lanes after them.
    ZipEven,
    /// The smaller of the unsigned bytes of 32-bit lanes.
    MinBytes,
    /// The lower half of a's lanes, each with the lane of b after it.
    InterleaveLow,
    /// The upper half of a's lanes, each with the lane of b after it.
    InterleaveHigh,
    /// The even lanes of a, then those of b.
    Evens,
    /// The odd lanes of a, then those of b.
    Odds,
}

impl BinOp {
    /// The lane that each of so many lanes comes from, where lanes are only moved; those of b count on from those of a.
    pub fn moved_lanes(self, lanes: usize) -> Option<impl Iterator<Item = usize>> {
        let from: fn(usize, usize) -> usize = match self {
            BinOp::InterleaveLow => |lane, lanes| lane / 2 + lane % 2 * lanes,
            BinOp::InterleaveHigh => |lane, lanes| lane / 2 + lanes / 2 + lane % 2 * lanes,
            BinOp::Evens => |lane, _| 2 * lane,
            BinOp::Odds => |lane, _| 2 * lane + 1,
            _ => return None,
        };
        Some((0..lanes).map(move |lane| from(lane, lanes)))
    }
}

/// The sign of a product and of what is added to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FmaOp {
    /// a · b + c
    Add,
    /// a · b − c
    Sub,
    /// c − a · b
    NegAdd,
}

/// Vector functions of one operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum UnOp {
    /// √a
    Sqrt,
    /// To the nearest integer, ties to even (floats).
    Round,
    /// Towards −∞ (floats).
    Floor,
    /// Towards +∞ (floats).
    Ceil,
    /// Towards zero (floats).
    Trunc,
    /// Absolute value of integers, wrapping.
    AbsInt,
    /// 32-bit lanes: the odd lanes in the even ones before them, zero in the odd ones.
    OddToEven,
    /// Elements of one or two bytes in reverse order.
    Reverse,
    /// Opposite of a mask.
    Not,
}

/// How all lanes are combined into one, which then fills every lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Combine {
    /// Sum.
    Add,
    /// Product.
    Mul,
    /// [`BinOp::MinNan`] (integers: `Min`); of masks: all.
    Min,
    /// [`BinOp::MaxNan`] (integers: `Max`); of masks: any.
    Max,
}

/// The layout of lanes in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Side by side.
    Contiguous,
    /// Pairs of 16-bit elements side by side, as the 32-bit lanes of I32: even elements in the low halves. The element
    /// type only says how the address counts.
    Pairs,
    /// One element: a load fills every lane with it, a store writes the first lane.
    Single,
    /// With a constant stride: the index operand is that stride, in elements.
    Strided,
    /// Each lane at an element index of its own, from an index vector.
    Indexed,
}

/// A memory operand: `[base + index · element size + disp + vectors · lanes · element size]`. `base` and `index` are
/// instruction operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Memory {
    /// The type in memory.
    pub dtype: DType,
    /// The layout of lanes.
    pub access: Access,
    /// Whole vectors further (contiguous access only).
    pub vectors: u8,
    /// Type of the index vector's lanes, for indexed access.
    pub wide_index: bool,
    /// Bytes further.
    pub disp: i32,
}

impl Memory {
    /// With the type that each lane is read or written as.
    pub fn as_stored(self) -> Memory {
        if self.access == Access::Pairs { Memory { dtype: DType::I32, ..self } } else { self }
    }
}

/// What a loop's counter grows by.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// A number.
    Elements(u32),
    /// A number of vectors.
    Vectors(u32),
}

/// What an instruction does. Operands are named in order: a, b, c, d.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Scalar: the function's argument of that number (0: context, 1: begin, 2: end).
    Arg(u8),
    /// Scalar: a number.
    Number(i64),
    /// Scalar: 64 bits at `[a + disp]`.
    Field(i32),
    /// Scalar: `a ∘ b`.
    Int(IntOp),
    /// Scalar: `a + b · scale + disp`; b may be absent.
    Address {
        /// 1, 2, 4 or 8.
        scale: u8,
        /// Constant part.
        disp: i32,
    },
    /// Scalar: `a + n · lanes`.
    AddLanes(i32),
    /// Scalar: `a · n · lanes`.
    MulLanes(i32),
    /// Scalar: b where the first lane of mask a is true, else c.
    Choose,
    /// Scalar: the first lane of vector a (of the instruction's type), sign-extended; of a mask 0 or 1.
    FirstLane,
    /// Scalar: an integer element at `[a + b · size + disp]`, sign-extended (unsigned types with zeros).
    LoadInt {
        /// The type in memory.
        dtype: DType,
        /// Bytes further.
        disp: i32,
    },
    /// Stores scalar c at `[a + b · size + disp]`.
    StoreInt {
        /// The type in memory.
        dtype: DType,
        /// Bytes further.
        disp: i32,
    },
    /// Assigns a to a variable.
    Copy,
    /// Scalar: the address of byte n of the function's own memory.
    Local(u32),
    /// Copies a block of elements of that many bytes from address a, whose rows have a stride of b elements, to address c,
    /// transposed: columns there have a stride of one lane count. d: rows · 2³² + columns.
    Transpose(u8),
    /// Opens a loop: while counter a < (≤ if `inclusive`) b; after each iteration the counter grows by `step`.
    Loop {
        /// Whether the bound itself is still in.
        inclusive: bool,
        /// What the counter grows by.
        step: Step,
    },
    /// Opens a part that runs if a < b.
    If,
    /// Closes the innermost open loop or part.
    End,
    /// Vector: the same bits in every lane. Mask: all false (0) or all true.
    Const(u64),
    /// Vector: scalar a in every lane (its low bits).
    Splat,
    /// Vector: scalar a + lane number + vectors · lanes.
    LaneIndex(u8),
    /// Mask: lanes whose index `a + lane` is below b, for any a and b.
    TailMask,
    /// Mask, the same in every lane: `a ∘ b` of scalars.
    CompareInt(CompareOp),
    /// Vector: memory at base a with index b, where mask c is true (0 elsewhere).
    Load(Memory),
    /// Memory at base a with index b, where mask c is true: vector d.
    Store(Memory),
    /// Vector: `a ∘ b`.
    Bin(BinOp),
    /// Vector: fused product and sum of a, b, c.
    Fma(FmaOp),
    /// Vector: a function of a.
    Un(UnOp),
    /// Mask: `a ∘ b` of vectors of the instruction's type.
    Compare(CompareOp),
    /// Vector: b where mask a is true, else c.
    Select,
    /// Vector of the instruction's type from one of type `from`; from a scalar, to floats only. Floats to integers truncate, and give the lowest integer
    /// where that does not fit. Integers narrow by wrapping.
    Convert(Ty),
    /// Vector of F32: rounded to the precision of a short float; NaN stays NaN.
    RoundTo(DType),
    /// Vector: lane b\[i\] of a in lane i, where b is a vector of lane numbers, integers as wide as the lanes.
    Permute,
    /// Vector of I32: a, rounded to bf16, in the low halves and b in the high halves.
    PackBf16,
    /// Vector: a · 2ᵇ, rounded once, where b is integral and |b| ≤ 250 (F32) or 2000 (F64).
    Scale,
    /// Vector: all lanes combined, in every lane.
    Reduce(Combine),
    /// Vector: a scalar function, lane by lane, of a (and b). With a mask c: only where it is true, else d, and nothing is
    /// called where no lane is.
    Call(ScalarFn),
    /// a where 0 ≤ a < scalar b, else 0; then, if mask c (absent: all) is true there, the record at d is filled.
    CheckIndex,
}

/// One instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Inst {
    /// The operation.
    pub op: Op,
    /// The type worked on: the result's, but for comparisons, stores and `FirstLane`, where it is the operand's.
    pub ty: Ty,
    /// What it assigns, or [`V::NONE`].
    pub dst: V,
    /// Its operands, [`V::NONE`] where absent.
    pub args: [V; 4],
}

/// A function in the vector IR: `extern "C" fn(context, begin, end)`.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// The code.
    pub insts: Vec<Inst>,
    /// The type of each value.
    pub types: Vec<Ty>,
    /// Whether a 64-bit vector value occurs.
    pub wide: bool,
    /// Bytes of a lane where vectors are elements that are only moved; 0 elsewhere.
    pub packed: u8,
    /// Bytes of memory of its own.
    pub local_bytes: u32,
}

impl Function {
    /// Lanes of a vector on a machine with vectors of so many bytes.
    pub fn lanes(&self, vector_bytes: usize) -> usize {
        match self.packed {
            0 => vector_bytes / if self.wide { 8 } else { 4 },
            bytes => vector_bytes / usize::from(bytes),
        }
    }
}

/// What a kernel's code is given: the function's first argument.
#[repr(C)]
#[derive(Debug)]
pub struct Context {
    /// Buffers' first bytes.
    pub buffers: *const *mut u8,
    /// Values of the size symbols.
    pub sizes: *const i64,
    /// Room for row temporaries.
    pub scratch: *mut u8,
    /// Where a bad index is recorded.
    pub error: *mut IndexRecord,
}

/// The first index out of range that a piece of work met.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
pub struct IndexRecord {
    /// 1 if there is one.
    pub set: i64,
    /// The index.
    pub index: i64,
    /// The exclusive bound it breaks.
    pub size: i64,
}
