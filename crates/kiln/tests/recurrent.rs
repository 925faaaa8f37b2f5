//! Recurrent layers in eager code: one program for all lengths, which means what steps one after another do. Alone in its file, for what
//! compiled functions do is set for the process.

use kiln::nn::{Forward, Gru, Lstm, Module};
use kiln::{DType, Device, Generator, Result, Stance, Tensor, no_grad, set_stance};

fn assert_close(got: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(got.shape(), expected.shape(), "{what}");
    for (a, b) in got.to_vec::<f32>().unwrap().iter().zip(expected.to_vec::<f32>().unwrap()) {
        assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{what}: {a} and {b}");
    }
}

fn check(layer: &(impl Module + Forward<Output = Tensor>), what: &str) -> Result<()> {
    let run = |x: &Tensor| -> Result<Vec<Tensor>> {
        let weights = layer.parameters();
        weights.iter().for_each(|weight| weight.zero_grad());
        let x = x.requires_grad();
        let y = layer.forward(&x)?;
        let loss = y.square()?.sum(..)?;
        let slope = loss.gradients_on_tape(&[&x])?.get(&x).expect("a slope").clone();
        loss.add(slope.square()?.sum(..)?)?.backward()?;
        let own = weights.iter().map(|weight| weight.grad().expect("a gradient"));
        Ok([y.detach(), slope.detach()].into_iter().chain(own).collect())
    };
    for steps in [4, 1, 7, 12, 2] {
        for rows in [2, 3] {
            let x = Generator::new(steps as u64).randn([rows, steps, 3], DType::F32, Device::Cpu)?;
            let got = run(&x)?;
            let stance = set_stance(Stance::ForceEager);
            let expected = run(&x)?;
            drop(stance);
            let strict = set_stance(Stance::FailOnRecompile);
            let (quiet, unseen) = (no_grad(|| layer.forward(&x))?, layer.forward(&x.narrow(0, 0, 1)?)?);
            drop(strict);
            assert_eq!(unseen.shape()[0], 1);
            assert_close(&quiet, &expected[0], &format!("{what}, without gradients"));
            for (number, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert_close(got, expected, &format!("{what}, {steps} steps of {rows}, part {number}"));
            }
        }
    }
    let none = layer.forward(&Tensor::zeros([2, 0, 3], DType::F32, Device::Cpu)?)?;
    assert_eq!(none.shape()[..2], [2, 0]);
    let copy = Tensor::zeros([2, 3, 4], DType::F32, Device::Cpu)?;
    assert!(layer.forward(&copy).is_err(), "an input of another width");
    Ok(())
}

#[test]
fn eager_layers_run_one_program_and_mean_the_same() -> Result<()> {
    check(&Lstm::new(3, 4, 1)?, "an LSTM")?;
    check(&Lstm::bidirectional(3, 4, 2)?, "an LSTM of two layers in both directions")?;
    check(&Gru::bidirectional(3, 5, 1)?, "a GRU")
}
