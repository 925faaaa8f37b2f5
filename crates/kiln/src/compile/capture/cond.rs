//! A data-dependent choice that stays in the graph.

use super::compiled::tensors_of;
use super::with_session;
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::tensor::tracer::is_active;
use crate::{Error, Result, Tensor};
use kiln_ir::Source;

/// Selects by a bool tensor of one element. In eager code one of the two functions runs; in a compiled function both run
/// and the results are selected, as with [`Tensor::where_`], so that there is no graph break. Both must return tensors of
/// the same dtypes and shapes and the same plain values, and must not change variables, draw random numbers or call
/// disabled parts.
///
/// ```
/// use kiln::{Device, Options, Tensor, cond};
/// let f = |x: &Tensor| cond(&x.sum(..)?.gt(0.0)?, || x.exp(), || x.neg());
/// let whole = kiln::compile_with(f, Options { fullgraph: true, ..Options::default() });
/// assert_eq!(whole.call(&Tensor::new([0f32, -1.], Device::Cpu)?)?.to_vec::<f32>()?, [0.0, 1.0]);
/// assert_eq!(whole.call(&Tensor::new([0f32, 0.5], Device::Cpu)?)?.to_vec::<f32>()?[0], 1.0);
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn cond<R: Bundle>(
    predicate: &Tensor,
    then: impl FnOnce() -> Result<R>,
    otherwise: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let at = Source::caller();
    if predicate.elements() != 1 {
        return Err(Error::NotOneElement { shape: predicate.shape().to_vec(), at });
    }
    if !is_active() {
        return if predicate.item::<bool>()? { then() } else { otherwise() };
    }
    let changes = || with_session(&at, |session| Ok(session.recording.changes()));
    let before = changes()?;
    let (then, otherwise) = (then()?, otherwise()?);
    let wrong = |what| Error::Cond { what, at: at.clone() };
    if changes()? != before {
        return Err(wrong("one of them changes a variable, draws random numbers or calls a disabled part"));
    }
    let (left, right) = (leaves_of(&then), leaves_of(&otherwise));
    let alike = |(a, b): (&Leaf<'_>, &Leaf<'_>)| match (a, b) {
        (Leaf::Tensor(a), Leaf::Tensor(b)) => a.dtype() == b.dtype() && a.shape() == b.shape(),
        (a, b) => a.is_value(b),
    };
    if left.len() != right.len() || !left.iter().zip(&right).all(alike) {
        return Err(wrong("they differ in dtypes, shapes or plain values"));
    }
    let mut others = tensors_of(&right).into_iter();
    let mut failure = None;
    let predicate = predicate.reshape(())?;
    let chosen = then.map_tensors(&mut |tensor| {
        let chosen = match others.next() {
            Some(other) => predicate.where_(tensor, other),
            None => Ok(tensor.clone()),
        };
        chosen.unwrap_or_else(|error| {
            failure = Some(error);
            tensor.clone()
        })
    });
    failure.map_or(Ok(chosen), Err)
}
