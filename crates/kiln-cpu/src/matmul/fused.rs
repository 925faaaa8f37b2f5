//! Prologues and epilogues that are code: small loop kernels over a row of an operand or a tile of the result.
//!
//! A piece of a kernel's body runs with every axis variable it does not loop over replaced by a size, whose value the call
//! passes. The axis it loops over starts anywhere: its variable becomes `start + i`.

use super::Known;
use crate::gemm::{Epilogue, RowSource, Tile};
use crate::loops::{Build, LoopKernel};
use crate::small_vec::SmallVec;
use crate::vir::{Context, IndexRecord};
use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{
    Access, Axis, BufferArg, Domain, Inst, InstKind, Kernel, KernelBody, LoopBody, MatmulBody, Place, Prologue, Stage,
    ValueId,
};
use kiln_runtime::{LaunchError, RawBuffer};
use std::ops::Range;
use std::sync::Mutex;

/// A symbol that no kernel uses: axes are called `i0`, sizes come from users.
fn private(name: &str) -> Symbol {
    Symbol::new(name).expect("a short ASCII name")
}

/// Where a piece starts along the axis it runs over, and how far it goes.
struct Span {
    start: Symbol,
    length: Symbol,
    counter: Symbol,
}

impl Span {
    fn new(name: char) -> Span {
        Span {
            start: private(&format!("_{name}_start")),
            length: private(&format!("_{name}_length")),
            counter: private(&format!("_{name}")),
        }
    }

    fn axis(&self) -> Axis {
        Axis { var: self.counter, size: Dim::from(self.length) }
    }

    /// The position along the axis.
    fn position(&self) -> Dim {
        Dim::from(self.start) + Dim::from(self.counter)
    }
}

/// Instructions with axis variables replaced.
fn replace(insts: &[Inst], with: &dyn Fn(Symbol) -> Option<Dim>) -> Vec<Inst> {
    let dim = |d: &Dim| d.substitute(with);
    let place = |p: &Place| Place {
        buffer: p.buffer,
        offset: dim(&p.offset),
        indirect: p.indirect.iter().map(|(v, stride)| (*v, dim(stride))).collect(),
    };
    insts
        .iter()
        .map(|inst| {
            let kind = match &inst.kind {
                InstKind::Index(d) => InstKind::Index(dim(d)),
                InstKind::InRange { expr, low, high } => {
                    InstKind::InRange { expr: dim(expr), low: dim(low), high: dim(high) }
                }
                InstKind::Load { place: p, guard } => InstKind::Load { place: place(p), guard: *guard },
                InstKind::Store { place: p, value, guard } => {
                    InstKind::Store { place: place(p), value: *value, guard: *guard }
                }
                InstKind::CheckIndex { value, size } => InstKind::CheckIndex { value: *value, size: dim(size) },
                InstKind::Random { seed, position, stream } => {
                    InstKind::Random { seed: *seed, position: dim(position), stream: *stream }
                }
                other => other.clone(),
            };
            Inst { id: inst.id, dtype: inst.dtype, kind }
        })
        .collect()
}

/// Every index expression of some instructions.
fn dims_of(insts: &[Inst]) -> Vec<Dim> {
    let seen = std::cell::RefCell::new(Vec::new());
    let note = |dim: &Dim| seen.borrow_mut().push(dim.clone());
    for inst in insts {
        match &inst.kind {
            InstKind::Index(dim) => note(dim),
            InstKind::InRange { expr, low, high } => [expr, low, high].into_iter().for_each(note),
            InstKind::Load { place, .. } | InstKind::Store { place, .. } => {
                note(&place.offset);
                place.indirect.iter().for_each(|(_, stride)| note(stride));
            }
            InstKind::LoadBlock { place, element, .. } => [&place.offset, element].into_iter().for_each(note),
            InstKind::CheckIndex { size, .. } => note(size),
            InstKind::Random { position, .. } => note(position),
            _ => {}
        }
    }
    seen.into_inner()
}

/// Instructions and the axes they run over, the last of which are merged where every position allows it: the rows of an image are one
/// for an epilogue, whatever they are for the windows of an operand.
fn merged(insts: &[Inst], axes: &[Axis]) -> (Vec<Inst>, Vec<Axis>) {
    let (mut insts, mut axes) = (insts.to_vec(), axes.to_vec());
    while let [.., outer, inner] = &axes[..] {
        let composes = |dim: &Dim| match (dim.linear_in(outer.var), dim.linear_in(inner.var)) {
            (Some((a, _)), Some((b, _))) => a == b * &inner.size,
            _ => false,
        };
        if !dims_of(&insts).iter().all(composes) {
            break;
        }
        let with = |symbol: Symbol| (symbol == outer.var).then(Dim::default);
        let insts_of_both = replace(&insts, &with);
        let both = Axis { var: inner.var, size: &outer.size * &inner.size };
        insts = insts_of_both;
        axes.truncate(axes.len() - 2);
        axes.push(both);
    }
    (insts, axes)
}

/// One past the largest value number.
fn next_value(insts: &[Inst]) -> ValueId {
    ValueId(insts.iter().map(|inst| inst.id.0).filter(|&id| id != u32::MAX).max().map_or(0, |id| id + 1))
}

/// Code that makes elements of an operand along the last of its running axes.
pub(super) struct Maker {
    code: LoopKernel,
    /// Variables that a call gives, after the kernel's sizes: batch, fixed axes, running axes but the last.
    symbols: Vec<Symbol>,
    fixed: Vec<Axis>,
    running: Vec<Axis>,
    /// Bytes of an accumulator.
    width: usize,
    /// Everything it makes is rounded to bf16.
    is_bf16: bool,
}

impl Maker {
    /// `fill(position in fixed, positions in running)` as code.
    pub fn new(
        build: Build<'_>,
        kernel: &Kernel,
        body: &MatmulBody,
        prologue: &Prologue,
        fixed: &[Axis],
        running: &[Axis],
    ) -> Result<Maker, String> {
        let span = Span::new('c');
        let last = running.last().map(|axis| axis.var);
        let mut insts = replace(&prologue.insts, &|s| (Some(s) == last).then(|| span.position()));
        let buffer = kernel.buffers.len();
        let place = Place { buffer, offset: Dim::from(span.counter), indirect: vec![] };
        let store = InstKind::Store { place, value: prologue.value, guard: None };
        insts.push(Inst { id: next_value(&prologue.insts), dtype: body.acc, kind: store });
        let outer = running.iter().rev().skip(1).rev();
        let symbols: Vec<Symbol> = (kernel.sizes.iter().copied())
            .chain(body.batch.iter().chain(fixed).chain(outer).map(|axis| axis.var))
            .chain([span.start, span.length])
            .collect();
        let code = piece(build, kernel, body.acc, Access::Write, &symbols, vec![span.axis()], insts)?;
        let width = body.acc.size_in_bits() / 8;
        let is_bf16 = body.acc == DType::F32 && rounds_to_bf16(kernel, &prologue.insts, prologue.value);
        Ok(Maker { code, symbols, fixed: fixed.to_vec(), running: running.to_vec(), width, is_bf16 })
    }

    pub fn code(&self) -> &LoopKernel {
        &self.code
    }
}

/// Whether a value is always a bf16.
fn rounds_to_bf16(kernel: &Kernel, insts: &[Inst], value: ValueId) -> bool {
    let Some(inst) = insts.iter().find(|inst| inst.id == value) else { return false };
    match &inst.kind {
        InstKind::Round(_, DType::Bf16) => true,
        InstKind::Load { place, .. } => kernel.buffers[place.buffer].dtype == DType::Bf16,
        InstKind::Select(_, a, b) => rounds_to_bf16(kernel, insts, *a) && rounds_to_bf16(kernel, insts, *b),
        _ => false,
    }
}

/// A loop kernel over `grid` with one more buffer than the matmul kernel.
fn piece(
    build: Build<'_>,
    kernel: &Kernel,
    dtype: DType,
    access: Access,
    symbols: &[Symbol],
    grid: Vec<Axis>,
    insts: Vec<Inst>,
) -> Result<LoopKernel, String> {
    let mut buffers = kernel.buffers.clone();
    buffers.push(BufferArg { dtype, access });
    let stage = Stage { domain: Domain::Point, insts, reductions: vec![] };
    let body = LoopBody { grid, row: vec![], stages: vec![stage], temps: vec![] };
    let kernel = Kernel { buffers, sizes: symbols.to_vec(), body: KernelBody::Loop(body.clone()) };
    build.compile(&kernel, &body).map_err(|error| error.to_string())
}

/// The coordinates of a linear position in some axes.
fn coordinates(sizes: &[usize], position: usize) -> SmallVec<i64> {
    let mut rest = position;
    let mut at: SmallVec<i64> = sizes.iter().map(|_| 0).collect();
    for (axis, &size) in sizes.iter().enumerate().rev() {
        at[axis] = if axis == 0 { rest } else { rest % size.max(1) } as i64;
        rest /= size.max(1);
    }
    at
}

/// Sizes of some axes.
fn sizes_of(axes: &[Axis], known: &Known<'_>) -> Result<SmallVec<usize>, LaunchError> {
    axes.iter().map(|axis| known.size(&axis.size)).collect()
}

/// Cuts positions into runs along the last axis: gives each run's outer coordinates, its start and its length.
fn runs(sizes: &[usize], range: Range<usize>, mut f: impl FnMut(&[i64], usize, usize)) {
    let width = sizes.last().copied().unwrap_or(1).max(1);
    let mut at = range.start;
    while at < range.end {
        let point = coordinates(sizes, at);
        let inside = if sizes.is_empty() { 0 } else { at % width };
        let length = (width - inside).min(range.end - at);
        f(&point[..sizes.len().saturating_sub(1)], inside, length);
        at += length;
    }
}

/// The first bad index that any call met.
#[derive(Default)]
struct Failure(Mutex<Option<(i64, i64)>>);

impl Failure {
    fn note(&self, record: &IndexRecord) {
        if record.set != 0 {
            *self.0.lock().unwrap_or_else(|e| e.into_inner()) = Some((record.index, record.size));
        }
    }

    fn outcome(&self) -> Result<(), LaunchError> {
        match *self.0.lock().unwrap_or_else(|e| e.into_inner()) {
            Some((index, size)) => Err(LaunchError::IndexOutOfRange { index, size }),
            None => Ok(()),
        }
    }
}

/// A [`Maker`] with the buffers and sizes of one launch.
pub(super) struct FusedRows<'a> {
    maker: &'a Maker,
    pointers: SmallVec<*mut u8>,
    /// Values of the kernel's sizes and of the batch point.
    values: SmallVec<i64>,
    fixed: SmallVec<usize>,
    running: SmallVec<usize>,
    failure: Failure,
}

// SAFETY: the pointers are those of a launch, which guarantees concurrent use; everything else is read only or locked.
unsafe impl Sync for FusedRows<'_> {}

impl<'a> FusedRows<'a> {
    pub fn new(maker: &'a Maker, buffers: &[RawBuffer], values: &[i64]) -> Result<FusedRows<'a>, LaunchError> {
        let known = Known { symbols: &maker.symbols[..values.len()], values };
        Ok(FusedRows {
            maker,
            pointers: buffers.iter().map(|b| b.ptr).collect(),
            values: values.iter().copied().collect(),
            fixed: sizes_of(&maker.fixed, &known)?,
            running: sizes_of(&maker.running, &known)?,
            failure: Failure::default(),
        })
    }

    pub fn outcome(&self) -> Result<(), LaunchError> {
        self.failure.outcome()
    }
}

impl RowSource for FusedRows<'_> {
    unsafe fn fill(&self, row: usize, columns: Range<usize>, to: *mut u8) {
        let width = self.maker.width;
        let first = columns.start;
        let mut pointers = self.pointers.clone();
        pointers.push(to);
        let mut values = self.values.clone();
        values.extend(coordinates(&self.fixed, row).iter().copied());
        let outer = values.len();
        let mut record = IndexRecord::default();
        let mut done = first;
        runs(&self.running, columns, |point, start, length| {
            values.truncate(outer);
            values.extend(point.iter().copied());
            values.extend([start as i64, length as i64]);
            let last = pointers.len() - 1;
            // SAFETY: inside the row that the caller has room for.
            pointers[last] = unsafe { to.add((done - first) * width) };
            let context = Context {
                buffers: pointers.as_ptr(),
                sizes: values.as_ptr(),
                scratch: std::ptr::null_mut(),
                error: &mut record,
            };
            // SAFETY: the launch guarantees the buffers, the run is inside the operand.
            unsafe { self.maker.code.call_whole(&context, &values) };
            done += length;
        });
        self.failure.note(&record);
    }

    fn is_bf16(&self) -> bool {
        self.maker.is_bf16
    }
}

/// Code that finishes a tile of the result.
pub(super) struct Tiles {
    code: LoopKernel,
    /// Variables that a call gives, after the kernel's sizes and the batch.
    symbols: Vec<Symbol>,
    columns: Vec<Axis>,
    /// Bytes of an accumulator.
    width: usize,
}

impl Tiles {
    /// The epilogue over `rows × a run of columns`.
    pub fn new(
        build: Build<'_>,
        kernel: &Kernel,
        body: &MatmulBody,
        rows: &[Axis],
        columns: &[Axis],
    ) -> Result<Tiles, String> {
        let (down, across) = (Span::new('r'), Span::new('c'));
        let stride = private("_tile_stride");
        let (epilogue, columns) = merged(&body.epilogue, columns);
        // A row of an image that is a row of tiles by itself would be looked for by dividing.
        let (epilogue, rows) = merged(&epilogue, rows);
        let columns = &columns[..];
        let last = columns.last().map(|axis| axis.var);
        let with = |symbol: Symbol| -> Option<Dim> {
            if Some(symbol) == last {
                return Some(across.position());
            }
            let axis = rows.iter().position(|axis| axis.var == symbol)?;
            let inner: Dim = rows[axis + 1..].iter().map(|axis| &axis.size).product();
            let position = down.position().floor_div(&inner);
            Some(if axis == 0 { position } else { position.modulo(&rows[axis].size) })
        };
        let buffer = kernel.buffers.len();
        let offset = Dim::from(down.counter) * Dim::from(stride) + Dim::from(across.counter);
        let mut insts = replace(&epilogue, &with);
        for inst in &mut insts {
            if inst.kind == InstKind::Accumulator(0) {
                let place = Place { buffer, offset: offset.clone(), indirect: vec![] };
                inst.kind = InstKind::Load { place, guard: None };
            }
        }
        let outer = columns.iter().rev().skip(1).rev();
        let symbols: Vec<Symbol> = (kernel.sizes.iter().copied())
            .chain(body.batch.iter().chain(outer).map(|axis| axis.var))
            .chain([down.start, down.length, across.start, across.length, stride])
            .collect();
        let grid = vec![down.axis(), across.axis()];
        let code = piece(build, kernel, body.acc, Access::Read, &symbols, grid, insts)?;
        Ok(Tiles { code, symbols, columns: columns.to_vec(), width: body.acc.size_in_bits() / 8 })
    }

    pub fn code(&self) -> &LoopKernel {
        &self.code
    }
}

impl Tiles {
    /// What a call for a whole row of a product brings, where there is nothing else to bring: no sizes, no batch, and at
    /// most one axis of columns.
    pub fn whole_row(&self, columns: usize) -> Option<[i64; 5]> {
        self.whole_rows(1, columns, columns)
    }

    /// The same for all rows of a product, with so many elements from one row of sums to the next.
    pub fn whole_rows(&self, rows: usize, columns: usize, stride: usize) -> Option<[i64; 5]> {
        (self.symbols.len() == 5).then_some([0, rows as i64, 0, columns as i64, stride as i64])
    }

    /// Finishes rows of sums.
    ///
    /// # Safety
    /// The buffers are those of a launch, `row` is from [`Tiles::whole_rows`], and there are as many sums as that says.
    pub unsafe fn finish_row(&self, buffers: &[RawBuffer], row: &[i64; 5], sums: *mut u8) -> Result<(), LaunchError> {
        let mut pointers = [std::ptr::null_mut(); BUFFERS];
        let mut many = Vec::new();
        let last = buffers.len();
        let pointers = if last < BUFFERS {
            &mut pointers[..]
        } else {
            many.resize(last + 1, std::ptr::null_mut());
            &mut many
        };
        for (pointer, buffer) in pointers.iter_mut().zip(buffers) {
            *pointer = buffer.ptr;
        }
        pointers[last] = sums;
        let mut record = IndexRecord::default();
        let context = Context {
            buffers: pointers.as_ptr(),
            sizes: row.as_ptr(),
            scratch: std::ptr::null_mut(),
            error: &mut record,
        };
        // SAFETY: by the caller's promise.
        unsafe { self.code.call_whole(&context, row) };
        match record.set {
            0 => Ok(()),
            _ => Err(LaunchError::IndexOutOfRange { index: record.index, size: record.size }),
        }
    }
}

/// Buffers of a kernel, nearly always.
const BUFFERS: usize = 12;

/// [`Tiles`] with the buffers and sizes of one launch.
pub(super) struct FusedEpilogue<'a> {
    tiles: &'a Tiles,
    pointers: SmallVec<*mut u8>,
    values: SmallVec<i64>,
    columns: SmallVec<usize>,
    failure: Failure,
}

// SAFETY: as for `FusedRows`; tiles do not overlap.
unsafe impl Sync for FusedEpilogue<'_> {}

impl<'a> FusedEpilogue<'a> {
    pub fn new(tiles: &'a Tiles, buffers: &[RawBuffer], values: &[i64]) -> Result<FusedEpilogue<'a>, LaunchError> {
        let known = Known { symbols: &tiles.symbols[..values.len()], values };
        Ok(FusedEpilogue {
            tiles,
            pointers: buffers.iter().map(|b| b.ptr).collect(),
            values: values.iter().copied().collect(),
            columns: sizes_of(&tiles.columns, &known)?,
            failure: Failure::default(),
        })
    }

    pub fn outcome(&self) -> Result<(), LaunchError> {
        self.failure.outcome()
    }
}

impl Epilogue for FusedEpilogue<'_> {
    unsafe fn apply(&self, tile: Tile) {
        let width = self.tiles.width;
        let mut pointers = self.pointers.clone();
        pointers.push(tile.data);
        let mut values = self.values.clone();
        let outer = values.len();
        let mut record = IndexRecord::default();
        let mut done = 0;
        runs(&self.columns, tile.column..tile.column + tile.columns, |point, start, length| {
            values.truncate(outer);
            values.extend(point.iter().copied());
            values.extend([tile.row as i64, tile.rows as i64, start as i64, length as i64, tile.row_stride as i64]);
            let last = pointers.len() - 1;
            // SAFETY: inside the tile's first row.
            pointers[last] = unsafe { tile.data.add(done * width) };
            let context = Context {
                buffers: pointers.as_ptr(),
                sizes: values.as_ptr(),
                scratch: std::ptr::null_mut(),
                error: &mut record,
            };
            // SAFETY: the launch guarantees the buffers, the tile its accumulators.
            unsafe { self.tiles.code.call_whole(&context, &values) };
            done += length;
        });
        self.failure.note(&record);
    }
}
