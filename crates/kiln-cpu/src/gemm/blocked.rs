//! The packed, cache-blocked product.
//!
//! ```text
//!  for each block of rows and chunk of K:
//!     pack A once, shared            [k block][row panel][k][mr]           panels pass through L1
//!     for each group of columns      (tasks of the pool)
//!        for each block of K: pack B [column panel][k][nr] into L2, or point into a PackedB
//!           for each row panel, for each column panel: micro-kernel into the C tile
//!     after the last K a row panel's part of the tile goes to the epilogue
//! ```

use super::ahead::Ahead;
use super::kernel::{self, Format, MicroFn, OFFSET, Shape};
use super::pack::{Accumulator, Convert, Lanes, fill_rows, pack, subtract};
use super::packing_kernel::{self, Along, PackingFn, PackingShape};
use super::scratch::Scratch;
use super::shares::Shares;
use super::source::{Epilogue, Matrix, Operand, SharedOperand, Tile};
use super::tiles::{self, Piece};
use super::unpacked::Unpacked;
use super::words::{self, Short, Words, pack_tiles, pack_words};
use super::{Gemm, GemmError, PackedB, part, portable, small, windows};
use crate::features::{Isa, detect};
use crate::pool;
use half::{bf16, f16};
use kiln_ir::DType;
use std::ops::Range;

/// Bytes of packed A that one block of rows may take: a part of the last-level cache.
const A_BYTES: usize = 8 << 20;
/// Bytes of an A panel: a part of the first level.
const A_PANEL_BYTES: usize = 22 << 10;
/// The same where tiles multiply: what is read beside it comes from the second level at the pace of the products.
const A_TILES_BYTES: usize = 32 << 10;
/// K of one chunk; a longer K keeps the whole block's accumulators in memory between chunks.
const K_CHUNK: usize = 8192;
/// Rows of B that are packed together where columns are contiguous.
const RUN_ROWS: usize = 8;
/// Rows up to which blocks of K are tasks of their own where columns do not make enough of them.
const SPLIT_ROWS: usize = 64;
/// Threads and rows from which B is packed once by all threads before they multiply: with fewer each task packs its own columns. And the
/// most bytes that it may take, a part of the last-level cache.
const SHARING_THREADS: usize = 4;
const SHARING_ROWS: usize = 128;
const SHARED_BYTES: usize = 32 << 20;
/// Units of K in one task of packing it.
const SHARED_UNITS: usize = 64;
/// What reading a row or column of a task's operands from a shared cache costs, in columns or rows multiplied with it.
const TRAFFIC: usize = 24;
/// How many times as long as reading B it takes to pack it.
const PACKING: usize = 4;
/// Tasks per thread, so that one on a descheduled thread is not waited for.
const TASKS_A_THREAD: usize = 4;

/// The register tile of a target and an accumulator.
#[derive(Clone, Copy)]
pub(super) struct Tiling {
    pub isa: Isa,
    /// Format of panels that the kernels read; `None` for the portable kernels.
    pub format: Option<Format>,
    /// The most rows of a tile.
    pub mr: usize,
    /// Columns of a tile.
    pub nr: usize,
}

impl Tiling {
    pub(super) fn new(isa: Isa, acc: DType) -> Result<Tiling, GemmError> {
        let format = match (isa, acc) {
            (_, DType::I64) | (Isa::Portable, DType::F32 | DType::F64 | DType::I32) => None,
            (_, DType::F32) => Some(Format::F32),
            (_, DType::F64) => Some(Format::F64),
            (_, DType::I32) => Some(Format::I32),
            _ => return Err(GemmError::Accumulator { acc }),
        };
        let vector = if isa == Isa::Avx512 { 64 } else { 32 };
        Ok(match format {
            None => Tiling { isa, format, mr: portable::ROWS, nr: portable::COLUMNS },
            Some(f) => Tiling { isa, format, mr: kernel::max_rows(isa, f), nr: 2 * vector / f.acc_size() },
        })
    }

    /// The same for panels of another format.
    fn of(self, format: Option<Format>) -> Tiling {
        let mr = format.map_or(self.mr, |format| kernel::max_rows(self.isa, format));
        Tiling { format, mr, ..self }
    }

    fn kernels<T: Accumulator>(&self, mr: usize, along: Option<Along>) -> Result<Kernels, GemmError> {
        let get = |accumulate| match self.format {
            None => Ok(portable::get::<T>(mr, accumulate)),
            Some(format) if format.in_tiles() => {
                tiles::get(Piece::Multiply { bytes: format == Format::I8Tile, rows: mr, accumulate })
            }
            Some(format) => kernel::get(Shape { isa: self.isa, format, mr, nv: 2, accumulate }),
        };
        let configure = match self.format {
            Some(format) if format.in_tiles() => {
                Some((tiles::get(Piece::Configure { rows: mr })?, tiles::get(Piece::Release)?))
            }
            _ => None,
        };
        let packing = match (self.format, along.filter(|&along| mr <= packing_kernel::max_rows(along))) {
            (Some(format), Some(along)) => {
                let get = |accumulate| {
                    let shape = Shape { isa: self.isa, format, mr, nv: 2, accumulate };
                    packing_kernel::get(PackingShape { shape, along })
                };
                Some([get(false)?, get(true)?])
            }
            _ => None,
        };
        Ok(Kernels { first: get(false)?, more: get(true)?, configure, packing })
    }
}

/// The kernels of one panel height: overwrite the tile, or add to it.
#[derive(Clone, Copy)]
struct Kernels {
    first: MicroFn,
    more: MicroFn,
    /// Code to run before and after kernels that use tile registers.
    configure: Option<(MicroFn, MicroFn)>,
    /// The same two, packing B.
    packing: Option<[PackingFn; 2]>,
}

/// How K is split into the units of a panel's format.
#[derive(Clone, Copy)]
struct Units {
    /// k in a unit.
    depth: usize,
    /// Units of all of K.
    all: usize,
    /// Accumulator-sized words of A in a unit of a row.
    a_words: usize,
    /// Bytes of a unit of a column of B.
    b_bytes: usize,
    /// Both operands are packed in words of short elements.
    words: Option<Words>,
    /// Words in a unit, and whether tiles multiply them.
    each: usize,
    tiles: bool,
}

impl Units {
    fn new<T>(format: Option<Format>, k: usize) -> Units {
        let depth = format.map_or(1, Format::depth);
        Units {
            depth,
            all: k.div_ceil(depth),
            a_words: format.map_or(1, Format::a_words),
            b_bytes: format.map_or(size_of::<T>(), Format::size),
            words: format.and_then(Format::words),
            each: format.map_or(1, Format::a_words),
            tiles: format.is_some_and(Format::in_tiles),
        }
    }
}

/// The source of B's panels.
enum PanelSource<'a> {
    Packed(&'a PackedB),
    Pack(&'a Operand<'a>, Option<Unpacked>),
    /// All columns of the chunk, packed by all threads.
    Shared(*const u8),
}

/// One block of rows and chunk of K, shared by all tasks.
struct Block<'a, T> {
    gemm: &'a Gemm,
    tiling: Tiling,
    panels: PanelSource<'a>,
    /// The units of the panels: K is counted in units of `depth` from here on.
    units: Units,
    epilogue: &'a dyn Epilogue,
    rows: Range<usize>,
    row_panels: usize,
    /// Kernels of the taller and of the shorter row panels.
    kernels: [(usize, Kernels); 2],
    /// Kernels of a single row, where sums of columns are needed.
    one_row: Kernels,
    chunk: Range<usize>,
    k_blocks: usize,
    /// Blocks of K are multiples of this many units: what a source of B makes at once.
    grain: usize,
    a: *mut T,
    /// Accumulators of all the block between chunks, or null.
    carried: *mut T,
}

// SAFETY: tasks read shared packed panels and write disjoint parts of `carried`.
unsafe impl<T> Sync for Block<'_, T> {}

/// Runs a product.
///
/// # Safety
/// As for [`Gemm::run`], whose checks are done; `T` is the accumulator.
pub(super) unsafe fn run<T: Accumulator>(
    gemm: &Gemm,
    a: &Operand<'_>,
    b: &Operand<'_>,
    epilogue: &dyn Epilogue,
) -> Result<(), GemmError>
where
    f32: Convert<T>,
    f64: Convert<T>,
    f16: Convert<T>,
    bf16: Convert<T>,
    i8: Convert<T>,
    i16: Convert<T>,
    i32: Convert<T>,
    i64: Convert<T>,
    u8: Convert<T>,
{
    let tiling = Tiling::new(gemm.isa, gemm.acc)?;
    let format = words::format(gemm, a, b).or(match b {
        Operand::Packed(packed) => packed.format(),
        _ => tiling.format,
    });
    let tiling = tiling.of(format);
    let unpacked = Unpacked::of(gemm.isa, format, gemm.k, b);
    let panels = match b {
        Operand::Packed(packed) => PanelSource::Packed(packed),
        _ => PanelSource::Pack(b, unpacked),
    };
    let units = Units::new::<T>(format, gemm.k);
    let grain = match b {
        Operand::Columns(source) => source.grain(),
        // The same sums whether it was packed before or not.
        Operand::Strided(_) | Operand::Packed(_) if !units.tiles => packing_kernel::grain(units.all),
        _ => 1,
    };
    let chunks = gemm.k.div_ceil(K_CHUNK).max(1);
    let chunk_len = grains(units.all, chunks, 0, grain).len();
    let row_words = chunk_len * units.a_words;
    let most_rows = (A_BYTES / (row_words.max(1) * size_of::<T>())).clamp(8 * tiling.mr, 1024);
    let row_blocks = gemm.m.div_ceil(most_rows);
    let rows_of = |i| grains(gemm.m, row_blocks, i, if units.tiles { tiling.mr } else { 1 });
    let packed_a = Scratch::take::<T>(rows_of(0).len() * row_words);
    let carried = (chunks > 1).then(|| Scratch::take::<T>(rows_of(0).len() * padded(gemm.n, tiling.nr)));
    let shares = matches!(b, Operand::Strided(_))
        && gemm.threads.min(pool::threads()) >= SHARING_THREADS
        && gemm.m >= SHARING_ROWS
        && padded(gemm.n, tiling.nr) * chunk_len * units.b_bytes <= SHARED_BYTES;
    let shared = shares.then(|| Scratch::take::<u8>(padded(gemm.n, tiling.nr) * chunk_len * units.b_bytes));
    // A small product takes no longer than a few lookups: none is made twice, or for nothing.
    let highest = gemm.m.clamp(1, tiling.mr);
    let along = unpacked.map(|unpacked| unpacked.along);
    let highest = (highest, tiling.kernels::<T>(highest, along)?);
    let kernels_of = |rows: usize| match rows == highest.0 {
        true => Ok(highest),
        false => Ok::<_, GemmError>((rows, tiling.kernels::<T>(rows, along)?)),
    };
    let one_row = if format == Some(Format::I8Dot) { kernels_of(1)?.1 } else { highest.1 };
    let mut block = Block {
        gemm,
        tiling,
        panels,
        units,
        epilogue,
        rows: 0..0,
        row_panels: 0,
        kernels: [highest; 2],
        one_row,
        chunk: 0..0,
        k_blocks: 1,
        grain,
        a: packed_a.ptr(),
        carried: carried.as_ref().map_or(std::ptr::null_mut(), Scratch::ptr),
    };
    for i in 0..row_blocks {
        block.rows = rows_of(i);
        block.row_panels = block.rows.len().div_ceil(tiling.mr);
        let (tall, short) = (block.panel_rows(0).len(), block.panel_rows(block.row_panels - 1).len());
        let taller = kernels_of(tall)?;
        block.kernels = [taller, if short == tall { taller } else { kernels_of(short)? }];
        for c in 0..chunks {
            block.chunk = grains(units.all, chunks, c, grain);
            let usual = if units.tiles { A_TILES_BYTES } else { A_PANEL_BYTES };
            let panel_bytes = gemm.tuning.panel_bytes.unwrap_or(usual);
            let (least, most) = if units.tiles { (8, 64) } else { (256, 2048) };
            let most_k = (panel_bytes / (tall * units.a_words * size_of::<T>())).clamp(least, most);
            block.k_blocks = block.chunk.len().div_ceil(most_k).max(1);
            // SAFETY: the operands are the caller's; scratch was sized above.
            unsafe {
                block.pack_a(a);
                if let Some(shared) = &shared {
                    // A single chunk is packed for all rows.
                    if i == 0 || chunks > 1 {
                        block.pack_shared_b(b, shared.ptr());
                    }
                    block.panels = PanelSource::Shared(shared.ptr());
                }
                block.multiply();
            }
        }
    }
    Ok(())
}

/// Bytes of packed B in one task: a part of the second level.
fn b_bytes() -> usize {
    (detect().l2_bytes * 3 / 8).clamp(192 << 10, 768 << 10)
}

/// [`part`] of items that come `grain` at a time.
fn grains(total: usize, parts: usize, i: usize, grain: usize) -> Range<usize> {
    let part = part(total.div_ceil(grain), parts, i);
    total.min(part.start * grain)..total.min(part.end * grain)
}

fn padded(n: usize, to: usize) -> usize {
    n.next_multiple_of(to)
}

impl<T: Accumulator> Block<'_, T>
where
    f32: Convert<T>,
    f64: Convert<T>,
    f16: Convert<T>,
    bf16: Convert<T>,
    i8: Convert<T>,
    i16: Convert<T>,
    i32: Convert<T>,
    i64: Convert<T>,
    u8: Convert<T>,
{
    /// Rows of a row panel, counted from the block's first.
    fn panel_rows(&self, panel: usize) -> Range<usize> {
        match self.units.tiles {
            // Whole tiles, but for the last.
            true => panel * self.tiling.mr..self.rows.len().min((panel + 1) * self.tiling.mr),
            false => part(self.rows.len(), self.row_panels, panel),
        }
    }

    fn kernels_of(&self, panel: usize) -> Kernels {
        self.kernels[usize::from(self.panel_rows(panel).len() != self.kernels[0].0)].1
    }

    /// A B in memory and the kernels that pack it for a row panel, where there are such.
    fn packs_first(&self, panel: usize) -> Option<(Unpacked, [PackingFn; 2])> {
        let PanelSource::Pack(_, Some(unpacked)) = &self.panels else { return None };
        Some((*unpacked, self.kernels_of(panel).packing?))
    }

    /// A block of units of K, counted from the chunk's first.
    fn k_block(&self, i: usize) -> Range<usize> {
        grains(self.chunk.len(), self.k_blocks, i, self.grain)
    }

    /// The packed A of a row panel and a block of K.
    fn a_panel(&self, panel: usize, ks: &Range<usize>) -> *mut T {
        // SAFETY: inside the packed A: all panels of earlier blocks of K, then earlier panels of this one.
        unsafe {
            self.a.add((ks.start * self.rows.len() + self.panel_rows(panel).start * ks.len()) * self.units.a_words)
        }
    }

    unsafe fn pack_a(&self, a: &Operand<'_>) {
        let jobs = self.row_panels * self.k_blocks;
        let elements = self.rows.len() * self.chunk.len() * self.units.a_words;
        // A few microseconds of copying are not worth a second thread.
        let threads = if elements < 32 << 10 { 1 } else { self.gemm.threads };
        let a = SharedOperand(*a);
        pool::run(jobs, threads, &|job| {
            let (panel, ks) = (job % self.row_panels, self.k_block(job / self.row_panels));
            let rows = self.panel_rows(panel);
            let to = self.a_panel(panel, &ks);
            let lanes = self.rows.start + rows.start..self.rows.start + rows.end;
            let units = self.chunk.start + ks.start..self.chunk.start + ks.end;
            let ks = self.ks(&units);
            // SAFETY: panels are disjoint; the operand is the caller's.
            unsafe {
                if let Some(kind) = self.units.words {
                    return self.pack_short_a(kind, &a.get(), lanes, units, to.cast());
                }
                match a.get() {
                    Operand::Strided(m) => {
                        let from = Lanes {
                            data: m.data,
                            dtype: m.dtype,
                            lane_stride: m.row_stride,
                            k_stride: m.column_stride,
                        };
                        pack::<T>(self.gemm.isa, &from, lanes, rows.len(), ks.clone(), to);
                    }
                    Operand::Rows(source)
                        if T::DTYPE == DType::F32
                            && source.fill_panel(lanes.clone(), ks.clone(), rows.len(), to.cast()) => {}
                    Operand::Rows(source) => {
                        let scratch = Scratch::take::<T>(rows.len() * ks.len());
                        fill_rows::<T>(source, lanes.clone(), ks.clone(), scratch.ptr());
                        let from =
                            Lanes { data: scratch.ptr(), dtype: T::DTYPE, lane_stride: ks.len() as isize, k_stride: 1 };
                        pack::<T>(self.gemm.isa, &from, 0..rows.len(), rows.len(), 0..ks.len(), to);
                    }
                    Operand::Columns(_) | Operand::Packed(_) | Operand::Blocks(_) => {
                        unreachable!("refused by `Gemm::check`")
                    }
                }
                // The partner of a last k without one.
                for i in rows.len() * ks.len()..rows.len() * units.len() * self.units.a_words {
                    to.add(i).write(T::default());
                }
            }
        });
    }

    /// Packs some rows and units of an A of short elements.
    unsafe fn pack_short_a(
        &self,
        kind: Words,
        a: &Operand<'_>,
        lanes: Range<usize>,
        units: Range<usize>,
        to: *mut u32,
    ) {
        let (isa, ks) = (self.gemm.isa, self.ks(&units));
        // SAFETY: a panel of A, and elements of it that the caller guarantees.
        unsafe {
            let short = Short::of(isa, kind, a, false, lanes.clone(), ks.clone());
            let (lane, first) = short.first;
            let k = self.gemm.k.min(ks.end) - first;
            let lanes = lanes.start - lane..lanes.end - lane;
            let skipped = first / self.units.depth;
            let units = units.start - skipped..units.end - skipped;
            if self.units.tiles {
                return pack_tiles(isa, kind, &short.lanes, lanes, units, k, to.cast());
            }
            let count = lanes.len() * units.len();
            pack_words(isa, kind, &short.lanes, (lanes.clone(), lanes.len()), units, k, to);
            if kind == Words::Quads {
                std::slice::from_raw_parts_mut(to, count).iter_mut().for_each(|word| *word ^= OFFSET);
            }
        }
    }

    /// Packs some columns and units of a B of short elements into consecutive panels.
    unsafe fn pack_short_b(
        &self,
        kind: Words,
        b: &Operand<'_>,
        columns: Range<usize>,
        units: Range<usize>,
        to: *mut u32,
    ) {
        let (isa, nr, ks) = (self.gemm.isa, self.tiling.nr, self.ks(&units));
        let panel_words = units.len() * self.units.each * nr;
        // SAFETY: the panels of B, and elements of it that the caller guarantees.
        unsafe {
            if let Operand::Rows(source) = b
                && source.has_pairs()
            {
                if ks.len().div_ceil(2) * nr == panel_words {
                    return source.fill_pairs(ks, columns, nr, to);
                }
                // With words of padding after the pairs there is a panel at a time, filled beside: it may end with a vector too much.
                let panel = Scratch::take::<u32>(panel_words + windows::SLACK);
                for (i, start) in columns.clone().step_by(nr).enumerate() {
                    std::ptr::write_bytes(panel.ptr::<u32>(), 0, panel_words);
                    source.fill_pairs(ks.clone(), start..columns.end.min(start + nr), nr, panel.ptr());
                    let there = ks.len().div_ceil(2) * nr;
                    std::ptr::write_bytes(panel.ptr::<u32>().add(there), 0, panel_words - there);
                    std::ptr::copy_nonoverlapping(panel.ptr(), to.add(i * panel_words), panel_words);
                }
                return;
            }
            // What is converted is taken panel by panel, unless rows are made of all columns.
            let at_once = match b {
                Operand::Strided(m) if m.dtype == kind.dtype() => columns.len(),
                Operand::Rows(_) => columns.len(),
                _ => nr,
            };
            for group in columns.clone().step_by(at_once.max(1)) {
                let wide = group..columns.end.min(group + at_once);
                let short = Short::of(isa, kind, b, true, wide.clone(), ks.clone());
                let (lane, first) = short.first;
                let k = self.gemm.k.min(ks.end) - first;
                let words = units.start * self.units.each..units.end * self.units.each;
                let skipped = first / kind.depth();
                let words = words.start - skipped..words.end - skipped;
                // Contiguous columns are read in runs over all panels, a few rows at a time; contiguous k panel by panel.
                let rows = if short.lanes.lane_stride == 1 { RUN_ROWS } else { words.len().max(1) };
                for row in (0..words.len()).step_by(rows) {
                    let some = words.start + row..words.end.min(words.start + row + rows);
                    for start in wide.clone().step_by(nr) {
                        let lanes = start - lane..wide.end.min(start + nr) - lane;
                        let to = to.add((start - columns.start) / nr * panel_words + row * nr);
                        pack_words(isa, kind, &short.lanes, (lanes, nr), some.clone(), k, to);
                    }
                }
            }
        }
    }

    /// Packs all columns of the chunk, as [`PanelSource::Shared`].
    unsafe fn pack_shared_b(&self, b: &Operand<'_>, to: *mut T) {
        let (nr, n, all) = (self.tiling.nr, self.gemm.n, self.chunk.len());
        let panel = all * nr * self.units.b_bytes / size_of::<T>();
        let by_rows = matches!(b, Operand::Strided(m) if m.column_stride == 1);
        let (panels, target, b) = (n.div_ceil(nr), to as usize, SharedOperand(*b));
        let jobs = if by_rows { all.div_ceil(SHARED_UNITS) } else { panels };
        pool::run(jobs, self.gemm.threads, &|job| {
            // SAFETY: jobs write disjoint parts of the panels; the operand is the caller's.
            let pack = |p: usize, units: Range<usize>| unsafe {
                let to = (target as *mut T).add(p * panel + units.start * nr * self.units.b_bytes / size_of::<T>());
                let units = self.chunk.start + units.start..self.chunk.start + units.end;
                self.pack_b(&b.get(), p * nr..n.min((p + 1) * nr), units, to);
            };
            if !by_rows {
                return pack(job, 0..all);
            }
            // Rows are read in whole, a few at a time.
            let rows = RUN_ROWS.div_ceil(self.units.each);
            let units = job * SHARED_UNITS..all.min((job + 1) * SHARED_UNITS);
            for first in units.clone().step_by(rows) {
                (0..panels).for_each(|p| pack(p, first..units.end.min(first + rows)));
            }
        });
    }

    /// The number of tasks along columns and along rows where both operands come from a shared cache: a few a thread, nearly square.
    fn grid(&self, column_panels: usize, most: usize, threads: usize) -> (usize, usize) {
        let cost = |columns: usize, rows: usize| {
            let wide = column_panels.div_ceil(columns) * self.tiling.nr;
            let high = self.row_panels.div_ceil(rows) * self.kernels[0].0;
            (columns * rows).div_ceil(threads) * (wide * high + TRAFFIC * (wide + high))
        };
        let least = column_panels.div_ceil(most);
        let candidates = (1..=self.row_panels.min(TASKS_A_THREAD * threads)).flat_map(|rows| {
            (2..=TASKS_A_THREAD).map(move |each| {
                let columns = (threads * each / rows).clamp(least, column_panels);
                // As many panels in each task.
                (column_panels.div_ceil(column_panels.div_ceil(columns)), rows)
            })
        });
        candidates.min_by_key(|&(columns, rows)| cost(columns, rows)).unwrap_or((column_panels, 1))
    }

    /// The k of some units.
    fn ks(&self, units: &Range<usize>) -> Range<usize> {
        units.start * self.units.depth..self.gemm.k.min(units.end * self.units.depth)
    }

    /// Packs B's columns and units of K into consecutive panels.
    unsafe fn pack_b(&self, b: &Operand<'_>, columns: Range<usize>, units: Range<usize>, to: *mut T) {
        if let Some(kind) = self.units.words {
            // SAFETY: the caller's promise.
            return unsafe { self.pack_short_b(kind, b, columns, units, to.cast()) };
        }
        let nr = self.tiling.nr;
        let ks = self.ks(&units);
        let scratch;
        // SAFETY: scratch is sized for what is filled; the operand is the caller's.
        let (from, first, ks) = unsafe {
            match b {
                Operand::Strided(Matrix { data, dtype, row_stride, column_stride }) => {
                    let from = Lanes { data: *data, dtype: *dtype, lane_stride: *column_stride, k_stride: *row_stride };
                    (from, columns.start, ks)
                }
                Operand::Rows(source) => {
                    if T::DTYPE == DType::F32 && source.fill_panels(ks.clone(), columns.clone(), nr, to.cast()) {
                        return;
                    }
                    scratch = Scratch::take::<T>(columns.len() * ks.len());
                    fill_rows::<T>(*source, ks.clone(), columns.clone(), scratch.ptr());
                    let k_stride = columns.len() as isize;
                    (Lanes { data: scratch.ptr(), dtype: T::DTYPE, lane_stride: 1, k_stride }, 0, 0..ks.len())
                }
                Operand::Columns(source) => {
                    // Panel by panel, so that a column is still in the nearest caches when it is packed.
                    let scratch = Scratch::take::<T>(nr * ks.len());
                    let lane_stride = ks.len() as isize;
                    let from = Lanes { data: scratch.ptr(), dtype: T::DTYPE, lane_stride, k_stride: 1 };
                    for (i, start) in columns.clone().step_by(nr).enumerate() {
                        let panel = start..columns.end.min(start + nr);
                        let to = to.add(i * units.len() * nr);
                        if source.fill_panel(panel.clone(), ks.clone(), nr, to.cast()) {
                            continue;
                        }
                        fill_rows::<T>(*source, panel.clone(), ks.clone(), scratch.ptr());
                        pack::<T>(self.gemm.isa, &from, 0..panel.len(), nr, 0..ks.len(), to);
                    }
                    return;
                }
                Operand::Packed(_) | Operand::Blocks(_) => unreachable!("neither is packed as it is"),
            }
        };
        // Contiguous columns are read in runs over all panels, a few rows at a time; contiguous k panel by panel.
        let rows = if from.lane_stride == 1 { RUN_ROWS } else { units.len().max(1) };
        for row in (0..units.len()).step_by(rows) {
            let count = rows.min(units.len() - row);
            for (i, start) in (0..columns.len()).step_by(nr).enumerate() {
                let lanes = first + start..first + columns.len().min(start + nr);
                // SAFETY: rows of panel i of the scratch for B.
                unsafe {
                    let to = to.add((i * units.len() + row) * nr);
                    let ks = ks.start + row..ks.start + row + count;
                    pack::<T>(self.gemm.isa, &from, lanes, nr, ks, to);
                }
            }
        }
    }

    /// Splits the block into tasks and runs them.
    unsafe fn multiply(&self) {
        let nr = self.tiling.nr;
        let threads = self.threads();
        let column_panels = self.gemm.n.div_ceil(nr);
        let longest = self.k_block(0).len().max(1);
        let most = (b_bytes() / (longest * nr * self.units.b_bytes.max(size_of::<T>()))).max(1);
        let each = self.gemm.tuning.tasks.unwrap_or(TASKS_A_THREAD).max(1);
        let wanted = if threads == 1 { 1 } else { threads * each };
        if matches!(self.panels, PanelSource::Shared(_)) {
            let (column_tasks, row_tasks) = self.grid(column_panels, most, threads);
            return pool::run(column_tasks * row_tasks, threads, &|task| {
                let columns = part(column_panels, column_tasks, task / row_tasks);
                // SAFETY: tasks cover disjoint tiles.
                unsafe { self.task(columns, part(self.row_panels, row_tasks, task % row_tasks)) };
            });
        }
        // As many panels in each task, since each thread gets as many tasks.
        let column_tasks = column_panels.div_ceil(column_panels.div_ceil(wanted).min(most));
        // Rows or K are split only where columns alone do not occupy the threads.
        let few = threads > 1 && column_tasks < 2 * threads;
        if few && self.k_blocks > 1 && self.adds_parts() {
            // SAFETY: as below.
            return unsafe { self.multiply_parts(column_panels, column_tasks, threads) };
        }
        let row_tasks = if few { (2 * threads).div_ceil(column_tasks).min(self.row_panels) } else { 1 };
        pool::run(column_tasks * row_tasks, threads, &|task| {
            let columns = part(column_panels, column_tasks, task / row_tasks);
            let panels = part(self.row_panels, row_tasks, task % row_tasks);
            // SAFETY: tasks cover disjoint tiles.
            unsafe { self.task(columns, panels) };
        });
    }

    /// The threads that the product is worth: a small one is not worth a second.
    fn threads(&self) -> usize {
        let elements = self.gemm.n * self.gemm.k;
        let bytes = match self.panels {
            PanelSource::Packed(_) => elements * self.units.b_bytes,
            PanelSource::Pack(..) | PanelSource::Shared(_) => elements * self.units.b_bytes * PACKING,
        };
        small::threads_for(self.gemm, bytes)
    }

    /// Whether blocks of K may be tasks of their own.
    fn adds_parts(&self) -> bool {
        self.carried.is_null() && self.rows.len() <= SPLIT_ROWS
    }

    /// Runs every block of K as a task of its own. The last to finish adds the blocks' tiles up in the order in which a
    /// single task would have added to its tile, so that the sums are the same.
    unsafe fn multiply_parts(&self, column_panels: usize, column_tasks: usize, threads: usize) {
        let (nr, rows) = (self.tiling.nr, self.rows.len());
        let tile_elements = rows * part(column_panels, column_tasks, 0).len() * nr;
        let shares = Shares::<T>::new(column_tasks, self.k_blocks, tile_elements);
        pool::run(column_tasks * self.k_blocks, threads, &|task| {
            let (c, block) = (task / self.k_blocks, task % self.k_blocks);
            let panels = part(column_panels, column_tasks, c);
            let columns = panels.start * nr..self.gemm.n.min(panels.end * nr);
            let stride = panels.len() * nr;
            let (tiles, len) = (shares.tiles(c), rows * stride);
            // SAFETY: each block has a tile of its own; the last task to finish has exclusive access to all of them.
            unsafe {
                let out = Out { tile: tiles.add(block * tile_elements), stride, reuse: false, finish: false };
                self.blocks(panels, 0..self.row_panels, block..block + 1, &out);
                if !shares.is_last(c) {
                    return;
                }
                let first = std::slice::from_raw_parts_mut(tiles, len);
                for block in 1..self.k_blocks {
                    let other = std::slice::from_raw_parts(tiles.add(block * tile_elements), len);
                    for (sum, other) in first.iter_mut().zip(other) {
                        *sum = sum.sum(*other);
                    }
                }
                self.epilogue.apply(Tile {
                    data: first.as_mut_ptr().cast(),
                    dtype: T::DTYPE,
                    row_stride: stride,
                    row: self.rows.start,
                    rows,
                    column: columns.start,
                    columns: columns.len(),
                });
            }
        });
    }

    /// The product of some row panels and some column panels.
    unsafe fn task(&self, column_panels: Range<usize>, row_panels: Range<usize>) {
        let nr = self.tiling.nr;
        let columns = column_panels.start * nr..self.gemm.n.min(column_panels.end * nr);
        let rows = self.panel_rows(row_panels.start).start..self.panel_rows(row_panels.end - 1).end;
        let own;
        let (tile, stride) = if self.carried.is_null() {
            // One K block needs only the tile of one row panel at a time.
            let height = if self.k_blocks == 1 { self.kernels[0].0 } else { rows.len() };
            own = Scratch::take::<T>(height * column_panels.len() * nr);
            (own.ptr::<T>(), column_panels.len() * nr)
        } else {
            let stride = padded(self.gemm.n, nr);
            // SAFETY: this task's part of the carried accumulators.
            (unsafe { self.carried.add(rows.start * stride + columns.start) }, stride)
        };
        let reuse = self.carried.is_null() && self.k_blocks == 1;
        let finish = self.chunk.end == self.units.all;
        // SAFETY: the tile is this task's.
        unsafe { self.blocks(column_panels, row_panels, 0..self.k_blocks, &Out { tile, stride, reuse, finish }) };
    }

    /// What is packed after a block of K: the next one of the same columns, or the first of the columns of this thread's next task, as
    /// tasks usually go.
    fn next_of_b(&self, columns: &Range<usize>, k_blocks: &Range<usize>, block: usize, turns: usize) -> Option<Ahead> {
        let PanelSource::Pack(b, _) = &self.panels else { return None };
        let (n, threads) = (self.gemm.n, self.threads().clamp(1, pool::threads()));
        let (columns, block) = match block + 1 < k_blocks.end {
            true => (columns.clone(), block + 1),
            false => {
                let start = n.min(columns.end + (threads - 1) * columns.len());
                (start..n.min(start + columns.len()), k_blocks.start)
            }
        };
        let units = self.k_block(block);
        let ks = self.ks(&(self.chunk.start + units.start..self.chunk.start + units.end));
        Ahead::new(b, columns, ks, turns)
    }

    /// What every row of a product of unsigned bytes has too much: the sums of the columns times [`OFFSET`]'s bytes.
    unsafe fn excess(&self, b: *const u8, panel_bytes: usize, panels: usize, units: usize) -> Option<Scratch> {
        if self.tiling.format != Some(Format::I8Dot) {
            return None;
        }
        let (sums, row) = (Scratch::take::<T>(panels * self.tiling.nr), Scratch::take::<u32>(units));
        // SAFETY: a row of A, and panels of B, of as many units.
        unsafe {
            std::slice::from_raw_parts_mut(row.ptr::<u32>(), units).fill(OFFSET);
            for panel in 0..panels {
                let to = sums.ptr::<T>().add(panel * self.tiling.nr).cast();
                let b_stride = self.tiling.nr * self.units.b_bytes;
                (self.one_row.first)(row.ptr(), b.add(panel * panel_bytes), to, units, b_stride, 0);
            }
        }
        Some(sums)
    }

    /// Some blocks of K of the product of some row panels and some column panels.
    unsafe fn blocks(
        &self,
        column_panels: Range<usize>,
        row_panels: Range<usize>,
        k_blocks: Range<usize>,
        out: &Out<T>,
    ) {
        let nr = self.tiling.nr;
        let &Out { tile, stride, reuse, finish } = out;
        let columns = column_panels.start * nr..self.gemm.n.min(column_panels.end * nr);
        let first_row = self.panel_rows(row_panels.start).start;
        let packing = match &self.panels {
            PanelSource::Pack(..) => {
                let words = self.units.b_bytes.div_ceil(size_of::<T>());
                Some(Scratch::take::<T>(column_panels.len() * nr * self.k_block(0).len() * words + windows::SLACK))
            }
            PanelSource::Packed(_) | PanelSource::Shared(_) => None,
        };
        // The last panel of rows is the lowest, and leaves registers.
        let first = self.packs_first(row_panels.end - 1);
        for block in k_blocks.clone() {
            let ks = self.k_block(block);
            let absolute = self.chunk.start + ks.start..self.chunk.start + ks.end;
            // SAFETY: scratch for B was sized for the longest block; a PackedB holds all of K in each panel.
            let (b, panel_bytes) = unsafe {
                match (&self.panels, &packing) {
                    (PanelSource::Pack(operand, _), Some(packing)) => {
                        // Whole panels are packed with the first rows.
                        let whole = if first.is_some() { columns.len() / nr } else { 0 };
                        let panel_bytes = ks.len() * nr * self.units.b_bytes;
                        if whole < column_panels.len() {
                            let rest = columns.start + whole * nr..columns.end;
                            let to = packing.ptr::<u8>().add(whole * panel_bytes);
                            self.pack_b(operand, rest, absolute.clone(), to.cast());
                        }
                        (packing.ptr::<u8>() as *const u8, panel_bytes)
                    }
                    (PanelSource::Packed(packed), _) => {
                        let panel_bytes = packed.panel_bytes();
                        let first = column_panels.start * panel_bytes + absolute.start * nr * self.units.b_bytes;
                        (packed.data().add(first), panel_bytes)
                    }
                    (PanelSource::Shared(data), _) => {
                        let panel_bytes = self.chunk.len() * nr * self.units.b_bytes;
                        (data.add(column_panels.start * panel_bytes + ks.start * nr * self.units.b_bytes), panel_bytes)
                    }
                    (PanelSource::Pack(..), None) => unreachable!("packing scratch was taken above"),
                }
            };
            let mut excess = None;
            // The carried tile of an earlier chunk, or what an earlier block left.
            let add = block > k_blocks.start || self.chunk.start > 0;
            // Tiles go on with the sums that they load, and others add theirs at the end. Where another number of threads would have
            // blocks of K added up afterwards, so do tiles.
            let apart =
                (add && self.units.tiles && self.adds_parts()).then(|| Scratch::take::<T>(self.tiling.mr * stride));
            let turns = row_panels.len() * column_panels.len();
            let mut ahead = self.next_of_b(&columns, &k_blocks, block, turns);
            for panel in row_panels.clone().rev() {
                let panel_rows = self.panel_rows(panel);
                let kernels = self.kernels_of(panel);
                let first = first.filter(|_| panel + 1 == row_panels.end);
                let micro = if add && apart.is_none() { kernels.more } else { kernels.first };
                let row = if reuse { 0 } else { panel_rows.start - first_row };
                let a = self.a_panel(panel, &ks);
                // SAFETY: the tile has room for this panel's rows and all of the task's columns.
                unsafe {
                    let sums = tile.add(row * stride);
                    let c = apart.as_ref().map_or(sums, Scratch::ptr);
                    if let Some((configure, _)) = kernels.configure {
                        configure(a.cast(), b, c.cast(), 0, 0, 0);
                    }
                    for column in 0..column_panels.len() {
                        if let Some(ahead) = &mut ahead {
                            ahead.fetch();
                        }
                        let start = columns.start + column * nr;
                        if let Some((from, packing)) = first.filter(|_| start + nr <= columns.end) {
                            packing[usize::from(add)](
                                a.cast(),
                                b.cast_mut().add(column * panel_bytes),
                                c.add(column * nr).cast(),
                                ks.len(),
                                from.at(absolute.start * self.units.depth, start),
                                from.stride(),
                                stride * size_of::<T>(),
                            );
                            continue;
                        }
                        micro(
                            a.cast(),
                            b.add(column * panel_bytes),
                            c.add(column * nr).cast(),
                            ks.len(),
                            nr * self.units.b_bytes,
                            stride * size_of::<T>(),
                        );
                    }
                    if let Some((_, release)) = kernels.configure {
                        release(a.cast(), b, c.cast(), 0, 0, 0);
                    }
                    if panel + 1 == row_panels.end {
                        excess = self.excess(b, panel_bytes, column_panels.len(), ks.len());
                    }
                    if let Some(excess) = &excess {
                        let width = column_panels.len() * nr;
                        let excess = std::slice::from_raw_parts(excess.ptr::<T>(), width);
                        for row in 0..panel_rows.len() {
                            subtract(std::slice::from_raw_parts_mut(c.add(row * stride), width), excess);
                        }
                    }
                    if apart.is_some() {
                        for row in 0..panel_rows.len() {
                            let width = column_panels.len() * nr;
                            let sums = std::slice::from_raw_parts_mut(sums.add(row * stride), width);
                            let more = std::slice::from_raw_parts(c.add(row * stride), width);
                            sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.sum(*more));
                        }
                    }
                    if finish && block + 1 == k_blocks.end {
                        self.epilogue.apply(Tile {
                            data: sums.cast(),
                            dtype: T::DTYPE,
                            row_stride: stride,
                            row: self.rows.start + panel_rows.start,
                            rows: panel_rows.len(),
                            column: columns.start,
                            columns: columns.len(),
                        });
                    }
                }
            }
        }
    }
}

/// The destination of a task's accumulators.
struct Out<T> {
    tile: *mut T,
    /// Accumulators from one row to the next.
    stride: usize,
    /// The tile has room for one row panel, which all panels use one after another.
    reuse: bool,
    /// Pass finished row panels to the epilogue.
    finish: bool,
}
