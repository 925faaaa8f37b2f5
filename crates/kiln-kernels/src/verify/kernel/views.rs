//! Attention and routines: ranks, dtypes and accesses of their views.

use super::Rule;
use super::insts::{buffer, same};
use super::scope::Scope;
use crate::kernel::{AttentionBackwardBody, AttentionBody, AttentionPart, BodyView, Kernel, RoutineBody, Strided};
use kiln_ir::{DType, Dim};

/// Checks views of one kernel.
struct Views<'a> {
    kernel: &'a Kernel,
    scope: Scope<'a>,
    written: &'a mut [bool],
}

impl<'a> Views<'a> {
    fn new(kernel: &'a Kernel, written: &'a mut [bool]) -> Result<Views<'a>, Rule> {
        Ok(Views { kernel, scope: Scope::new(kernel, &[])?, written })
    }

    /// The type of a view's elements.
    fn view(&mut self, what: &'static str, view: &Strided, rank: usize, written: bool) -> Result<DType, Rule> {
        let dtype = buffer(self.kernel, view.buffer, written)?;
        if view.strides.len() != rank {
            return Err(Rule::Count { what, expected: rank, found: view.strides.len() });
        }
        self.dims([&view.offset].into_iter().chain(&view.strides))?;
        self.written[view.buffer] |= written;
        Ok(dtype)
    }

    fn dims<'d>(&self, dims: impl IntoIterator<Item = &'d Dim>) -> Result<(), Rule> {
        dims.into_iter().try_for_each(|dim| self.scope.dim(dim))
    }

    /// Sizes: expressions that are not negative numbers.
    fn sizes<'d>(&self, what: &'static str, least: i64, dims: impl IntoIterator<Item = &'d Dim>) -> Result<(), Rule> {
        dims.into_iter().try_for_each(|dim| match dim.as_const() {
            Some(size) if size < least => Err(Rule::OutOfRange { what, value: dim.clone() }),
            _ => self.scope.dim(dim),
        })
    }
}

pub(super) fn attention(kernel: &Kernel, a: &AttentionBody, written: &mut [bool]) -> Result<(), Rule> {
    let mut views = Views::new(kernel, written)?;
    views.sizes("a size", 0, [&a.batch, &a.heads, &a.kv_heads, &a.queries, &a.keys, &a.width, &a.value_width])?;
    if let (Some(heads), Some(groups)) = (a.heads.as_const(), a.kv_heads.as_const())
        && (groups == 0 && heads != 0 || groups != 0 && heads % groups != 0)
    {
        return Err(Rule::OutOfRange { what: "the number of query heads a key head", value: a.heads.clone() });
    }
    let dtype = views.view("strides of q", &a.q, 4, false)?;
    if !dtype.is_float() {
        return Err(Rule::NoSuchOp { op: "attention", dtype });
    }
    same("k", dtype, views.view("strides of k", &a.k, 4, false)?)?;
    same("v", dtype, views.view("strides of v", &a.v, 4, false)?)?;
    for pages in [&a.k_pages, &a.v_pages].into_iter().flatten() {
        let table = views.view("strides of a table", &pages.table, 2, false)?;
        if !matches!(table, DType::I32 | DType::I64) {
            return Err(Rule::DType { what: "a table", expected: DType::I64, found: table });
        }
        views.sizes("the length of a page", 1, [&pages.length])?;
        views.sizes("the number of pages", 0, [&pages.count])?;
        views.dims([&pages.stride])?;
    }
    if let Some(mask) = &a.mask {
        let mask = views.view("strides of the mask", mask, 4, false)?;
        if !matches!(mask, DType::Bool | DType::I64) && !mask.is_float() {
            return Err(Rule::DType { what: "the mask", expected: DType::Bool, found: mask });
        }
    }
    same("the scale", DType::F64, a.scale.dtype())?;
    if let Some(logsumexp) = &a.logsumexp {
        let found = views.view("strides of the logarithms", logsumexp, 4, true)?;
        same("the logarithms", dtype.compute_type(), found)?;
    }
    same("the result", dtype, views.view("strides of the result", &a.out, 4, true)?)
}

pub(super) fn attention_backward(kernel: &Kernel, a: &AttentionBackwardBody, written: &mut [bool]) -> Result<(), Rule> {
    let mut views = Views::new(kernel, written)?;
    views.sizes("a size", 0, [&a.batch, &a.heads, &a.kv_heads, &a.queries, &a.keys, &a.width])?;
    if let (Some(heads), Some(groups)) = (a.heads.as_const(), a.kv_heads.as_const())
        && (groups == 0 && heads != 0 || groups != 0 && heads % groups != 0)
    {
        return Err(Rule::OutOfRange { what: "the number of query heads a key head", value: a.heads.clone() });
    }
    if let AttentionPart::Gradients(of) = &a.part {
        views.sizes("a size", 0, [&of.value_width])?;
        if of.queries.is_none() && of.keys.is_none() && of.values.is_none() {
            return Err(Rule::Count { what: "gradients of attention", expected: 1, found: 0 });
        }
    }
    same("the scale", DType::F64, a.scale.dtype())?;
    let dtype = buffer(kernel, a.q.buffer, false)?;
    if !dtype.is_float() {
        return Err(Rule::NoSuchOp { op: "attention", dtype });
    }
    for BodyView { name, view, written, .. } in a.views() {
        let found = views.view("strides of a view", view, 4, written)?;
        match name {
            "mask" if found == DType::Bool || found.is_float() => {}
            "mask" => return Err(Rule::DType { what: "the mask", expected: DType::Bool, found }),
            "logsumexp" | "delta" | "out" => same(name, dtype.compute_type(), found)?,
            _ => same(name, dtype, found)?,
        }
    }
    Ok(())
}

fn axis_of(axis: usize, rank: usize) -> Result<(), Rule> {
    if axis < rank { Ok(()) } else { Err(Rule::OutOfRange { what: "the axis", value: Dim::from(axis as i64) }) }
}

pub(super) fn routine(kernel: &Kernel, body: &RoutineBody, written: &mut [bool]) -> Result<(), Rule> {
    let mut views = Views::new(kernel, written)?;
    match body {
        RoutineBody::Scan { shape, axis, input, output, .. } => {
            views.sizes("a size", 0, shape)?;
            axis_of(*axis, shape.len())?;
            let dtype = views.view("strides of the input", input, shape.len(), false)?;
            same("the output", dtype, views.view("strides of the output", output, shape.len(), true)?)
        }
        RoutineBody::SortIndices { shape, axis, count, input, output, .. } => {
            views.sizes("a size", 0, shape.iter().chain([count]))?;
            axis_of(*axis, shape.len())?;
            if let (Some(count), Some(size)) = (count.as_const(), shape[*axis].as_const())
                && count > size
            {
                return Err(Rule::OutOfRange { what: "the number of results", value: Dim::from(count) });
            }
            views.view("strides of the input", input, shape.len(), false)?;
            same("the output", DType::I64, views.view("strides of the output", output, shape.len(), true)?)
        }
        RoutineBody::Scatter { shape, updates_shape, axis, index, updates, output, .. } => {
            views.sizes("a size", 0, shape.iter().chain(updates_shape))?;
            axis_of(*axis, shape.len())?;
            if shape.len() != updates_shape.len() {
                let (expected, found) = (shape.len(), updates_shape.len());
                return Err(Rule::Count { what: "axes of the updates", expected, found });
            }
            let indices = views.view("strides of the index", index, shape.len(), false)?;
            if !matches!(indices, DType::I32 | DType::I64) {
                return Err(Rule::DType { what: "the index", expected: DType::I64, found: indices });
            }
            let dtype = views.view("strides of the updates", updates, shape.len(), false)?;
            // The base is read and changed.
            buffer(kernel, output.buffer, false)?;
            same("the output", dtype, views.view("strides of the output", output, shape.len(), true)?)
        }
    }
}
