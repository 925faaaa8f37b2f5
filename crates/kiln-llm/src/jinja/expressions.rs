//! From tokens to a tree: expressions, by Jinja2's precedence. `~` binds more tightly than `+`, and filters and tests bind as
//! tightly as members do.

use super::ast::{Arguments, Choice, Comparison, Expression, Literal, Suffix};
use super::lexer::Kind;
use super::parse::{Parsed, Parser};
use std::sync::Arc;

impl Parser {
    pub(super) fn tuple_or_one(&mut self) -> Parsed<Expression> {
        self.tuple_of(Parser::expression)
    }

    /// Expressions with commas between, or one alone.
    pub(super) fn tuple_of(&mut self, mut one: impl FnMut(&mut Parser) -> Parsed<Expression>) -> Parsed<Expression> {
        let first = one(self)?;
        if !self.is_operator(",") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.take(",") {
            let over = matches!(self.peek(), None | Some(Kind::PrintEnd | Kind::BlockEnd)) || self.is_operator(")");
            if over || self.is_operator("=") {
                break;
            }
            all.push(one(self)?);
        }
        Ok(Expression::Tuple(all))
    }

    pub(super) fn expression(&mut self) -> Parsed<Expression> {
        self.nested(|parser| {
            let then = parser.or()?;
            if !parser.take_word("if") {
                return Ok(then);
            }
            let condition = parser.or()?;
            let otherwise = if parser.take_word("else") { Some(parser.expression()?) } else { None };
            Ok(Expression::Choice(Box::new(Choice { condition, then, otherwise })))
        })
    }

    /// Operands with one word or sign between them, as one list.
    fn chain(
        &mut self,
        operand: fn(&mut Parser) -> Parsed<Expression>,
        next: impl Fn(&mut Parser) -> bool,
        make: fn(Vec<Expression>) -> Expression,
    ) -> Parsed<Expression> {
        let first = operand(self)?;
        if !next(self) {
            return Ok(first);
        }
        let mut all = vec![first, operand(self)?];
        while next(self) {
            all.push(operand(self)?);
        }
        Ok(make(all))
    }

    pub(super) fn or(&mut self) -> Parsed<Expression> {
        self.chain(Parser::and, |parser| parser.take_word("or"), Expression::Or)
    }

    fn and(&mut self) -> Parsed<Expression> {
        self.chain(Parser::not, |parser| parser.take_word("and"), Expression::And)
    }

    fn not(&mut self) -> Parsed<Expression> {
        if self.take_word("not") {
            return Ok(Expression::Not(Box::new(self.nested(Parser::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Parsed<Expression> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparison() {
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Compare(Box::new(first), rest) })
    }

    fn comparison(&mut self) -> Option<Comparison> {
        let signs = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessEqual),
            ("<", Comparison::Less),
            (">=", Comparison::GreaterEqual),
            (">", Comparison::Greater),
        ];
        if let Some((_, comparison)) = signs.into_iter().find(|(sign, _)| self.take(sign)) {
            return Some(comparison);
        }
        if self.take_word("in") {
            return Some(Comparison::In);
        }
        let after = self.tokens.get(self.at + 1).map(|token| &token.kind);
        if self.is_word("not") && matches!(after, Some(Kind::Name(name)) if &**name == "in") {
            self.at += 2;
            return Some(Comparison::NotIn);
        }
        None
    }

    fn arithmetic(
        &mut self,
        operators: &[&'static str],
        operand: fn(&mut Parser) -> Parsed<Expression>,
    ) -> Parsed<Expression> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some(&operator) = operators.iter().find(|operator| self.is_operator(operator)) {
            self.at += 1;
            rest.push((operator, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expression::Arithmetic(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Parsed<Expression> {
        self.arithmetic(&["+", "-"], Parser::concat)
    }

    fn concat(&mut self) -> Parsed<Expression> {
        self.chain(Parser::product, |parser| parser.take("~"), Expression::Concat)
    }

    fn product(&mut self) -> Parsed<Expression> {
        self.arithmetic(&["*", "/", "//", "%"], Parser::power)
    }

    fn power(&mut self) -> Parsed<Expression> {
        self.arithmetic(&["**"], |parser| parser.unary(true))
    }

    fn unary(&mut self, filters: bool) -> Parsed<Expression> {
        let mut value = if self.take("-") {
            Expression::Negative(Box::new(self.nested(|parser| parser.unary(false))?))
        } else if self.take("+") {
            Expression::Positive(Box::new(self.nested(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        let mut suffixes = Vec::new();
        self.members(&mut suffixes)?;
        if filters {
            self.filters_and_tests(&mut suffixes)?;
        }
        if !suffixes.is_empty() {
            value = Expression::Postfix(Box::new(value), suffixes);
        }
        Ok(value)
    }

    /// Filters, tests, and calls of what they give.
    fn filters_and_tests(&mut self, suffixes: &mut Vec<Suffix>) -> Parsed<()> {
        loop {
            if self.take("|") {
                suffixes.push(self.filter()?);
            } else if self.take_word("is") {
                suffixes.push(self.test()?);
            } else if self.take("(") {
                suffixes.push(Suffix::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    /// Members, items and calls.
    fn members(&mut self, suffixes: &mut Vec<Suffix>) -> Parsed<()> {
        loop {
            if self.take(".") {
                let suffix = match self.peek() {
                    Some(Kind::Name(name)) => Suffix::Member(name.clone()),
                    Some(Kind::Integer(n)) => Suffix::Item(Expression::Literal(Literal::Integer(*n))),
                    _ => return self.unexpected("a name"),
                };
                self.at += 1;
                suffixes.push(suffix);
            } else if self.take("[") {
                suffixes.push(self.subscript()?);
            } else if self.take("(") {
                suffixes.push(Suffix::Call(self.arguments()?));
            } else {
                return Ok(());
            }
        }
    }

    fn subscript(&mut self) -> Parsed<Suffix> {
        let mut parts: [Option<Expression>; 3] = [None, None, None];
        let mut colons = 0;
        loop {
            if self.take(":") {
                colons += 1;
                if colons > 2 {
                    return self.fail("a slice of more than three parts");
                }
            } else if self.take("]") {
                break;
            } else if parts[colons].is_none() {
                parts[colons] = Some(self.expression()?);
            } else {
                return self.unexpected("']'");
            }
        }
        match (colons, parts) {
            (0, [Some(item), ..]) => Ok(Suffix::Item(item)),
            (0, _) => self.fail("a subscript without an index"),
            (_, parts) => Ok(Suffix::Slice(Box::new(parts))),
        }
    }

    fn test(&mut self) -> Parsed<Suffix> {
        let negated = self.take_word("not");
        let name = self.dotted()?;
        let mut arguments = Arguments::default();
        let begins = match self.peek() {
            Some(Kind::Name(name)) => !matches!(&**name, "else" | "or" | "and" | "if" | "is" | "in" | "not"),
            Some(Kind::Text(_) | Kind::Integer(_) | Kind::Float(_)) => true,
            Some(Kind::Operator(operator)) => matches!(*operator, "[" | "{"),
            _ => false,
        };
        if self.take("(") {
            arguments = self.arguments()?;
        } else if begins && !self.is_word("recursive") {
            let mut value = self.primary()?;
            let mut suffixes = Vec::new();
            self.members(&mut suffixes)?;
            if !suffixes.is_empty() {
                value = Expression::Postfix(Box::new(value), suffixes);
            }
            arguments.positional.push(value);
        }
        Ok(Suffix::Test { name, arguments, negated })
    }

    /// Behind the parenthesis that opens them.
    pub(super) fn arguments(&mut self) -> Parsed<Arguments> {
        let mut arguments = Arguments::default();
        let mut first = true;
        while !self.take(")") {
            if !std::mem::take(&mut first) {
                self.expect(",")?;
                if self.take(")") {
                    break;
                }
            }
            if self.take("**") {
                arguments.rest_named = Some(Box::new(self.expression()?));
            } else if self.take("*") {
                arguments.rest = Some(Box::new(self.expression()?));
            } else if let Some(name) = self.name_before("=") {
                self.at += 2;
                arguments.named.push((name, self.expression()?));
            } else {
                arguments.positional.push(self.expression()?);
            }
        }
        Ok(arguments)
    }

    /// A name, if this sign is next behind it.
    fn name_before(&self, sign: &str) -> Option<Arc<str>> {
        match (self.peek(), self.tokens.get(self.at + 1).map(|token| &token.kind)) {
            (Some(Kind::Name(name)), Some(Kind::Operator(next))) if *next == sign => Some(name.clone()),
            _ => None,
        }
    }

    fn primary(&mut self) -> Parsed<Expression> {
        let Some(kind) = self.peek().cloned() else { return self.unexpected("a value") };
        self.at += 1;
        Ok(match kind {
            Kind::Name(name) => match &*name {
                "true" | "True" => Expression::Literal(Literal::Bool(true)),
                "false" | "False" => Expression::Literal(Literal::Bool(false)),
                "none" | "None" => Expression::Literal(Literal::None),
                _ => Expression::Name(self.symbol(&name)),
            },
            Kind::Text(text) => {
                let mut all = text.to_string();
                while let Some(Kind::Text(more)) = self.peek() {
                    all.push_str(more);
                    self.at += 1;
                }
                Expression::Literal(Literal::Text(all.into()))
            }
            Kind::Integer(n) => Expression::Literal(Literal::Integer(n)),
            Kind::Float(x) => Expression::Literal(Literal::Float(x)),
            Kind::Operator("(") if self.take(")") => Expression::Tuple(Vec::new()),
            Kind::Operator("(") => {
                let inner = self.tuple_or_one()?;
                self.expect(")")?;
                inner
            }
            Kind::Operator("[") => {
                let mut items = Vec::new();
                while !self.take("]") {
                    if !items.is_empty() {
                        self.expect(",")?;
                        if self.take("]") {
                            break;
                        }
                    }
                    items.push(self.expression()?);
                }
                Expression::List(items)
            }
            Kind::Operator("{") => self.map()?,
            _ => {
                self.at -= 1;
                return self.unexpected("a value");
            }
        })
    }

    fn map(&mut self) -> Parsed<Expression> {
        let mut members = Vec::new();
        while !self.take("}") {
            if !members.is_empty() {
                self.expect(",")?;
                if self.take("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect(":")?;
            members.push((key, self.expression()?));
        }
        Ok(Expression::Map(members))
    }
}
