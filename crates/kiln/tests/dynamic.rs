//! Dynamic shapes: one program for many sizes, guards from comparisons, declared ranges, and what falls back.

use kiln::capture::ProgramSummary;
use kiln::runtime::event::{self, Category};
use kiln::{DType, Device, Dim, Dynamic, Generator, Options, Result, Tensor};
use std::sync::{Arc, Mutex};

fn random(shape: &[usize], seed: u64) -> Tensor {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu).unwrap()
}

fn assert_close(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    assert_eq!(got.dtype(), expected.dtype(), "{what}");
    let (a, b) = (got.to_host().unwrap().to_f64(), expected.to_host().unwrap().to_f64());
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        let close = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-4 * (1.0 + y.abs());
        assert!(close, "{what}: element {i} is {x}, not {y}");
    }
}

/// The t of `[t, 8]`, in this range.
fn declared(least: usize, most: usize) -> Options {
    Options { dynamic: Dynamic::range("t", least..=most).at(0, 0).into(), ..Options::default() }
}

type Function = fn(&Tensor) -> Result<Tensor>;

/// Functions of `[t, 8]` that are good for any t.
fn for_all_sizes() -> Vec<(&'static str, Function)> {
    vec![
        ("pointwise", |x| (x * 2.0)?.add(x)?.gelu()),
        ("softmax", |x| x.softmax(-1)),
        ("softmax over t", |x| x.softmax(0)),
        ("layer_norm", |x| x.layer_norm(1, None, None, 1e-5)),
        ("rms_norm", |x| x.rms_norm(1, None, 1e-5)),
        ("sum", |x| x.sum(0)),
        ("sum of all", |x| x.sum(..)),
        ("mean", |x| x.mean(0)),
        ("mean of all", |x| x.mean_keepdim(..)),
        ("variance", |x| x.var_with(0, 0.0, true)),
        ("norm", |x| x.norm(2.0, 0)),
        ("logsumexp", |x| x.logsumexp(1)),
        ("argmax", |x| x.argmax(-1)),
        ("cumsum", |x| x.cumsum(0)),
        ("sort", |x| Ok(x.sort(1, true)?.0)),
        ("sort over t", |x| Ok(x.sort(0, false)?.1)),
        ("reshape with -1", |x| x.reshape((-1, 2, 4))),
        ("reshape with size", |x| x.reshape((x.size(0)? * 2, 4))),
        ("flatten", |x| x.flatten(0, 1)),
        ("unflatten", |x| x.unflatten(1, (2, -1))),
        ("transpose", |x| x.t()?.contiguous()),
        ("permute", |x| x.reshape((x.size(0)?, 2, 4))?.permute([2, 0, 1])),
        ("matmul", |x| x.t()?.matmul(x)),
        ("outer matmul", |x| x.matmul(&x.t()?)),
        ("linear", |x| x.linear(&Tensor::ones([3, 8], DType::F32, Device::Cpu)?, None)),
        ("cat", |x| Tensor::cat(&[x.clone(), x.exp()?], 0)),
        ("cat with zeros", |x| Tensor::cat(&[Tensor::zeros((1, 8), DType::F32, Device::Cpu)?, x.clone()], 0)),
        ("stack", |x| Tensor::stack(&[x.clone(), x.neg()?], 1)),
        ("expand", |x| x.unsqueeze(1)?.expand((-1, 3, -1))),
        ("broadcast", |x| x.unsqueeze(0)?.add(&x.unsqueeze(1)?)),
        ("narrow columns", |x| x.narrow(1, 2, 3)),
        ("slice columns", |x| x.i((.., 1..7))),
        ("every second", |x| x.slice(0, 0, x.size(0)?, 2)),
        ("first half", |x| x.narrow(0, 0, x.size(0)? / 2)),
        ("last of the columns", |x| x.i((.., -1))),
        ("flip", |x| x.flip(0)),
        ("pad", |x| x.pad(&[(0, 0), (1, 2)], 0.5)),
        ("pad by size", |x| x.pad(&[(0.into(), 0.into()), (0.into(), x.size(0)?)], 0.0)),
        ("repeat", |x| x.repeat(&[2, 1])),
        ("repeat_interleave", |x| x.repeat_interleave(3, 0)),
        ("arange", |x| Tensor::arange(x.size(0)?, DType::F32, Device::Cpu)),
        ("positions", |x| x.add(&Tensor::arange(x.size(0)?, DType::F32, Device::Cpu)?.unsqueeze(1)?)),
        ("zeros", |x| Tensor::zeros((x.size(0)?, 3), DType::F32, Device::Cpu)),
        ("zeros_like", |x| x.zeros_like()?.add(1.0)),
        ("eye", |x| Tensor::eye(x.size(0)?, DType::F32, Device::Cpu)?.matmul(x)),
        ("tril", |x| x.matmul(&x.t()?)?.tril(0)),
        ("diagonal", |x| x.matmul(&x.t()?)?.diagonal(0)),
        ("split of columns", |x| Tensor::cat(&x.split(3, 1)?, 1)),
        ("chunks of columns", |x| x.chunk(2, 1)?[1].mul(2.0)),
        ("where", |x| x.gt(0.0)?.where_(x, 0.0)),
        ("embedding", |x| x.embedding(&Tensor::new([[0i64, 0]], Device::Cpu)?)?.mul(0.0)),
        ("one_hot", |x| x.argmax(1)?.one_hot(8)),
        ("cross_entropy", |x| x.cross_entropy(&x.argmax(1)?)),
        ("mse_loss", |x| x.mse_loss(&x.tanh()?)),
        ("attention", |x| {
            let q = x.reshape((1, x.size(0)?, 2, 4))?.transpose(1, 2)?;
            q.scaled_dot_product_attention(&q, &q, None, true, None)?.transpose(1, 2)?.reshape((x.size(0)?, 8))
        }),
        ("slice_assign", |x| {
            Tensor::zeros((x.size(0)? + 2, 8), DType::F32, Device::Cpu)?.slice_assign(Dim::from(1)..x.size(0)? + 1, x)
        }),
        ("roll", |x| x.roll(3, 1)),
        ("einsum", |x| Tensor::einsum("ij,kj->ik", &[x, x])),
        ("size as data", |x| x.div(x.size(0)? + 1)?.add(x.size(0)?)),
        ("valid_length", |x| x.valid_mask(0)?.unsqueeze(1)?.where_(x, 0.0)?.div(x.valid_length(0)?.add(1)?)),
    ]
}

/// The oracle: the graph of a program, at several sizes, by the reference interpreter.
fn interpret(name: &str, program: &ProgramSummary) {
    let [segment] = &program.segments[..] else { return };
    if segment.inputs.iter().any(|input| input != "argument 0") {
        return;
    }
    let code = segment.code.as_ref().unwrap_or_else(|| panic!("{name} has code"));
    for t in [1, 0, 3, 20].into_iter().filter(|&t| t > 0 || name != "embedding") {
        let inputs = vec![random(&[t, 8], 99); segment.inputs.len()];
        let size = |_| Some(kiln::ir::Dim::from(t));
        let graph = segment.graph.specialise(&size).unwrap_or_else(|e| panic!("{name} at {t}: {e}"));
        let host: Vec<_> = inputs.iter().map(|x| x.to_host().unwrap()).collect();
        let expected = kiln::ir::interpret::run(&graph, &host).unwrap();
        for (got, expected) in code.run(&inputs).unwrap().iter().zip(&expected) {
            let expected = Tensor::from_host(expected, Device::Cpu).unwrap();
            assert_close(got, &expected, &format!("{name} at {t}, interpreted"));
        }
    }
}

#[test]
fn one_program_is_right_for_every_size_of_a_range() {
    let mut wrong = Vec::new();
    for (name, f) in for_all_sizes() {
        // What reads element 0 of t needs one.
        let least = if name == "embedding" { 1 } else { 0 };
        for first in [5, 1, 64] {
            let fast = kiln::compile_with(f, declared(least, 64));
            for t in [first, 1, 5, 2, 16, 0, 7, 64, 33].into_iter().filter(|&t| t >= least) {
                let x = random(&[t, 8], t as u64);
                match (fast.call(&x), f(&x)) {
                    (Ok(got), Ok(expected)) => assert_close(&got, &expected, &format!("{name} at {t}")),
                    (Err(_), Err(_)) => {}
                    (got, expected) => panic!("{name} at {t}: {got:?}, not {expected:?}"),
                }
            }
            interpret(name, &fast.programs()[0]);
            if fast.stats().compiles != 1 {
                wrong.push((name, first, fast.stats().compiles, fast.programs()));
            }
        }
    }
    for (name, first, compiles, programs) in &wrong {
        println!("{name} first {first}: {compiles}");
        for program in programs {
            println!("    {:?}", program.guards);
        }
    }
    assert!(wrong.is_empty());
}

/// What happens while `work` runs, in words.
fn events_of(categories: &[Category], work: impl FnOnce()) -> Vec<String> {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let into = seen.clone();
    let thread = std::thread::current().id();
    let listening = event::listen(categories, move |event| {
        if std::thread::current().id() == thread {
            into.lock().unwrap().push(event.to_string());
        }
    });
    work();
    drop(listening);
    let events = seen.lock().unwrap();
    events.clone()
}

fn rows(t: usize) -> Tensor {
    random(&[t, 8], t as u64)
}

#[test]
fn a_size_that_changed_becomes_a_symbol_and_no_other_size_compiles() {
    let f = |x: &Tensor| x.reshape((x.size(0)?, 2, 4))?.sum(-1)?.mul(2.0);
    let fast = kiln::compile(f);
    for t in [4, 5, 6, 100, 2, 3, 57] {
        assert_close(&fast.call(&rows(t)).unwrap(), &f(&rows(t)).unwrap(), &format!("t = {t}"));
    }
    assert_eq!((fast.stats().compiles, fast.stats().hits), (2, 5));
    let programs = fast.programs();
    assert!(programs[0].guards[0].starts_with("f32[4, 8]"), "{:?}", programs[0].guards);
    assert!(programs[1].guards[0].starts_with("f32[s0, 8]"), "{:?}", programs[1].guards);
    // 0 and 1 are no sizes like others where nothing is declared.
    fast.call(&rows(1)).unwrap();
    assert_eq!(fast.stats().compiles, 3);
}

#[test]
fn a_comparison_is_a_guard_with_its_line() {
    let line = line!() + 2;
    let f = |x: &Tensor| {
        if x.size(0)? <= 16 { x.exp() } else { x.neg() }
    };
    let fast = kiln::compile_with(f, declared(0, 4096));
    for t in [4, 0, 16, 1] {
        assert_close(&fast.call(&rows(t)).unwrap(), &f(&rows(t)).unwrap(), "small");
    }
    assert_eq!(fast.stats().compiles, 1);
    let guards = &fast.programs()[0].guards;
    assert_eq!(guards.len(), 2, "{guards:?}");
    assert!(guards[1].starts_with("t <= 16") && guards[1].contains(&format!("dynamic.rs:{line}")), "{guards:?}");
    let events = events_of(&[Category::Recompiles], || {
        assert_close(&fast.call(&rows(17)).unwrap(), &f(&rows(17)).unwrap(), "large");
    });
    assert!(events[0].contains("not t <= 16") && events[0].contains(&format!("dynamic.rs:{line}")), "{events:?}");
    for t in [4096, 18, 3] {
        assert_close(&fast.call(&rows(t)).unwrap(), &f(&rows(t)).unwrap(), "either");
    }
    assert_eq!(fast.stats().compiles, 2);
}

#[test]
fn methods_of_sizes_compare_too() {
    let f = |x: &Tensor| {
        let t = x.size(0)?;
        let y = if t.is_multiple_of(4) { x.reshape((t / 4, 4, 8))?.sum(1)? } else { x.clone() };
        if t.is_above(8) && t.is_at_least(9) && !t.is_below(9) && !t.is(8) { y.mul(3.0) } else { Ok(y) }
    };
    let fast = kiln::compile_with(f, declared(0, 64));
    for t in [4, 8, 0, 12, 16, 64, 5, 7, 13, 15] {
        assert_close(&fast.call(&rows(t)).unwrap(), &f(&rows(t)).unwrap(), &format!("t = {t}"));
    }
    assert!(fast.stats().compiles <= 5, "{:#?}", fast.programs());
}

#[test]
fn a_number_asked_for_is_a_program_for_exactly_it() {
    let line = line!() + 1;
    let f = |x: &Tensor| x.mul(x.size(0)?.value() as f64);
    let fast = kiln::compile_with(f, declared(0, 64));
    let events = events_of(&[Category::Guards], || {
        fast.call(&rows(4)).unwrap();
    });
    let said =
        |event: &String| event.contains("t is 4, because t == 4") && event.contains(&format!("dynamic.rs:{line}"));
    assert!(events.iter().any(said), "{events:?}");
    for t in [4, 7, 9] {
        assert_close(&fast.call(&rows(t)).unwrap(), &f(&rows(t)).unwrap(), &format!("t = {t}"));
    }
    assert_eq!(fast.stats().compiles, 3);
}

#[test]
fn sizes_read_as_numbers_are_said_and_still_right() {
    let line = line!() + 1;
    let f = |x: &Tensor| x.reshape([x.dim(0)?, 2, 4])?.sum(-1);
    let fast = kiln::compile(f);
    fast.call(&rows(4)).unwrap();
    let events = events_of(&[Category::Guards], || {
        fast.call(&rows(6)).unwrap();
    });
    let said = |event: &String| event.contains("read as numbers") && event.contains(&format!("dynamic.rs:{line}"));
    assert!(events.iter().any(said) && events.iter().any(|e| e.contains("`size`")), "{events:?}");
    for t in [4, 6, 7, 100, 8] {
        assert_close(&fast.call(&rows(t)).unwrap(), &f(&rows(t)).unwrap(), &format!("t = {t}"));
    }
    assert_eq!(fast.stats().compiles, 2, "other sizes are recorded, not compiled");
}

#[test]
fn a_number_that_hides_in_the_code_is_never_taken_for_another_size() {
    // The loop's length is a number that no graph shows.
    let f = |x: &Tensor| {
        let mut y = x.clone();
        for _ in 0..x.dim(0)? {
            y = y.add(1.0)?;
        }
        Ok(y)
    };
    for dynamic in [Dynamic::Automatic, Dynamic::Always, Dynamic::range("t", 0..=64).at(0, 0).into()] {
        let fast = kiln::compile_with(f, Options { dynamic, ..Options::default() });
        for t in [3, 4, 5, 3, 9] {
            assert_close(&fast.call(&rows(t)).unwrap(), &f(&rows(t)).unwrap(), &format!("t = {t}"));
        }
    }
}

#[test]
fn always_makes_every_size_a_symbol_that_can_be_one() {
    let weight = random(&[16, 8], 1);
    let f = move |x: &Tensor| x.linear(&weight, None)?.softmax(-1);
    let fast = kiln::compile_with(&f, Options { dynamic: Dynamic::Always, ..Options::default() });
    for shape in [[3, 5, 8], [2, 9, 8], [7, 2, 8]] {
        let x = random(&shape, 3);
        assert_close(&fast.call(&x).unwrap(), &f(&x).unwrap(), "always");
    }
    assert_eq!(fast.stats().compiles, 1, "{:?}", fast.programs()[0].guards);
    assert!(fast.programs()[0].guards[0].starts_with("f32[s0, s1, 8]"), "{:?}", fast.programs()[0].guards);
}

#[test]
fn static_makes_a_program_for_each_shape() {
    let fast = kiln::compile_with(|x: &Tensor| x.exp(), Options { dynamic: Dynamic::Static, ..Options::default() });
    for t in [2, 3, 4, 3] {
        fast.call(&rows(t)).unwrap();
    }
    assert_eq!(fast.stats().compiles, 3);
}

#[test]
fn declared_sizes_of_one_name_are_equal_and_in_range() {
    let dynamic = Dynamic::declared([
        Dynamic::range("batch", 1..=8).at(0, 0).at(1, 0),
        Dynamic::range("t", ..).at(0, 1).at(1, -1),
    ]);
    let f = |(x, y): &(Tensor, Tensor)| x.add(y)?.sum(-1);
    let fast = kiln::compile_with(f, Options { dynamic, ..Options::default() });
    for (b, t) in [(2, 3), (1, 1), (8, 0), (5, 70)] {
        let pair = (random(&[b, t], 1), random(&[b, t], 2));
        assert_close(&fast.call(&pair).unwrap(), &f(&pair).unwrap(), "declared");
    }
    assert_eq!(fast.stats().compiles, 1);
    let message = |a: [usize; 2], b: [usize; 2]| fast.call(&(random(&a, 1), random(&b, 2))).unwrap_err().to_string();
    assert!(message([9, 2], [9, 2]).contains("batch is 9, but declared as 1..=8 (axis 0 of tensor 0"));
    assert!(message([0, 2], [0, 2]).contains("batch is 0, but declared as 1..=8"));
    assert!(message([4, 2], [4, 3]).contains("t is 3, but it is 2 elsewhere (axis -1 of tensor 1"));
    let lost = kiln::compile_with(
        |x: &Tensor| x.exp(),
        Options { dynamic: Dynamic::range("t", 1..=4).at(2, 0).into(), ..Options::default() },
    );
    assert!(lost.call(&rows(2)).unwrap_err().to_string().contains("there is no such tensor"));
}

#[test]
fn sizes_that_have_to_be_equal_become_one() {
    let dynamic = Dynamic::declared([Dynamic::range("a", 0..=64).at(0, 0), Dynamic::range("b", 0..=64).at(1, 0)]);
    let f = |(x, y): &(Tensor, Tensor)| x.mul(y)?.add(1.0);
    let fast = kiln::compile_with(f, Options { dynamic, ..Options::default() });
    for t in [5, 1, 0, 64] {
        let pair = (rows(t), rows(t));
        assert_close(&fast.call(&pair).unwrap(), &f(&pair).unwrap(), "equal");
    }
    assert_eq!(fast.stats().compiles, 1, "{:#?}", fast.programs());
    // A single row repeats: another graph, found by the guard.
    let pair = (rows(6), rows(1));
    assert_close(&fast.call(&pair).unwrap(), &f(&pair).unwrap(), "repeats");
    let message = fast.call(&(rows(6), rows(4))).unwrap_err().to_string();
    assert!(message.contains("[6, 8]") && message.contains("[4, 8]"), "{message}");
}

#[test]
fn a_size_that_has_to_divide_is_checked() {
    let f = |x: &Tensor| x.reshape((-1, 4, 8))?.sum(1);
    let fast = kiln::compile_with(f, declared(0, 64));
    for t in [8, 4, 64, 0, 12] {
        assert_close(&fast.call(&rows(t)).unwrap(), &f(&rows(t)).unwrap(), &format!("t = {t}"));
    }
    assert_eq!(fast.stats().compiles, 1, "{:#?}", fast.programs());
    let message = fast.call(&rows(6)).unwrap_err().to_string();
    assert!(message.contains("[6, 8] has 48 elements and cannot become [-1, 4, 8]"), "{message}");
}

#[test]
fn what_does_not_fit_is_the_eager_error() {
    let f = |x: &Tensor| x.narrow(0, 0, 5)?.add(x.i((-5.., ..))?);
    let fast = kiln::compile_with(f, declared(0, 64));
    for t in [9, 5, 64] {
        assert_close(&fast.call(&rows(t)).unwrap(), &f(&rows(t)).unwrap(), "fits");
    }
    assert_eq!(fast.stats().compiles, 1, "{:#?}", fast.programs());
    let (got, expected) = (fast.call(&rows(4)).unwrap_err().to_string(), f(&rows(4)).unwrap_err().to_string());
    assert_eq!(got, expected);
}

#[test]
fn a_transformer_block_is_one_program_for_all_lengths() {
    let (width, heads) = (32usize, 4usize);
    let weights: Vec<Tensor> = [[3 * width, width], [width, width], [4 * width, width], [width, 4 * width]]
        .iter()
        .zip(0..)
        .map(|(shape, seed)| random(shape, seed).mul(0.1).unwrap())
        .collect();
    let table = random(&[256, width], 77);
    let block = move |ids: &Tensor| {
        let (b, t) = (ids.size(0)?, ids.size(1)?);
        let x = table.embedding(ids)?.add(&table.narrow(0, 0, t)?)?;
        let qkv = x.rms_norm(1, None, 1e-5)?.linear(&weights[0], None)?;
        let split = |part: i64| {
            qkv.narrow(2, part * width as i64, width)?.reshape((b, t, heads, width / heads))?.transpose(1, 2)
        };
        let mixed = split(0)?.scaled_dot_product_attention(&split(1)?, &split(2)?, None, true, None)?;
        let x = x.add(&mixed.transpose(1, 2)?.reshape((b, t, width))?.linear(&weights[1], None)?)?;
        let y = x.rms_norm(1, None, 1e-5)?.linear(&weights[2], None)?.gelu()?.linear(&weights[3], None)?;
        x.add(&y)?.matmul(&table.t()?)
    };
    let dynamic = Dynamic::declared([Dynamic::range("b", 0..=8).at(0, 0), Dynamic::range("t", 0..=256).at(0, 1)]);
    let fast = kiln::compile_with(&block, Options { dynamic, fullgraph: true, ..Options::default() });
    for (b, t) in [(2, 7), (1, 1), (3, 33), (2, 0), (0, 4), (1, 128), (8, 2)] {
        let ids = Generator::new(t as u64).randint(0, 256, [b, t], Device::Cpu).unwrap();
        assert_close(&fast.call(&ids).unwrap(), &block(&ids).unwrap(), &format!("b = {b}, t = {t}"));
    }
    assert_eq!(fast.stats().compiles, 1, "{:#?}", fast.programs());
    let ids = Generator::new(1).randint(0, 256, [1, 257], Device::Cpu).unwrap();
    assert!(fast.call(&ids).unwrap_err().to_string().contains("t is 257, but declared as 0..=256"));
}

#[test]
fn settings_and_sizes_change_in_turns() {
    // What is captured for a new value of a setting is for the sizes of its call alone, whatever the program before it was for.
    let doubled = kiln::Setting::new(0);
    let inner = doubled.clone();
    let f = move |x: &Tensor| if inner.get() == 1 { x.mul(2.0)?.sum(0) } else { x.neg() };
    for dynamic in [Dynamic::Automatic, Dynamic::Always, Dynamic::Static] {
        let fast = kiln::compile_with(&f, Options { dynamic, ..Options::default() });
        for (rows, setting) in [(2, 0), (4, 0), (5, 1), (3, 1), (6, 0), (2, 1), (7, 1), (4, 0), (5, 1)] {
            doubled.set(setting);
            let x = Tensor::arange(rows * 3, DType::F32, Device::Cpu).unwrap().reshape([rows, 3]).unwrap();
            let (got, wanted) = (fast.call(&x).unwrap(), f(&x).unwrap());
            assert_eq!(got.to_vec::<f32>().unwrap(), wanted.to_vec::<f32>().unwrap(), "{rows} rows, setting {setting}");
        }
    }
}
