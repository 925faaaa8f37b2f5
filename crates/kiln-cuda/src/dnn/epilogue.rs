//! The epilogue of a product or a convolution: as operations on elements in the same launch, or as a kernel of its own.

use super::form::{Core, Form};
use super::linear::{Space, fill_strides};
use super::problem::{Memory, Mode, Operation, TensorId};
use kiln_ir::{BinaryOp, DType, Dim, UnaryOp};
use kiln_kernels::kernel::{
    Access, Axis, BufferArg, Domain, Inst, InstKind, Kernel, KernelBody, LoopBody, MatmulBody, Place, Stage, ValueId,
};
use std::collections::HashMap;
use std::sync::Arc;

/// Instructions that are the library's in one launch.
const MOST_INSTRUCTIONS: usize = 40;

/// A value of an epilogue.
#[derive(Clone, Copy, PartialEq)]
enum Value {
    Tensor(TensorId),
    /// The bits of an F32.
    Number(u32),
}

/// The kernel as one problem, if its epilogue is made of the library's operations and has one result.
pub(super) fn fused(kernel: &Kernel, body: &MatmulBody, space: &Space<'_>, mut core: Core) -> Option<Form> {
    let (last, insts) = body.epilogue.split_last()?;
    let InstKind::Store { place: store, value: stored, guard: None } = &last.kind else { return None };
    let out_dtype = kernel.buffers[store.buffer].dtype;
    let loads = || {
        insts.iter().filter_map(|inst| if let InstKind::Load { place, .. } = &inst.kind { Some(place) } else { None })
    };
    let reads_result = loads().map(|place| place.buffer).chain(core.buffers()).any(|buffer| buffer == store.buffer);
    if reads_result || !store.indirect.is_empty() || insts.len() > MOST_INSTRUCTIONS || !is_float(out_dtype) {
        return None;
    }
    let at = space.linear(&store.offset)?;
    let (sizes, mut strides) = core.result(space, &at)?;
    let order = core.order(&sizes, &strides);
    fill_strides(&sizes, &mut strides, &order);
    let accumulator = core.problem.tensor(DType::F32, &sizes, &strides, Memory::Between);
    core.operation(accumulator);
    let mut values: HashMap<ValueId, Value> = HashMap::new();
    for Inst { id, dtype, kind } in insts {
        if *dtype != DType::F32 {
            return None;
        }
        let value = match kind {
            InstKind::Accumulator(_) => Value::Tensor(accumulator),
            InstKind::Const(scalar) => Value::Number((scalar.as_f64() as f32).to_bits()),
            InstKind::Load { place, guard: None } => {
                let own = kernel.buffers[place.buffer].dtype;
                let at = space.linear(&place.offset).filter(|_| place.indirect.is_empty() && is_float(own))?;
                let (sizes, mut strides) = space.view(&core.frame, &at)?;
                fill_strides(&sizes, &mut strides, &order);
                let memory = Memory::Buffer { buffer: place.buffer, first: at.first };
                Value::Tensor(core.problem.tensor(own, &sizes, &strides, memory))
            }
            // The library rounds once, at the end.
            InstKind::Round(x, to) if *to == out_dtype => *values.get(x)?,
            InstKind::Unary(op, x) => pointwise(&mut core, &order, unary(*op)?, &[*values.get(x)?])?,
            InstKind::Binary(op, x, y) => {
                let (x, y) = (*values.get(x)?, *values.get(y)?);
                match (op, x, y) {
                    (BinaryOp::Max, x, Value::Number(0)) | (BinaryOp::Max, Value::Number(0), x) => {
                        pointwise(&mut core, &order, Mode::Relu, &[x])?
                    }
                    // The library's operations have a tensor first.
                    (BinaryOp::Add | BinaryOp::Mul, Value::Number(_), Value::Tensor(_)) => {
                        pointwise(&mut core, &order, binary(*op)?, &[y, x])?
                    }
                    _ => pointwise(&mut core, &order, binary(*op)?, &[x, y])?,
                }
            }
            _ => return None,
        };
        values.insert(*id, value);
    }
    let Value::Tensor(result) = *values.get(stored)? else { return None };
    let tensor = &mut core.problem.tensors[result];
    if tensor.memory != Memory::Between || tensor.sizes != sizes {
        return None;
    }
    let memory = Memory::Buffer { buffer: store.buffer, first: at.first };
    (tensor.dtype, tensor.strides, tensor.memory) = (out_dtype, strides, memory);
    Some(Form { problem: core.problem, epilogue: None })
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::Bf16 | DType::F16 | DType::F32)
}

/// Adds an operation on elements, whose result is as large as its operands together.
fn pointwise(core: &mut Core, order: &[usize], mode: Mode, operands: &[Value]) -> Option<Value> {
    let like = operands.iter().find_map(|value| if let Value::Tensor(id) = value { Some(*id) } else { None })?;
    let problem = &mut core.problem;
    let operands: Vec<TensorId> = operands
        .iter()
        .map(|value| match *value {
            Value::Tensor(id) => id,
            Value::Number(bits) => problem.number(like, DType::F32, Memory::Float(bits)),
        })
        .collect();
    let rank = problem.tensors[like].sizes.len();
    let size = |axis: usize| operands.iter().map(|&id| problem.tensors[id].sizes[axis]).max().unwrap_or(1);
    let sizes: Vec<i64> = (0..rank).map(size).collect();
    let whole = operands.iter().find(|&&id| problem.tensors[id].sizes == sizes);
    let strides = match whole {
        Some(&id) => problem.tensors[id].strides.clone(),
        None => packed(&sizes, order),
    };
    let y = problem.tensor(DType::F32, &sizes, &strides, Memory::Between);
    problem.operations.push(Operation::Pointwise { mode, operands, y });
    Some(Value::Tensor(y))
}

/// Strides without gaps, the axes in this order from the outermost on.
fn packed(sizes: &[i64], order: &[usize]) -> Vec<i64> {
    let (mut strides, mut inner) = (vec![0; sizes.len()], 1);
    for &axis in order.iter().rev() {
        strides[axis] = inner;
        inner *= sizes[axis];
    }
    strides
}

fn unary(op: UnaryOp) -> Option<Mode> {
    Some(match op {
        UnaryOp::Neg => Mode::Neg,
        UnaryOp::Abs => Mode::Abs,
        UnaryOp::Sqrt => Mode::Sqrt,
        UnaryOp::Rsqrt => Mode::Rsqrt,
        UnaryOp::Recip => Mode::Recip,
        UnaryOp::Exp => Mode::Exp,
        UnaryOp::Log => Mode::Log,
        UnaryOp::Tanh => Mode::Tanh,
        UnaryOp::Erf => Mode::Erf,
        _ => return None,
    })
}

fn binary(op: BinaryOp) -> Option<Mode> {
    Some(match op {
        BinaryOp::Add => Mode::Add,
        BinaryOp::Sub => Mode::Sub,
        BinaryOp::Mul => Mode::Mul,
        BinaryOp::Div => Mode::Div,
        _ => return None,
    })
}

/// The kernel as a problem whose result is in memory of the launch, in the operands' dtype as the library has it, and a loop over the
/// epilogue that reads it. `None` where that would round what the kernel does not.
pub(super) fn deferred(
    kernel: &Kernel,
    body: &MatmulBody,
    space: &Space<'_>,
    mut core: Core,
    dtype: DType,
) -> Option<Form> {
    let mut order = Vec::new();
    for inst in &body.epilogue {
        if let InstKind::Store { place, .. } = &inst.kind {
            if !place.indirect.is_empty() || (dtype != DType::F32 && kernel.buffers[place.buffer].dtype != dtype) {
                return None;
            }
            let (sizes, strides) = core.result(space, &space.linear(&place.offset)?)?;
            order = core.order(&sizes, &strides);
        }
    }
    let sizes = space.frame_sizes(&core.frame);
    let strides = packed(&sizes, &order);
    let y = core.problem.tensor(dtype, &sizes, &strides, Memory::Scratch);
    core.operation(y);
    let all: Vec<&Axis> = [&body.batch, &body.m, &body.n].into_iter().flatten().collect();
    let (mut grid, mut offset) = (Vec::new(), Dim::default());
    for &axis in &order {
        let mut step = strides[axis];
        for &own in core.frame[axis].iter().rev() {
            offset += Dim::from(all[own].var) * step;
            step *= space.sizes[own];
        }
        grid.extend(core.frame[axis].iter().map(|&own| all[own].clone()));
    }
    let place = Place { buffer: kernel.buffers.len(), offset, indirect: Vec::new() };
    let load = |inst: &Inst| match inst.kind {
        InstKind::Accumulator(_) => Inst { kind: InstKind::Load { place: place.clone(), guard: None }, ..inst.clone() },
        _ => inst.clone(),
    };
    let insts = body.epilogue.iter().map(load).collect();
    let stage = Stage { domain: Domain::Point, insts, reductions: Vec::new() };
    let mut buffers = kernel.buffers.clone();
    buffers.push(BufferArg { dtype, access: Access::Read });
    let body = KernelBody::Loop(LoopBody { grid, row: Vec::new(), stages: vec![stage], temps: Vec::new() });
    let epilogue = Some(Arc::new(Kernel { buffers, sizes: Vec::new(), body }));
    Some(Form { problem: core.problem, epilogue })
}
