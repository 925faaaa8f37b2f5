//! How far a correct result may be from the reference, found by disturbing the reference.
//!
//! Three things are beyond disturbing and are looked for in the reference run: short floats that leave their range (kernels
//! that keep them in f32 go on, so such graphs are compiled to round as eager does), sums and products that may overflow or
//! vanish in one order and not in another (no opinion is wrong), and infinities or NaN multiplied by a padding's or a mask's
//! zero (a kernel may skip them).

use kiln_ir::interpret::{self, Observer};
use kiln_ir::{BinaryOp, DType, Graph, HostTensor, NodeId, Op, ReduceKind, Scalar, UnaryOp};
use kiln_kernels::Precision;

/// Disturbed runs made at once, and again before a violation is believed.
const RUNS: u64 = 4;
const MORE_RUNS: u64 = 252;
/// A result may be this many times as far off as the worst disturbed run was.
const MARGIN: f64 = 8.0;

/// The outputs of disturbed runs of one graph.
pub(crate) struct Envelope<'a> {
    graph: &'a Graph,
    inputs: &'a [HostTensor],
    runs: Vec<Vec<HostTensor>>,
    seed: u64,
    /// Nothing in the graph rounds, so that all opinions must be equal to the bit.
    exact: bool,
    /// Disturbed runs made before a violation is believed.
    more: u64,
    /// How exact products have to be.
    precision: Precision,
}

/// Whether nothing in a graph rounds, so that all opinions must be equal to the bit.
pub(crate) fn is_exact(graph: &Graph) -> bool {
    let inexact = |(id, node): (NodeId, &kiln_ir::Node)| {
        slack(graph, id, &node.op) > 0.0 || sums(graph, &node.op, id) || zero_sign_is_open(&node.op)
    };
    !graph.iter().any(inexact)
}

/// What is allowed at the least where something rounds, whatever the disturbed runs say.
pub(crate) fn least_tolerance(dtype: DType, want: f64) -> f64 {
    if dtype.is_float() { MARGIN * (want.abs() * epsilon(dtype) + tiny(dtype)) } else { 0.0 }
}

impl<'a> Envelope<'a> {
    pub fn new(graph: &'a Graph, inputs: &'a [HostTensor], precision: Precision) -> Envelope<'a> {
        Envelope::with_runs(graph, inputs, precision, MORE_RUNS)
    }

    /// [`Envelope::new`] with at most `more` further runs, for graphs that take long.
    pub fn with_runs(graph: &'a Graph, inputs: &'a [HostTensor], precision: Precision, more: u64) -> Envelope<'a> {
        let exact = is_exact(graph);
        let mut envelope = Envelope { graph, inputs, runs: vec![], seed: 1, exact, more, precision };
        if !exact {
            envelope.extend(RUNS);
        }
        envelope
    }

    fn extend(&mut self, runs: u64) {
        for _ in 0..runs {
            self.seed += 1;
            let state = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let scale = [1.0, 0.25, 1.0, 0.5][(self.seed % 4) as usize];
            let operand = rounding(self.precision);
            let mut disturbance = Disturbance { graph: self.graph, state, scale, magnitude: 0.0, operand };
            // A disturbed index may leave its range; that run says nothing.
            if let Ok(run) = interpret::run_with(self.graph, self.inputs, &mut disturbance) {
                self.runs.push(run);
            }
        }
    }

    /// The first element of an output that is further off than the disturbed runs explain, with what was allowed.
    pub fn violation(&mut self, output: usize, want: &HostTensor, got: &HostTensor) -> Option<(usize, f64)> {
        let first = self.scan(output, want, got)?;
        if self.exact || self.runs.len() as u64 > RUNS {
            return Some(first);
        }
        self.extend(self.more);
        self.scan(output, want, got)
    }

    fn scan(&self, output: usize, want: &HostTensor, got: &HostTensor) -> Option<(usize, f64)> {
        (0..want.elements()).find_map(|element| {
            let tolerance = self.tolerance(output, element, want)?;
            let (want, got) = (want.get(element), got.get(element));
            let fine = match (want, got) {
                (Scalar::Int(_, want), Scalar::Int(_, got)) => want == got,
                _ => close(want.as_f64(), got.as_f64(), tolerance),
            };
            (!fine).then_some((element, tolerance))
        })
    }

    /// The allowed distance at one element; `None` where the disturbed runs show that anything may come out.
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
        // Nothing is left of the value: a division by what cancelled, for instance.
        if centre != 0.0 && spread > 0.5 * centre.abs() {
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

/// The distance from one to the next number.
pub(crate) fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f32::EPSILON as f64,
        DType::F16 => 1.0 / 1024.0,
        DType::Bf16 => 1.0 / 128.0,
        DType::F8E4M3 => 1.0 / 8.0,
        DType::F8E5M2 => 1.0 / 4.0,
        _ => 0.0,
    }
}

fn tiny(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F32 | DType::Bf16 => f32::MIN_POSITIVE as f64,
        DType::F16 => 6.2e-5 / 64.0,
        _ => 1e-5,
    }
}

/// The smallest number with all its digits.
pub(crate) fn normal(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MIN_POSITIVE,
        DType::F16 => 6.2e-5,
        _ => f32::MIN_POSITIVE as f64,
    }
}

fn largest(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::MAX,
        DType::F16 => 65504.0,
        DType::F8E4M3 => 448.0,
        DType::F8E5M2 => 57344.0,
        _ => f32::MAX as f64,
    }
}

/// By how much of the largest element beside it an element of a product of F32 may be rounded.
fn rounding(precision: Precision) -> f64 {
    match precision {
        Precision::Highest => 0.0,
        // Of TF32, which has 11 bits.
        Precision::High => 1.0 / 2048.0,
        Precision::Medium => 1.0 / 128.0,
    }
}

/// By how many units in the last place a correct kernel may be off in one op, beyond the reference's own rounding.
fn slack(graph: &Graph, id: NodeId, op: &Op) -> f64 {
    if !graph.ty(id).dtype.is_float() {
        return 0.0;
    }
    let dtype = graph.ty(id).dtype;
    // Inside a fused kernel a short float is not rounded at all.
    let short = if is_short(dtype) { 1.0 } else { 0.0 };
    match op {
        Op::Unary(op) => match op {
            UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign => 0.0,
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => 0.0,
            UnaryOp::Sqrt | UnaryOp::Recip => 1.0,
            UnaryOp::Lgamma | UnaryOp::ErfInv => 16.0,
            _ => 4.0,
        },
        Op::Binary(op) => match op {
            BinaryOp::Max | BinaryOp::Min | BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => 0.0,
            BinaryOp::Pow | BinaryOp::Atan2 => 16.0,
            BinaryOp::Div | BinaryOp::Rem => 0.5 + short,
            _ => short,
        },
        Op::Cast(_) => 0.0,
        Op::Reduce { kind, .. } | Op::Scan { kind, .. } | Op::ReduceWindow { kind, .. } => match kind {
            // A running sum in one accumulator loses half a unit a step.
            ReduceKind::Sum | ReduceKind::Prod => 8.0 + summands(graph, id) / 4.0,
            _ => 0.0,
        },
        Op::Scatter { kind: kiln_ir::ScatterKind::Add | kiln_ir::ScatterKind::Mul, .. } => 4.0,
        Op::Dot { .. } | Op::Conv(_) | Op::Attention { .. } => 8.0,
        _ => 0.0,
    }
}

/// True for ops whose error is proportional to the summands, not to the result.
fn sums(graph: &Graph, op: &Op, id: NodeId) -> bool {
    let sum = match op {
        Op::Reduce { kind, .. } | Op::Scan { kind, .. } | Op::ReduceWindow { kind, .. } => *kind == ReduceKind::Sum,
        Op::Scatter { kind, .. } => *kind == kiln_ir::ScatterKind::Add,
        Op::Dot { .. } | Op::Conv(_) | Op::Attention { .. } => true,
        _ => false,
    };
    sum && graph.ty(id).dtype.is_float()
}

/// Elements of the operand for each of the result; plenty where sizes are symbols.
fn summands(graph: &Graph, id: NodeId) -> f64 {
    let count = |id: NodeId| graph.ty(id).elements().as_const();
    match (count(graph.node(id).operands[0]), count(id)) {
        (Some(from), Some(to)) => (from.max(1) / to.max(1)).max(1) as f64,
        _ => 4096.0,
    }
}

/// Ops on short floats that make much of a bit that rounding takes away.
fn magnifies(op: &Op, to: DType) -> bool {
    match op {
        Op::Unary(op) => matches!(
            op,
            UnaryOp::Sin
                | UnaryOp::Cos
                | UnaryOp::Tan
                | UnaryOp::Floor
                | UnaryOp::Ceil
                | UnaryOp::Round
                | UnaryOp::Trunc
                | UnaryOp::Lgamma
        ),
        Op::Binary(op) => matches!(op, BinaryOp::Rem | BinaryOp::Pow),
        Op::Cast(_) | Op::Bitcast(_) => !to.is_float(),
        _ => false,
    }
}

fn is_short(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16)
}

/// What the reference run says about the range of intermediate values.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct RangeLoss {
    /// A short float overflowed or lost digits at the small end.
    pub short: bool,
    /// A sum or product may overflow or vanish depending on its order.
    pub order: bool,
}

/// Watches a reference run for [`RangeLoss`].
pub(crate) struct RangeWatch<'a> {
    graph: &'a Graph,
    pub loss: RangeLoss,
    /// Binary digits by which a product of everything the node reads may grow and shrink.
    growth: (f64, f64),
}

impl<'a> RangeWatch<'a> {
    pub fn new(graph: &'a Graph) -> RangeWatch<'a> {
        RangeWatch { graph, loss: RangeLoss::default(), growth: (0.0, 0.0) }
    }
}

impl Observer for RangeWatch<'_> {
    fn operand(&mut self, node: NodeId, _position: usize, value: &HostTensor) -> Option<HostTensor> {
        let dtype = self.graph.ty(node).dtype;
        let op = &self.graph.node(node).op;
        if is_short(value.dtype()) && magnifies(op, dtype) {
            self.loss.short = true;
        }
        if !dtype.is_float() || !value.dtype().is_float() {
            return None;
        }
        // Every partial result of any order lies between these; f32 holds the running value of the shorter types.
        // A scatter rounds to memory at each step.
        let held = if matches!(op, Op::Scatter { .. }) || dtype == DType::F64 { dtype } else { DType::F32 };
        let (most, least) = (largest(held), normal(held));
        let finite = || value.to_f64().into_iter().filter(|v| v.is_finite() && *v != 0.0);
        if multiplies(op) {
            self.growth.0 += finite().map(|v| v.abs().log2().max(0.0)).sum::<f64>();
            self.growth.1 += finite().map(|v| v.abs().log2().min(0.0)).sum::<f64>();
            self.loss.order |= self.growth.0 >= most.log2() || self.growth.1 <= least.log2();
        }
        if sums(self.graph, op, node) {
            self.loss.order |= finite().map(|v| v.abs() / most).sum::<f64>() > 1e-3;
        }
        if let Op::Conv(_) | Op::Attention { .. } = op {
            // Padding, masks and weights that vanish multiply elements by zero or leave them out.
            self.loss.order |= value.to_f64().into_iter().any(|v| !v.is_finite());
        }
        if let Op::Dot { .. } | Op::Conv(_) | Op::Attention { .. } = op {
            // Products of elements are within range if the elements are within its square root.
            self.loss.order |= finite().any(|v| v.abs() > most.sqrt() * 1e-3);
        }
        None
    }

    fn value(&mut self, node: NodeId, value: &mut HostTensor) {
        self.growth = (0.0, 0.0);
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

/// Ops for which +0 and −0 are equally good: which of two zeros is larger, and what an empty or cancelling sum gives.
fn zero_sign_is_open(op: &Op) -> bool {
    match op {
        Op::Binary(BinaryOp::Max | BinaryOp::Min) => true,
        Op::Reduce { .. } | Op::Scan { .. } | Op::ReduceWindow { .. } => true,
        Op::Scatter { kind, .. } => *kind != kiln_ir::ScatterKind::Set,
        Op::Dot { .. } | Op::Conv(_) | Op::Attention { .. } => true,
        _ => false,
    }
}

/// Moves results by random parts of what a correct kernel may be off.
struct Disturbance<'a> {
    graph: &'a Graph,
    state: u64,
    /// Smaller steps hit exact values more often.
    scale: f64,
    /// The largest number that the node at hand reads.
    magnitude: f64,
    /// By how much of an operand's largest element the elements of a product's operands move.
    operand: f64,
}

impl Disturbance<'_> {
    /// Uniform in −1..1.
    fn random(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    fn shake(&mut self, value: &mut HostTensor, by: f64) {
        let dtype = value.dtype();
        for i in 0..value.elements() {
            let centre = value.get(i).as_f64();
            if centre.is_finite() && centre != 0.0 {
                let moved = centre * (1.0 + self.random() * by);
                value.set(i, Scalar::float(dtype, moved));
            }
        }
    }

    /// Moves every element by up to as much, however small it is.
    fn nudge(&mut self, value: &mut HostTensor, by: f64) {
        let dtype = value.dtype();
        for i in 0..value.elements() {
            let centre = value.get(i).as_f64();
            if centre.is_finite() {
                let moved = centre + self.random() * by;
                value.set(i, Scalar::float(dtype, moved));
            }
        }
    }
}

impl Observer for Disturbance<'_> {
    fn operand(&mut self, node: NodeId, position: usize, value: &HostTensor) -> Option<HostTensor> {
        let dtype = value.dtype();
        let largest = match dtype.is_float() {
            true => value.to_f64().into_iter().filter(|v| v.is_finite()).fold(0.0f64, |a, v| a.max(v.abs())),
            false => 0.0,
        };
        self.magnitude = self.magnitude.max(largest);
        if self.operand > 0.0 && dtype == DType::F32 && matches!(self.graph.node(node).op, Op::Dot { .. }) {
            let mut value = value.clone();
            self.nudge(&mut value, self.operand * largest);
            return Some(value);
        }
        let mut by = 0.0f64;
        if sums(self.graph, &self.graph.node(node).op, node) && dtype.is_float() {
            // The summands themselves are exact; the running sum is rounded at each step, which is as if they were not.
            by = 4.0 * epsilon(dtype);
        }
        // One user may see the rounded short float and another, in the same kernel, the value before rounding.
        let producer = self.graph.node(self.graph.node(node).operands[position]);
        let short = match producer.op {
            Op::Input { .. } | Op::Full { .. } | Op::Constant(_) => DType::F64,
            Op::Cast(_) => self.graph.ty(producer.operands[0]).dtype,
            _ => dtype,
        };
        if is_short(short) && dtype.is_float() {
            by = by.max(epsilon(short));
        }
        if by == 0.0 {
            return None;
        }
        let mut value = value.clone();
        self.shake(&mut value, by);
        Some(value)
    }

    fn value(&mut self, node: NodeId, value: &mut HostTensor) {
        let op = &self.graph.node(node).op;
        let slack = slack(self.graph, node, op);
        if slack > 0.0 {
            self.shake(value, slack * epsilon(value.dtype()) * self.scale);
        }
        // What is left of a cancellation may as well be nothing.
        let noise = std::mem::take(&mut self.magnitude) * epsilon(value.dtype()) * 16.0;
        let cancels = sums(self.graph, op, node) || matches!(op, Op::Binary(BinaryOp::Add | BinaryOp::Sub));
        if cancels && value.dtype().is_float() {
            let all = self.random() > 0.5;
            for i in 0..value.elements() {
                if value.get(i).as_f64().abs() <= noise && (all || self.random() > 0.5) {
                    value.set(i, Scalar::float(value.dtype(), 0.0));
                }
            }
        }
        if zero_sign_is_open(op) && value.dtype().is_float() {
            for i in 0..value.elements() {
                if value.get(i).as_f64() == 0.0 && self.random() > 0.0 {
                    value.set(i, Scalar::float(value.dtype(), -value.get(i).as_f64()));
                }
            }
        }
    }
}
