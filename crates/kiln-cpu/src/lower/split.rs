//! Long rows in parts: a reduction over few grid points becomes two kernels, so that many threads work on it.
//!
//! ```text
//!  first    for each grid point and part:  the row stage over the part's points ──▶ one partial result per reduction
//!  second   for each grid point:           partial results combined, then the point stages that follow
//! ```
//!
//! Both take two more sizes, [`CHUNK`] (points of the outermost row axis per part) and [`PARTS`], and one more buffer for each
//! partial result. Every part has at least one point.

use kiln_ir::{BinaryOp, DType, Dim, Symbol};
use kiln_kernels::kernel::{
    Access, Axis, BufferArg, Domain, Inst, InstKind, Kernel, KernelBody, LoopBody, Place, ReductionKind, Stage, ValueId,
};

/// Size symbol: points of the outermost row axis in a part.
const CHUNK: &str = "_chunk";
/// Size symbol: number of parts.
const PARTS: &str = "_parts";

/// The two kernels of a split reduction.
pub struct Split {
    /// Makes the partial results.
    pub first: Kernel,
    /// Combines them.
    pub second: Kernel,
    /// Types of the partial results, in the order of the buffers that hold them.
    pub partials: Vec<DType>,
    /// Size of the row axis that is split.
    pub length: Dim,
}

/// Splits a kernel with a single row stage that only point stages follow.
pub fn split(kernel: &Kernel, body: &LoopBody) -> Option<Split> {
    let mut rows = body.stages.iter().enumerate().filter(|(_, stage)| stage.domain == Domain::Row);
    let (at, row_stage) = rows.next()?;
    if rows.next().is_some() || row_stage.reductions.is_empty() || !body.temps.is_empty() {
        return None;
    }
    let (chunk, parts) = (Symbol::new(CHUNK)?, Symbol::new(PARTS)?);
    let (part, partial) = (Symbol::new("_part")?, Symbol::new("_partial")?);
    let (cut, inner) = body.row.split_first()?;
    let mut builder = Builder { next: highest(body) + 1 };
    let start = Dim::from(part) * Dim::from(chunk);

    let unit = body.grid.iter().fold(Dim::from(0), |linear, axis| linear * &axis.size + Dim::from(axis.var));
    let slot = &unit * Dim::from(parts);
    let mut buffers = kernel.buffers.clone();
    let mut partials = Vec::new();
    let mut add = |dtype: DType| {
        buffers.push(BufferArg { dtype, access: Access::Write });
        partials.push(dtype);
        buffers.len() - 1
    };
    let place = |buffer, offset: Dim| Place { buffer, offset, indirect: Vec::new() };

    let mut first_stages: Vec<Stage> = body.stages[..at].iter().map(without_stores).collect();
    let mut cut_stage = row_stage.clone();
    super::axes::rewrite_stage(&mut cut_stage, &|e| {
        e.substitute(&|s| (s == cut.var).then(|| &start + Dim::from(cut.var)))
    });
    first_stages.push(cut_stage);
    let mut stores = Vec::new();
    let mut combine = Stage { domain: Domain::Row, insts: Vec::new(), reductions: Vec::new() };
    let mut finish = Vec::new();
    for r in &row_stage.reductions {
        let here = &slot + Dim::from(part);
        let there = &slot + Dim::from(partial);
        match r.kind {
            ReductionKind::Reduce(_) => {
                let buffer = add(r.dtype);
                stores.push(builder.store(r.dtype, place(buffer, here), r.result));
                let loaded = builder.load(r.dtype, place(buffer, there));
                let value = loaded.id;
                combine.insts.push(loaded);
                combine.reductions.push(kiln_kernels::kernel::Reduction { value, ..r.clone() });
            }
            ReductionKind::Arg(_) => {
                // The extreme itself, found again at its position, and the position in the whole row.
                let points: Dim = inner.iter().map(|axis| &axis.size).product();
                let shift = builder.inst(DType::I64, InstKind::Index(&start * points));
                let global = builder.inst(DType::I64, InstKind::Binary(BinaryOp::Add, r.result, shift.id));
                let (positions, values) = (add(DType::I64), add(r.dtype));
                stores.push(shift);
                let global_id = global.id;
                stores.push(global);
                stores.push(builder.store(DType::I64, place(positions, here.clone()), global_id));
                let extreme = first_stages.last_mut()?;
                let kind = match r.kind {
                    ReductionKind::Arg(kiln_ir::ArgKind::Max) => kiln_ir::ReduceKind::Max,
                    _ => kiln_ir::ReduceKind::Min,
                };
                let top = ValueId(builder.fresh());
                extreme.reductions.push(kiln_kernels::kernel::Reduction {
                    kind: ReductionKind::Reduce(kind),
                    value: r.value,
                    dtype: r.dtype,
                    result: top,
                });
                stores.push(builder.store(r.dtype, place(values, here), top));
                let loaded = builder.load(r.dtype, place(values, there));
                let (value, winner) = (loaded.id, ValueId(builder.fresh()));
                combine.insts.push(loaded);
                combine.reductions.push(kiln_kernels::kernel::Reduction { value, result: winner, ..r.clone() });
                let at = Place { buffer: positions, offset: slot.clone(), indirect: vec![(winner, Dim::from(1))] };
                finish.push(Inst { id: r.result, dtype: DType::I64, kind: InstKind::Load { place: at, guard: None } });
            }
        }
    }
    first_stages.push(Stage { domain: Domain::Point, insts: stores, reductions: Vec::new() });

    let mut sizes = kernel.sizes.clone();
    sizes.extend([chunk, parts]);
    let mut grid = body.grid.clone();
    grid.push(Axis { var: part, size: Dim::from(parts) });
    let mut row = body.row.clone();
    row[0].size = Dim::min_of([Dim::from(chunk), &cut.size - &start]);
    let made = LoopBody { grid, row, stages: first_stages, temps: Vec::new() };
    let first = Kernel { buffers: buffers.clone(), sizes: sizes.clone(), body: KernelBody::Loop(made) };

    for buffer in &mut buffers[kernel.buffers.len()..] {
        buffer.access = Access::Read;
    }
    let mut stages = body.stages[..at].to_vec();
    stages.push(combine);
    stages.push(Stage { domain: Domain::Point, insts: finish, reductions: Vec::new() });
    stages.extend_from_slice(&body.stages[at + 1..]);
    let row = vec![Axis { var: partial, size: Dim::from(parts) }];
    let made = LoopBody { grid: body.grid.clone(), row, stages, temps: Vec::new() };
    let second = Kernel { buffers, sizes, body: KernelBody::Loop(made) };
    Some(Split { first, second, partials, length: cut.size.clone() })
}

fn without_stores(stage: &Stage) -> Stage {
    let kept = |inst: &&Inst| !matches!(inst.kind, InstKind::Store { .. });
    Stage { domain: stage.domain, insts: stage.insts.iter().filter(kept).cloned().collect(), reductions: Vec::new() }
}

fn highest(body: &LoopBody) -> u32 {
    let ids = |stage: &Stage| {
        let insts = stage.insts.iter().map(|inst| inst.id.0).filter(|id| *id != u32::MAX);
        insts.chain(stage.reductions.iter().map(|r| r.result.0)).max().unwrap_or(0)
    };
    body.stages.iter().map(ids).max().unwrap_or(0)
}

/// Emits instructions with fresh numbers.
struct Builder {
    next: u32,
}

impl Builder {
    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    fn inst(&mut self, dtype: DType, kind: InstKind) -> Inst {
        Inst { id: ValueId(self.fresh()), dtype, kind }
    }

    fn load(&mut self, dtype: DType, place: Place) -> Inst {
        self.inst(dtype, InstKind::Load { place, guard: None })
    }

    fn store(&mut self, dtype: DType, place: Place, value: ValueId) -> Inst {
        self.inst(dtype, InstKind::Store { place, value, guard: None })
    }
}
