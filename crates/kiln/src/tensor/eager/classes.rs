//! Operations that come by with ever new shapes get one program with symbolic sizes, so that a loop over growing tensors does not compile at
//! every turn.
//!
//! A class is everything about an operation but the sizes of its operands' axes. At the first shapes of a class exact programs are made,
//! which are the fastest; at the [`PATIENCE`]th the axes that have changed so far become symbols. Sizes 0 and 1, and axes of stride 0, are part
//! of the class: they mean something else. Axes that changed together and are equal now are taken to be equal always; where
//! that turns out wrong, the shape gets an exact program.

use super::cache::{Mix, OwnedOperation};
use super::{Operation, Write, compile};
use crate::tensor::compiled_graph::CompiledGraph;
use crate::tensor::strides::{self, AxisStride};
use crate::{DType, Device, Tensor};
use kiln_ir::{Dim, Op, Source, TensorType};
use kiln_kernels::InputLayout;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Shapes of a class before it gets a symbolic program.
const PATIENCE: usize = 6;

/// Classes kept; beyond that all are forgotten, which costs at most some compiles.
const CLASSES_KEPT: usize = 4096;
/// Bytes of their programs; the same happens beyond it.
const BYTES_KEPT: usize = 64 << 20;

struct Class {
    what: OwnedOperation,
    device: Device,
    forms: Vec<Form>,
    /// The first shapes seen, an entry an operand.
    shapes: Vec<Vec<usize>>,
    /// Which sizes have changed since.
    varying: Vec<Vec<bool>>,
    seen: usize,
    program: Symbolic,
}

enum Symbolic {
    /// Not made yet.
    None,
    /// For operands of these types.
    Program(Vec<TensorType>, Arc<CompiledGraph>),
    /// The operation cannot be written for symbolic sizes.
    Refused,
}

/// An operand but for its sizes.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Form {
    dtype: DType,
    axes: Vec<AxisForm>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum AxisForm {
    Empty,
    One,
    /// Stride 0.
    Repeated,
    /// The stride is the product of the `Dense` sizes that follow.
    Dense,
    /// What this says, as for all axes of more than one place.
    Follows(AxisStride),
}

static CLASSES: LazyLock<Mutex<HashMap<u64, Vec<Class>>>> = LazyLock::new(Mutex::default);

/// A program with symbolic sizes that takes these operands, if their class has one or gets one now.
pub(super) fn symbolic(
    what: Operation<'_>,
    operands: &[&Tensor],
    device: Device,
    write: Write<'_>,
    at: &Source,
) -> Option<Arc<CompiledGraph>> {
    if !is_size_free(what) || operands.is_empty() {
        return None;
    }
    let forms: Vec<Form> = operands.iter().map(|t| Form::of(t)).collect::<Option<_>>()?;
    let mut hasher = Mix::default();
    (what, device, &forms).hash(&mut hasher);
    let hash = hasher.finish();
    let types = match visit(hash, what, operands, device, &forms) {
        Visit::Exact => return None,
        Visit::Program(program) => return Some(program),
        Visit::Compile(types) => types,
    };
    // Compiled outside of the lock: others go on meanwhile.
    let described = types.iter().zip(&forms).zip(operands);
    let layouts = described.map(|((ty, form), operand)| symbolic_layout(ty, form, operand)).collect();
    let made = compile(what, types.clone(), layouts, device, write, at).ok();
    let mut classes = CLASSES.lock().unwrap_or_else(PoisonError::into_inner);
    let program_bytes = |class: &Class| match &class.program {
        Symbolic::Program(_, program) => program.bytes(),
        _ => 0,
    };
    if classes.values().flatten().map(program_bytes).sum::<usize>() > BYTES_KEPT {
        classes.clear();
        return made;
    }
    let class = classes.get_mut(&hash)?.iter_mut().find(|class| class.is_for(what, operands, device))?;
    class.program = match &made {
        Some(program) => Symbolic::Program(types, program.clone()),
        None => Symbolic::Refused,
    };
    made
}

/// What there is to do for a shape that has no program.
enum Visit {
    Exact,
    Program(Arc<CompiledGraph>),
    Compile(Vec<TensorType>),
}

fn visit(hash: u64, what: Operation<'_>, operands: &[&Tensor], device: Device, forms: &[Form]) -> Visit {
    let mut classes = CLASSES.lock().unwrap_or_else(PoisonError::into_inner);
    if classes.len() > CLASSES_KEPT {
        classes.clear();
    }
    let list = classes.entry(hash).or_default();
    let Some(class) = list.iter_mut().find(|class| class.is_for(what, operands, device)) else {
        let shapes: Vec<Vec<usize>> = operands.iter().map(|t| t.shape().to_vec()).collect();
        let varying = shapes.iter().map(|shape| vec![false; shape.len()]).collect();
        let what = OwnedOperation::of(what);
        list.push(Class { what, device, forms: forms.to_vec(), shapes, varying, seen: 1, program: Symbolic::None });
        return Visit::Exact;
    };
    match &class.program {
        Symbolic::Refused => return Visit::Exact,
        Symbolic::Program(types, program) if accepts(types, operands) => return Visit::Program(program.clone()),
        Symbolic::Program(..) | Symbolic::None => {}
    }
    for ((first, varying), operand) in class.shapes.iter().zip(&mut class.varying).zip(operands) {
        for ((a, b), varies) in first.iter().zip(operand.shape()).zip(varying) {
            *varies |= a != b;
        }
    }
    class.seen += 1;
    if class.seen < PATIENCE { Visit::Exact } else { class.types(operands).map_or(Visit::Exact, Visit::Compile) }
}

impl Class {
    fn is_for(&self, what: Operation<'_>, operands: &[&Tensor], device: Device) -> bool {
        let same = |(form, tensor): (&Form, &&Tensor)| Form::of(tensor).as_ref() == Some(form);
        self.what.is(what)
            && self.device == device
            && self.forms.len() == operands.len()
            && self.forms.iter().zip(operands).all(same)
    }

    /// The operands' types with a symbol for each different size among those that vary.
    fn types(&self, operands: &[&Tensor]) -> Option<Vec<TensorType>> {
        let mut symbols: Vec<usize> = Vec::new();
        let mut size = |n: usize, varies: bool| {
            if !varies {
                return Some(Dim::from(n));
            }
            let number = symbols.iter().position(|&known| known == n).unwrap_or_else(|| {
                symbols.push(n);
                symbols.len() - 1
            });
            Dim::symbol(&format!("s{number}"))
        };
        let mut types = Vec::with_capacity(operands.len());
        for (operand, varying) in operands.iter().zip(&self.varying) {
            let shape: Option<Vec<Dim>> =
                operand.shape().iter().zip(varying).map(|(&n, &varies)| size(n, varies)).collect();
            types.push(TensorType::new(operand.dtype(), shape?));
        }
        Some(types)
    }
}

/// Whether operands of these sizes are of these types: constants agree, a symbol has one value throughout.
fn accepts(types: &[TensorType], operands: &[&Tensor]) -> bool {
    let mut values: Vec<(Dim, usize)> = Vec::new();
    types.iter().zip(operands).flat_map(|(ty, t)| ty.shape.iter().zip(t.shape())).all(|(dim, &n)| {
        match (dim.as_usize(), values.iter().find(|(symbol, _)| symbol == dim)) {
            (Some(constant), _) => constant == n,
            (None, Some((_, value))) => *value == n,
            (None, None) => {
                values.push((dim.clone(), n));
                true
            }
        }
    })
}

impl Form {
    /// `None` when the strides are not a function of the sizes.
    fn of(tensor: &Tensor) -> Option<Form> {
        let mut axes = Vec::with_capacity(tensor.rank());
        let mut expected = 1isize;
        for (&size, &stride) in tensor.shape().iter().zip(tensor.strides()).rev() {
            axes.push(match (size, stride) {
                (0, _) => AxisForm::Empty,
                (1, _) => AxisForm::One,
                (_, 0) => AxisForm::Repeated,
                (_, stride) if stride == expected => {
                    expected *= size as isize;
                    AxisForm::Dense
                }
                _ => return Form::of_other(tensor),
            });
        }
        axes.reverse();
        Some(Form { dtype: tensor.dtype(), axes })
    }

    /// The same for a tensor that is not in row-major order.
    #[cold]
    fn of_other(tensor: &Tensor) -> Option<Form> {
        let (rules, _) = strides::rules(tensor.into(), None)?;
        let form = |(&size, rule): (&usize, AxisStride)| match rule {
            _ if size == 1 => AxisForm::One,
            rule if rule.is_repeated() => AxisForm::Repeated,
            rule => AxisForm::Follows(rule),
        };
        Some(Form { dtype: tensor.dtype(), axes: tensor.shape().iter().zip(rules).map(form).collect() })
    }
}

fn symbolic_layout(ty: &TensorType, form: &Form, tensor: &Tensor) -> InputLayout {
    if form.axes.iter().any(|axis| matches!(axis, AxisForm::Follows(_))) {
        let rules = strides::rules(tensor.into(), None).map_or_else(Vec::new, |(rules, _)| rules);
        return strides::layout(&rules, &ty.shape);
    }
    let mut strides = vec![Dim::from(0); ty.rank()];
    let mut stride = Dim::from(1);
    for axis in (0..ty.rank()).rev() {
        if tensor.shape()[axis] > 1 && tensor.strides()[axis] != 0 {
            strides[axis] = stride.clone();
            stride *= &ty.shape[axis];
        }
    }
    InputLayout { strides, offset: Dim::from(0) }
}

/// Whether the operation's graph is written from its operands' types alone, so that other sizes give the same graph. True of
/// primitives without sizes among their attributes, and of the composites listed.
fn is_size_free(what: Operation<'_>) -> bool {
    match what {
        Operation::Op(op) => {
            op.is_pointwise()
                || matches!(
                    op,
                    Op::Reduce { .. } | Op::ArgReduce { .. } | Op::Scan { .. } | Op::Concat { .. } | Op::Scatter { .. }
                )
        }
        Operation::Composite(name, _) => SIZE_FREE.contains(&name),
        Operation::Update(..) | Operation::Gradient(_) => false,
    }
}

const SIZE_FREE: &[&str] = &[
    "copy",
    "cat",
    "stack",
    "matmul",
    "bmm",
    "linear",
    "gather",
    "index_select",
    "embedding",
    "scaled_dot_product_attention",
    "softmax",
    "log_softmax",
    "layer_norm",
    "rms_norm",
    "group_norm",
    "batch_norm",
    "glu",
    "leaky_relu",
    "elu",
    "softplus",
    "sigmoid",
    "log_sigmoid",
    "silu",
    "gelu",
    "gelu_tanh",
    "relu",
    "relu6",
    "selu",
    "mish",
    "hardsigmoid",
    "hardswish",
    "softsign",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "square",
    "remainder",
    "div_floor",
    "add",
    "sub",
    "mul",
    "div",
    "rem",
    "fmod",
    "pow",
    "maximum",
    "minimum",
    "clamp",
    "where_",
    "masked_fill",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "sum",
    "prod",
    "mean",
    "logsumexp",
    "any",
    "all",
    "amax",
    "amin",
    "max",
    "min",
    "argmax",
    "argmin",
    "var",
    "std",
    "norm",
    "tril",
    "triu",
];
