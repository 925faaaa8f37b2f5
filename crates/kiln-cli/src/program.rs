//! What commands that run a model share: how, on what and in which dtype it runs, and errors with advice.

use crate::interrupt::{self, Interrupted};
use crate::mode::{Mode, precision};
use kiln::{DType, Device, Options, Precision};
use kiln_llm::gguf::GgufError;
use kiln_llm::models::{Task, Unsupported};
use kiln_llm::{Error, OtherWeights};
use kiln_terminal::device::device;
use kiln_terminal::failure::{FAILED, Failure};
use kiln_terminal::format;
use std::path::{Path, PathBuf};

/// How a model is run.
#[derive(clap::Args)]
pub struct Program {
    /// How it is run
    #[arg(long, short, value_enum, default_value_t = Mode::Default, hide_possible_values = true, help_heading = "Program",
        long_help = "How it is run: eager, default, reduce-overhead, max-autotune or max-autotune-no-cudagraphs")]
    mode: Mode,
    /// Where it runs: cpu
    #[arg(long, default_value = "cpu", value_name = "D", help_heading = "Program")]
    device: String,
    /// Of weights and activations: f32, bf16 or f16 [default: what suits the file]
    #[arg(long, value_name = "T", help_heading = "Program")]
    dtype: Option<String>,
    /// Of f32 products: highest, high or medium; less may be faster
    #[arg(long, default_value = "highest", value_name = "P", value_parser = precision, help_heading = "Program",
        long_help = PRECISION)]
    precision: Precision,
}

/// What `--precision` means.
pub const PRECISION: &str = "Of f32 products, as PyTorch's set_float32_matmul_precision: highest, high (operands of 16 bits) or medium \
    (of 8). Less is a permission: products with quantised weights (GGUF) in compiled modes use it, others stay exact";

/// What `--weights` means.
pub const WEIGHTS: &str = "The weights of linear layers, which are quantised as they are loaded: as-stored, int8 (8-bit integers with a \
    scale for each output; embeddings stay floats), q8_0 (blocks of 32 such integers) or q4_k_m (llama.cpp's mixture of q4_k and q6_k \
    blocks). Presets draw random ones in that format. The weights of a GGUF file are used as they are stored";

impl Program {
    /// The device, if it is there.
    pub fn device(&self) -> Result<Device, Failure> {
        device(&self.device)
    }

    /// Returns the dtype, if one was given.
    pub fn dtype(&self) -> Result<Option<DType>, Failure> {
        self.dtype.as_deref().map(dtype).transpose()
    }

    /// How it is compiled, with weights packed; nothing for eager.
    pub fn options(&self) -> Option<Options> {
        self.mode.options(true, self.precision)
    }

    /// The mode's name.
    pub fn name(&self) -> &'static str {
        self.mode.name()
    }
}

/// The dtype of this name, if models run in it.
pub fn dtype(name: &str) -> Result<DType, Failure> {
    match name {
        "f32" | "float32" => Ok(DType::F32),
        "bf16" | "bfloat16" => Ok(DType::Bf16),
        "f16" | "float16" => Ok(DType::F16),
        _ => Err(Failure::unusable(format!("models do not run in '{name}'")).advise("--dtype f32, bf16 or f16")),
    }
}

/// The folder of a model, which has to be there: by its path, or in Hugging Face's cache by its id.
pub fn folder(model: &str) -> Result<PathBuf, Failure> {
    let no_folder = || {
        Failure::unusable(format!("'{model}' is no folder")).advise("a folder with config.json and model.safetensors")
    };
    match kiln_llm::locate(model) {
        Ok(path) if path.is_dir() => Ok(path),
        Err(error @ Error::NotDownloaded { .. }) => Err(failure(error)),
        _ => Err(no_folder()),
    }
}

/// What turns the pickles of a folder into safetensors.
fn conversion(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        "from transformers import AutoModelForCausalLM as M; M.from_pretrained(\"{folder}\").save_pretrained(\"{folder}\")"
    )
}

fn is_safetensors(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "safetensors")
}

/// A folder's name without its path.
pub fn name(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    whole.file_name().map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// A time, and how much of it was compiling.
pub fn took(seconds: f64, compile: f64) -> String {
    match compile > 0.0 {
        true => format!("{}, {} of it compiling", format::seconds(seconds), format::seconds(compile)),
        false => format::seconds(seconds),
    }
}

/// The exit code of any error. Errors of models have theirs in one place, [`failure`], however they come here.
pub fn exit_code(error: &(dyn std::error::Error + 'static)) -> u8 {
    if error.is::<Interrupted>() {
        return interrupt::EXIT_CODE;
    }
    if let Some(error) = error.downcast_ref::<Error>() {
        return failure(error.clone()).code();
    }
    error.downcast_ref::<Failure>().map_or(FAILED, Failure::code)
}

/// An error of a model or a picture, with the exit code that suits it.
pub fn failure(error: Error) -> Failure {
    match &error {
        Error::UnknownArchitecture { path, why, .. } => {
            let failure = Failure::unusable(error.to_string());
            let folder = path.parent().map_or("MODEL".into(), |folder| folder.display().to_string());
            match why {
                Unsupported::OtherTask(Task::Generate) => {
                    failure.advise(format!("kiln run {folder} --prompt 'A text'"))
                }
                Unsupported::OtherTask(Task::Embed) => failure.advise(format!("kiln embed {folder} 'A text'")),
                Unsupported::OtherTask(Task::Classify) => failure.advise(format!("kiln classify {folder} PICTURE")),
                _ => failure,
            }
        }
        Error::NotDownloaded { id, .. } => {
            let folder = id.rsplit('/').next().unwrap_or(id);
            Failure::unusable(error.to_string())
                .advise(format!("hf download {id} --local-dir {folder}, then the folder {folder}"))
        }
        Error::NoWeights { path, there } => {
            let failure = Failure::unusable(error.to_string());
            match there {
                OtherWeights::Pickle { .. } => failure.advise(format!("python -c '{}'", conversion(path))),
                OtherWeights::Gguf { file } => failure.advise(format!("kiln run {}", path.join(file).display())),
                _ => failure,
            }
        }
        Error::Gguf { path, cause } if **cause == GgufError::NotGguf && is_safetensors(path) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Failure::unusable(format!("{}: a safetensors file is opened by its folder", path.display()))
                .advise(folder.display().to_string())
        }
        Error::TooShort { .. } => Failure::unusable(error.to_string()).advise("a larger --max-length"),
        Error::Io { .. } | Error::NoConfig { .. } | Error::EmptyPrompt => Failure::unusable(error.to_string()),
        Error::Conflict { .. } | Error::NoArchitecture { .. } => Failure::unusable(error.to_string()),
        // The option cannot be met by this model, whatever is in its files.
        Error::UnknownModel { .. }
        | Error::TooManyLayers { .. }
        | Error::StoredFormat { .. }
        | Error::NoTokenizer { .. }
        | Error::NoChatTemplate { .. }
        | Error::TextWithoutTokenizer
        | Error::PromptTooLong { .. }
        | Error::UnknownToken { .. }
        | Error::BadSampling { .. }
        | Error::UnequalTexts { .. }
        | Error::EmptyCache { .. }
        | Error::Memory { .. } => Failure::unusable(error.to_string()),
        // Files that are damaged, and work that went wrong.
        _ => Failure::new(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_terminal::failure::UNUSABLE;

    /// One kind of error, one exit code, on every way that it takes to the end of the command.
    #[test]
    fn errors_of_models_have_one_exit_code() {
        let path = || "folder/file".into();
        let name = || "name".to_owned();
        let cases = [
            (Error::Io { path: path(), message: "not there".into() }, UNUSABLE),
            (Error::EmptyPrompt, UNUSABLE),
            (Error::TooManyLayers { asked: 9, layers: 8 }, UNUSABLE),
            (Error::PromptTooLong { tokens: 9, context: 8 }, UNUSABLE),
            (Error::TooShort { longest: 1, least: 3 }, UNUSABLE),
            (Error::UnknownToken { token: 9, vocabulary: 8 }, UNUSABLE),
            (Error::UnknownModel { name: name(), nearest: None, presets: Vec::new() }, UNUSABLE),
            (Error::NoTokenizer { name: name() }, UNUSABLE),
            (Error::NoChatTemplate { name: name() }, UNUSABLE),
            (Error::TextWithoutTokenizer, UNUSABLE),
            (Error::BadSampling { name: "top_p", value: 2.0, expected: "at most 1" }, UNUSABLE),
            (Error::EmptyCache { pages: 0, page: 16, context: 8 }, UNUSABLE),
            (Error::UnequalTexts { tokens: 1, other: 2 }, UNUSABLE),
            (Error::Json { path: path(), message: "line 1".into() }, FAILED),
            (Error::Config { path: path(), field: "layers".into(), problem: "none".into() }, FAILED),
            (Error::MissingTensor { name: name() }, FAILED),
            (Error::UnknownTensor { name: name() }, FAILED),
            (Error::WrongShape { name: name(), expected: vec![1], got: vec![2] }, FAILED),
        ];
        for (error, code) in cases {
            let plain: Box<dyn std::error::Error> = error.clone().into();
            let run: Box<dyn std::error::Error> = crate::run::failure(error.clone()).into();
            let other: Box<dyn std::error::Error> = failure(error.clone()).into();
            for way in [plain, run, other] {
                assert_eq!(exit_code(way.as_ref()), code, "{error:?}");
            }
        }
    }
}
