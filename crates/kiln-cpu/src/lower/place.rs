//! Addresses in memory: loads and stores of buffers and row temporaries.

use super::*;
use kiln_ir::dim::Factor;
use kiln_kernels::kernel::Place;

/// An address ready for an instruction.
struct Target {
    base: V,
    /// Counter, stride or index vector, as the access requires.
    index: V,
    memory: Memory,
}

/// An offset ⌊number / times⌋ + rest, in which an axis occurs in the number alone, by steps of one.
pub(super) struct Repeated {
    number: Dim,
    times: Dim,
    rest: Dim,
}

/// The parts of an offset that is the same for several neighbours along an axis, then one more.
pub(super) fn repeated(offset: &Dim, var: Symbol) -> Option<Repeated> {
    let (mut found, mut others) = (None, 0);
    offset.visit_terms(&mut |coef, factors| match factors {
        [Factor::FloorDiv(number, times)] if number.contains(var) && coef == 1 => {
            found = Some(((*number).clone(), (*times).clone()));
            others += 1;
        }
        factors => {
            let holds = |factor: &Factor<'_>| match factor {
                Factor::Symbol(symbol) => *symbol == var,
                Factor::FloorDiv(a, b) | Factor::Modulo(a, b) => a.contains(var) || b.contains(var),
                Factor::Min(list) | Factor::Max(list) => list.iter().any(|e| e.contains(var)),
            };
            others += if factors.iter().any(holds) { 2 } else { 0 };
        }
    });
    let (number, times) = found.filter(|_| others == 1)?;
    let steps = number.linear_in(var).is_some_and(|(step, _)| step.is_one());
    if !steps || times.as_const().is_none_or(|times| times < 2) {
        return None;
    }
    let rest = offset - &number.floor_div(&times);
    (!rest.contains(var)).then_some(Repeated { number, times, rest })
}

impl Lowerer<'_> {
    pub(super) fn buffer(&mut self, n: usize) -> Result<(V, DType, bool), LowerError> {
        let arg = self.kernel.buffers.get(n).ok_or(LowerError::Malformed("a buffer that the kernel has not"))?;
        let list = self.b.field(self.context, offset_of!(Context, buffers) as i32);
        let base = self.b.field(list, 8 * n as i32);
        Ok((base, arg.dtype, arg.access == BufferAccess::Read))
    }

    /// Adds scalar · element size to an address.
    pub(super) fn advance(&mut self, base: V, elements: V, dtype: DType) -> V {
        self.b.address(base, elements, (dtype.size_in_bits() / 8) as u8, 0)
    }

    fn target(&mut self, base: V, dtype: DType, place: &Place) -> Result<Target, LowerError> {
        let memory = Memory { dtype, access: Access::Single, vectors: 0, wide_index: false, disp: 0 };
        if let Some(index) = self.narrow_places(place)? {
            let mut base = base;
            if !self.varies(&place.offset) {
                let offset = self.scalar_expr(&place.offset)?;
                base = self.advance(base, offset, dtype);
            }
            return Ok(Target { base, index, memory: Memory { access: Access::Indexed, ..memory } });
        }
        // Data-dependent parts that are the same in all lanes join the base.
        let mut base = base;
        let mut varying: Option<V> = None;
        for (v, stride) in &place.indirect {
            let value = self.value(*v)?;
            let by = self.scalar_expr(stride)?;
            if let Some(scalar) = self.as_scalar(value) {
                let moved = self.b.int(IntOp::Mul, scalar, by);
                base = self.advance(base, moved, dtype);
            } else {
                let mut moved = self.as_wide(value);
                // AVX2 takes ten instructions for a product of 64-bit integers.
                if self.b.as_number(by) != Some(1) {
                    let by = self.b.pure(Op::Splat, Ty::I64, Ty::I64, &[by]);
                    moved = self.b.mul(Ty::I64, moved, by);
                }
                varying = Some(varying.map_or(moved, |s| self.b.add(Ty::I64, s, moved)));
            }
        }
        if let Some(mut index) = varying {
            if self.varies(&place.offset) {
                let offset = self.vector_expr(Ty::I64, &place.offset)?;
                index = self.b.add(Ty::I64, index, offset);
            } else {
                let offset = self.scalar_expr(&place.offset)?;
                base = self.advance(base, offset, dtype);
            }
            return Ok(Target { base, index, memory: Memory { access: Access::Indexed, wide_index: true, ..memory } });
        }
        let Some(along) = self.along.filter(|along| place.offset.contains(along.var)) else {
            let offset = self.scalar_expr(&place.offset)?;
            let base = self.advance(base, offset, dtype);
            return Ok(Target { base, index: V::NONE, memory });
        };
        match place.offset.linear_in(along.var) {
            Some((stride, rest)) if stride.is_one() => {
                let rest = self.scalar_expr(&rest)?;
                let base = self.advance(base, rest, dtype);
                let (access, vectors) = if along.paired {
                    (Access::Pairs, self.copy & !1)
                } else {
                    (Access::Contiguous, along.vectors + self.copy)
                };
                let memory = Memory { access, vectors: vectors as u8, ..memory };
                Ok(Target { base, index: along.counter, memory })
            }
            Some((stride, rest)) => {
                let rest = self.scalar_expr(&rest)?;
                let stride = self.scalar_expr(&stride)?;
                let base = self.advance(base, rest, dtype);
                let lane = self.first_lane(along);
                let moved = self.b.int(IntOp::Mul, lane, stride);
                let base = self.advance(base, moved, dtype);
                Ok(Target { base, index: stride, memory: Memory { access: Access::Strided, ..memory } })
            }
            None => {
                let wide = !self.is_narrow(&place.offset);
                let index = self.vector_expr(if wide { Ty::I64 } else { Ty::I32 }, &place.offset)?;
                Ok(Target { base, index, memory: Memory { access: Access::Indexed, wide_index: wide, ..memory } })
            }
        }
    }

    /// Data-dependent places as integers of 32 bits, where they are known to fit: indices that were checked against a number.
    fn narrow_places(&mut self, place: &Place) -> Result<Option<V>, LowerError> {
        let varies = self.varies(&place.offset);
        let mut most = match place.offset.bounds(&self.ranges) {
            (Some(low), Some(high)) if varies && self.is_narrow(&place.offset) => low.abs().max(high.abs()),
            _ if varies => return Ok(None),
            _ => 0,
        };
        let mut parts = Vec::with_capacity(place.indirect.len());
        for (v, stride) in &place.indirect {
            let Some(InstKind::CheckIndex { size, .. }) = self.definition(*v) else { return Ok(None) };
            let (Some(size), Some(stride)) = (size.as_const(), stride.as_const()) else { return Ok(None) };
            let value = self.value(*v)?;
            let Representation::Narrow(index) = value.held else { return Ok(None) };
            most = most.saturating_add(size.saturating_mul(stride.saturating_abs()));
            parts.push((index, stride));
        }
        if parts.is_empty() || most >= i32::MAX.into() {
            return Ok(None);
        }
        let mut sum = if varies { Some(self.vector_expr(Ty::I32, &place.offset)?) } else { None };
        for (index, stride) in parts {
            let by = self.b.bits(Ty::I32, u64::from(stride as i32 as u32));
            let moved = if stride == 1 { index } else { self.b.mul(Ty::I32, index, by) };
            sum = Some(sum.map_or(moved, |sum| self.b.add(Ty::I32, sum, moved)));
        }
        Ok(sum)
    }

    fn both(&mut self, a: V, b: V) -> V {
        match (a.is_some(), b.is_some()) {
            (true, true) => self.b.and(Ty::Mask, a, b),
            (true, false) => a,
            _ => b,
        }
    }

    /// The mask of a guard, absent without one.
    fn guard(&mut self, guard: Option<ValueId>) -> Result<(V, bool), LowerError> {
        let Some(v) = guard else { return Ok((V::NONE, true)) };
        let value = self.value(v)?;
        let mask = self.as_vector(value, DType::Bool);
        Ok(if self.b.as_const(mask) == Some(1) { (V::NONE, true) } else { (mask, value.uniform) })
    }

    fn tail(&self) -> V {
        self.along.map_or(V::NONE, |along| along.tail)
    }

    /// A value of a buffer; one that is `moved` as its bits.
    pub(super) fn load(
        &mut self,
        place: &Place,
        guard: Option<ValueId>,
        dtype: DType,
        moved: bool,
    ) -> Result<Value, LowerError> {
        let (base, memory, read_only) = self.buffer(place.buffer)?;
        if memory == DType::I4 {
            return self.load_halves(base, place, guard, read_only);
        }
        let (guard, guard_uniform) = self.guard(guard)?;
        // Eight-bit floats are decoded from their bytes by vector code.
        let stored = if matches!(memory, DType::F8E4M3 | DType::F8E5M2) { DType::U8 } else { memory };
        let is_bool = memory == DType::Bool;
        let packed = self.packed.filter(|_| moved);
        let (memory, stored) = match packed {
            Some(Ty::I8) => (DType::U8, DType::U8),
            _ if moved => (DType::I16, DType::I16),
            _ => (memory, stored),
        };
        if let Some(ty) = packed
            && guard.is_some()
            && self.b.as_const(guard) == Some(0)
        {
            return Ok(Value { held: Representation::Vector(self.b.bits(ty, 0)), uniform: true });
        }
        if let Some(ty) = packed
            && let Some(value) = self.load_reversed(base, stored, place, ty)?
        {
            let value = if is_bool { self.packed_bool(ty, value) } else { value };
            return Ok(Value { held: Representation::Vector(value), uniform: false });
        }
        if !guard.is_some()
            && let Some(value) = self.load_permuted(base, stored, place, read_only)?
        {
            let value = if stored != memory { self.decode_float8(memory, value) } else { value };
            return Ok(Value { held: Representation::Vector(value), uniform: false });
        }
        if !guard.is_some()
            && let Some(value) = self.load_interleaved(place, base, stored)?
        {
            return Ok(Value { held: Representation::Vector(value), uniform: false });
        }
        let transposed = self.transposed_target(place);
        let mut t = match transposed {
            Some((base, index)) => {
                let memory =
                    Memory { dtype: stored, access: Access::Contiguous, vectors: 0, wide_index: false, disp: 0 };
                Target { base, index, memory }
            }
            None => self.target(base, stored, place)?,
        };
        // Local memory is overwritten repeatedly.
        let read_only = read_only && transposed.is_none();
        let ty = packed.unwrap_or(Ty::of(stored));
        let mut uniform = false;
        let value = if t.memory.access == Access::Single {
            uniform = guard_uniform;
            if guard.is_some() {
                t.base = self.safe_address(guard, t.base);
            }
            if dtype == DType::I64 && guard_uniform {
                let op = Op::LoadInt { dtype: stored, disp: t.memory.disp };
                let mut v = self.emit(op, Ty::Int, Ty::Int, &[t.base], read_only);
                if guard.is_some() {
                    let zero = self.b.number(0);
                    v = self.b.pure(Op::Choose, Ty::Int, Ty::Int, &[guard, v, zero]);
                }
                return Ok(Value { held: Representation::Scalar(v), uniform: true });
            }
            let v = self.emit(Op::Load(t.memory), ty, ty, &[t.base, t.index], read_only);
            if guard.is_some() {
                let zero = self.b.bits(ty, 0);
                self.b.select(ty, guard, v, zero)
            } else {
                v
            }
        } else if t.memory.access == Access::Pairs {
            let both = self.emit(Op::Load(t.memory), Ty::I32, Ty::I32, &[t.base, t.index], read_only);
            if moved {
                both
            } else if self.copy.is_multiple_of(2) {
                self.b.shift(BinOp::Shl, Ty::I32, both, 16)
            } else {
                let high = self.b.bits(Ty::I32, 0xffff_0000);
                self.b.and(Ty::I32, both, high)
            }
        } else {
            let mask = self.both(guard, self.tail());
            self.emit(Op::Load(t.memory), ty, ty, &[t.base, t.index, mask], read_only)
        };
        let value = match packed {
            Some(ty) if is_bool => self.packed_bool(ty, value),
            None if stored != memory => self.decode_float8(memory, value),
            _ => value,
        };
        Ok(Value { held: Representation::Vector(value), uniform })
    }

    /// Elements that lie side by side but in another order than the lanes: backwards, or each in several lanes. `None` for any other load.
    fn load_permuted(
        &mut self,
        base: V,
        stored: DType,
        place: &Place,
        read_only: bool,
    ) -> Result<Option<V>, LowerError> {
        let ty = Ty::of(stored);
        let Some(along) = self.along.filter(|along| !along.paired && place.indirect.is_empty()) else {
            return Ok(None);
        };
        if ty.lane_bytes() == 0 || !place.offset.contains(along.var) {
            return Ok(None);
        }
        // Numbers of lanes are as wide as what they permute.
        let index = ty.as_int();
        let memory = Memory { dtype: stored, access: Access::Contiguous, vectors: 0, wide_index: false, disp: 0 };
        if let Some((stride, rest)) = place.offset.linear_in(along.var) {
            // A vector that is not whole would begin before the first element.
            if stride.as_const() != Some(-1) || along.tail.is_some() {
                return Ok(None);
            }
            let (rest, first, one) = (self.scalar_expr(&rest)?, self.first_lane(along), self.b.number(1));
            let start = self.b.int(IntOp::Sub, rest, first);
            let before = self.b.add_lanes(start, -1);
            let lowest = self.b.int(IntOp::Add, before, one);
            let forwards = self.emit(Op::Load(memory), ty, ty, &[base, lowest], read_only);
            return Ok(Some(self.reversed(ty, forwards)));
        }
        let Some(Repeated { number, times, rest }) = repeated(&place.offset, along.var) else { return Ok(None) };
        let quotients = number.floor_div(&times);
        if !self.is_narrow(&quotients) {
            return Ok(None);
        }
        // The elements of all lanes that exist, from that of the first lane to that of the last.
        let Some((_, before)) = number.linear_in(along.var) else { return Ok(None) };
        let (before, times, rest) = (self.scalar_expr(&before)?, self.scalar_expr(&times)?, self.scalar_expr(&rest)?);
        let (first, one) = (self.first_lane(along), self.b.number(1));
        let number = self.b.int(IntOp::Add, before, first);
        let quotient = self.b.int(IntOp::FloorDiv, number, times);
        let start = self.b.int(IntOp::Add, rest, quotient);
        let last = self.b.int(IntOp::Sub, along.end, one);
        let last = self.b.int(IntOp::Add, before, last);
        let last = self.b.int(IntOp::FloorDiv, last, times);
        let end = self.b.int(IntOp::Add, rest, last);
        let end = self.b.int(IntOp::Add, end, one);
        let there = self.b.pure(Op::TailMask, Ty::Mask, Ty::Mask, &[start, end]);
        let elements = self.emit(Op::Load(memory), ty, ty, &[base, start, there], read_only);
        let quotients = self.vector_expr(Ty::I32, &quotients)?;
        let quotient = self.b.pure(Op::Splat, Ty::I32, Ty::I32, &[quotient]);
        let lanes = self.b.sub(Ty::I32, quotients, quotient);
        let lanes = self.b.convert(index, Ty::I32, lanes);
        Ok(Some(self.b.pure(Op::Permute, ty, ty, &[elements, lanes])))
    }

    /// The lanes of a vector in reverse order.
    pub(super) fn reversed(&mut self, ty: Ty, v: V) -> V {
        let index = ty.as_int();
        let (zero, one) = (self.b.number(0), self.b.number(1));
        let count = self.b.add_lanes(zero, 1);
        let last = self.b.int(IntOp::Sub, count, one);
        let last = self.b.pure(Op::Splat, index, index, &[last]);
        let lanes = self.b.pure(Op::LaneIndex(0), index, index, &[zero]);
        let order = self.b.sub(index, last, lanes);
        self.b.pure(Op::Permute, ty, ty, &[v, order])
    }

    /// The address where the guard is true in some lane, else one that may always be read.
    fn safe_address(&mut self, guard: V, address: V) -> V {
        let tail = self.tail();
        let mask = self.both(guard, tail);
        let any = self.b.pure(Op::Reduce(Combine::Max), Ty::Mask, Ty::Mask, &[mask]);
        self.b.pure(Op::Choose, Ty::Int, Ty::Int, &[any, address, self.context])
    }

    fn emit(&mut self, op: Op, ty: Ty, result: Ty, args: &[V], pure: bool) -> V {
        if pure { self.b.pure(op, ty, result, args) } else { self.b.fixed(op, ty, result, args) }
    }

    /// Packed halves of bytes: the byte of each element is loaded, then shifted.
    fn load_halves(
        &mut self,
        base: V,
        place: &Place,
        guard: Option<ValueId>,
        read_only: bool,
    ) -> Result<Value, LowerError> {
        let (guard, _) = self.guard(guard)?;
        let mut position = self.index_value(&place.offset)?;
        for (v, stride) in &place.indirect {
            let value = self.value(*v)?;
            let by = self.scalar_expr(stride)?;
            position = match (self.as_scalar(value), position.held) {
                (Some(x), Representation::Scalar(p)) => {
                    let moved = self.b.int(IntOp::Mul, x, by);
                    Value { held: Representation::Scalar(self.b.int(IntOp::Add, p, moved)), uniform: true }
                }
                _ => {
                    let (x, p) = (self.as_wide(value), self.as_wide(position));
                    let by = self.b.pure(Op::Splat, Ty::I64, Ty::I64, &[by]);
                    let moved = self.b.mul(Ty::I64, x, by);
                    Value { held: Representation::Vector(self.b.add(Ty::I64, p, moved)), uniform: false }
                }
            };
        }
        let memory = Memory { dtype: DType::U8, access: Access::Single, vectors: 0, wide_index: false, disp: 0 };
        let (byte, odd) = match position.held {
            Representation::Scalar(p) => {
                let two = self.b.number(2);
                let at = self.b.int(IntOp::FloorDiv, p, two);
                let mut address = self.advance(base, at, DType::U8);
                if guard.is_some() {
                    address = self.safe_address(guard, address);
                }
                let byte = self.emit(Op::Load(memory), Ty::I32, Ty::I32, &[address], read_only);
                (byte, self.b.pure(Op::Splat, Ty::I32, Ty::I32, &[p]))
            }
            Representation::Narrow(p) | Representation::Vector(p) => {
                let wide = matches!(position.held, Representation::Vector(_));
                let ty = if wide { Ty::I64 } else { Ty::I32 };
                let at = self.b.shift(BinOp::Sar, ty, p, 1);
                let mask = self.both(guard, self.tail());
                let memory = Memory { access: Access::Indexed, wide_index: wide, ..memory };
                let byte = self.emit(Op::Load(memory), Ty::I32, Ty::I32, &[base, at, mask], read_only);
                (byte, self.b.convert(Ty::I32, ty, p))
            }
        };
        // The requested half to the top, then down with its sign.
        let one = self.b.bits(Ty::I32, 1);
        let odd = self.b.and(Ty::I32, odd, one);
        let four = self.b.shift(BinOp::Shl, Ty::I32, odd, 2);
        let top = self.b.bits(Ty::I32, 28);
        let up = self.b.sub(Ty::I32, top, four);
        let high = self.b.bin(BinOp::Shl, Ty::I32, byte, up);
        let mut v = self.b.shift(BinOp::Sar, Ty::I32, high, 28);
        if guard.is_some() {
            let zero = self.b.bits(Ty::I32, 0);
            v = self.b.select(Ty::I32, guard, v, zero);
        }
        Ok(Value { held: Representation::Vector(v), uniform: position.uniform })
    }

    pub(super) fn store(&mut self, place: &Place, value: ValueId, guard: Option<ValueId>) -> Result<(), LowerError> {
        let (base, memory, _) = self.buffer(place.buffer)?;
        if memory == DType::I4 {
            return Err(LowerError::Malformed("packed halves cannot be stored one by one"));
        }
        let (guard, _) = self.guard(guard)?;
        let id = value;
        let value = self.value(id)?;
        let moved = self.moved.get(id.0 as usize) == Some(&true);
        let packed = self.packed_type(id);
        let memory = match packed {
            Some(Ty::I8) => DType::U8,
            _ if moved => DType::I16,
            _ => memory,
        };
        let mut stored = memory;
        if matches!(memory, DType::F8E4M3 | DType::F8E5M2) {
            stored = DType::U8;
        }
        if !guard.is_some() && self.store_interleaved(place, base, stored)? {
            return Ok(());
        }
        let t = self.target(base, stored, place)?;
        if let (Representation::Scalar(v), Access::Single, false) = (value.held, t.memory.access, guard.is_some()) {
            self.b.effect(Op::StoreInt { dtype: stored, disp: 0 }, Ty::Int, &[t.base, t.index, v]);
            return Ok(());
        }
        if t.memory.access == Access::Pairs {
            // Even elements wait for the odd ones of the next copy.
            if moved {
                // Both halves of the words as they were.
                let both = self.as_vector(value, DType::I32);
                if self.copy.is_multiple_of(2) {
                    self.b.effect(Op::Store(t.memory), Ty::I32, &[t.base, t.index, V::NONE, both]);
                }
            } else if !self.copy.is_multiple_of(2) {
                let odd = self.as_vector(value, DType::F32);
                self.copy -= 1;
                let even = self.value(id);
                self.copy += 1;
                let even = self.as_vector(even?, DType::F32);
                let both = self.b.pure(Op::PackBf16, Ty::F32, Ty::I32, &[even, odd]);
                self.b.effect(Op::Store(t.memory), Ty::I32, &[t.base, t.index, V::NONE, both]);
            }
            return Ok(());
        }
        let (ty, v) = match value.held {
            Representation::Vector(v) if let Some(ty) = packed => (ty, v),
            Representation::Narrow(v) if stored == DType::I64 => (Ty::I32, v),
            _ if stored == DType::I64 => (Ty::I64, self.as_wide(value)),
            _ if memory != stored => (Ty::I32, self.encode_float8(memory, value)),
            _ => (Ty::of(stored), self.as_vector(value, stored.compute_type())),
        };
        let mask = if t.memory.access == Access::Single { guard } else { self.both(guard, self.tail()) };
        self.b.effect(Op::Store(t.memory), ty, &[t.base, t.index, mask, v]);
        Ok(())
    }

    /// Address and index of a row temporary at the current point. Temporaries have room for whole vectors.
    fn temp(&mut self, n: usize) -> Result<Target, LowerError> {
        let base = *self.temps.get(n).ok_or(LowerError::Malformed("a row temporary that the kernel has not"))?;
        if !self.row_position.is_some() {
            return Err(LowerError::Malformed("a row temporary outside a row stage"));
        }
        let dtype = self.body.temps[n];
        let mut memory =
            Memory { dtype, access: Access::Contiguous, vectors: self.copy as u8, wide_index: false, disp: 0 };
        let Some(along) = self.along else {
            memory.access = Access::Single;
            return Ok(Target { base: self.advance(base, self.row_position, dtype), index: V::NONE, memory });
        };
        if self.by_lane {
            let at = self.b.mul_lanes(self.row_position, self.temp_copies as i32);
            return Ok(Target { base, index: at, memory });
        }
        let base = self.advance(base, self.row_position, dtype);
        Ok(Target { base, index: along.counter, memory })
    }

    pub(super) fn load_temp(&mut self, n: usize) -> Result<Value, LowerError> {
        let t = self.temp(n)?;
        let ty = Ty::of(t.memory.dtype);
        let v = self.b.fixed(Op::Load(t.memory), ty, ty, &[t.base, t.index]);
        Ok(Value { held: Representation::Vector(v), uniform: t.memory.access == Access::Single })
    }

    pub(super) fn store_temp(&mut self, n: usize, value: ValueId) -> Result<(), LowerError> {
        let t = self.temp(n)?;
        let value = self.value(value)?;
        let v = self.as_vector(value, t.memory.dtype.compute_type());
        self.b.effect(Op::Store(t.memory), Ty::of(t.memory.dtype), &[t.base, t.index, V::NONE, v]);
        Ok(())
    }
}
