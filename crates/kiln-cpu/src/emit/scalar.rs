//! Scalars: indices, addresses and bounds in general-purpose registers.

use super::*;
use crate::asm::Shift;

impl Emitter<'_> {
    /// The register of a scalar, loaded into `scratch` if it has none.
    pub(super) fn int(&mut self, v: V, scratch: Gpr) -> Gpr {
        match self.alloc.locations[v.index()] {
            Location::Reg(r) => Gpr(r),
            Location::Slot(s) => {
                let slot = self.int_slot(s);
                self.asm.load(scratch, slot, Size::Q);
                scratch
            }
            _ => {
                let n = self.number(v).expect("a scalar without a place is a number");
                self.asm.mov_imm(scratch, n);
                scratch
            }
        }
    }

    /// Loads a scalar into a given register.
    pub(super) fn int_into(&mut self, v: V, into: Gpr) {
        let from = self.int(v, into);
        if from != into {
            self.asm.mov(into, from);
        }
    }

    /// A number that fits an immediate.
    fn imm(&self, v: V) -> Option<i32> {
        self.number(v).and_then(|n| i32::try_from(n).ok())
    }

    /// A scalar as register or memory operand; numbers go to `scratch`.
    fn int_rm(&mut self, v: V, scratch: Gpr) -> Rm {
        match self.alloc.locations[v.index()] {
            Location::Slot(s) => self.int_slot(s).into(),
            _ => self.int(v, scratch).into(),
        }
    }

    fn int_dst(&self, v: V) -> Gpr {
        match self.alloc.locations[v.index()] {
            Location::Reg(r) => Gpr(r),
            _ => Gpr::RAX,
        }
    }

    fn int_done(&mut self, v: V, from: Gpr) {
        match self.alloc.locations[v.index()] {
            Location::Reg(r) if Gpr(r) != from => self.asm.mov(Gpr(r), from),
            Location::Slot(s) => {
                let slot = self.int_slot(s);
                self.asm.store(slot, from, Size::Q);
            }
            _ => {}
        }
    }

    /// Flags of `a − b`.
    pub(super) fn compare_ints(&mut self, a: V, b: V) {
        let x = self.int(a, Gpr::RAX);
        match self.imm(b) {
            Some(n) => self.asm.alu_imm(Alu::Cmp, x, n),
            None => {
                let y = self.int_rm(b, Gpr::RCX);
                self.asm.alu(Alu::Cmp, x, y);
            }
        }
    }

    /// `[a + b · size + disp]`, with `rax` and `rcx` as scratch.
    pub(super) fn element(&mut self, a: V, b: V, size: usize, disp: i32) -> Mem {
        let base = self.int(a, Gpr::RAX);
        if !b.is_some() {
            return Mem::base(base).offset(disp);
        }
        if let Some(n) = self.number(b).and_then(|n| i32::try_from(n * size as i64 + disp as i64).ok()) {
            return Mem::base(base).offset(n);
        }
        let index = self.int(b, Gpr::RCX);
        Mem::indexed(base, index, size as u8).offset(disp)
    }

    pub(super) fn scalar(&mut self, inst: &Inst) {
        let [a, b, c, d] = inst.args;
        let dst = if inst.dst.is_some() { self.int_dst(inst.dst) } else { Gpr::RAX };
        match inst.op {
            Op::Arg(n) => {
                let slot = self.int_slot(self.alloc.int_slots + n as u32);
                self.asm.load(dst, slot, Size::Q);
            }
            Op::Local(at) => {
                let mem = self.local(at);
                self.asm.lea(dst, mem);
            }
            Op::Field(disp) => {
                let base = self.int(a, Gpr::RAX);
                self.asm.load(dst, Mem::base(base).offset(disp), Size::Q);
            }
            Op::Copy => {
                self.int_into(a, dst);
            }
            Op::Int(op) => return self.int_op(op, inst),
            Op::Address { scale, disp } => {
                let mem = self.element(a, b, scale as usize, disp);
                self.asm.lea(dst, mem);
            }
            Op::AddLanes(n) => {
                let from = self.int(a, Gpr::RAX);
                self.asm.lea(dst, Mem::base(from).offset(n * self.lanes as i32));
            }
            Op::MulLanes(n) => {
                let from = self.int_rm(a, Gpr::RAX);
                self.asm.imul_imm(dst, from, n * self.lanes as i32);
            }
            Op::FirstLane => self.first_lane(inst.ty, a, dst),
            Op::Choose => {
                self.first_lane(Ty::Mask, a, Gpr::RAX);
                self.asm.test(Gpr::RAX, Gpr::RAX);
                let (yes, no) = (self.int(b, Gpr::RCX), self.int(c, Gpr::RDX));
                self.asm.mov(Gpr::RAX, no);
                self.asm.cmov(Cond::NotEqual, Gpr::RAX, yes);
                return self.int_done(inst.dst, Gpr::RAX);
            }
            Op::LoadInt { dtype, disp } => {
                let mem = self.element(a, b, dtype.size_in_bits() / 8, disp);
                self.load_element(dtype, dst, mem);
            }
            Op::StoreInt { dtype, disp } => {
                let mem = self.element(a, b, dtype.size_in_bits() / 8, disp);
                let value = self.int(c, Gpr::RDX);
                let size = match dtype.size_in_bits() {
                    8 => Size::B,
                    16 => Size::W,
                    32 => Size::D,
                    _ => Size::Q,
                };
                return self.asm.store(mem, value, size);
            }
            Op::CheckIndex => {
                let ok = self.asm.label();
                self.int_into(a, Gpr::RAX);
                let size = self.int(b, Gpr::RCX);
                self.asm.alu(Alu::Cmp, Gpr::RAX, size);
                self.asm.jcc(Cond::Below, ok);
                let skip = self.asm.label();
                if c.is_some() {
                    self.first_lane(Ty::Mask, c, Gpr::RDX);
                    self.asm.test(Gpr::RDX, Gpr::RDX);
                    self.asm.jcc(Cond::Equal, skip);
                }
                let record = self.int(d, Gpr::RDX);
                self.asm.store(Mem::base(record).offset(8), Gpr::RAX, Size::Q);
                self.asm.store(Mem::base(record).offset(16), size, Size::Q);
                self.asm.mov_imm(Gpr::RAX, 1);
                self.asm.store(Mem::base(record), Gpr::RAX, Size::Q);
                self.asm.bind(skip);
                self.asm.mov_imm(Gpr::RAX, 0);
                self.asm.bind(ok);
                return self.int_done(inst.dst, Gpr::RAX);
            }
            _ => unreachable!("{inst} gives no scalar"),
        }
        self.int_done(inst.dst, dst);
    }

    /// Loads an integer element, extended to 64 bits as its type says.
    pub(super) fn load_element(&mut self, dtype: DType, dst: Gpr, mem: Mem) {
        match dtype {
            DType::I8 => self.asm.load_signed(dst, mem, Size::B),
            DType::U8 => self.asm.load(dst, mem, Size::B),
            DType::I16 => self.asm.load_signed(dst, mem, Size::W),
            DType::I32 => self.asm.load_signed(dst, mem, Size::D),
            DType::I64 => self.asm.load(dst, mem, Size::Q),
            DType::Bool => {
                self.asm.load(dst, mem, Size::B);
                self.asm.test(dst, dst);
                self.asm.mov_imm(dst, 0);
                self.asm.setcc(Cond::NotEqual, dst);
            }
            other => unreachable!("{other} is no integer of whole bytes"),
        }
    }

    /// The first lane of a vector or mask, as a scalar.
    pub(super) fn first_lane(&mut self, ty: Ty, v: V, dst: Gpr) {
        match ty {
            Ty::Mask if self.avx512 => {
                let k = self.kreg(v, K1);
                self.asm.kmov_to(MaskSize::D, dst, k);
                self.asm.alu_imm(Alu::And, dst, 1);
            }
            Ty::Mask => {
                let reg = self.reg(v, self.s0);
                self.asm.mr(ops::VMOVD_ST, Width::V128, dst, reg);
                self.asm.alu_imm(Alu::And, dst, 1);
            }
            _ if ty.lane_bytes() == 4 => {
                let reg = self.reg(v, self.s0);
                self.asm.mr(ops::VMOVD_ST, Width::V128, dst, reg);
                self.asm.sign_extend(dst, dst, Size::D);
            }
            _ => {
                let reg = self.reg(v, self.s0);
                self.asm.mr(ops::VMOVQ_ST, Width::V128, dst, reg);
            }
        }
    }

    fn int_op(&mut self, op: IntOp, inst: &Inst) {
        let [a, b, ..] = inst.args;
        let dst = self.int_dst(inst.dst);
        match op {
            IntOp::Add => {
                let mem = match self.imm(b) {
                    Some(n) => Mem::base(self.int(a, Gpr::RAX)).offset(n),
                    None => Mem::indexed(self.int(a, Gpr::RAX), self.int(b, Gpr::RCX), 1),
                };
                self.asm.lea(dst, mem);
            }
            IntOp::Sub => {
                self.int_into(a, Gpr::RAX);
                match self.imm(b) {
                    Some(n) => self.asm.alu_imm(Alu::Sub, Gpr::RAX, n),
                    None => {
                        let y = self.int_rm(b, Gpr::RCX);
                        self.asm.alu(Alu::Sub, Gpr::RAX, y);
                    }
                }
                return self.int_done(inst.dst, Gpr::RAX);
            }
            IntOp::Mul => match self.imm(b) {
                Some(n) if n > 0 && (n as u32).is_power_of_two() => {
                    self.int_into(a, dst);
                    self.asm.shift_imm(Shift::Shl, dst, n.trailing_zeros() as u8);
                }
                Some(n) => {
                    let x = self.int_rm(a, Gpr::RAX);
                    self.asm.imul_imm(dst, x, n);
                }
                None => {
                    self.int_into(a, Gpr::RAX);
                    let y = self.int_rm(b, Gpr::RCX);
                    self.asm.imul(Gpr::RAX, y);
                    return self.int_done(inst.dst, Gpr::RAX);
                }
            },
            IntOp::Min | IntOp::Max => {
                self.int_into(a, Gpr::RAX);
                let y = self.int(b, Gpr::RCX);
                self.asm.alu(Alu::Cmp, Gpr::RAX, y);
                let other = if op == IntOp::Min { Cond::Greater } else { Cond::Less };
                self.asm.cmov(other, Gpr::RAX, y);
                return self.int_done(inst.dst, Gpr::RAX);
            }
            IntOp::FloorDiv | IntOp::Modulo => return self.divide(op, inst),
        }
        self.int_done(inst.dst, dst);
    }

    fn divide(&mut self, op: IntOp, inst: &Inst) {
        let [a, b, ..] = inst.args;
        let dst = self.int_dst(inst.dst);
        if let Some(n) = self.imm(b)
            && n > 0
            && (n as u32).is_power_of_two()
        {
            self.int_into(a, dst);
            match op {
                IntOp::FloorDiv => self.asm.shift_imm(Shift::Sar, dst, n.trailing_zeros() as u8),
                _ => self.asm.alu_imm(Alu::And, dst, n - 1),
            }
            return self.int_done(inst.dst, dst);
        }
        if let Some(n) = self.imm(b).filter(|&n| n > 1) {
            return self.divide_by(n, op, inst);
        }
        let known = self.number(b).is_some_and(|n| n != 0);
        let (zero, ready) = (self.asm.label(), self.asm.label());
        self.int_into(a, Gpr::RAX);
        let divisor = self.int(b, Gpr::RCX);
        if !known {
            self.asm.test(divisor, divisor);
            self.asm.jcc(Cond::Equal, zero);
        }
        self.asm.cqo();
        self.asm.idiv(divisor);
        // Towards −∞: one step down where there is a remainder of the other sign than the divisor's.
        self.asm.test(Gpr::RDX, Gpr::RDX);
        self.asm.jcc(Cond::Equal, ready);
        if op == IntOp::FloorDiv {
            self.asm.alu(Alu::Xor, Gpr::RDX, divisor);
            self.asm.jcc(Cond::NotSign, ready);
            self.asm.dec(Gpr::RAX);
        } else {
            self.asm.mov(Gpr::RAX, Gpr::RDX);
            self.asm.alu(Alu::Xor, Gpr::RAX, divisor);
            self.asm.jcc(Cond::NotSign, ready);
            self.asm.alu(Alu::Add, Gpr::RDX, divisor);
        }
        if !known {
            self.asm.jmp(ready);
            self.asm.bind(zero);
            self.asm.mov_imm(Gpr::RAX, 0);
            self.asm.mov_imm(Gpr::RDX, 0);
        } else {
            self.asm.bind(zero);
        }
        self.asm.bind(ready);
        self.int_done(inst.dst, if op == IntOp::FloorDiv { Gpr::RAX } else { Gpr::RDX });
    }

    /// Division by a number above 1, without a division: for 0 ≤ x < 2⁶³ the quotient is the upper half of x · ⌈2⁶³⁺ᵇ / n⌉, shifted by
    /// b − 1, where n has b bits; of a negative x, ⌊x / n⌋ is −1 − ⌊(−1 − x) / n⌋.
    fn divide_by(&mut self, n: i32, op: IntOp, inst: &Inst) {
        let a = inst.args[0];
        let (factor, shift) = reciprocal(n as u32);
        self.int_into(a, Gpr::RAX);
        self.asm.mov(Gpr::RCX, Gpr::RAX);
        self.asm.shift_imm(Shift::Sar, Gpr::RCX, 63);
        self.asm.alu(Alu::Xor, Gpr::RAX, Gpr::RCX);
        self.asm.mov_imm(Gpr::RDX, factor as i64);
        self.asm.mul(Gpr::RDX);
        self.asm.shift_imm(Shift::Shr, Gpr::RDX, shift);
        self.asm.alu(Alu::Xor, Gpr::RDX, Gpr::RCX);
        if op == IntOp::FloorDiv {
            return self.int_done(inst.dst, Gpr::RDX);
        }
        self.asm.imul_imm(Gpr::RDX, Gpr::RDX, n);
        self.int_into(a, Gpr::RAX);
        self.asm.alu(Alu::Sub, Gpr::RAX, Gpr::RDX);
        self.int_done(inst.dst, Gpr::RAX);
    }
}

/// The factor whose product with a number below 2⁶³, in its upper half and shifted, is the quotient by `n` > 1.
fn reciprocal(n: u32) -> (u64, u8) {
    let bits = 32 - (n - 1).leading_zeros();
    let factor = (1u128 << (63 + bits)).div_ceil(n.into());
    // n > 2^(bits − 1), so that the factor is below 2^64.
    (factor as u64, bits as u8 - 1)
}

#[cfg(test)]
mod tests {
    use super::reciprocal;

    #[test]
    fn quotients_by_products_are_exact() {
        let numbers = (0..64).flat_map(|bit| [1u64 << bit, (1 << bit) - 1, (1 << bit) + 1]).filter(|&x| x < 1 << 63);
        let numbers: Vec<u64> = numbers.chain([i64::MAX as u64, 1_000_000_007]).collect();
        for n in (2..5000).chain([65535, 65537, 1 << 30, i32::MAX as u32 - 1, i32::MAX as u32]) {
            let (factor, shift) = reciprocal(n);
            let around = numbers.iter().flat_map(|&x| {
                [x, x / u64::from(n) * u64::from(n), (x / u64::from(n) * u64::from(n)).saturating_sub(1)]
            });
            for x in around {
                let quotient = ((u128::from(x) * u128::from(factor)) >> 64) as u64 >> shift;
                assert_eq!(quotient, x / u64::from(n), "{x} / {n}");
            }
        }
    }
}
