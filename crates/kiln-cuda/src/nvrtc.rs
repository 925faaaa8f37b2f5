//! NVRTC: CUDA C++ text becomes a cubin inside the process.

use crate::library::{Installed, Library};
use kiln_runtime::phase;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The names that it may have.
pub(crate) const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];

type Status = c_int;
type RawProgram = *mut std::ffi::c_void;

/// The functions of `libnvrtc`.
struct Functions {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    create: unsafe extern "C" fn(
        *mut RawProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    compile: unsafe extern "C" fn(RawProgram, c_int, *const *const c_char) -> Status,
    destroy: unsafe extern "C" fn(*mut RawProgram) -> Status,
    log_size: unsafe extern "C" fn(RawProgram, *mut usize) -> Status,
    log: unsafe extern "C" fn(RawProgram, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(RawProgram, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(RawProgram, *mut c_char) -> Status,
    error: unsafe extern "C" fn(Status) -> *const c_char,
}

/// The compiler.
pub struct Nvrtc {
    functions: Functions,
    /// Where it was found.
    pub library: String,
    /// Major and minor version.
    pub version: (i32, i32),
}

/// Why a text did not compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status}{}{log}{}", if log.is_empty() { "" } else { ":\n" }, kept(text))]
pub struct CompileError {
    /// NVRTC's own word for it.
    pub status: String,
    /// What it printed.
    pub log: String,
    /// The file that the text is kept in.
    pub text: Option<PathBuf>,
}

fn kept(text: &Option<PathBuf>) -> String {
    text.as_ref().map_or(String::new(), |path| format!("\nthe text is in {}", path.display()))
}

/// Keeps a text that does not compile, in the system's folder for temporary files.
fn keep(source: &str) -> Option<PathBuf> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("kiln-cuda-{}-{number}.cu", std::process::id()));
    let options = std::fs::OpenOptions::new().write(true).create_new(true).open(&path);
    options.and_then(|mut file| file.write_all(source.as_bytes())).ok().map(|()| path)
}

impl Nvrtc {
    /// The compiler, loaded at the first use; the same error every time where there is none.
    pub fn get() -> Result<&'static Nvrtc, String> {
        static NVRTC: LazyLock<Result<Nvrtc, String>> = LazyLock::new(|| phase::timed("nvrtc library", Nvrtc::load));
        NVRTC.as_ref().map_err(|reason| format!("no CUDA compiler (NVRTC): {reason}"))
    }

    /// The compiler that [`Nvrtc::get`] would load: its version is part of every key of stored code, and a process that finds all of
    /// its code does without it. Where it cannot be told, it is loaded.
    pub(crate) fn installed() -> Result<&'static Installed, String> {
        static INSTALLED: LazyLock<Result<Installed, String>> = LazyLock::new(|| match Installed::find(&NAMES) {
            Some(installed) => Ok(installed),
            None => Nvrtc::get().map(|nvrtc| {
                let (major, minor) = nvrtc.version;
                Installed { major, version: format!("{major}.{minor}") }
            }),
        });
        INSTALLED.as_ref().map_err(String::clone)
    }

    fn load() -> Result<Nvrtc, String> {
        // Its built-in functions are a library of their own, which it finds only in the loader's path or among what is loaded.
        let builtins = ["libnvrtc-builtins.so.13.0", "libnvrtc-builtins.so.12.9", "libnvrtc-builtins.so.12.8"];
        let _ = Library::open(&builtins);
        let library = Library::open(&NAMES)?;
        // SAFETY: the signatures are those of nvrtc.h.
        let functions = unsafe {
            Functions {
                version: library.function(c"nvrtcVersion")?,
                create: library.function(c"nvrtcCreateProgram")?,
                compile: library.function(c"nvrtcCompileProgram")?,
                destroy: library.function(c"nvrtcDestroyProgram")?,
                log_size: library.function(c"nvrtcGetProgramLogSize")?,
                log: library.function(c"nvrtcGetProgramLog")?,
                cubin_size: library.function(c"nvrtcGetCUBINSize")?,
                cubin: library.function(c"nvrtcGetCUBIN")?,
                error: library.function(c"nvrtcGetErrorString")?,
            }
        };
        let mut version = (0, 0);
        // SAFETY: two places to write to.
        unsafe { (functions.version)(&mut version.0, &mut version.1) };
        Ok(Nvrtc { functions, library: library.name, version })
    }

    /// Compiles a text for an architecture, for instance `sm_90a`, to a cubin.
    pub fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>, CompileError> {
        let failed = |status: String| CompileError { status, log: String::new(), text: keep(source) };
        let text = CString::new(source).map_err(|e| failed(e.to_string()))?;
        let arch = CString::new(format!("-arch={arch}")).map_err(|e| failed(e.to_string()))?;
        // A product and a sum are two roundings, as everywhere in Kiln; where one is meant, the text says `fma`.
        let options = [arch.as_ptr(), c"-std=c++17".as_ptr(), c"--fmad=false".as_ptr(), c"-default-device".as_ptr()];
        let mut program = Program { functions: &self.functions, raw: std::ptr::null_mut() };
        // SAFETY: C strings, no headers; the handle is destroyed by `Program`.
        let status = unsafe {
            let none = std::ptr::null();
            (self.functions.create)(&mut program.raw, text.as_ptr(), c"kernel.cu".as_ptr(), 0, none, none)
        };
        self.check(status).map_err(failed)?;
        // SAFETY: the program exists, and the options are C strings.
        let status = unsafe { (self.functions.compile)(program.raw, options.len() as c_int, options.as_ptr()) };
        self.check(status).map_err(|status| CompileError { log: program.log(), ..failed(status) })?;
        program.bytes(self.functions.cubin_size, self.functions.cubin).ok_or_else(|| failed("no cubin".to_owned()))
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the text is static.
        Err(unsafe { CStr::from_ptr((self.functions.error)(status)) }.to_string_lossy().into_owned())
    }
}

/// A program of NVRTC, destroyed at the end.
struct Program<'a> {
    functions: &'a Functions,
    raw: RawProgram,
}

impl Program<'_> {
    fn bytes(
        &self,
        size: unsafe extern "C" fn(RawProgram, *mut usize) -> Status,
        get: unsafe extern "C" fn(RawProgram, *mut c_char) -> Status,
    ) -> Option<Vec<u8>> {
        let mut length = 0;
        // SAFETY: the program exists.
        if unsafe { size(self.raw, &mut length) } != 0 {
            return None;
        }
        let mut bytes = vec![0u8; length];
        // SAFETY: there is room for `length` bytes.
        (unsafe { get(self.raw, bytes.as_mut_ptr().cast()) } == 0).then_some(bytes)
    }

    fn log(&self) -> String {
        let bytes = self.bytes(self.functions.log_size, self.functions.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_owned()
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: a program that exists and is not used any more.
            unsafe { (self.functions.destroy)(&mut self.raw) };
        }
    }
}
