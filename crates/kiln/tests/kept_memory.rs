//! What a compiled function keeps, counted byte by byte: a graph once, and little for each further equal layer.

use kiln::{DType, Device, Dynamic, Options, Result, Tensor, Var, compile_with};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counted.
struct Counting;

/// Bytes that are allocated now, and the most there were since that was last asked.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        MOST.fetch_max(live, Ordering::Relaxed);
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
static COUNTING: Counting = Counting;

const WIDTH: usize = 16;

/// A layer as in language models: norm, gate, product, rest.
struct Block {
    norm: Var,
    gate: Var,
    up: Var,
    down: Var,
}

impl Block {
    fn new() -> Result<Block> {
        let weight = |shape: &[usize]| {
            Ok::<_, kiln::Error>(Var::new(&Tensor::full(shape.to_vec(), 0.01, DType::F32, Device::Cpu)?.contiguous()?))
        };
        let square = [WIDTH, WIDTH];
        Ok(Block { norm: weight(&[WIDTH])?, gate: weight(&square)?, up: weight(&square)?, down: weight(&square)? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let normed = x.rms_norm(1, Some(&self.norm.get()), 1e-5)?;
        let gate = normed.matmul(&self.gate.get())?.silu()?;
        x.add(gate.mul(normed.matmul(&self.up.get())?)?.matmul(&self.down.get())?)
    }
}

/// Bytes that a compiled function of so many layers keeps, and those it took at the most while it was made.
fn cost(layers: usize) -> Result<(usize, usize)> {
    let blocks = (0..layers).map(|_| Block::new()).collect::<Result<Vec<_>>>()?;
    let x = Tensor::full([1, WIDTH], 1.0, DType::F32, Device::Cpu)?.contiguous()?;
    let before = LIVE.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let f = |x: &Tensor| blocks.iter().try_fold(x.clone(), |x, block| block.forward(&x));
    let fast = compile_with(f, Options { fullgraph: true, dynamic: Dynamic::Static, ..Options::default() });
    drop(fast.call(&x)?);
    let most = MOST.load(Ordering::Relaxed) - before;
    Ok((LIVE.load(Ordering::Relaxed) - before, most))
}

#[test]
fn thirty_more_layers_keep_little() -> Result<()> {
    kiln::runtime::disk::set_store(None);
    // Kernels, eager programs and threads are there after the first.
    cost(2)?;
    let (few, many) = (cost(4)?, cost(34)?);
    let (kept, most) = ((many.0 - few.0) / 30, (many.1 - few.1) / 30);
    println!("a layer keeps {kept} bytes and takes {most} at the most while it is compiled");
    assert!(kept < 16_000, "a layer keeps {kept} bytes");
    assert!(most < 60_000, "a layer takes {most} bytes while it is compiled");
    Ok(())
}
