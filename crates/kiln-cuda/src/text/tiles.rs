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
    pub(super) fn blocks(&self) -> Dim {
        points(self.batch) * ceil_div(&points(self.m), self.tile.tall) * ceil_div(&points(self.n), self.tile.wide)
    }

    /// Bytes of shared memory of a stage: the tiles of both operands, the left one first.
    pub(super) fn stage_bytes(&self) -> (i64, i64) {
        let left = self.tile.tall * DEPTH * 2;
        (left, left + self.tile.wide * DEPTH * 2)
    }

    /// Opens the loop over a block's tiles: the first row and column are `top` and `left`, the numbers of rows and columns of the result
    /// `M` and `N`.
    pub(super) fn open(&self, out: &mut String) {
        let Tile { tall, wide, down, across } = self.tile;
        let (rows, columns) = (points(self.m), points(self.n));
        let _ = writeln!(
            out,
            "extern __shared__ __align__(128) unsigned char own[];
const unsigned shared=(unsigned)__cvta_generic_to_shared(own);
const int lane=threadIdx.x%32,warp=threadIdx.x/32,warp_row=warp/{across}*{},warp_column=warp%{across}*{};
const idx M={},N={},down={},across={};
for(idx tile=block;tile<{};tile+=blocks){{
const idx image=tile/(down*across),rest=tile%(down*across),group=rest/({GROUP}*across)*{GROUP};
const idx rows=lesser({GROUP},down-group),own_tile=rest-group*across,top=(group+own_tile%rows)*{tall},left=own_tile/rows*{wide};",
            tall / down,
            wide / across,
            self.text(&rows),
            self.text(&columns),
            self.text(&ceil_div(&rows, tall)),
            self.text(&ceil_div(&columns, wide)),
            self.text(&self.blocks()),
        );
        out.push_str(&decode(&self.names, self.batch, "z", "image", self.width));
    }

    /// The results of a warp: fragments of 16 rows by 8 columns.
    pub(super) fn fragments(&self) -> (i64, i64) {
        let Tile { tall, wide, down, across } = self.tile;
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

    /// Runs the epilogue at each result and closes the loop over tiles; returns the buffers that have to begin at a multiple of 16
    /// bytes.
    pub(super) fn finish(&self, out: &mut String, vectors: bool) -> Vec<usize> {
        let Tile { tall, wide, .. } = self.tile;
        let threads = self.tile.threads();
        let (m_tiles, n_tiles) = self.fragments();
        let by_rows = self.stores_along(self.m) && !self.stores_along(self.n);
        // Eight rows of a fragment are in different banks, and so are the rows of a column where results are stored by columns.
        let pitch = wide + if by_rows { 1 } else { 8 };
        let _ = writeln!(
            out,
            "copies_wait<0>();\n__syncthreads();\nfloat* const sums=(float*)own;
#pragma unroll\nfor(int i=0;i<{m_tiles};++i)\n#pragma unroll\nfor(int j=0;j<{n_tiles};++j)
#pragma unroll\nfor(int c=0;c<4;++c)sums[(warp_row+i*16+lane/4+c/2*8)*{pitch}+warp_column+j*8+lane%4*2+c%2]=acc[i][j][c];
__syncthreads();"
        );
        let mut epilogue = Statements::new(self.kernel, &self.names, self.width, "e");
        if by_rows {
            let _ = writeln!(
                out,
                "const int row=threadIdx.x%{tall};\nconst idx mm=top+row;\nif(mm<M){{\n{}#pragma unroll 4
for(int column=threadIdx.x/{tall};column<{wide};column+={}){{const idx nn=left+column;\nif(nn<N){{",
                decode(&self.names, self.m, "m", "mm", self.width),
                threads / tall
            );
            out.push_str(&decode(&self.names, self.n, "n", "nn", self.width));
            epilogue.accumulators = vec![format!("sums[row*{pitch}+column]")];
            epilogue.all(self.epilogue);
            let _ = writeln!(out, "{}}}}}}}}}", epilogue.out);
            return Vec::new();
        }
        let last = self.n.last().filter(|_| vectors);
        let vector = last.and_then(|axis| Vector::choose(self.kernel, self.epilogue.iter(), axis));
        let lanes = vector.as_ref().map_or(1, |vector| vector.lanes);
        let across = wide / lanes;
        let _ = writeln!(
            out,
            "#pragma unroll 4\nfor(int v=threadIdx.x;v<{};v+={threads}){{const int row=v/{across},column=v%{across}*{lanes};
const idx mm=top+row,nn=left+column;\nif(mm<M&&nn<N){{",
            tall * across
        );
        out.push_str(&decode(&self.names, self.m, "m", "mm", self.width));
        out.push_str(&decode(&self.names, self.n, "n", "nn", self.width));
        epilogue.accumulators = vec![format!("sums[row*{pitch}+column{}]", if lanes > 1 { "+e" } else { "" })];
        epilogue.vector = vector.as_ref();
        let Some(vector) = &vector else {
            epilogue.all(self.epilogue);
            let _ = writeln!(out, "{}}}}}}}", epilogue.out);
            return Vec::new();
        };
        let name = format!("n{}", self.n.len() - 1);
        out.push_str(&vector.begin(&epilogue, self.epilogue.iter()));
        let ends = vector.end(&epilogue, self.epilogue.iter(), "");
        epilogue.all(self.epilogue);
        let _ = writeln!(
            out,
            "const idx first={name};\n#pragma unroll\nfor(int e=0;e<{lanes};++e){{const idx {name}=first+e;\n{}}}\n{ends}}}}}}}",
            epilogue.out
        );
        vector.buffers().collect()
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
