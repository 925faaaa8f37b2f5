//! Executable memory. No page is ever writable and executable through the same address.
//!
//! ```text
//!  chunk (memfd, 1 MiB or more)
//!    ├── view RW   the installer writes here
//!    └── view RX   code runs here
//! ```
//!
//! Both views are of the same pages, so installing a kernel is a copy: no system call. Where the system refuses a memfd
//! or an executable view of it, each piece of code gets pages of its own, written first and then made executable.

use crate::asm::Assembler;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// An error of installing code.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The system gave no memory for code.
    #[error("{call} refused {bytes} bytes of executable memory: {reason}")]
    Refused {
        /// The system call.
        call: &'static str,
        /// The requested number of bytes.
        bytes: usize,
        /// The system's error.
        reason: String,
    },
}

/// Smallest chunk of a double-mapped arena.
const CHUNK: usize = 1 << 20;

/// A growing store of executable code. Ranges of dropped [`Code`] are used again.
pub struct CodeArena {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    chunks: Vec<Chunk>,
    /// Set once the system refused a double mapping.
    single: bool,
}

/// One double mapping and its free ranges (offset → length), neighbours always merged.
struct Chunk {
    writable: Mapping,
    executable: Mapping,
    free: BTreeMap<usize, usize>,
}

/// An owned mmap.
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory; every write to it happens under the arena's lock.
unsafe impl Send for Mapping {}
// SAFETY: as above; readers only execute it.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `at` and `len` come from a successful mmap and are unmapped once.
        unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Installed code, executable as long as this value lives.
pub struct Code {
    entry: NonNull<u8>,
    len: usize,
    storage: CodeStorage,
}

enum CodeStorage {
    Chunk { shared: Arc<Shared>, chunk: usize, offset: usize, reserved: usize },
    Own { _pages: Mapping },
}

// SAFETY: installed code is immutable; the caller is responsible for running it from several threads.
unsafe impl Send for Code {}
// SAFETY: as above.
unsafe impl Sync for Code {}

impl Code {
    /// The first byte, at a multiple of [`Assembler::ALIGN`]. Casting it to a function and calling that is up to the
    /// caller, who must keep this value alive during the call.
    pub fn as_ptr(&self) -> *const u8 {
        self.entry.as_ptr()
    }

    /// Bytes of code.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no code.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl std::fmt::Debug for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Code").field("entry", &self.entry).field("len", &self.len).finish()
    }
}

impl Drop for Code {
    fn drop(&mut self) {
        if let CodeStorage::Chunk { shared, chunk, offset, reserved } = &self.storage {
            shared.lock().chunks[*chunk].release(*offset, *reserved);
        }
    }
}

impl Default for CodeArena {
    fn default() -> Self {
        Self::new()
    }
}

impl CodeArena {
    /// An arena of its own; most callers want [`CodeArena::global`].
    pub fn new() -> CodeArena {
        CodeArena { shared: Arc::new(Shared { state: Mutex::default() }) }
    }

    /// The arena of the process.
    pub fn global() -> &'static CodeArena {
        static GLOBAL: OnceLock<CodeArena> = OnceLock::new();
        GLOBAL.get_or_init(CodeArena::new)
    }

    /// Copies code into executable memory.
    pub fn install(&self, bytes: &[u8]) -> Result<Code, MemoryError> {
        let reserved = bytes.len().max(1).next_multiple_of(Assembler::ALIGN);
        let mut state = self.shared.lock();
        if !state.single {
            let found = state.chunks.iter_mut().enumerate().find_map(|(i, c)| Some((i, c.reserve(reserved)?)));
            let found = match found {
                Some(found) => Some(found),
                None => match Chunk::new(reserved.max(CHUNK).next_multiple_of(page_size())) {
                    Ok(mut chunk) => {
                        let offset = chunk.reserve(reserved).expect("a new chunk holds what it was made for");
                        state.chunks.push(chunk);
                        Some((state.chunks.len() - 1, offset))
                    }
                    Err(_) => {
                        state.single = true;
                        None
                    }
                },
            };
            if let Some((chunk, offset)) = found {
                let entry = state.chunks[chunk].write(offset, bytes);
                let shared = self.shared.clone();
                return Ok(Code {
                    entry,
                    len: bytes.len(),
                    storage: CodeStorage::Chunk { shared, chunk, offset, reserved },
                });
            }
        }
        drop(state);
        own_pages(bytes)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while holding the lock cannot leave a range half taken, so a poisoned state is still good.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Chunk {
    fn new(len: usize) -> Result<Chunk, MemoryError> {
        let fd = memfd(len)?;
        let writable = map(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd);
        let executable = map(len, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_SHARED, fd);
        // SAFETY: `fd` is open and owned here; the mappings outlive it.
        unsafe { libc::close(fd) };
        Ok(Chunk { writable: writable?, executable: executable?, free: BTreeMap::from([(0, len)]) })
    }

    fn reserve(&mut self, len: usize) -> Option<usize> {
        let (&offset, &room) = self.free.iter().find(|(_, room)| **room >= len)?;
        self.free.remove(&offset);
        if room > len {
            self.free.insert(offset + len, room - len);
        }
        Some(offset)
    }

    fn release(&mut self, mut offset: usize, mut len: usize) {
        if let Some((&before, &room)) = self.free.range(..offset).next_back()
            && before + room == offset
        {
            self.free.remove(&before);
            offset = before;
            len += room;
        }
        if let Some(room) = self.free.remove(&(offset + len)) {
            len += room;
        }
        self.free.insert(offset, len);
    }

    /// Writes through the writable view and returns the address in the executable one.
    fn write(&mut self, offset: usize, bytes: &[u8]) -> NonNull<u8> {
        assert!(offset + bytes.len() <= self.writable.len);
        // SAFETY: the range is inside both mappings, is reserved for this code alone, and no code runs in it yet.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.writable.at.as_ptr().add(offset), bytes.len());
            self.executable.at.add(offset)
        }
    }
}

/// The fallback: pages that are written, then made executable.
fn own_pages(bytes: &[u8]) -> Result<Code, MemoryError> {
    let len = bytes.len().max(1).next_multiple_of(page_size());
    let pages = map(len, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON, -1)?;
    // SAFETY: the mapping is new, writable and at least as long as `bytes`.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), pages.at.as_ptr(), bytes.len()) };
    // SAFETY: the range is exactly the mapping.
    let rc = unsafe { libc::mprotect(pages.at.as_ptr().cast(), len, libc::PROT_READ | libc::PROT_EXEC) };
    if rc != 0 {
        return Err(refused("mprotect", len));
    }
    Ok(Code { entry: pages.at, len: bytes.len(), storage: CodeStorage::Own { _pages: pages } })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn memfd(len: usize) -> Result<i32, MemoryError> {
    // SAFETY: the name is a valid C string.
    let fd = unsafe { libc::memfd_create(c"kiln-code".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(refused("memfd_create", len));
    }
    // SAFETY: `fd` was just opened.
    if unsafe { libc::ftruncate(fd, len as libc::off_t) } != 0 {
        let error = refused("ftruncate", len);
        // SAFETY: `fd` is open and not used again.
        unsafe { libc::close(fd) };
        return Err(error);
    }
    Ok(fd)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn memfd(len: usize) -> Result<i32, MemoryError> {
    Err(MemoryError::Refused { call: "memfd_create", bytes: len, reason: "not on this system".into() })
}

fn map(len: usize, protection: i32, flags: i32, fd: i32) -> Result<Mapping, MemoryError> {
    // SAFETY: a new mapping at an address the system picks overlaps nothing.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(refused("mmap", len));
    }
    match NonNull::new(at.cast()) {
        Some(at) => Ok(Mapping { at, len }),
        None => Err(refused("mmap", len)),
    }
}

fn refused(call: &'static str, bytes: usize) -> MemoryError {
    MemoryError::Refused { call, bytes, reason: std::io::Error::last_os_error().to_string() }
}

fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::asm::{Assembler, Gpr};

    fn returns(value: i64) -> Vec<u8> {
        let mut asm = Assembler::new();
        asm.mov_imm(Gpr::RAX, value);
        asm.ret();
        asm.finish()
    }

    fn call(code: &Code) -> i64 {
        // SAFETY: the code is `returns`'s, which follows the C convention.
        let f: extern "C" fn() -> i64 = unsafe { std::mem::transmute(code.as_ptr()) };
        f()
    }

    #[test]
    fn code_runs_and_ranges_are_reused() {
        let arena = CodeArena::new();
        let codes: Vec<Code> = (0..1000).map(|i| arena.install(&returns(i << 20)).unwrap()).collect();
        for (i, code) in codes.iter().enumerate() {
            assert_eq!(call(code), (i as i64) << 20);
            assert_eq!(code.as_ptr() as usize % Assembler::ALIGN, 0);
        }
        let first = codes[0].as_ptr();
        drop(codes);
        let chunks = arena.shared.lock().chunks.len();
        assert!(arena.shared.lock().chunks.iter().all(|c| c.free == BTreeMap::from([(0, c.writable.len)])));
        let again: Vec<Code> = (0..1000).map(|i| arena.install(&returns(i)).unwrap()).collect();
        assert_eq!(again[0].as_ptr(), first);
        assert_eq!(arena.shared.lock().chunks.len(), chunks);
        assert!(again.iter().enumerate().all(|(i, c)| call(c) == i as i64));
    }

    #[test]
    fn code_larger_than_a_chunk() {
        let arena = CodeArena::new();
        let mut bytes = returns(7);
        bytes.resize(3 * CHUNK + 5, 0xcc);
        let code = arena.install(&bytes).unwrap();
        assert_eq!((call(&code), code.len()), (7, bytes.len()));
    }

    #[test]
    fn the_fallback_runs_too() {
        let arena = CodeArena::new();
        arena.shared.lock().single = true;
        let code = arena.install(&returns(-9)).unwrap();
        assert_eq!(call(&code), -9);
        assert!(arena.shared.lock().chunks.is_empty());
    }

    #[test]
    fn no_page_is_writable_and_executable() {
        let arena = CodeArena::new();
        let _code = arena.install(&returns(1)).unwrap();
        let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
        assert!(!maps.lines().any(|line| line.split_whitespace().nth(1).is_some_and(|p| p.starts_with("rwx"))));
    }

    #[test]
    fn many_threads_install_and_drop() {
        let arena = CodeArena::new();
        std::thread::scope(|s| {
            for t in 0..8 {
                let arena = &arena;
                s.spawn(move || {
                    for i in 0..500 {
                        let code = arena.install(&returns(t * 1000 + i)).unwrap();
                        assert_eq!(call(&code), t * 1000 + i);
                    }
                });
            }
        });
    }
}
