//! The visible keys of a range, found from the mask alone: keys and values that are not visible to any row are never read.

use super::geometry::{Geometry, View};
use half::{bf16, f16};
use kiln_ir::DType;
use std::ops::Range;

/// Alignment of the first key of a range: sums with several accumulators then add the same keys to each as over the whole
/// range.
const STEP: usize = 16;

/// The visible part of a range of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VisibleKeys {
    /// From the first to the last key that is visible to some row; empty where there is none.
    pub keys: Range<usize>,
    /// All of these are visible to all rows, and the mask adds nothing to their scores.
    pub plain: bool,
}

impl VisibleKeys {
    /// Everything is visible.
    pub(super) fn all(keys: Range<usize>) -> VisibleKeys {
        VisibleKeys { keys, plain: true }
    }

    fn nothing(at: usize) -> VisibleKeys {
        VisibleKeys { keys: at..at, plain: true }
    }

    /// The keys visible in either.
    fn or(self, other: VisibleKeys) -> VisibleKeys {
        if self.keys.is_empty() {
            return VisibleKeys { plain: other.keys.is_empty(), ..other };
        }
        if other.keys.is_empty() {
            return VisibleKeys { plain: false, ..self };
        }
        let plain = self.plain && other.plain && self.keys == other.keys;
        VisibleKeys { keys: self.keys.start.min(other.keys.start)..self.keys.end.max(other.keys.end), plain }
    }

    /// Aligns the beginning to a whole number of steps from that of the range it is a part of.
    fn aligned(self, whole: &Range<usize>) -> VisibleKeys {
        let start = self.keys.start - (self.keys.start - whole.start) % STEP;
        VisibleKeys { plain: self.plain && start == self.keys.start, keys: start..self.keys.end }
    }
}

/// From the first to the last key visible to each query, by the mask alone: [b, t] of a mask that all heads share.
///
/// # Safety
/// The mask is readable.
pub(super) unsafe fn extents(g: &Geometry, mask: &View) -> Vec<Range<usize>> {
    let mut extents: Vec<Range<usize>> = Vec::with_capacity(g.batch * g.queries);
    for batch in 0..g.batch {
        if batch > 0 && mask.strides[0] == 0 {
            extents.extend_from_within(..g.queries);
            continue;
        }
        // SAFETY: the caller's promise.
        extents.extend((0..g.queries).map(|query| unsafe { extent(g, mask, [batch, 0, query]) }));
    }
    extents
}

/// From the first to the last key visible to a row.
///
/// # Safety
/// The mask is readable.
pub(super) unsafe fn extent(g: &Geometry, mask: &View, row: [usize; 3]) -> Range<usize> {
    // SAFETY: the caller's promise.
    unsafe { of_row(mask, mask.row(row), &(0..g.keys)).keys }
}

/// The visible keys of `rows` of a group among `keys`, by the mask alone, given an upper bound for each row; `each` is called
/// with the end of every row's visible range.
///
/// # Safety
/// The mask is readable.
pub(super) unsafe fn of_rows(
    g: &Geometry,
    mask: &View,
    [batch, kv_head]: [usize; 2],
    rows: Range<usize>,
    keys: &Range<usize>,
    extent: impl Fn(usize) -> Range<usize>,
    mut each: impl FnMut(usize, usize),
) -> VisibleKeys {
    let mut all: Option<VisibleKeys> = None;
    let mut last: Option<(*const u8, VisibleKeys)> = None;
    for (i, row) in rows.enumerate() {
        let (head, query) = g.place(kv_head, row);
        let from = mask.row([batch, head, query]).cast_const();
        let visible_keys = match &last {
            Some((same, visible_keys)) if *same == from => visible_keys.clone(),
            _ => {
                let most = extent(i);
                let most = keys.start.max(most.start)..keys.end.min(most.end);
                let visible_keys = if most.is_empty() {
                    VisibleKeys::nothing(keys.start)
                } else {
                    // SAFETY: the caller's promise.
                    unsafe { of_row(mask, from, &most) }
                };
                all = Some(match all {
                    Some(all) => all.or(visible_keys.clone()),
                    None => visible_keys.clone(),
                });
                last = Some((from, visible_keys.clone()));
                visible_keys
            }
        };
        each(i, visible_keys.keys.end);
    }
    all.unwrap_or_else(|| VisibleKeys::nothing(keys.start)).aligned(keys)
}

/// The visible keys of one row.
unsafe fn of_row(mask: &View, row: *const u8, keys: &Range<usize>) -> VisibleKeys {
    let from = row.wrapping_offset(keys.start as isize * mask.step() * mask.size);
    let count = keys.len();
    // SAFETY: the row holds the keys.
    let (range, plain) = unsafe {
        match mask.dtype {
            _ if count == 0 => (0..0, true),
            _ if mask.step() != 1 && count > 1 => {
                let at =
                    |i: usize| super::convert::element(mask.dtype, from.offset(i as isize * mask.step() * mask.size));
                let seen = |i: &usize| at(*i) != f32::NEG_INFINITY;
                match (0..count).find(seen) {
                    Some(first) => {
                        let end = (first..count).rfind(seen).map_or(first, |last| last + 1);
                        (first..end, (first..end).all(|i| at(i) == 0.0))
                    }
                    None => (0..0, true),
                }
            }
            DType::Bool => {
                let row = std::slice::from_raw_parts(from, count);
                scan(row, any_byte, |&keep| keep != 0, |&keep| keep != 0)
            }
            DType::F32 => {
                let row = std::slice::from_raw_parts(from.cast::<f32>(), count);
                let seen = |x: &f32| *x != f32::NEG_INFINITY;
                scan(row, |line| any(line, seen), seen, |&x| x == 0.0)
            }
            DType::Bf16 => {
                let (row, low) = (std::slice::from_raw_parts(from.cast::<u16>(), count), bf16::NEG_INFINITY.to_bits());
                scan(row, |line| any(line, |&x| x != low), |&x| x != low, |&x| x << 1 == 0)
            }
            DType::F16 => {
                let (row, low) = (std::slice::from_raw_parts(from.cast::<u16>(), count), f16::NEG_INFINITY.to_bits());
                scan(row, |line| any(line, |&x| x != low), |&x| x != low, |&x| x << 1 == 0)
            }
            _ => (0..count, false),
        }
    };
    VisibleKeys { keys: keys.start + range.start..keys.start + range.end, plain }
}

/// Whether an element of a line is visible; without branches, so that it is vectorised.
#[inline(always)]
fn any<T>(line: &[T], seen: impl Fn(&T) -> bool) -> bool {
    line.iter().fold(false, |any, x| any | seen(x))
}

/// Whether a byte is not 0.
#[inline(always)]
fn any_byte(line: &[u8]) -> bool {
    let (words, rest) = line.as_chunks::<8>();
    let words = words.iter().fold(0, |all, word| all | u64::from_ne_bytes(*word));
    rest.iter().fold(words, |all, &byte| all | u64::from(byte)) != 0
}

/// From the first to the last visible element, and whether all of these are plain; some elements at a time.
#[inline(always)]
fn scan<T>(
    row: &[T],
    any: impl Fn(&[T]) -> bool,
    seen: impl Fn(&T) -> bool,
    plain: impl Fn(&T) -> bool,
) -> (Range<usize>, bool) {
    const LINE: usize = 128;
    const PART: usize = 16;
    let Some(line) = row.chunks(LINE).position(&any) else { return (0..0, true) };
    let first = line * LINE + row[line * LINE..].iter().position(&seen).unwrap_or(0);
    let mut end = row.len();
    while end > first && !any(&row[first.max(end.saturating_sub(LINE))..end]) {
        end = first.max(end.saturating_sub(LINE));
    }
    while end > first + PART && !any(&row[end - PART..end]) {
        end -= PART;
    }
    while end > first + 1 && !seen(&row[end - 1]) {
        end -= 1;
    }
    let all = row[first..end].chunks(LINE).all(|line| line.iter().fold(true, |all, x| all & plain(x)));
    (first..end, all)
}

#[cfg(test)]
mod tests {
    use super::{VisibleKeys, scan};

    #[test]
    fn scans_find_the_ends() {
        let bools = |row: &[u8]| scan(row, super::any_byte, |&x| x != 0, |&x| x != 0);
        for length in [1, 3, 127, 128, 129, 400] {
            assert_eq!(bools(&vec![0; length]), (0..0, true));
            assert_eq!(bools(&vec![1; length]), (0..length, true));
            for first in 0..length {
                for end in [first + 1, (first + length).div_ceil(2), length] {
                    let end = end.max(first + 1);
                    let mut row = vec![0u8; length];
                    row[first..end].fill(1);
                    assert_eq!(bools(&row), (first..end, true), "{first}..{end} of {length}");
                    if end > first + 2 {
                        row[first + 1] = 0;
                        assert_eq!(bools(&row), (first..end, false), "{first}..{end} of {length}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_see_different_keys_are_not_plain() {
        let visible_keys = |keys| VisibleKeys { keys, plain: true };
        assert_eq!(visible_keys(2..5).or(visible_keys(2..5)), visible_keys(2..5));
        assert_eq!(visible_keys(2..5).or(visible_keys(3..9)), VisibleKeys { keys: 2..9, plain: false });
        assert_eq!(visible_keys(2..2).or(visible_keys(3..9)), VisibleKeys { keys: 3..9, plain: false });
        assert_eq!(visible_keys(3..9).or(visible_keys(2..2)), VisibleKeys { keys: 3..9, plain: false });
        assert_eq!(visible_keys(1..1).or(visible_keys(2..2)), visible_keys(2..2));
        assert_eq!(visible_keys(37..50).aligned(&(4..60)), VisibleKeys { keys: 36..50, plain: false });
        assert_eq!(visible_keys(36..50).aligned(&(4..60)), visible_keys(36..50));
        assert_eq!(VisibleKeys::all(4..6).aligned(&(4..60)), visible_keys(4..6));
    }
}
