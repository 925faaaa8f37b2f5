//! Products of one row with quantised blocks, on tensor cores: the blocks' elements are small integers, and x is turned into integers
//! too, of which 32 neighbours are multiples of one power of two. Scales are applied to the sums of those that share one.
//!
//! ```text
//!  copy the first blocks to shared memory ▶ wait for the launch before ▶ x as digits in shared memory ▶ (copy the next ▶ mma, scale) …
//!    ▶ sum over lanes ▶ the next 16 rows of the weights … ▶ sum over warps ▶ epilogue of all these rows
//! ```
//!
//! A warp has its own blocks in shared memory, and waits for nobody until it has the sums of several times 16 rows. Digits have 30 bits
//! below the largest of 32 neighbours, as many as keep the error of an element below that of a sum in F32. A sum that is not finite is
//! computed again from dequantised elements: a scale or an element of x is not finite, and terms that share a scale may be infinities
//! of both signs.

use super::skinny::{BLOCK_LANES, Writer};
use super::value::{Statements, Temps};
use super::vector::{Vector, is_multiple};
use super::{Body, Way, ceil_div, decode};
use kiln_ir::{BlockFormat, DType, Dim};
use kiln_kernels::kernel::{Inst, InstKind};
use std::fmt::Write;

/// Rows of the weights that a warp takes.
const TALL: i64 = 16;
/// Threads of a block, the only one of a multiprocessor: copies in flight decide, and more of them fit one block.
pub(super) const THREADS: i64 = 512;
const WARPS: i64 = THREADS / 32;
/// Copies of a warp in shared memory, at the most and at the least: one that is read and others that are on their way.
const SLOTS: [i64; 2] = [3, 2];
/// Shared memory that is left for what the rows on the left need while they are computed, and for the driver.
const LEFT_FREE: i64 = 1 << 10;
/// Sums of so many times 16 rows are kept before the epilogue, of all right operands together.
const KEPT: i64 = 4;
/// Bytes of zeros, as digits of elements that a column does not have.
const ZEROS: i64 = 1024;
const CHUNK: i64 = 16;
/// Bytes of the weights that a block asks for while it waits for the launch before.
const SOON: i64 = 96 << 10;

/// How a product of this kind is done.
pub(super) struct Plan {
    format: BlockFormat,
    columns: i64,
    /// Bytes from one row of the weights to the next.
    pitch: i64,
    /// Elements and bytes of what a warp takes of a row at once.
    elements: i64,
    bytes: i64,
    /// Chunks that hold these, wherever they begin.
    chunks: i64,
    /// Warps that share rows.
    warps: i64,
    /// What a warp has of its copies in shared memory.
    slots: i64,
    /// Where each thing is in shared memory.
    digits: i64,
    zeros: i64,
    scales: i64,
    sums: i64,
    parts: i64,
    copies: i64,
    end: i64,
}

impl Plan {
    /// The plan, if the product is of this kind: the writer is that of a product of few rows.
    pub(super) fn of(writer: &Writer<'_>, total: &Dim, way: Way) -> Option<Plan> {
        let body = writer.body;
        let formats: Vec<BlockFormat> = body.rhs.iter().map(|rhs| block_format(&rhs.insts)).collect::<Option<_>>()?;
        let (format, several) = (*formats.first()?, formats.len() as i64);
        let blocks = match format {
            BlockFormat::Q4_K | BlockFormat::Q6_K => 1,
            BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q5_0 => 8,
            BlockFormat::Q8_0 => 4,
        };
        let same = formats.iter().all(|own| *own == format) && several <= 2;
        if !same || writer.rows != 1 || body.acc != DType::F32 || !body.batch.is_empty() || writer.lanes != BLOCK_LANES
        {
            return None;
        }
        let columns = total.as_const()?;
        let (elements, bytes) = (blocks * format.elements() as i64, blocks * format.bytes() as i64);
        let pitch = rows_pitch(writer)?;
        // Blocks of an even number of bytes have their words at known places only if rows begin at words.
        if writer.depth % elements != 0 || (format != BlockFormat::Q6_K && pitch % 4 != 0) {
            return None;
        }
        let items = writer.depth / elements;
        let warps = [16, 8, 4, 2, 1].into_iter().find(|warps| items % warps == 0)?;
        // What a row begins with belongs to the item before, where it begins within a chunk.
        let unit = [2, 4, 8, 16].into_iter().rfind(|unit| bytes % unit == 0 && pitch % unit == 0)?;
        let chunks = (bytes + CHUNK - unit + CHUNK - 1) / CHUNK;
        if (chunks - 1) * CHUNK >= bytes {
            return None;
        }
        let digits = writer.kept.as_ref().map_or(0, |kept| kept.bytes);
        let zeros = digits + writer.depth * 4;
        let scales = zeros + ZEROS;
        let sums = scales + (writer.depth / 8 + CHUNK - 1) / CHUNK * CHUNK;
        let parts = sums + (writer.depth / 8 + CHUNK - 1) / CHUNK * CHUNK;
        let copies = parts + 2 * KEPT.max(several) * WARPS * TALL * 4;
        let end = |slots: i64| copies + slots * WARPS * TALL * chunks * CHUNK;
        let slots = SLOTS.into_iter().find(|&slots| end(slots) <= way.shared - LEFT_FREE)?;
        let end = end(slots);
        Some(Plan {
            format,
            columns,
            pitch,
            elements,
            bytes,
            chunks,
            warps,
            slots,
            digits,
            zeros,
            scales,
            sums,
            parts,
            copies,
            end,
        })
    }

    /// The body, by a writer of this number of threads.
    pub(super) fn generate(&self, writer: &Writer<'_>, way: Way) -> Body {
        let Plan { columns, elements, bytes, chunks, warps, slots, .. } = self;
        let (several, groups) = (writer.body.rhs.len() as i64, WARPS / warps);
        let (tiles, count) = ((columns + TALL - 1) / TALL, writer.depth / elements / warps);
        let (kept, slot) = (self.kept(writer), TALL * chunks * CHUNK);
        // Warps without rows of their own copy the last ones.
        let last = (tiles - 1) * TALL;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "typedef Quantised_{} G;\nextern __shared__ __align__(16) unsigned char own[];
float (*const parts)[{kept}][{WARPS}][{several}][{TALL}]=(float (*)[{kept}][{WARPS}][{several}][{TALL}])(own+{});\nint flip=0;
const int warp=threadIdx.x/32,lane=threadIdx.x%32,part=warp%{warps},g=lane/4,t=lane%4;
int first=(int)block*{groups};\nconst int stride=(int)blocks*{groups};
unsigned char* const copies=own+{}+warp*{};\nint ahead=first,turn=0,slot=0,use=0;\nconst unsigned char* from[{several}];
auto point=[&](){{const int row=(ahead+warp/{warps})*{TALL};const idx p=row<{last}?row:{last};",
            self.format.name(),
            self.parts,
            self.copies,
            slots * slot
        );
        writer.position(&mut out, "p");
        for (number, rhs) in writer.body.rhs.iter().enumerate() {
            let InstKind::LoadBlock { place, .. } = &rhs.insts[0].kind else { continue };
            let at = writer.names.text(&place.offset, writer.width);
            let _ = writeln!(out, "from[{number}]=b{}+{at};", place.buffer);
        }
        let other = if several == 2 { "if(turn%2)at=from[1];" } else { "" };
        let (pitch, all) = (chunks * CHUNK, TALL * chunks);
        let inside = match columns % TALL {
            0 => String::new(),
            _ => format!("if((ahead+warp/{warps})*{TALL}+n/{chunks}<{columns})"),
        };
        // Rows begin at the same place of a chunk, or each where its address says.
        let source = match self.pitch % CHUNK {
            0 => format!("at+(n/{chunks}*{}+n%{chunks}*{CHUNK})", self.pitch),
            _ => format!("whole(at+n/{chunks}*{})+n%{chunks}*{CHUNK}", self.pitch),
        };
        let whole = if self.pitch % CHUNK == 0 && chunks * CHUNK != *bytes { "at=whole(at);" } else { "" };
        let _ = writeln!(
            out,
            "}};\nauto whole=[](const unsigned char* p){{return (const unsigned char*)((unsigned long long)p&~15ull);}};
auto copy=[&](){{if(ahead<{tiles}){{const unsigned char* at=from[0];{other}
at+=(part+turn/{several}*{warps})*{bytes};{whole}\nconst unsigned to=(unsigned)__cvta_generic_to_shared(copies+slot*{slot}+lane*{CHUNK});
#pragma unroll\nfor(int i=0;i<{};++i){{const int n=i*32+lane;if(i*32+32<={all}||n<{all}){inside}copy_chunk(to+i*{},{source},true);}}
if(++turn=={}){{turn=0;ahead+=stride;if(ahead<{tiles})point();}}}}
copies_commit();slot=slot+1=={slots}?0:slot+1;}};
auto begin=[&](){{if(first<{tiles})point();\n#pragma unroll\nfor(int i=0;i+1<{slots};++i)copy();}};
",
            (all + 31) / 32,
            32 * CHUNK,
            count * several
        );
        writer.ask_for_rows(&mut out);
        out.push_str("if(early){begin();");
        self.soon(writer, way, &mut out);
        out.push_str("wait_before();}else{wait_before();begin();}\n");
        self.left(writer, &mut out);
        let _ = writeln!(
            out,
            "const Lane own_lane=G::lane(g,t,{},{});\nwhile(first<{tiles}){{\nconst int begun=first;int n=0;
for(;n<{kept}&&first<{tiles};++n,first+=stride){{\nSum total[{several}]={{}};
for(int c=0;c<{count};++c)\n#pragma unroll\nfor(int r=0;r<{several};++r){{const int item=part+c*{warps};
copies_wait<{}>();__syncwarp();copy();
const unsigned char* row=copies+use*{slot}+g*{pitch}+{};use=use+1=={slots}?0:use+1;
const Left left={{{{own+own_lane.digits[0]+item*own_lane.step[0],own+own_lane.digits[1]+item*own_lane.step[1]}},
(const float*)(own+{}+own_lane.scales+item*{}),(const float*)(own+{}+own_lane.sums+item*{})}};
G::add(total[r],row,{},left,own_lane,t);}}
#pragma unroll\nfor(int r=0;r<{several};++r)\n#pragma unroll\nfor(int half=0;half<2;++half){{
float v=total[r].main[half]*(t%2?1.52587890625e-5f:1.0f)-total[r].least[half];
v+=__shfl_xor_sync(~0u,v,1);v+=__shfl_xor_sync(~0u,v,2);if(t==0)parts[flip][n][warp][r][g+half*8]=v;}}}}
__syncthreads();",
            self.digits,
            self.zeros,
            slots - 2,
            self.skipped(&format!("(g*{}+item*{bytes}&15)", self.pitch % CHUNK)),
            self.scales,
            elements / 8,
            self.sums,
            elements / 8,
            8 * pitch
        );
        self.finish(writer, &mut out);
        out.push_str("flip^=1;\n}\n");
        let buffers = || {
            writer.body.rhs.iter().flat_map(|rhs| &rhs.insts).filter_map(|inst| match &inst.kind {
                InstKind::LoadBlock { place, .. } => Some(place.buffer),
                _ => None,
            })
        };
        Body {
            functions: vec![
                include_str!("stream.cu"),
                include_str!("rows.cu"),
                include_str!("blocks.cu"),
                include_str!("tensor.cu"),
                include_str!("quantised.cu"),
            ],
            most_blocks: way.multiprocessors,
            share: several * columns,
            threads: THREADS as u32,
            block_bytes: Dim::from(self.end),
            aligned: writer.aligned().chain(buffers()).collect(),
            fetched: buffers().collect(),
            ..Body::new(out, writer.width, ceil_div(&Dim::from(tiles), groups))
        }
    }

    /// Statements that ask for the first of the weights, or for the beginnings of their rows.
    fn soon(&self, writer: &Writer<'_>, way: Way, out: &mut String) {
        let Plan { columns, elements, bytes, warps, .. } = self;
        if self.pitch % CHUNK != 0 {
            return;
        }
        let (row, groups, several) = (writer.depth / elements * bytes, WARPS / warps, writer.body.rhs.len() as i64);
        let tiles = (columns + TALL - 1) / TALL;
        let turns = (tiles + groups * way.multiprocessors - 1) / (groups * way.multiprocessors);
        let at_once = groups * several * TALL;
        let turns = (SOON / (at_once * row)).clamp(1, turns);
        let row = row.min(SOON / (at_once * turns)) / CHUNK * CHUNK;
        let _ = writeln!(
            out,
            "if(lane==0)for(int e=warp;e<{};e+={WARPS}){{const int tile=first+e/{}*stride+e/{TALL}%{groups};
const idx p=(idx)tile*{TALL}+e%{TALL};if(p<{columns}){{",
            turns * groups * TALL,
            groups * TALL
        );
        writer.position(out, "p");
        for rhs in &writer.body.rhs {
            let InstKind::LoadBlock { place, .. } = &rhs.insts[0].kind else { continue };
            let at = writer.names.text(&place.offset, writer.width);
            let _ = writeln!(out, "fetch_soon(b{}+{at},{row});", place.buffer);
        }
        out.push_str("}}\n");
    }

    /// Times 16 rows whose sums are kept until the epilogue.
    fn kept(&self, writer: &Writer<'_>) -> i64 {
        (KEPT / writer.body.rhs.len() as i64).max(1)
    }

    /// `text` where what is copied may begin within a chunk.
    fn skipped<'t>(&self, text: &'t str) -> &'t str {
        if self.chunks * CHUNK == self.bytes { "0" } else { text }
    }

    /// Statements that put x into shared memory as digits.
    fn left(&self, writer: &Writer<'_>, out: &mut String) {
        let Plan { digits, zeros, scales, sums, .. } = self;
        let depth = writer.depth;
        if let (Some(stages), Some(kept)) = (&writer.body.before, &writer.kept) {
            writer.before(out, stages, kept);
        }
        let _ = writeln!(
            out,
            "unsigned char* const digits=own+{digits};\nunsigned char* const zeros=own+{zeros};
float* const scales=(float*)(own+{scales});\nfloat* const sums=(float*)(own+{sums});
for(int i=threadIdx.x;i<{};i+={THREADS})((unsigned*)zeros)[i]=0;
#pragma unroll 4\nfor(int begin=threadIdx.x*{BLOCK_LANES};begin<{depth};begin+={}){{float v[{BLOCK_LANES}];const idx mm=0,k0=begin;",
            ZEROS / 4,
            THREADS * BLOCK_LANES
        );
        let insts = &writer.body.lhs.insts;
        out.push_str(&decode(&writer.names, &writer.body.m, "m", "mm", writer.width));
        out.push_str(&writer.left.begin(&writer.statements("x"), insts.iter()));
        out.push_str(&writer.wide_temps("begin"));
        let _ = writeln!(out, "#pragma unroll\nfor(int e=0;e<{BLOCK_LANES};++e){{const idx k0=begin+e,at=k0;");
        self.element(writer, out, Some(&writer.left), "v[e]");
        out.push_str("}\nput_digits(digits,scales,sums,begin,v);}\n__syncthreads();\n");
    }

    /// Statements that give `name` the element of x at `k0`, which may be one of wide values.
    fn element(&self, writer: &Writer<'_>, out: &mut String, vector: Option<&Vector>, name: &str) {
        let dtypes = writer.kept.as_ref().map_or(&[][..], |kept| &kept.dtypes);
        let temps = if vector.is_some() { Temps::Wide(dtypes) } else { Temps::Elements(dtypes) };
        let mut statements = Statements { vector, temps, ..writer.statements("x") };
        statements.all(&writer.body.lhs.insts);
        let _ = writeln!(out, "{}{name}=x{};", statements.out, writer.body.lhs.value.0);
    }

    /// Adds the sums of all warps of the rows that were kept, and runs the epilogue.
    fn finish(&self, writer: &Writer<'_>, out: &mut String) {
        let Plan { warps, columns, .. } = self;
        let (several, depth, groups) = (writer.body.rhs.len(), writer.depth, WARPS / warps);
        let _ = writeln!(
            out,
            "for(int e=threadIdx.x;e<n*{};e+={THREADS}){{
const int own_row=e%{TALL},group=e/{TALL}%{groups},turn=e/{};const idx p=(idx)(begun+turn*stride+group)*{TALL}+own_row;
if(p<{columns}){{const int mm=0;float result[{several}]={{}};
#pragma unroll\nfor(int w=0;w<{warps};++w)\n#pragma unroll\nfor(int r=0;r<{several};++r)result[r]+=parts[flip][turn][group*{warps}+w][r][own_row];",
            groups * TALL,
            groups * TALL
        );
        writer.position(out, "p");
        out.push_str(&decode(&writer.names, &writer.body.m, "m", "mm", writer.width));
        for (number, rhs) in writer.body.rhs.iter().enumerate() {
            let InstKind::LoadBlock { place, format, .. } = &rhs.insts[0].kind else { continue };
            let (name, elements, bytes) = (format.name(), format.elements(), format.bytes());
            let at = writer.names.text(&place.offset, writer.width);
            let _ = writeln!(
                out,
                "if(!(fabsf(result[{number}])<=3.402823466e38f)){{float sum=0.0f;\nfor(int k=0;k<{depth};++k){{const idx k0=k,at=k0;float x;"
            );
            self.element(writer, out, None, "x");
            let _ = writeln!(
                out,
                "sum=fmaf(x,{name}(b{}+{at}+k/{elements}*{bytes},k%{elements}),sum);}}\nresult[{number}]=sum;}}",
                place.buffer
            );
        }
        let accumulators = (0..several).map(|number| format!("result[{number}]")).collect();
        let mut epilogue = Statements { accumulators, ..writer.statements("e") };
        epilogue.all(&writer.body.epilogue);
        out.push_str(&epilogue.out);
        out.push_str("}}\n");
    }
}

/// The format of the blocks that an operand is.
fn block_format(insts: &[Inst]) -> Option<BlockFormat> {
    match insts {
        [Inst { kind: InstKind::LoadBlock { place, format, .. }, .. }] if place.indirect.is_empty() => Some(*format),
        _ => None,
    }
}

/// Bytes from one row of all right operands to the next of the same 16 rows, if they are evenly spaced and the first of them begins at a
/// multiple of a chunk.
fn rows_pitch(writer: &Writer<'_>) -> Option<i64> {
    let axis = writer.body.n.last()?;
    if writer.body.n.len() > 1 && axis.size.as_const()? % TALL != 0 {
        return None;
    }
    let mut pitches = writer.body.rhs.iter().map(|rhs| {
        let InstKind::LoadBlock { place, .. } = &rhs.insts.first()?.kind else { return None };
        let (pitch, rest) = place.offset.linear_in(axis.var)?;
        let pitch = pitch.as_const()?;
        (pitch % 2 == 0 && is_multiple(&rest, CHUNK)).then_some(pitch)
    });
    let first = pitches.next()??;
    pitches.all(|pitch| pitch == Some(first)).then_some(first)
}
