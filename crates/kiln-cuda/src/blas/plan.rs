//! The descriptors of a product at given sizes, and the algorithms that the library proposes for it, the most promising first.

use super::library::{Blas, BlasLt, Heuristic, Raw, Status, WORKSPACE};
use super::product::{Extent, Matrix, Placed, Product};
use crate::driver::{DevicePtr, RawStream};
use kiln_ir::DType;
use kiln_kernels::kernel::Precision;
use kiln_runtime::LaunchError;
use std::ffi::{c_int, c_void};

/// Algorithms that are asked for.
const PROPOSALS: usize = 8;
/// What all addresses are multiples of.
pub(super) const ALIGNMENT: usize = 16;

/// `cudaDataType_t`.
const REAL_32: c_int = 0;
const REAL_16: c_int = 2;
const REAL_BRAIN_16: c_int = 14;
/// `cublasComputeType_t`: sums in F32, of operands as they are, or rounded to TF32.
const COMPUTE_32: c_int = 68;
const COMPUTE_TF32: c_int = 77;
/// `cublasLtMatmulDescAttributes_t`.
const TRANSPOSE_A: c_int = 3;
const TRANSPOSE_B: c_int = 4;
const EPILOGUE: c_int = 7;
const BIAS_POINTER: c_int = 8;
/// `cublasOperation_t`.
const TRANSPOSED: c_int = 1;
/// `cublasLtEpilogue_t`.
const EPILOGUE_BIAS: c_int = 4;
/// `cublasLtMatrixLayoutAttribute_t`.
const BATCH_COUNT: c_int = 5;
const BATCH_STRIDE: c_int = 6;
/// `cublasLtMatmulPreferenceAttributes_t`.
const MOST_WORKSPACE: c_int = 1;
const REDUCTION_SCHEMES: c_int = 3;
const LEAST_ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
/// `cublasLtReductionScheme_t`: parts of a sum are added in the compute type.
const REDUCE_IN_COMPUTE_TYPE: u32 = 2;

/// An object of the library, destroyed at the end.
struct Descriptor {
    raw: Raw,
    destroy: unsafe extern "C" fn(Raw) -> Status,
}

impl Descriptor {
    fn new(
        blas: &BlasLt,
        destroy: unsafe extern "C" fn(Raw) -> Status,
        create: impl FnOnce(*mut Raw) -> Status,
    ) -> Result<Descriptor, LaunchError> {
        let mut raw = std::ptr::null_mut();
        blas.check("a descriptor of cuBLASLt", create(&mut raw))?;
        Ok(Descriptor { raw, destroy })
    }

    fn set<T: Copy>(
        &self,
        blas: &BlasLt,
        set: unsafe extern "C" fn(Raw, c_int, *const c_void, usize) -> Status,
        attribute: c_int,
        value: T,
    ) -> Result<(), LaunchError> {
        // SAFETY: the object exists, and the attribute has the size of `T`, which the library checks.
        let status = unsafe { set(self.raw, attribute, std::ptr::from_ref(&value).cast(), size_of::<T>()) };
        blas.check("an attribute of cuBLASLt", status)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// A product at given sizes.
pub(super) struct Plan {
    blas: &'static Blas,
    operation: Descriptor,
    a: Descriptor,
    b: Descriptor,
    c: Descriptor,
    d: Descriptor,
    has_c: bool,
    has_bias: bool,
    proposals: Vec<Heuristic>,
}

// SAFETY: descriptors are plain memory of the library, which belongs to no thread.
unsafe impl Send for Plan {}

/// The addresses of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    pub(super) a: DevicePtr,
    pub(super) b: DevicePtr,
    pub(super) c: DevicePtr,
    pub(super) d: DevicePtr,
    pub(super) bias: Option<DevicePtr>,
}

impl Plan {
    pub(super) fn new(blas: &'static Blas, product: &Product, extent: &Extent) -> Result<Plan, LaunchError> {
        let functions = blas.functions;
        let compute = match (product.dtype, product.precision) {
            (DType::F32, Precision::High | Precision::Medium) => COMPUTE_TF32,
            _ => COMPUTE_32,
        };
        let operation = Descriptor::new(functions, functions.destroy_operation, |raw| {
            // SAFETY: a place to write to.
            unsafe { (functions.create_operation)(raw, compute, REAL_32) }
        })?;
        for (attribute, matrix) in [(TRANSPOSE_A, &product.a), (TRANSPOSE_B, &product.b)] {
            if matrix.transposed {
                operation.set(functions, functions.set_operation, attribute, TRANSPOSED)?;
            }
        }
        if product.bias.is_some() {
            operation.set(functions, functions.set_operation, EPILOGUE, EPILOGUE_BIAS)?;
            // Some address, until a launch brings its own.
            operation.set(functions, functions.set_operation, BIAS_POINTER, blas.workspace()?)?;
        }
        let &Extent { rows, columns, depth, batch, .. } = extent;
        let layout = |matrix: &Matrix, dtype: DType, placed: &Placed, rows: i64, columns: i64| {
            let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
            let layout = Descriptor::new(functions, functions.destroy_layout, |raw| {
                // SAFETY: a place to write to.
                unsafe { (functions.create_layout)(raw, real(dtype), rows as u64, columns as u64, placed.leading) }
            })?;
            if batch > 1 {
                layout.set(functions, functions.set_layout, BATCH_COUNT, batch as i32)?;
                layout.set(functions, functions.set_layout, BATCH_STRIDE, placed.batch_stride)?;
            }
            Ok(layout)
        };
        let result = |matrix: &Matrix, placed: &Placed| layout(matrix, product.out_dtype, placed, rows, columns);
        let mut plan = Plan {
            blas,
            operation,
            a: layout(&product.a, product.dtype, &extent.a, rows, depth)?,
            b: layout(&product.b, product.dtype, &extent.b, depth, columns)?,
            c: result(product.c.as_ref().unwrap_or(&product.d), &extent.c)?,
            d: result(&product.d, &extent.d)?,
            has_c: product.c.is_some(),
            has_bias: product.bias.is_some(),
            proposals: Vec::new(),
        };
        plan.proposals = plan.propose()?;
        Ok(plan)
    }

    fn propose(&self) -> Result<Vec<Heuristic>, LaunchError> {
        let functions = self.blas.functions;
        let preference = Descriptor::new(functions, functions.destroy_preference, |raw| {
            // SAFETY: a place to write to.
            unsafe { (functions.create_preference)(raw) }
        })?;
        preference.set(functions, functions.set_preference, MOST_WORKSPACE, WORKSPACE)?;
        preference.set(functions, functions.set_preference, REDUCTION_SCHEMES, REDUCE_IN_COMPUTE_TYPE)?;
        for attribute in LEAST_ALIGNMENTS {
            preference.set(functions, functions.set_preference, attribute, ALIGNMENT as u32)?;
        }
        let (mut found, mut count) = ([Heuristic::EMPTY; PROPOSALS], 0);
        // SAFETY: every object exists, and there is room for as many results as are asked for.
        let status = unsafe {
            (functions.heuristics)(
                self.blas.handle,
                self.operation.raw,
                self.a.raw,
                self.b.raw,
                self.c.raw,
                self.d.raw,
                preference.raw,
                PROPOSALS as c_int,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        functions.check("cublasLtMatmulAlgoGetHeuristic", status)?;
        let found = found.into_iter().take(count.max(0) as usize);
        Ok(found.filter(|proposal| proposal.state == 0 && proposal.workspace <= WORKSPACE).collect())
    }

    /// The number of algorithms.
    pub(super) fn proposals(&self) -> usize {
        self.proposals.len()
    }

    /// Queues the product by an algorithm of this number, or by the last one.
    ///
    /// # Safety
    /// The addresses are those of the product's matrices, and the GPU's context is current.
    pub(super) unsafe fn multiply(
        &mut self,
        number: usize,
        addresses: Addresses,
        stream: RawStream,
    ) -> Result<(), LaunchError> {
        let functions = self.blas.functions;
        let Some(proposal) = self.proposals.get(number).or(self.proposals.last()) else {
            return Err(LaunchError::Device { code: 0, message: "cuBLASLt has no algorithm".to_owned() });
        };
        if let Some(bias) = addresses.bias.filter(|_| self.has_bias) {
            self.operation.set(functions, functions.set_operation, BIAS_POINTER, bias)?;
        }
        let workspace = self.blas.workspace()?;
        let (alpha, beta) = (1.0f32, if self.has_c { 1.0f32 } else { 0.0 });
        // SAFETY: the caller's promise; scalars are read before the call returns.
        let status = unsafe {
            (functions.multiply)(
                self.blas.handle,
                self.operation.raw,
                std::ptr::from_ref(&alpha).cast(),
                addresses.a,
                self.a.raw,
                addresses.b,
                self.b.raw,
                std::ptr::from_ref(&beta).cast(),
                addresses.c,
                self.c.raw,
                addresses.d,
                self.d.raw,
                &proposal.algorithm,
                workspace,
                WORKSPACE,
                stream,
            )
        };
        functions.check("cublasLtMatmul", status)
    }
}

fn real(dtype: DType) -> c_int {
    match dtype {
        DType::Bf16 => REAL_BRAIN_16,
        DType::F16 => REAL_16,
        _ => REAL_32,
    }
}
