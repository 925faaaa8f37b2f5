//! Members of `tokenizer.json`, with errors that name the part they are in.

use super::TokenizerError;
use super::bounds::{MOST_PARTS, few};
use serde_json::Value;

/// The parts of a sequence, or the one part itself; none for `null`.
pub(super) fn parts<'a>(value: Option<&'a Value>, list: &'static str, part: &'static str) -> Result<Vec<&'a Value>> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Vec::new()) };
    if kind(value, part)? != "Sequence" {
        return Ok(vec![value]);
    }
    let items = value.get(list).and_then(Value::as_array);
    let items = items.ok_or(TokenizerError::Malformed { part, field: list })?;
    let mut all = Vec::new();
    for item in items {
        // A sequence within a sequence is possible; one level more than any file has is refused by the parser of its kind.
        match kind(item, part)? {
            "Sequence" => {
                let inner = item.get(list).and_then(Value::as_array);
                all.extend(inner.ok_or(TokenizerError::Malformed { part, field: list })?);
            }
            _ => all.push(item),
        }
    }
    few(part, all.len(), MOST_PARTS)?;
    Ok(all)
}

type Result<T> = std::result::Result<T, TokenizerError>;

/// The `type` of a part.
pub(super) fn kind<'a>(value: &'a Value, part: &'static str) -> Result<&'a str> {
    text(value, part, "type")
}

/// A text that has to be there.
pub(super) fn text<'a>(value: &'a Value, part: &'static str, field: &'static str) -> Result<&'a str> {
    value.get(field).and_then(Value::as_str).ok_or(TokenizerError::Malformed { part, field })
}

/// A flag with a default.
pub(super) fn flag(value: &Value, part: &'static str, field: &'static str, default: bool) -> Result<bool> {
    match value.get(field) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(TokenizerError::Malformed { part, field }),
    }
}

/// A count with a default.
pub(super) fn count(value: &Value, part: &'static str, field: &'static str, default: usize) -> Result<usize> {
    match value.get(field) {
        None | Some(Value::Null) => Ok(default),
        Some(n) => n.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or(TokenizerError::Malformed { part, field }),
    }
}

/// A token id.
pub(super) fn id(value: &Value, part: &'static str, field: &'static str) -> Result<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or(TokenizerError::Malformed { part, field })
}
