//! `verify` compares every kernel of a new program with the reference interpreter, on the arguments of its first call.

use kiln::nn::{Forward, LayerNorm, Linear, Module};
use kiln::runtime::event::{self, Category};
use kiln::see::bisect_passes;
use kiln::{DType, Device, Options, Result, Tensor};

#[derive(Module)]
struct Block {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Forward for Block {
    type Output = Tensor;

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.add(&self.down.forward(&self.up.forward(&self.norm.forward(x)?)?.silu()?)?)
    }
}

fn main() -> Result<()> {
    let block = Block { norm: LayerNorm::new(32, 1e-5)?, up: Linear::new(32, 64)?, down: Linear::new(64, 32)? };
    let _listening = event::listen(&[Category::Kernels], |event| {
        if matches!(event, event::Event::Verified { .. }) {
            println!("event: {event}");
        }
    });

    // A kernel that disagrees would make this an error with a report.
    let fast = kiln::compile_module_with(block, Options { verify: true, ..Options::default() });
    let x = Tensor::randn([4, 32], DType::F32, Device::Cpu)?;
    fast.call(&x)?;

    // The reports, kernel by kernel, for any arguments.
    for report in fast.verify(&x)? {
        println!("{report}");
    }

    // And if a pass were to blame: the interpreter before and after each.
    let graph = fast.programs()[0].segments[0].graph.clone();
    let inputs = graph.inputs().iter().map(|&id| {
        let ty = graph.ty(id);
        Tensor::randn(ty.fixed_shape().unwrap_or_default(), ty.dtype, Device::Cpu)
    });
    println!("{}", bisect_passes(&graph, &inputs.collect::<Result<Vec<_>>>()?)?);
    Ok(())
}
