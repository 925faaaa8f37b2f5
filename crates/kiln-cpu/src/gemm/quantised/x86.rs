//! Dot products of rows of A with rows of quantised blocks, and blocks unpacked into memory.

use super::unpack::{Q4K, Q6K, Q40, Q41, Q80, Unpack};
use crate::features::Isa;
use kiln_ir::BlockFormat;
use std::arch::x86_64::*;

/// Where one call of a kernel reads and writes.
#[derive(Clone, Copy)]
pub(super) struct Call {
    /// The first row of blocks, and bytes from one to the next.
    pub w: *const u8,
    pub w_stride: isize,
    /// Blocks of a row.
    pub blocks: usize,
    /// The first row of A, and floats from one to the next.
    pub a: *const f32,
    pub a_stride: isize,
    /// The first sum, and floats from those of one row of A to the next; those of rows of blocks lie side by side.
    pub c: *mut f32,
    pub c_stride: usize,
}

/// A kernel for some rows of A and of blocks.
pub(super) type Kernel = unsafe fn(Call);

/// Rows of A in a tile at the most.
pub(super) const ROWS: usize = 4;

/// The kernels for `rows` rows of A: of several rows of blocks (how many is given back) and of one.
pub(super) fn kernels(isa: Isa, format: BlockFormat, rows: usize) -> (usize, Kernel, Kernel) {
    fn of<U: Unpack>(isa: Isa, rows: usize) -> (usize, Kernel, Kernel) {
        match (isa == Isa::Avx512, rows) {
            (true, 1) => (WIDE, dot_512::<U, 1, WIDE>, dot_512::<U, 1, 1>),
            (true, 2) => (WIDE, dot_512::<U, 2, WIDE>, dot_512::<U, 2, 1>),
            (true, 3) => (WIDE, dot_512::<U, 3, WIDE>, dot_512::<U, 3, 1>),
            (true, _) => (WIDE, dot_512::<U, 4, WIDE>, dot_512::<U, 4, 1>),
            (false, 1) => (NARROW, dot_256::<U, 1, NARROW>, dot_256::<U, 1, 1>),
            (false, 2) => (NARROW, dot_256::<U, 2, NARROW>, dot_256::<U, 2, 1>),
            (false, 3) => (NARROW, dot_256::<U, 3, NARROW>, dot_256::<U, 3, 1>),
            (false, _) => (NARROW, dot_256::<U, 4, NARROW>, dot_256::<U, 4, 1>),
        }
    }
    match format {
        BlockFormat::Q4_0 => of::<Q40>(isa, rows),
        BlockFormat::Q4_1 => of::<Q41>(isa, rows),
        BlockFormat::Q8_0 => of::<Q80>(isa, rows),
        BlockFormat::Q4_K => of::<Q4K>(isa, rows),
        BlockFormat::Q6_K => of::<Q6K>(isa, rows),
    }
}

/// Rows of blocks in a tile, for AVX-512 and AVX2.
const WIDE: usize = 4;
const NARROW: usize = 2;
/// Bytes ahead of a row that are fetched.
const AHEAD: usize = 1024;

/// # Safety
/// The rows and sums of the call exist, and the machine has these instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn dot_512<U: Unpack, const M: usize, const R: usize>(call: Call) {
    let (bytes, elements) = (U::FORMAT.bytes(), U::FORMAT.elements());
    let groups = elements / (16 * U::VECTORS);
    let mut sums = [[_mm512_setzero_ps(); M]; R];
    // SAFETY: everything lies inside the rows of the call; fetching is harmless anywhere.
    unsafe {
        let mut w = call.w;
        let mut a = call.a;
        for _ in 0..call.blocks {
            for (r, sums) in sums.iter_mut().enumerate() {
                let block = w.offset(r as isize * call.w_stride);
                _mm_prefetch::<_MM_HINT_T0>(block.wrapping_add(AHEAD).cast());
                let head = U::head_512(block);
                for group in 0..groups {
                    let vectors = U::group_512(&head, block, group);
                    for (i, &vector) in vectors.as_ref().iter().enumerate() {
                        let at = a.add((group * U::VECTORS + i) * 16);
                        for (m, sum) in sums.iter_mut().enumerate() {
                            let a = _mm512_loadu_ps(at.offset(m as isize * call.a_stride));
                            *sum = _mm512_fmadd_ps(vector, a, *sum);
                        }
                    }
                }
            }
            w = w.add(bytes);
            a = a.add(elements);
        }
        for (r, sums) in sums.iter().enumerate() {
            for (m, sum) in sums.iter().enumerate() {
                call.c.add(m * call.c_stride + r).write(_mm512_reduce_add_ps(*sum));
            }
        }
    }
}

/// # Safety
/// As for [`dot_512`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot_256<U: Unpack, const M: usize, const R: usize>(call: Call) {
    let (bytes, elements) = (U::FORMAT.bytes(), U::FORMAT.elements());
    let groups = elements / (16 * U::VECTORS);
    let mut sums = [[_mm256_setzero_ps(); M]; R];
    // SAFETY: everything lies inside the rows of the call; fetching is harmless anywhere.
    unsafe {
        let mut w = call.w;
        let mut a = call.a;
        for _ in 0..call.blocks {
            for (r, sums) in sums.iter_mut().enumerate() {
                let block = w.offset(r as isize * call.w_stride);
                _mm_prefetch::<_MM_HINT_T0>(block.wrapping_add(AHEAD).cast());
                let head = U::head_256(block);
                for group in 0..groups {
                    let vectors = U::group_256(&head, block, group);
                    for (i, &vector) in vectors.as_ref().iter().enumerate() {
                        let at = a.add((group * U::VECTORS * 2 + i) * 8);
                        for (m, sum) in sums.iter_mut().enumerate() {
                            let a = _mm256_loadu_ps(at.offset(m as isize * call.a_stride));
                            *sum = _mm256_fmadd_ps(vector, a, *sum);
                        }
                    }
                }
            }
            w = w.add(bytes);
            a = a.add(elements);
        }
        for (r, sums) in sums.iter().enumerate() {
            for (m, &sum) in sums.iter().enumerate() {
                let half = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
                let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
                let one = _mm_add_ss(pair, _mm_movehdup_ps(pair));
                call.c.add(m * call.c_stride + r).write(_mm_cvtss_f32(one));
            }
        }
    }
}

/// Unpacks blocks one after another; false where the target has no code for it.
///
/// # Safety
/// The blocks exist, and `to` has room for their elements.
pub(super) unsafe fn unpack(isa: Isa, format: BlockFormat, from: *const u8, blocks: usize, to: *mut f32) -> bool {
    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn wide<U: Unpack>(from: *const u8, blocks: usize, to: *mut f32) {
        let (bytes, elements) = (U::FORMAT.bytes(), U::FORMAT.elements());
        for b in 0..blocks {
            // SAFETY: the caller's blocks and their elements.
            unsafe {
                let block = from.add(b * bytes);
                let head = U::head_512(block);
                for group in 0..elements / (16 * U::VECTORS) {
                    for (i, &vector) in U::group_512(&head, block, group).as_ref().iter().enumerate() {
                        _mm512_storeu_ps(to.add(b * elements + (group * U::VECTORS + i) * 16), vector);
                    }
                }
            }
        }
    }
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn narrow<U: Unpack>(from: *const u8, blocks: usize, to: *mut f32) {
        let (bytes, elements) = (U::FORMAT.bytes(), U::FORMAT.elements());
        for b in 0..blocks {
            // SAFETY: the caller's blocks and their elements.
            unsafe {
                let block = from.add(b * bytes);
                let head = U::head_256(block);
                for group in 0..elements / (16 * U::VECTORS) {
                    for (i, &vector) in U::group_256(&head, block, group).as_ref().iter().enumerate() {
                        _mm256_storeu_ps(to.add(b * elements + (group * U::VECTORS * 2 + i) * 8), vector);
                    }
                }
            }
        }
    }
    unsafe fn of<U: Unpack>(isa: Isa, from: *const u8, blocks: usize, to: *mut f32) -> bool {
        // SAFETY: the caller's promise; the target is one of this machine.
        unsafe {
            match isa {
                Isa::Avx512 => wide::<U>(from, blocks, to),
                Isa::Avx2 => narrow::<U>(from, blocks, to),
                Isa::Portable => return false,
            }
        }
        true
    }
    // SAFETY: the caller's promise.
    unsafe {
        match format {
            BlockFormat::Q4_0 => of::<Q40>(isa, from, blocks, to),
            BlockFormat::Q4_1 => of::<Q41>(isa, from, blocks, to),
            BlockFormat::Q8_0 => of::<Q80>(isa, from, blocks, to),
            BlockFormat::Q4_K => of::<Q4K>(isa, from, blocks, to),
            BlockFormat::Q6_K => of::<Q6K>(isa, from, blocks, to),
        }
    }
}
