//! Embedding tables.

use super::{Forward, Module, init};
use crate::{DType, Result, Tensor, Var};
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

/// How [`EmbeddingBag`] combines the rows of a bag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub enum BagMode {
    /// Their sum.
    Sum,
    /// Their mean; zero for an empty bag.
    Mean,
    /// The largest of each element.
    Max,
}

/// Looks up rows of a table and combines those of each bag.
///
/// ```
/// use kiln::nn::{BagMode, EmbeddingBag, Forward};
/// use kiln::{Device, Tensor};
/// let table = EmbeddingBag::new(10, 4, BagMode::Mean)?;
/// let bags = Tensor::new([[1i64, 2, 4], [4, 3, 2]], Device::Cpu)?;
/// assert_eq!(table.forward(&bags)?.shape(), [2, 4]);
/// let (indices, starts) = (Tensor::new([1i64, 2, 4, 5], Device::Cpu)?, Tensor::new([0i64, 3], Device::Cpu)?);
/// assert_eq!(table.bags(&indices, &starts)?.shape(), [2, 4]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct EmbeddingBag {
    /// `[rows, width]`.
    pub weight: Var,
    /// How rows are combined.
    pub mode: BagMode,
}

impl EmbeddingBag {
    /// Makes a table of normally distributed elements.
    #[track_caller]
    pub fn new(rows: usize, width: usize, mode: BagMode) -> Result<EmbeddingBag> {
        Ok(EmbeddingBag { weight: init::parameter("weight", &init::normal([rows, width], 1.0)?), mode })
    }

    /// Combines bags of any length: `indices` of all bags one after another, and where each begins among them.
    #[track_caller]
    pub fn bags(&self, indices: &Tensor, starts: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        let (indices, starts) = (indices.to_dtype(DType::I64)?, starts.to_dtype(DType::I64)?);
        let rows = self.weight.get().embedding(&indices)?;
        let (count, bags, width) = (indices.size(0)?, starts.size(0)?, rows.size(1)?);
        // The bag of a position: the last of those that begin before it ends.
        let positions = Tensor::arange(count, DType::I64, indices.device())?.reshape((count, 1))?;
        let begun = starts.reshape((1, bags))?.le(&positions)?.to_dtype(DType::I64)?;
        let bag = begun.sum(1)?.sub(1)?;
        let zeros = Tensor::zeros((bags, width), rows.dtype(), rows.device())?;
        match self.mode {
            BagMode::Sum => zeros.index_add(0, &bag, &rows),
            BagMode::Mean => {
                let ones = Tensor::ones((count, 1), rows.dtype(), rows.device())?;
                let counts = Tensor::zeros((bags, 1), rows.dtype(), rows.device())?.index_add(0, &bag, &ones)?;
                zeros.index_add(0, &bag, &rows)?.div(&counts.maximum(1.0)?)
            }
            BagMode::Max => {
                let bags_of = bag.reshape((1, count))?;
                let number = Tensor::arange(bags, DType::I64, indices.device())?.reshape((bags, 1))?;
                let inside = bags_of.eq(&number)?.reshape((bags, count, 1))?;
                let all = rows.reshape((1, count, width))?.expand((bags, count, width))?;
                let inside = inside.expand((bags, count, width))?;
                let largest = all.masked_fill(&inside.logical_not()?, f64::NEG_INFINITY)?.amax(1)?;
                // An empty bag is zero.
                let empty = inside.logical_not()?.all(1)?;
                largest.masked_fill(&empty, 0.0)
            }
        }
    }
}

impl Forward for EmbeddingBag {
    type Output = Tensor;
    /// Bags of equal length, one a row of `indices`.
    #[track_caller]
    fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        let rows = self.weight.get().embedding(indices)?;
        match self.mode {
            BagMode::Sum => rows.sum(-2),
            BagMode::Mean => rows.mean(-2),
            BagMode::Max => rows.amax(-2),
        }
    }
}
