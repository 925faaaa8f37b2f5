//! Attention, scans, sorts and scatters: one node each, over strided views of memory.

use crate::assemble::{argument, step};
use crate::dag::Def;
use crate::domain::Domain;
use crate::kernel::{
    Access, AttentionBackwardBody, AttentionBody, AttentionGradients, AttentionPart, BodyView, BufferArg, InstKind,
    Kernel, KernelBody, Pages, RoutineBody, Strided,
};
use crate::materialise::Memory;
use crate::pages::{gather_below, paged};
use crate::repeat;
use crate::schedule::{BufferId, Step};
use crate::trace::{FusionRejection, Scope, Storage, Tracer};
use kiln_ir::{AttentionOperand, DType, Dim, NodeId, Op, Scalar, Symbol};

/// The strided view of a node's memory; the error names a node that is none.
pub(crate) fn strided(
    scope: Scope<'_>,
    node: NodeId,
    args: &mut Vec<(BufferId, DType)>,
) -> Result<Strided, FusionRejection> {
    let rejection = FusionRejection { node };
    let ty = scope.graph.ty(node);
    let (domain, index) = Domain::of_shape(&ty.shape, &[]);
    let mut tracer = Tracer::new(scope, &domain);
    let value = tracer.value_at(node, index.clone())?;
    let trace = tracer.finish();
    let Def::Inst(InstKind::Load { place, guard: None }) = &trace.dag.value(value).def else { return Err(rejection) };
    if !place.indirect.is_empty() {
        return Err(rejection);
    }
    let mut rest = place.offset.clone();
    let mut strides = Vec::with_capacity(index.len());
    for at in &index {
        let Some(symbol) = at.as_symbol() else {
            strides.push(Dim::default());
            continue;
        };
        let (stride, other) = rest.linear_in(symbol).ok_or(rejection)?;
        rest = other;
        strides.push(stride);
    }
    let moves = |d: &Dim| (0..index.len()).any(|axis| d.contains(Symbol::axis(axis)));
    if strides.iter().any(moves) {
        return Err(rejection);
    }
    let (buffer, dtype) = trace.args[place.buffer];
    Ok(Strided { buffer: argument(args, buffer, dtype), offset: rest, strides })
}

/// The view of keys or values, with their page table if they are paged.
fn rows_of_keys(
    scope: Scope<'_>,
    node: NodeId,
    args: &mut Vec<(BufferId, DType)>,
) -> Result<(Strided, Option<Pages>), FusionRejection> {
    let gathered = gather_below(scope.graph, node).filter(|gather| scope.storage[gather.index()].is_none());
    match gathered {
        None => strided(scope, node, args).map(|view| (view, None)),
        // A node between them may be materialised, and is a view then.
        Some(_) => match strided(scope, node, args) {
            Ok(view) => Ok((view, None)),
            Err(_) => paged(scope, node, args).map(|(view, pages)| (view, Some(pages))),
        },
    }
}

/// Checks that an anchor op's operands can be read in place; the error names the operand that cannot.
pub(crate) fn check_operands(scope: Scope<'_>, id: NodeId) -> Result<(), FusionRejection> {
    let node = scope.graph.node(id);
    let skip = usize::from(matches!(node.op, Op::Scatter { .. }));
    let mut args = Vec::new();
    for (number, &operand) in node.operands.iter().enumerate().skip(skip) {
        match node.op {
            Op::Attention { .. } if matches!(number, 1 | 2) => rows_of_keys(scope, operand, &mut args).map(|_| ())?,
            Op::Loop { .. } | Op::Cond { .. } => repeat::operand(scope, operand, &mut args).map(|_| ())?,
            _ => strided(scope, operand, &mut args).map(|_| ())?,
        }
    }
    Ok(())
}

/// The launch of one anchor op that writes `into`.
pub(crate) fn routine_step(
    scope: Scope<'_>,
    memory: &Memory,
    id: NodeId,
    into: &Storage,
) -> Result<Step, FusionRejection> {
    let node = scope.graph.node(id);
    let mut args: Vec<(BufferId, DType)> = Vec::new();
    let mut view = |operand: usize| strided(scope, node.operands[operand], &mut args);
    let shape_of = |operand: usize| scope.graph.ty(node.operands[operand]).shape.clone();
    let mut access = Access::Write;
    let mut out = |args: &mut Vec<(BufferId, DType)>| {
        let dtype = memory.buffers[into.buffer.index()].dtype;
        let known = args.len();
        let buffer = argument(args, into.buffer, dtype);
        if buffer < known || matches!(node.op, Op::Scatter { .. }) {
            access = Access::ReadWrite;
        }
        Strided { buffer, offset: into.offset.clone(), strides: into.strides.clone() }
    };
    let body = match &node.op {
        Op::Attention { causal, scale, mask } => {
            let q = view(0)?;
            let (k, k_pages) = rows_of_keys(scope, node.operands[1], &mut args)?;
            let (v, v_pages) = rows_of_keys(scope, node.operands[2], &mut args)?;
            let mask = if *mask { Some(strided(scope, node.operands[3], &mut args)?) } else { None };
            let (query, keys, values) = (shape_of(0), shape_of(1), shape_of(2));
            KernelBody::Attention(Box::new(AttentionBody {
                batch: query[0].clone(),
                heads: query[1].clone(),
                kv_heads: keys[1].clone(),
                queries: query[2].clone(),
                keys: keys[2].clone(),
                width: query[3].clone(),
                value_width: values[3].clone(),
                q,
                k,
                v,
                k_pages,
                v_pages,
                mask,
                out: out(&mut args),
                logsumexp: None,
                causal: *causal,
                scale: *scale,
            }))
        }
        Op::AttentionLogsumexp { causal, scale, mask } => {
            let (q, k) = (view(0)?, view(1)?);
            let mask = if *mask { Some(view(2)?) } else { None };
            let part = AttentionPart::Logsumexp { out: out(&mut args) };
            let shapes = (shape_of(0), shape_of(1));
            attention_backward(shapes, (q, k, mask), (*causal, *scale), part)
        }
        Op::AttentionGradient { of, causal, scale, mask } => {
            let (q, k, v, gradient) = (view(0)?, view(1)?, view(2)?, view(3)?);
            let (logsumexp, delta) = (view(4)?, view(5)?);
            let mask = if *mask { Some(view(6)?) } else { None };
            let out = out(&mut args);
            let result = |operand| (*of == operand).then(|| out.clone());
            let part = AttentionPart::Gradients(Box::new(AttentionGradients {
                value_width: shape_of(2)[3].clone(),
                v,
                gradient,
                logsumexp,
                delta,
                queries: result(AttentionOperand::Queries),
                keys: result(AttentionOperand::Keys),
                values: result(AttentionOperand::Values),
            }));
            attention_backward((shape_of(0), shape_of(1)), (q, k, mask), (*causal, *scale), part)
        }
        Op::Scan { kind, axis, reverse } => {
            let input = view(0)?;
            let (shape, output) = (shape_of(0), out(&mut args));
            KernelBody::Routine(RoutineBody::Scan { shape, axis: *axis, kind: *kind, reverse: *reverse, input, output })
        }
        Op::SortIndices { axis, descending, count } => {
            let input = view(0)?;
            let (axis, descending, count) = (*axis, *descending, count.clone());
            let (shape, output) = (shape_of(0), out(&mut args));
            KernelBody::Routine(RoutineBody::SortIndices { shape, axis, descending, count, input, output })
        }
        Op::Scatter { axis, kind } => {
            let (index, updates) = (view(1)?, view(2)?);
            let (shape, updates_shape, output) = (shape_of(0), shape_of(2), out(&mut args));
            let (axis, kind) = (*axis, *kind);
            KernelBody::Routine(RoutineBody::Scatter { shape, updates_shape, axis, kind, index, updates, output })
        }
        _ => return Err(FusionRejection { node: id }),
    };
    let buffers = args.iter().map(|&(buffer, dtype)| {
        let access = if buffer == into.buffer { access } else { Access::Read };
        BufferArg { dtype, access }
    });
    let mut symbols: Vec<Symbol> = Vec::new();
    visit_body_dims(&body, &mut |dim| dim.visit_symbols(&mut |s| symbols.push(s)));
    symbols.sort_unstable();
    symbols.dedup();
    let kernel = Kernel { buffers: buffers.collect(), sizes: symbols, body };
    // A read through a page table is listed as the gather that it replaces.
    let mut nodes = vec![id];
    if let KernelBody::Attention(body) = &kernel.body {
        let paged = [(1, &body.k_pages), (2, &body.v_pages)].into_iter().filter(|(_, pages)| pages.is_some());
        nodes.splice(0..0, paged.filter_map(|(at, _)| gather_below(scope.graph, node.operands[at])));
        nodes.sort_unstable();
    }
    Ok(step(scope, kernel, args.into_iter().map(|(buffer, _)| buffer).collect(), nodes))
}

/// The body of a part of the backward direction of attention, from the shapes and views of queries and keys.
fn attention_backward(
    (query, key): (Vec<Dim>, Vec<Dim>),
    (q, k, mask): (Strided, Strided, Option<Strided>),
    (causal, scale): (bool, Scalar),
    part: AttentionPart,
) -> KernelBody {
    let size = |shape: &[Dim], axis: usize| shape[axis].clone();
    KernelBody::AttentionBackward(Box::new(AttentionBackwardBody {
        batch: size(&query, 0),
        heads: size(&query, 1),
        kv_heads: size(&key, 1),
        queries: size(&query, 2),
        keys: size(&key, 2),
        width: size(&query, 3),
        q,
        k,
        mask,
        causal,
        scale,
        part,
    }))
}

/// Calls `visit` with every size, offset and stride of an attention or routine body.
fn visit_body_dims(body: &KernelBody, visit: &mut dyn FnMut(&Dim)) {
    let view = |view: &Strided, visit: &mut dyn FnMut(&Dim)| {
        visit(&view.offset);
        view.strides.iter().for_each(visit);
    };
    match body {
        KernelBody::Attention(a) => {
            for dim in [&a.batch, &a.heads, &a.kv_heads, &a.queries, &a.keys, &a.width, &a.value_width] {
                visit(dim);
            }
            for strided in [&a.q, &a.k, &a.v, &a.out].into_iter().chain(&a.mask).chain(&a.logsumexp) {
                view(strided, visit);
            }
            for pages in [&a.k_pages, &a.v_pages].into_iter().flatten() {
                view(&pages.table, visit);
                [&pages.length, &pages.stride, &pages.count].into_iter().for_each(&mut *visit);
            }
        }
        KernelBody::AttentionBackward(body) => {
            for BodyView { view: strided, shape, .. } in body.views() {
                shape.into_iter().for_each(&mut *visit);
                view(strided, visit);
            }
        }
        KernelBody::Routine(RoutineBody::Scan { shape, input, output, .. }) => {
            shape.iter().for_each(&mut *visit);
            view(input, visit);
            view(output, visit);
        }
        KernelBody::Routine(RoutineBody::SortIndices { shape, count, input, output, .. }) => {
            shape.iter().for_each(&mut *visit);
            visit(count);
            view(input, visit);
            view(output, visit);
        }
        KernelBody::Routine(RoutineBody::Scatter { shape, updates_shape, index, updates, output, .. }) => {
            shape.iter().chain(updates_shape).for_each(&mut *visit);
            view(index, visit);
            view(updates, visit);
            view(output, visit);
        }
        KernelBody::Repeat(body) => body.visit_dims(visit),
        KernelBody::Loop(_) | KernelBody::Matmul(_) | KernelBody::Parallel(_) => {}
    }
}
