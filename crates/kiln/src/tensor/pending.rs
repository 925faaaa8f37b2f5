//! Elements that are read without waiting for what is queued.

use crate::tensor::compiled_graph::locate;
use crate::tensor::tracer;
use crate::{Element, Error, Result, Tensor};
use kiln_ir::Source;
use kiln_runtime::PendingRead;
use std::fmt;
use std::marker::PhantomData;

/// Elements on their way to the host; see [`Tensor::read_later`].
pub struct Pending<T> {
    read: Box<dyn PendingRead>,
    at: Source,
    elements: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pending(read at {})", self.at)
    }
}

impl<T: Element> Pending<T> {
    /// Waits for the elements, in row-major order, and for nothing that was queued after them.
    pub fn wait(self) -> Result<Vec<T>> {
        let bytes = self.read.wait().map_err(|cause| locate("read_later", cause, &self.at))?;
        Ok(T::from_bytes(&bytes))
    }
}

impl Tensor {
    /// Begins to read the elements. On an asynchronous device this returns at once, and what is queued later does not change what
    /// is read: the tensor may be dropped, and its memory reused. `T` must match the dtype.
    ///
    /// ```
    /// use kiln::{Device, Tensor};
    /// let x = Tensor::from_vec(vec![1i64, 2, 3, 4], [2, 2], Device::Cpu)?;
    /// let pending = x.t()?.read_later::<i64>()?;
    /// assert_eq!(pending.wait()?, [1, 3, 2, 4]);
    /// assert!(x.read_later::<f32>().is_err());
    /// # Ok::<(), kiln::Error>(())
    /// ```
    #[track_caller]
    pub fn read_later<T: Element>(&self) -> Result<Pending<T>> {
        let at = Source::caller();
        if T::DTYPE != self.dtype() {
            return Err(Error::DTypeMismatch { op: "read_later", lhs: self.dtype(), rhs: T::DTYPE, at });
        }
        if self.is_traced() {
            return tracer::concrete(self, "reads a tensor's elements", &at)?.read_later();
        }
        let packed = tracer::paused(|| self.contiguous_at(&at))?;
        let bits = self.dtype().size_in_bits();
        let (start, length) = (packed.layout().offset() * bits / 8, (self.elements() * bits).div_ceil(8));
        let read = packed.buffer().read_later(start, length).map_err(|cause| locate("read_later", cause, &at))?;
        Ok(Pending { read, at, elements: PhantomData })
    }
}
