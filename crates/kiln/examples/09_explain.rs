//! What became of a function: graphs with source lines, kernels with measured times, memory, breaks, what was not fused and why.

use kiln::{DType, Device, Result, Tensor};

fn attention(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (rows, width) = (x.dim(0)?, x.dim(1)?);
    let qkv = x.matmul(weight)?.reshape([rows, 3, 4, width / 4])?.permute([1, 2, 0, 3])?;
    let (q, k, v) = (qkv.i(0)?, qkv.i(1)?, qkv.i(2)?);
    let scores = q.matmul(&k.t()?)?.mul(1.0 / ((width / 4) as f64).sqrt())?;
    let mixed = scores.softmax(-1)?.matmul(&v)?;
    x.add(&mixed.transpose(0, 1)?.reshape([rows, width])?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let weight = Tensor::randn([64, 192], DType::F32, Device::Cpu)?.mul(0.1)?;
    let x = Tensor::randn([32, 64], DType::F32, Device::Cpu)?;
    let explanation = kiln::explain(&|x: &Tensor| attention(x, &weight), &x)?;
    println!("{explanation}");

    // The same as one page for a browser, with nothing to load from elsewhere.
    let page = std::env::temp_dir().join(format!("kiln-explain-{}.html", std::process::id()));
    std::fs::write(&page, explanation.to_html())?;
    println!("a page of {} bytes: {}", std::fs::metadata(&page)?.len(), page.display());
    std::fs::remove_file(page)?;
    Ok(())
}
