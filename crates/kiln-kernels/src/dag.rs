//! The values of one kernel before they are put into stages: a graph of instructions without duplicates.

use crate::hash::{FastMap, WordHasher};
use crate::kernel::{InstKind, Place, ReductionKind, ValueId};
use kiln_ir::{BinaryOp, CompareOp, DType, Dim, Scalar, UnaryOp};
use std::hash::{Hash, Hasher};

/// The definition of a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Def {
    /// Computed where it is used. Never a store or a temp.
    Inst(InstKind),
    /// A combination over the row.
    Reduced {
        /// How values are combined.
        kind: ReductionKind,
        /// The value that is combined.
        value: ValueId,
    },
}

/// A value with its compute type (for `Arg` reductions `I64`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    /// Its definition.
    pub def: Def,
    /// Its type.
    pub dtype: DType,
}

/// Values in the order of definition; equal values are one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Dag {
    values: Vec<Value>,
    table: FastMap<u64, ValueId>,
}

impl Dag {
    /// The value number `id`.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// Every value, operands first.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Adds a value, or finds the one equal to it.
    pub fn add(&mut self, def: Def, dtype: DType) -> ValueId {
        let mut hasher = WordHasher::default();
        (&def, dtype).hash(&mut hasher);
        let mut key = hasher.finish();
        loop {
            match self.table.get(&key) {
                Some(&id) if self.value(id).def == def && self.value(id).dtype == dtype => return id,
                Some(_) => key = key.wrapping_add(1),
                None => break,
            }
        }
        let id = ValueId(self.values.len() as u32);
        self.values.push(Value { def, dtype });
        self.table.insert(key, id);
        id
    }

    /// Adds an instruction.
    pub fn inst(&mut self, kind: InstKind, dtype: DType) -> ValueId {
        self.add(Def::Inst(kind), dtype)
    }

    /// A constant, converted to its compute type.
    pub fn constant(&mut self, value: Scalar) -> ValueId {
        let dtype = value.dtype().compute_type();
        let value = match value {
            Scalar::Float(_, v) => Scalar::Float(dtype, v),
            Scalar::Int(_, v) => Scalar::Int(dtype, v),
        };
        self.inst(InstKind::Const(value), dtype)
    }

    /// The constant, if the value is one.
    pub fn as_constant(&self, id: ValueId) -> Option<Scalar> {
        match self.value(id).def {
            Def::Inst(InstKind::Const(c)) => Some(c),
            _ => None,
        }
    }

    /// An index expression as a value.
    pub fn index(&mut self, expr: Dim, dtype: DType) -> ValueId {
        match expr.as_const() {
            Some(c) => self.constant(Scalar::int(dtype, c)),
            None => self.inst(InstKind::Index(expr), dtype),
        }
    }

    /// A unary op.
    pub fn unary(&mut self, op: UnaryOp, x: ValueId) -> ValueId {
        let dtype = op.result(self.value(x).dtype);
        self.inst(InstKind::Unary(op, x), dtype)
    }

    /// A binary op.
    pub fn binary(&mut self, op: BinaryOp, x: ValueId, y: ValueId) -> ValueId {
        let dtype = self.value(x).dtype;
        self.inst(InstKind::Binary(op, x, y), dtype)
    }

    /// A comparison.
    pub fn compare(&mut self, op: CompareOp, x: ValueId, y: ValueId) -> ValueId {
        self.inst(InstKind::Compare(op, x, y), DType::Bool)
    }

    /// `condition ? then : otherwise`, decided here if the condition is a constant.
    pub fn select(&mut self, condition: ValueId, then: ValueId, otherwise: ValueId) -> ValueId {
        match self.as_constant(condition) {
            Some(c) if c.as_i64() != 0 => then,
            Some(_) => otherwise,
            None if then == otherwise => then,
            None => {
                let dtype = self.value(then).dtype;
                self.inst(InstKind::Select(condition, then, otherwise), dtype)
            }
        }
    }

    /// Conversion between compute types; nothing if it has that type.
    pub fn cast(&mut self, x: ValueId, to: DType) -> ValueId {
        if self.value(x).dtype == to {
            return x;
        }
        match self.as_constant(x) {
            Some(c) => self.constant(c.cast(to)),
            None => self.inst(InstKind::Cast(x), to),
        }
    }

    /// Rounds or wraps to a short type's precision, in its compute type.
    pub fn round(&mut self, x: ValueId, to: DType) -> ValueId {
        match &self.value(x).def {
            Def::Inst(InstKind::Round(_, same)) if *same == to => x,
            Def::Inst(InstKind::Const(c)) => {
                let c = *c;
                self.constant(c.cast(to))
            }
            _ => self.inst(InstKind::Round(x, to), to.compute_type()),
        }
    }

    /// Both conditions.
    pub fn and(&mut self, x: Option<ValueId>, y: ValueId) -> ValueId {
        match x {
            Some(x) if x != y => self.binary(BinaryOp::And, x, y),
            _ => y,
        }
    }
}

/// Calls `visit` with every value an instruction uses.
pub fn visit_operands(kind: &InstKind, visit: &mut dyn FnMut(ValueId)) {
    match kind {
        InstKind::Const(_) | InstKind::Index(_) | InstKind::InRange { .. } | InstKind::LoadTemp(_) => {}
        InstKind::Accumulator(_) => {}
        InstKind::LoadBlock { place, .. } => visit_place(place, visit),
        InstKind::Load { place, guard } => {
            visit_place(place, visit);
            guard.iter().copied().for_each(visit);
        }
        InstKind::Store { place, value, guard } => {
            visit_place(place, visit);
            visit(*value);
            guard.iter().copied().for_each(visit);
        }
        InstKind::StoreTemp(_, x)
        | InstKind::Unary(_, x)
        | InstKind::Cast(x)
        | InstKind::Bitcast(x)
        | InstKind::Round(x, _)
        | InstKind::CheckIndex { value: x, .. }
        | InstKind::Random { seed: x, .. } => visit(*x),
        InstKind::Binary(_, x, y) | InstKind::Compare(_, x, y) => {
            visit(*x);
            visit(*y);
        }
        InstKind::Select(c, x, y) => {
            visit(*c);
            visit(*x);
            visit(*y);
        }
    }
}

fn visit_place(place: &Place, visit: &mut dyn FnMut(ValueId)) {
    place.indirect.iter().for_each(|(id, _)| visit(*id));
}

/// Replaces every value an instruction uses.
pub fn map_operands(kind: &mut InstKind, map: &dyn Fn(ValueId) -> ValueId) {
    match kind {
        InstKind::Const(_) | InstKind::Index(_) | InstKind::InRange { .. } | InstKind::LoadTemp(_) => {}
        InstKind::Accumulator(_) => {}
        InstKind::LoadBlock { place, .. } => place.indirect.iter_mut().for_each(|(id, _)| *id = map(*id)),
        InstKind::Load { place, guard } => {
            place.indirect.iter_mut().for_each(|(id, _)| *id = map(*id));
            guard.iter_mut().for_each(|g| *g = map(*g));
        }
        InstKind::Store { place, value, guard } => {
            place.indirect.iter_mut().for_each(|(id, _)| *id = map(*id));
            *value = map(*value);
            guard.iter_mut().for_each(|g| *g = map(*g));
        }
        InstKind::StoreTemp(_, x)
        | InstKind::Unary(_, x)
        | InstKind::Cast(x)
        | InstKind::Bitcast(x)
        | InstKind::Round(x, _)
        | InstKind::CheckIndex { value: x, .. }
        | InstKind::Random { seed: x, .. } => *x = map(*x),
        InstKind::Binary(_, x, y) | InstKind::Compare(_, x, y) => (*x, *y) = (map(*x), map(*y)),
        InstKind::Select(c, x, y) => (*c, *x, *y) = (map(*c), map(*x), map(*y)),
    }
}

/// Calls `visit` with every index expression of an instruction.
pub fn visit_dims<'a>(kind: &'a InstKind, visit: &mut dyn FnMut(&'a Dim)) {
    match kind {
        InstKind::Index(expr) | InstKind::Random { position: expr, .. } => visit(expr),
        InstKind::CheckIndex { size, .. } => visit(size),
        InstKind::InRange { expr, low, high } => [expr, low, high].into_iter().for_each(visit),
        InstKind::Load { place, .. } | InstKind::Store { place, .. } => {
            visit(&place.offset);
            place.indirect.iter().for_each(|(_, stride)| visit(stride));
        }
        InstKind::LoadBlock { place, element, .. } => {
            visit(&place.offset);
            place.indirect.iter().for_each(|(_, stride)| visit(stride));
            visit(element);
        }
        _ => {}
    }
}

/// Replaces every index expression of an instruction.
pub fn map_dims(kind: &mut InstKind, map: &dyn Fn(&Dim) -> Dim) {
    match kind {
        InstKind::Index(expr) | InstKind::Random { position: expr, .. } => *expr = map(expr),
        InstKind::CheckIndex { size, .. } => *size = map(size),
        InstKind::InRange { expr, low, high } => [expr, low, high].into_iter().for_each(|d| *d = map(d)),
        InstKind::Load { place, .. } | InstKind::Store { place, .. } => {
            place.offset = map(&place.offset);
            place.indirect.iter_mut().for_each(|(_, stride)| *stride = map(stride));
        }
        InstKind::LoadBlock { place, element, .. } => {
            place.offset = map(&place.offset);
            place.indirect.iter_mut().for_each(|(_, stride)| *stride = map(stride));
            *element = map(element);
        }
        _ => {}
    }
}
