//! The weights of a folder in Hugging Face's layout, and how modules take theirs from them.

use crate::config::Fields;
use crate::{Error, Result};
use kiln::nn::{Embedding, Linear, RmsNorm};
use kiln::{DType, Device, Tensor, Var, safetensors};
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// Tensors by name. On the CPU they are views of the mapped files, which have to stay as they are while a tensor lives.
#[derive(Debug, Clone, Default)]
pub struct Checkpoint {
    /// By name.
    pub tensors: BTreeMap<String, Tensor>,
}

impl Checkpoint {
    /// The weights of a folder: `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    pub fn open(folder: impl AsRef<Path>, device: Device) -> Result<Checkpoint> {
        let folder = folder.as_ref();
        let (single, index) = (folder.join("model.safetensors"), folder.join("model.safetensors.index.json"));
        if index.exists() {
            Checkpoint::sharded(folder, &Fields::read(index)?, device)
        } else if single.exists() {
            Ok(Checkpoint { tensors: safetensors::load(single, device)? })
        } else {
            Err(Error::NoWeights { path: folder.to_owned() })
        }
    }

    /// The weights of a safetensors file in memory.
    pub fn from_bytes(bytes: &[u8], device: Device) -> Result<Checkpoint> {
        Ok(Checkpoint { tensors: safetensors::from_bytes(bytes, device)?.tensors })
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
        Ok(Checkpoint { tensors })
    }
}

/// The part of a checkpoint under a prefix, as modules take it: in one dtype, in shapes that are checked.
#[derive(Debug, Clone)]
pub struct Weights<'a> {
    tensors: &'a BTreeMap<String, Tensor>,
    prefix: String,
    dtype: DType,
}

impl<'a> Weights<'a> {
    /// All of a checkpoint. Tensors of another float dtype are converted, the others stay mapped.
    pub fn new(checkpoint: &'a Checkpoint, dtype: DType) -> Weights<'a> {
        Weights { tensors: &checkpoint.tensors, prefix: String::new(), dtype }
    }

    /// The part whose names begin with `name` and a dot.
    pub fn under(&self, name: impl std::fmt::Display) -> Weights<'a> {
        Weights { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// One tensor as a variable.
    pub fn var(&self, name: &str, shape: &[usize]) -> Result<Var> {
        let name = format!("{}{name}", self.prefix);
        let Some(tensor) = self.tensors.get(&name) else { return Err(Error::MissingTensor { name }) };
        if tensor.shape() != shape {
            return Err(Error::WrongShape { name, expected: shape.to_vec(), got: tensor.shape().to_vec() });
        }
        Ok(Var::named(&name, &tensor.to_dtype(self.dtype)?))
    }

    /// A linear layer.
    pub fn linear(&self, name: &str, input: usize, output: usize, bias: bool) -> Result<Linear> {
        let weights = self.under(name);
        let bias = if bias { Some(weights.var("bias", &[output])?) } else { None };
        Ok(Linear { weight: weights.var("weight", &[output, input])?, bias })
    }

    /// A table of vectors.
    pub fn embedding(&self, name: &str, rows: usize, width: usize) -> Result<Embedding> {
        Ok(Embedding { weight: self.under(name).var("weight", &[rows, width])? })
    }

    /// A root-mean-square norm.
    pub fn rms_norm(&self, name: &str, width: usize, epsilon: f64) -> Result<RmsNorm> {
        Ok(RmsNorm { weight: self.under(name).var("weight", &[width])?, epsilon })
    }
}
