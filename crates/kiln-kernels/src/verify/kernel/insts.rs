//! Instructions: dtypes, buffers, temporaries, and the order of loads and stores.

use super::scope::Scope;
use super::{KernelViolation, Location, Part, Rule};
use crate::kernel::{Access, Inst, InstKind, Kernel, Place, Reduction, ValueId};
use kiln_ir::{BinaryOp, DType, Symbol, UnaryOp};

/// Checks the instructions of one part.
pub(super) struct Checker<'a, 'k> {
    kernel: &'k Kernel,
    scope: &'a mut Scope<'k>,
    /// Buffers that something is stored to.
    written: &'a mut [bool],
    part: Part,
    /// Types of the temporaries, and which are written so far; absent outside of rows.
    pub temps: Option<(&'a [DType], &'a mut [bool])>,
    /// The number of accumulators, none outside of an epilogue, and their type.
    pub accumulators: (usize, DType),
    /// The variable that counts elements of quantised blocks, where those may be loaded.
    pub block: Option<Symbol>,
    stored: bool,
}

pub(super) fn same(what: &'static str, expected: DType, found: DType) -> Result<(), Rule> {
    if expected == found { Ok(()) } else { Err(Rule::DType { what, expected, found }) }
}

/// The buffer's type, if it is there and declared for this access.
pub(super) fn buffer(kernel: &Kernel, buffer: usize, written: bool) -> Result<DType, Rule> {
    let unknown = Rule::UnknownBuffer { buffer, buffers: kernel.buffers.len() };
    let decl = kernel.buffers.get(buffer).ok_or(unknown)?;
    let forbidden = if written { Access::Read } else { Access::Write };
    if decl.access == forbidden {
        return Err(Rule::Access { buffer, access: decl.access, written });
    }
    Ok(decl.dtype)
}

/// Checks a reduction's operand; its result is defined when the stage ends.
pub(super) fn reduction(scope: &mut Scope<'_>, reduction: &Reduction, is_row: bool) -> Result<(), Rule> {
    if !is_row {
        return Err(Rule::Misplaced { what: "a reduction outside of a row" });
    }
    same("the combined value", reduction.dtype, scope.value(reduction.value)?)
}

impl<'a, 'k> Checker<'a, 'k> {
    pub fn new(kernel: &'k Kernel, scope: &'a mut Scope<'k>, written: &'a mut [bool], part: Part) -> Checker<'a, 'k> {
        Checker { kernel, scope, written, part, temps: None, accumulators: (0, DType::F32), block: None, stored: false }
    }

    pub fn run(&mut self, insts: &[Inst]) -> Result<(), KernelViolation> {
        for (number, inst) in insts.iter().enumerate() {
            let part = self.part;
            let at = || Location::of(part, number, inst);
            self.inst(inst).map_err(|rule| KernelViolation { at: at(), rule })?;
        }
        Ok(())
    }

    fn expect(&self, what: &'static str, expected: DType, value: ValueId) -> Result<(), Rule> {
        same(what, expected, self.scope.value(value)?)
    }

    fn guard(&self, guard: &Option<ValueId>) -> Result<(), Rule> {
        guard.map_or(Ok(()), |guard| self.expect("the guard", DType::Bool, guard))
    }

    fn place(&self, place: &Place) -> Result<(), Rule> {
        self.scope.dim(&place.offset)?;
        for (value, stride) in &place.indirect {
            self.expect("an index", DType::I64, *value)?;
            self.scope.dim(stride)?;
        }
        Ok(())
    }

    fn temp(&self, temp: usize) -> Result<DType, Rule> {
        let (temps, _) = self.temps.as_ref().ok_or(Rule::Misplaced { what: "a temporary outside of a row" })?;
        temps.get(temp).copied().ok_or(Rule::UnknownTemp { temp, temps: temps.len() })
    }

    fn inst(&mut self, inst: &Inst) -> Result<(), Rule> {
        let found = match &inst.kind {
            InstKind::Store { place, value, guard } => {
                if matches!(self.part, Part::Lhs | Part::Rhs) {
                    return Err(Rule::Misplaced { what: "a store in a prologue" });
                }
                let dtype = buffer(self.kernel, place.buffer, true)?;
                self.place(place)?;
                self.guard(guard)?;
                self.expect("the stored value", dtype.compute_type(), *value)?;
                self.written[place.buffer] = true;
                self.stored = true;
                return Ok(());
            }
            InstKind::StoreTemp(temp, value) => {
                if matches!(self.part, Part::Lhs | Part::Rhs) {
                    return Err(Rule::Misplaced { what: "a store in a prologue" });
                }
                self.expect("the stored value", self.temp(*temp)?, *value)?;
                if let Some((_, written)) = &mut self.temps {
                    written[*temp] = true;
                }
                return Ok(());
            }
            InstKind::Load { place, guard } => {
                let dtype = buffer(self.kernel, place.buffer, false)?;
                if self.stored {
                    return Err(Rule::LoadAfterStore { buffer: place.buffer });
                }
                self.place(place)?;
                self.guard(guard)?;
                dtype.compute_type()
            }
            InstKind::LoadBlock { place, element, .. } => {
                if self.block.is_none() || element.as_symbol() != self.block || !place.indirect.is_empty() {
                    return Err(Rule::Misplaced { what: "an element of quantised blocks" });
                }
                self.place(place)?;
                same("the buffer of blocks", DType::U8, buffer(self.kernel, place.buffer, false)?)?;
                DType::F32
            }
            InstKind::LoadTemp(temp) => {
                let dtype = self.temp(*temp)?;
                if !self.temps.as_ref().is_some_and(|(_, written)| written[*temp]) {
                    return Err(Rule::UnwrittenTemp { temp: *temp });
                }
                dtype
            }
            kind => self.compute(kind, inst.dtype)?,
        };
        same("the result", found, inst.dtype)?;
        self.scope.define(inst.id, inst.dtype)
    }

    /// The type of an instruction that touches no memory.
    fn compute(&self, kind: &InstKind, dtype: DType) -> Result<DType, Rule> {
        match kind {
            InstKind::Const(value) => Ok(value.dtype()),
            InstKind::Index(dim) => {
                self.scope.dim(dim)?;
                if dtype == DType::I32 { Ok(dtype) } else { Ok(DType::I64) }
            }
            InstKind::InRange { expr, low, high } => {
                [expr, low, high].into_iter().try_for_each(|dim| self.scope.dim(dim))?;
                Ok(DType::Bool)
            }
            InstKind::Unary(op, x) => unary(*op, self.scope.value(*x)?),
            InstKind::Binary(op, x, y) => {
                let dtype = self.scope.value(*x)?;
                self.expect("the second operand", dtype, *y)?;
                binary(*op, dtype)
            }
            InstKind::Compare(_, x, y) => {
                self.expect("the second operand", self.scope.value(*x)?, *y)?;
                Ok(DType::Bool)
            }
            InstKind::Select(condition, x, y) => {
                self.expect("the condition", DType::Bool, *condition)?;
                let dtype = self.scope.value(*x)?;
                self.expect("the third operand", dtype, *y)?;
                Ok(dtype)
            }
            InstKind::Cast(x) => self.scope.value(*x).map(|_| dtype),
            InstKind::Bitcast(x) => match (self.scope.value(*x)?, dtype) {
                (DType::F32 | DType::I32, DType::F32 | DType::I32) => Ok(dtype),
                (DType::F64 | DType::I64, DType::F64 | DType::I64) => Ok(dtype),
                (from, _) => Err(Rule::DType { what: "the operand of a bitcast", expected: dtype, found: from }),
            },
            InstKind::Round(x, to) => {
                self.expect("the rounded value", to.compute_type(), *x)?;
                let short = matches!(to.compute_type(), DType::F32 | DType::I32) && to.compute_type() != *to;
                if short { Ok(to.compute_type()) } else { Err(Rule::NoSuchOp { op: "round", dtype: *to }) }
            }
            InstKind::CheckIndex { value, size } => {
                self.expect("the index", DType::I64, *value)?;
                self.scope.dim(size)?;
                Ok(DType::I64)
            }
            InstKind::Random { seed, position, .. } => {
                self.expect("the seed", DType::I64, *seed)?;
                self.scope.dim(position)?;
                Ok(DType::I32)
            }
            InstKind::Accumulator(number) if *number < self.accumulators.0 => Ok(self.accumulators.1),
            InstKind::Accumulator(_) => Err(Rule::Misplaced { what: "an accumulator" }),
            InstKind::Load { .. }
            | InstKind::LoadBlock { .. }
            | InstKind::Store { .. }
            | InstKind::LoadTemp(_)
            | InstKind::StoreTemp(..) => Err(Rule::Misplaced { what: "an access to memory" }),
        }
    }
}

/// The result's type.
fn unary(op: UnaryOp, dtype: DType) -> Result<DType, Rule> {
    let valid = match op {
        UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign => dtype != DType::Bool,
        UnaryOp::Not => !dtype.is_float(),
        _ => dtype.is_float(),
    };
    match (valid, op) {
        (false, _) => Err(Rule::NoSuchOp { op: op.name(), dtype }),
        (true, UnaryOp::IsNan) => Ok(DType::Bool),
        (true, _) => Ok(dtype),
    }
}

/// The result's type.
fn binary(op: BinaryOp, dtype: DType) -> Result<DType, Rule> {
    let valid = match op {
        BinaryOp::Add | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min => true,
        BinaryOp::Sub | BinaryOp::Div | BinaryOp::Rem => dtype != DType::Bool,
        BinaryOp::Pow | BinaryOp::Atan2 => dtype.is_float(),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => !dtype.is_float(),
        BinaryOp::Shl | BinaryOp::Shr | BinaryOp::Gcd => !dtype.is_float() && dtype != DType::Bool,
    };
    if valid { Ok(dtype) } else { Err(Rule::NoSuchOp { op: op.name(), dtype }) }
}
