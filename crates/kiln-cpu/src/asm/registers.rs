//! Operands: registers, memory addresses and vector widths.

use super::Label;

/// A 64-bit general-purpose register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Gpr(pub u8);

macro_rules! gprs {
    ($($name:ident = $n:expr),*) => {
        #[allow(missing_docs)]
        impl Gpr { $(pub const $name: Gpr = Gpr($n);)* }
    };
}
gprs!(
    RAX = 0,
    RCX = 1,
    RDX = 2,
    RBX = 3,
    RSP = 4,
    RBP = 5,
    RSI = 6,
    RDI = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
    R11 = 11,
    R12 = 12,
    R13 = 13,
    R14 = 14,
    R15 = 15
);

/// A vector register, 0..32; its width is a property of the instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct VReg(pub u8);

/// An AVX-512 mask register, 0..8; `k0` as a write mask means "no mask".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct KReg(pub u8);

/// Any register.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Reg {
    /// A vector register.
    Vector(VReg),
    /// A mask register.
    Mask(KReg),
    /// A general-purpose register.
    General(Gpr),
}

impl Reg {
    /// The register's number in its own file.
    pub fn number(self) -> u8 {
        match self {
            Reg::Vector(v) => v.0,
            Reg::Mask(k) => k.0,
            Reg::General(g) => g.0,
        }
    }
}

impl From<VReg> for Reg {
    fn from(v: VReg) -> Reg {
        Reg::Vector(v)
    }
}
impl From<KReg> for Reg {
    fn from(k: KReg) -> Reg {
        Reg::Mask(k)
    }
}
impl From<Gpr> for Reg {
    fn from(g: Gpr) -> Reg {
        Reg::General(g)
    }
}

/// The base of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// No base: the displacement (and index) alone.
    None,
    /// A register.
    Register(Gpr),
    /// A label of the same code, addressed relative to the instruction pointer. Takes no index.
    Label(Label),
}

/// The scaled part of an address; the scale is 1, 2, 4 or 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Index {
    /// No index.
    None,
    /// A general-purpose register.
    Scaled(Gpr, u8),
    /// A vector of indices, for gathers and scatters.
    Vector(VReg, u8),
}

/// A memory operand: base + index · scale + displacement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mem {
    /// Base register or label.
    pub base: Base,
    /// Scaled index.
    pub index: Index,
    /// Constant displacement in bytes.
    pub disp: i32,
}

impl Mem {
    /// `[base]`
    pub const fn base(base: Gpr) -> Mem {
        Mem { base: Base::Register(base), index: Index::None, disp: 0 }
    }

    /// `[base + index * scale]`
    pub const fn indexed(base: Gpr, index: Gpr, scale: u8) -> Mem {
        Mem { base: Base::Register(base), index: Index::Scaled(index, scale), disp: 0 }
    }

    /// `[base + vector * scale]`, the operand of a gather or scatter.
    pub const fn gathered(base: Gpr, index: VReg, scale: u8) -> Mem {
        Mem { base: Base::Register(base), index: Index::Vector(index, scale), disp: 0 }
    }

    /// `[rip + label]`
    pub const fn label(label: Label) -> Mem {
        Mem { base: Base::Label(label), index: Index::None, disp: 0 }
    }

    /// The same address, `bytes` further.
    pub const fn offset(mut self, bytes: i32) -> Mem {
        self.disp += bytes;
        self
    }
}

/// The register-or-memory operand of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rm {
    /// A register.
    Reg(Reg),
    /// A memory operand.
    Mem(Mem),
}

impl<R: Into<Reg>> From<R> for Rm {
    fn from(r: R) -> Rm {
        Rm::Reg(r.into())
    }
}
impl From<Mem> for Rm {
    fn from(m: Mem) -> Rm {
        Rm::Mem(m)
    }
}

/// Vector width. Scalar instructions take `V128`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Width {
    /// xmm, 16 bytes.
    V128,
    /// ymm, 32 bytes.
    V256,
    /// zmm, 64 bytes.
    V512,
}

impl Width {
    /// Bytes in a register of this width.
    pub const fn bytes(self) -> usize {
        16 << (self as usize)
    }

    /// Lanes of an element of `size` bytes.
    pub const fn lanes(self, size: usize) -> usize {
        self.bytes() / size
    }

    /// Half of this width; the half of 128 bits still lives in an xmm register.
    pub const fn half(self) -> Width {
        match self {
            Width::V512 => Width::V256,
            _ => Width::V128,
        }
    }
}
