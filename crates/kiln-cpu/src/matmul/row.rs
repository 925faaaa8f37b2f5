//! One row times a small weight, the product that decoding consists of: all that can be is decided when the kernel is made,
//! and a launch is one call of generated code and one of the epilogue.

use super::plain::{PlainLoad, PlainStore};
use super::{Finish, Matmul, Side};
use crate::gemm::row::{self, ROWS, RowFn};
use crate::gemm::{Scratch, is_one_task};
use crate::memory::MemoryError;
use kiln_ir::{DType, Dim};
use kiln_runtime::{LaunchError, RawBuffer};

/// The most sums that are on the stack.
const ON_STACK: usize = 1024;

/// A product of one row of known sizes.
pub(super) struct Row {
    code: RowFn,
    a: Bytes,
    w: Bytes,
    /// Bytes from one row of the weight to the next (wrapping).
    stride: usize,
    columns: usize,
    destination: SumsDestination,
}

/// The destination of the sums.
enum SumsDestination {
    /// They are stored unchanged.
    Store(Bytes),
    /// The epilogue takes them, with these values.
    Finish([i64; 5]),
}

/// A place in a buffer.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    buffer: usize,
    offset: isize,
}

impl Bytes {
    pub(super) fn of(buffer: usize, offset: &Dim, dtype: DType) -> Option<Bytes> {
        let bytes = dtype.size_in_bits() as i64 / 8;
        Some(Bytes { buffer, offset: offset.as_const()?.checked_mul(bytes)? as isize })
    }

    pub(super) fn at(self, buffers: &[RawBuffer]) -> *mut u8 {
        buffers[self.buffer].ptr.wrapping_offset(self.offset)
    }
}

impl Row {
    /// `None` for all other products.
    pub fn of(matmul: &Matmul) -> Result<Option<Row>, MemoryError> {
        Row::find(matmul).unwrap_or(Ok(None))
    }

    fn find(matmul: &Matmul) -> Option<Result<Option<Row>, MemoryError>> {
        let (Side::Plain(left), Side::Plain(right)) = (&matmul.left, &matmul.right) else { return None };
        let size = |dim: &Dim| dim.as_const().and_then(|n| usize::try_from(n).ok());
        let (m, n, k) = (size(&matmul.rows)?, size(&matmul.columns)?, size(&matmul.summed)?);
        let alone = matmul.batch.is_empty() && matmul.symbols.is_empty() && matmul.acc == DType::F32;
        let along_k = |plain: &PlainLoad, step: &Dim| {
            (plain.dtype.is_float() || matmul.acc == DType::F32 && plain.dtype == DType::I8) && step.is_one()
        };
        let fits = alone && m == 1 && n >= ROWS && is_one_task(n, k, right.dtype);
        let direct = left.dtype == DType::F32 && along_k(left, &left.column) && along_k(right, &right.row);
        if !fits || !direct || matmul.choices.stream == Some(0) {
            return None;
        }
        let stride = right.column.as_const()?.checked_mul(right.dtype.size_in_bits() as i64 / 8)? as usize;
        let (a, w) =
            (Bytes::of(left.buffer, &left.offset, left.dtype)?, Bytes::of(right.buffer, &right.offset, right.dtype)?);
        let destination = match &matmul.finish {
            Finish::Plain(PlainStore { buffer, dtype: DType::F32, offset, column, .. }) if column.is_one() => {
                SumsDestination::Store(Bytes::of(*buffer, offset, DType::F32)?)
            }
            Finish::Plain(_) => return None,
            Finish::Fused(tiles) => SumsDestination::Finish(tiles.whole_row(n)?),
        };
        let chosen = matmul.choices.streams.map(|streams| streams == 1);
        let row = |code| Row { code, a, w, stride, columns: n, destination };
        Some(row::get(matmul.isa, right.dtype, (n, k), chosen).map(|code| code.map(row)))
    }

    /// Runs the product of a kernel.
    ///
    /// # Safety
    /// As [`Matmul::launch`].
    pub unsafe fn launch(&self, finish: &Finish, buffers: &[RawBuffer]) -> Result<(), LaunchError> {
        let values = match &self.destination {
            SumsDestination::Store(to) => {
                // SAFETY: the kernel's own memory.
                unsafe { self.multiply(buffers, to.at(buffers)) };
                return Ok(());
            }
            SumsDestination::Finish(values) => values,
        };
        let mut near = [std::mem::MaybeUninit::<f32>::uninit(); ON_STACK];
        let far = (self.columns > ON_STACK).then(|| Scratch::take::<f32>(self.columns));
        let sums = far.as_ref().map_or(near.as_mut_ptr().cast::<u8>(), |far| far.ptr());
        // SAFETY: room for all columns; the rest is passed on from the caller.
        unsafe {
            self.multiply(buffers, sums);
            match finish {
                Finish::Fused(tiles) => tiles.finish_row(buffers, values, sums),
                Finish::Plain(_) => Ok(()),
            }
        }
    }

    /// All sums, to memory that holds them.
    unsafe fn multiply(&self, buffers: &[RawBuffer], to: *mut u8) {
        let (a, w) = (self.a.at(buffers), self.w.at(buffers));
        let iterations = self.columns / ROWS;
        // SAFETY: inside the operands and the sums.
        unsafe {
            (self.code)(a, w, to, iterations, self.stride);
            if !self.columns.is_multiple_of(ROWS) {
                // The last rows, some of them once more.
                let first = self.columns - ROWS;
                let w = w.wrapping_add(first.wrapping_mul(self.stride));
                (self.code)(a, w, to.add(4 * first), 1, self.stride);
            }
        }
    }
}
