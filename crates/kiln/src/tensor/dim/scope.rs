//! The sizes of the function being captured on this thread: its symbols with their values at this call, the expressions made
//! of them, and the guards that the function's decisions ask for.

use super::{Dim, Expression, Predicate, Relation, obligations};
use kiln_ir::{Graph, Ranges, Source, Symbol, TensorType, TypeError};
use std::cell::RefCell;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A symbol of a scope.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SizeSymbol {
    pub(crate) symbol: Symbol,
    /// The size at this call.
    pub(crate) now: i64,
    /// The least and, where there is one, the largest size.
    pub(crate) range: (i64, Option<i64>),
}

/// Sizes of a function being captured.
pub(crate) struct Scope {
    id: NonZeroU32,
    symbols: Vec<SizeSymbol>,
    /// What is known from the start, by which expressions are simplified: one expression stays one.
    given: Ranges,
    /// What is known by now.
    ranges: Ranges,
    expressions: Vec<kiln_ir::Dim>,
    guards: Vec<Predicate>,
    outcome: Option<Outcome>,
    /// Whether an operation failed for want of sizes, which the function may not have noticed.
    has_refused: bool,
}

/// Why a recording with symbols is not to be used as it is.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// The graph is one only where this equation holds, so it has to be recorded anew with that built in.
    Equation(Predicate),
    /// A size was read as a number at a line.
    NumberRead(Source),
    /// An operation cannot be written for symbolic sizes.
    Refused { op: String, at: Source },
}

impl Outcome {
    /// The line.
    pub(crate) fn at(&self) -> &Source {
        match self {
            Outcome::Equation(equation) => &equation.at,
            Outcome::NumberRead(at) | Outcome::Refused { at, .. } => at,
        }
    }
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
    static FIXED: RefCell<Option<FixedSizes>> = const { RefCell::new(None) };
}

/// Symbols with what they were replaced by.
pub(crate) type FixedSizes = Arc<[(Symbol, i64)]>;

/// What the symbols of the function being captured on this thread were replaced by, if they were: gradients of what was recorded
/// before have them.
pub(crate) fn fixed() -> Option<FixedSizes> {
    FIXED.with_borrow(Clone::clone)
}

/// Sets [`fixed`]; gives what it was.
pub(crate) fn set_fixed(sizes: Option<FixedSizes>) -> Option<FixedSizes> {
    FIXED.replace(sizes)
}

impl Scope {
    /// A scope of symbols.
    pub(crate) fn new(symbols: Vec<SizeSymbol>) -> Scope {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let id = NonZeroU32::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU32::MIN);
        let mut ranges = Ranges::new();
        for symbol in &symbols {
            ranges.set(symbol.symbol, symbol.range.0, symbol.range.1);
        }
        Scope {
            id,
            symbols,
            given: ranges.clone(),
            ranges,
            expressions: Vec::new(),
            guards: Vec::new(),
            outcome: None,
            has_refused: false,
        }
    }

    /// Makes this the scope of the thread.
    pub(crate) fn enter(self) {
        SCOPE.set(Some(self));
    }

    /// Ends the scope of the thread.
    pub(crate) fn leave() -> Option<Scope> {
        SCOPE.take()
    }

    /// Why the recording is not to be used, if it is not.
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// What is known about the symbols where all guards hold.
    pub(crate) fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// The guards of what was recorded, given its graphs.
    pub(crate) fn guards(&self, graphs: &[&Graph]) -> Vec<Predicate> {
        let mut guards = self.guards.clone();
        for graph in graphs {
            obligations::of(graph, &self.ranges, &mut guards);
        }
        guards
    }

    /// The symbols with their sizes at this call.
    pub(crate) fn sizes(&self) -> FixedSizes {
        self.symbols.iter().map(|known| (known.symbol, known.now)).collect()
    }

    /// The size of a symbol at this call.
    pub(crate) fn now(&self, symbol: Symbol) -> Option<i64> {
        self.symbols.iter().find(|known| known.symbol == symbol).map(|known| known.now)
    }

    fn dim(&mut self, expression: kiln_ir::Dim) -> Option<Dim> {
        let value = expression.eval(&|symbol| self.now(symbol))?;
        if expression.as_const().is_some() {
            return Some(Dim::plain(value));
        }
        let place = self.expressions.iter().position(|known| *known == expression).unwrap_or_else(|| {
            self.expressions.push(expression);
            self.expressions.len() - 1
        });
        Some(Dim { value, expression: Some(Expression { scope: self.id, place: u32::try_from(place).ok()? }) })
    }

    /// The expression of a size; one of another scope is its number.
    fn expression(&self, size: Dim) -> kiln_ir::Dim {
        let own = |e: Expression| (e.scope == self.id).then(|| self.expressions.get(e.place as usize)).flatten();
        size.expression.and_then(own).cloned().unwrap_or(kiln_ir::Dim::from(size.value))
    }

    fn assume(&mut self, predicate: Predicate) {
        if predicate.is_proved(&self.ranges, &self.guards) {
            return;
        }
        if predicate.relation == Relation::Equal {
            self.outcome.get_or_insert(Outcome::Equation(predicate.clone()));
        }
        predicate.narrow(&mut self.ranges);
        self.guards.push(predicate);
    }
}

/// Adds a symbol to the scope of the thread, if there is one.
pub(crate) fn add(symbol: SizeSymbol) {
    SCOPE.with_borrow_mut(|scope| {
        if let Some(scope) = scope {
            scope.symbols.push(symbol);
            for ranges in [&mut scope.given, &mut scope.ranges] {
                ranges.set(symbol.symbol, symbol.range.0, symbol.range.1);
            }
        }
    });
}

/// The expression of a size, if its scope is that of the thread.
pub(super) fn expression(expression: Expression) -> Option<kiln_ir::Dim> {
    SCOPE.with_borrow(|scope| {
        let scope = scope.as_ref().filter(|scope| scope.id == expression.scope)?;
        scope.expressions.get(expression.place as usize).cloned()
    })
}

/// A size computed from two.
#[cold]
pub(super) fn derived(a: Dim, b: Dim, value: i64, combine: fn(&kiln_ir::Dim, &kiln_ir::Dim) -> kiln_ir::Dim) -> Dim {
    SCOPE.with_borrow_mut(|scope| {
        let made = scope.as_mut().and_then(|scope| {
            let made = combine(&scope.expression(a), &scope.expression(b)).simplify(&scope.given);
            scope.dim(made).filter(|made| made.value == value)
        });
        made.unwrap_or_else(|| {
            // Beyond what expressions can say, which is also beyond what shapes accept.
            if let Some(scope) = scope {
                scope.outcome.get_or_insert(Outcome::NumberRead(Source::default()));
            }
            Dim::plain(value)
        })
    })
}

/// Whether a statement holds at this call, which becomes a guard where it is not sure to hold always.
pub(super) fn holds(left: Dim, relation: Relation, right: Dim, at: &Source) -> bool {
    let holds = relation.holds(left.value, right.value);
    if !left.is_plain() || !right.is_plain() {
        guard(left, relation, right, holds, at);
    }
    holds
}

#[cold]
fn guard(left: Dim, relation: Relation, right: Dim, holds: bool, at: &Source) {
    SCOPE.with_borrow_mut(|scope| {
        let Some(scope) = scope else { return };
        let (left, right) = (scope.expression(left), scope.expression(right));
        scope.assume(Predicate::decided(left, relation, right, holds, at));
    });
}

/// The sizes of a type; `None` where it has symbols that no scope knows.
pub(crate) fn sizes(ty: &TensorType) -> Option<Vec<Dim>> {
    let numbers: Option<Vec<Dim>> = ty.shape.iter().map(|size| size.as_const().map(Dim::plain)).collect();
    if numbers.is_some() {
        return numbers;
    }
    SCOPE.with_borrow_mut(|scope| {
        let scope = scope.as_mut()?;
        ty.shape.iter().map(|size| scope.dim(size.clone())).collect()
    })
}

/// The line of what made an operation fail that would not have failed at known sizes, if one did.
pub(crate) fn refused_at() -> Option<Source> {
    SCOPE.with_borrow(|scope| {
        let scope = scope.as_ref().filter(|scope| scope.has_refused)?;
        scope.outcome.as_ref().map(|outcome| outcome.at().clone())
    })
}

/// Whether an operation failed that would not have at known sizes: whatever the function does from there on is not what it means.
pub(crate) fn has_refused() -> bool {
    SCOPE.with_borrow(|scope| scope.as_ref().is_some_and(|scope| scope.has_refused))
}

/// Notes that sizes were read as numbers, which may be computed with in ways that nobody sees.
#[cold]
pub(crate) fn number_read(at: Source) {
    SCOPE.with_borrow_mut(|scope| {
        if let Some(scope) = scope {
            scope.outcome.get_or_insert(Outcome::NumberRead(at));
        }
    });
}

/// Notes why an operation could not be recorded: sizes that are equal now but not known to be so always, or another cause.
#[cold]
pub(crate) fn refused(error: &kiln_ir::Error, at: &Source) {
    SCOPE.with_borrow_mut(|scope| {
        let Some(scope) = scope else { return };
        let (op, cause) = match error {
            kiln_ir::Error::Type { op, cause, .. } => (op.clone(), Some(cause)),
            kiln_ir::Error::Build(error) => (error.function.to_owned(), Some(&error.cause)),
            other => (other.to_string(), None),
        };
        let pair = match cause.map(|cause| &**cause) {
            Some(TypeError::ShapesDiffer { sizes: Some(sizes), .. }) => Some((sizes.0.clone(), sizes.1.clone())),
            Some(TypeError::ElementCounts { from, to }) => Some((from.elements(), to.elements())),
            Some(TypeError::NotDivisible { size, by, .. }) => Some((size.modulo(by), kiln_ir::Dim::from(0))),
            _ => None,
        };
        if let Some((left, right)) = pair {
            let predicate = Predicate::decided(left, Relation::Equal, right, true, at);
            if predicate.is_true(&|symbol| scope.now(symbol)) {
                scope.assume(predicate);
            }
        }
        scope.outcome.get_or_insert(Outcome::Refused { op, at: at.clone() });
        scope.has_refused = true;
    });
}
