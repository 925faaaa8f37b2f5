//! A few rows times panels that were packed beforehand, in f32: one register tile high and one block of K deep, so that nothing is left to
//! decide when it runs. The sums are those of [`super::blocked`].

use super::kernel::{self, Format, MicroFn, Shape};
use super::pack::{Lanes, pack};
use super::source::Matrix;
use super::{GemmError, Panels, TASK_WORK};
use crate::features::Isa;

/// K up to which all of it is one block.
const MOST_K: usize = 256;

/// The product of a few rows and panels.
#[derive(Clone, Copy)]
pub(crate) struct FewRows {
    isa: Isa,
    rows: usize,
    k: usize,
    /// Panels, their columns and bytes.
    panels: usize,
    width: usize,
    panel_bytes: usize,
    micro: MicroFn,
}

impl FewRows {
    /// `None` for products of other panels, of more rows, or that a second thread is worth.
    pub(crate) fn new(panels: &Panels, rows: usize) -> Result<Option<FewRows>, GemmError> {
        let (isa, (k, n)) = (panels.isa(), panels.shape());
        let fits = panels.format() == Some(Format::F32)
            && (1..=kernel::max_rows(isa, Format::F32)).contains(&rows)
            && (1..=MOST_K).contains(&k)
            && rows * k * n < 2 * TASK_WORK;
        if !fits {
            return Ok(None);
        }
        let micro = kernel::get(Shape { isa, format: Format::F32, mr: rows, nv: 2, accumulate: false })?;
        let width = panels.width();
        Ok(Some(FewRows { isa, rows, k, panels: n.div_ceil(width), width, panel_bytes: panels.panel_bytes(), micro }))
    }

    /// Elements from one row of sums to the next.
    pub(crate) fn stride(&self) -> usize {
        self.panels * self.width
    }

    /// Whether the panels have these columns and no others.
    pub(crate) fn is_whole(&self, columns: usize) -> bool {
        columns == self.stride()
    }

    /// Elements of the rows as the code reads them.
    pub(crate) fn packed(&self) -> usize {
        self.rows * self.k
    }

    /// Elements of the sums, in memory of their own.
    pub(crate) fn sums(&self) -> usize {
        self.rows * self.stride()
    }

    /// Computes all sums, rows of them `stride` elements apart.
    ///
    /// # Safety
    /// The rows are readable, `panels` are packed, there is room for [`FewRows::packed`] at `a` and for all columns of the panels in each
    /// row at `to`.
    pub(crate) unsafe fn run(&self, rows: &Matrix, panels: *const u8, a: *mut f32, to: *mut f32, stride: usize) {
        let from =
            Lanes { data: rows.data, dtype: rows.dtype, lane_stride: rows.row_stride, k_stride: rows.column_stride };
        // SAFETY: the caller's promise.
        unsafe {
            pack::<f32>(self.isa, &from, 0..self.rows, self.rows, 0..self.k, a);
            for panel in 0..self.panels {
                (self.micro)(
                    a.cast(),
                    panels.add(panel * self.panel_bytes),
                    to.add(panel * self.width).cast(),
                    self.k,
                    self.width * size_of::<f32>(),
                    stride * size_of::<f32>(),
                );
            }
        }
    }
}
