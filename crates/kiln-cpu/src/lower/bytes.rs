//! Logic of bools that lie side by side, four to a 32-bit lane: a mask has one a lane, and getting it from bytes and back takes longer
//! than the logic.

use super::*;
use kiln_ir::{BinaryOp, UnaryOp};
use kiln_kernels::kernel::Place;

/// A true byte in each place of a word.
const TRUE: u64 = 0x0101_0101;

impl Lowerer<'_> {
    /// Whether a body without a row is nothing but logic of bools that lie side by side along an axis.
    pub(super) fn bytes_along(&self, var: Symbol) -> bool {
        let beside = |place: &Place| {
            let is_bool = self.kernel.buffers.get(place.buffer).is_some_and(|buffer| buffer.dtype == DType::Bool);
            let steps = place.offset.linear_in(var).is_some_and(|(stride, _)| stride.is_one());
            is_bool && steps && place.indirect.is_empty()
        };
        let bools = |ids: &[ValueId]| {
            ids.iter().all(|id| self.dtypes.get(id.0 as usize).copied().flatten() == Some(DType::Bool))
        };
        let mut insts = self.body.stages.iter().flat_map(|stage| &stage.insts);
        self.body.row.is_empty()
            && insts.all(|inst| match &inst.kind {
                InstKind::Load { place, guard: None } => beside(place),
                InstKind::Store { place, guard: None, value } => beside(place) && bools(&[*value]),
                InstKind::Const(_) => inst.dtype == DType::Bool,
                InstKind::Unary(UnaryOp::Not, a) => bools(&[*a]),
                InstKind::Binary(_, a, b) | InstKind::Compare(_, a, b) => bools(&[*a, *b]),
                InstKind::Select(c, a, b) => bools(&[*c, *a, *b]),
                _ => false,
            })
    }

    /// The bodies of as many elements as fill a vector of words, while they are whole.
    pub(super) fn byte_loop(&mut self, axis: &Axis, counter: V, to: V) -> Result<(), LowerError> {
        let limit = self.b.add_lanes(to, -4);
        self.b.open_loop(counter, limit, true, Step::Vectors(4));
        let mut words = vec![V::NONE; self.values.len()];
        for inst in self.body.stages.iter().flat_map(|stage| &stage.insts) {
            let word = |id: ValueId| match words.get(id.0 as usize) {
                Some(&v) if v.is_some() => Ok(v),
                _ => Err(LowerError::Malformed("a value is used where it is not visible")),
            };
            let made = match &inst.kind {
                InstKind::Load { place, .. } => {
                    let (address, memory, read_only) = self.word_address(place, axis, counter)?;
                    let op = Op::Load(memory);
                    let v = if read_only {
                        self.b.pure(op, Ty::I32, Ty::I32, &[address])
                    } else {
                        self.b.fixed(op, Ty::I32, Ty::I32, &[address])
                    };
                    // Every byte but zero is true.
                    let ones = self.b.bits(Ty::I32, TRUE);
                    self.b.bin(BinOp::MinBytes, Ty::I32, v, ones)
                }
                InstKind::Store { place, value, .. } => {
                    let v = word(*value)?;
                    let (address, memory, _) = self.word_address(place, axis, counter)?;
                    self.b.effect(Op::Store(memory), Ty::I32, &[address, V::NONE, V::NONE, v]);
                    continue;
                }
                InstKind::Const(c) => self.b.bits(Ty::I32, if c.as_i64() != 0 { TRUE } else { 0 }),
                InstKind::Unary(_, a) => {
                    let a = word(*a)?;
                    self.opposite(a)
                }
                InstKind::Binary(op, a, b) => {
                    let (a, b) = (word(*a)?, word(*b)?);
                    match op {
                        BinaryOp::Add | BinaryOp::Or | BinaryOp::Max => self.b.or(Ty::I32, a, b),
                        BinaryOp::Mul | BinaryOp::And | BinaryOp::Min => self.b.and(Ty::I32, a, b),
                        _ => self.b.xor(Ty::I32, a, b),
                    }
                }
                InstKind::Compare(op, a, b) => {
                    let (a, b) = (word(*a)?, word(*b)?);
                    let v = match op {
                        CompareOp::Eq | CompareOp::Ne => self.b.xor(Ty::I32, a, b),
                        CompareOp::Lt | CompareOp::Ge => self.b.bin(BinOp::AndNot, Ty::I32, a, b),
                        CompareOp::Gt | CompareOp::Le => self.b.bin(BinOp::AndNot, Ty::I32, b, a),
                    };
                    let opposite = matches!(op, CompareOp::Eq | CompareOp::Ge | CompareOp::Le);
                    if opposite { self.opposite(v) } else { v }
                }
                InstKind::Select(c, a, b) => {
                    let (c, a, b) = (word(*c)?, word(*a)?, word(*b)?);
                    let (yes, no) = (self.b.and(Ty::I32, c, a), self.b.bin(BinOp::AndNot, Ty::I32, c, b));
                    self.b.or(Ty::I32, yes, no)
                }
                _ => return Err(LowerError::Malformed("no logic of bools")),
            };
            if let Some(slot) = words.get_mut(inst.id.0 as usize) {
                *slot = made;
            }
        }
        self.b.close();
        Ok(())
    }

    fn opposite(&mut self, v: V) -> V {
        let ones = self.b.bits(Ty::I32, TRUE);
        self.b.xor(Ty::I32, v, ones)
    }

    /// The address of the words of a place, whether only this kernel's loads touch the buffer, and how it is accessed.
    fn word_address(&mut self, place: &Place, axis: &Axis, counter: V) -> Result<(V, Memory, bool), LowerError> {
        let (base, _, read_only) = self.buffer(place.buffer)?;
        let rest = place.offset.linear_in(axis.var).ok_or(LowerError::Malformed("bools that are not side by side"))?.1;
        let rest = self.scalar_expr(&rest)?;
        let start = self.advance(base, rest, DType::Bool);
        let memory = Memory { dtype: DType::I32, access: Access::Contiguous, vectors: 0, wide_index: false, disp: 0 };
        Ok((self.b.address(start, counter, 1, 0), memory, read_only))
    }
}
