//! How much is read of each kind of file.

use crate::{Error, Result};
use kiln::files;
use std::path::Path;

/// What a file is meant to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Settings in JSON. The largest are indices of shards, about 10 MB.
    Settings,
    /// `tokenizer.json`. The largest have 35 MB.
    Tokenizer,
    /// A chat template.
    Template,
    /// Names, one a line.
    Labels,
    /// PNG or JPEG.
    Picture,
}

impl Kind {
    /// The most bytes that are read.
    pub(crate) fn most(self) -> usize {
        match self {
            Kind::Settings => 32 << 20,
            Kind::Tokenizer => 128 << 20,
            Kind::Template => 1 << 20,
            Kind::Labels => 16 << 20,
            Kind::Picture => 256 << 20,
        }
    }
}

/// Reads a regular file of a kind.
pub(crate) fn read(path: &Path, kind: Kind) -> Result<Vec<u8>> {
    files::read(path, kind.most()).map_err(|error| Error::io(path, &error))
}

/// [`read`], as text.
pub(crate) fn read_text(path: &Path, kind: Kind) -> Result<String> {
    files::read_text(path, kind.most()).map_err(|error| Error::io(path, &error))
}
