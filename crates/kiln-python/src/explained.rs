//! Explanations of programs, and the page of several.

use kiln::inspect::Explanation;
use kiln::inspect::explain::Break;
use kiln_ir::Source;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::time::Duration;

/// A program explained: its graph, kernels and times.
#[pyclass(frozen)]
pub(crate) struct Explained(pub(crate) Explanation);

#[pymethods]
impl Explained {
    /// The kernels: label, kind, seconds, bytes read, bytes written, operations, and the user's lines.
    #[allow(clippy::type_complexity)]
    fn kernels(&self) -> Vec<(String, &'static str, f64, u64, u64, u64, Vec<String>)> {
        let mut list = Vec::new();
        for segment in &self.0.segments {
            for kernel in &segment.kernels {
                let lines = segment.lines_of(kernel).iter().map(Source::to_string).collect();
                let seconds = kernel.time.as_secs_f64();
                let (read, written, flops) = (kernel.read, kernel.written, kernel.flops);
                list.push((kernel.label.clone(), kernel.kind, seconds, read, written, flops, lines));
            }
        }
        list
    }

    /// Seconds of a run of the whole program.
    fn seconds(&self) -> f64 {
        self.0.segments.iter().map(|segment| segment.run.median.as_secs_f64()).sum()
    }

    /// The report as text.
    fn __str__(&self) -> String {
        self.0.to_string()
    }
}

/// One report of several programs, as text and as an HTML page. `breaks` are (what, fix, file, line).
#[pyfunction]
pub(crate) fn page(
    name: &str,
    parts: Vec<PyRef<'_, Explained>>,
    breaks: Vec<(String, String, String, u32)>,
    recompiles: Vec<String>,
    remarks: Vec<String>,
    first_call: Vec<(String, f64)>,
) -> PyResult<(String, String)> {
    let Some(first) = parts.first() else { return Err(PyValueError::new_err("nothing to explain")) };
    let seconds = |(name, seconds): (String, f64)| (name, Duration::from_secs_f64(seconds.max(0.0)));
    let one = |(what, fix, file, line): (String, String, String, u32)| Break {
        what,
        fix,
        at: Source::new(file, line),
        cost: None,
    };
    let whole = Explanation {
        name: name.to_owned(),
        machine: first.0.machine.clone(),
        segments: parts.iter().flat_map(|part| part.0.segments.iter().cloned()).collect(),
        breaks: breaks.into_iter().map(one).collect(),
        programs: Vec::new(),
        recompiles,
        remarks,
        first_call: first_call.into_iter().map(seconds).collect(),
        call: None,
    };
    Ok((whole.to_string(), whole.to_html()))
}
