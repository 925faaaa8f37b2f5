//! What the library computes: operations on strided tensors.

use kiln_ir::DType;
use std::fmt;

/// Operations in the order of their results.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Problem {
    pub(super) tensors: Vec<Tensor>,
    pub(super) operations: Vec<Operation>,
    /// Whether engines may use tensor cores, which round F32 to TF32.
    pub(super) tensor_cores: bool,
}

/// The number of a tensor in a problem.
pub(super) type TensorId = usize;

/// A tensor of a problem.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Tensor {
    pub(super) dtype: DType,
    pub(super) sizes: Vec<i64>,
    /// In elements.
    pub(super) strides: Vec<i64>,
    pub(super) memory: Memory,
}

/// Where a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Memory {
    /// In a buffer of the kernel, from this element on.
    Buffer { buffer: usize, first: i64 },
    /// In memory of the launch, which an epilogue of its own reads.
    Scratch,
    /// Nowhere: between two operations.
    Between,
    /// A number that is an argument, the bits of an F32.
    Float(u32),
    /// A number that is an argument.
    Int(i32),
}

/// An operation on tensors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    /// Cross-correlation of `x` `[n, c, …]` with `w` `[k, c / groups, …]`.
    Convolution { x: TensorId, w: TensorId, y: TensorId, windows: Vec<Window> },
    /// The product of the last two axes; others are of one size, or 1 is repeated.
    Product { a: TensorId, b: TensorId, y: TensorId },
    /// Element by element; axes of size 1 are repeated.
    Pointwise { mode: Mode, operands: Vec<TensorId>, y: TensorId },
    /// Along the axes that have size 1 in the result.
    Reduction { kind: Reduction, x: TensorId, y: TensorId },
}

/// How a window moves along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Window {
    pub(super) stride: i64,
    pub(super) dilation: i64,
    pub(super) before: i64,
    pub(super) after: i64,
}

/// Operations on elements, as `cudnnPointwiseMode_t` numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Mode {
    Add,
    Sub,
    Mul,
    Div,
    Sqrt,
    Abs,
    Exp,
    Log,
    Neg,
    Rsqrt,
    Erf,
    Recip,
    Relu,
    Tanh,
    /// Whether the first is at least the second.
    AtLeast,
    /// The index along an axis.
    Index(usize),
    /// The first where the third holds, else the second.
    Select,
}

impl Mode {
    pub(super) fn number(self) -> i32 {
        match self {
            Mode::Add => 0,
            Mode::Mul => 1,
            Mode::Sqrt => 4,
            Mode::Div => 6,
            Mode::Sub => 9,
            Mode::Abs => 10,
            Mode::Exp => 13,
            Mode::Log => 15,
            Mode::Neg => 16,
            Mode::Rsqrt => 17,
            Mode::Erf => 20,
            Mode::Recip => 22,
            Mode::Relu => 100,
            Mode::Tanh => 101,
            Mode::AtLeast => 303,
            Mode::Index(_) => 501,
            Mode::Select => 601,
        }
    }
}

/// Reductions, as `cudnnReduceTensorOp_t` numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Reduction {
    Sum = 0,
    Max = 3,
}

impl Problem {
    pub(super) fn tensor(&mut self, dtype: DType, sizes: &[i64], strides: &[i64], memory: Memory) -> TensorId {
        self.tensors.push(Tensor { dtype, sizes: sizes.to_vec(), strides: strides.to_vec(), memory });
        self.tensors.len() - 1
    }

    /// A number as a tensor of as many axes as another has.
    pub(super) fn number(&mut self, like: TensorId, dtype: DType, memory: Memory) -> TensorId {
        let ones = vec![1; self.tensors[like].sizes.len()];
        self.tensor(dtype, &ones, &ones, memory)
    }

    /// Adds an operation on elements, whose result is between operations and has the sizes of the first operand.
    pub(super) fn pointwise(&mut self, mode: Mode, operands: &[TensorId], dtype: DType) -> TensorId {
        let Tensor { sizes, strides, .. } = self.tensors[operands[0]].clone();
        let y = self.tensor(dtype, &sizes, &strides, Memory::Between);
        self.operations.push(Operation::Pointwise { mode, operands: operands.to_vec(), y });
        y
    }

    /// Whether it is one product, and operations on its elements.
    pub(super) fn is_product(&self) -> bool {
        let is_product = |operation: &&Operation| matches!(operation, Operation::Product { .. });
        self.operations.iter().filter(is_product).count() == 1
    }

    /// Bytes of the tensor that is in memory of the launch.
    pub(super) fn scratch_bytes(&self) -> usize {
        let scratch = self.tensors.iter().find(|tensor| tensor.memory == Memory::Scratch);
        scratch.map_or(0, |tensor| tensor.sizes.iter().product::<i64>() as usize * tensor.dtype.size_in_bits() / 8)
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.memory {
            Memory::Buffer { buffer, first: 0 } => write!(f, "b{buffer}"),
            Memory::Buffer { buffer, first } => write!(f, "b{buffer}+{first}"),
            Memory::Scratch => f.write_str("scratch"),
            Memory::Between => f.write_str("between"),
            Memory::Float(bits) => return write!(f, "{}", f32::from_bits(bits)),
            Memory::Int(value) => return write!(f, "{value}"),
        }?;
        write!(f, " {}{:?}", self.dtype, self.sizes)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensor = |id: &TensorId| match self.tensors[*id].memory {
            Memory::Between => format!("t{id}"),
            _ => self.tensors[*id].to_string(),
        };
        for (number, operation) in self.operations.iter().enumerate() {
            let (name, operands, y) = match operation {
                Operation::Convolution { x, w, y, windows } => {
                    let window = |window: &Window| {
                        let Window { stride, dilation, before, after } = window;
                        format!("stride {stride} dilation {dilation} padding {before}, {after}")
                    };
                    let windows: Vec<String> = windows.iter().map(window).collect();
                    (format!("convolution ({})", windows.join("; ")), vec![*x, *w], y)
                }
                Operation::Product { a, b, y } => ("product".to_owned(), vec![*a, *b], y),
                Operation::Pointwise { mode, operands, y } => (format!("{mode:?}").to_lowercase(), operands.clone(), y),
                Operation::Reduction { kind, x, y } => (format!("{kind:?}").to_lowercase(), vec![*x], y),
            };
            let operands: Vec<String> = operands.iter().map(tensor).collect();
            let separator = if number == 0 { "" } else { "; " };
            write!(f, "{separator}{} = {name} {}", tensor(y), operands.join(", "))?;
        }
        Ok(())
    }
}
