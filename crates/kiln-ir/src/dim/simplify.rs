//! Simplification under known ranges: divisions, remainders, minima and maxima that the ranges decide go away.

use super::divide::{gcd, retain_extreme};
use super::normal::{Atom, Monomial, OpKind, Term};
use super::{Dim, Ranges};

/// How often the rules run over the whole expression at the most.
const MAX_ROUNDS: usize = 4;
/// How many common factors of a dividend and its divisor are tried.
const MAX_FACTORS: usize = 8;

impl Dim {
    /// An expression with the same value wherever the symbols are within `ranges`, with fewer divisions, remainders,
    /// minima and maxima where the ranges allow it.
    ///
    /// ```
    /// use kiln_ir::{Dim, Ranges, Symbol};
    /// let (i, t) = (Symbol::new("i").unwrap(), Symbol::new("t").unwrap());
    /// let mut ranges = Ranges::new();
    /// ranges.set_below(i, t.into());
    /// let row = Dim::parse("(t*j + i) // t").unwrap();
    /// assert_eq!(row.simplify(&ranges).to_string(), "j");
    /// ```
    pub fn simplify(&self, ranges: &Ranges) -> Dim {
        let mut current = self.clone();
        for _ in 0..MAX_ROUNDS {
            let next = current.simplify_once(ranges);
            let settled = next == current || next.atoms().all(|atom| matches!(atom, Atom::Sym(_)));
            current = next;
            if settled {
                break;
            }
        }
        current
    }

    /// One round from the inside out. Where a rule would overflow a coefficient, this level stays as it is.
    fn simplify_once(&self, ranges: &Ranges) -> Dim {
        let simpler = self.map_atoms(&mut |atom| match atom {
            Atom::Sym(symbol) => match ranges.get(*symbol) {
                Some((lo, Some(hi))) if lo == hi => Some(lo.into()),
                _ => None,
            },
            Atom::Op(op) => {
                let args: Vec<Dim> = op.kind.args().map(|arg| arg.simplify_once(ranges)).collect();
                Some(match (&op.kind, args.as_slice()) {
                    (OpKind::Div(..), [a, b]) => a.floor_div_within(b, ranges),
                    (OpKind::Mod(..), [a, b]) => a.modulo_within(b, ranges),
                    (OpKind::Min(_), _) => extreme_within(args, ranges, true),
                    (OpKind::Max(_), _) => extreme_within(args, ranges, false),
                    _ => Dim::undefined(),
                })
            }
        });
        let simpler = simpler.recombine();
        if simpler.is_undefined() { self.clone() } else { simpler }
    }

    fn floor_div_within(&self, divisor: &Dim, ranges: &Ranges) -> Dim {
        // (x // a) // b = x // (a·b) for positive b.
        if let Some(OpKind::Div(x, a)) = self.as_op()
            && (divisor - 1).is_nonneg(ranges)
        {
            let merged = x.floor_div(&(a * divisor));
            if !merged.is_undefined() {
                return merged;
            }
        }
        let plain = self.floor_div(divisor);
        plain.map_atoms(&mut |atom| match atom {
            Atom::Op(op) => match &op.kind {
                OpKind::Div(a, b) => Split::find(a, b, ranges).map(|split| split.quotient),
                OpKind::Mod(a, b) => Split::find(a, b, ranges).map(|split| split.rest),
                _ => None,
            },
            Atom::Sym(_) => None,
        })
    }

    fn modulo_within(&self, divisor: &Dim, ranges: &Ranges) -> Dim {
        if let Some(split) = Split::find(self, divisor, ranges) {
            return split.rest;
        }
        let plain = self.modulo(divisor);
        plain.map_atoms(&mut |atom| match atom {
            Atom::Op(op) => match &op.kind {
                OpKind::Mod(a, b) => Split::find(a, b, ranges).map(|split| split.rest),
                _ => None,
            },
            Atom::Sym(_) => None,
        })
    }

    /// `r·d·(x // d) + r·(x % d)` is `r·x`.
    fn recombine(&self) -> Dim {
        for term in self.poly_terms() {
            for atom in term.mono.atoms() {
                let Atom::Op(op) = atom else { continue };
                let OpKind::Mod(x, d) = &op.kind else { continue };
                let Some(others) = term.mono.over(&Monomial::Single(atom.clone())) else { continue };
                let factor = Dim::from_term(term.coef, others);
                let quotient = x.floor_div(d);
                let multiple = &factor * d * quotient;
                if self.has_terms_of(&multiple) {
                    let rest = self - Dim::from_term(term.coef, term.mono.clone()) - multiple;
                    return (rest + factor * x).recombine();
                }
            }
        }
        self.clone()
    }

    /// `(quotient, rest)` with `self == divisor · quotient + rest`, as [`Dim::split_by`], except that a divisor of several
    /// terms is taken out wherever its leading term divides, without a bound on the rest.
    fn leading_split(&self, divisor: &Dim) -> (Dim, Dim) {
        let divisor_terms = divisor.terms();
        let [lead, _, ..] = divisor_terms.as_slice() else { return self.split_by(divisor) };
        let lead = Dim::from_term(lead.coef, lead.mono.clone());
        let (mut quotient, mut rest) = (Dim::default(), self.clone());
        for _ in 0..MAX_FACTORS {
            let (more, _) = rest.split_by(&lead);
            if more.is_zero() || more.is_undefined() {
                break;
            }
            rest -= &more * divisor;
            quotient += more;
        }
        (quotient, rest)
    }

    /// Whether every term of `part` is a term of this sum, with the same coefficient.
    fn has_terms_of(&self, part: &Dim) -> bool {
        let own = self.poly_terms();
        let part = part.poly_terms();
        let found = |term: &Term| own.binary_search_by(|t| t.mono.cmp(&term.mono)).is_ok_and(|at| own[at] == *term);
        !part.is_empty() && part.iter().all(found)
    }
}

/// The quotient and rest of a division that the ranges decide.
struct Split {
    quotient: Dim,
    rest: Dim,
}

impl Split {
    /// Writes `a = factor·high + low` with `0 ≤ low < factor` and `divisor = factor·d`; then for positive `d`,
    /// `a // divisor` is `high // d` and `a % divisor` is `factor·(high % d) + low`. The whole divisor is tried first.
    fn find(a: &Dim, divisor: &Dim, ranges: &Ranges) -> Option<Split> {
        if let Some(c) = divisor.as_const()
            && let Some(k) = Dim::block_within(a.bounds(ranges), c)
        {
            return Some(Split { quotient: k.into(), rest: a - Dim::from(k) * c });
        }
        factors(a, divisor).iter().find_map(|factor| Split::by(factor, a, divisor, ranges))
    }

    fn by(factor: &Dim, a: &Dim, divisor: &Dim, ranges: &Ranges) -> Option<Split> {
        let inner = divisor.div_exact(factor)?;
        let (high, low) = a.leading_split(factor);
        let shift = match factor.as_const() {
            Some(c) => Dim::block_within(low.bounds(ranges), c)?,
            None => 0,
        };
        let (high, low) = (high + shift, low - factor * shift);
        let fits = low.is_nonneg(ranges) && (factor - 1 - &low).is_nonneg(ranges);
        if !fits || high.is_undefined() || !(&inner - 1).is_nonneg(ranges) {
            return None;
        }
        Some(Split { quotient: high.floor_div(&inner), rest: high.modulo(&inner) * factor + low })
    }
}

/// Divisors of `divisor` that may divide a part of `a`, the largest first.
fn factors(a: &Dim, divisor: &Dim) -> Vec<Dim> {
    let mut out = vec![divisor.clone()];
    let divisor_terms = divisor.terms();
    if let [whole] = divisor_terms.as_slice() {
        for term in a.poly_terms().iter().filter(|t| !t.mono.is_one()) {
            let number = gcd(term.coef.unsigned_abs(), whole.coef.unsigned_abs());
            let Ok(number) = i64::try_from(number) else { continue };
            let factor = Dim::from_term(number, whole.mono.common(&term.mono));
            if !factor.is_one() && !out.contains(&factor) && out.len() < MAX_FACTORS {
                out.push(factor);
            }
        }
        out[1..].sort_by_key(|f| {
            let terms = f.terms();
            let degree = terms.as_slice().first().map_or(0, |t| t.mono.atoms().len());
            std::cmp::Reverse((degree, terms.as_slice().first().map_or(0, |t| t.coef)))
        });
    }
    out
}

fn extreme_within(mut args: Vec<Dim>, ranges: &Ranges, smallest: bool) -> Dim {
    retain_extreme(&mut args, |a, b| {
        let gap = if smallest { b - a } else { a - b };
        Some(gap.is_nonneg(ranges))
    });
    if smallest { Dim::min_of(args) } else { Dim::max_of(args) }
}
