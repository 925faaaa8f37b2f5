//! The kernels in plain Rust, called as the generated ones are. Vectors are arrays of eight that the compiler lowers to the
//! machine's vectors.

use super::dot::{DotArgs, DotFn};
use super::exponential::exponential;
use super::geometry::Segment;
use super::softmax::SoftmaxArgs;
use super::tile::{Along, TileArgs, TileFn};

/// Elements of a vector.
pub(super) const LANES: usize = 8;
type Lanes = [f32; LANES];

/// The micro-kernel of a shape: up to four rows, one or two vectors.
pub(super) fn tile_kernel(along: Along, rows: usize, vectors: usize) -> TileFn {
    macro_rules! pick {
        ($($rows:literal)*) => {
            match (along, rows, vectors) {
                $((Along::Rows, $rows, 1) => tile::<$rows, 1, false>,
                (Along::Rows, $rows, 2) => tile::<$rows, 2, false>,
                (Along::Panel, $rows, 1) => tile::<$rows, 1, true>,
                (Along::Panel, $rows, 2) => tile::<$rows, 2, true>,)*
                _ => unreachable!("a tile of {rows} rows and {vectors} vectors"),
            }
        };
    }
    pick!(1 2 3 4)
}

/// The first segment of some rows, then the others.
unsafe fn segments(data: *const u8, rows: usize, more: *const Segment, count: usize) -> impl Iterator<Item = Segment> {
    // SAFETY: the caller hands as many as it says.
    let rest = (0..count).map(move |i| unsafe { *more.add(i) });
    std::iter::once(Segment { data, rows }).chain(rest)
}

unsafe extern "C" fn tile<const ROWS: usize, const VECTORS: usize, const PANEL: bool>(args: *mut TileArgs) {
    // SAFETY: the caller hands valid arguments whose operands hold the whole tile.
    unsafe {
        let args = &*args;
        let mut acc = [[[0f32; LANES]; VECTORS]; ROWS];
        let (row_step, k_step) = if PANEL { (4, args.a_stride) } else { (args.a_stride, 4) };
        let mut before = 0;
        for Segment { data, rows } in segments(args.b, args.k, args.more, args.segments) {
            for k in 0..rows as isize {
                let b = &*data.offset(k * args.b_stride).cast::<[Lanes; VECTORS]>();
                for (row, acc) in acc.iter_mut().enumerate() {
                    let a = args.a.offset(row as isize * row_step + (before + k) * k_step).cast::<f32>().read();
                    for (acc, b) in acc.iter_mut().zip(b) {
                        for (acc, b) in acc.iter_mut().zip(b) {
                            *acc += a * b;
                        }
                    }
                }
            }
            before += rows as isize;
        }
        for (row, acc) in acc.iter().enumerate() {
            let c = &mut *args.c.byte_offset(row as isize * args.c_stride).cast::<[Lanes; VECTORS]>();
            if args.factors.is_null() {
                *c = *acc;
            } else {
                let factor = *args.factors.add(row);
                for (c, acc) in c.as_flattened_mut().iter_mut().zip(acc.as_flattened()) {
                    *c = *c * factor + acc;
                }
            }
        }
    }
}

/// The dot-product kernel for `queries` rows, up to four; keys are f32.
pub(super) fn dot_kernel(queries: usize) -> DotFn {
    match queries {
        1 => dot::<1>,
        2 => dot::<2>,
        3 => dot::<3>,
        _ => dot::<4>,
    }
}

unsafe extern "C" fn dot<const QUERIES: usize>(args: *mut DotArgs) {
    // SAFETY: the caller hands valid arguments whose operands hold all rows.
    unsafe {
        let args = &*args;
        let rows = segments(args.k, args.keys, args.more, args.segments)
            .flat_map(|s| (0..s.rows as isize).map(move |row| s.data.offset(row * args.k_stride)));
        for (key, row) in rows.enumerate() {
            let k = row.cast::<Lanes>();
            let mut acc = [[0f32; LANES]; QUERIES];
            for v in 0..args.steps {
                for (query, acc) in acc.iter_mut().enumerate() {
                    let q = &*args.q.byte_add(query * args.q_stride).cast::<Lanes>().add(v);
                    for ((acc, q), k) in acc.iter_mut().zip(q).zip(&*k.add(v)) {
                        *acc += q * k;
                    }
                }
            }
            for (query, acc) in acc.iter().enumerate() {
                *args.scores.byte_add(query * args.score_stride).add(key) = acc.iter().sum();
            }
        }
    }
}

/// [`super::softmax::generate_columns`] in plain Rust.
pub(super) unsafe extern "C" fn softmax_columns(args: *const SoftmaxArgs) {
    // SAFETY: the caller hands valid arguments whose operands hold all keys and queries.
    unsafe {
        let args = &*args;
        for v in 0..args.vectors {
            let scores = |key: usize| args.scores.byte_add(key * args.stride).cast::<Lanes>().add(v);
            let mut top = [f32::NEG_INFINITY; LANES];
            for key in 0..args.keys {
                for (top, score) in top.iter_mut().zip(&*scores(key)) {
                    *top = top.max(*score);
                }
            }
            let mut sum = [0f32; LANES];
            for (lane, (top, sum)) in top.iter_mut().zip(&mut sum).enumerate() {
                (*top, *sum) = advance(args, v * LANES + lane, *top);
            }
            for key in 0..args.keys {
                let weights = &mut *scores(key);
                for ((weight, top), sum) in weights.iter_mut().zip(&top).zip(&mut sum) {
                    *weight = exponential(*weight * args.scale - top);
                    *sum += *weight;
                }
            }
            *args.sums.cast::<Lanes>().add(v) = sum;
        }
    }
}

/// [`super::softmax::generate_row`] in plain Rust.
pub(super) unsafe extern "C" fn softmax_row(args: *const SoftmaxArgs) {
    // SAFETY: the caller hands valid arguments whose operands hold all keys.
    unsafe {
        let args = &*args;
        let scores = std::slice::from_raw_parts_mut(args.scores, args.keys * LANES);
        let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (top, sum) = advance(args, 0, top);
        let mut sums = [0f32; LANES];
        for weights in scores.as_chunks_mut::<LANES>().0 {
            for (weight, sum) in weights.iter_mut().zip(&mut sums) {
                *weight = exponential(*weight * args.scale - top);
                *sum += *weight;
            }
        }
        *args.sums = sum + sums.iter().sum::<f32>();
    }
}

/// Takes a query's largest raw score; returns what its weights are relative to, and its sum of earlier weights.
unsafe fn advance(args: &SoftmaxArgs, query: usize, top: f32) -> (f32, f32) {
    // SAFETY: `query` is one of the call's.
    unsafe {
        let old = *args.tops.add(query);
        let top = old.max(top * args.scale);
        *args.tops.add(query) = top;
        let top = if top == f32::NEG_INFINITY { 0.0 } else { top };
        let factor = exponential(old - top);
        *args.factors.add(query) = factor;
        (top, *args.sums.add(query) * factor)
    }
}
