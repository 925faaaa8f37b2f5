//! Lists that are short nearly always: those are on the stack, and longer ones in scratch memory of the thread, so that a
//! launch allocates nothing.

use crate::gemm::Scratch;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// Elements that fit on the stack.
const INLINE: usize = 24;

/// A list of plain values.
pub(crate) struct SmallVec<T: Copy> {
    inline: [MaybeUninit<T>; INLINE],
    len: usize,
    /// Where all elements are once there are too many, and how many have room there.
    long: Option<(Scratch, usize)>,
}

// SAFETY: the scratch memory is the list's own, and goes to the thread that drops it.
unsafe impl<T: Copy + Send> Send for SmallVec<T> {}
// SAFETY: as above; a shared list is only read.
unsafe impl<T: Copy + Sync> Sync for SmallVec<T> {}

impl<T: Copy> SmallVec<T> {
    pub fn new() -> SmallVec<T> {
        SmallVec { inline: [MaybeUninit::uninit(); INLINE], len: 0, long: None }
    }

    fn start(&self) -> *const T {
        self.long.as_ref().map_or(self.inline.as_ptr().cast(), |(memory, _)| memory.ptr::<T>().cast_const())
    }

    fn start_mut(&mut self) -> *mut T {
        match &self.long {
            Some((memory, _)) => memory.ptr(),
            None => self.inline.as_mut_ptr().cast(),
        }
    }

    /// Reserves room for so many elements.
    fn make_room(&mut self, count: usize) {
        let had = self.long.as_ref().map_or(INLINE, |(_, room)| *room);
        if count <= had {
            return;
        }
        let room = count.max(2 * had);
        let memory = Scratch::take::<T>(room);
        // SAFETY: both have so many elements, and the new memory is not shared.
        unsafe { std::ptr::copy_nonoverlapping(self.start(), memory.ptr::<T>(), self.len) };
        self.long = Some((memory, room));
    }

    pub fn push(&mut self, value: T) {
        self.make_room(self.len + 1);
        let at = self.len;
        // SAFETY: there is room for one more.
        unsafe { self.start_mut().add(at).write(value) };
        self.len += 1;
    }

    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl<T: Copy> Deref for SmallVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the first `len` elements have been written.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl<T: Copy> DerefMut for SmallVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let len = self.len;
        // SAFETY: the first `len` elements have been written.
        unsafe { std::slice::from_raw_parts_mut(self.start_mut(), len) }
    }
}

impl<T: Copy> Clone for SmallVec<T> {
    fn clone(&self) -> SmallVec<T> {
        self.iter().copied().collect()
    }
}

impl<T: Copy> Extend<T> for SmallVec<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        let mut values = values.into_iter();
        let sure = values.size_hint().0;
        self.make_room(self.len + sure);
        let start = self.start_mut();
        for value in values.by_ref().take(sure) {
            // SAFETY: there is room for so many more.
            unsafe { start.add(self.len).write(value) };
            self.len += 1;
        }
        values.for_each(|value| self.push(value));
    }
}

impl<T: Copy> FromIterator<T> for SmallVec<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> SmallVec<T> {
        let mut list = SmallVec::new();
        list.extend(values);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_list_whether_short_or_long() {
        for len in [0, 1, INLINE - 1, INLINE, INLINE + 1, 3 * INLINE] {
            let mut list: SmallVec<usize> = (0..len).collect();
            assert!(list.iter().copied().eq(0..len));
            assert!(list.clone().iter().copied().eq(0..len));
            list.truncate(len / 2);
            assert!(list.iter().copied().eq(0..len / 2));
            list.push(7);
            assert_eq!((list.len(), list.last()), (len / 2 + 1, Some(&7)));
            list[0] = 9;
            assert_eq!(list[0], 9);
            list.truncate(0);
            list.push(3);
            assert_eq!(&list[..], [3]);
        }
    }
}
