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
    /// Loads the first of `names` that is found: by the loader's own search, then in the folders of [`folders`].
    pub(crate) fn open(names: &[&str]) -> Result<Library, String> {
        let mut first_error = None;
        let in_folders = folders().into_iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        let candidates = names.iter().map(PathBuf::from).chain(in_folders);
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
    /// The first of `names` that is found, in the folders that the loader usually looks at and then in those of [`folders`].
    pub(crate) fn find(names: &[&str]) -> Option<Installed> {
        let list = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let usual = ["lib/x86_64-linux-gnu", "lib64", "lib"].map(|folder| PathBuf::from("/usr").join(folder));
        let all: Vec<PathBuf> = std::env::split_paths(&list).chain(usual).chain(folders()).collect();
        all.iter().find_map(|folder| names.iter().find_map(|name| Installed::at(folder, name)))
    }

    fn at(folder: &Path, name: &str) -> Option<Installed> {
        let major = name.rsplit_once(".so.")?.1.parse().ok()?;
        let file = folder.join(name).canonicalize().ok()?;
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

/// Where CUDA's libraries are usually installed: the folders of `KILN_CUDA_PATH` (separated by colons), those of `CUDA_HOME` and
/// `CUDA_PATH`, and `/usr/local/cuda`.
fn folders() -> Vec<PathBuf> {
    let own = kiln_runtime::environment::CUDA_PATH.get();
    let mut folders: Vec<PathBuf> = own.iter().flat_map(|list| list.split(':')).map(PathBuf::from).collect();
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    for home in homes.chain([PathBuf::from("/usr/local/cuda")]) {
        folders.extend(["lib64", "lib", "targets/x86_64-linux/lib"].map(|folder| home.join(folder)));
    }
    folders
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
        let found = |name: &str| Installed::at(&folder, name);
        assert_eq!(found("liba.so.13"), Some(Installed { major: 13, version: "13.1.2".into() }));
        assert_eq!(found("libb.so.12"), Some(Installed { major: 12, version: "12 of 7 bytes".into() }));
        assert_eq!(found("libc.so.13"), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
