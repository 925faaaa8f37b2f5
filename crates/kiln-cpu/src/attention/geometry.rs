//! The geometry of one launch: sizes, views with their strides filled in, and the visible keys of each row of queries.

use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{AttentionBackwardBody, AttentionBody, AttentionGradients, BufferArg, Pages, Strided};
use kiln_runtime::{LaunchError, RawBuffer};
use std::ops::Range;

/// A strided view of four axes with its numbers filled in.
#[derive(Clone, Copy)]
pub(super) struct View {
    /// Index of the buffer.
    buffer: usize,
    /// The first element; before the view is bound, its distance from the buffer's first.
    base: *mut u8,
    pub dtype: DType,
    /// Bytes of an element.
    pub size: isize,
    /// Strides of the axes, in elements.
    pub strides: [isize; 4],
    /// The page table of paged rows; strides are then those inside a page.
    pages: Option<PageTable>,
}

/// Pages of rows along the third axis, found through a table. All its entries were checked.
#[derive(Clone, Copy, PartialEq)]
struct PageTable {
    /// Index of the buffer.
    buffer: usize,
    /// The first entry; before the view is bound, its distance from the buffer's first.
    entries: *const u8,
    is_wide: bool,
    /// Strides of batch and page, in elements.
    strides: [isize; 2],
    /// Rows of a page.
    length: usize,
    /// Elements from page to page.
    stride: isize,
    /// The number of pages.
    count: i64,
}

impl PageTable {
    /// The page of a batch that holds a row.
    fn page(&self, batch: usize, number: usize) -> i64 {
        let at = batch as isize * self.strides[0] + number as isize * self.strides[1];
        // SAFETY: the caller of the launch says that the table holds an entry for every page.
        unsafe {
            if self.is_wide {
                self.entries.cast::<i64>().offset(at).read()
            } else {
                i64::from(self.entries.cast::<i32>().offset(at).read())
            }
        }
    }
}

/// Consecutive rows of a constant stride.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Segment {
    /// The first.
    pub data: *const u8,
    /// The number of rows.
    pub rows: usize,
}

// SAFETY: a view is an address and numbers; the code that dereferences it is responsible for the access.
unsafe impl Sync for View {}
// SAFETY: likewise.
unsafe impl Send for View {}

impl View {
    pub(super) fn bind(&mut self, buffers: &[RawBuffer]) {
        self.base = buffers[self.buffer].ptr.wrapping_offset(self.base as isize);
        if let Some(pages) = &mut self.pages {
            pages.entries = buffers[pages.buffer].ptr.wrapping_offset(pages.entries as isize);
        }
    }

    /// The first element of a row: the last axis at 0.
    pub(super) fn row(&self, mut index: [usize; 3]) -> *mut u8 {
        let mut offset = 0;
        if let Some(pages) = &self.pages {
            offset = pages.page(index[0], index[2] / pages.length) as isize * pages.stride;
            (index[0], index[2]) = (0, index[2] % pages.length);
        }
        offset += index.iter().zip(&self.strides).map(|(&i, &s)| i as isize * s).sum::<isize>();
        self.base.wrapping_offset(offset * self.size)
    }

    /// The rows of a range along the third axis, in as few segments as possible.
    pub(super) fn segments(&self, [batch, head]: [usize; 2], rows: Range<usize>) -> impl Iterator<Item = Segment> {
        let mut at = rows.start;
        std::iter::from_fn(move || {
            if at == rows.end {
                return None;
            }
            let most = self.pages.as_ref().map_or(usize::MAX, |pages| pages.length - at % pages.length);
            let segment = Segment { data: self.row([batch, head, at]), rows: (rows.end - at).min(most) };
            at += segment.rows;
            Some(segment)
        })
    }

    /// The most segments of this many rows.
    pub(super) fn most_segments(&self, rows: usize) -> usize {
        self.pages.as_ref().map_or(1, |pages| rows / pages.length + 2)
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

/// What sizes and views of a kernel are in one launch, without its buffers.
pub(super) struct Numbers<'a> {
    pub args: &'a [BufferArg],
    pub symbols: &'a [Symbol],
    pub sizes: &'a [i64],
}

impl Numbers<'_> {
    fn number(&self, dim: &Dim) -> Result<i64, LaunchError> {
        let Numbers { symbols, sizes, .. } = self;
        dim.eval(&|symbol| symbols.iter().position(|s| *s == symbol).and_then(|i| sizes.get(i).copied()))
            .ok_or(LaunchError::WrongArguments { what: "sizes", expected: symbols.len(), got: sizes.len() })
    }

    fn size(&self, dim: &Dim) -> Result<usize, LaunchError> {
        let value = self.number(dim)?;
        // Positions of keys are held in 32 bits.
        if (0..=i64::from(i32::MAX)).contains(&value) {
            Ok(value as usize)
        } else {
            Err(LaunchError::BadSize { value })
        }
    }

    pub(super) fn view(&self, strided: &Strided) -> Result<View, LaunchError> {
        let dtype = self.args[strided.buffer].dtype;
        let bytes = (dtype.size_in_bits() / 8) as isize;
        let mut strides = [0; 4];
        for (to, stride) in strides.iter_mut().zip(&strided.strides) {
            *to = self.number(stride)? as isize;
        }
        let base = std::ptr::null_mut::<u8>().wrapping_offset(self.number(&strided.offset)? as isize * bytes);
        Ok(View { buffer: strided.buffer, base, dtype, size: bytes, strides, pages: None })
    }

    fn rows(&self, strided: &Strided, pages: &Option<Pages>) -> Result<View, LaunchError> {
        let view = self.view(strided)?;
        let Some(pages) = pages else { return Ok(view) };
        let is_wide = self.args[pages.table.buffer].dtype == DType::I64;
        let Strided { buffer, offset, strides } = &pages.table;
        let offset = self.number(offset)? as isize * if is_wide { 8 } else { 4 };
        let table = PageTable {
            buffer: *buffer,
            entries: std::ptr::null::<u8>().wrapping_offset(offset),
            is_wide,
            strides: [self.number(&strides[0])? as isize, self.number(&strides[1])? as isize],
            length: self.size(&pages.length)?.max(1),
            stride: self.number(&pages.stride)? as isize,
            count: self.number(&pages.count)?,
        };
        Ok(View { pages: Some(table), ..view })
    }
}

/// Sizes and views of one launch.
#[derive(Clone, Copy)]
pub(super) struct Geometry {
    pub batch: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Query heads that share a key head.
    pub group: usize,
    pub queries: usize,
    pub keys: usize,
    pub width: usize,
    pub value_width: usize,
    pub q: View,
    pub k: View,
    pub v: View,
    pub mask: Option<View>,
    /// The result; where gradients are computed, its gradient.
    pub out: View,
    /// The logarithms of the rows' sums, [b, h, t, 1]: written where the result is, read where gradients are.
    pub logsumexp: Option<View>,
    pub causal: bool,
}

impl Geometry {
    /// Fills in the numbers of a launch, without its buffers.
    pub(super) fn new(body: &AttentionBody, numbers: &Numbers<'_>) -> Result<Geometry, LaunchError> {
        Geometry {
            batch: numbers.size(&body.batch)?,
            heads: numbers.size(&body.heads)?,
            kv_heads: numbers.size(&body.kv_heads)?,
            group: 0,
            queries: numbers.size(&body.queries)?,
            keys: numbers.size(&body.keys)?,
            width: numbers.size(&body.width)?,
            value_width: numbers.size(&body.value_width)?,
            q: numbers.view(&body.q)?,
            k: numbers.rows(&body.k, &body.k_pages)?,
            v: numbers.rows(&body.v, &body.v_pages)?,
            mask: body.mask.as_ref().map(|mask| numbers.view(mask)).transpose()?,
            out: numbers.view(&body.out)?,
            logsumexp: body.logsumexp.as_ref().map(|rows| numbers.view(rows)).transpose()?,
            causal: body.causal,
        }
        .grouped()
    }

    /// The same for the gradients of an attention.
    pub(super) fn of_gradients(
        body: &AttentionBackwardBody,
        of: &AttentionGradients,
        numbers: &Numbers<'_>,
    ) -> Result<Geometry, LaunchError> {
        Geometry {
            batch: numbers.size(&body.batch)?,
            heads: numbers.size(&body.heads)?,
            kv_heads: numbers.size(&body.kv_heads)?,
            group: 0,
            queries: numbers.size(&body.queries)?,
            keys: numbers.size(&body.keys)?,
            width: numbers.size(&body.width)?,
            value_width: numbers.size(&of.value_width)?,
            q: numbers.view(&body.q)?,
            k: numbers.view(&body.k)?,
            v: numbers.view(&of.v)?,
            mask: body.mask.as_ref().map(|mask| numbers.view(mask)).transpose()?,
            out: numbers.view(&of.gradient)?,
            logsumexp: Some(numbers.view(&of.logsumexp)?),
            causal: body.causal,
        }
        .grouped()
    }

    /// The same with the number of query heads that share a key head.
    fn grouped(self) -> Result<Geometry, LaunchError> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(LaunchError::BadSize { value: self.heads as i64 });
        }
        Ok(Geometry { group: self.heads / self.kv_heads.max(1), ..self })
    }

    /// The same over a launch's buffers.
    pub(super) fn bound(&self, buffers: &[RawBuffer]) -> Result<Geometry, LaunchError> {
        let mut g = *self;
        let views = [&mut g.q, &mut g.k, &mut g.v, &mut g.out].into_iter().chain(&mut g.mask).chain(&mut g.logsumexp);
        views.for_each(|view| view.bind(buffers));
        let (k, v) = (&g.k.pages, &g.v.pages);
        k.iter().try_for_each(|table| self.check(table))?;
        // Keys and values mostly share their table.
        v.iter().filter(|_| k != v).try_for_each(|table| self.check(table))?;
        Ok(g)
    }

    /// Reports an entry of a table that names no page.
    fn check(&self, table: &PageTable) -> Result<(), LaunchError> {
        for batch in 0..self.batch {
            for number in 0..self.keys.div_ceil(table.length) {
                let index = table.page(batch, number);
                if !(0..table.count).contains(&index) {
                    return Err(LaunchError::IndexOutOfRange { index, size: table.count });
                }
            }
        }
        Ok(())
    }

    /// Query rows that share a key head: all queries of its heads, head after head.
    pub(super) fn group_rows(&self) -> usize {
        self.group * self.queries
    }

    /// Head and query of a row of a group.
    pub(super) fn place(&self, kv_head: usize, row: usize) -> (usize, usize) {
        // A step of decoding has one query: it needs no division.
        let (head, query) = if self.queries == 1 { (row, 0) } else { (row / self.queries, row % self.queries) };
        (kv_head * self.group + head, query)
    }

    /// The number of keys, from the first on, that are visible to a query.
    pub(super) fn visible(&self, query: usize) -> usize {
        if self.causal { (query + 1 + self.keys).saturating_sub(self.queries).min(self.keys) } else { self.keys }
    }
}
