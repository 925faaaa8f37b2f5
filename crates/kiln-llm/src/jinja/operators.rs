//! Operators, as Python has them.

use super::ast::Comparison;
use super::budget::Budget;
use super::machine::Given;
use super::value::Value;
use super::{Fault, format};
use std::cmp::Ordering;

type Done<T> = Result<T, Fault>;

pub(super) fn negative(value: &Value) -> Done<Value> {
    match (value.as_integer(), value) {
        (Some(n), _) => n.checked_neg().map(Value::Integer).ok_or_else(too_large),
        (None, Value::Float(x)) => Ok(Value::Float(-x)),
        _ => Err(Fault::text(format!("{} has no negative", value.kind()))),
    }
}

fn too_large() -> Fault {
    Fault::text("a number beyond 64 bits")
}

/// `+`, `-`, `*`, `/`, `//`, `%` and `**`.
pub(super) fn arithmetic(operator: &str, left: &Value, right: &Value, budget: &mut Budget) -> Done<Value> {
    match (operator, left, right) {
        ("%", Value::Text(template), _) => {
            let arguments = match right {
                Value::List(list) if list.tuple => list.items.clone(),
                other => vec![other.clone()],
            };
            return format::percent(template, &arguments, right, budget).map(Value::text);
        }
        ("+", Value::Text(a), Value::Text(b)) => {
            budget.bytes(a.len() + b.len())?;
            return Ok(Value::text([&**a, &**b].concat()));
        }
        ("+", Value::List(a), Value::List(b)) if a.tuple == b.tuple => {
            budget.nodes(a.items.len() + b.items.len())?;
            return Value::sequence([&a.items[..], &b.items[..]].concat(), a.tuple, budget);
        }
        ("*", Value::Text(_) | Value::List(_), times) | ("*", times, Value::Text(_) | Value::List(_))
            if times.as_integer().is_some() =>
        {
            let what = if matches!(left, Value::Text(_) | Value::List(_)) { left } else { right };
            return repeat(what, times.as_integer().unwrap_or(0), budget);
        }
        _ => {}
    }
    if let (Some(a), Some(b)) = (left.as_integer(), right.as_integer())
        && operator != "/"
    {
        return integers(operator, a, b);
    }
    match (left.as_number(), right.as_number()) {
        (Some(a), Some(b)) => numbers(operator, a, b),
        _ => Err(Fault::text(format!("{} {operator} {} cannot be computed", left.kind(), right.kind()))),
    }
}

fn repeat(value: &Value, times: i64, budget: &mut Budget) -> Done<Value> {
    let times = usize::try_from(times.max(0)).map_err(|_| too_large())?;
    match value {
        Value::Text(text) => {
            budget.bytes(text.len().saturating_mul(times))?;
            Ok(Value::text(text.repeat(times)))
        }
        Value::List(list) => {
            budget.nodes(list.items.len().saturating_mul(times))?;
            let count = if list.items.is_empty() { 0 } else { times };
            let items = std::iter::repeat_n(&list.items, count).flatten().cloned().collect();
            Value::sequence(items, list.tuple, budget)
        }
        other => Err(Fault::text(format!("{} cannot be repeated", other.kind()))),
    }
}

fn integers(operator: &str, a: i64, b: i64) -> Done<Value> {
    let zero = || Fault::text("a division by zero");
    if matches!(operator, "//" | "%") && b == 0 {
        return Err(zero());
    }
    let floor = || a.checked_div_euclid(b).map(|q| if b < 0 && a.rem_euclid(b) != 0 { q - 1 } else { q });
    let result = match operator {
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "//" => floor(),
        "%" => floor().and_then(|q| q.checked_mul(b)).and_then(|product| a.checked_sub(product)),
        _ if b < 0 => return Ok(Value::Float((a as f64).powf(b as f64))),
        _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
    };
    result.map(Value::Integer).ok_or_else(too_large)
}

fn numbers(operator: &str, a: f64, b: f64) -> Done<Value> {
    if matches!(operator, "/" | "//" | "%") && b == 0.0 {
        return Err(Fault::text("a division by zero"));
    }
    Ok(Value::Float(match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" => a / b,
        "//" => (a / b).floor(),
        "%" => a - b * (a / b).floor(),
        _ => a.powf(b),
    }))
}

pub(super) fn compare(comparison: Comparison, left: &Value, right: &Value, budget: &mut Budget) -> Done<bool> {
    Ok(match comparison {
        Comparison::Equal => left.equals(right, budget)?,
        Comparison::NotEqual => !left.equals(right, budget)?,
        Comparison::Less => left.order(right, budget)? == Ordering::Less,
        Comparison::LessEqual => left.order(right, budget)? != Ordering::Greater,
        Comparison::Greater => left.order(right, budget)? == Ordering::Greater,
        Comparison::GreaterEqual => left.order(right, budget)? != Ordering::Less,
        Comparison::In => contains(right, left, budget)?,
        Comparison::NotIn => !contains(right, left, budget)?,
    })
}

/// Python's `in`.
pub(super) fn contains(whole: &Value, part: &Value, budget: &mut Budget) -> Done<bool> {
    match (whole, part) {
        (Value::Text(whole), Value::Text(part)) => {
            budget.scan(whole.len())?;
            Ok(whole.contains(&**part))
        }
        (Value::Text(_), other) => Err(Fault::text(format!("{} cannot be in a text", other.kind()))),
        (Value::List(list), _) => {
            for item in &list.items {
                budget.scan(1)?;
                if item.equals(part, budget)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        (Value::Map(_), _) => Ok(whole.member(part, budget)?.is_some()),
        (Value::Undefined, _) => Ok(false),
        (other, _) => Err(Fault::text(format!("nothing can be in {}", other.kind()))),
    }
}

/// One argument by position or name; `None` where there is none.
pub(super) fn argument<'a>(given: &'a Given, at: usize, name: &str) -> Option<&'a Value> {
    given.positional.get(at).or_else(|| given.named.iter().find(|(known, _)| &**known == name).map(|(_, value)| value))
}
