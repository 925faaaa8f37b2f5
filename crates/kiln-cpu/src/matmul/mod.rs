//! Matmul kernels: the operands' prologues and the epilogue around the products of [`crate::gemm`].
//!
//! ```text
//!  lhs, rhs   plain strided loads  ──▶ gemm reads memory                 else ──▶ fused code makes rows on demand
//!             loads through windows and padding  ──▶ gemm reads memory    (`windows`)
//!  windows of a group with few results  ──▶ direct convolution of all groups   (`direct`)
//!  windows of a group with many results  ──▶ dense convolution, weights packed (`dense`)
//!  a gradient times windows, summed over places  ──▶ direct gradient of the weights   (`gradient`)
//!  one row of known sizes, all plain   ──▶ one call of generated code (`row`)
//!  a few rows of known sizes, panels   ──▶ a call a panel, then the epilogue (`few_rows`)
//!  epilogue   one plain store      ──▶ gemm writes memory                else ──▶ fused code on tiles still in cache
//! ```
//!
//! The product is computed as `rows · columns`. Normally rows are the kernel's m axes; where the result is contiguous along
//! m instead of n, the two sides are swapped.

mod dense;
mod depthwise;
mod direct;
mod few_rows;
mod fused;
mod gradient;
pub(crate) mod packing;
mod plain;
mod row;
mod taps;
mod windows;

use crate::choices::Choices;
use crate::features::Isa;
use crate::gemm::{BlockMatrix, Epilogue, Gemm, GemmError, Matrix, Operand, PackedB, Panels, Store, Tuning, Windows};
use crate::loops::{Build, LoopKernel};
use crate::pool;
use crate::saved::Piece;
use crate::small_vec::SmallVec;
use dense::DenseConvolution;
pub(crate) use dense::fewest_scaled;
use depthwise::DepthwiseConvolution;
use direct::DirectConvolution;
use few_rows::PackedRows;
use fused::{FusedEpilogue, FusedRows, Maker, Tiles};
use gradient::DirectGradient;
use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::Precision;
use kiln_kernels::kernel::{Axis, Kernel, MatmulBody, Prologue};
use kiln_runtime::{Error, LaunchError, RawBuffer};
use plain::{PlainBlocks, PlainLoad, PlainStore};
use row::Row;
use windows::WindowLoad;

/// A matmul kernel ready to launch.
pub struct Matmul {
    isa: Isa,
    acc: DType,
    precision: Precision,
    sizes: Vec<Symbol>,
    /// The sizes and the variables of the batch.
    symbols: Vec<Symbol>,
    buffers: usize,
    batch: Vec<Axis>,
    rows: Dim,
    columns: Dim,
    summed: Dim,
    left: Side,
    right: Side,
    finish: Finish,
    choices: Choices,
    /// The prepared single-row product, where it is one.
    row: Option<Row>,
    /// The prepared product of a few rows with panels, where it is one.
    few_rows: Option<Box<PackedRows>>,
    /// What the convolution, or gradient of one, that it is may be computed by, in the order in which they are tried.
    convolutions: Vec<Box<dyn Convolution>>,
}

/// The source of an operand.
enum Side {
    /// Strided memory.
    Plain(PlainLoad),
    /// Code that makes a row of the left operand, or a row of the right one (`by_row`), or a column of it.
    Made { maker: Box<Maker>, by_row: bool },
    /// One load through windows and padding, row by row as above.
    Windows { load: Box<WindowLoad>, by_row: bool },
    /// Quantised blocks; only the right operand.
    Blocks(PlainBlocks),
    /// Panels packed beforehand; only the right operand.
    Packed { buffer: usize, panels: Panels },
}

impl Side {
    /// The code that makes this side, with the buffers and sizes of one product; `None` for plain memory.
    fn made(&self, buffers: &[RawBuffer], values: &[i64]) -> Result<Option<(FusedRows<'_>, bool)>, LaunchError> {
        match self {
            Side::Plain(_) | Side::Blocks(_) | Side::Packed { .. } | Side::Windows { .. } => Ok(None),
            Side::Made { maker, by_row } => Ok(Some((FusedRows::new(maker, buffers, values)?, *by_row))),
        }
    }

    /// The windows of one product, where this side is some.
    fn windows(&self, isa: Isa, buffers: &[RawBuffer], known: &Known<'_>) -> Result<Option<Windows>, LaunchError> {
        match self {
            Side::Windows { load, .. } => load.at(isa, buffers, known).map(Some),
            Side::Plain(_) | Side::Made { .. } | Side::Blocks(_) | Side::Packed { .. } => Ok(None),
        }
    }
}

/// What of a product was packed beforehand.
enum Packed {
    None,
    /// The right operand.
    Right(Side),
    /// The weights of a dense convolution, in this buffer.
    Convolution {
        buffer: usize,
    },
}

/// What a launch gives to code for convolutions.
struct Launch<'a> {
    isa: Isa,
    threads: usize,
    buffers: &'a [RawBuffer],
    known: &'a Known<'a>,
}

/// Code for products that are convolutions, or gradients of some.
trait Convolution: Send + Sync {
    /// The code of the epilogue, and what it does.
    fn part(&self) -> (&'static str, &LoopKernel);

    /// Runs it; false, and nothing done, where its sizes or strides are not for this.
    ///
    /// # Safety
    /// As [`kiln_runtime::Executable::launch`].
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<bool, LaunchError>;
}

fn boxed<'a>(convolution: impl Convolution + 'a) -> Box<dyn Convolution + 'a> {
    Box::new(convolution)
}

/// The destination of results.
enum Finish {
    /// Strided memory.
    Plain(PlainStore),
    /// Code that works on tiles.
    Fused(Box<Tiles>),
}

/// The two sides of the product and the axes they own, after a possible swap.
struct Sides<'a> {
    rows: &'a [Axis],
    columns: &'a [Axis],
    left: &'a Prologue,
    right: &'a Prologue,
}

impl<'a> Sides<'a> {
    /// `None` for several products at once, and for rows that are computed first: the schedules of CPUs have neither.
    fn of(body: &'a MatmulBody) -> Option<Sides<'a>> {
        let rhs = body.single_rhs().filter(|_| body.before.is_none())?;
        let transposed = match plain::is_contiguous_along(body, &body.n) {
            true => false,
            // A phase of a transposed convolution stores pixels a step apart.
            false => {
                plain::is_contiguous_along(body, &body.m) || body.m.len() > 1 && plain::stores_nearer_along_m(body)
            }
        };
        // Quantised blocks stay on the right.
        Some(if transposed && !plain::is_blocks(rhs) {
            Sides { rows: &body.n, columns: &body.m, left: rhs, right: &body.lhs }
        } else {
            Sides { rows: &body.m, columns: &body.n, left: &body.lhs, right: rhs }
        })
    }
}

impl Matmul {
    /// Compiles the parts that are not plain memory. `target` names the backend in an error.
    pub fn new(build: Build<'_>, kernel: &Kernel, body: &MatmulBody, target: &str) -> Result<Matmul, Error> {
        Matmul::with_right(build, kernel, body, Packed::None, target)
    }

    /// The same with the right operand packed as [`packing::packing`] says, in that buffer.
    pub(crate) fn packed(
        build: Build<'_>,
        kernel: &Kernel,
        body: &MatmulBody,
        buffer: usize,
        target: &str,
    ) -> Result<Matmul, Error> {
        let none = || Error::Compile { target: target.to_owned(), reason: format!("buffer {buffer} has no packing") };
        if dense::Weights::of(build.isa, kernel, body, buffer).is_some() {
            return Matmul::with_right(build, kernel, body, Packed::Convolution { buffer }, target);
        }
        let right = packing::RightOperand::of(build.isa, kernel, body, buffer).ok_or_else(none)?;
        let side = Side::Packed { buffer, panels: right.panels };
        Matmul::with_right(build, kernel, body, Packed::Right(side), target)
    }

    fn with_right(
        build: Build<'_>,
        kernel: &Kernel,
        body: &MatmulBody,
        packed: Packed,
        target: &str,
    ) -> Result<Matmul, Error> {
        let (packed, weights) = match packed {
            Packed::None => (None, None),
            Packed::Right(side) => (Some(side), None),
            Packed::Convolution { buffer } => (None, Some(buffer)),
        };
        let right_is_packed = packed.is_some();
        let none = || Error::Compile { target: target.to_owned(), reason: "several products in one kernel".into() };
        let sides = Sides::of(body).ok_or_else(none)?;
        let failed = |reason: String| Error::Compile { target: target.to_owned(), reason };
        let side = |prologue: &Prologue, rows: &[Axis], columns: &[Axis], by_row: bool| match PlainLoad::of(
            kernel, prologue, rows, columns,
        ) {
            Some(plain) => Ok(Side::Plain(plain)),
            None => match WindowLoad::of(kernel, body, prologue, rows, columns) {
                Some(load) => Ok(Side::Windows { load: Box::new(load), by_row }),
                None => Maker::new(build, kernel, body, prologue, rows, columns)
                    .map(|maker| Side::Made { maker: Box::new(maker), by_row }),
            },
        };
        let left = side(sides.left, sides.rows, &body.k, true).map_err(failed)?;
        // The right operand is made along the direction in which its loads are contiguous.
        let by_row = match (plain::steps_by_one(sides.right, sides.columns), plain::steps_by_one(sides.right, &body.k))
        {
            (true, true) => !plain::is_shorter(sides.columns, &body.k),
            // Windows a step apart are packed by vectors too.
            (false, true) => {
                let windows = WindowLoad::of(kernel, body, sides.right, &body.k, sides.columns);
                windows.is_some() && !plain::is_shorter(sides.columns, &body.k)
            }
            (_, false) => true,
        };
        let blocks = PlainBlocks::of(sides.right, &body.k, sides.columns);
        if blocks.is_none() && plain::is_blocks(sides.right) {
            return Err(failed("quantised blocks that are not rows of the right operand".into()));
        }
        let right = match (
            packed.or(blocks.map(Side::Blocks)),
            by_row,
            PlainLoad::of(kernel, sides.right, &body.k, sides.columns),
        ) {
            (Some(packed), ..) => packed,
            (None, _, Some(plain)) => Side::Plain(plain),
            (None, true, None) => side(sides.right, &body.k, sides.columns, true).map_err(failed)?,
            (None, false, None) => side(sides.right, sides.columns, &body.k, false).map_err(failed)?,
        };
        let finish = match PlainStore::of(kernel, body, sides.rows, sides.columns) {
            Some(plain) => Finish::Plain(plain),
            None => {
                let tiles = Tiles::new(build, kernel, body, sides.rows, sides.columns).map_err(failed)?;
                Finish::Fused(Box::new(tiles))
            }
        };
        let direct = match weights {
            Some(_) => None,
            None => DirectConvolution::of(build, kernel, body, &sides, &left, &right).map_err(failed)?,
        };
        let depthwise = match (&direct, weights) {
            (None, None) => DepthwiseConvolution::of(build, kernel, body).map_err(failed)?,
            _ => None,
        };
        let dense = match &direct {
            None if !right_is_packed => DenseConvolution::of(build, kernel, body, &sides, weights).map_err(failed)?,
            _ => None,
        };
        let gradient = match (&direct, &dense) {
            (None, dense) if dense.as_ref().is_none_or(|dense| !dense.is_certain()) => {
                DirectGradient::of(build, kernel, body, &sides, &right).map_err(failed)?
            }
            _ => None,
        };
        let boxed: [Option<Box<dyn Convolution>>; 4] =
            [direct.map(boxed), depthwise.map(boxed), dense.map(boxed), gradient.map(boxed)];
        let convolutions = boxed.into_iter().flatten().collect();
        let product = |axes: &[Axis]| axes.iter().map(|axis| &axis.size).product();
        let matmul = Matmul {
            isa: build.isa,
            acc: body.acc,
            precision: body.precision,
            sizes: kernel.sizes.clone(),
            symbols: kernel.sizes.iter().copied().chain(body.batch.iter().map(|axis| axis.var)).collect(),
            buffers: kernel.buffers.len(),
            batch: body.batch.clone(),
            rows: product(sides.rows),
            columns: product(sides.columns),
            summed: product(&body.k),
            left,
            right,
            finish,
            choices: Choices::default(),
            row: None,
            few_rows: None,
            convolutions,
        };
        matmul.prepared().map_err(|error| failed(error.to_string()))
    }

    /// Adds what can be decided before a launch.
    fn prepared(self) -> Result<Matmul, GemmError> {
        let few_rows = PackedRows::of(&self)?.map(Box::new);
        Ok(Matmul { row: Row::of(&self)?, few_rows, ..self })
    }

    /// The same with some choices made about how it is split and blocked.
    pub(crate) fn choosing(self, choices: Choices) -> Matmul {
        let row = if choices.stream == Some(0) { None } else { self.row };
        let few_rows = self.few_rows.filter(|_| choices == Choices::default());
        Matmul { choices, row, few_rows, ..self }
    }

    /// Bytes of generated code beyond the shared micro-kernels.
    pub fn code_bytes(&self) -> usize {
        self.parts().iter().map(|(_, code)| code.code_bytes()).sum()
    }

    /// The code of this product alone, in a form that another process can run.
    pub fn pieces(&self) -> Vec<Piece> {
        self.parts().iter().filter_map(|(_, code)| code.to_piece()).collect()
    }

    /// The code of this product alone, with the name of each part.
    fn parts(&self) -> Vec<(&'static str, &LoopKernel)> {
        let mut parts = Vec::new();
        for (what, side) in [("makes the left operand", &self.left), ("makes the right operand", &self.right)] {
            if let Side::Made { maker, .. } = side {
                parts.push((what, maker.code()));
            }
        }
        if let Finish::Fused(tiles) = &self.finish {
            parts.push(("finishes a tile of the result", tiles.code()));
        }
        parts.extend(self.convolutions.iter().map(|convolution| convolution.part()));
        parts
    }

    /// Renders each part; `None` where all of the work is done by the shared micro-kernels.
    pub fn describe(&self, text: fn(&LoopKernel) -> Option<String>) -> Option<String> {
        let section = |(what, code): (&str, &LoopKernel)| text(code).map(|text| format!("# {what}\n{text}"));
        let sections: Vec<String> = self.parts().into_iter().filter_map(section).collect();
        (!sections.is_empty()).then(|| sections.join("\n"))
    }

    /// Runs it.
    ///
    /// # Safety
    /// As [`kiln_runtime::Executable::launch`].
    pub unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        let wrong = |what, expected, got| LaunchError::WrongArguments { what, expected, got };
        if buffers.len() != self.buffers {
            return Err(wrong("buffers", self.buffers, buffers.len()));
        }
        if sizes.len() != self.sizes.len() {
            return Err(wrong("sizes", self.sizes.len(), sizes.len()));
        }
        if let Some(row) = &self.row {
            // SAFETY: passed on from the caller.
            return unsafe { row.launch(&self.finish, buffers) };
        }
        if let Some(few_rows) = &self.few_rows {
            // SAFETY: passed on from the caller.
            return unsafe { few_rows.launch(&self.finish, buffers) };
        }
        let known = Known { symbols: &self.sizes, values: sizes };
        let batch = self.batch.iter().map(|axis| known.size(&axis.size)).collect::<Result<SmallVec<_>, _>>()?;
        let products: usize = batch.iter().product();
        let (m, n, k) = (known.size(&self.rows)?, known.size(&self.columns)?, known.size(&self.summed)?);
        if products == 0 || m == 0 || n == 0 {
            return Ok(());
        }
        let threads = self.choices.threads_of(pool::threads());
        let launch = Launch { isa: self.isa, threads, buffers, known: &known };
        for convolution in &self.convolutions {
            // SAFETY: passed on from the caller.
            if unsafe { convolution.launch(&launch)? } {
                return Ok(());
            }
        }
        // Many small products: one per thread. Few or large ones: all threads on each.
        let work = m.saturating_mul(n).saturating_mul(k.max(1));
        let one_thread_each = products >= threads && (work < 1 << 22 || products >= 4 * threads) && threads > 1;
        let tuning = Tuning {
            stream: self.choices.stream.map(|stream| stream > 0),
            panel_bytes: self.choices.panel.map(|kib| kib << 10),
            tasks: self.choices.tasks,
            row_by_row: self.choices.streams.map(|streams| streams == 1),
        };
        let threads_each = if one_thread_each { 1 } else { threads };
        let gemm = Gemm {
            isa: self.isa,
            precision: self.precision,
            threads: threads_each,
            tuning,
            ..Gemm::new(m, n, k, self.acc)
        };
        let run = |product: usize| {
            let mut point: SmallVec<i64> = batch.iter().map(|_| 0).collect();
            let mut rest = product;
            for (at, size) in point.iter_mut().zip(&*batch).rev() {
                *at = (rest % size) as i64;
                rest /= size;
            }
            // SAFETY: passed on from the caller; `point` is inside the batch.
            unsafe { self.product(&gemm, buffers, sizes, &point) }
        };
        if !one_thread_each || work.saturating_mul(products) < 1 << 15 {
            return (0..products).try_for_each(run);
        }
        let failure = std::sync::Mutex::new(Ok(()));
        let chunks = products.min(threads * 4);
        pool::run(chunks, threads, &|chunk| {
            for product in products * chunk / chunks..products * (chunk + 1) / chunks {
                if let Err(error) = run(product) {
                    *failure.lock().unwrap_or_else(|e| e.into_inner()) = Err(error);
                }
            }
        });
        failure.into_inner().unwrap_or_else(|e| e.into_inner())
    }

    /// One product of the batch.
    ///
    /// # Safety
    /// As [`Matmul::launch`], at a point of the batch.
    unsafe fn product(
        &self,
        gemm: &Gemm,
        buffers: &[RawBuffer],
        sizes: &[i64],
        point: &[i64],
    ) -> Result<(), LaunchError> {
        let values: SmallVec<i64> = sizes.iter().chain(point).copied().collect();
        let known = Known { symbols: &self.symbols, values: &values };
        let made_left = self.left.made(buffers, &values)?;
        let made_right = self.right.made(buffers, &values)?;
        let (left_windows, right_windows) =
            (self.left.windows(self.isa, buffers, &known)?, self.right.windows(self.isa, buffers, &known)?);
        let matrix = |plain: &PlainLoad| -> Result<Matrix, LaunchError> {
            let width = plain.dtype.size_in_bits() / 8;
            let offset = known.number(&plain.offset)? as isize * width as isize;
            Ok(Matrix {
                data: buffers[plain.buffer].ptr.wrapping_offset(offset),
                dtype: plain.dtype,
                row_stride: known.number(&plain.row)? as isize,
                column_stride: known.number(&plain.column)? as isize,
            })
        };
        let left = match (&self.left, &made_left) {
            (Side::Plain(plain), _) => Operand::Strided(matrix(plain)?),
            (_, Some((rows, _))) => Operand::Rows(rows),
            (_, None) => match &left_windows {
                Some(windows) => Operand::Rows(windows),
                None => unreachable!("a side that is not plain is made"),
            },
        };
        let packed = match self.right {
            // SAFETY: the buffer was packed for this kernel, and the launch guarantees it.
            Side::Packed { buffer, panels } => Some(unsafe { PackedB::at(panels, buffers[buffer].ptr) }),
            _ => None,
        };
        let rows_of_right;
        let right = match (&self.right, &made_right) {
            (Side::Plain(plain), _) => Operand::Strided(matrix(plain)?),
            (Side::Windows { by_row, .. }, _) => match (right_windows, by_row) {
                (Some(windows), true) => {
                    rows_of_right = windows.with_rows();
                    Operand::Rows(&rows_of_right)
                }
                (Some(windows), false) => {
                    rows_of_right = windows;
                    Operand::Columns(&rows_of_right)
                }
                (None, _) => unreachable!("windows were made above"),
            },
            (_, Some((rows, true))) => Operand::Rows(rows),
            (_, Some((rows, false))) => Operand::Columns(rows),
            (Side::Blocks(plain), _) => Operand::Blocks(BlockMatrix {
                data: buffers[plain.buffer].ptr.wrapping_offset(known.number(&plain.offset)? as isize),
                format: plain.format,
                stride: known.number(&plain.column)? as isize,
            }),
            (_, None) => match &packed {
                Some(packed) => Operand::Packed(packed),
                None => unreachable!("a side that is neither plain nor packed is made"),
            },
        };
        let run = |epilogue: &dyn Epilogue| {
            // SAFETY: the caller guarantees the buffers, the kernel the strides.
            unsafe { gemm.run(left, right, epilogue) }
                .map_err(|error| LaunchError::Device { code: 0, message: error.to_string() })
        };
        let mut outcome = match &self.finish {
            Finish::Plain(plain) => {
                let width = (plain.dtype.size_in_bits() / 8) as isize;
                let data = buffers[plain.buffer].ptr.wrapping_offset(known.number(&plain.offset)? as isize * width);
                let (row, column) = (known.number(&plain.row)? as isize, known.number(&plain.column)? as isize);
                let store = Store::new(data, plain.dtype, row, column)
                    .map_err(|error| LaunchError::Device { code: 0, message: error.to_string() })?;
                run(&store)
            }
            Finish::Fused(tiles) => {
                let fused = FusedEpilogue::new(tiles, buffers, &values)?;
                run(&fused).and_then(|()| fused.outcome())
            }
        };
        for (rows, _) in [&made_left, &made_right].into_iter().flatten() {
            outcome = outcome.and_then(|()| rows.outcome());
        }
        outcome
    }
}

/// Symbols with their values.
pub(crate) struct Known<'a> {
    pub symbols: &'a [Symbol],
    pub values: &'a [i64],
}

impl Known<'_> {
    /// The value of an expression.
    pub fn number(&self, dim: &Dim) -> Result<i64, LaunchError> {
        if let Some(number) = dim.as_const() {
            return Ok(number);
        }
        dim.eval(&|symbol| self.symbols.iter().position(|s| *s == symbol).map(|i| self.values[i]))
            .ok_or(LaunchError::WrongArguments { what: "sizes", expected: self.symbols.len(), got: self.values.len() })
    }

    /// The value of a size.
    pub fn size(&self, dim: &Dim) -> Result<usize, LaunchError> {
        let value = self.number(dim)?;
        usize::try_from(value).map_err(|_| LaunchError::BadSize { value })
    }
}
