//! Vector arithmetic, comparisons, selection and masks.

use super::*;

/// The machine instruction of a simple operation.
fn simple(op: BinOp, ty: Ty, avx512: bool) -> Option<VOp> {
    use BinOp::*;
    Some(match (op, ty) {
        (Add, Ty::F32) => ops::VADDPS,
        (Add, Ty::F64) => ops::VADDPD,
        (Add, Ty::I32) => ops::VPADDD,
        (Add, Ty::I64) => ops::VPADDQ,
        (Sub, Ty::F32) => ops::VSUBPS,
        (Sub, Ty::F64) => ops::VSUBPD,
        (Sub, Ty::I32) => ops::VPSUBD,
        (Sub, Ty::I64) => ops::VPSUBQ,
        (Mul, Ty::F32) => ops::VMULPS,
        (Mul, Ty::F64) => ops::VMULPD,
        (Mul, Ty::I32) => ops::VPMULLD,
        (Mul, Ty::I64) if avx512 => ops::VPMULLQ,
        (Div, Ty::F32) => ops::VDIVPS,
        (Div, Ty::F64) => ops::VDIVPD,
        (Min, Ty::F32) => ops::VMINPS,
        (Min, Ty::F64) => ops::VMINPD,
        (Max, Ty::F32) => ops::VMAXPS,
        (Max, Ty::F64) => ops::VMAXPD,
        (Min | MinNan, Ty::I32) => ops::VPMINSD,
        (Max | MaxNan, Ty::I32) => ops::VPMAXSD,
        (Min | MinNan, Ty::I64) if avx512 => ops::VPMINSQ,
        (Max | MaxNan, Ty::I64) if avx512 => ops::VPMAXSQ,
        (And, Ty::F32) => ops::VANDPS,
        (And, Ty::F64) => ops::VANDPD,
        (And, Ty::I64) if avx512 => ops::VPANDQ,
        (And, _) => ops::VPAND,
        (Or, Ty::F32) => ops::VORPS,
        (Or, Ty::F64) => ops::VORPD,
        (Or, Ty::I64) if avx512 => ops::VPORQ,
        (Or, _) => ops::VPOR,
        (Xor, Ty::F32) => ops::VXORPS,
        (Xor, Ty::F64) => ops::VXORPD,
        (Xor, Ty::I64) if avx512 => ops::VPXORQ,
        (Xor, _) => ops::VPXOR,
        (AndNot, Ty::F32) => ops::VANDNPS,
        (AndNot, Ty::F64) => ops::VANDNPD,
        (AndNot, Ty::I64) if avx512 => ops::VPANDNQ,
        (AndNot, _) => ops::VPANDN,
        (MulEven, Ty::I32) => ops::VPMULUDQ,
        (MinBytes, Ty::I32 | Ty::I8) => ops::VPMINUB,
        (Shl, Ty::I32) => ops::VPSLLVD,
        (Shl, Ty::I64) => ops::VPSLLVQ,
        (Shr, Ty::I32) => ops::VPSRLVD,
        (Shr, Ty::I64) => ops::VPSRLVQ,
        (Sar, Ty::I32) => ops::VPSRAVD,
        (Sar, Ty::I64) if avx512 => ops::VPSRAVQ,
        _ => return None,
    })
}

/// Shifts by a constant.
fn shift_imm(op: BinOp, ty: Ty, avx512: bool) -> Option<VOp> {
    Some(match (op, ty) {
        (BinOp::Shl, Ty::I32) => ops::VPSLLD_I,
        (BinOp::Shl, Ty::I64) => ops::VPSLLQ_I,
        (BinOp::Shr, Ty::I32) => ops::VPSRLD_I,
        (BinOp::Shr, Ty::I64) => ops::VPSRLQ_I,
        (BinOp::Sar, Ty::I32) => ops::VPSRAD_I,
        (BinOp::Sar, Ty::I64) if avx512 => ops::VPSRAQ_I,
        _ => return None,
    })
}

fn commutes(op: BinOp) -> bool {
    matches!(op, BinOp::Add | BinOp::Mul | BinOp::And | BinOp::Or | BinOp::Xor)
}

impl Emitter<'_> {
    pub(super) fn vector(&mut self, inst: &Inst) {
        let [a, b, ..] = inst.args;
        let ty = inst.ty;
        match inst.op {
            Op::Bin(op) if ty == Ty::Mask => self.mask_bin(op, inst.dst, a, b),
            Op::Un(UnOp::Not) => self.mask_not(inst.dst, a),
            Op::Bin(op) => {
                let dst = self.dst(inst.dst);
                self.bin(op, ty, dst, a, b);
                self.done(inst.dst, dst);
            }
            Op::Fma(op) => self.fma(op, inst),
            Op::Un(op) => self.un(op, inst),
            Op::Compare(op) => self.compare(op, inst),
            Op::Select => self.select(inst),
            Op::CompareInt(op) => {
                self.compare_ints(a, b);
                let cond = match op {
                    CompareOp::Eq => Cond::Equal,
                    CompareOp::Ne => Cond::NotEqual,
                    CompareOp::Lt => Cond::Less,
                    CompareOp::Le => Cond::LessEqual,
                    CompareOp::Gt => Cond::Greater,
                    CompareOp::Ge => Cond::GreaterEqual,
                };
                self.asm.mov_imm(Gpr::RAX, 0);
                self.asm.setcc(cond, Gpr::RAX);
                self.asm.neg(Gpr::RAX);
                self.mask_from_rax(inst.dst);
            }
            Op::TailMask => self.tail_mask(inst),
            Op::Splat => {
                let dst = self.dst(inst.dst);
                let from = self.int(a, Gpr::RAX);
                self.splat(ty, dst, from);
                self.done(inst.dst, dst);
            }
            Op::LaneIndex(vectors) => {
                let dst = self.dst(inst.dst);
                let from = self.int(a, Gpr::RAX);
                self.splat(ty, dst, from);
                let size = ty.lane_bytes();
                let mut bytes = [0u8; 64];
                for (lane, chunk) in bytes[..self.lanes * size].chunks_mut(size).enumerate() {
                    let n = (lane + vectors as usize * self.lanes) as u64;
                    chunk.copy_from_slice(&n.to_le_bytes()[..size]);
                }
                let iota = self.asm.constant(&bytes[..self.lanes * size]);
                let add = if size == 4 { ops::VPADDD } else { ops::VPADDQ };
                self.asm.rvm(add, self.width(ty), dst, dst, iota);
                self.done(inst.dst, dst);
            }
            Op::Convert(from) => self.convert(inst, from),
            Op::RoundTo(dtype) => self.round_to(dtype, inst),
            Op::Permute => {
                let (dst, width) = (self.dst(inst.dst), self.width(ty));
                let (x, lanes) = (self.reg(a, self.s0), self.reg(b, self.s1));
                match width {
                    _ if ty.lane_bytes() == 8 && self.avx512 && width != Width::V128 => {
                        self.asm.rvm(ops::VPERMQ, width, dst, lanes, x);
                    }
                    _ if ty.lane_bytes() == 8 => self.permute_wide(dst, x, lanes),
                    // Four lanes are permuted by another instruction, whose operands are the other way round.
                    Width::V128 => self.asm.rvm(ops::VPERMILPS, width, dst, x, lanes),
                    _ => self.asm.rvm(ops::VPERMPS, width, dst, lanes, x),
                }
                self.done(inst.dst, dst);
            }
            Op::PackBf16 => self.pack_pairs(inst),
            Op::Scale => self.scale(inst),
            Op::Reduce(kind) => self.reduce(kind, inst),
            Op::Call(f) => self.call(f, inst),
            Op::CheckIndex => self.check_index(inst),
            _ => unreachable!("{inst} gives no vector"),
        }
    }

    pub(super) fn splat(&mut self, ty: Ty, dst: VReg, from: Gpr) {
        let width = self.width(ty);
        let (direct, via, spread) = match ty.lane_bytes() {
            4 => (ops::VPBROADCASTD_G, ops::VMOVD, ops::VPBROADCASTD),
            _ => (ops::VPBROADCASTQ_G, ops::VMOVQ, ops::VPBROADCASTQ),
        };
        if self.avx512 {
            return self.asm.rm(direct, width, dst, from);
        }
        self.asm.rm(via, Width::V128, dst, from);
        self.asm.rm(spread, width, dst, dst);
    }

    /// `dst = a ∘ b`; sequences need a `dst` distinct from both.
    pub(super) fn bin(&mut self, op: BinOp, ty: Ty, dst: VReg, a: V, b: V) {
        let width = self.width(ty);
        if let (Some(by), Some(vop)) = (self.const_bits(b), shift_imm(op, ty, self.avx512)) {
            let x = self.reg(a, dst);
            return self.asm.rmi(vop, width, dst, x, by as u8);
        }
        if let (BinOp::MulEven, Some(bits)) = (op, self.const_bits(b)) {
            // Only even lanes are read, so that the constant may be repeated by 64 bits, which the instruction does itself.
            let x = self.reg(a, self.s0);
            return self.op_const(ops::VPMULUDQ, width, dst, x, bits & 0xffff_ffff, 8);
        }
        if let Some(vop) = simple(op, ty, self.avx512) {
            let (a, b) = if commutes(op) && !self.in_reg(a) && self.in_reg(b) { (b, a) } else { (a, b) };
            // dst may be b's register, so a comes in through scratch.
            let x = self.reg(a, self.s0);
            return self.op3(vop, width, dst, x, b, self.s1);
        }
        let x = self.reg(a, self.s0);
        if ty.is_float() && matches!(op, BinOp::MinNan | BinOp::MaxNan) {
            let (rm, repeat) = self.rm(b, ops::VMAXPS, self.s1);
            let (rm, repeat) =
                if ty == Ty::F64 && repeat { (self.reg(b, self.s1).into(), false) } else { (rm, repeat) };
            return self.extreme(op, ty, dst, x, rm, repeat);
        }
        if self.avx512
            && let Some(lanes) = op.moved_lanes(self.lanes)
        {
            return self.move_lanes(&lanes.collect::<Vec<_>>(), ty, dst, x, b);
        }
        let y = self.reg(b, self.s1);
        self.bin_regs(op, ty, dst, x, y);
    }

    /// Minimum or maximum that keeps `a` where it is NaN. `b` is not the second scratch register (but with AVX-512).
    fn extreme(&mut self, op: BinOp, ty: Ty, dst: VReg, a: VReg, b: Rm, repeat: bool) {
        let width = self.width(ty);
        let plain = if op == BinOp::MinNan { BinOp::Min } else { BinOp::Max };
        let vop = simple(plain, ty, self.avx512).expect("floats have min and max");
        let args = |dst: VReg| {
            let args = Args::rvm(dst, a, b);
            if repeat { args.broadcast() } else { args }
        };
        if self.avx512 {
            let cmp = if ty == Ty::F32 { ops::VCMPPS_K } else { ops::VCMPPD_K };
            if dst == a {
                // Only lanes that are not NaN are written.
                self.asm.rvmi(cmp, width, K1, a, a, 7);
                return self.asm.vector(vop, width, args(dst).mask(K1));
            }
            self.asm.rvmi(cmp, width, K1, a, a, 3);
            self.asm.vector(vop, width, args(dst));
            let mov = if ty == Ty::F32 { ops::VMOVAPS } else { ops::VMOVAPD };
            return self.asm.vector(mov, width, Args::rm(dst, a).mask(K1));
        }
        let (cmp, blend) = if ty == Ty::F32 { (ops::VCMPPS, ops::VBLENDVPS) } else { (ops::VCMPPD, ops::VBLENDVPD) };
        self.asm.rvmi(cmp, width, self.s1, a, a, 3);
        let kept: Rm = if dst == a {
            let area = self.work(1);
            self.asm.mr(ops::VMOVUPS_ST, width, area, a);
            area.into()
        } else {
            a.into()
        };
        self.asm.vector(vop, width, args(dst));
        self.asm.vector(blend, width, Args::rvm(dst, dst, kept).select(self.s1));
    }

    /// `dst = a ∘ b` on registers; both scratch registers may be among the operands, `dst` differs from both where the
    /// operation is a sequence, unless `dst` is the first scratch register, as then is `a`.
    pub(super) fn bin_regs(&mut self, op: BinOp, ty: Ty, dst: VReg, a: VReg, b: VReg) {
        let width = self.width(ty);
        if let Some(vop) = simple(op, ty, self.avx512) {
            return self.asm.rvm(vop, width, dst, a, b);
        }
        match (op, ty) {
            (BinOp::MinNan | BinOp::MaxNan, _) if ty.is_float() => self.extreme(op, ty, dst, a, b.into(), false),
            (BinOp::Min | BinOp::Max | BinOp::MinNan | BinOp::MaxNan, _) => {
                // AVX2 has no 64-bit minimum: compare and blend, the operands kept in work areas.
                let (wa, wb) = (self.work(1), self.work(2));
                self.asm.mr(ops::VMOVUPS_ST, width, wa, a);
                self.asm.mr(ops::VMOVUPS_ST, width, wb, b);
                self.asm.rvm(ops::VPCMPGTQ, width, self.s1, a, b);
                self.asm.rm(ops::VMOVUPS, width, self.s0, wa);
                // Where a > b the mask takes the last operand.
                if matches!(op, BinOp::Min | BinOp::MinNan) {
                    self.asm.vector(ops::VBLENDVPD, width, Args::rvm(dst, self.s0, wb).select(self.s1));
                } else {
                    self.asm.rm(ops::VMOVUPS, width, self.s0, wb);
                    self.asm.vector(ops::VBLENDVPD, width, Args::rvm(dst, self.s0, wa).select(self.s1));
                }
            }
            (BinOp::Mul, _) => {
                // 64 × 64 → 64 from 32 × 32 → 64: low·low + ((high·low + low·high) << 32).
                let (wa, wb) = (self.work(1), self.work(2));
                self.asm.mr(ops::VMOVUPS_ST, width, wa, a);
                self.asm.mr(ops::VMOVUPS_ST, width, wb, b);
                self.asm.rmi(ops::VPSHUFD, width, self.s0, wb, 0xb1);
                self.asm.rvm(ops::VPMULLD, width, self.s0, self.s0, wa);
                self.asm.rmi(ops::VPSRLQ_I, width, self.s1, self.s0, 32);
                self.asm.rvm(ops::VPADDD, width, self.s0, self.s0, self.s1);
                self.asm.rmi(ops::VPSLLQ_I, width, self.s0, self.s0, 32);
                self.asm.rm(ops::VMOVUPS, width, self.s1, wa);
                self.asm.rvm(ops::VPMULUDQ, width, self.s1, self.s1, wb);
                self.asm.rvm(ops::VPADDQ, width, dst, self.s0, self.s1);
            }
            (BinOp::Sar, _) => {
                // A logical shift, then the sign bit's copies by (x ⊕ m) − m.
                let (wa, wb) = (self.work(1), self.work(2));
                self.asm.mr(ops::VMOVUPS_ST, width, wa, a);
                self.asm.mr(ops::VMOVUPS_ST, width, wb, b);
                let sign = self.splat_bytes(1 << 63, 8);
                self.asm.rm(ops::VMOVUPS, width, self.s0, wa);
                self.asm.rvm(ops::VPSRLVQ, width, self.s0, self.s0, wb);
                self.asm.rm(ops::VMOVUPS, width, self.s1, sign);
                self.asm.rvm(ops::VPSRLVQ, width, self.s1, self.s1, wb);
                self.asm.rvm(ops::VPXOR, width, self.s0, self.s0, self.s1);
                self.asm.rvm(ops::VPSUBQ, width, dst, self.s0, self.s1);
            }
            (BinOp::ZipEven, _) => {
                // In each 128 bits: a₀ a₂ b₀ b₂, then a₀ b₀ a₂ b₂.
                self.asm.rvmi(ops::VSHUFPS, width, dst, a, b, 0x88);
                self.asm.rmi(ops::VPSHUFD, width, dst, dst, 0xd8);
            }
            (BinOp::InterleaveLow | BinOp::InterleaveHigh, _) => self.interleave(op, ty, dst, a, b),
            (BinOp::Evens | BinOp::Odds, _) => self.deinterleave(op, ty, dst, a, b),
            (BinOp::Div, _) => self.divide_ints(dst, a, b),
            _ => unreachable!("{op:?} of {ty:?}"),
        }
    }

    /// `s0 = s0 ∘ [memory]`, with the second scratch register free.
    pub(super) fn bin_memory(&mut self, op: BinOp, ty: Ty, b: Mem) {
        let width = self.width(ty);
        if let Some(vop) = simple(op, ty, self.avx512) {
            return self.asm.rvm(vop, width, self.s0, self.s0, b);
        }
        if ty.is_float() {
            return self.extreme(op, ty, self.s0, self.s0, b.into(), false);
        }
        self.asm.rm(ops::VMOVUPS, width, self.s1, b);
        self.bin_regs(op, ty, self.s0, self.s0, self.s1);
    }

    /// 32-bit integer quotients through 64-bit floats, which hold them exactly, separately for low and high halves.
    fn divide_ints(&mut self, dst: VReg, a: VReg, b: VReg) {
        let width = self.width(Ty::I32);
        let (wa, wb, wq) = (self.work(1), self.work(2), self.work(3));
        self.asm.mr(ops::VMOVUPS_ST, width, wa, a);
        self.asm.mr(ops::VMOVUPS_ST, width, wb, b);
        // Half of the lanes, as 64-bit floats, fill a register.
        let (parts, wide) = if self.f.wide { (1, self.width(Ty::F64)) } else { (2, width) };
        for part in 0..parts {
            let offset = part * wide.bytes() as i32 / 2;
            self.asm.rm(ops::VCVTDQ2PD, wide, self.s0, wa.offset(offset));
            self.asm.rm(ops::VCVTDQ2PD, wide, self.s1, wb.offset(offset));
            self.asm.rvm(ops::VDIVPD, wide, self.s0, self.s0, self.s1);
            self.asm.rm(ops::VCVTTPD2DQ, wide, self.s0, self.s0);
            self.asm.mr(ops::VMOVUPS_ST, wide.half(), wq.offset(offset), self.s0);
        }
        // Zero where the divisor is: the quotient with the lanes of "b = 0" cleared.
        self.asm.rvm(ops::VXORPS, Width::V128, self.s0, self.s0, self.s0);
        if self.avx512 {
            self.asm.rvmi(ops::VPCMPD_K, width, K1, self.s0, wb, 4);
            self.asm.vector(ops::VMOVUPS, width, Args::rm(dst, wq).mask(K1).zero());
        } else {
            self.asm.rvm(ops::VPCMPEQD, width, self.s0, self.s0, wb);
            self.asm.rvm(ops::VPANDN, width, dst, self.s0, wq);
        }
    }

    fn fma(&mut self, op: FmaOp, inst: &Inst) {
        let [mut a, mut b, c, _] = inst.args;
        let ty = inst.ty;
        let width = self.width(ty);
        let dst = self.dst(inst.dst);
        let f = forms(op, ty);
        let at = |e: &Self, v: V| match e.alloc.locations[v.index()] {
            Location::Reg(r) => Some(VReg(r)),
            _ => None,
        };
        // The operand that is overwritten decides the form; one that is not in a register becomes the memory operand.
        if at(self, c) == Some(dst) {
            if at(self, a).is_none() {
                std::mem::swap(&mut a, &mut b);
            }
            let x = self.reg(a, self.s1);
            self.op3(f.f231, width, dst, x, b, self.s1);
            return self.done(inst.dst, dst);
        }
        if at(self, b) == Some(dst) || at(self, a) != Some(dst) && at(self, b).is_none() {
            std::mem::swap(&mut a, &mut b);
        }
        if at(self, a) != Some(dst) {
            if at(self, c).is_none() || at(self, a).is_some() {
                let z = self.reg(c, dst);
                self.move_reg(width, dst, z);
                if at(self, a).is_none() {
                    std::mem::swap(&mut a, &mut b);
                }
                let x = self.reg(a, self.s1);
                self.op3(f.f231, width, dst, x, b, self.s1);
                return self.done(inst.dst, dst);
            }
            self.reg(a, dst);
        }
        // The first factor is in dst.
        match (at(self, b), at(self, c)) {
            (Some(y), _) => self.op3(f.f213, width, dst, y, c, self.s1),
            (None, Some(z)) => self.op3(f.f132, width, dst, z, b, self.s1),
            (None, None) => {
                let y = self.reg(b, self.s1);
                self.op3(f.f213, width, dst, y, c, self.s1);
            }
        }
        self.done(inst.dst, dst);
    }

    fn un(&mut self, op: UnOp, inst: &Inst) {
        let [a, ..] = inst.args;
        let ty = inst.ty;
        let width = self.width(ty);
        let dst = self.dst(inst.dst);
        let single = ty == Ty::F32;
        match op {
            UnOp::Sqrt => self.op2(if single { ops::VSQRTPS } else { ops::VSQRTPD }, width, dst, a, self.s1),
            UnOp::Round | UnOp::Floor | UnOp::Ceil | UnOp::Trunc => {
                let mode = match op {
                    UnOp::Round => 8,
                    UnOp::Floor => 9,
                    UnOp::Ceil => 10,
                    _ => 11,
                };
                let vop = match (self.avx512, single) {
                    (true, true) => ops::VRNDSCALEPS,
                    (true, false) => ops::VRNDSCALEPD,
                    (false, true) => ops::VROUNDPS,
                    (false, false) => ops::VROUNDPD,
                };
                let x = self.reg(a, dst);
                self.asm.rmi(vop, width, dst, x, mode);
            }
            UnOp::AbsInt if ty == Ty::I32 => self.op2(ops::VPABSD, width, dst, a, self.s1),
            UnOp::AbsInt if self.avx512 => self.op2(ops::VPABSQ, width, dst, a, self.s1),
            UnOp::AbsInt => {
                // (x ⊕ s) − s with s the sign's copies.
                let x = self.reg(a, self.s0);
                self.asm.rvm(ops::VPXOR, width, self.s1, self.s1, self.s1);
                self.asm.rvm(ops::VPCMPGTQ, width, self.s1, self.s1, x);
                self.asm.rvm(ops::VPXOR, width, dst, x, self.s1);
                self.asm.rvm(ops::VPSUBQ, width, dst, dst, self.s1);
            }
            UnOp::OddToEven => {
                let x = self.reg(a, dst);
                self.asm.rmi(ops::VPSRLQ_I, width, dst, x, 32);
            }
            UnOp::Reverse => {
                // Within each 16 bytes, then those.
                let size = ty.lane_bytes();
                let order: Vec<u8> =
                    (0..64).map(|i| (16 / size - 1 - i % 16 / size) * size + i % size).map(|i| i as u8).collect();
                let order = self.asm.constant(&order);
                let x = self.reg(a, dst);
                self.asm.rvm(ops::VPSHUFB, width, dst, x, order);
                self.asm.rvmi(ops::VSHUFI64X2, width, dst, dst, dst, 0x1b);
            }
            UnOp::Not => unreachable!("masks are handled apart"),
        }
        self.done(inst.dst, dst);
    }

    fn compare(&mut self, op: CompareOp, inst: &Inst) {
        let [a, b, ..] = inst.args;
        let ty = inst.ty;
        let width = self.width(ty);
        let float_predicate = match op {
            CompareOp::Eq => 0,
            CompareOp::Ne => 4,
            CompareOp::Lt => 17,
            CompareOp::Le => 18,
            CompareOp::Ge => 29,
            CompareOp::Gt => 30,
        };
        if self.avx512 {
            let k = self.kdst(inst.dst);
            let (vop, predicate) = match ty {
                Ty::F32 => (ops::VCMPPS_K, float_predicate),
                Ty::F64 => (ops::VCMPPD_K, float_predicate),
                _ => {
                    let predicate = match op {
                        CompareOp::Eq => 0,
                        CompareOp::Lt => 1,
                        CompareOp::Le => 2,
                        CompareOp::Ne => 4,
                        CompareOp::Ge => 5,
                        CompareOp::Gt => 6,
                    };
                    (if ty == Ty::I32 { ops::VPCMPD_K } else { ops::VPCMPQ_K }, predicate)
                }
            };
            let x = self.reg(a, self.s0);
            let (rm, repeat) = self.rm(b, vop, self.s1);
            let args = Args::rvm(k, x, rm).imm(predicate);
            self.asm.vector(vop, width, if repeat { args.broadcast() } else { args });
            return self.kdone(inst.dst, k);
        }
        let dst = self.dst(inst.dst);
        let x = self.reg(a, self.s0);
        if ty.is_float() {
            let vop = if ty == Ty::F32 { ops::VCMPPS } else { ops::VCMPPD };
            let (rm, _) = self.rm(b, vop, self.s1);
            self.asm.rvmi(vop, width, dst, x, rm, float_predicate);
        } else {
            let (eq, gt) = if ty == Ty::I32 { (ops::VPCMPEQD, ops::VPCMPGTD) } else { (ops::VPCMPEQQ, ops::VPCMPGTQ) };
            let y = self.reg(b, self.s1);
            match op {
                CompareOp::Eq | CompareOp::Ne => self.asm.rvm(eq, width, dst, x, y),
                CompareOp::Gt | CompareOp::Le => self.asm.rvm(gt, width, dst, x, y),
                CompareOp::Lt | CompareOp::Ge => self.asm.rvm(gt, width, dst, y, x),
            }
            if matches!(op, CompareOp::Ne | CompareOp::Le | CompareOp::Ge) {
                let ones = self.splat_bytes(u64::MAX, self.mask_lane());
                self.asm.rvm(ops::VPXOR, width, dst, dst, ones);
            }
        }
        if ty.lane_bytes() != self.mask_lane() {
            self.asm.rm(ops::VPMOVSXDQ, Width::V256, dst, dst);
        }
        self.done(inst.dst, dst);
    }

    fn select(&mut self, inst: &Inst) {
        let [mask, yes, no, _] = inst.args;
        let ty = inst.ty;
        let width = self.width(ty);
        let dst = self.dst(inst.dst);
        if self.avx512 {
            let k = self.kreg(mask, K1);
            let (copy, blend) = match ty.lane_bytes() {
                1 => (ops::VMOVDQU8, ops::VPBLENDMB),
                2 => (ops::VMOVDQU16, ops::VPBLENDMW),
                4 => (ops::VMOVAPS, ops::VBLENDMPS),
                _ => (ops::VMOVAPD, ops::VBLENDMPD),
            };
            if self.const_bits(no) == Some(0) {
                let x = self.reg(yes, dst);
                self.asm.vector(copy, width, Args::rm(dst, x).mask(k).zero());
            } else {
                let vop = blend;
                let y = self.reg(no, self.s0);
                let (rm, repeat) = self.rm(yes, vop, self.s1);
                let args = Args::rvm(dst, y, rm).mask(k);
                self.asm.vector(vop, width, if repeat { args.broadcast() } else { args });
            }
            return self.done(inst.dst, dst);
        }
        let m = self.vmask(mask, ty.lane_bytes(), self.s1);
        if self.const_bits(no) == Some(0) {
            let (rm, _) = self.rm(yes, ops::VANDPS, self.s0);
            self.asm.rvm(ops::VANDPS, width, dst, m, rm);
        } else if self.const_bits(yes) == Some(0) {
            let (rm, _) = self.rm(no, ops::VANDNPS, self.s0);
            self.asm.rvm(ops::VANDNPS, width, dst, m, rm);
        } else {
            let y = self.reg(no, self.s0);
            let (rm, _) = self.rm(yes, ops::VBLENDVPS, self.s1);
            let vop = if ty.lane_bytes() == 4 { ops::VBLENDVPS } else { ops::VBLENDVPD };
            self.asm.vector(vop, width, Args::rvm(dst, y, rm).select(m));
        }
        self.done(inst.dst, dst);
    }

    fn mask_bin(&mut self, op: BinOp, dst: V, a: V, b: V) {
        if !self.avx512 {
            let (to, x) = (self.dst(dst), self.reg(a, self.s0));
            let vop = simple(op, Ty::F32, false).expect("masks take logic only");
            self.op3(vop, Width::V256, to, x, b, self.s1);
            return self.done(dst, to);
        }
        let size = self.mask_size();
        let to = self.kdst(dst);
        let x = self.kreg(a, K1);
        let y = self.kreg(b, KReg(0));
        match op {
            BinOp::And => self.asm.kand(size, to, x, y),
            BinOp::Or => self.asm.kor(size, to, x, y),
            BinOp::Xor => self.asm.kxor(size, to, x, y),
            _ => self.asm.kandn(size, to, x, y),
        }
        self.kdone(dst, to);
    }

    fn mask_not(&mut self, dst: V, a: V) {
        if self.avx512 {
            let (to, x) = (self.kdst(dst), self.kreg(a, K1));
            self.asm.knot(self.mask_size(), to, x);
            return self.kdone(dst, to);
        }
        let (to, x) = (self.dst(dst), self.reg(a, self.s0));
        let ones = self.splat_bytes(u64::MAX, self.mask_lane());
        self.asm.rvm(ops::VXORPS, Width::V256, to, x, ones);
        self.done(dst, to);
    }

    /// Lanes whose number is below `b − a`.
    fn tail_mask(&mut self, inst: &Inst) {
        let [a, b, ..] = inst.args;
        let (x, y) = (self.int(a, Gpr::RAX), self.int(b, Gpr::RDX));
        self.asm.mov(Gpr::RCX, y);
        self.asm.alu(Alu::Sub, Gpr::RCX, x);
        self.asm.mov_imm(Gpr::RAX, self.lanes as i64);
        self.asm.alu(Alu::Cmp, Gpr::RCX, Gpr::RAX);
        self.asm.cmov(Cond::Greater, Gpr::RCX, Gpr::RAX);
        if self.lanes == 64 {
            // 2·2ⁿ⁻¹ − 1, where 2⁶⁴ is 0; none below one lane.
            self.asm.dec(Gpr::RCX);
            self.asm.mov_imm(Gpr::RAX, 2);
            self.asm.shift_cl(crate::asm::Shift::Shl, Gpr::RAX);
            self.asm.dec(Gpr::RAX);
            self.asm.mov_imm(Gpr::RDX, 0);
            self.asm.test(Gpr::RCX, Gpr::RCX);
            self.asm.cmov(Cond::Sign, Gpr::RAX, Gpr::RDX);
            let k = self.kdst(inst.dst);
            self.asm.kmov_from(MaskSize::Q, k, Gpr::RAX);
            return self.kdone(inst.dst, k);
        }
        self.asm.mov_imm(Gpr::RAX, 0);
        self.asm.test(Gpr::RCX, Gpr::RCX);
        self.asm.cmov(Cond::Sign, Gpr::RCX, Gpr::RAX);
        if self.avx512 {
            self.asm.mov_imm(Gpr::RAX, 1);
            self.asm.shift_cl(crate::asm::Shift::Shl, Gpr::RAX);
            self.asm.dec(Gpr::RAX);
            let k = self.kdst(inst.dst);
            self.asm.kmov_from(MaskSize::D, k, Gpr::RAX);
            return self.kdone(inst.dst, k);
        }
        // A window into ones followed by zeros.
        let lane = self.mask_lane();
        let mut bytes = [0u8; 64];
        bytes[..32].fill(0xff);
        let table = self.asm.constant(&bytes);
        self.asm.lea(Gpr::RAX, table);
        self.asm.neg(Gpr::RCX);
        let to = self.dst(inst.dst);
        self.asm.rm(ops::VMOVUPS, Width::V256, to, Mem::indexed(Gpr::RAX, Gpr::RCX, lane as u8).offset(32));
        self.done(inst.dst, to);
    }
}

struct Forms {
    f132: VOp,
    f213: VOp,
    f231: VOp,
}

fn forms(op: FmaOp, ty: Ty) -> Forms {
    use ops::*;
    let (f132, f213, f231) = match (op, ty) {
        (FmaOp::Add, Ty::F32) => (VFMADD132PS, VFMADD213PS, VFMADD231PS),
        (FmaOp::Add, _) => (VFMADD132PD, VFMADD213PD, VFMADD231PD),
        (FmaOp::Sub, Ty::F32) => (VFMSUB132PS, VFMSUB213PS, VFMSUB231PS),
        (FmaOp::Sub, _) => (VFMSUB132PD, VFMSUB213PD, VFMSUB231PD),
        (FmaOp::NegAdd, Ty::F32) => (VFNMADD132PS, VFNMADD213PS, VFNMADD231PS),
        (FmaOp::NegAdd, _) => (VFNMADD132PD, VFNMADD213PD, VFNMADD231PD),
    };
    Forms { f132, f213, f231 }
}
