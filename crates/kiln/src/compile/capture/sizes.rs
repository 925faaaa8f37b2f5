//! Which sizes a program is for: exactly those it was captured with, or a range of them.
//!
//! Where sizes may be symbols, the function is recorded with symbols ([`super::dynamic`]). Where it reads sizes as numbers, a graph is
//! made of those of two sets of sizes ([`super::symbolic`]), and every other set is checked once by recording again, which
//! costs no compile.

use super::check::Check;
use super::compiled::{Compiled, exact_guards, shapes_of, tensors_of};
use super::dynamic::{Plan, ROUNDS, SizeRequest, Verdict, bind};
use super::entry::{Entry, Whole};
use super::guard::{Before, Guard, Size};
use super::options::{Declared, Dynamic};
use super::segment::SegmentGraph;
use super::segment_compiler::Arguments;
use super::symbolic::{self, Symbols};
use super::tree::{Node, TraceStep};
use super::{Outcome, capture};
use crate::tensor::bundle::{Bundle, Leaf};
use crate::tensor::dim::Scope;
use crate::{Error, Result, Tensor};
use kiln_ir::{Graph, Ranges, Source, TensorType};
use kiln_kernels::InputLayout;
use std::collections::HashSet;
use std::sync::{Arc, PoisonError, RwLock};

/// The sizes that a program is for.
pub(super) enum Sizes {
    /// Those of its guards.
    Fixed,
    /// All that pass its checks.
    Symbolic { count: usize, checks: Vec<Check> },
    /// The sizes at which recording the function again gave the program's graph.
    Checked(CheckedSizes),
}

/// A program for the sizes it was checked at.
pub(super) struct CheckedSizes {
    graph: Arc<Graph>,
    count: usize,
    checked: RwLock<HashSet<Vec<usize>>>,
}

/// Whether a program is for some sizes.
pub(super) enum Accepted<'a> {
    Yes,
    /// This check fails.
    No(&'a Check),
    /// It is not known: these sizes have not been checked.
    Unchecked,
}

/// Sizes remembered a program; beyond that they are checked anew.
const SIZES_KEPT: usize = 65536;

impl Sizes {
    /// Whether these are the sizes of one call.
    pub(super) fn is_fixed(&self) -> bool {
        matches!(self, Sizes::Fixed)
    }

    /// How many symbols the guards have.
    pub(super) fn count(&self) -> usize {
        match self {
            Sizes::Fixed => 0,
            Sizes::Symbolic { count, .. } => *count,
            Sizes::Checked(at_sizes) => at_sizes.count,
        }
    }

    /// Whether the program is for these sizes of its symbols.
    pub(super) fn accept(&self, sizes: &[usize]) -> Accepted<'_> {
        match self {
            Sizes::Fixed => Accepted::Yes,
            Sizes::Symbolic { checks, .. } => {
                checks.iter().find(|check| !check.holds(sizes)).map_or(Accepted::Yes, Accepted::No)
            }
            Sizes::Checked(at_sizes) => {
                match at_sizes.checked.read().unwrap_or_else(PoisonError::into_inner).contains(sizes) {
                    true => Accepted::Yes,
                    false => Accepted::Unchecked,
                }
            }
        }
    }

    /// The checks, as text.
    pub(super) fn check_texts(&self) -> impl Iterator<Item = String> {
        let checks = match self {
            Sizes::Symbolic { checks, .. } => checks.as_slice(),
            _ => &[],
        };
        checks.iter().map(Check::to_string)
    }
}

/// What a program is made of.
struct Recipe {
    recorded: Arc<SegmentGraph>,
    guards: Vec<Guard>,
    sizes: Sizes,
    layouts: Option<Vec<InputLayout>>,
    ranges: Ranges,
}

impl<F, A: Bundle, R: Bundle, E: From<Error>> Compiled<F, A, R, E> {
    /// A program for a function that is one graph.
    pub(super) fn make_whole(
        &self,
        whole: Whole<R>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        plan: Option<Plan>,
        at: &Source,
    ) -> Result<Arc<Entry<R>>> {
        let exactly = || Recipe {
            recorded: whole.recorded.clone(),
            guards: exact_guards(leaves),
            sizes: Sizes::Fixed,
            layouts: None,
            ranges: Ranges::default(),
        };
        let wide = self.for_many(plan, &whole, arguments, leaves, at);
        let is_wide = wide.is_some();
        let mut recipe = wide.unwrap_or_else(exactly);
        let mut described = Arguments::of(leaves);
        if let Some(layouts) = recipe.layouts.take() {
            described.layouts = layouts;
        }
        let mut built = self.segment_compiler.build_for(recipe.recorded.clone(), &described, &recipe.ranges, at);
        if built.is_err() && is_wide {
            // What cannot be compiled for all sizes still can for one.
            recipe = exactly();
            built = self.segment_compiler.build(whole.recorded.clone(), &Arguments::of(leaves), at);
        }
        let segment = built?;
        let mut stops = whole.path.clone();
        stops.extend((!segment.recorded.is_empty()).then(|| TraceStep::Segment(Arc::new(segment))));
        let root = Node::chain(stops, Node::Return(whole.returned.clone()));
        Ok(self.keep(Entry::new(recipe.guards, leaves, root, Some(whole), recipe.sizes), at))
    }

    /// Which sizes of these arguments are to be symbols, if any are.
    pub(super) fn plan(&self, leaves: &[Leaf<'_>]) -> Option<Plan> {
        let tensors = tensors_of(leaves);
        let plan = match &self.options().dynamic {
            Dynamic::Static => None,
            Dynamic::Automatic => self.plan_of_changes(leaves, &[]),
            Dynamic::Always => Plan::new(leaves, &self.before(leaves), &|tensor, axis, now| {
                let least = self.least_symbol(tensor, axis, tensors[tensor].rank());
                (now >= least).then_some(SizeRequest { key: (now, now), name: None, least, most: None })
            }),
            Dynamic::Declared(declared) => self.plan_of_changes(leaves, declared),
        };
        plan.filter(Plan::has_symbols)
    }

    /// A graph for more sizes than these, if that is wanted and there is one.
    fn for_many(
        &self,
        plan: Option<Plan>,
        whole: &Whole<R>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Option<Recipe> {
        if let Some(recipe) = self.record_with(plan?, whole, arguments, leaves, at) {
            return Some(recipe);
        }
        if !self.options().buckets.is_empty() {
            return None;
        }
        let (symbols, graph) = match self.options().dynamic {
            Dynamic::Always => {
                self.like_before(whole, leaves).or_else(|| self.like_nearby(whole, arguments, leaves, at))
            }
            _ => self.like_before(whole, leaves),
        }?;
        let mut ranges = Ranges::default();
        for number in 0..symbols.values.len() {
            if let Some(symbol) = symbolic::symbol(number).as_symbol() {
                ranges.set(symbol, 2, None);
            }
        }
        let layouts = Some(symbolic_layouts(&symbols, leaves));
        let now = symbols.values.iter().map(|v| v.1).collect();
        let graph = Arc::new(graph);
        let recorded = Arc::new(SegmentGraph { graph: graph.clone(), ..SegmentGraph::clone(&whole.recorded) });
        let checked = RwLock::new(HashSet::from([now]));
        let sizes = Sizes::Checked(CheckedSizes { graph, count: symbols.values.len(), checked });
        Some(Recipe { recorded, guards: symbols.guards, sizes, layouts, ranges })
    }

    /// What the arguments of an earlier program were.
    fn before(&self, leaves: &[Leaf<'_>]) -> Vec<Before> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        earlier(&entries, leaves).map_or_else(Vec::new, |entry| entry.seen())
    }

    /// A plan in which declared sizes are symbols, and those that differ from an earlier program's or were symbols there.
    fn plan_of_changes(&self, leaves: &[Leaf<'_>], declared: &[Declared]) -> Option<Plan> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let before = earlier(&entries, leaves);
        let guards: Vec<&super::guard::TensorGuard> = before
            .iter()
            .flat_map(|entry| &entry.guards)
            .filter_map(|guard| match guard {
                Guard::Tensor(guard) => Some(guard),
                _ => None,
            })
            .collect();
        let shapes = before.map_or(&[][..], |entry| &entry.shapes);
        let tensors = tensors_of(leaves);
        let seen = before.map_or_else(Vec::new, |entry| entry.seen());
        Plan::new(leaves, &seen, &|tensor, axis, now| {
            let named = declared.iter().position(|declared| declared.is_at(tensor, axis, tensors[tensor].rank()));
            if let Some(place) = named {
                let Declared { symbol, least, most, .. } = &declared[place];
                return Some(SizeRequest { key: (place, usize::MAX), name: *symbol, least: *least, most: *most });
            }
            let was = *shapes.get(tensor)?.get(axis)?;
            let is_symbol = matches!(guards.get(tensor)?.sizes.get(axis)?, Size::Symbol { .. });
            let least = self.least_symbol(tensor, axis, tensors[tensor].rank());
            let is_wanted = now >= least && (was != now || is_symbol);
            is_wanted.then_some(SizeRequest { key: (was, now), name: None, least, most: None })
        })
    }

    /// The least size that may be a symbol where none is declared: 0 and 1 mean something else, and buckets have programs of
    /// their own.
    fn least_symbol(&self, tensor: usize, axis: usize, rank: usize) -> usize {
        let padded = self.options().buckets.iter().filter(|buckets| buckets.is_at(tensor, axis, rank));
        padded.filter_map(|buckets| buckets.sizes().last()).max().map_or(2, |&most| most.saturating_add(1).max(2))
    }

    /// Records the function with symbols.
    fn record_with(
        &self,
        mut plan: Plan,
        whole: &Whole<R>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Option<Recipe> {
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        for _ in 0..ROUNDS {
            let types = plan.types();
            plan.scope().enter();
            let outcome = capture(&f, arguments, Some(&types), None, at);
            let scope = Scope::leave()?;
            let captured = match outcome {
                Ok(Outcome::Whole(captured)) => Some(captured),
                _ => None,
            };
            let graph = captured.as_ref().map(|captured| [&*captured.last.graph]);
            match plan.judge(&scope, graph.as_ref().map(|graph| &graph[..]), at) {
                Verdict::Again => {}
                Verdict::No => return None,
                Verdict::Good(ranges, predicates) => {
                    let captured = captured?;
                    let same =
                        captured.last.is_wired_like(&whole.recorded) && captured.returned.is_like(&whole.returned);
                    if !same {
                        return None;
                    }
                    let mut recorded = captured.last;
                    bind(&mut recorded, &plan.homes())?;
                    let (count, layouts) = (plan.count(), Some(plan.layouts(leaves)));
                    let (guards, checks) = plan.finish(&predicates)?;
                    let checks = checks.into_iter().map(|(_, check)| check).collect();
                    let sizes = Sizes::Symbolic { count, checks };
                    return Some(Recipe { recorded: Arc::new(recorded), guards, sizes, layouts, ranges });
                }
            }
        }
        None
    }

    /// Refuses arguments whose sizes are not as declared.
    pub(super) fn check_declared(&self, leaves: &[Leaf<'_>], at: &Source) -> Result<()> {
        let Dynamic::Declared(declared) = &self.options().dynamic else { return Ok(()) };
        let tensors = tensors_of(leaves);
        for declared in declared {
            declared.check(&tensors, at)?;
        }
        Ok(())
    }

    /// A graph for this capture and that of an earlier program for other sizes.
    fn like_before(&self, whole: &Whole<R>, leaves: &[Leaf<'_>]) -> Option<(Symbols, Graph)> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.iter().rev().find_map(|entry| {
            let before = entry.whole.as_ref()?;
            if !entry.is_alike(leaves) || !before.is_like(whole) {
                return None;
            }
            let symbols = Symbols::between(&entry.guards, &entry.shapes, leaves)?;
            let graph = symbolic::unify(&before.recorded, &whole.recorded, &symbols)?;
            Some((symbols, graph))
        })
    }

    /// A graph for this capture and one of other sizes, in which every size is another that the function accepts another for.
    fn like_nearby(
        &self,
        whole: &Whole<R>,
        arguments: &A,
        leaves: &[Leaf<'_>],
        at: &Source,
    ) -> Option<(Symbols, Graph)> {
        let guards = exact_guards(leaves);
        let shapes = shapes_of(leaves);
        let mut sizes: Vec<usize> = shapes.iter().flatten().copied().filter(|&n| n >= 2).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let f = |arguments: &A| (self.apply)(&self.f, arguments);
        let attempt = |changes: &[(usize, usize)]| {
            let change = |&n: &usize| changes.iter().find(|(from, _)| *from == n).map_or(n, |(_, to)| *to);
            let nearby: Vec<Vec<usize>> = shapes.iter().map(|shape| shape.iter().map(change).collect()).collect();
            let ty = |(tensor, shape): (&Tensor, &Vec<usize>)| TensorType::fixed(tensor.dtype(), shape);
            let types: Vec<TensorType> = tensors_of(leaves).into_iter().zip(&nearby).map(ty).collect();
            let Ok(Outcome::Whole(other)) = capture(&f, arguments, Some(&types), None, at) else { return None };
            let symbols = Symbols::between(&guards, &nearby, leaves)?;
            let graph = symbolic::unify(&other.last, &whole.recorded, &symbols)?;
            (other.returned.is_like(&whole.returned) && other.last.is_wired_like(&whole.recorded))
                .then_some((symbols, graph))
        };
        let largest = sizes.last().copied()?;
        // Each size by itself first, then all that may change, to numbers that are no sizes yet.
        let free: Vec<usize> = sizes.into_iter().filter(|&n| attempt(&[(n, n + largest)]).is_some()).collect();
        let changes: Vec<(usize, usize)> =
            free.into_iter().enumerate().map(|(i, n)| (n, n + largest * (i + 1))).collect();
        attempt(&changes)
    }
}

/// The last program for arguments like these but for sizes, strides and, if there is none for these, numbers.
pub(super) fn earlier<'a, R>(entries: &'a [Arc<Entry<R>>], leaves: &[Leaf<'_>]) -> Option<&'a Arc<Entry<R>>> {
    let near = |entry: &&Arc<Entry<R>>| {
        let same = |(guard, leaf): (&Guard, &Leaf<'_>)| {
            guard.is_alike(leaf) || guard.is_number() && leaf.number_bytes().is_some()
        };
        entry.guards.len() == leaves.len() && entry.guards.iter().zip(leaves).all(same)
    };
    entries.iter().rev().find(|entry| entry.is_alike(leaves)).or_else(|| entries.iter().rev().find(near))
}

impl<R> Entry<R> {
    /// Whether its arguments are these but for sizes and strides.
    fn is_alike(&self, leaves: &[Leaf<'_>]) -> bool {
        let same = |(guard, leaf): (&Guard, &Leaf<'_>)| guard.is_alike(leaf);
        self.guards.len() == leaves.len() && self.guards.iter().zip(leaves).all(same)
    }

    /// What its arguments were when it was made.
    fn seen(&self) -> Vec<Before> {
        let guards = self.guards.iter().filter_map(|guard| match guard {
            Guard::Tensor(guard) => Some(guard),
            _ => None,
        });
        guards.zip(&self.shapes).map(|(guard, shape)| (shape.clone(), guard.strides.at(shape))).collect()
    }
}

impl<R: Bundle> Entry<R> {
    /// Whether a capture is this program's graph at these sizes; it is then remembered.
    pub(super) fn accepts(&self, capture: &Whole<R>, sizes: Vec<usize>) -> bool {
        let (Sizes::Checked(at_sizes), Some(whole)) = (&self.sizes, &self.whole) else { return false };
        let same = whole.is_like(capture) && symbolic::is_at(&at_sizes.graph, &sizes, &capture.recorded.graph);
        if same {
            let mut checked = at_sizes.checked.write().unwrap_or_else(PoisonError::into_inner);
            if checked.len() >= SIZES_KEPT {
                checked.clear();
            }
            checked.insert(sizes);
        }
        same
    }
}

impl<R: Bundle> Whole<R> {
    /// Whether two captures are the same but for the graph.
    fn is_like(&self, other: &Whole<R>) -> bool {
        self.path.len() == other.path.len()
            && self.path.iter().zip(&other.path).all(|(a, b)| a.is(b))
            && self.recorded.is_wired_like(&other.recorded)
            && self.returned.is_like(&other.returned)
    }
}

impl Declared {
    /// Refuses sizes that are not as declared.
    fn check(&self, tensors: &[&Tensor], at: &Source) -> Result<()> {
        let mut first = None;
        for &(tensor, axis) in &self.places {
            let wrong = |value: Option<usize>, expected: String| {
                Err(Error::DeclaredSize { name: self.name.clone(), tensor, axis, value, expected, at: at.clone() })
            };
            let Some(given) = tensors.get(tensor) else { return wrong(None, "there is no such tensor".to_owned()) };
            let Some(axis) = kiln_ir::build::axis(given.rank(), axis) else {
                return wrong(None, format!("the tensor has {} axes", given.rank()));
            };
            let value = given.shape()[axis];
            if value < self.least || self.most.is_some_and(|most| value > most) {
                let most = self.most.map_or(String::new(), |most| most.to_string());
                return wrong(Some(value), format!("declared as {}..={most}", self.least));
            }
            match first {
                None => first = Some(value),
                Some(first) if first == value => {}
                Some(first) => return wrong(Some(value), format!("it is {first} elsewhere")),
            }
        }
        Ok(())
    }
}

/// Returns the layouts of the arguments at symbolic sizes.
fn symbolic_layouts(symbols: &Symbols, leaves: &[Leaf<'_>]) -> Vec<InputLayout> {
    let guards = symbols.guards.iter().filter_map(|guard| match guard {
        Guard::Tensor(guard) => Some(guard),
        _ => None,
    });
    let tensors = guards.zip(symbols.types()).zip(tensors_of(leaves));
    tensors.map(|((guard, ty), tensor)| guard.strides.layout(&ty, tensor)).collect()
}
