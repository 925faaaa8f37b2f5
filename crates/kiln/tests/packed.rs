//! Packed copies of weights: what frozen programs hold of them, shared between programs and bounded. The bound and the count are the
//! process's, so one test at a time.

use kiln::runtime::event::{self, Category};
use kiln::runtime::packed;
use kiln::{Bundle, Compiled, Conv, DType, Device, Dynamic, Options, PackWeights, Result, Tensor, Var, compile_with};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static TURN: Mutex<()> = Mutex::new(());

/// One test at a time, on so many threads.
fn alone(threads: usize) -> MutexGuard<'static, ()> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    kiln::set_threads(threads).unwrap();
    turn
}

fn draw(shape: &[usize]) -> Tensor {
    Tensor::randn(shape, DType::F32, Device::Cpu).unwrap()
}

/// Square weights, and what is multiplied by all of them in turn.
fn weights(count: usize, width: usize) -> Vec<Var> {
    (0..count).map(|_| Var::new(&draw(&[width, width]).mul(1.0 / (width as f64).sqrt()).unwrap())).collect()
}

fn network(weights: &[Var]) -> impl Fn(&Tensor) -> Result<Tensor> {
    move |x| weights.iter().try_fold(x.clone(), |x, weight| x.linear(&weight.get(), None)?.relu())
}

fn images(weight: &Var) -> impl Fn(&Tensor) -> Result<Tensor> {
    move |x| x.conv2d(&weight.get(), None, &Conv { padding: [1, 1], ..Conv::default() })?.relu()
}

/// A program for every shape.
fn frozen(pack: PackWeights) -> Options {
    Options { freeze: true, pack, dynamic: Dynamic::Static, ..Options::default() }
}

/// Bytes of packed weights that the programs of a function read.
fn packed_by<A: Bundle, F>(fast: &Compiled<F, A, Tensor>) -> usize {
    let programs = fast.programs();
    let segments = programs.iter().flat_map(|program| &program.segments);
    segments.filter_map(|segment| segment.frozen.as_ref()).map(|frozen| frozen.memory().packed_bytes).sum()
}

#[track_caller]
fn assert_close(got: &Tensor, want: &Tensor) {
    assert_eq!(got.shape(), want.shape());
    let (got, want) = (got.to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
    let scale = want.iter().fold(1e-3f32, |most, v| most.max(v.abs()));
    assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-4 * scale));
}

/// Weights that come from memory are read where they are by every program: those of prompts, of one row, on one thread and on several.
#[test]
fn large_weights_of_products_are_not_copied() {
    for threads in [1, 2] {
        let _turn = alone(threads);
        let weights = weights(3, 1024);
        let f = network(&weights);
        let fast = compile_with(&f, frozen(PackWeights::WherePays));
        for rows in [1, 16, 64, 160] {
            let x = draw(&[rows, 1024]);
            assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap());
        }
        assert_eq!((fast.stats().programs, packed_by(&fast), packed::bytes()), (4, 0, 0), "{threads} threads");
    }
}

/// Products of several rows on one thread read packed weights while these fit a cache; those of one row never do.
#[test]
fn small_weights_of_products_are_packed_for_several_rows() {
    let _turn = alone(1);
    let weights = weights(2, 64);
    let f = network(&weights);
    let fast = compile_with(&f, frozen(PackWeights::WherePays));
    for (rows, packed) in [(1, 0), (4, 2 * 64 * 64 * 4), (32, 4 * 64 * 64 * 4)] {
        let x = draw(&[rows, 64]);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap());
        assert!(packed_by(&fast) >= packed && (rows > 1 || packed::bytes() == 0), "{rows} rows: {}", packed_by(&fast));
    }
    // Both programs of several rows read the same copies.
    assert_eq!(packed::bytes() * 2, packed_by(&fast));
}

/// One copy of a variable's weights, however many programs read it: made again when the variable changes, freed with the last of them.
#[test]
fn programs_of_one_variable_share_a_copy() {
    let _turn = alone(2);
    let weight = Var::new(&draw(&[64, 48, 3, 3]));
    let f = images(&weight);
    let (fast, again) = [(); 2].map(|()| compile_with(&f, frozen(PackWeights::WherePays))).into();
    for change in 0..3 {
        for count in [1, 2, 3] {
            let x = draw(&[count, 48, 12, 12]);
            let want = f(&x).unwrap();
            assert_close(&fast.call(&x).unwrap(), &want);
            assert_close(&again.call(&x).unwrap(), &want);
        }
        if kiln_cpu::features::Isa::get() != kiln_cpu::features::Isa::Portable {
            assert!(packed::bytes() >= 64 * 48 * 9 * 4, "{}", packed::bytes());
        }
        assert_eq!(
            (packed_by(&fast), packed_by(&again)),
            (3 * packed::bytes(), 3 * packed::bytes()),
            "change {change}"
        );
        weight.mul_assign(0.5).unwrap();
    }
    drop(fast);
    assert_eq!(packed_by(&again), 3 * packed::bytes());
    drop(again);
    assert_eq!(packed::bytes(), 0);
}

/// Everything packed: prompts of all lengths and further tokens read one copy.
#[test]
fn prompts_and_single_rows_share_what_is_always_packed() {
    let _turn = alone(2);
    let weights = weights(3, 256);
    let f = network(&weights);
    let fast = compile_with(&f, frozen(PackWeights::Always));
    for rows in [1, 16, 160] {
        let x = draw(&[rows, 256]);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap());
    }
    assert_eq!((packed::bytes(), packed_by(&fast)), (3 * 256 * 256 * 4, 9 * 256 * 256 * 4));
}

#[test]
fn copies_beyond_the_bound_are_not_made_and_that_is_told() {
    let _turn = alone(1);
    let heard = Arc::new(AtomicUsize::new(0));
    let into = heard.clone();
    let listening = event::listen(&[Category::Perf], move |event| {
        let text = event.to_string();
        if text.contains("1 weights are read as they lie") || text.contains("65536 more would not pay or be too much") {
            into.fetch_add(1, Ordering::Relaxed);
        }
    });
    let before = packed::most_bytes();
    packed::set_most_bytes(2 * 128 * 128 * 4);
    let weights = weights(3, 128);
    let f = network(&weights);
    let fast = compile_with(&f, frozen(PackWeights::WherePays));
    let x = draw(&[32, 128]);
    assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap());
    packed::set_most_bytes(before);
    drop(listening);
    assert_eq!((packed::bytes(), packed_by(&fast)), (2 * 128 * 128 * 4, 2 * 128 * 128 * 4));
    assert_eq!(heard.load(Ordering::Relaxed), 2);
}
