//! The text form: `b*4096 + 3`, `(t + 63) // 64`, `i % 4`, `min(a, b)`. What is printed parses back to an equal `Dim`.

use std::fmt;

use super::normal::{Atom, OpKind, Term};
use super::{Dim, Symbol};

/// How the undefined `Dim` is written.
pub(super) const UNDEFINED: &str = "undefined";
/// How deep parentheses and function calls may nest.
const MAX_NESTING: usize = 192;

/// Why a text is not a `Dim`; `at` is a byte offset into it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DimParseError {
    /// A character or the end of the text where something else has to stand.
    #[error("expected {expected} at offset {at}")]
    Expected {
        /// What has to stand there.
        expected: &'static str,
        /// The offset.
        at: usize,
    },
    /// A number that does not fit 64 bits.
    #[error("number too large at offset {at}")]
    NumberTooLarge {
        /// Where the number starts.
        at: usize,
    },
    /// An identifier that is no symbol: longer than 15 characters.
    #[error("`{name}` at offset {at} is longer than {max} characters", max = Symbol::MAX_LEN)]
    NameTooLong {
        /// The identifier.
        name: String,
        /// The offset of its start.
        at: usize,
    },
    /// Parentheses nested too deeply.
    #[error("nested too deeply at offset {at}")]
    TooDeep {
        /// Where the limit was passed.
        at: usize,
    },
    /// An operation that overflows, divides by zero, or passes the limits on terms and factors.
    #[error("the operation at offset {at} overflows, divides by zero or has too many terms")]
    Undefined {
        /// Where the operator stands.
        at: usize,
    },
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(c) = self.as_const() {
            return write!(f, "{c}");
        }
        if self.is_undefined() {
            return f.write_str(UNDEFINED);
        }
        for (at, term) in self.poly_terms().iter().enumerate() {
            // The most negative coefficient has no positive counterpart and keeps its own sign.
            let flip = term.coef < 0 && term.coef != i64::MIN;
            match (at, flip) {
                (0, false) => {}
                (0, true) => f.write_str("-")?,
                (_, false) => f.write_str(" + ")?,
                (_, true) => f.write_str(" - ")?,
            }
            let coef = if flip { -term.coef } else { term.coef };
            write_term(f, term, coef, at == 0 && flip)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn write_term(f: &mut fmt::Formatter<'_>, term: &Term, coef: i64, after_sign: bool) -> fmt::Result {
    let atoms = term.mono.atoms();
    let alone = atoms.len() == 1 && coef == 1 && !after_sign;
    for (at, atom) in atoms.iter().enumerate() {
        if at > 0 {
            f.write_str("*")?;
        }
        match atom {
            Atom::Sym(symbol) => f.write_str(symbol.as_str())?,
            Atom::Op(op) => write_op(f, &op.kind, alone)?,
        }
    }
    match (atoms.is_empty(), coef) {
        (true, _) => write!(f, "{coef}"),
        (false, 1) => Ok(()),
        (false, _) => write!(f, "*{coef}"),
    }
}

fn write_op(f: &mut fmt::Formatter<'_>, kind: &OpKind, alone: bool) -> fmt::Result {
    let (name, list) = match kind {
        OpKind::Div(a, b) => return write_binary(f, a, "//", b, alone),
        OpKind::Mod(a, b) => return write_binary(f, a, "%", b, alone),
        OpKind::Min(list) => ("min", list),
        OpKind::Max(list) => ("max", list),
    };
    write!(f, "{name}(")?;
    for (at, arg) in list.iter().enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        write!(f, "{comma}{arg}")?;
    }
    f.write_str(")")
}

fn write_binary(f: &mut fmt::Formatter<'_>, a: &Dim, operator: &str, b: &Dim, alone: bool) -> fmt::Result {
    let (open, close) = if alone { ("", "") } else { ("(", ")") };
    f.write_str(open)?;
    write_operand(f, a)?;
    write!(f, " {operator} ")?;
    write_operand(f, b)?;
    f.write_str(close)
}

fn write_operand(f: &mut fmt::Formatter<'_>, dim: &Dim) -> fmt::Result {
    if dim.as_const().is_some() || dim.as_symbol().is_some() { write!(f, "{dim}") } else { write!(f, "({dim})") }
}

impl Dim {
    /// Reads the text form: integers, names, `+ - * // %`, parentheses, `min(…)` and `max(…)`, with Python's precedence.
    ///
    /// ```
    /// use kiln_ir::Dim;
    /// let blocks = Dim::parse("(t + 63) // 64 * 2").unwrap();
    /// assert_eq!(blocks.to_string(), "((t + 63) // 64)*2");
    /// assert_eq!(Dim::parse("b + ").unwrap_err().to_string(), "expected a number, a name or `(` at offset 4");
    /// ```
    pub fn parse(text: &str) -> Result<Dim, DimParseError> {
        let mut parser = Parser { text: text.as_bytes(), at: 0, nesting: 0 };
        let dim = parser.sum()?;
        match parser.peek() {
            None => Ok(dim),
            Some(_) => Err(DimParseError::Expected { expected: "an operator or the end", at: parser.at }),
        }
    }
}

impl std::str::FromStr for Dim {
    type Err = DimParseError;

    fn from_str(text: &str) -> Result<Dim, DimParseError> {
        Dim::parse(text)
    }
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    nesting: usize,
}

impl Parser<'_> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn take(&mut self, wanted: u8) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, wanted: u8, expected: &'static str) -> Result<(), DimParseError> {
        if self.take(wanted) { Ok(()) } else { Err(DimParseError::Expected { expected, at: self.at }) }
    }

    /// The result of an operator at `at`, where it is defined or its operands were not.
    fn defined(result: Dim, operands: &[&Dim], at: usize) -> Result<Dim, DimParseError> {
        if result.is_undefined() && !operands.iter().any(|dim| dim.is_undefined()) {
            return Err(DimParseError::Undefined { at });
        }
        Ok(result)
    }

    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T, DimParseError>) -> Result<T, DimParseError> {
        if self.nesting >= MAX_NESTING {
            return Err(DimParseError::TooDeep { at: self.at });
        }
        self.nesting += 1;
        let result = inner(self);
        self.nesting -= 1;
        result
    }

    fn sum(&mut self) -> Result<Dim, DimParseError> {
        let mut left = self.product()?;
        while let Some(operator @ (b'+' | b'-')) = self.peek() {
            let at = self.at;
            self.at += 1;
            let right = self.product()?;
            let result = if operator == b'+' { &left + &right } else { &left - &right };
            left = Self::defined(result, &[&left, &right], at)?;
        }
        Ok(left)
    }

    fn product(&mut self) -> Result<Dim, DimParseError> {
        let mut left = self.factor()?;
        while let Some(operator @ (b'*' | b'/' | b'%')) = self.peek() {
            let at = self.at;
            self.at += 1;
            if operator == b'/' {
                if self.text.get(self.at) != Some(&b'/') {
                    return Err(DimParseError::Expected { expected: "`//`", at });
                }
                self.at += 1;
            }
            let right = self.factor()?;
            let result = match operator {
                b'*' => &left * &right,
                b'/' => left.floor_div(&right),
                _ => left.modulo(&right),
            };
            left = Self::defined(result, &[&left, &right], at)?;
        }
        Ok(left)
    }

    fn factor(&mut self) -> Result<Dim, DimParseError> {
        let at = self.at;
        let mut negative = false;
        while self.take(b'-') {
            negative = !negative;
        }
        if self.peek().is_some_and(|b| b.is_ascii_digit()) {
            return self.number(negative);
        }
        let value = self.primary()?;
        if negative { Self::defined(-&value, &[&value], at) } else { Ok(value) }
    }

    fn number(&mut self, negative: bool) -> Result<Dim, DimParseError> {
        let at = self.at;
        let mut value: i128 = 0;
        while let Some(digit) = self.text.get(self.at).filter(|b| b.is_ascii_digit()) {
            value = value.saturating_mul(10).saturating_add(i128::from(digit - b'0'));
            self.at += 1;
        }
        let value = if negative { -value } else { value };
        i64::try_from(value).map(Dim::from).map_err(|_| DimParseError::NumberTooLarge { at })
    }

    fn primary(&mut self) -> Result<Dim, DimParseError> {
        let expected = "a number, a name or `(`";
        match self.peek() {
            Some(b'(') => {
                self.at += 1;
                let inner = self.nested(Self::sum)?;
                self.expect(b')', "`)`")?;
                Ok(inner)
            }
            Some(b) if b.is_ascii_alphabetic() || b == b'_' => self.name(),
            _ => Err(DimParseError::Expected { expected, at: self.at }),
        }
    }

    fn name(&mut self) -> Result<Dim, DimParseError> {
        let at = self.at;
        while self.text.get(self.at).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_') {
            self.at += 1;
        }
        let name = String::from_utf8_lossy(&self.text[at..self.at]).into_owned();
        match name.as_str() {
            UNDEFINED => Ok(Dim::undefined()),
            "min" if self.take(b'(') => self.call(Dim::min_of, at),
            "max" if self.take(b'(') => self.call(Dim::max_of, at),
            _ => Dim::symbol(&name).ok_or(DimParseError::NameTooLong { name, at }),
        }
    }

    fn call(&mut self, function: fn(Vec<Dim>) -> Dim, at: usize) -> Result<Dim, DimParseError> {
        let args = self.nested(|parser| {
            let mut args = vec![parser.sum()?];
            while parser.take(b',') {
                args.push(parser.sum()?);
            }
            Ok(args)
        })?;
        self.expect(b')', "`,` or `)`")?;
        let operands: Vec<&Dim> = args.iter().collect();
        let result = function(args.clone());
        Self::defined(result, &operands, at)
    }
}
