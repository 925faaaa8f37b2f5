//! Pictures: a file comes in, what is to be seen in it goes out.
//!
//! ```text
//!  PNG, JPEG ─▶ Image ─▶ size, part, scale as the model was trained ─▶ one program a batch: ViT, softmax ─▶ names, likeliest first
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
use crate::models::Vit;
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
    model: Arc<Vit>,
    labels: Vec<String>,
    preprocess: Preprocess,
    program: Program,
    batch: usize,
}

impl std::fmt::Debug for Classifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Classifier")
            .field("config", &self.model.config)
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
        let checkpoint = Checkpoint::open(folder, options.device)?;
        let dtype = options.dtype.unwrap_or_else(|| suiting(checkpoint.dtype()));
        let sizes = VitConfig::detect(config.as_ref(), &checkpoint)?;
        let pretrained = config.as_ref().map(|fields| fields.object("pretrained_cfg")).transpose()?.flatten();
        let preprocess = match (&options.preprocess, Preprocess::read(folder)?, pretrained) {
            (Some(asked), _, _) => asked.clone(),
            (None, Some(said), _) => said,
            (None, None, Some(timm)) => Preprocess::from_timm(&timm, sizes.image_size)?,
            // What DeiT and its kin were tested with.
            (None, None, None) => Preprocess::imagenet(sizes.image_size, 0.9),
        };
        let side = sizes.image_size;
        if let Some((width, height)) = preprocess.size().filter(|&size| size != (side, side)) {
            return Err(Error::WrongPictures { width, height, side });
        }
        let labels = labels::labels(folder, config.as_ref(), sizes.classes)?;
        let weights = Weights::new(&checkpoint, dtype);
        let model = Arc::new(Vit::new(&sizes, &weights)?);
        weights.all_used("vit", None)?;
        let how = match &options.compile {
            Some(how) => Options { fullgraph: true, dynamic: Dynamic::Static, ..how.clone() },
            None => Options { disable: true, ..Options::default() },
        };
        let vit = model.clone();
        let classify: Box<dyn Fn(&Tensor) -> _ + Send + Sync> =
            Box::new(move |pixels| vit.logits(pixels)?.to_dtype(DType::F32)?.softmax(-1));
        let program = kiln::compile_with(classify, how);
        Ok(Classifier { model, labels, preprocess, program, batch: options.batch.max(1) })
    }

    /// The model.
    pub fn model(&self) -> &Vit {
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
            let side = self.model.config.image_size;
            if pixels.shape()[2..] != [side, side] {
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
