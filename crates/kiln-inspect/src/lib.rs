//! Reports what the compiler did, and checks whether it was right. Input: graphs, programs and views of their inputs.
//! Output: reports.
//!
//! ```text
//!  explain  ──▶ one text or page: graphs, kernels with measured times, memory, code
//!  verify   ──▶ each kernel of a program against the interpreter; the first that is wrong
//!  bisect   ──▶ each pass against the interpreter; the first that is wrong
//!     └────┬────┘
//!        bounds ──▶ how far a correct result may be off, element by element
//! ```
//!
//! Invariants: nothing here runs during a call unless it is used; nothing here changes what is compiled; inputs are not
//! changed.

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
