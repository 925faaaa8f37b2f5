//! Ops that move elements.

use crate::call::{Context, Results, Value, real};
use crate::layout::StoredAs;
use crate::promote::common;
use crate::rows::Row;
use crate::{Error, Meta};
use kiln_ir::build;
use kiln_ir::{CompareOp, DType, Dim, Op, Ranges, Scalar};

/// A value like another, complex if that is.
fn like(value: Value, id: kiln_ir::NodeId) -> Value {
    Value { id, complex: value.complex }
}

fn one(value: Value, id: kiln_ir::NodeId) -> Results {
    Ok(vec![like(value, id)])
}

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.view.default", "aten._unsafe_view.default", "aten.reshape.default", "aten.view_copy.default"],
        text: "`reshape`",
        build: |c| {
            let x = c.tensor("self")?;
            let shape = c.with_parts(x, &c.target(x, if c.name() == "reshape" { "shape" } else { "size" })?);
            one(x, build::reshape(&mut c.b, &x.id, &shape)?)
        },
    },
    Row {
        ops: &["aten.permute.default", "aten.permute_copy.default"],
        text: "`permute`",
        build: |c| {
            let x = c.tensor("self")?;
            let mut order = c.axes(x, "dims")?;
            order.extend(x.complex.then_some(order.len()));
            one(x, build::permute(&mut c.b, &x.id, &order)?)
        },
    },
    Row {
        ops: &[
            "aten.clone.default",
            "aten.alias.default",
            "aten.lift_fresh_copy.default",
            "aten.detach.default",
            "aten.lift_fresh.default",
            "aten.contiguous.default",
        ],
        text: "the value itself",
        build: |c| Ok(vec![c.tensor("self")?]),
    },
    Row {
        ops: &["aten.copy.default", "aten.copy_.default"],
        text: "`cast` and `broadcast_to`, between real and complex numbers also `pick` or `complex_from_real`; in place, an output that updates an input",
        build: |c| {
            let (x, y) = (c.tensor("self")?, c.tensor("src")?);
            let shape = c.with_parts(x, &c.shape(x));
            let dtype = c.ty(x).dtype;
            let y = match (x.complex, y.complex) {
                (false, true) => {
                    let parts = c.rank(y);
                    build::pick(&mut c.b, &y.id, parts, 0)?
                }
                (true, false) => build::complex_from_real(&mut c.b, &y.id)?,
                _ => y.id,
            };
            let y = build::cast(&mut c.b, &y, dtype)?;
            one(x, build::broadcast_to(&mut c.b, &y, &shape)?)
        },
    },
    Row {
        ops: &["aten.expand.default"],
        text: "`broadcast_to`",
        build: |c| {
            let x = c.tensor("self")?;
            let (from, mut shape) = (c.shape(x), c.dims("size")?);
            let added = shape.len().saturating_sub(from.len());
            for (size, from) in shape[added..].iter_mut().zip(from) {
                if size.as_const() == Some(-1) {
                    *size = from;
                }
            }
            let shape = c.with_parts(x, &shape);
            one(x, build::broadcast_to(&mut c.b, &x.id, &shape)?)
        },
    },
    Row {
        ops: &["aten.unsqueeze.default"],
        text: "`unsqueeze`",
        build: |c| {
            let x = c.tensor("self")?;
            let dim = c.int("dim")?;
            let Some(axis) = build::axis(c.rank(x) + 1, dim) else { return c.unsupported(format!("at axis {dim}")) };
            one(x, build::unsqueeze(&mut c.b, &x.id, axis)?)
        },
    },
    Row {
        ops: &["aten.squeeze.dims", "aten.squeeze.dim", "aten.squeeze.default"],
        text: "`squeeze` of those axes whose size is 1",
        build: |c| {
            let x = c.tensor("self")?;
            let shape = c.shape(x);
            let all = c.given("dim").is_none();
            let axes = if all { (0..shape.len()).collect() } else { c.listed_axes(x, "dim")? };
            let axes: Vec<usize> = axes.into_iter().filter(|&axis| shape[axis].is_one()).collect();
            one(x, build::squeeze(&mut c.b, &x.id, &axes)?)
        },
    },
    Row {
        ops: &["aten.cat.default"],
        text: "`concat`, vectors of no elements left out, after `cast`",
        build: |c| {
            let parts: Vec<Value> = c.list("tensors")?.into_iter().flatten().collect();
            let kept: Vec<Value> = parts.iter().copied().filter(|&p| c.shape(p) != [Dim::from(0)]).collect();
            let Some(&first) = kept.first().or(parts.first()) else { return c.unsupported("of nothing") };
            let dtype = parts.iter().map(|&p| c.ty(p).dtype).reduce(common).unwrap_or(c.ty(first).dtype);
            if kept.iter().any(|part| part.complex != first.complex) {
                return c.unsupported("of real and complex numbers");
            }
            if kept.is_empty() {
                let empty = build::cast(&mut c.b, &first.id, dtype)?;
                return one(first, empty);
            }
            let axis = c.axis(first, c.int_or("dim", 0)?)?;
            let mut nodes = Vec::new();
            for part in kept {
                nodes.push(build::cast(&mut c.b, &part.id, dtype)?);
            }
            one(first, build::concat(&mut c.b, &nodes, axis)?)
        },
    },
    Row {
        ops: &["aten.slice.Tensor"],
        text: "`slice_axis`",
        build: |c| {
            let x = c.tensor("self")?;
            let (axis, start, size, step) = bounds(c, x)?;
            one(x, build::slice_axis(&mut c.b, &x.id, axis, &start, &size, step)?)
        },
    },
    Row {
        ops: &["aten.narrow_copy.default"],
        text: "`narrow`",
        build: |c| {
            let x = c.tensor("self")?;
            let axis = c.axis(x, c.int("dim")?)?;
            let (start, length) = (c.dim("start")?, c.dim("length")?);
            let start = if start.as_const().is_some_and(|n| n < 0) { &c.shape(x)[axis] + start } else { start };
            one(x, build::narrow(&mut c.b, &x.id, axis, start, length)?)
        },
    },
    Row {
        ops: &["aten.slice_scatter.default"],
        text: "`slice_scatter`",
        build: |c| {
            let (x, part) = target_and_part(c)?;
            let (axis, start, _, step) = bounds(c, x)?;
            one(x, build::slice_scatter(&mut c.b, &x.id, &part, axis, &start, step)?)
        },
    },
    Row {
        ops: &["aten.select.int"],
        text: "`pick`",
        build: |c| {
            let x = c.tensor("self")?;
            let (axis, index) = position(c, x)?;
            one(x, build::pick(&mut c.b, &x.id, axis, index)?)
        },
    },
    Row {
        ops: &["aten.select_scatter.default"],
        text: "`select_scatter`",
        build: |c| {
            let (x, part) = target_and_part(c)?;
            let (axis, index) = position(c, x)?;
            one(x, build::select_scatter(&mut c.b, &x.id, &part, axis, &index)?)
        },
    },
    Row {
        ops: &["aten.diagonal_scatter.default"],
        text: "`select` where the difference of both positions is the offset",
        build: |c| {
            let (x, part) = (c.node("self")?, c.node("src")?);
            let ty = c.b.graph().ty(x).clone();
            let (a, b) = (c.axis(real(x), c.int_or("dim1", 0)?)?, c.axis(real(x), c.int_or("dim2", 1)?)?);
            let offset = c.int_or("offset", 0)?;
            // The axes of the diagonal last, and its elements along the one in which it begins at 0.
            let rest = (0..ty.rank()).filter(|axis| ![a, b].contains(axis));
            let order: Vec<usize> = rest.chain([a, b]).collect();
            let square = [ty.shape[a].clone(), ty.shape[b].clone()];
            let (along, across) = if offset >= 0 { (0, ty.rank() - 1) } else { (1, ty.rank() - 2) };
            let sizes = c.shape(real(part));
            let low = vec![Dim::from(0); sizes.len()];
            let mut high = low.clone();
            if let (Some(last), Some(length)) = (high.last_mut(), sizes.last()) {
                *last = &square[along] - length;
            }
            let part = build::cast(&mut c.b, &part, ty.dtype)?;
            let part = build::Emit::emit(&mut c.b, Op::Pad { low, high, value: Scalar::int(ty.dtype, 0) }, &[part])?;
            let part = build::unsqueeze(&mut c.b, &part, across)?;
            let (i, j) =
                (build::iota(&mut c.b, DType::I64, &square, 0)?, build::iota(&mut c.b, DType::I64, &square, 1)?);
            let distance = build::sub(&mut c.b, &j, &i)?;
            let mask = build::compare_scalar(&mut c.b, CompareOp::Eq, &distance, offset as f64)?;
            let moved = build::permute(&mut c.b, &x, &order)?;
            let y = build::select(&mut c.b, &mask, &part, &moved)?;
            let mut back = vec![0; order.len()];
            order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
            one(real(x), build::permute(&mut c.b, &y, &back)?)
        },
    },
    Row {
        ops: &["aten.split_with_sizes.default"],
        text: "`split`",
        build: |c| {
            let x = c.tensor("self")?;
            let axis = c.axis(x, c.int_or("dim", 0)?)?;
            let sizes = c.dims("split_sizes")?;
            let parts = build::split(&mut c.b, &x.id, axis, &sizes)?;
            Ok(parts.into_iter().map(|part| like(x, part)).collect())
        },
    },
    Row {
        ops: &["aten.split.Tensor"],
        text: "`split`",
        build: |c| {
            let x = c.tensor("self")?;
            let axis = c.axis(x, c.int_or("dim", 0)?)?;
            let (length, part) = (c.shape(x)[axis].clone(), c.size("split_size")?);
            let Some(length) = length.as_usize() else {
                return c.unsupported(format!("of the symbolic size {length}"));
            };
            let starts = (0..length.max(1)).step_by(part.max(1));
            let sizes: Vec<Dim> = starts.map(|start| Dim::from(part.min(length - start))).collect();
            let parts = build::split(&mut c.b, &x.id, axis, &sizes)?;
            Ok(parts.into_iter().map(|part| like(x, part)).collect())
        },
    },
    Row {
        ops: &["aten.unbind.int", "aten.unbind_copy.int"],
        text: "`pick` of every index",
        build: |c| {
            let x = c.tensor("self")?;
            let axis = c.axis(x, c.int_or("dim", 0)?)?;
            let length = c.shape(x)[axis].clone();
            let Some(count) = length.as_const() else { return c.unsupported(format!("of the symbolic size {length}")) };
            (0..count).map(|i| Ok(like(x, build::pick(&mut c.b, &x.id, axis, i)?))).collect()
        },
    },
    Row {
        ops: &["aten.repeat.default"],
        text: "`repeat`",
        build: |c| {
            let x = c.tensor("self")?;
            let counts: Vec<Dim> = c.dims("repeats")?;
            let mut counts = c.with_parts(x, &counts);
            if let (true, Some(parts)) = (x.complex, counts.last_mut()) {
                *parts = Dim::from(1);
            }
            one(x, build::repeat(&mut c.b, &x.id, &counts)?)
        },
    },
    Row {
        ops: &["aten.flip.default", "prims.rev.default"],
        text: "`flip`",
        build: |c| {
            let x = c.tensor(if c.op().starts_with("prims") { "a" } else { "self" })?;
            let axes = c.listed_axes(x, "dims")?;
            one(x, build::flip(&mut c.b, &x.id, &axes)?)
        },
    },
    Row {
        ops: &["aten.unfold.default"],
        text: "`unfold`",
        build: |c| {
            let x = c.tensor("self")?;
            let axis = c.axis(x, c.int("dimension")?)?;
            if c.rank(x) == 0 {
                let whole = c.int("size")? == 1;
                return if whole { Ok(vec![c.with_an_axis(x)?]) } else { c.unsupported("of a scalar to no elements") };
            }
            let op = Op::Unfold { axis, size: c.size("size")?, stride: c.size("step")?, dilation: 1 };
            one(x, build::Emit::emit(&mut c.b, op, &[x.id])?)
        },
    },
    Row {
        ops: &["aten.as_strided.default"],
        text: "`as_strided` of the elements in row-major order",
        build: |c| {
            let (x, (shape, strides, offset)) = (c.tensor("self")?, strided(c)?);
            let memory = in_memory_order(c, x)?;
            one(x, build::as_strided(&mut c.b, &memory, &shape, &strides, &offset)?)
        },
    },
    Row {
        ops: &["aten.as_strided_scatter.default"],
        text: "`as_strided_scatter`",
        build: |c| {
            let (x, part, (_, strides, offset)) = (c.tensor("self")?, c.node("src")?, strided(c)?);
            if in_memory_order(c, x)? != x.id {
                return c.unsupported("of what is not row-major");
            }
            one(x, build::as_strided_scatter(&mut c.b, &x.id, &part, &strides, &offset)?)
        },
    },
    Row {
        ops: &["aten.constant_pad_nd.default"],
        text: "`pad_by_sizes`",
        build: |c| {
            let x = c.tensor("self")?;
            let none = || (Dim::from(0), Dim::from(0));
            let mut amounts = vec![none(); c.rank(x)];
            // Pairs from the last axis.
            for (pair, amount) in c.dims("pad")?.chunks(2).zip(amounts.iter_mut().rev()) {
                *amount = (pair[0].clone(), pair[1].clone());
            }
            amounts.extend(x.complex.then(none));
            let value = c.float_or("value", 0.0)?;
            one(x, build::pad_by_sizes(&mut c.b, &x.id, &amounts, value)?)
        },
    },
];

/// The tensor `self` and the part of it that `src` replaces, both real or both complex.
fn target_and_part(c: &mut Context) -> Result<(Value, kiln_ir::NodeId), Error> {
    let (x, part) = (c.tensor("self")?, c.tensor("src")?);
    if x.complex == part.complex { Ok((x, part.id)) } else { c.unsupported("of real and complex numbers") }
}

/// Axis, start, size and step of a slice.
fn bounds(c: &Context, x: Value) -> Result<(usize, Dim, Dim, i64), Error> {
    let axis = c.axis(x, c.int_or("dim", 0)?)?;
    let length = c.shape(x)[axis].clone();
    let place = |name: &str, otherwise: Dim| {
        let Some(given) = c.optional_dim(name)? else { return Ok(otherwise) };
        Ok::<Dim, Error>(match given.as_const() {
            Some(i64::MAX) => length.clone(),
            Some(n) if n < 0 => Dim::max(&(&length + n), &Dim::from(0)),
            // Of the size itself, or one that the graph says is not larger.
            None if given == length => length.clone(),
            None if may_be_negative(&given) => {
                Dim::max(&Dim::min(&length, &from_front(&given, &length)), &Dim::from(0))
            }
            _ => Dim::min(&length, &given),
        })
    };
    let (start, end) = (place("start", Dim::from(0))?, place("end", length.clone())?);
    let step = c.int_or("step", 1)?;
    let size = match c.result_meta().and_then(|meta| meta.shape.get(axis)) {
        // PyTorch knows more about its symbols: it proved this size.
        Some(size) if c.name() == "slice" => size.clone(),
        _ => Dim::max(&(&end - &start).ceil_div(&Dim::from(step)), &Dim::from(0)),
    };
    Ok((axis, start, size, step))
}

/// Whether a size may be below zero: one that is subtracted, say.
fn may_be_negative(place: &Dim) -> bool {
    !place.is_nonneg(&Ranges::default())
}

/// A place that counts from the end if it is negative, counted from the front.
fn from_front(place: &Dim, length: &Dim) -> Dim {
    let is_negative = Dim::min(&Dim::max(&(Dim::from(0) - place), &Dim::from(0)), &Dim::from(1));
    place + is_negative * length
}

/// Axis and index of one element.
fn position(c: &Context, x: Value) -> Result<(usize, Dim), Error> {
    let axis = c.axis(x, c.int("dim")?)?;
    let index = c.dim("index")?;
    let length = &c.shape(x)[axis];
    Ok((axis, if may_be_negative(&index) { from_front(&index, length) } else { index }))
}

fn strided(c: &Context) -> Result<(Vec<Dim>, Vec<Dim>, Dim), Error> {
    let offset = c.optional_dim("storage_offset")?.unwrap_or_default();
    Ok((c.dims("size")?, c.dims("stride")?, offset))
}

/// The elements of `self` in the order in which PyTorch has them in memory: `as_strided` counts there.
fn in_memory_order(c: &mut Context, x: Value) -> Result<kiln_ir::NodeId, Error> {
    let meta: Meta = c.meta("self")?.clone();
    if x.complex {
        return c.unsupported("of complex numbers");
    }
    match StoredAs::of(&meta, &Default::default()) {
        StoredAs::Dense { order, repeated } if repeated.is_empty() => {
            if order.is_sorted() {
                return Ok(x.id);
            }
            Ok(build::permute(&mut c.b, &x.id, &order)?)
        }
        _ => c.unsupported("of a tensor with gaps in its memory"),
    }
}
