//! Quantised blocks: their elements, products with them, and their semantics in smaller ops.

use super::{
    Built, Emit, add, binary, binary_scalar, broadcast_to, cast, compare_scalar, embedding, iota, linear, mul,
    mul_scalar, narrow, reshape, select, sub, sub_scalar,
};
use crate::{BinaryOp, BlockFormat, CompareOp, DType, Dim, Op};

/// The elements of quantised blocks along the last axis, in f32.
#[track_caller]
pub fn dequantize<E: Emit>(e: &mut E, x: &E::Value, format: BlockFormat) -> Built<E> {
    e.emit(Op::Dequantize { format }, std::slice::from_ref(x))
}

/// x·wᵀ + bias over the last axis of x, with the rows of `w: [out, in]` as quantised blocks: `u8[out, bytes]`. The product is
/// computed in f32 and returned in x's dtype.
#[track_caller]
pub fn linear_blocks<E: Emit>(
    e: &mut E,
    x: &E::Value,
    blocks: &E::Value,
    format: BlockFormat,
    bias: Option<&E::Value>,
) -> Built<E> {
    let dtype = e.ty(x).dtype;
    let wide = cast(e, x, DType::F32)?;
    let weight = dequantize(e, blocks, format)?;
    let y = linear(e, &wide, &weight, None)?;
    let y = match bias {
        Some(bias) => {
            let bias = cast(e, bias, DType::F32)?;
            add(e, &y, &bias)?
        }
        None => y,
    };
    cast(e, &y, dtype)
}

/// The rows of quantised blocks (`u8[rows, bytes]`) that an index tensor names, in f32. Only these rows are unpacked.
#[track_caller]
pub fn embedding_blocks<E: Emit>(e: &mut E, blocks: &E::Value, index: &E::Value, format: BlockFormat) -> Built<E> {
    let rows = embedding(e, blocks, index)?;
    dequantize(e, &rows, format)
}

/// [`dequantize`] in shifts, masks and products of the bytes.
#[track_caller]
pub fn dequantize_by_parts<E: Emit>(e: &mut E, x: &E::Value, format: BlockFormat) -> Built<E> {
    let op = Op::Dequantize { format };
    let ty = match crate::infer(&op, &[&e.ty(x)]) {
        Ok(ty) => ty,
        Err(cause) => return super::fail::<_, E>("dequantize", cause),
    };
    let mut outer = ty.shape.clone();
    let elements = outer.pop().unwrap_or_default();
    let blocks = elements.floor_div(&Dim::from(format.elements()));
    outer.push(blocks);
    let bytes = reshape(e, x, &[outer.as_slice(), &[Dim::from(format.bytes())]].concat())?;
    let bytes = cast(e, &bytes, DType::I32)?;
    let mut parts = Parts { e, outer, bytes };
    let value = match format {
        BlockFormat::Q4_0 => {
            let q = parts.nibbles(2, &[1], 16)?;
            let q = parts.float(&q)?;
            let q = sub_scalar(parts.e, &q, 8.0)?;
            let scale = parts.half(0, 3)?;
            mul(parts.e, &q, &scale)?
        }
        BlockFormat::Q4_1 => {
            let q = parts.nibbles(4, &[1], 16)?;
            let q = parts.float(&q)?;
            let (scale, least) = (parts.half(0, 3)?, parts.half(2, 3)?);
            let scaled = mul(parts.e, &q, &scale)?;
            add(parts.e, &scaled, &least)?
        }
        BlockFormat::Q5_0 => {
            let q = parts.nibbles(6, &[1], 16)?;
            let tops = parts.bits(2, 4)?;
            let tops = parts.moved(BinaryOp::Shl, &tops, 4)?;
            let q = binary(parts.e, BinaryOp::Or, &q, &tops)?;
            let q = parts.float(&q)?;
            let q = sub_scalar(parts.e, &q, 16.0)?;
            let scale = parts.half(0, 3)?;
            mul(parts.e, &q, &scale)?
        }
        BlockFormat::Q8_0 => {
            let q = parts.field(2, &[32])?;
            let q = parts.signed(&q)?;
            let scale = parts.half(0, 1)?;
            mul(parts.e, &q, &scale)?
        }
        BlockFormat::Q4_K => parts.q4_k()?,
        BlockFormat::Q6_K => parts.q6_k()?,
    };
    reshape(parts.e, &value, &ty.shape)
}

/// The bytes of blocks as `i32[…, blocks, bytes]`, and their layout.
struct Parts<'e, E: Emit> {
    e: &'e mut E,
    /// `[…, blocks]`.
    outer: Vec<Dim>,
    bytes: E::Value,
}

impl<E: Emit> Parts<'_, E> {
    fn shape(&self, inner: &[i64]) -> Vec<Dim> {
        self.outer.iter().cloned().chain(inner.iter().map(|&n| Dim::from(n))).collect()
    }

    /// Some bytes from `at` on, in a shape of their own.
    fn field(&mut self, at: i64, inner: &[i64]) -> Built<E> {
        let (axis, count) = (self.outer.len(), inner.iter().product::<i64>());
        let field = narrow(self.e, &self.bytes, axis, at, count)?;
        let shape = self.shape(inner);
        reshape(self.e, &field, &shape)
    }

    /// The half at `at`, in f32, with `rank` axes of size one.
    fn half(&mut self, at: i64, rank: usize) -> Built<E> {
        let ones = vec![1; rank];
        let (low, high) = (self.field(at, &ones)?, self.field(at + 1, &ones)?);
        let high = self.moved(BinaryOp::Shl, &high, 8)?;
        let bits = binary(self.e, BinaryOp::Or, &low, &high)?;
        // The exponent's and the fraction's bits where f32 has them: a number too small by 2¹¹², subnormal ones included.
        let magnitude = self.masked(&bits, 0x7fff)?;
        let sign = self.masked(&bits, 0x8000)?;
        let sign = self.moved(BinaryOp::Shl, &sign, 16)?;
        let wide = self.moved(BinaryOp::Shl, &magnitude, 13)?;
        let wide = binary(self.e, BinaryOp::Or, &wide, &sign)?;
        let finite = self.e.emit(Op::Bitcast(DType::F32), std::slice::from_ref(&wide))?;
        let finite = mul_scalar(self.e, &finite, 2f64.powi(112))?;
        let other = binary_scalar(self.e, BinaryOp::Or, &wide, f64::from(0x7f80_0000))?;
        let other = self.e.emit(Op::Bitcast(DType::F32), &[other])?;
        let is_finite = compare_scalar(self.e, CompareOp::Lt, &magnitude, f64::from(0x7c00))?;
        select(self.e, &is_finite, &finite, &other)
    }

    /// The low and the high nibbles of `outer` groups of `count` bytes from `at` on: `[…, outer…, 2, count]`.
    fn nibbles(&mut self, at: i64, outer: &[i64], count: i64) -> Built<E> {
        let narrow = self.field(at, &[outer, &[1, count]].concat())?;
        self.shifted(&narrow, &[outer, &[2, count]].concat(), outer.len(), 4, 15)
    }

    /// The bits of `count` bytes from `at` on, the lowest first: `[…, 1, 2, 4·count]`.
    fn bits(&mut self, at: i64, count: i64) -> Built<E> {
        let bytes = self.field(at, &[count, 1])?;
        let bits = self.shifted(&bytes, &[count, 8], 1, 1, 1)?;
        let shape = self.shape(&[1, 2, 4 * count]);
        reshape(self.e, &bits, &shape)
    }

    /// x repeated along axis `axis` of `inner`, each time shifted right by `step` bits more, and masked.
    fn shifted(&mut self, x: &E::Value, inner: &[i64], axis: usize, step: i64, mask: i64) -> Built<E> {
        let shape = self.shape(inner);
        let wide = broadcast_to(self.e, x, &shape)?;
        let shift = iota(self.e, DType::I32, &shape, self.outer.len() + axis)?;
        let shift = mul_scalar(self.e, &shift, step as f64)?;
        let moved = binary(self.e, BinaryOp::Shr, &wide, &shift)?;
        self.masked(&moved, mask)
    }

    fn masked(&mut self, x: &E::Value, mask: i64) -> Built<E> {
        binary_scalar(self.e, BinaryOp::And, x, mask as f64)
    }

    fn moved(&mut self, op: BinaryOp, x: &E::Value, bits: i64) -> Built<E> {
        binary_scalar(self.e, op, x, bits as f64)
    }

    fn float(&mut self, x: &E::Value) -> Built<E> {
        cast(self.e, x, DType::F32)
    }

    /// Bytes as signed numbers, in f32.
    fn signed(&mut self, x: &E::Value) -> Built<E> {
        let bytes = cast(self.e, x, DType::I8)?;
        self.float(&bytes)
    }

    /// One of two lists of four one after the other: `[…, 8, 1]`, in f32.
    fn eight(&mut self, first: &E::Value, second: &E::Value) -> Built<E> {
        let shape = self.shape(&[2, 4]);
        let which = iota(self.e, DType::I32, &shape, self.outer.len())?;
        let which = compare_scalar(self.e, CompareOp::Eq, &which, 0.0)?;
        let first = broadcast_to(self.e, first, &shape)?;
        let second = broadcast_to(self.e, second, &shape)?;
        let list = select(self.e, &which, &first, &second)?;
        let list = self.float(&list)?;
        let shape = self.shape(&[4, 2, 1]);
        reshape(self.e, &list, &shape)
    }

    /// Eight numbers of six bits: four in the low bits of `x`, four in `fours` and the upper bits of `x`.
    fn sixes(&mut self, x: &E::Value, fours: &E::Value) -> Built<E> {
        let low = self.masked(x, 63)?;
        let top = self.moved(BinaryOp::Shr, x, 6)?;
        let top = self.moved(BinaryOp::Shl, &top, 4)?;
        let high = binary(self.e, BinaryOp::Or, fours, &top)?;
        self.eight(&low, &high)
    }

    fn q4_k(&mut self) -> Built<E> {
        let scales = self.field(4, &[1, 4])?;
        let minima = self.field(8, &[1, 4])?;
        let rest = self.field(12, &[1, 4])?;
        let (low, high) = (self.masked(&rest, 15)?, self.moved(BinaryOp::Shr, &rest, 4)?);
        let (scales, minima) = (self.sixes(&scales, &low)?, self.sixes(&minima, &high)?);
        let (scale, least) = (self.half(0, 3)?, self.half(2, 3)?);
        let scales = mul(self.e, &scales, &scale)?;
        let minima = mul(self.e, &minima, &least)?;
        let q = self.nibbles(16, &[4], 32)?;
        let q = self.float(&q)?;
        let scaled = mul(self.e, &q, &scales)?;
        sub(self.e, &scaled, &minima)
    }

    fn q6_k(&mut self) -> Built<E> {
        let low = self.field(0, &[2, 1, 2, 32])?;
        let low = self.shifted(&low, &[2, 2, 2, 32], 1, 4, 15)?;
        let high = self.field(128, &[2, 1, 1, 32])?;
        let shape = self.shape(&[2, 4, 32]);
        let low = reshape(self.e, &low, &shape)?;
        let high = {
            let narrow = self.shape(&[2, 1, 32]);
            let high = reshape(self.e, &high, &narrow)?;
            self.shifted(&high, &[2, 4, 32], 1, 2, 3)?
        };
        let high = self.moved(BinaryOp::Shl, &high, 4)?;
        let q = binary(self.e, BinaryOp::Or, &low, &high)?;
        let q = self.float(&q)?;
        let q = sub_scalar(self.e, &q, 32.0)?;
        let shape = self.shape(&[2, 4, 2, 16]);
        let q = reshape(self.e, &q, &shape)?;
        let scales = self.field(192, &[2, 4, 2, 1])?;
        let scales = self.signed(&scales)?;
        let scale = self.half(208, 4)?;
        let scales = mul(self.e, &scales, &scale)?;
        mul(self.e, &q, &scales)
    }
}
