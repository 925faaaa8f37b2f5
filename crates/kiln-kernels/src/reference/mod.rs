//! A direct executor of kernels on host memory: one element at a time, every op rounded to its compute type, sums in f64. Slow
//! and plain, so that schedules can be checked without a code generator and code generators against something simple.

mod anchors;
mod body;
mod repeat;
mod scalar;

use crate::kernel::{Access, Axis, Kernel, KernelBody};
use crate::plan::plan;
use crate::schedule::{Error, Role, Schedule};
use body::Body;
use kiln_ir::{DType, Dim, HostTensor, Symbol};

/// What can go wrong while a kernel runs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A data-dependent index out of range: what a launch reports.
    #[error("index {index} is out of range for size {size}")]
    IndexOutOfRange {
        /// The index.
        index: i64,
        /// The size.
        size: i64,
    },
    /// A kernel touches memory outside of a buffer: a wrong kernel.
    #[error("element {at} of buffer {buffer}, which has {elements}")]
    OutOfBounds {
        /// The argument's index.
        buffer: usize,
        /// The element's index.
        at: i64,
        /// The number of elements of the buffer.
        elements: usize,
    },
    /// A kernel that is not one: a value used before it is defined, a size without a value.
    #[error("a malformed kernel: {what}")]
    Malformed {
        /// A description of the problem.
        what: String,
    },
    /// The schedule cannot be planned.
    #[error(transparent)]
    Plan(#[from] Error),
}

fn malformed(what: impl Into<String>) -> Fault {
    Fault::Malformed { what: what.into() }
}

/// Values of symbols.
pub(crate) struct Env {
    values: Vec<(Symbol, i64)>,
}

impl Env {
    fn get(&self, symbol: Symbol) -> Option<i64> {
        self.values.iter().rev().find(|(s, _)| *s == symbol).map(|(_, value)| *value)
    }

    fn eval(&self, dim: &Dim) -> Result<i64, Fault> {
        dim.as_const().or_else(|| dim.eval(&|s| self.get(s))).ok_or_else(|| malformed(format!("{dim} has no value")))
    }

    /// Calls `visit` at each point of some axes, the last one fastest.
    fn each(&mut self, axes: &[Axis], visit: &mut dyn FnMut(&mut Env) -> Result<(), Fault>) -> Result<(), Fault> {
        let Some((first, rest)) = axes.split_first() else { return visit(self) };
        for value in 0..self.eval(&first.size)? {
            self.values.push((first.var, value));
            let done = self.each(rest, visit);
            self.values.pop();
            done?;
        }
        Ok(())
    }
}

/// Runs one kernel on its buffers (flat, in the kernel's order) with the values of its size symbols.
pub fn run_kernel(kernel: &Kernel, buffers: &mut [HostTensor], sizes: &[i64]) -> Result<(), Fault> {
    if buffers.len() != kernel.buffers.len() || sizes.len() != kernel.sizes.len() {
        return Err(malformed("the launch has other buffers or sizes than the kernel"));
    }
    let mut env = Env { values: kernel.sizes.iter().copied().zip(sizes.iter().copied()).collect() };
    kernel.bodies().iter().try_for_each(|body| match body {
        KernelBody::Loop(body) => {
            env.each(&body.grid.clone(), &mut |env| Body::new(&kernel.buffers, buffers).grid_point(env, body))
        }
        KernelBody::Matmul(body) => anchors::matmul(&mut env, &kernel.buffers, buffers, body),
        KernelBody::Attention(body) => anchors::attention(&env, buffers, body),
        KernelBody::AttentionBackward(body) => anchors::attention_backward(&env, buffers, body),
        KernelBody::Routine(body) => anchors::routine(&env, buffers, body),
        KernelBody::Repeat(body) => repeat::run(&env, buffers, body),
        KernelBody::Parallel(_) => Err(malformed("parallel bodies in one of them")),
    })
}

/// Runs a schedule. `inputs` are the flat memory of the graph's inputs, which updates change; the outputs come back flat.
///
/// Temporaries live in one arena at their planned offsets; memory that has not been written holds NaN and −1.
pub fn run(
    schedule: &Schedule,
    inputs: &mut [HostTensor],
    size: &dyn Fn(Symbol) -> Option<i64>,
) -> Result<Vec<HostTensor>, Fault> {
    let plan = plan(schedule, size)?;
    let mut arena = vec![0xff_u8; plan.arena_bytes];
    let mut own: Vec<Option<HostTensor>> = Vec::with_capacity(schedule.buffers.len());
    for (decl, &bytes) in schedule.buffers.iter().zip(&plan.bytes) {
        own.push(match &decl.role {
            Role::Constant(literal) => Some(tensor(decl.dtype, literal.bytes.to_vec())?),
            Role::Output(_) => Some(tensor(decl.dtype, fresh(decl.dtype, bytes))?),
            Role::Input(_) | Role::Temp => None,
        });
    }
    for step in &schedule.steps {
        let mut buffers = Vec::with_capacity(step.args.len());
        for (arg, wanted) in step.args.iter().zip(&step.kernel.buffers) {
            let bytes = match (&schedule.buffers[arg.index()].role, plan.offsets[arg.index()]) {
                (Role::Input(n), _) => inputs.get(*n).ok_or_else(|| malformed("a missing input"))?.bytes().to_vec(),
                (_, Some(offset)) => arena[offset..offset + plan.bytes[arg.index()]].to_vec(),
                _ => own[arg.index()].as_ref().map(|t| t.bytes().to_vec()).unwrap_or_default(),
            };
            buffers.push(tensor(wanted.dtype, bytes)?);
        }
        let sizes = step.sizes.iter().map(|d| d.eval(size).ok_or_else(|| malformed(format!("{d} has no value"))));
        let sizes = sizes.collect::<Result<Vec<i64>, Fault>>()?;
        run_kernel(&step.kernel, &mut buffers, &sizes)?;
        for ((arg, wanted), buffer) in step.args.iter().zip(&step.kernel.buffers).zip(buffers) {
            if wanted.access == Access::Read {
                continue;
            }
            let decl = &schedule.buffers[arg.index()];
            match (&decl.role, plan.offsets[arg.index()]) {
                (Role::Input(n), _) => inputs[*n] = tensor(inputs[*n].dtype(), buffer.into_bytes())?,
                (_, Some(offset)) => {
                    arena[offset..offset + plan.bytes[arg.index()]].copy_from_slice(buffer.bytes());
                }
                _ => own[arg.index()] = Some(tensor(decl.dtype, buffer.into_bytes())?),
            }
        }
    }
    let output = |id: &crate::BufferId| match &schedule.buffers[id.index()].role {
        Role::Input(n) => Ok(inputs[*n].clone()),
        _ => own[id.index()].clone().ok_or_else(|| malformed("an output without memory")),
    };
    schedule.outputs.iter().map(output).collect()
}

fn fresh(dtype: DType, bytes: usize) -> Vec<u8> {
    vec![if dtype == DType::Bool { 1 } else { 0xff }; bytes]
}

/// A flat tensor over bytes. Bytes that were never written are no bools; they read as true.
fn tensor(dtype: DType, mut bytes: Vec<u8>) -> Result<HostTensor, Fault> {
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    let elements = bytes.len() * 8 / dtype.size_in_bits();
    // An odd number of packed halves: the last half is unused.
    HostTensor::from_bytes(dtype, &[elements], bytes).map_err(|e| malformed(e.to_string()))
}
