//! Dropout.

use super::{Forward, Mode, Module};
use crate::{Generator, Result, Tensor};
use kiln_ir::Source;
use std::sync::Arc;

/// In training, zeroes each element with a probability and scales the others up to keep the mean; in evaluation, returns
/// its input.
///
/// ```
/// use kiln::nn::{Dropout, Forward};
/// use kiln::{DType, Device, Generator, Tensor};
/// use std::sync::Arc;
/// let layer = Dropout::new(0.5).drawing_from(Arc::new(Generator::new(7)));
/// let y = layer.forward(&Tensor::ones(1000, DType::F32, Device::Cpu)?)?;
/// assert!(y.to_vec::<f32>()?.iter().all(|&y| y == 0.0 || y == 2.0));
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct Dropout {
    /// The probability that an element is zeroed.
    pub probability: f64,
    /// Dropout is active only in training.
    pub mode: Mode,
    /// The generator of the masks; `None` means the default generator of the process.
    #[module(skip)]
    pub generator: Option<Arc<Generator>>,
}

impl Dropout {
    /// Makes a dropout layer; `probability` is between 0 and 1.
    pub fn new(probability: f64) -> Dropout {
        Dropout { probability, mode: Mode::new(), generator: None }
    }

    /// Draws the masks from this generator.
    pub fn drawing_from(self, generator: Arc<Generator>) -> Dropout {
        Dropout { generator: Some(generator), ..self }
    }
}

impl Forward for Dropout {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        if !self.mode.is_training() || self.probability == 0.0 {
            return Ok(x.clone());
        }
        match &self.generator {
            Some(generator) => generator.dropout(x, self.probability),
            None => x.dropout(self.probability),
        }
    }
}
