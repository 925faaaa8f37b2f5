//! How elements are stored: floats, or blocks of small integers with scales.

use half::{bf16, f16};
use kiln::BlockFormat;

/// A way to store elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// The upper halves of 32-bit floats.
    Bf16,
    /// Quantised blocks.
    Blocks(BlockFormat),
}

impl BlockType {
    /// The number that files have for it.
    pub const fn code(self) -> u32 {
        match self {
            BlockType::F32 => 0,
            BlockType::F16 => 1,
            BlockType::Blocks(BlockFormat::Q4_0) => 2,
            BlockType::Blocks(BlockFormat::Q4_1) => 3,
            BlockType::Blocks(BlockFormat::Q5_0) => 6,
            BlockType::Blocks(BlockFormat::Q8_0) => 8,
            BlockType::Blocks(BlockFormat::Q4_K) => 12,
            BlockType::Blocks(BlockFormat::Q6_K) => 14,
            BlockType::Bf16 => 30,
        }
    }

    /// The type of a number.
    pub fn from_code(code: u32) -> Option<BlockType> {
        let floats = [BlockType::F32, BlockType::F16, BlockType::Bf16];
        let blocks = BlockFormat::ALL.map(BlockType::Blocks);
        floats.into_iter().chain(blocks).find(|block| block.code() == code)
    }

    /// Elements of a block.
    pub const fn elements(self) -> usize {
        match self {
            BlockType::F32 | BlockType::F16 | BlockType::Bf16 => 1,
            BlockType::Blocks(format) => format.elements(),
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            BlockType::F32 => 4,
            BlockType::F16 | BlockType::Bf16 => 2,
            BlockType::Blocks(format) => format.bytes(),
        }
    }

    /// Appends the elements of whole blocks.
    pub fn dequantise(self, bytes: &[u8], out: &mut Vec<f32>) {
        let blocks = bytes.chunks_exact(self.bytes());
        match self {
            BlockType::F32 => out.extend(blocks.map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]]))),
            BlockType::F16 => out.extend(blocks.map(|x| f16::from_le_bytes([x[0], x[1]]).to_f32())),
            BlockType::Bf16 => out.extend(blocks.map(|x| bf16::from_le_bytes([x[0], x[1]]).to_f32())),
            BlockType::Blocks(format) => format.dequantise(bytes, out),
        }
    }
}
