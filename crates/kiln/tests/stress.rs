//! Eight threads call, compile, branch, warm up and reset one compiled function at once: every answer is right.

use kiln::{DType, Device, Dynamic, Generator, Mode, Options, Result, Setting, Tensor, Var, compile_with};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn random(seed: u64, shape: [usize; 2]) -> Tensor {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu).unwrap()
}

/// Products, a branch on data, a setting and a held weight: everything that guards and trees are for.
fn function(weight: &Tensor, bias: &Var, flip: &Setting, x: &Tensor) -> Result<Tensor> {
    let y = x.matmul(weight)?.add(bias.get())?.tanh()?;
    let y = if y.sum(..)?.gt(0.0)?.item::<bool>()? { y.mul(2.0)? } else { y.sub(1.0)?.exp()? };
    let y = if flip.get() == 1 { y.neg()? } else { y };
    y.softmax(-1)
}

fn storm(options: Options) {
    let weight = random(1, [16, 16]);
    let bias = Var::new(&random(2, [1, 16]));
    let flip = Setting::new(0);
    let fast = compile_with(|x: &Tensor| function(&weight, &bias, &flip, x), options);
    let (calls, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let end = Instant::now() + Duration::from_millis(900);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (fast, calls, stop) = (&fast, &calls, &stop);
            scope.spawn(move || {
                let mut turn = 0;
                while Instant::now() < end && !stop.load(Ordering::Relaxed) {
                    turn += 1;
                    let x = random(thread * 1000 + turn, [1 + ((thread + turn) % 9) as usize, 16]);
                    match (thread, turn % 16) {
                        (0, 0) => fast.reset(),
                        (1, 0) => fast.warm_up([&x]).unwrap(),
                        _ => {}
                    }
                    let (got, want) = (fast.call(&x).unwrap(), fast.inner()(&x).unwrap());
                    let difference = got.sub(&want).unwrap().abs().unwrap().amax(..).unwrap().item::<f32>().unwrap();
                    if difference > 1e-5 {
                        stop.store(true, Ordering::Relaxed);
                        panic!("thread {thread}, turn {turn}: off by {difference}");
                    }
                    calls.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let (calls, stats) = (calls.into_inner(), fast.stats());
    assert!(calls > 50, "only {calls} calls");
    assert!(stats.compiles > 1 && stats.branches > 0 && stats.hits > 0, "{stats:?}");
}

#[test]
fn eight_threads() {
    storm(Options::default());
}

#[test]
fn eight_threads_with_static_sizes_and_few_programs() {
    storm(Options { dynamic: Dynamic::Static, cache_limit: 3, ..Options::default() });
}

#[test]
fn eight_threads_with_frozen_weights_and_recycled_memory() {
    storm(Options { freeze: true, mode: Mode::ReduceOverhead, ..Options::default() });
}

#[test]
fn eight_threads_while_others_compile() {
    storm(Options { background: true, ..Options::default() });
}

#[test]
fn variables_are_never_half_updated() {
    // Whole numbers, so that no sum is rounded.
    let a = Var::new(&Tensor::zeros([64, 64], DType::F32, Device::Cpu).unwrap());
    let writer = kiln::compile(|x: &Tensor| {
        a.add_assign(x)?;
        a.get().sum(..)
    });
    let end = Instant::now() + Duration::from_millis(400);
    let turns = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while Instant::now() < end {
                    writer.call(&Tensor::ones([64, 64], DType::F32, Device::Cpu).unwrap()).unwrap();
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for _ in 0..4 {
            scope.spawn(|| {
                while Instant::now() < end {
                    // A snapshot is one state: every element has moved as far.
                    let moved = a.get();
                    let spread = moved.amax(..).unwrap().sub(moved.amin(..).unwrap()).unwrap();
                    assert_eq!(spread.item::<f32>().unwrap(), 0.0);
                }
            });
        }
    });
    let moved = a.get().amax(..).unwrap().item::<f32>().unwrap();
    assert_eq!(moved, turns.load(Ordering::Relaxed) as f32, "an update was lost");
}
