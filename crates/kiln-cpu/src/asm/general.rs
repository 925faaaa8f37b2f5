//! General-purpose instructions. Arithmetic is 64-bit; loads and stores take a [`Size`].

use super::{Assembler, Base, Gpr, Index, Label, Mem, Reg, Rm};

/// The size of an integer in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// 8 bits.
    B,
    /// 16 bits.
    W,
    /// 32 bits.
    D,
    /// 64 bits.
    Q,
}

/// Two-operand arithmetic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alu {
    /// `dst += src`
    Add = 0,
    /// `dst |= src`
    Or = 1,
    /// `dst &= src`
    And = 4,
    /// `dst -= src`
    Sub = 5,
    /// `dst ^= src`
    Xor = 6,
    /// Flags of `dst - src`
    Cmp = 7,
}

/// Shifts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shift {
    /// Left.
    Shl = 4,
    /// Right, zeros come in.
    Shr = 5,
    /// Right, copies of the sign come in.
    Sar = 7,
}

/// Conditions for jumps, moves and sets; the value is the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cond {
    /// Unsigned `<` (carry).
    Below = 2,
    /// Unsigned `>=` (no carry).
    AboveEqual = 3,
    /// `==` (zero).
    Equal = 4,
    /// `!=` (not zero).
    NotEqual = 5,
    /// Unsigned `<=`.
    BelowEqual = 6,
    /// Unsigned `>`.
    Above = 7,
    /// Negative.
    Sign = 8,
    /// Not negative.
    NotSign = 9,
    /// Signed `<`.
    Less = 12,
    /// Signed `>=`.
    GreaterEqual = 13,
    /// Signed `<=`.
    LessEqual = 14,
    /// Signed `>`.
    Greater = 15,
}

impl Cond {
    /// The opposite condition.
    pub const fn not(self) -> Cond {
        match self {
            Cond::Below => Cond::AboveEqual,
            Cond::AboveEqual => Cond::Below,
            Cond::Equal => Cond::NotEqual,
            Cond::NotEqual => Cond::Equal,
            Cond::BelowEqual => Cond::Above,
            Cond::Above => Cond::BelowEqual,
            Cond::Sign => Cond::NotSign,
            Cond::NotSign => Cond::Sign,
            Cond::Less => Cond::GreaterEqual,
            Cond::GreaterEqual => Cond::Less,
            Cond::LessEqual => Cond::Greater,
            Cond::Greater => Cond::LessEqual,
        }
    }
}

/// Which prefixes an instruction needs beyond its operands.
struct Legacy<'a> {
    prefix: Option<u8>,
    wide: bool,
    /// An 8-bit register operand: numbers 4..8 need a REX prefix to mean spl, bpl, sil, dil.
    byte_reg: bool,
    opcode: &'a [u8],
}

impl Assembler {
    /// Prefix, REX, opcode and operand of a legacy instruction.
    fn legacy(&mut self, how: Legacy<'_>, reg: u8, rm: &Rm, imm_bytes: usize) {
        if let Some(prefix) = how.prefix {
            self.byte(prefix);
        }
        let mut rex = u8::from(how.wide) << 3 | (reg >> 3 & 1) << 2;
        match rm {
            Rm::Reg(r) => rex |= r.number() >> 3 & 1,
            Rm::Mem(m) => {
                if let Base::Register(b) = m.base {
                    rex |= b.0 >> 3;
                }
                match m.index {
                    Index::Scaled(g, _) => rex |= (g.0 >> 3) << 1,
                    Index::Vector(..) => panic!("a vector index outside a gather or scatter"),
                    Index::None => {}
                }
            }
        }
        let low_byte = |n: u8| how.byte_reg && (4..8).contains(&n);
        let rm_number = match rm {
            Rm::Reg(r) => r.number(),
            Rm::Mem(_) => 0,
        };
        if rex != 0 || low_byte(reg) || low_byte(rm_number) {
            self.byte(0x40 | rex);
        }
        self.bytes(how.opcode);
        match rm {
            Rm::Reg(r) => self.modrm_reg(reg, r.number()),
            Rm::Mem(m) => self.modrm_mem(reg, m, 1, imm_bytes),
        }
    }

    fn wide(&mut self, opcode: &[u8], reg: u8, rm: impl Into<Rm>, imm_bytes: usize) {
        let how = Legacy { prefix: None, wide: true, byte_reg: false, opcode };
        self.legacy(how, reg, &rm.into(), imm_bytes);
    }

    fn narrow(&mut self, opcode: &[u8], reg: u8, rm: impl Into<Rm>) {
        let how = Legacy { prefix: None, wide: false, byte_reg: false, opcode };
        self.legacy(how, reg, &rm.into(), 0);
    }

    /// `dst = src`
    pub fn mov(&mut self, dst: Gpr, src: Gpr) {
        self.wide(&[0x8b], dst.0, src, 0);
    }

    /// `dst = value`, in the shortest form.
    pub fn mov_imm(&mut self, dst: Gpr, value: i64) {
        if let Ok(v) = u32::try_from(value) {
            if dst.0 >= 8 {
                self.byte(0x41);
            }
            self.byte(0xb8 | dst.0 & 7);
            self.bytes(&v.to_le_bytes());
        } else if let Ok(v) = i32::try_from(value) {
            self.wide(&[0xc7], 0, dst, 4);
            self.imm32(v);
        } else {
            self.byte(0x48 | dst.0 >> 3);
            self.byte(0xb8 | dst.0 & 7);
            self.bytes(&value.to_le_bytes());
        }
    }

    /// `dst = ` an address that is filled in when the code is installed; returns the offset of its eight bytes.
    pub fn mov_address(&mut self, dst: Gpr) -> usize {
        self.byte(0x48 | dst.0 >> 3);
        self.byte(0xb8 | dst.0 & 7);
        let at = self.len();
        self.bytes(&[0; 8]);
        at
    }

    /// Loads an integer and extends it with zeros.
    pub fn load(&mut self, dst: Gpr, src: Mem, size: Size) {
        match size {
            Size::B => self.narrow(&[0x0f, 0xb6], dst.0, src),
            Size::W => self.narrow(&[0x0f, 0xb7], dst.0, src),
            Size::D => self.narrow(&[0x8b], dst.0, src),
            Size::Q => self.wide(&[0x8b], dst.0, src, 0),
        }
    }

    /// Loads an integer and extends it with its sign to 64 bits.
    pub fn load_signed(&mut self, dst: Gpr, src: Mem, size: Size) {
        match size {
            Size::B => self.wide(&[0x0f, 0xbe], dst.0, src, 0),
            Size::W => self.wide(&[0x0f, 0xbf], dst.0, src, 0),
            Size::D => self.wide(&[0x63], dst.0, src, 0),
            Size::Q => self.wide(&[0x8b], dst.0, src, 0),
        }
    }

    /// Extends the low part of `src` with zeros.
    pub fn zero_extend(&mut self, dst: Gpr, src: Gpr, size: Size) {
        match size {
            Size::B => {
                let how = Legacy { prefix: None, wide: false, byte_reg: true, opcode: &[0x0f, 0xb6] };
                self.legacy(how, dst.0, &src.into(), 0);
            }
            Size::W => self.narrow(&[0x0f, 0xb7], dst.0, src),
            Size::D => self.narrow(&[0x8b], dst.0, src),
            Size::Q => self.mov(dst, src),
        }
    }

    /// Extends the low part of `src` with its sign to 64 bits.
    pub fn sign_extend(&mut self, dst: Gpr, src: Gpr, size: Size) {
        match size {
            Size::B => self.wide(&[0x0f, 0xbe], dst.0, src, 0),
            Size::W => self.wide(&[0x0f, 0xbf], dst.0, src, 0),
            Size::D => self.wide(&[0x63], dst.0, src, 0),
            Size::Q => self.mov(dst, src),
        }
    }

    /// Stores the low part of a register.
    pub fn store(&mut self, dst: Mem, src: Gpr, size: Size) {
        let (prefix, wide, opcode) = match size {
            Size::B => (None, false, 0x88),
            Size::W => (Some(0x66), false, 0x89),
            Size::D => (None, false, 0x89),
            Size::Q => (None, true, 0x89),
        };
        let how = Legacy { prefix, wide, byte_reg: size == Size::B, opcode: &[opcode] };
        self.legacy(how, src.0, &dst.into(), 0);
    }

    /// `dst = address of src`
    pub fn lea(&mut self, dst: Gpr, src: Mem) {
        self.wide(&[0x8d], dst.0, src, 0);
    }

    /// `dst = dst op src`; `src` is a register or 64 bits of memory.
    pub fn alu(&mut self, op: Alu, dst: Gpr, src: impl Into<Rm>) {
        self.wide(&[(op as u8) << 3 | 3], dst.0, src, 0);
    }

    /// `dst = dst op imm`
    pub fn alu_imm(&mut self, op: Alu, dst: impl Into<Rm>, imm: i32) {
        if let Ok(short) = i8::try_from(imm) {
            self.wide(&[0x83], op as u8, dst, 1);
            self.byte(short as u8);
        } else {
            self.wide(&[0x81], op as u8, dst, 4);
            self.imm32(imm);
        }
    }

    /// `dst *= src`
    pub fn imul(&mut self, dst: Gpr, src: impl Into<Rm>) {
        self.wide(&[0x0f, 0xaf], dst.0, src, 0);
    }

    /// `dst = src * imm`
    pub fn imul_imm(&mut self, dst: Gpr, src: impl Into<Rm>, imm: i32) {
        self.wide(&[0x69], dst.0, src, 4);
        self.imm32(imm);
    }

    /// Shift by a constant.
    pub fn shift_imm(&mut self, op: Shift, dst: Gpr, by: u8) {
        self.wide(&[0xc1], op as u8, dst, 1);
        self.byte(by);
    }

    /// Shift by `cl`.
    pub fn shift_cl(&mut self, op: Shift, dst: Gpr) {
        self.wide(&[0xd3], op as u8, dst, 0);
    }

    /// Flags of `a & b`.
    pub fn test(&mut self, a: Gpr, b: Gpr) {
        self.wide(&[0x85], b.0, a, 0);
    }

    /// `dst = -dst`
    pub fn neg(&mut self, dst: Gpr) {
        self.wide(&[0xf7], 3, dst, 0);
    }

    /// `dst = !dst`
    pub fn not(&mut self, dst: Gpr) {
        self.wide(&[0xf7], 2, dst, 0);
    }

    /// `dst += 1`
    pub fn inc(&mut self, dst: Gpr) {
        self.wide(&[0xff], 0, dst, 0);
    }

    /// `dst -= 1`
    pub fn dec(&mut self, dst: Gpr) {
        self.wide(&[0xff], 1, dst, 0);
    }

    /// Signed division of `rdx:rax` by `src`: quotient in `rax`, remainder in `rdx`.
    pub fn idiv(&mut self, src: Gpr) {
        self.wide(&[0xf7], 7, src, 0);
    }

    /// Unsigned division of `rdx:rax` by `src`: quotient in `rax`, remainder in `rdx`.
    pub fn div(&mut self, src: Gpr) {
        self.wide(&[0xf7], 6, src, 0);
    }

    /// Unsigned product of `rax` and `src`: the upper half in `rdx`, the lower one in `rax`.
    pub fn mul(&mut self, src: Gpr) {
        self.wide(&[0xf7], 4, src, 0);
    }

    /// Extends the sign of `rax` into `rdx`.
    pub fn cqo(&mut self) {
        self.bytes(&[0x48, 0x99]);
    }

    /// Number of set bits.
    pub fn popcnt(&mut self, dst: Gpr, src: Gpr) {
        let how = Legacy { prefix: Some(0xf3), wide: true, byte_reg: false, opcode: &[0x0f, 0xb8] };
        self.legacy(how, dst.0, &src.into(), 0);
    }

    /// Jumps to a label.
    pub fn jmp(&mut self, to: Label) {
        self.byte(0xe9);
        self.rel32(to);
    }

    /// Jumps to a label if the condition holds.
    pub fn jcc(&mut self, cond: Cond, to: Label) {
        self.bytes(&[0x0f, 0x80 | cond as u8]);
        self.rel32(to);
    }

    /// Jumps to the address in a register.
    pub fn jmp_reg(&mut self, to: Gpr) {
        self.narrow(&[0xff], 4, to);
    }

    /// Calls the address in a register.
    pub fn call(&mut self, to: Gpr) {
        self.narrow(&[0xff], 2, to);
    }

    /// Pushes a register.
    pub fn push(&mut self, r: Gpr) {
        if r.0 >= 8 {
            self.byte(0x41);
        }
        self.byte(0x50 | r.0 & 7);
    }

    /// Pops a register.
    pub fn pop(&mut self, r: Gpr) {
        if r.0 >= 8 {
            self.byte(0x41);
        }
        self.byte(0x58 | r.0 & 7);
    }

    /// Returns.
    pub fn ret(&mut self) {
        self.byte(0xc3);
    }

    /// `low byte of dst = cond`; the other bits stay.
    pub fn setcc(&mut self, cond: Cond, dst: Gpr) {
        let opcode = &[0x0f, 0x90 | cond as u8];
        let how = Legacy { prefix: None, wide: false, byte_reg: true, opcode };
        self.legacy(how, 0, &Rm::Reg(Reg::General(dst)), 0);
    }

    /// `if cond { dst = src }`
    pub fn cmov(&mut self, cond: Cond, dst: Gpr, src: impl Into<Rm>) {
        self.wide(&[0x0f, 0x40 | cond as u8], dst.0, src, 0);
    }

    /// Prefetches a cache line into every level.
    pub fn prefetch_t0(&mut self, at: Mem) {
        self.narrow(&[0x0f, 0x18], 1, at);
    }

    /// Prefetches a cache line into the second level.
    pub fn prefetch_t1(&mut self, at: Mem) {
        self.narrow(&[0x0f, 0x18], 2, at);
    }

    /// Prefetches a cache line that will not be used again.
    pub fn prefetch_nta(&mut self, at: Mem) {
        self.narrow(&[0x0f, 0x18], 0, at);
    }

    /// Orders non-temporal stores before what follows.
    pub fn sfence(&mut self) {
        self.bytes(&[0x0f, 0xae, 0xf8]);
    }

    /// Clears the upper halves of the vector registers, before returning to code that may use SSE.
    pub fn vzeroupper(&mut self) {
        self.bytes(&[0xc5, 0xf8, 0x77]);
    }
}
