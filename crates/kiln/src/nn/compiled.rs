//! Compiled modules, which remain modules.

use super::{Forward, Module, Part, Visit, VisitMut};
use crate::compile::capture::{Callable, Compiled, Options, call_site};
use crate::tensor::bundle::Bundle;
use crate::{Error, Result};
use kiln_ir::Source;

/// The [`crate::compile()`] kind of modules.
#[derive(Debug)]
pub enum Network {}

impl<M, A> Callable<A, M::Output, Network> for M
where
    M: Module + Forward<A>,
{
    type Error = Error;

    fn apply(&self, arguments: &A) -> Result<M::Output> {
        // Calls from here are the user's, who called the compiled module.
        let relay = call_site().map(|at| Source::relay(file!(), at));
        if relay.is_some() {
            self.name_variables();
        }
        self.forward(arguments)
    }
}

/// Compiles a module: its [`Forward`] is captured at the first call. [`crate::compile()`] does the same; use this function
/// where the input type has to be named: `compile_module::<_, Tensor>(module)`.
///
/// The fields, parameters and state dict of the module remain accessible under their own names, and it can still be a part
/// of another module.
///
/// ```
/// use kiln::nn::{Linear, Module};
/// use kiln::{DType, Device, Tensor};
/// let fast = kiln::compile_module(Linear::new(4, 2)?);
/// let y = fast.call(&Tensor::ones([3, 4], DType::F32, Device::Cpu)?)?;
/// assert_eq!((y.shape(), fast.weight.shape()), (&[3, 2][..], &[2, 4][..]));
/// assert_eq!(fast.state_dict().into_keys().collect::<Vec<_>>(), ["bias", "weight"]);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn compile_module<M, A>(module: M) -> Compiled<M, A, M::Output>
where
    M: Module + Forward<A>,
    A: Bundle,
    M::Output: Bundle,
{
    compile_module_with(module, Options::default())
}

/// [`compile_module`] with options.
pub fn compile_module_with<M, A>(module: M, options: Options) -> Compiled<M, A, M::Output>
where
    M: Module + Forward<A>,
    A: Bundle,
    M::Output: Bundle,
{
    Compiled::new(module, Callable::apply, options)
}

impl<M, A, R> Forward<A> for Compiled<M, A, R>
where
    A: Bundle,
    R: Bundle,
{
    type Output = R;

    #[track_caller]
    fn forward(&self, input: &A) -> Result<R> {
        self.call(input)
    }
}

impl<M: Part, A, R, E> Part for Compiled<M, A, R, E> {
    fn visit(&self, walk: &mut Visit<'_>) {
        self.inner().visit(walk);
    }

    fn visit_mut(&mut self, walk: &mut VisitMut<'_>) {
        // Another device or dtype is another program.
        self.reset();
        self.inner_mut().visit_mut(walk);
    }
}

impl<M: Module, A, R, E> Module for Compiled<M, A, R, E> {}
