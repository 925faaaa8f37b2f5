//! Numbers that are read, or are arguments: guarded by the outcomes of comparisons, and data wherever tensors use them.

use kiln::{
    DType, Device, Dynamic, Error, Float, Options, Result, Tensor, Var, compile, compile_with, disable, expr, scan,
};

fn random(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let count = shape.iter().product();
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    Tensor::from_vec((0..count).map(|_| next()).collect::<Vec<f32>>(), shape, Device::Cpu).unwrap()
}

fn scalar(value: f32) -> Tensor {
    Tensor::full(1, value, DType::F32, Device::Cpu).unwrap()
}

/// Whether both have the same bits.
#[track_caller]
fn assert_same(got: &Tensor, want: &Tensor, what: &str) {
    let bits = |x: &Tensor| -> Vec<u64> {
        x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap().into_iter().map(f64::to_bits).collect()
    };
    assert_eq!((got.dtype(), got.shape(), bits(got)), (want.dtype(), want.shape(), bits(want)), "{what}");
}

fn root(a: &Tensor) -> Result<Tensor> {
    let mut x = a.clone();
    loop {
        let next = ((&x + a.div(&x)?)? * 0.5)?;
        let step = next.sub(&x)?.abs()?.amax(..)?.item_float()?;
        x = next;
        if step < 1e-4 {
            return Ok(x);
        }
    }
}

#[test]
fn newton() -> Result<()> {
    let fast = compile(root);
    for turn in 0..200 {
        let a = random(&[8], turn).abs()?.add(0.1)?;
        assert_same(&fast.call(&a)?, &root(&a)?, &format!("turn {turn}"));
    }
    let stats = fast.stats();
    // A branch for each count of turns.
    assert!(stats.programs == 1 && stats.branches <= 8 && stats.fallbacks == 0, "{stats:?}");
    assert!(stats.hits == 199 && stats.limits == 0, "{stats:?}");
    assert!(stats.breaks >= 2, "{stats:?}");
    Ok(())
}

/// One program for each outcome, whatever the numbers among the arguments are.
#[test]
fn arguments() -> Result<()> {
    let f = |(x, slope, (low, high)): &(Tensor, Float, (Float, Float))| -> Result<Tensor> {
        let y = x.mul(slope)?;
        if low < high { y.clamp(low, high) } else { y.neg() }
    };
    let fast = compile(f);
    for turn in 0..200u64 {
        let (low, high) = (0.25 * (turn % 7) as f64, 0.1 * (turn % 13) as f64);
        let arguments = (random(&[5], turn), Float::from(1.0 / (turn + 1) as f64), (low.into(), high.into()));
        assert_same(&fast.call(&arguments)?, &f(&arguments)?, &format!("turn {turn}"));
    }
    let stats = fast.stats();
    assert_eq!((stats.programs, stats.branches, stats.fallbacks, stats.hits), (1, 1, 0, 199), "{stats:?}");
    // A number that is only data decides nothing.
    let scale = compile(|(x, by): &(Tensor, Float)| (by * x)?.exp());
    for turn in 0..100u64 {
        let arguments = (random(&[5], turn), Float::from(turn as f64 * 0.01));
        let want = (&arguments.1 * &arguments.0)?.exp()?;
        assert_same(&scale.call(&arguments)?, &want, &format!("scaled, turn {turn}"));
    }
    let stats = scale.stats();
    assert_eq!((stats.compiles, stats.branches, stats.breaks, stats.hits), (1, 0, 0, 99), "{stats:?}");
    Ok(())
}

/// As for f64, NaN compares with nothing, and which comparison is asked matters.
#[test]
fn comparisons_are_those_of_f64() -> Result<()> {
    fn outcomes(n: &Float, m: &Float) -> Result<Tensor> {
        let flags =
            [n < m, n <= m, n > m, n >= m, n == m, n != m, *n < 0.5, 0.5 <= *n, *n == 0.5, n.partial_cmp(m).is_none()];
        Tensor::new(flags.map(|flag| flag as i64), Device::Cpu)
    }
    let f = |(x, y): &(Tensor, Tensor)| outcomes(&x.item_float()?, &y.item_float()?);
    let fast = compile_with(f, Options { recompile_limit: 64, ..Options::default() });
    let numbers = [0.5, -0.0, 0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-30, 0.500_000_06];
    for _ in 0..2 {
        for a in numbers {
            for b in numbers {
                let arguments = (scalar(a), scalar(b));
                let own = outcomes(&f64::from(a).into(), &f64::from(b).into())?;
                let (a64, b64) = (f64::from(a), f64::from(b));
                let flags = [a64 < b64, a64 <= b64, a64 > b64, a64 >= b64, a64 == b64, a64 != b64].map(|f| f as i64);
                assert_eq!(own.to_vec::<i64>()?[..6], flags, "{a} and {b}");
                assert_same(&f(&arguments)?, &own, &format!("{a} and {b}, eager"));
                assert_same(&fast.call(&arguments)?, &own, &format!("{a} and {b}"));
            }
        }
    }
    assert_eq!(fast.stats().fallbacks, 0, "{:?}", fast.stats());
    Ok(())
}

/// What is read is compared in f64, and is rounded once where it is data.
#[test]
fn elements_of_all_dtypes() -> Result<()> {
    let f = |(n, x): &(Tensor, Tensor)| -> Result<Tensor> {
        let n = n.item_float()?;
        let y = x.add(&n)?;
        if n >= 0.3 { y.mul(2.0) } else { Ok(y) }
    };
    for of in [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I64, DType::I32, DType::U8, DType::Bool] {
        for to in [DType::F32, DType::F64, DType::F16, DType::Bf16, DType::I64] {
            let fast = compile(f);
            for value in [0.3, 0.299_999_9, 1.0, 0.1, 7.0, 1.000_488_281_251, 9_007_199_254_740_993.0, 16_777_217.0] {
                let n = Tensor::full(1, value, DType::F64, Device::Cpu)?.to_dtype(of)?;
                let arguments = (n, random(&[3], 1).to_dtype(to)?);
                assert_same(&fast.call(&arguments)?, &f(&arguments)?, &format!("{value} of {of} as {to}"));
            }
            assert_eq!(fast.stats().programs, 1);
        }
    }
    Ok(())
}

/// Arithmetic of numbers is that of f64, in predicates and as data alike.
#[test]
fn arithmetic() -> Result<()> {
    fn compute(n: &Float, m: &Float) -> Float {
        let mut sum = (n * 0.1 + m / 3.0 - 1.0).exp() * -n.sqrt() + 2.0 / (m.abs() + 0.5).ln();
        sum -= n.min(m);
        sum *= m.max(0.25);
        1.0 - sum
    }
    let f = |(x, n): &(Tensor, Float)| -> Result<(Tensor, Float, Float)> {
        let m = x.sum(..)?.item_float()?;
        let made = compute(n, &m);
        let y = if made > m { (x - &made)? } else { x.div(&made)? };
        Ok((y, made, Float::from(2.5)))
    };
    let fast = compile(f);
    for turn in 0..60u64 {
        let arguments = (random(&[4], turn), Float::from((turn % 9) as f64 * 0.7));
        let (got, want) = (fast.call(&arguments)?, f(&arguments)?);
        assert_same(&got.0, &want.0, &format!("turn {turn}"));
        let bits = |n: &Float| n.value().map(f64::to_bits);
        assert_eq!((bits(&got.1)?, bits(&got.2)?), (bits(&want.1)?, bits(&want.2)?), "turn {turn}");
        let m = arguments.0.sum(..)?.item::<f64>()?;
        assert_eq!(bits(&want.1)?, bits(&compute(&arguments.1, &m.into()))?);
    }
    let stats = fast.stats();
    assert_eq!((stats.programs, stats.branches <= 1, stats.fallbacks), (1, true, 0), "{stats:?}");
    // As long as it likes: what was computed so far is an element of what follows.
    let long = |x: &Tensor| -> Result<Tensor> {
        let mut n = x.amax(..)?.item_float()?;
        for i in 0..200 {
            n = if i % 5 == 0 { &n * &n - 0.5 } else { n * 0.9 };
        }
        x.mul(n)
    };
    let fast = compile(long);
    for turn in 0..10 {
        let x = random(&[3], turn);
        assert_same(&fast.call(&x)?, &long(&x)?, &format!("long, turn {turn}"));
    }
    assert_eq!((fast.stats().programs, fast.stats().branches), (1, 0));
    Ok(())
}

/// One number as data and as a predicate; as data alone it needs no break.
#[test]
fn data_and_predicate() -> Result<()> {
    let f = |x: &Tensor| -> Result<Tensor> {
        let most = x.abs()?.amax(..)?.item_float()?;
        let y = x.div(&most)?;
        let y = if most > 0.9 { y.square()? } else { y };
        let larger = x.gt(&most / 2.0)?;
        expr!((&most * &most + 1 - 0.5 / &most) * y + larger.where_(&most, x)? - &most)
    };
    let fast = compile(f);
    for turn in 0..60 {
        let x = random(&[6], turn);
        assert_same(&fast.call(&x)?, &f(&x)?, &format!("turn {turn}"));
    }
    let stats = fast.stats();
    assert_eq!((stats.programs, stats.branches, stats.fallbacks), (1, 1, 0), "{stats:?}");

    let normal =
        compile_with(|x: &Tensor| x.div(x.amax(..)?.item_float()?), Options { fullgraph: true, ..Options::default() });
    for turn in 0..10 {
        let x = random(&[6], turn);
        assert_same(&normal.call(&x)?, &x.div(x.amax(..)?)?, &format!("normal, turn {turn}"));
    }
    assert_eq!((normal.stats().compiles, normal.stats().breaks), (1, 0));

    // Of a number itself each value is a program.
    let by_value = compile(|x: &Tensor| {
        let n = x.amax(..)?.item_float()?;
        if n.value()? as i64 % 2 == 0 { x.neg() } else { x.mul(n) }
    });
    for turn in 0..4 {
        let x = scalar(turn as f32);
        let want = if turn % 2 == 0 { -turn } else { turn * turn };
        assert_eq!(by_value.call(&x)?.item::<f32>()?, want as f32);
    }
    assert_eq!(by_value.stats().branches, 3);
    Ok(())
}

/// After breaks, behind disabled parts, and where sizes are symbols.
#[test]
fn among_breaks_and_symbols() -> Result<()> {
    fn f(x: &Tensor, tolerance: &Float) -> Result<Tensor> {
        let rows = x.size(0)?;
        let chosen = x.masked_select(&x.gt(0.0)?)?;
        let part = disable(|(x, n): &(Tensor, Float)| Ok((x.mul(n)?, n * 2.0)));
        let mut y = x.clone();
        for _ in 0..3 {
            let n = y.abs()?.mean(..)?.item_float()?;
            if n < tolerance {
                break;
            }
            let (next, twice) = part.call(&(y, n.clone()))?;
            y = if twice > n.sqrt() { next.sub(&twice)? } else { next };
        }
        y.sum(..)?.mul(rows)?.add(chosen.sum(..)?)
    }
    for dynamic in [Dynamic::Automatic, Dynamic::Always, Dynamic::Static] {
        let is_static = dynamic == Dynamic::Static;
        let options = Options { dynamic, recompile_limit: 64, ..Options::default() };
        let fast = compile_with(|(x, tolerance): &(Tensor, Float)| f(x, tolerance), options);
        for turn in 0..80u64 {
            let x = random(&[2 + turn as usize % 11, 3], turn);
            let arguments = (x, Float::from(0.02 * (turn % 17) as f64));
            let (got, want) = (fast.call(&arguments)?, f(&arguments.0, &arguments.1)?);
            let (got, want) = (got.item::<f64>()?, want.item::<f64>()?);
            assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "turn {turn}: {got} and {want}");
        }
        let stats = fast.stats();
        assert!(stats.fallbacks == 0 && (is_static || stats.graphs < 80), "{stats:?}");
    }
    Ok(())
}

/// What is read has no gradient, and gradients go around it.
#[test]
fn gradients() -> Result<()> {
    let f = |x: &Tensor, weight: &Var| -> Result<Tensor> {
        let y = x.mul(weight.get())?;
        let norm = y.square()?.sum(..)?.sqrt()?.item_float()?;
        if norm > 1.0 { y.div(&norm)?.sum(..) } else { y.mul(&norm)?.mul(2.0)?.sum(..) }
    };
    let fresh = || Var::new(&random(&[4], 3)).requires_grad(true);
    let (one, two) = (fresh(), fresh());
    let inner = one.clone();
    let fast = compile(move |x: &Tensor| f(x, &inner));
    for turn in 0..20 {
        let scale = if turn % 3 == 0 { 4.0 } else { 0.5 };
        let x = random(&[4], turn).mul(scale)?.requires_grad();
        let mut found = Vec::new();
        for (loss, var) in [(fast.call(&x)?, &one), (f(&x, &two)?, &two)] {
            var.zero_grad();
            loss.backward()?;
            found.push(var.grad().unwrap());
        }
        assert_same(&found[0], &found[1], &format!("turn {turn}"));
        let own = |loss: &Tensor| Ok::<_, Error>(loss.gradients(&[&x])?.get(&x).unwrap().clone());
        let (got, want) = (fast.call(&x)?, f(&x, &two)?);
        assert_same(&own(&got)?, &own(&want)?, &format!("input, turn {turn}"));
    }
    let stats = fast.stats();
    assert_eq!((stats.programs, stats.branches, stats.fallbacks), (1, 1, 0), "{stats:?}");
    Ok(())
}

/// A loop whose body decides by a number is none of the graph, and runs turn by turn.
#[test]
fn decisions_in_bodies() -> Result<()> {
    let f = |x: &Tensor| -> Result<Tensor> {
        let zero = Tensor::zeros([3], DType::F32, Device::Cpu)?;
        let step = |(sum, row): &(Tensor, Tensor)| -> Result<(Tensor, Tensor)> {
            let mut next = sum.add(row)?;
            let mut n = next.amax(..)?.item_float()?;
            while n > 0.5 {
                n *= 0.5;
                next = next.mul(0.5)?;
            }
            Ok((next.clone(), next))
        };
        scan(step).call(zero, x.clone())?.1.sum(..)
    };
    let fast = compile_with(f, Options { recompile_limit: 64, ..Options::default() });
    for turn in 0..10 {
        let x = random(&[4, 3], turn);
        assert_same(&fast.call(&x)?, &f(&x)?, &format!("turn {turn}"));
    }
    Ok(())
}

/// What cannot be decided is an error with its line, also where the function would never end.
#[test]
fn what_cannot_be_decided() -> Result<()> {
    let halved = |x: &Tensor| -> Result<Tensor> {
        let mut n = x.amax(..)?.item_float()?;
        let mut turns = 0;
        loop {
            n *= 0.5;
            turns += 1;
            if n < 1e-3 {
                return x.mul(turns as f64);
            }
        }
    };
    let fast = compile_with(halved, Options { fullgraph: true, ..Options::default() });
    let error = fast.call(&scalar(1.0)).unwrap_err();
    assert!(matches!(error, Error::GraphBreak { what: "decides by a number", .. }), "{error}");
    assert!(error.to_string().contains("floats.rs"), "{error}");
    assert!(compile_with(root, Options { fullgraph: true, ..Options::default() }).call(&scalar(2.0)).is_err());
    // Nothing runs to make a program, so that there is none.
    let fast = compile(halved);
    fast.warm_up([&scalar(1.0)])?;
    assert_eq!(fast.call(&scalar(1.0))?.item::<f32>()?, 10.0);
    // One element is one number.
    assert!(matches!(random(&[2], 1).item_float(), Err(Error::NotOneElement { .. })));
    let fast = compile(|x: &Tensor| x.mul(x.item_float()?));
    assert!(matches!(fast.call(&random(&[2], 1)), Err(Error::NotOneElement { .. })));
    // A number that is kept for longer than its capture says so.
    let kept = std::sync::Mutex::new(None);
    let fast = compile(|x: &Tensor| {
        *kept.lock().unwrap() = Some(x.amax(..)?.item_float()?);
        x.neg()
    });
    fast.call(&scalar(1.0))?;
    let kept = kept.lock().unwrap().take().unwrap();
    assert!(matches!(kept.value(), Err(Error::Escaped { .. })), "{kept}");
    assert!(scalar(1.0).mul(&kept).is_err() && scalar(1.0).mul(kept * 2.0 + 1.0).is_err());
    Ok(())
}

/// Breaks, guards and limits name the comparison and its line.
#[test]
fn what_is_said() -> Result<()> {
    let f = |(x, least): &(Tensor, Float)| -> Result<Tensor> {
        let n = &x.amax(..)?.item_float()?;
        if n.sqrt() < 1e-4 || n < least || n == least { x.neg() } else { x.exp() }
    };
    let fast = compile(f);
    let arguments = (scalar(0.5), Float::from(0.1));
    let explanation = fast.explain(&arguments)?;
    let said: Vec<String> = explanation.breaks.iter().map(|b| format!("{} at {}", b.what, b.at)).collect();
    assert!(said.len() == 3 && said.iter().all(|line| line.contains("floats.rs")), "{said:?}");
    assert!(said[0].starts_with("decides by sqrt(number) < 0.0001"), "{said:?}");
    assert!(said[1].starts_with("decides by number < argument 1"), "{said:?}");
    assert!(said[2].starts_with("decides by number == argument 1"), "{said:?}");
    let program = &fast.programs()[0];
    assert!(program.breaks.len() == 3 && program.guards[1].starts_with("f64[]"), "{program:?}");
    assert_eq!(Float::from(0.5).to_string(), "0.5");

    // A limit ends in calls of the function itself, as everywhere.
    let limited = compile_with(root, Options { recompile_limit: 3, ..Options::default() });
    for turn in 0..40 {
        let a = random(&[2], turn).abs()?.mul(10f64.powi(turn as i32 % 12))?.add(1e-3)?;
        assert_same(&limited.call(&a)?, &root(&a)?, &format!("turn {turn}"));
    }
    assert!(limited.stats().fallbacks > 0, "{:?}", limited.stats());
    Ok(())
}
