//! Attention of many queries by warpgroups (`wgmma`, compute capability 9.0): four warps take 64 query rows and go over tiles of 64
//! keys. Values of a tile are multiplied while the scores of the next one become weights (FlashAttention-3).
//!
//! ```text
//!  Q ──cp.async──▶ shared      K tiles, V tiles ──cp.async, two stages each──▶ shared
//!  S = Q·Kᵀ ──▶ O += P·V of the tile before ──▶ P = 2^(S − max) meanwhile ──▶ O = O·kept
//! ```
//!
//! Rows have 128 bytes in shared memory: heads of 128 elements are two panels. Where the number of keys is known, the last tile has
//! no more of them than a multiple of 16.

use super::Body;
use super::attention::check_pages;
use super::index::Width;
use super::prefill::{CHUNK, KEYS, Writer, is_wide};
use super::value::{narrowed, scalar};
use kiln_ir::{DType, Dim, Scalar};
use kiln_kernels::kernel::{Pages, Strided};
use std::f64::consts::{LN_2, LOG2_E};
use std::fmt::Write;

/// Bytes of 64 rows of a panel, and chunks of a row.
pub(super) const PANEL: i64 = 64 * 128;
pub(super) const CHUNKS: i64 = 8;

/// The score of row `half` and column `c` of a fragment.
const SCORE: &str = "s[j][half*2+c]";

impl Writer<'_> {
    /// Warpgroups of a block.
    fn groups(&self) -> i64 {
        let many = self.body.queries.as_const().is_none_or(|queries| queries > 64);
        if self.width > 64 && many { 2 } else { 1 }
    }

    /// The body by warpgroups, for heads of 64 or 128 elements.
    pub(super) fn by_warpgroups(&self) -> Body {
        let Writer { body, texts, width, .. } = self;
        let (rows, threads, tile) = (64 * self.groups(), 128 * self.groups(), KEYS * width * 2);
        let query_bytes = rows * width * 2;
        let text = |dim: &Dim| texts.text(dim);
        let (batch, heads, kv_heads) = (text(&body.batch), text(&body.heads), text(&body.kv_heads));
        let (queries, keys) = (text(&body.queries), text(&body.keys));
        let mut out = format!(
            "const idx B={batch},H={heads},G={kv_heads};
const int T=(int)({queries}),S=(int)({keys}),shift=S-T,tiles=(T+{rows}-1)/{rows};
extern __shared__ __align__(1024) unsigned char own[];
const unsigned shared=(unsigned)__cvta_generic_to_shared(own),k_tiles=shared+{query_bytes},v_tiles=k_tiles+{};
const int lane=threadIdx.x%32,warp=threadIdx.x/32%4,group=__shfl_sync(~0u,(int)threadIdx.x/128,0);
const int own_line=threadIdx.x/{chunks},chunk=threadIdx.x%{chunks};
const unsigned spot=chunk_at<{CHUNKS}>(own_line,chunk%{CHUNKS});
const float lowest=__int_as_float(0xff800000);\n",
            2 * tile,
            chunks = width / CHUNK,
        );
        for pages in [&body.k_pages, &body.v_pages].into_iter().flatten() {
            out.push_str(&check_pages(texts, pages));
        }
        // Rows that see the most keys come first.
        let _ = writeln!(
            out,
            "for(idx part=block;part<B*H*tiles;part+=blocks){{
const int top_row=(int)(tiles-1-part%tiles)*{rows},first_row=top_row+group*64;
const idx h=part/tiles%H,b=part/tiles/H,g=h/(H/G);
{}const int end={},count=(end+{KEYS}-1)/{KEYS},begin={};\n__syncthreads();",
            self.range(rows),
            match (self.bounds(), body.causal) {
                (Some(_), true) => format!("(int)lesser(range_end,max(0,min(S,top_row+{rows}+shift)))"),
                (Some(_), false) => "(int)range_end".to_owned(),
                (None, true) => format!("max(0,min(S,top_row+{rows}+shift))"),
                (None, false) => "S".to_owned(),
            },
            if self.bounds().is_some() { format!("(int)range_begin/{KEYS}") } else { "0".to_owned() }
        );
        if let Some(bounds) = self.bounds() {
            let [first, end] = texts.visible_keys(bounds);
            let _ = writeln!(
                out,
                "int begins[2],ends[2];
#pragma unroll\nfor(int half=0;half<2;++half){{const int row=first_row+warp*16+lane/4+half*8;const idx t=row<T?row:T-1;
begins[half]=(int){first};ends[half]=(int){end};}}
int latest=max(begins[0],begins[1]),fewest=min(ends[0],ends[1]);
#pragma unroll\nfor(int mask=4;mask<32;mask*=2){{latest=max(latest,__shfl_xor_sync(~0u,latest,mask));fewest=min(fewest,__shfl_xor_sync(~0u,fewest,mask));}}"
            );
        }
        let lines = threads / (width / CHUNK);
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int i=0;i<{};++i){{const int line=own_line+i*{lines};const bool inside=top_row+line<T;
const idx t=inside?top_row+line:0;
copy_chunk(shared+chunk/{CHUNKS}*{}+spot+i*{},b{}+{}+chunk*{CHUNK},inside);}}",
            rows / lines,
            rows * 128,
            lines * 128,
            body.q.buffer,
            texts.at(&body.q, &["b", "h", "t", "0"])
        );
        self.copy_tile(&mut out, "fetch_keys", &body.k, body.k_pages.as_ref(), lines);
        self.copy_tile(&mut out, "fetch_values", &body.v, body.v_pages.as_ref(), lines);
        let columns = width / 8;
        let _ = writeln!(
            out,
            "if(begin<count)fetch_keys(begin*{KEYS},k_tiles+begin%2*{tile});\ncopies_commit();
float o[{columns}][4]={{}},top[2]={{lowest,lowest}},total[2]={{0,0}},kept[2];\nunsigned p[{}][4];
if(begin<count){{",
            KEYS / 16
        );
        self.tiles(&mut out, rows);
        out.push_str("}\ncopies_wait<0>();\n__syncthreads();\n");
        self.finish(&mut out, rows);
        out.push_str("}\n");
        let pair = match self.dtype {
            DType::Bf16 => include_str!("pair_bf16.cu"),
            _ => include_str!("pair_f16.cu"),
        };
        let mut aligned = vec![body.q.buffer, body.k.buffer, body.v.buffer];
        aligned.extend(self.stores_chunks().then_some(body.out.buffer));
        let blocks = (&body.queries + (rows - 1)).floor_div(&Dim::from(rows));
        Body {
            functions: vec![include_str!("tensor.cu"), include_str!("softmax.cu"), include_str!("warpgroup.cu"), pair],
            threads: threads as u32,
            resident: if *width > 64 { 1 } else { 4 },
            block_bytes: Dim::from(query_bytes + 4 * tile),
            aligned,
            ..Body::new(out, Width::Wide, &body.batch * &body.heads * blocks)
        }
    }

    /// A function that copies a tile of keys or values from key `first` on; what is behind the last key is 0.
    fn copy_tile(&self, out: &mut String, name: &str, view: &Strided, pages: Option<&Pages>, lines: i64) {
        let _ = writeln!(
            out,
            "auto {name}=[&](int first,unsigned to){{
#pragma unroll\nfor(int i=0;i<{};++i){{const int row=first+own_line+i*{lines};const bool inside=row<S;const idx s=inside?row:0;",
            KEYS / lines
        );
        let at = self.key_position(out, view, pages);
        let _ = writeln!(
            out,
            "copy_chunk(to+chunk/{CHUNKS}*{PANEL}+spot+i*{},b{}+{at}+chunk*{CHUNK},inside);}}}};",
            lines * 128,
            view.buffer
        );
    }

    /// All tiles of keys. Products of one tile's scores and of the values of the one before are under way at once.
    fn tiles(&self, out: &mut String, rows: i64) {
        // Keys of the last tile.
        let last = match self.body.keys.as_const() {
            Some(keys) if !self.body.causal && self.bounds().is_none() && keys > 0 => {
                ((keys - 1).rem_euclid(KEYS) / 16 + 1) * 16
            }
            _ => KEYS,
        };
        let only = self.body.keys.as_const().is_some_and(|keys| keys <= KEYS);
        let ready = "copies_wait<0>();\nshow_to_tensor_cores();\n__syncthreads();\n";
        let tile = |out: &mut String, keys: i64, is_first: bool| {
            let _ = writeln!(
                out,
                "float s[{1}][4];\n{ready}if(tile+1<count)fetch_keys((tile+1)*{KEYS},k_tiles+(tile+1)%2*{0});
fetch_values(tile*{KEYS},v_tiles+tile%2*{0});\ncopies_commit();\nproducts_begin();",
                KEYS * self.width * 2,
                keys / 8
            );
            self.scores(out, keys, rows);
            out.push_str("products_commit();\n");
            if !is_first {
                self.add_values(out, KEYS, "tile-1");
                out.push_str("products_commit();\n");
            }
            let _ = writeln!(out, "products_wait<{}>();\n{}", i64::from(!is_first), settled("s", keys / 8));
            self.weights(out, keys);
            if !is_first {
                // Nothing changes where no row has found a larger score.
                let _ = writeln!(
                    out,
                    "products_wait<0>();\n{}if(__any_sync(~0u,kept[0]!=1.0f||kept[1]!=1.0f)){{
#pragma unroll\nfor(int j=0;j<{};++j)\n#pragma unroll\nfor(int c=0;c<4;++c)o[j][c]*=kept[c/2];}}",
                    settled("o", self.width / 8),
                    self.width / 8
                );
            }
            let _ = writeln!(
                out,
                "#pragma unroll\nfor(int part=0;part<{};++part)\n#pragma unroll\nfor(int i=0;i<4;++i)p[part][i]=pair(s[part*2+i/2][i%2*2],s[part*2+i/2][i%2*2+1]);",
                keys / 16
            );
        };
        out.push_str("{const int tile=begin;\n");
        tile(out, if only { last } else { KEYS }, true);
        out.push_str("}\n");
        if !only {
            let until = if last < KEYS { "count-1" } else { "count" };
            let _ = writeln!(out, "#pragma unroll 1\nfor(int tile=begin+1;tile<{until};++tile){{");
            tile(out, KEYS, false);
            out.push_str("}\n");
            if last < KEYS {
                out.push_str("{const int tile=count-1;\n");
                tile(out, last, false);
                out.push_str("}\n");
            }
        }
        let _ = writeln!(out, "{ready}products_begin();");
        self.add_values(out, last, "count-1");
        let _ = writeln!(out, "products_commit();\nproducts_wait<0>();\n{}", settled("o", self.width / 8));
    }

    /// The scores `s` of a tile's first `keys` keys.
    fn scores(&self, out: &mut String, keys: i64, rows: i64) {
        let left = format!("shared+part/4*{}+group*{PANEL}+part%4*32", rows * 128);
        let product = products_of_rows(self.kind(), "s", keys, self.width / 16, &left, "k_tile");
        let _ = writeln!(out, "{{const unsigned k_tile=k_tiles+tile%2*{};\n{product}}}", KEYS * self.width * 2);
    }

    /// Adds the values of the first `keys` keys of a tile, weighted by `p`, to `o`.
    fn add_values(&self, out: &mut String, keys: i64, tile: &str) {
        let sums = weighted_sums(self.kind(), "o", self.width, keys / 16, "p", "v_tile");
        let _ = writeln!(out, "{{const unsigned v_tile=v_tiles+({tile})%2*{};\n{sums}}}", KEYS * self.width * 2);
    }

    /// Makes weights of the scores of a tile's first `keys` keys. Weights are powers of two. Scores are scaled once the maximum has
    /// been subtracted, so that no rounding of large ones makes an exponent above 0; but where a mask is added, and where a larger
    /// product is not a larger score. A row that has seen no key yet subtracts 0 instead of its maximum.
    fn weights(&self, out: &mut String, keys: i64) {
        let Writer { body, texts, .. } = self;
        let number = |value: f64| scalar(Scalar::float(DType::F32, value));
        let scale = body.scale.as_f64();
        let each = |statement: &str| {
            format!(
                "#pragma unroll\nfor(int j=0;j<{};++j)\n#pragma unroll\nfor(int c=0;c<2;++c){statement}\n",
                keys / 8
            )
        };
        let seen = if self.bounds().is_some() { "j*8+c<visible&&j*8+c>=hidden" } else { "j*8+c<visible" };
        let _ = writeln!(out, "const int first=tile*{KEYS};");
        let rows = "const int row=first_row+warp*16+lane/4+half*8,t=row<T?row:T-1;";
        let own = if body.causal { "min(S,t+shift+1)" } else { "S" };
        let visible = match self.bounds() {
            Some(_) => {
                format!("const int visible=min({own},ends[half])-first-lane%4*2,hidden=begins[half]-first-lane%4*2;")
            }
            None => format!("const int visible={own}-first-lane%4*2;"),
        };
        let masked = match (self.adds(), self.keeps()) {
            (Some(mask), _) => {
                let value = texts.element(mask, &["b", "h", "t", "(first+j*8+lane%4*2+c)"]);
                each(&format!("{SCORE}={seen}?{SCORE}*{}+(float){value}:lowest;", number(scale)))
            }
            (None, Some(mask)) => {
                let value = texts.element(mask, &["b", "h", "t", "(first+j*8+lane%4*2+c)"]);
                each(&format!("if(!({seen}&&{value})){SCORE}=lowest;"))
            }
            (None, None) => each(&format!("if(!({seen})){SCORE}=lowest;")),
        };
        // A tile that all rows see has nothing to hide.
        let hidden = match (&body.mask, body.causal) {
            (Some(_), false) if self.bounds().is_some() => format!("if(first+{keys}>fewest||first<latest)"),
            (Some(_), _) => String::new(),
            (None, true) => format!("if(first+{keys}>min(S,first_row+shift+1))"),
            (None, false) => format!("if(first+{keys}>S)"),
        };
        let (before, exponent) = self.exponent();
        if let Some(before) = before {
            let _ = writeln!(
                out,
                "#pragma unroll\nfor(int half=0;half<2;++half)\n{}",
                each(&format!("{SCORE}*={before};"))
            );
        }
        let _ = writeln!(
            out,
            "{hidden}{{\n#pragma unroll\nfor(int half=0;half<2;++half){{{rows}{visible}\n{masked}}}}}
#pragma unroll\nfor(int half=0;half<2;++half){{\nfloat most[2]={{lowest,lowest}},sum[2]={{0,0}};
{}float next=max_or_nan(most[0],most[1]);
#pragma unroll\nfor(int mask=1;mask<4;mask*=2)next=max_or_nan(next,__shfl_xor_sync(~0u,next,mask));
next=max_or_nan(top[half],next);\nconst float base=next==lowest?0.0f:next;
kept[half]=power_of_two({});\ntop[half]=next;
{}total[half]=fmaf(total[half],kept[half],sum[0]+sum[1]);}}",
            each(&format!("most[c]=max_or_nan(most[c],{SCORE});")),
            exponent("top[half]"),
            each(&format!("{{const float weight=power_of_two({});{SCORE}=weight;sum[c]+=weight;}}", exponent(SCORE))),
        );
    }

    /// Whether a mask is added to scores, which are scaled before.
    fn adds_mask(&self) -> bool {
        self.adds().is_some()
    }

    /// The factor on scores that makes exponents of two of them, once they have been multiplied by what comes before.
    fn factor(&self) -> f64 {
        let scale = self.body.scale.as_f64() * LOG2_E;
        match self.adds_mask() {
            true => LOG2_E,
            false if scale > 0.0 => scale,
            false => 1.0,
        }
    }

    /// What scores are multiplied by before they are compared, and the exponent of a score where `base` is subtracted.
    fn exponent(&self) -> (Option<String>, impl Fn(&str) -> String + use<>) {
        let number = |value: f64| scalar(Scalar::float(DType::F32, value));
        let scale = self.body.scale.as_f64() * LOG2_E;
        let before = (!self.adds_mask() && self.factor() != scale).then(|| number(scale));
        let factor = number(self.factor());
        (before, move |score: &str| format!("({score}-base)*{factor}"))
    }

    /// Whether results leave in chunks of 16 bytes.
    fn stores_chunks(&self) -> bool {
        is_wide(&self.body.out)
    }

    /// Divides by the sums and stores the result, where `q` was in shared memory on the way if that makes whole chunks of it.
    fn finish(&self, out: &mut String, rows: i64) {
        let Writer { body, texts, dtype, width, .. } = self;
        let columns = width / 8;
        let number = |value: f64| scalar(Scalar::float(DType::F32, value));
        let chunks = self.stores_chunks();
        let place = match chunks {
            true => format!(
                "#pragma unroll\nfor(int j=0;j<{columns};++j)*(unsigned*)(own+j/{CHUNKS}*{}+chunk_at<{CHUNKS}>(line,j%{CHUNKS})+lane%4*4)=pair(o[j][half*2]/sum,o[j][half*2+1]/sum);",
                rows * 128
            ),
            false => format!(
                "if(t<T){{\n#pragma unroll\nfor(int j=0;j<{columns};++j)\n#pragma unroll\nfor(int c=0;c<2;++c){{const int d=j*8+lane%4*2+c;b{}[{}]={};}}}}",
                body.out.buffer,
                texts.at(&body.out, &["b", "h", "t", "d"]),
                narrowed(*dtype, "o[j][half*2+c]/sum")
            ),
        };
        let logsumexp = body.logsumexp.as_ref().map_or(String::new(), |view| {
            let value = match self.adds_mask() {
                true => "top[half]+logf(total[half])".to_owned(),
                false => {
                    format!("(top[half]*{}+log2f(total[half]))*{}", number(self.factor()), number(LN_2))
                }
            };
            let at = texts.at(view, &["b", "h", "t", "0"]);
            format!("if(lane%4==0&&t<T)b{}[{at}]=top[half]==lowest?lowest:{value};", view.buffer)
        });
        // No key at all gives 0.
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int half=0;half<2;++half){{
#pragma unroll\nfor(int mask=1;mask<4;mask*=2)total[half]+=__shfl_xor_sync(~0u,total[half],mask);
const int line=group*64+warp*16+lane/4+half*8;const idx t=top_row+line;
const bool none=top[half]==lowest;const float sum=none?1.0f:total[half];
if(none)\n#pragma unroll\nfor(int j=0;j<{columns};++j)o[j][half*2]=o[j][half*2+1]=0.0f;
{place}\n{logsumexp}}}"
        );
        if chunks {
            let across = width / CHUNK;
            let _ = writeln!(
                out,
                "__syncwarp();
#pragma unroll\nfor(int i=0;i<{};++i){{const int own_chunk=(i*32+lane)%{across},line=group*64+warp*16+(i*32+lane)/{across};const idx t=top_row+line;
if(t<T)*(Wide<unsigned,4>*)(b{}+{}+own_chunk*{CHUNK})=*(const Wide<unsigned,4>*)(own+own_chunk/{CHUNKS}*{}+chunk_at<{CHUNKS}>(line,own_chunk%{CHUNKS}));}}",
                16 * across / 32,
                body.out.buffer,
                texts.at(&body.out, &["b", "h", "t", "0"]),
                rows * 128
            );
        }
    }
}

/// Sets accumulators to the products of 64 rows at `left` with the `columns` rows of a tile, both in shared memory, over `parts` of 16
/// numbers.
pub(super) fn products_of_rows(kind: &str, to: &str, columns: i64, parts: i64, left: &str, tile: &str) -> String {
    let count = columns / 2;
    format!(
        "#pragma unroll\nfor(int part=0;part<{parts};++part)
asm volatile(\"{{.reg .pred more;setp.ne.b32 more,%{},0;wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{}}},%{count},%{},more,1,1,0,0;}}\"
:{}:\"l\"(matrix_at({left})),\"l\"(matrix_at({tile}+part/4*{PANEL}+part%4*32)),\"r\"(part));",
        count + 2,
        numbered(count),
        count + 1,
        fragments(to, count),
    )
}

/// Adds the rows of a tile in shared memory, `width` wide and 16 a part, weighted by short floats in registers, to accumulators.
pub(super) fn weighted_sums(kind: &str, to: &str, width: i64, parts: i64, weights: &str, tile: &str) -> String {
    let count = width / 2;
    let registers: Vec<String> = (0..4).map(|i| format!("\"r\"({weights}[part][{i}])")).collect();
    format!(
        "#pragma unroll\nfor(int part=0;part<{parts};++part)
asm volatile(\"wgmma.mma_async.sync.aligned.m64n{width}k16.f32.{kind}.{kind} {{{}}},{{%{},%{},%{},%{}}},%{},1,1,1,1;\"
:{}:{},\"l\"(matrix_at({tile}+part*2048)));",
        numbered(count),
        count,
        count + 1,
        count + 2,
        count + 3,
        count + 4,
        fragments(to, count),
        registers.join(",")
    )
}

/// The numbers of an instruction's operands.
fn numbered(count: i64) -> String {
    (0..count).map(|number| format!("%{number}")).collect::<Vec<_>>().join(",")
}

/// Accumulators as operands.
fn fragments(name: &str, count: i64) -> String {
    let operand = |number: i64| format!("\"+f\"({name}[{}][{}])", number / 4, number % 4);
    (0..count).map(operand).collect::<Vec<_>>().join(",")
}

/// Statements after which accumulators may be read.
pub(super) fn settled(name: &str, count: i64) -> String {
    format!(
        "#pragma unroll\nfor(int j=0;j<{count};++j)\n#pragma unroll\nfor(int c=0;c<4;++c)asm volatile(\"\":\"+f\"({name}[j][c])::\"memory\");\n"
    )
}
