//! Generated softmax over one tile of scores; columns continue from the running maxima and sums of earlier tiles.
//!
//! ```text
//!  columns   scores [key][query]: a lane is a query, nothing crosses lanes; weights replace the scores
//!  rows      scores [query][key]: one row, folded across lanes; a tile of its own, without factor or earlier sum
//!
//!  top = max(top, scale · scores)     factor = exp(old top − top)     sum = sum · factor + Σ weights
//!  weight = exp(scale · score − top)
//! ```
//!
//! A row without any finite score so far has top = −∞ and gets weights 0. NaN scores give NaN weights.

use super::exponential::{Exponential, Temps, splat};
use super::tile::width;
use crate::asm::{Alu, Args, Assembler, Cond, Gpr, KReg, Label, Mem, Size, VReg, Width, ops};
use crate::features::Isa;

/// Operands of one call.
#[repr(C)]
pub(super) struct SoftmaxArgs {
    /// Scores, replaced by weights.
    pub scores: *mut f32,
    /// Bytes from key to key (columns only).
    pub stride: usize,
    /// Keys; for rows: vectors of keys, the last padded with −∞.
    pub keys: usize,
    /// Vectors of queries (columns only).
    pub vectors: usize,
    /// Running maxima, one per query; those of rows are only written.
    pub tops: *mut f32,
    /// Running sums, one per query; those of rows are only written.
    pub sums: *mut f32,
    /// The factors of earlier results, one per query (columns only).
    pub factors: *mut f32,
    /// Factor on scores, not negative.
    pub scale: f32,
}

/// A softmax kernel.
pub(super) type SoftmaxFn = unsafe extern "C" fn(*const SoftmaxArgs);

const ARGS: Gpr = Gpr::RDI;
const SCORES: Gpr = Gpr::RSI;
const STRIDE: Gpr = Gpr::RDX;
const KEYS: Gpr = Gpr::RCX;
const VECTORS: Gpr = Gpr::R8;
const TOPS: Gpr = Gpr::R9;
const SUMS: Gpr = Gpr::R10;
const FACTORS: Gpr = Gpr::R11;
const AT: Gpr = Gpr::RAX;
/// The address weights are written to.
const TO: Gpr = Gpr::RBX;
const LEFT: Gpr = Gpr::RBP;

/// Two evaluations side by side.
const FIRST: Temps = Temps { x: VReg(0), result: VReg(1), a: VReg(2), b: VReg(3) };
const SECOND: Temps = Temps { x: VReg(4), result: VReg(5), a: VReg(6), b: VReg(7) };
const TOP: VReg = VReg(8);
const SUM: VReg = VReg(9);
const SUM_2: VReg = VReg(10);
const SCALE: VReg = VReg(11);
const LEAST: VReg = VReg(12);
const LOWEST: VReg = VReg(13);
const FACTOR: VReg = VReg(14);
/// Order of halfwords that interleaves two vectors of bf16 (AVX-512 only).
const INTERLEAVE: VReg = VReg(15);

struct Generator<'a> {
    isa: Isa,
    width: Width,
    asm: &'a mut Assembler,
    exponential: Exponential,
}

/// Emits the kernel for columns; with `pairs`, weights of two keys become one element of two bf16.
pub(super) fn generate_columns(asm: &mut Assembler, isa: Isa, pairs: bool) -> Label {
    let (entry, mut g) = Generator::begin(asm, isa);
    if pairs {
        let order: Vec<u8> = (0..16u16).flat_map(|i| [i, 16 + i]).flat_map(u16::to_le_bytes).collect();
        let order = g.asm.constant(&order);
        g.asm.rm(ops::VMOVDQU64, Width::V512, INTERLEAVE, order);
    }
    let vector = g.asm.here();
    g.top_of_column();
    g.factor();
    g.weights_of_column(pairs);
    g.asm.rvm(ops::VADDPS, g.width, SUM, SUM, SUM_2);
    g.asm.mr(ops::VMOVUPS_ST, g.width, Mem::base(SUMS), SUM);
    for pointer in [SCORES, TOPS, SUMS, FACTORS] {
        g.asm.alu_imm(Alu::Add, pointer, g.width.bytes() as i32);
    }
    g.asm.dec(VECTORS);
    g.asm.jcc(Cond::NotEqual, vector);
    g.end();
    entry
}

/// Emits the kernel for one row.
pub(super) fn generate_row(asm: &mut Assembler, isa: Isa) -> Label {
    let (entry, mut g) = Generator::begin(asm, isa);
    let (width, bytes) = (g.width, g.width.bytes() as i32);
    g.asm.mov(AT, SCORES);
    g.asm.mov(LEFT, KEYS);
    g.asm.rm(ops::VMOVAPS, width, TOP, LOWEST);
    let largest = g.asm.here();
    g.asm.rvm(ops::VMAXPS, width, TOP, TOP, Mem::base(AT));
    g.asm.alu_imm(Alu::Add, AT, bytes);
    g.asm.dec(LEFT);
    g.asm.jcc(Cond::NotEqual, largest);
    fold(g.asm, width, ops::VMAXPS, TOP, FIRST.x);
    g.asm.rm(ops::VBROADCASTSS, width, TOP, TOP);
    g.asm.rvm(ops::VMULPS, width, TOP, TOP, SCALE);
    // As if there were an earlier maximum of −∞: NaN stays NaN.
    g.asm.rvm(ops::VMAXPS, width, TOP, TOP, LOWEST);
    g.asm.mr(ops::VMOVSS_ST, Width::V128, Mem::base(TOPS), TOP);
    g.relative_to_top();
    g.asm.rvm(ops::VXORPS, width, SUM_2, SUM_2, SUM_2);
    g.asm.mov(AT, SCORES);
    g.asm.mov(LEFT, KEYS);
    let weights = g.asm.here();
    g.weight(FIRST, Mem::base(AT));
    g.asm.rvm(ops::VADDPS, width, SUM_2, SUM_2, FIRST.result);
    g.asm.mr(ops::VMOVUPS_ST, width, Mem::base(AT), FIRST.result);
    g.asm.alu_imm(Alu::Add, AT, bytes);
    g.asm.dec(LEFT);
    g.asm.jcc(Cond::NotEqual, weights);
    fold(g.asm, width, ops::VADDPS, SUM_2, FIRST.x);
    g.asm.mr(ops::VMOVSS_ST, Width::V128, Mem::base(SUMS), SUM_2);
    g.end();
    entry
}

impl<'a> Generator<'a> {
    fn begin(asm: &'a mut Assembler, isa: Isa) -> (Label, Generator<'a>) {
        let width = width(isa);
        asm.align(64);
        let entry = asm.here();
        asm.push(TO);
        asm.push(LEFT);
        for (i, register) in [SCORES, STRIDE, KEYS, VECTORS, TOPS, SUMS, FACTORS].into_iter().enumerate() {
            asm.load(register, Mem::base(ARGS).offset(8 * i as i32), Size::Q);
        }
        asm.rm(ops::VBROADCASTSS, width, SCALE, Mem::base(ARGS).offset(56));
        splat(asm, width, LOWEST, f32::NEG_INFINITY);
        let exponential = Exponential::new(asm, isa, width, LEAST);
        (entry, Generator { isa, width, asm, exponential })
    }

    fn end(&mut self) {
        self.asm.pop(LEFT);
        self.asm.pop(TO);
        self.asm.vzeroupper();
        self.asm.ret();
    }

    /// TOP = the largest score of each lane.
    fn top_of_column(&mut self) {
        let chains = [TOP, SUM, SUM_2, FACTOR];
        for chain in chains {
            self.asm.rm(ops::VMOVAPS, self.width, chain, LOWEST);
        }
        self.asm.mov(AT, SCORES);
        let (by_four, rest, one, done) = (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.mov(LEFT, KEYS);
        self.asm.alu_imm(Alu::Sub, LEFT, 4);
        self.asm.jcc(Cond::Below, rest);
        self.asm.bind(by_four);
        for (i, chain) in chains.into_iter().enumerate() {
            let at = if i % 2 == 0 { Mem::base(AT) } else { Mem::indexed(AT, STRIDE, 1) };
            self.asm.rvm(ops::VMAXPS, self.width, chain, chain, at);
            if i % 2 == 1 {
                self.asm.lea(AT, Mem::indexed(AT, STRIDE, 2));
            }
        }
        self.asm.alu_imm(Alu::Sub, LEFT, 4);
        self.asm.jcc(Cond::AboveEqual, by_four);
        self.asm.bind(rest);
        self.asm.alu_imm(Alu::Add, LEFT, 4);
        self.asm.jcc(Cond::Equal, done);
        self.asm.bind(one);
        self.asm.rvm(ops::VMAXPS, self.width, TOP, TOP, Mem::base(AT));
        self.asm.alu(Alu::Add, AT, STRIDE);
        self.asm.dec(LEFT);
        self.asm.jcc(Cond::NotEqual, one);
        self.asm.bind(done);
        self.asm.rvm(ops::VMAXPS, self.width, TOP, TOP, SUM);
        self.asm.rvm(ops::VMAXPS, self.width, SUM_2, SUM_2, FACTOR);
        self.asm.rvm(ops::VMAXPS, self.width, TOP, TOP, SUM_2);
    }

    /// From TOP, the largest raw score of the tile, computes the running maximum, the offset of weights (in TOP), the factor of
    /// earlier results, and SUM, the running sum times that.
    fn factor(&mut self) {
        let width = self.width;
        let old = FIRST.x;
        self.asm.rm(ops::VMOVUPS, width, old, Mem::base(TOPS));
        self.asm.rvm(ops::VMULPS, width, TOP, TOP, SCALE);
        self.asm.rvm(ops::VMAXPS, width, TOP, TOP, old);
        self.asm.mr(ops::VMOVUPS_ST, width, Mem::base(TOPS), TOP);
        self.relative_to_top();
        self.asm.rvm(ops::VSUBPS, width, old, old, TOP);
        self.exponential.emit(self.asm, FIRST);
        self.asm.mr(ops::VMOVUPS_ST, width, Mem::base(FACTORS), FIRST.result);
        self.asm.rm(ops::VMOVUPS, width, SUM, Mem::base(SUMS));
        self.asm.rvm(ops::VMULPS, width, SUM, SUM, FIRST.result);
        self.asm.rvm(ops::VXORPS, width, SUM_2, SUM_2, SUM_2);
    }

    /// TOP = the offset of weights, from the maximum.
    fn relative_to_top(&mut self) {
        let width = self.width;
        // −∞ − −∞ is NaN: without a finite score, weights are relative to 0.
        const NOT_EQUAL: u8 = 4;
        if self.isa == Isa::Avx512 {
            let some = KReg(1);
            self.asm.vector(ops::VCMPPS_K, width, Args::rvm(some, TOP, LOWEST).imm(NOT_EQUAL));
            self.asm.vector(ops::VMOVAPS, width, Args::rm(TOP, TOP).mask(some).zero());
        } else {
            self.asm.rvmi(ops::VCMPPS, width, FIRST.a, TOP, LOWEST, NOT_EQUAL);
            self.asm.rvm(ops::VANDPS, width, TOP, TOP, FIRST.a);
        }
    }

    /// `result = exp(scale · score − top)`
    fn weight(&mut self, t: Temps, score: Mem) {
        // Rounded as TOP was, so that the largest score's weight is exactly 1 however large it is.
        self.asm.rvm(ops::VMULPS, self.width, t.x, SCALE, score);
        self.asm.rvm(ops::VSUBPS, self.width, t.x, t.x, TOP);
        self.exponential.emit(self.asm, t);
    }

    fn weights_of_column(&mut self, pairs: bool) {
        let width = self.width;
        let (by_two, rest, done) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.mov(AT, SCORES);
        self.asm.mov(TO, SCORES);
        self.asm.mov(LEFT, KEYS);
        self.asm.alu_imm(Alu::Sub, LEFT, 2);
        self.asm.jcc(Cond::Below, rest);
        self.asm.align(32);
        self.asm.bind(by_two);
        self.weight(FIRST, Mem::base(AT));
        self.weight(SECOND, Mem::indexed(AT, STRIDE, 1));
        self.asm.rvm(ops::VADDPS, width, SUM, SUM, FIRST.result);
        self.asm.rvm(ops::VADDPS, width, SUM_2, SUM_2, SECOND.result);
        if pairs {
            self.store_pair();
        } else {
            self.asm.mr(ops::VMOVUPS_ST, width, Mem::base(AT), FIRST.result);
            self.asm.mr(ops::VMOVUPS_ST, width, Mem::indexed(AT, STRIDE, 1), SECOND.result);
        }
        self.asm.lea(AT, Mem::indexed(AT, STRIDE, 2));
        self.asm.alu_imm(Alu::Sub, LEFT, 2);
        self.asm.jcc(Cond::AboveEqual, by_two);
        self.asm.bind(rest);
        self.asm.alu_imm(Alu::Add, LEFT, 2);
        self.asm.jcc(Cond::Equal, done);
        self.weight(FIRST, Mem::base(AT));
        self.asm.rvm(ops::VADDPS, width, SUM, SUM, FIRST.result);
        if pairs {
            self.asm.rvm(ops::VXORPS, width, SECOND.result, SECOND.result, SECOND.result);
            self.store_pair();
        } else {
            self.asm.mr(ops::VMOVUPS_ST, width, Mem::base(AT), FIRST.result);
        }
        self.asm.bind(done);
    }

    /// Two results become one row of pairs. Rows of pairs never overtake the scores still to be read.
    fn store_pair(&mut self) {
        let both = FIRST.result;
        self.asm.rvm(ops::VCVTNE2PS2BF16, self.width, both, SECOND.result, FIRST.result);
        self.asm.rvm(ops::VPERMW, self.width, both, INTERLEAVE, both);
        self.asm.mr(ops::VMOVUPS_ST, self.width, Mem::base(TO), both);
        self.asm.alu(Alu::Add, TO, STRIDE);
    }
}

/// Combines all lanes of a register into its first.
fn fold(asm: &mut Assembler, width: Width, op: ops::VOp, value: VReg, temp: VReg) {
    if width == Width::V512 {
        asm.vector(ops::VEXTRACTF64X4, Width::V512, Args::mr(temp, value).imm(1));
        asm.rvm(op, Width::V256, value, value, temp);
    }
    asm.vector(ops::VEXTRACTF128, Width::V256, Args::mr(temp, value).imm(1));
    asm.rvm(op, Width::V128, value, value, temp);
    for swap in [0b0100_1110, 0b1011_0001] {
        asm.rmi(ops::VPERMILPS_I, Width::V128, temp, value, swap);
        asm.rvm(op, Width::V128, value, value, temp);
    }
}

#[cfg(test)]
mod tests {
    use super::{SoftmaxArgs, SoftmaxFn};
    use crate::attention::kernels;
    use crate::features::Isa;

    /// Runs one vector of queries (or one row) whose largest scores are 0.
    fn run(kernel: SoftmaxFn, scores: &mut [f32], lanes: usize) {
        let (mut tops, mut sums, mut factors) = ([f32::NEG_INFINITY; 16], [0f32; 16], [0f32; 16]);
        let args = SoftmaxArgs {
            scores: scores.as_mut_ptr(),
            stride: lanes * 4,
            keys: scores.len() / lanes,
            vectors: 1,
            tops: tops.as_mut_ptr(),
            sums: sums.as_mut_ptr(),
            factors: factors.as_mut_ptr(),
            scale: 1.0,
        };
        // SAFETY: the scores are whole vectors, and there are running values for one.
        unsafe { kernel(&args) };
        assert_eq!((tops[0], factors[0]), (0.0, 0.0));
    }

    /// Weights of whole vectors of scores, the first of which is 0: as one row, and as columns below a row of zeros.
    fn weights(isa: Isa, scores: &[f32]) -> [Vec<f32>; 2] {
        let lanes = if isa == Isa::Avx512 { 16 } else { 8 };
        let mut row = scores.to_vec();
        run(kernels::softmax_row(isa).unwrap(), &mut row, lanes);
        let mut columns = [&vec![0.0; lanes], scores].concat();
        run(kernels::softmax_columns(isa, false).unwrap(), &mut columns, lanes);
        [row, columns.split_off(lanes)]
    }

    #[test]
    fn weights_are_off_by_one_unit_in_the_last_place() {
        let steps = (0x8000_0000..=(-104f32).to_bits()).step_by(997).collect::<Vec<u32>>();
        for isa in Isa::available() {
            // Without fused products the reduced argument is rounded once more.
            let units = if isa == Isa::Portable { 2.5 } else { 1.0 };
            for bits in steps.chunks(1008) {
                let mut scores = vec![0f32];
                scores.extend(bits.iter().map(|&bits| f32::from_bits(bits)));
                scores.resize(1024, f32::NEG_INFINITY);
                for got in weights(isa, &scores) {
                    for (&x, &got) in scores.iter().zip(&got) {
                        let want = f64::from(x).exp();
                        let unit = f64::from(f32::from_bits((want as f32).to_bits().max(0x0080_0000) & 0x7f80_0000))
                            / 8388608.0;
                        let error = (f64::from(got) - want).abs();
                        // Below the smallest normal number weights are 0.
                        let flushed = want < 1.2e-38 && got == 0.0;
                        assert!(error <= units * unit || flushed, "{isa:?}: exp({x:e}) = {got:e}, not {want:e}");
                        assert!(x != f32::NEG_INFINITY || got == 0.0);
                    }
                }
            }
        }
    }

    #[test]
    fn not_a_number_has_a_weight_that_is_not_a_number() {
        for isa in Isa::available() {
            let mut scores = vec![-1f32; 32];
            (scores[0], scores[7]) = (0.0, f32::NAN);
            for got in weights(isa, &scores) {
                assert!(got[7].is_nan() && got[8] > 0.36 && got[8] < 0.37, "{isa:?}");
            }
        }
    }
}
