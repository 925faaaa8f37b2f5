//! The process's kernels: a map from (target, kernel) to code. Equal kernels compile once, whoever asks first; a compile
//! in one thread does not hold up another thread's hit.

use crate::disk::{self, Key, Kind};
use crate::event::{self, Category, Event};
use crate::{Backend, Error, Executable, Variant};
use kiln_kernels::kernel::Kernel;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::Instant;

/// One kernel's place: empty until somebody has compiled it. The lock is held while compiling.
type Slot = Mutex<Option<Arc<dyn Executable>>>;
type Slots = HashMap<String, HashMap<Arc<Kernel>, Arc<Slot>>>;

static SLOTS: LazyLock<RwLock<Slots>> = LazyLock::new(RwLock::default);
static HITS: AtomicU64 = AtomicU64::new(0);
static MISSES: AtomicU64 = AtomicU64::new(0);
static NANOS: AtomicU64 = AtomicU64::new(0);
static CODE_BYTES: AtomicU64 = AtomicU64::new(0);

/// Kernels kept. Beyond that, those that no program holds go.
const KERNELS_KEPT: usize = 8192;
/// Instructions from which on a kernel is kept on disk by itself: smaller ones are made as fast as they are read. Those of a
/// program that is kept are kept with it.
const WORTH_KEEPING: usize = 64;

/// What the cache did since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Kernels found.
    pub hits: u64,
    /// Kernels compiled.
    pub misses: u64,
    /// Nanoseconds spent compiling.
    pub compile_nanos: u64,
    /// Bytes of code made.
    pub code_bytes: u64,
}

/// What the cache did since the process began.
///
/// ```
/// let stats = kiln_runtime::kernel_cache::stats();
/// assert!(stats.hits + stats.misses >= stats.misses);
/// ```
pub fn stats() -> Stats {
    Stats {
        hits: HITS.load(Ordering::Relaxed),
        misses: MISSES.load(Ordering::Relaxed),
        compile_nanos: NANOS.load(Ordering::Relaxed),
        code_bytes: CODE_BYTES.load(Ordering::Relaxed),
    }
}

/// Code for `kernel`, and whether it had to be compiled now. `label` names it in events. A failure is not kept: asking
/// again tries again.
pub fn get(backend: &dyn Backend, kernel: &Arc<Kernel>, label: &str) -> Result<(Arc<dyn Executable>, bool), Error> {
    find(backend, kernel, &Variant::default(), label, None)
}

/// [`get`], for a kernel whose code may have come from another process: `saved` is what [`Executable::save`] gave there.
/// Code that was made of it does not count as compiled.
pub fn get_saved(
    backend: &dyn Backend,
    kernel: &Arc<Kernel>,
    label: &str,
    saved: Option<&[u8]>,
) -> Result<(Arc<dyn Executable>, bool), Error> {
    find(backend, kernel, &Variant::default(), label, saved)
}

/// [`get`] for one way to run the kernel.
pub fn get_variant(
    backend: &dyn Backend,
    kernel: &Arc<Kernel>,
    variant: &Variant,
    label: &str,
) -> Result<(Arc<dyn Executable>, bool), Error> {
    find(backend, kernel, variant, label, None)
}

fn find(
    backend: &dyn Backend,
    kernel: &Arc<Kernel>,
    variant: &Variant,
    label: &str,
    saved: Option<&[u8]>,
) -> Result<(Arc<dyn Executable>, bool), Error> {
    let mut target = backend.target();
    if !variant.is_default() {
        target = format!("{target} ({variant})");
    }
    let slot = slot(&target, kernel);
    let mut code = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = &*code {
        HITS.fetch_add(1, Ordering::Relaxed);
        return Ok((code.clone(), false));
    }
    let key = (variant.is_default() && saved.is_none() && kernel.insts().count() >= WORTH_KEEPING)
        .then(|| on_disk(backend, kernel, label));
    let found = key.as_ref().and_then(|key| disk::get(Kind::Kernel, key));
    if let Some(restored) = found.as_deref().or(saved).and_then(|saved| backend.restore(kernel, saved)) {
        HITS.fetch_add(1, Ordering::Relaxed);
        *code = Some(restored.clone());
        return Ok((restored, false));
    }
    let start = Instant::now();
    let made = backend.compile_variant(kernel, variant)?;
    let took = start.elapsed();
    MISSES.fetch_add(1, Ordering::Relaxed);
    NANOS.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
    CODE_BYTES.fetch_add(made.code_bytes() as u64, Ordering::Relaxed);
    event::emit(Category::Kernels, || Event::KernelCompiled {
        target,
        label: label.to_owned(),
        code_bytes: made.code_bytes(),
        took,
    });
    if let (Some(key), Some(saved)) = (key, made.save()) {
        disk::put(Kind::Kernel, &key, &saved);
    }
    *code = Some(made.clone());
    Ok((made, true))
}

fn on_disk(backend: &dyn Backend, kernel: &Kernel, label: &str) -> Key {
    Key::build()
        .part("target", &backend.target())
        .part("compiler", &backend.fingerprint())
        .hashed("kernel", kernel)
        .note("label", label)
        .finish()
}

/// Forgets every kernel that no program holds, and frees its code. The next program that needs one compiles it again.
pub fn clear() {
    drop_unused(&mut SLOTS.write().unwrap_or_else(PoisonError::into_inner));
}

fn drop_unused(slots: &mut Slots) {
    for kernels in slots.values_mut() {
        // A slot that is locked is being compiled, so somebody is about to hold its code.
        kernels.retain(|_, slot| match slot.try_lock() {
            Ok(code) => code.as_ref().is_some_and(|code| Arc::strong_count(code) > 1),
            Err(_) => true,
        });
    }
}

fn slot(target: &str, kernel: &Arc<Kernel>) -> Arc<Slot> {
    {
        let slots = SLOTS.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(target).and_then(|kernels| kernels.get(kernel)) {
            return slot.clone();
        }
    }
    let mut slots = SLOTS.write().unwrap_or_else(PoisonError::into_inner);
    if slots.values().map(HashMap::len).sum::<usize>() >= KERNELS_KEPT {
        drop_unused(&mut slots);
    }
    slots.entry(target.to_owned()).or_default().entry(kernel.clone()).or_default().clone()
}
