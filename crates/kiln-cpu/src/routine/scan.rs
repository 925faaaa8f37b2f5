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

/// Elements of a line that are read together.
const PIECE: usize = 16;

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
        let [mut step_in, mut step_out] = self.steps;
        let mut first = *offsets;
        if self.reverse {
            let last = self.length.saturating_sub(1) as isize;
            first.iter_mut().for_each(|[from, to]| (*from, *to) = (*from + last * step_in, *to + last * step_out));
            (step_in, step_out) = (-step_in, -step_out);
        }
        // Addresses of their own: a store might change those of the views, as far as the compiler knows.
        // SAFETY: the first elements of the lines, or places beside empty ones that are not used.
        let (from, to) =
            unsafe { (first.map(|[from, _]| self.input.at::<T>(from)), first.map(|[_, to]| self.output.at::<T>(to))) };
        let mut sums = [identity; N];
        let mut done = 0;
        if (step_in, step_out) == (1, 1) {
            // Piece by piece, so that each cache line is read and written at one go: lines may be a power of two apart.
            let mut pieces = [[identity; PIECE]; N];
            while done + PIECE <= self.length {
                for (piece, from) in pieces.iter_mut().zip(from) {
                    // SAFETY: a piece of the line, so that the elements are inside the view.
                    (0..PIECE).for_each(|i| piece[i] = unsafe { *from.add(done + i) }.widen());
                }
                for i in 0..PIECE {
                    for (sum, piece) in sums.iter_mut().zip(&mut pieces) {
                        *sum = combine(*sum, piece[i]);
                        piece[i] = *sum;
                    }
                }
                for (piece, to) in pieces.iter().zip(to) {
                    // SAFETY: a piece of the line, so that the elements are inside the view.
                    (0..PIECE).for_each(|i| unsafe { *to.add(done + i) = T::narrow(piece[i]) });
                }
                done += PIECE;
            }
        }
        for i in done as isize..self.length as isize {
            for ((sum, from), to) in sums.iter_mut().zip(from).zip(to) {
                // SAFETY: i < length, so both elements are inside the views.
                unsafe {
                    *sum = combine(*sum, (*from.offset(i * step_in)).widen());
                    *to.offset(i * step_out) = T::narrow(*sum);
                }
            }
        }
    }
}
