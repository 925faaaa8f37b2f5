//! Loops whose body is captured once.
#![allow(clippy::type_complexity)]

use kiln::nn::{Forward, Gru, Lstm};
use kiln::{
    DType, Device, Dynamic, Generator, Options, Result, Tensor, Var, compile, compile_with, no_grad, scan, while_loop,
};

fn random(shape: &[usize], seed: u64) -> Tensor {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu).unwrap()
}

fn assert_close(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    for (a, b) in got.to_vec::<f32>().unwrap().iter().zip(expected.to_vec::<f32>().unwrap()) {
        assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{what}: {a} and {b}");
    }
}

/// A cell with tanh, and the same as a loop.
fn cell(h: &Tensor, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    h.matmul(weight)?.add(x)?.tanh()
}

#[test]
fn a_recurrent_network_is_one_program_for_all_lengths() {
    let weight = random(&[4, 4], 1);
    let own = weight.clone();
    let body = scan(move |(h, x): &(Tensor, Tensor)| {
        let h = cell(h, x, &own)?;
        Ok((h.clone(), h.mul(2.0)?))
    });
    let zeros = || Tensor::zeros([2, 4], DType::F32, Device::Cpu);
    let fast = compile(|x: &Tensor| {
        let (last, all) = body.call(zeros()?, x.mul(0.5)?)?;
        all.mean(0)?.add(&last)
    });
    for turn in 0..40u64 {
        let x = random(&[2 + turn as usize % 13, 2, 4], turn);
        let (mut h, mut all) = (zeros().unwrap(), Vec::new());
        for place in 0..x.shape()[0] {
            h = cell(&h, &x.mul(0.5).unwrap().select(0, place).unwrap(), &weight).unwrap();
            all.push(h.mul(2.0).unwrap());
        }
        let expected = Tensor::stack(&all, 0).unwrap().mean(0).unwrap().add(&h).unwrap();
        assert_close(&fast.call(&x).unwrap(), &expected, &format!("turn {turn}"));
    }
    let stats = fast.stats();
    // One for the first length, and one for all others; the loop is part of both.
    assert_eq!((stats.compiles, stats.branches, stats.fallbacks, stats.breaks), (2, 0, 0, 0), "{stats:?}");
    assert_eq!(body.stats().compiles, 0);
}

#[test]
fn gradients_go_through_a_scan() {
    let fresh = || Var::new(&random(&[3, 3], 1)).requires_grad(true);
    let (one, two) = (fresh(), fresh());
    let own = one.clone();
    let body = scan(move |(h, x): &(Tensor, Tensor)| {
        let h = cell(h, x, &own.get())?;
        Ok((h.clone(), h.square()?))
    });
    let fast = compile(|x: &Tensor| body.call(x.select(0, 0)?, x.clone())?.1.sum(..));
    for turn in 0..6u64 {
        let x = random(&[2 + turn as usize, 2, 3], turn);
        let mut h = x.select(0, 0).unwrap();
        let mut loss = Tensor::scalar(0.0, DType::F32, Device::Cpu).unwrap();
        for place in 0..x.shape()[0] {
            h = cell(&h, &x.select(0, place).unwrap(), &two.get()).unwrap();
            loss = loss.add(h.square().unwrap().sum(..).unwrap()).unwrap();
        }
        for (loss, var) in [(fast.call(&x).unwrap(), &one), (loss, &two)] {
            var.zero_grad();
            loss.backward().unwrap();
        }
        assert_close(&one.grad().unwrap(), &two.grad().unwrap(), &format!("turn {turn}"));
    }
}

#[test]
fn a_condition_ends_a_loop() {
    // Square roots by Newton's rule.
    let newton = while_loop(
        |(root, x): &(Tensor, Tensor)| root.square()?.sub(x)?.abs()?.amax(..)?.gt(1e-3),
        |(root, x): &(Tensor, Tensor)| Ok((root.add(x.div(root)?)?.mul(0.5)?, x.clone())),
    );
    let fast = compile(|x: &Tensor| Ok::<Tensor, kiln::Error>(newton.call((x.add(1.0)?, x.clone()))?.0));
    for turn in 0..30u64 {
        let x = random(&[1 + turn as usize % 7], turn).abs().unwrap().add(0.1).unwrap();
        let x = x.mul(1.0 + (turn * turn) as f64).unwrap();
        let (root, expected) = (fast.call(&x).unwrap(), x.sqrt().unwrap());
        for (a, b) in root.to_vec::<f32>().unwrap().iter().zip(expected.to_vec::<f32>().unwrap()) {
            assert!((a - b).abs() < 1e-3 * (1.0 + b), "turn {turn}: {a} and {b}");
        }
    }
    // The loop is part of the programs: of one element, of the first size, and of all others.
    let stats = fast.stats();
    assert!(stats.compiles <= 3 && stats.fallbacks == 0 && stats.breaks == 0, "{stats:?}");
    assert_eq!(newton.stats().compiles, 0);
}

/// Where gradients go through it the loop runs turn by turn; no turn, one and many leave what they carry in its place.
#[test]
fn a_condition_and_gradients() -> Result<()> {
    let weight = Var::new(&Tensor::new([0.5f32, 0.7], Device::Cpu)?).requires_grad(true);
    let own = weight.clone();
    let shrink = while_loop(
        |(x, _): &(Tensor, Tensor)| x.amax(..)?.gt(1.0),
        move |(x, turns): &(Tensor, Tensor)| Ok((x.mul(own.get())?, turns.add(1)?)),
    );
    let count = || Tensor::new(0i64, Device::Cpu);
    let fast = compile(move |x: &Tensor| shrink.call((x.mul(2.0)?, count()?)));
    for (round, first) in [0.1f32, 0.9, 1.9, 4.0, 100.0, 0.2].into_iter().enumerate() {
        let x = Tensor::new([first, first / 2.0], Device::Cpu)?;
        let (mut expected, mut turns) = (x.mul(2.0)?, 0);
        while expected.amax(..)?.item::<f32>()? > 1.0 {
            (expected, turns) = (expected.mul(weight.get())?, turns + 1);
        }
        let quiet = no_grad(|| fast.call(&x))?;
        assert_close(&quiet.0, &expected, &format!("round {round}"));
        assert_eq!(quiet.1.item::<i64>()?, turns, "round {round}");
        let loud = fast.call(&x)?;
        assert_close(&loud.0, &expected, &format!("round {round}"));
        if turns > 0 {
            let gradients = [&loud.0, &expected].map(|y| {
                weight.zero_grad();
                y.sum(..).unwrap().backward().unwrap();
                weight.grad().unwrap()
            });
            assert_close(&gradients[0], &gradients[1], &format!("gradient of round {round}"));
        }
    }
    Ok(())
}

/// With a bound on its turns a loop is an op where gradients go through it, too, by itself and in the body of a scan.
#[test]
fn gradients_of_a_bounded_loop_are_part_of_the_program() -> Result<()> {
    let shrink = |weight: &Var| {
        let own = weight.clone();
        while_loop(
            |(x, _): &(Tensor, Tensor)| x.amax(..)?.gt(1.0),
            move |(x, turns): &(Tensor, Tensor)| Ok((x.mul(own.get())?, turns.add(1)?)),
        )
    };
    let weight = Var::new(&Tensor::new([0.5f32, 0.7], Device::Cpu)?).requires_grad(true);
    let (bounded, plain) = (shrink(&weight).bounded(20), shrink(&weight));
    let count = || Tensor::new(0i64, Device::Cpu);
    let fast = compile(move |x: &Tensor| {
        let (y, turns) = bounded.call((x.mul(2.0)?, count()?))?;
        y.mul(&y)?.sum(..)?.backward()?;
        Ok::<_, kiln::Error>((y, turns))
    });
    for (round, first) in [0.1f32, 0.9, 1.9, 4.0, 100.0, 0.2].into_iter().enumerate() {
        let x = Tensor::new([first, first / 2.0], Device::Cpu)?;
        let (want, turns) = plain.call((x.mul(2.0)?, count()?))?;
        weight.zero_grad();
        let mut gradient = Tensor::zeros(2, DType::F32, Device::Cpu)?;
        if turns.item::<i64>()? > 0 {
            want.mul(&want)?.sum(..)?.backward()?;
            gradient = weight.grad().expect("a gradient");
        }
        weight.zero_grad();
        let got = fast.call(&x)?;
        assert_close(&got.0, &want, &format!("round {round}"));
        assert_eq!(got.1.item::<i64>()?, turns.item::<i64>()?, "round {round}");
        assert_close(&weight.grad().expect("a gradient"), &gradient, &format!("gradient of round {round}"));
    }
    assert_eq!((fast.stats().compiles, fast.stats().breaks), (1, 0));
    // More turns than there may be.
    let y = fast.call(&Tensor::new([1e7f32, 1.0], Device::Cpu)?)?.0;
    assert!(y.to_vec::<f32>()?.iter().all(|y| y.is_nan()), "{y}");

    let rows = Tensor::new([[4f32, 0.5], [0.25, 0.5], [9.0, 30.0]], Device::Cpu)?;
    let outer = |inner: kiln::WhileLoop<(Tensor, Tensor)>| {
        let outer = scan(move |(state, row): &(Tensor, Tensor)| {
            let next = inner.call((state.add(row)?, Tensor::new(0i64, Device::Cpu)?))?.0;
            Ok((next.clone(), next))
        });
        compile(move |x: &Tensor| {
            let all = outer.call(Tensor::zeros(2, DType::F32, Device::Cpu)?, x.clone())?.1;
            all.mul(&all)?.sum(..)?.backward()?;
            Ok::<Tensor, kiln::Error>(all)
        })
    };
    let found = |inner| -> Result<(Tensor, Tensor, u64)> {
        weight.zero_grad();
        let step = outer(inner);
        let all = step.call(&rows)?;
        Ok((all, weight.grad().expect("a gradient"), step.stats().breaks as u64))
    };
    let (want, got) = (found(shrink(&weight))?, found(shrink(&weight).bounded(10))?);
    assert_close(&got.0, &want.0, "a loop in a scan");
    assert_close(&got.1, &want.1, "the gradient of a loop in a scan");
    assert_eq!(got.2, 0);
    Ok(())
}

#[test]
fn what_cannot_be_looped_over_says_so() {
    let add = scan(|(sum, x): &(Tensor, Tensor)| Ok((sum.add(x)?, sum.clone())));
    let zero = || Tensor::scalar(0.0, DType::F32, Device::Cpu).unwrap();
    assert!(add.call(zero(), zero()).unwrap_err().to_string().contains("no axis to loop over"));
    let pairs = scan(|(sum, (x, y)): &(Tensor, (Tensor, Tensor))| Ok((sum.add(x)?.add(y)?, sum.clone())));
    let long = |n: usize| Tensor::ones(n, DType::F32, Device::Cpu).unwrap();
    assert!(pairs.call(zero(), (long(2), long(3))).unwrap_err().to_string().contains("differ"));
    assert_eq!(pairs.call(zero(), (long(3), long(3))).unwrap().0.item::<f32>().unwrap(), 6.0);
}

/// A scan, and the same in plain Rust.
fn both_ways(
    f: impl Fn(&(Tensor, Tensor)) -> Result<(Tensor, Tensor)> + Clone + Send + Sync + 'static,
) -> (impl Fn(Tensor, &Tensor) -> Result<(Tensor, Tensor)>, impl Fn(Tensor, &Tensor) -> Result<(Tensor, Tensor)>) {
    let plain = f.clone();
    let turn_by_turn = move |mut carried: Tensor, over: &Tensor| {
        let mut all = Vec::new();
        for place in 0..over.shape()[0] {
            let (now, result) = plain(&(carried, over.select(0, place)?))?;
            carried = now;
            all.push(result);
        }
        Ok((carried, Tensor::stack(&all, 0)?))
    };
    let body = scan(f);
    (move |carried, over: &Tensor| body.call(carried, over.clone()), turn_by_turn)
}

#[test]
fn a_training_step_with_a_scan_is_one_graph() {
    let step =
        |weight: &Var, x: &Tensor, run: &dyn Fn(Tensor, &Tensor) -> Result<(Tensor, Tensor)>| -> Result<Tensor> {
            weight.zero_grad();
            let (last, all) = run(x.select(0, 0)?.mul(0.1)?, &x.mul(0.5)?)?;
            let loss = all.square()?.mean(..)?.add(last.sum(..)?)?;
            loss.backward()?;
            let gradient = weight.grad().expect("a gradient");
            weight.set(&weight.get().detach().sub(gradient.mul(0.1)?)?)?;
            Ok(loss)
        };
    let fresh = || Var::new(&random(&[3, 3], 1)).requires_grad(true);
    let (one, two) = (fresh(), fresh());
    let body = |weight: &Var| {
        let weight = weight.clone();
        move |(h, x): &(Tensor, Tensor)| {
            let h = cell(h, x, &weight.get())?;
            Ok((h.clone(), h.mul(x)?))
        }
    };
    let (looped, _) = both_ways(body(&one));
    let (_, plain) = both_ways(body(&two));
    let own = one.clone();
    let options = Options { fullgraph: true, ..Options::default() };
    let fast = compile_with(move |x: &Tensor| step(&own, x, &looped), options);
    for turn in 0..12u64 {
        let x = random(&[2 + turn as usize % 5, 2, 3], turn);
        assert_close(&fast.call(&x).unwrap(), &step(&two, &x, &plain).unwrap(), &format!("loss {turn}"));
        assert_close(&one.get(), &two.get(), &format!("weight {turn}"));
    }
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.breaks, stats.fallbacks), (2, 0, 0), "{stats:?}");
}

#[test]
fn loops_in_loops() {
    let rows = |(total, rows): &(Tensor, Tensor)| -> Result<(Tensor, Tensor)> {
        // Running maxima of each row, added up.
        let inner = scan(|(most, x): &(Tensor, Tensor)| {
            let most = most.maximum(x)?;
            Ok((most.clone(), most))
        });
        let (_, all) = inner.call(total.mul(0.5)?, rows.clone())?;
        let total = total.add(all.sum(0)?)?.tanh()?;
        Ok((total.clone(), all))
    };
    let (looped, plain) = both_ways(rows);
    let fast = compile(|x: &Tensor| {
        let (last, all) = looped(x.select(0, 0)?.select(0, 0)?, x)?;
        all.sum([0, 1])?.add(last)
    });
    for turn in 0..9u64 {
        let x = random(&[2 + turn as usize % 3, 3 + turn as usize % 4, 5], turn);
        let (last, all) = plain(x.select(0, 0).unwrap().select(0, 0).unwrap(), &x).unwrap();
        let expected = all.sum([0, 1]).unwrap().add(last).unwrap();
        assert_close(&fast.call(&x).unwrap(), &expected, &format!("turn {turn}"));
    }
    assert_eq!((fast.stats().breaks, fast.stats().fallbacks), (0, 0), "{:?}", fast.stats());
}

/// What is not part of a graph: the loop runs turn by turn, and means the same.
#[test]
fn bodies_that_are_no_graph() {
    let counter = Var::new(&Tensor::zeros(3, DType::F32, Device::Cpu).unwrap());
    let own = counter.clone();
    let bodies: Vec<(&str, Box<dyn Fn(&(Tensor, Tensor)) -> Result<(Tensor, Tensor)> + Send + Sync>)> = vec![
        (
            "reads an element",
            Box::new(|(h, x)| {
                let h = if x.sum(..)?.item::<f32>()? > 0.0 { h.add(x)? } else { h.sub(x)? };
                Ok((h.clone(), h))
            }),
        ),
        (
            "hides that it does",
            Box::new(|(h, x)| {
                let by = x.sum(..)?.item::<f32>().unwrap_or(100.0);
                Ok((h.add(x)?, x.mul(f64::from(by))?))
            }),
        ),
        (
            "changes a variable",
            Box::new(move |(h, x)| {
                own.set(&own.get().add(x)?)?;
                Ok((h.add(own.get())?, x.clone()))
            }),
        ),
        ("stops gradients", Box::new(|(h, x)| Ok((h.add(h.detach().mul(x)?)?, no_grad(|| h.mul(2.0))?)))),
        ("gives other sizes", Box::new(|(h, x)| Ok((h.clone(), x.reshape([3, 1])?)))),
        ("is a graph", Box::new(|(h, x)| Ok((x.clone(), h.clone())))),
    ];
    for (what, body) in bodies {
        let body = std::sync::Arc::new(body);
        let (looped, plain) = both_ways(move |arguments: &(Tensor, Tensor)| body(arguments));
        let first = || Tensor::new([0.1f32, 0.2, 0.3], Device::Cpu);
        let start = Var::new(&first().unwrap()).requires_grad(true);
        let (read, other) = (start.clone(), start.clone());
        let fast = compile(move |x: &Tensor| {
            let (last, all) = looped(read.get().mul(1.0)?, x)?;
            all.sum(..)?.add(last.sum(..)?)
        });
        for turn in 0..8u64 {
            let x = random(&[2 + turn as usize % 3, 3], turn);
            counter.set(&first().unwrap()).unwrap();
            let got = fast.call(&x).unwrap();
            let changed = counter.get();
            start.zero_grad();
            got.backward().unwrap();
            let gradient = start.grad();
            counter.set(&first().unwrap()).unwrap();
            let (last, all) = plain(other.get().mul(1.0).unwrap(), &x).unwrap();
            let expected = all.sum(..).unwrap().add(last.sum(..).unwrap()).unwrap();
            assert_close(&got, &expected, what);
            assert_close(&changed, &counter.get(), what);
            start.zero_grad();
            expected.backward().unwrap();
            match (gradient, start.grad()) {
                (Some(got), Some(expected)) => assert_close(&got, &expected, what),
                (got, expected) => assert_eq!(got.is_some(), expected.is_some(), "{what}"),
            }
        }
    }
}

#[test]
fn a_scan_by_itself_is_one_program() {
    let weight = Var::new(&random(&[4, 4], 3)).requires_grad(true);
    let own = weight.clone();
    let (looped, plain) = both_ways(move |(h, x): &(Tensor, Tensor)| {
        let h = cell(h, x, &own.get())?;
        Ok((h.clone(), h))
    });
    for turn in 0..10u64 {
        let (x, h) = (random(&[1 + turn as usize, 2, 4], turn), random(&[2, 4], 100 + turn));
        let gradients = [&looped as &dyn Fn(Tensor, &Tensor) -> Result<(Tensor, Tensor)>, &plain].map(|run| {
            weight.zero_grad();
            let (last, all) = run(h.clone(), &x).unwrap();
            let loss = all.square().unwrap().sum(..).unwrap().add(last.sum(..).unwrap()).unwrap();
            loss.backward().unwrap();
            (loss, weight.grad().unwrap())
        });
        assert_close(&gradients[0].0, &gradients[1].0, "loss");
        assert_close(&gradients[0].1, &gradients[1].1, "gradient");
    }
}

#[test]
fn recurrent_layers_are_one_program_for_all_lengths() -> Result<()> {
    fn check<M: Forward<Output = Tensor> + Clone + 'static>(layer: M, weight: &Var, what: &str) -> Result<()> {
        let own = layer.clone();
        let options = Options { fullgraph: true, ..Options::default() };
        let fast = compile_with(move |x: &Tensor| own.forward(x), options);
        for steps in (2..30).chain([1, 2, 30]) {
            let x = random(&[2, steps, 3], steps as u64);
            let results = [fast.call(&x)?, layer.forward(&x)?];
            assert_close(&results[0], &results[1], &format!("{what}, {steps} steps"));
            let gradients = results.map(|y| {
                weight.zero_grad();
                y.square().unwrap().sum(..).unwrap().backward().unwrap();
                weight.grad().unwrap()
            });
            assert_close(&gradients[0], &gradients[1], &format!("gradient of {what}, {steps} steps"));
        }
        let stats = fast.stats();
        // The first length, all others, and one, which means something else where it is broadcast.
        assert!(stats.compiles <= 3 && stats.breaks == 0, "{what}: {stats:?}");
        Ok(())
    }
    let (lstm, gru) = (Lstm::bidirectional(3, 4, 2)?, Gru::new(3, 4, 1)?);
    let weight = |module: &dyn kiln::nn::Module| module.parameters()[1].clone();
    let (of_lstm, of_gru) = (weight(&lstm), weight(&gru));
    check(lstm, &of_lstm, "an LSTM")?;
    check(gru, &of_gru, "a GRU")
}

#[test]
fn a_recurrent_layer_of_a_declared_range_is_one_program() -> Result<()> {
    fn check(layer: impl Forward<Output = Tensor> + Clone + Send + Sync + 'static, what: &str) -> Result<()> {
        let own = layer.clone();
        let options = Options { dynamic: Dynamic::range("t", 1..=300).at(0, 1).into(), ..Options::default() };
        let fast = compile_with(move |x: &Tensor| own.forward(x), options);
        for length in (1..=300).step_by(23).chain([300, 2, 1]) {
            let x = random(&[2, length, 3], length as u64);
            assert_close(&fast.call(&x)?, &layer.forward(&x)?, &format!("{what}, {length} steps"));
        }
        let stats = fast.stats();
        assert_eq!((stats.compiles, stats.breaks, stats.fallbacks), (1, 0, 0), "{what}");
        Ok(())
    }
    check(Lstm::bidirectional(3, 4, 2)?, "an LSTM")?;
    check(Gru::new(3, 4, 1)?, "a GRU")
}

#[test]
fn loops_are_explained_verified_and_frozen() -> Result<()> {
    let weight = Var::new(&random(&[4, 4], 5));
    let own = weight.clone();
    let body = scan(move |(h, x): &(Tensor, Tensor)| {
        let h = cell(h, x, &own.get())?;
        Ok((h.clone(), h))
    });
    let f = move |x: &Tensor| body.call(x.select(0, 0)?, x.clone())?.1.sum(0);
    let fast = compile_with(&f, Options { freeze: true, ..Options::default() });
    let plain = compile(&f);
    for length in [3, 4, 6] {
        let x = random(&[length, 2, 4], length as u64);
        assert_close(&fast.call(&x)?, &plain.call(&x)?, "frozen");
        weight.set(&weight.get().mul(0.5)?)?;
        assert_close(&fast.call(&x)?, &plain.call(&x)?, "frozen, after an update");
        for report in plain.verify(&x)? {
            assert!(report.is_right(), "{report}");
        }
        let text = plain.explain(&x)?.to_string();
        assert!(text.contains("loop"), "{text}");
    }
    Ok(())
}

/// A bound counts where gradients go through the body that the loop is in, and nowhere else.
#[test]
fn without_gradients_a_bound_says_nothing() -> Result<()> {
    let make = || {
        let halve = while_loop(
            |(x, _): &(Tensor, Tensor)| x.gt(1.0),
            |(x, turns): &(Tensor, Tensor)| Ok((x.mul(0.5)?, turns.add(1)?)),
        );
        let halve = halve.bounded(4);
        kiln::map(move |x: &Tensor| {
            let again = || halve.call((x.clone(), Tensor::new(0i64, Device::Cpu)?));
            kiln::cond(&x.gt(0.0)?, again, || Ok((x.neg()?, Tensor::new(0i64, Device::Cpu)?)))
        })
    };
    let x = Tensor::new([1024f32, -3.0, 8.0], Device::Cpu)?;
    let (last, turns) = make().call(x.clone())?;
    assert_eq!((last.to_vec::<f32>()?, turns.to_vec::<i64>()?), (vec![1.0, 3.0, 1.0], vec![10, 0, 3]));
    let rows = make();
    let fast = compile(move |x: &Tensor| rows.call(x.clone()));
    let x = x.requires_grad();
    let (last, turns) = fast.call(&x)?;
    assert_eq!((last.to_vec::<f32>()?[1..].to_vec(), turns.to_vec::<i64>()?), (vec![3.0, 1.0], vec![4, 0, 3]));
    assert!(last.to_vec::<f32>()?[0].is_nan(), "{last}");
    let gradient = last.i(1..)?.sum(..)?.gradients(&[&x])?.get(&x).expect("a gradient").to_vec::<f32>()?;
    assert_eq!(gradient[1..], [-1.0, 0.125]);
    assert_eq!(fast.stats().breaks, 0);
    Ok(())
}

/// Weights that a loop does not change are packed before its turns, from some number of them on; those it changes are not.
#[test]
fn products_with_what_a_loop_does_not_change() -> Result<()> {
    for dtype in [DType::F32, DType::F64, DType::Bf16] {
        let tolerance = if dtype == DType::Bf16 { 0.1 } else { 1e-4 };
        let weight = |n: u64| random(&[72, 72], n).mul(0.1).unwrap().to_dtype(dtype).unwrap();
        let (straight, across, var) = (weight(1), weight(2), Var::new(&weight(3)));
        // Two products with one weight, one of another layout, a variable, and a weight that changes.
        let turn = {
            let (straight, across, var) = (straight.clone(), across.clone(), var.clone());
            move |((h, own), x): &((Tensor, Tensor), Tensor)| -> Result<((Tensor, Tensor), Tensor)> {
                let two = h.matmul(&straight)?.add(x)?.tanh()?.matmul(&straight)?;
                let next =
                    two.add(h.linear(&across, None)?)?.add(h.matmul(&var.get())?)?.add(h.matmul(own)?)?.tanh()?;
                Ok(((next.clone(), own.mul(0.9)?.t()?.contiguous()?), next))
            }
        };
        for rows in [1, 2, 8, 40] {
            let scan = kiln::scan(turn.clone());
            let fast = compile(move |(h, own, x): &(Tensor, Tensor, Tensor)| {
                Ok(scan.call((h.clone(), own.clone()), x.clone())?.1)
            });
            for turns in [1, 3, 4, 5, 9] {
                var.set(&weight(10 + turns as u64))?;
                let (h, own) = (random(&[rows, 72], 4).to_dtype(dtype)?, weight(5));
                let x = random(&[turns, rows, 72], 6).to_dtype(dtype)?;
                let (mut state, mut all) = ((h.clone(), own.clone()), Vec::new());
                for x in x.unbind(0)? {
                    let (next, row) = turn(&(state, x))?;
                    (state, _) = (next, all.push(row));
                }
                let (got, expected) = (fast.call(&(h, own, x))?, Tensor::stack(&all, 0)?);
                let values = |x: &Tensor| x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                assert_eq!(got.shape(), expected.shape());
                for (a, b) in values(&got).iter().zip(values(&expected)) {
                    assert!((a - b).abs() <= tolerance, "{dtype}, {rows} rows, {turns} turns: {a} and {b}");
                }
            }
        }
    }
    // Where turns end by a condition, packing begins in the middle.
    let weight = random(&[64, 64], 7).mul(0.05)?;
    let step = move |h: &Tensor| h.matmul(&weight)?.add(h)?.add(0.01);
    let turns = {
        let step = step.clone();
        kiln::while_loop(|h: &Tensor| h.amax(..)?.lt(40.0), move |h: &Tensor| step(h))
    };
    let fast = compile(move |h: &Tensor| turns.call(h.clone()));
    for first in [0.01, 0.1, 1.0, 30.0, 50.0] {
        let h = random(&[6, 64], 8).abs()?.mul(first)?;
        let mut expected = h.clone();
        let mut count = 0;
        while expected.amax(..)?.item::<f32>()? < 40.0 {
            (expected, count) = (step(&expected)?, count + 1);
        }
        assert!(first < 10.0 || count < 30);
        assert_close(&fast.call(&h)?, &expected, &format!("from {first}, {count} turns"));
    }
    Ok(())
}

/// Outside of compiled functions a bounded loop is the same op: gradients, their tapes, and what is left of turns beyond the bound.
#[test]
fn a_bounded_loop_means_the_same_outside_of_compiled_functions() -> Result<()> {
    let square = || while_loop(|x: &Tensor| x.amax(..)?.lt(10.0), |x: &Tensor| x.mul(x)).bounded(3);
    let (eager, inside) = (square(), square());
    let fast = compile(move |x: &Tensor| inside.call(x.clone()));
    // No turn, some, and more than three.
    for first in [11f32, 4.0, 2.0, 1.01] {
        let x = Tensor::new([first, 1.0], Device::Cpu)?.requires_grad();
        let (a, b) = (eager.call(x.clone())?, fast.call(&x)?);
        let text = |y: &Tensor| y.to_vec::<f32>().map(|y| format!("{y:?}"));
        assert_eq!(text(&a)?, text(&b)?, "{first}");
        assert_eq!(a.to_vec::<f32>()?[0].is_nan(), first < 1.1, "{first}");
        let slope = |y: &Tensor| -> Result<Tensor> {
            Ok(y.sum(..)?.gradients_on_tape(&[&x])?.get(&x).expect("a slope").clone())
        };
        let (own, compiled) = (slope(&a)?, slope(&b)?);
        assert_eq!(text(&own)?, text(&compiled)?, "{first}");
        assert_eq!((own.has_tape(), compiled.has_tape()), (true, true), "{first}");
        let unbounded = no_grad(|| eager.call(x.clone()))?;
        assert!(
            unbounded.to_vec::<f32>()?[0] >= 10.0 && !unbounded.has_tape(),
            "without gradients the bound says nothing"
        );
    }
    Ok(())
}
