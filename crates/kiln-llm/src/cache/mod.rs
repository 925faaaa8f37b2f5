//! The cache of keys and values, written at places that are data.
//!
//! ```text
//!  a layer's keys:   [pages · kv_heads · page, head_dim]      (values: the same)
//!  static            page = context, text b has page b         no table: reading is a view
//!  paged             text b has the pages table[b, 0], …       reading goes through the table
//! ```
//!
//! A write is one `index_copy` of rows, in place. Where a token goes and what it sees comes from its position and the table,
//! which are tensors: one program serves every position and every table.

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
    /// Cosines and sines of each rotation, each `[context, pairs]`.
    angles: Vec<Angles>,
    /// 0, 1, … below the context, `[context]`.
    columns: Tensor,
    /// Rows of the first token of each page, `[pages, 1, kv_heads]`.
    first_rows: Tensor,
    shape: CacheShape,
}

/// The tables of one rotation.
#[derive(Debug)]
struct Angles {
    cos: Tensor,
    sin: Tensor,
    rotation: Rotation,
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
        // What a key was turned by cannot be changed once it is written, so that it is settled here.
        if let Some((_, frequencies)) = rotation.beyond.take_if(|(original, _)| context > *original) {
            rotation.frequencies = frequencies;
        }
        // In f64 here, so that far positions are as exact as near ones.
        let table = |turn: fn(f64) -> f64| {
            let (frequencies, factor) = (&rotation.frequencies, rotation.factor);
            let row = |at: usize| frequencies.iter().map(move |f| (turn(at as f64 * f) * factor) as f32);
            let values: Vec<f32> = (0..context).flat_map(row).collect();
            Tensor::from_vec(values, [context, frequencies.len()], device)?.to_dtype(dtype)
        };
        Ok(Angles { cos: table(f64::cos)?, sin: table(f64::sin)?, rotation })
    }
}
