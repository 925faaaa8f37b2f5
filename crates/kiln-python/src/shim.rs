//! Tensors as PyTorch's stable C functions describe them (those that compiled packages of `torch.export` call): a third of the time that
//! DLPack's function takes, which matters for a model of hundreds of weights.
//!
//! The functions take a pointer to an `at::Tensor`, which lies inside the Python object of a tensor. Where exactly is found once, with
//! tensors whose `TensorImpl` PyTorch tells (`_cdata`); where it is not found, or functions are missing, DLPack's is used.

use kiln_ir::DType;
use kiln_runtime::RawInput;
use pyo3::ffi::{Py_TYPE, PyObject, PyTypeObject};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

type Handle = *mut c_void;
type Getter<T> = unsafe extern "C" fn(Handle, *mut T) -> i32;

/// PyTorch's functions of tensors.
pub(crate) struct Shim {
    /// Bytes from the beginning of a Python object to the tensor.
    offset: usize,
    /// The types whose objects have it there: `torch.Tensor` and `torch.nn.Parameter`.
    types: Vec<usize>,
    data: Getter<*mut u8>,
    dim: Getter<i64>,
    sizes: Getter<*const i64>,
    strides: Getter<*const i64>,
    dtype: Getter<i32>,
    device: Getter<i32>,
}

/// Dtype and device of tensors that were seen to be right, as PyTorch numbers them; zero before the first.
#[derive(Default)]
pub(crate) struct Seen(AtomicU64);

impl Shim {
    /// `functions` has addresses by name, `probes` tensors of every type whose objects look alike.
    pub(crate) fn find(functions: &Bound<'_, PyDict>, probes: &[Bound<'_, PyAny>]) -> PyResult<Option<Shim>> {
        let mut addresses = [0usize; 6];
        for (address, name) in addresses.iter_mut().zip(["data_ptr", "dim", "sizes", "strides", "dtype", "device_type"])
        {
            match functions.get_item(name)? {
                Some(found) => *address = found.extract()?,
                None => return Ok(None),
            }
        }
        if addresses.contains(&0) || probes.is_empty() {
            return Ok(None);
        }
        let mut tensors = Vec::with_capacity(probes.len());
        for probe in probes {
            tensors.push((probe.as_ptr().addr(), probe.getattr("_cdata")?.extract::<usize>()?));
        }
        // Objects have a head of two words at the least, and more than four words.
        let words = (2..5).map(|word| word * size_of::<usize>());
        // SAFETY: words inside the objects, which `probes` holds.
        let is_there =
            |offset: &usize| tensors.iter().all(|&(at, tensor)| unsafe { *((at + offset) as *const usize) } == tensor);
        let Some(offset) = words.into_iter().find(is_there) else { return Ok(None) };
        // SAFETY: an object's type.
        let types = probes.iter().map(|probe| unsafe { Py_TYPE(probe.as_ptr()) }.addr()).collect();
        let [data, dim, sizes, strides, dtype, device] = addresses;
        // SAFETY: the caller gives the addresses of PyTorch's functions of these names, which have these types for good.
        unsafe {
            Ok(Some(Shim {
                offset,
                types,
                data: std::mem::transmute::<usize, Getter<*mut u8>>(data),
                dim: std::mem::transmute::<usize, Getter<i64>>(dim),
                sizes: std::mem::transmute::<usize, Getter<*const i64>>(sizes),
                strides: std::mem::transmute::<usize, Getter<*const i64>>(strides),
                dtype: std::mem::transmute::<usize, Getter<i32>>(dtype),
                device: std::mem::transmute::<usize, Getter<i32>>(device),
            }))
        }
    }

    /// The tensor of an object, if it is of a type that is known.
    #[inline]
    fn handle(&self, object: *mut PyObject) -> Option<Handle> {
        // SAFETY: an object's type.
        let kind: *mut PyTypeObject = unsafe { Py_TYPE(object) };
        self.types.contains(&kind.addr()).then(|| object.cast::<u8>().wrapping_add(self.offset).cast())
    }

    /// The addresses of a tensor's `TensorImpl` and of its elements.
    #[inline(always)]
    pub(crate) fn spot(&self, object: *mut PyObject) -> Option<(usize, usize)> {
        let tensor = self.handle(object)?;
        let mut ptr = null_mut();
        // SAFETY: a tensor, which is a pointer to its `TensorImpl`, and a place to write to.
        let (failed, tensor) = unsafe { ((self.data)(tensor, &mut ptr), *tensor.cast::<usize>()) };
        (failed == 0).then_some((tensor, ptr.addr()))
    }

    /// Dtype and device in one number that is not zero.
    #[inline]
    fn kind(&self, tensor: Handle) -> Option<u64> {
        let (mut dtype, mut device) = (0, 0);
        // SAFETY: a tensor, and places to write to.
        let failed = unsafe { (self.dtype)(tensor, &mut dtype) | (self.device)(tensor, &mut device) };
        (failed == 0).then_some(u64::from(dtype as u32) << 32 | u64::from(device as u16) << 1 | 1)
    }

    /// Remembers dtype and device of a tensor of the host.
    pub(crate) fn learn(&self, object: *mut PyObject, seen: &Seen) {
        if let Some(kind) = self.handle(object).and_then(|tensor| self.kind(tensor)) {
            seen.0.store(kind, Ordering::Relaxed);
        }
    }

    /// A tensor of the dtype and the device that were seen; none for any other. Its sizes and strides live as long as it does.
    // In the caller's loop its parts stay in registers: copied through the stack they would wait for the stores.
    #[inline(always)]
    pub(crate) fn read<'a>(&self, object: *mut PyObject, dtype: DType, seen: &Seen) -> Option<RawInput<'a>> {
        let tensor = self.handle(object)?;
        if self.kind(tensor)? != seen.0.load(Ordering::Relaxed) {
            return None;
        }
        let (mut ptr, mut dim, mut sizes, mut strides) =
            (null_mut(), 0, null_mut::<i64>().cast_const(), null_mut::<i64>().cast_const());
        // SAFETY: a tensor, and places to write to.
        let failed = unsafe {
            (self.data)(tensor, &mut ptr)
                | (self.dim)(tensor, &mut dim)
                | (self.sizes)(tensor, &mut sizes)
                | (self.strides)(tensor, &mut strides)
        };
        if failed != 0 {
            return None;
        }
        let list = |ptr: *const i64| match dim {
            0 => &[][..],
            // SAFETY: both lists have `dim` entries.
            _ => unsafe { std::slice::from_raw_parts(ptr, dim as usize) },
        };
        let shape = list(sizes);
        // The slow way says what is wrong with a tensor that has elements and no memory.
        if ptr.is_null() && !shape.contains(&0) {
            return None;
        }
        Some(RawInput { ptr, dtype, shape, strides: list(strides), is_value: false })
    }
}
