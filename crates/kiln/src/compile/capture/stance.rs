//! What compiled functions do when they have no program for a call: one setting for the process.

use std::sync::atomic::{AtomicU8, Ordering};

/// What a compiled function does when it has no program for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stance {
    /// Compiles when there is no program for the arguments.
    #[default]
    Default,
    /// Always runs the function eagerly.
    ForceEager,
    /// Runs the function eagerly instead of compiling.
    EagerOnRecompile,
    /// Returns an error instead of compiling: for services that compile all programs at the start.
    FailOnRecompile,
}

static STANCE: AtomicU8 = AtomicU8::new(0);

/// Restores the previous stance when dropped.
#[derive(Debug)]
#[must_use = "the stance ends when this is dropped; `keep` makes it last"]
pub struct StanceGuard {
    before: Option<u8>,
}

impl StanceGuard {
    /// Keeps the new stance: dropping the guard restores nothing.
    pub fn keep(mut self) {
        self.before = None;
    }
}

impl Drop for StanceGuard {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            STANCE.store(before, Ordering::Release);
        }
    }
}

/// Sets the stance of every compiled function of the process, until the guard is dropped.
///
/// ```
/// use kiln::{DType, Device, Error, Stance, Tensor, set_stance};
/// let fast = kiln::compile(|x: &Tensor| x.exp());
/// fast.call(&Tensor::ones(2, DType::F32, Device::Cpu)?)?;
/// let strict = set_stance(Stance::FailOnRecompile);
/// assert!(fast.call(&Tensor::ones(2, DType::F32, Device::Cpu)?).is_ok());
/// assert!(matches!(fast.call(&Tensor::ones(2, DType::F64, Device::Cpu)?), Err(Error::Recompile { .. })));
/// drop(strict);
/// assert!(fast.call(&Tensor::ones(2, DType::F64, Device::Cpu)?).is_ok());
/// # Ok::<(), kiln::Error>(())
/// ```
pub fn set_stance(stance: Stance) -> StanceGuard {
    StanceGuard { before: Some(STANCE.swap(stance as u8, Ordering::AcqRel)) }
}

/// The stance now.
pub(crate) fn stance() -> Stance {
    match STANCE.load(Ordering::Relaxed) {
        1 => Stance::ForceEager,
        2 => Stance::EagerOnRecompile,
        3 => Stance::FailOnRecompile,
        _ => Stance::Default,
    }
}
