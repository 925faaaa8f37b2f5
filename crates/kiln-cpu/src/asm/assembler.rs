//! The byte buffer, labels and the constant pool.

use super::{Base, Gpr, Index, Mem};
use std::collections::HashMap;

/// A position in the code, bound once, used any number of times before or after.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Label(u32);

/// A 32-bit displacement to be filled in once its label is bound.
struct Fixup {
    at: usize,
    /// Distance from the displacement to the end of its instruction.
    to_end: usize,
    label: Label,
    addend: i32,
}

/// Builds one piece of machine code.
#[derive(Default)]
pub struct Assembler {
    pub(super) code: Vec<u8>,
    labels: Vec<Option<usize>>,
    fixups: Vec<Fixup>,
    constants: Vec<(Vec<u8>, Label)>,
    known: HashMap<Vec<u8>, Label>,
}

impl Assembler {
    /// The alignment that finished code expects of the memory it is installed in.
    pub const ALIGN: usize = 64;

    /// An empty assembler.
    pub fn new() -> Assembler {
        Assembler::default()
    }

    /// Bytes of code so far.
    pub fn len(&self) -> usize {
        self.code.len()
    }

    /// Whether nothing was emitted yet.
    pub fn is_empty(&self) -> bool {
        self.code.is_empty()
    }

    /// A new label, bound nowhere yet.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() as u32 - 1)
    }

    /// Binds a label to the current position.
    pub fn bind(&mut self, label: Label) {
        let slot = &mut self.labels[label.0 as usize];
        assert!(slot.is_none(), "label {} bound twice", label.0);
        *slot = Some(self.code.len());
    }

    /// A label bound to the current position.
    pub fn here(&mut self) -> Label {
        let label = self.label();
        self.bind(label);
        label
    }

    /// Where a label is bound, as an offset from the start of the code.
    pub fn offset_of(&self, label: Label) -> Option<usize> {
        self.labels[label.0 as usize]
    }

    /// A memory operand that names `bytes`, kept once in a pool after the code and aligned to their length.
    pub fn constant(&mut self, bytes: &[u8]) -> Mem {
        if let Some(&label) = self.known.get(bytes) {
            return Mem::label(label);
        }
        let label = self.label();
        self.known.insert(bytes.to_vec(), label);
        self.constants.push((bytes.to_vec(), label));
        Mem::label(label)
    }

    /// Pads with no-ops to a multiple of `to`, a power of two of at most 64.
    pub fn align(&mut self, to: usize) {
        const NOPS: [&[u8]; 9] = [
            &[0x90],
            &[0x66, 0x90],
            &[0x0f, 0x1f, 0x00],
            &[0x0f, 0x1f, 0x40, 0x00],
            &[0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
            &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
            &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
            &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
        ];
        assert!(to.is_power_of_two() && to <= Self::ALIGN, "alignment {to}");
        let mut left = self.code.len().wrapping_neg() & (to - 1);
        while left > 0 {
            let n = left.min(NOPS.len());
            self.code.extend_from_slice(NOPS[n - 1]);
            left -= n;
        }
    }

    /// Places the constants, resolves every label and returns the bytes: position independent, to be installed at a multiple of
    /// [`Assembler::ALIGN`].
    pub fn finish(mut self) -> Vec<u8> {
        let mut constants = std::mem::take(&mut self.constants);
        // The largest first, so that natural alignment costs no padding between powers of two.
        constants.sort_by_key(|(bytes, _)| std::cmp::Reverse(bytes.len()));
        for (bytes, label) in constants {
            let align = bytes.len().next_power_of_two().min(Self::ALIGN);
            while !self.code.len().is_multiple_of(align) {
                self.code.push(0xcc);
            }
            self.bind(label);
            self.code.extend_from_slice(&bytes);
        }
        for fixup in &self.fixups {
            let target = self.labels[fixup.label.0 as usize];
            let target = target.unwrap_or_else(|| panic!("label {} was never bound", fixup.label.0));
            let rel = target as i64 + i64::from(fixup.addend) - (fixup.at + fixup.to_end) as i64;
            let rel = i32::try_from(rel).expect("one piece of code stays far below 2 GiB");
            self.code[fixup.at..fixup.at + 4].copy_from_slice(&rel.to_le_bytes());
        }
        self.code
    }

    pub(super) fn byte(&mut self, b: u8) {
        self.code.push(b);
    }

    pub(super) fn bytes(&mut self, b: &[u8]) {
        self.code.extend_from_slice(b);
    }

    pub(super) fn imm32(&mut self, v: i32) {
        self.bytes(&v.to_le_bytes());
    }

    /// A rel32 field that ends its instruction.
    pub(super) fn rel32(&mut self, label: Label) {
        self.fixups.push(Fixup { at: self.code.len(), to_end: 4, label, addend: 0 });
        self.imm32(0);
    }

    /// ModRM for two registers; only the low three bits count.
    pub(super) fn modrm_reg(&mut self, reg: u8, rm: u8) {
        self.byte(0xc0 | (reg & 7) << 3 | (rm & 7));
    }

    /// ModRM, SIB and displacement of a memory operand. `disp_unit` scales 8-bit displacements (EVEX's disp8·N, else 1);
    /// `imm_bytes` of immediate follow the operand.
    pub(super) fn modrm_mem(&mut self, reg: u8, mem: &Mem, disp_unit: i32, imm_bytes: usize) {
        let reg = (reg & 7) << 3;
        let (index, scale) = match mem.index {
            Index::None => (None, 1),
            Index::Scaled(g, s) => {
                assert!(g != Gpr::RSP, "rsp cannot be an index");
                (Some(g.0), s)
            }
            Index::Vector(v, s) => (Some(v.0), s),
        };
        let scale = match scale {
            1 => 0,
            2 => 0x40,
            4 => 0x80,
            8 => 0xc0,
            other => panic!("scale {other} of an index"),
        };
        let base = match mem.base {
            Base::Label(label) => {
                assert!(index.is_none(), "a label takes no index");
                self.byte(reg | 5);
                let at = self.code.len();
                self.fixups.push(Fixup { at, to_end: 4 + imm_bytes, label, addend: mem.disp });
                return self.imm32(0);
            }
            Base::None => {
                self.byte(reg | 4);
                self.byte(scale | (index.unwrap_or(4) & 7) << 3 | 5);
                return self.imm32(mem.disp);
            }
            Base::Register(base) => base.0,
        };
        let short = mem.disp % disp_unit == 0 && i8::try_from(mem.disp / disp_unit).is_ok();
        let mode = match mem.disp {
            0 if base & 7 != 5 => 0x00,
            _ if short => 0x40,
            _ => 0x80,
        };
        if index.is_some() || base & 7 == 4 {
            self.byte(mode | reg | 4);
            self.byte(scale | (index.unwrap_or(4) & 7) << 3 | (base & 7));
        } else {
            self.byte(mode | reg | (base & 7));
        }
        match mode {
            0x40 => self.byte((mem.disp / disp_unit) as u8),
            0x80 => self.imm32(mem.disp),
            _ => {}
        }
    }
}
