//! Products of up to 16 rows of short floats on tensor cores, at the speed of memory: the weights are the left operand of `mma` and go
//! from memory straight to registers; the rows are the right one, a part of them at a time in shared memory.
//!
//! ```text
//!  a block   128 rows of the weights, 16 a warp, and an eighth of the sum        its cluster: the eight parts of the sum
//!  a lane    16 bytes of weight row g = lane/4 and of row g + 8, at 8·(lane%4)    which `mma` takes for elements of two 16 × 16 blocks:
//!            the same elements of the rows on the right                           sums may be taken in any order
//! ```
//!
//! The parts of the sum are added across the cluster at the end, where every block runs the epilogue of an eighth of the results.

use super::index::{Names, Width};
use super::tensor::Operand;
use super::value::Statements;
use super::{Body, Way, ceil_div, decode, points, width};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{Kernel, MatmulBody};
use std::fmt::Write;

/// Rows on the right.
pub(crate) const MOST_ROWS: i64 = 16;
/// Up to so many rows are faster without tensor cores.
const FEW_ROWS: i64 = 4;
/// Warps of a block.
const WARPS: i64 = 8;
/// Rows of the weights that a block takes.
const TALL: i64 = WARPS * 16;
/// Elements of the sum that a lane's wide load and its neighbours' cover.
const STEP: i64 = 32;
/// Steps whose weights are fetched at once.
const UNROLL: i64 = 4;
/// Elements of the sum that are in shared memory at once, twice.
const DEPTH: i64 = STEP * UNROLL * 2;
/// From one row in shared memory to the next: rows that follow one another begin in different banks.
const PITCH: i64 = DEPTH + 8;
/// Blocks that share a sum.
const SPLIT: i64 = 8;
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
        && depth % STEP == 0
        && depth >= STEP * SPLIT
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
    let mut names = Names::of_sizes(&kernel.sizes);
    for (axes, prefix) in [(&body.m, "m"), (&body.n, "n"), (&body.k, "k")] {
        axes.iter().enumerate().for_each(|(number, axis)| names.add(axis, format!("{prefix}{number}")));
    }
    let columns = points(&body.n);
    let width = width(&names, kernel.insts(), &[&columns]);
    let writer = Writer { kernel, body, names, width, rows, depth, dtype, left, right };
    Some(writer.generate(&columns))
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
}

impl Writer<'_> {
    fn generate(&self, columns: &Dim) -> Body {
        let Writer { body, rows, depth, .. } = self;
        let (several, tiles) = (self.right.len(), if *rows > 8 { 2 } else { 1 });
        let kind = if self.dtype == DType::Bf16 { "bf16" } else { "f16" };
        let steps = depth / STEP;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "__shared__ __align__(16) unsigned short xs[2][{MOST_ROWS}*{PITCH}];\n__shared__ float sums[{several}][{MOST_ROWS}][{}];
const idx N={};\nconst int warp=threadIdx.x/32,lane=threadIdx.x%32,rank=block%{SPLIT};\nconst idx left=(idx)(block/{SPLIT})*{TALL};
const int begin=rank*{steps}/{SPLIT},end=(rank+1)*{steps}/{SPLIT};\nstruct Part{{Wide<unsigned short,8> w[{several}][2];}};",
            TALL + 1,
            self.names.text(columns, self.width),
        );
        // Where the lane's two rows of each weight are.
        let _ =
            writeln!(out, "const unsigned short* from[{several}][2];\n#pragma unroll\nfor(int half=0;half<2;++half){{");
        let _ = writeln!(out, "const idx own=left+warp*16+lane/4+half*8,nn=own<N?own:N-1,k0=(lane%4)*8;");
        out.push_str(&decode(&self.names, &body.n, "n", "nn", self.width));
        for (number, operand) in self.right.iter().enumerate() {
            let at = self.names.text(&operand.place.offset, self.width);
            let _ = writeln!(out, "from[{number}][half]=b{}+{at};", operand.place.buffer);
        }
        let _ = writeln!(
            out,
            "}}\nauto fetch=[&](Part (&to)[{UNROLL}],int step){{
#pragma unroll\nfor(int u=0;u<{UNROLL};++u)if(step+u<end)
#pragma unroll\nfor(int r=0;r<{several};++r)
#pragma unroll\nfor(int half=0;half<2;++half)
to[u].w[r][half]=streamed((const Wide<unsigned short,8>*)(from[r][half]+(long long)(step+u)*{STEP}));}};
auto stage=[&](int buffer,int step){{
for(int c=threadIdx.x;c<{};c+={}){{const int row=c/{},chunk=c%{};",
            MOST_ROWS * (DEPTH / 8),
            WARPS * 32,
            DEPTH / 8,
            DEPTH / 8
        );
        let _ = writeln!(
            out,
            "const bool inside=row<{rows}&&step*{STEP}+chunk*8<end*{STEP};\nconst idx mm=row<{rows}?row:0,k0=inside?step*{STEP}+chunk*8:0;"
        );
        out.push_str(&decode(&self.names, &body.m, "m", "mm", self.width));
        let _ = writeln!(
            out,
            "copy_chunk((unsigned)__cvta_generic_to_shared(xs[buffer]+row*{PITCH}+chunk*8),b{}+{},inside);}}\ncopies_commit();}};",
            self.left.place.buffer,
            self.names.text(&self.left.place.offset, self.width)
        );
        let _ = writeln!(
            out,
            "Part now[{UNROLL}];\nif(early){{fetch(now,begin);wait_before();}}else{{wait_before();fetch(now,begin);}}
stage(0,begin);\nfloat acc[{several}][{tiles}][4]={{}};\nint buffer=0;
for(int base=begin;base<end;base+={0}){{
copies_wait<0>();\n__syncthreads();\nif(base+{0}<end)stage(buffer^1,base+{0});
#pragma unroll\nfor(int half=0;half<2;++half){{
Part next[{UNROLL}];\nfetch(next,base+(half+1)*{UNROLL});
#pragma unroll\nfor(int u=0;u<{UNROLL};++u)if(base+half*{UNROLL}+u<end){{
unsigned x[{tiles}][4];
#pragma unroll\nfor(int j=0;j<{tiles};++j){{
const uint4 v=*(const uint4*)(xs[buffer]+(j*8+lane/4)*{PITCH}+(half*{UNROLL}+u)*{STEP}+lane%4*8);x[j][0]=v.x;x[j][1]=v.y;x[j][2]=v.z;x[j][3]=v.w;}}
#pragma unroll\nfor(int r=0;r<{several};++r){{
const unsigned* low=(const unsigned*)&now[u].w[r][0];const unsigned* high=(const unsigned*)&now[u].w[r][1];
#pragma unroll\nfor(int part=0;part<2;++part){{
const unsigned a[4]={{low[part*2],high[part*2],low[part*2+1],high[part*2+1]}};
#pragma unroll\nfor(int j=0;j<{tiles};++j)multiply_{kind}(acc[r][j],a,x[j]+part*2);}}}}}}
#pragma unroll\nfor(int u=0;u<{UNROLL};++u)now[u]=next[u];}}
buffer^=1;}}",
            UNROLL * 2
        );
        // Element c of an accumulator is of weight row g (+ 8) and of row 2·(lane%4) (+ 1) on the right.
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int r=0;r<{several};++r)\n#pragma unroll\nfor(int j=0;j<{tiles};++j)\n#pragma unroll\nfor(int c=0;c<4;++c)
sums[r][j*8+lane%4*2+c%2][warp*16+lane/4+c/2*8]=acc[r][j][c];
cluster_arrive();cluster_wait();
for(int i=threadIdx.x+rank*{0};i<{1};i+={2}){{const idx mm=i/{TALL},nn=left+i%{TALL};\nfloat result[{several}]={{}};
for(int q=0;q<{SPLIT};++q)
#pragma unroll\nfor(int r=0;r<{several};++r)result[r]+=from_rank(&sums[r][mm][i%{TALL}],q);
if(mm<{rows}&&nn<N){{",
            WARPS * 32,
            tiles * 8 * TALL,
            WARPS * 32 * SPLIT
        );
        out.push_str(&decode(&self.names, &body.m, "m", "mm", self.width));
        out.push_str(&decode(&self.names, &body.n, "n", "nn", self.width));
        let accumulators = (0..several).map(|number| format!("result[{number}]")).collect();
        let statements = Statements::new(self.kernel, &self.names, self.width, "e");
        let mut epilogue = Statements { accumulators, ..statements };
        epilogue.all(&body.epilogue);
        out.push_str(&epilogue.out);
        out.push_str("}}\ncluster_arrive();cluster_wait();\n");
        let right = || self.right.iter().map(|operand| operand.place.buffer);
        Body {
            functions: vec![include_str!("stream.cu"), include_str!("tensor.cu"), include_str!("cluster.cu")],
            most_blocks: i32::MAX.into(),
            threads: (WARPS * 32) as u32,
            resident: 2,
            cluster: SPLIT as u32,
            aligned: right().chain([self.left.place.buffer]).collect(),
            fetched: right().collect(),
            ..Body::new(out, self.width, ceil_div(columns, TALL) * SPLIT)
        }
    }
}
