//! Tensors of any float type and layout, and memory with fences around it.

use half::{bf16, f16};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::Strided;
use kiln_runtime::RawBuffer;

/// Values of a tensor of four axes, and their layout in memory.
#[derive(Clone)]
pub struct Tensor {
    pub dtype: DType,
    pub shape: [usize; 4],
    /// Row-major, as rounded to the dtype.
    pub values: Vec<f64>,
    pub strides: [i64; 4],
    pub offset: i64,
    pub bytes: Vec<u8>,
}

/// The layout of a tensor in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    /// Row-major.
    Packed,
    /// The last two axes swapped.
    Transposed,
    /// [b, t, h, d] in memory.
    HeadsInner,
    /// Rows not contiguous, and backwards along the third axis.
    Reversed,
    /// Every second element of a longer row.
    Sparse,
}

pub fn noise(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64 * 4.0 - 2.0
    }
}

pub fn round(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F32 => f64::from(value as f32),
        DType::Bf16 => bf16::from_f64(value).to_f64(),
        DType::F16 => f16::from_f64(value).to_f64(),
        DType::Bool => f64::from(value != 0.0),
        _ => value,
    }
}

pub fn encode(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F32 => (value as f32).to_le_bytes().to_vec(),
        DType::Bf16 => bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::F16 => f16::from_f64(value).to_le_bytes().to_vec(),
        DType::F64 => value.to_le_bytes().to_vec(),
        DType::Bool => vec![u8::from(value != 0.0)],
        other => panic!("{other}"),
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes(bytes.try_into().unwrap())),
        DType::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).to_f64(),
        DType::F64 => f64::from_le_bytes(bytes.try_into().unwrap()),
        other => panic!("{other}"),
    }
}

impl Tensor {
    pub fn new(dtype: DType, shape: [usize; 4], layout: Layout, mut value: impl FnMut() -> f64) -> Tensor {
        let values: Vec<f64> = (0..shape.iter().product()).map(|_| round(dtype, value())).collect();
        let [b, h, t, d] = shape.map(|n| n as i64);
        let (strides, offset, elements) = match layout {
            Layout::Packed => ([h * t * d, t * d, d, 1], 0, b * h * t * d),
            Layout::Transposed => ([h * t * d, t * d, 1, t], 0, b * h * t * d),
            Layout::HeadsInner => ([t * h * d, d, h * d, 1], 5, b * h * t * d + 5),
            Layout::Reversed => ([h * t * (d + 3), t * (d + 3), -(d + 3), 1], (t - 1) * (d + 3), b * h * t * (d + 3)),
            Layout::Sparse => ([h * t * d * 2, t * d * 2, d * 2, 2], 1, b * h * t * d * 2 + 1),
        };
        let size = dtype.size_in_bits() / 8;
        let mut tensor =
            Tensor { dtype, shape, values, strides, offset, bytes: vec![0xff; elements.max(0) as usize * size] };
        for i in 0..tensor.values.len() {
            let at = tensor.at(i);
            tensor.bytes[at..at + size].copy_from_slice(&encode(dtype, tensor.values[i]));
        }
        tensor
    }

    /// The first byte of element `i` in row-major order.
    pub fn at(&self, i: usize) -> usize {
        let [_, h, t, d] = self.shape;
        let index = [i / (h * t * d), i / (t * d) % h, i / d % t, i % d];
        let element: i64 = self.offset + index.iter().zip(self.strides).map(|(&i, s)| i as i64 * s).sum::<i64>();
        element as usize * (self.dtype.size_in_bits() / 8)
    }

    pub fn read(&self) -> Vec<f64> {
        let size = self.dtype.size_in_bits() / 8;
        (0..self.shape.iter().product()).map(|i| decode(self.dtype, &self.bytes[self.at(i)..][..size])).collect()
    }

    pub fn strided(&self, buffer: usize) -> Strided {
        Strided {
            buffer,
            offset: Dim::from(self.offset),
            strides: self.strides.iter().map(|&s| Dim::from(s)).collect(),
        }
    }

    pub fn raw(&mut self) -> RawBuffer {
        RawBuffer { ptr: self.bytes.as_mut_ptr(), bytes: self.bytes.len() }
    }
}

/// Bytes that end where unreadable memory begins, or begin where it ends.
#[cfg(unix)]
pub fn fenced(bytes: &[u8], at_end: bool) -> RawBuffer {
    let page = 4096;
    let room = bytes.len().next_multiple_of(page).max(page);
    // SAFETY: a fresh mapping of a page, the room and a page; the first and the last are closed and never touched.
    unsafe {
        let (read, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        let start = libc::mmap(std::ptr::null_mut(), room + 2 * page, read, private, -1, 0).cast::<u8>();
        libc::mprotect(start.cast(), page, libc::PROT_NONE);
        libc::mprotect(start.add(page + room).cast(), page, libc::PROT_NONE);
        let ptr = start.add(page + if at_end { room - bytes.len() } else { 0 });
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr, bytes.len());
        RawBuffer { ptr, bytes: bytes.len() }
    }
}
