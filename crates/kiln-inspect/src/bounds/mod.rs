//! How far a correct result may be from the reference, found by perturbing the reference.
//!
//! ```text
//!  a few perturbed runs      ──▶ the tolerance of each element: the furthest that a run moved it, times a margin
//!  a violation               ──▶ many more, which also learn how far the operands of ops that jump move (`jumps`);
//!                                then runs in which these operands are at, before and behind the points where they do
//!  an element that a run     ──▶ undecided: any answer passes, and is counted
//!  makes something else of
//! ```

mod jumps;
mod perturbation;
mod range;
mod rounding;

pub use perturbation::Products;
pub use range::{RangeLoss, RangeWatch};

pub(crate) use rounding::{epsilon, is_exact, least_tolerance, normal};

use kiln_ir::{Graph, HostTensor, Scalar, interpret};
use perturbation::{Findings, Perturbation, Plan, Unperturbed};
use rounding::{MARGIN, largest, tiny};

/// Perturbed runs made at once, and again before a violation is believed.
const RUNS: u64 = 4;
const MORE_RUNS: u64 = 252;

/// The outputs of perturbed runs of one graph.
///
/// ```
/// use kiln_inspect::bounds::{ErrorBounds, Products};
/// use kiln_ir::{Graph, HostTensor, interpret};
/// let graph = Graph::parse("graph(%0: f32[2]) {
///   %1: f32[2] = exp %0
///   return %1
/// }").unwrap();
/// let inputs = [HostTensor::from_slice(&[2], &[0f32, 1.0]).unwrap()];
/// let want = interpret::run(&graph, &inputs).unwrap().remove(0);
/// let mut bounds = ErrorBounds::new(&graph, &inputs, Products::Exact);
/// let rounded = HostTensor::from_slice(&[2], &[1.0000001f32, 2.718282]).unwrap();
/// let wrong = HostTensor::from_slice(&[2], &[1f32, 2.71]).unwrap();
/// assert_eq!(bounds.check(0, &want, &rounded), Ok(0));
/// assert_eq!(bounds.violation(0, &want, &wrong).map(|(element, _)| element), Some(1));
/// ```
pub struct ErrorBounds<'a> {
    graph: &'a Graph,
    inputs: &'a [HostTensor],
    runs: Vec<Vec<HostTensor>>,
    findings: Findings,
    made: u64,
    /// Nothing in the graph rounds, so that all results must be equal to the bit.
    exact: bool,
    /// Perturbed runs made before a violation is believed.
    more: u64,
    /// How products may round.
    products: Products,
}

/// An element that is further off than the perturbed runs explain, with what was allowed.
pub type Violation = (usize, f64);

impl<'a> ErrorBounds<'a> {
    /// A few perturbed runs of a graph on these inputs; many more are made before a violation is believed.
    pub fn new(graph: &'a Graph, inputs: &'a [HostTensor], products: Products) -> ErrorBounds<'a> {
        ErrorBounds::with_runs(graph, inputs, products, MORE_RUNS)
    }

    /// [`ErrorBounds::new`] with at most `more` further runs, for graphs that take long.
    pub fn with_runs(graph: &'a Graph, inputs: &'a [HostTensor], products: Products, more: u64) -> ErrorBounds<'a> {
        let (exact, findings) = (is_exact(graph), Findings::new(graph));
        let mut bounds = ErrorBounds { graph, inputs, runs: vec![], findings, made: 0, exact, more, products };
        let mut unperturbed = Unperturbed::new(graph, &mut bounds.findings);
        if !exact && interpret::run_with(graph, inputs, &mut unperturbed).is_ok() {
            bounds.extend(RUNS, false);
        }
        bounds
    }

    fn extend(&mut self, runs: u64, jumps: bool) {
        for _ in 0..runs {
            let plan = Plan::new(self.made);
            self.made += 1;
            let mut perturbation = Perturbation::new(self.graph, &mut self.findings, plan, self.products, jumps);
            // A perturbed index may leave its range; that run says nothing.
            if let Ok(run) = interpret::run_with(self.graph, self.inputs, &mut perturbation) {
                self.runs.push(run);
            }
        }
    }

    /// The runs that a violation has to survive.
    fn confirm(&mut self) {
        if !self.findings.has_jumps() {
            return self.extend(self.more, false);
        }
        let learning = self.more.div_ceil(4);
        self.extend(learning, false);
        self.extend(self.more - learning, true);
    }

    /// The first element of an output that is further off than the perturbed runs explain, with what was allowed.
    pub fn violation(&mut self, output: usize, want: &HostTensor, got: &HostTensor) -> Option<Violation> {
        self.check(output, want, got).err()
    }

    /// How many elements of an output are undecided, or the first one that is further off than the perturbed runs explain.
    pub fn check(&mut self, output: usize, want: &HostTensor, got: &HostTensor) -> Result<usize, Violation> {
        let first = self.scan(output, want, got);
        if first.is_ok() || self.exact || self.made > RUNS {
            return first;
        }
        self.confirm();
        self.scan(output, want, got)
    }

    fn scan(&self, output: usize, want: &HostTensor, got: &HostTensor) -> Result<usize, Violation> {
        let mut undecided = 0;
        for element in 0..want.elements() {
            let Some(tolerance) = self.tolerance(output, element, want) else {
                undecided += 1;
                continue;
            };
            let fine = match (want.get(element), got.get(element)) {
                (Scalar::Int(_, want), Scalar::Int(_, got)) => want == got,
                (want, got) => close(want.as_f64(), got.as_f64(), tolerance),
            };
            if !fine {
                return Err((element, tolerance));
            }
        }
        Ok(undecided)
    }

    /// The allowed distance at one element; `None` where the perturbed runs show that anything may come out.
    fn tolerance(&self, output: usize, element: usize, want: &HostTensor) -> Option<f64> {
        if let Scalar::Int(_, centre) = want.get(element) {
            let moved = self.runs.iter().any(|run| run[output].get(element).as_i64() != centre);
            return (!moved).then_some(0.0);
        }
        let centre = want.get(element).as_f64();
        let dtype = want.dtype();
        // One rounding to the output's dtype, and the smallest normal numbers, which some kernels flush.
        let mut spread =
            if self.exact || !dtype.is_float() { 0.0 } else { centre.abs() * epsilon(dtype) + tiny(dtype) };
        for run in &self.runs {
            let other = run[output].get(element).as_f64();
            if other.is_nan() != centre.is_nan() || other.is_infinite() != centre.is_infinite() {
                return None;
            }
            if other.is_finite() {
                spread = spread.max((other - centre).abs());
            } else if other.is_infinite() && other != centre {
                return None;
            }
        }
        // Close to overflow, one rounding decides between a number and infinity.
        if dtype.is_float() && !self.exact && centre.is_finite() && centre.abs() > largest(dtype) * 0.99 {
            return None;
        }
        Some(spread * MARGIN)
    }
}

fn close(want: f64, got: f64, tolerance: f64) -> bool {
    if want.is_nan() || got.is_nan() {
        return want.is_nan() && got.is_nan();
    }
    want == got || (want - got).abs() <= tolerance
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_ir::DType;

    /// The difference of gradient · v and delta is 26 of 1.7e9, which f32 does not hold: nothing is left of it, or thousands. Clamped,
    /// most of what it may be is ±4.
    #[test]
    fn what_is_left_of_a_cancellation_beyond_the_range_may_be_nothing() {
        let text = "graph(%0: f16[1, 1, 1, 1], %1: f16[1, 1, 2, 1], %2: f16[1, 1, 2, 2]) {
          %3: f32[1, 1, 1, 1] = attention_logsumexp %0, %1 {scale=1.0}
          %4: f16[1, 1, 1, 2] = attention %0, %1, %2 {scale=1.0}
          %5: f32[1, 1, 1, 2] = cast %4
          %6: f32[1, 1, 1, 2] = mul %5, %5
          %7: f32[1, 1, 1, 1] = reduce_sum %6 {axes=[3]}
          %8: f16[1, 1, 1, 1] = attention_gradient_queries %0, %1, %2, %4, %3, %7 {scale=1.0}
          %9: f16[1, 1, 1, 1] = full {value=-4.0}
          %10: f16[1, 1, 1, 1] = max %8, %9
          %11: f16[1, 1, 1, 1] = full {value=4.0}
          %12: f16[1, 1, 1, 1] = min %10, %11
          %13: f16[1, 1, 1, 1] = abs %12
          return %13
        }";
        let graph = Graph::parse(text).unwrap();
        let tensor = |shape: &[usize], values: &[f64]| HostTensor::from_f64(DType::F16, shape, values).unwrap();
        let inputs = [
            tensor(&[1, 1, 1, 1], &[2.0]),
            tensor(&[1, 1, 2, 1], &[-24.9375, 14.53125]),
            tensor(&[1, 1, 2, 2], &[-34.25, 0.001, 41408.0, -5.07421875]),
        ];
        let want = interpret::run(&graph, &inputs).unwrap().remove(0);
        let mut bounds = ErrorBounds::new(&graph, &inputs, Products::Exact);
        assert_eq!(want.get(0).as_f64(), 4.0);
        assert_eq!(bounds.violation(0, &want, &tensor(&[1, 1, 1, 1], &[0.0625])), None);
    }
}
