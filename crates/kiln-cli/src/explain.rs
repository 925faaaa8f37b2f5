//! `kiln explain FILE`: a graph in text form, what the passes make of it, the kernels it is cut into, and why not fewer.

use crate::Outcome;
use kiln_ir::Graph;
use std::io::Read;
use std::path::PathBuf;

/// Options of `kiln explain`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  kiln explain softmax.kiln\n  kiln explain - --code < softmax.kiln")]
pub struct Arguments {
    /// A file with a graph in text form; `-` reads standard input
    file: PathBuf,
    /// Show the kernels' machine code as well
    #[arg(long)]
    code: bool,
}

/// Prints the story of one graph.
pub fn run(arguments: &Arguments) -> Outcome {
    let text = if arguments.file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        text
    } else {
        std::fs::read_to_string(&arguments.file).map_err(|e| format!("{}: {e}", arguments.file.display()))?
    };
    let graph = Graph::parse(&text).map_err(|e| format!("{}: {e}", arguments.file.display()))?;
    let optimised = kiln_passes::run(graph.clone())?;
    println!("# after the passes\n{optimised}");
    let compiled = kiln::compile_graph(&graph, &[])?;
    println!("{}", compiled.program().schedule().explain(&optimised, &|_| None));
    if arguments.code {
        for (number, step) in compiled.program().steps().iter().enumerate() {
            let code = step.code();
            println!("# kernel {number}: {} ({} bytes of code)", step.label(), code.code_bytes());
            println!("{}", code.disassembly().unwrap_or_else(|| "(no machine code)".to_owned()));
        }
    }
    Ok(())
}
