//! 2: the work could not begin, because of what was asked for or what is there. 1: it failed, or a file is damaged. The same kind
//! of error has the same code in every command.

use std::path::PathBuf;
use std::process::Command;

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kiln-llm/tests/reference");

/// A folder with damaged files; it goes away.
struct Damaged(PathBuf);

impl Damaged {
    fn new(test: &str) -> Damaged {
        let path = std::env::temp_dir().join(format!("kiln-exit-codes-{test}-{}", std::process::id()));
        std::fs::create_dir_all(path.join("model")).unwrap();
        std::fs::create_dir_all(path.join("empty")).unwrap();
        for name in ["model/config.json", "graph.kiln", "picture.png", "archive", "model.gguf"] {
            std::fs::write(path.join(name), "this is {none of what it should be").unwrap();
        }
        Damaged(path)
    }
}

impl Drop for Damaged {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The exit code and standard error; `DIR` in arguments is the folder with damaged files.
fn kiln(line: &str, folder: &Damaged, settings: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    let folder = folder.0.display().to_string();
    command.args(line.split_whitespace().map(|word| word.replace("DIR", &folder)));
    command.current_dir(REFERENCE).env("KILN_CACHE", "off").env("KILN_CACHE_DIR", format!("{folder}/cache"));
    command.env("KILN_PYTHON", "no-such-python").envs(settings.iter().copied()).stdin(std::process::Stdio::null());
    let output = command.output().unwrap();
    assert!(output.stdout.is_empty(), "{line}: nothing was done: {}", String::from_utf8_lossy(&output.stdout));
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What could not begin, with a part of what is said of it.
const UNUSABLE: &[(&str, &str)] = &[
    // Models and files that are not there.
    ("run no-such-model --prompt x", "'no-such-model'"),
    ("embed no-such-model x", "'no-such-model'"),
    ("classify no-such-model images/grey.png", "'no-such-model'"),
    ("bench decode --model no-such-model", "'no-such-model'"),
    ("bench forward --model no-such-model", "'no-such-model'"),
    ("run DIR/empty --prompt x", "empty"),
    ("embed DIR/empty x", "empty"),
    ("classify DIR/empty images/grey.png", "empty"),
    ("bench decode --model DIR/empty", "empty"),
    ("classify tiny-vit no.png", "no.png"),
    ("explain no.kiln", "no.kiln"),
    ("explain", "<FILE>"),
    ("explain no.kiln --device tpu", "'tpu'"),
    ("explain no.kiln --model stories260K", "cannot be used with"),
    ("explain no.kiln --layers 2", "cannot be used with"),
    ("explain --model no-such-model", "'no-such-model'"),
    ("explain --model stories260K --mode eager", "eager mode has no program"),
    ("explain --model stories260K --prompt 0", "from 1 on"),
    ("explain --model stories260K --prompt 9999", "9999"),
    ("cache import no-archive", "no-archive"),
    ("cache why 0123456789", "0123456789"),
    ("cache ls --dir DIR/archive", "archive"),
    // Files that cannot be written are told before anything is measured.
    ("explain ../../../../docs/softmax.kiln --html DIR/no/page.html", "page.html"),
    ("demo --svg DIR/no/picture.svg", "picture.svg"),
    ("bench ops --json DIR/no/lines.jsonl", "lines.jsonl"),
    ("bench decode --html DIR/no/page.html", "page.html"),
    ("bench calls --json DIR/one --html DIR/one", "same file"),
    ("bench blocks --html DIR/page.html", "no page"),
    ("cache export DIR/no/archive", "archive"),
    // Devices, dtypes, groups, peers.
    ("run stories260K --prompt x --device cuda:99", "cannot be used"),
    ("embed tiny-bert x --device tpu", "'tpu'"),
    ("classify tiny-vit images/grey.png --dtype i8", "'i8'"),
    ("selftest --device tpu", "'tpu'"),
    ("bench ops --device tpu", "'tpu'"),
    ("bench ops --device cuda", "measures the CPU and not cuda:0"),
    ("bench forward --device cuda", "forward --model"),
    ("bench decode --device tpu", "'tpu'"),
    ("selftest --group nonsense", "'nonsense'"),
    ("bench decode --modes fast", "'fast'"),
    ("bench decode --prompt 9999", "9999"),
    ("bench ops --peer torch", "no-such-python"),
    ("bench calls --peer torch", "no-such-python"),
    ("bench decode --peer torch", "no-such-python"),
    ("bench suite", "no-such-python"),
    // Options: what is not in range is said, and no advice to escape it.
    ("run stories260K --prompt x --max-tokens -1", "'-1' for '--max-tokens <N>': it takes a whole number from 1 on"),
    ("run stories260K --prompt x -n 0", "'0' for '--max-tokens <N>': it takes a whole number from 1 on"),
    ("run stories260K --prompt x --context 0", "from 1 on"),
    ("run stories260K --prompt x --layers 0", "from 1 on"),
    ("run stories260K --prompt x --temperature -1", "from 0 on"),
    ("run stories260K --prompt x --top-k -1", "'-1' for '--top-k <K>'"),
    ("run stories260K --prompt x --top-p -1", "top_p"),
    ("run stories260K --prompt x --seed -1", "'-1' for '--seed <S>'"),
    ("run stories260K --prompt-ids 1,2,9999", "9999"),
    ("run stories260K --chat --prompt x", "chat template"),
    ("demo --tokens 0", "from 2 on"),
    ("demo --tokens 100000", "tokens of the model's context"),
    ("demo --temperature -1", "from 0 on"),
    ("demo --kernel --json", "cannot be used with"),
    ("embed tiny-bert x --batch 0", "from 1 on"),
    ("embed tiny-bert x --max-length 0", "from 1 on"),
    ("embed tiny-bert x --max-length 1", "cannot be cut to 1 tokens"),
    ("classify tiny-vit images/grey.png --top 0", "from 1 on"),
    ("classify tiny-vit images/grey.png --batch -3", "from 1 on"),
    ("bench ops --threads 0", "from 1 to 256"),
    ("bench ops --threads 1,0", "from 1 to 256"),
    ("bench ops --repeats 0", "from 1 on"),
    ("bench ops --turns 0", "from 1 on"),
    ("bench ops --seconds 0", "above 0"),
    ("bench ops --limit nan", "above 0"),
    ("bench decode --batch 0", "from 1 on"),
    ("bench decode --tokens 0", "from 3 on"),
    ("bench decode --prompt 0", "from 1 on"),
    ("bench decode --layers 0", "from 1 on"),
    ("bench decode --layers 6", "6 layers were requested, and the model has 5"),
    ("bench decode --model smollm2-135m --layers 31", "31 layers were requested, and the model has 30"),
    ("bench forward --model ../../models/stories260K --layers 9", "9 layers were requested, and the model has 5"),
    ("run stories15m --layers 7 --prompt-ids 1,2", "7 layers were requested, and the model has 6"),
    ("run ../../models/stories260K --layers 6 --prompt x", "6 layers were requested, and the model has 5"),
    ("run DIR/model.gguf --weights int8 --prompt x", "used as they are stored, not as int8"),
    ("explain --model DIR/model.gguf --weights q4_k_m", "used as they are stored, not as q4_k_m"),
    ("bench decode --model DIR/model.gguf --weights q8_0", "used as they are stored, not as q8_0"),
    ("bench decode --weights int8 --peer torch", "peers read weights as they are stored"),
    ("run stories260K --weights q3_k --prompt x", "as-stored, int8, q8_0 and q4_k_m"),
    ("explain ../../../../docs/softmax.kiln --weights int8", "--weights"),
    ("bench report --lines DIR/no", "no"),
    ("bench suite --minutes -5", "above 0"),
    ("explain ../../../../docs/softmax.kiln --size m=4", "the sizes of this graph are n"),
    ("explain ../../../../docs/softmax.kiln --size n=0", "from 1 on"),
    ("explain ../../../../docs/softmax.kiln --size n=1000000000", "GB"),
    ("fuzz graphs --count -1", "'-1' for '--count"),
    ("fuzz graphs --count 0", "'0' for '--count"),
    ("fuzz graphs --nodes 0", "from 1 on"),
    ("fuzz text --seconds 0", "'0' for '--seconds"),
    ("cache prune --max-bytes -1", "'-1' for '--max-bytes"),
    ("completions tcsh", "tcsh"),
    ("nonsense", "nonsense"),
];

/// What failed: files that are there and damaged.
const FAILED: &[(&str, &str)] = &[
    ("run DIR/model --prompt x", "config.json"),
    ("embed DIR/model x", "config.json"),
    ("classify DIR/model images/grey.png", "config.json"),
    ("run DIR/model.gguf --prompt x", "model.gguf"),
    ("bench decode --model DIR/model", ""),
    ("bench decode --model DIR/model.gguf", "model.gguf"),
    ("classify tiny-vit DIR/picture.png", "neither a PNG nor a JPEG"),
    ("explain DIR/graph.kiln", "graph.kiln"),
    ("cache import DIR/archive", "archive"),
];

#[test]
fn the_same_kind_of_error_has_the_same_code_everywhere() {
    let folder = Damaged::new("tables");
    for (table, expected) in [(UNUSABLE, 2), (FAILED, 1)] {
        for (line, words) in table {
            let (code, errors) = kiln(line, &folder, &[]);
            assert_eq!(code, Some(expected), "{line}: {errors}");
            assert!(errors.contains("error:") && errors.contains(words), "{line}: {errors}");
            assert!(!errors.contains("panicked") && !errors.contains("tip: to pass"), "{line}: {errors}");
        }
    }
}

#[test]
fn variables_that_are_not_understood_stop_every_command() {
    let folder = Damaged::new("variables");
    for (name, value, allowed) in [
        ("KILN_THREADS", "abc", "1 to 256"),
        ("KILN_THREADS", "0", "1 to 256"),
        ("KILN_CPU_ISA", "foo", "portable, avx2, avx512, avx512-bf16 or amx"),
        ("KILN_LOG", "breaks,nonsense", "recompiles"),
        ("KILN_CACHE", "maybe", "on or off"),
        ("KILN_CACHE_MAX_BYTES", "1GB", "a whole number of bytes"),
        ("KILN_BACKEND", "gpu", "reference"),
    ] {
        for line in ["doctor", "run --list", "cache ls"] {
            let (code, errors) = kiln(line, &folder, &[(name, value)]);
            assert_eq!(code, Some(2), "{name}={value} {line}: {errors}");
            let said = format!("{name}={value} is not understood");
            assert!(errors.contains(&said) && errors.contains(allowed), "{errors}");
        }
    }
}

#[test]
fn a_name_that_is_nearly_a_variable_is_told() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(["run", "--list"]).env("KILN_CACHE", "off").env("KILN_THREADS_", "1").env("KILN_OTHER", "x");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains("nothing reads KILN_THREADS_; is it meant to be KILN_THREADS?"), "{errors}");
    assert!(!errors.contains("KILN_OTHER"), "{errors}");
}
