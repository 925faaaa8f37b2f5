//! Encodes floats as quantised blocks: the scales that llama.cpp's reference code would find, without importance weights
//! of a calibration.
//!
//! Scales are f16: elements beyond its range are refused by [`super`], and blocks whose scale is below its smallest number
//! become zeros.

use half::f16;
use kiln::BlockFormat;

/// Appends the blocks of some elements, which have to be whole blocks of numbers within the range of f16.
pub(super) fn encode(format: BlockFormat, elements: &[f32], out: &mut [u8]) {
    let blocks = elements.chunks_exact(format.elements()).zip(out.chunks_exact_mut(format.bytes()));
    for (x, block) in blocks {
        match format {
            BlockFormat::Q4_0 => q4_0(x, block),
            BlockFormat::Q4_1 => q4_1(x, block),
            BlockFormat::Q5_0 => q5_0(x, block),
            BlockFormat::Q8_0 => q8_0(x, block),
            BlockFormat::Q4_K => q4_k(x, block),
            BlockFormat::Q6_K => q6_k(x, block),
        }
    }
}

/// Writes a number as f16 and returns what was written.
pub(super) fn put_half(block: &mut [u8], at: usize, value: f32) -> f32 {
    let half = f16::from_f32(value);
    block[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// The integer nearest to `x / scale` within a range; 0 for a scale of 0.
fn nearest(x: f32, scale: f32, least: i32, most: i32) -> i32 {
    if scale == 0.0 { 0 } else { ((x / scale).round_ties_even() as i32).clamp(least, most) }
}

/// The element of the largest magnitude, with its sign.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0f32, |most, &x| if x.abs() > most.abs() { x } else { most })
}

fn q4_0(x: &[f32], block: &mut [u8]) {
    let scale = put_half(block, 0, extreme(x) / -8.0);
    for i in 0..16 {
        let q = |x: f32| (nearest(x, scale, -8, 7) + 8) as u8;
        block[2 + i] = q(x[i]) | q(x[i + 16]) << 4;
    }
}

fn q4_1(x: &[f32], block: &mut [u8]) {
    let (low, high) = x.iter().fold((f32::MAX, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    let (scale, low) = (put_half(block, 0, (high - low) / 15.0), put_half(block, 2, low));
    for i in 0..16 {
        let q = |x: f32| nearest(x - low, scale, 0, 15) as u8;
        block[4 + i] = q(x[i]) | q(x[i + 16]) << 4;
    }
}

fn q5_0(x: &[f32], block: &mut [u8]) {
    let scale = put_half(block, 0, extreme(x) / -16.0);
    let q: [u8; 32] = std::array::from_fn(|i| (nearest(x[i], scale, -16, 15) + 16) as u8);
    let tops = q.iter().enumerate().fold(0u32, |tops, (i, &q)| tops | u32::from(q >> 4) << i);
    block[2..6].copy_from_slice(&tops.to_le_bytes());
    for i in 0..16 {
        block[6 + i] = (q[i] & 15) | (q[i + 16] & 15) << 4;
    }
}

fn q8_0(x: &[f32], block: &mut [u8]) {
    let scale = put_half(block, 0, extreme(x).abs() / 127.0);
    for (q, &x) in block[2..].iter_mut().zip(x) {
        *q = nearest(x, scale, -127, 127) as i8 as u8;
    }
}

/// Eight groups of 32 with a scale and a minimum each, which are integers of 6 bits themselves.
fn q4_k(x: &[f32], block: &mut [u8]) {
    let found: [(f32, f32); 8] = std::array::from_fn(|group| scale_and_minimum(&x[32 * group..][..32], 15));
    let most = |of: fn(&(f32, f32)) -> f32| found.iter().map(of).fold(0f32, f32::max);
    let scale = put_half(block, 0, most(|found| found.0) / 63.0);
    let least = put_half(block, 2, most(|found| found.1) / 63.0);
    let scales = found.map(|(own, _)| nearest(own, scale, 0, 63) as u8);
    let minima = found.map(|(_, own)| nearest(own, least, 0, 63) as u8);
    block[4..16].copy_from_slice(&pack_scales(&scales, &minima));
    let q = |i: usize| {
        let (scale, least) = (scale * f32::from(scales[i / 32]), least * f32::from(minima[i / 32]));
        nearest(x[i] + least, scale, 0, 15) as u8
    };
    for (at, byte) in block[16..].iter_mut().enumerate() {
        let i = at / 32 * 64 + at % 32;
        *byte = q(i) | q(i + 32) << 4;
    }
}

/// Eight scales and eight minima of 6 bits in 12 bytes.
pub(super) fn pack_scales(scales: &[u8; 8], minima: &[u8; 8]) -> [u8; 12] {
    std::array::from_fn(|i| match i {
        0..4 => scales[i] | scales[i + 4] >> 4 << 6,
        4..8 => minima[i - 4] | minima[i] >> 4 << 6,
        _ => (scales[i - 4] & 15) | (minima[i - 4] & 15) << 4,
    })
}

/// Sixteen groups of 16 with a scale each, which are integers of 8 bits themselves.
fn q6_k(x: &[f32], block: &mut [u8]) {
    let found: [f32; 16] = std::array::from_fn(|group| symmetric_scale(&x[16 * group..][..16], 32));
    let scale = put_half(block, 208, extreme(&found) / -128.0);
    let scales = found.map(|own| nearest(own, scale, -128, 127));
    let q: [u8; 256] = std::array::from_fn(|i| (nearest(x[i], scale * scales[i / 16] as f32, -32, 31) + 32) as u8);
    for (byte, scale) in block[192..208].iter_mut().zip(scales) {
        *byte = scale as i8 as u8;
    }
    for half in 0..2 {
        let q = &q[128 * half..][..128];
        for i in 0..64 {
            block[64 * half + i] = (q[i] & 15) | (q[i + 64] & 15) << 4;
        }
        for i in 0..32 {
            block[128 + 32 * half + i] = (0..4).fold(0, |high, part| high | q[32 * part + i] >> 4 << (2 * part));
        }
    }
}

/// The scale s and the minimum m ≥ 0 with which s·q − m, q from 0 to `most`, is nearest to some elements: larger elements
/// weigh more. Several roundings are tried, each with its least-squares fit (`make_qkx2_quants`).
fn scale_and_minimum(x: &[f32], most: i32) -> (f32, f32) {
    let low = x.iter().fold(0f32, |low, &x| low.min(x));
    let high = x.iter().fold(f32::MIN, |high, &x| high.max(x));
    if high <= low {
        return (0.0, -low);
    }
    let mean_square = x.iter().map(|x| x * x).sum::<f32>() / x.len() as f32;
    let weight = |x: f32| mean_square.sqrt() + x.abs();
    let (sum_w, sum_x) = x.iter().fold((0f32, 0f32), |(w, s), &x| (w + weight(x), s + weight(x) * x));
    let error = |step: f32, scale: f32, low_now: f32| -> f32 {
        let of = |&x: &f32| weight(x) * (scale * nearest(x - low, step, 0, most) as f32 + low_now - x).powi(2);
        x.iter().map(of).sum()
    };
    let first = (high - low) / most as f32;
    let mut best = (error(first, first, low), first, low);
    for number in 0..=20 {
        let step = (high - low) / (most as f32 - 1.0 + 0.1 * number as f32);
        let (mut sum_l, mut sum_ll, mut sum_xl) = (0f32, 0f32, 0f32);
        for &x in x {
            let (w, l) = (weight(x), nearest(x - low, step, 0, most) as f32);
            (sum_l, sum_ll, sum_xl) = (sum_l + w * l, sum_ll + w * l * l, sum_xl + w * l * x);
        }
        let determinant = sum_w * sum_ll - sum_l * sum_l;
        if determinant <= 0.0 {
            continue;
        }
        let mut fit = ((sum_w * sum_xl - sum_x * sum_l) / determinant, (sum_ll * sum_x - sum_l * sum_xl) / determinant);
        if fit.1 > 0.0 {
            fit = (sum_xl / sum_ll, 0.0);
        }
        let off = error(step, fit.0, fit.1);
        if off < best.0 && fit.0 > 0.0 {
            best = (off, fit.0, fit.1);
        }
    }
    (best.1, -best.2)
}

/// The scale s with which s·q, q from −`most` to `most` − 1, is nearest to some elements: elements weigh by their squares.
/// Several roundings are tried, each with its least-squares fit (`make_qx_quants`).
fn symmetric_scale(x: &[f32], most: i32) -> f32 {
    let extreme = extreme(x);
    let mut best = (0f32, 0f32);
    if extreme.abs() < 1e-15 {
        return 0.0;
    }
    for number in -9..=9 {
        let step = -extreme / (most as f32 + 0.1 * number as f32);
        let (mut sum_xl, mut sum_ll) = (0f32, 0f32);
        for &x in x {
            // Relative to the extreme: fourth powers of small elements would be 0.
            let (x, l) = (x / extreme, nearest(x, step, -most, most - 1) as f32);
            (sum_xl, sum_ll) = (sum_xl + x * x * x * l, sum_ll + x * x * l * l);
        }
        if sum_ll > 0.0 && sum_xl * sum_xl > best.0 * sum_ll {
            best = (sum_xl * sum_xl / sum_ll, extreme * sum_xl / sum_ll);
        }
    }
    best.1
}
