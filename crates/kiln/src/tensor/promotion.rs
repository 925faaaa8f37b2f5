//! Type promotion: the common dtype of an operation's operands. The rules are PyTorch's.
//!
//! Dtypes fall into three kinds, ordered `bool < integer < float`. Operands fall into three ranks: tensors with axes, tensors without axes,
//! plain numbers. An operand of a lower rank matters only if its *kind* is above that of every operand of a higher rank:
//!
//! | operation | dtype |
//! |---|---|
//! | `f32[3] + f64[3]` | `f64`: one rank, the wider wins |
//! | `f16[3] + bf16[3]` | `f32`: neither holds the other |
//! | `i8[3] + u8[3]` | `i16` |
//! | `f16[3] + i64[3]` | `f16`: the float wins over any integer |
//! | `f16[3] + f64[]` | `f16`: a tensor without axes does not widen |
//! | `i32[3] + 2.5` | `f32`, the default float: the number's kind is higher |
//! | `i32[3] + 2` | `i32` |
//! | `bool[3] + 1` | `i64`, the default integer |
//!
//! Division, mean and transcendental functions (`exp`, `sin`, …) convert integers and bools to `f32` first. Storage types
//! (`f8e4m3`, `f8e5m2`, `i4`) do not take part: cast first.

use crate::{DType, Number, Tensor};

/// The float that integers become where a float is needed.
pub const DEFAULT_FLOAT: DType = DType::F32;

/// Returns the smallest dtype that both convert to, by PyTorch's table.
///
/// ```
/// use kiln::{DType, promotion::join};
/// assert_eq!(join(DType::F16, DType::Bf16), DType::F32);
/// assert_eq!(join(DType::I8, DType::U8), DType::I16);
/// assert_eq!(join(DType::Bool, DType::I32), DType::I32);
/// ```
pub fn join(a: DType, b: DType) -> DType {
    use DType::*;
    if a == b {
        return a;
    }
    match (kind(a), kind(b)) {
        (x, y) if x > y => a,
        (x, y) if x < y => b,
        (Kind::Float, _) => match (a, b) {
            (F64, _) | (_, F64) => F64,
            _ => F32,
        },
        _ => match (a, b) {
            (U8, I8) | (I8, U8) => I16,
            _ if width(a) >= width(b) => a,
            _ => b,
        },
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Bool,
    Int,
    Float,
}

pub(crate) fn kind(dtype: DType) -> Kind {
    match dtype {
        DType::Bool => Kind::Bool,
        d if d.is_float() => Kind::Float,
        _ => Kind::Int,
    }
}

fn width(dtype: DType) -> (usize, bool) {
    (dtype.size_in_bits(), dtype != DType::U8)
}

/// An operand as promotion sees it.
#[derive(Clone, Copy)]
pub(crate) enum Operand {
    /// A tensor's dtype and rank.
    Tensor(DType, usize),
    /// A plain number.
    Number(Number),
}

impl From<&Tensor> for Operand {
    fn from(t: &Tensor) -> Operand {
        Operand::Tensor(t.dtype(), t.rank())
    }
}

/// The dtype of an operation on these operands.
pub(crate) fn promote(operands: &[Operand]) -> DType {
    let mut by_rank: [Option<DType>; 3] = [None; 3];
    for &operand in operands {
        let (rank, dtype) = match operand {
            Operand::Tensor(dtype, 1..) => (0, dtype),
            Operand::Tensor(dtype, 0) => (1, dtype),
            Operand::Number(Number::Float(_)) => (2, DEFAULT_FLOAT),
            Operand::Number(Number::Int(_)) => (2, DType::I64),
            Operand::Number(Number::Bool(_)) => (2, DType::Bool),
        };
        by_rank[rank] = Some(by_rank[rank].map_or(dtype, |known| join(known, dtype)));
    }
    let higher_kind = |above: DType, below: DType| if kind(below) > kind(above) { below } else { above };
    by_rank.into_iter().flatten().reduce(higher_kind).unwrap_or(DEFAULT_FLOAT)
}

/// The dtype itself if it is a float, else the default float.
pub(crate) fn to_float(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DEFAULT_FLOAT }
}

#[cfg(test)]
mod tests {
    use super::*;
    use DType::*;

    #[test]
    fn join_is_pytorchs_table() {
        // The rows of torch.promote_types, in this order of columns.
        let order = [Bool, U8, I8, I16, I32, I64, F16, Bf16, F32, F64];
        let table = [
            [Bool, U8, I8, I16, I32, I64, F16, Bf16, F32, F64],
            [U8, U8, I16, I16, I32, I64, F16, Bf16, F32, F64],
            [I8, I16, I8, I16, I32, I64, F16, Bf16, F32, F64],
            [I16, I16, I16, I16, I32, I64, F16, Bf16, F32, F64],
            [I32, I32, I32, I32, I32, I64, F16, Bf16, F32, F64],
            [I64, I64, I64, I64, I64, I64, F16, Bf16, F32, F64],
            [F16, F16, F16, F16, F16, F16, F16, F32, F32, F64],
            [Bf16, Bf16, Bf16, Bf16, Bf16, Bf16, F32, Bf16, F32, F64],
            [F32, F32, F32, F32, F32, F32, F32, F32, F32, F64],
            [F64, F64, F64, F64, F64, F64, F64, F64, F64, F64],
        ];
        for (i, &a) in order.iter().enumerate() {
            for (j, &b) in order.iter().enumerate() {
                assert_eq!(join(a, b), table[i][j], "{a} and {b}");
            }
        }
    }

    #[test]
    fn ranks_matter() {
        let t = |dtype, rank| Operand::Tensor(dtype, rank);
        assert_eq!(promote(&[t(F16, 1), t(F64, 0)]), F16);
        assert_eq!(promote(&[t(I32, 2), Operand::Number(Number::Float(2.5))]), F32);
        assert_eq!(promote(&[t(I32, 2), Operand::Number(Number::Int(2))]), I32);
        assert_eq!(promote(&[t(Bool, 1), Operand::Number(Number::Int(1))]), I64);
        assert_eq!(promote(&[t(F64, 0), Operand::Number(Number::Float(1.0))]), F64);
        assert_eq!(promote(&[t(I64, 1), t(F16, 0)]), F16);
        assert_eq!(promote(&[t(U8, 1), t(I8, 1), Operand::Number(Number::Bool(true))]), I16);
    }
}
