//! What a crate of the compiler was built from, as a short text: its version and a digest of its sources. It is part of every key
//! of the disk cache, so that a compiler that was changed never runs what it made before the change.

use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// For a build script: makes `env!("KILN_FINGERPRINT")` the fingerprint of the package being built.
pub fn emit() -> io::Result<()> {
    let root = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from).unwrap_or_default();
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=Cargo.toml");
    println!("cargo::rustc-env=KILN_FINGERPRINT={version}-{:016x}", digest(&root)?);
    Ok(())
}

/// A digest of the names and contents of a package's sources.
fn digest(root: &Path) -> io::Result<u64> {
    let mut files = vec![root.join("Cargo.toml")];
    list(&root.join("src"), &mut files)?;
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file).to_string_lossy().into_owned();
        for part in [name.as_bytes(), &fs::read(&file)?] {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
    }
    Ok(hasher.finish())
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            list(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_shows() {
        let root = env::temp_dir().join(format!("kiln-fingerprint-{}", std::process::id()));
        fs::create_dir_all(root.join("src/inner")).unwrap();
        let write = |name: &str, text: &str| fs::write(root.join(name), text).unwrap();
        write("Cargo.toml", "[package]");
        write("src/lib.rs", "a");
        write("src/inner/b.rs", "b");
        let first = digest(&root).unwrap();
        assert_eq!(first, digest(&root).unwrap());
        write("src/inner/b.rs", "c");
        let second = digest(&root).unwrap();
        fs::rename(root.join("src/inner/b.rs"), root.join("src/inner/d.rs")).unwrap();
        let third = digest(&root).unwrap();
        fs::remove_dir_all(root).unwrap();
        assert!(first != second && second != third && first != third);
    }
}
