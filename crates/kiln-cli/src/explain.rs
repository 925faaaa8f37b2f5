//! `kiln explain FILE`: a graph in text form, what the passes make of it, the kernels it is cut into with their measured times,
//! and why not fewer; as text or as a page.

use crate::failure::{Failure, Outcome};
use crate::terminal::Console;
use kiln::see::{Explanation, bisect_passes};
use kiln::{Device, Generator, Tensor};
use kiln_ir::{Dim, Graph, Symbol, generate};
use serde_json::{Value, json};
use std::io::Read;
use std::path::PathBuf;

/// Options of `kiln explain`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  kiln explain docs/softmax.kiln --size n=4096\n  kiln explain docs/softmax.kiln --html softmax.html\n  kiln explain - --code < docs/softmax.kiln"
)]
pub struct Arguments {
    /// A file with a graph in text form; `-` reads standard input
    file: PathBuf,
    /// Write a page for a browser to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show the kernels and their machine code as well
    #[arg(long)]
    code: bool,
    /// The value of a symbol at which kernels are measured; 256 where none is given
    #[arg(long = "size", value_name = "NAME=N")]
    sizes: Vec<String>,
    /// Hold every kernel and every pass against the interpreter
    #[arg(long)]
    verify: bool,
    /// End with one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Prints the story of one graph.
pub fn run(arguments: &Arguments) -> Outcome {
    let text = if arguments.file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        text
    } else {
        std::fs::read_to_string(&arguments.file).map_err(|error| Failure::file(&arguments.file, error))?
    };
    let graph = Graph::parse(&text).map_err(|e| format!("{}: {e}", arguments.file.display()))?;
    let compiled = kiln::compile_graph(&graph, &[])?;
    let inputs = inputs(&graph, &sizes(&arguments.sizes)?)?;
    let mut explanation = compiled.explain(&inputs)?;
    if let Some(name) = arguments.file.file_name().filter(|_| arguments.file.as_os_str() != "-") {
        explanation.name = name.to_string_lossy().into_owned();
    }
    let console = Console::new(arguments.json);
    console.say(format!("# after the passes\n{}", compiled.optimised()?));
    console.stream(&explanation);
    if arguments.code {
        for (number, step) in compiled.program().steps().iter().enumerate() {
            let code = step.code();
            let (label, bytes) = (step.label(), code.code_bytes());
            console.say(format!("\n# kernel {number}: {label} ({bytes} bytes of code)\n{}", step.kernel()));
            console.say(code.disassembly().unwrap_or_else(|| "(no machine code of its own)".to_owned()));
        }
    }
    if let Some(file) = &arguments.html {
        std::fs::write(file, explanation.to_html()).map_err(|error| Failure::file(file, error))?;
        console.say(format!("\nwrote {}", file.display()));
    }
    let mut right = None;
    if arguments.verify {
        let report = compiled.verify(&inputs)?;
        console.say(format!("\n# verify\n{report}"));
        let passes = bisect_passes(&graph, &inputs)?;
        console.say(format!("# passes\n{passes}"));
        right = Some(report.is_right() && passes.first_wrong().is_none());
    }
    console.result(|| figures(&explanation, right));
    if right == Some(false) { Err("a kernel or a pass is wrong".into()) } else { Ok(()) }
}

/// What a program wants to know of a graph.
fn figures(explanation: &Explanation, right: Option<bool>) -> Value {
    let segments = explanation.segments.iter().map(|segment| {
        let kernels = segment.kernels.iter().map(|kernel| {
            json!({
                "label": kernel.label, "kind": kernel.kind, "read_bytes": kernel.read, "written_bytes": kernel.written,
                "flops": kernel.flops, "median_s": kernel.time.as_secs_f64(), "min_s": kernel.fastest.as_secs_f64(),
                "code_bytes": kernel.code_bytes,
            })
        });
        let made = &segment.made;
        json!({
            "target": segment.target, "nodes": segment.graph.nodes().len(), "arena_bytes": segment.arena_bytes,
            "kernels": kernels.collect::<Vec<Value>>(),
            "compile_s": (made.passes + made.schedule + made.code).as_secs_f64(),
        })
    });
    let segments: Vec<Value> = segments.collect();
    json!({"name": explanation.name, "segments": segments, "right": right})
}

/// `name=number`, each.
fn sizes(words: &[String]) -> Result<Vec<(String, i64)>, String> {
    let parse = |word: &String| {
        let (name, number) = word.split_once('=')?;
        Some((name.trim().to_owned(), number.trim().parse().ok().filter(|n| *n >= 0)?))
    };
    words.iter().map(|word| parse(word).ok_or_else(|| format!("--size takes NAME=N, not '{word}'"))).collect()
}

/// Random inputs at these sizes.
fn inputs(graph: &Graph, sizes: &[(String, i64)]) -> Result<Vec<Tensor>, Box<dyn std::error::Error>> {
    const DEFAULT: i64 = 256;
    let size = |symbol: Symbol| {
        let given = sizes.iter().find(|(name, _)| *name == symbol.as_str()).map_or(DEFAULT, |(_, n)| *n);
        Some(Dim::from(given))
    };
    let fixed = graph.specialise(&size)?;
    let generator = Generator::new(1);
    let mut inputs = Vec::new();
    for host in generate::inputs(&fixed, 1) {
        let dtype = host.dtype();
        inputs.push(if dtype.is_float() && !dtype.is_storage_only() {
            generator.randn(host.shape().to_vec(), dtype, Device::Cpu)?
        } else {
            Tensor::from_bytes(host.bytes(), host.shape().to_vec(), dtype, Device::Cpu)?
        });
    }
    Ok(inputs)
}
