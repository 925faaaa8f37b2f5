//! Activations as modules, for [`super::Sequential`]; elsewhere use the methods of [`crate::Tensor`].

use super::{Forward, Module};
use crate::{Result, Tensor};
use kiln_ir::Source;

macro_rules! activations {
    ($($(#[$doc:meta])* $name:ident = $method:ident;)*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, Module)]
        pub struct $name;

        impl Forward for $name {
            type Output = Tensor;
            #[track_caller]
            fn forward(&self, x: &Tensor) -> Result<Tensor> {
                let _line = Source::scope();
                x.$method()
            }
        }
    )* };
}

activations! {
    /// max(x, 0).
    ///
    /// ```
    /// use kiln::nn::{Forward, Relu};
    /// use kiln::{Device, Tensor};
    /// assert_eq!(Relu.forward(&Tensor::new([-1f32, 2.], Device::Cpu)?)?.to_vec::<f32>()?, [0., 2.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    Relu = relu;
    /// x between 0 and 6.
    Relu6 = relu6;
    /// x · sigmoid(x).
    Silu = silu;
    /// Hyperbolic tangent.
    Tanh = tanh;
    /// 1 / (1 + e⁻ˣ).
    Sigmoid = sigmoid;
    /// The logarithm of [`Sigmoid`].
    LogSigmoid = log_sigmoid;
    /// x · tanh(softplus(x)).
    Mish = mish;
    /// ln(1 + eˣ).
    Softplus = softplus;
    /// x / (1 + |x|).
    Softsign = softsign;
    /// The scaled elu whose constants keep mean and variance.
    Selu = selu;
    /// relu6(x + 3) / 6.
    Hardsigmoid = hardsigmoid;
    /// x · relu6(x + 3) / 6.
    Hardswish = hardswish;
}

/// GELU: x · Φ(x), exact or with the tanh approximation.
///
/// ```
/// use kiln::nn::{Forward, Gelu};
/// use kiln::{Device, Tensor};
/// let x = Tensor::new([1f32], Device::Cpu)?;
/// assert!((Gelu::default().forward(&x)?.item::<f32>()? - 0.841345).abs() < 1e-6);
/// assert!((Gelu { tanh: true }.forward(&x)?.item::<f32>()? - 0.841192).abs() < 1e-6);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, Module)]
pub struct Gelu {
    /// Whether to use the tanh approximation.
    pub tanh: bool,
}

impl Forward for Gelu {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        if self.tanh { x.gelu_tanh() } else { x.gelu() }
    }
}

/// x where x > 0, slope · x elsewhere.
#[derive(Debug, Clone, Copy, Module)]
pub struct LeakyRelu {
    /// The slope for negative x.
    pub slope: f64,
}

impl Default for LeakyRelu {
    fn default() -> LeakyRelu {
        LeakyRelu { slope: 0.01 }
    }
}

impl Forward for LeakyRelu {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.leaky_relu(self.slope)
    }
}

/// x where x > 0, alpha · (eˣ − 1) elsewhere.
#[derive(Debug, Clone, Copy, Module)]
pub struct Elu {
    /// The negated limit for x → −∞.
    pub alpha: f64,
}

impl Default for Elu {
    fn default() -> Elu {
        Elu { alpha: 1.0 }
    }
}

impl Forward for Elu {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.elu(self.alpha)
    }
}

/// Softmax along an axis: eˣ, normalised to sum to 1.
///
/// ```
/// use kiln::nn::{Forward, Softmax};
/// use kiln::{DType, Device, Tensor};
/// let y = Softmax { axis: -1 }.forward(&Tensor::zeros([1, 4], DType::F32, Device::Cpu)?)?;
/// assert_eq!(y.to_vec::<f32>()?, [0.25; 4]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Module)]
pub struct Softmax {
    /// The axis; negative axes count from the end.
    pub axis: i64,
}

impl Forward for Softmax {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.softmax(self.axis)
    }
}

/// Returns its input.
#[derive(Debug, Clone, Copy, Default, Module)]
pub struct Identity;

impl Forward for Identity {
    type Output = Tensor;
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}
