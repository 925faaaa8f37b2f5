//! Scattered writes along one axis. Lines along the axis never meet, so they run in parallel and each in row-major order:
//! the result does not depend on the number of threads.

use super::element::{Element, Wide, with_element};
use super::{View, visit};
use kiln_ir::{DType, ReduceKind, ScatterKind};
use kiln_runtime::LaunchError;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

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
    with_element!(output.dtype, T => {
        let job = Job { size: shape[axis], updates_shape, axis, kind, index, updates, output };
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
        let run_job = |job: usize| {
            let (line, cut) = (job / cuts, job % cuts);
            let (inner_begin, inner_end) = (after * cut / cuts, after * (cut + 1) / cuts);
            let outer_shape = &self.updates_shape[..self.axis];
            let inner_shape = &self.updates_shape[self.axis + 1..];
            let (i, u, o) = (&self.index.strides, &self.updates.strides, &self.output.strides);
            let (head, tail) = (..self.axis, self.axis + 1..);
            visit(outer_shape, [&i[head], &u[head], &o[head]], line, line + 1, |_, [oi, ou, oo]| {
                for step in 0..along as isize {
                    let (si, su) = (oi + step * i[self.axis], ou + step * u[self.axis]);
                    if whole_rows {
                        // SAFETY: the first of the row, and the row itself, are inside index, updates and output.
                        unsafe {
                            let at = (*self.index.at::<I>(si)).widen();
                            if at < 0 || at as usize >= self.size {
                                bad_index.store(at, Ordering::Relaxed);
                                bad.store(self.size, Ordering::Relaxed);
                                continue;
                            }
                            let (begin, count) = (inner_begin as isize, inner_end - inner_begin);
                            let from = self.updates.at::<T>(su + begin);
                            let to = self.output.at::<T>(oo + at as isize * o[self.axis] + begin);
                            combine_row(reduction, from, to, count);
                        }
                        continue;
                    }
                    let inner = [&i[tail.clone()], &u[tail.clone()], &o[tail.clone()]];
                    visit(inner_shape, inner, inner_begin, inner_end, |_, [ii, iu, io]| {
                        // SAFETY: the coordinates are inside index and updates.
                        let (at, update) =
                            unsafe { ((*self.index.at::<I>(si + ii)).widen(), *self.updates.at::<T>(su + iu)) };
                        if at < 0 || at as usize >= self.size {
                            bad_index.store(at, Ordering::Relaxed);
                            bad.store(self.size, Ordering::Relaxed);
                            return;
                        }
                        // SAFETY: `at` was checked against the axis; no other job writes this line.
                        unsafe {
                            let place = self.output.at::<T>(oo + io + at as isize * o[self.axis]);
                            *place = match reduction {
                                None => update,
                                Some(kind) => T::narrow(T::Wide::combine(kind, (*place).widen(), update.widen())),
                            };
                        }
                    });
                }
            });
        };
        let chunks = if total < 16384 { 1 } else { jobs.min(threads * 4) };
        crate::pool::run(chunks, threads, &|chunk| {
            for job in jobs * chunk / chunks..jobs * (chunk + 1) / chunks {
                run_job(job);
            }
        });
        match bad.into_inner() {
            usize::MAX => Ok(()),
            size => Err(LaunchError::IndexOutOfRange { index: bad_index.into_inner(), size: size as i64 }),
        }
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
    for i in 0..count {
        // SAFETY: inside the runs.
        unsafe {
            let (old, update) = (*to.add(i), *from.add(i));
            *to.add(i) = match reduction {
                None => update,
                // Spelled out, so that sums become vector code.
                Some(ReduceKind::Sum) => T::narrow(T::Wide::combine(ReduceKind::Sum, old.widen(), update.widen())),
                Some(kind) => T::narrow(T::Wide::combine(kind, old.widen(), update.widen())),
            };
        }
    }
}
