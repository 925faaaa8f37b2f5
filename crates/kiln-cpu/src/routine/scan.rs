//! Running combinations along an axis, accumulated in 64 bits; those of floats of two bytes in f32.

use super::element::{Element, Running, with_element};
use super::{View, in_parallel, visit, without};
use kiln_ir::{DType, ReduceKind};
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
    // SAFETY: passed on from the caller; the types are the dtype's.
    unsafe {
        match input.dtype {
            DType::Bf16 => lines::<half::bf16, f32>(shape, axis, kind, reverse, input, output),
            DType::F16 => lines::<half::f16, f32>(shape, axis, kind, reverse, input, output),
            dtype => with_element!(dtype, T => {
                lines::<T, <T as Element>::Wide>(shape, axis, kind, reverse, input, output)
            }),
        }
    }
    Ok(())
}

/// # Safety
/// As [`run`], and `T` is the element type of both views.
unsafe fn lines<T: Element, A: Running<T>>(
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
        // SAFETY: passed on from the caller.
        unsafe { all_lines::<T, A>(&walk, &offsets, kind) };
    });
}

/// Walks every line, with vectors of 256 bits where the machine has them.
///
/// # Safety
/// As [`Walk::lines`].
unsafe fn all_lines<T: Element, A: Running<T>>(walk: &Walk<'_>, offsets: &[[isize; 2]], kind: ReduceKind) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        /// # Safety
        /// As [`Walk::lines`], on a machine with AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn wide<T: Element, A: Running<T>>(walk: &Walk<'_>, offsets: &[[isize; 2]], kind: ReduceKind) {
            // SAFETY: the caller's promise.
            unsafe { by_eight::<T, A>(walk, offsets, kind) }
        }
        // SAFETY: the machine has it; the rest is the caller's promise.
        return unsafe { wide::<T, A>(walk, offsets, kind) };
    }
    // SAFETY: the caller's promise.
    unsafe { by_eight::<T, A>(walk, offsets, kind) }
}

/// A chain of additions leaves most of a processor idle: lines that do not wait for each other are walked side by side.
///
/// # Safety
/// As [`Walk::lines`].
#[inline(always)]
unsafe fn by_eight<T: Element, A: Running<T>>(walk: &Walk<'_>, offsets: &[[isize; 2]], kind: ReduceKind) {
    let (together, rest) = offsets.as_chunks::<8>();
    let (sum, combine) = (|a, b| A::combine(ReduceKind::Sum, a, b), |a, b| A::combine(kind, a, b));
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            ReduceKind::Sum => {
                together.iter().for_each(|lines| walk.lines::<T, A, 8>(lines, A::identity(kind), sum));
                rest.iter().for_each(|line| walk.lines::<T, A, 1>(&[*line], A::identity(kind), sum));
            }
            _ => {
                together.iter().for_each(|lines| walk.lines::<T, A, 8>(lines, A::identity(kind), combine));
                rest.iter().for_each(|line| walk.lines::<T, A, 1>(&[*line], A::identity(kind), combine));
            }
        }
    }
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
    unsafe fn lines<T: Element, A: Running<T>, const N: usize>(
        &self,
        offsets: &[[isize; 2]; N],
        identity: A,
        combine: impl Fn(A, A) -> A,
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
                    (0..PIECE).for_each(|i| piece[i] = A::read(unsafe { *from.add(done + i) }));
                }
                for i in 0..PIECE {
                    for (sum, piece) in sums.iter_mut().zip(&mut pieces) {
                        *sum = combine(*sum, piece[i]);
                        piece[i] = *sum;
                    }
                }
                for (piece, to) in pieces.iter().zip(to) {
                    // SAFETY: a piece of the line, so that the elements are inside the view.
                    (0..PIECE).for_each(|i| unsafe { *to.add(done + i) = piece[i].write() });
                }
                done += PIECE;
            }
        }
        for i in done as isize..self.length as isize {
            for ((sum, from), to) in sums.iter_mut().zip(from).zip(to) {
                // SAFETY: i < length, so both elements are inside the views.
                unsafe {
                    *sum = combine(*sum, A::read(*from.offset(i * step_in)));
                    *to.offset(i * step_out) = sum.write();
                }
            }
        }
    }
}
