//! Mapped files, and the report when one of them is truncated.
//!
//! Reading a page of a mapping that the file does not have any more is no error that a call could return: the operating system
//! sends `SIGBUS`, and the process ends without a word. A list of the mappings lets a handler say which file it was.

use crate::tensor::files;
use std::path::Path;

/// A file in memory, for reading.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: memmap2::Mmap,
    /// Its place in the list; none where the list is full.
    #[cfg(unix)]
    _listed: Option<listed::Listed>,
}

impl Mapping {
    /// Maps a regular file.
    pub(crate) fn of(path: &Path) -> std::io::Result<Mapping> {
        let file = files::open(path)?;
        // SAFETY: the mapping is only read. The documentation asks the caller to leave the file alone; what a concurrent write
        // does to its bytes is no worse than to any reader of the file.
        let map = unsafe { memmap2::Mmap::map(&file) }?;
        Ok(Mapping {
            #[cfg(unix)]
            _listed: listed::Listed::add(map.as_ptr() as usize, map.len(), path),
            map,
        })
    }

    /// Lets the memory of a range go.
    #[cfg(unix)]
    pub(crate) fn release(&self, start: usize, length: usize) {
        // SAFETY: the pages are the file's and are never written: whoever reads them again finds the same bytes. A refusal
        // costs memory only.
        let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, length) };
    }
}

impl std::ops::Deref for Mapping {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Installs a handler so that a process that reads a truncated part of a mapped file reports the file's name and exits with
/// code 1; without it the operating system ends the process with `SIGBUS`. For programs, which may install signal handlers,
/// and not for libraries. Other faults end the process as before. Does nothing on systems without signals.
///
/// ```
/// kiln::report_truncated_files();
/// ```
pub fn report_truncated_files() {
    #[cfg(unix)]
    handler::install();
}

#[cfg(unix)]
mod listed {
    use std::path::Path;
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    /// One mapping. The name is set before the start, and the start is cleared before the name is freed.
    struct Slot {
        /// 0 where the slot is free, 1 while it is being filled.
        start: AtomicUsize,
        length: AtomicUsize,
        name: AtomicPtr<Vec<u8>>,
    }

    /// More shards than any checkpoint has.
    const SLOTS: usize = 1024;
    static SLOT: [Slot; SLOTS] = [const {
        Slot { start: AtomicUsize::new(0), length: AtomicUsize::new(0), name: AtomicPtr::new(std::ptr::null_mut()) }
    }; SLOTS];

    /// A place in the list, which is given back when this is dropped.
    #[derive(Debug)]
    pub(super) struct Listed(usize);

    impl Listed {
        pub(super) fn add(start: usize, length: usize, path: &Path) -> Option<Listed> {
            let free = |slot: &Slot| slot.start.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
            let at = SLOT.iter().position(free)?;
            let slot = &SLOT[at];
            let name = crate::shown(&path.display().to_string()).up_to(400).to_string().into_bytes();
            slot.name.store(Box::into_raw(Box::new(name)), Ordering::Relaxed);
            slot.length.store(length, Ordering::Relaxed);
            slot.start.store(start, Ordering::Release);
            Some(Listed(at))
        }
    }

    impl Drop for Listed {
        fn drop(&mut self) {
            let slot = &SLOT[self.0];
            let name = slot.name.swap(std::ptr::null_mut(), Ordering::AcqRel);
            slot.length.store(0, Ordering::Release);
            slot.start.store(0, Ordering::Release);
            if !name.is_null() {
                // SAFETY: it came from `Box::into_raw` in `add`. A handler looks only at the name of a mapping that it was
                // called for, which is alive then.
                drop(unsafe { Box::from_raw(name) });
            }
        }
    }

    /// The name of the mapping that an address is in. Only reads memory: a signal handler may call it.
    pub(super) fn find(address: usize) -> Option<&'static [u8]> {
        let page = 1 << 16;
        for slot in &SLOT {
            let (start, length) = (slot.start.load(Ordering::Acquire), slot.length.load(Ordering::Acquire));
            // The last page may be read beyond the end of the file.
            if start > 1 && address >= start && address - start < length.saturating_add(page) {
                let name = slot.name.load(Ordering::Acquire);
                // SAFETY: set before `start`, freed only when the mapping is gone, of which somebody reads a page right now.
                return (!name.is_null()).then(|| unsafe { (*name).as_slice() });
            }
        }
        None
    }
}

#[cfg(unix)]
mod handler {
    use super::listed;
    use std::mem::MaybeUninit;
    use std::sync::Once;

    /// What `SIGBUS` did before.
    static mut BEFORE: MaybeUninit<libc::sigaction> = MaybeUninit::uninit();

    pub(super) fn install() {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: all zeros are an action without flags and with an empty mask, which is filled in below.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: both point to actions that live long enough; only this call writes to `BEFORE`, before the handler can run.
            unsafe { libc::sigaction(libc::SIGBUS, &action, (&raw mut BEFORE).cast()) };
        });
    }

    /// Says which file was cut off and ends the process. Calls nothing but what a signal handler may: `write` and `_exit`.
    extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes the information of the signal.
        let address = unsafe { (*info).si_addr() } as usize;
        let Some(name) = listed::find(address) else { return not_ours(signal, info, context) };
        say(b"error: ");
        say(name);
        say(b": the file was truncated while it was in use: a part of it that is needed is gone\n");
        say(b"  try: run again when the file is whole, and replace files by renaming new ones, not by writing over them\n");
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(1) };
    }

    fn say(text: &[u8]) {
        // SAFETY: the text is as long as is said. Nobody could be told of a failure.
        let _ = unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }

    /// Another fault: as it would have been without this handler.
    fn not_ours(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: `install` wrote it before the handler could run; nobody writes to it afterwards.
        let before = unsafe { &*(&raw const BEFORE).cast::<libc::sigaction>() };
        let (handler, informed) = (before.sa_sigaction, before.sa_flags & libc::SA_SIGINFO != 0);
        if informed && handler != libc::SIG_DFL && handler != libc::SIG_IGN {
            // SAFETY: an action with SA_SIGINFO holds a function of these arguments.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            return handler(signal, info, context);
        }
        // SAFETY: puts the action back; the instruction faults again and meets it.
        unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// The part of the test that ends its process: reads what a file does not have any more.
    fn read_what_is_gone(path: &Path, reporting: bool) {
        if reporting {
            report_truncated_files();
        }
        let map = Mapping::of(path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(10).unwrap();
        let sum: u64 = map.iter().map(|&byte| u64::from(byte)).sum();
        panic!("the whole file could be read: {sum}");
    }

    #[test]
    fn a_truncated_file_is_named() {
        const CASE: &str = "KILN_TEST_TRUNCATED";
        if let Ok(case) = std::env::var(CASE) {
            let (reporting, path) = case.split_once(' ').unwrap();
            return read_what_is_gone(Path::new(path), reporting == "true");
        }
        for reporting in [false, true] {
            let path = std::env::temp_dir().join(format!("kiln-truncated-{}-{reporting}", std::process::id()));
            std::fs::write(&path, vec![1u8; 1 << 20]).unwrap();
            let test = concat!(module_path!(), "::a_truncated_file_is_named").trim_start_matches("kiln::");
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", test, "--nocapture"])
                .env(CASE, format!("{reporting} {}", path.display()))
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&child.stderr).into_owned();
            if reporting {
                assert_eq!(child.status.code(), Some(1), "{said}");
                assert!(
                    said.contains(path.to_str().unwrap()) && said.contains("truncated while it was in use"),
                    "{said}"
                );
            } else {
                assert_eq!(child.status.signal(), Some(libc::SIGBUS), "{said}");
            }
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn places_in_the_list_are_given_back() {
        let path = std::env::temp_dir().join(format!("kiln-listed-{}", std::process::id()));
        std::fs::write(&path, b"bytes").unwrap();
        for _ in 0..3000 {
            let map = Mapping::of(&path).unwrap();
            assert_eq!(listed::find(map.as_ptr() as usize), Some(path.to_str().unwrap().as_bytes()));
        }
        std::fs::remove_file(path).unwrap();
    }
}
