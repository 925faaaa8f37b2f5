//! Packed right operands: whether a product has one that is worth packing, and the code that packs it.

use super::Sides;
use super::dense::Weights;
use super::plain::PlainLoad;
use crate::features::Isa;
use crate::gemm::{Matrix, Panels, TASK_WORK};
use crate::pool;
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Inst, InstKind, Kernel, KernelBody, MatmulBody};
use kiln_runtime::{Executable, LaunchError, Packing, Pays, RawBuffer};
use std::sync::Arc;

/// Rows of the left operand from which the right one is packed by every product, so that packing it beforehand pays. With fewer
/// rows it is read in place, by all threads at once, which only one thread on panels beats, and that in a cache alone.
const ROWS: i64 = 129;
/// The same for one thread.
const ROWS_OF_ONE: i64 = 2;
/// Multiply-adds up to which one thread computes a product alone, however many there are.
const MOST_WORK_OF_ONE: i64 = 2 * TASK_WORK as i64;

/// A right operand that can be packed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RightOperand {
    pub panels: Panels,
    dtype: DType,
    offset: isize,
    row_stride: isize,
    column_stride: isize,
}

impl RightOperand {
    /// The right operand of a product, if it is `buffer`, not read elsewhere in the kernel, at addresses that depend on no size
    /// and no batch axis.
    pub fn of(isa: Isa, kernel: &Kernel, body: &MatmulBody, buffer: usize) -> Option<RightOperand> {
        let sides = Sides::of(body)?;
        if !std::ptr::eq(sides.right, &body.rhs[0]) || !is_read_by_right_alone(body, buffer) {
            return None;
        }
        let plain =
            PlainLoad::of(kernel, sides.right, &body.k, sides.columns).filter(|plain| plain.buffer == buffer)?;
        // Panels of bytes would be floats or words, and bytes that are multiplied in fours are packed as fast as those are read.
        if plain.dtype == DType::I8 {
            return None;
        }
        let number = |dim: &Dim| dim.as_const().and_then(|n| isize::try_from(n).ok());
        let size = |dim: Dim| dim.as_const().and_then(|n| usize::try_from(n).ok());
        let k = size(body.k.iter().map(|axis| &axis.size).product())?;
        let n = size(sides.columns.iter().map(|axis| &axis.size).product())?;
        let panels = Panels::new(isa, k, n, body.acc, plain.dtype).ok()?.rounded(body.precision);
        Some(RightOperand {
            panels,
            dtype: plain.dtype,
            offset: number(&plain.offset)?,
            row_stride: number(&plain.row)?,
            column_stride: number(&plain.column)?,
        })
    }

    fn key(&self) -> String {
        let RightOperand { panels, dtype, offset, row_stride, column_stride } = self;
        format!("{panels:?} of {dtype} at {offset} by {row_stride}, {column_stride}")
    }
}

fn is_read_by_right_alone(body: &MatmulBody, buffer: usize) -> bool {
    !is_used(&body.lhs.insts, buffer) && !is_used_by_epilogue(body, buffer)
}

/// Whether an epilogue reads or writes a buffer.
pub(super) fn is_used_by_epilogue(body: &MatmulBody, buffer: usize) -> bool {
    is_used(&body.epilogue, buffer)
}

fn is_used(insts: &[Inst], buffer: usize) -> bool {
    insts.iter().any(|inst| match &inst.kind {
        InstKind::Load { place, .. } | InstKind::LoadBlock { place, .. } | InstKind::Store { place, .. } => {
            place.buffer == buffer
        }
        _ => false,
    })
}

/// The code that packs an operand of a kernel, if there is one.
pub(crate) fn packer(isa: Isa, kernel: &Kernel, buffer: usize) -> Option<Arc<dyn Executable>> {
    let KernelBody::Matmul(body) = &kernel.body else { return None };
    if let Some(weights) = Weights::of(isa, kernel, body, buffer) {
        return Some(Arc::new(weights));
    }
    Some(Arc::new(RightOperand::of(isa, kernel, body, buffer)?))
}

/// The packing of a kernel's buffer, if it is the weights of a dense convolution, or the right operand of a product with columns enough for a
/// panel.
pub(crate) fn packing(isa: Isa, kernel: &Kernel, buffer: usize) -> Option<Packing> {
    let KernelBody::Matmul(body) = &kernel.body else { return None };
    if let Some(weights) = Weights::of(isa, kernel, body, buffer) {
        let (key, bytes) = (format!("convolution {weights:?}"), weights.panels.bytes());
        return Some(Packing { buffer, key, bytes, pays: Pays::Always, pays_in_turns: true });
    }
    let right = RightOperand::of(isa, kernel, body, buffer)?;
    let rows: Dim = body.m.iter().map(|axis| &axis.size).product();
    let columns: Dim = body.n.iter().map(|axis| &axis.size).product();
    let wide = columns.as_const().is_some_and(|n| n >= right.panels.width() as i64);
    if !wide || right.panels.bytes() == 0 {
        return None;
    }
    let enough = match pool::threads() {
        1 => rows.as_const().is_none_or(|m| m >= ROWS_OF_ONE),
        _ => rows.as_const().is_some_and(|m| m >= ROWS),
    };
    // Weights from memory gain 3 % in hundreds of rows and lose in fewer: not worth the memory of all of them once more.
    let pays = if enough { Pays::InCache } else { Pays::Never };
    // A product of one thread reads panels faster than anything else, but for one row.
    let work = rows.as_const().and_then(|m| m.checked_mul(right.panels.elements() as i64));
    let is_small = work.is_some_and(|work| work < MOST_WORK_OF_ONE) && rows.as_const() >= Some(ROWS_OF_ONE);
    // Packing before the turns of a loop takes as long as a few of them.
    let pays_in_turns = is_small || rows.as_const().is_some_and(|m| m >= ROWS);
    Some(Packing { buffer, key: right.key(), bytes: right.panels.bytes(), pays, pays_in_turns })
}

/// Where an operand is, and where its packing goes.
fn from_to(buffers: &[RawBuffer]) -> Result<[RawBuffer; 2], LaunchError> {
    let wrong = |_| LaunchError::WrongArguments { what: "buffers", expected: 2, got: buffers.len() };
    <[RawBuffer; 2]>::try_from(buffers).map_err(wrong)
}

impl Executable for Weights {
    unsafe fn launch(&self, buffers: &[RawBuffer], _sizes: &[i64]) -> Result<(), LaunchError> {
        let [from, to] = from_to(buffers)?;
        // SAFETY: the caller guarantees the source; the target has the size that `packing` requires.
        unsafe { self.pack(from.ptr, to.ptr) };
        Ok(())
    }
}

impl Executable for RightOperand {
    unsafe fn launch(&self, buffers: &[RawBuffer], _sizes: &[i64]) -> Result<(), LaunchError> {
        let [from, to] = from_to(buffers)?;
        let width = (self.dtype.size_in_bits() / 8) as isize;
        let matrix = Matrix {
            data: from.ptr.wrapping_offset(self.offset * width),
            dtype: self.dtype,
            row_stride: self.row_stride,
            column_stride: self.column_stride,
        };
        // SAFETY: the caller guarantees the source; the target has the size that `packing` requires.
        unsafe { self.panels.pack(&matrix, to.ptr) };
        Ok(())
    }
}
