//! Whole models: losses, every gradient and AdamW against PyTorch's own results and against the reference interpreter.

use super::step::{gradient_graph, step_graph};
use super::*;
use kiln::safetensors;
use kiln_ir::{HostTensor, interpret};
use std::collections::BTreeMap;

/// The models of `tests/train/make_reference.py`.
const GPT: Model = Model::Gpt { layers: 2, hidden: 20, heads: 2, context: 7, batch: 2, vocabulary: 11 };
const VIT: Model = Model::Vit { layers: 2, hidden: 20, heads: 2, image: 8, patch: 4, batch: 3, classes: 5 };

struct Reference(BTreeMap<String, Tensor>);

impl Reference {
    fn load(model: &Model) -> Reference {
        let path = format!("{}/tests/train/{}.safetensors", env!("CARGO_MANIFEST_DIR"), model.name());
        Reference(safetensors::load(path, Device::Cpu).unwrap())
    }

    fn batch(&self) -> [Tensor; 2] {
        ["x", "y"].map(|name| self.0[name].clone())
    }

    fn all(&self, kind: &str, model: &Model) -> Vec<Tensor> {
        model.parameters().iter().map(|p| self.0[&format!("{kind}.{}", p.name)].clone()).collect()
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

#[test]
fn loss_and_gradients_are_pytorchs() {
    for model in [GPT, VIT] {
        let reference = Reference::load(&model);
        let graph = gradient_graph(&model).unwrap();
        let compiled = CompiledGraph::new(&graph, &[], &Default::default()).unwrap();
        let inputs = [reference.batch().to_vec(), reference.all("parameter", &model)].concat();
        let outputs = compiled.run(&inputs).unwrap();
        assert_close("loss", &numbers(&outputs[0]), &numbers(&reference.0["losses"])[..1], 1e-5);
        let gradients = reference.all("gradient", &model);
        assert_eq!(outputs.len(), gradients.len() + 1);
        for ((p, got), expected) in model.parameters().iter().zip(&outputs[1..]).zip(&gradients) {
            assert_eq!(got.shape(), expected.shape());
            assert_close(&format!("{}: {}", model.name(), p.name), &numbers(got), &numbers(expected), 2e-5);
        }
    }
}

#[test]
fn training_steps_are_pytorchs() {
    for model in [GPT, VIT] {
        let reference = Reference::load(&model);
        let mut training = Training::new(&model, reference.batch(), reference.all("parameter", &model)).unwrap();
        for &expected in &numbers(&reference.0["losses"]) {
            let loss = numbers(&training.step().unwrap());
            assert_close("loss", &loss, &[expected], 2e-5);
        }
        let (trained, gradients) = (reference.all("trained", &model), reference.all("gradient", &model));
        for (i, p) in model.parameters().iter().enumerate() {
            let (got, expected) = (numbers(&training.parameters()[i]), numbers(&trained[i]));
            for ((got, expected), gradient) in got.iter().zip(&expected).zip(numbers(&gradients[i])) {
                // A gradient that is 0 but for rounding, such as that of the keys' bias, moves a parameter either way.
                let far = (got - expected).abs() > 2e-5 && gradient.abs() > 1e-6;
                assert!(!far, "{}: {}: {got}, PyTorch has {expected}", model.name(), p.name);
            }
        }
    }
}

/// The whole step, fused, is what the interpreter computes op by op in f64 sums.
#[test]
fn a_step_is_what_the_interpreter_computes() {
    let gpt = Model::Gpt { layers: 1, hidden: 16, heads: 2, context: 5, batch: 2, vocabulary: 9 };
    let vit = Model::Vit { layers: 1, hidden: 16, heads: 2, image: 8, patch: 4, batch: 2, classes: 3 };
    for model in [gpt, vit] {
        let graph = step_graph(&model, &AdamW::default()).unwrap();
        let (batch, parameters) = beginning(&model).unwrap();
        let mut inputs = [batch.to_vec(), parameters.clone()].concat();
        inputs.push(Tensor::from_slice(&[4f32], [0usize; 0], Device::Cpu).unwrap());
        inputs.extend(parameters.iter().map(|p| (p * 0.1).unwrap()));
        inputs.extend(parameters.iter().map(|p| ((p * p).unwrap() + 1e-3).unwrap()));
        let hosts: Vec<HostTensor> = inputs.iter().map(|t| t.to_host().unwrap()).collect();
        let expected = interpret::run(&graph, &hosts).unwrap();
        let outputs = kiln::compile_graph(&graph, &[]).unwrap().run(&inputs).unwrap();
        for (i, (got, expected)) in outputs.iter().zip(&expected).enumerate() {
            let expected: Vec<f32> = expected.to_f64().iter().map(|&v| v as f32).collect();
            assert_close(&format!("{} output {i}", model.name()), &numbers(got), &expected, 1e-5);
        }
    }
}

/// Learning works: the loss of one batch falls.
#[test]
fn the_loss_falls() {
    for model in [GPT, VIT] {
        let (batch, parameters) = beginning(&model).unwrap();
        let mut training = Training::new(&model, batch, parameters).unwrap();
        let losses: Vec<f32> = (0..60).map(|_| numbers(&training.step().unwrap())[0]).collect();
        assert!(losses[59] < 0.8 * losses[0], "{losses:?}");
    }
}
