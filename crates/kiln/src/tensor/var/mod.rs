//! Variables: the only mutable state of tensor code. Parameters, optimizer state, running statistics and KV caches are
//! variables; everything computed from them is a tensor.

pub(crate) mod reads;

use crate::tensor::dim;
use crate::tensor::eager::{self, Param};
use crate::tensor::ops::assign::Region;
use crate::tensor::promotion::{Operand, kind, promote};
use crate::tensor::shape::resolve_axis;
use crate::tensor::tape::Tape;
use crate::tensor::tracer;
use crate::tensor::var::reads::Reads;
use crate::{Argument, DType, Device, Error, Indices, Layout, Number, Result, Setting, Size, Tensor};
use kiln_ir::build::{self, Emit, GraphBuilder};
use kiln_ir::{BinaryOp, NodeId, Op, ScatterKind, Source};
use kiln_passes::is_differentiable;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A cell that holds a tensor and can be set to another of the same dtype, shape and device.
///
/// Clones share the variable. [`Var::get`] returns a snapshot: a tensor, which never changes. An update writes in place
/// when no snapshot of the value is alive, and otherwise to a copy, which is reported as a `perf` event; either way the
/// snapshots keep their elements. So a program computes the same whether it is compiled or not.
///
/// ```
/// use kiln::{DType, Device, Tensor, Var};
/// let counter = Var::new(&Tensor::zeros(3, DType::F32, Device::Cpu)?);
/// let before = counter.get();
/// counter.add_assign(2.0)?;
/// counter.slice_assign(0..1, &Tensor::new([7f32], Device::Cpu)?)?;
/// assert_eq!(counter.get().to_vec::<f32>()?, [7., 2., 2.]);
/// assert_eq!(before.to_vec::<f32>()?, [0.; 3]);
/// assert_eq!(counter.version(), 2);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Clone)]
pub struct Var(Arc<Cell>);

/// A variable that may be gone.
pub(crate) struct WeakVar(Weak<Cell>);

impl WeakVar {
    /// Whether it is this variable.
    pub(crate) fn is(&self, var: &Var) -> bool {
        self.0.as_ptr() == Arc::as_ptr(&var.0)
    }

    /// Whether anybody has the variable.
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// The variable, if anybody has it.
    pub(crate) fn upgrade(&self) -> Option<Var> {
        self.0.upgrade().map(Var)
    }
}

struct Cell {
    id: u64,
    name: Option<String>,
    /// What the module that it was found in calls it.
    path: OnceLock<Box<str>>,
    dtype: DType,
    shape: Vec<usize>,
    device: Device,
    /// Row-major without gaps; the start of a tape if gradients are wanted.
    value: Mutex<Tensor>,
    /// Twice its version, and one more if gradients of it are wanted.
    stamp: AtomicU64,
    /// Whether it was made by a function being captured, which alone knows what it is: its value is [nowhere](Tensor::nowhere).
    is_local: bool,
    /// Whether a function being captured has read it.
    met: AtomicBool,
    /// Who keeps a handle of the value from call to call, and whether anybody may.
    keepers: Mutex<Vec<Weak<Reads>>>,
    is_kept: AtomicBool,
    grad: Arc<Slot>,
    /// Where the tapes of its values start.
    leaf: Tape,
}

/// Of which variables gradients are wanted, as far as captured functions have read them: changes with any of them, and back.
static TRAINABLE: LazyLock<Setting> = LazyLock::new(Setting::default);

/// Where the gradient of a variable is collected.
pub(crate) struct Slot {
    gradient: Mutex<Option<Tensor>>,
    of: Weak<Cell>,
    /// The number of the variable that a captured function made and that it stands for, in one call of it.
    local: Option<u32>,
}

impl Slot {
    /// Where a call collects gradients of a variable that the captured function makes.
    pub(crate) fn of_local(number: u32) -> Arc<Slot> {
        Arc::new(Slot { gradient: Mutex::new(None), of: Weak::new(), local: Some(number) })
    }

    /// The number of the variable that the captured function made, and what is collected so far, which is taken out.
    pub(crate) fn take_local(&self) -> Option<(u32, Tensor)> {
        self.local.and_then(|number| Some((number, self.lock().take()?)))
    }

    /// Whether it stands for a variable that a captured function made.
    pub(crate) fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// Adds a gradient to what is there.
    pub(crate) fn add(&self, gradient: &Tensor, at: &Source) -> Result<()> {
        if tracer::is_active() {
            let Some(var) = self.var() else { return Ok(()) };
            let sum = match tracer::read_gradient(&var, at)? {
                Some(before) => before.binary("add", BinaryOp::Add, gradient.into(), false, at)?,
                None => gradient.clone(),
            };
            return tracer::write_gradient(&var, Some(&sum), at);
        }
        let mut slot = self.lock();
        let sum = match slot.take() {
            Some(before) => before.binary("add", BinaryOp::Add, gradient.into(), false, at)?,
            None => gradient.clone(),
        };
        *slot = Some(sum.contiguous_at(at)?);
        Ok(())
    }

    /// The variable, if there still is one.
    pub(crate) fn var(&self) -> Option<Var> {
        self.of.upgrade().map(Var)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.gradient.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Var {
    /// Makes a variable with an initial value. Its dtype, shape and device cannot change; its value is stored in row-major
    /// order.
    #[track_caller]
    pub fn new(value: &Tensor) -> Var {
        Var::make(value, None, &Source::caller())
    }

    /// [`Var::new`] with a name, for messages and checkpoints.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor, Var};
    /// let weight = Var::named("weight", &Tensor::zeros([2, 2], DType::F32, Device::Cpu)?);
    /// assert_eq!(weight.name(), Some("weight"));
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn named(name: &str, value: &Tensor) -> Var {
        Var::make(value, Some(name.to_owned()), &Source::caller())
    }

    fn make(value: &Tensor, name: Option<String>, at: &Source) -> Var {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let is_local = tracer::is_active();
        let (initial, value) = match is_local {
            true => (tracer::cut(value, at), Tensor::nowhere(value)),
            // Without memory for a copy the first update tries again, which can say so.
            false => (value.clone(), value.contiguous_at(at).unwrap_or_else(|_| value.clone())),
        };
        let value = value.detached();
        let var = Var(Arc::new_cyclic(|cell| {
            let grad = Arc::new(Slot { gradient: Mutex::new(None), of: cell.clone(), local: None });
            Cell {
                id: NEXT.fetch_add(1, Ordering::Relaxed),
                name,
                path: OnceLock::new(),
                dtype: value.dtype(),
                shape: value.shape().to_vec(),
                device: value.device(),
                value: Mutex::new(value),
                stamp: AtomicU64::new(0),
                met: AtomicBool::new(false),
                keepers: Mutex::default(),
                is_kept: AtomicBool::new(false),
                leaf: Tape::leaf(grad.clone()),
                grad,
                is_local,
            }
        }));
        if is_local {
            // What cannot be made here says so when it is read.
            let _ = tracer::make_var(WeakVar(Arc::downgrade(&var.0)), &initial, at);
        }
        var
    }

    /// Whether a function being captured made it.
    pub(crate) fn is_local(&self) -> bool {
        self.0.is_local
    }

    /// Returns a number that no other variable of the process has.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// Returns its name, if it was given one.
    pub fn name(&self) -> Option<&str> {
        self.0.name.as_deref()
    }

    /// Returns its name in the state dict of the first module that was compiled with it, such as `layers.0.weight`, if
    /// there was one.
    pub fn path(&self) -> Option<&str> {
        self.0.path.get().map(|path| &**path)
    }

    pub(crate) fn set_path(&self, path: &str) {
        self.0.path.get_or_init(|| path.into());
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Returns the sizes.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.0.shape.iter().product()
    }

    /// Returns the device that holds the elements.
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// Returns the number of updates so far.
    pub fn version(&self) -> u64 {
        self.stamp() >> 1
    }

    /// Returns whether both are the same variable.
    pub fn same(&self, other: &Var) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn lock(&self) -> MutexGuard<'_, Tensor> {
        self.0.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current value: a tensor, which later updates do not change.
    #[track_caller]
    pub fn get(&self) -> Tensor {
        if tracer::is_active()
            && let Ok(traced) = tracer::read_var(self, &Source::caller())
        {
            if !self.0.is_local {
                self.0.met.store(true, Ordering::Release);
                TRAINABLE.get();
            }
            return self.tagged(&traced);
        }
        self.snapshot()
    }

    /// Sets another value of the same dtype, shape and device. A value in row-major order is taken without a copy.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor, Var};
    /// let x = Var::new(&Tensor::zeros([2, 2], DType::F32, Device::Cpu)?);
    /// x.set(&Tensor::new([[1f32, 2.], [3., 4.]], Device::Cpu)?.t()?)?;
    /// assert_eq!(x.get().to_vec::<f32>()?, [1., 3., 2., 4.]);
    /// assert!(x.set(&Tensor::zeros(4, DType::F32, Device::Cpu)?).is_err());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn set(&self, value: &Tensor) -> Result<()> {
        let at = Source::caller();
        self.check("set", value, &at)?;
        self.replace(value.clone(), &at)
    }

    fn check(&self, op: &'static str, value: &Tensor, at: &Source) -> Result<()> {
        if value.dtype() != self.dtype() {
            return Err(Error::DTypeMismatch { op, lhs: self.dtype(), rhs: value.dtype(), at: at.clone() });
        }
        // Sizes that have to be the variable's are no numbers that the function read.
        let is_size = |(size, &own): (dim::Dim, &usize)| size.equals(own.into(), at);
        let is_same = value.rank() == self.shape().len() && value.sizes().into_iter().zip(self.shape()).all(is_size);
        if !is_same {
            let (lhs, rhs) = (self.shape().to_vec(), value.hint().to_vec());
            return Err(Error::ShapeMismatch { op, lhs, rhs, sizes: None, at: at.clone() });
        }
        if value.device() != self.device() {
            let (lhs, rhs) = (self.device(), value.device());
            return Err(Error::DeviceMismatch { op, lhs, rhs, at: at.clone() });
        }
        Ok(())
    }

    /// The one place where a whole new value comes in; it has the variable's dtype, shape and device.
    fn replace(&self, value: Tensor, at: &Source) -> Result<()> {
        if tracer::is_active() || value.is_traced() {
            return tracer::write_var(self, &value, at);
        }
        self.put(value, at)
    }

    /// The value, in row-major order, to be changed.
    fn writable(&self, at: &Source) -> Result<MutexGuard<'_, Tensor>> {
        let mut value = self.lock();
        if !value.is_contiguous() {
            *value = value.contiguous_at(at)?;
        }
        Ok(value)
    }

    /// Where the tapes of its values start.
    pub(crate) fn leaf(&self) -> Tape {
        self.0.leaf.clone()
    }

    /// A value as the start of a tape if gradients are wanted.
    pub(crate) fn tagged(&self, value: &Tensor) -> Tensor {
        if !self.is_trainable() {
            return value.detached();
        }
        let is_tagged = value.tape().is_some_and(|tape| tape.same(&self.0.leaf));
        if is_tagged { value.clone() } else { value.with_tape(Some(self.0.leaf.clone())) }
    }

    /// After an update: a value that was copied for it has lost its tape.
    fn updated(&self, value: &mut Tensor) {
        if self.is_trainable() && !value.has_tape() {
            *value = self.tagged(value);
        }
        self.raise();
    }

    fn raise(&self) {
        self.0.stamp.fetch_add(2, Ordering::Release);
    }

    /// The one place where the value is computed from the old one: `write` gets the old value and the operands. In place, if
    /// no other handle of the memory is alive.
    fn update(
        &self,
        name: &'static str,
        params: &[Param],
        operands: &[&Tensor],
        write: impl Fn(&mut GraphBuilder, &[NodeId]) -> Result<NodeId, kiln_ir::Error>,
        at: &Source,
    ) -> Result<()> {
        if tracer::is_active() {
            let old = self.get();
            let mut all = vec![&old];
            all.extend(operands);
            return self.replace(eager::composite(name, params, &all, write, at)?, at);
        }
        self.take_back();
        let mut value = self.writable(at)?;
        let done = eager::update(name, params, &mut value, Layout::clone, operands, write, at);
        self.updated(&mut value);
        done
    }

    fn assign(&self, name: &'static str, op: BinaryOp, other: Argument, at: &Source) -> Result<()> {
        let own = self.dtype();
        // The variable's dtype counts as one with axes: a tensor without them does not widen it.
        let common = promote(&[Operand::Tensor(own, self.shape().len().max(1)), other.operand()]);
        if kind(common) > kind(own) {
            return Err(Error::DTypeMismatch { op: name, lhs: own, rhs: common, at: at.clone() });
        }
        let other = match &other {
            Argument::Tensor(tensor) => tensor.clone(),
            Argument::Number(number) => Tensor::scalar_at(number.to_scalar(common), self.device(), at)?,
            Argument::Size(size) => size.tensor(common, self.device(), at)?,
            Argument::Float(number) => number.tensor(common, self.device(), at)?,
        };
        let other = other.broadcast_at(name, &dim::plain(self.shape()), at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            let (old, other) = (build::cast(b, &inputs[0], common)?, build::cast(b, &inputs[1], common)?);
            let new = b.emit(Op::Binary(op), &[old, other])?;
            build::cast(b, &new, own)
        };
        self.update(name, &[common.into()], &[&other], write, at)
    }

    /// Adds a tensor, which broadcasts, or a number.
    #[track_caller]
    pub fn add_assign(&self, other: impl Into<Argument>) -> Result<()> {
        self.assign("add_assign", BinaryOp::Add, other.into(), &Source::caller())
    }

    /// Subtracts a tensor, which broadcasts, or a number.
    #[track_caller]
    pub fn sub_assign(&self, other: impl Into<Argument>) -> Result<()> {
        self.assign("sub_assign", BinaryOp::Sub, other.into(), &Source::caller())
    }

    /// Multiplies by a tensor, which broadcasts, or a number.
    #[track_caller]
    pub fn mul_assign(&self, other: impl Into<Argument>) -> Result<()> {
        self.assign("mul_assign", BinaryOp::Mul, other.into(), &Source::caller())
    }

    /// Sets every element to one number.
    #[track_caller]
    pub fn fill(&self, value: impl Into<Number>) -> Result<()> {
        let at = Source::caller();
        let value = Tensor::scalar_at(value.into().to_scalar(self.dtype()), self.device(), &at)?;
        let value = value.broadcast_at("fill", &dim::plain(self.shape()), &at)?;
        self.update("fill", &[], &[&value], |_, inputs| Ok(inputs[1]), &at)
    }

    /// Writes `source`, which broadcasts, to the part that `indices` select; they are those of [`Tensor::i`] except for
    /// tensors. Only that part of the memory is written.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor, Var};
    /// let cache = Var::new(&Tensor::zeros([1, 4, 2], DType::F32, Device::Cpu)?);
    /// cache.slice_assign((.., 2, ..), &Tensor::new([[5f32, 6.]], Device::Cpu)?)?;
    /// assert_eq!(cache.get().to_vec::<f32>()?, [0., 0., 0., 0., 5., 6., 0., 0.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn slice_assign(&self, indices: impl Indices, source: &Tensor) -> Result<()> {
        let (op, at) = ("slice_assign", Source::caller());
        let region = Region::of(op, &dim::plain(self.shape()), indices.indices(), &at)?;
        if source.dtype() != self.dtype() {
            return Err(Error::DTypeMismatch { op, lhs: self.dtype(), rhs: source.dtype(), at });
        }
        if tracer::is_active() {
            return self.replace(self.get().region_assign(&region, source, &at)?, &at);
        }
        let source = region.source(op, &source.detached(), &at)?;
        let part =
            |layout: &Layout| layout.slice(&dim::hints(&region.starts), &dim::hints(&region.sizes), &region.steps);
        self.take_back();
        let mut value = self.writable(&at)?;
        // Memory is addressed by bytes: a region that begins inside one is written with what is around it.
        let done = if eager::starts_inside_a_byte(&part(value.layout()), self.dtype()) {
            value.detached().region_assign(&region, &source, &at).map(|new| *value = new)
        } else {
            eager::update(op, &[], &mut value, part, &[&source], |_, inputs| Ok(inputs[1]), &at)
        };
        self.updated(&mut value);
        done
    }

    /// Writes slices of `source` to the positions of an axis that `index`, of one axis, lists; if a position occurs several
    /// times, the last one wins. Only those positions are written. An index outside of the axis is an error, and what was
    /// written before it stays.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor, Var};
    /// let cache = Var::new(&Tensor::zeros([3, 2], DType::F32, Device::Cpu)?);
    /// let position = Tensor::new([1i64], Device::Cpu)?;
    /// cache.index_copy(0, &position, &Tensor::new([[5f32, 6.]], Device::Cpu)?)?;
    /// cache.index_add(0, &position, &Tensor::new([[1f32, 1.]], Device::Cpu)?)?;
    /// assert_eq!(cache.get().to_vec::<f32>()?, [0., 0., 6., 7., 0., 0.]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn index_copy(&self, axis: impl Size, index: &Tensor, source: &Tensor) -> Result<()> {
        self.scatter("index_copy", ScatterKind::Set, axis, index, source, &Source::caller())
    }

    /// Adds slices of `source` to the positions of an axis that `index`, of one axis, lists.
    #[track_caller]
    pub fn index_add(&self, axis: impl Size, index: &Tensor, source: &Tensor) -> Result<()> {
        self.scatter("index_add", ScatterKind::Add, axis, index, source, &Source::caller())
    }

    fn scatter(
        &self,
        op: &'static str,
        kind: ScatterKind,
        axis: impl Size,
        index: &Tensor,
        source: &Tensor,
        at: &Source,
    ) -> Result<()> {
        let axis = resolve_axis(op, axis, self.shape(), 0, at)?;
        let index = crate::tensor::ops::gather::spread_index(op, &dim::plain(self.shape()), axis, index, at)?;
        if source.dtype() != self.dtype() {
            return Err(Error::DTypeMismatch { op, lhs: self.dtype(), rhs: source.dtype(), at: at.clone() });
        }
        let source = source.broadcast_at(op, &index.sizes(), at)?;
        let write = |b: &mut GraphBuilder, inputs: &[NodeId]| {
            b.emit(Op::Scatter { axis, kind }, &[inputs[0], inputs[1], inputs[2]])
        };
        self.update(op, &[axis.into()], &[&index, &source], write, at)
    }

    /// Sets whether it requires gradients, which has an effect on floats only; returns the variable, so that calls can be chained.
    ///
    /// ```
    /// use kiln::{DType, Device, Tensor, Var};
    /// let weight = Var::new(&Tensor::zeros([2, 2], DType::F32, Device::Cpu)?).requires_grad(true);
    /// assert!(weight.is_trainable() && weight.grad().is_none());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub fn requires_grad(&self, wanted: bool) -> Var {
        self.take_back();
        let mut value = self.lock();
        let wanted = wanted && is_differentiable(self.dtype());
        if self.is_trainable() != wanted {
            self.0.stamp.fetch_xor(1, Ordering::AcqRel);
            *value = self.tagged(&value);
            if self.0.met.load(Ordering::Acquire) {
                TRAINABLE.toggle(self.id().wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            }
        }
        self.clone()
    }

    /// Returns whether it requires gradients.
    pub fn is_trainable(&self) -> bool {
        self.stamp() & 1 == 1
    }

    /// Returns the gradient accumulated so far.
    #[track_caller]
    pub fn grad(&self) -> Option<Tensor> {
        if tracer::is_active()
            && let Ok(traced) = tracer::read_gradient(self, &Source::caller())
        {
            return traced;
        }
        self.0.grad.lock().clone()
    }

    /// Clears the gradient.
    #[track_caller]
    pub fn zero_grad(&self) {
        if tracer::is_active() && tracer::write_gradient(self, None, &Source::caller()).is_ok() {
            return;
        }
        *self.0.grad.lock() = None;
    }

    /// Sets the gradient, of the variable's dtype and shape.
    #[track_caller]
    pub fn set_grad(&self, grad: Option<Tensor>) -> Result<()> {
        let at = Source::caller();
        if let Some(grad) = &grad {
            self.check("set_grad", grad, &at)?;
        }
        if tracer::is_active() || grad.as_ref().is_some_and(Tensor::is_traced) {
            return tracer::write_gradient(self, grad.as_ref(), &at);
        }
        *self.0.grad.lock() = grad.map(|grad| grad.contiguous_at(&at)).transpose()?;
        Ok(())
    }
}

/// What programs do with variables.
impl Var {
    /// The value, also while a function is captured.
    pub(crate) fn snapshot(&self) -> Tensor {
        self.lock().clone()
    }

    /// Another value, which has the variable's dtype, shape and device.
    pub(crate) fn put(&self, value: Tensor, at: &Source) -> Result<()> {
        let value = value.detached().contiguous_at(at)?;
        self.take_back();
        let mut own = self.lock();
        *own = self.tagged(&value);
        // Before anybody else sees the value.
        self.raise();
        Ok(())
    }

    /// The gradient, also while a function is captured.
    pub(crate) fn snapshot_grad(&self) -> Option<Tensor> {
        self.0.grad.lock().clone()
    }

    /// Whether there is a gradient.
    pub(crate) fn has_grad(&self) -> bool {
        self.0.grad.lock().is_some()
    }

    /// Adds a gradient to what is there.
    pub(crate) fn add_grad(&self, gradient: &Tensor, at: &Source) -> Result<()> {
        self.0.grad.add(gradient, at)
    }

    /// Another gradient, in row-major order.
    pub(crate) fn put_grad(&self, grad: Option<Tensor>) {
        *self.0.grad.lock() = grad;
    }

    /// The value for a program that changes it; nobody else gets at it until this goes.
    pub(crate) fn lock_value(&self, at: &Source) -> Result<Locked<'_>> {
        self.take_back();
        Ok(Locked { guard: Held::Value(self.writable(at)?), var: self })
    }

    /// The value in row-major order, for a program that reads it.
    pub(crate) fn program_input(&self, at: &Source) -> Result<Tensor> {
        Ok(self.writable(at)?.clone())
    }

    /// Changes with the value, and with whether gradients of it are wanted.
    #[inline]
    pub(crate) fn stamp(&self) -> u64 {
        self.0.stamp.load(Ordering::Acquire)
    }

    /// Says that `reads` keeps a handle of the value, which it gives back when the value is about to change.
    pub(crate) fn is_kept_by(&self, reads: &Arc<Reads>) {
        let mut keepers = self.0.keepers.lock().unwrap_or_else(PoisonError::into_inner);
        keepers.retain(|keeper| keeper.strong_count() > 0 && keeper.as_ptr() != Arc::as_ptr(reads));
        keepers.push(Arc::downgrade(reads));
        self.0.is_kept.store(true, Ordering::Release);
    }

    /// Takes back the handles that are kept, so that an update may be in place.
    fn take_back(&self) {
        if !self.0.is_kept.load(Ordering::Acquire) {
            return;
        }
        let keepers = {
            let mut keepers = self.0.keepers.lock().unwrap_or_else(PoisonError::into_inner);
            self.0.is_kept.store(false, Ordering::Release);
            std::mem::take(&mut *keepers)
        };
        keepers.iter().filter_map(Weak::upgrade).for_each(|reads| reads.forget());
    }

    /// The gradient for a program that changes it.
    pub(crate) fn lock_grad(&self) -> Locked<'_> {
        Locked { guard: Held::Gradient(self.0.grad.lock()), var: self }
    }
}

/// A variable's value or gradient while a program changes it.
pub(crate) struct Locked<'a> {
    guard: Held<'a>,
    var: &'a Var,
}

enum Held<'a> {
    Value(MutexGuard<'a, Tensor>),
    Gradient(MutexGuard<'a, Option<Tensor>>),
}

impl Locked<'_> {
    /// Takes the tensor out, so that there may be no other handle of it. A value stays on its tape.
    pub(crate) fn take(&mut self) -> Option<Tensor> {
        match &mut self.guard {
            Held::Value(value) => Some(std::mem::replace(&mut **value, Tensor::nothing())),
            Held::Gradient(grad) => grad.take(),
        }
    }

    /// Puts a tensor in its place.
    pub(crate) fn put(&mut self, tensor: Tensor) {
        match &mut self.guard {
            Held::Value(value) => {
                **value = self.var.tagged(&tensor);
                self.var.raise();
            }
            Held::Gradient(grad) => **grad = Some(tensor),
        }
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path().or(self.name()).unwrap_or("var");
        write!(f, "{name}: {}{:?} version {}", self.dtype(), self.shape(), self.version())
    }
}
