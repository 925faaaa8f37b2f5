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
        let mut offsets = Vec::with_capacity(end - begin);
        visit(&outer, [&from, &to], begin, end, |_, at| offsets.push(at));
        let steps = [step_in, step_out];
        let walk = Walk { length, reverse, input, output, steps };
        // A chain of additions leaves most of a processor idle: lines that do not wait for each other are walked side by side.
        let (together, rest) = offsets.as_chunks::<8>();
        // SAFETY: passed on from the caller.
        unsafe {
            match kind {
                ReduceKind::Sum => {
                    let sum = |a, b| T::Wide::combine(ReduceKind::Sum, a, b);
                    together.iter().for_each(|lines| walk.lines::<T, 8>(lines, T::Wide::identity(kind), sum));
                    rest.iter().for_each(|line| walk.lines::<T, 1>(&[*line], T::Wide::identity(kind), sum));
                }
                kind => {
                    let combine = |a, b| T::Wide::combine(kind, a, b);
                    together.iter().for_each(|lines| walk.lines::<T, 8>(lines, T::Wide::identity(kind), combine));
                    rest.iter().for_each(|line| walk.lines::<T, 1>(&[*line], T::Wide::identity(kind), combine));
                }
            }
        }
    });
}

/// Lines that are walked from one end to the other.
struct Walk<'a> {
    length: usize,
    reverse: bool,
    input: &'a View,
    output: &'a View,
    /// From one element of a line to the next, of input and output.
    steps: [isize; 2],
}

impl Walk<'_> {
    /// Walks lines that begin at these offsets of input and output.
    ///
    /// # Safety
    /// As [`run`], and `T` is the element type of both views.
    #[inline(always)]
    unsafe fn lines<T: Element, const N: usize>(
        &self,
        offsets: &[[isize; 2]; N],
        identity: T::Wide,
        combine: impl Fn(T::Wide, T::Wide) -> T::Wide,
    ) {
        let [step_in, step_out] = self.steps;
        let mut sums = [identity; N];
        for i in 0..self.length {
            let i = if self.reverse { self.length - 1 - i } else { i } as isize;
            for (sum, [from, to]) in sums.iter_mut().zip(offsets) {
                // SAFETY: i < length, so both elements are inside the views.
                unsafe {
                    *sum = combine(*sum, (*self.input.at::<T>(from + i * step_in)).widen());
                    *self.output.at::<T>(to + i * step_out) = T::narrow(*sum);
                }
            }
        }
    }
}
