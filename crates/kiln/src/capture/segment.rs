//! A segment: a part of a captured function that is one graph, from one break to the next, with where its inputs come from
//! and what becomes of its results.

use crate::compile::CompiledGraph;
use crate::var::Locked;
use crate::{Device, Generator, Result, Tensor, Var};
use kiln_ir::{Graph, Source};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Where an input of a segment comes from.
#[derive(Debug, Clone)]
pub(super) enum From {
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
}

impl From {
    /// Whether both are the same place.
    pub(super) fn is(&self, other: &From) -> bool {
        match (self, other) {
            (From::Argument(a), From::Argument(b)) => a == b,
            (From::Held(a), From::Held(b)) => super::same_elements(a, b),
            (From::Var(a), From::Var(b)) | (From::Gradient(a), From::Gradient(b)) => a.id() == b.id(),
            (From::Key(a, x), From::Key(b, y)) => a.same(b) && x == y,
            (From::Slot(a), From::Slot(b)) => a == b,
            _ => false,
        }
    }
}

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            From::Argument(number) => write!(f, "argument {number}"),
            From::Held(tensor) => write!(f, "held tensor {}", tensor.ty()),
            From::Var(var) => write!(f, "variable {var:?}"),
            From::Gradient(var) => write!(f, "gradient of {var:?}"),
            From::Key(..) => f.write_str("random key"),
            From::Slot(slot) => write!(f, "value {slot} of an earlier segment"),
        }
    }
}

/// What a segment changes.
#[derive(Debug, Clone)]
pub(super) enum Set {
    /// The value of a variable.
    Value(Var),
    /// The gradient of a variable.
    Gradient(Var),
}

impl Set {
    fn var(&self) -> &Var {
        match self {
            Set::Value(var) | Set::Gradient(var) => var,
        }
    }

    fn is(&self, other: &Set) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other) && self.var().id() == other.var().id()
    }
}

/// A segment as it was recorded.
#[derive(Debug, Clone)]
pub(super) struct Draft {
    /// Its outputs: first those that go to slots, then the updates.
    pub(super) graph: Graph,
    /// Where its inputs come from.
    pub(super) from: Vec<From>,
    /// Its first slot.
    pub(super) base: usize,
    /// How many outputs go to slots.
    pub(super) outputs: usize,
    /// The inputs that go to the slots after these.
    pub(super) kept: Vec<usize>,
    /// What is written in place, and the input that it is.
    pub(super) updates: Vec<(Set, usize)>,
    /// What becomes the value of a slot, or none.
    pub(super) sets: Vec<(Set, Option<usize>)>,
}

impl Draft {
    /// Whether running it would do nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.outputs == 0 && self.kept.is_empty() && self.updates.is_empty() && self.sets.is_empty()
    }

    /// Whether there is a graph to run.
    pub(super) fn computes(&self) -> bool {
        self.outputs > 0 || !self.updates.is_empty()
    }

    /// Whether both do the same, the graphs aside.
    pub(super) fn is_wired_like(&self, other: &Draft) -> bool {
        let from = |(a, b): (&From, &From)| a.is(b);
        (self.base, self.outputs, &self.kept) == (other.base, other.outputs, &other.kept)
            && (self.from.len(), self.updates.len(), self.sets.len())
                == (other.from.len(), other.updates.len(), other.sets.len())
            && self.from.iter().zip(&other.from).all(from)
            && self.updates.iter().zip(&other.updates).all(|(a, b)| a.0.is(&b.0) && a.1 == b.1)
            && self.sets.iter().zip(&other.sets).all(|(a, b)| a.0.is(&b.0) && a.1 == b.1)
    }

    /// Whether two recordings of a segment are the same.
    pub(super) fn is_same(&self, other: &Draft) -> bool {
        self.is_wired_like(other) && is_same_graph(&self.graph, &other.graph)
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

/// The code of a segment.
#[derive(Clone)]
pub(super) enum Code {
    /// None is needed.
    Nothing,
    Ready(Arc<CompiledGraph>),
    /// A thread is at it; until then, or if it fails, the graph runs an op at a time.
    Pending(Arc<OnceLock<Option<Arc<CompiledGraph>>>>),
}

impl Code {
    /// The program, once there is one.
    pub(super) fn ready(&self) -> Option<&Arc<CompiledGraph>> {
        match self {
            Code::Ready(code) => Some(code),
            Code::Pending(slot) => slot.get().and_then(Option::as_ref),
            Code::Nothing => None,
        }
    }
}

/// A segment with its code.
pub(super) struct Segment {
    pub(super) draft: Draft,
    pub(super) code: Code,
}

impl Segment {
    /// Runs it: takes inputs from the arguments and slots, pushes what it leaves to the slots, and changes variables.
    pub(super) fn run(&self, arguments: &[&Tensor], slots: &mut Vec<Tensor>, at: &Source) -> Result<()> {
        if self.draft.updates.is_empty() {
            self.run_pure(arguments, slots, at)?;
        } else {
            self.run_updating(arguments, slots, at)?;
        }
        for (set, slot) in &self.draft.sets {
            match set {
                Set::Value(var) => {
                    if let Some(slot) = slot {
                        var.put(slots[*slot].clone(), at)?;
                    }
                }
                Set::Gradient(var) => var.put_grad(slot.map(|slot| slots[slot].clone())),
            }
        }
        Ok(())
    }

    /// An input that is not borrowed from arguments, slots or the segment itself.
    fn fresh(from: &From, at: &Source) -> Result<Option<Tensor>> {
        match from {
            From::Var(var) => Ok(Some(var.program_input(at)?)),
            From::Gradient(var) => Ok(var.snapshot_grad()),
            From::Key(generator, device) => Ok(Some(generator.draw_key(*device, at)?)),
            From::Argument(_) | From::Held(_) | From::Slot(_) => Ok(None),
        }
    }

    fn run_pure(&self, arguments: &[&Tensor], slots: &mut Vec<Tensor>, at: &Source) -> Result<()> {
        let fresh: Vec<Tensor> = {
            let mut fresh = Vec::new();
            for from in &self.draft.from {
                fresh.extend(Self::fresh(from, at)?);
            }
            fresh
        };
        let mut next = fresh.iter();
        let mut inputs: Vec<&Tensor> = Vec::with_capacity(self.draft.from.len());
        for from in &self.draft.from {
            let input = match from {
                From::Argument(number) => Some(arguments[*number]),
                From::Held(tensor) => Some(tensor),
                From::Slot(slot) => Some(&slots[*slot]),
                From::Var(_) | From::Gradient(_) | From::Key(..) => next.next(),
            };
            inputs.push(input.ok_or_else(|| crate::Error::Escaped { at: at.clone() })?);
        }
        let outputs = match self.code.ready() {
            _ if !self.draft.computes() => Vec::new(),
            Some(code) => code.run_at("call", &inputs, at)?,
            None => {
                let inputs: Vec<Tensor> = inputs.iter().map(|&tensor| tensor.clone()).collect();
                crate::run_eagerly(&self.draft.graph, &inputs)?
            }
        };
        let kept: Vec<Tensor> = self.draft.kept.iter().map(|&input| inputs[input].clone()).collect();
        slots.extend(outputs);
        slots.extend(kept);
        Ok(())
    }

    fn run_updating(&self, arguments: &[&Tensor], slots: &mut Vec<Tensor>, at: &Source) -> Result<()> {
        let draft = &self.draft;
        let updated = |input: usize| draft.updates.iter().position(|(_, number)| *number == input);
        let mut inputs: Vec<Tensor> = Vec::with_capacity(draft.from.len());
        // Variables that are only read first: whoever changes them meanwhile changes a copy.
        for (number, from) in draft.from.iter().enumerate() {
            let input = match from {
                From::Argument(number) => Some(arguments[*number].clone()),
                From::Held(tensor) => Some(tensor.clone()),
                From::Slot(slot) => Some(slots[*slot].clone()),
                _ if updated(number).is_some() => Some(Tensor::nothing()),
                from => Self::fresh(from, at)?,
            };
            inputs.push(input.ok_or_else(|| crate::Error::Escaped { at: at.clone() })?);
        }
        // Then those that change, locked in one order for all threads.
        let mut order: Vec<usize> = (0..draft.updates.len()).collect();
        order.sort_unstable_by_key(|&update| {
            let (set, _) = &draft.updates[update];
            (set.var().id(), matches!(set, Set::Gradient(_)))
        });
        let mut locks: Vec<(usize, Locked<'_>)> = Vec::with_capacity(order.len());
        for update in order {
            let (set, input) = &draft.updates[update];
            let mut lock = match set {
                Set::Value(var) => var.lock_value(at)?,
                Set::Gradient(var) => var.lock_grad(),
            };
            // Kept inputs stay what they were: with another handle of them alive the update goes to a copy.
            inputs[*input] = lock.take().ok_or_else(|| crate::Error::Escaped { at: at.clone() })?;
            locks.push((*input, lock));
        }
        let kept: Vec<Tensor> = draft.kept.iter().map(|&input| inputs[input].clone()).collect();
        let outcome = match self.code.ready() {
            Some(code) => code.update_in(&mut inputs, at),
            None => crate::run_eagerly(&draft.graph, &inputs).inspect(|outputs| {
                for ((_, input), new) in draft.updates.iter().zip(&outputs[draft.outputs..]) {
                    inputs[*input] = new.clone();
                }
            }),
        };
        for (input, mut lock) in locks {
            lock.put(std::mem::replace(&mut inputs[input], Tensor::nothing()));
        }
        slots.extend(outcome?.into_iter().take(draft.outputs));
        slots.extend(kept);
        Ok(())
    }
}
