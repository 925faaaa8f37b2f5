//! What a hit allocates: nothing. In reduce-overhead mode results take the memory of earlier ones; in the default mode a result is
//! new memory, of which the caller keeps one allocation: the count of its handles (the elements themselves come from a pool of the
//! runtime). One test a process, since every allocation of the process is counted.

use kiln::nn::{Forward, Gelu, Linear, Module, Sequential};
use kiln::optim::{AdamW, Optimizer};
use kiln::{Bundle, DType, Device, Dynamic, Mode, Options, Result, Tensor, Var, compile_with};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counted.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
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

/// Warm calls that are counted.
const CALLS: usize = 100;

fn draw(shape: &[usize]) -> Tensor {
    Tensor::randn(shape, DType::F32, Device::Cpu).unwrap()
}

/// Allocations of a hundred warm calls, with the arguments in turn. None of them compiles.
fn count<A: Bundle, R: Bundle>(f: impl Fn(&A) -> Result<R>, arguments: &[A], options: Options) -> usize {
    let fast = compile_with(f, options);
    (0..20).for_each(|turn| drop(fast.call(&arguments[turn % arguments.len()]).unwrap()));
    let (hits, before) = (fast.stats().hits, ALLOCATIONS.load(Ordering::Relaxed));
    (0..CALLS).for_each(|turn| drop(fast.call(&arguments[turn % arguments.len()]).unwrap()));
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(fast.stats().hits - hits, CALLS as u64, "a call was no hit");
    after - before
}

/// Whatever the mode, a hit allocates nothing but new results, of which there are so many.
#[track_caller]
fn check<A: Bundle, R: Bundle>(f: impl Fn(&A) -> Result<R>, arguments: &[A], results: usize, options: Options) {
    let replayed = Options { mode: Mode::ReduceOverhead, ..options.clone() };
    assert_eq!(count(&f, arguments, replayed), 0, "reduce-overhead");
    assert_eq!(count(&f, arguments, options), results * CALLS, "default");
}

fn one_tensor() {
    check(|x: &Tensor| x.mul(2.0)?.add(1.0), &[draw(&[100_000])], 1, Options::default());
}

fn plain_values_and_lists() {
    let f = |(x, by, list): &(Tensor, f32, [Tensor; 8])| {
        let sum = list.iter().try_fold(x.clone(), |sum, x| sum.add(x))?;
        Ok((sum.mul(*by)?, x.clone(), sum.sum(..)?))
    };
    let list = std::array::from_fn(|_| draw(&[4, 8]));
    check(f, &[(draw(&[4, 8]), 2.0, list)], 2, Options::default());
}

fn held_tensors() {
    let held: Vec<Tensor> = (0..300).map(|_| draw(&[8])).collect();
    let f = |x: &Tensor| held.iter().try_fold(x.clone(), |sum, w| sum.add(w));
    check(f, &[draw(&[8])], 1, Options::default());
}

fn variables() {
    let vars: Vec<Var> = (0..300).map(|_| Var::new(&draw(&[8]))).collect();
    let f = |x: &Tensor| vars.iter().try_fold(x.clone(), |sum, w| sum.add(w.get()));
    check(f, &[draw(&[8])], 1, Options::default());
}

fn updates() {
    let state = Var::new(&draw(&[8]));
    let f = |x: &Tensor| {
        state.add_assign(x)?;
        x.mul(2.0)
    };
    check(f, &[draw(&[8])], 1, Options::default());
}

fn training_step() {
    let model =
        Sequential::new().then(Linear::new(2, 32).unwrap()).then(Gelu::default()).then(Linear::new(32, 1).unwrap());
    let optimizer = AdamW::new(model.parameters(), 0.01).unwrap();
    let step = |(x, y): &(Tensor, Tensor)| {
        let loss = (model.forward(x)? - y)?.square()?.mean(..)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok(loss)
    };
    check(step, &[(draw(&[16, 2]), draw(&[16, 1]))], 1, Options { fullgraph: true, ..Options::default() });
}

/// What the first segment leaves is a result, too: the value that both use, the sum, and the flag that is read.
fn branch_on_data() {
    let f = |x: &Tensor| {
        let y = x.mul(2.0)?;
        if y.sum(..)?.gt(0.0)?.item::<bool>()? { y.add(1.0) } else { y.sub(1.0) }
    };
    let (above, below) = (draw(&[8]).abs().unwrap(), draw(&[8]).abs().unwrap().neg().unwrap());
    check(f, &[above, below], 4, Options::default());
}

fn sizes_that_change() {
    let sizes: Vec<Tensor> = [8, 9, 10, 11].iter().map(|&n| draw(&[n, 4])).collect();
    let f = |x: &Tensor| x.mul(2.0)?.add(1.0);
    check(f, &sizes, 1, Options::default());
    check(f, &sizes, 1, Options { dynamic: Dynamic::Always, ..Options::default() });
}

fn frozen_weights() {
    let weights: Vec<Var> = (0..4).map(|_| Var::new(&draw(&[32, 32]))).collect();
    let f = |x: &Tensor| weights.iter().try_fold(x.clone(), |x, w| x.matmul(&w.get())?.relu());
    check(f, &[draw(&[16, 32])], 1, Options { freeze: true, ..Options::default() });
}

#[test]
fn a_hit_allocates_nothing_but_results() {
    kiln::set_threads(1).unwrap();
    let cases: [(&str, fn()); 9] = [
        ("one tensor", one_tensor),
        ("plain values and lists", plain_values_and_lists),
        ("held tensors", held_tensors),
        ("variables", variables),
        ("updates", updates),
        ("a training step", training_step),
        ("a branch on data", branch_on_data),
        ("sizes that change", sizes_that_change),
        ("frozen weights", frozen_weights),
    ];
    let failed: Vec<&str> =
        cases.iter().filter(|(_, case)| std::panic::catch_unwind(case).is_err()).map(|(n, _)| *n).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
