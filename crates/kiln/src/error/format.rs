//! What may be wrong with a safetensors file.

use super::shown::shown;
use crate::DType;

/// Why a file is not a valid safetensors file, or cannot be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// An error of the file system.
    #[error("{message}")]
    Io {
        /// The message of the error.
        message: String,
    },
    /// The file is too short for the length of the header.
    #[error("{bytes} bytes are too few for a safetensors file")]
    TooShort {
        /// The file's size.
        bytes: u64,
    },
    /// The header is longer than the file or than the limit.
    #[error("a header of {length} bytes in a file of {bytes}")]
    HeaderLength {
        /// The length in the file.
        length: u64,
        /// The file's size.
        bytes: usize,
    },
    /// The header is not valid JSON.
    #[error("the header is not valid: {what} at byte {at}")]
    Json {
        /// What is wrong.
        what: &'static str,
        /// Where in the header.
        at: usize,
    },
    /// A part of the header is missing or of the wrong kind.
    #[error("tensor '{}': {what}", shown(name))]
    BadEntry {
        /// The tensor.
        name: String,
        /// What is wrong.
        what: &'static str,
    },
    /// An unsupported dtype.
    #[error("tensor '{}' is of dtype {}, which is not supported", shown(name), shown(dtype))]
    UnknownDType {
        /// The tensor.
        name: String,
        /// The dtype in the file.
        dtype: String,
    },
    /// Offsets that are outside of the file or not ascending.
    #[error("tensor '{}': bytes {begin}..{end} are not within the {bytes} bytes of elements", shown(name))]
    BadOffsets {
        /// The tensor.
        name: String,
        /// First byte.
        begin: u64,
        /// Byte after the last.
        end: u64,
        /// Bytes of elements in the file.
        bytes: usize,
    },
    /// A shape that does not match its bytes.
    #[error("tensor '{}': {dtype}{} does not take {bytes} bytes", shown(name), shown(&format!("{shape:?}")))]
    WrongSize {
        /// The tensor.
        name: String,
        /// Its dtype.
        dtype: DType,
        /// Its shape.
        shape: Vec<u64>,
        /// The bytes it is given.
        bytes: u64,
    },
    /// Two tensors of one name.
    #[error("tensor '{}' is there twice", shown(name))]
    Duplicate {
        /// The name.
        name: String,
    },
    /// Tensors that share bytes, or bytes that no tensor has.
    #[error("tensor '{}' does not begin where the one before it ends (byte {expected}, not {begin})", shown(name))]
    Gap {
        /// The tensor.
        name: String,
        /// Where it should begin.
        expected: usize,
        /// Where it does.
        begin: usize,
    },
}

impl FormatError {
    pub(crate) fn io(error: &std::io::Error) -> FormatError {
        FormatError::Io { message: error.to_string() }
    }
}
