//! Images that a product reads as pixels times factors of their channels, so that the scaled pixels are not stored (squeeze-excite).

use crate::matmul::free_axes;
use crate::schedule::{Numerics, ScheduleOptions};
use kiln_ir::{BinaryOp, DType, Dim, Graph, NodeId, Op};

/// Pixels under a product's first operand times factors of their channels, if the product reads both: a value of floats that nothing else
/// reads, of pixels that are in memory, more of them than the product has results of each.
pub(crate) fn scaled_image(
    graph: &Graph,
    dot: NodeId,
    number: usize,
    uses: &[usize],
    options: &ScheduleOptions,
) -> Option<NodeId> {
    let (node, fewest) = (graph.node(dot), options.target.scaled_operands);
    let Op::Dot { dims, .. } = &node.op else { return None };
    // The product of both factors with a weight is rounded in another order.
    if number > 0 || fewest == 0 || options.numerics == Numerics::Eager || !dims.lhs_batch.is_empty() {
        return None;
    }
    let mut scaled = node.operands[0];
    let summed = |&axis: &usize| !graph.ty(scaled).shape[axis].is_one();
    let [channel] = dims.lhs_contract.iter().copied().filter(|axis| summed(axis)).collect::<Vec<_>>()[..] else {
        return None;
    };
    let channels = graph.ty(scaled).shape[channel].clone();
    let right = graph.ty(node.operands[1]);
    let results = free_axes(right.rank(), &[], &dims.rhs_contract).into_iter().map(|axis| &right.shape[axis]);
    let results = results.product::<Dim>().as_const().filter(|results| *results >= fewest)?;
    while graph.node(scaled).op.is_view() {
        scaled = graph.node(scaled).operands[0];
    }
    let (of, ty) = (graph.node(scaled), graph.ty(scaled));
    let [images, own, pixels @ ..] = &ty.shape[..] else { return None };
    let many = pixels.iter().product::<Dim>().as_const().is_some_and(|pixels| pixels > results);
    let is_product = matches!(of.op, Op::Binary(BinaryOp::Mul)) && ty.dtype == DType::F32 && *own == channels;
    let is_factor = |&side: &NodeId| {
        let (node, same) = (graph.node(side), graph.ty(side).rank() == ty.rank());
        let Op::Expand { .. } = node.op else { return false };
        let from = graph.ty(node.operands[0]);
        same && from.rank() == ty.rank()
            && from.shape[1] == *own
            && from.shape[2..].iter().all(Dim::is_one)
            && (from.shape[0].is_one() || from.shape[0] == *images)
    };
    // Pixels that nothing else reads would be stored for this alone, once as they are and not once as they are scaled.
    let is_stored = |&side: &NodeId| uses[side.index()] > 1;
    let sides = match of.operands[..] {
        [x, y] => is_factor(&x) && is_stored(&y) && !is_factor(&y) || is_factor(&y) && is_stored(&x) && !is_factor(&x),
        _ => false,
    };
    (is_product && many && uses[scaled.index()] == 1 && sides).then_some(scaled)
}
