//! `kiln fuzz`: seeds come from the clock unless they are given, and are told.

use serde_json::Value;
use std::process::{Command, Output};

fn kiln(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kiln")).args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = kiln(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn nobody_runs_the_same_graphs_twice() {
    for what in [&["fuzz", "graphs", "--count", "2", "--json"][..], &["fuzz", "text", "--seconds", "1", "--json"]] {
        let seeds: Vec<u64> = (0..3).map(|_| json(what)["seed"].as_u64().unwrap()).collect();
        assert!(seeds[0] != seeds[1] && seeds[1] != seeds[2] && seeds[0] != seeds[2], "{what:?}: {seeds:?}");
    }
}

#[test]
fn a_seed_that_is_given_is_taken_and_told_first() {
    let output = kiln(&["fuzz", "graphs", "--count", "3", "--seed", "7", "--check"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("seed 7\n"), "{text}");
    let told = json(&["fuzz", "graphs", "--count", "3", "--seed", "7", "--json"]);
    assert_eq!((told["seed"].as_u64(), told["count"].as_u64(), told["failures"].as_u64()), (Some(7), Some(3), Some(0)));
    assert_eq!(told["failed_seeds"], Value::Array(vec![]));
}

#[test]
fn time_bounds_the_number_of_graphs() {
    let told = json(&["fuzz", "graphs", "--seconds", "1", "--seed", "3", "--json"]);
    assert!(told["count"].as_u64().unwrap() > 0 && told["seconds"].as_f64().unwrap() >= 1.0, "{told}");
}
