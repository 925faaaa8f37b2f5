//! An asynchronous device made of a synchronous backend: launches and copies are queued, and a thread of its own runs them in order,
//! as a GPU does with a stream. It tests what is above the backends where there is no GPU: what reads too early, or times
//! an enqueue, fails here too.

use crate::buffer::PendingRead;
use crate::{
    Backend, Buffer, Device, Error, Executable, HostMemory, Keep, LaunchError, Memory, RawBuffer, Variant, sites,
};
use kiln_ir::Source;
use kiln_kernels::Target;
use kiln_kernels::kernel::Kernel;
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A backend whose launches return before they are done, over one whose launches do not.
///
/// ```
/// use kiln_runtime::{Backend, Device, QueuedBackend, ReferenceBackend};
/// use std::time::{Duration, Instant};
/// let backend = QueuedBackend::new(std::sync::Arc::new(ReferenceBackend), Device::Cuda(0), Duration::ZERO);
/// let buffer = backend.allocate(4)?;
/// buffer.write_from_host(0, &[1, 2, 3, 4])?;
/// let mut bytes = [0; 4];
/// buffer.read_to_host(0, &mut bytes)?;
/// assert!(backend.is_asynchronous() && bytes == [1, 2, 3, 4]);
/// # Ok::<(), kiln_runtime::Error>(())
/// ```
pub struct QueuedBackend {
    inner: Arc<dyn Backend>,
    memory: &'static QueuedMemory,
    delay: Duration,
}

impl QueuedBackend {
    /// A device of this name over the host's memory. Every launch takes `delay` longer than its work.
    pub fn new(inner: Arc<dyn Backend>, device: Device, delay: Duration) -> QueuedBackend {
        let memory: &'static QueuedMemory = Box::leak(Box::new(QueuedMemory {
            device,
            queue: Queue::default(),
            allocated: Mutex::default(),
            waits: AtomicUsize::new(0),
            copies: AtomicUsize::new(0),
        }));
        std::thread::spawn(|| memory.queue.work());
        QueuedBackend { inner, memory, delay }
    }

    /// How often the host has waited for the whole queue.
    pub fn waits(&self) -> usize {
        self.memory.waits.load(Ordering::Relaxed)
    }

    /// How often bytes of the host were copied to the device.
    pub fn copies(&self) -> usize {
        self.memory.copies.load(Ordering::Relaxed)
    }

    fn queued(&self, inner: Arc<dyn Executable>) -> Arc<dyn Executable> {
        Arc::new(QueuedCode { inner, memory: self.memory, delay: self.delay })
    }
}

impl Backend for QueuedBackend {
    fn device(&self) -> Device {
        self.memory.device
    }

    fn target(&self) -> String {
        format!("queued-{}", self.inner.target())
    }

    fn allocate(&self, bytes: usize) -> Result<Buffer, Error> {
        self.memory.allocate(bytes)
    }

    fn readable_memory(&self) -> Option<&'static dyn Memory> {
        Some(self.memory)
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        Ok(self.queued(self.inner.compile(kernel)?))
    }

    fn variants(&self, kernel: &Kernel, now: &Variant, sizes: &[i64]) -> Vec<Variant> {
        self.inner.variants(kernel, now, sizes)
    }

    fn compile_variant(&self, kernel: &Kernel, variant: &Variant, keep: Keep) -> Result<Arc<dyn Executable>, Error> {
        Ok(self.queued(self.inner.compile_variant(kernel, variant, keep)?))
    }

    fn compile_together(&self, kernels: &[&Kernel]) -> Vec<Option<(Variant, Arc<dyn Executable>)>> {
        let queued = |(variant, code)| (variant, self.queued(code));
        self.inner.compile_together(kernels).into_iter().map(|made| made.map(queued)).collect()
    }

    fn fingerprint(&self) -> String {
        format!("queued {}", self.inner.fingerprint())
    }

    fn restore(&self, kernel: &Kernel, variant: &Variant, saved: &[u8]) -> Option<Arc<dyn Executable>> {
        Some(self.queued(self.inner.restore(kernel, variant, saved)?))
    }

    fn is_stored(&self, kernel: &Kernel, variant: &Variant) -> bool {
        self.inner.is_stored(kernel, variant)
    }

    fn stores_eager_code(&self) -> bool {
        self.inner.stores_eager_code()
    }

    fn schedule_target(&self) -> Target {
        self.inner.schedule_target()
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn synchronize(&self) -> Result<(), Error> {
        self.memory.wait()
    }
}

type Job = Box<dyn FnOnce() -> Result<(), Error> + Send>;

/// Work in order.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    is_busy: bool,
    /// The first error that nobody has been told of.
    error: Option<Error>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) {
        self.lock().jobs.push_back(job);
        self.changed.notify_all();
    }

    /// Runs jobs for the rest of the process.
    fn work(&self) {
        loop {
            let mut state = self.lock();
            let job = loop {
                match state.jobs.pop_front() {
                    Some(job) => break job,
                    None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            };
            state.is_busy = true;
            drop(state);
            let outcome = job();
            let mut state = self.lock();
            state.is_busy = false;
            if let Err(error) = outcome {
                state.error.get_or_insert(error);
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    fn wait(&self) -> Result<(), Error> {
        let mut state = self.lock();
        while state.is_busy || !state.jobs.is_empty() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    fn take_error(&self) -> Result<(), Error> {
        self.lock().error.take().map_or(Ok(()), Err)
    }
}

/// The host's memory as that of another device, which the host reaches through the queue only.
struct QueuedMemory {
    device: Device,
    queue: Queue,
    /// By address.
    allocated: Mutex<HashMap<usize, Buffer>>,
    waits: AtomicUsize,
    copies: AtomicUsize,
}

/// An address that a job takes to the queue's thread.
struct Place(*mut u8);

// SAFETY: what is there is used by one job at a time, in order, and released by a later one.
unsafe impl Send for Place {}

impl Place {
    fn get(&self) -> *mut u8 {
        self.0
    }
}

impl QueuedMemory {
    fn allocate(&'static self, bytes: usize) -> Result<Buffer, Error> {
        let buffer = HostMemory::allocate(bytes)?;
        let place = NonNull::new(buffer.ptr()).ok_or(Error::OutOfMemory { bytes, device: self.device })?;
        self.allocated.lock().unwrap_or_else(PoisonError::into_inner).insert(place.as_ptr() as usize, buffer);
        // SAFETY: `allocated` keeps it until `release`.
        Ok(unsafe { Buffer::from_allocation(self, place, bytes) })
    }

    fn wait(&self) -> Result<(), Error> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.queue.wait()
    }
}

impl Memory for QueuedMemory {
    fn device(&self) -> Device {
        self.device
    }

    unsafe fn release(&self, ptr: NonNull<u8>, _: usize) {
        let buffer = self.allocated.lock().unwrap_or_else(PoisonError::into_inner).remove(&(ptr.as_ptr() as usize));
        // What is queued may still use it.
        self.queue.push(Box::new(move || {
            drop(buffer);
            Ok(())
        }));
    }

    unsafe fn copy_to_host(&self, source: *const u8, target: &mut [u8]) -> Result<(), Error> {
        self.wait()?;
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        Ok(())
    }

    unsafe fn copy_from_host(&self, source: &[u8], target: *mut u8) -> Result<(), Error> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        let (source, target) = (source.to_vec(), Place(target));
        self.queue.push(Box::new(move || {
            // SAFETY: the caller's promise; releasing the memory is queued after this.
            unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target.get(), source.len()) };
            Ok(())
        }));
        Ok(())
    }

    unsafe fn copy_on_device(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), Error> {
        let (source, target) = (Place(source.cast_mut()), Place(target));
        self.queue.push(Box::new(move || {
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(source.get(), target.get(), bytes) };
            Ok(())
        }));
        Ok(())
    }

    unsafe fn read_later(&'static self, source: *const u8, bytes: usize) -> Result<Box<dyn PendingRead>, Error> {
        let (sender, receiver) = channel();
        let source = Place(source.cast_mut());
        self.queue.push(Box::new(move || {
            // SAFETY: as above.
            let read = unsafe { std::slice::from_raw_parts(source.get(), bytes) }.to_vec();
            // Nobody may want it any more.
            let _ = sender.send(read);
            Ok(())
        }));
        Ok(Box::new(Queued { memory: self, receiver }))
    }
}

/// Bytes that a job sends.
struct Queued {
    memory: &'static QueuedMemory,
    receiver: Receiver<Vec<u8>>,
}

impl PendingRead for Queued {
    fn wait(self: Box<Self>) -> Result<Vec<u8>, Error> {
        let lost = |_| Error::Device { device: self.memory.device, code: 0, message: "the queue has ended".to_owned() };
        let bytes = self.receiver.recv().map_err(lost)?;
        self.memory.queue.take_error()?;
        Ok(bytes)
    }
}

/// A kernel that is queued.
struct QueuedCode {
    inner: Arc<dyn Executable>,
    memory: &'static QueuedMemory,
    delay: Duration,
}

impl Executable for QueuedCode {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_at(buffers, sizes, 0) }
    }

    unsafe fn launch_at(&self, buffers: &[RawBuffer], sizes: &[i64], site: u32) -> Result<(), LaunchError> {
        let (inner, delay) = (self.inner.clone(), self.delay);
        let (buffers, sizes) = (buffers.to_vec(), sizes.to_vec());
        self.memory.queue.push(Box::new(move || {
            std::thread::sleep(delay);
            // SAFETY: the caller's promise; buffers are released through the queue, after this.
            unsafe { inner.launch(&buffers, &sizes) }.map_err(|cause| match cause {
                LaunchError::IndexOutOfRange { index, size } => sites::out_of_range(site, index, size),
                cause => Error::Launch { op: "a kernel".to_owned(), cause, at: Source::default() },
            })
        }));
        Ok(())
    }

    fn intermediate(&self) -> Option<String> {
        self.inner.intermediate()
    }

    fn disassembly(&self) -> Option<String> {
        self.inner.disassembly()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.inner.save()
    }

    fn code_bytes(&self) -> usize {
        self.inner.code_bytes()
    }
}
