//! Views: other shapes and orders of the same memory.

use kiln::{DType, Device, Ellipsis, Result, Tensor, step};

fn main() -> Result<()> {
    let x = Tensor::arange(24, DType::I64, Device::Cpu)?.reshape([2, 3, 4])?;

    println!("x[0] = {}", x.i(0)?);
    println!("x[1, -1, 1:3] = {}", x.i((1, -1, 1..3))?);
    println!("x[..., 0] = {}", x.i((Ellipsis, 0))?);
    println!("x[:, 0, ::2] = {}", x.i((.., 0, step(.., 2)))?);
    println!("x[:, None] has shape {:?}", x.i((.., None))?.shape());

    // Rows by an integer tensor; this one copies.
    let rows = Tensor::new([2i64, 0, 2], Device::Cpu)?;
    println!("x[0, rows] = {}", x.i((0, &rows))?);

    // None of these copies an element.
    for view in [x.transpose(0, 2)?, x.flip([0, 1])?, x.unfold(2, 2, 1)?, x.i((0, 0))?.broadcast_to([5, 4])?] {
        assert!(view.buffer().same(x.buffer()));
        println!("{view:?}");
    }

    // A reshape copies only if strides cannot describe the result.
    let turned = x.transpose(0, 2)?;
    assert!(!turned.reshape([24])?.buffer().same(x.buffer()));
    assert!(x.reshape([6, 4])?.buffer().same(x.buffer()));

    let parts = x.split(2, 1)?;
    println!("split: {parts:?}; joined again: {:?}", Tensor::cat(&parts, 1)?);
    Ok(())
}
