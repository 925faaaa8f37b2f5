//! Tensors of quantised blocks: bytes that encode floats, and products that unpack them in registers.

use crate::tensor::eager::{self, Param};
use crate::{DType, Error, Result, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{BlockFormat, DotDims, NodeId, Op, Source};

impl Tensor {
    /// Returns the elements that quantised blocks encode, in f32. This tensor holds bytes, with whole blocks on its last
    /// axis.
    ///
    /// ```
    /// use kiln::{BlockFormat, Device, Tensor};
    /// let mut block = vec![0u8; 34];
    /// block[..2].copy_from_slice(&[0x00, 0x38]); // the scale, 0.5
    /// block[2] = 6;
    /// block[3] = 253; // −3
    /// let x = Tensor::from_vec(block, [1, 34], Device::Cpu)?.dequantize(BlockFormat::Q8_0)?;
    /// assert_eq!(x.shape(), [1, 32]);
    /// assert_eq!(x.to_vec::<f32>()?[..3], [3.0, -1.5, 0.0]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn dequantize(&self, format: BlockFormat) -> Result<Tensor> {
        let at = Source::caller();
        self.expect_blocks("dequantize", format, &at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| build::dequantize(b, &inputs[0], format);
        eager::composite("dequantize", &[param(format)], &[self], write, &at)
    }

    /// x·wᵀ + bias over the last axis, with the rows of `w: [out, in]` as quantised blocks, `[out, bytes]`. The blocks are
    /// unpacked in registers; the product is computed in f32 and returned in this tensor's dtype.
    ///
    /// ```
    /// use kiln::{BlockFormat, DType, Device, Tensor};
    /// let x = Tensor::ones([2, 64], DType::F32, Device::Cpu)?;
    /// let blocks = Tensor::zeros([8, 40], DType::U8, Device::Cpu)?;
    /// assert_eq!(x.linear_blocks(&blocks, BlockFormat::Q4_1, None)?.shape(), [2, 8]);
    /// let message = x.linear_blocks(&blocks, BlockFormat::Q8_0, None).unwrap_err().to_string();
    /// assert!(message.starts_with("linear_blocks: bytes of a row = 40, but it must be a multiple of a block's"));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn linear_blocks(&self, blocks: &Tensor, format: BlockFormat, bias: Option<&Tensor>) -> Result<Tensor> {
        const OP: &str = "linear_blocks";
        let at = Source::caller();
        blocks.expect_blocks(OP, format, &at)?;
        if !self.dtype().is_float() || self.dtype().is_storage_only() {
            return Err(Error::WrongDType { op: OP, got: self.dtype(), expected: "floats", at });
        }
        if self.rank() == 0 || blocks.rank() != 2 {
            let (side, expected) =
                if self.rank() == 0 { (self, "one axis or more") } else { (blocks, "blocks of two axes") };
            return Err(Error::WrongRank { op: OP, shape: side.hint().to_vec(), expected, at });
        }
        let (last, width) = (self.rank() - 1, blocks.hint()[1] / format.bytes() * format.elements());
        if !self.extent(last).equals(width.into(), &at) {
            let (lhs, rhs) = (self.hint().to_vec(), vec![blocks.hint()[0], width]);
            return Err(Error::ShapeMismatch { op: OP, lhs, rhs, sizes: Some((self.hint()[last], width)), at });
        }
        let mut operands = vec![self, blocks];
        operands.extend(bias);
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            build::linear_blocks(b, &inputs[0], &inputs[1], format, inputs.get(2))
        };
        eager::composite(OP, &[param(format)], &operands, write, &at)
    }

    /// (x·wᵀ)·scale + bias over the last axis, with `w: [out, in]` in i8 and a scale for each output, in this tensor's
    /// dtype. The integers become floats as the product reads them, which is exact; the scale is applied to the sum.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([[1f32, 2.0]], Device::Cpu)?;
    /// let weight = Tensor::new([[127i8, 0], [-64, 32]], Device::Cpu)?;
    /// let scale = Tensor::new([0.5f32, 0.25], Device::Cpu)?;
    /// assert_eq!(x.linear_int8(&weight, &scale, None)?.to_vec::<f32>()?, [63.5, 0.0]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn linear_int8(&self, weight: &Tensor, scale: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        const OP: &str = "linear_int8";
        let at = Source::caller();
        if weight.dtype() != DType::I8 {
            return Err(Error::WrongDType { op: OP, got: weight.dtype(), expected: "i8", at });
        }
        if !self.dtype().is_float() || self.dtype().is_storage_only() {
            return Err(Error::WrongDType { op: OP, got: self.dtype(), expected: "floats", at });
        }
        self.same_dtype(OP, scale, &at)?;
        self.check_linear(OP, weight, &at)?;
        if !(scale.rank() == 1 && scale.extent(0).equals(weight.extent(0), &at)) {
            let (lhs, rhs) = (weight.hint().to_vec(), scale.hint().to_vec());
            return Err(Error::ShapeMismatch { op: OP, lhs, rhs, sizes: None, at });
        }
        let mut operands = vec![self, weight, scale];
        operands.extend(bias);
        let (dtype, last) = (self.dtype(), self.rank() - 1);
        // Sums of integers that are not yet scaled are beyond the range of f16.
        let out = if dtype == DType::F16 { DType::F32 } else { dtype };
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let weight = build::cast(b, &inputs[1], dtype)?;
            let dims = DotDims { lhs_contract: vec![last], rhs_contract: vec![1], ..DotDims::default() };
            let sum = b.emit(Op::Dot { dims: dims.into(), out }, &[inputs[0], weight])?;
            let scale = build::cast(b, &inputs[2], out)?;
            let scaled = build::mul(b, &sum, &scale)?;
            let scaled = build::cast(b, &scaled, dtype)?;
            inputs.get(3).map_or(Ok(scaled), |bias| build::add(b, &scaled, bias))
        };
        eager::composite(OP, &[], &operands, write, &at)
    }

    /// Looks up rows of a table of quantised blocks, `[rows, bytes]`, by index, in f32. Only these rows are unpacked.
    ///
    /// ```
    /// use kiln::{BlockFormat, DType, Device, Tensor};
    /// let table = Tensor::zeros([100, 34], DType::U8, Device::Cpu)?;
    /// let words = Tensor::new([[1i64, 2, 3]], Device::Cpu)?;
    /// assert_eq!(table.embedding_blocks(&words, BlockFormat::Q8_0)?.shape(), [1, 3, 32]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn embedding_blocks(&self, index: &Tensor, format: BlockFormat) -> Result<Tensor> {
        let at = Source::caller();
        self.expect_blocks("embedding_blocks", format, &at)?;
        self.embedding(index)?.dequantize(format)
    }

    fn expect_blocks(&self, op: &'static str, format: BlockFormat, at: &Source) -> Result<()> {
        if self.dtype() != DType::U8 {
            return Err(Error::WrongDType { op, got: self.dtype(), expected: "bytes (u8)", at: at.clone() });
        }
        let Some(&bytes) = self.hint().last() else {
            let expected = "one axis or more";
            return Err(Error::WrongRank { op, shape: vec![], expected, at: at.clone() });
        };
        if bytes % format.bytes() != 0 {
            let (name, expected) = ("bytes of a row", "it must be a multiple of a block's bytes");
            return Err(Error::BadArgument { op, name, value: bytes.into(), expected, at: at.clone() });
        }
        Ok(())
    }
}

fn param(format: BlockFormat) -> Param {
    Param::Int(format as i64)
}
