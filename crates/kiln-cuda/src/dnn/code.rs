//! A kernel as code: cuDNN where it takes the launch, the kernel's own text elsewhere.

use super::engine::Engine;
use super::form::Form;
use super::plan::ALIGNMENT;
use super::problem::Memory;
use super::{Dnn, Policy};
use crate::CudaBackend;
use crate::backend::OWN;
use crate::capture::{External, Made, made, saved_code};
use crate::device::Gpu;
use crate::driver::{DevicePtr, RawStream};
use crate::executable::{Code, Stored, StoredEngine, StoredLibrary, Workspace, failed, made_beside, own_code};
use kiln_ir::codec::to_bytes;
use kiln_kernels::kernel::{Access, Kernel};
use kiln_runtime::{Executable, Keep, LaunchError, RawBuffer, Variant, kernel_cache};
use std::any::Any;
use std::sync::{Arc, OnceLock};

/// What parts of a launch's memory begin at multiples of.
const PART: usize = 256;

/// Code of a kernel that the library computes.
#[derive(Clone)]
pub(crate) struct DnnCode(Arc<Inner>);

struct Inner {
    backend: CudaBackend,
    gpu: &'static Gpu,
    keep: Keep,
    kernel: Kernel,
    forms: Vec<Form>,
    /// The number of the engine among those of all forms.
    engine: usize,
    /// The engine as it was stored.
    stored: Option<StoredEngine>,
    /// `None` where the library has no such engine.
    chosen: OnceLock<Option<Chosen>>,
    own: Made,
    /// The code of the chosen form's epilogue.
    epilogue: Made,
}

/// A form with one of its engines.
struct Chosen {
    form: usize,
    engine: Arc<Engine>,
}

impl DnnCode {
    /// The code of a kernel by an engine, or by the first one where the library is to be used for everything. `None` where the library
    /// is not there, not wanted, or has no such problem.
    pub(crate) fn of(backend: CudaBackend, kernel: &Kernel, engine: Option<usize>, keep: Keep) -> Option<DnnCode> {
        let code = DnnCode::proposed(backend, kernel, engine, keep, None)?;
        Dnn::of(backend.gpu()).is_ok().then_some(code)
    }

    /// The same without a look for the library.
    fn proposed(
        backend: CudaBackend,
        kernel: &Kernel,
        engine: Option<usize>,
        keep: Keep,
        stored: Option<StoredEngine>,
    ) -> Option<DnnCode> {
        let policy = Policy::of_environment();
        if policy == Policy::Off || (policy == Policy::Auto && engine.is_none()) {
            return None;
        }
        let forms = Form::all(kernel);
        let inner = Inner {
            backend,
            gpu: backend.gpu(),
            keep,
            kernel: kernel.clone(),
            forms,
            engine: engine.unwrap_or(0),
            stored,
            chosen: OnceLock::new(),
            own: OnceLock::new(),
            epilogue: OnceLock::new(),
        };
        (!inner.forms.is_empty()).then(|| DnnCode(Arc::new(inner)))
    }

    /// The code that was stored. The library is loaded when it is first launched.
    pub(crate) fn restore(
        backend: CudaBackend,
        kernel: &Kernel,
        engine: Option<usize>,
        stored: &StoredLibrary,
    ) -> Option<DnnCode> {
        let code = DnnCode::proposed(backend, kernel, engine, Keep::Disk, stored.engine.clone())?;
        if let Some(own) = &stored.own {
            let variant = Variant::default().choosing(OWN);
            let _ = code.0.own.set(saved_code(&backend, &Arc::new(kernel.clone()), &variant, own)?);
        }
        let epilogue = code.0.forms.iter().find_map(|form| form.epilogue.as_ref());
        if let (Some(epilogue), Some(bytes)) = (epilogue, &stored.epilogue) {
            let _ = code.0.epilogue.set(saved_code(&backend, epilogue, &Variant::default(), bytes)?);
        }
        Some(code)
    }

    /// Makes what launches need; an error where the library has no such engine.
    pub(crate) fn make(&self) -> Result<(), LaunchError> {
        self.0.gpu.enter().map_err(failed)?;
        if self.0.chosen().is_none() {
            return Err(LaunchError::Device { code: 0, message: "cuDNN has no engine".to_owned() });
        }
        self.epilogue().map(|_| ())
    }

    /// The number of engines.
    pub(crate) fn engines(&self) -> usize {
        let (Ok(()), Ok(dnn)) = (self.0.gpu.enter(), Dnn::of(self.0.gpu)) else { return 0 };
        self.0.forms.iter().map(|form| dnn.plan(&form.problem).map_or(0, |plan| plan.proposals())).sum()
    }
}

impl External for DnnCode {
    fn gpu(&self) -> &'static Gpu {
        self.0.gpu
    }

    fn written(&self) -> Vec<bool> {
        self.0.kernel.buffers.iter().map(|buffer| buffer.access != Access::Read).collect()
    }

    fn own(&self) -> Result<&Code, LaunchError> {
        let Inner { backend, keep, kernel, own, .. } = &*self.0;
        own_code(own.get_or_init(|| made_beside(backend, kernel, OWN, *keep)))
    }

    fn epilogue(&self) -> Result<Option<&Code>, LaunchError> {
        let Inner { backend, keep, forms, epilogue, .. } = &*self.0;
        let form = self.0.chosen().map(|chosen| &forms[chosen.form]);
        let Some(kernel) = form.and_then(|form| form.epilogue.as_ref()) else { return Ok(None) };
        let make = || {
            let made = kernel_cache::get_kept(backend, kernel, "epilogue", *keep);
            made.map(|(code, _)| code).map_err(|error| LaunchError::Device { code: 0, message: error.to_string() })
        };
        own_code(epilogue.get_or_init(make)).map(Some)
    }

    fn scratch_bytes(&self, _: &[i64]) -> usize {
        self.0.chosen().map_or(0, |chosen| self.0.accumulators(chosen) + chosen.engine.workspace)
    }

    fn arguments(&self, buffers: &[RawBuffer], scratch: Option<&Workspace>) -> Vec<RawBuffer> {
        let raw = |scratch: &Workspace| RawBuffer { ptr: scratch.address as *mut u8, bytes: scratch.bytes };
        buffers.iter().copied().chain(scratch.filter(|_| self.scratch_bytes(&[]) > 0).map(raw)).collect()
    }

    unsafe fn queue(&self, arguments: &[RawBuffer], _: &[i64], stream: RawStream) -> Result<bool, LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.0.execute(arguments, stream) }
    }

    fn share(&self) -> Box<dyn External> {
        Box::new(self.clone())
    }
}

impl Inner {
    /// The engine, and the form that it is one of. The GPU's context is current.
    fn chosen(&self) -> Option<&Chosen> {
        let choose = || {
            let dnn = Dnn::of(self.gpu).ok()?;
            if let Some(chosen) = self.stored.as_ref().and_then(|stored| self.restored(dnn, stored)) {
                return Some(chosen);
            }
            let mut engine = self.engine;
            for (form, own) in self.forms.iter().enumerate() {
                let Ok(plan) = dnn.plan(&own.problem) else { continue };
                if engine < plan.proposals() {
                    return Some(Chosen { form, engine: plan.engine(engine).ok()? });
                }
                engine -= plan.proposals();
            }
            None
        };
        self.chosen.get_or_init(choose).as_ref()
    }

    fn restored(&self, dnn: &'static Dnn, stored: &StoredEngine) -> Option<Chosen> {
        let form = usize::try_from(stored.form).ok()?;
        let engine = Engine::restore(dnn, &self.forms.get(form)?.problem, &stored.text).ok()?;
        Some(Chosen { form, engine: Arc::new(engine) })
    }

    /// Bytes before the engine's memory.
    fn accumulators(&self, chosen: &Chosen) -> usize {
        self.forms[chosen.form].problem.scratch_bytes().next_multiple_of(PART)
    }

    /// Queues a launch on a stream if it is the library's, and returns whether it is.
    ///
    /// # Safety
    /// As [`Executable::launch`]; the GPU's context is current.
    unsafe fn execute(&self, arguments: &[RawBuffer], stream: RawStream) -> Result<bool, LaunchError> {
        let Some(chosen) = self.chosen() else { return Ok(false) };
        let problem = &self.forms[chosen.form].problem;
        let scratch = arguments.get(self.kernel.buffers.len()).map_or(0, |buffer| buffer.ptr as DevicePtr);
        let bytes = |dtype: kiln_ir::DType, elements: i64| elements * dtype.size_in_bits() as i64 / 8;
        let address = |memory: Memory, dtype: kiln_ir::DType| match memory {
            Memory::Buffer { buffer, first } => {
                (arguments[buffer].ptr as DevicePtr).wrapping_add_signed(bytes(dtype, first))
            }
            Memory::Scratch => scratch,
            _ => 0,
        };
        if !problem.tensors.iter().all(|tensor| address(tensor.memory, tensor.dtype).is_multiple_of(ALIGNMENT)) {
            return Ok(false);
        }
        let place = |memory: Memory| {
            let tensor = problem.tensors.iter().find(|tensor| tensor.memory == memory);
            tensor.map_or(0, |tensor| address(memory, tensor.dtype))
        };
        let workspace = scratch + self.accumulators(chosen) as DevicePtr;
        // SAFETY: the caller's promise.
        unsafe { chosen.engine.execute(&place, workspace, stream) }.map(|()| true)
    }
}

impl Executable for DnnCode {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_at(buffers, sizes, 0) }
    }

    unsafe fn launch_at(&self, buffers: &[RawBuffer], sizes: &[i64], site: u32) -> Result<(), LaunchError> {
        // SAFETY: the caller's promise.
        unsafe { self.launch_all(buffers, sizes, site) }
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn intermediate(&self) -> Option<String> {
        let own = made(&self.0.own).and_then(|code| code.intermediate()).unwrap_or_default();
        let form = self.0.chosen.get().and_then(Option::as_ref).map_or(0, |chosen| chosen.form);
        let Form { problem, epilogue } = &self.0.forms[form];
        let then = if epilogue.is_some() { ", then its epilogue" } else { "" };
        Some(format!("// cudnnBackendExecute: {problem}{then}\n{own}"))
    }

    fn save(&self) -> Option<Vec<u8>> {
        let saved = |code: &Made| made(code).and_then(|code| code.save()).map(Arc::from);
        let (own, epilogue) = (saved(&self.0.own), saved(&self.0.epilogue));
        let text = |chosen: &Chosen| {
            let text = chosen.engine.save()?.into();
            Some(StoredEngine { form: chosen.form as u32, text })
        };
        let engine = self.0.chosen.get().and_then(Option::as_ref).and_then(text).or_else(|| self.0.stored.clone());
        Some(to_bytes(&Stored::Library(StoredLibrary { own, epilogue, engine })))
    }

    fn code_bytes(&self) -> usize {
        made(&self.0.own).map_or(0, |code| code.code_bytes())
    }
}
