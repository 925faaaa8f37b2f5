//! The command as people and scripts meet it: help, colours, completions, exit codes, and the shape of errors.

use serde_json::Value;
use std::process::{Command, Output};

fn kiln(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(arguments).env("KILN_CACHE", "off").env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
    command
}

fn texts(output: &Output) -> (String, String) {
    (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn help_tells_of_every_command_and_of_exit_codes() {
    let (out, _) = texts(&kiln(&["--help"]).output().unwrap());
    for word in
        ["demo", "run", "bench", "explain", "cache", "doctor", "fuzz", "completions", "Examples:", "Exit codes:"]
    {
        assert!(out.contains(word), "{word}: {out}");
    }
    assert!(!out.contains('\x1b'), "no colours into a pipe");
    let (out, _) = texts(&kiln(&["run", "--help"]).output().unwrap());
    assert!(out.contains("Examples:\n  kiln run stories260K"), "{out}");
}

#[test]
fn colours_are_where_they_are_wanted() {
    let colored = |arguments: &[&str], environment: &[(&str, &str)]| {
        let (out, _) = texts(&kiln(arguments).envs(environment.iter().copied()).output().unwrap());
        out.contains('\x1b')
    };
    assert!(!colored(&["run", "--list"], &[]));
    assert!(colored(&["run", "--list", "--color", "always"], &[]));
    assert!(colored(&["run", "--list"], &[("CLICOLOR_FORCE", "1")]));
    assert!(!colored(&["run", "--list"], &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]));
    assert!(!colored(&["run", "--list", "--color=never"], &[("CLICOLOR_FORCE", "1")]));
    assert!(colored(&["--color=always", "run", "--help"], &[]));
}

#[test]
fn every_shell_gets_a_script() {
    for (shell, word) in [("bash", "complete -F"), ("zsh", "#compdef kiln"), ("fish", "complete -c kiln")] {
        let output = kiln(&["completions", shell]).output().unwrap();
        let (out, _) = texts(&output);
        assert!(output.status.success() && out.contains(word) && out.contains("max-autotune"), "{shell}: {out}");
    }
}

#[test]
fn what_cannot_begin_ends_with_two_and_says_what_to_try() {
    let cases: [(&[&str], &[&str]); 8] = [
        (&["run", "/no/such/model"], &["error: '/no/such/model' is no folder", "try: kiln run --list"]),
        (
            &["run", "stories260K", "--prompt", "x", "--device", "cuda:99"],
            &["error: cuda:99 cannot be used", "try: --device cpu"],
        ),
        (&["run", "stories260K", "--prompt", "x", "--device", "tpu"], &["'tpu' is no device"]),
        (&["run", "stories260K", "--prompt", "x", "--dtype", "int8"], &["'int8'", "f32, bf16 or f16"]),
        (&["run", "stories260K", "--prompt", "x", "--chat"], &["has no chat template"]),
        (
            &["run", "stories260K", "--prompt", "x", "--temperature", "-1"],
            &["'-1' for '--temperature <T>': it takes a number from 0 on"],
        ),
        (&["run", "stories260K", "--tempo", "1"], &["--tempo", "--temperature"]),
        (&["explain", "/no/such/file"], &["error: /no/such/file\n  caused by: No such file"]),
    ];
    for (arguments, words) in cases {
        let output = kiln(arguments).output().unwrap();
        let (out, err) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {err}");
        assert!(out.is_empty(), "{arguments:?}: {out}");
        for word in words {
            assert!(err.contains(word), "{arguments:?} says\n{err}\nand not {word}");
        }
    }
}

#[test]
fn the_doctor_knows_the_machine() {
    let output = kiln(&["doctor", "--json", "--quick", "--python", "/no/python"]).output().unwrap();
    let (out, err) = texts(&output);
    let facts: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert!(output.status.success() && err.contains("kiln would use"), "{err}");
    assert!(facts["cpu"]["threads"].as_u64().unwrap() >= 1 && facts["cpu"]["code"]["isa"].is_string(), "{facts}");
    assert_eq!(facts["uses"]["device"]["device"], "cpu");
    assert_eq!((&facts["cache"]["state"], &facts["python"]["python"]), (&Value::Bool(false), &Value::Null));
    let (out, _) = texts(&kiln(&["doctor", "--python", "/no/python"]).output().unwrap());
    assert!(out.contains("GB/s") && out.contains("cache"), "{out}");
}
