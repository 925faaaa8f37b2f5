//! An emulator of the code of [`super::tiles`], for tests on machines without AMX: what was generated is decoded by an independent
//! decoder and executed, so that a whole product runs as it would.

use crate::asm::{Alu, Assembler, Gpr};
use half::bf16;
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

/// The code of all trampolines, by number, kept for the life of the process.
static CODE: Mutex<Vec<&'static [u8]>> = Mutex::new(Vec::new());
/// The number of the code is passed above the count of units.
const NUMBER_SHIFT: u32 = 40;

/// Code with the same arguments that emulates `code`.
pub(super) fn trampoline(code: Vec<u8>) -> Vec<u8> {
    let mut all = CODE.lock().unwrap_or_else(PoisonError::into_inner);
    let number = all.len() as i64 + 1;
    all.push(Vec::leak(code));
    let mut asm = Assembler::new();
    // Pieces without arguments are called with any: the count of units is what they do not need.
    asm.mov_imm(Gpr::RAX, (1 << NUMBER_SHIFT) - 1);
    asm.alu(Alu::And, Gpr::RCX, Gpr::RAX);
    asm.mov_imm(Gpr::RAX, number << NUMBER_SHIFT);
    asm.alu(Alu::Or, Gpr::RCX, Gpr::RAX);
    asm.mov_imm(Gpr::RAX, entry as *const () as i64);
    asm.jmp_reg(Gpr::RAX);
    asm.finish()
}

unsafe extern "C" fn entry(a: u64, b: u64, c: u64, units: u64, b_stride: u64, c_stride: u64) {
    let code = CODE.lock().unwrap_or_else(PoisonError::into_inner)[(units >> NUMBER_SHIFT) as usize - 1];
    let mut registers = [0xdead_beef_dead_beefu64; 16];
    for (register, value) in
        [Gpr::RDI, Gpr::RSI, Gpr::RDX, Gpr::RCX, Gpr::R8, Gpr::R9].into_iter().zip([a, b, c, units, b_stride, c_stride])
    {
        registers[usize::from(register.0)] = value;
    }
    registers[usize::from(Gpr::RCX.0)] &= (1 << NUMBER_SHIFT) - 1;
    TILES.with_borrow_mut(|tiles| Machine { registers, zero: false, tiles }.run(code));
}

thread_local! {
    static TILES: RefCell<Tiles> = const { RefCell::new(Tiles { shapes: None, rows: [[[0; 64]; 16]; 8] }) };
}

/// The tile registers of a thread.
struct Tiles {
    /// Rows and bytes of a row of each, where they are configured.
    shapes: Option<[(usize, usize); 8]>,
    rows: [[[u8; 64]; 16]; 8],
}

struct Machine<'a> {
    registers: [u64; 16],
    zero: bool,
    tiles: &'a mut Tiles,
}

fn gpr(register: Register) -> usize {
    register as usize - Register::RAX as usize
}

fn tmm(register: Register) -> usize {
    register as usize - Register::TMM0 as usize
}

impl Machine<'_> {
    fn run(&mut self, code: &[u8]) {
        let base = code.as_ptr() as u64;
        let mut decoder = Decoder::with_ip(64, code, base, DecoderOptions::NONE);
        loop {
            let i = decoder.decode();
            match i.mnemonic() {
                Mnemonic::Ret => return,
                Mnemonic::Je | Mnemonic::Jne => {
                    if self.zero == (i.mnemonic() == Mnemonic::Je) {
                        let to = i.near_branch64();
                        decoder.set_position((to - base) as usize).expect("a jump inside the code");
                        decoder.set_ip(to);
                    }
                }
                _ => self.step(&i),
            }
        }
    }

    fn value(&self, i: &Instruction, operand: u32) -> u64 {
        match i.op_kind(operand) {
            OpKind::Register => self.registers[gpr(i.op_register(operand).full_register())],
            _ => i.immediate(operand),
        }
    }

    fn address(&self, i: &Instruction) -> u64 {
        let register = |r: Register| if r == Register::None { 0 } else { self.registers[gpr(r)] };
        if i.is_ip_rel_memory_operand() {
            return i.ip_rel_memory_address();
        }
        let index = register(i.memory_index()).wrapping_mul(u64::from(i.memory_index_scale()));
        register(i.memory_base()).wrapping_add(index).wrapping_add(i.memory_displacement64())
    }

    fn shape(&self, tile: usize) -> (usize, usize) {
        let shape = self.tiles.shapes.expect("tiles are configured")[tile];
        assert!(shape.0 > 0, "tile {tile} has no rows");
        shape
    }

    fn step(&mut self, i: &Instruction) {
        match i.mnemonic() {
            Mnemonic::Nop | Mnemonic::Prefetcht0 => {}
            Mnemonic::Mov => self.registers[gpr(i.op0_register().full_register())] = self.value(i, 1),
            Mnemonic::Add => {
                let to = gpr(i.op0_register());
                self.registers[to] = self.registers[to].wrapping_add(self.value(i, 1));
                self.zero = self.registers[to] == 0;
            }
            Mnemonic::Shl => self.registers[gpr(i.op0_register())] <<= self.value(i, 1),
            Mnemonic::Dec => {
                let to = gpr(i.op0_register());
                self.registers[to] = self.registers[to].wrapping_sub(1);
                self.zero = self.registers[to] == 0;
            }
            Mnemonic::Test => self.zero = self.value(i, 0) & self.value(i, 1) == 0,
            Mnemonic::Ldtilecfg => {
                // SAFETY: the constant of the code.
                let bytes = unsafe { &*(self.address(i) as *const [u8; 64]) };
                assert!(bytes[0] == 1 && bytes[1..16].iter().chain(&bytes[32..48]).all(|b| *b == 0));
                self.tiles.shapes = Some(std::array::from_fn(|tile| {
                    let width = u16::from_le_bytes([bytes[16 + 2 * tile], bytes[17 + 2 * tile]]);
                    let shape = (usize::from(bytes[48 + tile]), usize::from(width));
                    assert!(shape.0 <= 16 && shape.1 <= 64 && (shape.0 == 0) == (shape.1 == 0), "{shape:?}");
                    shape
                }));
                self.tiles.rows = [[[0; 64]; 16]; 8];
            }
            Mnemonic::Tilerelease => self.tiles.shapes = None,
            Mnemonic::Tilezero => {
                let tile = tmm(i.op0_register());
                self.shape(tile);
                self.tiles.rows[tile] = [[0; 64]; 16];
            }
            Mnemonic::Tileloadd => {
                let tile = tmm(i.op0_register());
                let (rows, width) = self.shape(tile);
                self.tiles.rows[tile] = [[0; 64]; 16];
                for row in 0..rows {
                    // SAFETY: what the code reads.
                    unsafe {
                        std::ptr::copy_nonoverlapping(self.row(i, row), self.tiles.rows[tile][row].as_mut_ptr(), width)
                    };
                }
            }
            Mnemonic::Tilestored => {
                let tile = tmm(i.op1_register());
                let (rows, width) = self.shape(tile);
                for row in 0..rows {
                    // SAFETY: what the code writes.
                    unsafe {
                        std::ptr::copy_nonoverlapping(self.tiles.rows[tile][row].as_ptr(), self.row(i, row), width)
                    };
                }
            }
            Mnemonic::Tdpbf16ps => self.multiply(i, |sum, a, b| {
                let pair = |w: u32| [w as u16, (w >> 16) as u16].map(|h| bf16::from_bits(h).to_f32());
                let (a, b) = (pair(a), pair(b));
                (f32::from_bits(sum) + a[0] * b[0] + a[1] * b[1]).to_bits()
            }),
            Mnemonic::Tdpbssd => self.multiply(i, |sum, a, b| {
                let products = a
                    .to_le_bytes()
                    .into_iter()
                    .zip(b.to_le_bytes())
                    .map(|(a, b)| i32::from(a as i8) * i32::from(b as i8));
                sum.wrapping_add(products.sum::<i32>() as u32)
            }),
            other => panic!("{other:?} is not emulated"),
        }
    }

    /// The address of a row of a tile in memory: the index is the distance of rows.
    fn row(&self, i: &Instruction, row: usize) -> *mut u8 {
        assert!(i.memory_index_scale() == 1 && i.memory_index() != Register::None);
        let stride = self.registers[gpr(i.memory_index())];
        let first = self.registers[gpr(i.memory_base())].wrapping_add(i.memory_displacement64());
        first.wrapping_add(stride.wrapping_mul(row as u64)) as *mut u8
    }

    fn multiply(&mut self, i: &Instruction, add: impl Fn(u32, u32, u32) -> u32) {
        let [to, a, b] = [0, 1, 2].map(|n| tmm(i.op_register(n)));
        let ((rows, width), (a_rows, depth), (b_rows, b_width)) = (self.shape(to), self.shape(a), self.shape(b));
        assert!(to != a && to != b && a != b && rows == a_rows && width == b_width && b_rows * 4 == depth, "{i:?}");
        let word = |tile: &[[u8; 64]; 16], row: usize, w: usize| {
            u32::from_le_bytes(tile[row][4 * w..][..4].try_into().expect("four bytes"))
        };
        for row in 0..rows {
            for column in 0..width / 4 {
                let mut sum = word(&self.tiles.rows[to], row, column);
                for k in 0..depth / 4 {
                    sum = add(sum, word(&self.tiles.rows[a], row, k), word(&self.tiles.rows[b], k, column));
                }
                self.tiles.rows[to][row][4 * column..][..4].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}
