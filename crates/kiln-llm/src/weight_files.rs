//! Which files of a folder hold its weights.

use crate::{Error, Result};
use std::path::{Path, PathBuf};

const ENDING: &str = ".safetensors";
const INDEX_ENDING: &str = ".safetensors.index.json";
/// The names that transformers writes, which come before all others.
const USUAL: &str = "model.safetensors";
const USUAL_INDEX: &str = "model.safetensors.index.json";

/// The files that hold the weights of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WeightFiles {
    /// An index names the shards.
    Index(PathBuf),
    /// All tensors of all files.
    Whole(Vec<PathBuf>),
}

/// What a folder without safetensors holds instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum OtherWeights {
    /// None of the formats that are known.
    None,
    /// A pickle of PyTorch, which is a program and not data.
    Pickle {
        /// The first file.
        file: String,
    },
    /// Weights in the format of another framework.
    Foreign {
        /// The first file.
        file: String,
    },
    /// A GGUF file, which is opened by its own name.
    Gguf {
        /// The first file.
        file: String,
    },
    /// Differences to the weights of another model.
    Adapter {
        /// The file.
        file: String,
    },
    /// Some shards of a checkpoint without an index.
    Shards {
        /// How many there are.
        found: usize,
        /// How many their names say there should be.
        of: usize,
    },
    /// Several indices, none of which has the usual name.
    Indices {
        /// The first.
        file: String,
        /// The second.
        other: String,
    },
}

impl std::fmt::Display for OtherWeights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OtherWeights::None => f.write_str("no *.safetensors file is there"),
            OtherWeights::Pickle { file } => {
                write!(f, "no *.safetensors file is there; '{file}' is a pickle, which is a program and is not read")
            }
            OtherWeights::Foreign { file } => {
                write!(f, "no *.safetensors file is there; the format of '{file}' is not read")
            }
            OtherWeights::Gguf { file } => write!(f, "no *.safetensors file is there; '{file}' is opened by itself"),
            OtherWeights::Adapter { file } => {
                write!(f, "'{file}' holds differences to another model's weights (an adapter), and no whole model")
            }
            OtherWeights::Shards { found, of } => {
                write!(f, "{found} of {of} shards are there, and no *.safetensors.index.json")
            }
            OtherWeights::Indices { file, other } => {
                write!(f, "'{file}' and '{other}' both name shards, and neither is {USUAL_INDEX}")
            }
        }
    }
}

impl WeightFiles {
    /// Finds them.
    pub(crate) fn find(folder: &Path) -> Result<WeightFiles> {
        if folder.join(USUAL_INDEX).exists() {
            return Ok(WeightFiles::Index(folder.join(USUAL_INDEX)));
        }
        if folder.join(USUAL).exists() {
            return Ok(WeightFiles::Whole(vec![folder.join(USUAL)]));
        }
        let names = names(folder)?;
        let none = |there| Error::NoWeights { path: folder.to_owned(), there };
        let indices: Vec<&String> = names.iter().filter(|name| name.ends_with(INDEX_ENDING)).collect();
        match &indices[..] {
            [] => {}
            [index] => return Ok(WeightFiles::Index(folder.join(index))),
            [file, other, ..] => {
                return Err(none(OtherWeights::Indices { file: (*file).clone(), other: (*other).clone() }));
            }
        }
        let adapter = |name: &str| name.starts_with("adapter_");
        let files: Vec<&String> = names.iter().filter(|name| name.ends_with(ENDING) && !adapter(name)).collect();
        if files.is_empty() {
            return Err(none(OtherWeights::of(&names)));
        }
        if let Some((found, of)) = missing_shards(&files) {
            return Err(none(OtherWeights::Shards { found, of }));
        }
        Ok(WeightFiles::Whole(files.into_iter().map(|name| folder.join(name)).collect()))
    }
}

impl OtherWeights {
    fn of(names: &[String]) -> OtherWeights {
        let first = |endings: &[&str]| {
            let found = names.iter().find(|name| endings.iter().any(|ending| name.ends_with(ending)));
            found.cloned()
        };
        // `training_args.bin` and its like are no weights.
        let pickles: Vec<String> = names.iter().filter(|name| !name.starts_with("training_args")).cloned().collect();
        let pickle = |name: &&String| [".bin", ".pt", ".pth", ".ckpt"].iter().any(|ending| name.ends_with(ending));
        if let Some(file) = first(&[".gguf"]) {
            return OtherWeights::Gguf { file };
        }
        if let Some(file) = first(&[ENDING]) {
            return OtherWeights::Adapter { file };
        }
        if let Some(file) = pickles.iter().find(pickle).cloned() {
            return OtherWeights::Pickle { file };
        }
        match first(&[".h5", ".msgpack", ".onnx", ".npz", ".mlmodel", ".tflite"]) {
            Some(file) => OtherWeights::Foreign { file },
            None => OtherWeights::None,
        }
    }
}

/// The names of a folder's files, in order.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io(folder, &e))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| Error::io(folder, &e))?.file_name();
        // Copies of macOS and files that are still being written begin with a dot.
        names.extend(name.into_string().ok().filter(|name| !name.starts_with('.')));
    }
    names.sort_unstable();
    Ok(names)
}

/// How many of how many shards there are, where names say that some are missing: `model-00002-of-00003.safetensors`.
fn missing_shards(files: &[&String]) -> Option<(usize, usize)> {
    let count = |name: &str| name.strip_suffix(ENDING)?.rsplit_once("-of-")?.1.parse::<usize>().ok();
    let of = files.iter().filter_map(|name| count(name)).max()?;
    let found = files.iter().filter(|name| count(name) == Some(of)).count();
    (found < of).then_some((found, of))
}
