//! One program for many sizes: automatic, declared, and with code that computes with sizes or asks about them.

use kiln::runtime::event::{self, Category};
use kiln::{DType, Device, Dynamic, Options, Result, Tensor};

fn rows(count: usize) -> Result<Tensor> {
    Tensor::randn([count, 8], DType::F32, Device::Cpu)
}

/// `size` gives a size that can be computed with; it goes wherever a number goes.
fn pairs(x: &Tensor) -> Result<Tensor> {
    let rows = x.size(0)?;
    x.narrow(0, 0, rows / 2 * 2)?.reshape((rows / 2, 16))?.softmax(-1)
}

fn main() -> Result<()> {
    let _listening = event::listen(&[Category::Recompiles, Category::Guards], |event| println!("  event: {event}"));

    println!("automatic: the second size makes it a symbol");
    let fast = kiln::compile(pairs);
    for count in [4, 10, 7, 100] {
        fast.call(&rows(count)?)?;
    }
    println!("four sizes, {} programs", fast.stats().compiles);

    println!("\ndeclared: a name and a range, 0 and 1 included");
    let options = Options { dynamic: Dynamic::range("rows", 0..=4096).at(0, 0).into(), ..Options::default() };
    let fast = kiln::compile_with(pairs, options);
    for count in [4, 0, 1, 4096] {
        println!("{count} rows: {:?}", fast.call(&rows(count)?)?.shape());
    }
    println!("{} program", fast.stats().compiles);
    if let Err(error) = fast.call(&rows(5000)?) {
        println!("{error}");
    }

    println!("\na comparison is a guard: each side has its program");
    let branch = |x: &Tensor| if x.size(0)? > 64 { x.mean(0) } else { x.sum(0) };
    let fast = kiln::compile_with(branch, Options { dynamic: Dynamic::Always, ..Options::default() });
    for count in [8, 32, 100, 1000, 9] {
        fast.call(&rows(count)?)?;
    }
    println!("five sizes, {} programs", fast.stats().compiles);
    Ok(())
}
