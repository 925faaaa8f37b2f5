//! Texts: what filters and Python's methods do with them, each paid for before it is made.

use super::Fault;
use super::budget::Budget;
use super::value::Value;

type Done<T> = Result<T, Fault>;

/// `text.replace(old, new, count)`; all of them without a count.
pub(super) fn replace(text: &str, old: &str, new: &str, count: Option<usize>, budget: &mut Budget) -> Done<String> {
    budget.scan(text.len())?;
    let most = count.unwrap_or(usize::MAX);
    // An empty text is before every character and at the end.
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() }.min(most);
    budget.bytes(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, found))
}

/// Where a text is padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
    /// More on the right if it does not come out even, as formats do it.
    Both,
    /// As Python's `str.center` does it: on which side there is more depends on the width.
    Centre,
}

/// A text of at least so many characters.
pub(super) fn pad(text: &str, width: usize, fill: char, side: Side, budget: &mut Budget) -> Done<String> {
    budget.scan(text.len())?;
    let missing = width.saturating_sub(text.chars().count());
    budget.bytes(text.len().saturating_add(missing.saturating_mul(fill.len_utf8())))?;
    let before = match side {
        Side::Left => missing,
        Side::Right => 0,
        Side::Both => missing / 2,
        Side::Centre => missing / 2 + (missing & width & 1),
    };
    let mut out = String::with_capacity(text.len() + missing * fill.len_utf8());
    out.extend(std::iter::repeat_n(fill, before));
    out.push_str(text);
    out.extend(std::iter::repeat_n(fill, missing - before));
    Ok(out)
}

/// A number of characters, as a template gives it.
pub(super) fn width(value: Option<&Value>, default: usize) -> Done<usize> {
    match value {
        None => Ok(default),
        Some(value) => {
            let width = value.as_integer().ok_or_else(|| Fault::text(format!("a width that is {}", value.kind())))?;
            Ok(usize::try_from(width.max(0)).unwrap_or(usize::MAX))
        }
    }
}

/// `text.split(separator, most)`, from the right if asked.
pub(super) fn split(
    text: &str,
    separator: Option<&str>,
    most: Option<usize>,
    from_right: bool,
    budget: &mut Budget,
) -> Done<Value> {
    budget.bytes(text.len())?;
    let parts = most.unwrap_or(usize::MAX - 1).saturating_add(1);
    let mut items: Vec<&str> = match (separator, from_right) {
        (Some(""), _) => return Err(Fault::text("a split at an empty text")),
        (Some(separator), false) => text.splitn(parts, separator).collect(),
        (Some(separator), true) => text.rsplitn(parts, separator).collect(),
        (None, right) => words(text, parts, right),
    };
    if from_right {
        items.reverse();
    }
    budget.nodes(items.len())?;
    Value::list(items.into_iter().map(Value::text).collect(), budget)
}

/// Words between white space; the last of `parts` has all the rest.
fn words(text: &str, parts: usize, from_right: bool) -> Vec<&str> {
    let mut items = Vec::new();
    let mut rest = if from_right { text.trim_end() } else { text.trim_start() };
    while !rest.is_empty() {
        if items.len() + 1 == parts {
            items.push(rest);
            break;
        }
        let cut = if from_right { rest.rfind(char::is_whitespace) } else { rest.find(char::is_whitespace) };
        let Some(cut) = cut else {
            items.push(rest);
            break;
        };
        let (before, after) = rest.split_at(cut);
        if from_right {
            items.push(after.trim_start());
            rest = before.trim_end();
        } else {
            items.push(before);
            rest = after.trim_start();
        }
    }
    items.retain(|item| !item.is_empty());
    items
}

/// `text.splitlines(keep)`.
pub(super) fn lines(text: &str, keep: bool, budget: &mut Budget) -> Done<Value> {
    budget.bytes(text.len())?;
    let mut items = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end =
            rest.find(['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}']);
        let Some(end) = end else {
            items.push(Value::text(rest));
            break;
        };
        let mark =
            if rest[end..].starts_with("\r\n") { 2 } else { rest[end..].chars().next().map_or(1, char::len_utf8) };
        items.push(Value::text(&rest[..if keep { end + mark } else { end }]));
        rest = &rest[end + mark..];
    }
    budget.nodes(items.len())?;
    Value::list(items, budget)
}

/// Without white space, or these characters, at its ends.
pub(super) fn strip<'a>(text: &'a str, chars: Option<&str>, left: bool, right: bool) -> &'a str {
    let is_in = |c: char| match chars {
        Some(chars) => chars.contains(c),
        None => c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c),
    };
    let text = if left { text.trim_start_matches(is_in) } else { text };
    if right { text.trim_end_matches(is_in) } else { text }
}

/// The first letter large, the others small.
pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &chars.as_str().to_lowercase()
}

/// The first letter of every word large, the others small. Words are runs of letters, as for Python's `str.title`, or with
/// `spaced` what Jinja's filter takes for them: what is between white space and opening brackets and hyphens.
pub(super) fn title(text: &str, spaced: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        inside = match spaced {
            true => !(c.is_whitespace() || matches!(c, '-' | '(' | '{' | '[' | '<')),
            false => c.is_alphabetic(),
        };
    }
    out
}

/// `indent(width, first, blank)`; the margin is a number of spaces or a text.
pub(super) fn indent(text: &str, margin: &str, first: bool, blank: bool, budget: &mut Budget) -> Done<String> {
    budget.scan(text.len())?;
    let count = text.matches('\n').count() + 1;
    budget.bytes(text.len().saturating_add(count.saturating_mul(margin.len())))?;
    let mut out = String::with_capacity(text.len() + count * margin.len());
    // A line end at the end of a text begins no line, but for the filter, which adds one.
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        if if number == 0 { first } else { blank || !line.trim().is_empty() } {
            out.push_str(margin);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `truncate(length, killwords, end, leeway)`.
pub(super) fn truncate(text: &str, length: usize, cuts_words: bool, end: &str, leeway: usize) -> String {
    let count = text.chars().count();
    if count <= length.saturating_add(leeway) {
        return text.to_owned();
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = match kept.rsplit_once(' ') {
        Some((before, _)) if !cuts_words => before.to_owned(),
        _ => kept,
    };
    kept + end
}

/// Bytes other than letters, digits and `_.-~/` as `%XX`.
pub(super) fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
