//! The tree of a captured function: segments in the order they run, and at each value that the function asked for a branch for
//! every outcome it was captured with.
//!
//! ```text
//!  segment ─▶ read ─┬─ true  ─▶ segment ─▶ return
//!                   └─ false ─▶ return
//! ```
//!
//! A call walks down without calling the function. At an outcome without a branch the function is called again: what ran
//! already is not run again, and what it records after that outcome becomes the branch.

use super::bundle::Bundle;
use super::recording::Place;
use super::segment::{From, Segment};
use super::{Setting, same_elements};
use crate::autograd::tape;
use crate::see::witness;
use crate::{Error, Result, Tensor, Var};
use kiln_ir::Source;
use kiln_runtime::disk::digest;
use kiln_runtime::phase;
use std::any::Any;
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};

/// What a function asked for that decides how it goes on.
#[derive(Debug, Clone)]
pub(super) enum Question {
    /// The elements of a tensor.
    Elements { of: From, what: &'static str, at: Source },
    /// A setting.
    Setting(Setting),
    /// Whether a variable has a gradient.
    HasGradient(Var),
    /// What a disabled part gave besides the elements of its tensors.
    Outside,
    /// Whether gradients are recorded where the function is called.
    IsRecorded,
}

impl Question {
    /// Whether the answer is in a tensor's elements, so that a graph ends here.
    pub(super) fn is_break(&self) -> bool {
        matches!(self, Question::Elements { .. } | Question::Outside)
    }

    /// That its answer is new, in words.
    pub(super) fn news(&self) -> String {
        match self {
            Question::Elements { what, .. } => format!("it {what}, and what it reads is new at each of these calls"),
            Question::Setting(setting) => format!("a setting it reads is {}, which is new", setting.peek()),
            Question::HasGradient(_) => {
                "a variable has a gradient where it had none, or none where it had one".to_owned()
            }
            Question::Outside => "what a disabled part gives besides elements is new at each of these calls".to_owned(),
            Question::IsRecorded => "it is called inside of `no_grad`, or outside where it was inside".to_owned(),
        }
    }

    fn is(&self, other: &Question) -> bool {
        match (self, other) {
            (Question::Elements { of: a, .. }, Question::Elements { of: b, .. }) => a.is(b),
            (Question::Setting(a), Question::Setting(b)) => a.same(b),
            (Question::HasGradient(a), Question::HasGradient(b)) => a.same(b),
            (Question::Outside, Question::Outside) | (Question::IsRecorded, Question::IsRecorded) => true,
            _ => false,
        }
    }
}

/// The answer to a question; of many elements their digest.
pub(super) type Answer = Box<[u8]>;

/// Bytes of elements up to which they are kept as they are.
const ANSWER_KEPT: usize = 64;

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
pub(super) enum Stop {
    Segment(Arc<Segment>),
    Question(Question, Answer),
    /// Runs a disabled part, whose tensors go to slots.
    Outside {
        run: Outside,
        from: Vec<From>,
        at: Source,
    },
}

impl Stop {
    /// Whether two recordings of a stop are the same.
    pub(super) fn is(&self, other: &Stop) -> bool {
        match (self, other) {
            (Stop::Segment(a), Stop::Segment(b)) => a.draft.is_same(&b.draft),
            (Stop::Question(a, x), Stop::Question(b, y)) => a.is(b) && x == y,
            (Stop::Outside { from: a, .. }, Stop::Outside { from: b, .. }) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is(b))
            }
            _ => false,
        }
    }

    /// Whether it changes anything but slots.
    pub(super) fn has_effects(&self) -> bool {
        match self {
            Stop::Segment(segment) => segment.has_effects(),
            Stop::Question(..) => false,
            Stop::Outside { .. } => true,
        }
    }
}

/// A place in the tree.
pub(super) enum Node<R> {
    /// Nothing follows a stop only while the tree is taken apart.
    Stop {
        stop: Stop,
        next: Option<Arc<Node<R>>>,
    },
    Branch {
        question: Question,
        branches: RwLock<Vec<(Answer, Arc<Node<R>>)>>,
    },
    Return(Arc<Returned<R>>),
}

/// What a function returned: tensors that stand for values, and where these are.
pub(super) struct Returned<R> {
    pub(super) output: R,
    /// In the order of the output's tensors.
    pub(super) places: Vec<Place>,
}

/// Stops of a path; longer ones are not kept.
pub(super) const STOPS_KEPT: usize = 1 << 17;

impl<R> Node<R> {
    /// The chain of these stops.
    pub(super) fn chain(stops: Vec<Stop>, end: Node<R>) -> Arc<Node<R>> {
        Node::join(stops, Arc::new(end))
    }

    /// The chain of these stops, and then what follows.
    pub(super) fn join(stops: Vec<Stop>, end: Arc<Node<R>>) -> Arc<Node<R>> {
        stops.into_iter().rev().fold(end, |next, stop| {
            Arc::new(match stop {
                Stop::Question(question, answer) => {
                    Node::Branch { question, branches: RwLock::new(vec![(answer, next)]) }
                }
                stop => Node::Stop { stop, next: Some(next) },
            })
        })
    }

    /// The way on after an answer.
    pub(super) fn branch(&self, answer: &[u8]) -> Option<Arc<Node<R>>> {
        let Node::Branch { branches, .. } = self else { return None };
        let branches = branches.read().unwrap_or_else(PoisonError::into_inner);
        branches.iter().find(|(known, _)| **known == *answer).map(|(_, next)| next.clone())
    }

    /// Keeps a branch.
    pub(super) fn grow(&self, answer: &[u8], next: Arc<Node<R>>) {
        let Node::Branch { branches, .. } = self else { return };
        let mut branches = branches.write().unwrap_or_else(PoisonError::into_inner);
        if !branches.iter().any(|(known, _)| **known == *answer) {
            branches.push((answer.into(), next));
        }
    }

    /// Takes a branch away again.
    pub(super) fn cut(&self, answer: &[u8]) {
        let Node::Branch { branches, .. } = self else { return };
        branches.write().unwrap_or_else(PoisonError::into_inner).retain(|(known, _)| **known != *answer);
    }

    /// Visits every place, parents first.
    pub(super) fn visit(&self, visit: &mut dyn FnMut(&Node<R>)) {
        let mut here = None;
        loop {
            let node = here.as_deref().unwrap_or(self);
            visit(node);
            here = match node {
                Node::Stop { next, .. } => next.clone(),
                Node::Branch { branches, .. } => {
                    let branches = branches.read().unwrap_or_else(PoisonError::into_inner).clone();
                    for (_, next) in &branches[1.min(branches.len())..] {
                        next.visit(visit);
                    }
                    branches.first().map(|(_, next)| next.clone())
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
            Node::Stop { next, .. } => into.extend(next.take()),
            Node::Branch { branches, .. } => {
                let branches = branches.get_mut().unwrap_or_else(PoisonError::into_inner);
                into.extend(branches.drain(..).map(|(_, next)| next));
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

/// A walk down the tree: what a call has so far.
pub(super) struct Walk<'a> {
    pub(super) arguments: Vec<&'a Tensor>,
    pub(super) slots: Vec<Tensor>,
    /// The stops so far.
    pub(super) trail: Vec<Stop>,
    /// What the disabled part that ran last gave besides elements.
    pub(super) outside: Vec<u8>,
    /// What disabled parts gave, and how many tensors each.
    pub(super) produced: Vec<(Rc<dyn Any>, usize)>,
    /// Whether what is captured on the way is for these sizes alone, as the tree is.
    pub(super) may_grow: bool,
}

/// How a walk ended.
pub(super) enum Arrived<R> {
    Returned(Arc<Returned<R>>),
    /// At a question with an answer that has no branch.
    Unknown {
        at: Arc<Node<R>>,
        question: Question,
        answer: Answer,
    },
}

impl<'a> Walk<'a> {
    pub(super) fn new(arguments: Vec<&'a Tensor>) -> Walk<'a> {
        Walk {
            arguments,
            slots: Vec::new(),
            trail: Vec::new(),
            outside: Vec::new(),
            produced: Vec::new(),
            may_grow: true,
        }
    }

    /// Goes down from a node, until the function returns or an answer is unknown.
    pub(super) fn go<R>(&mut self, mut node: Arc<Node<R>>, at: &Source) -> Result<Arrived<R>> {
        loop {
            node = match &*node {
                Node::Return(returned) => return Ok(Arrived::Returned(returned.clone())),
                Node::Stop { stop, next } => {
                    let next = next.clone().ok_or_else(|| Error::Escaped { at: at.clone() })?;
                    // The last segment is not needed again.
                    if !matches!(*next, Node::Return(_)) {
                        self.trail.push(stop.clone());
                    }
                    self.pass(stop, at)?;
                    next
                }
                Node::Branch { question, .. } => {
                    let answer = self.answer(question, at)?;
                    match node.branch(&answer) {
                        Some(next) => {
                            self.trail.push(Stop::Question(question.clone(), answer));
                            next
                        }
                        None => {
                            let question = question.clone();
                            return Ok(Arrived::Unknown { at: node, question, answer });
                        }
                    }
                }
            };
        }
    }

    /// Whether nothing that it did would be done twice if the function were run from its beginning.
    pub(super) fn may_start_again(&self) -> bool {
        !self.trail.iter().any(Stop::has_effects)
    }

    /// Does what a stop says.
    pub(super) fn pass(&mut self, stop: &Stop, at: &Source) -> Result<()> {
        match stop {
            Stop::Segment(segment) if witness::is_watching() => {
                phase::timed(phase::RUN, || segment.run(&self.arguments, &mut self.slots, at))
            }
            Stop::Segment(segment) => segment.run(&self.arguments, &mut self.slots, at),
            Stop::Question(..) => Ok(()),
            Stop::Outside { run, from, at } => {
                if witness::is_watching() {
                    witness::see_break("calls a part that is disabled", "", at);
                    witness::see_effect();
                }
                let inputs = from.iter().map(|from| self.tensor(from, at)).collect::<Result<Vec<_>>>()?;
                let produced = run(&inputs)?;
                self.produced.push((produced.whole, produced.tensors.len()));
                self.slots.extend(produced.tensors);
                self.outside = produced.rest;
                Ok(())
            }
        }
    }

    /// A tensor that is there already.
    pub(super) fn tensor(&self, from: &From, at: &Source) -> Result<Tensor> {
        let tensor = match from {
            From::Argument(number) => self.arguments.get(*number).map(|&tensor| tensor.clone()),
            From::Held(tensor) | From::Data(tensor) => Some(tensor.clone()),
            From::Slot(slot) => self.slots.get(*slot).cloned(),
            From::Var(_) | From::Gradient(_) | From::Key(..) => None,
        };
        tensor.ok_or_else(|| Error::Escaped { at: at.clone() })
    }

    /// The answer to a question now.
    pub(super) fn answer(&self, question: &Question, at: &Source) -> Result<Answer> {
        Ok(match question {
            Question::Elements { of, what, at: line } => {
                if witness::is_watching() {
                    witness::see_break(what, super::driver::BREAK_FIX, line);
                }
                let bytes = self.tensor(of, at)?.bytes_at(at)?;
                if bytes.len() > ANSWER_KEPT { digest(&bytes).into() } else { bytes.into() }
            }
            Question::Setting(setting) => setting.peek().to_le_bytes().into(),
            Question::HasGradient(var) => [var.has_grad() as u8].into(),
            Question::Outside => self.outside.as_slice().into(),
            Question::IsRecorded => [tape::is_enabled() as u8].into(),
        })
    }

    /// What the function returns.
    pub(super) fn fill<R: Bundle>(&self, returned: &Returned<R>) -> R {
        let mut places = returned.places.iter();
        returned.output.map_tensors(&mut |tensor| match places.next() {
            Some(Place::Argument(number)) => self.arguments[*number].clone(),
            Some(Place::Slot(slot)) => self.slots[*slot].clone(),
            _ => tensor.clone(),
        })
    }
}

impl<R: Bundle> Returned<R> {
    /// Whether two captures return the same but for the tensors' elements.
    pub(super) fn is_like(&self, other: &Returned<R>) -> bool {
        use super::bundle::{Leaf, leaves_of};
        let mut places = self.places.iter().zip(&other.places);
        let mut same = |pair: (&Leaf<'_>, &Leaf<'_>)| match pair {
            (Leaf::Tensor(a), Leaf::Tensor(b)) => match places.next() {
                Some((Place::Itself, Place::Itself)) => same_elements(a, b),
                Some((a, b)) => a == b,
                None => false,
            },
            (a, b) => a.is_value(b),
        };
        let (own, others) = (leaves_of(&self.output), leaves_of(&other.output));
        own.len() == others.len() && own.iter().zip(&others).all(&mut same)
    }
}
