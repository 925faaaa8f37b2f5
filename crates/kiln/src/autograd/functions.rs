//! Transforms of functions: `grad(f)` is the gradient function of `f`.

use super::backward::alias;
use crate::tensor::bundle::{Bundle, Leaf};
use crate::tensor::tape;
use crate::{Error, Result, Tensor};
use kiln_ir::Source;
use kiln_passes::is_differentiable;
use std::cell::Cell;

thread_local! {
    /// How many functions being differentiated this thread is inside of.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Returns the gradient function of `f`, which must return one float. The gradient is a bundle like the argument, with
/// zeros for tensors that `f` does not depend on. Gradient functions can be differentiated again, and compiled.
///
/// ```
/// use kiln::{Device, Tensor};
/// let slope = kiln::grad(|x: &Tensor| x.pow(3)?.sum(..));
/// let curvature = kiln::grad(|x: &Tensor| slope(x)?.sum(..));
/// let x = Tensor::new([1f32, 2.], Device::Cpu)?;
/// assert_eq!(slope(&x)?.to_vec::<f32>()?, [3., 12.]);
/// assert_eq!(curvature(&x)?.to_vec::<f32>()?, [6., 12.]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn grad<A: Bundle>(f: impl Fn(&A) -> Result<Tensor>) -> impl Fn(&A) -> Result<A> {
    let at = Source::caller();
    move |argument: &A| Ok(differentiate(&f, argument, &at)?.1)
}

/// Like [`grad`], but also returns the value of `f`, before the gradient.
///
/// ```
/// use kiln::{Device, Tensor};
/// let f = kiln::value_and_grad(|(w, x): &(Tensor, Tensor)| (w * x)?.sum(..));
/// let (w, x) = (Tensor::new([1f32, 2.], Device::Cpu)?, Tensor::new([3f32, 4.], Device::Cpu)?);
/// let (value, (by_w, by_x)) = f(&(w, x))?;
/// assert_eq!(value.item::<f32>()?, 11.0);
/// assert_eq!((by_w.to_vec::<f32>()?, by_x.to_vec::<f32>()?), (vec![3., 4.], vec![1., 2.]));
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn value_and_grad<A: Bundle>(f: impl Fn(&A) -> Result<Tensor>) -> impl Fn(&A) -> Result<(Tensor, A)> {
    let at = Source::caller();
    move |argument: &A| differentiate(&f, argument, &at)
}

fn differentiate<A: Bundle>(f: &dyn Fn(&A) -> Result<Tensor>, argument: &A, at: &Source) -> Result<(Tensor, A)> {
    let mut nested = DEPTH.get() > 0;
    argument.leaves(&mut |leaf| nested |= matches!(leaf, Leaf::Tensor(t) if t.has_tape()));
    let nested = nested && tape::is_enabled();
    let (mut starts, mut failure): (Vec<Tensor>, Option<Error>) = (Vec::new(), None);
    let traced = argument.map_tensors(&mut |tensor| {
        let start = if is_differentiable(tensor.dtype()) { alias(tensor, at) } else { Ok(tensor.clone()) };
        let start = start.unwrap_or_else(|error| {
            failure = Some(error);
            tensor.clone()
        });
        starts.push(start.clone());
        start
    });
    if let Some(error) = failure {
        return Err(error);
    }
    let value = deeper(|| tape::with_enabled(true, || f(&traced)))?;
    let by: Vec<&Tensor> = starts.iter().filter(|t| t.has_tape()).collect();
    let seed = value.one("grad", at)?;
    let gradients = match value.has_tape() {
        true => Some(deeper(|| tape::with_enabled(nested, || value.gradients_at(seed, &by, at)))?),
        false => None,
    };
    let (mut number, mut failure) = (0, None);
    let result = argument.map_tensors(&mut |tensor| {
        let found = gradients.as_ref().and_then(|g| g.get(&starts[number]).cloned());
        number += 1;
        found.map_or_else(|| tensor.zeros_like(), Ok).unwrap_or_else(|error: Error| {
            failure = Some(error);
            tensor.clone()
        })
    });
    match failure {
        Some(error) => Err(error),
        None => Ok((if nested { value } else { value.detach() }, result)),
    }
}

/// Whether this thread is inside of a function being differentiated, whose operations are recorded whatever is outside.
pub(super) fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Runs `f` one level deeper.
fn deeper<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(usize);
    impl Drop for Restore {
        fn drop(&mut self) {
            DEPTH.set(self.0);
        }
    }
    let _restore = Restore(DEPTH.replace(DEPTH.get() + 1));
    f()
}
