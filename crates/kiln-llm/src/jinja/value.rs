//! Values of templates. A list or a map knows how large it is with all that is in it, shared or not, and how deep: both are
//! bounded when it is made, so that whatever walks over a value ends soon and does not run out of stack.

use super::budget::Budget;
use super::{Fault, Limit};
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::rc::Rc;
use std::sync::Arc;

/// Lists within lists.
pub(super) const DEEPEST: u32 = 160;

/// A value of a template.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Undefined,
    None,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(Arc<str>),
    List(Rc<List>),
    Map(Rc<Map>),
    /// A `namespace`, by its number.
    Namespace(usize),
    Loop(Rc<LoopState>),
    Macro(Rc<Closure>),
    /// A function of this name that every template has.
    Function(&'static str),
}

/// How large a value is, nodes and bytes of text, with all that is in it, and how deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) weight: usize,
    pub(super) depth: u32,
}

/// A list or a tuple.
#[derive(Debug)]
pub(super) struct List {
    pub(super) items: Vec<Value>,
    pub(super) tuple: bool,
    extent: Extent,
}

/// A map, in the order of its making.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) members: Vec<(Value, Value)>,
    extent: Extent,
}

/// A macro with the values of the scopes around it.
#[derive(Debug)]
pub(super) struct Closure {
    pub(super) index: usize,
    pub(super) captured: Vec<(u32, Value)>,
    extent: Extent,
}

/// Where a loop is.
#[derive(Debug)]
pub(super) struct LoopState {
    pub(super) items: Vec<Value>,
    pub(super) at: Cell<usize>,
    pub(super) depth: usize,
    /// The loop that `loop(…)` runs again.
    pub(super) recursive: Option<usize>,
    pub(super) last: RefCell<Option<Value>>,
}

impl Value {
    pub(super) fn text(text: impl Into<Arc<str>>) -> Value {
        Value::Text(text.into())
    }

    pub(super) fn list(items: Vec<Value>, budget: &mut Budget) -> Result<Value, Fault> {
        Value::sequence(items, false, budget)
    }

    pub(super) fn tuple(items: Vec<Value>, budget: &mut Budget) -> Result<Value, Fault> {
        Value::sequence(items, true, budget)
    }

    pub(super) fn sequence(items: Vec<Value>, tuple: bool, budget: &mut Budget) -> Result<Value, Fault> {
        let extent = extent_of(items.iter(), budget)?;
        Ok(Value::List(Rc::new(List { items, tuple, extent })))
    }

    /// A map of members whose keys differ.
    pub(super) fn map(members: Vec<(Value, Value)>, budget: &mut Budget) -> Result<Value, Fault> {
        let extent = extent_of(members.iter().flat_map(|(key, value)| [key, value]), budget)?;
        Ok(Value::Map(Rc::new(Map { members, extent })))
    }

    pub(super) fn closure(index: usize, captured: Vec<(u32, Value)>, budget: &mut Budget) -> Result<Value, Fault> {
        let extent = extent_of(captured.iter().map(|(_, value)| value), budget)?;
        Ok(Value::Macro(Rc::new(Closure { index, captured, extent })))
    }

    pub(super) fn extent(&self) -> Extent {
        match self {
            Value::Text(text) => Extent { weight: 1 + text.len(), depth: 0 },
            Value::List(list) => list.extent,
            Value::Map(map) => map.extent,
            Value::Macro(closure) => closure.extent,
            _ => Extent { weight: 1, depth: 0 },
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "undefined",
            Value::None => "none",
            Value::Bool(_) => "a flag",
            Value::Integer(_) | Value::Float(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(list) if list.tuple => "a tuple",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
            Value::Namespace(_) => "a namespace",
            Value::Loop(_) => "a loop",
            Value::Macro(_) | Value::Function(_) => "a function",
        }
    }

    pub(super) fn truth(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(flag) => *flag,
            Value::Integer(n) => *n != 0,
            Value::Float(x) => *x != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Map(map) => !map.members.is_empty(),
            _ => true,
        }
    }

    pub(super) fn as_text(&self) -> Option<&Arc<str>> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_integer(&self) -> Option<i64> {
        match self {
            Value::Integer(n) => Some(*n),
            Value::Bool(flag) => Some(i64::from(*flag)),
            _ => None,
        }
    }

    pub(super) fn as_number(&self) -> Option<f64> {
        match self {
            Value::Float(x) => Some(*x),
            other => other.as_integer().map(|n| n as f64),
        }
    }

    /// The member of a map with this key.
    pub(super) fn member(&self, key: &Value, budget: &mut Budget) -> Result<Option<Value>, Fault> {
        let Value::Map(map) = self else { return Ok(None) };
        budget.scan(map.members.len())?;
        for (name, value) in &map.members {
            if name.equals(key, budget)? {
                return Ok(Some(value.clone()));
            }
        }
        Ok(None)
    }

    /// [`Value::member`] by a name.
    pub(super) fn named(&self, key: &str, budget: &mut Budget) -> Result<Option<Value>, Fault> {
        let Value::Map(map) = self else { return Ok(None) };
        budget.scan(map.members.len())?;
        let found = map.members.iter().find(|(name, _)| matches!(name, Value::Text(name) if **name == *key));
        Ok(found.map(|(_, value)| value.clone()))
    }

    /// Python's `==`.
    pub(super) fn equals(&self, other: &Value, budget: &mut Budget) -> Result<bool, Fault> {
        Ok(match (self, other) {
            (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
            (Value::Text(a), Value::Text(b)) => {
                budget.scan(if a.len() == b.len() { a.len() } else { 0 })?;
                a == b
            }
            (Value::List(a), Value::List(b)) => {
                if a.tuple != b.tuple || a.items.len() != b.items.len() {
                    return Ok(false);
                }
                budget.scan(a.items.len())?;
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, budget)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Map(a), Value::Map(b)) => {
                if a.members.len() != b.members.len() {
                    return Ok(false);
                }
                for (key, value) in &a.members {
                    match other.member(key, budget)? {
                        Some(there) if value.equals(&there, budget)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Namespace(a), Value::Namespace(b)) => a == b,
            (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
            (Value::Macro(a), Value::Macro(b)) => Rc::ptr_eq(a, b),
            (Value::Function(a), Value::Function(b)) => a == b,
            _ => match (self.as_integer(), other.as_integer()) {
                (Some(a), Some(b)) => a == b,
                _ => matches!((self.as_number(), other.as_number()), (Some(a), Some(b)) if a == b),
            },
        })
    }

    /// Python's order, if there is one.
    pub(super) fn order(&self, other: &Value, budget: &mut Budget) -> Result<Ordering, Fault> {
        if let (Some(a), Some(b)) = (self.as_integer(), other.as_integer()) {
            return Ok(a.cmp(&b));
        }
        if let (Some(a), Some(b)) = (self.as_number(), other.as_number()) {
            return Ok(a.partial_cmp(&b).unwrap_or(Ordering::Equal));
        }
        match (self, other) {
            (Value::Text(a), Value::Text(b)) => {
                budget.scan(a.len().min(b.len()))?;
                Ok(a.cmp(b))
            }
            (Value::List(a), Value::List(b)) => {
                budget.scan(a.items.len().min(b.items.len()))?;
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b, budget)? {
                        return a.order(b, budget);
                    }
                }
                Ok(a.items.len().cmp(&b.items.len()))
            }
            _ => Err(Fault::text(format!("{} and {} have no order", self.kind(), other.kind()))),
        }
    }

    /// What a loop over it meets.
    pub(super) fn items(&self, budget: &mut Budget) -> Result<Vec<Value>, Fault> {
        Ok(match self {
            Value::List(list) => {
                budget.nodes(list.items.len())?;
                list.items.clone()
            }
            Value::Map(map) => {
                budget.nodes(map.members.len())?;
                map.members.iter().map(|(key, _)| key.clone()).collect()
            }
            Value::Text(text) => {
                budget.nodes(text.len())?;
                let mut buffer = [0; 4];
                text.chars().map(|c| Value::text(&*c.encode_utf8(&mut buffer))).collect()
            }
            Value::Undefined => Vec::new(),
            other => return Err(Fault::text(format!("{} has no items", other.kind()))),
        })
    }

    /// As `str` of Python writes it, behind what is there.
    pub(super) fn write(&self, out: &mut String, budget: &mut Budget) -> Result<(), Fault> {
        let before = out.len();
        match self {
            Value::Undefined => {}
            Value::Text(text) => {
                budget.bytes(text.len())?;
                out.push_str(text);
                return Ok(());
            }
            other => {
                // A character is written with ten at the most.
                budget.room(other.extent().weight.saturating_mul(10))?;
                other.represent(out);
            }
        }
        budget.bytes(out.len() - before)
    }

    /// As `repr` of Python writes it.
    pub(super) fn represent(&self, out: &mut String) {
        let mut list = |open: &str, items: &[Value], close: &str| {
            out.push_str(open);
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                item.represent(out);
            }
            out.push_str(close);
        };
        match self {
            Value::Undefined => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(flag) => out.push_str(if *flag { "True" } else { "False" }),
            Value::Integer(n) => out.push_str(&n.to_string()),
            Value::Float(x) => out.push_str(&float(*x)),
            Value::Text(text) => quote(text, out),
            Value::List(inner) if inner.tuple => {
                list("(", &inner.items, if inner.items.len() == 1 { ",)" } else { ")" })
            }
            Value::List(inner) => list("[", &inner.items, "]"),
            Value::Map(map) => {
                out.push('{');
                for (at, (key, value)) in map.members.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    key.represent(out);
                    out.push_str(": ");
                    value.represent(out);
                }
                out.push('}');
            }
            Value::Namespace(_) => out.push_str("<Namespace>"),
            Value::Loop(_) => out.push_str("<LoopContext>"),
            Value::Macro(_) | Value::Function(_) => out.push_str("<function>"),
        }
    }
}

/// The extent of what holds these; an error if it is too much.
fn extent_of<'a>(items: impl Iterator<Item = &'a Value>, budget: &mut Budget) -> Result<Extent, Fault> {
    let (mut weight, mut depth, mut count) = (1usize, 0, 0);
    for extent in items.map(Value::extent) {
        weight = weight.saturating_add(extent.weight);
        depth = depth.max(extent.depth);
        count += 1;
    }
    budget.nodes(count)?;
    if depth >= DEEPEST {
        return Err(Fault::Limit(Limit::ValueDepth { most: DEEPEST as usize }));
    }
    budget.fits(weight)?;
    Ok(Extent { weight, depth: depth + 1 })
}

/// A number as Python writes it.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) {
        let text = x.to_string();
        return if text.contains('.') { text } else { text + ".0" };
    }
    let text = format!("{x:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// A text in quotes, as Python writes it.
pub(super) fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == mark => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || (0x7f..0xa1).contains(&(c as u32)) || c == '\u{ad}' => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(mark);
}
