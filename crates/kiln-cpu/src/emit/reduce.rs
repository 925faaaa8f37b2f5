//! Combination of all lanes, calls of scalar functions and index checks: the sequences that leave the vector shape.

use super::*;

impl Emitter<'_> {
    /// Reduces lanes by halves: upper half onto lower, until one is left, which is then broadcast.
    pub(super) fn reduce(&mut self, kind: Combine, inst: &Inst) {
        let [a, ..] = inst.args;
        let ty = inst.ty;
        if ty == Ty::Mask {
            return self.reduce_mask(kind, inst.dst, a);
        }
        let op = match kind {
            Combine::Add => BinOp::Add,
            Combine::Mul => BinOp::Mul,
            Combine::Min => BinOp::MinNan,
            Combine::Max => BinOp::MaxNan,
        };
        let full = self.width(ty);
        // The result's register, which differs from the operand's, takes the shuffled copies.
        let spilled = !self.in_reg(inst.dst);
        let other = if spilled { self.s1 } else { self.dst(inst.dst) };
        let x = self.reg(a, self.s0);
        self.move_reg(full, self.s0, x);
        let mut width = full;
        if width == Width::V512 {
            self.asm.vector(ops::VEXTRACTF64X4, Width::V512, Args::mr(other, self.s0).imm(1));
            self.lower_half(op, ty, other, spilled);
            width = Width::V256;
        }
        if width == Width::V256 {
            self.asm.vector(ops::VEXTRACTF128, Width::V256, Args::mr(other, self.s0).imm(1));
            self.lower_half(op, ty, other, spilled);
        }
        self.asm.rmi(ops::VPSHUFD, Width::V128, other, self.s0, 0x4e);
        self.lower_half(op, ty, other, spilled);
        if ty.lane_bytes() == 4 {
            self.asm.rmi(ops::VPSHUFD, Width::V128, other, self.s0, 0xb1);
            self.lower_half(op, ty, other, spilled);
        }
        let spread = if ty.lane_bytes() == 4 { ops::VPBROADCASTD } else { ops::VPBROADCASTQ };
        let dst = self.dst(inst.dst);
        self.asm.rm(spread, full, dst, self.s0);
        self.done(inst.dst, dst);
    }

    /// `s0 = s0 ∘ other`, in the full width: elements above the half still in use are ignored.
    fn lower_half(&mut self, op: BinOp, ty: Ty, other: VReg, spilled: bool) {
        if spilled {
            // The second scratch register is wanted by sequences; pass the operand through memory.
            let (area, width) = (self.work(3), self.width(ty));
            self.asm.mr(ops::VMOVUPS_ST, width, area, other);
            return self.bin_memory(op, ty, area);
        }
        self.bin_regs(op, ty, self.s0, self.s0, other);
    }

    fn reduce_mask(&mut self, kind: Combine, dst: V, a: V) {
        let any = kind == Combine::Max;
        if self.avx512 {
            let k = self.kreg(a, K1);
            self.asm.kortest(self.mask_size(), k, k);
            self.asm.mov_imm(Gpr::RAX, 0);
            self.asm.setcc(if any { Cond::NotEqual } else { Cond::Below }, Gpr::RAX);
        } else {
            let reg = self.reg(a, self.s0);
            let vop = if self.mask_lane() == 4 { ops::VMOVMSKPS } else { ops::VMOVMSKPD };
            self.asm.rm(vop, Width::V256, Gpr::RCX, reg);
            self.asm.mov_imm(Gpr::RAX, 0);
            self.asm.alu_imm(Alu::Cmp, Gpr::RCX, if any { 0 } else { (1 << self.lanes) - 1 });
            self.asm.setcc(if any { Cond::NotEqual } else { Cond::Equal }, Gpr::RAX);
        }
        self.asm.neg(Gpr::RAX);
        self.mask_from_rax(dst);
    }

    /// Calls a scalar function on packed lanes, with all live registers saved around it.
    pub(super) fn call(&mut self, f: ScalarFn, inst: &Inst) {
        let [a, b, mask, other] = inst.args;
        let ty = inst.ty;
        let width = self.width(ty);
        let (wa, wb, wr) = (self.work(0), self.work(1), self.work(2));
        let none = self.asm.label();
        if mask.is_some() {
            let y = self.reg(other, self.s0);
            self.asm.mr(ops::VMOVUPS_ST, width, wr, y);
            self.mask_bits(mask, Gpr::RAX);
            self.asm.test(Gpr::RAX, Gpr::RAX);
            self.asm.jcc(Cond::Equal, none);
        }
        let x = self.reg(a, self.s0);
        self.asm.mr(ops::VMOVUPS_ST, width, wa, x);
        if b.is_some() {
            let y = self.reg(b, self.s0);
            self.asm.mr(ops::VMOVUPS_ST, width, wb, y);
        }
        let (saved, bytes) = self.save_live();
        let moved = |m: Mem| m.offset(bytes);
        let result = if mask.is_some() { self.work(3) } else { wr };
        self.asm.lea(Gpr::RDI, moved(result));
        self.asm.lea(Gpr::RSI, moved(wa));
        self.asm.lea(Gpr::RDX, moved(if b.is_some() { wb } else { wa }));
        self.asm.mov_imm(Gpr::RCX, self.lanes as i64);
        self.asm.mov_imm(Gpr::R8, f.number() as i64);
        self.call_function(Callee::Lanes(ty));
        self.restore(&saved, bytes);
        if mask.is_some() {
            self.asm.rm(ops::VMOVUPS, width, self.s0, result);
            if self.avx512 {
                let k = self.kreg(mask, K1);
                let store = if ty.lane_bytes() == 4 { ops::VMOVUPS_ST } else { ops::VMOVUPD_ST };
                self.asm.vector(store, width, Args::mr(wr, self.s0).mask(k));
            } else {
                // The narrowing of a mask takes the fourth work area, which is free again.
                let k = self.vmask(mask, ty.lane_bytes(), self.s1);
                let store = if ty.lane_bytes() == 4 { ops::VMASKMOVPS_ST } else { ops::VMASKMOVPD_ST };
                self.asm.vector(store, width, Args::rvm(self.s0, k, wr));
            }
            self.asm.bind(none);
        }
        let dst = self.dst(inst.dst);
        self.asm.rm(ops::VMOVUPS, width, dst, wr);
        self.done(inst.dst, dst);
    }

    /// Pushes the live caller-saved registers; returns them and the bytes pushed.
    fn save_live(&mut self) -> (Vec<(u8, Class)>, i32) {
        let saved = self.alloc.saved_across(self.at, self.f, self.registers);
        let bytes = (saved.len() as i32 * 64).max(64);
        self.asm.alu_imm(Alu::Sub, Gpr::RSP, bytes);
        for (n, &(v, class)) in saved.iter().enumerate() {
            let slot = Mem::base(Gpr::RSP).offset(64 * n as i32);
            match class {
                Class::Int => self.asm.store(slot, Gpr(v), Size::Q),
                Class::Mask => self.asm.kmov_store(MaskSize::Q, slot, KReg(v)),
                Class::Vector => self.asm.mr(ops::VMOVUPS_ST, self.full_width(), slot, VReg(v)),
            }
        }
        (saved, bytes)
    }

    /// Undoes [`Self::save_live`], and reloads the constants that are in registers.
    fn restore(&mut self, saved: &[(u8, Class)], bytes: i32) {
        for (n, &(v, class)) in saved.iter().enumerate() {
            let slot = Mem::base(Gpr::RSP).offset(64 * n as i32);
            match class {
                Class::Int => self.asm.load(Gpr(v), slot, Size::Q),
                Class::Mask => self.asm.kmov_load(MaskSize::Q, KReg(v), slot),
                Class::Vector => self.asm.rm(ops::VMOVUPS, self.full_width(), VReg(v), slot),
            }
        }
        self.asm.alu_imm(Alu::Add, Gpr::RSP, bytes);
        for (v, reg) in self.alloc.hoisted.clone() {
            self.load_const(v, VReg(reg));
        }
    }

    pub(super) fn transpose(&mut self, bytes: u8, inst: &Inst) {
        // Through the first work area, since arguments may live in each other's registers.
        for (n, v) in inst.args.into_iter().enumerate() {
            let (from, slot) = (self.int(v, Gpr::RAX), self.work(0).offset(8 * n as i32));
            self.asm.store(slot, from, Size::Q);
        }
        let (saved, pushed) = self.save_live();
        for (n, r) in [Gpr::RDI, Gpr::RSI, Gpr::RDX, Gpr::RCX].into_iter().enumerate() {
            let slot = self.work(0).offset(8 * n as i32 + pushed);
            self.asm.load(r, slot, Size::Q);
        }
        self.asm.mov_imm(Gpr::R8, self.lanes as i64);
        self.call_function(Callee::Transpose(bytes));
        self.restore(&saved, pushed);
    }

    fn call_function(&mut self, callee: Callee) {
        let at = self.asm.mov_address(Gpr::RAX);
        self.calls.push(Call { at, callee });
        self.asm.vzeroupper();
        self.asm.call(Gpr::RAX);
    }

    /// One bit per lane of a mask.
    pub(super) fn mask_bits(&mut self, mask: V, dst: Gpr) {
        if self.avx512 {
            let k = self.kreg(mask, K1);
            return self.asm.kmov_to(MaskSize::D, dst, k);
        }
        let k = self.reg(mask, self.s0);
        let vop = if self.mask_lane() == 4 { ops::VMOVMSKPS } else { ops::VMOVMSKPD };
        self.asm.rm(vop, Width::V256, dst, k);
    }

    fn full_width(&self) -> Width {
        if self.avx512 { Width::V512 } else { Width::V256 }
    }

    pub(super) fn check_index(&mut self, inst: &Inst) {
        let [a, b, active, record] = inst.args;
        let ty = inst.ty;
        let (width, lane) = (self.width(ty), ty.lane_bytes());
        let (values, sizes) = (self.work(0), self.work(1));
        let x = self.reg(a, self.s0);
        self.asm.mr(ops::VMOVUPS_ST, width, values, x);
        let size = self.int(b, Gpr::RAX);
        let dst = self.dst(inst.dst);
        // The bits of lanes out of range go to rcx, the checked vector to dst.
        if self.avx512 {
            self.splat(ty, self.s1, size);
            let (less, mov) = if lane == 4 { (ops::VPCMPUD_K, ops::VMOVAPS) } else { (ops::VPCMPUQ_K, ops::VMOVAPD) };
            self.asm.rvmi(less, width, K1, x, self.s1, 1);
            self.asm.vector(mov, width, Args::rm(dst, x).mask(K1).zero());
            self.asm.knot(self.mask_size(), K1, K1);
            if active.is_some() {
                let k = self.kreg(active, KReg(0));
                self.asm.kand(self.mask_size(), K1, K1, k);
            }
            self.asm.kmov_to(MaskSize::D, Gpr::RCX, K1);
        } else {
            // 0 ≤ x < size: not (0 > x) and size > x.
            self.splat(ty, self.s1, size);
            let gt = if lane == 4 { ops::VPCMPGTD } else { ops::VPCMPGTQ };
            self.asm.rvm(gt, width, self.s1, self.s1, x);
            self.asm.rvm(ops::VPXOR, width, self.s0, self.s0, self.s0);
            self.asm.rvm(gt, width, self.s0, self.s0, values);
            self.asm.rvm(ops::VPANDN, width, self.s1, self.s0, self.s1);
            self.asm.rvm(ops::VPAND, width, dst, self.s1, values);
            // dst may be the first scratch register; it is not touched below before it is stored.
            let ones = self.splat_bytes(u64::MAX, lane);
            self.asm.rvm(ops::VPXOR, width, self.s1, self.s1, ones);
            self.asm.mr(ops::VMOVUPS_ST, width, sizes, self.s1);
            if active.is_some() {
                let k = self.vmask(active, lane, self.s1);
                self.asm.rvm(ops::VPAND, width, self.s1, k, sizes);
            }
            let vop = if lane == 4 { ops::VMOVMSKPS } else { ops::VMOVMSKPD };
            self.asm.rm(vop, width, Gpr::RCX, self.s1);
        }
        let fine = self.asm.label();
        self.asm.test(Gpr::RCX, Gpr::RCX);
        self.asm.jcc(Cond::Equal, fine);
        // The number of zeros below the lowest set bit is the lane.
        self.asm.lea(Gpr::RDX, Mem::base(Gpr::RCX).offset(-1));
        self.asm.not(Gpr::RCX);
        self.asm.alu(Alu::And, Gpr::RDX, Gpr::RCX);
        self.asm.popcnt(Gpr::RDX, Gpr::RDX);
        let at = Mem::indexed(Gpr::RSP, Gpr::RDX, lane as u8).offset(values.disp);
        self.asm.load_signed(Gpr::RCX, at, if lane == 4 { Size::D } else { Size::Q });
        let to = self.int(record, Gpr::RDX);
        self.asm.store(Mem::base(to).offset(8), Gpr::RCX, Size::Q);
        let size = self.int(b, Gpr::RAX);
        self.asm.store(Mem::base(to).offset(16), size, Size::Q);
        self.asm.mov_imm(Gpr::RAX, 1);
        self.asm.store(Mem::base(to), Gpr::RAX, Size::Q);
        self.asm.bind(fine);
        self.done(inst.dst, dst);
    }
}
