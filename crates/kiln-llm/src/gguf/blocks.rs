//! How elements are stored: floats, or blocks of small integers with scales.

use half::{bf16, f16};

/// A way to store elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the names that everyone knows them by")]
pub enum BlockType {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// The upper halves of 32-bit floats.
    Bf16,
    /// 32 integers of 4 bits, −8 … 7, with a scale.
    Q4_0,
    /// 32 integers of 4 bits, 0 … 15, with a scale and a minimum.
    Q4_1,
    /// 32 integers of 8 bits with a scale.
    Q8_0,
    /// 256 integers of 4 bits; each 32 with a scale and a minimum of 6 bits, and those with a scale each.
    Q4_K,
    /// 256 integers of 6 bits; each 16 with a scale of 8 bits, and those with a scale.
    Q6_K,
}

impl BlockType {
    /// Every type.
    pub const ALL: [BlockType; 8] = [
        BlockType::F32,
        BlockType::F16,
        BlockType::Bf16,
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q8_0,
        BlockType::Q4_K,
        BlockType::Q6_K,
    ];

    /// The number that files have for it.
    pub const fn code(self) -> u32 {
        match self {
            BlockType::F32 => 0,
            BlockType::F16 => 1,
            BlockType::Q4_0 => 2,
            BlockType::Q4_1 => 3,
            BlockType::Q8_0 => 8,
            BlockType::Q4_K => 12,
            BlockType::Q6_K => 14,
            BlockType::Bf16 => 30,
        }
    }

    /// The type of a number.
    pub fn from_code(code: u32) -> Option<BlockType> {
        BlockType::ALL.into_iter().find(|block| block.code() == code)
    }

    /// Elements of a block.
    pub const fn elements(self) -> usize {
        match self {
            BlockType::F32 | BlockType::F16 | BlockType::Bf16 => 1,
            BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q8_0 => 32,
            BlockType::Q4_K | BlockType::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            BlockType::F32 => 4,
            BlockType::F16 | BlockType::Bf16 => 2,
            BlockType::Q4_0 => 18,
            BlockType::Q4_1 => 20,
            BlockType::Q8_0 => 34,
            BlockType::Q4_K => 144,
            BlockType::Q6_K => 210,
        }
    }

    /// Appends the elements of whole blocks.
    pub fn dequantise(self, bytes: &[u8], out: &mut Vec<f32>) {
        for block in bytes.chunks_exact(self.bytes()) {
            match self {
                BlockType::F32 => out.push(f32::from_le_bytes([block[0], block[1], block[2], block[3]])),
                BlockType::F16 => out.push(float(block, 0)),
                BlockType::Bf16 => out.push(bf16::from_le_bytes([block[0], block[1]]).to_f32()),
                BlockType::Q4_0 => {
                    let scale = float(block, 0);
                    out.extend(block[2..].iter().map(|q| (f32::from(q & 15) - 8.0) * scale));
                    out.extend(block[2..].iter().map(|q| (f32::from(q >> 4) - 8.0) * scale));
                }
                BlockType::Q4_1 => {
                    let (scale, least) = (float(block, 0), float(block, 2));
                    out.extend(block[4..].iter().map(|q| f32::from(q & 15) * scale + least));
                    out.extend(block[4..].iter().map(|q| f32::from(q >> 4) * scale + least));
                }
                BlockType::Q8_0 => {
                    let scale = float(block, 0);
                    out.extend(block[2..].iter().map(|&q| f32::from(q as i8) * scale));
                }
                BlockType::Q4_K => q4_k(block, out),
                BlockType::Q6_K => q6_k(block, out),
            }
        }
    }
}

fn float(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// f16 scale, f16 scale of minima, 8 scales and 8 minima of 6 bits in 12 bytes, 256 integers of 4 bits.
fn q4_k(block: &[u8], out: &mut Vec<f32>) {
    let (scale, least) = (float(block, 0), float(block, 2));
    let packed = &block[4..16];
    // The first four have their low six bits in a byte each; the upper bits of the others are what those leave free.
    let pair = |i: usize| match i {
        0..4 => (packed[i] & 63, packed[i + 4] & 63),
        _ => ((packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4, (packed[i + 4] >> 4) | (packed[i] >> 6) << 4),
    };
    for (group, quants) in block[16..].chunks_exact(32).enumerate() {
        for (half, shift) in [0, 4].into_iter().enumerate() {
            let (s, m) = pair(2 * group + half);
            let (s, m) = (scale * f32::from(s), least * f32::from(m));
            out.extend(quants.iter().map(|q| s * f32::from(q >> shift & 15) - m));
        }
    }
}

/// 256 low parts of 4 bits, 256 high parts of 2, 16 scales of 8 bits, f16 scale.
fn q6_k(block: &[u8], out: &mut Vec<f32>) {
    let scale = float(block, 208);
    for half in 0..2 {
        let low = &block[64 * half..][..64];
        let high = &block[128 + 32 * half..][..32];
        let scales = &block[192 + 8 * half..][..8];
        for quarter in 0..4 {
            for i in 0..32 {
                let nibble = low[32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
                let q = i32::from(nibble | (high[i] >> (2 * quarter) & 3) << 4) - 32;
                out.push(scale * f32::from(scales[2 * quarter + i / 16] as i8) * q as f32);
            }
        }
    }
}
