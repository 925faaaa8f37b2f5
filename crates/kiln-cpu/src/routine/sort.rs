//! The indices a stable sort puts first; NaN sorts as the largest.

use super::element::{Element, Wide, with_element};
use super::{View, in_parallel, visit, without};
use kiln_runtime::LaunchError;

/// # Safety
/// Both views reach only inside their buffers over `shape` (the output with `count` elements along `axis`).
pub(super) unsafe fn run(
    shape: &[usize],
    axis: usize,
    descending: bool,
    count: usize,
    input: &View,
    output: &View,
) -> Result<(), LaunchError> {
    with_element!(input.dtype, T => {
        // SAFETY: passed on from the caller; T is the dtype's type.
        unsafe {
            if T::RANKED && shape[axis] <= u32::MAX as usize {
                ranked::<T>(shape, axis, descending, count, input, output);
            } else {
                lines::<T>(shape, axis, descending, count, input, output);
            }
        }
    });
    Ok(())
}

/// # Safety
/// As [`run`], and `T` is the element type of the input.
unsafe fn lines<T: Element>(shape: &[usize], axis: usize, descending: bool, count: usize, input: &View, output: &View) {
    let length = shape[axis];
    let count = count.min(length);
    let outer = without(shape, axis);
    let lines: usize = outer.iter().product();
    let (from, to) = (without(&input.strides, axis), without(&output.strides, axis));
    let (step_in, step_out) = (input.strides[axis], output.strides[axis]);
    let flip = if descending { u64::MAX } else { 0 };
    in_parallel(lines, length.saturating_mul(8), &|begin, end| {
        // Equal ranks keep their order because the position breaks the tie, so an unstable sort is enough.
        let mut keys: Vec<(u64, i64)> = Vec::with_capacity(length);
        let mut other = Vec::new();
        visit(&outer, [&from, &to], begin, end, |_, [at_in, at_out]| {
            keys.clear();
            for i in 0..length as isize {
                // SAFETY: i < length, so the element is inside the view.
                let value = unsafe { *input.at::<T>(at_in + i * step_in) }.widen();
                keys.push((value.rank() ^ flip, i as i64));
            }
            if count < length {
                if count > 0 {
                    keys.select_nth_unstable(count - 1);
                }
                keys.truncate(count);
            }
            // Digits keep the order that equal ranks have, which choosing the first ones does not.
            if count < length.max(BY_DIGITS) {
                keys.sort_unstable()
            } else {
                by_wide_digits(&mut keys, &mut other)
            }
            for (i, (_, index)) in keys.iter().enumerate() {
                // SAFETY: i < count, so the element is inside the view.
                unsafe { *output.at::<i64>(at_out + i as isize * step_out) = *index };
            }
        });
    });
}

/// Lines of elements whose order fits 32 bits: rank and position in one number, which sorts by itself.
///
/// # Safety
/// As [`run`], and `T` is the element type of the input; lines are shorter than 2³².
unsafe fn ranked<T: Element>(
    shape: &[usize],
    axis: usize,
    descending: bool,
    count: usize,
    input: &View,
    output: &View,
) {
    let length = shape[axis];
    let count = count.min(length);
    let outer = without(shape, axis);
    let lines: usize = outer.iter().product();
    let (from, to) = (without(&input.strides, axis), without(&output.strides, axis));
    let (step_in, step_out) = (input.strides[axis], output.strides[axis]);
    let flip = if descending { u32::MAX } else { 0 };
    in_parallel(lines, length.saturating_mul(8), &|begin, end| {
        let (mut keys, mut other): (Vec<u64>, Vec<u64>) = (Vec::with_capacity(length), Vec::new());
        visit(&outer, [&from, &to], begin, end, |_, [at_in, at_out]| {
            keys.clear();
            // SAFETY: i < length, so the element is inside the view.
            let rank = |i: usize| unsafe { *input.at::<T>(at_in + i as isize * step_in) }.rank() ^ flip;
            if count <= length / FEW {
                first_keys(&mut keys, length, count, rank);
            } else {
                keys.extend((0..length).map(|i| u64::from(rank(i)) << 32 | i as u64));
                if count < length {
                    keys.select_nth_unstable(count.max(1) - 1);
                }
                keys.truncate(count);
            }
            // Digits keep the order that equal ranks have, which choosing the first ones does not.
            if count < length.max(BY_DIGITS) {
                keys.sort_unstable()
            } else {
                by_digits(&mut keys, &mut other)
            }
            for (i, key) in keys.iter().enumerate() {
                // SAFETY: i < count, so the element is inside the view.
                unsafe { *output.at::<i64>(at_out + i as isize * step_out) = i64::from(*key as u32) };
            }
        });
    });
}

/// Where so many times as many elements are there as are wanted, most of them are passed over.
const FEW: usize = 8;
/// Elements whose ranks are looked at together.
const LOOK: usize = 32;

/// The `count` smallest keys, in any order: elements are compared with the last of the smallest so far, which few are below.
#[inline(always)]
fn first_keys(keys: &mut Vec<u64>, length: usize, count: usize, rank: impl Fn(usize) -> u32) {
    if count == 0 {
        return;
    }
    let most = 2 * count + LOOK;
    let mut last = u32::MAX;
    let mut is_full = false;
    for begin in (0..length).step_by(LOOK) {
        let end = (begin + LOOK).min(length);
        let mut ranks = [u32::MAX; LOOK];
        for (rank_of, i) in ranks.iter_mut().zip(begin..end) {
            *rank_of = rank(i);
        }
        // One that is equal comes later, and is not smaller.
        if is_full && !ranks.iter().fold(false, |any, &rank| any | (rank < last)) {
            continue;
        }
        for (&rank, i) in ranks.iter().zip(begin..end) {
            if !is_full || rank < last {
                keys.push(u64::from(rank) << 32 | i as u64);
            }
        }
        if keys.len() > most {
            keys.select_nth_unstable(count - 1);
            keys.truncate(count);
            (last, is_full) = ((keys[count - 1] >> 32) as u32, true);
        }
    }
    if keys.len() > count {
        keys.select_nth_unstable(count - 1);
        keys.truncate(count);
    }
}

/// From so many keys on, a radix sort takes less time than comparisons.
const BY_DIGITS: usize = 1024;
/// Bits of a radix digit: three make up a rank, and their counts fit the first level.
const DIGIT: u32 = 11;

/// Radix sort by the upper halves of keys whose lower halves ascend, from the lowest digit up.
fn by_digits(keys: &mut Vec<u64>, other: &mut Vec<u64>) {
    const DIGITS: usize = 3;
    const VALUES: usize = 1 << DIGIT;
    let digit = |key: u64, number: usize| (key >> (32 + DIGIT * number as u32)) as usize & (VALUES - 1);
    let mut counts = vec![[0u32; VALUES]; DIGITS];
    for &key in &*keys {
        for (number, counts) in counts.iter_mut().enumerate() {
            counts[digit(key, number)] += 1;
        }
    }
    other.resize(keys.len(), 0);
    for (number, counts) in counts.iter_mut().enumerate() {
        let mut before = 0;
        for count in counts.iter_mut() {
            before += std::mem::replace(count, before);
        }
        for &key in &*keys {
            let place = &mut counts[digit(key, number)];
            other[*place as usize] = key;
            *place += 1;
        }
        std::mem::swap(keys, other);
    }
}

/// Radix sort by ranks of 64 bits, of pairs whose positions ascend. Digits that all ranks have in common, as small integers have most of
/// them, are passed over.
fn by_wide_digits(keys: &mut Vec<(u64, i64)>, other: &mut Vec<(u64, i64)>) {
    const VALUES: usize = 1 << DIGIT;
    let (all, any) = keys.iter().fold((u64::MAX, 0), |(all, any), key| (all & key.0, any | key.0));
    let varies = all ^ any;
    other.resize(keys.len(), (0, 0));
    let mut counts = vec![0usize; VALUES];
    let mut shift = 0;
    while shift < u64::BITS && varies >> shift != 0 {
        // From the lowest bit that is not the same in all.
        shift += (varies >> shift).trailing_zeros();
        let digit = |key: u64| (key >> shift) as usize & (VALUES - 1);
        counts.fill(0);
        keys.iter().for_each(|key| counts[digit(key.0)] += 1);
        let mut before = 0;
        for count in counts.iter_mut() {
            before += std::mem::replace(count, before);
        }
        for &key in &*keys {
            let place = &mut counts[digit(key.0)];
            other[*place] = key;
            *place += 1;
        }
        std::mem::swap(keys, other);
        shift += DIGIT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_sort_as_comparisons_do() {
        let mut state = 7u64;
        for length in [0, 1, 2, 1000, 5000] {
            let mut keys: Vec<u64> = (0..length)
                .map(|i| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    // Some ranks are there often, some are the largest.
                    let rank = if state >> 60 == 0 { u64::from(u32::MAX) } else { state >> 40 };
                    rank << 32 | i
                })
                .collect();
            let mut expected = keys.clone();
            expected.sort_unstable();
            by_digits(&mut keys, &mut Vec::new());
            assert_eq!(keys, expected);
        }
    }

    #[test]
    fn wide_digits_sort_as_comparisons_do() {
        let mut state = 9u64;
        for (length, kept) in
            [(0, u64::MAX), (1, 1), (3000, u64::MAX), (5000, 0xffff), (5000, 0xf0_0000_0000_00f0), (99, 0)]
        {
            let mut keys: Vec<(u64, i64)> = (0..length)
                .map(|i| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    ((state ^ state >> 32) & kept | 1 << 63, i)
                })
                .collect();
            let mut expected = keys.clone();
            expected.sort_unstable();
            by_wide_digits(&mut keys, &mut Vec::new());
            assert_eq!(keys, expected, "{length} {kept:x}");
        }
    }

    #[test]
    fn the_first_keys_are_those_of_a_sort() {
        let mut state = 3u64;
        for (length, count) in [(0, 0), (1, 1), (40, 3), (1000, 50), (5000, 1), (5000, 600), (3000, 3000)] {
            // Few values, so that many are equal, and one run that descends, so that every element is smaller than those before.
            let ranks: Vec<u32> = (0..length)
                .map(|i| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    if i % 3 == 0 { (length - i) as u32 } else { (state >> 60) as u32 * 100 }
                })
                .collect();
            let mut expected: Vec<u64> =
                ranks.iter().enumerate().map(|(i, &rank)| u64::from(rank) << 32 | i as u64).collect();
            expected.sort_unstable();
            expected.truncate(count);
            let mut keys = Vec::new();
            first_keys(&mut keys, length, count, |i| ranks[i]);
            keys.sort_unstable();
            assert_eq!(keys, expected, "{count} of {length}");
        }
    }

    /// NaN last.
    fn order(a: f64, b: f64) -> std::cmp::Ordering {
        a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    }

    #[test]
    fn ranks_order_as_elements_do() {
        let floats =
            [f32::NAN, f32::INFINITY, 1e30, 1.0, f32::MIN_POSITIVE, 1e-45, 0.0, -0.0, -1e-45, -2.5, f32::NEG_INFINITY];
        for a in floats.into_iter().chain([-f32::NAN]) {
            for b in floats {
                assert_eq!(a.rank().cmp(&b.rank()), order(a.into(), b.into()), "{a} {b}");
            }
        }
        let wide =
            [f64::NAN, f64::INFINITY, 1e300, 1.0, 5e-324, 0.0, -0.0, -5e-324, -2.5, f64::NEG_INFINITY, -f64::NAN];
        for a in wide {
            for b in wide {
                assert_eq!(Wide::rank(a).cmp(&Wide::rank(b)), order(a, b), "{a} {b}");
            }
        }
        assert!(Wide::rank(i64::MIN) < Wide::rank(-1i64) && Wide::rank(-1i64) < Wide::rank(0i64));
        for (a, b) in [(i32::MIN, i32::MAX), (-1, 0), (0, 1)] {
            assert!(a.rank() < b.rank());
        }
        assert!((-1i8).rank() < 0i8.rank() && 254u8.rank() < 255u8.rank());
    }
}
