//! A program of a compiled function, behind its guards.

use super::code::Kind;
use super::compiled::{ProgramSummary, SegmentSummary, shapes_of};
use super::driver::OwnGradients;
use super::dynamic::Plan;
use super::guard::{self, Guard};
use super::limit_record::LimitRecord;
use super::segment::SegmentGraph;
use super::sizes::Sizes;
use super::tree::{Execution, Node, Numbers, Returned, TraceStep};
use crate::tensor::bundle::Leaf;
use crate::tensor::scratch::Scratch;
use kiln_ir::Source;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

/// A program with its guards.
pub(super) struct Entry<R> {
    pub(super) guards: Vec<Guard>,
    /// Which arguments are on the same tape.
    pub(super) shared_tapes: Vec<usize>,
    pub(super) used: AtomicU64,
    pub(super) root: Arc<Node<R>>,
    /// The numbers among the arguments that it decides by, by their parts.
    numbers: Vec<usize>,
    /// How calls fare that meet a limit on the way.
    pub(super) limit_record: LimitRecord,
    /// Nanoseconds that it is faster than the function itself, once that was measured.
    pub(super) gain: AtomicU64,
    /// The capture, if it was of one graph.
    pub(super) whole: Option<Whole<R>>,
    /// The shapes of the arguments' tensors then.
    pub(super) shapes: Vec<Vec<usize>>,
    /// The sizes that are symbols, if it was of several graphs for many sizes: what is captured later is for these, too.
    pub(super) plan: Option<Plan>,
    pub(super) sizes: Sizes,
    /// Whether the function itself was measured to be faster.
    pub(super) is_slower: OnceLock<bool>,
    /// Where it has functions with gradients of their own.
    pub(super) functions: OwnGradients,
}

/// A function captured as one graph.
pub(super) struct Whole<R> {
    /// The guards it passed before; none on elements.
    pub(super) path: Vec<TraceStep>,
    pub(super) recorded: Arc<SegmentGraph>,
    pub(super) returned: Arc<Returned<R>>,
}

impl<R> Entry<R> {
    /// A program for arguments like these.
    pub(super) fn new(
        guards: Vec<Guard>,
        leaves: &[Leaf<'_>],
        root: Arc<Node<R>>,
        whole: Option<Whole<R>>,
        sizes: Sizes,
    ) -> Entry<R> {
        let (used, limit_record, gain, is_slower) = Default::default();
        let any = |guard: &Guard| matches!(guard, Guard::Number { .. });
        let numbers = (0..guards.len()).filter(|&part| any(&guards[part])).collect();
        Entry {
            numbers,
            guards,
            shared_tapes: guard::shared_tapes(leaves).to_vec(),
            used,
            root,
            limit_record,
            gain,
            whole,
            shapes: shapes_of(leaves),
            plan: None,
            sizes,
            is_slower,
            functions: OwnGradients::default(),
        }
    }

    /// The arguments, by number, that are on tapes.
    pub(super) fn taped(&self) -> Vec<usize> {
        let tensors = self.guards.iter().filter_map(|guard| match guard {
            Guard::Tensor(guard) => Some(guard.taped),
            _ => None,
        });
        tensors.enumerate().filter(|(_, taped)| *taped).map(|(number, _)| number).collect()
    }

    /// The numbers among these parts that it decides by.
    #[inline]
    pub(super) fn numbers_of(&self, leaves: &[Leaf<'_>]) -> Numbers {
        let number = |&part: &usize| Some((part, leaves.get(part)?.number_bytes()?));
        self.numbers.iter().filter_map(number).collect()
    }

    /// Whether what is captured at a call is for all sizes that the program is for.
    pub(super) fn may_grow(&self) -> bool {
        self.sizes.is_fixed() || self.plan.is_some()
    }

    /// The sizes of its symbols for these parts, which pass its guards.
    pub(super) fn sizes_of(&self, leaves: &[Leaf<'_>]) -> Scratch<usize> {
        let mut sizes = Scratch::filled(guard::UNKNOWN, self.sizes.count());
        // They pass.
        let _ = guard::check(&self.guards, leaves, &mut sizes);
        sizes
    }

    /// Whether the function goes the way now that it went when this was captured, as far as that is decided by settings and the
    /// like. A program that grows has branches for the other ways; one graph for many sizes has none.
    pub(super) fn is_on_its_way(&self) -> bool {
        if self.may_grow() {
            return true;
        }
        let execution = Execution::new(Scratch::new());
        let holds = |step: &TraceStep| match step {
            TraceStep::BranchGuard(guard, known) => {
                execution.outcome(guard, &Source::default()).is_ok_and(|outcome| outcome == *known)
            }
            _ => true,
        };
        self.whole.as_ref().is_none_or(|whole| whole.path.iter().all(holds))
    }

    /// How many nodes its graphs have.
    pub(super) fn nodes(&self) -> usize {
        let mut nodes = 0;
        self.root.visit(&mut |node| {
            if let Node::Step { step: TraceStep::Segment(segment), .. } = node {
                nodes += segment.recorded.graph.nodes().len();
            }
        });
        nodes
    }

    /// Returns the guards as text.
    pub(super) fn guard_texts(&self) -> Vec<String> {
        self.guards.iter().map(Guard::to_string).chain(self.sizes.check_texts()).collect()
    }

    pub(super) fn summary(&self) -> ProgramSummary {
        let mut summary = ProgramSummary {
            guards: self.guard_texts(),
            kernels: Vec::new(),
            breaks: Vec::new(),
            segments: Vec::new(),
        };
        self.root.visit(&mut |node| match node {
            Node::Step { step: TraceStep::Segment(segment), .. } => {
                summary.kernels.extend(segment.kernels());
                summary.segments.push(SegmentSummary {
                    graph: segment.recorded.graph.clone(),
                    inputs: segment.recorded.from.iter().map(|from| from.to_string()).collect(),
                    code: match segment.code.kind() {
                        Some(Kind::Compiled(code)) => Some(code.clone()),
                        _ => None,
                    },
                    frozen: match segment.code.kind() {
                        Some(Kind::Frozen(code)) => Some(code.clone()),
                        _ => None,
                    },
                });
            }
            Node::Step { step: TraceStep::Outside { why, at, .. }, .. } => {
                summary.breaks.push(format!("{}, at {at}", why.what));
            }
            Node::Branch { guard, .. } => {
                summary.breaks.extend(guard.reading().map(|(what, _, at)| format!("{what}, at {at}")));
            }
            _ => {}
        });
        summary
    }
}
