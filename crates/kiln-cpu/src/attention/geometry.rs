//! One launch in numbers: sizes, views with their strides filled in, and what each row of queries may see.

use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{AttentionBody, BufferArg, Strided};
use kiln_runtime::{LaunchError, RawBuffer};

/// A strided view of four axes with its numbers filled in.
#[derive(Clone, Copy)]
pub(super) struct View {
    base: *mut u8,
    pub dtype: DType,
    /// Bytes of an element.
    pub size: isize,
    /// In elements.
    pub strides: [isize; 4],
}

// SAFETY: a view is an address and numbers; who dereferences it answers for the access.
unsafe impl Sync for View {}

impl View {
    /// The first element of a row: the last axis at 0.
    pub(super) fn row(&self, index: [usize; 3]) -> *mut u8 {
        let offset: isize = index.iter().zip(&self.strides).map(|(&i, &s)| i as isize * s).sum();
        self.base.wrapping_offset(offset * self.size)
    }

    /// Elements from one to the next of a row.
    pub(super) fn step(&self) -> isize {
        self.strides[3]
    }

    /// Bytes from row to row along the third axis.
    pub(super) fn row_bytes(&self) -> isize {
        self.strides[2] * self.size
    }
}

/// Sizes and views of one launch.
pub(super) struct Geometry {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub width: usize,
    pub value_width: usize,
    pub q: View,
    pub k: View,
    pub v: View,
    pub mask: Option<View>,
    pub out: View,
    pub causal: bool,
}

impl Geometry {
    /// Fills in the numbers of a launch.
    pub(super) fn new(
        body: &AttentionBody,
        args: &[BufferArg],
        symbols: &[Symbol],
        buffers: &[RawBuffer],
        sizes: &[i64],
    ) -> Result<Geometry, LaunchError> {
        if buffers.len() != args.len() {
            return Err(LaunchError::WrongArguments { what: "buffers", expected: args.len(), got: buffers.len() });
        }
        let number = |dim: &Dim| -> Result<i64, LaunchError> {
            dim.eval(&|symbol| symbols.iter().position(|s| *s == symbol).and_then(|i| sizes.get(i).copied()))
                .ok_or(LaunchError::WrongArguments { what: "sizes", expected: symbols.len(), got: sizes.len() })
        };
        let size = |dim: &Dim| -> Result<usize, LaunchError> {
            let value = number(dim)?;
            // Positions of keys are held in 32 bits.
            if (0..=i64::from(i32::MAX)).contains(&value) {
                Ok(value as usize)
            } else {
                Err(LaunchError::BadSize { value })
            }
        };
        let view = |strided: &Strided| -> Result<View, LaunchError> {
            let dtype = args[strided.buffer].dtype;
            let bytes = (dtype.size_in_bits() / 8) as isize;
            let mut strides = [0; 4];
            for (to, stride) in strides.iter_mut().zip(&strided.strides) {
                *to = number(stride)? as isize;
            }
            let base = buffers[strided.buffer].ptr.wrapping_offset(number(&strided.offset)? as isize * bytes);
            Ok(View { base, dtype, size: bytes, strides })
        };
        let g = Geometry {
            batch: size(&body.batch)?,
            heads: size(&body.heads)?,
            kv_heads: size(&body.kv_heads)?,
            queries: size(&body.queries)?,
            keys: size(&body.keys)?,
            width: size(&body.width)?,
            value_width: size(&body.value_width)?,
            q: view(&body.q)?,
            k: view(&body.k)?,
            v: view(&body.v)?,
            mask: body.mask.as_ref().map(view).transpose()?,
            out: view(&body.out)?,
            causal: body.causal,
        };
        if !g.heads.is_multiple_of(g.kv_heads) {
            return Err(LaunchError::BadSize { value: g.heads as i64 });
        }
        Ok(g)
    }

    /// Query heads that share a key head.
    pub(super) fn group(&self) -> usize {
        self.heads / self.kv_heads.max(1)
    }

    /// Query rows that share a key head: all queries of its heads, head after head.
    pub(super) fn group_rows(&self) -> usize {
        self.group() * self.queries
    }

    /// Head and query of a row of a group.
    pub(super) fn place(&self, kv_head: usize, row: usize) -> (usize, usize) {
        (kv_head * self.group() + row / self.queries, row % self.queries)
    }

    /// How many keys, from the first on, a query may see.
    pub(super) fn visible(&self, query: usize) -> usize {
        if self.causal { (query + 1 + self.keys).saturating_sub(self.queries).min(self.keys) } else { self.keys }
    }
}
