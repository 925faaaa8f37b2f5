//! Variables that a compiled function makes for itself: as in eager code, each call has its own.

use kiln::optim::{Optimizer, Sgd};
use kiln::{DType, Device, Dynamic, Error, Options, Result, Tensor, Var, compile, compile_with, cond, disable};
use std::sync::{Arc, Mutex, OnceLock};

fn t(elements: &[f32]) -> Tensor {
    Tensor::new(elements.to_vec(), Device::Cpu).unwrap()
}

fn zeros(shape: usize) -> Result<Tensor> {
    Tensor::zeros(shape, DType::F32, Device::Cpu)
}

#[test]
fn every_call_has_its_own() {
    let f = |x: &Tensor| {
        let (sum, start) = (Var::new(x), Var::new(&Tensor::new([10f32, 20.], Device::Cpu)?));
        sum.add_assign(1.0)?;
        sum.mul_assign(start.get())?;
        start.add_assign(x)?;
        start.slice_assign(0..1, &t(&[7.]))?;
        sum.get().add(start.get())
    };
    let fast = compile(f);
    for turn in 0..3 {
        let x = t(&[turn as f32, 2.]);
        assert_eq!(fast.call(&x).unwrap().to_vec::<f32>().unwrap(), f(&x).unwrap().to_vec::<f32>().unwrap());
    }
    assert_eq!((fast.stats().compiles, fast.stats().hits), (1, 2));
}

#[test]
fn from_segment_to_segment() {
    let f = |x: &Tensor| {
        let state = Var::new(&x.mul(2.0)?);
        while state.get().sum(..)?.item::<f32>()? < 100.0 {
            state.mul_assign(3.0)?;
        }
        let before = state.get();
        if before.amax(..)?.gt(60.0)?.item::<bool>()? {
            state.set(&x.neg()?)?;
        }
        before.add(state.get())
    };
    for dynamic in [Dynamic::Static, Dynamic::Automatic, Dynamic::Always] {
        let fast = compile_with(f, Options { dynamic, ..Options::default() });
        for elements in [&[1f32, 2.][..], &[30., 40.], &[1., 2., 3.], &[1., 2.], &[9., 8., 7., 1.]] {
            let x = t(elements);
            assert_eq!(fast.call(&x).unwrap().to_vec::<f32>().unwrap(), f(&x).unwrap().to_vec::<f32>().unwrap());
        }
    }
}

/// A few steps of training inside of a function, with parameters and optimizer state of its own.
#[test]
fn a_model_is_fitted_inside() {
    let f = |(x, y): &(Tensor, Tensor)| {
        let weight = Var::named("weight", &zeros(2)?).requires_grad(true);
        let optimizer = Sgd::new(vec![weight.clone()], 0.1)?;
        for _ in 0..4 {
            let loss = x.matmul(&weight.get())?.sub(y)?.square()?.mean(..)?;
            loss.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();
        }
        assert!(weight.grad().is_none());
        weight.get().detach().mul(x.sum(0)?)
    };
    let fast = compile(f);
    for turn in 0..3 {
        let x = Tensor::new([[1f32, turn as f32], [0.5, -1.]], Device::Cpu).unwrap();
        let (eager, compiled) = (f(&(x.clone(), t(&[1., 2.]))).unwrap(), fast.call(&(x, t(&[1., 2.]))).unwrap());
        for (a, b) in eager.to_vec::<f32>().unwrap().iter().zip(compiled.to_vec::<f32>().unwrap()) {
            assert!((a - b).abs() < 1e-5, "{a} and {b}");
        }
        assert_eq!(eager.has_tape(), compiled.has_tape());
    }
    assert_eq!(fast.stats().compiles, 1);
}

/// Gradients of what the function returns stop at its own variables, and go past everything else.
#[test]
fn gradients_of_the_result() {
    let f = |x: &Tensor| {
        let (own, plain) = (Var::new(&x.mul(2.0)?).requires_grad(true), Var::new(&x.mul(3.0)?));
        Ok(vec![own.get().mul(5.0)?, plain.get().mul(x)?, plain.get().neg()?])
    };
    let fast = compile(f);
    for _ in 0..3 {
        let slopes = |f: &dyn Fn(&Tensor) -> Result<Vec<Tensor>>| {
            let outside = Var::new(&t(&[1., 2.])).requires_grad(true);
            let results = f(&outside.get()).unwrap();
            let taped: Vec<bool> = results.iter().map(Tensor::has_tape).collect();
            for result in results.iter().filter(|result| result.has_tape()) {
                result.sum(..).unwrap().backward().unwrap();
            }
            (taped, outside.grad().unwrap().to_vec::<f32>().unwrap())
        };
        assert_eq!(slopes(&|x| fast.call(x)), slopes(&f));
    }
}

#[test]
fn sides_of_a_choice_change_them() {
    let f = |x: &Tensor| {
        let state = Var::new(x);
        let side = |by: f64| {
            state.add_assign(by)?;
            state.get().sum(..)
        };
        let chosen = cond(&x.sum(..)?.gt(0.0)?, || side(1.0), || side(-1.0))?;
        state.get().add(chosen)
    };
    let fast = compile(f);
    for elements in [[1f32, 2.], [-1., -2.], [3., 4.], [-5., 1.]] {
        let x = t(&elements);
        assert_eq!(fast.call(&x).unwrap().to_vec::<f32>().unwrap(), f(&x).unwrap().to_vec::<f32>().unwrap());
    }
}

/// A loop's body reads them as they are before the loop.
#[test]
fn bodies_of_loops_read_them() {
    let f = |x: &Tensor| {
        let step = Arc::new(Var::new(&x.select(0, 0)?));
        step.mul_assign(2.0)?;
        let own = step.clone();
        let sums = kiln::scan(move |(sum, row): &(Tensor, Tensor)| {
            let sum = sum.add(row)?.mul(own.get())?;
            Ok((sum.clone(), sum))
        });
        let (last, _) = sums.call(zeros(2)?, x.clone())?;
        last.add(step.get())
    };
    let fast = compile(f);
    for rows in [2usize, 3, 4, 2] {
        let x = Tensor::arange(2 * rows as i64, DType::F32, Device::Cpu).unwrap().reshape([rows, 2]).unwrap();
        assert_eq!(fast.call(&x).unwrap().to_vec::<f32>().unwrap(), f(&x).unwrap().to_vec::<f32>().unwrap());
    }
}

#[test]
fn one_that_is_kept_is_an_error() {
    let kept = Mutex::new(Vec::new());
    let keeps = compile(|x: &Tensor| {
        let own = Var::new(&x.mul(2.0)?);
        kept.lock().unwrap().push(own.clone());
        Ok(own.get())
    });
    let error = keeps.call(&t(&[1.])).unwrap_err();
    assert!(matches!(error, Error::KeptVariable { .. }), "{error}");
    assert!(error.to_string().contains("local_vars.rs:"), "{error}");

    let lazy: OnceLock<Var> = OnceLock::new();
    let counts = compile(|x: &Tensor| {
        let count = lazy.get_or_init(|| Var::new(&t(&[0.])));
        count.add_assign(1.0)?;
        x.add(count.get())
    });
    let error = counts.call(&t(&[1.])).unwrap_err();
    assert!(matches!(error, Error::KeptVariable { .. }), "{error}");

    let disabled = compile(|x: &Tensor| {
        let own = Var::new(x);
        disable(move |y: &Tensor| y.add(own.get())).call(x)
    });
    let error = disabled.call(&t(&[1.])).unwrap_err();
    assert!(matches!(error, Error::KeptVariable { .. } | Error::Escaped { .. }), "{error}");
}

#[test]
fn threads_do_not_share_them() {
    let fast = compile(|x: &Tensor| {
        let own = Var::new(x);
        for _ in 0..8 {
            own.add_assign(own.get().sum(..)?.gt(0.0)?.where_(1.0, -1.0)?)?;
            if own.get().sum(..)?.gt(0.0)?.item::<bool>()? {
                own.mul_assign(1.5)?;
            }
        }
        Ok(own.get())
    });
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let fast = &fast;
            scope.spawn(move || {
                let x = t(&[thread as f32 - 1.0, 0.25]);
                let first = fast.call(&x).unwrap().to_vec::<f32>().unwrap();
                for _ in 0..50 {
                    assert_eq!(fast.call(&x).unwrap().to_vec::<f32>().unwrap(), first);
                }
            });
        }
    });
}

/// What they are may be on a tape when it is written: gradients stop there, and the value outlives the graph.
#[test]
fn values_on_tapes_outlive_graphs() {
    let f = |x: &Tensor| {
        let own = Var::new(x);
        own.add_assign(x)?;
        let seen = disable(|x: &Tensor| x.add(1.0)).call(&x.mul(2.0)?)?;
        own.set(&own.get().mul(x)?)?;
        let count = seen.sum(..)?.gt(0.0)?.item::<bool>()?;
        if count { seen.add(own.get()) } else { Ok(own.get()) }
    };
    let fast = compile(f);
    for sign in [1.0, -1.0, 1.0, -1.0] {
        let outside = Var::new(&t(&[3.0 * sign, 4.0 * sign])).requires_grad(true);
        let (eager, compiled) = (f(&outside.get()).unwrap(), fast.call(&outside.get()).unwrap());
        assert_eq!(eager.to_vec::<f32>().unwrap(), compiled.to_vec::<f32>().unwrap());
        assert_eq!(eager.has_tape(), compiled.has_tape());
    }
}

/// Gradients that a disabled part computes arrive at them, and at variables from outside, as in eager code.
#[test]
fn a_backward_pass_in_a_disabled_part() {
    for kind in 0..6 {
        let outside = Var::new(&t(&[1., 2.])).requires_grad(true);
        let held = outside.clone();
        let f = move |x: &Tensor| {
            let passes = disable(|h: &Tensor| {
                h.sum(..)?.backward()?;
                h.detach().mul(2.0)
            });
            let own = Var::new(&x.mul(3.0)?).requires_grad(true);
            let on_tape = match kind {
                0 => held.get().mul(2.0)?.add(x)?,
                1 => own.get(),
                2 => own.get().square()?,
                3 => own.get().mul(held.get())?,
                4 => {
                    own.set(&own.get().add(x)?)?;
                    own.get().mul(own.get().exp()?)?
                }
                // Two passes, with something of the function's own between them.
                _ => {
                    passes.call(&own.get().square()?)?;
                    own.get().sum(..)?.backward()?;
                    own.get().mul(5.0)?
                }
            };
            let y = passes.call(&on_tape)?;
            match own.grad() {
                Some(gradient) => Ok(vec![y, gradient]),
                None => Ok(vec![y]),
            }
        };
        let fast = compile(f.clone());
        for turn in 0..3 {
            let x = t(&[0.5, turn as f32]);
            let seen = |results: Vec<Tensor>| {
                let results: Vec<Vec<f32>> = results.iter().map(|r| r.to_vec().unwrap()).collect();
                let gradient = outside.grad().map(|gradient| gradient.to_vec::<f32>().unwrap());
                outside.zero_grad();
                (results, gradient)
            };
            let eager = seen(f(&x).unwrap());
            assert_eq!(seen(fast.call(&x).unwrap()), eager, "kind {kind}, turn {turn}");
        }
        assert_eq!(fast.stats().compiles, 1, "kind {kind}");
    }
}
