//! What was said before: in memory, and in a file of the user's between one conversation and the next.

use kiln_runtime::environment;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Entries that are kept.
const MOST: usize = 1000;
/// Bytes of the file that are read at the most.
const MOST_BYTES: u64 = 4 << 20;

/// Entries, the oldest first.
#[derive(Debug, Default)]
pub struct History {
    entries: Vec<String>,
    file: Option<PathBuf>,
}

impl History {
    /// What the user's file holds; nothing where there is none or it cannot be read.
    pub fn open() -> History {
        let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let file = match environment::HISTORY.get() {
            Some(off) if off == "off" || off == "0" => None,
            Some(path) if !path.is_empty() => Some(path.into()),
            _ => folder("XDG_STATE_HOME")
                .or_else(|| folder("HOME").map(|home| home.join(".local/state")))
                .map(|state| state.join("kiln/history")),
        };
        History::at(file)
    }

    /// With this file.
    pub fn at(file: Option<PathBuf>) -> History {
        let mut entries: Vec<String> = file.as_deref().map(read).unwrap_or_default();
        let old = entries.len().saturating_sub(MOST);
        entries.drain(..old);
        // Now and then the file is as long as twice what is read of it.
        if let Some(path) = file.as_deref().filter(|_| old > MOST) {
            let _ = rewrite(path, &entries);
        }
        History { entries, file }
    }

    /// Entries, the oldest first.
    pub fn entries(&self) -> &[String] {
        &self.entries
    }

    /// One more. What is there already as the newest, is empty or begins with a space is not kept.
    pub fn add(&mut self, entry: &str) {
        if entry.trim().is_empty() || entry.starts_with(' ') || self.entries.last().is_some_and(|last| last == entry) {
            return;
        }
        self.entries.push(entry.to_owned());
        if self.entries.len() > MOST {
            self.entries.remove(0);
        }
        // A conversation goes on without a file; it is not tried again.
        if self.file.as_deref().is_some_and(|path| append(path, entry).is_err()) {
            self.file = None;
        }
    }
}

/// The entries of a file, a line each.
fn read(path: &Path) -> Vec<String> {
    // Opening a pipe would wait for its other end.
    if !std::fs::metadata(path).is_ok_and(|data| data.is_file()) {
        return Vec::new();
    }
    let mut bytes = Vec::new();
    let Ok(_) = kiln::files::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes)) else {
        return Vec::new();
    };
    String::from_utf8_lossy(&bytes).lines().map(unescaped).filter(|entry| !entry.trim().is_empty()).collect()
}

fn append(path: &Path, entry: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // One write, so that lines of several conversations do not mix.
    own(OpenOptions::new().append(true)).open(path)?.write_all(format!("{}\n", escaped(entry)).as_bytes())
}

fn rewrite(path: &Path, entries: &[String]) -> io::Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let text: String = entries.iter().map(|entry| escaped(entry) + "\n").collect();
    own(OpenOptions::new().write(true).truncate(true)).open(&new)?.write_all(text.as_bytes())?;
    std::fs::rename(&new, path)
}

/// What people say is for themselves alone.
fn own(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.create(true)
}

fn escaped(entry: &str) -> String {
    entry.replace('\\', "\\\\").replace('\n', "\\n")
}

fn unescaped(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n') => text.push('\n'),
                Some(other) => text.push(other),
                None => text.push('\\'),
            },
            // A file may hold anything; escape codes would reach the terminal.
            other if other.is_control() && other != '\t' => text.push('\u{fffd}'),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in a folder of its own, which goes away.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let folder = std::env::temp_dir().join(format!("kiln-history-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&folder);
            Scratch(folder)
        }

        fn file(&self) -> PathBuf {
            self.0.join("state/history")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn entries_come_back() {
        let scratch = Scratch::new("back");
        let mut history = History::at(Some(scratch.file()));
        let said = ["one", "two\nlines \\ and a slash", "\\n is no line", "漢字"];
        said.iter().for_each(|entry| history.add(entry));
        for refused in ["漢字", "  ", "", " a secret"] {
            history.add(refused);
        }
        assert_eq!(History::at(Some(scratch.file())).entries(), said);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(scratch.file()).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn it_is_bounded_and_forgets_the_oldest() {
        let scratch = Scratch::new("bounded");
        let mut history = History::at(Some(scratch.file()));
        (0..2 * MOST + 5).for_each(|n| history.add(&format!("entry {n}")));
        assert_eq!((history.entries().len(), history.entries()[0].as_str()), (MOST, "entry 1005"));
        let again = History::at(Some(scratch.file()));
        assert_eq!(again.entries(), history.entries());
        assert_eq!(std::fs::read_to_string(scratch.file()).unwrap().lines().count(), MOST);
    }

    #[test]
    fn a_file_that_is_none_or_holds_anything_does_no_harm() {
        let scratch = Scratch::new("harm");
        std::fs::create_dir_all(scratch.file()).unwrap();
        let mut history = History::at(Some(scratch.file()));
        history.add("said");
        assert_eq!((history.entries(), history.file.is_none()), (&["said".to_owned()][..], true));
        let file = scratch.0.join("bytes");
        std::fs::write(&file, b"ok\n\xff\x1b[31m\n\\\n\n").unwrap();
        assert_eq!(History::at(Some(file)).entries(), ["ok", "\u{fffd}\u{fffd}[31m", "\\"]);
    }
}
