//! Capture: [`compile`] turns a function of tensors into programs by running it once on tensors that record instead of
//! computing.
//!
//! ```text
//!  call ─▶ guards of each program ─hit─▶ tree of segments ─▶ tensors
//!              └─miss─▶ run f on traced tensors ─▶ graph ─▶ passes, kernels, code ─▶ kept with its guards
//! ```
//!
//! While a function is captured on a thread, every operation there goes into the graph, with the line that asked for it. Tensors
//! with memory that it meets (weights) become inputs, found again by identity; variables become inputs too, and their
//! updates outputs that are written in place. Where the function reads elements the graph ends: this segment runs, the
//! function gets what it asked for, and the next segment begins (`tree`).
//!
//! Where sizes may be symbols, the function is recorded with them (`dynamic`): what it decides by a size becomes a guard. A function
//! that reads sizes as numbers is recorded at two sets of sizes, `symbolic` makes one graph of both, and sizes that are met
//! for the first time are checked by recording it again, which costs no compile.
//!
//! Invariants: a graph is recorded by one thread; nothing that ran for a call runs again for it.

mod bucketed;
mod bundle;
mod callable;
mod check;
mod code;
mod compiled;
mod cond;
mod disable;
mod driver;
mod dynamic;
mod explain;
mod guard;
mod held_bytes;
mod limits;
mod never_slower;
mod options;
mod part;
mod recording;
mod segment;
mod segment_compiler;
mod setting;
mod sizes;
mod stance;
mod symbolic;
mod tree;
mod watch;

pub use bundle::{Bundle, Leaf};
pub use callable::{Callable, Function, OwnError, WithOwnError, own_error};
pub use compiled::{Compiled, ProgramSummary, Stats, compile, compile_with};
pub use cond::cond;
pub use disable::{Disabled, disable};
pub use explain::explain;
pub use options::{Declared, Dynamic, Mode, Options};
pub(crate) use part::{Part, backward_of_argument, gradient_of_part};
pub use setting::Setting;
pub use stance::{Stance, StanceGuard, set_stance};

use crate::autograd::{Tape, no_grad, tape};
use crate::eager::{self, What, Write};
use crate::{DType, Device, Error, Generator, Result, Tensor, Var, dim};
use driver::Driver;
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{NodeId, Op, Source};
use kiln_runtime::{Buffer, HostMemory};
use recording::{Break, Recording};
use segment::SegmentGraph;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tree::{BranchGuard, Returned};

/// What a tensor without memory stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traced {
    recording: u32,
    value: u32,
    /// Where its memory will be.
    pub(crate) device: Device,
}

/// A capture under way.
struct Session {
    recording: Recording,
    /// Runs segments; without one, nothing can be read.
    driver: Option<Driver>,
}

/// A captured function.
struct Captured<R> {
    /// What had to run to get here, and did.
    driver: Option<Driver>,
    /// What is left to run.
    last: SegmentGraph,
    returned: Returned<R>,
}

/// What came of capturing.
enum Outcome<R> {
    Whole(Box<Captured<R>>),
    Broken(Break),
}

thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
}

/// Whether operations on this thread are recorded.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.get()
}

/// The buffer of tensors without memory.
#[cold]
pub(crate) fn no_memory() -> &'static Buffer {
    static EMPTY: LazyLock<Buffer> = LazyLock::new(|| HostMemory::allocate(0).expect("no bytes are always there"));
    &EMPTY
}

/// Computes on tensors with memory while a function is captured.
pub(crate) fn paused<T>(compute: impl FnOnce() -> T) -> T {
    struct Resume(bool);
    impl Drop for Resume {
        fn drop(&mut self) {
            ACTIVE.set(self.0);
        }
    }
    let _resume = Resume(ACTIVE.replace(false));
    compute()
}

/// Works on the capture under way, which is away meanwhile: what runs records nothing.
fn with_session<T>(at: &Source, work: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
    let Some(mut session) = SESSION.take() else { return Err(Error::Escaped { at: at.clone() }) };
    let result = paused(|| catch_unwind(AssertUnwindSafe(|| work(&mut session))));
    SESSION.set(Some(session));
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// The line of the call that the function is captured for, while it is.
pub(crate) fn call_site() -> Option<Source> {
    let at = |session: &Option<Session>| session.as_ref().map(|session| session.recording.at.clone());
    if is_active() { SESSION.with_borrow(at) } else { None }
}

/// Notes that the function being captured does what can be neither recorded nor run on the way.
#[cold]
pub(crate) fn break_at(what: &'static str, at: &Source) -> Error {
    let noted = with_session(at, |session| {
        session.recording.broken.get_or_insert(Break { what, at: at.clone() });
        Ok(())
    });
    if noted.is_ok() { Error::GraphBreak { what, at: at.clone() } } else { Error::Escaped { at: at.clone() } }
}

/// The elements of a traced tensor: what was recorded so far runs.
#[cold]
pub(crate) fn concrete(tensor: &Tensor, what: &'static str, at: &Source) -> Result<Tensor> {
    with_session(at, |session| {
        let from = session.settle(tensor, what, at)?;
        let Session { driver: Some(driver), .. } = session else { return Err(Error::Escaped { at: at.clone() }) };
        driver.ask(BranchGuard::Elements { of: from.clone(), what, at: at.clone() }, at)?;
        let read = driver.tensor(&from, at)?;
        // One flag is a decision; anything more is data, which may be found again in what follows.
        session.recording.has_read |= read.dtype() != DType::Bool || read.elements() != 1;
        Ok(read)
    })
}

/// A tensor of elements that the function being captured made after it had read some: data of this call and no constant of its
/// graph, so that other data does not take another program. Nothing where none was read.
#[cold]
pub(crate) fn data(bytes: &[u8], shape: &[usize], dtype: DType, device: Device, at: &Source) -> Result<Option<Tensor>> {
    with_session(at, |session| {
        if !session.recording.has_read {
            return Ok(None);
        }
        let data = Tensor::from_bytes_at(bytes, shape.to_vec(), dtype, device, at)?;
        let ty = data.ty();
        session.recording.outside(segment::InputSource::Data(data), ty, device, None, at).map(Some)
    })
}

/// The number of the argument that a traced tensor is, if it is one.
pub(crate) fn argument_number(tensor: &Tensor) -> Option<usize> {
    let at = Source::default();
    with_session(&at, |session| Ok(session.recording.argument_number(tensor))).ok().flatten()
}

/// A number that comes with the arguments, after their tensors.
pub(crate) fn extra_argument(number: usize, device: Device, at: &Source) -> Result<Tensor> {
    with_session(at, |session| session.recording.extra_argument(number, device, at))
}

/// What a variable is at this point of the function being captured.
#[cold]
pub(crate) fn read_var(var: &Var, at: &Source) -> Result<Tensor> {
    with_session(at, |session| session.recording.read_var(var, at))
}

/// The function being captured gives a variable another value.
#[cold]
pub(crate) fn write_var(var: &Var, tensor: &Tensor, at: &Source) -> Result<()> {
    with_session(at, |session| session.recording.write_var(var, tensor, at))
}

/// What the gradient of a variable is at this point of the function being captured.
#[cold]
pub(crate) fn read_gradient(var: &Var, at: &Source) -> Result<Option<Tensor>> {
    with_session(at, |session| {
        let mut is_there = false;
        if !session.recording.knows_gradient(var) {
            is_there = var.has_grad();
            if let Some(driver) = &mut session.driver {
                is_there = *driver.ask(BranchGuard::HasGradient(var.clone()), at)? == [1];
            }
        }
        session.recording.read_gradient(var, is_there, at)
    })
}

/// The function being captured gives the gradient of a variable another value.
#[cold]
pub(crate) fn write_gradient(var: &Var, tensor: Option<&Tensor>, at: &Source) -> Result<()> {
    with_session(at, |session| session.recording.write_gradient(var, tensor, at))
}

/// A new random key: another at each call.
#[cold]
pub(crate) fn random_key(generator: &Generator, device: Device, at: &Source) -> Result<Tensor> {
    with_session(at, |session| session.recording.key(generator, device, at))
}

/// Notes that the function depends on a setting.
#[cold]
fn read_setting(setting: &Setting, value: u64) -> u64 {
    let at = Source::default();
    let read = with_session(&at, |session| {
        let known = session.recording.settings.iter().find(|(known, _)| known.same(setting));
        if let Some((_, value)) = known {
            return Ok(*value);
        }
        let mut read = value;
        if let Some(driver) = &mut session.driver {
            let outcome = driver.ask(BranchGuard::Setting(setting.clone()), &at)?;
            read = outcome[..].try_into().map_or(value, u64::from_le_bytes);
        }
        session.recording.settings.push((setting.clone(), read));
        Ok(read)
    });
    read.unwrap_or(value)
}

/// Another tensor for the same value of the function being captured, with another tape.
#[cold]
pub(crate) fn alias(tensor: &Tensor, tape: Option<Tape>) -> Option<Tensor> {
    let at = Source::default();
    with_session(&at, |session| session.recording.alias(tensor, tape, &at)).ok()
}

/// Records an op without operands.
#[cold]
pub(crate) fn constant(op: Op, device: Device, at: &Source) -> Result<Tensor> {
    let write = |b: &mut GraphBuilder, _: &[NodeId]| Ok(vec![b.emit(op.clone(), &[])?]);
    Ok(record(What::Op(&op), &[], device, &write, at)?.swap_remove(0))
}

/// Records what `write` writes instead of running it.
#[cold]
pub(crate) fn record(
    what: What<'_>,
    operands: &[&Tensor],
    device: Device,
    write: Write<'_>,
    at: &Source,
) -> Result<Vec<Tensor>> {
    SESSION.with_borrow_mut(|slot| {
        let Some(Session { recording, .. }) = slot else { return Err(Error::Escaped { at: at.clone() }) };
        recording.builder().set_source(Some(what.source(at)));
        let failed = |cause| eager::refused(what, cause, at);
        let mut nodes = Vec::with_capacity(operands.len());
        for operand in operands {
            nodes.push(recording.node_of(operand, at)?);
        }
        let results = write(recording.builder(), &nodes).inspect_err(|cause| dim::scope::refused(cause, at));
        let mut results = results.map_err(failed)?;
        if !tape::is_enabled() {
            for result in &mut results {
                if nodes.contains(result) {
                    // An operand as it is: gradients do go past that.
                    let shape = recording.builder().graph().ty(*result).shape.clone();
                    *result = recording.builder().emit(Op::Reshape { shape }, &[*result]).map_err(failed)?;
                }
            }
            recording.stops.extend(&results);
        } else if !matches!(what, What::Op(_)) {
            recording.link(&nodes, &results);
        }
        results.into_iter().map(|node| recording.inside(node, device, at)).collect()
    })
}

/// A tensor with the same elements that gradients do not go past.
#[cold]
pub(crate) fn cut(tensor: &Tensor, at: &Source) -> Tensor {
    let same = Op::Reshape { shape: tensor.ty().shape };
    let write = |b: &mut GraphBuilder, inputs: &[NodeId]| Ok(vec![b.emit(same.clone(), inputs)?]);
    let made = no_grad(|| record(What::Op(&same), &[tensor], tensor.device(), &write, at));
    // What cannot be recorded says so when it is used.
    made.map_or_else(|_| tensor.clone(), |mut made| made.swap_remove(0))
}

/// A tensor with the same elements that is the start of a tape, also of the tapes that the function's results are on.
#[cold]
pub(crate) fn start(tensor: &Tensor) -> Tensor {
    let at = Source::default();
    let made = with_session(&at, |session| session.recording.start(tensor, &at));
    // What cannot be recorded says so when it is used.
    made.unwrap_or_else(|_| tensor.clone())
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

/// Whether gradients are recorded where the function being captured is called.
#[cold]
pub(crate) fn is_recorded(at: &Source) -> Result<bool> {
    with_session(at, |session| {
        let records = session.recording.records;
        if let Some(driver) = &mut session.driver
            && !session.recording.has_asked
        {
            session.recording.has_asked = true;
            driver.ask(BranchGuard::IsRecorded, at)?;
        }
        Ok(records)
    })
}

impl Session {
    /// Makes sure that a tensor has memory, and says where: the segment ends and runs if it has to.
    fn settle(&mut self, tensor: &Tensor, what: &'static str, at: &Source) -> Result<segment::InputSource> {
        let value = self.recording.value_of(tensor, at)?;
        self.may_break(what, at)?;
        if self.recording.settled(value).is_none() {
            let recorded = self.recording.end_segment(at)?;
            self.may_break(what, at)?.segment(recorded, at)?;
        }
        self.recording.settled(value).cloned().ok_or_else(|| Error::Escaped { at: at.clone() })
    }
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
    SESSION.set(Some(Session { recording, driver }));
    ACTIVE.set(true);
    let _relay = Source::relay(callable::FILE, at.clone());
    // Whether anything outside wants gradients is seen at each call.
    let returned = catch_unwind(AssertUnwindSafe(|| tape::with_enabled(true, || f(&traced))));
    ACTIVE.set(false);
    let Some(mut session) = SESSION.take() else { return Err(Error::Escaped { at: at.clone() }.into()) };
    // A function may hide the error of a break or panic because of it.
    if let Some(broken) = session.recording.broken.take() {
        return Ok(Outcome::Broken(broken));
    }
    // So it may where sizes cannot be symbols, which is no fault of it.
    if let Some(at) = dim::scope::stopped_at() {
        return Ok(Outcome::Broken(Break { what: "needs to know sizes", at }));
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
    let (last, places) = session.recording.finish(&tensors, at)?;
    // The tapes of the capture have served.
    let output = output.map_tensors(&mut |tensor| if tensor.is_traced() { tensor.detached() } else { tensor.clone() });
    let returned = Returned { output, places };
    Ok(Outcome::Whole(Box::new(Captured { driver: session.driver, last, returned })))
}
