//! `KILN_DEBUG`: what is written, for what, and that it can be read back. Each test runs itself again in a process of its own,
//! because the environment is read once.

use kiln::ir::Graph;
use kiln::{DType, Device, Options, Tensor, Var, compile, compile_graph, compile_with};
use std::path::{Path, PathBuf};
use std::process::Command;

fn fresh(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("kiln_dump_{name}_{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// Runs one test of this file again with an environment, in a folder; what it said on stderr.
fn again(test: &str, within: &Path, environment: &[(&str, &str)]) -> String {
    std::fs::create_dir_all(within).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture"]).current_dir(within).env_remove("KILN_LOG");
    command.envs(environment.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stdout));
    said
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn softmax_twice() {
    let x = Tensor::ones([4, 100], DType::F32, Device::Cpu).unwrap();
    let fast = compile(|x: &Tensor| x.mul(2.0)?.softmax(-1));
    fast.call(&x).unwrap();
    fast.call(&x).unwrap();
    x.exp().unwrap();
    let graph = Graph::parse("graph(%0: f32[n]) { %1: f32[n] = exp %0 return %1 }").unwrap();
    compile_graph(&graph, &[]).unwrap();
}

#[test]
fn every_program_gets_a_folder_that_tells_all() {
    let folder = fresh("all");
    let said = again("softmax_twice", &folder, &[("KILN_DEBUG", "1"), ("KILN_LOG", "kernels")]);
    assert!(said.contains("KILN_DEBUG writes to kiln_debug"), "{said}");
    let debug = folder.join("kiln_debug");
    let programs = names(&debug);
    assert_eq!(programs.len(), 2, "one for the function, one for the graph, none for eager: {programs:?}");
    for program in &programs {
        assert!(said.contains(&format!("wrote graphs, kernels and code to kiln_debug/{program}")), "{said}");
    }
    let first = debug.join(programs.iter().find(|name| name.starts_with("0-")).unwrap());
    let index = std::fs::read_to_string(first.join("index.txt")).unwrap();
    let listed: Vec<&str> = index.split("\nfiles\n").nth(1).unwrap().lines().collect();
    for line in &listed {
        let name = line.split_whitespace().next().unwrap();
        assert!(first.join(name).is_file(), "{name} is listed and there");
    }
    let files = names(&first);
    for wanted in ["00-capture.kiln", "index.txt", "kernels", "plan.txt", "schedule.txt"] {
        assert!(files.iter().any(|f| f == wanted), "{wanted} in {files:?}");
    }
    let captured = std::fs::read_to_string(first.join("00-capture.kiln")).unwrap();
    assert!(captured.contains("debug_dump.rs:"), "nodes have their lines:\n{captured}");
    let read = Graph::parse(&captured).unwrap();
    assert!(read.nodes().len() > 3);
    let passes: Vec<&String> = files.iter().filter(|f| f.ends_with(".kiln") && !f.starts_with("00")).collect();
    assert!(!passes.is_empty());
    for pass in passes {
        Graph::parse(&std::fs::read_to_string(first.join(pass)).unwrap()).unwrap();
    }
    for file in files.iter().filter(|file| file.starts_with(|c: char| c.is_ascii_digit())) {
        let dump = format!("NN-{}", file.split_once('-').unwrap().1);
        assert!(kiln::pipeline::STAGES.iter().any(|stage| stage.dump == dump), "{file} is the dump of a stage");
    }
    let kernels = names(&first.join("kernels"));
    assert!(kernels.iter().any(|k| k.ends_with(".kernel.txt")), "{kernels:?}");
    assert!(kernels.iter().any(|k| k.ends_with(".vir.txt")), "{kernels:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
#[ignore = "run by the test below, in a process of its own"]
fn frozen_products() {
    let weight = |rows: usize| Var::new(&Tensor::ones([rows, 64], DType::F32, Device::Cpu).unwrap());
    let (a, b) = (weight(32), weight(16));
    let x = Tensor::ones([4, 64], DType::F32, Device::Cpu).unwrap();
    let both = move |x: &Tensor| Ok((x.linear(&a.get(), None)?, x.linear(&b.get(), None)?));
    compile_with(both, Options { freeze: true, ..Options::default() }).call(&x).unwrap();
}

#[test]
fn a_frozen_program_gets_a_folder_too() {
    let folder = fresh("frozen");
    again("frozen_products", &folder, &[("KILN_DEBUG", "1")]);
    let debug = folder.join("kiln_debug");
    let programs = names(&debug);
    assert_eq!(programs.len(), 1, "{programs:?}");
    let files = names(&debug.join(&programs[0]));
    let file = |stage: &str| {
        let named = files.iter().rfind(|file| file.split_once('-').is_some_and(|(_, name)| name == stage));
        named.unwrap_or_else(|| panic!("{stage} in {files:?}"))
    };
    let dots = |stage: &str| {
        std::fs::read_to_string(debug.join(&programs[0]).join(file(stage))).unwrap().matches(" dot ").count()
    };
    assert_eq!(dots("capture.kiln"), 2);
    assert_eq!(dots("split_frozen.kiln"), 2);
    assert!(files.iter().any(|file| file == "guards.txt"), "{files:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_program_from_the_disk_cache_is_dumped_as_fully() {
    let folder = fresh("cached");
    let cache = folder.join("cache");
    let runs = ["first", "second"].map(|run| {
        let within = folder.join(run);
        let cache = cache.to_str().unwrap();
        let environment = [("KILN_DEBUG", "1"), ("KILN_LOG", "cache"), ("KILN_CACHE", "on"), ("KILN_CACHE_DIR", cache)];
        let said = again("softmax_twice", &within, &environment);
        let programs = names(&within.join("kiln_debug"));
        let files: Vec<Vec<String>> = programs
            .iter()
            .map(|program| {
                let program = within.join("kiln_debug").join(program);
                [names(&program), names(&program.join("kernels"))].concat()
            })
            .collect();
        (said, files)
    });
    assert_ne!(runs[0].0, runs[1].0, "the second found what the first stored");
    assert_eq!(runs[0].1, runs[1].1);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn eager_operations_are_dumped_when_all_is_asked_for() {
    let folder = fresh("eager");
    again("softmax_twice", &folder, &[("KILN_DEBUG", "all")]);
    let programs = names(&folder.join("kiln_debug"));
    assert!(programs.iter().any(|name| name.ends_with("-eager")), "{programs:?}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_is_said_and_is_no_error() {
    let folder = fresh("file");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("occupied"), "a file").unwrap();
    let said = again("softmax_twice", &folder, &[("KILN_DEBUG", "occupied")]);
    assert!(said.contains("KILN_DEBUG cannot write to occupied"), "{said}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn nothing_is_written_unasked() {
    let folder = fresh("none");
    again("softmax_twice", &folder, &[("KILN_DEBUG", "0")]);
    assert!(names(&folder).is_empty());
    std::fs::remove_dir_all(folder).unwrap();
}
