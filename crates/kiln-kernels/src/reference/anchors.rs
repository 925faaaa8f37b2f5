//! Products element by element; attention and routines as graphs of one op, run by the interpreter on gathered operands.

use super::body::Body;
use super::{Env, Fault, malformed, scalar};
use crate::kernel::{
    AttentionBackwardBody, AttentionBody, AttentionPart, BodyView, BufferArg, MatmulBody, Pages, Prologue, RoutineBody,
    Strided,
};
use kiln_ir::op::mask_columns;
use kiln_ir::{AttentionOperand, DType, Dim, Graph, HostTensor, Op, ReduceKind, Scalar, Source, TensorType, interpret};

/// What the stages before a product left in their temporaries, row after row of it.
type Temps = Vec<Vec<Option<Scalar>>>;

/// The value of an operand at the current point, `row_at` steps along the summed axes.
fn operand(
    env: &Env,
    args: &[BufferArg],
    buffers: &mut [HostTensor],
    prologue: &Prologue,
    acc: DType,
    (temps, row_at): (&mut Temps, usize),
) -> Result<Scalar, Fault> {
    let mut body = Body::new(args, buffers);
    (body.temps, body.row_at) = (std::mem::take(temps), row_at);
    body.run(env, &prologue.insts)?;
    *temps = std::mem::take(&mut body.temps);
    let value = body.get(prologue.value)?;
    if value.dtype() != acc {
        return Err(malformed(format!("a product of {} accumulates in {acc}", value.dtype())));
    }
    Ok(value)
}

pub(super) fn matmul(
    env: &mut Env,
    args: &[BufferArg],
    buffers: &mut [HostTensor],
    body: &MatmulBody,
) -> Result<(), Fault> {
    let outer = [body.batch.as_slice(), &body.m].concat();
    env.each(&outer, &mut |env| {
        let mut temps = Temps::new();
        if let Some(before) = &body.before {
            let mut rows = Body::new(args, buffers);
            rows.grid_point(env, before)?;
            temps = rows.temps;
        }
        env.each(&body.n, &mut |env| {
            let mut products: Vec<Vec<Scalar>> = vec![Vec::new(); body.rhs.len()];
            let mut at = 0;
            env.each(&body.k, &mut |env| {
                let lhs = operand(env, args, buffers, &body.lhs, body.acc, (&mut temps, at))?;
                for (products, rhs) in products.iter_mut().zip(&body.rhs) {
                    let rhs = operand(env, args, buffers, rhs, body.acc, (&mut Temps::new(), at))?;
                    products.push(match (lhs, rhs) {
                        (Scalar::Float(_, a), Scalar::Float(_, b)) => Scalar::Float(body.acc, a * b),
                        _ => Scalar::int(body.acc, lhs.as_i64().wrapping_mul(rhs.as_i64())),
                    });
                }
                at += 1;
                Ok(())
            })?;
            let sum = |products: &Vec<Scalar>| scalar::reduce(ReduceKind::Sum, body.acc, products);
            let mut epilogue = Body::new(args, buffers);
            epilogue.accumulators = products.iter().map(sum).collect();
            epilogue.run(env, &body.epilogue)
        })
    })
}

fn sizes(env: &Env, shape: &[Dim]) -> Result<Vec<usize>, Fault> {
    let size = |d: &Dim| usize::try_from(env.eval(d)?).map_err(|_| malformed(format!("{d} is negative")));
    shape.iter().map(size).collect()
}

/// Calls `visit` with each row-major number and position of a view.
fn each_element(
    env: &Env,
    view: &Strided,
    shape: &[usize],
    elements: usize,
    visit: &mut dyn FnMut(usize, usize),
) -> Result<(), Fault> {
    let strides = view.strides.iter().map(|s| env.eval(s)).collect::<Result<Vec<i64>, Fault>>()?;
    let offset = env.eval(&view.offset)?;
    for number in 0..shape.iter().product() {
        let (mut rest, mut at) = (number, offset);
        for (&size, &stride) in shape.iter().zip(&strides).rev() {
            at += (rest % size) as i64 * stride;
            rest /= size;
        }
        let inside = usize::try_from(at).ok().filter(|&at| at < elements);
        visit(number, inside.ok_or(Fault::OutOfBounds { buffer: view.buffer, at, elements })?);
    }
    Ok(())
}

fn gathered(env: &Env, buffers: &[HostTensor], view: &Strided, shape: &[usize]) -> Result<HostTensor, Fault> {
    let from = &buffers[view.buffer];
    let mut to = HostTensor::zeros(from.dtype(), shape).map_err(|e| malformed(e.to_string()))?;
    each_element(env, view, shape, from.elements(), &mut |number, at| to.set(number, from.get(at)))?;
    Ok(to)
}

/// Keys or values: a plain view, or rows found through a table of pages.
fn gathered_keys(
    env: &Env,
    buffers: &[HostTensor],
    view: &Strided,
    pages: Option<&Pages>,
    shape: &[usize],
) -> Result<HostTensor, Fault> {
    let Some(pages) = pages else { return gathered(env, buffers, view, shape) };
    let &[batch, heads, keys, width] = shape else { return Err(malformed("keys do not have four axes")) };
    let length = sizes(env, std::slice::from_ref(&pages.length))?[0].max(1);
    let (stride, count) = (env.eval(&pages.stride)?, env.eval(&pages.count)?);
    let table = gathered(env, buffers, &pages.table, &[batch, keys.div_ceil(length)])?.to_i64();
    if let Some(&index) = table.iter().find(|page| !(0..count).contains(*page)) {
        return Err(Fault::IndexOutOfRange { index, size: count });
    }
    let from = &buffers[view.buffer];
    let mut to = HostTensor::zeros(from.dtype(), shape).map_err(|e| malformed(e.to_string()))?;
    for (number, page) in table.iter().enumerate() {
        let (b, first) = (number / keys.div_ceil(length), number % keys.div_ceil(length) * length);
        let part = [1, heads, length.min(keys - first), width];
        let offset = &view.offset + Dim::from(page * stride);
        let page = Strided { buffer: view.buffer, offset, strides: view.strides.clone() };
        each_element(env, &page, &part, from.elements(), &mut |at, from_at| {
            let (head, row, column) = (at / (part[2] * width), at / width % part[2], at % width);
            to.set(((b * heads + head) * keys + first + row) * width + column, from.get(from_at));
        })?;
    }
    Ok(to)
}

/// Runs one op on tensors.
fn one_op(op: Op, operands: &[HostTensor]) -> Result<HostTensor, Fault> {
    let mut graph = Graph::new();
    let mut ids = Vec::new();
    for tensor in operands {
        let ty = TensorType::fixed(tensor.dtype(), tensor.shape());
        ids.push(graph.input(ty, Source::default()).map_err(|e| malformed(e.to_string()))?);
    }
    let node = graph.add(op, &ids, Source::default()).map_err(|e| malformed(e.to_string()))?;
    graph.output(node);
    let mut results = interpret::run(&graph, operands).map_err(|e| malformed(e.to_string()))?;
    results.pop().ok_or_else(|| malformed("no result"))
}

fn spread(env: &Env, buffers: &mut [HostTensor], view: &Strided, from: &HostTensor) -> Result<(), Fault> {
    let to = &mut buffers[view.buffer];
    let elements = to.elements();
    each_element(env, view, from.shape(), elements, &mut |number, at| to.set(at, from.get(number)))
}

pub(super) fn attention(env: &Env, buffers: &mut [HostTensor], body: &AttentionBody) -> Result<(), Fault> {
    let (b, h, g) = (&body.batch, &body.heads, &body.kv_heads);
    let (t, s) = (&body.queries, &body.keys);
    let shape = |list: [&Dim; 4]| sizes(env, &list.map(Dim::clone));
    let mut operands = vec![
        gathered(env, buffers, &body.q, &shape([b, h, t, &body.width])?)?,
        gathered_keys(env, buffers, &body.k, body.k_pages.as_ref(), &shape([b, g, s, &body.width])?)?,
        gathered_keys(env, buffers, &body.v, body.v_pages.as_ref(), &shape([b, g, s, &body.value_width])?)?,
    ];
    if let Some(mask) = &body.mask {
        let columns = mask_columns(buffers[mask.buffer].dtype(), s);
        operands.push(gathered(env, buffers, mask, &shape([b, h, t, &columns])?)?);
    }
    let (causal, scale, mask) = (body.causal, body.scale, body.mask.is_some());
    let result = one_op(Op::Attention { causal, scale, mask }, &operands)?;
    if let Some(logsumexp) = &body.logsumexp {
        operands.remove(2);
        let result = one_op(Op::AttentionLogsumexp { causal, scale, mask }, &operands)?;
        spread(env, buffers, logsumexp, &result)?;
    }
    spread(env, buffers, &body.out, &result)
}

pub(super) fn attention_backward(
    env: &Env,
    buffers: &mut [HostTensor],
    body: &AttentionBackwardBody,
) -> Result<(), Fault> {
    let mut operands = Vec::new();
    for BodyView { view, shape, .. } in body.views().iter().filter(|view| !view.written) {
        operands.push(gathered(env, buffers, view, &sizes(env, &shape.map(Dim::clone))?)?);
    }
    let (causal, scale, mask) = (body.causal, body.scale, body.mask.is_some());
    let outs: Vec<(Op, &Strided)> = match &body.part {
        AttentionPart::Logsumexp { out } => vec![(Op::AttentionLogsumexp { causal, scale, mask }, out)],
        AttentionPart::Gradients(gradients) => {
            let of = |of| Op::AttentionGradient { of, causal, scale, mask };
            let results = [
                (AttentionOperand::Queries, &gradients.queries),
                (AttentionOperand::Keys, &gradients.keys),
                (AttentionOperand::Values, &gradients.values),
            ];
            results.into_iter().filter_map(|(operand, out)| Some((of(operand), out.as_ref()?))).collect()
        }
    };
    for (op, out) in outs {
        let result = one_op(op, &operands)?;
        spread(env, buffers, out, &result)?;
    }
    Ok(())
}

pub(super) fn routine(env: &Env, buffers: &mut [HostTensor], body: &RoutineBody) -> Result<(), Fault> {
    match body {
        RoutineBody::Scan { shape, axis, kind, reverse, input, output } => {
            let x = gathered(env, buffers, input, &sizes(env, shape)?)?;
            let result = one_op(Op::Scan { kind: *kind, axis: *axis, reverse: *reverse }, &[x])?;
            spread(env, buffers, output, &result)
        }
        RoutineBody::SortIndices { shape, axis, descending, count, input, output } => {
            let x = gathered(env, buffers, input, &sizes(env, shape)?)?;
            let count = Dim::from(env.eval(count)?);
            let result = one_op(Op::SortIndices { axis: *axis, descending: *descending, count }, &[x])?;
            spread(env, buffers, output, &result)
        }
        RoutineBody::Scatter { shape, updates_shape, axis, kind, index, updates, output } => {
            let base = gathered(env, buffers, output, &sizes(env, shape)?)?;
            let from = sizes(env, updates_shape)?;
            let places = gathered(env, buffers, index, &from)?;
            let size = base.shape()[*axis] as i64;
            if let Some(index) = places.to_i64().into_iter().find(|i| !(0..size).contains(i)) {
                return Err(Fault::IndexOutOfRange { index, size });
            }
            let updates = gathered(env, buffers, updates, &from)?;
            let result = one_op(Op::Scatter { axis: *axis, kind: *kind }, &[base, places, updates])?;
            spread(env, buffers, output, &result)
        }
    }
}
