//! The order in which the axes of a temporary lie in memory, for targets that do best where a product stores its results in the
//! order of its own axes: a convolution's channels last, and likewise whatever is computed from it element by element.

use crate::materialise::reshape_strides;
use crate::schedule::InputLayout;
use kiln_ir::{Dim, Graph, NodeId, Op};

/// For each node its axes from the outermost in memory to the innermost; `None` for row-major.
pub(crate) fn memory_orders(graph: &Graph, layouts: &[InputLayout]) -> Vec<Option<Vec<usize>>> {
    let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.nodes().len()];
    let mut orders: Vec<Option<Vec<usize>>> = Vec::with_capacity(graph.nodes().len());
    for (id, node) in graph.iter() {
        node.operands.iter().for_each(|operand| readers[operand.index()].push(id));
        let of = |operand: usize| orders[node.operands[operand].index()].clone();
        let shape = &node.ty.shape;
        let order = match &node.op {
            Op::Input { index } => order_of(&layouts[*index].strides),
            Op::Dot { dims, .. } if dims.lhs_batch.is_empty() => Some((0..shape.len()).collect()),
            Op::Permute { order } => of(0).and_then(|below| {
                below.iter().map(|axis| order.iter().position(|from| from == axis)).collect::<Option<Vec<usize>>>()
            }),
            Op::Reshape { .. } => of(0).and_then(|below| reshaped(&graph.ty(node.operands[0]).shape, &below, shape)),
            Op::Unfold { .. } => of(0).map(|below| below.into_iter().chain([shape.len() - 1]).collect()),
            Op::Pad { .. } | Op::Slice { .. } | Op::Flip { .. } | Op::Reduce { .. } => of(0),
            op if op.is_pointwise() || matches!(op, Op::Concat { .. }) => (0..node.operands.len()).find_map(of),
            _ => None,
        };
        orders.push(order);
    }
    for (id, node) in graph.iter() {
        let own = &mut orders[id.index()];
        let fits = |order: &Vec<usize>| {
            !order.is_sorted() && readers_fit(graph, &readers, id, &strides_in(&node.ty.shape, order))
        };
        if !own.as_ref().is_some_and(fits) {
            *own = None;
        }
    }
    orders
}

/// Strides of axes that lie in this order.
pub(crate) fn strides_in(shape: &[Dim], order: &[usize]) -> Vec<Dim> {
    let mut strides = vec![Dim::default(); shape.len()];
    let mut step = Dim::from(1);
    for &axis in order.iter().rev() {
        strides[axis] = step.clone();
        step *= &shape[axis];
    }
    strides
}

/// The order of axes that have these strides; `None` for row-major, where it is not known, and where elements are not apart.
pub(crate) fn order_of(strides: &[Dim]) -> Option<Vec<usize>> {
    let steps: Vec<i64> = strides.iter().map(Dim::as_const).collect::<Option<_>>()?;
    let mut order: Vec<usize> = (0..steps.len()).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(steps[axis]));
    (steps.iter().all(|&step| step > 0) && !order.is_sorted()).then_some(order)
}

/// The order under a reshape of axes that lie beside each other, outermost first. Axes of size one have no place of their own, but may be
/// padded: they are where row-major memory has them, or outermost where the others are in another order.
fn reshaped(from: &[Dim], order: &[usize], to: &[Dim]) -> Option<Vec<usize>> {
    let kept = |shape: &[Dim]| (0..shape.len()).filter(|&axis| !shape[axis].is_one()).collect::<Vec<usize>>();
    let (before, after) = (kept(from), kept(to));
    let (mut left, mut right) = (before.as_slice(), after.as_slice());
    let mut groups: Vec<(&[usize], &[usize])> = Vec::new();
    while !left.is_empty() || !right.is_empty() {
        let (here, there) = same_elements(from, left, to, right)?;
        groups.push((&left[..here], &right[..there]));
        (left, right) = (&left[here..], &right[there..]);
    }
    let mut others: Vec<usize> = Vec::with_capacity(after.len());
    let mut open = order.iter().copied().filter(|&axis| !from[axis].is_one());
    while let Some(first) = open.next() {
        let (axes, made) = groups.iter().find(|(axes, _)| axes[0] == first)?;
        if axes[1..].iter().any(|&axis| open.next() != Some(axis)) {
            return None;
        }
        others.extend_from_slice(made);
    }
    let ones = (0..to.len()).filter(|&axis| to[axis].is_one());
    Some(if others.is_sorted() { (0..to.len()).collect() } else { ones.chain(others).collect() })
}

/// The fewest first axes of two shapes that have as many elements.
fn same_elements(from: &[Dim], left: &[usize], to: &[Dim], right: &[usize]) -> Option<(usize, usize)> {
    let (mut here, mut there) = (1, 1);
    let (mut before, mut after) = (from[*left.first()?].clone(), to[*right.first()?].clone());
    while before != after {
        // Sizes that are not known are the same or nothing.
        if before.as_const()? < after.as_const()? {
            before *= &from[*left.get(here)?];
            here += 1;
        } else {
            after *= &to[*right.get(there)?];
            there += 1;
        }
    }
    Some((here, there))
}

/// For each node the elements from one of its rows to the next, where these are not those of a row: of large temporaries of short
/// floats that products write or read.
pub(crate) fn row_pitches(graph: &Graph, bytes: i64) -> Vec<Option<i64>> {
    let mut pitches = vec![None; graph.nodes().len()];
    if bytes == 0 {
        return pitches;
    }
    let mut readers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.nodes().len()];
    for (id, node) in graph.iter() {
        node.operands.iter().for_each(|operand| readers[operand.index()].push(id));
    }
    for (id, node) in graph.iter() {
        let (Some(size), Some(elements)) =
            (node.ty.shape.last().and_then(Dim::as_const), node.ty.elements().as_const())
        else {
            continue;
        };
        let step = bytes / 2;
        let pitch = (size + step - 1) / step * step;
        let odd = node.ty.rank() > 1 && pitch != size && size >= LONG_ROW && elements >= MANY_ELEMENTS;
        if !odd || !node.ty.dtype.is_float() || node.ty.dtype.size_in_bits() != 16 {
            continue;
        }
        let padded: Vec<Dim> = node.ty.shape.iter().rev().skip(1).rev().cloned().chain([Dim::from(pitch)]).collect();
        let fits = readers_fit(graph, &readers, id, &crate::index::contiguous_strides(&padded));
        if fits && (matches!(node.op, Op::Dot { .. }) || is_read_by_product(graph, &readers, id)) {
            pitches[id.index()] = Some(pitch);
        }
    }
    pitches
}

/// Elements of a row beside which the padding is nothing, and of a temporary whose products take time.
const LONG_ROW: i64 = 1024;
const MANY_ELEMENTS: i64 = 1 << 16;

/// Whether a product reads a node, through views that move no elements.
fn is_read_by_product(graph: &Graph, readers: &[Vec<NodeId>], id: NodeId) -> bool {
    readers[id.index()].iter().any(|&reader| match &graph.node(reader).op {
        Op::Dot { .. } => true,
        Op::Reshape { .. } | Op::Permute { .. } => is_read_by_product(graph, readers, reader),
        _ => false,
    })
}

/// Whether every view of a node that its readers take has strides, so that none of them has to copy it.
fn readers_fit(graph: &Graph, readers: &[Vec<NodeId>], id: NodeId, strides: &[Dim]) -> bool {
    let shape = &graph.ty(id).shape;
    readers[id.index()].iter().all(|&reader| match &graph.node(reader).op {
        Op::Reshape { shape: to } => {
            let moved = reshape_strides(shape, strides, to);
            moved.is_some_and(|strides| readers_fit(graph, readers, reader, &strides))
        }
        Op::Permute { order } => {
            let moved: Vec<Dim> = order.iter().map(|&axis| strides[axis].clone()).collect();
            readers_fit(graph, readers, reader, &moved)
        }
        _ => true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gradient of one row of each image, padded to all of them: images stay outermost.
    #[test]
    fn an_axis_of_one_that_is_padded_stays_where_it_was() {
        let graph = Graph::parse(
            "graph(%0: f32[4, 8], %1: f32[8, 6]) {
  %2: f32[4, 6] = dot %0, %1 {lhs_batch=[], rhs_batch=[], lhs_contract=[1], rhs_contract=[0]}
  %3: f32[4, 1, 6] = reshape %2
  %4: f32[4, 5, 6] = pad %3 {low=[0, 0, 0], high=[0, 4, 0], value=0.0}
  return %4
}",
        )
        .unwrap();
        let layouts: Vec<_> = graph.inputs().iter().map(|&id| InputLayout::contiguous(graph.ty(id))).collect();
        assert!(memory_orders(&graph, &layouts).iter().all(Option::is_none));
    }

    /// A window's two axes become one, and an axis of pixels two: channels stay innermost.
    #[test]
    fn reshapes_of_neighbours_keep_the_order() {
        let dims = |sizes: &[i64]| sizes.iter().map(|&size| Dim::from(size)).collect::<Vec<Dim>>();
        let images = [0, 2, 3, 1, 4, 5];
        let merged = reshaped(&dims(&[2, 8, 5, 6, 3, 3]), &images, &dims(&[2, 8, 5, 6, 9]));
        assert_eq!(merged, Some(vec![0, 2, 3, 1, 4]));
        let pixels = reshaped(&dims(&[2, 8, 5, 6]), &images[..4], &dims(&[2, 8, 30]));
        assert_eq!(pixels, Some(vec![0, 2, 1]));
        let split = reshaped(&dims(&[2, 8, 5, 6]), &images[..4], &dims(&[2, 8, 5, 2, 3]));
        assert_eq!(split, Some(vec![0, 2, 3, 4, 1]));
        // Channels and pixels do not lie beside each other.
        assert_eq!(reshaped(&dims(&[2, 8, 5, 6]), &images[..4], &dims(&[2, 40, 6])), None);
        assert_eq!(reshaped(&dims(&[2, 8]), &[1, 0], &dims(&[16])), None);
    }
}
