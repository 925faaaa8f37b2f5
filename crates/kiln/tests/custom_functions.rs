//! Functions with gradients of their own inside of compiled functions: part of the graph where gradients stay inside, a graph break where
//! they leave.

use kiln::optim::{Optimizer, Sgd};
use kiln::{DType, Device, Forward, Function, Generator, Options, Result, Tensor, Var, compile, compile_with};

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

/// Both the sine and the square of the product of its operands, with gradients that no rule derives: too large, clamped, and of saved
/// operands, results and something else.
struct Odd;

impl Function for Odd {
    fn forward(&self, operands: &[Tensor]) -> Result<Forward> {
        let product = operands[0].mul(&operands[1])?;
        let (sine, square) = (product.sin()?, product.square()?);
        let saved = vec![operands[0].clone(), operands[1].clone(), sine.clone(), product];
        Ok(Forward { results: vec![sine, square], saved })
    }

    fn backward(&self, saved: &[Tensor], cotangents: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let [x, y, sine, product] = saved else { unreachable!() };
        let mut sum = x.mul(0.0)?;
        if let Some(cotangent) = &cotangents[0] {
            sum = sum.add(cotangent.mul(sine)?.mul(5.0)?)?;
        }
        if let Some(cotangent) = &cotangents[1] {
            sum = sum.add(cotangent.clamp(-0.5, 0.5)?.mul(product)?)?;
        }
        Ok(vec![Some(sum.mul(y)?), Some(sum.mul(x)?)])
    }
}

fn odd(x: &Tensor, y: &Tensor) -> Result<(Tensor, Tensor)> {
    let mut results = kiln::apply(Odd, &[x, y])?;
    let square = results.remove(1);
    Ok((results.remove(0), square))
}

struct World {
    weight: Var,
    bias: Var,
    sgd: Sgd,
}

fn world() -> Result<World> {
    let weight = Var::named("weight", &random(&[6, 6], 1).mul(0.3)?).requires_grad(true);
    let bias = Var::named("bias", &random(&[6], 2)).requires_grad(true);
    let sgd = Sgd::new([weight.clone(), bias.clone()], 0.01)?;
    Ok(World { weight, bias, sgd })
}

fn same_weights(a: &World, b: &World, what: &str) {
    assert_close(&a.weight.get(), &b.weight.get(), what);
    assert_close(&a.bias.get(), &b.bias.get(), what);
}

/// Which of the two results are used, in turn.
fn loss(x: &Tensor, world: &World, uses: usize) -> Result<Tensor> {
    let y = x.matmul(&world.weight.get())?;
    let (sine, square) = odd(&y, &world.bias.get().expand(y.sizes())?)?;
    match uses {
        0 => sine.sum(..),
        1 => square.mul(0.1)?.sum(..),
        _ => sine.add(square.mul(0.1)?)?.square()?.mean(..),
    }
}

/// A gradient on the tape is on one where it depends on something that is, whether the function is compiled or not.
#[test]
fn constant_gradients_are_on_no_tape() -> Result<()> {
    type Unary = fn(&Tensor) -> Result<Tensor>;
    let functions: [(&str, Unary); 8] = [
        ("linear", |x| x.mul(2.0)?.neg()),
        ("selected by a comparison", |x| x.gt(0.0)?.where_(x, x)),
        ("selected and scaled", |x| x.gt(0.0)?.where_(x.mul(3.0)?, x)?.sum(0)),
        ("relu", |x| x.relu()),
        ("square", |x| x.square()),
        ("a square in between", |x| x.gt(0.0)?.where_(x.square()?, x)),
        ("softmax", |x| x.softmax(0)),
        ("by indices", |x| x.index_select(0, &x.gt(0.0)?.to_dtype(DType::I64)?)),
    ];
    for (name, f) in functions {
        let fast = compile(f);
        let slope = |y: Tensor, x: &Tensor| -> Result<Tensor> {
            Ok(y.sum(..)?.gradients_on_tape(&[x])?.get(x).expect("y depends on x").clone())
        };
        for seed in 0..2 {
            let x = random(&[5], seed).requires_grad();
            let (eager, compiled) = (slope(f(&x)?, &x)?, slope(fast.call(&x)?, &x)?);
            assert_close(&compiled.detach(), &eager.detach(), name);
            assert_eq!(compiled.has_tape(), eager.has_tape(), "{name}");
        }
    }
    Ok(())
}

#[test]
fn a_training_step_is_one_graph() -> Result<()> {
    for uses in 0..3 {
        let step = move |x: &Tensor, world: &World| -> Result<Tensor> {
            let loss = loss(x, world, uses)?;
            loss.backward()?;
            world.sgd.step()?;
            world.sgd.zero_grad();
            Ok(loss)
        };
        let (own, other) = (std::sync::Arc::new(world()?), world()?);
        let kept = own.clone();
        let fast = compile_with(move |x: &Tensor| step(x, &own), Options { fullgraph: true, ..Options::default() });
        for turn in 0..12 {
            // Many sizes, too.
            let x = random(&[3 + turn as usize % 5, 6], turn);
            assert_close(&fast.call(&x)?.detach(), &step(&x, &other)?.detach(), &format!("{uses}: loss {turn}"));
            same_weights(&kept, &other, &format!("{uses}: weights after {turn}"));
        }
        let stats = fast.stats();
        assert_eq!((stats.breaks, stats.fallbacks), (0, 0), "{stats:?}");
        assert!(stats.programs <= 2, "{stats:?}");
    }
    Ok(())
}

#[test]
fn gradients_of_gradients_inside() -> Result<()> {
    let f = |x: &Tensor| {
        let slope = kiln::grad(|x: &Tensor| {
            let (sine, square) = odd(x, &x.mul(0.5)?)?;
            sine.add(square)?.sum(..)
        });
        kiln::grad(move |x: &Tensor| slope(x)?.mul(x)?.sum(..))(x)
    };
    let fast = compile_with(f, Options { fullgraph: true, ..Options::default() });
    for turn in 0..3 {
        let x = random(&[5], turn);
        assert_close(&fast.call(&x)?, &f(&x)?, "slope of a slope");
    }
    Ok(())
}

#[test]
fn gradients_outside_end_the_graph_and_are_right() -> Result<()> {
    let f = |(x, y): &(Tensor, Tensor)| {
        let (sine, square) = odd(&x.mul(2.0)?, y)?;
        sine.mul(&square)?.add(x)
    };
    let fast = compile(f);
    for turn in 0..6 {
        let (x, y) = (random(&[4, 3], turn).requires_grad(), random(&[4, 3], 50 + turn));
        let pair = (x.clone(), y);
        let slope = |z: &Tensor| z.square()?.sum(..)?.gradients(&[&x]).map(|found| found.get(&x).unwrap().clone());
        let (got, expected) = (fast.call(&pair)?, f(&pair)?);
        assert_close(&got.detach(), &expected.detach(), "result");
        assert_close(&slope(&got)?, &slope(&expected)?, "slope outside");
    }
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.breaks), (1, 1), "{stats:?}");
    // Nobody wants them where nothing is recorded: one graph, in a branch of its own.
    let (weight, x) = (Var::new(&random(&[4], 3)).requires_grad(true), random(&[4], 4));
    let own = weight.clone();
    let fast = compile(move |x: &Tensor| Ok(odd(x, &own.get())?.0));
    for _ in 0..2 {
        let y = kiln::no_grad(|| fast.call(&x))?;
        assert_close(&y, &odd(&x, &weight.get())?.0.detach(), "without gradients");
    }
    assert_eq!(fast.stats().breaks, 0, "{:?}", fast.stats());
    let y = fast.call(&x)?;
    y.sum(..)?.backward()?;
    let got = weight.grad().unwrap();
    weight.zero_grad();
    odd(&x, &weight.get())?.0.sum(..)?.backward()?;
    assert_close(&got, &weight.grad().unwrap(), "of the variable");
    Ok(())
}

#[test]
fn both_in_one_function_with_breaks_and_branches() -> Result<()> {
    // One line calls the function, first for gradients inside, then for what is returned on a tape.
    let step = |(x, y): &(Tensor, Tensor), world: &World| -> Result<Tensor> {
        let loss = loss(x, world, 2)?;
        loss.backward()?;
        world.sgd.step()?;
        world.sgd.zero_grad();
        let last = match loss.gt(0.4)?.item::<bool>()? {
            true => odd(y, &y.sin()?)?.0,
            false => y.mul(3.0)?,
        };
        match x.sum(..)?.gt(0.0)?.item::<bool>()? {
            true => odd(&last, y)?.1.add(1.0),
            false => last.exp(),
        }
    };
    let (own, other) = (std::sync::Arc::new(world()?), world()?);
    let kept = own.clone();
    let fast = compile(move |pair: &(Tensor, Tensor)| step(pair, &own));
    for turn in 0..24 {
        let y = random(&[4, 2], 100 + turn).mul(0.3)?.requires_grad();
        let pair = (random(&[3, 6], turn).mul(0.2 + turn as f64 % 4.0 * 0.5)?, y.clone());
        let slope = |z: &Tensor| z.sum(..)?.gradients(&[&y]).map(|found| found.get(&y).unwrap().clone());
        let (got, expected) = (fast.call(&pair)?, step(&pair, &other)?);
        assert_close(&got.detach(), &expected.detach(), &format!("turn {turn}"));
        assert_close(&slope(&got)?, &slope(&expected)?, &format!("slope at turn {turn}"));
        same_weights(&kept, &other, &format!("weights after {turn}"));
    }
    assert!(fast.stats().hits > 10, "{:?}", fast.stats());
    Ok(())
}

#[test]
fn in_the_body_of_a_loop_it_runs_turn_by_turn() -> Result<()> {
    let weight = Var::new(&random(&[4], 7)).requires_grad(true);
    let run = |x: &Tensor, weight: &Var| -> Result<()> {
        let held = weight.clone();
        let all = kiln::scan(move |(sum, x): &(Tensor, Tensor)| {
            let sum = sum.add(odd(x, &held.get())?.0)?;
            Ok((sum.clone(), sum))
        });
        all.call(Tensor::zeros([4], DType::F32, Device::Cpu)?, x.clone())?.1.sum(..)?.backward()
    };
    let (own, x) = (weight.clone(), random(&[5, 4], 8));
    let fast = compile(move |x: &Tensor| run(x, &own));
    fast.call(&x)?;
    let got = weight.grad().unwrap();
    weight.zero_grad();
    run(&x, &weight)?;
    assert_close(&got, &weight.grad().unwrap(), "through a scan");
    Ok(())
}

#[test]
fn what_is_read_before_it_is_refused() -> Result<()> {
    // The read of an argument ends no segment: the one that has the function in it begins before.
    let f = |x: &Tensor| {
        let y = odd(x, &x.mul(2.0)?)?.0;
        match x.to_vec::<f32>()?[0] > 0.0 {
            true => y.exp(),
            false => y.neg(),
        }
    };
    let fast = compile(f);
    for turn in 0..8 {
        let x = random(&[3], turn).requires_grad();
        let slope = |z: &Tensor| z.sum(..)?.gradients(&[&x]).map(|found| found.get(&x).unwrap().clone());
        let (got, expected) = (fast.call(&x)?, f(&x)?);
        assert_close(&slope(&got)?, &slope(&expected)?, &format!("turn {turn}"));
    }
    Ok(())
}

#[test]
fn gradients_inside_of_a_call_without_gradients() -> Result<()> {
    let f = |x: &Tensor| {
        kiln::grad(|x: &Tensor| x.with_hook(|slope| slope.mul(7.0).map(Some))?.square()?.sum(..))(x)?
            .add(kiln::grad(|x: &Tensor| odd(x, x)?.0.sum(..))(x)?)
    };
    let (fast, x) = (compile(f), random(&[4], 1));
    for _ in 0..2 {
        assert_close(&kiln::no_grad(|| fast.call(&x))?, &kiln::no_grad(|| f(&x))?, "in no_grad");
        assert_close(&fast.call(&x)?, &f(&x)?, "outside of it");
    }
    Ok(())
}

#[test]
fn a_slope_in_no_grad_is_on_no_tape() -> Result<()> {
    let outer = Var::new(&random(&[4], 11)).requires_grad(true);
    let slope = |x: &Tensor| kiln::grad(|x: &Tensor| odd(x, x)?.0.sum(..))(x);
    let with_value = |x: &Tensor| kiln::value_and_grad(|x: &Tensor| odd(x, x)?.0.sum(..))(x);
    let (fast, both) = (compile(slope), compile(with_value));
    for turn in 0..4 {
        // Gradients of the slope are wanted outside: the function is a part of its own, which puts what it gives on tapes.
        let x = random(&[4], turn).add(outer.get())?;
        assert!(fast.call(&x)?.has_tape() && slope(&x)?.has_tape());
        assert!(both.call(&x)?.0.has_tape() && with_value(&x)?.0.has_tape());
        let x = random(&[4], 20 + turn).requires_grad();
        let (got, expected) = kiln::no_grad(|| Ok::<_, kiln::Error>((fast.call(&x)?, slope(&x)?)))?;
        assert_close(&got, &expected, "the slope");
        assert_eq!((got.has_tape(), expected.has_tape()), (false, false), "turn {turn}");
        let (got, expected) = kiln::no_grad(|| Ok::<_, kiln::Error>((both.call(&x)?, with_value(&x)?)))?;
        assert_close(&got.0, &expected.0, "the value");
        assert_eq!((got.0.has_tape(), got.1.has_tape()), (expected.0.has_tape(), expected.1.has_tape()));
    }
    Ok(())
}

#[test]
fn one_graph_without_gradients_whatever_was_called_before() -> Result<()> {
    for fullgraph in [false, true] {
        let weight = Var::new(&random(&[4], 3)).requires_grad(true);
        let own = weight.clone();
        let f = move |x: &Tensor| Ok(odd(&x.mul(2.0)?, &own.get())?.0);
        let fast = compile_with(f.clone(), Options { fullgraph, ..Options::default() });
        let x = random(&[4], 4);
        // Gradients of the result are wanted outside.
        match (fast.call(&x), fullgraph) {
            (Ok(y), false) => assert!(y.has_tape()),
            (got, fullgraph) => assert!(got.is_err() && fullgraph, "one graph cannot be"),
        }
        let breaks = fast.stats().breaks;
        for turn in 0..3 {
            let x = random(&[4], turn);
            let y = kiln::no_grad(|| fast.call(&x))?;
            assert_close(&y, &kiln::no_grad(|| f(&x))?, "without gradients");
            assert!(!y.has_tape());
        }
        assert_eq!(fast.stats().breaks, breaks, "{:?}", fast.stats());
        if !fullgraph {
            for turn in 0..3 {
                let x = random(&[4], turn);
                let slope = |y: Tensor| -> Result<Tensor> {
                    weight.zero_grad();
                    y.sum(..)?.backward()?;
                    Ok(weight.grad().unwrap())
                };
                assert_close(&slope(fast.call(&x)?)?, &slope(f(&x)?)?, "gradients again");
            }
        }
    }
    Ok(())
}

/// Scales by what it reads, forward or backward.
struct Reading {
    is_forward: bool,
}

impl Function for Reading {
    fn forward(&self, operands: &[Tensor]) -> Result<Forward> {
        let scale = if self.is_forward { operands[0].to_vec::<f32>()?[0] } else { 2.0 };
        let scaled = operands[0].mul(scale)?;
        Ok(Forward { results: vec![scaled], saved: vec![operands[0].clone()] })
    }

    fn backward(&self, saved: &[Tensor], cotangents: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let most = if self.is_forward { 1.0 } else { saved[0].abs()?.max(..)?.item::<f32>()? };
        Ok(vec![cotangents[0].as_ref().map(|cotangent| cotangent.mul(most)).transpose()?])
    }
}

#[test]
fn functions_that_read_elements_are_parts_of_their_own() -> Result<()> {
    for is_forward in [true, false] {
        let slope = move |x: &Tensor| {
            let first = kiln::grad(|x: &Tensor| odd(x, &x.exp()?)?.0.sum(..))(x)?;
            let own = kiln::grad(|x: &Tensor| kiln::apply(Reading { is_forward }, &[x])?[0].square()?.sum(..))(x)?;
            first.add(own)
        };
        // What ran before it was found out stays as it was.
        let after_a_break = move |x: &Tensor| match x.sum(..)?.gt(1e9)?.item::<bool>()? {
            true => x.neg(),
            false => slope(&x.mul(2.0)?),
        };
        let (fast, broken) = (compile(slope), compile(after_a_break));
        for turn in 0..20 {
            let x = random(&[5], turn);
            assert_close(&fast.call(&x)?, &slope(&x)?, &format!("turn {turn}"));
            assert_close(&broken.call(&x)?, &after_a_break(&x)?, &format!("after a break, turn {turn}"));
            assert_close(&kiln::no_grad(|| fast.call(&x))?, &slope(&x)?, &format!("turn {turn} in no_grad"));
        }
        for stats in [fast.stats(), broken.stats()] {
            assert!(stats.compiles <= 4 && stats.fallbacks == 0, "{is_forward}: {stats:?}");
        }
    }
    Ok(())
}

/// Whether they are parts outside depends on the arguments that are on tapes: calls with others stay one graph.
#[test]
fn what_leaves_one_kind_of_call_is_one_graph_in_others() -> Result<()> {
    let weight = Var::new(&random(&[4], 3)).requires_grad(true);
    let own = weight.clone();
    // The gradient of the weight is computed inside; that of `y`, if anybody wants one, leaves.
    let step = move |(x, y): &(Tensor, Tensor)| -> Result<(Tensor, Tensor)> {
        odd(x, &own.get())?.0.sum(..)?.backward()?;
        Ok((odd(y, y)?.0, own.grad().expect("a gradient").mul(1.0)?))
    };
    let fast = compile_with(step.clone(), Options { fullgraph: true, ..Options::default() });
    let (x, y) = (random(&[4], 4), random(&[4], 5));
    let same = |y: &Tensor, what: &str| -> Result<()> {
        let arguments = (x.clone(), y.clone());
        weight.zero_grad();
        let got = fast.call(&arguments)?;
        weight.zero_grad();
        let expected = step(&arguments)?;
        assert_close(&got.0, &expected.0, what);
        assert_close(&got.1, &expected.1, what);
        Ok(())
    };
    same(&y, "before")?;
    let programs = fast.stats().programs;
    weight.zero_grad();
    let left = fast.call(&(x.clone(), y.requires_grad()));
    assert!(matches!(left, Err(kiln::Error::GraphBreak { .. })), "one graph cannot be");
    same(&y, "after")?;
    same(&random(&[4], 6), "after, once more")?;
    assert_eq!((fast.stats().programs, fast.stats().breaks), (programs, 0), "{:?}", fast.stats());
    Ok(())
}

#[test]
fn an_operand_that_no_grad_gives_back_is_on_no_tape() -> Result<()> {
    let outer = Var::new(&random(&[4], 11)).requires_grad(true);
    let f = |x: &Tensor| kiln::no_grad(|| x.with_hook(|slope| slope.neg().map(Some)));
    let fast = compile(f);
    for turn in 0..3 {
        let taped = random(&[4], turn).add(outer.get())?;
        for x in [taped.detach(), taped.clone(), random(&[4], turn).requires_grad()] {
            let (got, expected) = (fast.call(&x)?, f(&x)?);
            assert_close(&got, &expected, "the elements");
            assert_eq!((got.has_tape(), expected.has_tape()), (false, false), "turn {turn}");
        }
    }
    Ok(())
}

#[test]
fn gradients_of_gradients_inside_of_a_call_without_gradients() -> Result<()> {
    // The square has the slope −2x by the hook, and that, through the hook again, the slope 2: so −2x + 2x is left of the product with x.
    let slope = |x: &Tensor| {
        kiln::grad(|x: &Tensor| x.with_hook(|slope| slope.neg().map(Some))?.square()?.sum(..))(x)?.mul(x)?.sum(..)
    };
    let curvature = |x: &Tensor| kiln::grad(slope)(x);
    let (fast, x) = (compile(curvature), random(&[4], 1));
    for _ in 0..2 {
        let zeros = x.zeros_like()?;
        assert_close(&curvature(&x)?, &zeros, "eager");
        assert_close(&kiln::no_grad(|| curvature(&x))?, &zeros, "eager, in no_grad");
        assert_close(&kiln::no_grad(|| fast.call(&x))?, &zeros, "in no_grad");
        assert_close(&fast.call(&x)?, &zeros, "compiled");
    }
    Ok(())
}

#[test]
fn a_cotangent_of_another_shape_is_refused_and_of_another_dtype_is_cast() -> Result<()> {
    let x = random(&[4], 1).requires_grad();
    let slope = |hook: fn(&Tensor) -> Result<Option<Tensor>>| {
        let y = x.with_hook(hook)?.square()?.sum(..)?;
        Ok::<Tensor, kiln::Error>(y.gradients(&[&x])?.get(&x).expect("a slope").clone())
    };
    let refused = slope(|slope| slope.narrow(0, 0, 3).map(Some));
    let Err(kiln::Error::ShapeMismatch { op, lhs, rhs, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!((op, lhs, rhs), ("with_hook", vec![4], vec![3]));
    let cast = slope(|slope| slope.to_dtype(DType::F64).map(Some))?;
    assert_close(&cast, &x.detach().mul(2.0)?, "the slope");
    Ok(())
}
