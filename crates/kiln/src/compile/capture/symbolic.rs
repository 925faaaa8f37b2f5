//! One graph for many sizes, made of the graphs of two: where they differ in a size, the size is an expression of the sizes of
//! the arguments. The expression is guessed from the two; whoever uses the graph for other sizes checks it there.

use super::guard::{Guard, Size, Strides};
use super::segment::{InputSource, SegmentGraph};
use crate::tensor::bundle::Leaf;
use kiln_ir::{Dim, Graph, Op, Symbol, TensorType};
use std::cell::RefCell;

/// Sizes of the arguments that become symbols, with their values in both graphs.
pub(super) struct Symbols {
    pub(super) values: Vec<(usize, usize)>,
    /// The guards of the arguments, with symbols.
    pub(super) guards: Vec<Guard>,
}

impl Symbols {
    /// Makes a symbol for each size that differs between what `guards` were made for and `shapes`, given the arguments now.
    /// Sizes that were equal and are equal share a symbol. Returns `None` where the strides at other sizes cannot be known.
    pub(super) fn between(guards: &[Guard], shapes: &[Vec<usize>], leaves: &[Leaf<'_>]) -> Option<Symbols> {
        let mut values: Vec<(usize, usize)> = Vec::new();
        let mut guards = guards.to_vec();
        let tensors = guards.iter_mut().zip(leaves).filter_map(|pair| match pair {
            (Guard::Tensor(guard), Leaf::Tensor(tensor)) => Some((guard, *tensor)),
            _ => None,
        });
        for ((guard, tensor), before) in tensors.zip(shapes) {
            let mut varies = false;
            for ((size, &was), &now) in guard.sizes.iter_mut().zip(before).zip(tensor.shape()) {
                *size = Size::Is(now);
                if was != now {
                    let number = values.iter().position(|&pair| pair == (was, now)).unwrap_or_else(|| {
                        values.push((was, now));
                        values.len() - 1
                    });
                    *size = Size::Symbol { number, symbol: symbol(number).as_symbol()?, least: 2, most: None };
                    varies = true;
                }
            }
            guard.strides = match varies {
                true => Strides::of_sizes(tensor, Some(&(before.clone(), guard.strides.at(before))))?,
                false => Strides::Are(tensor.strides().to_vec()),
            };
        }
        // Sizes of 0 and 1 mean something else: nothing, and repetition.
        let usual = values.iter().all(|&(was, now)| was >= 2 && now >= 2);
        (usual && !values.is_empty()).then_some(Symbols { values, guards })
    }

    /// The types of the arguments' tensors.
    pub(super) fn types(&self) -> Vec<TensorType> {
        let dim = |size: &Size| match *size {
            Size::Is(n) => Dim::from(n),
            Size::Symbol { number, .. } => symbol(number),
        };
        let ty = |guard: &Guard| match guard {
            Guard::Tensor(guard) => Some(TensorType::new(guard.dtype, guard.sizes.iter().map(dim).collect::<Vec<_>>())),
            _ => None,
        };
        self.guards.iter().filter_map(ty).collect()
    }
}

/// The symbol of a number.
pub(super) fn symbol(number: usize) -> Dim {
    Dim::symbol(&format!("s{number}")).unwrap_or_default()
}

/// A size known in both graphs.
struct Known {
    dim: Dim,
    a: i64,
    b: i64,
}

/// The graph that is `a` at the first values of the symbols and `b` at the second, if there is one to be found.
pub(super) fn unify(a: &SegmentGraph, b: &SegmentGraph, symbols: &Symbols) -> Option<Graph> {
    let from = &a.from;
    let (a, b) = (&a.graph, &b.graph);
    if a.nodes().len() != b.nodes().len() {
        return None;
    }
    let mut known: Vec<Known> = symbols
        .values
        .iter()
        .enumerate()
        .map(|(number, &(a, b))| Known { dim: symbol(number), a: a as i64, b: b as i64 })
        .collect();
    let count = known.len();
    let arguments = symbols.types();
    let mut graph = Graph::new();
    for (one, other) in a.nodes().iter().zip(b.nodes()) {
        let id = match (&one.op, &other.op) {
            (Op::Input { index }, Op::Input { .. }) => {
                let ty = match from.get(*index) {
                    Some(InputSource::Argument(number)) => arguments.get(*number)?.clone(),
                    _ => one.ty.clone(),
                };
                graph.input(ty, one.source.clone()).ok()?
            }
            (op, like) => {
                let op = unify_op(op, like, &known, count)?;
                graph.add(op, &one.operands, one.source.clone()).ok()?
            }
        };
        learn(&mut known, &graph.ty(id).shape, &one.ty.shape, &other.ty.shape);
    }
    for output in a.outputs() {
        match output.updates {
            Some(input) => graph.update(output.node, input),
            None => graph.output(output.node),
        }
    }
    let at = |pick: fn(&(usize, usize)) -> usize| symbols.values.iter().map(pick).collect::<Vec<_>>();
    (is_at(&graph, &at(|v| v.0), a) && is_at(&graph, &at(|v| v.1), b)).then_some(graph)
}

/// Whether a graph with these values for its symbols is another graph, sources aside.
pub(super) fn is_at(symbolic: &Graph, values: &[usize], graph: &Graph) -> bool {
    let value = |s: Symbol| {
        let number = s.as_str().strip_prefix('s')?.parse::<usize>().ok()?;
        values.get(number).map(|&n| Dim::from(n))
    };
    let Ok(special) = symbolic.specialise(&value) else { return false };
    let output = |output: &kiln_ir::Output| (output.node, output.updates);
    special.nodes().len() == graph.nodes().len()
        && special
            .nodes()
            .iter()
            .zip(graph.nodes())
            .all(|(a, b)| a.op == b.op && a.operands == b.operands && a.ty == b.ty)
        && special.outputs().iter().map(output).eq(graph.outputs().iter().map(output))
}

/// The op with sizes that fit both.
fn unify_op(a: &Op, b: &Op, known: &[Known], symbols: usize) -> Option<Op> {
    if a == b {
        return Some(a.clone());
    }
    let none = |_: &Dim| Dim::default();
    if a.map_dims(&none) != b.map_dims(&none) {
        return None;
    }
    let others = RefCell::new(Vec::new());
    b.map_dims(&|dim| {
        others.borrow_mut().push(dim.as_const());
        dim.clone()
    });
    let others = RefCell::new(others.into_inner().into_iter());
    let unknown = std::cell::Cell::new(false);
    let op = a.map_dims(&|dim| {
        let pair = dim.as_const().zip(others.borrow_mut().next().flatten());
        pair.and_then(|(a, b)| solve(a, b, known, symbols)).unwrap_or_else(|| {
            unknown.set(true);
            dim.clone()
        })
    });
    (!unknown.get()).then_some(op)
}

/// Remembers sizes that differ.
fn learn(known: &mut Vec<Known>, dims: &[Dim], a: &[Dim], b: &[Dim]) {
    for ((dim, a), b) in dims.iter().zip(a).zip(b) {
        if let (Some(a), Some(b)) = (a.as_const(), b.as_const())
            && a != b
            && !known.iter().any(|k| k.a == a && k.b == b)
        {
            known.push(Known { dim: dim.clone(), a, b });
        }
    }
}

/// An expression that is `a` in one graph and `b` in the other: a constant, a known size, a multiple or a part of one or of a
/// product of two symbols, or one plus a constant.
fn solve(a: i64, b: i64, known: &[Known], symbols: usize) -> Option<Dim> {
    if a == b {
        return Some(Dim::from(a));
    }
    if let Some(same) = known.iter().find(|k| k.a == a && k.b == b) {
        return Some(same.dim.clone());
    }
    let multiple = |x: i64, y: i64| (x != 0 && y != 0 && a % x == 0 && b % y == 0 && a / x == b / y).then(|| a / x);
    for k in known {
        if let Some(factor) = multiple(k.a, k.b) {
            return Some(k.dim.clone() * Dim::from(factor));
        }
        if a > 0 && b > 0 && k.a % a == 0 && k.b % b == 0 && k.a / a == k.b / b {
            return Some(k.dim.floor_div(&Dim::from(k.a / a)));
        }
    }
    for (i, one) in known[..symbols].iter().enumerate() {
        for other in &known[..=i] {
            if let Some(factor) = multiple(one.a * other.a, one.b * other.b) {
                return Some(one.dim.clone() * other.dim.clone() * Dim::from(factor));
            }
        }
    }
    known[..symbols].iter().find_map(|k| {
        let (rise, run) = (b - a, k.b - k.a);
        let slope = (rise % run == 0).then(|| rise / run)?;
        Some(k.dim.clone() * Dim::from(slope) + Dim::from(a - slope * k.a))
    })
}
