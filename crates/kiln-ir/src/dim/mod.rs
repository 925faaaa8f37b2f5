//! Symbolic integers: the sizes of shapes and the index expressions of kernels.
//!
//! ```text
//!  Dim ─┬─ a constant                                  no allocation
//!       └─ coefficient · atom · atom + … + constant    one shared allocation
//!                            └── symbol | a // b | a % b | min(a, …) | max(a, …), arguments normalised
//! ```
//!
//! A [`Dim`] is always in normal form, so `==` compares structure: equal structure means equal value at every point.
//! Order never depends on addresses. Two rules hold throughout:
//!
//! - *Refinement.* Wherever an expression as written has a value, its normal form has the same value. The normal form may also have
//!   one where the original divides by zero (`t // t` is `1`).
//! - *Bounded.* Overflow of a coefficient, division by the constant zero, and expressions beyond the size limits
//!   (4096 terms, 32 factors, 64 nested operations) give the [undefined](Dim::undefined) `Dim`, which absorbs everything
//!   and never evaluates. Nothing here panics or saturates to a wrong number.

mod bytes;
mod divide;
mod normal;
mod parts;
mod prove;
mod ranges;
mod simplify;
mod symbol;
#[cfg(test)]
mod tests;
mod text;

use std::cmp::Ordering;
use std::ops::{Add, AddAssign, Mul, MulAssign, Neg, Sub, SubAssign};
use std::sync::Arc;

use normal::{Atom, Monomial, OpKind, Term};
pub use parts::Factor;
pub use ranges::Ranges;
pub use symbol::Symbol;
pub use text::DimParseError;

/// A symbolic integer in normal form.
///
/// ```
/// use kiln_ir::Dim;
/// let t = Dim::symbol("t").unwrap();
/// let blocks = (&t + 63).floor_div(&Dim::from(64));
/// assert_eq!(blocks.to_string(), "(t + 63) // 64");
/// assert_eq!(blocks.eval(&|_| Some(65)), Some(2));
/// assert_eq!((&t + 1) * (&t - 1), &t * &t - 1);
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Dim(Repr);

/// An empty sum is the undefined value, which keeps a `Dim` at two words.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Const(i64),
    Poly(Arc<[Term]>),
}

impl Dim {
    /// The `Dim` of a symbol of that name, or `None` where the name is not one.
    pub fn symbol(name: &str) -> Option<Dim> {
        Symbol::new(name).map(Dim::from)
    }

    /// The loop variable number `n`, as [`Symbol::axis`].
    pub fn axis(n: usize) -> Dim {
        Symbol::axis(n).into()
    }

    /// The result of an overflow, of a division by zero, or of an expression beyond the size limits.
    pub fn undefined() -> Dim {
        Dim(Repr::Poly(Arc::default()))
    }

    /// Whether this is [`Dim::undefined`].
    pub fn is_undefined(&self) -> bool {
        matches!(&self.0, Repr::Poly(terms) if terms.is_empty())
    }

    /// The number, where it is one.
    #[inline]
    pub fn as_const(&self) -> Option<i64> {
        match self.0 {
            Repr::Const(c) => Some(c),
            Repr::Poly(_) => None,
        }
    }

    /// The number, where it is one and not negative.
    #[inline]
    pub fn as_usize(&self) -> Option<usize> {
        self.as_const().and_then(|c| usize::try_from(c).ok())
    }

    /// The symbol, where the whole expression is one.
    pub fn as_symbol(&self) -> Option<Symbol> {
        match self.poly_terms() {
            [Term { coef: 1, mono: Monomial::Single(Atom::Sym(symbol)) }] => Some(*symbol),
            _ => None,
        }
    }

    /// Whether this is the constant 0.
    #[inline]
    pub fn is_zero(&self) -> bool {
        self.as_const() == Some(0)
    }

    /// Whether this is the constant 1.
    #[inline]
    pub fn is_one(&self) -> bool {
        self.as_const() == Some(1)
    }

    /// Calls `visit` with every occurrence of a symbol, in order.
    pub fn visit_symbols(&self, visit: &mut dyn FnMut(Symbol)) {
        for atom in self.atoms() {
            match atom {
                Atom::Sym(symbol) => visit(*symbol),
                Atom::Op(op) => op.kind.args().for_each(|arg| arg.visit_symbols(visit)),
            }
        }
    }

    /// The symbols, each once, ordered by name.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut out = Vec::new();
        self.visit_symbols(&mut |symbol| out.push(symbol));
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Whether `symbol` occurs anywhere in the expression.
    pub fn contains(&self, symbol: Symbol) -> bool {
        self.atoms().any(|atom| atom.contains(symbol))
    }

    fn atoms(&self) -> impl Iterator<Item = &Atom> {
        self.poly_terms().iter().flat_map(|term| term.mono.atoms())
    }

    /// Replaces every symbol for which `with` gives an expression, all at once, and normalises again.
    ///
    /// ```
    /// use kiln_ir::Dim;
    /// let flat = Dim::parse("(i*64 + j) // 64").unwrap();
    /// let at = flat.substitute(&|s| (s.as_str() == "j").then(|| Dim::from(65)));
    /// assert_eq!(at.to_string(), "i + 1");
    /// ```
    pub fn substitute(&self, with: &dyn Fn(Symbol) -> Option<Dim>) -> Dim {
        self.map_atoms(&mut |atom| match atom {
            Atom::Sym(symbol) => with(*symbol),
            Atom::Op(op) => {
                let mapped: Vec<Dim> = op.kind.args().map(|arg| arg.substitute(with)).collect();
                let changed = op.kind.args().zip(&mapped).any(|(old, new)| old != new);
                changed.then(|| op.kind.rebuild(&mapped))
            }
        })
    }

    /// Replaces every atom for which `map` gives an expression.
    fn map_atoms(&self, map: &mut dyn FnMut(&Atom) -> Option<Dim>) -> Dim {
        let terms = self.poly_terms();
        let mut kept: Vec<Term> = Vec::new();
        let mut changed = Dim::default();
        for term in terms {
            let mut product: Option<Dim> = None;
            for (at, atom) in term.mono.atoms().iter().enumerate() {
                let new = map(atom);
                product = match (product, new) {
                    (None, None) => None,
                    (None, Some(new)) => {
                        let before = term.mono.atoms()[..at].iter().cloned().map(Dim::from_atom);
                        Some(before.fold(new.mul_const(term.coef), |acc, atom| acc * atom))
                    }
                    (Some(acc), Some(new)) => Some(acc * new),
                    (Some(acc), None) => Some(acc * Dim::from_atom(atom.clone())),
                };
            }
            match product {
                Some(product) => changed += product,
                None => kept.push(term.clone()),
            }
        }
        if kept.len() == terms.len() { self.clone() } else { Dim::from_sorted_terms(kept) + changed }
    }

    /// The value where every symbol has the value `value` gives. `None` when a symbol has none, a divisor is zero, the
    /// result does not fit 64 bits or an intermediate result does not fit 128, or the `Dim` is undefined.
    pub fn eval(&self, value: &dyn Fn(Symbol) -> Option<i64>) -> Option<i64> {
        match self.0 {
            Repr::Const(c) => Some(c),
            Repr::Poly(_) => self.eval_wide(value)?.try_into().ok(),
        }
    }

    fn eval_wide(&self, value: &dyn Fn(Symbol) -> Option<i64>) -> Option<i128> {
        let terms = match &self.0 {
            Repr::Const(c) => return Some((*c).into()),
            Repr::Poly(terms) if terms.is_empty() => return None,
            Repr::Poly(terms) => terms,
        };
        let mut sum: i128 = 0;
        for term in terms.iter() {
            let mut product = i128::from(term.coef);
            for atom in term.mono.atoms() {
                let factor = match atom {
                    Atom::Sym(symbol) => value(*symbol)?.into(),
                    Atom::Op(op) => op.kind.eval(value)?,
                };
                product = product.checked_mul(factor)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }

    /// `(coef, rest)` with `self == coef · symbol + rest` and `symbol` in neither. `None` where the symbol occurs in the
    /// argument of a division, remainder, minimum or maximum, or with a degree above one.
    pub fn linear_in(&self, symbol: Symbol) -> Option<(Dim, Dim)> {
        if self.is_undefined() {
            return None;
        }
        let atom = Monomial::Single(Atom::Sym(symbol));
        let (mut coef, mut rest) = (Vec::new(), Vec::new());
        for term in self.terms().as_slice() {
            match term.mono.over(&atom) {
                Some(mono) => coef.push(Term { mono, coef: term.coef }),
                None => rest.push(term.clone()),
            }
        }
        let (coef, rest) = (Dim::from_sorted_terms(coef), Dim::from_sorted_terms(rest));
        (!coef.contains(symbol) && !rest.contains(symbol)).then_some((coef, rest))
    }
}

impl Atom {
    fn contains(&self, symbol: Symbol) -> bool {
        match self {
            Atom::Sym(own) => *own == symbol,
            Atom::Op(op) => op.kind.args().any(|arg| arg.contains(symbol)),
        }
    }
}

impl OpKind {
    /// The same operation on other arguments, normalised.
    fn rebuild(&self, args: &[Dim]) -> Dim {
        match (self, args) {
            (OpKind::Div(..), [a, b]) => a.floor_div(b),
            (OpKind::Mod(..), [a, b]) => a.modulo(b),
            (OpKind::Min(_), _) => Dim::min_of(args.iter().cloned()),
            (OpKind::Max(_), _) => Dim::max_of(args.iter().cloned()),
            _ => Dim::undefined(),
        }
    }

    fn eval(&self, value: &dyn Fn(Symbol) -> Option<i64>) -> Option<i128> {
        match self {
            OpKind::Div(a, b) => floor_div_wide(a.eval_wide(value)?, b.eval_wide(value)?),
            OpKind::Mod(a, b) => modulo_wide(a.eval_wide(value)?, b.eval_wide(value)?),
            OpKind::Min(list) => fold_wide(list, value, i128::min),
            OpKind::Max(list) => fold_wide(list, value, i128::max),
        }
    }
}

fn fold_wide(list: &[Dim], value: &dyn Fn(Symbol) -> Option<i64>, pick: fn(i128, i128) -> i128) -> Option<i128> {
    let (first, rest) = list.split_first()?;
    rest.iter().try_fold(first.eval_wide(value)?, |acc, arg| Some(pick(acc, arg.eval_wide(value)?)))
}

fn floor_div_wide(a: i128, b: i128) -> Option<i128> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn modulo_wide(a: i128, b: i128) -> Option<i128> {
    let rest = a.checked_rem(b)?;
    Some(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
}

impl Default for Dim {
    fn default() -> Dim {
        Dim(Repr::Const(0))
    }
}

impl From<i64> for Dim {
    #[inline]
    fn from(c: i64) -> Dim {
        Dim(Repr::Const(c))
    }
}

impl From<i32> for Dim {
    #[inline]
    fn from(c: i32) -> Dim {
        Dim(Repr::Const(c.into()))
    }
}

/// A size beyond `i64::MAX` is undefined.
impl From<usize> for Dim {
    #[inline]
    fn from(c: usize) -> Dim {
        i64::try_from(c).map_or_else(|_| Dim::undefined(), Dim::from)
    }
}

impl From<Symbol> for Dim {
    fn from(symbol: Symbol) -> Dim {
        Dim::from_atom(Atom::Sym(symbol))
    }
}

impl From<&Dim> for Dim {
    fn from(dim: &Dim) -> Dim {
        dim.clone()
    }
}

impl PartialEq<i64> for Dim {
    fn eq(&self, other: &i64) -> bool {
        self.as_const() == Some(*other)
    }
}

impl Ord for Dim {
    /// A total order of structures for sorting, constants first; no statement about values.
    fn cmp(&self, other: &Dim) -> Ordering {
        match (&self.0, &other.0) {
            (Repr::Const(a), Repr::Const(b)) => a.cmp(b),
            (Repr::Const(_), Repr::Poly(_)) => Ordering::Less,
            (Repr::Poly(_), Repr::Const(_)) => Ordering::Greater,
            (Repr::Poly(a), Repr::Poly(b)) if Arc::ptr_eq(a, b) => Ordering::Equal,
            (Repr::Poly(a), Repr::Poly(b)) => a.cmp(b),
        }
    }

    /// The symbolic minimum, by value: method lookup prefers this one for an owned `Dim`, and an order of structures
    /// would silently give a wrong answer.
    fn min(self, other: Dim) -> Dim {
        Dim::min_of([self, other])
    }

    /// The symbolic maximum, as for [`Ord::min`].
    fn max(self, other: Dim) -> Dim {
        Dim::max_of([self, other])
    }
}

impl PartialOrd for Dim {
    fn partial_cmp(&self, other: &Dim) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $assign:ident, $assign_method:ident, $on_dims:expr, $on_const:expr) => {
        impl $trait<&Dim> for &Dim {
            type Output = Dim;
            #[inline]
            fn $method(self, other: &Dim) -> Dim {
                $on_dims(self, other)
            }
        }
        impl $trait<Dim> for &Dim {
            type Output = Dim;
            #[inline]
            fn $method(self, other: Dim) -> Dim {
                $on_dims(self, &other)
            }
        }
        impl $trait<&Dim> for Dim {
            type Output = Dim;
            #[inline]
            fn $method(self, other: &Dim) -> Dim {
                $on_dims(&self, other)
            }
        }
        impl $trait<Dim> for Dim {
            type Output = Dim;
            #[inline]
            fn $method(self, other: Dim) -> Dim {
                $on_dims(&self, &other)
            }
        }
        impl $trait<i64> for &Dim {
            type Output = Dim;
            #[inline]
            fn $method(self, other: i64) -> Dim {
                $on_const(self, other)
            }
        }
        impl $trait<i64> for Dim {
            type Output = Dim;
            #[inline]
            fn $method(self, other: i64) -> Dim {
                $on_const(&self, other)
            }
        }
        impl $trait<&Dim> for i64 {
            type Output = Dim;
            #[inline]
            fn $method(self, other: &Dim) -> Dim {
                $on_dims(&Dim::from(self), other)
            }
        }
        impl $trait<Dim> for i64 {
            type Output = Dim;
            #[inline]
            fn $method(self, other: Dim) -> Dim {
                $on_dims(&Dim::from(self), &other)
            }
        }
        impl $assign<&Dim> for Dim {
            #[inline]
            fn $assign_method(&mut self, other: &Dim) {
                *self = $on_dims(self, other);
            }
        }
        impl $assign<Dim> for Dim {
            #[inline]
            fn $assign_method(&mut self, other: Dim) {
                *self = $on_dims(self, &other);
            }
        }
        impl $assign<i64> for Dim {
            #[inline]
            fn $assign_method(&mut self, other: i64) {
                *self = $on_const(self, other);
            }
        }
    };
}

#[inline]
fn plus(a: &Dim, b: &Dim) -> Dim {
    on_constants(a, b, i64::checked_add).unwrap_or_else(|| a.add_signed(b, 1))
}

#[inline]
fn minus(a: &Dim, b: &Dim) -> Dim {
    on_constants(a, b, i64::checked_sub).unwrap_or_else(|| a.add_signed(b, -1))
}

#[inline]
fn times(a: &Dim, b: &Dim) -> Dim {
    on_constants(a, b, i64::checked_mul).unwrap_or_else(|| a.mul_dim(b))
}

/// The short way for two constants, small enough to be inlined at every use.
#[inline]
fn on_constants(a: &Dim, b: &Dim, operation: impl Fn(i64, i64) -> Option<i64>) -> Option<Dim> {
    operation(a.as_const()?, b.as_const()?).map(Dim::from)
}

fn minus_const(a: &Dim, c: i64) -> Dim {
    c.checked_neg().map_or_else(|| a.add_signed(&Dim::from(c), -1), |c| a.add_const(c))
}

operator!(Add, add, AddAssign, add_assign, plus, Dim::add_const);
operator!(Sub, sub, SubAssign, sub_assign, minus, minus_const);
operator!(Mul, mul, MulAssign, mul_assign, times, Dim::mul_const);

impl Neg for &Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        self.mul_const(-1)
    }
}

impl Neg for Dim {
    type Output = Dim;
    fn neg(self) -> Dim {
        self.mul_const(-1)
    }
}

impl std::iter::Sum for Dim {
    fn sum<I: Iterator<Item = Dim>>(iter: I) -> Dim {
        iter.fold(Dim::default(), |acc, dim| acc + dim)
    }
}

impl<'a> std::iter::Sum<&'a Dim> for Dim {
    fn sum<I: Iterator<Item = &'a Dim>>(iter: I) -> Dim {
        iter.fold(Dim::default(), |acc, dim| acc + dim)
    }
}

impl std::iter::Product for Dim {
    fn product<I: Iterator<Item = Dim>>(iter: I) -> Dim {
        iter.fold(Dim::from(1), |acc, dim| acc * dim)
    }
}

impl<'a> std::iter::Product<&'a Dim> for Dim {
    fn product<I: Iterator<Item = &'a Dim>>(iter: I) -> Dim {
        iter.fold(Dim::from(1), |acc, dim| acc * dim)
    }
}
