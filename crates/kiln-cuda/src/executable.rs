//! A compiled kernel: its module, and how it is launched.

use crate::device::Gpu;
use crate::driver::{DriverError, KernelNode, RawFunction, RawModule, driver};
use crate::nvrtc::Nvrtc;
use crate::text::{self, Text, Way};
use kiln_ir::Dim;
use kiln_kernels::kernel::{Access, Kernel};
use kiln_runtime::{Executable, LaunchError, RawBuffer};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// The attribute of a function: bytes of dynamic shared memory at the most.
const DYNAMIC_SHARED: c_int = 8;
/// Bytes of dynamic shared memory that every kernel may have without an attribute.
const SHARED_FOR_NOTHING: i64 = 40 << 10;
/// The attribute of a function: bytes of shared memory that it declares.
const DECLARED_SHARED: c_int = 1;
/// What wide accesses have to begin at a multiple of.
pub(crate) const ALIGNMENT: usize = 16;

/// Code of a kernel on a GPU.
pub(crate) struct Code {
    kernel: Kernel,
    entry: Entry,
    /// For buffers that begin where wide accesses cannot; made when it is first needed.
    plain: OnceLock<Result<Entry, LaunchError>>,
}

impl Code {
    /// Compiles a kernel.
    pub(crate) fn compile(gpu: &'static Gpu, kernel: &Kernel, way: Way) -> Result<Code, String> {
        let entry = Entry::compile(gpu, kernel, way)?;
        Ok(Code { kernel: kernel.clone(), entry, plain: OnceLock::new() })
    }

    /// The code of a cubin that [`Executable::save`] gave.
    pub(crate) fn restore(gpu: &'static Gpu, kernel: &Kernel, cubin: &[u8]) -> Option<Code> {
        let text = text::generate(kernel, gpu.way()).ok()?;
        let entry = Entry::load(gpu, text, cubin.to_vec()).ok()?;
        Some(Code { kernel: kernel.clone(), entry, plain: OnceLock::new() })
    }

    /// A node of a graph for one launch, its arguments and its workspace; `None` where there is nothing to do.
    pub(crate) fn node(
        &self,
        buffers: &[RawBuffer],
        sizes: &[i64],
        site: u32,
        values: &mut Vec<u64>,
    ) -> Result<Option<(KernelNode, Option<Workspace>)>, LaunchError> {
        let entry = self.entry(buffers)?;
        let Some(geometry) = entry.prepare(buffers, sizes, site, values)? else { return Ok(None) };
        let Geometry { blocks, threads, shared, workspace } = geometry;
        let none = std::ptr::null_mut();
        let node = KernelNode {
            function: entry.function,
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared,
            arguments: std::ptr::null_mut(),
            extra: std::ptr::null_mut(),
            kernel: none,
            context: none,
        };
        Ok(Some((node, workspace)))
    }

    /// Whether a launch may report an index out of range.
    pub(crate) fn may_fault(&self) -> bool {
        self.entry.text.may_fault
    }

    /// By buffer, whether it is written.
    pub(crate) fn written(&self) -> Vec<bool> {
        self.kernel.buffers.iter().map(|buffer| buffer.access != Access::Read).collect()
    }

    /// The buffers that may be read before the launch before has ended, if nobody writes them.
    pub(crate) fn fetched(&self) -> &[usize] {
        &self.entry.text.fetched
    }

    /// By buffer, whether the entry depends on its alignment.
    pub(crate) fn aligned(&self, buffers: usize) -> Vec<bool> {
        (0..buffers).map(|buffer| self.entry.text.aligned.contains(&buffer)).collect()
    }

    /// The entry for buffers that begin where these do.
    fn entry(&self, buffers: &[RawBuffer]) -> Result<&Entry, LaunchError> {
        let is_aligned = |&buffer: &usize| buffers[buffer].ptr.addr().is_multiple_of(ALIGNMENT);
        if self.entry.text.aligned.iter().all(is_aligned) {
            return Ok(&self.entry);
        }
        let plain = self.plain.get_or_init(|| {
            let made = Entry::compile(self.entry.gpu, &self.kernel, Way::plain());
            made.map_err(|message| LaunchError::Device { code: 0, message })
        });
        plain.as_ref().map_err(LaunchError::clone)
    }
}

impl Executable for Code {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_at(buffers, sizes, 0) }
    }

    unsafe fn launch_at(&self, buffers: &[RawBuffer], sizes: &[i64], site: u32) -> Result<(), LaunchError> {
        let wrong = |what, expected, got| Err(LaunchError::WrongArguments { what, expected, got });
        if buffers.len() != self.kernel.buffers.len() {
            return wrong("buffers", self.kernel.buffers.len(), buffers.len());
        }
        if sizes.len() != self.kernel.sizes.len() {
            return wrong("sizes", self.kernel.sizes.len(), sizes.len());
        }
        // SAFETY: the caller's promise.
        unsafe { self.entry(buffers)?.launch(buffers, sizes, site) }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn intermediate(&self) -> Option<String> {
        Some(self.entry.text.source.clone())
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.entry.cubin.clone())
    }

    fn code_bytes(&self) -> usize {
        self.entry.cubin.len()
    }
}

/// A text that was compiled and loaded.
struct Entry {
    gpu: &'static Gpu,
    text: Text,
    cubin: Vec<u8>,
    module: RawModule,
    function: RawFunction,
    /// Bytes of dynamic shared memory at the most.
    most_shared: i64,
}

// SAFETY: modules and functions may be used from any thread in which their context is current, which `launch` sees to.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

thread_local! {
    /// The arguments of a launch and where each is, kept from launch to launch.
    static ARGUMENTS: RefCell<(Vec<u64>, Vec<*mut c_void>)> = RefCell::default();
}

pub(crate) fn failed(error: DriverError) -> LaunchError {
    LaunchError::Device { code: error.code, message: error.message }
}

impl Entry {
    fn compile(gpu: &'static Gpu, kernel: &Kernel, way: Way) -> Result<Entry, String> {
        let text = text::generate(kernel, way)?;
        let cubin = Nvrtc::get()?.compile(&text.source, &gpu.arch()).map_err(|error| error.to_string())?;
        Entry::load(gpu, text, cubin).map_err(|error| error.message)
    }

    fn load(gpu: &'static Gpu, text: Text, cubin: Vec<u8>) -> Result<Entry, DriverError> {
        gpu.enter()?;
        let driver = driver()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is a cubin, which the driver copies.
        unsafe { driver.load_module(&mut module, cubin.as_ptr().cast()) }?;
        let function = std::ptr::null_mut();
        let mut entry = Entry { gpu, text, cubin, module, function, most_shared: SHARED_FOR_NOTHING };
        // SAFETY: the module is loaded, and the name is a C string.
        unsafe { driver.module_function(&mut entry.function, module, c"kernel".as_ptr()) }?;
        if entry.text.block_bytes.as_const().is_none_or(|bytes| bytes > SHARED_FOR_NOTHING) {
            let mut declared = 0;
            // SAFETY: the function is loaded.
            unsafe { driver.function_attribute(&mut declared, DECLARED_SHARED, entry.function) }?;
            entry.most_shared = gpu.shared - i64::from(declared);
            // SAFETY: as above.
            unsafe { driver.set_function_attribute(entry.function, DYNAMIC_SHARED, entry.most_shared as c_int) }?;
        }
        Ok(entry)
    }

    fn size(&self, dim: &Dim, sizes: &[i64]) -> Result<i64, LaunchError> {
        self.text.eval(dim, sizes).filter(|&value| value >= 0).ok_or(LaunchError::BadSize { value: -1 })
    }

    /// How it is launched with these buffers and sizes; `None` where there is nothing to do. `values` gets the arguments.
    fn prepare(
        &self,
        buffers: &[RawBuffer],
        sizes: &[i64],
        site: u32,
        values: &mut Vec<u64>,
    ) -> Result<Option<Geometry>, LaunchError> {
        let blocks = self.size(&self.text.blocks, sizes)?.min(self.text.most_blocks);
        if blocks == 0 {
            return Ok(None);
        }
        let block_bytes = self.size(&self.text.block_bytes, sizes)?;
        let gpu = self.gpu;
        let (shared, blocks, workspace) = if block_bytes <= self.most_shared {
            (block_bytes, blocks, None)
        } else {
            // As many blocks as run at once, each with its memory.
            let blocks = blocks.min(i64::from(gpu.multiprocessors) * 2);
            let bytes = (blocks * block_bytes) as usize;
            (0, blocks, Some(Workspace::new(gpu, bytes)?))
        };
        let fault = gpu.faults.record(gpu).map_err(failed)?;
        values.clear();
        values.extend(buffers.iter().map(|buffer| buffer.ptr as u64));
        values.extend(sizes.iter().map(|&size| size as u64));
        let address = workspace.as_ref().map_or(0, |workspace| workspace.address);
        // The last one: whether it may fetch before the launch before has ended. Only a graph can say so.
        values.extend([fault, site.into(), address, block_bytes as u64, 0]);
        Ok(Some(Geometry { blocks: blocks as u32, threads: self.text.threads, shared: shared as u32, workspace }))
    }

    /// # Safety
    /// As [`Executable::launch`].
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64], site: u32) -> Result<(), LaunchError> {
        let gpu = self.gpu;
        gpu.enter().map_err(failed)?;
        ARGUMENTS.with_borrow_mut(|(values, places)| {
            // Its workspace is given back at the end: whoever takes it next runs after this launch.
            let Some(geometry) = self.prepare(buffers, sizes, site, values)? else { return Ok(()) };
            if self.text.may_fault {
                gpu.faults.expect();
            }
            places.clear();
            places.extend(values.iter_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>()));
            let Geometry { blocks, threads, shared, .. } = geometry;
            let (stream, arguments, none) = (gpu.stream(), places.as_mut_ptr(), std::ptr::null_mut());
            let driver = driver().map_err(failed)?;
            // SAFETY: the arguments are those of the text's parameters; the rest is the caller's promise.
            let launched =
                unsafe { driver.launch(self.function, blocks, 1, 1, threads, 1, 1, shared, stream, arguments, none) };
            launched.map_err(failed)
        })
    }
}

/// How a kernel is launched.
pub(crate) struct Geometry {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) shared: u32,
    pub(crate) workspace: Option<Workspace>,
}

/// Memory of the pool for a launch, given back at the end.
pub(crate) struct Workspace {
    gpu: &'static Gpu,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
}

impl Workspace {
    pub(crate) fn new(gpu: &'static Gpu, bytes: usize) -> Result<Workspace, LaunchError> {
        let address = gpu.pool.take(gpu, bytes).map_err(failed)?;
        Ok(Workspace { gpu, address, bytes })
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        self.gpu.pool.give(self.address, self.bytes);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok()
            && let Ok(driver) = driver()
        {
            // SAFETY: nobody launches it any more; the driver waits for what is queued.
            let _ = unsafe { driver.unload_module(self.module) };
        }
    }
}
