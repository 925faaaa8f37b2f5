//! What no error bound describes, looked for in the reference run: short floats that leave their range (kernels that keep them in f32
//! go on, so such graphs are compiled to round as eager does), sums and products that may overflow or vanish in one order and not in
//! another (no candidate is wrong), infinities or NaN multiplied by a padding's or a mask's zero (a kernel may skip them), numbers of
//! bf16 below the normal ones in products (the instructions for them take such numbers for zero), gradients of attention's scores
//! that f16 does not hold (kernels round them to it, or do not), and scores so large that rounding them changes every weight (a gradient
//! takes the logarithm of their sum, which is rounded, from scores that are rounded elsewhere).

use super::rounding::{is_short, largest, normal, slack, sums};
use kiln_ir::interpret::Observer;
use kiln_ir::{AttentionOperand, BinaryOp, DType, Graph, HostTensor, NodeId, Op, ReduceKind};

/// Ops on short floats that make much of a bit that rounding takes away.
fn magnifies(op: &Op, to: DType) -> bool {
    match op {
        Op::Unary(op) => op.row().magnifies,
        Op::Binary(op) => op.row().magnifies,
        Op::Cast(_) | Op::Bitcast(_) => !to.is_float(),
        _ => false,
    }
}

/// What the reference run says about the range of intermediate values.
#[derive(Debug, Default, Clone, Copy)]
pub struct RangeLoss {
    /// A short float overflowed, or lost significant bits to underflow.
    pub short: bool,
    /// A sum or product may overflow or vanish depending on its order.
    pub order: bool,
}

/// Watches a reference run for [`RangeLoss`].
pub struct RangeWatch<'a> {
    graph: &'a Graph,
    /// What was found so far.
    pub loss: RangeLoss,
    /// For each node: whether its value may depend on the order of a sum or product.
    by_order: Vec<bool>,
    /// Powers of two by which a product of everything the node reads may grow and shrink.
    growth: (f64, f64),
    /// Which operands of a product have numbers below the normal ones, and which have some that make much of them.
    vanishing: [bool; 2],
    large: [bool; 2],
    /// The largest elements of a gradient's values and gradient, and what is subtracted from their products.
    scores: [f64; 3],
    /// The largest elements of its queries and keys.
    factors: [f64; 2],
}

/// How far rounding may move a score of attention before the weights that gradients make of it say nothing.
const SCORE_MOVES: f64 = 1.0 / 16.0;

/// The largest of the finite elements.
fn largest_element(value: &HostTensor) -> f64 {
    value.to_f64().into_iter().filter(|v| v.is_finite()).fold(0.0, |most, v| most.max(v.abs()))
}

impl<'a> RangeWatch<'a> {
    /// Watches a run of this graph, to be given to `interpret::run_with`.
    pub fn new(graph: &'a Graph) -> RangeWatch<'a> {
        let by_order = vec![false; graph.nodes().len()];
        let (growth, vanishing, large) = ((0.0, 0.0), [false; 2], [false; 2]);
        let (scores, factors) = ([0.0; 3], [0.0; 2]);
        RangeWatch { graph, loss: RangeLoss::default(), by_order, growth, vanishing, large, scores, factors }
    }

    /// For each output of the graph: whether its value may depend on the order of a sum or product.
    pub fn outputs_by_order(&self) -> Vec<bool> {
        self.graph.outputs().iter().map(|output| self.by_order[output.node.index()]).collect()
    }

    /// Notes that a node's value may depend on an order.
    fn note_order(&mut self, node: NodeId, depends: bool) {
        self.loss.order |= depends;
        self.by_order[node.index()] |= depends;
    }

    /// Whether the gradients of attention's scores may leave the range of the short floats that a kernel may round them to, given its
    /// operands one after another. Weights are below one, or not much above: with the logarithm of another sum they may be.
    fn overflows_in_scores(&mut self, node: NodeId, position: usize, value: &HostTensor) -> bool {
        let Op::AttentionGradient { of, scale, .. } = &self.graph.node(node).op else { return false };
        let place = match position {
            2 => 0,
            3 => 1,
            5 => 2,
            _ => return false,
        };
        self.scores[place] = largest_element(value);
        let width = self.graph.ty(self.graph.node(node).operands[2]).shape[3].as_const().unwrap_or(1) as f64;
        let [values, gradient, delta] = self.scores;
        let most = (width * values * gradient + delta) * scale.as_f64().abs();
        *of != AttentionOperand::Values && most > largest(self.graph.ty(node).dtype) / 8.0
    }

    /// Whether the scores of a gradient of attention may be so large that the logarithm of their sum is another number for being
    /// rounded, given its operands one after another: a weight is then the exponential of what rounding left.
    fn loses_weights(&mut self, node: NodeId, position: usize, value: &HostTensor) -> bool {
        let Op::AttentionGradient { scale, .. } = &self.graph.node(node).op else { return false };
        if position > 1 {
            return false;
        }
        self.factors[position] = largest_element(value);
        let operands = &self.graph.node(node).operands;
        let width = self.graph.ty(operands[0]).shape[3].as_const().unwrap_or(1) as f64;
        let [queries, keys] = self.factors;
        let rounding = if self.graph.ty(operands[4]).dtype == DType::F64 { f64::EPSILON } else { f32::EPSILON.into() };
        width * queries * keys * scale.as_f64().abs() * rounding > SCORE_MOVES
    }
}

/// Whether an operand of a sum is a product of elements, or a view of one.
fn adds_products(graph: &Graph, node: NodeId, position: usize) -> bool {
    let mut at = graph.node(node).operands[position];
    loop {
        let node = graph.node(at);
        match &node.op {
            Op::Binary(BinaryOp::Mul) => return true,
            Op::Reshape { .. } | Op::Permute { .. } | Op::Expand { .. } | Op::Slice { .. } | Op::Cast(_) => {
                at = node.operands[0];
            }
            _ => return false,
        }
    }
}

impl Observer for RangeWatch<'_> {
    fn operand(&mut self, node: NodeId, position: usize, value: &HostTensor) -> Option<HostTensor> {
        let dtype = self.graph.ty(node).dtype;
        let op = &self.graph.node(node).op;
        if is_short(value.dtype()) && magnifies(op, dtype) {
            self.loss.short = true;
        }
        if !dtype.is_float() || !value.dtype().is_float() {
            return None;
        }
        // Every partial result of any order is between these; f32 holds the running value of the shorter types.
        // A scatter rounds to memory at each step.
        let held = if matches!(op, Op::Scatter { .. }) || dtype == DType::F64 { dtype } else { DType::F32 };
        let (most, least) = (largest(held), normal(held));
        let finite = || value.to_f64().into_iter().filter(|v| v.is_finite() && *v != 0.0);
        if multiplies(op) {
            self.growth.0 += finite().map(|v| v.abs().log2().max(0.0)).sum::<f64>();
            self.growth.1 += finite().map(|v| v.abs().log2().min(0.0)).sum::<f64>();
            self.note_order(node, self.growth.0 >= most.log2() || self.growth.1 <= least.log2());
        }
        if sums(self.graph, op, node) {
            self.note_order(node, finite().map(|v| v.abs() / most).sum::<f64>() > 1e-3);
            // Fused sums add products that are not rounded before: one that overflows is no infinity there.
            let overflows =
                adds_products(self.graph, node, position) && value.to_f64().into_iter().any(f64::is_infinite);
            self.note_order(node, overflows);
        }
        let is_open = self.overflows_in_scores(node, position, value) | self.loses_weights(node, position, value);
        self.note_order(node, is_open);
        if matches!(op, Op::Conv(_)) || op.is_attention() {
            // Padding, masks and weights that vanish multiply elements by zero or leave them out.
            self.note_order(node, value.to_f64().into_iter().any(|v| !v.is_finite()));
        }
        if matches!(op, Op::Dot { .. } | Op::Conv(_)) || op.is_attention() {
            // Products of elements are within range if the elements are within its square root.
            self.note_order(node, finite().any(|v| v.abs() > most.sqrt() * 1e-3));
            if value.dtype() == DType::Bf16 && position < 2 {
                let values = value.to_f64();
                self.vanishing[position] |= values.iter().any(|v| *v != 0.0 && v.abs() < least);
                self.large[position] |= values.iter().any(|v| v.abs() > 1.0);
                let [x, y] = self.vanishing;
                self.note_order(node, (x && self.large[1]) || (y && self.large[0]));
            }
        }
        None
    }

    fn value(&mut self, node: NodeId, value: &mut HostTensor) {
        self.growth = (0.0, 0.0);
        (self.vanishing, self.large, self.scores, self.factors) = ([false; 2], [false; 2], [0.0; 3], [0.0; 2]);
        let operands = &self.graph.node(node).operands;
        self.by_order[node.index()] |= operands.iter().any(|operand| self.by_order[operand.index()]);
        let dtype = value.dtype();
        if is_short(dtype) && slack(self.graph, node, &self.graph.node(node).op) > 0.0 {
            self.loss.short |= value.to_f64().into_iter().any(|v| !v.is_finite() || v.abs() < normal(dtype));
        }
    }
}

fn multiplies(op: &Op) -> bool {
    match op {
        Op::Reduce { kind, .. } | Op::Scan { kind, .. } | Op::ReduceWindow { kind, .. } => *kind == ReduceKind::Prod,
        Op::Scatter { kind, .. } => *kind == kiln_ir::ScatterKind::Mul,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_ir::interpret;

    /// Whether a product of two numbers of bf16 is one that instructions may take for another.
    fn is_open(x: f64, y: f64) -> bool {
        let text = "graph(%0: bf16[1, 1], %1: bf16[1, 1]) {
          %2: bf16[1, 1] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
          return %2
        }";
        let graph = Graph::parse(text).unwrap();
        let inputs = [x, y].map(|value| HostTensor::from_f64(DType::Bf16, &[1, 1], &[value]).unwrap());
        let mut watch = RangeWatch::new(&graph);
        interpret::run_with(&graph, &inputs, &mut watch).unwrap();
        watch.outputs_by_order()[0]
    }

    #[test]
    fn numbers_below_the_normal_ones_are_open_beside_large_ones() {
        assert!(is_open(1e-40, f64::INFINITY) && is_open(-100.0, 1e-39));
        assert!(!is_open(1e-40, 1.0) && !is_open(1e-40, 1e-40) && !is_open(0.0, f64::INFINITY) && !is_open(3.0, 2.0));
    }

    /// Whether a gradient of attention with two keys is one that kernels may compute differently; the values are these times a number,
    /// the keys these times another.
    fn gradient_is_open(of: &str, by: f64, keys: f64) -> bool {
        let text = format!(
            "graph(%0: f16[1, 1, 1, 1], %1: f16[1, 1, 2, 1], %2: f16[1, 1, 2, 2], %3: f16[1, 1, 1, 2], %4: f32[1, 1, 1, 1]) {{
              %5: f32[1, 1, 1, 1] = attention_logsumexp %0, %1 {{scale=1.0}}
              %6: f16[1, 1, {}] = attention_gradient_{of} %0, %1, %2, %3, %5, %4 {{scale=1.0}}
              return %6
            }}",
            if of == "values" { "2, 2" } else { "1, 1" }
        );
        let graph = Graph::parse(&text).unwrap();
        let tensor = |dtype, shape: &[usize], values: &[f64]| HostTensor::from_f64(dtype, shape, values).unwrap();
        let inputs = [
            tensor(DType::F16, &[1, 1, 1, 1], &[0.5 * keys]),
            tensor(DType::F16, &[1, 1, 2, 1], &[1.0, -1.0].map(|value| value * keys)),
            tensor(DType::F16, &[1, 1, 2, 2], &[1.0, 2.0, -3.0, 4.0].map(|value| value * by)),
            tensor(DType::F16, &[1, 1, 1, 2], &[1.0, -2.0].map(|value| value * by)),
            tensor(DType::F32, &[1, 1, 1, 1], &[by]),
        ];
        let mut watch = RangeWatch::new(&graph);
        interpret::run_with(&graph, &inputs, &mut watch).unwrap();
        watch.outputs_by_order()[0]
    }

    #[test]
    fn gradients_of_scores_beyond_short_floats_are_open() {
        assert!(gradient_is_open("queries", 100.0, 1.0) && !gradient_is_open("queries", 10.0, 1.0));
        assert!(!gradient_is_open("values", 100.0, 1.0));
    }

    #[test]
    fn weights_of_scores_beyond_rounding_are_open() {
        // 0.5 · 2000², of which f32 keeps an eighth, and 0.5 · 500².
        for of in ["queries", "values"] {
            assert!(gradient_is_open(of, 1.0, 2000.0) && !gradient_is_open(of, 1.0, 500.0), "{of}");
        }
    }
}
