//! Generated micro-kernels of direct convolution: a tile of accumulators, results × rows × vectors of pixels, kept in registers over all
//! channels and taps.
//!
//! ```text
//!  for each channel
//!     for each vector of pixels that some tap of some row of the tile reads      (planes; see `planes`)
//!        acc[o][r][v] += weight[tap][o] · pixels[v]      for every tap and row that read it
//! ```
//!
//! A row of the tile reads what the row before reads with its next tap: the pixels are loaded once for both. Weights are kept in registers,
//! all of them or those of one column of taps after the other, where there is room. Planes of
//! one *phase* hold every so-manieth pixel, so that neighbouring lanes are neighbours in memory whatever the stride is. The code depends
//! on taps, strides and dilations alone, not on the size of images.

use super::super::kernel::{Key, cached};
use crate::asm::{Alu, Args, Assembler, Cond, Gpr, Mem, Size, VReg, Width, ops};
use crate::features::Isa;
use crate::memory::MemoryError;

/// Taps along one axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Taps {
    pub count: u16,
    /// Pixels from one result to the next.
    pub stride: u16,
    /// Pixels from one tap to the next.
    pub dilation: u16,
}

impl Taps {
    /// The phase of a tap, and where it is in the planes of the phase.
    pub fn place(&self, tap: usize) -> (usize, usize) {
        let at = tap * usize::from(self.dilation);
        let phases = self.phases();
        let phase = phases.iter().position(|&phase| phase == at % usize::from(self.stride)).unwrap_or(0);
        (phase, at / usize::from(self.stride))
    }

    /// The first pixel of each phase that some tap reads.
    pub fn phases(&self) -> Vec<usize> {
        let mut phases: Vec<usize> = Vec::new();
        for tap in 0..usize::from(self.count) {
            let phase = tap * usize::from(self.dilation) % usize::from(self.stride);
            if !phases.contains(&phase) {
                phases.push(phase);
            }
        }
        phases
    }

    /// Elements of a phase beyond the results that taps reach.
    pub fn reach(&self) -> usize {
        usize::from(self.count).saturating_sub(1) * usize::from(self.dilation) / usize::from(self.stride)
    }
}

/// Everything a kernel's code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::gemm) struct Shape {
    pub(super) isa: Isa,
    pub(super) y: Taps,
    pub(super) x: Taps,
    /// Results (output channels) of a tile.
    pub(super) outputs: usize,
    /// Rows of pixels of a tile.
    pub(super) rows: usize,
    /// Vectors in a row of a tile.
    pub(super) vectors: usize,
}

/// Strides and sizes of a call, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// From one channel's planes to the next.
    pub channel: usize,
    /// From one phase's plane to the next.
    pub plane: usize,
    /// From one row of a plane to the next.
    pub row: usize,
    /// Number of channels, at least one.
    pub channels: usize,
    /// From one output's tile to the next.
    pub out: usize,
    /// From one row of a tile to the next.
    pub out_row: usize,
}

/// `(planes, weights, tile, layout)`: planes from the tile's first pixel on, weights `[channel][tap][output]`.
pub(super) type DirectFn = unsafe extern "C" fn(*const f32, *const f32, *mut f32, *const Layout);

/// The kernel of a shape, generated on first use and kept for the life of the process.
pub(super) fn get(shape: Shape) -> Result<DirectFn, MemoryError> {
    let entry = cached(Key::Direct(shape), || generate(&shape))?;
    // SAFETY: the code follows the C convention with these arguments and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, DirectFn>(entry as *const u8) })
}

/// Vector registers of a target.
pub(super) fn registers(isa: Isa) -> usize {
    if isa == Isa::Avx512 { 32 } else { 16 }
}

/// Lanes of a vector.
pub(super) fn lanes(isa: Isa) -> usize {
    if isa == Isa::Avx512 { 16 } else { 8 }
}

impl Shape {
    fn taps(&self) -> usize {
        usize::from(self.y.count) * usize::from(self.x.count)
    }

    fn accumulators(&self) -> usize {
        self.outputs * self.rows * self.vectors
    }

    /// Weights that stay in registers over the whole of a channel, where there is room for all of them.
    fn keeps_weights(&self) -> bool {
        self.accumulators() + self.vectors + self.taps() * self.outputs <= registers(self.isa)
    }

    /// Weights of one column of taps stay in registers while its rows pass, where there is room for these.
    fn keeps_column(&self) -> bool {
        let column = usize::from(self.y.count) * self.outputs;
        !self.keeps_weights() && self.rows > 1 && self.accumulators() + self.vectors + column <= registers(self.isa)
    }

    /// Whether a multiplication reads a weight from memory for all lanes.
    fn broadcasts(&self) -> bool {
        self.isa == Isa::Avx512 && self.vectors == 1
    }

    /// Whether the registers suffice.
    pub fn fits(&self) -> bool {
        let weight = usize::from(!self.broadcasts());
        self.accumulators() + self.vectors + weight <= registers(self.isa)
    }
}

/// A vector of pixels of one channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// Zero, or the tap along x where its weights are kept.
    kept: usize,
    phase: usize,
    row: usize,
    column: usize,
}

const PLANES: Gpr = Gpr::RDI;
const WEIGHTS: Gpr = Gpr::RSI;
const TILE: Gpr = Gpr::RDX;
const LAYOUT: Gpr = Gpr::RCX;
const PLANE_STRIDE: Gpr = Gpr::R8;
const ROW_STRIDE: Gpr = Gpr::R9;
const CHANNELS: Gpr = Gpr::R10;
const AT: Gpr = Gpr::R11;
const PLANE: Gpr = Gpr::RAX;

fn generate(shape: &Shape) -> Vec<u8> {
    let mut asm = Assembler::new();
    let width = if shape.isa == Isa::Avx512 { Width::V512 } else { Width::V256 };
    let acc = |o: usize, r: usize, v: usize| VReg(((o * shape.rows + r) * shape.vectors + v) as u8);
    let first = shape.accumulators();
    let pixels = |v: usize| VReg((first + v) as u8);
    let weight = |n: usize| VReg((first + shape.vectors + n) as u8);
    let weight_at = |tap: usize, o: usize| Mem::base(WEIGHTS).offset(((tap * shape.outputs + o) * 4) as i32);
    let field = |at: usize| Mem::base(LAYOUT).offset(at as i32);
    for r in 0..first {
        asm.rvm(ops::VPXOR, if r < 16 { Width::V128 } else { width }, VReg(r as u8), VReg(r as u8), VReg(r as u8));
    }
    asm.load(PLANE_STRIDE, field(std::mem::offset_of!(Layout, plane)), Size::Q);
    asm.load(ROW_STRIDE, field(std::mem::offset_of!(Layout, row)), Size::Q);
    asm.load(CHANNELS, field(std::mem::offset_of!(Layout, channels)), Size::Q);
    let channel = asm.label();
    asm.align(32);
    asm.bind(channel);
    if shape.keeps_weights() {
        for tap in 0..shape.taps() {
            for o in 0..shape.outputs {
                asm.rm(ops::VBROADCASTSS, width, weight(tap * shape.outputs + o), weight_at(tap, o));
            }
        }
    }
    asm.mov(PLANE, PLANES);
    asm.mov(AT, PLANES);
    let mut now = Place { kept: 0, phase: 0, row: 0, column: 0 };
    let mut loaded = None;
    for (place, readers) in places(shape) {
        if shape.keeps_column() && loaded != Some(place.kept) {
            for ky in 0..usize::from(shape.y.count) {
                let tap = ky * usize::from(shape.x.count) + place.kept;
                for o in 0..shape.outputs {
                    asm.rm(ops::VBROADCASTSS, width, weight(ky * shape.outputs + o), weight_at(tap, o));
                }
            }
            loaded = Some(place.kept);
            asm.mov(PLANE, PLANES);
            asm.mov(AT, PLANES);
            now = Place { kept: place.kept, phase: 0, row: 0, column: 0 };
        }
        if place.phase != now.phase {
            for _ in now.phase..place.phase {
                asm.alu(Alu::Add, PLANE, PLANE_STRIDE);
            }
            asm.mov(AT, PLANE);
            now = Place { row: 0, ..place };
        }
        for _ in now.row..place.row {
            asm.alu(Alu::Add, AT, ROW_STRIDE);
        }
        now = place;
        for v in 0..shape.vectors {
            let at = Mem::base(AT).offset((place.column * 4 + v * width.bytes()) as i32);
            asm.rm(ops::VMOVUPS, width, pixels(v), at);
        }
        for (tap, row) in readers {
            for o in 0..shape.outputs {
                if shape.keeps_weights() {
                    for v in 0..shape.vectors {
                        asm.rvm(ops::VFMADD231PS, width, acc(o, row, v), weight(tap * shape.outputs + o), pixels(v));
                    }
                } else if shape.keeps_column() {
                    let kept = weight(tap / usize::from(shape.x.count) * shape.outputs + o);
                    for v in 0..shape.vectors {
                        asm.rvm(ops::VFMADD231PS, width, acc(o, row, v), kept, pixels(v));
                    }
                } else if shape.broadcasts() {
                    let args = Args::rvm(acc(o, row, 0), pixels(0), weight_at(tap, o)).broadcast();
                    asm.vector(ops::VFMADD231PS, width, args);
                } else {
                    asm.rm(ops::VBROADCASTSS, width, weight(0), weight_at(tap, o));
                    for v in 0..shape.vectors {
                        asm.rvm(ops::VFMADD231PS, width, acc(o, row, v), weight(0), pixels(v));
                    }
                }
            }
        }
    }
    asm.alu(Alu::Add, PLANES, field(std::mem::offset_of!(Layout, channel)));
    asm.alu_imm(Alu::Add, WEIGHTS, (shape.taps() * shape.outputs * 4) as i32);
    asm.dec(CHANNELS);
    asm.jcc(Cond::NotEqual, channel);
    for o in 0..shape.outputs {
        asm.mov(AT, TILE);
        for r in 0..shape.rows {
            for v in 0..shape.vectors {
                asm.mr(ops::VMOVUPS_ST, width, Mem::base(AT).offset((v * width.bytes()) as i32), acc(o, r, v));
            }
            if r + 1 < shape.rows {
                asm.alu(Alu::Add, AT, field(std::mem::offset_of!(Layout, out_row)));
            }
        }
        if o + 1 < shape.outputs {
            asm.alu(Alu::Add, TILE, field(std::mem::offset_of!(Layout, out)));
        }
    }
    asm.vzeroupper();
    asm.ret();
    asm.finish()
}

/// Every vector of pixels that a tile reads of a channel, in the order of memory, with the taps and rows that read it.
fn places(shape: &Shape) -> Vec<(Place, Vec<(usize, usize)>)> {
    let mut found = std::collections::BTreeMap::<Place, Vec<(usize, usize)>>::new();
    let phases = shape.x.phases().len();
    for ky in 0..usize::from(shape.y.count) {
        for kx in 0..usize::from(shape.x.count) {
            let ((phase_y, row), (phase_x, column)) = (shape.y.place(ky), shape.x.place(kx));
            for r in 0..shape.rows {
                let kept = if shape.keeps_column() { kx } else { 0 };
                let place = Place { kept, phase: phase_y * phases + phase_x, row: row + r, column };
                found.entry(place).or_default().push((ky * usize::from(shape.x.count) + kx, r));
            }
        }
    }
    found.into_iter().collect()
}
