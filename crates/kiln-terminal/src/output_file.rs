//! A file that a command writes at its end and opens at its beginning, so that nothing is measured for a file that cannot be.

use crate::failure::Failure;
use std::fs::File;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

/// A file that is open. What was in it stays until something is written.
#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    file: File,
    /// There was none before, and nothing has been written.
    is_leftover: bool,
}

impl OutputFile {
    /// Opens the file, or makes it: exit code 2 where that cannot be.
    pub fn open(path: &Path) -> Result<OutputFile, Failure> {
        let is_leftover = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Failure::file(path, error))?;
        Ok(OutputFile { path: path.to_owned(), file, is_leftover })
    }

    /// Opens the output file, if a path was given.
    pub fn maybe(path: Option<&Path>) -> Result<Option<OutputFile>, Failure> {
        path.map(OutputFile::open).transpose()
    }

    /// Writes the text in place of whatever there was: exit code 1 where that fails.
    pub fn write(&mut self, text: &str) -> Result<(), Failure> {
        self.is_leftover = false;
        self.replace(text).map_err(|error| Failure::new(format!("{}", self.path.display())).caused_by(error))
    }

    fn replace(&mut self, text: &str) -> std::io::Result<()> {
        // Pipes and devices have no beginning to go back to.
        if self.file.metadata()?.is_file() {
            self.file.rewind()?;
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())?;
        self.file.flush()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if self.is_leftover {
            // An empty file of a command that failed; one that stays does no harm.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_stays_until_something_is_written() {
        let folder = std::env::temp_dir().join(format!("kiln-output-file-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (old, new) = (folder.join("old"), folder.join("new"));
        std::fs::write(&old, "what was there before").unwrap();
        drop((OutputFile::open(&old).unwrap(), OutputFile::open(&new).unwrap()));
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "what was there before");
        assert!(!new.exists(), "nothing was written");
        let mut file = OutputFile::open(&old).unwrap();
        file.write("longer at first").unwrap();
        file.write("short").unwrap();
        drop(file);
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "short");
        assert!(OutputFile::open(&folder.join("no").join("file")).is_err() && OutputFile::open(&folder).is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_told() {
        let mut full = OutputFile::open(Path::new("/dev/full")).unwrap();
        assert!(full.write("x").is_err());
        OutputFile::open(Path::new("/dev/null")).unwrap().write("x").unwrap();
    }
}
