//! Functions with a gradient of their own, and hooks on gradients.

use crate::tensor::tape::{self, CustomGradient, Edges, Node, Tape};
use crate::tensor::tracer::{self, HostWork};
use crate::{Error, Result, Tensor};
use kiln_ir::{Source, TensorType};
use kiln_passes::is_differentiable;
use std::sync::Arc;

/// What [`Function::forward`] gives.
#[derive(Debug, Clone, Default)]
pub struct Forward {
    /// The results.
    pub results: Vec<Tensor>,
    /// Tensors for [`Function::backward`]: operands, results or anything else.
    pub saved: Vec<Tensor>,
}

/// A function whose gradient is given rather than derived: `torch.autograd.Function`.
///
/// The gradient of a gradient is derived from `backward`, as far as it is made of operations on saved operands, saved results and
/// cotangents.
///
/// ```
/// use kiln::{Device, Forward, Function, Result, Tensor};
/// /// Rounds, and lets gradients through as if it did not.
/// struct StraightThrough;
/// impl Function for StraightThrough {
///     fn forward(&self, operands: &[Tensor]) -> Result<Forward> {
///         Ok(Forward { results: vec![operands[0].round()?], saved: vec![] })
///     }
///     fn backward(&self, _: &[Tensor], cotangents: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
///         Ok(vec![cotangents[0].clone()])
///     }
/// }
/// let x = Tensor::new([0.4f32, 1.6], Device::Cpu)?.requires_grad();
/// let y = kiln::apply(StraightThrough, &[&x])?.remove(0);
/// assert_eq!(y.to_vec::<f32>()?, [0., 2.]);
/// let slope = y.square()?.sum(..)?.gradients(&[&x])?.get(&x).unwrap().to_vec::<f32>()?;
/// assert_eq!(slope, [0., 4.]);
/// # Ok::<(), kiln::Error>(())
/// ```
pub trait Function: Send + Sync + 'static {
    /// A name for errors.
    fn name(&self) -> &'static str {
        "function"
    }

    /// Computes the results; nothing in here is on a tape.
    fn forward(&self, operands: &[Tensor]) -> Result<Forward>;

    /// Returns a cotangent for each operand, of its shape, or `None` for one that the results do not depend on, given what `forward` saved and the
    /// cotangents of the results; one that is `None` is zero.
    fn backward(&self, saved: &[Tensor], cotangents: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>>;
}

/// Calls a function that has a gradient of its own.
///
/// Inside of a compiled function its operations and those of its gradient are part of the graph, like everything that the compiled
/// function does itself: what else they do (count, print) happens when it is captured. Where gradients of its results are wanted outside
/// of the compiled function, the graph ends before it and continues after it, as at [`crate::disable`]: what differentiates a graph
/// knows derived gradients only. So it does where the function or its gradient reads elements.
#[track_caller]
pub fn apply(function: impl Function, operands: &[&Tensor]) -> Result<Vec<Tensor>> {
    apply_in(Arc::new(function), None, operands, &Source::caller())
}

/// Calls a function that is never part of a graph, because of what it is.
pub(super) fn apply_at(
    function: Arc<dyn Function>,
    what: HostWork,
    operands: &[&Tensor],
    at: &Source,
) -> Result<Vec<Tensor>> {
    apply_in(function, Some(what), operands, at)
}

fn apply_in(
    function: Arc<dyn Function>,
    outside: Option<HostWork>,
    operands: &[&Tensor],
    at: &Source,
) -> Result<Vec<Tensor>> {
    let taped = tape::is_recorded(operands);
    let is_traced = tracer::is_active() || operands.iter().any(|t| t.is_traced());
    if !(taped && is_traced) {
        return here(function, operands, false, at);
    }
    if outside.is_none() && tracer::records_function(at)? {
        return here(function, operands, true, at);
    }
    let line = at.clone();
    let run = move |operands: &[Tensor]| here(function.clone(), &operands.iter().collect::<Vec<_>>(), false, &line);
    tracer::outside(outside.unwrap_or(HostWork::Function), operands, Arc::new(run), at)
}

fn here(function: Arc<dyn Function>, operands: &[&Tensor], is_recorded: bool, at: &Source) -> Result<Vec<Tensor>> {
    let plain: Vec<Tensor> = operands.iter().map(|t| t.detached()).collect();
    let forward = || tape::with_enabled(false, || function.forward(&plain));
    let Forward { results, saved } = if is_recorded { tracer::in_function(at, forward)? } else { forward()? };
    if !tape::is_recorded(operands) {
        // An operand as it is: where the captured function is called, that is on the tape of the argument that it may be.
        let is_operand = |result: &Tensor| result.is_traced() && plain.iter().any(|operand| operand.same(result));
        let own = |result: Tensor| if is_operand(&result) { tracer::cut(&result, at) } else { result };
        return Ok(results.into_iter().map(own).collect());
    }
    let edges: Edges = operands.iter().map(|t| tape::edge(t)).collect();
    if edges.iter().all(Option::is_none) {
        return Ok(results);
    }
    let same = |list: &[Tensor], tensor: &Tensor| list.iter().position(|other| other.same(tensor));
    let keep = |tensor: Tensor| match (same(&plain, &tensor), same(&results, &tensor)) {
        (Some(operand), _) => Saved::Operand(operand, tensor),
        (_, Some(result)) => Saved::Result(result, tensor),
        _ => Saved::Other(tensor),
    };
    let saved = saved.into_iter().map(keep).collect();
    let results = match tracer::is_active() {
        true => tracer::function_results(&plain, results, at)?,
        false => results,
    };
    let (operands, count) = (operands.iter().map(|t| t.ty()).collect(), results.len());
    let applied = Applied { function, saved, operands, results: count, is_recorded, at: at.clone() };
    let place = Tape::of_custom(Box::new(applied), edges);
    let put = |(number, result): (usize, Tensor)| match is_differentiable(result.dtype()) {
        // Another handle: what was saved has no tape of its own.
        true => result.with_tape(Some(place(number))),
        false => result,
    };
    Ok(results.into_iter().enumerate().map(put).collect())
}

/// A saved tensor, by what it is, so that gradients of gradients go on from it.
enum Saved {
    Operand(usize, Tensor),
    Result(usize, Tensor),
    Other(Tensor),
}

/// A call of a function, on the tape.
struct Applied {
    function: Arc<dyn Function>,
    saved: Vec<Saved>,
    /// The types of the operands, which cotangents of them have.
    operands: Vec<TensorType>,
    results: usize,
    /// Whether it is part of a graph.
    is_recorded: bool,
    at: Source,
}

impl Applied {
    /// A cotangent in its operand's dtype; one of another shape is refused, before something far from here does so.
    fn cotangent(&self, operand: &TensorType, given: Tensor) -> Result<Tensor> {
        let (op, at) = (self.function.name(), self.at.clone());
        // Sizes that are symbols may be the same in another form.
        if let (Some(lhs), Some(rhs)) = (operand.fixed_shape(), given.ty().fixed_shape())
            && lhs != rhs
        {
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: None, at });
        }
        if given.dtype() == operand.dtype { Ok(given) } else { given.to_dtype(operand.dtype) }
    }
}

impl CustomGradient for Applied {
    fn gradient(
        &self,
        node: &Arc<Node>,
        edges: &Edges,
        cotangents: &[Option<Tensor>],
        _: &Source,
    ) -> Result<Vec<Option<Tensor>>> {
        let tape = |saved: &Saved| match saved {
            Saved::Operand(operand, tensor) => tensor.with_tape(edges[*operand].clone()),
            Saved::Result(result, tensor) if is_differentiable(tensor.dtype()) => {
                tensor.with_tape(Some(Tape { node: node.clone(), result: *result }))
            }
            Saved::Result(_, tensor) | Saved::Other(tensor) => tensor.clone(),
        };
        let saved: Vec<Tensor> = self.saved.iter().map(tape).collect();
        // Results behind the last one that has a cotangent are not in the list.
        let mut cotangents = cotangents.to_vec();
        cotangents.resize(self.results, None);
        let backward = || self.function.backward(&saved, &cotangents);
        let given = match self.is_recorded && tracer::is_active() {
            true => tracer::in_function(&self.at, backward)?,
            false => backward()?,
        };
        if given.len() != self.operands.len() {
            let (op, name, expected) =
                (self.function.name(), "backward", "it has to give a cotangent for each operand");
            let value = given.len().into();
            return Err(Error::BadArgument { op, name, value, expected, at: self.at.clone() });
        }
        let given = given.into_iter().zip(&self.operands);
        given.map(|(given, operand)| given.map(|given| self.cotangent(operand, given)).transpose()).collect()
    }
}

/// The same elements; a gradient that comes by is what the hook makes of it.
struct Hook<F>(F);

impl<F: Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static> Function for Hook<F> {
    fn name(&self) -> &'static str {
        "with_hook"
    }

    fn forward(&self, operands: &[Tensor]) -> Result<Forward> {
        Ok(Forward { results: operands.to_vec(), saved: vec![] })
    }

    fn backward(&self, _: &[Tensor], cotangents: &[Option<Tensor>]) -> Result<Vec<Option<Tensor>>> {
        let Some(Some(cotangent)) = cotangents.first() else { return Ok(vec![None]) };
        Ok(vec![Some((self.0)(cotangent)?.unwrap_or_else(|| cotangent.clone()))])
    }
}

impl Tensor {
    /// The same elements, with a hook on the gradient by them: it sees the gradient whenever one is computed, and may give another one in
    /// its place. Use the tensor that is returned. Inside of a compiled function a hook on a tensor that requires gradients is a graph
    /// break.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([1f32, 2.], Device::Cpu)?.requires_grad();
    /// let y = x.with_hook(|gradient| Ok(Some(gradient.clamp(-3.0, 3.0)?)))?;
    /// let gradients = y.square()?.sum(..)?.gradients(&[&x])?;
    /// assert_eq!(gradients.get(&x).unwrap().to_vec::<f32>()?, [2., 3.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn with_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<Tensor> {
        Ok(apply_at(Arc::new(Hook(hook)), HostWork::Hook, &[self], &Source::caller())?.swap_remove(0))
    }
}
