//! Python's methods of texts, lists and maps. Those that change a list or a map are refused, as in transformers' sandbox.

use super::Fault;
use super::machine::{Given, Machine};
use super::operators::argument;
use super::text::{self, Side};
use super::value::Value;
use super::{filters, format};

type Done<T> = Result<T, Fault>;

const OF_TEXT: [&str; 38] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "islower",
    "isnumeric",
    "isspace",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
const OF_MAP: [&str; 5] = ["get", "items", "keys", "values", "copy"];
const OF_LIST: [&str; 3] = ["count", "index", "copy"];
/// What would change a value.
const REFUSED: [&str; 12] = [
    "append",
    "extend",
    "insert",
    "pop",
    "remove",
    "clear",
    "reverse",
    "sort",
    "update",
    "setdefault",
    "popitem",
    "add",
];

/// Whether a value has this method, be it one that is refused.
pub(super) fn known(value: &Value, name: &str) -> bool {
    match value {
        Value::Text(_) => OF_TEXT.contains(&name),
        Value::Map(_) => OF_MAP.contains(&name) || REFUSED.contains(&name),
        Value::List(_) => OF_LIST.contains(&name) || REFUSED.contains(&name),
        _ => false,
    }
}

/// Calls a method that is [`known`].
pub(super) fn call(machine: &mut Machine, value: &Value, name: &str, given: Given) -> Done<Value> {
    match value {
        _ if !matches!(value, Value::Text(_)) && REFUSED.contains(&name) => {
            // A member of that name is no method.
            if let Some(function) = value.named(name, &mut machine.budget)? {
                return machine.call(&function, given);
            }
            Err(Fault::text(format!("'{name}' would change a value, which a template may not")))
        }
        Value::Text(text) => of_text(machine, text, name, &given),
        Value::Map(map) => {
            machine.budget.nodes(2 * map.members.len() + 1)?;
            match name {
                "get" => {
                    let key = argument(&given, 0, "key").ok_or_else(|| Fault::text("get takes a key"))?;
                    let found = value.member(key, &mut machine.budget)?;
                    Ok(found.or_else(|| argument(&given, 1, "default").cloned()).unwrap_or(Value::None))
                }
                "items" => filters::items(value, &mut machine.budget),
                "keys" => Value::list(map.members.iter().map(|(key, _)| key.clone()).collect(), &mut machine.budget),
                "values" => {
                    Value::list(map.members.iter().map(|(_, value)| value.clone()).collect(), &mut machine.budget)
                }
                _ => Ok(value.clone()),
            }
        }
        Value::List(list) => {
            if name == "copy" {
                return Ok(value.clone());
            }
            let wanted = given.positional.first().ok_or_else(|| Fault::text(format!("{name} takes a value")))?;
            let (mut count, mut first) = (0, None);
            for (at, item) in list.items.iter().enumerate() {
                if item.equals(wanted, &mut machine.budget)? {
                    count += 1;
                    first = first.or(Some(at as i64));
                }
            }
            match name {
                "count" => Ok(Value::Integer(count)),
                _ => first.map(Value::Integer).ok_or_else(|| Fault::text("the value is not in the list")),
            }
        }
        other => Err(Fault::text(format!("{} has no methods", other.kind()))),
    }
}

fn of_text(machine: &mut Machine, text: &str, name: &str, given: &Given) -> Done<Value> {
    let budget = &mut machine.budget;
    budget.scan(text.len())?;
    let word = |at: usize, name: &str| argument(given, at, name).and_then(Value::as_text).cloned();
    let needed = |at: usize, called: &str| {
        word(at, called).ok_or_else(|| Fault::text(format!("'{name}' of a text takes a text")))
    };
    let count = |at: usize, called: &str| match argument(given, at, called) {
        None | Some(Value::None) => Ok(None),
        Some(value) => {
            let n =
                value.as_integer().ok_or_else(|| Fault::text(format!("'{name}' of a text takes a number there")))?;
            Ok(usize::try_from(n).ok())
        }
    };
    let every = |holds: fn(char) -> bool| Ok(Value::Bool(!text.is_empty() && text.chars().all(holds)));
    // Letters may take up to three times the bytes in the other case.
    let cased = |made: fn(&str) -> String, budget: &mut super::budget::Budget| {
        budget.bytes(text.len().saturating_mul(3))?;
        Ok(Value::text(made(text)))
    };
    match name {
        "upper" => cased(str::to_uppercase, budget),
        "lower" | "casefold" => cased(str::to_lowercase, budget),
        "capitalize" => cased(text::capitalize, budget),
        "title" => cased(|text| text::title(text, false), budget),
        "swapcase" => cased(
            |text| {
                let other = |c: char| match c.is_lowercase() {
                    true => c.to_uppercase().collect::<String>(),
                    false => c.to_lowercase().collect(),
                };
                text.chars().map(other).collect()
            },
            budget,
        ),
        "strip" | "lstrip" | "rstrip" => {
            budget.bytes(text.len())?;
            let chars = word(0, "chars");
            Ok(Value::text(text::strip(text, chars.as_deref(), name != "rstrip", name != "lstrip")))
        }
        "split" | "rsplit" => {
            let separator = word(0, "sep");
            text::split(text, separator.as_deref(), count(1, "maxsplit")?, name == "rsplit", budget)
        }
        "splitlines" => text::lines(text, argument(given, 0, "keepends").is_some_and(Value::truth), budget),
        "replace" => {
            let (old, new) = (needed(0, "old")?, needed(1, "new")?);
            text::replace(text, &old, &new, count(2, "count")?, budget).map(Value::text)
        }
        "removeprefix" | "removesuffix" => {
            budget.bytes(text.len())?;
            let part = needed(0, "part")?;
            let rest = if name == "removeprefix" { text.strip_prefix(&*part) } else { text.strip_suffix(&*part) };
            Ok(Value::text(rest.unwrap_or(text)))
        }
        "partition" | "rpartition" => {
            budget.bytes(text.len())?;
            let part = needed(0, "sep")?;
            let found = if name == "partition" { text.split_once(&*part) } else { text.rsplit_once(&*part) };
            let (before, middle, after) = match found {
                Some((before, after)) => (before, &*part, after),
                None if name == "partition" => (text, "", ""),
                None => ("", "", text),
            };
            Value::tuple([before, middle, after].map(Value::text).into(), budget)
        }
        "startswith" | "endswith" => affix(text, name == "startswith", given),
        "find" | "index" | "rfind" => {
            let part = needed(0, "sub")?;
            let at = if name == "rfind" { text.rfind(&*part) } else { text.find(&*part) };
            match at {
                Some(at) => Ok(Value::Integer(text[..at].chars().count() as i64)),
                None if name == "index" => Err(Fault::text("the part is not in the text")),
                None => Ok(Value::Integer(-1)),
            }
        }
        "count" => {
            let part = needed(0, "sub")?;
            let count = if part.is_empty() { text.chars().count() + 1 } else { text.matches(&*part).count() };
            Ok(Value::Integer(count as i64))
        }
        "join" => {
            let items = argument(given, 0, "iterable").ok_or_else(|| Fault::text("join takes a list"))?;
            filters::join(items, text, true, budget)
        }
        "format" => format::braces(text, given, budget).map(Value::text),
        "ljust" | "rjust" | "center" => {
            let fill = word(1, "fillchar").and_then(|fill| fill.chars().next()).unwrap_or(' ');
            let side = match name {
                "ljust" => Side::Right,
                "rjust" => Side::Left,
                _ => Side::Centre,
            };
            text::pad(text, text::width(argument(given, 0, "width"), 0)?, fill, side, budget).map(Value::text)
        }
        "zfill" => {
            let width = text::width(argument(given, 0, "width"), 0)?;
            let sign = usize::from(text.starts_with(['+', '-']));
            let digits = text::pad(&text[sign..], width.saturating_sub(sign), '0', Side::Left, budget)?;
            Ok(Value::text(format!("{}{digits}", &text[..sign])))
        }
        "isalnum" => every(char::is_alphanumeric),
        "isalpha" => every(char::is_alphabetic),
        "isspace" => every(char::is_whitespace),
        "isdigit" | "isnumeric" | "isdecimal" => every(char::is_numeric),
        "isascii" => Ok(Value::Bool(text.is_ascii())),
        _ => {
            let (wanted, other) = match name {
                "islower" => (text.chars().any(char::is_lowercase), text.chars().any(char::is_uppercase)),
                _ => (text.chars().any(char::is_uppercase), text.chars().any(char::is_lowercase)),
            };
            Ok(Value::Bool(wanted && !other))
        }
    }
}

/// `startswith` and `endswith`, of a text or one of several.
fn affix(text: &str, start: bool, given: &Given) -> Done<Value> {
    let one = |part: &Value| {
        let part = part.as_text().ok_or_else(|| Fault::text("startswith and endswith take texts"))?;
        Ok(if start { text.starts_with(&**part) } else { text.ends_with(&**part) })
    };
    match given.positional.first() {
        Some(Value::List(list)) => {
            for part in &list.items {
                if one(part)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }
        Some(part) => one(part).map(Value::Bool),
        None => Err(Fault::text("startswith and endswith take a text")),
    }
}
