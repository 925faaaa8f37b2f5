//! File tests of the code generator: `tests/codegen/*.kiln` holds a graph and what it becomes on each level below.
//!
//! ```text
//! # what this is about
//! targets: avx2 avx512
//! graph(%0: f32[4]) { … }
//! kernels:
//! …
//! vector IR:
//! …
//! avx2:
//! …
//! ```
//!
//! The graph is taken as it is: no pass runs before. One copy of each body is made unless a line `copies: N` says otherwise; a line
//! `copies: any` leaves the choice to the lowering. Code is the same on every machine: it is generated, not run, and shown
//! with labels for addresses. `KILN_BLESS=1 cargo test -p kiln-cpu --test codegen` writes what comes out into the files.

use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter, OpKind, SymbolResolver, SymbolResult};
use kiln_cpu::emit::{Emitted, emit};
use kiln_cpu::features::Isa;
use kiln_cpu::lower::{Options, lower};
use kiln_cpu::vir::Function;
use kiln_ir::Graph;
use kiln_kernels::kernel::KernelBody;
use kiln_kernels::{InputLayout, ScheduleOptions, schedule};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Names of addresses: labels of the code, then constants.
struct Names(BTreeMap<u64, String>);

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        instruction: &Instruction,
        _: u32,
        _: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        // Displacements and immediates are no addresses.
        let meant = jump(instruction) == Some(address) || constant(instruction) == Some(address);
        let name = self.0.get(&address).filter(|_| meant)?;
        Some(SymbolResult::with_string(address, name.clone()))
    }
}

/// The address that an instruction jumps to.
fn jump(instruction: &Instruction) -> Option<u64> {
    (instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch64())
}

/// The address of a constant.
fn constant(instruction: &Instruction) -> Option<u64> {
    instruction.is_ip_rel_memory_operand().then(|| instruction.ip_rel_memory_address())
}

/// The instructions, up to the constants.
fn decode(code: &[u8]) -> Vec<Instruction> {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let (mut all, mut end) = (Vec::new(), code.len() as u64);
    while decoder.can_decode() && decoder.ip() < end {
        let instruction = decoder.decode();
        end = constant(&instruction).map_or(end, |at| at.min(end));
        all.push(instruction);
    }
    // What fills the room between the code and the constants.
    while all.last().is_some_and(|last| last.mnemonic() == iced_x86::Mnemonic::Int3) {
        all.pop();
    }
    all
}

/// Code as text without addresses.
fn listing(emitted: &Emitted) -> String {
    let code = decode(&emitted.bytes);
    let labels: BTreeMap<u64, String> = {
        let mut targets: Vec<u64> = code.iter().filter_map(jump).collect();
        targets.sort_unstable();
        targets.dedup();
        targets.into_iter().enumerate().map(|(n, at)| (at, format!("l{n}"))).collect()
    };
    let mut data: Vec<u64> = code.iter().filter_map(constant).collect();
    data.sort_unstable();
    data.dedup();
    let data: BTreeMap<u64, String> = data.into_iter().enumerate().map(|(n, at)| (at, format!("c{n}"))).collect();
    let names = Names(labels.iter().chain(&data).map(|(at, name)| (*at, name.clone())).collect());
    let mut formatter = IntelFormatter::with_options(Some(Box::new(names)), None);
    formatter.options_mut().set_rip_relative_addresses(false);
    let mut text = String::new();
    for instruction in &code {
        if let Some(label) = labels.get(&instruction.ip()) {
            writeln!(text, "{label}:").unwrap();
        }
        let bytes = instruction.ip() as usize..instruction.next_ip() as usize;
        text.push_str("  ");
        match emitted.calls.iter().find(|call| bytes.contains(&call.at)) {
            Some(call) => write!(text, "mov rax,{:?}", call.callee).unwrap(),
            None => formatter.format(instruction, &mut text),
        }
        text.push('\n');
    }
    let ends = data.keys().skip(1).copied().chain([emitted.bytes.len() as u64]);
    for ((at, name), end) in data.iter().zip(ends) {
        writeln!(text, "{name}: {}", words(&emitted.bytes[*at as usize..end as usize])).unwrap();
    }
    text
}

/// A constant as 32-bit words; of long tables the beginning.
fn words(bytes: &[u8]) -> String {
    let words: Vec<String> =
        bytes.chunks(4).map(|word| word.iter().rev().map(|b| format!("{b:02x}")).collect()).collect();
    match &words[..] {
        [first, rest @ ..] if !rest.is_empty() && rest.iter().all(|word| word == first) => {
            format!("{} times {first}", words.len())
        }
        [first @ .., _] if first.len() > 7 => format!("{} … ({} words)", words[..4].join(" "), words.len()),
        all => all.join(" "),
    }
}

fn section(text: &mut String, name: &str, parts: &[String]) {
    write!(text, "{name}:\n{}\n", parts.join("\n").trim_end()).unwrap();
}

/// Compiles a graph and renders the result.
fn run(file: &Path, header: &str, text: &str) -> String {
    let fail = |e: &dyn std::fmt::Display| -> ! { panic!("{}: {e}", file.display()) };
    let graph = Graph::parse(text).unwrap_or_else(|e| fail(&e));
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let schedule = schedule(&graph, &layouts, &ScheduleOptions::default()).unwrap_or_else(|e| fail(&e));
    let setting = |name: &str| header.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let copies = match setting("copies:") {
        Some("any") => None,
        Some(number) => Some(number.parse().unwrap_or_else(|e| fail(&e))),
        None => Some(1),
    };
    let options = Options { copies, ..Options::default() };
    let lowered = schedule.steps.iter().filter_map(|step| match &step.kernel.body {
        KernelBody::Loop(body) => Some(lower(&step.kernel, body, options).unwrap_or_else(|e| fail(&e)).function),
        _ => None,
    });
    let functions: Vec<Function> = lowered.collect();
    assert!(!functions.is_empty(), "{}: no kernel has vector IR", file.display());
    let mut out = String::new();
    section(&mut out, "kernels", &schedule.steps.iter().map(|step| step.kernel.to_string()).collect::<Vec<_>>());
    section(&mut out, "vector IR", &functions.iter().map(Function::to_string).collect::<Vec<_>>());
    for target in setting("targets:").unwrap_or("avx2 avx512").split_whitespace() {
        let isa = match target {
            "avx2" => Isa::Avx2,
            "avx512" => Isa::Avx512,
            other => fail(&format!("there is no target {other}")),
        };
        let code = |f: &Function| listing(&emit(f, isa).unwrap_or_else(|e| fail(&e)));
        section(&mut out, target, &functions.iter().map(code).collect::<Vec<_>>());
    }
    out
}

#[test]
fn file_tests() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/codegen");
    let bless = std::env::var_os("KILN_BLESS").is_some_and(|v| v == "1");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == "kiln"));
    files.sort();
    assert!(files.len() >= 30, "{} file tests in {}", files.len(), folder.display());
    let mut failures = String::new();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let start = text.find("graph(").unwrap_or_else(|| panic!("{}: no graph", file.display()));
        let (header, rest) = text.split_at(start);
        let (graph, expected) = rest.split_once("kernels:\n").unwrap_or((rest, ""));
        let got = run(file, header, graph);
        let blessed = format!("{header}{}\n{got}", graph.trim_end());
        if bless && blessed != text {
            std::fs::write(file, blessed).unwrap();
        } else if !bless && got != format!("kernels:\n{expected}") {
            let differs = got.lines().skip(1).zip(expected.lines()).position(|(one, two)| one != two);
            writeln!(failures, "{}: line {differs:?} of\n{got}", file.display()).unwrap();
        }
    }
    assert!(failures.is_empty(), "{failures}KILN_BLESS=1 rewrites the expectations");
}
