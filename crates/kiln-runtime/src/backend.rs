//! The interface of a backend: a device that allocates, compiles kernels and launches them.

use crate::{Buffer, Device, Error, Keep, Memory, Packing, RawBuffer, Variant};
use kiln_kernels::Target;
use kiln_kernels::kernel::Kernel;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A device with a compiler for it.
pub trait Backend: Send + Sync {
    /// The device.
    fn device(&self) -> Device;

    /// The code generator's target, for instance `cpu-avx512`: part of every kernel's key.
    fn target(&self) -> String;

    /// Memory on the device, with any contents, aligned to [`crate::ALIGNMENT`].
    fn allocate(&self, bytes: usize) -> Result<Buffer, Error>;

    /// The memory of [`Backend::allocate`], through which the host may look at what launches before have written, while a program
    /// runs; `None` where it may not. A loop until a condition fails asks for it.
    fn readable_memory(&self) -> Option<&'static dyn Memory> {
        None
    }

    /// Compiles one kernel. Called once per kernel and target; see [`crate::kernel_cache`].
    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn Executable>, Error>;

    /// A layout in which `kernel` reads `buffer` faster than in its own, for buffers that many launches read and that seldom
    /// change; `None` where there is none.
    fn packing(&self, kernel: &Kernel, buffer: usize) -> Option<Packing> {
        let _ = (kernel, buffer);
        None
    }

    /// Code that packs a buffer: launched with the buffer as the kernel gets it and with memory of [`Packing::bytes`] to
    /// write, without sizes.
    fn compile_packing(&self, kernel: &Kernel, packing: &Packing) -> Result<Arc<dyn Executable>, Error> {
        let _ = kernel;
        Err(Error::Compile { target: self.target(), reason: format!("there is no packing {}", packing.key) })
    }

    /// Variants of a kernel other than `now` that may be faster when it is launched with these sizes; none where there is no
    /// choice. Each gives the same results up to the order of the kernel's sums.
    fn variants(&self, kernel: &Kernel, now: &Variant, sizes: &[i64]) -> Vec<Variant> {
        let _ = (kernel, now, sizes);
        Vec::new()
    }

    /// Compiles a kernel in one of [`Backend::variants`], or with buffers packed by [`Backend::packing`]. Whatever else the code
    /// gets from [`crate::kernel_cache`], now or when it is launched, has the same retention.
    fn compile_variant(&self, kernel: &Kernel, variant: &Variant, keep: Keep) -> Result<Arc<dyn Executable>, Error> {
        let _ = keep;
        if variant.is_default() {
            return self.compile(kernel);
        }
        Err(Error::Compile { target: self.target(), reason: format!("there is no variant {variant}") })
    }

    /// Compiles several kernels at once, for this process alone, where that takes less time than one by one: the code of each, and
    /// the variant that it is. `None` for what has to be compiled by itself.
    fn compile_together(&self, kernels: &[&Kernel]) -> Vec<Option<(Variant, Arc<dyn Executable>)>> {
        vec![None; kernels.len()]
    }

    /// Everything that the code of a kernel depends on besides the kernel: the target, the machine's features that the compiler
    /// uses, its options and the build of the compiler itself. Part of every key of the disk cache.
    fn fingerprint(&self) -> String {
        format!("{} {}", self.target(), crate::FINGERPRINT)
    }

    /// The code of a variant of `kernel` from what [`Executable::save`] gave to a backend of the same fingerprint, in any process.
    /// `None` where the bytes do not fit the kernel; it is then compiled.
    fn restore(&self, kernel: &Kernel, variant: &Variant, saved: &[u8]) -> Option<Arc<dyn Executable>> {
        let _ = (kernel, variant, saved);
        None
    }

    /// Whether the code of a variant is stored on disk by itself: what is compiled as fast as it is read is not.
    fn is_stored(&self, kernel: &Kernel, variant: &Variant) -> bool {
        variant.is_default() && kernel.insts().count() >= 64
    }

    /// Whether the code of eager operations is stored as well. Their programs never are.
    fn stores_eager_code(&self) -> bool {
        false
    }

    /// What measured times depend on beside the target: a description of the machine, threads included.
    fn machine(&self) -> String {
        String::new()
    }

    /// Kernels of a program that may be compiled at the same time. One where compiling takes less time than a thread does to start.
    fn compile_threads(&self) -> usize {
        1
    }

    /// Threads of the host that one launch may keep busy.
    fn threads(&self) -> usize {
        1
    }

    /// What schedules for this backend are made for.
    fn schedule_target(&self) -> Target {
        Target::default()
    }

    /// Whether a launch returns before it is done; what it reports then surfaces at the next read or
    /// [`Backend::synchronize`].
    fn is_asynchronous(&self) -> bool {
        false
    }

    /// A list of launches that can be run again and again at less cost than one by one; `None` where there is no such thing. They
    /// do what [`Executable::launch`] does, in order.
    fn record(&self, launches: &[Launch<'_>]) -> Result<Option<Box<dyn Recording>>, Error> {
        let _ = launches;
        Ok(None)
    }

    /// Runs something on a stream of the caller's in place of the backend's own: what it launches comes after what the caller queued
    /// there and before what he queues next. The stream is given as the device's driver names it. Where there are no streams it just
    /// runs.
    ///
    /// # Safety
    /// The stream is one of the device's context, and exists until this returns.
    unsafe fn on_stream(&self, stream: usize, run: &mut dyn FnMut() -> Result<(), Error>) -> Result<(), Error> {
        let _ = stream;
        run()
    }

    /// Whether launches of this thread do not run now but, as often as the caller likes, later: on a stream that he captures.
    fn is_captured(&self) -> bool {
        false
    }

    /// Runs some launches and returns how long the device took for them, not counting the time that they took to arrive there.
    fn time(&self, launch: &mut dyn FnMut() -> Result<(), Error>) -> Result<Duration, Error> {
        let start = Instant::now();
        launch()?;
        self.synchronize()?;
        Ok(start.elapsed())
    }

    /// Gives memory that is kept for later allocations back to the system.
    fn release_memory(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Waits until every launch so far is done.
    fn synchronize(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// One launch of a list that is to be recorded.
#[derive(Clone, Copy)]
pub struct Launch<'a> {
    /// The code.
    pub code: &'a dyn Executable,
    /// The buffers of the kernel, in order.
    pub arguments: &'a [RawBuffer],
    /// The values of its size symbols.
    pub sizes: &'a [i64],
    /// The number of [`Executable::launch_at`].
    pub site: u32,
}

/// Launches that a backend runs as one.
pub trait Recording: Send {
    /// Runs the launches with these arguments, those of all launches one after another. False if it was not made for such
    /// arguments: then nothing ran, and it has to be recorded again.
    ///
    /// # Safety
    /// As [`Executable::launch`] for each of them.
    unsafe fn replay(&mut self, arguments: &[RawBuffer]) -> Result<bool, LaunchError>;
}

/// A compiled kernel.
pub trait Executable: Send + Sync {
    /// Runs the kernel. On an asynchronous device, queues it.
    ///
    /// # Safety
    /// `buffers` are those of the kernel, in order, on this device, and valid for every access the kernel makes at these
    /// `sizes` (the values of its size symbols, in order). Buffers that it writes overlap no other argument, and nothing else
    /// accesses them until the launch is done.
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError>;

    /// [`Executable::launch`] of a step whose number is reported by an asynchronous error; see [`crate::sites`].
    ///
    /// # Safety
    /// As [`Executable::launch`].
    unsafe fn launch_at(&self, buffers: &[RawBuffer], sizes: &[i64], site: u32) -> Result<(), LaunchError> {
        let _ = site;
        // SAFETY: the caller's promise.
        unsafe { self.launch(buffers, sizes) }
    }

    /// Itself, for a backend that records launches and has to know its own code.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// The code as text, if the backend can show it.
    fn disassembly(&self) -> Option<String> {
        None
    }

    /// The backend's own intermediate form of the kernel as text, if it has one.
    fn intermediate(&self) -> Option<String> {
        None
    }

    /// The code in a form that another process can run; `None` where compiling the kernel is as fast.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Size of the machine code in bytes; 0 where there is none.
    fn code_bytes(&self) -> usize {
        0
    }
}

/// An error of a launch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// A gather, scatter or embedding met an index outside its axis.
    #[error("index {index} is out of range for an axis of {size}")]
    IndexOutOfRange {
        /// The index.
        index: i64,
        /// Size of the axis.
        size: i64,
    },
    /// Scratch memory for the kernel could not be allocated.
    #[error("out of memory: {bytes} bytes for a kernel's temporaries")]
    OutOfMemory {
        /// The requested number of bytes.
        bytes: usize,
    },
    /// The kernel was given arguments that are not those it was compiled for.
    #[error("a kernel of {expected} {what} was launched with {got}")]
    WrongArguments {
        /// "buffers" or "sizes".
        what: &'static str,
        /// The number of buffers the kernel has.
        expected: usize,
        /// The number of buffers given.
        got: usize,
    },
    /// A size that is negative or cannot be addressed.
    #[error("size {value} cannot be launched")]
    BadSize {
        /// The value.
        value: i64,
    },
    /// The device or its driver failed.
    #[error("the device failed: {message} (code {code})")]
    Device {
        /// The driver's code.
        code: i64,
        /// The driver's message.
        message: String,
    },
    /// What a launch before this one reported, when the host waited for its results.
    #[error("{cause}")]
    Earlier {
        /// The error of the earlier launch.
        cause: Box<Error>,
    },
}
