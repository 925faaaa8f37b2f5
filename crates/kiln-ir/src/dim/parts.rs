//! The parts of the normal form, for code generation from a [`Dim`].

use super::normal::{Atom, OpKind};
use super::{Dim, Symbol};

/// A factor of a term.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'a> {
    /// A symbol.
    Symbol(Symbol),
    /// Division rounded towards −∞.
    FloorDiv(&'a Dim, &'a Dim),
    /// The remainder of [`Factor::FloorDiv`], with the divisor's sign.
    Modulo(&'a Dim, &'a Dim),
    /// The least.
    Min(&'a [Dim]),
    /// The greatest.
    Max(&'a [Dim]),
}

impl Dim {
    /// The symbol that this is a positive multiple of, and the factor: from them a known size gives the symbol's value.
    ///
    /// ```
    /// use kiln_ir::{Dim, Symbol};
    /// let of = |text: &str| Dim::parse(text).unwrap().as_multiple();
    /// assert_eq!(of("6*t"), Some((Symbol::new("t").unwrap(), 6)));
    /// assert!(of("t + 1").is_none() && of("b*t").is_none() && of("-2*t").is_none() && of("8").is_none());
    /// ```
    pub fn as_multiple(&self) -> Option<(Symbol, i64)> {
        let (mut found, mut terms) = (None, 0);
        self.visit_terms(&mut |factor, factors| {
            terms += 1;
            if let ([Factor::Symbol(symbol)], 1..) = (factors, factor) {
                found = Some((*symbol, factor));
            }
        });
        found.filter(|_| terms == 1)
    }

    /// Calls `visit` with the coefficient and the factors of each term; their sum of products is the value. A constant term
    /// has no factors. Calls nothing for zero and for the undefined.
    ///
    /// ```
    /// use kiln_ir::Dim;
    /// let mut text = Vec::new();
    /// Dim::parse("3*a*b + 2").unwrap().visit_terms(&mut |coef, factors| text.push((coef, factors.len())));
    /// text.sort();
    /// assert_eq!(text, [(2, 0), (3, 2)]);
    /// ```
    pub fn visit_terms(&self, visit: &mut dyn FnMut(i64, &[Factor<'_>])) {
        if let Some(c) = self.as_const() {
            if c != 0 {
                visit(c, &[]);
            }
            return;
        }
        let mut factors = Vec::new();
        for term in self.poly_terms() {
            factors.clear();
            factors.extend(term.mono.atoms().iter().map(|atom| match atom {
                Atom::Sym(symbol) => Factor::Symbol(*symbol),
                Atom::Op(op) => match &op.kind {
                    OpKind::Div(a, b) => Factor::FloorDiv(a, b),
                    OpKind::Mod(a, b) => Factor::Modulo(a, b),
                    OpKind::Min(list) => Factor::Min(list),
                    OpKind::Max(list) => Factor::Max(list),
                },
            }));
            visit(term.coef, &factors);
        }
    }
}
