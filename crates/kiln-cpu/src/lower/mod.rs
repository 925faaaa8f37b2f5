//! Loop kernels → vector IR.
//!
//! ```text
//!  VectorAxis::Grid                                   VectorAxis::Row
//!    for outer grid point in this piece of work          for grid point in this piece of work
//!      for each vector along the last grid axis             point stages: values that are equal in all lanes
//!        point stages; row stages as plain loops            row stages: outer row axes as plain loops,
//!        around the vector                                                 the last one by vectors, lanes combined after
//! ```
//!
//! Offsets are split into a scalar part, which the [`Builder`] moves out of every loop it does not depend on, and a
//! stride along the vector axis: 1 is a contiguous access, 0 one element for all lanes, anything else a gather or scatter.

mod axes;
mod bytes;
mod convert;
mod index;
mod inner;
mod interleave;
mod moved;
mod ops;
mod packed;
mod place;
mod reduce;
mod split;
mod turns;
mod unroll;

pub(crate) use axes::stores_where_data_say;
pub use split::{Split, split};

use crate::features::Isa;
use crate::vir::*;
use axes::{Nest, VectorAxis, arrange};
use kiln_ir::{Dim, Ranges, Symbol};
use kiln_kernels::kernel::{
    Access as BufferAccess, Axis, Domain, InstKind, Kernel, LoopBody, ReductionKind, Stage, ValueId, visit_operands,
};
use std::mem::offset_of;

/// Choices that change results in the last place only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Options {
    /// Whether a sum over a row may add products that are not rounded before. Pointwise code never contracts: `x·x − max(x·x)` must not
    /// become the rounding error of `x·x`, and fused code gives bit for bit what op by op gives.
    pub contract: bool,
    /// Copies of a body that run side by side, where the code does not choose itself; 8 at the most.
    pub copies: Option<usize>,
    /// Whether elements of one or two bytes that are only moved fill registers of 512 bits: for code of AVX-512 alone.
    pub packed: bool,
    /// Vector registers of the target.
    pub registers: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { contract: true, copies: None, packed: false, registers: 16 }
    }
}

impl Options {
    /// With what a target has.
    pub fn on(self, isa: Isa) -> Options {
        let has_masks = isa == Isa::Avx512;
        Options { packed: has_masks, registers: if has_masks { 32 } else { 16 }, ..self }
    }
}

/// A loop kernel in vector IR, and how to launch it.
#[derive(Debug)]
pub struct Lowered {
    /// The code; `begin..end` counts units.
    pub function: Function,
    /// Number of units: grid points.
    pub units: Dim,
    /// Number of points that run inside a unit: the row's, and those of an inner axis.
    pub row: Dim,
    /// Bytes of scratch memory per thread.
    pub scratch: Dim,
    /// Rough cost of one unit and row point, in instructions of a whole vector.
    pub weight: u32,
    /// Whether a unit is one lane (else it takes whole vectors).
    pub unit_is_lane: bool,
}

/// An error of lowering.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LowerError {
    /// The kernel breaks a rule of [`kiln_kernels::kernel`].
    #[error("malformed kernel: {0}")]
    Malformed(&'static str),
    /// An index expression names a symbol that is neither an axis nor a size.
    #[error("unknown symbol {0} in an index expression")]
    UnknownSymbol(Symbol),
    /// An index expression is too large.
    #[error("an index expression overflows")]
    Overflow,
}

/// The most copies of a body that run side by side.
const COPIES: usize = 8;
/// Copies of a reduction along the lanes: enough to hide the latency of its additions.
const ROW_COPIES: usize = 4;

/// A value of the kernel, in one copy of the body.
#[derive(Clone, Copy, Debug)]
struct Value {
    held: Representation,
    /// Whether all lanes are equal.
    uniform: bool,
}

/// The representation of a value. An I64 value may have a cheaper one than a vector of 64-bit lanes.
#[derive(Clone, Copy, Debug)]
enum Representation {
    /// A vector (or mask) of its dtype's type.
    Vector(V),
    /// I64, equal in all lanes: a scalar.
    Scalar(V),
    /// I64 with |value| < 2³¹ − 1: a vector of I32.
    Narrow(V),
}

/// The vector axis while code along it is emitted.
#[derive(Clone, Copy)]
struct Along {
    var: Symbol,
    /// Index of the first lane of copy 0.
    counter: V,
    /// The end of the axis.
    end: V,
    /// The mask of lanes that exist; absent when all do.
    tail: V,
    /// Copies come in pairs: even elements in one, odd ones in the next.
    paired: bool,
    /// Whole vectors between the counter and copy 0.
    vectors: usize,
}

struct Lowerer<'a> {
    b: Builder,
    kernel: &'a Kernel,
    body: &'a LoopBody,
    options: Options,
    /// Scalars of axes and sizes.
    symbols: Vec<(Symbol, V)>,
    ranges: Ranges,
    along: Option<Along>,
    /// The copy being emitted.
    copy: usize,
    values: Vec<[Option<Value>; COPIES]>,
    /// The type of each value.
    dtypes: Vec<Option<DType>>,
    /// The number of uses of each value.
    uses: Vec<u32>,
    /// Values of short floats that are loaded and stored without a change: their bits are moved.
    moved: Vec<bool>,
    /// The type of the elements of a body that only moves them, which fill a register.
    packed: Option<Ty>,
    /// The product each value is, for contraction: factors and the instruction's dtype.
    products: Vec<[Option<(V, V)>; COPIES]>,
    /// Accesses that are made together with others.
    interleaved: Vec<interleave::Interleaved>,
    /// Loads along an inner axis that come from blocks in local memory.
    transposed: Vec<inner::TransposedLoad>,
    /// Base of each row temporary.
    temps: Vec<V>,
    /// Whether lanes are grid points.
    by_lane: bool,
    /// Copies that share a row temporary.
    temp_copies: usize,
    /// Scalar position in the row, where the vector axis is a grid axis.
    row_position: V,
    error: V,
    context: V,
}

/// Lowers a loop kernel.
pub fn lower(kernel: &Kernel, body: &LoopBody, options: Options) -> Result<Lowered, LowerError> {
    let Nest { body, vector, inner } = arrange(body, &kernel.buffers);
    let count =
        body.stages.iter().flat_map(|s| s.insts.iter().map(|i| i.id.0).chain(s.reductions.iter().map(|r| r.result.0)));
    // Stores define nothing and may carry any id.
    let count = count.filter(|&id| id != u32::MAX).max().map_or(0, |id| id as usize + 1);
    let mut ranges = Ranges::new();
    for axis in body.grid.iter().chain(&body.row).chain(&inner) {
        ranges.set_below(axis.var, axis.size.clone());
    }
    for &size in &kernel.sizes {
        ranges.set(size, 0, Some(1 << 48));
    }
    let mut b = Builder::new();
    let context = b.arg(0);
    let sizes = b.field(context, offset_of!(Context, sizes) as i32);
    let symbols = kernel.sizes.iter().enumerate().map(|(n, &s)| (s, b.field(sizes, 8 * n as i32))).collect();
    let error = b.field(context, offset_of!(Context, error) as i32);
    let may_pack = options.packed && inner.is_none();
    let packed = if may_pack { packed::packed_elements(kernel, &body, vector, count) } else { None };
    let (packed, moved) = match packed {
        Some((ty, elements)) => (Some(ty), elements),
        None => (None, moved::moved_values(kernel, &body, count)),
    };
    let mut low = Lowerer {
        b,
        kernel,
        body: &body,
        options,
        symbols,
        ranges,
        along: None,
        copy: 0,
        values: vec![[None; COPIES]; count],
        dtypes: value_types(&body, count),
        uses: count_uses(&body, count)?,
        moved,
        packed,
        products: vec![[None; COPIES]; count],
        interleaved: interleave::interleaved_accesses(kernel, &body, vector, inner.as_ref()),
        transposed: Vec::new(),
        temps: Vec::new(),
        by_lane: vector == VectorAxis::Grid,
        temp_copies: 1,
        row_position: V::NONE,
        error,
        context,
    };
    let (scratch, weight) = match vector {
        VectorAxis::Grid => low.grid_nest(inner.as_ref())?,
        VectorAxis::Row => low.row_nest()?,
    };
    Ok(Lowered {
        function: low.b.finish(),
        units: body.grid.iter().map(|axis| &axis.size).product(),
        row: row_points(&body, inner.as_ref()),
        scratch,
        weight,
        unit_is_lane: vector == VectorAxis::Grid,
    })
}

/// The body of a kernel whose row has no points: row stages vanish, and reductions give their identity.
pub fn without_row(body: &LoopBody) -> LoopBody {
    let mut stages = Vec::new();
    for stage in &body.stages {
        if stage.domain == Domain::Point {
            stages.push(stage.clone());
            continue;
        }
        let insts = stage.reductions.iter().map(reduce::of_nothing).collect();
        stages.push(Stage { domain: Domain::Point, insts, reductions: Vec::new() });
    }
    LoopBody { grid: body.grid.clone(), row: Vec::new(), stages, temps: Vec::new() }
}

/// Points inside a unit; where their number depends on the unit, that of the first.
fn row_points(body: &LoopBody, inner: Option<&Axis>) -> Dim {
    let points: Dim = body.row.iter().chain(inner).map(|axis| &axis.size).product();
    points.substitute(&|s| body.grid.iter().any(|axis| axis.var == s).then(|| Dim::from(0)))
}

fn value_types(body: &LoopBody, count: usize) -> Vec<Option<DType>> {
    let mut types = vec![None; count];
    for stage in &body.stages {
        for inst in &stage.insts {
            if let Some(slot) = types.get_mut(inst.id.0 as usize)
                && !matches!(inst.kind, InstKind::Store { .. } | InstKind::StoreTemp(..))
            {
                *slot = Some(inst.dtype);
            }
        }
        for r in &stage.reductions {
            if let Some(slot) = types.get_mut(r.result.0 as usize) {
                *slot = Some(if matches!(r.kind, ReductionKind::Arg(_)) { DType::I64 } else { r.dtype });
            }
        }
    }
    types
}

fn count_uses(body: &LoopBody, count: usize) -> Result<Vec<u32>, LowerError> {
    let mut uses = vec![0; count];
    let mut ok = true;
    let mut see = |v: ValueId| match uses.get_mut(v.0 as usize) {
        Some(n) => *n += 1,
        None => ok = false,
    };
    for stage in &body.stages {
        for inst in &stage.insts {
            visit_operands(&inst.kind, &mut see);
        }
        stage.reductions.iter().for_each(|r| see(r.value));
    }
    if ok { Ok(uses) } else { Err(LowerError::Malformed("a value is used that is never defined")) }
}

impl Lowerer<'_> {
    fn scalar_size(&mut self, axis: &Axis) -> Result<V, LowerError> {
        self.scalar_expr(&axis.size)
    }

    /// Names the coordinates of a linear position in some axes.
    fn coordinates(&mut self, axes: &[Axis], position: V) -> Result<(), LowerError> {
        let mut rest = position;
        for (n, axis) in axes.iter().enumerate().rev() {
            let at = if n == 0 {
                rest
            } else {
                let size = self.scalar_size(axis)?;
                let at = self.b.int(IntOp::Modulo, rest, size);
                rest = self.b.int(IntOp::FloorDiv, rest, size);
                at
            };
            self.symbols.push((axis.var, at));
        }
        Ok(())
    }

    fn weight(&self) -> u32 {
        self.body
            .stages
            .iter()
            .map(|s| s.insts.iter().map(|i| ops::weight(&i.kind)).sum::<u32>() + s.reductions.len() as u32)
            .sum()
    }

    /// The weight of the heaviest row stage.
    fn row_weight(&self) -> u32 {
        let rows = self.body.stages.iter().filter(|stage| stage.domain == Domain::Row);
        let weights =
            rows.map(|s| s.insts.iter().map(|i| ops::weight(&i.kind)).sum::<u32>() + s.reductions.len() as u32);
        weights.max().unwrap_or(0)
    }

    /// Vectors along the last grid axis.
    fn grid_nest(&mut self, inner: Option<&Axis>) -> Result<(Dim, u32), LowerError> {
        let (begin, end) = (self.b.arg(1), self.b.arg(2));
        let weight = self.weight();
        let Some((axis, outer)) = self.body.grid.split_last() else {
            // One point: every value is the same in all lanes.
            self.setup_temps(1)?;
            self.stages_around_vector(1)?;
            return Ok((self.temp_bytes(1), weight));
        };
        let paired = self.body.row.is_empty() && inner.is_none() && self.pairs_along(axis.var);
        // With a row, its stages run most often: what follows them matters little.
        let inside = self.row_weight();
        let copies = match weight {
            _ if paired => 2,
            _ if let Some(copies) = self.options.copies
                && inner.is_none() =>
            {
                copies.clamp(1, COPIES)
            }
            // Results of an inner axis have a large stride: some vectors side by side at each of its points.
            0..16 if inner.is_some() => COPIES / 2,
            _ if self.body.row.is_empty() && inner.is_none() => self.copies_of_chains(axis),
            _ if self.body.row.is_empty() => 1,
            0..8 => COPIES,
            _ if inside < 16 => COPIES / 2,
            _ => self.copies_of_columns(),
        };
        if outer.is_empty() {
            self.setup_temps(copies)?;
            self.vector_loop(axis, begin, end, copies, inner)?;
        } else {
            let size = self.scalar_size(axis)?;
            let first = self.b.int(IntOp::FloorDiv, begin, size);
            let last = self.b.number(1);
            let last = self.b.int(IntOp::Sub, end, last);
            let last = self.b.int(IntOp::FloorDiv, last, size);
            self.setup_temps(copies)?;
            let zero = self.b.number(0);
            let (at, nested) = match outer.split_last() {
                Some((lines, far)) if !far.is_empty() && self.body.row.is_empty() => {
                    (self.lines_of(lines, far, first, last)?, true)
                }
                _ => {
                    let at = self.b.counter(first);
                    self.b.open_loop(at, last, true, Step::Elements(1));
                    self.coordinates(outer, at)?;
                    (at, false)
                }
            };
            let start = self.b.int(IntOp::Mul, at, size);
            let from = self.b.int(IntOp::Sub, begin, start);
            let from = self.b.int(IntOp::Max, from, zero);
            let to = self.b.int(IntOp::Sub, end, start);
            let to = self.b.int(IntOp::Min, to, size);
            self.vector_loop(axis, from, to, copies, inner)?;
            self.b.close();
            if nested {
                self.b.close();
            }
        }
        Ok((self.temp_bytes(copies), weight))
    }

    /// Opens two loops over the lines `first..=last`, the inner one along the last of their axes: what it steps over is divided by the
    /// sizes of axes once for all of its lines. Gives the number of the line.
    fn lines_of(&mut self, lines: &Axis, far: &[Axis], first: V, last: V) -> Result<V, LowerError> {
        let (size, zero, one) = (self.scalar_size(lines)?, self.b.number(0), self.b.number(1));
        let start = self.b.int(IntOp::FloorDiv, first, size);
        let end = self.b.int(IntOp::FloorDiv, last, size);
        let block = self.b.counter(start);
        self.b.open_loop(block, end, true, Step::Elements(1));
        self.coordinates(far, block)?;
        let before = self.b.int(IntOp::Mul, block, size);
        let from = self.b.int(IntOp::Sub, first, before);
        let from = self.b.int(IntOp::Max, from, zero);
        let to = self.b.int(IntOp::Sub, last, before);
        let most = self.b.int(IntOp::Sub, size, one);
        let to = self.b.int(IntOp::Min, to, most);
        let line = self.b.counter(from);
        self.b.open_loop(line, to, true, Step::Elements(1));
        self.symbols.push((lines.var, line));
        Ok(self.b.int(IntOp::Add, before, line))
    }

    /// Whole vectors from `from`, `copies` at a time, then the rest under a mask.
    fn vector_loop(
        &mut self,
        axis: &Axis,
        from: V,
        to: V,
        copies: usize,
        inner: Option<&Axis>,
    ) -> Result<(), LowerError> {
        if let Some((size, vectors)) = self.short_row(axis) {
            let (last, count) = (self.b.number(size - 1), self.b.int(IntOp::Sub, to, from));
            self.b.open_if(last, count);
            let body = self.body;
            self.whole_row(axis, size, vectors, &body.stages)?;
            self.b.close();
            let size = self.b.number(size);
            self.b.open_if(count, size);
            self.vectors(axis, from, to, copies, inner)?;
            self.b.close();
            return Ok(());
        }
        self.vectors(axis, from, to, copies, inner)
    }

    fn vectors(&mut self, axis: &Axis, from: V, to: V, copies: usize, inner: Option<&Axis>) -> Result<(), LowerError> {
        let paired = self.body.row.is_empty() && inner.is_none() && self.pairs_along(axis.var);
        let counter = self.b.counter(from);
        if self.packed.is_none() && inner.is_none() && self.bytes_along(axis.var) {
            self.byte_loop(axis, counter, to)?;
        }
        let limit = self.b.add_lanes(to, -(copies as i32));
        self.b.open_loop(counter, limit, true, Step::Vectors(copies as u32));
        self.along = Some(Along { var: axis.var, counter, end: to, tail: V::NONE, paired, vectors: 0 });
        self.stages_inside(copies, inner)?;
        self.b.close();
        if copies > 1 {
            self.b.open_loop(counter, to, false, Step::Vectors(1));
        } else {
            self.b.open_if(counter, to);
        }
        let tail = self.b.pure(Op::TailMask, Ty::Mask, Ty::Mask, &[counter, to]);
        self.along = Some(Along { var: axis.var, counter, end: to, tail, paired: false, vectors: 0 });
        self.stages_inside(1, inner)?;
        self.b.close();
        self.along = None;
        Ok(())
    }

    /// All stages for the current vectors; row axes are plain loops.
    fn stages_around_vector(&mut self, copies: usize) -> Result<(), LowerError> {
        let body = self.body;
        for stage in &body.stages {
            match stage.domain {
                Domain::Point => self.stage_copies(stage, copies)?,
                Domain::Row => {
                    let accumulators = self.accumulators(stage, copies)?;
                    let mark = self.symbols.len();
                    let mut position = self.b.number(0);
                    for axis in &body.row {
                        let size = self.scalar_size(axis)?;
                        let zero = self.b.number(0);
                        let counter = self.b.counter(zero);
                        self.b.open_loop(counter, size, false, Step::Elements(1));
                        self.symbols.push((axis.var, counter));
                        position = self.b.int(IntOp::Mul, position, size);
                        position = self.b.int(IntOp::Add, position, counter);
                    }
                    self.row_position = position;
                    self.stage_copies(stage, copies)?;
                    self.accumulate(stage, &accumulators, copies)?;
                    body.row.iter().for_each(|_| self.b.close());
                    self.row_position = V::NONE;
                    self.symbols.truncate(mark);
                    self.results_by_lane(stage, &accumulators, copies);
                }
            }
        }
        Ok(())
    }

    fn stage_copies(&mut self, stage: &Stage, copies: usize) -> Result<(), LowerError> {
        if self.takes_turns(stage, copies) {
            for inst in &stage.insts {
                for copy in 0..copies {
                    self.copy = copy;
                    self.inst(inst)?;
                }
            }
            self.copy = 0;
            return Ok(());
        }
        for copy in 0..copies {
            self.copy = copy;
            for inst in &stage.insts {
                self.inst(inst)?;
            }
        }
        self.copy = 0;
        Ok(())
    }

    /// Vectors along the last row axis.
    fn row_nest(&mut self) -> Result<(Dim, u32), LowerError> {
        let (begin, end) = (self.b.arg(1), self.b.arg(2));
        let body = self.body;
        self.setup_temps(1)?;
        let at = self.b.counter(begin);
        self.b.open_loop(at, end, false, Step::Elements(1));
        self.coordinates(&body.grid, at)?;
        for stage in &body.stages {
            match stage.domain {
                Domain::Point => {
                    self.stage_copies(stage, 1)?;
                    self.share(stage);
                }
                Domain::Row => self.row_stage(stage)?,
            }
        }
        self.b.close();
        Ok((self.temp_bytes(1), self.weight()))
    }

    /// Values of point stages are visible to every copy of later stages.
    fn share(&mut self, stage: &Stage) {
        for inst in &stage.insts {
            if let Some(slot) = self.values.get_mut(inst.id.0 as usize) {
                *slot = [slot[0]; COPIES];
            }
        }
    }

    fn row_stage(&mut self, stage: &Stage) -> Result<(), LowerError> {
        let body = self.body;
        let Some((axis, outer)) = body.row.split_last() else {
            return Err(LowerError::Malformed("a row stage without a row"));
        };
        let paired = self.pairs_along(axis.var);
        let row_copies = self.options.copies.map_or(ROW_COPIES, |copies| copies.clamp(1, COPIES));
        let copies = match axis.size.as_const() {
            // The same in all stages: row temporaries keep the order of the pairs.
            _ if paired => ROW_COPIES,
            _ if stage.reductions.is_empty() => self.copies_in_turns(stage, axis),
            _ if self.options.copies.is_none() && self.copies_in_turns(stage, axis) > ROW_COPIES => COPIES,
            Some(n) => (n / 16).clamp(1, row_copies as i64) as usize,
            None => row_copies,
        };
        let accumulators = self.accumulators(stage, copies)?;
        let mark = self.symbols.len();
        let size = self.scalar_size(axis)?;
        let padded = self.padded(size);
        let mut position = self.b.number(0);
        for axis in outer {
            let size = self.scalar_size(axis)?;
            let zero = self.b.number(0);
            let counter = self.b.counter(zero);
            self.b.open_loop(counter, size, false, Step::Elements(1));
            self.symbols.push((axis.var, counter));
            position = self.b.int(IntOp::Mul, position, size);
            position = self.b.int(IntOp::Add, position, counter);
        }
        self.row_position = self.b.int(IntOp::Mul, position, padded);
        if let Some((size, vectors)) = self.short_row(axis) {
            self.whole_row(axis, size, vectors, std::slice::from_ref(stage))?;
            outer.iter().for_each(|_| self.b.close());
            self.row_position = V::NONE;
            self.symbols.truncate(mark);
            return Ok(());
        }
        let zero = self.b.number(0);
        let counter = self.b.counter(zero);
        let limit = self.b.add_lanes(size, -(copies as i32));
        self.b.open_loop(counter, limit, true, Step::Vectors(copies as u32));
        self.along = Some(Along { var: axis.var, counter, end: size, tail: V::NONE, paired, vectors: 0 });
        self.stage_copies(stage, copies)?;
        self.accumulate(stage, &accumulators, copies)?;
        self.b.close();
        // Of any target.
        let lanes = if self.packed.is_some() { 64 } else { 16 };
        let whole = axis.size.as_const().is_some_and(|n| n % (lanes * copies as i64) == 0);
        if !whole {
            if copies > 1 {
                self.b.open_loop(counter, size, false, Step::Vectors(1));
            } else {
                self.b.open_if(counter, size);
            }
            let tail = self.b.pure(Op::TailMask, Ty::Mask, Ty::Mask, &[counter, size]);
            self.along = Some(Along { var: axis.var, counter, end: size, tail, paired: false, vectors: 0 });
            self.stage_copies(stage, 1)?;
            self.accumulate(stage, &accumulators, 1)?;
            self.b.close();
        }
        self.along = None;
        outer.iter().for_each(|_| self.b.close());
        self.row_position = V::NONE;
        self.symbols.truncate(mark);
        self.results_of_row(stage, &accumulators, copies)
    }

    /// Whether every access along an axis is a contiguous run of bf16 elements, so that two of them can be handled as the
    /// halves of 32-bit lanes: cheaper to split and to join than elements in their order.
    fn pairs_along(&self, var: Symbol) -> bool {
        if self.packed.is_some() {
            return false;
        }
        let mut any = false;
        let by_row = !self.body.row.is_empty();
        let varying = moved::varying_values(self.body, var, self.uses.len());
        let same = |v: &ValueId| varying.get(v.0 as usize) == Some(&false);
        for stage in self.body.stages.iter().filter(|stage| !by_row || stage.domain == Domain::Row) {
            for inst in &stage.insts {
                let (place, guard) = match &inst.kind {
                    InstKind::Load { place, guard } | InstKind::Store { place, guard, .. } => (place, guard),
                    _ => continue,
                };
                let store = matches!(inst.kind, InstKind::Store { .. });
                // Rows that data choose are contiguous, too, where one index is that of a whole row.
                let direct = place.indirect.is_empty() || !store && place.indirect.iter().all(|(v, _)| same(v));
                if !place.offset.contains(var) && direct && !store {
                    // One element is no pair that could be moved as one.
                    if self.moved.get(inst.id.0 as usize) == Some(&true) {
                        return false;
                    }
                    continue;
                }
                let Some(buffer) = self.kernel.buffers.get(place.buffer) else { return false };
                let side_by_side = place.offset.linear_in(var).is_some_and(|(stride, _)| stride.is_one());
                // An element that is read and written must be read in order.
                let plain = buffer.dtype == DType::Bf16 && buffer.access != BufferAccess::ReadWrite;
                if !(plain && side_by_side && guard.is_none() && direct) {
                    return false;
                }
                any = true;
            }
        }
        any
    }

    /// The base of each row temporary in the scratch memory.
    fn setup_temps(&mut self, copies: usize) -> Result<(), LowerError> {
        self.temp_copies = copies;
        if self.body.temps.is_empty() {
            return Ok(());
        }
        let mut base = self.b.field(self.context, offset_of!(Context, scratch) as i32);
        for n in 0..self.body.temps.len() {
            self.temps.push(base);
            let bytes = self.temp_size(n, copies);
            let bytes = self.scalar_expr(&bytes)?;
            base = self.b.int(IntOp::Add, base, bytes);
        }
        Ok(())
    }

    /// Bytes of one row temporary: rows padded to whole vectors, or one vector per row point and copy.
    fn temp_size(&self, temp: usize, copies: usize) -> Dim {
        let dtype = self.body.temps[temp];
        let bytes = (dtype.size_in_bits() / 8).max(1) as i64;
        let mut points = Dim::from(1);
        let by_lane = self.by_lane;
        for (n, axis) in self.body.row.iter().enumerate() {
            let last = n + 1 == self.body.row.len();
            points = if last && !by_lane {
                points * ((&axis.size + 15).floor_div(&Dim::from(16)) * 16)
            } else {
                points * &axis.size
            };
        }
        let lanes = if by_lane { 16 * copies as i64 } else { 1 };
        (points * (bytes * lanes) + 63).floor_div(&Dim::from(64)) * 64
    }

    fn temp_bytes(&self, copies: usize) -> Dim {
        (0..self.body.temps.len()).map(|n| self.temp_size(n, copies)).sum()
    }

    /// A size rounded up to whole vectors of any target.
    fn padded(&mut self, size: V) -> V {
        let (fifteen, sixteen) = (self.b.number(15), self.b.number(16));
        let blocks = self.b.int(IntOp::Add, size, fifteen);
        let blocks = self.b.int(IntOp::FloorDiv, blocks, sixteen);
        self.b.int(IntOp::Mul, blocks, sixteen)
    }
}
