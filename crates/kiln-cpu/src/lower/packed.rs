//! Bodies that only move elements of one or two bytes: padding, slices, concatenations, choices between elements. They stay as they are in
//! memory, as many as fill a register, instead of one to a 32-bit lane.
//!
//! Masks have one bit an element then, and everything else is a scalar. Bodies with anything that differs from lane to lane in another
//! way (an index, a comparison of elements, arithmetic) are none of these.

use super::*;
use kiln_ir::{BinaryOp, Scalar, UnaryOp};
use kiln_kernels::kernel::Place;

/// The most vectors of a row that is unrolled, so that its masks are computed once for all rows.
const MOST_VECTORS: usize = 16;
/// The same, in instructions of all of its vectors.
const MOST_INSTRUCTIONS: usize = 256;

/// What a value of such a body is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// Elements that are moved.
    Element,
    /// A truth value an element.
    Mask,
    /// An integer that is the same in all lanes.
    Scalar,
}

/// The elements of a body that only moves them, and which values are such elements; `None` for any other body.
pub(super) fn packed_elements(
    kernel: &Kernel,
    body: &LoopBody,
    vector: VectorAxis,
    count: usize,
) -> Option<(Ty, Vec<bool>)> {
    let by_row = vector == VectorAxis::Row;
    let var = if by_row { &body.row } else { &body.grid }.last()?.var;
    let dtype = |place: &Place| kernel.buffers.get(place.buffer).map(|buffer| buffer.dtype);
    let insts = || body.stages.iter().flat_map(|stage| &stage.insts);
    let element = insts().find_map(|inst| match &inst.kind {
        InstKind::Store { place, .. } => dtype(place),
        _ => None,
    })?;
    let ty = match element.size_in_bits() {
        8 => Ty::I8,
        16 => Ty::I16,
        _ => return None,
    };
    let reduces = body.stages.iter().any(|stage| !stage.reductions.is_empty());
    if body.row.is_empty() == by_row || reduces || !body.temps.is_empty() {
        return None;
    }
    let mut wants = Wants(vec![None; count]);
    let insts: Vec<_> = insts().collect();
    for inst in insts.into_iter().rev() {
        if let InstKind::Store { place, value, guard } = &inst.kind {
            let beside = place.offset.linear_in(var).is_some_and(|(stride, _)| stride.is_one());
            if !beside || !place.indirect.is_empty() || dtype(place) != Some(element) {
                return None;
            }
            wants.want(Part::Element, std::slice::from_ref(value))?;
            wants.want(Part::Mask, guard.as_slice())?;
            continue;
        }
        // An index is checked even if nobody reads there.
        let checks = matches!(inst.kind, InstKind::CheckIndex { .. });
        let Some(part) = wants.0.get(inst.id.0 as usize)?.or(checks.then_some(Part::Scalar)) else { continue };
        match (&inst.kind, part) {
            (InstKind::Const(_), _) => {}
            (InstKind::Load { place, guard }, _) => {
                let varies = place.offset.contains(var);
                let beside = place.offset.linear_in(var).is_some_and(|(stride, _)| stride.is_one());
                let read = kernel.buffers.get(place.buffer)?;
                let backwards = place.offset.linear_in(var).is_some_and(|(stride, _)| stride.as_const() == Some(-1));
                let backwards = backwards && place.indirect.is_empty() && guard.is_none();
                let fits = match part {
                    Part::Element => read.dtype == element && (beside || backwards || !varies),
                    Part::Mask => read.dtype == DType::Bool && (beside || !varies),
                    Part::Scalar => inst.dtype == DType::I64 && !varies && guard.is_none(),
                };
                let indirect: Vec<ValueId> = place.indirect.iter().map(|(v, _)| *v).collect();
                if !fits || read.access != BufferAccess::Read {
                    return None;
                }
                wants.want(Part::Scalar, &indirect)?;
                wants.want(Part::Mask, guard.as_slice())?;
            }
            (InstKind::Select(c, a, b), Part::Element | Part::Mask) => {
                wants.want(Part::Mask, &[*c])?;
                wants.want(part, &[*a, *b])?;
            }
            (InstKind::InRange { expr, low, high }, Part::Mask) => {
                let linear = |e: &Dim| e.linear_in(var).is_some_and(|(stride, _)| stride.as_const().is_some());
                if !linear(&(expr - low)) || !linear(&(expr - high)) {
                    return None;
                }
            }
            (InstKind::Unary(UnaryOp::Not, a), Part::Mask) => wants.want(Part::Mask, &[*a])?,
            (InstKind::Binary(_, a, b), Part::Mask) => wants.want(Part::Mask, &[*a, *b])?,
            (InstKind::Compare(_, a, b), Part::Mask) => {
                let types = value_types(body, count);
                let of = |v: &ValueId| types.get(v.0 as usize).copied().flatten();
                let part = match (of(a)?, of(b)?) {
                    (DType::Bool, DType::Bool) => Part::Mask,
                    (DType::I64, DType::I64) => Part::Scalar,
                    _ => return None,
                };
                wants.want(part, &[*a, *b])?;
            }
            (InstKind::Index(e), Part::Scalar) if inst.dtype == DType::I64 && !e.contains(var) => {}
            (InstKind::CheckIndex { value, size }, Part::Scalar) if !size.contains(var) => {
                wants.want(Part::Scalar, &[*value])?;
            }
            (
                InstKind::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Min | BinaryOp::Max, a, b),
                Part::Scalar,
            ) if inst.dtype == DType::I64 => wants.want(Part::Scalar, &[*a, *b])?,
            _ => return None,
        }
    }
    Some((ty, wants.0.into_iter().map(|part| part == Some(Part::Element)).collect()))
}

/// What the readers of each value take it for.
struct Wants(Vec<Option<Part>>);

impl Wants {
    /// `None` where another reader takes one of them for something else.
    fn want(&mut self, part: Part, values: &[ValueId]) -> Option<()> {
        for v in values {
            let slot = self.0.get_mut(v.0 as usize)?;
            if *slot.get_or_insert(part) != part {
                return None;
            }
        }
        Some(())
    }
}

impl Lowerer<'_> {
    /// The vector type of a value that is moved as it is, as many elements as fill a register.
    pub(super) fn packed_type(&self, v: ValueId) -> Option<Ty> {
        self.packed.filter(|_| self.moved.get(v.0 as usize) == Some(&true))
    }

    /// The bits of a constant as an element of the type that the body stores.
    pub(super) fn packed_constant(&mut self, c: Scalar, dtype: DType, ty: Ty) -> Result<Value, LowerError> {
        let stores = self.body.stages.iter().flat_map(|stage| &stage.insts).find_map(|inst| match &inst.kind {
            InstKind::Store { place, .. } => self.kernel.buffers.get(place.buffer).map(|buffer| buffer.dtype),
            _ => None,
        });
        let element = stores.ok_or(LowerError::Malformed("a constant that nothing stores"))?;
        let bits = match dtype {
            DType::F32 => u64::from((c.as_f64() as f32).to_bits()),
            _ => u64::from(c.as_i64() as u32),
        };
        let mut bytes = [0u8; 8];
        // SAFETY: an element of one or two bytes, into eight.
        unsafe { crate::element::write(element, bytes.as_mut_ptr(), 0, bits) };
        let v = self.b.bits(ty, u64::from_le_bytes(bytes));
        Ok(Value { held: Representation::Vector(v), uniform: true })
    }

    /// The number of vectors of a row that is unrolled where it is whole; `None` for any other.
    pub(super) fn short_row(&self, axis: &Axis) -> Option<(i64, usize)> {
        let lanes = VECTOR_BYTES / self.packed?.lane_bytes();
        let size = axis.size.as_const().filter(|n| *n > 0)?;
        let vectors = usize::try_from(size).ok()?.div_ceil(lanes);
        let fits = vectors <= MOST_VECTORS && vectors * self.weight() as usize <= MOST_INSTRUCTIONS;
        fits.then_some((size, vectors))
    }

    /// All vectors of a row: their masks depend on nothing, so that the [`Builder`] moves them out of all loops, and most are known to be
    /// all true or all false.
    pub(super) fn whole_row(
        &mut self,
        axis: &Axis,
        size: i64,
        vectors: usize,
        stages: &[Stage],
    ) -> Result<(), LowerError> {
        let Some(ty) = self.packed else { return Err(LowerError::Malformed("elements that are not packed")) };
        let lanes = (VECTOR_BYTES / ty.lane_bytes()) as i64;
        let (zero, end) = (self.b.number(0), self.b.number(size));
        for number in 0..vectors {
            let (first, after) = (number as i64 * lanes, (number as i64 + 1) * lanes);
            let tail = if after > size {
                let first = self.b.add_lanes(zero, number as i32);
                self.b.pure(Op::TailMask, Ty::Mask, Ty::Mask, &[first, end])
            } else {
                V::NONE
            };
            // Lanes beyond the end are under the mask of the tail, whatever is known of them.
            self.ranges.set(axis.var, first, Some(after.min(size) - 1));
            self.along = Some(Along { var: axis.var, counter: zero, end, tail, paired: false, vectors: number });
            for inst in stages.iter().flat_map(|stage| &stage.insts) {
                self.inst(inst)?;
            }
        }
        self.ranges.set_below(axis.var, axis.size.clone());
        self.along = None;
        Ok(())
    }

    /// Bools as 0 and 1: every byte but zero is true.
    pub(super) fn packed_bool(&mut self, ty: Ty, value: V) -> V {
        let ones = self.b.bits(ty, 1);
        self.b.bin(BinOp::MinBytes, ty, value, ones)
    }

    /// Elements that lie side by side, the last lane first; `None` for any other load.
    pub(super) fn load_reversed(
        &mut self,
        base: V,
        stored: DType,
        place: &Place,
        ty: Ty,
    ) -> Result<Option<V>, LowerError> {
        let Some(along) = self.along else { return Ok(None) };
        let Some((stride, rest)) = place.offset.linear_in(along.var) else { return Ok(None) };
        if stride.as_const() != Some(-1) || !place.indirect.is_empty() {
            return Ok(None);
        }
        let (rest, first, one) = (self.scalar_expr(&rest)?, self.first_lane(along), self.b.number(1));
        let start = self.b.int(IntOp::Sub, rest, first);
        let start = self.b.int(IntOp::Add, start, one);
        let lowest = self.b.add_lanes(start, -1);
        let mut mask = V::NONE;
        if along.tail.is_some() {
            // The first elements in memory are those of lanes that do not exist; they are not touched.
            let after = self.b.add_lanes(first, 1);
            let (zero, missing) = (self.b.number(0), self.b.int(IntOp::Sub, after, along.end));
            let absent = self.b.pure(Op::TailMask, Ty::Mask, Ty::Mask, &[zero, missing]);
            mask = self.b.not(absent);
        }
        let memory = Memory { dtype: stored, access: Access::Contiguous, vectors: 0, wide_index: false, disp: 0 };
        let forwards = self.b.pure(Op::Load(memory), ty, ty, &[base, lowest, mask]);
        Ok(Some(self.b.un(UnOp::Reverse, ty, forwards)))
    }
}

/// Bytes of the registers that packed elements fill.
const VECTOR_BYTES: usize = 64;
