//! Few rows: B is read once, in its own order, and never packed.
//!
//! With B[K, N] contiguous along n its rows are added to C as they stream past. With W[N, K] contiguous along k each
//! column is a dot product. Both run at the speed of memory for one row, and at that of arithmetic for many.

use super::dot::Weight;
use super::kernel::Format;
use super::pack::{Lanes, fill_rows, pack};
use super::packing_kernel::{self, Along};
use super::scratch::Scratch;
use super::source::{Epilogue, Matrix, Operand, SharedOperand};
use super::{Gemm, GemmError, dots, narrow, part, stream};
use crate::features::{Extension, Isa};
use crate::pool;
use kiln_ir::DType;
use kiln_kernels::Precision;
use std::ops::Range;

/// Rows of A up to which streaming B beats packing it.
const STREAM_ROWS: usize = 64;
/// The same, where packing lets pairs of bf16 be multiplied at twice the rate, and where the kernels that do so pack as well.
const STREAM_ROWS_OF_PAIRS: usize = 8;
const STREAM_ROWS_BESIDE_PACKING: usize = 6;
/// Rows of A up to which dot products beat packing W, of floats and of shorter elements.
const DOT_ROWS: usize = 128;
const SHORT_DOT_ROWS: usize = 64;
/// The same where tiles multiply what is packed.
const DOT_ROWS_BESIDE_TILES: usize = 8;
/// The same where packing rounds floats to bf16.
const ROWS_BESIDE_ROUNDING: usize = 24;
/// The factor by which these limits are raised where tuning selects it.
const MORE_ROWS: usize = 3;
/// The shortest K for dot products with few rows, with some and with many: adding up lanes must not dominate, and with more
/// rows the alternative, packing, costs less per row.
const DOT_K: usize = 64;
const DOT_K_SOME: usize = 128;
const DOT_K_MANY: usize = 192;
const FEW_ROWS: usize = 4;
const SOME_ROWS: usize = 32;
/// Bytes of B, and multiply-adds, that take a core some three microseconds: the least that is worth a task. A second
/// thread costs one or two of them, and its half of the result another when the next kernel reads it.
const TASK_BYTES: usize = 160 << 10;
pub(crate) const TASK_WORK: usize = 96 << 10;
/// The most tasks per thread, unless they would grow too large.
const TASKS_A_THREAD: usize = 4;
/// The most bytes of B in one task.
const MOST_BYTES: usize = 1 << 20;

/// Elements of A from which several threads pack it, and k in one of their jobs.
const PANEL_ELEMENTS: usize = 16 << 10;
const PANEL_K: usize = 512;

/// How to run a product with few rows.
#[derive(Clone, Copy)]
pub(super) enum Path {
    /// Rows of B.
    Stream(Matrix, Weight),
    /// Rows of B, few columns.
    Narrow(Matrix, Weight),
    /// Dot products with the columns of B.
    Dot(Matrix, Weight),
}

/// The path for a product in f32, if it has few rows and a fitting B.
pub(super) fn choose(gemm: &Gemm, a: &Operand<'_>, b: &Operand<'_>) -> Option<Path> {
    let Operand::Strided(b) = b else { return None };
    let weight = Weight::of(b.dtype)?;
    if gemm.isa == Isa::Portable || gemm.k == 0 || gemm.tuning.stream == Some(false) {
        return None;
    }
    let pairs = multiplies_pairs(gemm, a, b.dtype);
    let more = if gemm.tuning.stream == Some(true) { MORE_ROWS } else { 1 };
    let dot_rows = match weight {
        Weight::Bf16 if pairs && gemm.extension >= Extension::Amx => DOT_ROWS_BESIDE_TILES,
        Weight::F32 => DOT_ROWS,
        _ => SHORT_DOT_ROWS,
    };
    let stream_rows = match pairs {
        true if packing_kernel::is_whole(Format::Bf16Dot, Along::Rows, gemm.k) => STREAM_ROWS_BESIDE_PACKING,
        true => STREAM_ROWS_OF_PAIRS,
        false => STREAM_ROWS,
    };
    let rounds = weight == Weight::F32 && gemm.precision == Precision::Medium && gemm.extension >= Extension::Bf16;
    let most = if rounds { ROWS_BESIDE_ROUNDING } else { usize::MAX };
    let (dot_rows, stream_rows) = (dot_rows.min(most) * more, stream_rows.min(most) * more);
    let least_k = match gemm.m {
        m if m <= FEW_ROWS => DOT_K,
        m if m <= SOME_ROWS => DOT_K_SOME,
        _ => DOT_K_MANY,
    };
    if b.row_stride == 1 && gemm.k >= least_k && gemm.m <= dot_rows {
        Some(Path::Dot(*b, if pairs { Weight::Bf16Dot } else { weight }))
    } else if b.column_stride == 1 && gemm.m <= stream_rows {
        let narrow = gemm.n < narrow::COLUMNS && matches!(weight, Weight::F32 | Weight::F16);
        Some(if narrow { Path::Narrow(*b, weight) } else { Path::Stream(*b, weight) })
    } else {
        None
    }
}

/// Whether both operands are bf16 and the machine multiplies pairs of them.
pub(super) fn multiplies_pairs(gemm: &Gemm, a: &Operand<'_>, b: DType) -> bool {
    let Operand::Strided(a) = a else { return false };
    gemm.isa == Isa::Avx512 && gemm.extension >= Extension::Bf16 && a.dtype == DType::Bf16 && b == DType::Bf16
}

/// Runs a product with few rows.
///
/// # Safety
/// As for [`Gemm::run`].
pub(super) unsafe fn run(gemm: &Gemm, path: Path, a: &Operand<'_>, epilogue: &dyn Epilogue) -> Result<(), GemmError> {
    // SAFETY: the caller's promise.
    unsafe {
        match path {
            Path::Narrow(b, weight) => narrow::run(gemm, a, &b, weight, epilogue),
            Path::Stream(b, weight) => stream::run(gemm, a, &b, weight, epilogue),
            Path::Dot(b, weight) => dots::run(gemm, a, &b, weight, epilogue),
        }
    }
}

/// Whether one row times a weight makes one task, for any number of threads.
pub(super) fn is_one_task(n: usize, k: usize, size: usize) -> bool {
    let elements = n.saturating_mul(k);
    elements.saturating_mul(size) / TASK_BYTES <= 1 && elements / TASK_WORK <= 1
}

/// The number of tasks of the least size of a product, with a B of so many bytes.
fn least_tasks(gemm: &Gemm, bytes: usize) -> usize {
    (bytes / TASK_BYTES).max(gemm.n * gemm.k * gemm.m / TASK_WORK)
}

/// The threads that a product is worth, with `size` bytes in an element of B.
pub(super) fn threads(gemm: &Gemm, size: usize) -> usize {
    threads_for(gemm, gemm.n * gemm.k * size)
}

/// The threads that a product with a B of so many bytes is worth.
pub(super) fn threads_for(gemm: &Gemm, bytes: usize) -> usize {
    gemm.threads.clamp(1, pool::threads()).min(least_tasks(gemm, bytes)).max(1)
}

/// The number of tasks of a product: as many for each thread, a few where it is large.
pub(super) fn tasks(gemm: &Gemm, size: usize, threads: usize) -> usize {
    tasks_for(gemm, gemm.n * gemm.k * size, threads)
}

/// [`tasks`] for a B of so many bytes.
pub(super) fn tasks_for(gemm: &Gemm, bytes: usize, threads: usize) -> usize {
    if threads == 1 {
        return 1;
    }
    let most = gemm.tuning.tasks.unwrap_or(TASKS_A_THREAD).max(1);
    let each = (least_tasks(gemm, bytes) / threads).clamp(1, most);
    (threads * each).max((bytes / MOST_BYTES).next_multiple_of(threads))
}

/// Packs all of A as one panel `[k][width]` for each of some groups of rows, one group after another.
///
/// # Safety
/// As for [`Gemm::run`].
pub(super) unsafe fn panels(gemm: &Gemm, a: &Operand<'_>, groups: usize) -> Scratch {
    let k = gemm.k;
    let panels = Scratch::take::<f32>(gemm.m * k);
    let to = panels.ptr::<f32>() as usize;
    let a = SharedOperand(*a);
    // A few microseconds of copying are not worth a second thread.
    let (threads, parts) = if gemm.m * k < PANEL_ELEMENTS { (1, 1) } else { (gemm.threads, k.div_ceil(PANEL_K)) };
    pool::run(groups * parts, threads, &|job| {
        let (rows, ks) = (part(gemm.m, groups, job / parts), part(k, parts, job % parts));
        let to = to as *mut f32;
        // SAFETY: jobs write disjoint parts of the scratch; the operands are the caller's.
        unsafe { panel_of(gemm, &a.get(), rows.clone(), ks.clone(), to.add(rows.start * k + ks.start * rows.len())) };
    });
    panels
}

/// Packs some rows and k of A as a panel: `[k][width]`.
unsafe fn panel_of(gemm: &Gemm, a: &Operand<'_>, rows: Range<usize>, ks: Range<usize>, to: *mut f32) {
    let (width, k) = (rows.len(), ks.len());
    // SAFETY: `to` holds the panel; the operand is the caller's.
    unsafe {
        match a {
            Operand::Strided(m) => {
                let from = Lanes { data: m.data, dtype: m.dtype, lane_stride: m.row_stride, k_stride: m.column_stride };
                pack::<f32>(gemm.isa, &from, rows, width, ks, to);
            }
            Operand::Rows(source) => {
                let scratch = Scratch::take::<f32>(width * k);
                fill_rows::<f32>(*source, rows, ks, scratch.ptr());
                let from = Lanes { data: scratch.ptr(), dtype: DType::F32, lane_stride: k as isize, k_stride: 1 };
                pack::<f32>(gemm.isa, &from, 0..width, width, 0..k, to);
            }
            Operand::Columns(_) | Operand::Packed(_) | Operand::Blocks(_) => {
                unreachable!("refused by `Gemm::check`")
            }
        }
    }
}

/// Addresses that tasks share.
#[derive(Clone, Copy)]
pub(super) struct Shared {
    pub a: *const f32,
    pub b: *const u8,
}
// SAFETY: only read.
unsafe impl Sync for Shared {}
impl Shared {
    pub(super) fn get(&self) -> Shared {
        *self
    }
}
