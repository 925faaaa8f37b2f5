//! Parts of functions that are never captured.

use super::bundle::{Bundle, Leaf, leaves_of};
use super::compiled::tensors_of;
use super::tree::{Produced, Question, Stop};
use super::{Session, is_active, segment, with_session};
use crate::{Error, Result, Tensor};
use kiln_ir::Source;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

/// A function that runs as it is, also inside of compiled ones. See [`disable`].
pub struct Disabled<F, A, R> {
    f: Arc<F>,
    types: PhantomData<fn(&A) -> R>,
}

/// Excludes a part from compilation: inside of a compiled function the graph ends before it, it is called with tensors that
/// have memory at every call, and the graph goes on with what it gives. It may print, count and read elements.
///
/// ```
/// use kiln::{DType, Device, Tensor};
/// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
/// let count = Arc::new(AtomicUsize::new(0));
/// let seen = count.clone();
/// let log = kiln::disable(move |x: &Tensor| {
///     seen.fetch_add(x.shape()[0], Ordering::Relaxed);
///     x.add(1.0)
/// });
/// let fast = kiln::compile(move |x: &Tensor| log.call(&x.mul(2.0)?)?.neg());
/// let x = Tensor::ones(3, DType::F32, Device::Cpu)?;
/// for _ in 0..4 {
///     assert_eq!(fast.call(&x)?.to_vec::<f32>()?, [-3.0; 3]);
/// }
/// assert_eq!(count.load(Ordering::Relaxed), 12);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn disable<F, A, R>(f: F) -> Disabled<F, A, R>
where
    F: Fn(&A) -> Result<R> + Send + Sync + 'static,
    A: Bundle + Send + Sync + 'static,
    R: Bundle + 'static,
{
    Disabled { f: Arc::new(f), types: PhantomData }
}

impl<F, A, R> Disabled<F, A, R>
where
    F: Fn(&A) -> Result<R> + Send + Sync + 'static,
    A: Bundle + Send + Sync + 'static,
    R: Bundle + 'static,
{
    /// Calls the function.
    #[track_caller]
    pub fn call(&self, arguments: &A) -> Result<R> {
        if !is_active() {
            return (self.f)(arguments);
        }
        let at = Source::caller();
        let f = self.f.clone();
        let template = arguments.map_tensors(&mut |tensor| tensor.clone());
        let run = move |tensors: &[Tensor]| {
            let mut tensors = tensors.iter();
            let arguments = template.map_tensors(&mut |tensor| tensors.next().unwrap_or(tensor).clone());
            produced(f(&arguments)?)
        };
        let run = Arc::new(run);
        with_session(&at, |session| {
            let mut from = Vec::new();
            for tensor in tensors_of(&leaves_of(arguments)) {
                from.push(session.settle(tensor, "calls a disabled part", &at)?);
            }
            if let Some(broken) = session.recording.broken.clone() {
                return Err(Error::GraphBreak { what: broken.what, at: broken.at });
            }
            let Session { recording, driver: Some(driver) } = session else {
                return Err(Error::Escaped { at: at.clone() });
            };
            let whole = driver.outside(Stop::Outside { run, from, at: at.clone() }, &at)?;
            driver.ask(Question::Outside, &at)?;
            let Some(whole) = whole.downcast_ref::<R>() else { return Err(Error::NotAFunction { at: at.clone() }) };
            // Numbers that it gave may be what it read.
            recording.has_read |= leaves_of(whole).iter().any(Leaf::is_number);
            let mut slot = recording.take_slots(tensors_of(&leaves_of(whole)).len());
            let mut failure = None;
            let result = whole.map_tensors(&mut |tensor| {
                slot += 1;
                let traced = recording.outside(segment::From::Slot(slot - 1), tensor.ty(), tensor.device(), &at);
                traced.unwrap_or_else(|error| {
                    failure = Some(error);
                    tensor.clone()
                })
            });
            failure.map_or(Ok(result), Err)
        })
    }
}

/// Takes a result apart: the tensors, and as bytes whatever else the function after it may depend on.
fn produced<R: Bundle + 'static>(whole: R) -> Result<Produced> {
    let mut rest = Vec::new();
    let mut tensors = Vec::new();
    for leaf in leaves_of(&whole) {
        match leaf {
            Leaf::Tensor(tensor) => {
                tensors.push(tensor.contiguous_at(&Source::default())?);
                rest.extend(tensor.dtype().to_string().bytes());
                rest.extend(tensor.shape().iter().flat_map(|n| n.to_le_bytes()));
            }
            Leaf::Bool(v) => rest.push(v as u8),
            Leaf::Int(v) => rest.extend(v.to_le_bytes()),
            Leaf::Float(v) => rest.extend(v.to_bits().to_le_bytes()),
            Leaf::Text(v) => rest.extend(v.bytes()),
            Leaf::Parts(n) => rest.extend(n.to_le_bytes()),
        }
        // No part runs into the next.
        rest.extend(rest.len().to_le_bytes());
    }
    Ok(Produced { tensors, rest, whole: Rc::new(whole) })
}
