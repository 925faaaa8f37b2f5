//! Lists that a call needs while it runs, in memory that the thread keeps from call to call.
//!
//! A list takes a block of memory from its thread and gives it back when it goes. Blocks know no types, so that any list takes any
//! block; calls inside of calls take others. Once the blocks have grown to what calls need, no call allocates.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Blocks kept a thread.
const BLOCKS_KEPT: usize = 32;
/// Bytes of the largest block that is kept.
const BYTES_KEPT: usize = 1 << 20;
/// Bytes of the smallest block.
const BYTES_LEAST: usize = 512;
/// Alignment of all blocks.
const ALIGNMENT: usize = 16;

/// Memory that no list uses.
struct Block {
    start: NonNull<u8>,
    /// Zero if there is no memory behind it.
    bytes: usize,
}

impl Block {
    const NOTHING: Block = Block { start: NonNull::dangling(), bytes: 0 };

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, ALIGNMENT).expect("a list is no longer than memory")
    }

    /// Makes it twice as long; what is in it stays.
    #[cold]
    fn grow(&mut self, least: usize) {
        let bytes = (self.bytes * 2).max(least).max(BYTES_LEAST);
        let layout = Block::layout(bytes);
        // SAFETY: a block with bytes was allocated with this layout, and the new size is not zero.
        let start = unsafe {
            match self.bytes {
                0 => alloc(layout),
                had => realloc(self.start.as_ptr(), Block::layout(had), bytes),
            }
        };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        (self.start, self.bytes) = (start, bytes);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: a block with bytes was allocated with this layout, and nobody else has it.
            unsafe { dealloc(self.start.as_ptr(), Block::layout(self.bytes)) }
        }
    }
}

thread_local! {
    static BLOCKS: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// A list in a block of the thread.
pub(crate) struct Scratch<T> {
    block: ManuallyDrop<Block>,
    len: usize,
    elements: PhantomData<T>,
}

impl<T> Scratch<T> {
    /// No elements. Takes its block with the first.
    #[inline]
    pub(crate) fn new() -> Scratch<T> {
        const { assert!(align_of::<T>() <= ALIGNMENT && size_of::<T>() > 0) }
        Scratch { block: ManuallyDrop::new(Block::NOTHING), len: 0, elements: PhantomData }
    }

    /// As many elements, all the same.
    pub(crate) fn filled(value: T, count: usize) -> Scratch<T>
    where
        T: Copy,
    {
        std::iter::repeat_n(value, count).collect()
    }

    #[inline]
    fn start(&self) -> *mut T {
        self.block.start.as_ptr().cast()
    }

    #[inline]
    pub(crate) fn push(&mut self, element: T) {
        if (self.len + 1) * size_of::<T>() > self.block.bytes {
            self.make_room();
        }
        // SAFETY: there is room for one more, at an address that is aligned for it.
        unsafe { self.start().add(self.len).write(element) }
        self.len += 1;
    }

    /// Takes a block of the thread, or makes the one there is longer.
    fn make_room(&mut self) {
        if self.block.bytes == 0
            && let Ok(Some(block)) = BLOCKS.try_with(|blocks| blocks.borrow_mut().pop())
        {
            self.block = ManuallyDrop::new(block);
        }
        if (self.len + 1) * size_of::<T>() > self.block.bytes {
            self.block.grow((self.len + 1) * size_of::<T>());
        }
    }

    /// Drops all elements.
    pub(crate) fn clear(&mut self) {
        let elements: *mut [T] = &mut **self;
        self.len = 0;
        // SAFETY: the elements were there, and are no part of the list any more.
        unsafe { std::ptr::drop_in_place(elements) }
    }

    /// Takes all elements out, the first one first.
    pub(crate) fn drain(&mut self) -> IntoIter<T> {
        std::mem::take(self).into_iter()
    }
}

impl<T> Default for Scratch<T> {
    fn default() -> Scratch<T> {
        Scratch::new()
    }
}

impl<T> Deref for Scratch<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: so many elements were written there.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl<T> DerefMut for Scratch<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: so many elements were written there.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl<T> Drop for Scratch<T> {
    #[inline]
    fn drop(&mut self) {
        self.clear();
        if self.block.bytes == 0 {
            return;
        }
        // SAFETY: the list is gone, nobody takes its block again.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        if block.bytes > BYTES_KEPT {
            return;
        }
        // At the end of the thread, or with enough of them, the block goes.
        let _ = BLOCKS.try_with(|blocks| {
            let mut blocks = blocks.borrow_mut();
            if blocks.len() < BLOCKS_KEPT {
                blocks.push(block);
            }
        });
    }
}

impl<T> Extend<T> for Scratch<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        elements.into_iter().for_each(|element| self.push(element));
    }
}

impl<T> FromIterator<T> for Scratch<T> {
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Scratch<T> {
        let mut list = Scratch::new();
        list.extend(elements);
        list
    }
}

impl<'a, T> IntoIterator for &'a Scratch<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> std::slice::Iter<'a, T> {
        self.iter()
    }
}

impl<T> IntoIterator for Scratch<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(mut self) -> IntoIter<T> {
        let count = std::mem::replace(&mut self.len, 0);
        IntoIter { list: self, next: 0, count }
    }
}

/// The elements of a list on their way out.
pub(crate) struct IntoIter<T> {
    list: Scratch<T>,
    next: usize,
    count: usize,
}

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        if self.next == self.count {
            return None;
        }
        self.next += 1;
        // SAFETY: the element is there, and is taken once.
        Some(unsafe { self.list.start().add(self.next - 1).read() })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count - self.next, Some(self.count - self.next))
    }
}

impl<T> Drop for IntoIter<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn a_list_holds_what_was_pushed_and_drops_it() {
        let counted = Rc::new(());
        let mut list: Scratch<(Rc<()>, usize)> = (0..1000).map(|n| (counted.clone(), n)).collect();
        assert!(list.iter().map(|(_, n)| *n).eq(0..1000) && Rc::strong_count(&counted) == 1001);
        assert_eq!(list.drain().take(10).map(|(_, n)| n).sum::<usize>(), 45);
        assert!(list.is_empty() && Rc::strong_count(&counted) == 1);
        list.push((counted.clone(), 7));
        drop(list);
        assert_eq!(Rc::strong_count(&counted), 1);
    }

    #[test]
    fn lists_one_after_another_use_the_same_memory() {
        let place = |count: usize| {
            let list: Scratch<u64> = (0..count as u64).collect();
            let inner: Scratch<i128> = (0..count as i128).collect();
            assert!(list.iter().copied().eq(0..count as u64) && inner.iter().copied().eq(0..count as i128));
            (list.as_ptr() as usize, inner.as_ptr() as usize)
        };
        place(300);
        let first = place(300);
        assert_eq!(place(200), first);
    }
}
