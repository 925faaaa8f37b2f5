//! Memory for one task, kept by each thread between launches so that a warm launch allocates next to nothing.

use super::geometry::Segment;
use std::cell::RefCell;

/// A cache line, so that every part is aligned.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[allow(dead_code, reason = "only its size and alignment matter")] [f32; 16]);

/// Lines that a thread keeps, of 64 bytes each: more are freed after their task.
const LINES_KEPT: usize = (64 << 20) / 64;

thread_local! {
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Sizes of the parts of a task's memory, in elements of 4 bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Sizes {
    /// Queries, packed.
    pub queries: usize,
    /// Scores, then weights.
    pub scores: usize,
    /// A tile of keys, packed.
    pub keys: usize,
    /// A tile of values, packed.
    pub values: usize,
    /// Results before the division.
    pub results: usize,
    /// A tile of the mask.
    pub mask: usize,
    /// Running maxima, sums and factors: one each per row.
    pub rows: usize,
    /// Segments of keys or values.
    pub segments: usize,
}

/// The parts of a task's memory.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    pub queries: *mut f32,
    pub scores: *mut f32,
    pub keys: *mut f32,
    pub values: *mut f32,
    pub results: *mut f32,
    pub mask: *mut f32,
    pub tops: *mut f32,
    pub sums: *mut f32,
    pub factors: *mut f32,
    pub segments: *mut Segment,
}

/// Calls `f` with this thread's memory, whose contents are unspecified.
pub(super) fn with<R>(sizes: Sizes, f: impl FnOnce(Scratch) -> R) -> R {
    let Sizes { queries, scores, keys, values, results, mask, rows, segments } = sizes;
    let segments = segments * size_of::<Segment>() / 4;
    // A line between parts keeps them off each other's cache sets.
    let lines = |count: usize| count.div_ceil(16) + 1;
    let parts = [queries, scores, keys, values, results, mask, rows, rows, rows, segments].map(lines);
    let total = parts.iter().sum();
    let run = |memory: &mut Vec<Line>| {
        if memory.len() < total {
            memory.resize(total, Line([0.0; 16]));
        }
        let mut next = memory.as_mut_ptr();
        let mut take = parts.iter().map(|&lines| {
            let at = next;
            next = next.wrapping_add(lines);
            at.cast::<f32>()
        });
        let mut part = || take.next().unwrap_or(std::ptr::null_mut());
        let result = f(Scratch {
            queries: part(),
            scores: part(),
            keys: part(),
            values: part(),
            results: part(),
            mask: part(),
            tops: part(),
            sums: part(),
            factors: part(),
            segments: part().cast(),
        });
        if memory.len() > LINES_KEPT {
            *memory = Vec::new();
        }
        result
    };
    let mut f = Some(run);
    // A thread that is ending has no memory left to keep; it takes fresh memory.
    let kept =
        LINES.try_with(|kept| kept.try_borrow_mut().ok().and_then(|mut memory| f.take().map(|f| f(&mut memory))));
    match (kept.ok().flatten(), f) {
        (Some(result), _) => result,
        (None, Some(f)) => f(&mut Vec::new()),
        (None, None) => unreachable!("the task ran and gave a result"),
    }
}
