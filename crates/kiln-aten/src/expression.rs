//! Sizes as PyTorch writes them: the text of a sympy expression, such as `2*s77 + 1`, `((s0 - 1)//2) + 1` or `Max(1, s0)`.

use kiln_ir::Dim;

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a size that Kiln knows: {reason} at offset {at}")]
pub struct ExpressionError {
    /// The text.
    pub text: String,
    /// The reason.
    pub reason: String,
    /// The offset in bytes.
    pub at: usize,
}

/// Parses a size.
///
/// ```
/// use kiln_ir::Dim;
/// let size = kiln_aten::parse_size("2*s0 + Max(1, s1)//4").unwrap();
/// assert_eq!(size.eval(&|s| Some(if s.as_str() == "s0" { 3 } else { 9 })), Some(8));
/// assert!(kiln_aten::parse_size("sqrt(s0)").is_err());
/// ```
pub fn parse_size(text: &str) -> Result<Dim, ExpressionError> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    let dim = parser.whole()?;
    parser.skip_spaces();
    if parser.at < text.len() {
        return parser.fail("what comes after it is not understood");
    }
    if dim.is_undefined() {
        return parser.fail("it overflows or divides by zero");
    }
    Ok(dim)
}

/// How deep parentheses may nest.
const MAX_DEPTH: usize = 100;

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

/// A number on the way to a size: PyTorch divides and multiplies by fractions before it rounds.
#[derive(Clone)]
struct Fraction {
    top: Dim,
    bottom: Dim,
}

impl From<Dim> for Fraction {
    fn from(top: Dim) -> Fraction {
        Fraction { top, bottom: Dim::from(1) }
    }
}

impl Fraction {
    fn times(self, other: &Fraction) -> Fraction {
        Fraction { top: self.top * &other.top, bottom: self.bottom * &other.bottom }
    }

    fn plus(self, other: &Fraction, sign: i64) -> Fraction {
        if self.bottom == other.bottom {
            return Fraction { top: self.top + &other.top * sign, bottom: self.bottom };
        }
        let top = self.top * &other.bottom + &other.top * &self.bottom * sign;
        Fraction { top, bottom: self.bottom * &other.bottom }
    }

    /// The size that it is, if it is one.
    fn size(&self) -> Option<Dim> {
        if self.bottom.is_one() { Some(self.top.clone()) } else { self.top.div_exact(&self.bottom) }
    }
}

type Parsed = Result<Fraction, ExpressionError>;

impl Parser<'_> {
    fn fail<T>(&self, reason: impl Into<String>) -> Result<T, ExpressionError> {
        Err(ExpressionError { text: self.text.to_owned(), reason: reason.into(), at: self.at })
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn skip_spaces(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn take(&mut self, token: &str) -> bool {
        self.skip_spaces();
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    /// A sum that is a size.
    fn whole(&mut self) -> Result<Dim, ExpressionError> {
        let value = self.sum()?;
        value.size().map_or_else(|| self.fail("this quotient may not be whole"), Ok)
    }

    fn sum(&mut self) -> Parsed {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.fail("it is nested too deeply");
        }
        let mut value = self.product()?;
        loop {
            if self.take("+") {
                value = value.plus(&self.product()?, 1);
            } else if self.take("-") {
                value = value.plus(&self.product()?, -1);
            } else {
                self.depth -= 1;
                return Ok(value);
            }
        }
    }

    fn product(&mut self) -> Parsed {
        let mut value = self.signed()?;
        loop {
            self.skip_spaces();
            // A power is taken by its base.
            if self.rest().starts_with("**") {
                return self.fail("this power is not understood");
            } else if self.take("*") {
                value = value.times(&self.signed()?);
            } else if self.take("//") {
                let divisor = self.signed()?;
                value = match (value.size(), divisor.size()) {
                    (Some(a), Some(b)) => a.floor_div(&b).into(),
                    _ => return self.fail("this quotient may not be whole"),
                };
            } else if self.take("/") {
                let divisor = self.signed()?;
                value = value.times(&Fraction { top: divisor.bottom, bottom: divisor.top });
            } else if self.take("%") {
                let divisor = self.signed()?;
                value = match (value.size(), divisor.size()) {
                    (Some(a), Some(b)) => a.modulo(&b).into(),
                    _ => return self.fail("this remainder may not be whole"),
                };
            } else {
                return Ok(value);
            }
        }
    }

    fn signed(&mut self) -> Parsed {
        if self.take("-") {
            return Ok(Fraction::from(Dim::from(0)).plus(&self.signed()?, -1));
        }
        let base = self.atom()?;
        if !self.take("**") {
            return Ok(base);
        }
        let exponent = self.signed()?;
        match exponent.size().and_then(|n| n.as_const()) {
            Some(n @ 0..=64) => Ok((0..n).fold(Dim::from(1).into(), |power: Fraction, _| power.times(&base))),
            _ => self.fail("an exponent has to be a small number"),
        }
    }

    fn atom(&mut self) -> Parsed {
        if self.take("(") {
            let value = self.sum()?;
            return if self.take(")") { Ok(value) } else { self.fail("a parenthesis is missing") };
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let word: String = self.rest().chars().take_while(|&c| is_word(c)).collect();
        self.at += word.len();
        if word.is_empty() {
            return self.fail("a size is missing");
        }
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            return self.number(&word);
        }
        if !self.take("(") {
            return Dim::symbol(&word).map_or_else(|| self.fail("this is no name of a size"), |dim| Ok(dim.into()));
        }
        let mut arguments = vec![self.sum()?];
        while self.take(",") {
            arguments.push(self.sum()?);
        }
        if !self.take(")") {
            return self.fail("a parenthesis is missing");
        }
        self.function(&word, &arguments)
    }

    /// A number; one with a point only if it is a fraction that floats have exactly.
    fn number(&self, word: &str) -> Parsed {
        if let Ok(number) = word.parse::<i64>() {
            return Ok(Dim::from(number).into());
        }
        const PARTS: f64 = (1i64 << 20) as f64;
        match word.parse::<f64>() {
            Ok(number) if number.abs() < PARTS && (number * PARTS).fract() == 0.0 => {
                let (mut top, mut bottom) = ((number * PARTS) as i64, PARTS as i64);
                while bottom > 1 && top % 2 == 0 {
                    (top, bottom) = (top / 2, bottom / 2);
                }
                Ok(Fraction { top: Dim::from(top), bottom: Dim::from(bottom) })
            }
            _ => self.fail("this number is not understood"),
        }
    }

    fn function(&self, name: &str, arguments: &[Fraction]) -> Parsed {
        match (name, arguments) {
            ("IntTrueDiv" | "FloatTrueDiv", [a, b]) => {
                return Ok(a.clone().times(&Fraction { top: b.bottom.clone(), bottom: b.top.clone() }));
            }
            ("CeilToInt", [a]) => return Ok(a.top.ceil_div(&a.bottom).into()),
            ("FloorToInt", [a]) => return Ok(a.top.floor_div(&a.bottom).into()),
            ("ToFloat" | "Identity" | "ToInt", [a]) => return Ok(a.clone()),
            _ => {}
        }
        let sizes: Option<Vec<Dim>> = arguments.iter().map(Fraction::size).collect();
        let Some(sizes) = sizes else { return self.fail(format!("an argument of {name} may not be whole")) };
        match (name, sizes.as_slice()) {
            ("FloorDiv" | "CleanDiv", [a, b]) => Ok(a.floor_div(b).into()),
            ("CeilDiv", [a, b]) => Ok(a.ceil_div(b).into()),
            ("Mod" | "PythonMod", [a, b]) => Ok(a.modulo(b).into()),
            ("Abs", [a]) => Ok(Dim::max_of([a.clone(), a.clone() * -1]).into()),
            ("Max", _) => Ok(Dim::max_of(sizes.iter().cloned()).into()),
            ("Min", _) => Ok(Dim::min_of(sizes.iter().cloned()).into()),
            _ => self.fail(format!("the function {name} is not understood")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> i64 {
        let size = |symbol: kiln_ir::Symbol| symbol.as_str()[1..].parse().ok();
        parse_size(text).unwrap().eval(&size).unwrap()
    }

    #[test]
    fn expressions_of_captured_models() {
        assert_eq!(value("s22*s26**2"), 22 * 26 * 26);
        assert_eq!(value("((s26 - 1)//2) + 1"), 13);
        assert_eq!(value("-s5 + 2*(s7 - 1)"), 7);
        assert_eq!(value("Max(1, s3)*PythonMod(s10, 4)"), 6);
        assert_eq!(value("(6*s4)/3"), 8);
        assert_eq!(value("FloorDiv(-7, 2)"), -4);
        assert_eq!(value("-2**2"), -4);
        assert_eq!(value("Abs(s3 - 5) + Abs(s2)"), 4);
        assert_eq!(value("CeilToInt(1.0*ToFloat(s47))"), 47);
        assert_eq!(value("CeilToInt(IntTrueDiv(s7, 2))"), 4);
        assert_eq!(value("FloorToInt(0.75*s10 + 0.5)"), 8);
        assert_eq!(value("IntTrueDiv(6*s4, 3) + 1"), 9);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in
            ["", "s0 +", "s0/2", "2**s0", "sqrt(s0)", "(s0", "s0)", "s0 s1", "1.5", "0.1*s0", "s0//0", "2**2**9"]
        {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size(&"(".repeat(10_000)).is_err());
    }
}
