//! Layers over quantised weights: blocks, stored as in the file and unpacked in registers, and 8-bit integers.

use super::linear::value;
use super::{Forward, Module};
use crate::{BlockFormat, DType, Result, Tensor, Var};
use kiln_ir::Source;

/// x·weightᵀ + bias over the last axis, with the rows of the weight stored as quantised blocks.
///
/// ```
/// use kiln::nn::{Forward, QuantizedLinear};
/// use kiln::{BlockFormat, DType, Device, Tensor, Var};
/// let blocks = Var::new(&Tensor::zeros([2, 34], DType::U8, Device::Cpu)?);
/// let layer = QuantizedLinear { blocks, format: BlockFormat::Q8_0, bias: None };
/// assert_eq!(layer.forward(&Tensor::ones([4, 32], DType::F32, Device::Cpu)?)?.shape(), [4, 2]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct QuantizedLinear {
    /// `[out, bytes]`.
    #[module(buffer)]
    pub blocks: Var,
    /// The format of the blocks.
    #[module(skip)]
    pub format: BlockFormat,
    /// `[out]`.
    pub bias: Option<Var>,
}

impl Forward for QuantizedLinear {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.linear_blocks(&self.blocks.get(), self.format, value(&self.bias).as_ref())
    }
}

/// (x·weightᵀ)·scale + bias over the last axis, with a weight of 8-bit integers and a scale for each output. Activations
/// stay floats.
///
/// ```
/// use kiln::nn::{Forward, Int8Linear};
/// use kiln::{DType, Device, Tensor, Var};
/// let weight = Var::new(&Tensor::ones([2, 3], DType::I8, Device::Cpu)?);
/// let scale = Var::new(&Tensor::full(2, 0.5, DType::F32, Device::Cpu)?);
/// let layer = Int8Linear { weight, scale, bias: None };
/// assert_eq!(layer.forward(&Tensor::ones([1, 3], DType::F32, Device::Cpu)?)?.to_vec::<f32>()?, [1.5, 1.5]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct Int8Linear {
    /// `[out, in]`, in i8.
    #[module(buffer)]
    pub weight: Var,
    /// `[out]`, in the dtype of the activations.
    #[module(buffer)]
    pub scale: Var,
    /// `[out]`.
    pub bias: Option<Var>,
}

impl Forward for Int8Linear {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        x.linear_int8(&self.weight.get(), &self.scale.get(), value(&self.bias).as_ref())
    }
}

/// Looks up rows of a table of quantised blocks by index; only these rows are unpacked.
///
/// ```
/// use kiln::nn::{Forward, QuantizedEmbedding};
/// use kiln::{BlockFormat, DType, Device, Tensor, Var};
/// let blocks = Var::new(&Tensor::zeros([100, 40], DType::U8, Device::Cpu)?);
/// let table = QuantizedEmbedding { blocks, format: BlockFormat::Q4_1, dtype: DType::F32 };
/// assert_eq!(table.forward(&Tensor::new([1i64, 2, 3], Device::Cpu)?)?.shape(), [3, 64]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Module)]
pub struct QuantizedEmbedding {
    /// `[rows, bytes]`.
    #[module(buffer)]
    pub blocks: Var,
    /// The format of the blocks.
    #[module(skip)]
    pub format: BlockFormat,
    /// The dtype of the result.
    #[module(skip)]
    pub dtype: DType,
}

impl QuantizedEmbedding {
    /// Returns the products with every row of the table: the logits of a model with tied embeddings.
    #[track_caller]
    pub fn products(&self, hidden: &Tensor) -> Result<Tensor> {
        hidden.linear_blocks(&self.blocks.get(), self.format, None)
    }
}

impl Forward for QuantizedEmbedding {
    type Output = Tensor;
    #[track_caller]
    fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        let _line = Source::scope();
        self.blocks.get().embedding_blocks(indices, self.format)?.to_dtype(self.dtype)
    }
}
