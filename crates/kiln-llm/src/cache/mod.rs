//! The cache of keys and values, written at places that are data.
//!
//! ```text
//!  a layer's keys:   [pages · kv_heads · page, head_dim]      (values: the same)
//!  static            page = context, text b has page b         no table: reading is a view
//!  paged             text b has the pages table[b, 0], …       reading goes through the table
//! ```
//!
//! A write is one `index_copy` of rows, in place. Where a token is written and its visible keys follow from its position
//! and the table, which are tensors: one program serves every position and every table.

mod pages;
mod step;

pub use pages::{Pages, Table};
pub use step::{Mask, Step, Window};

use crate::models::{CausalLm, Rotation};
use crate::{Error, Result};
use kiln::{DType, Device, Tensor, Var};
use std::sync::Arc;

/// Keys and values of every layer, with what positions need: angles and columns.
#[derive(Debug, Clone)]
pub struct KvCache(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    layers: Vec<(Var, Var)>,
    /// Cosines and sines of each rotation.
    angles: Vec<Angles>,
    /// 0, 1, … below the context, `[context]`.
    columns: Tensor,
    /// Rows of the first token of each page, `[pages, 1, kv_heads]`.
    first_rows: Tensor,
    shape: CacheShape,
}

/// The tables of one rotation, each `[context, pairs]`; with a border twice that, the second half for texts beyond it.
#[derive(Debug)]
struct Angles {
    cos: Tensor,
    sin: Tensor,
    rotation: Rotation,
    /// Texts of more tokens than these turn by the second half.
    border: Option<usize>,
}

/// Sizes of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    /// Pages of a layer.
    pub pages: usize,
    /// Tokens of a page.
    pub page: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The longest text.
    pub context: usize,
}

impl KvCache {
    /// For so many texts of up to `context` tokens each, every text with memory of its own.
    pub fn fixed(model: &dyn CausalLm, batch: usize, context: usize) -> Result<KvCache> {
        KvCache::paged(model, batch, context, context)
    }

    /// A pool of pages of `page` tokens each, for texts of up to `context` tokens; which pages a text has is said with each
    /// [`Step`], and [`Pages`] keeps account of them.
    pub fn paged(model: &dyn CausalLm, pages: usize, page: usize, context: usize) -> Result<KvCache> {
        let (sizes, dtype, device) = (model.sizes(), model.dtype(), model.device());
        let shape = CacheShape { pages, page, kv_heads: sizes.kv_heads, head_dim: sizes.head_dim, context };
        if [pages, page, context].contains(&0) {
            return Err(Error::EmptyCache { pages, page, context });
        }
        let rows = pages * sizes.kv_heads * page;
        let var = |name: &str, layer: usize| {
            let zeros = Tensor::zeros([rows, sizes.head_dim], dtype, device)?;
            Ok::<Var, kiln::Error>(Var::named(&format!("{name}.{layer}"), &zeros))
        };
        let layers: kiln::Result<Vec<(Var, Var)>> =
            (0..sizes.layers).map(|layer| Ok((var("keys", layer)?, var("values", layer)?))).collect();
        let angles: Result<Vec<Angles>> =
            model.rotations().into_iter().map(|rotation| Angles::new(rotation, context, dtype, device)).collect();
        let first_rows = (0..pages * sizes.kv_heads).map(|row| (row * page) as i64).collect();
        Ok(KvCache(Arc::new(Inner {
            layers: layers?,
            angles: angles?,
            columns: Tensor::arange(context.next_multiple_of(page), DType::I64, device)?,
            first_rows: Tensor::from_vec(first_rows, [pages, 1, sizes.kv_heads], device)?,
            shape,
        })))
    }

    /// Sizes.
    pub fn shape(&self) -> CacheShape {
        self.0.shape
    }

    /// The longest text.
    pub fn context(&self) -> usize {
        self.0.shape.context
    }

    /// Memory of keys and values.
    pub fn bytes(&self) -> usize {
        let bytes = |var: &Var| var.dtype().bytes_for(var.elements()).unwrap_or(0);
        self.0.layers.iter().map(|(keys, values)| bytes(keys) + bytes(values)).sum()
    }

    /// How many borders a text of so many tokens is beyond. At a border positions come to turn otherwise, from the first token
    /// of the text on, so that keys of the text up to there have to be computed again.
    pub fn borders_before(&self, tokens: usize) -> usize {
        self.0.angles.iter().filter(|angles| angles.border.is_some_and(|border| tokens > border)).count()
    }

    /// Whether a text that has grown to so many tokens has just gone beyond a border.
    pub fn crosses_border(&self, tokens: usize) -> bool {
        self.borders_before(tokens) != self.borders_before(tokens.saturating_sub(1))
    }

    /// One pass over a [`KvCache::fixed`] cache: tokens at these positions, `[batch, tokens]` (i64), row b of text b.
    #[track_caller]
    pub fn step(&self, positions: &Tensor) -> kiln::Result<Step> {
        Step::new(self, positions, None)
    }

    /// One pass over a [`KvCache::paged`] cache: the text in row b has the pages `table[b]`, `[batch, pages a text]` (i64),
    /// in the order of its tokens.
    #[track_caller]
    pub fn paged_step(&self, positions: &Tensor, table: &Tensor) -> kiln::Result<Step> {
        Step::new(self, positions, Some(table))
    }
}

impl Angles {
    fn new(mut rotation: Rotation, context: usize, dtype: DType, device: Device) -> Result<Angles> {
        // No text gets to a border behind the context.
        let beyond = rotation.beyond.take().filter(|(border, _)| context > *border);
        let halves: Vec<&[f64]> = std::iter::once(&rotation.frequencies)
            .chain(beyond.iter().map(|(_, long)| long))
            .map(Vec::as_slice)
            .collect();
        // In f64 here, so that far positions are as exact as near ones.
        let table = |turn: fn(f64) -> f64| {
            let angle = |frequencies: &[f64], at: usize| -> Vec<f32> {
                frequencies.iter().map(|f| (turn(at as f64 * f) * rotation.factor) as f32).collect()
            };
            let half =
                |frequencies: &&[f64]| -> Vec<f32> { (0..context).flat_map(|at| angle(frequencies, at)).collect() };
            let values: Vec<f32> = halves.iter().flat_map(half).collect();
            Tensor::from_vec(values, [halves.len() * context, rotation.frequencies.len()], device)?.to_dtype(dtype)
        };
        let (cos, sin) = (table(f64::cos)?, table(f64::sin)?);
        Ok(Angles { cos, sin, rotation, border: beyond.map(|(border, _)| border) })
    }
}
