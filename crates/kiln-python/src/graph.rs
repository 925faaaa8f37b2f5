//! A graph of ATen ops as Python describes it.

use crate::Unsupported;
use crate::binding::{Binding, Parameter};
use crate::code::Code;
use crate::program::{FirstCall, How, Program};
use kiln::pipeline::{CompileOptions, PackWeights};
use kiln_aten::{Argument, AtenGraph, Call, Element, Imported, InputFrom, Meta, ValueId};
use kiln_ir::{Dim, Source, Symbol};
use kiln_kernels::{InputLayout, Numerics, Precision};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::time::Duration;

/// A graph of ATen ops under construction.
#[pyclass]
pub(crate) struct Graph {
    aten: AtenGraph,
    parameters: Vec<Parameter>,
}

#[pymethods]
impl Graph {
    #[new]
    fn new() -> Graph {
        Graph { aten: AtenGraph::default(), parameters: Vec::new() }
    }

    /// Adds a tensor: its dtype by name, its sizes and strides as numbers or texts. Returns its number.
    fn value(&mut self, dtype: &str, shape: Vec<Bound<'_, PyAny>>, strides: Vec<Bound<'_, PyAny>>) -> PyResult<u32> {
        let element = Element::named(dtype).ok_or_else(|| unsupported(format!("tensors of {dtype}")))?;
        let dims = |list: Vec<Bound<'_, PyAny>>| list.iter().map(dim).collect::<PyResult<Vec<Dim>>>();
        let meta = Meta { element, shape: dims(shape)?, strides: dims(strides)? };
        Ok(self.aten.value(meta).0)
    }

    /// Makes a tensor the next parameter.
    fn parameter(&mut self, value: u32) {
        self.parameters.push(Parameter::Tensor(self.aten.inputs.len()));
        self.aten.inputs.push(ValueId(value));
    }

    /// Makes a size, given by its text, the next parameter.
    fn size_parameter(&mut self, size: &Bound<'_, PyAny>) -> PyResult<()> {
        self.parameters.push(Parameter::Size(dim(size)?));
        Ok(())
    }

    /// The size that a symbol had while the graph was captured.
    fn hint(&mut self, symbol: &str, size: i64) -> PyResult<()> {
        let symbol = Symbol::new(symbol).ok_or_else(|| PyValueError::new_err(format!("the symbol {symbol}")))?;
        self.aten.hints.insert(symbol, size);
        Ok(())
    }

    /// Adds a call of an op: arguments by name, numbers of the results, and the user's line.
    fn call(
        &mut self,
        op: String,
        arguments: Vec<(String, Bound<'_, PyAny>)>,
        results: Vec<Option<u32>>,
        file: String,
        line: u32,
    ) -> PyResult<()> {
        let mut list = Vec::with_capacity(arguments.len());
        for (name, value) in arguments {
            list.push((name, argument(&value)?));
        }
        let results = results.into_iter().map(|result| result.map(ValueId)).collect();
        let source = if file.is_empty() { Source::default() } else { Source::new(file, line) };
        self.aten.calls.push(Call { op, arguments: list, results, source });
        Ok(())
    }

    /// Makes a tensor the next output.
    fn output(&mut self, value: u32) {
        self.aten.outputs.push(ValueId(value));
    }

    /// The calls that have no Kiln expression, each with the reason.
    fn unsupported(&self) -> PyResult<Vec<(usize, String)>> {
        let list = kiln_aten::unsupported(&self.aten).map_err(|error| unsupported(error.to_string()))?;
        Ok(list.into_iter().map(|(number, error)| (number, error.to_string())).collect())
    }

    /// The Kiln graph as text.
    fn text(&self) -> PyResult<String> {
        Ok(kiln_aten::import(&self.aten).map_err(|error| unsupported(error.to_string()))?.graph.to_string())
    }

    /// Compiles the graph. `frozen` has the numbers of the tensors that change rarely, if weights are frozen, and `pack` says which of
    /// them are copied to a layout of the backend's own.
    #[pyo3(signature = (allocate, dtypes, name="graph", device="cpu", numerics="fast", precision="highest", frozen=None, pack="where it pays",
        disk_cache=true, recorded=false, verify=false, tuning_seconds=None))]
    #[allow(clippy::too_many_arguments)]
    fn compile(
        &self,
        py: Python<'_>,
        allocate: Py<PyAny>,
        dtypes: Vec<Py<PyAny>>,
        name: &str,
        device: &str,
        numerics: &str,
        precision: &str,
        frozen: Option<Vec<usize>>,
        pack: &str,
        disk_cache: bool,
        recorded: bool,
        verify: bool,
        tuning_seconds: Option<f64>,
    ) -> PyResult<Program> {
        let device = device.parse().map_err(|_| PyValueError::new_err(format!("the device {device}")))?;
        let name = name.to_owned().into();
        let mut options = CompileOptions { name, device, disk_cache, ..CompileOptions::default() };
        options.schedule.numerics = match numerics {
            "fast" => Numerics::Fast,
            "eager" => Numerics::Eager,
            other => return Err(PyValueError::new_err(format!("numerics={other:?} is neither 'fast' nor 'eager'"))),
        };
        options.schedule.precision = Precision::named(precision)
            .ok_or_else(|| PyValueError::new_err(format!("precision={precision:?} is not a precision")))?;
        let pack = match pack {
            "never" => PackWeights::Never,
            "where it pays" => PackWeights::WherePays,
            "always" => PackWeights::Always,
            other => return Err(PyValueError::new_err(format!("pack={other:?} is not a choice"))),
        };
        let frozen = frozen.as_ref().map(|frozen| (frozen.as_slice(), pack));
        let (imported, code) = py.detach(|| build(&self.aten, frozen, &options)).map_err(unsupported)?;
        py.check_signals()?;
        let binding = Binding::new(&self.aten, &self.parameters, &imported, code.program()).map_err(unsupported)?;
        let first = FirstCall::new(verify, tuning_seconds.map(|seconds| Duration::from_secs_f64(seconds.max(0.0))));
        let parameters = &self.parameters;
        let how = How { options, first, recorded, allocate };
        Program::new(py, code, how, &imported, binding, &self.aten, parameters, dtypes)
    }
}

fn build(
    aten: &AtenGraph,
    frozen: Option<(&[usize], PackWeights)>,
    options: &CompileOptions,
) -> Result<(Imported, Code), String> {
    let imported = kiln_aten::import(aten).map_err(|error| error.to_string())?;
    let layout = |strides: &Vec<Dim>| InputLayout { strides: strides.clone(), offset: Dim::default() };
    let mut layouts: Vec<InputLayout> = imported.strides.iter().map(layout).collect();
    // Where there is one index, PyTorch's stride means nothing.
    for (layout, &id) in layouts.iter_mut().zip(imported.graph.inputs()) {
        let sizes = &imported.graph.ty(id).shape;
        layout.strides.iter_mut().zip(sizes).filter(|(_, size)| size.is_one()).for_each(|(s, _)| *s = Dim::from(0));
    }
    let is_frozen = |from: &InputFrom, list: &[usize]| matches!(from, InputFrom::Given(input) if list.contains(input));
    let marks = |list: &[usize]| imported.inputs.iter().map(|from| is_frozen(from, list)).collect::<Vec<bool>>();
    let marked = frozen.map(|(list, pack)| (marks(list), pack));
    let frozen = marked.as_ref().map(|(marks, pack)| (marks.as_slice(), *pack));
    let code = Code::new(&imported.graph, layouts, frozen, options).map_err(|error| error.to_string())?;
    Ok((imported, code))
}

pub(crate) fn unsupported(reason: impl Into<String>) -> PyErr {
    Unsupported::new_err(reason.into())
}

/// A size: a number, or the text of an expression.
fn dim(value: &Bound<'_, PyAny>) -> PyResult<Dim> {
    if let Ok(text) = value.cast::<PyString>() {
        return kiln_aten::parse_size(&text.to_cow()?).map_err(|error| unsupported(error.to_string()));
    }
    Ok(Dim::from(value.extract::<i64>()?))
}

/// An argument: plain values stand for themselves, and a pair for a tensor (`("tensor", 3)`), a size (`("size", "s0 + 1")`) or a
/// dtype (`("dtype", "float32")`).
fn argument(value: &Bound<'_, PyAny>) -> PyResult<Argument> {
    if value.is_none() {
        return Ok(Argument::None);
    }
    if let Ok(flag) = value.cast::<PyBool>() {
        return Ok(Argument::Bool(flag.is_true()));
    }
    if let Ok(number) = value.cast::<PyInt>() {
        // Beyond i64 is no size and no index: PyTorch's `slice` takes any large number for the end.
        return Ok(Argument::Int(number.extract::<i64>().unwrap_or(i64::MAX)));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(Argument::Float(number.value()));
    }
    if let Ok(word) = value.cast::<PyString>() {
        return Ok(Argument::Word(word.to_cow()?.into_owned()));
    }
    if let Ok(list) = value.cast::<PyList>() {
        return Ok(Argument::List(list.iter().map(|item| argument(&item)).collect::<PyResult<_>>()?));
    }
    let pair = value.cast::<PyTuple>()?;
    let (kind, of) = (pair.get_item(0)?.extract::<String>()?, pair.get_item(1)?);
    match kind.as_str() {
        "tensor" => Ok(Argument::Tensor(ValueId(of.extract()?))),
        "size" => Ok(Argument::Size(dim(&of)?)),
        "dtype" => {
            let name = of.extract::<String>()?;
            // A dtype that Kiln has not is a word that no row takes for one.
            Ok(Element::named(&name).map_or(Argument::Word(name), Argument::Element))
        }
        other => Err(PyTypeError::new_err(format!("an argument of the kind {other}"))),
    }
}
