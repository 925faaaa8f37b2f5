//! `kiln bench` as a program: what it writes is what was promised, without a peer.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kiln-bench-test-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn kiln(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(words).env("KILN_CACHE", "off").env("KILN_PYTHON", "no-such-python").output().expect("kiln starts")
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("a file of lines");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect()
}

const FIELDS: &str = "what model device dtype batch prompt mode first_call_s median_ms mean_ms std_ms p90_ms p99_ms \
                      tokens_per_s kernels launches peak_bytes matches_eager max_abs_err peer threads cpu date kiln";

fn check(line: &Value) {
    for field in FIELDS.split_whitespace() {
        assert!(line.get(field).is_some(), "no {field} in {line}");
    }
    let number = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name} of {line}"));
    assert!(number("min_ms") > 0.0 && number("min_ms") <= number("median_ms"), "{line}");
    assert!(number("median_ms") <= number("p90_ms") && number("p90_ms") <= number("p99_ms"), "{line}");
    assert!(number("p99_ms") <= number("max_ms"), "{line}");
}

fn success(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn decode_writes_a_line_a_mode_and_a_page() {
    let folder = Folder::new("decode");
    let (json, html) = (folder.file("out.jsonl"), folder.file("out.html"));
    let words = ["bench", "decode", "--modes", "eager,default,reduce-overhead", "--tokens", "12", "--prompt", "5"];
    let files = ["--repeats", "20", "--threads", "1", "--json", &json.display().to_string(), "--html"];
    let page = html.display().to_string();
    let text = success(&kiln(&[&words[..], &files[..], &[page.as_str()]].concat()));
    assert!(text.contains("decode stories260K"), "{text}");
    let lines = lines(&json);
    assert_eq!(lines.len(), 3);
    for (line, mode) in lines.iter().zip(["eager", "default", "reduce-overhead"]) {
        check(line);
        assert_eq!((line["mode"].as_str(), line["what"].as_str()), (Some(mode), Some("decode")));
        assert_eq!((line["prompt"].as_u64(), line["threads"].as_u64()), (Some(5), Some(1)));
        assert_eq!((line["matches_eager"].as_bool(), line["same_ids"].as_u64()), (Some(true), Some(13)), "{line}");
        // After the prompt and after each of the 12 tokens that something came after.
        assert_eq!(line["logits_compared"].as_u64(), Some(13), "{line}");
        assert!(line["max_abs_err"].as_f64().is_some_and(|error| error < 1e-3), "{line}");
        assert!(line["repeats"].as_u64() >= Some(20) && line["first_call_s"].as_f64() > Some(0.0), "{line}");
        // 1 MB of weights are in there somewhere.
        assert!(line["peak_bytes"].as_u64() > Some(1_000_000) && line["weights_bytes"].as_u64() > Some(1_000_000));
        // The check is of the printed figures and of nothing else; what the bare process has is a figure of its own.
        let bytes = |name: &str| line[name].as_u64().unwrap_or_else(|| panic!("{name} in {line}"));
        let limit = (bytes("weights_bytes") + bytes("kv_bytes")) / 10 * 11 + bytes("activation_bytes");
        assert_eq!(bytes("limit_bytes"), limit);
        // A tenth of this model is less than what any model takes: a peak beyond the limit says nothing.
        let within = (bytes("peak_bytes") <= limit).then_some(true);
        assert_eq!(line["within_memory"].as_bool(), within, "{line}");
        assert!(bytes("process_bytes") > 1_000_000, "{line}");
        assert_eq!(line["launches"].is_null(), mode == "eager");
    }
    let page = std::fs::read_to_string(html).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(page.matches("<svg").count(), 5);
}

/// Of weights that are quantised as they are loaded, and of random ones drawn in the format.
#[test]
fn quantised_weights_are_measured_in_every_mode() {
    let folder = Folder::new("weights");
    let json = folder.file("out.jsonl").display().to_string();
    for (model, dtype) in [("stories260K", "f32"), ("stories15m", "bf16")] {
        for weights in ["int8", "q8_0", "q4_k_m"] {
            let words = ["bench", "decode", "--model", model, "--layers", "2", "--dtype", dtype, "--weights", weights];
            let rest =
                ["--modes", "eager,default", "--tokens", "4", "--repeats", "2", "--threads", "1", "--json", &json];
            let text = success(&kiln(&[&words[..], &rest[..]].concat()));
            assert!(text.contains(&format!("{weights} weights")), "{text}");
            for line in lines(Path::new(&json)) {
                assert_eq!(
                    (line["matches_eager"].as_bool(), line["weights"].as_str()),
                    (Some(true), Some(weights)),
                    "{line}"
                );
            }
        }
    }
}

#[test]
fn a_batch_gives_more_tokens_a_call() {
    let folder = Folder::new("batch");
    let json = folder.file("out.jsonl").display().to_string();
    let words = ["bench", "decode", "--modes", "eager,default", "--tokens", "6", "--repeats", "4", "--batch", "2"];
    success(&kiln(&[&words[..], &["--threads", "1", "--json", &json]].concat()));
    for line in lines(Path::new(&json)) {
        check(&line);
        assert_eq!((line["batch"].as_u64(), line["ids"].as_u64()), (Some(2), Some(14)), "{line}");
        let rate = 2e3 / line["median_ms"].as_f64().expect("a median");
        assert!((line["tokens_per_s"].as_f64().expect("a rate") / rate - 1.0).abs() < 1e-9, "{line}");
    }
}

#[test]
fn forward_compares_logits_at_every_length() {
    let folder = Folder::new("forward");
    let json = folder.file("out.jsonl").display().to_string();
    let words = ["bench", "forward", "--model", "stories260K", "--layers", "2", "--prompt", "4,33", "--repeats", "5"];
    success(&kiln(&[&words[..], &["--modes", "eager,default", "--threads", "1", "--json", &json]].concat()));
    let lines = lines(Path::new(&json));
    let seen: Vec<(Option<u64>, Option<&str>)> =
        lines.iter().map(|l| (l["prompt"].as_u64(), l["mode"].as_str())).collect();
    let (eager, default) = (Some("eager"), Some("default"));
    assert_eq!(seen, [(Some(4), eager), (Some(4), default), (Some(33), eager), (Some(33), default)]);
    for line in &lines {
        check(line);
        assert_eq!(line["model"], "stories260K, 2 of 5 layers");
        assert_eq!(line["matches_eager"].as_bool(), Some(true), "{line}");
        assert!(line["max_abs_err"].as_f64() < Some(1e-3), "{line}");
    }
}

#[test]
fn kernels_and_calls_have_the_same_lines() {
    let folder = Folder::new("ops");
    for (what, filter, sides) in
        [("ops", "softmax 64", 4), ("calls", "one tensor", 4), ("forward", "llama MLP 256, 1 ", 2)]
    {
        let json = folder.file(what).display().to_string();
        let few = ["--seconds", "0.005", "--repeats", "9", "--threads", "1", "--json", &json];
        success(&kiln(&[&["bench", what, "--filter", filter][..], &few[..]].concat()));
        let lines = lines(Path::new(&json));
        assert_eq!(lines.len(), sides, "{what}: {lines:?}");
        for line in &lines {
            check(line);
            assert_eq!(line["what"], what);
        }
    }
}

#[test]
fn what_cannot_be_measured_is_said_before_anything_runs() {
    for words in [
        &["bench", "decode", "--modes", "fast"][..],
        &["bench", "decode", "--model", "no-such-model"],
        &["bench", "decode", "--prompt", "9999"],
        &["bench", "decode", "--peer", "llama.cpp"],
    ] {
        let output = kiln(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A peer that answers with the logits of Kiln's eager mode, one number of which is another: the place is a part of the command.
#[cfg(unix)]
fn peer_that_errs_at(folder: &Folder, place: Option<u64>) -> f64 {
    use std::os::unix::fs::PermissionsExt;
    // 100 as a float, over the number at the place.
    let err = place.map_or(String::new(), |place| {
        format!("printf '\\000\\000\\310\\102' | dd of=\"$file\" bs=4 seek={place} conv=notrunc 2>/dev/null;")
    });
    let script = format!(
        r#"#!/bin/sh
while read -r line; do
  case "$line" in
    *'"do":"check"'*)
      file=$(printf '%s' "$line" | sed 's/.*"file":"\([^"]*\)".*/\1/')
      cp "${{file%-*}}-0" "$file"; {err}
      echo '{{"count": 1}}' ;;
    *'"do":"memory"'*) echo '{{"peak_bytes": 1}}' ;;
    *) echo '{{"first_call_s": 1, "ms": [1, 1, 1, 1, 1, 1], "ids": [[1]], "prefill_ms": 1}}' ;;
  esac
done
"#
    );
    let python = folder.file("python");
    std::fs::write(&python, script).expect("a script");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let json = folder.file("out.jsonl").display().to_string();
    let words = ["bench", "decode", "--modes", "eager,default", "--tokens", "6", "--repeats", "4", "--threads", "1"];
    let python = python.display().to_string();
    success(&kiln(&[&words[..], &["--python", &python, "--peer-modes", "torch:eager", "--json", &json]].concat()));
    let lines = lines(Path::new(&json));
    assert!(lines[1]["max_abs_err"].as_f64() < Some(1e-3), "{}", lines[1]);
    assert_eq!(lines[2]["logits_compared"].as_u64(), Some(7), "{}", lines[2]);
    lines[2]["max_abs_err"].as_f64().expect("an error")
}

/// The error is that of every position: of the prompt's and of those of tokens behind it.
#[cfg(unix)]
#[test]
fn one_wrong_logit_anywhere_is_the_error() {
    let folder = Folder::new("error");
    assert_eq!(peer_that_errs_at(&folder, None), 0.0);
    for place in [5, 3 * 512 + 17, 7 * 512 - 1] {
        let error = peer_that_errs_at(&folder, Some(place));
        assert!(error > 50.0 && error < 150.0, "{place}: {error}");
    }
}

/// A peer that fails is a row that says so; all others are measured, written, and the exit code is 1.
#[cfg(unix)]
#[test]
fn a_peer_that_fails_is_told_at_the_end() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("peer");
    let python = folder.file("python");
    std::fs::write(&python, "#!/bin/sh\nread line; echo 'no module named torch' >&2; exit 1\n").expect("a script");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let (python, json) = (python.display().to_string(), folder.file("out.jsonl").display().to_string());
    let few = ["--repeats", "4", "--turns", "1", "--threads", "1", "--python", &python, "--json", &json];
    for (words, lines_of_kiln) in [
        (&["bench", "decode", "--modes", "default", "--tokens", "6", "--peer-modes", "torch:eager"][..], 1),
        (&["bench", "ops", "--filter", "softmax 64", "--seconds", "0.001", "--peer", "torch"], 4),
        (&["bench", "calls", "--filter", "one tensor", "--seconds", "0.001", "--peer", "torch"], 4),
        (&["bench", "forward", "--filter", "llama MLP 256, 1 ", "--seconds", "0.001", "--peer", "torch"], 2),
    ] {
        let output = kiln(&[words, &few].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {errors}");
        assert!(errors.contains("error: torch"), "{words:?}: {errors}");
        let lines = lines(Path::new(&json));
        let (failed, measured): (Vec<&Value>, Vec<&Value>) = lines.iter().partition(|line| line.get("error").is_some());
        assert_eq!(measured.len(), lines_of_kiln, "{words:?}: {lines:?}");
        measured.into_iter().for_each(check);
        assert!(!failed.is_empty() && failed.iter().all(|line| line["side"] == "torch"), "{words:?}: {lines:?}");
    }
}

#[test]
fn a_peer_that_is_not_there_is_told_before_anything_runs() {
    let folder = Folder::new("no-peer");
    let json = folder.file("out.jsonl").display().to_string();
    let output = kiln(&["bench", "decode", "--peer-modes", "torch:eager", "--json", &json]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("cannot start 'no-such-python'") && output.stdout.is_empty(), "{errors}");
    assert!(!Path::new(&json).exists(), "nothing was measured, and nothing is left behind");
}
