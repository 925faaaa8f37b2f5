//! A slab allocator on huge pages for buffers of middling size. Weights of a megabyte or two, each on ordinary pages of its own, cost a
//! kernel that streams through them a quarter of its time in address translation, more in a virtual machine.
//!
//! ```text
//!  slab   [ weight │ weight │ free │ weight │ free …              )   64 MB of addresses; memory comes page by page
//! ```
//!
//! The first free place that fits is taken, so that slabs fill from below; neighbours that are free become one. Of the slabs
//! that hold nothing one is kept for the next buffer, the others go back to the system.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Addresses of one slab.
const SLAB_BYTES: usize = 64 << 20;
/// Places are multiples of this, a page.
const GRAIN: usize = 4 << 10;

/// All slabs of a process.
pub(crate) struct SlabAllocator(Mutex<Vec<Slab>>);

struct Slab {
    start: NonNull<u8>,
    /// Free places: where, and how long.
    free: BTreeMap<usize, usize>,
}

// SAFETY: a slab is addresses and who has them; the memory itself belongs to those who took it.
unsafe impl Send for Slab {}

impl SlabAllocator {
    pub(crate) const fn new() -> SlabAllocator {
        SlabAllocator(Mutex::new(Vec::new()))
    }

    /// `bytes` bytes of any contents, at most those of a slab, at the beginning of a page. `map` gives the memory of a new slab,
    /// zeroed.
    pub(crate) fn take(&self, bytes: usize, map: impl FnOnce(usize) -> Option<NonNull<u8>>) -> Option<NonNull<u8>> {
        let length = bytes.max(1).checked_next_multiple_of(GRAIN).filter(|length| *length <= SLAB_BYTES)?;
        let mut slabs = self.lock();
        let found = slabs.iter_mut().find_map(|slab| slab.take(length));
        found.or_else(|| {
            let mut slab = Slab { start: map(SLAB_BYTES)?, free: BTreeMap::from([(0, SLAB_BYTES)]) };
            let found = slab.take(length);
            slabs.push(slab);
            found
        })
    }

    /// Releases memory from [`SlabAllocator::take`]; false for an address outside of all slabs. `unmap` takes the memory of a
    /// slab.
    ///
    /// # Safety
    /// If `ptr` is on a slab, it came from `take(bytes)` and is no longer used.
    pub(crate) unsafe fn give_back(
        &self,
        ptr: NonNull<u8>,
        bytes: usize,
        unmap: impl FnOnce(NonNull<u8>, usize),
    ) -> bool {
        let mut slabs = self.lock();
        let Some(index) = slabs.iter().position(|slab| slab.holds(ptr)) else { return false };
        let slab = &mut slabs[index];
        let place = ptr.as_ptr() as usize - slab.start.as_ptr() as usize;
        slab.give_back(place, bytes.max(1).next_multiple_of(GRAIN));
        if slab.is_empty() && slabs.iter().filter(|slab| slab.is_empty()).count() > 1 {
            unmap(slabs.swap_remove(index).start, SLAB_BYTES);
        }
        true
    }

    /// Gives all empty slabs back.
    pub(crate) fn trim(&self, unmap: impl Fn(NonNull<u8>, usize)) {
        self.lock().retain(|slab| {
            if slab.is_empty() {
                unmap(slab.start, SLAB_BYTES);
            }
            !slab.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slab>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slab {
    fn holds(&self, ptr: NonNull<u8>) -> bool {
        (ptr.as_ptr() as usize).wrapping_sub(self.start.as_ptr() as usize) < SLAB_BYTES
    }

    fn is_empty(&self) -> bool {
        self.free.get(&0) == Some(&SLAB_BYTES)
    }

    fn take(&mut self, length: usize) -> Option<NonNull<u8>> {
        let (&place, &free) = self.free.iter().find(|(_, free)| **free >= length)?;
        self.free.remove(&place);
        if free > length {
            self.free.insert(place + length, free - length);
        }
        // SAFETY: offsets are inside the slab.
        Some(unsafe { self.start.add(place) })
    }

    fn give_back(&mut self, mut place: usize, mut length: usize) {
        if let Some(after) = self.free.remove(&(place + length)) {
            length += after;
        }
        if let Some((&before, &free)) = self.free.range(..place).next_back()
            && before + free == place
        {
            (place, length) = (before, free + length);
        }
        self.free.insert(place, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::cell::Cell;

    fn map(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, GRAIN).unwrap()) })
    }

    fn unmap(ptr: NonNull<u8>, bytes: usize) {
        // SAFETY: `map` gave it.
        unsafe { dealloc(ptr.as_ptr(), Layout::from_size_align(bytes, GRAIN).unwrap()) };
    }

    fn slice<'a>(ptr: NonNull<u8>, bytes: usize) -> &'a mut [u8] {
        // SAFETY: the tests hold the place.
        unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), bytes) }
    }

    #[test]
    fn places_lie_apart_and_are_used_again() {
        let slabs = SlabAllocator::new();
        let (mut held, mut seed): (Vec<(NonNull<u8>, usize, u8)>, u64) = (Vec::new(), 9);
        let mut next = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) as usize % n
        };
        let (mapped, unmapped) = (Cell::new(0), Cell::new(0));
        for turn in 0..1500 {
            if held.len() < 80 && next(5) < 3 {
                let bytes = 1 + next(6 << 20) / (1 + next(4));
                let ptr = slabs.take(bytes, |n| (mapped.set(mapped.get() + 1), map(n)).1).unwrap();
                let (mark, memory) = (turn as u8 | 1, slice(ptr, bytes));
                memory.fill(mark);
                held.push((ptr, bytes, mark));
            } else if !held.is_empty() {
                let (ptr, bytes, mark) = held.swap_remove(next(held.len()));
                assert!(slice(ptr, bytes).iter().all(|b| *b == mark), "somebody else wrote here");
                // SAFETY: it came from `take` and is not used again.
                assert!(unsafe {
                    slabs.give_back(ptr, bytes, |p, n| (unmapped.set(unmapped.get() + 1), unmap(p, n)).1)
                });
            }
        }
        for (ptr, bytes, _) in held {
            // SAFETY: as above.
            assert!(unsafe { slabs.give_back(ptr, bytes, |p, n| (unmapped.set(unmapped.get() + 1), unmap(p, n)).1) });
        }
        assert!(mapped.get() > 1, "one slab has been enough");
        assert!(slabs.lock().iter().all(Slab::is_empty), "free places grow together");
        assert_eq!(mapped.get() - unmapped.get(), 1, "one empty slab is kept");
        slabs.trim(|p, n| (unmapped.set(unmapped.get() + 1), unmap(p, n)).1);
        assert_eq!(mapped.get(), unmapped.get());
    }

    #[test]
    fn addresses_elsewhere_are_not_taken() {
        let slabs = SlabAllocator::new();
        let mut other = 0u8;
        // SAFETY: the address is on no slab.
        assert!(!unsafe { slabs.give_back(NonNull::from(&mut other), 1, |_, _| unreachable!("nothing to unmap")) });
        assert!(slabs.take(1, |_| None).is_none(), "no memory is no place");
        assert!(
            slabs.take(SLAB_BYTES + 1, map).is_none() && slabs.take(usize::MAX, map).is_none(),
            "too long for a slab"
        );
    }
}
