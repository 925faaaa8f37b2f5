//! Instructions, one point at a time.

use super::{Env, Fault, malformed, scalar};
use crate::kernel::{BufferArg, Domain, Inst, InstKind, LoopBody, Place, ReductionKind, ValueId};
use kiln_ir::{DType, HostTensor, Scalar};

/// The values of one grid point.
pub(super) struct Body<'a> {
    args: &'a [BufferArg],
    buffers: &'a mut [HostTensor],
    values: Vec<Option<Scalar>>,
    pub temps: Vec<Vec<Option<Scalar>>>,
    pub row_at: usize,
    pub accumulators: Vec<Scalar>,
}

impl<'a> Body<'a> {
    pub fn new(args: &'a [BufferArg], buffers: &'a mut [HostTensor]) -> Body<'a> {
        Body { args, buffers, values: Vec::new(), temps: Vec::new(), row_at: 0, accumulators: Vec::new() }
    }

    /// All stages at one point of the grid.
    pub fn grid_point(&mut self, env: &mut Env, body: &LoopBody) -> Result<(), Fault> {
        self.temps = vec![Vec::new(); body.temps.len()];
        for stage in &body.stages {
            if stage.domain == Domain::Point {
                self.run(env, &stage.insts)?;
                continue;
            }
            let mut gathered: Vec<Vec<Scalar>> = vec![Vec::new(); stage.reductions.len()];
            let visible = self.values.clone();
            self.row_at = 0;
            env.each(&body.row, &mut |env| {
                self.run(env, &stage.insts)?;
                for (list, reduction) in gathered.iter_mut().zip(&stage.reductions) {
                    list.push(self.get(reduction.value)?);
                }
                self.row_at += 1;
                Ok(())
            })?;
            // Values of a row stage end with it.
            self.values = visible;
            for (list, reduction) in gathered.into_iter().zip(&stage.reductions) {
                let result = match reduction.kind {
                    ReductionKind::Reduce(kind) => scalar::reduce(kind, reduction.dtype, &list),
                    ReductionKind::Arg(kind) => scalar::arg_reduce(kind, &list),
                };
                self.set(reduction.result, result);
            }
        }
        Ok(())
    }

    pub fn get(&self, id: ValueId) -> Result<Scalar, Fault> {
        let value = self.values.get(id.0 as usize).copied().flatten();
        value.ok_or_else(|| malformed(format!("{id} is used before it is defined")))
    }

    fn set(&mut self, id: ValueId, value: Scalar) {
        let at = id.0 as usize;
        if self.values.len() <= at {
            self.values.resize(at + 1, None);
        }
        self.values[at] = Some(value);
    }

    /// Instructions in order.
    pub fn run(&mut self, env: &Env, insts: &[Inst]) -> Result<(), Fault> {
        for inst in insts {
            if let Some(value) = self.inst(env, inst)? {
                if value.dtype() != inst.dtype {
                    return Err(malformed(format!("{inst} gives {}", value.dtype())));
                }
                self.set(inst.id, value);
            }
        }
        Ok(())
    }

    fn position(&self, env: &Env, place: &Place) -> Result<i64, Fault> {
        let mut at = env.eval(&place.offset)?;
        for (value, stride) in &place.indirect {
            at += self.get(*value)?.as_i64() * env.eval(stride)?;
        }
        Ok(at)
    }

    fn element(&self, env: &Env, place: &Place) -> Result<usize, Fault> {
        let at = self.position(env, place)?;
        let elements = self.buffers[place.buffer].elements();
        let inside = usize::try_from(at).ok().filter(|&at| at < elements);
        inside.ok_or(Fault::OutOfBounds { buffer: place.buffer, at, elements })
    }

    fn allowed(&self, guard: &Option<ValueId>) -> Result<bool, Fault> {
        guard.map_or(Ok(true), |g| Ok(self.get(g)?.as_i64() != 0))
    }

    fn inst(&mut self, env: &Env, inst: &Inst) -> Result<Option<Scalar>, Fault> {
        let value = match &inst.kind {
            InstKind::Const(c) => *c,
            InstKind::Index(expr) => Scalar::int(inst.dtype, env.eval(expr)?),
            InstKind::InRange { expr, low, high } => {
                let at = env.eval(expr)?;
                Scalar::bool(env.eval(low)? <= at && at < env.eval(high)?)
            }
            InstKind::Load { place, guard } => {
                if !self.allowed(guard)? {
                    return Ok(Some(scalar::zero(inst.dtype)));
                }
                let at = self.element(env, place)?;
                scalar::widen(self.buffers[place.buffer].get(at))
            }
            InstKind::LoadBlock { place, element, format } => {
                let (first, number) = (self.position(env, place)?, env.eval(element)?);
                let block = first + number / format.elements() as i64 * format.bytes() as i64;
                let bytes = self.buffers[place.buffer].bytes();
                let range = usize::try_from(block).ok().and_then(|at| bytes.get(at..at + format.bytes()));
                let outside = || Fault::OutOfBounds { buffer: place.buffer, at: block, elements: bytes.len() };
                let mut elements = Vec::new();
                format.dequantise(range.ok_or_else(outside)?, &mut elements);
                Scalar::float(DType::F32, elements[number as usize % format.elements()].into())
            }
            InstKind::Store { place, value, guard } => {
                if self.allowed(guard)? {
                    let at = self.element(env, place)?;
                    let value = self.get(*value)?;
                    let dtype = self.args[place.buffer].dtype;
                    if value.dtype() != dtype.compute_type() {
                        return Err(malformed(format!("{inst} stores {} as {dtype}", value.dtype())));
                    }
                    self.buffers[place.buffer].set(at, value);
                }
                return Ok(None);
            }
            InstKind::LoadTemp(temp) => {
                let row = self.temps.get(*temp).and_then(|row| row.get(self.row_at).copied().flatten());
                row.ok_or_else(|| malformed(format!("t{temp} is read before it is written")))?
            }
            InstKind::StoreTemp(temp, value) => {
                let value = self.get(*value)?;
                let row = &mut self.temps[*temp];
                if row.len() <= self.row_at {
                    row.resize(self.row_at + 1, None);
                }
                row[self.row_at] = Some(value);
                return Ok(None);
            }
            InstKind::Unary(op, x) => op.eval(self.get(*x)?).ok_or_else(|| malformed(inst.to_string()))?,
            InstKind::Binary(op, x, y) => {
                op.eval(self.get(*x)?, self.get(*y)?).ok_or_else(|| malformed(inst.to_string()))?
            }
            InstKind::Compare(op, x, y) => Scalar::bool(op.eval(self.get(*x)?, self.get(*y)?)),
            InstKind::Select(c, x, y) => self.get(if self.get(*c)?.as_i64() != 0 { *x } else { *y })?,
            InstKind::Cast(x) => self.get(*x)?.cast(inst.dtype),
            InstKind::Bitcast(x) => scalar::bitcast(self.get(*x)?, inst.dtype),
            InstKind::Round(x, to) => scalar::widen(self.get(*x)?.cast(*to)),
            InstKind::CheckIndex { value, size } => {
                let (index, size) = (self.get(*value)?.as_i64(), env.eval(size)?);
                if !(0..size).contains(&index) {
                    return Err(Fault::IndexOutOfRange { index, size });
                }
                Scalar::int(DType::I64, index)
            }
            InstKind::Random { seed, position, stream } => {
                scalar::random(self.get(*seed)?.as_i64(), env.eval(position)?, *stream)
            }
            InstKind::Accumulator(number) => {
                *self.accumulators.get(*number).ok_or_else(|| malformed("an accumulator outside of a product"))?
            }
        };
        Ok(Some(value))
    }
}
