//! Files through which a peer gets the numbers of this process and gives its answer.

use std::path::PathBuf;

/// A temporary folder, removed at the end.
pub struct Files(PathBuf);

impl Files {
    /// A folder of this process for a benchmark.
    pub fn new(benchmark: &str) -> std::io::Result<Files> {
        let folder = std::env::temp_dir().join(format!("kiln-{benchmark}-{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        Ok(Files(folder))
    }

    /// The file of a name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        // A folder that stays is no reason to fail.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
