//! Gradients through the tape: of every op against the differentiated graph and against finite differences, of whole
//! models against PyTorch, and what the tape does with variables, memory and mistakes.

use kiln::{DType, Device, Error, Result, Tensor, Var, no_grad, run_eagerly};
use kiln_ir::examples::{Random, examples};
use kiln_ir::{Graph, HostTensor, OpKind, Symbol, interpret};
use kiln_passes::{Derivative, DifferentiateOptions, Seeds, derivative, differentiate, is_differentiable};
use std::collections::BTreeMap;

fn t(values: &[f32]) -> Tensor {
    Tensor::from_slice(values, values.len(), Device::Cpu).unwrap()
}

fn var(values: &[f32]) -> Var {
    Var::new(&t(values)).requires_grad(true)
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

fn grad(var: &Var) -> Vec<f32> {
    values(&var.grad().expect("a gradient was collected"))
}

/// An op's example in f64, with its sizes put in.
struct Case {
    graph: Graph,
    inputs: Vec<HostTensor>,
    /// The outputs that are differentiated, and what each counts.
    of: Vec<usize>,
    seeds: Vec<HostTensor>,
    by: Vec<usize>,
}

impl Case {
    fn new(graph: &Graph, inputs: Vec<HostTensor>, binding: &[(Symbol, i64)], seed: u64) -> Option<Case> {
        let graph =
            graph.specialise(&|s| binding.iter().find(|(known, _)| *known == s).map(|&(_, n)| n.into())).ok()?;
        let carries = |id: kiln_ir::NodeId| is_differentiable(graph.ty(id).dtype);
        let of: Vec<usize> = (0..graph.outputs().len()).filter(|&i| carries(graph.outputs()[i].node)).collect();
        let by: Vec<usize> = (0..inputs.len()).filter(|&i| carries(graph.inputs()[i])).collect();
        if of.is_empty() || by.is_empty() {
            return None;
        }
        let outputs = interpret::run(&graph, &inputs).ok()?;
        let mut random = Random(seed);
        let mut weigh = |&o: &usize| {
            let weights: Vec<f64> = (0..outputs[o].elements()).map(|_| random.unit() * 2.0 - 1.0).collect();
            HostTensor::from_f64(outputs[o].dtype(), outputs[o].shape(), &weights).unwrap()
        };
        let seeds = of.iter().map(&mut weigh).collect();
        Some(Case { graph, inputs, of, seeds, by })
    }

    fn loss(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let outputs = run_eagerly(&self.graph, inputs)?;
        let mut loss: Option<Tensor> = None;
        for (&o, seed) in self.of.iter().zip(&self.seeds) {
            let term = outputs[o].mul(Tensor::from_host(seed, Device::Cpu)?)?.sum(..)?;
            loss = Some(match loss {
                Some(before) => before.add(term)?,
                None => term,
            });
        }
        Ok(loss.expect("an output is differentiated"))
    }

    /// The gradients by the tape; zeros where there is none.
    fn by_tape(&self) -> Result<Vec<HostTensor>> {
        let inputs: Vec<Tensor> = self
            .inputs
            .iter()
            .map(|x| Ok(Tensor::from_host(x, Device::Cpu)?.requires_grad()))
            .collect::<Result<_>>()?;
        let by: Vec<&Tensor> = self.by.iter().map(|&i| &inputs[i]).collect();
        let loss = self.loss(&inputs)?;
        let gradients = loss.gradients(&by)?;
        by.iter().map(|x| gradients.get(x).map_or_else(|| x.zeros_like(), |g| Ok(g.clone()))?.to_host()).collect()
    }

    /// The gradients by the interpreter on the differentiated graph.
    fn by_graph(&self) -> Vec<HostTensor> {
        let joint = differentiate(
            &self.graph,
            &self.of,
            &self.by,
            &DifferentiateOptions { seeds: Seeds::Inputs, ..Default::default() },
        );
        let all: Vec<HostTensor> = self.inputs.iter().chain(&self.seeds).cloned().collect();
        interpret::run(&joint.unwrap(), &all).unwrap().split_off(self.graph.outputs().len())
    }

    /// The slope of the loss by one element, if it is smooth there.
    fn slope(&self, input: usize, element: usize) -> Option<f64> {
        let at = self.inputs[input].to_f64();
        let loss = |step: f64| {
            let mut moved = at.clone();
            moved[element] += step;
            let mut inputs: Vec<Tensor> =
                self.inputs.iter().map(|x| Tensor::from_host(x, Device::Cpu).unwrap()).collect();
            let host = HostTensor::from_f64(DType::F64, self.inputs[input].shape(), &moved).unwrap();
            inputs[input] = Tensor::from_host(&host, Device::Cpu).unwrap();
            self.loss(&inputs).unwrap().item::<f64>().unwrap()
        };
        let slope = |h: f64| (loss(h) - loss(-h)) / (2.0 * h);
        let h = 1e-4 * at[element].abs().max(1.0);
        let (wide, narrow, narrowest) = (slope(2.0 * h), slope(h), slope(h / 16.0));
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * (1.0 + b.abs());
        (near(wide, narrow) && near(narrowest, narrow) && narrow.is_finite()).then_some((4.0 * narrow - wide) / 3.0)
    }
}

#[test]
fn of_every_op() {
    let mut compared: BTreeMap<OpKind, usize> = BTreeMap::new();
    for example in examples() {
        let other = |d: DType| d.is_float() && !matches!(d, DType::F32 | DType::F64);
        if derivative(example.kind) == Derivative::None || example.graph.nodes().iter().any(|n| other(n.ty.dtype)) {
            continue;
        }
        let wide = Graph::parse(&example.graph.to_string().replace("f32", "f64")).unwrap();
        for (n, binding) in example.bindings.iter().enumerate() {
            let Some(literals) = example.inputs(binding, 7 * n as u64 + 3) else { continue };
            let widened = |x: HostTensor| if x.dtype() == DType::F32 { x.cast(DType::F64).unwrap() } else { x };
            let inputs = literals.iter().map(|l| widened(HostTensor::from_literal(l).unwrap())).collect();
            let Some(case) = Case::new(&wide, inputs, binding, n as u64 + 11) else { continue };
            let named = |error: &dyn std::fmt::Display| -> ! { panic!("{} at {binding:?}: {error}", example.name) };
            let tape = case.by_tape().unwrap_or_else(|e| named(&e));
            for (&input, (tape, graph)) in case.by.iter().zip(tape.iter().zip(case.by_graph())) {
                assert_eq!(tape.shape(), graph.shape(), "{}", example.name);
                for (element, (got, want)) in tape.to_f64().into_iter().zip(graph.to_f64()).enumerate() {
                    let same = got == want || got.is_nan() && want.is_nan();
                    if !same && (got - want).abs() > 1e-11 * (1.0 + want.abs()) {
                        named(&format!("input {input}, element {element}: tape {got}, graph {want}"));
                    }
                    if let Some(slope) = case.slope(input, element) {
                        if (got - slope).abs() > 4e-6 * (1.0 + slope.abs()) {
                            named(&format!("input {input}, element {element}: tape {got}, slope {slope}"));
                        }
                        *compared.entry(example.kind).or_default() += 1;
                    }
                }
            }
        }
    }
    for kind in OpKind::all() {
        if derivative(kind) != Derivative::None {
            let compared = compared.get(&kind).copied().unwrap_or(0);
            assert!(compared >= 5, "{}: only {compared} slopes were compared", kind.name());
        }
    }
}

#[test]
fn of_views() -> Result<()> {
    let x = Tensor::arange(24, DType::F64, Device::Cpu)?.reshape([2, 3, 4])?.mul(0.1)?.requires_grad();
    let views: Vec<(&str, Tensor)> = vec![
        ("reshape", x.reshape([6, 4])?),
        ("reshape of a transposed", x.transpose(0, 2)?.reshape([4, 6])?),
        ("permute", x.permute([2, 0, 1])?),
        ("slice", x.slice(2, 1, 4, 2)?),
        ("select", x.select(1, -1)?),
        ("index", x.i((1, 0..2, .., None))?),
        ("flip", x.flip([0, 2])?),
        ("expand", x.unsqueeze(0)?.broadcast_to([5, 2, 3, 4])?),
        ("squeeze", x.narrow(0, 0, 1)?.squeeze(0)?),
        ("unfold", x.unfold(2, 3, 1)?),
        ("diagonal", x.diagonal(1)?),
        ("movedim", x.movedim(0, -1)?),
        ("roll", x.roll(1, 2)?),
        ("split", x.split(2, 1)?.remove(1)),
        ("contiguous", x.t()?.contiguous()?),
    ];
    for (name, view) in views {
        let weights = Tensor::arange(view.elements(), DType::F64, Device::Cpu)?.add(1.0)?.reshape(view.shape())?;
        let loss = (view.exp()? * &weights)?.sum(..)?;
        let gradient = loss.gradients(&[&x])?.get(&x).unwrap().to_vec::<f64>()?;
        // Each element of x counts as often as it is seen, by the weights there.
        let places = Tensor::arange(24, DType::F64, Device::Cpu)?.reshape([2, 3, 4])?;
        let seen: Vec<f64> = match name {
            "reshape" => places.reshape([6, 4])?,
            "reshape of a transposed" => places.transpose(0, 2)?.reshape([4, 6])?,
            "permute" => places.permute([2, 0, 1])?,
            "slice" => places.slice(2, 1, 4, 2)?,
            "select" => places.select(1, -1)?,
            "index" => places.i((1, 0..2, .., None))?,
            "flip" => places.flip([0, 2])?,
            "expand" => places.unsqueeze(0)?.broadcast_to([5, 2, 3, 4])?,
            "squeeze" => places.narrow(0, 0, 1)?.squeeze(0)?,
            "unfold" => places.unfold(2, 3, 1)?,
            "diagonal" => places.diagonal(1)?,
            "movedim" => places.movedim(0, -1)?,
            "roll" => places.roll(1, 2)?,
            "split" => places.split(2, 1)?.remove(1),
            _ => places.t()?.contiguous()?,
        }
        .to_vec()?;
        let mut wanted = vec![0.0; 24];
        for (weight, place) in seen.into_iter().enumerate() {
            wanted[place as usize] += (weight + 1) as f64 * (place * 0.1).exp();
        }
        for (got, want) in gradient.iter().zip(&wanted) {
            assert!((got - want).abs() <= 1e-9 * want.abs().max(1.0), "{name}: {gradient:?}, not {wanted:?}");
        }
    }
    Ok(())
}

#[test]
fn gradients_of_variables_add_up() -> Result<()> {
    let (w, b) = (var(&[1., 2., 3.]), var(&[0.5]));
    let frozen = Var::new(&t(&[10., 10., 10.]));
    for _ in 0..2 {
        let y = ((w.get() * frozen.get())? + b.get())?.sum(..)?;
        y.backward()?;
    }
    assert_eq!(grad(&w), [20., 20., 20.]);
    assert_eq!(grad(&b), [6.]);
    assert!(frozen.grad().is_none());
    w.zero_grad();
    assert!(w.grad().is_none());
    let y = (w.get() * 2.0)?;
    y.backward_with(&t(&[1., 0., -1.]))?;
    assert_eq!(grad(&w), [2., 0., -2.]);
    Ok(())
}

#[test]
fn a_variable_may_change_while_its_old_value_is_on_a_tape() -> Result<()> {
    let w = var(&[2., 3.]);
    let y = w.get().square()?.sum(..)?;
    w.mul_assign(10.0)?;
    w.set(&t(&[7., 7.]))?;
    y.backward()?;
    assert_eq!(grad(&w), [4., 6.], "the gradient is that of the values that were used");
    assert_eq!(values(&w.get()), [7., 7.]);
    assert!(w.get().has_tape(), "a variable stays one that wants gradients");
    Ok(())
}

#[test]
fn steps_write_in_place_once_the_tape_is_gone() -> Result<()> {
    let w = var(&[1., 2., 3., 4.]);
    let address = w.get().buffer().ptr();
    for _ in 0..3 {
        let loss = w.get().square()?.sum(..)?;
        loss.backward()?;
        w.sub_assign((w.grad().unwrap() * 0.1)?)?;
        w.zero_grad();
        assert!(loss.item::<f32>()? > 0.0);
    }
    assert_eq!(w.get().buffer().ptr(), address);
    Ok(())
}

#[test]
fn detach_and_no_grad_cut() -> Result<()> {
    let x = t(&[1., 2.]).requires_grad();
    let y = (x.exp()?.detach() * &x)?.sum(..)?;
    assert_eq!(values(y.gradients(&[&x])?.get(&x).unwrap()), values(&t(&[1., 2.]).exp()?));
    let untaped = no_grad(|| -> Result<Vec<Tensor>> {
        Ok(vec![x.exp()?, x.reshape([2, 1])?, x.reshape([2])?, x.to_dtype(DType::F32)?, x.narrow(0, 0, 1)?])
    })?;
    assert!(untaped.iter().all(|t| !t.has_tape()));
    assert!(x.to_dtype(DType::F64)?.has_tape() && !x.gt(1.0)?.has_tape() && !x.argmax(0)?.has_tape());
    // A panic inside does not leave recording switched off.
    let _ = std::panic::catch_unwind(|| no_grad(|| panic!("on purpose")));
    assert!(x.exp()?.has_tape());
    Ok(())
}

#[test]
fn a_result_that_is_used_twice() -> Result<()> {
    let x = t(&[3.]).requires_grad();
    let mut y = x.clone();
    for _ in 0..10 {
        y = (&y + &y)?;
    }
    let gradients = y.sum(..)?.gradients(&[&x])?;
    assert_eq!(values(gradients.get(&x).unwrap()), [1024.]);
    Ok(())
}

#[test]
fn one_of_several_results() -> Result<()> {
    let x = Tensor::new([[3f32, 1., 2.], [4., 6., 5.]], Device::Cpu)?.requires_grad();
    let (largest, places) = x.topk(2, -1, true)?;
    assert!(largest.has_tape() && !places.has_tape());
    let gradients = largest.sum(..)?.gradients(&[&x])?;
    assert_eq!(values(gradients.get(&x).unwrap()), [1., 0., 1., 0., 1., 1.]);
    Ok(())
}

#[test]
fn gradients_by_what_is_on_the_way() -> Result<()> {
    let x = t(&[1., 2.]).requires_grad();
    let middle = (&x * 3.0)?;
    let other = t(&[1.]).requires_grad();
    let loss = middle.square()?.sum(..)?;
    let gradients = loss.gradients(&[&middle, &x, &other])?;
    assert_eq!(values(gradients.get(&middle).unwrap()), [6., 12.]);
    assert_eq!(values(gradients.get(&x).unwrap()), [18., 36.]);
    assert!(gradients.get(&other).is_none());
    Ok(())
}

#[test]
fn gradients_of_gradients() -> Result<()> {
    let f = |x: &Tensor| x.sin()?.mul(x.exp()?)?.sum(..);
    let first = kiln::grad(f);
    let second = kiln::grad(|x: &Tensor| first(x)?.sum(..));
    let third = kiln::grad(|x: &Tensor| second(x)?.sum(..));
    let x = Tensor::new([0.3f64, -1.2], Device::Cpu)?;
    for (i, x0) in [0.3f64, -1.2].into_iter().enumerate() {
        let (sin, cos, exp) = (x0.sin(), x0.cos(), x0.exp());
        let wanted = [exp * (sin + cos), 2.0 * exp * cos, 2.0 * exp * (cos - sin)];
        let got = [first(&x)?, second(&x)?, third(&x)?].map(|t| t.to_vec::<f64>().unwrap()[i]);
        for (got, wanted) in got.into_iter().zip(wanted) {
            assert!((got - wanted).abs() < 1e-12, "{got} instead of {wanted}");
        }
    }
    assert!(!first(&x)?.has_tape(), "nobody asked for more");
    // Through a composite with several operands, and by a variable.
    let w = Var::new(&Tensor::new([[0.5f64, -1.0], [2.0, 0.25]], Device::Cpu)?).requires_grad(true);
    let x = x.reshape([1, 2])?.requires_grad();
    let y = x.matmul(&w.get())?.softmax(-1)?.square()?.sum(..)?;
    let slope = y.gradients_on_tape(&[&x])?.get(&x).unwrap().clone();
    slope.square()?.sum(..)?.backward()?;
    let gradient = w.grad().unwrap().to_vec::<f64>()?;
    let penalty = |w: &[f64]| -> Result<f64> {
        let w = Tensor::from_slice(w, [2, 2], Device::Cpu)?;
        let g = kiln::grad(|x: &Tensor| x.matmul(&w)?.softmax(-1)?.square()?.sum(..))(&x.detach())?;
        g.square()?.sum(..)?.item()
    };
    let at = w.get().to_vec::<f64>()?;
    for i in 0..4 {
        let (mut up, mut down) = (at.clone(), at.clone());
        (up[i], down[i]) = (at[i] + 1e-5, at[i] - 1e-5);
        let slope = (penalty(&up)? - penalty(&down)?) / 2e-5;
        assert!((gradient[i] - slope).abs() < 1e-7, "{} instead of {slope}", gradient[i]);
    }
    Ok(())
}

#[test]
fn functions_of_bundles() -> Result<()> {
    let f = kiln::value_and_grad(|(x, list, n): &(Tensor, Vec<Tensor>, i64)| {
        (x * &list[0])?.add(list[1].to_dtype(DType::F32)?)?.mul(*n)?.sum(..)
    });
    let counts = Tensor::new([1i64, 2], Device::Cpu)?;
    let (value, (by_x, by_list, n)) = f(&(t(&[1., 2.]), vec![t(&[3., 4.]), counts], 2))?;
    assert_eq!(value.item::<f32>()?, 28.0);
    assert_eq!((values(&by_x), values(&by_list[0]), n), (vec![6., 8.], vec![2., 4.], 2));
    assert_eq!(by_list[1].to_vec::<i64>()?, [0, 0]);
    Ok(())
}

#[test]
fn mistakes_are_errors() -> Result<()> {
    let x = t(&[1., 2.]).requires_grad();
    let error = x.exp()?.backward().unwrap_err();
    assert!(matches!(error, Error::NotALoss { .. }), "{error}");
    assert!(error.to_string().contains("takes one float, not f32[2], at crates"), "{error}");
    assert!(matches!(t(&[1.]).backward(), Err(Error::NoTape { .. })));
    assert!(matches!(Tensor::new([1i64], Device::Cpu)?.backward(), Err(Error::NotALoss { .. })));
    assert!(matches!(x.sum(..)?.gradients(&[&t(&[1.])]), Err(Error::NoTape { .. })));
    assert!(matches!(x.backward_with(&t(&[1.])), Err(Error::ShapeMismatch { .. })));
    let w = var(&[1.]);
    let loss = w.get().exp()?.sum(..)?;
    loss.backward()?;
    assert!(matches!(loss.backward(), Err(Error::TapeReleased { .. })));
    Ok(())
}

#[test]
fn a_long_tape_is_dropped_and_walked_without_a_deep_stack() -> Result<()> {
    let x = t(&[1.]).requires_grad();
    let mut y = x.clone();
    for i in 0..30_000 {
        y = if i % 2 == 0 { (&y * 1.0)? } else { y.reshape([1, 1])?.reshape([1])? };
    }
    let gradients = y.sum(..)?.gradients(&[&x])?;
    assert_eq!(values(gradients.get(&x).unwrap()), [1.]);
    drop(y);
    Ok(())
}

#[test]
fn threads_add_to_one_variable() -> Result<()> {
    let w = var(&[1., 2.]);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    w.get().square().unwrap().sum(..).unwrap().backward().unwrap();
                }
            });
        }
    });
    assert_eq!(grad(&w), [200., 400.]);
    Ok(())
}

#[test]
fn a_gradient_can_be_compiled() -> Result<()> {
    let f = |x: &Tensor| (x.reshape([2, 2])?.t()?.softmax(-1)? * x.i(1..2)?.detach())?.square()?.sum(..);
    let eager = kiln::grad(f);
    let options = kiln::Options { fullgraph: true, ..Default::default() };
    let compiled = kiln::compile_with(kiln::grad(f), options.clone());
    let second = kiln::compile_with(kiln::grad(move |x: &Tensor| kiln::grad(f)(x)?.square()?.sum(..)), options);
    let second_eager = kiln::grad(move |x: &Tensor| kiln::grad(f)(x)?.square()?.sum(..));
    for x in [[0.3f64, -1.2, 0.7, 2.0], [1.0, 0.5, -0.5, 0.0]] {
        let x = Tensor::new(x, Device::Cpu)?;
        assert!(compiled.call(&x)?.allclose(&eager(&x)?, 1e-12, 1e-12)?);
        assert!(second.call(&x)?.allclose(&second_eager(&x)?, 1e-12, 1e-12)?);
    }
    assert_eq!(compiled.stats().compiles, 1);
    Ok(())
}

/// The loss of a decoder of two layers, whose gradients PyTorch has computed: `reference.py` of the passes' tests says how.
#[allow(clippy::ptr_arg, reason = "a vector is a bundle, a slice is none")]
fn decoder(p: &Vec<Tensor>) -> Result<Tensor> {
    let (batch, time, width, heads, groups, vocabulary) = (2, 4, 8, 4, 2, 7);
    let depth = width / heads;
    let index = |f: &dyn Fn(usize, usize) -> usize| {
        let values: Vec<i64> = (0..batch * time).map(|n| (f(n / time, n % time) % vocabulary) as i64).collect();
        Tensor::from_vec(values, batch * time, Device::Cpu)
    };
    let tokens = index(&|n, i| 3 * i + 5 * n)?.reshape([batch, time])?;
    let targets = index(&|n, i| 2 * i + n + 1)?;
    let mut x = (p[0].embedding(&tokens)? + &p[1])?;
    for layer in 0..2 {
        let [norm, norm_bias, qkv, out, rms, up, up_bias, down] = &p[2 + 8 * layer..][..8] else { unreachable!() };
        let h = x.layer_norm(1, Some(norm), Some(norm_bias), 1e-5)?.linear(qkv, None)?;
        let parts = h.split_sizes(&[width, groups * depth, groups * depth], 2)?;
        let apart = |part: &Tensor, heads: usize| part.reshape([batch, time, heads, depth])?.transpose(1, 2);
        let (q, k, v) = (apart(&parts[0], heads)?, apart(&parts[1], groups)?, apart(&parts[2], groups)?);
        let a = q.scaled_dot_product_attention(&k, &v, None, true, None)?;
        x = (&x + a.transpose(1, 2)?.reshape([batch, time, width])?.linear(out, None)?)?;
        let h = x.rms_norm(1, Some(rms), 1e-6)?.linear(up, Some(up_bias))?.gelu()?;
        x = (&x + h.linear(down, None)?)?;
    }
    let logits = x.rms_norm(1, Some(&p[18]), 1e-6)?.linear(&p[0], None)?.flatten(0, 1)?;
    logits.cross_entropy_with(&targets, &kiln::CrossEntropy { label_smoothing: 0.1, ..Default::default() })
}

#[test]
fn of_a_decoder_against_pytorch() -> Result<()> {
    let reference = include_str!("reference/decoder.txt");
    let layer: [&[usize]; 8] = [&[8], &[8], &[16, 8], &[8, 8], &[8], &[12, 8], &[12], &[8, 12]];
    let shapes: Vec<&[usize]> =
        [&[7, 8][..], &[4, 8]].into_iter().chain(layer).chain(layer).chain([&[8][..]]).collect();
    let parameter = |(number, shape): (usize, &&[usize])| {
        let count: usize = shape.iter().product();
        let value = |i: usize| 0.4 * (0.618 * (i + 1) as f64 * (number as f64 + 1.7)).sin();
        Tensor::from_vec((0..count).map(value).collect(), *shape, Device::Cpu)
    };
    let parameters: Vec<Tensor> = shapes.iter().enumerate().map(parameter).collect::<Result<_>>()?;
    let want: Vec<Vec<f64>> =
        reference.lines().map(|line| line.split(' ').map(|v| v.parse().unwrap()).collect()).collect();
    let whole = kiln::Options { fullgraph: true, ..Default::default() };
    let compiled = kiln::compile_with(kiln::value_and_grad(decoder), whole);
    for (way, (loss, gradients)) in
        [("eager", kiln::value_and_grad(decoder)(&parameters)?), ("compiled", compiled.call(&parameters)?)]
    {
        let all: Vec<Tensor> = std::iter::once(loss).chain(gradients).collect();
        assert_eq!(all.len(), want.len());
        for (n, (got, want)) in all.iter().zip(&want).enumerate() {
            let got = got.to_vec::<f64>()?;
            assert_eq!(got.len(), want.len(), "{way}, result {n}");
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() <= 1e-8 * want.abs() + 1e-10, "{way}, result {n}: {got} instead of {want}");
            }
        }
    }
    Ok(())
}

/// What was computed from an empty part, and the part itself, have gradients of zeros, as in PyTorch: eager, compiled, and where the data of a
/// call says that the part is empty.
#[test]
fn empty_parts_have_gradients_of_zeros() -> Result<()> {
    type Function = fn(&(Tensor, Tensor)) -> Result<Tensor>;
    let functions: [Function; 4] = [
        |(x, _)| x.narrow(0, 0, 0)?.sum(..),
        |(x, _)| x.narrow(0, 0, 0)?.matmul(&x.transpose(0, 1)?)?.exp()?.sum(..),
        |(x, count)| x.narrow(0, 0, count.item_size()?)?.exp()?.sum(..),
        |(x, count)| x.masked_select(&x.gt(count)?)?.sum(..),
    ];
    for (number, function) in functions.into_iter().enumerate() {
        for compiled in [false, true] {
            let w = Var::new(&Tensor::zeros([2, 3], DType::F32, Device::Cpu)?).requires_grad(true);
            let arguments = (w.get().mul(2.0)?, Tensor::new([0i64], Device::Cpu)?);
            let loss = if compiled { kiln::compile(function).call(&arguments)? } else { function(&arguments)? };
            loss.backward()?;
            let gradient = w.grad().map(|gradient| gradient.to_vec::<f32>()).transpose()?;
            assert_eq!(gradient, Some(vec![0.0; 6]), "function {number}, compiled: {compiled}");
        }
    }
    Ok(())
}
