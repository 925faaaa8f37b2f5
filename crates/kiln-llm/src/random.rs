//! Random weights, gigabytes per second: numbers are drawn from a table of the normal distribution's quantiles in the
//! requested dtype, block by block and on all cores.

use crate::{Error, Result};
use half::{bf16, f16};
use kiln::runtime::{Buffer, HostMemory};
use kiln::{DType, Device, Element, Generator, Layout, Tensor};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Quantiles in the table; a power of 2, so that bits of a random number are an index.
const QUANTILES: usize = 4096;

/// Elements that are drawn at a time. What they are depends on the seed and the block's number, not on who draws them.
pub(crate) const BLOCK: usize = 16 << 10;

/// Normally distributed numbers of mean 0 and a deviation. The same seed gives the same ones on every machine, and in short
/// floats the same ones rounded.
pub(crate) fn normal(seed: u64, deviation: f64, shape: &[usize], dtype: DType, device: Device) -> Result<Tensor> {
    fn drawn<T: Element + Default>(seed: u64, shape: &[usize], of: impl Fn(f64) -> T) -> Result<Buffer> {
        let table = normal_table(of);
        filled(seed, Layout::contiguous(shape).elements(), BLOCK, |state, block| draw(state, &table, block))
    }
    let buffer = match dtype {
        DType::F32 => drawn(seed, shape, |quantile| (quantile * deviation) as f32)?,
        DType::F16 => drawn(seed, shape, |quantile| f16::from_f64(quantile * deviation))?,
        DType::Bf16 => drawn(seed, shape, |quantile| bf16::from_f64(quantile * deviation))?,
        _ => return Ok((Generator::new(seed).randn(shape, dtype, device)? * deviation)?),
    };
    tensor(buffer, shape, dtype, device)
}

/// The elements of a buffer on a device.
pub(crate) fn tensor(buffer: Buffer, shape: &[usize], dtype: DType, device: Device) -> Result<Tensor> {
    Ok(Tensor::from_buffer(buffer, Layout::contiguous(shape), dtype)?.to_device(device)?)
}

/// What `of` makes of quantiles of the normal distribution, all of them equally likely.
pub(crate) fn normal_table<T: Copy>(of: impl Fn(f64) -> T) -> [T; QUANTILES] {
    std::array::from_fn(|i| of(quantile((i as f64 + 0.5) / QUANTILES as f64)))
}

/// So many elements, of which `draw` makes `chunk` at a time from a random state.
pub(crate) fn filled<T: Element + Default>(
    seed: u64,
    elements: usize,
    chunk: usize,
    draw: impl Fn(u64, &mut [T]) + Sync,
) -> Result<Buffer> {
    let memory = |cause: kiln::runtime::Error| Error::Memory { cause: Box::new(cause) };
    let buffer = HostMemory::allocate(elements.saturating_mul(size_of::<T>())).map_err(memory)?;
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut block = vec![T::default(); chunk];
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(start) = number.checked_mul(chunk).filter(|&start| start < elements) else { return Ok(()) };
            draw(mixed(seed ^ mixed(number as u64 + 1)), &mut block);
            let drawn = &block[..chunk.min(elements - start)];
            buffer.write_from_host(start * size_of::<T>(), T::as_bytes(drawn)).map_err(memory)?;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(elements.div_ceil(16 * chunk).max(1));
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let joined = others.into_iter().map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        work().and(joined.fold(Ok(()), Result::and))
    })?;
    Ok(buffer)
}

/// Four elements of each random number.
pub(crate) fn draw<T: Element>(mut state: u64, table: &[T; QUANTILES], block: &mut [T]) {
    const MASK: u64 = QUANTILES as u64 - 1;
    for four in block.as_chunks_mut::<4>().0 {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bits = mixed(state);
        *four = [
            table[(bits & MASK) as usize],
            table[(bits >> 16 & MASK) as usize],
            table[(bits >> 32 & MASK) as usize],
            table[(bits >> 48 & MASK) as usize],
        ];
    }
}

/// SplitMix64's last step.
#[inline]
pub(crate) fn mixed(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Where the normal distribution reaches a probability, by Acklam's approximation (relative error below 1.2e-9).
fn quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969683028665376e1,
        2.209460984245205e2,
        -2.759285104469687e2,
        1.383_577_518_672_69e2,
        -3.066479806614716e1,
        2.506628277459239,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e1,
        1.615858368580409e2,
        -1.556989798598866e2,
        6.680131188771972e1,
        -1.328068155288572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-3,
        -3.223964580411365e-1,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 5] = [7.784695709041462e-3, 3.224671290700398e-1, 2.445134137142996, 3.754408661907416, 1.0];
    let polynomial = |factors: &[f64], x: f64| factors.iter().fold(0.0, |sum, factor| sum * x + factor);
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        polynomial(&C, q) / polynomial(&D, q)
    };
    if p < 0.02425 {
        tail(p)
    } else if p > 1.0 - 0.02425 {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        polynomial(&A, q * q) * q / polynomial(&B, q * q)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_normal_distribution() {
        for (p, expected) in [(0.5, 0.0), (0.975, 1.959963985), (0.001, -3.090232306), (0.841344746, 1.0)] {
            assert!((quantile(p) - expected).abs() < 1e-7, "{p}: {}", quantile(p));
        }
    }

    #[test]
    fn numbers_are_normal_and_their_own_by_seed_and_place() {
        let shape = [300, 1001];
        let made = |seed: u64| normal(seed, 0.5, &shape, DType::F32, Device::Cpu).unwrap().to_vec::<f32>().unwrap();
        let values = made(7);
        assert_eq!(values, made(7));
        assert_ne!(values, made(8));
        let count = values.len() as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / count;
        let fourth = values.iter().map(|&x| f64::from(x).powi(4)).sum::<f64>() / count / variance.powi(2);
        assert!(mean.abs() < 0.005 && (variance - 0.25).abs() < 0.005 && (fourth - 3.0).abs() < 0.1);
        // Neither neighbours nor the starts of blocks go together.
        for apart in [1, 2, 4, 1001, BLOCK] {
            let pairs = values.iter().zip(&values[apart..]);
            let together = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() / count / variance;
            assert!(together.abs() < 0.01, "{apart}: {together}");
        }
    }

    #[test]
    fn short_floats_are_the_same_numbers_rounded() {
        let long = normal(3, 0.02, &[200, 300], DType::F32, Device::Cpu).unwrap();
        for dtype in [DType::Bf16, DType::F16] {
            let short = normal(3, 0.02, &[200, 300], dtype, Device::Cpu).unwrap();
            assert_eq!(short.dtype(), dtype);
            let (short, long) = (short.to_dtype(DType::F32).unwrap(), long.to_dtype(dtype).unwrap());
            assert!(short.allclose(&long.to_dtype(DType::F32).unwrap(), 0.0, 0.0).unwrap());
        }
        assert_eq!(normal(3, 1.0, &[0, 4], DType::F32, Device::Cpu).unwrap().elements(), 0);
        assert_eq!(normal(3, 1.0, &[5], DType::F32, Device::Cpu).unwrap().elements(), 5);
    }
}
