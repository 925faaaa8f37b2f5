//! Buckets in functions with graph breaks: padded arguments, a few programs, results cut on every way through the function.

use kiln::optim::{Optimizer, Sgd};
use kiln::{Buckets, DType, Device, Dynamic, Generator, Options, Result, Tensor, Var, compile_with, disable};

fn random(shape: &[usize], seed: u64) -> Tensor {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu).unwrap()
}

fn assert_close(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!((got.dtype(), got.shape()), (expected.dtype(), expected.shape()), "{what}");
    let (a, b) = (got.to_host().unwrap().to_f64(), expected.to_host().unwrap().to_f64());
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        assert!(x == y || (x - y).abs() <= 1e-4 * (1.0 + y.abs()), "{what}: element {i} is {x}, not {y}");
    }
}

fn bucketed(buckets: Buckets) -> Options {
    Options { buckets: vec![buckets], ..Options::default() }
}

/// The sum of what is valid.
fn total(x: &Tensor) -> Result<Tensor> {
    x.valid_mask(0)?.unsqueeze(1)?.where_(x, 0.0)?.sum(..)
}

/// Calls a function of `[t, 8]` at all sizes up to 40, some of them again with other data; says how many programs and graphs there are.
fn compare(options: Options, f: impl Fn(&Tensor) -> Result<Tensor>) -> (u64, u64) {
    let fast = compile_with(&f, Options { buckets: vec![Buckets::of([8, 16, 40]).at(0, 0)], ..options });
    for turn in 0..120 {
        let t = 1 + turn as usize * 7 % 40;
        let x = random(&[t, 8], turn);
        let got = fast.call(&x).unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        assert_close(&got, &f(&x).unwrap(), &format!("turn {turn}, t = {t}"));
    }
    let stats = fast.stats();
    assert_eq!(stats.limits, 0, "{stats:?}");
    assert!(stats.hits >= 100, "{stats:?}");
    (stats.compiles, stats.graphs)
}

#[test]
fn a_branch_on_data_is_cut_on_both_sides() {
    // One result follows the padded axis, the other does not.
    let f = |x: &Tensor| match total(x)?.gt(0.0)?.item::<bool>()? {
        true => x.exp(),
        false => x.t()?.mul(2.0),
    };
    for dynamic in [Dynamic::Automatic, Dynamic::Static, Dynamic::Always] {
        let (compiles, graphs) = compare(Options { dynamic: dynamic.clone(), ..Options::default() }, f);
        assert!(compiles <= 3 && graphs <= 12, "{dynamic:?}: {compiles} programs, {graphs} graphs");
    }
}

#[test]
fn values_of_several_segments_are_results() -> Result<()> {
    // A result of the first segment, one of the last, an argument as it is, and one without the axis.
    let f = |x: &Tensor| {
        let early = x.mul(3.0)?;
        let scale = total(x)?.abs()?.add(1.0)?.item::<f64>()?;
        Ok((early.clone(), early.t()?.div(scale)?, x.clone(), x.sum(1)?.unsqueeze(0)?.relu()?, total(x)?))
    };
    let fast = compile_with(f, bucketed(Buckets::powers_of_two(4, 64).at(0, 0)));
    for turn in 0..40 {
        let x = random(&[1 + turn as usize * 5 % 33, 8], turn);
        let (got, expected) = (fast.call(&x)?, f(&x)?);
        let pairs = [
            (&got.0, &expected.0),
            (&got.1, &expected.1),
            (&got.2, &expected.2),
            (&got.3, &expected.3),
            (&got.4, &expected.4),
        ];
        for (number, (got, expected)) in pairs.into_iter().enumerate() {
            assert_close(got, expected, &format!("turn {turn}, result {number}"));
        }
    }
    // 4, 8, 16, 32, 64.
    assert!(fast.stats().compiles <= 5, "{:?}", fast.stats());
    Ok(())
}

#[test]
fn sizes_of_data_are_left_as_they_are() {
    let f = |x: &Tensor| {
        let mask = x.gt(0.5)?.logical_and(&x.valid_mask(0)?.unsqueeze(1)?)?;
        x.masked_select(&mask)?.mul(2.0)
    };
    let (compiles, _) = compare(Options::default(), f);
    assert!(compiles <= 3, "{compiles}");
}

#[test]
fn disabled_parts() -> Result<()> {
    let part = disable(|x: &Tensor| x.abs()?.add(1.0));
    let f = |x: &Tensor| x.div(part.call(x)?);
    assert!(compare(Options::default(), f).0 <= 3);
    // What is combined with nothing may have as many places as the bucket for a reason of its own.
    let alone = disable(|x: &Tensor| x.exp());
    let fast = compile_with(|x: &Tensor| alone.call(x), bucketed(Buckets::of([8]).at(0, 0)));
    let message = fast.call(&random(&[3, 8], 1)).unwrap_err().to_string();
    assert!(message.contains("disabled part"), "{message}");
    Ok(())
}

#[test]
fn a_training_step_that_reads_its_loss() -> Result<()> {
    let step = |x: &Tensor, weight: &Var, sgd: &Sgd| -> Result<(Tensor, f64)> {
        let y = x.matmul(&weight.get())?.tanh()?;
        let mask = x.valid_mask(0)?.unsqueeze(1)?;
        let loss = mask.where_(y.square()?, 0.0)?.sum(..)?;
        let read = loss.item::<f64>()?;
        if read > 0.5 {
            loss.backward()?;
            sgd.step()?;
            sgd.zero_grad();
        }
        Ok((y.detach(), read))
    };
    let weights = || Var::new(&random(&[8, 4], 9)).requires_grad(true);
    let (own, other) = (weights(), weights());
    let (own_sgd, other_sgd) = (Sgd::new([own.clone()], 0.01)?, Sgd::new([other.clone()], 0.01)?);
    let kept = own.clone();
    let fast = compile_with(
        move |x: &Tensor| Ok(step(x, &own, &own_sgd)?.0),
        bucketed(Buckets::powers_of_two(8, 32).at(0, 0)),
    );
    for turn in 0..30 {
        let x = random(&[1 + turn as usize * 11 % 32, 8], turn);
        let (expected, _) = step(&x, &other, &other_sgd)?;
        assert_close(&fast.call(&x)?, &expected, &format!("turn {turn}"));
        assert_close(&kept.get(), &other.get(), &format!("weights after turn {turn}"));
    }
    Ok(())
}

#[test]
fn limits_fall_back_to_what_is_not_padded() -> Result<()> {
    // Each call reads another number and goes another way, so that it soon runs eagerly.
    let f = |x: &Tensor| {
        let mut y = x.clone();
        for _ in 0..(total(x)?.abs()?.mul(50.0)?.item::<f64>()? as usize % 37) {
            y = y.mul(1.01)?.sin()?;
        }
        Ok(y)
    };
    let options = Options { recompile_limit: 3, ..bucketed(Buckets::of([8, 40]).at(0, 0)) };
    let fast = compile_with(f, options);
    for turn in 0..60 {
        let x = random(&[1 + turn as usize * 7 % 40, 8], turn);
        assert_close(&fast.call(&x)?, &f(&x)?, &format!("turn {turn}"));
    }
    assert!(fast.stats().fallbacks > 0, "{:?}", fast.stats());
    Ok(())
}

#[test]
fn what_is_read_whole_says_so() {
    let f = |x: &Tensor| x.mul(x.to_vec::<f32>()?[0] as f64);
    let fast = compile_with(f, bucketed(Buckets::of([8]).at(0, 0)));
    let message = fast.call(&random(&[3, 8], 1)).unwrap_err().to_string();
    assert!(message.contains("as a number"), "{message}");
    let options = Options { fullgraph: true, ..bucketed(Buckets::of([8]).at(0, 0)) };
    let fast = compile_with(|x: &Tensor| x.mul(total(x)?.item::<f64>()?), options);
    let message = fast.call(&random(&[3, 8], 1)).unwrap_err().to_string();
    assert!(message.contains("reads a tensor's element"), "{message}");
}

#[test]
fn buckets_in_another_order_than_axes() -> Result<()> {
    let f = |x: &Tensor| x.add(total(x)?.item::<f64>()?.clamp(-0.0, 0.0));
    let buckets = vec![Buckets::of([16]).at(0, 1), Buckets::of([4]).at(0, 0)];
    for f in [f, |x: &Tensor| x.mul(2.0)] {
        let fast = compile_with(f, Options { buckets: buckets.clone(), ..Options::default() });
        for (rows, columns) in [(3, 9), (4, 16), (1, 2)] {
            let x = random(&[rows, columns], 3);
            assert_close(&fast.call(&x)?, &f(&x)?, &format!("{rows} × {columns}"));
        }
    }
    Ok(())
}
