//! Python's two ways to format: `'%5.2f' % x` and `'{:>5}'.format(x)`. Widths and precisions are a template's to choose, so
//! that they are paid for before anything of that length is made.

use super::Fault;
use super::budget::Budget;
use super::machine::Given;
use super::text::{Side, pad};
use super::value::{Value, float};

type Done<T> = Result<T, Fault>;

/// How one value is written.
#[derive(Debug, Clone)]
struct Spec {
    fill: char,
    align: Option<char>,
    sign: char,
    alternate: bool,
    width: usize,
    grouping: Option<char>,
    precision: Option<usize>,
    kind: char,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            fill: ' ',
            align: None,
            sign: '-',
            alternate: false,
            width: 0,
            grouping: None,
            precision: None,
            kind: 's',
        }
    }
}

/// More digits behind the point than this have no meaning in 64 bits.
const DIGITS: usize = 1100;

impl Spec {
    fn write(&self, value: &Value, budget: &mut Budget) -> Done<String> {
        let (text, number) = match self.kind {
            's' => {
                let mut text = String::new();
                value.write(&mut text, budget)?;
                if let Some(most) = self.precision {
                    text = text.chars().take(most).collect();
                }
                (text, false)
            }
            'c' => {
                let code = value.as_integer().and_then(|n| u32::try_from(n).ok()).and_then(char::from_u32);
                (code.ok_or_else(|| Fault::text("%c of what is no character"))?.to_string(), false)
            }
            _ => (self.number(value)?, true),
        };
        let align = self.align.unwrap_or(if number { '>' } else { '<' });
        if align == '=' {
            let digits = text.find(|c: char| !matches!(c, '+' | '-' | ' ')).unwrap_or(0);
            let rest = pad(&text[digits..], self.width.saturating_sub(digits), self.fill, Side::Left, budget)?;
            return Ok(format!("{}{rest}", &text[..digits]));
        }
        let side = match align {
            '<' => Side::Right,
            '^' => Side::Both,
            _ => Side::Left,
        };
        pad(&text, self.width, self.fill, side, budget)
    }

    fn number(&self, value: &Value) -> Done<String> {
        let wrong = || Fault::text(format!("{} cannot be written as '{}'", value.kind(), self.kind));
        let precision = self.precision.unwrap_or(6).min(DIGITS);
        let (negative, mut digits) = match self.kind {
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'b' | 'n' => {
                let whole = match value {
                    Value::Float(x) if matches!(self.kind, 'd' | 'i' | 'u') => *x as i64,
                    other => other.as_integer().ok_or_else(wrong)?,
                };
                let size = whole.unsigned_abs();
                let (prefix, digits) = match self.kind {
                    'x' => ("0x", format!("{size:x}")),
                    'X' => ("0X", format!("{size:X}")),
                    'o' => ("0o", format!("{size:o}")),
                    'b' => ("0b", format!("{size:b}")),
                    _ => ("", size.to_string()),
                };
                (whole < 0, if self.alternate { format!("{prefix}{digits}") } else { digits })
            }
            'f' | 'F' | 'e' | 'E' | 'g' | 'G' | '%' => {
                let x = value.as_number().ok_or_else(wrong)?;
                let size = x.abs();
                let digits = match self.kind {
                    'f' | 'F' => format!("{size:.precision$}"),
                    '%' => format!("{:.precision$}%", size * 100.0),
                    'e' | 'E' => exponent(size, precision, self.kind),
                    _ => general(size, self.precision.unwrap_or(6).clamp(1, DIGITS), self.kind),
                };
                (x.is_sign_negative() && !x.is_nan(), digits)
            }
            _ => return Err(Fault::text(format!("values cannot be written as '{}'", self.kind))),
        };
        if let Some(mark) = self.grouping {
            digits = grouped(&digits, mark);
        }
        Ok(match (negative, self.sign) {
            (true, _) => format!("-{digits}"),
            (false, '+') => format!("+{digits}"),
            (false, ' ') => format!(" {digits}"),
            (false, _) => digits,
        })
    }
}

fn exponent(x: f64, precision: usize, kind: char) -> String {
    let text = format!("{x:.precision$e}");
    let Some((digits, power)) = text.split_once('e') else { return text };
    let (sign, power) = power.strip_prefix('-').map_or(('+', power), |rest| ('-', rest));
    format!("{digits}{kind}{sign}{power:0>2}")
}

/// As few digits as `precision` needs, with an exponent where the number is large or small.
fn general(x: f64, precision: usize, kind: char) -> String {
    let power = format!("{x:.*e}", precision - 1).split_once('e').and_then(|(_, power)| power.parse::<i64>().ok());
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    match power {
        Some(power) if (-4..precision as i64).contains(&power) => {
            let behind = usize::try_from(precision as i64 - 1 - power).unwrap_or(0);
            trimmed(&format!("{x:.behind$}"))
        }
        Some(_) => {
            let letter = if kind == 'G' { 'E' } else { 'e' };
            let text = exponent(x, precision - 1, letter);
            let (digits, power) = text.split_once(letter).unwrap_or((&text, ""));
            format!("{}{letter}{power}", trimmed(digits))
        }
        None => float(x),
    }
}

fn grouped(digits: &str, mark: char) -> String {
    let whole = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let mut out = String::new();
    for (at, digit) in digits[..whole].chars().enumerate() {
        if at > 0 && (whole - at).is_multiple_of(3) {
            out.push(mark);
        }
        out.push(digit);
    }
    out + &digits[whole..]
}

/// A number at the beginning of a text, and what is behind it. One that is too large is as large as can be.
fn leading(text: &str) -> (Option<usize>, &str) {
    let length = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = (length > 0).then(|| text[..length].parse().unwrap_or(usize::MAX));
    (number, &text[length..])
}

/// `template % arguments`; `all` is what names are members of.
pub(super) fn percent(template: &str, arguments: &[Value], all: &Value, budget: &mut Budget) -> Done<String> {
    let mut out = String::new();
    let mut rest = template;
    let mut next = arguments.iter();
    let mut by_name = false;
    while let Some(at) = rest.find('%') {
        budget.bytes(at)?;
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let mut value = None;
        if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            value = Some(all.named(name, budget)?.ok_or_else(|| Fault::text(format!("no value is named '{name}'")))?);
            (rest, by_name) = (after, true);
        }
        let mut spec = Spec::default();
        let mut zero = false;
        let mut left = false;
        while let Some(flag) = rest.chars().next().filter(|c| "-+ #0".contains(*c)) {
            match flag {
                '-' => left = true,
                '0' => zero = true,
                '#' => spec.alternate = true,
                // A plus sign counts more than a space.
                sign if spec.sign != '+' => spec.sign = sign,
                _ => {}
            }
            rest = &rest[1..];
        }
        let mut number = |rest: &mut &str| -> Done<Option<usize>> {
            if let Some(after) = rest.strip_prefix('*') {
                *rest = after;
                let given = next.next().and_then(Value::as_integer);
                let given = given.ok_or_else(|| Fault::text("a width in a format has no number"))?;
                return Ok(Some(usize::try_from(given).unwrap_or(0)));
            }
            let (found, after) = leading(rest);
            *rest = after;
            Ok(found)
        };
        spec.width = number(&mut rest)?.unwrap_or(0);
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
            spec.precision = Some(number(&mut rest)?.unwrap_or(0));
        }
        rest = rest.trim_start_matches(['h', 'l', 'L']);
        let Some(kind) = rest.chars().next() else { return Err(Fault::text("a format that ends too early")) };
        rest = &rest[kind.len_utf8()..];
        if kind == '%' {
            budget.bytes(1)?;
            out.push('%');
            continue;
        }
        let value = match value {
            Some(value) => value,
            None => next.next().cloned().ok_or_else(|| Fault::text("a format with more fields than values"))?,
        };
        spec.kind = kind;
        let mut value = value;
        if matches!(kind, 'r' | 'a') {
            let mut text = String::new();
            budget.room(value.extent().weight.saturating_mul(10))?;
            value.represent(&mut text);
            (value, spec.kind) = (Value::text(text), 's');
        }
        if left {
            spec.align = Some('<');
        } else if zero && !matches!(kind, 's' | 'r' | 'a' | 'c') {
            (spec.align, spec.fill) = (Some('='), '0');
        } else {
            spec.align = Some('>');
        }
        let written = spec.write(&value, budget)?;
        budget.bytes(written.len())?;
        out.push_str(&written);
    }
    if next.next().is_some() && !by_name && !matches!(all, Value::Map(_)) {
        return Err(Fault::text("a format with more values than fields"));
    }
    budget.bytes(rest.len())?;
    Ok(out + rest)
}

/// `template.format(…)`.
pub(super) fn braces(template: &str, given: &Given, budget: &mut Budget) -> Done<String> {
    let mut out = String::new();
    let mut rest = template;
    let mut next = 0;
    while let Some(at) = rest.find(['{', '}']) {
        budget.bytes(at + 1)?;
        out.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(Fault::text("a format with a '}' alone"));
        }
        // A width may be a field of its own.
        let mut depth = 1;
        let end = rest.find(|c: char| {
            depth += match c {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            depth == 0
        });
        let Some(end) = end else { return Err(Fault::text("a format with a '{' alone")) };
        let field = &rest[..end];
        rest = &rest[end + 1..];
        let written = replacement(field, given, &mut next, budget)?;
        budget.bytes(written.len())?;
        out.push_str(&written);
    }
    budget.bytes(rest.len())?;
    Ok(out + rest)
}

/// `name!conversion:spec`.
fn replacement(field: &str, given: &Given, next: &mut usize, budget: &mut Budget) -> Done<String> {
    let (name, spec) = field.split_once(':').unwrap_or((field, ""));
    let (name, conversion) = name.split_once('!').map_or((name, None), |(name, kind)| (name, Some(kind)));
    let mut value = lookup(name, given, next, budget)?;
    if let Some(kind) = conversion {
        let mut text = String::new();
        match kind {
            "s" => value.write(&mut text, budget)?,
            "r" | "a" => {
                budget.room(value.extent().weight.saturating_mul(10))?;
                value.represent(&mut text);
            }
            _ => return Err(Fault::text(format!("a format with the conversion '{kind}'"))),
        }
        value = Value::text(text);
    }
    // Fields within a spec nest no deeper.
    let mut filled = String::new();
    let mut rest = spec;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((inner, behind)) = after.split_once('}') else { return Err(Fault::text("a format with a '{' alone")) };
        filled.push_str(before);
        lookup(inner, given, next, budget)?.write(&mut filled, budget)?;
        rest = behind;
    }
    filled.push_str(rest);
    parse_spec(&filled, &value)?.write(&value, budget)
}

fn lookup(name: &str, given: &Given, next: &mut usize, budget: &mut Budget) -> Done<Value> {
    let end = name.find(['.', '[']).unwrap_or(name.len());
    let (head, mut path) = name.split_at(end);
    let missing = || Fault::text(format!("a format has no value for '{name}'"));
    let mut value = if head.is_empty() {
        *next += 1;
        given.positional.get(*next - 1).cloned()
    } else if let (Some(at), "") = leading(head) {
        given.positional.get(at).cloned()
    } else {
        given.named.iter().find(|(known, _)| **known == *head).map(|(_, value)| value.clone())
    }
    .ok_or_else(missing)?;
    while !path.is_empty() {
        let (key, rest) = match path.strip_prefix('[') {
            Some(inner) => inner.split_once(']').ok_or_else(missing)?,
            None => {
                let inner = path.strip_prefix('.').ok_or_else(missing)?;
                inner.split_at(inner.find(['.', '[']).unwrap_or(inner.len()))
            }
        };
        value = match (&value, key.parse::<i64>()) {
            (Value::List(_), Ok(at)) => super::sequences::element(&value, at, budget)?,
            _ => value.named(key, budget)?.ok_or_else(missing)?,
        };
        path = rest;
    }
    Ok(value)
}

fn parse_spec(text: &str, value: &Value) -> Done<Spec> {
    let mut spec = Spec::default();
    let mut rest = text;
    let mut chars = rest.chars();
    let (first, second) = (chars.next(), chars.next());
    let is_align = |c: Option<char>| c.is_some_and(|c| "<>^=".contains(c));
    if let (Some(fill), true) = (first, is_align(second)) {
        (spec.fill, spec.align) = (fill, second);
        rest = chars.as_str();
    } else if is_align(first) {
        spec.align = first;
        rest = &rest[1..];
    }
    if let Some(sign) = rest.chars().next().filter(|c| "+- ".contains(*c)) {
        spec.sign = sign;
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('#') {
        (spec.alternate, rest) = (true, after);
    }
    let zero = rest.starts_with('0');
    if zero && spec.align.is_none() {
        (spec.fill, spec.align) = ('0', Some('='));
    }
    let (width, after) = leading(rest);
    (spec.width, rest) = (width.unwrap_or(0), after);
    if let Some(mark) = rest.chars().next().filter(|c| matches!(c, ',' | '_')) {
        spec.grouping = Some(mark);
        rest = &rest[1..];
    }
    if let Some(after) = rest.strip_prefix('.') {
        let (digits, after) = leading(after);
        (spec.precision, rest) = (Some(digits.ok_or_else(|| Fault::text("a format without its precision"))?), after);
    }
    let mut kinds = rest.chars();
    spec.kind = match (kinds.next(), value) {
        (Some(kind), _) => kind,
        (None, Value::Integer(_)) => 'd',
        (None, Value::Float(_)) if spec.precision.is_some() => 'g',
        (None, Value::Float(x)) if spec.sign == '-' => {
            // As `str` writes it, but to the right.
            spec.align = spec.align.or(Some('>'));
            return if x.is_sign_negative() && spec.align == Some('=') {
                Ok(Spec { kind: 'g', ..spec })
            } else {
                Ok(spec)
            };
        }
        (None, Value::Float(_)) => 'g',
        (None, _) => 's',
    };
    if kinds.next().is_some() {
        return Err(Fault::text(format!("the format '{text}' is not known")));
    }
    Ok(spec)
}
