//! What is known about the values of symbols, and the intervals that follow from it.

use super::normal::{Atom, Op, OpKind};
use super::{Dim, Symbol};

/// How many symbolic bounds may lead to one another.
const MAX_STEPS: u32 = 8;

/// What is known about each symbol: an inclusive range of numbers and, for loop variables over symbolic sizes, an
/// exclusive symbolic upper bound. A symbol without an entry may have any value.
///
/// ```
/// use kiln_ir::{Dim, Ranges, Symbol};
/// let (i, j) = (Symbol::axis(0), Symbol::axis(1));
/// let mut ranges = Ranges::new();
/// ranges.set(i, 0, Some(63));
/// let flat = Dim::from(j) * 64 + Dim::from(i);
/// assert_eq!(flat.floor_div(&Dim::from(64)).simplify(&ranges), Dim::from(j));
/// assert_eq!(flat.modulo(&Dim::from(64)).simplify(&ranges), Dim::from(i));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// Sorted by symbol.
    entries: Vec<(Symbol, Bounds)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Bounds {
    lo: i64,
    hi: Option<i64>,
    below: Option<Dim>,
}

impl Ranges {
    /// Nothing known.
    pub const fn new() -> Ranges {
        Ranges { entries: Vec::new() }
    }

    /// `lo ≤ symbol ≤ hi`, without an upper bound where `hi` is `None`. Replaces what was known.
    pub fn set(&mut self, symbol: Symbol, lo: i64, hi: Option<i64>) {
        self.insert(symbol, Bounds { lo, hi, below: None });
    }

    /// `0 ≤ symbol < below`. Replaces what was known.
    pub fn set_below(&mut self, symbol: Symbol, below: Dim) {
        let range = match below.as_const() {
            Some(c) => Bounds { lo: 0, hi: Some(c.saturating_sub(1)), below: None },
            None if below.is_undefined() || below.contains(symbol) => Bounds { lo: 0, hi: None, below: None },
            None => Bounds { lo: 0, hi: None, below: Some(below) },
        };
        self.insert(symbol, range);
    }

    /// The numeric range of a symbol, if one was set; of a symbolic upper bound only what its own symbols' ranges say.
    pub fn get(&self, symbol: Symbol) -> Option<(i64, Option<i64>)> {
        let range = self.find(symbol)?;
        Some((range.lo, self.symbol_interval(symbol, MAX_STEPS).hi))
    }

    /// The exclusive symbolic upper bound of a symbol, if one was set.
    pub fn below(&self, symbol: Symbol) -> Option<&Dim> {
        self.find(symbol)?.below.as_ref()
    }

    /// The symbols with an entry, by name.
    pub fn symbols(&self) -> impl Iterator<Item = Symbol> {
        self.entries.iter().map(|(symbol, _)| *symbol)
    }

    fn insert(&mut self, symbol: Symbol, range: Bounds) {
        match self.entries.binary_search_by_key(&symbol, |e| e.0) {
            Ok(at) => self.entries[at].1 = range,
            Err(at) => self.entries.insert(at, (symbol, range)),
        }
    }

    fn find(&self, symbol: Symbol) -> Option<&Bounds> {
        let at = self.entries.binary_search_by_key(&symbol, |e| e.0).ok()?;
        Some(&self.entries[at].1)
    }

    fn symbol_interval(&self, symbol: Symbol, steps: u32) -> Interval {
        let Some(range) = self.find(symbol) else { return Interval::ANY };
        let mut hi = range.hi;
        if let (Some(below), Some(steps)) = (&range.below, steps.checked_sub(1)) {
            let limit = below.interval(self, steps).hi.and_then(|h| h.checked_sub(1));
            hi = match (hi, limit) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        Interval { lo: Some(range.lo), hi }
    }
}

/// Inclusive bounds; a missing one is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    lo: Option<i64>,
    hi: Option<i64>,
}

impl Interval {
    const ANY: Interval = Interval { lo: None, hi: None };

    fn point(c: i64) -> Interval {
        Interval { lo: Some(c), hi: Some(c) }
    }

    fn plus(self, other: Interval) -> Interval {
        let add = |a: Option<i64>, b: Option<i64>| a?.checked_add(b?);
        Interval { lo: add(self.lo, other.lo), hi: add(self.hi, other.hi) }
    }

    fn negated(self) -> Interval {
        let neg = |a: Option<i64>| a?.checked_neg();
        Interval { lo: neg(self.hi), hi: neg(self.lo) }
    }

    fn scaled(self, c: i64) -> Interval {
        let mul = |a: Option<i64>| a?.checked_mul(c);
        match c {
            0 => Interval::point(0),
            _ if c > 0 => Interval { lo: mul(self.lo), hi: mul(self.hi) },
            _ => Interval { lo: mul(self.hi), hi: mul(self.lo) },
        }
    }

    fn nonneg(self) -> bool {
        self.lo.is_some_and(|lo| lo >= 0)
    }

    fn nonpos(self) -> bool {
        self.hi.is_some_and(|hi| hi <= 0)
    }

    fn times(self, other: Interval) -> Interval {
        if self.nonpos() && self.lo != Some(0) {
            return self.negated_exactly().map_or(Interval::ANY, |positive| positive.times(other).negated());
        }
        if other.nonpos() && other.lo != Some(0) {
            return other.negated_exactly().map_or(Interval::ANY, |positive| self.times(positive).negated());
        }
        let mul = |a: Option<i64>, b: Option<i64>| a?.checked_mul(b?);
        match (self.nonneg(), other.nonneg()) {
            (true, true) => Interval { lo: mul(self.lo, other.lo), hi: mul(self.hi, other.hi) },
            (true, false) => Interval { lo: mul(self.hi, other.lo), hi: mul(self.hi, other.hi) },
            (false, true) => Interval { lo: mul(self.lo, other.hi), hi: mul(self.hi, other.hi) },
            (false, false) => {
                let least = |a: Option<i64>, b: Option<i64>| Some(a?.min(b?));
                let most = |a: Option<i64>, b: Option<i64>| Some(a?.max(b?));
                Interval {
                    lo: least(mul(self.lo, other.hi), mul(self.hi, other.lo)),
                    hi: most(mul(self.lo, other.lo), mul(self.hi, other.hi)),
                }
            }
        }
    }

    /// The negation, unless a known bound would be lost.
    fn negated_exactly(self) -> Option<Interval> {
        (self.lo != Some(i64::MIN) && self.hi != Some(i64::MIN)).then(|| self.negated())
    }

    fn floor_div(self, by: Interval) -> Interval {
        if by.hi.is_some_and(|hi| hi < 0) {
            let Some(positive) = by.negated_exactly() else { return Interval::ANY };
            let Some(flipped) = self.negated_exactly() else { return Interval::ANY };
            return flipped.floor_div(positive);
        }
        let Some(least) = by.lo.filter(|lo| *lo > 0) else { return Interval::ANY };
        // A bound of the dividend shrinks towards zero (or −1) by a large divisor and stays largest by the least one.
        let far = |bound: i64| bound.div_euclid(least);
        let near = |bound: i64| by.hi.map_or(if bound < 0 { -1 } else { 0 }, |most| bound.div_euclid(most));
        Interval {
            lo: self.lo.map(|lo| if lo < 0 { far(lo) } else { near(lo) }),
            hi: self.hi.map(|hi| if hi < 0 { near(hi) } else { far(hi) }),
        }
    }

    fn modulo(self, by: Interval) -> Interval {
        if by.hi.is_some_and(|hi| hi < 0) {
            return Interval { lo: by.lo.and_then(|lo| lo.checked_add(1)), hi: Some(0) };
        }
        let Some(least) = by.lo.filter(|lo| *lo > 0) else { return Interval::ANY };
        match self {
            Interval { lo: Some(lo), hi: Some(hi) } if lo >= 0 && hi < least => self,
            _ => {
                let below = by.hi.map(|hi| hi - 1);
                let hi = match (below, self.hi.filter(|_| self.nonneg())) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
                Interval { lo: Some(0), hi }
            }
        }
    }

    fn min(self, other: Interval) -> Interval {
        let hi = match (self.hi, other.hi) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Interval { lo: self.lo.zip(other.lo).map(|(a, b)| a.min(b)), hi }
    }

    fn max(self, other: Interval) -> Interval {
        let lo = match (self.lo, other.lo) {
            (Some(a), Some(b)) => Some(a.max(b)),
            (a, b) => a.or(b),
        };
        Interval { lo, hi: self.hi.zip(other.hi).map(|(a, b)| a.max(b)) }
    }
}

impl Op {
    fn interval(&self, ranges: &Ranges, steps: u32) -> Interval {
        match &self.kind {
            OpKind::Div(a, b) => a.interval(ranges, steps).floor_div(b.interval(ranges, steps)),
            OpKind::Mod(a, b) => a.interval(ranges, steps).modulo(b.interval(ranges, steps)),
            OpKind::Min(list) => fold(list, ranges, steps, Interval::min),
            OpKind::Max(list) => fold(list, ranges, steps, Interval::max),
        }
    }
}

fn fold(list: &[Dim], ranges: &Ranges, steps: u32, pick: fn(Interval, Interval) -> Interval) -> Interval {
    let intervals = list.iter().map(|arg| arg.interval(ranges, steps));
    intervals.reduce(pick).unwrap_or(Interval::ANY)
}

impl Dim {
    /// Inclusive lower and upper bounds by interval arithmetic; `None` for a bound that is not known.
    ///
    /// ```
    /// use kiln_ir::{Dim, Ranges, Symbol};
    /// let mut ranges = Ranges::new();
    /// ranges.set(Symbol::new("t").unwrap(), 1, Some(4096));
    /// assert_eq!(Dim::parse("(t + 63) // 64").unwrap().bounds(&ranges), (Some(1), Some(64)));
    /// ```
    pub fn bounds(&self, ranges: &Ranges) -> (Option<i64>, Option<i64>) {
        let interval = self.interval(ranges, MAX_STEPS);
        (interval.lo, interval.hi)
    }

    fn interval(&self, ranges: &Ranges, steps: u32) -> Interval {
        if let Some(c) = self.as_const() {
            return Interval::point(c);
        }
        let mut sum: Option<Interval> = None;
        for term in self.poly_terms() {
            let mut product: Option<Interval> = None;
            for atom in term.mono.atoms() {
                let own = match atom {
                    Atom::Sym(symbol) => ranges.symbol_interval(*symbol, steps),
                    Atom::Op(op) => op.interval(ranges, steps),
                };
                product = Some(product.map_or(own, |acc| acc.times(own)));
            }
            let term = product.map_or(Interval::point(term.coef), |p| p.scaled(term.coef));
            let total = sum.map_or(term, |acc| acc.plus(term));
            if total == Interval::ANY {
                return total;
            }
            sum = Some(total);
        }
        sum.unwrap_or(Interval::ANY)
    }
}
