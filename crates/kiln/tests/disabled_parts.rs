//! Disabled parts of compiled functions mean what they mean in eager code: gradients go through them, and variables are
//! what they were when they were read.

use kiln::{Device, Generator, Options, Result, Setting, Tensor, Var, compile, compile_with, disable, grad, no_grad};

fn t(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len(), Device::Cpu).unwrap()
}

fn weight(values: &[f32]) -> Var {
    Var::new(&t(values)).requires_grad(true)
}

/// What a function gives and leaves behind, as numbers.
type Seen = Vec<Vec<f32>>;

fn look(seen: &mut Seen, x: Option<Tensor>) -> Result<()> {
    seen.push(x.map_or(Ok(vec![f32::NAN]), |x| x.to_vec())?);
    Ok(())
}

/// Runs a scene as it is and compiled, three calls each. `scene` makes the function and says which variables to look at.
fn both_ways<F: Fn(&Tensor) -> Result<Tensor>>(scene: impl Fn() -> Result<(F, Vec<Var>)>) -> Result<Vec<Seen>> {
    let run = |is_compiled: bool| -> Result<Vec<Seen>> {
        let (f, vars) = scene()?;
        let fast = compile(f);
        let mut all = Vec::new();
        for x in [[1.0, 2.0], [3.0, -1.0], [-2.0, 0.5]] {
            let mut seen = Seen::new();
            let x = t(&x);
            let y = if is_compiled { fast.call(&x) } else { (fast.inner())(&x) };
            look(&mut seen, Some(y?))?;
            for var in &vars {
                look(&mut seen, Some(var.get()))?;
                look(&mut seen, var.grad())?;
            }
            all.push(seen);
        }
        Ok(all)
    };
    let (eager, compiled) = (run(false)?, run(true)?);
    assert_eq!(format!("{eager:?}"), format!("{compiled:?}"), "eager and compiled");
    Ok(eager)
}

#[test]
fn gradients_go_through_a_disabled_part() -> Result<()> {
    // The whole gradient is 4: 1 around the part and 3 through it.
    let seen = both_ways(|| {
        let w = weight(&[1., 1.]);
        let (own, part) = (w.clone(), disable(|h: &Tensor| h.mul(3.0)));
        let f = move |x: &Tensor| {
            let h = (own.get() * x)?;
            let loss = (&h + part.call(&h)?)?.sum(..)?;
            loss.backward()?;
            Ok(loss)
        };
        Ok((f, vec![w]))
    })?;
    assert_eq!(seen[0][2], [4., 8.]);
    // The part is the only way.
    both_ways(|| {
        let w = weight(&[1., 1.]);
        let (own, part) = (w.clone(), disable(|h: &Tensor| h.square()));
        let f = move |x: &Tensor| {
            let loss = part.call(&(own.get() * x)?)?.sum(..)?;
            loss.backward()?;
            Ok(loss)
        };
        Ok((f, vec![w]))
    })?;
    Ok(())
}

#[test]
fn several_parts_with_variables_inside() -> Result<()> {
    let seen = both_ways(|| {
        let (a, b, c) = (weight(&[1., 2.]), weight(&[0.5, 0.25]), weight(&[3., 3.]));
        let (inside, again) = (b.clone(), (b.clone(), c.clone()));
        let first = disable(move |(h, g): &(Tensor, Tensor)| (h * inside.get())?.add(g));
        let second = disable(move |h: &Tensor| (h.square()? * again.0.get())?.add(again.1.get()));
        let own = a.clone();
        let outside = b.clone();
        let f = move |x: &Tensor| {
            let h = (own.get() * x)?;
            let y = first.call(&(h.clone(), x.clone()))?;
            let z = second.call(&(&y * outside.get())?)?;
            let loss = (z + (y * h)?)?.sum(..)?;
            loss.backward()?;
            Ok(loss)
        };
        Ok((f, vec![a, b, c]))
    })?;
    assert!(seen[2].iter().flatten().all(|n| n.is_finite()));
    Ok(())
}

#[test]
fn other_ways_at_other_calls() -> Result<()> {
    // Which variables a part reads depends on data.
    both_ways(|| {
        let (a, b) = (weight(&[1., 2.]), weight(&[0.5, 0.25]));
        let (x, y) = (a.clone(), b.clone());
        let part = disable(move |h: &Tensor| {
            let chosen = if h.sum(..)?.item::<f32>()? > 1.0 { &x } else { &y };
            h * chosen.get()
        });
        let own = a.clone();
        let f = move |x: &Tensor| {
            let loss = part.call(&(own.get() * x)?)?.square()?.sum(..)?;
            loss.backward()?;
            Ok(loss)
        };
        Ok((f, vec![a, b]))
    })?;
    Ok(())
}

#[test]
fn backward_inside_of_the_part() -> Result<()> {
    // It goes on to variables that the captured code before the part has read, and a step inside uses their gradients.
    both_ways(|| {
        let (a, b) = (weight(&[1., 2.]), weight(&[0.5, 0.25]));
        let inside = [a.clone(), b.clone()];
        let part = disable(move |h: &Tensor| {
            let loss = (h * inside[1].get())?.sum(..)?;
            loss.backward()?;
            for var in &inside {
                var.sub_assign((var.grad().unwrap() * 0.5)?)?;
            }
            Ok(loss)
        });
        let own = a.clone();
        let f = move |x: &Tensor| {
            let loss = part.call(&(own.get() * x)?.square()?)?;
            own.get().sum(..)?.add(loss.detach())
        };
        Ok((f, vec![a, b]))
    })?;
    Ok(())
}

#[test]
fn nested_compiled_functions_inside_of_parts() -> Result<()> {
    both_ways(|| {
        let (a, b) = (weight(&[1., 2.]), weight(&[0.5, 0.25]));
        let inside = b.clone();
        let inner = compile(move |h: &Tensor| {
            let y = (h * inside.get())?;
            if y.sum(..)?.item::<f32>()? > 0.0 { y.square() } else { y.mul(3.0) }
        });
        let part = disable(move |h: &Tensor| inner.call(h));
        let own = a.clone();
        let f = move |x: &Tensor| {
            let y = part.call(&(own.get() * x)?)?;
            let scale = if y.sum(..)?.item::<f32>()? > 2.0 { 2.0 } else { 1.0 };
            let loss = (y * scale)?.sum(..)?;
            loss.backward()?;
            Ok(loss)
        };
        Ok((f, vec![a, b]))
    })?;
    Ok(())
}

#[test]
fn gradients_of_gradients() -> Result<()> {
    both_ways(|| {
        let a = weight(&[1., 2.]);
        let (inside, own) = (a.clone(), a.clone());
        let part = disable(move |h: &Tensor| (h.square()? * h)?.mul(inside.get()));
        let f = move |x: &Tensor| {
            let slope = grad(|x: &Tensor| part.call(&x.mul(2.0)?)?.sum(..));
            let curvature = grad(|x: &Tensor| slope(x)?.square()?.sum(..))(x)?;
            let h = (own.get() * x)?;
            let loss = part.call(&h)?.sum(..)?;
            // The penalty on a gradient, as it trains.
            let by = loss.gradients_on_tape(&[&h])?.get(&h).unwrap().clone();
            (loss + by.square()?.sum(..)?)?.backward()?;
            Ok(curvature)
        };
        Ok((f, vec![a]))
    })?;
    Ok(())
}

#[test]
fn gradients_from_outside_of_the_function() -> Result<()> {
    // Both ways through an argument that is on a tape: gradients asked for outside, and inside.
    let run = |is_compiled: bool| -> Result<Vec<Vec<f32>>> {
        let (a, b) = (weight(&[1., 2.]), weight(&[0.5, -0.25]));
        let (own, inside) = (b.clone(), b.clone());
        let part = disable(move |h: &Tensor| (h * inside.get())?.square());
        let fast = compile(move |x: &Tensor| {
            let y = part.call(&(x * own.get())?)?;
            y.sum(..)?.backward()?;
            (own.get() * x)?.exp()
        });
        let mut seen = Vec::new();
        for turn in 0..3 {
            let x = if turn == 1 { t(&[1., 2.]) } else { (a.get() * 3.0)? };
            let y = if is_compiled { fast.call(&x)? } else { (fast.inner())(&x)? };
            y.sum(..)?.backward()?;
            for var in [&a, &b] {
                look(&mut seen, var.grad())?;
            }
            let quiet = no_grad(|| {
                let y = if is_compiled { fast.call(&x) } else { (fast.inner())(&x) };
                y.map_err(|error| error.to_string().split(',').next().unwrap_or_default().to_owned())
            });
            assert_eq!(
                quiet.map(|_| ()),
                Err("backward: the tensor was not computed from anything that wants gradients".into())
            );
        }
        Ok(seen)
    };
    assert_eq!(run(false)?, run(true)?);
    Ok(())
}

#[test]
fn parts_where_nothing_is_recorded() -> Result<()> {
    both_ways(|| {
        let a = weight(&[1., 2.]);
        let (own, part) = (a.clone(), disable(|h: &Tensor| h.square()));
        let f = move |x: &Tensor| {
            let h = (own.get() * x)?;
            let constant = no_grad(|| part.call(&h))?;
            assert!(!constant.has_tape());
            let cut = part.call(&h.detach())?;
            assert!(!cut.has_tape());
            let loss = (h + (constant + cut)?)?.sum(..)?;
            loss.backward()?;
            Ok(loss)
        };
        Ok((f, vec![a]))
    })?;
    Ok(())
}

#[test]
fn a_snapshot_stays_when_a_part_changes_the_variable() -> Result<()> {
    let seen = both_ways(|| {
        let v = Var::new(&t(&[1., 1.]));
        let (inside, own) = (v.clone(), v.clone());
        let part = disable(move |x: &Tensor| {
            inside.add_assign(10.0)?;
            inside.get().add(x)
        });
        let f = move |x: &Tensor| {
            let snapshot = own.get();
            let a = (own.get() * 1.0)?;
            let b = part.call(x)?;
            (a + snapshot)?.add((own.get() * b)?.mul(0.0)?)
        };
        Ok((f, vec![v]))
    })?;
    assert_eq!(seen[0][0], [2., 2.]);
    Ok(())
}

#[test]
fn updates_before_a_part_are_seen_by_it() -> Result<()> {
    // Without tensors among its arguments, and with pending gradients.
    both_ways(|| {
        let (v, w) = (Var::new(&t(&[1., 1.])), weight(&[2., 3.]));
        let inside = (v.clone(), w.clone());
        let part = disable(move |scale: &f64| {
            inside.0.mul_assign(*scale)?;
            let gradient = inside.1.grad().unwrap();
            inside.1.zero_grad();
            gradient.add(inside.0.get())
        });
        let own = (v.clone(), w.clone());
        let f = move |x: &Tensor| {
            own.0.add_assign(x)?;
            (own.1.get() * x)?.sum(..)?.backward()?;
            let y = part.call(&2.0)?;
            own.0.add_assign(1.0)?;
            (own.1.get() * own.0.get())?.sum(..)?.backward()?;
            Ok(y)
        };
        Ok((f, vec![v, w]))
    })?;
    Ok(())
}

#[test]
fn random_numbers_and_settings_around_a_part() -> Result<()> {
    both_ways(|| {
        let (numbers, level) = (Generator::new(5), Setting::new(0));
        let inside = (numbers.clone(), level.clone());
        let part = disable(move |x: &Tensor| {
            inside.1.set(inside.1.get() + 1);
            inside.0.rand(2, x.dtype(), x.device())?.add(x)
        });
        let f = move |x: &Tensor| {
            let before = level.get();
            let unused = numbers.rand(2, x.dtype(), x.device())?;
            drop(unused);
            let a = numbers.rand(2, x.dtype(), x.device())?;
            let b = part.call(x)?;
            let c = numbers.rand(2, x.dtype(), x.device())?;
            (a - b)?.add(&c)?.mul((1 + level.get() - before) as f64)
        };
        Ok((f, vec![]))
    })?;
    Ok(())
}

#[test]
fn what_was_done_before_an_error_is_done() -> Result<()> {
    let run = |is_compiled: bool| -> Result<Seen> {
        let (v, numbers) = (Var::new(&t(&[1., 1.])), Generator::new(3));
        let own = (v.clone(), numbers.clone());
        let fast = compile(move |x: &Tensor| {
            own.0.add_assign(x)?;
            let noise = own.1.rand(2, x.dtype(), x.device())?;
            if x.sum(..)?.item::<f32>()? > 1.0 {
                own.0.mul_assign(2.0)?;
                return noise.matmul(&own.0.get().unsqueeze(0)?);
            }
            Ok(noise)
        });
        let mut seen = Seen::new();
        for x in [[1., 2.], [0., 0.], [3., 3.], [1., -1.]] {
            let y = if is_compiled { fast.call(&t(&x)) } else { (fast.inner())(&t(&x)) };
            look(&mut seen, y.ok())?;
            look(&mut seen, Some(v.get()))?;
        }
        Ok(seen)
    };
    assert_eq!(format!("{:?}", run(false)?), format!("{:?}", run(true)?));
    Ok(())
}

#[test]
fn never_slower_runs_a_part_once_a_call() -> Result<()> {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let calls = Arc::new(AtomicUsize::new(0));
    let (count, v) = (calls.clone(), Var::new(&t(&[0., 0.])));
    let inside = v.clone();
    let part = disable(move |x: &Tensor| {
        count.fetch_add(1, Ordering::Relaxed);
        inside.add_assign(1.0)?;
        x.exp()
    });
    let options = Options { never_slower: true, ..Options::default() };
    let fast = compile_with(move |x: &Tensor| part.call(x)?.neg(), options);
    for turn in 1..5 {
        fast.call(&t(&[1., 2.]))?;
        assert_eq!(calls.load(Ordering::Relaxed), turn);
        assert_eq!(v.get().to_vec::<f32>()?, [turn as f32; 2]);
    }
    Ok(())
}

#[test]
fn a_part_without_tensors_is_a_break_too() {
    let part = disable(|_: &f64| Ok(1.0));
    let options = Options { fullgraph: true, ..Options::default() };
    let fast = compile_with(move |x: &Tensor| x.mul(part.call(&1.0)?), options);
    let error = fast.call(&t(&[1.])).unwrap_err();
    assert!(matches!(error, kiln::Error::GraphBreak { what: "calls a disabled part", .. }), "{error}");
}

#[test]
fn variables_that_are_set_cut_gradients() -> Result<()> {
    // What is computed from a variable after it was set has gradients by its new value alone, also outside of the function.
    let run = |is_compiled: bool| -> Result<Vec<Vec<f32>>> {
        let (state, w) = (Var::new(&t(&[1., 1.])), weight(&[2., 3.]));
        let own = (state.clone(), w.clone());
        let fast = compile(move |x: &Tensor| {
            own.0.set(&x.mul(2.0)?)?;
            let before = own.1.get();
            own.1.mul_assign(x.detach())?;
            (own.0.get() * x)?.add((own.1.get() * before)?)
        });
        let mut seen = Vec::new();
        for x in [[1., 2.], [-0.5, 3.]] {
            let x = t(&x).requires_grad();
            let y = if is_compiled { fast.call(&x)? } else { (fast.inner())(&x)? };
            let loss = y.square()?.sum(..)?;
            look(&mut seen, loss.gradients(&[&x])?.get(&x).cloned())?;
            loss.backward()?;
            look(&mut seen, w.grad())?;
            look(&mut seen, Some(w.get()))?;
        }
        Ok(seen)
    };
    assert_eq!(run(false)?, run(true)?);
    Ok(())
}

#[test]
fn one_tensor_as_two_arguments() -> Result<()> {
    // Both are on one tape: gradients of the one by the other are there, in parts and in compiled functions inside of them.
    both_ways(|| {
        let w = weight(&[1., 2.]);
        let own = w.clone();
        let by_itself = |(a, b): &(Tensor, Tensor)| {
            let found = a.square()?.sum(..)?.gradients(&[b])?;
            found.get(b).map_or_else(|| b.zeros_like(), |gradient| Ok(gradient.clone()))
        };
        let (part, inner) = (disable(by_itself), compile(by_itself));
        let nested =
            disable(move |h: &Tensor| inner.call(&(h.clone(), h.clone()))?.add(inner.call(&(h.clone(), h.mul(1.0)?))?));
        let f = move |x: &Tensor| {
            let h = (own.get() * x)?;
            part.call(&(h.clone(), h.clone()))?.add(nested.call(&h)?)
        };
        Ok((f, vec![w]))
    })?;
    Ok(())
}

#[test]
fn starts_of_tapes_where_nothing_is_recorded() -> Result<()> {
    let fast = compile(|x: &Tensor| Ok((x.relu()?.requires_grad(), x.exp()?)));
    let x = t(&[1., 2.]).requires_grad();
    for _ in 0..2 {
        for f in [false, true] {
            let (start, y) = no_grad(|| if f { fast.call(&x) } else { (fast.inner())(&x) })?;
            assert!(start.has_tape() && !y.has_tape(), "compiled: {f}");
            let (relu, _) = if f { fast.call(&x)? } else { (fast.inner())(&x)? };
            assert_eq!(relu.sum(..)?.gradients(&[&x])?.get(&x).unwrap().to_vec::<f32>()?, [1., 1.]);
        }
    }
    Ok(())
}

#[test]
fn gradients_read_values_that_have_none_of_their_own() -> Result<()> {
    // The new value of a variable is a factor, and gradients by it are not wanted there: they still need it.
    let run = |is_compiled: bool| -> Result<Seen> {
        let w = weight(&[2., 3.]);
        let own = w.clone();
        let fast = compile(move |x: &Tensor| {
            own.mul_assign(2.0)?;
            x.mul(own.get().detach())
        });
        let mut seen = Seen::new();
        for _ in 0..2 {
            let x = t(&[1., -1.]).requires_grad();
            let y = if is_compiled { fast.call(&x)? } else { (fast.inner())(&x)? };
            look(&mut seen, y.sum(..)?.gradients(&[&x])?.get(&x).cloned())?;
        }
        Ok(seen)
    };
    assert_eq!(run(false)?, run(true)?);
    Ok(())
}
