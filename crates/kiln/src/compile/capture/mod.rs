//! Capture: [`compile`] turns a function of tensors into programs by running it once on tensors that record instead of
//! computing.
//!
//! ```text
//!  call ─▶ guards of each program ─hit─▶ tree of segments ─▶ tensors
//!              └─miss─▶ run f on traced tensors ─▶ graph ─▶ passes, kernels, code ─▶ kept with its guards
//! ```
//!
//! While a function is captured on a thread, every operation there is added to the graph, with its source line. Tensors
//! with memory that it uses (weights) become inputs, found again by identity; variables become inputs too, and their
//! updates outputs that are written in place. Where the function reads elements there is a graph break: this segment runs,
//! the function gets the elements, and the next segment begins (`tree`).
//!
//! Where sizes may be symbols, the function is recorded with them (`dynamic`): what it decides by a size becomes a guard. A
//! function that reads sizes as numbers is recorded at two sets of sizes, `symbolic` makes one graph of both, and new sizes
//! are checked by recording it again, without compiling.
//!
//! Invariants: a graph is recorded by one thread; nothing that ran for a call runs again for it.

mod breaks;
mod broken;
mod bucketed;
mod call;
mod callable;
mod check;
mod checkpointed;
mod code;
mod compiled;
mod cond;
mod decision;
mod disable;
mod driver;
mod dynamic;
mod entry;
mod explain;
mod guard;
mod held_bytes;
mod limit_record;
mod limits;
mod loops;
mod make;
mod never_slower;
mod numbers;
mod options;
mod part;
mod recompilations;
mod recording;
mod segment;
mod segment_compiler;
mod session;
mod sizes;
mod stance;
mod symbolic;
mod tree;
mod vmap;
mod watch;
mod while_loop;

pub use crate::tensor::bundle::{Bundle, Leaf};
pub use crate::tensor::setting::Setting;
pub use callable::{Callable, Function, OwnError, WithOwnError, own_error};
pub use compiled::{Compiled, ProgramSummary, Stats, compile, compile_with};
pub use cond::cond;
pub use disable::{Disabled, disable};
pub use explain::explain;
pub(crate) use loops::record_loop;
pub use loops::{Map, Scan, map, scan};
pub use options::{Declared, Dynamic, Mode, Options};
pub(crate) use session::{argument_number, call_site, extra_argument};
pub(crate) use stance::stance;
pub use stance::{Stance, StanceGuard, set_stance};
pub use vmap::{Vmap, vmap};
pub use while_loop::{WhileLoop, while_loop};

use crate::tensor::dim;
use crate::tensor::tape::{self, Switch, Tape};
use crate::{Error, Result, Tensor};
use driver::Driver;
use kiln_ir::Source;
use recording::{Break, Recording};
use segment::SegmentGraph;
use session::{Session, with_session};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tree::Returned;

/// A captured function.
struct Captured<R> {
    /// What had to run to get here, and did.
    driver: Option<Driver>,
    /// What is left to run.
    last: SegmentGraph,
    returned: Returned<R>,
    /// Whether the function asked for anything that is no argument and may be another at the next call.
    has_asked: bool,
}

/// What came of capturing.
enum Outcome<R> {
    Whole(Box<Captured<R>>),
    /// With what ran until then.
    Broken(Break, Option<Box<Driver>>),
}

/// Whether two tensors with memory are the same view of the same elements, on the same tape.
fn same_elements(a: &Tensor, b: &Tensor) -> bool {
    let same_tape = || match (a.tape(), b.tape()) {
        (Some(a), Some(b)) => a.same(b),
        (None, None) => true,
        _ => false,
    };
    a.same(b) || (a.dtype() == b.dtype() && a.buffer().same(b.buffer()) && a.layout() == b.layout() && same_tape())
}

/// Runs `f` on tensors that record, in place of the tensors of `arguments`. `types` may say other types for them, by number; those
/// with symbols are of the thread's [`dim::Scope`].
fn capture<A: Bundle, R: Bundle, E: From<Error>>(
    f: &dyn Fn(&A) -> Result<R, E>,
    arguments: &A,
    types: Option<&[kiln_ir::TensorType]>,
    driver: Option<Driver>,
    at: &Source,
) -> Result<Outcome<R>, E> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut recording = Recording::new(NEXT.fetch_add(1, Ordering::Relaxed), at);
    let mut driver = driver;
    if let Some(driver) = &mut driver
        && driver.ask_numbers(at)?
    {
        (recording.has_read, recording.has_asked) = (true, true);
    }
    let (mut number, mut failure) = (0, None);
    let mut tapes: Vec<(Tape, Tape)> = Vec::new();
    let traced = arguments.map_tensors(&mut |tensor| {
        let ty = types.and_then(|types| types.get(number)).cloned().unwrap_or_else(|| tensor.ty());
        let tape = tensor.tape().filter(|_| guard::is_taped(tensor)).map(|outside| {
            // Arguments on one tape are on one here, too.
            let known = tapes.iter().find(|(known, _)| outside.same(known)).map(|(_, tape)| tape.clone());
            let tape = known.unwrap_or_else(|| Tape::argument(number));
            tapes.push((outside.clone(), tape.clone()));
            tape
        });
        number += 1;
        let from = segment::InputSource::Argument(number - 1);
        recording.outside(from, ty, tensor.device(), tape, at).unwrap_or_else(|error| {
            failure = Some(error);
            tensor.clone()
        })
    });
    if let Some(error) = failure {
        return Err(error.into());
    }
    let _relay = Source::relay(callable::FILE, at.clone());
    // Whether anything outside wants gradients is seen at each call.
    let call = || {
        catch_unwind(AssertUnwindSafe(|| {
            tape::with_switch(Switch::AsCaller, || {
                let output = f(&traced)?;
                // Numbers that it returns are computed while it is captured.
                output.leaves(&mut |_| ());
                Ok(output)
            })
        }))
    };
    let (mut returned, session) = session::within(Session { recording, driver }, call);
    let Some(mut session) = session else { return Err(Error::Escaped { at: at.clone() }.into()) };
    // A function may hide the error of a break or panic because of it.
    if let Some(broken) = session.recording.broken.take() {
        return Ok(Outcome::Broken(broken, session.driver.map(Box::new)));
    }
    // A comparison has no way to say that it failed.
    if let Some(error) = session.recording.failure.take() {
        returned = Ok(Err(error.into()));
    }
    // So it may where sizes cannot be symbols, which is no fault of it.
    let has_failed = session.driver.as_ref().is_some_and(Driver::has_failed) && matches!(returned, Ok(Err(_)));
    if let Some(at) = dim::scope::refused_at().filter(|_| !has_failed) {
        let broken = Break { what: driver::SIZES_NEEDED, at };
        return Ok(Outcome::Broken(broken, session.driver.map(Box::new)));
    }
    let output = match returned.unwrap_or_else(|panic| resume_unwind(panic)) {
        Ok(output) => output,
        Err(error) => {
            // What it did before it failed is done.
            if let Some(driver) = session.driver.as_mut().filter(|driver| driver.may_run()) {
                driver.segment(session.recording.finish(&[], at)?.0, at)?;
            }
            return Err(error);
        }
    };
    let mut tensors = Vec::new();
    output.leaves(&mut |leaf| {
        if let Leaf::Tensor(tensor) = leaf {
            tensors.push(tensor);
        }
    });
    let (last, places) = match session.recording.finish(&tensors, at) {
        Ok(finished) => finished,
        Err(error) => {
            let Some(broken) = session.recording.broken.take().filter(Break::is_refusal) else {
                return Err(error.into());
            };
            return Ok(Outcome::Broken(broken, session.driver.map(Box::new)));
        }
    };
    // The tapes of the capture have served.
    let output = output.map_tensors(&mut |tensor| if tensor.is_traced() { tensor.detached() } else { tensor.clone() });
    if let Some(made) = session.recording.kept_local() {
        return Err(Error::KeptVariable { made: made.clone(), at: at.clone() }.into());
    }
    let returned = Returned { output, places, cuts: OnceLock::new() };
    Ok(Outcome::Whole(Box::new(Captured {
        driver: session.driver,
        last,
        returned,
        has_asked: session.recording.has_asked,
    })))
}
