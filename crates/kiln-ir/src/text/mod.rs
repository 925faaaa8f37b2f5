//! The text form of a graph. What is printed parses back to an equal graph.
//!
//! ```text
//! graph(%0: f32[b, 4096], %1: f32[b, 4096]) {
//!   %2: f32[b, 4096] = mul %0, %1 @ src/model.rs:41
//!   %3: f32[b, 1] = reduce_sum %2 {axes=[1]}
//!   return %3, %2 -> input 0           # the second output is the new value of input 0
//! }
//! ```
//!
//! - A node is `%number: type = op operands {attributes} @ file:line`; attributes and source may be missing. The numbers are
//!   names: any that are distinct will do. A file that is not a plain path is quoted.
//! - What the result's type says is not said again: `full`, `constant`, `iota`, `random_bits`, `cast`, `bitcast`, `reshape`,
//!   `expand` and `dot` take their dtype or shape from it.
//! - Attributes are `name=value`; a flag that is left out is false, everything else must be there.
//! - Scalars are numbers, `true`, `false`, `inf`, `-inf`, `nan`, or `nan:` and the bits as f64. A constant is a list of its
//!   elements or `0x` and its bytes.
//! - White space is free, `#` starts a comment.

mod attributes;
mod cursor;
mod parse;
mod print;
#[cfg(test)]
mod tests;

use crate::dim::DimParseError;
use crate::{Error, Graph, TensorType, TypeError};

/// An error of parsing, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {kind}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The problem.
    pub kind: ParseErrorKind,
}

/// An error of parsing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// Something else is expected here.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What is expected, as text.
        expected: &'static str,
        /// What is found.
        found: Found,
    },
    /// A name that is no dtype.
    #[error("unknown dtype '{name}'")]
    UnknownDType {
        /// The name as written.
        name: String,
    },
    /// A name that is no op.
    #[error("unknown op '{name}'")]
    UnknownOp {
        /// The name as written.
        name: String,
    },
    /// A size that is no expression.
    #[error("not a size: {cause}")]
    BadDim {
        /// The cause.
        cause: DimParseError,
    },
    /// A number that is out of range.
    #[error("{text} is out of range")]
    OutOfRange {
        /// The text as written.
        text: String,
    },
    /// A node that is not defined above.
    #[error("%{number} is not defined above")]
    UnknownNode {
        /// Its number.
        number: u32,
    },
    /// A node that is defined twice.
    #[error("%{number} is defined twice")]
    Redefined {
        /// Its number.
        number: u32,
    },
    /// An attribute that the op needs.
    #[error("{op} needs the attribute '{name}'")]
    MissingAttribute {
        /// The op.
        op: String,
        /// The attribute.
        name: &'static str,
    },
    /// An attribute that the op does not have.
    #[error("{op} has no attribute '{name}'")]
    UnknownAttribute {
        /// The op.
        op: String,
        /// The attribute.
        name: String,
    },
    /// An attribute that is given twice.
    #[error("the attribute '{name}' is given twice")]
    RepeatedAttribute {
        /// The attribute.
        name: String,
    },
    /// Loops in loops in loops.
    #[error("loops are nested more than {most} deep")]
    TooDeep {
        /// How deep they may be.
        most: usize,
    },
    /// A constant with more or fewer elements than its type.
    #[error("{got} elements for a constant of {ty}")]
    ElementCount {
        /// The constant's type.
        ty: TensorType,
        /// How many are written.
        got: usize,
    },
    /// An op that does not accept its operands or attributes.
    #[error("{op}: {cause}")]
    Type {
        /// The op.
        op: String,
        /// The cause.
        cause: Box<TypeError>,
    },
    /// A type that no tensor has.
    #[error("{cause}")]
    BadType {
        /// The cause.
        cause: Box<TypeError>,
    },
    /// A declared type that is not the one the op gives.
    #[error("declared {declared}, but {op} gives {inferred}")]
    WrongType {
        /// The op.
        op: String,
        /// The type as written.
        declared: TensorType,
        /// The inferred type.
        inferred: TensorType,
    },
    /// A rule of the graph as a whole.
    #[error("{0}")]
    Graph(Box<Error>),
}

/// What stands in the text where something else was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// This character.
    Char(char),
    /// Nothing.
    End,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Found::Char(c) => write!(f, "{c:?}"),
            Found::End => f.write_str("the end"),
        }
    }
}

impl Graph {
    /// Reads the [text form](crate::text) and checks every type on the way.
    ///
    /// ```
    /// use kiln_ir::Graph;
    /// let text = "graph(%0: f32[b, 4]) {\n  %1: f32[b, 1] = reduce_sum %0 {axes=[1]}\n  return %1\n}\n";
    /// assert_eq!(Graph::parse(text).unwrap().to_string(), text);
    /// let error = Graph::parse("graph(%0: f32[4]) { %1: f32[5] = neg %0 return %1 }").unwrap_err();
    /// assert_eq!(error.to_string(), "line 1, column 25: declared f32[5], but neg gives f32[4]");
    /// ```
    pub fn parse(text: &str) -> Result<Graph, ParseError> {
        parse::graph(text)
    }
}

impl std::str::FromStr for Graph {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Graph, ParseError> {
        Graph::parse(text)
    }
}

/// Reads `f32[b, 4096]`.
impl std::str::FromStr for TensorType {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<TensorType, ParseError> {
        let mut cursor = cursor::Cursor::new(text);
        let ty = cursor.ty()?;
        cursor.expect_end("the end")?;
        Ok(ty)
    }
}

/// A text that is nearly a graph: `text` with a few bytes changed, removed, doubled or replaced by pieces that mean
/// something, here or wherever the same word stands. Together with [`fuzz_once`] this is a fuzzer.
pub fn mutate(text: &mut Vec<u8>, random: &mut crate::examples::Random) {
    const PIECES: [&str; 24] = [
        "%0",
        "%1",
        "b",
        "t*2",
        "0",
        "1",
        "-1",
        "9223372036854775807",
        "18446744073709551615",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        ",",
        "=",
        ":",
        "nan",
        "inf",
        "0x",
        "f32",
        "i4",
        "// 0",
    ];
    for _ in 0..=random.below(2) * random.below(4) {
        let at = random.below(text.len() + 1);
        let end = (at + random.below(8)).min(text.len());
        match random.below(8) {
            0 if at < text.len() => text[at] = random.bits() as u8,
            1 => drop(text.drain(at..end)),
            2 => {
                let piece = text[at..end].to_vec();
                text.splice(at..at, piece);
            }
            3 => drop(text.splice(at..at, PIECES[random.below(PIECES.len())].bytes())),
            4 => drop(text.splice(at..end, PIECES[random.below(PIECES.len())].bytes())),
            _ => *text = replace_word(text, random),
        }
    }
}

/// The text with every occurrence of one word replaced by another: what stays consistent gets past more checks.
fn replace_word(text: &[u8], random: &mut crate::examples::Random) -> Vec<u8> {
    const WORDS: [&[u8]; 10] = [b"0", b"1", b"2", b"3", b"64", b"4294967296", b"t", b"b", b"bf16", b"true"];
    let same_word = |a: &u8, b: &u8| a.is_ascii_alphanumeric() && b.is_ascii_alphanumeric();
    let pieces: Vec<&[u8]> = text.chunk_by(same_word).collect();
    let words: Vec<&[u8]> = pieces.iter().copied().filter(|piece| piece[0].is_ascii_alphanumeric()).collect();
    let Some(&old) = words.get(random.below(words.len())) else { return text.to_vec() };
    let new = if random.below(2) == 0 { words[random.below(words.len())] } else { WORDS[random.below(WORDS.len())] };
    pieces.iter().flat_map(|piece| if *piece == old { new } else { piece }).copied().collect()
}

/// One round of fuzzing: for any bytes, parsing does not panic, and what parses is a valid graph that prints to a text of the
/// same graph. Panics where that does not hold.
pub fn fuzz_once(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(graph) = Graph::parse(&text) {
        assert_eq!(graph.verify(), Ok(()), "parsed a graph that is not valid: {text}");
        let printed = graph.to_string();
        assert_eq!(Graph::parse(&printed).as_ref(), Ok(&graph), "printed text is not the graph's: {printed}");
    }
}
