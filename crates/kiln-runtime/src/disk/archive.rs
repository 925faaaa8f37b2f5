//! Many entries in one file, to be shipped: a header, then the entries' files one after another, each with its length.
//!
//! ```text
//!  "KILNpack" version:4 entries:8  ( length:8 file:length )*
//! ```
//!
//! Each entry is checked when it is imported as if it were read from a folder. A digest detects damage, not malice: an archive
//! must be trusted as much as a program.

use super::entry::Damage;
use super::store::{ImportError, Listed, Store};
use std::io::{self, Read, Write};

const MAGIC: &[u8; 8] = b"KILNpack";
const VERSION: u32 = 1;
/// No entry is larger.
const ENTRY_MOST: u64 = 4 << 30;

/// An error of reading an archive.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// Not an archive.
    #[error("it is no archive of cache entries")]
    Foreign,
    /// Of another version.
    #[error("it is an archive of version {found} and not {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
    /// It ends too early; what came before has been imported.
    #[error("it ends after {entries} of {expected} entries")]
    Truncated {
        /// Entries that were whole.
        entries: u64,
        /// The number of entries that it declares.
        expected: u64,
    },
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The outcome of an import.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Imported {
    /// Entries that are now in the store.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The problems of others.
    pub refused: Vec<Damage>,
}

/// The outcome of an export.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Exported {
    /// Entries written.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The problems of others.
    pub left_out: Vec<Damage>,
}

impl Store {
    /// Writes these entries, as [`Store::list`] gave them, as one archive. Damaged ones are left out.
    pub fn export(&self, list: &[Listed], out: &mut dyn Write) -> io::Result<Exported> {
        let mut exported = Exported::default();
        let mut whole = Vec::new();
        for listed in list {
            match self.read(listed) {
                Ok(_) => whole.push(listed),
                Err(damage) => exported.left_out.push(damage),
            }
        }
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        out.write_all(&(whole.len() as u64).to_le_bytes())?;
        for listed in whole {
            let file = std::fs::read(&listed.file)?;
            out.write_all(&(file.len() as u64).to_le_bytes())?;
            out.write_all(&file)?;
            exported.entries += 1;
            exported.bytes += file.len() as u64;
        }
        Ok(exported)
    }

    /// Imports the entries of an archive. A damaged entry is refused; the others are imported all the same.
    pub fn import_archive(&self, from: &mut dyn Read) -> Result<Imported, ArchiveError> {
        let mut header = [0; 20];
        let ended = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveError::Foreign,
            _ => error.into(),
        };
        from.read_exact(&mut header).map_err(ended)?;
        if !header.starts_with(MAGIC) {
            return Err(ArchiveError::Foreign);
        }
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        let found = number(&header[8..12]) as u32;
        if found != VERSION {
            return Err(ArchiveError::Version { found });
        }
        let expected = number(&header[12..]);
        let mut imported = Imported::default();
        for entries in 0..expected {
            let truncated = |error: io::Error| match error.kind() {
                io::ErrorKind::UnexpectedEof => ArchiveError::Truncated { entries, expected },
                _ => error.into(),
            };
            let mut length = [0; 8];
            from.read_exact(&mut length).map_err(truncated)?;
            let length = number(&length);
            if length > ENTRY_MOST {
                return Err(ArchiveError::Truncated { entries, expected });
            }
            let mut file = Vec::new();
            // Not reserved at once: the length may be wrong.
            (&mut *from).take(length).read_to_end(&mut file)?;
            if file.len() as u64 != length {
                return Err(ArchiveError::Truncated { entries, expected });
            }
            match self.import(&file) {
                Ok(_) => {
                    imported.entries += 1;
                    imported.bytes += length;
                }
                Err(ImportError::Damaged(damage)) => imported.refused.push(damage),
                Err(ImportError::Io(error)) => return Err(error.into()),
            }
        }
        Ok(imported)
    }
}
