//! Packed copies of weights in the whole process: programs that read one weight in one layout share a copy, and all copies together
//! are bounded. Beyond the bound weights are read where they lie, and an event says so.
//!
//! ```text
//!  program of 64 rows ──┐
//!                       ├──▶ slot (variable, layout) ──▶ copy of the variable's version, while a program reads it
//!  program of 256 rows ─┘
//! ```

use crate::buffer::WeakBuffer;
use crate::{Buffer, Device, Error, environment};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

/// Bound on the bytes of packed copies of the process where `KILN_PACKED_MAX_BYTES` does not say another.
pub const DEFAULT_MOST_BYTES: usize = 1 << 30;

static MOST: LazyLock<AtomicUsize> = LazyLock::new(|| {
    let asked = environment::PACKED_MAX_BYTES.get().and_then(|value| value.parse().ok());
    AtomicUsize::new(asked.unwrap_or(DEFAULT_MOST_BYTES))
});
static SLOTS: LazyLock<Mutex<Slots>> = LazyLock::new(Mutex::default);

/// Bytes of the packed copies that the programs of the process read, each counted once. A program counts from when it is made to when it
/// is dropped.
///
/// ```
/// use kiln_runtime::packed;
/// assert!(packed::bytes() <= packed::most_bytes());
/// ```
pub fn bytes() -> usize {
    slots().bytes
}

/// The bound on [`bytes`].
pub fn most_bytes() -> usize {
    MOST.load(Ordering::Relaxed)
}

/// Sets the bound on [`bytes`], for programs that are made from now on: they read weights where they lie beyond it. With 0 nothing is
/// packed.
pub fn set_most_bytes(bytes: usize) {
    MOST.store(bytes, Ordering::Relaxed);
}

#[derive(Default)]
struct Slots {
    /// Those that programs share.
    shared: HashMap<Key, Weak<Slot>>,
    /// Bytes of all, shared or not.
    bytes: usize,
}

/// What a copy is made of: the number of a variable, and the key of a [`crate::Packing`].
#[derive(PartialEq, Eq, Hash, Clone)]
struct Key {
    device: Device,
    variable: u64,
    packing: String,
}

fn slots() -> MutexGuard<'static, Slots> {
    SLOTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The place of one packed copy, for the programs that read it.
pub(crate) struct Slot {
    key: Option<Key>,
    bytes: usize,
    /// The copy that was made last, as long as somebody has it, and the version of the variable.
    made: Mutex<Option<(u64, WeakBuffer)>>,
}

impl Slot {
    /// Returns the slot of a packing of the variable with this number, or one of its own for what is no variable; none where its bytes
    /// would be beyond the bound.
    pub fn reserve(device: Device, variable: Option<u64>, packing: &str, bytes: usize) -> Option<Arc<Slot>> {
        let key = variable.map(|variable| Key { device, variable, packing: packing.to_owned() });
        let mut slots = slots();
        if let Some(slot) = key.as_ref().and_then(|key| slots.shared.get(key)).and_then(Weak::upgrade) {
            return Some(slot);
        }
        let total = slots.bytes.checked_add(bytes).filter(|&total| total <= most_bytes())?;
        slots.bytes = total;
        let slot = Arc::new(Slot { key: key.clone(), bytes, made: Mutex::default() });
        if let Some(key) = key {
            slots.shared.insert(key, Arc::downgrade(&slot));
        }
        Some(slot)
    }

    /// Returns the copy of this version of the variable: another program's, or the one that `make` makes.
    pub fn get(&self, version: u64, make: impl FnOnce() -> Result<Buffer, Error>) -> Result<Buffer, Error> {
        if self.key.is_none() {
            return make();
        }
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((own, buffer)) = &*made
            && *own == version
            && let Some(buffer) = buffer.upgrade()
        {
            return Ok(buffer);
        }
        let buffer = make()?;
        *made = Some((version, buffer.downgrade()));
        Ok(buffer)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = slots();
        slots.bytes -= self.bytes;
        // Another one may have come in its place since nobody has this one.
        if let Some(key) = &self.key
            && slots.shared.get(key).is_some_and(|slot| slot.strong_count() == 0)
        {
            slots.shared.remove(key);
        }
    }
}
