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
        // SAFETY: passed on from the caller.
        unsafe { all_lines::<T>(&walk, &offsets, kind) };
    });
}

/// Walks every line, with vectors of 256 bits where the machine has them.
///
/// # Safety
/// As [`Walk::lines`].
unsafe fn all_lines<T: Element>(walk: &Walk<'_>, offsets: &[[isize; 2]], kind: ReduceKind) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        /// # Safety
        /// As [`Walk::lines`], on a machine with AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn wide<T: Element>(walk: &Walk<'_>, offsets: &[[isize; 2]], kind: ReduceKind) {
            // SAFETY: the caller's promise.
            unsafe { each_line::<T>(walk, offsets, kind) }
        }
        // SAFETY: the machine has it; the rest is the caller's promise.
        return unsafe { wide::<T>(walk, offsets, kind) };
    }
    // SAFETY: the caller's promise.
    unsafe { each_line::<T>(walk, offsets, kind) }
}

/// # Safety
/// As [`Walk::lines`].
#[inline(always)]
unsafe fn each_line<T: Element>(walk: &Walk<'_>, offsets: &[[isize; 2]], kind: ReduceKind) {
    let sum = |a, b| T::Wide::combine(ReduceKind::Sum, a, b);
    let combine = |a, b| T::Wide::combine(kind, a, b);
    let neighbours = walk.steps == [1, 1] && !walk.reverse;
    // A chain of additions leaves most of a processor idle: lines that do not wait for each other are walked side by side.
    let (together, rest) = offsets.as_chunks::<8>();
    // SAFETY: the caller's promise.
    unsafe {
        match kind {
            ReduceKind::Sum if neighbours && T::SUMS_FIT => {
                offsets.iter().for_each(|line| walk.neighbours::<T>(*line, T::Wide::identity(kind), sum));
            }
            ReduceKind::Sum => {
                together.iter().for_each(|lines| walk.lines::<T, 8>(lines, T::Wide::identity(kind), sum));
                rest.iter().for_each(|line| walk.lines::<T, 1>(&[*line], T::Wide::identity(kind), sum));
            }
            _ => {
                together.iter().for_each(|lines| walk.lines::<T, 8>(lines, T::Wide::identity(kind), combine));
                rest.iter().for_each(|line| walk.lines::<T, 1>(&[*line], T::Wide::identity(kind), combine));
            }
        }
    }
}

/// Elements of a line that are combined at once: a vector of what they are accumulated in.
const AT_ONCE: usize = 4;

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
    /// Walks a line of neighbours that begins at these offsets, some elements at a time: each is combined with the one before it, then with
    /// what is two before it, and all of them with what came before. The order of the combinations is another than element by element.
    ///
    /// # Safety
    /// As [`run`], and `T` is the element type of both views.
    #[inline(always)]
    unsafe fn neighbours<T: Element>(
        &self,
        [from, to]: [isize; 2],
        identity: T::Wide,
        combine: impl Fn(T::Wide, T::Wide) -> T::Wide,
    ) {
        // SAFETY: the line is inside both views; what is written no one else looks at meanwhile. Both may be the same line, so that there are no slices.
        let (from, to) = unsafe { (self.input.at::<T>(from), self.output.at::<T>(to)) };
        let (mut before, mut done) = (identity, 0);
        while done + AT_ONCE <= self.length {
            // SAFETY: inside the line.
            let mut all: [T::Wide; AT_ONCE] = std::array::from_fn(|i| unsafe { *from.add(done + i) }.widen());
            let mut apart = 1;
            while apart < AT_ONCE {
                let last = all;
                (apart..AT_ONCE).for_each(|i| all[i] = combine(last[i - apart], last[i]));
                apart *= 2;
            }
            all = all.map(|element| combine(before, element));
            before = all[AT_ONCE - 1];
            // SAFETY: inside the line.
            (0..AT_ONCE).for_each(|i| unsafe { *to.add(done + i) = T::narrow(all[i]) });
            done += AT_ONCE;
        }
        for i in done..self.length {
            // SAFETY: inside the line.
            unsafe {
                before = combine(before, (*from.add(i)).widen());
                *to.add(i) = T::narrow(before);
            }
        }
    }

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
