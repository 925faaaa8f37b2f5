//! Finds addresses of a launch that are outside of their buffer for all sizes.
//!
//! Two points of the axes are looked at for each load and store: the one of the lowest and the one of the highest position. A
//! place is refused only where a proof says that it is outside there, that the axes are not empty and that the guard holds.

use super::{KernelViolation, Location, Part, Rule};
use crate::kernel::{Axis, Domain, Inst, InstKind, KernelBody, LoopBody, Place, ValueId};
use crate::schedule::{BufferId, Role, Schedule};
use crate::verify::{Launch, Violation};
use kiln_ir::{BinaryOp, Dim, Ranges, Symbol};

/// Checks the places of every launch of loops and products.
pub(in crate::verify) fn bounds(schedule: &Schedule, known: &Ranges) -> Result<(), Violation> {
    for (at, step) in schedule.steps.iter().enumerate() {
        let launch = Launcher { schedule, at, ranges: known.clone(), sizes: Vec::new(), defs: Vec::new() };
        let mut launch = launch.with_sizes();
        for body in step.kernel.bodies() {
            match body {
                KernelBody::Loop(body) => launch.stages(body)?,
                KernelBody::Matmul(body) => {
                    let (batch, m, n, k) = (&body.batch[..], &body.m[..], &body.n[..], &body.k[..]);
                    body.before.iter().try_for_each(|before| launch.stages(before))?;
                    let right = body.rhs.iter().map(|rhs| (Part::Rhs, &rhs.insts, [batch, k, n]));
                    let left = (Part::Lhs, &body.lhs.insts, [batch, m, k]);
                    let epilogue = (Part::Epilogue, &body.epilogue, [batch, m, n]);
                    for (part, insts, axes) in right.chain([left, epilogue]) {
                        launch.defs = insts.iter().collect();
                        launch.part(part, insts, &axes)?;
                    }
                }
                KernelBody::Attention(_) | KernelBody::AttentionBackward(_) => {}
                KernelBody::Routine(_) | KernelBody::Repeat(_) | KernelBody::Parallel(_) => {}
            }
        }
    }
    Ok(())
}

/// One launch.
struct Launcher<'a> {
    schedule: &'a Schedule,
    at: usize,
    ranges: Ranges,
    /// Values of the kernel's size symbols over the graph's.
    sizes: Vec<(Symbol, Dim)>,
    /// Instructions that guards and indices may come from.
    defs: Vec<&'a Inst>,
}

/// A point of the axes, and of data-dependent indices.
type Point = Vec<(Symbol, Dim)>;

impl<'a> Launcher<'a> {
    fn with_sizes(mut self) -> Launcher<'a> {
        let step = &self.schedule.steps[self.at];
        self.sizes = step.kernel.sizes.iter().copied().zip(step.sizes.iter().cloned()).collect();
        // Sizes are not negative, and an axis that is a size by itself has to have a step for anything to be touched.
        for symbol in step.sizes.iter().flat_map(Dim::symbols) {
            let (low, high) = self.ranges.get(symbol).unwrap_or((0, None));
            self.ranges.set(symbol, low.max(0), high);
        }
        self
    }

    fn stages(&mut self, body: &'a LoopBody) -> Result<(), Violation> {
        self.defs = body.stages.iter().flat_map(|stage| &stage.insts).collect();
        for (number, stage) in body.stages.iter().enumerate() {
            let row = if stage.domain == Domain::Row { &body.row[..] } else { &[] };
            self.part(Part::Stage(number), &stage.insts, &[&body.grid, row])?;
        }
        Ok(())
    }

    fn part(&self, part: Part, insts: &'a [Inst], axes: &[&[Axis]]) -> Result<(), Violation> {
        let axes: Vec<&Axis> = axes.iter().copied().flatten().collect();
        for (number, inst) in insts.iter().enumerate() {
            let (place, guard) = match &inst.kind {
                InstKind::Load { place, guard } | InstKind::Store { place, guard, .. } => (place, *guard),
                InstKind::LoadBlock { place, .. } => (place, None),
                _ => continue,
            };
            if let Some((buffer, position, elements)) = self.outside(place, guard, &axes) {
                let (at, rule) = (Location::of(part, number, inst), Rule::Outside { buffer, position, elements });
                let cause = Box::new(KernelViolation { at, rule });
                return Err(Violation::Kernel { at: Launch::of(self.at, &self.schedule.steps), cause });
            }
        }
        Ok(())
    }

    /// The expression over the graph's symbols at a point.
    fn at(&self, dim: &Dim, point: &Point) -> Dim {
        if dim.as_const().is_some() {
            return dim.clone();
        }
        let find = |list: &[(Symbol, Dim)], symbol| list.iter().find(|(s, _)| *s == symbol).map(|(_, dim)| dim.clone());
        // Sizes of axes are over size symbols only, so one substitution after the other is one at once.
        dim.substitute(&|symbol| find(point, symbol)).substitute(&|symbol| find(&self.sizes, symbol))
    }

    /// The inst that defines a value.
    fn def(&self, value: ValueId) -> Option<&'a Inst> {
        let stores = |inst: &Inst| matches!(inst.kind, InstKind::Store { .. } | InstKind::StoreTemp(..));
        self.defs.iter().copied().find(|inst| inst.id == value && !stores(inst))
    }

    /// The buffer, position and size where a place is provably outside.
    fn outside(&self, place: &Place, guard: Option<ValueId>, axes: &[&Axis]) -> Option<(BufferId, Dim, Dim)> {
        let buffer = *self.schedule.steps[self.at].args.get(place.buffer)?;
        let decl = self.schedule.buffers.get(buffer.index())?;
        // How far the memory of an input goes depends on its strides.
        if matches!(decl.role, Role::Input(_)) {
            return None;
        }
        let mut ranges = self.ranges.clone();
        let mut offset = place.offset.clone();
        let mut spans: Vec<(Symbol, Dim)> = axes.iter().map(|axis| (axis.var, axis.size.clone())).collect();
        for (number, (value, stride)) in place.indirect.iter().enumerate() {
            let InstKind::CheckIndex { size, .. } = &self.def(*value)?.kind else { return None };
            let symbol = Symbol::new(&format!("at{number}"))?;
            offset += Dim::from(symbol) * stride.clone();
            spans.push((symbol, size.clone()));
        }
        for (_, size) in &spans {
            let size = self.at(size, &Point::new());
            if let Some(symbol) = size.as_symbol() {
                let (low, high) = ranges.get(symbol).unwrap_or((0, None));
                ranges.set(symbol, low.max(1), high);
            }
            if !(size - 1).is_nonneg(&ranges) {
                return None;
            }
        }
        let elements = self.at(&decl.elements, &Point::new());
        for highest in [false, true] {
            let coordinate = |(symbol, size): &(Symbol, Dim)| {
                let rises = match offset.linear_in(*symbol) {
                    Some((stride, _)) => !(-self.at(&stride, &Point::new())).is_nonneg(&ranges),
                    None => true,
                };
                (*symbol, if rises == highest { size - 1 } else { Dim::from(0) })
            };
            let point: Point = spans.iter().map(coordinate).collect();
            let position = self.at(&offset, &point);
            let below = (-(&position) - 1).is_nonneg(&ranges);
            let above = (&position - &elements).is_nonneg(&ranges);
            if (below || above) && guard.is_none_or(|guard| self.holds(guard, &point, &ranges)) {
                return Some((buffer, position, elements));
            }
        }
        None
    }

    /// Whether a guard is provably true at a point.
    fn holds(&self, guard: ValueId, point: &Point, ranges: &Ranges) -> bool {
        match self.def(guard).map(|inst| &inst.kind) {
            Some(InstKind::Const(value)) => value.as_i64() != 0,
            Some(InstKind::InRange { expr, low, high }) => {
                let [expr, low, high] = [expr, low, high].map(|dim| self.at(dim, point));
                (&expr - &low).is_nonneg(ranges) && (&high - &expr - 1).is_nonneg(ranges)
            }
            Some(InstKind::Binary(BinaryOp::And, x, y)) => {
                self.holds(*x, point, ranges) && self.holds(*y, point, ranges)
            }
            _ => false,
        }
    }
}
