//! Whether a module is being trained.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag of a module that behaves otherwise in training than in use: dropout, batch norm, or one of your own that has such
/// a field. [`super::Module::train`] and [`super::Module::eval`] set all the flags of a module. Clones are the same flag. It starts
/// in training.
///
/// ```
/// use kiln::nn::{Mode, Module};
/// #[derive(Module)]
/// struct Noisy { mode: Mode }
/// let layer = Noisy { mode: Mode::new() };
/// assert!(layer.mode.is_training());
/// layer.eval();
/// assert!(!layer.mode.is_training());
/// ```
#[derive(Debug, Clone)]
pub struct Mode(Arc<AtomicBool>);

impl Mode {
    /// In training.
    pub fn new() -> Mode {
        Mode(Arc::new(AtomicBool::new(true)))
    }

    /// Whether the module is being trained.
    pub fn is_training(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sets it.
    pub fn set_training(&self, training: bool) {
        self.0.store(training, Ordering::Relaxed);
    }
}

impl Default for Mode {
    fn default() -> Mode {
        Mode::new()
    }
}
