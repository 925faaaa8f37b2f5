//! Micro-kernels in plain Rust: for machines without generated code, and for i64 everywhere.

use super::kernel::MicroFn;
use super::pack::Accumulator;

/// Rows of a tile.
pub(super) const ROWS: usize = 4;
/// Columns of a tile.
pub(super) const COLUMNS: usize = 8;
/// Products that are added up one by one; a long sum is a sum of such sums, so that its rounding error stays that of a short
/// one.
const RUN: usize = 32;

/// The kernel for `mr` rows, 1 ..= [`ROWS`].
pub(super) fn get<T: Accumulator>(mr: usize, accumulate: bool) -> MicroFn {
    match (mr, accumulate) {
        (1, false) => micro::<T, 1, false>,
        (2, false) => micro::<T, 2, false>,
        (3, false) => micro::<T, 3, false>,
        (_, false) => micro::<T, 4, false>,
        (1, true) => micro::<T, 1, true>,
        (2, true) => micro::<T, 2, true>,
        (3, true) => micro::<T, 3, true>,
        (_, true) => micro::<T, 4, true>,
    }
}

unsafe extern "C" fn micro<T: Accumulator, const MR: usize, const ADD: bool>(
    a: *const u8,
    b: *const u8,
    c: *mut u8,
    k: usize,
    b_stride: usize,
    c_stride: usize,
) {
    let mut acc = [[T::default(); COLUMNS]; MR];
    // SAFETY: the panels hold k rows of MR and COLUMNS elements, the tile MR rows of COLUMNS.
    unsafe {
        for first in (0..k).step_by(RUN) {
            let mut run = [[T::default(); COLUMNS]; MR];
            for k in first..k.min(first + RUN) {
                let a = &*a.cast::<[T; MR]>().add(k);
                let b = &*b.add(k * b_stride).cast::<[T; COLUMNS]>();
                for (sum, a) in run.iter_mut().zip(a) {
                    for (sum, b) in sum.iter_mut().zip(b) {
                        *sum = sum.multiply_add(*a, *b);
                    }
                }
            }
            for (acc, run) in acc.as_flattened_mut().iter_mut().zip(run.as_flattened()) {
                *acc = acc.sum(*run);
            }
        }
        for (row, acc) in acc.iter().enumerate() {
            let c = &mut *c.add(row * c_stride).cast::<[T; COLUMNS]>();
            for (c, acc) in c.iter_mut().zip(acc) {
                *c = if ADD { c.sum(*acc) } else { *acc };
            }
        }
    }
}
