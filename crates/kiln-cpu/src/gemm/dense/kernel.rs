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
//!
//! Where the channels of a pixel follow each other in memory, the loop over channels is inside those over taps: a cache line of a pixel is read
//! to its end, and the panels are weights in the order of such images, `[tap][channel][result]`.

use super::super::kernel::{Key, cached};
use super::super::spans::Span;
use crate::asm::{Alu, Args, Assembler, Cond, Gpr, KReg, MaskSize, Mem, Size, VReg, Width, ops};
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
    /// Words of a pixel that the channels of those groups are.
    pub(super) read: u8,
    /// Bytes from one row of pixels to the next where the loop over channels is the innermost.
    pub(super) row: Option<i32>,
    /// Bytes from the results of one pixel to those of the next.
    pub(super) out: i32,
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
    /// Where channels are the innermost loop: the weights of all channels of a tap, and of those that a call leaves out.
    pub tap_bytes: usize,
    pub tap_rest: usize,
}

/// `(image, weights, tile, layout)`: the pixel under the first tap of the tile's first place, which may be outside the image; weights
/// `[channel][tap][result]`, or `[tap][channel][result]`; results `[pixel][result]`.
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
const COUNT: Gpr = Gpr::RAX;
/// Shared by kernels with either order of loops.
const SKIPPED: Gpr = CHANNEL_STRIDE;
const REST: Gpr = ROW_STRIDE;
const SOME: KReg = KReg(1);

/// Registers and the assembler while one kernel is generated.
struct Generator<'a> {
    shape: &'a Shape,
    asm: Assembler,
    width: Width,
    rows: usize,
    columns: usize,
    vectors: usize,
    /// The lane that each lane's channel is in.
    order: VReg,
    /// Pixels that were loaded.
    used: usize,
}

fn generate(shape: &Shape) -> Vec<u8> {
    let mut g = Generator {
        shape,
        asm: Assembler::new(),
        width: if shape.isa == Isa::Avx512 { Width::V512 } else { Width::V256 },
        rows: shape.y.places.into(),
        columns: shape.x.places.into(),
        vectors: shape.vectors.into(),
        order: VReg(if shape.isa == Isa::Avx512 { 31 } else { 15 }),
        used: 0,
    };
    g.begin();
    match shape.row {
        Some(row) => g.taps_and_channels(row),
        None => g.channels_and_taps(),
    }
    g.each_result(|g, [r, c, v], at| g.asm.mr(ops::VMOVUPS_ST, g.width, at, g.acc(r, c, v)));
    g.asm.vzeroupper();
    g.asm.ret();
    g.asm.finish()
}

fn field(at: usize) -> Mem {
    Mem::base(LAYOUT).offset(at as i32)
}

impl Generator<'_> {
    fn acc(&self, r: usize, c: usize, v: usize) -> VReg {
        VReg(((r * self.columns + c) * self.vectors + v) as u8)
    }

    /// The first register after the accumulators.
    fn first(&self) -> usize {
        self.rows * self.columns * self.vectors
    }

    fn weight(&self, v: usize) -> VReg {
        VReg((self.first() + v) as u8)
    }

    /// The next register for a pixel.
    fn pixel(&mut self) -> VReg {
        let first = self.first() + self.vectors;
        let count = usize::from(self.order.0) + usize::from(self.shape.several == 0) - first;
        self.used += 1;
        VReg((first + self.used % count) as u8)
    }

    /// Bytes of a panel's weights of one tap.
    fn tap_bytes(&self) -> usize {
        usize::from(self.shape.panel) * self.width.bytes()
    }

    /// Whether fewer words than a vector has are those of all of its groups: with pairs half of them, and at the end of the channels.
    fn reads_some(&self) -> bool {
        usize::from(self.shape.read) < self.width.lanes(4)
    }

    /// Sets the accumulators to zero or to what the tile has, and loads what does not change.
    fn begin(&mut self) {
        let (fresh, ready) = (self.asm.label(), self.asm.label());
        self.asm.load(CHANNELS, field(std::mem::offset_of!(Layout, adds)), Size::Q);
        self.asm.test(CHANNELS, CHANNELS);
        self.asm.jcc(Cond::Equal, fresh);
        self.each_result(|g, [r, c, v], at| g.asm.rm(ops::VMOVUPS, g.width, g.acc(r, c, v), at));
        self.asm.jmp(ready);
        self.asm.bind(fresh);
        for r in 0..self.first() {
            let zero = if r < 16 { Width::V128 } else { self.width };
            self.asm.rvm(ops::VPXOR, zero, VReg(r as u8), VReg(r as u8), VReg(r as u8));
        }
        self.asm.bind(ready);
        self.asm.load(CHANNEL_STRIDE, field(std::mem::offset_of!(Layout, channel)), Size::Q);
        self.asm.load(ROW_STRIDE, field(std::mem::offset_of!(Layout, row)), Size::Q);
        self.asm.load(CHANNELS, field(std::mem::offset_of!(Layout, channels)), Size::Q);
        if self.shape.several > 0 {
            let words = if self.shape.pairs { 2 } else { 1 };
            let first = self.lanes(|lane| (lane - lane % u32::from(self.shape.several)) / words);
            let first = self.asm.constant(&first);
            self.asm.rm(ops::VMOVUPS, self.width, self.order, first);
            if self.reads_some() {
                self.asm.mov_imm(AT, (1 << self.shape.read) - 1);
                self.asm.kmov_from(MaskSize::D, SOME, AT);
            }
        }
    }

    /// A number for each lane.
    fn lanes(&self, lane: impl Fn(u32) -> u32) -> Vec<u8> {
        (0..self.width.lanes(4) as u32).flat_map(|n| lane(n).to_le_bytes()).collect()
    }

    /// For each channel all taps.
    fn channels_and_taps(&mut self) {
        let (x_taps, tap_bytes) = (usize::from(self.shape.x.taps), self.tap_bytes());
        let channel = self.asm.label();
        self.asm.align(32);
        self.asm.bind(channel);
        self.asm.mov(AT, IMAGE);
        let mut now = 0;
        for (row, readers) in rows_read(&self.shape.y) {
            for _ in now..row {
                self.asm.alu(Alu::Add, AT, ROW_STRIDE);
            }
            now = row;
            for (kx, &(r, ky)) in (0..x_taps).flat_map(|kx| readers.iter().map(move |reader| (kx, reader))) {
                let read: Vec<usize> = (0..self.columns).filter(|&c| self.shape.x.has(c, kx)).collect();
                if read.is_empty() {
                    continue;
                }
                self.load_weights(((ky * x_taps + kx) * tap_bytes) as i32);
                for c in read {
                    self.multiply(r, c, Mem::base(AT).offset(self.shape.x.offset(c, kx) as i32 * self.shape.pixel));
                }
            }
        }
        if self.shape.several > 0 {
            let one = self.lanes(|_| 1);
            let one = self.asm.constant(&one);
            self.asm.rvm(ops::VPADDD, self.width, self.order, self.order, one);
        }
        self.asm.alu(Alu::Add, IMAGE, CHANNEL_STRIDE);
        self.asm.alu_imm(Alu::Add, WEIGHTS, (usize::from(self.shape.y.taps) * x_taps * tap_bytes) as i32);
        self.asm.dec(CHANNELS);
        self.asm.jcc(Cond::NotEqual, channel);
    }

    /// For each tap all channels.
    fn taps_and_channels(&mut self, row: i32) {
        let (y, x, tap_bytes) = (self.shape.y, self.shape.x, self.tap_bytes());
        // What is skipped of the weights: a tap that no place has, and the channels of other parts.
        self.asm.load(REST, field(std::mem::offset_of!(Layout, tap_rest)), Size::Q);
        self.asm.load(SKIPPED, field(std::mem::offset_of!(Layout, tap_bytes)), Size::Q);
        for (ky, kx) in (0..usize::from(y.taps)).flat_map(|ky| (0..usize::from(x.taps)).map(move |kx| (ky, kx))) {
            let places = (0..self.rows).flat_map(|r| (0..self.columns).map(move |c| (r, c)));
            let read: Vec<_> = places.filter(|&(r, c)| y.has(r, ky) && x.has(c, kx)).collect();
            if read.is_empty() {
                self.asm.alu(Alu::Add, WEIGHTS, SKIPPED);
                continue;
            }
            let channel = self.asm.label();
            self.asm.mov(AT, IMAGE);
            self.asm.mov(COUNT, CHANNELS);
            self.asm.align(32);
            self.asm.bind(channel);
            self.load_weights(0);
            for (r, c) in read {
                let at = y.offset(r, ky) as i32 * row + x.offset(c, kx) as i32 * self.shape.pixel;
                self.multiply(r, c, Mem::base(AT).offset(at));
            }
            self.asm.alu_imm(Alu::Add, AT, size_of::<f32>() as i32);
            self.asm.alu_imm(Alu::Add, WEIGHTS, tap_bytes as i32);
            self.asm.dec(COUNT);
            self.asm.jcc(Cond::NotEqual, channel);
            self.asm.alu(Alu::Add, WEIGHTS, REST);
        }
    }

    /// Loads the weights of a tap.
    fn load_weights(&mut self, offset: i32) {
        for v in 0..self.vectors {
            let at = Mem::base(WEIGHTS).offset(offset + (v * self.width.bytes()) as i32);
            self.asm.rm(ops::VMOVUPS, self.width, self.weight(v), at);
        }
    }

    /// Multiplies a pixel by the weights of a tap, for the place that is so far from it.
    fn multiply(&mut self, r: usize, c: usize, at: Mem) {
        let (pixel, width) = (self.pixel(), self.width);
        let multiply_add = if self.shape.pairs { ops::VDPBF16PS } else { ops::VFMADD231PS };
        if self.shape.several == 0 && self.vectors == 1 && self.shape.isa == Isa::Avx512 {
            let args = Args::rvm(self.acc(r, c, 0), self.weight(0), at).broadcast();
            return self.asm.vector(multiply_add, width, args);
        }
        match self.shape.several {
            0 => self.asm.rm(ops::VBROADCASTSS, width, pixel, at),
            _ if self.reads_some() => {
                self.asm.vector(ops::VMOVUPS, width, Args::rm(pixel, at).mask(SOME).zero());
                self.asm.rvm(ops::VPERMPS, width, pixel, self.order, pixel);
            }
            _ => self.asm.rvm(ops::VPERMPS, width, pixel, self.order, at),
        }
        for v in 0..self.vectors {
            self.asm.rvm(multiply_add, width, self.acc(r, c, v), pixel, self.weight(v));
        }
    }

    /// Goes over the tile in memory.
    fn each_result(&mut self, mut f: impl FnMut(&mut Self, [usize; 3], Mem)) {
        self.asm.mov(AT, TILE);
        for r in 0..self.rows {
            for c in 0..self.columns {
                for v in 0..self.vectors {
                    let at = Mem::base(AT).offset(c as i32 * self.shape.out + (v * self.width.bytes()) as i32);
                    f(self, [r, c, v], at);
                }
            }
            if r + 1 < self.rows {
                self.asm.alu(Alu::Add, AT, field(std::mem::offset_of!(Layout, out_row)));
            }
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
