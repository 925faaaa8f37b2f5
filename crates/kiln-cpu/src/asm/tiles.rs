//! AMX: tile registers of up to 16 rows of 64 bytes, and products of tiles.

use super::vector::Fields;
use super::{Assembler, Base, Gpr, Index, Mem};

/// A tile register, 0..8. Its rows and columns are what [`Assembler::ldtilecfg`] said.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct TReg(pub u8);

/// Products of two tiles that are added to a third.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TileProduct {
    /// Pairs of bf16, sums in f32.
    Bf16,
    /// Four signed bytes by four signed ones, sums in i32.
    SignedSigned,
    /// Four signed bytes by four unsigned ones.
    SignedUnsigned,
    /// Four unsigned bytes by four signed ones.
    UnsignedSigned,
    /// Four unsigned bytes by four unsigned ones.
    UnsignedUnsigned,
}

impl TileProduct {
    /// (prefix, opcode).
    const fn encoding(self) -> (u8, u8) {
        match self {
            TileProduct::Bf16 => (2, 0x5c),
            TileProduct::SignedSigned => (3, 0x5e),
            TileProduct::SignedUnsigned => (2, 0x5e),
            TileProduct::UnsignedSigned => (1, 0x5e),
            TileProduct::UnsignedUnsigned => (0, 0x5e),
        }
    }
}

/// The 64 bytes that [`Assembler::ldtilecfg`] reads: palette 1, with the rows and the bytes of a row of each tile.
pub fn tile_configuration(tiles: &[(u8, u16); 8]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    for (i, (rows, columns)) in tiles.iter().enumerate() {
        bytes[16 + 2 * i..18 + 2 * i].copy_from_slice(&columns.to_le_bytes());
        bytes[48 + i] = *rows;
    }
    bytes
}

/// Tile instructions.
impl Assembler {
    fn tile_op(&mut self, pp: u8, opcode: u8, reg: u8, vvvv: u8, rm: u8) {
        self.vex_prefix(2, pp, 0, 0, &Fields { reg, vvvv, imm: None, x: 0, b: 0, index_high: 0 });
        self.byte(opcode);
        self.modrm_reg(reg, rm);
    }

    fn tile_memory(&mut self, pp: u8, opcode: u8, reg: u8, at: &Mem) {
        let b = if let Base::Register(b) = at.base { b.0 >> 3 } else { 0 };
        let x = if let Index::Scaled(g, _) = at.index { g.0 >> 3 } else { 0 };
        self.vex_prefix(2, pp, 0, 0, &Fields { reg, vvvv: 0, imm: None, x, b, index_high: 0 });
        self.byte(opcode);
        self.modrm_mem(reg, at, 1, 0);
    }

    /// Sets the shapes of all tiles, which become zero.
    pub fn ldtilecfg(&mut self, from: Mem) {
        self.tile_memory(0, 0x49, 0, &from);
    }

    /// Stores the shapes of all tiles.
    pub fn sttilecfg(&mut self, to: Mem) {
        self.tile_memory(1, 0x49, 0, &to);
    }

    /// Gives up all tiles.
    pub fn tilerelease(&mut self) {
        self.tile_op(0, 0x49, 0, 0, 0);
    }

    /// `tile = 0`
    pub fn tilezero(&mut self, tile: TReg) {
        self.tile_op(3, 0x49, tile.0, 0, 0);
    }

    /// Loads a tile whose rows are `stride` bytes apart.
    pub fn tileloadd(&mut self, tile: TReg, base: Gpr, stride: Gpr, offset: i32) {
        self.tile_memory(3, 0x4b, tile.0, &Mem::indexed(base, stride, 1).offset(offset));
    }

    /// Stores a tile to rows that are `stride` bytes apart.
    pub fn tilestored(&mut self, base: Gpr, stride: Gpr, offset: i32, tile: TReg) {
        self.tile_memory(2, 0x4b, tile.0, &Mem::indexed(base, stride, 1).offset(offset));
    }

    /// `to += a · b`
    pub fn tile_product(&mut self, product: TileProduct, to: TReg, a: TReg, b: TReg) {
        let (pp, opcode) = product.encoding();
        self.tile_op(pp, opcode, to.0, b.0, a.0);
    }
}
