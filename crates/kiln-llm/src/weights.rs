//! Loads the weights of a model's modules from a checkpoint, or draws them at random.

use crate::layers::{Projection, ShortEmbedding, TokenEmbedding};
use crate::models::{Facts, Sizes};
use crate::{Checkpoint, Error, Result};
use kiln::nn::{Embedding, LayerNorm, Linear, QuantizedEmbedding, QuantizedLinear, RmsNorm};
use kiln::{BlockFormat, DType, Device, Tensor, Var};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Display, Formatter};
use std::rc::Rc;
use std::sync::Arc;

/// The progress of loading a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Tensors loaded so far.
    pub tensors: usize,
    /// The number of tensors; unknown where weights are random.
    pub of: Option<usize>,
    /// Bytes loaded so far.
    pub bytes: usize,
}

/// Called after each tensor.
pub type OnProgress = Arc<dyn Fn(Progress) + Send + Sync>;

/// Weights under a prefix, in one dtype and with checked shapes.
#[derive(Clone)]
pub struct Weights<'a> {
    source: Source<'a>,
    prefix: String,
    dtype: DType,
    device: Device,
    progress: Option<OnProgress>,
    loaded: Rc<Cell<(usize, usize)>>,
    kept: Option<Kept>,
    /// Projections have a bias wherever the checkpoint has one.
    stored_biases: bool,
    /// The names of all that was taken, shared by all parts.
    taken: Rc<RefCell<BTreeSet<String>>>,
}

/// Every tensor that was taken, by its name.
pub(crate) type Kept = Rc<RefCell<BTreeMap<String, Tensor>>>;

#[derive(Debug, Clone, Copy)]
enum Source<'a> {
    Checkpoint(&'a Checkpoint),
    Random { seed: u64 },
}

/// What random weights are like.
#[derive(Clone, Copy)]
enum Like {
    Normal,
    Ones,
    Zeros,
}

/// The deviation that transformers gives new weights.
const DEVIATION: f64 = 0.02;

impl Debug for Weights<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Weights").field("prefix", &self.prefix).field("dtype", &self.dtype).finish_non_exhaustive()
    }
}

impl<'a> Weights<'a> {
    /// Makes the weights of a checkpoint. Tensors of another float dtype are converted, the others stay mapped.
    pub fn new(checkpoint: &'a Checkpoint, dtype: DType) -> Weights<'a> {
        let device = checkpoint.tensors.values().next().map_or(Device::Cpu, Tensor::device);
        Weights::from_source(Source::Checkpoint(checkpoint), dtype, device)
    }

    /// Makes random weights: projections and embeddings are normally distributed, norms 1, biases 0. A tensor depends only
    /// on the seed and its name.
    pub fn random(seed: u64, dtype: DType, device: Device) -> Weights<'static> {
        Weights::from_source(Source::Random { seed }, dtype, device)
    }

    fn from_source(source: Source<'_>, dtype: DType, device: Device) -> Weights<'_> {
        Weights {
            source,
            prefix: String::new(),
            dtype,
            device,
            progress: None,
            loaded: Rc::default(),
            kept: None,
            stored_biases: false,
            taken: Rc::default(),
        }
    }

    /// Sets a callback for progress.
    pub fn with_progress(self, progress: Option<OnProgress>) -> Weights<'a> {
        Weights { progress, ..self }
    }

    /// The same, keeping all that is taken.
    pub(crate) fn keeping(self, kept: Kept) -> Weights<'a> {
        Weights { kept: Some(kept), ..self }
    }

    /// Returns the weights whose names begin with `name` and a dot.
    pub fn under(&self, name: impl Display) -> Weights<'a> {
        Weights { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// Sets whether every projection gets the bias that the checkpoint has for it, even where none is expected.
    pub fn with_stored_biases(self, stored_biases: bool) -> Weights<'a> {
        Weights { stored_biases, ..self }
    }

    /// Returns the dtype of the weights.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the device of the weights.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns whether a checkpoint has a tensor; random weights have all.
    pub fn has(&self, name: &str) -> bool {
        match self.source {
            Source::Checkpoint(checkpoint) => checkpoint.tensors.contains_key(&format!("{}{name}", self.prefix)),
            Source::Random { .. } => true,
        }
    }

    /// Returns whether a checkpoint has a tensor; random weights have none.
    pub fn stores(&self, name: &str) -> bool {
        self.stored(name).is_some()
    }

    /// A tensor of the checkpoint as it is.
    pub(crate) fn stored(&self, name: &str) -> Option<&'a Tensor> {
        match self.source {
            Source::Checkpoint(checkpoint) => checkpoint.tensors.get(&format!("{}{name}", self.prefix)),
            Source::Random { .. } => None,
        }
    }

    /// The names of what was taken, of whatever part.
    pub(crate) fn taken_names(&self) -> Vec<String> {
        self.taken.borrow().iter().cloned().collect()
    }

    /// Returns the names of the checkpoint's tensors that no module has taken.
    pub fn untaken(&self) -> Vec<String> {
        let Source::Checkpoint(checkpoint) = self.source else { return Vec::new() };
        let taken = self.taken.borrow();
        checkpoint.tensors.keys().filter(|name| !taken.contains(*name)).cloned().collect()
    }

    /// Returns one tensor as a variable.
    pub fn var(&self, name: &str, shape: &[usize]) -> Result<Var> {
        self.take(name, shape, Like::Normal)
    }

    /// Returns one tensor as a variable, which is 0 where weights are random: a bias, or an offset from 1.
    pub fn zeros(&self, name: &str, shape: &[usize]) -> Result<Var> {
        self.take(name, shape, Like::Zeros)
    }

    fn take(&self, name: &str, shape: &[usize], like: Like) -> Result<Var> {
        self.take_in(name, shape, like, self.dtype)
    }

    /// Returns one weight of a product. In a model in f32, weights stored in shorter floats keep the format of the file:
    /// the product widens them as it reads them, which is exact.
    fn factor(&self, name: &str, shape: &[usize]) -> Result<Var> {
        let short = self.stored(name).map(Tensor::dtype).filter(|dtype| matches!(dtype, DType::F16 | DType::Bf16));
        let dtype = short.filter(|_| self.dtype == DType::F32).unwrap_or(self.dtype);
        self.take_in(name, shape, Like::Normal, dtype)
    }

    fn take_in(&self, name: &str, shape: &[usize], like: Like, dtype: DType) -> Result<Var> {
        let name = format!("{}{name}", self.prefix);
        let value = match self.source {
            Source::Checkpoint(checkpoint) => {
                let Some(tensor) = checkpoint.tensors.get(&name) else { return Err(Error::MissingTensor { name }) };
                let format = checkpoint.formats.get(&name).copied();
                let got = elements_of(tensor.shape(), format);
                if got != shape {
                    return Err(Error::WrongShape { name, expected: shape.to_vec(), got });
                }
                self.taken.borrow_mut().insert(name.clone());
                match format {
                    // Integers would be taken for the numbers that they stand for only with their scales.
                    None if !tensor.dtype().is_float() => {
                        return Err(Error::WrongDType { name, got: tensor.dtype() });
                    }
                    Some(format) => tensor.dequantize(format)?.to_dtype(dtype)?,
                    None => tensor.to_dtype(dtype)?,
                }
            }
            Source::Random { seed } => match like {
                Like::Ones => Tensor::ones(shape, dtype, self.device)?,
                Like::Zeros => Tensor::zeros(shape, dtype, self.device)?,
                Like::Normal => {
                    // FNV-1a: the same on every machine and in every version.
                    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
                    let own = name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, hash);
                    crate::random::normal(own, DEVIATION, shape, dtype, self.device)?
                }
            },
        };
        self.tell(&value);
        if let Some(kept) = &self.kept {
            kept.borrow_mut().insert(name.clone(), value.clone());
        }
        Ok(Var::named(&name, &value))
    }

    /// A tensor of quantised blocks as it is; `None` for plain numbers.
    fn blocks(&self, name: &str, shape: &[usize]) -> Result<Option<(Var, BlockFormat)>> {
        let name = format!("{}{name}", self.prefix);
        let Source::Checkpoint(checkpoint) = self.source else { return Ok(None) };
        let (Some(tensor), Some(&format)) = (checkpoint.tensors.get(&name), checkpoint.formats.get(&name)) else {
            return Ok(None);
        };
        let got = elements_of(tensor.shape(), Some(format));
        if got != shape {
            return Err(Error::WrongShape { name, expected: shape.to_vec(), got });
        }
        self.taken.borrow_mut().insert(name.clone());
        self.tell(tensor);
        Ok(Some((Var::named(&name, tensor), format)))
    }

    fn tell(&self, tensor: &Tensor) {
        let Some(progress) = &self.progress else { return };
        let (tensors, bytes) = self.loaded.get();
        let bytes = bytes + tensor.dtype().bytes_for(tensor.elements()).unwrap_or(0);
        self.loaded.set((tensors + 1, bytes));
        let of = match self.source {
            Source::Checkpoint(checkpoint) => Some(checkpoint.tensors.len()),
            Source::Random { .. } => None,
        };
        progress(Progress { tensors: tensors + 1, of, bytes });
    }

    /// Makes a linear layer of plain floats.
    pub fn linear(&self, name: &str, input: usize, output: usize, bias: bool) -> Result<Linear> {
        let weights = self.under(name);
        let bias = if bias { Some(weights.take("bias", &[output], Like::Zeros)?) } else { None };
        Ok(Linear { weight: weights.var("weight", &[output, input])?, bias })
    }

    /// Makes a linear layer, with weights in whatever format they are stored.
    pub fn projection(&self, name: &str, input: usize, output: usize, bias: bool) -> Result<Projection> {
        let weights = self.under(name);
        let bias = bias || self.stored_biases && weights.stores("bias");
        let Some((blocks, format)) = weights.blocks("weight", &[output, input])? else {
            let bias = if bias { Some(weights.take("bias", &[output], Like::Zeros)?) } else { None };
            return Ok(Projection::Dense(Linear { weight: weights.factor("weight", &[output, input])?, bias }));
        };
        let bias = if bias { Some(weights.take("bias", &[output], Like::Zeros)?) } else { None };
        Ok(Projection::Blocks(QuantizedLinear { blocks, format, bias }))
    }

    /// Makes the layer that computes the logits; `None` where the embedding is tied.
    pub fn head(&self, name: &str, width: usize, vocabulary: usize, tied: bool) -> Result<Option<Projection>> {
        if tied {
            return Ok(None);
        }
        match self.has(&format!("{name}.weight")) {
            true => self.projection(name, width, vocabulary, false).map(Some),
            false => Err(Error::NoHead { name: format!("{}{name}.weight", self.prefix) }),
        }
    }

    /// Returns the facts of a model of these sizes with these weights.
    pub fn facts(&self, sizes: Sizes) -> Facts {
        Facts { sizes, dtype: self.dtype, device: self.device }
    }

    /// Makes an embedding of plain floats.
    pub fn embedding(&self, name: &str, rows: usize, width: usize) -> Result<Embedding> {
        Ok(Embedding { weight: self.under(name).var("weight", &[rows, width])? })
    }

    /// Makes the token embedding, in whatever format it is stored.
    pub fn token_embedding(&self, name: &str, rows: usize, width: usize) -> Result<TokenEmbedding> {
        let Some((blocks, format)) = self.under(name).blocks("weight", &[rows, width])? else {
            let weight = self.under(name).factor("weight", &[rows, width])?;
            return Ok(match weight.dtype() == self.dtype {
                true => TokenEmbedding::Dense(Embedding { weight }),
                false => TokenEmbedding::Short(ShortEmbedding { weight, dtype: self.dtype }),
            });
        };
        Ok(TokenEmbedding::Blocks(QuantizedEmbedding { blocks, format, dtype: self.dtype }))
    }

    /// Makes an RMS norm.
    pub fn rms_norm(&self, name: &str, width: usize, epsilon: f64) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: self.under(name).take("weight", &[width], Like::Ones)?, epsilon })
    }

    /// Makes a layer norm with a weight and a bias.
    pub fn layer_norm(&self, name: &str, width: usize, epsilon: f64) -> Result<LayerNorm> {
        let weights = self.under(name);
        let (weight, bias) =
            (weights.take("weight", &[width], Like::Ones)?, weights.take("bias", &[width], Like::Zeros)?);
        Ok(LayerNorm { weight: Some(weight), bias: Some(bias), axes: 1, epsilon })
    }
}

/// The shape of the elements that a tensor stands for.
fn elements_of(shape: &[usize], format: Option<BlockFormat>) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let (Some(format), Some(last)) = (format, shape.last_mut()) {
        *last = *last / format.bytes() * format.elements();
    }
    shape
}
