//! A picture becomes another one: noise is added to it and taken away again, step by step, by the U-Net of Stable Diffusion's shape. Weights are
//! random here, so that the result is no picture; every step is the same program.

use kiln::nn::Module;
use kiln::{Device, Options, Tensor};
use kiln_llm::models::unet::{Ddim, Unet, UnetConfig};
use std::sync::Arc;

fn main() -> kiln::Result<()> {
    kiln::manual_seed(1);
    let device = Device::Cpu;
    // A sixteenth of Stable Diffusion 1.5's channels.
    let config = UnetConfig::sd15().divided(16);
    let unet = Arc::new(Unet::new(&config)?);
    // Nothing is trained: no tape from one step to the next.
    unet.set_requires_grad(false);
    let picture = Tensor::randn([1, config.in_channels, 16, 16], kiln::DType::F32, device)?.tanh()?;
    let text = Tensor::randn([1, 8, config.cross_attention_dim], kiln::DType::F32, device)?;

    let own = unet.clone();
    let step = kiln::compile_with(
        move |(x, numbers, text): &(Tensor, Tensor, Tensor)| {
            let noise = own.forward(x, &numbers.narrow(0, 0, 1)?, text)?;
            Ddim::advanced(x, &noise, numbers)
        },
        Options { fullgraph: true, freeze: true, ..Options::default() },
    );

    // With a strength of 0.5 half of the way is gone back, and half of the picture stays.
    let schedule = Ddim::default();
    let times = schedule.times(20, 0.5);
    let noise = Tensor::randn([1, config.in_channels, 16, 16], kiln::DType::F32, device)?;
    let mut x = schedule.noised(&picture, &noise, times[0])?;
    for (number, &time) in times.iter().enumerate() {
        let numbers = schedule.step(time, times.get(number + 1).copied(), device)?;
        x = step.call(&(x, numbers, text.clone()))?;
    }
    let moved = x.sub(&picture)?.abs()?.mean(..)?.item::<f32>()?;
    println!("{} steps by {} program; a pixel moved by {moved:.3}", times.len(), step.stats().programs);
    assert!(moved.is_finite() && step.stats().compiles == 1);
    Ok(())
}
