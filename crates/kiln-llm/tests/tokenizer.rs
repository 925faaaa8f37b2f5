//! Ids and texts agree with Hugging Face's library; `reference/make_tokens.py` wrote what it gives.

use kiln_llm::Tokenizer;
use serde_json::Value;

const REFERENCE: &str = include_str!("reference/tokens.json");

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Each tokenizer of the reference, with its cases.
fn each(mut with: impl FnMut(&str, &Tokenizer, &Value)) {
    let reference: Value = serde_json::from_str(REFERENCE).unwrap();
    for entry in reference.as_array().unwrap() {
        let name = entry["name"].as_str().unwrap();
        let tokenizer = match &entry["tokenizer"] {
            Value::Null => Tokenizer::read(concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K")).unwrap(),
            file => Tokenizer::parse(file.to_string().as_bytes()).unwrap(),
        };
        let cases = entry["cases"].as_array().unwrap();
        assert!(!cases.is_empty());
        cases.iter().for_each(|case| with(name, &tokenizer, case));
    }
}

#[test]
fn the_same_ids() {
    each(|name, tokenizer, case| {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, true).unwrap(), ids(&case["ids"]), "{name}: {text:?}");
    });
}

#[test]
fn the_same_texts() {
    each(|name, tokenizer, case| {
        let ids = ids(&case["ids"]);
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), case["decoded"].as_str().unwrap(), "{name}");
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), case["with_special"].as_str().unwrap(), "{name}");
    });
}

/// The parts of a stream are the text as a whole, and none of them holds half a character.
#[test]
fn streams_are_the_whole_text() {
    each(|name, tokenizer, case| {
        let mut stream = tokenizer.stream(true);
        let mut text = String::new();
        for id in ids(&case["ids"]) {
            let part = stream.push(id).unwrap();
            assert!(!part.contains('\u{fffd}'), "{name}: {part:?}");
            text += &part;
        }
        text += &stream.finish().unwrap();
        assert_eq!(text, case["decoded"].as_str().unwrap(), "{name}");
    });
}

#[test]
fn unknown_parts_are_errors() {
    let message = |file: &str| Tokenizer::parse(file.as_bytes()).unwrap_err().to_string();
    assert_eq!(message(r#"{"model": {"type": "Unigram"}}"#), "tokenizer: model: 'Unigram' is not supported");
    let bpe = r#""model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}"#;
    let with = |part: &str| message(&format!("{{{bpe}, {part}}}"));
    assert_eq!(
        with(r#""normalizer": {"type": "Precompiled"}"#),
        "tokenizer: normalizer: 'Precompiled' is not supported"
    );
    assert_eq!(
        with(r#""pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}"#)
            .split_once(": ")
            .unwrap()
            .0,
        "tokenizer"
    );
    assert_eq!(
        message(r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}"#),
        "tokenizer: model: the merge of 'a' and 'b' is not in the vocabulary"
    );
    assert!(message("[").starts_with("tokenizer.json: not JSON: "));
}
