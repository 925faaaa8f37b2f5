//! Scattered writes along one axis. Lines along the axis never meet, so they run in parallel and each in row-major order:
//! the result does not depend on the number of threads.

use super::element::{Element, ShortFloat, with_element};
use super::{View, visit};
use kiln_ir::{DType, ReduceKind, ScatterKind};
use kiln_runtime::LaunchError;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};

/// # Safety
/// All views reach only inside their buffers; `output` is not shared with any other thread meanwhile.
pub(super) unsafe fn run(
    shape: &[usize],
    updates_shape: &[usize],
    axis: usize,
    kind: ScatterKind,
    index: &View,
    updates: &View,
    output: &View,
) -> Result<(), LaunchError> {
    let job = Job { size: shape[axis], updates_shape, axis, kind, index, updates, output };
    if job.sums_lines() {
        // SAFETY: passed on from the caller; the types are the dtypes' types.
        return unsafe {
            match (output.dtype, index.dtype) {
                (DType::Bf16, DType::I64) => job.line_sums::<half::bf16, i64>(),
                (DType::Bf16, _) => job.line_sums::<half::bf16, i32>(),
                (_, DType::I64) => job.line_sums::<half::f16, i64>(),
                _ => job.line_sums::<half::f16, i32>(),
            }
        };
    }
    with_element!(output.dtype, T => {
        match index.dtype {
            // SAFETY: passed on from the caller; T and i64 are the dtypes' types.
            DType::I64 => unsafe { job.lines::<T, i64>() },
            // SAFETY: likewise; an index is i64 or i32.
            _ => unsafe { job.lines::<T, i32>() },
        }
    })
}

struct Job<'a> {
    size: usize,
    updates_shape: &'a [usize],
    axis: usize,
    kind: ScatterKind,
    index: &'a View,
    updates: &'a View,
    output: &'a View,
}

impl Job<'_> {
    /// # Safety
    /// As [`run`], with `T` and `I` the element types of output and index.
    unsafe fn lines<T: Element, I: Element<Wide = i64>>(&self) -> Result<(), LaunchError> {
        let before: usize = self.updates_shape[..self.axis].iter().product();
        let after: usize = self.updates_shape[self.axis + 1..].iter().product();
        let along = self.updates_shape[self.axis];
        let reduction = self.kind.reduction();
        let bad = AtomicUsize::new(usize::MAX);
        let bad_index = AtomicI64::new(0);
        // Work is cut over the axes before and, where those are few, over the axes after as well.
        let threads = crate::pool::threads();
        let total = before.saturating_mul(after).saturating_mul(along);
        let cuts = if total < 16384 || before >= threads * 2 { 1 } else { (threads * 2).min(after.max(1)) };
        let jobs = before * cuts;
        if total == 0 {
            return Ok(());
        }
        let inner = &self.updates_shape[self.axis + 1..];
        let tail = self.axis + 1..;
        let whole_rows = self.index.strides[tail.clone()].iter().zip(inner).all(|(&s, &n)| s == 0 || n == 1)
            && is_row_major(inner, &self.updates.strides[tail.clone()])
            && is_row_major(inner, &self.output.strides[tail]);
        let run_lines = |lines: Range<usize>, part: Range<usize>| {
            let outer_shape = &self.updates_shape[..self.axis];
            let (i, u, o) = (&self.index.strides, &self.updates.strides, &self.output.strides);
            let head = ..self.axis;
            visit(outer_shape, [&i[head], &u[head], &o[head]], lines.start, lines.end, |_, offsets| {
                let fault = match (whole_rows && after > 1, reduction) {
                    // SAFETY: passed on from the caller.
                    (true, _) => unsafe { self.rows::<T, I>(offsets, part.clone(), reduction) },
                    // Each loop knows what it does.
                    // SAFETY: as above.
                    (false, None) => unsafe { self.elements::<T, I>(offsets, part.clone(), |_, update| update) },
                    (false, Some(ReduceKind::Sum)) => {
                        let sum = |old, update| T::combine(ReduceKind::Sum, old, update);
                        // SAFETY: as above.
                        unsafe { self.elements::<T, I>(offsets, part.clone(), sum) }
                    }
                    (false, Some(kind)) => {
                        let combine = |old, update| T::combine(kind, old, update);
                        // SAFETY: as above.
                        unsafe { self.elements::<T, I>(offsets, part.clone(), combine) }
                    }
                };
                if let Some(at) = fault {
                    bad_index.store(at, Ordering::Relaxed);
                    bad.store(self.size, Ordering::Relaxed);
                }
            });
        };
        let chunks = if total < 16384 { 1 } else { jobs.min(threads * 4) };
        crate::pool::run(chunks, threads, &|chunk| {
            let part = jobs * chunk / chunks..jobs * (chunk + 1) / chunks;
            if cuts == 1 {
                return run_lines(part, 0..after);
            }
            for job in part {
                let (line, cut) = (job / cuts, job % cuts);
                run_lines(line..line + 1, after * cut / cuts..after * (cut + 1) / cuts);
            }
        });
        match bad.into_inner() {
            usize::MAX => Ok(()),
            size => Err(LaunchError::IndexOutOfRange { index: bad_index.into_inner(), size: size as i64 }),
        }
    }
}

impl Job<'_> {
    /// Whether lines of short floats along the last axis get so many summands that they are widened as a whole first. Each sum is
    /// rounded once then.
    fn sums_lines(&self) -> bool {
        let is_short = matches!(self.output.dtype, DType::Bf16 | DType::F16);
        let along = self.updates_shape[self.axis];
        is_short
            && self.kind == ScatterKind::Add
            && self.updates_shape[self.axis + 1..].iter().all(|&n| n == 1)
            && self.output.strides[self.axis] == 1
            && along >= self.size / 2
            && self.size <= MOST_SUMS
    }

    /// Sums of lines along the last axis.
    ///
    /// # Safety
    /// As [`run`], with `T` and `I` the element types of output and index.
    unsafe fn line_sums<T: ShortFloat, I: Element<Wide = i64>>(&self) -> Result<(), LaunchError> {
        let (axis, head) = (self.axis, ..self.axis);
        let (outer, along, size) = (&self.updates_shape[head], self.updates_shape[self.axis], self.size);
        let lines: usize = outer.iter().product();
        let (i, u, o) = (&self.index.strides, &self.updates.strides, &self.output.strides);
        let (di, du) = (i[axis], u[axis]);
        let (bad, is_bad) = (AtomicI64::new(0), AtomicBool::new(false));
        super::in_parallel(lines, along, &|begin, end| {
            let mut sums = vec![0f32; size];
            visit(outer, [&i[head], &u[head], &o[head]], begin, end, |_, [index, updates, output]| {
                // SAFETY: the line is inside the view, and no other job writes it.
                let line = unsafe { std::slice::from_raw_parts_mut(self.output.at::<T>(output), size) };
                widen_line(line, &mut sums);
                // SAFETY: the first elements of the lines, or places beside empty ones that are not used.
                let (index, updates) = unsafe { (self.index.at::<I>(index), self.updates.at::<T>(updates)) };
                let to = sums.as_mut_ptr();
                // SAFETY: the line has `along` indices and updates; places are inside the sums.
                let fault = unsafe {
                    each_place(index, di, along, size as u64, not_yet, |n, at| {
                        *to.add(at) += (*updates.offset(n * du)).to_single();
                    })
                };
                if let Some(at) = fault {
                    bad.store(at, Ordering::Relaxed);
                    is_bad.store(true, Ordering::Relaxed);
                }
                narrow_line(&sums, line);
            });
        });
        match is_bad.into_inner() {
            false => Ok(()),
            true => Err(LaunchError::IndexOutOfRange { index: bad.into_inner(), size: size as i64 }),
        }
    }

    /// Scatters a part of one line whose rows each have one index; an index that is out of range is returned and its row left out.
    ///
    /// # Safety
    /// As [`run`], with `T` and `I` the element types of output and index.
    unsafe fn rows<T: Element, I: Element<Wide = i64>>(
        &self,
        [index, updates, output]: [isize; 3],
        part: Range<usize>,
        reduction: Option<ReduceKind>,
    ) -> Option<i64> {
        let mut fault = None;
        let axis = self.axis;
        for step in 0..self.updates_shape[axis] as isize {
            // SAFETY: the first of the row, and the row itself, are inside index, updates and output.
            unsafe {
                let at = (*self.index.at::<I>(index + step * self.index.strides[axis])).widen();
                if at < 0 || at as usize >= self.size {
                    fault = Some(at);
                    continue;
                }
                let begin = part.start as isize;
                let from = self.updates.at::<T>(updates + step * self.updates.strides[axis] + begin);
                let to = self.output.at::<T>(output + at as isize * self.output.strides[axis] + begin);
                combine_row(reduction, from, to, part.len());
            }
        }
        fault
    }

    /// Scatters a part of one line element by element; an index that is out of range is returned and its element left out.
    ///
    /// # Safety
    /// As [`run`], with `T` and `I` the element types of output and index.
    #[inline(always)]
    unsafe fn elements<T: Element, I: Element<Wide = i64>>(
        &self,
        [index, updates, output]: [isize; 3],
        part: Range<usize>,
        combine: impl Fn(T, T) -> T,
    ) -> Option<i64> {
        let mut fault = None;
        let axis = self.axis;
        let (i, u, o) = (&self.index.strides, &self.updates.strides, &self.output.strides);
        let along = self.updates_shape[axis];
        // A run of elements: where it begins, how far its elements are from each other, and how many there are. Where the scattered
        // axis is the run, the output does not move along it.
        let (size, step_of_axis) = (self.size as u64, o[axis]);
        let mut run = |[index, updates, output]: [isize; 3], [di, du, to]: [isize; 3], count: usize| {
            // Addresses of their own: a store might change those of the views, as far as the compiler knows.
            // SAFETY: the first elements of the run, or places beside an empty one that are not used.
            let (index, updates, output) =
                unsafe { (self.index.at::<I>(index), self.updates.at::<T>(updates), self.output.at::<T>(output)) };
            // SAFETY: the run is inside index and updates; places were checked against the axis, and no other job writes this line.
            let bad = unsafe {
                match (du, to, step_of_axis) {
                    // Lines along the last axis: no products in the loop.
                    (1, 0, 1) => each_place(index, di, count, size, not_yet, |n, at| {
                        let place = output.add(at);
                        *place = combine(*place, *updates.offset(n));
                    }),
                    _ => {
                        let place = |n: isize, at: usize| output.offset(n * to + at as isize * step_of_axis);
                        each_place(
                            index,
                            di,
                            count,
                            size,
                            |n, at| fetch(place(n, at)),
                            |n, at| {
                                let place = place(n, at);
                                *place = combine(*place, *updates.offset(n * du));
                            },
                        )
                    }
                }
            };
            fault = bad.or(fault);
        };
        let inner = &self.updates_shape[axis + 1..];
        if inner.iter().all(|&n| n == 1) {
            run([index, updates, output], [i[axis], u[axis], 0], along);
            return fault;
        }
        let last = inner.len() - 1;
        let strides = [&i[axis + 1..], &u[axis + 1..], &o[axis + 1..]];
        let steps = strides.map(|strides| strides[last]);
        let (width, outer) = (inner[last], &inner[..last]);
        for step in 0..along as isize {
            let line = [index + step * i[axis], updates + step * u[axis], output];
            // The first row may begin, and the last one end, within the part.
            let rows = part.start / width..part.end.div_ceil(width);
            visit(outer, strides.map(|strides| &strides[..last]), rows.start, rows.end, |row, offsets| {
                let (begin, end) = (part.start.max(row * width), part.end.min((row + 1) * width));
                let skipped = (begin - row * width) as isize;
                let at = std::array::from_fn(|k| line[k] + offsets[k] + skipped * steps[k]);
                run(at, steps, end - begin);
            });
        }
        fault
    }
}

/// Calls `f` with the number of each index and the index, in their order; one that is out of range is left out and returned. Where many are
/// known to be inside, `soon` is called with each some time before `f` is.
///
/// # Safety
/// There are `count` indices, so many elements apart. What `f` and `soon` do is the caller's promise, for numbers below `count` and indices below
/// `size`.
#[inline(always)]
unsafe fn each_place<I: Element<Wide = i64>>(
    index: *const I,
    apart: isize,
    count: usize,
    size: u64,
    soon: impl Fn(isize, usize),
    mut f: impl FnMut(isize, usize),
) -> Option<i64> {
    /// How many calls of `f` are between those of an index.
    const SOON: usize = 16;
    /// Indices that are checked together.
    const TOGETHER: usize = 256;
    let (mut fault, mut n) = (None, 0);
    // SAFETY: numbers below `count`.
    let at = |n: usize| unsafe { *index.offset(n as isize * apart) }.widen();
    while n < count {
        let end = count.min(n + TOGETHER);
        // SAFETY: these are neighbours below `count`.
        if apart == 1 && all_inside(unsafe { std::slice::from_raw_parts(index.add(n), end - n) }, size) {
            // SAFETY: as above.
            let at = |n: usize| unsafe { *index.add(n) }.widen() as usize;
            for n in n..end {
                let later = (n + SOON).min(end - 1);
                soon(later as isize, at(later));
                f(n as isize, at(n));
            }
        } else {
            for n in n..end {
                match at(n) {
                    at if (at as u64) < size => f(n as isize, at as usize),
                    at => fault = Some(at),
                }
            }
        }
        n = end;
    }
    fault
}

/// For a line that is in the first cache.
#[inline(always)]
fn not_yet(_: isize, _: usize) {}

/// Has the processor fetch what will be changed: places of other lines are in no order that it could foresee.
#[inline(always)]
fn fetch<T>(_place: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a fetch reads nothing as far as the program is concerned, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(_place.cast());
    }
}

/// Whether all indices are below `size`.
fn all_inside<I: Element<Wide = i64>>(indices: &[I], size: u64) -> bool {
    #[inline(always)]
    fn each<I: Element<Wide = i64>>(indices: &[I], last: i64) -> bool {
        // A sign bit is left where one is negative or beyond the last; vectors of any kind can do this.
        indices.iter().map(|at| at.widen()).fold(0, |signs, at| signs | at | last.wrapping_sub(at)) >= 0
    }
    // No size is larger than i64 holds, and none that is 0 has an index inside.
    let last = size as i64 - 1;
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn wide<I: Element<Wide = i64>>(indices: &[I], last: i64) -> bool {
            each(indices, last)
        }
        // SAFETY: the machine has it.
        return unsafe { wide(indices, last) };
    }
    each(indices, last)
}

/// Sums of a line that are kept at once: a second-level cache holds them.
const MOST_SUMS: usize = 1 << 16;

/// Code of a function with vectors of 256 bits where the machine has them.
macro_rules! with_avx2 {
    ($(#[$doc:meta])* fn $name:ident<$T:ident: $bound:ident>($($argument:ident: $type:ty),*) $body:block) => {
        $(#[$doc])*
        fn $name<$T: $bound>($($argument: $type),*) {
            #[inline(always)]
            fn plain<$T: $bound>($($argument: $type),*) $body
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") {
                #[target_feature(enable = "avx2")]
                fn wide<$T: $bound>($($argument: $type),*) {
                    plain($($argument),*)
                }
                // SAFETY: the machine has it.
                return unsafe { wide($($argument),*) };
            }
            plain($($argument),*)
        }
    };
}

with_avx2! {
    /// Elements as f32.
    fn widen_line<T: ShortFloat>(line: &[T], sums: &mut [f32]) {
        sums.iter_mut().zip(line).for_each(|(sum, element)| *sum = element.to_single());
    }
}

with_avx2! {
    /// Elements that f32 are rounded to.
    fn narrow_line<T: ShortFloat>(sums: &[f32], line: &mut [T]) {
        line.iter_mut().zip(sums).for_each(|(element, sum)| *element = T::of_single(*sum));
    }
}

/// True if elements of these axes are contiguous, in row-major order.
fn is_row_major(shape: &[usize], strides: &[isize]) -> bool {
    let mut span = 1;
    shape.iter().zip(strides).rev().all(|(&size, &stride)| {
        let next = size == 1 || stride == span;
        span *= size as isize;
        next
    })
}

/// Combines `count` neighbours with as many others: all of one index.
///
/// # Safety
/// Both runs are readable, `to` is writable and not shared.
unsafe fn combine_row<T: Element>(reduction: Option<ReduceKind>, from: *const T, to: *mut T, count: usize) {
    // SAFETY: the caller's promise; the runs are of different buffers.
    unsafe {
        match reduction {
            None => std::ptr::copy_nonoverlapping(from, to, count),
            // Spelled out, so that sums become vector code.
            Some(ReduceKind::Sum) => add_row(from, to, count),
            Some(kind) => (0..count).for_each(|i| *to.add(i) = T::combine(kind, *to.add(i), *from.add(i))),
        }
    }
}

/// # Safety
/// As [`combine_row`].
unsafe fn add_row<T: Element>(from: *const T, to: *mut T, count: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        /// # Safety
        /// As [`combine_row`], on a machine with AVX2.
        #[target_feature(enable = "avx2")]
        unsafe fn wide<T: Element>(from: *const T, to: *mut T, count: usize) {
            // SAFETY: the caller's promise.
            unsafe { add_each(from, to, count) }
        }
        // SAFETY: the machine has it; the rest is the caller's promise.
        return unsafe { wide(from, to, count) };
    }
    // SAFETY: the caller's promise.
    unsafe { add_each(from, to, count) }
}

/// # Safety
/// As [`combine_row`].
#[inline(always)]
unsafe fn add_each<T: Element>(from: *const T, to: *mut T, count: usize) {
    // SAFETY: the caller's promise; the runs are of different buffers.
    let (from, to) = unsafe { (std::slice::from_raw_parts(from, count), std::slice::from_raw_parts_mut(to, count)) };
    to.iter_mut().zip(from).for_each(|(to, from)| *to = T::combine(ReduceKind::Sum, *to, *from));
}
