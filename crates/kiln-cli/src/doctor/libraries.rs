//! NVIDIA's driver and libraries as the CUDA backend would find them, without loading them.

use super::{Fact, Mark};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The GPU and what a CUDA backend needs.
pub fn gpu(packages: &[PathBuf]) -> Vec<Fact> {
    let mut facts = vec![match cards().as_slice() {
        [] => Fact::new("device", Mark::Missing, "no NVIDIA GPU", Value::Array(Vec::new())),
        cards => Fact::new("device", Mark::Good, cards.join(", "), cards.to_vec()),
    }];
    for (name, file) in kiln::backend::cuda_libraries() {
        facts.push(match file.map(|file| file.display().to_string()) {
            Some(file) => Fact::new(name, Mark::Good, file.clone(), file),
            None => Fact::new(name, Mark::Missing, absent(name, packages), Value::Null),
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

/// What is said of a library that is not found; Python's packages may have it, in folders that the backend has to be told of.
fn absent(name: &str, packages: &[PathBuf]) -> String {
    let file = match name {
        "driver" => "libcuda.so",
        "nvrtc" => "libnvrtc.so",
        "cudnn" => "libcudnn.so",
        _ => "libcublasLt.so",
    };
    let nvidia =
        packages.iter().flat_map(|package| std::fs::read_dir(package.join("nvidia")).into_iter().flatten().flatten());
    let folders: Vec<PathBuf> = nvidia.map(|entry| entry.path().join("lib")).collect();
    match find(&folders, file).as_deref().and_then(Path::parent) {
        Some(folder) => format!("{file} not found; KILN_CUDA_PATH={} has it", folder.display()),
        None => format!("{file} not found"),
    }
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
