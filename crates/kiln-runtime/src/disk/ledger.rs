//! The ledger of a store: the size of its entries without a scan of the folder. Every process that writes an entry appends its
//! size to one file; the sum is the size of the store. The folder itself is scanned, in time linear in the number of files,
//! only when the sum is over the bound or the last scan was long ago.
//!
//! ```text
//!  magic │ bytes when it was measured │ bytes added since, summed up │ added │ added │ …      eight bytes each
//! ```
//!
//! The sum may be off: overwritten entries count twice, and a process that is killed between writing and appending, or that
//! appends while another sums up, is missed. A scan corrects it.

use super::store::{create_new, open_for_append, read_small};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Begins the file.
const MAGIC: &[u8; 8] = b"kilnsize";
/// Bytes of the file beyond which what was added is summed up.
const LONGEST: usize = 32 << 10;
/// Bytes before the first that was appended.
const HEADER: usize = 24;

/// The ledger of one folder.
#[derive(Debug)]
pub(super) struct Ledger {
    file: PathBuf,
}

/// The contents of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sum {
    /// Bytes when the folder was last measured.
    measured: u64,
    /// Bytes added since.
    pub(super) added: u64,
}

impl Sum {
    /// Bytes of the store.
    pub(super) fn total(self) -> u64 {
        self.measured.saturating_add(self.added)
    }

    fn parse(bytes: &[u8]) -> Option<Sum> {
        let words = bytes.strip_prefix(MAGIC)?.chunks_exact(8);
        if bytes.len() < HEADER || !words.remainder().is_empty() {
            return None;
        }
        let mut words = words.filter_map(|word| word.try_into().ok().map(u64::from_le_bytes));
        let measured = words.next()?;
        Some(Sum { measured, added: words.fold(0, u64::saturating_add) })
    }

    fn to_bytes(self) -> Vec<u8> {
        [&MAGIC[..], &self.measured.to_le_bytes(), &self.added.to_le_bytes()].concat()
    }
}

impl Ledger {
    /// The ledger in a folder, whether or not it is there.
    pub(super) fn new(folder: &Path) -> Ledger {
        Ledger { file: folder.join("size") }
    }

    /// Records that an entry of so many bytes was written. None where there is no ledger, or none that can be read.
    pub(super) fn add(&self, bytes: u64, unfinished: &Path) -> Option<Sum> {
        // Concurrent appends of several processes do not interleave: eight bytes are one write.
        open_for_append(&self.file).and_then(|mut file| file.write_all(&bytes.to_le_bytes())).ok()?;
        let text = read_small(&self.file).ok()?;
        let sum = Sum::parse(&text)?;
        if text.len() > LONGEST {
            // If this fails, the next process does it.
            let _ = self.replace(sum, unfinished);
        }
        Some(sum)
    }

    /// Records a scan of the folder. `unfinished` is a new name on the same file system.
    pub(super) fn measured(&self, bytes: u64, unfinished: &Path) -> io::Result<()> {
        self.replace(Sum { measured: bytes, added: 0 }, unfinished)
    }

    /// Removes it; the next write scans the folder.
    pub(super) fn remove(&self) {
        let _ = fs::remove_file(&self.file);
    }

    fn replace(&self, sum: Sum, unfinished: &Path) -> io::Result<()> {
        let done = create_new(unfinished)
            .and_then(|mut file| file.write_all(&sum.to_bytes()))
            .and_then(|()| fs::rename(unfinished, &self.file));
        if done.is_err() {
            let _ = fs::remove_file(unfinished);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_read_as_it_was_written() {
        let sum = Sum { measured: 1000, added: 24 };
        let mut bytes = sum.to_bytes();
        assert_eq!(Sum::parse(&bytes), Some(sum));
        bytes.extend(16u64.to_le_bytes());
        assert_eq!(Sum::parse(&bytes).map(Sum::total), Some(1040));
        // A truncated or foreign one is ignored.
        for cut in 0..HEADER {
            assert_eq!(Sum::parse(&bytes[..cut]), None);
        }
        assert_eq!(Sum::parse(&bytes[..HEADER + 3]), None);
        bytes[0] ^= 1;
        assert_eq!(Sum::parse(&bytes), None);
    }
}
