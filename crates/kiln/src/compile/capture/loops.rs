//! Loops whose body is captured once, whatever the number of turns: [`scan`] over the first axis of tensors, [`while_loop`] until a
//! condition fails.
//!
//! ```text
//!  call ─▶ segment ─▶ ┌ body · body · body … ┐ ─▶ segment      each turn runs the body's own program
//! ```
//!
//! Inside of a compiled function the graph ends before the loop and goes on after it. The number of turns is no part of any
//! program, the sizes of what a loop gives are symbols of what follows, and gradients go through it as through a disabled part.

use super::compiled::{Compiled, compile, tensors_of};
use super::disable::{Disabled, disable};
use crate::tensor::bundle::{Bundle, leaves_of};
use crate::tensor::tape;
use crate::{DType, Device, Error, Result, Tensor};
use kiln_ir::Source;
use std::sync::Arc;

type Body<A, R> = Box<dyn Fn(&A) -> Result<R> + Send + Sync>;
type CompiledBody<A, R> = Compiled<Body<A, R>, A, R>;
type Part<A, R> = Disabled<Body<A, R>, A, R>;

/// A loop over the first axis of tensors. See [`scan`].
pub struct Scan<C, X, Y> {
    part: Part<(C, X), (C, Y)>,
    body: Arc<CompiledBody<(C, X), (C, Y)>>,
}

/// Makes a loop over the first axis of tensors: `body` gets what is carried from turn to turn and the next place of each tensor, and
/// gives what is carried on and the results of the turn, which are stacked. The body is compiled once for all lengths.
///
/// ```
/// use kiln::{Device, Tensor};
/// let running = kiln::scan(|(sum, x): &(Tensor, Tensor)| {
///     let sum = sum.add(x)?;
///     Ok((sum.clone(), sum))
/// });
/// let f = |x: &Tensor| Ok::<Tensor, kiln::Error>(running.call(Tensor::new(0f32, Device::Cpu)?, x.mul(2.0)?)?.1);
/// let fast = kiln::compile(f);
/// for length in [3, 5, 8] {
///     let sums = fast.call(&Tensor::arange(length, kiln::DType::F32, Device::Cpu)?)?;
///     assert_eq!(sums.to_vec::<f32>()?[..3], [0.0, 2.0, 6.0]);
/// }
/// assert_eq!(running.stats().compiles, 1);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn scan<F, C, X, Y>(body: F) -> Scan<C, X, Y>
where
    F: Fn(&(C, X)) -> Result<(C, Y)> + Send + Sync + 'static,
    C: Bundle + Send + Sync + 'static,
    X: Bundle + Send + Sync + 'static,
    Y: Bundle + Send + Sync + 'static,
{
    let body: Body<(C, X), (C, Y)> = Box::new(body);
    let body = Arc::new(compile(body));
    let own = body.clone();
    let part: Body<(C, X), (C, Y)> = Box::new(move |arguments| turns(&own, arguments));
    Scan { part: disable(part), body }
}

impl<C, X, Y> Scan<C, X, Y>
where
    C: Bundle + Send + Sync + 'static,
    X: Bundle + Send + Sync + 'static,
    Y: Bundle + Send + Sync + 'static,
{
    /// Runs the loop; gives what the last turn carried on, and the results of all turns.
    #[track_caller]
    pub fn call(&self, carried: C, over: X) -> Result<(C, Y)> {
        self.part.call(&(carried, over))
    }

    /// Returns the counters of the body.
    pub fn stats(&self) -> super::Stats {
        self.body.stats()
    }
}

/// The places of tensors that are looped over.
fn turns<C: Bundle, X: Bundle, Y: Bundle>(
    body: &CompiledBody<(C, X), (C, Y)>,
    (carried, over): &(C, X),
) -> Result<(C, Y)> {
    let at = Source::default();
    let wrong = |what| Error::Loop { what, at: at.clone() };
    let leaves = leaves_of(over);
    let tensors = tensors_of(&leaves);
    let mut lengths = tensors.iter().map(|tensor| tensor.shape().first().copied());
    let length = lengths.next().flatten().ok_or_else(|| wrong("there is no axis to loop over"))?;
    if lengths.any(|other| other != Some(length)) {
        return Err(wrong("the tensors that are looped over differ in their first axis"));
    }
    let mut carried = carried.map_tensors(&mut |tensor| tensor.clone());
    let mut results: Vec<Y> = Vec::with_capacity(length);
    for turn in 0..length {
        let next = mapped(over, |tensor| tensor.select(0, turn))?;
        let (now, result) = body.call(&(carried, next))?;
        carried = now;
        results.push(result);
    }
    let Some(first) = results.first() else { return Err(wrong("there is no turn, so what it gives is not known")) };
    let rows: Vec<Vec<Tensor>> =
        results.iter().map(|result| tensors_of(&leaves_of(result)).into_iter().cloned().collect()).collect();
    let mut number = 0;
    let stacked = mapped(first, |_| {
        number += 1;
        let rows: Option<Vec<&Tensor>> = rows.iter().map(|row| row.get(number - 1)).collect();
        stack(&rows.ok_or_else(|| wrong("turns give more or fewer results"))?, &at)
    })?;
    Ok((carried, stacked))
}

/// A bundle with other tensors.
fn mapped<B: Bundle>(bundle: &B, mut f: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<B> {
    let mut failure = None;
    let made = bundle.map_tensors(&mut |tensor| {
        f(tensor).unwrap_or_else(|error| {
            failure = Some(error);
            tensor.clone()
        })
    });
    failure.map_or(Ok(made), Err)
}

/// Tensors of one shape along a new first axis. Without a tape on the host that is a copy of their bytes; a kernel for each number of
/// tensors would cost more than the loop.
fn stack(rows: &[&Tensor], at: &Source) -> Result<Tensor> {
    let Some(first) = rows.first() else { return Err(Error::NoTensors { op: "scan", at: at.clone() }) };
    let alike = |row: &&Tensor| row.shape() == first.shape() && row.dtype() == first.dtype();
    let is_copied = first.device() == Device::Cpu
        && first.dtype() != DType::I4
        && rows.iter().all(alike)
        && !tape::is_recorded(rows);
    if !is_copied {
        return Tensor::stack(&rows.iter().map(|&row| row.clone()).collect::<Vec<_>>(), 0);
    }
    let mut bytes = Vec::with_capacity(rows.len() * first.elements() * first.dtype().size_in_bits() / 8);
    for row in rows {
        row.with_bytes(at, |row| bytes.extend_from_slice(row))?;
    }
    let shape: Vec<usize> = [rows.len()].iter().chain(first.shape()).copied().collect();
    Tensor::from_bytes_at(&bytes, shape, first.dtype(), first.device(), at)
}

/// A loop until a condition fails. See [`while_loop`].
pub struct WhileLoop<C> {
    part: Part<C, C>,
    body: Arc<CompiledBody<C, (C, Tensor)>>,
}

/// Makes a loop: `body` turns what is carried into what is carried on, as long as `condition`, a bool tensor of one element, is true.
/// Body and condition are compiled once, together.
///
/// ```
/// use kiln::{Device, Tensor};
/// let halve = kiln::while_loop(|x: &Tensor| x.amax(..)?.gt(1.0), |x: &Tensor| x.mul(0.5));
/// let fast = kiln::compile(move |x: &Tensor| halve.call(x.abs()?)?.neg());
/// assert_eq!(fast.call(&Tensor::new([-8f32, 3.0], Device::Cpu)?)?.to_vec::<f32>()?, [-1.0, -0.375]);
/// assert_eq!(fast.call(&Tensor::new([0.5f32, 0.25], Device::Cpu)?)?.to_vec::<f32>()?, [-0.5, -0.25]);
/// assert_eq!((fast.stats().compiles, fast.stats().branches), (1, 0));
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn while_loop<C, F, G>(condition: F, body: G) -> WhileLoop<C>
where
    F: Fn(&C) -> Result<Tensor> + Send + Sync + 'static,
    G: Fn(&C) -> Result<C> + Send + Sync + 'static,
    C: Bundle + Send + Sync + 'static,
{
    let condition = Arc::new(condition);
    let first: Body<C, Tensor> = Box::new({
        let condition = condition.clone();
        move |carried| condition(carried)
    });
    let first = compile(first);
    let turn: Body<C, (C, Tensor)> = Box::new(move |carried| {
        let next = body(carried)?;
        let goes_on = condition(&next)?;
        Ok((next, goes_on))
    });
    let body = Arc::new(compile(turn));
    let own = body.clone();
    let part: Body<C, C> = Box::new(move |carried| {
        let mut now = carried.map_tensors(&mut |tensor| tensor.clone());
        let mut goes_on = first.call(&now)?;
        while goes_on.item::<bool>()? {
            (now, goes_on) = own.call(&now)?;
        }
        Ok(now)
    });
    WhileLoop { part: disable(part), body }
}

impl<C: Bundle + Send + Sync + 'static> WhileLoop<C> {
    /// Runs the loop; gives what the last turn carried on.
    #[track_caller]
    pub fn call(&self, carried: C) -> Result<C> {
        self.part.call(&carried)
    }

    /// Returns the counters of the body.
    pub fn stats(&self) -> super::Stats {
        self.body.stats()
    }
}
