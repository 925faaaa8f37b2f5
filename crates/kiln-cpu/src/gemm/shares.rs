//! Parts of K that are tasks of their own: each part of some columns has a tile, and the task that finishes last has exclusive
//! access to all of them.

use super::scratch::Scratch;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The tiles of all parts, for all groups of columns.
pub(super) struct Shares<T> {
    tiles: Scratch,
    missing: Scratch,
    groups: usize,
    parts: usize,
    len: usize,
    element: std::marker::PhantomData<T>,
}

// SAFETY: tasks write disjoint tiles, and the last to finish orders its reads after all writes.
unsafe impl<T> Sync for Shares<T> {}

impl<T> Shares<T> {
    /// Room for `parts` tiles of at most `len` elements for each of `groups` groups of columns.
    pub(super) fn new(groups: usize, parts: usize, len: usize) -> Shares<T> {
        let missing = Scratch::take::<AtomicUsize>(groups);
        for group in 0..groups {
            // SAFETY: the scratch has room for one count per group.
            unsafe { missing.ptr::<AtomicUsize>().add(group).write(AtomicUsize::new(parts)) };
        }
        let tiles = Scratch::take::<T>(groups * parts * len);
        Shares { tiles, missing, groups, parts, len, element: std::marker::PhantomData }
    }

    /// The first tile of a group; those of the other parts follow at distances of [`Shares::new`]'s `len`.
    pub(super) fn tiles(&self, group: usize) -> *mut T {
        assert!(group < self.groups, "a task of no group");
        // SAFETY: inside the scratch.
        unsafe { self.tiles.ptr::<T>().add(group * self.parts * self.len) }
    }

    /// Marks a part of a group as done; true for the last one.
    pub(super) fn is_last(&self, group: usize) -> bool {
        assert!(group < self.groups, "a task of no group");
        // SAFETY: the counts were written by `new`.
        let missing = unsafe { &*self.missing.ptr::<AtomicUsize>().add(group) };
        missing.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
