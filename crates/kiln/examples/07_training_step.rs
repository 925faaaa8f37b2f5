//! A whole training step as one program: forward, backward, optimizer, with parameters and moments updated in place.

use kiln::nn::{Forward, Gelu, Linear, Module, Sequential};
use kiln::optim::{AdamW, Optimizer};
use kiln::{DType, Device, Generator, Options, Result, Tensor};

fn main() -> Result<()> {
    let model = Sequential::new().then(Linear::new(2, 32)?).then(Gelu::default()).then(Linear::new(32, 1)?);
    let optimizer = AdamW::new(model.parameters(), 0.01)?;

    let step = |(x, y): &(Tensor, Tensor)| {
        let loss = (model.forward(x)? - y)?.square()?.mean(..)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok(loss)
    };
    let fast = kiln::compile_with(step, Options { fullgraph: true, ..Options::default() });

    let generator = Generator::new(1);
    for turn in 0..=200 {
        let x = generator.randn([64, 2], DType::F32, Device::Cpu)?;
        let y = x.select(1, 0)?.mul(&x.select(1, 1)?)?.unsqueeze(1)?;
        let loss = fast.call(&(x, y))?.item::<f32>()?;
        if turn % 50 == 0 {
            println!("step {turn:>3}: loss {loss:.4}");
        }
        // The learning rate is data: a schedule recompiles nothing.
        if turn == 100 {
            optimizer.learning_rate().mul_assign(0.3)?;
        }
    }
    let program = &fast.programs()[0];
    println!("{} graph, {} kernels, {:?}", program.segments.len(), program.kernels.len(), fast.stats());
    Ok(())
}
