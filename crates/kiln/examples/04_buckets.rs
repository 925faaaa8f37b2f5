//! Buckets: arguments are padded to one of a few sizes, so that a model sees few shapes. Lengths are data, masks come from them.

use kiln::{Buckets, DType, Device, Options, Result, Tensor};

/// The mean over the tokens, which has to leave the padding out, and a score for each token, which need not.
fn pool(x: &Tensor) -> Result<(Tensor, Tensor)> {
    let mask = x.valid_mask(0)?.unsqueeze(1)?;
    let total = mask.where_(x, 0.0)?.sum(0)?;
    Ok((total.div(x.valid_length(0)?.to_dtype(DType::F32)?)?, x.square()?.sum(-1)?))
}

fn main() -> Result<()> {
    let buckets = Buckets::powers_of_two(64, 2048).at(0, 0);
    println!("sizes: {:?}", buckets.sizes());
    let fast = kiln::compile_with(pool, Options { buckets: vec![buckets], ..Options::default() });

    for tokens in [17, 64, 65, 100, 3, 1000, 700] {
        let x = Tensor::randn([tokens, 8], DType::F32, Device::Cpu)?;
        let (mean, scores) = fast.call(&x)?;
        // In eager code nothing is padded: the mask is all true, the length the size.
        let difference = (mean - pool(&x)?.0)?.abs()?.amax(..)?.item::<f32>()?;
        println!("{tokens:>4} tokens: {:?} scores, mean differs by {difference:e}", scores.shape());
    }
    println!("seven sizes, {} programs", fast.stats().compiles);
    Ok(())
}
