//! From tokens to a tree, by Jinja2's grammar: statements. Expressions are in `expressions.rs`.

use super::ast::{Action, Arguments, Expression, For, Macro, Program, Special, Statement, Suffix, Symbol, Target};
use super::lexer::{Kind, Token, tokens};
use super::{Fault, Limit, Syntax};
use std::collections::HashMap;
use std::sync::Arc;

/// Blocks within blocks and expressions within expressions.
const DEEPEST: usize = 100;

/// Parses the source of a template.
pub(super) fn parse(source: &str) -> Result<Program, Syntax> {
    let mut parser =
        Parser { tokens: tokens(source)?, at: 0, depth: 0, symbols: HashMap::new(), program: Program::default() };
    let (body, end) = parser.statements(&[])?;
    debug_assert!(end.is_none(), "only a closing word ends a list of statements before the source does");
    let named = |name: &str| parser.symbols.get(name).copied();
    parser.program.special = Special {
        loop_state: named("loop"),
        caller: named("caller"),
        varargs: named("varargs"),
        kwargs: named("kwargs"),
    };
    parser.program.body = body;
    Ok(parser.program)
}

pub(super) struct Parser {
    pub(super) tokens: Vec<Token>,
    pub(super) at: usize,
    depth: usize,
    symbols: HashMap<Arc<str>, Symbol>,
    program: Program,
}

pub(super) type Parsed<T> = Result<T, Syntax>;

impl Parser {
    pub(super) fn peek(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |token| token.line)
    }

    pub(super) fn fail<T>(&self, problem: impl Into<String>) -> Parsed<T> {
        Err(Syntax { line: self.line(), problem: Fault::text(problem) })
    }

    pub(super) fn unexpected<T>(&self, wanted: &str) -> Parsed<T> {
        let found = match self.peek() {
            Some(Kind::Name(name)) => format!("'{name}'"),
            Some(Kind::Operator(operator)) => format!("'{operator}'"),
            Some(Kind::Text(_)) => "a text".into(),
            Some(Kind::Integer(_) | Kind::Float(_)) => "a number".into(),
            _ => "the end of the tag".to_owned(),
        };
        self.fail(format!("{wanted} is missing before {found}"))
    }

    pub(super) fn symbol(&mut self, name: &Arc<str>) -> Symbol {
        if let Some(&known) = self.symbols.get(name) {
            return known;
        }
        let symbol = self.program.names.len() as Symbol;
        self.program.names.push(name.clone());
        self.symbols.insert(name.clone(), symbol);
        symbol
    }

    /// One level deeper, for as long as `inner` runs.
    pub(super) fn nested<T>(&mut self, inner: impl FnOnce(&mut Parser) -> Parsed<T>) -> Parsed<T> {
        if self.depth == DEEPEST {
            return Err(Syntax { line: self.line(), problem: Fault::Limit(Limit::Nesting { most: DEEPEST }) });
        }
        self.depth += 1;
        let parsed = inner(self);
        self.depth -= 1;
        parsed
    }

    pub(super) fn is_operator(&self, operator: &str) -> bool {
        matches!(self.peek(), Some(Kind::Operator(found)) if *found == operator)
    }

    pub(super) fn take(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, operator: &'static str) -> Parsed<()> {
        if self.take(operator) { Ok(()) } else { self.unexpected(&format!("'{operator}'")) }
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Kind::Name(name)) if **name == *word)
    }

    pub(super) fn take_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn name(&mut self) -> Parsed<Arc<str>> {
        let Some(Kind::Name(name)) = self.peek() else { return self.unexpected("a name") };
        let name = name.clone();
        self.at += 1;
        Ok(name)
    }

    fn end_of_block(&mut self) -> Parsed<()> {
        if self.peek() != Some(&Kind::BlockEnd) {
            return self.unexpected("the end of the tag");
        }
        self.at += 1;
        Ok(())
    }

    /// Statements up to a tag that begins with one of these words, which is passed; the tag's rest is not.
    fn statements(&mut self, ends: &[&str]) -> Parsed<(Vec<Statement>, Option<Arc<str>>)> {
        let mut all = Vec::new();
        while let Some(Token { kind, line }) = self.tokens.get(self.at) {
            let (line, kind) = (*line, kind.clone());
            self.at += 1;
            match kind {
                Kind::Data(text) => all.push(Statement { line, kind: Action::Data(text) }),
                Kind::PrintBegin => {
                    let value = self.tuple_or_one()?;
                    if self.peek() != Some(&Kind::PrintEnd) {
                        return self.unexpected("'}}'");
                    }
                    self.at += 1;
                    all.push(Statement { line, kind: Action::Print(value) });
                }
                Kind::BlockBegin => {
                    let word = self.name()?;
                    if ends.contains(&&*word) {
                        return Ok((all, Some(word)));
                    }
                    let mut made = self.nested(|parser| parser.statement(&word))?;
                    all.extend(made.drain(..).map(|kind| Statement { line, kind }));
                }
                _ => return self.fail("a token outside of a tag"),
            }
        }
        match ends {
            [] => Ok((all, None)),
            [.., last] => self.fail(format!("'{last}' is missing at the end")),
        }
    }

    /// The statements of a block with one ending.
    fn body(&mut self, end: &'static str) -> Parsed<Vec<Statement>> {
        let (body, _) = self.statements(&[end])?;
        Ok(body)
    }

    fn statement(&mut self, word: &str) -> Parsed<Vec<Action>> {
        let one = match word {
            "if" => self.conditional()?,
            "for" => self.for_loop()?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => self.macro_definition()?,
            "call" => self.call_block()?,
            "filter" => {
                let filters = self.filters(true)?;
                self.end_of_block()?;
                let body = self.body("endfilter")?;
                self.end_of_block()?;
                Action::Filter { filters, body }
            }
            "break" | "continue" => {
                self.end_of_block()?;
                if word == "break" { Action::Break } else { Action::Continue }
            }
            // Marks of training: what is between them is a part of the text.
            "generation" => {
                self.end_of_block()?;
                let body = self.body("endgeneration")?;
                self.end_of_block()?;
                Action::With { values: Vec::new(), body }
            }
            "block" => {
                self.name()?;
                self.end_of_block()?;
                let body = self.body("endblock")?;
                if matches!(self.peek(), Some(Kind::Name(_))) {
                    self.at += 1;
                }
                self.end_of_block()?;
                Action::With { values: Vec::new(), body }
            }
            "autoescape" => {
                self.expression()?;
                self.end_of_block()?;
                let body = self.body("endautoescape")?;
                self.end_of_block()?;
                Action::With { values: Vec::new(), body }
            }
            other => return self.fail(format!("the tag '{other}' is not known here")),
        };
        Ok(vec![one])
    }

    fn conditional(&mut self) -> Parsed<Action> {
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        let mut condition = self.tuple_or_one()?;
        loop {
            self.end_of_block()?;
            let (body, end) = self.statements(&["elif", "else", "endif"])?;
            branches.push((condition, body));
            match end.as_deref() {
                Some("elif") => condition = self.tuple_or_one()?,
                Some("else") => {
                    self.end_of_block()?;
                    otherwise = self.body("endif")?;
                    break;
                }
                _ => break,
            }
        }
        self.end_of_block()?;
        Ok(Action::If { branches, otherwise })
    }

    fn for_loop(&mut self) -> Parsed<Action> {
        let target = self.target()?;
        if !self.take_word("in") {
            return self.unexpected("'in'");
        }
        let items = self.tuple_of(Parser::or)?;
        let condition = if self.take_word("if") { Some(self.expression()?) } else { None };
        let recursive = self.take_word("recursive");
        self.end_of_block()?;
        let (body, end) = self.statements(&["else", "endfor"])?;
        let mut otherwise = Vec::new();
        if end.as_deref() == Some("else") {
            self.end_of_block()?;
            otherwise = self.body("endfor")?;
        }
        self.end_of_block()?;
        self.program.loops.push(For { target, items, condition, body, otherwise, recursive });
        Ok(Action::For(self.program.loops.len() - 1))
    }

    fn set(&mut self) -> Parsed<Action> {
        let target = self.target()?;
        if self.take("=") {
            let value = self.tuple_or_one()?;
            self.end_of_block()?;
            return Ok(Action::Set { target, value });
        }
        let filters = if self.is_operator("|") { self.filters(false)? } else { Vec::new() };
        self.end_of_block()?;
        let body = self.body("endset")?;
        self.end_of_block()?;
        Ok(Action::SetBlock { target, filters, body })
    }

    fn with(&mut self) -> Parsed<Action> {
        let mut values = Vec::new();
        while self.peek() != Some(&Kind::BlockEnd) {
            if !values.is_empty() {
                self.expect(",")?;
            }
            let target = Target::Name({
                let name = self.name()?;
                self.symbol(&name)
            });
            self.expect("=")?;
            values.push((target, self.expression()?));
        }
        self.end_of_block()?;
        let body = self.body("endwith")?;
        self.end_of_block()?;
        Ok(Action::With { values, body })
    }

    fn macro_definition(&mut self) -> Parsed<Action> {
        let name = self.name()?;
        let name = self.symbol(&name);
        let parameters = self.parameters()?;
        self.end_of_block()?;
        let body = self.body("endmacro")?;
        if matches!(self.peek(), Some(Kind::Name(_))) {
            self.at += 1;
        }
        self.end_of_block()?;
        self.program.macros.push(Macro { name, parameters, body });
        Ok(Action::Macro(self.program.macros.len() - 1))
    }

    fn call_block(&mut self) -> Parsed<Action> {
        let parameters = if self.is_operator("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(&call, Expression::Postfix(_, suffixes) if matches!(suffixes.last(), Some(Suffix::Call(_)))) {
            return self.fail("a call block without a call");
        }
        self.end_of_block()?;
        let body = self.body("endcall")?;
        self.end_of_block()?;
        let name = self.symbol(&"caller".into());
        self.program.macros.push(Macro { name, parameters, body });
        Ok(Action::Call { block: self.program.macros.len() - 1, call })
    }

    fn parameters(&mut self) -> Parsed<Vec<(Symbol, Option<Expression>)>> {
        let mut parameters: Vec<(Symbol, Option<Expression>)> = Vec::new();
        self.expect("(")?;
        while !self.take(")") {
            if !parameters.is_empty() {
                self.expect(",")?;
            }
            let name = self.name()?;
            let name = self.symbol(&name);
            let default = if self.take("=") { Some(self.expression()?) } else { None };
            if default.is_none() && matches!(parameters.last(), Some((_, Some(_)))) {
                return self.fail("a parameter without a default behind one that has one");
            }
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    /// Filters; the first may stand without its bar.
    fn filters(&mut self, bare: bool) -> Parsed<Vec<Suffix>> {
        let mut filters = Vec::new();
        if bare {
            filters.push(self.filter()?);
        }
        while self.take("|") {
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    pub(super) fn filter(&mut self) -> Parsed<Suffix> {
        let name = self.dotted()?;
        let arguments = if self.take("(") { self.arguments()? } else { Arguments::default() };
        Ok(Suffix::Filter(name, arguments))
    }

    pub(super) fn dotted(&mut self) -> Parsed<Arc<str>> {
        let mut name = self.name()?;
        while self.take(".") {
            name = format!("{name}.{}", self.name()?).into();
        }
        Ok(name)
    }

    fn target(&mut self) -> Parsed<Target> {
        let mut all = vec![self.one_target()?];
        let mut tuple = false;
        while self.take(",") {
            tuple = true;
            if !matches!(self.peek(), Some(Kind::Name(name)) if &**name != "in") && !self.is_operator("(") {
                break;
            }
            all.push(self.one_target()?);
        }
        match (tuple, all.pop()) {
            (false, Some(one)) => Ok(one),
            (_, last) => Ok(Target::Tuple(all.into_iter().chain(last).collect())),
        }
    }

    fn one_target(&mut self) -> Parsed<Target> {
        if self.take("(") {
            let inner = self.nested(Parser::target)?;
            self.expect(")")?;
            return Ok(inner);
        }
        let name = self.name()?;
        let symbol = self.symbol(&name);
        if self.take(".") {
            return Ok(Target::Member(symbol, self.name()?));
        }
        Ok(Target::Name(symbol))
    }
}
