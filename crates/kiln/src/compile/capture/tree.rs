//! The tree of a captured function: segments in execution order, and at each value that the function reads a branch for
//! every outcome it was captured with.
//!
//! ```text
//!  segment ─▶ read ─┬─ true  ─▶ segment ─▶ return
//!                   └─ false ─▶ return
//! ```
//!
//! A call walks down the tree without calling the function. At an outcome without a branch the function is called again:
//! what has run already is not run again, and what it records after that outcome becomes the branch.

use super::breaks::{BreakText, Cause, READ_FIX, fix_of};
use super::bucketed::Cuts;
use super::check::Check;
use super::decision::Decision;
use super::driver::{OwnGradients, Ran};
use super::recording::ResultLocation;
use super::same_elements;
use super::segment::{InputSource, Segment, is_same_data};
use super::watch;
use crate::tensor::bundle::{Bundle, Leaf};
use crate::tensor::scratch::Scratch;
use crate::tensor::setting::Setting;
use crate::tensor::tape;
use crate::{Error, Result, Tensor, Var};
use kiln_inspect::explain::BreakCost;
use kiln_ir::Source;
use kiln_runtime::disk::digest;
use kiln_runtime::phase;
use std::any::Any;
use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Instant;

/// A value that decides how a function goes on: a guard inside of the function rather than on its arguments.
#[derive(Debug, Clone)]
pub(super) enum BranchGuard {
    /// The elements of a tensor.
    Elements { of: InputSource, what: &'static str, at: Source },
    /// Whether a comparison of numbers holds.
    Decision(Arc<Decision>),
    /// A number among the arguments, the part of this number.
    Number { part: usize },
    /// A setting.
    Setting(Setting),
    /// Whether a variable has a gradient.
    HasGradient(Var),
    /// What a disabled part gave besides its tensors' elements and sizes.
    Outside,
    /// The sizes of what is in these slots. Where they are symbols, all outcomes are one, and its branches have checks.
    Sizes { slot: usize, count: usize, is_symbolic: bool },
    /// Whether gradients are recorded where the function is called.
    IsRecorded,
}

impl BranchGuard {
    /// Whether the outcome is in a tensor's elements, or a number beside tensors, so that a graph ends here.
    pub(super) fn is_break(&self) -> bool {
        matches!(
            self,
            BranchGuard::Elements { .. } | BranchGuard::Decision(_) | BranchGuard::Number { .. } | BranchGuard::Outside
        )
    }

    /// What it does, the way out and the line that does it, where that reads elements.
    pub(super) fn reading(&self) -> Option<(String, &'static str, &Source)> {
        match self {
            BranchGuard::Elements { what, at, .. } => Some(((*what).to_owned(), fix_of(what), at)),
            BranchGuard::Decision(decision) => Some((decision.to_string(), READ_FIX, &decision.at)),
            _ => None,
        }
    }

    /// Says that its outcome is new.
    pub(super) fn news(&self) -> String {
        match self {
            BranchGuard::Elements { what, .. } => format!("it {what}, and what it reads is new at each of these calls"),
            BranchGuard::Decision(decision) => format!("it {decision}, with an outcome that is new"),
            BranchGuard::Number { part } => {
                format!("part {part} of the arguments is a number that is new at each of these calls")
            }
            BranchGuard::Setting(setting) => format!("a setting it reads is {}, which is new", setting.peek()),
            BranchGuard::HasGradient(_) => {
                "a variable has a gradient where it had none, or none where it had one".to_owned()
            }
            BranchGuard::Sizes { .. } => {
                "sizes of results that depend on data are new at each of these calls".to_owned()
            }
            BranchGuard::Outside => {
                "what a disabled part gives besides elements is new at each of these calls".to_owned()
            }
            BranchGuard::IsRecorded => "it is called inside of `no_grad`, or outside where it was inside".to_owned(),
        }
    }

    fn is(&self, other: &BranchGuard) -> bool {
        match (self, other) {
            (BranchGuard::Elements { of: a, .. }, BranchGuard::Elements { of: b, .. }) => a.is(b),
            (BranchGuard::Decision(a), BranchGuard::Decision(b)) => a.is(b),
            (BranchGuard::Number { part: a }, BranchGuard::Number { part: b }) => a == b,
            (BranchGuard::Setting(a), BranchGuard::Setting(b)) => a.same(b),
            (BranchGuard::HasGradient(a), BranchGuard::HasGradient(b)) => a.same(b),
            (BranchGuard::Sizes { slot: a, count: x, .. }, BranchGuard::Sizes { slot: b, count: y, .. }) => {
                (a, x) == (b, y)
            }
            (BranchGuard::Outside, BranchGuard::Outside) | (BranchGuard::IsRecorded, BranchGuard::IsRecorded) => true,
            _ => false,
        }
    }
}

/// The outcome of a branch guard: a few bytes, or the digest of many.
#[derive(Clone, Copy)]
pub(super) struct BranchOutcome {
    len: u8,
    bytes: [u8; OUTCOME_KEPT],
}

/// Bytes up to which an outcome is kept as it is.
const OUTCOME_KEPT: usize = 64;

impl BranchOutcome {
    pub(super) fn of(outcome: &[u8]) -> BranchOutcome {
        if outcome.len() > OUTCOME_KEPT {
            return BranchOutcome::of(&digest(outcome));
        }
        let mut bytes = [0; OUTCOME_KEPT];
        bytes[..outcome.len()].copy_from_slice(outcome);
        BranchOutcome { len: outcome.len() as u8, bytes }
    }
}

impl Deref for BranchOutcome {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl PartialEq for BranchOutcome {
    fn eq(&self, other: &BranchOutcome) -> bool {
        **self == **other
    }
}

/// Numbers among the arguments, by their parts.
pub(super) type Numbers = Vec<(usize, [u8; 16])>;

/// The numbers among these parts.
pub(super) fn numbers_of(leaves: &[Leaf<'_>]) -> Numbers {
    leaves.iter().enumerate().filter_map(|(part, leaf)| Some((part, leaf.number_bytes()?))).collect()
}

/// A part of a function that is never captured.
pub(super) type Outside = Arc<dyn Fn(&[Tensor]) -> Result<Produced> + Send + Sync>;

/// What such a part gave.
pub(super) struct Produced {
    /// Its tensors, in row-major order.
    pub(super) tensors: Vec<Tensor>,
    /// All but the elements of these.
    pub(super) rest: Vec<u8>,
    pub(super) whole: Rc<dyn Any>,
}

/// A part of a path through a function.
#[derive(Clone)]
pub(super) enum TraceStep {
    Segment(Arc<Segment>),
    BranchGuard(BranchGuard, BranchOutcome),
    /// Runs a disabled part, whose tensors go to slots; or what is computed outside of graphs and changes nothing.
    Outside {
        run: Outside,
        from: Vec<InputSource>,
        is_pure: bool,
        why: Arc<BreakText>,
        at: Source,
    },
}

impl TraceStep {
    /// Whether two recordings of a step are the same.
    pub(super) fn is(&self, other: &TraceStep) -> bool {
        match (self, other) {
            (TraceStep::Segment(a), TraceStep::Segment(b)) => a.raw.is_same(&b.raw),
            (TraceStep::BranchGuard(a, x), TraceStep::BranchGuard(b, y)) => a.is(b) && x == y,
            (TraceStep::Outside { from: a, .. }, TraceStep::Outside { from: b, .. }) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is(b))
            }
            _ => false,
        }
    }

    /// Whether it is for many sizes.
    pub(super) fn is_symbolic(&self) -> bool {
        match self {
            TraceStep::Segment(segment) => segment.raw.is_symbolic(),
            TraceStep::BranchGuard(BranchGuard::Sizes { is_symbolic, .. }, _) => *is_symbolic,
            TraceStep::BranchGuard(..) | TraceStep::Outside { .. } => false,
        }
    }

    /// Whether it changes anything but slots.
    pub(super) fn has_effects(&self) -> bool {
        match self {
            TraceStep::Segment(segment) => segment.has_effects(),
            TraceStep::BranchGuard(..) => false,
            TraceStep::Outside { is_pure, .. } => !is_pure,
        }
    }

    /// Whether it gives tensors whose sizes depend on elements.
    pub(super) fn is_sized_by_data(&self) -> bool {
        matches!(self, TraceStep::Outside { why, .. } if why.because.cause == Cause::SizeOfData)
    }
}

/// A node of the tree.
pub(super) enum Node<R> {
    /// Nothing follows a step only while the tree is taken apart.
    Step {
        step: TraceStep,
        next: Option<Arc<Node<R>>>,
    },
    Branch {
        guard: BranchGuard,
        branches: RwLock<Vec<Branch<R>>>,
    },
    Return(Arc<Returned<R>>),
}

/// How a function goes on after an outcome, for sizes that pass the checks.
pub(super) struct Branch<R> {
    pub(super) outcome: BranchOutcome,
    checks: Arc<[Check]>,
    next: Arc<Node<R>>,
}

impl<R> Clone for Branch<R> {
    fn clone(&self) -> Branch<R> {
        Branch { outcome: self.outcome, checks: self.checks.clone(), next: self.next.clone() }
    }
}

impl<R> Branch<R> {
    fn is_for(&self, outcome: &[u8], sizes: &[usize]) -> bool {
        *self.outcome == *outcome && self.checks.iter().all(|check| check.holds(sizes))
    }
}

/// What a function returned: tensors that stand for values, and where these are.
pub(super) struct Returned<R> {
    pub(super) output: R,
    /// In the order of the output's tensors.
    pub(super) places: Vec<ResultLocation>,
    /// The padded axes of these, once they were looked for.
    pub(super) cuts: OnceLock<Arc<Cuts>>,
}

/// Steps of a path; longer ones are not kept.
pub(super) const STOPS_KEPT: usize = 1 << 17;

impl<R> Node<R> {
    /// The chain of these steps.
    pub(super) fn chain(steps: Vec<TraceStep>, end: Node<R>) -> Arc<Node<R>> {
        Node::join(steps, &mut Vec::new(), Arc::new(end))
    }

    /// The chain of these steps, and then what follows. What is checked after a branch guard is taken out of `checks`, where it stands
    /// by the number of the step.
    pub(super) fn join(steps: Vec<TraceStep>, checks: &mut Vec<(usize, Check)>, end: Arc<Node<R>>) -> Arc<Node<R>> {
        steps.into_iter().enumerate().rev().fold(end, |next, (number, step)| {
            Arc::new(match step {
                TraceStep::BranchGuard(guard, outcome) => {
                    let checks = checks.extract_if(.., |(at, _)| *at == number).map(|(_, check)| check).collect();
                    Node::Branch { guard, branches: RwLock::new(vec![Branch { outcome, checks, next }]) }
                }
                step => Node::Step { step, next: Some(next) },
            })
        })
    }

    /// The way on after an outcome, at these sizes.
    pub(super) fn branch(&self, outcome: &[u8], sizes: &[usize]) -> Option<Arc<Node<R>>> {
        let Node::Branch { branches, .. } = self else { return None };
        let branches = branches.read().unwrap_or_else(PoisonError::into_inner);
        branches.iter().find(|branch| branch.is_for(outcome, sizes)).map(|branch| branch.next.clone())
    }

    /// Keeps a branch.
    pub(super) fn grow(&self, outcome: &[u8], checks: Vec<Check>, next: Arc<Node<R>>) {
        let Node::Branch { branches, .. } = self else { return };
        let branch = Branch { outcome: BranchOutcome::of(outcome), checks: checks.into(), next };
        branches.write().unwrap_or_else(PoisonError::into_inner).push(branch);
    }

    /// How many branches there are.
    pub(super) fn branch_count(&self) -> usize {
        let Node::Branch { branches, .. } = self else { return 0 };
        branches.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Takes a branch away again.
    pub(super) fn cut(&self, next: &Arc<Node<R>>) {
        let Node::Branch { branches, .. } = self else { return };
        let mut branches = branches.write().unwrap_or_else(PoisonError::into_inner);
        branches.retain(|branch| !Arc::ptr_eq(&branch.next, next));
    }

    /// Visits every place, parents first.
    pub(super) fn visit(&self, visit: &mut dyn FnMut(&Node<R>)) {
        let mut here = None;
        loop {
            let node = here.as_deref().unwrap_or(self);
            visit(node);
            here = match node {
                Node::Step { next, .. } => next.clone(),
                Node::Branch { branches, .. } => {
                    let branches = branches.read().unwrap_or_else(PoisonError::into_inner).clone();
                    for branch in &branches[1.min(branches.len())..] {
                        branch.next.visit(visit);
                    }
                    branches.first().map(|branch| branch.next.clone())
                }
                Node::Return(_) => None,
            };
            if here.is_none() {
                return;
            }
        }
    }
}

impl<R> Node<R> {
    /// Takes what follows out of it.
    fn take_next(&mut self, into: &mut Vec<Arc<Node<R>>>) {
        match self {
            Node::Step { next, .. } => into.extend(next.take()),
            Node::Branch { branches, .. } => {
                let branches = branches.get_mut().unwrap_or_else(PoisonError::into_inner);
                into.extend(branches.drain(..).map(|branch| branch.next));
            }
            Node::Return(_) => {}
        }
    }
}

impl<R> Drop for Node<R> {
    /// One place after another: a chain is as long as a loop has turns, and dropping it by recursion would need as much stack.
    fn drop(&mut self) {
        let mut rest = Vec::new();
        self.take_next(&mut rest);
        while let Some(node) = rest.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                node.take_next(&mut rest);
            }
        }
    }
}

/// The state of a call that goes down the tree.
pub(super) struct Execution<'a> {
    pub(super) arguments: Scratch<&'a Tensor>,
    pub(super) slots: Scratch<Tensor>,
    /// The sizes that checks on the way are about, by number.
    pub(super) sizes: Scratch<usize>,
    /// The numbers among the arguments that are decided by on the way.
    pub(super) numbers: Numbers,
    /// The steps so far.
    pub(super) trail: Scratch<TraceStep>,
    /// What the disabled part that ran last gave besides elements.
    pub(super) outside: Vec<u8>,
    /// What disabled parts gave, and how many tensors each.
    pub(super) produced: Vec<(Rc<dyn Any>, usize)>,
    /// Whether what is captured on the way is kept: it is for the sizes that the tree is for.
    pub(super) may_grow: bool,
    /// Where what it goes through has functions with gradients of their own.
    pub(super) functions: OwnGradients,
}

/// Bytes of a tensor's elements.
fn bytes_of(tensor: &Tensor) -> usize {
    (tensor.elements() * tensor.dtype().size_in_bits()).div_ceil(8)
}

/// How far a call came.
pub(super) enum Reached<R> {
    Returned(Arc<Returned<R>>),
    /// At a guard with an outcome that has no branch.
    Unknown {
        at: Arc<Node<R>>,
        guard: BranchGuard,
        outcome: BranchOutcome,
    },
}

impl<'a> Execution<'a> {
    pub(super) fn new(arguments: Scratch<&'a Tensor>) -> Execution<'a> {
        Execution {
            arguments,
            slots: Scratch::new(),
            sizes: Scratch::new(),
            numbers: Numbers::new(),
            trail: Scratch::new(),
            outside: Vec::new(),
            produced: Vec::new(),
            may_grow: true,
            functions: OwnGradients::default(),
        }
    }

    /// Goes down from a node, until the function returns or an outcome is unknown.
    pub(super) fn go<R>(&mut self, from: &Arc<Node<R>>, at: &Source) -> Result<Reached<R>> {
        let mut branch;
        let mut node = from;
        loop {
            node = match &**node {
                Node::Return(returned) => return Ok(Reached::Returned(returned.clone())),
                Node::Step { step, next } => {
                    let next = next.as_ref().ok_or_else(|| Error::Escaped { at: at.clone() })?;
                    // The last segment is not needed again.
                    if !matches!(**next, Node::Return(_)) {
                        self.trail.push(step.clone());
                    }
                    self.pass(step, at)?;
                    next
                }
                Node::Branch { guard, .. } => {
                    self.read_sizes(guard);
                    let outcome = self.outcome(guard, at)?;
                    let Some(next) = node.branch(&outcome, &self.sizes) else {
                        return Ok(Reached::Unknown { at: node.clone(), guard: guard.clone(), outcome });
                    };
                    self.trail.push(TraceStep::BranchGuard(guard.clone(), outcome));
                    branch = next;
                    &branch
                }
            };
        }
    }

    /// Goes on where a capture ended.
    pub(super) fn take(&mut self, ran: Ran) {
        (self.slots, self.trail) = (ran.slots, ran.path.into_iter().collect());
        (self.produced, self.functions) = (ran.produced, ran.functions);
    }

    /// What it did so far, but for its last segment.
    pub(super) fn ran(&self) -> Ran {
        Ran {
            path: self.trail.iter().cloned().collect(),
            slots: self.slots.iter().cloned().collect(),
            produced: self.produced.clone(),
            homes: Vec::new(),
            functions: self.functions,
        }
    }

    /// Reads the sizes that checks from here on are about.
    pub(super) fn read_sizes(&mut self, guard: &BranchGuard) {
        if let BranchGuard::Sizes { slot, count, is_symbolic: true } = *guard {
            for tensor in &self.slots[slot..slot + count] {
                self.sizes.extend(tensor.shape().iter().copied());
            }
        }
    }

    /// Whether nothing that it did would be done twice if the function were run from its beginning.
    pub(super) fn may_start_again(&self) -> bool {
        !self.trail.iter().any(TraceStep::has_effects)
    }

    /// Executes a step.
    pub(super) fn pass(&mut self, step: &TraceStep, at: &Source) -> Result<()> {
        match step {
            TraceStep::Segment(segment) if watch::is_watching() => {
                phase::timed(phase::RUN, || segment.run(&self.arguments, &mut self.slots, at))
            }
            TraceStep::Segment(segment) => segment.run(&self.arguments, &mut self.slots, at),
            TraceStep::BranchGuard(..) => Ok(()),
            TraceStep::Outside { run, from, is_pure, why, at } => {
                let start = watch::is_watching().then(Instant::now);
                let inputs = from.iter().map(|from| self.tensor(from, at)).collect::<Result<Vec<_>>>()?;
                let produced = run(&inputs)?;
                if let Some(start) = start {
                    let bytes = produced.tensors.iter().map(bytes_of).sum();
                    watch::see_break(&why.what, why.fix, BreakCost { took: start.elapsed(), bytes }, at);
                    if !is_pure {
                        watch::see_effect();
                    }
                }
                self.produced.push((produced.whole, produced.tensors.len()));
                self.slots.extend(produced.tensors);
                self.outside = produced.rest;
                Ok(())
            }
        }
    }

    /// A tensor that is there already.
    pub(super) fn tensor(&self, from: &InputSource, at: &Source) -> Result<Tensor> {
        let tensor = match from {
            InputSource::Argument(number) => self.arguments.get(*number).map(|&tensor| tensor.clone()),
            InputSource::Held(tensor) | InputSource::Data(tensor) => Some(tensor.clone()),
            InputSource::Slot(slot) => self.slots.get(*slot).cloned(),
            InputSource::Var(_) | InputSource::Gradient(_) | InputSource::Key(..) => None,
        };
        tensor.ok_or_else(|| Error::Escaped { at: at.clone() })
    }

    /// Evaluates a branch guard.
    pub(super) fn outcome(&self, guard: &BranchGuard, at: &Source) -> Result<BranchOutcome> {
        Ok(match guard {
            BranchGuard::Elements { of, what, at: line } => {
                let start = watch::is_watching().then(Instant::now);
                let tensor = self.tensor(of, at)?;
                let outcome = tensor.with_bytes(at, BranchOutcome::of)?;
                if let Some(start) = start {
                    let cost = BreakCost { took: start.elapsed(), bytes: bytes_of(&tensor) };
                    watch::see_break(what, fix_of(what), cost, line);
                }
                outcome
            }
            BranchGuard::Decision(decision) => {
                let start = watch::is_watching().then(Instant::now);
                let bytes = Cell::new(0);
                let holds = decision.holds(&|from| {
                    let tensor = self.tensor(from, at)?;
                    bytes.set(bytes.get() + bytes_of(&tensor));
                    tensor.item_at(at)
                })?;
                if let Some(start) = start {
                    let cost = BreakCost { took: start.elapsed(), bytes: bytes.get() };
                    watch::see_break(&decision.to_string(), READ_FIX, cost, &decision.at);
                }
                BranchOutcome::of(&[holds as u8])
            }
            BranchGuard::Number { part } => {
                let number = self.numbers.iter().find(|(known, _)| known == part);
                BranchOutcome::of(number.map_or(&[][..], |(_, bytes)| bytes))
            }
            BranchGuard::Setting(setting) => BranchOutcome::of(&setting.peek().to_le_bytes()),
            BranchGuard::HasGradient(var) => BranchOutcome::of(&[var.has_grad() as u8]),
            BranchGuard::Outside => BranchOutcome::of(&self.outside),
            BranchGuard::Sizes { is_symbolic: true, .. } => BranchOutcome::of(&[]),
            BranchGuard::Sizes { slot, count, .. } => {
                let sizes = self.slots[*slot..slot + count].iter().flat_map(|tensor| tensor.shape());
                BranchOutcome::of(&sizes.flat_map(|size| size.to_le_bytes()).collect::<Vec<u8>>())
            }
            BranchGuard::IsRecorded => BranchOutcome::of(&[tape::is_enabled() as u8]),
        })
    }

    /// What the function returns.
    pub(super) fn fill<R: Bundle>(&self, returned: &Returned<R>) -> R {
        let mut places = returned.places.iter();
        returned.output.map_tensors(&mut |tensor| match places.next() {
            Some(ResultLocation::Argument(number)) => self.arguments[*number].clone(),
            Some(ResultLocation::Slot(slot)) => self.slots[*slot].clone(),
            _ => tensor.clone(),
        })
    }
}

impl<R: Bundle> Returned<R> {
    /// Whether two captures return the same but for the tensors' elements.
    pub(super) fn is_like(&self, other: &Returned<R>) -> bool {
        use crate::tensor::bundle::{Leaf, leaves_of};
        let mut places = self.places.iter().zip(&other.places);
        let mut same = |pair: (&Leaf<'_>, &Leaf<'_>)| match pair {
            (Leaf::Tensor(a), Leaf::Tensor(b)) => match places.next() {
                // A number that is always the same is another tensor each time.
                Some((ResultLocation::Itself, ResultLocation::Itself)) => {
                    same_elements(a, b) || a.rank() == 0 && is_same_data(a, b)
                }
                Some((a, b)) => a == b,
                None => false,
            },
            (a, b) => a.is_value(b),
        };
        let (own, others) = (leaves_of(&self.output), leaves_of(&other.output));
        own.len() == others.len() && own.iter().zip(&others).all(&mut same)
    }
}
