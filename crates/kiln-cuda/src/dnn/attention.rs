//! Attention as the library's products, operations on elements and reductions, which it computes in one launch.

use super::linear::fill_strides;
use super::problem::{Memory, Mode, Operation, Problem, Reduction};
use kiln_ir::{DType, Dim};
use kiln_kernels::kernel::{AttentionBody, Kernel, Strided};

/// Queries from which on the library is considered.
const LEAST_QUERIES: i64 = 16;
/// The widest heads.
const MOST_WIDTH: i64 = 128;

/// The problem of a kernel, if it is one of the library's.
pub(super) fn problem(kernel: &Kernel, body: &AttentionBody) -> Option<Problem> {
    let dtype = kernel.buffers[body.q.buffer].dtype;
    let numbers = [&body.batch, &body.heads, &body.kv_heads, &body.queries, &body.keys, &body.width, &body.value_width];
    let [b, h, g, t, s, d, e] = numbers.map(Dim::as_const);
    let (b, h, g, t, s, d, e) = (b?, h?, g?, t?, s?, d?, e?);
    let views = [&body.q, &body.k, &body.v, &body.out];
    let fits = matches!(dtype, DType::Bf16 | DType::F16)
        && views.iter().all(|view| kernel.buffers[view.buffer].dtype == dtype && view.strides[3].is_one())
        && body.mask.is_none()
        && body.k_pages.is_none()
        && body.v_pages.is_none()
        && [d, e].iter().all(|&width| width % 8 == 0 && (8..=MOST_WIDTH).contains(&width))
        && t >= LEAST_QUERIES
        && s >= if body.causal { t } else { 1 }
        && b > 0;
    if !fits {
        return None;
    }
    let mut problem = Problem { tensor_cores: true, ..Problem::default() };
    let mut tensor = |view: &Strided, dtype: DType, sizes: [i64; 4], transposed: bool| {
        let mut strides = view.strides.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>()?;
        let mut sizes = sizes.to_vec();
        if sizes[3] == 1 {
            strides[3] = 1;
        }
        // Axes of size 1 are outside of all others.
        let mut order: Vec<usize> = (0..4).collect();
        order.sort_by_key(|&axis| (sizes[axis] != 1, -strides[axis]));
        fill_strides(&sizes, &mut strides, &order);
        if transposed {
            sizes.swap(2, 3);
            strides.swap(2, 3);
        }
        let memory = Memory::Buffer { buffer: view.buffer, first: view.offset.as_const()? };
        Some(problem.tensor(dtype, &sizes, &strides, memory))
    };
    let q = tensor(&body.q, dtype, [b, h, t, d], false)?;
    let k = tensor(&body.k, dtype, [b, g, s, d], true)?;
    let v = tensor(&body.v, dtype, [b, g, s, e], false)?;
    let out = tensor(&body.out, dtype, [b, h, t, e], false)?;
    let stats = match &body.logsumexp {
        Some(view) => Some(tensor(view, DType::F32, [b, h, t, 1], false)?),
        None => None,
    };
    let scores = problem.tensor(DType::F32, &[b, h, t, s], &[h * t * s, t * s, s, 1], Memory::Between);
    problem.operations.push(Operation::Product { a: q, b: k, y: scores });
    let scale = Memory::Float((body.scale.as_f64() as f32).to_bits());
    let scale = problem.number(scores, DType::F32, scale);
    let mut scores = problem.pointwise(Mode::Mul, &[scores, scale], DType::F32);
    if body.causal {
        let mut row = problem.pointwise(Mode::Index(2), &[scores], DType::I32);
        if s > t {
            let (keys, queries) = (Memory::Int(i32::try_from(s).ok()?), Memory::Int(i32::try_from(t).ok()?));
            let keys = problem.number(scores, DType::I32, keys);
            row = problem.pointwise(Mode::Add, &[row, keys], DType::I32);
            let queries = problem.number(scores, DType::I32, queries);
            row = problem.pointwise(Mode::Sub, &[row, queries], DType::I32);
        }
        let column = problem.pointwise(Mode::Index(3), &[scores], DType::I32);
        let seen = problem.pointwise(Mode::AtLeast, &[row, column], DType::Bool);
        let lowest = problem.number(scores, DType::F32, Memory::Float(f32::NEG_INFINITY.to_bits()));
        scores = problem.pointwise(Mode::Select, &[scores, lowest, seen], DType::F32);
    }
    let reduce = |problem: &mut Problem, kind: Reduction, x: usize| {
        let y = problem.tensor(DType::F32, &[b, h, t, 1], &[h * t, t, 1, 1], Memory::Between);
        problem.operations.push(Operation::Reduction { kind, x, y });
        y
    };
    let top = reduce(&mut problem, Reduction::Max, scores);
    let below = problem.pointwise(Mode::Sub, &[scores, top], DType::F32);
    let weights = problem.pointwise(Mode::Exp, &[below], DType::F32);
    let total = reduce(&mut problem, Reduction::Sum, weights);
    // The library knows attention by this, also where nobody asks for it.
    let logarithm = problem.pointwise(Mode::Log, &[total], DType::F32);
    match stats {
        Some(y) => problem.operations.push(Operation::Pointwise { mode: Mode::Add, operands: vec![top, logarithm], y }),
        None => {
            problem.pointwise(Mode::Add, &[top, logarithm], DType::F32);
        }
    }
    let weights = problem.pointwise(Mode::Div, &[weights, total], dtype);
    problem.operations.push(Operation::Product { a: weights, b: v, y: out });
    Some(problem)
}
