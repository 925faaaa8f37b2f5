//! Objects of the library, and the numbers of their attributes as cudnn_graph.h has them.

use super::library::{DnnLibrary, Raw};
use kiln_ir::DType;
use kiln_runtime::LaunchError;
use std::ffi::c_int;

/// `cudnnBackendDescriptorType_t`.
pub(super) mod kind {
    pub(in crate::dnn) const POINTWISE: i32 = 0;
    pub(in crate::dnn) const CONVOLUTION: i32 = 1;
    pub(in crate::dnn) const ENGINE: i32 = 2;
    pub(in crate::dnn) const CONFIG: i32 = 3;
    pub(in crate::dnn) const HEURISTICS: i32 = 4;
    pub(in crate::dnn) const PLAN: i32 = 5;
    pub(in crate::dnn) const CONVOLUTION_FORWARD: i32 = 10;
    pub(in crate::dnn) const POINTWISE_OPERATION: i32 = 13;
    pub(in crate::dnn) const GRAPH: i32 = 15;
    pub(in crate::dnn) const VARIANT_PACK: i32 = 16;
    pub(in crate::dnn) const TENSOR: i32 = 17;
    pub(in crate::dnn) const PRODUCT: i32 = 18;
    pub(in crate::dnn) const PRODUCT_OPERATION: i32 = 19;
    pub(in crate::dnn) const REDUCTION: i32 = 21;
    pub(in crate::dnn) const REDUCTION_OPERATION: i32 = 22;
}

/// `cudnnBackendAttributeName_t`.
pub(super) mod attribute {
    pub(in crate::dnn) const POINTWISE_MODE: i32 = 0;
    pub(in crate::dnn) const POINTWISE_PRECISION: i32 = 1;
    pub(in crate::dnn) const POINTWISE_NAN: i32 = 2;
    pub(in crate::dnn) const POINTWISE_AXIS: i32 = 9;
    pub(in crate::dnn) const CONVOLUTION_PRECISION: i32 = 100;
    pub(in crate::dnn) const CONVOLUTION_MODE: i32 = 101;
    pub(in crate::dnn) const CONVOLUTION_DILATIONS: i32 = 102;
    pub(in crate::dnn) const CONVOLUTION_STRIDES: i32 = 103;
    pub(in crate::dnn) const CONVOLUTION_AFTER: i32 = 104;
    pub(in crate::dnn) const CONVOLUTION_BEFORE: i32 = 105;
    pub(in crate::dnn) const CONVOLUTION_AXES: i32 = 106;
    pub(in crate::dnn) const HEURISTICS_MODE: i32 = 200;
    pub(in crate::dnn) const HEURISTICS_GRAPH: i32 = 201;
    pub(in crate::dnn) const HEURISTICS_RESULTS: i32 = 202;
    pub(in crate::dnn) const CONFIG_ENGINE: i32 = 300;
    pub(in crate::dnn) const PLAN_HANDLE: i32 = 400;
    pub(in crate::dnn) const PLAN_CONFIG: i32 = 401;
    pub(in crate::dnn) const PLAN_WORKSPACE: i32 = 402;
    pub(in crate::dnn) const PLAN_TEXT: i32 = 405;
    pub(in crate::dnn) const FORWARD_ALPHA: i32 = 700;
    pub(in crate::dnn) const FORWARD_BETA: i32 = 701;
    pub(in crate::dnn) const FORWARD_CONVOLUTION: i32 = 702;
    pub(in crate::dnn) const FORWARD_W: i32 = 703;
    pub(in crate::dnn) const FORWARD_X: i32 = 704;
    pub(in crate::dnn) const FORWARD_Y: i32 = 705;
    pub(in crate::dnn) const POINTWISE_DESCRIPTOR: i32 = 750;
    pub(in crate::dnn) const POINTWISE_X: i32 = 751;
    pub(in crate::dnn) const POINTWISE_B: i32 = 752;
    pub(in crate::dnn) const POINTWISE_Y: i32 = 753;
    pub(in crate::dnn) const POINTWISE_T: i32 = 758;
    pub(in crate::dnn) const GRAPH_HANDLE: i32 = 800;
    pub(in crate::dnn) const GRAPH_OPERATIONS: i32 = 801;
    pub(in crate::dnn) const TENSOR_ALIGNMENT: i32 = 900;
    pub(in crate::dnn) const TENSOR_TYPE: i32 = 901;
    pub(in crate::dnn) const TENSOR_SIZES: i32 = 902;
    pub(in crate::dnn) const TENSOR_STRIDES: i32 = 903;
    pub(in crate::dnn) const TENSOR_ID: i32 = 906;
    pub(in crate::dnn) const TENSOR_IS_VIRTUAL: i32 = 907;
    pub(in crate::dnn) const TENSOR_IS_VALUE: i32 = 908;
    pub(in crate::dnn) const PACK_IDS: i32 = 1000;
    pub(in crate::dnn) const PACK_POINTERS: i32 = 1001;
    pub(in crate::dnn) const PACK_WORKSPACE: i32 = 1003;
    pub(in crate::dnn) const ENGINE_NOTES: i32 = 1303;
    pub(in crate::dnn) const PRODUCT_PRECISION: i32 = 1500;
    pub(in crate::dnn) const PRODUCT_A: i32 = 1520;
    pub(in crate::dnn) const PRODUCT_B: i32 = 1521;
    pub(in crate::dnn) const PRODUCT_Y: i32 = 1522;
    pub(in crate::dnn) const PRODUCT_DESCRIPTOR: i32 = 1523;
    pub(in crate::dnn) const REDUCTION_KIND: i32 = 1600;
    pub(in crate::dnn) const REDUCTION_PRECISION: i32 = 1601;
    pub(in crate::dnn) const REDUCTION_X: i32 = 1610;
    pub(in crate::dnn) const REDUCTION_Y: i32 = 1611;
    pub(in crate::dnn) const REDUCTION_DESCRIPTOR: i32 = 1612;
}

/// `cudnnBackendAttributeType_t`.
pub(super) mod of_type {
    pub(in crate::dnn) const HANDLE: i32 = 0;
    pub(in crate::dnn) const DATA_TYPE: i32 = 1;
    pub(in crate::dnn) const BOOLEAN: i32 = 2;
    pub(in crate::dnn) const INT64: i32 = 3;
    pub(in crate::dnn) const FLOAT: i32 = 4;
    pub(in crate::dnn) const POINTER: i32 = 6;
    pub(in crate::dnn) const CONVOLUTION_MODE: i32 = 7;
    pub(in crate::dnn) const HEURISTICS_MODE: i32 = 8;
    pub(in crate::dnn) const NAN: i32 = 10;
    pub(in crate::dnn) const NUMERICAL_NOTE: i32 = 11;
    pub(in crate::dnn) const POINTWISE_MODE: i32 = 14;
    pub(in crate::dnn) const DESCRIPTOR: i32 = 15;
    pub(in crate::dnn) const REDUCTION: i32 = 18;
    pub(in crate::dnn) const CHAR: i32 = 24;
}

/// `cudnnDataType_t`.
pub(super) fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::F16 => 2,
        DType::I32 => 4,
        DType::Bf16 => 9,
        DType::Bool => 11,
        _ => 0,
    }
}

/// An object of the library, destroyed at the end.
pub(super) struct Descriptor {
    functions: &'static DnnLibrary,
    pub(super) raw: Raw,
}

// SAFETY: descriptors are plain memory of the library, which belongs to no thread.
unsafe impl Send for Descriptor {}
// SAFETY: as above; none is changed after it was finalized.
unsafe impl Sync for Descriptor {}

impl Descriptor {
    pub(super) fn new(functions: &'static DnnLibrary, kind: c_int) -> Result<Descriptor, LaunchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place to write to.
        let status = unsafe { (functions.create_descriptor)(kind, &mut raw) };
        functions.check("a descriptor of cuDNN", status)?;
        Ok(Descriptor { functions, raw })
    }

    /// Sets an attribute, whose type has the size of `T`.
    pub(super) fn set<T: Copy>(
        self,
        attribute: c_int,
        of_type: c_int,
        values: &[T],
    ) -> Result<Descriptor, LaunchError> {
        let (count, values) = (values.len() as i64, values.as_ptr().cast());
        // SAFETY: the object exists, and there are as many values of the attribute's type.
        let status = unsafe { (self.functions.set)(self.raw, attribute, of_type, count, values) };
        self.functions.check("an attribute of cuDNN", status).map(|()| self)
    }

    pub(super) fn with(self, attribute: c_int, of: &Descriptor) -> Result<Descriptor, LaunchError> {
        self.set(attribute, of_type::DESCRIPTOR, &[of.raw])
    }

    pub(super) fn done(self) -> Result<Descriptor, LaunchError> {
        // SAFETY: the object exists.
        let status = unsafe { (self.functions.finalize)(self.raw) };
        self.functions.check("a descriptor of cuDNN", status).map(|()| self)
    }

    /// Gets an attribute, whose type has the size of `T`, and returns how many values it has.
    pub(super) fn get<T>(&self, attribute: c_int, of_type: c_int, values: &mut [T]) -> Result<usize, LaunchError> {
        let mut count = 0;
        let room = values.len() as i64;
        let values = if values.is_empty() { std::ptr::null_mut() } else { values.as_mut_ptr().cast() };
        // SAFETY: the object exists, and there is room for as many values of the attribute's type.
        let status = unsafe { (self.functions.get)(self.raw, attribute, of_type, room, &mut count, values) };
        self.functions.check("an attribute of cuDNN", status)?;
        Ok(count.max(0) as usize)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { (self.functions.destroy_descriptor)(self.raw) };
    }
}
