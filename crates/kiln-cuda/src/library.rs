//! Shared libraries found at run time: nothing of CUDA is needed to build or to start.

use std::ffi::{CStr, CString, c_void};
use std::path::{Path, PathBuf};

/// A shared library that stays loaded for the rest of the process.
#[derive(Debug)]
pub(crate) struct Library {
    handle: *mut c_void,
    /// The name under which it was found.
    pub(crate) name: String,
}

// SAFETY: a handle of `dlopen` belongs to no thread, and it is never closed.
unsafe impl Send for Library {}
// SAFETY: as above; `dlsym` may be called from any thread.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the first of `names` that is found: in the folders of [`folders`], then by the loader's own search.
    pub(crate) fn open(names: &[&str]) -> Result<Library, String> {
        Library::first(files(folders(), names).chain(names.iter().map(PathBuf::from)))
    }

    /// Loads a library that belongs to the system, whose loader knows best which: by its search, then in the folders of [`folders`].
    pub(crate) fn open_of_system(names: &[&str]) -> Result<Library, String> {
        Library::first(names.iter().map(PathBuf::from).chain(files(folders(), names)))
    }

    fn first(candidates: impl Iterator<Item = PathBuf>) -> Result<Library, String> {
        let mut first_error = None;
        for candidate in candidates {
            let name = candidate.to_string_lossy().into_owned();
            match open(&name) {
                Ok(handle) => return Ok(Library { handle, name }),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| "no name was given".to_owned()))
    }

    /// The address of a function of type `T`.
    ///
    /// # Safety
    /// `T` is a function pointer with the signature of the function of that name.
    pub(crate) unsafe fn function<T: Copy>(&self, name: &'static CStr) -> Result<T, String> {
        assert_eq!(size_of::<T>(), size_of::<*mut c_void>());
        // SAFETY: the handle is open and the name is a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            return Err(format!("{} has no {}", self.name, name.to_string_lossy()));
        }
        // SAFETY: the caller's promise; a function pointer is as large as an address.
        Ok(unsafe { std::mem::transmute_copy(&address) })
    }
}

/// A library that is there, as far as can be told without loading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Installed {
    /// The first number of its version.
    pub(crate) major: i32,
    /// Identifies its version: the number in its file's own name or, where that has none but the first, the bytes of the file.
    pub(crate) version: String,
}

impl Installed {
    /// What [`Library::open`] would load; `None` where only the loader could find it, or its name has no version.
    pub(crate) fn find(names: &[&str]) -> Option<Installed> {
        Installed::of(&files(folders(), names).next()?)
    }

    fn of(file: &Path) -> Option<Installed> {
        let major = file.file_name()?.to_str()?.rsplit_once(".so.")?.1.split('.').next()?.parse().ok()?;
        let file = file.canonicalize().ok()?;
        let own = file.file_name()?.to_string_lossy().into_owned();
        let number = own.rsplit_once(".so.").map_or("", |(_, number)| number);
        let version = match number.contains('.') {
            true => number.to_owned(),
            false => format!("{major} of {} bytes", file.metadata().ok()?.len()),
        };
        Some(Installed { major, version })
    }
}

fn open(name: &str) -> Result<*mut c_void, String> {
    let text = CString::new(name).map_err(|error| error.to_string())?;
    // SAFETY: a C string; running the initialisers of NVIDIA's libraries is what is wanted. Symbols are global because NVRTC
    // looks for its built-in functions among them.
    let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: `dlopen` failed, so that there is a text, valid until the next call on this thread.
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        return Err(format!("{name} cannot be loaded"));
    }
    // SAFETY: as above.
    Err(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned())
}

/// Where CUDA's libraries are looked for: the folders of `KILN_CUDA_PATH` (separated by colons), those of cuDNN beside them as Python
/// packages have them, those of `LD_LIBRARY_PATH`, those of the system, those of `CUDA_HOME` and `CUDA_PATH`, and `/usr/local/cuda`.
fn folders() -> Vec<PathBuf> {
    let own = kiln_runtime::environment::CUDA_PATH.get();
    let mut folders: Vec<PathBuf> = own.iter().flat_map(|list| list.split(':')).map(PathBuf::from).collect();
    // `nvidia/cu13/lib` and `nvidia/cudnn/lib`.
    let beside = |folder: &PathBuf| Some(folder.parent()?.parent()?.join("cudnn/lib"));
    folders.extend(folders.iter().filter_map(beside).collect::<Vec<_>>());
    folders.extend(std::env::split_paths(&std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()));
    let system = ["lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib/wsl/lib", "lib"];
    folders.extend(system.map(|folder| PathBuf::from("/usr").join(folder)));
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    for home in homes.chain([PathBuf::from("/usr/local/cuda"), PathBuf::from("/opt/cuda")]) {
        folders.extend(["lib64", "lib", "targets/x86_64-linux/lib"].map(|folder| home.join(folder)));
    }
    folders
}

/// The files of these names that there are, in the order in which they are tried: a folder after another, in each the first name first.
fn files(folders: Vec<PathBuf>, names: &[&str]) -> impl Iterator<Item = PathBuf> {
    let named = |folder: PathBuf| names.iter().map(move |name| folder.join(name));
    // An empty entry of a list is no folder.
    folders.into_iter().filter(|folder| folder.is_absolute()).flat_map(named).filter(|file| file.is_file())
}

/// The file of each library that Kiln uses on a GPU, as far as it can be told without loading it: the driver, NVRTC, cuBLASLt and cuDNN.
///
/// ```
/// assert_eq!(kiln_cuda::library_files().map(|(name, _)| name), ["driver", "nvrtc", "cublaslt", "cudnn"]);
/// ```
pub fn library_files() -> [(&'static str, Option<PathBuf>); 4] {
    let find = |names: &[&str]| files(folders(), names).next();
    [
        ("driver", find(&crate::driver::NAMES)),
        ("nvrtc", find(&crate::nvrtc::NAMES)),
        ("cublaslt", find(&crate::blas::NAMES)),
        ("cudnn", find(&crate::dnn::NAMES)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_told_by_the_name_of_the_file_or_by_its_size() {
        let folder = std::env::temp_dir().join(format!("kiln-installed-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("liba.so.13.1.2"), b"whole").unwrap();
        std::os::unix::fs::symlink("liba.so.13.1.2", folder.join("liba.so.13")).unwrap();
        std::fs::write(folder.join("libb.so.12"), b"1234567").unwrap();
        let found = |name: &str| Installed::of(&folder.join(name));
        assert_eq!(found("liba.so.13"), Some(Installed { major: 13, version: "13.1.2".into() }));
        assert_eq!(found("libb.so.12"), Some(Installed { major: 12, version: "12 of 7 bytes".into() }));
        assert_eq!(found("libc.so.13"), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// The first folder has the say, and in it the first name: what is told of a library is told of the one that is loaded.
    #[test]
    fn folders_come_before_names() {
        let base = std::env::temp_dir().join(format!("kiln-folders-{}", std::process::id()));
        let (first, second) = (base.join("first"), base.join("second"));
        for (folder, name) in [(&first, "liba.so.12"), (&second, "liba.so.13"), (&second, "liba.so.12")] {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join(name), b"").unwrap();
        }
        let folders = vec![PathBuf::new(), first.clone(), second.clone()];
        let found: Vec<PathBuf> = files(folders, &["liba.so.13", "liba.so.12"]).collect();
        assert_eq!(found, [first.join("liba.so.12"), second.join("liba.so.13"), second.join("liba.so.12")]);
        std::fs::remove_dir_all(&base).unwrap();
    }
}
