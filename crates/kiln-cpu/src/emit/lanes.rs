//! Lanes that change places: permutations of one vector and of two.

use super::*;

impl Emitter<'_> {
    /// 64-bit lanes as pairs of 32-bit ones: 2i and 2i + 1 for i.
    pub(super) fn permute_wide(&mut self, dst: VReg, x: VReg, lanes: VReg) {
        let (width, kept) = (self.width(Ty::I64), self.work(1));
        self.asm.mr(ops::VMOVUPS_ST, width, kept, x);
        self.asm.rmi(ops::VPSLLQ_I, width, self.s1, lanes, 1);
        self.asm.rmi(ops::VPSLLQ_I, width, self.s0, self.s1, 32);
        self.asm.rvm(ops::VPOR, width, self.s1, self.s1, self.s0);
        self.op_const(ops::VPOR, width, self.s1, self.s1, 1 << 32, 8);
        self.asm.rm(ops::VMOVUPS, width, self.s0, kept);
        match width {
            Width::V128 => self.asm.rvm(ops::VPERMILPS, width, dst, self.s0, self.s1),
            _ => self.asm.rvm(ops::VPERMPS, width, dst, self.s1, self.s0),
        }
    }

    /// Lanes of `a` and `b` in the order of a list, by one permutation of both.
    pub(super) fn move_lanes(&mut self, lanes: &[usize], ty: Ty, dst: VReg, a: VReg, b: V) {
        let (width, size) = (self.width(ty), ty.lane_bytes());
        let bytes = lanes.iter().flat_map(|lane| lane.to_le_bytes()[..size].to_vec());
        let order = self.asm.constant(&bytes.collect::<Vec<u8>>());
        if dst != self.s0 {
            // The result takes the place of the order.
            self.asm.rm(ops::VMOVUPS, width, dst, order);
            let op = if size == 4 { ops::VPERMI2PS } else { ops::VPERMI2PD };
            return self.op3(op, width, dst, a, b, self.s1);
        }
        self.move_reg(width, dst, a);
        self.asm.rm(ops::VMOVUPS, width, self.s1, order);
        let op = if size == 4 { ops::VPERMT2PS } else { ops::VPERMT2PD };
        // An operand that is in no register is memory to this instruction.
        self.op3(op, width, dst, self.s1, b, self.s1);
    }

    /// Lanes of `a` and `b` in turn, with AVX2; `dst` may be the first scratch register.
    pub(super) fn interleave(&mut self, op: BinOp, ty: Ty, dst: VReg, a: VReg, b: VReg) {
        let width = self.width(ty);
        let unpack = match (ty.lane_bytes(), op == BinOp::InterleaveLow) {
            (4, true) => ops::VUNPCKLPS,
            (4, false) => ops::VUNPCKHPS,
            (_, true) => ops::VUNPCKLPD,
            (_, false) => ops::VUNPCKHPD,
        };
        if width == Width::V128 {
            return self.asm.rvm(unpack, width, dst, a, b);
        }
        // Each 128 bits are unpacked on their own: the middle two quarters change places first.
        self.asm.rmi(ops::VPERMPD_I, width, self.s0, a, 0xd8);
        self.asm.rmi(ops::VPERMPD_I, width, self.s1, b, 0xd8);
        self.asm.rvm(unpack, width, dst, self.s0, self.s1);
    }

    /// Every second lane of `a`, then of `b`, with AVX2; `dst` may be the first scratch register.
    pub(super) fn deinterleave(&mut self, op: BinOp, ty: Ty, dst: VReg, a: VReg, b: VReg) {
        let (width, is_even) = (self.width(ty), op == BinOp::Evens);
        match ty.lane_bytes() {
            4 => self.asm.rvmi(ops::VSHUFPS, width, dst, a, b, if is_even { 0x88 } else { 0xdd }),
            _ => self.asm.rvm(if is_even { ops::VUNPCKLPD } else { ops::VUNPCKHPD }, width, dst, a, b),
        }
        if width != Width::V128 {
            self.asm.rmi(ops::VPERMPD_I, width, dst, dst, 0xd8);
        }
    }
}
