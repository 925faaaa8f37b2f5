//! Sizes and positions as C expressions.

use kiln_ir::dim::Factor;
use kiln_ir::{Dim, Ranges, Symbol};
use kiln_kernels::kernel::Axis;
use std::collections::HashMap;
use std::fmt::Write;

/// The width of index arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    /// 32 bits: every value and every part of it is known to fit.
    Narrow,
    /// 64 bits.
    Wide,
}

/// What symbols are called in the text, and what is known of them.
pub(crate) struct Names {
    names: HashMap<Symbol, String>,
    ranges: Ranges,
}

impl Names {
    /// The size symbols of a kernel as its parameters `s0`, `s1`, ….
    pub(crate) fn of_sizes(sizes: &[Symbol]) -> Names {
        let mut names = Names { names: HashMap::new(), ranges: Ranges::new() };
        for (number, &symbol) in sizes.iter().enumerate() {
            names.names.insert(symbol, format!("s{number}"));
            names.ranges.set(symbol, 0, None);
        }
        names
    }

    /// Adds an axis under a name.
    pub(crate) fn add(&mut self, axis: &Axis, name: String) {
        self.names.insert(axis.var, name);
        self.ranges.set_below(axis.var, axis.size.clone());
    }

    /// A bound of the absolute value, and of every value that is computed on the way to it; `None` where there is none.
    pub(crate) fn magnitude(&self, dim: &Dim) -> Option<i64> {
        if dim.is_undefined() {
            return None;
        }
        let mut sum = Some(0i64);
        dim.visit_terms(&mut |coefficient, factors| {
            let term = factors.iter().try_fold(coefficient.checked_abs(), |product, factor| {
                let factor = match factor {
                    Factor::Symbol(symbol) => self.ranges.get(*symbol).and_then(|(_, high)| high),
                    Factor::FloorDiv(a, b) | Factor::Modulo(a, b) => {
                        self.magnitude(a).zip(self.magnitude(b)).map(|(a, b)| a.max(b))
                    }
                    Factor::Min(list) | Factor::Max(list) => {
                        list.iter().try_fold(0, |most, dim| self.magnitude(dim).map(|one| one.max(most)))
                    }
                };
                Some(product?.checked_mul(factor?))
            });
            sum = sum.zip(term.flatten()).and_then(|(sum, term)| sum.checked_add(term));
        });
        sum
    }

    /// The expression. Symbols without a name are a mistake of the scheduler, which the compiler will report by theirs.
    pub(crate) fn text(&self, dim: &Dim, width: Width) -> String {
        if let Some(value) = dim.as_const() {
            return constant(value);
        }
        let mut out = String::new();
        dim.visit_terms(&mut |coefficient, factors| {
            let mut parts: Vec<String> = factors.iter().map(|factor| self.factor(factor, width)).collect();
            let magnitude = coefficient.unsigned_abs();
            if magnitude != 1 || parts.is_empty() {
                parts.push(constant(magnitude as i64));
            }
            let sign = match (coefficient < 0, out.is_empty()) {
                (true, _) => "-",
                (false, true) => "",
                (false, false) => "+",
            };
            let _ = write!(out, "{sign}{}", parts.join("*"));
        });
        format!("({out})")
    }

    fn factor(&self, factor: &Factor<'_>, width: Width) -> String {
        let text = |dim: &Dim| self.text(dim, width);
        match factor {
            Factor::Symbol(symbol) => {
                self.names.get(symbol).cloned().unwrap_or_else(|| format!("unknown_{}", symbol.as_str()))
            }
            Factor::FloorDiv(a, b) => self.division(a, b, "/", "floor_div", width),
            Factor::Modulo(a, b) => self.division(a, b, "%", "floor_mod", width),
            Factor::Min(list) => nested("lesser", list.iter().map(text)),
            Factor::Max(list) => nested("greater", list.iter().map(text)),
        }
    }

    /// A division that rounds towards −∞; of what is never negative it is C's own, and unsigned, which is cheaper.
    fn division(&self, a: &Dim, b: &Dim, operator: &str, function: &str, width: Width) -> String {
        let (x, y) = (self.text(a, width), self.text(b, width));
        let plain = a.is_nonneg(&self.ranges) && (b - 1).is_nonneg(&self.ranges);
        match (plain, width) {
            (true, Width::Narrow) => format!("(idx)((unsigned){x}{operator}(unsigned){y})"),
            (true, Width::Wide) => format!("({x}{operator}{y})"),
            (false, _) => format!("{function}((idx){x},(idx){y})"),
        }
    }
}

/// A number, with a suffix where it does not fit an `int`.
pub(crate) fn constant(value: i64) -> String {
    match i32::try_from(value) {
        Ok(value) => value.to_string(),
        Err(_) if value == i64::MIN => "(-9223372036854775807LL-1)".to_owned(),
        Err(_) => format!("{value}LL"),
    }
}

fn nested(function: &str, list: impl Iterator<Item = String>) -> String {
    list.reduce(|all, one| format!("{function}((idx){all},(idx){one})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let mut names = Names::of_sizes(&[Symbol::new("t").unwrap()]);
        names.add(&Axis { var: Symbol::axis(0), size: Dim::from(64) }, "g0".to_owned());
        names
    }

    #[test]
    fn sums_of_products() {
        let dim = Dim::axis(0) * 3 - 7;
        assert_eq!(names().text(&dim, Width::Narrow), "(g0*3-7)");
        assert_eq!(names().magnitude(&dim), Some(63 * 3 + 7));
        assert_eq!(names().magnitude(&Dim::symbol("t").unwrap()), None);
    }

    #[test]
    fn divisions_of_what_may_be_negative_round_down() {
        let of = |dim: Dim| names().text(&dim, Width::Narrow);
        assert_eq!(of(Dim::axis(0).floor_div(&Dim::from(5))), "((idx)((unsigned)(g0)/(unsigned)5))");
        let t = Dim::symbol("t").unwrap();
        assert_eq!(of((Dim::axis(0) - t).floor_div(&Dim::from(5))), "(floor_div((idx)(g0-s0),(idx)5))");
    }
}
