//! Where memory lives and kernels run.

use std::fmt;
use std::str::FromStr;

/// A device.
///
/// ```
/// assert_eq!(kiln_runtime::Device::Cpu.to_string(), "cpu");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[non_exhaustive]
pub enum Device {
    /// The processor this program runs on, and its memory.
    #[default]
    Cpu,
    /// An NVIDIA GPU, by its number.
    Cuda(u32),
}

/// A text that names no device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is no device: it is cpu, cuda or cuda:N")]
pub struct UnknownDevice {
    /// The name as written.
    pub name: String,
}

impl FromStr for Device {
    type Err = UnknownDevice;

    /// ```
    /// use kiln_runtime::Device;
    /// assert_eq!("cuda:1".parse(), Ok(Device::Cuda(1)));
    /// assert!("tpu".parse::<Device>().is_err());
    /// ```
    fn from_str(name: &str) -> Result<Device, UnknownDevice> {
        let number = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        match (name, number) {
            ("cpu", _) => Ok(Device::Cpu),
            ("cuda", _) => Ok(Device::Cuda(0)),
            (_, Some(number)) => Ok(Device::Cuda(number)),
            _ => Err(UnknownDevice { name: name.to_owned() }),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}
