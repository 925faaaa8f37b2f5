//! Ops that move elements.

use crate::context::{Context, Entry, Results, Value, real};
use kiln_ir::build;
use kiln_ir::{Dim, Op};

/// A value like another, complex if that is.
fn like(value: Value, id: kiln_ir::NodeId) -> Value {
    Value { id, complex: value.complex }
}

fn one(value: Value, id: kiln_ir::NodeId) -> Results {
    Ok(vec![like(value, id)])
}

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.view.default"],
        text: "`reshape`",
        build: |c| {
            let x = c.tensor("self");
            let shape = c.with_parts(x, &c.target(x, "size"));
            one(x, build::reshape(&mut c.b, &x.id, &shape)?)
        },
    },
    Entry {
        ops: &["aten.permute.default"],
        text: "`permute`",
        build: |c| {
            let x = c.tensor("self");
            let order = c.axes(x, "dims");
            one(x, build::permute(&mut c.b, &x.id, &order)?)
        },
    },
    Entry {
        ops: &["aten.clone.default", "aten.alias.default", "aten.lift_fresh_copy.default"],
        text: "the value itself",
        build: |c| Ok(vec![c.tensor("self")]),
    },
    Entry {
        ops: &["aten.copy.default", "aten.copy_.default"],
        text: "`cast` and `broadcast_to`; in place, an output that updates an input",
        build: |c| {
            let (x, y) = (c.tensor("self"), c.tensor("src"));
            let shape = c.with_parts(x, &c.shape(x));
            let dtype = c.ty(x).dtype;
            let y = build::cast(&mut c.b, &y.id, dtype)?;
            one(x, build::broadcast_to(&mut c.b, &y, &shape)?)
        },
    },
    Entry {
        ops: &["aten.expand.default"],
        text: "`broadcast_to`",
        build: |c| {
            let x = c.tensor("self");
            let (from, sizes) = (c.shape(x), c.call.ints("size"));
            let added = sizes.len() - from.len();
            let shape: Vec<Dim> = sizes
                .iter()
                .enumerate()
                .map(|(i, &n)| if n < 0 { from[i - added].clone() } else { Dim::from(n) })
                .collect();
            let shape = c.with_parts(x, &shape);
            one(x, build::broadcast_to(&mut c.b, &x.id, &shape)?)
        },
    },
    Entry {
        ops: &["aten.unsqueeze.default"],
        text: "`unsqueeze`",
        build: |c| {
            let x = c.tensor("self");
            let axis = build::axis(c.rank(x) + 1, c.call.int("dim")).unwrap();
            one(x, build::unsqueeze(&mut c.b, &x.id, axis)?)
        },
    },
    Entry {
        ops: &["aten.squeeze.dims", "aten.squeeze.dim", "aten.squeeze.default"],
        text: "`squeeze` of those axes whose size is 1",
        build: |c| {
            let x = c.tensor("self");
            let shape = c.shape(x);
            let axes: Vec<usize> = c.axes(x, "dim").into_iter().filter(|&axis| shape[axis].is_one()).collect();
            one(x, build::squeeze(&mut c.b, &x.id, &axes)?)
        },
    },
    Entry {
        ops: &["aten.cat.default"],
        text: "`concat`, vectors of no elements left out, after `cast`",
        build: |c| {
            let parts: Vec<Value> = c.list("tensors").into_iter().flatten().collect();
            let kept: Vec<Value> = parts.iter().copied().filter(|&p| c.shape(p) != [Dim::from(0)]).collect();
            let first = kept[0];
            let dtype =
                if kept.iter().any(|&p| c.ty(p).dtype.is_float()) { kiln_ir::DType::F32 } else { c.ty(first).dtype };
            let axis = c.axis(first, c.call.int("dim"));
            let mut nodes = Vec::new();
            for part in kept {
                nodes.push(build::cast(&mut c.b, &part.id, dtype)?);
            }
            one(first, build::concat(&mut c.b, &nodes, axis)?)
        },
    },
    Entry {
        ops: &["aten.slice.Tensor"],
        text: "`slice_axis`",
        build: |c| {
            let x = c.tensor("self");
            let (axis, start, size, step) = bounds(c, x);
            one(x, build::slice_axis(&mut c.b, &x.id, axis, &start, &size, step)?)
        },
    },
    Entry {
        ops: &["aten.slice_scatter.default"],
        text: "`slice_scatter`",
        build: |c| {
            let (x, part) = (c.tensor("self"), c.node("src"));
            let (axis, start, _, step) = bounds(c, x);
            one(x, build::slice_scatter(&mut c.b, &x.id, &part, axis, &start, step)?)
        },
    },
    Entry {
        ops: &["aten.select.int"],
        text: "`pick`",
        build: |c| {
            let x = c.tensor("self");
            let (axis, index) = position(c, x);
            one(x, build::pick(&mut c.b, &x.id, axis, index)?)
        },
    },
    Entry {
        ops: &["aten.select_scatter.default"],
        text: "`select_scatter`",
        build: |c| {
            let (x, part) = (c.tensor("self"), c.node("src"));
            let (axis, index) = position(c, x);
            one(x, build::select_scatter(&mut c.b, &x.id, &part, axis, &index)?)
        },
    },
    Entry {
        ops: &["aten.split_with_sizes.default"],
        text: "`split`",
        build: |c| {
            let x = c.tensor("self");
            let axis = c.axis(x, c.call.int("dim"));
            let sizes: Vec<Dim> = c.call.ints("split_sizes").into_iter().map(Dim::from).collect();
            let parts = build::split(&mut c.b, &x.id, axis, &sizes)?;
            Ok(parts.into_iter().map(|part| like(x, part)).collect())
        },
    },
    Entry {
        ops: &["aten.split.Tensor"],
        text: "`split`",
        build: |c| {
            let x = c.tensor("self");
            let axis = c.axis(x, c.call.int("dim"));
            let (length, part) = (c.shape(x)[axis].as_usize().unwrap(), c.call.size("split_size"));
            let starts = (0..length).step_by(part);
            let sizes: Vec<Dim> = starts.map(|start| Dim::from(part.min(length - start))).collect();
            let parts = build::split(&mut c.b, &x.id, axis, &sizes)?;
            Ok(parts.into_iter().map(real).collect())
        },
    },
    Entry {
        ops: &["aten.unbind.int"],
        text: "`pick` of every index",
        build: |c| {
            let x = c.tensor("self");
            let axis = c.axis(x, c.call.int("dim"));
            let count = c.shape(x)[axis].as_const().unwrap();
            (0..count).map(|i| Ok(real(build::pick(&mut c.b, &x.id, axis, i)?))).collect()
        },
    },
    Entry {
        ops: &["aten.repeat.default"],
        text: "`repeat`",
        build: |c| {
            let x = c.tensor("self");
            let counts: Vec<Dim> = c.call.ints("repeats").into_iter().map(Dim::from).collect();
            let mut counts = c.with_parts(x, &counts);
            if let (true, Some(parts)) = (x.complex, counts.last_mut()) {
                *parts = Dim::from(1);
            }
            one(x, build::repeat(&mut c.b, &x.id, &counts)?)
        },
    },
    Entry {
        ops: &["aten.flip.default", "prims.rev.default"],
        text: "`flip`",
        build: |c| {
            let x = c.tensor(if c.call.op.starts_with("prims") { "a" } else { "self" });
            let axes = c.axes(x, "dims");
            one(x, build::flip(&mut c.b, &x.id, &axes)?)
        },
    },
    Entry {
        ops: &["aten.unfold.default"],
        text: "`unfold`",
        build: |c| {
            let x = c.tensor("self");
            let axis = c.axis(x, c.call.int("dimension"));
            let op = Op::Unfold { axis, size: c.call.size("size"), stride: c.call.size("step"), dilation: 1 };
            one(x, build::Emit::emit(&mut c.b, op, &[x.id])?)
        },
    },
    Entry {
        ops: &["aten.as_strided.default"],
        text: "`as_strided` of the elements in row-major order",
        build: |c| {
            let (x, (shape, strides, offset)) = (c.tensor("self"), strided(c));
            one(x, build::as_strided(&mut c.b, &x.id, &shape, &strides, &offset)?)
        },
    },
    Entry {
        ops: &["aten.as_strided_scatter.default"],
        text: "`as_strided_scatter`",
        build: |c| {
            let (x, part, (_, strides, offset)) = (c.tensor("self"), c.node("src"), strided(c));
            one(x, build::as_strided_scatter(&mut c.b, &x.id, &part, &strides, &offset)?)
        },
    },
    Entry {
        ops: &["aten.constant_pad_nd.default"],
        text: "`pad_constant`",
        build: |c| {
            let x = c.tensor("self");
            let mut amounts = vec![(0, 0); c.rank(x)];
            // Pairs from the last axis.
            for (pair, amount) in c.call.ints("pad").chunks(2).zip(amounts.iter_mut().rev()) {
                *amount = (pair[0], pair[1]);
            }
            one(x, build::pad_constant(&mut c.b, &x.id, &amounts, c.call.float("value"))?)
        },
    },
];

/// Axis, start, size and step of a slice.
fn bounds(c: &Context, x: Value) -> (usize, Dim, Dim, i64) {
    let axis = c.axis(x, c.call.int("dim"));
    let length = c.shape(x)[axis].clone();
    let place = |name: &str, otherwise: Dim| match c.call.attribute(name).map(|_| c.call.int(name)) {
        None => otherwise,
        Some(i64::MAX) => length.clone(),
        Some(n) if n < 0 => Dim::max(&(&length + n), &Dim::from(0)),
        Some(n) => Dim::min(&length, &Dim::from(n)),
    };
    let (start, end, step) = (place("start", Dim::from(0)), place("end", length.clone()), c.call.int("step"));
    let size = Dim::max(&(&end - &start).ceil_div(&Dim::from(step)), &Dim::from(0));
    (axis, start, size, step)
}

/// Axis and index of one element.
fn position(c: &Context, x: Value) -> (usize, Dim) {
    let axis = c.axis(x, c.call.int("dim"));
    let index = c.call.int("index");
    (axis, if index < 0 { &c.shape(x)[axis] + index } else { Dim::from(index) })
}

fn strided(c: &Context) -> (Vec<Dim>, Vec<Dim>, Dim) {
    let dims = |name: &str| c.call.ints(name).into_iter().map(Dim::from).collect();
    let offset = c.call.attribute("storage_offset").map_or(0, |_| c.call.int("storage_offset"));
    (dims("size"), dims("stride"), Dim::from(offset))
}
