//! What can be compiled: functions of tensors and functions with errors of their own; `nn` adds modules.

use crate::{Error, Result};

/// What [`crate::compile()`] takes: a function or closure `Fn(&A) -> Result<R>`, one with another error behind [`own_error`], or a
/// module by its [`Forward`](crate::nn::Forward). `Kind` says which of them it is and is inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a function `Fn(&A) -> kiln::Result<R>` nor a module with `Forward`",
    label = "cannot be compiled",
    note = "write the type of a closure's argument, as in `|x: &Tensor| …`; it takes one reference, to a tuple if there are several arguments",
    note = "a function that returns another error is compiled as `kiln::compile(kiln::own_error(f))`",
    note = "a module has `#[derive(kiln::nn::Module)]` and an `impl kiln::nn::Forward`"
)]
pub trait Callable<A, R, Kind> {
    /// What it returns where it fails: [`Error`], unless it has an error of its own.
    type Error: From<Error>;

    /// Calls it, eagerly.
    fn apply(&self, arguments: &A) -> Result<R, Self::Error>;
}

/// Calls from here are the user's, who called the compiled function.
pub(super) const FILE: &str = file!();

/// The kind of functions and closures.
#[derive(Debug)]
pub enum Function {}

/// The kind of functions with an error of their own.
#[derive(Debug)]
pub enum WithOwnError {}

impl<F, A, R> Callable<A, R, Function> for F
where
    F: Fn(&A) -> Result<R>,
{
    type Error = Error;

    fn apply(&self, arguments: &A) -> Result<R> {
        self(arguments)
    }
}

/// A function with an error of its own. See [`own_error`].
#[derive(Debug, Clone, Copy)]
pub struct OwnError<F>(F);

/// Lets [`crate::compile()`] take a function that returns an error of its own, to which errors of Kiln are converted. Calls of what is
/// compiled return that error.
///
/// ```
/// use kiln::{DType, Device, Tensor};
/// #[derive(Debug)]
/// enum Refused {
///     NotARow(usize),
///     NotFinite,
///     Kiln(kiln::Error),
/// }
/// impl From<kiln::Error> for Refused {
///     fn from(error: kiln::Error) -> Refused {
///         Refused::Kiln(error)
///     }
/// }
///
/// let fast = kiln::compile(kiln::own_error(|x: &Tensor| {
///     if x.rank() != 1 {
///         return Err(Refused::NotARow(x.rank()));
///     }
///     let sum = x.sum(..)?;
///     if !sum.item::<f32>()?.is_finite() {
///         return Err(Refused::NotFinite);
///     }
///     Ok(x.div(&sum)?)
/// }));
/// assert_eq!(fast.call(&Tensor::ones(4, DType::F32, Device::Cpu)?)?.to_vec::<f32>()?, [0.25; 4]);
/// assert!(matches!(fast.call(&Tensor::ones([2, 2], DType::F32, Device::Cpu)?), Err(Refused::NotARow(2))));
/// assert!(matches!(fast.call(&Tensor::full(4, f32::INFINITY, DType::F32, Device::Cpu)?), Err(Refused::NotFinite)));
/// # Ok::<(), Refused>(())
/// ```
///
/// A function that failed has no program: the next call with such arguments calls it again. It is called to be captured, so an
/// error has to follow from what compiled functions may depend on: arguments, sizes, settings, elements that it reads.
///
/// Where a closure says `Ok(…)`, its error cannot be told from what it returns; that is why [`crate::compile()`] alone
/// takes [`Error`] for granted.
pub fn own_error<F, A, R, E>(f: F) -> OwnError<F>
where
    F: Fn(&A) -> Result<R, E>,
    E: From<Error>,
{
    OwnError(f)
}

impl<F, A, R, E> Callable<A, R, WithOwnError> for OwnError<F>
where
    F: Fn(&A) -> Result<R, E>,
    E: From<Error>,
{
    type Error = E;

    fn apply(&self, arguments: &A) -> Result<R, E> {
        self.0(arguments)
    }
}
