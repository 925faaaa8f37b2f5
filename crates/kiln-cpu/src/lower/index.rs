//! Index expressions: as scalars, as vectors along the lanes, and as masks.

use super::*;
use kiln_ir::dim::Factor;

/// An index expression along the vector axis.
pub(super) enum Shape {
    /// `scalar + stride · lane index`; the scalar is the value at the first lane of the copy.
    Linear {
        /// At lane 0.
        start: V,
        /// Elements per lane; constant or not.
        stride: V,
    },
    /// Anything else.
    Other,
}

impl Lowerer<'_> {
    fn symbol(&self, symbol: Symbol) -> Result<V, LowerError> {
        // Innermost first: coordinates of an inner nest come later in the list.
        let found = self.symbols.iter().rev().find(|(s, _)| *s == symbol);
        found.map(|(_, v)| *v).ok_or(LowerError::UnknownSymbol(symbol))
    }

    /// The value of an expression that does not vary along the lanes.
    pub(super) fn scalar_expr(&mut self, e: &Dim) -> Result<V, LowerError> {
        if let Some(c) = e.as_const() {
            return Ok(self.b.number(c));
        }
        if e.is_undefined() {
            return Err(LowerError::Overflow);
        }
        let mut terms: Vec<V> = Vec::new();
        let mut result = Ok(());
        let mut constant = 0;
        e.visit_terms(&mut |coef, factors| {
            if result.is_err() {
                return;
            }
            if factors.is_empty() {
                constant = coef;
                return;
            }
            match self.scalar_term(coef, factors) {
                Ok(v) => terms.push(v),
                Err(error) => result = Err(error),
            }
        });
        result?;
        // Loop-invariant terms are summed first, so that they are hoisted.
        terms.sort_by_key(|&v| self.b.level(v));
        let mut sum = self.b.number(constant);
        for term in terms {
            sum = self.b.int(IntOp::Add, sum, term);
        }
        Ok(sum)
    }

    fn scalar_term(&mut self, coef: i64, factors: &[Factor<'_>]) -> Result<V, LowerError> {
        let mut list = Vec::with_capacity(factors.len());
        for factor in factors {
            list.push(match factor {
                Factor::Symbol(s) => self.symbol(*s)?,
                Factor::FloorDiv(a, b) => self.scalar_pair(IntOp::FloorDiv, a, b)?,
                Factor::Modulo(a, b) => self.scalar_pair(IntOp::Modulo, a, b)?,
                Factor::Min(l) => self.scalar_fold(IntOp::Min, l)?,
                Factor::Max(l) => self.scalar_fold(IntOp::Max, l)?,
            });
        }
        list.sort_by_key(|&v| self.b.level(v));
        let mut product = self.b.number(coef);
        for factor in list {
            product = self.b.int(IntOp::Mul, product, factor);
        }
        Ok(product)
    }

    fn scalar_pair(&mut self, op: IntOp, a: &Dim, b: &Dim) -> Result<V, LowerError> {
        let (a, b) = (self.scalar_expr(a)?, self.scalar_expr(b)?);
        Ok(self.b.int(op, a, b))
    }

    fn scalar_fold(&mut self, op: IntOp, list: &[Dim]) -> Result<V, LowerError> {
        let mut sum = None;
        for e in list {
            let v = self.scalar_expr(e)?;
            sum = Some(match sum {
                None => v,
                Some(s) => self.b.int(op, s, v),
            });
        }
        sum.ok_or(LowerError::Overflow)
    }

    /// Index of the first lane of the current copy.
    pub(super) fn first_lane(&mut self, along: Along) -> V {
        let (vectors, odd) =
            if along.paired { (self.copy & !1, self.copy & 1) } else { (along.vectors + self.copy, 0) };
        let start = if vectors == 0 { along.counter } else { self.b.add_lanes(along.counter, vectors as i32) };
        let odd = self.b.number(odd as i64);
        self.b.int(IntOp::Add, start, odd)
    }

    /// Whether an expression varies along the lanes.
    pub(super) fn varies(&self, e: &Dim) -> bool {
        self.along.is_some_and(|along| e.contains(along.var))
    }

    /// An expression along the lanes.
    pub(super) fn shape(&mut self, e: &Dim) -> Result<Shape, LowerError> {
        let Some(along) = self.along.filter(|along| e.contains(along.var)) else {
            let start = self.scalar_expr(e)?;
            let stride = self.b.number(0);
            return Ok(Shape::Linear { start, stride });
        };
        let Some((coef, rest)) = e.linear_in(along.var) else { return Ok(Shape::Other) };
        let rest = self.scalar_expr(&rest)?;
        let stride = self.scalar_expr(&coef)?;
        let lane = self.first_lane(along);
        let moved = self.b.int(IntOp::Mul, lane, stride);
        let start = self.b.int(IntOp::Add, rest, moved);
        let step = self.b.number(if along.paired { 2 } else { 1 });
        let stride = self.b.int(IntOp::Mul, stride, step);
        Ok(Shape::Linear { start, stride })
    }

    /// Whether every value of the expression, and of every part of it, fits 32 bits with a margin.
    pub(super) fn is_narrow(&self, e: &Dim) -> bool {
        const LIMIT: i64 = i32::MAX as i64 - 1;
        let fits = |e: &Dim| matches!(e.bounds(&self.ranges), (Some(lo), Some(hi)) if lo > -LIMIT && hi < LIMIT);
        let mut ok = fits(e);
        let mut partial = 0i64;
        e.visit_terms(&mut |coef, factors| {
            // Partial sums: bounded by the sum of the terms' magnitudes.
            let mut magnitude = coef.saturating_abs();
            for factor in factors {
                let part = match factor {
                    Factor::Symbol(s) => Dim::from(*s),
                    Factor::FloorDiv(a, b) => {
                        ok = ok && self.is_narrow(a) && self.is_narrow(b);
                        a.floor_div(b)
                    }
                    Factor::Modulo(a, b) => {
                        ok = ok && self.is_narrow(a) && self.is_narrow(b);
                        a.modulo(b)
                    }
                    Factor::Min(l) | Factor::Max(l) => {
                        ok = ok && l.iter().all(|e| self.is_narrow(e));
                        l.iter().cloned().fold(Dim::from(0), |m, e| Dim::max_of([m, -&e, e]))
                    }
                };
                match part.bounds(&self.ranges) {
                    (Some(lo), Some(hi)) => {
                        magnitude = magnitude.saturating_mul(lo.saturating_abs().max(hi.saturating_abs()))
                    }
                    _ => ok = false,
                }
            }
            partial = partial.saturating_add(magnitude);
        });
        ok && partial < LIMIT
    }

    /// An expression as a vector of I32 (which must be narrow) or I64.
    pub(super) fn vector_expr(&mut self, ty: Ty, e: &Dim) -> Result<V, LowerError> {
        match self.shape(e)? {
            Shape::Linear { start, stride } => {
                let (zero, splat) = (self.b.number(0), self.b.pure(Op::Splat, ty, ty, &[start]));
                match self.b.as_number(stride) {
                    Some(0) => Ok(splat),
                    Some(1) => Ok(self.b.pure(Op::LaneIndex(0), ty, ty, &[start])),
                    _ => {
                        let lanes = self.b.pure(Op::LaneIndex(0), ty, ty, &[zero]);
                        let by = self.b.pure(Op::Splat, ty, ty, &[stride]);
                        let steps = self.b.mul(ty, lanes, by);
                        Ok(self.b.add(ty, splat, steps))
                    }
                }
            }
            Shape::Other => self.vector_sum(ty, e),
        }
    }

    fn vector_sum(&mut self, ty: Ty, e: &Dim) -> Result<V, LowerError> {
        // Terms that are the same in all lanes are summed as scalars.
        let mut uniform = Dim::from(0);
        let mut sum: Option<V> = None;
        let mut result = Ok(());
        e.visit_terms(&mut |coef, factors| {
            if result.is_err() {
                return;
            }
            let dim = |f: &Factor<'_>| match f {
                Factor::Symbol(s) => Dim::from(*s),
                Factor::FloorDiv(a, b) => a.floor_div(b),
                Factor::Modulo(a, b) => a.modulo(b),
                Factor::Min(l) => Dim::min_of(l.iter().cloned()),
                Factor::Max(l) => Dim::max_of(l.iter().cloned()),
            };
            if !factors.iter().any(|f| self.varies(&dim(f))) {
                uniform += factors.iter().map(dim).product::<Dim>() * coef;
                return;
            }
            match self.vector_term(ty, coef, factors) {
                Ok(v) => sum = Some(sum.map_or(v, |s| self.b.add(ty, s, v))),
                Err(error) => result = Err(error),
            }
        });
        result?;
        let uniform = self.scalar_expr(&uniform)?;
        let splat = self.b.pure(Op::Splat, ty, ty, &[uniform]);
        Ok(match sum {
            Some(s) if self.b.as_number(uniform) == Some(0) => s,
            Some(s) => self.b.add(ty, s, splat),
            None => splat,
        })
    }

    fn vector_term(&mut self, ty: Ty, coef: i64, factors: &[Factor<'_>]) -> Result<V, LowerError> {
        let mut product: Option<V> = None;
        for factor in factors {
            let v = match factor {
                Factor::Symbol(s) => self.vector_expr(ty, &Dim::from(*s))?,
                Factor::FloorDiv(a, b) => self.vector_divide(ty, a, b, true)?,
                Factor::Modulo(a, b) => self.vector_divide(ty, a, b, false)?,
                Factor::Min(l) => self.vector_fold(BinOp::Min, ty, l)?,
                Factor::Max(l) => self.vector_fold(BinOp::Max, ty, l)?,
            };
            product = Some(product.map_or(v, |p| self.b.mul(ty, p, v)));
        }
        let product = product.ok_or(LowerError::Overflow)?;
        if coef == 1 {
            return Ok(product);
        }
        let coef = self.b.bits(ty, coef as u64);
        Ok(self.b.mul(ty, product, coef))
    }

    fn vector_fold(&mut self, op: BinOp, ty: Ty, list: &[Dim]) -> Result<V, LowerError> {
        let mut sum = None;
        for e in list {
            let v = self.vector_expr(ty, e)?;
            sum = Some(match sum {
                None => v,
                Some(s) => self.b.bin(op, ty, s, v),
            });
        }
        sum.ok_or(LowerError::Overflow)
    }

    fn vector_divide(&mut self, ty: Ty, a: &Dim, b: &Dim, quotient: bool) -> Result<V, LowerError> {
        let x = self.vector_expr(ty, a)?;
        if let Some(n) = b.as_const().filter(|n| *n > 0 && n & (n - 1) == 0) {
            return Ok(if quotient {
                let by = self.b.bits(ty, n.trailing_zeros().into());
                self.b.bin(BinOp::Sar, ty, x, by)
            } else {
                let mask = self.b.bits(ty, (n - 1) as u64);
                self.b.and(ty, x, mask)
            });
        }
        let y = self.vector_expr(ty, b)?;
        if ty == Ty::I64 {
            let f = if quotient { ScalarFn::FloorDiv } else { ScalarFn::Modulo };
            return Ok(self.b.pure(Op::Call(f), ty, ty, &[x, y]));
        }
        let mut q = self.b.div(ty, x, y);
        let mut rest = self.b.mul(ty, q, y);
        rest = self.b.sub(ty, x, rest);
        if !(a.is_nonneg(&self.ranges) && b.is_nonneg(&self.ranges)) {
            // Towards −∞: one step where the remainder's sign is not the divisor's.
            let zero = self.b.splat(ty, 0.0);
            let one = self.b.splat(ty, 1.0);
            let signs = self.b.xor(ty, rest, y);
            let signs_differ = self.b.compare(CompareOp::Lt, ty, signs, zero);
            let some = self.b.compare(CompareOp::Ne, ty, rest, zero);
            let fix = self.b.and(Ty::Mask, signs_differ, some);
            let down = self.b.sub(ty, q, one);
            q = self.b.select(ty, fix, down, q);
            let up = self.b.add(ty, rest, y);
            rest = self.b.select(ty, fix, up, rest);
        }
        Ok(if quotient { q } else { rest })
    }

    /// A mask of the lanes where `low ≤ e < high`.
    pub(super) fn in_range(&mut self, e: &Dim, low: &Dim, high: &Dim) -> Result<Value, LowerError> {
        let uniform = !(self.varies(e) || self.varies(low) || self.varies(high));
        let mut mask = self.b.bits(Ty::Mask, 1);
        if (low - e - 1).is_nonneg(&self.ranges) || (e - high).is_nonneg(&self.ranges) {
            return Ok(Value { held: Representation::Vector(self.b.bits(Ty::Mask, 0)), uniform: true });
        }
        if let Some(mask) = self.between(e, low, high)? {
            return Ok(Value { held: Representation::Vector(mask), uniform });
        }
        if (e - low).is_nonneg(&self.ranges) {
            // Nothing to check.
        } else {
            let below = self.below(e, low)?;
            let not = self.b.not(below);
            mask = self.b.and(Ty::Mask, mask, not);
        }
        if !(high - e - 1).is_nonneg(&self.ranges) {
            let below = self.below(e, high)?;
            mask = self.b.and(Ty::Mask, mask, below);
        }
        Ok(Value { held: Representation::Vector(mask), uniform })
    }

    /// A mask of the lanes where `low ≤ e < high`, by one comparison of numbers without a sign; `None` where one bound is enough, or e
    /// does not step by one along the lanes.
    fn between(&mut self, e: &Dim, low: &Dim, high: &Dim) -> Result<Option<V>, LowerError> {
        let (from_low, size) = (e - low, high - low);
        let one_bound = from_low.is_nonneg(&self.ranges) || (high - e - 1).is_nonneg(&self.ranges);
        let fits = size.is_nonneg(&self.ranges) && self.is_narrow(&from_low) && self.is_narrow(&size);
        if one_bound || !fits || !self.varies(e) || self.varies(&size) || self.packed.is_some() {
            return Ok(None);
        }
        let Shape::Linear { start, stride } = self.shape(&from_low)? else { return Ok(None) };
        if self.b.as_number(stride) != Some(1) {
            return Ok(None);
        }
        // Both moved down by half of the range: the order without a sign is that with one then.
        let (size, bias) = (self.scalar_expr(&size)?, self.b.number(i32::MIN.into()));
        let (start, size) = (self.b.int(IntOp::Add, start, bias), self.b.int(IntOp::Add, size, bias));
        let lanes = self.b.pure(Op::LaneIndex(0), Ty::I32, Ty::I32, &[start]);
        let size = match self.b.as_number(size) {
            Some(n) => self.b.bits(Ty::I32, u64::from(n as u32)),
            None => self.b.pure(Op::Splat, Ty::I32, Ty::I32, &[size]),
        };
        Ok(Some(self.b.compare(CompareOp::Lt, Ty::I32, lanes, size)))
    }

    /// A mask of the lanes where `e < bound`.
    fn below(&mut self, e: &Dim, bound: &Dim) -> Result<V, LowerError> {
        let difference = e - bound;
        if let Shape::Linear { start, stride } = self.shape(&difference)? {
            let zero = self.b.number(0);
            match self.b.as_number(stride) {
                Some(0) => return Ok(self.b.pure(Op::CompareInt(CompareOp::Lt), Ty::Int, Ty::Mask, &[start, zero])),
                // start + s·lane < 0: lanes below ⌈−start / s⌉.
                Some(s) if s > 0 => {
                    let (s, round) = (self.b.number(s), self.b.number(s - 1));
                    let end = self.b.int(IntOp::Sub, round, start);
                    let end = self.b.int(IntOp::FloorDiv, end, s);
                    return Ok(self.b.pure(Op::TailMask, Ty::Mask, Ty::Mask, &[zero, end]));
                }
                // start − s·lane < 0: not the lanes below ⌊start / s⌋ + 1.
                Some(s) => {
                    let (s, one) = (self.b.number(-s), self.b.number(1));
                    let end = self.b.int(IntOp::FloorDiv, start, s);
                    let end = self.b.int(IntOp::Add, end, one);
                    let not = self.b.pure(Op::TailMask, Ty::Mask, Ty::Mask, &[zero, end]);
                    return Ok(self.b.not(not));
                }
                None => {}
            }
        }
        let ty = if self.is_narrow(&difference) { Ty::I32 } else { Ty::I64 };
        let v = self.vector_expr(ty, &difference)?;
        let zero = self.b.splat(ty, 0.0);
        Ok(self.b.compare(CompareOp::Lt, ty, v, zero))
    }

    /// The value of an index expression as I64.
    pub(super) fn index_value(&mut self, e: &Dim) -> Result<Value, LowerError> {
        if !self.varies(e) {
            return Ok(Value { held: Representation::Scalar(self.scalar_expr(e)?), uniform: true });
        }
        let held = if self.is_narrow(e) {
            Representation::Narrow(self.vector_expr(Ty::I32, e)?)
        } else {
            Representation::Vector(self.vector_expr(Ty::I64, e)?)
        };
        Ok(Value { held, uniform: false })
    }
}
