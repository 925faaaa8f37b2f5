//! Reductions over the row: accumulators, their update at each point, and their results after the row.

use super::*;
use kiln_ir::{ArgKind, ReduceKind, Scalar};
use kiln_kernels::kernel::{Inst as BodyInst, Place, Reduction};

/// The accumulators of one reduction, one per copy.
pub(super) struct Accumulator {
    value: [V; COPIES],
    /// Position of the extreme, for arg reductions.
    position: [V; COPIES],
    /// Type of the positions.
    position_ty: Ty,
}

/// The result of a reduction over no points, as an instruction.
pub(super) fn of_nothing(r: &Reduction) -> BodyInst {
    let (dtype, value) = match r.kind {
        ReductionKind::Arg(_) => (DType::I64, Scalar::int(DType::I64, 0)),
        ReductionKind::Reduce(kind) => (r.dtype, kind.identity(r.dtype)),
    };
    BodyInst { id: r.result, dtype, kind: InstKind::Const(value) }
}

impl Lowerer<'_> {
    /// Copies of a heavy body whose row is a column of memory: each step of the row is on other cache lines, mostly on another page, of which
    /// several vectors side by side use more at a time. As many as a second-level cache has room for their row temporaries.
    pub(super) fn copies_of_columns(&self) -> usize {
        const LINE: i64 = 16;
        const MOST_BYTES: i64 = 512 << 10;
        let Some(row) = self.body.row.last() else { return 1 };
        let jumps = |place: &Place| match place.offset.linear_in(row.var) {
            Some((stride, _)) => stride.as_const().is_some_and(|n| n.abs() >= LINE),
            None => false,
        };
        let insts = self.body.stages.iter().filter(|stage| stage.domain == Domain::Row).flat_map(|stage| &stage.insts);
        let mut loads = insts.filter_map(|inst| match &inst.kind {
            InstKind::Load { place, .. } => Some(place),
            _ => None,
        });
        let room = match self.temp_bytes(1).as_const() {
            Some(0) => COPIES as i64,
            Some(bytes) => MOST_BYTES / bytes,
            None => 1,
        };
        if loads.any(jumps) { room.clamp(1, COPIES as i64 / 2) as usize } else { 1 }
    }

    /// Initialises the accumulators of a stage, before its loops.
    pub(super) fn accumulators(&mut self, stage: &Stage, copies: usize) -> Result<Vec<Accumulator>, LowerError> {
        let mut list = Vec::with_capacity(stage.reductions.len());
        for r in &stage.reductions {
            let ty = Ty::of(r.dtype);
            let init = self.identity(r.kind, ty);
            let points: Dim = self.body.row.iter().map(|axis| &axis.size).product();
            let narrow = points.as_const().is_some_and(|n| n < i32::MAX as i64 / 2);
            let position_ty = if narrow { Ty::I32 } else { Ty::I64 };
            let mut acc = Accumulator { value: [V::NONE; COPIES], position: [V::NONE; COPIES], position_ty };
            for copy in 0..copies {
                acc.value[copy] = self.b.variable(init);
                if matches!(r.kind, ReductionKind::Arg(_)) {
                    // −1: no element so far.
                    let none = self.b.bits(position_ty, if narrow { 0xffff_ffff } else { u64::MAX });
                    acc.position[copy] = self.b.variable(none);
                }
            }
            list.push(acc);
        }
        Ok(list)
    }

    fn identity(&mut self, kind: ReductionKind, ty: Ty) -> V {
        let highest = matches!(kind, ReductionKind::Reduce(ReduceKind::Min) | ReductionKind::Arg(ArgKind::Min));
        match (kind, ty) {
            (ReductionKind::Reduce(ReduceKind::Sum), _) => self.b.splat(ty, 0.0),
            (ReductionKind::Reduce(ReduceKind::Prod), _) => self.b.splat(ty, 1.0),
            (_, Ty::Mask) => self.b.bits(ty, highest.into()),
            (_, Ty::F32 | Ty::F64) => self.b.splat(ty, if highest { f64::INFINITY } else { f64::NEG_INFINITY }),
            (_, Ty::I32) => self.b.bits(ty, u64::from(if highest { i32::MAX } else { i32::MIN } as u32)),
            _ => self.b.bits(ty, if highest { i64::MAX } else { i64::MIN } as u64),
        }
    }

    /// Accumulates the values of the current point.
    pub(super) fn accumulate(
        &mut self,
        stage: &Stage,
        accumulators: &[Accumulator],
        copies: usize,
    ) -> Result<(), LowerError> {
        let tail = self.along.map_or(V::NONE, |along| along.tail);
        for copy in 0..copies {
            self.copy = copy;
            for (r, acc) in stage.reductions.iter().zip(accumulators) {
                match r.kind {
                    ReductionKind::Reduce(kind) => {
                        let next = self.combined(r, kind, acc.value[copy])?;
                        let next = self.masked(Ty::of(r.dtype), tail, next, acc.value[copy]);
                        self.b.assign(acc.value[copy], next);
                    }
                    ReductionKind::Arg(kind) => self.accumulate_arg(r, kind, acc, tail)?,
                }
            }
        }
        self.copy = 0;
        Ok(())
    }

    fn masked(&mut self, ty: Ty, tail: V, next: V, old: V) -> V {
        // Lanes along a grid axis that do not exist may hold anything; lanes of a row must not be counted.
        if tail.is_some() && !self.by_lane { self.b.select(ty, tail, next, old) } else { next }
    }

    fn combined(&mut self, r: &Reduction, kind: ReduceKind, acc: V) -> Result<V, LowerError> {
        let ty = Ty::of(r.dtype);
        let value = self.value(r.value)?;
        let x = self.as_vector(value, r.dtype);
        if kind == ReduceKind::Sum
            && ty.is_float()
            && self.options.contract
            && let Some((p, q)) = self.product_of(r.value, x)
        {
            return Ok(self.b.fma(ty, p, q, acc));
        }
        Ok(self.combine(kind, ty, x, acc))
    }

    /// `x ∘ acc`; NaN wins in extremes.
    fn combine(&mut self, kind: ReduceKind, ty: Ty, x: V, acc: V) -> V {
        let op = match (kind, ty) {
            (ReduceKind::Sum | ReduceKind::Max, Ty::Mask) => BinOp::Or,
            (ReduceKind::Prod | ReduceKind::Min, Ty::Mask) => BinOp::And,
            (ReduceKind::Sum, _) => BinOp::Add,
            (ReduceKind::Prod, _) => BinOp::Mul,
            (ReduceKind::Max, Ty::F32 | Ty::F64) => BinOp::MaxNan,
            (ReduceKind::Min, Ty::F32 | Ty::F64) => BinOp::MinNan,
            (ReduceKind::Max, _) => BinOp::Max,
            (ReduceKind::Min, _) => BinOp::Min,
        };
        self.b.pure(Op::Bin(op), ty, ty, &[x, acc])
    }

    /// Whether x replaces acc: more extreme, or NaN where acc is not, or there was no element.
    fn better(&mut self, kind: ArgKind, ty: Ty, x: V, acc: V) -> V {
        let op = if kind == ArgKind::Max { CompareOp::Gt } else { CompareOp::Lt };
        if ty == Ty::Mask {
            // True is more than false.
            let (more, less) = if kind == ArgKind::Max { (x, acc) } else { (acc, x) };
            return self.b.bin(BinOp::AndNot, ty, less, more);
        }
        let more = self.b.compare(op, ty, x, acc);
        if !ty.is_float() {
            return more;
        }
        let x_nan = self.b.compare(CompareOp::Ne, ty, x, x);
        let acc_number = self.b.compare(CompareOp::Eq, ty, acc, acc);
        let new_nan = self.b.and(Ty::Mask, x_nan, acc_number);
        self.b.or(Ty::Mask, more, new_nan)
    }

    fn accumulate_arg(&mut self, r: &Reduction, kind: ArgKind, acc: &Accumulator, tail: V) -> Result<(), LowerError> {
        let ty = Ty::of(r.dtype);
        let value = self.value(r.value)?;
        let x = self.as_vector(value, r.dtype);
        let (best, at, pty) = (acc.value[self.copy], acc.position[self.copy], acc.position_ty);
        let here = self.row_index(pty)?;
        let better = self.better(kind, ty, x, best);
        let zero = self.b.bits(pty, 0);
        let first = self.b.compare(CompareOp::Lt, pty, at, zero);
        let mut take = self.b.or(Ty::Mask, better, first);
        if tail.is_some() && !self.by_lane {
            take = self.b.and(Ty::Mask, take, tail);
        }
        let next = self.b.select(ty, take, x, best);
        self.b.assign(best, next);
        let next = self.b.select(pty, take, here, at);
        self.b.assign(at, next);
        Ok(())
    }

    /// The linear position in the row of each lane.
    fn row_index(&mut self, ty: Ty) -> Result<V, LowerError> {
        let mut linear = Dim::from(0);
        for axis in &self.body.row {
            linear = linear * &axis.size + Dim::from(axis.var);
        }
        self.vector_expr(ty, &linear)
    }

    /// Results where each lane is a grid point: the accumulators themselves.
    pub(super) fn results_by_lane(&mut self, stage: &Stage, accumulators: &[Accumulator], copies: usize) {
        for (r, acc) in stage.reductions.iter().zip(accumulators) {
            for copy in 0..copies {
                let held = match r.kind {
                    ReductionKind::Reduce(_) => Representation::Vector(self.b.read(acc.value[copy])),
                    ReductionKind::Arg(_) => {
                        let at = self.b.read(acc.position[copy]);
                        if acc.position_ty == Ty::I32 { Representation::Narrow(at) } else { Representation::Vector(at) }
                    }
                };
                if let Some(slot) = self.values.get_mut(r.result.0 as usize) {
                    slot[copy] = Some(Value { held, uniform: self.along.is_none() });
                }
            }
        }
    }

    /// Results where the lanes are a row: copies combined, then lanes.
    pub(super) fn results_of_row(
        &mut self,
        stage: &Stage,
        accumulators: &[Accumulator],
        copies: usize,
    ) -> Result<(), LowerError> {
        for (r, acc) in stage.reductions.iter().zip(accumulators) {
            let held = match r.kind {
                ReductionKind::Reduce(kind) => {
                    Representation::Vector(self.finish_reduce(kind, Ty::of(r.dtype), &acc.value[..copies]))
                }
                ReductionKind::Arg(kind) => self.finish_arg(kind, Ty::of(r.dtype), acc, copies),
            };
            let slot =
                self.values.get_mut(r.result.0 as usize).ok_or(LowerError::Malformed("a result without a number"))?;
            *slot = [Some(Value { held, uniform: true }); COPIES];
        }
        Ok(())
    }

    fn finish_reduce(&mut self, kind: ReduceKind, ty: Ty, copies: &[V]) -> V {
        let mut list = copies.to_vec();
        while list.len() > 1 {
            list = list
                .chunks(2)
                .map(|pair| match pair {
                    [a, b] => self.combine(kind, ty, *a, *b),
                    _ => pair[0],
                })
                .collect();
        }
        let how = match kind {
            ReduceKind::Sum if ty == Ty::Mask => Combine::Max,
            ReduceKind::Prod if ty == Ty::Mask => Combine::Min,
            ReduceKind::Sum => Combine::Add,
            ReduceKind::Prod => Combine::Mul,
            ReduceKind::Max => Combine::Max,
            ReduceKind::Min => Combine::Min,
        };
        self.b.pure(Op::Reduce(how), ty, ty, &[list[0]])
    }

    /// The lowest position among the lanes that hold the extreme.
    fn finish_arg(&mut self, kind: ArgKind, ty: Ty, acc: &Accumulator, copies: usize) -> Representation {
        let pty = acc.position_ty;
        let reduce = if kind == ArgKind::Max { ReduceKind::Max } else { ReduceKind::Min };
        let extreme = self.finish_reduce(reduce, ty, &acc.value[..copies]);
        let last = self.b.bits(pty, if pty == Ty::I32 { i32::MAX as u64 } else { i64::MAX as u64 });
        let zero = self.b.bits(pty, 0);
        let mut lowest = last;
        for copy in 0..copies {
            let (x, at) = (acc.value[copy], acc.position[copy]);
            let same = if ty == Ty::Mask {
                let differ = self.b.bin(BinOp::Xor, ty, x, extreme);
                self.b.not(differ)
            } else if ty.is_float() {
                let same = self.b.compare(CompareOp::Eq, ty, x, extreme);
                let x_nan = self.b.compare(CompareOp::Ne, ty, x, x);
                let nan = self.b.compare(CompareOp::Ne, ty, extreme, extreme);
                let both = self.b.and(Ty::Mask, x_nan, nan);
                self.b.or(Ty::Mask, same, both)
            } else {
                self.b.compare(CompareOp::Eq, ty, x, extreme)
            };
            // A lane without elements has position −1.
            let seen = self.b.compare(CompareOp::Ge, pty, at, zero);
            let same = self.b.and(Ty::Mask, same, seen);
            let position = self.b.select(pty, same, at, last);
            lowest = self.b.bin(BinOp::Min, pty, lowest, position);
        }
        let lowest = self.b.pure(Op::Reduce(Combine::Min), pty, pty, &[lowest]);
        Representation::Scalar(self.b.pure(Op::FirstLane, pty, Ty::Int, &[lowest]))
    }
}
