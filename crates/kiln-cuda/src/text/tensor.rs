//! Products of short floats on tensor cores (`mma.sync`): tiles of both operands go through a ring of stages in shared memory by
//! asynchronous copies of 16 bytes; each warp multiplies fragments that `ldmatrix` brings into its registers.
//!
//! ```text
//!  memory ──cp.async──▶ shared: STAGES × (lhs tile, rhs tile) ──ldmatrix──▶ registers ──mma──▶ accumulators ──epilogue──▶ memory
//! ```
//!
//! A tile has a row a line of the operand, along the axis whose elements are neighbours in memory: the summed one, or the other one,
//! in which case `ldmatrix` transposes. The 16-byte chunks of a row are permuted by its number, so that eight rows at one chunk
//! are in eight different banks.
//!
//! Where there are warpgroup products, large results are theirs (`warpgroup.rs`).

use super::tiles::{CHUNK, DEPTH, STAGES, Tiles};
use super::vector::is_multiple;
use super::{Body, Way, decode, names_of_product, points, warpgroup, width};
use kiln_ir::{DType, Dim, Symbol};
use kiln_kernels::kernel::{Axis, Inst, InstKind, Kernel, MatmulBody, Place, Prologue};
use std::fmt::{self, Write};

/// Tiles of a result from which on warpgroups keep a GPU as busy as smaller tiles would.
const LEAST_BLOCKS: i64 = 64;

/// Columns of the tiles of warpgroups, and the parts of their sums.
const GROUPED: [[i64; 2]; 12] = [
    [128, 1],
    [192, 1],
    [256, 1],
    [128, 4],
    [128, 8],
    [192, 2],
    [192, 4],
    [192, 6],
    [256, 2],
    [256, 3],
    [256, 4],
    [256, 6],
];
/// Steps that a part of a sum has at the least, and steps that the first copies and the epilogue take as long as.
const LEAST_STEPS: i64 = 16;
const START: i64 = 6;
/// The arithmetic of an epilogue, in units of one addition, from which on it is better hidden behind another block's products.
const LONG_EPILOGUE: u32 = 48;

/// An operand that can be copied as it is.
pub(super) struct Operand<'a> {
    pub(super) place: &'a Place,
    /// Whether its neighbours in memory are along the summed axis.
    pub(super) along_sum: bool,
    pub(super) axes: &'a [Axis],
}

/// The body, if the product is of this kind.
pub(super) fn generate(kernel: &Kernel, body: &MatmulBody, way: Way) -> Option<Body> {
    let [summed] = body.k.as_slice() else { return None };
    let depth = summed.size.as_const()?;
    let lhs = Operand::of(kernel, &body.lhs, &body.m, summed)?;
    let rhs = Operand::of(kernel, body.single_rhs()?, &body.n, summed)?;
    let dtype = kernel.buffers[lhs.place.buffer].dtype;
    let (rows, columns) = (points(&body.m), points(&body.n));
    let few = |dim: &Dim, least: i64| dim.as_const().is_some_and(|size| size < least);
    let same = kernel.buffers[rhs.place.buffer].dtype == dtype;
    if body.acc != DType::F32 || !same || few(&columns, CHUNK) {
        return None;
    }
    let names = names_of_product(kernel, [&body.batch, &body.m, &body.n, &body.k]);
    let batch = points(&body.batch);
    let width = width(&names, kernel.insts(), &[&batch, &rows, &columns]);
    let given = way.tile.filter(|tile| (way.warpgroups || !tile.warpgroups) && tile.is_deep(depth));
    let tile = given
        .or_else(|| {
            let is_long = is_long(&body.epilogue);
            let counts = [&batch, &rows, &columns];
            Tile::of_warpgroups(counts, depth, way.multiprocessors, is_long).filter(|_| way.warpgroups)
        })
        .unwrap_or_else(|| Tile::choose(&batch, &rows, &columns));
    let (epilogue, batch, m, n) = (body.epilogue.as_slice(), body.batch.as_slice(), &body.m, &body.n);
    // Blocks beside those of another body may be in larger clusters.
    let tile = if kernel.bodies().len() > 1 { Tile { parts: 1, ..tile } } else { tile };
    let tiles = Tiles { kernel, epilogue, batch, m, n, names, width, tile };
    if tile.warpgroups {
        return warpgroup::write(&tiles, [&lhs, &rhs], summed.var, depth, dtype);
    }
    let (m_tiles, n_tiles) = tiles.fragments();
    let (lhs_bytes, stage) = tiles.stage_bytes();
    let steps = depth.div_euclid(DEPTH) + i64::from(depth % DEPTH > 0);
    let mut out = String::new();
    tiles.open(&mut out);
    let _ = writeln!(out, "auto fetch=[&](int step,unsigned to){{\nconst int deep=step*{DEPTH};");
    fetch(&tiles, &mut out, &lhs, ("m", "M", "top", tile.tall), "to", depth);
    fetch(&tiles, &mut out, &rhs, ("n", "N", "left", tile.wide), &format!("to+{lhs_bytes}"), depth);
    let _ = writeln!(
        out,
        "}};\nfloat acc[{m_tiles}][{n_tiles}][4]={{}};\n__syncthreads();
#pragma unroll\nfor(int step=0;step<{0};++step){{if(step<{steps})fetch(step,shared+step*{stage});copies_commit();}}
for(int step=0;step<{steps};++step){{
copies_wait<{1}>();\n__syncthreads();
if(step+{0}<{steps})fetch(step+{0},shared+(step+{0})%{STAGES}*{stage});\ncopies_commit();
const unsigned a_tile=shared+step%{STAGES}*{stage},b_tile=a_tile+{lhs_bytes};",
        STAGES - 1,
        STAGES - 2,
    );
    tiles.multiply(&mut out, [lhs.along_sum, rhs.along_sum], dtype);
    out.push_str("}\n");
    let mut aligned = tiles.finish(&mut out, true);
    aligned.extend([lhs.place.buffer, rhs.place.buffer]);
    Some(Body {
        functions: vec![include_str!("tensor.cu")],
        threads: tile.threads() as u32,
        resident: tile.resident(),
        block_bytes: Dim::from(STAGES * stage),
        aligned,
        ..Body::new(out, width, tiles.blocks())
    })
}

/// Whether an epilogue takes as long as some steps of the product.
fn is_long(epilogue: &[Inst]) -> bool {
    let costs = |inst: &Inst| match &inst.kind {
        InstKind::Unary(op, _) => op.row().cost,
        InstKind::Binary(op, ..) => op.row().cost,
        _ => 0,
    };
    epilogue.iter().map(costs).sum::<u32>() >= LONG_EPILOGUE
}

impl<'a> Operand<'a> {
    /// The operand, if it is a load of contiguous elements, aligned to 16 bytes.
    pub(super) fn of(kernel: &Kernel, prologue: &'a Prologue, axes: &'a [Axis], summed: &Axis) -> Option<Operand<'a>> {
        let [inst] = prologue.insts.as_slice() else { return None };
        let InstKind::Load { place, guard: None } = &inst.kind else { return None };
        let short = matches!(kernel.buffers[place.buffer].dtype, DType::Bf16 | DType::F16);
        if !short || !place.indirect.is_empty() || prologue.value != inst.id {
            return None;
        }
        let is_along = |var: Symbol| {
            let Some((step, rest)) = place.offset.linear_in(var) else { return false };
            step.is_one() && is_multiple(&rest, CHUNK)
        };
        if is_along(summed.var) {
            return Some(Operand { place, along_sum: true, axes });
        }
        // Rows of one axis may end within a chunk.
        let whole = |axis: &Axis| axis.size.as_const().is_some_and(|size| size % CHUNK == 0);
        let last = axes.last().filter(|axis| axes.len() == 1 || whole(axis))?;
        is_along(last.var).then_some(Operand { place, along_sum: false, axes })
    }
}

/// How a block and its warps are spread over the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tile {
    /// Rows of a block.
    pub tall: i64,
    /// Columns of a block.
    pub wide: i64,
    /// Warps down.
    pub down: i64,
    /// Warps across.
    pub across: i64,
    /// Whether four warps multiply as one, straight from shared memory.
    pub warpgroups: bool,
    /// Blocks of a cluster that have a part of the sum each.
    pub parts: i64,
}

impl Tile {
    pub(super) const fn new(tall: i64, wide: i64, down: i64, across: i64) -> Tile {
        Tile { tall, wide, down, across, warpgroups: false, parts: 1 }
    }

    /// A tile of warpgroups: each warp has 16 rows.
    const fn grouped([wide, parts]: [i64; 2]) -> Tile {
        Tile { tall: 128, wide, down: 8, across: 1, warpgroups: true, parts }
    }

    /// Every tile that is worth measuring. A warp has 64 × 64 results at the most, which is what its registers hold.
    pub fn all() -> impl Iterator<Item = Tile> {
        let sides = [
            [16, 64, 1, 4],
            [64, 64, 2, 2],
            [64, 128, 2, 2],
            [64, 256, 1, 4],
            [128, 64, 2, 2],
            [128, 128, 2, 2],
            [128, 128, 2, 4],
            [128, 256, 2, 4],
            [256, 128, 4, 2],
        ];
        let by_warps = sides.into_iter().map(|[tall, wide, down, across]| Tile::new(tall, wide, down, across));
        by_warps.chain(GROUPED.map(Tile::grouped))
    }

    /// The tile of a text of its [`Display`](fmt::Display).
    pub fn parse(text: &str) -> Option<Tile> {
        Tile::all().find(|tile| tile.to_string() == text)
    }

    /// The tile where nothing was measured.
    pub(super) fn choose(batch: &Dim, rows: &Dim, columns: &Dim) -> Tile {
        let known = |dim: &Dim| dim.as_const().unwrap_or(4096);
        let (batch, rows, columns) = (known(batch), known(rows), known(columns));
        let blocks = |tall: i64, wide: i64| batch * (rows.div_euclid(tall) + 1) * (columns.div_euclid(wide) + 1);
        if rows <= 16 {
            return Tile::new(16, 64, 1, 4);
        }
        if rows <= 64 || columns <= 64 || blocks(128, 128) < 100 {
            return Tile::new(64, 64, 2, 2);
        }
        Tile::new(128, 128, 2, 4)
    }

    /// The tile of warpgroups where nothing was measured, if the result has enough of them: the one that the multiprocessors are done
    /// with first. Two blocks of a narrow one on a multiprocessor hide a long epilogue.
    pub(super) fn of_warpgroups(counts: [&Dim; 3], depth: i64, multiprocessors: i64, is_long: bool) -> Option<Tile> {
        let [batch, rows, columns] = counts.map(|dim| dim.as_const().unwrap_or(4096));
        let tiles = |wide: i64| batch * (rows + 127).div_euclid(128) * (columns + wide - 1).div_euclid(wide);
        let up = |a: i64, b: i64| (a + b - 1).div_euclid(b);
        let cost = |tile: &Tile| {
            // Clusters do not fill a GPU.
            let room = if tile.parts > 2 { multiprocessors * 10 / 11 } else { multiprocessors };
            let is_alone = tiles(tile.wide) * tile.parts <= room;
            let beside = if is_alone { 1 } else { i64::from(tile.resident()) };
            // The time of a step of 64 columns, alone on a multiprocessor.
            let each = match tile.wide {
                128 if is_alone => 137,
                128 => 115,
                192 => 120,
                _ if is_long => 130,
                _ => 100,
            };
            let steps = up(up(depth, DEPTH), tile.parts) + if tile.parts > 1 { 2 * START } else { START };
            up(tiles(tile.wide), (room * beside / tile.parts).max(1)) * beside * steps * tile.wide / 64 * each
        };
        let fastest = GROUPED.map(Tile::grouped).into_iter().filter(|tile| tile.is_deep(depth)).min_by_key(cost)?;
        (rows > 64 && columns > 64 && tiles(128) * fastest.parts >= LEAST_BLOCKS).then_some(fastest)
    }

    /// Whether a sum has enough steps for the parts.
    pub(super) fn is_deep(self, depth: i64) -> bool {
        self.parts == 1 || depth >= self.parts * DEPTH * LEAST_STEPS
    }

    /// Whether it is one for large products.
    pub fn is_large(self) -> bool {
        self.tall * self.wide >= 128 * 128
    }

    /// Blocks that a multiprocessor should have registers for at once: two of 256 threads hide each other's waits, if a thread has no more
    /// than 64 results; smaller blocks have room without being told.
    pub(super) fn resident(self) -> u32 {
        if self.threads() == 256 && self.tall * self.wide <= 64 * 256 { 2 } else { 1 }
    }

    /// Tiles of each operand that are in shared memory.
    pub(super) fn stages(self) -> i64 {
        match (self.warpgroups, self.resident()) {
            (true, 1) => 4,
            _ => STAGES,
        }
    }

    pub(super) fn threads(self) -> i64 {
        self.down * self.across * 32
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tile { tall, wide, down, across, warpgroups, parts } = self;
        match (warpgroups, parts) {
            (true, 1) => write!(f, "wgmma={tall}x{wide}"),
            (true, _) => write!(f, "wgmma={tall}x{wide} parts={parts}"),
            (false, _) => write!(f, "tile={tall}x{wide} warps={down}x{across}"),
        }
    }
}

/// Statements that copy the tile of an operand at summed position `deep` to an address in shared memory; what is outside is 0.
fn fetch(
    tiles: &Tiles<'_>,
    out: &mut String,
    operand: &Operand<'_>,
    (axis, count, first, side): (&str, &str, &str, i64),
    to: &str,
    depth: i64,
) {
    let threads = tiles.tile.threads();
    let (lines, chunks) = if operand.along_sum { (side, DEPTH / CHUNK) } else { (DEPTH, side / CHUNK) };
    let (line, along) = if operand.along_sum { ("at", "k") } else { ("k", "at") };
    let _ = writeln!(
        out,
        "#pragma unroll\nfor(int c=threadIdx.x;c<{};c+={threads}){{const int line=c/{chunks},chunk=c%{chunks};
const idx {line}_own={}+line,{along}_own={}+chunk*{CHUNK};\nconst bool inside=at_own<{count}&&k_own<{depth};
const idx at=inside?at_own:0,k0=inside?k_own:0;",
        lines * chunks,
        if operand.along_sum { first } else { "deep" },
        if operand.along_sum { "deep" } else { first },
    );
    out.push_str(&decode(&tiles.names, operand.axes, axis, "at", tiles.width));
    // A chunk at the end of a row is copied in part.
    let whole = match operand.along_sum {
        true => depth % CHUNK == 0,
        false => is_multiple(&points(operand.axes), CHUNK),
    };
    let (function, bytes) = match (whole, operand.along_sum) {
        (true, _) => ("copy_chunk", String::from("inside")),
        (false, true) => ("copy_part", format!("inside?(int)lesser({CHUNK},{depth}-k_own)*2:0")),
        (false, false) => ("copy_part", format!("inside?(int)lesser({CHUNK},{count}-at_own)*2:0")),
    };
    let _ = writeln!(
        out,
        "{function}({to}+chunk_at<{chunks}>(line,chunk),b{}+{},{bytes});}}",
        operand.place.buffer,
        tiles.text(&operand.place.offset)
    );
}
