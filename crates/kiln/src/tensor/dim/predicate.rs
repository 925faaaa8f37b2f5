//! What a captured function takes for granted about sizes, and what follows from it for the symbols.

use kiln_ir::dim::Factor;
use kiln_ir::{Dim, Ranges, Source, Symbol};
use std::fmt;

/// How two sizes compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Relation {
    Equal,
    Unequal,
    Below,
    AtMost,
}

impl Relation {
    pub(crate) fn holds<T: PartialOrd>(self, left: T, right: T) -> bool {
        match self {
            Relation::Equal => left == right,
            Relation::Unequal => left != right,
            Relation::Below => left < right,
            Relation::AtMost => left <= right,
        }
    }
}

/// A statement about sizes that was true when a function was captured: `t ≤ 512`, `t % 64 = 0`.
#[derive(Debug, Clone)]
pub(crate) struct Predicate {
    pub(crate) left: Dim,
    pub(crate) relation: Relation,
    pub(crate) right: Dim,
    /// The line that decided by it.
    pub(crate) at: Source,
}

impl Predicate {
    /// The statement, or its contrary where it does not hold.
    pub(crate) fn decided(left: Dim, relation: Relation, right: Dim, holds: bool, at: &Source) -> Predicate {
        let (left, relation, right) = match (relation, holds) {
            (relation, true) => (left, relation, right),
            (Relation::Equal, false) => (left, Relation::Unequal, right),
            (Relation::Unequal, false) => (left, Relation::Equal, right),
            (Relation::Below, false) => (right, Relation::AtMost, left),
            (Relation::AtMost, false) => (right, Relation::Below, left),
        };
        Predicate { left, relation, right, at: at.clone() }
    }

    /// Whether it holds at these sizes; not where it has no value there.
    pub(crate) fn is_true(&self, value: &dyn Fn(Symbol) -> Option<i64>) -> bool {
        match (self.left.eval(value), self.right.eval(value)) {
            (Some(left), Some(right)) => self.relation.holds(left, right),
            _ => false,
        }
    }

    /// What is never negative where it holds; for an (in)equation the difference.
    fn gap(&self) -> Dim {
        match self.relation {
            Relation::Below => &self.right - &self.left - 1,
            _ => &self.right - &self.left,
        }
    }

    /// Whether it follows from the symbols' ranges and from others.
    pub(crate) fn is_proved(&self, ranges: &Ranges, others: &[Predicate]) -> bool {
        let gap = self.gap();
        match self.relation {
            Relation::Equal => {
                gap.is_zero() || others.iter().any(|o| o.relation == Relation::Equal && o.is_same_gap(&gap))
            }
            Relation::Unequal => {
                (&gap - 1).is_nonneg(ranges)
                    || (-&gap - 1).is_nonneg(ranges)
                    || others.iter().any(|o| o.relation == Relation::Unequal && o.is_same_gap(&gap))
            }
            Relation::Below | Relation::AtMost => {
                let follows = |o: &Predicate| {
                    matches!(o.relation, Relation::Below | Relation::AtMost) && (&gap - o.gap()).is_nonneg(ranges)
                };
                gap.is_nonneg(ranges) || others.iter().any(follows)
            }
        }
    }

    fn is_same_gap(&self, gap: &Dim) -> bool {
        let own = self.gap();
        own == *gap || -own == *gap
    }

    /// What it says about the range of a single symbol, if it does.
    pub(crate) fn narrow(&self, ranges: &mut Ranges) {
        let gap = self.gap();
        let [symbol] = gap.symbols()[..] else { return };
        let Some((factor, rest)) = gap.linear_in(symbol) else { return };
        let (Some(factor), Some(rest)) = (factor.as_const(), rest.as_const()) else { return };
        let Some((low, high)) = ranges.get(symbol) else { return };
        // factor · symbol + rest, which is ≥ 0 or ≠ 0.
        match self.relation {
            Relation::Below | Relation::AtMost if factor > 0 => {
                let least = rest.checked_neg().map(|n| n.div_euclid(factor) + (n.rem_euclid(factor) != 0) as i64);
                ranges.set(symbol, least.map_or(low, |least| low.max(least)), high);
            }
            Relation::Below | Relation::AtMost if factor < 0 => {
                let most = factor.checked_neg().map(|factor| rest.div_euclid(factor));
                let both = match (high, most) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
                ranges.set(symbol, low, both);
            }
            Relation::Unequal if factor.checked_mul(low).and_then(|n| n.checked_add(rest)) == Some(0) => {
                ranges.set(symbol, low + 1, high);
            }
            _ => {}
        }
    }

    /// For an equation: expressions for some of its symbols that make it hold everywhere. Where there is no such
    /// expression, the symbols become the numbers they are now.
    pub(crate) fn solution(&self, now: &dyn Fn(Symbol) -> Option<i64>) -> Vec<(Symbol, Dim)> {
        let gap = self.gap();
        let symbols = gap.symbols();
        for &symbol in symbols.iter().rev() {
            let Some((factor, rest)) = gap.linear_in(symbol) else { continue };
            if let Some(solved) = (-rest).div_exact(&factor)
                && (solved.as_const().is_some() || solved.as_symbol().is_some())
            {
                return vec![(symbol, solved)];
            }
        }
        if let Some((symbol, divisor)) = self.divisibility()
            && let Some(part) = Symbol::new(&format!("{symbol}_{divisor}"))
        {
            return vec![(symbol, Dim::from(part) * divisor)];
        }
        let number = |symbol: Symbol| now(symbol).map(|value| (symbol, Dim::from(value)));
        symbols.into_iter().filter_map(number).collect()
    }

    /// The symbol and number of `symbol % number = 0`.
    fn divisibility(&self) -> Option<(Symbol, i64)> {
        let mut found = Vec::new();
        self.gap().visit_terms(&mut |_, factors| {
            found.push(match factors {
                [Factor::Modulo(symbol, divisor)] => symbol.as_symbol().zip(divisor.as_const()),
                _ => None,
            });
        });
        match found[..] {
            [found] => found.filter(|(_, divisor)| *divisor > 1),
            _ => None,
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Relation::Equal => "==",
            Relation::Unequal => "!=",
            Relation::Below => "<",
            Relation::AtMost => "<=",
        })
    }
}

/// Without the line: `t <= 512`.
impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.left, self.relation, self.right)
    }
}
