//! Runs a template: statements write text, expressions give values.

use super::ast::{Action, Arguments, Comparison, Expression, Program, Statement, Suffix, Symbol, Target};
use super::budget::Budget;
use super::value::{LoopState, Value};
use super::{Fault, TemplateError, filters, operators, predicates, sequences};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

pub(super) type Done<T> = Result<T, Fault>;

/// The functions that every template has.
const FUNCTIONS: [&str; 5] = ["range", "dict", "namespace", "raise_exception", "strftime_now"];

/// How a list of statements ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Next,
    Break,
    Continue,
}

/// Positional and named arguments, evaluated.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

/// A template being rendered.
pub(super) struct Machine<'t> {
    pub(super) program: &'t Program,
    pub(super) budget: Budget,
    /// The values of each name, innermost scope last, with the number of the scope.
    pub(super) bindings: Vec<Vec<(usize, Value)>>,
    /// The names that each scope has.
    pub(super) scopes: Vec<Vec<Symbol>>,
    /// The first scope of the macro that runs; of the others only the outermost is seen.
    pub(super) base: usize,
    /// The text so far, and above it that of blocks which are captured.
    pub(super) outputs: Vec<String>,
    pub(super) namespaces: Vec<Vec<(Arc<str>, Value)>>,
    pub(super) line: u32,
}

impl<'t> Machine<'t> {
    pub(super) fn new(program: &'t Program, budget: Budget) -> Machine<'t> {
        Machine {
            program,
            budget,
            bindings: vec![Vec::new(); program.names.len()],
            scopes: vec![Vec::new()],
            base: 0,
            outputs: vec![String::new()],
            namespaces: Vec::new(),
            line: 1,
        }
    }

    /// The text, with these variables.
    pub(super) fn run(mut self, variables: Vec<(&str, Value)>) -> Result<String, TemplateError> {
        let program = self.program;
        for (symbol, name) in program.names.iter().enumerate() {
            // The last one of a name counts.
            let given = variables.iter().rev().find(|(given, _)| *given == &**name).map(|(_, value)| value.clone());
            let function = FUNCTIONS.iter().find(|function| **function == &**name).map(|name| Value::Function(name));
            if let Some(value) = given.or(function) {
                self.bind(symbol as Symbol, value);
            }
        }
        match self.statements(&program.body) {
            Ok(_) => Ok(self.outputs.pop().unwrap_or_default()),
            Err(fault) => Err(fault.at(self.line)),
        }
    }

    pub(super) fn bind(&mut self, symbol: Symbol, value: Value) {
        let scope = self.scopes.len() - 1;
        let values = &mut self.bindings[symbol as usize];
        match values.last_mut() {
            Some((there, old)) if *there == scope => *old = value,
            _ => {
                values.push((scope, value));
                self.scopes[scope].push(symbol);
            }
        }
    }

    fn lookup(&self, symbol: Symbol) -> Value {
        let seen = |scope: usize| scope == 0 || scope >= self.base;
        let found = self.bindings[symbol as usize].iter().rev().find(|(scope, _)| seen(*scope));
        found.map_or(Value::Undefined, |(_, value)| value.clone())
    }

    fn open_scope(&mut self) {
        self.scopes.push(Vec::new());
    }

    fn close_scope(&mut self) {
        for symbol in self.scopes.pop().unwrap_or_default() {
            self.bindings[symbol as usize].pop();
        }
    }

    /// Runs within a scope of its own.
    pub(super) fn scoped<T>(&mut self, inner: impl FnOnce(&mut Self) -> Done<T>) -> Done<T> {
        self.open_scope();
        let done = inner(self);
        self.close_scope();
        done
    }

    pub(super) fn emit(&mut self, text: &str) -> Done<()> {
        self.budget.bytes(text.len())?;
        if let Some(out) = self.outputs.last_mut() {
            out.push_str(text);
        }
        Ok(())
    }

    /// The text that `inner` writes.
    pub(super) fn captured(&mut self, inner: impl FnOnce(&mut Self) -> Done<Flow>) -> Done<Value> {
        self.outputs.push(String::new());
        let done = inner(self);
        let text = self.outputs.pop().unwrap_or_default();
        done?;
        self.budget.bytes(text.len())?;
        Ok(Value::text(text))
    }

    pub(super) fn statements(&mut self, all: &'t [Statement]) -> Done<Flow> {
        self.budget.down()?;
        for statement in all {
            self.line = statement.line;
            let flow = self.statement(&statement.kind)?;
            if flow != Flow::Next {
                self.budget.up();
                return Ok(flow);
            }
        }
        self.budget.up();
        Ok(Flow::Next)
    }

    fn statement(&mut self, action: &'t Action) -> Done<Flow> {
        self.budget.step()?;
        match action {
            Action::Data(text) => self.emit(text)?,
            Action::Print(value) => {
                let value = self.eval(value)?;
                if let Some(out) = self.outputs.last_mut() {
                    value.write(out, &mut self.budget)?;
                }
            }
            Action::If { branches, otherwise } => {
                for (condition, body) in branches {
                    if self.eval(condition)?.truth() {
                        return self.statements(body);
                    }
                }
                return self.statements(otherwise);
            }
            Action::For(index) => {
                let items = self.eval(&self.program.loops[*index].items)?;
                self.run_loop(*index, &items, 0)?;
            }
            Action::Set { target, value } => {
                let value = self.eval(value)?;
                self.assign(target, value)?;
            }
            Action::SetBlock { target, filters, body } => {
                let text = self.captured(|machine| machine.scoped(|machine| machine.statements(body)))?;
                let value = self.suffixes(text, filters)?;
                self.assign(target, value)?;
            }
            Action::With { values, body } => {
                let mut given = Vec::with_capacity(values.len());
                for (target, value) in values {
                    given.push((target, self.eval(value)?));
                }
                return self.scoped(|machine| {
                    given.into_iter().try_for_each(|(target, value)| machine.assign(target, value))?;
                    machine.statements(body)
                });
            }
            Action::Filter { filters, body } => {
                let text = self.captured(|machine| machine.scoped(|machine| machine.statements(body)))?;
                let value = self.suffixes(text, filters)?;
                if let Some(out) = self.outputs.last_mut() {
                    value.write(out, &mut self.budget)?;
                }
            }
            Action::Macro(index) => {
                let closure = self.closure(*index)?;
                self.bind(self.program.macros[*index].name, closure);
            }
            Action::Call { block, call } => self.call_block(*block, call)?,
            Action::Break => return Ok(Flow::Break),
            Action::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn assign(&mut self, target: &Target, value: Value) -> Done<()> {
        match target {
            Target::Name(symbol) => self.bind(*symbol, value),
            Target::Member(symbol, name) => {
                let Value::Namespace(index) = self.lookup(*symbol) else {
                    return Err(Fault::text(format!(
                        "'{}' is no namespace, whose members could be set",
                        self.program.names[*symbol as usize]
                    )));
                };
                self.budget.nodes(1)?;
                self.budget.scan(self.namespaces[index].len())?;
                let members = &mut self.namespaces[index];
                match members.iter_mut().find(|(known, _)| known == name) {
                    Some((_, old)) => *old = value,
                    None => members.push((name.clone(), value)),
                }
            }
            Target::Tuple(targets) => {
                let items = value.items(&mut self.budget)?;
                if items.len() != targets.len() {
                    let problem = format!("{} values for {} names", items.len(), targets.len());
                    return Err(Fault::text(problem));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item)?;
                }
            }
        }
        Ok(())
    }

    /// Runs a loop over items; `depth` says within how many runs of itself.
    pub(super) fn run_loop(&mut self, index: usize, items: &Value, depth: usize) -> Done<()> {
        let this = &self.program.loops[index];
        let mut items = items.items(&mut self.budget)?;
        if let Some(condition) = &this.condition {
            let mut kept = Vec::new();
            for item in items {
                self.open_scope();
                let holds = self.assign(&this.target, item.clone()).and_then(|()| self.eval(condition));
                self.close_scope();
                if holds?.truth() {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.scoped(|machine| machine.statements(&this.otherwise)).map(|_| ());
        }
        let state = Rc::new(LoopState {
            items,
            at: Cell::new(0),
            depth,
            recursive: this.recursive.then_some(index),
            last: RefCell::new(None),
        });
        let done = self.iterate(index, &state);
        // A value that holds its own loop would never be freed.
        state.last.take();
        done
    }

    fn iterate(&mut self, index: usize, state: &Rc<LoopState>) -> Done<()> {
        let this = &self.program.loops[index];
        for (at, item) in state.items.iter().enumerate() {
            self.budget.step()?;
            state.at.set(at);
            self.open_scope();
            if let Some(symbol) = self.program.special.loop_state {
                self.bind(symbol, Value::Loop(state.clone()));
            }
            let flow = self.assign(&this.target, item.clone()).and_then(|()| self.statements(&this.body));
            self.close_scope();
            if flow? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn eval(&mut self, expression: &'t Expression) -> Done<Value> {
        self.budget.step()?;
        self.budget.down()?;
        let value = self.eval_inner(expression);
        self.budget.up();
        value
    }

    fn eval_all(&mut self, all: &'t [Expression]) -> Done<Vec<Value>> {
        all.iter().map(|one| self.eval(one)).collect()
    }

    fn eval_inner(&mut self, expression: &'t Expression) -> Done<Value> {
        match expression {
            Expression::Literal(literal) => Ok(literal.value()),
            Expression::Name(symbol) => Ok(self.lookup(*symbol)),
            Expression::List(items) => {
                let items = self.eval_all(items)?;
                Value::list(items, &mut self.budget)
            }
            Expression::Tuple(items) => {
                let items = self.eval_all(items)?;
                Value::tuple(items, &mut self.budget)
            }
            Expression::Map(members) => self.map(members),
            Expression::Or(all) => self.first_that(all, true),
            Expression::And(all) => self.first_that(all, false),
            Expression::Not(inner) => Ok(Value::Bool(!self.eval(inner)?.truth())),
            Expression::Negative(inner) => {
                let value = self.eval(inner)?;
                operators::negative(&value)
            }
            Expression::Positive(inner) => self.eval(inner),
            Expression::Concat(all) => self.concat(all),
            Expression::Arithmetic(first, rest) => {
                let mut value = self.eval(first)?;
                for (operator, right) in rest {
                    let right = self.eval(right)?;
                    value = operators::arithmetic(operator, &value, &right, &mut self.budget)?;
                }
                Ok(value)
            }
            Expression::Compare(first, rest) => self.compare(first, rest),
            Expression::Choice(choice) => {
                if self.eval(&choice.condition)?.truth() {
                    return self.eval(&choice.then);
                }
                choice.otherwise.as_ref().map_or(Ok(Value::Undefined), |otherwise| self.eval(otherwise))
            }
            Expression::Postfix(head, suffixes) => {
                let head = self.eval(head)?;
                self.suffixes(head, suffixes)
            }
        }
    }

    fn map(&mut self, members: &'t [(Expression, Expression)]) -> Done<Value> {
        let mut all: Vec<(Value, Value)> = Vec::with_capacity(members.len());
        for (key, value) in members {
            let (key, value) = (self.eval(key)?, self.eval(value)?);
            sequences::insert(&mut all, key, value, &mut self.budget)?;
        }
        Value::map(all, &mut self.budget)
    }

    /// The first value that is as true as `wanted`, or the last.
    fn first_that(&mut self, all: &'t [Expression], wanted: bool) -> Done<Value> {
        let mut value = Value::Undefined;
        for one in all {
            value = self.eval(one)?;
            if value.truth() == wanted {
                break;
            }
        }
        Ok(value)
    }

    fn concat(&mut self, all: &'t [Expression]) -> Done<Value> {
        let mut text = String::new();
        for one in all {
            let value = self.eval(one)?;
            value.write(&mut text, &mut self.budget)?;
        }
        Ok(Value::text(text))
    }

    fn compare(&mut self, first: &'t Expression, rest: &'t [(Comparison, Expression)]) -> Done<Value> {
        let mut left = self.eval(first)?;
        for (comparison, right) in rest {
            let right = self.eval(right)?;
            if !operators::compare(*comparison, &left, &right, &mut self.budget)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    pub(super) fn suffixes(&mut self, mut value: Value, suffixes: &'t [Suffix]) -> Done<Value> {
        let mut at = 0;
        while let Some(suffix) = suffixes.get(at) {
            self.budget.step()?;
            at += 1;
            value = match suffix {
                Suffix::Member(name) => match suffixes.get(at) {
                    Some(Suffix::Call(arguments)) => {
                        at += 1;
                        let given = self.arguments(arguments)?;
                        self.call_member(&value, name, given)?
                    }
                    _ => self.member(&value, name)?,
                },
                Suffix::Item(index) => {
                    let index = self.eval(index)?;
                    self.item(&value, &index)?
                }
                Suffix::Slice(parts) => {
                    let mut bounds = [None, None, None];
                    for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                        if let Some(part) = part {
                            *bound = Some(self.eval(part)?);
                        }
                    }
                    sequences::slice(&value, &bounds, &mut self.budget)?
                }
                Suffix::Call(arguments) => {
                    let given = self.arguments(arguments)?;
                    self.call(&value, given)?
                }
                Suffix::Filter(name, arguments) => {
                    let given = self.arguments(arguments)?;
                    filters::apply(self, name, value, given)?
                }
                Suffix::Test { name, arguments, negated } => {
                    let given = self.arguments(arguments)?;
                    Value::Bool(predicates::holds(name, &value, &given, &mut self.budget)? != *negated)
                }
            };
        }
        Ok(value)
    }

    pub(super) fn arguments(&mut self, arguments: &'t Arguments) -> Done<Given> {
        let mut given = Given { positional: self.eval_all(&arguments.positional)?, named: Vec::new() };
        for (name, value) in &arguments.named {
            given.named.push((name.clone(), self.eval(value)?));
        }
        if let Some(rest) = &arguments.rest {
            let rest = self.eval(rest)?;
            given.positional.extend(rest.items(&mut self.budget)?);
        }
        if let Some(rest) = &arguments.rest_named {
            let Value::Map(map) = self.eval(rest)? else { return Err(Fault::text("'**' of what is no map")) };
            self.budget.nodes(map.members.len())?;
            for (key, value) in &map.members {
                let name = key.as_text().ok_or_else(|| Fault::text("a name of an argument that is no text"))?;
                given.named.push((name.clone(), value.clone()));
            }
        }
        Ok(given)
    }
}
