//! The native part of the Python package `kiln`: ATen graphs in, programs that run on PyTorch's memory out.

mod binding;
mod dlpack;
mod graph;
mod program;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pyo3::create_exception!(_kiln, Unsupported, PyRuntimeError, "A graph that Kiln cannot compile.");

/// The number of threads that kernels run on.
#[pyfunction]
fn set_threads(threads: usize) -> PyResult<()> {
    kiln::set_threads(threads).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// The number of threads that kernels run on.
#[pyfunction]
fn threads() -> usize {
    kiln::threads()
}

/// The ops that have a Kiln expression.
#[pyfunction]
fn ops() -> Vec<&'static str> {
    kiln_aten::rows().flat_map(|row| row.ops).copied().collect()
}

#[pymodule]
fn _kiln(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<graph::Graph>()?;
    module.add_class::<program::Program>()?;
    module.add_function(wrap_pyfunction!(set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(threads, module)?)?;
    module.add_function(wrap_pyfunction!(ops, module)?)?;
    module.add("Unsupported", module.py().get_type::<Unsupported>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
