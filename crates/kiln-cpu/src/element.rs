//! One element of memory, read and written by plain Rust: what the portable executor and the reference evaluator share.

use half::{bf16, f16};
use kiln_ir::{DType, float8};

/// Reads element `index` of a buffer, widened to its compute type: the bits of an f32, f64, i32 or i64, or 0 or 1.
///
/// # Safety
/// The element is in memory that may be read.
pub unsafe fn read(dtype: DType, base: *const u8, index: i64) -> u64 {
    // SAFETY: by the caller's promise; packed halves share a byte.
    unsafe {
        let at = |size: i64| base.offset((index * size) as isize);
        match dtype {
            DType::F32 | DType::I32 => u64::from(at(4).cast::<u32>().read_unaligned()),
            DType::F64 | DType::I64 => at(8).cast::<u64>().read_unaligned(),
            DType::F16 => f16::from_bits(at(2).cast::<u16>().read_unaligned()).to_f32().to_bits().into(),
            DType::Bf16 => u64::from(at(2).cast::<u16>().read_unaligned()) << 16,
            DType::I8 => at(1).cast::<i8>().read() as i32 as u32 as u64,
            DType::I16 => at(2).cast::<i16>().read_unaligned() as i32 as u32 as u64,
            DType::U8 => at(1).read().into(),
            DType::Bool => (at(1).read() != 0).into(),
            DType::F8E4M3 | DType::F8E5M2 => (float8::decode(dtype, at(1).read()) as f32).to_bits().into(),
            DType::I4 => {
                let byte = base.offset((index >> 1) as isize).read();
                let half = (byte >> (4 * (index & 1))) as i8;
                (half << 4 >> 4) as i32 as u32 as u64
            }
        }
    }
}

/// Writes element `index` of a buffer from the bits of its compute type.
///
/// # Safety
/// The element is in memory that may be written by this thread alone (for packed halves: the whole byte).
pub unsafe fn write(dtype: DType, base: *mut u8, index: i64, bits: u64) {
    let f32_bits = || f32::from_bits(bits as u32);
    // SAFETY: by the caller's promise.
    unsafe {
        let at = |size: i64| base.offset((index * size) as isize);
        match dtype {
            DType::F32 | DType::I32 => at(4).cast::<u32>().write_unaligned(bits as u32),
            DType::F64 | DType::I64 => at(8).cast::<u64>().write_unaligned(bits),
            DType::F16 => at(2).cast::<u16>().write_unaligned(f16::from_f32(f32_bits()).to_bits()),
            DType::Bf16 => at(2).cast::<u16>().write_unaligned(bf16::from_f32(f32_bits()).to_bits()),
            DType::I8 | DType::U8 => at(1).write(bits as u8),
            DType::I16 => at(2).cast::<u16>().write_unaligned(bits as u16),
            DType::Bool => at(1).write((bits != 0).into()),
            DType::F8E4M3 | DType::F8E5M2 => at(1).write(float8::encode(dtype, f64::from(f32_bits()))),
            DType::I4 => {
                let at = base.offset((index >> 1) as isize);
                let shift = 4 * (index & 1);
                at.write(at.read() & !(15 << shift) | (bits as u8 & 15) << shift);
            }
        }
    }
}

/// Rounds the bits of an f32 to the precision of a short float, staying an f32.
pub fn round(dtype: DType, bits: u32) -> u32 {
    let x = f32::from_bits(bits);
    let rounded = match dtype {
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::Bf16 => bf16::from_f32(x).to_f32(),
        DType::F8E4M3 | DType::F8E5M2 => float8::round(dtype, f64::from(x)) as f32,
        _ => x,
    };
    rounded.to_bits()
}
