//! The backend of a device that cannot be used: every request is an error that says why.

use crate::{Backend, Buffer, Device, Error, Executable};
use kiln_kernels::kernel::Kernel;
use std::sync::Arc;

/// A device that is not there.
#[derive(Debug, Clone)]
pub struct MissingBackend {
    /// The device.
    pub device: Device,
    /// A description of what is missing.
    pub reason: String,
}

impl MissingBackend {
    fn error(&self) -> Error {
        Error::Unavailable { device: self.device, reason: self.reason.clone() }
    }
}

impl Backend for MissingBackend {
    fn device(&self) -> Device {
        self.device
    }

    fn target(&self) -> String {
        format!("{} (missing)", self.device)
    }

    fn allocate(&self, _: usize) -> Result<Buffer, Error> {
        Err(self.error())
    }

    fn compile(&self, _: &Kernel) -> Result<Arc<dyn Executable>, Error> {
        Err(self.error())
    }

    fn synchronize(&self) -> Result<(), Error> {
        Err(self.error())
    }
}
