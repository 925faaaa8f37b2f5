//! A product with weights packed beforehand, called as a frozen program calls it.

use super::cases::Case;
use kiln::Tensor;
use kiln_cpu::features::Isa;
use kiln_cpu::gemm::{Gemm, GemmError, Matrix, Operand, PackedB, Store};
use kiln_ir::DType;

/// x[M, K] · W[N, K]ᵀ with W packed.
pub struct Product {
    gemm: Gemm,
    x: Tensor,
    packed: PackedB,
    out: Vec<u32>,
}

impl Product {
    /// Packs the weights of a linear case.
    pub fn new(case: &Case, tensors: &[Tensor]) -> Result<Product, GemmError> {
        let (m, k, n) = (case.shape[0], case.shape[1], case.shape[2]);
        let weights =
            Matrix { data: tensors[1].buffer().ptr(), dtype: case.dtype, row_stride: 1, column_stride: k as isize };
        // SAFETY: the weights are a row-major [N, K] tensor, which as [K, N] has these strides.
        let packed = unsafe { PackedB::new(Isa::get(), k, n, DType::F32, &weights) }?;
        let gemm = Gemm { threads: case.threads, ..Gemm::new(m, n, k, DType::F32) };
        Ok(Product { gemm, x: tensors[0].clone(), packed, out: vec![0; m * n] })
    }

    /// One call.
    pub fn run(&mut self) {
        let k = self.gemm.k as isize;
        let x = Matrix { data: self.x.buffer().ptr(), dtype: self.x.dtype(), row_stride: k, column_stride: 1 };
        let store = Store::new(self.out.as_mut_ptr().cast(), self.x.dtype(), self.gemm.n as isize, 1);
        let outcome = store.and_then(|store| {
            // SAFETY: x is a row-major [M, K] tensor; the result has room for M · N elements of at most 4 bytes.
            unsafe { self.gemm.run(Operand::Strided(x), Operand::Packed(&self.packed), &store) }
        });
        if let Err(error) = outcome {
            eprintln!("{error}");
        }
    }
}
