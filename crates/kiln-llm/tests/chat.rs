//! Conversations become the texts that transformers makes of them: `reference/make_chats.py` wrote what it gives.

use kiln_llm::ChatTemplate;
use serde_json::{Map, Value};

#[test]
fn texts_are_those_of_transformers() {
    let whole: Value = serde_json::from_slice(include_bytes!("reference/chats.json")).unwrap();
    let tokens = [("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())];
    let mut wrong = Vec::new();
    for case in whole["cases"].as_array().unwrap() {
        let text = |name: &str| case[name].as_str().unwrap();
        let template = whole["templates"][text("template")].as_str().unwrap();
        let template = ChatTemplate::new(template, &tokens).unwrap();
        let mut more: Map<String, Value> = case["more"].as_object().unwrap().clone();
        if case["tools"] == true {
            more.insert("tools".into(), whole["tools"].clone());
        }
        let got = template.render_json(&whole["talks"][text("talk")], case["answer"] == true, &more);
        let same = match (&got, case["text"].as_str()) {
            (Ok(got), Some(expected)) => got == expected,
            (Err(_), None) => true,
            _ => false,
        };
        if !same {
            wrong.push(format!("{case:#}\ngave\n{got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n\n"));
}
