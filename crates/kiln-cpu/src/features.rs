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

/// The features of this machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Features {
    /// The best usable target.
    pub isa: Isa,
    /// AVX512_BF16: conversion to bf16 and dot products of bf16 pairs. Only ever set with [`Isa::Avx512`].
    pub bf16: bool,
    /// Bytes of a core's second-level cache.
    pub l2_bytes: usize,
    /// Memory is read fastest as one long stream per core (AMD); otherwise as several at once, each of them slower (Intel).
    pub one_stream: bool,
}

/// The assumed size on a machine that does not report it.
const L2_BYTES: usize = 1 << 20;

impl Isa {
    /// The default target of generated code: the best of the machine, or the one that `KILN_CPU_ISA` (`portable`, `avx2`,
    /// `avx512`) selects, if the machine has it.
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
        let Some(isa) = environment::CPU_ISA.read()?.as_deref().and_then(Isa::parse) else { return Ok(None) };
        match Isa::available().any(|available| available == isa) {
            true => Ok(Some(isa)),
            false => {
                let available: Vec<&str> = Isa::available().map(Isa::name).collect();
                Err(environment::CPU_ISA.bad(isa.name(), format!("what this machine has: {}", available.join(", "))))
            }
        }
    }

    /// The target of a name, as in `KILN_CPU_ISA`.
    pub fn parse(name: &str) -> Option<Isa> {
        match name.trim().to_ascii_lowercase().as_str() {
            "portable" => Some(Isa::Portable),
            "avx2" => Some(Isa::Avx2),
            "avx512" => Some(Isa::Avx512),
            _ => None,
        }
    }

    /// The name, as in `KILN_CPU_ISA`.
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
    let bf16 = avx512 && is_x86_feature_detected!("avx512bf16");
    Features { isa, bf16, l2_bytes: l2_bytes(), one_stream: vendor() == *b"AuthenticAMD" }
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
    Features { isa: Isa::Portable, bf16: false, l2_bytes: L2_BYTES, one_stream: false }
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
        assert!(!detect().bf16 || detect().isa == Isa::Avx512);
    }
}
