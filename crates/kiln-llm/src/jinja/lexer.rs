//! From the source of a template to tokens: text as it is, and the words of tags.
//!
//! White space follows transformers' settings: `trim_blocks` (the line end behind a block goes), `lstrip_blocks` (so does the
//! indentation before one), and the signs `-` and `+` of a tag.

use super::{Fault, Syntax};
use std::sync::Arc;

/// A token and the line it is on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: u32,
}

/// What a token is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Text outside of tags.
    Data(Arc<str>),
    BlockBegin,
    BlockEnd,
    PrintBegin,
    PrintEnd,
    Name(Arc<str>),
    Text(Arc<str>),
    Integer(i64),
    Float(f64),
    Operator(&'static str),
}

/// Longest first.
const OPERATORS: [&str; 27] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ":", ",", "|", "(", ")", "[",
    "]", "{", "}", ";", "!",
];

/// Cuts a source into tokens.
pub(super) fn tokens(source: &str) -> Result<Vec<Token>, Syntax> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer { source: &source, at: 0, line: 1, line_starting: true, tokens: Vec::new() };
    lexer.run()?;
    Ok(lexer.tokens)
}

/// What begins at a brace.
#[derive(Clone, Copy, PartialEq)]
enum Tag {
    Block,
    Print,
    Comment,
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    /// Whether the last tag ended with a line end.
    line_starting: bool,
    tokens: Vec<Token>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn fail<T>(&self, problem: impl Into<String>) -> Result<T, Syntax> {
        Err(Syntax { line: self.line, problem: Fault::text(problem) })
    }

    fn push(&mut self, kind: Kind) {
        self.tokens.push(Token { kind, line: self.line });
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.source[self.at..self.at + bytes];
        self.line += passed.bytes().filter(|&byte| byte == b'\n').count() as u32;
        self.at += bytes;
    }

    fn run(&mut self) -> Result<(), Syntax> {
        while self.at < self.source.len() {
            let Some((length, tag)) = next_tag(self.rest()) else {
                self.data(self.rest().len(), self.rest());
                return Ok(());
            };
            let text = &self.rest()[..length];
            let sign = self.rest().as_bytes().get(length + 2).copied();
            let kept = match sign {
                Some(b'-') => text.trim_end(),
                Some(b'+') => text,
                _ if tag == Tag::Print => text,
                _ => without_indentation(text, self.line_starting),
            };
            self.data(length, kept);
            let signed = matches!(sign, Some(b'-' | b'+'));
            self.advance(2 + usize::from(signed));
            self.line_starting = false;
            match tag {
                Tag::Comment => self.comment()?,
                Tag::Block if self.raw()? => {}
                Tag::Block => self.tag(Kind::BlockBegin, Kind::BlockEnd)?,
                Tag::Print => self.tag(Kind::PrintBegin, Kind::PrintEnd)?,
            }
        }
        Ok(())
    }

    /// Passes `length` bytes of text, of which `kept` stays.
    fn data(&mut self, length: usize, kept: &str) {
        if !kept.is_empty() {
            self.push(Kind::Data(kept.into()));
        }
        self.advance(length);
    }

    fn comment(&mut self) -> Result<(), Syntax> {
        let Some(length) = self.rest().find("#}") else { return self.fail("a comment without an end") };
        let trims = self.rest()[..length].ends_with('-');
        self.advance(length + 2);
        self.behind(trims, true);
        Ok(())
    }

    /// White space behind a tag that is over.
    fn behind(&mut self, trims: bool, block: bool) {
        let rest = self.rest();
        let passed = match trims {
            true => rest.len() - rest.trim_start().len(),
            false => usize::from(block && rest.starts_with('\n')),
        };
        self.line_starting = rest[..passed].ends_with('\n');
        self.advance(passed);
    }

    /// Takes a raw block, if one begins behind the `{%` that was passed.
    fn raw(&mut self) -> Result<bool, Syntax> {
        let Some((passed, sign)) = end_of_word_tag(self.rest(), "raw") else { return Ok(false) };
        self.advance(passed);
        self.behind(sign == Some('-'), sign != Some('+'));
        let mut from = 0;
        while let Some(found) = self.rest()[from..].find("{%") {
            let (start, inner) = (from + found, from + found + 2);
            let tag = &self.rest()[inner..];
            let opening = tag.chars().next().filter(|c| matches!(c, '-' | '+'));
            let skipped = usize::from(opening.is_some());
            let Some((passed, sign)) = end_of_word_tag(&tag[skipped..], "endraw") else {
                from = inner;
                continue;
            };
            let text = &self.rest()[..start];
            let kept = match opening {
                Some('-') => text.trim_end(),
                Some(_) => text,
                None => without_indentation(text, self.line_starting),
            };
            self.data(start, kept);
            self.advance(2 + skipped + passed);
            self.behind(sign == Some('-'), sign != Some('+'));
            return Ok(true);
        }
        self.fail("a raw block without an end")
    }

    fn tag(&mut self, begin: Kind, end: Kind) -> Result<(), Syntax> {
        let block = begin == Kind::BlockBegin;
        let closing = if block { "%}" } else { "}}" };
        self.push(begin);
        let mut open: Vec<&'static str> = Vec::new();
        loop {
            let spaces = self.rest().len() - self.rest().trim_start().len();
            self.advance(spaces);
            let rest = self.rest();
            let Some(first) = rest.chars().next() else { return self.fail("a tag without an end") };
            let sign = rest.strip_prefix(['-', '+']).filter(|rest| rest.starts_with(closing)).map(|_| first);
            let sign = sign.filter(|&sign| block || sign == '-');
            if open.is_empty() && (rest.starts_with(closing) || sign.is_some()) {
                self.push(end);
                self.advance(2 + usize::from(sign.is_some()));
                self.behind(sign == Some('-'), block && sign != Some('+'));
                return Ok(());
            }
            let (kind, length) = match first {
                '"' | '\'' => self.text(first)?,
                '0'..='9' => self.number()?,
                c if c.is_alphabetic() || c == '_' => {
                    let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
                    (Kind::Name(rest[..length].into()), length)
                }
                _ => self.operator(&mut open)?,
            };
            self.push(kind);
            self.advance(length);
        }
    }

    fn operator(&self, open: &mut Vec<&'static str>) -> Result<(Kind, usize), Syntax> {
        let Some(&found) = OPERATORS.iter().find(|operator| self.rest().starts_with(**operator)) else {
            return self.fail(format!("'{}' is no part of an expression", self.rest().chars().next().unwrap_or(' ')));
        };
        match found {
            "(" => open.push(")"),
            "[" => open.push("]"),
            "{" => open.push("}"),
            ")" | "]" | "}" if open.pop() != Some(found) => return self.fail(format!("'{found}' closes nothing")),
            _ => {}
        }
        Ok((Kind::Operator(found), found.len()))
    }

    fn text(&self, quote: char) -> Result<(Kind, usize), Syntax> {
        let mut out = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => return Ok((Kind::Text(out.into()), at + 1)),
                '\\' => {
                    let Some((_, escaped)) = chars.next() else { break };
                    let digits = match escaped {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    if digits > 0 {
                        let hex: String = chars.by_ref().take(digits).map(|(_, digit)| digit).collect();
                        let code = u32::from_str_radix(&hex, 16).ok().filter(|_| hex.len() == digits);
                        match code.and_then(char::from_u32) {
                            Some(c) => out.push(c),
                            None => return self.fail("an escape in a text that is no character"),
                        }
                        continue;
                    }
                    match escaped {
                        'n' => out.push('\n'),
                        't' => out.push('\t'),
                        'r' => out.push('\r'),
                        'b' => out.push('\u{8}'),
                        'f' => out.push('\u{c}'),
                        'v' => out.push('\u{b}'),
                        'a' => out.push('\u{7}'),
                        '0' => out.push('\0'),
                        '\n' => {}
                        '\\' | '\'' | '"' => out.push(escaped),
                        other => out.extend(['\\', other]),
                    }
                }
                c => out.push(c),
            }
        }
        self.fail("a text without an end")
    }

    fn number(&self) -> Result<(Kind, usize), Syntax> {
        let rest = self.rest();
        for (prefix, radix) in [("0x", 16), ("0X", 16), ("0o", 8), ("0O", 8), ("0b", 2), ("0B", 2)] {
            if let Some(digits) = rest.strip_prefix(prefix) {
                let length = digits.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(digits.len());
                let value = i64::from_str_radix(&digits[..length].replace('_', ""), radix);
                return value
                    .map_or_else(|_| self.fail("a number that is none"), |n| Ok((Kind::Integer(n), length + 2)));
            }
        }
        let digits = |text: &str| text.find(|c: char| !(c.is_ascii_digit() || c == '_')).unwrap_or(text.len());
        let whole = digits(rest);
        let mut length = whole;
        let fraction = rest[length..].strip_prefix('.').map_or(0, digits);
        if fraction > 0 {
            length += 1 + fraction;
        }
        if let Some(exponent) = rest[length..].strip_prefix(['e', 'E']) {
            let signed = usize::from(exponent.starts_with(['+', '-']));
            let count = digits(&exponent[signed..]);
            if count > 0 {
                length += 1 + signed + count;
            }
        }
        let written = rest[..length].replace('_', "");
        let kind = match length == whole {
            true => written.parse().ok().map(Kind::Integer),
            false => written.parse().ok().map(Kind::Float),
        };
        kind.map_or_else(|| self.fail("a number beyond 64 bits"), |kind| Ok((kind, length)))
    }
}

/// How far away the next tag is, and which it is.
fn next_tag(text: &str) -> Option<(usize, Tag)> {
    let mut from = 0;
    loop {
        let at = from + text[from..].find('{')?;
        let tag = match text.as_bytes().get(at + 1) {
            Some(b'%') => Tag::Block,
            Some(b'{') => Tag::Print,
            Some(b'#') => Tag::Comment,
            _ => {
                from = at + 1;
                continue;
            }
        };
        return Some((at, tag));
    }
}

/// A text without the spaces that indent the tag behind it.
fn without_indentation(text: &str, line_starting: bool) -> &str {
    let line = text.rfind('\n').map_or(0, |at| at + 1);
    let alone = (line > 0 || line_starting) && text[line..].chars().all(char::is_whitespace);
    if alone { &text[..line] } else { text }
}

/// Behind `{%`: how long a tag of one word is, with its sign.
fn end_of_word_tag(text: &str, word: &str) -> Option<(usize, Option<char>)> {
    let rest = text.trim_start().strip_prefix(word)?.trim_start();
    let sign = rest.chars().next().filter(|c| matches!(c, '-' | '+'));
    let rest = if sign.is_some() { &rest[1..] } else { rest };
    let rest = rest.strip_prefix("%}")?;
    Some((text.len() - rest.len(), sign))
}
