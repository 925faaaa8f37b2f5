//! Buckets: arguments are padded to one of a few sizes, so that a function is compiled a few times instead of once per
//! size.
//!
//! ```text
//!  x [2, 70, 8] ── padded to the bucket ──▶ [2, 128, 8] ──▶ program for 128 ──▶ [2, 128, 4] ── cut ──▶ [2, 70, 4]
//!            └──── 70, as data ───────────────────────────▶ valid_mask, valid_length
//! ```
//!
//! Arguments are padded with zeros at the end of the axis. The function has to make the padding harmless: whatever combines
//! positions of the padded axis (a sum, a mean, a softmax, attention that is not causal) must exclude the padded ones with
//! [`Tensor::valid_mask`]. Pointwise operations need nothing.

use crate::compile::capture;
use crate::tensor::shape::resolve_axis;
use crate::tensor::{dim, eager};
use crate::{DType, Device, Error, Result, Size, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{NodeId, Source};
use std::cell::RefCell;

/// Sizes that arguments are padded to; see [`crate::Options::buckets`].
///
/// ```
/// use kiln::{Buckets, DType, Device, Options, Tensor};
/// // The mean over the tokens, and what each token gives.
/// let f = |x: &Tensor| {
///     let mask = x.valid_mask(0)?.unsqueeze(1)?;
///     let total = mask.where_(x, 0.0)?.sum(0)?;
///     Ok((total.div(x.valid_length(0)?)?, x.exp()?))
/// };
/// let options = Options { buckets: vec![Buckets::powers_of_two(4, 64).at(0, 0)], ..Options::default() };
/// let fast = kiln::compile_with(f, options);
/// for tokens in [3, 4, 2, 1] {
///     let (mean, each) = fast.call(&Tensor::ones([tokens, 2], DType::F32, Device::Cpu)?)?;
///     assert_eq!(mean.to_vec::<f32>()?, [1.0, 1.0]);
///     assert_eq!(each.shape(), [tokens, 2]);
/// }
/// assert_eq!(fast.stats().compiles, 1);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buckets {
    /// Ascending.
    sizes: Vec<usize>,
    places: Vec<(usize, i64)>,
}

impl Buckets {
    /// Makes buckets of these sizes.
    ///
    /// ```
    /// use kiln::Buckets;
    /// let buckets = Buckets::of([256, 64, 100]);
    /// assert_eq!(buckets.sizes(), [64, 100, 256]);
    /// assert_eq!((buckets.size_for(65), buckets.size_for(256), buckets.size_for(257)), (Some(100), Some(256), None));
    /// ```
    pub fn of(sizes: impl IntoIterator<Item = usize>) -> Buckets {
        let mut sizes: Vec<usize> = sizes.into_iter().collect();
        sizes.sort_unstable();
        sizes.dedup();
        Buckets { sizes, places: Vec::new() }
    }

    /// Makes buckets of the powers of two from `least` to `most`.
    ///
    /// ```
    /// assert_eq!(kiln::Buckets::powers_of_two(64, 300).sizes(), [64, 128, 256]);
    /// ```
    pub fn powers_of_two(least: usize, most: usize) -> Buckets {
        Buckets::of((0..usize::BITS).map(|bit| 1 << bit).filter(|size| (least..=most).contains(size)))
    }

    /// Makes buckets of the multiples of `step` up to `most`.
    ///
    /// ```
    /// assert_eq!(kiln::Buckets::multiples_of(128, 400).sizes(), [128, 256, 384]);
    /// ```
    pub fn multiples_of(step: usize, most: usize) -> Buckets {
        Buckets::of((1..=most / step.max(1)).map(|times| times * step.max(1)))
    }

    /// Applies the buckets to an axis of a tensor, given by its number among the tensors of the arguments. If this is
    /// called for several axes, their sizes must be equal. Negative axes count from the end.
    pub fn at(mut self, tensor: usize, axis: i64) -> Buckets {
        self.places.push((tensor, axis));
        self
    }

    /// Returns the sizes in ascending order.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the smallest bucket that holds `size`, or `None` if it is larger than the largest.
    pub fn size_for(&self, size: usize) -> Option<usize> {
        self.sizes.iter().copied().find(|&bucket| size <= bucket)
    }

    /// The places, with axes counted from the start.
    pub(crate) fn places<'a>(&'a self, tensors: &'a [&Tensor]) -> impl Iterator<Item = (usize, Option<usize>)> + 'a {
        let rank = |tensor: usize| tensors.get(tensor).map_or(0, |tensor| tensor.rank());
        self.places.iter().map(move |&(tensor, axis)| (tensor, build::axis(rank(tensor), axis)))
    }

    /// Whether this is the place of an axis.
    pub(crate) fn is_at(&self, tensor: usize, axis: usize, rank: usize) -> bool {
        self.places.iter().any(|&(t, a)| t == tensor && build::axis(rank, a) == Some(axis))
    }
}

/// A call of a function whose arguments are padded, under way on this thread.
pub(crate) struct Context {
    /// The padded tensors of the arguments, in order.
    pub(crate) arguments: Vec<Tensor>,
    pub(crate) buckets: Vec<Buckets>,
    /// How much is valid, one for each of the buckets.
    pub(crate) lengths: Vec<Tensor>,
}

thread_local! {
    static CONTEXT: RefCell<Option<Context>> = const { RefCell::new(None) };
}

/// Ends a context, and goes back to the one before.
pub(crate) struct Leave(Option<Context>);

impl Drop for Leave {
    fn drop(&mut self) {
        CONTEXT.set(self.0.take());
    }
}

impl Context {
    /// Makes this the context of the thread, until what is returned goes.
    pub(crate) fn enter(self) -> Leave {
        Leave(CONTEXT.replace(Some(self)))
    }

    /// The buckets of an axis of an argument.
    fn number(&self, tensor: &Tensor, axis: usize) -> Option<usize> {
        let argument = match tensor.is_traced() {
            true => capture::argument_number(tensor),
            false => self.arguments.iter().position(|argument| argument.same(tensor)),
        }?;
        self.buckets.iter().position(|buckets| buckets.is_at(argument, axis, tensor.rank()))
    }
}

/// How much of an axis is valid; none where nothing is padded.
fn length_of(op: &'static str, tensor: &Tensor, axis: usize, at: &Source) -> Result<Option<Tensor>> {
    CONTEXT.with_borrow(|context| {
        let Some(context) = context else { return Ok(None) };
        let Some(number) = context.number(tensor, axis) else {
            let (name, expected) =
                ("axis", "where buckets are used, only axes of arguments that have buckets can be asked");
            return Err(Error::BadArgument { op, name, value: axis.into(), expected, at: at.clone() });
        };
        match tensor.is_traced() {
            true => capture::extra_argument(context.arguments.len() + number, tensor.device(), at).map(Some),
            false => Ok(Some(context.lengths[number].clone())),
        }
    })
}

impl Tensor {
    /// Returns the number of positions of an axis that are not padding, as an i64 tensor without axes. For an argument of a
    /// function compiled with [`Buckets`] this is its size before padding; otherwise it is the size.
    #[track_caller]
    pub fn valid_length(&self, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("valid_length", axis, self.hint(), 0, &at)?;
        if let Some(length) = length_of("valid_length", self, axis, &at)? {
            return Ok(length);
        }
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let size = b.ty(&inputs[0]).shape[axis].clone();
            build::size_value(b, &size, DType::I64)
        };
        eager::composite("valid_length", &[axis.into()], &[self], write, &at)
    }

    /// Returns a bool tensor of one axis that is true where the axis is not padding. For an argument of a function compiled
    /// with [`Buckets`] it is false at the padded positions; otherwise it is all true.
    #[track_caller]
    pub fn valid_mask(&self, axis: impl Size) -> Result<Tensor> {
        let at = Source::caller();
        let axis = resolve_axis("valid_mask", axis, self.hint(), 0, &at)?;
        let size = self.extent(axis);
        match length_of("valid_mask", self, axis, &at)? {
            Some(length) => Tensor::arange(size, DType::I64, self.device())?.lt(length),
            None => Tensor::ones(size, DType::Bool, self.device()),
        }
    }
}

/// A length as data.
pub(crate) fn length(size: usize, device: Device, at: &Source) -> Result<Tensor> {
    let size = dim::hints(&[size.into()])[0] as i64;
    Tensor::scalar_at(kiln_ir::Scalar::int(DType::I64, size), device, at)
}
