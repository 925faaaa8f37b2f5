//! What can be compiled: functions of tensors, and functions with their own error type; `nn` adds modules.

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

/// The [`crate::compile()`] kind of functions and closures.
#[derive(Debug)]
pub enum Function {}

/// The [`crate::compile()`] kind of functions with their own error type.
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

/// A function with its own error type. See [`own_error`].
#[derive(Debug, Clone, Copy)]
pub struct OwnError<F>(F);

/// Lets [`crate::compile()`] take a function that returns its own error type, which must be convertible from [`Error`].
/// Calls of the compiled function return that type.
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
/// When the function fails, no program is made: the next call with such arguments calls it again. Since the function is
/// called only to be captured, an error must follow from what compiled functions may depend on: arguments, sizes, settings,
/// and elements that it reads.
///
/// [`crate::compile()`] alone assumes [`Error`], because the error type of a closure that ends in `Ok(…)` cannot be
/// inferred.
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
