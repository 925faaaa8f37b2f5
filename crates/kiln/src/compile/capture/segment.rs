//! A segment: a part of a captured function that is one graph, from one break to the next, with where its inputs come from
//! and what becomes of its results.

use super::code::{self, Code, Kind};
use super::watch;
use crate::tensor::call_input::CallInputs;
use crate::tensor::compiled_graph::make_writable;
use crate::tensor::scratch::Scratch;
use crate::tensor::tape::{self, Edges, Rule, Tape};
use crate::tensor::var::reads::{Reads, Values};
use crate::tensor::var::{Locked, Slot};
use crate::{Device, Generator, Result, Tensor, Var};
use kiln_ir::build::{Emit, GraphBuilder};
use kiln_ir::{Dim, Graph, NodeId, Source, Symbol};
use kiln_runtime::Pinned;
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
pub(super) fn is_same_data(a: &Tensor, b: &Tensor) -> bool {
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
    /// Operations of the function that are more than one node.
    pub(super) operations: Arc<Vec<tape::Operands>>,
    /// For each output that goes to a slot what gradients of it reach: inputs, and by number after these the leaves.
    pub(super) taped: Vec<Vec<usize>>,
    /// Values that tapes start at.
    pub(super) leaves: Vec<Leaf>,
    /// Whether elements were read before it, so that numbers in its graph may be what was read.
    pub(super) is_private: bool,
    /// How many of its inputs, the last ones, are there for their sizes alone.
    pub(super) bound: usize,
}

/// A value of a segment that a tape starts at: that of a variable which the segment has changed, or one that the function wants
/// gradients by.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    pub(super) node: NodeId,
    pub(super) of: LeafOf,
    /// The output that it is.
    pub(super) output: usize,
}

/// Whose value a [`Leaf`] is.
#[derive(Debug, Clone)]
pub(super) enum LeafOf {
    /// Nobody's: the function asks for gradients by it.
    Nothing,
    /// A variable's.
    Var(Var),
    /// That of the variable of this number among those that the function makes.
    Local(u32),
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
            && self.own_taped().eq(other.own_taped())
            && self.leaves.iter().map(Leaf::key).eq(other.leaves.iter().map(Leaf::key))
            && (self.own_from().len(), self.updates.len(), self.sets.len())
                == (other.own_from().len(), other.updates.len(), other.sets.len())
            && self.own_from().iter().zip(other.own_from()).all(from)
            && self.updates.iter().zip(&other.updates).all(|(a, b)| a.0.is(&b.0) && a.1 == b.1)
            && self.sets.iter().zip(&other.sets).all(|(a, b)| a.0.is(&b.0) && a.1 == b.1)
    }

    /// Where its inputs come from that the function uses.
    fn own_from(&self) -> &[InputSource] {
        &self.from[..self.from.len() - self.bound]
    }

    /// What gradients of its outputs reach, as it was before inputs were added for their sizes.
    fn own_taped(&self) -> impl Iterator<Item = Vec<usize>> {
        let own = |&source: &usize| if source >= self.from.len() { source - self.bound } else { source };
        self.taped.iter().map(move |reach| reach.iter().map(own).collect())
    }

    /// Whether its graph is for many sizes.
    pub(super) fn is_symbolic(&self) -> bool {
        self.graph.nodes().iter().any(|node| node.ty.fixed_shape().is_none())
    }

    /// Whether two recordings of a segment are the same. One for many sizes is compared with one of some by where values come from
    /// and go to.
    pub(super) fn is_same(&self, other: &SegmentGraph) -> bool {
        self.is_wired_like(other)
            && (self.is_symbolic()
                || other.is_symbolic()
                || self.stops == other.stops && is_same_graph(&self.graph, &other.graph))
    }
}

impl Leaf {
    /// Its output says which node it is. Nodes have other numbers where sizes, which are nodes too, are symbols.
    fn key(&self) -> (Option<u64>, Option<u32>, usize) {
        match &self.of {
            LeafOf::Nothing => (None, None, self.output),
            LeafOf::Var(var) => (Some(var.id()), None, self.output),
            LeafOf::Local(number) => (None, Some(*number), self.output),
        }
    }

    /// Where gradients of it go.
    fn tape(&self) -> Option<Tape> {
        match &self.of {
            LeafOf::Nothing => Some(Tape::start()),
            LeafOf::Var(var) => var.is_trainable().then(|| var.leaf()),
            LeafOf::Local(number) => Some(Tape::leaf(Slot::of_local(*number))),
        }
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
fn cut_at(
    graph: &Graph,
    leaves: &[NodeId],
    stops: &[NodeId],
    operations: &[tape::Operands],
) -> Result<(Graph, Vec<NodeId>, Vec<tape::Operands>), kiln_ir::Error> {
    if leaves.is_empty() {
        return Ok((graph.clone(), stops.to_vec(), operations.to_vec()));
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
    let mapped = |ids: &[NodeId]| ids.iter().filter_map(|id| map[id.index()]).collect::<Vec<NodeId>>();
    let operations = operations.iter().map(|(operands, results)| (mapped(operands), mapped(results))).collect();
    Ok((b.finish(), mapped(stops), operations))
}

/// Sizes whose gradients are remembered.
const RULES_KEPT: usize = 64;

/// A segment with its code.
pub(super) struct Segment {
    /// As the function says it: what other recordings are compared with.
    pub(super) raw: Arc<SegmentGraph>,
    /// As it runs: numbers that change may be inputs.
    pub(super) recorded: Arc<SegmentGraph>,
    pub(super) code: Code,
    /// Where each input is found when it runs.
    places: Vec<InputLocation>,
    /// The inputs that may be others at each run: all but held tensors and variables that are only read.
    others: Vec<u32>,
    /// The updates in the order in which their variables are locked, the same for all threads.
    order: Vec<usize>,
    /// The variables that are only read.
    read: Vec<Var>,
    reads: Arc<Reads>,
    /// Their values, where there are none of them.
    nothing_read: Option<Values>,
    /// What decides whether outputs go on a tape; nothing where none ever does.
    reached: Option<Reached>,
    /// How gradients go through it, by the sizes of its symbols.
    rules: Mutex<Vec<(Sizes, Arc<Rule>)>>,
}

/// Where an input is found at a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputLocation {
    Argument(u32),
    Slot(u32),
    /// The segment has it.
    Held,
    /// Of this number among the variables that are only read.
    Read(u32),
    /// Of this number among those that every run makes for itself.
    Fresh(u32),
    /// Of this number among the updates, in the order of their locks.
    Taken(u32),
}

/// The inputs that gradients of outputs reach.
struct Reached {
    /// Those that may be others at each run.
    others: Vec<u32>,
    /// Whether a variable that is only read is among them.
    reads: bool,
    /// Whether a held tensor on a tape is among them, or a leaf.
    always: bool,
}

/// What a run changes: taken out of its variables, which are locked. Goes back to them at the end, whatever that is.
#[derive(Default)]
struct Taken<'a> {
    tensors: Scratch<Tensor>,
    locks: Scratch<Locked<'a>>,
}

impl Taken<'_> {
    fn put_back(&mut self) {
        for (mut lock, tensor) in self.locks.drain().zip(self.tensors.drain()) {
            lock.put(tensor);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// The inputs of one run.
struct Gathered<'a> {
    segment: &'a Segment,
    arguments: &'a [&'a Tensor],
    slots: &'a [Tensor],
    values: &'a Values,
    fresh: Scratch<Tensor>,
    taken: Taken<'a>,
}

// SAFETY: an input that is not among `others` is held by the segment or one of `values`, and the number of these stands for no
// others. The values are of this segment alone.
unsafe impl CallInputs for Gathered<'_> {
    fn count(&self) -> usize {
        self.segment.places.len()
    }

    #[inline]
    fn tensor(&self, input: usize) -> &Tensor {
        match self.segment.places[input] {
            InputLocation::Argument(number) => self.arguments[number as usize],
            InputLocation::Slot(slot) => &self.slots[slot as usize],
            InputLocation::Held => match &self.segment.recorded.from[input] {
                InputSource::Held(tensor) | InputSource::Data(tensor) => tensor,
                _ => unreachable!("places are made of the sources"),
            },
            InputLocation::Read(number) => &self.values.tensors()[number as usize],
            InputLocation::Fresh(number) => &self.fresh[number as usize],
            InputLocation::Taken(number) => &self.taken.tensors[number as usize],
        }
    }

    /// The new value of a variable is on no tape yet.
    fn as_output(&self, input: usize) -> Tensor {
        match self.segment.places[input] {
            InputLocation::Taken(_) => self.tensor(input).detached(),
            _ => self.tensor(input).clone(),
        }
    }

    fn pinned(&self) -> Option<Pinned<'_>> {
        Some(Pinned { key: (self.values.pin(), 0), others: &self.segment.others })
    }
}

impl Segment {
    pub(super) fn new(recorded: Arc<SegmentGraph>, code: Code) -> Segment {
        Segment::of(recorded.clone(), recorded, code)
    }

    /// A segment that runs as `recorded`.
    pub(super) fn of(raw: Arc<SegmentGraph>, recorded: Arc<SegmentGraph>, code: Code) -> Segment {
        let mut order: Vec<usize> = (0..recorded.updates.len()).collect();
        order.sort_unstable_by_key(|&update| {
            let (set, _) = &recorded.updates[update];
            (set.var().id(), matches!(set, UpdateTarget::Gradient(_)))
        });
        let mut taken = vec![None; recorded.from.len()];
        for (number, &update) in order.iter().enumerate() {
            taken[recorded.updates[update].1] = Some(number as u32);
        }
        let (mut places, mut read, mut fresh) = (Vec::with_capacity(recorded.from.len()), Vec::new(), 0);
        for (from, taken) in recorded.from.iter().zip(taken) {
            places.push(match (from, taken) {
                (_, Some(number)) => InputLocation::Taken(number),
                (InputSource::Argument(number), _) => InputLocation::Argument(*number as u32),
                (InputSource::Slot(slot), _) => InputLocation::Slot(*slot as u32),
                (InputSource::Held(_) | InputSource::Data(_), _) => InputLocation::Held,
                (InputSource::Var(var), _) => {
                    read.push(var.clone());
                    InputLocation::Read(read.len() as u32 - 1)
                }
                (InputSource::Gradient(_) | InputSource::Key(..), _) => {
                    fresh += 1;
                    InputLocation::Fresh(fresh - 1)
                }
            });
        }
        let is_other = |input: &u32| !matches!(places[*input as usize], InputLocation::Held | InputLocation::Read(_));
        let others: Vec<u32> = (0..places.len() as u32).filter(is_other).collect();
        let reached = Reached::of(&recorded, &places, &others);
        let nothing_read = read.is_empty().then(Values::none);
        let (reads, rules) = Default::default();
        Segment { raw, recorded, code, places, others, order, read, reads, nothing_read, reached, rules }
    }

    /// Whether running it changes anything but slots: a variable, a gradient, the state of a generator.
    pub(super) fn has_effects(&self) -> bool {
        let draws = |from: &InputSource| matches!(from, InputSource::Key(..));
        !self.recorded.updates.is_empty() || !self.recorded.sets.is_empty() || self.recorded.from.iter().any(draws)
    }

    /// Runs it: takes inputs from the arguments and slots, pushes what it leaves to the slots, and changes variables.
    pub(super) fn run(&self, arguments: &[&Tensor], slots: &mut Scratch<Tensor>, at: &Source) -> Result<()> {
        let mut left = Scratch::new();
        self.compute(arguments, slots, &mut left, at)?;
        slots.extend(left.drain());
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

    /// Runs its graph; `left` gets what goes to the slots.
    fn compute(&self, arguments: &[&Tensor], slots: &[Tensor], left: &mut Scratch<Tensor>, at: &Source) -> Result<()> {
        // The versions of the inputs that are frozen. Read before the inputs: at worst these are newer, and prepared again.
        let versions = match self.code.ready() {
            Some(code) => code::versions(&self.recorded.from, code.frozen()),
            None => Scratch::new(),
        };
        // Variables that are only read first: whoever changes them meanwhile changes a copy.
        let read;
        let values = match &self.nothing_read {
            Some(values) => values,
            None => {
                read = self.reads.of(&self.read, at)?;
                &*read
            }
        };
        let (fresh, taken) = Default::default();
        let mut inputs = Gathered { segment: self, arguments, slots, values, fresh, taken };
        for &input in &self.others {
            if let InputLocation::Fresh(_) = self.places[input as usize] {
                inputs.fresh.push(Self::fresh(&self.recorded.from[input as usize], at)?);
            }
        }
        self.take(&mut inputs.taken, at)?;
        // Kept inputs stay what they were: with another handle of them alive the update goes to a copy.
        let keep = |&input: &usize| match (&self.recorded.from[input], self.places[input]) {
            (InputSource::Var(var), InputLocation::Taken(_)) => var.tagged(inputs.tensor(input)),
            _ => inputs.tensor(input).clone(),
        };
        let mut kept: Scratch<Tensor> = self.recorded.kept.iter().map(keep).collect();
        if watch::is_watching() {
            self.show(&inputs);
        }
        if self.recorded.computes() {
            let operands = self.operands(&inputs)?;
            match self.code.ready_for(&versions) {
                Some(ready) => {
                    for (tensor, &update) in inputs.taken.tensors.iter_mut().zip(&self.order) {
                        make_writable(tensor, self.recorded.updates[update].1, at)?;
                    }
                    let (graph, wanted) = (&self.recorded.graph, self.recorded.outputs);
                    // SAFETY: what the graph updates has been taken out of its variables, which are locked, and is writable.
                    unsafe { ready.run(graph, &inputs, &versions, wanted, &mut |output| left.push(output), at) }?;
                }
                None => self.compute_without_code(&mut inputs, left, at)?,
            }
            inputs.taken.put_back();
            self.record(operands, left, at);
        }
        left.extend(kept.drain());
        Ok(())
    }

    /// Locks the variables that it changes, in one order for all threads, and takes their values out.
    fn take<'a>(&'a self, taken: &mut Taken<'a>, at: &Source) -> Result<()> {
        for &update in &self.order {
            let mut lock = match &self.recorded.updates[update].0 {
                UpdateTarget::Value(var) => var.lock_value(at)?,
                UpdateTarget::Gradient(var) => var.lock_grad(),
            };
            taken.tensors.push(lock.take().ok_or_else(|| crate::Error::Escaped { at: at.clone() })?);
            taken.locks.push(lock);
        }
        Ok(())
    }

    /// Runs the graph an op at a time.
    #[cold]
    fn compute_without_code(&self, inputs: &mut Gathered<'_>, left: &mut Scratch<Tensor>, at: &Source) -> Result<()> {
        let all: &dyn CallInputs = inputs;
        let given = all.iter().map(Tensor::detached).collect();
        let mut outputs = code::run_an_op_at_a_time(&self.recorded.graph, given, at)?;
        let updates = outputs.split_off(self.recorded.outputs);
        for (tensor, &update) in inputs.taken.tensors.iter_mut().zip(&self.order) {
            *tensor = updates[update].clone();
        }
        left.extend(outputs);
        Ok(())
    }

    /// An input that is borrowed from nobody.
    fn fresh(from: &InputSource, at: &Source) -> Result<Tensor> {
        let tensor = match from {
            InputSource::Gradient(var) => var.snapshot_grad(),
            InputSource::Key(generator, device) => Some(generator.draw_key(*device, at)?),
            InputSource::Argument(_)
            | InputSource::Held(_)
            | InputSource::Slot(_)
            | InputSource::Var(_)
            | InputSource::Data(_) => None,
        };
        tensor.ok_or_else(|| crate::Error::Escaped { at: at.clone() })
    }

    /// Shows the segment and its inputs to whoever watches the call.
    #[cold]
    fn show(&self, inputs: &dyn CallInputs) {
        if !self.recorded.updates.is_empty() || !self.recorded.sets.is_empty() {
            watch::see_effect();
        }
        if !self.recorded.computes() {
            return;
        }
        let inputs: Vec<Tensor> = inputs.iter().map(Tensor::detached).collect();
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

    /// What goes on the tape, if anything does. Of inputs that are about to change it has a copy only if the gradient reads them.
    #[inline]
    fn operands(&self, inputs: &Gathered<'_>) -> Result<Option<Operands>> {
        let Some(reached) = self.reached.as_ref().filter(|_| tape::is_enabled()) else { return Ok(None) };
        let may_be_taped = reached.always
            || reached.reads && inputs.values.is_taped()
            || reached.others.iter().any(|&input| inputs.tensor(input as usize).tape().is_some());
        if may_be_taped { self.taped_operands(inputs) } else { Ok(None) }
    }

    #[cold]
    fn taped_operands(&self, inputs: &Gathered<'_>) -> Result<Option<Operands>> {
        let inputs: Vec<&Tensor> = (inputs as &dyn CallInputs).list();
        let is_taken = |input: usize| matches!(self.places[input], InputLocation::Taken(_));
        let edge = |(number, tensor): (usize, &&Tensor)| match &self.recorded.from[number] {
            InputSource::Var(var) if is_taken(number) => var.is_trainable().then(|| var.leaf()),
            _ => tape::edge(tensor),
        };
        let mut edges: Edges = inputs.iter().enumerate().map(edge).collect();
        edges.extend(self.recorded.leaves.iter().map(Leaf::tape));
        let is_taped = |reach: &Vec<usize>| reach.iter().any(|&source| edges[source].is_some());
        let taped: Vec<bool> = self.recorded.taped.iter().map(is_taped).collect();
        if !taped.contains(&true) {
            return Ok(None);
        }
        let rule = self.rule(&inputs)?;
        let mut reads = vec![true; edges.len()];
        if !self.order.is_empty() {
            let wanted: Vec<bool> = edges.iter().map(Option::is_some).collect();
            // An operation without a gradient is an error when its gradient is computed, which may be that of a part of the
            // outputs.
            reads = rule.reads(&wanted, &taped).unwrap_or(reads);
        }
        let is_kept = |input: usize| reads[input] || !is_taken(input);
        let kept = |(input, tensor): (usize, &&Tensor)| is_kept(input).then(|| tensor.detached());
        let saved = inputs.iter().enumerate().map(kept).collect();
        Ok(Some(Operands { rule, edges, saved, taped }))
    }

    /// Puts outputs on the tape.
    #[inline]
    fn record(&self, operands: Option<Operands>, outputs: &mut Scratch<Tensor>, at: &Source) {
        if operands.is_some() || !self.recorded.leaves.is_empty() {
            self.record_outputs(operands, outputs, at);
        }
    }

    #[cold]
    fn record_outputs(&self, operands: Option<Operands>, outputs: &mut Scratch<Tensor>, at: &Source) {
        let starts: Vec<Option<Tape>> = match operands {
            Some(Operands { rule, edges, mut saved, taped }) => {
                let starts = edges[saved.len()..].to_vec();
                let leaf = |leaf: &Leaf| Some(outputs[leaf.output].clone());
                saved.extend(self.recorded.leaves.iter().map(leaf));
                let results = outputs.drain().collect();
                outputs.extend(tape::record_whole(rule, edges, saved, results, &taped, at));
                starts
            }
            None => self.recorded.leaves.iter().map(Leaf::tape).collect(),
        };
        for (leaf, start) in self.recorded.leaves.iter().zip(starts) {
            // Gradients by it are those of the leaf itself, which is one whether anything is recorded or not.
            if let Some(start) = start {
                outputs[leaf.output] = outputs[leaf.output].with_tape(Some(start));
            }
        }
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
        let (graph, stops, operations) = cut_at(&graph, &leaves, &self.recorded.stops, &self.recorded.operations)
            .map_err(|cause| crate::Error::Graph { cause: Box::new(cause) })?;
        let rule = Arc::new(Rule::of_program(graph, stops, self.recorded.taped.clone(), operations));
        if rules.len() >= RULES_KEPT {
            rules.clear();
        }
        rules.push((key, rule.clone()));
        Ok(rule)
    }
}

impl Reached {
    /// Nothing if no output ever goes on a tape.
    fn of(recorded: &SegmentGraph, places: &[InputLocation], others: &[u32]) -> Option<Reached> {
        let mut is_reached = vec![false; places.len() + recorded.leaves.len()];
        recorded.taped.iter().flatten().for_each(|&source| is_reached[source] = true);
        let (inputs, leaves) = is_reached.split_at(places.len());
        let is_held_on_tape = |input: usize| match &recorded.from[input] {
            InputSource::Held(tensor) | InputSource::Data(tensor) => inputs[input] && tensor.tape().is_some(),
            _ => false,
        };
        let reached = Reached {
            others: others.iter().copied().filter(|&input| inputs[input as usize]).collect(),
            reads: places
                .iter()
                .zip(inputs)
                .any(|(place, reached)| *reached && matches!(place, InputLocation::Read(_))),
            always: leaves.contains(&true) || (0..places.len()).any(is_held_on_tape),
        };
        (reached.always || reached.reads || !reached.others.is_empty()).then_some(reached)
    }
}
