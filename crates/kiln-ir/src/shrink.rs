//! Makes a graph that shows a fault as small as it can be while the fault still shows.
//!
//! ```text
//!  one output ▶ an earlier output ▶ a node becomes its operand, a constant or an input ▶ smaller sizes ▶ again, while it helps
//! ```

use crate::generate::symbol_value;
use crate::{Dim, Graph, Literal, Node, NodeId, Op, Scalar, Symbol, TensorType};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The smallest graph found for which `fails` holds, starting from one for which it does. `fails` decides alone: it must say
/// no to a graph that is of no interest, for instance one that cannot be run.
pub fn shrink(graph: Graph, fails: &mut dyn FnMut(&Graph) -> bool) -> Graph {
    let mut best = graph;
    loop {
        let before = cost(&best);
        for step in [drop_outputs, cut, replace_nodes, shrink_sizes] {
            step(&mut best, fails);
        }
        if cost(&best) >= before {
            return best;
        }
    }
}

/// Ops first, then inputs, then everything else that a reader has to look at.
fn cost(graph: &Graph) -> (usize, usize, usize, usize, usize, i64) {
    let inputs = graph.inputs().len();
    let generated = graph.nodes().iter().filter(|n| matches!(n.op, Op::Full { .. })).count();
    let symbols: BTreeSet<Symbol> =
        graph.nodes().iter().flat_map(|n| &n.ty.shape).flat_map(|size| size.symbols()).collect();
    let size = |size: &Dim| size.eval(&symbol_value).unwrap_or(0);
    let sizes = graph.nodes().iter().flat_map(|n| &n.ty.shape).map(size).fold(0, i64::saturating_add);
    let nodes = graph.nodes().len();
    (nodes - inputs - generated, inputs, generated, graph.outputs().len(), symbols.len(), sizes)
}

/// Takes the candidate if it fails too and is smaller.
fn accept(best: &mut Graph, candidate: Option<Graph>, fails: &mut dyn FnMut(&Graph) -> bool) -> bool {
    match candidate {
        Some(candidate) if cost(&candidate) < cost(best) && fails(&candidate) => {
            *best = candidate;
            true
        }
        _ => false,
    }
}

/// Keeps one output if one alone fails, else drops those that are not needed.
fn drop_outputs(best: &mut Graph, fails: &mut dyn FnMut(&Graph) -> bool) {
    for n in 0..best.outputs().len() {
        let only = rebuild(best, &[best.outputs()[n].node], &mut |_, _| Edit::Keep);
        if accept(best, only, fails) {
            return;
        }
    }
    let mut n = 0;
    while n < best.outputs().len() && best.outputs().len() > 1 {
        let nodes: Vec<NodeId> =
            best.outputs().iter().enumerate().filter(|(i, _)| *i != n).map(|(_, o)| o.node).collect();
        let fewer = rebuild(best, &nodes, &mut |_, _| Edit::Keep);
        if !accept(best, fewer, fails) {
            n += 1;
        }
    }
}

/// Looks for the earliest node that shows the fault when it is the output.
fn cut(best: &mut Graph, fails: &mut dyn FnMut(&Graph) -> bool) {
    for n in 0..best.nodes().len() {
        let early = rebuild(best, &[NodeId(n as u32)], &mut |_, _| Edit::Keep);
        if accept(best, early, fails) {
            return;
        }
    }
}

/// Puts something simpler in the place of each node, the late ones first.
fn replace_nodes(best: &mut Graph, fails: &mut dyn FnMut(&Graph) -> bool) {
    let mut n = best.nodes().len();
    while n > 0 {
        n = (n - 1).min(best.nodes().len() - 1);
        let at = NodeId(n as u32);
        let operands = best.node(at).operands.len();
        let edits = (0..operands).map(Edit::Operand).chain([Edit::Full(1), Edit::Full(0), Edit::Input]);
        for edit in edits {
            let outputs: Vec<NodeId> = best.outputs().iter().map(|o| o.node).collect();
            let simpler = rebuild(best, &outputs, &mut |id, _| if id == at { edit.clone() } else { Edit::Keep });
            if accept(best, simpler, fails) {
                break;
            }
        }
    }
}

/// Makes sizes smaller, each everywhere at once, and symbols numbers.
fn shrink_sizes(best: &mut Graph, fails: &mut dyn FnMut(&Graph) -> bool) {
    let sizes = || -> BTreeSet<Dim> { best.nodes().iter().flat_map(|n| n.ty.shape.clone()).collect() };
    let all = sizes();
    for symbol in all.iter().flat_map(Dim::symbols).collect::<BTreeSet<Symbol>>() {
        let number = symbol_value(symbol).map(Dim::from);
        let fixed = resize(best, &|size| size.substitute(&|s| if s == symbol { number.clone() } else { None }));
        accept(best, fixed, fails);
    }
    for n in all.iter().rev().filter_map(Dim::as_const).filter(|&n| n > 1) {
        for smaller in [1, 2, 3, n / 2, n - 1] {
            let resized = resize(best, &|size| if *size == n { Dim::from(smaller) } else { size.clone() });
            if smaller < n && accept(best, resized, fails) {
                break;
            }
        }
    }
}

/// What becomes of a node.
#[derive(Clone)]
enum Edit {
    Keep,
    /// Another op on the same operands; for an input, its shape.
    Op(Op),
    Shape(Vec<Dim>),
    /// One of its operands, if that has its type.
    Operand(usize),
    /// This value everywhere.
    Full(i64),
    /// A new input of its type.
    Input,
}

fn resize(graph: &Graph, map: &dyn Fn(&Dim) -> Dim) -> Option<Graph> {
    let all = |shape: &[Dim]| -> Vec<Dim> { shape.iter().map(map).collect() };
    let outputs: Vec<NodeId> = graph.outputs().iter().map(|o| o.node).collect();
    rebuild(graph, &outputs, &mut |_, node| {
        let op = match node.op.clone() {
            Op::Input { .. } => return Edit::Shape(all(&node.ty.shape)),
            Op::Full { value, shape } => Op::Full { value, shape: all(&shape) },
            Op::Iota { dtype, shape, axis } => Op::Iota { dtype, shape: all(&shape), axis },
            Op::RandomBits { shape, stream } => Op::RandomBits { shape: all(&shape), stream },
            Op::Reshape { shape } => Op::Reshape { shape: all(&shape) },
            Op::Expand { shape } => Op::Expand { shape: all(&shape) },
            Op::Slice { start, size, step } => Op::Slice { start, size: all(&size), step },
            Op::SortIndices { axis, descending, count } => Op::SortIndices { axis, descending, count: map(&count) },
            Op::Loop { region, result } => Op::Loop { region: Arc::new(region.map_dims(map)), result },
            Op::Cond { branches, result } => Op::Cond { branches: Arc::new(branches.map_dims(map)), result },
            Op::Constant(literal) => match beginning(&literal, map) {
                Some(literal) => Op::Constant(literal),
                None => return Edit::Keep,
            },
            op => op,
        };
        Edit::Op(op)
    })
}

/// The first elements of a constant, under a smaller shape.
fn beginning(literal: &Literal, map: &dyn Fn(&Dim) -> Dim) -> Option<Literal> {
    let shape: Vec<usize> = literal.shape.iter().map(|&n| map(&Dim::from(n)).as_usize()).collect::<Option<_>>()?;
    let bytes = literal.dtype.bytes_for(shape.iter().product())?;
    Some(Literal { dtype: literal.dtype, shape, bytes: literal.bytes.get(..bytes)?.into() })
}

/// The graph with some nodes edited and only these outputs, without what they do not need. `None` where the edit makes no
/// valid graph.
fn rebuild(graph: &Graph, outputs: &[NodeId], edit: &mut dyn FnMut(NodeId, &Node) -> Edit) -> Option<Graph> {
    let edits: Vec<Edit> = graph.iter().map(|(id, node)| edit(id, node)).collect();
    let needed = needed(graph, outputs, &edits);
    let mut new = Graph::new();
    let mut map: Vec<Option<NodeId>> = Vec::with_capacity(edits.len());
    // For each old input, its new number.
    let mut inputs: Vec<Option<usize>> = vec![None; graph.inputs().len()];
    for ((id, node), edit) in graph.iter().zip(edits) {
        if !needed[id.index()] {
            map.push(None);
            continue;
        }
        let operands =
            |map: &[Option<NodeId>]| -> Option<Vec<NodeId>> { node.operands.iter().map(|o| map[o.index()]).collect() };
        let source = node.source.clone();
        let input = |new: &mut Graph, inputs: &mut [Option<usize>], ty: TensorType| {
            if let Op::Input { index } = node.op {
                inputs[index] = Some(new.inputs().len());
            }
            new.input(ty, source.clone()).ok()
        };
        let made = match edit {
            Edit::Keep if matches!(node.op, Op::Input { .. }) => input(&mut new, &mut inputs, node.ty.clone()),
            Edit::Shape(shape) => input(&mut new, &mut inputs, TensorType::new(node.ty.dtype, shape)),
            Edit::Input => input(&mut new, &mut inputs, node.ty.clone()),
            Edit::Keep => new.add(node.op.clone(), &operands(&map)?, source.clone()).ok(),
            Edit::Op(op) => new.add(op, &operands(&map)?, source.clone()).ok(),
            Edit::Operand(n) => map[node.operands.get(n)?.index()].filter(|&x| new.ty(x) == &node.ty),
            Edit::Full(value) => {
                let full = Op::Full { value: Scalar::int(node.ty.dtype, value), shape: node.ty.shape.clone() };
                new.add(full, &[], source.clone()).ok()
            }
        };
        map.push(Some(made?));
    }
    for &output in outputs {
        let updates = graph.outputs().iter().find(|o| o.node == output).and_then(|o| o.updates);
        match updates.and_then(|input| inputs[input]) {
            Some(input) => new.update(map[output.index()]?, input),
            None => new.output(map[output.index()]?),
        }
    }
    new.verify().ok().map(|()| new)
}

/// The nodes that the outputs need once the edits are made.
fn needed(graph: &Graph, outputs: &[NodeId], edits: &[Edit]) -> Vec<bool> {
    let mut needed = vec![false; edits.len()];
    outputs.iter().for_each(|output| needed[output.index()] = true);
    for (id, node) in graph.iter().rev() {
        if !needed[id.index()] {
            continue;
        }
        match edits[id.index()] {
            Edit::Keep | Edit::Op(_) => node.operands.iter().for_each(|o| needed[o.index()] = true),
            Edit::Operand(n) => node.operands.get(n).into_iter().for_each(|o| needed[o.index()] = true),
            Edit::Full(_) | Edit::Input | Edit::Shape(_) => {}
        }
    }
    needed
}
