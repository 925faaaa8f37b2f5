//! As much JSON as a safetensors header needs: objects, lists, strings and integers that are not negative. Depth is bounded.

use super::FormatError;

/// A JSON value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    Object(Vec<(String, Value)>),
    List(Vec<Value>),
    String(String),
    Integer(u64),
}

impl Value {
    /// The numbers, if this is a list of them.
    pub(super) fn into_integers(self) -> Option<Vec<u64>> {
        let Value::List(items) = self else { return None };
        items.into_iter().map(|item| if let Value::Integer(n) = item { Some(n) } else { None }).collect()
    }
}

/// Parses a whole text; spaces may follow the value.
pub(super) fn parse(text: &str) -> Result<Value, FormatError> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    parser.skip_space();
    if parser.at < text.len() { Err(parser.error("something after the end")) } else { Ok(value) }
}

/// Appends a string with its quotes.
pub(super) fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

/// A header nests three deep.
const DEEPEST: usize = 8;

impl Parser<'_> {
    fn error(&self, what: &'static str) -> FormatError {
        FormatError::Json { what, at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Skips spaces and takes a byte if it is next.
    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        let found = self.peek() == Some(byte);
        self.at += found as usize;
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, FormatError> {
        self.skip_space();
        if depth > DEEPEST {
            return Err(self.error("nested too deep"));
        }
        match self.peek() {
            Some(b'{') => self.object(depth),
            Some(b'[') => self.list(depth),
            Some(b'"') => Ok(Value::String(self.string()?)),
            Some(b'0'..=b'9') => self.integer(),
            Some(_) => Err(self.error("neither object, list, string nor integer")),
            None => Err(self.error("an early end")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, FormatError> {
        self.at += 1;
        let mut members = Vec::new();
        if self.take(b'}') {
            return Ok(Value::Object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.error("no name"));
            }
            let name = self.string()?;
            if !self.take(b':') {
                return Err(self.error("no colon"));
            }
            members.push((name, self.value(depth + 1)?));
            if self.take(b'}') {
                return Ok(Value::Object(members));
            }
            if !self.take(b',') {
                return Err(self.error("neither comma nor brace"));
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, FormatError> {
        self.at += 1;
        let mut items = Vec::new();
        if self.take(b']') {
            return Ok(Value::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take(b']') {
                return Ok(Value::List(items));
            }
            if !self.take(b',') {
                return Err(self.error("neither comma nor bracket"));
            }
        }
    }

    fn integer(&mut self) -> Result<Value, FormatError> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        let digits = &self.text[start..self.at];
        if digits.len() > 1 && digits.starts_with('0') || matches!(self.peek(), Some(b'.' | b'e' | b'E')) {
            return Err(self.error("not an integer"));
        }
        digits.parse().map(Value::Integer).map_err(|_| self.error("an integer beyond 64 bits"))
    }

    fn string(&mut self) -> Result<String, FormatError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let Some(c) = rest.chars().next() else { return Err(self.error("a string without end")) };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => out.push(self.escape()?),
                c if (c as u32) < 0x20 => return Err(self.error("a control character in a string")),
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, FormatError> {
        let Some(code) = self.peek() else { return Err(self.error("a string without end")) };
        // An escape that is none may be the first byte of a longer character; the error comes before it would be split.
        let plain = match code {
            b'"' | b'\\' | b'/' => code as char,
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                return self.unicode();
            }
            _ => return Err(self.error("an unknown escape")),
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode(&mut self) -> Result<char, FormatError> {
        let high = self.hex()?;
        if !(0xd800..0xdc00).contains(&high) {
            return char::from_u32(high).ok_or_else(|| self.error("half of a character"));
        }
        if self.text.as_bytes().get(self.at..self.at + 2) != Some(b"\\u") {
            return Err(self.error("half of a character"));
        }
        self.at += 2;
        let low = self.hex()?;
        if !(0xdc00..0xe000).contains(&low) {
            return Err(self.error("half of a character"));
        }
        char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))
            .ok_or_else(|| self.error("half of a character"))
    }

    fn hex(&mut self) -> Result<u32, FormatError> {
        let digits = self.text.get(self.at..self.at + 4).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        let value =
            digits.and_then(|d| u32::from_str_radix(d, 16).ok()).ok_or_else(|| self.error("not four hex digits"))?;
        self.at += 4;
        Ok(value)
    }
}
