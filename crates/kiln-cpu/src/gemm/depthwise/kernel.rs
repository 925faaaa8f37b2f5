//! Generated micro-kernels of depthwise convolution: a row of accumulators, one a place, kept in registers over all taps; lanes are channels.
//!
//! ```text
//!  for each line of results
//!     for each row of taps that is inside the image
//!        weights of the row, a vector a tap
//!        for each pixel that some tap over some place reads
//!           acc[place] += pixel · weight[tap]      for every place and tap that read it
//! ```
//!
//! Taps beside the image are left out of the code, those above and below it of the lines, so that padding is neither stored nor multiplied.

use super::super::kernel::{Key, cached};
use super::super::spans::Span;
use crate::asm::{Alu, Assembler, Cond, Gpr, Mem, Size, VReg, Width, ops};
use crate::features::Isa;
use crate::memory::MemoryError;
use kiln_ir::DType;

/// Everything a kernel's code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::gemm) struct Shape {
    pub(super) isa: Isa,
    /// Places of a line.
    pub(super) x: Span,
    /// Bytes from one pixel to the next.
    pub(super) pixel: i32,
    /// F32, Bf16 or F16.
    pub(super) dtype: DType,
    /// Bytes from the results of one place to those of the next.
    pub(super) out: i32,
}

/// One line of results, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// From the image's first row to the one under the first tap inside.
    pub image: isize,
    /// From the weights of the first row of taps to those of the first inside.
    pub weights: usize,
    /// Rows of taps inside.
    pub taps: usize,
}

/// Strides and sizes of a call, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// From the pixels under one row of taps to those under the next.
    pub tap_row: isize,
    /// Lines, at least one.
    pub lines: usize,
    /// From one line of results to the next.
    pub out_row: usize,
}

/// `(image, weights, results, lines, layout)`: the pixel under the first tap of the first place, in the image's first row; weights
/// `[tap][lane]`; results `[line][place][lane]`.
pub(super) type DepthwiseFn = unsafe extern "C" fn(*const u8, *const f32, *mut f32, *const Line, *const Layout);

/// The kernel of a shape, generated on first use and kept for the life of the process.
pub(super) fn get(shape: Shape) -> Result<DepthwiseFn, MemoryError> {
    let entry = cached(Key::Depthwise(shape), || generate(&shape))?;
    // SAFETY: the code follows the C convention with these arguments and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, DepthwiseFn>(entry as *const u8) })
}

fn registers(isa: Isa) -> usize {
    if isa == Isa::Avx512 { 32 } else { 16 }
}

/// Pixels in registers at a time.
const PIXELS: usize = 2;
/// Accumulators that are enough to hide the latency of a multiplication.
const ENOUGH: usize = 7;

/// Whether the weights of a row of taps stay in registers.
fn keeps_weights(isa: Isa, taps: usize) -> bool {
    taps + ENOUGH + PIXELS <= registers(isa)
}

/// The most places of a line's tile.
pub(super) fn most_places(isa: Isa, taps: usize) -> usize {
    registers(isa) - PIXELS - if keeps_weights(isa, taps) { taps } else { 0 }
}

const IMAGE: Gpr = Gpr::RDI;
const WEIGHTS: Gpr = Gpr::RSI;
const RESULTS: Gpr = Gpr::RDX;
const LINES: Gpr = Gpr::RCX;
const LAYOUT: Gpr = Gpr::R8;
const TAPS: Gpr = Gpr::R9;
const COUNT: Gpr = Gpr::R10;
const WEIGHT_AT: Gpr = Gpr::R11;
const AT: Gpr = Gpr::RAX;

fn generate(shape: &Shape) -> Vec<u8> {
    let mut asm = Assembler::new();
    let width = if shape.isa == Isa::Avx512 { Width::V512 } else { Width::V256 };
    let (places, taps) = (usize::from(shape.x.places), usize::from(shape.x.taps));
    let keeps = keeps_weights(shape.isa, taps);
    let acc = |place: usize| VReg(place as u8);
    let weight = |tap: usize| VReg((places + tap) as u8);
    let first_pixel = places + if keeps { taps } else { 0 };
    let pixels = registers(shape.isa) - first_pixel;
    let weight_at = |tap: usize| Mem::base(WEIGHT_AT).offset((tap * width.bytes()) as i32);
    let line = |at: usize| Mem::base(LINES).offset(at as i32);
    let field = |at: usize| Mem::base(LAYOUT).offset(at as i32);

    asm.load(COUNT, field(std::mem::offset_of!(Layout, lines)), Size::Q);
    let (next_line, next_taps, done) = (asm.label(), asm.label(), asm.label());
    asm.align(32);
    asm.bind(next_line);
    for r in 0..places {
        let width = if r < 16 { Width::V128 } else { width };
        asm.rvm(ops::VPXOR, width, acc(r), acc(r), acc(r));
    }
    asm.load(AT, line(std::mem::offset_of!(Line, image)), Size::Q);
    asm.alu(Alu::Add, AT, IMAGE);
    asm.load(WEIGHT_AT, line(std::mem::offset_of!(Line, weights)), Size::Q);
    asm.alu(Alu::Add, WEIGHT_AT, WEIGHTS);
    asm.load(TAPS, line(std::mem::offset_of!(Line, taps)), Size::Q);
    asm.test(TAPS, TAPS);
    asm.jcc(Cond::Equal, done);
    asm.align(32);
    asm.bind(next_taps);
    if keeps {
        for tap in 0..taps {
            asm.rm(ops::VMOVUPS, width, weight(tap), weight_at(tap));
        }
    }
    for (number, (offset, readers)) in pixels_read(&shape.x).into_iter().enumerate() {
        let at = Mem::base(AT).offset(offset as i32 * shape.pixel);
        if let (true, &[(place, tap)], DType::F32) = (keeps, &readers[..], shape.dtype) {
            asm.vector(ops::VFMADD231PS, width, crate::asm::Args::rvm(acc(place), weight(tap), at));
            continue;
        }
        let pixel = VReg((first_pixel + number % pixels) as u8);
        match shape.dtype {
            DType::Bf16 => {
                asm.rm(ops::VPMOVZXWD, width, pixel, at);
                asm.rmi(ops::VPSLLD_I, width, pixel, pixel, 16);
            }
            DType::F16 => asm.rm(ops::VCVTPH2PS, width, pixel, at),
            _ => asm.rm(ops::VMOVUPS, width, pixel, at),
        }
        for (place, tap) in readers {
            match keeps {
                true => asm.rvm(ops::VFMADD231PS, width, acc(place), weight(tap), pixel),
                false => asm.vector(ops::VFMADD231PS, width, crate::asm::Args::rvm(acc(place), pixel, weight_at(tap))),
            }
        }
    }
    asm.alu(Alu::Add, AT, field(std::mem::offset_of!(Layout, tap_row)));
    asm.alu_imm(Alu::Add, WEIGHT_AT, (taps * width.bytes()) as i32);
    asm.dec(TAPS);
    asm.jcc(Cond::NotEqual, next_taps);
    asm.bind(done);
    for place in 0..places {
        asm.mr(ops::VMOVUPS_ST, width, Mem::base(RESULTS).offset(place as i32 * shape.out), acc(place));
    }
    asm.alu(Alu::Add, RESULTS, field(std::mem::offset_of!(Layout, out_row)));
    asm.alu_imm(Alu::Add, LINES, size_of::<Line>() as i32);
    asm.dec(COUNT);
    asm.jcc(Cond::NotEqual, next_line);
    asm.vzeroupper();
    asm.ret();
    asm.finish()
}

/// The pixels of a row that a tile reads, in order, with the places and taps that read each.
fn pixels_read(x: &Span) -> Vec<(usize, Vec<(usize, usize)>)> {
    let mut found = std::collections::BTreeMap::<usize, Vec<(usize, usize)>>::new();
    for place in 0..usize::from(x.places) {
        for tap in (0..usize::from(x.taps)).filter(|&tap| x.has(place, tap)) {
            found.entry(x.offset(place, tap)).or_default().push((place, tap));
        }
    }
    found.into_iter().collect()
}
