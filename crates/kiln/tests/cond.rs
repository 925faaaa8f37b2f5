//! Choices that stay in the graph: one side runs.

mod listening;

use kiln::ir::Graph;
use kiln::runtime::QueuedBackend;
use kiln::{DType, Device, Error, Options, Result, Tensor, Var, compile, compile_with, cond, scan, while_loop};
use listening::slow;
use std::sync::Arc;
use std::time::Duration;

fn numbers(length: usize, from: f32) -> Tensor {
    let values = (0..length).map(|at| from + at as f32 * 0.25).collect();
    Tensor::from_vec(values, length, Device::Cpu).unwrap()
}

fn whole() -> Options {
    Options { fullgraph: true, ..Options::default() }
}

/// An index that is out of range on the side that does not run is not looked at.
#[test]
fn one_side_runs() -> Result<()> {
    let f = compile_with(
        |(x, index): &(Tensor, Tensor)| {
            cond(&x.sum(..)?.gt(0.0)?, || x.index_select(0, index)?.exp(), || x.narrow(0, 0, 2)?.mul(2.0))
        },
        whole(),
    );
    let index = |at: i64| Tensor::new([at, 0], Device::Cpu);
    assert_eq!(f.call(&(numbers(4, -8.0), index(1000)?))?.to_vec::<f32>()?, [-16.0, -15.5]);
    let error = f.call(&(numbers(4, 8.0), index(1000)?)).expect_err("an index out of range").to_string();
    assert!(error.contains("index 1000 is out of range for an axis of 4"), "{error}");
    assert_eq!(f.call(&(numbers(4, 0.0), index(2)?))?.to_vec::<f32>()?, [0.5f32.exp(), 1.0]);
    assert_eq!((f.stats().compiles, f.stats().breaks), (1, 0));
    Ok(())
}

/// Gradients are those of the side that ran, for what both sides use and for what one does, in one program and as in eager code.
#[test]
fn gradients_go_through_the_side_that_ran() -> Result<()> {
    let run = |is_compiled: bool| -> Result<Vec<Vec<f32>>> {
        let w = Var::new(&numbers(3, 0.5)).requires_grad(true);
        let v = Var::new(&numbers(3, -0.5)).requires_grad(true);
        let own = (w.clone(), v.clone());
        let step = move |x: &Tensor| {
            let (w, v) = (own.0.get(), own.1.get());
            let y = cond(&x.sum(..)?.gt(0.0)?, || x.mul(&w)?.tanh(), || w.mul(&v)?.exp())?;
            y.mul(&v)?.sum(..)?.backward()?;
            Ok::<Tensor, Error>(y)
        };
        let fast = compile_with(step.clone(), whole());
        let mut all = Vec::new();
        for from in [1.0, -9.0, 2.0] {
            let x = numbers(3, from);
            all.push(if is_compiled { fast.call(&x)? } else { step(&x)? }.to_vec()?);
            for var in [&w, &v] {
                all.push(var.grad().expect("a gradient").to_vec()?);
                var.zero_grad();
            }
        }
        assert!(!is_compiled || fast.stats().compiles == 1, "{:?}", fast.stats());
        Ok(all)
    };
    let (want, got) = (run(false)?, run(true)?);
    assert_eq!(want.len(), got.len());
    for (want, got) in want.iter().flatten().zip(got.iter().flatten()) {
        assert!((want - got).abs() <= 1e-6 * want.abs().max(1.0), "{want} and {got}");
    }
    Ok(())
}

/// In the body of a loop, with loops on its sides, for any length: two programs at the most.
#[test]
fn choices_and_loops_nest() -> Result<()> {
    let make = || {
        let inner = scan(|(sum, x): &(Tensor, Tensor)| Ok((sum.add(x)?, sum.mul(x)?)));
        let halved = while_loop(|x: &Tensor| x.abs()?.amax(..)?.gt(1.0), |x: &Tensor| x.mul(0.5));
        scan(move |(state, row): &(Tensor, Tensor)| {
            let next = cond(
                &row.sum(..)?.gt(0.0)?,
                || {
                    let (last, all) = inner.call(Tensor::zeros((), DType::F32, Device::Cpu)?, row.clone())?;
                    state.add(&last)?.add(&all.sum(..)?)
                },
                || cond(&state.gt(0.0)?, || halved.call(state.add(row.amax(..)?)?), || state.neg()),
            )?;
            Ok((next.clone(), next))
        })
    };
    let (outer, plain) = (make(), make());
    let f =
        compile(move |x: &Tensor| Ok::<Tensor, Error>(outer.call(Tensor::new(0.5f32, Device::Cpu)?, x.sub(1.0)?)?.1));
    for length in [3usize, 5, 9, 6] {
        let x = numbers(length * 4, -2.0).sin()?.mul(3.0)?.reshape([length, 4])?;
        let got = f.call(&x)?.to_vec::<f32>()?;
        // Turn by turn, each choice decided by the host.
        let mut state = 0.5f32;
        let rows = x.sub(1.0)?.to_vec::<f32>()?;
        for (row, got) in rows.chunks(4).zip(&got) {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            if row.iter().sum::<f32>() > 0.0 {
                let (mut sum, mut products) = (0.0, 0.0);
                for x in row {
                    products += sum * x;
                    sum += x;
                }
                state += sum + products;
            } else if state > 0.0 {
                state += most;
                while state.abs() > 1.0 {
                    state *= 0.5;
                }
            } else {
                state = -state;
            }
            assert!((state - got).abs() <= 1e-4 * state.abs().max(1.0), "{state} and {got} of {length}");
        }
        assert_eq!(plain.call(Tensor::new(0.5f32, Device::Cpu)?, x.sub(1.0)?)?.1.to_vec::<f32>()?, got);
    }
    assert!(f.stats().compiles <= 2 && f.stats().breaks == 0, "{:?}", f.stats());
    Ok(())
}

/// What one program gives for any outcome has the sizes of its inputs.
#[test]
fn sizes_may_change() -> Result<()> {
    let f = compile(|x: &Tensor| cond(&x.amax(..)?.gt(4.0)?, || x.sort(0, true)?.0.cumsum(0), || x.sub(x.mean(..)?)));
    for (length, from) in [(4, 0.0), (6, 9.0), (31, 0.0), (2, 0.0), (17, -20.0)] {
        let x = numbers(length, from);
        let want = cond(&x.amax(..)?.gt(4.0)?, || x.sort(0, true)?.0.cumsum(0), || x.sub(x.mean(..)?))?;
        let (want, got) = (want.to_vec::<f32>()?, f.call(&x)?.to_vec::<f32>()?);
        assert!(want.iter().zip(&got).all(|(a, b)| (a - b).abs() <= 1e-4 * a.abs().max(1.0)), "{want:?} and {got:?}");
    }
    assert!(f.stats().compiles <= 2 && f.stats().breaks == 0, "{:?}", f.stats());
    Ok(())
}

/// A side that stops gradients, or reads, ends the graph where gradients go through it; sides that differ in shapes do.
#[test]
fn sides_that_are_no_graphs_end_the_graph() -> Result<()> {
    let w = Var::new(&numbers(2, 1.0)).requires_grad(true);
    let own = w.clone();
    let f = compile(move |x: &Tensor| {
        let w = own.get();
        let y = cond(&x.sum(..)?.gt(0.0)?, || x.mul(w.detach())?.add(&w), || w.mul(x))?;
        y.sum(..)?.backward()?;
        Ok::<Tensor, Error>(y)
    });
    f.call(&numbers(2, 1.0))?;
    assert_eq!(w.grad().expect("a gradient").to_vec::<f32>()?, [1.0, 1.0]);
    w.zero_grad();
    f.call(&numbers(2, -3.0))?;
    assert_eq!(w.grad().expect("a gradient").to_vec::<f32>()?, [-3.0, -2.75]);
    let reads = compile(|x: &Tensor| cond(&x.sum(..)?.gt(0.0)?, || x.mul(x.amax(..)?.item::<f32>()?), || x.neg()));
    assert_eq!(reads.call(&numbers(2, 1.0))?.to_vec::<f32>()?, [1.25, 1.5625]);
    assert_eq!(reads.call(&numbers(2, -3.0))?.to_vec::<f32>()?, [3.0, 2.75]);
    let unlike = |x: &Tensor| cond(&x.sum(..)?.gt(0.0)?, || x.sum(..), || x.neg());
    let chosen = compile(unlike);
    assert_eq!(chosen.call(&numbers(2, 1.0))?.to_vec::<f32>()?, [2.25]);
    assert_eq!(chosen.call(&numbers(2, -3.0))?.to_vec::<f32>()?, [3.0, 2.75]);
    let wrong = compile_with(unlike, whole());
    assert!(matches!(wrong.call(&numbers(2, 1.0)), Err(Error::Cond { .. })));
    // Without gradients it is an op all the same, also where it is in a loop.
    let stops = scan(|(sum, x): &(Tensor, Tensor)| {
        let sum = cond(&x.sum(..)?.gt(0.0)?, || sum.add(x.detach()), || sum.sub(x))?;
        Ok((sum.clone(), sum))
    });
    let f = compile_with(move |x: &Tensor| stops.call(Tensor::zeros((), DType::F32, Device::Cpu)?, x.clone()), whole());
    assert_eq!(f.call(&numbers(4, -0.25))?.0.to_vec::<f32>()?, [1.0]);
    Ok(())
}

/// Where a side does what no graph does, one side runs, as in eager code: hooks, variables, random numbers, disabled parts, gradients,
/// failures of the side that is not taken.
#[test]
fn sides_do_what_eager_code_may() -> Result<()> {
    type Side = fn(&Tensor, &Var) -> Result<Tensor>;
    let sides: [(&str, Side); 8] = [
        ("a hook", |x, _| x.with_hook(|gradient| Ok(Some(gradient.mul(3.0)?)))?.square()),
        ("a variable", |x, state| {
            state.add_assign(1.0)?;
            x.mul(state.get())
        }),
        ("random numbers", |x, _| x.dropout(0.0)),
        ("a disabled part", |x, _| kiln::disable(|x: &Tensor| x.exp()).call(x)),
        ("a gradient", |x, state| {
            let start = x.detach().requires_grad();
            let gradients = start.square()?.sum(..)?.gradients(&[&start])?;
            gradients.get(&start).expect("it depends on it").mul(x)?.add(state.get())
        }),
        ("no gradient", |x, _| x.mul(&kiln::no_grad(|| x.exp())?)),
        // The gradient of what is not taken is NaN: zero times that is, too.
        ("a pole", |x, _| x.abs()?.add(x.detach().abs()?)?.sqrt()),
        ("a failure", |x, _| if x.sum(..)?.gt(0.0)?.item::<bool>()? { x.exp() } else { x.reshape([7, 7, 7]) }),
    ];
    for (name, side) in sides {
        let state = [Var::new(&numbers(2, 0.0)), Var::new(&numbers(2, 0.0))];
        let f = |x: &Tensor, state: &Var| {
            let x = x.requires_grad();
            let y = cond(&x.sum(..)?.gt(0.0)?, || side(&x, state), || x.mul(2.0))?;
            let gradient = y.sum(..)?.gradients(&[&x])?.get(&x).expect("y depends on x").clone();
            Ok::<_, Error>((y.detach(), gradient))
        };
        let fast = compile(|x: &Tensor| f(x, &state[1]));
        for x in [numbers(2, 1.0), numbers(2, -3.0), numbers(2, -0.25), numbers(2, 0.0), numbers(2, 2.0)] {
            let (want, got) = (f(&x, &state[0])?, fast.call(&x)?);
            for (want, got) in [(want.0, got.0), (want.1, got.1), (state[0].get(), state[1].get())] {
                let (want, got) = (want.to_vec::<f32>()?, got.to_vec::<f32>()?);
                let same = |(a, b): (&f32, &f32)| a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-5 * a.abs().max(1.0);
                assert!(want.iter().zip(&got).all(same), "{name}: {want:?} and {got:?}");
            }
        }
        assert_eq!(fast.stats().compiles, 1, "{name}: {:?}", fast.stats());
    }
    Ok(())
}

/// Within a loop through which gradients go a side that stops some does so.
#[test]
fn sides_in_loops_stop_gradients() -> Result<()> {
    let sums = scan(|(sum, x): &(Tensor, Tensor)| {
        let sum = cond(&x.gt(0.0)?, || sum.add(x.mul(x.detach())?), || sum.add(x))?;
        Ok((sum.clone(), sum))
    });
    let f = move |x: &Tensor| {
        let x = x.requires_grad();
        let (last, _) = sums.call(Tensor::zeros((), DType::F32, Device::Cpu)?, x.clone())?;
        Ok::<_, Error>(last.gradients(&[&x])?.get(&x).expect("it depends on x").clone())
    };
    let fast = compile(f);
    for x in [numbers(4, -0.5), numbers(4, 1.0), numbers(3, -1.0)] {
        let want: Vec<f32> = x.to_vec::<f32>()?.into_iter().map(|x| if x > 0.0 { x } else { 1.0 }).collect();
        assert_eq!(fast.call(&x)?.to_vec::<f32>()?, want);
    }
    Ok(())
}

/// On a device whose launches return before they are done the predicate is read once, behind them.
#[test]
fn predicates_are_read_behind_the_queue() -> Result<()> {
    let device = Device::Cuda(120);
    let backend = Arc::new(QueuedBackend::new(kiln::backend(Device::Cpu), device, Duration::from_millis(1)));
    assert!(kiln::backend::install(backend.clone()));
    let f =
        compile(|x: &Tensor| cond(&x.mul(2.0)?.sum(..)?.gt(0.0)?, || x.cumsum(0), || x.flip(0)?.cumsum(0))?.mul(0.5));
    for from in [1.0, -9.0] {
        let x = numbers(4, from);
        let there = x.to_device(device)?;
        f.call(&there)?;
        let waits = backend.waits();
        let got = f.call(&there)?;
        assert_eq!(backend.waits(), waits + 1);
        assert_eq!(got.to_vec::<f32>()?, f.inner()(&x)?.to_vec::<f32>()?);
    }
    Ok(())
}

/// Where both sides run, an event says so and why.
#[test]
fn both_sides_are_said_to_run() -> Result<()> {
    let stops = |x: &Tensor| {
        let x = x.requires_grad();
        cond(&x.sum(..)?.gt(0.0)?, || x.mul(x.detach()), || x.neg())?.sum(..)?.gradients(&[&x]).map(|_| ())
    };
    let f = compile_with(stops, whole());
    let said = slow(|| f.call(&numbers(2, 1.0)))?;
    assert!(said.contains("both sides of cond are computed") && said.contains("cond.rs"), "{said}");
    let f = compile(|x: &Tensor| cond(&x.sum(..)?.gt(0.0)?, || x.cumsum(0), || x.neg()));
    assert_eq!(slow(|| f.call(&numbers(2, 1.0)).map(|_| ()))?, "");
    Ok(())
}

/// Two i4 share a byte: one that begins in its middle is copied for a side.
#[test]
fn sides_read_i4_at_odd_offsets() -> Result<()> {
    let text = "graph(%0: bool[], %1: i4[6]) {
      %2: i4[4] = slice %1 {start=[1], size=[4], step=[1]}
      %3: i32[4] = cond %0, %2 {result=0, then=graph(%0: i4[4]) {
        %1: i32[4] = cast %0
        %2: i32[4] = scan_sum %1 {axis=0}
        return %2
      }, otherwise=graph(%0: i4[4]) {
        %1: i32[4] = cast %0
        return %1
      }}
      return %3
    }";
    let graph = Graph::parse(text).expect("a graph");
    let inputs = |flag: bool| {
        let packed = Tensor::new([1i32, 2, 3, 4, 5, 6], Device::Cpu)?.to_dtype(DType::I4)?;
        Ok::<_, Error>([Tensor::new(flag, Device::Cpu)?, packed])
    };
    let compiled = kiln::compile_graph(&graph, &[])?;
    for (flag, wanted) in [(true, [2, 5, 9, 14]), (false, [2, 3, 4, 5])] {
        let given = [
            kiln::ir::HostTensor::from_f64(DType::Bool, &[], &[f64::from(flag)]).expect("a flag"),
            kiln::ir::HostTensor::from_f64(DType::I4, &[6], &[1., 2., 3., 4., 5., 6.]).expect("numbers"),
        ];
        let interpreted = kiln::ir::interpret::run(&graph, &given).expect("a run");
        let interpreted: Vec<i32> = (0..4).map(|at| interpreted[0].get_f64(at) as i32).collect();
        assert_eq!(interpreted, wanted);
        assert_eq!(compiled.run(&inputs(flag)?)?[0].to_vec::<i32>()?, wanted);
    }
    Ok(())
}

/// The gradient of a choice between linear sides depends on no argument: as in eager code, it is on no tape.
#[test]
fn a_gradient_that_depends_on_nothing_is_on_no_tape() -> Result<()> {
    let f = |x: &Tensor| {
        let y = cond(&x.sum(..)?.gt(0.0)?, || x.neg()?.sum(..), || x.mul(2.0)?.sum(..))?;
        Ok(y.gradients_on_tape(&[x])?.get(x).expect("y depends on x").clone())
    };
    let x = numbers(3, 0.5).requires_grad();
    let (eager, compiled) = (f(&x)?, compile(f).call(&x)?);
    assert_eq!(eager.to_vec::<f32>()?, compiled.to_vec::<f32>()?);
    assert_eq!((eager.has_tape(), compiled.has_tape()), (false, false));
    Ok(())
}
