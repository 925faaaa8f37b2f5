//! `kiln doctor`: what this machine offers and what Kiln would use.

use crate::failure::Outcome;
use kiln_cpu::features::{Isa, detect};
use kiln_cpu::pool;

/// Options of `kiln doctor`.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  kiln doctor\n  KILN_THREADS=1 kiln doctor")]
pub struct Arguments {}

/// Prints the facts.
pub fn run(_: &Arguments) -> Outcome {
    let features = detect();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    println!("kiln {}", env!("CARGO_PKG_VERSION"));
    println!("architecture   {}", std::env::consts::ARCH);
    println!("cores          {cores}");
    println!("threads        {}   (KILN_THREADS=n)", pool::threads());
    let available: Vec<&str> = Isa::available().map(Isa::name).collect();
    println!("code           {}   (of {}; KILN_CPU_ISA=name)", Isa::get().name(), available.join(", "));
    println!("features       {features:?}");
    Ok(())
}
