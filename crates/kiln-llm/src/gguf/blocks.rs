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

/// What ggml calls its types, by their numbers; some were taken back.
const NAMES: [&str; 41] = [
    "F32",
    "F16",
    "Q4_0",
    "Q4_1",
    "Q4_2",
    "Q4_3",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q8_1",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q8_K",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ3_XXS",
    "IQ1_S",
    "IQ4_NL",
    "IQ3_S",
    "IQ2_S",
    "IQ4_XS",
    "I8",
    "I16",
    "I32",
    "I64",
    "F64",
    "IQ1_M",
    "BF16",
    "Q4_0_4_4",
    "Q4_0_4_8",
    "Q4_0_8_8",
    "TQ1_0",
    "TQ2_0",
    "IQ4_NL_4_4",
    "IQ4_NL_4_8",
    "IQ4_NL_8_8",
    "MXFP4",
    "NVFP4",
];

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

    /// Every type that there is code for, by name.
    pub(super) fn supported() -> String {
        let codes = (0..NAMES.len() as u32).filter(|&code| BlockType::from_code(code).is_some());
        codes.map(BlockType::name_of).collect::<Vec<String>>().join(", ")
    }

    /// What ggml calls the type of a number.
    ///
    /// ```
    /// use kiln_llm::gguf::BlockType;
    /// assert_eq!(BlockType::name_of(13), "Q5_K");
    /// assert_eq!(BlockType::name_of(99), "type 99");
    /// ```
    pub fn name_of(code: u32) -> String {
        let name = usize::try_from(code).ok().and_then(|code| NAMES.get(code));
        name.map_or_else(|| format!("type {code}"), |name| (*name).to_owned())
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
