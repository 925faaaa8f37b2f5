//! `vmap`: a function of one example for many at once.

use super::compiled::tensors_of;
use super::loops::{Form, Scan, mapped, scan_as};
use crate::tensor::bundle::{Bundle, leaves_of};
use crate::{Error, Result, Tensor};
use kiln_ir::Source;
use std::cell::Cell;

/// A function of one example for many at once. See [`vmap`].
pub struct Vmap<X, Y> {
    examples: Scan<Vec<Tensor>, X, Y>,
    in_dims: Option<Vec<Option<i64>>>,
    out_dims: Option<Vec<i64>>,
}

/// Makes a function of one example one of many, which lie along the first axis of all its tensors: the graph of the function is written for
/// all of them, each op with one axis more, instead of being run for one after another. What the function holds is the same for all examples.
///
/// A function that cannot be written so is a [`map`](crate::map), which an event of the category `perf` says, and gives the same: its loops go on until a
/// condition fails, each example chooses by [`cond`](crate::cond) between sides that look up indices or loop, gradients go through such a choice, or it is no
/// graph at all. Other choices an example compute both sides for all examples.
///
/// ```
/// use kiln::{DType, Device, Tensor};
/// let w = Tensor::ones([3, 2], DType::F32, Device::Cpu)?;
/// // The gradient of each example by itself.
/// let slope = kiln::vmap(kiln::grad(move |x: &Tensor| x.matmul(&w)?.square()?.sum(..)));
/// let x = Tensor::arange(6, DType::F32, Device::Cpu)?.reshape([2, 3])?;
/// assert_eq!(slope.call(x)?.to_vec::<f32>()?, [12., 12., 12., 48., 48., 48.]);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn vmap<F, X, Y>(f: F) -> Vmap<X, Y>
where
    F: Fn(&X) -> Result<Y> + Send + Sync + 'static,
    X: Bundle + Send + Sync + 'static,
    Y: Bundle + Send + Sync + 'static,
{
    let body = move |(nothing, row): &(Vec<Tensor>, X)| Ok((nothing.clone(), f(row)?));
    Vmap { examples: scan_as(body, Form::Vectorized), in_dims: None, out_dims: None }
}

impl<X, Y> Vmap<X, Y>
where
    X: Bundle + Send + Sync + 'static,
    Y: Bundle + Send + Sync + 'static,
{
    /// Says along which axis the examples lie, for each tensor of the arguments: `None` is the same for all of them. Negative axes count
    /// from the end.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let product = kiln::vmap(|(x, w): &(Tensor, Tensor)| x.matmul(w)).in_dims([Some(1), None]).out_dims([-1]);
    /// let (x, w) = (Tensor::ones([3, 5], DType::F32, Device::Cpu)?, Tensor::ones([3, 2], DType::F32, Device::Cpu)?);
    /// assert_eq!(product.call((x, w))?.shape(), [2, 5]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn in_dims(self, axes: impl IntoIterator<Item = Option<i64>>) -> Vmap<X, Y> {
        Vmap { in_dims: Some(axes.into_iter().collect()), ..self }
    }

    /// Says along which axis the results of the examples lie, for each tensor of the results; by default that is the first.
    pub fn out_dims(self, axes: impl IntoIterator<Item = i64>) -> Vmap<X, Y> {
        Vmap { out_dims: Some(axes.into_iter().collect()), ..self }
    }

    /// Applies the function to all examples.
    #[track_caller]
    pub fn call(&self, examples: X) -> Result<Y> {
        let at = Source::caller();
        let examples = match &self.in_dims {
            None => examples,
            Some(axes) => first_axes(&examples, axes, &at)?,
        };
        let results = self.examples.call(Vec::new(), examples)?.1;
        let Some(axes) = &self.out_dims else { return Ok(results) };
        let count = tensors_of(&leaves_of(&results)).len();
        expect_each("out_dims", axes.len(), count, &at)?;
        let number = Cell::new(0);
        mapped(&results, |tensor| tensor.movedim(0, axes[number.replace(number.get() + 1)]))
    }

    /// Returns the counters of the function by itself: inside of a compiled function it is a part of that one's programs.
    pub fn stats(&self) -> super::Stats {
        self.examples.stats()
    }
}

fn expect_each(name: &'static str, got: usize, count: usize, at: &Source) -> Result<()> {
    let expected = "it has to say an axis for each tensor";
    match got == count {
        true => Ok(()),
        false => Err(Error::BadArgument { op: "vmap", name, value: got.into(), expected, at: at.clone() }),
    }
}

/// The arguments with the examples along the first axis of all tensors.
fn first_axes<X: Bundle>(examples: &X, axes: &[Option<i64>], at: &Source) -> Result<X> {
    let leaves = leaves_of(examples);
    let tensors = tensors_of(&leaves);
    expect_each("in_dims", axes.len(), tensors.len(), at)?;
    let mut mapped_ones = tensors.iter().zip(axes).filter_map(|(tensor, axis)| Some((tensor, (*axis)?)));
    let Some((tensor, axis)) = mapped_ones.next() else {
        return Err(Error::Loop { what: "`in_dims` says an axis of no tensor", at: at.clone() });
    };
    let count = tensor.size(axis)?;
    let number = Cell::new(0);
    mapped(examples, |tensor| match axes[number.replace(number.get() + 1)] {
        Some(axis) => tensor.movedim(axis, 0),
        None => {
            let mut sizes = tensor.sizes();
            sizes.insert(0, count);
            tensor.unsqueeze(0)?.expand(sizes)
        }
    })
}
