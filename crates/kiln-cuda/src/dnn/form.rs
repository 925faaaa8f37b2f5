//! Kernels as problems of the library.

use super::convolution::{Convolution, View};
use super::linear::{Frame, Linear, Operand, Space, fill_strides};
use super::problem::{Memory, Operation, Problem, TensorId, Window};
use super::{attention, epilogue};
use kiln_ir::DType;
use kiln_kernels::kernel::{Kernel, KernelBody, MatmulBody, Precision};
use std::sync::Arc;

/// Rows, columns and summed elements from which on the library is considered.
const LEAST: [i64; 3] = [32, 16, 16];

/// A kernel as the library computes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Form {
    pub(super) problem: Problem,
    /// What makes the kernel's results of the tensor in memory of the launch, which is its last buffer.
    pub(super) epilogue: Option<Arc<Kernel>>,
}

/// A product or a convolution without its result.
pub(super) struct Core {
    pub(super) problem: Problem,
    pub(super) frame: Frame,
    operands: [TensorId; 2],
    /// `None` for a product.
    windows: Option<Vec<Window>>,
}

impl Form {
    /// The ways in which the library can compute a kernel, the most promising first.
    pub(super) fn all(kernel: &Kernel) -> Vec<Form> {
        if !kernel.sizes.is_empty() {
            return Vec::new();
        }
        match &kernel.body {
            KernelBody::Attention(body) => {
                let problem = attention::problem(kernel, body);
                problem.map(|problem| Form { problem, epilogue: None }).into_iter().collect()
            }
            KernelBody::Matmul(body) => Form::of_product(kernel, body).unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    fn of_product(kernel: &Kernel, body: &MatmulBody) -> Option<Vec<Form>> {
        let rhs = body.single_rhs().filter(|_| body.before.is_none() && body.acc == DType::F32)?;
        let space = Space::of(body)?;
        let (lhs, rhs) = (space.operand(&body.lhs)?, space.operand(rhs)?);
        let dtype = kernel.buffers[lhs.buffer].dtype;
        let types_fit =
            kernel.buffers[rhs.buffer].dtype == dtype && matches!(dtype, DType::Bf16 | DType::F16 | DType::F32);
        let count = |axes: &[usize]| axes.iter().map(|&axis| space.sizes[axis]).product::<i64>();
        let sizes = [count(&space.m), count(&space.n) * count(&space.batch), count(&space.k)];
        if !types_fit || sizes.iter().zip(LEAST).any(|(&size, least)| size < least) {
            return None;
        }
        let tensor_cores = dtype != DType::F32 || body.precision != Precision::Highest;
        let core = |core: Core| Core { problem: Problem { tensor_cores, ..core.problem }, ..core };
        let is_plain = body.epilogue.len() <= 2;
        if let Some(product) = Core::product(&space, dtype, &lhs, &rhs).map(core) {
            // A product alone is the other library's.
            if is_plain {
                return None;
            }
            // Of rows whose elements are neighbours it is a convolution of single points too, for which there are more engines.
            let is_near = |operand: &Operand| space.k.last().is_some_and(|&axis| operand.at.steps[axis] == 1);
            let points =
                (is_near(&lhs) && is_near(&rhs)).then(|| Core::convolution(&space, dtype, &lhs, &rhs)).flatten();
            let fused = epilogue::fused(kernel, body, &space, points.map(core).unwrap_or(product));
            return Some(fused.into_iter().collect());
        }
        let convolution = || Core::convolution(&space, dtype, &lhs, &rhs).map(core);
        let fused = epilogue::fused(kernel, body, &space, convolution()?);
        let deferred = match is_plain && fused.is_some() {
            true => None,
            false => epilogue::deferred(kernel, body, &space, convolution()?, dtype),
        };
        Some(fused.into_iter().chain(deferred).collect())
    }
}

impl Core {
    fn product(space: &Space<'_>, dtype: DType, lhs: &Operand, rhs: &Operand) -> Option<Core> {
        if !lhs.guards.is_empty() || !rhs.guards.is_empty() {
            return None;
        }
        let [batch, m, n, k] = [&space.batch, &space.m, &space.n, &space.k].map(Clone::clone);
        let mut problem = Problem::default();
        let mut matrix = |operand: &Operand, frame: Frame| {
            let (sizes, mut strides) = space.view(&frame, &operand.at)?;
            let wanted = space.frame_sizes(&frame);
            // Only matrices of a batch may be one.
            let is_whole = sizes[1..] == wanted[1..];
            fill_strides(&sizes, &mut strides, &[0, 1, 2]);
            let memory = Memory::Buffer { buffer: operand.buffer, first: operand.at.first };
            is_whole.then(|| problem.tensor(dtype, &sizes, &strides, memory))
        };
        let a = matrix(lhs, vec![batch.clone(), m.clone(), k.clone()])?;
        let b = matrix(rhs, vec![batch.clone(), k, n.clone()])?;
        Some(Core { problem, frame: vec![batch, m, n], operands: [a, b], windows: None })
    }

    fn convolution(space: &Space<'_>, dtype: DType, lhs: &Operand, rhs: &Operand) -> Option<Core> {
        let Convolution { frame, x, w, windows } = Convolution::of(space, lhs, rhs)?;
        let mut problem = Problem::default();
        let mut tensor = |view: View, buffer: usize| {
            problem.tensor(dtype, &view.sizes, &view.strides, Memory::Buffer { buffer, first: view.first })
        };
        let operands = [tensor(x, lhs.buffer), tensor(w, rhs.buffer)];
        Some(Core { problem, frame, operands, windows: Some(windows) })
    }

    /// Buffers of the operands.
    pub(super) fn buffers(&self) -> impl Iterator<Item = usize> {
        self.problem.tensors.iter().filter_map(|tensor| match tensor.memory {
            Memory::Buffer { buffer, .. } => Some(buffer),
            _ => None,
        })
    }

    /// The tensor of the result that a position walks through.
    pub(super) fn result(&self, space: &Space<'_>, at: &Linear) -> Option<(Vec<i64>, Vec<i64>)> {
        let (sizes, strides) = space.view(&self.frame, at)?;
        (sizes == space.frame_sizes(&self.frame)).then_some((sizes, strides))
    }

    /// The axes of its results, outermost first, where they have these strides.
    pub(super) fn order(&self, sizes: &[i64], strides: &[i64]) -> Vec<usize> {
        match self.windows {
            Some(_) => super::linear::order_of(sizes, strides),
            None => (0..sizes.len()).collect(),
        }
    }

    /// Adds the operation with this result.
    pub(super) fn operation(&mut self, y: TensorId) {
        let [first, second] = self.operands;
        self.problem.operations.push(match &self.windows {
            None => Operation::Product { a: first, b: second, y },
            Some(windows) => Operation::Convolution { x: first, w: second, y, windows: windows.clone() },
        });
    }
}
