//! A small GPT learns sonnets byte by byte. Forward, backward and optimizer are one compiled program, which writes the
//! parameters in place.

use kiln::nn::{Embedding, Forward, LayerNorm, Linear, Module, MultiHeadAttention};
use kiln::optim::{AdamW, Optimizer};
use kiln::{DType, Device, Result, Tensor};

/// Bytes that the model sees at a time.
pub const CONTEXT: usize = 32;
const BATCH: usize = 8;
const TEXT: &[u8] = include_bytes!("../data/sonnets.txt");

#[derive(Module)]
struct Block {
    before: LayerNorm,
    attention: MultiHeadAttention,
    between: LayerNorm,
    up: Linear,
    down: Linear,
}

/// A decoder over bytes.
#[derive(Module)]
pub struct Gpt {
    bytes: Embedding,
    places: Embedding,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl Gpt {
    /// One with first values.
    pub fn new(width: usize, layers: usize) -> Result<Gpt> {
        let block = |_| {
            let (up, down) = (Linear::new(width, 4 * width)?, Linear::new(4 * width, width)?);
            let (before, between) = (LayerNorm::new(width, 1e-5)?, LayerNorm::new(width, 1e-5)?);
            Ok(Block { before, attention: MultiHeadAttention::new(width, 4)?.causal(), between, up, down })
        };
        let blocks = (0..layers).map(block).collect::<Result<_>>()?;
        let (bytes, places) = (Embedding::new(128, width)?, Embedding::new(CONTEXT, width)?);
        Ok(Gpt { bytes, places, blocks, norm: LayerNorm::new(width, 1e-5)?, head: Linear::new(width, 128)? })
    }

    /// For each place of `bytes` what the next byte may be.
    pub fn forward(&self, bytes: &Tensor) -> Result<Tensor> {
        let places = Tensor::arange(bytes.dim(1)?, DType::I64, bytes.device())?;
        let mut x = (self.bytes.forward(bytes)? + self.places.forward(&places)?)?;
        for block in &self.blocks {
            x = (&x + block.attention.forward(&block.before.forward(&x)?)?)?;
            let h = block.up.forward(&block.between.forward(&x)?)?.gelu()?;
            x = (&x + block.down.forward(&h)?)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }

    /// Learns from a batch; gives its loss.
    pub fn step(&self, optimizer: &impl Optimizer, bytes: &Tensor) -> Result<Tensor> {
        let logits = self.forward(&bytes.i((.., ..CONTEXT))?)?.flatten(0, 1)?;
        let loss = logits.cross_entropy(&bytes.i((.., 1..))?.flatten(0, 1)?)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok(loss)
    }
}

/// Passages of the text from all over it, others at each step.
pub fn batch(step: usize) -> Result<Tensor> {
    let passage = |i: usize| (step * BATCH + i) * 7919 % (TEXT.len() - CONTEXT - 1);
    let bytes = (0..BATCH).flat_map(|i| &TEXT[passage(i)..][..CONTEXT + 1]).map(|&byte| byte.into()).collect();
    Tensor::from_vec::<i64>(bytes, [BATCH, CONTEXT + 1], Device::Cpu)
}

fn main() -> Result<()> {
    let model = Gpt::new(32, 2)?;
    let optimizer = AdamW::new(model.parameters(), 3e-3)?;
    println!("{} parameters, {} bytes of text", model.num_parameters(), TEXT.len());
    let step = kiln::compile(|bytes: &Tensor| model.step(&optimizer, bytes));
    for i in 0..300 {
        let loss = step.call(&batch(i)?)?;
        if i % 50 == 49 {
            println!("step {}: {:.3}", i + 1, loss.item::<f32>()?);
        }
    }
    Ok(())
}
