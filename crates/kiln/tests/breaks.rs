//! Functions that read elements on their way: each segment is compiled, each outcome has its way on.

use kiln::{DType, Device, Error, Generator, Options, Result, Setting, Tensor, Var, compile, compile_with, disable};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn t(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len(), Device::Cpu).unwrap()
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec().unwrap()
}

#[test]
fn a_branch_on_data() {
    let calls = AtomicUsize::new(0);
    let f = |x: &Tensor| -> Result<Tensor> {
        calls.fetch_add(1, Ordering::Relaxed);
        let y = x.mul(2.0)?.add(1.0)?;
        let z = y.sum(..)?;
        if z.gt(0.0)?.item::<bool>()? { y.sqrt()?.add(&z) } else { y.neg()?.mul(&z) }
    };
    let fast = compile(f);
    let (up, down) = (t(&[1., 2., 3.]), t(&[-1., -2., -3.]));
    let expected = [values(&f(&up).unwrap()), values(&f(&down).unwrap())];
    calls.store(0, Ordering::Relaxed);
    for _ in 0..4 {
        assert_eq!(values(&fast.call(&up).unwrap()), expected[0]);
        assert_eq!(values(&fast.call(&down).unwrap()), expected[1]);
    }
    assert_eq!(calls.load(Ordering::Relaxed), 2, "once an outcome");
    let program = &fast.programs()[0];
    assert_eq!((program.segments.len(), program.breaks.len()), (3, 1), "{program:?}");
    assert!(program.breaks[0].contains("breaks.rs:"), "{:?}", program.breaks);
}

#[test]
fn a_loop_until_data_says_so() {
    let f = |x: &Tensor| -> Result<(Tensor, usize)> {
        let (mut x, mut turns) = (x.clone(), 0);
        while x.abs()?.amax(..)?.gt(1.0)?.item::<bool>()? {
            x = x.mul(0.5)?;
            turns += 1;
        }
        Ok((x, turns))
    };
    let fast = compile(f);
    for top in [3.0, 100.0, 0.5, 1000.0, 3.0, 100.0] {
        let x = t(&[top, 1.0, -top / 2.0]);
        let ((a, n), (b, m)) = (fast.call(&x).unwrap(), f(&x).unwrap());
        assert_eq!((values(&a), n), (values(&b), m));
    }
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.fallbacks), (1, 0));
}

#[test]
fn early_exits() {
    let f = |x: &Tensor| -> Result<Tensor> {
        let mut h = x.clone();
        for layer in 0..5 {
            h = h.mul(1.5)?.add(layer as f64)?;
            if h.mean(..)?.item::<f32>()? > 10.0 {
                return h.neg();
            }
        }
        Ok(h)
    };
    let fast = compile(f);
    for start in [0.0, 1.0, 5.0, 20.0, 0.0, 1.0, 5.0, 20.0] {
        let x = t(&[start, start]);
        assert_eq!(values(&fast.call(&x).unwrap()), values(&f(&x).unwrap()));
    }
    assert_eq!(fast.stats().hits, 7);
}

#[test]
fn numbers_that_are_never_the_same_are_right_too() {
    let f = |x: &Tensor| x.mul(x.sum(..)?.item::<f64>()?)?.exp()?.sum(..);
    let fast = compile(f);
    for turn in 0..60 {
        let x = t(&[turn as f32 * 0.01, 0.3]);
        assert_eq!(values(&fast.call(&x).unwrap()), values(&f(&x).unwrap()), "turn {turn}");
    }
}

#[test]
fn values_from_before_a_break_are_used_after_it() {
    let weight = Generator::new(3).randn([4, 4], DType::F32, Device::Cpu).unwrap();
    let f = |x: &Tensor| -> Result<Vec<Tensor>> {
        let a = x.matmul(&weight)?;
        let b = a.tanh()?;
        let unused = a.exp()?;
        drop(unused);
        let order = b.sum(0)?.argmax(0)?.item::<i64>()?;
        let c = b.select(1, order)?;
        let again = c.to_vec::<f32>()?;
        Ok(vec![a.add(&b)?, c, x.clone(), Tensor::from_slice(&again, again.len(), Device::Cpu)?, weight.clone()])
    };
    let fast = compile(f);
    for seed in 0..12 {
        let x = Generator::new(seed).randn([3, 4], DType::F32, Device::Cpu).unwrap();
        for (a, b) in fast.call(&x).unwrap().iter().zip(&f(&x).unwrap()) {
            for (a, b) in values(a).iter().zip(values(b)) {
                assert!((a - b).abs() < 1e-5, "{a} and {b}");
            }
        }
    }
}

#[test]
fn variables_are_updated_in_place() {
    let cache = Var::new(&Tensor::zeros([4, 2], DType::F32, Device::Cpu).unwrap());
    let inner = cache.clone();
    let fast = compile(move |(row, at): &(Tensor, Tensor)| {
        inner.index_copy(0, at, row)?;
        inner.get().sum(0)
    });
    let address = cache.get().buffer().ptr();
    for turn in 0..4i64 {
        let row = t(&[turn as f32, 1.0]).unsqueeze(0).unwrap();
        let sum = fast.call(&(row, Tensor::new([turn], Device::Cpu).unwrap())).unwrap();
        assert_eq!(values(&sum)[1], turn as f32 + 1.0);
        assert_eq!(cache.get().buffer().ptr(), address, "moved at turn {turn}");
    }
    assert_eq!(values(&cache.get()), [0., 1., 1., 1., 2., 1., 3., 1.]);
    assert_eq!(fast.stats().compiles, 1);
    assert_eq!(cache.version(), 4);
    // A snapshot stays what it was, and so the update goes to a copy.
    let before = cache.get();
    fast.call(&(t(&[9., 9.]).unsqueeze(0).unwrap(), Tensor::new([0i64], Device::Cpu).unwrap())).unwrap();
    assert_eq!(values(&before)[..2], [0., 1.]);
    assert_eq!(values(&cache.get())[..2], [9., 9.]);
}

#[test]
fn variables_mean_the_same_as_in_eager_code() {
    fn f(a: &Var, b: &Var, x: &Tensor) -> Result<Vec<Tensor>> {
        let old = a.get();
        a.add_assign(x)?;
        let middle = a.get();
        b.set(&a.get().mul(2.0)?)?;
        a.mul_assign(3.0)?;
        a.slice_assign(0..1, &x.narrow(0, 1, 1)?)?;
        // Swapped.
        let (was_a, was_b) = (a.get(), b.get());
        a.set(&was_b)?;
        b.set(&was_a)?;
        b.sub_assign(&old)?;
        Ok(vec![old, middle, a.get(), b.get()])
    }
    let fresh = || (Var::new(&t(&[1., 2.])), Var::new(&t(&[3., 4.])));
    let ((a, b), (c, d)) = (fresh(), fresh());
    let (in_a, in_b) = (a.clone(), b.clone());
    let fast = compile(move |x: &Tensor| f(&in_a, &in_b, x));
    for turn in 0..4 {
        let x = t(&[turn as f32, 0.5]);
        let (compiled, eager) = (fast.call(&x).unwrap(), f(&c, &d, &x).unwrap());
        for (i, (x, y)) in compiled.iter().zip(&eager).enumerate() {
            assert_eq!(values(x), values(y), "result {i} at turn {turn}");
        }
        assert_eq!((values(&a.get()), values(&b.get())), (values(&c.get()), values(&d.get())), "turn {turn}");
    }
    assert_eq!(fast.stats().compiles, 1);
}

#[test]
fn variables_and_breaks() {
    fn f(state: &Var, x: &Tensor) -> Result<Tensor> {
        let before = state.get();
        state.add_assign(x)?;
        if state.get().sum(..)?.gt(5.0)?.item::<bool>()? {
            state.fill(0.0)?;
        }
        before.add(state.get())
    }
    let (a, b) = (Var::new(&t(&[0., 0.])), Var::new(&t(&[0., 0.])));
    let inner = a.clone();
    let fast = compile(move |x: &Tensor| f(&inner, x));
    for turn in 0..10 {
        let x = t(&[turn as f32 * 0.3, 0.7]);
        assert_eq!(values(&fast.call(&x).unwrap()), values(&f(&b, &x).unwrap()), "turn {turn}");
        assert_eq!(values(&a.get()), values(&b.get()), "turn {turn}");
    }
    assert_eq!(fast.stats().compiles, 1);
}

#[test]
fn random_numbers_are_those_of_eager_code() {
    let f = |generator: &Generator, x: &Tensor| -> Result<Tensor> {
        let noise = generator.randn([3], DType::F32, Device::Cpu)?;
        generator.dropout(&x.add(&noise)?, 0.5)?.add(&generator.rand([3], DType::F32, Device::Cpu)?)
    };
    let (one, two) = (Generator::new(7), Generator::new(7));
    let inner = one.clone();
    let fast = compile(move |x: &Tensor| f(&inner, x));
    let x = t(&[1., 2., 3.]);
    let mut seen = Vec::new();
    for _ in 0..5 {
        let (a, b) = (values(&fast.call(&x).unwrap()), values(&f(&two, &x).unwrap()));
        assert_eq!(a, b);
        assert!(!seen.contains(&a), "the same numbers twice");
        seen.push(a);
    }
    assert_eq!((fast.stats().compiles, fast.stats().hits), (1, 4));
}

#[test]
fn settings_choose_the_way() {
    let training = Setting::new(1);
    let inner = training.clone();
    let fast = compile(move |x: &Tensor| if inner.get() == 1 { x.mul(2.0) } else { x.neg() });
    let x = t(&[1., 2.]);
    for turn in 0..6 {
        training.set(turn % 2);
        let expected = if turn % 2 == 1 { [2., 4.] } else { [-1., -2.] };
        assert_eq!(values(&fast.call(&x).unwrap()), expected);
    }
    assert_eq!((fast.stats().compiles, fast.stats().branches), (1, 1));
    assert!(fast.programs()[0].breaks.is_empty());
}

#[test]
fn disabled_parts_run_at_every_call() {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let part = disable(move |(x, scale): &(Tensor, f64)| {
        seen.fetch_add(1, Ordering::Relaxed);
        let top = x.amax(..)?.item::<f32>()?;
        Ok((x.mul(*scale)?, top > 3.0))
    });
    let fast = compile(move |x: &Tensor| {
        let (y, high) = part.call(&(x.add(1.0)?, 2.0))?;
        if high { y.neg() } else { y.exp() }
    });
    for (turn, top) in [1.0f32, 5.0, 1.5, 6.0].into_iter().enumerate() {
        let x = t(&[0.0, top]);
        let y = x.add(1.0).unwrap().mul(2.0).unwrap();
        let expected = if top + 1.0 > 3.0 { y.neg() } else { y.exp() }.unwrap();
        assert_eq!(values(&fast.call(&x).unwrap()), values(&expected));
        assert_eq!(calls.load(Ordering::Relaxed), turn + 1);
    }
    assert_eq!((fast.stats().compiles, fast.stats().branches), (1, 1));
    let options = Options { fullgraph: true, ..Options::default() };
    let part = disable(|x: &Tensor| x.exp());
    let strict = compile_with(move |x: &Tensor| part.call(x), options);
    let error = strict.call(&t(&[1.])).unwrap_err();
    assert!(matches!(error, Error::GraphBreak { what: "calls a disabled part", .. }), "{error}");
}

#[test]
fn a_function_that_is_none_is_said_to_be() {
    let calls = AtomicUsize::new(0);
    let fast = compile(|x: &Tensor| {
        let turn = calls.fetch_add(1, Ordering::Relaxed);
        let y = x.mul(1.0 + turn as f64)?;
        if y.sum(..)?.gt(0.0)?.item::<bool>()? { Ok(y) } else { y.neg() }
    });
    fast.call(&t(&[1.])).unwrap();
    assert!(matches!(fast.call(&t(&[-1.])), Err(Error::NotAFunction { .. })));
}

#[test]
fn errors_after_a_break_come_out() {
    let fast = compile(|x: &Tensor| {
        if x.sum(..)?.item::<f32>()? > 0.0 {
            x.matmul(&Tensor::ones([7, 7], DType::F32, Device::Cpu)?)
        } else {
            x.exp()
        }
    });
    assert!(fast.call(&t(&[1., 2.])).is_err());
    assert!(fast.call(&t(&[-1., -2.])).is_ok());
    assert!(fast.call(&t(&[1., 2.])).is_err());
}

#[test]
fn in_the_background() {
    let options = Options { background: true, ..Options::default() };
    let f = |x: &Tensor| x.exp()?.add(1.0)?.log()?.sum(..);
    let fast = compile_with(f, options);
    let x = t(&[0.1, 0.2, 0.3]);
    let expected = values(&f(&x).unwrap());
    let mut ready = false;
    for _ in 0..2000 {
        let got = values(&fast.call(&x).unwrap());
        assert!((got[0] - expected[0]).abs() < 1e-6);
        ready = fast.programs()[0].segments[0].code.is_some();
        if ready {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(ready, "the program never came");
    assert_eq!(fast.stats().compiles, 1);
}

#[test]
fn eight_threads_share_a_variable() {
    let counter = Var::new(&Tensor::zeros([1], DType::F32, Device::Cpu).unwrap());
    let inner = counter.clone();
    let fast = compile(move |x: &Tensor| {
        inner.add_assign(x)?;
        x.neg()
    });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    fast.call(&t(&[1.])).unwrap();
                    if counter.get().item::<f32>().unwrap() > 1e6 {
                        fast.reset();
                    }
                }
            });
        }
    });
    assert_eq!(counter.get().item::<f32>().unwrap(), 800.0);
}

#[test]
fn views_from_before_a_break_while_code_is_made() {
    // Without code for its segment a view is still left in row-major order, which the code after the break expects.
    let f = |x: &Tensor| -> Result<Tensor> {
        let turned = x.flip(0)?;
        if x.sum(..)?.item::<f32>()? > 100.0 { x.neg() } else { turned.mul(2.0)?.add(x) }
    };
    let x = t(&[1., 2., 3.]);
    for _ in 0..30 {
        let fast = compile_with(f, Options { background: true, ..Options::default() });
        for _ in 0..20 {
            assert_eq!(values(&fast.call(&x).unwrap()), [7., 6., 5.]);
        }
    }
}

/// A tape that starts inside of the function, at a tensor that it holds, is another one at each call: the function is still the same.
#[test]
fn tapes_that_start_at_held_tensors_are_no_part_of_them() {
    let held = Tensor::new([1f32, -2., 3.], Device::Cpu).unwrap();
    let by_grad = {
        let held = held.clone();
        move |x: &Tensor| {
            let slope = kiln::grad(|v: &Tensor| v.abs()?.sum(..))(&held)?;
            if x.sum(..)?.item::<f32>()? > 0.0 { slope.mul(x) } else { slope.add(x) }
        }
    };
    let by_hand = move |x: &Tensor| {
        let start = held.requires_grad();
        let value = start.mul(&start)?.sum(..)?;
        let positive = x.sum(..)?.item::<f32>()? > 0.0;
        let slope = value.gradients(&[&start])?.get(&start).cloned().unwrap();
        if positive { slope.mul(x) } else { slope.add(x) }
    };
    let inputs = [[1f32, 2., 3.], [-1., -2., -3.], [4., 5., 6.]].map(|x| Tensor::new(x, Device::Cpu).unwrap());
    let (fast_grad, fast_hand) = (compile(by_grad.clone()), compile(by_hand.clone()));
    for x in &inputs {
        assert_eq!(fast_grad.call(x).unwrap().to_vec::<f32>().unwrap(), by_grad(x).unwrap().to_vec::<f32>().unwrap());
        assert_eq!(fast_hand.call(x).unwrap().to_vec::<f32>().unwrap(), by_hand(x).unwrap().to_vec::<f32>().unwrap());
    }
}
