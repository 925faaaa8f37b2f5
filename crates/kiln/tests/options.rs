//! The options of `compile_with` through the public API: each gives the same answers, and does what it says.

use kiln::nn::{Dropout, Forward, Gelu, LayerNorm, Linear, Module, Sequential};
use kiln::runtime::event::{self, Category};
use kiln::{
    DType, Device, Error, Generator, Mode, Options, Result, Stance, Tensor, Var, compile, compile_module,
    compile_module_with, compile_with, set_stance,
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A stance is the whole process's: tests that set one take turns with those that a stance would disturb.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn random(seed: u64, shape: &[usize]) -> Tensor {
    Generator::new(seed).randn(shape.to_vec(), DType::F32, Device::Cpu).unwrap()
}

#[track_caller]
fn assert_close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape());
    for (x, y) in a.to_vec::<f32>().unwrap().iter().zip(b.to_vec::<f32>().unwrap()) {
        assert!((x - y).abs() <= 3e-5 * (1.0 + y.abs()), "{x} and {y}");
    }
}

fn network() -> Sequential {
    Sequential::new()
        .then(LayerNorm::new(16, 1e-5).unwrap())
        .then(Linear::new(16, 48).unwrap())
        .then(Gelu::default())
        .then(Linear::new(48, 16).unwrap())
}

/// Enough to try a few ways of each kernel.
const BUDGET: Duration = Duration::from_millis(40);

fn all_options() -> Vec<Options> {
    let mut all: Vec<Options> =
        Mode::ALL.into_iter().map(|mode| Options { mode, tuning_budget: BUDGET, ..Options::default() }).collect();
    all.push(Options { freeze: true, ..Options::default() });
    all.push(Options { verify: true, ..Options::default() });
    all.push(Options { background: true, ..Options::default() });
    all.push(Options { never_slower: true, ..Options::default() });
    all.push(Options { disable: true, ..Options::default() });
    all.push(Options {
        mode: Mode::MaxAutotune,
        tuning_budget: BUDGET,
        freeze: true,
        verify: true,
        never_slower: true,
        background: true,
        ..Options::default()
    });
    all
}

#[test]
fn every_option_gives_the_same_answers() {
    let _turn = alone();
    for options in all_options() {
        let model = network();
        let fast = compile_module_with(model, options.clone());
        for rows in [1, 3, 3, 7, 1, 3] {
            let x = random(rows as u64, &[rows, 16]);
            assert_close(
                &kiln::no_grad(|| fast.call(&x)).unwrap(),
                &kiln::no_grad(|| fast.inner().forward(&x)).unwrap(),
            );
        }
    }
}

#[test]
fn every_option_updates_variables() {
    let _turn = alone();
    for options in all_options() {
        let (state, twin) = (Var::new(&random(1, &[4, 8])), Var::new(&random(1, &[4, 8])));
        let weight = random(2, &[8, 8]);
        let step = |state: &Var, x: &Tensor| -> Result<Tensor> {
            let y = x.matmul(&weight)?.tanh()?;
            state.mul_assign(0.5)?;
            state.add_assign(&y)?;
            state.get().sum(-1)
        };
        let fast = compile_with(|x: &Tensor| step(&state, x), options.clone());
        for turn in 0..5 {
            let x = random(turn, &[4, 8]);
            assert_close(&fast.call(&x).unwrap(), &step(&twin, &x).unwrap());
            assert_close(&state.get(), &twin.get());
        }
    }
}

#[test]
fn frozen_weights_are_prepared_once_a_version() {
    let _turn = alone();
    let layer = Linear::new(32, 32).unwrap();
    let fast = compile_module_with(layer, Options { freeze: true, ..Options::default() });
    let prepares = |fast: &kiln::Compiled<Linear, Tensor, Tensor>| {
        fast.programs()[0].segments[0].frozen.as_ref().unwrap().memory().prepares
    };
    let x = random(1, &[2, 32]);
    for _ in 0..3 {
        assert_close(&fast.call(&x).unwrap(), &fast.inner().forward(&x).unwrap());
    }
    assert_eq!(prepares(&fast), 1);
    fast.weight.mul_assign(2.0).unwrap();
    for _ in 0..3 {
        assert_close(&fast.call(&x).unwrap(), &fast.inner().forward(&x).unwrap());
    }
    assert_eq!(prepares(&fast), 2);
    assert_eq!(fast.stats().compiles, 1);
}

#[test]
fn stances() {
    let _turn = alone();
    let fast = compile(|x: &Tensor| x.exp()?.neg());
    let (known, unknown) = (random(1, &[4]), random(1, &[4]).to_dtype(DType::F64).unwrap());
    fast.call(&known).unwrap();
    {
        let _stance = set_stance(Stance::ForceEager);
        fast.call(&known).unwrap();
        assert_eq!((fast.stats().fallbacks, fast.stats().hits), (1, 0));
    }
    {
        let _stance = set_stance(Stance::EagerOnRecompile);
        fast.call(&known).unwrap();
        fast.call(&unknown).unwrap();
        assert_eq!((fast.stats().fallbacks, fast.stats().hits, fast.stats().compiles), (2, 1, 1));
    }
    {
        let _stance = set_stance(Stance::FailOnRecompile);
        fast.call(&known).unwrap();
        let error = fast.call(&unknown).unwrap_err();
        assert!(matches!(error, Error::Recompile { .. }));
        assert!(error.to_string().contains("f64[4]"), "{error}");
    }
    fast.call(&unknown).unwrap();
    assert_eq!((fast.stats().fallbacks, fast.stats().hits, fast.stats().compiles), (2, 2, 2));
}

#[test]
fn the_faster_is_kept_and_said() {
    let _turn = alone();
    let said = std::sync::Arc::new(Mutex::new(Vec::new()));
    let sink = said.clone();
    let _listening = event::listen(&[Category::Perf, Category::Kernels], move |event| {
        sink.lock().unwrap().push(event.to_string());
    });
    // Many operations on few elements: one launch on one thread against eighty, whoever else keeps the machine busy.
    let fast = compile_with(
        |x: &Tensor| (0..20).try_fold(x.clone(), |x, _| x.exp()?.add(1.0)?.log()?.mul(0.5)),
        Options { never_slower: true, ..Options::default() },
    );
    let x = random(1, &[16]);
    for _ in 0..3 {
        assert_close(&fast.call(&x).unwrap(), &fast.inner()(&x).unwrap());
    }
    let said: Vec<String> = said.lock().unwrap().iter().filter(|text| text.contains("never_slower")).cloned().collect();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("compiled is kept"), "{said:?}");
}

#[test]
fn a_compiled_module_stays_the_module() {
    let _turn = alone();
    let model = network();
    let names: Vec<String> = model.state_dict().into_keys().collect();
    let fast = compile_module::<_, Tensor>(model);
    assert_eq!(fast.state_dict().into_keys().collect::<Vec<_>>(), names);
    assert_eq!(fast.parameters().len(), 6);
    // A part of another module, with the names it had.
    let whole = Sequential::new().then(compile_module::<_, Tensor>(Linear::new(3, 3).unwrap())).then(Gelu::default());
    assert_eq!(whole.state_dict().into_keys().collect::<Vec<_>>(), ["0.bias", "0.weight"]);
    assert_eq!(whole.forward(&random(1, &[2, 3])).unwrap().shape(), [2, 3]);
}

#[test]
fn training_and_use_are_two_ways() {
    let _turn = alone();
    let model = Sequential::new().then(Linear::new(8, 8).unwrap()).then(Dropout::new(0.5));
    let fast = compile_module::<_, Tensor>(model);
    let x = random(1, &[4, 8]);
    let zeros = |y: &Tensor| y.to_vec::<f32>().unwrap().iter().filter(|v| **v == 0.0).count();
    assert!(zeros(&fast.call(&x).unwrap()) > 4);
    fast.eval();
    assert_eq!(zeros(&fast.call(&x).unwrap()), 0);
    fast.train();
    let (a, b) = (fast.call(&x).unwrap(), fast.call(&x).unwrap());
    assert!(zeros(&a) > 4 && a.to_vec::<f32>().unwrap() != b.to_vec::<f32>().unwrap());
    assert_eq!((fast.stats().compiles, fast.stats().branches), (1, 1));
}

#[test]
fn gradients_go_through_compiled_functions() {
    let _turn = alone();
    let f = |w: &Var, x: &Tensor| x.matmul(&w.get())?.tanh()?.sum(-1);
    let (w, twin) =
        (Var::new(&random(1, &[8, 5])).requires_grad(true), Var::new(&random(1, &[8, 5])).requires_grad(true));
    let inner = w.clone();
    let fast = compile(move |x: &Tensor| f(&inner, x));
    for rows in [3, 3, 6, 9] {
        let x = random(rows as u64, &[rows, 8]).requires_grad();
        let (loss, other) = (
            fast.call(&x).unwrap().exp().unwrap().sum(..).unwrap(),
            f(&twin, &x).unwrap().exp().unwrap().sum(..).unwrap(),
        );
        let (by_x, by_x_eager) = (loss.gradients(&[&x]).unwrap(), other.gradients(&[&x]).unwrap());
        assert_close(by_x.get(&x).unwrap(), by_x_eager.get(&x).unwrap());
        loss.backward().unwrap();
        other.backward().unwrap();
        assert_close(&w.grad().unwrap(), &twin.grad().unwrap());
    }
    assert_eq!(fast.stats().compiles, 2);
}

#[test]
fn warm_up_makes_programs_without_running() {
    let _turn = alone();
    let counter = Var::new(&Tensor::zeros([1], DType::F32, Device::Cpu).unwrap());
    let inner = counter.clone();
    let fast = compile(move |x: &Tensor| {
        inner.add_assign(1.0)?;
        x.mul(inner.get())
    });
    fast.warm_up(&[random(1, &[2]), random(1, &[5]), random(1, &[9])]).unwrap();
    assert_eq!(counter.get().item::<f32>().unwrap(), 0.0, "nothing ran");
    let compiles = fast.stats().compiles;
    let _stance = set_stance(Stance::FailOnRecompile);
    fast.call(&random(2, &[2])).unwrap();
    fast.call(&random(2, &[5])).unwrap();
    fast.call(&random(2, &[9])).unwrap();
    assert_eq!((fast.stats().compiles, counter.get().item::<f32>().unwrap()), (compiles, 3.0));
}

#[test]
fn eager_numerics_are_eager_bit_for_bit() {
    let _turn = alone();
    let f = |x: &Tensor| x.mul(1.7)?.add(0.3)?.exp()?.mul(x)?.sub(0.1)?.tanh();
    for dtype in [DType::Bf16, DType::F16, DType::F32] {
        let x = random(5, &[40, 33]).to_dtype(dtype).unwrap();
        let exact = compile_with(f, Options { numerics: kiln::Numerics::Eager, ..Options::default() });
        assert_eq!(exact.call(&x).unwrap().to_bytes().unwrap(), f(&x).unwrap().to_bytes().unwrap(), "{dtype}");
        assert_eq!(exact.programs()[0].kernels.len(), 1);
        // The default keeps f32 inside of the kernel: closer to the truth, and so not the same bits.
        let fast = compile(f).call(&x).unwrap().to_bytes().unwrap();
        assert_eq!(fast == f(&x).unwrap().to_bytes().unwrap(), dtype == DType::F32, "{dtype}");
    }
}

#[test]
fn a_region_is_compiled_by_wrapping_it() {
    let _turn = alone();
    let block = compile(|x: &Tensor| x.exp()?.add(1.0)?.log());
    // In eager code around it the region is a program of its own, compiled once for all layers.
    let eager_model = |x: &Tensor| (0..6).try_fold(x.clone(), |x, _| block.call(&x));
    let x = random(1, &[32]);
    let whole = eager_model(&x).unwrap();
    assert_eq!((block.stats().compiles, block.stats().hits), (1, 5));
    // Inside of a compiled function it is part of that.
    let compiled_model = compile(eager_model);
    assert_close(&compiled_model.call(&x).unwrap(), &whole);
    assert_eq!((block.stats().compiles, block.stats().hits), (1, 5));
}

#[test]
fn lines_reach_kernels() {
    let _turn = alone();
    let line = line!() + 1;
    let fast = compile(|x: &Tensor| x.exp()?.add(1.0));
    fast.call(&random(1, &[7])).unwrap();
    let programs = fast.programs();
    let code = programs[0].segments[0].code.as_ref().unwrap();
    let source = code.program().steps()[0].source().to_string();
    assert!(source.ends_with(&format!("options.rs:{line}")), "{source}");
    for node in code.graph().nodes().iter().filter(|node| !node.operands.is_empty()) {
        assert!(node.source.to_string().ends_with(&format!("options.rs:{line}")), "{:?}", node.op);
    }
}

#[test]
fn compiled_functions_may_be_shared() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&compile(|x: &Tensor| x.exp()));
    shared(&compile_module::<_, Tensor>(Linear::new(2, 2).unwrap()));
    shared(&compile(|(x, n): &(Vec<Tensor>, i64)| Ok((x[*n as usize].clone(), x.len()))));
}

#[test]
fn max_autotune_measures_once() {
    let _turn = alone();
    let said = std::sync::Arc::new(Mutex::new(Vec::new()));
    let sink = said.clone();
    let _listening = event::listen(&[Category::Perf], move |event| {
        if matches!(event, event::Event::ProgramTuned { .. }) {
            sink.lock().unwrap().push(event.to_string());
        }
    });
    for freeze in [false, true] {
        let options = Options { mode: Mode::MaxAutotune, tuning_budget: BUDGET, freeze, ..Options::default() };
        let fast = compile_module_with(network(), options);
        for turn in 0..4 {
            let x = random(turn, &[5, 16]);
            assert_close(&fast.call(&x).unwrap(), &fast.inner().forward(&x).unwrap());
        }
    }
    assert_eq!(said.lock().unwrap().len(), 2, "{said:?}");
    // One program for many sizes is measured for each of them.
    let dynamic = kiln::Dynamic::range("t", 1..=64).at(0, 0).into();
    let options = Options { mode: Mode::MaxAutotune, tuning_budget: BUDGET, dynamic, ..Options::default() };
    let fast = compile_module_with(network(), options);
    for rows in [1, 9, 40, 9, 1, 40] {
        let x = random(1, &[rows, 16]);
        assert_close(&fast.call(&x).unwrap(), &fast.inner().forward(&x).unwrap());
    }
    assert_eq!((fast.stats().compiles, said.lock().unwrap().len()), (1, 5), "{said:?}");
}

#[test]
fn tuning_does_not_run_off_with_a_position() -> Result<()> {
    let _turn = alone();
    let tuned = std::sync::Arc::new(Mutex::new(0));
    let sink = tuned.clone();
    let _listening = event::listen(&[Category::Perf], move |event| {
        if let event::Event::ProgramTuned { kernels, .. } = event {
            *sink.lock().unwrap() += kernels;
        }
    });
    let (table, x) = (random(1, &[3, 700]), random(2, &[37, 700]));
    let position = Var::new(&Tensor::zeros(1, DType::I64, Device::Cpu)?);
    let f = |x: &Tensor| {
        // Tuning runs this many more times than the table has rows.
        let at = position.get();
        let y = (x + table.index_select(0, &at)?)?.tanh()?;
        position.set(&(at + 1)?)?;
        Ok(y)
    };
    let options = Options { mode: Mode::MaxAutotune, tuning_budget: BUDGET, fullgraph: true, ..Options::default() };
    let fast = compile_with(f, options);
    for row in 0..3 {
        assert_close(&fast.call(&x)?, &(&x + table.narrow(0, row, 1)?)?.tanh()?);
        assert_eq!(position.get().item::<i64>()?, row + 1);
    }
    assert!(*tuned.lock().unwrap() > 0, "nothing was measured");
    Ok(())
}
