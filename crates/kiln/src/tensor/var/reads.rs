//! What a compiled function has read of variables that it does not change: kept from call to call, so that a call looks at
//! a number a variable instead of locking each and counting one more handle of it.
//!
//! A variable that is about to change asks for its handles back first ([`Reads::forget`]): an update that would have been
//! in place without them still is.

use crate::tensor::call_input::new_pin;
use crate::{Result, Tensor, Var};
use kiln_ir::Source;
use std::sync::{Arc, Mutex, PoisonError};

/// The values of some variables, as far as they are known.
#[derive(Default)]
pub(crate) struct Reads(Mutex<Option<Arc<Values>>>);

/// Values of variables, with what tells whether they still are.
pub(crate) struct Values {
    /// Stands for these values.
    pin: u64,
    /// Whether one of them is on a tape.
    is_taped: bool,
    stamps: Vec<u64>,
    tensors: Vec<Tensor>,
}

impl Values {
    /// The values of no variables.
    pub(crate) fn none() -> Values {
        Values { pin: new_pin(), is_taped: false, stamps: Vec::new(), tensors: Vec::new() }
    }

    /// The values, in the order of the variables.
    pub(crate) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// A number that stands for these values.
    pub(crate) fn pin(&self) -> u64 {
        self.pin
    }

    /// Whether one of them is on a tape.
    pub(crate) fn is_taped(&self) -> bool {
        self.is_taped
    }
}

impl Reads {
    /// What the variables are now, in row-major order; always the same variables.
    pub(crate) fn of(self: &Arc<Reads>, vars: &[Var], at: &Source) -> Result<Arc<Values>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(values) = known.filter(|values| vars.iter().zip(&values.stamps).all(|(v, s)| v.stamp() == *s)) {
            return Ok(values);
        }
        let (mut stamps, mut tensors) = (Vec::with_capacity(vars.len()), Vec::with_capacity(vars.len()));
        for var in vars {
            // Read before the value: at worst the value is newer, and read again.
            stamps.push(var.stamp());
            tensors.push(var.program_input(at)?);
        }
        let is_taped = tensors.iter().any(|tensor| tensor.tape().is_some());
        let values = Arc::new(Values { pin: new_pin(), is_taped, stamps, tensors });
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(values.clone());
        vars.iter().for_each(|var| var.is_kept_by(self));
        Ok(values)
    }

    /// Gives the handles back. Calls that are under way keep theirs to their end.
    pub(crate) fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
