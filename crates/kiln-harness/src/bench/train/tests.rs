//! Whole models: losses, every gradient and AdamW against PyTorch's own results, eager and compiled, with every kernel
//! held against the reference interpreter.

use super::*;
use kiln::{DType, Device, safetensors};
use std::collections::BTreeMap;

/// The models of `tests/train/make_reference.py`.
const GPT: Model = Model::Gpt { layers: 2, hidden: 20, heads: 2, context: 7, batch: 2, vocabulary: 11 };
const VIT: Model = Model::Vit { layers: 2, hidden: 20, heads: 2, image: 8, patch: 4, batch: 3, classes: 5 };

struct Reference(BTreeMap<String, Tensor>);

impl Reference {
    fn load(model: &Model) -> Reference {
        let name = if matches!(model, Model::Gpt { .. }) { "gpt" } else { "vit" };
        let path = format!("{}/tests/train/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
        Reference(safetensors::load(path, Device::Cpu).unwrap())
    }

    fn batch(&self) -> Batch {
        (self.0["x"].clone(), self.0["y"].clone())
    }

    /// The tensors under a prefix, by the parameters' names.
    fn all(&self, prefix: &str) -> BTreeMap<String, Tensor> {
        let named = self.0.iter().filter_map(|(name, t)| Some((name.strip_prefix(prefix)?.to_owned(), t.clone())));
        named.collect()
    }

    fn network(&self, model: &Model) -> Network {
        let network = model.network(DType::F32).unwrap();
        network.load_state_dict(&self.all("parameter."), true).unwrap();
        network
    }
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.reshape([-1]).unwrap().to_vec().unwrap()
}

/// Differences are small against the largest element.
fn assert_close(name: &str, got: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(got.len(), expected.len(), "{name}");
    let largest = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() <= tolerance * largest + 1e-7, "{name}[{i}]: {g}, PyTorch has {e}");
    }
}

fn checked() -> Options {
    Options { fullgraph: true, verify: true, ..Options::default() }
}

#[test]
fn loss_and_gradients_are_pytorchs() {
    for model in [GPT, VIT] {
        let reference = Reference::load(&model);
        let gradients = reference.all("gradient.");
        for compile in [false, true] {
            let network = Arc::new(reference.network(&model));
            let inner = network.clone();
            let f = move |(x, y): &Batch| {
                let loss = inner.loss(x, y)?;
                loss.backward()?;
                Ok(loss.detach())
            };
            let loss = if compile {
                kiln::compile_with(f, checked()).call(&reference.batch()).unwrap()
            } else {
                f(&reference.batch()).unwrap()
            };
            assert_close("loss", &numbers(&loss), &numbers(&reference.0["losses"])[..1], 1e-5);
            let parameters = network.named_parameters();
            assert_eq!(parameters.len(), gradients.len());
            for (name, var) in parameters {
                let (got, expected) = (var.grad().expect("every parameter has a gradient"), &gradients[&name]);
                assert_eq!(got.shape(), expected.shape());
                assert_close(
                    &format!("{model:?}, compiled: {compile}: {name}"),
                    &numbers(&got),
                    &numbers(expected),
                    2e-5,
                );
            }
        }
    }
}

#[test]
fn training_steps_are_pytorchs() {
    for model in [GPT, VIT] {
        let reference = Reference::load(&model);
        let network = Arc::new(reference.network(&model));
        let step = kiln::compile_with(training(network.clone()).unwrap(), checked());
        for &expected in &numbers(&reference.0["losses"]) {
            let loss = step.call(&reference.batch()).unwrap();
            assert_close("loss", &numbers(&loss), &[expected], 2e-5);
        }
        assert_eq!(step.stats().compiles, 1);
        let (trained, gradients) = (reference.all("trained."), reference.all("gradient."));
        for (name, var) in network.named_parameters() {
            let (got, expected, gradient) = (numbers(&var.get()), numbers(&trained[&name]), numbers(&gradients[&name]));
            for ((got, expected), gradient) in got.iter().zip(&expected).zip(gradient) {
                // A gradient that is 0 but for rounding, such as that of the keys' bias, moves a parameter either way.
                let far = (got - expected).abs() > 2e-5 && gradient.abs() > 1e-6;
                assert!(!far, "{model:?}: {name}: {got}, PyTorch has {expected}");
            }
        }
    }
}

/// Learning works: the loss of one batch falls, the same eager and compiled.
#[test]
fn the_loss_falls() {
    for model in [GPT, VIT] {
        let reference = Reference::load(&model);
        let batch = reference.batch();
        let eager = training(Arc::new(reference.network(&model))).unwrap();
        let compiled = kiln::compile_with(training(Arc::new(reference.network(&model))).unwrap(), checked());
        let mut losses = Vec::new();
        for _ in 0..20 {
            let (e, c) = (numbers(&eager(&batch).unwrap())[0], numbers(&compiled.call(&batch).unwrap())[0]);
            assert!((e - c).abs() <= 1e-3 * e, "{e} eager, {c} compiled");
            losses.push(c);
        }
        assert!(losses[19] < 0.9 * losses[0], "{losses:?}");
    }
}

/// In short floats the loss is that of f32 within their error, eager and compiled, and it falls.
#[test]
fn short_floats_train_as_f32_does() {
    for model in [GPT, VIT] {
        let reference = Reference::load(&model);
        let batch = reference.batch();
        let network = |dtype| {
            let network = model.network(dtype).unwrap();
            network.load_state_dict(&reference.all("parameter."), true).unwrap();
            Arc::new(network)
        };
        let eager = training(network(DType::Bf16)).unwrap();
        let compiled = kiln::compile_with(training(network(DType::Bf16)).unwrap(), checked());
        let exact = training(network(DType::F32)).unwrap();
        let mut losses = Vec::new();
        for _ in 0..10 {
            let [e, c, f] =
                [eager(&batch), compiled.call(&batch), exact(&batch)].map(|loss| numbers(&loss.unwrap())[0]);
            assert!((e - c).abs() <= 0.02 * e && (e - f).abs() <= 0.02 * f, "{e} eager, {c} compiled, {f} in f32");
            losses.push(c);
        }
        assert!(losses[9] < losses[0], "{losses:?}");
    }
}

#[test]
fn models_are_named_with_their_sizes() {
    let small = Model::parse("gpt2:layers=2,hidden=64,heads=2,context=16,batch=3,vocabulary=50").unwrap();
    assert_eq!(small, Model::Gpt { layers: 2, hidden: 64, heads: 2, context: 16, batch: 3, vocabulary: 50 });
    assert_eq!(Model::parse("vit").unwrap(), Model::LARGE[0]);
    for wrong in ["bert", "gpt2:image=4", "vit:layers", "vit:layers=0", "vit:layers=x"] {
        assert!(Model::parse(wrong).is_err(), "{wrong}");
    }
}
