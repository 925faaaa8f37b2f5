//! Seeing what the compiler did, and whether it was right. Graphs, programs and views of their inputs come in; reports go out.
//!
//! ```text
//!  explain  ──▶ one text or page: graphs, kernels with measured times, memory, code
//!  verify   ──▶ each kernel of a program against the interpreter; the first that is wrong
//!  bisect   ──▶ each pass against the interpreter; the first that is wrong
//!     └────┬────┘
//!        bounds ──▶ how far a correct result may be off, element by element
//! ```
//!
//! Invariants: nothing here is on the way of a call, so that what it costs is paid by whoever looks; nothing here changes what is
//! compiled; inputs are left as they are.

pub mod bisect;
pub mod bounds;
pub mod deviation;
pub mod error;
mod escape;
pub mod explain;
pub mod verify;

pub use bisect::{BisectReport, bisect};
pub use bounds::ErrorBounds;
pub use deviation::Deviation;
pub use error::{Error, Result};
pub use escape::escape_html;
pub use explain::Explanation;
pub use verify::{VerifyReport, verify};
