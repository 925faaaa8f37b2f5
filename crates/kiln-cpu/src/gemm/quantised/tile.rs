//! Register tiles of products in bytes: a few rows of digits times a panel of 32 columns, with the byte products of AVX-512 VNNI.
//!
//! A group is added up in integers without rounding, digit by digit: what the higher digits made is shifted when the lower ones
//! begin. Then it is scaled, by what the row and the columns share there, and added to the sums.

use super::digits::{Place, ROWS};
use super::panels::{COLUMNS, Kind, Panel, STEP_BYTES};
use std::arch::x86_64::*;

/// Vectors of a panel's columns.
const VECTORS: usize = COLUMNS / 16;

/// Where one call of a kernel reads and writes.
#[derive(Clone, Copy)]
pub(super) struct Call {
    /// The tile of rows, from the panel's first k on.
    pub a: Place,
    pub panel: Panel,
    pub groups: usize,
    /// The first sum, and floats from those of one row to those of the next.
    pub c: *mut f32,
    pub c_stride: usize,
    /// Add to the sums that are there.
    pub add: bool,
}

/// A kernel for a number of rows.
pub(super) type Kernel = unsafe fn(Call);

/// The kernel for panels of a kind and `rows` rows of so many digits.
pub(super) fn kernel(kind: Kind, digits: usize, rows: usize) -> Kernel {
    fn of<const GROUP: usize, const ADDENDS: bool, const DIGITS: usize>(rows: usize) -> Kernel {
        match rows {
            1 => tile::<GROUP, ADDENDS, DIGITS, 1>,
            2 => tile::<GROUP, ADDENDS, DIGITS, 2>,
            3 => tile::<GROUP, ADDENDS, DIGITS, 3>,
            4 => tile::<GROUP, ADDENDS, DIGITS, 4>,
            5 => tile::<GROUP, ADDENDS, DIGITS, 5>,
            _ => tile::<GROUP, ADDENDS, DIGITS, ROWS>,
        }
    }
    match (kind.group, kind.addends, digits) {
        (16, _, 1) => of::<16, false, 1>(rows),
        (16, _, 2) => of::<16, false, 2>(rows),
        (16, _, _) => of::<16, false, 3>(rows),
        (_, false, 1) => of::<32, false, 1>(rows),
        (_, false, 2) => of::<32, false, 2>(rows),
        (_, false, _) => of::<32, false, 3>(rows),
        (_, true, 1) => of::<32, true, 1>(rows),
        (_, true, 2) => of::<32, true, 2>(rows),
        (_, true, _) => of::<32, true, 3>(rows),
    }
}

/// # Safety
/// The tile of rows, the panel and the sums of the call exist, and the machine has these instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn tile<const GROUP: usize, const ADDENDS: bool, const DIGITS: usize, const R: usize>(call: Call) {
    let Call { a: Place { mut digits, mut scales, mut sums }, mut panel, .. } = call;
    let mut totals = [[_mm512_setzero_ps(); VECTORS]; R];
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
            let mut integers = [[_mm512_setzero_si512(); VECTORS]; R];
            for digit in 0..DIGITS {
                for (r, integers) in integers.iter_mut().enumerate() {
                    for integer in integers {
                        if digit > 0 {
                            *integer = _mm512_slli_epi32::<8>(*integer);
                        }
                        if !ADDENDS && digit + 1 == DIGITS {
                            let less = _mm512_set1_epi32(sums.add(r).cast::<i32>().read());
                            *integer = if digit > 0 { _mm512_add_epi32(*integer, less) } else { less };
                        }
                    }
                }
                for step in 0..GROUP / 4 {
                    let w: [__m512i; VECTORS] =
                        std::array::from_fn(|v| _mm512_loadu_si512(panel.bytes.add(step * STEP_BYTES + 64 * v).cast()));
                    for (r, integers) in integers.iter_mut().enumerate() {
                        let word = digits.add((digit * GROUP / 4 + step) * 4 * R + 4 * r);
                        let a = _mm512_set1_epi32(word.cast::<i32>().read_unaligned());
                        for (integer, w) in integers.iter_mut().zip(w) {
                            *integer = _mm512_dpbusd_epi32(*integer, w, a);
                        }
                    }
                }
            }
            for v in 0..VECTORS {
                let w = _mm512_loadu_ps(panel.scales.add(16 * v));
                for r in 0..R {
                    let scale = _mm512_mul_ps(w, _mm512_set1_ps(scales.add(r).read()));
                    totals[r][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(integers[r][v]), scale, totals[r][v]);
                }
                if ADDENDS {
                    let w = _mm512_loadu_ps(panel.addends.add(16 * v));
                    for (r, totals) in totals.iter_mut().enumerate() {
                        totals[v] = _mm512_fmadd_ps(w, _mm512_set1_ps(sums.add(r).read()), totals[v]);
                    }
                }
            }
            digits = digits.add(GROUP * DIGITS * R);
            (scales, sums) = (scales.add(R), sums.add(R));
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
