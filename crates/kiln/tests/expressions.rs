//! `expr!`: tensors, results and numbers on every side of every operator.

use kiln::{Device, Error, Number, Result, Tensor, Var, expr};

fn tensor<const N: usize>(values: [f32; N]) -> Tensor {
    Tensor::new(values, Device::Cpu).expect("a tensor")
}

fn floats(x: Result<Tensor>) -> Vec<f32> {
    x.and_then(|x| x.to_vec::<f32>()).expect("floats")
}

#[test]
fn numbers_of_any_type_on_any_side() {
    let x = tensor([1., 2.]);
    let (a, b, c, d) = (0.5f32, 2i32, 3usize, 4u8);
    assert_eq!(floats(expr!(a * &x + b)), [2.5, 3.0]);
    assert_eq!(floats(expr!(c - &x / d)), [2.75, 2.5]);
    assert_eq!(floats(expr!(2.0 * a * &x)), [1.0, 2.0]);
    assert_eq!(floats(Number::from(a) * &x), [0.5, 1.0]);
    assert_eq!(floats(expr!(7 / 2 * &x)), [3.0, 6.0], "two integers divide as Rust's");
}

#[test]
fn precedence_is_rusts() {
    let (x, y) = (tensor([2., 3.]), tensor([5., 7.]));
    assert_eq!(floats(expr!(&x + &y * &x - 1.0)), [11., 23.]);
    assert_eq!(floats(expr!((&x + &y) * (&x - 1.0))), [7., 20.]);
    assert_eq!(floats(expr!(-&x * &y)), [-10., -21.]);
    assert_eq!(floats(expr!(&x * -&y)), [-10., -21.]);
    assert_eq!(floats(expr!(&x - &y)), [-3., -4.]);
    assert_eq!(floats(expr!(x.clone() * &y)), [10., 21.]);
    let (p, q) = (x.gt(2.5).unwrap(), y.gt(1.0).unwrap());
    assert_eq!(expr!(&p & &q | !&q ^ true).unwrap().to_vec::<bool>().unwrap(), [true, true]);
}

struct Layer {
    weights: Vec<Var>,
}

impl Layer {
    fn scaled(&self, x: &Tensor, by: f32) -> Result<Tensor> {
        expr!(by * x)
    }
}

#[test]
fn leaves_are_any_expression() -> Result<()> {
    let x = tensor([1., 2.]);
    let layer = Layer { weights: vec![Var::new(&tensor([10., 20.]))] };
    assert_eq!(floats(expr!(&layer.weights[0] * &x)), [10., 40.]);
    assert_eq!(floats(expr!(layer.scaled(&x, 2.0) + layer.scaled(&x, 3.0)?.neg() * 1)), [-1., -2.]);
    assert_eq!(floats(expr!((&x * 2.0)?.sum(..) + [1, 2].len() as f64)), [8.]);
    assert_eq!(floats(expr!(x.sum(..)? * f32::from(3u8) - "ab".parse::<f32>().unwrap_or(1.0))), [8.]);
    Ok(())
}

#[test]
fn the_first_error_is_the_result() {
    let (x, long) = (tensor([1., 2.]), tensor([1., 2., 3.]));
    let error = expr!(2.0 * (&x + &long) * 3.0).unwrap_err();
    assert!(matches!(error, Error::ShapeMismatch { op: "add", .. }), "{error:?}");
    assert!(error.to_string().contains("expressions.rs"), "{error}");
    assert!(matches!(expr!(1 / 0 * &x).unwrap_err(), Error::DivisionByZero { .. }));
    assert!(matches!(expr!(1.0 + 2.0).unwrap_err(), Error::NoTensors { op: "expr", .. }));
}

#[test]
fn expressions_compile() {
    let fast = kiln::compile(|x: &Tensor| expr!(0.5f32 * x * (1.0 + (x * 0.8f32)?.tanh()?)));
    let x = tensor([-1., 0., 2.]);
    let want: Vec<f32> = [-1f32, 0., 2.].iter().map(|x| 0.5 * x * (1.0 + (x * 0.8).tanh())).collect();
    for (got, want) in floats(fast.call(&x)).iter().zip(want) {
        assert!((got - want).abs() < 1e-6);
    }
}
