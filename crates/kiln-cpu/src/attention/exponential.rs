//! The exponential function of arguments that are not positive, as vector code: magic-number rounding, a polynomial of degree 6
//! and the exponent inserted by a shift. The error is at most 0.9 units in the last place; exactly 0 below −87.7 and at −∞; NaN
//! stays NaN.

use crate::asm::{Assembler, Rm, VReg, Width, ops};
use crate::features::Isa;

/// Arguments are clamped to this: the least whose result is already 0.
pub(super) const LEAST: f32 = -88.0;
pub(super) const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// 1.5·2²³ + 127: adding it rounds to an integer n and leaves n + 127 in the low bits.
pub(super) const MAGIC: f32 = 12_583_039.0;
pub(super) const LN_2_HIGH: f32 = std::f32::consts::LN_2;
pub(super) const LN_2_LOW: f32 = -1.904_654_3e-9;
/// Minimax over |r| ≤ ln 2 / 2 for the relative error, with the first two coefficients 1; highest first.
pub(super) const POLYNOMIAL: [f32; 7] =
    [1.381_459_9e-3, 8.368_717e-3, 4.166_839e-2, 1.666_652_1e-1, 4.999_999_4e-1, 1.0, 1.0];

/// Constants, in registers where there are many, else in memory.
pub(super) struct Exponential {
    width: Width,
    log2_e: Rm,
    magic: Rm,
    ln_2: [Rm; 2],
    polynomial: [Rm; 7],
    least: VReg,
}

/// Registers of one evaluation.
#[derive(Clone, Copy)]
pub(super) struct Temps {
    /// The argument; overwritten.
    pub x: VReg,
    /// The result.
    pub result: VReg,
    pub a: VReg,
    pub b: VReg,
}

/// Loads a constant into every lane.
pub(super) fn splat(asm: &mut Assembler, width: Width, to: VReg, value: f32) {
    let at = asm.constant(&value.to_le_bytes());
    asm.rm(ops::VBROADCASTSS, width, to, at);
}

impl Exponential {
    /// Loads the constants: takes register `least`, and on AVX-512 also registers 20 to 31.
    pub(super) fn new(asm: &mut Assembler, isa: Isa, width: Width, least: VReg) -> Exponential {
        splat(asm, width, least, LEAST);
        let mut next = 20;
        let mut known: Vec<(f32, Rm)> = Vec::new();
        let mut hold = |asm: &mut Assembler, value: f32| -> Rm {
            if let Some((_, held)) = known.iter().find(|(v, _)| *v == value) {
                return *held;
            }
            let held: Rm = if isa == Isa::Avx512 {
                splat(asm, width, VReg(next), value);
                next += 1;
                VReg(next - 1).into()
            } else {
                asm.constant(&value.to_le_bytes().repeat(width.bytes() / 4)).into()
            };
            known.push((value, held));
            held
        };
        Exponential {
            width,
            log2_e: hold(asm, LOG2_E),
            magic: hold(asm, MAGIC),
            ln_2: [hold(asm, LN_2_HIGH), hold(asm, LN_2_LOW)],
            polynomial: POLYNOMIAL.map(|c| hold(asm, c)),
            least,
        }
    }

    /// Emits `result = exp(x)`.
    pub(super) fn emit(&self, asm: &mut Assembler, t: Temps) {
        let w = self.width;
        // The argument is the last operand: a NaN is kept.
        asm.rvm(ops::VMAXPS, w, t.x, self.least, t.x);
        asm.rm(ops::VMOVAPS, w, t.a, self.log2_e);
        asm.rvm(ops::VFMADD213PS, w, t.a, t.x, self.magic);
        asm.rvm(ops::VSUBPS, w, t.b, t.a, self.magic);
        asm.rvm(ops::VFNMADD231PS, w, t.x, t.b, self.ln_2[0]);
        asm.rvm(ops::VFNMADD231PS, w, t.x, t.b, self.ln_2[1]);
        asm.rmi(ops::VPSLLD_I, w, t.a, t.a, 23);
        asm.rm(ops::VMOVAPS, w, t.result, self.polynomial[0]);
        for c in &self.polynomial[1..] {
            asm.rvm(ops::VFMADD213PS, w, t.result, t.x, *c);
        }
        asm.rvm(ops::VMULPS, w, t.result, t.result, t.a);
    }
}

/// The same in plain Rust.
pub(super) fn exponential(x: f32) -> f32 {
    let x = if x < LEAST { LEAST } else { x };
    let shifted = x * LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let p = POLYNOMIAL.iter().skip(1).fold(POLYNOMIAL[0], |p, c| p * r + c);
    p * f32::from_bits(shifted.to_bits() << 23)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_exponential_is_close() {
        for i in 0..200_000 {
            let x = -(i as f32) * 4.4e-4;
            let (got, want) = (f64::from(exponential(x)), f64::from(x).exp());
            assert!((got - want).abs() <= want * 2.5e-7 + 1e-38, "{x}: {got} {want}");
        }
        assert_eq!(exponential(f32::NEG_INFINITY), 0.0);
        assert_eq!(exponential(0.0), 1.0);
        assert!(exponential(f32::NAN).is_nan());
    }
}
