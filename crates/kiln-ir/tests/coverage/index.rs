//! Reading and writing by index.

use crate::context::{Context, Entry, Results, Value, real};
use kiln_ir::build::{self, ScatterReduction};
use kiln_ir::{DType, Dim, NodeId, ScatterKind};

fn one(id: NodeId) -> Results {
    Ok(vec![real(id)])
}

/// The tensor `self` and the axis `dim` of it.
fn along(c: &Context) -> (Value, usize) {
    let x = c.tensor("self");
    (x, c.axis(x, c.call.int("dim")))
}

pub const ENTRIES: &[Entry] = &[
    Entry {
        ops: &["aten.index.Tensor", "aten._unsafe_index.Tensor"],
        text: "`index_axes`",
        build: |c| {
            let x = c.node("self");
            let indices: Vec<Option<NodeId>> = c.list("indices").iter().map(|i| i.map(|i| i.id)).collect();
            one(build::index_axes(&mut c.b, &x, &indices)?)
        },
    },
    Entry {
        ops: &["aten.index_put.default"],
        text: "`index_put_axes`; with a mask `masked_put`",
        build: |c| {
            let (x, values) = (c.node("self"), c.node("values"));
            let indices: Vec<Option<NodeId>> = c.list("indices").iter().map(|i| i.map(|i| i.id)).collect();
            let accumulate = c.call.flag("accumulate");
            let mask = indices.iter().position(|i| i.is_some_and(|i| c.ty(real(i)).dtype == DType::Bool));
            if let Some(first) = mask {
                let mask = indices[first].unwrap();
                return one(build::masked_put(&mut c.b, &x, first, &mask, &values, accumulate)?);
            }
            let kind = if accumulate { ScatterKind::Add } else { ScatterKind::Set };
            one(build::index_put_axes(&mut c.b, kind, &x, &indices, &values)?)
        },
    },
    Entry {
        ops: &["aten.index_select.default"],
        text: "`index_select`",
        build: |c| {
            let ((x, axis), index) = (along(c), c.node("index"));
            one(build::index_select(&mut c.b, &x.id, axis, &index)?)
        },
    },
    Entry {
        ops: &["aten.gather.default"],
        text: "`gather`; of complex numbers with the index for both parts",
        build: |c| {
            let ((x, axis), index) = (along(c), c.tensor("index"));
            let mut index = index.id;
            if x.complex {
                let mut shape = c.shape(real(index));
                index = build::unsqueeze(&mut c.b, &index, shape.len())?;
                shape.push(Dim::from(2));
                index = build::broadcast_to(&mut c.b, &index, &shape)?;
            }
            let id = build::gather(&mut c.b, &x.id, axis, &index)?;
            Ok(vec![Value { id, complex: x.complex }])
        },
    },
    Entry {
        ops: &["aten.embedding.default"],
        text: "`embedding`",
        build: |c| {
            let (weight, index) = (c.node("weight"), c.node("indices"));
            one(build::embedding(&mut c.b, &weight, &index)?)
        },
    },
    Entry {
        ops: &["aten.embedding_dense_backward.default"],
        text: "`embedding_backward`",
        build: |c| {
            let (gradient, index) = (c.node("grad_output"), c.node("indices"));
            let (entries, padding) = (Dim::from(c.call.int("num_weights")), c.call.int("padding_idx"));
            let (padding, frequency) = ((padding >= 0).then_some(padding), c.call.flag("scale_grad_by_freq"));
            one(build::embedding_backward(&mut c.b, &gradient, &index, &entries, padding, frequency)?)
        },
    },
    Entry {
        ops: &["aten.index_add.default"],
        text: "`scatter_rows` of the source times alpha",
        build: |c| {
            let ((x, axis), index, source) = (along(c), c.node("index"), c.node("source"));
            let source = build::mul_scalar(&mut c.b, &source, c.call.float("alpha"))?;
            one(build::scatter_rows(&mut c.b, ScatterKind::Add, &x.id, axis, &index, &source)?)
        },
    },
    Entry {
        ops: &["aten.scatter.src", "aten.scatter_add.default"],
        text: "`scatter`",
        build: |c| {
            let ((x, axis), index, updates) = (along(c), c.node("index"), c.node("src"));
            let kind = if c.call.op.contains("add") { ScatterKind::Add } else { ScatterKind::Set };
            one(build::scatter(&mut c.b, kind, &x.id, axis, &index, &updates)?)
        },
    },
    Entry {
        ops: &["aten.scatter.value"],
        text: "`scatter` of a `full`",
        build: |c| {
            let ((x, axis), index) = (along(c), c.tensor("index"));
            let value = c.call.scalar("value", c.ty(x).dtype);
            let shape = c.shape(index);
            let updates = build::full(&mut c.b, value, &shape)?;
            one(build::scatter(&mut c.b, ScatterKind::Set, &x.id, axis, &index.id, &updates)?)
        },
    },
    Entry {
        ops: &["aten.scatter_reduce.two"],
        text: "`scatter_reduce`",
        build: |c| {
            let ((x, axis), index, updates) = (along(c), c.node("index"), c.node("src"));
            let reduction = match c.call.word("reduce").unwrap() {
                "sum" => ScatterReduction::Sum,
                "prod" => ScatterReduction::Prod,
                "mean" => ScatterReduction::Mean,
                "amax" => ScatterReduction::Max,
                _ => ScatterReduction::Min,
            };
            one(build::scatter_reduce(&mut c.b, reduction, &x.id, axis, &index, &updates, c.call.flag("include_self"))?)
        },
    },
    Entry {
        ops: &["aten.masked_scatter.default"],
        text: "`masked_scatter`",
        build: |c| {
            let (x, mask, source) = (c.node("self"), c.node("mask"), c.node("source"));
            one(build::masked_scatter(&mut c.b, &x, &mask, &source)?)
        },
    },
    Entry {
        ops: &["aten.masked_scatter_backward.default"],
        text: "`masked_pack`",
        build: |c| {
            let (gradient, mask) = (c.node("grad_output"), c.node("mask"));
            let shape: Vec<Dim> = c.call.ints("sizes").into_iter().map(Dim::from).collect();
            one(build::masked_pack(&mut c.b, &gradient, &mask, &shape)?)
        },
    },
];
