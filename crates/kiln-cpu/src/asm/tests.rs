//! Everything the assembler emits is decoded again by iced-x86 and compared operand by operand.

use super::ops::{self, Class, Order, VOp};
use super::*;
use iced_x86::{Code, CodeSize, Decoder, DecoderOptions, Instruction, OpKind, Register};

/// A small deterministic generator (SplitMix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn flip(&mut self) -> bool {
        self.next() & 1 == 1
    }
    fn gpr(&mut self) -> Gpr {
        Gpr(self.below(16) as u8)
    }
    fn disp(&mut self) -> i32 {
        match self.below(5) {
            0 => 0,
            1 => self.next() as i8 as i32,
            2 => (self.next() as i8 as i32) * 64,
            3 => (self.next() as i8 as i32) * 4,
            _ => self.next() as i32,
        }
    }
    fn mem(&mut self) -> Mem {
        let base = if self.below(8) == 0 { Base::None } else { Base::Register(self.gpr()) };
        let index = match self.gpr() {
            Gpr::RSP => Index::None,
            _ if self.flip() => Index::None,
            g => Index::Scaled(g, 1 << self.below(4)),
        };
        Mem { base, index, disp: self.disp() }
    }
}

fn decode(bytes: &[u8]) -> Instruction {
    let mut decoder = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE);
    let instruction = decoder.decode();
    assert_ne!(instruction.code(), Code::INVALID, "invalid: {bytes:02x?}");
    assert_eq!(instruction.len(), bytes.len(), "length: {bytes:02x?} is {instruction:?}");
    assert_eq!(instruction.code_size(), CodeSize::Code64);
    instruction
}

fn one(emit: impl FnOnce(&mut Assembler)) -> Instruction {
    let mut asm = Assembler::new();
    emit(&mut asm);
    decode(&asm.finish())
}

fn mnemonic(i: &Instruction) -> String {
    format!("{:?}", i.mnemonic()).to_lowercase()
}

/// Number of a register in its file, and the file's width in bytes (0 for masks).
fn register(r: Register) -> (Class, u8, usize) {
    let n = r as usize;
    let within = |first: Register, count: usize| (first as usize..first as usize + count).contains(&n);
    let files = [
        (Register::XMM0, 32, Class::Vector, 16),
        (Register::YMM0, 32, Class::Vector, 32),
        (Register::ZMM0, 32, Class::Vector, 64),
        (Register::K0, 8, Class::Mask, 0),
        (Register::RAX, 16, Class::General, 8),
        (Register::EAX, 16, Class::General, 4),
        (Register::AX, 16, Class::General, 2),
    ];
    for (first, count, class, bytes) in files {
        if within(first, count) {
            return (class, (n - first as usize) as u8, bytes);
        }
    }
    // 8-bit registers: AL..BL, AH..BH, SPL..DIL, R8L..R15L.
    let n = n - Register::AL as usize;
    match n {
        0..4 => (Class::General, n as u8, 1),
        8..20 => (Class::General, n as u8 - 4, 1),
        _ => panic!("register {r:?}"),
    }
}

fn same_mem(i: &Instruction, m: &Mem, what: &str) {
    match m.base {
        Base::Register(b) => assert_eq!(register(i.memory_base()), (Class::General, b.0, 8), "{what}"),
        Base::None => assert_eq!(i.memory_base(), Register::None, "{what}"),
        Base::Label(_) => assert_eq!(i.memory_base(), Register::RIP, "{what}"),
    }
    match m.index {
        Index::None => assert_eq!(i.memory_index(), Register::None, "{what}"),
        Index::Scaled(g, s) => {
            assert_eq!(register(i.memory_index()), (Class::General, g.0, 8), "{what}");
            assert_eq!(i.memory_index_scale(), u32::from(s), "{what}");
        }
        Index::Vector(v, s) => {
            let (class, n, _) = register(i.memory_index());
            assert_eq!((class, n), (Class::Vector, v.0), "{what}");
            assert_eq!(i.memory_index_scale(), u32::from(s), "{what}");
        }
    }
    if !matches!(m.base, Base::Label(_)) {
        assert_eq!(i.memory_displacement64() as i64, i64::from(m.disp), "{what}");
    }
}

/// EVEX renames a few instructions that carry over from VEX.
fn evex_name(name: &str) -> &str {
    match name {
        "vpand" => "vpandd",
        "vpandn" => "vpandnd",
        "vpor" => "vpord",
        "vpxor" => "vpxord",
        "vmovdqu" => "vmovdqu32",
        "vmovdqa" => "vmovdqa32",
        "vextractf128" => "vextractf32x4",
        "vextracti128" => "vextracti32x4",
        "vinsertf128" => "vinsertf32x4",
        "vinserti128" => "vinserti32x4",
        "vbroadcastf128" => "vbroadcastf32x4",
        "vbroadcasti128" => "vbroadcasti32x4",
        other => other,
    }
}

fn check_vector(op: VOp, rng: &mut Rng) {
    let widths: Vec<Width> = [Width::V128, Width::V256, Width::V512].into_iter().filter(|w| op.has_width(*w)).collect();
    let width = widths[rng.below(widths.len() as u64) as usize];
    let form = op.form;
    let evex = op.evex >= 0 && (op.vex < 0 || width == Width::V512 || rng.flip());
    let high = if evex { 32 } else { 16 };
    // Distinct vector registers: gathers forbid overlap.
    let mut numbers: Vec<u8> = (0..high).collect();
    for i in 0..5 {
        let j = i + rng.below(u64::from(high) - i as u64) as usize;
        numbers.swap(i, j);
    }
    let pick = |class: Class, vector: u8, rng: &mut Rng| match class {
        Class::Vector => Reg::Vector(VReg(vector)),
        Class::Mask => Reg::Mask(KReg(rng.below(8) as u8)),
        Class::General => Reg::General(rng.gpr()),
    };
    let vsib = form.order == Order::Rmv || op.name.contains("scatter");
    let reg = pick(form.reg, numbers[0], rng);
    let rm = if form.takes_mem && (!form.takes_reg || rng.flip()) {
        let mut m = rng.mem();
        if vsib {
            m.index = Index::Vector(VReg(numbers[2]), 1 << rng.below(4));
        }
        Rm::Mem(m)
    } else {
        Rm::Reg(pick(form.rm, numbers[2], rng))
    };
    let three = matches!(form.order, Order::Rvm | Order::Mvr | Order::Rvmr) || (form.order == Order::Rmv && !evex);
    let mut args = if three { Args::rvm(reg, VReg(numbers[1]), rm) } else { Args::rm(reg, rm) };
    let imm = rng.next() as u8;
    let fourth = rng.below(16) as u8;
    match form.order {
        Order::Rvmr => args = args.select(VReg(fourth)),
        _ if form.imm => args = args.imm(imm),
        _ => {}
    }
    let is_mem = matches!(rm, Rm::Mem(_));
    let unmaskable = form.reg == Class::General
        || form.rm != Class::Vector
        || form.order == Order::Rmv
        || (form.reg == Class::Mask && !form.takes_mem)
        || [
            "vmovq",
            "vucom",
            "vmovnt",
            "vmovhlps",
            "vmovlhps",
            "vpinsr",
            "vpextr",
            "vinsertps",
            "vpsrldq",
            "vpslldq",
            "vpsadbw",
        ]
        .iter()
        .any(|p| op.name.starts_with(p));
    let mut mask = KReg(0);
    let (mut zero, mut broadcast) = (false, false);
    if evex && (vsib || (!unmaskable && rng.flip())) {
        mask = KReg(1 + rng.below(7) as u8);
        args = args.mask(mask);
        let to_mem = is_mem && matches!(form.order, Order::Mr);
        if !vsib && !to_mem && form.reg == Class::Vector && rng.flip() {
            zero = true;
            args = args.zero();
        }
    }
    let can_broadcast = matches!(op.tuple, ops::Tuple::Full | ops::Tuple::Half) && op.elem > 0;
    if evex && is_mem && can_broadcast && rng.flip() {
        broadcast = true;
        args = args.broadcast();
    }

    let i = one(|asm| asm.vector(op, width, args));
    let what = format!("{} {width:?} {args:?}\n  decoded: {i:?}", op.name);
    let is_evex = i.code().encoding() == iced_x86::EncodingKind::EVEX;
    let expected = if is_evex { evex_name(op.name) } else { op.name };
    assert_eq!(mnemonic(&i), expected, "{what}");
    let must_be_evex = op.vex < 0 || width == Width::V512 || mask.0 != 0 || broadcast;
    assert!(!must_be_evex || is_evex, "{what}");
    let i_mask = if i.op_mask() == Register::None { 0 } else { register(i.op_mask()).1 };
    assert_eq!(i_mask, mask.0, "{what}");
    assert_eq!(i.zeroing_masking(), zero, "{what}");
    assert_eq!(i.is_broadcast(), broadcast, "{what}");

    let vvvv = Rm::Reg(Reg::Vector(VReg(numbers[1])));
    let want: Vec<Rm> = match form.order {
        Order::Rm | Order::Vm(_) => vec![reg.into(), rm],
        Order::Mr => vec![rm, reg.into()],
        Order::Rvm => vec![reg.into(), vvvv, rm],
        Order::Mvr => vec![rm, vvvv, reg.into()],
        Order::Rvmr => vec![reg.into(), vvvv, rm, VReg(fourth).into()],
        Order::Rmv if is_evex => vec![reg.into(), rm],
        Order::Rmv => vec![reg.into(), rm, vvvv],
    };
    let has_imm = form.imm && form.order != Order::Rvmr;
    assert_eq!(i.op_count() as usize, want.len() + usize::from(has_imm), "{what}");
    let mut widest = 0;
    for (n, operand) in want.iter().enumerate() {
        let n = n as u32;
        match operand {
            Rm::Reg(r) => {
                assert_eq!(i.op_kind(n), OpKind::Register, "{what}");
                let (class, number, bytes) = register(i.op_register(n));
                let class_of = match r {
                    Reg::Vector(_) => Class::Vector,
                    Reg::Mask(_) => Class::Mask,
                    Reg::General(_) => Class::General,
                };
                assert_eq!((class, number), (class_of, r.number()), "{what}");
                if class == Class::Vector {
                    widest = widest.max(bytes);
                }
            }
            Rm::Mem(m) => {
                assert_eq!(i.op_kind(n), OpKind::Memory, "{what}");
                same_mem(&i, m, &what);
                if let Index::Vector(..) = m.index {
                    widest = widest.max(register(i.memory_index()).2);
                }
            }
        }
    }
    // A narrowing conversion from memory names its width only in the size of that memory.
    let from_memory = i.memory_size().info().size();
    let scalar = op.tuple == ops::Tuple::One && op.widths == 1;
    assert!(widest == width.bytes() || from_memory == width.bytes() || broadcast || scalar, "{what}");
    if has_imm {
        assert_eq!(i.immediate8(), imm, "{what}");
    }
}

#[test]
fn every_vector_instruction_decodes_to_itself() {
    let mut rng = Rng(1);
    for op in ops::ALL {
        for _ in 0..150 {
            check_vector(*op, &mut rng);
        }
    }
}

#[test]
fn the_table_has_no_entry_twice() {
    for (i, a) in ops::ALL.iter().enumerate() {
        for b in &ops::ALL[..i] {
            let key = |o: &VOp| (o.form, o.map, o.pp, o.opcode, o.vex, o.evex);
            assert!(key(a) != key(b), "{} and {}", a.name, b.name);
        }
    }
}

/// Decodes one general-purpose instruction and compares name and operands; `Imm` is any immediate.
#[derive(Debug)]
enum Want {
    R(Gpr),
    M(Mem),
    Imm(i64),
}
use Want::{Imm, M, R};

fn general(name: &str, want: &[Want], emit: impl FnOnce(&mut Assembler)) {
    let i = one(emit);
    let what = format!("{name} {want:?}\n  decoded: {i:?}");
    assert_eq!(mnemonic(&i), name, "{what}");
    assert_eq!(i.op_count() as usize, want.len(), "{what}");
    for (n, w) in want.iter().enumerate() {
        let n = n as u32;
        match w {
            R(g) => {
                let (class, number, _) = register(i.op_register(n));
                assert_eq!((class, number), (Class::General, g.0), "{what}");
            }
            M(m) => {
                assert_eq!(i.op_kind(n), OpKind::Memory, "{what}");
                same_mem(&i, m, &what);
            }
            Imm(v) => {
                let wide = i.op_register(0);
                // A 32-bit immediate into a 32-bit register is the same value, seen unsigned.
                let got = if register(wide).2 == 4 { i64::from(i.immediate(n) as u32) } else { i.immediate(n) as i64 };
                assert_eq!(got, *v, "{what}");
            }
        }
    }
}

#[test]
fn general_purpose_instructions_decode_to_themselves() {
    let mut rng = Rng(2);
    for _ in 0..2000 {
        let (a, b) = (rng.gpr(), rng.gpr());
        let m = rng.mem();
        let imm = rng.disp();
        let imm64 = rng.next() as i64 >> rng.below(64);
        general("mov", &[R(a), R(b)], |s| s.mov(a, b));
        general("mov", &[R(a), Imm(imm64)], |s| s.mov_imm(a, imm64));
        for (size, zero, sign) in [
            (Size::B, "movzx", "movsx"),
            (Size::W, "movzx", "movsx"),
            (Size::D, "mov", "movsxd"),
            (Size::Q, "mov", "mov"),
        ] {
            let bytes = 1 << (size as usize);
            general(zero, &[R(a), M(m)], |s| s.load(a, m, size));
            general(sign, &[R(a), M(m)], |s| s.load_signed(a, m, size));
            general("mov", &[M(m), R(a)], |s| s.store(m, a, size));
            let stored = one(|s| s.store(m, a, size));
            assert_eq!(register(stored.op_register(1)).2, bytes);
            assert_eq!(stored.memory_size().info().size(), bytes);
            assert_eq!(one(|s| s.load(a, m, size)).memory_size().info().size(), bytes);
            general(zero, &[R(a), R(b)], |s| s.zero_extend(a, b, size));
            general(sign, &[R(a), R(b)], |s| s.sign_extend(a, b, size));
            assert_eq!(register(one(|s| s.sign_extend(a, b, size)).op_register(1)).2, bytes);
            assert_eq!(register(one(|s| s.zero_extend(a, b, size)).op_register(1)).2, bytes);
        }
        general("lea", &[R(a), M(m)], |s| s.lea(a, m));
        for (op, name) in [
            (Alu::Add, "add"),
            (Alu::Or, "or"),
            (Alu::And, "and"),
            (Alu::Sub, "sub"),
            (Alu::Xor, "xor"),
            (Alu::Cmp, "cmp"),
        ] {
            general(name, &[R(a), R(b)], |s| s.alu(op, a, b));
            general(name, &[R(a), M(m)], |s| s.alu(op, a, m));
            general(name, &[R(a), Imm(imm.into())], |s| s.alu_imm(op, a, imm));
            let in_memory = one(|s| s.alu_imm(op, m, imm));
            assert_eq!(in_memory.immediate(1) as i64, i64::from(imm));
            same_mem(&in_memory, &m, name);
        }
        general("imul", &[R(a), R(b)], |s| s.imul(a, b));
        general("imul", &[R(a), M(m)], |s| s.imul(a, m));
        general("imul", &[R(a), R(b), Imm(imm.into())], |s| s.imul_imm(a, b, imm));
        let by = rng.below(64) as u8;
        for (op, name) in [(Shift::Shl, "shl"), (Shift::Shr, "shr"), (Shift::Sar, "sar")] {
            general(name, &[R(a), Imm(by.into())], |s| s.shift_imm(op, a, by));
            general(name, &[R(a), R(Gpr::RCX)], |s| s.shift_cl(op, a));
        }
        general("test", &[R(a), R(b)], |s| s.test(a, b));
        general("popcnt", &[R(a), R(b)], |s| s.popcnt(a, b));
        general("neg", &[R(a)], |s| s.neg(a));
        general("not", &[R(a)], |s| s.not(a));
        general("inc", &[R(a)], |s| s.inc(a));
        general("dec", &[R(a)], |s| s.dec(a));
        general("idiv", &[R(a)], |s| s.idiv(a));
        general("div", &[R(a)], |s| s.div(a));
        general("mul", &[R(a)], |s| s.mul(a));
        general("push", &[R(a)], |s| s.push(a));
        general("pop", &[R(a)], |s| s.pop(a));
        general("call", &[R(a)], |s| s.call(a));
        general("jmp", &[R(a)], |s| s.jmp_reg(a));
        general("prefetcht0", &[M(m)], |s| s.prefetch_t0(m));
        general("prefetcht1", &[M(m)], |s| s.prefetch_t1(m));
        general("prefetchnta", &[M(m)], |s| s.prefetch_nta(m));
        for (cond, suffix) in CONDITIONS {
            general(&format!("cmov{suffix}"), &[R(a), R(b)], |s| s.cmov(cond, a, b));
            general(&format!("set{suffix}"), &[R(a)], |s| s.setcc(cond, a));
            assert_eq!(cond as u8 ^ 1, cond.not() as u8);
        }
    }
    general("ret", &[], |s| s.ret());
    general("cqo", &[], |s| s.cqo());
    general("sfence", &[], |s| s.sfence());
    general("vzeroupper", &[], |s| s.vzeroupper());
}

const CONDITIONS: [(Cond, &str); 12] = [
    (Cond::Below, "b"),
    (Cond::AboveEqual, "ae"),
    (Cond::Equal, "e"),
    (Cond::NotEqual, "ne"),
    (Cond::BelowEqual, "be"),
    (Cond::Above, "a"),
    (Cond::Sign, "s"),
    (Cond::NotSign, "ns"),
    (Cond::Less, "l"),
    (Cond::GreaterEqual, "ge"),
    (Cond::LessEqual, "le"),
    (Cond::Greater, "g"),
];

#[test]
fn mask_instructions_decode_to_themselves() {
    let check = |name: String, regs: &[Reg], mem: Option<Mem>, i: Instruction| {
        assert_eq!(mnemonic(&i), name);
        let got: Vec<(Class, u8)> = (0..i.op_count())
            .filter(|n| i.op_kind(*n) == OpKind::Register)
            .map(|n| (register(i.op_register(n)).0, register(i.op_register(n)).1))
            .collect();
        let class = |r: &Reg| if matches!(r, Reg::Mask(_)) { Class::Mask } else { Class::General };
        let want: Vec<(Class, u8)> = regs.iter().map(|r| (class(r), r.number())).collect();
        assert_eq!(got, want, "{name}");
        if let Some(m) = mem {
            same_mem(&i, &m, &name);
        }
    };
    let mut rng = Rng(3);
    for _ in 0..300 {
        for (size, s) in [(MaskSize::B, "b"), (MaskSize::W, "w"), (MaskSize::D, "d"), (MaskSize::Q, "q")] {
            let [a, b, c] = [0; 3].map(|_| KReg(rng.below(8) as u8));
            let (g, m) = (rng.gpr(), rng.mem());
            let abc = [a.into(), b.into(), c.into()];
            check(format!("kmov{s}"), &[a.into(), b.into()], None, one(|x| x.kmov(size, a, b)));
            check(format!("kmov{s}"), &[a.into()], Some(m), one(|x| x.kmov_load(size, a, m)));
            check(format!("kmov{s}"), &[a.into()], Some(m), one(|x| x.kmov_store(size, m, a)));
            check(format!("kmov{s}"), &[a.into(), g.into()], None, one(|x| x.kmov_from(size, a, g)));
            check(format!("kmov{s}"), &[g.into(), a.into()], None, one(|x| x.kmov_to(size, g, a)));
            check(format!("kand{s}"), &abc, None, one(|x| x.kand(size, a, b, c)));
            check(format!("kandn{s}"), &abc, None, one(|x| x.kandn(size, a, b, c)));
            check(format!("kor{s}"), &abc, None, one(|x| x.kor(size, a, b, c)));
            check(format!("kxor{s}"), &abc, None, one(|x| x.kxor(size, a, b, c)));
            check(format!("kxnor{s}"), &abc, None, one(|x| x.kxnor(size, a, b, c)));
            check(format!("knot{s}"), &abc[..2], None, one(|x| x.knot(size, a, b)));
            check(format!("kortest{s}"), &abc[..2], None, one(|x| x.kortest(size, a, b)));
        }
    }
}

#[test]
fn tile_instructions_decode_to_themselves() {
    let check = |name: &str, tiles: &[TReg], mem: Option<Mem>, i: Instruction| {
        assert_eq!(mnemonic(&i), name);
        let registers = (0..i.op_count()).filter(|n| i.op_kind(*n) == OpKind::Register);
        let got: Vec<usize> = registers.map(|n| i.op_register(n) as usize - Register::TMM0 as usize).collect();
        let want: Vec<usize> = tiles.iter().map(|tile| usize::from(tile.0)).collect();
        assert_eq!(got, want, "{name}");
        if let Some(m) = mem {
            same_mem(&i, &m, name);
        }
    };
    let mut rng = Rng(5);
    for _ in 0..500 {
        // The tiles of a product are three different ones.
        let first = rng.below(8) as u8;
        let [a, b, c] = [first, (first + 1 + rng.below(3) as u8) % 8, (first + 4 + rng.below(4) as u8) % 8].map(TReg);
        let (base, disp, m) = (rng.gpr(), rng.disp(), rng.mem());
        let stride = loop {
            match rng.gpr() {
                Gpr::RSP => {}
                stride => break stride,
            }
        };
        let at = Mem::indexed(base, stride, 1).offset(disp);
        check("ldtilecfg", &[], Some(m), one(|x| x.ldtilecfg(m)));
        check("sttilecfg", &[], Some(m), one(|x| x.sttilecfg(m)));
        check("tilezero", &[a], None, one(|x| x.tilezero(a)));
        check("tileloadd", &[a], Some(at), one(|x| x.tileloadd(a, base, stride, disp)));
        check("tilestored", &[a], Some(at), one(|x| x.tilestored(base, stride, disp, a)));
        for (product, name) in [
            (TileProduct::Bf16, "tdpbf16ps"),
            (TileProduct::SignedSigned, "tdpbssd"),
            (TileProduct::SignedUnsigned, "tdpbsud"),
            (TileProduct::UnsignedSigned, "tdpbusd"),
            (TileProduct::UnsignedUnsigned, "tdpbuud"),
        ] {
            check(name, &[a, b, c], None, one(|x| x.tile_product(product, a, b, c)));
        }
    }
    check("tilerelease", &[], None, one(|x| x.tilerelease()));
    let bytes = tile_configuration(&[(16, 64), (3, 64), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (1, 300)]);
    assert_eq!(
        (bytes[0], &bytes[16..20], &bytes[30..32], &bytes[48..50], bytes[55]),
        (1, &[64, 0, 64, 0][..], &[44, 1][..], &[16, 3][..], 1)
    );
}

#[test]
fn labels_and_constants_resolve() {
    let mut asm = Assembler::new();
    let (top, end) = (asm.label(), asm.label());
    asm.bind(top);
    asm.jcc(Cond::Less, end);
    asm.jmp(top);
    let long = asm.constant(&[7; 64]);
    let short = asm.constant(&1.5f32.to_le_bytes());
    assert_eq!(asm.constant(&1.5f32.to_le_bytes()), short);
    asm.rvm(ops::VADDPS, Width::V512, VReg(1), VReg(2), long);
    // An immediate after the displacement moves the end of the instruction.
    asm.rvmi(ops::VCMPPS, Width::V128, VReg(1), VReg(2), long.offset(16), 1);
    asm.rm(ops::VBROADCASTSS, Width::V256, VReg(20), short);
    asm.align(32);
    asm.bind(end);
    assert_eq!(asm.offset_of(end).unwrap() % 32, 0);
    let end_at = asm.offset_of(end).unwrap() as u64;
    asm.ret();
    let bytes = asm.finish();
    let mut decoder = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE);
    let mut targets = Vec::new();
    for i in &mut decoder {
        if i.is_jcc_near() || i.is_jmp_near() {
            targets.push(i.near_branch_target());
        } else if i.memory_base() == Register::RIP {
            targets.push(i.memory_displacement64());
        }
        if mnemonic(&i) == "ret" {
            break;
        }
    }
    let pool = (end_at + 1).next_multiple_of(64);
    assert_eq!(targets, [end_at, 0, pool, pool + 16, pool + 64]);
    assert_eq!(bytes.len() as u64, pool + 68);
    assert_eq!(&bytes[pool as usize + 64..], &1.5f32.to_le_bytes());
}
