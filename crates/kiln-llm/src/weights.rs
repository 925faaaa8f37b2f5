//! Loads the weights of a model's modules from a checkpoint, or draws them at random.

use crate::layers::{Projection, ShortEmbedding, TokenEmbedding};
use crate::models::{Facts, Sizes};
use crate::quantize::{self, Place};
use crate::{Checkpoint, Error, Result, WeightFormat};
use kiln::nn::{Embedding, Int8Linear, LayerNorm, Linear, QuantizedEmbedding, QuantizedLinear, RmsNorm};
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
    format: WeightFormat,
    /// The number of the layer that the prefix is of, and how many there are.
    layer: Option<(usize, usize)>,
    /// The token embedding under its name, shared by all parts.
    table: Rc<RefCell<Option<(String, Tensor)>>>,
    progress: Option<OnProgress>,
    loaded: Rc<Cell<(usize, usize)>>,
    kept: Option<Kept>,
    /// Projections have a bias wherever the checkpoint has one.
    stored_biases: bool,
    /// Matrices of projections are stored with their inputs first.
    inputs_first: bool,
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
            format: WeightFormat::AsStored,
            layer: None,
            table: Rc::default(),
            progress: None,
            loaded: Rc::default(),
            kept: None,
            stored_biases: false,
            inputs_first: false,
            taken: Rc::default(),
        }
    }

    /// Sets a callback for progress.
    pub fn with_progress(self, progress: Option<OnProgress>) -> Weights<'a> {
        Weights { progress, ..self }
    }

    /// Sets the format of the weights of linear layers, and the device that all weights are copied to. A checkpoint on the
    /// CPU is quantised there, a tensor at a time.
    pub fn with_format(self, format: WeightFormat, device: Device) -> Weights<'a> {
        Weights { format, device, ..self }
    }

    /// The same, keeping all that is taken.
    pub(crate) fn keeping(self, kept: Kept) -> Weights<'a> {
        Weights { kept: Some(kept), ..self }
    }

    /// Returns the weights whose names begin with `name` and a dot.
    pub fn under(&self, name: impl Display) -> Weights<'a> {
        Weights { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// Returns the weights of one of the layers that are called `name`, of so many.
    pub fn layer(&self, name: &str, layer: usize, of: usize) -> Weights<'a> {
        Weights { layer: Some((layer, of)), ..self.under(name).under(layer) }
    }

    /// Sets whether every projection gets the bias that the checkpoint has for it, even where none is expected.
    pub fn with_stored_biases(self, stored_biases: bool) -> Weights<'a> {
        Weights { stored_biases, ..self }
    }

    /// The same, with matrices of projections that are stored with their inputs first. Only quantised ones are turned.
    pub(crate) fn with_inputs_first(self) -> Weights<'a> {
        Weights { inputs_first: true, ..self }
    }

    /// Whether a projection of a name and a number of inputs will be quantised.
    pub(crate) fn quantizes(&self, name: &str, input: usize) -> bool {
        self.format == WeightFormat::Int8 || self.format.blocks(self.place(name), input).is_some()
    }

    /// Where in the model a projection is.
    fn place(&self, name: &str) -> Place {
        Place::of(&format!("{}{name}", self.prefix), self.layer)
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
            Source::Checkpoint(checkpoint) => match self.find(checkpoint, &name, shape)? {
                (tensor, Some(format)) => tensor.dequantize(format)?.to_dtype(dtype)?,
                (tensor, None) => tensor.to_dtype(dtype)?,
            }
            .to_device(self.device)?,
            Source::Random { seed } => match like {
                Like::Ones => Tensor::ones(shape, dtype, self.device)?,
                Like::Zeros => Tensor::zeros(shape, dtype, self.device)?,
                Like::Normal => crate::random::normal(own_seed(seed, &name), DEVIATION, shape, dtype, self.device)?,
            },
        };
        self.tell(&value);
        if let Some(kept) = &self.kept {
            kept.borrow_mut().insert(name.clone(), value.clone());
        }
        Ok(Var::named(&name, &value))
    }

    /// A tensor of a checkpoint by its whole name: floats of a shape, or blocks that stand for them.
    fn find(
        &self,
        checkpoint: &'a Checkpoint,
        name: &str,
        shape: &[usize],
    ) -> Result<(&'a Tensor, Option<BlockFormat>)> {
        let tensor = checkpoint.tensors.get(name).ok_or_else(|| Error::MissingTensor { name: name.into() })?;
        let format = checkpoint.formats.get(name).copied();
        let got = elements_of(tensor.shape(), format);
        if got != shape {
            return Err(Error::WrongShape { name: name.into(), expected: shape.to_vec(), got });
        }
        self.taken.borrow_mut().insert(name.into());
        // Integers would be taken for the numbers that they stand for only with their scales.
        if format.is_none() && !tensor.dtype().is_float() {
            return Err(Error::WrongDType { name: name.into(), got: tensor.dtype() });
        }
        Ok((tensor, format))
    }

    /// A matrix of a checkpoint, `[rows, width]`, by its whole name.
    fn matrix(&self, checkpoint: &'a Checkpoint, name: &str, [rows, width]: [usize; 2]) -> Result<Tensor> {
        Ok(match self.inputs_first {
            true => self.find(checkpoint, name, &[width, rows])?.0.transpose(0, 1)?,
            false => self.find(checkpoint, name, &[rows, width])?.0.clone(),
        })
    }

    /// One matrix as quantised blocks of the requested format; `None` where it stays as it is stored.
    fn requested_blocks(
        &self,
        place: Place,
        name: &str,
        [rows, width]: [usize; 2],
    ) -> Result<Option<(Var, BlockFormat)>> {
        let Some(format) = self.format.blocks(place, width) else { return Ok(None) };
        let name = format!("{}{name}", self.prefix);
        let blocks = match self.source {
            Source::Checkpoint(checkpoint) => quantize::to_blocks(
                &name,
                &self.matrix(checkpoint, &name, [rows, width])?,
                format,
                self.format,
                self.device,
            )?,
            Source::Random { seed } => {
                quantize::random::blocks(own_seed(seed, &name), DEVIATION, format, [rows, width], self.device)?
            }
        };
        self.tell(&blocks);
        Ok(Some((Var::named(&name, &blocks), format)))
    }

    /// One matrix as 8-bit integers with their scales.
    fn int8(&self, name: &str, [rows, width]: [usize; 2], bias: Option<Var>) -> Result<Projection> {
        let name = format!("{}{name}", self.prefix);
        let (weight, scale) = match self.source {
            Source::Checkpoint(checkpoint) => {
                quantize::to_int8(&name, &self.matrix(checkpoint, &name, [rows, width])?, self.dtype, self.device)?
            }
            Source::Random { seed } => {
                quantize::random::int8(own_seed(seed, &name), DEVIATION, [rows, width], self.dtype, self.device)?
            }
        };
        Ok(self.int8_of(&name, (weight, scale), bias))
    }

    /// The layer of 8-bit integers and their scales.
    fn int8_of(&self, name: &str, (weight, scale): (Tensor, Tensor), bias: Option<Var>) -> Projection {
        self.tell(&weight);
        let scale = Var::named(&format!("{name}.scale"), &scale);
        Projection::Int8(Int8Linear { weight: Var::named(name, &weight), scale, bias })
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
        let bias = if bias { Some(weights.take("bias", &[output], Like::Zeros)?) } else { None };
        if let Some((blocks, format)) = weights.blocks("weight", &[output, input])? {
            return Ok(Projection::Blocks(QuantizedLinear { blocks, format, bias }));
        }
        if self.format == WeightFormat::Int8 {
            return weights.int8("weight", [output, input], bias);
        }
        if let Some((blocks, format)) = weights.requested_blocks(self.place(name), "weight", [output, input])? {
            return Ok(Projection::Blocks(QuantizedLinear { blocks, format, bias }));
        }
        Ok(Projection::Dense(Linear { weight: weights.factor("weight", &[output, input])?, bias }))
    }

    /// Makes the layer that computes the logits; `None` where the embedding is tied and makes them itself. 8-bit integers
    /// are a copy of the tied embedding, which stays floats.
    pub fn head(&self, name: &str, width: usize, vocabulary: usize, tied: bool) -> Result<Option<Projection>> {
        if tied {
            return match &*self.table.borrow() {
                Some((name, table)) if self.format == WeightFormat::Int8 => {
                    let parts = quantize::to_int8(name, table, self.dtype, self.device)?;
                    Ok(Some(self.int8_of(&format!("{name}.int8"), parts, None)))
                }
                _ => Ok(None),
            };
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

    /// Makes the token embedding, in whatever format it is stored or requested in; one that is `tied` makes the logits too.
    pub fn token_embedding(&self, name: &str, rows: usize, width: usize, tied: bool) -> Result<TokenEmbedding> {
        let weights = self.under(name);
        let place = if tied { Place::Head } else { Place::Other };
        let blocks = match weights.blocks("weight", &[rows, width])? {
            None => weights.requested_blocks(place, "weight", [rows, width])?,
            stored => stored,
        };
        if let Some((blocks, format)) = blocks {
            return Ok(TokenEmbedding::Blocks(QuantizedEmbedding { blocks, format, dtype: self.dtype }));
        }
        let weight = weights.factor("weight", &[rows, width])?;
        *self.table.borrow_mut() = Some((format!("{}weight", weights.prefix), weight.get()));
        Ok(match weight.dtype() == self.dtype {
            true => TokenEmbedding::Dense(Embedding { weight }),
            false => TokenEmbedding::Short(ShortEmbedding { weight, dtype: self.dtype }),
        })
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

/// The seed of one tensor. FNV-1a: the same on every machine and in every version.
fn own_seed(seed: u64, name: &str) -> u64 {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(seed ^ 0xcbf2_9ce4_8422_2325, hash)
}

/// The shape of the elements that a tensor stands for.
fn elements_of(shape: &[usize], format: Option<BlockFormat>) -> Vec<usize> {
    let mut shape = shape.to_vec();
    if let (Some(format), Some(last)) = (format, shape.last_mut()) {
        *last = *last / format.bytes() * format.elements();
    }
    shape
}
