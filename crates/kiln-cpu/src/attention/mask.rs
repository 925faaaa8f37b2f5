//! Masks over a tile of scores.

use super::convert::{vectorised, widen_row};
use super::geometry::View;
use crate::features::Isa;
use kiln_ir::DType;
use std::ops::Range;

/// Sets the scores [key][query] of keys that are not visible to a query to −∞.
///
/// # Safety
/// There are scores for all keys and for as many queries as `visible` has.
pub(super) unsafe fn causal_columns(isa: Isa, scores: *mut f32, visible: &[i32], keys: &Range<usize>) {
    let seen_by_all = visible.iter().min().map_or(0, |&end| end as usize);
    let first = seen_by_all.clamp(keys.start, keys.end);
    // SAFETY: the caller's promise.
    unsafe {
        let scores = scores.add((first - keys.start) * visible.len());
        hide(isa, scores, visible, first as i32, keys.end as i32);
    }
}

vectorised! {
    /// Hides the keys first .. end, whose scores these are, from where `visible` ends.
    fn hide(scores: *mut f32, visible: &[i32], first: i32, end: i32) {
        for key in first..end {
            // SAFETY: there is a row of scores for each key.
            let row = unsafe {
                let start = scores.add((key - first) as usize * visible.len());
                std::slice::from_raw_parts_mut(start, visible.len())
            };
            for (score, &end) in row.iter_mut().zip(visible) {
                *score = if key >= end { f32::NEG_INFINITY } else { *score };
            }
        }
    }
}

vectorised! {
    /// scores = scale · scores + mask; −∞ hides even NaN.
    fn add(scores: *mut f32, scale: f32, mask: *const f32, count: usize) {
        // SAFETY: both hold `count` elements.
        unsafe {
            let mask = std::slice::from_raw_parts(mask, count);
            for (score, &mask) in std::slice::from_raw_parts_mut(scores, count).iter_mut().zip(mask) {
                *score = combine(*score, scale, mask);
            }
        }
    }
}

#[inline(always)]
fn combine(score: f32, scale: f32, mask: f32) -> f32 {
    let sum = score * scale + mask;
    if mask == f32::NEG_INFINITY { mask } else { sum }
}

vectorised! {
    /// The addends of a row of bools.
    fn widen_bools(from: *const u8, to: *mut f32, count: usize) {
        // SAFETY: both hold `count` elements.
        unsafe {
            let from = std::slice::from_raw_parts(from, count);
            for (to, &keep) in std::slice::from_raw_parts_mut(to, count).iter_mut().zip(from) {
                *to = if keep != 0 { 0.0 } else { f32::NEG_INFINITY };
            }
        }
    }
}

/// Copies the addends of a row of the mask for `keys`.
///
/// # Safety
/// The row holds the keys; `to` has room for them.
pub(super) unsafe fn copy(isa: Isa, view: &View, row: *const u8, keys: &Range<usize>, to: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let from = row.offset(keys.start as isize * view.step() * view.size);
        if view.dtype == DType::Bool && view.step() == 1 {
            widen_bools(isa, from, to, keys.len());
        } else {
            widen_row(isa, view.dtype, from, view.step(), keys.len(), to, keys.len());
        }
    }
}
