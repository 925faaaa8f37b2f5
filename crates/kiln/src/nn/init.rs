//! Initial values of parameters, with PyTorch's distributions.

use crate::{DType, Device, Result, Shape, Tensor, Var};
use std::cell::Cell;

thread_local! {
    static PLACE: Cell<(Device, DType)> = const { Cell::new((Device::Cpu, DType::F32)) };
}

/// Makes modules on `device` and in `dtype` instead of on the CPU in f32.
///
/// ```
/// use kiln::nn::{Linear, init};
/// use kiln::{DType, Device};
/// let layer = init::with(Device::Cpu, DType::Bf16, || Linear::new(2, 3))?;
/// assert_eq!(layer.weight.dtype(), DType::Bf16);
/// assert_eq!(Linear::new(2, 3)?.weight.dtype(), DType::F32);
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn with<T>(device: Device, dtype: DType, make: impl FnOnce() -> T) -> T {
    /// Also after a panic of `make`.
    struct Restore((Device, DType));
    impl Drop for Restore {
        fn drop(&mut self) {
            PLACE.set(self.0);
        }
    }
    let _restore = Restore(PLACE.replace((device, dtype)));
    make()
}

/// Returns the device and dtype that parameters are made with.
pub fn place() -> (Device, DType) {
    PLACE.get()
}

/// Returns zeros.
#[track_caller]
pub fn zeros(shape: impl Shape) -> Result<Tensor> {
    let (device, dtype) = place();
    Tensor::zeros(shape, dtype, device)
}

/// Returns ones.
#[track_caller]
pub fn ones(shape: impl Shape) -> Result<Tensor> {
    let (device, dtype) = place();
    Tensor::ones(shape, dtype, device)
}

/// Draws uniformly from −bound to bound.
///
/// ```
/// let x = kiln::nn::init::uniform([100], 0.1)?;
/// assert!(x.to_vec::<f32>()?.iter().all(|x| x.abs() <= 0.1));
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn uniform(shape: impl Shape, bound: f64) -> Result<Tensor> {
    let (device, dtype) = place();
    Tensor::rand(shape, dtype, device)?.mul(2.0 * bound)?.sub(bound)
}

/// Draws from a normal distribution of mean 0.
#[track_caller]
pub fn normal(shape: impl Shape, deviation: f64) -> Result<Tensor> {
    let (device, dtype) = place();
    Tensor::randn(shape, dtype, device)?.mul(deviation)
}

/// Elements that one output of a weight `[out, in, …]` depends on, and outputs that one input reaches.
fn fans(shape: &impl Shape) -> (f64, f64) {
    let sizes = crate::tensor::dim::hints(&shape.sizes());
    let size = |axis: usize| sizes.get(axis).copied().unwrap_or(1) as f64;
    let window: f64 = sizes.iter().skip(2).map(|&n| n as f64).product();
    (size(1) * window, size(0) * window)
}

/// Xavier (Glorot) initialisation: uniform with variance 2 / (in + out).
#[track_caller]
pub fn xavier_uniform(shape: impl Shape) -> Result<Tensor> {
    let (fan_in, fan_out) = fans(&shape);
    uniform(shape, (6.0 / (fan_in + fan_out)).sqrt())
}

/// Kaiming (He) initialisation for ReLU: normal with variance 2 / in.
#[track_caller]
pub fn kaiming_normal(shape: impl Shape) -> Result<Tensor> {
    let (fan_in, _) = fans(&shape);
    normal(shape, (2.0 / fan_in).sqrt())
}

/// The bound of PyTorch's linear and convolution layers, 1/√in.
pub(super) fn default_bound(fan_in: usize) -> f64 {
    if fan_in == 0 { 0.0 } else { 1.0 / (fan_in as f64).sqrt() }
}

/// Makes a trainable variable.
pub fn parameter(name: &str, value: &Tensor) -> Var {
    Var::named(name, value).requires_grad(true)
}
