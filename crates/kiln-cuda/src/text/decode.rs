//! Attention of few queries over many keys, as in decoding: the keys of one key/value head are split over the blocks of a cluster,
//! the warps of a block and groups of lanes of a warp, each with an online softmax of its own; the parts are merged at the end.
//!
//! ```text
//!  key  0 1 2 3 │ 4 5 6 7 │ …        a group of lanes reads a key at once, 16 bytes a lane, UNROLL keys in flight
//!       block 0   block 1            partial (maximum, sum, weighted values) ──shuffles──▶ warp ──shared──▶ block ──cluster──▶ result
//! ```

use super::attention::{Texts, check_pages};
use super::index::Width;
use super::value::{load, memory_type, narrowed, scalar, widened};
use super::{Body, Way};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{AttentionBody, Kernel, Strided};
use std::fmt::Write;

/// Query rows that share a key/value head at the most.
const MOST_ROWS: i64 = 8;
/// Warps of a block.
const WARPS: i64 = 4;
/// Keys that a group of lanes has in flight.
const UNROLL: i64 = 4;
/// Blocks that share the keys of a head at the most: what every cluster may have.
const SPLIT: i64 = 8;
/// Keys from which on they are split over several blocks.
const SPLIT_KEYS: i64 = 128;

/// The body, if the attention is of this kind.
pub(super) fn generate(kernel: &Kernel, body: &AttentionBody, way: Way) -> Option<Body> {
    let dtype = kernel.buffers[body.q.buffer].dtype;
    let size = |dim: &Dim| dim.as_const();
    let (heads, groups, queries) = (size(&body.heads)?, size(&body.kv_heads)?, size(&body.queries)?);
    let (width, value_width) = (size(&body.width)?, size(&body.value_width)?);
    let shared_heads = heads / groups.max(1);
    let rows = shared_heads * queries;
    let lanes_wide = 16 * 8 / dtype.size_in_bits() as i64;
    let lanes = width / lanes_wide;
    let is_wide = |view: &Strided| {
        let stride = |(axis, stride): (usize, &Dim)| match axis {
            3 => stride.is_one(),
            _ => stride.as_const().is_some_and(|stride| stride % lanes_wide == 0),
        };
        kernel.buffers[view.buffer].dtype == dtype
            && view.strides.iter().enumerate().all(stride)
            && view.offset.as_const().is_some_and(|offset| offset % lanes_wide == 0)
    };
    let pages_fit = [&body.k_pages, &body.v_pages].into_iter().flatten().all(|pages| {
        pages.stride.as_const().is_some_and(|stride| stride % lanes_wide == 0) && pages.length.as_const().is_some()
    });
    let fits = way.vectors
        && dtype.compute_type() == DType::F32
        && (1..=MOST_ROWS).contains(&rows)
        && width == value_width
        && width % lanes_wide == 0
        && [1, 2, 4, 8, 16, 32].contains(&lanes)
        && pages_fit
        && is_wide(&body.k)
        && is_wide(&body.v);
    if !fits {
        return None;
    }
    let most_keys = size(&body.keys).unwrap_or(i64::MAX);
    let split = if way.clusters && most_keys >= SPLIT_KEYS { SPLIT } else { 1 };
    let texts = Texts::new(kernel);
    let ty = format!("Wide<{},{lanes_wide}>", memory_type(dtype));
    let slots = 32 / lanes;
    let mut out = String::new();
    let _ = writeln!(out, "const idx B={},S={};", texts.text(&body.batch), texts.text(&body.keys));
    for pages in [&body.k_pages, &body.v_pages].into_iter().flatten() {
        out.push_str(&check_pages(&texts, pages));
    }
    let _ = writeln!(
        out,
        "__shared__ float best[{rows}],total[{rows}],merged[{rows}][{width}],part_best[{WARPS}][{rows}],part_total[{WARPS}][{rows}],parts[{WARPS}][{rows}][{width}];
const int warp=threadIdx.x/32,slot=threadIdx.x%32/{lanes},lane=threadIdx.x%{lanes},rank=blockIdx.x%{split};
const idx g=blockIdx.x/{split}%{groups},b=blockIdx.x/{split}/{groups};
const float lowest=__int_as_float(0xff800000);
float query[{rows}][{lanes_wide}],sum[{rows}][{lanes_wide}]={{}},top[{rows}],weight[{rows}]={{}};
#pragma unroll\nfor(int row=0;row<{rows};++row){{top[row]=lowest;const idx h=g*{shared_heads}+row/{queries},t=row%{queries};
#pragma unroll\nfor(int e=0;e<{lanes_wide};++e){{const idx d=lane*{lanes_wide}+e;query[row][e]={};}}}}",
        texts.element(&body.q, &["b", "h", "t", "d"]),
    );
    // Keys go round the blocks, warps and slots, so that whatever part of them is visible is shared by all.
    let round = split * WARPS * slots;
    let _ = writeln!(
        out,
        "for(idx first=(idx)(rank*{WARPS}+warp)*{slots}+slot;first-slot<S;first+={}){{
{ty} ks[{UNROLL}],vs[{UNROLL}];\nfloat bias[{UNROLL}][{rows}];\nbool visible[{UNROLL}];
#pragma unroll\nfor(int u=0;u<{UNROLL};++u){{const idx s=first+(idx)u*{round};visible[u]=false;
#pragma unroll\nfor(int row=0;row<{rows};++row){{bias[u][row]=lowest;\nif(s<S){{const idx h=g*{shared_heads}+row/{queries},t=row%{queries};",
        round * UNROLL
    );
    let bias = match &body.mask {
        Some(mask) if kernel.buffers[mask.buffer].dtype == DType::Bool => {
            format!("({}?0.0f:lowest)", texts.element(mask, &["b", "h", "t", "s"]))
        }
        Some(mask) => format!("(float){}", texts.element(mask, &["b", "h", "t", "s"])),
        None => "0.0f".to_owned(),
    };
    let causal = if body.causal { format!("s<=t+S-{queries}?{bias}:lowest") } else { bias };
    let _ = writeln!(out, "bias[u][row]={causal};visible[u]|=!(bias[u][row]==lowest);}}}}\nif(visible[u]){{");
    for (view, pages, name) in [(&body.k, &body.k_pages, "ks"), (&body.v, &body.v_pages, "vs")] {
        let at = match pages {
            None => texts.at(view, &["b", "g", "s", "0"]),
            Some(pages) => {
                let (length, count) = (texts.text(&pages.length), texts.text(&pages.count));
                let table = &pages.table;
                let entry = load(
                    kernel.buffers[table.buffer].dtype,
                    table.buffer,
                    &texts.at(table, &["b", &format!("(s/{length})")]),
                );
                let _ = writeln!(out, "const idx page_{name}=(idx){entry};");
                let row = texts.at(view, &["0", "g", &format!("(s%{length})"), "0"]);
                format!("(page_{name}<0||page_{name}>={count}?0:page_{name})*{}+{row}", texts.text(&pages.stride))
            }
        };
        let _ = writeln!(out, "{name}[u]=*(const {ty}*)(b{}+{at}+lane*{lanes_wide});", view.buffer);
    }
    let (key, value) = (widened(dtype, "ks[u].v[e]"), widened(dtype, "vs[u].v[e]"));
    let _ = writeln!(
        out,
        "}}}}\n#pragma unroll\nfor(int u=0;u<{UNROLL};++u){{
#pragma unroll\nfor(int row=0;row<{rows};++row){{\nfloat dot=0;\nif(visible[u]){{
#pragma unroll\nfor(int e=0;e<{lanes_wide};++e)dot=fmaf(query[row][e],{key},dot);}}
#pragma unroll\nfor(int mask=1;mask<{lanes};mask*=2)dot+=__shfl_xor_sync(~0u,dot,mask);
if(visible[u]){{\nconst float score=dot*{}+bias[u][row],next=larger(top[row],score);
const float kept=top[row]==lowest?0.0f:expf(top[row]-next),p=score==lowest?0.0f:expf(score-next);
weight[row]=weight[row]*kept+p;top[row]=next;
#pragma unroll\nfor(int e=0;e<{lanes_wide};++e)sum[row][e]=fmaf(p,{value},sum[row][e]*kept);}}}}}}\n}}",
        scalar(body.scale.cast(DType::F32))
    );
    // The slots of a warp, then the warps of a block.
    let _ = writeln!(
        out,
        "#pragma unroll\nfor(int row=0;row<{rows};++row){{
#pragma unroll\nfor(int mask={lanes};mask<32;mask*=2){{
const float other=__shfl_xor_sync(~0u,top[row],mask),next=larger(top[row],other);
const float mine=top[row]==lowest?0.0f:expf(top[row]-next),theirs=other==lowest?0.0f:expf(other-next);
weight[row]=weight[row]*mine+__shfl_xor_sync(~0u,weight[row],mask)*theirs;
#pragma unroll\nfor(int e=0;e<{lanes_wide};++e)sum[row][e]=sum[row][e]*mine+__shfl_xor_sync(~0u,sum[row][e],mask)*theirs;
top[row]=next;}}
if(slot==0){{if(lane==0){{part_best[warp][row]=top[row];part_total[warp][row]=weight[row];}}
#pragma unroll\nfor(int e=0;e<{lanes_wide};++e)parts[warp][row][lane*{lanes_wide}+e]=sum[row][e];}}}}
__syncthreads();
for(int i=threadIdx.x;i<{};i+={}){{const int row=i/{width},d=i%{width};
float most=lowest,all=0,value=0;
for(int w=0;w<{WARPS};++w)most=larger(most,part_best[w][row]);
for(int w=0;w<{WARPS};++w){{const float factor=part_best[w][row]==lowest?0.0f:expf(part_best[w][row]-most);
all+=part_total[w][row]*factor;value+=parts[w][row][d]*factor;}}
merged[row][d]=value;if(d==0){{best[row]=most;total[row]=all;}}}}",
        rows * width,
        WARPS * 32
    );
    let store = |value: &str| {
        let at = texts.at(&body.out, &["b", "h", "t", "d"]);
        format!("b{}[{at}]={};", body.out.buffer, narrowed(dtype, value))
    };
    let indices = format!("const idx h=g*{shared_heads}+row/{queries},t=row%{queries};");
    if split == 1 {
        let _ = writeln!(
            out,
            "__syncthreads();\nfor(int i=threadIdx.x;i<{};i+={}){{const int row=i/{width},d=i%{width};{indices}
const float result=best[row]==lowest?0.0f:merged[row][d]/total[row];{}}}",
            rows * width,
            WARPS * 32,
            store("result")
        );
    } else {
        // Every block of the cluster merges a part of the results.
        let _ = writeln!(
            out,
            "cluster_barrier();
for(int i=threadIdx.x+rank*{0};i<{1};i+={2}){{const int row=i/{width},d=i%{width};{indices}
float most=lowest,all=0,value=0;
for(int r=0;r<{split};++r)most=larger(most,from_rank(&best[row],r));
for(int r=0;r<{split};++r){{const float own=from_rank(&best[row],r),factor=own==lowest?0.0f:expf(own-most);
all+=from_rank(&total[row],r)*factor;value+=from_rank(&merged[row][d],r)*factor;}}
const float result=most==lowest?0.0f:value/all;{3}}}
cluster_barrier();",
            WARPS * 32,
            rows * width,
            split * WARPS * 32,
            store("result")
        );
    }
    let blocks = &body.batch * Dim::from(groups * split);
    Some(Body {
        functions: if split > 1 { &[include_str!("cluster.cu")] } else { &[] },
        statements: out,
        width: Width::Wide,
        blocks,
        most_blocks: i32::MAX.into(),
        threads: (WARPS * 32) as u32,
        cluster: split as u32,
        resident: 1,
        block_bytes: Dim::default(),
        aligned: vec![body.k.buffer, body.v.buffer],
    })
}
