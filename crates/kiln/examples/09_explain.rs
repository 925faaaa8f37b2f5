//! What became of a function: its graphs with their lines, its kernels with measured times, memory, breaks and guards; as text
//! and as a page for a browser.

use kiln::{DType, Device, Result, Tensor};

struct Mlp {
    up: Tensor,
    down: Tensor,
}

impl Mlp {
    /// Reads an element on its way, so that it becomes two graphs.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let hidden = x.rms_norm(1, None, 1e-6)?.matmul(&self.up)?.gelu()?;
        let largest = hidden.abs()?.amax(..)?.item::<f32>()?;
        let hidden = if largest > 1e4 { (hidden / largest)? } else { hidden };
        x + hidden.matmul(&self.down)?
    }
}

fn main() -> Result<()> {
    let mlp = Mlp {
        up: (Tensor::randn([256, 1024], DType::F32, Device::Cpu)? * 0.05)?,
        down: (Tensor::randn([1024, 256], DType::F32, Device::Cpu)? * 0.05)?,
    };
    let fast = kiln::compile(|x: &Tensor| mlp.forward(x));
    let explanation = fast.explain(&Tensor::randn([128, 256], DType::F32, Device::Cpu)?)?;
    print!("{explanation}");

    // Everything is there for a program to look at, too.
    for (number, segment) in explanation.segments.iter().enumerate() {
        let slowest = segment.kernels.iter().max_by_key(|kernel| kernel.time);
        if let Some(kernel) = slowest {
            println!("slowest of graph {number}: {}, {:.1} GFLOP/s", kernel.label, kernel.throughput());
        }
    }

    let page = std::env::temp_dir().join("kiln_explain.html");
    match std::fs::write(&page, explanation.to_html()) {
        Ok(()) => println!("open {} in a browser", page.display()),
        Err(error) => println!("no page: {error}"),
    }
    Ok(())
}
