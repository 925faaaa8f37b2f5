//! Gradients of attention by warpgroups (`wgmma`, compute capability 9.0): four warps own 64 rows of queries or of keys and go over
//! tiles of 64 rows of the others, as `backward.rs` has it. All four products read their right operands from shared memory.
//!
//! ```text
//!  S = a₁·b₁ᵀ, dP = a₂·b₂ᵀ ──▶ P, while dP is under way ──▶ dS = P∘(dP − delta) ──▶ Σ₁ += dS·b₁, Σ₂ += P·b₂
//! ```

use super::Body;
use super::backward::{KEYS, QUERIES, ROWS, Writer};
use super::flash::{CHUNKS, PANEL, products_of_rows, settled, weighted_sums};
use super::index::Width;
use super::prefill::{CHUNK, is_wide};
use super::value::{narrowed, scalar};
use kiln_ir::{DType, Dim, Scalar};
use kiln_kernels::kernel::Strided;
use std::f64::consts::LOG2_E;
use std::fmt::Write;

const THREADS: i64 = 128;
/// Bytes of the logarithms and deltas of a tile's rows.
const ROW_BYTES: i64 = 2 * ROWS * 4;

impl Writer<'_> {
    /// The body by warpgroups, for heads of 64 or 128 elements.
    pub(super) fn by_warpgroups(&self) -> Body {
        let Writer { body, of, texts, width, by_keys, .. } = self;
        let text = |dim: &Dim| texts.text(dim);
        let tile = ROWS * width * 2;
        let (own_rows, other_rows) = if *by_keys { ("S", "T") } else { ("T", "S") };
        let (batch, heads, kv_heads) = (text(&body.batch), text(&body.heads), text(&body.kv_heads));
        let mut out = format!(
            "const idx B={batch},H={heads},G={kv_heads};
const int T=(int)({}),S=(int)({}),shift=S-T,tiles=({own_rows}+{ROWS}-1)/{ROWS},other_tiles=({other_rows}+{ROWS}-1)/{ROWS};
extern __shared__ __align__(1024) unsigned char own[];
const unsigned shared=(unsigned)__cvta_generic_to_shared(own),stages=shared+{};
const int lane=threadIdx.x%32,warp=threadIdx.x/32,own_line=threadIdx.x/{chunks},chunk=threadIdx.x%{chunks};
const unsigned spot=chunk/{CHUNKS}*{PANEL}+chunk_at<{CHUNKS}>(own_line,chunk%{CHUNKS});\n",
            text(&body.queries),
            text(&body.keys),
            2 * tile,
            chunks = width / CHUNK,
        );
        // Those with the most to do come first.
        let place = match (by_keys, body.causal) {
            (true, _) => "const int top_row=(int)(part%tiles)*64;const idx g=part/tiles%G,b=part/tiles/G;",
            (false, true) => {
                "const int top_row=(int)(tiles-1-part%tiles)*64;const idx h=part/tiles%H,b=part/tiles/H,g=h/(H/G);"
            }
            (false, false) => {
                "const int top_row=(int)(part%tiles)*64;const idx h=part/tiles%H,b=part/tiles/H,g=h/(H/G);"
            }
        };
        let groups = if *by_keys { "G" } else { "H" };
        let _ = writeln!(out, "for(idx part=block;part<B*{groups}*tiles;part+=blocks){{\n{place}\n__syncthreads();");
        let (queries, keys) = ([(&body.q, &QUERIES), (&of.gradient, &QUERIES)], [(&body.k, &KEYS), (&of.v, &KEYS)]);
        let (own, others) = if *by_keys { (keys, queries) } else { (queries, keys) };
        self.copy_rows(&mut out, own, "shared", "top_row", own_rows, if *by_keys { "s" } else { "t" });
        // The tiles of the others that own rows see, of all heads that share keys one after another.
        out.push_str(match (by_keys, body.causal) {
            (true, true) => {
                "const int from=min(other_tiles,max(0,top_row-shift)/64),span=other_tiles-from,count=span*(int)(H/G);\n"
            }
            (true, false) => "const int from=0,span=other_tiles,count=span*(int)(H/G);\n",
            (false, true) => "const int count=min(other_tiles,(max(0,top_row+64+shift)+63)/64);\n",
            (false, false) => "const int count=other_tiles;\n",
        });
        let head = match by_keys {
            true => "const idx h=g*(H/G)+i/span;const int first=(from+i%span)*64;",
            false => "const int first=i*64;",
        };
        let _ = writeln!(out, "auto fetch=[&](int i,unsigned to,unsigned rows){{{head}");
        self.copy_rows(&mut out, others, "to", "first", other_rows, if *by_keys { "t" } else { "s" });
        let rows = format!("stages+{}", 4 * tile);
        if *by_keys {
            let _ = writeln!(
                out,
                "const int line=threadIdx.x%64;const bool inside=first+line<T;const idx t=inside?first+line:0;
copy_word(rows+threadIdx.x*4,threadIdx.x<64?b{}+{}:b{}+{},inside);",
                of.logsumexp.buffer,
                texts.at(&of.logsumexp, &QUERIES),
                of.delta.buffer,
                texts.at(&of.delta, &QUERIES)
            );
        }
        let columns = width / 8;
        let _ = writeln!(out, "}};\nif(0<count)fetch(0,stages,{rows});\ncopies_commit();");
        for (sum, ..) in self.results() {
            let _ = writeln!(out, "float {sum}[{columns}][4]={{}};");
        }
        if !by_keys {
            let _ = writeln!(
                out,
                "float start[2],delta[2];
#pragma unroll\nfor(int half=0;half<2;++half){{const int row=top_row+warp*16+lane/4+half*8;const idx t=row<T?row:T-1;
start[half]={}*{};delta[half]={};}}",
                texts.element(&of.logsumexp, &QUERIES),
                scalar(Scalar::float(DType::F32, LOG2_E)),
                texts.element(&of.delta, &QUERIES)
            );
        }
        let _ = writeln!(
            out,
            "#pragma unroll 1\nfor(int i=0;i<count;++i){{{head}
copies_wait<0>();\nshow_to_tensor_cores();\n__syncthreads();
const unsigned tile1=stages+i%2*{0},tile2=tile1+{tile};
if(i+1<count)fetch(i+1,stages+(i+1)%2*{0},{rows}+(i+1)%2*{ROW_BYTES});\ncopies_commit();",
            2 * tile
        );
        if *by_keys {
            let _ = writeln!(out, "const float* const others=(const float*)(own+{}+i%2*{ROW_BYTES});", 6 * tile);
        }
        self.tile_by_warpgroups(&mut out);
        out.push_str("}\ncopies_wait<0>();\n__syncthreads();\n");
        self.store_chunks(&mut out);
        out.push_str("}\n");
        let own_tiles = match by_keys {
            true => &body.batch * &body.kv_heads * (&body.keys + (ROWS - 1)).floor_div(&Dim::from(ROWS)),
            false => &body.batch * &body.heads * (&body.queries + (ROWS - 1)).floor_div(&Dim::from(ROWS)),
        };
        let pair = match self.dtype {
            DType::Bf16 => include_str!("pair_bf16.cu"),
            _ => include_str!("pair_f16.cu"),
        };
        let mut aligned: Vec<usize> = [&body.q, &body.k, &of.v, &of.gradient].map(|view| view.buffer).to_vec();
        aligned.extend(self.results().into_iter().filter(|(_, view, _)| is_wide(view)).map(|(_, view, _)| view.buffer));
        let functions = [include_str!("tensor.cu"), include_str!("softmax.cu"), include_str!("word.cu")];
        Body {
            functions: functions.into_iter().chain([include_str!("warpgroup.cu"), pair]).collect(),
            threads: THREADS as u32,
            block_bytes: Dim::from(6 * tile + 2 * ROW_BYTES),
            resident: match (*width <= 64, by_keys) {
                (true, false) => 4,
                (true, true) => 3,
                (false, _) => 2,
            },
            aligned,
            ..Body::new(out, Width::Wide, own_tiles)
        }
    }

    /// Copies 64 rows of two views, one tile behind the other; what is behind the last row is 0.
    fn copy_rows(
        &self,
        out: &mut String,
        views: [(&Strided, &[&str; 4]); 2],
        to: &str,
        first: &str,
        rows: &str,
        row: &str,
    ) {
        let lines = THREADS / (self.width / CHUNK);
        let _ = writeln!(
            out,
            "#pragma unroll\nfor(int copy=0;copy<{};++copy){{const int line={first}+own_line+copy*{lines};const bool inside=line<{rows};const idx {row}=inside?line:0;",
            ROWS / lines
        );
        for ((view, indices), offset) in views.into_iter().zip([0, ROWS * self.width * 2]) {
            let _ = writeln!(
                out,
                "copy_chunk({to}+{offset}+spot+copy*{},b{}+{}+chunk*{CHUNK},inside);",
                lines * 128,
                view.buffer,
                self.texts.at(view, indices)
            );
        }
        out.push_str("}\n");
    }

    /// One tile of the others.
    fn tile_by_warpgroups(&self, out: &mut String) {
        let (has_slopes, has_values) = (self.has_slopes(), self.of.values.is_some());
        let fragments = ROWS / 8;
        let tile = ROWS * self.width * 2;
        let _ = writeln!(out, "float s[{fragments}][4];\nunsigned p[{}][4];\nproducts_begin();", ROWS / 16);
        self.product(out, "s", 0, "tile1");
        if has_slopes {
            let _ = writeln!(out, "products_commit();\nfloat d[{fragments}][4];");
            self.product(out, "d", tile, "tile2");
        }
        let _ = writeln!(out, "products_commit();\nproducts_wait<{}>();", i64::from(has_slopes));
        out.push_str(&settled("s", fragments));
        let packed = |from: &str, to: &str| {
            format!(
                "#pragma unroll\nfor(int part=0;part<{};++part)\n#pragma unroll\nfor(int i=0;i<4;++i){to}[part][i]=pair({from}[part*2+i/2][i%2*2],{from}[part*2+i/2][i%2*2+1]);\n",
                ROWS / 16
            )
        };
        self.weights_of_tile(out);
        if has_values {
            out.push_str(&packed("s", "p"));
        }
        if has_slopes {
            let _ = writeln!(out, "products_wait<0>();\n{}unsigned q[{}][4];", settled("d", fragments), ROWS / 16);
            self.slopes_of_tile(out);
            out.push_str(&packed("d", "q"));
        }
        out.push_str("products_begin();\n");
        if has_values {
            self.add(out, "sum2", "p", "tile2");
        }
        if has_slopes {
            self.add(out, "sum1", "q", "tile1");
        }
        out.push_str("products_commit();\nproducts_wait<0>();\n");
        for (sum, ..) in self.results() {
            out.push_str(&settled(sum, self.width / 8));
        }
    }

    /// Multiplies own rows at an offset in shared memory with the rows of a tile.
    fn product(&self, out: &mut String, to: &str, offset: i64, tile: &str) {
        let left = format!("shared+{offset}+part/4*{PANEL}+part%4*32");
        let _ = writeln!(out, "{}", products_of_rows(self.kind(), to, ROWS, self.width / 16, &left, tile));
    }

    /// Adds the rows of a tile, weighted by short floats in registers.
    fn add(&self, out: &mut String, to: &str, weights: &str, tile: &str) {
        let _ = writeln!(out, "{}", weighted_sums(self.kind(), to, self.width, ROWS / 16, weights, tile));
    }

    /// Statements for each element of a tile; those after `x` know its column.
    fn each_element(&self, statement: &str) -> String {
        let columns = match self.by_keys {
            true => "const float start=others[x+lane%4*2]*LOG2_E,delta=others[64+x+lane%4*2];",
            false => "",
        };
        let columns = columns.replace("LOG2_E", &scalar(Scalar::float(DType::F32, LOG2_E)));
        format!(
            "#pragma unroll\nfor(int j=0;j<{};++j)\n#pragma unroll\nfor(int c=0;c<2;++c){{const int x=j*8+c;{columns}
#pragma unroll\nfor(int half=0;half<2;++half){{{statement}}}}}\n",
            ROWS / 8
        )
    }

    /// Makes weights of the scores `s`, which are powers of two; of those that are hidden 0.
    fn weights_of_tile(&self, out: &mut String) {
        let Writer { body, texts, .. } = self;
        let number = |value: f64| scalar(Scalar::float(DType::F32, value));
        let scale = number(body.scale.as_f64() * LOG2_E);
        let start = if self.by_keys { "start" } else { "start[half]" };
        let (row, bound) = ("const int own_row=top_row+warp*16+lane/4+half*8;", if self.by_keys { "S" } else { "T" });
        let (t, s) = match self.by_keys {
            true => ("(first+x+lane%4*2)", "own_row"),
            false => ("own_row", "(first+x+lane%4*2)"),
        };
        let seen = match (self.by_keys, body.causal) {
            (true, true) => "const int at=first+x+lane%4*2;bool seen=at<T&&own_row<=at+shift;",
            (true, false) => "bool seen=first+x+lane%4*2<T;",
            (false, true) => "const int at=first+x+lane%4*2;bool seen=at<S&&at<=own_row+shift;",
            (false, false) => "bool seen=first+x+lane%4*2<S;",
        };
        let plain = format!("power_of_two(fmaf(s[j][half*2+c],{scale},-{start}))");
        let Some(mask) = &body.mask else {
            let hides = self.hides();
            let all = self.each_element(&format!("s[j][half*2+c]={plain};"));
            let some = format!(
                "if({hides}){{\n#pragma unroll\nfor(int j=0;j<{};++j)\n#pragma unroll\nfor(int c=0;c<2;++c)\n#pragma unroll\nfor(int half=0;half<2;++half){{const int x=j*8+c;{row}{seen}if(!seen)s[j][half*2+c]=0.0f;}}}}\n",
                ROWS / 8
            );
            let _ = write!(out, "{all}{some}");
            return;
        };
        let given = texts.element(mask, &["b", "h", t, s]);
        let log2_e = number(LOG2_E);
        let statement = match self.keeps() {
            Some(_) => format!("{row}{seen}seen=seen&&own_row<{bound}&&{given};s[j][half*2+c]=seen?{plain}:0.0f;"),
            // A score of −∞ is hidden, whatever is subtracted.
            None => format!(
                "{row}{seen}float added=0.0f;if(seen&&own_row<{bound})added=(float){given}*{log2_e};
const float score=fmaf(s[j][half*2+c],{scale},added);s[j][half*2+c]=seen&&score!=__int_as_float(0xff800000)?power_of_two(score-{start}):0.0f;"
            ),
        };
        out.push_str(&self.each_element(&statement));
    }

    /// Whether some element of a tile may be hidden: a tile that all own rows see has nothing to hide.
    fn hides(&self) -> &'static str {
        match (&self.body.mask, self.by_keys, self.body.causal) {
            (Some(_), ..) => "true",
            (None, true, true) => "first+64>T||top_row+63>first+shift",
            (None, true, false) => "first+64>T",
            (None, false, true) => "first+64>S||first+63>top_row+shift",
            (None, false, false) => "first+64>S",
        }
    }

    /// Makes slopes of `d`, given weights in `s`; of those that are hidden 0, whatever their values are.
    fn slopes_of_tile(&self, out: &mut String) {
        if self.by_keys {
            // Beside two sums there are no registers for another pass.
            out.push_str(
                &self
                    .each_element("const float p=s[j][half*2+c];d[j][half*2+c]=p==0.0f?0.0f:p*(d[j][half*2+c]-delta);"),
            );
            return;
        }
        let _ = write!(
            out,
            "{}if({}){{\n#pragma unroll\nfor(int j=0;j<{};++j)\n#pragma unroll\nfor(int c=0;c<4;++c)if(s[j][c]==0.0f)d[j][c]=0.0f;}}\n",
            self.each_element("d[j][half*2+c]=s[j][half*2+c]*(d[j][half*2+c]-delta[half]);"),
            self.hides(),
            ROWS / 8
        );
    }

    /// Stores the sums: through shared memory, where own rows were, if that makes whole chunks of them.
    fn store_chunks(&self, out: &mut String) {
        let (row, rows) = if self.by_keys { ("s", "S") } else { ("t", "T") };
        let (columns, across) = (self.width / 8, self.width / CHUNK);
        let scale = scalar(Scalar::float(DType::F32, self.body.scale.as_f64()));
        for (number, (sum, view, indices)) in self.results().into_iter().enumerate() {
            let factor = if sum == "sum1" { format!("*{scale}") } else { String::new() };
            let own_row = format!("const int line=warp*16+lane/4+half*8;const idx {row}=top_row+line;");
            if !is_wide(view) {
                let _ = writeln!(
                    out,
                    "#pragma unroll\nfor(int half=0;half<2;++half){{{own_row}
if({row}<{rows}){{\n#pragma unroll\nfor(int j=0;j<{columns};++j)\n#pragma unroll\nfor(int c=0;c<2;++c){{const int d=j*8+lane%4*2+c;b{}[{}]={};}}}}}}",
                    view.buffer,
                    self.texts.at(view, &indices),
                    narrowed(self.dtype, &format!("{sum}[j][half*2+c]{factor}"))
                );
                continue;
            }
            let offset = number as i64 * ROWS * self.width * 2;
            let [first, second, third, _] = indices;
            let _ = writeln!(
                out,
                "#pragma unroll\nfor(int half=0;half<2;++half){{const int line=warp*16+lane/4+half*8;
#pragma unroll\nfor(int j=0;j<{columns};++j)*(unsigned*)(own+{offset}+j/{CHUNKS}*{PANEL}+chunk_at<{CHUNKS}>(line,j%{CHUNKS})+lane%4*4)=pair({sum}[j][half*2]{factor},{sum}[j][half*2+1]{factor});}}
__syncwarp();
#pragma unroll\nfor(int i=0;i<{};++i){{const int own_chunk=(i*32+lane)%{across},line=warp*16+(i*32+lane)/{across};const idx {row}=top_row+line;
if({row}<{rows})*(Wide<unsigned,4>*)(b{}+{}+own_chunk*{CHUNK})=*(const Wide<unsigned,4>*)(own+{offset}+own_chunk/{CHUNKS}*{PANEL}+chunk_at<{CHUNKS}>(line,own_chunk%{CHUNKS}));}}",
                16 * across / 32,
                view.buffer,
                self.texts.at(view, &[first, second, third, "0"])
            );
        }
    }
}
