//! The kernel floor of Kiln: a graph is cut into kernels, and the kernels' memory is planned.
//!
//! ```text
//!  Graph ──prepare──▶ small products are sums, long reductions two steps
//!        ──materialise──▶ which nodes go through memory, and where they are stored
//!        ──fuse─────▶ groups of them, computed at the same points
//!        ──trace────▶ values: views are index arithmetic, pointwise ops are instructions
//!        ──stages───▶ Loop kernels      ──matmul──▶ Matmul kernels      ──routine──▶ Attention, Routine
//!        ──plan─────▶ offsets in one arena
//!        ──verify───▶ schedules and plans, from scratch, in debug builds and on demand
//! ```
//!
//! Invariants: a kernel never knows what its buffers hold; every materialised node is written by exactly the works listed for
//! it before it is read; a value computed in one iteration is never read by another one except through memory
//! that an earlier launch wrote.

mod assemble;
mod attention;
mod axes;
mod codec;
mod cost;
mod dag;
mod direct;
mod domain;
mod driver;
mod early;
mod explain;
mod fuse;
mod group;
mod hash;
mod index;
pub mod kernel;
mod materialise;
mod matmul;
mod memory_order;
mod order;
mod pages;
mod plan;
mod pointwise;
mod prepare;
mod print;
mod products;
mod reciprocal;
#[doc(hidden)]
pub mod reference;
mod repeat;
mod routine;
mod scaled;
pub mod schedule;
mod segments;
mod stages;
mod trace;
mod update;
pub mod verify;
mod work;
mod writes;

pub use driver::{Form, Observe, schedule, schedule_with};
pub use kernel::{Kernel, Precision};
pub use plan::{Plan, plan};
pub use schedule::{
    BufferDecl, BufferId, Error, InputLayout, Note, Numerics, ReadFrom, Reason, Role, Schedule, ScheduleOptions, Step,
    Target, Written,
};
pub use work::Work;

/// The version of this crate and a digest of its sources: part of every key of the disk cache.
pub const FINGERPRINT: &str = env!("KILN_FINGERPRINT");
