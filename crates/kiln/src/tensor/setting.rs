//! Plain state outside of a captured function that it depends on, such as the training mode of a module.

use crate::tensor::tracer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A flag or a number that compiled functions may branch on: after a change, the next call takes the branch captured for
/// the new value, or captures one. Clones share the setting.
///
/// ```
/// use kiln::{DType, Device, Setting, Tensor};
/// let doubled = Setting::new(0);
/// let seen = doubled.clone();
/// let fast = kiln::compile(move |x: &Tensor| x.mul(if seen.get() == 1 { 2.0 } else { 1.0 }));
/// let x = Tensor::ones(1, DType::F32, Device::Cpu)?;
/// assert_eq!(fast.call(&x)?.item::<f32>()?, 1.0);
/// doubled.set(1);
/// assert_eq!(fast.call(&x)?.item::<f32>()?, 2.0);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Setting(Arc<AtomicU64>);

impl Setting {
    /// Makes a setting with an initial value.
    pub fn new(value: u64) -> Setting {
        Setting(Arc::new(AtomicU64::new(value)))
    }

    /// Returns the value.
    pub fn get(&self) -> u64 {
        let value = self.peek();
        if tracer::is_active() { tracer::read_setting(self, value) } else { value }
    }

    /// Sets the value.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    /// Returns whether both are the same setting.
    pub fn same(&self, other: &Setting) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Turns bits of its value over.
    pub(crate) fn toggle(&self, bits: u64) {
        self.0.fetch_xor(bits, Ordering::AcqRel);
    }

    pub(crate) fn peek(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}
