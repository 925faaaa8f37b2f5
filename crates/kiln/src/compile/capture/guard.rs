//! Guards: conditions on the arguments under which a program is theirs. One flat list, one entry per part.

use crate::tensor::bundle::Leaf;
use crate::tensor::compiled_graph::input_layout;
use crate::tensor::scratch::Scratch;
use crate::tensor::strides::{self, AxisStride, Seen};
use crate::tensor::tape::Tape;
use crate::{DType, Device, Layout, Tensor};
use kiln_ir::{Dim, Symbol, TensorType};
use kiln_kernels::InputLayout;
use kiln_passes::is_differentiable;
use std::fmt;

/// What a part of the arguments has to be.
#[derive(Debug, Clone)]
pub(super) enum Guard {
    Tensor(TensorGuard),
    Bool(bool),
    Int(i128),
    Float(u64),
    /// Any integer, or any float: which one is decided in the tree.
    Number {
        is_float: bool,
    },
    Text(String),
    Parts(usize),
}

/// What of a part fails a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Failed {
    /// Dtype, rank, device: what kind of thing it is.
    Type,
    Size,
    Strides,
    /// A plain value.
    Value,
}

/// What a tensor has to be.
#[derive(Debug, Clone)]
pub(super) struct TensorGuard {
    pub(super) dtype: DType,
    pub(super) device: Device,
    pub(super) sizes: Vec<Size>,
    pub(super) strides: Strides,
    /// Whether gradients of it are wanted outside of the function.
    pub(super) taped: bool,
}

/// What a size has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    Is(usize),
    /// In a range, and the same wherever the symbol of this number stands.
    Symbol {
        number: usize,
        symbol: Symbol,
        least: usize,
        most: Option<usize>,
    },
}

/// A size that no guard has read yet.
pub(super) const UNKNOWN: usize = usize::MAX;

/// The strides that a tensor must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Strides {
    /// With these strides, but for axes of fewer than two places.
    Are(Vec<isize>),
    /// In row-major order without gaps, but for the axes marked, which repeat.
    Dense(Vec<bool>),
    /// Other functions of the sizes.
    Follow(Vec<AxisStride>),
}

/// What an earlier program was made for: the shape of a tensor, and its strides.
pub(super) type Before = (Vec<usize>, Vec<isize>);

impl Strides {
    /// The strides of a tensor as functions of its sizes, as those of an earlier one were, too, if that can be.
    pub(super) fn of_sizes(tensor: &Tensor, before: Option<&Before>) -> Option<Strides> {
        let before = before.map(|(shape, strides)| Seen { shape, strides });
        let follow = || strides::rules(tensor.into(), before);
        let Some(repeats) = repeats(tensor) else { return follow().map(|(rules, _)| Strides::Follow(rules)) };
        let was_dense = before.is_none_or(|before| is_dense(before, |axis| repeats.get(axis) == Some(&true)));
        // All of what is a part at other times.
        let part = || follow().filter(|(_, holds)| *holds);
        match (was_dense, if was_dense { None } else { part() }) {
            (false, Some((rules, _))) => Some(Strides::Follow(rules)),
            _ => Some(Strides::Dense(repeats)),
        }
    }

    /// The layout of a tensor with these strides, which has those of `now`.
    pub(super) fn layout(&self, ty: &TensorType, now: &Tensor) -> InputLayout {
        match self {
            Strides::Are(_) => input_layout(now.layout()),
            Strides::Follow(rules) => strides::layout(rules, &ty.shape),
            Strides::Dense(repeats) => {
                let mut strides = vec![Dim::from(0); ty.rank()];
                let mut stride = Dim::from(1);
                for axis in (0..ty.rank()).rev().filter(|&axis| !repeats[axis] && !ty.shape[axis].is_one()) {
                    strides[axis] = stride.clone();
                    stride *= &ty.shape[axis];
                }
                InputLayout { strides, offset: Dim::from(0) }
            }
        }
    }

    /// The strides at these sizes.
    pub(super) fn at(&self, shape: &[usize]) -> Vec<isize> {
        match self {
            Strides::Are(strides) => strides.clone(),
            Strides::Follow(rules) => (0..shape.len()).map(|axis| strides::stride_at(rules, shape, axis)).collect(),
            Strides::Dense(repeats) => {
                let mut strides = vec![0; shape.len()];
                let mut stride = 1;
                for axis in (0..shape.len()).rev().filter(|&axis| !repeats[axis]) {
                    strides[axis] = stride;
                    stride *= shape[axis] as isize;
                }
                strides
            }
        }
    }
}

impl Guard {
    /// The narrowest guard that a part passes.
    pub(super) fn exactly(leaf: &Leaf<'_>) -> Guard {
        match *leaf {
            Leaf::Tensor(tensor) => Guard::Tensor(TensorGuard {
                dtype: tensor.dtype(),
                device: tensor.device(),
                sizes: tensor.shape().iter().map(|&n| Size::Is(n)).collect(),
                strides: Strides::Are(tensor.strides().to_vec()),
                taped: is_taped(tensor),
            }),
            Leaf::Bool(v) => Guard::Bool(v),
            Leaf::Int(v) => Guard::Int(v),
            Leaf::Float(v) => Guard::Float(v.to_bits()),
            Leaf::Text(v) => Guard::Text(v.to_owned()),
            Leaf::Parts(n) => Guard::Parts(n),
        }
    }

    /// The guard of a number that may be any.
    pub(super) fn any_number(leaf: &Leaf<'_>) -> Guard {
        Guard::Number { is_float: matches!(leaf, Leaf::Float(_)) }
    }

    /// Whether a part passes; the sizes of symbols go into `symbols`, [`UNKNOWN`] where not known yet.
    fn passes(&self, leaf: &Leaf<'_>, symbols: &mut [usize]) -> bool {
        match (self, leaf) {
            (Guard::Tensor(guard), Leaf::Tensor(tensor)) => {
                guard.is_alike(tensor) && guard.sizes_pass(tensor, symbols) && guard.strides_pass(tensor)
            }
            (Guard::Tensor(_), _) => false,
            (guard, leaf) => guard.is_value(leaf),
        }
    }

    fn is_value(&self, leaf: &Leaf<'_>) -> bool {
        match (self, leaf) {
            (Guard::Bool(a), Leaf::Bool(b)) => a == b,
            (Guard::Int(a), Leaf::Int(b)) => a == b,
            (Guard::Float(a), Leaf::Float(b)) => *a == b.to_bits(),
            (Guard::Number { is_float }, Leaf::Float(_)) => *is_float,
            (Guard::Number { is_float }, Leaf::Int(_)) => !is_float,
            (Guard::Text(a), Leaf::Text(b)) => a == b,
            (Guard::Parts(a), Leaf::Parts(b)) => a == b,
            _ => false,
        }
    }

    /// Whether it is for a number.
    pub(super) fn is_number(&self) -> bool {
        matches!(self, Guard::Int(_) | Guard::Float(_) | Guard::Number { .. })
    }

    /// Whether two are for one and the same number.
    pub(super) fn is_same_number(&self, other: &Guard) -> bool {
        match (self, other) {
            (Guard::Int(a), Guard::Int(b)) => a == b,
            (Guard::Float(a), Guard::Float(b)) => a == b,
            _ => false,
        }
    }

    /// What of a part fails that does not pass.
    pub(super) fn failed(&self, leaf: &Leaf<'_>) -> Failed {
        match (self, leaf) {
            (Guard::Tensor(guard), Leaf::Tensor(tensor)) if guard.is_alike(tensor) => {
                let symbols = guard.sizes.iter().map(|size| match size {
                    Size::Symbol { number, .. } => number + 1,
                    Size::Is(_) => 0,
                });
                let mut symbols = vec![UNKNOWN; symbols.max().unwrap_or(0)];
                let is_stride = guard.sizes_pass(tensor, &mut symbols) && !guard.strides_pass(tensor);
                if is_stride { Failed::Strides } else { Failed::Size }
            }
            (Guard::Tensor(_), _) | (_, Leaf::Tensor(_)) => Failed::Type,
            _ => Failed::Value,
        }
    }

    /// Whether a part is the same but for sizes and strides of tensors.
    pub(super) fn is_alike(&self, leaf: &Leaf<'_>) -> bool {
        match (self, leaf) {
            (Guard::Tensor(guard), Leaf::Tensor(tensor)) => guard.is_alike(tensor),
            (guard, leaf) => guard.is_value(leaf),
        }
    }
}

impl TensorGuard {
    /// Dtype, rank, device, and whether gradients are wanted.
    fn is_alike(&self, tensor: &Tensor) -> bool {
        self.dtype == tensor.dtype()
            && self.sizes.len() == tensor.rank()
            && self.device == tensor.device()
            && self.taped == is_taped(tensor)
    }

    fn sizes_pass(&self, tensor: &Tensor, symbols: &mut [usize]) -> bool {
        self.sizes.iter().zip(tensor.shape()).all(|(size, &n)| match *size {
            Size::Is(expected) => expected == n,
            Size::Symbol { number, least, most, .. } => {
                if symbols[number] == UNKNOWN {
                    symbols[number] = n;
                }
                n >= least && most.is_none_or(|most| n <= most) && symbols[number] == n
            }
        })
    }

    fn is_row_major(&self, strides: &[isize]) -> bool {
        let size = |size: &Size| if let Size::Is(n) = size { *n } else { 0 };
        Layout::new(self.sizes.iter().map(size).collect::<Vec<_>>(), strides, 0).is_contiguous()
    }

    fn strides_pass(&self, tensor: &Tensor) -> bool {
        match &self.strides {
            Strides::Are(strides) => {
                let axes = strides.iter().zip(tensor.strides()).zip(tensor.shape());
                axes.into_iter().all(|((a, b), &size)| a == b || size < 2)
            }
            Strides::Dense(repeats) => is_dense(tensor.into(), |axis| repeats[axis]),
            Strides::Follow(rules) => strides::hold(rules, tensor),
        }
    }
}

/// Whether gradients of an argument are wanted outside of the function that is called with it.
#[inline]
pub(super) fn is_taped(tensor: &Tensor) -> bool {
    tensor.tape().is_some() && is_differentiable(tensor.dtype())
}

/// The arguments, by number, that gradients are wanted of outside.
pub(super) fn taped<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> Vec<usize> {
    tensors.into_iter().enumerate().filter(|(_, tensor)| is_taped(tensor)).map(|(number, _)| number).collect()
}

/// Which arguments are on the same tape: for each that is on one the first that is on it. Empty for fewer than two.
pub(super) fn shared_tapes(leaves: &[Leaf<'_>]) -> Scratch<usize> {
    let taped = || {
        leaves.iter().filter_map(|leaf| match leaf {
            Leaf::Tensor(tensor) if is_taped(tensor) => tensor.tape(),
            _ => None,
        })
    };
    if taped().nth(1).is_none() {
        return Scratch::new();
    }
    let first = |tape: &Tape| taped().position(|known| known.same(tape)).unwrap_or(0);
    taped().map(first).collect()
}

/// Returns whether the elements are in row-major order without gaps, except for axes that repeat. A tensor without elements
/// is dense.
fn is_dense(tensor: Seen<'_>, repeats: impl Fn(usize) -> bool) -> bool {
    if tensor.shape.contains(&0) {
        return true;
    }
    let mut expected = 1;
    let axes = tensor.shape.iter().zip(tensor.strides).enumerate().rev();
    axes.into_iter().filter(|(_, (size, _))| **size != 1).all(|(axis, (&size, &stride))| {
        if repeats(axis) {
            return stride == 0;
        }
        let fits = stride == expected;
        expected *= size as isize;
        fits
    })
}

/// The axes that repeat, if the others are in row-major order.
fn repeats(tensor: &Tensor) -> Option<Vec<bool>> {
    let repeats: Vec<bool> =
        tensor.strides().iter().zip(tensor.shape()).map(|(&stride, &size)| stride == 0 && size > 1).collect();
    is_dense(tensor.into(), |axis| repeats[axis]).then_some(repeats)
}

/// The first part that does not pass, if any; `None` also stands for a missing or an extra part.
pub(super) fn check(guards: &[Guard], leaves: &[Leaf<'_>], symbols: &mut [usize]) -> Result<(), Option<usize>> {
    if guards.len() != leaves.len() {
        let common = guards.iter().zip(leaves).position(|(guard, leaf)| !guard.is_value(leaf) && !guard.is_alike(leaf));
        return Err(common);
    }
    match guards.iter().zip(leaves).position(|(guard, leaf)| !guard.passes(leaf, symbols)) {
        Some(failed) => Err(Some(failed)),
        None => Ok(()),
    }
}

/// Says which guard failed: `argument part 1: f32[4, 8], not f32[6, 8]`.
pub(super) fn explain(guards: &[Guard], leaves: &[Leaf<'_>], failed: Option<usize>) -> String {
    let Some(part) = failed else {
        return format!("the arguments have {} parts, not {}", leaves.len(), guards.len());
    };
    match (guards.get(part), leaves.get(part)) {
        (Some(guard), Some(leaf)) => format!("part {part} of the arguments is {}, not {guard}", Guard::exactly(leaf)),
        _ => format!("part {part} of the arguments is missing"),
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Guard::Tensor(guard) => guard.fmt(f),
            Guard::Bool(v) => write!(f, "{v}"),
            Guard::Int(v) => write!(f, "{v}"),
            Guard::Float(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Guard::Number { is_float: true } => f.write_str("any float"),
            Guard::Number { is_float: false } => f.write_str("any integer"),
            Guard::Text(v) => write!(f, "{v:?}"),
            Guard::Parts(n) => write!(f, "a list of {n}"),
        }
    }
}

impl fmt::Display for TensorGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, size) in self.sizes.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { ", " })?;
            match size {
                Size::Is(n) => write!(f, "{n}")?,
                Size::Symbol { symbol, .. } => write!(f, "{symbol}")?,
            }
        }
        f.write_str("]")?;
        match &self.strides {
            Strides::Are(strides) if !self.is_row_major(strides) => write!(f, " with strides {strides:?}")?,
            Strides::Follow(rules) => {
                let size = |size: &Size| match *size {
                    Size::Is(n) => Dim::from(n),
                    Size::Symbol { symbol, .. } => symbol.into(),
                };
                let layout = strides::layout(rules, &self.sizes.iter().map(size).collect::<Vec<_>>());
                let strides: Vec<String> = layout.strides.iter().map(Dim::to_string).collect();
                write!(f, " with strides [{}]", strides.join(", "))?;
            }
            Strides::Are(_) | Strides::Dense(_) => {}
        }
        write!(f, " on {}", self.device)?;
        f.write_str(if self.taped { ", on a tape" } else { "" })
    }
}
