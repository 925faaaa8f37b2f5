//! Aligned scratch memory, kept by each thread between products so that a warm product allocates nothing.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;

const ALIGN: usize = 64;
/// Blocks that a thread keeps.
const KEPT: usize = 8;
/// Bytes of blocks that a thread keeps; a block beyond it is freed after its product.
const BYTES_KEPT: usize = 64 << 20;

/// An owned, aligned allocation.
struct Block {
    data: NonNull<u8>,
    bytes: usize,
}

impl Block {
    fn new(bytes: usize) -> Block {
        let layout = Self::layout(bytes);
        // SAFETY: the size is not zero.
        let data = unsafe { alloc(layout) };
        let Some(data) = NonNull::new(data) else { handle_alloc_error(layout) };
        Block { data, bytes }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, ALIGN).expect("scratch is far below isize::MAX")
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout and not used again.
        unsafe { dealloc(self.data.as_ptr(), Self::layout(self.bytes)) };
    }
}

thread_local! {
    static STORE: RefCell<Vec<Block>> = const { RefCell::new(Vec::new()) };
}

/// Memory from [`Scratch::take`]; goes back to the thread that drops it.
pub(crate) struct Scratch(Option<Block>);

impl Scratch {
    /// Room for `count` elements of `T`, uninitialised, aligned to a cache line.
    pub(crate) fn take<T>(count: usize) -> Scratch {
        let bytes = (count * size_of::<T>()).max(ALIGN);
        let kept = STORE.try_with(|store| {
            let mut store = store.borrow_mut();
            let fits = store.iter().enumerate().filter(|(_, block)| block.bytes >= bytes);
            let best = fits.min_by_key(|(_, block)| block.bytes).map(|(i, _)| i);
            best.map(|i| store.swap_remove(i))
        });
        let block = kept.ok().flatten().unwrap_or_else(|| Block::new(bytes.next_power_of_two()));
        Scratch(Some(block))
    }

    /// The first element.
    pub(crate) fn ptr<T>(&self) -> *mut T {
        self.0.as_ref().map_or(std::ptr::null_mut(), |block| block.data.as_ptr().cast())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(block) = self.0.take() else { return };
        // Where the thread is ending, or keeps enough already, a block is freed.
        let _ = STORE.try_with(move |store| {
            let mut store = store.borrow_mut();
            if store.iter().map(|kept| kept.bytes).sum::<usize>() + block.bytes > BYTES_KEPT {
                return;
            }
            if store.len() == KEPT
                && let Some(smallest) = (0..KEPT).min_by_key(|i| store[*i].bytes)
            {
                store.swap_remove(smallest);
            }
            store.push(block);
        });
    }
}
