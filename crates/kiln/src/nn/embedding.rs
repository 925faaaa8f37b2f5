//! Embedding tables.

use super::{Forward, Module, init};
use crate::{Result, Tensor, Var};
use kiln_ir::Source;

/// Looks up rows of a table by index.
///
/// ```
/// use kiln::nn::{Embedding, Forward};
/// use kiln::{Device, Tensor};
/// let table = Embedding::new(100, 8)?;
/// let tokens = Tensor::new([[1i64, 2, 3], [4, 5, 6]], Device::Cpu)?;
/// assert_eq!(table.forward(&tokens)?.shape(), [2, 3, 8]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct Embedding {
    /// `[rows, width]`.
    pub weight: Var,
}

impl Embedding {
    /// Makes a table of normally distributed elements.
    #[track_caller]
    pub fn new(rows: usize, width: usize) -> Result<Embedding> {
        Ok(Embedding { weight: init::parameter("weight", &init::normal([rows, width], 1.0)?) })
    }
}

impl Forward for Embedding {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        self.weight.get().embedding(indices)
    }
}
