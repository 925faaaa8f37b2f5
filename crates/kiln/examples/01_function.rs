//! One line makes a function of tensors compiled: the first call captures it, later calls run its fused kernels.

use kiln::{DType, Device, Result, Tensor};

fn gelu_times(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let inner = x.add(&x.mul(x)?.mul(x)?.mul(0.044715)?)?.mul(0.7978845608)?;
    x.mul(0.5)?.mul(&inner.tanh()?.add(1.0)?)?.mul(weight)
}

fn main() -> Result<()> {
    // A tensor that the function holds becomes an input of its program: code never contains a weight.
    let weight = Tensor::randn(256, DType::F32, Device::Cpu)?;
    let fast = kiln::compile(|x: &Tensor| gelu_times(x, &weight));

    let x = Tensor::randn([64, 256], DType::F32, Device::Cpu)?;
    for call in 1..=3 {
        let difference = (fast.call(&x)? - gelu_times(&x, &weight)?)?.abs()?.amax(..)?.item::<f32>()?;
        println!("call {call}: largest difference to eager {difference:e}");
    }
    for program in fast.programs() {
        println!("one program, for {}: {}", program.guards.join(", "), program.kernels.join("; "));
    }

    // Several arguments are a tuple, and plain values among them are guarded: another value is another program.
    let scaled = kiln::compile(|(x, scale): &(Tensor, f64)| x.mul(*scale)?.relu());
    scaled.call(&(x.clone(), 2.0))?;
    scaled.call(&(x.clone(), 2.0))?;
    scaled.call(&(x, 3.0))?;
    println!("{:?}", scaled.stats());
    Ok(())
}
