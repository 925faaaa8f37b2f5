//! Errors of models and their files: the facts in fields.

use kiln::{Shown, shown};
use std::path::{Path, PathBuf};

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model could not be read or run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor operation failed.
    #[error(transparent)]
    Kiln(Box<kiln::Error>),
    /// An error of the file system.
    #[error("{}: {}", at(path), words(message))]
    Io {
        /// The file.
        path: PathBuf,
        /// The message of the error.
        message: String,
    },
    /// Invalid JSON.
    #[error("{}: not JSON: {}", at(path), words(message))]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        message: String,
    },
    /// A model setting is missing, of the wrong kind, or invalid.
    #[error("{}: {}: {}", at(path), shown(field), words(problem))]
    Config {
        /// The file.
        path: PathBuf,
        /// The setting.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An unsupported kind of model.
    #[error("{}: models of type '{}' {why}", at(path), shown(found))]
    UnknownArchitecture {
        /// The file.
        path: PathBuf,
        /// The `model_type`, or the class where there is none.
        found: String,
        /// Why.
        why: crate::models::Unsupported,
    },
    /// A configuration says twice what its model is, each time something else.
    #[error(
        "{}: model_type is '{}', of which there is code for {}, but architectures says {}",
        at(path), shown(model_type), known.join(", "), shown(architectures)
    )]
    Conflict {
        /// The file.
        path: PathBuf,
        /// By its `model_type`.
        model_type: String,
        /// By its `architectures`.
        architectures: String,
        /// The architectures of that type that there is code for.
        known: &'static [&'static str],
    },
    /// A configuration does not say what its model is.
    #[error("{}: neither model_type nor architectures says what kind of model this is", at(path))]
    NoArchitecture {
        /// The file.
        path: PathBuf,
    },
    /// A folder without weights.
    #[error("{}: {there}", at(path))]
    NoWeights {
        /// The folder.
        path: PathBuf,
        /// What is there instead.
        there: crate::OtherWeights,
    },
    /// More layers were requested than the model has.
    #[error("{asked} layers were requested, and the model has {layers}")]
    TooManyLayers {
        /// The requested number of layers.
        asked: usize,
        /// How many there are.
        layers: usize,
    },
    /// A tensor that two files of a checkpoint have.
    #[error("{}: tensor '{}' is in another file of the folder too", at(path), shown(name))]
    DuplicateTensor {
        /// The second file.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// The index of a sharded checkpoint does not agree with its shards.
    #[error("{}: tensor '{}' in '{}': {problem}", at(path), shown(name), shown(shard))]
    BadShard {
        /// The index.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The shard that the index names.
        shard: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// An invalid or unsupported GGUF file.
    #[error("{}: {cause}", at(path))]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: Box<crate::gguf::GgufError>,
    },
    /// A tensor that the model needs is missing from the checkpoint.
    #[error("the checkpoint has no tensor '{}'", shown(name))]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// A tensor of the checkpoint belongs to a part that is not supported.
    #[error("the checkpoint has a tensor '{}', for which there is no code", shown(name))]
    UnknownTensor {
        /// Its name.
        name: String,
    },
    /// A checkpoint has tensors that the model does not use: without them it would give something else.
    #[error(
        "the checkpoint has {count} {} that a '{}' with this configuration does not use: '{}'{}",
        if *count == 1 { "tensor" } else { "tensors" }, shown(kind), words(&names.join("', '")), if *count > names.len() { " …" } else { "" }
    )]
    UnusedTensors {
        /// The kind of model.
        kind: String,
        /// The first of them.
        names: Vec<String>,
        /// How many there are.
        count: usize,
    },
    /// The configuration says that the embedding makes the logits, and the checkpoint has another table for them.
    #[error("tie_word_embeddings is said, but tensor '{}' is not '{}'", shown(name), shown(embedding))]
    UntiedHead {
        /// The table that would make the logits.
        name: String,
        /// The embedding.
        embedding: String,
    },
    /// Logits are to be made by a table that the checkpoint does not have.
    #[error(
        "the checkpoint has no tensor '{}', and tie_word_embeddings does not say that the embedding makes the logits",
        shown(name)
    )]
    NoHead {
        /// The table.
        name: String,
    },
    /// A tensor of the checkpoint is not made of floats.
    #[error(
        "tensor '{}' is of {got}, and weights are floats; quantised integers are read from GGUF files only",
        shown(name)
    )]
    WrongDType {
        /// Its name.
        name: String,
        /// In the file.
        got: kiln::DType,
    },
    /// A tensor of the checkpoint does not have the shape that the configuration implies.
    #[error("tensor '{}' is {}, the configuration asks for {expected:?}", shown(name), shown(&format!("{got:?}")))]
    WrongShape {
        /// Its name.
        name: String,
        /// By the configuration.
        expected: Vec<usize>,
        /// In the file.
        got: Vec<usize>,
    },
    /// The elements of a tensor have no place in the requested format.
    #[error("tensor '{}' has an element {value}, which has no place in {format}", shown(name))]
    NotQuantizable {
        /// Its name.
        name: String,
        /// The first such element: NaN, infinite or too large.
        value: f32,
        /// The format.
        format: crate::WeightFormat,
    },
    /// Another format was requested for the weights of a file that has them quantised.
    #[error("{}: weights of a GGUF file are used as they are stored, not as {format}", at(path))]
    StoredFormat {
        /// The file.
        path: PathBuf,
        /// The format.
        format: crate::WeightFormat,
    },
    /// A picture that could not be read or used.
    #[error("{}{cause}", path.as_ref().map_or(String::new(), |path| format!("{}: ", at(path))))]
    Image {
        /// The file, where there is one.
        path: Option<PathBuf>,
        /// What is wrong with it.
        cause: crate::vision::ImageError,
    },
    /// Pictures that do not have the model's size.
    #[error("the model sees pictures of {side} × {side} pixels, and would get {width} × {height}")]
    WrongPictures {
        /// Pixels of a row.
        width: usize,
        /// Rows.
        height: usize,
        /// The model's.
        side: usize,
    },
    /// A tokenizer that could not be read or used.
    #[error("tokenizer: {0}")]
    Tokenizer(#[from] crate::TokenizerError),
    /// A chat template that cannot be read, or refuses a conversation.
    #[error("{}: {cause}", words(origin))]
    Template {
        /// The file that it is in, or the key of a GGUF file.
        origin: String,
        /// What is wrong, and where.
        cause: Box<crate::TemplateError>,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// A prompt that leaves no room for new tokens.
    #[error("a prompt of {tokens} tokens does not fit a context of {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// Texts that are computed together have different lengths.
    #[error("{tokens} tokens are to follow one prompt and {other} another")]
    UnequalTexts {
        /// Tokens of the first.
        tokens: usize,
        /// Tokens of another.
        other: usize,
    },
    /// Texts are to be truncated to fewer tokens than any has.
    #[error("texts cannot be cut to {longest} tokens: with the special ones each has {least} at least")]
    TooShort {
        /// The requested length.
        longest: usize,
        /// The shortest text.
        least: usize,
    },
    /// A token that is not in the model's vocabulary.
    #[error("token {token} is outside the vocabulary of {vocabulary}")]
    UnknownToken {
        /// The token.
        token: u32,
        /// How many there are.
        vocabulary: usize,
    },
    /// A name that is no folder, no GGUF file and no preset.
    #[error(
        "'{}' is no folder with a config.json, no GGUF file and no preset{} (there are {})",
        shown(name),
        nearest.map(|nearest| format!("; is '{nearest}' meant?")).unwrap_or_default(),
        presets.join(", ")
    )]
    UnknownModel {
        /// As given.
        name: String,
        /// The preset whose name is nearest, if one is near.
        nearest: Option<&'static str>,
        /// The presets.
        presets: Vec<&'static str>,
    },
    /// An id of Hugging Face's hub that nobody has downloaded.
    #[error(
        "'{id}' is no folder or file here, and not in Hugging Face's cache{}; Kiln downloads nothing",
        cache.as_ref().map(|cache| format!(" ({})", cache.display())).unwrap_or_default()
    )]
    NotDownloaded {
        /// As given.
        id: String,
        /// Where it was looked for.
        cache: Option<PathBuf>,
    },
    /// A folder without a `config.json`.
    #[error("{}: there is no config.json, which says what kind of model it is", at(path))]
    NoConfig {
        /// The folder.
        path: PathBuf,
    },
    /// There is not enough memory for the weights.
    #[error("weights: {cause}")]
    Memory {
        /// What happened.
        cause: Box<kiln::runtime::Error>,
    },
    /// A cache without pages.
    #[error("a cache of {pages} pages of {page} tokens for texts of {context} has no room")]
    EmptyCache {
        /// Pages.
        pages: usize,
        /// Tokens of a page.
        page: usize,
        /// Tokens of a text.
        context: usize,
    },
    /// Text was requested of a model without a tokenizer.
    #[error("'{}' has no tokenizer; that of a folder is its tokenizer.json or tokenizer.model", shown(name))]
    NoTokenizer {
        /// The model.
        name: String,
    },
    /// Text or stop strings were given to a generator without a tokenizer.
    #[error("text and stop strings need a tokenizer (see Generator::with_tokenizer)")]
    TextWithoutTokenizer,
    /// A chat was requested of a model without a chat template.
    #[error("'{}' has no chat template", shown(name))]
    NoChatTemplate {
        /// The model.
        name: String,
    },
    /// A sampling option out of its range.
    #[error("sampling: {name} is {value}, and has to be {expected}")]
    BadSampling {
        /// Which.
        name: &'static str,
        /// As given.
        value: f64,
        /// What it may be.
        expected: &'static str,
    },
}

impl From<kiln::Error> for Error {
    fn from(error: kiln::Error) -> Error {
        Error::Kiln(Box::new(error))
    }
}

impl From<crate::vision::ImageError> for Error {
    fn from(cause: crate::vision::ImageError) -> Error {
        Error::Image { path: None, cause }
    }
}

impl Error {
    pub(crate) fn io(path: &Path, error: &std::io::Error) -> Error {
        Error::Io { path: path.to_owned(), message: error.to_string() }
    }
}

/// A path in a message. Names of files may be made to look like something else.
fn at(path: &Path) -> String {
    shown(&path.display().to_string()).up_to(1000).to_string()
}

/// Words that may quote a file.
fn words(text: &str) -> Shown<'_> {
    shown(text).up_to(400)
}
