//! The descriptors of a problem, and the engines that the library proposes for it, the most promising first.

use super::descriptor::{Descriptor, attribute, data_type, kind, of_type};
use super::engine::Engine;
use super::library::{Dnn, DnnLibrary, Raw};
use super::problem::{Memory, Mode, Operation, Problem, Tensor, Window};
use kiln_ir::DType;
use kiln_runtime::LaunchError;
use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

/// Engines that are considered.
const PROPOSALS: usize = 4;
/// What all addresses are multiples of.
pub(super) const ALIGNMENT: u64 = 16;

/// `cudnnBackendHeurMode_t`: as a model of the GPU says, and engines that take almost everything.
const BY_MODEL: c_int = 3;
const FALLBACK: c_int = 2;
/// `cudnnConvolutionMode_t`.
const CROSS_CORRELATION: c_int = 1;
/// `cudnnNanPropagation_t`.
const PROPAGATE: c_int = 1;
/// `cudnnBackendNumericalNote_t`: tensor cores, a stricter treatment of NaN, and how many there are.
const NOTE_TENSOR_CORES: c_int = 0;
const NOTE_STRICT_NAN: c_int = 9;
const NOTES: usize = 10;

/// A problem, and the engines for it.
pub(super) struct Plan {
    dnn: &'static Dnn,
    problem: Problem,
    proposals: Vec<Proposal>,
    /// What the engines' configurations refer to.
    _graph: Vec<Descriptor>,
}

struct Proposal {
    config: Descriptor,
    /// Made when it is first used.
    engine: OnceLock<Result<Arc<Engine>, LaunchError>>,
}

impl Plan {
    pub(super) fn new(dnn: &'static Dnn, problem: &Problem) -> Result<Plan, LaunchError> {
        let functions = dnn.functions;
        let mut parts = Vec::new();
        for (id, tensor) in problem.tensors.iter().enumerate() {
            parts.push(describe(functions, id, tensor)?);
        }
        let mut operations = Vec::new();
        for operation in &problem.operations {
            let (operation, own) = operate(functions, problem, &parts[..problem.tensors.len()], operation)?;
            operations.push(operation.raw);
            parts.extend([own, operation]);
        }
        let handle = dnn.handle()?;
        let graph = Descriptor::new(functions, kind::GRAPH)?
            .set(attribute::GRAPH_OPERATIONS, of_type::DESCRIPTOR, &operations)?
            .set(attribute::GRAPH_HANDLE, of_type::HANDLE, &[handle.raw()])?
            .done()?;
        let mut proposals = Vec::new();
        // Version 9.14 divides by zero where it is asked for a model of some products.
        let modes = if problem.is_product() { &[FALLBACK][..] } else { &[BY_MODEL, FALLBACK] };
        for &mode in modes {
            if proposals.is_empty() {
                proposals = propose(functions, &graph, mode, problem.tensor_cores).unwrap_or_default();
            }
        }
        parts.push(graph);
        let proposals = proposals.into_iter().map(|config| Proposal { config, engine: OnceLock::new() }).collect();
        Ok(Plan { dnn, problem: problem.clone(), proposals, _graph: parts })
    }

    /// The number of engines.
    pub(super) fn proposals(&self) -> usize {
        self.proposals.len()
    }

    /// The engine of this number. The GPU's context is current.
    pub(super) fn engine(&self, number: usize) -> Result<Arc<Engine>, LaunchError> {
        let Some(Proposal { config, engine }) = self.proposals.get(number) else {
            return Err(LaunchError::Device { code: 0, message: "cuDNN has no engine".to_owned() });
        };
        engine.get_or_init(|| Engine::of(self.dnn, &self.problem, config).map(Arc::new)).clone()
    }
}

/// The number of a tensor as the library has it.
pub(super) fn number(id: usize) -> i64 {
    id as i64 + 1
}

fn describe(functions: &'static DnnLibrary, id: usize, tensor: &Tensor) -> Result<Descriptor, LaunchError> {
    let is_value = matches!(tensor.memory, Memory::Float(_) | Memory::Int(_));
    let alignment = if is_value { 4 } else { ALIGNMENT as i64 };
    let mut made = Descriptor::new(functions, kind::TENSOR)?
        .set(attribute::TENSOR_ID, of_type::INT64, &[number(id)])?
        .set(attribute::TENSOR_TYPE, of_type::DATA_TYPE, &[data_type(tensor.dtype)])?
        .set(attribute::TENSOR_ALIGNMENT, of_type::INT64, &[alignment])?
        .set(attribute::TENSOR_SIZES, of_type::INT64, &tensor.sizes)?
        .set(attribute::TENSOR_STRIDES, of_type::INT64, &tensor.strides)?;
    if tensor.memory == Memory::Between {
        made = made.set(attribute::TENSOR_IS_VIRTUAL, of_type::BOOLEAN, &[true])?;
    }
    if is_value {
        made = made.set(attribute::TENSOR_IS_VALUE, of_type::BOOLEAN, &[true])?;
    }
    made.done()
}

/// An operation, and the description that it refers to.
fn operate(
    functions: &'static DnnLibrary,
    problem: &Problem,
    tensors: &[Descriptor],
    operation: &Operation,
) -> Result<(Descriptor, Descriptor), LaunchError> {
    let f32 = data_type(DType::F32);
    match operation {
        Operation::Convolution { x, w, y, windows } => {
            let list = |of: fn(&Window) -> i64| windows.iter().map(of).collect::<Vec<i64>>();
            let own = Descriptor::new(functions, kind::CONVOLUTION)?
                .set(attribute::CONVOLUTION_PRECISION, of_type::DATA_TYPE, &[f32])?
                .set(attribute::CONVOLUTION_MODE, of_type::CONVOLUTION_MODE, &[CROSS_CORRELATION])?
                .set(attribute::CONVOLUTION_AXES, of_type::INT64, &[windows.len() as i64])?
                .set(attribute::CONVOLUTION_DILATIONS, of_type::INT64, &list(|window| window.dilation))?
                .set(attribute::CONVOLUTION_STRIDES, of_type::INT64, &list(|window| window.stride))?
                .set(attribute::CONVOLUTION_BEFORE, of_type::INT64, &list(|window| window.before))?
                .set(attribute::CONVOLUTION_AFTER, of_type::INT64, &list(|window| window.after))?
                .done()?;
            let made = Descriptor::new(functions, kind::CONVOLUTION_FORWARD)?
                .with(attribute::FORWARD_CONVOLUTION, &own)?
                .with(attribute::FORWARD_X, &tensors[*x])?
                .with(attribute::FORWARD_W, &tensors[*w])?
                .with(attribute::FORWARD_Y, &tensors[*y])?
                .set(attribute::FORWARD_ALPHA, of_type::FLOAT, &[1.0f32])?
                .set(attribute::FORWARD_BETA, of_type::FLOAT, &[0.0f32])?
                .done()?;
            Ok((made, own))
        }
        Operation::Product { a, b, y } => {
            let own = Descriptor::new(functions, kind::PRODUCT)?
                .set(attribute::PRODUCT_PRECISION, of_type::DATA_TYPE, &[f32])?
                .done()?;
            let made = Descriptor::new(functions, kind::PRODUCT_OPERATION)?
                .with(attribute::PRODUCT_DESCRIPTOR, &own)?
                .with(attribute::PRODUCT_A, &tensors[*a])?
                .with(attribute::PRODUCT_B, &tensors[*b])?
                .with(attribute::PRODUCT_Y, &tensors[*y])?
                .done()?;
            Ok((made, own))
        }
        Operation::Pointwise { mode, operands, y } => {
            let precision = match problem.tensors[*y].dtype {
                dtype @ (DType::I32 | DType::Bool) => data_type(dtype),
                _ => f32,
            };
            let mut own = Descriptor::new(functions, kind::POINTWISE)?
                .set(attribute::POINTWISE_MODE, of_type::POINTWISE_MODE, &[mode.number()])?
                .set(attribute::POINTWISE_PRECISION, of_type::DATA_TYPE, &[precision])?;
            if let Mode::Index(axis) = mode {
                own = own.set(attribute::POINTWISE_AXIS, of_type::INT64, &[*axis as i64])?;
            }
            if *mode == Mode::Relu {
                own = own.set(attribute::POINTWISE_NAN, of_type::NAN, &[PROPAGATE])?;
            }
            let own = own.done()?;
            let mut made = Descriptor::new(functions, kind::POINTWISE_OPERATION)?
                .with(attribute::POINTWISE_DESCRIPTOR, &own)?
                .with(attribute::POINTWISE_Y, &tensors[*y])?;
            let places = [attribute::POINTWISE_X, attribute::POINTWISE_B, attribute::POINTWISE_T];
            for (operand, place) in operands.iter().zip(places) {
                made = made.with(place, &tensors[*operand])?;
            }
            Ok((made.done()?, own))
        }
        Operation::Reduction { kind: reduction, x, y } => {
            let own = Descriptor::new(functions, kind::REDUCTION)?
                .set(attribute::REDUCTION_KIND, of_type::REDUCTION, &[*reduction as c_int])?
                .set(attribute::REDUCTION_PRECISION, of_type::DATA_TYPE, &[f32])?
                .done()?;
            let made = Descriptor::new(functions, kind::REDUCTION_OPERATION)?
                .with(attribute::REDUCTION_DESCRIPTOR, &own)?
                .with(attribute::REDUCTION_X, &tensors[*x])?
                .with(attribute::REDUCTION_Y, &tensors[*y])?
                .done()?;
            Ok((made, own))
        }
    }
}

/// The configurations of engines that may be used for a graph.
fn propose(
    functions: &'static DnnLibrary,
    graph: &Descriptor,
    mode: c_int,
    tensor_cores: bool,
) -> Result<Vec<Descriptor>, LaunchError> {
    let heuristics = Descriptor::new(functions, kind::HEURISTICS)?
        .with(attribute::HEURISTICS_GRAPH, graph)?
        .set(attribute::HEURISTICS_MODE, of_type::HEURISTICS_MODE, &[mode])?
        .done()?;
    let count = heuristics.get::<Raw>(attribute::HEURISTICS_RESULTS, of_type::DESCRIPTOR, &mut [])?;
    let mut configs = Vec::new();
    for _ in 0..count {
        configs.push(Descriptor::new(functions, kind::CONFIG)?);
    }
    let mut raw: Vec<Raw> = configs.iter().map(|config| config.raw).collect();
    let found = heuristics.get(attribute::HEURISTICS_RESULTS, of_type::DESCRIPTOR, &mut raw)?;
    configs.truncate(found);
    configs.retain(|config| is_exact(functions, config, tensor_cores).unwrap_or(false));
    configs.truncate(PROPOSALS);
    Ok(configs)
}

/// Whether an engine computes what it says: nothing in lower precision, by Winograd's or Fourier's transform, or another result each
/// time.
fn is_exact(functions: &'static DnnLibrary, config: &Descriptor, tensor_cores: bool) -> Result<bool, LaunchError> {
    let engine = Descriptor::new(functions, kind::ENGINE)?;
    config.get(attribute::CONFIG_ENGINE, of_type::DESCRIPTOR, &mut [engine.raw])?;
    let mut notes = [0 as c_int; NOTES];
    let count = engine.get(attribute::ENGINE_NOTES, of_type::NUMERICAL_NOTE, &mut notes)?;
    let is_allowed = |&note: &c_int| note == NOTE_STRICT_NAN || (tensor_cores && note == NOTE_TENSOR_CORES);
    Ok(notes.iter().take(count).all(is_allowed))
}
