//! Opens a model by name: a folder, a GGUF file, or a preset, with its tokenizer and settings.

use crate::config::Fields;
use crate::hub;
use crate::models::{self, CausalLm};
use crate::presets::{PRESETS, Preset};
use crate::{
    ChatTemplate, Checkpoint, Conversation, Engine, EngineOptions, Error, GenerationConfig, Generator,
    GeneratorOptions, Gguf, Message, OnProgress, Request, Result, Tokenizer, WeightFormat, Weights,
};
use kiln::runtime::HostMemory;
use kiln::{DType, Device};
use std::fmt::{Debug, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of [`open`].
#[derive(Clone)]
pub struct OpenOptions {
    /// The device it runs on.
    pub device: Device,
    /// The dtype of weights and activations. The default is f32, or bf16 for weights stored in bf16.
    pub dtype: Option<DType>,
    /// How many of the first layers to load; more than there are is an error.
    pub layers: Option<usize>,
    /// The format of the weights of linear layers. One other than the stored one is an error for GGUF files.
    pub weights: WeightFormat,
    /// The seed of a preset's weights.
    pub seed: u64,
    /// Called while weights are loaded.
    pub progress: Option<OnProgress>,
}

impl Default for OpenOptions {
    /// The whole model on the CPU, in the dtype that suits it.
    fn default() -> OpenOptions {
        OpenOptions {
            device: Device::Cpu,
            dtype: None,
            layers: None,
            weights: WeightFormat::AsStored,
            seed: 0,
            progress: None,
        }
    }
}

impl Debug for OpenOptions {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("device", &self.device)
            .field("dtype", &self.dtype)
            .field("layers", &self.layers)
            .field("weights", &self.weights)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// Where a model came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A folder.
    Folder,
    /// A GGUF file.
    Gguf,
    /// A preset with random weights.
    Preset,
    /// The executable itself.
    Embedded,
}

/// A model with its tokenizer, chat template and settings.
#[derive(Debug)]
pub struct Opened {
    /// The name of the folder or file without path and extension, or of the preset.
    pub name: String,
    /// The model.
    pub model: Arc<dyn CausalLm>,
    /// The tokenizer; presets have none.
    pub tokenizer: Option<Arc<Tokenizer>>,
    /// The chat template.
    pub chat: Option<ChatTemplate>,
    /// The recommended generation settings.
    pub generation: GenerationConfig,
    /// The tokens that end a text.
    pub stop_tokens: Vec<u32>,
    /// Dtype of weights and activations.
    pub dtype: DType,
    /// Where the model came from.
    pub origin: Origin,
}

/// Opens a folder in Hugging Face's layout, a GGUF file, a preset with random weights, or a model of Hugging Face's hub by
/// its id (`owner/name`) that another program has downloaded.
pub fn open(model: &str, options: &OpenOptions) -> Result<Opened> {
    let path = Path::new(model);
    let opened = match Preset::named(model) {
        Some(preset) if !path.exists() => open_preset(preset, options),
        _ => locate(model).and_then(|path| match path.is_dir() {
            true => open_folder(&path, options, model),
            false => open_gguf(&path, options),
        }),
    };
    // Vocabularies take several times their size while they are parsed.
    HostMemory::return_freed();
    opened
}

/// Returns the folder or file of a model: a path, or the id of a model downloaded from Hugging Face's hub.
pub fn locate(model: &str) -> Result<PathBuf> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(path.to_owned());
    }
    if let Some(folder) = hub::downloaded(model) {
        return Ok(folder);
    }
    if hub::is_owned_id(model) {
        return Err(Error::NotDownloaded { id: model.into(), cache: hub::cache() });
    }
    let presets = PRESETS.iter().map(|preset| preset.name).collect();
    Err(Error::UnknownModel { name: model.into(), nearest: Preset::nearest(model), presets })
}

/// Settings and weights of [`embedded`], by their file names.
pub const EMBEDDED_FILES: [(&str, &[u8]); 2] = [
    ("config.json", include_bytes!("../models/stories260K/config.json")),
    ("model.safetensors", include_bytes!("../models/stories260K/model.safetensors")),
];

/// Opens stories260K, which is embedded in the executable: it writes short stories for children.
///
/// ```
/// let opened = kiln_llm::embedded()?;
/// assert_eq!(opened.model.sizes().layers, 5);
/// # Ok::<(), kiln_llm::Error>(())
/// ```
pub fn embedded() -> Result<Opened> {
    embedded_on(Device::Cpu, WeightFormat::AsStored)
}

/// Like [`embedded`], on a device and with the weights of linear layers in a format.
pub fn embedded_on(device: Device, format: WeightFormat) -> Result<Opened> {
    let [(config_name, config), (_, weights)] = EMBEDDED_FILES;
    let config = Fields::parse(config, config_name)?;
    let checkpoint = Checkpoint::from_bytes(weights, device)?;
    let weights = Weights::new(&checkpoint, DType::F32).with_format(format, device);
    let tokenizer = Tokenizer::parse(include_bytes!("../models/stories260K/tokenizer.json"))?;
    Ok(Opened {
        name: "stories260K".into(),
        model: models::load(&config, &weights, None)?,
        tokenizer: Some(Arc::new(tokenizer)),
        chat: None,
        generation: GenerationConfig::default(),
        stop_tokens: config.tokens("eos_token_id")?,
        dtype: DType::F32,
        origin: Origin::Embedded,
    })
}

/// A prompt of [`embedded`], and its greedy continuation as computed by PyTorch in f32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The prompt's tokens.
    pub prompt: Vec<u32>,
    /// The tokens that follow.
    pub follows: Vec<u32>,
}

/// Returns reference continuations of [`embedded`].
///
/// ```
/// let known = kiln_llm::open::embedded_known()?;
/// assert_eq!(known[0].prompt, [1, 403, 407, 261, 378]);
/// assert_eq!(known[0].follows[..3], [432, 383, 286]);
/// # Ok::<(), kiln_llm::Error>(())
/// ```
pub fn embedded_known() -> Result<Vec<Known>> {
    let text = format!(r#"{{"texts": {}}}"#, include_str!("../models/stories260K/expected.json"));
    let fields = Fields::parse(text.as_bytes(), "expected.json")?;
    let texts = fields.get("texts").and_then(|texts| texts.as_array()).map_or(&[][..], Vec::as_slice);
    let known = |text: &serde_json::Value| {
        let text = Fields::parse(text.to_string().as_bytes(), "expected.json")?;
        let (prompt, mut follows) = (text.tokens("prompt_ids")?, text.tokens("greedy_ids")?);
        follows.drain(..prompt.len().min(follows.len()));
        Ok(Known { prompt, follows })
    };
    texts.iter().map(known).collect()
}

fn open_folder(folder: &Path, options: &OpenOptions, asked: &str) -> Result<Opened> {
    let path = folder.join("config.json");
    if !path.exists() {
        return Err(Error::NoConfig { path: folder.to_owned() });
    }
    let config = Fields::read(path)?;
    // Before the weights: while its file is parsed it takes several times its size.
    let tokenizer = if Tokenizer::is_in(folder) { Some(Arc::new(Tokenizer::read(folder)?)) } else { None };
    // What is to be quantised stays mapped until it is: a device gets only the result.
    let host = if options.weights == WeightFormat::AsStored { options.device } else { Device::Cpu };
    let checkpoint = Checkpoint::open(folder, host)?;
    let dtype = options.dtype.unwrap_or_else(|| suiting(checkpoint.dtype()));
    let weights = Weights::new(&checkpoint, dtype).with_progress(options.progress.clone());
    let weights = weights.with_format(options.weights, options.device);
    let model = models::load(&config, &weights, options.layers)?;
    let generation = GenerationConfig::read(folder)?;
    let mut stop_tokens = generation.eos_token_ids.clone();
    if stop_tokens.is_empty() {
        stop_tokens = config.tokens("eos_token_id")?;
    }
    if let (true, Some(tokenizer)) = (stop_tokens.is_empty(), &tokenizer) {
        let path = folder.join("tokenizer_config.json");
        let named = if path.exists() { Fields::read(path)?.special_token("eos_token") } else { None };
        stop_tokens.extend(named.and_then(|token| tokenizer.id(&token)));
    }
    // A snapshot's folder is named by a revision, which says nothing.
    let name =
        if Path::new(asked).exists() { name_of(folder) } else { asked.rsplit('/').next().unwrap_or(asked).into() };
    Ok(Opened {
        name,
        model,
        tokenizer,
        chat: ChatTemplate::read(folder)?,
        generation,
        stop_tokens,
        dtype,
        origin: Origin::Folder,
    })
}

fn open_gguf(path: &Path, options: &OpenOptions) -> Result<Opened> {
    if options.weights != WeightFormat::AsStored {
        return Err(Error::StoredFormat { path: path.to_owned(), format: options.weights });
    }
    let file = Gguf::open(path)?;
    let dtype = options.dtype.unwrap_or(DType::F32);
    let mut config = file.config()?;
    config.num_hidden_layers = models::cut(options.layers, config.num_hidden_layers)?;
    let checkpoint = file.checkpoint(options.device)?;
    let weights = Weights::new(&checkpoint, dtype).with_progress(options.progress.clone());
    Ok(Opened {
        name: name_of(path),
        model: Arc::new(file.model(&config, &weights)?),
        tokenizer: Some(Arc::new(Tokenizer::from_gguf(&file)?)),
        chat: ChatTemplate::from_gguf(&file)?,
        generation: GenerationConfig { bos_token_id: config.bos_token_id, ..GenerationConfig::default() },
        stop_tokens: config.eos_token_ids.clone(),
        dtype,
        origin: Origin::Gguf,
    })
}

fn open_preset(preset: &Preset, options: &OpenOptions) -> Result<Opened> {
    let dtype = options.dtype.unwrap_or(DType::F32);
    let weights = Weights::random(options.seed, dtype, options.device).with_progress(options.progress.clone());
    let weights = weights.with_format(options.weights, options.device);
    Ok(Opened {
        name: preset.name.into(),
        model: models::load(&preset.fields()?, &weights, options.layers)?,
        tokenizer: None,
        chat: None,
        generation: GenerationConfig::default(),
        stop_tokens: Vec::new(),
        dtype,
        origin: Origin::Preset,
    })
}

/// f32, but for what is stored in bf16.
pub(crate) fn suiting(stored: Option<DType>) -> DType {
    match stored {
        Some(DType::Bf16) => DType::Bf16,
        _ => DType::F32,
    }
}

fn name_of(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if whole.is_dir() { whole.file_name() } else { whole.file_stem() };
    name.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

impl Opened {
    /// Returns the tokenizer, or an error if there is none.
    pub fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.as_deref().ok_or_else(|| Error::NoTokenizer { name: self.name.clone() })
    }

    /// Returns the tokens of a conversation, up to where the answer begins.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>> {
        let chat = self.chat.as_ref().ok_or_else(|| Error::NoChatTemplate { name: self.name.clone() })?;
        self.tokenizer()?.encode(&chat.render(messages, true)?, false)
    }

    /// Returns a request with the recommended settings and the stop tokens.
    pub fn request(&self) -> Request {
        Request { stop_tokens: self.stop_tokens.clone(), ..Request::from(&self.generation) }
    }

    /// Makes a generator with the model and its tokenizer. Several generators share the weights.
    pub fn generator(&self, options: GeneratorOptions) -> Result<Generator> {
        let generator = Generator::new(self.model.clone(), options)?;
        Ok(match &self.tokenizer {
            Some(tokenizer) => generator.with_tokenizer(tokenizer.clone()),
            None => generator,
        })
    }

    /// Makes a conversation with the model, each turn of which prefills only what is new.
    ///
    /// ```no_run
    /// use kiln_llm::{GeneratorOptions, OpenOptions};
    /// use std::ops::ControlFlow;
    /// let opened = kiln_llm::open("SmolLM2-135M-Instruct.Q4_1.gguf", &OpenOptions::default())?;
    /// let mut conversation = opened.conversation(GeneratorOptions::default())?;
    /// for words in ["What is the capital of France?", "And of Italy?"] {
    ///     let answer = conversation.say(words, &opened.request(), |_| ControlFlow::Continue(()))?;
    ///     println!("{} ({} tokens kept)", answer.text, answer.reused);
    /// }
    /// # Ok::<(), kiln_llm::Error>(())
    /// ```
    pub fn conversation(&self, options: GeneratorOptions) -> Result<Conversation<'_>> {
        Conversation::new(self, options)
    }

    /// Makes an engine with the model and its tokenizer.
    pub fn engine(&self, options: EngineOptions) -> Result<Engine> {
        let engine = Engine::new(self.model.clone(), options)?;
        Ok(match &self.tokenizer {
            Some(tokenizer) => engine.with_tokenizer(tokenizer.clone()),
            None => engine,
        })
    }
}

/// Continues a prompt with a model by its name: [`open`], [`Opened::generator`] and [`Generator::generate_text`] in one.
/// The model's stop tokens end the text too.
///
/// ```
/// # let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K");
/// let request = kiln_llm::Request { max_tokens: 10, ..Default::default() };
/// let story = kiln_llm::generate(folder, "Once upon a time", &request)?;
/// assert_eq!(story, ", there was a little girl named Lily");
/// # Ok::<(), kiln_llm::Error>(())
/// ```
pub fn generate(model: &str, prompt: &str, request: &Request) -> Result<String> {
    let opened = open(model, &OpenOptions::default())?;
    let mut request = request.clone();
    request.stop_tokens.extend(&opened.stop_tokens);
    let mut generator = opened.generator(GeneratorOptions::default())?;
    Ok(generator.generate_text(prompt, &request, |_| std::ops::ControlFlow::Continue(()))?.text)
}
