//! B packed once, for weights that are used again and again.

use super::blocked::Tiling;
use super::kernel::Format;
use super::pack::{Lanes, pack, pack_as, pack_pairs};
use super::source::Matrix;
use super::{Gemm, GemmError, check_target, pack as packing};
use crate::features::Isa;
use crate::pool;
use kiln_ir::DType;

/// B in panels of one register tile's width, all of K in each: `[panel][k][column]`, bf16 in pairs of k.
///
/// bf16 and f16 weights of f32 products stay 16 bits wide (except on [`Isa::Portable`]) and are widened in registers.
pub struct PackedB {
    isa: Isa,
    k: usize,
    n: usize,
    acc: DType,
    format: Option<Format>,
    data: Vec<Line>,
}

/// A cache line, so that panels are aligned.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(#[allow(dead_code, reason = "only its size and alignment matter")] [u8; 64]);

impl std::fmt::Debug for PackedB {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedB {{ k: {}, n: {}, {:?}, {:?} }}", self.k, self.n, self.format, self.isa)
    }
}

impl PackedB {
    /// Packs a K × N matrix for products that accumulate in `acc`.
    ///
    /// # Safety
    /// Every element of the matrix must be readable.
    pub unsafe fn new(isa: Isa, k: usize, n: usize, acc: DType, b: &Matrix) -> Result<PackedB, GemmError> {
        if !packing::readable(b.dtype) {
            return Err(GemmError::Unreadable { dtype: b.dtype });
        }
        check_target(isa)?;
        let tiling = Tiling::new(isa, acc)?;
        let format = tiling.format.map(|format| match (format, b.dtype) {
            (Format::F32, DType::Bf16) => Format::Bf16,
            (Format::F32, DType::F16) => Format::F16,
            _ => format,
        });
        let size = format.map_or(acc.size_in_bits() / 8, Format::size);
        let panels = n.div_ceil(tiling.nr);
        let depth = format.map_or(1, Format::depth);
        let panel_bytes = k.div_ceil(depth) * tiling.nr * size;
        let lines = (panels * panel_bytes).div_ceil(64);
        let mut packed = PackedB { isa, k, n, acc, format, data: vec![Line([0; 64]); lines] };
        let data = packed.data.as_mut_ptr() as usize;
        let from = Lanes { data: b.data, dtype: b.dtype, lane_stride: b.column_stride, k_stride: b.row_stride };
        let shared = Shared(from);
        pool::run(panels, pool::threads(), &|p| {
            let from = shared.get();
            let lanes = p * tiling.nr..n.min((p + 1) * tiling.nr);
            let panel = (data + p * panel_bytes) as *mut u8;
            // SAFETY: panels are disjoint parts of `data`, which outlives this call; the source is the caller's.
            unsafe {
                match (format, acc) {
                    (Some(Format::Bf16), _) => {
                        pack_pairs(isa, from, lanes, tiling.nr, 0..k.div_ceil(2), k, panel.cast());
                    }
                    (Some(Format::F16), _) => pack_as::<u16, u16>(from, lanes, tiling.nr, 0..k, panel.cast()),
                    (_, DType::F32) => pack::<f32>(isa, from, lanes, tiling.nr, 0..k, panel.cast()),
                    (_, DType::F64) => pack::<f64>(isa, from, lanes, tiling.nr, 0..k, panel.cast()),
                    (_, DType::I32) => pack::<i32>(isa, from, lanes, tiling.nr, 0..k, panel.cast()),
                    (_, _) => pack::<i64>(isa, from, lanes, tiling.nr, 0..k, panel.cast()),
                }
            }
        });
        Ok(packed)
    }

    /// Rows of B.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Columns of B.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.data.len() * size_of::<Line>()
    }

    pub(super) fn check(&self, gemm: &Gemm) -> Result<(), GemmError> {
        if (self.k, self.n, self.isa, self.acc) == (gemm.k, gemm.n, gemm.isa, gemm.acc) {
            return Ok(());
        }
        Err(GemmError::WrongPacking {
            packed_k: self.k,
            packed_n: self.n,
            packed_isa: self.isa,
            k: gemm.k,
            n: gemm.n,
            isa: gemm.isa,
        })
    }

    /// How elements lie in the panels; `None` for the portable kernels.
    pub(super) fn format(&self) -> Option<Format> {
        self.format
    }

    /// The element type, where the panels keep it.
    pub(super) fn dtype(&self) -> Option<DType> {
        (self.format == Some(Format::Bf16)).then_some(DType::Bf16)
    }

    pub(super) fn data(&self) -> *const u8 {
        self.data.as_ptr().cast()
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
