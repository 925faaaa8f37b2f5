//! Lists, maps and ranges: what filters, methods and functions do with them.

use super::Fault;
use super::budget::Budget;
use super::machine::Given;
use super::value::Value;
use std::cmp::Ordering;

type Done<T> = Result<T, Fault>;

/// Sets a member of a map in the making.
pub(super) fn insert(members: &mut Vec<(Value, Value)>, key: Value, value: Value, budget: &mut Budget) -> Done<()> {
    if matches!(key, Value::List(_) | Value::Map(_)) && !matches!(&key, Value::List(list) if list.tuple) {
        return Err(Fault::text(format!("{} is no key", key.kind())));
    }
    for (known, old) in members.iter_mut() {
        if known.equals(&key, budget)? {
            *old = value;
            return Ok(());
        }
    }
    members.push((key, value));
    Ok(())
}

/// An element by its place, from the end if negative.
pub(super) fn element(value: &Value, at: i64, budget: &mut Budget) -> Done<Value> {
    let place = |length: usize| {
        let at = if at < 0 { at.checked_add(length as i64)? } else { at };
        usize::try_from(at).ok().filter(|&at| at < length)
    };
    Ok(match value {
        Value::List(list) => place(list.items.len()).map_or(Value::Undefined, |at| list.items[at].clone()),
        Value::Text(text) => {
            budget.scan(text.len())?;
            let found = place(text.chars().count()).and_then(|at| text.chars().nth(at));
            found.map_or(Value::Undefined, |c| Value::text(&*c.encode_utf8(&mut [0; 4])))
        }
        _ => Value::Undefined,
    })
}

/// `value[start:stop:step]`.
pub(super) fn slice(value: &Value, bounds: &[Option<Value>; 3], budget: &mut Budget) -> Done<Value> {
    let bound = |at: usize| match &bounds[at] {
        None | Some(Value::None) => Ok(None),
        Some(value) => {
            value.as_integer().map(Some).ok_or_else(|| Fault::text(format!("a slice up to {}", value.kind())))
        }
    };
    let (start, stop, step) = (bound(0)?, bound(1)?, bound(2)?.unwrap_or(1));
    if step == 0 {
        return Err(Fault::text("a slice with a step of 0"));
    }
    match value {
        Value::Text(text) => {
            budget.bytes(text.len().saturating_mul(4))?;
            let chars: Vec<char> = text.chars().collect();
            Ok(Value::text(places(chars.len(), start, stop, step).map(|at| chars[at]).collect::<String>()))
        }
        Value::List(list) => {
            let places = places(list.items.len(), start, stop, step);
            let items = places.map(|at| list.items[at].clone()).collect();
            Value::sequence(items, list.tuple, budget)
        }
        Value::Undefined => Err(Fault::text("what is undefined has no slices")),
        other => Err(Fault::text(format!("{} has no slices", other.kind()))),
    }
}

/// The places that Python's slice takes of so many.
fn places(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> {
    let length = length as i64;
    // Going back, the place before the first is one too.
    let (lowest, highest) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let clamp = |at: i64| if at < 0 { at.saturating_add(length) } else { at }.clamp(lowest, highest);
    let (from, to) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    let (start, stop) = (start.map_or(from, clamp), stop.map_or(to, clamp));
    let mut next = Some(start);
    std::iter::from_fn(move || {
        let at = next.filter(|&at| if step > 0 { at < stop } else { at > stop })?;
        next = at.checked_add(step);
        Some(at as usize)
    })
}

/// The functions that every template has, but for those that change the machine.
pub(super) fn function(name: &str, given: Given, budget: &mut Budget) -> Done<Value> {
    let text = |what: &str| match given.positional.first() {
        Some(Value::Text(text)) => Ok(text.clone()),
        _ => Err(Fault::text(format!("{what} takes a text"))),
    };
    match name {
        "range" => range(&given, budget),
        "dict" => {
            let mut members = Vec::new();
            if let Some(Value::Map(map)) = given.positional.first() {
                budget.nodes(map.members.len())?;
                members = map.members.clone();
            }
            for (name, value) in given.named {
                insert(&mut members, Value::Text(name), value, budget)?;
            }
            Value::map(members, budget)
        }
        "raise_exception" => Err(Fault::Raised(text("raise_exception")?.to_string())),
        "strftime_now" => {
            let format = text("strftime_now")?;
            // The longest field has ten characters for two of the format.
            budget.bytes(format.len().saturating_mul(8))?;
            Ok(Value::text(crate::time::strftime(&format, crate::time::seconds_now())))
        }
        other => Err(Fault::text(format!("there is no function '{other}'"))),
    }
}

fn range(given: &Given, budget: &mut Budget) -> Done<Value> {
    let number = |at: usize| given.positional[at].as_integer().ok_or_else(|| Fault::text("range takes whole numbers"));
    let (start, stop, step) = match given.positional.len() {
        1 => (0, number(0)?, 1),
        2 => (number(0)?, number(1)?, 1),
        3 => (number(0)?, number(1)?, number(2)?),
        _ => return Err(Fault::text("range takes one to three numbers")),
    };
    if step == 0 {
        return Err(Fault::text("a range with a step of 0"));
    }
    let distance = if step > 0 { i128::from(stop) - i128::from(start) } else { i128::from(start) - i128::from(stop) };
    let count = (distance.max(0) as u128).div_ceil(u128::from(step.unsigned_abs()));
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    budget.nodes(count)?;
    let items = (0..count as i64).map(|at| Value::Integer(start.wrapping_add(step.wrapping_mul(at)))).collect();
    Value::list(items, budget)
}

/// Sorts by keys, equals in their order.
pub(super) fn sorted(items: Vec<(Value, Value)>, reverse: bool, budget: &mut Budget) -> Done<Vec<Value>> {
    let mut fault = None;
    let mut items = items;
    items.sort_by(|(a, _), (b, _)| {
        if fault.is_some() {
            return Ordering::Equal;
        }
        match a.order(b, budget).and_then(|order| budget.scan(1).map(|()| order)) {
            Ok(order) if reverse => order.reverse(),
            Ok(order) => order,
            Err(error) => {
                fault = Some(error);
                Ordering::Equal
            }
        }
    });
    match fault {
        Some(fault) => Err(fault),
        None => Ok(items.into_iter().map(|(_, value)| value).collect()),
    }
}

/// Texts as they are sorted and told apart where case does not matter.
pub(super) fn folded(value: &Value, budget: &mut Budget) -> Done<Value> {
    match value {
        Value::Text(text) => {
            budget.bytes(text.len())?;
            Ok(Value::text(text.to_lowercase()))
        }
        other => Ok(other.clone()),
    }
}

/// `batch` and `slice`: items in lists of so many, or in so many lists.
pub(super) fn batches(items: &[Value], size: usize, fill: Option<&Value>, budget: &mut Budget) -> Done<Value> {
    let mut all = Vec::new();
    for part in items.chunks(size.max(1)) {
        let mut part = part.to_vec();
        if let Some(fill) = fill {
            budget.nodes(size)?;
            part.resize(size, fill.clone());
        }
        all.push(Value::list(part, budget)?);
    }
    Value::list(all, budget)
}

/// `slice`: items in so many lists.
pub(super) fn slices(items: &[Value], count: usize, fill: Option<&Value>, budget: &mut Budget) -> Done<Value> {
    budget.nodes(count)?;
    let (each, longer) = (items.len() / count.max(1), items.len() % count.max(1));
    let mut all = Vec::new();
    let mut rest = items;
    for number in 0..count {
        let (part, after) = rest.split_at(each + usize::from(number < longer));
        rest = after;
        let mut part = part.to_vec();
        if let Some(fill) = fill.filter(|_| number >= longer && longer > 0) {
            part.push(fill.clone());
        }
        all.push(Value::list(part, budget)?);
    }
    Value::list(all, budget)
}
