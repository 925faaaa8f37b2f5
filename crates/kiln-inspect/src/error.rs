//! Why an inspection could not be made.

/// What goes wrong when a graph or a program is inspected. That a kernel or a pass is wrong is no error: the reports say so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A graph that is not valid at the sizes of its inputs.
    #[error("{cause}")]
    Graph {
        /// What is wrong.
        cause: Box<kiln_ir::Error>,
    },
    /// The passes broke a graph; a mistake of a pass.
    #[error("{cause}")]
    Passes {
        /// What is wrong.
        cause: Box<kiln_passes::Error>,
    },
    /// The reference interpreter cannot run a graph on these inputs.
    #[error("interpreter: {cause}")]
    Interpret {
        /// Why.
        cause: Box<kiln_ir::interpret::InterpretError>,
    },
    /// Memory or a launch failed, or the inputs are not those of the program.
    #[error("{cause}")]
    Runtime {
        /// What happened.
        cause: Box<kiln_runtime::Error>,
    },
}

/// What inspections return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<kiln_ir::Error> for Error {
    fn from(cause: kiln_ir::Error) -> Error {
        Error::Graph { cause: Box::new(cause) }
    }
}

impl From<kiln_passes::Error> for Error {
    fn from(cause: kiln_passes::Error) -> Error {
        Error::Passes { cause: Box::new(cause) }
    }
}

impl From<kiln_ir::interpret::InterpretError> for Error {
    fn from(cause: kiln_ir::interpret::InterpretError) -> Error {
        Error::Interpret { cause: Box::new(cause) }
    }
}

impl From<kiln_runtime::Error> for Error {
    fn from(cause: kiln_runtime::Error) -> Error {
        Error::Runtime { cause: Box::new(cause) }
    }
}
