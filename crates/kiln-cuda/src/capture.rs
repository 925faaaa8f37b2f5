//! Launches of libraries: recorded as graphs of their own, with the kernel's own code beside them.

use crate::CudaBackend;
use crate::device::{Gpu, NON_BLOCKING};
use crate::driver::{RawGraph, RawStream, driver};
use crate::executable::{Code, Workspace, failed};
use kiln_kernels::kernel::Kernel;
use kiln_runtime::{Executable, LaunchError, RawBuffer, Variant, kernel_cache};
use std::sync::{Arc, OnceLock};

/// A capture that other threads' calls do not end, `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: i32 = 2;

/// Code of a library.
pub(crate) trait External {
    /// Where it runs.
    fn gpu(&self) -> &'static Gpu;

    /// By buffer, whether it is written.
    fn written(&self) -> Vec<bool>;

    /// The kernel's own code.
    fn own(&self) -> Result<&Code, LaunchError>;

    /// The code of the kernel's epilogue, where it is a kernel of its own.
    fn epilogue(&self) -> Result<Option<&Code>, LaunchError>;

    /// Bytes that [`External::arguments`] needs at these sizes.
    fn scratch_bytes(&self, sizes: &[i64]) -> usize;

    /// The arguments of the library and of the epilogue: the kernel's buffers, and memory of the launch.
    fn arguments(&self, buffers: &[RawBuffer], scratch: Option<&Workspace>) -> Vec<RawBuffer>;

    /// Queues the library's part of a launch on a stream; false where it is the kernel's own code that runs. `arguments` are those of
    /// [`External::arguments`].
    ///
    /// # Safety
    /// As [`Executable::launch`]; the GPU's context is current.
    unsafe fn queue(&self, arguments: &[RawBuffer], sizes: &[i64], stream: RawStream) -> Result<bool, LaunchError>;

    /// The same as a graph.
    ///
    /// # Safety
    /// As [`Executable::launch`].
    unsafe fn capture(&self, arguments: &[RawBuffer], sizes: &[i64]) -> Result<Option<Captured>, LaunchError> {
        // SAFETY: the caller's promise.
        capture(self.gpu(), |stream| unsafe { self.queue(arguments, sizes, stream) })
    }

    /// A launch: the library and the epilogue, or the kernel's own code.
    ///
    /// # Safety
    /// As [`Executable::launch_at`].
    unsafe fn launch_all(&self, buffers: &[RawBuffer], sizes: &[i64], site: u32) -> Result<(), LaunchError> {
        let (expected, got) = (self.written().len(), buffers.len());
        if expected != got {
            return Err(LaunchError::WrongArguments { what: "buffers", expected, got });
        }
        let gpu = self.gpu();
        gpu.enter().map_err(failed)?;
        // Given back at the end: whoever takes it next runs after this launch.
        let scratch = match self.scratch_bytes(sizes) {
            0 => None,
            bytes => Some(Workspace::new(gpu, bytes)?),
        };
        let arguments = self.arguments(buffers, scratch.as_ref());
        // SAFETY: the caller's promise.
        unsafe {
            let queued = self.queue(&arguments, sizes, gpu.turn().map_err(failed)?.stream)?;
            if !queued {
                return self.own()?.launch_at(buffers, sizes, site);
            }
            self.epilogue()?.map_or(Ok(()), |epilogue| epilogue.launch_at(&arguments, sizes, site))
        }
    }

    /// The same code for a graph.
    fn share(&self) -> Box<dyn External>;
}

/// The graph of a capture, destroyed at the end.
pub(crate) struct Captured {
    pub(crate) raw: RawGraph,
}

impl Drop for Captured {
    fn drop(&mut self) {
        if let (false, Ok(driver)) = (self.raw.is_null(), driver()) {
            // SAFETY: a graph of ours; whoever took it into another has a copy.
            let _ = unsafe { driver.destroy_graph(self.raw) };
        }
    }
}

/// What is queued on a stream as a graph, unless it says that nothing was.
pub(crate) fn capture(
    gpu: &'static Gpu,
    queue: impl FnOnce(RawStream) -> Result<bool, LaunchError>,
) -> Result<Option<Captured>, LaunchError> {
    let driver = driver().map_err(failed)?;
    gpu.enter().map_err(failed)?;
    let (mut stream, mut graph) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: places to write to; the stream is of this function alone, and its capture ends whatever happens in it.
    let (taken, ended) = unsafe {
        driver.create_stream(&mut stream, NON_BLOCKING).map_err(failed)?;
        let begun = driver.begin_capture(stream, RELAXED).map_err(failed);
        let taken = begun.and_then(|()| queue(stream));
        let ended = driver.end_capture(stream, &mut graph).map_err(failed);
        let _ = driver.destroy_stream(stream);
        (taken, ended)
    };
    let captured = Captured { raw: graph };
    Ok((taken? && ended.map(|()| true)?).then_some(captured))
}

/// Code that is made when it is needed.
pub(crate) type Made = OnceLock<Result<Arc<dyn Executable>, LaunchError>>;

/// The code, if it was made.
pub(crate) fn made(code: &Made) -> Option<&dyn Executable> {
    code.get()?.as_ref().ok().map(|code| &**code)
}

/// The code of a kernel that was stored beside a library's.
pub(crate) fn saved_code(
    backend: &CudaBackend,
    kernel: &Arc<Kernel>,
    variant: &Variant,
    bytes: &[u8],
) -> Option<Result<Arc<dyn Executable>, LaunchError>> {
    let found = kernel_cache::get_saved(backend, kernel, variant, "product", Some(bytes));
    found.ok().map(|(code, _)| Ok(code))
}
