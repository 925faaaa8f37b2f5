//! Models of Hugging Face's hub that other programs have downloaded. Kiln downloads nothing itself.

use std::path::{Path, PathBuf};

/// Whether a name is one that the hub has room for: `owner/name`, or a name alone as the first models have.
fn is_id(name: &str) -> bool {
    let part = |part: &str| {
        let plain = part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        plain && part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.len() <= 96
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2 && parts.into_iter().all(part)
}

/// Whether a name is `owner/name`.
pub(crate) fn is_owned_id(name: &str) -> bool {
    is_id(name) && name.contains('/')
}

/// The folder that huggingface_hub downloads to, by its rules.
pub(crate) fn cache() -> Option<PathBuf> {
    cache_by(|name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from))
}

fn cache_by(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if let Some(cache) = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")) {
        return Some(cache);
    }
    let home = variable("HF_HOME").or_else(|| {
        let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
        Some(caches.join("huggingface"))
    })?;
    Some(home.join("hub"))
}

/// The folder of a model that was downloaded, at its main revision or, where that is not known, the newest one.
pub(crate) fn downloaded(name: &str) -> Option<PathBuf> {
    downloaded_to(&cache()?, name)
}

fn downloaded_to(cache: &Path, name: &str) -> Option<PathBuf> {
    if !is_id(name) {
        return None;
    }
    let folder = cache.join(format!("models--{}", name.replace('/', "--")));
    let snapshots = folder.join("snapshots");
    let main = kiln::files::read_text(folder.join("refs/main"), 4096).ok();
    // The file is foreign: its text has to be the name of a folder there, and no way out of it.
    let main = main.as_deref().map(str::trim).filter(|main| is_id(main) && !main.contains('/'));
    if let Some(main) = main.map(|main| snapshots.join(main)).filter(|main| main.is_dir()) {
        return Some(main);
    }
    let entries = std::fs::read_dir(snapshots).ok()?.flatten();
    let newest = entries.filter(|entry| entry.path().is_dir());
    newest.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok()).map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_the_variables_say() {
        let cache = |set: &[(&str, &str)]| {
            let find = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| PathBuf::from(value));
            cache_by(find).map(|path| path.display().to_string())
        };
        assert_eq!(cache(&[("HOME", "/h")]).as_deref(), Some("/h/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]).as_deref(), Some("/x/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "/f")]).as_deref(), Some("/f/hub"));
        assert_eq!(cache(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/f")]).as_deref(), Some("/c"));
        assert_eq!(cache(&[]), None);
    }

    #[test]
    fn the_main_revision_comes_before_the_newest() {
        let cache = std::env::temp_dir().join(format!("kiln-hub-test-{}", std::process::id()));
        let model = cache.join("models--someone--tiny");
        for revision in ["aaaa", "bbbb"] {
            std::fs::create_dir_all(model.join("snapshots").join(revision)).unwrap();
        }
        let found = |name: &str| downloaded_to(&cache, name).map(|path| path.file_name().unwrap().to_owned());
        assert!(found("someone/tiny").is_some());
        std::fs::create_dir_all(model.join("refs")).unwrap();
        for revision in ["aaaa", "bbbb"] {
            std::fs::write(model.join("refs/main"), format!("{revision}\n")).unwrap();
            assert_eq!(found("someone/tiny").unwrap(), revision);
        }
        // A revision that leads out of the cache is not followed.
        std::fs::write(model.join("refs/main"), "../../..").unwrap();
        assert!(["aaaa", "bbbb"].contains(&found("someone/tiny").unwrap().to_str().unwrap()));
        assert_eq!(found("someone/other"), None);
        assert_eq!(found("../models--someone--tiny"), None);
        std::fs::remove_dir_all(&cache).unwrap();
    }

    #[test]
    fn ids_are_told_from_paths() {
        assert!(is_owned_id("Qwen/Qwen2.5-0.5B") && is_id("gpt2") && !is_owned_id("gpt2"));
        for path in ["./a/b", "/a/b", "~/models/x", "a/b/c", "a//b", "", "a/", "x y/z"] {
            assert!(!is_owned_id(path), "{path}");
        }
    }
}
