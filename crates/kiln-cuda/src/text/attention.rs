//! Attention of any shape: a warp a query row, online softmax over 32 keys at a time.

use super::index::{Names, Width};
use super::value::{float_suffix, load, store, value_type};
use super::{Body, ceil_div};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{AttentionBody, Kernel, Pages, Strided};
use std::fmt::Write;

/// Query rows of a block.
const ROWS: i64 = 4;

/// Sizes and views of a kernel's buffers as expressions.
pub(super) struct Texts<'a> {
    kernel: &'a Kernel,
    names: Names,
}

impl Texts<'_> {
    pub(super) fn new(kernel: &Kernel) -> Texts<'_> {
        Texts { kernel, names: Names::of_sizes(&kernel.sizes) }
    }

    pub(super) fn text(&self, dim: &Dim) -> String {
        self.names.text(dim, Width::Wide)
    }

    /// The position of an element of a view, given its indices.
    pub(super) fn at(&self, view: &Strided, indices: &[&str]) -> String {
        let steps = view.strides.iter().zip(indices).map(|(stride, index)| format!("+{index}*{}", self.text(stride)));
        format!("{}{}", self.text(&view.offset), steps.collect::<String>())
    }

    /// An element of a view, given its indices.
    pub(super) fn element(&self, view: &Strided, indices: &[&str]) -> String {
        load(self.kernel.buffers[view.buffer].dtype, view.buffer, &self.at(view, indices))
    }

    /// Bounds of the visible keys, if a mask is of that kind.
    pub(super) fn bounds<'m>(&self, mask: Option<&'m Strided>) -> Option<&'m Strided> {
        mask.filter(|mask| self.kernel.buffers[mask.buffer].dtype == DType::I64)
    }

    /// The first key that row `t` sees, and the end of those it sees, within the keys that there are.
    pub(super) fn visible_keys(&self, bounds: &Strided) -> [String; 2] {
        ["0", "1"].map(|which| format!("lesser(S,greater(0,{}))", self.element(bounds, &["b", "h", "t", which])))
    }

    /// Sizes (batch, heads, key/value heads, queries, keys, width, width of values), and the memory of a warp of this name, `per_row`
    /// elements.
    pub(super) fn begin(&self, sizes: [&Dim; 7], ty: &str, name: &str, per_row: &str) -> String {
        let [b, h, g, t, s, d, e] = sizes.map(|size| self.text(size));
        format!(
            "const idx B={b},H={h},G={g},T={t},S={s},D={d},E={e};
extern __shared__ __align__(16) unsigned char own[];
unsigned char* const memory=workspace?workspace+blockIdx.x*workspace_bytes:own;
const int warp=threadIdx.x/32,lane=threadIdx.x%32;
{ty}* const {name}=({ty}*)memory+warp*({per_row});
const {ty} lowest=-(({ty})1/({ty})0);\nconst idx shift=S-T;\n"
        )
    }
}

pub(super) fn generate(kernel: &Kernel, body: &AttentionBody) -> Result<Body, String> {
    let texts = Texts::new(kernel);
    let text = |dim: &Dim| texts.text(dim);
    let dtype = kernel.buffers[body.q.buffer].dtype;
    let acc = dtype.compute_type();
    let (ty, f) = (value_type(acc), float_suffix(acc));
    let at = |view: &Strided, indices: &[&str]| texts.at(view, indices);
    let element = |view: &Strided, indices: &[&str]| texts.element(view, indices);
    let mut out = String::new();
    let sizes = [&body.batch, &body.heads, &body.kv_heads, &body.queries, &body.keys, &body.width, &body.value_width];
    out.push_str(&texts.begin(sizes, ty, "query", "D+E"));
    let _ = writeln!(out, "{ty}* const sum=query+D;");
    for pages in [&body.k_pages, &body.v_pages].into_iter().flatten() {
        out.push_str(&check_pages(&texts, pages));
    }
    let rows = &body.batch * &body.heads * &body.queries;
    let _ = writeln!(
        out,
        "#pragma unroll 1
for(idx row=(idx)block*{ROWS}+warp;row<{};row+=(idx)blocks*{ROWS}){{
const idx t=row%T,h=row/T%H,b=row/T/H,g=h/(H/G);
__syncwarp();
for(idx d=lane;d<D;d+=32)query[d]={};
for(idx e=lane;e<E;e+=32)sum[e]=0;
__syncwarp();
{ty} top=lowest,total=0;",
        text(&rows),
        element(&body.q, &["b", "h", "t", "d"])
    );
    // A row sees no key beyond its own place.
    let own = if body.causal { "(t+shift+1<S?t+shift+1:S)" } else { "S" };
    let (begin, end) = match texts.bounds(body.mask.as_ref()) {
        Some(bounds) => {
            let [first, end] = texts.visible_keys(bounds);
            (first, format!("lesser({own},{end})"))
        }
        None => ("0".to_owned(), own.to_owned()),
    };
    let _ = writeln!(
        out,
        "const idx end={end};\nfor(idx first={begin};first<end;first+=32){{\nconst idx s=first+lane;\n{ty} score=lowest;"
    );
    out.push_str("if(s<end){\n");
    page(&mut out, &texts, body.k_pages.as_ref(), "ks", "kp");
    let key = offset_by_page(&element(&body.k, &["b_k", "g", "ks", "d"]), body.k.buffer, body.k_pages.is_some(), "kp");
    let _ = writeln!(
        out,
        "{}{ty} dot=0;\nfor(idx d=0;d<D;++d)dot=fma{f}(query[d],{key},dot);\nscore=dot*{};",
        batch_name("b_k", body.k_pages.is_some()),
        super::value::scalar(body.scale.cast(acc))
    );
    if let Some(mask) = body.mask.as_ref().filter(|mask| kernel.buffers[mask.buffer].dtype != DType::I64) {
        let value = element(mask, &["b", "h", "t", "s"]);
        let _ = match kernel.buffers[mask.buffer].dtype {
            DType::Bool => writeln!(out, "if(!{value})score=lowest;"),
            _ => writeln!(out, "score+=({ty}){value};"),
        };
    }
    let _ = writeln!(
        out,
        "}}\n{ty} most=score;\nfor(int mask=16;mask>0;mask/=2)most=larger(most,__shfl_xor_sync(~0u,most,mask));
const {ty} next=larger(top,most);
const {ty} kept=top==lowest?({ty})0:exp{f}(top-next),p=score==lowest?({ty})0:exp{f}(score-next);
{ty} part=p;\nfor(int mask=16;mask>0;mask/=2)part+=__shfl_xor_sync(~0u,part,mask);
total=total*kept+part;\ntop=next;
const int keys=end-first<32?(int)(end-first):32;
for(idx e=lane;e<E;e+=32)sum[e]*=kept;
for(int j=0;j<keys;++j){{\nconst {ty} weight=__shfl_sync(~0u,p,j);\nconst idx s=first+j;"
    );
    page(&mut out, &texts, body.v_pages.as_ref(), "vs", "vp");
    let value =
        offset_by_page(&element(&body.v, &["b_v", "g", "vs", "e"]), body.v.buffer, body.v_pages.is_some(), "vp");
    // A key that is not seen adds nothing, whatever its value is.
    let _ = writeln!(
        out,
        "{}for(idx e=lane;e<E;e+=32)sum[e]=fma{f}(weight,{value},sum[e]);\n}}\n}}",
        batch_name("b_v", body.v_pages.is_some()),
    );
    let result = store(dtype, body.out.buffer, &at(&body.out, &["b", "h", "t", "e"]), "result");
    let logsumexp = body.logsumexp.as_ref().map_or(String::new(), |view| {
        let result = store(acc, view.buffer, &at(view, &["b", "h", "t", "0"]), "result");
        format!("if(lane==0){{const {ty} result=top==lowest?lowest:top+log{f}(total);{result}}}\n")
    });
    let _ = writeln!(
        out,
        "for(idx e=lane;e<E;e+=32){{const {ty} result=top==lowest?({ty})0:sum[e]/total;{result}}}\n{logsumexp}}}"
    );
    let bytes = if acc == DType::F64 { 8 } else { 4 };
    Ok(Body {
        threads: (ROWS * 32) as u32,
        block_bytes: (&body.width + &body.value_width) * (ROWS * bytes),
        ..Body::new(out, Width::Wide, ceil_div(&rows, ROWS))
    })
}

/// The batch index of keys or values: pages have none.
fn batch_name(name: &str, paged: bool) -> String {
    format!("const idx {name}={};\n", if paged { "0" } else { "b" })
}

/// Moves a load by the page's place.
fn offset_by_page(element: &str, buffer: usize, paged: bool, page: &str) -> String {
    if paged { element.replace(&format!("b{buffer}[("), &format!("b{buffer}[{page}+(")) } else { element.to_owned() }
}

/// Where key or value `s` is: its row, and the place of its page.
fn page(out: &mut String, texts: &Texts<'_>, pages: Option<&Pages>, row: &str, place: &str) {
    let Some(pages) = pages else {
        let _ = writeln!(out, "const idx {row}=s;");
        return;
    };
    let (length, stride) = (texts.text(&pages.length), texts.text(&pages.stride));
    let entry = texts.element(&pages.table, &["b", &format!("(s/{length})")]);
    let _ = writeln!(
        out,
        "const idx {row}=s%{length},{place}_n=(idx){entry},{place}=({place}_n<0||{place}_n>={}?0:{place}_n)*{stride};",
        texts.text(&pages.count)
    );
}

/// Every entry of the table has to name a page.
pub(super) fn check_pages(texts: &Texts<'_>, pages: &Pages) -> String {
    let entry = texts.element(&pages.table, &["(i/entries)", "(i%entries)"]);
    format!(
        "{{const idx entries=(S+{0}-1)/{0};\nfor(idx i=(idx)block*blockDim.x+threadIdx.x;i<B*entries;i+=(idx)blocks*blockDim.x)check_index({entry},{1},fault,site);}}\n",
        texts.text(&pages.length),
        texts.text(&pages.count)
    )
}
