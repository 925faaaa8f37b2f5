//! Tensors of PyTorch as DLPack describes them: address, sizes and strides of a tensor without a copy, a reference or an allocation.
//! PyTorch hands out the functions as a table of C function pointers, so that nothing is linked against it.

use kiln::Device;
use kiln_ir::DType;
use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

/// A device of DLPack.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct DlDevice {
    pub(crate) kind: i32,
    pub(crate) number: i32,
}

/// An element type of DLPack.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// A tensor of DLPack.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct DlTensor {
    data: *mut c_void,
    pub(crate) device: DlDevice,
    ndim: i32,
    pub(crate) dtype: DlType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

impl Default for DlTensor {
    fn default() -> DlTensor {
        let device = DlDevice { kind: 1, number: 0 };
        let dtype = DlType { code: 0, bits: 0, lanes: 1 };
        DlTensor { data: null_mut(), device, ndim: 0, dtype, shape: null(), strides: null(), byte_offset: 0 }
    }
}

/// DLPack's numbers of CPUs, NVIDIA GPUs, and of the host's memory that is page-locked for those.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const PAGE_LOCKED: i32 = 3;

impl DlDevice {
    /// The device as Kiln names it.
    pub(crate) fn device(self) -> Option<Device> {
        match self.kind {
            CPU | PAGE_LOCKED => Some(Device::Cpu),
            CUDA => Some(Device::Cuda(u32::try_from(self.number).ok()?)),
            _ => None,
        }
    }
}

impl DlType {
    /// The element type as Kiln stores it, and whether elements are pairs of it.
    pub(crate) fn element(self) -> Option<(DType, bool)> {
        let dtype = match (self.code, self.bits) {
            (2, 32) => DType::F32,
            (2, 64) => DType::F64,
            (2, 16) => DType::F16,
            (4, 16) => DType::Bf16,
            (0, 8) => DType::I8,
            (0, 16) => DType::I16,
            (0, 32) => DType::I32,
            (0, 64) => DType::I64,
            (1, 8) => DType::U8,
            (1, 16) => DType::I16,
            (1, 32) => DType::I32,
            (1, 64) => DType::I64,
            (6, 8) => DType::Bool,
            (10, 8) => DType::F8E4M3,
            (12, 8) => DType::F8E5M2,
            (5, 64) => return Some((DType::F32, true)),
            (5, 128) => return Some((DType::F64, true)),
            _ => return None,
        };
        Some((dtype, false))
    }
}

impl DlTensor {
    /// The address of the element at index zero.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.data.cast::<u8>().wrapping_add(self.byte_offset as usize)
    }

    /// Sizes and strides.
    ///
    /// # Safety
    /// The tensor it was made of is alive and is not resized while they are used.
    pub(crate) unsafe fn layout<'a>(&self) -> (&'a [i64], &'a [i64]) {
        let list = |ptr: *const i64| {
            if self.ndim <= 0 || ptr.is_null() {
                return &[][..];
            }
            // SAFETY: DLPack: both lists have `ndim` entries; the caller says that they are there.
            unsafe { std::slice::from_raw_parts(ptr, self.ndim as usize) }
        };
        (list(self.shape), list(self.strides))
    }
}

/// DLPack's table of functions.
#[repr(C)]
struct Exchange {
    major: u32,
    minor: u32,
    previous: *const Exchange,
    allocate: *const c_void,
    export_owned: *const c_void,
    import_owned: *const c_void,
    describe: Option<unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

/// PyTorch's functions.
#[derive(Clone, Copy)]
pub(crate) struct Tensors {
    describe: unsafe extern "C" fn(*mut c_void, *mut DlTensor) -> c_int,
    current_stream: Option<unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int>,
}

impl Tensors {
    /// The functions of `torch.Tensor`.
    pub(crate) fn new(tensor_type: &Bound<'_, PyAny>) -> PyResult<Tensors> {
        let attribute = tensor_type.getattr("__dlpack_c_exchange_api__")?;
        let capsule = attribute.cast::<PyCapsule>()?;
        const NAME: &[u8] = b"dlpack_exchange_api\0";
        // SAFETY: a capsule and a name that ends with zero.
        let table = unsafe {
            pyo3::ffi::PyCapsule_GetPointer(capsule.as_ptr(), NAME.as_ptr().cast::<c_char>()).cast::<Exchange>()
        };
        if table.is_null() {
            return Err(PyErr::fetch(tensor_type.py()));
        }
        // SAFETY: DLPack: the table lives as long as the process.
        let table = unsafe { &*table };
        match (table.major, table.describe) {
            (1, Some(describe)) => Ok(Tensors { describe, current_stream: table.current_stream }),
            _ => Err(PyRuntimeError::new_err("this PyTorch does not describe tensors by DLPack 1")),
        }
    }

    /// What PyTorch knows of a tensor; valid as long as the tensor is.
    #[inline]
    pub(crate) fn describe(&self, tensor: Borrowed<'_, '_, PyAny>) -> PyResult<DlTensor> {
        let mut described = DlTensor::default();
        // SAFETY: the function of the tensor's own library fills the struct, or sets an error.
        match unsafe { (self.describe)(tensor.as_ptr().cast(), &mut described) } {
            0 => Ok(described),
            _ => Err(PyErr::take(tensor.py()).unwrap_or_else(|| PyTypeError::new_err("not a tensor"))),
        }
    }

    /// The stream that PyTorch queues work of this thread on, as the driver names it.
    pub(crate) fn current_stream(&self, gpu: u32) -> PyResult<usize> {
        let failed = || PyRuntimeError::new_err(format!("PyTorch does not tell the current stream of GPU {gpu}"));
        let mut stream = null_mut();
        // SAFETY: a place to write to; the function is PyTorch's own.
        match unsafe { self.current_stream.ok_or_else(failed)?(CUDA, gpu as i32, &mut stream) } {
            0 => Ok(stream.addr()),
            _ => Err(Python::attach(PyErr::take).unwrap_or_else(failed)),
        }
    }
}
