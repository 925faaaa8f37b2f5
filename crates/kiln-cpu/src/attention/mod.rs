//! Attention: softmax(q·kᵀ·scale + mask)·v in tiles, with an online softmax in f32 and generated inner code; its gradients are in
//! `backward`.
//!
//! ```text
//!  rows of queries that share a key head
//!     │ few   ──▶ Rows      scores [query][key]: keys pass by unpacked, once for all heads of the group      (`dot`)
//!     │ many  ──▶ Columns   scores [key][query]: a lane is a query, so that nothing is transposed but q      (`tile`)
//!     ▼
//!  for each tile of keys with visible keys (`visible`), cut down to these:
//!     scores ─▶ mask ─▶ softmax, with earlier tiles' sums ─▶ results = factor · results + weights · v
//!     ▼
//!  results / sums ─▶ out; where keys were split between tasks, parts are merged first                          (`merge`)
//! ```
//!
//! Keys and values may be paged: rows read them in place, one segment per page; columns copy them together.
//!
//! Invariants: a row without visible keys gives 0; masked keys have weight exactly 0, and those before the first (rounded down
//! to 16) or after the last visible key of a tile are not read, which changes no bit of the result. The order of additions
//! depends on shapes, layouts and the target, never on the number of threads or on timing.

mod backward;
mod columns;
mod convert;
mod differences;
mod dot;
mod double;
mod exponential;
mod geometry;
mod kernels;
mod mask;
mod plan;
mod portable;
mod rows;
mod run;
mod scratch;
mod softmax;
mod tile;
mod visible;

pub use backward::AttentionGradient;

use crate::choices::Choices;
use crate::features::{self, Isa};
use crate::memory::MemoryError;
use dot::DotFn;
use geometry::{Geometry, Numbers};
use kernels::Tiles;
use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{AttentionBackwardBody, AttentionBody, BufferArg, Kernel, Strided};
use kiln_runtime::{Error, LaunchError, RawBuffer};
use softmax::SoftmaxFn;
use tile::{Along, Element};

/// An attention kernel ready to launch.
pub struct Attention {
    isa: Isa,
    body: AttentionBody,
    buffers: Vec<BufferArg>,
    sizes: Vec<Symbol>,
    scale: Scale,
    /// The geometry of every launch, where all sizes are constant.
    geometry: Option<Geometry>,
    /// None where some operand is f64.
    code: Option<Code>,
    choices: Choices,
}

/// The factor on scores, split so that the softmax's part is positive.
#[derive(Clone, Copy)]
struct Scale {
    /// Multiplied into the queries: 1, or the part that is not positive.
    on_queries: f32,
    /// Positive; applied in the softmax.
    on_scores: f32,
}

impl Scale {
    fn new(scale: f64) -> Scale {
        let scale = scale as f32;
        if scale > 0.0 && scale.is_finite() {
            Scale { on_queries: 1.0, on_scores: scale }
        } else {
            Scale { on_queries: scale, on_scores: 1.0 }
        }
    }
}

/// The generated kernels of one attention.
struct Code {
    /// Scores and results of columns.
    score: Tiles,
    value: Tiles,
    softmax_columns: SoftmaxFn,
    /// Whether columns compute on pairs of bf16.
    pairs: bool,
    /// Vectors of rows: shorter ones than columns have, where keys and values can then be read in place.
    rows_isa: Isa,
    /// Scores and results of rows, from unpacked keys and values of their own type, and from packed f32.
    dots: Vec<DotFn>,
    /// The element type of keys that those read.
    dot_element: Element,
    dots_f32: Vec<DotFn>,
    rows: Tiles,
    rows_f32: Tiles,
    softmax_row: SoftmaxFn,
    /// Elements of its vectors, which are the longest there are: scores are contiguous.
    softmax_lanes: usize,
}

impl Code {
    fn new(isa: Isa, [q, k, v]: [DType; 3], widths: [Option<usize>; 2], scale: Scale) -> Result<Code, MemoryError> {
        let all_bf16 = [q, k, v] == [DType::Bf16; 3];
        let pairs = isa == Isa::Avx512
            && features::Extension::get() >= features::Extension::Bf16
            && all_bf16
            && scale.on_queries == 1.0;
        let element = if pairs { Element::Pairs } else { Element::F32 };
        // Portable kernels read f32 only.
        let in_memory = |dtype| match dtype {
            DType::Bf16 if isa != Isa::Portable => Element::Bf16,
            DType::F16 if isa != Isa::Portable => Element::F16,
            _ => Element::F32,
        };
        let dot_element = |isa| if pairs && isa == Isa::Avx512 { Element::Pairs } else { in_memory(k) };
        let fits = |isa: Isa| match widths {
            [Some(width), Some(values)] => {
                let lanes = run::lanes_of(isa);
                width.is_multiple_of(dot::step(dot_element(isa), lanes)) && values.is_multiple_of(lanes)
            }
            _ => false,
        };
        let rows_isa = if isa == Isa::Avx512 && !fits(isa) && fits(Isa::Avx2) { Isa::Avx2 } else { isa };
        let dot_element = dot_element(rows_isa);
        Ok(Code {
            score: Tiles::new(isa, Along::Rows, element)?,
            value: Tiles::new(isa, Along::Panel, element)?,
            softmax_columns: kernels::softmax_columns(isa, pairs)?,
            pairs,
            rows_isa,
            dots: kernels::dots(rows_isa, dot_element)?,
            dot_element,
            dots_f32: kernels::dots(rows_isa, Element::F32)?,
            rows: Tiles::new(rows_isa, Along::Rows, in_memory(v))?,
            rows_f32: Tiles::new(rows_isa, Along::Rows, Element::F32)?,
            softmax_row: kernels::softmax_row(isa)?,
            softmax_lanes: run::lanes_of(isa),
        })
    }
}

impl Attention {
    /// Compiles an attention kernel; `target` names the backend in an error.
    pub fn new(isa: Isa, kernel: &Kernel, body: &AttentionBody, target: &str) -> Result<Attention, Error> {
        let refuse = |reason: String| Err(Error::Compile { target: target.to_owned(), reason });
        let views = [&body.q, &body.k, &body.v, &body.out].into_iter().chain(&body.mask).chain(&body.logsumexp);
        for view in views.clone() {
            if view.buffer >= kernel.buffers.len() || view.strides.len() != 4 {
                return refuse(format!(
                    "attention over a view of {} axes of buffer {}",
                    view.strides.len(),
                    view.buffer
                ));
            }
        }
        let dtype = |view: &Strided| kernel.buffers[view.buffer].dtype;
        let mut f64_path = false;
        for view in views {
            let is_mask = body.mask.as_ref().is_some_and(|mask| std::ptr::eq(mask, view));
            match dtype(view) {
                DType::F32 | DType::Bf16 | DType::F16 => {}
                DType::F64 => f64_path = true,
                DType::Bool if is_mask => {}
                other => return refuse(format!("attention does not work on {other}: cast first")),
            }
        }
        for pages in [&body.k_pages, &body.v_pages].into_iter().flatten() {
            let Strided { buffer, strides, .. } = &pages.table;
            let whole = kernel.buffers.get(*buffer).is_some_and(|b| matches!(b.dtype, DType::I32 | DType::I64));
            if !whole || strides.len() != 2 {
                return refuse(format!("a table of pages of {} axes in buffer {buffer}", strides.len()));
            }
        }
        let scale = Scale::new(body.scale.as_f64());
        let code = if f64_path {
            None
        } else {
            let dtypes = [&body.q, &body.k, &body.v].map(dtype);
            let widths = [&body.width, &body.value_width].map(|width| width.as_const()?.try_into().ok());
            match Code::new(isa, dtypes, widths, scale) {
                Ok(code) => Some(code),
                Err(error) => return refuse(error.to_string()),
            }
        };
        let (buffers, sizes) = (kernel.buffers.clone(), kernel.sizes.clone());
        let numbers = Numbers { args: &buffers, symbols: &sizes, sizes: &[] };
        let geometry = if sizes.is_empty() { Geometry::new(body, &numbers).ok() } else { None };
        Ok(Attention { isa, body: body.clone(), buffers, sizes, scale, geometry, code, choices: Choices::default() })
    }

    /// The logarithms of the sums alone, of an attention without values.
    pub fn logsumexp(
        isa: Isa,
        kernel: &Kernel,
        body: &AttentionBackwardBody,
        out: &Strided,
        target: &str,
    ) -> Result<Attention, Error> {
        let body = AttentionBody {
            batch: body.batch.clone(),
            heads: body.heads.clone(),
            kv_heads: body.kv_heads.clone(),
            queries: body.queries.clone(),
            keys: body.keys.clone(),
            width: body.width.clone(),
            value_width: Dim::from(0),
            q: body.q.clone(),
            k: body.k.clone(),
            v: body.k.clone(),
            k_pages: None,
            v_pages: None,
            mask: body.mask.clone(),
            out: out.clone(),
            logsumexp: Some(out.clone()),
            causal: body.causal,
            scale: body.scale,
        };
        Attention::new(isa, kernel, &body, target)
    }

    /// The same with some choices made about how it is split.
    pub(crate) fn choosing(self, choices: Choices) -> Attention {
        Attention { choices, ..self }
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// The buffers hold what the kernel's views reach at these sizes, and `out` overlaps no other of them.
    pub unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        if buffers.len() != self.buffers.len() {
            let (expected, got) = (self.buffers.len(), buffers.len());
            return Err(LaunchError::WrongArguments { what: "buffers", expected, got });
        }
        let g = match &self.geometry {
            Some(fixed) => fixed.bound(buffers)?,
            None => {
                let numbers = Numbers { args: &self.buffers, symbols: &self.sizes, sizes };
                Geometry::new(&self.body, &numbers)?.bound(buffers)?
            }
        };
        if [g.batch, g.heads, g.queries].contains(&0) || g.value_width == 0 && g.logsumexp.is_none() {
            return Ok(());
        }
        // SAFETY: passed on from the caller.
        unsafe {
            match &self.code {
                Some(code) => run::run(self.isa, code, self.scale, &g, self.choices),
                None => double::run(self.body.scale.as_f64(), &g),
            }
        }
        Ok(())
    }
}
