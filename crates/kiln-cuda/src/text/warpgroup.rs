//! Products of short floats by warpgroups (`wgmma`, compute capability 9.0): four warps multiply tiles straight from shared memory, and
//! copy the next ones meanwhile.
//!
//! ```text
//!  memory ──cp.async──▶ shared: a ring of (lhs tile, rhs tile), 128-byte swizzle ──wgmma──▶ accumulators ──epilogue──▶ memory
//! ```
//!
//! A tile has rows of 128 bytes: 64 summed elements of a line of the operand, or, where neighbours in memory are across the sum,
//! 64 lines of a summed element, in blocks of 64 × 64. Chunks that reach beyond the end of a row of the operand are copied in part.
//! Where there are few tiles and a long sum, the blocks of a cluster have a part of the sum each.

use super::tensor::{Operand, Tile};
use super::tiles::{CHUNK, DEPTH, Tiles};
use super::{Body, decode};
use kiln_ir::{DType, Dim, Symbol};
use std::fmt::Write;

/// Bytes of a row of a tile, and its chunks.
const ROW: i64 = 128;
const CHUNKS: i64 = ROW / 16;
/// Lines of a block where rows are across the sum, and its bytes.
const BLOCK: i64 = 64;
const BLOCK_BYTES: i64 = BLOCK * ROW;

/// One side of the product.
struct Side<'a> {
    operand: &'a Operand<'a>,
    /// The name of its variables.
    name: &'static str,
    /// The prefix of its axes' names, the number of its lines, and the first line of the tile.
    axis: &'static str,
    count: &'static str,
    first: &'static str,
    /// Lines of the tile.
    lines: i64,
    /// The steps of its position along the sum, and the rest.
    step: Dim,
    rest: Dim,
}

/// The body of a product whose operands can be copied as they are.
pub(super) fn write(
    tiles: &Tiles<'_>,
    operands: [&Operand<'_>; 2],
    summed: Symbol,
    depth: i64,
    dtype: DType,
) -> Option<Body> {
    let tile = tiles.tile;
    let side = |number: usize| {
        let (name, axis, count, first, lines) =
            if number == 0 { ("l", "m", "M", "top", tile.tall) } else { ("r", "n", "N", "left", tile.wide) };
        let operand = operands[number];
        let (step, rest) = operand.place.offset.linear_in(summed)?;
        Some(Side { operand, name, axis, count, first, lines, step, rest })
    };
    let sides = [side(0)?, side(1)?];
    let (lhs_bytes, stage) = tiles.stage_bytes();
    let (stages, steps) = (tile.stages(), (depth + DEPTH - 1).div_euclid(DEPTH));
    // Alone on a multiprocessor, the products of a step run on behind the next barrier; with another block there they need not, and
    // copies have a stage more.
    let (left, ahead) = if tile.resident() > 1 { (0, stages - 1) } else { (1, stages - 2) };
    let mut out = String::new();
    tiles.open(&mut out);
    let _ = writeln!(
        out,
        "const int line=threadIdx.x/{CHUNKS},chunk=threadIdx.x%{CHUNKS};\nconst unsigned spot=line*{ROW}+(chunk^line%8)*16;"
    );
    sides.iter().for_each(|side| side.declare(&mut out, tiles));
    let _ = writeln!(out, "auto fetch=[&](int step,unsigned to){{\nconst int deep=step*{DEPTH};");
    sides[0].fetch(&mut out, tiles, depth, "to");
    sides[1].fetch(&mut out, tiles, depth, &format!("to+{lhs_bytes}"));
    // A stage is filled again when all warpgroups are done with it.
    let fragments = tile.wide / 8;
    let part = match tile.parts {
        1 => format!("const int begin=0,end={steps};\n"),
        parts => {
            let each = (steps + parts - 1).div_euclid(parts);
            format!("const int begin=rank*{each},end=min({steps},begin+{each});\n")
        }
    };
    let _ = writeln!(
        out,
        "}};\nfloat acc[1][{fragments}][4]={{}};\n__syncthreads();
{part}#pragma unroll\nfor(int step=begin;step<begin+{ahead};++step){{if(step<end)fetch(step,shared+step%{stages}*{stage});copies_commit();}}"
    );
    tiles.prefetch(&mut out);
    let _ = writeln!(
        out,
        "for(int step=begin;step<end;++step){{
copies_wait<{}>();\nshow_to_tensor_cores();\n__syncthreads();
const unsigned long long l_tile=matrix_at(shared+step%{stages}*{stage}+warp/4*{BLOCK_BYTES}),r_tile=matrix_at(shared+step%{stages}*{stage}+{lhs_bytes});
products_begin();\n#pragma unroll\nfor(int part=0;part<{};++part){{\n{}}}\nproducts_commit();\n{}
if(step+{ahead}<end)fetch(step+{ahead},shared+(step+{ahead})%{stages}*{stage});\ncopies_commit();\n{}}}
products_wait<0>();
#pragma unroll\nfor(int j=0;j<{fragments};++j)\n#pragma unroll\nfor(int c=0;c<4;++c)asm volatile(\"\":\"+f\"(acc[0][j][c])::\"memory\");",
        ahead - 1,
        DEPTH / 16,
        multiply(&sides, fragments, dtype),
        if left == 1 { "products_wait<1>();" } else { "" },
        if left == 0 { "products_wait<0>();\n" } else { "" },
    );
    let mut aligned = tiles.finish(&mut out, true);
    aligned.extend(operands.map(|operand| operand.place.buffer));
    Some(Body {
        name: "warpgroup",
        functions: vec![include_str!("tensor.cu"), include_str!("warpgroup.cu"), include_str!("cluster.cu")],
        cluster: tile.parts as u32,
        threads: tile.threads() as u32,
        resident: tile.resident(),
        block_bytes: Dim::from(stages * stage),
        aligned,
        ..Body::new(out, tiles.width, tiles.blocks())
    })
}

/// A warpgroup's product of 16 summed elements. Descriptors count in units of 16 bytes.
fn multiply(sides: &[Side<'_>; 2], fragments: i64, dtype: DType) -> String {
    let kind = if dtype == DType::Bf16 { "bf16" } else { "f16" };
    let count = fragments * 4;
    let list = |item: &dyn Fn(i64) -> String| (0..count).map(item).collect::<Vec<_>>().join(",");
    let step = |side: &Side<'_>| if side.operand.along_sum { 32 / 16 } else { 16 * ROW / 16 };
    let transposed = |side: &Side<'_>| u8::from(!side.operand.along_sum);
    format!(
        "asm volatile(\"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{kind}.{kind} {{{}}}, %{count}, %{}, 1, 1, 1, {}, {};\"
:{}:\"l\"(l_tile+part*{}),\"l\"(r_tile+part*{}));",
        fragments * 8,
        list(&|number| format!("%{number}")),
        count + 1,
        transposed(&sides[0]),
        transposed(&sides[1]),
        list(&|number| format!("\"+f\"(acc[0][{}][{}])", number / 4, number % 4)),
        step(&sides[0]),
        step(&sides[1]),
    )
}

impl Side<'_> {
    /// Rows of the tile that a copy of all threads fills.
    fn rows(&self, tile: Tile) -> i64 {
        tile.threads() / CHUNKS
    }

    /// Declares the places of a thread: of each of its lines, or of its chunk of lines in each block, with the bytes that there are.
    fn declare(&self, out: &mut String, tiles: &Tiles<'_>) {
        let Side { operand, name, axis, count, first, lines, rest, .. } = self;
        let rows = self.rows(tiles.tile);
        let (places, own, bytes) = match operand.along_sum {
            true => (lines / rows, format!("line+s*{rows}"), String::from("16")),
            false => {
                let own = format!("chunk*{CHUNK}+s*{BLOCK}");
                (lines / BLOCK, own, format!("(int)lesser({CHUNK},{count}-own_at)*2"))
            }
        };
        let _ = writeln!(
            out,
            "idx {name}_at[{places}];int {name}_bytes[{places}];
#pragma unroll\nfor(int s=0;s<{places};++s){{const idx own_at={first}+{own},at=own_at<{count}?own_at:0;"
        );
        out.push_str(&decode(&tiles.names, operand.axes, axis, "at", tiles.width));
        let chunk = if operand.along_sum { format!("+chunk*{CHUNK}") } else { String::new() };
        let _ = writeln!(out, "{name}_at[s]={}{chunk};{name}_bytes[s]=own_at<{count}?{bytes}:0;}}", tiles.text(rest));
    }

    /// Statements that copy its tile at summed position `deep` to an address in shared memory; what is outside is 0.
    fn fetch(&self, out: &mut String, tiles: &Tiles<'_>, depth: i64, to: &str) {
        let Side { operand, name, lines, step, .. } = self;
        let rows = self.rows(tiles.tile);
        let (buffer, copies) = (operand.place.buffer, lines / rows);
        let whole = depth % DEPTH == 0;
        if operand.along_sum {
            let rest = match whole {
                true => String::from("16"),
                false => format!("2*min({CHUNK},max(0,{depth}-deep-chunk*{CHUNK}))"),
            };
            let _ = writeln!(
                out,
                "{{const int rest={rest};\n#pragma unroll\nfor(int s=0;s<{copies};++s)copy_part({to}+spot+s*{},b{buffer}+{name}_at[s]+deep,min({name}_bytes[s],rest));}}",
                rows * ROW
            );
            return;
        }
        let parts = BLOCK / rows;
        let inside = if whole { String::new() } else { format!("k>={depth}?0:") };
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int s=0;s<{copies};++s){{const int row=s%{parts}*{rows},k=deep+line+row;
copy_part({to}+spot+row*{ROW}+s/{parts}*{BLOCK_BYTES},b{buffer}+{name}_at[s/{parts}]+(idx)k*{},{inside}{name}_bytes[s/{parts}]);}}",
            tiles.text(step)
        );
    }
}
