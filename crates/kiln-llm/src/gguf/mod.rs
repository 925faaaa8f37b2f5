//! GGUF files: one file with the settings, the tokenizer and the (quantised) weights of a model.
//!
//! ```text
//!  "GGUF" version tensors keys │ keys and values │ tensors: name, sizes, type, offset │ padding │ elements
//! ```
//!
//! Files are foreign input: every count, length, size and offset is checked against the file before it is used. The file is
//! mapped, and the tensors of a checkpoint are views of the mapping: quantised blocks stay what they are.

mod blocks;
mod model;
mod names;
mod read;
mod settings;

pub use blocks::BlockType;
pub use read::{GgufError, Metadata, TensorInfo};

use crate::{Error, Result};
use kiln::Bytes;
use read::Contents;
use std::collections::BTreeMap;
use std::path::Path;

/// A GGUF file, mapped. It has to stay as it is while this or a tensor of it lives.
#[derive(Debug, Clone)]
pub struct Gguf {
    bytes: Bytes,
    contents: Contents,
}

impl Gguf {
    /// Maps a file and reads all but its elements.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        let path = path.as_ref();
        let file = Gguf::parse(Bytes::map(path).map_err(|e| Error::io(path, &e))?, path)?;
        // The vocabulary before the first tensor was copied and is not read again.
        file.bytes.release(0..file.tensors().values().map(|tensor| tensor.range.start).min().unwrap_or(0));
        Ok(file)
    }

    /// Reads a file that is in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Gguf> {
        Gguf::parse(bytes.into(), Path::new("bytes"))
    }

    fn parse(bytes: Bytes, path: &Path) -> Result<Gguf> {
        let contents =
            Contents::parse(&bytes).map_err(|cause| Error::Gguf { path: path.to_owned(), cause: Box::new(cause) })?;
        Ok(Gguf { bytes, contents })
    }

    /// A value by its key.
    pub fn get(&self, key: &str) -> Option<&Metadata> {
        self.contents.metadata.get(key)
    }

    /// Every value by its key.
    pub fn metadata(&self) -> &BTreeMap<String, Metadata> {
        &self.contents.metadata
    }

    /// The tensors by their names.
    pub fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.contents.tensors
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, tensor: &TensorInfo) -> &[u8] {
        // A `TensorInfo` may be another file's.
        self.bytes.get(tensor.range.clone()).unwrap_or_default()
    }

    /// The elements of a tensor in f32.
    ///
    /// ```no_run
    /// # fn main() -> kiln_llm::Result<()> {
    /// let file = kiln_llm::Gguf::open("model.gguf")?;
    /// for (name, tensor) in file.tensors() {
    ///     println!("{name}: {:?} {:?}, first {}", tensor.block, tensor.shape, file.elements(tensor)[0]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn elements(&self, tensor: &TensorInfo) -> Vec<f32> {
        let mut out = Vec::with_capacity(tensor.elements());
        tensor.block.dequantise(self.bytes(tensor), &mut out);
        out
    }

    /// A text by its key.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Metadata::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A flag by its key.
    pub(crate) fn flag(&self, key: &str, default: bool) -> bool {
        match self.get(key) {
            Some(Metadata::Bool(flag)) => *flag,
            _ => default,
        }
    }

    /// A token by its key.
    pub(crate) fn token(&self, key: &str) -> Option<u32> {
        self.get(key)?.as_u64().and_then(|id| u32::try_from(id).ok())
    }

    /// Texts by their key.
    pub(crate) fn texts(&self, key: &str) -> Option<Vec<String>> {
        let Metadata::List(items) = self.get(key)? else { return None };
        let text = |item: &Metadata| if let Metadata::Text(text) = item { Some(text.clone()) } else { None };
        items.iter().map(text).collect()
    }

    pub(crate) fn bad(&self, key: &str, problem: impl Into<String>) -> Error {
        let cause = GgufError::BadKey { key: key.into(), problem: problem.into() };
        Error::Gguf { path: self.name(), cause: Box::new(cause) }
    }
}
