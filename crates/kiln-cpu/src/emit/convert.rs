//! Conversions between types and to short floats, and scaling by powers of two.

use super::*;

impl Emitter<'_> {
    /// `op dst, a, constant` with the constant in every lane of `lane_bytes`.
    pub(super) fn op_const(&mut self, op: VOp, width: Width, dst: VReg, a: VReg, bits: u64, lane_bytes: usize) {
        let args = if self.avx512 && op.elem as usize == lane_bytes {
            let mem = self.asm.constant(&bits.to_le_bytes()[..lane_bytes]);
            Args::rvm(dst, a, mem).broadcast()
        } else {
            Args::rvm(dst, a, self.splat_bytes(bits, lane_bytes))
        };
        self.asm.vector(op, width, args);
    }

    pub(super) fn convert(&mut self, inst: &Inst, from: Ty) {
        let [a, ..] = inst.args;
        let dst = self.dst(inst.dst);
        if from == Ty::Int {
            let x = self.int(a, Gpr::RAX);
            let (vop, spread) = match inst.ty {
                Ty::F32 => (ops::VCVTSI2SS_Q, ops::VBROADCASTSS),
                _ => (ops::VCVTSI2SD_Q, ops::VBROADCASTSD),
            };
            self.asm.rvm(ops::VXORPS, Width::V128, dst, dst, dst);
            self.asm.rvm(vop, Width::V128, dst, dst, x);
            self.asm.rm(spread, self.width(inst.ty), dst, dst);
            return self.done(inst.dst, dst);
        }
        // Conversions between widths are named by the wider side.
        let width = self.width(if from.lane_bytes() > inst.ty.lane_bytes() { from } else { inst.ty });
        let direct = match (from, inst.ty) {
            (Ty::I32, Ty::F32) => Some(ops::VCVTDQ2PS),
            (Ty::F32, Ty::I32) => Some(ops::VCVTTPS2DQ),
            (Ty::F32, Ty::F64) => Some(ops::VCVTPS2PD),
            (Ty::F64, Ty::F32) => Some(ops::VCVTPD2PS),
            (Ty::I32, Ty::F64) => Some(ops::VCVTDQ2PD),
            (Ty::F64, Ty::I32) => Some(ops::VCVTTPD2DQ),
            (Ty::I32, Ty::I64) => Some(ops::VPMOVSXDQ),
            (Ty::I64, Ty::F64) if self.avx512 => Some(ops::VCVTQQ2PD),
            (Ty::I64, Ty::F32) if self.avx512 => Some(ops::VCVTQQ2PS),
            (Ty::F64, Ty::I64) if self.avx512 => Some(ops::VCVTTPD2QQ),
            (Ty::F32, Ty::I64) if self.avx512 => Some(ops::VCVTTPS2QQ),
            _ => None,
        };
        let x = self.reg(a, self.s0);
        match direct {
            Some(vop) => self.asm.rm(vop, width, dst, x),
            None if inst.ty == Ty::I32 && self.avx512 => self.asm.mr(ops::VPMOVQD, width, dst, x),
            None if inst.ty == Ty::I32 => {
                self.asm.vector(ops::VEXTRACTI128, Width::V256, Args::mr(self.s1, x).imm(1));
                self.asm.rvmi(ops::VSHUFPS, Width::V128, dst, x, self.s1, 0x88);
            }
            None => self.convert_lanes(from, inst.ty, x, dst),
        }
        self.done(inst.dst, dst);
    }

    /// 64-bit integers from and to floats, which AVX2 converts one by one only.
    fn convert_lanes(&mut self, from: Ty, to: Ty, x: VReg, dst: VReg) {
        let (source, target) = (self.work(0), self.work(1));
        self.asm.mr(ops::VMOVUPS_ST, self.width(from), source, x);
        for lane in 0..self.lanes as i32 {
            let at = source.offset(lane * from.lane_bytes() as i32);
            let into = target.offset(lane * to.lane_bytes() as i32);
            match (from, to) {
                (Ty::I64, Ty::F64) => {
                    self.asm.load(Gpr::RAX, at, Size::Q);
                    self.asm.rvm(ops::VCVTSI2SD_Q, Width::V128, self.s0, self.s0, Gpr::RAX);
                    self.asm.mr(ops::VMOVSD_ST, Width::V128, into, self.s0);
                }
                (Ty::I64, _) => {
                    self.asm.load(Gpr::RAX, at, Size::Q);
                    self.asm.rvm(ops::VCVTSI2SS_Q, Width::V128, self.s0, self.s0, Gpr::RAX);
                    self.asm.mr(ops::VMOVSS_ST, Width::V128, into, self.s0);
                }
                (Ty::F64, _) => {
                    self.asm.rm(ops::VCVTTSD2SI_Q, Width::V128, Gpr::RAX, at);
                    self.asm.store(into, Gpr::RAX, Size::Q);
                }
                _ => {
                    self.asm.rm(ops::VCVTTSS2SI_Q, Width::V128, Gpr::RAX, at);
                    self.asm.store(into, Gpr::RAX, Size::Q);
                }
            }
        }
        self.asm.rm(ops::VMOVUPS, self.width(to), dst, target);
    }

    /// Rounds to bf16 into the upper halves of the second scratch register's lanes; the lower halves hold anything.
    pub(super) fn round_bf16(&mut self, x: VReg) {
        let (width, s1) = (self.width(Ty::F32), self.s1);
        self.asm.rmi(ops::VPSRLD_I, width, s1, x, 16);
        self.op_const(ops::VPAND, width, s1, s1, 1, 4);
        self.asm.rvm(ops::VPADDD, width, s1, s1, x);
        self.op_const(ops::VPADDD, width, s1, s1, 0x7fff, 4);
        // The carry would turn some NaNs into numbers: those become the quiet NaN instead.
        if self.avx512 {
            self.asm.rvmi(ops::VCMPPS_K, width, K1, x, x, 3);
            let quiet = self.asm.constant(&0x0040_0000u32.to_le_bytes());
            self.asm.vector(ops::VPOR, width, Args::rvm(s1, x, quiet).mask(K1).broadcast());
        } else {
            self.asm.rvmi(ops::VCMPPS, width, self.s0, x, x, 3);
            let quiet = self.splat_bytes(0x7fc0_0000, 4);
            self.asm.vector(ops::VBLENDVPS, width, Args::rvm(s1, s1, quiet).select(self.s0));
        }
    }

    /// Rounds to bf16 and packs into the lower half of the second scratch register (AVX-512).
    pub(super) fn pack_bf16(&mut self, x: VReg) {
        let (width, s1) = (self.width(Ty::F32), self.s1);
        self.round_bf16(x);
        self.asm.rmi(ops::VPSRLD_I, width, s1, s1, 16);
        self.asm.mr(ops::VPMOVDW, width, s1, s1);
    }

    /// As [`Self::pack_bf16`], by the one instruction there is, which does not know denormals: those go the long way.
    pub(super) fn convert_bf16(&mut self, x: VReg) {
        if !self.bf16 {
            return self.pack_bf16(x);
        }
        let width = self.width(Ty::F32);
        let (entry, back) = (self.asm.label(), self.asm.label());
        self.asm.rmi(ops::VFPCLASSPS_K, width, K1, x, 0x20);
        self.asm.kortest(self.mask_size(), K1, K1);
        self.asm.jcc(Cond::NotEqual, entry);
        self.asm.rm(ops::VCVTNEPS2BF16, width, self.s1, x);
        self.asm.bind(back);
        self.slow_paths.push(SlowPath { entry, back, what: SlowConversion::Pack(x) });
    }

    /// Even and odd elements to pairs of bf16.
    pub(super) fn pack_pairs(&mut self, inst: &Inst) {
        let [even, odd, ..] = inst.args;
        let (width, dst) = (self.width(Ty::F32), self.dst(inst.dst));
        let (entry, back) = (self.asm.label(), self.asm.label());
        let x = self.reg(even, self.s0);
        let y = self.reg(odd, self.s1);
        if self.bf16 {
            self.asm.rmi(ops::VFPCLASSPS_K, width, K1, x, 0x20);
            self.asm.rmi(ops::VFPCLASSPS_K, width, KReg(0), y, 0x20);
        }
        if !self.bf16 {
            self.round_pairs(x, y);
            self.move_reg(width, dst, self.s1);
            return self.done(inst.dst, dst);
        }
        self.asm.kortest(self.mask_size(), K1, KReg(0));
        self.asm.jcc(Cond::NotEqual, entry);
        // All even elements, then all odd ones; then side by side.
        self.asm.rvm(ops::VCVTNE2PS2BF16, width, self.s1, y, x);
        let mut order = [0u8; 64];
        for (n, word) in order.chunks_mut(2).take(2 * self.lanes).enumerate() {
            word.copy_from_slice(&((n / 2 + n % 2 * self.lanes) as u16).to_le_bytes());
        }
        let order = self.asm.constant(&order[..width.bytes()]);
        self.asm.rm(ops::VMOVUPS, width, self.s0, order);
        self.asm.rvm(ops::VPERMW, width, self.s1, self.s0, self.s1);
        self.asm.bind(back);
        self.slow_paths.push(SlowPath { entry, back, what: SlowConversion::PackPairs(x, y) });
        self.move_reg(width, dst, self.s1);
        self.done(inst.dst, dst);
    }

    /// Rounds even and odd elements and joins them in the second scratch register.
    pub(super) fn round_pairs(&mut self, x: VReg, y: VReg) {
        let (width, s0, s1) = (self.width(Ty::F32), self.s0, self.s1);
        let (wy, wr) = (self.work(0), self.work(1));
        self.asm.mr(ops::VMOVUPS_ST, width, wy, y);
        self.round_bf16(x);
        self.asm.rmi(ops::VPSRLD_I, width, s1, s1, 16);
        self.asm.mr(ops::VMOVUPS_ST, width, wr, s1);
        self.asm.rm(ops::VMOVUPS, width, s0, wy);
        self.round_bf16(s0);
        self.op_const(ops::VPAND, width, s1, s1, 0xffff_0000, 4);
        self.asm.rvm(ops::VPOR, width, s1, s1, wr);
    }

    pub(super) fn round_to(&mut self, dtype: DType, inst: &Inst) {
        let dst = self.dst(inst.dst);
        let width = self.width(Ty::F32);
        let x = self.reg(inst.args[0], self.s0);
        if dtype == DType::Bf16 && self.bf16 {
            self.convert_bf16(x);
            self.asm.rm(ops::VPMOVZXWD, width, dst, self.s1);
            self.asm.rmi(ops::VPSLLD_I, width, dst, dst, 16);
        } else if dtype == DType::Bf16 {
            self.round_bf16(x);
            self.op_const(ops::VPAND, width, dst, self.s1, 0xffff_0000, 4);
        } else {
            self.asm.vector(ops::VCVTPS2PH, width, Args::mr(self.s1, x).imm(0));
            self.asm.rm(ops::VCVTPH2PS, width, dst, self.s1);
        }
        self.done(inst.dst, dst);
    }

    /// a · 2ᵇ: one instruction on AVX-512; else two factors, so that neither leaves the range of exponents.
    pub(super) fn scale(&mut self, inst: &Inst) {
        let [a, b, ..] = inst.args;
        let ty = inst.ty;
        let width = self.width(ty);
        let dst = self.dst(inst.dst);
        if self.avx512 {
            let vop = if ty == Ty::F32 { ops::VSCALEFPS } else { ops::VSCALEFPD };
            let x = self.reg(a, self.s0);
            self.op3(vop, width, dst, x, b, self.s1);
            return self.done(inst.dst, dst);
        }
        let (s0, s1) = (self.s0, self.s1);
        let area = self.work(0);
        let n = self.reg(b, s0);
        let half = self.width(Ty::I32);
        let (to_int, bias, bits) = if ty == Ty::F32 { (ops::VCVTPS2DQ, 127, 23) } else { (ops::VCVTPD2DQ, 1023, 52) };
        self.asm.rm(to_int, width, s0, n);
        self.asm.rmi(ops::VPSRAD_I, half, s1, s0, 1);
        self.asm.rvm(ops::VPSUBD, half, s0, s0, s1);
        self.op_const(ops::VPADDD, half, s0, s0, bias, 4);
        self.op_const(ops::VPADDD, half, s1, s1, bias, 4);
        let shift = if ty == Ty::F32 {
            ops::VPSLLD_I
        } else {
            self.asm.rm(ops::VPMOVSXDQ, width, s0, s0);
            self.asm.rm(ops::VPMOVSXDQ, width, s1, s1);
            ops::VPSLLQ_I
        };
        self.asm.rmi(shift, width, s0, s0, bits);
        self.asm.rmi(shift, width, s1, s1, bits);
        let mul = if ty == Ty::F32 { ops::VMULPS } else { ops::VMULPD };
        self.asm.mr(ops::VMOVUPS_ST, width, area, s0);
        let x = self.reg(a, s0);
        self.asm.rvm(mul, width, s1, s1, x);
        self.asm.rvm(mul, width, dst, s1, area);
        self.done(inst.dst, dst);
    }
}
