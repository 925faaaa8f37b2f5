//! The disk cache: results of compiling and measuring, kept from process to process.
//!
//! ```text
//!  captured graph ──key──▶ programs/KEY ──hit──▶ Program        no passes, no scheduling, no code generation
//!  kernel         ──key──▶ kernels/KEY  ──hit──▶ machine code
//!  candidates     ──key──▶ tuning/KEY   ──hit──▶ the one that measured fastest
//! ```
//!
//! The folder is `$KILN_CACHE_DIR`, else `$XDG_CACHE_HOME/kiln`, else `~/.cache/kiln`; `KILN_CACHE=off` switches it off;
//! `KILN_CACHE_MAX_BYTES` bounds it. Invariants: a key is a digest of everything the entry depends on and of nothing else; what
//! is read was checked against the digest it was written with; a failure of the disk is never an error, always an event. The
//! digest detects damage, not malice: who may write to the folder may run code, so it must be trusted.

mod activity;
mod archive;
mod entry;
mod key;
mod ledger;
mod store;

pub use activity::Activity;
pub use archive::{ArchiveError, Exported, Imported};
pub use entry::{Damage, Entry};
pub use key::{About, Fact, Key, KeyBuilder, digest};
pub use store::{DEFAULT_MOST_BYTES, ImportError, Listed, Store};

use crate::environment;
use crate::event::{self, Category, Event};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Machine code of a kernel.
    Kernel,
    /// A whole program.
    Program,
    /// The outcome of a measurement.
    Tuning,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 3] = [Kind::Kernel, Kind::Program, Kind::Tuning];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Kernel => "kernel",
            Kind::Program => "program",
            Kind::Tuning => "tuning",
        }
    }

    /// The folder of its entries in a store.
    pub const fn folder(self) -> &'static str {
        match self {
            Kind::Kernel => "kernels",
            Kind::Program => "programs",
            Kind::Tuning => "tuning",
        }
    }

    const fn number(self) -> u32 {
        match self {
            Kind::Kernel => 1,
            Kind::Program => 2,
            Kind::Tuning => 3,
        }
    }

    fn from_number(number: u32) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

/// The payload of an entry of this process's store, if there is one.
///
/// ```
/// use kiln_runtime::disk::{self, Key, Kind, Store};
/// let folder = std::env::temp_dir().join(format!("kiln-doc-{}", std::process::id()));
/// disk::set_store(Some(Store::open(&folder, disk::DEFAULT_MOST_BYTES)?));
/// let key = Key::build().part("target", "cpu-avx2").part("shape", "1x4096x4096").note("label", "matmul").finish();
/// disk::put(Kind::Tuning, &key, b"tile 8x32");
/// assert_eq!(disk::get(Kind::Tuning, &key).as_deref(), Some(b"tile 8x32".as_slice()));
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn get(kind: Kind, key: &Key) -> Option<Vec<u8>> {
    store()?.get(kind, key)
}

/// Keeps a payload in this process's store, if there is one. A failure to write it is an event.
pub fn put(kind: Kind, key: &Key, payload: &[u8]) {
    if let Some(store) = store() {
        store.put(kind, key, payload);
    }
}

/// Removes an entry that is intact but whose payload could not be decoded, with an event.
pub fn reject(kind: Kind, key: &Key, reason: &str) {
    if let Some(store) = store() {
        store.reject(kind, key, reason);
    }
}

static STORE: LazyLock<RwLock<Option<Arc<Store>>>> = LazyLock::new(|| RwLock::new(from_environment()));

/// The store of this process; none when it is off.
pub fn store() -> Option<Arc<Store>> {
    STORE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Uses another store from now on, or none, regardless of the environment.
pub fn set_store(store: Option<Store>) {
    *STORE.write().unwrap_or_else(PoisonError::into_inner) = store.map(Arc::new);
}

/// The folder that the environment selects; none where it has no home for one.
pub fn folder_from_environment() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A relative XDG_CACHE_HOME is to be ignored, says its specification.
    let shared = || folder("XDG_CACHE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("kiln"));
    let home = || folder("HOME").filter(|path| path.is_absolute()).map(|path| path.join(".cache").join("kiln"));
    folder("KILN_CACHE_DIR").or_else(shared).or_else(home)
}

/// Whether the environment enables the disk cache: not with `KILN_CACHE=off`.
fn is_wanted() -> bool {
    !matches!(environment::CACHE.get().as_deref(), Some("off" | "0" | "false"))
}

/// The bound that the environment sets, or the default.
pub fn most_bytes_from_environment() -> u64 {
    environment::CACHE_MAX_BYTES.get().and_then(|value| value.parse().ok()).unwrap_or(DEFAULT_MOST_BYTES)
}

fn from_environment() -> Option<Arc<Store>> {
    let opened = match folder_from_environment() {
        _ if !is_wanted() => Err("KILN_CACHE says so".to_owned()),
        None => Err("no KILN_CACHE_DIR, XDG_CACHE_HOME or HOME in the environment".to_owned()),
        Some(folder) => Store::open(&folder, most_bytes_from_environment())
            .map_err(|error| format!("{}: {error}", folder.display())),
    };
    match opened {
        Ok(store) => Some(Arc::new(store)),
        Err(reason) => {
            report(|| Activity::Off { reason });
            None
        }
    }
}

fn report(activity: impl FnOnce() -> Activity) {
    event::emit(Category::Cache, || Event::DiskCache(activity()));
}

/// Counters of the disk cache since the process began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Entries found.
    pub hits: u64,
    /// Entries not found, damaged ones included.
    pub misses: u64,
    /// Entries written.
    pub stored: u64,
    /// Entries that could not be written.
    pub failed: u64,
    /// Files that were no entries.
    pub damaged: u64,
    /// Entries removed to keep the bound.
    pub evicted: u64,
    /// Number of scans of the folder.
    pub measured: u64,
}

#[derive(Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    stored: AtomicU64,
    failed: AtomicU64,
    damaged: AtomicU64,
    evicted: AtomicU64,
    measured: AtomicU64,
}

static STATS: LazyLock<Counts> = LazyLock::new(Counts::default);

/// The counters of the disk cache since the process began.
///
/// ```
/// let stats = kiln_runtime::disk::stats();
/// assert!(stats.damaged <= stats.misses);
/// ```
pub fn stats() -> Stats {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Stats {
        hits: count(&STATS.hits),
        misses: count(&STATS.misses),
        stored: count(&STATS.stored),
        failed: count(&STATS.failed),
        damaged: count(&STATS.damaged),
        evicted: count(&STATS.evicted),
        measured: count(&STATS.measured),
    }
}
