//! Instructions of a body, one by one.

use super::*;
use crate::math;
use kiln_ir::{BinaryOp, Scalar, UnaryOp};
use kiln_kernels::kernel::Inst as BodyInst;

/// Rough cost of an instruction, in vector instructions.
pub(super) fn weight(kind: &InstKind) -> u32 {
    match kind {
        InstKind::Const(_) => 0,
        InstKind::Unary(op, _) => op.row().instructions,
        InstKind::Binary(op, ..) => op.row().instructions,
        InstKind::Random { .. } => 80,
        InstKind::Load { .. } | InstKind::Store { .. } => 2,
        _ => 1,
    }
}

impl Lowerer<'_> {
    /// A value defined earlier, in the current copy.
    pub(super) fn value(&self, v: ValueId) -> Result<Value, LowerError> {
        let slot = self.values.get(v.0 as usize).and_then(|copies| copies[self.copy]);
        slot.ok_or(LowerError::Malformed("a value is used where it is not visible"))
    }

    fn define(&mut self, v: ValueId, value: Value) -> Result<(), LowerError> {
        let slot = self.values.get_mut(v.0 as usize).ok_or(LowerError::Malformed("a value without a number"))?;
        slot[self.copy] = Some(value);
        Ok(())
    }

    /// An I64 value as a scalar, if it is the same in all lanes.
    pub(super) fn as_scalar(&mut self, value: Value) -> Option<V> {
        match value.held {
            Representation::Scalar(v) => Some(v),
            Representation::Narrow(v) if value.uniform => Some(self.b.pure(Op::FirstLane, Ty::I32, Ty::Int, &[v])),
            Representation::Vector(v) if value.uniform => Some(self.b.pure(Op::FirstLane, Ty::I64, Ty::Int, &[v])),
            _ => None,
        }
    }

    /// An I64 value as a vector of 64-bit lanes.
    pub(super) fn as_wide(&mut self, value: Value) -> V {
        match value.held {
            Representation::Vector(v) => v,
            Representation::Scalar(v) => match self.b.as_number(v) {
                Some(n) => self.b.bits(Ty::I64, n as u64),
                None => self.b.pure(Op::Splat, Ty::I64, Ty::I64, &[v]),
            },
            Representation::Narrow(v) => self.b.convert(Ty::I64, Ty::I32, v),
        }
    }

    /// A value as a vector of its dtype's type.
    pub(super) fn as_vector(&mut self, value: Value, dtype: DType) -> V {
        if dtype == DType::I64 {
            return self.as_wide(value);
        }
        match value.held {
            Representation::Vector(v) | Representation::Narrow(v) => v,
            Representation::Scalar(v) => self.b.pure(Op::Splat, Ty::I32, Ty::I32, &[v]),
        }
    }

    /// An I64 value as a vector of 32-bit lanes, if it is known to fit.
    fn as_narrow(&mut self, value: Value) -> Option<V> {
        match value.held {
            Representation::Narrow(v) => Some(v),
            Representation::Scalar(v) => {
                let n = self.b.as_number(v).filter(|n| n.unsigned_abs() < i32::MAX as u64)?;
                Some(self.b.bits(Ty::I32, u64::from(n as i32 as u32)))
            }
            Representation::Vector(_) => None,
        }
    }

    fn dtype_of(&self, v: ValueId) -> Result<DType, LowerError> {
        self.dtypes.get(v.0 as usize).copied().flatten().ok_or(LowerError::Malformed("a value without a type"))
    }

    pub(super) fn inst(&mut self, inst: &BodyInst) -> Result<(), LowerError> {
        let dtype = inst.dtype;
        let ty = Ty::of(dtype);
        let value = match &inst.kind {
            InstKind::Store { place, value, guard } => return self.store(place, *value, *guard),
            InstKind::StoreTemp(n, value) => return self.store_temp(*n, *value),
            InstKind::Const(c) => match self.packed_type(inst.id) {
                Some(ty) => self.packed_constant(*c, dtype, ty)?,
                None => self.constant(*c, dtype),
            },
            InstKind::Index(e) => {
                let value = self.index_value(e)?;
                if dtype == DType::I64 { value } else { self.cast(value, DType::I64, dtype) }
            }
            InstKind::InRange { expr, low, high } => self.in_range(expr, low, high)?,
            InstKind::Load { place, guard } => {
                let moved = self.moved.get(inst.id.0 as usize) == Some(&true);
                self.load(place, *guard, dtype, moved)?
            }
            InstKind::LoadTemp(n) => self.load_temp(*n)?,
            InstKind::Unary(op, a) => {
                let from = self.dtype_of(*a)?;
                let x = self.value(*a)?;
                let v = self.as_vector(x, from);
                Value { held: Representation::Vector(self.unary(*op, from, v)), uniform: x.uniform }
            }
            InstKind::Binary(op, a, b) => self.binary_inst(inst, *op, *a, *b)?,
            InstKind::Compare(op, a, b) => self.compare(*op, *a, *b)?,
            InstKind::Select(c, a, b) if let Some(ty) = self.packed_type(inst.id) => {
                let (mask, x, y) = (self.value(*c)?, self.value(*a)?, self.value(*b)?);
                let [m, p, q] = [(mask, DType::Bool), (x, dtype), (y, dtype)].map(|(v, of)| self.as_vector(v, of));
                let uniform = mask.uniform && x.uniform && y.uniform;
                Value { held: Representation::Vector(self.b.select(ty, m, p, q)), uniform }
            }
            InstKind::Select(c, a, b) => self.select(dtype, *c, *a, *b)?,
            InstKind::Cast(a) => {
                let from = self.dtype_of(*a)?;
                let x = self.value(*a)?;
                self.cast(x, from, dtype)
            }
            InstKind::Bitcast(a) => {
                let from = self.dtype_of(*a)?;
                let x = self.value(*a)?;
                Value { held: Representation::Vector(self.as_vector(x, from)), uniform: x.uniform }
            }
            InstKind::Round(a, to) => {
                let x = self.value(*a)?;
                let v = self.as_vector(x, dtype);
                Value { held: Representation::Vector(self.round(v, *to)), uniform: x.uniform }
            }
            InstKind::CheckIndex { value, size } => self.check_index(*value, size)?,
            InstKind::Random { seed, position, stream } => self.random(*seed, position, *stream)?,
            InstKind::Accumulator(_) => return Err(LowerError::Malformed("an accumulator outside a product")),
            InstKind::LoadBlock { .. } => return Err(LowerError::Malformed("quantised blocks outside a product")),
        };
        debug_assert!(
            self.packed.is_some()
                || !matches!(value.held, Representation::Vector(v) if self.b.ty(v).lane_bytes() != ty.lane_bytes()),
            "{inst:?}"
        );
        self.define(inst.id, value)
    }

    fn constant(&mut self, c: Scalar, dtype: DType) -> Value {
        let held = match dtype {
            DType::I64 => Representation::Scalar(self.b.number(c.as_i64())),
            DType::Bool => Representation::Vector(self.b.bits(Ty::Mask, (c.as_i64() != 0).into())),
            DType::I32 => Representation::Vector(self.b.bits(Ty::I32, u64::from(c.as_i64() as u32))),
            DType::F64 => Representation::Vector(self.b.bits(Ty::F64, c.as_f64().to_bits())),
            _ => Representation::Vector(self.b.bits(Ty::F32, u64::from((c.as_f64() as f32).to_bits()))),
        };
        Value { held, uniform: true }
    }

    fn binary_inst(&mut self, inst: &BodyInst, op: BinaryOp, a: ValueId, b: ValueId) -> Result<Value, LowerError> {
        let dtype = inst.dtype;
        let (x, y) = (self.value(a)?, self.value(b)?);
        let uniform = x.uniform && y.uniform;
        if dtype == DType::I64
            && let (Representation::Scalar(x), Representation::Scalar(y)) = (x.held, y.held)
            && let Some(op) = scalar_op(op)
        {
            return Ok(Value { held: Representation::Scalar(self.b.int(op, x, y)), uniform });
        }
        let (p, q) = (self.as_vector(x, dtype), self.as_vector(y, dtype));
        let v = self.binary(op, dtype, p, q);
        if op == BinaryOp::Mul
            && let (Some(slot), Some(1)) =
                (self.products.get_mut(inst.id.0 as usize), self.uses.get(inst.id.0 as usize))
        {
            slot[self.copy] = Some((p, q));
        }
        Ok(Value { held: Representation::Vector(v), uniform })
    }

    /// The factors of a value that is a product, used once, of the current loop.
    pub(super) fn product_of(&self, id: ValueId, v: V) -> Option<(V, V)> {
        let factors = self.products.get(id.0 as usize)?[self.copy]?;
        // A product that was hoisted out of the loop is cheaper unfused.
        (self.b.level(v) == self.b.depth()).then_some(factors)
    }

    /// A pointwise op on vectors of a compute dtype.
    pub(super) fn binary(&mut self, op: BinaryOp, dtype: DType, a: V, b: V) -> V {
        let ty = Ty::of(dtype);
        if ty == Ty::Mask {
            let op = match op {
                BinaryOp::Add | BinaryOp::Or | BinaryOp::Max => BinOp::Or,
                BinaryOp::Mul | BinaryOp::And | BinaryOp::Min => BinOp::And,
                _ => BinOp::Xor,
            };
            return self.b.bin(op, ty, a, b);
        }
        let float = ty.is_float();
        match op {
            BinaryOp::Add => self.b.add(ty, a, b),
            BinaryOp::Sub => self.b.sub(ty, a, b),
            BinaryOp::Mul => self.b.mul(ty, a, b),
            BinaryOp::Div if ty == Ty::I64 => math::binary(&mut self.b, op, ty, a, b),
            BinaryOp::Div => self.b.div(ty, a, b),
            BinaryOp::Rem if ty == Ty::I32 => {
                let q = self.b.div(ty, a, b);
                let back = self.b.mul(ty, q, b);
                let rest = self.b.sub(ty, a, back);
                let zero = self.b.bits(ty, 0);
                let some = self.b.compare(CompareOp::Ne, ty, b, zero);
                self.b.select(ty, some, rest, zero)
            }
            BinaryOp::Rem | BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::Gcd => math::binary(&mut self.b, op, ty, a, b),
            BinaryOp::Max => self.b.bin(if float { BinOp::MaxNan } else { BinOp::Max }, ty, a, b),
            BinaryOp::Min => self.b.bin(if float { BinOp::MinNan } else { BinOp::Min }, ty, a, b),
            BinaryOp::And => self.b.and(ty, a, b),
            BinaryOp::Or => self.b.or(ty, a, b),
            BinaryOp::Xor => self.b.xor(ty, a, b),
            BinaryOp::Shl | BinaryOp::Shr => self.shift(op, ty, a, b),
        }
    }

    /// Shifts by any amount: left gives 0 outside the width, right fills with the sign.
    fn shift(&mut self, op: BinaryOp, ty: Ty, a: V, b: V) -> V {
        let last = self.b.bits(ty, ty.lane_bytes() as u64 * 8 - 1);
        // Negative amounts are large ones.
        let zero = self.b.bits(ty, 0);
        let negative = self.b.compare(CompareOp::Lt, ty, b, zero);
        let large = self.b.compare(CompareOp::Gt, ty, b, last);
        let outside = self.b.or(Ty::Mask, negative, large);
        let by = self.b.select(ty, outside, last, b);
        if op == BinaryOp::Shr {
            return self.b.bin(BinOp::Sar, ty, a, by);
        }
        let v = self.b.bin(BinOp::Shl, ty, a, by);
        self.b.select(ty, outside, zero, v)
    }

    fn unary(&mut self, op: UnaryOp, dtype: DType, a: V) -> V {
        let ty = Ty::of(dtype);
        if ty == Ty::Mask {
            return if op == UnaryOp::Not { self.b.not(a) } else { a };
        }
        if ty.is_float() {
            return math::unary(&mut self.b, op, ty, a);
        }
        let zero = self.b.bits(ty, 0);
        match op {
            UnaryOp::Neg => self.b.sub(ty, zero, a),
            UnaryOp::Abs => self.b.un(UnOp::AbsInt, ty, a),
            UnaryOp::Sign => {
                let (one, minus) = (self.b.bits(ty, 1), self.b.bits(ty, u64::MAX));
                let minus = if ty == Ty::I32 { self.b.bits(ty, 0xffff_ffff) } else { minus };
                let low = self.b.bin(BinOp::Min, ty, a, one);
                self.b.bin(BinOp::Max, ty, low, minus)
            }
            UnaryOp::Not => {
                let ones = self.b.bits(ty, if ty == Ty::I32 { 0xffff_ffff } else { u64::MAX });
                self.b.xor(ty, a, ones)
            }
            UnaryOp::IsNan => self.b.bits(Ty::Mask, 0),
            // Functions of floats do not take integers.
            _ => a,
        }
    }

    fn compare(&mut self, op: CompareOp, a: ValueId, b: ValueId) -> Result<Value, LowerError> {
        let dtype = self.dtype_of(a)?;
        let (x, y) = (self.value(a)?, self.value(b)?);
        let uniform = x.uniform && y.uniform;
        let mask = match (dtype, x.held, y.held) {
            (DType::I64, Representation::Scalar(x), Representation::Scalar(y)) => {
                self.b.pure(Op::CompareInt(op), Ty::Int, Ty::Mask, &[x, y])
            }
            (DType::I64, ..) => match (self.as_narrow(x), self.as_narrow(y)) {
                (Some(p), Some(q)) => self.b.compare(op, Ty::I32, p, q),
                (Some(p), None) if matches!(y.held, Representation::Scalar(_)) => {
                    let q = self.clamped(y);
                    self.b.compare(op, Ty::I32, p, q)
                }
                (None, Some(q)) if matches!(x.held, Representation::Scalar(_)) => {
                    let p = self.clamped(x);
                    self.b.compare(op, Ty::I32, p, q)
                }
                _ => {
                    let (p, q) = (self.as_wide(x), self.as_wide(y));
                    self.b.compare(op, Ty::I64, p, q)
                }
            },
            (DType::Bool, ..) => {
                let (p, q) = (self.as_vector(x, dtype), self.as_vector(y, dtype));
                self.compare_masks(op, p, q)
            }
            _ => {
                let (p, q) = (self.as_vector(x, dtype), self.as_vector(y, dtype));
                self.b.compare(op, Ty::of(dtype), p, q)
            }
        };
        Ok(Value { held: Representation::Vector(mask), uniform })
    }

    /// A scalar clamped to the range of 32 bits: comparisons with narrow values give the same result.
    fn clamped(&mut self, value: Value) -> V {
        let Representation::Scalar(v) = value.held else { return self.as_vector(value, DType::I32) };
        let (low, high) = (self.b.number(i32::MIN.into()), self.b.number(i32::MAX.into()));
        let v = self.b.int(IntOp::Max, v, low);
        let v = self.b.int(IntOp::Min, v, high);
        self.b.pure(Op::Splat, Ty::I32, Ty::I32, &[v])
    }

    fn compare_masks(&mut self, op: CompareOp, a: V, b: V) -> V {
        let bin = |low: &mut Self, op, a, b| low.b.bin(op, Ty::Mask, a, b);
        match op {
            CompareOp::Ne => bin(self, BinOp::Xor, a, b),
            CompareOp::Eq => {
                let differ = bin(self, BinOp::Xor, a, b);
                self.b.not(differ)
            }
            CompareOp::Lt => bin(self, BinOp::AndNot, a, b),
            CompareOp::Gt => bin(self, BinOp::AndNot, b, a),
            CompareOp::Le => {
                let greater = bin(self, BinOp::AndNot, b, a);
                self.b.not(greater)
            }
            CompareOp::Ge => {
                let less = bin(self, BinOp::AndNot, a, b);
                self.b.not(less)
            }
        }
    }

    fn select(&mut self, dtype: DType, c: ValueId, a: ValueId, b: ValueId) -> Result<Value, LowerError> {
        let mask = self.value(c)?;
        let m = self.as_vector(mask, DType::Bool);
        let (x, y) = (self.value(a)?, self.value(b)?);
        let uniform = mask.uniform && x.uniform && y.uniform;
        if dtype == DType::I64 {
            if let (true, Representation::Scalar(p), Representation::Scalar(q)) = (mask.uniform, x.held, y.held) {
                let v = self.b.pure(Op::Choose, Ty::Int, Ty::Int, &[m, p, q]);
                return Ok(Value { held: Representation::Scalar(v), uniform });
            }
            if let (Some(p), Some(q)) = (self.as_narrow(x), self.as_narrow(y)) {
                return Ok(Value { held: Representation::Narrow(self.b.select(Ty::I32, m, p, q)), uniform });
            }
        }
        let (p, q) = (self.as_vector(x, dtype), self.as_vector(y, dtype));
        Ok(Value { held: Representation::Vector(self.b.select(Ty::of(dtype), m, p, q)), uniform })
    }

    /// The instruction that defines a value.
    pub(super) fn definition(&self, v: ValueId) -> Option<&InstKind> {
        let stores = |kind: &InstKind| matches!(kind, InstKind::Store { .. } | InstKind::StoreTemp(..));
        let insts = self.body.stages.iter().flat_map(|stage| &stage.insts);
        insts.map(|inst| (inst.id, &inst.kind)).find(|(id, kind)| *id == v && !stores(kind)).map(|(_, kind)| kind)
    }

    fn check_index(&mut self, value: ValueId, size: &Dim) -> Result<Value, LowerError> {
        let x = self.value(value)?;
        let size = self.scalar_expr(size)?;
        if let Some(v) = self.as_scalar(x) {
            let v = self.b.pure(Op::CheckIndex, Ty::Int, Ty::Int, &[v, size, V::NONE, self.error]);
            return Ok(Value { held: Representation::Scalar(v), uniform: true });
        }
        let tail = self.along.map_or(V::NONE, |along| along.tail);
        // An index of 32 bits stays one.
        if let Some(&InstKind::Cast(from)) = self.definition(value)
            && self.dtype_of(from)? == DType::I32
            && self.b.as_number(size).is_some_and(|size| size < i32::MAX as i64)
        {
            let from = self.value(from)?;
            let v = self.as_vector(from, DType::I32);
            let v = self.b.pure(Op::CheckIndex, Ty::I32, Ty::I32, &[v, size, tail, self.error]);
            return Ok(Value { held: Representation::Narrow(v), uniform: false });
        }
        let v = self.as_wide(x);
        let v = self.b.pure(Op::CheckIndex, Ty::I64, Ty::I64, &[v, size, tail, self.error]);
        Ok(Value { held: Representation::Vector(v), uniform: false })
    }
}

fn scalar_op(op: BinaryOp) -> Option<IntOp> {
    Some(match op {
        BinaryOp::Add => IntOp::Add,
        BinaryOp::Sub => IntOp::Sub,
        BinaryOp::Mul => IntOp::Mul,
        BinaryOp::Min => IntOp::Min,
        BinaryOp::Max => IntOp::Max,
        _ => return None,
    })
}
