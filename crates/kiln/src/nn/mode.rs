//! Whether a module is being trained.

use crate::Setting;

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
pub struct Mode(Setting);

impl Mode {
    /// In training.
    pub fn new() -> Mode {
        Mode(Setting::new(1))
    }

    /// Whether the module is being trained.
    pub fn is_training(&self) -> bool {
        self.0.get() == 1
    }

    /// Sets it.
    pub fn set_training(&self, training: bool) {
        self.0.set(training as u64);
    }
}

impl Default for Mode {
    fn default() -> Mode {
        Mode::new()
    }
}
