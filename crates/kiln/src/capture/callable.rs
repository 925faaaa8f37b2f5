//! What can be compiled: functions of tensors, and modules.

use crate::Result;
use crate::nn::{Forward, Module};

/// What [`crate::compile()`] takes: a function or closure `Fn(&A) -> Result<R>`, or a module by its [`Forward`]. `Kind` says which of
/// the two it is and is inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a function `Fn(&A) -> kiln::Result<R>` nor a module with `Forward`",
    label = "cannot be compiled",
    note = "write the type of a closure's argument, as in `|x: &Tensor| …`; it takes one reference, to a tuple if there are several arguments"
)]
pub trait Callable<A, R, Kind> {
    /// Calls it, eagerly.
    fn apply(&self, arguments: &A) -> Result<R>;
}

/// Calls from here are the user's, who called the compiled module.
pub(super) const FILE: &str = file!();

/// The kind of functions and closures.
#[derive(Debug)]
pub enum Function {}

/// The kind of modules.
#[derive(Debug)]
pub enum Network {}

impl<F, A, R> Callable<A, R, Function> for F
where
    F: Fn(&A) -> Result<R>,
{
    fn apply(&self, arguments: &A) -> Result<R> {
        self(arguments)
    }
}

impl<M, A> Callable<A, M::Output, Network> for M
where
    M: Module + Forward<A>,
{
    fn apply(&self, arguments: &A) -> Result<M::Output> {
        if super::is_active() {
            self.name_variables();
        }
        self.forward(arguments)
    }
}
