//! Operands and results that are nothing but strided memory.

use kiln_ir::{BlockFormat, DType, Dim, Symbol};
use kiln_kernels::kernel::{Axis, InstKind, Kernel, MatmulBody, Place, Prologue};

/// An operand that gemm can read by itself: `offset` over batch variables and sizes, then one stride a direction.
pub(super) struct PlainLoad {
    pub buffer: usize,
    pub dtype: DType,
    pub offset: Dim,
    pub row: Dim,
    pub column: Dim,
}

/// A right operand of quantised blocks: `offset` in bytes over batch variables and sizes, then a stride from column to column.
pub(super) struct PlainBlocks {
    pub buffer: usize,
    pub format: BlockFormat,
    pub offset: Dim,
    pub column: Dim,
}

/// A result that gemm can write by itself.
pub(super) struct PlainStore {
    pub buffer: usize,
    pub dtype: DType,
    pub offset: Dim,
    pub row: Dim,
    pub column: Dim,
}

impl PlainLoad {
    /// `None` unless the prologue is one load of a computable type whose place is linear in both directions. Bytes may be cast to F32 on
    /// the way, which gemm does by itself.
    pub fn of(kernel: &Kernel, prologue: &Prologue, rows: &[Axis], columns: &[Axis]) -> Option<PlainLoad> {
        let (inst, cast) = match &prologue.insts[..] {
            [load] => (load, false),
            [load, cast] => (load, cast.dtype == DType::F32 && cast.kind == InstKind::Cast(load.id)),
            _ => return None,
        };
        let InstKind::Load { place, guard: None } = &inst.kind else { return None };
        let dtype = kernel.buffers[place.buffer].dtype;
        if dtype.is_storage_only() || dtype == DType::Bool || inst.dtype != dtype.compute_type() {
            return None;
        }
        if prologue.insts.len() > 1 && !(cast && dtype == DType::I8) {
            return None;
        }
        let (row, column, offset) = directions(place, rows, columns)?;
        Some(PlainLoad { buffer: place.buffer, dtype, offset, row, column })
    }
}

impl PlainBlocks {
    /// `None` unless the prologue is an element of blocks, counted by the summed axis, in rows at equal distances.
    pub fn of(prologue: &Prologue, summed: &[Axis], columns: &[Axis]) -> Option<PlainBlocks> {
        let [inst] = &prologue.insts[..] else { return None };
        let InstKind::LoadBlock { place, element, format } = &inst.kind else { return None };
        let [k] = summed else { return None };
        if *element != Dim::from(k.var) {
            return None;
        }
        let (row, column, offset) = directions(place, summed, columns)?;
        row.is_zero().then_some(PlainBlocks { buffer: place.buffer, format: *format, offset, column })
    }
}

impl PlainStore {
    /// `None` unless the epilogue only stores the accumulator, as it is, to one place that is linear in both directions.
    pub fn of(kernel: &Kernel, body: &MatmulBody, rows: &[Axis], columns: &[Axis]) -> Option<PlainStore> {
        let [accumulator, store] = &body.epilogue[..] else { return None };
        let InstKind::Store { place, value, guard: None } = &store.kind else { return None };
        if accumulator.kind != InstKind::Accumulator(0) || *value != accumulator.id {
            return None;
        }
        let dtype = kernel.buffers[place.buffer].dtype;
        if dtype.is_storage_only() || dtype == DType::Bool || dtype.is_float() != body.acc.is_float() {
            return None;
        }
        let (row, column, offset) = directions(place, rows, columns)?;
        Some(PlainStore { buffer: place.buffer, dtype, offset, row, column })
    }
}

/// The strides along two lists of axes and what is left: `None` if the place is not linear in one of them.
fn directions(place: &Place, rows: &[Axis], columns: &[Axis]) -> Option<(Dim, Dim, Dim)> {
    if !place.indirect.is_empty() {
        return None;
    }
    let (row, rest) = direction(&place.offset, rows)?;
    let (column, rest) = direction(&rest, columns)?;
    // Batch variables may be in the rest in any way: it is evaluated once a product.
    Some((row, column, rest))
}

/// The stride of a linear position over several axes, and the rest of the offset.
fn direction(offset: &Dim, axes: &[Axis]) -> Option<(Dim, Dim)> {
    let mut rest = offset.clone();
    let mut stride: Option<Dim> = None;
    let mut span = Dim::from(1i64);
    for axis in axes.iter().rev() {
        let (coefficient, left) = rest.linear_in(axis.var)?;
        if has_any(&coefficient, axes) {
            return None;
        }
        rest = left;
        match &stride {
            None => stride = Some(coefficient),
            Some(stride) if stride * &span == coefficient => {}
            Some(_) => return None,
        }
        span = &span * &axis.size;
    }
    Some((stride.unwrap_or_default(), rest))
}

fn has_any(dim: &Dim, axes: &[Axis]) -> bool {
    axes.iter().any(|axis| dim.contains(axis.var))
}

/// True for a prologue of quantised blocks.
pub(super) fn is_blocks(prologue: &Prologue) -> bool {
    prologue.insts.iter().any(|inst| matches!(inst.kind, InstKind::LoadBlock { .. }))
}

/// True if every load of a prologue moves by one element along the last of some axes.
pub(super) fn steps_by_one(prologue: &Prologue, axes: &[Axis]) -> bool {
    let Some(last) = axes.last() else { return false };
    let mut places = prologue.insts.iter().filter_map(|inst| match &inst.kind {
        InstKind::Load { place, .. } => Some(place),
        _ => None,
    });
    places.all(|place| moves_by(place, last.var).is_none_or(|step| step.is_one() || step.is_zero()))
}

/// True if the last of some axes is known to be shorter than that of others.
pub(super) fn is_shorter(axes: &[Axis], others: &[Axis]) -> bool {
    let last = |axes: &[Axis]| axes.last().and_then(|axis| axis.size.as_const());
    matches!((last(axes), last(others)), (Some(a), Some(b)) if a < b)
}

/// True if the epilogue's stores are contiguous along the last of some axes.
pub(super) fn is_contiguous_along(body: &MatmulBody, axes: &[Axis]) -> bool {
    let Some(last) = axes.last() else { return false };
    let mut places = body.epilogue.iter().filter_map(|inst| match &inst.kind {
        InstKind::Store { place, .. } => Some(place),
        _ => None,
    });
    places.all(|place| moves_by(place, last.var).is_some_and(|step| step.is_one()))
}

/// True if all stores move by fewer elements along the last row axis than along the last column axis.
pub(super) fn stores_nearer_along_m(body: &MatmulBody) -> bool {
    let (Some(m), Some(n)) = (body.m.last(), body.n.last()) else { return false };
    let step = |place: &Place, axis: &Axis| Some(moves_by(place, axis.var)?.as_const()?.unsigned_abs());
    let mut stores = body.epilogue.iter().filter_map(|inst| match &inst.kind {
        InstKind::Store { place, .. } => Some(place),
        _ => None,
    });
    stores.all(|place| matches!((step(place, m), step(place, n)), (Some(m), Some(n)) if m != 0 && m < n))
}

fn moves_by(place: &Place, var: Symbol) -> Option<Dim> {
    place.offset.linear_in(var).map(|(coefficient, _)| coefficient)
}
