//! One line makes a function of tensors compiled: the first call captures it, later calls run its fused kernels.

use kiln::runtime::event::{self, Category};
use kiln::{DType, Device, Options, Result, Tensor};

struct Mlp {
    up: Tensor,
    down: Tensor,
}

impl Mlp {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x + x.matmul(&self.up)?.silu()?.matmul(&self.down)?
    }
}

fn main() -> Result<()> {
    event::set_sink(&[Category::Recompiles, Category::Breaks], |event| println!("  event: {event}"));
    let mlp = Mlp {
        up: Tensor::randn([64, 256], DType::F32, Device::Cpu)?,
        down: Tensor::randn([256, 64], DType::F32, Device::Cpu)?,
    };
    let fast = kiln::compile(|x: &Tensor| mlp.forward(x));

    // The second size makes the rows a symbol, so that the third needs no compile.
    for rows in [4, 8, 13] {
        let x = Tensor::randn([rows, 64], DType::F32, Device::Cpu)?;
        let difference = (fast.call(&x)? - mlp.forward(&x)?)?.abs()?.amax(..)?.item::<f32>()?;
        println!("{rows} rows: largest difference to eager {difference:e}, {:?}", fast.stats());
    }
    for program in fast.programs() {
        println!("program for {}: {} kernels", program.guards.join(", "), program.kernels.len());
    }

    // What a graph cannot say runs eagerly, unless it is to be an error.
    let clip = |x: &Tensor| if x.amax(..)?.item::<f32>()? > 1.0 { x.clamp(-1.0, 1.0) } else { Ok(x.clone()) };
    let x = Tensor::new([0.5f32, 3.0], Device::Cpu)?;
    println!("eager after all: {}", kiln::compile(clip).call(&x)?);
    let strict = kiln::compile_with(clip, Options { fullgraph: true, ..Options::default() });
    if let Err(error) = strict.call(&x) {
        println!("fullgraph: {error}");
    }
    Ok(())
}
