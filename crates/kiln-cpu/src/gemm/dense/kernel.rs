//! Generated micro-kernels of dense convolution: a tile of accumulators, pixels × vectors of results, kept in registers over channels and
//! taps.
//!
//! ```text
//!  for each channel
//!     for each row of the image that some tap of some row of the tile reads
//!        for each tap that reads it: weights of all results (vectors, one after the other in memory)
//!           acc[pixel][v] += image[pixel under the tap] · weight[v]      for every pixel whose tap is inside the image
//! ```
//!
//! Pixels are read where they are, one at a time for all lanes: whatever the order of the image's axes, nothing is unfolded, padded or
//! packed. Taps that are outside the image are left out of the code, which therefore depends on where a tile touches the border, but not on
//! the size of images. Where pixels are words of two channels' bf16, so are weights, and one instruction multiplies and adds both. Groups
//! of few results with as many channels, side by side in memory, share a vector: each lane takes the channel of its own group.

use super::super::kernel::{Key, cached};
use super::super::spans::Span;
use crate::asm::{Alu, Args, Assembler, Cond, Gpr, KReg, MaskSize, Mem, VReg, Width, ops};
use crate::features::Isa;
use crate::memory::MemoryError;

/// Everything a kernel's code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::gemm) struct Shape {
    pub(super) isa: Isa,
    /// Vectors of results.
    pub(super) vectors: u8,
    /// Vectors of a panel of weights.
    pub(super) panel: u8,
    pub(super) y: Span,
    pub(super) x: Span,
    /// Bytes from one pixel to the next.
    pub(super) pixel: i32,
    /// Whether pixels and weights are words of two channels' bf16.
    pub(super) pairs: bool,
    /// Results of a group where lanes are those of several groups, each with its own channels; otherwise zero.
    pub(super) several: u8,
}

/// Strides and sizes of a call, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// From one channel to the next.
    pub channel: isize,
    /// From one row of pixels to the next.
    pub row: isize,
    /// Number of channels, at least one.
    pub channels: usize,
    /// From the results of one row of the tile to those of the next.
    pub out_row: usize,
    /// Not zero where the results are added to what the tile has.
    pub adds: usize,
}

/// `(image, weights, tile, layout)`: the pixel under the first tap of the tile's first place, which may be outside the image; weights
/// `[channel][tap][result]`; results `[pixel][result]`, a panel's width each.
pub(super) type DenseFn = unsafe extern "C" fn(*const f32, *const f32, *mut f32, *const Layout);

/// The kernel of a shape, generated on first use and kept for the life of the process.
pub(super) fn get(shape: Shape) -> Result<DenseFn, MemoryError> {
    let entry = cached(Key::Dense(shape), || generate(&shape))?;
    // SAFETY: the code follows the C convention with these arguments and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, DenseFn>(entry as *const u8) })
}

/// The most pixels of a tile of so many vectors: weights and two pixels need registers, too.
pub(super) fn most_pixels(isa: Isa, vectors: usize) -> usize {
    let registers = if isa == Isa::Avx512 { 32 } else { 16 };
    (registers - vectors - 2) / vectors
}

const IMAGE: Gpr = Gpr::RDI;
const WEIGHTS: Gpr = Gpr::RSI;
const TILE: Gpr = Gpr::RDX;
const LAYOUT: Gpr = Gpr::RCX;
const CHANNEL_STRIDE: Gpr = Gpr::R8;
const ROW_STRIDE: Gpr = Gpr::R9;
const CHANNELS: Gpr = Gpr::R10;
const AT: Gpr = Gpr::R11;
const HALF: KReg = KReg(1);

fn generate(shape: &Shape) -> Vec<u8> {
    let mut asm = Assembler::new();
    let width = if shape.isa == Isa::Avx512 { Width::V512 } else { Width::V256 };
    let (vectors, columns) = (usize::from(shape.vectors), usize::from(shape.x.places));
    let rows = usize::from(shape.y.places);
    let acc = |r: usize, c: usize, v: usize| VReg(((r * columns + c) * vectors + v) as u8);
    let first = rows * columns * vectors;
    let weight = |v: usize| VReg((first + v) as u8);
    // The lane that each lane's channel is in.
    let order = VReg(if shape.isa == Isa::Avx512 { 31 } else { 15 });
    let pixels = usize::from(order.0) + usize::from(shape.several == 0) - first - vectors;
    let pixel = |n: usize| VReg((first + vectors + n % pixels) as u8);
    let tap_bytes = usize::from(shape.panel) * width.bytes();
    let field = |at: usize| Mem::base(LAYOUT).offset(at as i32);
    let x_taps = usize::from(shape.x.taps);
    let multiply_add = if shape.pairs { ops::VDPBF16PS } else { ops::VFMADD231PS };

    let (fresh, ready) = (asm.label(), asm.label());
    asm.load(CHANNELS, field(std::mem::offset_of!(Layout, adds)), crate::asm::Size::Q);
    asm.test(CHANNELS, CHANNELS);
    asm.jcc(Cond::Equal, fresh);
    each_result(&mut asm, rows, columns, vectors, tap_bytes, width, |asm, [r, c, v], at| {
        asm.rm(ops::VMOVUPS, width, acc(r, c, v), at);
    });
    asm.jmp(ready);
    asm.bind(fresh);
    for r in 0..first {
        asm.rvm(ops::VPXOR, if r < 16 { Width::V128 } else { width }, VReg(r as u8), VReg(r as u8), VReg(r as u8));
    }
    asm.bind(ready);
    asm.load(CHANNEL_STRIDE, field(std::mem::offset_of!(Layout, channel)), crate::asm::Size::Q);
    asm.load(ROW_STRIDE, field(std::mem::offset_of!(Layout, row)), crate::asm::Size::Q);
    asm.load(CHANNELS, field(std::mem::offset_of!(Layout, channels)), crate::asm::Size::Q);
    let lanes = |lane: &dyn Fn(u32) -> u32| -> Vec<u8> {
        (0..width.lanes(4) as u32).flat_map(|n| lane(n).to_le_bytes()).collect()
    };
    if shape.several > 0 {
        let words = if shape.pairs { 2 } else { 1 };
        let first = asm.constant(&lanes(&|lane| (lane - lane % u32::from(shape.several)) / words));
        asm.rm(ops::VMOVUPS, width, order, first);
        if shape.pairs {
            // Half a vector has the channels of all lanes.
            asm.mov_imm(AT, 0xff);
            asm.kmov_from(MaskSize::D, HALF, AT);
        }
    }
    let channel = asm.label();
    asm.align(32);
    asm.bind(channel);
    asm.mov(AT, IMAGE);
    let (mut now, mut used) = (0, 0);
    for (row, readers) in rows_read(&shape.y) {
        for _ in now..row {
            asm.alu(Alu::Add, AT, ROW_STRIDE);
        }
        now = row;
        for kx in 0..x_taps {
            for &(r, ky) in &readers {
                let read: Vec<usize> = (0..columns).filter(|&c| shape.x.has(c, kx)).collect();
                if read.is_empty() {
                    continue;
                }
                let tap = ((ky * x_taps + kx) * tap_bytes) as i32;
                for v in 0..vectors {
                    asm.rm(ops::VMOVUPS, width, weight(v), Mem::base(WEIGHTS).offset(tap + (v * width.bytes()) as i32));
                }
                for c in read {
                    let at = Mem::base(AT).offset(shape.x.offset(c, kx) as i32 * shape.pixel);
                    match shape.several {
                        0 => asm.rm(ops::VBROADCASTSS, width, pixel(used), at),
                        _ if shape.pairs => {
                            asm.vector(ops::VMOVUPS, width, Args::rm(pixel(used), at).mask(HALF).zero());
                            asm.rvm(ops::VPERMPS, width, pixel(used), order, pixel(used));
                        }
                        _ => asm.rvm(ops::VPERMPS, width, pixel(used), order, at),
                    }
                    for v in 0..vectors {
                        asm.rvm(multiply_add, width, acc(r, c, v), pixel(used), weight(v));
                    }
                    used += 1;
                }
            }
        }
    }
    if shape.several > 0 {
        let one = asm.constant(&lanes(&|_| 1));
        asm.rvm(ops::VPADDD, width, order, order, one);
    }
    asm.alu(Alu::Add, IMAGE, CHANNEL_STRIDE);
    asm.alu_imm(Alu::Add, WEIGHTS, (usize::from(shape.y.taps) * x_taps * tap_bytes) as i32);
    asm.dec(CHANNELS);
    asm.jcc(Cond::NotEqual, channel);
    each_result(&mut asm, rows, columns, vectors, tap_bytes, width, |asm, [r, c, v], at| {
        asm.mr(ops::VMOVUPS_ST, width, at, acc(r, c, v));
    });
    asm.vzeroupper();
    asm.ret();
    asm.finish()
}

/// Goes over the tile in memory.
fn each_result(
    asm: &mut Assembler,
    rows: usize,
    columns: usize,
    vectors: usize,
    pixel: usize,
    width: Width,
    mut f: impl FnMut(&mut Assembler, [usize; 3], Mem),
) {
    asm.mov(AT, TILE);
    for r in 0..rows {
        for c in 0..columns {
            for v in 0..vectors {
                f(asm, [r, c, v], Mem::base(AT).offset((c * pixel + v * width.bytes()) as i32));
            }
        }
        if r + 1 < rows {
            asm.alu(Alu::Add, AT, Mem::base(LAYOUT).offset(std::mem::offset_of!(Layout, out_row) as i32));
        }
    }
}

/// The rows of the image that a tile reads, in order, with the row of the tile and the tap that read each.
fn rows_read(y: &Span) -> Vec<(usize, Vec<(usize, usize)>)> {
    let mut found = std::collections::BTreeMap::<usize, Vec<(usize, usize)>>::new();
    for place in 0..usize::from(y.places) {
        for tap in (0..usize::from(y.taps)).filter(|&tap| y.has(place, tap)) {
            found.entry(y.offset(place, tap)).or_default().push((place, tap));
        }
    }
    found.into_iter().collect()
}
