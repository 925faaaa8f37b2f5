//! The indices a stable sort puts first; NaN sorts as the largest.

use super::element::{Element, Wide, with_element};
use super::{View, in_parallel, visit, without};
use kiln_runtime::LaunchError;
use std::cmp::Ordering;

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
        unsafe { lines::<T>(shape, axis, descending, count, input, output) };
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
    // Equal keys keep their order because the position breaks the tie, so an unstable sort is enough.
    let order = |a: &(T::Wide, i64), b: &(T::Wide, i64)| -> Ordering {
        let by_key = T::Wide::order(a.0, b.0);
        (if descending { by_key.reverse() } else { by_key }).then(a.1.cmp(&b.1))
    };
    in_parallel(lines, length.saturating_mul(8), &|begin, end| {
        let mut keys: Vec<(T::Wide, i64)> = Vec::with_capacity(length);
        visit(&outer, [&from, &to], begin, end, |_, [at_in, at_out]| {
            keys.clear();
            for i in 0..length as isize {
                // SAFETY: i < length, so the element lies inside the view.
                keys.push((unsafe { *input.at::<T>(at_in + i * step_in) }.widen(), i as i64));
            }
            if count < length {
                if count > 0 {
                    keys.select_nth_unstable_by(count - 1, order);
                }
                keys.truncate(count);
            }
            keys.sort_unstable_by(order);
            for (i, (_, index)) in keys.iter().enumerate() {
                // SAFETY: i < count, so the element lies inside the view.
                unsafe { *output.at::<i64>(at_out + i as isize * step_out) = *index };
            }
        });
    });
}
