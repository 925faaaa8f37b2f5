//! Device memory: a counted reference to bytes that a device owns, or that a foreign owner keeps alive.
//!
//! A buffer knows nothing of elements or shapes. Its bytes are reached from the host only through
//! [`Buffer::read_to_host`] and [`Buffer::write_from_host`], which go through the device's [`Memory`].
//!
//! A few bytes may be a buffer *by value* ([`Buffer::by_value`]): they stay with the host, and whatever runs a program puts them where
//! its kernels read them. So a number costs neither an allocation of the device nor a copy of its own.

use crate::{Device, Error, HostMemory};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// Alignment of every owned allocation, in bytes.
pub const ALIGNMENT: usize = 64;

/// The operations of a device's memory. One implementation per kind of memory; [`crate::HostMemory`] is the host's.
pub trait Memory: Send + Sync {
    /// The device.
    fn device(&self) -> Device;

    /// Releases an allocation of this memory.
    ///
    /// # Safety
    /// `ptr` and `bytes` are those of an allocation of this memory that is no longer used.
    unsafe fn release(&self, ptr: NonNull<u8>, bytes: usize);

    /// Copies device bytes to the host, after everything queued before that writes them.
    ///
    /// # Safety
    /// `source` is valid for reading `target.len()` bytes of this memory.
    unsafe fn copy_to_host(&self, source: *const u8, target: &mut [u8]) -> Result<(), Error>;

    /// Copies host bytes to the device, before everything queued later that reads them.
    ///
    /// # Safety
    /// `target` is valid for writing `source.len()` bytes of this memory.
    unsafe fn copy_from_host(&self, source: &[u8], target: *mut u8) -> Result<(), Error>;

    /// Copies bytes inside this memory, in the order of what is queued.
    ///
    /// # Safety
    /// `source` is valid for reading and `target` for writing `bytes` bytes of this memory, and they do not overlap.
    unsafe fn copy_on_device(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), Error>;

    /// Begins a copy to the host in the order of what is queued: after everything queued before, and before whatever is queued
    /// later and overwrites the bytes. Where launches are done when they return, the bytes are there at once.
    ///
    /// # Safety
    /// As [`Memory::copy_to_host`].
    unsafe fn read_later(&'static self, source: *const u8, bytes: usize) -> Result<Box<dyn PendingRead>, Error> {
        let mut target = vec![0; bytes];
        // SAFETY: the caller's promise.
        unsafe { self.copy_to_host(source, &mut target) }?;
        Ok(Box::new(Arrived(target)))
    }

    /// True when the bytes can be read in place by host code, which lets [`Buffer::host_bytes`] avoid a copy.
    fn is_host(&self) -> bool {
        false
    }
}

/// Bytes on their way to the host; see [`Buffer::read_later`].
pub trait PendingRead: Send {
    /// Waits for the bytes, and for nothing that was queued after them. Reports what launches before them reported.
    fn wait(self: Box<Self>) -> Result<Vec<u8>, Error>;
}

/// Bytes that are there.
struct Arrived(Vec<u8>);

impl PendingRead for Arrived {
    fn wait(self: Box<Self>) -> Result<Vec<u8>, Error> {
        Ok(self.0)
    }
}

/// Device memory. Cloning shares it.
///
/// ```
/// use kiln_runtime::HostMemory;
/// let buffer = HostMemory::allocate(8)?;
/// buffer.write_from_host(4, &[1, 2, 3, 4])?;
/// let mut last = [0; 2];
/// buffer.read_to_host(6, &mut last)?;
/// assert_eq!(last, [3, 4]);
/// # Ok::<(), kiln_runtime::Error>(())
/// ```
#[derive(Clone)]
pub struct Buffer(Arc<Storage>);

/// A reference to device memory that does not keep it.
pub(crate) struct WeakBuffer(Weak<Storage>);

impl WeakBuffer {
    /// The memory, if somebody keeps it.
    pub(crate) fn upgrade(&self) -> Option<Buffer> {
        self.0.upgrade().map(Buffer)
    }
}

struct Storage {
    ptr: NonNull<u8>,
    bytes: usize,
    memory: &'static dyn Memory,
    /// The device of the memory, which every run checks for every input.
    device: Device,
    owner: Owner,
}

enum Owner {
    /// Ours: released when the last reference goes.
    Device,
    /// Foreign memory: alive as long as the value is.
    Foreign { _keep: Arc<dyn Any + Send + Sync>, writable: bool },
    /// Nobody's: the bytes are here.
    Value([u8; MOST_BY_VALUE]),
}

/// The most bytes of a buffer by value: the largest element, and room for a few small ones.
pub const MOST_BY_VALUE: usize = 16;

// SAFETY: a buffer is a range of bytes with no thread affinity; `Memory` is Send + Sync. Races between launches that write
// one buffer are excluded by `Executable::launch`'s contract and by buffers being written only before they are shared
// or when the caller says so (updates).
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Owner::Device = self.owner {
            // SAFETY: `from_allocation`'s contract: the range came from this memory and this is the last reference.
            unsafe { self.memory.release(self.ptr, self.bytes) }
        }
    }
}

impl Buffer {
    /// A buffer that owns an allocation of `memory` and releases it at the end.
    ///
    /// # Safety
    /// `ptr` is valid for `bytes` bytes of that memory and nothing else releases it.
    pub unsafe fn from_allocation(memory: &'static dyn Memory, ptr: NonNull<u8>, bytes: usize) -> Buffer {
        Buffer(Arc::new(Storage { ptr, bytes, memory, device: memory.device(), owner: Owner::Device }))
    }

    /// A buffer over memory that `keep` keeps alive, for instance a mapped file or another library's tensor.
    ///
    /// # Safety
    /// `ptr` is valid for reading (and writing, if `writable`) `bytes` bytes of `memory` as long as `keep` lives, and nothing
    /// else writes it meanwhile.
    pub unsafe fn from_foreign(
        memory: &'static dyn Memory,
        ptr: NonNull<u8>,
        bytes: usize,
        writable: bool,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Buffer {
        let owner = Owner::Foreign { _keep: keep, writable };
        Buffer(Arc::new(Storage { ptr, bytes, memory, device: memory.device(), owner }))
    }

    /// A buffer of these bytes, which stay with the host though they are the device's for whoever asks; `None` for more than
    /// [`MOST_BY_VALUE`]. It cannot be written.
    ///
    /// ```
    /// use kiln_runtime::{Buffer, Device};
    /// let buffer = Buffer::by_value(&[1, 2, 3, 4], Device::Cuda(0)).unwrap();
    /// assert_eq!((buffer.device(), buffer.value(), buffer.is_writable()), (Device::Cuda(0), Some(&[1, 2, 3, 4][..]), false));
    /// assert!(Buffer::by_value(&[0; 17], Device::Cpu).is_none());
    /// ```
    pub fn by_value(bytes: &[u8], device: Device) -> Option<Buffer> {
        let mut value = [0; MOST_BY_VALUE];
        value.get_mut(..bytes.len())?.copy_from_slice(bytes);
        // Neither the address nor the memory is used: `ptr` is that of the value.
        let (ptr, memory) = (NonNull::dangling(), HostMemory::get());
        Some(Buffer(Arc::new(Storage { ptr, bytes: bytes.len(), memory, device, owner: Owner::Value(value) })))
    }

    /// The bytes of a buffer by value.
    pub fn value(&self) -> Option<&[u8]> {
        match &self.0.owner {
            Owner::Value(value) => Some(&value[..self.0.bytes]),
            _ => None,
        }
    }

    /// The device whose memory it is.
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// Its size in bytes.
    pub fn bytes_len(&self) -> usize {
        self.0.bytes
    }

    /// The device address of its first byte. Not null, also for an empty buffer. Of a buffer by value, an address of the host that no
    /// other buffer has.
    pub fn ptr(&self) -> *mut u8 {
        match &self.0.owner {
            Owner::Value(value) => value.as_ptr().cast_mut(),
            _ => self.0.ptr.as_ptr(),
        }
    }

    /// False for foreign memory that may only be read.
    pub fn is_writable(&self) -> bool {
        match self.0.owner {
            Owner::Device => true,
            Owner::Foreign { writable, .. } => writable,
            Owner::Value(_) => false,
        }
    }

    /// True when no other handle refers to this memory, so that a write to it is not visible elsewhere.
    pub fn is_unique(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some() && self.is_writable()
    }

    /// A reference that keeps nothing.
    pub(crate) fn downgrade(&self) -> WeakBuffer {
        WeakBuffer(Arc::downgrade(&self.0))
    }

    /// True when both are handles of one allocation.
    pub fn same(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Copies `target.len()` bytes from byte `offset` on.
    pub fn read_to_host(&self, offset: usize, target: &mut [u8]) -> Result<(), Error> {
        self.check_range(offset, target.len())?;
        if let Some(value) = self.value() {
            target.copy_from_slice(&value[offset..offset + target.len()]);
            return Ok(());
        }
        // SAFETY: the range is inside the buffer.
        unsafe { self.0.memory.copy_to_host(self.ptr().add(offset), target) }
    }

    /// Begins to copy `length` bytes from byte `offset` on to the host, without waiting for what is queued. The bytes are those of
    /// this moment in the queue: the buffer may be dropped or overwritten by what is queued later.
    ///
    /// ```
    /// let buffer = kiln_runtime::HostMemory::allocate(8)?;
    /// buffer.write_from_host(4, &[1, 2, 3, 4])?;
    /// let pending = buffer.read_later(6, 2)?;
    /// buffer.write_from_host(4, &[0; 4])?;
    /// assert_eq!(pending.wait()?, [3, 4]);
    /// # Ok::<(), kiln_runtime::Error>(())
    /// ```
    pub fn read_later(&self, offset: usize, length: usize) -> Result<Box<dyn PendingRead>, Error> {
        self.check_range(offset, length)?;
        if let Some(value) = self.value() {
            return Ok(Box::new(Arrived(value[offset..offset + length].to_vec())));
        }
        // SAFETY: the range is inside the buffer.
        unsafe { self.0.memory.read_later(self.ptr().add(offset), length) }
    }

    /// Overwrites `source.len()` bytes from byte `offset` on. The write is visible through every tensor over this buffer: meant
    /// for buffers that are being filled.
    pub fn write_from_host(&self, offset: usize, source: &[u8]) -> Result<(), Error> {
        self.check_range(offset, source.len())?;
        if !self.is_writable() {
            return Err(Error::ReadOnly { bytes: self.0.bytes });
        }
        // SAFETY: the range is inside the buffer, which may be written.
        unsafe { self.0.memory.copy_from_host(source, self.ptr().add(offset)) }
    }

    /// Copies `length` bytes from byte `offset` on to the start of another buffer of the same memory.
    pub fn copy_to(&self, offset: usize, target: &Buffer, length: usize) -> Result<(), Error> {
        self.check_range(offset, length)?;
        target.check_range(0, length)?;
        if target.device() != self.device() || !target.is_writable() || self.same(target) {
            return Err(Error::ReadOnly { bytes: target.0.bytes });
        }
        if let Some(value) = self.value() {
            return target.write_from_host(0, &value[offset..offset + length]);
        }
        // SAFETY: both ranges are inside their buffers, which are distinct, and the target may be written.
        unsafe { self.0.memory.copy_on_device(self.ptr().add(offset), target.ptr(), length) }
    }

    /// The bytes in place, if the host can read this memory.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        if let Some(value) = self.value() {
            return Some(value);
        }
        // SAFETY: the memory is host memory, valid for `bytes` bytes while `self` lives.
        self.0.memory.is_host().then(|| unsafe { std::slice::from_raw_parts(self.ptr(), self.0.bytes) })
    }

    fn check_range(&self, offset: usize, length: usize) -> Result<(), Error> {
        match offset.checked_add(length) {
            Some(end) if end <= self.0.bytes => Ok(()),
            _ => Err(Error::OutsideBuffer { offset, length, bytes: self.0.bytes }),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.0.owner {
            Owner::Device => "owned",
            Owner::Foreign { .. } => "foreign",
            Owner::Value(_) => "by value",
        };
        write!(f, "Buffer({} bytes on {}, {kind})", self.0.bytes, self.device())
    }
}

/// A range of device memory, as passed to kernels.
#[derive(Debug, Clone, Copy)]
pub struct RawBuffer {
    /// The first byte.
    pub ptr: *mut u8,
    /// The number of bytes.
    pub bytes: usize,
}

// SAFETY: a plain address; what is done with it is `Executable::launch`'s contract.
unsafe impl Send for RawBuffer {}
// SAFETY: as above.
unsafe impl Sync for RawBuffer {}
