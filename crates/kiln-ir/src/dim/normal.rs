//! The normal form: a sum of terms, each a coefficient times a sorted product of atoms, sorted by degree and then by
//! name. Addition and multiplication here are exact polynomial arithmetic and never look inside an atom.

use std::cmp::Ordering;
use std::hash::Hash;
use std::sync::Arc;

use super::{Dim, Repr, Symbol};

/// The most terms a sum may have.
pub(super) const MAX_TERMS: usize = 4096;
/// The most atoms a product may have.
pub(super) const MAX_DEGREE: usize = 32;
/// How deep divisions, remainders, minima and maxima may nest.
pub(super) const MAX_DEPTH: u32 = 64;
/// The most nodes below one atom, counted as a tree.
pub(super) const MAX_WEIGHT: u32 = 1 << 14;

/// A term that is neither a sum nor a product.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Atom {
    Sym(Symbol),
    Op(Arc<Op>),
}

/// A non-polynomial operation on normalised arguments, with the size figures that keep recursion bounded.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Op {
    pub(super) kind: OpKind,
    depth: u32,
    weight: u32,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum OpKind {
    Div(Dim, Dim),
    Mod(Dim, Dim),
    Min(Box<[Dim]>),
    Max(Box<[Dim]>),
}

impl OpKind {
    pub(super) fn args(&self) -> impl Iterator<Item = &Dim> {
        let (pair, list): ([Option<&Dim>; 2], &[Dim]) = match self {
            OpKind::Div(a, b) | OpKind::Mod(a, b) => ([Some(a), Some(b)], &[]),
            OpKind::Min(list) | OpKind::Max(list) => ([None, None], list),
        };
        pair.into_iter().flatten().chain(list)
    }
}

impl Ord for Atom {
    fn cmp(&self, other: &Atom) -> Ordering {
        match (self, other) {
            (Atom::Sym(a), Atom::Sym(b)) => a.cmp(b),
            (Atom::Sym(_), Atom::Op(_)) => Ordering::Less,
            (Atom::Op(_), Atom::Sym(_)) => Ordering::Greater,
            (Atom::Op(a), Atom::Op(b)) if Arc::ptr_eq(a, b) => Ordering::Equal,
            (Atom::Op(a), Atom::Op(b)) => a.kind.cmp(&b.kind),
        }
    }
}

impl PartialOrd for Atom {
    fn partial_cmp(&self, other: &Atom) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A product of atoms in ascending order; up to two are stored in place.
#[derive(Clone, Default)]
pub(super) enum Monomial {
    #[default]
    One,
    Single(Atom),
    Pair([Atom; 2]),
    Many(Arc<[Atom]>),
}

impl Monomial {
    pub(super) fn atoms(&self) -> &[Atom] {
        match self {
            Monomial::One => &[],
            Monomial::Single(a) => std::slice::from_ref(a),
            Monomial::Pair(pair) => pair,
            Monomial::Many(list) => list,
        }
    }

    pub(super) fn is_one(&self) -> bool {
        matches!(self, Monomial::One)
    }

    fn times(&self, other: &Monomial) -> Monomial {
        match (self, other) {
            (Monomial::One, m) | (m, Monomial::One) => m.clone(),
            (Monomial::Single(a), Monomial::Single(b)) if a <= b => Monomial::Pair([a.clone(), b.clone()]),
            (Monomial::Single(a), Monomial::Single(b)) => Monomial::Pair([b.clone(), a.clone()]),
            _ => {
                let (mut a, mut b) = (self.atoms(), other.atoms());
                let mut out = Atoms::new();
                while let (Some((x, more_a)), Some((y, more_b))) = (a.split_first(), b.split_first()) {
                    if x <= y {
                        out.push(x);
                        a = more_a;
                    } else {
                        out.push(y);
                        b = more_b;
                    }
                }
                a.iter().chain(b).for_each(|atom| out.push(atom));
                out.product()
            }
        }
    }

    /// `self / other` where `other` divides it.
    pub(super) fn over(&self, other: &Monomial) -> Option<Monomial> {
        if other.is_one() {
            return Some(self.clone());
        }
        let mut wanted = other.atoms();
        if wanted.len() > self.atoms().len() {
            return None;
        }
        let mut out = Atoms::new();
        for atom in self.atoms() {
            match wanted.split_first() {
                Some((first, more)) if first == atom => wanted = more,
                _ => out.push(atom),
            }
        }
        wanted.is_empty().then(|| out.product())
    }

    /// The largest product that divides both.
    pub(super) fn common(&self, other: &Monomial) -> Monomial {
        let (mut a, mut b) = (self.atoms(), other.atoms());
        let mut out = Atoms::new();
        while let (Some((x, more_a)), Some((y, more_b))) = (a.split_first(), b.split_first()) {
            match x.cmp(y) {
                Ordering::Less => a = more_a,
                Ordering::Greater => b = more_b,
                Ordering::Equal => {
                    out.push(x);
                    (a, b) = (more_a, more_b);
                }
            }
        }
        out.product()
    }
}

/// Borrowed factors of a product under construction, on the stack: the finished product then needs one allocation or none.
struct Atoms<'a> {
    list: [Option<&'a Atom>; MAX_DEGREE],
    len: usize,
}

impl<'a> Atoms<'a> {
    fn new() -> Self {
        Atoms { list: [None; MAX_DEGREE], len: 0 }
    }

    fn push(&mut self, atom: &'a Atom) {
        // No product has more factors: `Term::times` checks before it multiplies.
        self.list[self.len] = Some(atom);
        self.len += 1;
    }

    fn product(&self) -> Monomial {
        match self.list {
            [None, ..] => Monomial::One,
            [Some(a), None, ..] => Monomial::Single(a.clone()),
            [Some(a), Some(b), None, ..] => Monomial::Pair([a.clone(), b.clone()]),
            [Some(a), Some(b), Some(c), None, ..] => Monomial::Many(Arc::from([a.clone(), b.clone(), c.clone()])),
            _ => Monomial::Many(self.list.iter().flatten().copied().cloned().collect()),
        }
    }
}

impl PartialEq for Monomial {
    fn eq(&self, other: &Monomial) -> bool {
        self.atoms() == other.atoms()
    }
}

impl Eq for Monomial {}

impl Hash for Monomial {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.atoms().hash(state);
    }
}

/// Graded lexicographic, leading product first: higher degree before lower, then earlier names before later ones.
/// Multiplying both sides by the same product keeps the order, which exact division relies on.
impl Ord for Monomial {
    fn cmp(&self, other: &Monomial) -> Ordering {
        let (a, b) = (self.atoms(), other.atoms());
        b.len().cmp(&a.len()).then_with(|| a.cmp(b))
    }
}

impl PartialOrd for Monomial {
    fn partial_cmp(&self, other: &Monomial) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// One summand.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Term {
    pub(super) mono: Monomial,
    pub(super) coef: i64,
}

impl Term {
    fn times(&self, other: &Term) -> Option<Term> {
        if self.mono.atoms().len() + other.mono.atoms().len() > MAX_DEGREE {
            return None;
        }
        Some(Term { coef: self.coef.checked_mul(other.coef)?, mono: self.mono.times(&other.mono) })
    }
}

/// A `Dim` seen as its terms, without allocating for a constant.
pub(super) struct Terms<'a> {
    constant: Option<Term>,
    poly: &'a [Term],
}

impl Terms<'_> {
    pub(super) fn as_slice(&self) -> &[Term] {
        match &self.constant {
            Some(term) => std::slice::from_ref(term),
            None => self.poly,
        }
    }
}

impl Dim {
    /// The terms, leading one first; none for zero. An undefined `Dim` has none either: ask first.
    pub(super) fn terms(&self) -> Terms<'_> {
        match &self.0 {
            Repr::Const(0) => Terms { constant: None, poly: &[] },
            Repr::Const(c) => Terms { constant: Some(Term { mono: Monomial::One, coef: *c }), poly: &[] },
            Repr::Poly(terms) => Terms { constant: None, poly: terms },
        }
    }

    /// The sum of terms that are already in order, distinct and non-zero.
    pub(super) fn from_sorted_terms(terms: Vec<Term>) -> Dim {
        match terms.as_slice() {
            [] => Dim(Repr::Const(0)),
            [only] if only.mono.is_one() => Dim(Repr::Const(only.coef)),
            _ if terms.len() > MAX_TERMS => Dim::undefined(),
            _ => Dim(Repr::Poly(terms.into())),
        }
    }

    /// The sum of terms in any order.
    pub(super) fn from_terms(mut terms: Vec<Term>) -> Dim {
        if terms.len() > 1 {
            terms.sort_unstable_by(|a, b| a.mono.cmp(&b.mono));
            let mut kept: usize = 0;
            for at in 1..terms.len() {
                if terms[kept].mono == terms[at].mono {
                    match terms[kept].coef.checked_add(terms[at].coef) {
                        Some(sum) => terms[kept].coef = sum,
                        None => return Dim::undefined(),
                    }
                } else {
                    if terms[kept].coef != 0 {
                        kept += 1;
                    }
                    terms.swap(kept, at);
                }
            }
            terms.truncate(kept + 1);
        }
        if terms.last().is_some_and(|last| last.coef == 0) {
            terms.pop();
        }
        Dim::from_sorted_terms(terms)
    }

    pub(super) fn from_term(coef: i64, mono: Monomial) -> Dim {
        match coef {
            0 => Dim::default(),
            _ if mono.is_one() => Dim::from(coef),
            _ => Dim(Repr::Poly(Arc::from([Term { mono, coef }]))),
        }
    }

    pub(super) fn from_atom(atom: Atom) -> Dim {
        Dim::from_term(1, Monomial::Single(atom))
    }

    /// The atom of an operation whose arguments are normalised and which no rule simplifies.
    pub(super) fn from_op(kind: OpKind) -> Dim {
        let (mut depth, mut weight) = (0u32, 1u32);
        for term in kind.args().flat_map(|arg| arg.poly_terms()) {
            weight = weight.saturating_add(1);
            for atom in term.mono.atoms() {
                if let Atom::Op(op) = atom {
                    depth = depth.max(op.depth);
                    weight = weight.saturating_add(op.weight);
                }
            }
        }
        if depth >= MAX_DEPTH || weight > MAX_WEIGHT {
            return Dim::undefined();
        }
        Dim::from_atom(Atom::Op(Arc::new(Op { kind, depth: depth + 1, weight })))
    }

    /// The terms of a polynomial; none for a constant.
    pub(super) fn poly_terms(&self) -> &[Term] {
        match &self.0 {
            Repr::Const(_) => &[],
            Repr::Poly(terms) => terms,
        }
    }

    /// The operation, where the whole expression is one.
    pub(super) fn as_op(&self) -> Option<&OpKind> {
        match self.poly_terms() {
            [Term { coef: 1, mono: Monomial::Single(Atom::Op(op)) }] => Some(&op.kind),
            _ => None,
        }
    }

    /// The sign of the leading coefficient is negative.
    pub(super) fn leads_negative(&self) -> bool {
        self.terms().as_slice().first().is_some_and(|t| t.coef < 0)
    }

    /// The constant summand.
    pub(super) fn constant_part(&self) -> i64 {
        match &self.0 {
            Repr::Const(c) => *c,
            Repr::Poly(terms) => terms.last().filter(|t| t.mono.is_one()).map_or(0, |t| t.coef),
        }
    }

    pub(super) fn add_const(&self, c: i64) -> Dim {
        match &self.0 {
            _ if c == 0 => self.clone(),
            Repr::Const(a) => a.checked_add(c).map_or_else(Dim::undefined, Dim::from),
            Repr::Poly(_) if self.is_undefined() => self.clone(),
            Repr::Poly(terms) => {
                let Some(sum) = self.constant_part().checked_add(c) else { return Dim::undefined() };
                let body = terms.iter().filter(|t| !t.mono.is_one());
                let mut out = Vec::with_capacity(terms.len() + 1);
                out.extend(body.cloned());
                if sum != 0 {
                    out.push(Term { mono: Monomial::One, coef: sum });
                }
                Dim::from_sorted_terms(out)
            }
        }
    }

    pub(super) fn mul_const(&self, c: i64) -> Dim {
        match &self.0 {
            _ if c == 1 || self.is_undefined() => self.clone(),
            _ if c == 0 => Dim::default(),
            Repr::Const(a) => a.checked_mul(c).map_or_else(Dim::undefined, Dim::from),
            Repr::Poly(terms) => {
                if terms.iter().any(|t| t.coef.checked_mul(c).is_none()) {
                    return Dim::undefined();
                }
                let scaled = terms.iter().map(|t| Term { mono: t.mono.clone(), coef: t.coef.wrapping_mul(c) });
                Dim(Repr::Poly(scaled.collect()))
            }
        }
    }

    /// `self + sign · other`, for a sign of 1 or −1.
    pub(super) fn add_signed(&self, other: &Dim, sign: i64) -> Dim {
        match (&self.0, &other.0) {
            (Repr::Const(a), Repr::Const(b)) => {
                let sum = i128::from(*a) + i128::from(sign) * i128::from(*b);
                i64::try_from(sum).map_or_else(|_| Dim::undefined(), Dim::from)
            }
            (_, Repr::Const(c)) => match c.checked_mul(sign) {
                Some(c) => self.add_const(c),
                None => Dim::undefined(),
            },
            (Repr::Const(c), _) if sign == 1 => other.add_const(*c),
            (Repr::Const(c), _) => other.mul_const(-1).add_const(*c),
            (Repr::Poly(a), Repr::Poly(b)) => {
                if self.is_undefined() || other.is_undefined() {
                    return Dim::undefined();
                }
                merge(a, b, sign).map_or_else(Dim::undefined, Dim::from_sorted_terms)
            }
        }
    }

    pub(super) fn mul_dim(&self, other: &Dim) -> Dim {
        match (&self.0, &other.0) {
            (_, Repr::Const(c)) => self.mul_const(*c),
            (Repr::Const(c), _) => other.mul_const(*c),
            (Repr::Poly(a), Repr::Poly(b)) => {
                let count = a.len() * b.len();
                if count == 0 || count > MAX_TERMS {
                    return Dim::undefined();
                }
                let mut terms = Vec::with_capacity(count);
                for x in a.iter() {
                    for y in b.iter() {
                        let Some(term) = x.times(y) else { return Dim::undefined() };
                        terms.push(term);
                    }
                }
                // One product times an ordered sum stays in order, and nothing can cancel.
                if a.len() == 1 || b.len() == 1 { Dim::from_sorted_terms(terms) } else { Dim::from_terms(terms) }
            }
        }
    }

    /// The polynomial `q` with `q · divisor == self`, if there is one.
    ///
    /// ```
    /// use kiln_ir::Dim;
    /// let size = Dim::parse("b*t*4096").unwrap();
    /// assert_eq!(size.div_exact(&Dim::parse("t*64").unwrap()), Dim::parse("b*64").ok());
    /// assert_eq!(size.div_exact(&Dim::parse("t + 1").unwrap()), None);
    /// ```
    pub fn div_exact(&self, divisor: &Dim) -> Option<Dim> {
        if self.is_undefined() || divisor.is_undefined() || divisor.is_zero() {
            return None;
        }
        if let (Some(a), Some(b)) = (self.as_const(), divisor.as_const()) {
            return (a.checked_rem(b)? == 0).then(|| Dim::from(a / b));
        }
        let divisor_terms = divisor.terms();
        let (lead, tail) = divisor_terms.as_slice().split_first()?;
        let by_lead = |term: &Term| -> Option<Term> {
            let exact = term.coef.checked_rem(lead.coef)? == 0;
            let mono = term.mono.over(&lead.mono)?;
            exact.then(|| Term { mono, coef: term.coef / lead.coef })
        };
        if tail.is_empty() {
            let quotient: Option<Vec<Term>> = self.terms().as_slice().iter().map(by_lead).collect();
            return quotient.map(Dim::from_sorted_terms);
        }
        let mut rest = self.clone();
        let mut quotient = Vec::new();
        while !rest.is_zero() {
            if quotient.len() >= MAX_TERMS || rest.is_undefined() {
                return None;
            }
            let term = by_lead(rest.terms().as_slice().first()?)?;
            rest = &rest - &divisor.mul_dim(&Dim::from_term(term.coef, term.mono.clone()));
            quotient.push(term);
        }
        Some(Dim::from_sorted_terms(quotient))
    }
}

/// The ordered sum of two ordered sums; `None` on overflow.
fn merge(mut a: &[Term], mut b: &[Term], sign: i64) -> Option<Vec<Term>> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    while let (Some((x, more_a)), Some((y, more_b))) = (a.split_first(), b.split_first()) {
        match x.mono.cmp(&y.mono) {
            Ordering::Less => {
                out.push(x.clone());
                a = more_a;
            }
            Ordering::Greater => {
                out.push(Term { mono: y.mono.clone(), coef: y.coef.checked_mul(sign)? });
                b = more_b;
            }
            Ordering::Equal => {
                let coef = x.coef.checked_add(y.coef.checked_mul(sign)?)?;
                if coef != 0 {
                    out.push(Term { mono: x.mono.clone(), coef });
                }
                (a, b) = (more_a, more_b);
            }
        }
    }
    out.extend_from_slice(a);
    for y in b {
        out.push(Term { mono: y.mono.clone(), coef: y.coef.checked_mul(sign)? });
    }
    Some(out)
}
