//! Reading and writing by index.

use crate::Error;
use crate::call::{Context, Value, one, real};
use crate::rows::Row;
use kiln_ir::build::{self, Emit, ScatterReduction};
use kiln_ir::{DType, Dim, NodeId, ScatterKind};

/// The tensor `self` and the axis `dim` of it.
fn along(c: &Context) -> Result<(Value, usize), Error> {
    let x = c.tensor("self")?;
    Ok((x, c.axis(x, c.int("dim")?)?))
}

/// Axis, target and index of a scatter, of scalars the vectors of their elements. All are real.
fn scattered(c: &mut Context) -> Result<(usize, NodeId, NodeId), Error> {
    let ((x, axis), index) = (along(c)?, c.tensor("index")?);
    if x.complex {
        return c.unsupported("of complex numbers");
    }
    Ok((axis, c.with_an_axis(x)?.id, c.with_an_axis(index)?.id))
}

/// The indices of the first axes, where there is one.
fn indices(c: &Context) -> Result<Vec<Option<NodeId>>, Error> {
    Ok(c.list("indices")?.iter().map(|i| i.map(|i| i.id)).collect())
}

/// Whether an index says of every element whether it is meant. PyTorch takes bytes for such a mask too.
fn is_mask(c: &Context, index: NodeId) -> bool {
    matches!(c.b.ty(&index).dtype, DType::Bool | DType::U8)
}

pub(super) const ROWS: &[Row] = &[
    Row {
        ops: &["aten.index.Tensor", "aten._unsafe_index.Tensor"],
        text: "`index_axes`",
        build: |c| {
            let (x, indices) = (c.node("self")?, indices(c)?);
            if indices.iter().flatten().any(|&i| is_mask(c, i)) {
                return c.unsupported("with a mask");
            }
            one(build::index_axes(&mut c.b, &x, &indices)?)
        },
    },
    Row {
        ops: &["aten.index_put.default"],
        text: "`index_put_axes`; with a mask `masked_put`",
        build: |c| {
            let (x, values, indices) = (c.node("self")?, c.node("values")?, indices(c)?);
            let accumulate = c.flag_or("accumulate", false)?;
            let mask = indices.iter().enumerate().find_map(|(i, &index)| Some((i, index.filter(|&x| is_mask(c, x))?)));
            if let Some((first, mask)) = mask {
                if indices.iter().flatten().count() > 1 || c.b.ty(&mask).dtype != DType::Bool {
                    return c.unsupported("with a mask among other indices");
                }
                return one(build::masked_put(&mut c.b, &x, first, &mask, &values, accumulate)?);
            }
            let kind = if accumulate { ScatterKind::Add } else { ScatterKind::Set };
            one(build::index_put_axes(&mut c.b, kind, &x, &indices, &values)?)
        },
    },
    Row {
        ops: &["aten.index_select.default"],
        text: "`index_select`",
        build: |c| {
            let ((given, axis), index) = (along(c)?, c.tensor("index")?);
            if given.complex {
                return c.unsupported("of complex numbers");
            }
            let (x, index) = (c.with_an_axis(given)?.id, c.with_an_axis(index)?.id);
            let y = build::index_select(&mut c.b, &x, axis, &index)?;
            one(c.without_it(given, y)?)
        },
    },
    Row {
        ops: &["aten.gather.default"],
        text: "`gather`; of complex numbers with the index for both parts",
        build: |c| {
            let ((x, axis), given) = (along(c)?, c.tensor("index")?);
            let (x, mut index) = (c.with_an_axis(x)?, c.with_an_axis(given)?.id);
            if x.complex {
                let mut shape = c.shape(real(index));
                index = build::unsqueeze(&mut c.b, &index, shape.len())?;
                shape.push(Dim::from(2));
                index = build::broadcast_to(&mut c.b, &index, &shape)?;
            }
            let mut id = build::gather(&mut c.b, &x.id, axis, &index)?;
            if !x.complex {
                id = c.without_it(given, id)?;
            }
            Ok(vec![Value { id, complex: x.complex }])
        },
    },
    Row {
        ops: &["aten.embedding.default"],
        text: "`embedding`",
        build: |c| {
            let (weight, index) = (c.node("weight")?, c.node("indices")?);
            one(build::embedding(&mut c.b, &weight, &index)?)
        },
    },
    Row {
        ops: &["aten.embedding_dense_backward.default"],
        text: "`embedding_backward`",
        build: |c| {
            let (gradient, index) = (c.node("grad_output")?, c.node("indices")?);
            let (entries, padding) = (c.dim("num_weights")?, c.int("padding_idx")?);
            let (padding, frequency) = ((padding >= 0).then_some(padding), c.flag("scale_grad_by_freq")?);
            one(build::embedding_backward(&mut c.b, &gradient, &index, &entries, padding, frequency)?)
        },
    },
    Row {
        ops: &["aten.index_add.default"],
        text: "`scatter_rows` of the source times alpha",
        build: |c| {
            let ((x, axis), index, source) = (along(c)?, c.node("index")?, c.node("source")?);
            let alpha = c.float_or("alpha", 1.0)?;
            let source = if alpha == 1.0 { source } else { build::mul_scalar(&mut c.b, &source, alpha)? };
            one(build::scatter_rows(&mut c.b, ScatterKind::Add, &x.id, axis, &index, &source)?)
        },
    },
    Row {
        ops: &["aten.scatter.src", "aten.scatter_add.default"],
        text: "`scatter`",
        build: |c| {
            let (axis, x, index) = scattered(c)?;
            let updates = c.tensor("src")?;
            let updates = c.with_an_axis(updates)?.id;
            let kind = if c.op().contains("add") { ScatterKind::Add } else { ScatterKind::Set };
            let y = build::scatter(&mut c.b, kind, &x, axis, &index, &updates)?;
            one(c.without_it(c.tensor("self")?, y)?)
        },
    },
    Row {
        ops: &["aten.scatter.value"],
        text: "`scatter` of a `full`",
        build: |c| {
            let (axis, x, index) = scattered(c)?;
            let value = c.cast_to("value", c.ty(real(x)).dtype)?;
            let shape = c.shape(real(index));
            let updates = build::broadcast_to(&mut c.b, &value, &shape)?;
            let y = build::scatter(&mut c.b, ScatterKind::Set, &x, axis, &index, &updates)?;
            one(c.without_it(c.tensor("self")?, y)?)
        },
    },
    Row {
        ops: &["aten.scatter_reduce.two"],
        text: "`scatter_reduce`",
        build: |c| {
            let (axis, x, index) = scattered(c)?;
            let updates = c.tensor("src")?;
            let updates = c.with_an_axis(updates)?.id;
            let reduction = match c.word("reduce")?.unwrap_or_default() {
                "sum" => ScatterReduction::Sum,
                "prod" => ScatterReduction::Prod,
                "mean" => ScatterReduction::Mean,
                "amax" => ScatterReduction::Max,
                _ => ScatterReduction::Min,
            };
            let keep = c.flag_or("include_self", true)?;
            let y = build::scatter_reduce(&mut c.b, reduction, &x, axis, &index, &updates, keep)?;
            one(c.without_it(c.tensor("self")?, y)?)
        },
    },
    Row {
        ops: &["aten.scatter.reduce", "aten.scatter.value_reduce"],
        text: "`scatter_reduce` of the source, or of a `full`",
        build: |c| {
            let (axis, x, index) = scattered(c)?;
            let updates = match c.optional("src")? {
                Some(updates) => c.with_an_axis(updates)?.id,
                None => {
                    let value = c.cast_to("value", c.ty(real(x)).dtype)?;
                    let shape = c.shape(real(index));
                    build::broadcast_to(&mut c.b, &value, &shape)?
                }
            };
            let reduction = match c.word("reduce")? {
                Some("add") => ScatterReduction::Sum,
                Some("multiply") => ScatterReduction::Prod,
                _ => return c.unsupported("with this reduction"),
            };
            let y = build::scatter_reduce(&mut c.b, reduction, &x, axis, &index, &updates, true)?;
            one(c.without_it(c.tensor("self")?, y)?)
        },
    },
    Row {
        ops: &["aten.index_reduce.default"],
        text: "`scatter_reduce` with the index along the axis",
        build: |c| {
            let (axis, x, index) = scattered(c)?;
            let source = c.tensor("source")?;
            let source = c.with_an_axis(source)?;
            let shape = c.shape(source);
            let index = build::along_axis(&mut c.b, &index, shape.len(), axis)?;
            let index = build::broadcast_to(&mut c.b, &index, &shape)?;
            let reduction = match c.word("reduce")? {
                Some("prod") => ScatterReduction::Prod,
                Some("mean") => ScatterReduction::Mean,
                Some("amax") => ScatterReduction::Max,
                Some("amin") => ScatterReduction::Min,
                _ => return c.unsupported("with this reduction"),
            };
            let keep = c.flag_or("include_self", true)?;
            let y = build::scatter_reduce(&mut c.b, reduction, &x, axis, &index, &source.id, keep)?;
            one(c.without_it(c.tensor("self")?, y)?)
        },
    },
    Row {
        ops: &["aten.masked_scatter.default"],
        text: "`masked_scatter`",
        build: |c| {
            let (x, mask, source) = (c.node("self")?, c.node("mask")?, c.node("source")?);
            one(build::masked_scatter(&mut c.b, &x, &mask, &source)?)
        },
    },
    Row {
        ops: &["aten.masked_scatter_backward.default"],
        text: "`masked_pack`",
        build: |c| {
            let (gradient, mask) = (c.node("grad_output")?, c.node("mask")?);
            let shape: Vec<Dim> = c.dims("sizes")?;
            one(build::masked_pack(&mut c.b, &gradient, &mask, &shape)?)
        },
    },
];
