//! The functions of `libcublasLt`, loaded at the first use, and what a GPU needs to call them.

use crate::device::Gpu;
use crate::driver::DevicePtr;
use crate::executable::failed;
use crate::library::{Installed, Library};
use kiln_runtime::{LaunchError, phase};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::LazyLock;

pub(super) type Status = c_int;
pub(super) type Raw = *mut c_void;

/// The names that it may have.
pub(crate) const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

/// Bytes of memory that an algorithm may use.
pub(super) const WORKSPACE: usize = 32 << 20;

/// `cublasLtMatmulAlgo_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Algorithm([u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Heuristic {
    pub(super) algorithm: Algorithm,
    pub(super) workspace: usize,
    pub(super) state: Status,
    pub(super) waves: f32,
    reserved: [c_int; 4],
}

impl Heuristic {
    pub(super) const EMPTY: Heuristic =
        Heuristic { algorithm: Algorithm([0; 8]), workspace: 0, state: 0, waves: 0.0, reserved: [0; 4] };
}

type SetAttribute = unsafe extern "C" fn(Raw, c_int, *const c_void, usize) -> Status;
type Destroy = unsafe extern "C" fn(Raw) -> Status;

/// The functions of `libcublasLt`.
pub(crate) struct BlasLt {
    pub(super) create: unsafe extern "C" fn(*mut Raw) -> Status,
    pub(super) create_operation: unsafe extern "C" fn(*mut Raw, c_int, c_int) -> Status,
    pub(super) set_operation: SetAttribute,
    pub(super) destroy_operation: Destroy,
    pub(super) create_layout: unsafe extern "C" fn(*mut Raw, c_int, u64, u64, i64) -> Status,
    pub(super) set_layout: SetAttribute,
    pub(super) destroy_layout: Destroy,
    pub(super) create_preference: unsafe extern "C" fn(*mut Raw) -> Status,
    pub(super) set_preference: SetAttribute,
    pub(super) destroy_preference: Destroy,
    pub(super) heuristics:
        unsafe extern "C" fn(Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut Heuristic, *mut c_int) -> Status,
    #[allow(clippy::type_complexity, reason = "as many arguments as cublasLtMatmul has")]
    pub(super) multiply: unsafe extern "C" fn(
        Raw,
        Raw,
        *const c_void,
        DevicePtr,
        Raw,
        DevicePtr,
        Raw,
        *const c_void,
        DevicePtr,
        Raw,
        DevicePtr,
        Raw,
        *const Algorithm,
        DevicePtr,
        usize,
        Raw,
    ) -> Status,
    status_name: unsafe extern "C" fn(Status) -> *const c_char,
    /// Its version, for instance 130100.
    pub(crate) version: usize,
}

impl BlasLt {
    /// The library, loaded at the first use; the same error every time where there is none.
    pub(crate) fn get() -> Result<&'static BlasLt, String> {
        static BLAS: LazyLock<Result<BlasLt, String>> = LazyLock::new(BlasLt::load);
        BLAS.as_ref().map_err(|reason| format!("no cuBLASLt: {reason}"))
    }

    /// The version of the library that [`BlasLt::get`] would load, without loading it if that can be told; `None` where there is none.
    pub(crate) fn installed() -> Option<String> {
        let loaded = || BlasLt::get().ok().map(|blas| blas.version.to_string());
        Installed::find(&NAMES).map(|installed| installed.version).or_else(loaded)
    }

    fn load() -> Result<BlasLt, String> {
        let library = Library::open(&NAMES)?;
        // SAFETY: the signatures are those of cublasLt.h.
        unsafe {
            let version: unsafe extern "C" fn() -> usize = library.function(c"cublasLtGetVersion")?;
            Ok(BlasLt {
                create: library.function(c"cublasLtCreate")?,
                create_operation: library.function(c"cublasLtMatmulDescCreate")?,
                set_operation: library.function(c"cublasLtMatmulDescSetAttribute")?,
                destroy_operation: library.function(c"cublasLtMatmulDescDestroy")?,
                create_layout: library.function(c"cublasLtMatrixLayoutCreate")?,
                set_layout: library.function(c"cublasLtMatrixLayoutSetAttribute")?,
                destroy_layout: library.function(c"cublasLtMatrixLayoutDestroy")?,
                create_preference: library.function(c"cublasLtMatmulPreferenceCreate")?,
                set_preference: library.function(c"cublasLtMatmulPreferenceSetAttribute")?,
                destroy_preference: library.function(c"cublasLtMatmulPreferenceDestroy")?,
                heuristics: library.function(c"cublasLtMatmulAlgoGetHeuristic")?,
                multiply: library.function(c"cublasLtMatmul")?,
                status_name: library.function(c"cublasLtGetStatusName")?,
                version: version(),
            })
        }
    }

    /// The outcome of a call.
    pub(super) fn check(&self, function: &str, status: Status) -> Result<(), LaunchError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the text is static.
        let name = unsafe { CStr::from_ptr((self.status_name)(status)) }.to_string_lossy().into_owned();
        Err(LaunchError::Device { code: status.into(), message: format!("{function}: {name}") })
    }
}

/// The library on one GPU: a handle, and memory for algorithms.
pub(crate) struct Blas {
    gpu: &'static Gpu,
    pub(super) functions: &'static BlasLt,
    pub(super) handle: Raw,
    /// Launches have an order, so that all of them share it.
    workspace: DevicePtr,
}

// SAFETY: a handle may be used from any thread in which its context is current.
unsafe impl Send for Blas {}
// SAFETY: as above; it holds no state that calls change.
unsafe impl Sync for Blas {}

impl Blas {
    /// The library on a GPU, opened at the first use.
    pub(crate) fn of(gpu: &'static Gpu) -> Result<&'static Blas, &'static str> {
        gpu.blas.get_or_init(|| phase::timed("cublaslt", || Blas::open(gpu))).as_ref().map_err(String::as_str)
    }

    fn open(gpu: &'static Gpu) -> Result<Blas, String> {
        let functions = BlasLt::get()?;
        gpu.enter().map_err(|error| error.message)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place to write to, and the GPU's context is current.
        let status = unsafe { (functions.create)(&mut handle) };
        functions.check("cublasLtCreate", status).map_err(|error| error.to_string())?;
        let workspace = gpu.pool.take(gpu, WORKSPACE).map_err(|error| error.message)?;
        Ok(Blas { gpu, functions, handle, workspace })
    }

    /// The memory for algorithms; new, and never given back, for launches that somebody captures.
    pub(super) fn workspace(&self) -> Result<DevicePtr, LaunchError> {
        match self.gpu.is_captured() {
            true => self.gpu.pool.take(self.gpu, WORKSPACE).map_err(failed),
            false => Ok(self.workspace),
        }
    }
}
