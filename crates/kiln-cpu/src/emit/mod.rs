//! Vector IR → machine code for AVX2 and AVX-512.
//!
//! ```text
//!  frame, from rsp upwards:  [ work areas, 64 bytes each ] [ vector slots, 64 bytes each ] [ scalar slots ] [ arguments ] [ local memory ]
//! ```
//!
//! `rax`, `rcx`, `rdx`, two vector registers and `k1` are scratch: they hold nothing between instructions. `rbp` finds the
//! saved registers again. Each instruction of the IR becomes one machine instruction where there is one, else a short
//! sequence that ends before the next.

mod arith;
mod convert;
mod lanes;
mod memory;
mod reduce;
mod scalar;

use crate::asm::ops::{self, VOp};
use crate::asm::{Alu, Args, Assembler, Cond, Gpr, KReg, Label, MaskSize, Mem, Rm, Shift, Size, VReg, Width};
use crate::features::Isa;
use crate::regalloc::{Allocation, AllocationViolation, Class, Location, Registers, allocate, check};
use crate::vir::*;
use kiln_ir::verify::verifiers_run;

/// Scratch areas on the stack, 64 bytes each.
const WORK_AREAS: i32 = 4;

/// Machine code, position independent but for the addresses of the functions it calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Emitted {
    /// The code, with zeros where addresses belong.
    pub bytes: Vec<u8>,
    /// The calls whose addresses are to be filled in.
    pub calls: Vec<Call>,
}

/// A relocation: eight bytes of code that hold the address of a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The first of eight bytes.
    pub at: usize,
    /// The function.
    pub callee: Callee,
}

/// A function that code calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callee {
    /// [`ScalarFn::pointer`].
    Lanes(Ty),
    /// [`transpose`] of elements of this many bytes.
    Transpose(u8),
}

impl Callee {
    fn address(self) -> usize {
        match self {
            Callee::Lanes(ty) => ScalarFn::pointer(ty) as usize,
            Callee::Transpose(bytes) => transpose(bytes.into(), true) as usize,
        }
    }
}

impl Emitted {
    /// The code, linked for this process.
    pub fn linked(&self) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for call in &self.calls {
            bytes[call.at..call.at + 8].copy_from_slice(&(call.callee.address() as u64).to_le_bytes());
        }
        bytes
    }
}

/// The registers that code for a target may keep values in.
pub fn registers(isa: Isa) -> Registers {
    let avx512 = isa == Isa::Avx512;
    Registers {
        // rbx, rsi, rdi, r8..r15
        int: 1 << 3 | 1 << 6 | 1 << 7 | 0xff00,
        vector: if avx512 { 0x3fff_ffff } else { 0x3fff },
        mask: if avx512 { 0xfc } else { 0 },
        callee_saved: SAVED.into_iter().fold(0, |set, r| set | 1 << r.0),
    }
}

/// Machine code for a function. The allocation of registers is checked where [`kiln_ir::verify::verifiers_run`].
pub fn emit(f: &Function, isa: Isa) -> Result<Emitted, AllocationViolation> {
    let avx512 = isa == Isa::Avx512;
    let registers = registers(isa);
    let alloc = allocate(f, registers, &early_clobber);
    if verifiers_run() {
        check(f, &alloc, registers, &early_clobber)?;
    }
    let mut e = Emitter {
        asm: Assembler::new(),
        f,
        registers,
        avx512,
        lanes: f.lanes(if avx512 { 64 } else { 32 }),
        s0: VReg(if avx512 { 30 } else { 14 }),
        s1: VReg(if avx512 { 31 } else { 15 }),
        defs: definitions(f),
        pool: vec![None; f.types.len()],
        open: Vec::new(),
        slow_paths: Vec::new(),
        bf16: avx512 && crate::features::Extension::get() >= crate::features::Extension::Bf16,
        at: 0,
        calls: Vec::new(),
        alloc,
    };
    e.function();
    Ok(Emitted { bytes: e.asm.finish(), calls: e.calls })
}

/// Bits of each constant, by value.
fn definitions(f: &Function) -> Vec<Option<Op>> {
    let mut defs = vec![None; f.types.len()];
    for inst in &f.insts {
        if matches!(inst.op, Op::Number(_) | Op::Const(_)) {
            defs[inst.dst.index()] = Some(inst.op);
        }
    }
    defs
}

/// Whether an instruction becomes a sequence that writes its result before it has read all of its operands.
pub fn early_clobber(inst: &Inst) -> bool {
    match inst.op {
        Op::Copy
        | Op::Un(_)
        | Op::Compare(_)
        | Op::Fma(_)
        | Op::Select
        | Op::Address { .. }
        | Op::AddLanes(_)
        | Op::MulLanes(_) => false,
        Op::Int(op) => !matches!(op, IntOp::Add),
        Op::Bin(BinOp::MinNan | BinOp::MaxNan) => true,
        Op::Bin(BinOp::InterleaveLow | BinOp::InterleaveHigh | BinOp::Evens | BinOp::Odds) => true,
        Op::Bin(BinOp::Div | BinOp::Mul | BinOp::Sar | BinOp::Min | BinOp::Max) => !inst.ty.is_float(),
        Op::Bin(_) => false,
        Op::Store(_) | Op::StoreInt { .. } | Op::Transpose(_) | Op::Loop { .. } | Op::If | Op::End => false,
        _ => true,
    }
}

/// An open loop or part.
struct OpenRegion {
    inst: Inst,
    top: Label,
    exit: Label,
}

/// A slow path outside of the main code: its entry, the label it returns to, and the conversion.
struct SlowPath {
    entry: Label,
    back: Label,
    what: SlowConversion,
}

enum SlowConversion {
    /// One vector to bf16, into the lower half of the second scratch register.
    Pack(VReg),
    /// Two vectors to pairs of bf16, into the second scratch register.
    PackPairs(VReg, VReg),
}

struct Emitter<'a> {
    asm: Assembler,
    f: &'a Function,
    alloc: Allocation,
    registers: Registers,
    avx512: bool,
    lanes: usize,
    s0: VReg,
    s1: VReg,
    defs: Vec<Option<Op>>,
    /// Where each constant is in the pool, once used.
    pool: Vec<Option<Mem>>,
    open: Vec<OpenRegion>,
    /// Rare cases, emitted after the function's end.
    slow_paths: Vec<SlowPath>,
    /// Whether the machine converts to bf16 in one instruction.
    bf16: bool,
    /// The instruction being emitted.
    at: usize,
    /// Addresses to be filled in.
    calls: Vec<Call>,
}

const SAVED: [Gpr; 5] = [Gpr::RBX, Gpr::R12, Gpr::R13, Gpr::R14, Gpr::R15];
const K1: KReg = KReg(1);

impl Emitter<'_> {
    fn function(&mut self) {
        let saved: Vec<Gpr> = SAVED.into_iter().filter(|r| self.alloc.used_int >> r.0 & 1 == 1).collect();
        self.asm.push(Gpr::RBP);
        self.asm.mov(Gpr::RBP, Gpr::RSP);
        for &r in &saved {
            self.asm.push(r);
        }
        let frame = self.local(self.f.local_bytes).disp;
        self.asm.alu_imm(Alu::Sub, Gpr::RSP, frame + 64);
        self.asm.alu_imm(Alu::And, Gpr::RSP, -64);
        for (n, r) in [Gpr::RDI, Gpr::RSI, Gpr::RDX].into_iter().enumerate() {
            let slot = self.int_slot(self.alloc.int_slots + n as u32);
            self.asm.store(slot, r, Size::Q);
        }
        for (v, reg) in self.alloc.hoisted.clone() {
            self.load_const(v, VReg(reg));
        }
        for at in 0..self.f.insts.len() {
            self.at = at;
            let inst = self.f.insts[at];
            self.inst(&inst);
        }
        self.asm.lea(Gpr::RSP, Mem::base(Gpr::RBP).offset(-8 * saved.len() as i32));
        for &r in saved.iter().rev() {
            self.asm.pop(r);
        }
        self.asm.pop(Gpr::RBP);
        self.asm.vzeroupper();
        self.asm.ret();
        for path in std::mem::take(&mut self.slow_paths) {
            self.asm.bind(path.entry);
            match path.what {
                SlowConversion::Pack(value) => self.pack_bf16(value),
                SlowConversion::PackPairs(even, odd) => self.round_pairs(even, odd),
            }
            self.asm.jmp(path.back);
        }
    }

    fn inst(&mut self, inst: &Inst) {
        match inst.op {
            Op::Number(_) | Op::Const(_) => {}
            Op::Loop { inclusive, .. } => {
                let (top, exit) = (self.asm.label(), self.asm.label());
                let past = if inclusive { Cond::Greater } else { Cond::GreaterEqual };
                self.compare_ints(inst.args[0], inst.args[1]);
                self.asm.jcc(past, exit);
                self.asm.align(16);
                self.asm.bind(top);
                self.open.push(OpenRegion { inst: *inst, top, exit });
            }
            Op::If => {
                let (top, exit) = (self.asm.label(), self.asm.label());
                self.compare_ints(inst.args[0], inst.args[1]);
                self.asm.jcc(Cond::GreaterEqual, exit);
                self.open.push(OpenRegion { inst: *inst, top, exit });
            }
            Op::End => self.end(),
            Op::Transpose(bytes) => self.transpose(bytes, inst),
            Op::Store(m) => self.store(m, inst),
            Op::Load(m) => self.load(m, inst),
            Op::Copy if inst.ty != Ty::Int => self.copy(inst.dst, inst.args[0]),
            _ if inst.dst.is_some() && self.f.types[inst.dst.index()] == Ty::Int
                || matches!(inst.op, Op::StoreInt { .. }) =>
            {
                self.scalar(inst)
            }
            _ => self.vector(inst),
        }
    }

    fn end(&mut self) {
        let open = self.open.pop().expect("brackets match");
        if let Op::Loop { inclusive, step } = open.inst.op {
            let grow = match step {
                Step::Elements(n) => n as i32,
                Step::Vectors(n) => n as i32 * self.lanes as i32,
            };
            let counter = open.inst.args[0];
            match self.alloc.locations[counter.index()] {
                Location::Reg(r) => self.asm.alu_imm(Alu::Add, Gpr(r), grow),
                Location::Slot(s) => {
                    let slot = self.int_slot(s);
                    self.asm.alu_imm(Alu::Add, slot, grow);
                }
                Location::None | Location::Const => unreachable!("a counter is a variable"),
            }
            self.compare_ints(counter, open.inst.args[1]);
            self.asm.jcc(if inclusive { Cond::LessEqual } else { Cond::Less }, open.top);
        }
        self.asm.bind(open.exit);
    }

    // Locations.

    fn work(&self, area: i32) -> Mem {
        debug_assert!(area < WORK_AREAS);
        Mem::base(Gpr::RSP).offset(64 * area)
    }

    fn vector_slot(&self, slot: u32) -> Mem {
        Mem::base(Gpr::RSP).offset(64 * (WORK_AREAS + slot as i32))
    }

    fn int_slot(&self, slot: u32) -> Mem {
        Mem::base(Gpr::RSP).offset(64 * (WORK_AREAS + self.alloc.vector_slots as i32) + 8 * slot as i32)
    }

    /// Memory of the function's own, after the slots.
    fn local(&self, at: u32) -> Mem {
        let start = (self.int_slot(self.alloc.int_slots + 3).disp + 63) & !63;
        Mem::base(Gpr::RSP).offset(start + at as i32)
    }

    /// Register width of a type's vectors.
    fn width(&self, ty: Ty) -> Width {
        self.width_of(ty.lane_bytes())
    }

    /// Register width of vectors with lanes of so many bytes.
    fn width_of(&self, lane_bytes: usize) -> Width {
        match self.lanes * lane_bytes {
            64 => Width::V512,
            32 => Width::V256,
            _ => Width::V128,
        }
    }

    /// Bytes of a lane of the masks that vectors hold: as wide as a whole register allows.
    fn mask_lane(&self) -> usize {
        if self.f.wide { 8 } else { 4 }
    }

    fn mask_size(&self) -> MaskSize {
        match self.lanes {
            64 => MaskSize::Q,
            32 => MaskSize::D,
            16 => MaskSize::W,
            _ => MaskSize::B,
        }
    }

    /// The type a value's register is moved as.
    fn storage(&self, v: V) -> Ty {
        match self.f.types[v.index()] {
            Ty::Mask if self.f.wide => Ty::F64,
            Ty::Mask => Ty::F32,
            ty => ty,
        }
    }

    fn const_bits(&self, v: V) -> Option<u64> {
        match self.defs[v.index()] {
            Some(Op::Const(bits)) => Some(bits),
            _ => None,
        }
    }

    fn number(&self, v: V) -> Option<i64> {
        match self.defs[v.index()] {
            Some(Op::Number(n)) => Some(n),
            _ => None,
        }
    }

    /// A constant's offset in the pool: one element for AVX-512, which broadcasts it; a whole vector for AVX2.
    fn pool(&mut self, v: V) -> Mem {
        if let Some(mem) = self.pool[v.index()] {
            return mem;
        }
        let bits = self.const_bits(v).expect("only constants are in the pool");
        let ty = self.f.types[v.index()];
        let mem = match ty {
            Ty::Mask => self.splat_bytes(if bits != 0 { u64::MAX } else { 0 }, self.mask_lane()),
            _ if self.avx512 => self.asm.constant(&bits.to_le_bytes()[..ty.lane_bytes()]),
            _ => self.splat_bytes(bits, ty.lane_bytes()),
        };
        self.pool[v.index()] = Some(mem);
        mem
    }

    /// A constant of the low bytes of `bits` in every lane.
    fn splat_bytes(&mut self, bits: u64, lane_bytes: usize) -> Mem {
        let mut bytes = [0u8; 64];
        let len = self.lanes * lane_bytes;
        for lane in bytes[..len].chunks_mut(lane_bytes) {
            lane.copy_from_slice(&bits.to_le_bytes()[..lane_bytes]);
        }
        self.asm.constant(&bytes[..len])
    }

    fn load_const(&mut self, v: V, into: VReg) {
        let ty = self.storage(v);
        let width = self.width(ty);
        if self.const_bits(v) == Some(0) {
            return self.asm.rvm(ops::VXORPS, Width::V128, into, into, into);
        }
        let mem = self.pool(v);
        if !self.avx512 {
            return self.asm.rm(ops::VMOVUPS, width, into, mem);
        }
        let repeat = match ty.lane_bytes() {
            8 if width != Width::V128 => ops::VBROADCASTSD,
            2 => ops::VPBROADCASTW,
            1 => ops::VPBROADCASTB,
            _ => ops::VBROADCASTSS,
        };
        self.asm.rm(repeat, width, into, mem);
    }

    /// The register of a vector, loaded into `scratch` if it has none.
    fn reg(&mut self, v: V, scratch: VReg) -> VReg {
        match self.alloc.locations[v.index()] {
            Location::Reg(r) => VReg(r),
            Location::Slot(s) => {
                let (slot, width) = (self.vector_slot(s), self.width(self.storage(v)));
                self.asm.rm(ops::VMOVUPS, width, scratch, slot);
                scratch
            }
            _ => {
                self.load_const(v, scratch);
                scratch
            }
        }
    }

    /// Whether a value is in a register.
    fn in_reg(&self, v: V) -> bool {
        matches!(self.alloc.locations[v.index()], Location::Reg(_))
    }

    /// A vector as the last operand of `op`: register, stack slot or pool entry (to be broadcast if the flag is set).
    fn rm(&mut self, v: V, op: VOp, scratch: VReg) -> (Rm, bool) {
        match self.alloc.locations[v.index()] {
            Location::Reg(r) => (VReg(r).into(), false),
            Location::Slot(s) => (self.vector_slot(s).into(), false),
            _ if !self.avx512 => (self.pool(v).into(), false),
            _ if op.elem as usize == self.storage(v).lane_bytes() => (self.pool(v).into(), true),
            _ => (self.reg(v, scratch).into(), false),
        }
    }

    /// `op dst, a, v`
    fn op3(&mut self, op: VOp, width: Width, dst: VReg, a: VReg, v: V, scratch: VReg) {
        let (rm, repeat) = self.rm(v, op, scratch);
        let args = Args::rvm(dst, a, rm);
        self.asm.vector(op, width, if repeat { args.broadcast() } else { args });
    }

    /// `op dst, v`
    fn op2(&mut self, op: VOp, width: Width, dst: VReg, v: V, scratch: VReg) {
        let (rm, repeat) = self.rm(v, op, scratch);
        let args = Args::rm(dst, rm);
        self.asm.vector(op, width, if repeat { args.broadcast() } else { args });
    }

    fn move_reg(&mut self, width: Width, dst: VReg, src: VReg) {
        if dst != src {
            self.asm.rm(ops::VMOVAPS, width, dst, src);
        }
    }

    /// The register a vector is computed in: its own, or scratch.
    fn dst(&self, v: V) -> VReg {
        match self.alloc.locations[v.index()] {
            Location::Reg(r) => VReg(r),
            _ => self.s0,
        }
    }

    /// Stores a computed vector if it lives on the stack.
    fn done(&mut self, v: V, reg: VReg) {
        if let Location::Slot(s) = self.alloc.locations[v.index()] {
            let (slot, width) = (self.vector_slot(s), self.width(self.storage(v)));
            self.asm.mr(ops::VMOVUPS_ST, width, slot, reg);
        }
    }

    /// The mask register of a mask (AVX-512), loaded into `scratch` if it has none.
    fn kreg(&mut self, v: V, scratch: KReg) -> KReg {
        match self.alloc.locations[v.index()] {
            Location::Reg(r) => KReg(r),
            Location::Slot(s) => {
                let slot = self.vector_slot(s);
                self.asm.kmov_load(MaskSize::Q, scratch, slot);
                scratch
            }
            _ => {
                let size = self.mask_size();
                match self.const_bits(v) {
                    Some(0) => self.asm.kxor(size, scratch, scratch, scratch),
                    _ => self.asm.kxnor(size, scratch, scratch, scratch),
                }
                scratch
            }
        }
    }

    fn kdst(&self, v: V) -> KReg {
        match self.alloc.locations[v.index()] {
            Location::Reg(r) => KReg(r),
            _ => K1,
        }
    }

    fn kdone(&mut self, v: V, reg: KReg) {
        if let Location::Slot(s) = self.alloc.locations[v.index()] {
            let slot = self.vector_slot(s);
            self.asm.kmov_store(MaskSize::Q, slot, reg);
        }
    }

    /// A mask held in a vector (AVX2), with lanes of `lane_bytes`, in some register; `scratch` may be used.
    fn vmask(&mut self, v: V, lane_bytes: usize, scratch: VReg) -> VReg {
        let reg = self.reg(v, scratch);
        if lane_bytes == self.mask_lane() {
            return reg;
        }
        // Four 64-bit lanes to four 32-bit ones.
        let high = if reg == scratch { self.work(3) } else { Mem::base(Gpr::RSP) };
        if reg == scratch {
            self.asm.mr(ops::VMOVUPS_ST, Width::V256, high, reg);
            self.asm.rvmi(ops::VSHUFPS, Width::V128, scratch, scratch, high.offset(16), 0x88);
        } else {
            self.asm.vector(ops::VEXTRACTF128, Width::V256, Args::mr(scratch, reg).imm(1));
            self.asm.rvmi(ops::VSHUFPS, Width::V128, scratch, reg, scratch, 0x88);
        }
        scratch
    }

    fn copy(&mut self, dst: V, src: V) {
        if self.registers.class(self.f.types[dst.index()]) == Class::Mask {
            let to = self.kdst(dst);
            let from = self.kreg(src, to);
            if from != to {
                self.asm.kmov(MaskSize::Q, to, from);
            }
            return self.kdone(dst, to);
        }
        let to = self.dst(dst);
        let from = self.reg(src, to);
        let width = self.width(self.storage(dst));
        self.move_reg(width, to, from);
        self.done(dst, to);
    }

    /// Makes a mask of equal lanes of `rax`, which is 0 or −1.
    fn mask_from_rax(&mut self, dst: V) {
        if self.avx512 {
            let k = self.kdst(dst);
            self.asm.kmov_from(MaskSize::Q, k, Gpr::RAX);
            return self.kdone(dst, k);
        }
        let to = self.dst(dst);
        self.asm.rm(ops::VMOVQ, Width::V128, to, Gpr::RAX);
        self.asm.rm(ops::VPBROADCASTQ, Width::V256, to, to);
        self.done(dst, to);
    }
}
