//! Members of values, and calls of what can be called: macros, functions, methods and loops.

use super::Fault;
use super::ast::{Expression, Suffix, Symbol};
use super::machine::{Done, Flow, Given, Machine};
use super::value::{Closure, LoopState, Value};
use super::{methods, sequences};
use std::sync::Arc;

impl<'t> Machine<'t> {
    /// A macro with what it sees of the scopes around it; the outermost it sees as it is when it is called.
    pub(super) fn closure(&mut self, index: usize) -> Done<Value> {
        let mut captured = Vec::new();
        for symbol in self.scopes[1..].iter().flatten() {
            let values = &self.bindings[*symbol as usize];
            let seen = values.last().filter(|(scope, _)| *scope > 0 && *scope >= self.base);
            // A loop ends before what it leaves behind.
            if let Some((_, value)) = seen.filter(|(_, value)| !matches!(value, Value::Loop(_))) {
                captured.push((*symbol, value.clone()));
            }
        }
        Value::closure(index, captured, &mut self.budget)
    }

    pub(super) fn call_block(&mut self, block: usize, call: &'t Expression) -> Done<()> {
        let caller = self.closure(block)?;
        let Expression::Postfix(head, suffixes) = call else { return Err(Fault::text("a call block without a call")) };
        let Some((Suffix::Call(arguments), before)) = suffixes.split_last() else {
            return Err(Fault::text("a call block without a call"));
        };
        let head = self.eval(head)?;
        let function = self.suffixes(head, before)?;
        let Value::Macro(closure) = function else {
            return Err(Fault::text(format!("{} cannot be called with a block", function.kind())));
        };
        let given = self.arguments(arguments)?;
        let text = self.call_macro(&closure, given, Some(caller))?;
        if let Some(out) = self.outputs.last_mut() {
            text.write(out, &mut self.budget)?;
        }
        Ok(())
    }

    pub(super) fn call_macro(&mut self, closure: &Closure, given: Given, caller: Option<Value>) -> Done<Value> {
        let this = &self.program.macros[closure.index];
        let base = std::mem::replace(&mut self.base, self.scopes.len());
        let line = self.line;
        let done = self.captured(|machine| {
            machine.scoped(|machine| {
                closure.captured.iter().for_each(|(symbol, value)| machine.bind(*symbol, value.clone()));
                machine.budget.nodes(closure.captured.len())?;
                machine.scoped(|machine| {
                    machine.bind_parameters(closure.index, given, caller)?;
                    machine.statements(&this.body)
                })
            })
        });
        self.base = base;
        if done.is_ok() {
            self.line = line;
        }
        done
    }

    pub(super) fn bind_parameters(&mut self, index: usize, given: Given, caller: Option<Value>) -> Done<()> {
        let program = self.program;
        let this = &program.macros[index];
        let name = |symbol: Symbol| &program.names[symbol as usize];
        let Given { positional, mut named } = given;
        let mut positional = positional.into_iter();
        for (symbol, default) in &this.parameters {
            let by_name = named.iter().position(|(given, _)| given == name(*symbol));
            let value = match (positional.next(), by_name) {
                (Some(value), _) => value,
                (None, Some(at)) => named.swap_remove(at).1,
                (None, None) => match default {
                    Some(default) => self.eval(default)?,
                    None => Value::Undefined,
                },
            };
            self.bind(*symbol, value);
        }
        if let (Some(caller), Some(symbol)) = (caller, program.special.caller) {
            self.bind(symbol, caller);
        }
        let rest: Vec<Value> = positional.collect();
        match program.special.varargs {
            Some(symbol) => {
                let rest = Value::tuple(rest, &mut self.budget)?;
                self.bind(symbol, rest);
            }
            None if !rest.is_empty() => {
                let problem = format!("'{}' takes {} arguments at the most", name(this.name), this.parameters.len());
                return Err(Fault::text(problem));
            }
            None => {}
        }
        match program.special.kwargs {
            Some(symbol) => {
                let members = named.into_iter().map(|(name, value)| (Value::Text(name), value)).collect();
                let rest = Value::map(members, &mut self.budget)?;
                self.bind(symbol, rest);
            }
            None => {
                if let Some((unknown, _)) = named.first() {
                    return Err(Fault::text(format!("'{}' has no parameter '{unknown}'", name(this.name))));
                }
            }
        }
        Ok(())
    }

    /// `value.name`.
    pub(super) fn member(&mut self, value: &Value, name: &Arc<str>) -> Done<Value> {
        match value {
            Value::Undefined => Err(Fault::text(format!("what is undefined has no '{name}'"))),
            Value::Map(_) => Ok(value.named(name, &mut self.budget)?.unwrap_or(Value::Undefined)),
            Value::Namespace(index) => {
                self.budget.scan(self.namespaces[*index].len())?;
                let found = self.namespaces[*index].iter().find(|(known, _)| known == name);
                Ok(found.map_or(Value::Undefined, |(_, value)| value.clone()))
            }
            Value::Loop(state) => Ok(loop_member(state, name)),
            _ => Ok(Value::Undefined),
        }
    }

    /// `value[index]`.
    pub(super) fn item(&mut self, value: &Value, index: &Value) -> Done<Value> {
        if let (Value::List(_) | Value::Text(_), Some(at)) = (value, index.as_integer()) {
            return sequences::element(value, at, &mut self.budget);
        }
        match (value, index) {
            (Value::Map(_), _) => Ok(value.member(index, &mut self.budget)?.unwrap_or(Value::Undefined)),
            (_, Value::Text(name)) => self.member(value, name),
            (Value::Undefined, _) => Err(Fault::text("what is undefined has no items")),
            _ => Ok(Value::Undefined),
        }
    }

    pub(super) fn call_member(&mut self, value: &Value, name: &Arc<str>, given: Given) -> Done<Value> {
        if let Value::Loop(state) = value {
            return self.loop_method(state, name, given);
        }
        if let (Value::Text(_) | Value::List(_) | Value::Map(_), true) = (value, methods::known(value, name)) {
            return methods::call(self, value, name, given);
        }
        let function = self.member(value, name)?;
        if matches!(function, Value::Undefined) {
            return Err(Fault::text(format!("{} has no method '{name}'", value.kind())));
        }
        self.call(&function, given)
    }

    pub(super) fn call(&mut self, function: &Value, given: Given) -> Done<Value> {
        match function {
            Value::Macro(closure) => self.call_macro(closure, given, None),
            Value::Loop(state) => self.recurse(state, &given),
            Value::Function("namespace") => {
                let mut members = Vec::new();
                for map in &given.positional {
                    let Value::Map(map) = map else { return Err(Fault::text("namespace takes maps and names")) };
                    self.budget.nodes(map.members.len())?;
                    members.extend(map.members.iter().filter_map(|(key, v)| Some((key.as_text()?.clone(), v.clone()))));
                }
                members.extend(given.named);
                self.budget.nodes(members.len() + 1)?;
                self.namespaces.push(members);
                Ok(Value::Namespace(self.namespaces.len() - 1))
            }
            Value::Function(name) => sequences::function(name, given, &mut self.budget),
            other => Err(Fault::text(format!("{} is no function", other.kind()))),
        }
    }

    /// `loop(items)`: the text of the same loop over others.
    pub(super) fn recurse(&mut self, state: &LoopState, given: &Given) -> Done<Value> {
        let (Some(index), [items]) = (state.recursive, &given.positional[..]) else {
            return Err(Fault::text("only a recursive loop can be called, with its items"));
        };
        let (items, depth) = (items.clone(), state.depth + 1);
        self.captured(|machine| machine.run_loop(index, &items, depth).map(|()| Flow::Next))
    }

    pub(super) fn loop_method(&mut self, state: &LoopState, name: &str, given: Given) -> Done<Value> {
        match name {
            "cycle" if !given.positional.is_empty() => {
                Ok(given.positional[state.at.get() % given.positional.len()].clone())
            }
            "changed" => {
                let now = Value::tuple(given.positional, &mut self.budget)?;
                let before = state.last.borrow().clone();
                let same = before.map(|before| before.equals(&now, &mut self.budget)).transpose()?;
                state.last.replace(Some(now));
                Ok(Value::Bool(same != Some(true)))
            }
            _ => Err(Fault::text(format!("a loop has no method '{name}'"))),
        }
    }
}

fn loop_member(state: &LoopState, name: &str) -> Value {
    let (at, length) = (state.at.get(), state.items.len());
    let item = |at: Option<usize>| at.and_then(|at| state.items.get(at)).cloned().unwrap_or(Value::Undefined);
    let count = |n: usize| Value::Integer(n as i64);
    match name {
        "index" => count(at + 1),
        "index0" => count(at),
        "revindex" => count(length - at),
        "revindex0" => count(length - at - 1),
        "first" => Value::Bool(at == 0),
        "last" => Value::Bool(at + 1 == length),
        "length" => count(length),
        "depth" => count(state.depth + 1),
        "depth0" => count(state.depth),
        "previtem" => item(at.checked_sub(1)),
        "nextitem" => item(Some(at + 1)),
        _ => Value::Undefined,
    }
}
