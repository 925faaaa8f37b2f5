//! What a launch has to do at given sizes: bytes that must come from memory and go there at the least, and arithmetic.

use crate::kernel::{
    Access, AttentionPart, Axis, BodyView, Domain, Inst, InstKind, KernelBody, LoopBody, Place, RoutineBody,
};
use crate::schedule::{Schedule, Step};
use kiln_ir::op::mask_columns;
use kiln_ir::{DType, Dim, Symbol};

/// The work of one launch. Bytes count each element of memory that is touched once, however often it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
    /// Arithmetic operations on elements; a function such as `exp` counts as one, a multiplication and addition as two.
    pub flops: u64,
}

impl Work {
    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.read.saturating_add(self.written)
    }
}

impl std::ops::Add for Work {
    type Output = Work;
    fn add(self, other: Work) -> Work {
        Work {
            read: self.read.saturating_add(other.read),
            written: self.written.saturating_add(other.written),
            flops: self.flops.saturating_add(other.flops),
        }
    }
}

type Size<'a> = &'a dyn Fn(Symbol) -> Option<i64>;

impl Schedule {
    /// The work of a launch of this schedule, given the values of size symbols; `None` where a size has no value.
    ///
    /// ```
    /// use kiln_ir::Graph;
    /// use kiln_kernels::{InputLayout, ScheduleOptions, schedule};
    /// let graph = Graph::parse("graph(%0: f32[n]) {
    ///   %1: f32[n] = exp %0
    ///   return %1
    /// }").unwrap();
    /// let layout = InputLayout::contiguous(graph.ty(graph.inputs()[0]));
    /// let schedule = schedule(&graph, &[layout], &ScheduleOptions::default()).unwrap();
    /// let work = schedule.work(&schedule.steps[0], &|_| Some(10)).unwrap();
    /// assert_eq!((work.read, work.written, work.flops), (40, 40, 10));
    /// ```
    pub fn work(&self, step: &Step, size: Size<'_>) -> Option<Work> {
        let mut tally = Tally { size, touched: vec![(0, 0); step.args.len()], flops: 0 };
        for body in step.kernel.bodies() {
            tally.body(step, body)?;
        }
        let mut work = Work { flops: tally.flops, ..Work::default() };
        for ((arg, decl), &(read, written)) in step.args.iter().zip(&step.kernel.buffers).zip(&tally.touched) {
            let whole = tally.value(&self.buffers[arg.index()].elements)?;
            work.read = work.read.saturating_add(bytes(decl.dtype, read.min(whole))?);
            work.written = work.written.saturating_add(bytes(decl.dtype, written.min(whole))?);
        }
        Some(work)
    }
}

fn bytes(dtype: DType, elements: u64) -> Option<u64> {
    dtype.bytes_for(usize::try_from(elements).ok()?).map(|n| n as u64)
}

fn tally_product(sizes: &[&Dim], size: Size<'_>) -> Option<u64> {
    sizes.iter().try_fold(1u64, |product, dim| {
        Some(product.saturating_mul(u64::try_from(dim.as_const().or_else(|| dim.eval(size))?).ok()?))
    })
}

struct Tally<'a> {
    size: Size<'a>,
    /// By argument: elements read and written.
    touched: Vec<(u64, u64)>,
    flops: u64,
}

impl Tally<'_> {
    fn value(&self, dim: &Dim) -> Option<u64> {
        tally_product(&[dim], self.size)
    }

    fn read(&mut self, argument: usize, elements: u64) {
        self.touched[argument].0 = self.touched[argument].0.saturating_add(elements);
    }

    fn write(&mut self, argument: usize, elements: u64) {
        self.touched[argument].1 = self.touched[argument].1.saturating_add(elements);
    }

    fn body(&mut self, step: &Step, body: &KernelBody) -> Option<()> {
        match body {
            KernelBody::Loop(body) => self.stages(body)?,
            KernelBody::Matmul(body) => {
                let [batch, m, n, k] = [&body.batch, &body.m, &body.n, &body.k];
                body.before.iter().try_for_each(|before| self.stages(before))?;
                self.insts(&body.lhs.insts, &batch.iter().chain(m).chain(k).collect::<Vec<_>>())?;
                let (right, result): (Vec<&Axis>, Vec<&Axis>) =
                    (batch.iter().chain(k).chain(n).collect(), batch.iter().chain(m).chain(n).collect());
                body.rhs.iter().try_for_each(|rhs| self.insts(&rhs.insts, &right))?;
                self.insts(&body.epilogue, &result)?;
                self.operations(&result.into_iter().chain(k).collect::<Vec<_>>(), 2 * body.rhs.len() as u64)?;
            }
            KernelBody::Attention(body) => {
                let size = self.size;
                let count = |sizes: &[&Dim]| tally_product(sizes, size);
                let (b, h, g, t, s) = (&body.batch, &body.heads, &body.kv_heads, &body.queries, &body.keys);
                self.read(body.q.buffer, count(&[b, h, t, &body.width])?);
                self.read(body.k.buffer, count(&[b, g, s, &body.width])?);
                self.read(body.v.buffer, count(&[b, g, s, &body.value_width])?);
                for pages in [&body.k_pages, &body.v_pages].into_iter().flatten() {
                    let count = count(&[b, s])?.div_ceil(self.value(&pages.length)?.max(1));
                    self.read(pages.table.buffer, count);
                }
                if let Some(mask) = &body.mask {
                    let columns = mask_columns(step.kernel.buffers[mask.buffer].dtype, s);
                    let sizes = [b, h, t, &columns];
                    let moving: Vec<&Dim> =
                        sizes.into_iter().zip(&mask.strides).filter(|(_, d)| !d.is_zero()).map(|(n, _)| n).collect();
                    self.read(mask.buffer, count(&moving)?);
                }
                self.write(body.out.buffer, count(&[b, h, t, &body.value_width])?);
                if let Some(logsumexp) = &body.logsumexp {
                    self.write(logsumexp.buffer, count(&[b, h, t])?);
                }
                let pairs = count(&[b, h, t, s])?;
                let width = self.value(&body.width)?.saturating_add(self.value(&body.value_width)?);
                let flops = pairs.saturating_mul(width.saturating_mul(2));
                self.flops += if body.causal { flops / 2 } else { flops };
            }
            KernelBody::AttentionBackward(body) => {
                let size = self.size;
                let count = |sizes: &[&Dim]| tally_product(sizes, size);
                for BodyView { view, shape, written, .. } in body.views() {
                    let moving: Vec<&Dim> =
                        shape.into_iter().zip(&view.strides).filter(|(_, d)| !d.is_zero()).map(|(n, _)| n).collect();
                    let elements = count(&moving)?;
                    if written { self.write(view.buffer, elements) } else { self.read(view.buffer, elements) }
                }
                let pairs = count(&[&body.batch, &body.heads, &body.queries, &body.keys])?;
                let width = self.value(&body.width)?;
                // One product for the scores, one for the gradients of the weights, and one a result.
                let widths = match &body.part {
                    AttentionPart::Logsumexp { .. } => width,
                    AttentionPart::Gradients(of) => {
                        let value_width = self.value(&of.value_width)?;
                        let slopes = of.queries.iter().chain(&of.keys).count() as u64;
                        let values = if of.values.is_some() { value_width } else { 0 };
                        let products = if slopes > 0 { value_width } else { 0 };
                        width.saturating_mul(1 + slopes).saturating_add(values).saturating_add(products)
                    }
                };
                let flops = pairs.saturating_mul(widths.saturating_mul(2));
                self.flops += if body.causal { flops / 2 } else { flops };
            }
            KernelBody::Routine(body) => {
                for (at, arg) in step.kernel.buffers.iter().enumerate() {
                    if arg.access != Access::Write {
                        self.read(at, u64::MAX);
                    }
                    if arg.access != Access::Read {
                        self.write(at, u64::MAX);
                    }
                }
                let (RoutineBody::Scan { shape, .. }
                | RoutineBody::SortIndices { shape, .. }
                | RoutineBody::Scatter { updates_shape: shape, .. }) = body;
                self.flops += tally_product(&shape.iter().collect::<Vec<_>>(), self.size)?;
            }
            KernelBody::Repeat(_) => {
                // Of the body only what goes in and comes out is counted.
                for (at, arg) in step.kernel.buffers.iter().enumerate() {
                    match arg.access {
                        Access::Read => self.read(at, u64::MAX),
                        _ => self.write(at, u64::MAX),
                    }
                }
            }
            KernelBody::Parallel(_) => return None,
        }
        Some(())
    }

    fn stages(&mut self, body: &LoopBody) -> Option<()> {
        let all: Vec<&Axis> = body.grid.iter().chain(&body.row).collect();
        let grid: Vec<&Axis> = body.grid.iter().collect();
        for stage in &body.stages {
            let axes = if stage.domain == Domain::Row { &all } else { &grid };
            self.insts(&stage.insts, axes)?;
            self.operations(axes, stage.reductions.len() as u64)?;
        }
        Some(())
    }

    fn operations(&mut self, axes: &[&Axis], each: u64) -> Option<()> {
        let points = tally_product(&axes.iter().map(|axis| &axis.size).collect::<Vec<_>>(), self.size)?;
        self.flops = self.flops.saturating_add(points.saturating_mul(each));
        Some(())
    }

    /// Elements at most at a place while the axes run: along an axis that does not move it, there is only one.
    fn reach(&self, place: &Place, axes: &[&Axis]) -> Option<u64> {
        let moves = |axis: &&&Axis| !place.indirect.is_empty() || place.offset.contains(axis.var);
        tally_product(&axes.iter().filter(moves).map(|axis| &axis.size).collect::<Vec<_>>(), self.size)
    }

    fn insts(&mut self, insts: &[Inst], axes: &[&Axis]) -> Option<()> {
        let mut each = 0;
        for inst in insts {
            match &inst.kind {
                InstKind::Load { place, .. } => self.read(place.buffer, self.reach(place, axes)?),
                InstKind::LoadBlock { place, element, format } => {
                    let moves = |axis: &&&Axis| place.offset.contains(axis.var) || element.contains(axis.var);
                    let points: Vec<&Dim> = axes.iter().filter(moves).map(|axis| &axis.size).collect();
                    let elements = tally_product(&points, self.size)?;
                    self.read(place.buffer, elements / format.elements() as u64 * format.bytes() as u64);
                }
                InstKind::Store { place, .. } => self.write(place.buffer, self.reach(place, axes)?),
                InstKind::Unary(..)
                | InstKind::Binary(..)
                | InstKind::Compare(..)
                | InstKind::Select(..)
                | InstKind::Random { .. } => each += 1,
                _ => {}
            }
        }
        self.operations(axes, each)
    }
}
