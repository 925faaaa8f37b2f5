//! Weights in fewer bits than they are stored in: 8-bit integers with a scale for each output, or the blocks of GGUF files.
//!
//! ```text
//!  stored tensor ─▶ parts of f32 rows ─▶ encoded on all cores ─┐
//!  seed ─▶ random::int8, random::blocks ───────────────────────┴▶ Projection::Int8, Projection::Blocks
//! ```

mod blocks;
mod int8;
pub(crate) mod random;

use crate::random::tensor;
use crate::{Error, Result};
use kiln::runtime::{Buffer, HostMemory};
use kiln::{BlockFormat, DType, Device, Element, Tensor};
use std::fmt::{Display, Formatter};
use std::panic::resume_unwind;
use std::str::FromStr;

/// The format in which the weights of linear layers are held.
///
/// ```
/// use kiln_llm::WeightFormat;
/// assert_eq!("q4_k_m".parse(), Ok(WeightFormat::Q4_K_M));
/// assert_eq!(WeightFormat::default().to_string(), "as-stored");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(non_camel_case_types, reason = "the names that everyone knows them by")]
pub enum WeightFormat {
    /// As the file has them; random weights are floats of the model's dtype.
    #[default]
    AsStored,
    /// 8-bit integers with a scale for each output, the head included. Embeddings stay floats.
    Int8,
    /// Blocks of 32 integers of 8 bits with a scale, embeddings included.
    Q8_0,
    /// llama.cpp's mixture of q4_k and q6_k blocks, embeddings included.
    Q4_K_M,
}

/// A text that is no [`WeightFormat`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there are as-stored, int8, q8_0 and q4_k_m")]
pub struct UnknownWeightFormat;

impl WeightFormat {
    /// Every format.
    pub const ALL: [WeightFormat; 4] =
        [WeightFormat::AsStored, WeightFormat::Int8, WeightFormat::Q8_0, WeightFormat::Q4_K_M];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            WeightFormat::AsStored => "as-stored",
            WeightFormat::Int8 => "int8",
            WeightFormat::Q8_0 => "q8_0",
            WeightFormat::Q4_K_M => "q4_k_m",
        }
    }

    /// The blocks for a matrix of rows of a width. A width that is not made of whole blocks takes the next larger format of
    /// shorter blocks, as llama.cpp does; `None` leaves the matrix as it is stored.
    pub(crate) fn blocks(self, place: Place, width: usize) -> Option<BlockFormat> {
        let wanted = match self {
            WeightFormat::AsStored | WeightFormat::Int8 => return None,
            WeightFormat::Q8_0 => BlockFormat::Q8_0,
            WeightFormat::Q4_K_M if place.more_bits() => BlockFormat::Q6_K,
            WeightFormat::Q4_K_M => BlockFormat::Q4_K,
        };
        let shorter = if wanted == BlockFormat::Q4_K { BlockFormat::Q5_0 } else { BlockFormat::Q8_0 };
        [wanted, shorter].into_iter().find(|format| format.row_bytes(width).is_some())
    }
}

impl Display for WeightFormat {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WeightFormat {
    type Err = UnknownWeightFormat;
    fn from_str(text: &str) -> std::result::Result<WeightFormat, UnknownWeightFormat> {
        WeightFormat::ALL.into_iter().find(|format| format.name() == text).ok_or(UnknownWeightFormat)
    }
}

/// Where in a model a matrix is, as far as mixtures of formats ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// It makes the logits.
    Head,
    /// It makes values of attention, alone or with queries and keys, or leads back from the inner width of a feed-forward
    /// part: of a layer, of so many.
    Sensitive(usize, usize),
    /// Anything else.
    Other,
}

/// The names of matrices that are [`Place::Sensitive`].
const SENSITIVE: [&str; 7] =
    [".v_proj", ".qkv_proj", ".query_key_value", ".c_attn", ".down_proj", ".dense_4h_to_h", ".mlp.c_proj"];

impl Place {
    /// The place of a layer's matrix by its whole name; one outside of layers is a head.
    pub(crate) fn of(name: &str, layer: Option<(usize, usize)>) -> Place {
        match layer {
            None => Place::Head,
            Some((layer, of)) if SENSITIVE.iter().any(|last| name.ends_with(last)) => Place::Sensitive(layer, of),
            Some(_) => Place::Other,
        }
    }

    /// Whether llama.cpp's mixtures of medium size give it more bits: in the first and the last eighth of the layers and in
    /// every third between them (`use_more_bits`).
    fn more_bits(self) -> bool {
        match self {
            Place::Head => true,
            Place::Sensitive(layer, of) => layer < of / 8 || layer >= 7 * of / 8 || (layer - of / 8) % 3 == 2,
            Place::Other => false,
        }
    }
}

/// Elements that are held in f32 at a time.
const PART: usize = 4 << 20;

/// A matrix as 8-bit integers, and the scale of each row in a dtype.
pub(crate) fn to_int8(name: &str, matrix: &Tensor, dtype: DType, device: Device) -> Result<(Tensor, Tensor)> {
    let &[rows, width] = matrix.shape() else { return Err(no_matrix(name, matrix)) };
    let mut scales = Vec::with_capacity(rows);
    let parts = Parts { name, matrix, format: WeightFormat::Int8, most: int8::most(dtype) };
    let buffer = parts.encode(width, |part, share| {
        let mut q = vec![0i8; part.len()];
        let start = scales.len();
        scales.resize(start + part.len() / width, 0f32);
        let pieces = part.chunks(share * width).zip(q.chunks_mut(share * width));
        each(pieces.zip(scales[start..].chunks_mut(share)), |((x, q), scales)| {
            let rows = x.chunks_exact(width).zip(q.chunks_exact_mut(width));
            rows.zip(scales).for_each(|((x, q), scale)| *scale = int8::encode(x, q, dtype));
        });
        i8::as_bytes(&q).to_vec()
    })?;
    let scales = Tensor::from_vec(scales, [rows], Device::Cpu)?.to_dtype(dtype)?.to_device(device)?;
    Ok((tensor(buffer, &[rows, width], DType::I8, device)?, scales))
}

/// A matrix as quantised blocks, `[rows, bytes]`. Its rows have to be made of whole blocks.
pub(crate) fn to_blocks(
    name: &str,
    matrix: &Tensor,
    blocks: BlockFormat,
    format: WeightFormat,
    device: Device,
) -> Result<Tensor> {
    let &[rows, width] = matrix.shape() else { return Err(no_matrix(name, matrix)) };
    let bytes = blocks.row_bytes(width).ok_or_else(|| no_matrix(name, matrix))?;
    let parts = Parts { name, matrix, format, most: half::f16::MAX.to_f32() };
    let buffer = parts.encode(bytes, |part, share| {
        let mut out = vec![0u8; part.len() / width * bytes];
        let pieces = part.chunks(share * width).zip(out.chunks_mut(share * bytes));
        each(pieces, |(x, out)| blocks::encode(blocks, x, out));
        out
    })?;
    tensor(buffer, &[rows, bytes], DType::U8, device)
}

fn no_matrix(name: &str, tensor: &Tensor) -> Error {
    Error::WrongShape { name: name.into(), expected: vec![0, 0], got: tensor.shape().to_vec() }
}

/// A matrix that is encoded some rows at a time.
struct Parts<'a> {
    name: &'a str,
    matrix: &'a Tensor,
    format: WeightFormat,
    /// The largest magnitude that the format has a place for.
    most: f32,
}

impl Parts<'_> {
    /// The bytes of all rows, so many a row: `encode` makes those of some rows in f32, of which each thread is to take a
    /// given number.
    fn encode(&self, bytes_per_row: usize, mut encode: impl FnMut(&[f32], usize) -> Vec<u8>) -> Result<Buffer> {
        let (rows, width) = (self.matrix.shape()[0], self.matrix.shape()[1].max(1));
        let memory = |cause: kiln::runtime::Error| Error::Memory { cause: Box::new(cause) };
        let buffer = HostMemory::allocate(rows.saturating_mul(bytes_per_row)).map_err(memory)?;
        let step = (PART / width).max(1);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        for start in (0..rows).step_by(step) {
            let count = step.min(rows - start);
            let part = self.matrix.narrow(0, start, count)?.to_dtype(DType::F32)?.to_vec::<f32>()?;
            if let Some(&value) = part.iter().find(|x| x.is_nan() || x.abs() > self.most) {
                return Err(Error::NotQuantizable { name: self.name.into(), value, format: self.format });
            }
            let encoded = encode(&part, count.div_ceil(threads).max(1));
            buffer.write_from_host(start * bytes_per_row, &encoded).map_err(memory)?;
        }
        Ok(buffer)
    }
}

/// Does pieces of work at once, each on a thread of its own.
fn each<P: Send>(pieces: impl Iterator<Item = P>, work: impl Fn(P) + Sync) {
    std::thread::scope(|scope| {
        let work = &work;
        let others: Vec<_> = pieces.map(|piece| scope.spawn(move || work(piece))).collect();
        for other in others {
            other.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
}

#[cfg(test)]
mod tests;
