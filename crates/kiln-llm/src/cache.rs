//! The static cache of keys and values: as long as the context, written at positions that are data.

use crate::{LlamaConfig, Result};
use kiln::{DType, Device, Tensor, Var};

/// Keys and values of every layer for every position of a context, with the rotary embedding of each position.
#[derive(Debug, Clone)]
pub struct KvCache {
    layers: Vec<(Var, Var)>,
    cos: Tensor,
    sin: Tensor,
    columns: Tensor,
    length: usize,
}

/// What the layers of one pass share: where its tokens are, and what each sees.
#[derive(Debug, Clone)]
pub struct Places {
    /// Positions of the tokens, `[tokens]`.
    pub positions: Tensor,
    /// Cosines of their angles, `[tokens, head_dim / 2]`.
    pub cos: Tensor,
    /// Sines.
    pub sin: Tensor,
    /// Which positions each sees: all up to its own, `[tokens, context]`.
    pub mask: Tensor,
}

impl KvCache {
    /// For so many texts of up to `length` tokens each.
    pub fn new(config: &LlamaConfig, batch: usize, length: usize, dtype: DType, device: Device) -> Result<KvCache> {
        let shape = [batch, config.num_key_value_heads, length, config.head_dim];
        let var = |name: &str, layer: usize| {
            let zeros = Tensor::zeros(shape, dtype, device)?;
            Ok::<Var, kiln::Error>(Var::named(&format!("{name}.{layer}"), &zeros))
        };
        let layers: kiln::Result<Vec<(Var, Var)>> =
            (0..config.num_hidden_layers).map(|layer| Ok((var("keys", layer)?, var("values", layer)?))).collect();
        // In f64 here, so that far positions are as exact as near ones.
        let frequencies = config.frequencies();
        let angles = (0..length).flat_map(|at| frequencies.iter().map(move |f| (at as f64 * f) as f32));
        let angles: Vec<f32> = angles.collect();
        let table = |turn: fn(f32) -> f32| {
            let values: Vec<f32> = angles.iter().map(|&angle| turn(angle)).collect();
            Tensor::from_vec(values, [length, frequencies.len()], device)?.to_dtype(dtype)
        };
        Ok(KvCache {
            layers: layers?,
            cos: table(f32::cos)?,
            sin: table(f32::sin)?,
            columns: Tensor::arange(length, DType::I64, device)?,
            length,
        })
    }

    /// Tokens of the context.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Where tokens at these positions (`[tokens]`, i64) are, and what they see.
    #[track_caller]
    pub fn places(&self, positions: &Tensor) -> kiln::Result<Places> {
        Ok(Places {
            positions: positions.clone(),
            cos: self.cos.index_select(0, positions)?,
            sin: self.sin.index_select(0, positions)?,
            mask: self.columns.le(&positions.unsqueeze(-1)?)?,
        })
    }

    /// Writes keys and values, `[batch, heads, tokens, depth]`, of a layer to their positions; gives those of the whole
    /// context.
    #[track_caller]
    pub fn update(&self, layer: usize, places: &Places, k: &Tensor, v: &Tensor) -> kiln::Result<(Tensor, Tensor)> {
        let (keys, values) = &self.layers[layer];
        keys.index_copy(2, &places.positions, k)?;
        values.index_copy(2, &places.positions, v)?;
        Ok((keys.get(), values.get()))
    }
}
