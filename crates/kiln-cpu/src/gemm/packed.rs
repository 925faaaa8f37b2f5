//! B packed once, for weights that are used repeatedly.

use super::blocked::Tiling;
use super::kernel::Format;
use super::pack::{Lanes, pack, pack_as};
use super::source::{Matrix, Operand, SharedOperand};
use super::tiles::TILE;
use super::words::{Short, Words, pack_words};
use super::{Gemm, GemmError, check_target, pack as packing};
use crate::features::{Extension, Isa};
use crate::pool;
use kiln_ir::DType;
use kiln_kernels::Precision;

/// The layout of a packed B: panels of one register tile's width, all of K in each, `[panel][k][column]`, bf16 in pairs of k.
///
/// bf16 and f16 weights of f32 products stay 16 bits wide (except on [`Isa::Portable`]) and are widened in registers, or multiplied in
/// pairs; panels of pairs are padded with zeros to what tiles take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panels {
    isa: Isa,
    k: usize,
    n: usize,
    acc: DType,
    nr: usize,
    format: Option<Format>,
    /// The elements are f32.
    is_f32: bool,
}

impl Panels {
    /// The panels of a K × N matrix of `dtype` for products that accumulate in `acc`.
    pub fn new(isa: Isa, k: usize, n: usize, acc: DType, dtype: DType) -> Result<Panels, GemmError> {
        if !packing::readable(dtype) {
            return Err(GemmError::Unreadable { dtype });
        }
        check_target(isa)?;
        let tiling = Tiling::new(isa, acc)?;
        let format = tiling.format.map(|format| match (format, dtype) {
            (Format::F32, DType::Bf16) => Format::Bf16,
            (Format::F32, DType::F16) => Format::F16,
            _ => format,
        });
        Ok(Panels { isa, k, n, acc, nr: tiling.nr, format, is_f32: dtype == DType::F32 })
    }

    /// The same with panels of so many columns.
    pub(super) fn of_width(self, nr: usize) -> Panels {
        Panels { nr, ..self }
    }

    /// The same for fewer columns.
    pub(crate) fn of_columns(self, n: usize) -> Panels {
        Panels { n, ..self }
    }

    /// Columns of a panel.
    pub fn width(&self) -> usize {
        self.nr
    }

    /// The target.
    pub(super) fn isa(&self) -> Isa {
        self.isa
    }

    /// Rows and columns of the matrix.
    pub(crate) fn shape(&self) -> (usize, usize) {
        (self.k, self.n)
    }

    /// The layout of elements; `None` for the portable kernels.
    pub(super) fn format(&self) -> Option<Format> {
        self.format
    }

    /// Elements of the matrix.
    pub(crate) fn elements(&self) -> usize {
        self.k * self.n
    }

    /// Bytes of memory, a multiple of a cache line.
    pub fn bytes(&self) -> usize {
        (self.n.div_ceil(self.nr) * self.panel_bytes()).next_multiple_of(64)
    }

    /// The same for products of less precision: weights that may be rounded to bf16 are, where pairs of them are multiplied at once.
    pub fn rounded(self, precision: Precision) -> Panels {
        let faster = self.isa == Isa::Avx512 && Extension::get() >= Extension::Bf16;
        match self.format {
            Some(Format::F32) if faster && precision == Precision::Medium && self.is_f32 => {
                Panels { format: Some(Format::Bf16), ..self }
            }
            _ => self,
        }
    }

    /// Units of K in a panel.
    fn units(&self) -> usize {
        match self.format {
            Some(Format::Bf16) => self.k.div_ceil(2).next_multiple_of(TILE),
            format => self.k.div_ceil(format.map_or(1, Format::depth)),
        }
    }

    pub(super) fn panel_bytes(&self) -> usize {
        self.units() * self.nr * self.format.map_or(self.acc.size_in_bits() / 8, Format::size)
    }

    /// Packs a matrix of the type that these panels are for.
    ///
    /// # Safety
    /// Every element of the K × N matrix must be readable, `to` writable for [`Panels::bytes`] and aligned to a cache line.
    pub unsafe fn pack(&self, b: &Matrix, to: *mut u8) {
        let &Panels { isa, k, n, acc, nr, format, .. } = self;
        let units = self.units();
        let (to, panel_bytes) = (to as usize, self.panel_bytes());
        let from = Lanes { data: b.data, dtype: b.dtype, lane_stride: b.column_stride, k_stride: b.row_stride };
        let (shared, operand) = (Shared(from), SharedOperand(Operand::Strided(*b)));
        pool::run(n.div_ceil(nr), pool::threads(), &|p| {
            let from = shared.get();
            let lanes = p * nr..n.min((p + 1) * nr);
            let panel = (to + p * panel_bytes) as *mut u8;
            // SAFETY: panels are disjoint parts of the target; source and target are the caller's.
            unsafe {
                match (format, acc) {
                    (Some(Format::Bf16), _) => {
                        let short = Short::of(isa, Words::Pairs, &operand.get(), true, lanes.clone(), 0..k);
                        let lanes = lanes.start - short.first.0..lanes.end - short.first.0;
                        pack_words(isa, Words::Pairs, &short.lanes, (lanes, nr), 0..units, k, panel.cast());
                    }
                    (Some(Format::F16), _) => pack_as::<u16, u16>(from, lanes, nr, 0..k, panel.cast()),
                    (_, DType::F32) => pack::<f32>(isa, from, lanes, nr, 0..k, panel.cast()),
                    (_, DType::F64) => pack::<f64>(isa, from, lanes, nr, 0..k, panel.cast()),
                    (_, DType::I32) => pack::<i32>(isa, from, lanes, nr, 0..k, panel.cast()),
                    (_, _) => pack::<i64>(isa, from, lanes, nr, 0..k, panel.cast()),
                }
            }
        });
    }
}

/// A packed B: panels and where they are.
pub struct PackedB {
    panels: Panels,
    data: *const u8,
    /// The memory, where it is this value's own.
    _own: Vec<Line>,
}

// SAFETY: packed memory is only read once the value is made.
unsafe impl Send for PackedB {}
// SAFETY: as above.
unsafe impl Sync for PackedB {}

/// A cache line, so that panels are aligned.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[allow(dead_code, reason = "only its size and alignment matter")] [u8; 64]);

impl std::fmt::Debug for PackedB {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedB({:?})", self.panels)
    }
}

impl PackedB {
    /// Packs a K × N matrix for products that accumulate in `acc`.
    ///
    /// # Safety
    /// Every element of the matrix must be readable.
    pub unsafe fn new(isa: Isa, k: usize, n: usize, acc: DType, b: &Matrix) -> Result<PackedB, GemmError> {
        let panels = Panels::new(isa, k, n, acc, b.dtype)?;
        let mut own = vec![Line([0; 64]); panels.bytes() / size_of::<Line>()];
        // SAFETY: the source is the caller's, the target has the size of the panels.
        unsafe { panels.pack(b, own.as_mut_ptr().cast()) };
        Ok(PackedB { panels, data: own.as_ptr().cast(), _own: own })
    }

    /// A matrix that [`Panels::pack`] has packed.
    ///
    /// # Safety
    /// `data` is what it wrote, and stays so as long as the value lives.
    pub unsafe fn at(panels: Panels, data: *const u8) -> PackedB {
        PackedB { panels, data, _own: Vec::new() }
    }

    /// Rows of B.
    pub fn k(&self) -> usize {
        self.panels.k
    }

    /// Columns of B.
    pub fn n(&self) -> usize {
        self.panels.n
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.panels.bytes()
    }

    pub(super) fn check(&self, gemm: &Gemm) -> Result<(), GemmError> {
        let Panels { isa, k, n, acc, .. } = self.panels;
        if (k, n, isa, acc) == (gemm.k, gemm.n, gemm.isa, gemm.acc) {
            return Ok(());
        }
        Err(GemmError::WrongPacking { packed_k: k, packed_n: n, packed_isa: isa, k: gemm.k, n: gemm.n, isa: gemm.isa })
    }

    /// The layout of elements in the panels; `None` for the portable kernels.
    pub(super) fn format(&self) -> Option<Format> {
        self.panels.format()
    }

    /// Bytes of a panel.
    pub(super) fn panel_bytes(&self) -> usize {
        self.panels.panel_bytes()
    }

    pub(super) fn data(&self) -> *const u8 {
        self.data
    }
}

/// A source that packing threads share.
struct Shared(Lanes);
// SAFETY: the memory behind it is only read.
unsafe impl Sync for Shared {}
impl Shared {
    fn get(&self) -> &Lanes {
        &self.0
    }
}
