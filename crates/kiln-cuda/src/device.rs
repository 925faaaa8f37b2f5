//! A GPU: its context, its stream, and what is known of it.

use crate::blas::Blas;
use crate::dnn::Dnn;
use crate::driver::{DevicePtr, DriverError, RawContext, RawEvent, RawStream, Result, driver};
use crate::fault::Faults;
use crate::pinned::PinnedPool;
use crate::pool::{Blocks, Pool};
use crate::text::Way;
use crate::turn::Turns;
use kiln_runtime::phase;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};

/// Attributes of a device, as cuda.h numbers them.
const MULTIPROCESSORS: c_int = 16;
const MAJOR: c_int = 75;
const MINOR: c_int = 76;
const SHARED_PER_BLOCK: c_int = 97;
/// A stream that does not wait for the default one.
pub(crate) const NON_BLOCKING: u32 = 1;
/// An event without a time, which is cheaper.
const DISABLE_TIMING: u32 = 2;

/// A GPU that was found. There is one for each, made at the first use and kept for the rest of the process.
pub struct Gpu {
    /// Which one it is.
    pub ordinal: u32,
    /// As the driver calls it.
    pub name: String,
    /// Compute capability, for instance (9, 0).
    pub capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: i32,
    /// Bytes of its memory.
    pub memory: usize,
    /// Bytes of shared memory that a block may have.
    pub shared: i64,
    /// The driver's version, for instance 13000.
    pub driver: i32,
    context: RawContext,
    stream: RawStream,
    pub(crate) turns: Turns,
    pub(crate) pool: Pool,
    pub(crate) faults: Faults,
    pub(crate) blas: OnceLock<std::result::Result<Blas, String>>,
    pub(crate) dnn: OnceLock<std::result::Result<Dnn, String>>,
    pub(crate) pinned: PinnedPool,
}

// SAFETY: contexts and streams may be used from any thread, as long as the context is made current there, which every method does.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver's functions are safe to call from several threads.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// How many there are; an error that says why where there is no driver.
    pub fn count() -> Result<u32> {
        let mut count = 0;
        // SAFETY: a place to write to.
        unsafe { driver()?.device_count(&mut count) }?;
        Ok(count as u32)
    }

    /// The GPU of this number.
    pub fn get(ordinal: u32) -> Result<&'static Gpu> {
        static FOUND: LazyLock<Mutex<Vec<(u32, &'static Gpu)>>> = LazyLock::new(Mutex::default);
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, gpu)) = found.iter().find(|(number, _)| *number == ordinal) {
            return Ok(gpu);
        }
        let gpu: &'static Gpu = Box::leak(Box::new(phase::timed("context", || Gpu::open(ordinal))?));
        found.push((ordinal, gpu));
        Ok(gpu)
    }

    fn open(ordinal: u32) -> Result<Gpu> {
        let driver = driver()?;
        let count = Gpu::count()?;
        if ordinal >= count {
            let message = format!("there is no GPU {ordinal}: the driver has {count}");
            return Err(DriverError { code: 0, message });
        }
        let (mut device, mut version, mut memory) = (0, 0, 0);
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut name = [0 as c_char; 128];
        // SAFETY: places to write to, of the sizes given.
        unsafe {
            driver.device_get(&mut device, ordinal as c_int)?;
            driver.driver_version(&mut version)?;
            driver.device_memory(&mut memory, device)?;
            driver.device_name(name.as_mut_ptr(), name.len() as c_int - 1, device)?;
            driver.retain_context(&mut context, device)?;
            driver.set_context(context)?;
            driver.create_stream(&mut stream, NON_BLOCKING)?;
        }
        CURRENT.set(context);
        let attribute = |attribute: c_int| {
            let mut value = 0;
            // SAFETY: a place to write to, a device that exists.
            unsafe { driver.device_attribute(&mut value, attribute, device) }.map(|()| value)
        };
        // SAFETY: the driver ends the name with a zero.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
        Ok(Gpu {
            ordinal,
            name,
            capability: (attribute(MAJOR)?, attribute(MINOR)?),
            multiprocessors: attribute(MULTIPROCESSORS)?,
            memory,
            shared: attribute(SHARED_PER_BLOCK)?.into(),
            driver: version,
            context,
            stream,
            turns: Turns::new(stream, Event::new(DISABLE_TIMING)?),
            pool: Pool::default(),
            faults: Faults::default(),
            blas: OnceLock::new(),
            dnn: OnceLock::new(),
            pinned: PinnedPool::default(),
        })
    }

    /// What a text for this GPU may count on; the same when its code comes from disk.
    pub(crate) fn way(&self) -> Way {
        Way { multiprocessors: self.multiprocessors.into(), shared: self.shared, ..Way::of(&self.arch()) }
    }

    /// The architecture to compile for, for instance `sm_90a`.
    pub fn arch(&self) -> String {
        let (major, minor) = self.capability;
        format!("sm_{major}{minor}{}", if major >= 9 { "a" } else { "" })
    }

    /// Makes the context current on this thread.
    pub(crate) fn enter(&self) -> Result<()> {
        if CURRENT.get() != self.context {
            // SAFETY: the context is kept for the rest of the process.
            unsafe { driver()?.set_context(self.context) }?;
            CURRENT.set(self.context);
        }
        Ok(())
    }

    /// The same where somebody else may have made another one current.
    pub(crate) fn enter_again(&self) -> Result<()> {
        CURRENT.set(std::ptr::null_mut());
        self.enter()
    }

    /// Makes the context current that was so before.
    pub(crate) fn leave(&self, context: RawContext) {
        if context != self.context
            && let Ok(driver) = driver()
        {
            // SAFETY: a context that was current on this thread.
            let _ = unsafe { driver.set_context(context) };
        }
        CURRENT.set(std::ptr::null_mut());
    }

    /// The stream of what no caller has a stream for; see [`Gpu::turn`].
    pub(crate) fn own_stream(&self) -> RawStream {
        self.stream
    }

    /// Waits until everything queued is done.
    pub fn synchronize(&self) -> Result<()> {
        // What other threads queue meanwhile need not be waited for, nor they for this.
        let stream = self.turn()?.stream;
        // SAFETY: the stream is kept for the rest of the process, or for the call.
        unsafe { driver()?.synchronize_stream(stream) }
    }

    /// Free and total bytes of its memory, as the driver counts them.
    pub fn memory_info(&self) -> Result<(usize, usize)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: two places to write to.
        unsafe { driver()?.memory_info(&mut free, &mut total) }?;
        Ok((free, total))
    }

    /// Copies to the host, after everything queued before, and waits for it.
    ///
    /// # Safety
    /// `from` is valid for reading `to.len()` bytes.
    pub(crate) unsafe fn read(&self, from: DevicePtr, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise; the copy is waited for before `to` is used again.
        unsafe { driver()?.to_host(to.as_mut_ptr().cast(), from, to.len(), self.turn()?.stream) }?;
        self.synchronize()
    }

    /// Copies from the host, before everything queued after.
    ///
    /// # Safety
    /// `to` is valid for writing `from.len()` bytes.
    pub(crate) unsafe fn write(&self, from: &[u8], to: DevicePtr) -> Result<()> {
        // SAFETY: the caller's promise; from pageable memory the driver copies before it returns.
        unsafe { driver()?.to_device(to, from.as_ptr().cast::<c_void>(), from.len(), self.turn()?.stream) }
    }

    /// Copies on the device, in the stream's order.
    ///
    /// # Safety
    /// `from` is valid for reading and `to` for writing `bytes` bytes, and they do not overlap.
    pub(crate) unsafe fn copy(&self, from: DevicePtr, to: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { driver()?.on_device(to, from, bytes, self.turn()?.stream) }
    }

    /// Fills memory with zeros, in the stream's order.
    ///
    /// # Safety
    /// `to` is valid for writing `bytes` bytes.
    pub(crate) unsafe fn fill(&self, to: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { driver()?.fill(to, 0, bytes, self.turn()?.stream) }
    }

    /// Queues an event.
    pub(crate) fn record(&self) -> Result<Event> {
        let event = self.event(0)?;
        self.record_again(&event)?;
        Ok(event)
    }

    /// An event that can be waited for, and has no time.
    pub(crate) fn untimed_event(&self) -> Result<Event> {
        self.event(DISABLE_TIMING)
    }

    fn event(&self, flags: u32) -> Result<Event> {
        self.enter()?;
        Event::new(flags)
    }

    /// Queues an event that was queued before, or is new.
    pub(crate) fn record_again(&self, event: &Event) -> Result<()> {
        event.record(self.turn()?.stream)
    }

    /// Queues a copy to page-locked memory of the host.
    ///
    /// # Safety
    /// `from` is valid for reading and `to` for writing `bytes` bytes until the copy is done; nothing reads `to` before.
    pub(crate) unsafe fn read_later(&self, from: DevicePtr, to: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { driver()?.to_host(to.cast(), from, bytes, self.turn()?.stream) }
    }
}

impl Blocks for Gpu {
    fn allocate(&self, bytes: usize) -> Result<DevicePtr> {
        self.enter()?;
        let mut address = 0;
        // SAFETY: a place to write to.
        unsafe { driver()?.allocate(&mut address, bytes) }?;
        Ok(address)
    }

    fn free(&self, address: DevicePtr) -> Result<()> {
        self.enter()?;
        // SAFETY: a block of `allocate` that nobody uses, as the pool says.
        unsafe { driver()?.free(address) }
    }

    fn wait(&self) -> Result<()> {
        self.enter()?;
        // Without a turn: whoever has it may be waiting for the pool.
        // SAFETY: no arguments to get wrong.
        unsafe { driver()?.synchronize_context() }
    }

    fn free_and_total(&self) -> Result<(usize, usize)> {
        self.memory_info()
    }
}

thread_local! {
    /// The context that is current on this thread, as far as this crate made it so.
    static CURRENT: Cell<RawContext> = const { Cell::new(std::ptr::null_mut()) };
}

/// A point in a stream's time.
pub(crate) struct Event {
    raw: RawEvent,
}

// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// An event of the context that is current.
    fn new(flags: u32) -> Result<Event> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place to write to.
        unsafe { driver()?.create_event(&mut raw, flags) }?;
        Ok(Event { raw })
    }

    /// Queues it on a stream, which exists.
    pub(crate) fn record(&self, stream: RawStream) -> Result<()> {
        // SAFETY: the event exists, and the caller says that the stream does.
        unsafe { driver()?.record_event(self.raw, stream) }
    }

    /// Makes what is queued on a stream from now on wait for it.
    pub(crate) fn hold(&self, stream: RawStream) -> Result<()> {
        // SAFETY: as above.
        unsafe { driver()?.wait_event(stream, self.raw, 0) }
    }

    /// Waits for it.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the event was recorded.
        unsafe { driver()?.synchronize_event(self.raw) }
    }

    /// Milliseconds from another event to this one, which is waited for.
    pub(crate) fn since(&self, start: &Event) -> Result<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: both events were recorded.
        unsafe {
            driver()?.synchronize_event(self.raw)?;
            driver()?.elapsed(&mut milliseconds, start.raw, self.raw)?;
        }
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(driver) = driver() {
            // SAFETY: an event of ours; the driver keeps it until it has happened.
            let _ = unsafe { driver.destroy_event(self.raw) };
        }
    }
}
