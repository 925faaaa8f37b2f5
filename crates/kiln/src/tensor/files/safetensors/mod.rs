//! Reading and writing safetensors files: a length, a JSON header, then the elements of every tensor.
//!
//! ```text
//!  8 bytes: length n of the header, little-endian
//!  n bytes: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …, "__metadata__": {…}}
//!  the rest: elements; offsets count from here
//! ```
//!
//! Files are foreign input: every length, shape and offset is checked before it is used. Loading maps the file, so that
//! tensors are views of it and only what is used is read from disk.

mod header;
mod json;

pub use crate::error::FormatError;
pub use header::{Entry, Header};

use crate::{Bytes, Device, Error, Result, Tensor};
use kiln_ir::Source;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Tensors by name, with the file's metadata.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    /// By name, in order.
    pub tensors: BTreeMap<String, Tensor>,
    /// The `__metadata__` of the file.
    pub metadata: BTreeMap<String, String>,
}

/// Loads every tensor of a file. On the CPU they are views of the mapped file, which must not change while they live;
/// elsewhere they are copied to the device.
///
/// ```
/// use kiln::{DType, Device, Tensor, safetensors};
/// # let dir = std::env::temp_dir().join(format!("kiln-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir).unwrap();
/// let path = dir.join("model.safetensors");
/// let weight = Tensor::ones([2, 3], DType::Bf16, Device::Cpu)?;
/// safetensors::save(&path, [("weight", &weight)])?;
/// let loaded = safetensors::load(&path, Device::Cpu)?;
/// assert_eq!(loaded["weight"].shape(), [2, 3]);
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), kiln::Error>(())
/// ```
#[track_caller]
pub fn load(path: impl AsRef<Path>, device: Device) -> Result<BTreeMap<String, Tensor>> {
    Ok(load_checkpoint(path, device)?.tensors)
}

/// [`load`], with the file's metadata.
#[track_caller]
pub fn load_checkpoint(path: impl AsRef<Path>, device: Device) -> Result<Checkpoint> {
    let at = Source::caller();
    let path = path.as_ref();
    let failed = |cause: FormatError| Error::Safetensors {
        path: path.display().to_string(),
        cause: Box::new(cause),
        at: at.clone(),
    };
    let opened = crate::tensor::files::open(path).and_then(|file| file.metadata());
    let length = opened.map_err(|e| failed(FormatError::io(&e)))?.len();
    if length < 8 {
        return Err(failed(FormatError::TooShort { bytes: length }));
    }
    let map = Bytes::map(path).map_err(|e| failed(FormatError::io(&e)))?;
    let header = Header::parse(&map).map_err(failed)?;
    let mut tensors = BTreeMap::new();
    for (name, entry) in header.entries {
        tensors.insert(name, map.tensor_at(entry.range, entry.shape, entry.dtype, device, &at)?);
    }
    Ok(Checkpoint { tensors, metadata: header.metadata })
}

/// Loads every tensor of a file that is already in memory.
#[track_caller]
pub fn from_bytes(bytes: &[u8], device: Device) -> Result<Checkpoint> {
    let at = Source::caller();
    let failed =
        |cause: FormatError| Error::Safetensors { path: "bytes".into(), cause: Box::new(cause), at: at.clone() };
    let header = Header::parse(bytes).map_err(failed)?;
    let mut tensors = BTreeMap::new();
    for (name, entry) in header.entries {
        let tensor = Tensor::from_bytes_at(&bytes[entry.range], entry.shape, entry.dtype, device, &at)?;
        tensors.insert(name, tensor);
    }
    Ok(Checkpoint { tensors, metadata: header.metadata })
}

/// Writes tensors to a file, under a temporary name first, so that a file of that name is always complete.
#[track_caller]
pub fn save<'a, N: AsRef<str>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, &'a Tensor)>,
) -> Result<()> {
    save_checkpoint(path, tensors, &BTreeMap::new())
}

/// [`save`], with metadata.
#[track_caller]
pub fn save_checkpoint<'a, N: AsRef<str>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, &'a Tensor)>,
    metadata: &BTreeMap<String, String>,
) -> Result<()> {
    let at = Source::caller();
    let path = path.as_ref();
    let failed = |cause: FormatError| Error::Safetensors {
        path: path.display().to_string(),
        cause: Box::new(cause),
        at: at.clone(),
    };
    let mut named: Vec<(String, &Tensor)> = tensors.into_iter().map(|(n, t)| (n.as_ref().to_owned(), t)).collect();
    // Wide elements first: then every tensor is aligned.
    named.sort_by(|(a, x), (b, y)| y.dtype().size_in_bits().cmp(&x.dtype().size_in_bits()).then_with(|| a.cmp(b)));
    let header =
        Header::write(named.iter().map(|(name, t)| (name.as_str(), t.dtype(), t.shape())), metadata).map_err(failed)?;
    let temporary = path.with_extension(format!("tmp{}", std::process::id()));
    let outcome =
        write_file(&temporary, &header, &named, &at).and_then(|io| io.map_err(|e| failed(FormatError::io(&e))));
    let outcome = outcome.and_then(|()| std::fs::rename(&temporary, path).map_err(|e| failed(FormatError::io(&e))));
    if outcome.is_err() {
        // The error being returned says more than one about a leftover would.
        let _ = std::fs::remove_file(&temporary);
    }
    outcome
}

/// Tensor errors on the outside, file errors on the inside.
fn write_file(path: &Path, header: &[u8], tensors: &[(String, &Tensor)], at: &Source) -> Result<std::io::Result<()>> {
    let mut file = match File::create(path).map(std::io::BufWriter::new) {
        Ok(file) => file,
        Err(e) => return Ok(Err(e)),
    };
    if let Err(e) = file.write_all(header) {
        return Ok(Err(e));
    }
    for (_, tensor) in tensors {
        if let Err(e) = file.write_all(&tensor.bytes_at(at)?) {
            return Ok(Err(e));
        }
    }
    Ok(file.flush())
}
