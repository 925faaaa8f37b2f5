//! The right operand of a product as it is in memory, where kernels pack it as they multiply.

use super::kernel::Format;
use super::packing_kernel::{self, Along};
use super::source::Operand;
use super::words::Words;
use crate::features::Isa;
use kiln_ir::DType;

/// A B in memory that kernels pack themselves.
#[derive(Clone, Copy)]
pub(super) struct Unpacked {
    pub along: Along,
    data: *const u8,
    /// Bytes from one row to the next, and from one column to the next.
    row: isize,
    column: isize,
}

impl Unpacked {
    /// `None` for operands that are packed by other code.
    pub fn of(isa: Isa, format: Option<Format>, k: usize, b: &Operand<'_>) -> Option<Unpacked> {
        let (Operand::Strided(m), Some(format), Isa::Avx512) = (b, format, isa) else { return None };
        let dtype = format.words().map_or(DType::F32, Words::dtype);
        let along = match (m.row_stride, m.column_stride) {
            (_, 1) => Along::Rows,
            (1, _) => Along::Columns,
            _ => return None,
        };
        if m.dtype != dtype
            || !packing_kernel::is_whole(format, along, k)
            || !packing_kernel::is_possible(format, along)
        {
            return None;
        }
        let size = (dtype.size_in_bits() / 8) as isize;
        Some(Unpacked { along, data: m.data, row: m.row_stride * size, column: m.column_stride * size })
    }

    /// Bytes from one row or column to the next.
    pub fn stride(&self) -> isize {
        match self.along {
            Along::Rows => self.row,
            Along::Columns => self.column,
        }
    }

    /// An element.
    pub fn at(&self, k: usize, column: usize) -> *const u8 {
        self.data.wrapping_offset(k as isize * self.row + column as isize * self.column)
    }
}
