//! NVIDIA's driver and libraries, looked for where loaders look, without loading them.

use super::{Fact, Mark};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The GPU and what a CUDA backend needs.
pub fn gpu(packages: &[PathBuf]) -> Vec<Fact> {
    let folders = folders(packages);
    let mut facts = vec![match cards().as_slice() {
        [] => Fact::new("device", Mark::Missing, "no NVIDIA GPU", Value::Array(Vec::new())),
        cards => Fact::new("device", Mark::Good, cards.join(", "), cards.to_vec()),
    }];
    for (name, file) in [("driver", "libcuda.so"), ("nvrtc", "libnvrtc.so"), ("cublaslt", "libcublasLt.so")] {
        facts.push(match find(&folders, file) {
            Some(path) => {
                let shown = path.display().to_string();
                Fact::new(name, Mark::Good, shown.clone(), shown)
            }
            None => Fact::new(name, Mark::Missing, format!("{file} not found"), Value::Null),
        });
    }
    facts.push(match kiln::backend(kiln::Device::Cuda(0)).synchronize() {
        Ok(()) => Fact::new("backend", Mark::Good, "cuda:0 can be used", true),
        Err(error) => Fact::new("backend", Mark::Missing, format!("{error}; models run on the cpu"), false),
    });
    facts
}

/// The cards that the driver tells of.
fn cards() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/proc/driver/nvidia/gpus") else { return Vec::new() };
    let name = |folder: PathBuf| {
        let text = std::fs::read_to_string(folder.join("information")).ok()?;
        let line = text.lines().find(|line| line.starts_with("Model:"))?;
        Some(line.trim_start_matches("Model:").trim().to_owned())
    };
    entries.flatten().filter_map(|entry| name(entry.path())).collect()
}

/// Returns the folders where libraries may be: those of the environment first, those of Python packages last.
fn folders(packages: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        std::env::var_os("LD_LIBRARY_PATH").map(|paths| std::env::split_paths(&paths).collect()).unwrap_or_default();
    let homes = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    for home in homes.chain(["/usr/local/cuda".into(), "/opt/cuda".into()]) {
        folders.extend([home.join("lib64"), home.join("targets/x86_64-linux/lib")]);
    }
    let system = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib/wsl/lib",
        "/usr/lib",
        "/lib64",
    ];
    folders.extend(system.map(PathBuf::from));
    for package in packages {
        let nvidia = std::fs::read_dir(package.join("nvidia")).into_iter().flatten().flatten();
        folders.extend(nvidia.map(|entry| entry.path().join("lib")));
    }
    folders
}

/// The first file whose name begins so.
fn find(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    let within = |folder: &PathBuf| {
        let mut found: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
        found.sort();
        found.into_iter().find(|path| is_library(path, name))
    };
    folders.iter().find_map(within)
}

/// `libcuda.so`, `libcuda.so.1`, but not `libcuda.so-old`.
fn is_library(path: &Path, name: &str) -> bool {
    let file = path.file_name().and_then(|file| file.to_str());
    file.and_then(|file| file.strip_prefix(name)).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_by_its_name() {
        let folder = std::env::temp_dir().join(format!("kiln-doctor-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libcuda.so-old"), b"").unwrap();
        assert_eq!(find(std::slice::from_ref(&folder), "libcuda.so"), None);
        std::fs::write(folder.join("libcuda.so.1"), b"").unwrap();
        let found = find(&["/nowhere".into(), folder.clone()], "libcuda.so");
        assert_eq!(found, Some(folder.join("libcuda.so.1")));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
