//! Kernels that write packed 4-bit integers. Two elements share a byte, which two lanes (or threads) must not write at once:
//! the kernel writes bytes to scratch memory, and those are packed after it.

use kiln_ir::DType;
use kiln_kernels::kernel::{Access, Kernel};
use kiln_runtime::{Executable, LaunchError, RawBuffer};
use std::sync::Arc;

/// A kernel with packed results.
pub(crate) struct HalfBytes {
    inner: Arc<dyn Executable>,
    /// The buffers that are packed and written.
    packed: Vec<usize>,
}

fn is_packed_result(dtype: DType, access: Access) -> bool {
    dtype == DType::I4 && access != Access::Read
}

impl HalfBytes {
    /// The kernel with packed results as bytes; `None` if there are none.
    pub fn bytewise(kernel: &Kernel) -> Option<Kernel> {
        let mut bytewise = kernel.clone();
        let mut any = false;
        for buffer in bytewise.buffers.iter_mut().filter(|b| is_packed_result(b.dtype, b.access)) {
            buffer.dtype = DType::I8;
            any = true;
        }
        any.then_some(bytewise)
    }

    /// `inner` is what [`HalfBytes::bytewise`] of the kernel compiled to.
    pub fn new(kernel: &Kernel, inner: Arc<dyn Executable>) -> HalfBytes {
        let packed = kernel.buffers.iter().enumerate().filter(|(_, b)| is_packed_result(b.dtype, b.access));
        HalfBytes { inner, packed: packed.map(|(i, _)| i).collect() }
    }
}

impl Executable for HalfBytes {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        let mut given = buffers.to_vec();
        let mut scratch: Vec<Vec<i8>> = Vec::with_capacity(self.packed.len());
        for &index in &self.packed {
            let Some(buffer) = buffers.get(index) else { continue };
            let mut bytes = Vec::new();
            let count = buffer.bytes * 2;
            bytes.try_reserve_exact(count).map_err(|_| LaunchError::OutOfMemory { bytes: count })?;
            // SAFETY: the launch's contract: the buffer is valid for its size.
            let halves = unsafe { std::slice::from_raw_parts(buffer.ptr, buffer.bytes) };
            // A kernel may write only a part: the rest is packed again unchanged.
            bytes.extend(halves.iter().flat_map(|&b| [(b << 4) as i8 >> 4, b as i8 >> 4]));
            given[index] = RawBuffer { ptr: bytes.as_mut_ptr().cast(), bytes: count };
            scratch.push(bytes);
        }
        // SAFETY: the same promise, with packed results replaced by as many bytes.
        unsafe { self.inner.launch(&given, sizes)? };
        for (&index, bytes) in self.packed.iter().zip(&scratch) {
            let buffer = buffers[index];
            for (at, pair) in bytes.chunks_exact(2).enumerate() {
                // SAFETY: there are two halves for each byte of the buffer, which the launch may write.
                unsafe { *buffer.ptr.add(at) = (pair[0] as u8 & 15) | ((pair[1] as u8) << 4) };
            }
        }
        Ok(())
    }

    fn disassembly(&self) -> Option<String> {
        self.inner.disassembly()
    }

    fn intermediate(&self) -> Option<String> {
        self.inner.intermediate()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.inner.save()
    }

    fn code_bytes(&self) -> usize {
        self.inner.code_bytes()
    }
}
