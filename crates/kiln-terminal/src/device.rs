//! Names of devices as options give them.

use crate::failure::Failure;
use kiln::Device;

/// The device of this name, if it is there.
pub fn device(name: &str) -> Result<Device, Failure> {
    match name.split(':').next() {
        Some("cpu") if name == "cpu" => Ok(Device::Cpu),
        Some("cuda") => Err(Failure::unusable("the CUDA backend is not part of this build").advise("--device cpu")),
        _ => Err(Failure::unusable(format!("there is no device '{name}'")).advise("--device cpu")),
    }
}
