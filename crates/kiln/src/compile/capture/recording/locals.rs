//! Variables that a captured function makes: nobody else has them, so that each is a name for the tensor it holds by now, and no input
//! or update of any graph. A call of the program has none of its own.

use super::super::breaks::Cause;
use super::{LeafOf, Recording};
use crate::tensor::var::WeakVar;
use crate::{Error, Result, Tensor, Var};
use kiln_ir::Source;
use kiln_passes::is_differentiable;

/// A variable that the function made.
pub(super) struct LocalVar {
    var: WeakVar,
    /// How many the function made before it.
    number: u32,
    /// The line that made it.
    at: Source,
    /// What it is now, without a tape.
    pub(super) value: Tensor,
    pub(super) gradient: Option<Tensor>,
}

impl Recording {
    /// The function makes a variable.
    pub(in super::super) fn make_var(&mut self, var: WeakVar, value: &Tensor, at: &Source) -> Result<()> {
        self.must_not_be_in_body(Cause::MakesVar, at)?;
        let value = self.without_tape(value, at)?;
        self.made += 1;
        self.locals.push(LocalVar { var, number: self.made - 1, at: at.clone(), value, gradient: None });
        Ok(())
    }

    /// The number of a variable that the function made; nothing for one from outside.
    pub(super) fn local(&self, var: &Var, at: &Source) -> Result<Option<usize>> {
        if !var.is_local() {
            return Ok(None);
        }
        let known = self.locals.iter().position(|local| local.var.is(var));
        // One of another capture has no value here.
        known.map(Some).ok_or_else(|| Error::Escaped { at: at.clone() })
    }

    /// Such a variable becomes another tensor.
    pub(super) fn write_local(&mut self, local: usize, tensor: &Tensor, at: &Source) -> Result<()> {
        self.locals[local].value = self.without_tape(tensor, at)?;
        Ok(())
    }

    fn without_tape(&mut self, tensor: &Tensor, at: &Source) -> Result<Tensor> {
        match tensor.has_tape() && tensor.is_traced() {
            true => self.alias(tensor, None, at),
            false => Ok(tensor.detached()),
        }
    }

    /// What such a variable is now: gradients do not go on to what it was computed from.
    pub(super) fn read_local(&mut self, local: usize, var: &Var, at: &Source) -> Result<Tensor> {
        let value = self.locals[local].value.clone();
        if !is_differentiable(var.dtype()) {
            return Ok(value);
        }
        let node = self.node_of(&value, at)?;
        let same = self.same(node)?;
        match var.is_trainable() {
            true => self.leaves.push((same, LeafOf::Local(self.locals[local].number))),
            false => drop(self.stops.insert(same)),
        }
        self.inside(same, var.device(), at)
    }

    /// Whether the function has variables of its own whose gradients it may ask for.
    pub(in super::super) fn has_trainable_locals(&self) -> bool {
        self.locals.iter().any(|local| local.var.upgrade().is_some_and(|var| var.is_trainable()))
    }

    /// The variable of this number, unless the function has dropped it.
    pub(in super::super) fn local_var(&self, number: u32) -> Option<Var> {
        self.locals.iter().find(|local| local.number == number)?.var.upgrade()
    }

    /// Forgets the variables that the function has dropped.
    pub(super) fn forget_locals(&mut self) {
        self.locals.retain(|local| local.var.is_alive());
    }

    /// The line that made a variable which outlives the function.
    pub(in super::super) fn kept_local(&self) -> Option<&Source> {
        self.locals.iter().find(|local| local.var.is_alive()).map(|local| &local.at)
    }
}
