//! Dot products of rows of A with rows of quantised blocks, and blocks unpacked into memory.

use super::unpack::{Q4K, Q6K, Q40, Q41, Q50, Q80, Unpack};
use crate::features::Isa;
use kiln_ir::BlockFormat;
use std::arch::x86_64::*;

/// The operands of one call of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Call {
    /// The first row of blocks, bytes from one to the next, the number of rows, and blocks of a row.
    pub w: *const u8,
    pub w_stride: isize,
    pub rows: usize,
    pub blocks: usize,
    /// The first row of A, and floats from one to the next.
    pub a: *const f32,
    pub a_stride: isize,
    /// The first sum, and floats from those of one row of A to those of the next; those of rows of blocks are contiguous.
    pub c: *mut f32,
    pub c_stride: usize,
}

/// A kernel for some rows of A, and any number of rows of blocks.
pub(super) type Kernel = unsafe fn(Call);

/// The most rows of A in a tile.
pub(super) const ROWS: usize = 4;

/// The kernel for `rows` rows of A.
pub(super) fn kernel(isa: Isa, format: BlockFormat, rows: usize) -> Kernel {
    fn of<U: Unpack>(isa: Isa, rows: usize) -> Kernel {
        match (isa == Isa::Avx512, rows) {
            (true, 1) => wide::dot::<U, 1>,
            (true, 2) => wide::dot::<U, 2>,
            (true, 3) => wide::dot::<U, 3>,
            (true, _) => wide::dot::<U, 4>,
            (false, 1) => narrow::dot::<U, 1>,
            (false, 2) => narrow::dot::<U, 2>,
            (false, 3) => narrow::dot::<U, 3>,
            (false, _) => narrow::dot::<U, 4>,
        }
    }
    match format {
        BlockFormat::Q4_0 => of::<Q40>(isa, rows),
        BlockFormat::Q4_1 => of::<Q41>(isa, rows),
        BlockFormat::Q5_0 => of::<Q50>(isa, rows),
        BlockFormat::Q8_0 => of::<Q80>(isa, rows),
        BlockFormat::Q4_K => of::<Q4K>(isa, rows),
        BlockFormat::Q6_K => of::<Q6K>(isa, rows),
    }
}

/// Prefetch distance in bytes: rows are contiguous, so that this covers memory's latency in one stream.
const AHEAD: usize = 2048;
/// Elements per iteration of a kernel's loop.
const PER_ITERATION: usize = 128;

/// Prefetches `AHEAD` of some bytes.
#[inline(always)]
fn fetch(at: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch is valid at any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(AHEAD + 64 * line).cast()) };
    }
}

/// The loops over blocks for vectors of one width.
macro_rules! loops {
    ($module:ident, $features:literal, $vector:ty, $lanes:literal, $head:ident, $group:ident,
     $zero:ident, $load:ident, $store:ident, $add:ident, $fmadd:ident, $reduce:expr) => {
        mod $module {
            use super::*;

            /// # Safety
            /// The rows and sums of the call exist, and the machine has these instructions.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn dot<U: Unpack, const M: usize>(call: Call) {
                let (bytes, elements) = (U::FORMAT.bytes(), U::FORMAT.elements());
                let per_iteration = (PER_ITERATION / elements).max(1);
                for row in 0..call.rows {
                    // Two sums per row of A, so that neighbouring vectors do not wait for each other.
                    let mut sums = [[$zero(); 2]; M];
                    // SAFETY: everything is inside the rows of the call.
                    unsafe {
                        let (mut w, mut a) = (call.w.offset(row as isize * call.w_stride), call.a);
                        for _ in 0..call.blocks / per_iteration {
                            fetch(w, per_iteration * bytes);
                            for i in 0..per_iteration {
                                block::<U, M>(&call, w.add(i * bytes), a.add(i * elements), &mut sums);
                            }
                            (w, a) = (w.add(per_iteration * bytes), a.add(per_iteration * elements));
                        }
                        for _ in 0..call.blocks % per_iteration {
                            block::<U, M>(&call, w, a, &mut sums);
                            (w, a) = (w.add(bytes), a.add(elements));
                        }
                        for (m, sum) in sums.iter().enumerate() {
                            call.c.add(m * call.c_stride + row).write($reduce($add(sum[0], sum[1])));
                        }
                    }
                }
            }

            /// # Safety
            /// As for [`dot`].
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn block<U: Unpack, const M: usize>(
                call: &Call,
                w: *const u8,
                a: *const f32,
                sums: &mut [[$vector; 2]; M],
            ) {
                // SAFETY: the caller's promise.
                unsafe {
                    let head = U::$head(w);
                    for group in 0..U::FORMAT.elements() / (16 * U::VECTORS) {
                        let vectors = U::$group(&head, w, group);
                        for (i, &vector) in vectors.as_ref().iter().enumerate() {
                            let at = a.add(group * U::VECTORS * 16 + i * $lanes);
                            for (m, sum) in sums.iter_mut().enumerate() {
                                let a = $load(at.offset(m as isize * call.a_stride));
                                sum[i % 2] = $fmadd(vector, a, sum[i % 2]);
                            }
                        }
                    }
                }
            }

            /// Unpacks blocks one after another.
            ///
            /// # Safety
            /// The blocks exist, `to` has room for their elements, and the machine has these instructions.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn unpack<U: Unpack>(from: *const u8, blocks: usize, to: *mut f32) {
                let (bytes, elements) = (U::FORMAT.bytes(), U::FORMAT.elements());
                for b in 0..blocks {
                    // SAFETY: the caller's blocks and their elements.
                    unsafe {
                        let block = from.add(b * bytes);
                        let head = U::$head(block);
                        for group in 0..elements / (16 * U::VECTORS) {
                            for (i, &vector) in U::$group(&head, block, group).as_ref().iter().enumerate() {
                                $store(to.add(b * elements + group * U::VECTORS * 16 + i * $lanes), vector);
                            }
                        }
                    }
                }
            }
        }
    };
}

loops!(
    wide,
    "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl",
    __m512,
    16,
    head_512,
    group_512,
    _mm512_setzero_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    _mm512_fmadd_ps,
    _mm512_reduce_add_ps
);
loops!(
    narrow,
    "avx2,fma,f16c",
    __m256,
    8,
    head_256,
    group_256,
    _mm256_setzero_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    _mm256_fmadd_ps,
    sum_256
);

/// The sum of all lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_256(x: __m256) -> f32 {
    let half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
    let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
    _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)))
}

/// Unpacks blocks one after another; false where the target has no code for it.
///
/// # Safety
/// The blocks exist, and `to` has room for their elements.
pub(super) unsafe fn unpack(isa: Isa, format: BlockFormat, from: *const u8, blocks: usize, to: *mut f32) -> bool {
    unsafe fn of<U: Unpack>(isa: Isa, from: *const u8, blocks: usize, to: *mut f32) -> bool {
        // SAFETY: the caller's promise; the target is one of this machine.
        unsafe {
            match isa {
                Isa::Avx512 => wide::unpack::<U>(from, blocks, to),
                Isa::Avx2 => narrow::unpack::<U>(from, blocks, to),
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
            BlockFormat::Q5_0 => of::<Q50>(isa, from, blocks, to),
            BlockFormat::Q8_0 => of::<Q80>(isa, from, blocks, to),
            BlockFormat::Q4_K => of::<Q4K>(isa, from, blocks, to),
            BlockFormat::Q6_K => of::<Q6K>(isa, from, blocks, to),
        }
    }
}
