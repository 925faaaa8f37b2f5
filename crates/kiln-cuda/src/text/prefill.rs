//! Attention of many queries in short floats on tensor cores: a block takes 64 query rows of a head and goes over tiles of 64 keys
//! with an online softmax (FlashAttention-2). Weights of the softmax are rounded to short floats. Where there are warpgroups, those take
//! heads of 64 and 128 elements (`flash.rs`).
//!
//! ```text
//!  K tile, V tile ──cp.async, two stages──▶ shared
//!  S = Q·Kᵀ (registers) ──scale, mask, running maximum──▶ P = exp(S − max) ──▶ O = O·kept + P·V (registers)
//! ```

use super::attention::{Texts, check_pages};
use super::index::Width;
use super::value::{narrowed, scalar};
use super::vector::is_multiple;
use super::{Body, Way};
use kiln_ir::{DType, Dim, Scalar};
use kiln_kernels::kernel::{AttentionBody, Kernel, Pages, Strided};
use std::f64::consts::{LN_2, LOG2_E};
use std::fmt::Write;

/// Query rows of a block, 16 a warp.
const ROWS: i64 = 64;
/// Keys of a tile.
pub(super) const KEYS: i64 = 64;
const THREADS: i64 = 128;
/// Elements of a chunk of 16 bytes.
pub(super) const CHUNK: i64 = 8;

/// The body, if the attention is of this kind.
pub(super) fn generate(kernel: &Kernel, body: &AttentionBody, way: Way) -> Option<Body> {
    let dtype = kernel.buffers[body.q.buffer].dtype;
    let width = body.width.as_const()?;
    let fits_view = |view: &Strided| kernel.buffers[view.buffer].dtype == dtype && is_wide(view);
    let pages_fit = |pages: &Option<Pages>| pages.as_ref().is_none_or(|pages| is_multiple(&pages.stride, CHUNK));
    let fits = way.vectors
        && matches!(dtype, DType::Bf16 | DType::F16)
        && body.value_width.as_const() == Some(width)
        && matches!(width, 16 | 32 | 64 | 128)
        && [&body.q, &body.k, &body.v].into_iter().all(fits_view)
        && pages_fit(&body.k_pages)
        && pages_fit(&body.v_pages);
    if !fits {
        return None;
    }
    let writer = Writer { kernel, body, texts: Texts::new(kernel), dtype, width };
    Some(if way.warpgroups && width >= 64 { writer.by_warpgroups() } else { writer.generate() })
}

/// Whether rows are whole chunks.
pub(super) fn is_wide(view: &Strided) -> bool {
    let stride = |(axis, stride): (usize, &Dim)| match axis {
        3 => stride.is_one(),
        _ => is_multiple(stride, CHUNK),
    };
    view.strides.iter().enumerate().all(stride) && is_multiple(&view.offset, CHUNK)
}

pub(super) struct Writer<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) body: &'a AttentionBody,
    pub(super) texts: Texts<'a>,
    pub(super) dtype: DType,
    pub(super) width: i64,
}

impl Writer<'_> {
    fn generate(&self) -> Body {
        let Writer { body, texts, dtype, width, .. } = self;
        let text = |dim: &Dim| texts.text(dim);
        let chunks = width / CHUNK;
        let tile_bytes = KEYS * width * 2;
        let query_bytes = ROWS * width * 2;
        let (parts, columns) = (width / 16, width / 8);
        let mut out = String::new();
        let _ = writeln!(
            out,
            "const idx B={},H={},G={},T={},S={},tiles=(T+{ROWS}-1)/{ROWS};
extern __shared__ __align__(128) unsigned char own[];
const unsigned shared=(unsigned)__cvta_generic_to_shared(own);
const int lane=threadIdx.x%32,warp=threadIdx.x/32;
const float lowest=__int_as_float(0xff800000);",
            text(&body.batch),
            text(&body.heads),
            text(&body.kv_heads),
            text(&body.queries),
            text(&body.keys)
        );
        for pages in [&body.k_pages, &body.v_pages].into_iter().flatten() {
            out.push_str(&check_pages(texts, pages));
        }
        let _ = writeln!(
            out,
            "for(idx part=block;part<B*H*tiles;part+=blocks){{
const idx tile=tiles-1-part%tiles,h=part/tiles%H,b=part/tiles/H,g=h/(H/G),top_row=tile*{ROWS};
__syncthreads();
for(int c=threadIdx.x;c<{};c+={THREADS}){{const int line=c/{chunks},chunk=c%{chunks};
const bool inside=top_row+line<T;const idx t=inside?top_row+line:0;
copy_chunk(shared+chunk_at<{chunks}>(line,chunk),b{}+{}+chunk*{CHUNK},inside);}}",
            ROWS * chunks,
            body.q.buffer,
            texts.at(&body.q, &["b", "h", "t", "0"])
        );
        let end = if body.causal { format!("lesser(S,top_row+{ROWS}+S-T)") } else { "S".to_owned() };
        let range = self.range(ROWS);
        let (begin, end) = match self.bounds() {
            Some(_) => (format!("range_begin/{KEYS}*{KEYS}"), format!("lesser({end},range_end)")),
            None => ("0".to_owned(), end),
        };
        let _ = writeln!(out, "{range}const idx begin={begin},end={end};\nauto fetch=[&](idx first,unsigned to){{");
        for (view, pages, offset) in [(&body.k, &body.k_pages, 0), (&body.v, &body.v_pages, tile_bytes)] {
            self.fetch(&mut out, view, pages.as_ref(), offset, chunks);
        }
        let stages = format!("shared+{query_bytes}");
        let _ = writeln!(
            out,
            "}};
if(begin<end)fetch(begin,{stages}+begin/{KEYS}%2*{0});\ncopies_commit();\ncopies_wait<0>();\n__syncthreads();
unsigned q[{parts}][4];
#pragma unroll\nfor(int part=0;part<{parts};++part)load_matrix(q[part],shared+chunk_at<{chunks}>(warp*16+lane%16,part*2+lane/16));
float o[{columns}][4]={{}},top[2]={{lowest,lowest}},total[2]={{0,0}};
for(idx first=begin;first<end;first+={KEYS}){{
copies_wait<0>();\n__syncthreads();
const unsigned k_tile={stages}+first/{KEYS}%2*{0},v_tile=k_tile+{tile_bytes};
if(first+{KEYS}<end)fetch(first+{KEYS},{stages}+(first/{KEYS}+1)%2*{0});\ncopies_commit();",
            2 * tile_bytes,
        );
        self.visible(&mut out);
        let _ = writeln!(
            out,
            "float s[{0}][4]={{}};
#pragma unroll\nfor(int part=0;part<{parts};++part)
#pragma unroll\nfor(int j=0;j<{0};j+=2){{unsigned r[4];
load_matrix(r,k_tile+chunk_at<{chunks}>(j*8+lane%8+lane/16*8,part*2+lane/8%2));
multiply_{1}(s[j],q[part],r);multiply_{1}(s[j+1],q[part],r+2);}}",
            KEYS / 8,
            self.kind()
        );
        self.softmax(&mut out);
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int part=0;part<{};++part){{unsigned p[4];
#pragma unroll\nfor(int i=0;i<4;++i)p[i]=pair(s[part*2+i/2][i%2*2],s[part*2+i/2][i%2*2+1]);
#pragma unroll\nfor(int j=0;j<{columns};j+=2){{unsigned r[4];
load_transposed(r,v_tile+chunk_at<{chunks}>(part*16+lane%16,j+lane/16));
multiply_{1}(o[j],p,r);multiply_{1}(o[j+1],p,r+2);}}}}\n}}",
            KEYS / 16,
            self.kind()
        );
        let store = |value: &str| {
            let at = texts.at(&body.out, &["b", "h", "t", "d"]);
            format!("b{}[{at}]={};", body.out.buffer, narrowed(*dtype, value))
        };
        let _ = writeln!(
            out,
            "copies_wait<0>();
#pragma unroll\nfor(int half=0;half<2;++half){{
#pragma unroll\nfor(int mask=1;mask<4;mask*=2)total[half]+=__shfl_xor_sync(~0u,total[half],mask);
const idx t=top_row+warp*16+lane/4+half*8;
if(t<T){{
#pragma unroll\nfor(int j=0;j<{columns};++j)
#pragma unroll\nfor(int c=0;c<2;++c){{const int d=j*8+lane%4*2+c;
const float result=top[half]==lowest?0.0f:o[j][half*2+c]/total[half];{}}}{}}}}}\n}}",
            store("result"),
            self.logsumexp()
        );
        let tiles = (&body.queries + (ROWS - 1)).floor_div(&Dim::from(ROWS));
        let pair = match dtype {
            DType::Bf16 => include_str!("pair_bf16.cu"),
            _ => include_str!("pair_f16.cu"),
        };
        Body {
            functions: vec![include_str!("tensor.cu"), include_str!("softmax.cu"), pair],
            threads: THREADS as u32,
            // Short sequences are all waiting: more blocks at once, for a few registers that go to memory.
            resident: if *width <= 64 { 5 } else { 1 },
            block_bytes: Dim::from(query_bytes + 4 * tile_bytes),
            aligned: vec![body.q.buffer, body.k.buffer, body.v.buffer],
            ..Body::new(out, Width::Wide, &body.batch * &body.heads * tiles)
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        if self.dtype == DType::Bf16 { "bf16" } else { "f16" }
    }

    /// Copies a tile of keys or values from key `first` on; what is behind the last key is 0.
    fn fetch(&self, out: &mut String, view: &Strided, pages: Option<&Pages>, offset: i64, chunks: i64) {
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int c=threadIdx.x;c<{};c+={THREADS}){{const int line=c/{chunks},chunk=c%{chunks};
const bool inside=first+line<S;const idx s=inside?first+line:0;",
            KEYS * chunks
        );
        let at = self.key_position(out, view, pages);
        let _ = writeln!(
            out,
            "copy_chunk(to+{offset}+chunk_at<{chunks}>(line,chunk),b{}+{at}+chunk*{CHUNK},inside);}}",
            view.buffer
        );
    }

    /// The position of key `s` of keys or values, behind statements that find its page.
    pub(super) fn key_position(&self, out: &mut String, view: &Strided, pages: Option<&Pages>) -> String {
        match pages {
            None => self.texts.at(view, &["b", "g", "s", "0"]),
            Some(pages) => {
                let (length, count) = (self.texts.text(&pages.length), self.texts.text(&pages.count));
                let entry = self.texts.element(&pages.table, &["b", &format!("(s/{length})")]);
                let _ = writeln!(out, "const idx page=(idx){entry};");
                let row = self.texts.at(view, &["0", "g", &format!("(s%{length})"), "0"]);
                format!("(page<0||page>={count}?0:page)*{}+{row}", self.texts.text(&pages.stride))
            }
        }
    }

    /// Statements that store the logarithm of the sum of row `t`, if it is asked for.
    fn logsumexp(&self) -> String {
        let Some(view) = &self.body.logsumexp else { return String::new() };
        // Scores are in units of ln 2 but where a mask is added.
        let value = match self.adds().is_some() {
            true => "top[half]+logf(total[half])".to_owned(),
            false => format!("(top[half]+log2f(total[half]))*{}", scalar(Scalar::float(DType::F32, LN_2))),
        };
        let at = self.texts.at(view, &["b", "h", "t", "0"]);
        format!("if(lane%4==0)b{}[{at}]=top[half]==lowest?lowest:{value};", view.buffer)
    }

    /// A mask of bools.
    pub(super) fn keeps(&self) -> Option<&Strided> {
        self.body.mask.as_ref().filter(|mask| self.kernel.buffers[mask.buffer].dtype == DType::Bool)
    }

    /// A mask that is added to scores.
    pub(super) fn adds(&self) -> Option<&Strided> {
        self.body.mask.as_ref().filter(|mask| self.kernel.buffers[mask.buffer].dtype.is_float())
    }

    /// Bounds of the visible keys.
    pub(super) fn bounds(&self) -> Option<&Strided> {
        self.texts.bounds(self.body.mask.as_ref())
    }

    /// Statements that find the keys that some of `rows` rows from `top_row` on see, by bounds.
    pub(super) fn range(&self, rows: i64) -> String {
        let Some(bounds) = self.bounds() else { return String::new() };
        let [first, end] = self.texts.visible_keys(bounds);
        format!(
            "idx range_begin=S,range_end=0;
#pragma unroll\nfor(int i=0;i<{};++i){{const idx row=top_row+i*32+lane;if(row<T){{const idx t=row;
range_begin=lesser(range_begin,{first});range_end=greater(range_end,{end});}}}}
#pragma unroll\nfor(int mask=1;mask<32;mask*=2){{range_begin=lesser(range_begin,__shfl_xor_sync(~0u,range_begin,mask));
range_end=greater(range_end,__shfl_xor_sync(~0u,range_end,mask));}}\n",
            rows / 32
        )
    }

    /// Finds the keys of the tile that the rows of a thread see, and goes on to the next tile where a warp sees none: `visible` counts
    /// those from the thread's first key on that are in range, and the bits of `seen` are those that a mask of bools, or bounds, keep.
    fn visible(&self, out: &mut String) {
        let end = if self.body.causal { "lesser(S,t+S-T+1)" } else { "S" };
        let _ = writeln!(
            out,
            "int visible[2];\nunsigned seen=0;
#pragma unroll\nfor(int half=0;half<2;++half){{
const idx row=top_row+warp*16+lane/4+half*8,t=row<T?row:T-1;
visible[half]=(int)lesser({KEYS},greater(0,{end}-first))-lane%4*2;"
        );
        let _ = match self.keeps() {
            _ if self.bounds().is_some() => {
                let [begin, end] = self.bounds().map(|bounds| self.texts.visible_keys(bounds)).unwrap_or_default();
                writeln!(
                    out,
                    "const idx begins={begin},ends={end};
#pragma unroll\nfor(int j=0;j<{};++j)
#pragma unroll\nfor(int c=0;c<2;++c){{const idx key=first+j*8+lane%4*2+c;
if(j*8+c<visible[half]&&key>=begins&&key<ends)seen|=1u<<(half*16+j*2+c);}}",
                    KEYS / 8
                )
            }
            Some(mask) => writeln!(
                out,
                "#pragma unroll\nfor(int j=0;j<{};++j)
#pragma unroll\nfor(int c=0;c<2;++c){{const idx key=first+j*8+lane%4*2+c;
if(j*8+c<visible[half]&&{})seen|=1u<<(half*16+j*2+c);}}",
                KEYS / 8,
                self.texts.element(mask, &["b", "h", "t", "key"])
            ),
            None => writeln!(out, "if(0<visible[half])seen=1;"),
        };
        out.push_str("}\nif(!__any_sync(~0u,seen))continue;\n");
    }

    /// Scales and masks the scores `s`, makes weights of them, and scales what was summed before. Weights are powers of two: scores are
    /// in units of ln 2, but where a mask is added, which may hold the least number there is. A row that has seen no key
    /// yet subtracts 0 instead of its maximum.
    fn softmax(&self, out: &mut String) {
        let Writer { body, texts, .. } = self;
        let number = |value: f64| scalar(Scalar::float(DType::F32, value));
        let (masked, unit) = match (self.adds(), &body.mask) {
            (Some(mask), _) => {
                let value = texts.element(mask, &["b", "h", "t", "(first+j*8+lane%4*2+c)"]);
                (format!("j*8+c<visible[half]?score+(float){value}:lowest"), LOG2_E)
            }
            (None, Some(_)) => ("seen>>(half*16+j*2+c)&1?score:lowest".to_owned(), 1.0),
            (None, None) => ("j*8+c<visible[half]?score:lowest".to_owned(), 1.0),
        };
        let scale = number(body.scale.as_f64() * LOG2_E / unit);
        let weight = |score: &str| match unit {
            1.0 => format!("power_of_two({score}-base)"),
            _ => format!("power_of_two(({score}-base)*{})", number(unit)),
        };
        let tiles = KEYS / 8;
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int half=0;half<2;++half){{
const idx row=top_row+warp*16+lane/4+half*8,t=row<T?row:T-1;\nfloat most=lowest;
#pragma unroll\nfor(int j=0;j<{tiles};++j)
#pragma unroll\nfor(int c=0;c<2;++c){{const float score=s[j][half*2+c]*{scale};
const float x={masked};s[j][half*2+c]=x;most=max_or_nan(most,x);}}
#pragma unroll\nfor(int mask=1;mask<4;mask*=2)most=max_or_nan(most,__shfl_xor_sync(~0u,most,mask));
const float next=max_or_nan(top[half],most),base=next==lowest?0.0f:next,kept={};
total[half]*=kept;top[half]=next;
#pragma unroll\nfor(int j=0;j<{tiles};++j)
#pragma unroll\nfor(int c=0;c<2;++c){{const float p={};s[j][half*2+c]=p;total[half]+=p;}}
#pragma unroll\nfor(int j=0;j<{};++j){{o[j][half*2]*=kept;o[j][half*2+1]*=kept;}}}}",
            weight("top[half]"),
            weight("s[j][half*2+c]"),
            self.width / 8
        );
    }
}
