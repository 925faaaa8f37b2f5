//! Checker of allocations, by symbolic execution of the allocated code.
//!
//! Each register and each stack slot holds a value or is unknown. An instruction must find each of its operands in its
//! allocated location; its result replaces the contents of its own. A call clobbers every caller-saved register, but for those
//! that are saved around it. Where paths meet, a location on which they disagree is unknown; loops are executed to a fixed
//! point.
//!
//! Only the outcome is checked: locations, slots, hoisted constants, and the registers that calls save. Intervals, weights and
//! the scan are not.

use super::{Allocation, Class, Location, Registers};
use crate::vir::*;

/// A rule that an allocation breaks, and where. Always a fault of the allocator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("registers, instruction {at} ({inst}): {rule}")]
pub struct AllocationViolation {
    /// The number of the instruction.
    pub at: usize,
    /// Its text.
    pub inst: String,
    /// The rule.
    pub rule: AllocationRule,
}

/// A rule of allocations that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocationRule {
    /// An operand is not where the allocation says.
    #[error("{value:?} is read from {location:?}, which holds {found:?}")]
    Stale {
        /// The operand.
        value: V,
        /// The location it is read from.
        location: Location,
        /// The value there, if known.
        found: Option<V>,
    },
    /// A value that is used has no location, or an invalid one.
    #[error("{value:?} cannot be in {location:?}")]
    Place {
        /// The value.
        value: V,
        /// Its location.
        location: Location,
    },
    /// A register of the caller is written that the prologue does not save.
    #[error("register {register} of {value:?} is the caller's and is not saved")]
    NotSaved {
        /// The value.
        value: V,
        /// Its register.
        register: u8,
    },
    /// The result is in the register of an operand that is read after it is written.
    #[error("{value:?} is written to {location:?} before {operand:?} is read from there")]
    EarlyClobber {
        /// The result.
        value: V,
        /// The operand.
        operand: V,
        /// The location of both.
        location: Location,
    },
}

/// Slots of scalars, and of vectors and masks, after the registers of the three classes.
const INT_SLOTS: usize = 3;
const VECTOR_SLOTS: usize = 4;

/// The contents of each location: the registers of each class, then the slots.
#[derive(Clone)]
struct State([Vec<Option<V>>; 5]);

impl State {
    /// Forgets locations that `other` does not agree on; true if that changes anything.
    fn meet(&mut self, other: &State) -> bool {
        let mut changed = false;
        for (own, other) in self.0.iter_mut().flatten().zip(other.0.iter().flatten()) {
            if own.is_some() && own != other {
                *own = None;
                changed = true;
            }
        }
        changed
    }
}

/// Checks an allocation. `early_clobber` is true of instructions that write their result before they have read every operand.
pub fn check(
    f: &Function,
    allocation: &Allocation,
    registers: Registers,
    early_clobber: &dyn Fn(&Inst) -> bool,
) -> Result<(), AllocationViolation> {
    let places = [32, 32, 32, allocation.int_slots as usize, allocation.vector_slots as usize];
    let mut constants = vec![false; f.types.len()];
    for inst in f.insts.iter().filter(|inst| matches!(inst.op, Op::Number(_) | Op::Const(_))) {
        constants[inst.dst.index()] = true;
    }
    let checker = Checker { f, allocation, registers, early_clobber, constants };
    let mut state = State(places.map(|count| vec![None; count]));
    checker.load_hoisted(&mut state);
    checker.run(0, f.insts.len(), &mut state)
}

struct Checker<'a> {
    f: &'a Function,
    allocation: &'a Allocation,
    registers: Registers,
    early_clobber: &'a dyn Fn(&Inst) -> bool,
    /// Values that are numbers or constants.
    constants: Vec<bool>,
}

impl Checker<'_> {
    fn class(&self, v: V) -> Class {
        self.registers.class(self.f.types[v.index()])
    }

    fn load_hoisted(&self, state: &mut State) {
        for &(v, register) in &self.allocation.hoisted {
            if let Some(place) = state.0[Class::Vector as usize].get_mut(usize::from(register)) {
                *place = Some(v);
            }
        }
    }

    /// Executes the instructions `from..to`, in which loops and parts are balanced.
    fn run(&self, from: usize, to: usize, state: &mut State) -> Result<(), AllocationViolation> {
        let mut at = from;
        while at < to {
            let inst = &self.f.insts[at];
            let located = |at: usize| move |rule| AllocationViolation { at, inst: self.f.insts[at].to_string(), rule };
            match inst.op {
                Op::Loop { .. } => {
                    let end = self.end_of(at);
                    self.uses(inst, state).map_err(located(at))?;
                    // The state at the top of the loop: what the entry and the back edge agree on.
                    let mut top = state.clone();
                    let bottom = loop {
                        let mut iteration = top.clone();
                        self.run(at + 1, end, &mut iteration)?;
                        // The counter is incremented in its location, and compared to the bound again.
                        self.uses(inst, &iteration).map_err(located(end))?;
                        if !top.meet(&iteration) {
                            break iteration;
                        }
                    };
                    state.meet(&bottom);
                    at = end;
                }
                Op::If => {
                    let end = self.end_of(at);
                    self.uses(inst, state).map_err(located(at))?;
                    let mut taken = state.clone();
                    self.run(at + 1, end, &mut taken)?;
                    state.meet(&taken);
                    at = end;
                }
                _ => self.step(at, inst, state).map_err(located(at))?,
            }
            at += 1;
        }
        Ok(())
    }

    /// The `End` of a loop or part; that of an open one is the end of the code.
    fn end_of(&self, open: usize) -> usize {
        let mut depth = 0;
        for (at, inst) in self.f.insts.iter().enumerate().skip(open) {
            match inst.op {
                Op::Loop { .. } | Op::If => depth += 1,
                Op::End => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        self.f.insts.len()
    }

    fn step(&self, at: usize, inst: &Inst, state: &mut State) -> Result<(), AllocationRule> {
        self.uses(inst, state)?;
        if inst.dst.is_some() && (self.early_clobber)(inst) {
            self.disjoint(inst)?;
        }
        if matches!(inst.op, Op::Call(_) | Op::Transpose(_)) {
            self.call(at, state);
            // A call's mask is read again for the lanes that it takes.
            if let Op::Call(_) = inst.op {
                self.find(inst.args[2], state)?;
            }
        }
        if inst.dst.is_some() && !matches!(inst.op, Op::Number(_) | Op::Const(_)) {
            self.define(inst.dst, state)?;
        }
        Ok(())
    }

    fn uses(&self, inst: &Inst, state: &State) -> Result<(), AllocationRule> {
        inst.args.into_iter().try_for_each(|v| self.find(v, state))
    }

    /// Checks that a value is in the location it is read from.
    fn find(&self, v: V, state: &State) -> Result<(), AllocationRule> {
        if !v.is_some() {
            return Ok(());
        }
        let location = self.allocation.locations[v.index()];
        let found = match location {
            Location::Const if self.constants[v.index()] => return Ok(()),
            Location::None | Location::Const => return Err(AllocationRule::Place { value: v, location }),
            Location::Reg(_) | Location::Slot(_) => {
                let (file, number) = self.place(v, location)?;
                state.0[file][number]
            }
        };
        if found == Some(v) { Ok(()) } else { Err(AllocationRule::Stale { value: v, location, found }) }
    }

    fn define(&self, v: V, state: &mut State) -> Result<(), AllocationRule> {
        let location = self.allocation.locations[v.index()];
        match location {
            // The result is not read.
            Location::None => return Ok(()),
            Location::Reg(register) => {
                let scalar = self.class(v) == Class::Int;
                if scalar && u64::from(self.allocation.used_int) >> register & 1 == 0 {
                    return Err(AllocationRule::NotSaved { value: v, register });
                }
            }
            Location::Slot(_) | Location::Const => {}
        }
        let (file, number) = self.place(v, location)?;
        state.0[file][number] = Some(v);
        Ok(())
    }

    /// The class and index of a location that the value may have.
    fn place(&self, value: V, location: Location) -> Result<(usize, usize), AllocationRule> {
        let class = self.class(value);
        let (slots, count) = match class {
            Class::Int => (INT_SLOTS, self.allocation.int_slots),
            Class::Vector | Class::Mask => (VECTOR_SLOTS, self.allocation.vector_slots),
        };
        match location {
            Location::Reg(register) if register < 32 && u64::from(self.registers.all(class)) >> register & 1 == 1 => {
                Ok((class as usize, register.into()))
            }
            Location::Slot(slot) if slot < count => Ok((slots, slot as usize)),
            _ => Err(AllocationRule::Place { value, location }),
        }
    }

    /// Checks that an early-clobber instruction does not overwrite another operand.
    fn disjoint(&self, inst: &Inst) -> Result<(), AllocationRule> {
        let location = self.allocation.locations[inst.dst.index()];
        let shared = |v: &V| {
            let other = *v != inst.dst && self.class(*v) == self.class(inst.dst);
            other && matches!(location, Location::Reg(_)) && self.allocation.locations[v.index()] == location
        };
        match inst.args.into_iter().filter(|v| v.is_some()).find(shared) {
            Some(operand) => Err(AllocationRule::EarlyClobber { value: inst.dst, operand, location }),
            None => Ok(()),
        }
    }

    /// A call preserves callee-saved registers and those saved around it, and reloads constants.
    fn call(&self, at: usize, state: &mut State) {
        let before = state.clone();
        for (class, file) in state.0[..INT_SLOTS].iter_mut().enumerate() {
            for (register, held) in file.iter_mut().enumerate() {
                let kept = class == Class::Int as usize && self.registers.callee_saved >> register & 1 == 1;
                if !kept {
                    *held = None;
                }
            }
        }
        for (register, class) in self.allocation.saved_across(at, self.f, self.registers) {
            let (class, register) = (class as usize, usize::from(register));
            state.0[class][register] = before.0[class][register];
        }
        self.load_hoisted(state);
    }
}
