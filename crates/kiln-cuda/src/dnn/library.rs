//! The functions of `libcudnn`, loaded at the first use, and what a GPU needs to call them.

use super::plan::Plan;
use super::problem::Problem;
use crate::blas::BlasLt;
use crate::device::Gpu;
use crate::library::{Installed, Library};
use crate::nvrtc::Nvrtc;
use kiln_runtime::{LaunchError, phase};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

pub(super) type Status = c_int;
pub(super) type Raw = *mut c_void;

/// The name that it has.
pub(crate) const NAMES: [&str; 1] = ["libcudnn.so.9"];
/// The oldest version whose attention has masks of this kind.
const LEAST_VERSION: usize = 91_000;
/// Bytes of the text of an error.
const MESSAGE: usize = 512;

/// The functions of `libcudnn`.
pub(crate) struct DnnLibrary {
    create: unsafe extern "C" fn(*mut Raw) -> Status,
    pub(super) set_stream: unsafe extern "C" fn(Raw, Raw) -> Status,
    pub(super) create_descriptor: unsafe extern "C" fn(c_int, *mut Raw) -> Status,
    pub(super) destroy_descriptor: unsafe extern "C" fn(Raw) -> Status,
    pub(super) set: unsafe extern "C" fn(Raw, c_int, c_int, i64, *const c_void) -> Status,
    pub(super) get: unsafe extern "C" fn(Raw, c_int, c_int, i64, *mut i64, *mut c_void) -> Status,
    pub(super) finalize: unsafe extern "C" fn(Raw) -> Status,
    pub(super) execute: unsafe extern "C" fn(Raw, Raw, Raw) -> Status,
    error_name: unsafe extern "C" fn(Status) -> *const c_char,
    last_error: unsafe extern "C" fn(*mut c_char, usize),
}

impl DnnLibrary {
    /// The library, loaded at the first use; the same error every time where there is none.
    pub(crate) fn get() -> Result<&'static DnnLibrary, String> {
        static DNN: LazyLock<Result<DnnLibrary, String>> = LazyLock::new(DnnLibrary::load);
        DNN.as_ref().map_err(|reason| format!("no cuDNN: {reason}"))
    }

    /// The version of the library that [`DnnLibrary::get`] would load, without loading it; `None` where none is found.
    pub(crate) fn installed() -> Option<String> {
        Installed::find(&NAMES).map(|installed| installed.version)
    }

    fn load() -> Result<DnnLibrary, String> {
        // It ends the process where it does not find these, which it looks for among what is loaded.
        let (blas, nvrtc) = (BlasLt::get()?, Nvrtc::get()?);
        let library = Library::open(&NAMES)?;
        // SAFETY: the signatures are those of cudnn_graph.h.
        let (version, runtime): (unsafe extern "C" fn() -> usize, unsafe extern "C" fn() -> usize) =
            unsafe { (library.function(c"cudnnGetVersion")?, library.function(c"cudnnGetCudartVersion")?) };
        // SAFETY: they take nothing.
        let (version, runtime) = unsafe { (version(), runtime()) };
        usable(version, runtime / 1000, blas.version / 10_000, nvrtc.version.0 as usize)?;
        // SAFETY: the signatures are those of cudnn_graph.h.
        unsafe {
            Ok(DnnLibrary {
                create: library.function(c"cudnnCreate")?,
                set_stream: library.function(c"cudnnSetStream")?,
                create_descriptor: library.function(c"cudnnBackendCreateDescriptor")?,
                destroy_descriptor: library.function(c"cudnnBackendDestroyDescriptor")?,
                set: library.function(c"cudnnBackendSetAttribute")?,
                get: library.function(c"cudnnBackendGetAttribute")?,
                finalize: library.function(c"cudnnBackendFinalize")?,
                execute: library.function(c"cudnnBackendExecute")?,
                error_name: library.function(c"cudnnGetErrorString")?,
                last_error: library.function(c"cudnnGetLastErrorString")?,
            })
        }
    }

    /// A new handle. A GPU's context is current.
    fn handle(&self) -> Result<Raw, LaunchError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: a place to write to.
        let status = unsafe { (self.create)(&mut raw) };
        self.check("cudnnCreate", status).map(|()| raw)
    }

    /// The outcome of a call.
    pub(super) fn check(&self, what: &str, status: Status) -> Result<(), LaunchError> {
        if status == 0 {
            return Ok(());
        }
        let mut text = [0 as c_char; MESSAGE];
        // SAFETY: the name is static, and the text has as many bytes as are said, the last of them a zero.
        let (name, detail) = unsafe {
            (self.last_error)(text.as_mut_ptr(), MESSAGE - 1);
            (CStr::from_ptr((self.error_name)(status)), CStr::from_ptr(text.as_ptr()))
        };
        let (name, detail) = (name.to_string_lossy(), detail.to_string_lossy());
        let detail = detail.lines().next().map_or(String::new(), |line| format!(" ({line})"));
        Err(LaunchError::Device { code: status.into(), message: format!("{what}: {name}{detail}") })
    }
}

/// Whether a library of this version can be used beside others of CUDA.
pub(super) fn usable(version: usize, cuda: usize, blas: usize, nvrtc: usize) -> Result<(), String> {
    let (major, minor) = (version / 10_000, version / 100 % 100);
    if version < LEAST_VERSION {
        return Err(format!("version {major}.{minor} is older than 9.10"));
    }
    for (name, other) in [("cuBLASLt", blas), ("NVRTC", nvrtc)] {
        if other != cuda {
            return Err(format!("version {major}.{minor} is of CUDA {cuda}, and {name} of CUDA {other}"));
        }
    }
    Ok(())
}

/// Plans by problem.
type Plans = HashMap<Problem, Result<Arc<Plan>, LaunchError>>;

/// The library on one GPU.
pub(crate) struct Dnn {
    pub(super) functions: &'static DnnLibrary,
    /// Those that nobody uses now.
    handles: Mutex<Vec<Free>>,
    plans: Mutex<Plans>,
}

/// A handle that nobody uses.
struct Free(Raw);

// SAFETY: a handle may be used from any thread in which its context is current, by one at a time.
unsafe impl Send for Free {}

/// A handle for one caller, given back at the end.
pub(super) struct Handle {
    dnn: &'static Dnn,
    raw: Raw,
}

impl Handle {
    pub(super) fn raw(&self) -> Raw {
        self.raw
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.dnn.handles.lock().unwrap_or_else(PoisonError::into_inner).push(Free(self.raw));
    }
}

impl Dnn {
    /// The library on a GPU, opened at the first use.
    pub(crate) fn of(gpu: &'static Gpu) -> Result<&'static Dnn, &'static str> {
        gpu.dnn.get_or_init(|| phase::timed("cudnn", || Dnn::open(gpu))).as_ref().map_err(String::as_str)
    }

    fn open(gpu: &'static Gpu) -> Result<Dnn, String> {
        let functions = DnnLibrary::get()?;
        gpu.enter().map_err(|error| error.message)?;
        let first = functions.handle().map_err(|error| error.to_string())?;
        Ok(Dnn { functions, handles: Mutex::new(vec![Free(first)]), plans: Mutex::default() })
    }

    /// A handle of the caller alone. The GPU's context is current.
    pub(super) fn handle(&'static self) -> Result<Handle, LaunchError> {
        let free = self.handles.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let raw = free.map_or_else(|| self.functions.handle(), |free| Ok(free.0))?;
        Ok(Handle { dnn: self, raw })
    }

    /// The plan of a problem, made at the first use.
    pub(super) fn plan(&'static self, problem: &Problem) -> Result<Arc<Plan>, LaunchError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = plans.get(problem) {
            return plan.clone();
        }
        let plan = Plan::new(self, problem).map(Arc::new);
        plans.insert(problem.clone(), plan.clone());
        plan
    }
}
