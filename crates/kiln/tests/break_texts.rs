//! What is said of graph breaks and of loops that are no op: the line, what the function does there, and the way out.

use kiln::runtime::event::{self, Category, Event};
use kiln::{DType, Device, Generator, Result, Tensor, Var, compile, scan, while_loop};
use std::sync::{Arc, Mutex};

type Function = Box<dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync>;

fn random(shape: &[usize]) -> Tensor {
    Generator::new(1).randn(shape, DType::F32, Device::Cpu).unwrap()
}

/// What is said on this thread while `work` is done.
fn heard(category: Category, work: impl FnOnce()) -> Vec<Event> {
    let events: Arc<Mutex<Vec<Event>>> = Arc::default();
    let (into, own) = (events.clone(), std::thread::current().id());
    let listening = event::listen(&[category], move |event: &Event| {
        if std::thread::current().id() == own {
            into.lock().unwrap().push(event.clone());
        }
    });
    work();
    drop(listening);
    events.lock().unwrap().clone()
}

fn zero() -> Result<Tensor> {
    Tensor::zeros(8, DType::F32, Device::Cpu)
}

/// A scan whose body is no graph because of `f`.
fn scanned(f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Function {
    let body = scan(move |(h, x): &(Tensor, Tensor)| {
        let h = h.add(f(x)?)?;
        Ok((h.clone(), h))
    });
    Box::new(move |x| Ok(body.call(zero()?, x.clone())?.1))
}

/// Functions that break, each with a word of what is said and of the way out.
fn broken() -> Vec<(Function, &'static str, &'static str)> {
    let weight = Var::new(&Tensor::full((), 0.3, DType::F32, Device::Cpu).unwrap()).requires_grad(true);
    let counter = Var::new(&zero().unwrap());
    let (own, count) = (weight.clone(), counter.clone());
    let shrink = while_loop(|x: &Tensor| x.abs()?.amax(..)?.gt(1.0), move |x: &Tensor| x.mul(own.get()));
    let own = weight.clone();
    let inner = while_loop(|x: &Tensor| x.abs()?.amax(..)?.gt(1.0), move |x: &Tensor| x.mul(own.get()));
    let disabled = kiln::disable(|x: &Tensor| x.exp());
    let in_loop = kiln::disable(|x: &Tensor| x.exp());
    vec![
        (Box::new(|x| x.masked_select(&x.gt(0.0)?)?.mul(2.0)), "size depends on elements", "`where_`"),
        (Box::new(|x| x.gt(0.0)?.nonzero()?.add(1)), "size depends on elements", "`where_`"),
        (Box::new(|x| x.round()?.unique()?.mul(2.0)), "size depends on elements", "`where_`"),
        (Box::new(move |x| disabled.call(x)?.mul(2.0)), "calls a disabled part", "`kiln::disable`"),
        (
            Box::new(|x| x.matmul(&x.t()?)?.add(Tensor::eye(8, DType::F32, Device::Cpu)?.mul(9.0)?)?.cholesky()),
            "factorises matrices on the host (cholesky)",
            "before the compiled function",
        ),
        (Box::new(|x| x.mul(f64::from(x.amax(..)?.item::<f32>()?))), "reads a tensor's element", "`where_`"),
        (
            Box::new(|x| {
                let sides = || x.mul(f64::from(x.amin(..)?.item::<f32>()?));
                kiln::cond(&x.sum(..)?.gt(-1e9)?, sides, || x.neg())
            }),
            "side of `cond`",
            "before or after `cond`",
        ),
        (scanned(|x| x.dropout(0.5)), "draws random numbers in a loop", "before the loop"),
        (
            scanned(move |x| {
                count.set(&count.get().add(x)?)?;
                Ok(x.clone())
            }),
            "changes a variable in a loop",
            "carry its value",
        ),
        (scanned(|x| x.mul(f64::from(x.sum(..)?.item::<f32>()?))), "reads a tensor's element", "`kiln::cond`"),
        (scanned(move |x| in_loop.call(x)), "calls a disabled part", "before or after the loop"),
        (scanned(|x| x.masked_select(&x.gt(0.0)?)?.sum(..)), "size depends on elements", "mask"),
        (
            Box::new(|x| {
                let body = scan(|(h, x): &(Tensor, Tensor)| Ok((h.unsqueeze(0)?, x.clone())));
                Ok(body.call(zero()?.sum(..)?, x.clone())?.1)
            }),
            "other shapes",
            "same shape",
        ),
        (Box::new(move |x| shrink.call(x.clone())), "gradients through a loop without a bound", "`bounded(n)`"),
        (scanned(move |x| inner.call(x.clone())), "gradients through a loop without a bound", "`bounded(n)`"),
    ]
}

/// Each is said once a capture, with a line of this file.
#[test]
fn every_break_is_heard_once_with_its_line_and_the_way_out() {
    for (number, (f, what, fix)) in broken().into_iter().enumerate() {
        let fast = compile(move |x: &Tensor| f(x));
        let x = random(&[8, 8]);
        let events = heard(Category::Breaks, || {
            for _ in 0..3 {
                fast.call(&x).unwrap();
            }
        });
        let said: Vec<String> = events.iter().map(Event::to_string).collect();
        let own: Vec<_> = events
            .iter()
            .filter(|event| matches!(event, Event::GraphBreak { what: said, .. } if said.contains(what)))
            .collect();
        // What a body reads turn by turn, it reads in programs of its own.
        assert!(!own.is_empty(), "{number}: '{what}' in {said:#?}");
        let Event::GraphBreak { fix: said_fix, at, .. } = own[0] else { unreachable!() };
        assert!(said_fix.contains(fix), "{number}: '{fix}' in {said_fix}");
        assert!(at.file.ends_with("break_texts.rs"), "{number}: {at}");
        // Bodies that run turn by turn are captured by themselves.
        let at_this_line = own.iter().filter(|event| event.at() == Some(at)).count();
        assert_eq!(at_this_line, 1, "{number}: {said:#?}");
        for event in &events {
            assert!(matches!(event, Event::GraphBreak { fix, .. } if !fix.is_empty()), "{number}: {event}");
        }
    }
}

#[test]
fn explain_says_of_every_break_what_it_costs_and_the_way_out() -> Result<()> {
    for (number, (f, what, fix)) in broken().into_iter().enumerate() {
        let explanation = compile(move |x: &Tensor| f(x)).explain(&random(&[8, 8]))?;
        assert!(!explanation.breaks.is_empty(), "{number}");
        for b in &explanation.breaks {
            assert!(!b.fix.is_empty() && b.cost.is_some() && !b.at.is_unknown(), "{number}: {b:?}");
        }
        assert!(
            explanation.breaks.iter().any(|b| b.what.contains(what) && b.fix.contains(fix)),
            "{number}: {:?}",
            explanation.breaks
        );
    }
    Ok(())
}

/// The line of the loop is the line of the break, and the line in the body is in its text.
#[test]
fn a_loop_that_runs_turn_by_turn_names_what_in_its_body_is_no_graph() {
    let noisy = scan(|(h, x): &(Tensor, Tensor)| {
        let h = h.add(x.dropout(0.5)?)?;
        Ok((h.clone(), h))
    });
    let inner = line!() - 3;
    let fast = compile(move |x: &Tensor| Ok::<Tensor, kiln::Error>(noisy.call(zero()?, x.clone())?.1));
    let outer = line!() - 1;
    let events = heard(Category::Breaks, || drop(fast.call(&random(&[4, 8])).unwrap()));
    let [Event::GraphBreak { what, at, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(at.line, outer, "{what}");
    assert!(what.contains(&format!("break_texts.rs:{inner}")), "{what}");
    let options = kiln::Options { fullgraph: true, ..Default::default() };
    let noisy = scanned(|x| x.dropout(0.5));
    let error = kiln::compile_with(move |x: &Tensor| noisy(x), options).call(&random(&[4, 8])).unwrap_err();
    assert!(error.to_string().contains("draws random numbers in a loop"), "{error}");
}

/// A `for` over a size: the second size says so, and names `scan`.
#[test]
fn a_for_over_a_size_names_scan_at_the_second_size() {
    let sum = |x: &Tensor| -> Result<Tensor> {
        let mut sum = zero()?;
        for row in 0..x.shape()[0] {
            sum = sum.mul(0.5)?.add(x.select(0, row)?)?;
        }
        Ok(sum)
    };
    let line = line!() - 5;
    let unbound = |x: &Tensor| -> Result<Tensor> {
        let mut sum = zero()?;
        for row in x.unbind(0)? {
            sum = sum.mul(0.5)?.add(row)?;
        }
        Ok(sum)
    };
    let unbound_line = line!() - 5;
    let with_break = move |x: &Tensor| sum(&x.mul(f64::from(x.amax(..)?.abs()?.gt(-1.0)?.item::<bool>()? as u8))?);
    let functions: [(Function, u32); 3] =
        [(Box::new(sum), line), (Box::new(unbound), unbound_line), (Box::new(with_break), line)];
    for (number, (f, line)) in functions.into_iter().enumerate() {
        let fast = compile(move |x: &Tensor| f(x));
        fast.call(&random(&[4, 8])).unwrap();
        let mut said = Vec::new();
        let again = heard(Category::Recompiles, || {
            said = heard(Category::Guards, || drop(fast.call(&random(&[5, 8])).unwrap()));
        });
        let scan = said.iter().find_map(|event| match event {
            Event::Specialised { fix, at, .. } if fix.contains("`kiln::scan`") => Some(at.clone()),
            _ => None,
        });
        let at = scan.unwrap_or_else(|| panic!("{number}: {said:?}"));
        assert!(at.file.ends_with("break_texts.rs") && at.line == line, "{number}: {at}, not {line}");
        assert!(
            matches!(&again[..], [Event::Recompile { fix, .. }] if fix.contains("`kiln::scan`")),
            "{number}: {again:?}"
        );
    }
}
