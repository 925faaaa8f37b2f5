//! Filters: what stands behind a bar.

use super::budget::Budget;
use super::machine::{Given, Machine};
use super::operators::{argument, arithmetic};
use super::text::{self, Side};
use super::value::Value;
use super::{Fault, format, json, predicates, sequences};
use std::sync::Arc;

type Done<T> = Result<T, Fault>;

/// Applies a filter by its name.
pub(super) fn apply(machine: &mut Machine, name: &str, value: Value, given: Given) -> Done<Value> {
    if let Some(done) = of_text(machine, name, &value, &given) {
        return done;
    }
    if let Some(done) = of_items(machine, name, &value, &given) {
        return done;
    }
    let budget = &mut machine.budget;
    match name {
        "default" | "d" => {
            let boolean = argument(&given, 1, "boolean").is_some_and(Value::truth);
            let missing = matches!(value, Value::Undefined) || boolean && !value.truth();
            let default = || argument(&given, 0, "default_value").cloned().unwrap_or_else(|| Value::text(""));
            Ok(if missing { default() } else { value })
        }
        "tojson" => json::dumps(&value, &given, budget).map(Value::text),
        "safe" => Ok(value),
        "length" | "count" => length(&value, budget),
        "abs" => match &value {
            Value::Float(x) => Ok(Value::Float(x.abs())),
            other => {
                let n = other.as_integer().and_then(i64::checked_abs);
                n.map(Value::Integer).ok_or_else(|| Fault::text(format!("{} has no absolute value", other.kind())))
            }
        },
        "int" => {
            let default = argument(&given, 0, "default").cloned().unwrap_or(Value::Integer(0));
            let base = argument(&given, 1, "base").and_then(Value::as_integer).unwrap_or(10);
            Ok(whole(&value, base).map_or(default, Value::Integer))
        }
        "float" => {
            let default = argument(&given, 0, "default").cloned().unwrap_or(Value::Float(0.0));
            let number = match &value {
                Value::Text(text) => text.trim().replace('_', "").parse().ok(),
                other => other.as_number(),
            };
            Ok(number.map_or(default, Value::Float))
        }
        "round" => round(&value, &given),
        "attr" => match argument(&given, 0, "name") {
            Some(Value::Text(name)) => {
                let name = name.clone();
                machine.member(&value, &name)
            }
            _ => Err(Fault::text("attr takes a name")),
        },
        unknown => Err(Fault::text(format!("there is no filter '{unknown}'"))),
    }
}

/// Filters of texts; what is none is written as one first.
fn of_text(machine: &mut Machine, name: &str, value: &Value, given: &Given) -> Option<Done<Value>> {
    let known = [
        "string",
        "upper",
        "lower",
        "capitalize",
        "title",
        "trim",
        "replace",
        "indent",
        "center",
        "truncate",
        "format",
        "escape",
        "e",
        "forceescape",
        "urlencode",
        "wordcount",
    ];
    known.contains(&name).then(|| {
        let budget = &mut machine.budget;
        let text = match value {
            Value::Text(text) => text.clone(),
            other => {
                let mut text = String::new();
                other.write(&mut text, budget)?;
                text.into()
            }
        };
        budget.scan(text.len())?;
        text_filter(name, &text, given, budget)
    })
}

fn text_filter(name: &str, text: &Arc<str>, given: &Given, budget: &mut Budget) -> Done<Value> {
    let word = |at: usize, name: &str| argument(given, at, name).and_then(Value::as_text).cloned();
    let flag = |at: usize, name: &str| argument(given, at, name).is_some_and(Value::truth);
    // In the other case letters take three times the bytes at the most, in HTML five.
    let mut made = |times: usize, make: &dyn Fn() -> String| {
        budget.bytes(text.len().saturating_mul(times))?;
        Ok(Value::text(make()))
    };
    match name {
        "string" => Ok(Value::Text(text.clone())),
        "upper" => made(3, &|| text.to_uppercase()),
        "lower" => made(3, &|| text.to_lowercase()),
        "capitalize" => made(3, &|| text::capitalize(text)),
        "title" => made(3, &|| text::title(text, true)),
        "escape" | "e" | "forceescape" => made(5, &|| kiln::escape_html(text)),
        "urlencode" => made(3, &|| text::percent_encode(text)),
        "trim" => {
            let chars = word(0, "chars");
            made(1, &|| text::strip(text, chars.as_deref(), true, true).to_owned())
        }
        "wordcount" => Ok(Value::Integer(text.split_whitespace().count() as i64)),
        "truncate" => {
            let end = word(2, "end").unwrap_or_else(|| "...".into());
            let (length, leeway) = (text::width(argument(given, 0, "length"), 255)?, argument(given, 3, "leeway"));
            let leeway = text::width(leeway, 5)?;
            budget.bytes(text.len().saturating_add(end.len()))?;
            Ok(Value::text(text::truncate(text, length, flag(1, "killwords"), &end, leeway)))
        }
        "replace" => {
            let (Some(old), Some(new)) = (word(0, "old"), word(1, "new")) else {
                return Err(Fault::text("replace takes two texts"));
            };
            let count = argument(given, 2, "count").and_then(Value::as_integer).and_then(|n| usize::try_from(n).ok());
            text::replace(text, &old, &new, count, budget).map(Value::text)
        }
        "indent" => {
            let margin = match word(0, "width") {
                Some(margin) => margin.to_string(),
                None => {
                    let width = text::width(argument(given, 0, "width"), 4)?;
                    budget.bytes(width)?;
                    " ".repeat(width)
                }
            };
            text::indent(text, &margin, flag(1, "first"), flag(2, "blank"), budget).map(Value::text)
        }
        "center" => {
            let width = text::width(argument(given, 0, "width"), 80)?;
            text::pad(text, width, ' ', Side::Centre, budget).map(Value::text)
        }
        _ => {
            let members = given.named.iter().map(|(name, value)| (Value::Text(name.clone()), value.clone())).collect();
            let named = Value::map(members, budget)?;
            format::percent(text, &given.positional, &named, budget).map(Value::text)
        }
    }
}

/// Filters of lists, and of what can be one.
fn of_items(machine: &mut Machine, name: &str, value: &Value, given: &Given) -> Option<Done<Value>> {
    let known = [
        "list",
        "first",
        "last",
        "join",
        "reverse",
        "sort",
        "unique",
        "min",
        "max",
        "sum",
        "batch",
        "slice",
        "map",
        "select",
        "reject",
        "selectattr",
        "rejectattr",
        "items",
        "dictsort",
        "groupby",
    ];
    known.contains(&name).then(|| item_filter(machine, name, value, given))
}

fn item_filter(machine: &mut Machine, name: &str, value: &Value, given: &Given) -> Done<Value> {
    let flag = |at: usize, name: &str| argument(given, at, name).is_some_and(Value::truth);
    match name {
        "join" => {
            let between = argument(given, 0, "d").cloned().unwrap_or_else(|| Value::text(""));
            let value = match argument(given, 1, "attribute") {
                Some(path) => attributes(machine, value, path, None)?,
                None => value.clone(),
            };
            let mut separator = String::new();
            between.write(&mut separator, &mut machine.budget)?;
            return join(&value, &separator, false, &mut machine.budget);
        }
        "items" => return items(value, &mut machine.budget),
        "dictsort" => return dictsort(value, given, &mut machine.budget),
        "reverse" => {
            if let Value::Text(text) = value {
                machine.budget.bytes(text.len())?;
                return Ok(Value::text(text.chars().rev().collect::<String>()));
            }
        }
        "map" | "select" | "reject" | "selectattr" | "rejectattr" if !value.truth() => {
            return Value::list(Vec::new(), &mut machine.budget);
        }
        "map" => return map(machine, value, given),
        "select" | "reject" | "selectattr" | "rejectattr" => return select(machine, name, value, given),
        _ => {}
    }
    let mut all = value.items(&mut machine.budget)?;
    match name {
        "list" => Value::list(all, &mut machine.budget),
        "first" => Ok(all.into_iter().next().unwrap_or(Value::Undefined)),
        "last" => Ok(all.pop().unwrap_or(Value::Undefined)),
        "reverse" => {
            all.reverse();
            Value::list(all, &mut machine.budget)
        }
        "batch" | "slice" => {
            let size = text::width(argument(given, 0, if name == "batch" { "linecount" } else { "slices" }), 0)?;
            let fill = argument(given, 1, "fill_with").filter(|fill| !matches!(fill, Value::None));
            match (name, size) {
                (_, 0) => Err(Fault::text(format!("{name} by 0"))),
                ("batch", _) => sequences::batches(&all, size, fill, &mut machine.budget),
                _ => sequences::slices(&all, size, fill, &mut machine.budget),
            }
        }
        "sum" => {
            let mut sum = argument(given, 1, "start").cloned().unwrap_or(Value::Integer(0));
            if let Some(path) = argument(given, 0, "attribute").filter(|path| !matches!(path, Value::None)) {
                all = attributes(machine, value, path, None)?.items(&mut machine.budget)?;
            }
            for item in &all {
                sum = arithmetic("+", &sum, item, &mut machine.budget)?;
            }
            Ok(sum)
        }
        "sort" => {
            let keys = keys(machine, &all, argument(given, 2, "attribute"), flag(1, "case_sensitive"))?;
            let pairs = keys.into_iter().zip(all).collect();
            let sorted = sequences::sorted(pairs, flag(0, "reverse"), &mut machine.budget)?;
            Value::list(sorted, &mut machine.budget)
        }
        "groupby" => groupby(machine, all, given),
        "unique" => {
            let keys = keys(machine, &all, argument(given, 1, "attribute"), flag(0, "case_sensitive"))?;
            let (mut seen, mut kept): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
            for (key, item) in keys.into_iter().zip(all) {
                if !any_equal(&seen, &key, &mut machine.budget)? {
                    seen.push(key);
                    kept.push(item);
                }
            }
            Value::list(kept, &mut machine.budget)
        }
        _ => {
            let keys = keys(machine, &all, argument(given, 1, "attribute"), flag(0, "case_sensitive"))?;
            let pairs = keys.into_iter().zip(all).collect();
            let sorted = sequences::sorted(pairs, name == "max", &mut machine.budget)?;
            Ok(sorted.into_iter().next().unwrap_or(Value::Undefined))
        }
    }
}

fn any_equal(all: &[Value], value: &Value, budget: &mut Budget) -> Done<bool> {
    for one in all {
        budget.scan(1)?;
        if one.equals(value, budget)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What items are sorted by.
fn keys(machine: &mut Machine, items: &[Value], path: Option<&Value>, case: bool) -> Done<Vec<Value>> {
    let mut keys = Vec::with_capacity(items.len());
    for item in items {
        let key = match path.filter(|path| !matches!(path, Value::None)) {
            Some(path) => attribute(machine, item, path)?,
            None => item.clone(),
        };
        keys.push(if case { key } else { sequences::folded(&key, &mut machine.budget)? });
    }
    Ok(keys)
}

/// The member at a path such as `a.b.0`.
fn attribute(machine: &mut Machine, value: &Value, path: &Value) -> Done<Value> {
    let Value::Text(path) = path else { return machine.item(value, path) };
    machine.budget.scan(path.len())?;
    let mut value = value.clone();
    for part in path.split('.') {
        machine.budget.step()?;
        value = match part.parse::<i64>() {
            Ok(at) => machine.item(&value, &Value::Integer(at))?,
            Err(_) => machine.item(&value, &Value::text(part))?,
        };
    }
    Ok(value)
}

fn attributes(machine: &mut Machine, value: &Value, path: &Value, default: Option<&Value>) -> Done<Value> {
    let mut all = Vec::new();
    for item in value.items(&mut machine.budget)? {
        let found = attribute(machine, &item, path)?;
        let missing = matches!(found, Value::Undefined);
        all.push(default.filter(|_| missing).cloned().unwrap_or(found));
    }
    Value::list(all, &mut machine.budget)
}

fn map(machine: &mut Machine, value: &Value, given: &Given) -> Done<Value> {
    if let Some((_, path)) = given.named.iter().find(|(name, _)| &**name == "attribute") {
        let default = given.named.iter().find(|(name, _)| &**name == "default").map(|(_, value)| value);
        return attributes(machine, value, path, default);
    }
    let Some(Value::Text(name)) = given.positional.first() else {
        return Err(Fault::text("map takes a filter or an attribute"));
    };
    let mut all = Vec::new();
    for item in value.items(&mut machine.budget)? {
        machine.budget.step()?;
        machine.budget.nodes(given.positional.len())?;
        let rest = Given { positional: given.positional[1..].to_vec(), named: given.named.clone() };
        // A filter by its name may be this one.
        machine.budget.down()?;
        let made = apply(machine, name, item, rest)?;
        machine.budget.up();
        all.push(made);
    }
    Value::list(all, &mut machine.budget)
}

fn select(machine: &mut Machine, name: &str, value: &Value, given: &Given) -> Done<Value> {
    let wanted = name.starts_with("select");
    let mut arguments = &given.positional[..];
    let path = match (name.ends_with("attr"), arguments) {
        (false, _) => None,
        (true, [path, rest @ ..]) => {
            arguments = rest;
            Some(path)
        }
        (true, []) => return Err(Fault::text(format!("{name} takes an attribute"))),
    };
    let mut kept = Vec::new();
    for item in value.items(&mut machine.budget)? {
        machine.budget.step()?;
        let subject = match path {
            Some(path) => attribute(machine, &item, path)?,
            None => item.clone(),
        };
        let holds = match arguments {
            [] => subject.truth(),
            [Value::Text(test), rest @ ..] => {
                machine.budget.nodes(rest.len())?;
                let rest = Given { positional: rest.to_vec(), named: Vec::new() };
                predicates::holds(test, &subject, &rest, &mut machine.budget)?
            }
            _ => return Err(Fault::text(format!("{name} takes the name of a test"))),
        };
        if holds == wanted {
            kept.push(item);
        }
    }
    Value::list(kept, &mut machine.budget)
}

fn groupby(machine: &mut Machine, items: Vec<Value>, given: &Given) -> Done<Value> {
    let path = argument(given, 0, "attribute").ok_or_else(|| Fault::text("groupby takes an attribute"))?;
    let case = argument(given, 2, "case_sensitive").is_some_and(Value::truth);
    let keys = keys(machine, &items, Some(path), case)?;
    let mut pairs = Vec::new();
    for (key, item) in keys.into_iter().zip(items) {
        let pair = Value::tuple(vec![key.clone(), item], &mut machine.budget)?;
        pairs.push((key, pair));
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for pair in sequences::sorted(pairs, false, &mut machine.budget)? {
        let pair = pair.items(&mut machine.budget)?;
        let [key, item] = &pair[..] else { continue };
        match groups.last_mut() {
            Some((known, items)) if known.equals(key, &mut machine.budget)? => items.push(item.clone()),
            _ => groups.push((key.clone(), vec![item.clone()])),
        }
    }
    let mut all = Vec::new();
    for (_, items) in groups {
        // The group is called as its first item calls it.
        let key = attribute(machine, &items[0], path)?;
        let items = Value::list(items, &mut machine.budget)?;
        all.push(Value::tuple(vec![key, items], &mut machine.budget)?);
    }
    Value::list(all, &mut machine.budget)
}

/// Items with a text between; Python's method takes texts alone, the filter everything.
pub(super) fn join(value: &Value, between: &str, texts: bool, budget: &mut Budget) -> Done<Value> {
    let mut out = String::new();
    for (at, item) in value.items(budget)?.iter().enumerate() {
        if at > 0 {
            budget.bytes(between.len())?;
            out.push_str(between);
        }
        if texts && item.as_text().is_none() {
            return Err(Fault::text(format!("join of a text takes texts, not {}", item.kind())));
        }
        item.write(&mut out, budget)?;
    }
    Ok(Value::text(out))
}

/// Pairs of a map.
pub(super) fn items(value: &Value, budget: &mut Budget) -> Done<Value> {
    match value {
        Value::Map(map) => {
            let mut pairs = Vec::with_capacity(map.members.len());
            for (key, member) in &map.members {
                pairs.push(Value::tuple(vec![key.clone(), member.clone()], budget)?);
            }
            Value::list(pairs, budget)
        }
        Value::Undefined => Value::list(Vec::new(), budget),
        other => Err(Fault::text(format!("{} has no pairs of keys and values", other.kind()))),
    }
}

fn dictsort(value: &Value, given: &Given, budget: &mut Budget) -> Done<Value> {
    let flag = |at: usize, name: &str| argument(given, at, name).is_some_and(Value::truth);
    let by_value = argument(given, 1, "by").and_then(Value::as_text).is_some_and(|by| &**by == "value");
    let mut pairs = Vec::new();
    for pair in items(value, budget)?.items(budget)? {
        let key = sequences::element(&pair, i64::from(by_value), budget)?;
        pairs.push((if flag(0, "case_sensitive") { key } else { sequences::folded(&key, budget)? }, pair));
    }
    let sorted = sequences::sorted(pairs, flag(2, "reverse"), budget)?;
    Value::list(sorted, budget)
}

fn length(value: &Value, budget: &mut Budget) -> Done<Value> {
    let count = match value {
        Value::Text(text) => {
            budget.scan(text.len())?;
            text.chars().count()
        }
        Value::List(list) => list.items.len(),
        Value::Map(map) => map.members.len(),
        Value::Undefined => 0,
        other => return Err(Fault::text(format!("{} has no length", other.kind()))),
    };
    Ok(Value::Integer(count as i64))
}

fn whole(value: &Value, base: i64) -> Option<i64> {
    match value {
        Value::Text(text) => {
            let text = text.trim().replace('_', "");
            let radix = u32::try_from(base).ok().filter(|base| (2..=36).contains(base))?;
            let (sign, digits) = text.strip_prefix('-').map_or(("", &*text), |digits| ("-", digits));
            let digits = match radix {
                16 => digits.trim_start_matches("0x").trim_start_matches("0X"),
                8 => digits.trim_start_matches("0o"),
                2 => digits.trim_start_matches("0b"),
                _ => digits,
            };
            let number = i64::from_str_radix(&format!("{sign}{digits}"), radix).ok();
            number.or_else(|| text.parse::<f64>().ok().filter(|x| x.is_finite()).map(|x| x as i64))
        }
        Value::Float(x) => x.is_finite().then_some(*x as i64),
        other => other.as_integer(),
    }
}

fn round(value: &Value, given: &Given) -> Done<Value> {
    let Some(x) = value.as_number() else { return Err(Fault::text(format!("{} cannot be rounded", value.kind()))) };
    let digits = argument(given, 0, "precision").and_then(Value::as_integer).unwrap_or(0).clamp(-300, 300) as i32;
    let scale = 10f64.powi(digits);
    let rounded = match argument(given, 1, "method").and_then(Value::as_text).map(|method| &**method) {
        Some("ceil") => (x * scale).ceil() / scale,
        Some("floor") => (x * scale).floor() / scale,
        _ if digits == 0 => x.round_ties_even(),
        _ if digits > 0 => format!("{x:.*}", digits as usize).parse().unwrap_or(x),
        _ => (x * scale).round_ties_even() / scale,
    };
    Ok(Value::Float(rounded))
}
