//! A compiled graph, called with PyTorch's tensors.

use crate::binding::{Binding, Place};
use crate::code::{Call, Code, Inputs};
use crate::dlpack::DlTensor;
use crate::explained::Explained;
use crate::frozen::Frozen;
use crate::graph::unsupported;
use crate::pins::{Candidate, FEWEST, Pins};
use crate::shim::{Seen, Shim};
use crate::torch::Torch;
use crate::{Unsupported, WrongResult};
use kiln::Device;
use kiln::pipeline::CompileOptions;
use kiln_aten::{AtenGraph, Imported, InputFrom, Meta, OutputFrom};
use kiln_ir::{DType, Dim};
use kiln_runtime::{PinnedRaw, RawInput};
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyTypeError};
use pyo3::ffi::{Py_ssize_t, PyTuple_GetItem};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyTuple};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Programs that exist.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The number of programs that have not been freed.
#[pyfunction]
pub(crate) fn live_programs() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// A compiled graph. A call takes the list of the graph's parameters and returns the list of its outputs, which PyTorch allocates.
#[pyclass(frozen)]
pub(crate) struct Program {
    code: Code,
    how: How,
    binding: Binding,
    /// For each tensor among the parameters, its number and its type.
    tensors: Vec<Parameter>,
    /// By parameter, its number in `tensors`.
    tensor_of: Vec<Option<usize>>,
    /// For each input of the graph, where it comes from; empty where they are `tensors`.
    inputs: Vec<(InputFrom, DType, bool)>,
    outputs: Vec<Output>,
    draws: bool,
    /// By tensor, whether it may be pinned; empty where too few may.
    candidates: Vec<Candidate>,
    pins: Pins,
    /// Whether frozen weights have changed.
    frozen: Option<Frozen>,
}

/// A tensor among the parameters.
struct Parameter {
    number: usize,
    dtype: DType,
    complex: bool,
    /// What the last one was, if that was as it should be.
    seen: Seen,
}

/// How a program was made, and how it is called.
pub(crate) struct How {
    pub(crate) options: CompileOptions,
    pub(crate) first: FirstCall,
    /// Whether launches are recorded and replayed, where the device can do that.
    pub(crate) recorded: bool,
    /// Makes a tensor on the program's device of sizes, strides and dtype.
    pub(crate) allocate: Py<PyAny>,
}

/// What is done at the first call.
pub(crate) struct FirstCall {
    /// Whether every kernel is compared with the interpreter.
    pub(crate) verify: bool,
    /// How long kernels are tuned.
    pub(crate) tune: Option<Duration>,
    is_over: AtomicBool,
}

impl FirstCall {
    pub(crate) fn new(verify: bool, tune: Option<Duration>) -> FirstCall {
        FirstCall { verify, tune, is_over: AtomicBool::new(!verify && tune.is_none()) }
    }
}

/// An output of the ATen graph.
struct Output {
    from: OutputFrom,
    meta: Meta,
    dtype: Py<PyAny>,
    /// Sizes and strides where they are constant, as PyTorch's allocator takes them.
    fixed: Option<(Py<PyTuple>, Py<PyTuple>)>,
}

impl Program {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        py: Python<'_>,
        code: Code,
        how: How,
        imported: &Imported,
        binding: Binding,
        aten: &AtenGraph,
        parameters: &[crate::binding::Parameter],
        dtypes: Vec<Py<PyAny>>,
    ) -> PyResult<Program> {
        let mut tensors = Vec::new();
        let mut tensor_of = vec![None; parameters.len()];
        for (number, parameter) in parameters.iter().enumerate() {
            if let crate::binding::Parameter::Tensor(input) = parameter {
                let element = aten.meta(aten.inputs[*input]).element;
                tensor_of[number] = Some(tensors.len());
                tensors.push(Parameter {
                    number,
                    dtype: element.dtype,
                    complex: element.complex,
                    seen: Seen::default(),
                });
            }
        }
        let input = |from: &InputFrom| match from {
            InputFrom::Given(input) => (*from, tensors[*input].dtype, tensors[*input].complex),
            InputFrom::Seed => (*from, DType::I64, false),
            InputFrom::Output(output) => {
                let element = aten.meta(aten.outputs[*output]).element;
                (*from, element.dtype, element.complex)
            }
        };
        let mut inputs: Vec<_> = imported.inputs.iter().map(input).collect();
        let is_given = |(number, (from, _, complex)): (usize, &(InputFrom, DType, bool))| {
            *from == InputFrom::Given(number) && !complex
        };
        if inputs.len() == tensors.len() && inputs.iter().enumerate().all(is_given) {
            inputs.clear();
        }
        let mut outputs = Vec::with_capacity(imported.outputs.len());
        for ((from, id), dtype) in imported.outputs.iter().zip(&aten.outputs).zip(dtypes) {
            let meta = aten.meta(*id).clone();
            let constants = |dims: &[Dim]| dims.iter().map(|dim| dim.as_const()).collect::<Option<Vec<i64>>>();
            let fixed = match (constants(&meta.shape), constants(&meta.strides)) {
                (Some(shape), Some(strides)) => {
                    Some((PyTuple::new(py, shape)?.unbind(), PyTuple::new(py, strides)?.unbind()))
                }
                _ => None,
            };
            outputs.push(Output { from: *from, meta, dtype, fixed });
        }
        let frozen = match &code {
            Code::Plain(_) => None,
            Code::Frozen(graph, _) => {
                let parameter = |input: usize| match imported.inputs[input] {
                    InputFrom::Given(tensor) => Some(tensors[tensor].number),
                    _ => None,
                };
                Some(Frozen::new(graph, parameter))
            }
        };
        let draws = imported.inputs.contains(&InputFrom::Seed);
        let is_fixed = |parameter: &Parameter| match &parameters[parameter.number] {
            crate::binding::Parameter::Tensor(input) => {
                let Meta { shape, strides, .. } = aten.meta(aten.inputs[*input]);
                shape.iter().chain(strides).all(|dim| dim.as_const().is_some())
            }
            crate::binding::Parameter::Size(_) => false,
        };
        let candidate = |(tensor, parameter): (usize, &Parameter)| {
            let input = imported.inputs.iter().position(|from| *from == InputFrom::Given(tensor));
            let input = input.filter(|_| is_fixed(parameter) && !parameter.complex);
            Candidate { argument: parameter.number, input }
        };
        let mut candidates: Vec<Candidate> = tensors.iter().enumerate().map(candidate).collect();
        if frozen.is_some() || candidates.iter().filter(|one| one.input.is_some()).count() < FEWEST {
            candidates.clear();
        }
        LIVE.fetch_add(1, Ordering::Relaxed);
        let pins = Pins::default();
        Ok(Program { code, how, binding, tensors, tensor_of, inputs, outputs, draws, candidates, pins, frozen })
    }

    fn device(&self) -> Device {
        self.how.options.device
    }

    fn allocate<'py>(&self, py: Python<'py>, output: &Output, values: &[i64]) -> PyResult<Bound<'py, PyAny>> {
        let allocate = self.how.allocate.bind(py);
        if let Some((shape, strides)) = &output.fixed {
            return allocate.call1((shape, strides, &output.dtype));
        }
        let tuple = |dims: &[Dim]| {
            let size = |dim| self.binding.eval(dim, values).ok_or_else(|| unsupported(format!("the size {dim}")));
            PyTuple::new(py, dims.iter().map(size).collect::<PyResult<Vec<i64>>>()?)
        };
        let (shape, strides) = (tuple(&output.meta.shape)?, tuple(&output.meta.strides)?);
        allocate.call1((shape, strides, &output.dtype))
    }

    /// Finds the addresses of a call and hands them to `run`; returns the outputs. `pins`: tensors that have not moved are not
    /// looked at, and `run` is told so.
    fn with_call<'py>(
        &self,
        py: Python<'py>,
        arguments: &Bound<'py, PyList>,
        seed: Option<&Bound<'py, PyAny>>,
        pins: bool,
        run: impl FnOnce(&Torch, &Call<'_>) -> PyResult<()>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let (torch, device) = (Torch::get(py)?, self.device());
        torch.follow_threads(py)?;
        // Held by this call: the list may be emptied by somebody else once the interpreter lock is released.
        let held = arguments.to_tuple();
        if held.len() < self.tensor_of.len() {
            return Err(PyIndexError::new_err("an argument is missing"));
        }
        let argument = |at: usize| held.get_borrowed_item(at);
        // SAFETY: there are as many items as parameters, and the tuple holds them.
        let object = |at: usize| unsafe { PyTuple_GetItem(held.as_ptr(), at as Py_ssize_t) };
        let shim = torch.shim.as_ref();
        let pinning = shim.filter(|_| pins && !self.candidates.is_empty());
        let pinned = pinning.and_then(|shim| self.pins.get().filter(|pinned| pinned.holds(shim, object)));
        let pinned = pinned.as_deref();

        let count = pinned.map_or(self.tensors.len(), |pinned| pinned.other_tensors.len());
        let mut given: Vec<RawInput<'_>> = Vec::with_capacity(count);
        for at in 0..count {
            let parameter = &self.tensors[pinned.map_or(at, |pinned| pinned.other_tensors[at])];
            let object = object(parameter.number);
            let read = |shim: &Shim| shim.read(object, parameter.dtype, &parameter.seen);
            if let Some(input) = shim.and_then(read) {
                given.push(input);
                continue;
            }
            let tensor = torch.tensors.describe(argument(parameter.number)?)?;
            given.push(raw(&tensor, parameter.dtype, parameter.complex, device)?);
            if let (Some(shim), Device::Cpu) = (shim, device) {
                shim.learn(object, &parameter.seen);
            }
        }
        let rank = |tensor: usize| pinned.map_or(tensor, |pinned| pinned.rank(tensor));
        let described = |at: usize| match self.tensor_of[at] {
            Some(tensor) => Ok(&given[rank(tensor)]),
            None => Err(PyTypeError::new_err("a size is read from what is no tensor")),
        };
        let number = |place: Place| match place {
            Place::Argument(at) => argument(at)?.extract::<i64>(),
            Place::Axis(at, axis) => Ok(described(at)?.shape[axis]),
            Place::Stride(at, axis) => Ok(described(at)?.strides[axis]),
        };
        let values = self.binding.values(number)?;

        let mut results: Vec<Bound<'py, PyAny>> = Vec::with_capacity(self.outputs.len());
        let mut made: Vec<DlTensor> = Vec::with_capacity(self.outputs.len());
        let mut outputs: Vec<*mut u8> = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            let mut tensor = DlTensor::default();
            results.push(match output.from {
                OutputFrom::Input(input) => argument(self.tensors[input].number)?.to_owned(),
                OutputFrom::Same(before) => results[before].clone(),
                OutputFrom::Output(_) | OutputFrom::Written(_) => {
                    let new = self.allocate(py, output, &values)?;
                    tensor = torch.tensors.describe(new.as_borrowed())?;
                    if let OutputFrom::Output(_) = output.from {
                        outputs.push(tensor.ptr());
                    }
                    new
                }
            });
            made.push(tensor);
        }

        // A number, or a tensor of one on the program's device.
        let mut number = 0i64;
        let mut drawn = None;
        match seed {
            Some(seed) if seed.is_instance_of::<PyInt>() => number = seed.extract()?,
            Some(seed) => drawn = Some(torch.tensors.describe(seed.as_borrowed())?),
            None => {}
        }
        let number: *mut u8 = (&raw mut number).cast();
        let source = |input: usize| {
            Ok::<_, PyErr>(match self.inputs.get(input) {
                None => given[rank(input)],
                Some((InputFrom::Given(tensor), ..)) => given[rank(*tensor)],
                Some((InputFrom::Output(output), dtype, complex)) => raw(&made[*output], *dtype, *complex, device)?,
                Some((InputFrom::Seed, dtype, _)) => match &drawn {
                    Some(tensor) => raw(tensor, *dtype, false, device)?,
                    None => RawInput { ptr: number, dtype: DType::I64, shape: &[], strides: &[], is_value: true },
                },
            })
        };
        let (mut inputs, mut others) = (Vec::new(), Vec::new());
        match pinned {
            Some(pinned) => {
                for &input in &pinned.other_inputs {
                    others.push((input as u32, source(input)?));
                }
            }
            None if self.inputs.is_empty() => inputs = given,
            None => {
                for input in 0..self.inputs.len() {
                    inputs.push(source(input)?);
                }
            }
        }
        // The parts of complex numbers are an axis of their own.
        let pairs: Vec<(Vec<i64>, Vec<i64>)>;
        if self.inputs.iter().any(|(_, _, complex)| *complex) {
            let all = inputs.iter_mut().enumerate();
            let all = all.chain(others.iter_mut().map(|(input, given)| (*input as usize, given)));
            let complex: Vec<&mut RawInput<'_>> =
                all.filter(|(input, _)| self.inputs[*input].2).map(|(_, given)| given).collect();
            let pair = |input: &&mut RawInput<'_>| {
                let strides = input.strides.iter().map(|stride| stride * 2).chain([1]);
                (input.shape.iter().copied().chain([2]).collect(), strides.collect())
            };
            pairs = complex.iter().map(pair).collect();
            for (input, (shape, strides)) in complex.into_iter().zip(&pairs) {
                (input.shape, input.strides) = (shape, strides);
            }
        }

        let symbols: Vec<i64> = self.binding.of_program(&values).collect();
        let versions = match &self.frozen {
            Some(frozen) => frozen.versions(torch, &held)?,
            None => Vec::new(),
        };
        let stream = match device {
            Device::Cuda(gpu) => Some(torch.tensors.current_stream(gpu)?),
            _ => None,
        };
        let inputs = match pinned {
            Some(pinned) => Inputs::Pinned(PinnedRaw { key: pinned.key, inputs: pinned.inputs(), others: &others }),
            None => Inputs::All(&inputs),
        };
        let recorded = self.how.recorded;
        let call = Call { symbols: &symbols, inputs, outputs: &outputs, versions: &versions, stream, recorded };
        run(torch, &call)?;
        if let (Some(shim), Inputs::All(inputs)) = (pinning, inputs) {
            self.pins.look(shim, &self.candidates, inputs, object);
        }
        if let Some(frozen) = &self.frozen {
            frozen.hold(&held, versions)?;
        }
        Ok(results)
    }

    /// Compares the kernels with the interpreter and tunes them, as far as was asked for.
    #[cold]
    fn first_call(&self, py: Python<'_>, torch: &Torch, call: &Call<'_>) -> PyResult<()> {
        let name = &self.how.options.name;
        if self.how.first.verify {
            // SAFETY: the tensors are held until the call returns.
            match py.detach(|| unsafe { self.code.verify(call) }) {
                Ok(report) if report.is_right() => {
                    torch.emit(py, "verified", name, &format!("{} kernels are right", report.kernels.len()))?;
                }
                Ok(report) => return Err(WrongResult::new_err(format!("{name}: {report}"))),
                Err(error) => torch.emit(py, "remark", name, &format!("not verified: {error}"))?,
            }
            py.check_signals()?;
        }
        if let Some(budget) = self.how.first.tune {
            // SAFETY: as above.
            match py.detach(|| unsafe { self.code.tune(call, budget) }) {
                Ok(report) => {
                    let changed = report.kernels.iter().filter(|kernel| kernel.changed).count();
                    let text = format!("{changed} of {} kernels have a faster variant", report.kernels.len());
                    torch.emit(py, "tuned", name, &text)?;
                }
                Err(error) => torch.emit(py, "remark", name, &format!("not tuned: {error}"))?,
            }
            py.check_signals()?;
        }
        self.how.first.is_over.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A tensor of PyTorch's, whose sizes and strides live as long as it does.
#[inline]
fn raw<'a>(tensor: &DlTensor, dtype: DType, complex: bool, device: Device) -> PyResult<RawInput<'a>> {
    // SAFETY: the tensors are held until the call returns, and nothing resizes them meanwhile.
    let (shape, strides) = unsafe { tensor.layout() };
    // Beside tensors of a GPU, PyTorch lets scalars be on the host.
    let place = tensor.device.device();
    let is_value = place == Some(Device::Cpu) && device != Device::Cpu && shape.is_empty();
    if tensor.dtype.element() != Some((dtype, complex)) || !(is_value || place == Some(device)) {
        return Err(PyTypeError::new_err(format!("{tensor:?} is not a tensor of {dtype} on {device}")));
    }
    // PyTorch's ZeroTensors, which gradients and functional transforms make, have elements and no memory.
    if tensor.ptr().is_null() && !shape.contains(&0) {
        return Err(PyTypeError::new_err(format!("a tensor of {dtype}{shape:?} without memory")));
    }
    Ok(RawInput { ptr: tensor.ptr(), dtype, shape, strides, is_value })
}

#[pymethods]
impl Program {
    /// Runs the program. `seed` is drawn by the caller where the program draws random numbers: a number, or a tensor of one on the
    /// program's device. On a GPU the launches are queued on PyTorch's current stream.
    #[pyo3(signature = (arguments, seed=None))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        arguments: &Bound<'py, PyList>,
        seed: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let is_over = self.how.first.is_over.load(Ordering::Relaxed);
        let results = self.with_call(py, arguments, seed.as_ref(), is_over, |torch, call| {
            if !is_over {
                self.first_call(py, torch, call)?;
            }
            // SAFETY: the tensors have the sizes and strides that the program compares with its own; outputs were allocated with
            // theirs; AOTAutograd says that updated inputs share no memory with others. PyTorch's allocator reuses memory of a stream
            // behind what is queued there, which these launches are.
            py.detach(|| unsafe { self.code.run(call) }).map_err(PyRuntimeError::new_err)
        })?;
        PyList::new(py, results)
    }

    /// Explains the program on these arguments, which are not changed.
    #[pyo3(signature = (arguments, seed=None))]
    fn explain<'py>(
        &self,
        py: Python<'py>,
        arguments: &Bound<'py, PyList>,
        seed: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Explained> {
        let mut explained = None;
        self.with_call(py, arguments, seed.as_ref(), false, |_, call| {
            // SAFETY: the tensors are held until the call returns.
            let outcome = py.detach(|| unsafe { self.code.explain(call, &self.how.options) });
            explained = Some(outcome.map_err(|error| Unsupported::new_err(error.to_string()))?);
            Ok(())
        })?;
        explained.map(Explained).ok_or_else(|| Unsupported::new_err("not explained"))
    }

    /// Whether a call needs a seed.
    #[getter]
    fn draws(&self) -> bool {
        self.draws
    }

    /// The number of launches.
    #[getter]
    fn launches(&self) -> usize {
        self.code.program().steps().len()
    }

    /// Kernels that were compiled for it, seconds that making it took, and whether it was read from the disk cache.
    #[getter]
    fn made(&self) -> (usize, f64, bool) {
        let (kernels, took, is_read) = self.code.made();
        (kernels, took.as_secs_f64(), is_read)
    }

    /// Bytes of packed and of prepared weights, and how often they were made.
    #[getter]
    fn frozen(&self) -> (usize, usize, u64) {
        match &self.code {
            Code::Plain(_) => (0, 0, 0),
            Code::Frozen(frozen, _) => {
                let memory = frozen.memory();
                (memory.packed_bytes, memory.prepared_bytes, memory.prepares)
            }
        }
    }

    /// Whether it has the memory of frozen weights, or copies of them.
    #[getter]
    fn holds_weights(&self) -> bool {
        self.frozen.as_ref().is_some_and(Frozen::holds)
    }

    /// The launches, one a line.
    fn describe(&self) -> String {
        let line = |step: &kiln_runtime::CompiledStep| format!("{} at {}", step.label(), step.source());
        self.code.program().steps().iter().map(line).collect::<Vec<_>>().join("\n")
    }
}
