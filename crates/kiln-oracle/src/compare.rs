//! The differential test of one graph: eager (each node a program of its own) and compiled (the whole graph fused) against the
//! reference interpreter.
//!
//! The tolerance depends on the graph: a subtraction of nearly equal numbers turns a rounding error into the whole result,
//! a comparison turns it into true or false. So the reference runs several times with each op's result perturbed by as much
//! as a correct kernel may be off; the resulting change of the outputs is the tolerance, element by element.

use crate::LayoutChoice;
use kiln::inspect::to_host;
use kiln::{CompileOptions, CompiledGraph, FreezeOptions, FrozenGraph, PackWeights, Tensor};
use kiln_inspect::bounds::{ErrorBounds, Products, RangeWatch};
use kiln_ir::interpret::{self, Fault, InterpretError};
use kiln_ir::{Graph, HostTensor, Symbol};
use kiln_kernels::{InputLayout, Numerics};
use std::fmt;

/// What is held against the oracle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidate {
    /// Each node compiled and run alone.
    Eager,
    /// The whole graph, fused.
    Compiled,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Candidate::Eager => "eager",
            Candidate::Compiled => "compiled",
        })
    }
}

/// How a result differs from the oracle's.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Disagreement {
    /// An element is further off than rounding explains.
    #[error(
        "{candidate}, output {output}, element {element}: {got}, but the interpreter says {want} (±{tolerance:.3e})"
    )]
    Value {
        /// The candidate that disagrees.
        candidate: Candidate,
        /// Which output.
        output: usize,
        /// Row-major position.
        element: usize,
        /// Its value.
        got: String,
        /// The interpreter's.
        want: String,
        /// What was allowed.
        tolerance: f64,
    },
    /// One failed and the other did not.
    #[error("{candidate} fails ({error}), the interpreter does not")]
    Fails {
        /// The candidate that disagrees.
        candidate: Candidate,
        /// The candidate's error.
        error: String,
    },
    /// The reference fails and the other does not.
    #[error("the interpreter fails ({error}), {candidate} does not")]
    Passes {
        /// The candidate that disagrees.
        candidate: Candidate,
        /// The interpreter's error.
        error: String,
    },
    /// Both fail, for different reasons.
    #[error("{candidate} fails ({error}), the interpreter too, but because: {want}")]
    Errors {
        /// The candidate that disagrees.
        candidate: Candidate,
        /// The candidate's error.
        error: String,
        /// The interpreter's error.
        want: String,
    },
    /// The type of a result.
    #[error("{candidate}, output {output} is {got}, expected {want}")]
    Type {
        /// The candidate that disagrees.
        candidate: Candidate,
        /// Which output.
        output: usize,
        /// Its type.
        got: String,
        /// The graph's.
        want: String,
    },
}

/// How candidates are compiled and run.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// How the compiled program is made; its device also runs eager.
    pub options: CompileOptions,
    /// The layout of the inputs.
    pub layout: LayoutChoice,
    /// Whether to run only the compiled program.
    pub skip_eager: bool,
    /// The inputs that the compiled program may freeze; empty for none.
    pub frozen: Vec<bool>,
    /// Changes the results of the compiled program, so that a test can check that wrong results are noticed.
    pub tamper: Option<fn(&mut HostTensor)>,
}

/// What was compared. Elements count once for each candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreement {
    /// Elements that were compared with the reference.
    pub compared: usize,
    /// Elements that rounding errors alone can make one thing or another (a comparison of nearly equal numbers, say), and
    /// elements of outputs that depend on a sum or product whose order matters. Any answer passes.
    pub undecided: usize,
    /// Why nothing was compared.
    pub skipped: Option<Skipped>,
}

impl Agreement {
    /// Returns whether no element was compared with the reference, though there are some.
    pub fn is_vacuous(&self) -> bool {
        self.skipped.is_some() || (self.compared == 0 && self.undecided > 0)
    }
}

/// Why nothing was compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Skipped {
    /// All outputs depend on a sum or product that overflows or underflows in one order and not in another, or that a
    /// kernel may skip because it is not finite.
    Order,
    /// All fail for the same reason, as expected.
    Fails,
}

/// Runs a graph with the interpreter, eagerly and compiled on one set of inputs, and compares the results.
pub fn compare(graph: &Graph, inputs: &[HostTensor], config: &Config) -> Result<Agreement, Disagreement> {
    let mut watch = RangeWatch::new(graph);
    let reference = interpret::run_with(graph, inputs, &mut watch);
    let mut agreement = Agreement::default();
    let by_order = watch.outputs_by_order();
    if !by_order.is_empty() && by_order.iter().all(|&by_order| by_order) {
        agreement.skipped = Some(Skipped::Order);
        return Ok(agreement);
    }
    let mut config = config.clone();
    if watch.loss.short {
        config.options.schedule.numerics = Numerics::Eager;
    }
    let config = &config;
    let candidates =
        if config.skip_eager { &[Candidate::Compiled][..] } else { &[Candidate::Eager, Candidate::Compiled] };
    let compiled = Products::of(graph, config.options.schedule.precision);
    let mut bounds_by_products = [None, None];
    for &candidate in candidates {
        let mut got = ask(candidate, graph, inputs, config);
        if let (Candidate::Compiled, Some(tamper), Ok(outputs)) = (candidate, config.tamper, &mut got) {
            outputs.iter_mut().for_each(tamper);
        }
        match (&reference, got) {
            (Ok(want), Ok(got)) => {
                let products = if candidate == Candidate::Eager { Products::Exact } else { compiled };
                let bounds = bounds_by_products[usize::from(products != Products::Exact)]
                    .get_or_insert_with(|| ErrorBounds::new(graph, inputs, products));
                check(candidate, want, &got, &by_order, bounds, &mut agreement)?;
            }
            // What depends on the order may be an index, too.
            (Ok(_), Err(_)) | (Err(_), Ok(_)) if by_order.contains(&true) => agreement.skipped = Some(Skipped::Order),
            (Ok(_), Err(error)) => return Err(Disagreement::Fails { candidate, error: error.to_string() }),
            (Err(error), Ok(_)) => return Err(Disagreement::Passes { candidate, error: error.to_string() }),
            (Err(want), Err(error)) => {
                if !error.is_like(want) {
                    let (error, want) = (error.to_string(), want.to_string());
                    return Err(Disagreement::Errors { candidate, error, want });
                }
                agreement.skipped = Some(Skipped::Fails);
            }
        }
    }
    Ok(agreement)
}

/// Why a candidate gave no outputs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The graph could not be compiled or run.
    #[error(transparent)]
    Run(#[from] kiln::Error),
    /// The graph does not type at the sizes of its inputs.
    #[error(transparent)]
    Graph(#[from] kiln_ir::Error),
}

/// What a failure is about. Which of several bad indices is found first depends on the order of execution.
#[derive(PartialEq, Eq)]
enum Subject {
    /// An index beyond its axis, or a divisor that is zero.
    Index,
    /// Sizes that turn out not to fit, or that no input gives.
    Sizes,
}

impl Failure {
    /// True if it is about the same as the reference's.
    fn is_like(&self, reference: &InterpretError) -> bool {
        use kiln::Error;
        let wanted = match reference {
            InterpretError::Node { cause: Fault::IndexOutOfRange { .. }, .. } => Subject::Index,
            InterpretError::Node {
                cause:
                    Fault::Unbound { .. } | Fault::NegativeSize { .. } | Fault::SizesDiffer { .. } | Fault::EmptyAxis { .. },
                ..
            } => Subject::Sizes,
            _ => return false,
        };
        let own = match self {
            Failure::Run(Error::ElementOutOfRange { .. } | Error::DivisionByZero { .. }) => Subject::Index,
            Failure::Run(Error::Type { .. } | Error::Graph { .. }) | Failure::Graph(_) => Subject::Sizes,
            Failure::Run(Error::Runtime { cause, .. }) => match &**cause {
                kiln_runtime::Error::UnboundSize { .. } | kiln_runtime::Error::InputType { .. } => Subject::Sizes,
                kiln_runtime::Error::Schedule { cause } if matches!(**cause, kiln_kernels::Error::NoValue { .. }) => {
                    Subject::Sizes
                }
                _ => return false,
            },
            _ => return false,
        };
        own == wanted
    }
}

/// One candidate's outputs.
pub fn ask(
    candidate: Candidate,
    graph: &Graph,
    inputs: &[HostTensor],
    config: &Config,
) -> Result<Vec<HostTensor>, Failure> {
    let tensors: Vec<Tensor> =
        inputs.iter().map(|host| config.layout.place(host, config.options.device)).collect::<Result<_, _>>()?;
    let read = |outputs: &[Tensor]| outputs.iter().map(to_host).collect::<kiln::Result<Vec<HostTensor>>>();
    let outputs = match candidate {
        Candidate::Eager => one_by_one(graph, &tensors)?,
        Candidate::Compiled => {
            let layouts: Vec<InputLayout> = tensors.iter().map(InputLayout::from).collect();
            let symbolic = graph.inputs().iter().any(|&id| graph.ty(id).fixed_shape().is_none());
            let layouts = if symbolic { vec![] } else { layouts };
            if config.frozen.contains(&true) {
                let options =
                    FreezeOptions { compile: config.options.clone(), pack: PackWeights::Always, ..Default::default() };
                let frozen = FrozenGraph::new(graph, &layouts, &config.frozen, &options)?;
                let inputs: Vec<&Tensor> = tensors.iter().collect();
                let versions = vec![0; frozen.frozen().len()];
                return Ok(read(&frozen.run(&inputs, &versions)?)?);
            }
            CompiledGraph::new(graph, &layouts, &config.options)?.run(&tensors)?
        }
    };
    Ok(read(&outputs)?)
}

/// Eager, at the inputs' sizes.
fn one_by_one(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, Failure> {
    let sizes = sizes(graph, inputs);
    let fixed = graph.specialise(&|symbol| sizes.iter().find(|(s, _)| *s == symbol).map(|&(_, n)| n.into()))?;
    Ok(kiln::run_eagerly(&fixed, inputs)?)
}

/// What the graph's size symbols are for these inputs.
fn sizes(graph: &Graph, inputs: &[Tensor]) -> Vec<(Symbol, usize)> {
    let mut sizes = Vec::new();
    for (&id, tensor) in graph.inputs().iter().zip(inputs) {
        for (dim, &size) in graph.ty(id).shape.iter().zip(tensor.shape()) {
            if let Some((symbol, factor)) = dim.as_multiple()
                && sizes.iter().all(|(s, _)| *s != symbol)
            {
                sizes.push((symbol, size / factor as usize));
            }
        }
    }
    sizes
}

fn check(
    candidate: Candidate,
    want: &[HostTensor],
    got: &[HostTensor],
    by_order: &[bool],
    bounds: &mut ErrorBounds<'_>,
    agreement: &mut Agreement,
) -> Result<(), Disagreement> {
    for (output, (want, got)) in want.iter().zip(got).enumerate() {
        if want.dtype() != got.dtype() || want.shape() != got.shape() {
            let ty = |t: &HostTensor| format!("{}{:?}", t.dtype(), t.shape());
            return Err(Disagreement::Type { candidate, output, got: ty(got), want: ty(want) });
        }
        if by_order[output] {
            agreement.undecided += want.elements();
            continue;
        }
        match bounds.check(output, want, got) {
            Ok(undecided) => {
                agreement.undecided += undecided;
                agreement.compared += want.elements() - undecided;
            }
            Err((element, tolerance)) => {
                let (got, want) = (got.get(element).to_string(), want.get(element).to_string());
                return Err(Disagreement::Value { candidate, output, element, got, want, tolerance });
            }
        }
    }
    Ok(())
}
