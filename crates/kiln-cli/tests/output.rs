//! What is printed arrives, or the exit code says that it did not: every command with standard output on a full disk, and with a
//! reader that has gone.

#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Command, Stdio};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kiln-llm/tests/reference");

/// A short run of every command, in each way that it prints.
const COMMANDS: &[&[&str]] = &[
    &["--help"],
    &["--version"],
    &["run", "--help"],
    &["demo", "--tokens", "2"],
    &["demo", "--tokens", "2", "--json"],
    &["demo", "--kernel"],
    &["run", "--list"],
    &["run", "--list", "--json"],
    &["run", "stories260K", "--prompt", "Lily", "-n", "2"],
    &["run", "stories260K", "--prompt", "Lily", "-n", "2", "--no-stream"],
    &["run", "stories260K", "--prompt", "Lily", "-n", "2", "--json"],
    &["embed", "tiny-bert", "a text"],
    &["embed", "tiny-bert", "a text", "--json"],
    &["embed", "tiny-bert", "a text", "another", "--similarity"],
    &["classify", "tiny-vit", "images/grey.png"],
    &["classify", "tiny-vit", "images/grey.png", "--json"],
    &["bench", "calls", "--filter", "one tensor", "--turns", "1", "--repeats", "3", "--seconds", "0.001"],
    &["bench", "ops", "--filter", "softmax", "--threads", "1", "--turns", "1", "--repeats", "3", "--seconds", "0.001"],
    &["explain", "../../../../docs/softmax.kiln", "--size", "n=16"],
    &["explain", "../../../../docs/softmax.kiln", "--size", "n=16", "--json"],
    &["explain", "--model", "stories260K", "--layers", "1"],
    &["explain", "--model", "stories260K", "--layers", "1", "--json"],
    &["cache", "ls"],
    &["cache", "ls", "--json"],
    &["cache", "clear"],
    &["doctor", "--quick"],
    &["doctor", "--quick", "--json"],
    &["selftest", "--quick", "--group", "random"],
    &["selftest", "--quick", "--group", "random", "--json"],
    &["fuzz", "text", "--seconds", "1"],
    &["fuzz", "graphs", "--count", "2", "--seed", "1", "--json"],
    &["completions", "bash"],
];

/// The exit code and standard error of a command whose standard output goes there.
fn kiln(arguments: &[&str], out: Stdio) -> (Option<i32>, String) {
    let folder = std::env::temp_dir().join(format!("kiln-output-test-{}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(arguments).current_dir(REFERENCE).stdin(Stdio::null()).stdout(out).stderr(Stdio::piped());
    command.env("KILN_CACHE", "off").env("KILN_CACHE_DIR", &folder);
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    let _ = std::fs::remove_dir_all(folder);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_full_disk_is_an_error_of_every_command() {
    for arguments in COMMANDS {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let (code, errors) = kiln(arguments, full.into());
        assert_eq!(code, Some(1), "{arguments:?}: {errors}");
        assert!(errors.contains("error: standard output could not be written"), "{arguments:?}: {errors}");
        assert!(errors.contains("No space left on device") && !errors.contains("panicked"), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_reader_that_has_gone_is_no_error_of_any_command() {
    for arguments in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (code, errors) = kiln(arguments, writer.into());
        assert_eq!(code, Some(0), "{arguments:?}: {errors}");
        assert!(!errors.contains("error") && !errors.contains("panicked"), "{arguments:?}: {errors}");
    }
}

/// The table above has every command that there is.
#[test]
fn no_command_is_left_out() {
    let help = Command::new(env!("CARGO_BIN_EXE_kiln")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let commands = commands.lines().take_while(|line| line.starts_with("  "));
    let named = commands.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    let tried: BTreeSet<&str> = COMMANDS.iter().map(|words| words[0]).filter(|word| !word.starts_with('-')).collect();
    assert_eq!(named.collect::<BTreeSet<&str>>(), tried);
}

/// Standard error that cannot be written changes neither the result nor the exit code.
#[test]
fn words_for_people_may_get_lost() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(["run", "stories260K", "--prompt", "Lily saw", "-n", "3", "--json"]).stderr(full);
    let output = command.env("KILN_CACHE", "off").env("KILN_LOG", "kernels").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"text\":\" a big b\""), "{output:?}");
}
