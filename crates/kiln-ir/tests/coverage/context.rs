//! What an expression is written in: the arguments of a call, and a graph under construction.

use crate::reference::{Attribute, Call};
use kiln_ir::build::{self, GraphBuilder};
use kiln_ir::{DType, Dim, Error, NodeId, Scalar, TensorType};

/// A tensor in the graph. One of complex numbers has a last axis of 2 that PyTorch does not count.
#[derive(Debug, Clone, Copy)]
pub struct Value {
    pub id: NodeId,
    pub complex: bool,
}

/// Arguments that are no tensors.
impl Call {
    /// An argument that is no tensor; `None` where it was not given or is none.
    pub fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.get(name).filter(|attribute| **attribute != Attribute::None)
    }

    fn given(&self, name: &str) -> &Attribute {
        self.attribute(name).unwrap_or_else(|| panic!("{} has no '{name}'", self.op))
    }

    /// A number.
    pub fn float(&self, name: &str) -> f64 {
        number(self.given(name))
    }

    /// A whole number.
    pub fn int(&self, name: &str) -> i64 {
        whole(self.given(name))
    }

    /// A size or count.
    pub fn size(&self, name: &str) -> usize {
        usize::try_from(self.int(name)).expect("a size is not negative")
    }

    /// True or false.
    pub fn flag(&self, name: &str) -> bool {
        match self.given(name) {
            Attribute::Bool(value) => *value,
            other => panic!("{name} is {other:?}"),
        }
    }

    /// A list of whole numbers; empty where it was not given.
    pub fn ints(&self, name: &str) -> Vec<i64> {
        match self.attribute(name) {
            None => vec![],
            Some(Attribute::List(list)) => list.iter().map(whole).collect(),
            Some(one) => vec![whole(one)],
        }
    }

    /// A list of sizes.
    pub fn sizes(&self, name: &str) -> Vec<usize> {
        self.ints(name).into_iter().map(|n| usize::try_from(n).expect("a size is not negative")).collect()
    }

    /// A word, such as a mode.
    pub fn word(&self, name: &str) -> Option<&str> {
        match self.attribute(name)? {
            Attribute::Word(word) => Some(word),
            other => panic!("{name} is {other:?}"),
        }
    }

    /// A dtype, and whether of complex numbers.
    pub fn dtype(&self, name: &str) -> Option<(DType, bool)> {
        Some(match self.word(name)? {
            "c64" => (DType::F32, true),
            "c128" => (DType::F64, true),
            word => (word.parse().unwrap(), false),
        })
    }

    /// The number of an argument in a dtype.
    pub fn scalar(&self, name: &str, dtype: DType) -> Scalar {
        scalar_of(self.given(name)).cast(dtype)
    }
}

/// A real tensor.
pub fn real(id: NodeId) -> Value {
    Value { id, complex: false }
}

/// What an expression gives.
pub type Results = Result<Vec<Value>, Error>;

/// The expression of one or more ops.
pub struct Entry {
    /// The ops.
    pub ops: &'static [&'static str],
    /// A description of the expression; functions and primitives in backticks.
    pub text: &'static str,
    /// The expression.
    pub build: fn(&mut Context) -> Results,
}

/// The arguments of a call, and the graph.
pub struct Context<'a> {
    pub b: GraphBuilder,
    pub call: &'a Call,
    /// One for each of the call's tensors.
    pub values: Vec<Option<Value>>,
    /// For ops that draw random numbers.
    pub seed: NodeId,
}

impl Context<'_> {
    /// The tensor of an argument, if it was given.
    pub fn optional(&self, name: &str) -> Option<Value> {
        let position = self.call.tensors.iter().position(|(n, _)| n == name)?;
        self.values[position]
    }

    /// The tensor of an argument.
    pub fn tensor(&self, name: &str) -> Value {
        self.optional(name).unwrap_or_else(|| panic!("{} has no tensor '{name}'", self.call.op))
    }

    /// The node of an argument, which is real.
    pub fn node(&self, name: &str) -> NodeId {
        self.tensor(name).id
    }

    /// The node of an argument, if it was given.
    pub fn optional_node(&self, name: &str) -> Option<NodeId> {
        self.optional(name).map(|value| value.id)
    }

    /// The members of a list of tensors.
    pub fn list(&self, name: &str) -> Vec<Option<Value>> {
        self.call.tensors.iter().zip(&self.values).filter(|((n, _), _)| n == name).map(|(_, value)| *value).collect()
    }

    /// Dtype and shape as PyTorch counts it: without the axis of the parts of complex numbers.
    pub fn ty(&self, value: Value) -> TensorType {
        let mut ty = self.b.graph().ty(value.id).clone();
        if value.complex {
            ty.shape.pop();
        }
        ty
    }

    /// Sizes as PyTorch counts them.
    pub fn shape(&self, value: Value) -> Vec<Dim> {
        self.ty(value).shape
    }

    /// The rank as PyTorch counts it.
    pub fn rank(&self, value: Value) -> usize {
        self.ty(value).rank()
    }

    /// An axis of a value, counted from its end if negative.
    pub fn axis(&self, value: Value, axis: i64) -> usize {
        // PyTorch lets a scalar have axis 0.
        build::axis(self.rank(value).max(1), axis).unwrap_or_else(|| panic!("axis {axis}"))
    }

    /// Axes of a value; all of them where the list is empty or not given.
    pub fn axes(&self, value: Value, name: &str) -> Vec<usize> {
        let axes: Vec<usize> = self.call.ints(name).iter().map(|&axis| self.axis(value, axis)).collect();
        if axes.is_empty() { (0..self.rank(value)).collect() } else { axes }
    }

    /// A shape in which one size may be −1.
    pub fn target(&self, value: Value, name: &str) -> Vec<Dim> {
        let sizes = self.call.ints(name);
        let known: i64 = sizes.iter().filter(|&&n| n >= 0).product();
        let total = self.ty(value).elements().as_const().expect("sizes here are constant");
        sizes.iter().map(|&n| Dim::from(if n >= 0 { n } else { total / known.max(1) })).collect()
    }

    /// A shape followed by the axis of the parts if a value is complex.
    pub fn with_parts(&self, value: Value, shape: &[Dim]) -> Vec<Dim> {
        shape.iter().cloned().chain(value.complex.then(|| Dim::from(2))).collect()
    }

    /// A tensor, or a number where one stands for a tensor, as PyTorch counts it in promoting dtypes.
    fn operand(&self, name: &str) -> Operand {
        match (self.optional(name), self.call.attribute(name)) {
            (Some(value), _) => Operand::Tensor(value),
            (None, Some(attribute)) => Operand::Number(scalar_of(attribute)),
            (None, None) => panic!("{} has no '{name}'", self.call.op),
        }
    }

    /// The dtype that PyTorch computes in for these arguments.
    pub fn promoted(&self, names: &[&str]) -> DType {
        let (mut tensors, mut scalars, mut numbers) = (None, None, None);
        for name in names {
            let (class, dtype) = match self.operand(name) {
                Operand::Tensor(value) if self.rank(value) > 0 => (&mut tensors, self.ty(value).dtype),
                Operand::Tensor(value) => (&mut scalars, self.ty(value).dtype),
                Operand::Number(scalar) => (&mut numbers, scalar.dtype()),
            };
            *class = Some(class.map_or(dtype, |before| common(before, dtype)));
        }
        let prefer = |higher: Option<DType>, lower: Option<DType>| match (higher, lower) {
            (Some(h), Some(l)) if h == DType::Bool || (l.is_float() && !h.is_float()) => Some(common(h, l)),
            (Some(h), _) => Some(h),
            (None, lower) => lower,
        };
        prefer(prefer(tensors, scalars), numbers).expect("there is an operand")
    }

    /// An argument in a dtype, whether a tensor or a number.
    pub fn cast_to(&mut self, name: &str, dtype: DType) -> Result<NodeId, Error> {
        match self.operand(name) {
            Operand::Tensor(value) => build::cast(&mut self.b, &value.id, dtype),
            Operand::Number(scalar) => build::full(&mut self.b, scalar.cast(dtype), &[]),
        }
    }

    /// Two arguments in the dtype that PyTorch computes in.
    pub fn pair(&mut self, x: &str, y: &str) -> Result<(NodeId, NodeId), Error> {
        let dtype = self.promoted(&[x, y]);
        Ok((self.cast_to(x, dtype)?, self.cast_to(y, dtype)?))
    }

    /// An argument as a float: integers become f32.
    pub fn float_node(&mut self, name: &str) -> Result<NodeId, Error> {
        let dtype = self.promoted(&[name]);
        self.cast_to(name, as_float(dtype))
    }
}

enum Operand {
    Tensor(Value),
    Number(Scalar),
}

/// The dtype, or f32 for one that is no float.
pub fn as_float(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::F32 }
}

/// Sums of integers and bools are i64.
pub fn as_total(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

fn whole(attribute: &Attribute) -> i64 {
    match attribute {
        Attribute::Int(value) => *value,
        Attribute::Bool(value) => i64::from(*value),
        other => panic!("{other:?} is no whole number"),
    }
}

fn number(attribute: &Attribute) -> f64 {
    match attribute {
        Attribute::Float(value) => *value,
        other => whole(other) as f64,
    }
}

/// A number in the dtype that PyTorch gives it.
pub fn scalar_of(attribute: &Attribute) -> Scalar {
    match attribute {
        Attribute::Bool(value) => Scalar::bool(*value),
        Attribute::Int(value) => Scalar::int(DType::I64, *value),
        // Promotes as f32, but is not rounded to it before it meets an f64.
        Attribute::Float(value) => Scalar::Float(DType::F32, *value),
        other => panic!("{other:?} is no number"),
    }
}

/// The dtype that holds what two of one class hold.
fn common(x: DType, y: DType) -> DType {
    const ORDER: [DType; 9] =
        [DType::Bool, DType::U8, DType::I8, DType::I16, DType::I32, DType::I64, DType::F16, DType::F32, DType::F64];
    match (x, y) {
        (DType::Bf16, DType::F16) | (DType::F16, DType::Bf16) => DType::F32,
        (DType::U8, DType::I8) | (DType::I8, DType::U8) => DType::I16,
        (DType::Bf16, other) | (other, DType::Bf16) if matches!(other, DType::F32 | DType::F64) => other,
        (DType::Bf16, _) | (_, DType::Bf16) => DType::Bf16,
        _ => {
            let place = |dtype| ORDER.iter().position(|&d| d == dtype);
            if place(x) >= place(y) { x } else { y }
        }
    }
}
