//! Lists that are short nearly always: they lie on the stack, so that a launch allocates nothing.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};

/// Elements that fit on the stack.
const INLINE: usize = 24;

/// A list of plain values.
pub(crate) struct Short<T: Copy> {
    inline: [MaybeUninit<T>; INLINE],
    /// Elements of `inline` in use, while `long` is empty.
    len: usize,
    /// Everything, once there is too much of it.
    long: Vec<T>,
}

impl<T: Copy> Short<T> {
    pub fn new() -> Short<T> {
        Short { inline: [MaybeUninit::uninit(); INLINE], len: 0, long: Vec::new() }
    }

    pub fn push(&mut self, value: T) {
        if self.long.is_empty() && self.len < INLINE {
            self.inline[self.len].write(value);
            self.len += 1;
            return;
        }
        if self.long.is_empty() {
            let all: Vec<T> = self.to_vec();
            self.long = all;
        }
        self.long.push(value);
    }

    pub fn truncate(&mut self, len: usize) {
        if self.long.is_empty() {
            self.len = self.len.min(len);
            return;
        }
        self.long.truncate(len);
        if self.long.is_empty() {
            self.len = 0;
        }
    }
}

impl<T: Copy> Deref for Short<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        if !self.long.is_empty() {
            return &self.long;
        }
        // SAFETY: the first `len` elements have been written.
        unsafe { std::slice::from_raw_parts(self.inline.as_ptr().cast(), self.len) }
    }
}

impl<T: Copy> DerefMut for Short<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if !self.long.is_empty() {
            return &mut self.long;
        }
        // SAFETY: the first `len` elements have been written.
        unsafe { std::slice::from_raw_parts_mut(self.inline.as_mut_ptr().cast(), self.len) }
    }
}

impl<T: Copy> Clone for Short<T> {
    fn clone(&self) -> Short<T> {
        Short { inline: self.inline, len: self.len, long: self.long.clone() }
    }
}

impl<T: Copy> Extend<T> for Short<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        values.into_iter().for_each(|value| self.push(value));
    }
}

impl<T: Copy> FromIterator<T> for Short<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Short<T> {
        let mut list = Short::new();
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
            let mut list: Short<usize> = (0..len).collect();
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
