//! Creating tensors: from values, filled, counting, and by joining others.

use crate::tensor::compiled_graph::locate;
use crate::tensor::eager::{self, Param};
use crate::tensor::shape::{checked_elements, resolve_axis, resolve_numbers, resolve_shape};
use crate::tensor::{dim, promotion};
use crate::{DType, Device, Dim, Element, Error, Number, Result, Shape, Size, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{CompareOp, NodeId, Op, Source};

impl Tensor {
    /// Makes a tensor of the vector's elements, in row-major order.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::from_vec(vec![1f32, 2., 3., 4., 5., 6.], [2, 3], Device::Cpu)?;
    /// assert_eq!(x.shape(), [2, 3]);
    /// assert!(Tensor::from_vec(vec![1f32], [2, 3], Device::Cpu).is_err());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn from_vec<T: Element>(elements: Vec<T>, shape: impl Shape, device: Device) -> Result<Tensor> {
        Tensor::from_elements("from_vec", &elements, shape, device, &Source::caller())
    }

    /// Makes a tensor of the slice's elements, in row-major order.
    #[track_caller]
    pub fn from_slice<T: Element>(elements: &[T], shape: impl Shape, device: Device) -> Result<Tensor> {
        Tensor::from_elements("from_slice", elements, shape, device, &Source::caller())
    }

    fn from_elements<T: Element>(
        op: &'static str,
        elements: &[T],
        shape: impl Shape,
        device: Device,
        at: &Source,
    ) -> Result<Tensor> {
        let shape = resolve_numbers(op, shape, at)?;
        let expected = checked_elements(&shape);
        if expected != Some(elements.len()) {
            let (expected, got) = (expected.unwrap_or(usize::MAX), elements.len());
            return Err(Error::ElementCount { op, shape, expected, got, at: at.clone() });
        }
        Tensor::from_bytes_at(T::as_bytes(elements), shape, T::DTYPE, device, at)
    }

    /// Makes a tensor of packed bytes, in the encoding of the dtype.
    #[track_caller]
    pub fn from_bytes(bytes: &[u8], shape: impl Shape, dtype: DType, device: Device) -> Result<Tensor> {
        let at = Source::caller();
        let shape = resolve_numbers("from_bytes", shape, &at)?;
        let expected = checked_elements(&shape);
        if expected.and_then(|n| dtype.bytes_for(n)) != Some(bytes.len()) {
            let (expected, got) = (expected.unwrap_or(usize::MAX), bytes.len() * 8 / dtype.size_in_bits());
            return Err(Error::ElementCount { op: "from_bytes", shape, expected, got, at });
        }
        Tensor::from_bytes_at(bytes, shape, dtype, device, &at)
    }

    /// Makes a tensor of nested arrays or vectors of equal lengths.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::new([[1f32, 2.], [3., 4.]], Device::Cpu)?;
    /// assert_eq!(x.shape(), [2, 2]);
    /// assert!(Tensor::new(vec![vec![1f32], vec![2., 3.]], Device::Cpu).is_err());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn new<N: Nested>(nested: N, device: Device) -> Result<Tensor> {
        let at = Source::caller();
        let mut shape = Vec::new();
        nested.shape(&mut shape);
        let mut elements = Vec::new();
        if !nested.collect(&shape, &mut elements) {
            let expected = checked_elements(&shape).unwrap_or(usize::MAX);
            return Err(Error::ElementCount { op: "new", expected, got: elements.len(), shape, at });
        }
        Tensor::from_elements("new", &elements, shape, device, &at)
    }

    /// Makes a tensor filled with a value.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::full([2, 2], 7, DType::I64, Device::Cpu)?;
    /// assert_eq!(x.to_vec::<i64>()?, [7; 4]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn full(shape: impl Shape, value: impl Into<Number>, dtype: DType, device: Device) -> Result<Tensor> {
        Tensor::full_at("full", shape, value.into(), dtype, device, &Source::caller())
    }

    fn full_at(
        op: &'static str,
        shape: impl Shape,
        value: Number,
        dtype: DType,
        device: Device,
        at: &Source,
    ) -> Result<Tensor> {
        let shape = resolve_shape(op, shape, at)?;
        check_size(op, &shape, dtype, at)?;
        let one = Tensor::scalar_at(value.to_scalar(dtype), device, at)?;
        one.broadcast_at(op, &shape, at)?.contiguous_at(at).map_err(|error| match error {
            Error::Runtime { cause, at, .. } => Error::Runtime { op: op.to_owned(), cause, at },
            error => error,
        })
    }

    /// Makes a tensor of zeros.
    #[track_caller]
    pub fn zeros(shape: impl Shape, dtype: DType, device: Device) -> Result<Tensor> {
        Tensor::full_at("zeros", shape, Number::Int(0), dtype, device, &Source::caller())
    }

    /// Makes a tensor of ones.
    #[track_caller]
    pub fn ones(shape: impl Shape, dtype: DType, device: Device) -> Result<Tensor> {
        Tensor::full_at("ones", shape, Number::Int(1), dtype, device, &Source::caller())
    }

    /// Makes a tensor of zeros with this tensor's shape, dtype and device.
    #[track_caller]
    pub fn zeros_like(&self) -> Result<Tensor> {
        Tensor::full_at("zeros_like", self.sizes(), Number::Int(0), self.dtype(), self.device(), &Source::caller())
    }

    /// Makes a tensor of ones with this tensor's shape, dtype and device.
    #[track_caller]
    pub fn ones_like(&self) -> Result<Tensor> {
        Tensor::full_at("ones_like", self.sizes(), Number::Int(1), self.dtype(), self.device(), &Source::caller())
    }

    /// Makes a tensor filled with a value, with this tensor's shape, dtype and device.
    #[track_caller]
    pub fn full_like(&self, value: impl Into<Number>) -> Result<Tensor> {
        Tensor::full_at("full_like", self.sizes(), value.into(), self.dtype(), self.device(), &Source::caller())
    }

    /// Returns 0, 1, 2, … below `end`, which is a number or a size.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::zeros([3, 2], DType::F32, Device::Cpu)?;
    /// let places = Tensor::arange(x.size(0)?, DType::I64, Device::Cpu)?;
    /// assert_eq!(places.to_vec::<i64>()?, [0, 1, 2]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn arange(end: impl Into<End>, dtype: DType, device: Device) -> Result<Tensor> {
        let at = Source::caller();
        match end.into() {
            End::Number(end) => Tensor::arange_at(0.0, end.as_f64(), 1.0, dtype, device, &at),
            End::Size(end) => {
                let size = resolve_shape("arange", end, &at)?;
                check_size("arange", &size, dtype, &at)?;
                let count = end.expression();
                let write = |b: &mut GraphBuilder, _: &[NodeId]| Ok(vec![build::arange(b, dtype, 0.0, 1.0, &count)?]);
                let key: [Param; 4] = [dtype.into(), 0.0.into(), 1.0.into(), end.hint().into()];
                let mut made = eager::run(eager::Operation::Composite("arange", &key), &[], device, &write, &at)?;
                Ok(made.swap_remove(0))
            }
        }
    }

    /// Returns `start`, `start + step`, … before `end`.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange_step(1, 2, 0.25, DType::F32, Device::Cpu)?;
    /// assert_eq!(x.to_vec::<f32>()?, [1., 1.25, 1.5, 1.75]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn arange_step(
        start: impl Into<Number>,
        end: impl Into<Number>,
        step: impl Into<Number>,
        dtype: DType,
        device: Device,
    ) -> Result<Tensor> {
        let (start, end, step) = (start.into().as_f64(), end.into().as_f64(), step.into().as_f64());
        Tensor::arange_at(start, end, step, dtype, device, &Source::caller())
    }

    fn arange_at(start: f64, end: f64, step: f64, dtype: DType, device: Device, at: &Source) -> Result<Tensor> {
        let count = ((end - start) / step).ceil();
        let bad = |name, value: f64, expected| {
            Err(Error::BadArgument { op: "arange", name, value: value.into(), expected, at: at.clone() })
        };
        if step == 0.0 || count.is_nan() {
            return bad("step", step, "it has to lead from start to end");
        }
        if count < 0.0 {
            return bad("step", step, "it leads away from the end");
        }
        if count > (isize::MAX / 8) as f64 {
            return bad("end", end, "that is too far away");
        }
        let count = count as usize;
        check_size("arange", &[count.into()], dtype, at)?;
        let write = |b: &mut GraphBuilder, _: &[NodeId]| Ok(vec![build::arange(b, dtype, start, step, count)?]);
        let key: [Param; 4] = [dtype.into(), start.into(), step.into(), count.into()];
        let mut made = eager::run(eager::Operation::Composite("arange", &key), &[], device, &write, at)?;
        Ok(made.swap_remove(0))
    }

    /// Returns `count` evenly spaced numbers from `start` to `end`, both included.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::linspace(0.0, 1.0, 5, DType::F32, Device::Cpu)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0., 0.25, 0.5, 0.75, 1.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn linspace(start: f64, end: f64, count: usize, dtype: DType, device: Device) -> Result<Tensor> {
        let at = Source::caller();
        check_size("linspace", &[count.into()], DType::F64, &at)?;
        let step = if count > 1 { (end - start) / (count - 1) as f64 } else { 0.0 };
        // From the nearer end, so that both ends are exact.
        let place = |i: usize| {
            if i < count.div_ceil(2) { start + step * i as f64 } else { end - step * (count - 1 - i) as f64 }
        };
        let values: Vec<f64> = (0..count).map(place).collect();
        Tensor::from_bytes_at(f64::as_bytes(&values), vec![count], DType::F64, device, &at)?.to_dtype_at(dtype, &at)
    }

    /// Returns the identity matrix.
    #[track_caller]
    pub fn eye(size: impl Size, dtype: DType, device: Device) -> Result<Tensor> {
        let at = Source::caller();
        let size = size.to_dim();
        let square = resolve_shape("eye", [size, size], &at)?;
        check_size("eye", &square, dtype, &at)?;
        let shape = dim::expressions(&square);
        let write = |b: &mut GraphBuilder, _: &[NodeId]| {
            let row = build::iota(b, DType::I64, &shape, 0)?;
            let column = build::iota(b, DType::I64, &shape, 1)?;
            let same = b.emit(Op::Compare(CompareOp::Eq), &[row, column])?;
            Ok(vec![build::cast(b, &same, dtype)?])
        };
        let key = [size.hint().into(), dtype.into()];
        let mut made = eager::run(eager::Operation::Composite("eye", &key), &[], device, &write, &at)?;
        Ok(made.swap_remove(0))
    }

    /// Concatenates tensors along an axis. Dtypes are promoted.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::ones([2, 1], DType::F32, Device::Cpu)?;
    /// let y = Tensor::zeros([2, 2], DType::F32, Device::Cpu)?;
    /// assert_eq!(Tensor::cat(&[x, y], 1)?.to_vec::<f32>()?, [1., 0., 0., 1., 0., 0.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn cat(tensors: &[Tensor], axis: impl Size) -> Result<Tensor> {
        Tensor::joined("cat", tensors, axis.to_i64(), false, &Source::caller())
    }

    /// Joins tensors of one shape along a new axis.
    #[track_caller]
    pub fn stack(tensors: &[Tensor], axis: impl Size) -> Result<Tensor> {
        Tensor::joined("stack", tensors, axis.to_i64(), true, &Source::caller())
    }

    fn joined(op: &'static str, tensors: &[Tensor], axis: i64, stack: bool, at: &Source) -> Result<Tensor> {
        let [first, rest @ ..] = tensors else { return Err(Error::NoTensors { op, at: at.clone() }) };
        let axis = resolve_axis(op, axis, first.hint(), stack as usize, at)?;
        for other in rest {
            let same = |i: usize| first.extent(i).equals(other.extent(i), at);
            let differs = (0..first.rank().min(other.rank())).find(|&i| (stack || i != axis) && !same(i));
            let differs = differs.map(|i| (first.hint()[i], other.hint()[i]));
            if first.rank() != other.rank() || differs.is_some() {
                let (lhs, rhs) = (first.hint().to_vec(), other.hint().to_vec());
                return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: differs, at: at.clone() });
            }
        }
        let dtype = tensors.iter().map(Tensor::dtype).reduce(promotion::join).unwrap_or(first.dtype());
        if tensors.len() == 1 && !stack {
            return Ok(first.clone());
        }
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let mut parts = Vec::with_capacity(inputs.len());
            for input in inputs {
                parts.push(build::cast(b, input, dtype)?);
            }
            if stack { build::stack(b, &parts, axis) } else { build::concat(b, &parts, axis) }
        };
        let operands: Vec<&Tensor> = tensors.iter().collect();
        eager::composite(op, &[axis.into(), dtype.into()], &operands, write, at)
    }
}

/// Refuses what could not be addressed, and what surely does not fit in memory, before anything is compiled for it.
pub(crate) fn check_size(op: &'static str, shape: &[Dim], dtype: DType, at: &Source) -> Result<()> {
    let shape = dim::hints(shape);
    let bytes = checked_elements(&shape).and_then(|n| dtype.bytes_for(n));
    match bytes {
        None => Err(Error::TooLarge { op, dtype, shape, at: at.clone() }),
        Some(bytes) if bytes > isize::MAX as usize => {
            Err(locate(op, kiln_runtime::Error::OutOfMemory { bytes, device: Device::Cpu }, at))
        }
        Some(_) => Ok(()),
    }
}

/// The end of [`Tensor::arange`]: a number or a size.
#[derive(Debug, Clone, Copy)]
pub enum End {
    /// A number.
    Number(Number),
    /// A size.
    Size(Dim),
}

impl<T: Into<Number>> From<T> for End {
    fn from(end: T) -> End {
        End::Number(end.into())
    }
}

impl From<Dim> for End {
    fn from(end: Dim) -> End {
        End::Size(end)
    }
}

/// Nested arrays, vectors and slices of elements.
pub trait Nested {
    /// The innermost type.
    type Element: Element;
    /// Appends the sizes, outermost first, as the first entries have them.
    fn shape(&self, shape: &mut Vec<usize>);
    /// Appends the elements; false when an entry has another shape than this one.
    fn collect(&self, shape: &[usize], elements: &mut Vec<Self::Element>) -> bool;
}

impl<T: Element> Nested for T {
    type Element = T;
    fn shape(&self, _: &mut Vec<usize>) {}
    fn collect(&self, shape: &[usize], elements: &mut Vec<T>) -> bool {
        elements.push(*self);
        shape.is_empty()
    }
}

fn collect_all<N: Nested>(entries: &[N], shape: &[usize], elements: &mut Vec<N::Element>) -> bool {
    match shape.split_first() {
        Some((&size, inner)) if size == entries.len() => entries.iter().all(|entry| entry.collect(inner, elements)),
        _ => false,
    }
}

fn shape_of<N: Nested>(entries: &[N], shape: &mut Vec<usize>) {
    shape.push(entries.len());
    if let Some(first) = entries.first() {
        first.shape(shape);
    }
}

impl<N: Nested, const C: usize> Nested for [N; C] {
    type Element = N::Element;
    fn shape(&self, shape: &mut Vec<usize>) {
        shape_of(self, shape);
    }
    fn collect(&self, shape: &[usize], elements: &mut Vec<N::Element>) -> bool {
        collect_all(self, shape, elements)
    }
}

impl<N: Nested> Nested for Vec<N> {
    type Element = N::Element;
    fn shape(&self, shape: &mut Vec<usize>) {
        shape_of(self, shape);
    }
    fn collect(&self, shape: &[usize], elements: &mut Vec<N::Element>) -> bool {
        collect_all(self, shape, elements)
    }
}

impl<N: Nested> Nested for &[N] {
    type Element = N::Element;
    fn shape(&self, shape: &mut Vec<usize>) {
        shape_of(self, shape);
    }
    fn collect(&self, shape: &[usize], elements: &mut Vec<N::Element>) -> bool {
        collect_all(self, shape, elements)
    }
}
