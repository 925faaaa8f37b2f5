//! Register allocation for vector IR: one linear scan over the flat code.
//!
//! A value's interval runs from its definition to its last use, and to the end of every loop that it is used in but not defined
//! in. Each value has one location all its life: a register or a stack slot. When registers run out, the value with the fewest
//! uses (weighted by eight per loop depth) for its length is spilled. Constants are not allocated: they are memory operands,
//! and the most used ones get the registers that are left.

mod checker;

pub use checker::{AllocationRule, AllocationViolation, check};

use crate::vir::*;

/// The location of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// Nowhere: never defined or never needed.
    None,
    /// A register of its class.
    Reg(u8),
    /// A stack slot of its class.
    Slot(u32),
    /// A constant in memory, or an immediate.
    Const,
}

/// A register class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// General-purpose.
    Int,
    /// Vectors.
    Vector,
    /// Mask registers; without any, masks are vectors.
    Mask,
}

/// The registers an allocation may use, as bit sets.
#[derive(Clone, Copy, Debug)]
pub struct Registers {
    /// General-purpose.
    pub int: u32,
    /// Vectors.
    pub vector: u32,
    /// Masks; 0 where masks are vectors.
    pub mask: u32,
    /// General-purpose registers that are callee-saved.
    pub callee_saved: u32,
}

impl Registers {
    /// The class of a type's values.
    pub fn class(&self, ty: Ty) -> Class {
        match ty {
            Ty::Int => Class::Int,
            Ty::Mask if self.mask != 0 => Class::Mask,
            _ => Class::Vector,
        }
    }

    fn all(&self, class: Class) -> u32 {
        match class {
            Class::Int => self.int,
            Class::Vector => self.vector,
            Class::Mask => self.mask,
        }
    }
}

/// The result of an allocation.
#[derive(Debug)]
pub struct Allocation {
    /// Location of each value.
    pub locations: Vec<Location>,
    /// Number of slots for vectors and masks.
    pub vector_slots: u32,
    /// Number of slots for scalars.
    pub int_slots: u32,
    /// General-purpose registers in use.
    pub used_int: u32,
    /// Constants that are in a register throughout, and which.
    pub hoisted: Vec<(V, u8)>,
    /// First and last position of each value: instruction `i` reads at `2·i` and writes at `2·i + 1`.
    pub span: Vec<(u32, u32)>,
}

impl Allocation {
    /// The registers that are saved around the call of instruction `at`: those that are live across it, but for constants,
    /// which are reloaded, and callee-saved registers.
    pub fn saved_across(&self, at: usize, f: &Function, registers: Registers) -> Vec<(u8, Class)> {
        let (read, write) = (2 * at as u32, 2 * at as u32 + 1);
        let mut saved = Vec::new();
        for (v, &(start, end)) in self.span.iter().enumerate() {
            if let Location::Reg(r) = self.locations[v]
                && start < read
                && end > write
                && !self.hoisted.iter().any(|(constant, _)| constant.index() == v)
            {
                let class = registers.class(f.types[v]);
                if class != Class::Int || registers.callee_saved >> r & 1 == 0 {
                    saved.push((r, class));
                }
            }
        }
        saved
    }
}

/// Facts about a value before the scan.
#[derive(Clone, Copy)]
struct LiveInterval {
    start: u32,
    end: u32,
    weight: u32,
    /// Loops open where it is first assigned.
    depth: u16,
}

const UNBORN: u32 = u32::MAX;

/// Assigns registers. `early_clobber` is true of instructions that write their result before they have read every operand.
pub fn allocate(f: &Function, registers: Registers, early_clobber: &dyn Fn(&Inst) -> bool) -> Allocation {
    let life = lives(f, early_clobber);
    let mut scan = Scan {
        registers,
        free: [registers.int, registers.vector, registers.mask],
        owner: [[V::NONE; 32]; 3],
        life: &life,
        locations: vec![Location::None; f.types.len()],
        slots: [0; 3],
        touched: [0; 3],
    };
    let mut constants: Vec<(u32, V)> = Vec::new();
    for (at, inst) in f.insts.iter().enumerate() {
        let dst = inst.dst;
        if !dst.is_some() {
            continue;
        }
        if matches!(inst.op, Op::Number(_) | Op::Const(_)) {
            scan.locations[dst.index()] = Location::Const;
            if matches!(inst.op, Op::Const(_)) && registers.class(inst.ty) == Class::Vector {
                constants.push((life[dst.index()].weight, dst));
            }
            continue;
        }
        if life[dst.index()].start != 2 * at as u32 + 1 {
            continue; // a variable assigned again
        }
        let class = registers.class(f.types[dst.index()]);
        scan.expire(class, 2 * at as u32 + 1);
        scan.place(class, dst, inst);
    }
    let mut hoisted = Vec::new();
    constants.sort_unstable_by_key(|&(weight, v)| (std::cmp::Reverse(weight), v));
    let mut left = registers.vector & !scan.touched[Class::Vector as usize];
    for (weight, v) in constants {
        if left == 0 || weight < 8 {
            break; // used outside loops only: nothing to gain
        }
        let reg = left.trailing_zeros() as u8;
        left &= left - 1;
        scan.locations[v.index()] = Location::Reg(reg);
        hoisted.push((v, reg));
    }
    Allocation {
        vector_slots: scan.slots[1] + scan.slots[2],
        int_slots: scan.slots[0],
        used_int: scan.touched[0],
        hoisted,
        span: life.iter().map(|l| (l.start, l.end)).collect(),
        locations: scan.locations,
    }
}

/// Intervals and weights.
fn lives(f: &Function, early_clobber: &dyn Fn(&Inst) -> bool) -> Vec<LiveInterval> {
    let mut ends = vec![0u32; f.insts.len()];
    let mut open = Vec::new();
    for (at, inst) in f.insts.iter().enumerate() {
        match inst.op {
            Op::Loop { .. } | Op::If => open.push(at),
            Op::End => ends[open.pop().expect("brackets match")] = at as u32,
            _ => {}
        }
    }
    let mut life = vec![LiveInterval { start: UNBORN, end: 0, weight: 0, depth: 0 }; f.types.len()];
    // Ends of the open loops, and what they close.
    let mut loops: Vec<u32> = Vec::new();
    let mut closers: Vec<Option<usize>> = Vec::new();
    for (at, inst) in f.insts.iter().enumerate() {
        let at32 = at as u32;
        let mut touch = |v: V, pos: u32, loops: &[u32]| {
            let l = &mut life[v.index()];
            if l.start == UNBORN {
                l.start = pos;
                l.depth = loops.len() as u16;
            }
            let pos = loops.get(l.depth as usize).map_or(pos, |&end| 2 * end + 1);
            l.end = l.end.max(pos);
            l.weight = l.weight.saturating_add(1 << (3 * loops.len().min(6)));
        };
        match inst.op {
            Op::Loop { .. } => {
                // The counter and the bound are read again at the end of each iteration.
                loops.push(ends[at]);
                closers.push(Some(at));
            }
            Op::If => closers.push(None),
            Op::End => {
                if let Some(open) = closers.pop().expect("brackets match") {
                    for v in f.insts[open].args.into_iter().filter(|v| v.is_some()) {
                        touch(v, 2 * at32, &loops);
                    }
                    loops.pop();
                }
                continue;
            }
            _ => {}
        }
        let late = 2 * at32 + if early_clobber(inst) { 2 } else { 0 };
        for v in inst.args.into_iter().filter(|v| v.is_some()) {
            touch(v, late, &loops);
        }
        if inst.dst.is_some() {
            touch(inst.dst, 2 * at32 + 1, &loops);
        }
    }
    life
}

struct Scan<'a> {
    registers: Registers,
    free: [u32; 3],
    owner: [[V; 32]; 3],
    life: &'a [LiveInterval],
    locations: Vec<Location>,
    slots: [u32; 3],
    touched: [u32; 3],
}

impl Scan<'_> {
    /// Frees the registers of values that end before `pos`.
    fn expire(&mut self, class: Class, pos: u32) {
        let c = class as usize;
        let mut busy = self.registers.all(class) & !self.free[c];
        while busy != 0 {
            let reg = busy.trailing_zeros() as usize;
            busy &= busy - 1;
            if self.life[self.owner[c][reg].index()].end < pos {
                self.free[c] |= 1 << reg;
            }
        }
    }

    fn place(&mut self, class: Class, v: V, inst: &Inst) {
        let c = class as usize;
        if self.free[c] != 0 {
            // The register of an operand that has just ended saves a move; the addend's first.
            let hint = inst.args.iter().rev().find_map(|a| match a.is_some().then(|| self.locations[a.index()]) {
                Some(Location::Reg(r)) if self.owner[c][r as usize] == *a && self.free[c] >> r & 1 == 1 => Some(r),
                _ => None,
            });
            let reg = hint.unwrap_or(self.free[c].trailing_zeros() as u8);
            return self.take(c, reg, v);
        }
        let cheap = |v: V| {
            let l = &self.life[v.index()];
            f64::from(l.weight) / f64::from(l.end - l.start + 1)
        };
        let mut busy = self.registers.all(class);
        let mut victim: Option<(f64, u8)> = None;
        while busy != 0 {
            let reg = busy.trailing_zeros() as u8;
            busy &= busy - 1;
            let cost = cheap(self.owner[c][reg as usize]);
            if victim.is_none_or(|(best, _)| cost < best) {
                victim = Some((cost, reg));
            }
        }
        match victim {
            Some((cost, reg)) if cost < cheap(v) => {
                let loser = self.owner[c][reg as usize];
                self.locations[loser.index()] = self.slot(c);
                self.take(c, reg, v);
            }
            _ => self.locations[v.index()] = self.slot(c),
        }
    }

    fn take(&mut self, class: usize, reg: u8, v: V) {
        self.free[class] &= !(1 << reg);
        self.touched[class] |= 1 << reg;
        self.owner[class][reg as usize] = v;
        self.locations[v.index()] = Location::Reg(reg);
    }

    /// A new slot; vectors and masks share one numbering.
    fn slot(&mut self, class: usize) -> Location {
        let shared = if class == Class::Int as usize { 0 } else { 1 };
        self.slots[shared] += 1;
        Location::Slot(self.slots[shared] - 1)
    }
}
