//! Products of one row with quantised blocks, on tensor cores: their elements are small integers, which short floats hold exactly,
//! and x is one such float, or the sum of three. Scales are applied to the sums of those that share one.
//!
//! ```text
//!  fetch the first blocks ▶ wait for the launch before ▶ x as short floats in shared memory ▶ (fetch the next ▶ unpack, mma, scale) …
//!    ▶ sum over lanes and warps ▶ epilogue ▶ the next 16 rows of the weights
//! ```
//!
//! A sum that is not finite is computed again from dequantised elements: a scale or an element of x is not finite, and terms
//! that share a scale may be infinities of both signs.

use super::skinny::Writer;
use super::value::{Statements, Temps};
use super::{Body, Way, ceil_div, decode};
use kiln_ir::{BlockFormat, DType, Dim};
use kiln_kernels::kernel::{Inst, InstKind};
use std::fmt::Write;

/// Rows of the weights that a warp takes.
const TALL: i64 = 16;
/// Threads of a block.
const THREADS: i64 = 256;
/// Warps of a multiprocessor, which have registers for the blocks of this time and of the next.
const RESIDENT: i64 = 2;
/// Bytes of shared memory for x: half of what a multiprocessor has.
const SHARED: i64 = 96 << 10;

/// The body, if the product is of this kind: the writer is that of a product of few rows.
pub(super) fn generate(writer: &Writer<'_>, total: &Dim, way: Way) -> Option<Body> {
    let formats: Vec<BlockFormat> =
        writer.body.rhs.iter().map(|rhs| block_format(&rhs.insts)).collect::<Option<_>>()?;
    let format = *formats.first()?;
    let elements = match format {
        BlockFormat::Q4_K => 256,
        BlockFormat::Q6_K => 128,
        _ => return None,
    };
    let same = formats.iter().all(|own| *own == format);
    let fits = writer.rows == 1 && same && writer.body.acc == DType::F32 && way.vectors && formats.len() <= 2;
    let columns = total.as_const().filter(|_| fits && writer.body.batch.is_empty())?;
    let items = writer.depth / elements;
    // As many warps share a row as there are to be busy; each has the same to do.
    let tiles = (columns + TALL - 1) / TALL;
    let busy = |warps: &i64| items % warps == 0 && tiles * warps >= way.multiprocessors * RESIDENT * THREADS / 32;
    let warps =
        [2, 4, 8].into_iter().find(busy).or_else(|| [8, 4, 2, 1].into_iter().find(|warps| items % warps == 0))?;
    let terms = if is_short(writer) { 1 } else { 3 };
    let before = writer.kept.as_ref().map_or(0, |kept| kept.bytes);
    let bytes = before + terms * writer.depth * 2 + writer.depth / 8;
    (bytes <= SHARED).then(|| Grains { writer, format, items, warps, terms, before, bytes, columns }.generate(way))
}

/// The format of the blocks that an operand is.
fn block_format(insts: &[Inst]) -> Option<BlockFormat> {
    match insts {
        [Inst { kind: InstKind::LoadBlock { place, format, .. }, .. }] if place.indirect.is_empty() => Some(*format),
        _ => None,
    }
}

/// Whether every element of x is a short float.
fn is_short(writer: &Writer<'_>) -> bool {
    let lhs = &writer.body.lhs;
    let dtypes = writer.kept.as_ref().map(|kept| &kept.dtypes);
    lhs.insts.iter().find(|inst| inst.id == lhs.value).is_some_and(|inst| match &inst.kind {
        InstKind::Load { place, .. } => writer.kernel.buffers[place.buffer].dtype == DType::Bf16,
        InstKind::LoadTemp(temp) => dtypes.is_some_and(|dtypes| dtypes[*temp] == DType::Bf16),
        InstKind::Round(_, dtype) => *dtype == DType::Bf16,
        _ => false,
    })
}

struct Grains<'a> {
    writer: &'a Writer<'a>,
    format: BlockFormat,
    /// Parts of a row that a warp takes one after the other.
    items: i64,
    /// Warps that share rows.
    warps: i64,
    /// Short floats that an element of x is the sum of.
    terms: i64,
    /// Bytes of what is computed before the product, and with x.
    before: i64,
    bytes: i64,
    columns: i64,
}

impl Grains<'_> {
    fn generate(&self, way: Way) -> Body {
        let Grains { writer, items, warps, terms, columns, .. } = self;
        let (several, groups) = (writer.body.rhs.len(), THREADS / 32 / warps);
        let (name, tiles) = (self.format.name(), (columns + TALL - 1) / TALL);
        let mut out = String::new();
        let _ = writeln!(
            out,
            "typedef Grains_{name} G;\n__shared__ float parts[2][{}][{several}][{TALL}];\nint flip=0;
const int warp=threadIdx.x/32,lane=threadIdx.x%32,part=warp%{warps},g=lane/4,t=lane%4;
int first=(int)block*{groups};\nconst int stride=(int)blocks*{groups};
struct Item{{G::Raw raw[{several}][2];}};\nconst unsigned char* from[{several}][2];
auto point=[&](int first){{\n#pragma unroll\nfor(int half=0;half<2;++half){{
const int own=(first+warp/{warps})*{TALL}+g+half*8;const idx p=own<{columns}?own:{columns}-1;",
            THREADS / 32
        );
        writer.position(&mut out, "p");
        for (number, rhs) in writer.body.rhs.iter().enumerate() {
            let InstKind::LoadBlock { place, .. } = &rhs.insts[0].kind else { continue };
            let at = writer.names.text(&place.offset, writer.width);
            let _ = writeln!(out, "from[{number}][half]=b{}+{at};", place.buffer);
        }
        let _ = writeln!(
            out,
            "}}}};\nauto fetch=[&](Item& to,int item){{
#pragma unroll\nfor(int r=0;r<{several};++r)\n#pragma unroll\nfor(int half=0;half<2;++half)G::load(to.raw[r][half],from[r][half],item,t);}};
Item now;\nif(early){{if(first<{tiles}){{point(first);fetch(now,part);}}wait_before();}}
else{{wait_before();if(first<{tiles}){{point(first);fetch(now,part);}}}}"
        );
        self.left(&mut out);
        let _ = writeln!(
            out,
            "for(;first<{tiles};first+=stride){{\nfloat total[{several}][2]={{}};
for(int item=part;item<{items};item+={warps}){{\nItem next;
if(item+{warps}<{items})fetch(next,item+{warps});else if(first+stride<{tiles}){{point(first+stride);fetch(next,part);}}
#pragma unroll\nfor(int r=0;r<{several};++r)G::add<{terms}>(total[r],now.raw[r],xs,{},sums,item,g,t);
now=next;}}
#pragma unroll\nfor(int r=0;r<{several};++r)\n#pragma unroll\nfor(int half=0;half<2;++half){{float& v=total[r][half];
v+=__shfl_xor_sync(~0u,v,1);v+=__shfl_xor_sync(~0u,v,2);if(t==0)parts[flip][warp][r][g+half*8]=v;}}
__syncthreads();",
            writer.depth
        );
        self.finish(&mut out);
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
                include_str!("grains.cu"),
            ],
            most_blocks: way.multiprocessors * RESIDENT,
            resident: RESIDENT as u32,
            share: several as i64 * columns,
            threads: THREADS as u32,
            block_bytes: Dim::from(self.bytes),
            aligned: writer.aligned().chain(buffers()).collect(),
            fetched: buffers().collect(),
            ..Body::new(out, writer.width, ceil_div(&Dim::from(tiles), groups))
        }
    }

    /// Statements that put x into shared memory: in whole words the first and the third of four elements, then the second and the
    /// fourth, as blocks have them; and the sums of 32 elements.
    fn left(&self, out: &mut String) {
        let Grains { writer, terms, before, .. } = self;
        let depth = writer.depth;
        match (&writer.body.before, &writer.kept) {
            (Some(stages), Some(kept)) => writer.before(out, stages, kept),
            _ => out.push_str("extern __shared__ __align__(16) unsigned char own[];\n"),
        }
        let _ = writeln!(
            out,
            "unsigned short* const xs=(unsigned short*)(own+{before});\nfloat* const sums=(float*)(own+{});
for(int k=threadIdx.x*4;k<{depth};k+={}){{float v[4];\n#pragma unroll\nfor(int e=0;e<4;++e){{const idx mm=0,k0=k+e,at=k0;",
            before + terms * depth * 2,
            THREADS * 4
        );
        out.push_str(&decode(&writer.names, &writer.body.m, "m", "mm", writer.width));
        let dtypes = writer.kept.as_ref().map_or(&[][..], |kept| &kept.dtypes);
        let mut statements = Statements { temps: Temps::Elements(dtypes), ..writer.statements("x") };
        statements.all(&writer.body.lhs.insts);
        let _ = writeln!(
            out,
            "{}v[e]=x{};}}\nfloat sum=v[0]+v[1]+v[2]+v[3];\n#pragma unroll\nfor(int term=0;term<{terms};++term){{unsigned bits[4];
#pragma unroll\nfor(int e=0;e<4;++e){{bits[e]=__float_as_uint(v[e])>>16;
v[e]=(bits[e]&0x7f80u)==0x7f80u?0.0f:v[e]-__uint_as_float(bits[e]<<16);}}
*(uint2*)(xs+term*{depth}+k)=uint2{{bits[0]|bits[2]<<16,bits[1]|bits[3]<<16}};}}
sum+=__shfl_xor_sync(__activemask(),sum,1);sum+=__shfl_xor_sync(__activemask(),sum,2);sum+=__shfl_xor_sync(__activemask(),sum,4);
if(k%32==0)sums[k/32]=sum;}}\n__syncthreads();",
            statements.out, writer.body.lhs.value.0
        );
    }

    /// Adds the sums of all warps of a row, and runs the epilogue.
    fn finish(&self, out: &mut String) {
        let Grains { writer, warps, terms, columns, .. } = self;
        let (several, depth) = (writer.body.rhs.len(), writer.depth);
        let _ = writeln!(
            out,
            "const idx p=(idx)(first+warp/{warps})*{TALL}+lane;\nif(part==0&&lane<{TALL}&&p<{columns}){{const int mm=0;float result[{several}]={{}};
#pragma unroll\nfor(int w=0;w<{warps};++w)\n#pragma unroll\nfor(int r=0;r<{several};++r)result[r]+=parts[flip][warp+w][r][lane];"
        );
        writer.position(out, "p");
        out.push_str(&decode(&writer.names, &writer.body.m, "m", "mm", writer.width));
        for (number, rhs) in writer.body.rhs.iter().enumerate() {
            let InstKind::LoadBlock { place, format, .. } = &rhs.insts[0].kind else { continue };
            let (name, elements, bytes) = (format.name(), format.elements(), format.bytes());
            let at = writer.names.text(&place.offset, writer.width);
            let _ = writeln!(
                out,
                "if(!(fabsf(result[{number}])<=3.402823466e38f)){{float sum=0.0f;
for(int k=0;k<{depth};++k){{const int at=k/4*4+(k%4==1?2:k%4==2?1:k%4);float x=0.0f;
for(int term={terms};term-->0;)x+=from_bf16(xs[term*{depth}+at]);
sum=fmaf(x,{name}(b{}+{at}+k/{elements}*{bytes},k%{elements}),sum);}}\nresult[{number}]=sum;}}",
                place.buffer
            );
        }
        let accumulators = (0..several).map(|number| format!("result[{number}]")).collect();
        let mut epilogue = Statements { accumulators, ..writer.statements("e") };
        epilogue.all(&writer.body.epilogue);
        out.push_str(&epilogue.out);
        out.push_str("}\n");
    }
}
