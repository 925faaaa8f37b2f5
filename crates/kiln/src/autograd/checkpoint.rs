//! Activations that are computed again for the gradient, not kept for it.
//!
//! ```text
//!  x ──f──▶ y                       forward: f's own tape is dropped, x alone is kept
//!  x ──f──▶ y, tape ──▶ gradients   backward: f runs again, with the same random numbers, and its tape is walked at once
//! ```
//!
//! In a captured function both runs are in one graph, where a pass would find them to be the same values, and fusion would compute them together. So the second
//! one begins at x + z, where z is one of two held tensors, chosen by an element of the cotangent; both are −0, which the compiler does not know: the
//! same bits as x, not before the cotangent is there.

use super::backward::{Targets, propagate};
use crate::tensor::autocast;
use crate::tensor::bundle::{Bundle, Leaf, leaves_of};
use crate::tensor::random::{recorded_keys, replayed_keys};
use crate::tensor::tape::{self, CustomGradient, Edges, Tape};
use crate::{DType, Device, Result, Tensor, Var};
use kiln_ir::{Scalar, Source};
use kiln_passes::is_differentiable;
use std::sync::{Arc, Mutex, PoisonError};

/// Calls `f` so that a gradient computes its intermediate values again and only the arguments are kept until then: less memory for more
/// time. The results and gradients are those of calling `f`, bit for bit; random numbers are the same at both runs. It nests, and works in eager code and in compiled functions.
///
/// Gradients reach the arguments and every variable that `f` reads; another tensor that gradients are wanted of has to be an argument. `f` has to do the
/// same at both runs, and variables that it changes are changed by both, as in PyTorch.
///
/// ```
/// use kiln::{DType, Device, Tensor, Var, checkpoint};
/// let w = Var::new(&Tensor::ones([4, 4], DType::F32, Device::Cpu)?).requires_grad(true);
/// let x = Tensor::ones([2, 4], DType::F32, Device::Cpu)?;
/// let seen = w.clone();
/// let y = checkpoint(move |x: &Tensor| x.matmul(&seen.get())?.tanh()?.matmul(&seen.get()), &x)?;
/// y.sum(..)?.backward()?;
/// assert_eq!(w.grad().unwrap().shape(), [4, 4]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn checkpoint<F, A, R>(f: F, arguments: &A) -> Result<R>
where
    F: Fn(&A) -> Result<R> + Send + Sync + 'static,
    A: Bundle + Send + Sync + 'static,
    R: Bundle + 'static,
{
    if !tape::is_enabled() {
        return f(arguments);
    }
    let at = Source::caller();
    let given: Vec<Tensor> = tensors(arguments);
    let tapes: Vec<Option<Tape>> = given.iter().map(tape::edge).collect();
    let entered = fresh(&given, &tapes);
    let (value, keys) = recorded_keys(|| f(&with(arguments, &entered)));
    let value = value?;
    let results = tensors(&value);
    let starts: Vec<&Tape> =
        entered.iter().zip(&tapes).filter(|(_, tape)| tape.is_some()).filter_map(|(t, _)| t.tape()).collect();
    let variables = tape::variables(results.iter().filter_map(Tensor::tape), starts.iter());
    let saved = with(arguments, &given.iter().map(Tensor::detached).collect::<Vec<_>>());
    let mut edges: Edges = tapes.clone();
    edges.extend(variables.iter().map(|var| Some(var.leaf())));
    let again = Again {
        f: Arc::new(f),
        saved,
        taped: tapes.iter().map(Option::is_some).collect(),
        variables,
        keys,
        region: autocast::current(),
        at,
    };
    let tape = Tape::of_custom(Box::new(again), edges);
    let mut number = 0;
    Ok(value.map_tensors(&mut |tensor| {
        number += 1;
        match tensor.tape() {
            Some(_) => tensor.with_tape(Some(tape(number - 1))),
            None => tensor.clone(),
        }
    }))
}

/// The tensors of a bundle.
fn tensors<B: Bundle>(bundle: &B) -> Vec<Tensor> {
    let tensor = |leaf: &Leaf<'_>| if let Leaf::Tensor(tensor) = leaf { Some((*tensor).clone()) } else { None };
    leaves_of(bundle).iter().filter_map(tensor).collect()
}

/// A bundle with other tensors.
fn with<B: Bundle>(bundle: &B, tensors: &[Tensor]) -> B {
    let mut tensors = tensors.iter();
    bundle.map_tensors(&mut |tensor| tensors.next().unwrap_or(tensor).clone())
}

/// Arguments that begin tapes of their own, where they are on one.
fn fresh(given: &[Tensor], tapes: &[Option<Tape>]) -> Vec<Tensor> {
    given.iter().zip(tapes).map(|(tensor, tape)| tensor.with_tape(tape.as_ref().map(|_| Tape::start()))).collect()
}

/// What runs again.
struct Again<F, A> {
    f: Arc<F>,
    /// The arguments, without tapes.
    saved: A,
    /// Which of their tensors are on a tape.
    taped: Vec<bool>,
    /// What `f` read, as far as its results depend on it.
    variables: Vec<Var>,
    /// The random numbers' keys, in their order.
    keys: Vec<Tensor>,
    region: Option<DType>,
    at: Source,
}

impl<F, A, R> CustomGradient for Again<F, A>
where
    F: Fn(&A) -> Result<R> + Send + Sync + 'static,
    A: Bundle + Send + Sync + 'static,
    R: Bundle + 'static,
{
    fn gradient(
        &self,
        _: &Arc<tape::Node>,
        edges: &Edges,
        cotangents: &[Option<Tensor>],
        at: &Source,
    ) -> Result<Vec<Option<Tensor>>> {
        // A gradient that is to have a gradient itself depends on the arguments as they were given; another one has nothing before them.
        let is_on_tape = tape::is_enabled();
        let saved = tensors(&self.saved);
        let mut entered = Vec::with_capacity(saved.len());
        let after = cotangents.iter().flatten().next();
        for ((tensor, &taped), edge) in saved.iter().zip(&self.taped).zip(edges) {
            let tensor = match after {
                Some(cotangent) => no_tape(|| apart(tensor, cotangent, &self.at))?,
                None => tensor.clone(),
            };
            entered.push(match (taped, is_on_tape) {
                (true, true) => tensor.with_tape(edge.clone()),
                (true, false) => tensor.with_tape(Some(Tape::start())),
                (false, _) => tensor,
            });
        }
        let run = || replayed_keys(&self.keys, || (self.f)(&with(&self.saved, &entered)));
        let value = tape::with_enabled(true, || autocast::within(self.region, run))?;
        let ends: Vec<(Tape, Tensor)> = tensors(&value)
            .iter()
            .zip(cotangents)
            .filter_map(|(result, cotangent)| Some((result.tape()?.clone(), cotangent.clone()?)))
            .collect();
        let Some(device) = ends.first().map(|(_, seed)| seed.device()) else { return Ok(vec![None; edges.len()]) };
        let mut places: Vec<Tape> = entered.iter().map(|t| t.tape().cloned().unwrap_or_else(Tape::start)).collect();
        let cuts = places.len();
        places.extend(self.variables.iter().map(Var::leaf));
        propagate(ends, &Targets::Cut(&places, cuts), device, at)
    }
}

/// The same bits, which a captured function computes anew, and after the cotangent.
fn apart(tensor: &Tensor, cotangent: &Tensor, at: &Source) -> Result<Tensor> {
    let has_elements = !cotangent.hint().contains(&0);
    if !tensor.is_traced() || !is_differentiable(tensor.dtype()) || !has_elements {
        return Ok(tensor.clone());
    }
    let mut first = cotangent.detached();
    while first.rank() > 0 {
        first = first.select(0, 0)?;
    }
    let [one, other] = nothings(tensor.dtype(), tensor.device(), at)?;
    tensor.add(&first.is_nan()?.where_(&one, &other)?)
}

fn no_tape<T>(f: impl FnOnce() -> T) -> T {
    tape::with_enabled(false, f)
}

/// Two −0 of a dtype, in memory that lives as long as the process: x + −0 is x, signed zeros included.
fn nothings(dtype: DType, device: Device, at: &Source) -> Result<[Tensor; 2]> {
    static KNOWN: Mutex<Vec<[Tensor; 2]>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known.iter().find(|[t, _]| t.dtype() == dtype && t.device() == device) {
        return Ok(found.clone());
    }
    let make = || Tensor::scalar_at(Scalar::float(dtype, -0.0), device, at);
    let made = crate::tensor::tracer::paused(|| Ok::<_, crate::Error>([make()?, make()?]))?;
    known.push(made.clone());
    Ok(made)
}
