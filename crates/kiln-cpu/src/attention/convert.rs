//! Elements in and out: strided rows of any float type to packed scratch and back.

use super::geometry::View;
use crate::features::Isa;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kiln_ir::DType;

/// Defines a function of plain loops that is compiled once for each target, so that its loops become vectors of it.
macro_rules! vectorised {
    ($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        pub(super) unsafe fn $name(isa: Isa, $($arg: $type),*) {
            #[inline(always)]
            unsafe fn plain($($arg: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn avx2($($arg: $type),*) {
                    // SAFETY: the caller's promise.
                    unsafe { plain($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
                unsafe fn avx512($($arg: $type),*) {
                    // SAFETY: the caller's promise.
                    unsafe { plain($($arg),*) }
                }
                // SAFETY: the caller's promise; the target is one of this machine.
                unsafe {
                    match isa {
                        Isa::Avx512 => return avx512($($arg),*),
                        Isa::Avx2 => return avx2($($arg),*),
                        Isa::Portable => {}
                    }
                }
            }
            let _ = isa;
            // SAFETY: the caller's promise.
            unsafe { plain($($arg),*) }
        }
    };
}
pub(super) use vectorised;

/// One element as f32; of a bool mask, 0 where true and −∞ where false.
pub(super) unsafe fn element(dtype: DType, at: *const u8) -> f32 {
    // SAFETY: the caller's element is of this type.
    unsafe {
        match dtype {
            DType::F32 => at.cast::<f32>().read(),
            DType::Bf16 => at.cast::<bf16>().read().to_f32(),
            DType::F16 => at.cast::<f16>().read().to_f32(),
            DType::F64 => at.cast::<f64>().read() as f32,
            DType::Bool if at.read() != 0 => 0.0,
            DType::Bool => f32::NEG_INFINITY,
            other => unreachable!("{other} was refused by `Attention::new`"),
        }
    }
}

vectorised! {
    /// Widens contiguous bf16.
    fn widen_bf16(from: *const u16, to: *mut f32, count: usize) {
        // SAFETY: both hold `count` elements.
        let (from, to) = unsafe { (std::slice::from_raw_parts(from, count), std::slice::from_raw_parts_mut(to, count)) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(*from) << 16);
        }
    }
}

vectorised! {
    /// Interleaves two rows of bf16 into pairs.
    fn pair_rows(first: *const u16, second: *const u16, to: *mut u32, count: usize) {
        // SAFETY: all hold `count` elements.
        unsafe {
            let (first, second) = (std::slice::from_raw_parts(first, count), std::slice::from_raw_parts(second, count));
            for ((to, a), b) in std::slice::from_raw_parts_mut(to, count).iter_mut().zip(first).zip(second) {
                *to = u32::from(*a) | u32::from(*b) << 16;
            }
        }
    }
}

vectorised! {
    /// A row of bf16 as pairs with zero.
    fn single_rows(from: *const u16, to: *mut u32, count: usize) {
        // SAFETY: both hold `count` elements.
        let (from, to) = unsafe { (std::slice::from_raw_parts(from, count), std::slice::from_raw_parts_mut(to, count)) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = u32::from(*from);
        }
    }
}

vectorised! {
    /// `to = from · factor`, rounded to bf16.
    fn scale_to_bf16(from: *const f32, factor: f32, to: *mut u16, count: usize) {
        // SAFETY: both hold `count` elements.
        let (from, to) = unsafe { (std::slice::from_raw_parts(from, count), std::slice::from_raw_parts_mut(to, count)) };
        for (to, from) in to.iter_mut().zip(from) {
            let value = from * factor;
            let bits = value.to_bits();
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
            *to = if value.is_nan() { 0x7fc0 } else { (rounded >> 16) as u16 };
        }
    }
}

vectorised! {
    /// `to = from · factor`
    fn scale_to_f32(from: *const f32, factor: f32, to: *mut f32, count: usize) {
        // SAFETY: both hold `count` elements.
        let (from, to) = unsafe { (std::slice::from_raw_parts(from, count), std::slice::from_raw_parts_mut(to, count)) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = from * factor;
        }
    }
}

vectorised! {
    /// `values = values · factor`
    fn scale(values: *mut f32, factor: f32, count: usize) {
        // SAFETY: there are `count` elements.
        for value in unsafe { std::slice::from_raw_parts_mut(values, count) } {
            *value *= factor;
        }
    }
}

/// Widens a row of `count` elements of stride `step`, and pads it with zeros to `padded`.
///
/// # Safety
/// The row is readable and `to` has room for `padded` elements.
pub(super) unsafe fn widen_row(
    isa: Isa,
    dtype: DType,
    from: *const u8,
    step: isize,
    count: usize,
    to: *mut f32,
    padded: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match dtype {
            // An empty buffer need not have an aligned address.
            _ if count == 0 => {}
            DType::F32 if step == 1 => std::ptr::copy_nonoverlapping(from.cast::<f32>(), to, count),
            DType::Bf16 if step == 1 => widen_bf16(isa, from.cast(), to, count),
            DType::F16 if step == 1 => std::slice::from_raw_parts(from.cast::<f16>(), count)
                .convert_to_f32_slice(std::slice::from_raw_parts_mut(to, count)),
            _ => {
                let bytes = step * (dtype.size_in_bits() / 8) as isize;
                for i in 0..count {
                    *to.add(i) = element(dtype, from.offset(i as isize * bytes));
                }
            }
        }
        std::slice::from_raw_parts_mut(to.add(count), padded - count).fill(0.0);
    }
}

/// Writes a row of results, `from · factor`, to `count` elements of stride `step`.
///
/// # Safety
/// `from` holds `count` elements and may be overwritten; the row is writable.
pub(super) unsafe fn narrow_row(isa: Isa, from: *mut f32, factor: f32, count: usize, view: &View, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        match view.dtype {
            // An empty buffer need not have an aligned address.
            _ if count == 0 => {}
            DType::F32 if view.step() == 1 => scale_to_f32(isa, from, factor, to.cast(), count),
            DType::Bf16 if view.step() == 1 => scale_to_bf16(isa, from, factor, to.cast(), count),
            DType::F16 if view.step() == 1 => {
                scale(isa, from, factor, count);
                std::slice::from_raw_parts_mut(to.cast::<f16>(), count)
                    .convert_from_f32_slice(std::slice::from_raw_parts(from, count));
            }
            _ => {
                for i in 0..count {
                    let at = to.offset(i as isize * view.step() * view.size);
                    let value = *from.add(i) * factor;
                    match view.dtype {
                        DType::F32 => at.cast::<f32>().write(value),
                        DType::Bf16 => at.cast::<bf16>().write(bf16::from_f32(value)),
                        DType::F16 => at.cast::<f16>().write(f16::from_f32(value)),
                        other => unreachable!("{other} was refused by `Attention::new`"),
                    }
                }
            }
        }
    }
}

/// Copies a row of bf16 and pads it to an even number with zero.
///
/// # Safety
/// The row holds `count` elements and `to` an even number of at least as many.
pub(super) unsafe fn copy_halves(from: *const u8, step: isize, count: usize, to: *mut u16) {
    // SAFETY: the row holds `count` elements and `to` an even number of at least as many.
    unsafe {
        let from = from.cast::<u16>();
        if step == 1 && count > 0 {
            std::ptr::copy_nonoverlapping(from, to, count);
        } else {
            (0..count).for_each(|i| *to.add(i) = *from.offset(i as isize * step));
        }
        if count % 2 == 1 {
            *to.add(count) = 0;
        }
    }
}
