//! Ops that choose elements: padding and concatenation by position, gather by data; and short reductions, which name
//! their elements one by one.

use super::{FusionRejection, IndexId, Tracer};
use crate::dag::Def;
use crate::kernel::{InstKind, ValueId};
use kiln_ir::{BinaryOp, CompareOp, DType, Dim, NodeId, ReduceKind, Scalar, Symbol};

/// Whether a condition on indices holds.
enum Truth {
    Always,
    Never,
    When(ValueId),
}

impl Tracer<'_> {
    /// Takes the data-dependent parts out of an expression; `None` if it is not linear in them.
    pub(super) fn split_indirect(&self, expr: Dim) -> Option<(Dim, Vec<(ValueId, Dim)>)> {
        let mut rest = expr;
        let mut parts = Vec::new();
        for &(symbol, value) in &self.indirect {
            if rest.contains(symbol) {
                let (coef, other) = rest.linear_in(symbol)?;
                let moves =
                    |s: Symbol| crate::domain::axis_number(s).is_some() || self.indirect.iter().any(|i| i.0 == s);
                if coef.symbols().into_iter().any(moves) {
                    return None;
                }
                rest = other;
                parts.push((value, coef));
            }
        }
        Some((rest, parts))
    }

    /// An index expression, data-dependent or not, as a value.
    pub(super) fn index_value(&mut self, expr: &Dim, dtype: DType) -> Option<ValueId> {
        let (rest, parts) = self.split_indirect(expr.clone())?;
        let dag = &mut self.trace.dag;
        let mut sum = dag.index(rest, dtype);
        for (value, stride) in parts {
            let (value, stride) = (dag.cast(value, dtype), dag.index(stride, dtype));
            let part = if dag.as_constant(stride).is_some_and(|c| c.as_i64() == 1) {
                value
            } else {
                dag.binary(BinaryOp::Mul, value, stride)
            };
            sum = match dag.as_constant(sum) {
                Some(c) if c.as_i64() == 0 => part,
                _ => dag.binary(BinaryOp::Add, sum, part),
            };
        }
        Some(sum)
    }

    /// Whether `low ≤ expr < high`.
    fn in_range(&mut self, expr: &Dim, low: &Dim, high: &Dim) -> Option<Truth> {
        let (above, below) = (expr - low, high - 1 - expr);
        let (fits_low, fits_high) = (above.is_nonneg(&self.ranges), below.is_nonneg(&self.ranges));
        if fits_low && fits_high {
            return Some(Truth::Always);
        }
        if (-above - 1).is_nonneg(&self.ranges) || (-below - 1).is_nonneg(&self.ranges) {
            return Some(Truth::Never);
        }
        if !self.indirect.iter().any(|(symbol, _)| expr.contains(*symbol)) {
            let kind = InstKind::InRange { expr: expr.clone(), low: low.clone(), high: high.clone() };
            return Some(Truth::When(self.trace.dag.inst(kind, DType::Bool)));
        }
        let value = self.index_value(expr, DType::I64)?;
        let dag = &mut self.trace.dag;
        let (low, high) = (dag.index(low.clone(), DType::I64), dag.index(high.clone(), DType::I64));
        let (not_below, not_above) = (dag.compare(CompareOp::Ge, value, low), dag.compare(CompareOp::Lt, value, high));
        Some(Truth::When(dag.and(Some(not_below), not_above)))
    }

    pub(super) fn pad(
        &mut self,
        operand: NodeId,
        low: &[Dim],
        value: Scalar,
        index: IndexId,
        guard: Option<ValueId>,
    ) -> Result<ValueId, FusionRejection> {
        let at = self.indexes.get(index);
        let shape = &self.scope.graph.ty(operand).shape;
        let filler = self.trace.dag.constant(value);
        let mut condition: Option<ValueId> = None;
        let mut inner = Vec::with_capacity(at.len());
        for ((at, low), size) in at.iter().zip(low).zip(shape) {
            inner.push(at - low);
            match self.in_range(at, low, &(low + size)).ok_or(FusionRejection { node: operand })? {
                Truth::Always => {}
                Truth::Never => return Ok(filler),
                Truth::When(inside) => condition = Some(self.trace.dag.and(condition, inside)),
            }
        }
        let inner = self.indexes.intern(inner);
        let Some(condition) = condition else { return self.emit(operand, inner, guard) };
        let both = self.trace.dag.and(guard, condition);
        let value = self.emit(operand, inner, Some(both))?;
        let dag = &mut self.trace.dag;
        // A guarded load gives zero by itself where it is not allowed.
        let zero = dag.as_constant(filler).is_some_and(|c| c.as_f64().to_bits() == 0);
        let guarded =
            matches!(&dag.value(value).def, Def::Inst(InstKind::Load { guard: Some(g), .. }) if *g == condition);
        Ok(if zero && guarded { value } else { dag.select(condition, value, filler) })
    }

    pub(super) fn concat(
        &mut self,
        operands: &[NodeId],
        axis: usize,
        index: IndexId,
        guard: Option<ValueId>,
    ) -> Result<ValueId, FusionRejection> {
        let graph = self.scope.graph;
        let at = self.indexes.get(index);
        let mut start = Dim::default();
        let mut parts: Vec<(Option<ValueId>, ValueId)> = Vec::new();
        for &operand in operands {
            let size = &graph.ty(operand).shape[axis];
            let end = &start + size;
            let truth = self.in_range(&at[axis], &start, &end).ok_or(FusionRejection { node: operand })?;
            let mut inner = at.to_vec();
            inner[axis] = &at[axis] - &start;
            start = end;
            if size.is_zero() || matches!(truth, Truth::Never) {
                continue;
            }
            let inner = self.indexes.intern(inner);
            match truth {
                Truth::When(condition) => {
                    let both = self.trace.dag.and(guard, condition);
                    let value = self.emit(operand, inner, Some(both))?;
                    parts.push((Some(condition), value));
                }
                _ => {
                    let value = self.emit(operand, inner, guard)?;
                    parts.push((None, value));
                    break;
                }
            }
        }
        let dag = &mut self.trace.dag;
        let Some((_, last)) = parts.pop() else {
            // Out of range of every operand: a guard keeps the value from being used.
            let dtype = graph.ty(operands[0]).dtype;
            return Ok(dag.constant(if dtype.is_float() { Scalar::float(dtype, 0.0) } else { Scalar::int(dtype, 0) }));
        };
        Ok(parts.into_iter().rev().fold(last, |otherwise, (condition, value)| match condition {
            Some(condition) => dag.select(condition, value, otherwise),
            None => value,
        }))
    }

    pub(super) fn gather(
        &mut self,
        source: NodeId,
        positions: NodeId,
        axis: usize,
        index: IndexId,
        guard: Option<ValueId>,
    ) -> Result<ValueId, FusionRejection> {
        let graph = self.scope.graph;
        let position = self.emit(positions, index, guard)?;
        let dag = &mut self.trace.dag;
        let mut position = dag.cast(position, DType::I64);
        let mut size = graph.ty(source).shape[axis].clone();
        if let Some(guard) = guard {
            // What is computed where the guard is false must not be reported.
            let zero = dag.constant(Scalar::int(DType::I64, 0));
            position = dag.select(guard, position, zero);
            size = Dim::max_of([size, Dim::from(1)]);
        }
        let checked = dag.inst(InstKind::CheckIndex { value: position, size: size.clone() }, DType::I64);
        let symbol = match self.indirect.iter().find(|(_, value)| *value == checked) {
            Some((symbol, _)) => *symbol,
            None => {
                let name = format!("at{}", self.indirect.len());
                let symbol = Symbol::new(&name).ok_or(FusionRejection { node: source })?;
                self.ranges.set_below(symbol, size);
                self.indirect.push((symbol, checked));
                symbol
            }
        };
        let mut inner = self.indexes.get(index).to_vec();
        inner[axis] = symbol.into();
        let inner = self.indexes.intern(inner);
        // What cannot be computed at a data-dependent index is read from memory.
        self.emit(source, inner, guard).map_err(|_| FusionRejection { node: source })
    }

    /// A short reduction, element by element.
    pub(super) fn reduce_inline(
        &mut self,
        id: NodeId,
        kind: ReduceKind,
        axes: &[usize],
        index: IndexId,
        guard: Option<ValueId>,
    ) -> Result<ValueId, FusionRejection> {
        let graph = self.scope.graph;
        let node = graph.node(id);
        let count = i64::from(self.scope.inline[id.index()]);
        let shape = &graph.ty(node.operands[0]).shape;
        let mut at = self.indexes.get(index).to_vec();
        let mut result: Option<ValueId> = None;
        for number in 0..count {
            let mut rest = number;
            for &axis in axes.iter().rev() {
                let size = shape[axis].as_const().unwrap_or(1);
                at[axis] = Dim::from(rest % size);
                rest /= size;
            }
            let inner = self.indexes.intern(at.clone());
            let value = self.emit(node.operands[0], inner, guard)?;
            let dag = &mut self.trace.dag;
            let dtype = dag.value(value).dtype;
            result = Some(match (result, kind) {
                (Some(so_far), _) => dag.binary(kind.combine(), so_far, value),
                // A sum starts from zero, which takes the sign from a negative zero.
                (None, ReduceKind::Sum) if dtype.is_float() => {
                    let zero = dag.constant(Scalar::float(dtype, 0.0));
                    dag.binary(BinaryOp::Add, value, zero)
                }
                (None, _) => value,
            });
        }
        let result = result.ok_or(FusionRejection { node: id })?;
        let in_range = matches!(kind, ReduceKind::Max | ReduceKind::Min);
        Ok(self.trace.dag.settle(result, node.ty.dtype, in_range, self.scope.numerics))
    }
}
