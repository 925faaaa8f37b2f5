//! A place in the text, and the words, numbers and values that can be read from there.

use super::{Found, ParseError, ParseErrorKind};
use crate::infer::check_type;
use crate::{BlockFormat, DType, Dim, Scalar, Source, TensorType};
use std::str::FromStr;

/// A place in the text. Copies are cheap: looking ahead is copying.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
    end: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Cursor<'a> {
        Cursor { text, at: 0, end: text.len() }
    }

    /// The text up to another cursor, as a cursor that ends there.
    pub(super) fn until(self, other: Cursor<'a>) -> Cursor<'a> {
        Cursor { end: other.at, ..self }
    }

    /// Goes on where another cursor of the same text is.
    pub(super) fn pass(&mut self, other: Cursor<'_>) {
        self.at = other.at;
    }

    /// The error that something is wrong here.
    pub(super) fn error(self, kind: ParseErrorKind) -> ParseError {
        let before = &self.text[..self.at];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        ParseError { line: before.matches('\n').count() + 1, column: before[line_start..].chars().count() + 1, kind }
    }

    pub(super) fn expected(mut self, expected: &'static str) -> ParseError {
        self.skip_space();
        let found = self.text[self.at..].chars().next().map_or(Found::End, Found::Char);
        self.error(ParseErrorKind::Expected { expected, found })
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..self.end]
    }

    /// Passes white space and comments.
    pub(super) fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            let solid = rest.trim_start_matches(|c: char| c.is_ascii_whitespace());
            self.at += rest.len() - solid.len();
            if !solid.starts_with('#') {
                return;
            }
            self.at += solid.find('\n').unwrap_or(solid.len());
        }
    }

    /// The next byte that is not space.
    pub(super) fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.rest().as_bytes().first().copied()
    }

    /// Passes `wanted`, if it stands here.
    pub(super) fn eat(&mut self, wanted: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(wanted);
        self.at += if found { wanted.len() } else { 0 };
        found
    }

    pub(super) fn expect(&mut self, wanted: &'static str) -> Result<(), ParseError> {
        if self.eat(wanted) { Ok(()) } else { Err(self.expected(wanted)) }
    }

    /// Nothing but space may follow.
    pub(super) fn expect_end(mut self, expected: &'static str) -> Result<(), ParseError> {
        if self.peek().is_none() { Ok(()) } else { Err(self.expected(expected)) }
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let length = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }

    /// Letters, digits and underscores; empty where there are none here.
    pub(super) fn word(&mut self) -> &'a str {
        self.skip_space();
        self.take_while(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    /// A number of the wanted type, with a sign where the type has one.
    pub(super) fn integer<T: FromStr>(&mut self) -> Result<T, ParseError> {
        self.skip_space();
        let start = *self;
        self.at += usize::from(self.rest().starts_with('-'));
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return Err(start.expected("a number"));
        }
        let text = &start.text[start.at..self.at];
        text.parse().map_err(|_| start.out_of_range(text))
    }

    fn out_of_range(self, text: &str) -> ParseError {
        self.error(ParseErrorKind::OutOfRange { text: text.to_owned() })
    }

    /// `%` and the number of a node.
    pub(super) fn node(&mut self) -> Result<u32, ParseError> {
        if !self.eat("%") || !self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return Err(self.expected("a node, like %0,"));
        }
        self.integer()
    }

    pub(super) fn dtype(&mut self) -> Result<DType, ParseError> {
        self.skip_space();
        let start = *self;
        match self.word() {
            "" => Err(start.expected("a dtype")),
            name => name.parse().map_err(|_| start.error(ParseErrorKind::UnknownDType { name: name.to_owned() })),
        }
    }

    /// A dtype and its shape, which a tensor can have.
    pub(super) fn ty(&mut self) -> Result<TensorType, ParseError> {
        self.skip_space();
        let start = *self;
        let dtype = self.dtype()?;
        let ty = TensorType::new(dtype, self.list(Cursor::dim)?);
        match check_type(&ty) {
            Ok(()) => Ok(ty),
            Err(cause) => Err(start.error(ParseErrorKind::BadType { cause: Box::new(cause) })),
        }
    }

    pub(super) fn flag(&mut self) -> Result<bool, ParseError> {
        let start = *self;
        match self.word() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(start.expected("true or false")),
        }
    }

    /// The expression up to a comma or closing bracket that is not its own.
    pub(super) fn dim(&mut self) -> Result<Dim, ParseError> {
        self.skip_space();
        let start = *self;
        let mut depth = 0usize;
        let length = self.rest().find(|c| match c {
            '(' => {
                depth += 1;
                false
            }
            ')' if depth > 0 => {
                depth -= 1;
                false
            }
            ',' => depth == 0,
            ')' | ']' | '}' | '{' | '=' => true,
            _ => false,
        });
        let text = &self.rest()[..length.unwrap_or(self.rest().len())];
        self.at += text.len();
        Dim::parse(text).map_err(|cause| start.error(ParseErrorKind::BadDim { cause }))
    }

    /// A number of that dtype, exactly as [`Scalar`] prints it.
    pub(super) fn scalar(&mut self, dtype: DType) -> Result<Scalar, ParseError> {
        if dtype == DType::Bool {
            return self.flag().map(Scalar::bool);
        }
        if !dtype.is_float() {
            let start = *self;
            let value: i64 = self.integer()?;
            let scalar = Scalar::int(dtype, value);
            return if scalar.as_i64() == value { Ok(scalar) } else { Err(start.out_of_range(&value.to_string())) };
        }
        self.skip_space();
        let start = *self;
        let text = self.take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | ':'));
        let value = match text {
            "nan" => f64::NAN,
            "inf" => f64::INFINITY,
            "-inf" => f64::NEG_INFINITY,
            _ => match text.strip_prefix("nan:") {
                Some(bits) => nan_of_bits(bits).ok_or_else(|| start.expected("the bits of a NaN"))?,
                None => return start.finite(dtype, text),
            },
        };
        if value.is_nan() { Ok(Scalar::Float(dtype, value)) } else { Ok(Scalar::float(dtype, value)) }
    }

    fn finite(self, dtype: DType, text: &str) -> Result<Scalar, ParseError> {
        if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '.')) {
            return Err(self.expected("a number"));
        }
        // Twice rounded is not once rounded: what was printed from f32 is read as f32.
        let value = match dtype {
            DType::F64 => text.parse::<f64>(),
            _ => text.parse::<f32>().map(f64::from),
        };
        let scalar = value.map(|value| Scalar::float(dtype, value)).map_err(|_| self.expected("a number"))?;
        if scalar.as_f64().is_finite() { Ok(scalar) } else { Err(self.out_of_range(text)) }
    }

    /// The name of a block format.
    pub(super) fn format(&mut self) -> Result<BlockFormat, ParseError> {
        self.skip_space();
        let start = *self;
        BlockFormat::from_name(self.word()).ok_or_else(|| start.expected("a block format"))
    }

    /// `0x` and pairs of hexadecimal digits.
    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, ParseError> {
        self.expect("0x")?;
        let digits = self.take_while(|c| c.is_ascii_hexdigit()).as_bytes();
        let value = |digit: u8| (digit as char).to_digit(16).unwrap_or(0) as u8;
        match digits.len() % 2 {
            0 => Ok(digits.chunks_exact(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()),
            _ => Err(self.expected("an even number of digits")),
        }
    }

    /// `[item, item, …]`.
    pub(super) fn list<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Result<T, ParseError>,
    ) -> Result<Vec<T>, ParseError> {
        self.expect("[")?;
        let mut items = Vec::new();
        if self.eat("]") {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.eat("]") {
                return Ok(items);
            }
            if !self.eat(",") {
                return Err(self.expected(", or ]"));
            }
        }
    }

    /// `(a, b)`.
    pub(super) fn pair<T: FromStr>(&mut self) -> Result<(T, T), ParseError> {
        self.expect("(")?;
        let low = self.integer()?;
        self.expect(",")?;
        let high = self.integer()?;
        self.expect(")")?;
        Ok((low, high))
    }

    /// `@ file:line`, if it stands here.
    pub(super) fn source(&mut self) -> Result<Source, ParseError> {
        if !self.eat("@") {
            return Ok(Source::default());
        }
        let file = if self.eat("\"") { self.quoted()? } else { self.take_while(is_plain).to_owned() };
        self.expect(":")?;
        Ok(Source::new(file, self.integer()?))
    }

    /// The text after an opening quote, up to the closing one.
    fn quoted(&mut self) -> Result<String, ParseError> {
        let mut out = String::new();
        loop {
            out.push_str(self.take_while(|c| !matches!(c, '"' | '\\' | '\n')));
            let start = *self;
            let mut chars = self.rest().chars();
            match chars.next() {
                Some('"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some('\\') => {}
                _ => return Err(start.expected("a closing \"")),
            }
            let escaped = match chars.next() {
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some(c @ ('"' | '\\')) => c,
                _ => return Err(start.expected("one of \\\\ \\\" \\n \\r \\t")),
            };
            out.push(escaped);
            self.at += 2;
        }
    }

    /// Passes everything up to a comma or closing brace that is not inside brackets or braces.
    pub(super) fn skip_value(&mut self) {
        let mut depth = 0usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b'}' if depth == 0 => return,
                b')' | b']' | b'}' => depth = depth.saturating_sub(1),
                b',' if depth == 0 => return,
                _ => {}
            }
            self.at += self.rest().chars().next().map_or(0, char::len_utf8);
        }
    }
}

/// Characters of a file name that needs no quotes.
pub(super) fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '+' | '~')
}

fn nan_of_bits(digits: &str) -> Option<f64> {
    let plain = digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let value = plain.then(|| u64::from_str_radix(digits, 16).ok())?.map(f64::from_bits)?;
    value.is_nan().then_some(value)
}
