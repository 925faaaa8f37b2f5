//! Files made to break something: chat templates and tokenizers that ask for endless text, lists, nesting or time, and paths
//! that lead to pipes and devices. Each ends in an error that names the bound, soon and without much memory.

mod paths;
mod templates;
mod tokenizers;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

/// The system's allocator with a bound: what would take all memory of the machine ends this process instead.
struct Bounded;

static LIVE: AtomicUsize = AtomicUsize::new(0);

/// All tests of this file together, several at a time.
const MOST: usize = 1 << 30;

// SAFETY: every request goes to the system's allocator as it is, or is refused.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size() > MOST {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static BOUNDED: Bounded = Bounded;

/// What a call gives; one that takes minutes fails the test. `case` says which it was.
fn soon<T: Send + 'static>(case: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    // A stack as the threads of programs have it.
    std::thread::spawn(move || drop(send.send(call())));
    match receive.recv_timeout(Duration::from_secs(300)) {
        Ok(given) => given,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it takes too long: {case:.200}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => panic!("it panicked: {case:.200}"),
    }
}
