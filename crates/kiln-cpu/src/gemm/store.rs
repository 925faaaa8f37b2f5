//! The default epilogue: tiles are converted and written to strided memory.

use super::GemmError;
use super::source::{Epilogue, Tile};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kiln_ir::DType;

/// Writes the result to memory at `data + row · row_stride + column · column_stride`, rounding to `dtype`.
#[derive(Clone, Copy, Debug)]
pub struct Store {
    data: *mut u8,
    dtype: DType,
    row_stride: isize,
    column_stride: isize,
}

// SAFETY: a description of memory; the caller that runs a product guarantees that it is valid, and tiles do not overlap.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

impl Epilogue for Store {
    unsafe fn apply(&self, tile: Tile) {
        // SAFETY: the tile is valid, and the caller of the product guarantees the memory behind `self`.
        unsafe {
            match tile.dtype {
                DType::F64 if !self.copies::<f64>(&tile) => self.write_f64(&tile),
                DType::I32 if !self.copies::<i32>(&tile) => self.write_i32(&tile),
                DType::I64 if !self.copies::<i64>(&tile) => self.write_i64(&tile),
                DType::F64 | DType::I32 | DType::I64 => {}
                _ => self.write_f32(&tile),
            }
        }
    }
}

macro_rules! write_rows {
    ($self:ident, $tile:ident, $from:ty, $to:ty, $convert:expr) => {
        for row in 0..$tile.rows {
            let from = $tile.data.cast::<$from>().add(row * $tile.row_stride);
            let to = $self.row::<$to>($tile, row);
            for column in 0..$tile.columns {
                let value: $to = $convert(*from.add(column));
                to.offset(column as isize * $self.column_stride).write_unaligned(value);
            }
        }
    };
}

macro_rules! write_from {
    ($name:ident, $from:ty) => {
        unsafe fn $name(&self, tile: &Tile) {
            // SAFETY: as for `apply`.
            unsafe {
                match self.dtype {
                    DType::F32 => write_rows!(self, tile, $from, f32, |v: $from| v as f32),
                    DType::F64 => write_rows!(self, tile, $from, f64, |v: $from| v as f64),
                    DType::F16 => write_rows!(self, tile, $from, f16, |v: $from| f16::from_f64(v as f64)),
                    DType::Bf16 => write_rows!(self, tile, $from, bf16, |v: $from| bf16::from_f64(v as f64)),
                    DType::I8 => write_rows!(self, tile, $from, i8, |v: $from| v as i8),
                    DType::I16 => write_rows!(self, tile, $from, i16, |v: $from| v as i16),
                    DType::I32 => write_rows!(self, tile, $from, i32, |v: $from| v as i32),
                    DType::I64 => write_rows!(self, tile, $from, i64, |v: $from| v as i64),
                    DType::U8 => write_rows!(self, tile, $from, u8, |v: $from| v as u8),
                    other => unreachable!("{other:?} was refused by `Store::new`"),
                }
            }
        }
    };
}

/// Rounds floats to nearest even, subnormal ones too, which AVX512_BF16 would flush to zero.
fn round_to_bf16(from: &[f32], to: &mut [bf16]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bw") {
        // SAFETY: the feature is there.
        return unsafe { round_to_bf16_512(from, to) };
    }
    to.convert_from_f32_slice(from);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn round_to_bf16_512(from: &[f32], to: &mut [bf16]) {
    for (to, from) in to.iter_mut().zip(from) {
        let bits = from.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        *to = bf16::from_bits(if bits & 0x7fff_ffff > 0x7f80_0000 { quiet } else { rounded } as u16);
    }
}

impl Store {
    /// A store with strides in elements. Storage-only types and `bool` take no products.
    pub fn new(data: *mut u8, dtype: DType, row_stride: isize, column_stride: isize) -> Result<Store, GemmError> {
        match dtype {
            DType::Bool | DType::F8E4M3 | DType::F8E5M2 | DType::I4 => Err(GemmError::Unwritable { dtype }),
            _ => Ok(Store { data, dtype, row_stride, column_stride }),
        }
    }

    unsafe fn row<T>(&self, tile: &Tile, row: usize) -> *mut T {
        let offset = (tile.row + row) as isize * self.row_stride + tile.column as isize * self.column_stride;
        // SAFETY: an element of the result.
        unsafe { self.data.cast::<T>().offset(offset) }
    }

    /// Copies rows of accumulators that are stored as they are, side by side; false where they are not.
    unsafe fn copies<T>(&self, tile: &Tile) -> bool {
        let same = self.dtype == tile.dtype && self.column_stride == 1;
        for row in (0..tile.rows).filter(|_| same) {
            // SAFETY: the tile's rows hold `columns` accumulators, and so do the result's.
            unsafe {
                let from = tile.data.cast::<T>().add(row * tile.row_stride);
                std::ptr::copy_nonoverlapping(from, self.row::<T>(tile, row), tile.columns);
            }
        }
        same
    }

    unsafe fn write_f32(&self, tile: &Tile) {
        if self.column_stride != 1 || !matches!(self.dtype, DType::F32 | DType::F16 | DType::Bf16) {
            // SAFETY: as for `apply`.
            return unsafe { self.write_f32_any(tile) };
        }
        for row in 0..tile.rows {
            // SAFETY: the tile's rows hold `columns` accumulators, and so do the result's.
            unsafe {
                let from = std::slice::from_raw_parts(tile.data.cast::<f32>().add(row * tile.row_stride), tile.columns);
                match self.dtype {
                    DType::F32 => {
                        std::ptr::copy_nonoverlapping(from.as_ptr(), self.row::<f32>(tile, row), tile.columns);
                    }
                    DType::F16 => {
                        std::slice::from_raw_parts_mut(self.row::<f16>(tile, row), tile.columns)
                            .convert_from_f32_slice(from);
                    }
                    _ => round_to_bf16(from, std::slice::from_raw_parts_mut(self.row::<bf16>(tile, row), tile.columns)),
                }
            }
        }
    }

    write_from!(write_f32_any, f32);
    write_from!(write_f64, f64);
    write_from!(write_i32, i32);
    write_from!(write_i64, i64);
}
