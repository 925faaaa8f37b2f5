//! Splits a graph at its frozen inputs: what depends on them alone is computed once, by `prepare`, and `main` reads the
//! results. Views and casts that are free in loads stay with their readers, so that nothing is copied without need.
//!
//! ```text
//!  x, w, s ──▶ cast w · s ──▶ dot x ──▶ y        w, s frozen
//!
//!  prepare:  w, s ──▶ cast w · s ──▶ p           once, and again when w or s changes
//!  main:     x, p ──▶ dot x ──▶ y                every call
//! ```

use crate::frozen::{Depends, anchor, bytes_of, dependences, pays};
use kiln_ir::{Error, Graph, NodeId, Op};

/// A graph split in two.
#[derive(Debug, Clone)]
pub struct Split {
    /// The graph that runs once. Without outputs if there is nothing to prepare.
    pub prepare: Graph,
    /// The input of the whole graph that each input of `prepare` is.
    pub prepare_inputs: Vec<usize>,
    /// The graph that every call runs.
    pub main: Graph,
    /// The origin of each input of `main`.
    pub main_inputs: Vec<MainInput>,
    /// Bytes of everything prepared.
    pub prepared_bytes: usize,
}

/// The origin of an input of [`Split::main`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MainInput {
    /// The input of the whole graph of that number.
    Given(usize),
    /// The output of [`Split::prepare`] of that number.
    Prepared(usize),
}

/// Bounds on what a split may cost.
#[derive(Debug, Clone)]
pub struct SplitOptions {
    /// A value is prepared only if it is at most that many times as large as the inputs it is made of; otherwise each call makes
    /// it anew. Four lets 8-bit weights become f32.
    pub growth: usize,
}

impl Default for SplitOptions {
    fn default() -> SplitOptions {
        SplitOptions { growth: 4 }
    }
}

/// Splits a graph whose inputs are frozen where `frozen` says so. An input that the graph updates counts as not frozen.
///
/// ```
/// use kiln_ir::Graph;
/// use kiln_passes::{MainInput, SplitOptions, split_frozen};
/// let graph = Graph::parse("graph(%0: f32[b, 4], %1: f32[4]) {
///   %2: f32[4] = exp %1
///   %3: f32[1, 4] = reshape %2
///   %4: f32[b, 4] = expand %3
///   %5: f32[b, 4] = mul %0, %4
///   return %5
/// }").unwrap();
/// let split = split_frozen(&graph, &[false, true], &SplitOptions::default()).unwrap();
/// assert_eq!(split.prepare.nodes().len(), 2);
/// assert_eq!(split.main_inputs, [MainInput::Given(0), MainInput::Prepared(0)]);
/// assert_eq!(split.prepared_bytes, 16);
/// ```
pub fn split_frozen(graph: &Graph, frozen: &[bool], options: &SplitOptions) -> Result<Split, Error> {
    let depends = dependences(graph, frozen);
    let origins = origins(graph, &depends, options);
    let prepared: Vec<NodeId> =
        graph.iter().map(|(id, _)| id).filter(|id| origins[id.index()] == Some(Origin::Prepared)).collect();

    let mut needed = vec![false; graph.nodes().len()];
    prepared.iter().for_each(|id| needed[id.index()] = true);
    for (id, node) in graph.iter().rev() {
        if needed[id.index()] {
            node.operands.iter().for_each(|operand| needed[operand.index()] = true);
        }
    }
    let mut prepare = Mover::new(graph);
    let mut prepare_inputs = Vec::new();
    for (id, node) in graph.iter().filter(|(id, _)| needed[id.index()]) {
        match node.op {
            Op::Input { index } => {
                prepare_inputs.push(index);
                prepare.input(id, id)?;
            }
            _ => prepare.keep(id)?,
        }
    }
    prepared.iter().for_each(|&id| prepare.graph.output(prepare.map[id.index()]));

    let mut main = Mover::new(graph);
    let mut main_inputs = Vec::new();
    for (index, &id) in graph.inputs().iter().enumerate() {
        if depends[id.index()] != Depends::Frozen || origins[id.index()].is_some() {
            main_inputs.push(MainInput::Given(index));
            main.input(id, id)?;
        }
    }
    for (number, &id) in prepared.iter().enumerate() {
        main_inputs.push(MainInput::Prepared(number));
        main.input(id, id)?;
    }
    for (id, node) in graph.iter() {
        if origins[id.index()] == Some(Origin::Main) && !matches!(node.op, Op::Input { .. }) {
            main.keep(id)?;
        }
    }
    for output in graph.outputs() {
        let node = main.map[output.node.index()];
        match output.updates {
            Some(input) => {
                let given = main_inputs.iter().position(|&from| from == MainInput::Given(input));
                main.graph.update(node, given.ok_or(Error::UnknownNode { node, at: Default::default() })?);
            }
            None => main.graph.output(node),
        }
    }
    let prepared_bytes = prepared.iter().map(|&id| bytes_of(graph.ty(id))).fold(0, usize::saturating_add);
    Ok(Split { prepare: prepare.graph, prepare_inputs, main: main.graph, main_inputs, prepared_bytes })
}

/// The origin of a value in `main`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// `main` has it as an input, or computes it.
    Main,
    /// It is an output of `prepare`.
    Prepared,
}

/// For each node that `main` needs, its origin.
fn origins(graph: &Graph, depends: &[Depends], options: &SplitOptions) -> Vec<Option<Origin>> {
    let mut origins: Vec<Option<Origin>> = vec![None; graph.nodes().len()];
    let mut open: Vec<NodeId> = graph.outputs().iter().map(|output| output.node).collect();
    // An updated input is part of the signature, with or without readers.
    open.extend(graph.inputs().iter().filter(|id| depends[id.index()] == Depends::Calls));
    while let Some(id) = open.pop() {
        if origins[id.index()].is_some() {
            continue;
        }
        let is_anchor = || anchor(graph, id) == id && !matches!(graph.node(id).op, Op::Input { .. });
        let origin = match depends[id.index()] {
            Depends::Frozen if is_anchor() && pays(graph, &[id], options.growth) => Origin::Prepared,
            _ => Origin::Main,
        };
        origins[id.index()] = Some(origin);
        if origin == Origin::Main {
            open.extend(&graph.node(id).operands);
        }
    }
    origins
}

/// Moves nodes from one graph to another.
struct Mover<'a> {
    from: &'a Graph,
    graph: Graph,
    /// What each node became; those that were not moved are never looked up.
    map: Vec<NodeId>,
}

impl<'a> Mover<'a> {
    fn new(from: &'a Graph) -> Mover<'a> {
        Mover { from, graph: Graph::new(), map: vec![NodeId(u32::MAX); from.nodes().len()] }
    }

    /// A value that is an input of the new graph.
    fn input(&mut self, id: NodeId, like: NodeId) -> Result<(), Error> {
        let node = self.from.node(like);
        self.map[id.index()] = self.graph.input(node.ty.clone(), node.source.clone())?;
        Ok(())
    }

    /// A node as it is.
    fn keep(&mut self, id: NodeId) -> Result<(), Error> {
        let mut node = self.from.node(id).clone();
        node.operands.iter_mut().for_each(|operand| *operand = self.map[operand.index()]);
        self.map[id.index()] = self.graph.keep(node)?;
        Ok(())
    }
}
