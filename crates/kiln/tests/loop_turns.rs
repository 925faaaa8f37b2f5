//! How many turns loops have, and what is saved of them: none at all, states computed again, ends before a bound.

use kiln::{DType, Device, Dynamic, Generator, Options, Result, Tensor, Var, compile, compile_with, scan};
use std::sync::Arc;

fn random(shape: &[usize], seed: u64) -> Tensor {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu).unwrap()
}

fn assert_close(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    for (a, b) in got.to_vec::<f32>().unwrap().iter().zip(expected.to_vec::<f32>().unwrap()) {
        assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{what}: {a} and {b}");
    }
}

type Results = Result<(Tensor, (Tensor, Tensor))>;
type Turn = Arc<dyn Fn(&(Tensor, Tensor)) -> Results + Send + Sync>;

/// Without a row there is what is carried as it was, and stacks of nothing, whose shape is that of what a turn gives.
#[test]
fn a_scan_of_no_rows_gives_what_it_began_with() -> Result<()> {
    let weight = Var::new(&random(&[3, 3], 1)).requires_grad(true);
    let (own, changed) = (weight.clone(), Var::new(&Tensor::zeros(3, DType::F32, Device::Cpu)?));
    let counter = changed.clone();
    let bodies: Vec<(&str, Turn)> = vec![
        (
            "a graph",
            Arc::new(move |(h, x)| {
                let h = h.matmul(&own.get())?.add(x)?.tanh()?;
                Ok((h.clone(), (h.sum(-1)?, h.gt(0.0)?.unsqueeze(0)?)))
            }),
        ),
        (
            "no graph",
            Arc::new(move |(h, x)| {
                counter.set(&counter.get().add(x.sum(0)?)?)?;
                let h = h.add(x.dropout(0.5)?)?;
                Ok((h.clone(), (h.sum(-1)?, h.gt(0.0)?.unsqueeze(0)?)))
            }),
        ),
    ];
    for (what, body) in bodies {
        let make = || {
            let body = body.clone();
            scan(move |arguments: &(Tensor, Tensor)| body(arguments))
        };
        let (eager, inside, ranged) = (make(), make(), make());
        let start = random(&[2, 3], 2).requires_grad();
        let none = Tensor::zeros([0, 2, 3], DType::F32, Device::Cpu)?;
        let fixed = compile(move |(h, x): &(Tensor, Tensor)| inside.call(h.mul(2.0)?, x.clone()));
        let options = Options { dynamic: Dynamic::range("t", 0..=9).at(1, 0).into(), ..Options::default() };
        let wide = compile_with(move |(h, x): &(Tensor, Tensor)| ranged.call(h.mul(2.0)?, x.clone()), options);
        let runs: [&dyn Fn(&Tensor) -> Results; 3] =
            [&|x| eager.call(start.mul(2.0)?, x.clone()), &|x| fixed.call(&(start.clone(), x.clone())), &|x| {
                wide.call(&(start.clone(), x.clone()))
            }];
        for (number, run) in runs.into_iter().enumerate() {
            let what = format!("{what}, {number}");
            for rows in [0, 3, 0, 1] {
                let x = if rows == 0 { none.clone() } else { random(&[rows, 2, 3], 3) };
                let (last, (sums, signs)) = run(&x)?;
                assert_eq!((sums.shape(), signs.shape()), (&[rows, 2][..], &[rows, 1, 2, 3][..]), "{what}");
                assert_eq!((sums.dtype(), signs.dtype()), (DType::F32, DType::Bool), "{what}");
                if rows > 0 {
                    continue;
                }
                assert_close(&last, &start.mul(2.0)?, &what);
                weight.zero_grad();
                let loss = last.square()?.sum(..)?.add(sums.sum(..)?)?;
                let slope = loss.gradients(&[&start])?.get(&start).expect("a gradient").clone();
                assert_close(&slope, &start.detach().mul(8.0)?, &what);
            }
        }
        if what == "a graph" {
            assert_eq!((wide.stats().breaks, wide.stats().fallbacks), (0, 0), "{:?}", wide.stats());
            weight.zero_grad();
            let (last, (sums, _)) = wide.call(&(start.clone(), none.clone()))?;
            last.sum(..)?.add(sums.sum(..)?)?.backward()?;
            let zero = Tensor::zeros([3, 3], DType::F32, Device::Cpu)?;
            assert_close(&weight.grad().unwrap_or(zero.clone()), &zero, "the gradient of a weight that no turn used");
        }
    }
    assert!(changed.get().to_vec::<f32>()?.iter().all(|x| x.is_finite()));
    let empty =
        kiln::map(|row: &Tensor| row.square()?.sum(..)).call(Tensor::zeros([0, 4], DType::F32, Device::Cpu)?)?;
    assert_eq!(empty.shape(), [0]);
    let reads = scan(|(h, x): &(Tensor, Tensor)| Ok((h.add(f64::from(x.sum(..)?.item::<f32>()?))?, x.clone())));
    let zero = Tensor::zeros(3, DType::F32, Device::Cpu)?;
    let error = reads.call(zero, Tensor::zeros([0, 3], DType::F32, Device::Cpu)?).unwrap_err();
    assert!(error.to_string().contains("no turn"), "{error}");
    Ok(())
}

/// What is kept of `steps` turns is what fewer states make of it, and results and gradients are the same.
#[test]
fn a_checkpointed_scan_keeps_fewer_states() -> Result<()> {
    let (rows, hidden, steps) = (64, 64, 96);
    let make = |weight: &Var, every: Option<usize>| {
        let own = weight.clone();
        let body = scan(move |(h, x): &(Tensor, Tensor)| {
            let h = h.matmul(&own.get())?.add(x)?.tanh()?;
            Ok((h.clone(), h.sum(-1)?))
        });
        let body = if let Some(every) = every { body.checkpointed(every) } else { body };
        let own = weight.clone();
        compile(move |x: &Tensor| {
            own.zero_grad();
            let (last, all) = body.call(Tensor::zeros([rows, hidden], DType::F32, Device::Cpu)?, x.mul(0.5)?)?;
            let loss = last.square()?.mean(..)?.add(all.square()?.mean(..)?)?;
            loss.backward()?;
            Ok::<_, kiln::Error>((loss, own.grad().expect("a gradient")))
        })
    };
    let weight = Var::new(&random(&[hidden, hidden], 1).mul(0.05)?).requires_grad(true);
    let saved = make(&weight, None);
    let mut bytes = Vec::new();
    for every in [8, 10, 200] {
        let few = make(&weight, Some(every));
        for steps in [steps, 50, 7, 9, 1, 20] {
            let x = random(&[steps, rows, hidden], steps as u64);
            let (got, expected) = (few.call(&x)?, saved.call(&x)?);
            assert_close(&got.0, &expected.0, &format!("loss, every {every} of {steps}"));
            assert_close(&got.1, &expected.1, &format!("gradient, every {every} of {steps}"));
        }
        let stats = few.stats();
        assert!(stats.breaks == 0 && stats.compiles <= 3, "every {every}: {stats:?}");
        let arena = |f: &dyn Fn(&Tensor) -> Result<kiln::inspect::explain::Explanation>| -> Result<usize> {
            Ok(f(&random(&[steps, rows, hidden], 1))?.segments.iter().map(|segment| segment.arena_bytes).sum())
        };
        bytes.push((
            every,
            arena(&|x| make(&weight, Some(every)).explain(x))?,
            arena(&|x| make(&weight, None).explain(x))?,
        ));
    }
    let state = rows * hidden * 4;
    for &(every, few, all) in &bytes[..2] {
        let kept = steps - steps / every - 2 * every - 8;
        assert!(few + kept * state <= all, "every {every}: {few} and {all} bytes, states of {state}");
    }
    Ok(())
}

/// What is around a loop may be computed again as a whole, too.
#[test]
fn a_checkpoint_around_a_scan() -> Result<()> {
    let weight = Var::new(&random(&[8, 8], 1).mul(0.3)?).requires_grad(true);
    for every in [None, Some(3)] {
        let own = weight.clone();
        let body = scan(move |(h, x): &(Tensor, Tensor)| {
            let h = h.matmul(&own.get())?.add(x)?.tanh()?;
            Ok((h.clone(), h))
        });
        let body = Arc::new(if let Some(every) = every { body.checkpointed(every) } else { body });
        let plain = |x: &Tensor| body.call(x.select(0, 0)?, x.clone())?.1.square()?.sum(..);
        let again = |x: &Tensor| {
            let body = body.clone();
            kiln::checkpoint(move |x: &Tensor| body.call(x.select(0, 0)?, x.clone())?.1.square()?.sum(..), x)
        };
        let (fast, whole) = (
            compile(again),
            compile(|x: &Tensor| {
                let y = again(x)?;
                y.backward()?;
                Ok::<_, kiln::Error>(y)
            }),
        );
        for steps in [5, 8, 11] {
            let x = random(&[steps, 2, 8], steps as u64).requires_grad();
            let slopes = |loss: Tensor| -> Result<(Tensor, Tensor)> {
                let slope = loss.gradients(&[&x])?.get(&x).expect("a gradient").clone();
                Ok((loss, slope))
            };
            let (expected, eager, compiled) = (slopes(plain(&x)?)?, slopes(again(&x)?)?, slopes(fast.call(&x)?)?);
            for (got, how) in [(eager, "eager"), (compiled, "compiled")] {
                assert_close(&got.0, &expected.0, how);
                assert_close(&got.1, &expected.1, how);
            }
            let of_weight = |run: &dyn Fn() -> Result<()>| -> Result<Tensor> {
                weight.zero_grad();
                run()?;
                Ok(weight.grad().expect("a gradient"))
            };
            let x = x.detach();
            let expected = of_weight(&|| plain(&x)?.backward())?;
            assert_close(&of_weight(&|| again(&x)?.backward())?, &expected, "weight, eager");
            assert_close(&of_weight(&|| fast.call(&x)?.backward())?, &expected, "weight, compiled");
            assert_close(&of_weight(&|| whole.call(&x).map(drop))?, &expected, "weight, in the function");
        }
        assert_eq!(whole.stats().breaks, 0);
    }
    Ok(())
}

/// What turns change in few places is changed where it is: no second copy of it, whichever way the loop ends.
#[test]
fn what_is_scattered_into_stays_in_its_place() -> Result<()> {
    let (slots, width) = (512, 32);
    let places = |turns: usize| Tensor::arange(turns, DType::I64, Device::Cpu)?.mul(37)?.remainder(slots as i64);
    let start = random(&[slots, width], 5);
    // What a turn reads of the cache: nothing, the new one, the old one, a part of the old one as a result.
    type Body = fn(&Tensor, &Tensor, &Tensor) -> Result<(Tensor, Tensor)>;
    let bodies: [(&str, Body, Option<bool>); 5] = [
        ("nothing", |cache, at, x| Ok((cache.index_copy(0, at, x)?, x.sum(..)?)), Some(true)),
        (
            "the new one",
            |cache, at, x| {
                let new = cache.index_copy(0, at, x)?;
                let read = new.mul(0.5)?.sum(..)?;
                Ok((new, read))
            },
            Some(true),
        ),
        ("the old one", |cache, at, x| Ok((cache.index_copy(0, at, &x.mul(2.0)?)?, cache.tanh()?.sum(..)?)), None),
        (
            "rows of the old one",
            |cache, at, x| Ok((cache.index_copy(0, at, &cache.index_select(0, at)?.add(x)?)?, x.sum(..)?)),
            Some(true),
        ),
        (
            "a part of the old one",
            |cache, at, x| Ok((cache.index_copy(0, at, x)?, cache.narrow(0, 0, 3)?)),
            Some(false),
        ),
    ];
    for (what, body, in_place) in bodies {
        let scanned = scan(move |(cache, (at, x)): &(Tensor, (Tensor, Tensor))| {
            let (cache, read) = body(cache, &at.unsqueeze(0)?, &x.unsqueeze(0)?)?;
            Ok((cache, read))
        });
        let until = kiln::while_loop(
            |(_, at, _): &(Tensor, Tensor, Tensor)| at.lt(200),
            move |(cache, at, sum): &(Tensor, Tensor, Tensor)| {
                let x = sum.mul(0.01)?.sin()?.expand((1, 32))?;
                let (cache, read) = body(cache, &at.unsqueeze(0)?, &x)?;
                Ok((cache, at.add(37)?, sum.add(read.sum(..)?)?.clamp(-9.0, 9.0)?))
            },
        );
        let plain = |cache: &Tensor, at: &Tensor, x: &Tensor| -> Result<(Tensor, Tensor)> {
            let (mut cache, mut all) = (cache.clone(), Vec::new());
            for turn in 0..x.shape()[0] {
                let (next, read) = body(&cache, &at.narrow(0, turn, 1)?, &x.narrow(0, turn, 1)?)?;
                cache = next;
                all.push(read);
            }
            Ok((cache, Tensor::stack(&all, 0)?))
        };
        let fast = compile(move |(cache, at, x): &(Tensor, Tensor, Tensor)| {
            scanned.call(cache.clone(), (at.clone(), x.clone()))
        });
        for turns in [1, 2, 3, 8, 9] {
            let x = random(&[turns, width], turns as u64);
            let (got, expected) =
                (fast.call(&(start.clone(), places(turns)?, x.clone()))?, plain(&start, &places(turns)?, &x)?);
            assert_close(&got.0, &expected.0, &format!("{what}, {turns} turns"));
            assert_close(&got.1, &expected.1, &format!("results of {what}, {turns} turns"));
        }
        let ends = compile(move |cache: &Tensor| {
            let zero = (Tensor::new(5i64, Device::Cpu)?, Tensor::full((), 0.5, DType::F32, Device::Cpu)?);
            let (cache, _, sum) = until.call((cache.mul(1.0)?, zero.0, zero.1))?;
            Ok::<_, kiln::Error>((cache, sum))
        });
        let (mut cache, mut at, mut sum) = (start.clone(), 5i64, Tensor::full((), 0.5, DType::F32, Device::Cpu)?);
        while at < 200 {
            let x = sum.mul(0.01)?.sin()?.expand((1, 32))?;
            let (next, read) = body(&cache, &Tensor::new([at], Device::Cpu)?, &x)?;
            (cache, at, sum) = (next, at + 37, sum.add(read.sum(..)?)?.clamp(-9.0, 9.0)?);
        }
        let got = ends.call(&start)?;
        assert_close(&got.0, &cache, &format!("{what}, until a condition fails"));
        assert_close(&got.1, &sum, &format!("{what}, until a condition fails"));
        let x = random(&[9, width], 1);
        let explanation = fast.explain(&(start.clone(), places(9)?, x.clone()))?;
        let arena: usize = explanation.segments.iter().map(|segment| segment.arena_bytes).sum();
        if let Some(in_place) = in_place {
            assert_eq!(arena < slots * width * 4, in_place, "{what}: an arena of {arena} bytes");
        }
        for report in fast.verify(&(start.clone(), places(9)?, x))? {
            assert!(report.is_right(), "{what}: {report}");
        }
    }
    // Gradients need what each turn found.
    let body = scan(|(cache, (at, x)): &(Tensor, (Tensor, Tensor))| {
        let new = cache.index_copy(0, &at.unsqueeze(0)?, &x.unsqueeze(0)?)?;
        Ok((new.mul(1.0)?.index_copy(0, &at.unsqueeze(0)?, &x.square()?.unsqueeze(0)?)?, new.square()?.sum(..)?))
    });
    let slopes = |compiled: bool| -> Result<Vec<Tensor>> {
        let (cache, x) = (start.requires_grad(), random(&[6, width], 3).requires_grad());
        let (last, all) = match compiled {
            true => compile(|(c, at, x): &(Tensor, Tensor, Tensor)| body.call(c.clone(), (at.clone(), x.clone())))
                .call(&(cache.clone(), places(6)?, x.clone()))?,
            false => {
                let (mut now, mut all) = (cache.clone(), Vec::new());
                for turn in 0..6 {
                    let (at, x) = (places(6)?.narrow(0, turn, 1)?, x.narrow(0, turn, 1)?);
                    let new = now.index_copy(0, &at, &x)?;
                    now = new.mul(1.0)?.index_copy(0, &at, &x.square()?)?;
                    all.push(new.square()?.sum(..)?);
                }
                (now, Tensor::stack(&all, 0)?)
            }
        };
        let found = last.sum(..)?.add(all.sum(..)?)?.gradients(&[&cache, &x])?;
        Ok([&cache, &x].map(|by| found.get(by).expect("a gradient").clone()).to_vec())
    };
    for (got, expected) in slopes(true)?.iter().zip(slopes(false)?) {
        assert_close(got, &expected, "gradients of a cache");
    }
    Ok(())
}

/// A bounded loop ends soon after its condition fails: chunks of turns that are not needed do not run.
#[test]
fn a_bounded_loop_of_many_turns_is_as_long_as_it_has_to_be() -> Result<()> {
    let factor = Var::new(&Tensor::full((), 0.3, DType::F32, Device::Cpu)?).requires_grad(true);
    let make = |bound: usize| {
        let own = factor.clone();
        kiln::while_loop(
            |(x, _): &(Tensor, Tensor)| x.amax(..)?.gt(1.0),
            move |(x, turns): &(Tensor, Tensor)| Ok((x.mul(own.get())?, turns.add(1)?)),
        )
        .bounded(bound)
    };
    let count = || Tensor::new(0i64, Device::Cpu);
    for bound in [5usize, 17, 40, 5000] {
        let (inside, eager) = (make(bound), make(bound));
        let fast = compile(move |x: &Tensor| inside.call((x.mul(1.0)?, count()?)));
        for (first, turns) in [(0.5f32, 0i64), (2.0, 1), (20.0, 3), (1e3, 6), (3e8, 17), (1e20, 39)] {
            let x = Tensor::new([first, 0.25], Device::Cpu)?.requires_grad();
            for (how, (y, took)) in [("compiled", fast.call(&x)?), ("eager", eager.call((x.mul(1.0)?, count()?))?)] {
                let what = format!("{how}, {turns} turns of {bound}");
                if turns as usize > bound {
                    assert!(y.to_vec::<f32>()?.iter().all(|y| y.is_nan()), "{what}: {y}");
                    assert_eq!(took.item::<i64>()?, bound as i64, "{what}");
                    continue;
                }
                assert_eq!(took.item::<i64>()?, turns, "{what}");
                let expected = 0.3f32.powi(turns as i32);
                let near = |got: f32, expected: f32| (got - expected).abs() <= 1e-4 * expected.abs();
                assert!(near(y.to_vec::<f32>()?[0], first * expected), "{what}: {y}");
                let slope = y.sum(..)?.gradients_on_tape(&[&x])?.get(&x).expect("a slope").clone();
                assert!(slope.to_vec::<f32>()?.iter().all(|got| near(*got, expected)), "{what}: {slope}");
                // The slope is a function of the factor.
                factor.zero_grad();
                slope.sum(..)?.backward()?;
                let twice = factor.grad().map_or(Ok(0.0), |gradient| gradient.item::<f32>())?;
                let expected = 2.0 * turns as f32 * 0.3f32.powi(turns as i32 - 1);
                assert!(near(twice, expected) || (twice - expected).abs() < 1e-20, "{what}: {twice} and {expected}");
            }
        }
        assert_eq!((fast.stats().breaks, fast.stats().fallbacks), (0, 0));
    }
    Ok(())
}
