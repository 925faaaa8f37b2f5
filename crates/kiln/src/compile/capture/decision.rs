//! Numbers in functions that are captured: what is decided by them is guarded by the outcome, and what is computed of them outside of
//! graphs is data of those that follow.

use super::Session;
use super::breaks::{BreakText, Cause};
use super::segment::InputSource;
use super::tree::{BranchGuard, Produced, TraceStep};
use crate::tensor::dim::Relation;
use crate::tensor::float::expression::Expression;
use crate::{DType, Device, Error, Number, Result, Tensor};
use kiln_ir::{Source, TensorType};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// A comparison of numbers that a function decides by.
#[derive(Debug)]
pub(super) struct Decision {
    left: Expression<InputSource>,
    relation: Relation,
    right: Expression<InputSource>,
    /// The line that decides.
    pub(super) at: Source,
}

impl Decision {
    /// Returns whether it holds, given how elements are read.
    pub(super) fn holds(&self, read: &dyn Fn(&InputSource) -> Result<f64>) -> Result<bool> {
        Ok(self.relation.holds(self.left.evaluate(read)?, self.right.evaluate(read)?))
    }

    /// Returns whether both compare the same.
    pub(super) fn is(&self, other: &Decision) -> bool {
        let same = |a: &Expression<InputSource>, b: &Expression<InputSource>| a.is(b, &InputSource::is);
        self.relation == other.relation && same(&self.left, &other.left) && same(&self.right, &other.right)
    }
}

/// `decides by number < 0.0001`.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |side: &Expression<InputSource>| {
            side.map(&mut |from| {
                Ok(match from {
                    InputSource::Argument(number) => format!("argument {number}"),
                    _ => "number".to_owned(),
                })
            })
            .map_err(|_| fmt::Error)
        };
        write!(f, "decides by {} {} {}", side(&self.left)?, self.relation, side(&self.right)?)
    }
}

impl Session {
    /// The line of the call where there is no line of the function: references are compared, and results visited, by code of others.
    fn line_of(&self, at: &Source) -> Source {
        let is_of_std = at.file.ends_with("library/core/src/cmp.rs");
        if at.is_unknown() || is_of_std { self.recording.at.clone() } else { at.clone() }
    }

    /// Makes sure that the elements of an expression have memory, and says where.
    fn settled(
        &mut self,
        expression: &Expression<Tensor>,
        cause: Cause,
        at: &Source,
    ) -> Result<Expression<InputSource>> {
        expression.map(&mut |tensor| self.settle(tensor, cause, at))
    }

    /// Whether a comparison holds; what follows is for this outcome.
    pub(super) fn decide(
        &mut self,
        left: &Expression<Tensor>,
        relation: Relation,
        right: &Expression<Tensor>,
        at: &Source,
    ) -> Result<bool> {
        const CAUSE: Cause = Cause::Reads("decides by a number");
        let at = &self.line_of(at);
        self.recording.must_not_be_in_body(CAUSE, at)?;
        self.recording.must_not_be_in_function()?;
        let (left, right) = (self.settled(left, CAUSE, at)?, self.settled(right, CAUSE, at)?);
        let decision = Arc::new(Decision { left, relation, right, at: at.clone() });
        let outcome = self.may_break(CAUSE, at)?.ask(BranchGuard::Decision(decision), at)?;
        Ok(*outcome == [1])
    }

    /// What an expression is, as data: computed outside of the graph at every call.
    pub(super) fn number(&mut self, expression: &Expression<Tensor>, device: Device, at: &Source) -> Result<Tensor> {
        const CAUSE: Cause = Cause::NumberOfData;
        let at = &self.line_of(at);
        self.recording.must_not_be_in_body(CAUSE, at)?;
        self.recording.must_not_be_in_function()?;
        let mut from = Vec::new();
        let places = self.settled(expression, CAUSE, at)?.map(&mut |source| {
            from.push(source.clone());
            Ok(from.len() - 1)
        })?;
        let line = at.clone();
        let run = move |tensors: &[Tensor]| {
            let value = places.evaluate(&|&place| tensors[place].item_at(&line))?;
            let made = Tensor::scalar_at(Number::Float(value).to_scalar(DType::F64), device, &line)?;
            Ok(Produced { tensors: vec![made.clone()], rest: Vec::new(), whole: Rc::new(made) })
        };
        let why = Arc::new(BreakText::of(CAUSE, at));
        let step = TraceStep::Outside { run: Arc::new(run), from, is_pure: true, why, at: at.clone() };
        let (_, count) = self.may_break(CAUSE, at)?.outside(step, at)?;
        let from = InputSource::Slot(self.recording.take_slots(count));
        self.recording.outside(from, TensorType::fixed(DType::F64, &[]), device, None, at)
    }

    /// A comparison could not be made, or a number not be computed, and the function does not know: the capture fails, and nothing is
    /// recorded from here on. The outcome that the function goes on with is no constant, so that loops end.
    pub(super) fn fail(&mut self, error: Error) -> bool {
        let recording = &mut self.recording;
        recording.unanswered = recording.unanswered.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // A body of a loop that is no graph runs turn by turn, where the comparison can be made.
        if !recording.is_refused() {
            recording.failure.get_or_insert(error);
        }
        recording.unanswered >> 31 == 1
    }
}
