//! What the layers of one pass share: the positions of its tokens, their visible keys and their rotations.

use super::{Inner, KvCache};
use kiln::{DType, Device, RopeStyle, Tensor};

/// One pass of tokens through a model, over a cache.
#[derive(Debug, Clone)]
pub struct Step {
    cache: KvCache,
    positions: Tensor,
    /// Where keys and values go, `[batch · tokens · kv_heads]`.
    rows: Tensor,
    /// Cosines and sines of each rotation, `[batch, 1, tokens, pairs]`.
    turns: Vec<(Tensor, Tensor)>,
    table: Option<Tensor>,
}

/// The attention window of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Window {
    /// To the beginning of its text.
    All,
    /// So many tokens, itself included.
    Last(usize),
}

/// The visible keys of each token; see [`Step::mask`].
#[derive(Debug, Clone)]
pub struct Mask(Tensor);

impl Mask {
    /// `[batch, 1, tokens, places]`, true where the key is visible to the token; or, not on a CPU, `[batch, 1, tokens, 2]` (i64), the
    /// first visible key and the end of the visible keys. Attention takes either.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }
}

impl Step {
    #[track_caller]
    pub(super) fn new(cache: &KvCache, positions: &Tensor, table: Option<&Tensor>) -> kiln::Result<Step> {
        let inner = &cache.0;
        let rows = inner.rows(positions, table)?;
        let turns = inner.turns(positions, None)?;
        Ok(Step { cache: cache.clone(), positions: positions.clone(), rows, turns, table: table.cloned() })
    }

    /// The same as a part of texts of these lengths, `[batch, 1]` (i64), which decide how models turn positions whose angles
    /// change with the length of a text. Without it a text ends with its last token of the pass.
    #[track_caller]
    pub fn of_texts(mut self, lengths: &Tensor) -> kiln::Result<Step> {
        if self.cache.0.angles.iter().any(|angles| angles.border.is_some()) {
            self.turns = self.cache.0.turns(&self.positions, Some(lengths))?;
        }
        Ok(self)
    }

    /// The place of each token in its own text, `[batch, tokens]` (i64).
    pub fn positions(&self) -> &Tensor {
        &self.positions
    }

    /// Rotates heads, `[batch, heads, tokens, depth]`, by rotation `which` of the model. A rotation with fewer than depth /
    /// 2 frequencies rotates the first elements of a head and leaves the rest.
    #[track_caller]
    pub fn rotate(&self, which: usize, heads: &Tensor) -> kiln::Result<Tensor> {
        let (rotation, (cos, sin)) = (&self.cache.0.angles[which].rotation, &self.turns[which]);
        let (turned, depth) = (2 * rotation.frequencies.len(), heads.size(-1)?);
        let style: RopeStyle = rotation.style;
        if turned == self.cache.0.shape.head_dim {
            return heads.rope(cos, sin, style);
        }
        let first = heads.narrow(-1, 0, turned)?.rope(cos, sin, style)?;
        let rest = heads.narrow(-1, turned, depth - turned)?;
        Tensor::cat(&[first, rest], -1)
    }

    /// Returns the mask of visible keys: each token attends to the tokens of its own text up to itself. Compute it once per
    /// pass; layers share it.
    #[track_caller]
    pub fn mask(&self, window: Window) -> kiln::Result<Mask> {
        let own = self.positions.unsqueeze(1)?.unsqueeze(-1)?;
        let window = match window {
            Window::Last(count) if count < self.cache.context() => Some(count as i64),
            _ => None,
        };
        // A GPU's attention reads no key outside of the bounds; a CPU's compares masks faster than it would make them of bounds.
        if self.positions.device() != Device::Cpu {
            let end = (&own + 1)?;
            let first = match window {
                Some(count) => (&end - count)?,
                None => own.zeros_like()?,
            };
            return Ok(Mask(Tensor::cat(&[first, end], -1)?));
        }
        let places = self.places()?;
        let seen = places.le(&own)?;
        Ok(Mask(match window {
            Some(count) => seen.logical_and(&places.gt(&(own - count)?)?)?,
            None => seen,
        }))
    }

    /// Places of the cache that attention reads.
    #[track_caller]
    fn places(&self) -> kiln::Result<Tensor> {
        let (columns, page) = (&self.cache.0.columns, self.cache.0.shape.page);
        match &self.table {
            None => Ok(columns.clone()),
            Some(table) => columns.narrow(0, 0, table.size(1)? * page),
        }
    }

    /// Writes keys and values, `[batch, kv_heads, tokens, depth]`, of a layer to the tokens' places; then what queries,
    /// `[batch, heads, tokens, depth]`, find there. Without a scale that is 1 / √depth.
    #[track_caller]
    pub fn attend(
        &self,
        layer: usize,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        mask: &Mask,
        scale: Option<f64>,
    ) -> kiln::Result<Tensor> {
        let inner = &self.cache.0;
        let (keys, values) = &inner.layers[layer];
        // In the order in which projections make them, so that there is nothing to move.
        let flat = |heads: &Tensor| heads.transpose(1, 2)?.flatten(0, 2);
        keys.index_copy(0, &self.rows, &flat(k)?)?;
        values.index_copy(0, &self.rows, &flat(v)?)?;
        let (keys, values) = (self.read(&keys.get())?, self.read(&values.get())?);
        q.scaled_dot_product_attention(&keys, &values, Some(&mask.0), false, scale)
    }

    /// Keys or values of each row's text, `[batch, kv_heads, places, depth]`.
    #[track_caller]
    fn read(&self, memory: &Tensor) -> kiln::Result<Tensor> {
        let shape = self.cache.0.shape;
        let pages = memory.reshape([shape.pages, shape.kv_heads, shape.page, shape.head_dim])?;
        match &self.table {
            None => pages.narrow(0, 0, self.positions.size(0)?),
            Some(table) => {
                let (batch, count) = (table.size(0)?, table.size(1)?);
                let own = pages.index_select(0, &table.flatten(0, 1)?)?;
                let own = own.unflatten(0, [batch, count])?;
                own.transpose(1, 2)?.flatten(2, 3)
            }
        }
    }
}

impl Inner {
    /// Cosines and sines of each rotation at positions of texts of these lengths.
    #[track_caller]
    fn turns(&self, positions: &Tensor, lengths: Option<&Tensor>) -> kiln::Result<Vec<(Tensor, Tensor)>> {
        let mut turns = Vec::with_capacity(self.angles.len());
        for angles in &self.angles {
            let rows = match angles.border {
                None => positions.clone(),
                Some(border) => {
                    let lengths = match lengths {
                        Some(lengths) => lengths.clone(),
                        None => (positions.amax_keepdim(-1)? + 1)?,
                    };
                    (positions + (lengths.gt(border as i64)?.to_dtype(DType::I64)? * self.shape.context as i64)?)?
                }
            };
            let turn = |table: &Tensor| table.embedding(&rows)?.unsqueeze(1);
            turns.push((turn(&angles.cos)?, turn(&angles.sin)?));
        }
        Ok(turns)
    }

    /// Where keys and values of tokens go.
    #[track_caller]
    fn rows(&self, positions: &Tensor, table: Option<&Tensor>) -> kiln::Result<Tensor> {
        let first_rows = &self.first_rows;
        let rows = match table {
            Some(table) => {
                let page = self.shape.page as i64;
                let number = table.gather(1, &positions.div_floor(page)?)?;
                let first = (number * (page * self.shape.kv_heads as i64))?;
                ((first + positions.remainder(page)?)?.unsqueeze(-1)? + first_rows.narrow(0, 0, 1)?)?
            }
            None => (positions.unsqueeze(-1)? + first_rows.narrow(0, 0, positions.size(0)?)?)?,
        };
        rows.flatten(0, 2)
    }
}
