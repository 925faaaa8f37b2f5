//! Products that a library computes: a kernel whose operands are strided matrices. An epilogue that stores the accumulator, plus a bias or
//! a matrix of the result's layout, is the library's too; any other is a kernel of its own that reads the accumulators from memory.
//!
//! Libraries see matrices by columns. The axis along which the result's elements are neighbours is the one of its rows here, so that
//! a result that is row-major is computed as its transpose, with the operands in the other order:
//!
//! ```text
//!  d[rows, columns] = op(a)[rows, depth] · op(b)[depth, columns] + c[rows, columns] + bias[rows]
//! ```

use crate::text::{self, points};
use kiln_ir::{BinaryOp, DType, Dim, Symbol};
use kiln_kernels::kernel::{
    Access, Axis, BufferArg, Domain, Inst, InstKind, Kernel, KernelBody, LoopBody, MatmulBody, Place, Precision,
    Prologue, Stage,
};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Rows on the left from which on a library is considered: fewer are bound by the memory of the right operand.
const LEAST_ROWS: i64 = 9;
/// Rows and multiplications from which on a library is taken without a measurement.
const LARGE_ROWS: i64 = 64;
const LARGE_PRODUCT: i64 = 1 << 26;
/// Summed elements from which on it is worth to write accumulators to memory for an epilogue of its own.
const LARGE_DEPTH: i64 = 1024;

/// Tiles of 128 × 128 from which on the own text of warpgroups has its epilogue for less than a library's accumulators cost in memory, and
/// summed elements from which on the library makes up for it.
const MANY_TILES: i64 = 264;
const VERY_DEEP: i64 = 4096;
/// Tiles of which clusters of that text share the sums, where those have so many elements.
const FEW_TILES: i64 = 9;
const SHARED_DEPTH: i64 = 1 << 13;
/// Elements of short floats that libraries take at once. A matrix whose rows are padded to them, but do not have as many elements, is
/// read one by one.
const TAKEN_AT_ONCE: i64 = 8;

/// A product that a library computes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Product {
    /// Of the operands, and of the result, `c` and the bias.
    pub(crate) dtype: DType,
    pub(crate) out_dtype: DType,
    pub(crate) precision: Precision,
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) c: Option<Matrix>,
    pub(crate) d: Matrix,
    pub(crate) bias: Option<Bias>,
    /// What makes the kernel's results of the accumulators: its last buffer, in row-major order, is `d`.
    pub(crate) epilogue: Option<Arc<Kernel>>,
    /// Whether the own text is one of warpgroups.
    pub(crate) warpgroups: bool,
    /// Rows of the kernel's result, and its columns.
    sides: [Dim; 2],
    rows: Dim,
    columns: Dim,
    depth: Dim,
    batch: Dim,
    sizes: Vec<Symbol>,
}

/// A strided matrix of a buffer, by columns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Matrix {
    pub(crate) buffer: usize,
    /// Whether the operand is the transpose of what is in memory.
    pub(crate) transposed: bool,
    offset: Dim,
    leading: Dim,
    batch_stride: Dim,
}

/// A vector that is added to every column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bias {
    pub(crate) buffer: usize,
    offset: Dim,
}

/// The numbers of a product at given sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Extent {
    pub(crate) rows: i64,
    pub(crate) columns: i64,
    pub(crate) depth: i64,
    pub(crate) batch: i64,
    pub(crate) a: Placed,
    pub(crate) b: Placed,
    pub(crate) c: Placed,
    pub(crate) d: Placed,
    /// Elements before the bias.
    pub(crate) bias: i64,
    /// Rows of the kernel's result.
    left: i64,
    large: bool,
    /// Bytes of the accumulators that an epilogue of its own reads.
    pub(crate) scratch: i64,
}

/// The numbers of a matrix, in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Placed {
    pub(crate) offset: i64,
    pub(crate) leading: i64,
    pub(crate) batch_stride: i64,
}

impl Extent {
    /// Whether a library is taken without a measurement.
    pub(crate) fn is_large(&self) -> bool {
        self.large
    }

    /// Whether there are too few rows for a library to be worth a measurement.
    pub(crate) fn is_few(&self) -> bool {
        self.left < LEAST_ROWS
    }
}

impl Product {
    /// The product of a kernel, if it is one that a library computes.
    pub(crate) fn of(kernel: &Kernel) -> Option<Product> {
        let KernelBody::Matmul(body) = &kernel.body else { return None };
        let (lhs, rhs) = (plain_load(&body.lhs)?, plain_load(body.single_rhs().filter(|_| body.before.is_none())?)?);
        let dtype = kernel.buffers[lhs.buffer].dtype;
        let types_fit = body.acc == DType::F32
            && kernel.buffers[rhs.buffer].dtype == dtype
            && matches!(dtype, DType::Bf16 | DType::F16 | DType::F32);
        if !types_fit {
            return None;
        }
        let result = Target::direct(kernel, body, dtype).or_else(|| Target::deferred(kernel, body))?;
        let (m, n, k, batch) = (&body.m, &body.n, &body.k, &body.batch);
        let ((first, row), (second, column)) =
            if result.by_columns { ((lhs, m), (rhs, n)) } else { ((rhs, n), (lhs, m)) };
        let Target { out_dtype, c, d, bias, epilogue, .. } = result;
        Some(Product {
            dtype,
            out_dtype,
            precision: body.precision,
            a: Matrix::of(first, row, k, batch)?,
            b: Matrix::of(second, k, column, batch)?,
            c,
            d,
            bias,
            epilogue,
            warpgroups: false,
            sides: [points(m), points(n)],
            rows: points(row),
            columns: points(column),
            depth: points(k),
            batch: points(batch),
            sizes: kernel.sizes.clone(),
        })
    }

    /// The numbers at these sizes; `None` where a library is not to be asked.
    pub(crate) fn at(&self, sizes: &[i64]) -> Option<Extent> {
        let number = |dim: &Dim| text::eval(dim, &self.sizes, sizes);
        let [rows, columns, depth, batch] = [&self.rows, &self.columns, &self.depth, &self.batch].map(number);
        let (rows, columns, depth, batch) = (rows?, columns?, depth?, batch?);
        let [left, right] = self.sides.each_ref().map(number);
        let (left, right) = (left?, right?);
        let fits = |size: i64| (1..=i64::from(i32::MAX)).contains(&size);
        if ![rows, columns, depth, batch].into_iter().all(fits) {
            return None;
        }
        let placed = |matrix: &Matrix, rows: i64, columns: i64| {
            let lines = if matrix.transposed { columns } else { rows };
            let leading = number(&matrix.leading)?;
            let batch_stride = number(&matrix.batch_stride)?;
            let is_single = (if matrix.transposed { rows } else { columns }) == 1;
            // The stride of a single column is never used, but has to be a possible one.
            let leading = if is_single { leading.max(lines) } else { leading };
            (leading >= lines && batch_stride >= 0).then_some(Placed {
                offset: number(&matrix.offset)?,
                leading,
                batch_stride,
            })
        };
        let d = placed(&self.d, rows, columns)?;
        let c = match &self.c {
            Some(c) => placed(c, rows, columns)?,
            None => d,
        };
        let bias = self.bias.as_ref().map_or(Some(0), |bias| number(&bias.offset))?;
        let work = [left, right, depth, batch].into_iter().try_fold(1i64, i64::checked_mul)?;
        let (a, b) = (placed(&self.a, rows, depth)?, placed(&self.b, depth, columns)?);
        let tiles = batch * (left + 127).div_euclid(128) * (right + 127).div_euclid(128);
        let many = tiles >= MANY_TILES && depth < VERY_DEEP;
        let shared = (FEW_TILES..MANY_TILES).contains(&tiles) && depth >= SHARED_DEPTH;
        let fused = self.warpgroups && (many || shared);
        let deep = self.epilogue.is_none() || depth >= LARGE_DEPTH && !fused;
        // The own text copies what there is of the last elements of a row.
        let padded = |matrix: &Matrix, placed: &Placed, rows: i64, columns: i64| {
            let lines = if matrix.transposed { columns } else { rows };
            placed.leading % TAKEN_AT_ONCE == 0 && lines % TAKEN_AT_ONCE != 0
        };
        let is_padded = padded(&self.a, &a, rows, depth)
            || padded(&self.b, &b, depth, columns)
            || self.epilogue.is_none() && padded(&self.d, &d, rows, columns);
        // Results that begin anywhere are stored one by one by a library that computes them in smaller tiles for it.
        let taken = |placed: &Placed| placed.leading % TAKEN_AT_ONCE == 0;
        let is_odd = self.warpgroups && self.epilogue.is_none() && taken(&a) && taken(&b) && !taken(&d);
        let slow = (is_padded || is_odd) && self.dtype != DType::F32;
        let large = deep && !slow && left >= LARGE_ROWS && right >= LARGE_ROWS && work >= LARGE_PRODUCT;
        // Accumulators are of four bytes.
        let scratch = if self.epilogue.is_some() { [rows, columns, batch, 4].iter().product() } else { 0 };
        // Matrices of a batch that share elements are read, but never written.
        (batch == 1 || d.batch_stride > 0).then_some(Extent {
            rows,
            columns,
            depth,
            batch,
            a,
            b,
            c,
            d,
            bias,
            left,
            large,
            scratch,
        })
    }

    /// Whether some sizes may be large enough for a library without a measurement.
    pub(crate) fn may_be_large(&self) -> bool {
        !self.sizes.is_empty() || self.at(&[]).is_some_and(|extent| extent.is_large())
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Product { dtype, out_dtype, rows, columns, depth, batch, .. } = self;
        let operand = |matrix: &Matrix| format!("b{}{}", matrix.buffer, if matrix.transposed { "ᵀ" } else { "" });
        write!(f, "b{} {out_dtype}[{batch}, {rows}, {columns}] by columns = ", self.d.buffer)?;
        write!(f, "{} {dtype} · {} {dtype} over {depth}", operand(&self.a), operand(&self.b))?;
        let added = self.c.as_ref().map(|c| c.buffer).or(self.bias.as_ref().map(|bias| bias.buffer));
        added.map_or(Ok(()), |buffer| write!(f, " + b{buffer}"))?;
        if self.epilogue.is_some() { f.write_str(", then its epilogue") } else { Ok(()) }
    }
}

/// Where a product goes.
struct Target {
    /// Whether neighbours of the result are along the kernel's rows.
    by_columns: bool,
    out_dtype: DType,
    c: Option<Matrix>,
    d: Matrix,
    bias: Option<Bias>,
    epilogue: Option<Arc<Kernel>>,
}

impl Target {
    /// The kernel's own result, if its epilogue is one that the library has.
    fn direct(kernel: &Kernel, body: &MatmulBody, dtype: DType) -> Option<Target> {
        let epilogue = Epilogue::of(kernel, body)?;
        let out_dtype = kernel.buffers[epilogue.store.buffer].dtype;
        if out_dtype != dtype && out_dtype != DType::F32 {
            return None;
        }
        let (m, n, batch) = (&body.m, &body.n, &body.batch);
        let by_columns = Matrix::of(epilogue.store, m, n, batch).is_some_and(|matrix| !matrix.transposed);
        let (row, column) = if by_columns { (m, n) } else { (n, m) };
        let d = Matrix::of(epilogue.store, row, column, batch).filter(|matrix| !matrix.transposed)?;
        let (mut c, mut bias) = (None, None);
        if let Some(place) = epilogue.added {
            if kernel.buffers[place.buffer].dtype != out_dtype {
                return None;
            }
            bias = Bias::of(place, row, column, batch);
            if bias.is_none() {
                let matrix = Matrix::of(place, row, column, batch).filter(|matrix| !matrix.transposed)?;
                // In place of the result only where it is the same matrix.
                if matrix.buffer == d.buffer && matrix != d {
                    return None;
                }
                c = Some(matrix);
            }
        }
        Some(Target { by_columns, out_dtype, c, d, bias, epilogue: None })
    }

    /// A row-major matrix of accumulators, which a loop over the epilogue reads.
    fn deferred(kernel: &Kernel, body: &MatmulBody) -> Option<Target> {
        let in_order = |inst: &Inst| matches!(&inst.kind, InstKind::Store { place, .. } if !place.indirect.is_empty());
        if body.epilogue.iter().any(in_order) {
            return None;
        }
        let grid: Vec<Axis> = [&body.batch, &body.m, &body.n].into_iter().flatten().cloned().collect();
        let linear = |at: Dim, axis: &Axis| at * &axis.size + Dim::from(axis.var);
        let place = Place {
            buffer: kernel.buffers.len(),
            offset: grid.iter().fold(Dim::default(), linear),
            indirect: Vec::new(),
        };
        let load = |inst: &Inst| match inst.kind {
            InstKind::Accumulator(_) => {
                Inst { kind: InstKind::Load { place: place.clone(), guard: None }, ..inst.clone() }
            }
            _ => inst.clone(),
        };
        let insts = body.epilogue.iter().map(load).collect();
        let stage = Stage { domain: Domain::Point, insts, reductions: Vec::new() };
        let mut buffers = kernel.buffers.clone();
        buffers.push(BufferArg { dtype: DType::F32, access: Access::Read });
        let d = Matrix::of(&place, &body.n, &body.m, &body.batch).filter(|matrix| !matrix.transposed)?;
        let body = KernelBody::Loop(LoopBody { grid, row: Vec::new(), stages: vec![stage], temps: Vec::new() });
        let epilogue = Some(Arc::new(Kernel { buffers, sizes: kernel.sizes.clone(), body }));
        Some(Target { by_columns: false, out_dtype: DType::F32, c: None, d, bias: None, epilogue })
    }
}

impl Matrix {
    /// The matrix of a place, whose rows, columns and images are each along some axes.
    fn of(place: &Place, rows: &[Axis], columns: &[Axis], batch: &[Axis]) -> Option<Matrix> {
        let ([by_row, by_column, batch_stride], offset) = strides(place, [rows, columns, batch])?;
        let (transposed, leading) = match (by_row.is_one(), by_column.is_one()) {
            (true, _) => (false, by_column),
            (_, true) => (true, by_row),
            _ => return None,
        };
        Some(Matrix { buffer: place.buffer, transposed, offset, leading, batch_stride })
    }
}

impl Bias {
    fn of(place: &Place, rows: &[Axis], columns: &[Axis], batch: &[Axis]) -> Option<Bias> {
        let ([by_row, by_column, batch_stride], offset) = strides(place, [rows, columns, batch])?;
        let is_vector = by_row.is_one() && by_column.is_zero() && batch_stride.is_zero();
        is_vector.then_some(Bias { buffer: place.buffer, offset })
    }
}

/// The strides of a place along groups of axes that are one axis each, and the offset of its first element, which depends on none of
/// them.
fn strides<const N: usize>(place: &Place, groups: [&[Axis]; N]) -> Option<([Dim; N], Dim)> {
    if !place.indirect.is_empty() {
        return None;
    }
    let mut rest = place.offset.clone();
    let mut strides = [const { None }; N];
    for (axes, stride) in groups.iter().zip(&mut strides) {
        // From the innermost axis on, the stride of each is all that the one before moves.
        let mut extent = None;
        for axis in axes.iter().rev() {
            let (step, without) = rest.linear_in(axis.var)?;
            if *extent.get_or_insert_with(|| step.clone()) != step {
                return None;
            }
            stride.get_or_insert_with(|| step.clone());
            extent = Some(step * &axis.size);
            rest = without;
        }
    }
    let strides = strides.map(Option::unwrap_or_default);
    let depends = |stride: &Dim| groups.iter().any(|axes| axes.iter().any(|axis| stride.contains(axis.var)));
    (!strides.iter().any(depends)).then_some((strides, rest))
}

/// The load that is the whole of a prologue.
fn plain_load(prologue: &Prologue) -> Option<&Place> {
    let [inst] = prologue.insts.as_slice() else { return None };
    match &inst.kind {
        InstKind::Load { place, guard: None } if prologue.value == inst.id => Some(place),
        _ => None,
    }
}

/// An epilogue of one store: the accumulator, with what is added to it.
struct Epilogue<'a> {
    store: &'a Place,
    added: Option<&'a Place>,
}

/// What a value of an epilogue is.
#[derive(Clone, Copy)]
enum Form<'a> {
    Accumulator { added: Option<&'a Place> },
    Loaded(&'a Place),
}

impl<'a> Epilogue<'a> {
    /// The epilogue of a body. A rounding to the result's dtype before the addition may be left out: the library rounds once.
    fn of(kernel: &Kernel, body: &'a MatmulBody) -> Option<Epilogue<'a>> {
        let (last, insts) = body.epilogue.split_last()?;
        let InstKind::Store { place: store, value, guard: None } = &last.kind else { return None };
        let out_dtype = kernel.buffers[store.buffer].dtype;
        let mut forms: HashMap<_, Form<'a>> = HashMap::new();
        for Inst { id, kind, .. } in insts {
            let form = match kind {
                InstKind::Accumulator(_) => Form::Accumulator { added: None },
                InstKind::Load { place, guard: None } => Form::Loaded(place),
                InstKind::Round(x, to) if *to == out_dtype => *forms.get(x)?,
                InstKind::Binary(BinaryOp::Add, x, y) => match (*forms.get(x)?, *forms.get(y)?) {
                    (Form::Accumulator { added: None }, Form::Loaded(place))
                    | (Form::Loaded(place), Form::Accumulator { added: None }) => {
                        Form::Accumulator { added: Some(place) }
                    }
                    _ => return None,
                },
                _ => return None,
            };
            forms.insert(*id, form);
        }
        match forms.get(value)? {
            Form::Accumulator { added } => Some(Epilogue { store, added: *added }),
            Form::Loaded(_) => None,
        }
    }
}
