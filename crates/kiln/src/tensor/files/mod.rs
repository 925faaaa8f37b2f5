//! Files that somebody else made: regular ones only, and never more of one than was meant to be read.
//!
//! A path may lead to a pipe that nobody writes to, to `/dev/zero`, or to a file as large as the disk. Opening the first
//! waits for ever, reading the others takes all memory. So whatever reads a file by its name does it here, with a bound
//! that suits the kind of file.

pub(crate) mod bytes;
pub(crate) mod mapping;
pub mod safetensors;

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// Opens a regular file for reading. A folder, a pipe, a socket or a device is an error, and nothing waits for one.
///
/// ```
/// # #[cfg(unix)] {
/// let error = kiln::files::open("/dev/null").unwrap_err();
/// assert_eq!(error.to_string(), "it is a device, not a regular file");
/// # }
/// ```
pub fn open(path: impl AsRef<Path>) -> Result<File> {
    let path = path.as_ref();
    // Before it is opened, for opening a device may do something.
    refuse_others(&std::fs::metadata(path)?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // What was a file a moment ago may be a pipe now.
        options.custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    }
    let file = options.open(path)?;
    refuse_others(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file of at most so many bytes.
///
/// ```
/// # let path = std::env::temp_dir().join(format!("kiln-files-{}", std::process::id()));
/// std::fs::write(&path, "four")?;
/// assert_eq!(kiln::files::read(&path, 4)?, b"four");
/// let error = kiln::files::read(&path, 3).unwrap_err();
/// assert_eq!(error.to_string(), "it has more than the 3 bytes that are read of such a file");
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read(path: impl AsRef<Path>, most: usize) -> Result<Vec<u8>> {
    let file = open(path)?;
    let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    if length > most {
        return Err(too_long(most));
    }
    read_from(file, most, length)
}

/// [`read`], as text.
pub fn read_text(path: impl AsRef<Path>, most: usize) -> Result<String> {
    text(read(path, most)?)
}

/// Reads all of a stream, such as standard input, as text; more than so many bytes are an error.
///
/// ```
/// assert_eq!(kiln::files::read_stream("text".as_bytes(), 4)?, "text");
/// assert!(kiln::files::read_stream(std::io::repeat(b'a'), 1 << 20).is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read_stream(stream: impl Read, most: usize) -> Result<String> {
    text(read_from(stream, most, 0)?)
}

/// The length of a file may be 0 where it is not known, and it may grow while it is read.
fn read_from(stream: impl Read, most: usize, expected: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(expected);
    stream.take(most as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > most { Err(too_long(most)) } else { Ok(bytes) }
}

fn text(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(ErrorKind::InvalidData, format!("it is not UTF-8 at byte {at}"))
    })
}

fn too_long(most: usize) -> Error {
    Error::new(ErrorKind::FileTooLarge, format!("it has more than the {most} bytes that are read of such a file"))
}

fn refuse_others(metadata: &std::fs::Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let what = kind(metadata.file_type());
    let kind = if metadata.is_dir() { ErrorKind::IsADirectory } else { ErrorKind::InvalidInput };
    Err(Error::new(kind, format!("it is {what}, not a regular file")))
}

fn kind(kind: std::fs::FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    if kind.is_dir() { "a folder" } else { "something else" }
}
