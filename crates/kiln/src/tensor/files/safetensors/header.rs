//! The header of a safetensors file: which tensors there are, and where. Nothing it says is believed unchecked.

use super::json::{self, Value};
use crate::DType;
use crate::error::FormatError;
use crate::tensor::shape::checked_elements;
use std::collections::BTreeMap;
use std::ops::Range;

/// What a file says about its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// By name.
    pub entries: BTreeMap<String, Entry>,
    /// The `__metadata__`.
    pub metadata: BTreeMap<String, String>,
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the beginning of the file.
    pub range: Range<usize>,
}

/// The longest header that is read, as in the reference implementation.
const LONGEST: u64 = 100_000_000;

impl Header {
    /// Reads the header of a whole file and checks it against the file's size.
    pub fn parse(file: &[u8]) -> Result<Header, FormatError> {
        let Some((length, rest)) = file.split_first_chunk::<8>() else {
            return Err(FormatError::TooShort { bytes: file.len() as u64 });
        };
        let length = u64::from_le_bytes(*length);
        let too_long = || FormatError::HeaderLength { length, bytes: file.len() };
        let length =
            usize::try_from(length).ok().filter(|&n| n <= rest.len() && n as u64 <= LONGEST).ok_or_else(too_long)?;
        let (text, elements) = rest.split_at(length);
        let text =
            std::str::from_utf8(text).map_err(|e| FormatError::Json { what: "not UTF-8", at: e.valid_up_to() })?;
        let Value::Object(members) = json::parse(text)? else {
            return Err(FormatError::Json { what: "not an object", at: 0 });
        };
        let mut header = Header { entries: BTreeMap::new(), metadata: BTreeMap::new() };
        for (name, value) in members {
            if name == "__metadata__" {
                header.metadata = metadata(value)?;
                continue;
            }
            let mut entry = entry(&name, value, elements.len())?;
            entry.range = entry.range.start + 8 + length..entry.range.end + 8 + length;
            if header.entries.insert(name.clone(), entry).is_some() {
                return Err(FormatError::Duplicate { name });
            }
        }
        header.check_cover(8 + length, file.len())?;
        Ok(header)
    }

    /// Tensors follow one another without gap or overlap, from the end of the header to the end of the file.
    fn check_cover(&self, first: usize, end: usize) -> Result<(), FormatError> {
        let mut in_order: Vec<(&String, &Entry)> = self.entries.iter().collect();
        in_order.sort_by_key(|(_, entry)| (entry.range.start, entry.range.end));
        let mut expected = first;
        for (name, entry) in in_order {
            if entry.range.start != expected {
                return Err(FormatError::Gap { name: name.clone(), expected, begin: entry.range.start });
            }
            expected = entry.range.end;
        }
        if expected != end {
            return Err(FormatError::Gap { name: "(end of file)".into(), expected, begin: end });
        }
        Ok(())
    }

    /// The first bytes of a file with these tensors, length included.
    pub(super) fn write<'a>(
        tensors: impl Iterator<Item = (&'a str, DType, &'a [usize])>,
        metadata: &BTreeMap<String, String>,
    ) -> Result<Vec<u8>, FormatError> {
        let mut text = String::from("{");
        if !metadata.is_empty() {
            text += "\"__metadata__\":{";
            for (i, (key, value)) in metadata.iter().enumerate() {
                text += if i > 0 { "," } else { "" };
                json::quote(key, &mut text);
                text.push(':');
                json::quote(value, &mut text);
            }
            text += "},";
        }
        let mut begin = 0usize;
        let mut names = std::collections::HashSet::new();
        for (name, dtype, shape) in tensors {
            if !names.insert(name) {
                return Err(FormatError::Duplicate { name: name.into() });
            }
            let Some(stored) = stored_name(dtype) else {
                return Err(FormatError::UnknownDType { name: name.into(), dtype: dtype.to_string() });
            };
            let bytes = checked_elements(shape).and_then(|n| dtype.bytes_for(n));
            let end = bytes.and_then(|n| begin.checked_add(n));
            let end = end.ok_or(FormatError::BadEntry { name: name.into(), what: "it is too large" })?;
            json::quote(name, &mut text);
            text += &format!(":{{\"dtype\":\"{stored}\",\"shape\":{shape:?},\"data_offsets\":[{begin},{end}]}},");
            begin = end;
        }
        if text.ends_with(',') {
            text.pop();
        }
        text.push('}');
        // Elements begin at a multiple of 64 bytes.
        while !(text.len() + 8).is_multiple_of(64) {
            text.push(' ');
        }
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(text.as_bytes());
        Ok(bytes)
    }
}

fn metadata(value: Value) -> Result<BTreeMap<String, String>, FormatError> {
    let bad = || FormatError::BadEntry { name: "__metadata__".into(), what: "its values have to be strings" };
    let Value::Object(members) = value else { return Err(bad()) };
    let mut metadata = BTreeMap::new();
    for (key, value) in members {
        let Value::String(text) = value else { return Err(bad()) };
        metadata.insert(key, text);
    }
    Ok(metadata)
}

/// One tensor; its range counts from the first element byte.
fn entry(name: &str, value: Value, bytes: usize) -> Result<Entry, FormatError> {
    let bad = |what| FormatError::BadEntry { name: name.to_owned(), what };
    let Value::Object(members) = value else { return Err(bad("it is not an object")) };
    let (mut dtype, mut shape, mut offsets) = (None, None, None);
    for (key, value) in members {
        match key.as_str() {
            "dtype" => dtype = Some(value),
            "shape" => shape = Some(value),
            "data_offsets" => offsets = Some(value),
            // Readers ignore what they do not know.
            _ => {}
        }
    }
    let Some(Value::String(dtype)) = dtype else { return Err(bad("it has no dtype")) };
    let Some(shape) = shape.and_then(Value::into_integers) else { return Err(bad("its shape is no list of sizes")) };
    let offsets = offsets.and_then(Value::into_integers);
    let Some(&[begin, end]) = offsets.as_deref() else { return Err(bad("its data_offsets are no pair")) };
    let known = DType::ALL.into_iter().find(|&d| stored_name(d) == Some(&dtype));
    let Some(dtype) = known else { return Err(FormatError::UnknownDType { name: name.to_owned(), dtype }) };

    let inside = begin <= end && usize::try_from(end).is_ok_and(|end| end <= bytes);
    if !inside {
        return Err(FormatError::BadOffsets { name: name.to_owned(), begin, end, bytes });
    }
    let sizes: Option<Vec<usize>> = shape.iter().map(|&n| usize::try_from(n).ok()).collect();
    let needed = sizes.as_deref().and_then(checked_elements).and_then(|n| dtype.bytes_for(n));
    match (sizes, needed) {
        (Some(sizes), Some(needed)) if needed as u64 == end - begin => {
            Ok(Entry { dtype, shape: sizes, range: begin as usize..end as usize })
        }
        _ => Err(FormatError::WrongSize { name: name.to_owned(), dtype, shape, bytes: end - begin }),
    }
}

/// The format's name of a dtype.
fn stored_name(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::F16 => "F16",
        DType::Bf16 => "BF16",
        DType::I8 => "I8",
        DType::I16 => "I16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
        DType::F8E4M3 => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::I4 => return None,
    })
}
