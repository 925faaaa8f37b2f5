//! Programs on disk, through the public API: a warm process gives the answers of a cold one, and nothing that happens to the
//! folder gives a wrong answer or an error.
//!
//! A test that needs a process of its own runs this binary again with [`ROLE`] set, see [`child`].

use kiln::ir::Graph;
use kiln::runtime::disk::{self, Key, Kind, Store};
use kiln::runtime::kernel_cache;
use kiln::{CompileOptions, CompiledGraph, DType, Device, Error, Tensor};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const ROLE: &str = "KILN_TEST_ROLE";

/// A folder of this test's own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kiln-cache-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Folder(std::env::temp_dir().join(name))
    }

    /// Makes it the store of this process, for as long as the guard lives.
    fn enter(&self) -> Entered {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        disk::set_store(Some(Store::open(&self.0, disk::DEFAULT_MOST_BYTES).unwrap()));
        Entered(guard)
    }

    fn files(&self, kind: Kind) -> Vec<PathBuf> {
        let Ok(folder) = fs::read_dir(self.0.join(kind.folder())) else { return vec![] };
        folder.map(|file| file.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

struct Entered(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Drop for Entered {
    fn drop(&mut self) {
        disk::set_store(None);
    }
}

/// A small graph with its inputs and what comes out.
struct Case {
    graph: Graph,
    inputs: Vec<Tensor>,
}

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut random = kiln::ir::examples::Random(seed);
    (0..count).map(|_| random.unit() as f32 * 2.0 - 1.0).collect()
}

impl Case {
    /// A product with a bias and an activation, a softmax over the result, and rows of it gathered.
    fn new(rows: usize, wide: usize) -> Case {
        let text = format!(
            "graph(%0: f32[{rows}, 24], %1: f32[24, {wide}], %2: f32[1, {wide}], %3: i64[2, {wide}]) {{
               %4: f32[{rows}, {wide}] = dot %0, %1 {{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}}
               %5: f32[{rows}, {wide}] = expand %2
               %6: f32[{rows}, {wide}] = add %4, %5
               %7: f32[{rows}, {wide}] = tanh %6
               %8: f32[{rows}, 1] = reduce_max %7 {{axes=[1]}}
               %9: f32[{rows}, {wide}] = expand %8
               %10: f32[{rows}, {wide}] = sub %7, %9
               %11: f32[{rows}, {wide}] = exp %10
               %12: f32[{rows}, 1] = reduce_sum %11 {{axes=[1]}}
               %13: f32[{rows}, {wide}] = expand %12
               %14: f32[{rows}, {wide}] = div %11, %13
               %15: f32[2, {wide}] = gather %14, %3 {{axis=0}}
               return %14, %15
             }}"
        );
        let graph = Graph::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let tensor = |shape: &[usize], seed| {
            Tensor::from_vec(numbers(shape.iter().product(), seed), shape.to_vec(), Device::Cpu).unwrap()
        };
        let index: Vec<i64> = (0..2 * wide).map(|i| (i % rows) as i64).collect();
        let index = Tensor::from_vec(index, [2, wide], Device::Cpu).unwrap();
        Case { graph, inputs: vec![tensor(&[rows, 24], 1), tensor(&[24, wide], 2), tensor(&[1, wide], 3), index] }
    }

    fn compile(&self) -> CompiledGraph {
        CompiledGraph::new(&self.graph, &[], &CompileOptions::default()).unwrap()
    }

    fn run(&self) -> Vec<Vec<f32>> {
        self.compile().run(&self.inputs).unwrap().iter().map(|t| t.to_vec().unwrap()).collect()
    }

    /// What comes out without a disk cache.
    fn expected(&self) -> Vec<Vec<f32>> {
        let options = CompileOptions { disk_cache: false, ..CompileOptions::default() };
        let compiled = CompiledGraph::new(&self.graph, &[], &options).unwrap();
        let outputs = compiled.run(&self.inputs).unwrap();
        let eager = kiln::run_eagerly(&self.graph, &self.inputs).unwrap();
        let outputs: Vec<Vec<f32>> = outputs.iter().map(|t| t.to_vec().unwrap()).collect();
        for (a, b) in outputs.iter().zip(&eager) {
            assert!(a.iter().zip(b.to_vec::<f32>().unwrap()).all(|(a, b)| (a - b).abs() < 1e-5));
        }
        outputs
    }
}

/// This binary in another role, with a cache in `folder`.
fn command(role: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--ignored", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env("KILN_CACHE", "on").env("KILN_CACHE_DIR", folder).env("KILN_LOG", "cache");
    command.env_remove("KILN_CACHE_MAX_BYTES");
    command
}

fn finish(command: &mut Command) -> (String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr).into_owned());
    assert!(status.success(), "{out}\n{err}");
    (out, err)
}

/// The value behind a name that a child printed.
fn said(output: &str, name: &str) -> String {
    let word = output.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    word.unwrap_or_else(|| panic!("no {name} in {output}")).to_owned()
}

/// What a process of its own does.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn child() {
    match std::env::var(ROLE).unwrap_or_default().as_str() {
        "answer" => {
            let answers = answers();
            let (disk, kernels) = (disk::stats(), kernel_cache::stats());
            let digest = Key::build().content("answers", &answers).finish().short();
            println!(
                "\nanswers={digest} hits={} misses={} stored={} failed={} damaged={} compiled={}",
                disk.hits, disk.misses, disk.stored, disk.failed, disk.damaged, kernels.misses
            );
        }
        "forever" => loop {
            some_cases(1);
        },
        "once" => {
            some_cases(2);
            println!("\nfine=yes");
        }
        "many" => {
            (1..40).for_each(|n| assert_eq!(Case::new(3, n).run().len(), 2));
            println!("\nfine=yes evicted={}", disk::stats().evicted);
        }
        other => panic!("no role '{other}'"),
    }
}

/// Compiles and runs cases in an order of its own, and checks what comes out.
fn some_cases(rounds: usize) {
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos();
    let mut random = kiln::ir::examples::Random(u64::from(std::process::id()) << 32 | u64::from(nanos));
    for _ in 0..rounds * 12 {
        let case = Case::new(2 + random.below(3), 4 + random.below(6));
        assert_eq!(case.run(), case.expected());
    }
}

/// Bytes of the results of captured functions of several kinds.
fn answers() -> Vec<u8> {
    let tensor = |shape: &[usize], seed| {
        Tensor::from_vec(numbers(shape.iter().product(), seed), shape.to_vec(), Device::Cpu).unwrap()
    };
    let mut bytes = Vec::new();
    let mut add = |t: &Tensor| {
        let values: Vec<f32> = t.to_dtype(DType::F32).unwrap().to_vec().unwrap();
        values.iter().for_each(|v| bytes.extend_from_slice(&v.to_bits().to_le_bytes()));
    };
    let (x, w) = (tensor(&[5, 32], 1), tensor(&[32, 48], 2));
    let mlp = kiln::compile(|(x, w): &(Tensor, Tensor)| x.matmul(w)?.gelu()?.softmax(-1));
    add(&mlp.call(&(x.clone(), w.clone())).unwrap());
    let q = tensor(&[1, 4, 6, 16], 3);
    let sums = kiln::compile(|q: &Tensor| (&(q * 2.0)? + q)?.exp()?.sum(-1));
    add(&sums.call(&q).unwrap());
    let attention = kiln::compile(|q: &Tensor| q.scaled_dot_product_attention(q, q, None, true, None));
    add(&attention.call(&q).unwrap());
    // Functions that generated code calls by address.
    let special = kiln::compile(|x: &Tensor| x.to_dtype(DType::F8E4M3)?.to_dtype(DType::F32)?.cumsum(1));
    add(&special.call(&x).unwrap());
    let turned = kiln::compile(|w: &Tensor| (&w.transpose(0, 1)? * 3.0)?.lgamma());
    add(&turned.call(&w).unwrap());
    // Of any number of rows.
    let options = kiln::Options { dynamic: kiln::Dynamic::Always, ..Default::default() };
    let dynamic = kiln::compile_with(|x: &Tensor| x.softmax(0)?.sum(-1), options);
    for rows in [1, 4, 7] {
        add(&dynamic.call(&tensor(&[rows, 8], 4)).unwrap());
    }
    bytes
}

#[test]
fn a_warm_process_gives_the_answers_of_a_cold_one() {
    let folder = Folder::new();
    let (cold, log) = finish(&mut command("answer", &folder.0));
    assert_eq!(said(&cold, "hits"), "0");
    assert!(said(&cold, "stored").parse::<u32>().unwrap() >= 5, "{cold}");
    assert!(log.contains("stored program") && log.contains("no program"), "{log}");
    let (warm, log) = finish(&mut command("answer", &folder.0));
    assert_eq!(said(&warm, "answers"), said(&cold, "answers"));
    assert_eq!((said(&warm, "misses"), said(&warm, "stored")), ("0".into(), "0".into()));
    assert_eq!(said(&warm, "hits"), said(&cold, "misses"));
    assert!(log.contains("found program"), "{log}");
    // Loop kernels and the fused parts of products come from disk; what is left is quick to make.
    let compiled = |text: &str| said(text, "compiled").parse::<u32>().unwrap();
    assert!(compiled(&warm) < compiled(&cold), "{warm}{cold}");
    let (off, _) = finish(command("answer", &folder.0).env("KILN_CACHE", "off"));
    assert_eq!(said(&off, "answers"), said(&cold, "answers"));
    assert_eq!((said(&off, "hits"), said(&off, "stored")), ("0".into(), "0".into()));
}

#[test]
fn another_target_has_other_programs() {
    let folder = Folder::new();
    finish(&mut command("answer", &folder.0));
    let (portable, _) = finish(command("answer", &folder.0).env("KILN_CPU_ISA", "portable"));
    assert_eq!(said(&portable, "hits"), "0");
    let (again, _) = finish(command("answer", &folder.0).env("KILN_CPU_ISA", "portable"));
    assert_eq!((said(&again, "misses"), said(&again, "answers")), ("0".into(), said(&portable, "answers")));
}

#[test]
fn without_a_home_there_is_no_cache_and_no_error() {
    let mut command = command("answer", Path::new(""));
    command.env_remove("HOME").env_remove("XDG_CACHE_HOME");
    let (out, log) = finish(&mut command);
    assert_eq!((said(&out, "hits"), said(&out, "misses"), said(&out, "stored")), ("0".into(), "0".into(), "0".into()));
    assert!(log.contains("no disk cache: no KILN_CACHE_DIR"), "{log}");
    // Nor is there one in a file.
    let file = Folder::new();
    fs::write(&file.0, b"not a folder").unwrap();
    let (_, log) = finish(&mut self::command("answer", &file.0));
    assert!(log.contains("no disk cache"), "{log}");
    fs::remove_file(&file.0).unwrap();
}

#[test]
fn the_folder_follows_the_environment() {
    let home = Folder::new();
    finish(command("answer", Path::new("")).env_remove("XDG_CACHE_HOME").env("HOME", &home.0));
    assert!(home.0.join(".cache/kiln/programs").is_dir());
    let shared = Folder::new();
    finish(command("answer", Path::new("")).env("XDG_CACHE_HOME", &shared.0));
    assert!(shared.0.join("kiln/programs").is_dir());
}

#[test]
fn every_damaged_byte_is_a_miss_and_the_answer_stays_right() {
    let folder = Folder::new();
    let _entered = folder.enter();
    let case = Case::new(2, 3);
    let expected = case.expected();
    assert_eq!(case.run(), expected);
    let file = folder.files(Kind::Program).remove(0);
    let whole = fs::read(&file).unwrap();
    let hits = disk::stats().hits;
    assert_eq!(case.run(), expected);
    assert_eq!(disk::stats().hits, hits + 1);
    let check = |bytes: &[u8], what: &str| {
        fs::write(&file, bytes).unwrap();
        let before = disk::stats();
        assert_eq!(case.run(), expected, "{what}");
        let after = disk::stats();
        assert_eq!((after.hits, after.damaged), (before.hits, before.damaged + 1), "{what}");
    };
    for at in (0..whole.len()).filter(|at| !(96..104).contains(at)) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        check(&flipped, &format!("byte {at} flipped"));
    }
    for length in (0..whole.len()).step_by(37) {
        check(&whole[..length], &format!("cut at {length}"));
    }
    check(&[whole.clone(), vec![0; 9]].concat(), "longer");
    check(b"#!/bin/sh\necho foreign\n", "foreign");
    let mut older = whole.clone();
    older[8..12].copy_from_slice(&0u32.to_le_bytes());
    check(&older, "another version");
    // A whole entry of another key.
    let other = Case::new(2, 4);
    other.run();
    let other_file = folder.files(Kind::Program).into_iter().find(|f| *f != file).unwrap();
    check(&fs::read(other_file).unwrap(), "another program's entry");
}

#[test]
fn a_payload_that_means_nothing_is_rejected() {
    let folder = Folder::new();
    let _entered = folder.enter();
    let case = Case::new(3, 5);
    let expected = case.expected();
    case.run();
    let store = disk::store().unwrap();
    let listed = store.list().unwrap().remove(0);
    let entry = store.read(&listed).unwrap();
    let mut random = kiln::ir::examples::Random(11);
    // Written as an entry is, so that the digest is right: only what the payload says is wrong.
    for _ in 0..300 {
        let mut payload = entry.payload.clone();
        let at = random.below(payload.len());
        payload.truncate(at);
        let file = reseal(&fs::read(&listed.file).unwrap(), &payload);
        fs::write(&listed.file, file).unwrap();
        let damaged = disk::stats().damaged;
        assert_eq!(case.run(), expected, "payload cut at {at}");
        assert_eq!(disk::stats().damaged, damaged + 1);
    }
}

/// The file of an entry with another payload and the digest that belongs to it.
fn reseal(file: &[u8], payload: &[u8]) -> Vec<u8> {
    let about = u64::from_le_bytes(file[16..24].try_into().unwrap()) as usize;
    let mut sealed = file[..64].to_vec();
    sealed[24..32].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    let digest = blake3::Hasher::new().update(&sealed).update(&file[104..104 + about]).update(payload).finalize();
    sealed.extend_from_slice(digest.as_bytes());
    sealed.extend_from_slice(&file[96..104 + about]);
    sealed.extend_from_slice(payload);
    sealed
}

#[test]
fn a_hit_from_elsewhere_has_the_lines_of_here() {
    let folder = Folder::new();
    let _entered = folder.enter();
    let text = |file: &str| {
        format!(
            "graph(%0: f32[4], %1: i64[2]) {{
               %2: f32[4] = exp %0 @ {file}.rs:10
               %3: f32[2] = gather %2, %1 {{axis=0}} @ {file}.rs:20
               return %3
             }}"
        )
    };
    let x = Tensor::from_vec(vec![0f32; 4], 4, Device::Cpu).unwrap();
    let index = Tensor::from_vec(vec![0i64, 9], 2, Device::Cpu).unwrap();
    for (file, hits) in [("first", 0), ("second", 1)] {
        let before = disk::stats().hits;
        let compiled = kiln::compile_graph(&Graph::parse(&text(file)).unwrap(), &[]).unwrap();
        assert_eq!(disk::stats().hits - before, hits);
        assert!(compiled.program().steps().iter().all(|step| step.source().file == format!("{file}.rs")));
        match compiled.run(&[x.clone(), index.clone()]) {
            Err(Error::ElementOutOfRange { index: 9, at, .. }) => assert_eq!(at.to_string(), format!("{file}.rs:20")),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn programs_differ_by_options_layouts_and_constants() {
    let folder = Folder::new();
    let _entered = folder.enter();
    let graph = |value: &str| {
        let text = format!(
            "graph(%0: bf16[4, 6]) {{
               %1: bf16[4, 6] = full {{value={value}}}
               %2: bf16[4, 6] = mul %0, %1
               %3: bf16[4, 6] = exp %2
               return %3
             }}"
        );
        Graph::parse(&text).unwrap()
    };
    let misses = |graph: &Graph, layouts: &[kiln_kernels::InputLayout], options: &CompileOptions| {
        let before = disk::stats().misses;
        CompiledGraph::new(graph, layouts, options).unwrap();
        disk::stats().misses - before
    };
    let plain = CompileOptions::default();
    let mut exact = CompileOptions::default();
    exact.schedule.numerics = kiln::Numerics::Eager;
    let mut short = CompileOptions::default();
    short.schedule.precision = kiln::Precision::Medium;
    let turned = kiln_kernels::InputLayout { strides: vec![1.into(), 4.into()], offset: 0.into() };
    for expected in [1, 0] {
        assert_eq!(misses(&graph("2"), &[], &plain), expected);
        assert_eq!(misses(&graph("3"), &[], &plain), expected);
        assert_eq!(misses(&graph("2"), &[], &exact), expected);
        assert_eq!(misses(&graph("2"), &[], &short), expected);
        assert_eq!(misses(&graph("2"), std::slice::from_ref(&turned), &plain), expected);
        assert_eq!(misses(&graph("2"), &[], &CompileOptions { no_passes: true, ..plain.clone() }), expected);
    }
    // A name is for people.
    assert_eq!(misses(&graph("2"), &[], &CompileOptions { name: "another".into(), ..plain.clone() }), 0);
}

/// Elements for an input of a random graph; small ones, for some are indices.
fn input(ty: &kiln::ir::TensorType, seed: u64, value: &dyn Fn(&kiln::ir::Dim) -> Option<usize>) -> Option<Tensor> {
    let shape: Vec<usize> = ty.shape.iter().map(value).collect::<Option<_>>()?;
    let mut random = kiln::ir::examples::Random(seed);
    let elements: Vec<_> = (0..shape.iter().product()).map(|_| random.scalar(ty.dtype, 0.0, 3.0)).collect();
    let literal = kiln::ir::Literal::from_elements(ty.dtype, &shape, elements)?;
    Tensor::from_bytes(&literal.bytes, shape, ty.dtype, Device::Cpu).ok()
}

/// The bytes of a tensor, without the half byte behind an odd number of halves, which nobody writes.
fn bits(tensor: &Tensor) -> kiln::Result<Vec<u8>> {
    let mut bytes = tensor.to_bytes()?;
    let odd = tensor.dtype() == DType::I4 && tensor.shape().iter().product::<usize>() % 2 == 1;
    if let Some(last) = bytes.last_mut().filter(|_| odd) {
        *last &= 15;
    }
    Ok(bytes)
}

#[test]
fn random_graphs_come_back_from_disk_as_they_were() {
    let folder = Folder::new();
    let _entered = folder.enter();
    let (mut graphs, mut seed) = (0, 0);
    while graphs < 150 {
        seed += 1;
        let options = kiln::ir::generate::Options { symbolic: seed % 3 == 0, ..Default::default() };
        let graph = kiln::ir::generate::graph(seed, &options);
        let value = |d: &kiln::ir::Dim| d.eval(&kiln::ir::generate::symbol_value).map(|n| n as usize);
        let inputs: Option<Vec<Tensor>> = graph.inputs().iter().map(|&id| input(graph.ty(id), seed, &value)).collect();
        let (Some(inputs), true) = (inputs, graph.outputs().iter().all(|o| o.updates.is_none())) else { continue };
        // An index may be out of range and an op without a kernel: then both are the same error.
        let run = || {
            let compiled = CompiledGraph::new(&graph, &[], &CompileOptions::default())?;
            let outputs = compiled.run(&inputs)?;
            outputs.iter().map(bits).collect::<kiln::Result<Vec<Vec<u8>>>>()
        };
        let before = disk::stats();
        let cold = run().map_err(|e| e.to_string());
        // The code too has to come from disk.
        kernel_cache::clear();
        let warm = run().map_err(|e| e.to_string());
        assert_eq!(cold, warm, "seed {seed}:\n{graph}");
        let after = disk::stats();
        assert_eq!(after.damaged, before.damaged, "seed {seed}:\n{graph}");
        graphs += usize::from(after.hits > before.hits);
        assert!(seed < 2000, "{graphs} graphs of {seed} seeds");
    }
}

#[test]
fn frozen_programs_are_kept_too() {
    let folder = Folder::new();
    let _entered = folder.enter();
    let case = Case::new(4, 6);
    let run = || {
        let frozen = kiln::FrozenGraph::new(&case.graph, &[], &[false, true, true, false], &Default::default());
        let inputs: Vec<&Tensor> = case.inputs.iter().collect();
        let outputs = frozen.unwrap().run(&inputs, &[0, 0]).unwrap();
        outputs.iter().map(|t| t.to_bytes().unwrap()).collect::<Vec<_>>()
    };
    let before = disk::stats();
    let cold = run();
    kernel_cache::clear();
    let between = disk::stats();
    assert_eq!((between.hits, between.stored > before.stored), (before.hits, true));
    assert_eq!(run(), cold);
    assert_eq!(disk::stats().hits - between.hits, between.stored - before.stored);
}

#[test]
fn large_kernels_are_kept_by_themselves() {
    let folder = Folder::new();
    let _entered = folder.enter();
    let mut text = "graph(%0: f32[5, 7]) {\n".to_owned();
    for n in 0..80 {
        text += &format!("  %{}: f32[5, 7] = {} %{n}\n", n + 1, ["sin", "neg", "tanh", "floor"][n % 4]);
    }
    let graph = Graph::parse(&(text + "  return %80\n}\n")).unwrap();
    let x = Tensor::from_vec(numbers(35, 9), [5, 7], Device::Cpu).unwrap();
    let run = |disk_cache: bool| {
        let options = CompileOptions { disk_cache, ..CompileOptions::default() };
        let compiled = CompiledGraph::new(&graph, &[], &options).unwrap();
        compiled.run(std::slice::from_ref(&x)).unwrap()[0].to_vec::<f32>().unwrap()
    };
    let cold = run(false);
    assert_eq!((folder.files(Kind::Kernel).len(), folder.files(Kind::Program).len()), (0, 0), "neither was asked for");
    kernel_cache::clear();
    assert_eq!(run(true), cold);
    assert_eq!((folder.files(Kind::Kernel).len(), folder.files(Kind::Program).len()), (1, 1));
    // A program that is not there finds its kernel.
    folder.files(Kind::Program).iter().for_each(|file| std::fs::remove_file(file).unwrap());
    kernel_cache::clear();
    let hits = disk::stats().hits;
    assert_eq!(run(true), cold);
    assert_eq!(disk::stats().hits, hits + 1);
}

#[test]
fn the_least_recently_used_programs_go() {
    let folder = Folder::new();
    let (out, log) = finish(command("many", &folder.0).env("KILN_CACHE_MAX_BYTES", "60000"));
    assert!(said(&out, "evicted").parse::<u32>().unwrap() > 10, "{out}");
    assert!(log.contains("entries (") && log.contains("which may have 60000 bytes"), "{log}");
    let bytes: u64 = folder.files(Kind::Program).iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(bytes <= 60_000 + 60_000 / 16 && bytes > 20_000, "{bytes}");
}

#[test]
fn an_exported_cache_is_warm_elsewhere() {
    let (here, there) = (Folder::new(), Folder::new());
    let (cold, _) = finish(&mut command("answer", &here.0));
    let store = Store::open(&here.0, disk::DEFAULT_MOST_BYTES).unwrap();
    let mut archive = Vec::new();
    store.export(&store.list().unwrap(), &mut archive).unwrap();
    Store::open(&there.0, disk::DEFAULT_MOST_BYTES).unwrap().import_archive(&mut &archive[..]).unwrap();
    let (warm, _) = finish(&mut command("answer", &there.0));
    assert_eq!((said(&warm, "misses"), said(&warm, "answers")), ("0".into(), said(&cold, "answers")));
}

#[cfg(unix)]
mod unix {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::os::unix::process::CommandExt;

    /// Runs as a user who cannot do everything, if this one can.
    fn as_plain_user(command: &mut Command) -> u32 {
        // SAFETY: no preconditions.
        match unsafe { libc::geteuid() } {
            0 => {
                command.uid(65534);
                65534
            }
            user => user,
        }
    }

    #[test]
    fn a_folder_that_may_only_be_read_still_hits() {
        let folder = Folder::new();
        fs::create_dir(&folder.0).unwrap();
        let mut first = command("answer", &folder.0);
        let user = as_plain_user(&mut first);
        if folder.0.metadata().unwrap().uid() != user {
            chown(&folder.0, Some(user), None).unwrap();
        }
        let (cold, _) = finish(&mut first);
        let lock = |mode: u32| {
            for inner in ["", "programs", "kernels", "unfinished"].map(|name| folder.0.join(name)) {
                if inner.exists() {
                    fs::set_permissions(inner, fs::Permissions::from_mode(mode)).unwrap();
                }
            }
            for file in folder.files(Kind::Program) {
                fs::set_permissions(file, fs::Permissions::from_mode(mode & 0o666)).unwrap();
            }
        };
        // One program is missing, so that there is something to write.
        fs::remove_file(&folder.files(Kind::Program)[0]).unwrap();
        lock(0o500);
        let mut second = command("answer", &folder.0);
        as_plain_user(&mut second);
        let (warm, log) = finish(&mut second);
        lock(0o700);
        assert_eq!((said(&warm, "misses"), said(&warm, "stored")), ("1".into(), "0".into()));
        assert_eq!(said(&warm, "answers"), said(&cold, "answers"));
        assert_eq!(log.matches("cannot write to the disk cache").count(), 1, "{log}");
    }

    #[test]
    fn a_full_disk_is_an_event_and_no_error() {
        let folder = Folder::new();
        let mut command = command("answer", &folder.0);
        // SAFETY: setrlimit and signal are safe to call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // Files cannot grow beyond a few bytes, and trying is an error instead of the end.
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
                let limit = libc::rlimit { rlim_cur: 300, rlim_max: 300 };
                libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
                Ok(())
            })
        };
        let (out, log) = finish(&mut command);
        assert_eq!(said(&out, "stored"), "0");
        assert!(said(&out, "failed").parse::<u32>().unwrap() > 3);
        assert_eq!(log.matches("cannot write to the disk cache").count(), 1, "{log}");
        let left = fs::read_dir(folder.0.join("unfinished")).map_or(0, |files| files.count());
        assert_eq!(left, 0, "half-written files are removed");
        let (cold, _) = finish(&mut super::command("answer", &folder.0));
        assert_eq!(said(&cold, "answers"), said(&out, "answers"));
    }
}

/// Eight processes on one folder that is too small for what they make, killed at random moments; seconds as in
/// `KILN_STRESS_SECONDS`.
#[test]
fn processes_that_are_killed_leave_nothing_wrong_behind() {
    let seconds = std::env::var("KILN_STRESS_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    let folder = Folder::new();
    let start = || {
        let mut command = command("forever", &folder.0);
        command.env("KILN_CACHE_MAX_BYTES", "100000").env("KILN_THREADS", "1").env_remove("KILN_LOG");
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut random = kiln::ir::examples::Random(5);
    let mut running: Vec<_> = (0..8).map(|_| start()).collect();
    let begin = Instant::now();
    let mut killed = 0;
    // On a busy machine it takes longer until enough of them were killed.
    while begin.elapsed() < Duration::from_secs(seconds) || killed <= 10 {
        std::thread::sleep(Duration::from_millis(5 + random.below(60) as u64));
        let at = random.below(running.len());
        // Whoever ends by itself has met a wrong answer or an error.
        assert!(running[at].try_wait().unwrap().is_none(), "a process failed");
        running[at].kill().unwrap();
        running[at].wait().unwrap();
        running[at] = start();
        killed += 1;
    }
    for process in &mut running {
        assert!(process.try_wait().unwrap().is_none(), "a process failed");
        process.kill().unwrap();
        process.wait().unwrap();
    }
    // Every file in place is whole, and everything is still right.
    let store = Store::open(&folder.0, 100_000).unwrap();
    let list = store.list().unwrap();
    assert!(!list.is_empty());
    list.iter().for_each(|listed| assert!(store.read(listed).is_ok(), "{listed:?}"));
    let (out, log) = finish(&mut command("once", &folder.0));
    assert_eq!(said(&out, "fine"), "yes");
    assert!(!log.contains("removed /"), "{log}");
}
