//! Scatters whose rows go somewhere whole: a warp takes a row, or a part of a long one.
//!
//! ```text
//!  set       every block looks at all indices: where no two rows have one place, found by a bit a place in shared memory, or, if
//!            there are too many places, where indices rise, all rows are copied at once, several short ones a warp
//!            others: a block holds the places of its rows against all that come later, and copies those that none of them hits
//!  combined  the warp of the first row of a place takes all that go there, in their order
//! ```

use super::index::{Width, constant};
use super::routine::Writer;
use super::value::{combined, load, memory_type, store, value_type};
use super::vector::{BYTES, is_multiple};
use super::{Body, THREADS, Way, ceil_div};
use kiln_ir::{DType, Dim, ReduceKind};
use kiln_kernels::kernel::{RoutineBody, Strided};
use std::fmt::Write;

/// Rows, or parts of rows, that a block takes at a time: one a warp.
const WARPS: i64 = THREADS as i64 / 32;
/// Accesses that a thread has under way at once.
const AHEAD: i64 = 4;
/// Warps of a block where all of its threads have indices to look at: each block reads all of them, so that few large blocks read less.
const MANY_WARPS: i64 = 32;
/// Threads of a multiprocessor, in blocks which go on to further rows: each of them reads all of the indices.
const RESIDENT_THREADS: i64 = 1024;
/// Indices that a thread reads before it looks at them.
const INDICES_AHEAD: i64 = 8;
/// Places that have a bit each in shared memory, at the most.
const MOST_PLACES: i64 = 1 << 19;

/// Words that have a bit for each of so many places. Neighbouring places are in neighbouring words, and their number is odd: places that
/// lie a power of two apart, as the rows of heads do, are in different banks.
fn words(places: i64) -> i64 {
    (places + 31).div_euclid(32) | 1
}

impl Writer<'_> {
    /// The index that says where row `at` of the updates goes.
    fn place_of_row(&self, index: &Strided, axis: usize, at: &str) -> String {
        let place = format!("{}+{at}*{}", self.text(&index.offset), self.text(&index.strides[axis]));
        load(self.dtype(index), index.buffer, &place)
    }

    /// Statements that give the axes of a row their positions, from the number of an element.
    fn positions_in_row(&self, shape: &[Dim], axis: usize, number: &str) -> String {
        let mut out = format!("idx rest={number};\n");
        let others: Vec<_> = shape.iter().enumerate().filter(|(at, _)| *at != axis).collect();
        for (number, (at, size)) in others.into_iter().enumerate().rev() {
            let size = self.text(size);
            let _ = match number {
                0 => writeln!(out, "const idx x{at}=rest;"),
                _ => writeln!(out, "const idx x{at}=rest%{size}; rest/={size};"),
            };
        }
        out
    }

    /// The elements that a thread copies in one access: neighbours in both tensors.
    fn neighbours(&self, shape: &[Dim], axis: usize, views: [&Strided; 2]) -> i64 {
        let Some(last) = (0..shape.len()).rev().find(|&at| at != axis && !shape[at].is_one()) else { return 1 };
        let dtype = self.dtype(views[1]);
        let fits = |lanes: i64| {
            let multiple = |view: &&Strided| {
                let between = view.strides.iter().enumerate().filter(|(at, _)| *at != last && !shape[*at].is_one());
                view.strides[last].is_one()
                    && is_multiple(&view.offset, lanes)
                    && between.into_iter().all(|(_, stride)| is_multiple(stride, lanes))
            };
            shape[last].as_const().is_some_and(|size| size % lanes == 0) && views.iter().all(multiple)
        };
        let most = BYTES * 8 / dtype.size_in_bits() as i64;
        let same = dtype == self.dtype(views[0]) && dtype != DType::I4;
        [16, 8, 4, 2].into_iter().find(|&lanes| same && lanes <= most && fits(lanes)).unwrap_or(1)
    }

    /// A warp a row of updates, or a part of one. Of rows that go to the same place the last is the one that stays.
    pub(super) fn place_rows(&self, body: &RoutineBody, way: Way) -> Body {
        let RoutineBody::Scatter { shape, updates_shape, axis, index, updates, output, .. } = body else {
            return Body::new(String::new(), Width::Wide, Dim::default());
        };
        let (axis, dtype) = (*axis, self.dtype(output));
        let lanes = if way.vectors { self.neighbours(updates_shape, axis, [updates, output]) } else { 1 };
        let others = updates_shape.iter().enumerate().filter(|(at, _)| *at != axis);
        let elements = others.fold(Dim::from(1), |product, (_, size)| product * size);
        let accesses = elements.floor_div(&Dim::from(lanes));
        // Where the length of rows is not known, a warp goes on to the end of its row.
        let at_once = 32 * AHEAD;
        let parts = accesses.as_const().map(|count| (count + at_once - 1).div_euclid(at_once).max(1));
        let units = &updates_shape[axis] * parts.unwrap_or(1);
        let (count, units_text, parts_text) =
            (self.text(&updates_shape[axis]), self.text(&units), constant(parts.unwrap_or(1)));
        let row = |at: &str| self.place_of_row(index, axis, at);
        let (from, to) = (self.position(updates, axis, "at"), self.position(output, axis, "to"));
        let (ty, read, write) = match lanes {
            1 => (
                value_type(dtype.compute_type()).to_owned(),
                format!("x[e]={};", self.element(updates, axis, "at")),
                store(dtype, output.buffer, &to, "x[e]"),
            ),
            _ => {
                let ty = format!("Packed<{},{lanes}>", memory_type(dtype));
                let read = format!("x[e]=*(const {ty}*)(b{}+{from});", updates.buffer);
                let write = format!("*({ty}*)(b{}+{to})=x[e];", output.buffer);
                (ty, read, write)
            }
        };
        let each = |statement: &str| {
            format!(
                "#pragma unroll\nfor(int e=0;e<{AHEAD};++e)if(const idx line=begin+e*32;line<{}){{{}{statement}}}\n",
                self.text(&accesses),
                self.positions_in_row(updates_shape, axis, &format!("line*{lanes}")),
            )
        };
        let warps = match updates_shape[axis].as_const() {
            Some(count) if count <= i64::from(THREADS) * INDICES_AHEAD / 2 => WARPS,
            _ => MANY_WARPS,
        };
        let threads = warps * 32;
        // Several short rows are a warp's at once.
        let rows = accesses.as_const().filter(|&count| count > 0).map_or(1, |count| (at_once / count).max(1));
        let places = shape[axis].as_const().filter(|&places| places <= MOST_PLACES);
        let distinct = match places {
            Some(places) => {
                let words = words(places);
                format!(
                    "extern __shared__ __align__(16) unsigned taken[];
for(int i=threadIdx.x;i<{words};i+={threads})taken[i]=0;\n__syncthreads();
#pragma unroll 1
for(idx base=threadIdx.x;base<{count};base+={}){{long long ahead[{INDICES_AHEAD}];
#pragma unroll
for(int e=0;e<{INDICES_AHEAD};++e){{const idx at=base+e*{threads};ahead[e]=-1;if(at<{count})ahead[e]={};}}
#pragma unroll
for(int e=0;e<{INDICES_AHEAD};++e)if(ahead[e]>=0&&ahead[e]<{places}){{const unsigned place=(unsigned)ahead[e],bit=1u<<(place/{words}u);
distinct&=!(atomicOr(taken+place%{words}u,bit)&bit);}}}}",
                    threads * INDICES_AHEAD,
                    row("at")
                )
            }
            None => format!(
                "#pragma unroll 4\nfor(idx next=1+threadIdx.x;next<{count};next+={threads})distinct&={}<{};",
                row("(next-1)"),
                row("next")
            ),
        };
        let size = shape[axis].as_const().map_or_else(|| self.text(&shape[axis]), constant);
        let several = match rows {
            1 => String::new(),
            rows => {
                let accesses = at_once / rows.max(1);
                let accesses = elements.floor_div(&Dim::from(lanes)).as_const().unwrap_or(accesses);
                let each = |statement: &str| {
                    format!(
                        "#pragma unroll\nfor(int e=0;e<{AHEAD};++e){{const int line=e*32+lane;const idx at=base+line/{accesses};
if(line<{}&&at<{count}){{{}{statement}}}}}\n",
                        rows * accesses,
                        self.positions_in_row(updates_shape, axis, &format!("(idx)(line%{accesses})*{lanes}")),
                    )
                };
                format!(
                    "if(distinct){{
for(idx base=((idx)block*{warps}+warp)*{rows};base<{count};base+=(idx)blocks*{}){{{ty} x[{AHEAD}];idx places[{AHEAD}];
{}{}}}\nreturn;}}\n",
                    warps * rows,
                    each(&format!("places[e]=check_index({},{size},fault,site);{read}", row("at"))),
                    each(&format!("const idx to=places[e];{write}")),
                )
            }
        };
        let head = match parts {
            Some(_) => format!("{{const idx begin=unit%{parts_text}*{at_once}+lane;"),
            None => format!("#pragma unroll 1\nfor(idx begin=lane;begin<{};begin+={at_once}){{", self.text(&accesses)),
        };
        let statements = format!(
            "__shared__ long long own_rows[{warps}];\n__shared__ unsigned hit_rows[1];
const int lane=threadIdx.x%32,warp=threadIdx.x/32;\nbool distinct=true;
{distinct}
distinct=__syncthreads_and(distinct);
{several}#pragma unroll 1
for(idx base=(idx)block*{warps};base<{units_text};base+=(idx)blocks*{warps}){{
if(!distinct){{
__syncthreads();\nif(threadIdx.x==0)hit_rows[0]=0;
if(threadIdx.x<{warps}&&base+threadIdx.x<{units_text}){{const idx at=(base+threadIdx.x)/{parts_text};own_rows[threadIdx.x]={own};}}
__syncthreads();\nunsigned hit=0;
#pragma unroll 4
for(idx other=base/{parts_text}+1+threadIdx.x;other<{count};other+={threads}){{const long long place={other};
#pragma unroll
for(int w=0;w<{warps};++w)if(place==own_rows[w]&&other>(base+w)/{parts_text})hit|=1u<<w;}}
if(hit)atomicOr(hit_rows,hit);\n__syncthreads();\n}}
const idx unit=base+warp,at=unit/{parts_text};\nif(unit>={units_text})continue;
const idx to=check_index({own},{size},fault,site);\nif(!distinct&&(hit_rows[0]>>warp&1))continue;
{head}\n{ty} x[{AHEAD}];\n{reads}{writes}}}\n}}\n",
            own = row("at"),
            other = row("other"),
            reads = each(&read),
            writes = each(&write),
        );
        let aligned = if lanes > 1 { vec![updates.buffer, output.buffer] } else { Vec::new() };
        let most_blocks = way.multiprocessors * RESIDENT_THREADS / threads;
        let block_bytes = Dim::from(places.map_or(0, |places| words(places) * 4));
        Body {
            aligned,
            most_blocks,
            block_bytes,
            threads: threads as u32,
            ..Body::new(statements, Width::Wide, ceil_div(&units, warps * rows))
        }
    }

    /// A warp a row of updates; that of the first row of a place takes all that go there, in their order.
    pub(super) fn combine_rows(&self, body: &RoutineBody, reduction: ReduceKind) -> Body {
        let RoutineBody::Scatter { shape, updates_shape, axis, index, updates, output, .. } = body else {
            return Body::new(String::new(), Width::Wide, Dim::default());
        };
        let (axis, dtype) = (*axis, self.dtype(output));
        let (acc, count) = (dtype.compute_type(), self.text(&updates_shape[axis]));
        let ty = value_type(acc);
        let row = |at: &str| self.place_of_row(index, axis, at);
        let others = updates_shape.iter().enumerate().filter(|(at, _)| *at != axis);
        let elements = others.fold(Dim::from(1), |product, (_, size)| product * size);
        let size = shape[axis].as_const().map_or_else(|| self.text(&shape[axis]), constant);
        let move_element = format!(
            "{positions}{ty} x={x};\nconst {ty} y={y};\nx={sum};\n{store}",
            positions = self.positions_in_row(updates_shape, axis, "line"),
            x = self.element(updates, axis, "from"),
            y = self.element(output, axis, "to"),
            sum = combined(reduction, acc, "y", "x"),
            store = store(dtype, output.buffer, &self.position(output, axis, "to"), "x"),
        );
        // A row that is the only one goes where no other does. (NVRTC 13.0 crashes on the search for others then.)
        if updates_shape[axis].is_one() {
            let statements = format!(
                "const idx from=0;\nconst long long own={};\nconst idx to=check_index(own,{size},fault,site);
for(idx line=(idx)block*{THREADS}+threadIdx.x;line<{};line+=(idx)blocks*{THREADS}){{{move_element}}}\n",
                row("from"),
                self.text(&elements),
            );
            return Body::new(statements, Width::Wide, ceil_div(&elements, THREADS.into()));
        }
        let statements = format!(
            "const int lane=threadIdx.x%32;
#pragma unroll 1
for(idx at=(idx)block*{WARPS}+threadIdx.x/32;at<{count};at+=(idx)blocks*{WARPS}){{
const long long own={own};\nconst idx to=check_index(own,{size},fault,site);\nbool beside=false;
for(idx other=lane;other<at;other+=32)beside|={other}==own;\nif(__any_sync(~0u,beside))continue;
for(idx base=at;base<{count};base+=32){{
unsigned same=__ballot_sync(~0u,base+lane<{count}&&{ahead}==own);
while(same){{const idx from=base+__ffs(same)-1;same&=same-1;
for(idx line=lane;line<{elements};line+=32){{{move_element}}}\n}}}}}}\n",
            own = row("at"),
            other = row("other"),
            ahead = row("(base+lane)"),
            elements = self.text(&elements),
        );
        Body::new(statements, Width::Wide, ceil_div(&updates_shape[axis], WARPS))
    }
}
