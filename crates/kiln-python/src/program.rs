//! A compiled graph, called with PyTorch's tensors.

use crate::binding::{Binding, Place};
use crate::dlpack::{DlTensor, Tensors};
use crate::graph::unsupported;
use kiln::{CompiledGraph, Device};
use kiln_aten::{AtenGraph, Imported, InputFrom, Meta, OutputFrom};
use kiln_ir::DType;
use kiln_runtime::RawInput;
use pyo3::exceptions::{PyIndexError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList, PyTuple};

/// A compiled graph. A call takes the list of the graph's parameters and returns the list of its outputs, which PyTorch allocates.
#[pyclass(frozen)]
pub(crate) struct Program {
    compiled: CompiledGraph,
    binding: Binding,
    /// For each input of the ATen graph, its parameter.
    parameters: Vec<usize>,
    /// For each input of the graph, where it comes from and its type.
    inputs: Vec<(InputFrom, DType, bool)>,
    outputs: Vec<Output>,
    tensors: Tensors,
    allocate: Py<PyAny>,
    draws: bool,
    /// Whether launches are recorded and replayed, where the device can do that.
    recorded: bool,
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
        compiled: CompiledGraph,
        imported: Imported,
        binding: Binding,
        aten: &AtenGraph,
        parameters: Vec<usize>,
        tensor_type: &Bound<'_, PyAny>,
        allocate: Py<PyAny>,
        dtypes: Vec<Py<PyAny>>,
        recorded: bool,
    ) -> PyResult<Program> {
        let input = |from: &InputFrom| match from {
            InputFrom::Given(input) => {
                let element = aten.meta(aten.inputs[*input]).element;
                (*from, element.dtype, element.complex)
            }
            InputFrom::Seed => (*from, DType::I64, false),
            InputFrom::Output(output) => {
                let element = aten.meta(aten.outputs[*output]).element;
                (*from, element.dtype, element.complex)
            }
        };
        let inputs: Vec<_> = imported.inputs.iter().map(input).collect();
        let mut outputs = Vec::with_capacity(imported.outputs.len());
        for ((from, id), dtype) in imported.outputs.iter().zip(&aten.outputs).zip(dtypes) {
            let meta = aten.meta(*id).clone();
            let constants = |dims: &[kiln_ir::Dim]| dims.iter().map(|dim| dim.as_const()).collect::<Option<Vec<i64>>>();
            let fixed = match (constants(&meta.shape), constants(&meta.strides)) {
                (Some(shape), Some(strides)) => {
                    Some((PyTuple::new(py, shape)?.unbind(), PyTuple::new(py, strides)?.unbind()))
                }
                _ => None,
            };
            outputs.push(Output { from: *from, meta, dtype, fixed });
        }
        let draws = imported.inputs.contains(&InputFrom::Seed);
        let tensors = Tensors::new(tensor_type)?;
        Ok(Program { compiled, binding, parameters, inputs, outputs, tensors, allocate, draws, recorded })
    }

    fn allocate<'py>(&self, py: Python<'py>, output: &Output, values: &[i64]) -> PyResult<Bound<'py, PyAny>> {
        if let Some((shape, strides)) = &output.fixed {
            return self.allocate.bind(py).call1((shape, strides, &output.dtype));
        }
        let tuple = |dims: &[kiln_ir::Dim]| {
            let size = |dim| self.binding.eval(dim, values).ok_or_else(|| unsupported(format!("the size {dim}")));
            PyTuple::new(py, dims.iter().map(size).collect::<PyResult<Vec<i64>>>()?)
        };
        let (shape, strides) = (tuple(&output.meta.shape)?, tuple(&output.meta.strides)?);
        self.allocate.bind(py).call1((shape, strides, &output.dtype))
    }
}

impl Program {
    fn device(&self) -> Device {
        self.compiled.options().device
    }

    /// The tensor of a seed; where it is none, its number.
    fn seed(&self, seed: Option<&Bound<'_, PyAny>>, number: &mut i64) -> PyResult<Option<DlTensor>> {
        match seed {
            Some(seed) if seed.is_instance_of::<PyInt>() => *number = seed.extract()?,
            Some(seed) => return self.tensors.describe(seed).map(Some),
            None => {}
        }
        Ok(None)
    }
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
        // Held by this call: the list may be emptied by somebody else once the interpreter lock is released.
        let arguments: Vec<Bound<'py, PyAny>> = arguments.iter().collect();
        let argument = |at: usize| arguments.get(at).ok_or_else(|| PyIndexError::new_err("an argument is missing"));
        let mut given: Vec<DlTensor> = Vec::with_capacity(self.parameters.len());
        for &at in &self.parameters {
            given.push(self.tensors.describe(argument(at)?)?);
        }
        let described = |at: usize| match self.parameters.iter().position(|&own| own == at) {
            Some(input) => Ok(&given[input]),
            None => Err(PyTypeError::new_err("a size is read from what is no tensor")),
        };
        let number = |place: Place| match place {
            Place::Argument(at) => argument(at)?.extract::<i64>(),
            // SAFETY: the arguments are held until the call returns.
            Place::Axis(at, axis) => Ok(unsafe { described(at)?.layout() }.0[axis]),
            // SAFETY: as above.
            Place::Stride(at, axis) => Ok(unsafe { described(at)?.layout() }.1[axis]),
        };
        let values = self.binding.values(number)?;

        let mut results: Vec<Bound<'py, PyAny>> = Vec::with_capacity(self.outputs.len());
        let mut made: Vec<DlTensor> = Vec::with_capacity(self.outputs.len());
        let mut addresses: Vec<*mut u8> = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            let mut tensor = DlTensor::default();
            results.push(match output.from {
                OutputFrom::Input(input) => argument(self.parameters[input])?.clone(),
                OutputFrom::Same(before) => results[before].clone(),
                OutputFrom::Output(_) | OutputFrom::Written(_) => {
                    let new = self.allocate(py, output, &values)?;
                    tensor = self.tensors.describe(&new)?;
                    if let OutputFrom::Output(_) = output.from {
                        addresses.push(tensor.ptr());
                    }
                    new
                }
            });
            made.push(tensor);
        }

        let mut number = 0i64;
        let drawn = self.seed(seed.as_ref(), &mut number)?;
        let device = self.device();
        let mut inputs: Vec<RawInput<'_>> = Vec::with_capacity(self.inputs.len());
        let mut pairs: Vec<(Vec<i64>, Vec<i64>)> = Vec::new();
        for (from, dtype, complex) in &self.inputs {
            let tensor = match from {
                InputFrom::Given(input) => &given[*input],
                InputFrom::Output(output) => &made[*output],
                InputFrom::Seed => match &drawn {
                    Some(tensor) => tensor,
                    None => {
                        let ptr = (&raw mut number).cast();
                        inputs.push(RawInput { ptr, dtype: DType::I64, shape: &[], strides: &[], is_value: true });
                        continue;
                    }
                },
            };
            // SAFETY: the tensors are held until the call returns.
            let (shape, strides) = unsafe { tensor.layout() };
            // Beside tensors of a GPU, PyTorch lets scalars be on the host.
            let place = tensor.device.device();
            let is_value = place == Some(Device::Cpu) && device != Device::Cpu && shape.is_empty();
            if tensor.dtype.element() != Some((*dtype, *complex)) || !(is_value || place == Some(device)) {
                return Err(PyTypeError::new_err(format!("{tensor:?} is not a tensor of {dtype} on {device}")));
            }
            if *complex {
                let shape = shape.iter().copied().chain([2]).collect();
                pairs.push((shape, strides.iter().map(|stride| stride * 2).chain([1]).collect()));
            }
            inputs.push(RawInput { ptr: tensor.ptr(), dtype: *dtype, shape, strides, is_value });
        }
        let mut pairs = pairs.iter();
        for (input, _) in inputs.iter_mut().zip(&self.inputs).filter(|(_, (_, _, complex))| *complex) {
            if let Some((shape, strides)) = pairs.next() {
                (input.shape, input.strides) = (shape, strides);
            }
        }

        let symbols: Vec<i64> = self.binding.of_program(&values).collect();
        let stream = match device {
            Device::Cuda(gpu) => Some(self.tensors.current_stream(gpu)?),
            _ => None,
        };
        let (program, recorded) = (self.compiled.program(), self.recorded);
        let call = Call { program, symbols: &symbols, inputs: &inputs, addresses: &addresses, stream, recorded };
        py.detach(|| call.run()).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        PyList::new(py, results)
    }

    /// Whether a call needs a seed.
    #[getter]
    fn draws(&self) -> bool {
        self.draws
    }

    /// The number of launches.
    #[getter]
    fn launches(&self) -> usize {
        self.compiled.program().steps().len()
    }

    /// The launches, one a line.
    fn describe(&self) -> String {
        let line = |step: &kiln_runtime::CompiledStep| format!("{} at {}", step.label(), step.source());
        self.compiled.program().steps().iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// All of a call that happens without the interpreter.
struct Call<'a> {
    program: &'a kiln_runtime::Program,
    symbols: &'a [i64],
    inputs: &'a [RawInput<'a>],
    addresses: &'a [*mut u8],
    /// PyTorch's stream, where the device has such.
    stream: Option<usize>,
    recorded: bool,
}

// SAFETY: addresses of tensors that the caller holds; nothing of Python is in it.
unsafe impl Send for Call<'_> {}
// SAFETY: as above.
unsafe impl Sync for Call<'_> {}

impl Call<'_> {
    fn run(&self) -> Result<(), kiln_runtime::Error> {
        match self.stream {
            // SAFETY: the stream is PyTorch's, which keeps its streams.
            Some(stream) => unsafe { self.program.backend().on_stream(stream, &mut || self.launch()) },
            None => self.launch(),
        }
    }

    fn launch(&self) -> Result<(), kiln_runtime::Error> {
        // SAFETY: the tensors have the sizes and strides that are compared with the program's; outputs were allocated with theirs;
        // AOTAutograd says that updated inputs share no memory with others. PyTorch's allocator reuses memory of a stream behind
        // what is queued there, which these launches are.
        unsafe {
            match self.recorded {
                true => self.program.replay_raw(self.symbols, self.inputs, self.addresses),
                false => self.program.call_raw(self.symbols, self.inputs, self.addresses),
            }
        }
    }
}
