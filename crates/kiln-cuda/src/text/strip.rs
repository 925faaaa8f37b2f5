//! Products of up to 16 rows of short floats on tensor cores, at the speed of memory: the weights are the left operand of `mma` and go
//! from memory straight to registers; the rows are the right one, and stay in shared memory.
//!
//! ```text
//!  a cluster   one or two strips of 16 rows of the weights at a time; each of its blocks has a part of the sum, so that its part
//!              of the rows on the right fits shared memory, and each of its sixteen warps a part of that, for one strip
//!  a lane      16 bytes of weight row g = lane/4 and of row g + 8, at 8·(lane%4), which `mma` takes for elements of two
//!              16 × 16 blocks, and the same elements of the rows on the right: sums may be taken in any order
//!  the end     every warp sends its part of the sums to the blocks that end these rows, which add the parts one turn later, while
//!              the weights of the next rows are on their way
//! ```

use super::index::{Names, Width};
use super::tensor::Operand;
use super::value::Statements;
use super::{Body, Way, ceil_div, decode, names_of_product, points, width};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Kernel, MatmulBody};
use std::fmt::Write;

/// Rows on the right.
pub(crate) const MOST_ROWS: i64 = 16;
/// Up to so many rows are faster without tensor cores.
const FEW_ROWS: i64 = 4;
/// Blocks of a cluster at the most.
const MOST_BLOCKS: i64 = 8;
/// Elements of the sum of a block at the most: what 16 rows of fit shared memory beside the sums.
const MOST_DEPTH: i64 = 2048;
/// Warps of a block.
const WARPS: i64 = 16;
const THREADS: i64 = WARPS * 32;
/// Rows of the weights that a warp takes.
const TALL: i64 = 16;
/// Elements of the sum that a lane's wide load and its neighbours' cover.
const STEP: i64 = 32;
/// Wide loads of a lane that are fetched at once.
const LOADS: i64 = 8;
/// Elements between one row in shared memory and the next, beside the row: rows that follow one another are in different banks.
const GAP: i64 = 32;
/// Right operands at the most.
const MOST_OPERANDS: usize = 2;

/// The body, if the product is of this kind.
pub(super) fn generate(kernel: &Kernel, body: &MatmulBody, way: Way) -> Option<Body> {
    let [summed] = body.k.as_slice() else { return None };
    let (rows, depth) = (points(&body.m).as_const()?, summed.size.as_const()?);
    let fits = way.vectors
        && way.clusters
        && body.before.is_none()
        && body.acc == DType::F32
        && body.batch.is_empty()
        && (FEW_ROWS + 1..=MOST_ROWS).contains(&rows)
        && depth <= MOST_BLOCKS * MOST_DEPTH
        && body.rhs.len() <= MOST_OPERANDS;
    if !fits {
        return None;
    }
    let left = Operand::of(kernel, &body.lhs, &body.m, summed).filter(|operand| operand.along_sum)?;
    let right: Vec<Operand<'_>> = body
        .rhs
        .iter()
        .map(|rhs| Operand::of(kernel, rhs, &body.n, summed).filter(|operand| operand.along_sum))
        .collect::<Option<_>>()?;
    let dtype = kernel.buffers[left.place.buffer].dtype;
    if right.iter().any(|operand| kernel.buffers[operand.place.buffer].dtype != dtype) {
        return None;
    }
    let names = names_of_product(kernel, [&body.batch, &body.m, &body.n, &body.k]);
    let columns = points(&body.n);
    let width = width(&names, kernel.insts(), &[&columns]);
    // As few blocks share a sum as can; one strip at a time where two would leave blocks without work.
    let split = [1, 2, 4, MOST_BLOCKS].into_iter().find(|split| depth <= split * MOST_DEPTH)?;
    let clusters = clusters(way.multiprocessors, split);
    let strips = if columns.as_const().is_some_and(|columns| columns < 2 * TALL * clusters) { 1 } else { 2 };
    let parts = WARPS / strips;
    if depth % (STEP * split) != 0 || depth < STEP * split * parts {
        return None;
    }
    let writer = Writer { kernel, body, names, width, rows, depth, dtype, left, right, split, strips, parts };
    Some(writer.generate(&columns, clusters))
}

/// Clusters of so many blocks that a GPU runs at once, one block a multiprocessor: large ones do not fit its parts without a rest.
fn clusters(multiprocessors: i64, split: i64) -> i64 {
    let whole = multiprocessors / split;
    // An H200, of 132 multiprocessors, runs 66 clusters of two, 30 of four and 15 of eight.
    (if split > 2 { whole - whole / 10 } else { whole }).max(1)
}

struct Writer<'a> {
    kernel: &'a Kernel,
    body: &'a MatmulBody,
    names: Names,
    width: Width,
    rows: i64,
    depth: i64,
    dtype: DType,
    left: Operand<'a>,
    right: Vec<Operand<'a>>,
    /// Blocks that share a sum.
    split: i64,
    /// Strips of a cluster at a time, and warps of a block that share a strip.
    strips: i64,
    parts: i64,
}

impl Writer<'_> {
    /// Rows on the right that `mma` takes: whole eights.
    fn wide(&self) -> i64 {
        if self.rows > 8 { 16 } else { 8 }
    }

    /// Elements from one row in shared memory to the next.
    fn pitch(&self) -> i64 {
        self.depth / self.split + GAP
    }

    /// Rows of the weights of a turn.
    fn tall(&self) -> i64 {
        self.strips * TALL
    }

    /// Rows of the weights that a block ends in a turn.
    fn own(&self) -> i64 {
        self.tall() / self.split
    }

    /// Threads that add the parts of one result.
    fn adders(&self) -> i64 {
        THREADS / (self.own() * self.wide())
    }

    /// Floats from what one warp sends to what the next does; neighbouring threads read different banks.
    fn part(&self) -> i64 {
        let pad = if self.adders() > 1 { (32 / self.adders()).max(2) } else { 0 };
        self.right.len() as i64 * self.own() * self.wide() + pad
    }

    /// Floats of a turn.
    fn turn(&self) -> i64 {
        self.split * self.parts * self.part()
    }

    fn generate(&self, columns: &Dim, clusters: i64) -> Body {
        let Writer { body, depth, split, strips, parts, .. } = self;
        let (several, wide, pitch, tall) = (self.right.len() as i64, self.wide(), self.pitch(), self.tall());
        let kind = if self.dtype == DType::Bf16 { "bf16" } else { "f16" };
        let steps = depth / STEP / split;
        let unroll = LOADS / 2 / several;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "extern __shared__ __align__(16) unsigned char own[];\nunsigned short* const xs=(unsigned short*)own;
float* const sums=(float*)(own+{});\n__shared__ __align__(8) unsigned long long ready[2];
const idx N={};\nconst int warp=threadIdx.x/32,lane=threadIdx.x%32,g=lane/4,t=lane%4,rank=block%{split},strip=warp/{parts},part=warp%{parts};
const int tiles=(int)((N+{})/{tall}),stride=blocks/{split};\nint tile=block/{split};
const int begin=part*{steps}/{parts},end=(part+1)*{steps}/{parts};
struct Part{{Packed<unsigned short,8> w[{several}][2];}};\nconst unsigned short* from[{several}][2];
auto point=[&](int tile){{\n#pragma unroll\nfor(int row=0;row<2;++row){{
const idx own=(idx)tile*{tall}+strip*{TALL}+g+row*8,nn=own<N?own:N-1,k0=rank*{}+t*8;",
            wide * pitch * 2,
            self.names.text(columns, self.width),
            tall - 1,
            steps * STEP,
        );
        out.push_str(&decode(&self.names, &body.n, "n", "nn", self.width));
        for (number, operand) in self.right.iter().enumerate() {
            let at = self.names.text(&operand.place.offset, self.width);
            let _ = writeln!(out, "from[{number}][row]=b{}+{at};", operand.place.buffer);
        }
        let _ = writeln!(
            out,
            "}}}};\nauto fetch=[&](Part (&to)[{unroll}],int step){{
#pragma unroll\nfor(int u=0;u<{unroll};++u)if(step+u<end)
#pragma unroll\nfor(int r=0;r<{several};++r)\n#pragma unroll\nfor(int row=0;row<2;++row)
to[u].w[r][row]=streamed((const Packed<unsigned short,8>*)(from[r][row]+(long long)(step+u)*{STEP}));}};
Part now[{unroll}];\nauto first=[&](){{if(tile<tiles){{point(tile);fetch(now,begin);}}}};
if(early)first();
if(threadIdx.x==0){{signal_begin(ready);signal_begin(ready+1);signals_visible();}}\ncluster_arrive();
wait_before();\nif(!early)first();
for(int c=threadIdx.x;c<{0};c+={THREADS}){{const int row=c/{1},chunk=c%{1};const bool inside=row<{2};
const idx mm=inside?row:0,k0=rank*{3}+chunk*8;",
            wide * steps * 4,
            steps * 4,
            self.rows,
            steps * STEP
        );
        out.push_str(&decode(&self.names, &body.m, "m", "mm", self.width));
        let _ = writeln!(
            out,
            "copy_chunk((unsigned)__cvta_generic_to_shared(xs+row*{pitch}+chunk*8),b{}+{},inside);}}
copies_commit();copies_wait<0>();\n__syncthreads();\ncluster_wait();",
            self.left.place.buffer,
            self.names.text(&self.left.place.offset, self.width)
        );
        self.finish(&mut out);
        // The last loads of a part may be fewer.
        let inside = if steps % (parts * unroll) == 0 { "" } else { "if(step+u<end)" };
        let bytes = split * parts * several * self.own() * wide * 4;
        let _ = writeln!(
            out,
            "int turn=0;\nfor(;tile<tiles;tile+=stride,++turn){{\nif(threadIdx.x==0)signal_expect(ready+turn%2,{bytes});
float acc[{several}][{0}][4]={{}};
for(int step=begin;step<end;step+={unroll}){{\nPart next[{unroll}];
if(step+{unroll}<end)fetch(next,step+{unroll});else if(tile+stride<tiles){{point(tile+stride);fetch(next,begin);}}
#pragma unroll\nfor(int u=0;u<{unroll};++u){inside}{{
uint4 x[{0}];\n#pragma unroll\nfor(int j=0;j<{0};++j)x[j]=*(const uint4*)(xs+(j*8+g)*{pitch}+(step+u)*{STEP}+t*8);
#pragma unroll\nfor(int r=0;r<{several};++r){{
const unsigned* low=now[u].w[r][0].w;const unsigned* high=now[u].w[r][1].w;
const unsigned a[2][4]={{{{low[0],high[0],low[1],high[1]}},{{low[2],high[2],low[3],high[3]}}}};
#pragma unroll\nfor(int j=0;j<{0};++j){{const unsigned b[4]={{x[j].x,x[j].y,x[j].z,x[j].w}};
multiply_{kind}(acc[r][j],a[0],b);multiply_{kind}(acc[r][j],a[1],b+2);}}}}}}
#pragma unroll\nfor(int u=0;u<{unroll};++u)now[u]=next[u];}}
if(turn>0)finish(turn-1,tile-stride);\n__syncthreads();",
            wide / 8
        );
        // Element c of an accumulator is of weight row g (+ 8) and of row 2·(lane%4) (+ 1) on the right.
        let _ = writeln!(
            out,
            "float* const to=sums+turn%2*{0}+(rank*{parts}+part)*{1};
#pragma unroll\nfor(int r=0;r<{several};++r)\n#pragma unroll\nfor(int j=0;j<{2};++j)\n#pragma unroll\nfor(int row=0;row<2;++row){{
const int own=strip*{TALL}+g+row*8;
send(to+(r*{3}+own%{3})*{wide}+j*8+t*2,acc[r][j][row*2],acc[r][j][row*2+1],ready+turn%2,own/{3});}}
}}\nif(turn>0)finish(turn-1,tile-stride);",
            self.turn(),
            self.part(),
            wide / 8,
            self.own()
        );
        let right = || self.right.iter().map(|operand| operand.place.buffer);
        Body {
            functions: vec![
                include_str!("stream.cu"),
                include_str!("tensor.cu"),
                include_str!("cluster.cu"),
                include_str!("signal.cu"),
            ],
            most_blocks: clusters * split,
            share: several * columns.as_const().unwrap_or(TALL * strips),
            threads: THREADS as u32,
            cluster: *split as u32,
            block_bytes: Dim::from(wide * pitch * 2 + 2 * self.turn() * 4),
            aligned: right().chain([self.left.place.buffer]).collect(),
            fetched: right().collect(),
            ..Body::new(out, self.width, ceil_div(columns, tall) * *split)
        }
    }

    /// The function that waits for the parts of the sums of one turn and runs the epilogue of this block's rows of a tile.
    fn finish(&self, out: &mut String) {
        let (several, wide, part, own, adders) =
            (self.right.len(), self.wide(), self.part(), self.own(), self.adders());
        let senders = self.split * self.parts;
        let _ = writeln!(
            out,
            "auto finish=[&](int turn,int tile){{\nsignal_wait(ready+turn%2,turn/2%2);
const int at=threadIdx.x/{adders},of=threadIdx.x%{adders};
const idx mm=at%{wide},nn=(idx)tile*{}+rank*{own}+at/{wide};
const float* const from=sums+turn%2*{}+at;\nfloat result[{several}]={{}};
#pragma unroll 4\nfor(int q=of;q<{senders};q+={adders})\n#pragma unroll\nfor(int r=0;r<{several};++r)result[r]+=from[q*{part}+r*{}];",
            self.tall(),
            self.turn(),
            own * wide
        );
        if adders > 1 {
            let _ = writeln!(
                out,
                "#pragma unroll\nfor(int r=0;r<{several};++r)\nfor(int mask={};mask>0;mask/=2)result[r]+=__shfl_xor_sync(~0u,result[r],mask);",
                adders / 2
            );
        }
        let _ = writeln!(out, "if(of==0&&mm<{}&&nn<N){{", self.rows);
        out.push_str(&decode(&self.names, &self.body.m, "m", "mm", self.width));
        out.push_str(&decode(&self.names, &self.body.n, "n", "nn", self.width));
        let accumulators = (0..several).map(|number| format!("result[{number}]")).collect();
        let statements = Statements::new(self.kernel, &self.names, self.width, "e");
        let mut epilogue = Statements { accumulators, ..statements };
        epilogue.all(&self.body.epilogue);
        out.push_str(&epilogue.out);
        out.push_str("}};\n");
    }
}
