//! The runtime floor of Kiln: memory, backends, compiled programs and events.
//!
//! ```text
//!  Graph ──schedule──▶ kernels ──Backend::compile──▶ Executable ─┐
//!                         │          (kernel_cache)              ├──▶ Program ──run──▶ Buffers
//!                         └────────plan──▶ arena offsets ────────┘
//! ```
//!
//! Invariants: nothing here knows what an op means; every size that reaches a kernel was checked against the buffers of
//! that call; a kernel compiles once per process and target.

pub mod backend;
pub mod buffer;
pub mod device;
pub mod disk;
pub mod environment;
pub mod error;
pub mod event;
pub mod host;
pub mod kernel_cache;
mod missing;
pub mod packed;
mod packer;
mod pages;
pub mod phase;
pub mod program;
mod queued;
pub mod reference;
mod rehearsal;
mod repeat;
pub mod sites;
mod sizing;
mod slab;
pub mod tune;
pub mod variant;

pub use backend::{Backend, Executable, Launch, LaunchError, Recording};
pub use buffer::{ALIGNMENT, Buffer, MOST_BY_VALUE, Memory, PendingRead, RawBuffer};
pub use device::{Device, UnknownDevice};
pub use error::{Error, Result};
pub use host::HostMemory;
pub use kernel_cache::Keep;
pub use missing::MissingBackend;
pub use packer::{PackOptions, Packer};
pub use program::{
    BuildTimes, CompiledStep, InputView, Inputs, Inspection, OutputShapes, PinKey, Pinned, PinnedRaw, Produced,
    Program, RawInput, RestoreError, idle,
};
pub use queued::QueuedBackend;
pub use reference::{ReferenceBackend, ReferenceSchedules};
pub use rehearsal::Rehearsal;
pub use tune::{TuneReport, TunedFrom, TunedKernel};
pub use variant::{Packing, Pays, Variant};

/// The version of this crate and a digest of its sources: part of every key of the disk cache.
pub const FINGERPRINT: &str = env!("KILN_FINGERPRINT");
