//! Which pass changed the answer: the interpreter runs the graph before and after each pass, on live inputs.

use crate::bounds::{ErrorBounds, Products};
use crate::{Deviation, Result};
use kiln_ir::{Graph, HostTensor, interpret};
use kiln_kernels::Precision;
use std::fmt;

/// The graph after one pass.
#[derive(Debug, Clone)]
pub struct Stage {
    /// The pass that made it.
    pub pass: String,
    /// The graph after that pass.
    pub graph: Graph,
}

/// The outcome of checking one pass.
#[derive(Debug, Clone)]
pub struct PassReport {
    /// Its name.
    pub pass: String,
    /// Nodes before and after.
    pub nodes: (usize, usize),
    /// The outputs after it against those before it.
    pub outputs: Vec<Deviation>,
    /// What is wrong, if anything.
    pub wrong: Option<String>,
}

/// The outcome of checking the passes. `Display` writes one line per pass.
#[derive(Debug, Clone)]
pub struct BisectReport {
    /// The passes that changed the graph, in order, as far as the first that is wrong.
    pub passes: Vec<PassReport>,
    /// The graphs before and after the first wrong pass.
    pub around: Option<(Graph, Graph)>,
}

impl BisectReport {
    /// Returns the first pass that changed the answer.
    pub fn first_wrong(&self) -> Option<&PassReport> {
        self.passes.iter().find(|pass| pass.wrong.is_some())
    }
}

/// Runs the passes and returns the graph after each that changed it.
pub fn stages(graph: &Graph) -> Result<Vec<Stage>> {
    let mut stages = Vec::new();
    kiln_passes::run_with(graph.clone(), &mut |pass, graph| {
        stages.push(Stage { pass: pass.to_owned(), graph: graph.clone() });
    })?;
    Ok(stages)
}

/// Asks the interpreter after each stage whether the answer is still the same: each against the one before it, the first against
/// `graph`.
///
/// ```
/// use kiln_inspect::bisect::{bisect, stages};
/// use kiln_ir::{Graph, HostTensor};
/// let graph = Graph::parse("graph(%0: f32[2]) {
///   %1: f32[2] = neg %0
///   %2: f32[2] = neg %1
///   %3: f32[2] = exp %2
///   return %3
/// }").unwrap();
/// let x = HostTensor::from_slice(&[2], &[0f32, 1.0]).unwrap();
/// let report = bisect(&graph, &stages(&graph)?, &[x])?;
/// assert!(report.first_wrong().is_none() && !report.passes.is_empty(), "{report}");
/// # Ok::<(), kiln_inspect::Error>(())
/// ```
pub fn bisect(graph: &Graph, stages: &[Stage], inputs: &[HostTensor]) -> Result<BisectReport> {
    let mut want = interpret::run(graph, inputs)?;
    let mut report = BisectReport { passes: Vec::new(), around: None };
    let mut before = graph;
    for Stage { pass, graph } in stages {
        let nodes = (before.nodes().len(), graph.nodes().len());
        let (outputs, wrong, next) = match interpret::run(graph, inputs) {
            Err(error) => (Vec::new(), Some(format!("the graph cannot be interpreted any more: {error}")), None),
            Ok(got) => {
                let (outputs, wrong) = compare(before, inputs, &want, &got);
                (outputs, wrong, Some(got))
            }
        };
        let broken = wrong.is_some();
        report.passes.push(PassReport { pass: pass.clone(), nodes, outputs, wrong });
        match next {
            Some(got) if !broken => (want, before) = (got, graph),
            _ => {
                report.around = Some((before.clone(), graph.clone()));
                break;
            }
        }
    }
    Ok(report)
}

/// Outputs after a pass against those before it, with what is wrong about them.
fn compare(
    graph: &Graph,
    inputs: &[HostTensor],
    want: &[HostTensor],
    got: &[HostTensor],
) -> (Vec<Deviation>, Option<String>) {
    if want.len() != got.len() {
        return (Vec::new(), Some(format!("there are {} outputs instead of {}", got.len(), want.len())));
    }
    let mut deviations = Vec::with_capacity(want.len());
    let mut wrong = None;
    let mut bounds: Option<ErrorBounds<'_>> = None;
    for (number, (want, got)) in want.iter().zip(got).enumerate() {
        if want.dtype() != got.dtype() || want.shape() != got.shape() {
            let ty = |t: &HostTensor| format!("{}{:?}", t.dtype(), t.shape());
            wrong.get_or_insert(format!("output {number} is {} instead of {}", ty(got), ty(want)));
            continue;
        }
        deviations.push(Deviation::between(got, want));
        if got.bytes() == want.bytes() || wrong.is_some() {
            continue;
        }
        let bounds =
            bounds.get_or_insert_with(|| ErrorBounds::new(graph, inputs, Products::of(graph, Precision::Highest)));
        if let Some((element, tolerance)) = bounds.violation(number, want, got) {
            let (got, want) = (got.get(element), want.get(element));
            wrong = Some(format!("element {element} of output {number} is {got} instead of {want} (±{tolerance:.1e})"));
        }
    }
    (deviations, wrong)
}

impl fmt::Display for BisectReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.passes.iter().map(|p| p.pass.len()).max().unwrap_or(0);
        for (number, PassReport { pass, nodes, outputs, wrong }) in self.passes.iter().enumerate() {
            let furthest =
                outputs.iter().copied().fold(Deviation::default(), |a, b| if b.max_ulp > a.max_ulp { b } else { a });
            let verdict = match wrong {
                Some(wrong) => format!("WRONG: {wrong}"),
                None => format!("right ({furthest})"),
            };
            writeln!(f, "{number:>4}  {pass:width$}  {:>5} → {:<5} nodes  {verdict}", nodes.0, nodes.1)?;
        }
        match (self.first_wrong(), &self.around) {
            (Some(wrong), Some((before, after))) => {
                writeln!(f, "pass {} is the first that changes the answer", wrong.pass)?;
                writeln!(f, "before it:\n{before}\nafter it:\n{after}")
            }
            _ => writeln!(f, "no pass changes the answer"),
        }
    }
}
