//! Results whose sizes depend on elements: one program for all data.

use kiln::{DType, Device, Dynamic, Generator, Options, Result, Tensor, Var, compile, compile_with, disable};

fn random(shape: &[usize], seed: u64) -> Tensor {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu).unwrap()
}

fn assert_close(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!((got.dtype(), got.shape()), (expected.dtype(), expected.shape()), "{what}");
    let elements = |x: &Tensor| x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
    for (a, b) in elements(got).iter().zip(elements(expected)) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{what}: {a} and {b}");
    }
}

/// Data of which none, one, a few or all elements are positive.
fn data(shape: &[usize], turn: u64) -> Tensor {
    let x = random(shape, turn).abs().unwrap();
    match turn % 5 {
        0 => x.neg().unwrap(),
        1 => x,
        2 => x.sub(x.amax(..).unwrap().mul(0.9999).unwrap()).unwrap(),
        _ => random(shape, turn),
    }
}

fn one_program(name: &str, f: fn(&Tensor) -> Result<Tensor>) {
    let fast = compile(f);
    for turn in 0..40 {
        let x = data(&[12, 4], turn);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("{name}, turn {turn}"));
    }
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.branches, stats.fallbacks), (1, 0, 0), "{name}: {stats:?}");
    // Sizes of arguments may be symbols beside them.
    let fast = compile_with(f, Options { dynamic: Dynamic::Always, ..Options::default() });
    for turn in 0..60 {
        let x = data(&[2 + turn as usize % 17, 4], turn);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("{name}, many sizes, turn {turn}"));
    }
    let stats = fast.stats();
    assert!(stats.compiles == 1 && stats.branches <= 2 && stats.fallbacks == 0, "{name}: {stats:?}");
}

#[test]
fn selections() {
    one_program("masked_select", |x| x.masked_select(&x.gt(0.0)?)?.mul(2.0)?.add(1.0));
    one_program("a reduction of it", |x| x.exp()?.masked_select(&x.gt(0.0)?)?.sum(..));
    one_program("nonzero", |x| x.gt(0.0)?.nonzero()?.mul(3));
    one_program("rows", |x| {
        let rows = x.sum(-1)?.gt(0.0)?.nonzero()?.squeeze(1)?;
        let chosen = x.index_select(0, &rows)?.softmax(-1)?;
        x.mul(0.5)?.index_add(0, &rows, &chosen)
    });
    one_program("products", |x| {
        let rows = x.sum(-1)?.gt(0.0)?.nonzero()?.squeeze(1)?;
        let chosen = x.index_select(0, &rows)?;
        chosen.matmul(&chosen.t()?)
    });
    one_program("two of them", |x| {
        let positive = x.masked_select(&x.gt(0.0)?)?;
        let small = positive.masked_select(&positive.lt(1.0)?)?;
        positive.sum(..)?.add(small.mul(2.0)?.sum(..)?)
    });
    one_program("unique", |x| x.mul(2.0)?.round()?.unique()?.mul(3.0));
    one_program("a size of data as data", |x| {
        let count = x.gt(0.0)?.nonzero()?.size(0)?;
        x.add(count)
    });
}

#[test]
fn mixture_of_experts() {
    const EXPERTS: usize = 4;
    let weights: Vec<Tensor> = (0..EXPERTS).map(|e| random(&[8, 8], 100 + e as u64)).collect();
    let router = random(&[8, EXPERTS], 7);
    let f = |x: &Tensor| -> Result<Tensor> {
        let scores = x.matmul(&router)?.softmax(-1)?;
        let (gate, expert) = (scores.amax(-1)?, scores.argmax(-1)?);
        let mut out = x.zeros_like()?;
        for (number, weight) in weights.iter().enumerate() {
            let rows = expert.eq(number as i64)?.nonzero()?.squeeze(1)?;
            let own = x.index_select(0, &rows)?.matmul(weight)?.relu()?;
            let scale = gate.index_select(0, &rows)?.unsqueeze(1)?;
            out = out.index_add(0, &rows, &own.mul(&scale)?)?;
        }
        Ok(out)
    };
    let fast = compile(f);
    for turn in 0..30 {
        let x = random(&[16, 8], turn);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("turn {turn}"));
    }
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.branches, stats.fallbacks), (1, 0, 0), "{stats:?}");
}

#[test]
fn gradients_of_what_was_selected() {
    let fresh = || Var::new(&random(&[4], 3)).requires_grad(true);
    let (one, two) = (fresh(), fresh());
    fn f(x: &Tensor, weight: &Var) -> Result<Tensor> {
        let y = x.mul(weight.get())?;
        y.masked_select(&x.gt(0.0)?)?.square()?.sum(..)
    }
    let inner = one.clone();
    let fast = compile(move |x: &Tensor| f(x, &inner));
    for turn in 0..20 {
        let x = data(&[6, 4], turn);
        for (loss, var) in [(fast.call(&x).unwrap(), &one), (f(&x, &two).unwrap(), &two)] {
            var.zero_grad();
            loss.backward().unwrap();
        }
        assert_close(&one.grad().unwrap(), &two.grad().unwrap(), &format!("turn {turn}"));
    }
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.branches), (1, 0), "{stats:?}");
}

#[test]
fn decisions_by_sizes_of_data() {
    let f = |x: &Tensor| -> Result<Tensor> {
        let chosen = x.masked_select(&x.gt(0.0)?)?;
        if chosen.size(0)?.is_above(20) { chosen.mean(..) } else { chosen.sum(..) }
    };
    let fast = compile(f);
    for turn in 0..40 {
        let x = data(&[12, 4], turn);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("turn {turn}"));
    }
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.branches, stats.fallbacks), (1, 1, 0), "{stats:?}");
    // Each number a program, where they are read as numbers.
    let by_number = |x: &Tensor| -> Result<Tensor> {
        let chosen = x.masked_select(&x.gt(0.0)?)?;
        chosen.mul(chosen.dim(0)? as f64)?.sum(..)
    };
    let fast = compile_with(by_number, Options { recompile_limit: 6, ..Options::default() });
    for turn in 0..40 {
        let x = data(&[12, 4], turn);
        assert_close(&fast.call(&x).unwrap(), &by_number(&x).unwrap(), &format!("by number, turn {turn}"));
    }
}

#[test]
fn static_sizes_of_data_are_programs_each() {
    let f = |x: &Tensor| x.masked_select(&x.gt(0.0)?)?.mul(2.0);
    let fast = compile_with(f, Options { dynamic: Dynamic::Static, ..Options::default() });
    for turn in 0..20 {
        let x = data(&[6, 4], turn);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), &format!("turn {turn}"));
    }
    assert!(fast.stats().branches > 2);
}

/// A variable that is trainable at one call and not at the next, where a call reads and selects before it changes it.
#[test]
fn a_variable_toggled_between_selections() {
    use kiln::optim::{Optimizer, Sgd};
    let make = || {
        let a = Var::named("a", &random(&[3], 1)).requires_grad(true);
        let b = Var::named("b", &random(&[3], 2)).requires_grad(true);
        let sgd = Sgd::new([a.clone(), b.clone()], 0.1).unwrap();
        (a, b, sgd)
    };
    let f = |(x, y): &(Tensor, Tensor), a: &Var, b: &Var, sgd: &Sgd| -> Result<Tensor> {
        let scaled = x.mul(y.sum(..)?.item::<f64>()?)?.clamp(-8.0, 8.0)?;
        let selected = y.masked_select(&y.gt(0.0)?)?.sum(..)?;
        sgd.step()?;
        for var in [a, b] {
            var.set(&var.get().clamp(-8.0, 8.0)?)?;
        }
        scaled.add(selected)
    };
    let (a, b, sgd) = make();
    let (own_a, own_b, own_sgd) = make();
    let fast = {
        let (a, b) = (a.clone(), b.clone());
        compile(move |arguments: &(Tensor, Tensor)| f(arguments, &a, &b, &sgd))
    };
    for turn in 0..12 {
        // The sum, which is read, changes once and is then the same at many calls.
        let y = [[1.0f32, 2.0, 3.0, -1.0, -2.0, -1.0], [2.0, 0.0, -1.0, 1.0, 0.0, 0.0]][turn as usize % 2];
        let y = if turn == 0 { [5.0, 0.0, 0.0, 0.0, 0.0, -1.0] } else { y };
        let y = Tensor::from_vec(y.to_vec(), [2, 3], Device::Cpu).unwrap();
        let mut x = random(&[2, 3], 10 + turn);
        if turn % 4 != 0 {
            x = x.requires_grad();
        }
        if turn % 3 == 2 {
            a.requires_grad(!a.is_trainable());
            own_a.requires_grad(!own_a.is_trainable());
        }
        let arguments = (x, y);
        let expected = f(&arguments, &own_a, &own_b, &own_sgd).unwrap();
        let got = fast.call(&arguments).unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        assert_close(&got, &expected, &format!("turn {turn}"));
    }
}

/// Sizes of data that are read as numbers, behind disabled parts, at which views are all of what they are views of: at one element a
/// half is the whole, and the function is wired otherwise than for many.
#[test]
fn sizes_of_data_read_as_numbers() -> Result<()> {
    fn f(x: &Tensor, parts: usize) -> Result<Tensor> {
        let part = disable(|x: &Tensor| x.mul(1.5));
        let mut y = x.masked_select(&x.gt(0.0)?)?;
        for _ in 0..parts {
            y = y.narrow(0, 0, (y.size(0)? + 1) / 2)?;
            y = part.call(&y)?;
        }
        let count = y.shape()[0];
        let rows = y.reshape([count, 1])?.expand((count, 2))?.reshape(count * 2)?;
        part.call(&rows)?.mul(count as f64)
    }
    for parts in 0..3 {
        for dynamic in [Dynamic::Automatic, Dynamic::Always, Dynamic::Static] {
            let fast = compile_with(move |x: &Tensor| f(x, parts), Options { dynamic, ..Options::default() });
            for turn in 0..20 {
                let x = data(&[1 + turn as usize % 7], turn);
                assert_close(&fast.call(&x)?, &f(&x, parts)?, &format!("{parts} parts, turn {turn}"));
            }
        }
    }
    Ok(())
}

/// A program for what a disabled part gives of two elements and more is none for less.
#[test]
fn parts_that_give_fewer_elements() -> Result<()> {
    let f = |x: &Tensor| {
        let chosen = disable(|x: &Tensor| x.masked_select(&x.gt(0.0)?)).call(x)?;
        Tensor::cat(&[chosen.clone(), chosen], 0)?.narrow(0, 0, 3)
    };
    let fast = compile(f);
    for (length, from) in [(4, 0.5), (7, 0.5), (5, 0.5), (9, -9.0), (3, -0.5), (8, 0.5)] {
        let values: Vec<f32> = (0..length).map(|at| from + at as f32 * 0.25).collect();
        let x = Tensor::from_vec(values, length, Device::Cpu)?;
        match (fast.call(&x), f(&x)) {
            (Ok(got), Ok(want)) => assert_close(&got, &want, &format!("{length} from {from}")),
            (got, want) => assert!(got.is_err() && want.is_err(), "{length} from {from}: {got:?} and {want:?}"),
        }
    }
    Ok(())
}

/// The distinct slices of an axis, found by comparing all of them.
#[test]
fn distinct_slices() -> Result<()> {
    fn check(x: &Tensor, axis: i64) -> Result<()> {
        let rows = x.movedim(axis, 0)?.contiguous()?;
        let (count, shape) = (rows.shape()[0], rows.shape()[1..].to_vec());
        let width: usize = shape.iter().product();
        let all = rows.to_dtype(DType::F64)?.to_vec::<f64>()?;
        let row = |i: usize| all[i * width..(i + 1) * width].to_vec();
        let mut distinct: Vec<Vec<f64>> = (0..count).map(row).collect();
        distinct.sort_by(|a, b| a.partial_cmp(b).unwrap());
        distinct.dedup();
        let place = |i: usize| distinct.iter().position(|known| *known == row(i)).unwrap();
        let places: Vec<i64> = (0..count).map(|i| place(i) as i64).collect();
        let counts: Vec<i64> =
            (0..distinct.len()).map(|at| places.iter().filter(|place| **place == at as i64).count() as i64).collect();
        let fast = compile(move |x: &Tensor| x.unique_dim(axis));
        for (values, inverse, times) in [x.unique_dim(axis)?, fast.call(x)?] {
            let values = values.movedim(axis, 0)?;
            assert_eq!(values.dtype(), x.dtype());
            assert_eq!(values.shape(), [&[distinct.len()][..], &shape].concat());
            assert_eq!(values.to_dtype(DType::F64)?.to_vec::<f64>()?, distinct.concat());
            assert_eq!((inverse.to_vec::<i64>()?, times.to_vec::<i64>()?), (places.clone(), counts.clone()));
        }
        Ok(())
    }
    for (shape, axis) in [(&[9, 1][..], 0), (&[12, 3], 0), (&[4, 30], 1), (&[2, 20, 2], -2), (&[1, 5], 0), (&[7], 0)] {
        for turn in 0..4 {
            let x = random(shape, turn).mul(1.2)?.round()?;
            check(&x, axis)?;
            check(&x.to_dtype(DType::I64)?, axis)?;
            check(&x.gt(0.0)?, axis)?;
        }
    }
    let none = Tensor::zeros([0, 3], DType::F32, Device::Cpu)?.unique_dim(0)?;
    assert_eq!((none.0.shape(), none.1.shape()), (&[0, 3][..], &[0][..]));
    let one = Tensor::zeros([4, 0], DType::F32, Device::Cpu)?.unique_dim(0)?;
    assert_eq!((one.0.shape(), one.2.to_vec::<i64>()?), (&[1, 0][..], vec![4]));
    Ok(())
}

/// An element that is read as a size is one program for all data: in shapes, in arithmetic of sizes, and in what is decided by them.
#[test]
fn elements_read_as_sizes() -> Result<()> {
    let cut = |(x, lengths): &(Tensor, Tensor)| -> Result<Tensor> {
        let longest = lengths.amax(..)?.item_size()?;
        let mask = Tensor::arange(longest, DType::I64, Device::Cpu)?.unsqueeze(0)?.lt(&lengths.unsqueeze(1)?)?;
        let rest = x.size(1)? - longest;
        let tail = x.narrow(1, longest, rest)?.sum(1)?;
        mask.where_(&x.narrow(1, 0, longest)?, 0.0f32)?.sum(1)?.add(&tail)
    };
    for dynamic in [Dynamic::Automatic, Dynamic::Always, Dynamic::Static] {
        let is_static = dynamic == Dynamic::Static;
        let fast = compile_with(cut, Options { dynamic, ..Options::default() });
        for turn in 0..40u64 {
            let longest = [5, 9, 0, 1, 12, 3][turn as usize % 6];
            let lengths = Tensor::new([longest, longest / 2, 0i64], Device::Cpu)?;
            let arguments = (random(&[3, 12], turn), lengths);
            assert_close(&fast.call(&arguments)?, &cut(&arguments)?, &format!("{turn}"));
        }
        let stats = fast.stats();
        assert_eq!((stats.compiles, stats.branches > 0, stats.fallbacks), (1, is_static, 0), "{stats:?}");
    }
    // What is no size is an error with the user's line, compiled and eager; the program stays.
    let fast = compile(cut);
    for longest in [3, -2, 13, i64::MAX, 4] {
        let arguments = (random(&[2, 12], 1), Tensor::new([longest, -5i64], Device::Cpu)?);
        let (eager, compiled) = (cut(&arguments), fast.call(&arguments));
        match longest {
            3 | 4 => assert_close(&compiled?, &eager?, "a size"),
            _ => {
                let (eager, compiled) = (eager.unwrap_err().to_string(), compiled.unwrap_err().to_string());
                assert!(eager.contains("data_sizes.rs") && compiled.contains("data_sizes.rs"), "{eager}\n{compiled}");
            }
        }
    }
    assert!(Tensor::ones([1], DType::F32, Device::Cpu)?.item_size().is_err());
    assert!(Tensor::ones([2], DType::I64, Device::Cpu)?.item_size().is_err());
    Ok(())
}
