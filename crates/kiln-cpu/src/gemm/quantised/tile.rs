//! Register tiles of products in bytes: a few rows of limbs times a panel of 32 columns, with the byte products of AVX-512 VNNI.
//!
//! A group is added up in integers without rounding, limb by limb: sums of the higher limbs are shifted before the lower ones
//! are added. Then it is scaled, by the scales of the row and the columns, and added to the sums. Where all limbs together
//! would not fit into 32 bits the last ones are scaled and added separately.

use super::limbs::{ROWS, TileCursor, is_split};
use super::panels::{COLUMNS, Kind, Panel, STEP_BYTES};
use std::arch::x86_64::*;

/// Vectors of a panel's columns.
const VECTORS: usize = COLUMNS / 16;

/// The operands of one call of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Call {
    /// The tile of rows, from the panel's first k on.
    pub a: TileCursor,
    pub panel: Panel,
    pub groups: usize,
    /// The first sum, and floats from those of one row to those of the next.
    pub c: *mut f32,
    pub c_stride: usize,
    /// Add to the sums instead of overwriting them.
    pub add: bool,
}

/// A kernel for a number of rows.
pub(super) type Kernel = unsafe fn(Call);

/// The kernel for panels of a kind and `rows` rows of so many limbs.
pub(super) fn kernel(kind: Kind, limbs: usize, rows: usize) -> Kernel {
    fn of<const GROUP: usize, const ADDENDS: bool, const LIMBS: usize, const SPLIT: bool>(rows: usize) -> Kernel {
        match rows {
            1 => tile::<GROUP, ADDENDS, LIMBS, SPLIT, 1>,
            2 => tile::<GROUP, ADDENDS, LIMBS, SPLIT, 2>,
            3 => tile::<GROUP, ADDENDS, LIMBS, SPLIT, 3>,
            4 => tile::<GROUP, ADDENDS, LIMBS, SPLIT, 4>,
            5 => tile::<GROUP, ADDENDS, LIMBS, SPLIT, 5>,
            _ => tile::<GROUP, ADDENDS, LIMBS, SPLIT, ROWS>,
        }
    }
    match (kind.group, kind.addends, limbs) {
        (16, _, 1) => of::<16, false, 1, false>(rows),
        (16, _, 2) => of::<16, false, 2, false>(rows),
        (16, _, _) => of::<16, false, 3, false>(rows),
        (_, false, 1) => of::<32, false, 1, false>(rows),
        (_, false, 2) => of::<32, false, 2, false>(rows),
        (_, false, _) if is_split(kind, limbs) => of::<32, false, 3, true>(rows),
        (_, false, _) => of::<32, false, 3, false>(rows),
        (_, true, 1) => of::<32, true, 1, false>(rows),
        (_, true, 2) => of::<32, true, 2, false>(rows),
        (_, true, _) => of::<32, true, 3, false>(rows),
    }
}

/// Sums of a tile.
type Totals<const R: usize> = [[__m512; VECTORS]; R];
/// Sums of a group.
type Integers<const R: usize> = [[__m512i; VECTORS]; R];

/// # Safety
/// The tile of rows, the panel and the sums of the call exist, and the machine has these instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile<const GROUP: usize, const ADDENDS: bool, const LIMBS: usize, const SPLIT: bool, const R: usize>(
    call: Call,
) {
    let Call { mut a, mut panel, .. } = call;
    let mut totals: Totals<R> = [[_mm512_setzero_ps(); VECTORS]; R];
    // SAFETY: the caller's promise.
    unsafe {
        if call.add {
            for (r, totals) in totals.iter_mut().enumerate() {
                for (v, total) in totals.iter_mut().enumerate() {
                    *total = _mm512_loadu_ps(call.c.add(r * call.c_stride + 16 * v));
                }
            }
        }
        for _ in 0..call.groups {
            let mut integers: Integers<R> = [[_mm512_setzero_si512(); VECTORS]; R];
            for limb in 0..LIMBS {
                if SPLIT && limb + 1 == LIMBS {
                    add::<true, R>(&mut totals, &integers, a, panel);
                }
                for (r, integers) in integers.iter_mut().enumerate() {
                    for integer in integers {
                        if SPLIT && limb + 1 == LIMBS {
                            *integer = _mm512_set1_epi32(a.last.add(r).read());
                            continue;
                        }
                        if limb > 0 {
                            *integer = _mm512_slli_epi32::<8>(*integer);
                        }
                        if !ADDENDS && limb + 1 + usize::from(SPLIT) == LIMBS {
                            let less = _mm512_set1_epi32(a.sums.add(r).cast::<i32>().read());
                            *integer = if limb > 0 { _mm512_add_epi32(*integer, less) } else { less };
                        }
                    }
                }
                for step in 0..GROUP / 4 {
                    let w: [__m512i; VECTORS] =
                        std::array::from_fn(|v| _mm512_loadu_si512(panel.bytes.add(step * STEP_BYTES + 64 * v).cast()));
                    for (r, integers) in integers.iter_mut().enumerate() {
                        let word = a.limbs.add((limb * GROUP / 4 + step) * 4 * R + 4 * r);
                        let word = _mm512_set1_epi32(word.cast::<i32>().read_unaligned());
                        for (integer, w) in integers.iter_mut().zip(w) {
                            *integer = _mm512_dpbusd_epi32(*integer, w, word);
                        }
                    }
                }
            }
            add::<false, R>(&mut totals, &integers, a, panel);
            if ADDENDS {
                for v in 0..VECTORS {
                    let w = _mm512_loadu_ps(panel.addends.add(16 * v));
                    for (r, totals) in totals.iter_mut().enumerate() {
                        totals[v] = _mm512_fmadd_ps(w, _mm512_set1_ps(a.sums.add(r).read()), totals[v]);
                    }
                }
            }
            a = TileCursor {
                limbs: a.limbs.add(GROUP * LIMBS * R),
                scales: a.scales.add(R),
                sums: a.sums.add(R),
                last: a.last.wrapping_add(R),
            };
            panel = Panel {
                bytes: panel.bytes.add(GROUP * COLUMNS),
                scales: panel.scales.add(COLUMNS),
                addends: panel.addends.wrapping_add(COLUMNS),
            };
        }
        for (r, totals) in totals.iter().enumerate() {
            for (v, &total) in totals.iter().enumerate() {
                _mm512_storeu_ps(call.c.add(r * call.c_stride + 16 * v), total);
            }
        }
    }
}

/// Adds a group's sums, scaled, or 256 times that: those of all limbs but the last.
///
/// # Safety
/// As for [`tile`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn add<const HIGHER: bool, const R: usize>(
    totals: &mut Totals<R>,
    integers: &Integers<R>,
    a: TileCursor,
    panel: Panel,
) {
    for v in 0..VECTORS {
        // SAFETY: the caller's promise.
        let w = unsafe { _mm512_loadu_ps(panel.scales.add(16 * v)) };
        let w = if HIGHER { _mm512_mul_ps(w, _mm512_set1_ps(256.0)) } else { w };
        for (r, totals) in totals.iter_mut().enumerate() {
            // SAFETY: as above.
            let scale = _mm512_mul_ps(w, _mm512_set1_ps(unsafe { a.scales.add(r).read() }));
            totals[v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers[r][v]), scale, totals[v]);
        }
    }
}
