//! Is the compiler right? Every kernel against the reference interpreter on live arguments, and every pass.

use kiln::inspect::bisect_passes;
use kiln::{DType, Device, Options, Result, Tensor};

fn attention(x: &Tensor) -> Result<Tensor> {
    let scores = (x.matmul(&x.transpose(-2, -1)?)? * 0.125)?;
    scores.softmax(-1)?.matmul(x)
}

fn main() -> Result<()> {
    let x = Tensor::randn([4, 32, 64], DType::F32, Device::Cpu)?;

    // By hand: a report for each graph of the function.
    let fast = kiln::compile(attention);
    for report in fast.verify(&x)? {
        print!("{report}");
        assert!(report.is_right());
    }

    // The passes over the same graph, one by one.
    for segment in fast.programs().iter().flat_map(|program| &program.segments) {
        print!("{}", bisect_passes(&segment.graph, std::slice::from_ref(&x))?);
    }

    // Always: a program is checked on the arguments of its first call, and a difference is an error with the report.
    let checked = kiln::compile_with(attention, Options { verify: true, ..Options::default() });
    println!("checked and computed: {:?}", checked.call(&x)?.shape());
    Ok(())
}
