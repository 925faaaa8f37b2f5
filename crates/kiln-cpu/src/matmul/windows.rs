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

impl WindowLoad {
    /// `None` unless the prologue is one such load. `running` are the axes along which its rows are filled.
    pub fn of(
        kernel: &Kernel,
        body: &MatmulBody,
        prologue: &Prologue,
        fixed: &[Axis],
        running: &[Axis],
    ) -> Option<WindowLoad> {
        let (place, guard) = only_load(prologue)?;
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
        Some(WindowLoad {
            buffer: place.buffer,
            dtype,
            place: Linear::of(&place.offset, fixed, running)?,
            guards,
            fixed: sizes(fixed),
            running: sizes(running),
        })
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

/// The load that is the whole of a prologue, but for its guard.
fn only_load(prologue: &Prologue) -> Option<(&Place, Option<ValueId>)> {
    let (last, before) = prologue.insts.split_last()?;
    let is_guard = |inst: &Inst| matches!(inst.kind, InstKind::InRange { .. } | InstKind::Binary(BinaryOp::And, ..));
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
