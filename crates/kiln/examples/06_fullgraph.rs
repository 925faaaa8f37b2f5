//! `fullgraph` turns a graph break into an error that names the line and the way out.

use kiln::{DType, Device, Error, Options, Result, Tensor};

fn main() -> Result<()> {
    let options = Options { fullgraph: true, ..Options::default() };

    let clip = |x: &Tensor| if x.amax(..)?.item::<f32>()? > 1.0 { x.clamp(-1.0, 1.0) } else { Ok(x.clone()) };
    let strict = kiln::compile_with(clip, options.clone());
    let x = Tensor::new([0.5f32, 3.0], Device::Cpu)?;
    match strict.call(&x) {
        Err(error @ Error::GraphBreak { .. }) => println!("{error}"),
        other => panic!("expected a graph break, got {other:?}"),
    }

    // The way out: both sides as tensors, and a choice between them.
    let clip = |x: &Tensor| x.amax(..)?.gt(1.0)?.where_(&x.clamp(-1.0, 1.0)?, x);
    let whole = kiln::compile_with(clip, options);
    println!("{:?}", whole.call(&x)?.to_vec::<f32>()?);
    println!("{:?}", whole.call(&Tensor::zeros(2, DType::F32, Device::Cpu)?)?.to_vec::<f32>()?);
    println!("one graph: {:?}", whole.stats());
    Ok(())
}
