//! `kiln embed`, `kiln classify` and `kiln selftest` as people and scripts use them.

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../kiln-llm/tests/reference");

fn kiln(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command.args(arguments).current_dir(REFERENCE).env("KILN_CACHE", "off").env_remove("CLICOLOR_FORCE");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// The object on the last line of standard output.
fn json(arguments: &[&str], input: &str) -> Value {
    let (code, out, err) = kiln(arguments, input);
    assert_eq!(code, Some(0), "{arguments:?}: {err}");
    serde_json::from_str(out.lines().last().unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn expected(folder: &str) -> Value {
    serde_json::from_slice(&std::fs::read(format!("{REFERENCE}/{folder}/expected.json")).unwrap()).unwrap()
}

fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
}

#[test]
fn embed_gives_the_vectors_of_its_texts() {
    let cases = expected("tiny-bert");
    let texts: Vec<&str> = cases.as_array().unwrap().iter().filter_map(|case| case["text"].as_str()).take(3).collect();
    for mode in ["eager", "default", "max-autotune"] {
        let given = [&["embed", "tiny-bert", "--json", "--similarity", "--mode", mode][..], &texts].concat();
        let answer = json(&given, "");
        assert_eq!((answer["mode"].as_str(), answer["model"].as_str()), (Some(mode), Some("tiny-bert")));
        for (number, text) in texts.iter().enumerate() {
            let item = &answer["texts"][number];
            assert_eq!(item["text"].as_str(), Some(*text));
            assert_eq!(item["tokens"].as_u64().unwrap() as usize, cases[number]["ids"].as_array().unwrap().len());
            assert!(apart(&numbers(&item["embedding"]), &numbers(&cases[number]["normalized"])) < 1e-5);
        }
        let near = numbers(&answer["similarity"][0]);
        assert!((near[0] - 1.0).abs() < 1e-5 && near[1] < 1.0 && near.len() == 3);
    }
    let lines = json(&["embed", "tiny-bert", "--json", "--no-normalize"], &format!("{}\n\n{}\n", texts[0], texts[1]));
    assert_eq!(lines["texts"].as_array().unwrap().len(), 2);
    assert!(apart(&numbers(&lines["texts"][1]["embedding"]), &numbers(&cases[1]["mean"])) < 1e-5);
    let pooled = json(&["embed", "tiny-bert", "--json", "--no-normalize", "--pooling", "max", texts[0]], "");
    assert!(apart(&numbers(&pooled["texts"][0]["embedding"]), &numbers(&cases[0]["max"])) < 1e-5);
    let (code, out, err) = kiln(&["embed", "tiny-bert", "--similarity", texts[0], texts[1]], "");
    assert_eq!(code, Some(0));
    assert!(out.contains("1.000") && out.contains(texts[1]) && err.contains("2 texts · 16 numbers each"), "{out}{err}");
}

#[test]
fn classify_names_the_likeliest_first() {
    for folder in ["tiny-vit", "tiny-deit"] {
        let answer = json(&["classify", folder, "images/rgb.png", "images/colour.jpg", "--top", "5", "--json"], "");
        let mut classes = answer["images"][0]["classes"].as_array().unwrap().clone();
        assert!(classes.is_sorted_by_key(|class| -class["probability"].as_f64().unwrap()));
        classes.sort_by_key(|class| class["index"].as_u64());
        let got: Vec<f64> = classes.iter().map(|class| class["probability"].as_f64().unwrap()).collect();
        assert!(apart(&got, &numbers(&expected(folder)["probabilities"])) < 1e-5);
        assert_eq!(answer["images"][1]["image"].as_str(), Some("images/colour.jpg"));
    }
    let (_, out, err) = kiln(&["classify", "tiny-vit", "images/grey.png", "--top", "2"], "");
    assert_eq!(out.lines().count(), 3, "{out}");
    assert!(out.contains(" %  ") && err.contains("1 picture"), "{out}{err}");
}

#[test]
fn what_cannot_begin_ends_with_two() {
    let cases: [(&[&str], &str); 10] = [
        (&["embed", "no-folder", "x"], "'no-folder' is no folder"),
        (&["embed", "tiny-bert", "x", "--pooling", "sum"], "no way to pool 'sum'"),
        (&["embed", "tiny-bert", "x", "--device", "cuda:99"], "cannot be used"),
        (&["embed", "tiny-bert", "x", "--dtype", "i8"], "'i8'"),
        (&["embed", "tiny-bert", "x", "--max-length", "1"], "cannot be cut to 1 tokens"),
        (&["embed", "tiny-bert"], "no texts"),
        (&["embed", "tiny-vit", "x"], "try: kiln classify tiny-vit"),
        (&["classify", "tiny-vit", "no.png"], "no.png"),
        (&["selftest", "--device", "tpu"], "'tpu' is no device"),
        (&["selftest", "--group", "nonsense"], "no group 'nonsense'"),
    ];
    for (arguments, words) in cases {
        let (code, out, err) = kiln(arguments, "");
        assert_eq!(code, Some(2), "{arguments:?}: {err}");
        assert!(out.is_empty() && err.contains(words), "{arguments:?}: {out}{err}");
    }
    // A file that is there and damaged is another matter.
    let (code, _, err) = kiln(&["classify", "tiny-vit", "make_encoder_references.py"], "");
    assert_eq!(code, Some(1));
    assert!(err.contains("neither a PNG nor a JPEG"), "{err}");
}

#[test]
fn selftest_passes_here_and_can_fail() {
    let answer = json(&["selftest", "--quick", "--group", "random", "--group", "capture", "--json"], "");
    assert_eq!(answer["passed"].as_bool(), Some(true));
    let names: Vec<&str> = answer["groups"].as_array().unwrap().iter().filter_map(|g| g["group"].as_str()).collect();
    assert_eq!(names, ["random", "capture"]);
    assert!(answer["groups"].as_array().unwrap().iter().all(|group| group["checks"].as_u64() > Some(5)));
    let (code, out, err) = kiln(&["selftest", "--quick", "--group", "random", "--fault", "random"], "");
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("FAIL  random") && err.contains("random of 1 groups"), "{out}{err}");
}

/// A picture that cannot be read has an error in its place; the others are classified all the same.
#[test]
fn one_bad_picture_does_not_stop_the_others() {
    let folder = std::env::temp_dir().join(format!("kiln-bad-pictures-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (bad, gone) = (folder.join("bad.png"), folder.join("gone.jpg"));
    std::fs::write(&bad, b"\x89PNG\r\n\x1a\nnothing").unwrap();
    let (bad, gone) = (bad.to_str().unwrap(), gone.to_str().unwrap());
    let (model, good, jpeg) = ("tiny-vit", "images/rgb.png", "images/colour.jpg");
    let (code, out, err) = kiln(&["classify", model, good, bad, gone, jpeg, "--json"], "");
    assert_eq!(code, Some(1), "{err}");
    let told: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
    let items = told["images"].as_array().unwrap();
    assert_eq!(items.len(), 4);
    for (item, (path, is_good)) in items.iter().zip([(good, true), (bad, false), (gone, false), (jpeg, true)]) {
        assert_eq!((&item["image"], item["classes"].is_array()), (&path.into(), is_good), "{item}");
        assert_eq!(item["error"].is_string(), !is_good, "{item}");
    }
    assert!(err.contains("bad.png") && err.contains("gone.jpg") && err.contains("2 of 4 pictures"), "{err}");
    // What cannot begin at all says so, and needs no model's time.
    let (code, out, err) = kiln(&["classify", model, gone, gone, "--json"], "");
    assert_eq!(code, Some(2), "{err}");
    assert!(out.contains("\"error\"") && err.contains("none of 2"), "{out}{err}");
    assert_eq!(kiln(&["classify", model, bad], "").0, Some(1));
    std::fs::remove_dir_all(&folder).unwrap();
}
