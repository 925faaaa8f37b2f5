//! Products: `C[M, N] = A[M, K] · B[K, N]` from and to any strided layout, with generated micro-kernels.
//!
//! ```text
//!  Operand (strided memory, fused rows, PackedB)
//!     │  M small, B's rows contiguous    ──▶ stream   rows of B pass by once, unpacked       (`stream`, `sweep`)
//!     │  M small, B's columns contiguous ──▶ dots     rows of W[N, K] pass by once, unpacked  (`dots`, `dot`)
//!     │  one row, W[N, K] in a cache     ──▶ row      all in one call, prepared with the kernel  (`row`)
//!     │  a few rows, B packed            ──▶ few_rows  the tiles of `blocked`, prepared with the kernel  (`few_rows`)
//!     │  N small                         ──▶ the same, of the transposed product              (`swapped`)
//!     │  B of quantised blocks           ──▶ in bytes, or the same two ways unpacked in registers or panels  (`quantised`)
//!     │  else, or B packed               ──▶ blocked  panels packed per cache block           (`blocked`, `pack`)
//!     │     bf16, bytes: several k in a word, multiplied at once by vectors or tiles          (`words`, `tiles`)
//!     │     B in memory: packed by the kernels of the first row panel as they multiply        (`packing_kernel`)
//!     ▼
//!  Tile of accumulators, still in cache ──▶ Epilogue (fused code, or `Store`)
//! ```
//!
//! Invariants: every element of the result reaches the epilogue exactly once, after all of K; with K = 0 it is zero.
//! The order of additions depends on shapes, layouts and the target, never on the number of threads or on timing.

mod ahead;
mod blocked;
mod blocks;
mod dense;
mod depthwise;
mod direct;
mod dot;
mod dots;
#[cfg(test)]
mod emulated;
mod few_rows;
mod kernel;
mod narrow;
mod pack;
mod packed;
mod packing_kernel;
mod portable;
mod quantised;
pub(crate) mod row;
mod scratch;
mod shares;
mod small;
mod source;
mod spans;
mod store;
mod stream;
mod swapped;
mod sweep;
#[cfg(test)]
mod tests;
mod tiles;
mod transpose;
mod unpacked;
mod windows;
mod words;

pub use dense::{ChannelFactors, Dense, Pixels, Plan as DensePlan, Runs, TapWeights, interleave};
pub use depthwise::Depthwise;
pub use direct::{Direct, Gradient, WindowAxis};
pub(crate) use few_rows::FewRows;
pub(crate) use pack::pack_rows;
pub use packed::{PackedB, Panels};
pub use quantised::BlockMatrix;
pub(crate) use scratch::Scratch;
pub(crate) use small::TASK_WORK;
pub use source::{Epilogue, Matrix, Operand, RowSource, Tile};
pub use store::Store;
pub use windows::{Extent, Guard, Windows};

use crate::features::{Extension, Isa, detect};
use crate::memory::MemoryError;
use crate::pool;
use kiln_ir::{BlockFormat, DType};
use kiln_kernels::Precision;
use swapped::Swapped;

/// An error of running a product.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum GemmError {
    /// Tiles accumulate in f32, f64, i32 or i64 only.
    #[error("a product cannot accumulate in {acc}; use f32, f64, i32 or i64")]
    Accumulator {
        /// The requested type.
        acc: DType,
    },
    /// An operand's element type has no arithmetic.
    #[error("a product cannot read elements of type {dtype}; cast them first")]
    Unreadable {
        /// The element type.
        dtype: DType,
    },
    /// A result's element type cannot hold a product.
    #[error("a product cannot be stored as {dtype}")]
    Unwritable {
        /// The element type.
        dtype: DType,
    },
    /// A packed B was made for another product.
    #[error("packed for K = {packed_k}, N = {packed_n}, {packed_isa:?}; the product has K = {k}, N = {n}, {isa:?}")]
    WrongPacking {
        /// K of the packing.
        packed_k: usize,
        /// N of the packing.
        packed_n: usize,
        /// Target of the packing.
        packed_isa: Isa,
        /// K of the product.
        k: usize,
        /// N of the product.
        n: usize,
        /// Target of the product.
        isa: Isa,
    },
    /// The machine cannot run code for a target.
    #[error("this machine runs {} at the most, not {}", .best.name(), .isa.name())]
    Target {
        /// The requested target.
        isa: Isa,
        /// The best target of the machine.
        best: Isa,
    },
    /// Rows of quantised blocks hold whole blocks.
    #[error("K = {k} is no multiple of a {} block's {} elements", .format.name(), .format.elements())]
    BrokenBlock {
        /// K of the product.
        k: usize,
        /// The format of the blocks.
        format: BlockFormat,
    },
    /// `Operand::Columns`, `Operand::Packed` and `Operand::Blocks` describe B alone.
    #[error("the left operand of a product is strided or made of rows")]
    LeftOperand,
    /// No memory for generated code.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Whether one row times an `n` by `k` weight is not worth a second thread.
pub(crate) fn is_one_task(n: usize, k: usize, weight: DType) -> bool {
    small::is_one_task(n, k, weight.size_in_bits() / 8)
}

/// The sizes of one product and how to run it.
#[derive(Clone, Copy, Debug)]
pub struct Gemm {
    /// Target.
    pub isa: Isa,
    /// What multiplies short elements there.
    pub extension: Extension,
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// The accumulators' type: f32, f64, i32 or i64.
    pub acc: DType,
    /// The required precision where it accumulates in f32. Products with quantised blocks make use of it, and at
    /// [`Precision::Medium`] operands are rounded to bf16 where that is faster.
    pub precision: Precision,
    /// The most threads to use.
    pub threads: usize,
    /// How it is split and blocked.
    pub tuning: Tuning,
}

/// Blocking parameters of a product; those that are `None` are chosen by its shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Read the right operand in place (true) or packed (false), where both are possible.
    pub stream: Option<bool>,
    /// Bytes of a packed panel of A.
    pub panel_bytes: Option<usize>,
    /// Tasks per thread.
    pub tasks: Option<usize>,
    /// Read one row of W[N, K] after the other (true) or several side by side (false), for one row of A.
    pub row_by_row: Option<bool>,
}

impl Gemm {
    /// A product on the default target with all threads of the pool.
    pub fn new(m: usize, n: usize, k: usize, acc: DType) -> Gemm {
        Gemm {
            isa: Isa::get(),
            extension: Extension::get(),
            m,
            n,
            k,
            acc,
            precision: Precision::Highest,
            threads: pool::threads(),
            tuning: Tuning::default(),
        }
    }

    /// Runs the product and hands every finished tile to `epilogue`.
    ///
    /// ```
    /// use kiln_cpu::gemm::{Gemm, Matrix, Operand, Store};
    /// use kiln_ir::DType;
    ///
    /// let (a, b) = ([1f32, 2.0, 3.0, 4.0], [5f32, 6.0, 7.0, 8.0]);
    /// let mut c = [0f32; 4];
    /// let rows = |data: &[f32; 4]| Matrix { data: data.as_ptr().cast(), dtype: DType::F32, row_stride: 2, column_stride: 1 };
    /// let store = Store::new(c.as_mut_ptr().cast(), DType::F32, 2, 1)?;
    /// // SAFETY: all three are 2 × 2 and do not overlap.
    /// unsafe { Gemm::new(2, 2, 2, DType::F32).run(Operand::Strided(rows(&a)), Operand::Strided(rows(&b)), &store)? };
    /// assert_eq!(c, [19.0, 22.0, 43.0, 50.0]);
    /// # Ok::<(), kiln_cpu::gemm::GemmError>(())
    /// ```
    ///
    /// # Safety
    /// Strided operands must be readable at every element of their shape (A: M × K, B: K × N), and nothing that the
    /// epilogue writes may overlap them.
    pub unsafe fn run(&self, a: Operand<'_>, b: Operand<'_>, epilogue: &dyn Epilogue) -> Result<(), GemmError> {
        self.check(&a, &b)?;
        if self.m == 0 || self.n == 0 {
            return Ok(());
        }
        if let Operand::Blocks(blocks) = &b {
            // SAFETY: the caller's promise, and the checks above.
            return unsafe { self.run_blocks(&a, blocks, epilogue) };
        }
        // SAFETY: the caller's promise, and the checks above.
        unsafe {
            match self.acc {
                DType::F32 => {
                    if let Some(swapped) = Swapped::choose(self, &a, &b) {
                        swapped.run(epilogue)
                    } else if let Some(path) = small::choose(self, &a, &b) {
                        small::run(self, path, &a, epilogue)
                    } else {
                        blocked::run::<f32>(self, &a, &b, epilogue)
                    }
                }
                DType::F64 => blocked::run::<f64>(self, &a, &b, epilogue),
                DType::I32 => blocked::run::<i32>(self, &a, &b, epilogue),
                DType::I64 => blocked::run::<i64>(self, &a, &b, epilogue),
                acc => Err(GemmError::Accumulator { acc }),
            }
        }
    }

    /// A product with quantised blocks.
    unsafe fn run_blocks(
        &self,
        a: &Operand<'_>,
        blocks: &BlockMatrix,
        epilogue: &dyn Epilogue,
    ) -> Result<(), GemmError> {
        let epilogue = &quantised::Corrected::new(self, a, blocks, epilogue);
        #[cfg(target_arch = "x86_64")]
        if let Some(limbs) = quantised::bytes::limbs(self) {
            // SAFETY: the caller's promise.
            return unsafe { quantised::bytes::run(self, a, blocks, epilogue, limbs, Gemm::run_blocks_in_floats) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.run_blocks_in_floats(a, blocks, epilogue) }
    }

    /// A product with quantised blocks in f32, or of one row in fixed point.
    unsafe fn run_blocks_in_floats(
        &self,
        a: &Operand<'_>,
        blocks: &BlockMatrix,
        epilogue: &dyn Epilogue,
    ) -> Result<(), GemmError> {
        let few = self.m <= quantised::FEW_ROWS && self.isa != Isa::Portable && self.tuning.stream != Some(false);
        // SAFETY: the caller's promise.
        unsafe {
            if few {
                return quantised::run(self, a, blocks, epilogue);
            }
            let columns = quantised::Columns { isa: self.isa, blocks: *blocks };
            // What comes here beside bytes is what they are not exact enough for.
            let exact = Gemm { precision: Precision::Highest, ..*self };
            blocked::run::<f32>(&exact, a, &Operand::Columns(&columns), epilogue)
        }
    }

    fn check(&self, a: &Operand<'_>, b: &Operand<'_>) -> Result<(), GemmError> {
        check_target(self.isa)?;
        if !matches!(self.acc, DType::F32 | DType::F64 | DType::I32 | DType::I64) {
            return Err(GemmError::Accumulator { acc: self.acc });
        }
        for operand in [a, b] {
            if let Operand::Strided(matrix) = operand
                && !pack::readable(matrix.dtype)
            {
                return Err(GemmError::Unreadable { dtype: matrix.dtype });
            }
        }
        if let Operand::Blocks(blocks) = b {
            if self.acc != DType::F32 {
                return Err(GemmError::Accumulator { acc: self.acc });
            }
            if !self.k.is_multiple_of(blocks.format.elements()) {
                return Err(GemmError::BrokenBlock { k: self.k, format: blocks.format });
            }
        }
        if matches!(a, Operand::Columns(_) | Operand::Packed(_) | Operand::Blocks(_)) {
            return Err(GemmError::LeftOperand);
        }
        if let Operand::Packed(packed) = b {
            packed.check(self)?;
        }
        Ok(())
    }
}

fn check_target(isa: Isa) -> Result<(), GemmError> {
    let best = detect().isa;
    if isa <= best { Ok(()) } else { Err(GemmError::Target { isa, best }) }
}

/// Part `i` of `total` items split into `parts` as equal as possible, the longer ones first.
fn part(total: usize, parts: usize, i: usize) -> std::ops::Range<usize> {
    let (each, more) = (total / parts, total % parts);
    let start = i * each + i.min(more);
    start..start + each + usize::from(i < more)
}
