//! What a number is computed by, of elements that are read later.

use crate::Result;
use kiln_ir::{BinaryOp, UnaryOp};
use std::fmt;
use std::sync::Arc;

/// An expression over elements: tensors of one element, or the places where these are found when a compiled function runs.
#[derive(Debug, Clone)]
pub(crate) enum Expression<E> {
    Number(f64),
    Element(E),
    Unary(UnaryOp, Arc<Expression<E>>),
    Binary(BinaryOp, Arc<Expression<E>>, Arc<Expression<E>>),
}

/// The function of a row of the table of ops; those used here have one.
pub(super) fn unary(op: UnaryOp, x: f64) -> f64 {
    op.row().float.map_or(f64::NAN, |compute| compute(x))
}

/// The same for two operands.
pub(super) fn binary(op: BinaryOp, x: f64, y: f64) -> f64 {
    op.row().float.map_or(f64::NAN, |compute| compute(x, y))
}

impl<E> Expression<E> {
    /// Returns how many nodes it has.
    pub(super) fn size(&self) -> usize {
        match self {
            Expression::Number(_) | Expression::Element(_) => 1,
            Expression::Unary(_, x) => 1 + x.size(),
            Expression::Binary(_, x, y) => 1 + x.size() + y.size(),
        }
    }

    /// Visits the elements.
    pub(crate) fn visit(&self, visit: &mut dyn FnMut(&E)) {
        match self {
            Expression::Number(_) => {}
            Expression::Element(element) => visit(element),
            Expression::Unary(_, x) => x.visit(visit),
            Expression::Binary(_, x, y) => {
                x.visit(visit);
                y.visit(visit);
            }
        }
    }

    /// Returns the number, in the arithmetic of f64.
    pub(crate) fn evaluate(&self, read: &dyn Fn(&E) -> Result<f64>) -> Result<f64> {
        Ok(match self {
            Expression::Number(value) => *value,
            Expression::Element(element) => read(element)?,
            Expression::Unary(op, x) => unary(*op, x.evaluate(read)?),
            Expression::Binary(op, x, y) => binary(*op, x.evaluate(read)?, y.evaluate(read)?),
        })
    }

    /// The same expression over other elements.
    pub(crate) fn map<T>(&self, map: &mut dyn FnMut(&E) -> Result<T>) -> Result<Expression<T>> {
        Ok(match self {
            Expression::Number(value) => Expression::Number(*value),
            Expression::Element(element) => Expression::Element(map(element)?),
            Expression::Unary(op, x) => Expression::Unary(*op, Arc::new(x.map(map)?)),
            Expression::Binary(op, x, y) => Expression::Binary(*op, Arc::new(x.map(map)?), Arc::new(y.map(map)?)),
        })
    }

    /// Returns whether both are the same, given which elements are.
    pub(crate) fn is(&self, other: &Expression<E>, same: &dyn Fn(&E, &E) -> bool) -> bool {
        match (self, other) {
            (Expression::Number(a), Expression::Number(b)) => a.to_bits() == b.to_bits(),
            (Expression::Element(a), Expression::Element(b)) => same(a, b),
            (Expression::Unary(a, x), Expression::Unary(b, y)) => a == b && x.is(y, same),
            (Expression::Binary(a, x, z), Expression::Binary(b, y, w)) => a == b && x.is(y, same) && z.is(w, same),
            _ => false,
        }
    }
}

/// As a formula: `sqrt(number) * 2.0`.
impl<E: fmt::Display> fmt::Display for Expression<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = |op: &BinaryOp| match op {
            BinaryOp::Add => Some("+"),
            BinaryOp::Sub => Some("-"),
            BinaryOp::Mul => Some("*"),
            BinaryOp::Div => Some("/"),
            _ => None,
        };
        match self {
            Expression::Number(value) => write!(f, "{value:?}"),
            Expression::Element(element) => element.fmt(f),
            Expression::Unary(op, x) => write!(f, "{}({x})", op.name()),
            Expression::Binary(op, x, y) => match sign(op) {
                Some(sign) => write!(f, "({x} {sign} {y})"),
                None => write!(f, "{}({x}, {y})", op.name()),
            },
        }
    }
}
