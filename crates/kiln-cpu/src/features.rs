//! Selects the instruction set that code is generated for.

use kiln_runtime::environment;
use std::sync::OnceLock;

/// A code-generation target, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Isa {
    /// Plain Rust, no generated code: any machine.
    Portable,
    /// AVX2 with FMA and F16C: 16 registers of 256 bits.
    Avx2,
    /// AVX-512 F, BW, DQ and VL: 32 registers of 512 bits and masks.
    Avx512,
}

/// What multiplies short elements beside [`Isa::Avx512`], in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Extension {
    /// Nothing: bf16 are widened.
    None,
    /// AVX512_BF16: conversion to bf16 and dot products of bf16 pairs.
    Bf16,
    /// AMX as well: products of tiles of bf16 and of bytes.
    Amx,
}

/// The features of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// The best usable target.
    pub isa: Isa,
    /// What there is beside it; only ever something with [`Isa::Avx512`].
    pub extension: Extension,
    /// Bytes of a core's second-level cache.
    pub l2_bytes: usize,
    /// Memory is read fastest as one long stream per core (AMD); otherwise as several at once, each of them slower (Intel).
    pub one_stream: bool,
}

/// The assumed size on a machine that does not report it.
const L2_BYTES: usize = 1 << 20;

impl Isa {
    /// The default target of generated code: the best of the machine, or the one that `KILN_CPU_ISA` (`portable`, `avx2`,
    /// `avx512`, `avx512-bf16`, `amx`) selects, if the machine has it.
    pub fn get() -> Isa {
        static ISA: OnceLock<Isa> = OnceLock::new();
        *ISA.get_or_init(|| {
            let best = detect().isa;
            match Isa::from_environment() {
                Ok(asked) => asked.unwrap_or(best),
                Err(problem) => {
                    environment::CPU_ISA.warn(problem);
                    best
                }
            }
        })
    }

    /// The target that `KILN_CPU_ISA` selects; an error if it is no target, or none of this machine.
    pub fn from_environment() -> Result<Option<Isa>, environment::Problem> {
        Ok(asked()?.map(|(isa, _)| isa))
    }

    /// The target of a name.
    pub fn parse(name: &str) -> Option<Isa> {
        match name.trim().to_ascii_lowercase().as_str() {
            "portable" => Some(Isa::Portable),
            "avx2" => Some(Isa::Avx2),
            "avx512" => Some(Isa::Avx512),
            _ => None,
        }
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// Every target this machine can run, the portable one first.
    pub fn available() -> impl Iterator<Item = Isa> {
        let best = detect().isa;
        [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(move |&isa| isa <= best)
    }
}

impl Extension {
    /// Whether code for a target multiplies pairs of bf16.
    pub fn multiplies_pairs(isa: Isa) -> bool {
        isa == Isa::Avx512 && Extension::get() >= Extension::Bf16
    }

    /// What products of short elements use: as much as `KILN_CPU_ISA` names, otherwise all there is up to AVX512_BF16.
    pub fn get() -> Extension {
        enabled().extension
    }
}

/// The most that is used without being asked for: the code of tiles has run in an emulator of their instructions, not on a processor.
const UNASKED: Extension = Extension::Bf16;

/// The values of `KILN_CPU_ISA`.
const TARGETS: [(&str, Isa, Extension); 5] = [
    ("portable", Isa::Portable, Extension::None),
    ("avx2", Isa::Avx2, Extension::None),
    ("avx512", Isa::Avx512, Extension::None),
    ("avx512-bf16", Isa::Avx512, Extension::Bf16),
    ("amx", Isa::Avx512, Extension::Amx),
];

/// The values of `KILN_CPU_ISA` that this machine can run, in ascending order.
pub fn targets() -> impl Iterator<Item = &'static str> {
    let best = detect();
    TARGETS.iter().filter(move |(_, isa, extension)| *isa <= best.isa && *extension <= best.extension).map(|t| t.0)
}

/// The value of `KILN_CPU_ISA` that stands for what is used.
pub fn target() -> &'static str {
    let (isa, extension) = (Isa::get(), Extension::get());
    let fits = |target: &&(&str, Isa, Extension)| target.1 == isa && (isa < Isa::Avx512 || target.2 == extension);
    TARGETS.iter().find(fits).map_or("portable", |target| target.0)
}

/// What `KILN_CPU_ISA` selects; an error if it is no target, or none of this machine.
fn asked() -> Result<Option<(Isa, Extension)>, environment::Problem> {
    let Some(value) = environment::CPU_ISA.read()? else { return Ok(None) };
    let name = value.trim().to_ascii_lowercase();
    let Some((_, isa, extension)) = TARGETS.iter().find(|target| target.0 == name) else { return Ok(None) };
    if targets().any(|target| target == name) {
        return Ok(Some((*isa, *extension)));
    }
    let available: Vec<&str> = targets().collect();
    Err(environment::CPU_ISA.bad(&name, format!("what this machine has: {}", available.join(", "))))
}

/// The features of this machine, without the extensions beyond what `KILN_CPU_ISA` names.
pub fn enabled() -> Features {
    static ENABLED: OnceLock<Features> = OnceLock::new();
    *ENABLED.get_or_init(|| {
        let features = detect();
        match asked() {
            Ok(Some((_, extension))) => Features { extension, ..features },
            Ok(None) | Err(_) => Features { extension: features.extension.min(UNASKED), ..features },
        }
    })
}

/// The features of this machine, regardless of `KILN_CPU_ISA`.
pub fn detect() -> Features {
    static FEATURES: OnceLock<Features> = OnceLock::new();
    *FEATURES.get_or_init(probe)
}

#[cfg(all(target_arch = "x86_64", unix))]
fn probe() -> Features {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    let isa = match (avx512, avx2) {
        (true, _) => Isa::Avx512,
        (_, true) => Isa::Avx2,
        _ => Isa::Portable,
    };
    let extension = match avx512 && is_x86_feature_detected!("avx512bf16") {
        true if amx() => Extension::Amx,
        true => Extension::Bf16,
        false => Extension::None,
    };
    Features { isa, extension, l2_bytes: l2_bytes(), one_stream: vendor() == *b"AuthenticAMD" }
}

/// Whether there are tiles of the usual size with products of bf16 and bytes, the system saves them, and it lets this process use
/// them (a process has to ask; threads share the answer).
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx() -> bool {
    use std::arch::x86_64::__cpuid_count;
    const BF16_TILE_INT8: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    const TILE_STATES: u32 = 3 << 17;
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XTILEDATA: libc::c_long = 18;
    const PALETTES: u32 = 0x1d;
    let has =
        std::arch::x86_64::__cpuid(0).eax >= PALETTES && __cpuid_count(7, 0).edx & BF16_TILE_INT8 == BF16_TILE_INT8;
    if !has {
        return false;
    }
    let palette = __cpuid_count(PALETTES, 1);
    let usual = palette.ebx & 0xffff == 64 && palette.ebx >> 16 >= 8 && palette.ecx & 0xffff >= 16;
    let states: u32;
    // SAFETY: AVX-512 was detected, so the system enabled XGETBV; it has no effect but on these registers.
    unsafe { std::arch::asm!("xgetbv", in("ecx") 0, out("eax") states, out("edx") _, options(nomem, nostack)) };
    // SAFETY: asks for a permission, and changes nothing else.
    let permitted = || unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) } == 0;
    usual && states & TILE_STATES == TILE_STATES && permitted()
}

#[cfg(all(target_arch = "x86_64", unix, not(target_os = "linux")))]
fn amx() -> bool {
    false
}

/// The processor's vendor.
#[cfg(all(target_arch = "x86_64", unix))]
fn vendor() -> [u8; 12] {
    let leaf = std::arch::x86_64::__cpuid(0);
    let mut name = [0; 12];
    for (to, word) in name.chunks_exact_mut(4).zip([leaf.ebx, leaf.edx, leaf.ecx]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    name
}

/// The processor's brand string.
#[cfg(all(target_arch = "x86_64", unix))]
pub fn model() -> String {
    use std::arch::x86_64::__cpuid;
    let leaves = 0x8000_0002u32..=0x8000_0004;
    if __cpuid(0x8000_0000).eax < *leaves.end() {
        return String::new();
    }
    let words = leaves.map(__cpuid).flat_map(|r| [r.eax, r.ebx, r.ecx, r.edx]);
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).filter(|&b| b != 0).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

/// The processor's brand string.
#[cfg(not(all(target_arch = "x86_64", unix)))]
pub fn model() -> String {
    String::new()
}

/// The size of the second-level cache, from the leaf that lists caches: 4 on Intel, 0x8000_001D on AMD.
#[cfg(all(target_arch = "x86_64", unix))]
fn l2_bytes() -> usize {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let leaves = [(0, 4), (0x8000_0000, 0x8000_001d)];
    let listed = leaves.into_iter().filter(|&(base, leaf)| __cpuid(base).eax >= leaf);
    let caches = listed.flat_map(|(_, leaf)| (0..8).map(move |i| __cpuid_count(leaf, i)));
    // Data or unified, second level; fields hold counts minus one.
    let second = caches.filter(|c| matches!(c.eax & 31, 1 | 3) && c.eax >> 5 & 7 == 2);
    let bytes = second.map(|c| {
        let field = |shift: u32, bits: u32| (c.ebx >> shift & ((1 << bits) - 1)) as usize + 1;
        field(0, 12) * field(12, 10) * field(22, 10) * (c.ecx as usize + 1)
    });
    bytes.max().unwrap_or(L2_BYTES)
}

#[cfg(not(all(target_arch = "x86_64", unix)))]
fn probe() -> Features {
    Features { isa: Isa::Portable, extension: Extension::None, l2_bytes: L2_BYTES, one_stream: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            assert_eq!(Isa::parse(isa.name()), Some(isa));
        }
        assert_eq!(Isa::parse(" AVX2 "), Some(Isa::Avx2));
        assert_eq!(Isa::parse("sse"), None);
    }

    #[test]
    fn the_default_is_available() {
        assert!(Isa::available().any(|isa| isa == Isa::get()));
        assert_eq!(Isa::available().next(), Some(Isa::Portable));
        assert!((64 << 10..=64 << 20).contains(&detect().l2_bytes), "{:?}", detect());
        assert!(detect().extension == Extension::None || detect().isa == Isa::Avx512);
        assert!(targets().any(|name| name == target()), "{}", target());
        assert!(targets().count() >= Isa::available().count());
    }
}
