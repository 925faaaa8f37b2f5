//! A folder of entries, one file each: `FOLDER/KIND/KEY`. Files appear by being renamed into place and are never changed after
//! that but for the count of uses, so that any number of processes may read, write and remove them at once.

use super::activity::Activity;
use super::entry::{self, Damage, Entry, HEADER, Header, USES_AT};
use super::key::{About, Key, hex};
use super::ledger::{Ledger, Sum};
use super::{Kind, STATS, report};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// A folder of entries.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    most_bytes: u64,
    ledger: Ledger,
    /// Whether this process has looked for files that others left half written.
    swept: AtomicBool,
    write_failed: AtomicBool,
}

/// Default bound on the bytes of a store.
pub const DEFAULT_MOST_BYTES: u64 = 1 << 30;
/// Files that a process left half written are removed after this time.
const ABANDONED: Duration = Duration::from_secs(600);
/// The folder is scanned again when one part in so many of the bound was written since.
const MEASURED_EVERY: u64 = 16;
/// The folder of files being written.
const UNFINISHED: &str = "unfinished";

/// An entry in a listing.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its kind.
    pub kind: Kind,
    /// The digest of its key, in hexadecimal.
    pub key: String,
    /// The file.
    pub file: PathBuf,
    /// Bytes of the file.
    pub bytes: u64,
    /// When it was last used or written.
    pub used: SystemTime,
    /// About how often it was used.
    pub uses: u64,
    /// A description of it; empty when it cannot be read.
    pub about: About,
}

impl Store {
    /// Opens a store in a folder, which is created on the first write. A world-writable folder is refused: entries hold machine
    /// code.
    pub fn open(folder: impl Into<PathBuf>, most_bytes: u64) -> io::Result<Store> {
        let folder = folder.into();
        for part in [folder.clone()].into_iter().chain(Kind::ALL.map(|kind| folder.join(kind.folder()))) {
            if is_public(&part)? {
                let text = format!("{} is world-writable", part.display());
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
        }
        let (swept, write_failed) = Default::default();
        Ok(Store { ledger: Ledger::new(&folder), folder, most_bytes, swept, write_failed })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The bound on its bytes.
    pub fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// The payload of an entry. A file that is damaged in any way is a miss, with an event.
    pub fn get(&self, kind: Kind, key: &Key) -> Option<Vec<u8>> {
        let start = Instant::now();
        let file = self.file(kind, &key.hex());
        match read(&file, self.most_bytes.max(DEFAULT_MOST_BYTES), true) {
            Ok(entry) if (entry.kind, &entry.key) == (kind, key.digest()) => {
                STATS.hits.fetch_add(1, Ordering::Relaxed);
                let bytes = entry.payload.len();
                report(|| Activity::Hit {
                    kind: kind.name(),
                    key: key.short(),
                    label: label(key.about()),
                    bytes,
                    took: start.elapsed(),
                });
                return Some(entry.payload);
            }
            Ok(_) => self.discard(&file, &Damage::OtherKey),
            Err(ReadFailure::Damaged(damage)) => self.discard(&file, &damage),
            Err(ReadFailure::Absent) => {}
        }
        STATS.misses.fetch_add(1, Ordering::Relaxed);
        report(|| Activity::Miss { kind: kind.name(), key: key.short(), label: label(key.about()) });
        None
    }

    /// Removes an entry whose payload could not be decoded.
    pub fn reject(&self, kind: Kind, key: &Key, reason: &str) {
        self.discard(&self.file(kind, &key.hex()), &Damage::Payload { reason: reason.to_owned() });
    }

    /// Writes an entry. A folder that cannot be written to is reported as an event, once.
    pub fn put(&self, kind: Kind, key: &Key, payload: &[u8]) {
        let start = Instant::now();
        let bytes = entry::encode(kind, key.digest(), key.about(), payload);
        match self.write(kind, &key.hex(), &bytes) {
            Ok(()) => {
                STATS.stored.fetch_add(1, Ordering::Relaxed);
                report(|| Activity::Stored {
                    kind: kind.name(),
                    key: key.short(),
                    label: label(key.about()),
                    bytes: bytes.len(),
                    took: start.elapsed(),
                });
            }
            Err(error) => {
                STATS.failed.fetch_add(1, Ordering::Relaxed);
                if !self.write_failed.swap(true, Ordering::Relaxed) {
                    let (folder, reason) = (self.folder.clone(), error.to_string());
                    report(|| Activity::WriteFailed { folder, reason });
                }
            }
        }
    }

    /// Writes the file of an entry, and makes room if there is too much.
    fn write(&self, kind: Kind, name: &str, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len() as u64;
        if length > self.most_bytes {
            let text = format!("an entry of {length} bytes, and the bound is {} bytes", self.most_bytes);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let unfinished = self.unfinished();
        let done = create_new(&unfinished).and_then(|mut file| {
            file.write_all(bytes)?;
            drop(file);
            let target = self.file(kind, name);
            match fs::rename(&unfinished, &target) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    make_folder(&self.folder.join(kind.folder()))?;
                    fs::rename(&unfinished, &target)
                }
                other => other,
            }
        });
        if done.is_err() {
            // What could not be finished must not fill the folder.
            let _ = fs::remove_file(&unfinished);
            return done;
        }
        if !self.swept.swap(true, Ordering::Relaxed) {
            self.sweep()?;
        }
        let is_due = |sum: Sum| sum.total() > self.most_bytes || sum.added > self.most_bytes / MEASURED_EVERY;
        if self.ledger.add(length, &self.unfinished()).is_none_or(is_due) {
            self.prune(self.most_bytes)?;
        }
        Ok(())
    }

    /// A unique name for a file that is being written.
    fn unfinished(&self) -> PathBuf {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        self.folder.join(UNFINISHED).join(format!("{}-{nanos:x}-{count}", std::process::id()))
    }

    /// Removes files that were left half written long ago.
    fn sweep(&self) -> io::Result<()> {
        each_file(&self.folder.join(UNFINISHED), &mut |path, metadata| {
            let age = metadata.modified().ok().and_then(|at| at.elapsed().ok());
            if age.is_some_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(path);
            }
        })
    }

    /// Removes the least recently used entries until no more than `most_bytes` are left; a little less, so that not every write
    /// has to remove something. Returns the number of entries removed and their bytes.
    pub fn prune(&self, most_bytes: u64) -> io::Result<(usize, u64)> {
        let mut files = Vec::new();
        let mut total = 0;
        for kind in Kind::ALL {
            each_file(&self.folder.join(kind.folder()), &mut |path, metadata| {
                total += metadata.len();
                files.push((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len(), path));
            })?;
        }
        self.sweep()?;
        STATS.measured.fetch_add(1, Ordering::Relaxed);
        if total <= most_bytes {
            self.note_size(total);
            return Ok((0, 0));
        }
        files.sort();
        let (wanted, mut entries, mut bytes) = (total - (most_bytes - most_bytes / 10), 0, 0);
        for (_, length, path) in files {
            if bytes >= wanted {
                break;
            }
            // One that another process removed first is gone as well.
            match fs::remove_file(&path) {
                Ok(()) => (entries, bytes) = (entries + 1, bytes + length),
                Err(error) if error.kind() == io::ErrorKind::NotFound => bytes += length,
                Err(error) => return Err(error),
            }
        }
        self.note_size(total.saturating_sub(bytes));
        STATS.evicted.fetch_add(entries as u64, Ordering::Relaxed);
        report(|| Activity::Evicted { entries, bytes, most: most_bytes });
        Ok((entries, bytes))
    }

    /// Records the measured size. If that fails, the folder is scanned again at the next write.
    fn note_size(&self, bytes: u64) {
        if self.ledger.measured(bytes, &self.unfinished()).is_err() {
            self.ledger.remove();
        }
    }

    /// Every entry, most recently used first.
    pub fn list(&self) -> io::Result<Vec<Listed>> {
        let mut list = Vec::new();
        for kind in Kind::ALL {
            each_file(&self.folder.join(kind.folder()), &mut |file, metadata| {
                let key = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                let read = read_header(&file).ok();
                let (about, uses) = read.map_or((About::default(), 0), |(header, about)| (about, header.uses()));
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                list.push(Listed { kind, key, file, bytes: metadata.len(), used, uses, about });
            })?;
        }
        list.sort_by_key(|listed| std::cmp::Reverse(listed.used));
        Ok(list)
    }

    /// The whole entry of a file in a listing, checked. Does not count as a use.
    pub fn read(&self, listed: &Listed) -> Result<Entry, Damage> {
        let entry = match read(&listed.file, u64::MAX, false) {
            Ok(entry) => entry,
            Err(ReadFailure::Damaged(damage)) => return Err(damage),
            Err(ReadFailure::Absent) => return Err(Damage::Foreign),
        };
        match entry.kind == listed.kind && hex(&entry.key) == listed.key {
            true => Ok(entry),
            false => Err(Damage::OtherKey),
        }
    }

    /// Removes every entry; returns their number and bytes.
    pub fn clear(&self) -> io::Result<(usize, u64)> {
        let (mut entries, mut bytes) = (0, 0);
        for folder in Kind::ALL.map(Kind::folder).into_iter().chain([UNFINISHED]) {
            let mut outcome = Ok(());
            each_file(&self.folder.join(folder), &mut |path, metadata| match fs::remove_file(path) {
                Ok(()) if folder != UNFINISHED => (entries, bytes) = (entries + 1, bytes + metadata.len()),
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => outcome = Err(error),
            })?;
            outcome?;
        }
        self.ledger.remove();
        Ok((entries, bytes))
    }

    /// Writes an entry that was read elsewhere, which is checked as if it were read from this folder.
    pub fn import(&self, bytes: &[u8]) -> Result<Entry, ImportError> {
        let entry = entry::decode(bytes)?;
        self.write(entry.kind, &hex(&entry.key), bytes)?;
        Ok(entry)
    }

    fn file(&self, kind: Kind, name: &str) -> PathBuf {
        self.folder.join(kind.folder()).join(name)
    }

    fn discard(&self, file: &Path, damage: &Damage) {
        STATS.damaged.fetch_add(1, Ordering::Relaxed);
        // In a read-only folder it stays, and is a miss each time.
        let _ = fs::remove_file(file);
        report(|| Activity::Damaged { file: file.to_owned(), reason: damage.to_string() });
    }
}

/// An error of importing an entry.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// They are no entry.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// The store could not be written to.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The reason why a file gave no entry.
enum ReadFailure {
    Absent,
    Damaged(Damage),
}

/// Reads an entry, and counts the use if it is valid.
fn read(path: &Path, most_bytes: u64, is_use: bool) -> Result<Entry, ReadFailure> {
    let damaged = |_: io::Error| ReadFailure::Damaged(Damage::Foreign);
    let (file, writable) = match open(path, is_use) {
        Ok(file) => (file, is_use),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(ReadFailure::Absent),
        Err(_) => match open(path, false) {
            Ok(file) => (file, false),
            // Not permitted to read it: not an entry of ours.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(ReadFailure::Absent),
            Err(error) => return Err(damaged(error)),
        },
    };
    let metadata = file.metadata().map_err(damaged)?;
    if !metadata.is_file() || metadata.len() > most_bytes {
        return Err(ReadFailure::Damaged(Damage::Foreign));
    }
    let mut start = Vec::with_capacity(HEADER);
    (&file).take(HEADER as u64).read_to_end(&mut start).map_err(damaged)?;
    let header = Header::parse(&start, metadata.len()).map_err(ReadFailure::Damaged)?;
    let mut rest = Vec::with_capacity((header.length() as usize).saturating_sub(HEADER));
    (&file).take(header.length()).read_to_end(&mut rest).map_err(damaged)?;
    let uses = header.uses().saturating_add(1);
    let entry = header.verify(rest).map_err(ReadFailure::Damaged)?;
    if writable {
        count_use(&file, uses);
    }
    Ok(entry)
}

/// Reads the header and the description of an entry, without checking its payload.
fn read_header(path: &Path) -> io::Result<(Header, About)> {
    let mut file = open(path, false)?;
    let length = file.metadata()?.len();
    let mut start = Vec::with_capacity(HEADER);
    (&file).take(HEADER as u64).read_to_end(&mut start)?;
    let header = Header::parse(&start, length).map_err(io::Error::other)?;
    let about = header.read_about(&mut file)?;
    Ok((header, about))
}

fn each_file(folder: &Path, visit: &mut dyn FnMut(PathBuf, fs::Metadata)) -> io::Result<()> {
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for file in files {
        let file = file?;
        // Files come and go while we look.
        if let Ok(metadata) = file.metadata()
            && metadata.is_file()
        {
            visit(file.path(), metadata);
        }
    }
    Ok(())
}

/// A new file that only its owner may read.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    private(&mut options);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), make_folder)?;
            options.open(path)
        }
        other => other,
    }
}

fn label(about: &About) -> String {
    about.get("label").unwrap_or_default().to_owned()
}

#[cfg(unix)]
fn open(path: &Path, writable: bool) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    // Neither follows a link nor blocks on a pipe with that name.
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).write(writable).custom_flags(flags).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path, writable: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(writable).open(path)
}

/// A file that is there already, to be appended to.
#[cfg(unix)]
pub(super) fn open_for_append(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path)
}

#[cfg(not(unix))]
pub(super) fn open_for_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(path)
}

/// A file of at most a megabyte.
pub(super) fn read_small(path: &Path) -> io::Result<Vec<u8>> {
    let file = open(path, false)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let mut bytes = Vec::new();
    (&file).take(1 << 20).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Marks an entry as used. Concurrent marks may lose a count, which nothing relies on.
#[cfg(unix)]
fn count_use(file: &File, uses: u64) {
    use std::os::unix::fs::FileExt;
    let _ = file.write_all_at(&uses.to_le_bytes(), USES_AT);
}

#[cfg(not(unix))]
fn count_use(mut file: &File, uses: u64) {
    use std::io::Seek;
    let _ = file.seek(io::SeekFrom::Start(USES_AT)).and_then(|_| file.write_all(&uses.to_le_bytes()));
}

#[cfg(unix)]
fn private(options: &mut OpenOptions) {
    use std::os::unix::fs::OpenOptionsExt;
    options.mode(0o600);
}

#[cfg(not(unix))]
fn private(_: &mut OpenOptions) {}

#[cfg(unix)]
fn make_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(not(unix))]
fn make_folder(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).create(folder)
}

/// Whether a folder is world-writable; false if it does not exist.
#[cfg(unix)]
fn is_public(folder: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    match fs::metadata(folder) {
        Ok(metadata) if !metadata.is_dir() => Err(io::Error::new(io::ErrorKind::NotADirectory, "it is no folder")),
        Ok(metadata) => Ok(metadata.mode() & 0o002 != 0),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn is_public(_: &Path) -> io::Result<bool> {
    Ok(false)
}
