//! `vmap` gives what the function gives for each example: eager, compiled, of gradients, nested, and where it has to be a loop.

mod listening;

use kiln::{Conv, DType, Device, Result, Tensor, cond};
use listening::slow;

fn numbers(shape: &[usize], seed: f64) -> Result<Tensor> {
    let count: usize = shape.iter().product();
    Tensor::arange(count, DType::F64, Device::Cpu)?.mul(1.3)?.add(seed)?.sin()?.reshape(shape)
}

/// What a function gives for each example, stacked.
fn each(f: impl Fn(&(Tensor, Tensor)) -> Result<Tensor>, x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let rows = (0..x.shape()[0]).map(|i| f(&(x.select(0, i)?, w.select(0, i)?))).collect::<Result<Vec<_>>>()?;
    Tensor::stack(&rows, 0)
}

type Pair = (Tensor, Tensor);
type F = fn(&Pair) -> Result<Tensor>;

const FUNCTIONS: [F; 7] = [
    |(x, w)| x.matmul(w)?.softmax(-1),
    |(x, w)| x.layer_norm(1, None, None, 1e-5)?.add(w)?.sort(1, true)?.0.cumsum(0),
    |(x, w)| x.reshape([1, 1, 4, 4])?.conv2d(&w.reshape([1, 1, 4, 4])?.narrow(2, 0, 2)?, None, &Conv::default()),
    |(x, w)| kiln::grad(|w: &Tensor| x.matmul(w)?.tanh()?.sum(..))(w),
    |(x, w)| Tensor::einsum("ij,kj->ik", &[x, w])?.tril(0)?.amax(0),
    |(x, w)| x.gather(1, &w.argsort(1, false)?)?.i((.., ..2))?.contiguous(),
    |(x, w)| Ok(kiln::jvp(|x: &Tensor| x.sigmoid(), x, w)?.1),
];

#[test]
fn it_is_the_function_for_each_example() -> Result<()> {
    let (x, w) = (numbers(&[5, 4, 4], 0.1)?, numbers(&[5, 4, 4], 0.7)?);
    for (number, f) in FUNCTIONS.into_iter().enumerate() {
        let wanted = each(f, &x, &w)?;
        let all = kiln::vmap(f);
        let got = all.call((x.clone(), w.clone()))?;
        assert!(got.allclose(&wanted, 1e-10, 1e-12)?, "{number}: {got} for {wanted}");
        let fast = kiln::compile(move |pair: &Pair| all.call((pair.0.mul(2.0)?, pair.1.clone()))?.mul(3.0));
        let wanted = each(f, &x.mul(2.0)?, &w)?.mul(3.0)?;
        let got = fast.call(&(x.clone(), w.clone()))?;
        assert!(got.allclose(&wanted, 1e-10, 1e-12)?, "{number} compiled: {got} for {wanted}");
        assert_eq!(fast.stats().breaks, 0, "{number}");
    }
    Ok(())
}

#[test]
fn what_the_function_holds_is_the_same_for_all_and_has_gradients() -> Result<()> {
    let w = numbers(&[4, 4], 0.2)?.requires_grad();
    let x = numbers(&[6, 4], 0.5)?;
    let held = w.clone();
    let all = kiln::compile(move |x: &Tensor| {
        let w = held.clone();
        kiln::vmap(move |row: &Tensor| row.matmul(&w)?.exp()).call(x.clone())
    });
    let got = all.call(&x)?.sum(..)?.gradients(&[&w])?.get(&w).unwrap().clone();
    let wanted = x.matmul(&w)?.exp()?.sum(..)?.gradients(&[&w])?.get(&w).unwrap().clone();
    assert!(got.allclose(&wanted, 1e-10, 1e-12)?);
    Ok(())
}

#[test]
fn it_nests() -> Result<()> {
    let (x, y) = (numbers(&[3, 4], 0.0)?, numbers(&[5, 4], 1.0)?);
    let outer = kiln::vmap(move |row: &Tensor| {
        let row = row.clone();
        kiln::vmap(move |other: &Tensor| row.mul(other)?.sum(..)).call(y.clone())
    });
    let got = outer.call(x.clone())?;
    let wanted = x.matmul(&numbers(&[5, 4], 1.0)?.t()?)?;
    assert!(got.allclose(&wanted, 1e-10, 1e-12)?, "{got} for {wanted}");
    Ok(())
}

#[test]
fn a_function_without_a_form_for_many_is_a_loop() -> Result<()> {
    // Until it is above 100, for each example.
    let double = kiln::vmap(|x: &Tensor| {
        let grow = kiln::while_loop(|x: &Tensor| x.lt(100.0), |x: &Tensor| x.mul(2.0));
        grow.call(x.clone())
    });
    let x = Tensor::new([3f64, 70.0, 200.0], Device::Cpu)?;
    assert_eq!(double.call(x)?.to_vec::<f64>()?, [192.0, 140.0, 200.0]);
    // What reads elements is no graph at all.
    let read = kiln::vmap(|x: &Tensor| if x.item::<f64>()? > 1.0 { x.neg() } else { x.mul(5.0) });
    assert_eq!(read.call(Tensor::new([1f64, 2.0], Device::Cpu)?)?.to_vec::<f64>()?, [5.0, -2.0]);
    Ok(())
}

#[test]
fn one_program_serves_any_number_of_examples() -> Result<()> {
    let all = kiln::vmap(|x: &Tensor| x.mul(x)?.sum(..));
    for count in [2, 3, 5, 8, 13] {
        let x = numbers(&[count, 4], 0.3)?;
        assert!(all.call(x.clone())?.allclose(&x.square()?.sum(1)?, 1e-10, 1e-12)?);
    }
    assert!(all.stats().compiles <= 2, "{:?}", all.stats());
    Ok(())
}

/// The side that an example does not take neither fails nor makes its gradient NaN.
#[test]
fn each_example_takes_one_side() -> Result<()> {
    let x = Tensor::new([0f64, 2.0], Device::Cpu)?.requires_grad();
    let said = slow(|| {
        let all = kiln::vmap(|x: &Tensor| cond(&x.gt(1.0)?, || x.log(), || x.mul(3.0)));
        let gradients = all.call(x.clone())?.sum(..)?.gradients(&[&x])?;
        assert_eq!(gradients.get(&x).expect("a gradient").to_vec::<f64>()?, [3.0, 0.5]);
        Ok(())
    })?;
    assert!(said.contains("vmap runs one example after another: gradients"), "{said}");
    let (rows, index) = (numbers(&[2, 3], 0.4)?, Tensor::new([1i64, 1000], Device::Cpu)?);
    let said = slow(|| {
        let all = kiln::vmap(|(x, i): &(Tensor, Tensor)| {
            cond(&i.lt(3)?, || x.index_select(0, &i.reshape(1)?), || x.narrow(0, 0, 1)?.contiguous())
        });
        let (got, rows) = (all.call((rows.clone(), index.clone()))?.to_vec::<f64>()?, rows.to_vec::<f64>()?);
        assert_eq!(got, [rows[1], rows[3]]);
        Ok(())
    })?;
    assert!(said.contains("vmap runs one example after another") && said.contains("may fail"), "{said}");
    Ok(())
}

#[test]
fn examples_lie_along_any_axis_or_are_shared() -> Result<()> {
    let (x, w) = (numbers(&[4, 5, 4], 0.1)?, numbers(&[4, 4], 0.7)?);
    for (number, f) in FUNCTIONS.into_iter().enumerate() {
        let rows = (0..5).map(|i| f(&(x.select(1, i)?, w.clone()))).collect::<Result<Vec<_>>>()?;
        let wanted = Tensor::stack(&rows, rows[0].rank())?;
        let all = kiln::vmap(f).in_dims([Some(-2), None]).out_dims([-1]);
        let got = all.call((x.clone(), w.clone()))?;
        assert!(got.allclose(&wanted, 1e-10, 1e-12)?, "{number}: {got} for {wanted}");
        // Gradients of what is shared are those of all examples together.
        if number == 0 {
            let total = |pair: &Pair| all.call(pair.clone())?.square()?.sum(..);
            let slope = kiln::grad(|w: &Tensor| total(&(x.clone(), w.clone())))(&w)?;
            let each = |w: &Tensor| {
                let parts = (0..5).map(|i| f(&(x.select(1, i)?, w.clone()))?.square()?.sum(..));
                Tensor::stack(&parts.collect::<Result<Vec<_>>>()?, 0)?.sum(..)
            };
            assert!(slope.allclose(&kiln::grad(each)(&w)?, 1e-10, 1e-12)?);
        }
        let fast = kiln::compile(move |pair: &Pair| all.call(pair.clone()));
        assert!(fast.call(&(x.clone(), w.clone()))?.allclose(&wanted, 1e-10, 1e-12)?, "compiled {number}");
    }
    let message =
        |all: kiln::compile::capture::Vmap<Pair, Tensor>| all.call((x.clone(), w.clone())).unwrap_err().to_string();
    let few = message(kiln::vmap(FUNCTIONS[0]).in_dims([Some(1)]));
    assert!(few.contains("in_dims") && few.contains("each tensor"), "{few}");
    let none = message(kiln::vmap(FUNCTIONS[0]).in_dims([None, None]));
    assert!(none.contains("in_dims"), "{none}");
    let many = message(kiln::vmap(FUNCTIONS[0]).in_dims([Some(1), None]).out_dims([0, 0]));
    assert!(many.contains("out_dims"), "{many}");
    Ok(())
}
