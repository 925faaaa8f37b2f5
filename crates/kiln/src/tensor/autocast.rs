//! Regions in which products run in short floats: which operations do is PyTorch's list for the device.
//!
//! ```text
//!  autocast(Bf16, f)     matmul, linear, conv, attention, …   operands in f32 become bf16
//!                        losses, powers, sums, norms, …       operands in bf16 become f32   (a GPU's list has more of them)
//!                        everything else                      as it is: operands of several types meet in the widest
//! ```
//!
//! Casts are ordinary operations of the tape and of the graph, so a gradient comes back in the type of its parameter. Nothing is cached that
//! could become stale: a compiled program casts a parameter once however often it is read, since equal casts are one, and eager code casts it
//! at each use.

use crate::tensor::bundle::Leaf;
use crate::tensor::promotion::promote;
use crate::{DType, Device, Error, Result, Tensor};
use kiln_ir::Source;
use std::cell::Cell;

/// What an operation does with the types of its operands inside of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// f32 operands become the region's type.
    Lower,
    /// Short operands become f32.
    Single,
}

/// Operations that run in the region's type on every device.
const LOWER: &[&str] = &[
    "addbmm",
    "addmm",
    "addmv",
    "baddbmm",
    "bmm",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "einsum",
    "linear",
    "matmul",
    "prelu",
    "scaled_dot_product_attention",
];

/// Operations that run in f32 on a processor.
const SINGLE_CPU: &[&str] = &[
    "adaptive_avg_pool3d",
    "avg_pool3d",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cdist",
    "cross_entropy",
    "grid_sample",
    "hinge_embedding_loss",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "max_pool3d",
    "mse_loss",
    "nll_loss",
    "pad_axis",
    "poisson_nll_loss",
    "prod",
    "smooth_l1_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
];

/// Operations that run in f32 on a GPU.
const SINGLE_CUDA: &[&str] = &[
    "acos",
    "asin",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cdist",
    "cosh",
    "cosine_similarity",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "erf_inv",
    "exp",
    "expm1",
    "group_norm",
    "hinge_embedding_loss",
    "huber_loss",
    "interpolate_cubic",
    "interpolate_linear",
    "interpolate_nearest",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "logsumexp",
    "mse_loss",
    "nll_loss",
    "norm",
    "poisson_nll_loss",
    "pow",
    "prod",
    "recip",
    "rsqrt",
    "sinh",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softplus",
    "sum",
    "tan",
    "triplet_margin_loss",
];

fn policy(op: &str, device: Device) -> Option<Policy> {
    let single = match device {
        Device::Cpu => SINGLE_CPU,
        _ => SINGLE_CUDA,
    };
    match op {
        op if LOWER.contains(&op) => Some(Policy::Lower),
        op if single.contains(&op) => Some(Policy::Single),
        _ => None,
    }
}

thread_local! {
    /// The type of the innermost region of this thread.
    static REGION: Cell<Option<DType>> = const { Cell::new(None) };
}

/// The type of the innermost region, if there is one.
#[inline]
pub(crate) fn current() -> Option<DType> {
    REGION.get()
}

/// Runs `f` in a region of this type, or in none.
pub(crate) fn within<T>(region: Option<DType>, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<DType>);
    impl Drop for Restore {
        fn drop(&mut self) {
            REGION.set(self.0);
        }
    }
    let _restore = Restore(REGION.replace(region));
    f()
}

/// What a compiled function that is called in a region is guarded by, beside its arguments.
pub(crate) fn leaf() -> Option<Leaf<'static>> {
    current().map(|dtype| match dtype {
        DType::F16 => Leaf::Text("autocast f16"),
        _ => Leaf::Text("autocast bf16"),
    })
}

/// Runs `f` in a region of mixed precision: products, convolutions and attention of f32 operands are computed in `dtype` ([`DType::Bf16`] or
/// [`DType::F16`]), losses and what short floats are too coarse for in f32, by PyTorch's list for the device. Everything else takes its operands as
/// they are; where types differ, the widest wins. Gradients of f32 parameters are f32.
///
/// Regions nest; the innermost one counts, and [`no_autocast`] turns it off. A region inside a compiled function is part of its graph. A compiled function
/// that is called in a region has a program of its own for it.
///
/// ```
/// use kiln::{DType, Device, Tensor};
/// let (x, w) = (Tensor::ones([2, 3], DType::F32, Device::Cpu)?, Tensor::ones([3, 4], DType::F32, Device::Cpu)?);
/// let y = kiln::autocast(DType::Bf16, || x.matmul(&w))?;
/// assert_eq!(y.dtype(), DType::Bf16);
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn autocast<T>(dtype: DType, f: impl FnOnce() -> Result<T>) -> Result<T> {
    if !is_short(dtype) {
        let at = Source::caller();
        return Err(Error::WrongDType { op: "autocast", got: dtype, expected: "bf16 or f16", at });
    }
    within(Some(dtype), f)
}

/// Runs `f` outside of every region of [`autocast`].
///
/// ```
/// use kiln::{DType, Device, Tensor, autocast, no_autocast};
/// let x = Tensor::ones([2, 2], DType::F32, Device::Cpu)?;
/// let (short, exact) = autocast(DType::Bf16, || Ok((x.matmul(&x)?, no_autocast(|| x.matmul(&x))?)))?;
/// assert_eq!((short.dtype(), exact.dtype()), (DType::Bf16, DType::F32));
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn no_autocast<T>(f: impl FnOnce() -> T) -> T {
    within(None, f)
}

/// Returns the type that products run in inside of the innermost region of [`autocast`] on this thread.
pub fn autocast_dtype() -> Option<DType> {
    current()
}

fn is_short(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16)
}

impl Tensor {
    /// The operand of an operation, in the type that the region asks for.
    #[inline]
    pub(crate) fn autocast(&self, op: &str, at: &Source) -> Result<Tensor> {
        match current() {
            None => Ok(self.clone()),
            Some(region) => self.autocast_to(op, region, at),
        }
    }

    #[cold]
    fn autocast_to(&self, op: &str, region: DType, at: &Source) -> Result<Tensor> {
        match policy(op, self.device()) {
            Some(Policy::Lower) if self.dtype() == DType::F32 || is_short(self.dtype()) => self.to_dtype_at(region, at),
            Some(Policy::Single) if is_short(self.dtype()) => self.to_dtype_at(DType::F32, at),
            _ => Ok(self.clone()),
        }
    }
}

/// The operands of an operation inside of a region; `None` where they stay as they are.
#[inline]
pub(crate) fn operands(op: &str, operands: &[&Tensor], at: &Source) -> Result<Option<Vec<Tensor>>> {
    match current() {
        None => Ok(None),
        Some(_) => operands.iter().map(|operand| operand.autocast(op, at)).collect::<Result<Vec<_>>>().map(Some),
    }
}

/// The operands of an operation inside of a region, floats of several types in the widest of them: only a region makes them differ.
pub(crate) fn met<const N: usize>(op: &str, operands: [&Tensor; N], at: &Source) -> Result<[Tensor; N]> {
    let mut operands = operands.map(Tensor::clone);
    if current().is_some() {
        for operand in &mut operands {
            *operand = operand.autocast(op, at)?;
        }
        if operands.iter().all(|operand| operand.dtype().is_float()) {
            let given: Vec<_> = operands.iter().map(Into::into).collect();
            let widest = promote(&given);
            for operand in &mut operands {
                *operand = operand.to_dtype_at(widest, at)?;
            }
        }
    }
    Ok(operands)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_sorted_and_apart() {
        for list in [LOWER, SINGLE_CPU, SINGLE_CUDA] {
            assert!(list.is_sorted());
        }
        assert!(LOWER.iter().all(|op| !SINGLE_CPU.contains(op) && !SINGLE_CUDA.contains(op)));
    }
}
