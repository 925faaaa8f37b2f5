//! Products of up to 16 rows of short floats on tensor cores, at the speed of memory: the weights are the left operand of `mma` and go
//! through rings in shared memory; the rows are the right one, and stay in shared memory.
//!
//! ```text
//!  a cluster   one or two strips of 16 rows of the weights at a time; each of its blocks has a part of the sum, so that its part
//!              of the rows on the right fits shared memory, and each of its eight warps a part of that, for one strip
//!  a warp      a ring of its own, which it fills by asynchronous copies and waits for alone
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
const WARPS: i64 = 8;
const THREADS: i64 = WARPS * 32;
/// Rows of the weights that a warp takes.
const TALL: i64 = 16;
/// Elements of the sum that a lane's wide load and its neighbours' cover.
const STEP: i64 = 32;
/// Elements of the sum, and bytes, that a warp copies of one operand at once.
const CHUNK: i64 = 2 * STEP;
const CHUNK_BYTES: i64 = TALL * CHUNK * 2;
/// Bytes of the rings of all warps at the most.
const RINGS: i64 = 96 << 10;
/// Chunks of a ring at the least and at the most.
const SLOTS: std::ops::RangeInclusive<i64> = 3..=6;
/// Bytes of the weights that a block asks the second cache for while it waits for the launch before.
const SOON: i64 = 128 << 10;
/// Elements between one row in shared memory and the next, beside the row: rows that follow one another are in different banks.
const GAP: i64 = 32;
/// Shared memory that is left for signals and the driver.
const LEFT_FREE: i64 = 2 << 10;
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
    if depth % (STEP * split) != 0 || depth < CHUNK * split * parts {
        return None;
    }
    let slots = RINGS / (WARPS * CHUNK_BYTES * right.len() as i64);
    let writer = Writer { kernel, body, names, width, rows, depth, dtype, left, right, split, strips, parts, slots };
    let fitting = SLOTS.rev().find(|&slots| slots <= writer.slots && writer.bytes(slots) <= way.shared - LEFT_FREE)?;
    Some(Writer { slots: fitting, ..writer }.generate(&columns, clusters))
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
    /// Chunks of every right operand that a ring holds.
    slots: i64,
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
        (THREADS / (self.own() * self.wide())).max(1)
    }

    /// Floats from the sums of one row of the weights to the next: neighbouring rows are in different banks.
    fn sums_pitch(&self) -> i64 {
        self.wide() + 2
    }

    /// Floats from what one warp sends to what the next does; neighbouring threads read different banks.
    fn part(&self) -> i64 {
        let floats = self.right.len() as i64 * self.own() * self.sums_pitch();
        match self.adders() {
            1 => floats,
            adders => floats + (32 / adders - floats).rem_euclid(32),
        }
    }

    /// Floats of a turn.
    fn turn(&self) -> i64 {
        self.split * self.parts * self.part()
    }

    /// Arrivals that end a turn of a signal: of the thread that says how many bytes come, or of every thread of the only block.
    fn arrivals(&self) -> i64 {
        if self.split > 1 { 1 } else { THREADS }
    }

    /// Bytes of the rows on the right, and of the rings.
    fn left_bytes(&self) -> i64 {
        self.wide() * self.pitch() * 2
    }

    fn ring_bytes(&self, slots: i64) -> i64 {
        WARPS * slots * self.right.len() as i64 * CHUNK_BYTES
    }

    /// Bytes of shared memory, if rings hold so many chunks.
    fn bytes(&self, slots: i64) -> i64 {
        self.left_bytes() + self.ring_bytes(slots) + 2 * self.turn() * 4
    }

    fn generate(&self, columns: &Dim, clusters: i64) -> Body {
        let Writer { split, strips, .. } = self;
        let mut out = String::new();
        self.begin(&mut out, columns);
        self.copies(&mut out);
        self.rows_on_the_right(&mut out);
        self.finish(&mut out);
        self.products(&mut out);
        let several = self.right.len() as i64;
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
            block_bytes: Dim::from(self.bytes(self.slots)),
            aligned: right().chain([self.left.place.buffer]).collect(),
            fetched: right().collect(),
            ..Body::new(out, self.width, ceil_div(columns, self.tall()) * *split)
        }
    }

    /// Chunks of the sum of a block, the last of which may be half of one.
    fn chunks(&self) -> i64 {
        (self.depth / self.split + CHUNK - 1) / CHUNK
    }

    /// Whether the last chunk of a block is half of one.
    fn is_half(&self) -> bool {
        self.depth / self.split % CHUNK != 0
    }

    fn begin(&self, out: &mut String, columns: &Dim) {
        let Writer { split, parts, .. } = self;
        // The blocks that share these sums may be a part of a larger cluster, if another product is beside this one.
        let lead = if *split > 1 { "\nconst int lead=cluster_rank()-rank;" } else { "" };
        let (rings, sums) = (self.left_bytes(), self.left_bytes() + self.ring_bytes(self.slots));
        let _ = writeln!(
            out,
            "extern __shared__ __align__(16) unsigned char own[];\nunsigned short* const xs=(unsigned short*)own;
unsigned char* const rings=own+{rings};\nfloat* const sums=(float*)(own+{sums});
__shared__ __align__(8) unsigned long long ready[2],rows_ready;
const idx N={};\nconst int warp=threadIdx.x/32,lane=threadIdx.x%32,g=lane/4,t=lane%4,rank=block%{split},strip=warp/{parts},part=warp%{parts};
const int tiles=(int)((N+{})/{}),stride=blocks/{split};\nint tile=block/{split};{lead}
const int begin=part*{3}/{parts},end=(part+1)*{3}/{parts};",
            self.names.text(columns, self.width),
            self.tall() - 1,
            self.tall(),
            self.chunks()
        );
    }

    /// The function that copies the next chunk into a ring. Rows in a ring are 128 bytes, of which odd ones have their halves exchanged.
    fn copies(&self, out: &mut String) {
        let (several, slots) = (self.right.len(), self.slots);
        let slot = several as i64 * CHUNK_BYTES;
        let _ = writeln!(
            out,
            "const int from_row=lane/8,from_k=lane%8*8;\nint ahead=tile,chunk=begin,slot=0;\nconst unsigned short* from[{several}][4];
const unsigned to=(unsigned)__cvta_generic_to_shared(rings)+warp*{}+from_row*128+((lane%8^from_row%2*4)*16);
auto point=[&](){{\n#pragma unroll\nfor(int i=0;i<4;++i){{
const idx row=(idx)ahead*{}+strip*{TALL}+i*4+from_row,nn=row<N?row:N-1,k0=rank*{}+from_k;",
            slots * slot,
            self.tall(),
            self.depth / self.split
        );
        out.push_str(&decode(&self.names, &self.body.n, "n", "nn", self.width));
        for (number, operand) in self.right.iter().enumerate() {
            let at = self.names.text(&operand.place.offset, self.width);
            let _ = writeln!(out, "from[{number}][i]=b{}+{at};", operand.place.buffer);
        }
        let inside = match self.is_half() {
            true => format!("if(lane%8<4||chunk+1<{})", self.chunks()),
            false => String::new(),
        };
        let soon = self.soon();
        let _ = writeln!(
            out,
            "}}}};\nauto copy=[&](){{if(ahead<tiles){{
{inside}\n#pragma unroll\nfor(int r=0;r<{several};++r)\n#pragma unroll\nfor(int i=0;i<4;++i)
copy_chunk(to+slot*{slot}+r*{CHUNK_BYTES}+i*512,from[r][i]+chunk*{CHUNK},true);
if(++chunk==end){{chunk=begin;ahead+=stride;if(ahead<tiles)point();}}}}
copies_commit();slot=slot+1=={slots}?0:slot+1;}};
auto first=[&](){{if(ahead<tiles)point();\n#pragma unroll 1\nfor(int i=0;i+1<{slots};++i)copy();}};
if(early){{first();{soon}}}
if(threadIdx.x==0){{signal_begin(ready,{0});signal_begin(ready+1,{0});signal_begin(&rows_ready,1);signals_visible();}}
__syncthreads();\ncluster_arrive();\nwait_before();\nif(!early)first();",
            self.arrivals()
        );
    }

    /// Statements that ask for the beginnings of a warp's rows of the first tiles.
    fn soon(&self) -> String {
        let deep = self.depth / self.split;
        let tile = self.tall() * self.right.len() as i64 * deep * 2;
        let turns = (SOON / tile).max(1);
        // The smallest part of a warp, as far as there is room.
        let whole = deep / CHUNK / self.parts * CHUNK * 2;
        let bytes = whole.min(SOON / (turns * self.tall() * self.right.len() as i64 * self.parts) / 16 * 16);
        let mut out = format!(
            "for(int soon=tile,i=0;i<{turns}&&soon<tiles;soon+=stride,++i)if(lane<{TALL}){{
const idx row=(idx)soon*{}+strip*{TALL}+lane,nn=row<N?row:N-1,k0=rank*{deep}+begin*{CHUNK};\n",
            self.tall()
        );
        out.push_str(&decode(&self.names, &self.body.n, "n", "nn", self.width));
        for operand in &self.right {
            let at = self.names.text(&operand.place.offset, self.width);
            let _ = writeln!(out, "fetch_soon(b{}+{at},{bytes});", operand.place.buffer);
        }
        out.push('}');
        out
    }

    /// Copies the rows on the right to shared memory: rows of `mma` beyond these are not stored, whatever they are.
    fn rows_on_the_right(&self, out: &mut String) {
        let deep = self.depth / self.split;
        let _ = writeln!(
            out,
            "if(warp==0){{if(lane==0)signal_expect(&rows_ready,{});\n__syncwarp();
if(lane<{}){{const idx mm=lane,k0=rank*{deep};",
            self.rows * deep * 2,
            self.rows
        );
        out.push_str(&decode(&self.names, &self.body.m, "m", "mm", self.width));
        let _ = writeln!(
            out,
            "copy_bytes(xs+lane*{},b{}+{},{},&rows_ready);}}}}\ncluster_wait();",
            self.pitch(),
            self.left.place.buffer,
            self.names.text(&self.left.place.offset, self.width),
            deep * 2
        );
    }

    /// Statements that go through the strips.
    fn products(&self, out: &mut String) {
        let Writer { split, strips, parts, slots, .. } = self;
        let (several, wide, pitch, own) = (self.right.len() as i64, self.wide(), self.pitch(), self.own());
        let kind = if self.dtype == DType::Bf16 { "bf16" } else { "f16" };
        let expect = match self.split {
            1 => String::new(),
            _ => {
                format!("\nif(threadIdx.x==0)signal_expect(ready+turn%2,{});", split * parts * several * own * wide * 4)
            }
        };
        let inside = match self.is_half() {
            true => format!("if(half==0||step+1<{})", self.chunks()),
            false => String::new(),
        };
        // Warps of another strip send their sums elsewhere: whoever sends knows nothing of them, and they may still add up older ones.
        let settled = if *strips > 1 { "\n__syncthreads();" } else { "" };
        let _ = writeln!(
            out,
            "signal_wait(&rows_ready,0);\nint turn=0,use=0;\nfor(;tile<tiles;tile+=stride,++turn){{{expect}
float acc[{several}][{0}][4]={{}};
#pragma unroll 2\nfor(int step=begin;step<end;++step){{\ncopies_wait<{1}>();__syncwarp();copy();
const unsigned char* const at=rings+(warp*{slots}+use)*{2}+g*128;use=use+1=={slots}?0:use+1;
#pragma unroll\nfor(int half=0;half<2;++half){inside}{{
uint4 x[{0}];\n#pragma unroll\nfor(int j=0;j<{0};++j)x[j]=*(const uint4*)(xs+(j*8+g)*{pitch}+step*{CHUNK}+half*{STEP}+t*8);
#pragma unroll\nfor(int r=0;r<{several};++r){{const unsigned char* const from=at+r*{CHUNK_BYTES}+((half*4+t^g%2*4)*16);
const uint4 low=*(const uint4*)from,high=*(const uint4*)(from+1024);
const unsigned a[2][4]={{{{low.x,high.x,low.y,high.y}},{{low.z,high.z,low.w,high.w}}}};
#pragma unroll\nfor(int j=0;j<{0};++j){{const unsigned b[4]={{x[j].x,x[j].y,x[j].z,x[j].w}};
multiply_{kind}(acc[r][j],a[0],b);multiply_{kind}(acc[r][j],a[1],b+2);}}}}}}}}
if(turn>0)finish(turn-1,tile-stride);{settled}",
            wide / 8,
            slots - 2,
            several * CHUNK_BYTES
        );
        // A block of its own stores its sums and arrives; only the blocks of a cluster may send.
        let (send, sent) = match self.split {
            1 => ("*(float2*)at=float2{low,high};", "signal_arrive(ready+turn%2);"),
            _ => ("send(at,low,high,ready+turn%2,lead+row/OWN);", ""),
        };
        let send = send.replace("OWN", &own.to_string());
        // Element c of an accumulator is of weight row g (+ 8) and of row 2·(lane%4) (+ 1) on the right.
        let _ = writeln!(
            out,
            "float* const to=sums+turn%2*{}+(rank*{parts}+part)*{};
#pragma unroll\nfor(int r=0;r<{several};++r)\n#pragma unroll\nfor(int j=0;j<{};++j)\n#pragma unroll\nfor(int half=0;half<2;++half){{
const int row=strip*{TALL}+g+half*8;\nfloat* const at=to+(r*{own}+row%{own})*{}+j*8+t*2;
const float low=acc[r][j][half*2],high=acc[r][j][half*2+1];\n{send}}}
{sent}\n}}\nif(turn>0)finish(turn-1,tile-stride);",
            self.turn(),
            self.part(),
            wide / 8,
            self.sums_pitch()
        );
    }

    /// The function that waits for the parts of the sums of one turn and runs the epilogue of this block's rows of a tile.
    fn finish(&self, out: &mut String) {
        let (several, wide, part, own, adders) =
            (self.right.len(), self.wide(), self.part(), self.own(), self.adders());
        let senders = self.split * self.parts;
        let _ = writeln!(
            out,
            "auto finish=[&](int turn,int tile){{\nsignal_wait(ready+turn%2,turn/2%2);\nconst int of=threadIdx.x%{adders};
#pragma unroll\nfor(int at=threadIdx.x/{adders};at<{};at+={}){{
const idx mm=at/{own},nn=(idx)tile*{}+rank*{own}+at%{own};
const float* const from=sums+turn%2*{}+at%{own}*{}+at/{own};\nfloat result[{several}]={{}};
#pragma unroll 4\nfor(int q=of;q<{senders};q+={adders})\n#pragma unroll\nfor(int r=0;r<{several};++r)result[r]+=from[q*{part}+r*{}];",
            own * wide,
            THREADS / adders,
            self.tall(),
            self.turn(),
            self.sums_pitch(),
            own * self.sums_pitch()
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
        out.push_str("}}};\n");
    }
}
