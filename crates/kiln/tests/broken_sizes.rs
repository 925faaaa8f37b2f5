//! Functions with graph breaks for many sizes: as many programs as functions without.

use kiln::{
    DType, Device, Dynamic, Error, Generator, Options, Result, Setting, Tensor, Var, compile, compile_with, disable,
    no_grad,
};

fn random(shape: &[usize], seed: u64) -> Tensor {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu).unwrap()
}

fn assert_close(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    for (a, b) in got.to_vec::<f32>().unwrap().iter().zip(expected.to_vec::<f32>().unwrap()) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{what}: {a} and {b}");
    }
}

/// Calls with many sizes, both signs of each; gives the function's counters.
fn many_sizes(options: Options, f: impl Fn(&Tensor) -> Result<Tensor>) -> kiln::compile::capture::Stats {
    let fast = compile_with(&f, options);
    for round in 0..3 {
        for size in 2..60 {
            for sign in [1.0, -1.0] {
                let x = random(&[size, 4], size as u64).abs().unwrap().mul(sign).unwrap();
                let what = format!("{size} rows, sign {sign}, round {round}");
                assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &what);
            }
        }
    }
    fast.stats()
}

#[test]
fn a_branch_on_data_has_programs_for_all_sizes() {
    let f = |x: &Tensor| -> Result<Tensor> {
        let y = x.mul(2.0)?.add(1.0)?;
        let total = y.sum(..)?;
        if total.gt(0.0)?.item::<bool>()? { y.sqrt()?.add(&total) } else { y.sub(x.mean(0)?)?.neg() }
    };
    let stats = many_sizes(Options::default(), f);
    // One for the first size, one for all others; a branch more for each.
    assert_eq!((stats.compiles, stats.branches, stats.fallbacks), (2, 2, 0), "{stats:?}");
    let declared = Options { dynamic: Dynamic::range("rows", 2..=100).at(0, 0).into(), ..Options::default() };
    let stats = many_sizes(declared, f);
    assert_eq!((stats.compiles, stats.branches, stats.fallbacks), (1, 1, 0), "{stats:?}");
    let always = Options { dynamic: Dynamic::Always, ..Options::default() };
    let stats = many_sizes(always, f);
    assert_eq!((stats.compiles, stats.branches, stats.fallbacks), (1, 1, 0), "{stats:?}");
}

#[test]
fn sizes_decide_after_a_break() {
    let f = |x: &Tensor| -> Result<Tensor> {
        let positive = x.sum(..)?.gt(0.0)?.item::<bool>()?;
        if positive && x.size(0)?.is_below(30) { x.exp() } else { x.mul(x.size(0)?.tensor_of(x)?) }
    };
    trait Count {
        fn tensor_of(self, like: &Tensor) -> Result<Tensor>;
    }
    impl Count for kiln::Dim {
        fn tensor_of(self, like: &Tensor) -> Result<Tensor> {
            Tensor::ones((self, 1), like.dtype(), like.device())?.sum(..)
        }
    }
    let stats = many_sizes(Options { dynamic: Dynamic::Always, ..Options::default() }, f);
    // Below 30 rows and above, each by sign: what decides after the break is checked there or is a program of its own.
    assert!(stats.compiles + stats.branches <= 4 && stats.fallbacks == 0, "{stats:?}");
}

#[test]
fn a_branch_that_has_to_know_sizes_is_for_those() {
    let f = |x: &Tensor| -> Result<Tensor> {
        // Only the second way wants an even number of rows.
        if x.sum(..)?.gt(0.0)?.item::<bool>()? || x.size(0)? % 2 != 0 {
            return x.mul(3.0);
        }
        let half = x.size(0)? / 2;
        x.reshape((half, 2, 4))?.sum(1)
    };
    let stats = many_sizes(Options { dynamic: Dynamic::Always, ..Options::default() }, f);
    assert!(stats.compiles + stats.branches <= 3 && stats.fallbacks == 0, "{stats:?}");
    // A list of all elements has as many as there are: a program each, and beyond the limit none.
    let lists = |x: &Tensor| -> Result<Tensor> {
        let all = x.sum(1)?.to_vec::<f32>()?;
        if all.iter().all(|v| *v > 0.0) { x.add(all.len() as f64) } else { x.neg() }
    };
    let stats = many_sizes(Options { dynamic: Dynamic::Always, recompile_limit: 4, ..Options::default() }, lists);
    assert!(stats.limited > 0, "{stats:?}");
}

#[test]
fn loops_and_variables_and_settings() {
    let scale = Setting::new(1);
    let (one, two) = (Var::new(&random(&[4], 1)), Var::new(&random(&[4], 1)));
    fn f(x: &Tensor, scale: &Setting, state: &Var) -> Result<Tensor> {
        let mut x = x.mul(scale.get() as f64)?;
        while x.abs()?.amax(..)?.gt(0.5)?.item::<bool>()? {
            x = x.mul(0.5)?;
            state.add_assign(&x.mean(0)?)?;
        }
        x.add(state.get())
    }
    let (inner, setting) = (one.clone(), scale.clone());
    let fast = compile(move |x: &Tensor| f(x, &setting, &inner));
    for turn in 0..120u64 {
        scale.set(1 + turn % 2);
        let x = random(&[2 + turn as usize % 40, 4], turn).tanh().unwrap();
        assert_close(&fast.call(&x).unwrap(), &f(&x, &scale, &two).unwrap(), &format!("turn {turn}"));
        assert_close(&one.get(), &two.get(), "the state");
    }
    let stats = fast.stats();
    assert!(stats.compiles == 2 && stats.fallbacks == 0, "{stats:?}");
}

#[test]
fn gradients_across_breaks() {
    let weight = Var::new(&random(&[4, 4], 5)).requires_grad(true);
    let own = Var::new(&weight.get().detach()).requires_grad(true);
    fn f(x: &Tensor, weight: &Var) -> Result<Tensor> {
        let h = x.matmul(&weight.get())?.tanh()?;
        if h.sum(..)?.gt(0.0)?.item::<bool>()? { h.square()?.sum(..) } else { h.mul(x)?.sum(..) }
    }
    let inner = weight.clone();
    let fast = compile(move |x: &Tensor| f(x, &inner));
    for turn in 0..80 {
        let x = random(&[2 + turn % 20, 4], turn as u64);
        for (loss, var) in [(fast.call(&x).unwrap(), &weight), (f(&x, &own).unwrap(), &own)] {
            var.zero_grad();
            loss.backward().unwrap();
        }
        assert_close(&weight.grad().unwrap(), &own.grad().unwrap(), &format!("turn {turn}"));
    }
    let stats = fast.stats();
    assert!(stats.compiles == 2 && stats.fallbacks == 0, "{stats:?}");
}

#[test]
fn training_steps_with_a_break() {
    let fresh = || Var::new(&random(&[4, 3], 5)).requires_grad(true);
    let (one, two) = (fresh(), fresh());
    fn step(x: &Tensor, weight: &Var) -> Result<Tensor> {
        weight.zero_grad();
        let loss = x.matmul(&weight.get())?.square()?.mean(..)?;
        loss.backward()?;
        let grad = weight.grad().ok_or(Error::Escaped { at: Default::default() })?;
        // A step that is not finite is left out.
        if grad.sum(..)?.is_finite()?.item::<bool>()? {
            weight.sub_assign(&grad.mul(0.1)?)?;
        }
        Ok(loss.detach())
    }
    let inner = one.clone();
    let fast = compile(move |x: &Tensor| step(x, &inner));
    for turn in 0..60 {
        let x = random(&[2 + turn % 20, 4], turn as u64);
        assert_close(&fast.call(&x).unwrap(), &step(&x, &two).unwrap(), &format!("turn {turn}"));
        assert_close(&one.get().detach(), &two.get().detach(), &format!("the weight at turn {turn}"));
    }
    let stats = fast.stats();
    assert!(stats.compiles == 2 && stats.fallbacks == 0, "{stats:?}");
}

#[test]
fn disabled_parts_and_sizes() {
    let part = disable(|x: &Tensor| x.add(1.0));
    let f = |x: &Tensor| part.call(&x.mul(2.0)?)?.mul(x);
    let fast = compile(&f);
    for turn in 0..60 {
        let x = random(&[2 + turn % 20, 4], turn as u64);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("turn {turn}"));
    }
}

/// What a part gives is taken to be of any size, until its gradient is added to that of a variable. The function hides that error, and
/// what it does next may not run.
#[test]
fn an_error_that_only_symbols_make_is_hidden_from_nobody() -> Result<()> {
    let scene = || -> Result<_> {
        let weight = Var::new(&Tensor::new([1f32, -2.0, 3.0], Device::Cpu)?).requires_grad(true);
        let own = weight.clone();
        let part = disable(move |_: &Tensor| {
            let before = own.get();
            own.set(&before.detach().add(1.0)?)?;
            Ok(before)
        });
        let after = disable(|y: &Tensor| Ok(y.clone()));
        let inner = weight.clone();
        let f = move |x: &Tensor| -> Result<Tensor> {
            let y = part.call(x)?;
            let scaled = y.mul(y.sum(..)?.item::<f32>()?)?;
            let _ = scaled.sum(..)?.backward();
            after.call(x)?.add(inner.grad().map_or(Ok(x.sum(..)?), |gradient| gradient.sum(..))?)
        };
        Ok((f, weight))
    };
    let ((f, eager), (g, weight)) = (scene()?, scene()?);
    let fast = compile(g);
    for (call, rows) in [1, 2, 2, 2, 5, 5, 1, 7].into_iter().enumerate() {
        let x = random(&[rows, 3], call as u64);
        assert_close(&fast.call(&x)?, &f(&x)?, &format!("call {call}"));
        let gradients = [&eager, &weight].map(|var| var.grad().map(|gradient| gradient.to_vec::<f32>()));
        let [Some(expected), Some(got)] = gradients else { panic!("no gradient at call {call}") };
        assert_eq!(got?, expected?, "call {call}");
        assert_eq!(weight.get().to_vec::<f32>()?, eager.get().to_vec::<f32>()?, "call {call}");
    }
    Ok(())
}

/// Sizes of data and of what a part gives, one of which has to be that of a variable: what was recorded before that is known has to be the same
/// afterwards.
#[test]
fn sizes_that_turn_out_to_be_known_after_sizes_of_data() -> Result<()> {
    let state = Var::new(&Tensor::zeros(3, DType::F32, Device::Cpu)?).requires_grad(true);
    let own = state.clone();
    let part = disable(|rows: &Tensor| Ok(rows.clone()));
    let f = move |x: &Tensor| -> Result<Vec<Tensor>> {
        let chosen = x.index_select(0, &x.sum(-1)?.gt(0.0)?.nonzero()?.squeeze(1)?)?.sum(0)?;
        own.set(&part.call(&chosen)?)?;
        Ok(Vec::new())
    };
    let fast = compile(&f);
    // None is chosen at first, and of the gradient of nothing less is kept than of that of something.
    for (call, rows) in [1, 2, 5, 5, 1, 3].into_iter().enumerate() {
        let sign = if call % 3 == 0 { -1.0 } else { 1.0 };
        let x = random(&[rows, 3], call as u64).abs()?.mul(sign)?.requires_grad();
        f(&x)?;
        let expected = state.get();
        fast.call(&x)?;
        assert_close(&state.get(), &expected, &format!("variable after call {call}"));
    }
    Ok(())
}

/// A gradient that is added up from parts whose sizes are symbols here and numbers there: that error is one of the symbols, too.
#[test]
fn gradients_of_parts_with_sizes_of_data() -> Result<()> {
    for (rows, seed) in [(1, 0), (2, 0), (3, 0), (2, 1), (3, 1)] {
        let outer = Var::new(&Tensor::zeros(3, DType::F32, Device::Cpu)?).requires_grad(true);
        let one = disable(|x: &Tensor| Ok(x.clone()));
        let two = disable(|(x, y): &(Tensor, Tensor)| Ok((x.sub(y)?, y.clone())));
        let f = move |x: &Tensor| -> Result<Vec<Tensor>> {
            let chosen = x.sum(-1)?.gt(0.0)?.nonzero()?.squeeze(1)?;
            let rows = one.call(&x.add(1.0)?)?.index_select(0, &chosen)?.sum(0)?;
            let (y, _) = two.call(&(rows, x.clone()))?;
            // The error is hidden.
            let _ = y.sum(..)?.backward();
            Ok(Vec::new())
        };
        let fast = compile(&f);
        let x = random(&[rows, 3], seed).abs()?;
        let gradient = |call: &dyn Fn(&Tensor) -> Result<Vec<Tensor>>| -> Result<Option<Vec<f32>>> {
            outer.zero_grad();
            call(&x.add(outer.get())?)?;
            outer.grad().map(|gradient| gradient.to_vec()).transpose()
        };
        let expected = gradient(&f)?;
        assert!(expected.is_some());
        for _ in 0..3 {
            assert_eq!(gradient(&|x| fast.call(x))?, expected, "{rows} rows, seed {seed}");
        }
    }
    Ok(())
}

/// A part that fails has done something before, which is not done again because sizes had to be known.
#[test]
fn a_part_that_fails_runs_once() -> Result<()> {
    let state = Var::new(&Tensor::zeros(3, DType::F32, Device::Cpu)?);
    let (own, counted) = (state.clone(), Var::new(&Tensor::zeros(3, DType::F32, Device::Cpu)?));
    let (count, first) = (counted.clone(), disable(|x: &Tensor| Ok(x.clone())));
    let fails = disable(move |x: &Tensor| {
        count.set(&count.get().add(1.0)?)?;
        x.reshape([7])
    });
    let fast = compile(move |x: &Tensor| -> Result<Tensor> {
        let positive = x.masked_select(&x.gt(0.0)?)?.sum(..)?;
        // Any size, until a variable gets it.
        own.set(&first.call(x)?.sum(0)?.add(positive)?)?;
        fails.call(x)
    });
    for call in 1..4 {
        assert!(fast.call(&random(&[2, 3], call)).is_err());
        assert_eq!(counted.get().to_vec::<f32>()?, [call as f32; 3], "call {call}");
    }
    Ok(())
}

/// After a part symbols are given up, and only then a setting is asked for: a call that comes to a new answer along the program gives them up at
/// the same place.
#[test]
fn a_new_answer_after_symbols_are_given_up() -> Result<()> {
    let outer = Var::new(&Tensor::zeros(3, DType::F32, Device::Cpu)?).requires_grad(true);
    let scale = Setting::new(1);
    let (own, part) = (scale.clone(), disable(|x: &Tensor| Ok(x.clone())));
    let f = move |(x, y): &(Tensor, Tensor)| {
        let chosen = x.index_select(0, &y.sum(-1)?.gt(0.0)?.nonzero()?.squeeze(1)?)?.sum(0)?;
        let product = x.mul(part.call(&y.add(1.0)?)?)?;
        if own.get() == 0 { product.add(chosen) } else { product.sub(chosen) }
    };
    let fast = compile(&f);
    // Of the gradient of nothing less is kept than of that of something.
    for (call, (sign, answer)) in [(1.0, 1), (-1.0, 0), (1.0, 0), (-1.0, 1), (1.0, 2)].into_iter().enumerate() {
        scale.set(answer);
        let x = random(&[2, 3], call as u64).add(outer.get())?;
        let arguments = (x, random(&[2, 3], 9 + call as u64).abs()?.mul(sign)?);
        assert_close(&fast.call(&arguments)?, &f(&arguments)?, &format!("call {call}"));
    }
    Ok(())
}

/// A size of what a part gives has to be that of an argument, which the program knows: a call that comes to a new answer along it finds that out
/// again and goes on with symbols, as the program does.
#[test]
fn a_new_answer_after_an_equation() -> Result<()> {
    let outer = Var::new(&Tensor::zeros(3, DType::F32, Device::Cpu)?).requires_grad(true);
    let part = disable(|x: &Tensor| Ok(x.clone()));
    let f = move |(x, y): &(Tensor, Tensor)| {
        let own = part.call(x)?;
        let chosen = own.index_select(0, &own.sum(-1)?.gt(0.0)?.nonzero()?.squeeze(1)?)?.sum(0)?;
        let larger = y.mul(2.0)?.maximum(&chosen.mul(2.0)?)?;
        if y.sum(..)?.item::<f32>()? > 0.0 { larger.neg() } else { Ok(larger) }
    };
    let fast = compile(&f);
    for (call, (rows, x, y)) in [(1, 1, 1), (2, 1, 1), (2, -1, -1), (3, 1, -1), (3, -1, 1)].into_iter().enumerate() {
        let of = |seed: u64, sign: i32| random(&[rows, 3], seed).abs()?.mul(f64::from(sign));
        let arguments = (of(call as u64, x)?.add(outer.get())?, of(9 + call as u64, y)?);
        assert_close(&fast.call(&arguments)?, &f(&arguments)?, &format!("call {call}"));
    }
    Ok(())
}

/// Sizes of data are symbols until one has to be a number; what ran until then, a variable's new value among it, is not done again.
#[test]
fn a_changed_variable_where_symbols_are_given_up() -> Result<()> {
    let weight = Var::new(&random(&[4], 1)).requires_grad(true);
    let own = weight.clone();
    let part = disable(|x: &Tensor| Ok(x.clone()));
    let f = move |(x, y): &(Tensor, Tensor)| {
        let some = y.index_select(0, &y.sum(-1)?.gt(0.0)?.nonzero()?.squeeze(1)?)?.sum(0)?;
        let z = part.call(y)?;
        own.add_assign(&some)?;
        let more = z.add(z.size(0)?)?;
        let now = own.get();
        let again = part.call(&more)?;
        y.gt(0.0)?.where_(x, &z)?.add(again)?.add(now)
    };
    let fast = compile(&f);
    for turn in 0..6 {
        let arguments = (random(&[2 + turn % 2, 4], 10 + turn as u64), random(&[2 + turn % 2, 4], 20 + turn as u64));
        let before = weight.get();
        let got = fast.call(&arguments)?;
        let after = weight.get();
        weight.set(&before)?;
        assert_close(&got, &f(&arguments)?, &format!("turn {turn}"));
        assert_close(&after, &weight.get(), &format!("the weight of turn {turn}"));
    }
    Ok(())
}

/// A size of what a part gives has to be a number, and at a later call that comes to a new answer it is that of an argument, too.
#[test]
fn a_size_that_is_a_number_and_by_chance_that_of_an_argument() -> Result<()> {
    let outer = Var::new(&Tensor::zeros(3, DType::F32, Device::Cpu)?).requires_grad(true);
    let weight = Var::new(&Tensor::ones(3, DType::F32, Device::Cpu)?).requires_grad(true);
    let part = disable(|x: &Tensor| Ok(vec![x.add(1.0)?, x.clone()]));
    let own = weight.clone();
    let f = move |(x, y): &(Tensor, Tensor)| {
        let weight = own.get();
        let sum = weight.add(y)?;
        no_grad(|| part.call(&weight)?[0].mul(&weight))?;
        let chosen = y.index_select(0, &x.sum(-1)?.gt(0.0)?.nonzero()?.squeeze(1)?)?.sum(0)?;
        // Whether there is a gradient is what the second call answers otherwise.
        weight.sum(..)?.backward()?;
        sum.add(chosen)
    };
    let fast = compile_with(&f, Options { dynamic: Dynamic::Always, ..Options::default() });
    for (call, rows) in [2, 3, 5, 3, 2].into_iter().enumerate() {
        let arguments = (random(&[rows, 3], call as u64).add(outer.get())?, random(&[rows, 3], 9 + call as u64));
        if call == 3 {
            weight.zero_grad();
        }
        let compiled = fast.call(&arguments)?;
        assert_close(&compiled, &f(&arguments)?, &format!("call {call}"));
    }
    Ok(())
}
