//! Errors of this floor.

use crate::{Device, LaunchError};
use kiln_ir::{DType, Source, TensorType};

/// An error of memory, a kernel or a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device has not that much memory.
    #[error("out of memory: {bytes} bytes on {device}")]
    OutOfMemory {
        /// The requested number of bytes.
        bytes: usize,
        /// The device.
        device: Device,
    },
    /// The device has not that much memory, and says what holds it.
    #[error("out of memory on {device}: {reason}")]
    DeviceMemory {
        /// The requested number of bytes.
        bytes: usize,
        /// The device.
        device: Device,
        /// A description of what is held and what is free.
        reason: String,
    },
    /// A device that is not there, or that nothing can be compiled for.
    #[error("{device} cannot be used: {reason}")]
    Unavailable {
        /// The device.
        device: Device,
        /// A description of what is missing.
        reason: String,
    },
    /// A failed call of a device's driver.
    #[error("{device}: {message}")]
    Device {
        /// The device.
        device: Device,
        /// The driver's code.
        code: i64,
        /// The driver's message.
        message: String,
    },
    /// A copy beyond the end of a buffer.
    #[error("bytes {offset}..+{length} are outside a buffer of {bytes} bytes")]
    OutsideBuffer {
        /// First byte.
        offset: usize,
        /// The number of elements.
        length: usize,
        /// The buffer's size.
        bytes: usize,
    },
    /// A write to foreign memory that may only be read.
    #[error("a buffer of {bytes} bytes may only be read")]
    ReadOnly {
        /// The buffer's size.
        bytes: usize,
    },
    /// A kernel that the backend cannot make code for.
    #[error("{target} cannot compile a kernel: {reason}")]
    Compile {
        /// The backend's target.
        target: String,
        /// What is not supported.
        reason: String,
    },
    /// A graph that could not be cut into kernels.
    #[error("{cause}")]
    Schedule {
        /// The scheduler's error.
        cause: Box<kiln_kernels::Error>,
    },
    /// A schedule that uses a buffer in a way its role does not allow; a mistake of the scheduler.
    #[error("the schedule misuses its buffer {buffer}")]
    BrokenSchedule {
        /// The buffer's index.
        buffer: usize,
    },
    /// A program that overwrites an input, called in a way that does not allow that.
    #[error("the program updates input {input} in place")]
    UpdatesInput {
        /// The input's index.
        input: usize,
    },
    /// A failing launch, with the line of the op it was computing.
    #[error("{op}: {cause}, at {at}")]
    Launch {
        /// The op, or the ops of a fused kernel.
        op: String,
        /// The cause.
        cause: LaunchError,
        /// The user's line.
        at: Source,
    },
    /// A program called with the wrong number of inputs.
    #[error("the program takes {expected} inputs, not {got}")]
    InputCount {
        /// The number the program was built for.
        expected: usize,
        /// The number given.
        got: usize,
    },
    /// A frozen program called with the wrong number of versions.
    #[error("the program has {expected} frozen inputs, but {got} versions were given")]
    VersionCount {
        /// Frozen inputs.
        expected: usize,
        /// The number given.
        got: usize,
    },
    /// An input whose type is not the one the program was built for.
    #[error("input {input} is {dtype}{shape:?}, the program was built for {expected}")]
    InputType {
        /// The input's index.
        input: usize,
        /// The dtype given.
        dtype: DType,
        /// The shape given.
        shape: Vec<usize>,
        /// The type the program was built for.
        expected: Box<TensorType>,
    },
    /// An input whose strides are not those the program was built for.
    #[error("input {input} has strides {strides:?}, the program was built for [{expected}]")]
    InputStrides {
        /// The input's index.
        input: usize,
        /// The strides given.
        strides: Vec<isize>,
        /// The layout the program was built for.
        expected: String,
    },
    /// An input that reaches beyond its buffer.
    #[error("input {input} reaches beyond its buffer of {bytes} bytes")]
    InputOutsideBuffer {
        /// The input's index.
        input: usize,
        /// The buffer's size.
        bytes: usize,
    },
    /// An input or output on another device than the program's.
    #[error("{what} {index} is on {device}, the program runs on {expected}")]
    WrongDevice {
        /// "input" or "output".
        what: &'static str,
        /// Its index.
        index: usize,
        /// The device it is on.
        device: Device,
        /// Where the program runs.
        expected: Device,
    },
    /// An output buffer, given by the caller, that is too small.
    #[error("output {output} needs {needed} bytes, the buffer given has {bytes}")]
    OutputTooSmall {
        /// The output's index.
        output: usize,
        /// Bytes of the output.
        needed: usize,
        /// Bytes given.
        bytes: usize,
    },
    /// A symbolic size without a value, or with one that is negative or does not fit.
    #[error("size {size} has no value for these inputs")]
    UnboundSize {
        /// The expression.
        size: String,
    },
}

/// What this floor returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
