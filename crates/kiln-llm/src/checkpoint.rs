//! The weights of a folder in Hugging Face's layout.

use crate::config::Fields;
use crate::weight_files::WeightFiles;
use crate::{Error, Result};
use kiln::{BlockFormat, DType, Device, Tensor, safetensors};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

/// Tensors by name. On the CPU they are views of the mapped files, which must not change while a tensor lives.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    /// By name.
    pub tensors: BTreeMap<String, Tensor>,
    /// Those of the tensors that are quantised blocks: bytes, `[rows, bytes of a row]`.
    pub formats: BTreeMap<String, BlockFormat>,
}

impl Checkpoint {
    /// The weights of a folder: the shards that `model.safetensors.index.json` or another index names, `model.safetensors`,
    /// or whatever safetensors files there are, all of them together. A tensor that two files have is an error.
    pub fn open(folder: impl AsRef<Path>, device: Device) -> Result<Checkpoint> {
        let folder = folder.as_ref();
        match WeightFiles::find(folder)? {
            WeightFiles::Index(index) => Checkpoint::sharded(folder, &Fields::read(index)?, device),
            WeightFiles::Whole(files) => Checkpoint::union(&files, device),
        }
    }

    /// The weights of a safetensors file in memory.
    pub fn from_bytes(bytes: &[u8], device: Device) -> Result<Checkpoint> {
        Ok(Checkpoint { tensors: safetensors::from_bytes(bytes, device)?.tensors, ..Checkpoint::default() })
    }

    /// The dtype of most of the bytes.
    pub fn dtype(&self) -> Option<DType> {
        let mut bytes: Vec<(DType, usize)> = Vec::new();
        for tensor in self.tensors.values() {
            let (dtype, size) = (tensor.dtype(), tensor.dtype().bytes_for(tensor.elements()).unwrap_or(0));
            match bytes.iter_mut().find(|(known, _)| *known == dtype) {
                Some((_, sum)) => *sum += size,
                None => bytes.push((dtype, size)),
            }
        }
        bytes.into_iter().max_by_key(|&(_, sum)| sum).map(|(dtype, _)| dtype)
    }

    /// The tensors of all files.
    fn union(files: &[PathBuf], device: Device) -> Result<Checkpoint> {
        let mut tensors = BTreeMap::new();
        for path in files {
            for (name, tensor) in safetensors::load(path, device)? {
                if tensors.insert(name.clone(), tensor).is_some() {
                    return Err(Error::DuplicateTensor { path: path.clone(), name });
                }
            }
        }
        Ok(Checkpoint { tensors, ..Checkpoint::default() })
    }

    fn sharded(folder: &Path, index: &Fields, device: Device) -> Result<Checkpoint> {
        let map = index.get("weight_map").and_then(|map| map.as_object());
        let map = map.ok_or_else(|| index.bad("weight_map", "it is missing or no object"))?;
        let mut shards: BTreeMap<&str, BTreeMap<String, Tensor>> = BTreeMap::new();
        let mut tensors = BTreeMap::new();
        for (name, shard) in map {
            let Some(shard) = shard.as_str() else {
                return Err(index.bad("weight_map", format!("'{name}' is in no file")));
            };
            let bad = |problem| Error::BadShard {
                path: index.path().to_owned(),
                name: name.clone(),
                shard: shard.into(),
                problem,
            };
            if !shards.contains_key(shard) {
                // A checkpoint names files beside itself, and no others of the machine.
                let mut parts = Path::new(shard).components();
                if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                    return Err(bad("the file is not one of this folder"));
                }
                shards.insert(shard, safetensors::load(folder.join(shard), device)?);
            }
            let tensor = shards.get_mut(shard).and_then(|shard| shard.remove(name));
            tensors.insert(name.clone(), tensor.ok_or_else(|| bad("the file does not have it"))?);
        }
        // What the index does not name is part of the model all the same: whoever loads it says what was not used.
        for (shard, rest) in shards {
            for (name, tensor) in rest {
                if tensors.insert(name.clone(), tensor).is_some() {
                    return Err(Error::DuplicateTensor { path: folder.join(shard), name });
                }
            }
        }
        Ok(Checkpoint { tensors, ..Checkpoint::default() })
    }
}
