//! Scans, sorts and scatters: a thread a line, a thread an element, or a warp a row that goes somewhere whole (`scatter`); long lines
//! of scans and sorts by a block each.
//!
//! A block sorts a line in its memory (shared, or the device's where that is too small): runs of eight, then merges. Of the first few of a
//! long line it finds the last one's key digit by digit, and sorts those alone.

use super::index::{Names, Width, constant};
use super::value::{combined, load, scalar, store, value_type};
use super::{Body, THREADS, Way, ceil_div, points_of_threads};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Kernel, RoutineBody, Strided};
use std::fmt::Write;

pub(super) fn generate(kernel: &Kernel, body: &RoutineBody, way: Way) -> Result<Body, String> {
    let writer = Writer { kernel, names: Names::of_sizes(&kernel.sizes) };
    let (statements, count) = match body {
        RoutineBody::Scan { shape, axis, input, .. } if is_long_scan(shape, *axis, input) => {
            return Ok(writer.scan_by_blocks(body));
        }
        RoutineBody::Scan { .. } => writer.scan(body),
        RoutineBody::SortIndices { shape, axis, .. } if is_longer(&shape[*axis], RANKED) => {
            return Ok(writer.sort_by_blocks(body));
        }
        RoutineBody::SortIndices { .. } => writer.sort(body),
        RoutineBody::Scatter { axis, kind, index, .. } if moves_rows(index, *axis) => {
            return Ok(match kind.reduction() {
                None => writer.place_rows(body, way),
                Some(reduction) => writer.combine_rows(body, reduction),
            });
        }
        RoutineBody::Scatter { .. } => writer.scatter(body),
    };
    Ok(Body::new(statements, Width::Wide, ceil_div(&count, THREADS.into())))
}

/// Elements of a line that are sorted by counting those before each.
const RANKED: i64 = 64;
/// The first of a line that are found before they are sorted.
const MOST_SELECTED: i64 = 1024;
/// Elements of a line that a thread scans faster than a block.
const SHORT_SCAN: i64 = 128;
/// Neighbours that a thread of a block takes of a scan.
const SCANNED: i64 = 4;

/// Whether a size is not known to be at most this.
fn is_longer(size: &Dim, than: i64) -> bool {
    size.as_const().is_none_or(|size| size > than)
}

/// Whether lines are long, and not beside each other in memory in such numbers that a thread each reads them faster.
fn is_long_scan(shape: &[Dim], axis: usize, input: &Strided) -> bool {
    const MANY_LINES: i64 = 1 << 15;
    let lines = shape.iter().enumerate().filter(|(at, _)| *at != axis).fold(Dim::from(1), |n, (_, size)| n * size);
    let many = lines.as_const().is_some_and(|lines| lines >= MANY_LINES);
    is_longer(&shape[axis], SHORT_SCAN) && (input.strides[axis].is_one() || !many)
}

/// Whether an index is the same for all elements of a row, which then go to one row together.
fn moves_rows(index: &Strided, axis: usize) -> bool {
    index.strides.iter().enumerate().all(|(at, stride)| at == axis || stride.is_zero())
}

pub(super) struct Writer<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) names: Names,
}

impl Writer<'_> {
    pub(super) fn text(&self, dim: &Dim) -> String {
        self.names.text(dim, Width::Wide)
    }

    pub(super) fn dtype(&self, view: &Strided) -> DType {
        self.kernel.buffers[view.buffer].dtype
    }

    /// The position of an element; `x0`, `x1`, … are its indices, but for `axis`, whose index is `along`.
    pub(super) fn position(&self, view: &Strided, axis: usize, along: &str) -> String {
        let mut text = self.text(&view.offset);
        for (at, stride) in view.strides.iter().enumerate() {
            let index = if at == axis { along.to_owned() } else { format!("x{at}") };
            let _ = write!(text, "+{index}*{}", self.text(stride));
        }
        text
    }

    pub(super) fn element(&self, view: &Strided, axis: usize, along: &str) -> String {
        load(self.dtype(view), view.buffer, &self.position(view, axis, along))
    }

    /// A loop over all lines along `axis` of a shape, one a thread; and their number.
    fn lines(&self, shape: &[Dim], axis: usize, more: Option<&str>) -> (String, Dim) {
        let others = shape.iter().enumerate().filter(|(at, _)| *at != axis);
        let lines = others.clone().fold(Dim::from(1), |product, (_, size)| product * size);
        let count = match more {
            Some(_) => &lines * &shape[axis],
            None => lines.clone(),
        };
        let mut out = format!("{}\nidx rest=line;\n", points_of_threads("line", &count, &self.text(&count)));
        if let Some(name) = more {
            let size = self.text(&shape[axis]);
            let _ = writeln!(out, "const idx {name}=rest%{size}; rest/={size};");
        }
        for (at, size) in others.rev() {
            let size = self.text(size);
            let _ = writeln!(out, "const idx x{at}=rest%{size}; rest/={size};");
        }
        (out, count)
    }

    /// A loop over all lines along `axis` of a shape, one a block; and their number.
    fn lines_by_blocks(&self, shape: &[Dim], axis: usize) -> (String, Dim) {
        let others = shape.iter().enumerate().filter(|(at, _)| *at != axis);
        let lines = others.clone().fold(Dim::from(1), |product, (_, size)| product * size);
        let mut out = format!(
            "#pragma unroll 1\nfor(idx line=block;line<{};line+=blocks){{\nidx rest=line;\n",
            self.text(&lines)
        );
        for (at, size) in others.rev() {
            let size = self.text(size);
            let _ = writeln!(out, "const idx x{at}=rest%{size}; rest/={size};");
        }
        (out, lines)
    }

    /// A block a line: each thread a few neighbours, then the threads, then on with what all of them gave.
    fn scan_by_blocks(&self, body: &RoutineBody) -> Body {
        let RoutineBody::Scan { shape, axis, kind, reverse, input, output } = body else {
            return Body::new(String::new(), Width::Wide, Dim::default());
        };
        let acc = self.dtype(input).compute_type();
        let (ty, length) = (value_type(acc), self.text(&shape[*axis]));
        let (lines, count) = self.lines_by_blocks(shape, *axis);
        let at = if *reverse { format!("{length}-1-step") } else { "step".to_owned() };
        let (tile, last, identity) = (i64::from(THREADS) * SCANNED, SCANNED - 1, scalar(kind.identity(acc)));
        let statements = format!(
            "__shared__ {ty} scratch[{}];\nauto combine=[]({ty} a,{ty} b)->{ty}{{return {};}};\n{lines}{ty} carry={identity};
for(idx base=0;base<{length};base+={tile}){{\n{ty} v[{SCANNED}];
#pragma unroll\nfor(int e=0;e<{SCANNED};++e){{const idx step=base+(idx)threadIdx.x*{SCANNED}+e,at={at};
const {ty} x=step<{length}?{}:{identity};\nv[e]=e>0?combine(v[e>0?e-1:0],x):x;}}
{ty} total;\nconst {ty} until=scan_block<{THREADS}>(v[{last}],scratch,total,combine);
const {ty} own=__shfl_up_sync(~0u,until,1);\n__syncthreads();\nif(threadIdx.x%32==31)scratch[threadIdx.x/32]=until;\n__syncthreads();
const bool first=threadIdx.x==0;\nconst {ty} others=first?carry:combine(carry,threadIdx.x%32==0?scratch[(threadIdx.x-1)/32]:own);
#pragma unroll\nfor(int e=0;e<{SCANNED};++e){{const idx step=base+(idx)threadIdx.x*{SCANNED}+e,at={at};
if(step<{length}){{const {ty} result=combine(others,v[e]);\n{}}}}}\ncarry=combine(carry,total);\n}}\n__syncthreads();\n}}\n",
            THREADS / 32,
            combined(*kind, acc, "a", "b"),
            self.element(input, *axis, "at"),
            store(self.dtype(output), output.buffer, &self.position(output, *axis, "at"), "result"),
        );
        Body { functions: vec![include_str!("scan.cu")], ..Body::new(statements, Width::Wide, count) }
    }

    /// A block a line: keys with their positions, sorted in the block's memory.
    fn sort_by_blocks(&self, body: &RoutineBody) -> Body {
        let RoutineBody::SortIndices { shape, axis, descending, count, input, output } = body else {
            return Body::new(String::new(), Width::Wide, Dim::default());
        };
        let acc = self.dtype(input).compute_type();
        let is_wide = acc.size_in_bits() == 64;
        let (ty, bytes) = if is_wide { ("LongEntry", 16) } else { ("unsigned long long", 8) };
        let size = &shape[*axis];
        let threads = if is_longer(size, 1024) { 512 } else { 128 };
        let (lines, blocks) = self.lines_by_blocks(shape, *axis);
        let (length, kept) = (self.text(size), self.text(count));
        // A few of many; of a line of unknown length too, since it has at least as many elements.
        let few = count
            .as_const()
            .filter(|&count| !is_wide && (1..=MOST_SELECTED).contains(&count) && is_longer(size, 4 * count));
        let key = format!("{}sort_key({})", if *descending { "~" } else { "" }, self.element(input, *axis, "at"));
        let (fill, sorted) = match few {
            Some(_) => {
                (format!("select_block<{threads}>(memory_of_line,(int){kept},(int){length},entry);"), kept.clone())
            }
            None => (
                format!(
                    "for(int i=threadIdx.x;i<(int){length};i+={threads})memory_of_line[i]=entry(i);\n__syncthreads();"
                ),
                length.clone(),
            ),
        };
        let statements = format!(
            "extern __shared__ __align__(128) unsigned char own[];
unsigned char* const memory=workspace?workspace+blockIdx.x*workspace_bytes:own;\n{ty}* const memory_of_line=({ty}*)memory;
{lines}auto entry=[&](idx at){{return sort_entry({key},(unsigned)at);}};\n{fill}
const {ty}* const sorted=sort_block<{threads}>(memory_of_line,memory_of_line+{sorted},(int){sorted});
for(int i=threadIdx.x;i<(int){kept};i+={threads}){{const long long which=sorted_at(sorted[i]);\n{}}}\n__syncthreads();\n}}\n",
            store(self.dtype(output), output.buffer, &self.position(output, *axis, "(idx)i"), "which"),
        );
        let entries = if few.is_some() { count } else { size };
        Body {
            functions: vec![include_str!("sort.cu")],
            threads,
            block_bytes: entries * (2 * bytes),
            ..Body::new(statements, Width::Wide, blocks)
        }
    }

    fn scan(&self, body: &RoutineBody) -> (String, Dim) {
        let RoutineBody::Scan { shape, axis, kind, reverse, input, output } = body else { return Default::default() };
        let acc = self.dtype(input).compute_type();
        let ty = value_type(acc);
        let (mut out, count) = self.lines(shape, *axis, None);
        let length = self.text(&shape[*axis]);
        let at = if *reverse { format!("{length}-1-step") } else { "step".to_owned() };
        let _ = writeln!(
            out,
            "{ty} acc={};\nfor(idx step=0;step<{length};++step){{const idx at={at};\nconst {ty} x={};\nacc={};\n{}\n}}}}",
            scalar(kind.identity(acc)),
            self.element(input, *axis, "at"),
            combined(*kind, acc, "acc", "x"),
            store(self.dtype(output), output.buffer, &self.position(output, *axis, "at"), "acc"),
        );
        (out, count)
    }

    /// An element's place is the number of those that come before it, equal ones in their order.
    fn sort(&self, body: &RoutineBody) -> (String, Dim) {
        let RoutineBody::SortIndices { shape, axis, descending, count, input, output } = body else {
            return Default::default();
        };
        let acc = self.dtype(input).compute_type();
        let ty = value_type(acc);
        let (mut out, threads) = self.lines(shape, *axis, Some("own"));
        let order = if *descending { "a>b" } else { "a<b" };
        // NaN is the largest.
        let before = match (acc.is_float(), *descending) {
            (false, _) => order.to_owned(),
            (true, true) => "(a!=a&&b==b)||a>b".to_owned(),
            (true, false) => "(a==a&&b!=b)||a<b".to_owned(),
        };
        let same = if acc.is_float() { "(a==b||(a!=a&&b!=b))" } else { "a==b" };
        let _ = writeln!(
            out,
            "const {ty} b={};\nidx rank=0;\nfor(idx other=0;other<{};++other){{const {ty} a={};rank+=({before})||({same}&&other<own);}}\nif(rank<{}){{{}}}\n}}",
            self.element(input, *axis, "own"),
            self.text(&shape[*axis]),
            self.element(input, *axis, "other"),
            self.text(count),
            store(self.dtype(output), output.buffer, &self.position(output, *axis, "rank"), "own"),
        );
        (out, threads)
    }

    /// Updates of one line go to one line: in order, by one thread.
    fn scatter(&self, body: &RoutineBody) -> (String, Dim) {
        let RoutineBody::Scatter { shape, updates_shape, axis, kind, index, updates, output } = body else {
            return Default::default();
        };
        let dtype = self.dtype(output);
        let acc = dtype.compute_type();
        let ty = value_type(acc);
        let (mut out, count) = self.lines(updates_shape, *axis, None);
        let _ = writeln!(
            out,
            "for(idx at=0;at<{};++at){{const idx to=check_index({},{},fault,site);\n{ty} x={};",
            self.text(&updates_shape[*axis]),
            self.element(index, *axis, "at"),
            shape[*axis].as_const().map_or_else(|| self.text(&shape[*axis]), constant),
            self.element(updates, *axis, "at"),
        );
        if let Some(reduction) = kind.reduction() {
            let _ = writeln!(
                out,
                "const {ty} y={};\nx={};",
                self.element(output, *axis, "to"),
                combined(reduction, acc, "y", "x")
            );
        }
        out.push_str(&store(dtype, output.buffer, &self.position(output, *axis, "to"), "x"));
        out.push_str("}}\n");
        (out, count)
    }
}
