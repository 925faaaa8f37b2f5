//! The description of an ATen graph: calls of ops by name, with arguments by the names of the op's schema.

use kiln_ir::{DType, Dim, Source, Symbol};
use std::collections::BTreeMap;

/// The number of a tensor of an [`AtenGraph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// The index into [`AtenGraph::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An element type of PyTorch. A complex number is two of `dtype`; a whole number without a sign is stored as the one with a sign that
/// has the same bits, and is moved but not computed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Element {
    /// The dtype, or that of the two parts of complex numbers.
    pub dtype: DType,
    /// Whether elements are complex numbers.
    pub complex: bool,
    /// Whether elements are whole numbers without a sign that `dtype` has only the bits of.
    pub unsigned: bool,
}

impl Element {
    /// A real element type.
    pub const fn real(dtype: DType) -> Element {
        Element { dtype, complex: false, unsigned: false }
    }

    /// Complex numbers with parts of this dtype.
    pub const fn complex(dtype: DType) -> Element {
        Element { dtype, complex: true, unsigned: false }
    }

    /// Whole numbers without a sign, stored as this dtype.
    pub const fn unsigned(dtype: DType) -> Element {
        Element { dtype, complex: false, unsigned: true }
    }

    /// The element type of PyTorch's name, `torch.` left out; `None` for one that Kiln has not.
    ///
    /// ```
    /// use kiln_aten::Element;
    /// use kiln_ir::DType;
    /// assert_eq!(Element::named("bfloat16"), Some(Element::real(DType::Bf16)));
    /// assert_eq!(Element::named("complex64"), Some(Element::complex(DType::F32)));
    /// assert_eq!(Element::named("uint64"), Some(Element::unsigned(DType::I64)));
    /// assert_eq!(Element::named("bits8"), None);
    /// ```
    pub fn named(name: &str) -> Option<Element> {
        let dtype = match name {
            "float32" => DType::F32,
            "float64" => DType::F64,
            "float16" => DType::F16,
            "bfloat16" => DType::Bf16,
            "int8" => DType::I8,
            "int16" => DType::I16,
            "int32" => DType::I32,
            "int64" => DType::I64,
            "uint8" => DType::U8,
            "bool" => DType::Bool,
            "float8_e4m3fn" => DType::F8E4M3,
            "float8_e5m2" => DType::F8E5M2,
            "uint16" => return Some(Element::unsigned(DType::I16)),
            "uint32" => return Some(Element::unsigned(DType::I32)),
            "uint64" => return Some(Element::unsigned(DType::I64)),
            "complex64" => return Some(Element::complex(DType::F32)),
            "complex128" => return Some(Element::complex(DType::F64)),
            _ => return None,
        };
        Some(Element::real(dtype))
    }
}

/// What PyTorch knows of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Its element type.
    pub element: Element,
    /// Its sizes.
    pub shape: Vec<Dim>,
    /// Elements from one index of each axis to the next.
    pub strides: Vec<Dim>,
}

impl Meta {
    /// A tensor in row-major order.
    pub fn contiguous(element: Element, shape: Vec<Dim>) -> Meta {
        let mut strides = vec![Dim::from(1); shape.len()];
        for axis in (1..shape.len()).rev() {
            // Of no elements PyTorch counts as if there were one.
            let size = if shape[axis].is_zero() { &Dim::from(1) } else { &shape[axis] };
            strides[axis - 1] = &strides[axis] * size;
        }
        Meta { element, shape, strides }
    }
}

/// An argument of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Argument {
    /// Nothing.
    None,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A whole number that depends on sizes (a SymInt).
    Size(Dim),
    /// A word, such as a mode.
    Word(String),
    /// A dtype.
    Element(Element),
    /// A tensor.
    Tensor(ValueId),
    /// A list.
    List(Vec<Argument>),
}

/// A call of an op.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The op with its overload: `aten.add.Tensor`.
    pub op: String,
    /// Arguments by the names of the schema, those with default values included. Where and how a tensor is kept (`device`,
    /// `layout`, `pin_memory`, `memory_format`, `generator`) may be left out.
    pub arguments: Vec<(String, Argument)>,
    /// The tensors it gives; `None` for one that is not there or that nobody uses.
    pub results: Vec<Option<ValueId>>,
    /// The user's line.
    pub source: Source,
}

/// A graph of ATen ops.
#[derive(Debug, Clone, Default)]
pub struct AtenGraph {
    /// Every tensor.
    pub values: Vec<Meta>,
    /// The tensors that are given.
    pub inputs: Vec<ValueId>,
    /// The calls, in order.
    pub calls: Vec<Call>,
    /// The tensors that are returned.
    pub outputs: Vec<ValueId>,
    /// Sizes that symbols had while the graph was captured: they order strides whose order cannot be proven.
    pub hints: BTreeMap<Symbol, i64>,
}

impl AtenGraph {
    /// Adds a tensor.
    pub fn value(&mut self, meta: Meta) -> ValueId {
        self.values.push(meta);
        ValueId(self.values.len() as u32 - 1)
    }

    /// Adds the next input.
    pub fn input(&mut self, meta: Meta) -> ValueId {
        let id = self.value(meta);
        self.inputs.push(id);
        id
    }

    /// A tensor by number.
    pub fn meta(&self, id: ValueId) -> &Meta {
        &self.values[id.index()]
    }
}
