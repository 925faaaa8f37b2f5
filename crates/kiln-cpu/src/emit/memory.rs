//! Loads and stores: contiguous, single element, gathers and scatters; with conversion from and to short types.
//!
//! Memory outside the mask is never touched. Where no instruction masks an access (8- and 16-bit elements on AVX2, masked gathers and
//! scatters of them anywhere) elements are copied one by one between memory and a work area; gathers of all lanes insert them into a
//! register.

use super::*;

impl Emitter<'_> {
    /// The address of a contiguous or single access; `rax` and `rcx` are scratch.
    fn address(&mut self, m: Memory, inst: &Inst) -> Mem {
        let size = m.dtype.size_in_bits() / 8;
        let disp = m.disp + (m.vectors as usize * self.lanes * size) as i32;
        self.element(inst.args[0], inst.args[1], size, disp)
    }

    pub(super) fn load(&mut self, m: Memory, inst: &Inst) {
        let mask = inst.args[2];
        let size = m.dtype.size_in_bits() / 8;
        match m.access {
            _ if matches!(inst.ty, Ty::I16 | Ty::I8) => self.load_packed(m, inst),
            Access::Single => {
                let mem = self.address(m, inst);
                self.load_single(m.dtype, inst, mem);
            }
            Access::Pairs => {
                let mem = self.address(m, inst);
                self.load_vector(DType::I32, inst, mem, V::NONE);
            }
            Access::Indexed if size >= 4 && self.gather(m, inst) => {}
            Access::Strided if size == 4 && (self.load_even(m, inst) || self.gather_strided(m, inst)) => {}
            Access::Contiguous if self.avx512 || !mask.is_some() || size >= 4 => {
                let mem = self.address(m, inst);
                self.load_vector(m.dtype, inst, mem, mask);
            }
            Access::Indexed | Access::Strided if size <= 2 && !mask.is_some() => {
                self.insert_lanes(m, inst);
                self.load_vector(m.dtype, inst, self.s1, V::NONE);
            }
            _ => {
                let area = self.copy_lanes(m, inst, true);
                self.load_vector(m.dtype, inst, area, V::NONE);
            }
        }
    }

    /// Elements of one or two bytes as they are, as many as fill a register.
    fn load_packed(&mut self, m: Memory, inst: &Inst) {
        let mask = inst.args[2];
        let mem = self.address(m, inst);
        let dst = self.dst(inst.dst);
        let bytes = inst.ty == Ty::I8;
        let vop = match m.access {
            Access::Single if bytes => ops::VPBROADCASTB,
            Access::Single => ops::VPBROADCASTW,
            _ if bytes => ops::VMOVDQU8,
            _ => ops::VMOVDQU16,
        };
        let mut args = Args::rm(dst, mem);
        if mask.is_some() {
            args = args.mask(self.kreg(mask, K1)).zero();
        }
        self.asm.vector(vop, Width::V512, args);
        self.done(inst.dst, dst);
    }

    /// Gathers elements of one or two bytes into the second scratch register, one after the other: in memory they would be a load of
    /// many small stores, which has to wait for all of them.
    fn insert_lanes(&mut self, m: Memory, inst: &Inst) {
        let [base, index, ..] = inst.args;
        let size = m.dtype.size_in_bits() / 8;
        let (indices, index_bytes) = (self.work(0), if m.wide_index { 8 } else { 4 });
        if m.access == Access::Indexed {
            let at = self.reg(index, self.s0);
            self.asm.mr(ops::VMOVUPS_ST, self.width_of(index_bytes), indices, at);
        }
        let from = self.int(base, Gpr::RDX);
        self.asm.lea(Gpr::RDX, Mem::base(from).offset(m.disp));
        let insert = if size == 1 { ops::VPINSRB } else { ops::VPINSRW };
        // Lanes of a register of 128 bits.
        let each = 16 / size;
        for lane in 0..self.lanes {
            let into = if lane < each { self.s1 } else { self.s0 };
            if lane % each == 0 {
                self.asm.rvm(ops::VXORPS, Width::V128, into, into, into);
            }
            let element = if m.access == Access::Indexed {
                let at = indices.offset((lane * index_bytes) as i32);
                self.asm.load_signed(Gpr::RAX, at, if m.wide_index { Size::Q } else { Size::D });
                Mem::indexed(Gpr::RDX, Gpr::RAX, size as u8)
            } else {
                if lane > 0 {
                    self.advance(index, size);
                }
                Mem::base(Gpr::RDX)
            };
            self.asm.rvmi(insert, Width::V128, into, into, element, (lane % each) as u8);
        }
        if self.lanes > each {
            self.asm.rvmi(ops::VINSERTI128, Width::V256, self.s1, self.s1, self.s0, 1);
        }
    }

    /// A contiguous load of whole elements; masked only where an instruction can.
    fn load_vector(&mut self, dtype: DType, inst: &Inst, mem: impl Into<Rm>, mask: V) {
        let mem = mem.into();
        let ty = inst.ty;
        let width = self.width(ty);
        if dtype == DType::Bool {
            return self.load_mask(inst, mem, mask);
        }
        let dst = self.dst(inst.dst);
        let vop = match dtype {
            DType::F32 | DType::I32 => ops::VMOVUPS,
            DType::F64 | DType::I64 => ops::VMOVUPD,
            DType::Bf16 => ops::VPMOVZXWD,
            DType::F16 => ops::VCVTPH2PS,
            DType::I8 => ops::VPMOVSXBD,
            DType::U8 => ops::VPMOVZXBD,
            DType::I16 => ops::VPMOVSXWD,
            other => unreachable!("{other} is lowered to bytes"),
        };
        if self.avx512 && mask.is_some() {
            let k = self.kreg(mask, K1);
            self.asm.vector(vop, width, Args::rm(dst, mem).mask(k).zero());
        } else if mask.is_some() {
            let lane = ty.lane_bytes();
            let k = self.vmask(mask, lane, self.s1);
            self.asm.rvm(if lane == 4 { ops::VMASKMOVPS } else { ops::VMASKMOVPD }, width, dst, k, mem);
        } else {
            self.asm.rm(vop, width, dst, mem);
        }
        if dtype == DType::Bf16 {
            self.asm.rmi(ops::VPSLLD_I, width, dst, dst, 16);
        }
        self.done(inst.dst, dst);
    }

    /// Bytes to a mask: nonzero is true.
    fn load_mask(&mut self, inst: &Inst, mem: Rm, mask: V) {
        let s0 = self.s0;
        if self.f.packed != 0 {
            let width = self.width(Ty::I8);
            let args = Args::rm(s0, mem);
            let args = if mask.is_some() { args.mask(self.kreg(mask, K1)).zero() } else { args };
            self.asm.vector(ops::VMOVDQU8, width, args);
            let k = self.kdst(inst.dst);
            self.asm.rvm(ops::VPTESTMB, width, k, s0, s0);
            return self.kdone(inst.dst, k);
        }
        if self.avx512 {
            let width = self.width(Ty::I32);
            let args = Args::rm(s0, mem);
            let args = if mask.is_some() { args.mask(self.kreg(mask, K1)).zero() } else { args };
            self.asm.vector(ops::VPMOVZXBD, width, args);
            let k = self.kdst(inst.dst);
            self.asm.rvm(ops::VPTESTMD, width, k, s0, s0);
            return self.kdone(inst.dst, k);
        }
        let (widen, gt) =
            if self.mask_lane() == 4 { (ops::VPMOVZXBD, ops::VPCMPGTD) } else { (ops::VPMOVZXBQ, ops::VPCMPGTQ) };
        let dst = self.dst(inst.dst);
        self.asm.rm(widen, Width::V256, s0, mem);
        self.asm.rvm(ops::VPXOR, Width::V256, self.s1, self.s1, self.s1);
        self.asm.rvm(gt, Width::V256, dst, s0, self.s1);
        self.done(inst.dst, dst);
    }

    fn load_single(&mut self, dtype: DType, inst: &Inst, mem: Mem) {
        let width = self.width(inst.ty);
        if dtype == DType::Bool {
            self.load_element(dtype, Gpr::RAX, mem);
            self.asm.neg(Gpr::RAX);
            return self.mask_from_rax(inst.dst);
        }
        let dst = self.dst(inst.dst);
        match dtype {
            DType::F32 | DType::I32 => self.asm.rm(ops::VBROADCASTSS, width, dst, mem),
            DType::F64 | DType::I64 => self.asm.rm(ops::VBROADCASTSD, width, dst, mem),
            DType::Bf16 => {
                self.asm.rm(ops::VPBROADCASTW, width, dst, mem);
                self.asm.rmi(ops::VPSLLD_I, width, dst, dst, 16);
            }
            DType::F16 => {
                self.asm.rm(ops::VPBROADCASTW, width.half(), dst, mem);
                self.asm.rm(ops::VCVTPH2PS, width, dst, dst);
            }
            _ => {
                self.load_element(dtype, Gpr::RAX, mem);
                self.splat(inst.ty, dst, Gpr::RAX);
            }
        }
        self.done(inst.dst, dst);
    }

    /// A gather by one instruction; false where registers or operands do not allow it.
    fn gather(&mut self, m: Memory, inst: &Inst) -> bool {
        let [base, index, mask, _] = inst.args;
        let size = m.dtype.size_in_bits() / 8;
        let registers = self.avx512 || self.in_reg(inst.dst) && self.in_reg(index);
        if inst.ty.lane_bytes() != size || !registers {
            return false;
        }
        let (vop, width) = match (size, m.wide_index) {
            (4, false) => (ops::VGATHERDPS, self.width_of(4)),
            (4, true) => (ops::VGATHERQPS, self.width_of(8)),
            (_, false) => (ops::VGATHERDPD, self.width_of(8)),
            (_, true) => (ops::VGATHERQPD, self.width_of(8)),
        };
        let dst = self.dst(inst.dst);
        let at = self.reg(index, self.s1);
        let base = self.int(base, Gpr::RAX);
        let mem = Mem::gathered(base, at, size as u8).offset(m.disp);
        self.asm.rvm(ops::VXORPS, Width::V128, dst, dst, dst);
        if self.avx512 {
            self.copy_mask_to_k1(mask);
            self.asm.vector(vop, width, Args::rm(dst, mem).mask(K1));
        } else {
            let lanes = self.width_of(size);
            if mask.is_some() {
                let k = self.vmask(mask, size, self.s0);
                self.move_reg(lanes, self.s0, k);
            } else {
                self.asm.rvm(ops::VPCMPEQD, lanes, self.s0, self.s0, self.s0);
            }
            self.asm.rvm(vop, width, dst, self.s0, mem);
        }
        self.done(inst.dst, dst);
        true
    }

    /// Every second element of two vectors; false where it is another stride, or a vector is not 16 lanes.
    fn load_even(&mut self, m: Memory, inst: &Inst) -> bool {
        let [base, stride, mask, _] = inst.args;
        let width = self.width_of(4);
        let fits = self.avx512 && width == Width::V512 && self.in_reg(inst.dst);
        if !fits || inst.ty.lane_bytes() != 4 || self.number(stride) != Some(2) {
            return false;
        }
        let dst = self.dst(inst.dst);
        let base = self.int(base, Gpr::RDX);
        let low = Mem::base(base).offset(m.disp);
        if mask.is_some() {
            self.spread_mask_to_k1(mask);
            self.asm.vector(ops::VMOVUPS, width, Args::rm(dst, low).mask(K1).zero());
            self.next_half_of_k1();
            self.asm.vector(ops::VMOVUPS, width, Args::rm(self.s1, low.offset(64)).mask(K1).zero());
        } else {
            // The second vector begins one element early: no odd element is read behind the last even one.
            self.asm.rm(ops::VMOVUPS, width, dst, low);
            self.asm.rm(ops::VMOVUPS, width, self.s1, low.offset(60));
        }
        let late = u32::from(!mask.is_some());
        let order = (0..16u32).map(|lane| if lane < 8 { 2 * lane } else { 2 * lane + late });
        let order = self.asm.constant(&order.flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
        self.asm.rm(ops::VMOVUPS, width, self.s0, order);
        self.asm.rvm(ops::VPERMT2PS, width, dst, self.s0, self.s1);
        self.done(inst.dst, dst);
        true
    }

    /// The bit of lane i becomes that of element 2i.
    fn spread_mask_to_k1(&mut self, mask: V) {
        let k = self.kreg(mask, K1);
        let bytes: Vec<u8> = (0..32).map(|byte| if byte % 2 == 0 { 0xff } else { 0 }).collect();
        let even = self.asm.constant(&bytes);
        self.asm.rm(ops::VPMOVM2W, Width::V256, self.s1, k);
        self.asm.rvm(ops::VPAND, Width::V256, self.s1, self.s1, even);
        self.asm.rm(ops::VPMOVB2M, Width::V256, K1, self.s1);
    }

    /// The bits of the second 16 elements.
    fn next_half_of_k1(&mut self) {
        self.asm.kmov_to(MaskSize::D, Gpr::RAX, K1);
        self.asm.shift_imm(Shift::Shr, Gpr::RAX, 16);
        self.asm.kmov_from(MaskSize::D, K1, Gpr::RAX);
    }

    /// Stores every second element of two vectors; false where it is another stride, or a vector is not 16 lanes.
    fn store_even(&mut self, m: Memory, inst: &Inst) -> bool {
        let [base, stride, mask, value] = inst.args;
        let width = self.width_of(4);
        let fits = self.avx512 && width == Width::V512 && inst.ty.lane_bytes() == 4;
        if !fits || m.dtype == DType::Bool || self.number(stride) != Some(2) {
            return false;
        }
        let value = self.reg(value, self.s0);
        match mask.is_some() {
            true => self.spread_mask_to_k1(mask),
            false => {
                self.asm.mov_imm(Gpr::RAX, 0x5555_5555);
                self.asm.kmov_from(MaskSize::D, K1, Gpr::RAX);
            }
        }
        let base = self.int(base, Gpr::RDX);
        for half in 0..2u32 {
            // Lane i of the half is beside itself, and the mask leaves the second out.
            let order = (0..16u32).flat_map(|lane| (8 * half + lane / 2).to_le_bytes()).collect::<Vec<u8>>();
            let order = self.asm.constant(&order);
            self.asm.rm(ops::VMOVUPS, width, self.s1, order);
            self.asm.rvm(ops::VPERMPS, width, self.s1, self.s1, value);
            let to = Mem::base(base).offset(m.disp + 64 * half as i32);
            self.asm.vector(ops::VMOVUPS_ST, width, Args::mr(to, self.s1).mask(K1));
            if half == 0 && mask.is_some() {
                self.next_half_of_k1();
            }
        }
        true
    }

    /// Elements at equal distances by one gather; false where registers or the distance do not allow it.
    fn gather_strided(&mut self, m: Memory, inst: &Inst) -> bool {
        let [base, stride, mask, _] = inst.args;
        let Some(stride) = self.number(stride).filter(|stride| stride.unsigned_abs() < 1 << 24) else { return false };
        if inst.ty.lane_bytes() != 4 || !(self.avx512 || self.in_reg(inst.dst)) {
            return false;
        }
        let width = self.width_of(4);
        let places = (0..self.lanes as i64).map(|lane| (lane * stride) as i32);
        let places = self.asm.constant(&places.flat_map(i32::to_le_bytes).collect::<Vec<u8>>());
        let dst = self.dst(inst.dst);
        let base = self.int(base, Gpr::RAX);
        let mem = Mem::gathered(base, self.s1, 4).offset(m.disp);
        if self.avx512 {
            self.asm.rm(ops::VMOVUPS, width, self.s1, places);
            self.asm.rvm(ops::VXORPS, Width::V128, dst, dst, dst);
            self.copy_mask_to_k1(mask);
            self.asm.vector(ops::VGATHERDPS, width, Args::rm(dst, mem).mask(K1));
        } else {
            if mask.is_some() {
                let k = self.vmask(mask, 4, self.s0);
                self.move_reg(width, self.s0, k);
            } else {
                self.asm.rvm(ops::VPCMPEQD, width, self.s0, self.s0, self.s0);
            }
            self.asm.rm(ops::VMOVUPS, width, self.s1, places);
            self.asm.rvm(ops::VXORPS, Width::V128, dst, dst, dst);
            self.asm.rvm(ops::VGATHERDPS, width, dst, self.s0, mem);
        }
        self.done(inst.dst, dst);
        true
    }

    /// Gathers and scatters consume their mask.
    fn copy_mask_to_k1(&mut self, mask: V) {
        if !mask.is_some() {
            return self.asm.kxnor(self.mask_size(), K1, K1, K1);
        }
        let k = self.kreg(mask, K1);
        if k != K1 {
            self.asm.kmov(MaskSize::Q, K1, k);
        }
    }

    /// Copies elements lane by lane between memory and the second work area, which it returns.
    fn copy_lanes(&mut self, m: Memory, inst: &Inst, load: bool) -> Mem {
        let [base, index, mask, _] = inst.args;
        let size = m.dtype.size_in_bits() / 8;
        let (indices, area) = (self.work(0), self.work(1));
        let of = match size {
            1 => Size::B,
            2 => Size::W,
            4 => Size::D,
            _ => Size::Q,
        };
        let index_bytes = if m.wide_index { 8 } else { 4 };
        if m.access == Access::Indexed {
            let at = self.reg(index, self.s0);
            self.asm.mr(ops::VMOVUPS_ST, self.width_of(index_bytes), indices, at);
        }
        if mask.is_some() {
            self.mask_bits(mask, Gpr::RCX);
        }
        if load && mask.is_some() {
            self.asm.rvm(ops::VXORPS, Width::V128, self.s0, self.s0, self.s0);
            for chunk in (0..(self.lanes * size).max(16) as i32).step_by(16) {
                self.asm.mr(ops::VMOVUPS_ST, Width::V128, area.offset(chunk), self.s0);
            }
        }
        // rdx: the base; rcx: mask bits; rax: an index, then an element.
        match m.access {
            Access::Indexed | Access::Strided => {
                let from = self.int(base, Gpr::RDX);
                self.asm.lea(Gpr::RDX, Mem::base(from).offset(m.disp));
            }
            _ => {
                // Computing the address takes rcx.
                let saved = self.work(3);
                self.asm.store(saved, Gpr::RCX, Size::Q);
                let mem = self.address(m, inst);
                self.asm.lea(Gpr::RDX, mem);
                self.asm.load(Gpr::RCX, saved, Size::Q);
            }
        }
        for lane in 0..self.lanes as i32 {
            let skip = self.asm.label();
            if m.access == Access::Strided && lane > 0 {
                self.advance(index, size);
            }
            if mask.is_some() {
                self.asm.mov_imm(Gpr::RAX, 1 << lane);
                self.asm.test(Gpr::RCX, Gpr::RAX);
                self.asm.jcc(Cond::Equal, skip);
            }
            let slot = area.offset(lane * size as i32);
            let (element, held) = if m.access == Access::Indexed {
                let at = indices.offset(lane * index_bytes as i32);
                self.asm.load_signed(Gpr::RAX, at, if m.wide_index { Size::Q } else { Size::D });
                if load {
                    (Mem::indexed(Gpr::RDX, Gpr::RAX, size as u8), Gpr::RAX)
                } else {
                    self.asm.lea(Gpr::RAX, Mem::indexed(Gpr::RDX, Gpr::RAX, size as u8));
                    (Mem::base(Gpr::RAX), Gpr::RAX)
                }
            } else if m.access == Access::Strided {
                (Mem::base(Gpr::RDX), Gpr::RAX)
            } else {
                (Mem::base(Gpr::RDX).offset(lane * size as i32), Gpr::RAX)
            };
            if load {
                self.asm.load(held, element, of);
                self.asm.store(slot, held, of);
            } else if m.access == Access::Indexed {
                // rax is the address: the element goes through the mask's register, which is read again after.
                let saved = self.work(3);
                self.asm.store(saved, Gpr::RCX, Size::Q);
                self.asm.load(Gpr::RCX, slot, of);
                self.asm.store(element, Gpr::RCX, of);
                self.asm.load(Gpr::RCX, saved, Size::Q);
            } else {
                self.asm.load(held, slot, of);
                self.asm.store(element, held, of);
            }
            self.asm.bind(skip);
        }
        area
    }

    /// `rdx += stride · size`
    fn advance(&mut self, stride: V, size: usize) {
        match self.number(stride).and_then(|n| i32::try_from(n * size as i64).ok()) {
            Some(bytes) => self.asm.alu_imm(Alu::Add, Gpr::RDX, bytes),
            None => {
                let step = self.int(stride, Gpr::RAX);
                self.asm.lea(Gpr::RDX, Mem::indexed(Gpr::RDX, step, size as u8));
            }
        }
    }

    pub(super) fn store(&mut self, m: Memory, inst: &Inst) {
        let mask = inst.args[2];
        let size = m.dtype.size_in_bits() / 8;
        let widened = m.dtype == DType::I64 && inst.ty == Ty::I32;
        match m.access {
            _ if matches!(inst.ty, Ty::I16 | Ty::I8) => {
                let value = self.reg(inst.args[3], self.s0);
                let mem = self.address(m, inst);
                let vop = if size == 1 { ops::VMOVDQU8_ST } else { ops::VMOVDQU16_ST };
                let args = Args::mr(mem, value);
                let args = if mask.is_some() { args.mask(self.kreg(mask, K1)) } else { args };
                self.asm.vector(vop, Width::V512, args);
            }
            Access::Single => self.store_single(m, inst),
            Access::Pairs => {
                let value = self.reg(inst.args[3], self.s0);
                let mem = self.address(m, inst);
                self.store_vector(DType::I32, inst, value, mem, V::NONE);
            }
            Access::Indexed if self.avx512 && size >= 4 && !widened => self.scatter(m, inst),
            Access::Strided if size == 4 && self.store_even(m, inst) => {}
            Access::Contiguous if (self.avx512 || !mask.is_some() || size >= 4) && !(widened && mask.is_some()) => {
                // The value is converted first: it may need the registers of the address.
                let value = self.narrowed(m.dtype, inst);
                let mem = self.address(m, inst);
                self.store_vector(m.dtype, inst, value, mem, mask);
            }
            _ => {
                let value = self.narrowed(m.dtype, inst);
                let area = self.work(1);
                self.store_vector(m.dtype, inst, value, area, V::NONE);
                self.copy_lanes(m, inst, false);
            }
        }
    }

    /// The value with its bits as the memory type requires, low in each lane; bf16 on AVX-512 packed. F16 is converted by the
    /// store.
    fn narrowed(&mut self, dtype: DType, inst: &Inst) -> VReg {
        let value = inst.args[3];
        match dtype {
            DType::Bf16 if self.avx512 => {
                let x = self.reg(value, self.s0);
                self.convert_bf16(x);
                self.s1
            }
            DType::Bf16 => {
                let x = self.reg(value, self.s0);
                self.round_bf16(x);
                self.asm.rmi(ops::VPSRLD_I, self.width(Ty::I32), self.s1, self.s1, 16);
                self.s1
            }
            DType::Bool if self.avx512 => {
                let k = self.kreg(value, K1);
                let one = self.asm.constant(&1u32.to_le_bytes());
                let width = self.width(Ty::I32);
                self.asm.vector(ops::VPBROADCASTD, width, Args::rm(self.s0, one).mask(k).zero());
                self.s0
            }
            DType::Bool => {
                let x = self.vmask(value, 4, self.s0);
                self.op_const(ops::VPAND, self.width(Ty::I32), self.s0, x, 1, 4);
                self.s0
            }
            _ => self.reg(value, self.s0),
        }
    }

    /// A contiguous store; masked only where an instruction can.
    fn store_vector(&mut self, dtype: DType, inst: &Inst, value: VReg, mem: Mem, mask: V) {
        let ty = if dtype == DType::Bool { Ty::I32 } else { inst.ty };
        let width = self.width(ty);
        let size = dtype.size_in_bits() / 8;
        if dtype == DType::I64 && ty == Ty::I32 {
            return self.store_widened(value, mem);
        }
        if self.avx512 {
            let vop = match (dtype, size) {
                (DType::F16, _) => ops::VCVTPS2PH,
                (_, 1) => ops::VPMOVDB,
                (_, 2) => ops::VPMOVDW,
                (_, 4) => ops::VMOVUPS_ST,
                _ => ops::VMOVUPD_ST,
            };
            let (vop, width) = if dtype == DType::Bf16 {
                // Packed already; half a register of 512 bits, or a quarter.
                (ops::VMOVDQU16_ST, width.half())
            } else {
                (vop, width)
            };
            let mut args = Args::mr(mem, value);
            if dtype == DType::F16 {
                args = args.imm(0);
            }
            if mask.is_some() {
                args = args.mask(self.kreg(mask, K1));
            }
            return self.asm.vector(vop, width, args);
        }
        if mask.is_some() {
            let k = self.vmask(mask, size, self.s1);
            let vop = if size == 4 { ops::VMASKMOVPS_ST } else { ops::VMASKMOVPD_ST };
            return self.asm.vector(vop, width, Args::rvm(value, k, mem));
        }
        match (dtype, size) {
            (DType::F16, _) => self.asm.vector(ops::VCVTPS2PH, width, Args::mr(mem, value).imm(0)),
            (_, 4) => self.asm.mr(ops::VMOVUPS_ST, width, mem, value),
            (_, 8) => self.asm.mr(ops::VMOVUPD_ST, width, mem, value),
            _ => {
                // The low bytes of each lane to the bottom of each half, then the halves side by side.
                let s1 = self.s1;
                let pattern: [u8; 16] = std::array::from_fn(|i| {
                    let (lane, byte) = (i / size, i % size);
                    if lane < 4 { (4 * lane + byte) as u8 } else { 0x80 }
                });
                let mut bytes = [0u8; 32];
                bytes[..16].copy_from_slice(&pattern);
                bytes[16..].copy_from_slice(&pattern);
                let pattern = self.asm.constant(&bytes);
                self.asm.rvm(ops::VPSHUFB, width, s1, value, pattern);
                if width == Width::V256 {
                    self.asm.vector(ops::VEXTRACTI128, Width::V256, Args::mr(self.s0, s1).imm(1));
                    let join = if size == 2 { ops::VPUNPCKLQDQ } else { ops::VPUNPCKLDQ };
                    self.asm.rvm(join, Width::V128, s1, s1, self.s0);
                }
                match self.lanes * size {
                    16 => self.asm.mr(ops::VMOVUPS_ST, Width::V128, mem, s1),
                    8 => self.asm.mr(ops::VMOVSD_ST, Width::V128, mem, s1),
                    _ => self.asm.mr(ops::VMOVSS_ST, Width::V128, mem, s1),
                }
            }
        }
    }

    /// 32-bit integers to 64-bit memory, half by half.
    fn store_widened(&mut self, value: VReg, mem: Mem) {
        let narrow = self.width(Ty::I32);
        if self.f.wide {
            let wide = self.width(Ty::I64);
            self.asm.rm(ops::VPMOVSXDQ, wide, self.s1, value);
            return self.asm.mr(ops::VMOVUPD_ST, wide, mem, self.s1);
        }
        self.asm.rm(ops::VPMOVSXDQ, narrow, self.s1, value);
        self.asm.mr(ops::VMOVUPD_ST, narrow, mem, self.s1);
        let (extract, bytes) = if self.avx512 { (ops::VEXTRACTI64X4, 64) } else { (ops::VEXTRACTI128, 32) };
        self.asm.vector(extract, narrow, Args::mr(self.s1, value).imm(1));
        self.asm.rm(ops::VPMOVSXDQ, narrow, self.s1, self.s1);
        self.asm.mr(ops::VMOVUPD_ST, narrow, mem.offset(bytes), self.s1);
    }

    fn scatter(&mut self, m: Memory, inst: &Inst) {
        let [base, index, mask, value] = inst.args;
        let size = m.dtype.size_in_bits() / 8;
        let (vop, width) = match (size, m.wide_index) {
            (4, false) => (ops::VSCATTERDPS, self.width_of(4)),
            (4, true) => (ops::VSCATTERQPS, self.width_of(8)),
            (_, false) => (ops::VSCATTERDPD, self.width_of(8)),
            (_, true) => (ops::VSCATTERQPD, self.width_of(8)),
        };
        let x = self.reg(value, self.s0);
        let at = self.reg(index, self.s1);
        let base = self.int(base, Gpr::RAX);
        self.copy_mask_to_k1(mask);
        let mem = Mem::gathered(base, at, size as u8).offset(m.disp);
        self.asm.vector(vop, width, Args::mr(mem, x).mask(K1));
    }

    /// Writes the first lane.
    fn store_single(&mut self, m: Memory, inst: &Inst) {
        let [.., mask, value] = inst.args;
        let skip = self.asm.label();
        if mask.is_some() {
            self.first_lane(Ty::Mask, mask, Gpr::RAX);
            self.asm.test(Gpr::RAX, Gpr::RAX);
            self.asm.jcc(Cond::Equal, skip);
        }
        match m.dtype {
            DType::Bool => self.first_lane(Ty::Mask, value, Gpr::RDX),
            DType::F16 => {
                let x = self.reg(value, self.s0);
                self.asm.vector(ops::VCVTPS2PH, Width::V128, Args::mr(self.s1, x).imm(0));
                self.asm.mr(ops::VMOVD_ST, Width::V128, Gpr::RDX, self.s1);
            }
            _ => {
                let x = self.narrowed(m.dtype, inst);
                if inst.ty.lane_bytes() == 8 {
                    self.asm.mr(ops::VMOVQ_ST, Width::V128, Gpr::RDX, x);
                } else {
                    self.asm.mr(ops::VMOVD_ST, Width::V128, Gpr::RDX, x);
                    self.asm.sign_extend(Gpr::RDX, Gpr::RDX, Size::D);
                }
            }
        }
        let mem = self.address(m, inst);
        let size = match m.dtype.size_in_bits() {
            8 => Size::B,
            16 => Size::W,
            32 => Size::D,
            _ => Size::Q,
        };
        self.asm.store(mem, Gpr::RDX, size);
        self.asm.bind(skip);
    }
}
