//! Running combinations along an axis, accumulated in 64 bits.

use super::element::{Element, Wide, with_element};
use super::{View, in_parallel, visit, without};
use kiln_ir::ReduceKind;
use kiln_runtime::LaunchError;

/// # Safety
/// Both views reach only inside their buffers over `shape`.
pub(super) unsafe fn run(
    shape: &[usize],
    axis: usize,
    kind: ReduceKind,
    reverse: bool,
    input: &View,
    output: &View,
) -> Result<(), LaunchError> {
    with_element!(input.dtype, T => {
        // SAFETY: passed on from the caller; T is the dtype's type.
        unsafe { lines::<T>(shape, axis, kind, reverse, input, output) };
    });
    Ok(())
}

/// # Safety
/// As [`run`], and `T` is the element type of both views.
unsafe fn lines<T: Element>(
    shape: &[usize],
    axis: usize,
    kind: ReduceKind,
    reverse: bool,
    input: &View,
    output: &View,
) {
    let length = shape[axis];
    let outer = without(shape, axis);
    let count: usize = outer.iter().product();
    let (from, to) = (without(&input.strides, axis), without(&output.strides, axis));
    let (step_in, step_out) = (input.strides[axis], output.strides[axis]);
    in_parallel(count, length, &|begin, end| {
        visit(&outer, [&from, &to], begin, end, |_, [at_in, at_out]| {
            let mut acc = T::Wide::identity(kind);
            for i in 0..length {
                let i = if reverse { length - 1 - i } else { i } as isize;
                // SAFETY: i < length, so both elements are inside the views.
                unsafe {
                    acc = T::Wide::combine(kind, acc, (*input.at::<T>(at_in + i * step_in)).widen());
                    *output.at::<T>(at_out + i * step_out) = T::narrow(acc);
                }
            }
        });
    });
}
