//! Positions of a kernel of known sizes as linear forms, and the tensors that they walk through.

use kiln_ir::{BinaryOp, Dim};
use kiln_kernels::kernel::{Axis, InstKind, MatmulBody, Prologue, ValueId};

/// The axes of a product: batch, rows, columns and summed ones.
pub(super) struct Space<'a> {
    axes: Vec<&'a Axis>,
    pub(super) sizes: Vec<i64>,
    pub(super) batch: Vec<usize>,
    pub(super) m: Vec<usize>,
    pub(super) n: Vec<usize>,
    pub(super) k: Vec<usize>,
}

/// `first + Σ steps[axis] · axis`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Linear {
    pub(super) first: i64,
    pub(super) steps: Vec<i64>,
}

/// `0 ≤ at < size`.
pub(super) struct Guard {
    pub(super) at: Linear,
    pub(super) size: i64,
}

/// An operand: a load of a buffer that positions may guard.
pub(super) struct Operand {
    pub(super) buffer: usize,
    pub(super) at: Linear,
    pub(super) guards: Vec<Guard>,
}

/// The axes of a kernel that each axis of a tensor is made of, outermost first.
pub(super) type Frame = Vec<Vec<usize>>;

impl<'a> Space<'a> {
    pub(super) fn of(body: &'a MatmulBody) -> Option<Space<'a>> {
        let mut axes: Vec<&Axis> = Vec::new();
        let mut list = |group: &'a [Axis]| {
            let from = axes.len();
            axes.extend(group);
            (from..axes.len()).collect::<Vec<usize>>()
        };
        let (batch, m, n, k) = (list(&body.batch), list(&body.m), list(&body.n), list(&body.k));
        let sizes = axes.iter().map(|axis| axis.size.as_const().filter(|&size| size > 0)).collect::<Option<_>>()?;
        Some(Space { axes, sizes, batch, m, n, k })
    }

    pub(super) fn linear(&self, dim: &Dim) -> Option<Linear> {
        let (mut rest, mut steps) = (dim.clone(), Vec::new());
        for axis in &self.axes {
            let (step, without) = rest.linear_in(axis.var)?;
            steps.push(step.as_const()?);
            rest = without;
        }
        Some(Linear { first: rest.as_const()?, steps })
    }

    /// The load that a prologue is.
    pub(super) fn operand(&self, prologue: &Prologue) -> Option<Operand> {
        let find = |id: ValueId| prologue.insts.iter().find(|inst| inst.id == id).map(|inst| &inst.kind);
        let InstKind::Load { place, guard } = find(prologue.value)? else { return None };
        if !place.indirect.is_empty() {
            return None;
        }
        let (mut guards, mut open) = (Vec::new(), Vec::from_iter(*guard));
        while let Some(id) = open.pop() {
            match find(id)? {
                InstKind::Binary(BinaryOp::And, x, y) => open.extend([*x, *y]),
                InstKind::InRange { expr, low, high } => {
                    let (mut at, low) = (self.linear(expr)?, low.as_const()?);
                    at.first -= low;
                    guards.push(Guard { at, size: high.as_const()? - low });
                }
                _ => return None,
            }
        }
        Some(Operand { buffer: place.buffer, at: self.linear(&place.offset)?, guards })
    }

    /// The number of elements of each axis of a frame.
    pub(super) fn frame_sizes(&self, frame: &Frame) -> Vec<i64> {
        frame.iter().map(|axes| axes.iter().map(|&axis| self.sizes[axis]).product()).collect()
    }

    /// The sizes and strides of the tensor of a frame that a position walks through: 1 along axes that it does not move along. `None` if
    /// an axis of the tensor has no stride, or the position moves along others. Strides of axes of size 1 are 0.
    pub(super) fn view(&self, frame: &Frame, at: &Linear) -> Option<(Vec<i64>, Vec<i64>)> {
        let (mut sizes, mut strides) = (Vec::new(), Vec::new());
        for axes in frame {
            let inner = axes.last().map_or(0, |&axis| at.steps[axis]);
            let mut extent = inner;
            for &axis in axes.iter().rev() {
                if at.steps[axis] != extent {
                    return None;
                }
                extent *= self.sizes[axis];
            }
            let size: i64 = axes.iter().map(|&axis| self.sizes[axis]).product();
            let (size, stride) = if inner == 0 || size == 1 { (1, 0) } else { (size, inner) };
            sizes.push(size);
            strides.push(stride);
        }
        let inside = |axis: &usize| frame.iter().any(|axes| axes.contains(axis));
        let is_still = |axis: usize| at.steps[axis] == 0 || inside(&axis);
        ((0..at.steps.len()).all(is_still) && strides.iter().all(|&stride| stride >= 0)).then_some((sizes, strides))
    }
}

/// Gives axes of size 1 the strides that they would have if the tensor were packed, the axes in this order from the outermost on: the
/// library tells layouts by strides.
pub(super) fn fill_strides(sizes: &[i64], strides: &mut [i64], order: &[usize]) {
    let mut inner = 1;
    for &axis in order.iter().rev() {
        if sizes[axis] == 1 {
            strides[axis] = inner;
        }
        inner = inner.max(strides[axis] * sizes[axis]);
    }
}

/// The axes of a tensor `[n, c, …]`, outermost first: the channels last if their elements are the nearest.
pub(super) fn order_of(sizes: &[i64], strides: &[i64]) -> Vec<usize> {
    let rank = sizes.len();
    let near = (2..rank).filter(|&axis| sizes[axis] > 1).all(|axis| strides[axis] >= strides[1]);
    let last = near && (sizes[1] > 1 || (2..rank).all(|axis| sizes[axis] == 1));
    if last { [0].into_iter().chain(2..rank).chain([1]).collect() } else { (0..rank).collect() }
}
