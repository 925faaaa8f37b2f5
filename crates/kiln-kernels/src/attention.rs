//! Parts of one attention that read the same memory become one launch: its result and the logarithms of its sums, which the
//! backward direction reads, and the gradients of its keys and values; those of its queries too where a target has such kernels.
//!
//! ```text
//!  attention(q, k, v) ─▶ out       logsumexp(q, k) ─▶ rows     becomes  attention(q, k, v) ─▶ out, rows
//!  gradient(q, k, v, …) ─▶ keys    gradient(q, k, v, …) ─▶ values     becomes  gradient(q, k, v, …) ─▶ keys, values
//! ```

use crate::kernel::{
    Access, AttentionBackwardBody, AttentionBody, AttentionGradients, AttentionPart, Kernel, KernelBody, Strided,
};
use crate::schedule::{BufferId, Schedule, Step};
use crate::update::{exchanges, retire};
use kiln_ir::{Dim, Symbol};
use std::sync::Arc;

/// Joins the parts of attentions, each at the place of the first; with `queries` the gradients of queries are joined to the others.
pub(crate) fn join_attention(schedule: &mut Schedule, queries: bool) {
    let is_part = |step: &Step| matches!(step.kernel.body, KernelBody::AttentionBackward(_));
    for later in 0..schedule.steps.len() {
        if !is_part(&schedule.steps[later]) {
            continue;
        }
        let steps = &schedule.steps;
        let join = |earlier: usize| {
            let (first, second) = (&steps[earlier], &steps[later]);
            // Parts of one buffer are written by several: the gradients of queries, keys and values that were one product's.
            let movable = !steps[earlier..later].iter().any(|before| exchanges(before, second));
            Some((earlier, joined(first, second, queries).filter(|_| movable)?))
        };
        let joined = (0..later).rev().find_map(join);
        if let Some((earlier, step)) = joined {
            schedule.steps[earlier] = step;
            retire(&mut schedule.steps[later]);
        }
    }
    schedule.steps.retain(|step| !step.args.is_empty());
}

/// The launch that does what two do, if it is of one attention.
fn joined(first: &Step, second: &Step, with_queries: bool) -> Option<Step> {
    if first.args.is_empty() || second.args.is_empty() {
        return None;
    }
    let KernelBody::AttentionBackward(part) = &second.kernel.body else { return None };
    let mut args = first.args.clone();
    let mut buffers = first.kernel.buffers.clone();
    // What the second writes, as a view of the joined launch's buffers.
    let mut moved = |view: &Strided| {
        let (arg, decl) = (second.args[view.buffer], &second.kernel.buffers[view.buffer]);
        let known = args.iter().zip(&buffers).position(|(own, had)| *own == arg && had.dtype == decl.dtype);
        let buffer = known.unwrap_or_else(|| {
            args.push(arg);
            buffers.push(decl.clone());
            args.len() - 1
        });
        // Another part of what the first writes, too.
        (buffers[buffer].access == Access::Write).then(|| Strided { buffer, ..view.clone() })
    };
    let body = match (&first.kernel.body, &part.part) {
        (KernelBody::Attention(a), AttentionPart::Logsumexp { out }) if a.logsumexp.is_none() => {
            let of_first = (&a.q, &a.k, &a.mask);
            let pages = a.k_pages.is_some() || a.v_pages.is_some();
            if pages || !same_scores((first, of_first, sizes_of(a), a.causal, a.scale), second, part) {
                return None;
            }
            let logsumexp = Some(moved(out)?);
            KernelBody::Attention(Box::new(AttentionBody { logsumexp, ..(**a).clone() }))
        }
        (KernelBody::AttentionBackward(a), AttentionPart::Gradients(b)) => {
            let AttentionPart::Gradients(had) = &a.part else { return None };
            let of_first = (&a.q, &a.k, &a.mask);
            let sizes = [&a.batch, &a.heads, &a.kv_heads, &a.queries, &a.keys, &a.width];
            let operands =
                [(&had.v, &b.v), (&had.gradient, &b.gradient), (&had.logsumexp, &b.logsumexp), (&had.delta, &b.delta)];
            let same = same_scores((first, of_first, sizes, a.causal, a.scale), second, part)
                && operands.iter().all(|(x, y)| same_view((first, x), (second, y)));
            // Those of the queries are sums along other lines.
            let apart = !with_queries && (had.queries.is_some() || b.queries.is_some());
            let results = [(&had.queries, &b.queries), (&had.keys, &b.keys), (&had.values, &b.values)];
            let twice = results.iter().any(|(had, new)| had.is_some() && new.is_some());
            if !same || apart || twice {
                return None;
            }
            let mut either = |had: &Option<Strided>, new: &Option<Strided>| {
                new.as_ref().map_or(Some(had.clone()), |view| moved(view).map(Some))
            };
            let [queries, keys, values] = results.map(|(had, new)| either(had, new));
            let gradients = AttentionGradients { queries: queries?, keys: keys?, values: values?, ..(**had).clone() };
            let part = AttentionPart::Gradients(Box::new(gradients));
            KernelBody::AttentionBackward(Box::new(AttentionBackwardBody { part, ..(**a).clone() }))
        }
        _ => return None,
    };
    let mut sizes: Vec<Symbol> = [first, second].iter().flat_map(|step| step.kernel.sizes.iter().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let values = sizes.iter().map(|&size| Dim::from(size)).collect();
    let mut nodes = [&first.nodes[..], &second.nodes].concat();
    nodes.sort_unstable();
    nodes.dedup();
    let mut reads = [&first.reads[..], &second.reads].concat();
    reads.sort_by_key(|read| (read.node, read.buffer));
    reads.dedup();
    let writes = [&first.writes[..], &second.writes].concat();
    let label = format!("{}_{}", first.label, second.label);
    let kernel = Arc::new(Kernel { buffers, sizes, body });
    Some(Step { kernel, args, sizes: values, nodes, label, reads, writes })
}

type Scores<'a> = (&'a Strided, &'a Strided, &'a Option<Strided>);

fn sizes_of(a: &AttentionBody) -> [&Dim; 6] {
    [&a.batch, &a.heads, &a.kv_heads, &a.queries, &a.keys, &a.width]
}

/// True if both have the same scores.
fn same_scores(
    (first, (q, k, mask), sizes, causal, scale): (&Step, Scores<'_>, [&Dim; 6], bool, kiln_ir::Scalar),
    second: &Step,
    part: &AttentionBackwardBody,
) -> bool {
    let own = [&part.batch, &part.heads, &part.kv_heads, &part.queries, &part.keys, &part.width];
    let masks = match (mask, &part.mask) {
        (Some(x), Some(y)) => same_view((first, x), (second, y)),
        (None, None) => true,
        _ => false,
    };
    sizes == own
        && (causal, scale) == (part.causal, part.scale)
        && same_view((first, q), (second, &part.q))
        && same_view((first, k), (second, &part.k))
        && masks
}

/// True if both are the same elements of the same memory.
fn same_view((first, x): (&Step, &Strided), (second, y): (&Step, &Strided)) -> bool {
    let place = |step: &Step, view: &Strided| -> (BufferId, kiln_ir::DType) {
        (step.args[view.buffer], step.kernel.buffers[view.buffer].dtype)
    };
    place(first, x) == place(second, y) && x.offset == y.offset && x.strides == y.strides
}
