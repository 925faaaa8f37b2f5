//! Operands that are one load of a float at a place that is linear in every axis, guarded by ranges of linear expressions: what
//! [`crate::gemm::Windows`] reads in place.

use super::Known;
use crate::features::Isa;
use crate::gemm::{Extent, Guard, Windows};
use kiln_ir::{BinaryOp, DType, Dim};
use kiln_kernels::kernel::{Axis, Inst, InstKind, Kernel, MatmulBody, Place, Prologue, ValueId};
use kiln_runtime::{LaunchError, RawBuffer};

/// A linear expression: coefficients along two lists of axes, and the rest over sizes and batch variables.
pub(super) struct Linear {
    pub fixed: Vec<Dim>,
    pub running: Vec<Dim>,
    pub rest: Dim,
}

impl Linear {
    fn of(expr: &Dim, fixed: &[Axis], running: &[Axis]) -> Option<Linear> {
        let mut rest = expr.clone();
        let mut along = |axes: &[Axis]| -> Option<Vec<Dim>> {
            let mut coefficients = Vec::with_capacity(axes.len());
            for axis in axes {
                let (coefficient, left) = rest.linear_in(axis.var)?;
                if fixed.iter().chain(running).any(|axis| coefficient.contains(axis.var)) {
                    return None;
                }
                coefficients.push(coefficient);
                rest = left;
            }
            Some(coefficients)
        };
        let (fixed, running) = (along(fixed)?, along(running)?);
        Some(Linear { fixed, running, rest })
    }
}

/// `low ≤ expr < high`.
pub(super) struct Range {
    pub expr: Linear,
    pub low: Dim,
    pub high: Dim,
}

/// An operand that is unfolded as it is read.
pub(super) struct WindowLoad {
    pub buffer: usize,
    pub dtype: DType,
    pub place: Linear,
    pub guards: Vec<Range>,
    /// Sizes of the axes.
    pub fixed: Vec<Dim>,
    pub running: Vec<Dim>,
}

/// Factors of an operand: a load of floats that does not depend on the last of its running axes.
pub(super) struct FactorLoad {
    pub buffer: usize,
    pub place: Linear,
}

impl WindowLoad {
    /// `None` unless the prologue is one such load. `running` are the axes along which its rows are filled.
    pub fn of(
        kernel: &Kernel,
        body: &MatmulBody,
        prologue: &Prologue,
        fixed: &[Axis],
        running: &[Axis],
    ) -> Option<WindowLoad> {
        let (load, factors) = WindowLoad::with_factors(kernel, body, prologue, fixed, running)?;
        factors.is_none().then_some(load)
    }

    /// The same of one such load, or of one times factors.
    pub fn with_factors(
        kernel: &Kernel,
        body: &MatmulBody,
        prologue: &Prologue,
        fixed: &[Axis],
        running: &[Axis],
    ) -> Option<(WindowLoad, Option<FactorLoad>)> {
        let is_factor = |place: &Place| match running.last() {
            Some(axis) => !place.offset.contains(axis.var),
            None => false,
        };
        let ((place, guard), factors) = match only_load(prologue) {
            Some(load) => (load, None),
            None => {
                let [(x, x_guard), (y, y_guard)] = two_loads(prologue)?;
                let (image, (factors, guard)) = match (is_factor(x), is_factor(y)) {
                    (false, true) => ((x, x_guard), (y, y_guard)),
                    (true, false) => ((y, y_guard), (x, x_guard)),
                    _ => return None,
                };
                let floats = kernel.buffers[factors.buffer].dtype == DType::F32;
                if !floats || guard.is_some() || !factors.indirect.is_empty() {
                    return None;
                }
                let place = Linear::of(&factors.offset, fixed, running)?;
                (image, Some(FactorLoad { buffer: factors.buffer, place }))
            }
        };
        let dtype = kernel.buffers[place.buffer].dtype;
        let floats = matches!(dtype, DType::F32 | DType::Bf16 | DType::F16);
        if !floats || body.acc != DType::F32 || !place.indirect.is_empty() {
            return None;
        }
        let mut guards = Vec::new();
        if let Some(guard) = guard {
            ranges(&prologue.insts, guard, fixed, running, &mut guards)?;
        }
        let sizes = |axes: &[Axis]| axes.iter().map(|axis| axis.size.clone()).collect();
        let load = WindowLoad {
            buffer: place.buffer,
            dtype,
            place: Linear::of(&place.offset, fixed, running)?,
            guards,
            fixed: sizes(fixed),
            running: sizes(running),
        };
        Some((load, factors))
    }

    /// The operand of one product.
    pub fn at(&self, isa: Isa, buffers: &[RawBuffer], known: &Known<'_>) -> Result<Windows, LaunchError> {
        let numbers = |dims: &[Dim]| -> Result<Vec<isize>, LaunchError> {
            dims.iter().map(|dim| Ok(known.number(dim)? as isize)).collect()
        };
        let extents = |sizes: &[Dim], strides: &[Dim]| -> Result<Vec<Extent>, LaunchError> {
            let extent =
                |(size, stride)| Ok(Extent { size: known.size(size)?, stride: known.number(stride)? as isize });
            sizes.iter().zip(strides).map(extent).collect()
        };
        let guard = |range: &Range| -> Result<Guard, LaunchError> {
            let low = known.number(&range.low)?;
            Ok(Guard {
                fixed: numbers(&range.expr.fixed)?,
                running: numbers(&range.expr.running)?,
                start: (known.number(&range.expr.rest)? - low) as isize,
                length: (known.number(&range.high)? - low) as isize,
            })
        };
        let first = known.number(&self.place.rest)? as isize * (self.dtype.size_in_bits() / 8) as isize;
        let data = buffers[self.buffer].ptr.wrapping_offset(first).cast_const();
        let fixed = extents(&self.fixed, &self.place.fixed)?;
        let running = extents(&self.running, &self.place.running)?;
        let guards = self.guards.iter().map(guard).collect::<Result<_, _>>()?;
        Ok(Windows::new(isa, self.dtype, data, fixed, running, guards))
    }
}

fn is_guard(inst: &Inst) -> bool {
    matches!(inst.kind, InstKind::InRange { .. } | InstKind::Binary(BinaryOp::And, ..))
}

/// The two loads whose product is the whole of a prologue, but for their guards.
fn two_loads(prologue: &Prologue) -> Option<[(&Place, Option<ValueId>); 2]> {
    let (last, before) = prologue.insts.split_last()?;
    let InstKind::Binary(BinaryOp::Mul, x, y) = last.kind else { return None };
    let load = |id: ValueId| {
        let inst = before.iter().find(|inst| inst.id == id)?;
        match &inst.kind {
            InstKind::Load { place, guard } => (inst.dtype == DType::F32).then_some((place, *guard)),
            _ => None,
        }
    };
    let mut others = before.iter().filter(|inst| inst.id != x && inst.id != y);
    let whole = last.id == prologue.value && last.dtype == DType::F32 && others.all(is_guard);
    if whole { Some([load(x)?, load(y)?]) } else { None }
}

/// The load that is the whole of a prologue, but for its guard.
fn only_load(prologue: &Prologue) -> Option<(&Place, Option<ValueId>)> {
    let (last, before) = prologue.insts.split_last()?;
    match &last.kind {
        InstKind::Load { place, guard } if last.id == prologue.value && before.iter().all(is_guard) => {
            (last.dtype == DType::F32).then_some((place, *guard))
        }
        _ => None,
    }
}

/// The ranges that a guard consists of, all of which must hold.
fn ranges(insts: &[Inst], guard: ValueId, fixed: &[Axis], running: &[Axis], found: &mut Vec<Range>) -> Option<()> {
    match &insts.iter().find(|inst| inst.id == guard)?.kind {
        InstKind::Binary(BinaryOp::And, x, y) => {
            ranges(insts, *x, fixed, running, found)?;
            ranges(insts, *y, fixed, running, found)
        }
        InstKind::InRange { expr, low, high } => {
            let moves = |dim: &Dim| fixed.iter().chain(running).any(|axis| dim.contains(axis.var));
            if moves(low) || moves(high) {
                return None;
            }
            found.push(Range { expr: Linear::of(expr, fixed, running)?, low: low.clone(), high: high.clone() });
            Some(())
        }
        _ => None,
    }
}
