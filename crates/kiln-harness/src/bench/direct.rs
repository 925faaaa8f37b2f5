//! Products called without a program around them, one way of several: with weights packed beforehand, as a frozen program calls
//! them, or with the rows of the weights in one order or the other.

use super::cases::Case;
use kiln::Tensor;
use kiln_cpu::features::Isa;
use kiln_cpu::gemm::{Gemm, GemmError, Matrix, Operand, PackedB, Store, Tuning};
use kiln_ir::DType;

/// x[M, K] · W[N, K]ᵀ.
pub struct Product {
    gemm: Gemm,
    x: Tensor,
    w: Tensor,
    packed: Option<PackedB>,
    out: Vec<u32>,
}

impl Product {
    /// The product of a case, if its kind is one way of several.
    pub fn of(case: &Case, tensors: &[Tensor]) -> Result<Option<Product>, GemmError> {
        let row_by_row = match case.kind {
            "packed" => None,
            "row_by_row" => Some(true),
            "side_by_side" => Some(false),
            _ => return Ok(None),
        };
        let (m, k, n) = (case.shape[0], case.shape[1], case.shape[2]);
        let tuning = Tuning { row_by_row, ..Tuning::default() };
        let gemm = Gemm { threads: case.threads, tuning, ..Gemm::new(m, n, k, DType::F32) };
        let (x, w) = (tensors[0].clone(), tensors[1].clone());
        let packed = match row_by_row {
            // SAFETY: the weights are a row-major [N, K] tensor, which as [K, N] has these strides.
            None => Some(unsafe { PackedB::new(Isa::get(), k, n, DType::F32, &weights(&w, k)) }?),
            Some(_) => None,
        };
        Ok(Some(Product { gemm, x, w, packed, out: vec![0; m * n] }))
    }

    /// One call.
    pub fn run(&mut self) -> Result<(), GemmError> {
        let k = self.gemm.k;
        let x = Matrix { data: self.x.buffer().ptr(), dtype: self.x.dtype(), row_stride: k as isize, column_stride: 1 };
        let store = Store::new(self.out.as_mut_ptr().cast(), self.x.dtype(), self.gemm.n as isize, 1);
        let right = match &self.packed {
            Some(packed) => Operand::Packed(packed),
            None => Operand::Strided(weights(&self.w, k)),
        };
        store.and_then(|store| {
            // SAFETY: x is a row-major [M, K] tensor; the result has room for M · N elements of at most 4 bytes.
            unsafe { self.gemm.run(Operand::Strided(x), right, &store) }
        })
    }
}

/// A row-major [N, K] tensor as [K, N].
fn weights(w: &Tensor, k: usize) -> Matrix {
    Matrix { data: w.buffer().ptr(), dtype: w.dtype(), row_stride: 1, column_stride: k as isize }
}
