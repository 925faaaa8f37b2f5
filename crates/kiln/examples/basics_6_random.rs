//! Random tensors: a seed and a count of draws decide everything.

use kiln::{DType, Device, Generator, Result, Tensor, manual_seed};

fn main() -> Result<()> {
    let generator = Generator::new(42);
    let x = generator.randn([10_000], DType::F32, Device::Cpu)?;
    println!("mean {:.3}, deviation {:.3}", x.mean(..)?.item::<f64>()?, x.std(..)?.item::<f64>()?);
    println!("dice: {}", generator.randint(1, 7, [10], Device::Cpu)?);
    println!("an order: {}", generator.randperm(10, Device::Cpu)?);
    println!("dropout: {}", generator.dropout(&Tensor::ones([8], DType::F32, Device::Cpu)?, 0.5)?);

    // Another generator of the same seed draws the same numbers.
    let again = Generator::new(42).randn([10_000], DType::F32, Device::Cpu)?;
    assert_eq!(again.to_vec::<f32>()?, x.to_vec::<f32>()?);

    // The process has a default generator.
    manual_seed(7);
    let first = Tensor::rand([3], DType::F32, Device::Cpu)?;
    let second = Tensor::rand([3], DType::F32, Device::Cpu)?;
    manual_seed(7);
    assert_eq!(Tensor::rand([3], DType::F32, Device::Cpu)?.to_vec::<f32>()?, first.to_vec::<f32>()?);
    println!("{first} and then {second}");
    Ok(())
}
