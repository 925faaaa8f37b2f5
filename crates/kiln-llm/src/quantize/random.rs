//! Random quantised weights, made in their format: floats are never there.

use super::blocks::{pack_scales, put_half};
use crate::Result;
use crate::random::{BLOCK, draw, filled, mixed, normal_table, tensor};
use kiln::{BlockFormat, DType, Device, Tensor};

/// Integers whose products with the scale, which is the same for all rows, are normally distributed with a deviation; and
/// the scales in a dtype.
pub(crate) fn int8(
    seed: u64,
    deviation: f64,
    shape: [usize; 2],
    dtype: DType,
    device: Device,
) -> Result<(Tensor, Tensor)> {
    let table = normal_table(|quantile| quantile);
    let largest = table.iter().fold(0f64, |most, x| most.max(x.abs()));
    let table = normal_table(|quantile| (quantile / largest * 127.0).round() as i8);
    let integers = filled(seed, shape.iter().product(), BLOCK, |state, block| draw(state, &table, block))?;
    let integers = tensor(integers, &shape, DType::I8, device)?;
    Ok((integers, Tensor::full(shape[0], largest * deviation / 127.0, dtype, device)?))
}

/// Blocks of uniformly distributed integers with scales such that elements have a mean of 0 and a deviation. A shape is that
/// of the elements; rows have to be made of whole blocks.
pub(crate) fn blocks(
    seed: u64,
    deviation: f64,
    format: BlockFormat,
    shape: [usize; 2],
    device: Device,
) -> Result<Tensor> {
    let bytes = format.bytes();
    let row = shape[1] / format.elements() * bytes;
    let chunk = BLOCK / bytes * bytes;
    let buffer = filled(seed, shape[0] * row, chunk, |mut state, chunk: &mut [u8]| {
        for eight in chunk.chunks_mut(8) {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            eight.copy_from_slice(&mixed(state).to_le_bytes()[..eight.len()]);
        }
        chunk.chunks_exact_mut(bytes).for_each(|block| set_scales(format, deviation as f32, block));
    })?;
    tensor(buffer, &[shape[0], row], DType::U8, device)
}

/// The deviation of integers from 0 to n − 1 that are equally likely.
fn spread(n: f32) -> f32 {
    ((n * n - 1.0) / 12.0).sqrt()
}

/// Puts scales into a block of random bytes. Where integers are not symmetric, scales are as often negative.
fn set_scales(format: BlockFormat, deviation: f32, block: &mut [u8]) {
    // Scales within a block are 6 bits wide, the upper half of them: their root mean square.
    let inner = (32..64).map(|scale| (scale * scale) as f32 / 32.0).sum::<f32>().sqrt();
    let sign = if block[block.len() - 1] & 1 == 0 { deviation } else { -deviation };
    match format {
        BlockFormat::Q4_0 => {
            put_half(block, 0, sign / spread(16.0));
        }
        BlockFormat::Q5_0 => {
            put_half(block, 0, sign / spread(32.0));
        }
        BlockFormat::Q8_0 => {
            put_half(block, 0, deviation / spread(255.0));
            block[2..].iter_mut().filter(|q| **q == 128).for_each(|q| *q = 0);
        }
        BlockFormat::Q4_1 => {
            let scale = put_half(block, 0, deviation / spread(16.0));
            put_half(block, 2, -7.5 * scale);
        }
        BlockFormat::Q4_K => {
            let scale = put_half(block, 0, deviation / spread(16.0) / inner);
            put_half(block, 2, 7.5 * scale);
            // Equal scales and minima: the mean of each group is 0.
            let scales = std::array::from_fn(|i| 32 + (block[4 + i] & 31));
            block[4..16].copy_from_slice(&pack_scales(&scales, &scales));
        }
        BlockFormat::Q6_K => {
            put_half(block, 208, deviation / spread(64.0) / inner);
            for scale in &mut block[192..208] {
                let size = 32 + (*scale & 31);
                *scale = if *scale & 32 == 0 { size } else { size.wrapping_neg() };
            }
        }
    }
}
