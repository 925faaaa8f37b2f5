//! The host's memory: 64-byte aligned allocations, with a bounded list of released ones kept for reuse. Once there are many of
//! a middling size, as weights are, they share slabs of huge pages.
//!
//! Reuse matters twice: a small eager op is dominated by the allocator, and a large fresh allocation by the page faults of
//! its first touch.

use crate::buffer::{ALIGNMENT, Buffer, Memory};
use crate::slab::SlabAllocator;
use crate::{Device, Error, pages};
use std::any::Any;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The memory of [`Device::Cpu`].
pub struct HostMemory {
    kept: Mutex<FreeLists>,
    slab: SlabAllocator,
    /// Bytes of middling size that were ever allocated outside of slabs, released ones included.
    outside_slabs: AtomicUsize,
}

/// Released allocations by size class.
struct FreeLists {
    classes: [Vec<Block>; CLASSES],
    bytes: usize,
}

/// A released allocation, of its class's size.
struct Block(NonNull<u8>);

// SAFETY: the list is the only owner of the block.
unsafe impl Send for Block {}

/// Four classes up to 256 bytes, then four per octave up to 2 GiB.
const CLASSES: usize = 96;
/// Blocks kept in one class.
const BLOCKS_A_CLASS: usize = 16;
/// Bytes kept altogether.
const BYTES_KEPT: usize = 512 << 20;
/// Sizes of buffers that the slab allocator serves: shorter ones cost few pages, longer ones have huge pages to themselves.
const MIDDLING: Range<usize> = 128 << 10..8 << 20;
/// Bytes of that size that are allocated outside of slabs before the first slab: a small program should not pay for huge pages.
/// One that runs for long and allocates more than is kept comes to use slabs too.
const BEFORE_SLABS: usize = 16 << 20;

static HOST: HostMemory = HostMemory {
    kept: Mutex::new(FreeLists { classes: [const { Vec::new() }; CLASSES], bytes: 0 }),
    slab: SlabAllocator::new(),
    outside_slabs: AtomicUsize::new(0),
};

/// Has the system read mapped memory into its pages before it is used. Ranges that are not mapped, and systems that cannot, are
/// ignored.
pub fn read_ahead(ranges: impl Iterator<Item = Range<usize>>) {
    ranges.for_each(pages::read_ahead);
}

/// The class that holds `bytes`, and its size; `None` beyond the largest class.
fn class_of(bytes: usize) -> Option<(usize, usize)> {
    if bytes > class_size(CLASSES - 1) {
        return None;
    }
    let bytes = bytes.max(ALIGNMENT);
    let octave = (usize::BITS - (bytes - 1).leading_zeros()) as usize;
    // 2^(octave-1) < bytes ≤ 2^octave, in steps of an eighth of 2^octave.
    if octave <= 8 {
        let size = bytes.next_multiple_of(64);
        return Some((size / 64 - 1, size));
    }
    let step = 1usize << (octave - 3);
    let size = bytes.div_ceil(step) * step;
    Some(((octave - 8) * 4 + (size / step - 5), size))
}

impl HostMemory {
    /// The one instance.
    pub fn get() -> &'static HostMemory {
        &HOST
    }

    /// At least `bytes` bytes of any contents, aligned to [`ALIGNMENT`].
    pub fn allocate(bytes: usize) -> Result<Buffer, Error> {
        let ptr = HOST.take(bytes)?;
        // SAFETY: `take` gives an allocation of this memory for `bytes` bytes.
        Ok(unsafe { Buffer::from_allocation(&HOST, ptr, bytes) })
    }

    /// Host memory that `keep` keeps alive.
    ///
    /// # Safety
    /// As [`Buffer::from_foreign`].
    pub unsafe fn foreign(ptr: NonNull<u8>, bytes: usize, writable: bool, keep: Arc<dyn Any + Send + Sync>) -> Buffer {
        // SAFETY: the caller's promise.
        unsafe { Buffer::from_foreign(&HOST, ptr, bytes, writable, keep) }
    }

    /// Releases the kept allocations to the system.
    pub fn trim() {
        let mut kept = HOST.lock();
        for class in 0..CLASSES {
            while let Some(Block(ptr)) = kept.classes[class].pop() {
                // SAFETY: the block was allocated with its class's size.
                unsafe { pages::release(ptr, class_size(class)) }
            }
        }
        kept.bytes = 0;
        drop(kept);
        HOST.slab.trim(unmap_slab);
        HostMemory::return_freed();
    }

    /// Releases freed memory to the system where the allocator would keep it. A compile or a parse of a large file leaves holes
    /// of many megabytes that nothing later fills.
    ///
    /// ```
    /// drop(vec![vec![1u8; 1000]; 1000]);
    /// kiln_runtime::HostMemory::return_freed();
    /// ```
    pub fn return_freed() {
        pages::return_freed();
    }

    /// Bytes kept for reuse at the moment.
    pub fn kept_bytes() -> usize {
        HOST.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, FreeLists> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        if MIDDLING.contains(&bytes) && self.outside_slabs.load(Ordering::Relaxed) > BEFORE_SLABS {
            let place = self.slab.take(bytes, pages::map);
            return place.ok_or(Error::OutOfMemory { bytes, device: Device::Cpu });
        }
        let size = match class_of(bytes) {
            Some((class, size)) => {
                let mut kept = self.lock();
                if let Some(Block(ptr)) = kept.classes[class].pop() {
                    kept.bytes -= size;
                    return Ok(ptr);
                }
                size
            }
            None => bytes,
        };
        if MIDDLING.contains(&bytes) {
            self.outside_slabs.fetch_add(bytes, Ordering::Relaxed);
        }
        pages::allocate(size).ok_or(Error::OutOfMemory { bytes, device: Device::Cpu })
    }
}

/// Unmaps the memory of a slab, which the allocator has removed.
fn unmap_slab(start: NonNull<u8>, bytes: usize) {
    // SAFETY: slabs are mapped by `take`, with `pages::map`, and an empty one is not in use.
    unsafe { pages::unmap_whole(start, bytes) };
}

fn class_size(class: usize) -> usize {
    if class < 4 { (class + 1) * 64 } else { (5 + class % 4) << (class / 4 + 5) }
}

impl Memory for HostMemory {
    fn device(&self) -> Device {
        Device::Cpu
    }

    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize) {
        // SAFETY: what is on a slab was taken by `take`, with these bytes.
        if MIDDLING.contains(&bytes) && unsafe { self.slab.give_back(ptr, bytes, unmap_slab) } {
            return;
        }
        let size = match class_of(bytes) {
            Some((class, size)) => {
                let mut kept = self.lock();
                if kept.bytes + size <= BYTES_KEPT && kept.classes[class].len() < BLOCKS_A_CLASS {
                    kept.bytes += size;
                    kept.classes[class].push(Block(ptr));
                    return;
                }
                size
            }
            None => bytes,
        };
        // SAFETY: `take` allocated it with this size.
        unsafe { pages::release(ptr, size) }
    }

    unsafe fn copy_to_host(&self, source: *const u8, target: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the caller's promise; a `&mut` slice does not overlap memory that others may read.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) }
        Ok(())
    }

    unsafe fn copy_on_device(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) };
        Ok(())
    }

    unsafe fn copy_from_host(&self, source: &[u8], target: *mut u8) -> Result<(), Error> {
        // SAFETY: the caller's promise; the source may be bytes of the same buffer, hence not `nonoverlapping`.
        unsafe { std::ptr::copy(source.as_ptr(), target, source.len()) }
        Ok(())
    }

    fn is_host(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_what_they_are_asked_for() {
        let mut last = 0;
        for bytes in (0..5000).chain((13..30).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1])) {
            let (class, size) = class_of(bytes).unwrap();
            assert!(size >= bytes && size <= bytes + bytes / 4 + 64, "{bytes} got {size}");
            assert_eq!(class_size(class), size, "class {class} for {bytes}");
            assert!(class >= last);
            last = class;
        }
        assert!(class_of(usize::MAX / 2).is_none());
    }

    #[test]
    fn a_released_block_is_used_again() {
        let size = 3_333_333;
        let first = HostMemory::allocate(size).unwrap();
        let address = first.ptr() as usize;
        assert_eq!(address % ALIGNMENT, 0);
        drop(first);
        assert_eq!(HostMemory::allocate(size).unwrap().ptr() as usize, address);
    }

    #[test]
    fn many_of_middling_size_lie_side_by_side_and_are_whole() {
        let size = 700_001;
        let buffers: Vec<Buffer> = (0..60).map(|_| HostMemory::allocate(size).unwrap()).collect();
        for (i, buffer) in buffers.iter().enumerate() {
            buffer.write_from_host(0, &vec![i as u8; size]).unwrap();
        }
        let mut bytes = vec![0; size];
        for (i, buffer) in buffers.iter().enumerate() {
            buffer.read_to_host(0, &mut bytes).unwrap();
            assert!(bytes.iter().all(|b| *b == i as u8), "buffer {i} is not what was written");
        }
        let last: Vec<usize> = buffers[50..].iter().map(|b| b.ptr() as usize).collect();
        let distances: Vec<usize> = last.windows(2).map(|w| w[1].abs_diff(w[0])).collect();
        assert!(
            distances.iter().filter(|d| **d == size.next_multiple_of(4096)).count() > 5,
            "not side by side: {distances:?}"
        );
    }

    #[test]
    fn too_much_is_an_error() {
        let error = HostMemory::allocate(isize::MAX as usize).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { bytes, device: Device::Cpu } if bytes == isize::MAX as usize));
        assert!(HostMemory::allocate(usize::MAX).is_err());
    }

    #[test]
    fn empty_and_foreign_buffers() {
        let empty = HostMemory::allocate(0).unwrap();
        assert_eq!(empty.bytes_len(), 0);
        empty.read_to_host(0, &mut []).unwrap();
        assert!(matches!(
            empty.read_to_host(0, &mut [0]),
            Err(Error::OutsideBuffer { offset: 0, length: 1, bytes: 0 })
        ));

        let owner: Arc<Vec<u8>> = Arc::new(vec![1, 2, 3]);
        let ptr = NonNull::new(owner.as_ptr().cast_mut()).unwrap();
        // SAFETY: the vector lives as long as the Arc and is not written.
        let foreign = unsafe { HostMemory::foreign(ptr, 3, false, owner.clone()) };
        drop(owner);
        let mut bytes = [0; 3];
        foreign.read_to_host(0, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3]);
        assert!(matches!(foreign.write_from_host(0, &[9]), Err(Error::ReadOnly { bytes: 3 })));
        assert!(foreign.read_to_host(usize::MAX, &mut [0, 0]).is_err());
    }
}
