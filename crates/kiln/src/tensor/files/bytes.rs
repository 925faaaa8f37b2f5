//! Bytes that tensors can be views of: a mapped file, or memory that was read.

use crate::tensor::files::mapping::Mapping;
use crate::tensor::layout::Layout;
use crate::tensor::shape::checked_elements;
use crate::{DType, Device, Error, Result, Tensor};
use kiln_ir::Source;
use kiln_runtime::HostMemory;
use std::ops::{Deref, Range};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes that stay in place as long as this, a clone of it or a tensor of it lives.
///
/// ```
/// use kiln::{Bytes, DType, Device};
/// let bytes = Bytes::from(vec![9u8, 1, 2, 3, 4]);
/// let pairs = bytes.tensor(1..5, [2, 2], DType::U8, Device::Cpu)?;
/// assert_eq!(pairs.to_vec::<u8>()?, [1, 2, 3, 4]);
/// assert!(bytes.tensor(3..7, [2, 2], DType::U8, Device::Cpu).is_err());
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Bytes(Arc<Storage>);

/// The memory of the bytes.
#[derive(Debug)]
enum Storage {
    Mapped(Mapping),
    Memory(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &*self.0 {
            Storage::Mapped(map) => map,
            Storage::Memory(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Bytes {
        Bytes(Arc::new(Storage::Memory(bytes)))
    }
}

impl Bytes {
    /// Maps a regular file, which must not change while these bytes live: only what is used is read from disk. If the file
    /// is truncated, reading the missing part ends the process with `SIGBUS` (see
    /// [`report_truncated_files`](crate::report_truncated_files)).
    pub fn map(path: impl AsRef<Path>) -> std::io::Result<Bytes> {
        Ok(Bytes(Arc::new(Storage::Mapped(Mapping::of(path.as_ref())?))))
    }

    /// Releases the memory of a range of a mapped file. Reading it again reads it from disk again.
    ///
    /// ```no_run
    /// let bytes = kiln::Bytes::map("model.gguf")?;
    /// let header = bytes[..1 << 20].to_vec();
    /// bytes.release(0..header.len());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let (Storage::Mapped(map), Some(bytes)) = (&*self.0, self.get(range.clone())) {
            map.release(range.start, bytes.len());
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    /// Makes a tensor of packed elements in a range of the bytes. On the CPU it is a view, unless its first element is not
    /// aligned to the size of an element, as in some files; elsewhere it is a copy.
    #[track_caller]
    pub fn tensor(
        &self,
        range: Range<usize>,
        shape: impl Into<Vec<usize>>,
        dtype: DType,
        device: Device,
    ) -> Result<Tensor> {
        self.tensor_at(range, shape.into(), dtype, device, &Source::caller())
    }

    pub(crate) fn tensor_at(
        &self,
        range: Range<usize>,
        shape: Vec<usize>,
        dtype: DType,
        device: Device,
        at: &Source,
    ) -> Result<Tensor> {
        let bytes = self.get(range).unwrap_or_default();
        let expected = checked_elements(&shape);
        if expected.and_then(|n| dtype.bytes_for(n)) != Some(bytes.len()) {
            let (expected, got) = (expected.unwrap_or(usize::MAX), bytes.len() * 8 / dtype.size_in_bits());
            return Err(Error::ElementCount { op: "Bytes::tensor", shape, expected, got, at: at.clone() });
        }
        // Kernels and hosts want elements at multiples of their size.
        let aligned = (bytes.as_ptr() as usize).is_multiple_of(dtype.size_in_bits().div_ceil(8));
        match (device, NonNull::new(bytes.as_ptr().cast_mut())) {
            (Device::Cpu, Some(ptr)) if aligned && !bytes.is_empty() => {
                // SAFETY: the range is within the bytes that the clone keeps alive and unmoved; it is not writable.
                let buffer = unsafe { HostMemory::foreign(ptr, bytes.len(), false, self.0.clone()) };
                Ok(Tensor::from_parts(buffer, Layout::contiguous(shape), dtype))
            }
            _ => Tensor::from_bytes_at(bytes, shape, dtype, device, at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_range_is_read_again() {
        let path = std::env::temp_dir().join(format!("kiln-bytes-{}", std::process::id()));
        let right: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &right).unwrap();
        let bytes = Bytes::map(&path).unwrap();
        for range in [0..0, 0..100_000, 5000..60_000, 0..100_001] {
            assert_eq!(bytes[..], right[..]);
            bytes.release(range);
            assert_eq!(bytes[..], right[..]);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_view_outlives_the_bytes_and_a_crooked_one_is_a_copy() {
        let bytes = Bytes::from((0..24u8).collect::<Vec<u8>>());
        let first = bytes.as_ptr() as usize % 4;
        // One of four neighbouring places is a multiple of 4, whatever the memory's own place.
        let views: Vec<Tensor> =
            (0..4).map(|at| bytes.tensor(at..at + 8, [2], DType::I32, Device::Cpu).unwrap()).collect();
        drop(bytes);
        for (at, view) in views.iter().enumerate() {
            let expected = [0, 4].map(|more| i32::from_le_bytes([0, 1, 2, 3].map(|byte| (at + more + byte) as u8)));
            assert_eq!(view.to_vec::<i32>().unwrap(), expected, "at {at}, memory at {first}");
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let bytes = Bytes::from(vec![0u8; 16]);
        for (range, shape) in [
            (0..8, vec![3]),
            (0..17, vec![17]),
            (std::ops::Range { start: 8, end: 4 }, vec![1]),
            (0..8, vec![usize::MAX, 8]),
        ] {
            let error = bytes.tensor(range.clone(), shape.clone(), DType::U8, Device::Cpu).unwrap_err();
            assert!(matches!(error, Error::ElementCount { .. }), "{range:?}, {shape:?}: {error}");
        }
        assert_eq!(bytes.tensor(4..4, [0], DType::F32, Device::Cpu).unwrap().shape(), [0]);
    }
}
