//! Gradients of attention in short floats on tensor cores (FlashAttention-2): a block takes 64 rows of queries or of keys, its own,
//! and goes over tiles of 64 rows of the others. Scores are computed again from the logarithms of the rows' sums; whoever adds
//! up a gradient owns its rows, so that no two blocks add to one. Where there are warpgroups, those take heads of 64 and 128 elements
//! (`flash_backward.rs`).
//!
//! ```text
//!  own a₁, a₂ ──▶ shared            of queries: a₁ = q, a₂ = gradient, b₁ = k, b₂ = v
//!  b₁, b₂ ──cp.async, two stages──▶ shared            of keys and values: a₁ = k, a₂ = v, b₁ = q, b₂ = gradient
//!  S = a₁·b₁ᵀ ──scale, mask, logsumexp──▶ P       dP = a₂·b₂ᵀ ──delta──▶ dS = P∘(dP − delta)
//!  Σ₁ += dS·b₁ (queries, keys)        Σ₂ += P·b₂ (values)        in registers, 16 own rows a warp
//! ```

use super::attention::Texts;
use super::index::Width;
use super::value::{narrowed, scalar};
use super::vector::is_multiple;
use super::{Body, Way};
use kiln_ir::{DType, Dim, Scalar};
use kiln_kernels::kernel::{AttentionBackwardBody, AttentionGradients, AttentionPart, Kernel, Strided};
use std::f64::consts::LOG2_E;
use std::fmt::Write;

/// Own rows of a block, 16 a warp, and rows of a tile of the others.
pub(super) const ROWS: i64 = 64;
/// Rows of the others whose scores are in registers at once.
const COLUMNS: i64 = 32;
const THREADS: i64 = 128;
/// Elements of a chunk of 16 bytes.
const CHUNK: i64 = 8;

/// The body, if the gradients are of this kind.
pub(super) fn generate(kernel: &Kernel, body: &AttentionBackwardBody, way: Way) -> Option<Body> {
    let AttentionPart::Gradients(of) = &body.part else { return None };
    let dtype = kernel.buffers[body.q.buffer].dtype;
    let width = body.width.as_const()?;
    let is_wide = |view: &Strided| {
        let stride = |(axis, stride): (usize, &Dim)| match axis {
            3 => stride.is_one(),
            _ => is_multiple(stride, CHUNK),
        };
        view.strides.iter().enumerate().all(stride) && is_multiple(&view.offset, CHUNK)
    };
    let by_keys = of.queries.is_none();
    let fits = way.vectors
        && matches!(dtype, DType::Bf16 | DType::F16)
        && of.value_width.as_const() == Some(width)
        && matches!(width, 16 | 32 | 64 | 128)
        && (by_keys || of.keys.is_none() && of.values.is_none())
        && [&body.q, &body.k, &of.v, &of.gradient].into_iter().all(is_wide);
    let writer = Writer { kernel, body, of, texts: Texts::new(kernel), dtype, width, by_keys };
    fits.then(|| if way.warpgroups && width >= 64 { writer.by_warpgroups() } else { writer.generate() })
}

pub(super) struct Writer<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) body: &'a AttentionBackwardBody,
    pub(super) of: &'a AttentionGradients,
    pub(super) texts: Texts<'a>,
    pub(super) dtype: DType,
    pub(super) width: i64,
    /// Whether the own rows are keys, not queries.
    pub(super) by_keys: bool,
}

pub(super) const QUERIES: [&str; 4] = ["b", "h", "t", "0"];
pub(super) const KEYS: [&str; 4] = ["b", "g", "s", "0"];

impl Writer<'_> {
    fn generate(&self) -> Body {
        let Writer { body, of, texts, width, .. } = self;
        let text = |dim: &Dim| texts.text(dim);
        let (chunks, tile_bytes) = (width / CHUNK, ROWS * width * 2);
        let (parts, columns) = (width / 16, width / 8);
        // Both tiles of the others, and their rows' logarithms and deltas where the others are queries.
        let row_bytes = if self.by_keys { 2 * ROWS * 4 } else { 0 };
        let stage = 2 * tile_bytes + row_bytes;
        let mut out = format!(
            "const idx B={},H={},G={},T={},S={},shift=S-T;
extern __shared__ __align__(128) unsigned char memory[];
const unsigned shared=(unsigned)__cvta_generic_to_shared(memory);
const int lane=threadIdx.x%32,warp=threadIdx.x/32;
const float lowest=__int_as_float(0xff800000);\n",
            text(&body.batch),
            text(&body.heads),
            text(&body.kv_heads),
            text(&body.queries),
            text(&body.keys)
        );
        let (own_rows, other_rows) = if self.by_keys { ("S", "T") } else { ("T", "S") };
        let _ =
            writeln!(out, "const idx tiles=({own_rows}+{ROWS}-1)/{ROWS},other_tiles=({other_rows}+{ROWS}-1)/{ROWS};");
        // Those with the most to do come first.
        let place = match (self.by_keys, body.causal) {
            (true, _) => "const idx top_row=part%tiles*64,g=part/tiles%G,b=part/tiles/G;",
            (false, true) => "const idx top_row=(tiles-1-part%tiles)*64,h=part/tiles%H,b=part/tiles/H,g=h/(H/G);",
            (false, false) => "const idx top_row=part%tiles*64,h=part/tiles%H,b=part/tiles/H,g=h/(H/G);",
        };
        let groups = if self.by_keys { "G" } else { "H" };
        let _ = writeln!(out, "for(idx part=block;part<B*{groups}*tiles;part+=blocks){{\n{place}\n__syncthreads();");
        let (own, others) = if self.by_keys {
            ([(&body.k, &KEYS), (&of.v, &KEYS)], [(&body.q, &QUERIES), (&of.gradient, &QUERIES)])
        } else {
            ([(&body.q, &QUERIES), (&of.gradient, &QUERIES)], [(&body.k, &KEYS), (&of.v, &KEYS)])
        };
        let (row, other) = if self.by_keys { ("s", "t") } else { ("t", "s") };
        let _ = writeln!(
            out,
            "for(int c=threadIdx.x;c<{};c+={THREADS}){{const int line=c/{chunks},chunk=c%{chunks};
const bool inside=top_row+line<{own_rows};const idx {row}=inside?top_row+line:0;",
            ROWS * chunks
        );
        for ((view, indices), offset) in own.into_iter().zip([0, tile_bytes]) {
            let _ = writeln!(
                out,
                "copy_chunk(shared+{offset}+chunk_at<{chunks}>(line,chunk),b{}+{}+chunk*{CHUNK},inside);",
                view.buffer,
                texts.at(view, indices)
            );
        }
        out.push_str("}\n");
        // The tiles of the others that own rows see, of all heads that share keys one after another.
        let _ = match (self.by_keys, body.causal) {
            (true, true) => writeln!(
                out,
                "const idx from=lesser(other_tiles,greater(0,top_row-shift)/64),span=other_tiles-from,count=span*(H/G);"
            ),
            (true, false) => writeln!(out, "const idx from=0,span=other_tiles,count=span*(H/G);"),
            (false, true) => {
                writeln!(out, "const idx count=lesser(other_tiles,(greater(0,top_row+64+shift)+63)/64);")
            }
            (false, false) => writeln!(out, "const idx count=other_tiles;"),
        };
        let head = match self.by_keys {
            true => "const idx h=g*(H/G)+i/span,first=(from+i%span)*64;",
            false => "const idx first=i*64;",
        };
        let _ = writeln!(
            out,
            "auto fetch=[&](idx i,unsigned to){{{head}
#pragma unroll\nfor(int c=threadIdx.x;c<{};c+={THREADS}){{const int line=c/{chunks},chunk=c%{chunks};
const bool inside=first+line<{other_rows};const idx {other}=inside?first+line:0;",
            ROWS * chunks
        );
        for ((view, indices), offset) in others.into_iter().zip([0, tile_bytes]) {
            let _ = writeln!(
                out,
                "copy_chunk(to+{offset}+chunk_at<{chunks}>(line,chunk),b{}+{}+chunk*{CHUNK},inside);",
                view.buffer,
                texts.at(view, indices)
            );
        }
        out.push_str("}\n");
        if self.by_keys {
            let _ = writeln!(
                out,
                "const int line=threadIdx.x%64;const bool inside=first+line<T;const idx t=inside?first+line:0;
copy_word(to+{}+threadIdx.x*4,threadIdx.x<64?b{}+{}:b{}+{},inside);",
                2 * tile_bytes,
                of.logsumexp.buffer,
                texts.at(&of.logsumexp, &QUERIES),
                of.delta.buffer,
                texts.at(&of.delta, &QUERIES)
            );
        }
        let stages = format!("shared+{}", 2 * tile_bytes);
        let _ =
            writeln!(out, "}};\nif(0<count)fetch(0,{stages});\ncopies_commit();\ncopies_wait<0>();\n__syncthreads();");
        let kept = self.width <= 64;
        if kept {
            let _ = writeln!(
                out,
                "unsigned a1[{parts}][4],a2[{parts}][4];
#pragma unroll\nfor(int part=0;part<{parts};++part){{{}{}}}",
                self.own_part("a1[part]", 0),
                self.own_part("a2[part]", tile_bytes)
            );
        }
        let _ = writeln!(out, "float sum1[{columns}][4]={{}},sum2[{columns}][4]={{}};");
        if !self.by_keys {
            let _ = writeln!(
                out,
                "float base[2],delta[2];
#pragma unroll\nfor(int half=0;half<2;++half){{const idx row=top_row+warp*16+lane/4+half*8,t=row<T?row:T-1;
base[half]={};delta[half]={};}}",
                texts.element(&of.logsumexp, &QUERIES),
                texts.element(&of.delta, &QUERIES)
            );
        }
        let _ = writeln!(
            out,
            "for(idx i=0;i<count;++i){{{head}
copies_wait<0>();\n__syncthreads();
const unsigned tile1={stages}+i%2*{stage},tile2=tile1+{tile_bytes};
if(i+1<count)fetch(i+1,{stages}+(i+1)%2*{stage});\ncopies_commit();"
        );
        if self.by_keys {
            let _ = writeln!(
                out,
                "const float* const others=(const float*)(memory+{}+i%2*{stage});",
                2 * tile_bytes + 2 * tile_bytes
            );
        }
        self.tile(&mut out, kept);
        out.push_str("}\ncopies_wait<0>();\n");
        self.store(&mut out);
        out.push_str("}\n");
        let own_tiles = if self.by_keys {
            &body.batch * &body.kv_heads * (&body.keys + (ROWS - 1)).floor_div(&Dim::from(ROWS))
        } else {
            &body.batch * &body.heads * (&body.queries + (ROWS - 1)).floor_div(&Dim::from(ROWS))
        };
        let pair = match self.dtype {
            DType::Bf16 => include_str!("pair_bf16.cu"),
            _ => include_str!("pair_f16.cu"),
        };
        let mut aligned: Vec<usize> = [&body.q, &body.k, &of.v, &of.gradient].map(|view| view.buffer).to_vec();
        aligned
            .extend(self.results().into_iter().filter(|(_, view, _)| is_paired(view)).map(|(_, view, _)| view.buffer));
        Body {
            functions: vec![include_str!("tensor.cu"), include_str!("softmax.cu"), include_str!("word.cu"), pair],
            threads: THREADS as u32,
            block_bytes: Dim::from(2 * tile_bytes + 2 * stage),
            resident: if self.width <= 64 { 3 } else { 2 },
            aligned,
            ..Body::new(out, Width::Wide, own_tiles)
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        if self.dtype == DType::Bf16 { "bf16" } else { "f16" }
    }

    /// Loads a part of 16 elements of the warp's own rows.
    fn own_part(&self, to: &str, offset: i64) -> String {
        let chunks = self.width / CHUNK;
        format!("load_matrix({to},shared+{offset}+chunk_at<{chunks}>(warp*16+lane%16,part*2+lane/16));")
    }

    pub(super) fn has_slopes(&self) -> bool {
        self.of.queries.is_some() || self.of.keys.is_some()
    }

    /// One tile of the others, some columns at a time. `kept` says that the own rows are in registers.
    fn tile(&self, out: &mut String, kept: bool) {
        let Writer { width, .. } = self;
        let (chunks, parts, columns) = (width / CHUNK, width / 16, width / 8);
        let (kind, wide) = (self.kind(), COLUMNS / 8);
        self.visible(out);
        let product = |to: &str, own: &str, offset: i64, tile: &str| {
            let (load, own) = match kept {
                true => (String::new(), format!("{own}[part]")),
                false => (format!("unsigned a[4];{}", self.own_part("a", offset)), "a".to_owned()),
            };
            format!(
                "float {to}[{wide}][4]={{}};
#pragma unroll\nfor(int part=0;part<{parts};++part){{{load}
#pragma unroll\nfor(int j=0;j<{wide};j+=2){{unsigned r[4];
load_matrix(r,{tile}+chunk_at<{chunks}>(column+j*8+lane%8+lane/16*8,part*2+lane/8%2));
multiply_{kind}({to}[j],{own},r);multiply_{kind}({to}[j+1],{own},r+2);}}}}\n"
            )
        };
        let _ = writeln!(out, "#pragma unroll 1\nfor(int column=0;column<{ROWS};column+={COLUMNS}){{");
        out.push_str(&product("s", "a1", 0, "tile1"));
        if self.has_slopes() {
            out.push_str(&product("d", "a2", ROWS * width * 2, "tile2"));
        }
        self.weights(out);
        let sum = |to: &str, from: &str, tile: &str| {
            format!(
                "#pragma unroll\nfor(int part=0;part<{};++part){{unsigned a[4];
#pragma unroll\nfor(int i=0;i<4;++i)a[i]=pair({from}[part*2+i/2][i%2*2],{from}[part*2+i/2][i%2*2+1]);
#pragma unroll\nfor(int j=0;j<{columns};j+=2){{unsigned r[4];
load_transposed(r,{tile}+chunk_at<{chunks}>(column+part*16+lane%16,j+lane/16));
multiply_{kind}({to}[j],a,r);multiply_{kind}({to}[j+1],a,r+2);}}}}\n",
                COLUMNS / 16
            )
        };
        if self.of.values.is_some() {
            out.push_str(&sum("sum2", "s", "tile2"));
        }
        if self.has_slopes() {
            out.push_str(&sum("sum1", "d", "tile1"));
        }
        out.push_str("}\n");
    }

    /// A mask of bools.
    pub(super) fn keeps(&self) -> Option<&Strided> {
        self.body.mask.as_ref().filter(|mask| self.kernel.buffers[mask.buffer].dtype == DType::Bool)
    }

    /// The columns of the tile that each of a thread's rows sees, counted from the thread's first: from `low` on, below `high`.
    fn visible(&self, out: &mut String) {
        let (low, high) = match (self.by_keys, self.body.causal) {
            (true, true) => ("row-shift", "T"),
            (true, false) => ("0", "T"),
            (false, true) => ("0", "lesser(S,row+shift+1)"),
            (false, false) => ("0", "S"),
        };
        let _ = writeln!(
            out,
            "int low[2],high[2];
#pragma unroll\nfor(int half=0;half<2;++half){{const idx row=top_row+warp*16+lane/4+half*8;
low[half]=(int)lesser(64,greater(0,{low}-first))-lane%4*2;high[half]=(int)lesser(64,greater(0,{high}-first))-lane%4*2;}}"
        );
    }

    /// Makes weights of the scores `s`, and slopes of `d`. Weights are powers of two.
    fn weights(&self, out: &mut String) {
        let Writer { body, texts, .. } = self;
        let number = |value: f64| scalar(Scalar::float(DType::F32, value));
        let log2_e = number(LOG2_E);
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int j=0;j<{};++j)\n#pragma unroll\nfor(int c=0;c<2;++c){{const int x=column+j*8+c;",
            COLUMNS / 8
        );
        if self.by_keys {
            let _ = writeln!(
                out,
                "const float base=others[x+lane%4*2],delta=others[64+x+lane%4*2];const float start=base*{log2_e};"
            );
        }
        let _ = writeln!(out, "#pragma unroll\nfor(int half=0;half<2;++half){{bool seen=low[half]<=x&&x<high[half];");
        let scale = number(body.scale.as_f64() * LOG2_E);
        if !self.by_keys {
            let _ = writeln!(out, "const float start=base[half]*{log2_e};");
        }
        if let Some(mask) = &body.mask {
            let (t, s, bound) = match self.by_keys {
                true => ("(first+x+lane%4*2)", "own_row", "S"),
                false => ("own_row", "(first+x+lane%4*2)", "T"),
            };
            let _ = writeln!(
                out,
                "float added=0.0f;const idx own_row=top_row+warp*16+lane/4+half*8;
if(seen&&own_row<{bound}){{const auto given={};{}}}",
                texts.element(mask, &["b", "h", t, s]),
                match self.keeps() {
                    Some(_) => "seen=given;".to_owned(),
                    None => format!("added=(float)given*{log2_e};"),
                }
            );
        }
        // A score of −∞ is hidden, whatever is subtracted.
        let added = self.body.mask.is_some() && self.keeps().is_none();
        let _ = match added {
            true => writeln!(out, "const float score=fmaf(s[j][half*2+c],{scale},added);seen=seen&&score!=lowest;"),
            false => Ok(()),
        };
        let power = match added {
            true => "score-start".to_owned(),
            false => format!("fmaf(s[j][half*2+c],{scale},-start)"),
        };
        let _ = writeln!(out, "const float p=seen?power_of_two({power}):0.0f;s[j][half*2+c]=p;");
        if self.has_slopes() {
            let delta = if self.by_keys { "delta" } else { "delta[half]" };
            let _ = writeln!(out, "d[j][half*2+c]=seen?p*(d[j][half*2+c]-{delta}):0.0f;");
        }
        out.push_str("}}\n");
    }

    /// Each result: its sum, its view, and the names of the view's indices.
    pub(super) fn results(&self) -> Vec<(&'static str, &Strided, [&'static str; 4])> {
        let of = self.of;
        let (queries, keys) = (["b", "h", "t", "d"], ["b", "g", "s", "d"]);
        let all = [("sum1", &of.queries, queries), ("sum1", &of.keys, keys), ("sum2", &of.values, keys)];
        all.into_iter().filter_map(|(sum, view, indices)| Some((sum, view.as_ref()?, indices))).collect()
    }

    fn store(&self, out: &mut String) {
        let (row, rows) = if self.by_keys { ("s", "S") } else { ("t", "T") };
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int half=0;half<2;++half){{const idx {row}=top_row+warp*16+lane/4+half*8;
if({row}<{rows}){{
#pragma unroll\nfor(int j=0;j<{};++j){{",
            self.width / 8
        );
        let scale = scalar(Scalar::float(DType::F32, self.body.scale.as_f64()));
        for (sum, view, indices) in self.results() {
            let factor = if sum == "sum1" { format!("*{scale}") } else { String::new() };
            let value = |c: &str| format!("{sum}[j][half*2+{c}]{factor}");
            let at = self.texts.at(view, &indices);
            let _ = match is_paired(view) {
                true => writeln!(
                    out,
                    "{{const int d=j*8+lane%4*2;*(unsigned*)(b{}+{at})=pair({},{});}}",
                    view.buffer,
                    value("0"),
                    value("1")
                ),
                false => writeln!(
                    out,
                    "#pragma unroll\nfor(int c=0;c<2;++c){{const int d=j*8+lane%4*2+c;b{}[{at}]={};}}",
                    view.buffer,
                    narrowed(self.dtype, &value("c"))
                ),
            };
        }
        out.push_str("}}}\n");
    }
}

/// True if two neighbours along the width are one word.
fn is_paired(view: &Strided) -> bool {
    let rows = view.strides.iter().take(3).all(|stride| is_multiple(stride, 2));
    rows && view.strides.last().is_some_and(Dim::is_one) && is_multiple(&view.offset, 2)
}
