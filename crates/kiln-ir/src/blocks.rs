//! Quantised blocks: a few bytes that stand for some elements, small integers with shared scales, as GGUF files hold them.

use half::f16;

/// The layout of a block of quantised elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, reason = "the names that everyone knows them by")]
pub enum BlockFormat {
    /// 32 integers of 4 bits, −8 … 7, with a scale.
    Q4_0,
    /// 32 integers of 4 bits, 0 … 15, with a scale and a minimum.
    Q4_1,
    /// 32 integers of 5 bits, −16 … 15, with a scale.
    Q5_0,
    /// 32 integers of 8 bits with a scale.
    Q8_0,
    /// 256 integers of 4 bits; each 32 with a scale and a minimum of 6 bits, and those with a scale each.
    Q4_K,
    /// 256 integers of 6 bits; each 16 with a scale of 8 bits, and those with a scale.
    Q6_K,
}

impl BlockFormat {
    /// Every format, in the order of the declaration.
    pub const ALL: [BlockFormat; 6] = [
        BlockFormat::Q4_0,
        BlockFormat::Q4_1,
        BlockFormat::Q5_0,
        BlockFormat::Q8_0,
        BlockFormat::Q4_K,
        BlockFormat::Q6_K,
    ];

    /// The name in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            BlockFormat::Q4_0 => "q4_0",
            BlockFormat::Q4_1 => "q4_1",
            BlockFormat::Q5_0 => "q5_0",
            BlockFormat::Q8_0 => "q8_0",
            BlockFormat::Q4_K => "q4_k",
            BlockFormat::Q6_K => "q6_k",
        }
    }

    /// The format of a name.
    ///
    /// ```
    /// use kiln_ir::BlockFormat;
    /// assert_eq!(BlockFormat::from_name("q4_k"), Some(BlockFormat::Q4_K));
    /// assert_eq!(BlockFormat::from_name("q3_k"), None);
    /// ```
    pub fn from_name(name: &str) -> Option<BlockFormat> {
        BlockFormat::ALL.into_iter().find(|format| format.name() == name)
    }

    /// Elements of a block.
    pub const fn elements(self) -> usize {
        match self {
            BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => 32,
            BlockFormat::Q4_K | BlockFormat::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            BlockFormat::Q4_0 => 18,
            BlockFormat::Q4_1 => 20,
            BlockFormat::Q5_0 => 22,
            BlockFormat::Q8_0 => 34,
            BlockFormat::Q4_K => 144,
            BlockFormat::Q6_K => 210,
        }
    }

    /// Bytes of a row of elements; `None` unless it is made of whole blocks.
    ///
    /// ```
    /// use kiln_ir::BlockFormat;
    /// assert_eq!(BlockFormat::Q8_0.row_bytes(64), Some(68));
    /// assert_eq!(BlockFormat::Q8_0.row_bytes(33), None);
    /// ```
    pub fn row_bytes(self, elements: usize) -> Option<usize> {
        let whole = elements.is_multiple_of(self.elements());
        whole.then(|| elements / self.elements()).and_then(|blocks| blocks.checked_mul(self.bytes()))
    }

    /// The byte offsets of the f16 scales and minima of a block.
    pub fn halves(self) -> &'static [usize] {
        match self {
            BlockFormat::Q4_0 | BlockFormat::Q5_0 | BlockFormat::Q8_0 => &[0],
            BlockFormat::Q4_1 | BlockFormat::Q4_K => &[0, 2],
            BlockFormat::Q6_K => &[208],
        }
    }

    /// Whether a scale or minimum of some blocks is infinite or NaN.
    ///
    /// ```
    /// use kiln_ir::BlockFormat;
    /// let mut block = [0; 18];
    /// assert!(!BlockFormat::Q4_0.is_damaged(&block));
    /// block[1] = 0x7c; // infinity
    /// assert!(BlockFormat::Q4_0.is_damaged(&block));
    /// ```
    pub fn is_damaged(self, bytes: &[u8]) -> bool {
        let damaged = |block: &[u8]| self.halves().iter().any(|&at| block[at + 1] & 0x7c == 0x7c);
        bytes.chunks_exact(self.bytes()).any(damaged)
    }

    /// Appends the elements of whole blocks; bytes of a last broken block are left out.
    pub fn dequantise(self, bytes: &[u8], out: &mut Vec<f32>) {
        for block in bytes.chunks_exact(self.bytes()) {
            match self {
                BlockFormat::Q4_0 => {
                    let scale = float(block, 0);
                    out.extend(block[2..].iter().map(|q| (f32::from(q & 15) - 8.0) * scale));
                    out.extend(block[2..].iter().map(|q| (f32::from(q >> 4) - 8.0) * scale));
                }
                BlockFormat::Q4_1 => {
                    let (scale, least) = (float(block, 0), float(block, 2));
                    out.extend(block[4..].iter().map(|q| f32::from(q & 15) * scale + least));
                    out.extend(block[4..].iter().map(|q| f32::from(q >> 4) * scale + least));
                }
                BlockFormat::Q5_0 => {
                    let scale = float(block, 0);
                    let tops = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
                    let value =
                        |i: usize, nibble: u8| (f32::from(nibble | ((tops >> i & 1) as u8 * 16)) - 16.0) * scale;
                    out.extend(block[6..].iter().enumerate().map(|(i, q)| value(i, q & 15)));
                    out.extend(block[6..].iter().enumerate().map(|(i, q)| value(i + 16, q >> 4)));
                }
                BlockFormat::Q8_0 => {
                    let scale = float(block, 0);
                    out.extend(block[2..].iter().map(|&q| f32::from(q as i8) * scale));
                }
                BlockFormat::Q4_K => q4_k(block, out),
                BlockFormat::Q6_K => q6_k(block, out),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes() {
        for format in BlockFormat::ALL {
            assert_eq!(BlockFormat::from_name(format.name()), Some(format));
            let mut out = Vec::new();
            format.dequantise(&vec![0; 3 * format.bytes() + 1], &mut out);
            assert_eq!(out.len(), 3 * format.elements());
        }
    }

    #[test]
    fn small_integers_come_out() {
        let mut block = vec![0x00, 0x38]; // 0.5
        block.extend((0..16).map(|i| i | (15 - i) << 4));
        let mut out = Vec::new();
        BlockFormat::Q4_0.dequantise(&block, &mut out);
        assert_eq!((out[0], out[15], out[16], out[31]), (-4.0, 3.5, 3.5, -4.0));
    }
}
