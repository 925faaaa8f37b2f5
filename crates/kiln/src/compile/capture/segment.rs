//! A segment: a part of a captured function that is one graph, from one break to the next, with where its inputs come from
//! and what becomes of its results.

use super::code::{self, Code, Kind};
use super::watch;
use crate::tensor::call_input::CallInput;
use crate::tensor::tape::{self, Edges, Rule, Tape};
use crate::tensor::var::Locked;
use crate::tensor::var::reads::{Reads, Values};
use crate::{Device, Generator, Result, Tensor, Var};
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{Dim, Graph, NodeId, Source, Symbol};
use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Where an input of a segment comes from.
#[derive(Debug, Clone)]
pub(super) enum InputSource {
    /// The tensor of this number among the arguments.
    Argument(usize),
    /// A tensor that the function holds.
    Held(Tensor),
    /// What a variable is when the segment begins.
    Var(Var),
    /// What the gradient of a variable is when the segment begins.
    Gradient(Var),
    /// A new random key.
    Key(Generator, Device),
    /// What an earlier segment left there.
    Slot(usize),
    /// Elements that the function made after it had read some: data, which is equal where its elements are.
    Data(Tensor),
}

impl InputSource {
    /// Whether both are the same place.
    pub(super) fn is(&self, other: &InputSource) -> bool {
        match (self, other) {
            (InputSource::Argument(a), InputSource::Argument(b)) => a == b,
            (InputSource::Held(a), InputSource::Held(b)) => super::same_elements(a, b),
            (InputSource::Var(a), InputSource::Var(b)) | (InputSource::Gradient(a), InputSource::Gradient(b)) => {
                a.id() == b.id()
            }
            (InputSource::Key(a, x), InputSource::Key(b, y)) => a.same(b) && x == y,
            (InputSource::Slot(a), InputSource::Slot(b)) => a == b,
            (InputSource::Data(a), InputSource::Data(b)) => is_same_data(a, b),
            _ => false,
        }
    }
}

/// Whether two tensors of the host have the same elements.
fn is_same_data(a: &Tensor, b: &Tensor) -> bool {
    let at = Source::default();
    let bytes = || Some(a.bytes_at(&at).ok()? == b.bytes_at(&at).ok()?);
    a.dtype() == b.dtype() && a.shape() == b.shape() && (a.same(b) || bytes() == Some(true))
}

impl fmt::Display for InputSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputSource::Argument(number) => write!(f, "argument {number}"),
            InputSource::Held(tensor) => write!(f, "held tensor {}", tensor.ty()),
            InputSource::Var(var) => write!(f, "variable {var:?}"),
            InputSource::Gradient(var) => write!(f, "gradient of {var:?}"),
            InputSource::Key(..) => f.write_str("random key"),
            InputSource::Slot(slot) => write!(f, "value {slot} of an earlier segment"),
            InputSource::Data(tensor) => write!(f, "data {}", tensor.ty()),
        }
    }
}

/// What a segment changes.
#[derive(Debug, Clone)]
pub(super) enum UpdateTarget {
    /// The value of a variable.
    Value(Var),
    /// The gradient of a variable.
    Gradient(Var),
}

impl UpdateTarget {
    fn var(&self) -> &Var {
        match self {
            UpdateTarget::Value(var) | UpdateTarget::Gradient(var) => var,
        }
    }

    fn is(&self, other: &UpdateTarget) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.var().id() == other.var().id()
    }
}

/// A segment as it was recorded.
#[derive(Debug, Clone)]
pub(super) struct SegmentGraph {
    /// Its outputs: first those that go to slots, then the updates. The program and what finds it share it.
    pub(super) graph: Arc<Graph>,
    /// Where its inputs come from.
    pub(super) from: Vec<InputSource>,
    /// Its first slot.
    pub(super) base: usize,
    /// How many outputs go to slots.
    pub(super) outputs: usize,
    /// The inputs that go to the slots after these.
    pub(super) kept: Vec<usize>,
    /// What is written in place, and the input that it is.
    pub(super) updates: Vec<(UpdateTarget, usize)>,
    /// What becomes the value of a slot, or none.
    pub(super) sets: Vec<(UpdateTarget, Option<usize>)>,
    /// Nodes that gradients do not go past.
    pub(super) stops: Vec<NodeId>,
    /// For each output that goes to a slot what gradients of it reach: inputs, and by number after these the leaves.
    pub(super) taped: Vec<Vec<usize>>,
    /// Values that tapes start at.
    pub(super) leaves: Vec<Leaf>,
    /// Whether elements were read before it, so that numbers in its graph may be what was read.
    pub(super) is_private: bool,
}

/// A value of a segment that a tape starts at: that of a variable which the segment has changed, or one that the function wants
/// gradients by.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) node: NodeId,
    pub(super) var: Option<Var>,
    /// The output that it is.
    pub(super) output: usize,
}

impl SegmentGraph {
    /// Whether running it would do nothing.
    pub(super) fn is_empty(&self) -> bool {
        let draws = self.from.iter().any(|from| matches!(from, InputSource::Key(..)));
        self.outputs == 0 && self.kept.is_empty() && self.updates.is_empty() && self.sets.is_empty() && !draws
    }

    /// Whether there is a graph to run.
    pub(super) fn computes(&self) -> bool {
        self.outputs > 0 || !self.updates.is_empty()
    }

    /// Whether both do the same, the graphs aside.
    pub(super) fn is_wired_like(&self, other: &SegmentGraph) -> bool {
        let from = |(a, b): (&InputSource, &InputSource)| a.is(b);
        (self.base, self.outputs, &self.kept) == (other.base, other.outputs, &other.kept)
            && self.taped == other.taped
            && self.leaves.iter().map(Leaf::key).eq(other.leaves.iter().map(Leaf::key))
            && (self.from.len(), self.updates.len(), self.sets.len())
                == (other.from.len(), other.updates.len(), other.sets.len())
            && self.from.iter().zip(&other.from).all(from)
            && self.updates.iter().zip(&other.updates).all(|(a, b)| a.0.is(&b.0) && a.1 == b.1)
            && self.sets.iter().zip(&other.sets).all(|(a, b)| a.0.is(&b.0) && a.1 == b.1)
    }

    /// Whether two recordings of a segment are the same.
    pub(super) fn is_same(&self, other: &SegmentGraph) -> bool {
        self.is_wired_like(other) && self.stops == other.stops && is_same_graph(&self.graph, &other.graph)
    }
}

impl Leaf {
    fn key(&self) -> (NodeId, Option<u64>, usize) {
        (self.node, self.var.as_ref().map(Var::id), self.output)
    }

    /// Where gradients of it go.
    fn tape(&self) -> Option<Tape> {
        self.var.as_ref().map_or_else(|| Some(Tape::start()), |var| var.is_trainable().then(|| var.leaf()))
    }
}

/// Whether two graphs are the same, source lines aside.
pub(super) fn is_same_graph(a: &Graph, b: &Graph) -> bool {
    let node = |(a, b): (&kiln_ir::Node, &kiln_ir::Node)| a.op == b.op && a.operands == b.operands && a.ty == b.ty;
    let output = |(a, b): (&kiln_ir::Output, &kiln_ir::Output)| a.node == b.node && a.updates == b.updates;
    a.nodes().len() == b.nodes().len()
        && a.outputs().len() == b.outputs().len()
        && a.nodes().iter().zip(b.nodes()).all(node)
        && a.outputs().iter().zip(b.outputs()).all(output)
}

/// Values of the size symbols of a graph.
pub(super) type Sizes = Vec<(Symbol, i64)>;

/// What the size symbols of a graph are for these inputs.
pub(super) fn symbol_sizes(graph: &Graph, inputs: &[&Tensor]) -> Sizes {
    let mut sizes: Sizes = Vec::new();
    for (&id, tensor) in graph.inputs().iter().zip(inputs) {
        for (dim, &size) in graph.ty(id).shape.iter().zip(tensor.shape()) {
            if let Some((symbol, factor)) = dim.as_multiple()
                && !sizes.iter().any(|(known, _)| *known == symbol)
            {
                sizes.push((symbol, size as i64 / factor));
            }
        }
    }
    sizes
}

/// The graph without symbols, for these inputs.
pub(super) fn at_sizes<'a>(graph: &'a Graph, inputs: &[&Tensor]) -> Result<Cow<'a, Graph>> {
    let sizes = symbol_sizes(graph, inputs);
    if sizes.is_empty() {
        return Ok(Cow::Borrowed(graph));
    }
    let value = |symbol: Symbol| sizes.iter().find(|(known, _)| *known == symbol).map(|(_, size)| Dim::from(*size));
    let special = graph.specialise(&value).map_err(|cause| crate::Error::Graph { cause: Box::new(cause) })?;
    Ok(Cow::Owned(special))
}

/// What a segment puts on the tape: inputs, and after these its leaves.
struct Operands {
    rule: Arc<Rule>,
    edges: Edges,
    saved: Vec<Option<Tensor>>,
    taped: Vec<bool>,
}

/// The graph with these nodes as inputs after its own, and where its stops are in it.
fn cut_at(graph: &Graph, leaves: &[NodeId], stops: &[NodeId]) -> Result<(Graph, Vec<NodeId>), kiln_ir::Error> {
    if leaves.is_empty() {
        return Ok((graph.clone(), stops.to_vec()));
    }
    let mut b = GraphBuilder::new();
    let mut map: Vec<Option<NodeId>> = vec![None; graph.nodes().len()];
    for id in graph.inputs().iter().chain(leaves) {
        b.set_source(Some(graph.node(*id).source.clone()));
        map[id.index()] = Some(b.input(graph.ty(*id).clone())?);
    }
    for (id, node) in graph.iter() {
        if map[id.index()].is_none() {
            let operands: Vec<NodeId> = node.operands.iter().filter_map(|operand| map[operand.index()]).collect();
            b.set_source(Some(node.source.clone()));
            map[id.index()] = Some(b.emit(node.op.clone(), &operands)?);
        }
    }
    graph.outputs().iter().filter_map(|output| map[output.node.index()]).for_each(|id| b.output(id));
    Ok((b.finish(), stops.iter().filter_map(|stop| map[stop.index()]).collect()))
}

/// Sizes whose gradients are remembered.
const RULES_KEPT: usize = 64;

/// A segment with its code.
pub(super) struct Segment {
    pub(super) recorded: Arc<SegmentGraph>,
    pub(super) code: Code,
    /// For each input whether it is updated.
    updated: Vec<bool>,
    /// The updates in the order in which their variables are locked, the same for all threads.
    order: Vec<usize>,
    /// The inputs that are updated.
    updates: Vec<usize>,
    /// The variables that are only read.
    reads: Arc<Reads>,
    /// How gradients go through it, by the sizes of its symbols.
    rules: Mutex<Vec<(Sizes, Arc<Rule>)>>,
}

impl Segment {
    pub(super) fn new(recorded: Arc<SegmentGraph>, code: Code) -> Segment {
        let updates: Vec<usize> = recorded.updates.iter().map(|(_, input)| *input).collect();
        let updated = (0..recorded.from.len()).map(|input| updates.contains(&input)).collect();
        let mut order: Vec<usize> = (0..updates.len()).collect();
        order.sort_unstable_by_key(|&update| {
            let (set, _) = &recorded.updates[update];
            (set.var().id(), matches!(set, UpdateTarget::Gradient(_)))
        });
        Segment { recorded, code, updated, order, updates, reads: Arc::default(), rules: Mutex::default() }
    }

    /// Whether running it changes anything but slots: a variable, a gradient, the state of a generator.
    pub(super) fn has_effects(&self) -> bool {
        let draws = |from: &InputSource| matches!(from, InputSource::Key(..));
        !self.recorded.updates.is_empty() || !self.recorded.sets.is_empty() || self.recorded.from.iter().any(draws)
    }

    /// Runs it: takes inputs from the arguments and slots, pushes what it leaves to the slots, and changes variables.
    pub(super) fn run(&self, arguments: &[&Tensor], slots: &mut Vec<Tensor>, at: &Source) -> Result<()> {
        if self.recorded.updates.is_empty() {
            self.run_pure(arguments, slots, at)?;
        } else {
            self.run_updating(arguments, slots, at)?;
        }
        for (set, slot) in &self.recorded.sets {
            match set {
                UpdateTarget::Value(var) => {
                    if let Some(slot) = slot {
                        var.put(slots[*slot].clone(), at)?;
                    }
                }
                UpdateTarget::Gradient(var) => {
                    let gradient = slot.map(|slot| slots[slot].contiguous_at(at)).transpose()?;
                    var.put_grad(gradient);
                }
            }
        }
        Ok(())
    }

    /// The versions of the inputs that are frozen. Read before the inputs: at worst these are newer, and prepared again.
    fn versions(&self) -> Vec<u64> {
        self.code.ready().map(|code| code::versions(&self.recorded.from, code.frozen())).unwrap_or_default()
    }

    /// What the variables are that it only reads, in the order of the inputs.
    fn values(&self, at: &Source) -> Result<Arc<Values>> {
        fn read<'a>((from, updated): (&'a InputSource, &bool)) -> Option<&'a Var> {
            match from {
                InputSource::Var(var) if !updated => Some(var),
                _ => None,
            }
        }
        self.reads.of(self.recorded.from.iter().zip(&self.updated).filter_map(read), at)
    }

    /// An input that is borrowed from nobody.
    fn fresh(from: &InputSource, at: &Source) -> Result<Option<Tensor>> {
        match from {
            InputSource::Gradient(var) => Ok(var.snapshot_grad()),
            InputSource::Key(generator, device) => Ok(Some(generator.draw_key(*device, at)?)),
            InputSource::Argument(_)
            | InputSource::Held(_)
            | InputSource::Slot(_)
            | InputSource::Var(_)
            | InputSource::Data(_) => Ok(None),
        }
    }

    /// Shows the segment and its inputs to whoever watches the call.
    #[cold]
    fn show<'a>(&self, inputs: impl Iterator<Item = &'a Tensor>) {
        if !self.recorded.updates.is_empty() || !self.recorded.sets.is_empty() {
            watch::see_effect();
        }
        if !self.recorded.computes() {
            return;
        }
        let inputs: Vec<Tensor> = inputs.map(Tensor::detached).collect();
        let names = self.recorded.from.iter().map(|from| from.to_string()).collect();
        match self.code.kind() {
            Some(Kind::Compiled(code)) => watch::see_segment(code.clone(), inputs, names),
            // The packed program takes other inputs; the graph itself is shown as it is.
            Some(Kind::Frozen(_)) => {
                let layouts: Vec<_> = inputs.iter().map(Into::into).collect();
                let fixed = at_sizes(&self.recorded.graph, &inputs.iter().collect::<Vec<_>>());
                if let Ok(code) = fixed.and_then(|graph| crate::compile_graph(&graph, &layouts)) {
                    watch::see_segment(Arc::new(code), inputs, names);
                }
                watch::see_frozen();
            }
            None => watch::see_eager(),
        }
    }

    fn run_pure(&self, arguments: &[&Tensor], slots: &mut Vec<Tensor>, at: &Source) -> Result<()> {
        let versions = self.versions();
        let mut fresh = Vec::new();
        for from in &self.recorded.from {
            fresh.extend(Self::fresh(from, at)?);
        }
        let values = self.values(at)?;
        let (mut next, mut read) = (fresh.iter(), values.tensors().iter());
        let mut inputs: Vec<&Tensor> = Vec::with_capacity(self.recorded.from.len());
        for from in &self.recorded.from {
            let input = match from {
                InputSource::Argument(number) => Some(arguments[*number]),
                InputSource::Held(tensor) | InputSource::Data(tensor) => Some(tensor),
                InputSource::Slot(slot) => Some(&slots[*slot]),
                InputSource::Var(_) => read.next(),
                InputSource::Gradient(_) | InputSource::Key(..) => next.next(),
            };
            inputs.push(input.ok_or_else(|| crate::Error::Escaped { at: at.clone() })?);
        }
        if watch::is_watching() {
            self.show(inputs.iter().copied());
        }
        let mut outputs = Vec::new();
        if self.recorded.computes() {
            outputs = self.code.run(&self.recorded.graph, &inputs, &versions, at)?;
            let operands = match self.taped(&inputs) {
                Some((edges, taped)) => {
                    let saved = inputs.iter().map(|tensor| Some(tensor.detached())).collect();
                    Some(Operands { rule: self.rule(&inputs)?, edges, saved, taped })
                }
                None => None,
            };
            outputs = self.record(operands, outputs, at);
        }
        let kept: Vec<Tensor> = self.recorded.kept.iter().map(|&input| inputs[input].clone()).collect();
        slots.extend(outputs);
        slots.extend(kept);
        Ok(())
    }

    /// Where gradients go on, of the inputs and then of the leaves, and for each output whether it goes on a tape; nothing if
    /// none does.
    fn taped(&self, inputs: &[&Tensor]) -> Option<(Edges, Vec<bool>)> {
        if !tape::is_enabled() || self.recorded.taped.iter().all(Vec::is_empty) {
            return None;
        }
        let input = |(number, tensor): (usize, &&Tensor)| match &self.recorded.from[number] {
            // A value that is about to change has been taken out of the variable, and off its tape.
            InputSource::Var(var) if self.updated[number] => var.is_trainable().then(|| var.leaf()),
            _ => tape::edge(tensor),
        };
        let mut edges: Edges = inputs.iter().enumerate().map(input).collect();
        edges.extend(self.recorded.leaves.iter().map(Leaf::tape));
        let is_taped = |reach: &Vec<usize>| reach.iter().any(|&source| edges[source].is_some());
        let taped: Vec<bool> = self.recorded.taped.iter().map(is_taped).collect();
        taped.contains(&true).then_some((edges, taped))
    }

    /// Puts outputs on the tape.
    fn record(&self, operands: Option<Operands>, mut outputs: Vec<Tensor>, at: &Source) -> Vec<Tensor> {
        let starts: Vec<Option<Tape>> = match operands {
            Some(Operands { rule, edges, mut saved, taped }) => {
                let starts = edges[saved.len()..].to_vec();
                let leaf = |leaf: &Leaf| Some(outputs[leaf.output].clone());
                saved.extend(self.recorded.leaves.iter().map(leaf));
                outputs = tape::record_whole(rule, edges, saved, outputs, &taped, at);
                starts
            }
            None => self.recorded.leaves.iter().map(Leaf::tape).collect(),
        };
        for (leaf, start) in self.recorded.leaves.iter().zip(starts) {
            // Gradients by it are asked for at the start itself, which is one whether anything is recorded or not.
            if let Some(start) = start {
                outputs[leaf.output] = outputs[leaf.output].with_tape(Some(start));
            }
        }
        outputs
    }

    /// What goes on the tape of a segment that changes some of its inputs: a copy of those only if its gradient reads them.
    #[cold]
    fn operands(&self, inputs: &[CallInput<'_>]) -> Result<Option<Operands>> {
        let all: Vec<&Tensor> = inputs.iter().map(|tensor| &**tensor).collect();
        let Some((edges, taped)) = self.taped(&all) else { return Ok(None) };
        let rule = self.rule(&all)?;
        let wanted: Vec<bool> = edges.iter().map(Option::is_some).collect();
        // What has no gradient is refused when its gradient is asked for, which may be that of a part of the outputs.
        let reads = rule.reads(&wanted, &taped).unwrap_or_else(|_| vec![true; wanted.len()]);
        let is_kept = |input: usize| reads[input] || !self.updated[input];
        let kept = |(input, tensor): (usize, &&Tensor)| is_kept(input).then(|| tensor.detached());
        let saved = all.iter().enumerate().map(kept).collect();
        Ok(Some(Operands { rule, edges, saved, taped }))
    }

    /// How gradients go through it, for inputs of these sizes.
    #[cold]
    fn rule(&self, inputs: &[&Tensor]) -> Result<Arc<Rule>> {
        let key = symbol_sizes(&self.recorded.graph, inputs);
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rule)) = rules.iter().find(|(known, _)| *known == key) {
            return Ok(rule.clone());
        }
        let graph = at_sizes(&self.recorded.graph, inputs)?;
        let leaves: Vec<NodeId> = self.recorded.leaves.iter().map(|leaf| leaf.node).collect();
        let (graph, stops) = cut_at(&graph, &leaves, &self.recorded.stops)
            .map_err(|cause| crate::Error::Graph { cause: Box::new(cause) })?;
        let rule = Arc::new(Rule::of_program(graph, stops, self.recorded.taped.clone()));
        if rules.len() >= RULES_KEPT {
            rules.clear();
        }
        rules.push((key, rule.clone()));
        Ok(rule)
    }

    fn run_updating(&self, arguments: &[&Tensor], slots: &mut Vec<Tensor>, at: &Source) -> Result<()> {
        let recorded = &self.recorded;
        let versions = self.versions();
        // Variables that are only read first: whoever changes them meanwhile changes a copy.
        let values = self.values(at)?;
        let mut read = values.tensors().iter();
        let mut inputs: Vec<CallInput<'_>> = Vec::with_capacity(recorded.from.len());
        for (number, from) in recorded.from.iter().enumerate() {
            let input = match from {
                InputSource::Argument(number) => Some(CallInput::Borrowed(arguments[*number])),
                InputSource::Held(tensor) | InputSource::Data(tensor) => Some(CallInput::Borrowed(tensor)),
                InputSource::Slot(slot) => Some(CallInput::Owned(slots[*slot].clone())),
                _ if self.updated[number] => Some(CallInput::Owned(Tensor::nothing())),
                InputSource::Var(_) => read.next().map(CallInput::Borrowed),
                from => Self::fresh(from, at)?.map(CallInput::Owned),
            };
            inputs.push(input.ok_or_else(|| crate::Error::Escaped { at: at.clone() })?);
        }
        // Then those that change, locked in one order for all threads.
        let mut locks: Vec<(usize, Locked<'_>)> = Vec::with_capacity(self.order.len());
        for &update in &self.order {
            let (set, input) = &recorded.updates[update];
            let mut lock = match set {
                UpdateTarget::Value(var) => var.lock_value(at)?,
                UpdateTarget::Gradient(var) => var.lock_grad(),
            };
            // Kept inputs stay what they were: with another handle of them alive the update goes to a copy.
            let own = lock.take().ok_or_else(|| crate::Error::Escaped { at: at.clone() })?;
            inputs[*input] = CallInput::Owned(own);
            locks.push((*input, lock));
        }
        let keep = |&input: &usize| match &recorded.from[input] {
            InputSource::Var(var) if self.updated[input] => var.tagged(&inputs[input]),
            _ => Tensor::clone(&inputs[input]),
        };
        let kept: Vec<Tensor> = recorded.kept.iter().map(keep).collect();
        if watch::is_watching() {
            self.show(inputs.iter().map(|tensor| &**tensor));
        }
        let taped = self.operands(&inputs);
        let outcome = self.code.run_updating(&recorded.graph, &self.updates, &mut inputs, &versions, at);
        for (input, mut lock) in locks {
            lock.put(std::mem::replace(inputs[input].own(), Tensor::nothing()));
        }
        let outputs = outcome?.into_iter().take(recorded.outputs).collect();
        slots.extend(self.record(taped?, outputs, at));
        slots.extend(kept);
        Ok(())
    }
}
