//! The frames of a program that no run uses, and a bound on the memory of all such frames of the process: beyond it the frames
//! of the least recently run programs are dropped. A program that runs keeps the frame it has just used, of any size.

use super::frame::Frame;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Default bound on the bytes of idle frames of the process.
pub const DEFAULT_MOST_BYTES: usize = 1 << 30;

static MOST: AtomicUsize = AtomicUsize::new(DEFAULT_MOST_BYTES);
/// Bytes of all frames; one that is running counts as it did when it was idle.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// Counts how often another program ran than before, so that frames have an age.
static CLOCK: AtomicU64 = AtomicU64::new(0);
/// All holders of frames.
static ALL: Mutex<Vec<Weak<Frames>>> = Mutex::new(Vec::new());

/// Bytes of memory that programs keep for their next runs, in the whole process.
///
/// ```
/// use kiln_runtime::idle;
/// assert!(idle::bytes() <= idle::most_bytes());
/// ```
pub fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

/// The bound on [`bytes`]; each program that runs may keep one frame beyond it.
pub fn most_bytes() -> usize {
    MOST.load(Ordering::Relaxed)
}

/// Sets the bound on [`bytes`]. Frames beyond it are dropped as programs run.
pub fn set_most_bytes(bytes: usize) {
    MOST.store(bytes, Ordering::Relaxed);
}

/// Drops all idle frames of the process; programs make new ones when they run.
pub fn clear() {
    free_until(0, None);
}

/// Bytes of one frame, as part of those of all.
#[derive(Default)]
pub(super) struct Counted(usize);

impl Counted {
    fn count(&self) -> usize {
        self.0
    }

    fn set(&mut self, bytes: usize) {
        BYTES.fetch_add(bytes, Ordering::Relaxed);
        BYTES.fetch_sub(self.0, Ordering::Relaxed);
        self.0 = bytes;
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.0 > 0 {
            BYTES.fetch_sub(self.0, Ordering::Relaxed);
        }
    }
}

/// Frames of one program.
#[derive(Default)]
pub(super) struct Frames {
    list: Mutex<Vec<Frame>>,
    used: AtomicU64,
    is_known: AtomicBool,
}

impl Frames {
    fn lock(&self) -> MutexGuard<'_, Vec<Frame>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the frame that `choose` names, if it names one.
    pub(super) fn take(&self, choose: impl FnOnce(&[Frame]) -> Option<usize>) -> Option<Frame> {
        let mut list = self.lock();
        choose(&list).map(|at| list.swap_remove(at))
    }

    /// Keeps a frame, of at most `most`. A program that runs repeatedly with the memory it has changes nothing that threads
    /// share.
    pub(super) fn put(self: &Arc<Frames>, mut frame: Frame, most: usize) {
        let (bytes, counted) = (frame.bytes(), frame.counted.count());
        if bytes != counted {
            frame.counted.set(bytes);
        }
        let mut list = self.lock();
        if list.len() >= most {
            return;
        }
        list.push(frame);
        drop(list);
        let last = CLOCK.load(Ordering::Relaxed);
        if self.used.load(Ordering::Relaxed) != last {
            self.used.store(CLOCK.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        if bytes == counted {
            return;
        }
        if !self.is_known.swap(true, Ordering::Relaxed) {
            let mut known = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            known.retain(|frames| frames.strong_count() > 0);
            known.push(Arc::downgrade(self));
        }
        if self::bytes() > most_bytes() {
            free_until(most_bytes(), Some(self));
        }
    }

    /// Drops all of them.
    pub(super) fn clear(&self) {
        self.keep(0);
    }

    /// Drops all but the last so many.
    fn keep(&self, count: usize) {
        let mut list = self.lock();
        let first = list.len().saturating_sub(count);
        let dropped: Vec<Frame> = list.drain(..first).collect();
        drop(list);
        drop(dropped);
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Drops the least recently used frames until no more than `most` bytes are left; of `own` the last stays.
#[cold]
fn free_until(most: usize, own: Option<&Arc<Frames>>) {
    let known = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let mut others: Vec<Arc<Frames>> = known.iter().filter_map(Weak::upgrade).collect();
    drop(known);
    others.retain(|frames| own.is_none_or(|own| !Arc::ptr_eq(own, frames)));
    others.sort_by_key(|frames| frames.used.load(Ordering::Relaxed));
    for frames in others {
        if bytes() <= most {
            return;
        }
        frames.clear();
    }
    if let Some(own) = own.filter(|_| bytes() > most) {
        own.keep(1);
    }
}
