//! A compiled kernel: its module, and how it is launched.

use crate::CudaBackend;
use crate::backend::PLAIN;
use crate::device::Gpu;
use crate::driver::{DriverError, KernelNode, RawFunction, RawModule, driver};
use crate::nvrtc::Nvrtc;
use crate::text::{self, Text, Way};
use kiln_ir::codec::to_bytes;
use kiln_ir::{Dim, codec_enum, codec_struct};
use kiln_kernels::kernel::{Access, Kernel};
use kiln_runtime::{Executable, Keep, LaunchError, RawBuffer, Variant, kernel_cache, phase};
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_int, c_void};
use std::sync::{Arc, OnceLock};

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
    backend: CudaBackend,
    kernel: Kernel,
    way: Way,
    keep: Keep,
    entry: Entry,
    /// For buffers that begin where wide accesses cannot; made when it is first needed.
    plain: OnceLock<Result<Arc<dyn Executable>, LaunchError>>,
}

/// Code as [`Executable::save`] gives it.
pub(crate) enum Stored {
    Own(StoredText),
    Library(StoredLibrary),
}

/// A text that was compiled.
pub(crate) struct StoredText {
    text: Text,
    cubin: Arc<[u8]>,
}

/// A product that a library computes: the codes that were made beside it, each as [`Executable::save`] gives it.
pub(crate) struct StoredLibrary {
    pub(crate) own: Option<Arc<[u8]>>,
    pub(crate) epilogue: Option<Arc<[u8]>>,
    /// Of cuDNN.
    pub(crate) engine: Option<StoredEngine>,
}

/// An engine of cuDNN, with its code.
#[derive(Clone)]
pub(crate) struct StoredEngine {
    /// The number of the form that it computes.
    pub(crate) form: u32,
    pub(crate) text: Arc<[u8]>,
}

codec_struct! {
    StoredText { text, cubin }
    StoredLibrary { own, epilogue, engine }
    StoredEngine { form, text }
}
codec_enum! {
    Stored { 0 = Own(text), 1 = Library(library) }
}

impl Code {
    /// Compiles a kernel.
    pub(crate) fn compile(backend: CudaBackend, kernel: &Kernel, way: Way, keep: Keep) -> Result<Code, String> {
        let entry = Entry::compile(backend.gpu(), kernel, way)?;
        Ok(Code { backend, kernel: kernel.clone(), way, keep, entry, plain: OnceLock::new() })
    }

    /// Compiles several kernels as one text, which takes a fraction of the time that they take one by one.
    pub(crate) fn compile_together(backend: CudaBackend, kernels: &[&Kernel], way: Way) -> Result<Vec<Code>, String> {
        let (gpu, keep) = (backend.gpu(), Keep::Process);
        let texts = kernels.iter().map(|kernel| text::generate(kernel, way)).collect::<Result<Vec<Text>, String>>()?;
        let nvrtc = Nvrtc::get()?;
        let cubin = phase::timed("nvrtc", || nvrtc.compile(&text::together(&texts), &gpu.arch()));
        let image = Image::new(gpu, cubin.map_err(|error| error.to_string())?.into(), kernels.len());
        let code = |(number, (kernel, text)): (usize, (&&Kernel, Text))| {
            let name = CString::new(text.entry_name(number)).map_err(|error| error.to_string())?;
            let entry = Entry::new(image.clone(), text, name);
            entry.function().map_err(|error| error.message)?;
            Ok(Code { backend, kernel: (*kernel).clone(), way, keep, entry, plain: OnceLock::new() })
        };
        kernels.iter().zip(texts).enumerate().map(code).collect()
    }

    /// The code that was stored; the GPU gets it when it is first launched. `None` if it is not this kernel's.
    pub(crate) fn restore(backend: CudaBackend, kernel: &Kernel, way: Way, stored: StoredText) -> Option<Code> {
        let StoredText { text, cubin } = stored;
        let name = CString::new(text.name.as_str()).ok()?;
        let entry = Entry::new(Image::new(backend.gpu(), cubin, 1), text, name);
        let (keep, plain) = (Keep::Disk, OnceLock::new());
        entry.text.fits(kernel).then(|| Code { backend, kernel: kernel.clone(), way, keep, entry, plain })
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
        let Geometry { function, blocks, threads, shared, workspace } = geometry;
        let none = std::ptr::null_mut();
        let node = KernelNode {
            function,
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
        let plain = self.plain.get_or_init(|| made_beside(&self.backend, &self.kernel, PLAIN, self.keep));
        Ok(&own_code(plain)?.entry)
    }
}

/// The code of a kernel in another way, which is needed only now.
pub(crate) fn made_beside(
    backend: &CudaBackend,
    kernel: &Kernel,
    choices: &str,
    keep: Keep,
) -> Result<Arc<dyn Executable>, LaunchError> {
    let variant = Variant::default().choosing(choices);
    let made = kernel_cache::get_variant(backend, &Arc::new(kernel.clone()), &variant, choices, keep);
    made.map(|(code, _)| code).map_err(|error| LaunchError::Device { code: 0, message: error.to_string() })
}

/// The code of an own text among all code.
pub(crate) fn own_code(code: &Result<Arc<dyn Executable>, LaunchError>) -> Result<&Code, LaunchError> {
    let code = code.as_ref().map_err(LaunchError::clone)?.as_any().and_then(|code| code.downcast_ref::<Code>());
    code.ok_or_else(|| LaunchError::Device { code: 0, message: "the code is not of this backend's text".to_owned() })
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
        let source = &self.entry.text.source;
        match source.is_empty() {
            true => text::generate(&self.kernel, self.way).ok().map(|text| text.source),
            false => Some(source.clone()),
        }
    }

    fn save(&self) -> Option<Vec<u8>> {
        // What was compiled with others is not stored: it would be stored with each of them.
        let image = &self.entry.image;
        let stored = || StoredText { text: self.entry.text.clone(), cubin: image.cubin.clone() };
        (image.entries == 1).then(|| to_bytes(&Stored::Own(stored())))
    }

    fn code_bytes(&self) -> usize {
        self.entry.image.cubin.len() / self.entry.image.entries
    }
}

/// A text that was compiled.
struct Entry {
    image: Arc<Image>,
    text: Text,
    /// Its name in the image.
    name: CString,
    /// Found when it is first launched, for code from disk; of what is compiled at once, which tells whether the GPU takes it.
    function: OnceLock<Result<Function, DriverError>>,
}

/// What NVRTC gave, with one entry or several.
struct Image {
    gpu: &'static Gpu,
    cubin: Arc<[u8]>,
    entries: usize,
    module: OnceLock<Result<Module, DriverError>>,
}

/// An image that the GPU has.
struct Module {
    gpu: &'static Gpu,
    raw: RawModule,
}

/// An entry of a module.
struct Function {
    raw: RawFunction,
    /// Bytes of dynamic shared memory at the most.
    most_shared: i64,
}

// SAFETY: modules and functions may be used from any thread in which their context is current, which `launch` sees to.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}
// SAFETY: as above.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

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
        let nvrtc = Nvrtc::get()?;
        let cubin = phase::timed("nvrtc", || nvrtc.compile(&text.source, &gpu.arch()));
        let image = Image::new(gpu, cubin.map_err(|error| error.to_string())?.into(), 1);
        let name = CString::new(text.name.as_str()).map_err(|error| error.to_string())?;
        let entry = Entry::new(image, text, name);
        entry.function().map_err(|error| error.message)?;
        Ok(entry)
    }

    fn new(image: Arc<Image>, text: Text, name: CString) -> Entry {
        Entry { image, text, name, function: OnceLock::new() }
    }

    fn function(&self) -> Result<&Function, DriverError> {
        let find = || phase::timed("module", || Function::find(&self.image, &self.text, &self.name));
        self.function.get_or_init(find).as_ref().map_err(DriverError::clone)
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
        let gpu = self.image.gpu;
        let &Function { raw: function, most_shared } = self.function().map_err(failed)?;
        let (shared, blocks, workspace) = if block_bytes <= most_shared {
            (block_bytes, blocks, None)
        } else {
            // As many blocks as run at once, each with its memory.
            let at_once = i64::from(gpu.multiprocessors) * 2;
            let blocks = if self.text.takes_all_blocks { blocks } else { blocks.min(at_once) };
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
        let (blocks, threads, shared) = (blocks as u32, self.text.threads, shared as u32);
        Ok(Some(Geometry { function, blocks, threads, shared, workspace }))
    }

    /// # Safety
    /// As [`Executable::launch`].
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64], site: u32) -> Result<(), LaunchError> {
        let gpu = self.image.gpu;
        gpu.enter().map_err(failed)?;
        ARGUMENTS.with_borrow_mut(|(values, places)| {
            // Its workspace is given back at the end: whoever takes it next runs after this launch.
            let Some(geometry) = self.prepare(buffers, sizes, site, values)? else { return Ok(()) };
            if self.text.may_fault {
                gpu.faults.expect();
            }
            places.clear();
            places.extend(values.iter_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>()));
            let Geometry { function, blocks, threads, shared, .. } = geometry;
            let (arguments, none) = (places.as_mut_ptr(), std::ptr::null_mut());
            let (driver, turn) = (driver().map_err(failed)?, gpu.turn().map_err(failed)?);
            // SAFETY: the arguments are those of the text's parameters; the rest is the caller's promise.
            let launched =
                unsafe { driver.launch(function, blocks, 1, 1, threads, 1, 1, shared, turn.stream, arguments, none) };
            launched.map_err(failed)
        })
    }
}

/// How a kernel is launched.
pub(crate) struct Geometry {
    function: RawFunction,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) shared: u32,
    pub(crate) workspace: Option<Workspace>,
}

/// Memory of the pool for a launch, given back at the end; never what a caller captures, who may launch it at any time.
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
        if !self.gpu.is_captured() {
            self.gpu.pool.give(self.address, self.bytes);
        }
    }
}

impl Image {
    fn new(gpu: &'static Gpu, cubin: Arc<[u8]>, entries: usize) -> Arc<Image> {
        Arc::new(Image { gpu, cubin, entries, module: OnceLock::new() })
    }

    fn module(&self) -> Result<&Module, DriverError> {
        self.module.get_or_init(|| Module::load(self.gpu, &self.cubin)).as_ref().map_err(DriverError::clone)
    }
}

impl Module {
    fn load(gpu: &'static Gpu, cubin: &[u8]) -> Result<Module, DriverError> {
        gpu.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is a cubin, which the driver copies.
        unsafe { driver()?.load_module(&mut raw, cubin.as_ptr().cast()) }?;
        Ok(Module { gpu, raw })
    }
}

impl Function {
    fn find(image: &Image, text: &Text, name: &CStr) -> Result<Function, DriverError> {
        let module = image.module()?;
        let (gpu, driver) = (image.gpu, driver()?);
        gpu.enter()?;
        let mut function = Function { raw: std::ptr::null_mut(), most_shared: SHARED_FOR_NOTHING };
        // SAFETY: the module is loaded, and the name is a C string.
        unsafe { driver.module_function(&mut function.raw, module.raw, name.as_ptr()) }?;
        if text.block_bytes.as_const().is_none_or(|bytes| bytes > SHARED_FOR_NOTHING) {
            let mut declared = 0;
            // SAFETY: the function is loaded.
            unsafe { driver.function_attribute(&mut declared, DECLARED_SHARED, function.raw) }?;
            function.most_shared = gpu.shared - i64::from(declared);
            // SAFETY: as above.
            unsafe { driver.set_function_attribute(function.raw, DYNAMIC_SHARED, function.most_shared as c_int) }?;
        }
        Ok(function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok()
            && let Ok(driver) = driver()
        {
            // SAFETY: nobody launches it any more; the driver waits for what is queued.
            let _ = unsafe { driver.unload_module(self.raw) };
        }
    }
}
