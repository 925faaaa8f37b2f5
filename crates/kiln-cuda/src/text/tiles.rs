//! Tiles of a result on tensor cores: what products of short floats have in common, whatever brings their operands into shared
//! memory.
//!
//! ```text
//!  open: a block's tiles, one after another ──▶ (operands in shared memory) ──▶ multiply ──▶ finish: the epilogue
//! ```
//!
//! The accumulators go through shared memory, so that neighbours in memory are stored by neighbouring threads, several
//! elements at a time, whichever way the result lies.

use super::index::{Names, Width};
use super::tensor::Tile;
use super::value::Statements;
use super::vector::Vector;
use super::{ceil_div, decode, points};
use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{Axis, Inst, InstKind, Kernel};
use std::fmt::Write;

/// Summed elements of a tile.
pub(super) const DEPTH: i64 = 64;
/// Elements of a chunk of 16 bytes.
pub(super) const CHUNK: i64 = 8;
/// Tiles of each operand that are in shared memory.
pub(super) const STAGES: i64 = 3;
/// Bytes of a line of the caches.
const LINE: i64 = 128;
/// Bytes that a thread of an epilogue has on their way at the most.
const MOST_AHEAD: i64 = 192;
/// Tiles down that blocks beside each other in time go through before the next column: what they share stays in the L2 cache.
const GROUP: i64 = 16;

/// A product in tiles. Its axes are called `z…`, `m…`, `n…` and `k…` by their number.
pub(super) struct Tiles<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) epilogue: &'a [Inst],
    pub(super) batch: &'a [Axis],
    pub(super) m: &'a [Axis],
    pub(super) n: &'a [Axis],
    pub(super) names: Names,
    pub(super) width: Width,
    pub(super) tile: Tile,
}

impl Tiles<'_> {
    pub(super) fn text(&self, dim: &Dim) -> String {
        self.names.text(dim, self.width)
    }

    /// The number of tiles of all results.
    fn count(&self) -> Dim {
        points(self.batch) * ceil_div(&points(self.m), self.tile.tall) * ceil_div(&points(self.n), self.tile.wide)
    }

    /// The number of blocks of all tiles.
    pub(super) fn blocks(&self) -> Dim {
        self.count() * self.tile.parts
    }

    /// The rows of a tile whose epilogue a block has, and the first of them.
    fn own_rows(&self) -> (i64, String) {
        let rows = (self.tile.tall + self.tile.parts - 1).div_euclid(self.tile.parts);
        (rows, if self.tile.parts > 1 { format!("rank*{rows}+") } else { String::new() })
    }

    /// Bytes of shared memory of a stage: the tiles of both operands, the left one first.
    pub(super) fn stage_bytes(&self) -> (i64, i64) {
        let left = self.tile.tall * DEPTH * 2;
        (left, left + self.tile.wide * DEPTH * 2)
    }

    /// A condition, behind others: place `v` of so many is of the block's own rows of the tile.
    fn own_place(&self, count: i64, step: i64) -> String {
        let Tile { tall, parts, .. } = self.tile;
        let whole = if count % step == 0 { String::new() } else { format!("&&v<{count}") };
        if tall % parts == 0 { whole } else { format!("{whole}&&row<{tall}") }
    }

    /// Opens the loop over a block's tiles: the first row and column are `top` and `left`, the numbers of rows and columns of the result
    /// `M` and `N`.
    pub(super) fn open(&self, out: &mut String) {
        let Tile { tall, wide, down, across, parts, .. } = self.tile;
        let (rows, columns) = (points(self.m), points(self.n));
        let (part, rank) = match parts {
            1 => (String::new(), String::new()),
            _ => (format!("/{parts}"), format!("const int rank=block%{parts};\n")),
        };
        let _ = writeln!(
            out,
            "extern __shared__ __align__({}) unsigned char own[];
const unsigned shared=(unsigned)__cvta_generic_to_shared(own);
const int lane=threadIdx.x%32,warp=threadIdx.x/32,warp_row=warp/{across}*{},warp_column=warp%{across}*{};
const idx M={},N={},down={},across={};
{rank}for(idx tile=block{part};tile<{};tile+=blocks{part}){{
const idx image=tile/(down*across),rest=tile%(down*across),group=rest/({GROUP}*across)*{GROUP};
const idx rows=lesser({GROUP},down-group),own_tile=rest-group*across,top=(group+own_tile%rows)*{tall},left=own_tile/rows*{wide};",
            if self.tile.warpgroups { 1024 } else { 128 },
            tall / down,
            wide / across,
            self.text(&rows),
            self.text(&columns),
            self.text(&ceil_div(&rows, tall)),
            self.text(&ceil_div(&columns, wide)),
            self.text(&self.count()),
        );
        out.push_str(&decode(&self.names, self.batch, "z", "image", self.width));
    }

    /// The results of a warp: fragments of 16 rows by 8 columns.
    pub(super) fn fragments(&self) -> (i64, i64) {
        let Tile { tall, wide, down, across, .. } = self.tile;
        (tall / down / 16, wide / across / 8)
    }

    /// Multiplies the tiles at `a_tile` and `b_tile` into `acc`. The rows of an operand's tile are along the summed axis if
    /// `along_sum`, else across it.
    pub(super) fn multiply(&self, out: &mut String, along_sum: [bool; 2], dtype: DType) {
        let (m_tiles, n_tiles) = self.fragments();
        let (across_left, across_right) = (self.tile.tall / CHUNK, self.tile.wide / CHUNK);
        let along = DEPTH / CHUNK;
        // Lanes 0–15 name the rows of the left or upper half of a 16×16 block, 16–31 those of the other half.
        let left = match along_sum[0] {
            true => format!("load_matrix(a[i],a_tile+chunk_at<{along}>(warp_row+i*16+lane%16,part*2+lane/16));"),
            false => format!(
                "load_transposed(a[i],a_tile+chunk_at<{across_left}>(part*16+lane%8+lane/16*8,(warp_row+i*16)/8+lane/8%2));"
            ),
        };
        let right = match along_sum[1] {
            true => {
                format!("load_matrix(r,b_tile+chunk_at<{along}>(warp_column+j*8+lane%8+lane/16*8,part*2+lane/8%2));")
            }
            false => format!(
                "load_transposed(r,b_tile+chunk_at<{across_right}>(part*16+lane%16,(warp_column+j*8)/8+lane/16));"
            ),
        };
        let kind = if dtype == DType::Bf16 { "bf16" } else { "f16" };
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int part=0;part<{};++part){{\nunsigned a[{m_tiles}][4],b[{n_tiles}][2];
#pragma unroll\nfor(int i=0;i<{m_tiles};++i){left}
#pragma unroll\nfor(int j=0;j<{n_tiles};j+=2){{unsigned r[4];{right}b[j][0]=r[0];b[j][1]=r[1];b[j+1][0]=r[2];b[j+1][1]=r[3];}}
#pragma unroll\nfor(int i=0;i<{m_tiles};++i)
#pragma unroll\nfor(int j=0;j<{n_tiles};++j)multiply_{kind}(acc[i][j],a[i],b[j]);\n}}",
            DEPTH / 16,
        );
    }

    /// Asks for the matrices that the epilogue will load, so that they are in the L2 cache when the product is done.
    pub(super) fn prefetch(&self, out: &mut String) {
        let (wide, threads) = (self.tile.wide, self.tile.threads());
        let (own_rows, first_row) = self.own_rows();
        let Some(last) = self.n.last() else { return };
        let position = Statements::new(self.kernel, &self.names, self.width, "e");
        for inst in self.epilogue {
            let InstKind::Load { place, guard: None } = &inst.kind else { continue };
            let is_matrix = self.m.iter().any(|axis| place.offset.contains(axis.var));
            if !is_matrix || !place.indirect.is_empty() || !steps_by_one(&place.offset, last.var) {
                continue;
            }
            let elements = LINE * 8 / self.kernel.buffers[place.buffer].dtype.size_in_bits() as i64;
            let lines = (wide / elements).max(1);
            let _ = writeln!(
                out,
                "for(int v=threadIdx.x;v<{};v+={threads}){{const int row={first_row}v/{lines};\nconst idx mm=top+row,nn=left+v%{lines}*{elements};\nif(mm<M&&nn<N{}){{\n{}{}prefetch(b{}+{});}}}}",
                own_rows * lines,
                self.own_place(0, 1),
                decode(&self.names, self.m, "m", "mm", self.width),
                decode(&self.names, self.n, "n", "nn", self.width),
                place.buffer,
                position.position(place)
            );
        }
    }

    /// Runs the epilogue at each result and closes the loop over tiles; returns the buffers that have to begin at a multiple of 16
    /// bytes.
    pub(super) fn finish(&self, out: &mut String, vectors: bool) -> Vec<usize> {
        let wide = self.tile.wide;
        let threads = self.tile.threads();
        let (own_rows, first_row) = self.own_rows();
        let (m_tiles, n_tiles) = self.fragments();
        let by_rows = self.stores_along(self.m) && !self.stores_along(self.n);
        // Eight rows of a fragment are in different banks, and so are the rows of a column where results are stored by columns.
        let pitch = wide
            + match (by_rows, self.tile.parts) {
                (true, 1) => 1,
                (true, _) => 4,
                (false, _) => 8,
            };
        let _ = writeln!(
            out,
            "copies_wait<0>();\n__syncthreads();\nfloat* const sums=(float*)own;
#pragma unroll\nfor(int i=0;i<{m_tiles};++i)\n#pragma unroll\nfor(int j=0;j<{n_tiles};++j)
#pragma unroll\nfor(int c=0;c<4;++c)sums[(warp_row+i*16+lane/4+c/2*8)*{pitch}+warp_column+j*8+lane%4*2+c%2]=acc[i][j][c];"
        );
        self.add_parts(out, pitch);
        let mut epilogue = Statements::new(self.kernel, &self.names, self.width, "e");
        if by_rows {
            let decoded = decode(&self.names, self.m, "m", "mm", self.width);
            let _ = match self.tile.parts {
                1 => writeln!(
                    out,
                    "const int row=threadIdx.x%{own_rows};\nconst idx mm=top+row;\nif(mm<M){{\n{decoded}#pragma unroll 4
for(int column=threadIdx.x/{own_rows};column<{wide};column+={}){{const idx nn=left+column;\nif(nn<N){{",
                    threads / own_rows
                ),
                _ => writeln!(
                    out,
                    "{{\n#pragma unroll 4\nfor(int v=threadIdx.x;v<{};v+={threads}){{const int row={first_row}v%{own_rows},column=v/{own_rows};
const idx mm=top+row,nn=left+column;\nif(mm<M&&nn<N{}){{\n{decoded}",
                    own_rows * wide,
                    self.own_place(0, 1),
                ),
            };
            out.push_str(&decode(&self.names, self.n, "n", "nn", self.width));
            epilogue.accumulators = vec![format!("sums[row*{pitch}+column]")];
            epilogue.all(self.epilogue);
            let _ = writeln!(out, "{}}}}}}}}}", epilogue.out);
            return Vec::new();
        }
        let last = self.n.last().filter(|_| vectors);
        let whole = last.and_then(|axis| Vector::choose(self.kernel, self.epilogue.iter(), axis));
        let ragged = || Vector::choose_ragged(self.kernel, self.epilogue.iter(), last.filter(|_| self.n.len() == 1)?);
        let is_whole = whole.is_some();
        if let Some(mut vector) = whole.or_else(ragged) {
            vector.suffix = "[u]";
            self.finish_wide(out, &vector, is_whole, pitch);
            return vector.buffers().collect();
        }
        let _ = writeln!(
            out,
            "#pragma unroll 4\nfor(int v=threadIdx.x;v<{};v+={threads}){{const int row={first_row}v/{wide},column=v%{wide};
const idx mm=top+row,nn=left+column;\nif(mm<M&&nn<N{}){{",
            own_rows * wide,
            self.own_place(0, 1)
        );
        out.push_str(&decode(&self.names, self.m, "m", "mm", self.width));
        out.push_str(&decode(&self.names, self.n, "n", "nn", self.width));
        epilogue.accumulators = vec![format!("sums[row*{pitch}+column]")];
        epilogue.all(self.epilogue);
        let _ = writeln!(out, "{}}}}}}}", epilogue.out);
        Vec::new()
    }

    /// Waits for the sums of all threads. Where blocks have parts of them, each adds up those of its rows, in the order of the blocks.
    fn add_parts(&self, out: &mut String, pitch: i64) {
        let Tile { tall, wide, parts, .. } = self.tile;
        if parts == 1 {
            out.push_str("__syncthreads();\n");
            return;
        }
        let (own_rows, first_row) = self.own_rows();
        let (across, threads) = (wide / 4, self.tile.threads());
        let _ = writeln!(
            out,
            "cluster_arrive();\ncluster_wait();
for(int v=threadIdx.x;v<{};v+={threads}){{const int row={first_row}v/{across};\nif(row<{tall}){{float* const at=sums+row*{pitch}+v%{across}*4;
Wide<float,4> part[{parts}];
#pragma unroll\nfor(int r=0;r<{parts};++r)part[r]=four_from_rank(at,r);
#pragma unroll\nfor(int r=1;r<{parts};++r)\n#pragma unroll\nfor(int e=0;e<4;++e)part[0].v[e]+=part[r].v[e];
*(Wide<float,4>*)at=part[0];}}}}
cluster_arrive();\ncluster_wait();",
            own_rows * across
        );
    }

    /// The epilogue at several neighbours at a time. What it loads for some of them is on its way before the first is computed. Where
    /// rows are not whole, the neighbours at their end are taken one by one.
    fn finish_wide(&self, out: &mut String, vector: &Vector, is_whole: bool, pitch: i64) {
        let (threads, lanes) = (self.tile.threads(), vector.lanes);
        let (own_rows, first_row) = self.own_rows();
        let (across, name) = (self.tile.wide / lanes, format!("n{}", self.n.len() - 1));
        let each = (own_rows * across + threads - 1).div_euclid(threads);
        let fits = |count: &i64| each % count == 0 && count * vector.loaded_bytes(self.kernel) <= MOST_AHEAD;
        let count = [4, 2].into_iter().find(fits).unwrap_or(1);
        let own = self.own_place(own_rows * across, threads * count);
        let mut epilogue = Statements::new(self.kernel, &self.names, self.width, "e");
        epilogue.vector = Some(vector);
        let (declared, filled) = vector.ahead(&epilogue, self.epilogue.iter(), count);
        let decoded = [("m", self.m), ("n", self.n)]
            .map(|(axis, axes)| decode(&self.names, axes, axis, &axis.repeat(2), self.width))
            .concat();
        let spot = format!("const int v=v0+u*{threads},row={first_row}v/{across},column=v%{across}*{lanes};");
        let _ = writeln!(out, "for(int v0=threadIdx.x;v0<{};v0+={}){{", own_rows * across, count * threads);
        if !filled.is_empty() {
            let end = if is_whole { String::new() } else { format!("+{}", lanes - 1) };
            let _ = writeln!(
                out,
                "{declared}\n#pragma unroll\nfor(int u=0;u<{count};++u){{{spot}
const bool inside=top+row<M&&left+column{end}<N{own};\nconst idx mm=inside?top+row:0,nn=inside?left+column:0;\n{decoded}{filled}}}"
            );
        }
        let part = if lanes < 4 { 2 } else { 4 };
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int u=0;u<{count};++u){{{spot}\nconst idx mm=top+row,nn=left+column;\nif(mm<M&&nn<N{own}){{
{decoded}Wide<float,{part}> part[{}];
#pragma unroll\nfor(int e=0;e<{};++e)part[e]=*(const Wide<float,{part}>*)(sums+row*{pitch}+column+e*{part});
const idx first={name};",
            lanes / part,
            lanes / part,
        );
        if !is_whole {
            let _ = writeln!(out, "if(nn+{lanes}<=N){{");
        }
        out.push_str(&vector.begin_stores(&epilogue, self.epilogue.iter()));
        let ends = vector.end(&epilogue, self.epilogue.iter(), "");
        epilogue.accumulators = vec![format!("part[e/{part}].v[e%{part}]")];
        epilogue.all(self.epilogue);
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx {name}=first+e;\n{}}}\n{ends}",
            epilogue.out
        );
        if !is_whole {
            let mut single = Statements::new(self.kernel, &self.names, self.width, "e");
            single.accumulators = vec![format!("sums[row*{pitch}+column+e]")];
            single.all(self.epilogue);
            let _ = writeln!(out, "}}else for(int e=0;e<N-nn;++e){{const idx {name}=first+e;\n{}}}", single.out);
        }
        out.push_str("}}}\n}\n");
    }

    /// Whether what is stored moves by one element along the last of some axes.
    fn stores_along(&self, axes: &[Axis]) -> bool {
        let Some(var) = axes.last().map(|axis| axis.var) else { return false };
        self.epilogue
            .iter()
            .any(|inst| matches!(&inst.kind, InstKind::Store { place, .. } if steps_by_one(&place.offset, var)))
    }
}

/// Whether a position moves by one element along an axis.
pub(super) fn steps_by_one(offset: &Dim, var: Symbol) -> bool {
    offset.linear_in(var).is_some_and(|(step, _)| step.is_one())
}
