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

    // The report of one program, kernel by kernel, on any inputs.
    let programs = fast.programs();
    let code = programs[0].segments[0].code.as_ref().expect("the program is there");
    let inputs: Vec<Tensor> = code
        .graph()
        .inputs()
        .iter()
        .map(|&id| {
            let ty = code.graph().ty(id);
            Tensor::randn(ty.fixed_shape().unwrap_or_default(), ty.dtype, Device::Cpu)
        })
        .collect::<Result<_>>()?;
    println!("{}", code.verify(&inputs)?);

    // And if a pass were to blame: the interpreter before and after each.
    println!("{}", bisect_passes(code.graph(), &inputs)?);
    Ok(())
}
