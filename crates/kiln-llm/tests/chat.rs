//! Conversations become the texts that transformers makes of them: `reference/make_chats.py` wrote what it gives, and
//! `reference/make_expressions.py` what Jinja2 makes of filters, tests, methods, operators and statements.

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

#[test]
fn expressions_are_those_of_jinja() {
    let whole: Value = serde_json::from_slice(include_bytes!("reference/expressions.json")).unwrap();
    let more = whole["more"].as_object().unwrap();
    let mut wrong = Vec::new();
    for case in whole["texts"].as_array().unwrap() {
        let source = case["source"].as_str().unwrap();
        let template = ChatTemplate::new(source, &[]);
        let got = template.and_then(|template| template.render_json(&whole["messages"], true, more));
        match (&got, case["text"].as_str()) {
            (Ok(got), Some(expected)) if got == expected => {}
            (Err(_), None) => {}
            (got, expected) => wrong.push(format!("{source}\n  gave  {got:?}\n  right {expected:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n\n"));
}
