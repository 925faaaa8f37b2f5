//! The reference, perturbed: every result moved by a part of what a correct kernel may be off.

use super::jumps::{self, OperandElement};
use super::rounding::{MARGIN, epsilon, is_short, largest, normal, slack, sum_error, sums, zero_sign_is_open};
use kiln_ir::interpret::{self, Observer};
use kiln_ir::{BinaryOp, BlockFormat, DType, Graph, HostTensor, NodeId, Op, Scalar};
use kiln_kernels::Precision;
use std::ops::{Deref, DerefMut};

/// Which errors go together. Equal numbers are rounded alike where a kernel computes them alike, and what cancels then cancels
/// everywhere or nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Together {
    /// Each element has its own.
    None,
    /// Equal elements of a node have equal ones.
    Equal,
    /// All elements of a node.
    Node,
}

/// What one run does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    seed: u64,
    together: Together,
    /// Errors take their largest size instead of a random part of it.
    extreme: bool,
    /// Smaller steps hit exact values more often.
    scale: f64,
}

impl Plan {
    /// Plan number `run`: neighbours differ in everything.
    pub fn new(run: u64) -> Plan {
        Plan {
            seed: (run + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            together: [Together::None, Together::Equal, Together::None, Together::Node][(run % 4) as usize],
            extreme: run % 8 >= 3,
            scale: [1.0, 0.25, 1.0, 0.5][(run / 8 % 4) as usize],
        }
    }
}

/// How products of the candidate under test round their operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// Not at all, as eager ones.
    Exact,
    /// As compiled kernels may: by the precision, and in fixed point beside quantised blocks.
    Compiled(Precision),
}

impl Products {
    /// As a compiled graph may round.
    pub fn of(graph: &Graph, precision: Precision) -> Products {
        let blocks = graph.iter().any(|(_, node)| reads_blocks(graph, &node.op, &node.operands));
        if blocks || precision != Precision::Highest { Products::Compiled(precision) } else { Products::Exact }
    }

    /// By how much of the largest element an element of a product of F32 may be rounded.
    fn rounding(self) -> f64 {
        match self {
            Products::Exact | Products::Compiled(Precision::Highest) => 0.0,
            // Of TF32, which has 11 bits.
            Products::Compiled(Precision::High) => 1.0 / 2048.0,
            Products::Compiled(Precision::Medium) => 1.0 / 128.0,
        }
    }
}

/// Whether a product reads quantised blocks without unpacking them to memory.
fn reads_blocks(graph: &Graph, op: &Op, operands: &[NodeId]) -> bool {
    matches!(op, Op::Dot { .. }) && matches!(graph.node(operands[1]).op, Op::Dequantize { .. })
}

/// What runs learn of nodes: sizes of terms, and how far the operands of ops that jump move.
#[derive(Default)]
pub(super) struct Findings {
    /// By node: Σ |term| of each element of a sum, and the most terms of one.
    magnitudes: Vec<Option<(Vec<f64>, usize)>>,
    /// By node: whether it is read by an op that jumps.
    watched: Vec<bool>,
    /// By watched node: its unperturbed value, and the furthest that a run moved each element.
    centres: Vec<Option<Vec<f64>>>,
    spreads: Vec<Vec<f64>>,
}

impl Findings {
    pub fn new(graph: &Graph) -> Findings {
        let count = graph.nodes().len();
        let mut watched = vec![false; count];
        for (_, node) in graph.iter().filter(|(_, node)| jumps::has_jumps(&node.op)) {
            node.operands.iter().for_each(|o| watched[o.index()] = graph.ty(*o).dtype.is_float());
        }
        Findings { magnitudes: vec![None; count], watched, centres: vec![None; count], spreads: vec![vec![]; count] }
    }

    /// Whether some op of the graph jumps.
    pub fn has_jumps(&self) -> bool {
        self.watched.contains(&true)
    }

    fn record(&mut self, node: NodeId, value: &HostTensor) {
        let Some(centre) = &self.centres[node.index()] else { return };
        let spread = &mut self.spreads[node.index()];
        spread.resize(centre.len(), 0.0);
        for ((spread, centre), value) in spread.iter_mut().zip(centre).zip(value.to_f64()) {
            let off = (value - centre).abs();
            // What becomes infinite or NaN shows in the outputs by itself.
            *spread = if off.is_finite() { spread.max(off) } else { *spread };
        }
    }

    /// How far off an element of a watched node may be.
    fn reach(&self, node: NodeId, element: usize) -> f64 {
        MARGIN * self.spreads[node.index()].get(element).copied().unwrap_or(0.0)
    }
}

/// Remembers the unperturbed values of watched nodes, and how large the terms of sums are. Those of a perturbed run would not do: where a
/// weight of attention is the exponential of a small difference of large numbers, they may be larger by any factor.
pub(super) struct Unperturbed<'a> {
    graph: &'a Graph,
    findings: &'a mut Findings,
    /// What the sum at hand reads.
    terms: Vec<HostTensor>,
}

impl<'a> Unperturbed<'a> {
    pub fn new(graph: &'a Graph, findings: &'a mut Findings) -> Unperturbed<'a> {
        Unperturbed { graph, findings, terms: Vec::new() }
    }
}

impl Observer for Unperturbed<'_> {
    fn operand(&mut self, node: NodeId, _position: usize, value: &HostTensor) -> Option<HostTensor> {
        if sums(self.graph, &self.graph.node(node).op, node) {
            self.terms.push(value.clone());
        }
        None
    }

    fn value(&mut self, node: NodeId, value: &mut HostTensor) {
        let op = &self.graph.node(node).op;
        if sums(self.graph, op, node) {
            let terms = std::mem::take(&mut self.terms);
            self.findings.magnitudes[node.index()] = interpret::magnitudes(op, &terms, value.shape());
        }
        if self.findings.watched[node.index()] {
            self.findings.centres[node.index()] = Some(value.to_f64());
        }
    }
}

/// What runs learn, or a turn of a loop, of which nothing is kept.
enum Learned<'a> {
    Kept(&'a mut Findings),
    OfTurn(Box<Findings>),
}

impl Deref for Learned<'_> {
    type Target = Findings;

    fn deref(&self) -> &Findings {
        match self {
            Learned::Kept(findings) => findings,
            Learned::OfTurn(findings) => findings,
        }
    }
}

impl DerefMut for Learned<'_> {
    fn deref_mut(&mut self) -> &mut Findings {
        match self {
            Learned::Kept(findings) => findings,
            Learned::OfTurn(findings) => findings,
        }
    }
}

/// Moves results by parts of what a correct kernel may be off.
pub(super) struct Perturbation<'a> {
    graph: &'a Graph,
    findings: Learned<'a>,
    plan: Plan,
    products: Products,
    state: u64,
    /// Operands of ops that jump are moved to where they do, if that is within reach.
    jumps: bool,
    /// One number for all elements of the node at hand.
    of_node: f64,
    /// The largest number that the node at hand reads.
    magnitude: f64,
    /// The values of watched nodes in this run.
    values: Vec<Vec<f64>>,
    /// What the sum at hand reads, in a turn of a loop.
    terms: Vec<HostTensor>,
}

impl<'a> Perturbation<'a> {
    pub fn new(
        graph: &'a Graph,
        findings: &'a mut Findings,
        plan: Plan,
        products: Products,
        jumps: bool,
    ) -> Perturbation<'a> {
        let values = vec![vec![]; graph.nodes().len()];
        let state = plan.seed;
        let (of_node, magnitude) = (0.0, 0.0);
        let (findings, terms) = (Learned::Kept(findings), Vec::new());
        Perturbation { graph, findings, plan, products, state, jumps, of_node, magnitude, values, terms }
    }

    /// Uniform in −1..1.
    fn random(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    /// The random number of an element, in −1..1.
    fn of_element(&mut self, value: f64) -> f64 {
        match self.plan.together {
            Together::None => self.random(),
            Together::Node => self.of_node,
            Together::Equal => {
                let bits = (value.to_bits() ^ self.of_node.to_bits()).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                ((bits ^ (bits >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
            }
        }
    }

    /// The part of its error that an element is moved by.
    fn part(&mut self, value: f64) -> f64 {
        let random = self.of_element(value);
        if self.plan.extreme { random.signum() } else { random * self.plan.scale }
    }

    /// Moves every finite element by a part of its error.
    fn shift(&mut self, value: &mut HostTensor, error: impl Fn(usize, f64) -> f64) {
        let dtype = value.dtype();
        for i in 0..value.elements() {
            let centre = value.get(i).as_f64();
            let error = if centre.is_finite() { error(i, centre) } else { 0.0 };
            if error > 0.0 && error.is_finite() {
                let moved = centre + self.part(centre) * error;
                value.set(i, Scalar::float(dtype, moved));
            }
        }
    }

    /// The relative difference by which an operand may differ from what another consumer reads.
    fn relative_error(&self, node: NodeId, position: usize, dtype: DType) -> f64 {
        let mut by = 0.0f64;
        if dtype.is_float() && self.graph.node(node).op.is_attention() {
            // Scores are sums too, which are rounded as if the operands were not exact.
            by = 4.0 * epsilon(dtype);
        }
        // One user may see the rounded short float and another, in the same kernel, the value before rounding.
        let producer = self.graph.node(self.graph.node(node).operands[position]);
        let short = match producer.op {
            Op::Input { .. } | Op::Full { .. } | Op::Constant(_) => DType::F64,
            Op::Cast(_) => self.graph.ty(producer.operands[0]).dtype,
            _ => dtype,
        };
        if is_short(short) && dtype.is_float() { by.max(epsilon(short)) } else { by }
    }

    /// Rounds an operand of a product as the kernels do.
    fn round_operand(&mut self, node: NodeId, position: usize, value: &mut HostTensor) {
        let Op::Dot { dims, .. } = &self.graph.node(node).op else { return };
        if value.dtype() != DType::F32 {
            return;
        }
        let rounding = self.products.rounding();
        if rounding > 0.0 {
            let error = rounding * most(&value.to_f64());
            self.shift(value, |_, _| error);
        }
        let weight = self.graph.node(self.graph.node(node).operands[1]);
        if let (Products::Compiled(_), Op::Dequantize { format }, 0) = (self.products, &weight.op, position) {
            // The left operand is put into fixed point.
            let errors = fixed_point_errors(value, &dims.lhs_contract, *format);
            self.shift(value, |i, _| errors[i]);
        }
    }

    /// Moves elements of an operand to where the op jumps, or to either side of it.
    fn jump(&mut self, node: NodeId, position: usize, value: &mut HostTensor) {
        let graph = self.graph;
        let (op, dtype) = (&graph.node(node).op, value.dtype());
        let operands = &graph.node(node).operands;
        let (own, other) = (operands[position], operands.get(1 - position.min(1)).copied());
        let infinite = |id: &NodeId| self.values[id.index()].iter().any(|v| !v.is_finite());
        let beside_infinity = operands.iter().any(infinite);
        for element in 0..value.elements() {
            let centre = value.get(element).as_f64();
            let reach = self.findings.reach(own, element);
            let beside = other.filter(|_| operands.len() == 2);
            let other_reach = beside.map_or(0.0, |id| self.findings.reach(id, element));
            if !centre.is_finite() || (reach == 0.0 && other_reach == 0.0) {
                continue;
            }
            let of_other = beside.and_then(|id| self.values[id.index()].get(element).copied()).unwrap_or(f64::NAN);
            let place =
                OperandElement { position, value: centre, reach, other: of_other, other_reach, beside_infinity };
            let Some(point) = jumps::point(op, dtype, place) else { continue };
            let reach = if matches!(op, Op::Compare(_)) { reach + other_reach } else { reach };
            let moved = match self.of_element(centre) {
                random if random < -0.5 => point - reach,
                random if random < 0.0 => point,
                random if random < 0.5 => point + reach,
                _ => centre,
            };
            value.set(element, Scalar::float(dtype, moved));
        }
    }

    /// Sets what is left of a cancellation to zero: all of it, none of it, or any part. Noise beyond the range of the type may leave
    /// anything, also where this run made an infinity of it.
    fn vanish(&mut self, value: &mut HostTensor, noise: f64) {
        let dtype = value.dtype();
        let kept = self.random().signum() + self.random().signum();
        for i in 0..value.elements() {
            let size = value.get(i).as_f64();
            let is_left = size != 0.0 && !size.is_nan() && size.abs().min(largest(dtype)) <= noise;
            if is_left && self.of_element(size) * 2.0 > kept {
                value.set(i, Scalar::float(dtype, 0f64.copysign(size)));
            }
        }
    }
}

impl Observer for Perturbation<'_> {
    fn operand(&mut self, node: NodeId, position: usize, value: &HostTensor) -> Option<HostTensor> {
        let dtype = value.dtype();
        let op = &self.graph.node(node).op;
        let mut moved = None;
        if dtype.is_float() {
            self.magnitude = self.magnitude.max(most(&value.to_f64()));
            self.of_node = self.random();
            let by = self.relative_error(node, position, dtype);
            if by > 0.0 {
                self.shift(moved.get_or_insert_with(|| value.clone()), |_, centre| centre.abs() * by);
            }
            if matches!(op, Op::Dot { .. }) {
                self.round_operand(node, position, moved.get_or_insert_with(|| value.clone()));
            }
            if self.jumps && jumps::has_jumps(op) {
                self.jump(node, position, moved.get_or_insert_with(|| value.clone()));
            }
        }
        // Other turns have other terms.
        if matches!(self.findings, Learned::OfTurn(_)) && sums(self.graph, op, node) {
            self.terms.push(moved.as_ref().unwrap_or(value).clone());
        }
        moved
    }

    fn turn(&mut self, node: NodeId, body: usize) -> Option<Box<dyn Observer + '_>> {
        let graph = self.graph.node(node).op.bodies().into_iter().nth(body)?;
        self.random();
        let values = vec![vec![]; graph.nodes().len()];
        let findings = Learned::OfTurn(Box::new(Findings::new(graph)));
        let (plan, products, state, terms) = (self.plan, self.products, self.state, Vec::new());
        let (jumps, of_node, magnitude) = (false, 0.0, 0.0);
        Some(Box::new(Perturbation {
            graph,
            findings,
            plan,
            products,
            state,
            jumps,
            of_node,
            magnitude,
            values,
            terms,
        }))
    }

    fn value(&mut self, node: NodeId, value: &mut HostTensor) {
        let op = &self.graph.node(node).op;
        let dtype = value.dtype();
        let magnitude = std::mem::take(&mut self.magnitude);
        self.of_node = self.random();
        if dtype.is_float() {
            let by = slack(self.graph, node, op) * epsilon(dtype);
            if by > 0.0 {
                self.shift(value, |_, centre| centre.abs() * by);
            }
            let adds = sums(self.graph, op, node);
            if adds {
                let own = match self.findings {
                    Learned::Kept(_) => self.findings.magnitudes[node.index()].clone(),
                    Learned::OfTurn(_) => {
                        let terms = std::mem::take(&mut self.terms);
                        interpret::magnitudes(op, &terms, value.shape())
                    }
                };
                let (magnitudes, terms) = own.unwrap_or_default();
                // Instructions for pairs of bf16 flush what is below the normal numbers, before and after they multiply.
                let of_pairs = self.graph.node(node).operands.iter().any(|o| self.graph.ty(*o).dtype == DType::Bf16);
                let flushed = if of_pairs { normal(DType::F32) * (1.0 + magnitude) * terms as f64 } else { 0.0 };
                self.shift(value, |i, _| magnitudes.get(i).map_or(0.0, |m| sum_error(op, dtype, terms, *m) + flushed));
            }
            let cancels = adds || matches!(op, Op::Binary(BinaryOp::Add | BinaryOp::Sub));
            let cancelled = if cancels { magnitude * epsilon(dtype) * 16.0 } else { 0.0 };
            // Some kernels flush what is below the normal numbers.
            let flushed =
                if adds || by > 0.0 { normal(if dtype == DType::F64 { dtype } else { DType::F32 }) } else { 0.0 };
            self.vanish(value, cancelled.max(flushed));
            for i in 0..value.elements() {
                let element = value.get(i).as_f64();
                if element == 0.0 && zero_sign_is_open(op) && self.of_element(element) > 0.0 {
                    value.set(i, Scalar::float(dtype, -element));
                }
                // Close to overflow, one rounding decides between a number and infinity.
                let huge = self.jumps && by > 0.0 && element.is_finite() && element.abs() > 0.99 * largest(dtype);
                if huge && self.of_element(element) > 0.0 {
                    value.set(i, Scalar::float(dtype, element * f64::INFINITY));
                }
            }
        }
        if self.findings.watched[node.index()] {
            match self.jumps {
                true => self.values[node.index()] = value.to_f64(),
                false => self.findings.record(node, value),
            }
        }
    }
}

/// The largest size of finite numbers.
fn most(values: &[f64]) -> f64 {
    values.iter().filter(|v| v.is_finite()).fold(0.0, |most, v| most.max(v.abs()))
}

/// By how much fixed point rounds each element of a product's left operand: of 21 bits or more, beside the largest of those that
/// share a scale of the blocks. (A unit is 2⁻²¹ of the largest and half of it may be lost; [`MARGIN`] is over that.)
fn fixed_point_errors(value: &HostTensor, contracted: &[usize], format: BlockFormat) -> Vec<f64> {
    let values = value.to_f64();
    let unit = 2f64.powi(-23);
    let &[axis] = contracted else { return vec![most(&values) * unit; values.len()] };
    let group = if format == BlockFormat::Q6_K { 16 } else { 32 };
    let inner: usize = value.shape()[axis + 1..].iter().product();
    let size = value.shape()[axis];
    let group_of = |i: usize| (i / (inner * size), i / inner % size / group, i % inner);
    let mut largest = std::collections::HashMap::new();
    for (i, v) in values.iter().enumerate().filter(|(_, v)| v.is_finite()) {
        let most: &mut f64 = largest.entry(group_of(i)).or_default();
        *most = most.max(v.abs());
    }
    (0..values.len()).map(|i| largest.get(&group_of(i)).copied().unwrap_or(0.0) * unit).collect()
}
