//! Micro-kernels of AMX: two by two tiles of sums, each 16 rows of 16 words, over units of 16 words of K.
//!
//! ```text
//!  A panel [unit][row][16 words]     a tile is 16 rows, 64 bytes apart
//!  B panel [unit][16 words][column]  a tile is 16 rows of 16 columns, a panel's width apart
//!          └──────────┬──────────┘
//!      C[2][2] += A[2] · B[2]        word by word: pairs of bf16 in f32, or four signed bytes in i32
//! ```
//!
//! A word is two bf16 or four bytes of consecutive k. Panels are padded with zeros to whole units. A panel with fewer than 32 rows
//! has smaller tiles: their shapes are set by a [`Piece::Configure`] before its kernels run, and given up by a [`Piece::Release`].

use super::kernel::{Key, MicroFn, cached};
use crate::asm::{Alu, Assembler, Cond, Gpr, Mem, Shift, TReg, TileProduct, tile_configuration};
use crate::memory::MemoryError;

/// Rows and words of a tile.
pub(super) const TILE: usize = 16;
/// Rows of a panel of A.
pub(super) const ROWS: usize = 2 * TILE;
/// Columns of a panel of B.
pub(super) const COLUMNS: usize = 2 * TILE;
/// Bytes of a row of a tile.
pub(super) const ROW_BYTES: usize = 64;
/// Bytes of B's panel from one word of K to the next.
const B_ROW_BYTES: usize = COLUMNS * 4;
/// The distance in units at which B is fetched into the first level.
const AHEAD: usize = 2;

/// A piece of code.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Piece {
    /// Sets the shapes of the tiles for panels of so many rows.
    Configure { rows: usize },
    /// A micro-kernel for the configured tiles.
    Multiply {
        /// Signed bytes rather than bf16.
        bytes: bool,
        /// Rows of the panel of A.
        rows: usize,
        /// Add to the C tile instead of overwriting it.
        accumulate: bool,
    },
    /// Gives the tiles up.
    Release,
}

/// A piece of code with the arguments of a micro-kernel, generated on first use and kept for the life of the process.
pub(super) fn get(piece: Piece) -> Result<MicroFn, MemoryError> {
    let entry = cached(Key::Tiles(piece), || code(piece))?;
    // SAFETY: the code follows the C convention with these arguments and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, MicroFn>(entry as *const u8) })
}

#[cfg(not(test))]
fn code(piece: Piece) -> Vec<u8> {
    generate(piece)
}

/// Machines without tiles test the code in an emulator.
#[cfg(test)]
fn code(piece: Piece) -> Vec<u8> {
    use crate::features::{Extension, detect};
    match detect().extension {
        Extension::Amx => generate(piece),
        _ => super::emulated::trampoline(generate(piece)),
    }
}

const A: Gpr = Gpr::RDI;
const B: Gpr = Gpr::RSI;
const C: Gpr = Gpr::RDX;
const UNITS: Gpr = Gpr::RCX;
const B_STRIDE: Gpr = Gpr::R8;
const C_STRIDE: Gpr = Gpr::R9;
const A_ROW: Gpr = Gpr::R10;
const B_ROW: Gpr = Gpr::R11;
/// The second sixteen rows of C.
const LOWER: Gpr = Gpr::RAX;

const LEFT: [TReg; 2] = [TReg(4), TReg(5)];
const RIGHT: [TReg; 2] = [TReg(6), TReg(7)];

fn sum(row: usize, column: usize) -> TReg {
    TReg((2 * row + column) as u8)
}

pub(super) fn generate(piece: Piece) -> Vec<u8> {
    let mut asm = Assembler::new();
    match piece {
        Piece::Configure { rows } => {
            let shape = |rows: usize| if rows == 0 { (0, 0) } else { (rows as u8, ROW_BYTES as u16) };
            let (upper, lower) = (shape(rows.min(TILE)), shape(rows.saturating_sub(TILE)));
            let right = shape(TILE);
            let configuration = tile_configuration(&[upper, upper, lower, lower, upper, lower, right, right]);
            let at = asm.constant(&configuration);
            asm.ldtilecfg(at);
        }
        Piece::Release => asm.tilerelease(),
        Piece::Multiply { bytes, rows, accumulate } => multiply(&mut asm, bytes, rows, accumulate),
    }
    asm.ret();
    asm.finish()
}

fn multiply(asm: &mut Assembler, bytes: bool, rows: usize, accumulate: bool) {
    let product = if bytes { TileProduct::SignedSigned } else { TileProduct::Bf16 };
    let heights = rows.div_ceil(TILE);
    asm.mov_imm(A_ROW, ROW_BYTES as i64);
    asm.mov_imm(B_ROW, B_ROW_BYTES as i64);
    if heights == 2 {
        asm.mov(LOWER, C_STRIDE);
        asm.shift_imm(Shift::Shl, LOWER, TILE.trailing_zeros() as u8);
        asm.alu(Alu::Add, LOWER, C);
    }
    let c = [C, LOWER];
    let sums = || (0..heights).flat_map(|row| [0, 1].map(|column| (row, column)));
    for (row, column) in sums() {
        match accumulate {
            true => asm.tileloadd(sum(row, column), c[row], C_STRIDE, (column * ROW_BYTES) as i32),
            false => asm.tilezero(sum(row, column)),
        }
    }
    let (main, done) = (asm.label(), asm.label());
    asm.test(UNITS, UNITS);
    asm.jcc(Cond::Equal, done);
    asm.align(32);
    asm.bind(main);
    asm.tileloadd(LEFT[0], A, A_ROW, 0);
    for (column, right) in RIGHT.iter().enumerate() {
        asm.tileloadd(*right, B, B_ROW, (column * ROW_BYTES) as i32);
        for line in 0..TILE {
            let at = AHEAD * TILE * B_ROW_BYTES + line * B_ROW_BYTES + column * ROW_BYTES;
            asm.prefetch_t0(Mem::base(B).offset(at as i32));
        }
        asm.tile_product(product, sum(0, column), LEFT[0], *right);
    }
    if heights == 2 {
        asm.tileloadd(LEFT[1], A, A_ROW, (TILE * ROW_BYTES) as i32);
        for (column, right) in RIGHT.iter().enumerate() {
            asm.tile_product(product, sum(1, column), LEFT[1], *right);
        }
    }
    asm.alu_imm(Alu::Add, A, (rows * ROW_BYTES) as i32);
    asm.alu(Alu::Add, B, B_STRIDE);
    asm.dec(UNITS);
    asm.jcc(Cond::NotEqual, main);
    asm.bind(done);
    for (row, column) in sums() {
        asm.tilestored(c[row], C_STRIDE, (column * ROW_BYTES) as i32, sum(row, column));
    }
}
