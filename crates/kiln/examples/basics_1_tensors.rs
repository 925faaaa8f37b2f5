//! Tensors: making them, computing with them, printing them.

use kiln::{DType, Device, Result, Tensor};

fn main() -> Result<()> {
    let x = Tensor::new([[1f32, 2., 3.], [4., 5., 6.]], Device::Cpu)?;
    println!("{x}");

    // Operators return a `Result`; one `?` a line is usual.
    let y = ((&x * 2.0)? + 1.0)?;
    println!("2x + 1 = {y}");
    println!("x·xᵀ = {}", x.matmul(&x.t()?)?);

    // Shapes broadcast as in NumPy, dtypes promote as in PyTorch.
    let row = Tensor::arange(3, DType::I64, Device::Cpu)?;
    let sum = (&x + &row)?;
    println!("{sum} is {}", sum.dtype());

    println!("softmax: {}", x.softmax(-1)?);
    println!("row means: {}, largest: {}", x.mean(-1)?, x.max(..)?.item::<f32>()?);

    // Large tensors are summarised.
    println!("{}", Tensor::arange(10_000, DType::F32, Device::Cpu)?.reshape([100, 100])?);
    Ok(())
}
