//! A module stays itself when it is compiled: fields, parameters and the state dict keep their names.

use kiln::nn::{Dropout, Forward, LayerNorm, Linear, Module};
use kiln::{Bundle, DType, Device, Result, Tensor};

#[derive(Module)]
struct Mlp {
    norm: LayerNorm,
    up: Linear,
    down: Linear,
    dropout: Dropout,
}

/// What the module takes: structs of tensors are arguments too.
#[derive(Bundle)]
struct Input {
    x: Tensor,
    residual: bool,
}

impl Forward<Input> for Mlp {
    type Output = Tensor;

    fn forward(&self, input: &Input) -> Result<Tensor> {
        let hidden = self.up.forward(&self.norm.forward(&input.x)?)?.gelu()?;
        let y = self.dropout.forward(&self.down.forward(&hidden)?)?;
        if input.residual { input.x.add(&y) } else { Ok(y) }
    }
}

fn main() -> Result<()> {
    let mlp = Mlp {
        norm: LayerNorm::new(64, 1e-5)?,
        up: Linear::new(64, 256)?,
        down: Linear::new(256, 64)?,
        dropout: Dropout::new(0.1),
    };
    let fast = kiln::compile_module(mlp);
    fast.eval();

    let input = Input { x: Tensor::randn([8, 64], DType::F32, Device::Cpu)?, residual: true };
    let y = fast.call(&input)?;
    println!("compiled: {:?}, {} kernels", y.shape(), fast.programs()[0].kernels.len());
    println!("state dict: {:?}", fast.state_dict().into_keys().collect::<Vec<_>>());
    println!("its own field: up.weight is {:?}", fast.up.weight.shape());

    // Weights are arguments of the program: new ones need no compile.
    fast.down.weight.mul_assign(0.0)?;
    fast.down.bias.as_ref().map(|bias| bias.fill(0.0)).transpose()?;
    let same = (fast.call(&input)? - &input.x)?.abs()?.amax(..)?.item::<f32>()?;
    println!("with zeros in `down` the input comes back: {same}; {:?}", fast.stats());

    // Training is another way through the function: dropout draws new numbers at every call.
    fast.train();
    fast.call(&input)?;
    println!("after train(): {:?}", fast.stats());
    Ok(())
}
