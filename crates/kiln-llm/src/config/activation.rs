//! The functions between two projections, by the names that configurations have for them.

use super::Fields;
use crate::Result;
use kiln::Tensor;

/// A function of one element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// x · Φ(x) by the error function.
    Gelu,
    /// x · Φ(x) by a hyperbolic tangent.
    GeluTanh,
    /// max(x, 0).
    Relu,
}

impl Activation {
    /// By its name in a configuration.
    ///
    /// ```
    /// use kiln_llm::config::Activation;
    /// assert_eq!(Activation::named("gelu_new"), Some(Activation::GeluTanh));
    /// assert_eq!(Activation::named("xielu"), None);
    /// ```
    pub fn named(name: &str) -> Option<Activation> {
        match name {
            "silu" | "swish" => Some(Activation::Silu),
            "gelu" | "gelu_python" => Some(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" | "gelu_accurate" => Some(Activation::GeluTanh),
            "relu" => Some(Activation::Relu),
            _ => None,
        }
    }

    /// The one that a member names, GELU where nothing is said.
    pub fn from_fields(fields: &Fields, name: &str) -> Result<Activation> {
        fields.activation(name, Activation::Gelu)
    }

    /// The function of each element.
    #[track_caller]
    pub fn apply(self, x: &Tensor) -> kiln::Result<Tensor> {
        match self {
            Activation::Silu => x.silu(),
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Relu => x.relu(),
        }
    }

    /// Refuses any other than this one, for architectures that have no other.
    pub(super) fn only(self, expected: Activation, fields: &Fields, name: &str) -> Result<()> {
        if self == expected {
            return Ok(());
        }
        Err(fields.bad(name, format!("{self:?} is not supported for this model type, {expected:?} is")))
    }
}
