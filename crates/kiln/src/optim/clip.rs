//! Gradient clipping.

use crate::{DType, Device, Result, Tensor, Var};

/// Scales the gradients down so that their total norm is at most `largest`, and returns the norm before. Nothing is read
/// back to the host, so this can be part of a compiled step.
///
/// ```
/// use kiln::optim::clip_grad_norm;
/// use kiln::{Device, Tensor, Var};
/// let w = Var::new(&Tensor::new([3f32, 4.], Device::Cpu)?).requires_grad(true);
/// w.set_grad(Some(w.get().detach()))?;
/// let norm = clip_grad_norm(&[w.clone()], 1.0)?;
/// assert_eq!(norm.item::<f32>()?, 5.0);
/// assert!(w.grad().unwrap().allclose(&Tensor::new([0.6f32, 0.8], Device::Cpu)?, 1e-5, 0.0)?);
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn clip_grad_norm(parameters: &[Var], largest: f64) -> Result<Tensor> {
    let mut gradients = Vec::with_capacity(parameters.len());
    let mut squares = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        if let Some(gradient) = parameter.grad() {
            squares.push(gradient.to_dtype(DType::F32)?.square()?.sum(..)?);
            gradients.push((parameter, gradient));
        }
    }
    if squares.is_empty() {
        return Tensor::scalar(0.0, DType::F32, Device::default());
    }
    let norm = Tensor::stack(&squares, 0)?.sum(..)?.sqrt()?;
    let scale = (largest / norm.add(1e-6)?)?.minimum(1.0)?;
    for (parameter, gradient) in gradients {
        parameter.set_grad(Some(gradient.mul(&scale)?))?;
    }
    Ok(norm)
}
