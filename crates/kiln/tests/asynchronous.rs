//! A device whose launches return before they are done: what is measured is the work, not the enqueue.

use kiln::runtime::QueuedBackend;
use kiln::runtime::event::{self, Category};
use kiln::{DType, Device, Mode, Options, Result, Tensor, Var, compile_with};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const DELAY: Duration = Duration::from_millis(3);

/// A device of its own for a test, with launches of [`DELAY`] each.
fn device(number: u32) -> (Device, Arc<QueuedBackend>) {
    let device = Device::Cuda(number);
    let backend = Arc::new(QueuedBackend::new(kiln::backend(Device::Cpu), device, DELAY));
    assert!(kiln::backend::install(backend.clone()), "the device is used by another test");
    (device, backend)
}

#[test]
fn results_are_those_of_the_cpu() -> Result<()> {
    let (device, _) = device(100);
    let f = |x: &Tensor| x.exp()?.sum(-1)?.mul(0.5);
    // No random numbers: they would take keys of the generator that another test seeds at the same time.
    let x = Tensor::arange(400, DType::F32, Device::Cpu)?.mul(0.01)?.reshape([4, 100])?;
    let want = f(&x)?.to_vec::<f32>()?;
    let there = x.to_device(device)?;
    for mode in [Mode::Default, Mode::ReduceOverhead] {
        let fast = compile_with(f, Options { mode, ..Options::default() });
        for _ in 0..3 {
            assert_eq!(fast.call(&there)?.to_vec::<f32>()?, want, "{mode:?}");
        }
    }
    assert_eq!(f(&there)?.to_vec::<f32>()?, want);
    Ok(())
}

#[test]
fn synchronize_waits_for_launches() -> Result<()> {
    let (device, backend) = device(101);
    let x = Tensor::ones(8, DType::F32, device)?;
    x.exp()?;
    kiln::synchronize()?;
    let (start, waits) = (Instant::now(), backend.waits());
    x.exp()?;
    assert_eq!(backend.waits(), waits, "an op waited");
    kiln::synchronize()?;
    assert!(start.elapsed() >= DELAY && backend.waits() > waits);
    Ok(())
}

/// One launch against many: by the time of enqueues alone, which says nothing of launches, the program and the ops of this
/// function are alike.
#[test]
fn never_slower_measures_launches() -> Result<()> {
    const OPS: u32 = 8;
    let (device, _) = device(102);
    let f = |x: &Tensor| (0..OPS).try_fold(x.clone(), |x, _| x.mul(0.5)?.exp());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let into = heard.clone();
    let listening = event::listen(&[Category::Perf], move |event| into.lock().unwrap().push(event.to_string()));
    let fast = compile_with(f, Options { never_slower: true, ..Options::default() });
    let x = Tensor::ones(8, DType::F32, device)?;
    for _ in 0..3 {
        fast.call(&x)?;
    }
    drop(listening);
    let heard = heard.lock().unwrap();
    let line = heard.iter().find(|line| line.contains("never_slower")).unwrap_or_else(|| panic!("{heard:?}"));
    assert!(line.contains("compiled is kept"), "{line}");
    let times: Vec<f64> = line.split([' ', ',', ';']).filter_map(milliseconds).collect();
    let [compiled, eager] = times[..] else { panic!("{line}") };
    let delay = DELAY.as_secs_f64() * 1e3;
    assert!(compiled >= delay && eager >= 2.0 * f64::from(OPS) * delay, "{line}");
    Ok(())
}

fn milliseconds(word: &str) -> Option<f64> {
    let (number, factor) = [("ms", 1.0), ("µs", 1e-3), ("ns", 1e-6), ("s", 1e3)]
        .iter()
        .find_map(|(unit, factor)| Some((word.strip_suffix(unit)?, factor)))?;
    Some(number.parse::<f64>().ok()? * factor)
}

#[test]
fn explain_measures_launches_and_the_memory_of_the_device() -> Result<()> {
    let (device, _) = device(103);
    let fast = kiln::compile(|x: &Tensor| x.exp()?.sum(-1)?.exp());
    let explanation = fast.explain(&Tensor::ones([8, 100], DType::F32, device)?)?;
    let kernels = &explanation.segments[0].kernels;
    assert!(kernels.iter().all(|kernel| kernel.time >= DELAY && kernel.fastest >= DELAY), "{explanation}");
    let all = DELAY * kernels.len() as u32;
    assert!(explanation.segments[0].run.fastest >= all && explanation.call.unwrap().fastest >= all, "{explanation}");
    let run = explanation.first_call.iter().find(|(name, _)| name == "run").map(|(_, took)| *took);
    assert!(run >= Some(all), "{:?}", explanation.first_call);
    assert!(explanation.machine.copy > 0.0);
    assert!(explanation.to_string().contains("measured on cuda:103, which copies its memory at"), "{explanation}");
    Ok(())
}

/// Launches are measured again and again; what they count up begins anew each time, and the caller's variable stays.
#[test]
fn explain_measures_the_same_step_again_and_again() -> Result<()> {
    let (device, _) = device(105);
    for device in [Device::Cpu, device] {
        let table = Tensor::arange(4, DType::F32, device)?;
        let position = Var::new(&Tensor::zeros(1, DType::I64, device)?);
        let fast = kiln::compile(|table: &Tensor| {
            let read = table.index_select(0, &position.get())?;
            position.set(&(position.get() + 1)?)?;
            Ok(read)
        });
        for step in 0..3 {
            let explanation = fast.explain(&table)?;
            assert!(!explanation.segments[0].kernels.is_empty());
            assert_eq!(position.get().to_vec::<i64>()?, [step + 1]);
        }
    }
    Ok(())
}

#[test]
fn the_cpu_keeps_its_backend_and_a_device_the_first() {
    let (device, _) = device(104);
    let another = |device| Arc::new(QueuedBackend::new(kiln::backend(Device::Cpu), device, Duration::ZERO));
    assert!(!kiln::backend::install(another(device)));
    assert!(!kiln::backend::install(another(Device::Cpu)));
    assert!(!kiln::backend(Device::Cpu).is_asynchronous());
}

/// Numbers and random keys go with the launches that read them: no copy for a number that is the same again, one for all new ones of
/// a call, and each call in flight has its own.
#[test]
fn numbers_of_a_call_are_one_copy() -> Result<()> {
    let (device, backend) = device(110);
    let x = Tensor::from_vec((0..8).map(|n| n as f32).collect::<Vec<_>>(), 8, device)?;
    let scaled = |n: usize| x.mul(n as f64)?.add(0.5);
    scaled(0)?;
    let before = backend.copies();
    let results: Vec<Tensor> = (1..4).map(scaled).collect::<Result<_>>()?;
    assert_eq!(backend.copies() - before, 3, "one for each product");
    for (n, result) in results.iter().enumerate() {
        let want: Vec<f32> = (0..8).map(|x| x as f32 * (n + 1) as f32 + 0.5).collect();
        assert_eq!(result.to_vec::<f32>()?, want);
    }

    // Two keys and a number a call.
    let noisy = |(x, scale): &(Tensor, Tensor)| {
        let noise = Tensor::rand(8, DType::F32, x.device())?.sub(Tensor::rand(8, DType::F32, x.device())?)?;
        x.add(&noise.mul(scale)?)
    };
    let scale = |value: f32, device| Tensor::from_vec(vec![value], 1, device);
    let here = x.to_device(Device::Cpu)?;
    for mode in [Mode::Default, Mode::ReduceOverhead] {
        let (fast, plain) = (
            compile_with(noisy, Options { mode, ..Options::default() }),
            compile_with(noisy, Options { mode, ..Options::default() }),
        );
        kiln::manual_seed(3);
        let mut there = Vec::new();
        for call in 0..4 {
            let scale = scale(call as f32, device)?;
            let before = backend.copies();
            there.push(fast.call(&(x.clone(), scale))?);
            assert!(call == 0 || backend.copies() - before == 1, "{mode:?}, call {call}");
        }
        kiln::manual_seed(3);
        for (call, there) in there.iter().enumerate() {
            let want = plain.call(&(here.clone(), scale(call as f32, Device::Cpu)?))?;
            assert_eq!(there.to_vec::<f32>()?, want.to_vec::<f32>()?, "{mode:?}, call {call}");
        }
    }
    Ok(())
}

/// A variable that begins as a number gets memory when it is first updated, eagerly or by a program; earlier values stay.
#[test]
fn a_variable_of_a_number_is_updated() -> Result<()> {
    let (device, _) = device(111);
    let count = Var::named("count", &Tensor::from_vec(vec![1i64], 1, device)?);
    let first = count.get();
    let step = {
        let count = count.clone();
        compile_with(
            move |x: &Tensor| {
                count.set(&(&count.get() + 1)?)?;
                x.add(&count.get().to_dtype(DType::F32)?)
            },
            Options { mode: Mode::ReduceOverhead, ..Options::default() },
        )
    };
    let x = Tensor::zeros(1, DType::F32, device)?;
    let results: Vec<Tensor> = (0..4).map(|_| step.call(&x)).collect::<Result<_>>()?;
    for (number, result) in results.iter().enumerate() {
        assert_eq!(result.to_vec::<f32>()?, [number as f32 + 2.0]);
    }
    count.set(&Tensor::from_vec(vec![40i64], 1, device)?)?;
    assert_eq!(step.call(&x)?.to_vec::<f32>()?, [41.0]);
    assert_eq!((first.to_vec::<i64>()?, count.get().to_vec::<i64>()?), (vec![1], vec![41]));
    Ok(())
}

/// Counted loops are ops of graphs on any device, and nothing waits for a turn: forward, gradients and a layer made of one.
#[test]
fn counted_loops_do_not_wait() -> Result<()> {
    let (device, backend) = device(112);
    let running = || {
        kiln::scan(|(sum, x): &(Tensor, Tensor)| {
            let sum = sum.mul(0.5)?.add(x)?;
            Ok((sum.clone(), sum.mul(&sum)?))
        })
    };
    let x = Tensor::arange(12, DType::F32, Device::Cpu)?.mul(0.125)?.reshape([4, 3])?;
    let run = |loops: &kiln::Scan<Tensor, Tensor, Tensor>, x: &Tensor| {
        let (last, all) = loops.call(Tensor::zeros(3, DType::F32, x.device())?, x.clone())?;
        Ok::<_, kiln::Error>((last, all))
    };
    let (here, there) = (running(), running());
    let (last, all) = run(&here, &x)?;
    let f = compile_with(move |x: &Tensor| run(&there, x), Options::default());
    let x_there = x.to_device(device)?;
    for round in 0..3 {
        let waits = backend.waits();
        let got = f.call(&x_there)?;
        assert!(round == 0 || backend.waits() == waits, "a turn was waited for");
        assert_eq!(got.0.to_vec::<f32>()?, last.to_vec::<f32>()?);
        assert_eq!(got.1.to_vec::<f32>()?, all.to_vec::<f32>()?);
    }
    let longer = Tensor::cat(&[x.clone(), x.clone()], 0)?;
    let got = f.call(&longer.to_device(device)?)?;
    assert_eq!(got.1.to_vec::<f32>()?, run(&here, &longer)?.1.to_vec::<f32>()?);
    assert_eq!((f.stats().compiles, f.stats().breaks), (2, 0));
    // Outside of a compiled function, with gradients.
    let gradient = |x: &Tensor| -> Result<Vec<f32>> {
        let var = Var::new(x).requires_grad(true);
        run(&running(), &var.get())?.1.sum(..)?.backward()?;
        var.grad().expect("a gradient").to_vec()
    };
    assert_eq!(gradient(&x_there)?, gradient(&x)?);
    Ok(())
}

/// The bool of a loop until a condition fails is read behind what was queued: once before the first turn, and after each.
#[test]
fn conditional_loops_wait_for_their_condition_alone() -> Result<()> {
    let (device, backend) = device(113);
    let doubled = || kiln::while_loop(|x: &Tensor| x.amax(..)?.lt(100.0), |x: &Tensor| x.add(x));
    let f = |doubled: kiln::WhileLoop<Tensor>| {
        compile_with(move |x: &Tensor| doubled.call(x.mul(0.5)?)?.sub(1.0), Options::default())
    };
    let (here, there) = (f(doubled()), f(doubled()));
    for (first, turns) in [(3.0f32, 7), (300.0, 0), (5.0, 6)] {
        let x = Tensor::new([first, 1.0], Device::Cpu)?;
        let x_there = x.to_device(device)?;
        there.call(&x_there)?;
        let waits = backend.waits();
        let got = there.call(&x_there)?;
        assert_eq!(backend.waits() - waits, turns + 1, "from {first}");
        assert_eq!(got.to_vec::<f32>()?, here.call(&x)?.to_vec::<f32>()?);
    }
    assert_eq!((there.stats().compiles, there.stats().breaks), (1, 0));
    Ok(())
}
