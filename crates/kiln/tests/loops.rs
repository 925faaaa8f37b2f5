//! Loops whose body is captured once.

use kiln::{DType, Device, Generator, Result, Tensor, Var, compile, scan, while_loop};

fn random(shape: &[usize], seed: u64) -> Tensor {
    Generator::new(seed).randn(shape, DType::F32, Device::Cpu).unwrap()
}

fn assert_close(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    for (a, b) in got.to_vec::<f32>().unwrap().iter().zip(expected.to_vec::<f32>().unwrap()) {
        assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{what}: {a} and {b}");
    }
}

/// A cell with tanh, and the same as a loop.
fn cell(h: &Tensor, x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    h.matmul(weight)?.add(x)?.tanh()
}

#[test]
fn a_recurrent_network_is_one_program_for_all_lengths() {
    let weight = random(&[4, 4], 1);
    let own = weight.clone();
    let body = scan(move |(h, x): &(Tensor, Tensor)| {
        let h = cell(h, x, &own)?;
        Ok((h.clone(), h.mul(2.0)?))
    });
    let zeros = || Tensor::zeros([2, 4], DType::F32, Device::Cpu);
    let fast = compile(|x: &Tensor| {
        let (last, all) = body.call(zeros()?, x.mul(0.5)?)?;
        all.mean(0)?.add(&last)
    });
    for turn in 0..40u64 {
        let x = random(&[2 + turn as usize % 13, 2, 4], turn);
        let (mut h, mut all) = (zeros().unwrap(), Vec::new());
        for place in 0..x.shape()[0] {
            h = cell(&h, &x.mul(0.5).unwrap().select(0, place).unwrap(), &weight).unwrap();
            all.push(h.mul(2.0).unwrap());
        }
        let expected = Tensor::stack(&all, 0).unwrap().mean(0).unwrap().add(&h).unwrap();
        assert_close(&fast.call(&x).unwrap(), &expected, &format!("turn {turn}"));
    }
    let (stats, inner) = (fast.stats(), body.stats());
    assert_eq!((stats.compiles, stats.branches, stats.fallbacks), (2, 0, 0), "{stats:?}");
    assert_eq!((inner.compiles, inner.fallbacks), (1, 0), "{inner:?}");
}

#[test]
fn gradients_go_through_a_scan() {
    let fresh = || Var::new(&random(&[3, 3], 1)).requires_grad(true);
    let (one, two) = (fresh(), fresh());
    let own = one.clone();
    let body = scan(move |(h, x): &(Tensor, Tensor)| {
        let h = cell(h, x, &own.get())?;
        Ok((h.clone(), h.square()?))
    });
    let fast = compile(|x: &Tensor| body.call(x.select(0, 0)?, x.clone())?.1.sum(..));
    for turn in 0..6u64 {
        let x = random(&[2 + turn as usize, 2, 3], turn);
        let mut h = x.select(0, 0).unwrap();
        let mut loss = Tensor::scalar(0.0, DType::F32, Device::Cpu).unwrap();
        for place in 0..x.shape()[0] {
            h = cell(&h, &x.select(0, place).unwrap(), &two.get()).unwrap();
            loss = loss.add(h.square().unwrap().sum(..).unwrap()).unwrap();
        }
        for (loss, var) in [(fast.call(&x).unwrap(), &one), (loss, &two)] {
            var.zero_grad();
            loss.backward().unwrap();
        }
        assert_close(&one.grad().unwrap(), &two.grad().unwrap(), &format!("turn {turn}"));
    }
}

#[test]
fn a_condition_ends_a_loop() {
    // Square roots by Newton's rule.
    let newton = while_loop(
        |(root, x): &(Tensor, Tensor)| root.square()?.sub(x)?.abs()?.amax(..)?.gt(1e-3),
        |(root, x): &(Tensor, Tensor)| Ok((root.add(x.div(root)?)?.mul(0.5)?, x.clone())),
    );
    let fast = compile(|x: &Tensor| Ok::<Tensor, kiln::Error>(newton.call((x.add(1.0)?, x.clone()))?.0));
    for turn in 0..30u64 {
        let x = random(&[1 + turn as usize % 7], turn).abs().unwrap().add(0.1).unwrap();
        let x = x.mul(1.0 + (turn * turn) as f64).unwrap();
        let (root, expected) = (fast.call(&x).unwrap(), x.sqrt().unwrap());
        for (a, b) in root.to_vec::<f32>().unwrap().iter().zip(expected.to_vec::<f32>().unwrap()) {
            assert!((a - b).abs() < 1e-3 * (1.0 + b), "turn {turn}: {a} and {b}");
        }
    }
    let stats = newton.stats();
    assert!(stats.compiles <= 3 && stats.fallbacks == 0, "{stats:?}");
}

#[test]
fn what_cannot_be_looped_over_says_so() {
    let add = scan(|(sum, x): &(Tensor, Tensor)| Ok((sum.add(x)?, sum.clone())));
    let zero = || Tensor::scalar(0.0, DType::F32, Device::Cpu).unwrap();
    assert!(add.call(zero(), zero()).unwrap_err().to_string().contains("no axis to loop over"));
    let none = Tensor::zeros(0, DType::F32, Device::Cpu).unwrap();
    assert!(add.call(zero(), none).unwrap_err().to_string().contains("no turn"));
    let pairs = scan(|(sum, (x, y)): &(Tensor, (Tensor, Tensor))| Ok((sum.add(x)?.add(y)?, sum.clone())));
    let long = |n: usize| Tensor::ones(n, DType::F32, Device::Cpu).unwrap();
    assert!(pairs.call(zero(), (long(2), long(3))).unwrap_err().to_string().contains("differ"));
    assert_eq!(pairs.call(zero(), (long(3), long(3))).unwrap().0.item::<f32>().unwrap(), 6.0);
}
