//! Reading elements ends a graph and begins another. Each outcome that was seen has its own compiled way on.

use kiln::{Device, Result, Tensor, Var};

/// Halves until everything fits: how often depends on the data.
fn shrink(x: &Tensor) -> Result<(Tensor, usize)> {
    let (mut x, mut turns) = (x.clone(), 0);
    while x.abs()?.amax(..)?.gt(1.0)?.item::<bool>()? {
        x = x.mul(0.5)?;
        turns += 1;
    }
    Ok((x, turns))
}

fn main() -> Result<()> {
    let fast = kiln::compile(shrink);
    for top in [3.0f32, 0.5, 20.0, 3.5, 18.0] {
        let (y, turns) = fast.call(&Tensor::new([top, -1.0, 0.25], Device::Cpu)?)?;
        println!("{top:>4}: {turns} turns, {:?}, {:?}", y.to_vec::<f32>()?, fast.stats());
    }
    let program = &fast.programs()[0];
    println!("{} segments; the graph ends where the function {}", program.segments.len(), program.breaks[0]);

    // State is a variable: compiled code updates it in place, and a break between two updates changes nothing.
    let total = Var::new(&Tensor::new([0f32], Device::Cpu)?);
    let counter = total.clone();
    let count = kiln::compile(move |x: &Tensor| {
        counter.add_assign(x)?;
        if counter.get().gt(5.0)?.item::<bool>()? {
            counter.fill(0.0)?;
        }
        counter.get().mul(10.0)
    });
    for step in 1..=4 {
        let shown = count.call(&Tensor::new([step as f32], Device::Cpu)?)?.item::<f32>()?;
        println!("step {step}: total {}, shown {shown}", total.get().item::<f32>()?);
    }

    // A part that is never to be captured: it runs at every call, on tensors with elements.
    let log = kiln::disable(|x: &Tensor| {
        println!("  seen: {:?}", x.to_vec::<f32>()?);
        Ok(x.clone())
    });
    let logged = kiln::compile(move |x: &Tensor| log.call(&x.mul(2.0)?)?.neg());
    for _ in 0..2 {
        logged.call(&Tensor::new([1f32, 2.0], Device::Cpu)?)?;
    }
    Ok(())
}
