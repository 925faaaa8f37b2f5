//! The native part of the Python package `kiln`: ATen graphs in, programs that run on PyTorch's memory out.

mod binding;
mod cache;
mod code;
mod dlpack;
mod explained;
mod frozen;
mod graph;
mod pins;
mod program;
mod shim;
mod torch;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pyo3::create_exception!(_kiln, Unsupported, PyRuntimeError, "A graph that Kiln cannot compile.");
pyo3::create_exception!(_kiln, WrongResult, PyRuntimeError, "A kernel whose result differs from the reference's.");

/// The ops that have a Kiln expression.
#[pyfunction]
fn ops() -> Vec<&'static str> {
    kiln_aten::rows().flat_map(|row| row.ops).copied().collect()
}

#[pymodule]
fn _kiln(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<graph::Graph>()?;
    module.add_class::<program::Program>()?;
    module.add_class::<explained::Explained>()?;
    module.add_function(wrap_pyfunction!(ops, module)?)?;
    module.add_function(wrap_pyfunction!(torch::connect, module)?)?;
    module.add_function(wrap_pyfunction!(torch::set_threads, module)?)?;
    module.add_function(wrap_pyfunction!(torch::threads, module)?)?;
    module.add_function(wrap_pyfunction!(explained::page, module)?)?;
    module.add_function(wrap_pyfunction!(program::live_programs, module)?)?;
    module.add_function(wrap_pyfunction!(cache::cache_folder, module)?)?;
    module.add_function(wrap_pyfunction!(cache::set_cache_folder, module)?)?;
    module.add_function(wrap_pyfunction!(cache::cache_entries, module)?)?;
    module.add_function(wrap_pyfunction!(cache::clear_cache, module)?)?;
    module.add_function(wrap_pyfunction!(cache::cache_stats, module)?)?;
    module.add_function(wrap_pyfunction!(cache::release_memory, module)?)?;
    module.add_function(wrap_pyfunction!(cache::forget, module)?)?;
    module.add_function(wrap_pyfunction!(cache::listen, module)?)?;
    module.add_function(wrap_pyfunction!(cache::heard, module)?)?;
    module.add("Unsupported", module.py().get_type::<Unsupported>())?;
    module.add("WrongResult", module.py().get_type::<WrongResult>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
