//! The table of vector instructions. Each row says how an instruction is encoded; the tests decode every row again.

use super::Width;

/// Which registers an operand takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// xmm, ymm, zmm.
    Vector,
    /// Mask registers.
    Mask,
    /// General-purpose registers.
    General,
}

/// The order of operands in Intel's notation, in terms of their fields in the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// reg, rm
    Rm,
    /// rm, reg
    Mr,
    /// reg, vvvv, rm
    Rvm,
    /// rm, vvvv, reg
    Mvr,
    /// vvvv, rm with the opcode extended by a digit in reg
    Vm(u8),
    /// reg, vvvv, rm, and a fourth register in the immediate
    Rvmr,
    /// reg, rm, vvvv: a gather with a vector mask; with a mask register vvvv is absent
    Rmv,
}

/// The operands of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// Operand order.
    pub order: Order,
    /// Class of the reg operand (of vvvv where the digit takes reg's place).
    pub reg: Class,
    /// Class of the rm operand where it is a register.
    pub rm: Class,
    /// Whether rm may be a register.
    pub takes_reg: bool,
    /// Whether rm may be memory.
    pub takes_mem: bool,
    /// Whether an immediate byte follows.
    pub imm: bool,
}

const fn form(order: Order, imm: bool) -> Form {
    Form { order, reg: Class::Vector, rm: Class::Vector, takes_reg: true, takes_mem: true, imm }
}

impl Form {
    const fn reg(self, reg: Class) -> Form {
        Form { reg, ..self }
    }
    const fn rm(self, rm: Class) -> Form {
        Form { rm, ..self }
    }
    const fn reg_only(self) -> Form {
        Form { takes_mem: false, ..self }
    }
    const fn mem_only(self) -> Form {
        Form { takes_reg: false, ..self }
    }
}

const RM: Form = form(Order::Rm, false);
const RMI: Form = form(Order::Rm, true);
const MR: Form = form(Order::Mr, false);
const MRI: Form = form(Order::Mr, true);
const RVM: Form = form(Order::Rvm, false);
const RVMI: Form = form(Order::Rvm, true);
const RVMR: Form = form(Order::Rvmr, true);
const KVM: Form = RVM.reg(Class::Mask);
const KVMI: Form = RVMI.reg(Class::Mask);
const LOAD: Form = RM.mem_only();
const STORE: Form = MR.mem_only();
const GATHER: Form = form(Order::Rmv, false).mem_only();
const MASK_LOAD: Form = RVM.mem_only();
const MASK_STORE: Form = form(Order::Mvr, false).mem_only();
const fn shift(digit: u8) -> Form {
    form(Order::Vm(digit), true).reg_only()
}

/// What EVEX scales an 8-bit displacement by, and so how much memory an operand names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tuple {
    /// The whole width (or one element if broadcast).
    Full,
    /// Half of the width.
    Half,
    /// A quarter.
    Quarter,
    /// An eighth.
    Eighth,
    /// One element.
    One,
    /// 16 bytes.
    X16,
    /// 32 bytes.
    X32,
}
use Tuple::{Eighth, Full, Half, One, Quarter, X16, X32};

/// One vector instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VOp {
    /// Its name (the VEX one where EVEX has another).
    pub name: &'static str,
    /// Its operands.
    pub form: Form,
    /// Opcode map: 1 = 0F, 2 = 0F38, 3 = 0F3A.
    pub map: u8,
    /// Prefix: 0 = none, 1 = 66, 2 = F3, 3 = F2.
    pub pp: u8,
    /// Opcode.
    pub opcode: u8,
    /// W in the VEX form, or -1 where there is none.
    pub vex: i8,
    /// W in the EVEX form, or -1 where there is none.
    pub evex: i8,
    /// Memory tuple.
    pub tuple: Tuple,
    /// Bytes of the element that a broadcast repeats, or that a [`Tuple::One`] names; 0 where it cannot broadcast.
    pub elem: u8,
    /// Bit set of widths: 1 = 128, 2 = 256, 4 = 512.
    pub widths: u8,
}

impl VOp {
    /// Whether the instruction exists at this width.
    pub const fn has_width(&self, width: Width) -> bool {
        self.widths >> (width as u8) & 1 == 1 && (width as u8 != Width::V512 as u8 || self.evex >= 0)
    }
}

/// No such encoding.
const N: i8 = -1;

macro_rules! ops {
    ($($name:ident $form:tt $($digit:literal)? ($map:expr, $pp:expr, $op:expr) ($vex:expr, $evex:expr) $tuple:ident $elem:literal $widths:literal $text:literal;)*) => {
        $(
            #[doc = concat!("`", $text, "`")]
            pub const $name: VOp = VOp {
                name: $text, form: $form$(($digit))?, map: $map, pp: $pp, opcode: $op, vex: $vex, evex: $evex,
                tuple: $tuple, elem: $elem, widths: $widths,
            };
        )*
        /// Every instruction of the table.
        pub const ALL: &[VOp] = &[$($name),*];
    };
}

const KMI: Form = RMI.reg(Class::Mask);
const GM: Form = RM.reg(Class::General).reg_only();
const GVM: Form = RM.reg(Class::General);
const VVG: Form = RVM.rm(Class::General);
const VVGI: Form = RVMI.rm(Class::General);
const VG: Form = RM.rm(Class::General);
const GV: Form = MR.rm(Class::General);
const GVI: Form = MRI.rm(Class::General);
const VG_REG: Form = VG.reg_only();
const VK: Form = RM.rm(Class::Mask).reg_only();
const KV: Form = RM.reg(Class::Mask).reg_only();
const MERGE: Form = RVM.reg_only();

// name, operands, (map, prefix, opcode), (W of VEX, W of EVEX), tuple, element bytes, widths
ops! {
    VANDPS RVM (1, 0, 0x54) (0, 0) Full 4 7 "vandps";
    VANDPD RVM (1, 1, 0x54) (0, 1) Full 8 7 "vandpd";
    VANDNPS RVM (1, 0, 0x55) (0, 0) Full 4 7 "vandnps";
    VANDNPD RVM (1, 1, 0x55) (0, 1) Full 8 7 "vandnpd";
    VORPS RVM (1, 0, 0x56) (0, 0) Full 4 7 "vorps";
    VORPD RVM (1, 1, 0x56) (0, 1) Full 8 7 "vorpd";
    VXORPS RVM (1, 0, 0x57) (0, 0) Full 4 7 "vxorps";
    VXORPD RVM (1, 1, 0x57) (0, 1) Full 8 7 "vxorpd";
    VADDPS RVM (1, 0, 0x58) (0, 0) Full 4 7 "vaddps";
    VADDPD RVM (1, 1, 0x58) (0, 1) Full 8 7 "vaddpd";
    VADDSS RVM (1, 2, 0x58) (0, 0) One 4 1 "vaddss";
    VADDSD RVM (1, 3, 0x58) (0, 1) One 8 1 "vaddsd";
    VMULPS RVM (1, 0, 0x59) (0, 0) Full 4 7 "vmulps";
    VMULPD RVM (1, 1, 0x59) (0, 1) Full 8 7 "vmulpd";
    VMULSS RVM (1, 2, 0x59) (0, 0) One 4 1 "vmulss";
    VMULSD RVM (1, 3, 0x59) (0, 1) One 8 1 "vmulsd";
    VSUBPS RVM (1, 0, 0x5c) (0, 0) Full 4 7 "vsubps";
    VSUBPD RVM (1, 1, 0x5c) (0, 1) Full 8 7 "vsubpd";
    VSUBSS RVM (1, 2, 0x5c) (0, 0) One 4 1 "vsubss";
    VSUBSD RVM (1, 3, 0x5c) (0, 1) One 8 1 "vsubsd";
    VMINPS RVM (1, 0, 0x5d) (0, 0) Full 4 7 "vminps";
    VMINPD RVM (1, 1, 0x5d) (0, 1) Full 8 7 "vminpd";
    VMINSS RVM (1, 2, 0x5d) (0, 0) One 4 1 "vminss";
    VMINSD RVM (1, 3, 0x5d) (0, 1) One 8 1 "vminsd";
    VDIVPS RVM (1, 0, 0x5e) (0, 0) Full 4 7 "vdivps";
    VDIVPD RVM (1, 1, 0x5e) (0, 1) Full 8 7 "vdivpd";
    VDIVSS RVM (1, 2, 0x5e) (0, 0) One 4 1 "vdivss";
    VDIVSD RVM (1, 3, 0x5e) (0, 1) One 8 1 "vdivsd";
    VMAXPS RVM (1, 0, 0x5f) (0, 0) Full 4 7 "vmaxps";
    VMAXPD RVM (1, 1, 0x5f) (0, 1) Full 8 7 "vmaxpd";
    VMAXSS RVM (1, 2, 0x5f) (0, 0) One 4 1 "vmaxss";
    VMAXSD RVM (1, 3, 0x5f) (0, 1) One 8 1 "vmaxsd";
    VSQRTPS RM (1, 0, 0x51) (0, 0) Full 4 7 "vsqrtps";
    VSQRTPD RM (1, 1, 0x51) (0, 1) Full 8 7 "vsqrtpd";
    VSQRTSS RVM (1, 2, 0x51) (0, 0) One 4 1 "vsqrtss";
    VSQRTSD RVM (1, 3, 0x51) (0, 1) One 8 1 "vsqrtsd";
    VRCPPS RM (1, 0, 0x53) (0, N) Full 0 7 "vrcpps";
    VRSQRTPS RM (1, 0, 0x52) (0, N) Full 0 7 "vrsqrtps";
    VRCP14PS RM (2, 1, 0x4c) (N, 0) Full 4 7 "vrcp14ps";
    VRSQRT14PS RM (2, 1, 0x4e) (N, 0) Full 4 7 "vrsqrt14ps";
    VRCP14PD RM (2, 1, 0x4c) (N, 1) Full 8 7 "vrcp14pd";
    VRSQRT14PD RM (2, 1, 0x4e) (N, 1) Full 8 7 "vrsqrt14pd";
    VFMADD132PS RVM (2, 1, 0x98) (0, 0) Full 4 7 "vfmadd132ps";
    VFMADD132PD RVM (2, 1, 0x98) (1, 1) Full 8 7 "vfmadd132pd";
    VFMADD132SS RVM (2, 1, 0x99) (0, 0) One 4 1 "vfmadd132ss";
    VFMADD132SD RVM (2, 1, 0x99) (1, 1) One 8 1 "vfmadd132sd";
    VFMADD213PS RVM (2, 1, 0xa8) (0, 0) Full 4 7 "vfmadd213ps";
    VFMADD213PD RVM (2, 1, 0xa8) (1, 1) Full 8 7 "vfmadd213pd";
    VFMADD213SS RVM (2, 1, 0xa9) (0, 0) One 4 1 "vfmadd213ss";
    VFMADD213SD RVM (2, 1, 0xa9) (1, 1) One 8 1 "vfmadd213sd";
    VFMADD231PS RVM (2, 1, 0xb8) (0, 0) Full 4 7 "vfmadd231ps";
    VFMADD231PD RVM (2, 1, 0xb8) (1, 1) Full 8 7 "vfmadd231pd";
    VFMADD231SS RVM (2, 1, 0xb9) (0, 0) One 4 1 "vfmadd231ss";
    VFMADD231SD RVM (2, 1, 0xb9) (1, 1) One 8 1 "vfmadd231sd";
    VFMSUB132PS RVM (2, 1, 0x9a) (0, 0) Full 4 7 "vfmsub132ps";
    VFMSUB132PD RVM (2, 1, 0x9a) (1, 1) Full 8 7 "vfmsub132pd";
    VFMSUB132SS RVM (2, 1, 0x9b) (0, 0) One 4 1 "vfmsub132ss";
    VFMSUB132SD RVM (2, 1, 0x9b) (1, 1) One 8 1 "vfmsub132sd";
    VFMSUB213PS RVM (2, 1, 0xaa) (0, 0) Full 4 7 "vfmsub213ps";
    VFMSUB213PD RVM (2, 1, 0xaa) (1, 1) Full 8 7 "vfmsub213pd";
    VFMSUB213SS RVM (2, 1, 0xab) (0, 0) One 4 1 "vfmsub213ss";
    VFMSUB213SD RVM (2, 1, 0xab) (1, 1) One 8 1 "vfmsub213sd";
    VFMSUB231PS RVM (2, 1, 0xba) (0, 0) Full 4 7 "vfmsub231ps";
    VFMSUB231PD RVM (2, 1, 0xba) (1, 1) Full 8 7 "vfmsub231pd";
    VFMSUB231SS RVM (2, 1, 0xbb) (0, 0) One 4 1 "vfmsub231ss";
    VFMSUB231SD RVM (2, 1, 0xbb) (1, 1) One 8 1 "vfmsub231sd";
    VFNMADD132PS RVM (2, 1, 0x9c) (0, 0) Full 4 7 "vfnmadd132ps";
    VFNMADD132PD RVM (2, 1, 0x9c) (1, 1) Full 8 7 "vfnmadd132pd";
    VFNMADD132SS RVM (2, 1, 0x9d) (0, 0) One 4 1 "vfnmadd132ss";
    VFNMADD132SD RVM (2, 1, 0x9d) (1, 1) One 8 1 "vfnmadd132sd";
    VFNMADD213PS RVM (2, 1, 0xac) (0, 0) Full 4 7 "vfnmadd213ps";
    VFNMADD213PD RVM (2, 1, 0xac) (1, 1) Full 8 7 "vfnmadd213pd";
    VFNMADD213SS RVM (2, 1, 0xad) (0, 0) One 4 1 "vfnmadd213ss";
    VFNMADD213SD RVM (2, 1, 0xad) (1, 1) One 8 1 "vfnmadd213sd";
    VFNMADD231PS RVM (2, 1, 0xbc) (0, 0) Full 4 7 "vfnmadd231ps";
    VFNMADD231PD RVM (2, 1, 0xbc) (1, 1) Full 8 7 "vfnmadd231pd";
    VFNMADD231SS RVM (2, 1, 0xbd) (0, 0) One 4 1 "vfnmadd231ss";
    VFNMADD231SD RVM (2, 1, 0xbd) (1, 1) One 8 1 "vfnmadd231sd";
    VFNMSUB132PS RVM (2, 1, 0x9e) (0, 0) Full 4 7 "vfnmsub132ps";
    VFNMSUB132PD RVM (2, 1, 0x9e) (1, 1) Full 8 7 "vfnmsub132pd";
    VFNMSUB132SS RVM (2, 1, 0x9f) (0, 0) One 4 1 "vfnmsub132ss";
    VFNMSUB132SD RVM (2, 1, 0x9f) (1, 1) One 8 1 "vfnmsub132sd";
    VFNMSUB213PS RVM (2, 1, 0xae) (0, 0) Full 4 7 "vfnmsub213ps";
    VFNMSUB213PD RVM (2, 1, 0xae) (1, 1) Full 8 7 "vfnmsub213pd";
    VFNMSUB213SS RVM (2, 1, 0xaf) (0, 0) One 4 1 "vfnmsub213ss";
    VFNMSUB213SD RVM (2, 1, 0xaf) (1, 1) One 8 1 "vfnmsub213sd";
    VFNMSUB231PS RVM (2, 1, 0xbe) (0, 0) Full 4 7 "vfnmsub231ps";
    VFNMSUB231PD RVM (2, 1, 0xbe) (1, 1) Full 8 7 "vfnmsub231pd";
    VFNMSUB231SS RVM (2, 1, 0xbf) (0, 0) One 4 1 "vfnmsub231ss";
    VFNMSUB231SD RVM (2, 1, 0xbf) (1, 1) One 8 1 "vfnmsub231sd";
    VGETEXPPS RM (2, 1, 0x42) (N, 0) Full 4 7 "vgetexpps";
    VGETEXPPD RM (2, 1, 0x42) (N, 1) Full 8 7 "vgetexppd";
    VGETMANTPS RMI (3, 1, 0x26) (N, 0) Full 4 7 "vgetmantps";
    VGETMANTPD RMI (3, 1, 0x26) (N, 1) Full 8 7 "vgetmantpd";
    VSCALEFPS RVM (2, 1, 0x2c) (N, 0) Full 4 7 "vscalefps";
    VSCALEFPD RVM (2, 1, 0x2c) (N, 1) Full 8 7 "vscalefpd";
    VROUNDPS RMI (3, 1, 0x08) (0, N) Full 0 7 "vroundps";
    VROUNDPD RMI (3, 1, 0x09) (0, N) Full 0 7 "vroundpd";
    VROUNDSS RVMI (3, 1, 0x0a) (0, N) One 4 1 "vroundss";
    VROUNDSD RVMI (3, 1, 0x0b) (0, N) One 8 1 "vroundsd";
    VRNDSCALEPS RMI (3, 1, 0x08) (N, 0) Full 4 7 "vrndscaleps";
    VRNDSCALEPD RMI (3, 1, 0x09) (N, 1) Full 8 7 "vrndscalepd";
    VRNDSCALESS RVMI (3, 1, 0x0a) (N, 0) One 4 1 "vrndscaless";
    VRNDSCALESD RVMI (3, 1, 0x0b) (N, 1) One 8 1 "vrndscalesd";
    VCMPPS RVMI (1, 0, 0xc2) (0, N) Full 0 7 "vcmpps";
    VCMPPD RVMI (1, 1, 0xc2) (0, N) Full 0 7 "vcmppd";
    VCMPSS RVMI (1, 2, 0xc2) (0, N) One 4 1 "vcmpss";
    VCMPSD RVMI (1, 3, 0xc2) (0, N) One 8 1 "vcmpsd";
    VCMPPS_K KVMI (1, 0, 0xc2) (N, 0) Full 4 7 "vcmpps";
    VCMPPD_K KVMI (1, 1, 0xc2) (N, 1) Full 8 7 "vcmppd";
    VFPCLASSPS_K KMI (3, 1, 0x66) (N, 0) Full 4 7 "vfpclassps";
    VFPCLASSPD_K KMI (3, 1, 0x66) (N, 1) Full 8 7 "vfpclasspd";
    VUCOMISS RM (1, 0, 0x2e) (0, 0) One 4 1 "vucomiss";
    VUCOMISD RM (1, 1, 0x2e) (0, 1) One 8 1 "vucomisd";
    VPCMPEQB RVM (1, 1, 0x74) (0, N) Full 0 7 "vpcmpeqb";
    VPCMPEQW RVM (1, 1, 0x75) (0, N) Full 0 7 "vpcmpeqw";
    VPCMPEQD RVM (1, 1, 0x76) (0, N) Full 0 7 "vpcmpeqd";
    VPCMPEQQ RVM (2, 1, 0x29) (0, N) Full 0 7 "vpcmpeqq";
    VPCMPGTB RVM (1, 1, 0x64) (0, N) Full 0 7 "vpcmpgtb";
    VPCMPGTW RVM (1, 1, 0x65) (0, N) Full 0 7 "vpcmpgtw";
    VPCMPGTD RVM (1, 1, 0x66) (0, N) Full 0 7 "vpcmpgtd";
    VPCMPGTQ RVM (2, 1, 0x37) (0, N) Full 0 7 "vpcmpgtq";
    VPCMPB_K KVMI (3, 1, 0x3f) (N, 0) Full 0 7 "vpcmpb";
    VPCMPW_K KVMI (3, 1, 0x3f) (N, 1) Full 0 7 "vpcmpw";
    VPCMPD_K KVMI (3, 1, 0x1f) (N, 0) Full 4 7 "vpcmpd";
    VPCMPQ_K KVMI (3, 1, 0x1f) (N, 1) Full 8 7 "vpcmpq";
    VPCMPUB_K KVMI (3, 1, 0x3e) (N, 0) Full 0 7 "vpcmpub";
    VPCMPUW_K KVMI (3, 1, 0x3e) (N, 1) Full 0 7 "vpcmpuw";
    VPCMPUD_K KVMI (3, 1, 0x1e) (N, 0) Full 4 7 "vpcmpud";
    VPCMPUQ_K KVMI (3, 1, 0x1e) (N, 1) Full 8 7 "vpcmpuq";
    VPTESTMB KVM (2, 1, 0x26) (N, 0) Full 0 7 "vptestmb";
    VPTESTMW KVM (2, 1, 0x26) (N, 1) Full 0 7 "vptestmw";
    VPTESTMD KVM (2, 1, 0x27) (N, 0) Full 4 7 "vptestmd";
    VPTESTMQ KVM (2, 1, 0x27) (N, 1) Full 8 7 "vptestmq";
    VPTESTNMB KVM (2, 2, 0x26) (N, 0) Full 0 7 "vptestnmb";
    VPTESTNMW KVM (2, 2, 0x26) (N, 1) Full 0 7 "vptestnmw";
    VPTESTNMD KVM (2, 2, 0x27) (N, 0) Full 4 7 "vptestnmd";
    VPTESTNMQ KVM (2, 2, 0x27) (N, 1) Full 8 7 "vptestnmq";
    VPTEST RM (2, 1, 0x17) (0, N) Full 0 3 "vptest";
    VTESTPS RM (2, 1, 0x0e) (0, N) Full 0 3 "vtestps";
    VMOVMSKPS GM (1, 0, 0x50) (0, N) Full 0 3 "vmovmskps";
    VMOVMSKPD GM (1, 1, 0x50) (0, N) Full 0 3 "vmovmskpd";
    VPMOVMSKB GM (1, 1, 0xd7) (0, N) Full 0 3 "vpmovmskb";
    VBLENDVPS RVMR (3, 1, 0x4a) (0, N) Full 0 7 "vblendvps";
    VBLENDVPD RVMR (3, 1, 0x4b) (0, N) Full 0 7 "vblendvpd";
    VPBLENDVB RVMR (3, 1, 0x4c) (0, N) Full 0 7 "vpblendvb";
    VBLENDPS RVMI (3, 1, 0x0c) (0, N) Full 0 7 "vblendps";
    VBLENDPD RVMI (3, 1, 0x0d) (0, N) Full 0 7 "vblendpd";
    VPBLENDW RVMI (3, 1, 0x0e) (0, N) Full 0 7 "vpblendw";
    VPBLENDD RVMI (3, 1, 0x02) (0, N) Full 0 7 "vpblendd";
    VBLENDMPS RVM (2, 1, 0x65) (N, 0) Full 4 7 "vblendmps";
    VBLENDMPD RVM (2, 1, 0x65) (N, 1) Full 8 7 "vblendmpd";
    VPBLENDMB RVM (2, 1, 0x66) (N, 0) Full 0 7 "vpblendmb";
    VPBLENDMW RVM (2, 1, 0x66) (N, 1) Full 0 7 "vpblendmw";
    VPBLENDMD RVM (2, 1, 0x64) (N, 0) Full 4 7 "vpblendmd";
    VPBLENDMQ RVM (2, 1, 0x64) (N, 1) Full 8 7 "vpblendmq";
    VPTERNLOGD RVMI (3, 1, 0x25) (N, 0) Full 4 7 "vpternlogd";
    VPTERNLOGQ RVMI (3, 1, 0x25) (N, 1) Full 8 7 "vpternlogq";
    VPADDB RVM (1, 1, 0xfc) (0, 0) Full 0 7 "vpaddb";
    VPADDW RVM (1, 1, 0xfd) (0, 0) Full 0 7 "vpaddw";
    VPSUBB RVM (1, 1, 0xf8) (0, 0) Full 0 7 "vpsubb";
    VPSUBW RVM (1, 1, 0xf9) (0, 0) Full 0 7 "vpsubw";
    VPADDSB RVM (1, 1, 0xec) (0, 0) Full 0 7 "vpaddsb";
    VPADDSW RVM (1, 1, 0xed) (0, 0) Full 0 7 "vpaddsw";
    VPADDUSB RVM (1, 1, 0xdc) (0, 0) Full 0 7 "vpaddusb";
    VPADDUSW RVM (1, 1, 0xdd) (0, 0) Full 0 7 "vpaddusw";
    VPSUBSB RVM (1, 1, 0xe8) (0, 0) Full 0 7 "vpsubsb";
    VPSUBSW RVM (1, 1, 0xe9) (0, 0) Full 0 7 "vpsubsw";
    VPSUBUSB RVM (1, 1, 0xd8) (0, 0) Full 0 7 "vpsubusb";
    VPSUBUSW RVM (1, 1, 0xd9) (0, 0) Full 0 7 "vpsubusw";
    VPMULLW RVM (1, 1, 0xd5) (0, 0) Full 0 7 "vpmullw";
    VPMULHW RVM (1, 1, 0xe5) (0, 0) Full 0 7 "vpmulhw";
    VPMULHUW RVM (1, 1, 0xe4) (0, 0) Full 0 7 "vpmulhuw";
    VPMADDWD RVM (1, 1, 0xf5) (0, 0) Full 0 7 "vpmaddwd";
    VPSADBW RVM (1, 1, 0xf6) (0, 0) Full 0 7 "vpsadbw";
    VPMINSW RVM (1, 1, 0xea) (0, 0) Full 0 7 "vpminsw";
    VPMINUB RVM (1, 1, 0xda) (0, 0) Full 0 7 "vpminub";
    VPMAXSW RVM (1, 1, 0xee) (0, 0) Full 0 7 "vpmaxsw";
    VPMAXUB RVM (1, 1, 0xde) (0, 0) Full 0 7 "vpmaxub";
    VPADDD RVM (1, 1, 0xfe) (0, 0) Full 4 7 "vpaddd";
    VPADDQ RVM (1, 1, 0xd4) (0, 1) Full 8 7 "vpaddq";
    VPSUBD RVM (1, 1, 0xfa) (0, 0) Full 4 7 "vpsubd";
    VPSUBQ RVM (1, 1, 0xfb) (0, 1) Full 8 7 "vpsubq";
    VPMULUDQ RVM (1, 1, 0xf4) (0, 1) Full 8 7 "vpmuludq";
    VPMULDQ RVM (2, 1, 0x28) (0, 1) Full 8 7 "vpmuldq";
    VPMULLD RVM (2, 1, 0x40) (0, 0) Full 4 7 "vpmulld";
    VPMULLQ RVM (2, 1, 0x40) (N, 1) Full 8 7 "vpmullq";
    VPMADDUBSW RVM (2, 1, 0x04) (0, 0) Full 0 7 "vpmaddubsw";
    VPAND RVM (1, 1, 0xdb) (0, 0) Full 4 7 "vpand";
    VPANDQ RVM (1, 1, 0xdb) (N, 1) Full 8 7 "vpandq";
    VPANDN RVM (1, 1, 0xdf) (0, 0) Full 4 7 "vpandn";
    VPANDNQ RVM (1, 1, 0xdf) (N, 1) Full 8 7 "vpandnq";
    VPOR RVM (1, 1, 0xeb) (0, 0) Full 4 7 "vpor";
    VPORQ RVM (1, 1, 0xeb) (N, 1) Full 8 7 "vporq";
    VPXOR RVM (1, 1, 0xef) (0, 0) Full 4 7 "vpxor";
    VPXORQ RVM (1, 1, 0xef) (N, 1) Full 8 7 "vpxorq";
    VPMINSB RVM (2, 1, 0x38) (0, 0) Full 0 7 "vpminsb";
    VPMINUW RVM (2, 1, 0x3a) (0, 0) Full 0 7 "vpminuw";
    VPMAXSB RVM (2, 1, 0x3c) (0, 0) Full 0 7 "vpmaxsb";
    VPMAXUW RVM (2, 1, 0x3e) (0, 0) Full 0 7 "vpmaxuw";
    VPMINSD RVM (2, 1, 0x39) (0, 0) Full 4 7 "vpminsd";
    VPMINSQ RVM (2, 1, 0x39) (N, 1) Full 8 7 "vpminsq";
    VPMINUD RVM (2, 1, 0x3b) (0, 0) Full 4 7 "vpminud";
    VPMINUQ RVM (2, 1, 0x3b) (N, 1) Full 8 7 "vpminuq";
    VPMAXSD RVM (2, 1, 0x3d) (0, 0) Full 4 7 "vpmaxsd";
    VPMAXSQ RVM (2, 1, 0x3d) (N, 1) Full 8 7 "vpmaxsq";
    VPMAXUD RVM (2, 1, 0x3f) (0, 0) Full 4 7 "vpmaxud";
    VPMAXUQ RVM (2, 1, 0x3f) (N, 1) Full 8 7 "vpmaxuq";
    VPABSB RM (2, 1, 0x1c) (0, 0) Full 0 7 "vpabsb";
    VPABSW RM (2, 1, 0x1d) (0, 0) Full 0 7 "vpabsw";
    VPABSD RM (2, 1, 0x1e) (0, 0) Full 4 7 "vpabsd";
    VPABSQ RM (2, 1, 0x1f) (N, 1) Full 8 7 "vpabsq";
    VPSRLW_I shift 2 (1, 1, 0x71) (0, 0) Full 0 7 "vpsrlw";
    VPSRAW_I shift 4 (1, 1, 0x71) (0, 0) Full 0 7 "vpsraw";
    VPSLLW_I shift 6 (1, 1, 0x71) (0, 0) Full 0 7 "vpsllw";
    VPSRLD_I shift 2 (1, 1, 0x72) (0, 0) Full 0 7 "vpsrld";
    VPSRAD_I shift 4 (1, 1, 0x72) (0, 0) Full 0 7 "vpsrad";
    VPSLLD_I shift 6 (1, 1, 0x72) (0, 0) Full 0 7 "vpslld";
    VPSRLQ_I shift 2 (1, 1, 0x73) (0, 1) Full 0 7 "vpsrlq";
    VPSLLQ_I shift 6 (1, 1, 0x73) (0, 1) Full 0 7 "vpsllq";
    VPSRAQ_I shift 4 (1, 1, 0x72) (N, 1) Full 0 7 "vpsraq";
    VPROLD_I shift 1 (1, 1, 0x72) (N, 0) Full 0 7 "vprold";
    VPRORD_I shift 0 (1, 1, 0x72) (N, 0) Full 0 7 "vprord";
    VPROLQ_I shift 1 (1, 1, 0x72) (N, 1) Full 0 7 "vprolq";
    VPRORQ_I shift 0 (1, 1, 0x72) (N, 1) Full 0 7 "vprorq";
    VPSRLDQ_I shift 3 (1, 1, 0x73) (0, 0) Full 0 7 "vpsrldq";
    VPSLLDQ_I shift 7 (1, 1, 0x73) (0, 0) Full 0 7 "vpslldq";
    VPSRLW RVM (1, 1, 0xd1) (0, 0) X16 0 7 "vpsrlw";
    VPSRLD RVM (1, 1, 0xd2) (0, 0) X16 0 7 "vpsrld";
    VPSRLQ RVM (1, 1, 0xd3) (0, 1) X16 0 7 "vpsrlq";
    VPSRAW RVM (1, 1, 0xe1) (0, 0) X16 0 7 "vpsraw";
    VPSRAD RVM (1, 1, 0xe2) (0, 0) X16 0 7 "vpsrad";
    VPSRAQ RVM (1, 1, 0xe2) (N, 1) X16 0 7 "vpsraq";
    VPSLLW RVM (1, 1, 0xf1) (0, 0) X16 0 7 "vpsllw";
    VPSLLD RVM (1, 1, 0xf2) (0, 0) X16 0 7 "vpslld";
    VPSLLQ RVM (1, 1, 0xf3) (0, 1) X16 0 7 "vpsllq";
    VPSRLVD RVM (2, 1, 0x45) (0, 0) Full 4 7 "vpsrlvd";
    VPSRLVQ RVM (2, 1, 0x45) (1, 1) Full 8 7 "vpsrlvq";
    VPSRAVD RVM (2, 1, 0x46) (0, 0) Full 4 7 "vpsravd";
    VPSRAVQ RVM (2, 1, 0x46) (N, 1) Full 8 7 "vpsravq";
    VPSLLVD RVM (2, 1, 0x47) (0, 0) Full 4 7 "vpsllvd";
    VPSLLVQ RVM (2, 1, 0x47) (1, 1) Full 8 7 "vpsllvq";
    VPSRLVW RVM (2, 1, 0x10) (N, 1) Full 0 7 "vpsrlvw";
    VPSRAVW RVM (2, 1, 0x11) (N, 1) Full 0 7 "vpsravw";
    VPSLLVW RVM (2, 1, 0x12) (N, 1) Full 0 7 "vpsllvw";
    VCVTPS2PD RM (1, 0, 0x5a) (0, 0) Half 4 7 "vcvtps2pd";
    VCVTPD2PS RM (1, 1, 0x5a) (0, 1) Full 8 7 "vcvtpd2ps";
    VCVTSS2SD RVM (1, 2, 0x5a) (0, 0) One 4 1 "vcvtss2sd";
    VCVTSD2SS RVM (1, 3, 0x5a) (0, 1) One 8 1 "vcvtsd2ss";
    VCVTDQ2PS RM (1, 0, 0x5b) (0, 0) Full 4 7 "vcvtdq2ps";
    VCVTPS2DQ RM (1, 1, 0x5b) (0, 0) Full 4 7 "vcvtps2dq";
    VCVTTPS2DQ RM (1, 2, 0x5b) (0, 0) Full 4 7 "vcvttps2dq";
    VCVTDQ2PD RM (1, 2, 0xe6) (0, 0) Half 4 7 "vcvtdq2pd";
    VCVTTPD2DQ RM (1, 1, 0xe6) (0, 1) Full 8 7 "vcvttpd2dq";
    VCVTPD2DQ RM (1, 3, 0xe6) (0, 1) Full 8 7 "vcvtpd2dq";
    VCVTQQ2PD RM (1, 2, 0xe6) (N, 1) Full 8 7 "vcvtqq2pd";
    VCVTQQ2PS RM (1, 0, 0x5b) (N, 1) Full 8 7 "vcvtqq2ps";
    VCVTTPD2QQ RM (1, 1, 0x7a) (N, 1) Full 8 7 "vcvttpd2qq";
    VCVTPD2QQ RM (1, 1, 0x7b) (N, 1) Full 8 7 "vcvtpd2qq";
    VCVTTPS2QQ RM (1, 1, 0x7a) (N, 0) Half 4 7 "vcvttps2qq";
    VCVTUQQ2PD RM (1, 2, 0x7a) (N, 1) Full 8 7 "vcvtuqq2pd";
    VCVTUDQ2PS RM (1, 3, 0x7a) (N, 0) Full 4 7 "vcvtudq2ps";
    VCVTUDQ2PD RM (1, 2, 0x7a) (N, 0) Half 4 7 "vcvtudq2pd";
    VCVTTPS2UDQ RM (1, 0, 0x78) (N, 0) Full 4 7 "vcvttps2udq";
    VCVTPH2PS RM (2, 1, 0x13) (0, 0) Half 0 7 "vcvtph2ps";
    VCVTPS2PH MRI (3, 1, 0x1d) (0, 0) Half 0 7 "vcvtps2ph";
    VCVTNEPS2BF16 RM (2, 2, 0x72) (N, 0) Full 4 7 "vcvtneps2bf16";
    VCVTNE2PS2BF16 RVM (2, 3, 0x72) (N, 0) Full 4 7 "vcvtne2ps2bf16";
    VDPBF16PS RVM (2, 2, 0x52) (N, 0) Full 4 7 "vdpbf16ps";
    VPDPBUSD RVM (2, 1, 0x50) (N, 0) Full 4 7 "vpdpbusd";
    VPDPWSSD RVM (2, 1, 0x52) (N, 0) Full 4 7 "vpdpwssd";
    VCVTSI2SS_D VVG (1, 2, 0x2a) (0, 0) One 4 1 "vcvtsi2ss";
    VCVTSI2SS_Q VVG (1, 2, 0x2a) (1, 1) One 8 1 "vcvtsi2ss";
    VCVTSI2SD_D VVG (1, 3, 0x2a) (0, 0) One 4 1 "vcvtsi2sd";
    VCVTSI2SD_Q VVG (1, 3, 0x2a) (1, 1) One 8 1 "vcvtsi2sd";
    VCVTTSS2SI_D GVM (1, 2, 0x2c) (0, 0) One 4 1 "vcvttss2si";
    VCVTTSS2SI_Q GVM (1, 2, 0x2c) (1, 1) One 4 1 "vcvttss2si";
    VCVTTSD2SI_D GVM (1, 3, 0x2c) (0, 0) One 8 1 "vcvttsd2si";
    VCVTTSD2SI_Q GVM (1, 3, 0x2c) (1, 1) One 8 1 "vcvttsd2si";
    VCVTSS2SI_D GVM (1, 2, 0x2d) (0, 0) One 4 1 "vcvtss2si";
    VCVTSS2SI_Q GVM (1, 2, 0x2d) (1, 1) One 4 1 "vcvtss2si";
    VCVTSD2SI_D GVM (1, 3, 0x2d) (0, 0) One 8 1 "vcvtsd2si";
    VCVTSD2SI_Q GVM (1, 3, 0x2d) (1, 1) One 8 1 "vcvtsd2si";
    VPMOVSXBW RM (2, 1, 0x20) (0, 0) Half 0 7 "vpmovsxbw";
    VPMOVSXBD RM (2, 1, 0x21) (0, 0) Quarter 0 7 "vpmovsxbd";
    VPMOVSXBQ RM (2, 1, 0x22) (0, 0) Eighth 0 7 "vpmovsxbq";
    VPMOVSXWD RM (2, 1, 0x23) (0, 0) Half 0 7 "vpmovsxwd";
    VPMOVSXWQ RM (2, 1, 0x24) (0, 0) Quarter 0 7 "vpmovsxwq";
    VPMOVSXDQ RM (2, 1, 0x25) (0, 0) Half 0 7 "vpmovsxdq";
    VPMOVZXBW RM (2, 1, 0x30) (0, 0) Half 0 7 "vpmovzxbw";
    VPMOVZXBD RM (2, 1, 0x31) (0, 0) Quarter 0 7 "vpmovzxbd";
    VPMOVZXBQ RM (2, 1, 0x32) (0, 0) Eighth 0 7 "vpmovzxbq";
    VPMOVZXWD RM (2, 1, 0x33) (0, 0) Half 0 7 "vpmovzxwd";
    VPMOVZXWQ RM (2, 1, 0x34) (0, 0) Quarter 0 7 "vpmovzxwq";
    VPMOVZXDQ RM (2, 1, 0x35) (0, 0) Half 0 7 "vpmovzxdq";
    VPMOVWB MR (2, 2, 0x30) (N, 0) Half 0 7 "vpmovwb";
    VPMOVDB MR (2, 2, 0x31) (N, 0) Quarter 0 7 "vpmovdb";
    VPMOVQB MR (2, 2, 0x32) (N, 0) Eighth 0 7 "vpmovqb";
    VPMOVDW MR (2, 2, 0x33) (N, 0) Half 0 7 "vpmovdw";
    VPMOVQW MR (2, 2, 0x34) (N, 0) Quarter 0 7 "vpmovqw";
    VPMOVQD MR (2, 2, 0x35) (N, 0) Half 0 7 "vpmovqd";
    VPMOVSWB MR (2, 2, 0x20) (N, 0) Half 0 7 "vpmovswb";
    VPMOVSDB MR (2, 2, 0x21) (N, 0) Quarter 0 7 "vpmovsdb";
    VPMOVSQB MR (2, 2, 0x22) (N, 0) Eighth 0 7 "vpmovsqb";
    VPMOVSDW MR (2, 2, 0x23) (N, 0) Half 0 7 "vpmovsdw";
    VPMOVSQW MR (2, 2, 0x24) (N, 0) Quarter 0 7 "vpmovsqw";
    VPMOVSQD MR (2, 2, 0x25) (N, 0) Half 0 7 "vpmovsqd";
    VPMOVUSWB MR (2, 2, 0x10) (N, 0) Half 0 7 "vpmovuswb";
    VPMOVUSDB MR (2, 2, 0x11) (N, 0) Quarter 0 7 "vpmovusdb";
    VPMOVUSQB MR (2, 2, 0x12) (N, 0) Eighth 0 7 "vpmovusqb";
    VPMOVUSDW MR (2, 2, 0x13) (N, 0) Half 0 7 "vpmovusdw";
    VPMOVUSQW MR (2, 2, 0x14) (N, 0) Quarter 0 7 "vpmovusqw";
    VPMOVUSQD MR (2, 2, 0x15) (N, 0) Half 0 7 "vpmovusqd";
    VPMOVM2B VK (2, 2, 0x28) (N, 0) Full 0 7 "vpmovm2b";
    VPMOVB2M KV (2, 2, 0x29) (N, 0) Full 0 7 "vpmovb2m";
    VPMOVM2W VK (2, 2, 0x28) (N, 1) Full 0 7 "vpmovm2w";
    VPMOVW2M KV (2, 2, 0x29) (N, 1) Full 0 7 "vpmovw2m";
    VPMOVM2D VK (2, 2, 0x38) (N, 0) Full 0 7 "vpmovm2d";
    VPMOVD2M KV (2, 2, 0x39) (N, 0) Full 0 7 "vpmovd2m";
    VPMOVM2Q VK (2, 2, 0x38) (N, 1) Full 0 7 "vpmovm2q";
    VPMOVQ2M KV (2, 2, 0x39) (N, 1) Full 0 7 "vpmovq2m";
    VPACKSSWB RVM (1, 1, 0x63) (0, 0) Full 0 7 "vpacksswb";
    VPACKUSWB RVM (1, 1, 0x67) (0, 0) Full 0 7 "vpackuswb";
    VPUNPCKLBW RVM (1, 1, 0x60) (0, 0) Full 0 7 "vpunpcklbw";
    VPUNPCKLWD RVM (1, 1, 0x61) (0, 0) Full 0 7 "vpunpcklwd";
    VPUNPCKHBW RVM (1, 1, 0x68) (0, 0) Full 0 7 "vpunpckhbw";
    VPUNPCKHWD RVM (1, 1, 0x69) (0, 0) Full 0 7 "vpunpckhwd";
    VPACKSSDW RVM (1, 1, 0x6b) (0, 0) Full 4 7 "vpackssdw";
    VPACKUSDW RVM (2, 1, 0x2b) (0, 0) Full 4 7 "vpackusdw";
    VPUNPCKLDQ RVM (1, 1, 0x62) (0, 0) Full 4 7 "vpunpckldq";
    VPUNPCKHDQ RVM (1, 1, 0x6a) (0, 0) Full 4 7 "vpunpckhdq";
    VPUNPCKLQDQ RVM (1, 1, 0x6c) (0, 1) Full 8 7 "vpunpcklqdq";
    VPUNPCKHQDQ RVM (1, 1, 0x6d) (0, 1) Full 8 7 "vpunpckhqdq";
    VUNPCKLPS RVM (1, 0, 0x14) (0, 0) Full 4 7 "vunpcklps";
    VUNPCKHPS RVM (1, 0, 0x15) (0, 0) Full 4 7 "vunpckhps";
    VUNPCKLPD RVM (1, 1, 0x14) (0, 1) Full 8 7 "vunpcklpd";
    VUNPCKHPD RVM (1, 1, 0x15) (0, 1) Full 8 7 "vunpckhpd";
    VSHUFPS RVMI (1, 0, 0xc6) (0, 0) Full 4 7 "vshufps";
    VSHUFPD RVMI (1, 1, 0xc6) (0, 1) Full 8 7 "vshufpd";
    VPSHUFD RMI (1, 1, 0x70) (0, 0) Full 4 7 "vpshufd";
    VPSHUFHW RMI (1, 2, 0x70) (0, 0) Full 0 7 "vpshufhw";
    VPSHUFLW RMI (1, 3, 0x70) (0, 0) Full 0 7 "vpshuflw";
    VPSHUFB RVM (2, 1, 0x00) (0, 0) Full 0 7 "vpshufb";
    VPALIGNR RVMI (3, 1, 0x0f) (0, 0) Full 0 7 "vpalignr";
    VALIGND RVMI (3, 1, 0x03) (N, 0) Full 4 7 "valignd";
    VALIGNQ RVMI (3, 1, 0x03) (N, 1) Full 8 7 "valignq";
    VPERMD RVM (2, 1, 0x36) (0, 0) Full 4 6 "vpermd";
    VPERMPS RVM (2, 1, 0x16) (0, 0) Full 4 6 "vpermps";
    VPERMQ RVM (2, 1, 0x36) (N, 1) Full 8 6 "vpermq";
    VPERMPD RVM (2, 1, 0x16) (N, 1) Full 8 6 "vpermpd";
    VPERMW RVM (2, 1, 0x8d) (N, 1) Full 0 7 "vpermw";
    VPERMQ_I RMI (3, 1, 0x00) (1, 1) Full 8 6 "vpermq";
    VPERMPD_I RMI (3, 1, 0x01) (1, 1) Full 8 6 "vpermpd";
    VPERMILPS_I RMI (3, 1, 0x04) (0, 0) Full 4 7 "vpermilps";
    VPERMILPD_I RMI (3, 1, 0x05) (0, 1) Full 8 7 "vpermilpd";
    VPERMILPS RVM (2, 1, 0x0c) (0, 0) Full 4 7 "vpermilps";
    VPERMILPD RVM (2, 1, 0x0d) (0, 1) Full 8 7 "vpermilpd";
    VPERM2F128 RVMI (3, 1, 0x06) (0, N) Full 0 2 "vperm2f128";
    VPERM2I128 RVMI (3, 1, 0x46) (0, N) Full 0 2 "vperm2i128";
    VSHUFF32X4 RVMI (3, 1, 0x23) (N, 0) Full 4 6 "vshuff32x4";
    VSHUFF64X2 RVMI (3, 1, 0x23) (N, 1) Full 8 6 "vshuff64x2";
    VSHUFI32X4 RVMI (3, 1, 0x43) (N, 0) Full 4 6 "vshufi32x4";
    VSHUFI64X2 RVMI (3, 1, 0x43) (N, 1) Full 8 6 "vshufi64x2";
    VPERMI2D RVM (2, 1, 0x76) (N, 0) Full 4 7 "vpermi2d";
    VPERMI2Q RVM (2, 1, 0x76) (N, 1) Full 8 7 "vpermi2q";
    VPERMI2PS RVM (2, 1, 0x77) (N, 0) Full 4 7 "vpermi2ps";
    VPERMI2PD RVM (2, 1, 0x77) (N, 1) Full 8 7 "vpermi2pd";
    VPERMI2W RVM (2, 1, 0x75) (N, 1) Full 0 7 "vpermi2w";
    VPERMI2B RVM (2, 1, 0x75) (N, 0) Full 0 7 "vpermi2b";
    VPERMT2D RVM (2, 1, 0x7e) (N, 0) Full 4 7 "vpermt2d";
    VPERMT2Q RVM (2, 1, 0x7e) (N, 1) Full 8 7 "vpermt2q";
    VPERMT2PS RVM (2, 1, 0x7f) (N, 0) Full 4 7 "vpermt2ps";
    VPERMT2PD RVM (2, 1, 0x7f) (N, 1) Full 8 7 "vpermt2pd";
    VPERMT2W RVM (2, 1, 0x7d) (N, 1) Full 0 7 "vpermt2w";
    VEXTRACTF128 MRI (3, 1, 0x19) (0, 0) X16 0 6 "vextractf128";
    VEXTRACTF64X4 MRI (3, 1, 0x1b) (N, 1) X32 0 4 "vextractf64x4";
    VEXTRACTF32X8 MRI (3, 1, 0x1b) (N, 0) X32 0 4 "vextractf32x8";
    VEXTRACTI128 MRI (3, 1, 0x39) (0, 0) X16 0 6 "vextracti128";
    VEXTRACTI64X4 MRI (3, 1, 0x3b) (N, 1) X32 0 4 "vextracti64x4";
    VINSERTF128 RVMI (3, 1, 0x18) (0, 0) X16 0 6 "vinsertf128";
    VINSERTF64X4 RVMI (3, 1, 0x1a) (N, 1) X32 0 4 "vinsertf64x4";
    VINSERTI128 RVMI (3, 1, 0x38) (0, 0) X16 0 6 "vinserti128";
    VINSERTI64X4 RVMI (3, 1, 0x3a) (N, 1) X32 0 4 "vinserti64x4";
    VINSERTPS RVMI (3, 1, 0x21) (0, 0) One 4 1 "vinsertps";
    VPEXTRB GVI (3, 1, 0x14) (0, 0) One 1 1 "vpextrb";
    VPEXTRW GVI (3, 1, 0x15) (0, 0) One 2 1 "vpextrw";
    VPEXTRD GVI (3, 1, 0x16) (0, 0) One 4 1 "vpextrd";
    VPEXTRQ GVI (3, 1, 0x16) (1, 1) One 8 1 "vpextrq";
    VPINSRB VVGI (3, 1, 0x20) (0, 0) One 1 1 "vpinsrb";
    VPINSRW VVGI (1, 1, 0xc4) (0, 0) One 2 1 "vpinsrw";
    VPINSRD VVGI (3, 1, 0x22) (0, 0) One 4 1 "vpinsrd";
    VPINSRQ VVGI (3, 1, 0x22) (1, 1) One 8 1 "vpinsrq";
    VBROADCASTSS RM (2, 1, 0x18) (0, 0) One 4 7 "vbroadcastss";
    VBROADCASTSD RM (2, 1, 0x19) (0, 1) One 8 6 "vbroadcastsd";
    VPBROADCASTB RM (2, 1, 0x78) (0, 0) One 1 7 "vpbroadcastb";
    VPBROADCASTW RM (2, 1, 0x79) (0, 0) One 2 7 "vpbroadcastw";
    VPBROADCASTD RM (2, 1, 0x58) (0, 0) One 4 7 "vpbroadcastd";
    VPBROADCASTQ RM (2, 1, 0x59) (0, 1) One 8 7 "vpbroadcastq";
    VPBROADCASTB_G VG_REG (2, 1, 0x7a) (N, 0) Full 0 7 "vpbroadcastb";
    VPBROADCASTW_G VG_REG (2, 1, 0x7b) (N, 0) Full 0 7 "vpbroadcastw";
    VPBROADCASTD_G VG_REG (2, 1, 0x7c) (N, 0) Full 0 7 "vpbroadcastd";
    VPBROADCASTQ_G VG_REG (2, 1, 0x7c) (N, 1) Full 0 7 "vpbroadcastq";
    VBROADCASTF128 LOAD (2, 1, 0x1a) (0, 0) X16 0 6 "vbroadcastf128";
    VBROADCASTI128 LOAD (2, 1, 0x5a) (0, 0) X16 0 6 "vbroadcasti128";
    VBROADCASTF64X4 LOAD (2, 1, 0x1b) (N, 1) X32 0 4 "vbroadcastf64x4";
    VBROADCASTI64X4 LOAD (2, 1, 0x5b) (N, 1) X32 0 4 "vbroadcasti64x4";
    VMOVUPS RM (1, 0, 0x10) (0, 0) Full 0 7 "vmovups";
    VMOVUPS_ST MR (1, 0, 0x11) (0, 0) Full 0 7 "vmovups";
    VMOVUPD RM (1, 1, 0x10) (0, 1) Full 0 7 "vmovupd";
    VMOVUPD_ST MR (1, 1, 0x11) (0, 1) Full 0 7 "vmovupd";
    VMOVAPS RM (1, 0, 0x28) (0, 0) Full 0 7 "vmovaps";
    VMOVAPS_ST MR (1, 0, 0x29) (0, 0) Full 0 7 "vmovaps";
    VMOVAPD RM (1, 1, 0x28) (0, 1) Full 0 7 "vmovapd";
    VMOVAPD_ST MR (1, 1, 0x29) (0, 1) Full 0 7 "vmovapd";
    VMOVDQU RM (1, 2, 0x6f) (0, 0) Full 0 7 "vmovdqu";
    VMOVDQU_ST MR (1, 2, 0x7f) (0, 0) Full 0 7 "vmovdqu";
    VMOVDQA RM (1, 1, 0x6f) (0, 0) Full 0 7 "vmovdqa";
    VMOVDQA_ST MR (1, 1, 0x7f) (0, 0) Full 0 7 "vmovdqa";
    VMOVDQU64 RM (1, 2, 0x6f) (N, 1) Full 0 7 "vmovdqu64";
    VMOVDQU64_ST MR (1, 2, 0x7f) (N, 1) Full 0 7 "vmovdqu64";
    VMOVDQU8 RM (1, 3, 0x6f) (N, 0) Full 0 7 "vmovdqu8";
    VMOVDQU8_ST MR (1, 3, 0x7f) (N, 0) Full 0 7 "vmovdqu8";
    VMOVDQU16 RM (1, 3, 0x6f) (N, 1) Full 0 7 "vmovdqu16";
    VMOVDQU16_ST MR (1, 3, 0x7f) (N, 1) Full 0 7 "vmovdqu16";
    VMOVSS LOAD (1, 2, 0x10) (0, 0) One 4 1 "vmovss";
    VMOVSS_ST STORE (1, 2, 0x11) (0, 0) One 4 1 "vmovss";
    VMOVSD LOAD (1, 3, 0x10) (0, 1) One 8 1 "vmovsd";
    VMOVSD_ST STORE (1, 3, 0x11) (0, 1) One 8 1 "vmovsd";
    VMOVSS_RR MERGE (1, 2, 0x10) (0, 0) One 4 1 "vmovss";
    VMOVSD_RR MERGE (1, 3, 0x10) (0, 1) One 8 1 "vmovsd";
    VMOVD VG (1, 1, 0x6e) (0, 0) One 4 1 "vmovd";
    VMOVD_ST GV (1, 1, 0x7e) (0, 0) One 4 1 "vmovd";
    VMOVQ VG (1, 1, 0x6e) (1, 1) One 8 1 "vmovq";
    VMOVQ_ST GV (1, 1, 0x7e) (1, 1) One 8 1 "vmovq";
    VMOVQ_X RM (1, 2, 0x7e) (0, 1) One 8 1 "vmovq";
    VMOVQ_X_ST MR (1, 1, 0xd6) (0, 1) One 8 1 "vmovq";
    VMOVHLPS MERGE (1, 0, 0x12) (0, 0) Full 0 1 "vmovhlps";
    VMOVLHPS MERGE (1, 0, 0x16) (0, 0) Full 0 1 "vmovlhps";
    VMOVSHDUP RM (1, 2, 0x16) (0, 0) Full 0 7 "vmovshdup";
    VMOVSLDUP RM (1, 2, 0x12) (0, 0) Full 0 7 "vmovsldup";
    VMOVNTPS STORE (1, 0, 0x2b) (0, 0) Full 0 7 "vmovntps";
    VMOVNTPD STORE (1, 1, 0x2b) (0, 1) Full 0 7 "vmovntpd";
    VMOVNTDQ STORE (1, 1, 0xe7) (0, 0) Full 0 7 "vmovntdq";
    VMOVNTDQA LOAD (2, 1, 0x2a) (0, 0) Full 0 7 "vmovntdqa";
    VMASKMOVPS MASK_LOAD (2, 1, 0x2c) (0, N) Full 0 7 "vmaskmovps";
    VMASKMOVPS_ST MASK_STORE (2, 1, 0x2e) (0, N) Full 0 7 "vmaskmovps";
    VMASKMOVPD MASK_LOAD (2, 1, 0x2d) (0, N) Full 0 7 "vmaskmovpd";
    VMASKMOVPD_ST MASK_STORE (2, 1, 0x2f) (0, N) Full 0 7 "vmaskmovpd";
    VPMASKMOVD MASK_LOAD (2, 1, 0x8c) (0, N) Full 0 7 "vpmaskmovd";
    VPMASKMOVD_ST MASK_STORE (2, 1, 0x8e) (0, N) Full 0 7 "vpmaskmovd";
    VPMASKMOVQ MASK_LOAD (2, 1, 0x8c) (1, N) Full 0 7 "vpmaskmovq";
    VPMASKMOVQ_ST MASK_STORE (2, 1, 0x8e) (1, N) Full 0 7 "vpmaskmovq";
    VGATHERDPS GATHER (2, 1, 0x92) (0, 0) One 4 7 "vgatherdps";
    VSCATTERDPS STORE (2, 1, 0xa2) (N, 0) One 4 7 "vscatterdps";
    VGATHERDPD GATHER (2, 1, 0x92) (1, 1) One 8 7 "vgatherdpd";
    VSCATTERDPD STORE (2, 1, 0xa2) (N, 1) One 8 7 "vscatterdpd";
    VGATHERQPS GATHER (2, 1, 0x93) (0, 0) One 4 7 "vgatherqps";
    VSCATTERQPS STORE (2, 1, 0xa3) (N, 0) One 4 7 "vscatterqps";
    VGATHERQPD GATHER (2, 1, 0x93) (1, 1) One 8 7 "vgatherqpd";
    VSCATTERQPD STORE (2, 1, 0xa3) (N, 1) One 8 7 "vscatterqpd";
    VPGATHERDD GATHER (2, 1, 0x90) (0, 0) One 4 7 "vpgatherdd";
    VPSCATTERDD STORE (2, 1, 0xa0) (N, 0) One 4 7 "vpscatterdd";
    VPGATHERDQ GATHER (2, 1, 0x90) (1, 1) One 8 7 "vpgatherdq";
    VPSCATTERDQ STORE (2, 1, 0xa0) (N, 1) One 8 7 "vpscatterdq";
    VPGATHERQD GATHER (2, 1, 0x91) (0, 0) One 4 7 "vpgatherqd";
    VPSCATTERQD STORE (2, 1, 0xa1) (N, 0) One 4 7 "vpscatterqd";
    VPGATHERQQ GATHER (2, 1, 0x91) (1, 1) One 8 7 "vpgatherqq";
    VPSCATTERQQ STORE (2, 1, 0xa1) (N, 1) One 8 7 "vpscatterqq";
}
