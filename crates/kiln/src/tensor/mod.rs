//! Tensors: immutable handles of elements in device memory, with everything that computes eagerly.
//!
//! ```text
//!  create, files, random ──▶ Tensor ──ops──▶ eager ──▶ CompiledGraph ──▶ Tensor
//!                              │               └─ while a function is captured ──▶ tracer, which records
//!                              └─ layout, shape, dim, index, element, promotion: what an op needs to know of its operands
//!  Var holds a tensor and changes; tape says how a tensor was computed, for autograd
//! ```
//!
//! Nothing here knows how a function is captured or how gradients are computed: `compile` implements the trait `Tracer`,
//! and `autograd` walks the tape.

pub(crate) mod autocast;
pub(crate) mod bundle;
pub(crate) mod call_input;
pub(crate) mod compiled_graph;
pub mod create;
pub mod dim;
mod display;
pub mod eager;
pub mod element;
pub mod files;
pub mod float;
pub mod index;
pub mod layout;
pub(crate) mod ops;
pub mod pending;
pub mod promotion;
pub mod random;
pub(crate) mod scratch;
pub(crate) mod setting;
pub mod shape;
pub(crate) mod strides;
pub(crate) mod tape;
pub(crate) mod tracer;
pub mod var;

use crate::tensor::compiled_graph::locate;
use crate::{DType, Device, Dim, Element, Error, Number, Result, Size};
use element::{scalar_bytes, scalar_from_bytes};
use kiln_ir::{HostTensor, Scalar, Source, TensorType};
use kiln_runtime::{Buffer, HostMemory, RawInput};
use layout::Layout;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};
use tape::Tape;
use tracer::Traced;

/// An n-dimensional array of one dtype on one device.
///
/// A tensor is a handle: cloning it increments a reference count, and its elements never change. Slicing, transposing,
/// expanding and most reshapes return views of the same memory. Every operation that can fail returns a [`Result`], and
/// arithmetic operators also accept results, so that one `?` at the end of a line is enough.
///
/// ```
/// use kiln::{DType, Device, Tensor};
/// let x = Tensor::from_vec(vec![1f32, 2., 3., 4.], [2, 2], Device::Cpu)?;
/// let y = ((&x * 2.0)? + x.t()?)?;
/// assert_eq!(y.to_vec::<f32>()?, [3., 7., 8., 12.]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor(ManuallyDrop<Arc<Inner>>);

/// Handles kept a thread for tensors to come.
const SPARES_KEPT: usize = 64;

thread_local! {
    static SPARES: RefCell<Vec<Arc<Inner>>> = const { RefCell::new(Vec::new()) };
}

impl Drop for Tensor {
    /// The memory of the last handle is kept for the next tensor, so that a tensor that is made and dropped does not allocate one.
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the tensor is gone, nobody takes its handle again.
        let handle = unsafe { ManuallyDrop::take(&mut self.0) };
        if Arc::strong_count(&handle) == 1 {
            spare(handle);
        }
    }
}

/// Keeps the memory of a handle that nobody else has, as far as that is so.
fn spare(mut handle: Arc<Inner>) {
    if let Some(inner) = Arc::get_mut(&mut handle) {
        // These may hold other tensors.
        let _ = (std::mem::replace(&mut inner.payload, Payload::Spare), inner.tape.take());
        // At the end of the thread, or with enough of them, it goes.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARES_KEPT {
                spares.push(handle);
            }
        });
    }
}

/// A handle of a tensor that does not keep it.
pub(crate) struct Weak(std::sync::Weak<Inner>);

impl Weak {
    /// The tensor, if somebody keeps it.
    pub(crate) fn upgrade(&self) -> Option<Tensor> {
        self.0.upgrade().map(|handle| Tensor(ManuallyDrop::new(handle)))
    }

    /// Whether somebody keeps it.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

struct Inner {
    dtype: DType,
    layout: Layout,
    payload: Payload,
    /// How it came about, where gradients are wanted.
    tape: Option<Tape>,
}

/// Where the elements are.
enum Payload {
    Memory(Buffer),
    /// Nowhere yet: this is a value of a function being captured. Its sizes, where they are not all numbers; the layout's are
    /// then those of this call.
    Traced(Traced, Option<Box<[Dim]>>),
    /// Of no tensor: memory for one.
    Spare,
}

impl Tensor {
    fn of(inner: Inner) -> Tensor {
        let spare = SPARES.try_with(|spares| spares.borrow_mut().pop());
        let handle = match spare {
            Ok(Some(mut handle)) => match Arc::get_mut(&mut handle) {
                Some(place) => {
                    *place = inner;
                    handle
                }
                None => Arc::new(inner),
            },
            _ => Arc::new(inner),
        };
        Tensor(ManuallyDrop::new(handle))
    }

    /// Makes a tensor over a buffer, which must contain the layout.
    pub(crate) fn from_parts(buffer: Buffer, layout: Layout, dtype: DType) -> Tensor {
        debug_assert!(
            layout.fits(buffer.bytes_len() * 8 / dtype.size_in_bits()),
            "{layout:?} of {dtype} in {buffer:?}"
        );
        debug_assert!(!eager::starts_inside_a_byte(&layout, dtype), "{layout:?} of {dtype} begins inside a byte");
        Tensor::of(Inner { dtype, layout, payload: Payload::Memory(buffer), tape: None })
    }

    /// No elements: stands where a tensor was taken from.
    pub(crate) fn nothing() -> Tensor {
        static NOTHING: LazyLock<Tensor> =
            LazyLock::new(|| Tensor::from_parts(no_memory().clone(), Layout::contiguous([0]), DType::U8));
        NOTHING.clone()
    }

    /// A handle that does not keep the tensor.
    pub(crate) fn downgrade(&self) -> Weak {
        Weak(Arc::downgrade(&self.0))
    }

    /// A tensor like this one whose elements nobody has: whatever uses them fails.
    pub(crate) fn nowhere(like: &Tensor) -> Tensor {
        let traced = Traced { recording: u32::MAX, value: 0, device: like.device() };
        Tensor::from_traced(traced, dim::plain(like.shape()), like.dtype(), None)
    }

    /// A value of the function being captured.
    pub(crate) fn from_traced(traced: Traced, sizes: Vec<Dim>, dtype: DType, tape: Option<Tape>) -> Tensor {
        let layout = Layout::contiguous(dim::hints(&sizes));
        let sizes = (!sizes.iter().all(|size| size.is_plain())).then(|| sizes.into());
        Tensor::of(Inner { dtype, layout, payload: Payload::Traced(traced, sizes), tape })
    }

    /// How it came about, where gradients are wanted.
    #[inline]
    pub(crate) fn tape(&self) -> Option<&Tape> {
        self.0.tape.as_ref()
    }

    /// The same elements with another tape.
    pub(crate) fn with_tape(&self, tape: Option<Tape>) -> Tensor {
        let payload = match &self.0.payload {
            Payload::Memory(buffer) => Payload::Memory(buffer.clone()),
            Payload::Spare => Payload::Spare,
            Payload::Traced(traced, sizes) => match tracer::alias(self, tape.clone()) {
                Some(alias) => return alias,
                None => Payload::Traced(*traced, sizes.clone()),
            },
        };
        Tensor::of(Inner { dtype: self.0.dtype, layout: self.0.layout.clone(), payload, tape })
    }

    /// This tensor with another tape; a fresh one without another handle is not copied.
    pub(crate) fn into_taped(mut self, tape: Tape) -> Tensor {
        match Arc::get_mut(&mut self.0) {
            Some(inner) => {
                inner.tape = Some(tape);
                self
            }
            None => self.with_tape(Some(tape)),
        }
    }

    /// The same elements without a tape.
    pub(crate) fn detached(&self) -> Tensor {
        if self.0.tape.is_some() { self.with_tape(None) } else { self.clone() }
    }

    /// What an operation that changes nothing gives: this tensor, without its tape where nothing is recorded.
    #[inline]
    pub(crate) fn unchanged(&self) -> Tensor {
        if self.0.tape.is_some() && !crate::tensor::tape::is_enabled() { self.detach() } else { self.clone() }
    }

    /// The value of a function being captured that this tensor stands for.
    pub(crate) fn traced(&self) -> Option<Traced> {
        match self.0.payload {
            Payload::Memory(_) | Payload::Spare => None,
            Payload::Traced(traced, _) => Some(traced),
        }
    }

    /// The sizes, where they are not all numbers.
    #[inline]
    fn symbolic(&self) -> Option<&[Dim]> {
        match &self.0.payload {
            Payload::Traced(_, Some(sizes)) => Some(sizes),
            _ => None,
        }
    }

    /// Whether sizes are more than numbers.
    #[inline]
    pub(crate) fn is_symbolic(&self) -> bool {
        self.symbolic().is_some()
    }

    /// The sizes at this call. What is decided by them has to be guarded: by [`Tensor::sizes`], which does so.
    #[inline]
    pub(crate) fn hint(&self) -> &[usize] {
        self.0.layout.shape()
    }

    /// One size, for computing others.
    #[inline]
    pub(crate) fn extent(&self, axis: usize) -> Dim {
        self.symbolic().map_or_else(|| self.hint()[axis].into(), |sizes| sizes[axis])
    }

    /// The sizes as numbers, which the function being captured may do with what it wants.
    #[inline]
    #[track_caller]
    fn read_sizes(&self) {
        if self.is_symbolic() {
            dim::scope::number_read(Source::caller());
        }
    }

    /// Returns whether this tensor stands for a value of a function that [`crate::compile()`] is capturing: it has a dtype
    /// and a shape, but no elements yet.
    #[inline]
    pub fn is_traced(&self) -> bool {
        matches!(self.0.payload, Payload::Traced(..))
    }

    /// Makes a tensor over memory that already holds its elements, such as another library's or a mapped file's.
    ///
    /// ```
    /// use kiln::{DType, Layout, Tensor, runtime::HostMemory};
    /// let buffer = HostMemory::allocate(8)?;
    /// buffer.write_from_host(0, &[1, 2, 3, 4, 5, 6, 7, 8])?;
    /// let odd = Tensor::from_buffer(buffer, Layout::new(vec![4], vec![2], 0), DType::U8).unwrap();
    /// assert_eq!(odd.to_vec::<u8>().unwrap(), [1, 3, 5, 7]);
    /// # Ok::<(), kiln::runtime::Error>(())
    /// ```
    #[track_caller]
    pub fn from_buffer(buffer: Buffer, layout: Layout, dtype: DType) -> Result<Tensor> {
        let got = buffer.bytes_len() * 8 / dtype.size_in_bits();
        if !layout.fits(got) {
            let expected = shape::checked_elements(layout.shape()).unwrap_or(usize::MAX);
            let (op, at) = ("from_buffer", Source::caller());
            return Err(Error::ElementCount { op, shape: layout.shape().to_vec(), expected, got, at });
        }
        // Without elements nothing is said by strides and offset, which may be anything.
        let layout = if layout.elements() == 0 { Layout::contiguous(layout.shape()) } else { layout };
        if eager::starts_inside_a_byte(&layout, dtype) {
            let (name, value, expected) =
                ("layout", layout.offset().into(), "the lowest element has to begin at a byte");
            return Err(Error::BadArgument { op: "from_buffer", name, value, expected, at: Source::caller() });
        }
        Ok(Tensor::from_parts(buffer, layout, dtype))
    }

    /// Makes a tensor over memory of the host that somebody else owns, given as [`kiln_runtime::Program::call_raw`] takes it. It can be
    /// read, and not written in place.
    ///
    /// # Safety
    /// Every element can be read and none changes until the last handle of the tensor is gone.
    #[track_caller]
    pub unsafe fn over(input: &RawInput<'_>) -> Result<Tensor> {
        let shape: Vec<usize> = input.shape.iter().map(|&size| size as usize).collect();
        let strides: Vec<isize> = input.strides.iter().map(|&stride| stride as isize).collect();
        let layout = Layout::new(shape, strides, 0);
        let last = layout.reach().map_or(0, |(_, last)| last as usize + 1);
        let bytes = input.dtype.bytes_for(last).unwrap_or(0);
        let ptr = NonNull::new(input.ptr).unwrap_or(NonNull::dangling());
        // SAFETY: the caller's promise: whoever owns the memory outlives the tensor.
        let buffer = unsafe { Buffer::from_foreign(HostMemory::get(), ptr, bytes, false, Arc::new(())) };
        Tensor::from_buffer(buffer, layout, input.dtype)
    }

    /// Returns the sizes as plain numbers. In a function captured for many sizes, use [`Tensor::size`] to compute with
    /// sizes.
    #[inline]
    #[track_caller]
    pub fn shape(&self) -> &[usize] {
        self.read_sizes();
        self.0.layout.shape()
    }

    /// Returns the size of one axis as a plain number; negative axes count from the end. See [`Tensor::size`].
    #[track_caller]
    pub fn dim(&self, axis: impl Size) -> Result<usize> {
        let axis = shape::resolve_axis("dim", axis, self.hint(), 0, &Source::caller())?;
        self.read_sizes();
        Ok(self.hint()[axis])
    }

    /// Returns the size of one axis as a [`Dim`], which can be computed with and passed wherever a size is expected;
    /// negative axes count from the end. A function that uses it instead of [`Tensor::dim`] can be captured once for many
    /// sizes.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::zeros([2, 6], DType::F32, Device::Cpu)?;
    /// let (rows, columns) = (x.size(0)?, x.size(-1)?);
    /// assert_eq!(x.reshape((rows * 3, columns / 3))?.shape(), [6, 2]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn size(&self, axis: impl Size) -> Result<Dim> {
        let axis = shape::resolve_axis("size", axis, self.hint(), 0, &Source::caller())?;
        Ok(self.extent(axis))
    }

    /// Returns all sizes as [`Dim`]s; see [`Tensor::size`].
    pub fn sizes(&self) -> Vec<Dim> {
        self.symbolic().map_or_else(|| dim::plain(self.hint()), <[Dim]>::to_vec)
    }

    /// Returns the number of axes.
    pub fn rank(&self) -> usize {
        self.0.layout.rank()
    }

    /// Returns the number of elements.
    #[inline]
    #[track_caller]
    pub fn elements(&self) -> usize {
        self.read_sizes();
        self.0.layout.elements()
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the device that holds the elements.
    pub fn device(&self) -> Device {
        match &self.0.payload {
            Payload::Memory(buffer) => buffer.device(),
            Payload::Traced(traced, _) => traced.device,
            Payload::Spare => Device::default(),
        }
    }

    /// Returns the sizes, strides and offset in the buffer.
    #[inline]
    #[track_caller]
    pub fn layout(&self) -> &Layout {
        self.read_sizes();
        &self.0.layout
    }

    /// Returns the stride of each axis, in elements.
    #[inline]
    #[track_caller]
    pub fn strides(&self) -> &[isize] {
        self.read_sizes();
        self.0.layout.strides()
    }

    /// Returns the memory that this tensor is a view of. Other tensors may share it. The buffer of a traced tensor
    /// ([`Tensor::is_traced`]) is empty.
    pub fn buffer(&self) -> &Buffer {
        match &self.0.payload {
            Payload::Memory(buffer) => buffer,
            Payload::Traced(..) | Payload::Spare => no_memory(),
        }
    }

    /// Returns whether the elements are in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.0.layout.is_contiguous()
    }

    /// Returns whether both are handles of the same tensor.
    pub fn same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the dtype and shape as a graph's tensor type.
    pub fn ty(&self) -> TensorType {
        match self.symbolic() {
            None => TensorType::fixed(self.dtype(), self.hint()),
            Some(sizes) => TensorType::new(self.dtype(), dim::expressions(sizes)),
        }
    }

    /// The same buffer under another layout.
    pub(crate) fn with_layout(&self, layout: Layout) -> Tensor {
        Tensor::from_parts(self.buffer().clone(), layout, self.dtype())
    }

    /// True when this is the only handle of the memory, which may then be written.
    pub(crate) fn is_sole_owner(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some_and(|inner| match &mut inner.payload {
            Payload::Memory(buffer) => buffer.is_unique(),
            Payload::Traced(..) | Payload::Spare => false,
        })
    }

    /// The same elements with the same strides in memory of its own.
    pub(crate) fn duplicate(&self, at: &Source) -> Result<Tensor> {
        let failed = |e| locate("copy", e, at);
        let (low, high) = self.layout().reach().unwrap_or((0, -1));
        let bits = self.dtype().size_in_bits();
        let first = self.layout().offset().saturating_add_signed(low) * bits / 8;
        let bytes = ((high - low + 1) as usize * bits).div_ceil(8);
        let buffer = crate::backend(self.device()).allocate(bytes).map_err(failed)?;
        self.buffer().copy_to(first, &buffer, bytes).map_err(failed)?;
        let layout = Layout::new(self.shape(), self.strides(), low.unsigned_abs());
        Ok(Tensor::from_parts(buffer, layout, self.dtype()))
    }

    /// Returns the elements in row-major order. `T` must match the tensor's dtype: [`Tensor::to_dtype`] converts.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::from_vec(vec![1i64, 2, 3, 4], [2, 2], Device::Cpu)?;
    /// assert_eq!(x.t()?.to_vec::<i64>()?, [1, 3, 2, 4]);
    /// assert!(x.to_vec::<f32>().is_err());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let at = Source::caller();
        if T::DTYPE != self.dtype() {
            return Err(Error::DTypeMismatch { op: "to_vec", lhs: self.dtype(), rhs: T::DTYPE, at });
        }
        Ok(T::from_bytes(&self.bytes_at(&at)?))
    }

    /// Returns the bytes of the elements in row-major order, packed in the encoding of the dtype.
    #[track_caller]
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.bytes_at(&Source::caller())
    }

    pub(crate) fn bytes_at(&self, at: &Source) -> Result<Vec<u8>> {
        if self.is_traced() {
            return tracer::concrete(self, "reads a tensor's elements", at)?.bytes_at(at);
        }
        let packed = tracer::paused(|| self.contiguous_at(at))?;
        let bits = self.dtype().size_in_bits();
        let mut bytes = vec![0; (self.elements() * bits).div_ceil(8)];
        let start = packed.layout().offset() * bits / 8;
        packed.buffer().read_to_host(start, &mut bytes).map_err(|e| locate("to_vec", e, at))?;
        Ok(bytes)
    }

    /// Passes the bytes of [`Tensor::bytes_at`] to `read`, without a copy if the host can read them in place.
    pub(crate) fn with_bytes<T>(&self, at: &Source, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let bits = self.dtype().size_in_bits();
        if !self.is_traced() && self.is_contiguous() && bits.is_multiple_of(8) {
            let (start, size) = (self.layout().offset() * bits / 8, self.elements() * bits / 8);
            if let Some(bytes) = self.buffer().host_bytes().and_then(|bytes| bytes.get(start..start + size)) {
                return Ok(read(bytes));
            }
        }
        Ok(read(&self.bytes_at(at)?))
    }

    /// Returns the one element, converted to `T`.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::from_vec(vec![1f32, 2., 3.], 3, Device::Cpu)?;
    /// assert_eq!(x.sum(..)?.item::<f64>()?, 6.0);
    /// assert!(x.item::<f32>().is_err());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        self.item_at(&Source::caller())
    }

    pub(crate) fn item_at<T: Element>(&self, at: &Source) -> Result<T> {
        if !dim::product(&self.sizes()).equals(Dim::plain(1), at) {
            return Err(Error::NotOneElement { shape: self.hint().to_vec(), at: at.clone() });
        }
        if self.is_traced() {
            return tracer::concrete(self, "reads a tensor's element", at)?.item_at(at);
        }
        let bits = self.dtype().size_in_bits();
        let first = self.layout().offset() * bits;
        let mut bytes = [0; 8];
        let wanted = &mut bytes[..bits.div_ceil(8)];
        self.buffer().read_to_host(first / 8, wanted).map_err(|e| locate("item", e, at))?;
        bytes[0] >>= first % 8;
        Ok(T::from_scalar(scalar_from_bytes(self.dtype(), bytes)))
    }

    /// Makes a tensor without axes.
    #[track_caller]
    pub fn scalar(value: impl Into<Number>, dtype: DType, device: Device) -> Result<Tensor> {
        Tensor::scalar_at(value.into().to_scalar(dtype), device, &Source::caller())
    }

    pub(crate) fn scalar_at(value: Scalar, device: Device, at: &Source) -> Result<Tensor> {
        if tracer::is_active() {
            return tracer::constant(kiln_ir::Op::Full { value, shape: vec![] }, device, at);
        }
        let (bytes, size) = scalar_bytes(value);
        Tensor::from_bytes_at(&bytes[..size], vec![], value.dtype(), device, at)
    }

    /// A tensor of packed elements; `bytes` are as many as the shape needs.
    pub(crate) fn from_bytes_at(
        bytes: &[u8],
        shape: Vec<usize>,
        dtype: DType,
        device: Device,
        at: &Source,
    ) -> Result<Tensor> {
        if tracer::is_active() {
            if let Some(data) = tracer::data(bytes, &shape, dtype, device, at)? {
                return Ok(data);
            }
            let literal = kiln_ir::Literal { dtype, shape, bytes: bytes.into() };
            return tracer::constant(kiln_ir::Op::Constant(literal), device, at);
        }
        let failed = |e| locate("allocate", e, at);
        let backend = crate::backend(device);
        // What runs there takes a few bytes with its launches.
        let by_value = if backend.is_asynchronous() { Buffer::by_value(bytes, device) } else { None };
        let buffer = match by_value {
            Some(buffer) => buffer,
            None => {
                let buffer = backend.allocate(bytes.len()).map_err(failed)?;
                buffer.write_from_host(0, bytes).map_err(failed)?;
                buffer
            }
        };
        Ok(Tensor::from_parts(buffer, Layout::contiguous(shape), dtype))
    }

    /// Makes a tensor of the elements of a host tensor, the tensor type of the reference interpreter.
    #[track_caller]
    pub fn from_host(host: &HostTensor, device: Device) -> Result<Tensor> {
        Tensor::from_bytes_at(host.bytes(), host.shape().to_vec(), host.dtype(), device, &Source::caller())
    }

    /// Copies the elements to a host tensor, for the reference interpreter and for comparisons.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor};
    /// let x = Tensor::arange(4, DType::Bf16, Device::Cpu)?;
    /// assert_eq!(x.to_host()?.to_f64(), [0., 1., 2., 3.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn to_host(&self) -> Result<HostTensor> {
        let at = Source::caller();
        let bytes = self.bytes_at(&at)?;
        let got = bytes.len() * 8 / self.dtype().size_in_bits();
        HostTensor::from_bytes(self.dtype(), self.shape(), bytes).map_err(|_| {
            let (op, shape, expected) = ("to_host", self.shape().to_vec(), self.elements());
            Error::ElementCount { op, shape, expected, got, at }
        })
    }

    /// Copies the tensor to another device. On its own device this is the tensor itself.
    #[track_caller]
    pub fn to_device(&self, device: Device) -> Result<Tensor> {
        if device == self.device() {
            return Ok(self.clone());
        }
        let at = Source::caller();
        Tensor::from_bytes_at(&self.bytes_at(&at)?, self.shape().to_vec(), self.dtype(), device, &at)
    }
}

/// The buffer of tensors without memory.
#[cold]
fn no_memory() -> &'static Buffer {
    static EMPTY: LazyLock<Buffer> = LazyLock::new(|| HostMemory::allocate(0).expect("no bytes are always there"));
    &EMPTY
}
