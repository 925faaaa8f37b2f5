//! Proofs of `≥ 0` and `<` from ranges, where intervals alone lose what symbolic bounds say.
//!
//! An atom with a symbolic bound (`i < t`, `x % t < t`, `64·(x // 64) ≤ x`) is replaced by the bound that the sign of its
//! coefficient picks. That can only lower the sum, so a lower sum that is never negative proves it for the first one.

use super::divide::gcd;
use super::normal::{Atom, Monomial, OpKind, Term};
use super::{Dim, Ranges};

/// How many sums one proof may look at.
const BUDGET: u32 = 48;
/// How many replacements may follow one another.
const MAX_STEPS: u32 = 8;

impl Dim {
    /// Whether the value is provably never negative. `false` means not proved.
    ///
    /// ```
    /// use kiln_ir::{Dim, Ranges, Symbol};
    /// let (i, t) = (Symbol::new("i").unwrap(), Symbol::new("t").unwrap());
    /// let mut ranges = Ranges::new();
    /// ranges.set_below(i, t.into());
    /// assert!((Dim::from(t) - 1 - Dim::from(i)).is_nonneg(&ranges));
    /// assert!(!(Dim::from(t) - 2 - Dim::from(i)).is_nonneg(&ranges));
    /// ```
    pub fn is_nonneg(&self, ranges: &Ranges) -> bool {
        if let Some(c) = self.as_const() {
            return c >= 0;
        }
        Prover { ranges, budget: BUDGET }.nonneg(self, MAX_STEPS)
    }

    /// Whether `self < other` for all values (`Some(true)`), for none (`Some(false)`), or not known.
    pub fn is_less(&self, other: &Dim, ranges: &Ranges) -> Option<bool> {
        let gap = other - self;
        if (&gap - 1).is_nonneg(ranges) {
            Some(true)
        } else if (-gap).is_nonneg(ranges) {
            Some(false)
        } else {
            None
        }
    }

    /// `(coef, rest)` with `self == coef · atom + rest`; either may still contain the atom.
    fn split_at(&self, atom: &Atom) -> (Dim, Dim) {
        let single = Monomial::Single(atom.clone());
        let (mut coef, mut rest) = (Vec::new(), Vec::new());
        for term in self.poly_terms() {
            match term.mono.over(&single) {
                Some(mono) => coef.push(Term { mono, coef: term.coef }),
                None => rest.push(term.clone()),
            }
        }
        (Dim::from_sorted_terms(coef), Dim::from_sorted_terms(rest))
    }
}

struct Prover<'a> {
    ranges: &'a Ranges,
    budget: u32,
}

impl Prover<'_> {
    fn nonneg(&mut self, dim: &Dim, steps: u32) -> bool {
        if dim.bounds(self.ranges).0.is_some_and(|lo| lo >= 0) {
            return true;
        }
        if steps == 0 || self.budget == 0 || dim.is_undefined() {
            return false;
        }
        self.budget -= 1;
        let candidates = self.candidates(dim);
        candidates.iter().any(|atom| self.nonneg_without(dim, atom, steps - 1))
    }

    /// The atoms of the sum with a bound that intervals may have lost. Operations come first, since their bounds bring in
    /// symbols; then symbols with a symbolic bound, one that another one's bound mentions after that one; then symbols
    /// with a number for a bound that occur in several terms, whose intervals ignore that they move together.
    fn candidates(&self, dim: &Dim) -> Vec<Atom> {
        let mut found: Vec<(&Atom, usize)> = Vec::new();
        for atom in dim.atoms() {
            match found.iter_mut().find(|(other, _)| *other == atom) {
                Some((_, count)) => *count += 1,
                None => found.push((atom, 1)),
            }
        }
        let below = |atom: &Atom| match atom {
            Atom::Sym(symbol) => self.ranges.below(*symbol),
            Atom::Op(_) => None,
        };
        let rank = |(atom, count): &(&Atom, usize)| match atom {
            Atom::Op(_) => Some(0),
            Atom::Sym(symbol) if below(atom).is_some() => {
                let bounds = found.iter().filter_map(|(other, _)| below(other));
                Some(1 + bounds.filter(|bound| bound.contains(*symbol)).count())
            }
            Atom::Sym(symbol) => (*count > 1 && self.ranges.get(*symbol).is_some()).then_some(usize::MAX),
        };
        let mut ranked: Vec<(usize, Atom)> =
            found.iter().filter_map(|entry| Some((rank(entry)?, entry.0.clone()))).collect();
        ranked.sort();
        ranked.into_iter().map(|(_, atom)| atom).collect()
    }

    fn nonneg_without(&mut self, dim: &Dim, atom: &Atom, steps: u32) -> bool {
        let (coef, rest) = dim.split_at(atom);
        let rising = self.nonneg(&coef, steps);
        if !rising && !self.nonneg(&-&coef, steps) {
            return false;
        }
        match atom {
            Atom::Sym(symbol) => {
                let end = match (rising, self.ranges.get(*symbol), self.ranges.below(*symbol)) {
                    (true, Some((lo, _)), _) => Dim::from(lo),
                    (false, _, Some(below)) => below - 1,
                    (false, Some((_, Some(hi))), _) => Dim::from(hi),
                    _ => return false,
                };
                self.nonneg(&(rest + coef * end), steps)
            }
            Atom::Op(op) => match &op.kind {
                OpKind::Div(x, d) => self.nonneg_without_div(&coef, &rest, x, d, rising, steps),
                OpKind::Mod(x, d) => {
                    if !self.nonneg(&(d - 1), steps) {
                        return false;
                    }
                    let least = if rising { rest.clone() } else { &rest + &coef * (d - 1) };
                    self.nonneg(&least, steps)
                        || !rising && self.nonneg(x, steps) && self.nonneg(&(rest + coef * x), steps)
                }
                OpKind::Min(list) => self.nonneg_for(&coef, &rest, list, rising, steps),
                OpKind::Max(list) => self.nonneg_for(&coef, &rest, list, !rising, steps),
            },
        }
    }

    /// A minimum with a negative coefficient is replaced by any of its arguments, with a positive one by each in turn.
    fn nonneg_for(&mut self, coef: &Dim, rest: &Dim, list: &[Dim], each: bool, steps: u32) -> bool {
        let mut proved = |arg: &Dim| self.nonneg(&(rest + coef * arg), steps);
        if each { list.iter().all(&mut proved) } else { list.iter().any(&mut proved) }
    }

    /// `x − d + 1 ≤ d·(x // d) ≤ x` for positive `d`. Where `d` does not divide the coefficient, the sum is scaled by what
    /// is missing: an integer is `≥ 0` as soon as `scale` times it is `> −scale`.
    fn nonneg_without_div(&mut self, coef: &Dim, rest: &Dim, x: &Dim, d: &Dim, rising: bool, steps: u32) -> bool {
        if !self.nonneg(&(d - 1), steps) {
            return false;
        }
        let (scale, times) = match (coef.div_exact(d), d.as_const()) {
            (Some(times), _) => (1, times),
            (None, Some(c)) => {
                let terms = coef.terms();
                let common = terms.as_slice().iter().fold(c.unsigned_abs(), |acc, t| gcd(acc, t.coef.unsigned_abs()));
                let scale = c / common as i64;
                let Some(times) = (coef * scale).div_exact(d) else { return false };
                (scale, times)
            }
            (None, None) => return false,
        };
        let end = if rising { x - d + 1 } else { x.clone() };
        self.nonneg(&(rest * scale + times * end + (scale - 1)), steps)
    }
}
