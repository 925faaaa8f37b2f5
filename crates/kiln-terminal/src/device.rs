//! Names of devices as options give them.

use crate::failure::Failure;
use kiln::Device;

/// The device of this name, if it can be used.
pub fn device(name: &str) -> Result<Device, Failure> {
    let unusable = |reason: String| Failure::unusable(reason).advise("--device cpu");
    let device: Device = name.parse().map_err(|error: kiln::runtime::UnknownDevice| unusable(error.to_string()))?;
    kiln::backend(device).synchronize().map_err(|error| unusable(error.to_string()))?;
    Ok(device)
}
