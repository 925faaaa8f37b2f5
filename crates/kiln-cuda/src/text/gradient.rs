//! Parts of the backward direction of attention, of any shape: a warp a row.
//!
//! ```text
//!  logsumexp        a query row goes over the keys, 32 at a time
//!  of queries       a query row: ds = p ∘ (gradient·v − delta) of 32 keys, then Σ ds·k
//!  of keys, values  a key row goes over the queries of all heads that share it: Σ ds·q, Σ p·gradient
//! ```

use super::attention::Texts;
use super::index::Width;
use super::value::{float_suffix, scalar, store, value_type};
use super::{Body, ceil_div};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{AttentionBackwardBody, AttentionGradients, AttentionPart, Kernel, Strided};
use std::fmt::Write;

/// Rows of a block.
const ROWS: i64 = 4;

pub(super) fn generate(kernel: &Kernel, body: &AttentionBackwardBody) -> Result<Body, String> {
    let writer = Writer::new(kernel, body);
    match &body.part {
        AttentionPart::Logsumexp { out } => Ok(writer.logsumexp(out)),
        AttentionPart::Gradients(of) if of.queries.is_some() && (of.keys.is_some() || of.values.is_some()) => {
            Err("gradients of queries and keys in one kernel".to_owned())
        }
        AttentionPart::Gradients(of) => Ok(writer.gradients(of)),
    }
}

struct Writer<'a> {
    kernel: &'a Kernel,
    body: &'a AttentionBackwardBody,
    texts: Texts<'a>,
    dtype: DType,
    /// The type that is computed in.
    acc: DType,
}

impl<'a> Writer<'a> {
    fn new(kernel: &'a Kernel, body: &'a AttentionBackwardBody) -> Writer<'a> {
        let dtype = kernel.buffers[body.q.buffer].dtype;
        Writer { kernel, body, texts: Texts::new(kernel), dtype, acc: dtype.compute_type() }
    }

    /// Sizes, and the memory of a warp: `per_row` elements.
    fn begin(&self, value_width: &Dim, per_row: &str) -> String {
        let body = self.body;
        let sizes = [&body.batch, &body.heads, &body.kv_heads, &body.queries, &body.keys, &body.width, value_width];
        self.texts.begin(sizes, value_type(self.acc), "row_memory", per_row)
    }

    /// Statements that make `score` of `dot`, the product of query `t` of head `h` and key `s`.
    fn score(&self) -> String {
        let ty = value_type(self.acc);
        let mut out = format!("{ty} score=dot*{};\n", scalar(self.body.scale.cast(self.acc)));
        if let Some(mask) = &self.body.mask {
            let value = self.texts.element(mask, &["b", "h", "t", "s"]);
            let _ = match self.kernel.buffers[mask.buffer].dtype {
                DType::Bool => writeln!(out, "if(!{value})score=lowest;"),
                _ => writeln!(out, "score+=({ty}){value};"),
            };
        }
        out
    }

    fn finish(&self, out: String, rows: &Dim, per_row: Dim) -> Body {
        let bytes = if self.acc == DType::F64 { 8 } else { 4 };
        Body {
            threads: (ROWS * 32) as u32,
            block_bytes: per_row * (ROWS * bytes),
            ..Body::new(out, Width::Wide, ceil_div(rows, ROWS))
        }
    }

    fn logsumexp(&self, to: &Strided) -> Body {
        let Writer { body, texts, acc, .. } = self;
        let (ty, f) = (value_type(*acc), float_suffix(*acc));
        let rows = &body.batch * &body.heads * &body.queries;
        let mut out = self.begin(&Dim::from(0), "D");
        let end = if body.causal { "(t+shift+1<S?t+shift+1:S)" } else { "S" };
        let _ = writeln!(
            out,
            "#pragma unroll 1
for(idx row=(idx)block*{ROWS}+warp;row<{};row+=(idx)blocks*{ROWS}){{
const idx t=row%T,h=row/T%H,b=row/T/H,g=h/(H/G);
__syncwarp();
for(idx d=lane;d<D;d+=32)row_memory[d]={};
__syncwarp();
{ty} top=lowest,total=0;
const idx end={end};
for(idx s=lane;s<end;s+=32){{
{ty} dot=0;\nfor(idx d=0;d<D;++d)dot=fma{f}(row_memory[d],{},dot);
{}const {ty} next=larger(top,score);
if(next!=lowest){{total=total*(top==lowest?({ty})0:exp{f}(top-next))+exp{f}(score-next);top=next;}}
}}
{ty} most=top;\nfor(int mask=16;mask>0;mask/=2)most=larger(most,__shfl_xor_sync(~0u,most,mask));
total=top==lowest?({ty})0:total*exp{f}(top-most);
for(int mask=16;mask>0;mask/=2)total+=__shfl_xor_sync(~0u,total,mask);
if(lane==0){{const {ty} result=most==lowest?lowest:most+log{f}(total);{}}}
}}",
            texts.text(&rows),
            texts.element(&body.q, &["b", "h", "t", "d"]),
            texts.element(&body.k, &["b", "g", "s", "d"]),
            self.score(),
            store(*acc, to.buffer, &texts.at(to, &["b", "h", "t", "0"]), "result")
        );
        self.finish(out, &rows, body.width.clone())
    }

    /// A row of queries or keys, and 32 rows of the others at a time: `near` and `far` are the row's own elements of q or k and
    /// of gradient or v.
    fn gradients(&self, of: &AttentionGradients) -> Body {
        let Writer { body, texts, dtype, acc, .. } = self;
        let (ty, f) = (value_type(*acc), float_suffix(*acc));
        let by_keys = of.queries.is_none();
        let slopes = of.queries.is_some() || of.keys.is_some();
        let (queries, keys) = (["b", "h", "t", "d"], ["b", "g", "s", "d"]);
        let (outputs, values) = (["b", "h", "t", "e"], ["b", "g", "s", "e"]);
        let element = |view: &Strided, at: &[&str]| texts.element(view, at);
        let (own, own_wide, other, other_wide) = match by_keys {
            true => (
                element(&body.k, &keys),
                element(&of.v, &values),
                element(&body.q, &queries),
                element(&of.gradient, &outputs),
            ),
            false => (
                element(&body.q, &queries),
                element(&of.gradient, &outputs),
                element(&body.k, &keys),
                element(&of.v, &values),
            ),
        };
        let (rows, place) = match by_keys {
            true => (&body.batch * &body.kv_heads * &body.keys, "const idx s=row%S,g=row/S%G,b=row/S/G;"),
            false => (&body.batch * &body.heads * &body.queries, "const idx t=row%T,h=row/T%H,b=row/T/H,g=h/(H/G);"),
        };
        let mut out = self.begin(&of.value_width, "2*(D+E)");
        let _ = writeln!(
            out,
            "{ty}* const near=row_memory;\n{ty}* const far=near+D;\n{ty}* const sum=far+E;\n{ty}* const wide_sum=sum+D;
#pragma unroll 1
for(idx row=(idx)block*{ROWS}+warp;row<{};row+=(idx)blocks*{ROWS}){{
{place}
__syncwarp();
for(idx d=lane;d<D;d+=32){{near[d]={own};sum[d]=0;}}
for(idx e=lane;e<E;e+=32){{far[e]={own_wide};wide_sum[e]=0;}}
__syncwarp();",
            texts.text(&rows)
        );
        // Rows that see nothing of the others are left out.
        let (start, end, heads) = match (by_keys, body.causal) {
            (true, true) => ("greater(0,s-shift)", "T", "for(idx h=g*(H/G);h<(g+1)*(H/G);++h)"),
            (true, false) => ("0", "T", "for(idx h=g*(H/G);h<(g+1)*(H/G);++h)"),
            (false, true) => ("0", "lesser(S,t+shift+1)", ""),
            (false, false) => ("0", "S", ""),
        };
        let variable = if by_keys { "t" } else { "s" };
        let _ = writeln!(
            out,
            "{heads}for(idx first={start};first<{end};first+=32){{
{ty} p=0,ds=0;
{{const idx {variable}=first+lane;
if({variable}<{end}){{
{ty} dot=0;\nfor(idx d=0;d<D;++d)dot=fma{f}(near[d],{other},dot);
{}if(score!=lowest){{
p=exp{f}(score-{});",
            self.score(),
            element(&of.logsumexp, &["b", "h", "t", "0"])
        );
        if slopes {
            let _ = writeln!(
                out,
                "{ty} product=0;\nfor(idx e=0;e<E;++e)product=fma{f}(far[e],{other_wide},product);
ds=p*(product-{});",
                element(&of.delta, &["b", "h", "t", "0"])
            );
        }
        let _ = writeln!(
            out,
            "}}\n}}\n}}
const int count={end}-first<32?(int)({end}-first):32;
for(int j=0;j<count;++j){{\nconst idx {variable}=first+j;\nconst {ty} weight=__shfl_sync(~0u,p,j),slope=__shfl_sync(~0u,ds,j);"
        );
        if slopes {
            let _ = writeln!(out, "for(idx d=lane;d<D;d+=32)sum[d]=fma{f}(slope,{other},sum[d]);");
        }
        if of.values.is_some() {
            let _ = writeln!(out, "for(idx e=lane;e<E;e+=32)wide_sum[e]=fma{f}(weight,{other_wide},wide_sum[e]);");
        }
        out.push_str("}\n}\n");
        let scale = scalar(body.scale.cast(*acc));
        let results = [(&of.queries, &queries), (&of.keys, &keys)];
        for (view, indices) in results.into_iter().filter_map(|(view, indices)| Some((view.as_ref()?, indices))) {
            let result = store(*dtype, view.buffer, &texts.at(view, indices), "result");
            let _ = writeln!(out, "for(idx d=lane;d<D;d+=32){{const {ty} result=sum[d]*{scale};{result}}}");
        }
        if let Some(view) = &of.values {
            let result = store(*dtype, view.buffer, &texts.at(view, &values), "result");
            let _ = writeln!(out, "for(idx e=lane;e<E;e+=32){{const {ty} result=wide_sum[e];{result}}}");
        }
        out.push_str("}\n");
        self.finish(out, &rows, (&body.width + &of.value_width) * 2)
    }
}
