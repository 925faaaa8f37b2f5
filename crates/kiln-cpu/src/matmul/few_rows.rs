//! A few rows times a packed weight, the product that a turn of a recurrent network consists of: all that can be is decided when the kernel
//! is made.

use super::row::Bytes;
use super::{Finish, Matmul, Side};
use crate::gemm::{Epilogue, FewRows, GemmError, Matrix, Scratch, Store, Tile};
use kiln_ir::{DType, Dim};
use kiln_runtime::{LaunchError, RawBuffer};

/// A product of a few rows of known sizes with panels.
pub(super) struct PackedRows {
    code: FewRows,
    a: Bytes,
    dtype: DType,
    row_stride: isize,
    column_stride: isize,
    panels: usize,
    rows: usize,
    columns: usize,
    destination: Destination,
}

/// What becomes of the sums.
enum Destination {
    /// The product writes them where they belong, in rows so far apart.
    There { to: Bytes, stride: usize },
    /// They are stored.
    Store { to: Bytes, dtype: DType, row: isize, column: isize },
    /// The epilogue takes them, with these values.
    Finish([i64; 5]),
}

impl PackedRows {
    /// `None` for all other products.
    pub fn of(matmul: &Matmul) -> Result<Option<PackedRows>, GemmError> {
        PackedRows::find(matmul).unwrap_or(Ok(None))
    }

    fn find(matmul: &Matmul) -> Option<Result<Option<PackedRows>, GemmError>> {
        let (Side::Plain(left), Side::Packed { buffer, panels }) = (&matmul.left, &matmul.right) else { return None };
        let size = |dim: &Dim| dim.as_const().and_then(|n| usize::try_from(n).ok());
        let stride = |dim: &Dim| dim.as_const().and_then(|n| isize::try_from(n).ok());
        let (rows, columns) = (size(&matmul.rows)?, size(&matmul.columns)?);
        if !matmul.batch.is_empty() || !matmul.symbols.is_empty() || matmul.acc != DType::F32 {
            return None;
        }
        let code = match FewRows::new(panels, rows) {
            Ok(code) => code?,
            Err(error) => return Some(Err(error)),
        };
        let destination = match &matmul.finish {
            Finish::Plain(plain) => {
                let to = Bytes::of(plain.buffer, &plain.offset, plain.dtype)?;
                let (row, column) = (stride(&plain.row)?, stride(&plain.column)?);
                match usize::try_from(row) {
                    Ok(row) if plain.dtype == DType::F32 && column == 1 && row >= columns && code.is_whole(columns) => {
                        Destination::There { to, stride: row }
                    }
                    _ => Destination::Store { to, dtype: plain.dtype, row, column },
                }
            }
            Finish::Fused(tiles) => Destination::Finish(tiles.whole_rows(rows, columns, code.stride())?),
        };
        Some(Ok(Some(PackedRows {
            code,
            a: Bytes::of(left.buffer, &left.offset, left.dtype)?,
            dtype: left.dtype,
            row_stride: stride(&left.row)?,
            column_stride: stride(&left.column)?,
            panels: *buffer,
            rows,
            columns,
            destination,
        })))
    }

    /// Runs the product of a kernel.
    ///
    /// # Safety
    /// As [`Matmul::launch`].
    pub unsafe fn launch(&self, finish: &Finish, buffers: &[RawBuffer]) -> Result<(), LaunchError> {
        let a = Scratch::take::<f32>(self.code.packed());
        let rows = Matrix {
            data: self.a.at(buffers),
            dtype: self.dtype,
            row_stride: self.row_stride,
            column_stride: self.column_stride,
        };
        let panels = buffers[self.panels].ptr;
        if let Destination::There { to, stride } = &self.destination {
            // SAFETY: the kernel's own memory, of which the panels were packed for it.
            unsafe { self.code.run(&rows, panels, a.ptr(), to.at(buffers).cast(), *stride) };
            return Ok(());
        }
        let memory = Scratch::take::<f32>(self.code.sums());
        // SAFETY: as above; the scratch has room for the sums.
        unsafe {
            self.code.run(&rows, panels, a.ptr(), memory.ptr(), self.code.stride());
            match (&self.destination, finish) {
                (Destination::Finish(values), Finish::Fused(tiles)) => {
                    return tiles.finish_row(buffers, values, memory.ptr());
                }
                (Destination::Store { to, dtype, row, column }, _) => {
                    let store = Store::new(to.at(buffers), *dtype, *row, *column)
                        .map_err(|error| LaunchError::Device { code: 0, message: error.to_string() })?;
                    store.apply(Tile {
                        data: memory.ptr(),
                        dtype: DType::F32,
                        row_stride: self.code.stride(),
                        row: 0,
                        rows: self.rows,
                        column: 0,
                        columns: self.columns,
                    });
                }
                (Destination::There { .. }, _) | (Destination::Finish(_), Finish::Plain(_)) => {
                    unreachable!("the destination is made of the finish")
                }
            }
        }
        Ok(())
    }
}
