//! Functions that never stop being captured again: each reason has a limit, said loudly, beyond which calls run eagerly, at eager speed.

use kiln::runtime::event::{self, Category, Event};
use kiln::{Buckets, DType, Device, Dynamic, Generator, Options, Result, Tensor, Var, compile, compile_with};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn t(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len(), Device::Cpu).unwrap()
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap()
}

/// Hears the limits that a piece of work reaches at lines of this file; tests run side by side, so that `line` tells whose they are.
fn limits_heard(work: impl FnOnce()) -> Vec<(usize, String, String, u32)> {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let (into, thread) = (heard.clone(), std::thread::current().id());
    let listening = event::listen(&[Category::Recompiles], move |event| {
        if let (Event::RecompileLimit { programs, guard, fix, at }, true) =
            (event, std::thread::current().id() == thread)
        {
            assert!(at.file.ends_with("limits.rs"), "{event}");
            into.lock().unwrap().push((*programs, guard.clone(), fix.clone(), at.line));
        }
    });
    work();
    drop(listening);
    Arc::try_unwrap(heard).unwrap().into_inner().unwrap()
}

/// 300 sizes, three times: the second is a symbol.
#[test]
fn a_function_with_a_break_over_many_sizes() {
    let f = |x: &Tensor| if x.sum(..)?.gt(0.0)?.item::<bool>()? { x.mul(2.0) } else { x.neg() };
    let fast = compile(f);
    for size in (0..900).map(|turn| turn % 300 + 2) {
        let x = Tensor::ones(size, DType::F32, Device::Cpu).unwrap();
        assert_eq!(values(&fast.call(&x).unwrap()), vec![2.0; size]);
    }
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.hits, stats.fallbacks), (2, 898, 0), "{stats:?}");
}

/// 300 sizes, three times, none of them a symbol: 900 compiles before there was a limit.
#[test]
fn a_function_with_a_break_over_many_static_sizes() {
    let f = |x: &Tensor| if x.sum(..)?.gt(0.0)?.item::<bool>()? { x.mul(2.0) } else { x.neg() };
    let fast = compile_with(f, Options { dynamic: Dynamic::Static, ..Options::default() });
    let mut line = 0;
    let heard = limits_heard(|| {
        for size in (0..900).map(|turn| turn % 300 + 2) {
            let x = Tensor::ones(size, DType::F32, Device::Cpu).unwrap();
            line = line!() + 1;
            assert_eq!(values(&fast.call(&x).unwrap()), vec![2.0; size]);
        }
    });
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.limits), (16, 1), "{stats:?}");
    assert_eq!(stats.limited, 900 - 16 - stats.hits, "{stats:?}");
    assert_eq!(stats.hits, 2 * 16, "the programs there are are still used: {stats:?}");
    let [(programs, guard, fix, at)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((*programs, *at), (16, line));
    assert!(guard.contains("part 0 of the arguments is f32["), "{guard}");
    assert!(fix.contains("Options::buckets") && fix.contains("recompile_limit"), "{fix}");
}

/// Numbers among the arguments that change are data: 1000 programs of 1000 before there was a limit, then 16 and eager calls.
#[test]
fn numbers_that_change() {
    let floats = compile(|(x, by): &(Tensor, f64)| x.mul(*by)?.add(1.0));
    let ints = compile(|(x, by): &(Tensor, i64)| x.mul(*by)?.add(1.0));
    let x = t(&[1., 2.]);
    let heard = limits_heard(|| {
        for turn in 0..1000 {
            let expected = [turn as f32 + 1.0, 2.0 * turn as f32 + 1.0];
            assert_eq!(values(&floats.call(&(x.clone(), turn as f64)).unwrap()), expected);
            assert_eq!(values(&ints.call(&(x.clone(), turn)).unwrap()), expected);
        }
    });
    for stats in [floats.stats(), ints.stats()] {
        assert_eq!((stats.compiles, stats.limits), (3, 0), "{stats:?}");
    }
    assert!(heard.is_empty(), "{heard:?}");
    // What is there is used on, and after a reset all begins anew.
    let before = floats.stats().hits;
    floats.call(&(x.clone(), 1.0)).unwrap();
    assert_eq!(floats.stats().hits, before + 1);
    floats.reset();
    floats.call(&(x.clone(), 5000.0)).unwrap();
    floats.call(&(x, 5001.0)).unwrap();
    assert_eq!(floats.stats().compiles, 5);
}

/// Where a function decides by a number among its arguments, each way is captured; where the number is in shapes, each is another graph, and
/// there are limits; with sizes that change beside it, and gradients.
#[test]
fn numbers_that_decide() -> Result<()> {
    let steps = |(x, by): &(Tensor, f64)| -> Result<Tensor> {
        let y = x.mul(*by)?.exp()?;
        if *by > 0.5 { y.sub(*by)?.sum(0) } else { y.add(2.0 * *by)?.tanh()?.sum(0) }
    };
    let fast = compile(steps);
    for turn in 0..200u64 {
        let x = Generator::new(turn).rand([3 + (turn as usize * 7) % 11, 4], DType::F32, Device::Cpu)?.requires_grad();
        let by = (turn * 37 % 101) as f64 / 101.0;
        let (eager, compiled) = (steps(&(x.clone(), by))?, fast.call(&(x.clone(), by))?);
        assert!(compiled.allclose(&eager, 1e-5, 1e-5)?, "{turn}");
        let of = |y: &Tensor| -> Result<Tensor> { Ok(y.sum(..)?.gradients(&[&x])?.get(&x).unwrap().clone()) };
        assert!(of(&compiled)?.allclose(&of(&eager)?, 1e-5, 1e-5)?, "{turn}");
    }
    let stats = fast.stats();
    assert!(stats.compiles <= 6 && stats.limits == 0, "{stats:?}");

    let cut = |(x, length): &(Tensor, i64)| x.narrow(0, 0, *length)?.sum(..);
    let fast = compile(cut);
    let x = Tensor::ones(200, DType::F32, Device::Cpu)?;
    let heard = limits_heard(|| {
        for length in 1..200 {
            assert_eq!(fast.call(&(x.clone(), length)).unwrap().item::<f32>().unwrap(), length as f32);
        }
    });
    let [(_, guard, fix, _)] = &heard[..] else { panic!("{heard:?}") };
    assert!(guard.contains("part 1 of the arguments is a number") && fix.contains("as a tensor"), "{heard:?}");
    assert!(fast.stats().limited > 150, "{:?}", fast.stats());

    // A break is none, and under `fullgraph` there is a program for each number.
    let whole = compile_with(|(x, by): &(Tensor, f64)| x.mul(*by), Options { fullgraph: true, ..Options::default() });
    for by in 0..10 {
        whole.call(&(x.clone(), by as f64))?;
    }
    assert_eq!(whole.stats().compiles, 10);
    Ok(())
}

/// A recurrent network that is unrolled: another graph at each length, 300 programs before there was a limit.
#[test]
fn a_loop_that_is_unrolled_over_a_size() {
    let weight = Generator::new(1).randn([8, 8], DType::F32, Device::Cpu).unwrap().mul(0.1).unwrap();
    let f = |x: &Tensor| -> Result<Tensor> {
        let mut state = Tensor::zeros([1, 8], DType::F32, Device::Cpu)?;
        for step in 0..x.dim(0)? {
            state = state.matmul(&weight)?.add(&x.narrow(0, step, 1)?)?.tanh()?;
        }
        Ok(state)
    };
    let fast = compile(f);
    for length in (1..=60).chain(1..=60) {
        let x = Tensor::full([length, 8], 0.1, DType::F32, Device::Cpu).unwrap();
        for (a, b) in values(&fast.call(&x).unwrap()).iter().zip(values(&f(&x).unwrap())) {
            assert!((a - b).abs() < 1e-5, "{a} and {b} at length {length}");
        }
    }
    let stats = fast.stats();
    assert!(stats.compiles <= 18 && stats.limits >= 1 && stats.limited >= 2 * (60 - 18), "{stats:?}");
}

/// What is read is new at every call and used as a number: the number is an input of one program.
#[test]
fn numbers_that_are_read_are_data() {
    let f = |x: &Tensor| -> Result<Tensor> {
        let most = x.abs()?.amax(..)?.item::<f32>()?;
        x.div(most)?.add(1.0 / f64::from(most))?.mul(3.0)
    };
    let fast = compile(f);
    for turn in 0..100 {
        let x = t(&[turn as f32 + 0.25, 0.5, -3.0]);
        for (a, b) in values(&fast.call(&x).unwrap()).iter().zip(values(&f(&x).unwrap())) {
            assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "turn {turn}: {a} and {b}");
        }
    }
    let stats = fast.stats();
    // The graph before the read, the one after it with numbers, and the one with inputs in their place.
    assert_eq!((stats.compiles, stats.graphs, stats.limits), (1, 3, 0), "{stats:?}");
}

/// What is read is new at every call, and a graph depends on it: captured anew at each before there was a limit.
#[test]
fn outcomes_that_are_always_new() {
    let line = line!() + 1;
    let f = |x: &Tensor| x.pad(&[(0, x.sum(..)?.item::<f64>()? as i64)], 0.0)?.add(1.0);
    let fast = compile(f);
    let heard = limits_heard(|| {
        for turn in 0..200 {
            let x = t(&[turn as f32, 0.5]);
            assert_eq!(values(&fast.call(&x).unwrap()), values(&f(&x).unwrap()), "turn {turn}");
        }
    });
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.branches, stats.limited, stats.limits), (1, 15, 184, 1), "{stats:?}");
    let [(programs, guard, fix, at)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((*programs, *at), (16, line));
    assert!(guard.contains("reads a tensor's element") && fix.contains("item::<bool>()"), "{guard}; {fix}");
    // An outcome that has its branch is found again, sooner or later by what a call that finds none costs.
    let hits = fast.stats().hits;
    for _ in 0..1000 {
        fast.call(&t(&[3.0, 0.5])).unwrap();
    }
    let stats = fast.stats();
    assert!(stats.hits - hits >= 500 && stats.branches == 15, "{stats:?}");
}

/// A call that has changed a variable before it meets its limit cannot begin again; nothing is done twice, nothing is left out.
#[test]
fn effects_before_a_limit_happen_once() {
    fn f(state: &Var, generator: &Generator, x: &Tensor) -> Result<Tensor> {
        state.add_assign(x)?;
        let noise = generator.rand([2], DType::F32, Device::Cpu)?;
        let total = state.get().sum(..)?.item::<f64>()?;
        state.mul_assign(0.5)?;
        // Another graph for each number.
        let padded = x.pad(&[(0, (total * 100.0) as i64)], 0.0)?.mul(2.0)?;
        padded.narrow(0, 0, 2)?.add(&noise)?.add(state.get())
    }
    let (a, b) = (Var::new(&t(&[0., 0.])), Var::new(&t(&[0., 0.])));
    let (one, two) = (Generator::new(7), Generator::new(7));
    let (inner, inner_one) = (a.clone(), one.clone());
    let fast = compile(move |x: &Tensor| f(&inner, &inner_one, x));
    for turn in 0..60 {
        let x = t(&[turn as f32 * 0.3, 0.7]);
        let (compiled, eager) = (values(&fast.call(&x).unwrap()), values(&f(&b, &two, &x).unwrap()));
        for (x, y) in compiled.iter().zip(&eager) {
            assert!((x - y).abs() <= 1e-4 * y.abs(), "{compiled:?} and {eager:?} at turn {turn}");
        }
        assert_eq!(values(&a.get()), values(&b.get()), "turn {turn}");
    }
    let stats = fast.stats();
    assert_eq!(
        (stats.compiles, stats.branches),
        (1, 16),
        "15 that are kept, and one that could not begin again: {stats:?}"
    );
    assert_eq!(stats.limited, 60 - 17, "{stats:?}");
}

#[test]
fn the_limit_is_an_option() {
    let options = Options { recompile_limit: 3, ..Options::default() };
    let fast = compile_with(|(x, by): &(Tensor, f64)| x.mul(*by), options);
    for turn in 0..10 {
        fast.call(&(t(&[1.]), turn as f64)).unwrap();
    }
    assert_eq!((fast.stats().compiles, fast.stats().limited), (3, 7));
    let options = Options { recompile_limit: 1000, cache_limit: 1000, dynamic: Dynamic::Static, ..Options::default() };
    let fast = compile_with(|x: &Tensor| x.exp(), options);
    for size in 1..=40 {
        fast.call(&Tensor::ones(size, DType::F32, Device::Cpu).unwrap()).unwrap();
    }
    assert_eq!((fast.stats().compiles, fast.stats().limited), (40, 0));
    // Reasons are counted apart: sizes of one argument, values of another.
    let options = Options { recompile_limit: 4, dynamic: Dynamic::Static, ..Options::default() };
    let fast = compile_with(|(x, by): &(Tensor, f64)| x.mul(*by), options);
    for turn in 0..4 {
        fast.call(&(Tensor::ones(2 + turn, DType::F32, Device::Cpu).unwrap(), 0.0)).unwrap();
    }
    for turn in 0..4 {
        fast.call(&(Tensor::ones(5, DType::F32, Device::Cpu).unwrap(), turn as f64)).unwrap();
    }
    assert_eq!((fast.stats().compiles, fast.stats().limited), (6, 0));
}

/// Buckets are asked for: each has its program, however many there are.
#[test]
fn every_bucket_has_its_program() {
    let options = Options {
        buckets: vec![Buckets::multiples_of(2, 60).at(0, 0)],
        dynamic: Dynamic::Static,
        cache_limit: 100,
        ..Options::default()
    };
    let fast = compile_with(|x: &Tensor| x.exp(), options);
    for size in 1..=60 {
        fast.call(&Tensor::ones(size, DType::F32, Device::Cpu).unwrap()).unwrap();
    }
    assert_eq!((fast.stats().compiles, fast.stats().limited), (30, 0));
}

/// A setting that takes many values.
#[test]
fn settings_that_change() {
    let rate = kiln::Setting::new(0);
    let inner = rate.clone();
    let fast = compile(move |x: &Tensor| x.mul(inner.get() as f64));
    let heard = limits_heard(|| {
        for turn in 0..100 {
            rate.set(turn);
            assert_eq!(values(&fast.call(&t(&[1.])).unwrap()), [turn as f32]);
        }
    });
    assert_eq!((fast.stats().branches, fast.stats().limited), (15, 84));
    assert!(heard.len() == 1 && heard[0].2.contains("Var instead of a Setting"), "{heard:?}");
}

/// Capturing again counts against a program: with `never_slower` it has to be earned.
#[test]
fn never_slower_counts_captures() {
    let options = Options { never_slower: true, ..Options::default() };
    let fast = compile_with(|x: &Tensor| x.mul(x.sum(..)?.item::<f64>()?)?.add(1.0), options);
    for turn in 0..50 {
        let x = t(&[turn as f32, 0.5]);
        let total = turn as f32 + 0.5;
        assert_eq!(values(&fast.call(&x).unwrap()), [turn as f32 * total + 1.0, 0.5 * total + 1.0]);
    }
    let stats = fast.stats();
    assert!(stats.graphs <= 4, "a call of two elements cannot save what capturing takes: {stats:?}");
    assert!(stats.fallbacks >= 30 && stats.capturing > Duration::ZERO, "{stats:?}");
}

fn turns(x: &Tensor, most: usize) -> Result<(Tensor, usize)> {
    let (mut x, mut turns) = (x.clone(), 0);
    while turns < most && x.amax(..)?.gt(-1.0)?.item::<bool>()? {
        x = x.add(1.0)?;
        turns += 1;
    }
    Ok((x, turns))
}

/// Beyond 2048 breaks nothing was kept, and each call took time that grew with the square of the breaks.
#[test]
fn many_breaks() {
    let fast = compile(|x: &Tensor| turns(x, 5000));
    for _ in 0..3 {
        let (x, turns) = fast.call(&t(&[0., 1.])).unwrap();
        assert_eq!((values(&x), turns), (vec![5000., 5001.], 5000));
    }
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.hits, stats.branches, stats.limited), (1, 2, 0, 0), "{stats:?}");
    assert!(stats.nodes >= 10_000, "{stats:?}");
    // Four times as many breaks take about four times as long, not sixteen times.
    let first_call = |most: usize| {
        let fast = compile(move |x: &Tensor| turns(x, most));
        let start = Instant::now();
        fast.call(&t(&[0., 1.])).unwrap();
        start.elapsed()
    };
    // The fastest of both, taken in turns: others use the machine too.
    let (mut short, mut long) = (Duration::MAX, Duration::MAX);
    for _ in 0..12 {
        (short, long) = (short.min(first_call(2000)), long.min(first_call(8000)));
        if long < 12 * short {
            return;
        }
    }
    panic!("2000 breaks take {short:.1?}, 8000 {long:.1?}");
}

/// A tree as deep as a loop has turns is dropped without as deep a stack.
#[test]
fn a_deep_tree_is_dropped_on_a_small_stack() {
    let fast = compile(|x: &Tensor| turns(x, 20_000));
    fast.call(&t(&[0., 1.])).unwrap();
    assert!(fast.stats().nodes >= 40_000);
    std::thread::Builder::new().stack_size(128 << 10).spawn(move || drop(fast)).unwrap().join().unwrap();
}

/// Beyond its limit a function is about as fast as eager code: nothing is captured, nothing runs twice.
#[test]
fn beyond_a_limit_calls_are_as_fast_as_eager_ones() {
    let f = |x: &Tensor| -> Result<Tensor> {
        let mut y = x.mul(x.sum(..)?.item::<f64>()?)?;
        for _ in 0..20 {
            y = y.add(1.0)?.tanh()?;
        }
        Ok(y)
    };
    let fast = compile(f);
    let x = |turn: usize| Tensor::full(4096, turn as f64 * 1e-3, DType::F32, Device::Cpu).unwrap();
    (0..40).for_each(|turn| drop(fast.call(&x(turn)).unwrap()));
    let (mut compiled, mut eager) = (Duration::MAX, Duration::MAX);
    for turn in 40..140 {
        let x = x(turn);
        let start = Instant::now();
        fast.call(&x).unwrap();
        compiled = compiled.min(start.elapsed());
        let start = Instant::now();
        f(&x).unwrap();
        eager = eager.min(start.elapsed());
    }
    assert!(compiled < 3 * eager, "{compiled:.1?} a call, eager {eager:.1?}");
    assert!(fast.stats().graphs <= 3, "{:?}", fast.stats());
}

/// Programs are bounded in bytes: the one unused for longest goes, and one that is too large is not kept.
#[test]
fn programs_are_bounded_in_bytes() {
    let table = |fill: f32| Tensor::from_slice(&vec![fill; 100_000], 100_000, Device::Cpu);
    // A constant of 400 kB, written by the function and so part of its graph.
    let f = move |(x, at): &(Tensor, i64)| x.add(table(*at as f32)?.mul(2.0)?.narrow(0, 0, 2)?);
    let options = Options { cache_bytes: 8 << 20, ..Options::default() };
    let fast = compile_with(f, options);
    for at in 0..12 {
        assert_eq!(values(&fast.call(&(t(&[1., 1.]), at)).unwrap()), [2.0 * at as f32 + 1.0; 2]);
        assert!(fast.stats().bytes <= 8 << 20, "{:?}", fast.stats());
    }
    assert!(fast.stats().bytes > 100_000 && fast.programs().len() < 12, "{:?}", fast.stats());
    let options = Options { cache_bytes: 100_000, ..Options::default() };
    let fast = compile_with(f, options);
    let heard = limits_heard(|| {
        for at in 0..5 {
            assert_eq!(values(&fast.call(&(t(&[1., 1.]), at)).unwrap()), [2.0 * at as f32 + 1.0; 2]);
        }
    });
    assert_eq!((fast.stats().compiles, fast.programs().len(), heard.len()), (1, 0, 1), "{:?}", fast.stats());
}

/// Segments of equal graphs share their code, but not where weights are frozen into it.
#[test]
fn frozen_segments_keep_their_own_weights() {
    let weight = |seed| Generator::new(seed).randn([16, 16], DType::F32, Device::Cpu).unwrap();
    let (first, second) = (Var::new(&weight(1)), Var::new(&weight(2)));
    let (third, fourth) = (weight(3), weight(4));
    let f = move |x: &Tensor| -> Result<Tensor> {
        let mut x = x.clone();
        for weight in [&first.get(), &second.get(), &third, &fourth] {
            x = x.matmul(weight)?.tanh()?;
            assert!(x.is_nan()?.any(..)?.logical_not()?.item::<bool>()?);
        }
        Ok(x)
    };
    let frozen = compile_with(&f, Options { freeze: true, ..Options::default() });
    for seed in 5..8 {
        let x = Generator::new(seed).randn([4, 16], DType::F32, Device::Cpu).unwrap();
        for (a, b) in values(&frozen.call(&x).unwrap()).iter().zip(values(&f(&x).unwrap())) {
            assert!((a - b).abs() < 1e-4, "{a} and {b}");
        }
    }
}
