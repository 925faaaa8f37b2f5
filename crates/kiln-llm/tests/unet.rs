//! The U-Net of Stable Diffusion against diffusers (`reference/make_unet.py`), eager and compiled, and steps of DDIM by one program.

use kiln::nn::Module;
use kiln::{Device, Options, Tensor, safetensors};
use kiln_llm::models::unet::{Ddim, Unet, UnetConfig};
use std::path::Path;
use std::sync::Arc;

fn reference(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/tiny-unet").join(name)
}

fn tiny() -> Unet {
    let config = UnetConfig {
        block_out_channels: vec![8, 16, 16, 16],
        layers_per_block: 1,
        heads: 2,
        cross_attention_dim: 12,
        norm_groups: 4,
        ..UnetConfig::sd15()
    };
    let unet = Unet::new(&config).unwrap();
    let tensors = safetensors::load(reference("model.safetensors"), Device::Cpu).unwrap();
    // Every name of diffusers, and no other.
    unet.load_state_dict(&tensors, true).unwrap();
    unet.set_requires_grad(false);
    unet
}

#[test]
fn noise_is_what_diffusers_sees() {
    let unet = Arc::new(tiny());
    let expected = safetensors::load(reference("expected.safetensors"), Device::Cpu).unwrap();
    let arguments = (expected["x"].clone(), expected["times"].clone(), expected["text"].clone());
    let own = unet.clone();
    let run = move |(x, times, text): &(Tensor, Tensor, Tensor)| own.forward(x, times, text);
    let options = |freeze| Options { fullgraph: true, freeze, ..Options::default() };
    let (fast, frozen) =
        (kiln::compile_with(run.clone(), options(false)), kiln::compile_with(run.clone(), options(true)));
    for (way, noise) in
        [("eager", run(&arguments)), ("compiled", fast.call(&arguments)), ("frozen", frozen.call(&arguments))]
    {
        let noise = noise.unwrap();
        assert!(noise.allclose(&expected["noise"], 1e-3, 1e-4).unwrap(), "{way}: {noise}\nnot {}", expected["noise"]);
    }
}

#[test]
fn steps_of_ddim_are_one_program() {
    let unet = Arc::new(tiny());
    let expected = safetensors::load(reference("expected.safetensors"), Device::Cpu).unwrap();
    let said: serde_json::Value = serde_json::from_slice(&std::fs::read(reference("expected.json")).unwrap()).unwrap();
    let schedule = Ddim::default();
    let times = schedule.times(20, 1.0);
    assert_eq!(serde_json::json!(times), said["timesteps"]);
    assert_eq!(schedule.times(20, 0.5), times[10..]);
    let numbers = schedule.step(times[3], Some(times[4]), Device::Cpu).unwrap();
    let (x, noise) = (expected["x"].narrow(0, 0, 1).unwrap(), expected["noise"].narrow(0, 0, 1).unwrap());
    let stepped = Ddim::advanced(&x, &noise, &numbers).unwrap();
    assert!(stepped.allclose(&expected["stepped"], 1e-4, 1e-4).unwrap());
    let own = unet.clone();
    let step = move |(x, numbers, text): &(Tensor, Tensor, Tensor)| {
        let noise = own.forward(x, &numbers.narrow(0, 0, 1)?, text)?;
        Ddim::advanced(x, &noise, numbers)
    };
    let fast = kiln::compile_with(step.clone(), Options { fullgraph: true, freeze: true, ..Options::default() });
    let text = expected["text"].narrow(0, 0, 1).unwrap();
    let (mut eager, mut compiled) = (x.clone(), x);
    for (number, &time) in times.iter().enumerate().take(6) {
        let numbers = schedule.step(time, times.get(number + 1).copied(), Device::Cpu).unwrap();
        eager = step(&(eager, numbers.clone(), text.clone())).unwrap();
        compiled = fast.call(&(compiled, numbers, text.clone())).unwrap();
        assert!(compiled.allclose(&eager, 1e-3, 1e-3).unwrap(), "step {number}");
    }
    let stats = fast.stats();
    let guards: Vec<_> = fast.programs().into_iter().map(|program| program.guards).collect();
    assert_eq!((stats.compiles, stats.programs, stats.breaks), (1, 1, 0), "{guards:?}");
}

/// A training step goes through all of it, with blocks of the network computed again for their gradients or not.
#[test]
fn gradients_reach_every_parameter() {
    let unet = Unet::new(&UnetConfig { layers_per_block: 1, ..UnetConfig::sd15().divided(40) }).unwrap();
    unet.set_requires_grad(true);
    let noise = |shape: [usize; 4]| Tensor::randn(shape, kiln::DType::F32, Device::Cpu).unwrap();
    let (x, target) = (noise([1, 4, 8, 8]), noise([1, 4, 8, 8]));
    let width = unet.config.cross_attention_dim;
    let text = Tensor::randn([1, 3, width], kiln::DType::F32, Device::Cpu).unwrap();
    let times = Tensor::new([10f32], Device::Cpu).unwrap();
    unet.forward(&x, &times, &text).unwrap().mse_loss(&target).unwrap().backward().unwrap();
    for (name, parameter) in unet.named_parameters() {
        assert!(parameter.grad().is_some(), "{name}");
    }
}
