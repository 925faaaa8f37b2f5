//! Generated micro-kernels of the gradients of a convolution's weights: a tile of accumulators, taps × outputs, kept in registers over
//! all pixels of a block of rows.
//!
//! ```text
//!  lanes are pixels:    acc[o][tap] += gradient[o][16 pixels] · image[tap][16 pixels]    partial sums a lane, few outputs a group
//!  lanes are outputs:   acc[tap] += image[tap][pixel] · gradient[pixel][32 outputs]      the gradient was transposed
//! ```
//!
//! The image is read in place, in planes with their padding (see `planes`): a tap is a constant distance along a *line*, the row of a
//! plane that taps of one row and phase read.

use super::super::kernel::{Key, cached};
use super::kernel::{Taps, lanes, registers};
use crate::asm::{Alu, Args, Assembler, Cond, Gpr, KReg, MaskSize, Mem, Size, VReg, Width, ops};
use crate::features::Isa;
use crate::memory::MemoryError;

/// The most lines that the taps of a tile read.
const MOST_LINES: usize = 9;
/// The most outputs of a tile whose lanes are pixels.
pub(super) const MOST_OUTPUTS: usize = 3;
/// Vectors of outputs of a tile whose lanes are outputs.
pub(super) const MOST_VECTORS: usize = 2;

/// What neighbouring lanes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Over {
    /// Pixels, of so many outputs.
    Pixels(usize),
    /// Outputs, so many vectors of them.
    Outputs(usize),
}

impl Over {
    /// Vectors of the gradient that are multiplied with each tap.
    fn vectors(self) -> usize {
        match self {
            Over::Pixels(outputs) => outputs,
            Over::Outputs(vectors) => vectors,
        }
    }
}

/// Everything a kernel's code depends on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::gemm) struct GradientShape {
    pub(super) isa: Isa,
    pub(super) y: Taps,
    pub(super) x: Taps,
    pub(super) over: Over,
    /// The tile's taps, in the order of memory.
    pub(super) first: usize,
    pub(super) count: usize,
}

/// A row of a plane that some tap reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Line {
    /// The plane's number.
    pub plane: usize,
    pub row: usize,
}

impl GradientShape {
    /// Every tap's line and the place in it.
    pub(super) fn taps(&self) -> (Vec<Line>, Vec<(usize, usize)>) {
        let phases = self.x.phases().len();
        let (mut lines, mut taps) = (Vec::new(), Vec::new());
        for tap in self.first..self.first + self.count {
            let (phase_y, row) = self.y.place(tap / usize::from(self.x.count));
            let (phase_x, column) = self.x.place(tap % usize::from(self.x.count));
            let line = Line { plane: phase_y * phases + phase_x, row };
            let number = lines.iter().position(|&other| other == line).unwrap_or_else(|| {
                lines.push(line);
                lines.len() - 1
            });
            taps.push((number, column));
        }
        (lines, taps)
    }

    /// Whether the registers suffice.
    fn fits(&self) -> bool {
        // The gradient's vectors; a tap's element, or the mask and a masked vector where there are no mask registers.
        let others = self.over.vectors() + if self.isa == Isa::Avx512 { 1 } else { 2 };
        self.count * self.over.vectors() + others <= registers(self.isa) && self.taps().0.len() <= MOST_LINES
    }

    /// All taps in tiles, as few and as equal as the registers allow.
    pub(super) fn tiles(isa: Isa, y: Taps, x: Taps, over: Over) -> Vec<GradientShape> {
        let all = usize::from(y.count) * usize::from(x.count);
        let cut = |parts: usize| -> Vec<GradientShape> {
            let tile = |i: usize| {
                let range = super::part(all, parts, i);
                GradientShape { isa, y, x, over, first: range.start, count: range.len() }
            };
            (0..parts).map(tile).collect()
        };
        (1..=all).map(cut).find(|tiles| tiles.iter().all(GradientShape::fits)).unwrap_or_default()
    }
}

/// The arguments of a call; strides in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    /// The gradient of the first pixel.
    pub gradient: *const f32,
    /// Accumulators, a vector each, that are added to: `[tap][vector]`, or `[output][tap]` where lanes are pixels.
    pub sums: *mut f32,
    /// Rows of pixels, at least one.
    pub rows: usize,
    /// Pixels of a row, or whole vectors of them.
    pub steps: usize,
    /// From the end of a row of the gradient to the next row.
    pub gradient_gap: usize,
    /// From the end of a row of a plane to the next row.
    pub plane_gap: usize,
    /// From one output's gradient to the next, where lanes are pixels.
    pub gradient_output: usize,
    /// Pixels of a row beyond whole vectors, a bit each.
    pub tail: usize,
    /// The same, a word each.
    pub tail_lanes: [u32; 8],
    /// Where the first pixel of each line is.
    pub lines: [*const f32; MOST_LINES],
}

impl Call {
    /// A call for which nothing is known.
    pub(super) fn new() -> Call {
        Call {
            gradient: std::ptr::null(),
            sums: std::ptr::null_mut(),
            rows: 0,
            steps: 0,
            gradient_gap: 0,
            plane_gap: 0,
            gradient_output: 0,
            tail: 0,
            tail_lanes: [0; 8],
            lines: [std::ptr::null(); MOST_LINES],
        }
    }
}

/// Adds the products of a block of rows to sums.
pub(super) type GradientFn = unsafe extern "C" fn(*const Call);

/// The kernel of a shape, generated on first use and kept for the life of the process.
pub(super) fn get(shape: GradientShape) -> Result<GradientFn, MemoryError> {
    let entry = cached(Key::Gradient(shape), || generate(&shape))?;
    // SAFETY: the code follows the C convention with this argument and is never freed.
    Ok(unsafe { std::mem::transmute::<*const u8, GradientFn>(entry as *const u8) })
}

const CALL: Gpr = Gpr::RDI;
const GRADIENT: Gpr = Gpr::RSI;
const AT: Gpr = Gpr::RDX;
const STEPS: Gpr = Gpr::RAX;
const ROWS: Gpr = Gpr::RCX;
const OUTPUT: Gpr = Gpr::RBP;
const LINES: [Gpr; MOST_LINES] =
    [Gpr::R8, Gpr::R9, Gpr::R10, Gpr::R11, Gpr::RBX, Gpr::R12, Gpr::R13, Gpr::R14, Gpr::R15];
const SAVED: [Gpr; 6] = [Gpr::RBX, Gpr::RBP, Gpr::R12, Gpr::R13, Gpr::R14, Gpr::R15];
const TAIL: KReg = KReg(1);

/// The registers of a tile.
struct Registers<'a> {
    shape: &'a GradientShape,
    width: Width,
    taps: Vec<(usize, usize)>,
}

impl Registers<'_> {
    fn accumulator(&self, tap: usize, vector: usize) -> VReg {
        VReg((tap * self.shape.over.vectors() + vector) as u8)
    }

    fn gradient(&self, vector: usize) -> VReg {
        VReg((self.shape.count * self.shape.over.vectors() + vector) as u8)
    }

    /// The register after those of the gradient.
    fn element(&self) -> VReg {
        self.gradient(self.shape.over.vectors())
    }

    /// The mask of a row's last pixels, where there are no mask registers.
    fn mask(&self) -> VReg {
        VReg(self.element().0 + 1)
    }

    /// Where an accumulator's vector is among the sums.
    fn sum(&self, tap: usize, vector: usize) -> Mem {
        let number = match self.shape.over {
            Over::Pixels(_) => vector * self.shape.count + tap,
            Over::Outputs(vectors) => tap * vectors + vector,
        };
        Mem::base(STEPS).offset((number * self.width.bytes()) as i32)
    }

    fn pixels(&self, tap: usize) -> Mem {
        let (line, column) = self.taps[tap];
        Mem::indexed(LINES[line], AT, 1).offset((column * 4) as i32)
    }

    fn gradient_at(&self, vector: usize) -> Mem {
        match (self.shape.over, vector) {
            (Over::Outputs(_), _) => Mem::base(GRADIENT).offset((vector * self.width.bytes()) as i32),
            (Over::Pixels(_), 0) => Mem::base(GRADIENT),
            (Over::Pixels(_), _) => Mem::indexed(GRADIENT, OUTPUT, vector as u8),
        }
    }

    /// A step along a row: a pixel, or a vector of them.
    fn step(&self, asm: &mut Assembler) {
        let vectors = self.shape.over.vectors();
        for v in 0..vectors {
            asm.rm(ops::VMOVUPS, self.width, self.gradient(v), self.gradient_at(v));
        }
        for tap in 0..self.shape.count {
            match self.shape.over {
                Over::Pixels(1) => {
                    let (acc, gradient) = (self.accumulator(tap, 0), self.gradient(0));
                    asm.rvm(ops::VFMADD231PS, self.width, acc, gradient, self.pixels(tap));
                }
                over => {
                    let load = if let Over::Pixels(_) = over { ops::VMOVUPS } else { ops::VBROADCASTSS };
                    asm.rm(load, self.width, self.element(), self.pixels(tap));
                    for v in 0..vectors {
                        let acc = self.accumulator(tap, v);
                        asm.rvm(ops::VFMADD231PS, self.width, acc, self.gradient(v), self.element());
                    }
                }
            }
        }
    }

    /// The last pixels of a row. Lanes beyond them are left alone: what is there may be anything.
    fn tail(&self, asm: &mut Assembler) {
        let masked = self.shape.isa == Isa::Avx512;
        for v in 0..self.shape.over.vectors() {
            let at = self.gradient_at(v);
            match masked {
                true => asm.vector(ops::VMOVUPS, self.width, Args::rm(self.gradient(v), at).mask(TAIL).zero()),
                false => asm.rvm(ops::VMASKMOVPS, self.width, self.gradient(v), self.mask(), at),
            }
        }
        for tap in 0..self.shape.count {
            asm.rm(ops::VMOVUPS, self.width, self.element(), self.pixels(tap));
            if !masked {
                asm.rvm(ops::VANDPS, self.width, self.element(), self.element(), self.mask());
            }
            for v in 0..self.shape.over.vectors() {
                let args = Args::rvm(self.accumulator(tap, v), self.gradient(v), self.element());
                asm.vector(ops::VFMADD231PS, self.width, if masked { args.mask(TAIL) } else { args });
            }
        }
    }
}

fn generate(shape: &GradientShape) -> Vec<u8> {
    let mut asm = Assembler::new();
    let width = if shape.isa == Isa::Avx512 { Width::V512 } else { Width::V256 };
    let (lines, taps) = shape.taps();
    let registers = Registers { shape, width, taps };
    let vectors = shape.over.vectors();
    let (is_pixels, step) = match shape.over {
        Over::Pixels(_) => (true, (lanes(shape.isa) * 4) as i32),
        Over::Outputs(_) => (false, 4),
    };
    let field = |at: usize| Mem::base(CALL).offset(at as i32);
    SAVED.iter().for_each(|&r| asm.push(r));
    for (i, &line) in LINES.iter().enumerate().take(lines.len()) {
        asm.load(line, field(std::mem::offset_of!(Call, lines) + 8 * i), Size::Q);
    }
    // From zero, not from the sums in memory: one chain over all images would lose what is small beside a long sum.
    for r in 0..shape.count * vectors {
        let acc = VReg(r as u8);
        asm.rvm(ops::VPXOR, if r < 16 { Width::V128 } else { width }, acc, acc, acc);
    }
    asm.load(GRADIENT, field(std::mem::offset_of!(Call, gradient)), Size::Q);
    asm.load(ROWS, field(std::mem::offset_of!(Call, rows)), Size::Q);
    asm.mov_imm(AT, 0);
    if is_pixels {
        asm.load(OUTPUT, field(std::mem::offset_of!(Call, gradient_output)), Size::Q);
        match shape.isa {
            Isa::Avx512 => asm.kmov_load(MaskSize::W, TAIL, field(std::mem::offset_of!(Call, tail))),
            _ => asm.rm(ops::VMOVUPS, width, registers.mask(), field(std::mem::offset_of!(Call, tail_lanes))),
        }
    }
    let row = asm.here();
    let (end, inner) = (asm.label(), asm.label());
    asm.load(STEPS, field(std::mem::offset_of!(Call, steps)), Size::Q);
    asm.test(STEPS, STEPS);
    asm.jcc(Cond::Equal, end);
    asm.align(32);
    asm.bind(inner);
    registers.step(&mut asm);
    asm.alu_imm(Alu::Add, GRADIENT, if is_pixels { step } else { (vectors * width.bytes()) as i32 });
    asm.alu_imm(Alu::Add, AT, step);
    asm.dec(STEPS);
    asm.jcc(Cond::NotEqual, inner);
    asm.bind(end);
    if is_pixels {
        let whole = asm.label();
        asm.load(STEPS, field(std::mem::offset_of!(Call, tail)), Size::Q);
        asm.test(STEPS, STEPS);
        asm.jcc(Cond::Equal, whole);
        registers.tail(&mut asm);
        asm.bind(whole);
    }
    asm.alu(Alu::Add, GRADIENT, field(std::mem::offset_of!(Call, gradient_gap)));
    asm.alu(Alu::Add, AT, field(std::mem::offset_of!(Call, plane_gap)));
    asm.dec(ROWS);
    asm.jcc(Cond::NotEqual, row);
    asm.load(STEPS, field(std::mem::offset_of!(Call, sums)), Size::Q);
    for tap in 0..shape.count {
        for v in 0..vectors {
            let acc = registers.accumulator(tap, v);
            asm.rvm(ops::VADDPS, width, acc, acc, registers.sum(tap, v));
            asm.mr(ops::VMOVUPS_ST, width, registers.sum(tap, v), acc);
        }
    }
    asm.vzeroupper();
    SAVED.iter().rev().for_each(|&r| asm.pop(r));
    asm.ret();
    asm.finish()
}
