//! Errors: what was wrong, with the shapes, and the line that asked for it.

use kiln::{DType, Device, Error, Result, Tensor};

fn main() -> Result<()> {
    let x = Tensor::ones([2, 3], DType::F32, Device::Cpu)?;
    let w = Tensor::ones([4, 5], DType::F32, Device::Cpu)?;
    let far = Tensor::new([0i64, 9], Device::Cpu)?;

    let mistakes: [(&str, Result<Tensor>); 7] = [
        ("matmul", x.matmul(&w)),
        ("add", &x + &w),
        ("reshape", x.reshape([4, -1])),
        ("index", x.i((0, 3))),
        ("embedding", x.embedding(&far)),
        ("axis", x.sum(2)),
        ("memory", Tensor::zeros([1usize << 50], DType::F32, Device::Cpu)),
    ];
    for (name, outcome) in mistakes {
        match outcome {
            Err(error) => println!("{name:>10}: {error}"),
            Ok(tensor) => println!("{name:>10}: no error? {tensor:?}"),
        }
    }

    // The facts are fields, not words.
    if let Err(Error::ShapeMismatch { lhs, rhs, sizes: Some((a, b)), at, .. }) = x.matmul(&w) {
        println!("{lhs:?} against {rhs:?}: {a} is not {b} ({at})");
    }
    Ok(())
}
