//! Kernels of several bodies that do not depend on each other: their work is one region of the pool.

use crate::pool::{self, MOST_JOBS};
use crate::saved::{Piece, saved};
use kiln_ir::codec::from_bytes;
use kiln_runtime::{Executable, LaunchError, RawBuffer};
use std::cell::Cell;
use std::sync::Arc;

/// The code of each body, which takes all buffers of the kernel.
pub(crate) struct Beside {
    bodies: Vec<Arc<dyn Executable>>,
}

impl Beside {
    /// `None` for more bodies than the pool takes at once.
    pub fn new(bodies: Vec<Arc<dyn Executable>>) -> Option<Beside> {
        (bodies.len() <= MOST_JOBS).then_some(Beside { bodies })
    }

    /// Renders each body that has a text.
    fn describe(&self, text: fn(&dyn Executable) -> Option<String>) -> Option<String> {
        let section =
            |(at, body): (usize, &Arc<dyn Executable>)| text(&**body).map(|text| format!("# body {at}\n{text}"));
        let sections: Vec<String> = self.bodies.iter().enumerate().filter_map(section).collect();
        (!sections.is_empty()).then(|| sections.join("\n"))
    }
}

impl Executable for Beside {
    unsafe fn launch(&self, buffers: &[RawBuffer], sizes: &[i64]) -> Result<(), LaunchError> {
        let outcome = Cell::new(Ok(()));
        let job = |body: &dyn Executable| {
            // SAFETY: the caller's promise; no body writes what another one accesses.
            if let Err(error) = unsafe { body.launch(buffers, sizes) } {
                outcome.set(Err(error));
            }
        };
        let job = &job;
        let jobs: [_; MOST_JOBS] = std::array::from_fn(|at| move || job(&*self.bodies[at]));
        let jobs: [&dyn Fn(); MOST_JOBS] = std::array::from_fn(|at| &jobs[at] as &dyn Fn());
        pool::together(&jobs[..self.bodies.len()]);
        outcome.into_inner()
    }

    fn disassembly(&self) -> Option<String> {
        self.describe(|body| body.disassembly())
    }

    fn intermediate(&self) -> Option<String> {
        self.describe(|body| body.intermediate())
    }

    fn save(&self) -> Option<Vec<u8>> {
        let pieces = |body: &Arc<dyn Executable>| from_bytes::<Vec<Piece>>(&body.save()?).ok();
        saved(self.bodies.iter().filter_map(pieces).flatten().collect())
    }

    fn code_bytes(&self) -> usize {
        self.bodies.iter().map(|body| body.code_bytes()).sum()
    }
}
