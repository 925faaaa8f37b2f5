//! Functions with gradients of their own, and hooks: eager and inside of compiled functions.

use kiln::{Device, Forward, Function, Result, Tensor, Var};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// eˣ by its result, with a gradient that is three times too large, so that a derived one is noticed.
struct Steep;

impl Function for Steep {
    fn forward(&self, operands: &[Tensor]) -> Result<Forward> {
        let y = operands[0].exp()?;
        Ok(Forward { results: vec![y.clone()], saved: vec![y] })
    }

    fn backward(&self, saved: &[Tensor], cotangents: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        match &cotangents[0] {
            Some(cotangent) => Ok(vec![Some(cotangent.mul(&saved[0])?.mul(3.0)?)]),
            None => Ok(vec![None]),
        }
    }
}

fn steep(x: &Tensor) -> Result<Tensor> {
    Ok(kiln::apply(Steep, &[x])?.remove(0))
}

fn input() -> Tensor {
    Tensor::new([0f64, 1.0], Device::Cpu).unwrap()
}

fn close(got: &Tensor, expected: [f64; 2]) {
    let expected = Tensor::new(expected, Device::Cpu).unwrap();
    assert!(got.allclose(&expected, 1e-12, 0.0).unwrap(), "{got} for {expected}");
}

const E: f64 = std::f64::consts::E;

#[test]
fn a_given_gradient_is_used_also_for_the_gradient_of_a_gradient() -> Result<()> {
    let x = input().requires_grad();
    let slope = steep(&x)?.sum(..)?.gradients_on_tape(&[&x])?.get(&x).unwrap().clone();
    close(&slope, [3.0, 3.0 * E]);
    // The slope is three times the result, whose own gradient is given again.
    close(slope.sum(..)?.gradients(&[&x])?.get(&x).unwrap(), [9.0, 9.0 * E]);
    Ok(())
}

#[test]
fn it_is_used_in_a_compiled_function_whoever_asks_for_gradients() -> Result<()> {
    // Outside of the function.
    let fast = kiln::compile(|x: &Tensor| steep(&x.mul(2.0)?)?.mul(0.5));
    let x = input().requires_grad();
    for _ in 0..3 {
        let y = fast.call(&x)?;
        close(y.sum(..)?.gradients(&[&x])?.get(&x).unwrap(), [3.0, 3.0 * E * E]);
    }
    // Inside of it.
    let inside = kiln::compile(kiln::grad(|x: &Tensor| steep(x)?.square()?.sum(..)));
    for _ in 0..3 {
        close(&inside.call(&input())?, [6.0, 6.0 * E * E]);
    }
    // Of a variable.
    let w = Var::new(&input()).requires_grad(true);
    let held = w.clone();
    let step = kiln::compile(move |_: &Tensor| {
        held.zero_grad();
        steep(&held.get())?.sum(..)?.backward()
    });
    for _ in 0..3 {
        step.call(&input())?;
        close(&w.grad().unwrap(), [3.0, 3.0 * E]);
    }
    Ok(())
}

#[test]
fn without_gradients_it_is_part_of_the_graph() -> Result<()> {
    let fast = kiln::compile(|x: &Tensor| steep(&x.mul(2.0)?)?.neg());
    for _ in 0..3 {
        close(&fast.call(&input())?, [-1.0, -E * E]);
    }
    let stats = fast.stats();
    assert_eq!((stats.compiles, stats.breaks), (1, 0));
    Ok(())
}

#[test]
fn a_hook_sees_each_gradient_and_may_replace_it() -> Result<()> {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = seen.clone();
    let watched = move |x: &Tensor| -> Result<Tensor> {
        let count = count.clone();
        let y = x.mul(2.0)?.with_hook(move |gradient| {
            count.fetch_add(1, Ordering::Relaxed);
            Ok(Some(gradient.mul(10.0)?))
        })?;
        y.square()?.sum(..)
    };
    let slope = kiln::grad(watched.clone());
    close(&slope(&Tensor::new([1f64, 2.0], Device::Cpu)?)?, [80.0, 160.0]);
    assert_eq!(seen.load(Ordering::Relaxed), 1);
    let fast = kiln::compile(kiln::grad(watched));
    for _ in 0..3 {
        close(&fast.call(&Tensor::new([1f64, 2.0], Device::Cpu)?)?, [80.0, 160.0]);
    }
    assert!(seen.load(Ordering::Relaxed) >= 4);
    Ok(())
}

#[test]
fn too_few_cotangents_are_an_error() {
    struct Forgetful;
    impl Function for Forgetful {
        fn name(&self) -> &'static str {
            "forgetful"
        }
        fn forward(&self, operands: &[Tensor]) -> Result<Forward> {
            Ok(Forward { results: vec![operands[0].clone()], saved: vec![] })
        }
        fn backward(&self, _: &[Tensor], _: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
            Ok(vec![])
        }
    }
    let x = input().requires_grad();
    let y = kiln::apply(Forgetful, &[&x]).unwrap().remove(0);
    let error = y.sum(..).unwrap().gradients(&[&x]).err().unwrap().to_string();
    assert!(error.contains("forgetful: backward = 0"), "{error}");
}

/// Against differences, of functions over every kind of operation that a model has, and of a function with a gradient of its own.
#[test]
fn forward_derivatives_agree_with_differences() -> Result<()> {
    type F = fn(&(Tensor, Tensor)) -> Result<Tensor>;
    let functions: [F; 5] = [
        |(x, w)| x.matmul(w)?.tanh()?.softmax(-1),
        |(x, w)| x.layer_norm(1, None, None, 1e-5)?.matmul(&w.exp()?)?.cumsum(0),
        |(x, w)| x.mul(x)?.sum(..)?.mul(w.sin()?),
        |(x, w)| {
            x.matmul(w)?.transpose(0, 1)?.matmul(x)?.add(&Tensor::eye(4, x.dtype(), Device::Cpu)?.mul(9.0)?)?.inverse()
        },
        |(x, _)| x.gelu()?.amax(1)?.logsumexp(..),
    ];
    let of = |seed: f64, shape: [usize; 2]| -> Result<Tensor> {
        let count = shape[0] * shape[1];
        Tensor::arange(count, kiln::DType::F64, Device::Cpu)?.mul(1.7)?.add(seed)?.sin()?.reshape(shape)
    };
    for (number, f) in functions.into_iter().enumerate() {
        let (x, w) = (of(0.3, [4, 4])?, of(1.1, [4, 4])?);
        let (dx, dw) = (of(2.0, [4, 4])?, of(5.0, [4, 4])?);
        let step = 1e-6;
        let moved = |way: f64| -> Result<Tensor> { f(&(x.add(dx.mul(way)?)?, w.add(dw.mul(way)?)?)) };
        let wanted = moved(step)?.sub(moved(-step)?)?.div(2.0 * step)?;
        let (value, change) = kiln::jvp(f, &(x.clone(), w.clone()), &(dx.clone(), dw.clone()))?;
        assert!(value.allclose(&f(&(x.clone(), w.clone()))?, 1e-12, 1e-12)?);
        assert!(change.allclose(&wanted, 1e-6, 1e-7)?, "{number}: {change} for {wanted}");
        let fast = kiln::compile(move |(x, w, dx, dw): &(Tensor, Tensor, Tensor, Tensor)| {
            Ok(kiln::jvp(f, &(x.clone(), w.clone()), &(dx.clone(), dw.clone()))?.1)
        });
        let compiled = fast.call(&(x, w, dx, dw))?;
        assert!(compiled.allclose(&wanted, 1e-6, 1e-7)?, "{number} compiled: {compiled} for {wanted}");
    }
    let (_, change) = kiln::jvp(steep, &input(), &Tensor::new([1f64, 2.0], Device::Cpu)?)?;
    close(&change, [3.0, 6.0 * E]);
    Ok(())
}

fn f64s(numbers: &[f64]) -> Tensor {
    Tensor::from_vec(numbers.to_vec(), numbers.len(), Device::Cpu).unwrap()
}

/// The gradient of the sum of a function.
fn slope(f: impl Fn(&Tensor) -> Result<Tensor>, x: &[f64]) -> Result<Vec<f64>> {
    let x = f64s(x).requires_grad();
    f(&x)?.sum(..)?.gradients(&[&x])?.get(&x).unwrap().to_vec::<f64>()
}

#[track_caller]
fn near(got: &[f64], expected: &[f64]) {
    let is_near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6 || (a.is_nan() && b.is_nan()) || a == b;
    assert!(got.len() == expected.len() && got.iter().zip(expected).all(is_near), "{got:?} for {expected:?}");
}

const HALF: f64 = std::f64::consts::FRAC_1_SQRT_2;
const LN_2: f64 = std::f64::consts::LN_2;
const INF: f64 = f64::INFINITY;
const NAN: f64 = f64::NAN;

/// PyTorch's numbers, but for the gradient of `binary_cross_entropy` at 0 and 1, which there divides by 1e-12.
#[test]
fn gradients_at_ties_and_edges_are_numbers() -> Result<()> {
    near(&slope(|x| x.hypot(3.0), &[3.0, -3.0, 0.0, 4.0])?, &[HALF, -HALF, 0.0, 0.8]);
    near(&slope(|x| f64s(&[3.0, 4.0]).hypot(x), &[3.0, 3.0])?, &[HALF, 0.6]);
    near(&slope(|x| x.hypot(0.0), &[0.0])?, &[0.0]);
    near(&slope(|x| x.hypot(x), &[0.0, 1.0])?, &[0.0, 2.0 * HALF]);
    let (x, y) = (f64s(&[0.0, INF, NAN, NAN, 0.0, 3.0]), f64s(&[0.0, NAN, -INF, 1.0, NAN, 4.0]));
    near(&x.hypot(&y)?.to_vec::<f64>()?, &[0.0, INF, INF, NAN, NAN, 5.0]);

    near(&slope(|x| x.logaddexp(0.0), &[0.0])?, &[0.5]);
    near(&slope(|x| f64s(&[0.0]).logaddexp(x), &[0.0])?, &[0.5]);
    let (x, y) = (f64s(&[INF, -INF, INF, NAN, 1.0]), f64s(&[INF, -INF, -INF, 1.0, NAN]));
    near(&x.logaddexp(&y)?.to_vec::<f64>()?, &[INF, -INF, INF, NAN, NAN]);

    near(&slope(|x| x.xlogy(2.0), &[0.0])?, &[LN_2]);
    let y = f64s(&[0.0, -1.0, INF, NAN, 2.0]);
    near(&y.zeros_like()?.xlogy(&y)?.to_vec::<f64>()?, &[0.0, 0.0, 0.0, NAN, 0.0]);

    let target = f64s(&[0.0, 1.0, 1.0, 0.0]);
    let loss = |x: &Tensor| x.binary_cross_entropy(&target, kiln::Reduction::None);
    let x = [0.0, 1.0, 0.0, 1.0];
    near(&loss(&f64s(&x))?.to_vec::<f64>()?, &[0.0, 0.0, 100.0, 100.0]);
    assert!(slope(loss, &x)?.iter().all(|slope| slope.is_finite()));

    near(&f64s(&[NAN, 1.0, 2.0]).threshold(1.0, 9.0)?.to_vec::<f64>()?, &[NAN, 9.0, 2.0]);
    Ok(())
}

/// −PᵀGPᵀ + (I − AP)GᵀPPᵀ + PᵀPGᵀ(I − PA): a number also where singular values are equal or zero.
#[test]
fn the_pseudo_inverse_has_gradients_at_equal_singular_values() -> Result<()> {
    let of = |x: &Tensor| x.reshape([2, 2])?.pinv(None)?.mul(&f64s(&[1.0, 2.0, 3.0, 4.0]).reshape([2, 2])?);
    // −G at the identity; at diag(1, 0) these are torch.linalg.pinv's.
    near(&slope(of, &[1.0, 0.0, 0.0, 1.0])?, &[-1.0, -2.0, -3.0, -4.0]);
    near(&slope(of, &[1.0, 0.0, 0.0, 0.0])?, &[-1.0, 3.0, 2.0, 0.0]);
    Ok(())
}

#[test]
fn triangles_take_columns() -> Result<()> {
    let a = Tensor::eye(3, kiln::DType::F64, Device::Cpu)?.expand([3, 3, 3])?;
    let b = Tensor::arange(9, kiln::DType::F64, Device::Cpu)?.reshape([3, 3])?;
    let x = a.solve_triangular(&b, true, false)?;
    assert!(x.shape() == [3, 3, 3] && x.allclose(&b.expand([3, 3, 3])?, 0.0, 0.0)?);
    assert_eq!(a.solve(&b)?.shape(), [3, 3]);
    Ok(())
}

#[test]
fn order_statistics_of_nan_and_infinity_are_pytorchs() -> Result<()> {
    let x = f64s(&[1.0, NAN, 0.0, NAN]);
    let (median, place) = x.median(0)?;
    assert!(median.item::<f64>()?.is_nan() && place.item::<i64>()? == 1);
    assert!(x.quantile(0.0, 0)?.item::<f64>()?.is_nan());
    assert_eq!(f64s(&[1.0, 2.0, INF]).quantile(0.5, 0)?.item::<f64>()?, 2.0);
    assert_eq!(f64s(&[3.0, 1.0, 2.0]).median(0)?.0.item::<f64>()?, 2.0);
    near(&slope(|x| Ok(x.median(0)?.0), &[3.0, 1.0, 2.0])?, &[0.0, 0.0, 1.0]);
    Ok(())
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    use kiln::{CrossEntropy, DType, Error};
    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, Device::Cpu);
    let zero = Tensor::zeros(4, DType::F32, Device::Cpu)?;
    for replacement in [false, true] {
        assert!(matches!(zero.multinomial(1, replacement), Err(Error::BadArgument { op: "multinomial", .. })));
    }
    let drawn = kiln::compile(|x: &Tensor| x.multinomial(3, true)).call(&zero)?;
    assert!(drawn.to_vec::<i64>()?.iter().all(|&place| place < 4));
    assert!(matches!(ones(&[2, 3])?.cdist(&ones(&[2, 1])?, 2.0), Err(Error::ShapeMismatch { op: "cdist", .. })));

    let targets = |n: usize| Tensor::zeros(n, DType::I64, Device::Cpu);
    let plain = CrossEntropy::default();
    for n in [1, 3] {
        let loss = ones(&[2, 3])?.nll_loss(&targets(n)?, &plain);
        assert!(matches!(loss, Err(Error::ShapeMismatch { op: "nll_loss", .. })));
    }
    let smooth = CrossEntropy { label_smoothing: 0.1, ..plain };
    let loss = ones(&[2, 3])?.nll_loss(&targets(2)?, &smooth);
    assert!(matches!(loss, Err(Error::BadArgument { op: "nll_loss", name: "label_smoothing", .. })));

    let (matrix, batch) = (ones(&[2, 2])?, ones(&[1, 2, 2])?);
    for result in [
        matrix.addmm(&batch, &matrix, 1.0, 1.0),
        matrix.addmv(&matrix, &matrix, 1.0, 1.0),
        batch.baddbmm(&matrix, &batch, 1.0, 1.0),
        matrix.addbmm(&matrix, &batch, 1.0, 1.0),
    ] {
        assert!(matches!(result, Err(Error::WrongRank { .. })));
    }
    Ok(())
}

#[test]
fn integers_stay_integers() -> Result<()> {
    let x = Tensor::new([1i64, 2], Device::Cpu)?;
    assert_eq!(x.addcmul(&x, &x, 3.0)?.to_vec::<i64>()?, [4, 14]);
    assert!(matches!(x.addcmul(&x, &x, 0.5), Err(kiln::Error::BadArgument { name: "value", .. })));
    assert_eq!(x.nansum(..)?.item::<i64>()?, 3);
    Ok(())
}

/// The tangent's shape is compared without reading sizes, which symbols of data would be given up for.
#[test]
fn a_derivative_along_a_direction_after_a_size_of_data() -> Result<()> {
    let part = kiln::disable(|x: &Tensor| Ok(x.clone()));
    let f = move |x: &Tensor| {
        let some = x.index_select(0, &x.sum(-1)?.gt(0.0)?.nonzero()?.squeeze(1)?)?.sum(0)?;
        let y = part.call(x)?;
        let (value, change) = kiln::jvp(|y: &Tensor| y.square(), &y, &y.add(1.0)?.detach())?;
        value.add(change)?.sum(0)?.add(some)
    };
    let fast = kiln::compile(&f);
    for rows in [1, 2, 3, 2, 4] {
        let x =
            kiln::Generator::new(rows as u64).randn((rows, 3), kiln::DType::F32, kiln::Device::Cpu)?.requires_grad();
        let (got, expected) = (fast.call(&x)?, f(&x)?);
        for (a, b) in got.to_vec::<f32>()?.iter().zip(expected.to_vec::<f32>()?) {
            assert!((a - b).abs() < 1e-4, "{a} and {b}");
        }
    }
    Ok(())
}
