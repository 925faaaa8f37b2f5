//! Transforms of functions: `grad(f)` is the gradient function of `f`.

use super::backward::alias;
use crate::tensor::bundle::{Bundle, Leaf};
use crate::tensor::tape::{self, Switch};
use crate::tensor::tracer;
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

/// Returns the value of `f` and how it changes as its argument moves along `tangent`, a bundle like the argument: the product of the
/// Jacobian and a vector, by the gradient of a gradient. It can be differentiated again, and compiled.
///
/// ```
/// use kiln::{Device, Tensor};
/// let x = Tensor::new([1f32, 2.], Device::Cpu)?;
/// let tangent = Tensor::new([1f32, -1.], Device::Cpu)?;
/// let (value, change) = kiln::jvp(|x: &Tensor| x.square(), &x, &tangent)?;
/// assert_eq!((value.to_vec::<f32>()?, change.to_vec::<f32>()?), (vec![1., 4.], vec![2., -4.]));
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn jvp<A: Bundle>(f: impl Fn(&A) -> Result<Tensor>, argument: &A, tangent: &A) -> Result<(Tensor, Tensor)> {
    let at = Source::caller();
    let mut nested = DEPTH.get() > 0;
    for bundle in [argument, tangent] {
        bundle.leaves(&mut |leaf| nested |= matches!(leaf, Leaf::Tensor(t) if t.has_tape()));
    }
    let nested = nested && is_recorded(&at)?;
    let (starts, traced) = starts(argument, &at)?;
    let mut directions: Vec<Tensor> = Vec::new();
    tangent.leaves(&mut |leaf| {
        if let Leaf::Tensor(tensor) = leaf {
            directions.push(tensor.clone());
        }
    });
    if directions.len() != starts.len() {
        let (op, name, expected) = ("jvp", "tangent", "it has to have as many tensors as the argument");
        return Err(Error::BadArgument { op, name, value: directions.len().into(), expected, at });
    }
    for (start, direction) in starts.iter().zip(&directions) {
        start.check_seed("jvp", direction, &at)?;
    }
    let value = deeper(|| tape::with_enabled(true, || f(&traced)))?;
    let detached = |value: Tensor| if nested { value } else { value.detach() };
    if !value.has_tape() {
        let nothing = value.zeros_like()?;
        return Ok((detached(value), nothing));
    }
    // The gradient by the argument is linear in the cotangent: its own gradient by that is the product.
    let change = deeper(|| {
        tape::with_enabled(true, || -> Result<Option<Tensor>> {
            let cotangent = alias(&value.zeros_like()?, &at)?;
            let by: Vec<&Tensor> = starts.iter().filter(|t| t.has_tape()).collect();
            let gradients = value.gradients_at(cotangent.clone(), &by, &at)?;
            let mut sum: Option<Tensor> = None;
            for (start, direction) in starts.iter().zip(&directions) {
                let Some(gradient) = gradients.get(start) else { continue };
                let part = gradient.mul(direction)?.sum(..)?;
                sum = Some(match sum {
                    Some(sum) => sum.add(&part)?,
                    None => part,
                });
            }
            let Some(sum) = sum.filter(Tensor::has_tape) else { return Ok(None) };
            let seed = sum.one("jvp", &at)?;
            let found = tape::with_enabled(nested, || sum.gradients_at(seed, &[&cotangent], &at))?;
            Ok(found.get(&cotangent).cloned())
        })
    })?;
    let change = change.map_or_else(|| value.zeros_like(), Ok)?;
    Ok((detached(value), detached(change)))
}

/// The tensors of an argument as starts of tapes, and the argument made of them.
fn starts<A: Bundle>(argument: &A, at: &Source) -> Result<(Vec<Tensor>, A)> {
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
    match failure {
        Some(error) => Err(error),
        None => Ok((starts, traced)),
    }
}

fn differentiate<A: Bundle>(f: &dyn Fn(&A) -> Result<Tensor>, argument: &A, at: &Source) -> Result<(Tensor, A)> {
    let mut nested = DEPTH.get() > 0;
    argument.leaves(&mut |leaf| nested |= matches!(leaf, Leaf::Tensor(t) if t.has_tape()));
    let nested = nested && is_recorded(at)?;
    let (starts, traced) = starts(argument, at)?;
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

/// Whether what is computed with gradients goes on the tapes of the argument. A captured function does not do so where it is called inside
/// of `no_grad`, like the function itself: parts of it that are no graph would put their results on these tapes.
fn is_recorded(at: &Source) -> Result<bool> {
    match tape::switch() {
        Switch::AsCaller if tracer::is_active() => tracer::is_recorded(at),
        switch => Ok(switch != Switch::Off),
    }
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
