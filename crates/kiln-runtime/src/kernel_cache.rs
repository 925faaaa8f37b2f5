//! The process's kernels: a map from (target, kernel) to code. Equal kernels compile once; a compile in one thread does not
//! block another thread's hit.

use crate::disk::{self, Key, Kind};
use crate::event::{self, Category, Event};
use crate::{Backend, Device, Error, Executable, Variant, repeat};
use kiln_kernels::kernel::{Kernel, KernelBody};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};
use std::time::Instant;

/// The cache entry of one kernel.
#[derive(Default)]
struct Slot {
    /// Empty until it is compiled. The lock is held while compiling.
    code: Mutex<Option<Arc<dyn Executable>>>,
    /// When it was last requested.
    used: AtomicU64,
    /// Its size in bytes, once compiled; an estimate.
    bytes: AtomicUsize,
}

type Slots = HashMap<String, HashMap<Arc<Kernel>, Arc<Slot>>>;

static SLOTS: LazyLock<RwLock<Slots>> = LazyLock::new(RwLock::default);
static HITS: AtomicU64 = AtomicU64::new(0);
static MISSES: AtomicU64 = AtomicU64::new(0);
static NANOS: AtomicU64 = AtomicU64::new(0);
static CODE_BYTES: AtomicU64 = AtomicU64::new(0);
/// Counts look-ups, so that kernels have an age.
static CLOCK: AtomicU64 = AtomicU64::new(0);
/// Bytes of the kernels that are kept.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// The most kernels kept. Beyond that, the least recently used half of those that no program holds is dropped.
const KERNELS_KEPT: usize = 8192;
/// The most bytes of kernels kept, their code included; the same happens beyond it.
const BYTES_KEPT: usize = 128 << 20;
/// About the bytes of an instruction of a kernel.
const INSTRUCTION: usize = 64;

/// The retention of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Keep {
    /// On disk, for other processes.
    #[default]
    Disk,
    /// In this process alone: code may contain numbers that are valid only in it.
    Process,
}

/// Counters of the cache since the process began, and its size.
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
    /// About the bytes that kernels take now.
    pub bytes: usize,
}

/// The counters of the cache since the process began.
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
        bytes: KEPT.load(Ordering::Relaxed),
    }
}

/// The code of `kernel`, and whether it was compiled now. `label` names it in events. A failure is not kept: the next call
/// tries again.
pub fn get(backend: &dyn Backend, kernel: &Arc<Kernel>, label: &str) -> Result<(Arc<dyn Executable>, bool), Error> {
    get_kept(backend, kernel, label, Keep::Disk)
}

/// [`get`], with the given retention of the code.
pub fn get_kept(
    backend: &dyn Backend,
    kernel: &Arc<Kernel>,
    label: &str,
    keep: Keep,
) -> Result<(Arc<dyn Executable>, bool), Error> {
    find(backend, kernel, &Variant::default(), label, None, keep)
}

/// Compiles the kernels that have no code yet on as many threads as the backend takes at once. What fails is left to whoever asks
/// for its code.
pub(crate) fn prepare<'a>(
    backend: &dyn Backend,
    kernels: impl Iterator<Item = (&'a Arc<Kernel>, &'a str)>,
    keep: Keep,
) -> usize {
    let threads = backend.compile_threads();
    if threads < 2 {
        return 0;
    }
    let mut seen = HashSet::new();
    let mut list = Vec::new();
    for (kernel, label) in kernels.filter(|(kernel, _)| seen.insert(Arc::as_ptr(kernel))) {
        with_bodies(kernel, &mut |kernel| list.push((kernel.clone(), label)));
    }
    let compiled = AtomicUsize::new(0);
    on_threads(threads, &list, &|(kernel, label)| {
        let fresh = get_kept(backend, kernel, label, keep).is_ok_and(|(_, fresh)| fresh);
        compiled.fetch_add(usize::from(fresh), Ordering::Relaxed);
    });
    compiled.into_inner()
}

/// A kernel, or those that the body of a loop launches.
fn with_bodies(kernel: &Arc<Kernel>, visit: &mut dyn FnMut(&Arc<Kernel>)) {
    let KernelBody::Repeat(body) = &kernel.body else { return visit(kernel) };
    let copies = body.carried.iter().map(|carried| &carried.copy);
    for inner in body.all_launches().map(|launch| &launch.kernel).chain(copies) {
        with_bodies(&Arc::new(inner.clone()), visit);
    }
}

/// [`prepare`] for variants of kernels.
pub(crate) fn prepare_variants(backend: &dyn Backend, list: &[(&Arc<Kernel>, Variant, &str)], keep: Keep) {
    let threads = backend.compile_threads();
    if threads > 1 {
        // What cannot be compiled says so when it is asked for.
        on_threads(threads, list, &|(kernel, variant, label)| {
            let _ = get_variant(backend, kernel, variant, label, keep);
        });
    }
}

/// Compiles kernels that will be asked for soon, many of them as one text where the backend can do so, on as many threads as it takes
/// at once; for this process alone. What has code already is left as it is, and what cannot be compiled so is compiled when it
/// is asked for.
pub fn compile_ahead(backend: &dyn Backend, kernels: &[Arc<Kernel>]) {
    /// Kernels of one text: what they have in common is then little of the time.
    const TOGETHER: usize = 48;
    let chunks: Vec<&[Arc<Kernel>]> = kernels.chunks(TOGETHER).collect();
    on_threads(backend.compile_threads(), &chunks, &|chunk| {
        let list: Vec<&Kernel> = chunk.iter().map(|kernel| &**kernel).collect();
        let start = Instant::now();
        let made = backend.compile_together(&list);
        NANOS.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        for (kernel, (variant, code)) in chunk.iter().zip(made).filter_map(|(kernel, made)| Some((kernel, made?))) {
            let slot = slot(&target_of(backend, &variant), kernel);
            slot.used.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
            let mut place = slot.code.lock().unwrap_or_else(PoisonError::into_inner);
            if place.is_none() {
                CODE_BYTES.fetch_add(code.code_bytes() as u64, Ordering::Relaxed);
                slot.fill(&mut place, &code, kernel.insts().count());
            }
        }
    });
}

/// Does something for every item of a list, on several threads.
fn on_threads<T: Sync>(threads: usize, list: &[T], work: &(dyn Fn(&T) + Sync)) {
    let next = AtomicUsize::new(0);
    let take = || {
        while let Some(item) = list.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(item);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(list.len()) {
            scope.spawn(take);
        }
        take();
    });
}

/// [`get_variant`], for code that may come from another process: `saved` is what [`Executable::save`] returned there. Code
/// that was made of it does not count as compiled.
pub fn get_saved(
    backend: &dyn Backend,
    kernel: &Arc<Kernel>,
    variant: &Variant,
    label: &str,
    saved: Option<&[u8]>,
) -> Result<(Arc<dyn Executable>, bool), Error> {
    find(backend, kernel, variant, label, saved, Keep::Disk)
}

/// [`get_kept`] for one variant of the kernel.
pub fn get_variant(
    backend: &dyn Backend,
    kernel: &Arc<Kernel>,
    variant: &Variant,
    label: &str,
    keep: Keep,
) -> Result<(Arc<dyn Executable>, bool), Error> {
    find(backend, kernel, variant, label, None, keep)
}

fn find(
    backend: &dyn Backend,
    kernel: &Arc<Kernel>,
    variant: &Variant,
    label: &str,
    saved: Option<&[u8]>,
    keep: Keep,
) -> Result<(Arc<dyn Executable>, bool), Error> {
    if let KernelBody::Repeat(body) = &kernel.body {
        // Nothing of it is compiled but the kernels of its body, which are entries by themselves.
        return repeat::compile(backend, kernel, body, label, keep);
    }
    let target = target_of(backend, variant);
    let slot = slot(&target, kernel);
    slot.used.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    let mut code = slot.code.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = &*code {
        HITS.fetch_add(1, Ordering::Relaxed);
        return Ok((code.clone(), false));
    }
    let instructions = kernel.insts().count();
    // The kernels of a program that is stored are stored with it.
    let is_on_disk = keep == Keep::Disk && saved.is_none() && backend.is_stored(kernel, variant);
    let store = if is_on_disk { disk::store() } else { None };
    let stored = store.map(|store| (store, on_disk(backend, kernel, variant, label)));
    let found = stored.as_ref().and_then(|(store, key)| store.get(Kind::Kernel, key));
    if let Some(restored) = found.as_deref().or(saved).and_then(|saved| backend.restore(kernel, variant, saved)) {
        HITS.fetch_add(1, Ordering::Relaxed);
        slot.fill(&mut code, &restored, instructions);
        return Ok((restored, false));
    }
    let start = Instant::now();
    let made = backend.compile_variant(kernel, variant, keep).map_err(|error| named(error, label))?;
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
    if let (Some((store, key)), Some(saved)) = (stored, made.save()) {
        store.put(Kind::Kernel, &key, &saved);
    }
    slot.fill(&mut code, &made, instructions);
    Ok((made, true))
}

/// What is compiled for: the code of a kernel is kept under it.
fn target_of(backend: &dyn Backend, variant: &Variant) -> String {
    // Loaded code belongs to its device.
    let target = match backend.device() {
        Device::Cpu => backend.target(),
        device => format!("{} on {device}", backend.target()),
    };
    if variant.is_default() { target } else { format!("{target} ({variant})") }
}

/// An error of compilation that names the kernel.
fn named(error: Error, label: &str) -> Error {
    match error {
        Error::Compile { target, reason } => Error::Compile { target, reason: format!("{label}: {reason}") },
        other => other,
    }
}

fn on_disk(backend: &dyn Backend, kernel: &Kernel, variant: &Variant, label: &str) -> Key {
    Key::build()
        .part("target", &backend.target())
        .part("compiler", &backend.fingerprint())
        .part("variant", &variant.to_string())
        .hashed("kernel", kernel)
        .note("label", label)
        .finish()
}

/// Drops every kernel that no program holds, and frees its code. The next program that needs one compiles it again.
pub fn clear() {
    drop_unused(&mut SLOTS.write().unwrap_or_else(PoisonError::into_inner), u64::MAX);
}

/// Drops kernels that no program holds and that were last requested before `age`.
fn drop_unused(slots: &mut Slots, age: u64) {
    for kernels in slots.values_mut() {
        kernels.retain(|_, slot| {
            // A slot with another holder is about to be filled.
            let goes = Arc::strong_count(slot) == 1 && slot.is_unused() && slot.used.load(Ordering::Relaxed) < age;
            if goes {
                KEPT.fetch_sub(slot.bytes.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            !goes
        });
    }
    slots.retain(|_, kernels| !kernels.is_empty());
}

/// The median age of the kernels that no program holds.
fn middle_age(slots: &Slots) -> u64 {
    let unused = slots.values().flat_map(HashMap::values).filter(|slot| slot.is_unused());
    let mut ages: Vec<u64> = unused.map(|slot| slot.used.load(Ordering::Relaxed)).collect();
    let middle = ages.len() / 2;
    if ages.is_empty() { 0 } else { *ages.select_nth_unstable(middle).1 }
}

impl Slot {
    /// Stores the code; `place` is what its lock guards.
    fn fill(&self, place: &mut Option<Arc<dyn Executable>>, code: &Arc<dyn Executable>, instructions: usize) {
        let bytes = instructions * INSTRUCTION + code.code_bytes();
        self.bytes.store(bytes, Ordering::Relaxed);
        KEPT.fetch_add(bytes, Ordering::Relaxed);
        *place = Some(code.clone());
    }

    /// Whether no program holds its code. A locked slot is being compiled, so it is about to be used.
    fn is_unused(&self) -> bool {
        let Ok(code) = self.code.try_lock() else { return false };
        code.as_ref().is_none_or(|code| Arc::strong_count(code) == 1)
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
    let count = slots.values().map(HashMap::len).sum::<usize>();
    // With every kernel in use there is nothing to drop, so this is not tried at each new one.
    let is_time = count.is_multiple_of(64);
    if is_time && (count >= KERNELS_KEPT || KEPT.load(Ordering::Relaxed) >= BYTES_KEPT) {
        let age = middle_age(&slots);
        drop_unused(&mut slots, age.saturating_add(1));
    }
    slots.entry(target.to_owned()).or_default().entry(kernel.clone()).or_default().clone()
}
