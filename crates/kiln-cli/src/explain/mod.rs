//! `kiln explain FILE`: a graph in text form, what the passes make of it, the kernels it is cut into with their measured times,
//! and why not fewer; as text or as a page. `kiln explain --model MODEL`: the launches of one decode step.

mod decode;

use kiln::inspect::explain::Kernel;
use kiln::inspect::{Explanation, bisect_passes};
use kiln::{CompileOptions, CompiledGraph, DType, Device, Generator, Tensor};
use kiln_ir::{Dim, Graph, NodeId, Symbol, generate};
use kiln_terminal::device::device;
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::output_file::OutputFile;
use kiln_terminal::{Console, format, hung};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Options of `kiln explain`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  kiln explain docs/softmax.kiln --size n=4096\n  kiln explain docs/softmax.kiln --html softmax.html\n  kiln explain - --code < docs/softmax.kiln\n  kiln explain --model llama-3.2-1b --layers 2 --dtype bf16 --prompt 128\n  kiln explain --model llama-3.2-1b --layers 2 --dtype bf16 --weights int8"
)]
pub struct Arguments {
    /// A file with a graph in text form; `-` reads standard input
    #[arg(required_unless_present = "model")]
    file: Option<PathBuf>,
    /// Explain one decode step of this model instead: a folder, a GGUF file or a preset
    #[arg(long, conflicts_with_all = ["file", "code", "sizes", "verify"])]
    model: Option<String>,
    /// What of a model is explained, and how it is compiled
    #[command(flatten)]
    step: decode::Step,
    /// Where it runs: cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu", value_name = "D")]
    device: String,
    /// Write a page for a browser to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Show the kernels and their code as well: machine code, or the text that a GPU's compiler gets
    #[arg(long)]
    code: bool,
    /// The value of a symbol at which kernels are measured; 256 where none is given. May be given several times
    #[arg(long = "size", value_name = "NAME=N")]
    sizes: Vec<String>,
    /// Hold every kernel and every pass against the interpreter
    #[arg(long)]
    verify: bool,
    /// End with one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// The longest text of a graph; one of a thousand layers has a few MB.
const MOST_TEXT: usize = 64 << 20;

/// Prints the story of one graph, or of one decode step.
pub fn run(arguments: &Arguments) -> Outcome {
    let device = device(&arguments.device)?;
    match (&arguments.model, &arguments.file) {
        (Some(model), _) => {
            let page = OutputFile::maybe(arguments.html.as_deref())?;
            decode::run(model, &arguments.step, device, page, &Console::new(arguments.json))
        }
        (None, Some(file)) => graph(file, device, arguments),
        (None, None) => Err(Failure::unusable("neither a file nor a model").advise("kiln explain --help").into()),
    }
}

fn graph(path: &Path, device: Device, arguments: &Arguments) -> Outcome {
    let text = match path.as_os_str() == "-" {
        true => kiln::files::read_stream(std::io::stdin(), MOST_TEXT),
        false => kiln::files::read_text(path, MOST_TEXT),
    };
    let text = text.map_err(|error| Failure::file(path, error))?;
    let graph = Graph::parse(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let fixed = at_sizes(&graph, &sizes(&arguments.sizes, &graph)?)?;
    let mut page = OutputFile::maybe(arguments.html.as_deref())?;
    if device == Device::Cpu {
        needs(&fixed, arguments.verify).check(memory())?;
    }
    // Not from disk: how long the passes and the schedule take is part of the story.
    let options = CompileOptions { device, disk_cache: false, ..CompileOptions::default() };
    let compiled = CompiledGraph::new(&graph, &[], &options)?;
    let inputs = inputs(&fixed, device)?;
    let mut explanation = compiled.explain(&inputs)?;
    if let Some(name) = path.file_name().filter(|_| path.as_os_str() != "-") {
        explanation.name = name.to_string_lossy().into_owned();
    }
    let console = Console::new(arguments.json);
    console.hang(format!("# after the passes\n{}", compiled.optimised()?), 4);
    // Its table knows how wide it may be; what is left of sentences hangs.
    console.stream(match console.columns() {
        Some(columns) => hung(&format!("{explanation:columns$}"), Some(columns), 4),
        None => explanation.to_string(),
    });
    if arguments.code {
        for (number, step) in compiled.program().steps().iter().enumerate() {
            let code = step.code();
            let (label, bytes) = (step.label(), code.code_bytes());
            console.say(format!("\n# kernel {number}: {label} ({bytes} bytes of code)\n{}", step.kernel()));
            let text = code.disassembly().or_else(|| code.intermediate());
            console.say(text.unwrap_or_else(|| "(no machine code of its own)".to_owned()));
        }
    }
    if let Some(file) = &mut page {
        file.write(&explanation.to_html())?;
        console.say(format!("\nwrote {}", file.path().display()));
    }
    let mut right = None;
    if arguments.verify {
        let report = compiled.verify(&inputs)?;
        console.hang(format!("\n# verify\n{report}"), 4);
        let passes = bisect_passes(&graph, &inputs)?;
        console.hang(format!("# passes\n{passes}"), 4);
        right = Some(report.is_right() && passes.first_wrong().is_none());
    }
    console.result(|| figures(&explanation, right));
    if right == Some(false) { Err("a kernel or a pass is wrong".into()) } else { Ok(()) }
}

/// What a program wants to know of a launch.
fn launch(kernel: &Kernel, copy: f64) -> Value {
    json!({
        "label": kernel.label, "kind": kernel.kind, "read_bytes": kernel.read, "written_bytes": kernel.written,
        "flops": kernel.flops, "median_s": kernel.time.as_secs_f64(), "min_s": kernel.fastest.as_secs_f64(),
        "of_copy": kernel.bandwidth() / copy, "code_bytes": kernel.code_bytes,
    })
}

/// What a program wants to know of a graph.
fn figures(explanation: &Explanation, right: Option<bool>) -> Value {
    let copy = explanation.machine.copy;
    let segments = explanation.segments.iter().map(|segment| {
        let kernels = segment.kernels.iter().map(|kernel| launch(kernel, copy));
        let made = &segment.made;
        json!({
            "target": segment.target, "nodes": segment.graph.nodes().len(), "arena_bytes": segment.arena_bytes,
            "kernels": kernels.collect::<Vec<Value>>(),
            "compile_s": made.total().as_secs_f64(), "passes_s": made.passes.as_secs_f64(),
            "schedule_s": made.schedule.as_secs_f64(), "code_s": made.code.as_secs_f64(),
        })
    });
    let segments: Vec<Value> = segments.collect();
    json!({"name": explanation.name, "copy_gb_s": copy, "segments": segments, "right": right})
}

/// A symbol that has no size on the command line.
const DEFAULT_SIZE: i64 = 256;

/// The sizes of symbols that the command line gives, each of which the graph has.
fn sizes(words: &[String], graph: &Graph) -> Result<Vec<(Symbol, i64)>, Failure> {
    let mut symbols: Vec<Symbol> = Vec::new();
    for &input in graph.inputs() {
        symbols.extend(graph.ty(input).shape.iter().flat_map(Dim::symbols));
    }
    symbols.sort_unstable();
    symbols.dedup();
    let mut sizes: Vec<(Symbol, i64)> = Vec::new();
    for word in words {
        let wrong = |what: &str| Failure::unusable(format!("--size {word}: {what}"));
        let (name, number) = word.split_once('=').ok_or_else(|| wrong("takes NAME=N").advise("--size n=4096"))?;
        let (name, number) = (name.trim(), number.trim());
        let Some(&symbol) = symbols.iter().find(|symbol| symbol.as_str() == name) else {
            let names: Vec<&str> = symbols.iter().map(Symbol::as_str).collect();
            let names = match names.is_empty() {
                true => "all sizes of this graph are fixed".to_owned(),
                false => format!("the sizes of this graph are {}", names.join(", ")),
            };
            return Err(wrong(&format!("there is no size '{name}'; {names}")));
        };
        let number = number.parse::<i64>().ok().filter(|number| *number > 0);
        let number = number.ok_or_else(|| wrong("a size is a whole number from 1 on"))?;
        if sizes.iter().any(|(known, _)| *known == symbol) {
            return Err(wrong("it is given twice"));
        }
        sizes.push((symbol, number));
    }
    Ok(sizes)
}

/// The graph at these sizes.
fn at_sizes(graph: &Graph, sizes: &[(Symbol, i64)]) -> Result<Graph, Failure> {
    let size = |symbol: Symbol| {
        let given = sizes.iter().find(|(known, _)| *known == symbol).map_or(DEFAULT_SIZE, |(_, size)| *size);
        Some(Dim::from(given))
    };
    let failed = |error| Failure::unusable("the graph has no such sizes").caused_by(error).advise("another --size");
    graph.specialise(&size).map_err(failed)
}

/// Bytes that measuring a graph takes; nothing where they are more than can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Needs(Option<u64>);

impl Needs {
    /// An error if there is less memory than that; `free` is nothing where the system does not tell.
    fn check(self, free: Option<u64>) -> Result<(), Failure> {
        let needed = match self.0 {
            Some(needed) if free.is_none_or(|free| needed <= free) => return Ok(()),
            Some(needed) => format!("about {}", format::bytes(needed)),
            None => "more memory than there are addresses".to_owned(),
        };
        let free = free.map_or(String::new(), |free| format!(", and {} are free", format::bytes(free)));
        Err(Failure::unusable(format!("the graph at these sizes takes {needed}{free}")).advise("a smaller --size"))
    }
}

/// Returns the memory that a graph of fixed sizes takes: inputs, outputs and intermediate values, while it is compiled, run
/// and, with `verify`, interpreted.
fn needs(graph: &Graph, verify: bool) -> Needs {
    let bytes = |id: NodeId| -> Option<u64> {
        let ty = graph.ty(id);
        let elements = ty.fixed_shape()?.into_iter().try_fold(1u64, |all, n| all.checked_mul(n as u64))?;
        elements.checked_mul(ty.dtype.size_in_bits() as u64).map(|bits| bits.div_ceil(8))
    };
    let sum = |nodes: &[NodeId]| nodes.iter().try_fold(0u64, |all, &id| all.checked_add(bytes(id)?));
    let outputs: Vec<NodeId> = graph.outputs().iter().map(|output| output.node).collect();
    let all: Vec<NodeId> = graph.iter().map(|(id, _)| id).collect();
    // Values between inputs and outputs share memory where kernels do not fuse; the largest one is taken for that.
    let needed = || -> Option<u64> {
        let (inputs, outputs) = (sum(graph.inputs())?, sum(&outputs)?);
        let sizes = all.iter().map(|&id| bytes(id)).collect::<Option<Vec<u64>>>()?;
        let largest = sizes.into_iter().max().unwrap_or(0);
        // Inputs that are no floats are drawn as wide numbers on the host first.
        let drawn = if is_all_floats(graph) { 0 } else { inputs.checked_mul(4)? };
        let interpreted = if verify { sum(&all)?.checked_mul(3)? } else { 0 };
        [outputs, largest, drawn, interpreted].into_iter().try_fold(inputs, u64::checked_add)
    };
    Needs(needed())
}

/// Bytes of memory that this process can still have; nothing where the system does not tell.
fn memory() -> Option<u64> {
    crate::doctor::machine::memory().map(|memory| memory.available)
}

fn is_plain_float(dtype: DType) -> bool {
    dtype.is_float() && !dtype.is_storage_only()
}

fn is_all_floats(graph: &Graph) -> bool {
    graph.inputs().iter().all(|&input| is_plain_float(graph.ty(input).dtype))
}

/// Random inputs of a graph of fixed sizes.
fn inputs(graph: &Graph, device: Device) -> Result<Vec<Tensor>, Box<dyn std::error::Error>> {
    let generator = Generator::new(1);
    // Integers may be indices, which have to fit; floats may be any.
    let hosts = if is_all_floats(graph) { Vec::new() } else { generate::inputs(graph, 1) };
    let mut inputs = Vec::new();
    for (number, &input) in graph.inputs().iter().enumerate() {
        let ty = graph.ty(input);
        let shape = ty.fixed_shape().ok_or("a size of an input is not known")?;
        inputs.push(match hosts.get(number) {
            Some(host) if !is_plain_float(ty.dtype) => {
                Tensor::from_bytes(host.bytes(), host.shape().to_vec(), ty.dtype, device)?
            }
            _ => generator.randn(shape, ty.dtype, device)?,
        });
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFTMAX: &str = include_str!("../../softmax.kiln");

    fn at(sizes_given: &[&str]) -> Result<Graph, String> {
        let graph = Graph::parse(SOFTMAX).unwrap();
        let words: Vec<String> = sizes_given.iter().map(|word| (*word).to_owned()).collect();
        let text = |failure: Failure| kiln_terminal::failure::render(&failure, kiln_terminal::Paint::off());
        at_sizes(&graph, &sizes(&words, &graph).map_err(text)?).map_err(text)
    }

    #[test]
    fn sizes_are_those_of_the_graph_and_can_be() {
        assert_eq!(at(&["n=3"]).unwrap().ty(NodeId(0)).fixed_shape(), Some(vec![3, 1024]));
        assert_eq!(at(&[]).unwrap().ty(NodeId(0)).fixed_shape(), Some(vec![256, 1024]));
        for (words, said) in [
            (&["m=3"][..], "there is no size 'm'; the sizes of this graph are n"),
            (&["n"], "takes NAME=N"),
            (&["n=0"], "from 1 on"),
            (&["n=-4"], "from 1 on"),
            (&["n=99999999999999999999"], "from 1 on"),
            (&["n=9000000000000000000"], "too large to address"),
            (&["n=1", "n=2"], "twice"),
        ] {
            let error = at(words).unwrap_err();
            assert!(error.contains(said), "{words:?}: {error}");
        }
    }

    /// What would not fit is rejected before it is allocated; what cannot be counted too.
    #[test]
    fn memory_is_counted_before_it_is_taken() {
        let needs = |words: &[&str], verify| needs(&at(words).unwrap(), verify);
        // Input, output, and the largest value between, of 4096 bytes a row.
        assert_eq!(needs(&["n=1000000000"], false), Needs(Some(3 * 4096 * 1_000_000_000)));
        assert!(needs(&["n=1000"], true).0 > needs(&["n=1000"], false).0);
        let failure = needs(&["n=1000000000"], false).check(Some(8_000_000_000)).unwrap_err().to_string();
        assert!(failure.contains("12288.00 GB") && failure.contains("8.00 GB are free"), "{failure}");
        assert!(Needs(None).check(None).is_err() && Needs(Some(u64::MAX)).check(None).is_ok());
        assert!(Needs(Some(10)).check(Some(10)).is_ok());
    }
}
