//! Pictures: a file comes in, what is to be seen in it goes out.
//!
//! ```text
//!  PNG, JPEG ─▶ Image ─▶ size, part, scale as the model was trained ─▶ one program a batch: ViT or ConvNet, softmax ─▶ names, likeliest first
//! ```

mod exif;
mod image;
mod labels;
mod preprocess;
mod resize;

pub use image::{Image, ImageError};
pub use preprocess::{Preprocess, Resize};
pub use resize::Filter;

use crate::config::{Fields, VitConfig};
use crate::encode::rows;
use crate::models::convnet::Family;
use crate::models::convnet::presets::VisionPreset;
use crate::models::{ConvNet, Vit};
use crate::open::suiting;
use crate::{Checkpoint, Error, Result, Weights};
use kiln::{Compiled, DType, Device, Dynamic, Options, Tensor};
use std::path::Path;
use std::sync::Arc;

/// How a [`Classifier`] is made.
#[derive(Debug, Clone)]
pub struct ClassifierOptions {
    /// Where it runs.
    pub device: Device,
    /// Dtype of weights and activations; `None` takes bf16 for checkpoints in bf16, else f32.
    pub dtype: Option<DType>,
    /// How it is compiled; `None` runs it eagerly.
    pub compile: Option<Options>,
    /// Pictures that go through the model together, at the most.
    pub batch: usize,
    /// What is done to pictures first; `None` takes what the folder says.
    pub preprocess: Option<Preprocess>,
}

impl Default for ClassifierOptions {
    /// Compiled, on the CPU, 8 pictures at once, the rest as the folder says.
    fn default() -> ClassifierOptions {
        ClassifierOptions {
            device: Device::Cpu,
            dtype: None,
            compile: Some(Options { freeze: true, ..Options::default() }),
            batch: 8,
            preprocess: None,
        }
    }
}

/// What a picture may show.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// Its number.
    pub index: usize,
    /// Its name.
    pub label: String,
    /// From 0 to 1; those of all kinds add up to 1.
    pub probability: f32,
}

/// A network that says what pictures show.
#[derive(Debug)]
pub enum PictureModel {
    /// A vision transformer.
    Vit(Vit),
    /// A convolutional network, and the name of its family.
    ConvNet(Box<ConvNet>, &'static str),
}

impl PictureModel {
    /// The model of a checkpoint and its `config.json`.
    pub fn new(config: Option<&Fields>, checkpoint: &Checkpoint, dtype: DType) -> Result<PictureModel> {
        let weights = Weights::new(checkpoint, dtype);
        let (model, name) = match Family::detect(config, checkpoint)? {
            Some(family) => {
                let net = ConvNet::new(family, config, checkpoint, &weights)?;
                (PictureModel::ConvNet(Box::new(net), family.name()), family.name())
            }
            None => (PictureModel::Vit(Vit::new(&VitConfig::detect(config, checkpoint)?, &weights)?), "vit"),
        };
        weights.all_used(name, None)?;
        Ok(model)
    }

    /// A network with random weights.
    pub fn preset(preset: &VisionPreset, dtype: DType, device: Device) -> Result<PictureModel> {
        PictureModel::new(Some(&preset.config()?), &preset.checkpoint(0, dtype, device)?, dtype)
    }

    /// The name of its family.
    pub fn name(&self) -> &'static str {
        match self {
            PictureModel::Vit(_) => "vit",
            PictureModel::ConvNet(_, name) => name,
        }
    }

    /// How much each kind is like pictures, `[pictures, 3, side, side]`: `[pictures, classes]`.
    #[track_caller]
    pub fn logits(&self, pixels: &Tensor) -> kiln::Result<Tensor> {
        match self {
            PictureModel::Vit(vit) => vit.logits(pixels),
            PictureModel::ConvNet(net, _) => net.logits(pixels),
        }
    }

    /// Kinds of pictures.
    pub fn classes(&self) -> usize {
        match self {
            PictureModel::Vit(vit) => vit.config.classes,
            PictureModel::ConvNet(net, _) => net.classes(),
        }
    }

    /// The pixels of a side, where it takes no others.
    pub fn only_side(&self) -> Option<usize> {
        match self {
            PictureModel::Vit(vit) => Some(vit.config.image_size),
            PictureModel::ConvNet(..) => None,
        }
    }

    /// The pixels of a side that it was trained with.
    pub fn side(&self) -> usize {
        match self {
            PictureModel::Vit(vit) => vit.config.image_size,
            PictureModel::ConvNet(net, _) => net.side.unwrap_or(224),
        }
    }

    /// Dtype of the weights.
    pub fn dtype(&self) -> DType {
        match self {
            PictureModel::Vit(vit) => vit.dtype(),
            PictureModel::ConvNet(net, _) => net.dtype(),
        }
    }

    /// Where the weights are.
    pub fn device(&self) -> Device {
        match self {
            PictureModel::Vit(vit) => vit.device(),
            PictureModel::ConvNet(net, _) => net.device(),
        }
    }
}

/// What timm's wrapper in transformers puts before every name.
const WRAPPED: &str = "timm_model.";

type Program = Compiled<Box<dyn Fn(&Tensor) -> kiln::Result<Tensor> + Send + Sync>, Tensor, Tensor>;

/// A model that says what pictures show.
///
/// ```
/// use kiln_llm::vision::{Classifier, ClassifierOptions, Image};
/// let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference");
/// let classifier = Classifier::open(format!("{tests}/tiny-vit"), &ClassifierOptions::default())?;
/// let classes = classifier.classify(&Image::open(format!("{tests}/images/rgb.png"))?, 3)?;
/// assert_eq!(classes.len(), 3);
/// assert!(classes[0].probability >= classes[1].probability);
/// # Ok::<(), kiln_llm::Error>(())
/// ```
pub struct Classifier {
    model: Arc<PictureModel>,
    labels: Vec<String>,
    preprocess: Preprocess,
    program: Program,
    batch: usize,
}

impl std::fmt::Debug for Classifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Classifier")
            .field("model", &self.model.name())
            .field("preprocess", &self.preprocess)
            .field("batch", &self.batch)
            .finish_non_exhaustive()
    }
}

impl Classifier {
    /// The model of a folder: the weights under transformers' or timm's names, `config.json` (timm's can do without),
    /// `preprocessor_config.json`, and the kinds' names in `config.json`, `synset_words.txt` or `labels.txt`. Nothing is
    /// compiled before the first picture.
    pub fn open(folder: impl AsRef<Path>, options: &ClassifierOptions) -> Result<Classifier> {
        let folder = folder.as_ref();
        let config = folder.join("config.json");
        let config = if config.exists() { Some(Fields::read(config)?) } else { None };
        let mut checkpoint = Checkpoint::open(folder, options.device)?;
        if checkpoint.tensors.keys().any(|name| name.starts_with(WRAPPED)) {
            let plain = |name: &str| name.strip_prefix(WRAPPED).unwrap_or(name).to_owned();
            let tensors = std::mem::take(&mut checkpoint.tensors);
            checkpoint.tensors = tensors.into_iter().map(|(name, tensor)| (plain(&name), tensor)).collect();
        }
        let dtype = options.dtype.unwrap_or_else(|| suiting(checkpoint.dtype()));
        let model = PictureModel::new(config.as_ref(), &checkpoint, dtype)?;
        let pretrained = config.as_ref().map(|fields| fields.object("pretrained_cfg")).transpose()?.flatten();
        let preprocess = match (&options.preprocess, Preprocess::read(folder)?, pretrained) {
            (Some(asked), _, _) => asked.clone(),
            (None, Some(said), _) => said,
            (None, None, Some(timm)) => Preprocess::from_timm(&timm, model.side())?,
            // What DeiT and its kin were tested with, and what most others were.
            (None, None, None) => {
                Preprocess::imagenet(model.side(), if model.only_side().is_some() { 0.9 } else { 0.875 })
            }
        };
        if let (Some(side), Some((width, height))) = (model.only_side(), preprocess.size())
            && (width, height) != (side, side)
        {
            return Err(Error::WrongPictures { width, height, side });
        }
        let labels = labels::labels(folder, config.as_ref(), model.classes())?;
        Ok(Classifier::of(model, labels, preprocess, options))
    }

    /// A network with random weights, for measurements: what it says of pictures means nothing.
    ///
    /// ```
    /// use kiln_llm::models::convnet::presets::VisionPreset;
    /// use kiln_llm::vision::{Classifier, ClassifierOptions};
    /// let preset = VisionPreset::named("mobilenet-v2").unwrap();
    /// let classifier = Classifier::preset(preset, &ClassifierOptions::default())?;
    /// assert_eq!(classifier.labels().len(), 1000);
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn preset(preset: &VisionPreset, options: &ClassifierOptions) -> Result<Classifier> {
        let model = PictureModel::preset(preset, options.dtype.unwrap_or(DType::F32), options.device)?;
        let labels = (0..model.classes()).map(|class| format!("class {class}")).collect();
        let preprocess = options.preprocess.clone().unwrap_or_else(|| Preprocess::imagenet(model.side(), 0.875));
        Ok(Classifier::of(model, labels, preprocess, options))
    }

    fn of(model: PictureModel, labels: Vec<String>, preprocess: Preprocess, options: &ClassifierOptions) -> Classifier {
        let how = match &options.compile {
            Some(how) => Options { fullgraph: true, dynamic: Dynamic::Static, ..how.clone() },
            None => Options { disable: true, ..Options::default() },
        };
        let model = Arc::new(model);
        let network = model.clone();
        let classify: Box<dyn Fn(&Tensor) -> _ + Send + Sync> =
            Box::new(move |pixels| network.logits(pixels)?.to_dtype(DType::F32)?.softmax(-1));
        let program = kiln::compile_with(classify, how);
        Classifier { model, labels, preprocess, program, batch: options.batch.max(1) }
    }

    /// The model.
    pub fn model(&self) -> &PictureModel {
        &self.model
    }

    /// What is done to pictures first.
    pub fn preprocess(&self) -> &Preprocess {
        &self.preprocess
    }

    /// Names of the kinds, by number.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Programs made so far.
    pub fn compiles(&self) -> u64 {
        self.program.stats().compiles
    }

    /// The likeliest kinds of a picture, at most `top`.
    pub fn classify(&self, image: &Image, top: usize) -> Result<Vec<Class>> {
        Ok(self.classify_all(std::slice::from_ref(image), top)?.remove(0))
    }

    /// [`Classifier::classify`] of several pictures, in their order.
    pub fn classify_all(&self, images: &[Image], top: usize) -> Result<Vec<Vec<Class>>> {
        let classes = self.labels.len();
        let mut answers = Vec::with_capacity(images.len());
        let mut rest = images;
        while !rest.is_empty() {
            let rows = rows(rest.len(), self.batch);
            let (now, later) = rest.split_at(rows.min(rest.len()));
            let pixels = self.preprocess.apply(now, self.model.device())?;
            if let Some(side) = self.model.only_side().filter(|&side| pixels.shape()[2..] != [side, side]) {
                let (width, height) = (pixels.shape()[3], pixels.shape()[2]);
                return Err(Error::WrongPictures { width, height, side });
            }
            // A batch has one of few sizes; the rows behind its pictures are black.
            let spare = rows - now.len();
            let pixels =
                if spare > 0 { pixels.pad(&[(0, 0), (0, 0), (0, 0), (0, spare as i64)], 0.0)? } else { pixels };
            let probabilities = self.program.call(&pixels)?.to_vec::<f32>()?;
            answers.extend(probabilities.chunks_exact(classes).take(now.len()).map(|row| self.likeliest(row, top)));
            rest = later;
        }
        Ok(answers)
    }

    fn likeliest(&self, probabilities: &[f32], top: usize) -> Vec<Class> {
        let mut order: Vec<usize> = (0..probabilities.len()).collect();
        order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
        let class =
            |index: usize| Class { index, label: self.labels[index].clone(), probability: probabilities[index] };
        order.into_iter().take(top).map(class).collect()
    }
}
