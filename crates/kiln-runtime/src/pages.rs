//! Memory straight from the system, zeroed, on huge pages where available: a kernel that streams through a large buffer
//! otherwise spends a good part of its time on page faults and address translation.

use crate::buffer::ALIGNMENT;
use std::alloc::Layout;
use std::ptr::NonNull;

/// Size and alignment of a huge page.
const HUGE: usize = 2 << 20;

/// Allocations from here on are mapped one by one.
const LARGE: usize = HUGE;

/// Size of an ordinary page, or a multiple.
const PAGE: usize = 64 << 10;

/// `bytes` zeroed bytes (at least one), aligned to [`ALIGNMENT`]; `None` where there is no memory.
pub(crate) fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    if bytes >= LARGE && cfg!(unix) {
        return map(bytes);
    }
    let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).ok()?;
    // SAFETY: the size is not zero. Zeroed, so that every byte of a buffer is always initialised.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

/// Releases memory from [`allocate`].
///
/// # Safety
/// `ptr` came from `allocate(bytes)` and is no longer used.
pub(crate) unsafe fn release(ptr: NonNull<u8>, bytes: usize) {
    if bytes >= LARGE && cfg!(unix) {
        // SAFETY: the caller's promise: this is the range that `map` kept.
        return unsafe { unmap(ptr, bytes.next_multiple_of(PAGE)) };
    }
    if let Ok(layout) = Layout::from_size_align(bytes.max(1), ALIGNMENT) {
        // SAFETY: the caller's promise: it was allocated with this layout.
        unsafe { std::alloc::dealloc(ptr.as_ptr(), layout) }
    }
}

/// Releases unused pages to the system. Only glibc keeps them and has a call for it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn return_freed() {
    // SAFETY: the allocator gives back what it has not lent; it takes its own locks.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn return_freed() {}

/// Has the pages of a range read, where it is mapped.
#[cfg(target_os = "linux")]
pub(crate) fn read_ahead(range: std::ops::Range<usize>) {
    // SAFETY: populating for reads changes no contents; a range that is not mapped, or not whole pages, is an error.
    unsafe { libc::madvise(range.start as *mut libc::c_void, range.len(), libc::MADV_POPULATE_READ) };
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn read_ahead(_: std::ops::Range<usize>) {}

/// Maps memory that is aligned to a huge page: more than needed, of which both ends are unmapped at once. A tail shorter than a
/// huge page is on ordinary ones, so that no more than needed is ever resident.
#[cfg(unix)]
pub(crate) fn map(bytes: usize) -> Option<NonNull<u8>> {
    let length = bytes.checked_next_multiple_of(PAGE)?;
    let total = length.checked_add(HUGE).filter(|&n| isize::try_from(n).is_ok())?;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping touches nothing that exists.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), total, access, kind, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    let start = NonNull::new(start.cast::<u8>())?;
    let before = start.as_ptr().align_offset(HUGE);
    // SAFETY: `before` is less than HUGE, so all three ranges are inside the mapping; the first and last are not in use.
    unsafe {
        let kept = start.add(before);
        if before > 0 {
            unmap(start, before);
        }
        if HUGE > before {
            unmap(kept.add(length), HUGE - before);
        }
        advise(kept, length);
        Some(kept)
    }
}

/// Unmaps all memory from [`map`].
///
/// # Safety
/// It came from `map(bytes)` and is no longer used.
pub(crate) unsafe fn unmap_whole(ptr: NonNull<u8>, bytes: usize) {
    // SAFETY: the range that `map` kept.
    unsafe { unmap(ptr, bytes.next_multiple_of(PAGE)) };
}

/// # Safety
/// The range is mapped and not in use.
#[cfg(unix)]
unsafe fn unmap(ptr: NonNull<u8>, length: usize) {
    // SAFETY: the caller's promise. It cannot fail for a range that is mapped.
    unsafe { libc::munmap(ptr.as_ptr().cast(), length) };
}

/// Requests huge pages; a refusal is ignored.
///
/// # Safety
/// The range is mapped.
#[cfg(target_os = "linux")]
unsafe fn advise(ptr: NonNull<u8>, length: usize) {
    // SAFETY: the caller's promise; advice changes no contents.
    unsafe { libc::madvise(ptr.as_ptr().cast(), length, libc::MADV_HUGEPAGE) };
}

#[cfg(all(unix, not(target_os = "linux")))]
unsafe fn advise(_: NonNull<u8>, _: usize) {}

#[cfg(not(unix))]
pub(crate) fn map(_: usize) -> Option<NonNull<u8>> {
    None
}

#[cfg(not(unix))]
unsafe fn unmap(_: NonNull<u8>, _: usize) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_aligned_zeroed_and_whole() {
        for bytes in [0, 1, 100, LARGE - 1, LARGE, LARGE + 1, 5 * HUGE, 5 * HUGE + 4097] {
            let ptr = allocate(bytes).unwrap();
            assert_eq!(ptr.as_ptr() as usize % if bytes >= LARGE { HUGE } else { ALIGNMENT }, 0);
            // SAFETY: the allocation holds `bytes` bytes and is not shared.
            unsafe {
                let slice = std::slice::from_raw_parts_mut(ptr.as_ptr(), bytes);
                assert!(slice.iter().all(|&b| b == 0));
                slice.fill(7);
                release(ptr, bytes);
            }
        }
        assert!(allocate(usize::MAX).is_none());
        assert!(allocate(isize::MAX as usize).is_none());
    }
}
