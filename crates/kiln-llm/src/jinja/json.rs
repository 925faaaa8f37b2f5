//! JSON as Python's `json.dumps` writes it, with its options.

use super::Fault;
use super::budget::Budget;
use super::machine::Given;
use super::operators::argument;
use super::value::{Value, float};
use serde_json::Value as Json;

struct Dump<'a> {
    indent: Option<usize>,
    ascii: bool,
    sorted: bool,
    comma: String,
    colon: String,
    budget: &'a mut Budget,
}

/// JSON as transformers writes it: a space after commas and colons, or lines with an indent; letters as they are.
pub(super) fn dumps(value: &Value, given: &Given, budget: &mut Budget) -> Result<String, Fault> {
    let known = ["ensure_ascii", "indent", "separators", "sort_keys"];
    if let Some((unknown, _)) = given.named.iter().find(|(name, _)| !known.contains(&&**name)) {
        return Err(Fault::text(format!("tojson has no option '{unknown}'")));
    }
    let flag = |at: usize| argument(given, at, known[at]).is_some_and(Value::truth);
    let indent = match argument(given, 1, "indent") {
        None | Some(Value::None | Value::Undefined) => None,
        Some(width) => {
            let width = width.as_integer().ok_or_else(|| Fault::text("tojson: an indent that is no number"))?;
            Some(usize::try_from(width.max(0)).unwrap_or(usize::MAX))
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    let (comma, colon) = match argument(given, 2, "separators") {
        Some(Value::List(pair)) if pair.items.len() == 2 => {
            let text = |at: usize| pair.items[at].as_text().map(|text| text.to_string());
            text(0).zip(text(1)).ok_or_else(|| Fault::text("tojson: separators that are no texts"))?
        }
        _ => (comma.into(), ": ".into()),
    };
    let mut out = String::new();
    Dump { indent, ascii: flag(0), sorted: flag(3), comma, colon, budget }.write(value, 0, &mut out)?;
    Ok(out)
}

impl Dump<'_> {
    fn push(&mut self, text: &str, out: &mut String) -> Result<(), Fault> {
        self.budget.bytes(text.len())?;
        out.push_str(text);
        Ok(())
    }

    fn line(&mut self, depth: usize, out: &mut String) -> Result<(), Fault> {
        if let Some(indent) = self.indent {
            let width = indent.saturating_mul(depth);
            self.budget.bytes(width.saturating_add(1))?;
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', width));
        }
        Ok(())
    }

    fn text(&mut self, text: &str, out: &mut String) -> Result<(), Fault> {
        // A character becomes six bytes at the most, two halves of one twelve.
        self.budget.bytes(text.len().saturating_mul(6))?;
        let written = Json::from(text).to_string();
        // Python writes DEL as it is and the others as serde does.
        if !self.ascii {
            out.push_str(&written);
            return Ok(());
        }
        for c in written.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                out.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
            }
        }
        Ok(())
    }

    fn write(&mut self, value: &Value, depth: usize, out: &mut String) -> Result<(), Fault> {
        self.budget.step()?;
        match value {
            Value::None => self.push("null", out),
            Value::Bool(flag) => self.push(if *flag { "true" } else { "false" }, out),
            Value::Integer(n) => self.push(&n.to_string(), out),
            Value::Float(x) if x.is_nan() => self.push("NaN", out),
            Value::Float(x) if x.is_infinite() => self.push(if *x > 0.0 { "Infinity" } else { "-Infinity" }, out),
            Value::Float(x) => self.push(&float(*x), out),
            Value::Text(text) => self.text(text, out),
            Value::List(list) => {
                self.push("[", out)?;
                for (at, item) in list.items.iter().enumerate() {
                    self.separate(at, depth, out)?;
                    self.write(item, depth + 1, out)?;
                }
                self.close(list.items.is_empty(), "]", depth, out)
            }
            Value::Map(map) => {
                let mut members = map.members.clone();
                self.budget.nodes(2 * members.len())?;
                if self.sorted {
                    let keyed = map.members.iter().map(|member| (member.0.clone(), member.0.clone())).collect();
                    let keys = super::sequences::sorted(keyed, false, self.budget)?;
                    members.clear();
                    for key in keys {
                        let member = value.member(&key, self.budget)?.unwrap_or(Value::None);
                        members.push((key, member));
                    }
                }
                self.push("{", out)?;
                for (at, (key, member)) in members.iter().enumerate() {
                    self.separate(at, depth, out)?;
                    self.key(key, out)?;
                    let colon = self.colon.clone();
                    self.push(&colon, out)?;
                    self.write(member, depth + 1, out)?;
                }
                self.close(members.is_empty(), "}", depth, out)
            }
            other => Err(Fault::text(format!("{} cannot be written as JSON", other.kind()))),
        }
    }

    fn separate(&mut self, at: usize, depth: usize, out: &mut String) -> Result<(), Fault> {
        if at > 0 {
            let comma = self.comma.clone();
            self.push(&comma, out)?;
        }
        self.line(depth + 1, out)
    }

    fn close(&mut self, empty: bool, bracket: &str, depth: usize, out: &mut String) -> Result<(), Fault> {
        if !empty {
            self.line(depth, out)?;
        }
        self.push(bracket, out)
    }

    fn key(&mut self, key: &Value, out: &mut String) -> Result<(), Fault> {
        match key {
            Value::Text(text) => self.text(text, out),
            Value::None => self.push("\"null\"", out),
            Value::Bool(flag) => self.push(if *flag { "\"true\"" } else { "\"false\"" }, out),
            Value::Integer(_) | Value::Float(_) => {
                let mut text = String::new();
                key.represent(&mut text);
                self.text(&text, out)
            }
            other => Err(Fault::text(format!("{} is no name in JSON", other.kind()))),
        }
    }
}
