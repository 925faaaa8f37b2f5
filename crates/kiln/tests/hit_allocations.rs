//! What a hit allocates: short lists of its arguments and the handles of its results, however large these are. One test a
//! process, since every allocation of the process is counted.

use kiln::{DType, Device, Mode, Options, Tensor, compile_with};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counted.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations and bytes of one warm call.
fn cost(arguments: usize, size: usize) -> (usize, usize) {
    let sum = |list: &Vec<Tensor>| list[1..].iter().try_fold(list[0].clone(), |sum, x| sum.add(x));
    let fast = compile_with(sum, Options { mode: Mode::ReduceOverhead, ..Options::default() });
    let list: Vec<Tensor> =
        (0..arguments).map(|_| Tensor::ones(size, DType::F32, Device::Cpu).unwrap().contiguous().unwrap()).collect();
    (0..20).for_each(|_| drop(fast.call(&list).unwrap()));
    let before = (ALLOCATIONS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    (0..100).for_each(|_| drop(fast.call(&list).unwrap()));
    let after = (ALLOCATIONS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    ((after.0 - before.0) / 100, (after.1 - before.1) / 100)
}

#[test]
fn a_hit_allocates_short_lists_only() {
    let (count, bytes) = cost(2, 100_000);
    assert!(count <= 12 && bytes < 2_000, "{count} allocations of {bytes} bytes");
    // As many lists for more arguments, only longer.
    let (more, longer) = cost(16, 100_000);
    assert!(more <= count + 4 && longer < 16_000, "{more} allocations of {longer} bytes");
}
