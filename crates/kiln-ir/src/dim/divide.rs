//! Floor division, remainder, minimum and maximum: the rules that hold for every value of the symbols.
//!
//! Every rule here keeps the floor semantics of Python for any sign of the arguments unless it says otherwise.

use super::normal::{Atom, OpKind, Term};
use super::{Dim, Ranges, floor_div_wide, modulo_wide};

/// The most arguments of a minimum or maximum that are compared pair by pair.
const MAX_PAIRS: usize = 16;

pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Dim {
    /// `⌊self / divisor⌋`.
    ///
    /// ```
    /// use kiln_ir::Dim;
    /// let x = Dim::parse("j*64 + i + 130").unwrap();
    /// assert_eq!(x.floor_div(&Dim::from(64)).to_string(), "j + (i + 2) // 64 + 2");
    /// assert_eq!(Dim::from(-7).floor_div(&Dim::from(2)), -4);
    /// ```
    pub fn floor_div(&self, divisor: &Dim) -> Dim {
        if self.is_undefined() || divisor.is_undefined() {
            return Dim::undefined();
        }
        match (self.as_const(), divisor.as_const()) {
            (Some(a), Some(b)) => from_wide(floor_div_wide(a.into(), b.into())),
            (_, Some(0)) => Dim::undefined(),
            (_, Some(1)) | (Some(0), _) => self.clone(),
            (_, Some(c)) if c > 0 => self.div_const(c),
            _ if divisor.leads_negative() => (-self).floor_div(&-divisor),
            _ => self.div_symbolic(divisor),
        }
    }

    /// `self − divisor · ⌊self / divisor⌋`: the remainder with the sign of the divisor.
    ///
    /// ```
    /// use kiln_ir::Dim;
    /// let x = Dim::parse("j*64 + i").unwrap();
    /// assert_eq!(x.modulo(&Dim::from(64)).to_string(), "i % 64");
    /// assert_eq!(Dim::from(-7).modulo(&Dim::from(4)), 1);
    /// ```
    pub fn modulo(&self, divisor: &Dim) -> Dim {
        if self.is_undefined() || divisor.is_undefined() {
            return Dim::undefined();
        }
        match (self.as_const(), divisor.as_const()) {
            (Some(a), Some(b)) => from_wide(modulo_wide(a.into(), b.into())),
            (_, Some(0)) => Dim::undefined(),
            (_, Some(1)) => Dim::default(),
            (Some(0), _) => self.clone(),
            _ if divisor.leads_negative() => -(-self).modulo(&-divisor),
            _ => {
                let plain = self.drop_inner_modulo(divisor);
                match divisor.as_const() {
                    _ if plain.is_undefined() => plain,
                    Some(c) => plain.mod_const(c),
                    None => plain.mod_symbolic(divisor),
                }
            }
        }
    }

    /// `⌈self / divisor⌉`.
    ///
    /// ```
    /// use kiln_ir::Dim;
    /// assert_eq!(Dim::symbol("t").unwrap().ceil_div(&Dim::from(64)).to_string(), "(t + 63) // 64");
    /// ```
    pub fn ceil_div(&self, divisor: &Dim) -> Dim {
        match divisor.as_const() {
            Some(c) if c > 0 => (self + (c - 1)).floor_div(divisor),
            _ => -(-self).floor_div(divisor),
        }
    }

    /// The smaller of the two. On an owned `Dim` the same by value: `a.min(b)`.
    pub fn min(&self, other: &Dim) -> Dim {
        Dim::min_of([self.clone(), other.clone()])
    }

    /// The larger of the two. On an owned `Dim` the same by value: `a.max(b)`.
    pub fn max(&self, other: &Dim) -> Dim {
        Dim::max_of([self.clone(), other.clone()])
    }

    /// The smallest of the list; undefined for an empty one.
    pub fn min_of(list: impl IntoIterator<Item = Dim>) -> Dim {
        Dim::extreme(list.into_iter().collect(), true)
    }

    /// The largest of the list; undefined for an empty one.
    pub fn max_of(list: impl IntoIterator<Item = Dim>) -> Dim {
        Dim::extreme(list.into_iter().collect(), false)
    }

    fn extreme(list: Vec<Dim>, smallest: bool) -> Dim {
        let mut flat: Vec<Dim> = Vec::with_capacity(list.len());
        for dim in list {
            match dim.as_op() {
                Some(OpKind::Min(inner)) if smallest => flat.extend_from_slice(inner),
                Some(OpKind::Max(inner)) if !smallest => flat.extend_from_slice(inner),
                _ if dim.is_undefined() => return dim,
                _ => flat.push(dim),
            }
        }
        flat.sort_unstable();
        flat.dedup();
        if flat.len() <= MAX_PAIRS {
            retain_extreme(&mut flat, |a, b| (a - b).as_const().map(|gap| (gap <= 0) == smallest));
        }
        match flat.pop() {
            None => Dim::undefined(),
            Some(only) if flat.is_empty() => only,
            Some(last) => {
                flat.push(last);
                let list = flat.into_boxed_slice();
                Dim::from_op(if smallest { OpKind::Min(list) } else { OpKind::Max(list) })
            }
        }
    }

    /// `(quotient, rest)` with `self == c · quotient + rest` term by term: coefficients of the rest are smaller than `c`
    /// and keep their sign, its constant is in `0..c`.
    fn split_by_const(&self, c: i64) -> (Dim, Dim) {
        let (mut quotient, mut rest) = (Vec::new(), Vec::new());
        for Term { mono, coef } in self.terms().as_slice() {
            let (q, r) = if mono.is_one() { (coef.div_euclid(c), coef.rem_euclid(c)) } else { (coef / c, coef % c) };
            if q != 0 {
                quotient.push(Term { mono: mono.clone(), coef: q });
            }
            if r != 0 {
                rest.push(Term { mono: mono.clone(), coef: r });
            }
        }
        (Dim::from_sorted_terms(quotient), Dim::from_sorted_terms(rest))
    }

    /// The greatest common divisor of `c` and all coefficients but the constant.
    fn coefficient_gcd(&self, c: u64) -> u64 {
        let body = self.poly_terms().iter().filter(|t| !t.mono.is_one());
        body.fold(c, |acc, t| gcd(acc, t.coef.unsigned_abs()))
    }

    /// For bounds within one block `k·c .. (k+1)·c` of a positive `c`: that `k`.
    pub(super) fn block_within(bounds: (Option<i64>, Option<i64>), c: i64) -> Option<i64> {
        if c <= 0 {
            return None;
        }
        let (lo, hi) = (bounds.0?.div_euclid(c), bounds.1?.div_euclid(c));
        (lo == hi).then_some(lo)
    }

    fn div_const(&self, c: i64) -> Dim {
        let (quotient, rest) = self.split_by_const(c);
        if let Some(k) = Dim::block_within(rest.bounds(&Ranges::new()), c) {
            return quotient + k;
        }
        // (g·a + r) // (g·d) = (a + r // g) // d for positive g and d.
        let g = rest.coefficient_gcd(c.unsigned_abs()) as i64;
        if g > 1 {
            return quotient + rest.split_by_gcd(g).0.floor_div(&Dim::from(c / g));
        }
        let shift = rest.constant_part();
        let body = &rest - shift;
        let inner = match body.as_op() {
            // (x // a + k) // c = (x + k·a) // (a·c) for positive c.
            Some(OpKind::Div(x, a)) if a.terms().as_slice().len() == 1 => (x + a * shift).floor_div(&(a * c)),
            // (x % (c·b)) // c = (x // c) % b for positive c and b.
            Some(OpKind::Mod(x, m)) if shift == 0 && m.as_const().is_some_and(|m| m % c == 0) => {
                x.floor_div(&Dim::from(c)).modulo(&Dim::from(m.as_const().unwrap_or(c) / c))
            }
            _ => Dim::undefined(),
        };
        if inner.is_undefined() { quotient + Dim::from_op(OpKind::Div(rest, c.into())) } else { quotient + inner }
    }

    fn mod_const(&self, c: i64) -> Dim {
        let (_, rest) = self.split_by_const(c);
        if let Some(k) = Dim::block_within(rest.bounds(&Ranges::new()), c) {
            return rest - Dim::from(k) * c;
        }
        // (g·a + r) % (g·d) = g·((a + r // g) % d) + r % g for positive g and d.
        let g = rest.coefficient_gcd(c.unsigned_abs()) as i64;
        if g > 1 {
            let (scaled, below) = rest.split_by_gcd(g);
            return scaled.modulo(&Dim::from(c / g)) * g + below;
        }
        Dim::from_op(OpKind::Mod(rest, c.into()))
    }

    /// `(a, r)` with `self == g·a + r` and a constant `r` in `0..g`, where `g` divides all coefficients but the constant.
    fn split_by_gcd(&self, g: i64) -> (Dim, i64) {
        let below = self.constant_part().rem_euclid(g);
        let scaled = (self - below).div_exact(&Dim::from(g));
        (scaled.unwrap_or_else(Dim::undefined), below)
    }

    /// `k · (x % m)` is `k · x` modulo every divisor of `m`, and again for what `x` then brings up.
    fn drop_inner_modulo(&self, divisor: &Dim) -> Dim {
        let inner = |atom: &Atom| match atom {
            Atom::Op(op) => match &op.kind {
                OpKind::Mod(x, m) if m.div_exact(divisor).is_some() => Some(x.clone()),
                _ => None,
            },
            Atom::Sym(_) => None,
        };
        let mut current = self.clone();
        while current.atoms().any(|atom| inner(atom).is_some()) {
            current = current.map_atoms(&mut |atom| inner(atom));
        }
        current
    }

    /// What divides every term of both: a positive number and a product of atoms.
    fn common_factor(&self, other: &Dim) -> Dim {
        let (a, b) = (self.terms(), other.terms());
        let mut all = a.as_slice().iter().chain(b.as_slice());
        let Some(first) = all.next() else { return Dim::from(1) };
        let (mut number, mut mono) = (first.coef.unsigned_abs(), first.mono.clone());
        for term in all {
            number = gcd(number, term.coef.unsigned_abs());
            if !mono.is_one() {
                mono = mono.common(&term.mono);
            }
        }
        i64::try_from(number).map_or_else(|_| Dim::from(1), |number| Dim::from_term(number, mono))
    }

    /// Divides both by what divides every term of both.
    fn cancel(&self, other: &Dim) -> Option<(Dim, Dim, Dim)> {
        let factor = self.common_factor(other);
        if factor.is_one() {
            return None;
        }
        Some((self.div_exact(&factor)?, other.div_exact(&factor)?, factor))
    }

    /// `(quotient, rest)` with `self == divisor · quotient + rest`, where every term that the divisor divides is in the
    /// quotient. A divisor of several terms divides everything or nothing.
    pub(super) fn split_by(&self, divisor: &Dim) -> (Dim, Dim) {
        let divisor_terms = divisor.terms();
        let [Term { mono: by, coef: by_coef }] = divisor_terms.as_slice() else {
            return match self.div_exact(divisor) {
                Some(quotient) => (quotient, Dim::default()),
                None => (Dim::default(), self.clone()),
            };
        };
        let (mut quotient, mut rest) = (Vec::new(), Vec::new());
        for term in self.terms().as_slice() {
            match term.mono.over(by) {
                Some(mono) if term.coef.checked_rem(*by_coef) == Some(0) => {
                    quotient.push(Term { mono, coef: term.coef / by_coef });
                }
                _ => rest.push(term.clone()),
            }
        }
        (Dim::from_sorted_terms(quotient), Dim::from_sorted_terms(rest))
    }

    fn div_symbolic(&self, divisor: &Dim) -> Dim {
        if let Some((a, b, _)) = self.cancel(divisor) {
            return a.floor_div(&b);
        }
        let (quotient, rest) = self.split_by(divisor);
        if quotient.is_zero() {
            return Dim::from_op(OpKind::Div(rest, divisor.clone()));
        }
        quotient + rest.floor_div(divisor)
    }

    fn mod_symbolic(&self, divisor: &Dim) -> Dim {
        if let Some((a, b, factor)) = self.cancel(divisor) {
            return a.modulo(&b) * factor;
        }
        let (quotient, rest) = self.split_by(divisor);
        if quotient.is_zero() {
            return Dim::from_op(OpKind::Mod(rest, divisor.clone()));
        }
        rest.modulo(divisor)
    }
}

/// Drops every entry that another one makes superfluous. `beats(a, b)` says whether `a` decides against `b`, if known.
pub(super) fn retain_extreme(list: &mut Vec<Dim>, mut beats: impl FnMut(&Dim, &Dim) -> Option<bool>) {
    let mut at = 0;
    while at < list.len() {
        let superfluous = (0..list.len()).any(|by| by != at && beats(&list[by], &list[at]) == Some(true));
        if superfluous {
            list.remove(at);
        } else {
            at += 1;
        }
    }
}

fn from_wide(value: Option<i128>) -> Dim {
    value.and_then(|v| i64::try_from(v).ok()).map_or_else(Dim::undefined, Dim::from)
}
