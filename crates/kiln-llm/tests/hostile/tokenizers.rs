//! `tokenizer.json` describes steps that are foreign too: how long texts get and how long a step takes is bounded.

use super::soon;
use kiln_llm::{Error, Tokenizer, TokenizerError};
use serde_json::{Value, json};

/// A tokenizer of single letters with these parts.
fn file(parts: &[(&str, Value)]) -> Value {
    let letters = "abcdefghijklmnopqrstuvwxyz <>_-.é▁Ġ";
    let vocabulary: serde_json::Map<String, Value> =
        letters.chars().enumerate().map(|(id, letter)| (letter.to_string(), json!(id))).collect();
    let mut file = json!({
        "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "unk_token": "a", "vocab": vocabulary, "merges": []},
    });
    for (name, value) in parts {
        file[*name] = value.clone();
    }
    file
}

/// Encodes a text and decodes it again.
fn both_ways(file: &Value, text: &str) -> Result<String, Error> {
    let (file, words) = (file.to_string(), text.to_owned());
    soon(&file.clone(), move || {
        let tokenizer = Tokenizer::parse(file.as_bytes())?;
        let ids = tokenizer.encode(&words, true)?;
        let mut stream = tokenizer.stream(false);
        for &id in ids.iter().take(2000) {
            stream.push(id)?;
        }
        tokenizer.decode(&ids, false)
    })
}

fn cause(outcome: Result<String, Error>) -> TokenizerError {
    match outcome {
        Err(Error::Tokenizer(cause)) => cause,
        Err(other) => panic!("{other}"),
        Ok(text) => panic!("{} bytes of text", text.len()),
    }
}

fn sequence(list: &str, parts: Vec<Value>) -> Value {
    json!({"type": "Sequence", list: parts})
}

#[test]
fn strips_of_any_count_end() {
    let strip = json!({"type": "Strip", "content": "a", "start": 1u64 << 62, "stop": u64::MAX});
    let text = both_ways(&file(&[("decoder", sequence("decoders", vec![json!({"type": "Fuse"}), strip]))]), "aabbaa");
    assert_eq!(text.unwrap(), "bb");
}

#[test]
fn replacements_that_grow_are_errors() {
    let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let long = json!({"type": "Replace", "pattern": {"Regex": "[a-z]"}, "content": "a".repeat(1 << 20)});
    let prepend = json!({"type": "Prepend", "prepend": "a".repeat(1 << 20)});
    for (field, list) in [("normalizer", "normalizers"), ("decoder", "decoders")] {
        for steps in [vec![double.clone(); 40], vec![long.clone(); 3]] {
            let steps = if field == "decoder" { [vec![json!({"type": "Fuse"})], steps].concat() } else { steps };
            let grown = cause(both_ways(&file(&[(field, sequence(list, steps))]), &"a".repeat(100)));
            assert!(matches!(grown, TokenizerError::TooLong { .. }), "{field}: {grown}");
        }
    }
    let grown = cause(both_ways(&file(&[("normalizer", sequence("normalizers", vec![prepend; 40]))]), "a"));
    assert!(matches!(grown, TokenizerError::TooLong { part: "normalizer", .. }), "{grown}");
    // Many short pieces, each of which may not grow to the whole of what a text may.
    let added = json!([{"id": 90, "content": "<s>", "special": true}]);
    let parts = [("added_tokens", added), ("normalizer", sequence("normalizers", vec![double; 19]))];
    let grown = cause(both_ways(&file(&parts), &"a<s>".repeat(1000)));
    assert!(matches!(grown, TokenizerError::TooLong { .. }), "{grown}");
    // Letters of bytes of letters.
    let letters = json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false});
    let grown = cause(both_ways(&file(&[("pre_tokenizer", sequence("pretokenizers", vec![letters; 40]))]), "é"));
    assert!(matches!(grown, TokenizerError::TooLong { part: "pre_tokenizer", .. }), "{grown}");
}

#[test]
fn parts_and_tokens_without_end_are_errors() {
    let step = json!({"type": "Lowercase"});
    let many = cause(both_ways(&file(&[("normalizer", sequence("normalizers", vec![step; 100_000]))]), "a"));
    assert!(matches!(many, TokenizerError::TooMany { count: 100_000, .. }), "{many}");
    let ids: Vec<u32> = vec![1; 1000];
    let single: Vec<Value> = std::iter::repeat_n(json!({"SpecialToken": {"id": "s", "type_id": 0}}), 10_000)
        .chain([json!({"Sequence": {"id": "A", "type_id": 0}})])
        .collect();
    let frame =
        json!({"type": "TemplateProcessing", "single": single, "special_tokens": {"s": {"id": "s", "ids": ids}}});
    let many = cause(both_ways(&file(&[("post_processor", frame)]), "a"));
    assert!(matches!(many, TokenizerError::TooMany { part: "post_processor", .. }), "{many}");
    let added = json!([{"id": 90, "content": "a".repeat(1 << 20), "special": false}]);
    let long = cause(both_ways(&file(&[("added_tokens", added)]), "a"));
    assert!(matches!(long, TokenizerError::LongToken { id: 90, bytes: 1_048_576, .. }), "{long}");
    let patterns = json!({"type": "Split", "pattern": {"Regex": "(?=a)".repeat(10_000)}, "behavior": "Isolated"});
    let many = cause(both_ways(&file(&[("pre_tokenizer", patterns)]), "a"));
    assert!(matches!(many, TokenizerError::TooMany { .. }), "{many}");
}

#[test]
fn patterns_that_go_back_and_forth_end() {
    for pattern in [
        r"(?:(a+)+)(?=z)",
        r"(a|aa|aaa)*(?=z)",
        r"(?:a*)*\1?(?=b)",
        r"(?=(a+))\1*z",
        r"(?:(?!a*z)a)*(?=y)",
        r"(?<=(?:a|aa){1,20})z",
        r"(a*)*\1b",
    ] {
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"});
        // An error or tokens, but soon.
        if let Err(error) = both_ways(&file(&[("pre_tokenizer", split)]), &("a".repeat(3000) + "b")) {
            assert!(matches!(error, Error::Tokenizer(TokenizerError::Pattern { .. })), "{pattern}: {error}");
        }
    }
    for pattern in
        [r"(\p{L}{1000}){1000}", r"(((a{100}){100}){100}){100}", &"(".repeat(10_000), r"(?:(?=a)b){4000000000}"]
    {
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"});
        if let Err(error) = both_ways(&file(&[("pre_tokenizer", split)]), "a") {
            assert!(matches!(error, Error::Tokenizer(TokenizerError::Pattern { .. })), "{pattern:.60}: {error}");
        }
    }
}

/// A long text without spaces takes about as long a letter as a short one: twice the text is not four times the time.
#[test]
fn long_texts_without_spaces_take_no_squares() {
    let mut vocabulary = serde_json::Map::new();
    let mut merges = Vec::new();
    let mut token = "a".to_owned();
    vocabulary.insert(token.clone(), json!(0));
    for id in 1..11 {
        merges.push(json!([token, token]));
        token = token.repeat(2);
        vocabulary.insert(token.clone(), json!(id));
    }
    let bpe = json!({"model": {"type": "BPE", "vocab": vocabulary, "merges": merges}});
    let pieces = json!({"model": {
        "type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "", "max_input_chars_per_word": u64::MAX,
        "vocab": {"a": 0, "aa": 1, "ab": 2, ("a".repeat(4000) + "b"): 3},
    }});
    for file in [bpe, pieces] {
        let file = file.to_string();
        let ids = soon("a long text", move || {
            Tokenizer::parse(file.as_bytes()).unwrap().encode(&"a".repeat(1 << 18), false).unwrap()
        });
        assert!(ids.len() <= 1 << 18 && !ids.is_empty());
    }
    // As many added tokens as a file can have are not gone through at every letter.
    let added: Vec<Value> =
        (0..60_000).map(|id| json!({"id": id + 100, "content": format!("a{id}<"), "special": false})).collect();
    let file = file(&[("added_tokens", added.into())]);
    assert!(both_ways(&file, &"a1b".repeat(50_000)).is_ok());
}

/// The patterns that models have are within the bounds.
#[test]
fn patterns_of_models_are_read() {
    for pattern in [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[一-龥぀-ゟ゠-ヿ]+|[!-/:-~！-／：-～‘-‟　-。]+|\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+|\s+$",
        r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t)?|\s+(?!\S)|\s+",
    ] {
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"});
        let text = "the quick brown fox   jumps over  ".repeat(200) + &" ".repeat(5000) + "x";
        let outcome = both_ways(&file(&[("pre_tokenizer", split), ("decoder", json!({"type": "Fuse"}))]), &text);
        assert_eq!(outcome.unwrap(), text, "{pattern}");
    }
}
