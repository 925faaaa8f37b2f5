//! `kiln run` and `kiln demo` on the model that ships with the repository.

mod chatty;

use chatty::Chatty;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const MODES: [&str; 5] = ["eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"];

fn folder() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kiln-llm/models/stories260K");
    folder.canonicalize().unwrap().display().to_string()
}

fn kiln(arguments: &[&str], input: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(arguments).env("KILN_CACHE", "off").stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().unwrap();
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(input.as_bytes()).unwrap();
    }
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The object on the last line, of a command that succeeds.
fn json(arguments: &[&str], input: Option<&str>) -> Value {
    let output = kiln(arguments, input);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {err}");
    serde_json::from_str(out.lines().last().unwrap_or_default()).unwrap_or_else(|e| panic!("{e}: {out}"))
}

fn expected() -> Value {
    let file = Path::new(&folder()).join("expected.json");
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

#[test]
fn greedy_tokens_are_pytorchs_in_every_mode() {
    let expected = expected();
    let first = &expected[0];
    let prompt = first["prompt_ids"].as_array().unwrap();
    let new = &first["greedy_ids"].as_array().unwrap()[prompt.len()..];
    let count = new.len().to_string();
    let folder = folder();
    for mode in MODES {
        let words = [
            "run",
            &folder,
            "--prompt",
            first["prompt"].as_str().unwrap(),
            "--max-tokens",
            &count,
            "--json",
            "--mode",
            mode,
        ];
        let told = json(&words, None);
        assert_eq!(told["prompt_ids"].as_array().unwrap(), prompt, "{mode}");
        assert_eq!(told["token_ids"].as_array().unwrap(), new, "{mode}");
        assert_eq!((&told["mode"], &told["device"], &told["dtype"]), (&mode.into(), &"cpu".into(), &"f32".into()));
        for figure in ["tokens_per_s", "first_token_ms", "compile_s"] {
            assert!(told[figure].as_f64().unwrap() > 0.0, "{mode}: {figure} in {told}");
        }
        let whole = format!("{}{}", first["prompt"].as_str().unwrap(), told["text"].as_str().unwrap());
        assert!(first["text"].as_str().unwrap() == whole && whole.contains("named Lily"), "{told}");
        assert_eq!(told["stop"], "length");
    }
    let told = json(&["run", &folder, "--prompt", "Once upon a time", "-n", &count, "--json", "--freeze"], None);
    assert_eq!((told["token_ids"].as_array().unwrap(), &told["freeze"]), (&new.to_vec(), &true.into()));
}

#[test]
fn a_text_comes_from_standard_input_and_goes_to_standard_output() {
    let output = kiln(&["run", "stories260K", "-n", "8"], Some("Once upon a time\n"));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(out, ", there was a little girl\n", "{err}");
    assert!(output.status.success() && err.contains("tokens/s") && err.contains("compiled in"), "{err}");
    let whole = kiln(&["run", "stories260K", "-n", "8", "--no-stream", "--prompt", "Once upon a time"], None);
    assert_eq!(text(&whole.stdout), out);
    let told = json(&["run", "stories260K", "-p", "Lily saw", "-n", "3", "--json"], None);
    assert_eq!(told["text"], " a big b");
    let told =
        json(&["run", "stories260K", "-p", "Once upon a time", "--stop", "girl n", "--stop", "cat", "--json"], None);
    assert_eq!((&told["text"], &told["stop"]), (&", there was a little ".into(), &"text".into()));
}

#[test]
fn draws_depend_on_the_seed_alone() {
    let draw = |mode: &str, seed: &str| {
        let words = [
            "run",
            "stories260K",
            "-p",
            "Tim",
            "-n",
            "20",
            "-t",
            "0.9",
            "--top-k",
            "50",
            "--seed",
            seed,
            "--mode",
            mode,
            "--json",
        ];
        json(&words, None)["token_ids"].clone()
    };
    assert_eq!(draw("eager", "7"), draw("reduce-overhead", "7"));
    assert_ne!(draw("default", "7"), draw("default", "8"));
}

#[test]
fn turns_of_a_chat_read_what_is_new() {
    let folder = Chatty::new("turns");
    let turns = "Once upon a time\nThen Tom came.\nHe was sad.\n/reset\nOnce upon a time\n";
    let talk = |more: &[&str]| -> Vec<Value> {
        let words = ["run", folder.path(), "--chat", "--context", "256", "-n", "12", "--json"];
        let output = kiln(&[&words[..], more].concat(), Some(turns));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let whole = talk(&["--reread"]);
    for mode in ["eager", "default"] {
        let told = talk(&["--mode", mode]);
        assert_eq!(told.len(), 4);
        for (turn, (got, expected)) in told.iter().zip(&whole).enumerate() {
            assert_eq!((&got["text"], &got["prompt_ids"]), (&expected["text"], &expected["prompt_ids"]), "{turn}");
            let count = |line: &Value, name: &str| line[name].as_u64().unwrap() as usize;
            let prompt = got["prompt_ids"].as_array().unwrap().len();
            assert_eq!(count(got, "prompt_tokens_read") + count(got, "prompt_tokens_reused"), prompt);
            assert_eq!(count(expected, "prompt_tokens_reused"), 0);
            // The second turn has the answer before it, the last one the first turn's question.
            assert_eq!(count(got, "prompt_tokens_reused") > 0, turn > 0, "{got}");
            if turn == 1 || turn == 2 {
                assert!(count(got, "prompt_tokens_reused") * 2 > prompt, "{got}");
            }
        }
    }
}

/// A turn that does not fit is an error in its place; the turns behind it have their answers, and the exit code says so.
#[test]
fn a_script_goes_on_after_a_turn_that_does_not_fit() {
    let folder = Chatty::new("goes-on");
    let words = ["run", folder.path(), "--chat", "--context", "20", "-n", "4", "--json"];
    let turns =
        "Once upon a time\nThen Tom came and Lily was sad and Tom was sad and Lily was sad.\n/reset\nLily\n/rest\n";
    let output = kiln(&words, Some(turns));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    let told: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(told.len(), 4, "{out}");
    for (turn, fits) in told.iter().zip([true, false, true, false]) {
        assert_eq!((turn["text"].is_string(), turn["error"].is_string()), (fits, !fits), "{turn}");
    }
    assert!(err.contains("does not fit a context of 20") && err.contains("no command '/rest'"), "{err}");
    assert!(output.status.code() == Some(1) && err.contains("2 of the turns failed"), "{err}");
}

/// Lines that belong together are one turn, as on a terminal.
#[test]
fn a_script_may_have_turns_of_several_lines() {
    let folder = Chatty::new("lines");
    let words = ["run", folder.path(), "--chat", "-n", "2", "--json"];
    let prompts = |turns: &str| -> Vec<Value> {
        let output = kiln(&words, Some(turns));
        text(&output.stdout)
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["prompt_ids"].clone())
            .collect()
    };
    let one = prompts("\"\"\"Once upon\na time\"\"\"\n");
    assert_eq!((one.len(), &one), (1, &prompts("Once upon\\\na time\n")));
    assert_eq!(prompts("Once upon\n\na time").len(), 2);
    let help = kiln(&words, Some("/help\n/exit\nOnce\n"));
    assert!(text(&help.stderr).contains("/reset") && help.stdout.is_empty() && help.status.success());
}

/// An answer that is not whole says so, and why.
#[test]
fn figures_say_that_a_text_was_cut() {
    let told = |more: &[&str]| {
        let words = [&["run", "stories260K", "-p", "Once upon a time", "--ignore-eos"], more].concat();
        let output = kiln(&words, None);
        assert!(output.status.success(), "{output:?}");
        text(&output.stderr)
    };
    assert!(told(&["-n", "8"]).contains("8 tokens · cut there (--max-tokens)"));
    let full = told(&["-n", "100", "--context", "32"]);
    assert!(full.contains("context of 32 is full (--context)"), "{full}");
    let whole = kiln(&["run", "stories260K", "-p", "Once upon a time", "--stop", "girl"], None);
    let whole = text(&whole.stderr);
    assert!(!whole.contains("cut") && !whole.contains("full"), "{whole}");
}

/// A context that the model has no positions for was once cut in silence, and more of it asked for then.
#[test]
fn a_context_beyond_the_model_is_refused() {
    let run = |context: &str, prompt: &str| {
        let output =
            kiln(&["run", "stories260K", "-p", prompt, "-n", "2", "--context", context, "--mode", "eager"], None);
        (output.status.code(), text(&output.stderr))
    };
    let (code, err) = run("513", "Tim");
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("--context 513: 'stories260K' was made for texts of up to 512 tokens"), "{err}");
    assert!(err.contains("try: --context 512"), "{err}");
    assert_eq!(run("0", "Tim").0, Some(2));
    assert_eq!(run("512", "Tim").0, Some(0));
    let long = "Tim ".repeat(600);
    let (_, err) = run("16", &long);
    assert!(err.contains("does not fit a context of 16") && err.contains("more --context (up to 512)"), "{err}");
    let (_, err) = run("512", &long);
    assert!(err.contains("does not fit a context of 512") && !err.contains("--context"), "{err}");
}

/// A folder of a test's own, removed at its end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kiln-run-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn with(self, files: &[&str]) -> Folder {
        for file in files {
            std::fs::copy(Path::new(&folder()).join(file), self.0.join(file)).unwrap();
        }
        self
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A model of the hub is taken from Hugging Face's cache; where it is not there, no preset is offered in its place.
#[test]
fn a_model_of_the_hub_is_found_where_it_was_downloaded() {
    let hub = Folder::new("hub");
    let run = |id: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
        command.args(["run", id, "-p", "Once upon a time", "-n", "3", "--mode", "eager", "--json"]);
        command.env("KILN_CACHE", "off").env("HF_HOME", hub.path()).env_remove("HF_HUB_CACHE");
        let output = command.env_remove("HUGGINGFACE_HUB_CACHE").stdin(Stdio::null()).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, out, err) = run("Qwen/Qwen2.5-0.5B");
    assert!(code == Some(2) && out.is_empty(), "{err}");
    assert!(err.contains("Kiln downloads nothing") && err.contains(hub.path()), "{err}");
    assert!(err.contains("hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B"), "{err}");
    assert!(!err.contains("qwen2.5-0.5b"), "a preset is suggested: {err}");
    let snapshot = hub.0.join("hub/models--someone--stories/snapshots/0123abcd");
    std::fs::create_dir_all(&snapshot).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(Path::new(&folder()).join(file), snapshot.join(file)).unwrap();
    }
    let (code, out, err) = run("someone/stories");
    assert_eq!(code, Some(0), "{err}");
    let told: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    assert_eq!((&told["model"], &told["text"]), (&"stories".into(), &", there was".into()));
}

/// What is missing of a folder is said, and what can be done.
#[test]
fn folders_that_lack_something_say_what() {
    let fails = |folder: &Folder, command: &str| {
        let words: &[&str] = match command {
            "run" => &["run", folder.path(), "-p", "x"],
            "embed" => &["embed", folder.path(), "x"],
            _ => &["classify", folder.path(), "x.png"],
        };
        let output = kiln(words, None);
        let err = text(&output.stderr);
        assert!(!output.status.success() && !err.contains(".rs:"), "{err}");
        (output.status.code(), err)
    };
    let mute = Folder::new("mute").with(&["config.json", "model.safetensors"]);
    let (code, err) = fails(&mute, "run");
    assert!(code == Some(2) && err.contains("has no tokenizer.json and no tokenizer.model"), "{err}");
    assert!(!err.contains("random weights") && err.contains("--prompt-ids"), "{err}");

    let pickled = Folder::new("pickled").with(&["config.json", "tokenizer.json"]);
    std::fs::write(pickled.0.join("pytorch_model.bin"), "PK").unwrap();
    let (code, err) = fails(&pickled, "run");
    assert!(code == Some(2) && err.contains("is a pickle") && err.contains("save_pretrained"), "{err}");

    let damaged = Folder::new("damaged").with(&["config.json", "tokenizer.json"]);
    std::fs::write(damaged.0.join("model.safetensors"), "12345").unwrap();
    let (code, err) = fails(&damaged, "run");
    assert!(code == Some(1) && err.contains("model.safetensors"), "{err}");

    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kiln-llm/tests/reference");
    let copied = |name: &str| {
        let copy = Folder::new(name);
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(reference.join(name).join(file), copy.0.join(file)).unwrap();
        }
        copy
    };
    let (bert, vit) = (copied("tiny-bert"), copied("tiny-vit"));
    let (_, err) = fails(&bert, "run");
    assert!(err.contains(&format!("try: kiln embed {}", bert.path())), "{err}");
    let (_, err) = fails(&vit, "run");
    assert!(err.contains(&format!("try: kiln classify {}", vit.path())), "{err}");
    let (_, err) = fails(&mute, "embed");
    assert!(err.contains(&format!("try: kiln run {}", mute.path())), "{err}");
}

#[test]
fn a_preset_runs_without_files() {
    let words = ["run", "smollm2-135m", "--layers", "1", "--prompt-ids", "1,2,3", "-n", "3", "--json"];
    let told = json(&words, None);
    assert_eq!((told["token_ids"].as_array().unwrap().len(), &told["model"]), (3, &"smollm2-135m".into()));
    let output = kiln(&["run", "smollm2-135m", "--layers", "1", "--prompt", "x"], None);
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("--prompt-ids"), "{output:?}");
    assert!(text(&kiln(&["run", "--list"], None).stdout).contains("smollm2-135m"));
}

#[test]
fn the_demo_shows_equal_tokens_in_every_mode() {
    let shown = json(&["demo", "--json", "--tokens", "24"], None);
    let expected = expected();
    let skip = expected[0]["prompt_ids"].as_array().unwrap().len();
    assert_eq!(
        shown["token_ids"].as_array().unwrap()[..],
        expected[0]["greedy_ids"].as_array().unwrap()[skip..skip + 24]
    );
    assert_eq!(shown["tokens_equal"], true);
    let modes = shown["modes"].as_array().unwrap();
    assert_eq!(modes[0]["mode"], "eager");
    assert!(modes.len() >= 3);
    let kernels = |place: usize| modes[place]["kernels_per_token"].as_u64().unwrap();
    for (place, mode) in modes.iter().enumerate() {
        assert_eq!((&mode["tokens_equal"], &mode["token_ids"]), (&true.into(), &shown["token_ids"]));
        assert!(mode["compile_s"].as_f64().unwrap() > 0.0 && mode["tokens_per_s"].as_f64().unwrap() > 0.0, "{mode}");
        assert!(place == 0 || kernels(place) < kernels(0), "{shown}");
    }
    let picture = std::env::temp_dir().join(format!("kiln-demo-{}.svg", std::process::id()));
    let output = kiln(&["demo", "--tokens", "8", "--svg", picture.to_str().unwrap()], None);
    let out = text(&output.stdout);
    assert!(out.contains("Once upon a time") && out.contains("tokens equal in every mode"), "{out}");
    let svg = std::fs::read_to_string(&picture).unwrap();
    std::fs::remove_file(&picture).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("reduce-overhead") && svg.contains("#ff8c1a"), "{svg}");
}

/// The likeliest tokens of the embedded model survive the loss of bits, of the folder and of the executable alike.
#[test]
fn weights_are_quantised_as_they_are_loaded() {
    let words = |model, weights| {
        ["run", model, "--prompt", "Once upon a time", "--max-tokens", "8", "--weights", weights, "--json"]
    };
    let folder = folder();
    let stored = json(&words("stories260K", "as-stored"), None);
    for weights in ["int8", "q8_0", "q4_k_m"] {
        for model in ["stories260K", &folder] {
            let found = json(&words(model, weights), None);
            assert_eq!((&found["weights"], &found["token_ids"]), (&weights.into(), &stored["token_ids"]), "{model}");
        }
    }
}

/// The schedules of a GPU, run on the CPU one element at a time, continue a text as the CPU's own do.
#[test]
fn the_schedules_of_a_gpu_give_the_same_text() {
    let arguments = ["run", "stories260K", "--prompt", "Once upon a time", "--max-tokens", "6", "--json"];
    let text = |backend: &str| {
        let run = Command::new(env!("CARGO_BIN_EXE_kiln"))
            .args(arguments)
            .envs([("KILN_BACKEND", backend), ("KILN_CACHE", "off")])
            .output()
            .unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        let object: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        object["text"].clone()
    };
    assert_eq!(text("reference-cuda"), text("cpu"));
}
