//! Tests: what stands behind `is`.

use super::Fault;
use super::ast::Comparison;
use super::budget::Budget;
use super::machine::Given;
use super::operators::{compare, contains};
use super::value::Value;
use std::rc::Rc;

/// Whether a value is what a test says.
pub(super) fn holds(name: &str, value: &Value, given: &Given, budget: &mut Budget) -> Result<bool, Fault> {
    let other = || given.positional.first().ok_or_else(|| Fault::text(format!("the test '{name}' takes a value")));
    let integer = |value: &Value| {
        value.as_integer().ok_or_else(|| Fault::text(format!("the test '{name}' is for numbers, not {}", value.kind())))
    };
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "string" => matches!(value, Value::Text(_)),
        "mapping" => matches!(value, Value::Map(_)),
        "number" => value.as_number().is_some(),
        "integer" => matches!(value, Value::Integer(_)),
        "float" => matches!(value, Value::Float(_)),
        "sequence" => matches!(value, Value::List(_) | Value::Text(_) | Value::Map(_)),
        "iterable" => matches!(value, Value::List(_) | Value::Text(_) | Value::Map(_) | Value::Undefined),
        "callable" => matches!(value, Value::Macro(_) | Value::Function(_) | Value::Loop(_)),
        "escaped" => false,
        "odd" => integer(value)?.rem_euclid(2) == 1,
        "even" => integer(value)?.rem_euclid(2) == 0,
        "divisibleby" => match integer(other()?)? {
            0 => return Err(Fault::text("a division by zero")),
            by => integer(value)?.checked_rem(by).unwrap_or(0) == 0,
        },
        "lower" | "upper" => {
            let text = value.as_text().cloned().unwrap_or_default();
            budget.scan(text.len())?;
            let wrong = |c: char| if name == "lower" { c.is_uppercase() } else { c.is_lowercase() };
            text.chars().any(|c| c.is_lowercase() || c.is_uppercase()) && !text.chars().any(wrong)
        }
        "eq" | "equalto" | "==" => value.equals(other()?, budget)?,
        "ne" | "!=" => !value.equals(other()?, budget)?,
        "lt" | "lessthan" | "<" => compare(Comparison::Less, value, other()?, budget)?,
        "le" | "<=" => compare(Comparison::LessEqual, value, other()?, budget)?,
        "gt" | "greaterthan" | ">" => compare(Comparison::Greater, value, other()?, budget)?,
        "ge" | ">=" => compare(Comparison::GreaterEqual, value, other()?, budget)?,
        "in" => contains(other()?, value, budget)?,
        "sameas" => same(value, other()?),
        unknown => return Err(Fault::text(format!("there is no test '{unknown}'"))),
    })
}

/// Python's `is`.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::None, Value::None) => true,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::Integer(a), Value::Integer(b)) => a == b,
        (Value::Text(a), Value::Text(b)) => a == b,
        (Value::List(a), Value::List(b)) => Rc::ptr_eq(a, b),
        (Value::Map(a), Value::Map(b)) => Rc::ptr_eq(a, b),
        (Value::Namespace(a), Value::Namespace(b)) => a == b,
        _ => false,
    }
}
