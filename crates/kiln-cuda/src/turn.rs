//! Whose turn it is: everything on a GPU has one order, whichever streams it is queued on, so that memory which was given back may be
//! used by whatever is queued next.
//!
//! ```text
//!  own stream     ──launch──launch──●                 ╭─▶ launch──
//!                                    ╲ waits for       │
//!  caller's stream                    ╰─▶ launch──launch──●
//! ```
//!
//! A thread takes a turn to queue something on the GPU's own stream, and for the whole of a call on a stream of its caller's. Where the
//! turn before was on another stream, the new one waits for its end on the device; the host waits for nothing but the lock.
//!
//! What a caller captures as a graph of his own is not in this order: it runs when he launches it. Memory of such launches is never given
//! back, and the caller orders them after what came before, as with any other capture.

use crate::device::{Event, Gpu};
use crate::driver::{RawContext, RawStream, Result, driver};
use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Calls of the driver that are safe for a capture on another thread are allowed on this one.
const RELAXED: i32 = 2;
/// What the driver says of a stream that captures.
const CAPTURES: i32 = 1;

/// How streams are made to wait for each other.
trait Streams {
    /// Marks the end of what is queued on a stream.
    fn mark(&self, stream: RawStream) -> Result<()>;

    /// Makes what is queued on a stream from now on wait for the mark.
    fn wait_for_mark(&self, stream: RawStream) -> Result<()>;
}

/// The turn before.
struct Before {
    stream: RawStream,
    /// Whether its end is marked.
    is_marked: bool,
}

impl Before {
    /// Begins a turn on a stream.
    fn begin(&mut self, stream: RawStream, streams: &impl Streams) -> Result<()> {
        if self.stream != stream {
            if !self.is_marked {
                streams.mark(self.stream)?;
                self.is_marked = true;
            }
            streams.wait_for_mark(stream)?;
        }
        *self = Before { stream, is_marked: false };
        Ok(())
    }

    /// Ends a turn on a stream that may be destroyed before the next one.
    fn end(&mut self, streams: &impl Streams) -> Result<()> {
        streams.mark(self.stream)?;
        self.is_marked = true;
        Ok(())
    }
}

/// The turns of a GPU.
pub(crate) struct Turns {
    before: Mutex<Before>,
    mark: Event,
}

// SAFETY: streams and events may be used from any thread.
unsafe impl Send for Turns {}
// SAFETY: as above.
unsafe impl Sync for Turns {}

impl Turns {
    /// The turns of a GPU with a stream of its own, in which nothing is queued.
    pub(crate) fn new(stream: RawStream, mark: Event) -> Turns {
        Turns { before: Mutex::new(Before { stream, is_marked: false }), mark }
    }

    fn lock(&self) -> MutexGuard<'_, Before> {
        self.before.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Streams for Turns {
    fn mark(&self, stream: RawStream) -> Result<()> {
        self.mark.record(stream)
    }

    fn wait_for_mark(&self, stream: RawStream) -> Result<()> {
        self.mark.hold(stream)
    }
}

/// A turn: what is queued on its stream is ordered.
pub(crate) struct Turn<'a> {
    pub(crate) stream: RawStream,
    _lock: Option<MutexGuard<'a, Before>>,
}

/// A call on a stream of the caller's.
#[derive(Clone, Copy)]
struct Call {
    gpu: u32,
    stream: RawStream,
    is_captured: bool,
}

thread_local! {
    /// The call that this thread is in.
    static CALL: Cell<Option<Call>> = const { Cell::new(None) };
}

impl Gpu {
    fn call(&self) -> Option<Call> {
        CALL.get().filter(|call| call.gpu == self.ordinal)
    }

    /// Takes a turn. A thread has one at a time: nothing that takes another is called before it ends.
    pub(crate) fn turn(&self) -> Result<Turn<'_>> {
        self.enter()?;
        if let Some(call) = self.call() {
            return Ok(Turn { stream: call.stream, _lock: None });
        }
        let mut before = self.turns.lock();
        before.begin(self.own_stream(), &self.turns)?;
        Ok(Turn { stream: self.own_stream(), _lock: Some(before) })
    }

    /// Whether the caller captures what this thread queues.
    pub(crate) fn is_captured(&self) -> bool {
        self.call().is_some_and(|call| call.is_captured)
    }

    /// Runs something whose launches go to a stream of the caller's. His context and his mode of capture are as before when it returns.
    pub(crate) fn on_stream<T>(&self, stream: RawStream, run: impl FnOnce() -> T) -> Result<T> {
        let driver = driver()?;
        let mut context: RawContext = std::ptr::null_mut();
        // SAFETY: a place to write to.
        unsafe { driver.get_context(&mut context) }?;
        self.enter_again()?;
        let is_captured = is_capturing(stream)?;
        let mut call = Running { gpu: self, context, mode: None, before: None, outer: CALL.get() };
        if is_captured {
            call.exchange_mode(RELAXED)?;
        } else {
            let before = call.before.insert(self.turns.lock());
            before.begin(stream, &self.turns)?;
        }
        CALL.set(Some(Call { gpu: self.ordinal, stream, is_captured }));
        let result = run();
        call.end()?;
        Ok(result)
    }
}

/// Whether a stream captures; the default stream never does.
fn is_capturing(stream: RawStream) -> Result<bool> {
    if stream.is_null() {
        return Ok(false);
    }
    let mut status = 0;
    // SAFETY: a place to write to, and a stream of the caller's.
    unsafe { driver()?.is_capturing(stream, &mut status) }?;
    Ok(status == CAPTURES)
}

/// A call that runs; what it changed of the thread is put back at its end, whatever happens in it.
struct Running<'a> {
    gpu: &'a Gpu,
    /// The caller's.
    context: RawContext,
    /// The caller's, where it was changed.
    mode: Option<i32>,
    before: Option<MutexGuard<'a, Before>>,
    outer: Option<Call>,
}

impl Running<'_> {
    fn exchange_mode(&mut self, mut mode: i32) -> Result<()> {
        // SAFETY: a place to read from and to write to.
        unsafe { driver()?.exchange_capture_mode(&mut mode) }?;
        self.mode = Some(mode);
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        match &mut self.before {
            Some(before) => before.end(&self.gpu.turns),
            None => Ok(()),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        CALL.set(self.outer);
        if let Some(mode) = self.mode.take() {
            let _ = self.exchange_mode(mode);
        }
        self.gpu.leave(self.context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// What was asked of the streams, by number.
    #[derive(Default)]
    struct Asked(RefCell<Vec<(&'static str, usize)>>);

    impl Streams for Asked {
        fn mark(&self, stream: RawStream) -> Result<()> {
            self.0.borrow_mut().push(("mark", stream.addr()));
            Ok(())
        }

        fn wait_for_mark(&self, stream: RawStream) -> Result<()> {
            self.0.borrow_mut().push(("wait", stream.addr()));
            Ok(())
        }
    }

    fn stream(number: usize) -> RawStream {
        std::ptr::without_provenance_mut(number)
    }

    #[test]
    fn a_turn_on_another_stream_waits_for_the_one_before() {
        let (asked, mut before) = (Asked::default(), Before { stream: stream(1), is_marked: false });
        before.begin(stream(1), &asked).unwrap();
        assert_eq!(asked.0.take(), [], "one stream needs nothing");
        before.begin(stream(2), &asked).unwrap();
        assert_eq!(asked.0.take(), [("mark", 1), ("wait", 2)]);
        before.end(&asked).unwrap();
        assert_eq!(asked.0.take(), [("mark", 2)], "while the stream is there");
        before.begin(stream(2), &asked).unwrap();
        assert_eq!(asked.0.take(), []);
        before.end(&asked).unwrap();
        before.begin(stream(3), &asked).unwrap();
        assert_eq!(asked.0.take(), [("mark", 2), ("wait", 3)], "marked once");
        before.begin(stream(1), &asked).unwrap();
        assert_eq!(asked.0.take(), [("mark", 3), ("wait", 1)]);
    }
}
