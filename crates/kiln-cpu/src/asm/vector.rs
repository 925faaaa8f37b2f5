//! VEX and EVEX encoding of the vector instructions in [`ops`](super::ops), and the mask-register instructions.

use super::ops::{Class, Order, Tuple, VOp};
use super::{Assembler, Base, Gpr, Index, KReg, Mem, Reg, Rm, VReg, Width};

/// Operands of one vector instruction.
///
/// `Args::rm(dst, src)`, `Args::rvm(dst, a, b)` and `Args::mr(dst, src)` name them in the order of Intel's manual;
/// `imm`, `mask`, `zero` and `broadcast` add the rest.
#[derive(Clone, Copy, Debug)]
pub struct Args {
    reg: Reg,
    vvvv: u8,
    rm: Rm,
    imm: Option<u8>,
    mask: KReg,
    zero: bool,
    broadcast: bool,
}

impl Args {
    /// Destination register, source register or memory. Shifts by a constant use this too.
    pub fn rm(dst: impl Into<Reg>, src: impl Into<Rm>) -> Args {
        let none = KReg(0);
        Args { reg: dst.into(), vvvv: 0, rm: src.into(), imm: None, mask: none, zero: false, broadcast: false }
    }

    /// Destination, first source, second source (register or memory).
    pub fn rvm(dst: impl Into<Reg>, a: VReg, b: impl Into<Rm>) -> Args {
        Args { vvvv: a.0, ..Args::rm(dst, b) }
    }

    /// Destination register or memory, source register: stores, extracts and narrowing moves.
    pub fn mr(dst: impl Into<Rm>, src: impl Into<Reg>) -> Args {
        Args::rm(src, dst)
    }

    /// Adds the immediate byte.
    pub fn imm(self, imm: u8) -> Args {
        Args { imm: Some(imm), ..self }
    }

    /// Adds the selecting register of a VEX blend.
    pub fn select(self, by: VReg) -> Args {
        self.imm(by.0 << 4)
    }

    /// Adds a write mask; lanes outside keep their value.
    pub fn mask(self, k: KReg) -> Args {
        Args { mask: k, ..self }
    }

    /// Lanes outside the write mask become zero.
    pub fn zero(self) -> Args {
        Args { zero: true, ..self }
    }

    /// The memory operand is one element, repeated into every lane.
    pub fn broadcast(self) -> Args {
        Args { broadcast: true, ..self }
    }
}

/// Encoded fields shared by VEX and EVEX.
pub(super) struct Fields {
    pub reg: u8,
    pub vvvv: u8,
    pub imm: Option<u8>,
    /// High bits of the index (or of a register rm, as EVEX has it) and of the base.
    pub x: u8,
    pub b: u8,
    /// Bit 4 of a vector index.
    pub index_high: u8,
}

impl Assembler {
    /// Emits any vector instruction of the table.
    pub fn vector(&mut self, op: VOp, width: Width, args: Args) {
        let form = op.form;
        check_operands(&op, width, &args);
        let imm_bytes = usize::from(args.imm.is_some());
        let (reg, vvvv) = match form.order {
            Order::Vm(digit) => (digit, args.reg.number()),
            _ => (args.reg.number(), args.vvvv),
        };
        let mut fields = Fields { reg, vvvv, imm: args.imm, x: 0, b: 0, index_high: 0 };
        match args.rm {
            Rm::Reg(r) => {
                fields.b = r.number() >> 3 & 1;
                fields.x = r.number() >> 4;
            }
            Rm::Mem(m) => {
                if let Base::Register(b) = m.base {
                    fields.b = b.0 >> 3;
                }
                match m.index {
                    Index::Scaled(g, _) => fields.x = g.0 >> 3,
                    Index::Vector(v, _) => {
                        fields.x = v.0 >> 3 & 1;
                        fields.index_high = v.0 >> 4;
                    }
                    Index::None => {}
                }
            }
        }
        let high_rm = matches!(args.rm, Rm::Reg(_)) && fields.x != 0;
        let needs_evex = width == Width::V512
            || args.mask.0 != 0
            || args.broadcast
            || fields.reg >= 16
            || fields.vvvv >= 16
            || high_rm
            || fields.index_high != 0;
        let unit = if needs_evex || op.vex < 0 {
            assert!(op.evex >= 0, "{}: these operands need EVEX, which it lacks", op.name);
            self.evex_prefix(&op, width, &args, &fields);
            disp_unit(&op, width, args.broadcast)
        } else {
            self.vex_prefix(op.map, op.pp, op.vex as u8, u8::from(width == Width::V256), &fields);
            1
        };
        self.byte(op.opcode);
        match args.rm {
            Rm::Reg(r) => self.modrm_reg(fields.reg, r.number()),
            Rm::Mem(m) => self.modrm_mem(fields.reg, &m, unit, imm_bytes),
        }
        if let Some(imm) = fields.imm {
            self.byte(imm);
        }
    }

    pub(super) fn vex_prefix(&mut self, map: u8, pp: u8, w: u8, l: u8, f: &Fields) {
        let r = !(f.reg >> 3) & 1;
        let (x, b) = (!f.x & 1, !f.b & 1);
        let tail = (!f.vvvv & 15) << 3 | l << 2 | pp;
        if map == 1 && w == 0 && x == 1 && b == 1 {
            self.bytes(&[0xc5, r << 7 | tail]);
        } else {
            self.bytes(&[0xc4, r << 7 | x << 6 | b << 5 | map, w << 7 | tail]);
        }
    }

    fn evex_prefix(&mut self, op: &VOp, width: Width, args: &Args, f: &Fields) {
        let bit = |v: u8, n: u8| !(v >> n) & 1;
        let p0 = bit(f.reg, 3) << 7 | (!f.x & 1) << 6 | (!f.b & 1) << 5 | bit(f.reg, 4) << 4 | op.map;
        let p1 = (op.evex as u8) << 7 | (!f.vvvv & 15) << 3 | 1 << 2 | op.pp;
        let v_high = if f.index_high != 0 { 0 } else { bit(f.vvvv, 4) };
        let p2 =
            u8::from(args.zero) << 7 | (width as u8) << 5 | u8::from(args.broadcast) << 4 | v_high << 3 | args.mask.0;
        self.bytes(&[0x62, p0, p1, p2]);
    }

    /// `dst = op(src)`
    pub fn rm(&mut self, op: VOp, width: Width, dst: impl Into<Reg>, src: impl Into<Rm>) {
        self.vector(op, width, Args::rm(dst, src));
    }

    /// `dst = op(src, imm)`
    pub fn rmi(&mut self, op: VOp, width: Width, dst: impl Into<Reg>, src: impl Into<Rm>, imm: u8) {
        self.vector(op, width, Args::rm(dst, src).imm(imm));
    }

    /// `dst = op(a, b)`
    pub fn rvm(&mut self, op: VOp, width: Width, dst: impl Into<Reg>, a: VReg, b: impl Into<Rm>) {
        self.vector(op, width, Args::rvm(dst, a, b));
    }

    /// `dst = op(a, b, imm)`
    pub fn rvmi(&mut self, op: VOp, width: Width, dst: impl Into<Reg>, a: VReg, b: impl Into<Rm>, imm: u8) {
        self.vector(op, width, Args::rvm(dst, a, b).imm(imm));
    }

    /// `dst = op(src)`, where the destination may be memory.
    pub fn mr(&mut self, op: VOp, width: Width, dst: impl Into<Rm>, src: impl Into<Reg>) {
        self.vector(op, width, Args::mr(dst, src));
    }
}

/// N of EVEX's disp8·N.
fn disp_unit(op: &VOp, width: Width, broadcast: bool) -> i32 {
    let full = width.bytes() as i32;
    match op.tuple {
        _ if broadcast => i32::from(op.elem),
        Tuple::Full => full,
        Tuple::Half => full / 2,
        Tuple::Quarter => full / 4,
        Tuple::Eighth => full / 8,
        Tuple::One => i32::from(op.elem),
        Tuple::X16 => 16,
        Tuple::X32 => 32,
    }
}

fn check_operands(op: &VOp, width: Width, args: &Args) {
    let form = op.form;
    let class = |r: Reg| match r {
        Reg::Vector(_) => Class::Vector,
        Reg::Mask(_) => Class::Mask,
        Reg::General(_) => Class::General,
    };
    assert!(op.has_width(width), "{}: no form of {width:?}", op.name);
    assert!(class(args.reg) == form.reg, "{}: wrong kind of register {:?}", op.name, args.reg);
    match args.rm {
        Rm::Reg(r) => assert!(form.takes_reg && class(r) == form.rm, "{}: operand {r:?}", op.name),
        Rm::Mem(_) => assert!(form.takes_mem, "{}: takes no memory operand", op.name),
    }
    assert!(args.imm.is_some() == form.imm, "{}: immediate", op.name);
    if args.broadcast {
        let full = matches!(op.tuple, Tuple::Full | Tuple::Half);
        assert!(full && op.elem > 0 && matches!(args.rm, Rm::Mem(_)), "{}: cannot broadcast", op.name);
    }
    assert!(!args.zero || args.mask.0 != 0, "{}: zeroing without a mask", op.name);
}

/// How many bits of mask registers an instruction works on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MaskSize {
    /// 8 bits.
    B,
    /// 16 bits.
    W,
    /// 32 bits.
    D,
    /// 64 bits.
    Q,
}

impl MaskSize {
    /// (pp, W) of the instructions between mask registers and memory.
    fn prefix(self) -> (u8, u8) {
        match self {
            MaskSize::B => (1, 0),
            MaskSize::W => (0, 0),
            MaskSize::D => (1, 1),
            MaskSize::Q => (0, 1),
        }
    }

    /// (pp, W) of moves from and to general-purpose registers.
    fn general_prefix(self) -> (u8, u8) {
        match self {
            MaskSize::B => (1, 0),
            MaskSize::W => (0, 0),
            MaskSize::D => (3, 0),
            MaskSize::Q => (3, 1),
        }
    }
}

/// Mask-register instructions.
impl Assembler {
    fn mask_op(&mut self, prefix: (u8, u8), l: u8, opcode: u8, reg: u8, vvvv: u8, rm: Rm) {
        let (x, b) = match rm {
            Rm::Reg(r) => (0, r.number() >> 3),
            Rm::Mem(m) => {
                let b = if let Base::Register(b) = m.base { b.0 >> 3 } else { 0 };
                let x = if let Index::Scaled(g, _) = m.index { g.0 >> 3 } else { 0 };
                (x, b)
            }
        };
        let fields = Fields { reg, vvvv, imm: None, x, b, index_high: 0 };
        self.vex_prefix(1, prefix.0, prefix.1, l, &fields);
        self.byte(opcode);
        match rm {
            Rm::Reg(r) => self.modrm_reg(reg, r.number()),
            Rm::Mem(m) => self.modrm_mem(reg, &m, 1, 0),
        }
    }

    /// `dst = src`
    pub fn kmov(&mut self, size: MaskSize, dst: KReg, src: KReg) {
        self.mask_op(size.prefix(), 0, 0x90, dst.0, 0, src.into());
    }

    /// Loads a mask.
    pub fn kmov_load(&mut self, size: MaskSize, dst: KReg, src: Mem) {
        self.mask_op(size.prefix(), 0, 0x90, dst.0, 0, src.into());
    }

    /// Stores a mask.
    pub fn kmov_store(&mut self, size: MaskSize, dst: Mem, src: KReg) {
        self.mask_op(size.prefix(), 0, 0x91, src.0, 0, dst.into());
    }

    /// `dst = low bits of src`
    pub fn kmov_from(&mut self, size: MaskSize, dst: KReg, src: Gpr) {
        self.mask_op(size.general_prefix(), 0, 0x92, dst.0, 0, src.into());
    }

    /// `dst = src`, extended with zeros.
    pub fn kmov_to(&mut self, size: MaskSize, dst: Gpr, src: KReg) {
        self.mask_op(size.general_prefix(), 0, 0x93, dst.0, 0, src.into());
    }

    /// `dst = a & b`
    pub fn kand(&mut self, size: MaskSize, dst: KReg, a: KReg, b: KReg) {
        self.mask_op(size.prefix(), 1, 0x41, dst.0, a.0, b.into());
    }

    /// `dst = !a & b`
    pub fn kandn(&mut self, size: MaskSize, dst: KReg, a: KReg, b: KReg) {
        self.mask_op(size.prefix(), 1, 0x42, dst.0, a.0, b.into());
    }

    /// `dst = !src`
    pub fn knot(&mut self, size: MaskSize, dst: KReg, src: KReg) {
        self.mask_op(size.prefix(), 0, 0x44, dst.0, 0, src.into());
    }

    /// `dst = a | b`
    pub fn kor(&mut self, size: MaskSize, dst: KReg, a: KReg, b: KReg) {
        self.mask_op(size.prefix(), 1, 0x45, dst.0, a.0, b.into());
    }

    /// `dst = !(a ^ b)`; of a register with itself: all ones.
    pub fn kxnor(&mut self, size: MaskSize, dst: KReg, a: KReg, b: KReg) {
        self.mask_op(size.prefix(), 1, 0x46, dst.0, a.0, b.into());
    }

    /// `dst = a ^ b`; of a register with itself: zero.
    pub fn kxor(&mut self, size: MaskSize, dst: KReg, a: KReg, b: KReg) {
        self.mask_op(size.prefix(), 1, 0x47, dst.0, a.0, b.into());
    }

    /// Flags of `a | b`: zero if none is set, carry if all are.
    pub fn kortest(&mut self, size: MaskSize, a: KReg, b: KReg) {
        self.mask_op(size.prefix(), 0, 0x98, a.0, 0, b.into());
    }
}
