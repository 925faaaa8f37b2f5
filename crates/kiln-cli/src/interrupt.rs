//! Ctrl-C. As a rule it ends the process at once, with exit code 130. Work that has something to say when it is called off asks
//! for a word first ([`during`]): the first Ctrl-C then calls it off, the second ends the process.

use kiln_llm::Cancel;
use signal_hook::SigId;
use signal_hook::consts::SIGINT;
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// 128 + SIGINT, as shells count.
pub const EXIT_CODE: u8 = 130;

static INTERRUPT: OnceLock<Interrupt> = OnceLock::new();

#[derive(Default)]
struct Interrupt {
    asked: Cancel,
    /// Whether a Ctrl-C ends the process.
    at_once: Arc<AtomicBool>,
    /// What lets the second end the process.
    escalation: Mutex<Option<SigId>>,
}

/// Begins to listen. Where that is not possible, Ctrl-C is as the system has it.
pub fn listen() {
    let interrupt = INTERRUPT.get_or_init(Interrupt::default);
    interrupt.at_once.store(true, Ordering::Relaxed);
    // In this order: whether it is the second is seen before the first is noted.
    let heard = flag::register_conditional_shutdown(SIGINT, EXIT_CODE.into(), interrupt.at_once.clone())
        .and_then(|_| flag::register(SIGINT, interrupt.asked.flag().clone()));
    if heard.is_ok() {
        interrupt.escalate(true);
    }
}

impl Interrupt {
    fn escalate(&self, wanted: bool) {
        let mut id = self.escalation.lock().unwrap_or_else(PoisonError::into_inner);
        match (wanted, id.take()) {
            (true, None) => *id = flag::register(SIGINT, self.at_once.clone()).ok(),
            (true, kept) => *id = kept,
            (false, Some(old)) => drop(signal_hook::low_level::unregister(old)),
            (false, None) => {}
        }
    }

    fn patient<T>(&self, work: impl FnOnce(&Cancel) -> T) -> T {
        struct Done<'a>(&'a Interrupt);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.at_once.store(true, Ordering::Relaxed);
            }
        }
        self.asked.reset();
        self.at_once.store(false, Ordering::Relaxed);
        let _done = Done(self);
        work(&self.asked)
    }
}

/// Does work that a first Ctrl-C calls off; says whether one came.
pub fn during<T>(work: impl FnOnce(&Cancel) -> T) -> (T, bool) {
    let interrupt = INTERRUPT.get_or_init(Interrupt::default);
    let result = interrupt.patient(work);
    (result, interrupt.asked.is_asked())
}

/// Runs work that Ctrl-C does not end by itself: it checks the flag, however often Ctrl-C is pressed.
pub fn held<T>(work: impl FnOnce(&Cancel) -> T) -> T {
    struct Again<'a>(&'a Interrupt);
    impl Drop for Again<'_> {
        fn drop(&mut self) {
            self.0.escalate(true);
        }
    }
    let interrupt = INTERRUPT.get_or_init(Interrupt::default);
    interrupt.escalate(false);
    let _again = Again(interrupt);
    interrupt.patient(work)
}

/// A signal that ends a process, unless it is held back: [`Ending::is_heard`] then says that it came.
pub struct Ending {
    signal: i32,
    heard: Arc<AtomicBool>,
}

impl Ending {
    /// For each of these signals; they end the process as long as `at_once` is set.
    pub fn listen(signals: &[i32], at_once: &Arc<AtomicBool>) -> io::Result<Vec<Ending>> {
        let ending = |&signal: &i32| {
            let heard = Arc::new(AtomicBool::new(false));
            flag::register_conditional_default(signal, at_once.clone())?;
            flag::register(signal, heard.clone())?;
            Ok(Ending { signal, heard })
        };
        signals.iter().map(ending).collect()
    }

    /// Whether it came.
    pub fn is_heard(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Ends the process as the signal would have.
    pub fn obey(&self) -> io::Result<()> {
        signal_hook::low_level::emulate_default_handler(self.signal)
    }
}

/// The command was called off: exit code 130, and nothing to say that was not said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;
