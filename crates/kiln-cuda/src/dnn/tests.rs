//! Problems as the library would compute them, against the interpreter.

use super::form::Form;
use super::library::usable;
use super::problem::{Memory, Mode, Operation, Problem, Reduction, Tensor, TensorId, Window};
use kiln_ir::interpret::run;
use kiln_ir::{DType, Graph, HostTensor};
use kiln_kernels::kernel::{Access, Kernel};
use kiln_kernels::reference::run_kernel;
use kiln_kernels::{InputLayout, Role, Schedule, ScheduleOptions, schedule};

fn scheduled(source: &str) -> (Graph, Schedule) {
    let options = kiln_passes::Options { keep_attention_gradients: true, keep_bounds: true, ..Default::default() };
    let graph = kiln_passes::run_options(Graph::parse(source).unwrap(), &options, &mut |_, _| {}).unwrap();
    let layouts: Vec<InputLayout> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
    let options = ScheduleOptions { target: crate::TARGET, ..ScheduleOptions::default() };
    let schedule = schedule(&graph, &layouts, &options).unwrap();
    (graph, schedule)
}

/// The forms of a graph's only kernel.
fn forms(source: &str) -> Vec<Form> {
    let (_, schedule) = scheduled(source);
    let kernels: Vec<&Kernel> = schedule.steps.iter().map(|step| &*step.kernel).collect();
    assert_eq!(kernels.len(), 1, "{kernels:?}");
    Form::all(kernels[0])
}

/// Every index of a tensor of these sizes.
fn indices(sizes: &[i64]) -> Vec<Vec<i64>> {
    let mut all = vec![Vec::new()];
    for &size in sizes {
        let with = |index: &Vec<i64>| (0..size).map(|at| [index.as_slice(), &[at]].concat()).collect::<Vec<_>>();
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// A library: the values of tensors, each in memory of its own.
struct Values<'a> {
    problem: &'a Problem,
    memory: Vec<Vec<f64>>,
}

impl Values<'_> {
    fn place(&self, id: TensorId, index: &[i64]) -> usize {
        let Tensor { sizes, strides, memory, .. } = &self.problem.tensors[id];
        let first = if let Memory::Buffer { first, .. } = memory { *first } else { 0 };
        let steps = index.iter().zip(sizes).zip(strides).map(|((at, size), stride)| (at % size) * stride);
        usize::try_from(first + steps.sum::<i64>()).unwrap()
    }

    fn get(&self, id: TensorId, index: &[i64]) -> f64 {
        match self.problem.tensors[id].memory {
            Memory::Float(bits) => f64::from(f32::from_bits(bits)),
            Memory::Int(value) => f64::from(value),
            _ => self.memory[id][self.place(id, index)],
        }
    }

    /// Fills a tensor. Its elements are all in different places.
    fn fill(&mut self, id: TensorId, value: impl Fn(&Self, &[i64]) -> f64) {
        let all = indices(&self.problem.tensors[id].sizes);
        let values: Vec<f64> = all.iter().map(|index| value(self, index)).collect();
        let mut places: Vec<usize> = all.iter().map(|index| self.place(id, index)).collect();
        let room = places.iter().max().unwrap() + 1;
        if self.memory[id].len() < room {
            self.memory[id].resize(room, 0.0);
        }
        places.iter().zip(values).for_each(|(&place, value)| self.memory[id][place] = value);
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), all.len(), "{}", self.problem);
    }

    /// An operation as cudnn_graph.h defines it.
    fn compute(&mut self, operation: &Operation) {
        let sizes = |id: &TensorId| self.problem.tensors[*id].sizes.clone();
        match operation {
            Operation::Convolution { x, w, y, windows } => {
                let (x_sizes, w_sizes, y_sizes) = (sizes(x), sizes(w), sizes(y));
                for (axis, window) in windows.iter().enumerate() {
                    let Window { stride, dilation, before, after } = window;
                    let reach = (w_sizes[axis + 2] - 1) * dilation + 1;
                    let count = (x_sizes[axis + 2] + before + after - reach) / stride + 1;
                    assert_eq!(count, y_sizes[axis + 2], "{}", self.problem);
                }
                let groups = x_sizes[1] / w_sizes[1];
                assert_eq!((w_sizes[0], y_sizes[0]), (y_sizes[1], x_sizes[0]), "{}", self.problem);
                let (taps, filters) = (indices(&w_sizes[1..]), w_sizes[0] / groups);
                self.fill(*y, |values, index| {
                    let term = |tap: &Vec<i64>| {
                        let mut at = vec![index[0], index[1] / filters * w_sizes[1] + tap[0]];
                        for (axis, window) in windows.iter().enumerate() {
                            let Window { stride, dilation, before, .. } = window;
                            let own = index[axis + 2] * stride + tap[axis + 1] * dilation - before;
                            if !(0..x_sizes[axis + 2]).contains(&own) {
                                return 0.0;
                            }
                            at.push(own);
                        }
                        values.get(*x, &at) * values.get(*w, &[&[index[1]], tap.as_slice()].concat())
                    };
                    taps.iter().map(term).sum()
                });
            }
            Operation::Product { a, b, y } => {
                let (a_sizes, y_sizes) = (sizes(a), sizes(y));
                let rank = a_sizes.len();
                let heads = [a, b].map(&sizes);
                self.fill(*y, |values, index| {
                    let at = |sizes: &[i64], row: i64, column: i64| {
                        // Heads of keys serve several of queries.
                        let shared = |axis: usize| index[axis] / (y_sizes[axis] / sizes[axis]);
                        (0..rank - 2).map(shared).chain([row, column]).collect::<Vec<i64>>()
                    };
                    let term = |k: i64| {
                        values.get(*a, &at(&heads[0], index[rank - 2], k))
                            * values.get(*b, &at(&heads[1], k, index[rank - 1]))
                    };
                    (0..a_sizes[rank - 1]).map(term).sum()
                });
            }
            Operation::Pointwise { mode, operands, y } => self.fill(*y, |values, index| {
                let operand = |number: usize| values.get(operands[number], index);
                let x = operand(0);
                match mode {
                    Mode::Add => x + operand(1),
                    Mode::Sub => x - operand(1),
                    Mode::Mul => x * operand(1),
                    Mode::Div => x / operand(1),
                    Mode::Sqrt => x.sqrt(),
                    Mode::Abs => x.abs(),
                    Mode::Exp => x.exp(),
                    Mode::Log => x.ln(),
                    Mode::Neg => -x,
                    Mode::Rsqrt => x.sqrt().recip(),
                    Mode::Erf => panic!("no erf here"),
                    Mode::Recip => x.recip(),
                    Mode::Relu => x.max(0.0),
                    Mode::Tanh => x.tanh(),
                    Mode::AtLeast => f64::from(x >= operand(1)),
                    Mode::Index(axis) => index[*axis] as f64,
                    Mode::Select => {
                        if operand(2) != 0.0 {
                            x
                        } else {
                            operand(1)
                        }
                    }
                }
            }),
            Operation::Reduction { kind, x, y } => {
                let x_sizes = sizes(x);
                self.fill(*y, |values, index| {
                    let last = |at: i64| values.get(*x, &[&index[..index.len() - 1], &[at]].concat());
                    let all = (0..*x_sizes.last().unwrap()).map(last);
                    match kind {
                        Reduction::Sum => all.sum(),
                        Reduction::Max => all.fold(f64::NEG_INFINITY, f64::max),
                    }
                });
            }
        }
    }
}

/// Holds every form of a graph's only kernel against the interpreter, and returns whether each has an epilogue of its own.
fn check(source: &str) -> Vec<bool> {
    let (graph, schedule) = scheduled(source);
    let [step] = schedule.steps.as_slice() else { panic!("{schedule}") };
    let forms = Form::all(&step.kernel);
    assert!(!forms.is_empty(), "{}", step.kernel);
    let inputs: Vec<HostTensor> = graph
        .inputs()
        .iter()
        .map(|&id| {
            let ty = graph.ty(id);
            let shape: Vec<usize> = ty.shape.iter().map(|dim| dim.as_const().unwrap() as usize).collect();
            let count: usize = shape.iter().product();
            let values: Vec<f64> = (0..count).map(|at| ((at * 7 + shape.len()) % 11) as f64 / 8.0 - 0.625).collect();
            HostTensor::from_f64(ty.dtype, &shape, &values).unwrap()
        })
        .collect();
    let wanted = run(&graph, &inputs).unwrap();
    for form in &forms {
        let buffers: Vec<HostTensor> = step
            .args
            .iter()
            .map(|id| match schedule.buffers[id.index()].role {
                Role::Input(input) => inputs[input].clone(),
                Role::Output(output) => HostTensor::zeros(wanted[output].dtype(), wanted[output].shape()).unwrap(),
                _ => panic!("{schedule}"),
            })
            .collect();
        let values = |tensor: &Tensor| match tensor.memory {
            Memory::Buffer { buffer, .. } => buffers[buffer].to_f64(),
            _ => Vec::new(),
        };
        let memory = form.problem.tensors.iter().map(values).collect();
        let mut library = Values { problem: &form.problem, memory };
        form.problem.operations.iter().for_each(|operation| library.compute(operation));
        let results: Vec<(usize, Vec<f64>)> = match &form.epilogue {
            None => {
                let tensors = form.problem.tensors.iter().enumerate();
                let written = |(id, tensor): (usize, &Tensor)| match tensor.memory {
                    Memory::Buffer { buffer, .. } if step.kernel.buffers[buffer].access == Access::Write => {
                        Some((buffer, library.memory[id].clone()))
                    }
                    _ => None,
                };
                tensors.filter_map(written).collect()
            }
            Some(epilogue) => {
                epilogue.verify().unwrap();
                let of = |tensor: &Tensor| tensor.memory == Memory::Scratch;
                let scratch = form.problem.tensors.iter().position(of).unwrap();
                let (dtype, values) = (form.problem.tensors[scratch].dtype, &library.memory[scratch]);
                assert_eq!(values.len() * dtype.size_in_bits() / 8, form.problem.scratch_bytes());
                let flat = |tensor: &HostTensor| tensor.clone().reshape(&[tensor.elements()]).unwrap();
                let mut tensors: Vec<HostTensor> = buffers.iter().map(flat).collect();
                tensors.push(HostTensor::from_f64(dtype, &[values.len()], values).unwrap());
                run_kernel(epilogue, &mut tensors, &[]).unwrap();
                let is_written = |at: &usize| step.kernel.buffers[*at].access == Access::Write;
                (0..buffers.len()).filter(is_written).map(|at| (at, tensors[at].to_f64())).collect()
            }
        };
        assert_eq!(results.len(), wanted.len(), "{}", form.problem);
        for (buffer, values) in results {
            let Role::Output(output) = schedule.buffers[step.args[buffer].index()].role else { panic!("{schedule}") };
            let wanted = &wanted[output];
            let bound = if wanted.dtype() == DType::F32 { 1e-5 } else { 0.02 };
            for (at, (got, wanted)) in values.iter().zip(wanted.to_f64()).enumerate() {
                let near = (got - wanted).abs() <= bound * (1.0 + wanted.abs());
                assert!(near, "element {at}: {got} for {wanted}: {}", form.problem);
            }
        }
    }
    forms.iter().map(|form| form.epilogue.is_some()).collect()
}

/// A convolution of `x` with `w` with the rest of a graph behind it.
fn convolution(dtype: &str, x: &str, w: &str, y: &str, attributes: &str) -> String {
    format!(
        "graph(%0: {dtype}[{x}], %1: {dtype}[{w}]) {{\n  %2: {dtype}[{y}] = conv %0, %1 {{{attributes}}}\n  return %2\n}}"
    )
}

#[test]
fn convolutions_of_every_kind() {
    let own = "input_dilation=[1, 1]";
    for dtype in ["f32", "bf16"] {
        let cases = [
            ("2, 5, 8, 7", "16, 5, 3, 3", "2, 16, 8, 7", "stride=[1, 1], padding=[(1, 1), (1, 1)], dilation=[1, 1]", 1),
            (
                "2, 3, 17, 17",
                "16, 3, 7, 7",
                "2, 16, 9, 9",
                "stride=[2, 2], padding=[(3, 3), (3, 3)], dilation=[1, 1]",
                1,
            ),
            (
                "2, 12, 9, 8",
                "33, 4, 3, 3",
                "2, 33, 9, 8",
                "stride=[1, 1], padding=[(2, 2), (2, 2)], dilation=[2, 2]",
                3,
            ),
            (
                "2, 17, 9, 9",
                "16, 17, 1, 1",
                "2, 16, 5, 5",
                "stride=[2, 2], padding=[(0, 0), (0, 0)], dilation=[1, 1]",
                1,
            ),
            ("2, 4, 9, 8", "16, 4, 3, 3", "2, 16, 7, 6", "stride=[1, 1], padding=[(0, 0), (0, 0)], dilation=[1, 1]", 1),
            (
                "2, 4, 10, 8",
                "16, 4, 3, 3",
                "2, 16, 5, 5",
                "stride=[2, 2], padding=[(1, 0), (0, 3)], dilation=[1, 1]",
                1,
            ),
            (
                "2, 8, 7, 7",
                "16, 8, 3, 3",
                "2, 16, 6, 6",
                "stride=[1, 1], padding=[(-1, 2), (-1, 2)], dilation=[1, 1]",
                1,
            ),
            (
                "3, 16, 5, 5",
                "16, 16, 1, 1",
                "3, 16, 7, 7",
                "stride=[1, 1], padding=[(1, 1), (1, 1)], dilation=[1, 1]",
                1,
            ),
        ];
        for (x, w, y, attributes, groups) in cases {
            check(&convolution(dtype, x, w, y, &format!("{attributes}, {own}, groups={groups}")));
        }
    }
    check(&convolution(
        "f32",
        "2, 4, 5, 4, 6",
        "16, 4, 3, 3, 3",
        "2, 16, 5, 4, 6",
        "stride=[1, 1, 1], padding=[(1, 1), (1, 1), (1, 1)], dilation=[1, 1, 1], input_dilation=[1, 1, 1], groups=1",
    ));
    check(&convolution(
        "f32",
        "2, 16, 39",
        "16, 16, 3",
        "2, 16, 20",
        "stride=[2], padding=[(1, 1)], dilation=[1], input_dilation=[1], groups=1",
    ));
}

/// A convolution of images whose channels are last, with a bias, a residual and a rectifier.
fn block(dtype: &str) -> String {
    format!(
        "graph(%0: {dtype}[2, 6, 6, 16], %1: {dtype}[24, 3, 3, 16], %2: {dtype}[24], %3: {dtype}[2, 6, 6, 24]) {{
  %4: {dtype}[2, 16, 6, 6] = permute %0 {{order=[0, 3, 1, 2]}}
  %5: {dtype}[24, 16, 3, 3] = permute %1 {{order=[0, 3, 1, 2]}}
  %6: {dtype}[2, 24, 6, 6] = conv %4, %5 {{stride=[1, 1], padding=[(1, 1), (1, 1)], dilation=[1, 1], input_dilation=[1, 1], groups=1}}
  %7: {dtype}[1, 24, 1, 1] = reshape %2
  %8: {dtype}[2, 24, 6, 6] = expand %7
  %9: {dtype}[2, 24, 6, 6] = add %6, %8
  %10: {dtype}[2, 6, 6, 24] = permute %9 {{order=[0, 2, 3, 1]}}
  %11: {dtype}[2, 6, 6, 24] = add %10, %3
  %12: {dtype}[2, 6, 6, 24] = full {{value=0}}
  %13: {dtype}[2, 6, 6, 24] = max %11, %12
  return %13
}}"
    )
}

#[test]
fn an_epilogue_is_the_librarys_or_a_loop() {
    for dtype in ["f32", "bf16"] {
        assert_eq!(check(&block(dtype)), [false, true]);
    }
    let [fused, deferred] = forms(&block("bf16")).try_into().unwrap();
    let strides = |form: &Form, id: usize| form.problem.tensors[id].strides.clone();
    // Channels are last everywhere.
    assert_eq!(strides(&fused, 0), [576, 1, 96, 16]);
    assert_eq!(strides(&fused, 1), [144, 1, 48, 16]);
    assert_eq!(strides(&deferred, 2), [864, 1, 144, 24]);
    assert_eq!(
        deferred.problem.to_string(),
        "scratch bf16[2, 24, 6, 6] = convolution (stride 1 dilation 1 padding 1, 1; stride 1 dilation 1 padding 1, 1) \
         b0 bf16[2, 16, 6, 6], b1 bf16[24, 16, 3, 3]"
    );
}

#[test]
fn a_batch_norm_is_a_part_of_the_launch() {
    let source = "graph(%0: bf16[2, 6, 6, 16], %1: bf16[24, 16], %2: bf16[24]) {
  %4: bf16[2, 6, 6, 24] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[3], rhs_contract=[1]}
  %5: bf16[24] = full {value=2}
  %6: bf16[24] = add %2, %5
  %7: f32[24] = cast %6
  %8: f32[24] = rsqrt %7
  %9: f32[1, 1, 1, 24] = reshape %8
  %10: f32[2, 6, 6, 24] = expand %9
  %11: f32[2, 6, 6, 24] = cast %4
  %12: f32[2, 6, 6, 24] = mul %11, %10
  %14: bf16[2, 6, 6, 24] = cast %12
  return %14
}";
    assert_eq!(check(source), [false]);
    let [form] = forms(source).try_into().unwrap();
    let sizes = |id: TensorId| form.problem.tensors[id].sizes.clone();
    let of_vectors = form.problem.operations.iter().filter(|operation| match operation {
        Operation::Pointwise { y, .. } => sizes(*y) == [1, 24, 1, 1],
        _ => false,
    });
    assert!(of_vectors.count() > 0, "{}", form.problem);
}

#[test]
fn only_products_with_an_epilogue_are_problems() {
    let product = |rest: &str, result: &str| {
        format!(
            "graph(%0: bf16[64, 48], %1: bf16[32, 48], %2: bf16[32]) {{
  %3: bf16[64, 32] = dot %0, %1 {{lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}}
{rest}  return {result}
}}"
        )
    };
    assert!(forms(&product("", "%3")).is_empty());
    let added = "  %4: bf16[1, 32] = reshape %2\n  %5: bf16[64, 32] = expand %4\n  %6: bf16[64, 32] = add %3, %5\n";
    let source = product(&format!("{added}  %7: bf16[64, 32] = tanh %6\n"), "%7");
    assert_eq!(check(&source), [false]);
    assert!(!forms(&source)[0].problem.is_product());
    // Weights whose columns are neighbours.
    let columns =
        source.replace("%1: bf16[32, 48]", "%1: bf16[48, 32]").replace("rhs_contract=[1]", "rhs_contract=[0]");
    assert_eq!(check(&columns), [false]);
    assert!(forms(&columns)[0].problem.is_product());
    // An operation that the library does not have.
    assert!(forms(&product(&format!("{added}  %7: bf16[64, 32] = floor %6\n"), "%7")).is_empty());
}

#[test]
fn products_of_exact_floats_use_no_tensor_cores() {
    let cores = |dtype: &str| forms(&block(dtype))[0].problem.tensor_cores;
    assert_eq!((cores("f32"), cores("bf16")), (false, true));
}

/// Attention of `heads` heads over `kv` ones.
fn attention(queries: usize, keys: usize, heads: usize, kv: usize, causal: bool) -> String {
    format!(
        "graph(%0: bf16[2, {heads}, {queries}, 16], %1: bf16[2, {kv}, {keys}, 16], %2: bf16[2, {kv}, {keys}, 16]) {{
  %3: bf16[2, {heads}, {queries}, 16] = attention %0, %1, %2 {{causal={causal}, scale=0.25}}
  return %3
}}"
    )
}

#[test]
fn attention_is_products_and_a_softmax() {
    for (queries, keys, heads, kv) in [(20, 20, 2, 2), (17, 29, 4, 2), (16, 33, 3, 1)] {
        for causal in [false, true] {
            assert_eq!(check(&attention(queries, keys, heads, kv, causal)), [false]);
        }
    }
    // Rows that see no key, and few queries.
    assert!(forms(&attention(29, 17, 2, 2, true)).is_empty());
    assert!(forms(&attention(4, 17, 2, 2, false)).is_empty());
}

#[test]
fn what_is_not_known_is_not_the_librarys() {
    let source = "graph(%0: bf16[t, 48], %1: bf16[32, 48]) {
  %2: bf16[t, 32] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[1]}
  %3: bf16[t, 32] = tanh %2
  return %3
}";
    assert!(forms(source).is_empty());
}

#[test]
fn equal_problems_have_one_key() {
    let (one, other) = (forms(&block("bf16")), forms(&block("bf16")));
    assert_eq!(one, other);
    assert_ne!(forms(&block("f16"))[0].problem, one[0].problem);
    let set: std::collections::HashSet<Problem> = one.into_iter().chain(other).map(|form| form.problem).collect();
    assert_eq!(set.len(), 2);
}

#[test]
fn libraries_of_one_cuda_fit_together() {
    assert_eq!(usable(91_400, 13, 13, 13), Ok(()));
    assert_eq!(usable(90_500, 13, 13, 13), Err("version 9.5 is older than 9.10".to_owned()));
    assert_eq!(usable(91_400, 12, 13, 13), Err("version 9.14 is of CUDA 12, and cuBLASLt of CUDA 13".to_owned()));
    assert_eq!(usable(91_400, 13, 13, 12), Err("version 9.14 is of CUDA 13, and NVRTC of CUDA 12".to_owned()));
}
