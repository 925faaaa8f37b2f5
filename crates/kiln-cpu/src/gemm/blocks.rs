//! A in the layout of the dot kernels: for each tile of rows `[step][row][lane]`, zeros after the last k.
//!
//! A cache line that one core wrote and another reads costs both of them: the reader waits for the line, and the writer waits
//! again when it writes the next product's blocks there. So every thread blocks a plain A for itself, which takes less than
//! fetching the blocks of others, unless there are few columns per thread.

use super::dot::{self, Weight};
use super::pack::{Lanes, pack, pack_as};
use super::scratch::Scratch;
use super::source::{Matrix, Operand, SharedOperand};
use super::{Gemm, part};
use crate::pool;
use kiln_ir::DType;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

/// The fewest columns per thread for which each thread blocks all of A.
const COLUMNS: usize = 64;
/// Elements of A from which several threads block it, where they share it.
const SHARED_ELEMENTS: usize = 16 << 10;

thread_local! {
    /// The blocks that this thread made last, and of which product.
    static OWN: RefCell<(u64, Option<Scratch>)> = const { RefCell::new((0, None)) };
}
static PRODUCTS: AtomicU64 = AtomicU64::new(0);

/// The rows of one A.
pub(super) struct Blocks<'a> {
    gemm: &'a Gemm,
    a: SharedOperand<'a>,
    weight: Weight,
    tiles: usize,
    storage: BlockStorage,
}

enum BlockStorage {
    /// A single row that already has the layout of a block.
    InPlace(*const f32),
    /// Made once for all threads.
    Shared(Scratch),
    /// Each thread makes its own, for the product of this number.
    PerThread(u64),
}

// SAFETY: the operand is only read; shared blocks are written before they are read.
unsafe impl Sync for Blocks<'_> {}

impl<'a> Blocks<'a> {
    /// A in `tiles` tiles of rows, for a product that `threads` threads run.
    ///
    /// # Safety
    /// As for [`Gemm::run`], for as long as the blocks are used.
    pub(super) unsafe fn new(
        gemm: &'a Gemm,
        a: &Operand<'a>,
        weight: Weight,
        tiles: usize,
        threads: usize,
    ) -> Blocks<'a> {
        let whole = gemm.k.is_multiple_of(dot::step(gemm.isa, weight));
        let mut blocks = Blocks { gemm, a: SharedOperand(*a), weight, tiles, storage: BlockStorage::PerThread(0) };
        blocks.storage = match blocks.plain() {
            Some(a) if gemm.m == 1 && whole => BlockStorage::InPlace(a.data.cast()),
            Some(_) if threads > 1 && gemm.n >= COLUMNS * threads => {
                BlockStorage::PerThread(PRODUCTS.fetch_add(1, Ordering::Relaxed) + 1)
            }
            _ => {
                let scratch = Scratch::take::<f32>(blocks.len());
                let to = Shared(scratch.ptr());
                let threads = if gemm.m * gemm.k < SHARED_ELEMENTS { 1 } else { gemm.threads };
                let is_plain = blocks.plain().is_some();
                // SAFETY: rows have places of their own in the scratch; the operand is the caller's.
                pool::run(if is_plain { tiles } else { gemm.m }, threads, &|job| unsafe {
                    if is_plain { blocks.copy_tile(job, to.get()) } else { blocks.block_row(job, to.get()) }
                });
                BlockStorage::Shared(scratch)
            }
        };
        blocks
    }

    /// Words of A in a step of one row.
    fn words(&self) -> usize {
        dot::a_words(self.gemm.isa, self.weight)
    }

    /// Steps of K, a padded last one included.
    fn steps(&self) -> usize {
        self.gemm.k.div_ceil(dot::step(self.gemm.isa, self.weight))
    }

    fn len(&self) -> usize {
        self.gemm.m * self.steps() * self.words()
    }

    /// A, if its rows are contiguous floats that need no conversion.
    fn plain(&self) -> Option<Matrix> {
        match self.a.get() {
            Operand::Strided(a) if a.dtype == DType::F32 && a.column_stride == 1 => {
                matches!(self.weight, Weight::F32 | Weight::F16 | Weight::I8).then_some(a)
            }
            _ => None,
        }
    }

    /// The blocks, for the calling thread.
    pub(super) fn get(&self) -> *const f32 {
        match &self.storage {
            BlockStorage::InPlace(row) => *row,
            BlockStorage::Shared(scratch) => scratch.ptr(),
            BlockStorage::PerThread(product) => OWN.with_borrow_mut(|(of, scratch)| {
                if of != product {
                    // The previous scratch is returned first, and may be taken again.
                    *scratch = None;
                    let own = Scratch::take::<f32>(self.len());
                    // SAFETY: the scratch holds all blocks and is this thread's; the operand is the caller's.
                    (0..self.tiles).for_each(|tile| unsafe { self.copy_tile(tile, own.ptr()) });
                    (*of, *scratch) = (*product, Some(own));
                }
                scratch.as_ref().map_or(std::ptr::null(), |own| own.ptr())
            }),
        }
    }

    /// Blocks the rows of a tile of a plain A.
    unsafe fn copy_tile(&self, tile: usize, to: *mut f32) {
        let Some(a) = self.plain() else { return };
        let rows = part(self.gemm.m, self.tiles, tile);
        let (words, k) = (self.words(), self.gemm.k);
        // SAFETY: the tile's part of the scratch, and rows of A that the caller guarantees.
        unsafe {
            let mut to = to.add(rows.start * self.steps() * words);
            for start in (0..k).step_by(words) {
                for row in rows.clone() {
                    let from = a.data.cast::<f32>().wrapping_offset(row as isize * a.row_stride).add(start);
                    match words {
                        16 if k - start >= 16 => {
                            to.cast::<[f32; 16]>().write_unaligned(from.cast::<[f32; 16]>().read_unaligned())
                        }
                        _ => {
                            let count = words.min(k - start);
                            std::ptr::copy_nonoverlapping(from, to, count);
                            std::ptr::write_bytes(to.add(count), 0, words - count);
                        }
                    }
                    to = to.add(words);
                }
            }
        }
    }

    /// Blocks one row of any A. For bf16 weights even and odd elements are separated, unless A is bf16 itself.
    unsafe fn block_row(&self, r: usize, to: *mut f32) {
        let (gemm, steps, weight) = (self.gemm, self.steps(), self.weight);
        let step = dot::step(gemm.isa, weight);
        let tile = (0..self.tiles).find(|t| part(gemm.m, self.tiles, *t).contains(&r)).expect("tiles cover all rows");
        let rows = part(gemm.m, self.tiles, tile);
        let (i, count) = (r - rows.start, rows.len());
        // SAFETY: the tile's part of the scratch.
        let to = unsafe { to.add(rows.start * steps * self.words()) };
        if weight == Weight::Bf16Dot {
            let Operand::Strided(m) = self.a.get() else { unreachable!("chosen for a strided A of bf16") };
            let from = Lanes { data: m.data, dtype: m.dtype, lane_stride: m.column_stride, k_stride: m.row_stride };
            let row = Scratch::take::<u16>(steps * step);
            // SAFETY: as below, with elements of 16 bits.
            unsafe {
                let padded = std::slice::from_raw_parts_mut(row.ptr::<u16>(), steps * step);
                padded[gemm.k..].fill(0);
                pack_as::<u16, u16>(&from, 0..gemm.k, gemm.k, r..r + 1, padded.as_mut_ptr());
                for (s, block) in padded.chunks_exact(step).enumerate() {
                    let to = to.cast::<u16>().add((s * count + i) * step);
                    std::ptr::copy_nonoverlapping(block.as_ptr(), to, step);
                }
            }
            return;
        }
        let row = Scratch::take::<f32>(steps * step);
        // SAFETY: the row buffer holds all padded k; `to` holds `count` rows of them.
        unsafe {
            let padded = std::slice::from_raw_parts_mut(row.ptr::<f32>(), steps * step);
            padded[gemm.k..].fill(0.0);
            match self.a.get() {
                // With lanes and k swapped, a row is one k of many lanes.
                Operand::Strided(m) => {
                    let (lane_stride, k_stride) = (m.column_stride, m.row_stride);
                    let from = Lanes { data: m.data, dtype: m.dtype, lane_stride, k_stride };
                    pack::<f32>(gemm.isa, &from, 0..gemm.k, gemm.k, r..r + 1, padded.as_mut_ptr());
                }
                Operand::Rows(source) => source.fill(r, 0..gemm.k, padded.as_mut_ptr().cast()),
                Operand::Columns(_) | Operand::Packed(_) | Operand::Blocks(_) => {
                    unreachable!("refused by `Gemm::check`")
                }
            }
            for (s, block) in padded.chunks_exact(step).enumerate() {
                let to = std::slice::from_raw_parts_mut(to.add((s * count + i) * step), step);
                if weight == Weight::Bf16 {
                    let (even, odd) = to.split_at_mut(step / 2);
                    for (pair, (even, odd)) in block.chunks_exact(2).zip(even.iter_mut().zip(odd)) {
                        (*even, *odd) = (pair[0], pair[1]);
                    }
                } else {
                    to.copy_from_slice(block);
                }
            }
        }
    }
}

/// The shared blocks, of which each task writes its own rows.
struct Shared(*mut f32);
// SAFETY: as above.
unsafe impl Sync for Shared {}
impl Shared {
    fn get(&self) -> *mut f32 {
        self.0
    }
}
