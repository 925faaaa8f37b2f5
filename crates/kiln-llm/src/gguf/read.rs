//! Reading all but the elements of a GGUF file. Nothing it says is believed unchecked.

use super::BlockType;
use kiln::shown;
use std::collections::BTreeMap;
use std::ops::Range;

/// Why a file is no GGUF file, or cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// Something else.
    #[error("it does not begin with 'GGUF'")]
    NotGguf,
    /// A version that is not known.
    #[error("version {} is not supported", if version.swap_bytes() <= 3 { "big-endian".into() } else { version.to_string() })]
    Version {
        /// As the file says.
        version: u32,
    },
    /// The file ends within something.
    #[error("{what} at byte {at} goes beyond the end of the file")]
    End {
        /// What.
        what: &'static str,
        /// Where it begins.
        at: usize,
    },
    /// Bytes that are no text.
    #[error("the text at byte {at} is not UTF-8")]
    NotUtf8 {
        /// Where it begins.
        at: usize,
    },
    /// A type of values that is not known, or lists of lists of lists.
    #[error("the value at byte {at} is of type {kind}, which is not supported there")]
    ValueType {
        /// As the file says.
        kind: u32,
        /// Where it is.
        at: usize,
    },
    /// Lists that are longer than any vocabulary.
    #[error("the list at byte {at} and those before it have more than {most} values")]
    Lists {
        /// Where the list's values begin.
        at: usize,
        /// How many lists may have together.
        most: usize,
    },
    /// More keys or tensors than any model has.
    #[error("{count} keys or tensors are more than the {most} that are read")]
    Entries {
        /// As the file says.
        count: usize,
        /// As many as there may be.
        most: usize,
    },
    /// A key or a tensor that is there twice.
    #[error("'{}' is there twice", shown(name))]
    Duplicate {
        /// Its name.
        name: String,
    },
    /// A value that is missing, of the wrong kind, or makes no sense.
    #[error("{}: {}", shown(key), shown(problem).up_to(400))]
    BadKey {
        /// Its key.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A tensor that is not as it should be.
    #[error("tensor '{}': {problem}", shown(name))]
    BadTensor {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A way to store elements that there is no code for.
    #[error(
        "tensor '{}' is stored as {}, which is not supported; {} are",
        shown(name), BlockType::name_of(*kind), BlockType::supported()
    )]
    BlockType {
        /// Its name.
        name: String,
        /// The number of the type, as the file says.
        kind: u32,
    },
}

/// A value of a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Metadata {
    /// A number that is not negative.
    Unsigned(u64),
    /// A whole number.
    Signed(i64),
    /// A number.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// A text.
    Text(String),
    /// Several of one kind.
    List(Vec<Metadata>),
}

impl std::fmt::Display for Metadata {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Metadata::Unsigned(n) => write!(f, "{n}"),
            Metadata::Signed(n) => write!(f, "{n}"),
            Metadata::Float(x) => write!(f, "{x}"),
            Metadata::Bool(flag) => write!(f, "{flag}"),
            Metadata::Text(text) => write!(f, "'{text}'"),
            Metadata::List(items) => write!(f, "a list of {}", items.len()),
        }
    }
}

impl Metadata {
    /// A whole number that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Metadata::Unsigned(n) => Some(*n),
            Metadata::Signed(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// A number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Metadata::Unsigned(n) => Some(*n as f64),
            Metadata::Signed(n) => Some(*n as f64),
            Metadata::Float(x) => Some(*x),
            _ => None,
        }
    }
}

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Sizes, the outermost first.
    pub shape: Vec<usize>,
    /// How its elements are stored.
    pub block: BlockType,
    /// Its bytes, counted from the beginning of the file.
    pub range: Range<usize>,
}

impl TensorInfo {
    /// How many elements it has.
    pub fn elements(&self) -> usize {
        // It was computed without overflow when the file was read.
        self.shape.iter().product()
    }
}

/// All but the elements.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Contents {
    pub(super) metadata: BTreeMap<String, Metadata>,
    pub(super) tensors: BTreeMap<String, TensorInfo>,
}

/// Lists nest no deeper.
const DEEPEST: usize = 2;
/// The most keys, and the most tensors: each takes more memory than its bytes of the file.
const ENTRIES: usize = 1 << 20;
/// Values that all lists have together at the most. A value takes more memory than a byte of the file.
const VALUES: usize = 1 << 22;
/// The most axes a tensor has.
const AXES: u32 = 4;
/// The fewest bytes that a key with its value, and a tensor's entry, take.
const KEY_BYTES: usize = 13;
const TENSOR_BYTES: usize = 32;

impl Contents {
    pub(super) fn parse(file: &[u8]) -> Result<Contents, GgufError> {
        let mut reader = Reader { file, at: 0, values: VALUES };
        if reader.take(4, "the magic")? != b"GGUF" {
            return Err(GgufError::NotGguf);
        }
        let version = reader.u32("the version")?;
        if !matches!(version, 2 | 3) {
            return Err(GgufError::Version { version });
        }
        let tensor_count = reader.count("the tensors", TENSOR_BYTES)?;
        let key_count = reader.count("the keys", KEY_BYTES)?;
        if tensor_count.max(key_count) > ENTRIES {
            return Err(GgufError::Entries { count: tensor_count.max(key_count), most: ENTRIES });
        }
        let mut metadata = BTreeMap::new();
        for _ in 0..key_count {
            let key = reader.text()?;
            let kind = reader.u32("a type")?;
            let value = reader.value(kind, 0)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(GgufError::Duplicate { name: key });
            }
        }
        let mut found = Vec::with_capacity(tensor_count.min(1 << 16));
        for _ in 0..tensor_count {
            found.push(reader.tensor()?);
        }
        let alignment = alignment(&metadata)?;
        let start = reader.at.next_multiple_of(alignment);
        let tensors = place(found, start, alignment, file.len())?;
        Ok(Contents { metadata, tensors })
    }
}

fn alignment(metadata: &BTreeMap<String, Metadata>) -> Result<usize, GgufError> {
    let key = "general.alignment";
    let Some(value) = metadata.get(key) else { return Ok(32) };
    let size = value.as_u64().filter(|n| n.is_power_of_two() && *n <= 1 << 20);
    size.map(|n| n as usize)
        .ok_or(GgufError::BadKey { key: key.into(), problem: "no power of two up to 2²⁰".into() })
}

/// Checks the tensors' places: aligned, within the file, without overlap.
fn place(
    found: Vec<(String, TensorInfo, u64)>,
    start: usize,
    alignment: usize,
    length: usize,
) -> Result<BTreeMap<String, TensorInfo>, GgufError> {
    let mut tensors = BTreeMap::new();
    for (name, mut tensor, offset) in found {
        let bad = |problem| GgufError::BadTensor { name: name.clone(), problem };
        let offset = usize::try_from(offset).map_err(|_| bad("its offset is beyond the file"))?;
        if !offset.is_multiple_of(alignment) {
            return Err(bad("its offset is not aligned"));
        }
        let begin = start.checked_add(offset);
        let end = begin.and_then(|begin| begin.checked_add(tensor.range.len()));
        let (Some(begin), Some(end)) = (begin, end.filter(|&end| end <= length)) else {
            return Err(bad("its elements go beyond the end of the file"));
        };
        tensor.range = begin..end;
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(GgufError::Duplicate { name });
        }
    }
    let mut order: Vec<(&String, &Range<usize>)> = tensors.iter().map(|(name, t)| (name, &t.range)).collect();
    order.sort_by_key(|(_, range)| (range.start, range.end));
    if let Some(pair) = order.windows(2).find(|pair| pair[0].1.end > pair[1].1.start) {
        return Err(GgufError::BadTensor { name: pair[1].0.clone(), problem: "it shares bytes with another" });
    }
    Ok(tensors)
}

struct Reader<'a> {
    file: &'a [u8],
    at: usize,
    /// How many more values lists may have.
    values: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize, what: &'static str) -> Result<&'a [u8], GgufError> {
        let end = self.at.checked_add(bytes).filter(|&end| end <= self.file.len());
        let end = end.ok_or(GgufError::End { what, at: self.at })?;
        let taken = &self.file[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let at = self.at;
        self.take(N, what)?.try_into().map_err(|_| GgufError::End { what, at })
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// How many things follow, of which each takes so many bytes at least.
    fn count(&mut self, what: &'static str, each: usize) -> Result<usize, GgufError> {
        let at = self.at;
        let count = self.u64(what)?;
        let most = (self.file.len() - self.at) / each;
        usize::try_from(count).ok().filter(|&n| n <= most).ok_or(GgufError::End { what, at })
    }

    fn text(&mut self) -> Result<String, GgufError> {
        let length = self.count("a text", 1)?;
        let at = self.at;
        let bytes = self.take(length, "a text")?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| GgufError::NotUtf8 { at })
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Metadata, GgufError> {
        let at = self.at;
        let what = "a value";
        Ok(match kind {
            0 => Metadata::Unsigned(u8::from_le_bytes(self.array(what)?).into()),
            1 => Metadata::Signed(i8::from_le_bytes(self.array(what)?).into()),
            2 => Metadata::Unsigned(u16::from_le_bytes(self.array(what)?).into()),
            3 => Metadata::Signed(i16::from_le_bytes(self.array(what)?).into()),
            4 => Metadata::Unsigned(self.u32(what)?.into()),
            5 => Metadata::Signed(i32::from_le_bytes(self.array(what)?).into()),
            6 => Metadata::Float(f32::from_le_bytes(self.array(what)?).into()),
            7 => Metadata::Bool(self.take(1, what)? != [0]),
            8 => Metadata::Text(self.text()?),
            9 if depth < DEEPEST => {
                let kind = self.u32("a type")?;
                let count = self.count("a list", smallest(kind))?;
                let left = self.values.checked_sub(count);
                self.values = left.ok_or(GgufError::Lists { at: self.at, most: VALUES })?;
                Metadata::List((0..count).map(|_| self.value(kind, depth + 1)).collect::<Result<_, _>>()?)
            }
            10 => Metadata::Unsigned(self.u64(what)?),
            11 => Metadata::Signed(i64::from_le_bytes(self.array(what)?)),
            12 => Metadata::Float(f64::from_le_bytes(self.array(what)?)),
            _ => return Err(GgufError::ValueType { kind, at }),
        })
    }

    /// Name, tensor and offset; the range of the tensor is only as long as its bytes.
    fn tensor(&mut self) -> Result<(String, TensorInfo, u64), GgufError> {
        let name = self.text()?;
        let bad = |problem| GgufError::BadTensor { name: name.clone(), problem };
        let axes = self.u32("a rank")?;
        if axes > AXES {
            return Err(bad("it has more than 4 axes"));
        }
        let mut shape = Vec::with_capacity(axes as usize);
        for _ in 0..axes {
            let size = self.u64("a size")?;
            shape.push(usize::try_from(size).map_err(|_| bad("it is too large"))?);
        }
        let kind = self.u32("a type")?;
        let block = BlockType::from_code(kind).ok_or(GgufError::BlockType { name: name.clone(), kind })?;
        // The file has the innermost axis first; a row is made of whole blocks.
        if !shape.first().copied().unwrap_or(1).is_multiple_of(block.elements()) {
            return Err(bad("its rows are not made of whole blocks"));
        }
        let elements = shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n));
        let bytes = elements.and_then(|n| (n / block.elements()).checked_mul(block.bytes()));
        let bytes = bytes.ok_or_else(|| bad("it is too large"))?;
        shape.reverse();
        let offset = self.u64("an offset")?;
        Ok((name, TensorInfo { shape, block, range: 0..bytes }, offset))
    }
}

/// The fewest bytes that a value of a type takes.
fn smallest(kind: u32) -> usize {
    match kind {
        2 | 3 => 2,
        4..=6 => 4,
        8 | 10..=12 => 8,
        9 => 12,
        _ => 1,
    }
}
