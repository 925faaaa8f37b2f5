//! Training and evaluation mode.

use crate::Setting;

/// The training flag of a module that behaves differently in training and in evaluation, such as dropout or batch norm. Any
/// module may have such a field. [`super::Module::train`] and [`super::Module::eval`] set all flags of a module. Clones
/// share the flag. It starts in training mode.
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
    /// Makes a flag in training mode.
    pub fn new() -> Mode {
        Mode(Setting::new(1))
    }

    /// Returns whether the module is in training mode.
    pub fn is_training(&self) -> bool {
        self.0.get() == 1
    }

    /// Sets or clears training mode.
    pub fn set_training(&self, training: bool) {
        self.0.set(training as u64);
    }
}

impl Default for Mode {
    fn default() -> Mode {
        Mode::new()
    }
}
