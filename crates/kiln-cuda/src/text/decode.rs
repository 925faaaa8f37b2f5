//! Attention of few queries over many keys, as in decoding: the keys of one key/value head are split over the blocks of a cluster,
//! the warps of a block and groups of lanes of a warp, each with an online softmax of its own; the parts are merged at the end.
//!
//! ```text
//!  key  0 1 2 3 │ 4 5 6 7 │ …        a group of lanes reads a key at once, 16 bytes a lane, UNROLL visible keys in flight
//!       block 0   block 1            partial (maximum, sum, weighted values) ──shuffles──▶ warp ──shared──▶ block ──cluster──▶ result
//! ```
//!
//! What counts is latency. A lane looks at the mask, and at the page, of one key of the next batch; a ballot tells its group which
//! keys to read, so that a batch costs one access to the mask however many of its keys are hidden. The rows of the queries are
//! spread over the lanes of a group where scores become weights, so that each weight is computed once. Blocks push their parts to
//! the block of the cluster that merges them, which reads its own shared memory only.

use super::attention::{Texts, check_pages};
use super::index::Width;
use super::value::{load, memory_type, narrowed, scalar, widened};
use super::vector::is_multiple;
use super::{Body, Way};
use kiln_ir::{DType, Dim, Scalar};
use kiln_kernels::kernel::{AttentionBody, Kernel, Pages, Strided};
use std::f64::consts::LOG2_E;
use std::fmt::Write;

/// Query rows that share a key/value head at the most.
const MOST_ROWS: i64 = 8;
/// Warps of a block where nothing speaks for another number.
const WARPS: i64 = 8;
/// Keys that a group of lanes has in flight.
const UNROLL: i64 = 4;
/// Blocks that share the keys of a head at the most: what every cluster may have.
const MOST_SPLIT: i64 = 8;
/// Keys of a block at the least, where they are split.
const BLOCK_KEYS: i64 = 16;
/// Keys from which on a block has twice the warps if multiprocessors would have nothing to do otherwise.
const MANY_KEYS: i64 = 4096;
/// Bytes of shared memory for the parts of a block's warps at the most.
const PARTS_BYTES: i64 = 40 << 10;

/// The body, if the attention is of this kind.
pub(super) fn generate(kernel: &Kernel, body: &AttentionBody, way: Way) -> Option<Body> {
    if body.logsumexp.is_some() {
        return None;
    }
    let dtype = kernel.buffers[body.q.buffer].dtype;
    let size = |dim: &Dim| dim.as_const();
    let (heads, groups, queries) = (size(&body.heads)?, size(&body.kv_heads)?, size(&body.queries)?);
    let (width, value_width) = (size(&body.width)?, size(&body.value_width)?);
    let shared_heads = heads / groups.max(1);
    let rows = shared_heads * queries;
    let wide = 16 * 8 / dtype.size_in_bits() as i64;
    let lanes = width / wide;
    let is_wide = |view: &Strided| {
        let stride = |(axis, stride): (usize, &Dim)| match axis {
            3 => stride.is_one(),
            _ => is_multiple(stride, wide),
        };
        kernel.buffers[view.buffer].dtype == dtype
            && view.strides.iter().enumerate().all(stride)
            && is_multiple(&view.offset, wide)
    };
    let pages_fit = |pages: &&Pages| is_multiple(&pages.stride, wide) && pages.length.as_const().is_some();
    let fits = way.vectors
        && dtype.compute_type() == DType::F32
        && (1..=MOST_ROWS).contains(&rows)
        && width == value_width
        && width % wide == 0
        && [1, 2, 4, 8, 16, 32].contains(&lanes)
        && [&body.k_pages, &body.v_pages].into_iter().flatten().all(|pages| pages_fit(&pages))
        && is_wide(&body.k)
        && is_wide(&body.v);
    if !fits {
        return None;
    }
    let line = wide * (lanes + 32 / wide);
    let (split, warps) =
        spread(body, way, groups, |warps| warps * rows * line * 4 <= PARTS_BYTES && rows * wide * warps <= 512);
    let texts = Texts::new(kernel);
    let wide_queries = is_wide(&body.q);
    let writer = Writer {
        kernel,
        body,
        texts,
        dtype,
        queries,
        shared_heads,
        rows,
        width,
        wide,
        lanes,
        wide_queries,
        split,
        warps,
    };
    Some(writer.generate(groups))
}

/// How many blocks share the keys of a head, and the warps of each. Heads and blocks together should fill the multiprocessors.
fn spread(body: &AttentionBody, way: Way, groups: i64, fits: impl Fn(i64) -> bool) -> (i64, i64) {
    let keys = body.keys.as_const().unwrap_or(i64::MAX);
    let heads = body.batch.as_const().map_or(1, |batch| batch.saturating_mul(groups)).max(1);
    let mut split = 1;
    while way.clusters
        && split < MOST_SPLIT
        && heads.saturating_mul(split) < way.multiprocessors
        && keys >= 2 * split * BLOCK_KEYS
    {
        split *= 2;
    }
    let idle = heads.saturating_mul(2 * split) <= way.multiprocessors;
    let most = if idle && keys >= MANY_KEYS { 2 * WARPS } else { WARPS };
    let mut warps = most;
    while warps > 1 && !fits(warps) {
        warps /= 2;
    }
    (split, warps)
}

struct Writer<'a> {
    kernel: &'a Kernel,
    body: &'a AttentionBody,
    texts: Texts<'a>,
    dtype: DType,
    queries: i64,
    /// Query heads of a key/value head.
    shared_heads: i64,
    /// Query rows of a key/value head.
    rows: i64,
    width: i64,
    /// Elements of 16 bytes.
    wide: i64,
    /// Lanes of a group, which share a key.
    lanes: i64,
    wide_queries: bool,
    split: i64,
    warps: i64,
}

impl Writer<'_> {
    fn generate(&self, groups: i64) -> Body {
        let Writer { body, texts, rows, wide, lanes, split, warps, .. } = self;
        let (own_rows, line, results) = (self.own_rows(), self.line(), self.results());
        let mut out = String::new();
        let _ = writeln!(
            out,
            "const idx B={},S={};
__shared__ float parts[{warps}][{rows}][{line}],part_top[{warps}][{rows}],part_weight[{warps}][{rows}];
const int warp=threadIdx.x/32,slot=threadIdx.x%32/{lanes},lane=threadIdx.x%{lanes},home=slot*{lanes},rank=block%{split};
const idx g=block/{split}%{groups},b=block/{split}/{groups};
const float lowest=__int_as_float(0xff800000);
float query[{rows}][{wide}],sum[{rows}][{wide}]={{}},top[{own_rows}],weight[{own_rows}]={{}};
#pragma unroll\nfor(int i=0;i<{own_rows};++i)top[i]=lowest;",
            texts.text(&body.batch),
            texts.text(&body.keys),
        );
        if *split > 1 {
            let _ = writeln!(
                out,
                "__shared__ float all_parts[{split}][{results}],all_top[{split}][{rows}],all_weight[{split}][{rows}];\ncluster_arrive();"
            );
        }
        self.look(&mut out);
        self.load_queries(&mut out);
        self.keys(&mut out);
        self.merge_warp(&mut out);
        self.merge_block(&mut out);
        // A wait for the table's entries would come before everything else.
        for (pages, _) in self.paged() {
            out.push_str(&check_pages(texts, pages));
        }
        let mut functions = vec![include_str!("softmax.cu"), include_str!("fold.cu")];
        if *split > 1 {
            functions.push(include_str!("cluster.cu"));
        }
        let mut aligned = vec![body.k.buffer, body.v.buffer];
        if self.wide_queries {
            aligned.push(body.q.buffer);
        }
        Body {
            functions,
            most_blocks: i32::MAX.into(),
            threads: (warps * 32) as u32,
            cluster: *split as u32,
            aligned,
            ..Body::new(out, Width::Wide, &body.batch * Dim::from(groups * split))
        }
    }

    /// Groups of a warp.
    fn slots(&self) -> i64 {
        32 / self.lanes
    }

    /// Keys from one of a group to its next: they go round the blocks, warps and groups, so that whatever part of them is visible is
    /// shared by all.
    fn round(&self) -> i64 {
        self.split * self.warps * self.slots()
    }

    /// The rows, as many as a power of two.
    fn padded_rows(&self) -> i64 {
        self.rows.unsigned_abs().next_power_of_two() as i64
    }

    /// Rows whose weights a lane computes.
    fn own_rows(&self) -> i64 {
        (self.padded_rows() / self.lanes).max(1)
    }

    /// Neighbouring lanes that compute the weights of the same rows.
    fn same_rows(&self) -> i64 {
        (self.lanes / self.padded_rows()).max(1)
    }

    /// Floats of a row of a warp's part, element `d` at `d%wide*pitch+d/wide`: lanes write and threads read without bank conflicts.
    fn line(&self) -> i64 {
        self.wide * self.pitch()
    }

    fn pitch(&self) -> i64 {
        self.lanes + 32 / self.wide
    }

    /// Results that a block of the cluster merges.
    fn results(&self) -> i64 {
        let all = self.rows * self.width;
        all / self.split + i64::from(all % self.split > 0)
    }

    /// A lane's value of a row, of which every lane of the group gets its own; `list` is an array of the lane's rows.
    fn of_row(&self, list: &str) -> String {
        match self.padded_rows() {
            1 => format!("{list}[0]"),
            _ => format!("__shfl_sync(~0u,{list}[row%{0}],home+row/{0}*{1})", self.own_rows(), self.same_rows()),
        }
    }

    fn float_mask(&self) -> bool {
        self.body.mask.as_ref().is_some_and(|mask| self.kernel.buffers[mask.buffer].dtype.is_float())
    }

    /// Bounds of the visible keys.
    fn bounds(&self) -> Option<&Strided> {
        self.texts.bounds(self.body.mask.as_ref())
    }

    /// Rows of the mask that differ: one, or one a row.
    fn mask_rows(&self) -> i64 {
        let moves = |axis: usize, size: i64| {
            size > 1 && self.body.mask.as_ref().is_some_and(|mask| !mask.strides[axis].is_zero())
        };
        let differ = moves(1, self.shared_heads) || moves(2, self.queries) || (self.body.causal && self.queries > 1);
        if differ { self.rows } else { 1 }
    }

    /// The page tables of keys and values.
    fn paged(&self) -> impl Iterator<Item = (&Pages, &'static str)> {
        [(&self.body.k_pages, "k"), (&self.body.v_pages, "v")]
            .into_iter()
            .filter_map(|(pages, name)| Some((pages.as_ref()?, name)))
    }

    /// Defines `look`, by which a lane reads the mask and the pages of its key of a batch.
    fn look(&self, out: &mut String) {
        let Writer { kernel, body, texts, queries, shared_heads, .. } = self;
        let mask_rows = self.mask_rows();
        let rows = format!(
            "#pragma unroll\nfor(int row=0;row<{mask_rows};++row){{const idx h=g*{shared_heads}+row/{queries},t=row%{queries};"
        );
        // Keys that no row sees are not looked at.
        out.push_str("idx limit=S;\n");
        if let Some(bounds) = self.bounds() {
            let [first, end] = texts.visible_keys(bounds);
            let _ = writeln!(
                out,
                "idx begins[{mask_rows}],ends[{mask_rows}];\nlimit=0;\n{rows}begins[row]={first};ends[row]={end};limit=greater(limit,ends[row]);}}"
            );
        }
        let bias = match &body.mask {
            Some(_) if self.bounds().is_some() => "(s>=begins[row]&&s<ends[row]?0.0f:lowest)".to_owned(),
            Some(mask) if self.float_mask() => format!("(float){}", texts.element(mask, &["b", "h", "t", "s"])),
            Some(mask) => format!("({}?0.0f:lowest)", texts.element(mask, &["b", "h", "t", "s"])),
            None => "0.0f".to_owned(),
        };
        let bias = if body.causal { format!("s<=t+S-{queries}?{bias}:lowest") } else { bias };
        let _ = writeln!(out, "float ahead[{mask_rows}];");
        for (_, name) in self.paged() {
            let _ = writeln!(out, "idx {name}_ahead=0;");
        }
        let _ = writeln!(
            out,
            "auto look=[&](idx first){{const idx s=first+(idx)lane*{};\n{rows}ahead[row]=s<limit?{bias}:lowest;}}",
            self.round()
        );
        for (pages, name) in self.paged() {
            let (length, count) = (texts.text(&pages.length), texts.text(&pages.count));
            let at = texts.at(&pages.table, &["b", &format!("(s/{length})")]);
            let entry = load(kernel.buffers[pages.table.buffer].dtype, pages.table.buffer, &at);
            let stride = texts.text(&pages.stride);
            let _ = writeln!(
                out,
                "if(s<limit){{const idx page=(idx){entry};{name}_ahead=(page<0||page>={count}?0:page)*{stride};}}"
            );
        }
        out.push_str("};\n");
    }

    fn load_queries(&self, out: &mut String) {
        let Writer { body, texts, dtype, queries, shared_heads, rows, wide, .. } = self;
        let _ = writeln!(
            out,
            "const idx start=(idx)(rank*{}+warp)*{}+slot;\nlook(start);
#pragma unroll\nfor(int row=0;row<{rows};++row){{const idx h=g*{shared_heads}+row/{queries},t=row%{queries};",
            self.warps,
            self.slots()
        );
        let element = if self.wide_queries {
            let ty = self.ty();
            let at = texts.at(&body.q, &["b", "h", "t", "0"]);
            let _ = writeln!(out, "const {ty} loaded=*(const {ty}*)(b{}+{at}+lane*{wide});", body.q.buffer);
            widened(*dtype, "loaded.at(e)")
        } else {
            texts.element(&body.q, &["b", "h", "t", &format!("(lane*{wide}+e)")])
        };
        let _ = writeln!(out, "#pragma unroll\nfor(int e=0;e<{wide};++e)query[row][e]={element};}}");
    }

    fn ty(&self) -> String {
        format!("Packed<{},{}>", memory_type(self.dtype), self.wide)
    }

    /// Goes over the keys, a batch of as many as a group has lanes at a time.
    fn keys(&self, out: &mut String) {
        let Writer { body, lanes, .. } = self;
        let (mask_rows, slots, round) = (self.mask_rows(), self.slots(), self.round());
        let all = if *lanes == 32 { "~0u".to_owned() } else { format!("{}u", (1u64 << lanes) - 1) };
        let step = round * lanes;
        let _ = writeln!(
            out,
            "for(idx first=start;first-slot<limit;first+={step}){{\nfloat bias[{mask_rows}];\nunsigned seen=0;"
        );
        for (_, name) in self.paged() {
            let _ = writeln!(out, "const idx {name}_place={name}_ahead;");
        }
        // The loads of a round are all under way before the first is waited for; a value's does not wait for its weight.
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int row=0;row<{mask_rows};++row){{bias[row]=ahead[row];seen|=__ballot_sync(~0u,!(bias[row]==lowest));}}
look(first+{step});
if(seen==0)continue;
unsigned own=seen>>home&{all};\nint left=0;
#pragma unroll\nfor(int i=0;i<{slots};++i){{const int count=__popc(seen>>(i*{lanes})&{all});left=count>left?count:left;}}
for(;left>0;left-={UNROLL}){{
{ty} ks[{UNROLL}],vs[{UNROLL}];\nint at[{UNROLL}];
#pragma unroll\nfor(int u=0;u<{UNROLL};++u){{at[u]=__ffs(own)-1;own&=own-1;\nconst idx s=first+(idx)at[u]*{round};",
            ty = self.ty()
        );
        for (_, name) in self.paged() {
            let _ = writeln!(out, "const idx {name}_page=__shfl_sync(~0u,{name}_place,home+(at[u]<0?0:at[u]));");
        }
        out.push_str("if(at[u]>=0){\n");
        for (view, pages, name) in [(&body.k, &body.k_pages, "k"), (&body.v, &body.v_pages, "v")] {
            let at = match pages {
                None => self.texts.at(view, &["b", "g", "s", "0"]),
                Some(pages) => {
                    let row = format!("(s%{})", self.texts.text(&pages.length));
                    format!("{name}_page+{}", self.texts.at(view, &["0", "g", &row, "0"]))
                }
            };
            let _ = writeln!(out, "{name}s[u]=*(const {}*)(b{}+{at}+lane*{});", self.ty(), view.buffer, self.wide);
        }
        out.push_str("}}\n");
        self.scores(out);
        self.weights(out);
        out.push_str("}}\n");
    }

    /// The factor from scores to the exponents of two that weights are: 1, but where a mask is added, which may hold the least number
    /// there is.
    fn unit(&self) -> f64 {
        if self.float_mask() { LOG2_E } else { 1.0 }
    }

    /// The weight of a score, or the factor of a part, whose maximum is part of `base`.
    fn power(&self, score: &str) -> String {
        match self.unit() {
            1.0 => format!("power_of_two({score}-base)"),
            unit => format!("power_of_two(({score}-base)*{})", number(unit)),
        }
    }

    /// Products of the round's keys with the lane's rows: `score`, and the largest of each row.
    fn scores(&self, out: &mut String) {
        let Writer { dtype, rows, wide, lanes, .. } = self;
        let (padded, own_rows, mask_rows) = (self.padded_rows(), self.own_rows(), self.mask_rows());
        let _ = writeln!(
            out,
            "float score[{UNROLL}][{own_rows}],most[{own_rows}];
#pragma unroll\nfor(int i=0;i<{own_rows};++i)most[i]=lowest;
#pragma unroll\nfor(int u=0;u<{UNROLL};++u){{\nfloat dot[{padded}]={{}};\nif(u<left){{\nif(at[u]>=0){{
#pragma unroll\nfor(int e=0;e<{wide};++e){{const float key={};
#pragma unroll\nfor(int row=0;row<{rows};++row)dot[row]=fmaf(query[row][e],key,dot[row]);}}}}
fold<{padded},{},1>(dot);",
            widened(*dtype, "ks[u].at(e)"),
            lanes / 2
        );
        // Of one mask row the lane that looked at the key has the value; of several, the one of this lane's row.
        let from = "home+(at[u]<0?0:at[u])";
        let biased = match (self.float_mask(), mask_rows) {
            (false, 1) => "scaled",
            (true, 1) => {
                let _ = writeln!(out, "const float own_bias=__shfl_sync(~0u,bias[0],{from});");
                "scaled+own_bias"
            }
            (float, _) => {
                let _ = writeln!(
                    out,
                    "float own_bias[{own_rows}]={{}};
#pragma unroll\nfor(int row=0;row<{rows};++row){{const float one=__shfl_sync(~0u,bias[row],{from});
if(row/{own_rows}==lane/{})own_bias[row%{own_rows}]=one;}}",
                    self.same_rows()
                );
                if float { "scaled+own_bias[i]" } else { "own_bias[i]==lowest?lowest:scaled" }
            }
        };
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int i=0;i<{own_rows};++i){{const float scaled=dot[i]*{};
score[u][i]=at[u]<0?lowest:{biased};most[i]=max_or_nan(most[i],score[u][i]);}}}}
else{{
#pragma unroll\nfor(int i=0;i<{own_rows};++i)score[u][i]=lowest;}}}}",
            number(self.body.scale.as_f64() * LOG2_E / self.unit())
        );
    }

    /// Makes weights of the scores and adds the values. A row that has seen no key yet subtracts 0 instead of its maximum.
    fn weights(&self, out: &mut String) {
        let Writer { dtype, rows, wide, .. } = self;
        let own_rows = self.own_rows();
        let _ = writeln!(
            out,
            "float kept[{own_rows}];
#pragma unroll\nfor(int i=0;i<{own_rows};++i){{
const float next=max_or_nan(top[i],most[i]),base=next==lowest?0.0f:next;
kept[i]={};weight[i]*=kept[i];top[i]=next;
#pragma unroll\nfor(int u=0;u<{UNROLL};++u){{score[u][i]={};weight[i]+=score[u][i];}}}}
#pragma unroll\nfor(int row=0;row<{rows};++row){{const float factor={};
#pragma unroll\nfor(int e=0;e<{wide};++e)sum[row][e]*=factor;}}
#pragma unroll\nfor(int u=0;u<{UNROLL};++u)if(u<left){{
#pragma unroll\nfor(int row=0;row<{rows};++row){{const float p={};
if(at[u]>=0){{
#pragma unroll\nfor(int e=0;e<{wide};++e)sum[row][e]=fmaf(p,{},sum[row][e]);}}}}}}",
            self.power("top[i]"),
            self.power("score[u][i]"),
            self.of_row("kept"),
            self.of_row("score[u]"),
            widened(*dtype, "vs[u].at(e)")
        );
    }

    /// Merges the groups of a warp, and gives its part to the block.
    fn merge_warp(&self, out: &mut String) {
        let Writer { rows, wide, lanes, .. } = self;
        let (own_rows, same_rows, slots) = (self.own_rows(), self.same_rows(), self.slots());
        if slots > 1 {
            let _ = writeln!(
                out,
                "float kept[{own_rows}];
#pragma unroll\nfor(int i=0;i<{own_rows};++i){{float most=top[i];
#pragma unroll\nfor(int mask={lanes};mask<32;mask*=2)most=max_or_nan(most,__shfl_xor_sync(~0u,most,mask));
const float base=most==lowest?0.0f:most;kept[i]={};weight[i]*=kept[i];top[i]=most;
#pragma unroll\nfor(int mask={lanes};mask<32;mask*=2)weight[i]+=__shfl_xor_sync(~0u,weight[i],mask);}}
#pragma unroll\nfor(int row=0;row<{rows};++row){{const float factor={};
#pragma unroll\nfor(int e=0;e<{wide};++e)sum[row][e]*=factor;}}
fold<{},16,{lanes}>(&sum[0][0]);",
                self.power("top[i]"),
                self.of_row("kept"),
                rows * wide
            );
        }
        // What `fold` has left to a lane, and the groups that have the same.
        let (mut left, mut same) = (rows * wide, slots);
        while left % 2 == 0 && same > 1 {
            (left, same) = (left / 2, same / 2);
        }
        let _ = writeln!(
            out,
            "if(slot==0&&lane%{same_rows}==0){{
#pragma unroll\nfor(int i=0;i<{own_rows};++i){{const int row=lane/{same_rows}*{own_rows}+i;
if(row<{rows}){{part_top[warp][row]=top[i];part_weight[warp][row]=weight[i];}}}}}}
if(slot%{same}==0){{
#pragma unroll\nfor(int i=0;i<{left};++i){{const int n=slot/{same}*{left}+i;
parts[warp][n/{wide}][n%{wide}*{}+lane]=sum[i/{wide}][i%{wide}];}}}}
__syncthreads();",
            self.pitch()
        );
    }

    /// Merges the warps of a block, and the blocks of a cluster.
    fn merge_block(&self, out: &mut String) {
        let Writer { body, texts, dtype, queries, shared_heads, rows, width, wide, split, warps, .. } = self;
        let store = format!(
            "const idx h=g*{shared_heads}+row/{queries},t=row%{queries};b{}[{}]={};",
            body.out.buffer,
            texts.at(&body.out, &["b", "h", "t", "d"]),
            narrowed(*dtype, "(most==lowest?0.0f:value/total)")
        );
        if *split > 1 {
            // The other blocks have to have begun before they are written to.
            out.push_str("cluster_wait();\n");
        }
        let _ = write!(
            out,
            "for(int i=threadIdx.x;i<{};i+={}){{const int row=i/{width},d=i%{width};\n{}",
            rows * width,
            warps * 32,
            self.merged(
                *warps,
                "part_top",
                "part_weight",
                &format!("parts[n][row][d%{wide}*{}+d/{wide}]", self.pitch())
            )
        );
        if *split == 1 {
            let _ = writeln!(out, "{store}}}");
            return;
        }
        let results = self.results();
        let _ = writeln!(
            out,
            "to_rank(&all_parts[rank][i%{results}],i/{results},value);
for(int r=d;r<{split};r+={width}){{to_rank(&all_top[rank][row],r,most);to_rank(&all_weight[rank][row],r,total);}}}}
cluster_arrive();\ncluster_wait();
for(int i=threadIdx.x;i<{results}&&rank*{results}+i<{};i+={}){{const int row=(rank*{results}+i)/{width},d=(rank*{results}+i)%{width};
{}{store}}}",
            rows * width,
            warps * 32,
            self.merged(*split, "all_top", "all_weight", "all_parts[n][i]")
        );
    }

    /// Statements that merge `count` parts of a row: `most`, `total` and `value`.
    fn merged(&self, count: i64, top: &str, weight: &str, part: &str) -> String {
        format!(
            "float most=lowest,total=0,value=0;
#pragma unroll\nfor(int n=0;n<{count};++n)most=max_or_nan(most,{top}[n][row]);
const float base=most==lowest?0.0f:most;
#pragma unroll\nfor(int n=0;n<{count};++n){{const float factor={};
total=fmaf({weight}[n][row],factor,total);value=fmaf({part},factor,value);}}\n",
            self.power(&format!("{top}[n][row]"))
        )
    }
}

fn number(value: f64) -> String {
    scalar(Scalar::float(DType::F32, value))
}
