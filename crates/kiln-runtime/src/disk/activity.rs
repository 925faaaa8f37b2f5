//! Reports of the disk cache.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// Something that the disk cache did or could not do. Each is an event of [`crate::event::Category::Cache`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// An entry was found.
    Hit {
        /// Kind of entry.
        kind: &'static str,
        /// The key's first letters.
        key: String,
        /// The entry's label.
        label: String,
        /// Bytes of its payload.
        bytes: usize,
        /// The time that reading and checking took.
        took: Duration,
    },
    /// No entry was found.
    Miss {
        /// Kind of entry.
        kind: &'static str,
        /// The key's first letters.
        key: String,
        /// The entry's label.
        label: String,
    },
    /// An entry was written.
    Stored {
        /// Kind of entry.
        kind: &'static str,
        /// The key's first letters.
        key: String,
        /// The entry's label.
        label: String,
        /// Bytes of the file.
        bytes: usize,
        /// The time it took.
        took: Duration,
    },
    /// A file that should be an entry is not; it counts as a miss and was removed.
    Damaged {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The least recently used entries were removed, to keep the cache within its bound.
    Evicted {
        /// The number of entries.
        entries: usize,
        /// Their bytes.
        bytes: u64,
        /// The bound.
        most: u64,
    },
    /// An entry could not be written. Reported once; later failures are silent.
    WriteFailed {
        /// The folder.
        folder: PathBuf,
        /// The reason.
        reason: String,
    },
    /// There is no disk cache in this process.
    Off {
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Activity::Hit { kind, key, label, bytes, took } => {
                write!(f, "found {kind} {key} ({label}) on disk: {bytes} bytes in {took:.1?}")
            }
            Activity::Miss { kind, key, label } => write!(f, "no {kind} {key} ({label}) on disk"),
            Activity::Stored { kind, key, label, bytes, took } => {
                write!(f, "stored {kind} {key} ({label}) on disk: {bytes} bytes in {took:.1?}")
            }
            Activity::Damaged { file, reason } => {
                write!(f, "removed {} from the disk cache: {reason}", file.display())
            }
            Activity::Evicted { entries, bytes, most } => {
                write!(f, "removed {entries} entries ({bytes} bytes) from the disk cache, which may have {most} bytes")
            }
            Activity::WriteFailed { folder, reason } => {
                write!(f, "cannot write to the disk cache {}: {reason}; going on without storing", folder.display())
            }
            Activity::Off { reason } => write!(f, "no disk cache: {reason}"),
        }
    }
}
