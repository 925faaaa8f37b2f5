//! What may be wrong with a state dict.

use crate::DType;
use std::fmt;

/// What did not fit when a state dict was loaded without `strict`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Names of the module that the state dict lacks.
    pub missing: Vec<String>,
    /// Names of the state dict that the module lacks.
    pub unexpected: Vec<String>,
}

/// A tensor that is not what the variable of its name needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeMismatch {
    /// The name of the tensor.
    pub name: String,
    /// Dtype and shape of the module's variable.
    pub expected: (DType, Vec<usize>),
    /// Dtype and shape of the tensor.
    pub got: (DType, Vec<usize>),
}

/// Why a state dict was rejected: every mismatch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StateDictError {
    /// Names that the module has and the state dict lacks, and the other way round.
    pub names: Loaded,
    /// Tensors of the wrong shape.
    pub mismatches: Vec<ShapeMismatch>,
}

impl fmt::Display for StateDictError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |names: &[String], what: [&str; 2]| match names {
            [] => None,
            [name] => Some(format!("{name} is {}", what[0])),
            names => Some(format!("{} are {}", names.join(", "), what[1])),
        };
        let mismatch = |ShapeMismatch { name, expected, got }: &ShapeMismatch| {
            Some(format!("{name} is {}{:?}, not {}{:?}", expected.0, expected.1, got.0, got.1))
        };
        let missing = list(&self.names.missing, ["missing"; 2]);
        let unexpected = list(&self.names.unexpected, ["not part of the module", "no parts of the module"]);
        let problems: Vec<String> =
            [missing, unexpected].into_iter().chain(self.mismatches.iter().map(mismatch)).flatten().collect();
        f.write_str(&problems.join("; "))
    }
}

impl std::error::Error for StateDictError {}
