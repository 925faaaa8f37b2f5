//! `kiln` alone, or `kiln demo`.

use crate::demo_kernel;
use crate::failure::Outcome;

/// Options of `kiln demo`.
#[derive(clap::Args, Default)]
#[command(after_help = "Examples:\n  kiln demo\n  kiln demo --kernel     # one function, from graph to machine code")]
pub struct Arguments {
    /// Show one function instead, from its graph to its machine code
    #[arg(long)]
    kernel: bool,
}

/// Shows what Kiln does.
pub fn run(_: &Arguments) -> Outcome {
    demo_kernel::run()
}
