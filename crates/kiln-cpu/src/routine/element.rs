//! Elements of routines: every dtype widens to `f64` or `i64`, exactly, and narrows back as a store does.

use half::{bf16, f16};
use kiln_ir::{DType, ReduceKind};

/// A number wide enough for every element of its family.
pub trait Wide: Copy + PartialEq {
    /// The neutral element.
    fn identity(kind: ReduceKind) -> Self;
    /// One step of a combination; NaN wins over everything in Max and Min.
    fn combine(kind: ReduceKind, a: Self, b: Self) -> Self;
    /// A number whose order is that of a sort: NaN is the largest, both zeros are one.
    fn rank(self) -> u64;
}

/// One of two floats, without a branch.
#[inline(always)]
fn choose<T>(condition: bool, yes: T, no: T) -> T {
    std::hint::select_unpredictable(condition, yes, no)
}

impl Wide for f64 {
    fn identity(kind: ReduceKind) -> f64 {
        kind.float_identity()
    }
    fn combine(kind: ReduceKind, a: f64, b: f64) -> f64 {
        match kind {
            ReduceKind::Sum => a + b,
            ReduceKind::Prod => a * b,
            // Both sides are computed: which it is no processor can foresee.
            ReduceKind::Max => choose((b > a) | b.is_nan(), b, a),
            ReduceKind::Min => choose((b < a) | b.is_nan(), b, a),
        }
    }
    #[inline(always)]
    fn rank(self) -> u64 {
        // As ranks of f32 below.
        let bits = (self + 0.0).to_bits();
        let rank = bits ^ (((bits as i64) >> 63) as u64 | 1 << 63);
        if self.is_nan() { u64::MAX } else { rank }
    }
}

impl Wide for i64 {
    fn identity(kind: ReduceKind) -> i64 {
        kind.identity(DType::I64).as_i64()
    }
    fn combine(kind: ReduceKind, a: i64, b: i64) -> i64 {
        match kind {
            ReduceKind::Sum => a.wrapping_add(b),
            ReduceKind::Prod => a.wrapping_mul(b),
            ReduceKind::Max => a.max(b),
            ReduceKind::Min => a.min(b),
        }
    }
    #[inline(always)]
    fn rank(self) -> u64 {
        self as u64 ^ 1 << 63
    }
}

/// An element in memory.
pub trait Element: Copy + Send + Sync + 'static {
    /// What it is computed with.
    type Wide: Wide;
    /// Exactly.
    fn widen(self) -> Self::Wide;
    /// As a store narrows: floats round to nearest even, integers wrap, bools become `≠ 0`.
    fn narrow(wide: Self::Wide) -> Self;
    /// One step of a combination: what widening, combining and narrowing give.
    #[inline(always)]
    fn combine(kind: ReduceKind, a: Self, b: Self) -> Self {
        Self::narrow(Self::Wide::combine(kind, a.widen(), b.widen()))
    }
    /// Whether no sum of elements is too large for what it is computed with, in whichever order they are added. Integers wrap.
    const SUMS_FIT: bool = true;
    /// Whether [`Element::rank`] is injective.
    const RANKED: bool;
    /// A number that orders as [`Wide::rank`] does.
    fn rank(self) -> u32;
}

/// Floats by their bits: the sign makes the order of the others. Both zeros are one value, all NaNs are the largest.
#[inline(always)]
fn rank_of_float(value: f32) -> u32 {
    let bits = (value + 0.0).to_bits();
    // All ones where it is negative, so that those are turned round; without a branch.
    let rank = bits ^ (((bits as i32) >> 31) as u32 | 1 << 31);
    if value.is_nan() { u32::MAX } else { rank }
}

/// Integers of up to 32 bits, shifted to where none is negative.
#[inline(always)]
fn rank_of_whole(value: i64) -> u32 {
    (value - i64::from(i32::MIN)) as u32
}

macro_rules! element {
    ($type:ty, $wide:ty, $widen:expr, $narrow:expr, $ranked:expr, $rank:expr $(, $own:item)?) => {
        impl Element for $type {
            type Wide = $wide;
            $($own)?
            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> $type {
                $narrow(wide)
            }
            const RANKED: bool = $ranked;
            #[inline(always)]
            fn rank(self) -> u32 {
                $rank(self)
            }
        }
    };
}

/// A combination of elements that f32 holds exactly. Sums and products of two of them round to the same f32 whether they are computed
/// in 24 bits or in 53.
#[inline(always)]
fn combine_short(kind: ReduceKind, a: f32, b: f32) -> f32 {
    match kind {
        ReduceKind::Sum => a + b,
        ReduceKind::Prod => a * b,
        ReduceKind::Max => choose((b > a) | b.is_nan(), b, a),
        ReduceKind::Min => choose((b < a) | b.is_nan(), b, a),
    }
}

#[inline(always)]
fn of_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// To the nearest, of two as near to the even one; without a branch.
#[inline(always)]
fn to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    bf16::from_bits(if value.is_nan() { bits >> 16 | 0x40 } else { rounded } as u16)
}

element!(
    f32,
    f64,
    f64::from,
    |w| w as f32,
    true,
    rank_of_float,
    #[inline(always)]
    fn combine(kind: ReduceKind, a: f32, b: f32) -> f32 {
        combine_short(kind, a, b)
    }
);
element!(f64, f64, |v| v, |w| w, false, |v: f64| rank_of_float(v as f32), const SUMS_FIT: bool = false;);
element!(
    f16,
    f64,
    |v: f16| f64::from(v.to_f32()),
    |w| f16::from_f32(w as f32),
    true,
    |v: f16| rank_of_float(v.to_f32()),
    #[inline(always)]
    fn combine(kind: ReduceKind, a: f16, b: f16) -> f16 {
        f16::from_f32(combine_short(kind, a.to_f32(), b.to_f32()))
    }
);
element!(
    bf16,
    f64,
    |v| f64::from(of_bf16(v)),
    |w| to_bf16(w as f32),
    true,
    |v| rank_of_float(of_bf16(v)),
    #[inline(always)]
    fn combine(kind: ReduceKind, a: bf16, b: bf16) -> bf16 {
        to_bf16(combine_short(kind, of_bf16(a), of_bf16(b)))
    }
);
element!(i8, i64, i64::from, |w| w as i8, true, |v: i8| rank_of_whole(v.into()));
element!(i16, i64, i64::from, |w| w as i16, true, |v: i16| rank_of_whole(v.into()));
element!(i32, i64, i64::from, |w| w as i32, true, |v: i32| rank_of_whole(v.into()));
element!(i64, i64, |v| v, |w| w, false, rank_of_whole);
element!(u8, i64, i64::from, |w| w as u8, true, |v: u8| rank_of_whole(v.into()));

/// A float of two bytes, whose sums are kept in f32 while they grow.
pub trait ShortFloat: Element {
    /// Exactly.
    fn to_single(self) -> f32;
    /// To the nearest.
    fn of_single(value: f32) -> Self;
}

impl ShortFloat for bf16 {
    #[inline(always)]
    fn to_single(self) -> f32 {
        of_bf16(self)
    }
    #[inline(always)]
    fn of_single(value: f32) -> bf16 {
        to_bf16(value)
    }
}

impl ShortFloat for f16 {
    #[inline(always)]
    fn to_single(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn of_single(value: f32) -> f16 {
        f16::from_f32(value)
    }
}

/// A bool in memory: one byte, 0 or 1.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Flag(u8);
element!(Flag, i64, |v: Flag| (v.0 != 0) as i64, |w| Flag((w != 0) as u8), true, |v: Flag| u32::from(v.0 != 0));

/// Runs `$body` with `$T` bound to the Rust type of a computable dtype.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            kiln_ir::DType::F32 => {
                type $T = f32;
                $body
            }
            kiln_ir::DType::F64 => {
                type $T = f64;
                $body
            }
            kiln_ir::DType::F16 => {
                type $T = half::f16;
                $body
            }
            kiln_ir::DType::Bf16 => {
                type $T = half::bf16;
                $body
            }
            kiln_ir::DType::I8 => {
                type $T = i8;
                $body
            }
            kiln_ir::DType::I16 => {
                type $T = i16;
                $body
            }
            kiln_ir::DType::I32 => {
                type $T = i32;
                $body
            }
            kiln_ir::DType::I64 => {
                type $T = i64;
                $body
            }
            kiln_ir::DType::U8 => {
                type $T = u8;
                $body
            }
            kiln_ir::DType::Bool => {
                type $T = $crate::routine::element::Flag;
                $body
            }
            kiln_ir::DType::F8E4M3 | kiln_ir::DType::F8E5M2 | kiln_ir::DType::I4 => {
                unreachable!("storage-only dtypes are refused when the routine is made")
            }
        }
    };
}
pub(super) use with_element;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_as_everywhere_else() {
        for bits in 0..=u16::MAX {
            let value = bf16::from_bits(bits);
            assert_eq!(of_bf16(value).to_bits(), u32::from(bits) << 16);
            // Numbers between this one and the next.
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let between = f32::from_bits(u32::from(bits) << 16 | low);
                assert_eq!(to_bf16(between).to_bits(), bf16::from_f32(between).to_bits(), "{between:e}");
            }
        }
    }
}
