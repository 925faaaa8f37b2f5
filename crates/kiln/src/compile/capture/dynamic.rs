//! Captures a function for many sizes at once: while it is recorded, sizes of its arguments are symbols, and what it decides by
//! them becomes a guard.
//!
//! ```text
//!  plan: which sizes are symbols ─▶ record ─┬─▶ graph with symbols, checks over sizes
//!           ▲                               ├─▶ an equation between sizes ─┐
//!           └──────── built in ─────────────┼──────────────────────────────┘
//!                                           └─▶ numbers were read: no
//! ```

use super::check::Check;
use super::compiled::tensors_of;
use super::guard::{Guard, Size, Strides, repeats};
use super::segment::{InputSource, SegmentGraph};
use crate::tensor::bundle::Leaf;
use crate::tensor::compiled_graph::input_layout;
use crate::tensor::dim::scope::SizeSymbol;
use crate::tensor::dim::{Outcome, Predicate, Scope};
use kiln_ir::dim::Factor;
use kiln_ir::{Dim, Graph, Ranges, Source, Symbol, TensorType};
use kiln_kernels::InputLayout;
use kiln_runtime::event::{self, Category, Event};
use std::sync::Arc;

/// Times a function is recorded until its equations are built in.
pub(super) const ROUNDS: usize = 32;

/// A size that is to be a symbol.
pub(super) struct SizeRequest {
    /// Sizes of one key are one symbol.
    pub(super) key: (usize, usize),
    pub(super) name: Option<Symbol>,
    pub(super) least: usize,
    pub(super) most: Option<usize>,
}

/// Sizes of the arguments that are symbols while a function is recorded.
pub(super) struct Plan {
    /// What each of the symbols it began with is by now: itself, another, a multiple of a new one, or a number.
    dims: Vec<Dim>,
    /// The symbols that are left, each with the size it comes from and what that is divided by.
    free: Vec<(SizeSymbol, usize, i64)>,
    /// What users see, by number.
    names: Vec<Symbol>,
    guards: Vec<Guard>,
    checks: Vec<Check>,
}

/// What a recording says about its plan.
pub(super) enum Verdict {
    /// It is good, for sizes in these ranges.
    Good(Ranges, Vec<Predicate>),
    /// The plan has changed: once more.
    Again,
    /// There is no graph for many sizes.
    No,
}

impl Plan {
    /// Makes a symbol for each requested size. Tensors that are not row-major have none.
    pub(super) fn new(leaves: &[Leaf<'_>], wish: &dyn Fn(usize, usize, usize) -> Option<SizeRequest>) -> Option<Plan> {
        let mut plan =
            Plan { dims: Vec::new(), free: Vec::new(), names: Vec::new(), guards: Vec::new(), checks: Vec::new() };
        let mut keys: Vec<(usize, usize)> = Vec::new();
        let mut number = 0;
        for leaf in leaves {
            let mut guard = Guard::exactly(leaf);
            if let (Guard::Tensor(guard), Leaf::Tensor(tensor)) = (&mut guard, leaf) {
                let repeats = repeats(tensor);
                for (axis, size) in guard.sizes.iter_mut().enumerate() {
                    let now = tensor.shape()[axis];
                    let Some(wish) = wish(number, axis, now).filter(|_| repeats.is_some()) else { continue };
                    let place = match keys.iter().position(|&key| key == wish.key) {
                        Some(place) => place,
                        None => {
                            keys.push(wish.key);
                            let symbol = wish.name.or_else(|| Symbol::new(&format!("s{}", plan.dims.len())))?;
                            let range = (wish.least as i64, wish.most.and_then(|most| i64::try_from(most).ok()));
                            let now = i64::try_from(now).ok()?;
                            plan.free.push((SizeSymbol { symbol, now, range }, plan.dims.len(), 1));
                            plan.dims.push(symbol.into());
                            plan.names.push(symbol);
                            plan.dims.len() - 1
                        }
                    };
                    let symbol = plan.names[place];
                    *size = Size::Symbol { number: place, symbol, least: wish.least, most: wish.most };
                    guard.strides = Strides::Dense(repeats.clone().unwrap_or_default());
                }
                number += 1;
            }
            plan.guards.push(guard);
        }
        (!plan.free.is_empty()).then_some(plan)
    }

    /// The scope to record in.
    pub(super) fn scope(&self) -> Scope {
        Scope::new(self.free.iter().map(|(symbol, ..)| *symbol).collect())
    }

    /// What the symbol of a number is by now.
    pub(super) fn dim(&self, number: usize) -> Option<&Dim> {
        self.dims.get(number)
    }

    /// How many sizes guards look at.
    pub(super) fn count(&self) -> usize {
        self.dims.len()
    }

    /// The types of the arguments' tensors.
    pub(super) fn types(&self) -> Vec<TensorType> {
        let dim = |size: &Size| match *size {
            Size::Is(n) => Dim::from(n),
            Size::Symbol { number, .. } => self.dims[number].clone(),
        };
        let ty = |guard: &Guard| match guard {
            Guard::Tensor(guard) => Some(TensorType::new(guard.dtype, guard.sizes.iter().map(dim).collect::<Vec<_>>())),
            _ => None,
        };
        self.guards.iter().filter_map(ty).collect()
    }

    /// Returns the layouts of the arguments' tensors: those with symbols are dense.
    pub(super) fn layouts(&self, leaves: &[Leaf<'_>]) -> Vec<InputLayout> {
        let guards = self.guards.iter().filter_map(|guard| match guard {
            Guard::Tensor(guard) => Some(guard),
            _ => None,
        });
        let layout = |((guard, ty), tensor): ((&super::guard::TensorGuard, TensorType), &crate::Tensor)| {
            let Strides::Dense(repeats) = &guard.strides else { return input_layout(tensor.layout()) };
            let mut strides = vec![Dim::from(0); ty.rank()];
            let mut stride = Dim::from(1);
            for axis in (0..ty.rank()).rev().filter(|&axis| !repeats[axis] && !ty.shape[axis].is_one()) {
                strides[axis] = stride.clone();
                stride *= &ty.shape[axis];
            }
            InputLayout { strides, offset: Dim::from(0) }
        };
        guards.zip(self.types()).zip(tensors_of(leaves)).map(layout).collect()
    }

    /// Looks at what became of a recording.
    pub(super) fn judge(&mut self, scope: &Scope, graph: Option<&Graph>, at: &Source) -> Verdict {
        match (scope.outcome(), graph) {
            (Some(Outcome::Equation(equation)), _) => self.build_in(equation),
            (Some(Outcome::NumberRead(line)), _) => {
                let line = if line.is_unknown() { at } else { line };
                let what = "sizes are read as numbers, so other sizes are checked by recording again".to_owned();
                let fix = "`size` gives sizes that can be computed with".to_owned();
                event::emit(Category::Guards, || Event::Specialised { what, fix, at: line.clone() });
                Verdict::No
            }
            (Some(Outcome::Refused { op, at }), _) => {
                let what = format!("{op} cannot be recorded for sizes that are not known");
                event::emit(Category::Guards, || Event::Specialised { what, fix: String::new(), at: at.clone() });
                Verdict::No
            }
            (None, Some(graph)) => Verdict::Good(scope.ranges().clone(), scope.guards(graph)),
            (None, None) => Verdict::No,
        }
    }

    /// Makes an equation hold always, by giving up symbols.
    fn build_in(&mut self, equation: &Predicate) -> Verdict {
        let now = |symbol: Symbol| self.free.iter().find(|(known, ..)| known.symbol == symbol).map(|(s, ..)| s.now);
        let solution = equation.solution(&now);
        if solution.is_empty() {
            return Verdict::No;
        }
        for (symbol, dim) in solution {
            let Some(place) = self.free.iter().position(|(known, ..)| known.symbol == symbol) else {
                return Verdict::No;
            };
            let (old, number, divisor) = self.free.remove(place);
            let what = format!("{symbol} is {dim}, because {equation}");
            event::emit(Category::Guards, || Event::Specialised { what, fix: String::new(), at: equation.at.clone() });
            if let Some(kept) = dim.as_symbol() {
                let Some((kept, ..)) = self.free.iter_mut().find(|(known, ..)| known.symbol == kept) else {
                    return Verdict::No;
                };
                let most = [kept.range.1, old.range.1].into_iter().flatten().min();
                kept.range = (kept.range.0.max(old.range.0), most);
            } else if dim.as_const().is_none() {
                let Some((part, factor)) = multiple(&dim) else { return Verdict::No };
                self.checks.extend(Check::new(equation, &|_| Some((number, divisor))));
                let range = ((old.range.0 + factor - 1).div_euclid(factor), old.range.1.map(|most| most / factor));
                let part = SizeSymbol { symbol: part, now: old.now / factor, range };
                self.free.push((part, number, divisor * factor));
            }
            let replaced = |s: Symbol| (s == symbol).then(|| dim.clone());
            for known in &mut self.dims {
                *known = known.substitute(&replaced);
            }
        }
        if self.free.is_empty() { Verdict::No } else { Verdict::Again }
    }

    /// The guards of the arguments, and the checks of what the function decided.
    pub(super) fn finish(self, predicates: &[Predicate]) -> Option<(Vec<Guard>, Vec<Check>)> {
        let Plan { dims, free, names, mut guards, mut checks } = self;
        for guard in &mut guards {
            let Guard::Tensor(guard) = guard else { continue };
            for size in &mut guard.sizes {
                let Size::Symbol { number, least, most, .. } = *size else { continue };
                *size = match dims[number].as_usize() {
                    Some(n) => Size::Is(n),
                    None => {
                        let first = dims.iter().position(|dim| *dim == dims[number])?;
                        Size::Symbol { number: first, symbol: names[first], least, most }
                    }
                };
            }
        }
        let home = |symbol: Symbol| {
            let (_, number, divisor) = free.iter().find(|(known, ..)| known.symbol == symbol)?;
            let first = dims.iter().position(|dim| *dim == dims[*number])?;
            Some((first, *divisor))
        };
        for predicate in predicates {
            checks.push(Check::new(predicate, &home)?);
        }
        Some((guards, checks))
    }
}

/// The symbol and the factor of a multiple of a symbol.
fn multiple(dim: &Dim) -> Option<(Symbol, i64)> {
    let mut found = Vec::new();
    dim.visit_terms(&mut |factor, factors| {
        found.push(match factors {
            [Factor::Symbol(symbol)] => Some((*symbol, factor)),
            _ => None,
        });
    });
    match found[..] {
        [found] => found,
        _ => None,
    }
}

/// Adds inputs for symbols that no input of a segment has: sizes of arguments whose elements are not used.
pub(super) fn bind(recorded: &mut SegmentGraph, types: &[TensorType]) -> Option<()> {
    let mut used: Vec<Symbol> = Vec::new();
    for node in recorded.graph.nodes() {
        for size in &node.ty.shape {
            size.visit_symbols(&mut |symbol| used.push(symbol));
        }
    }
    used.sort_unstable();
    used.dedup();
    let has = |ty: &TensorType, symbol: Symbol| {
        ty.shape.iter().any(|size| multiple(size).is_some_and(|(known, _)| known == symbol))
    };
    for symbol in used {
        if recorded.graph.inputs().iter().any(|&input| has(recorded.graph.ty(input), symbol)) {
            continue;
        }
        let number = types.iter().position(|ty| has(ty, symbol))?;
        Arc::make_mut(&mut recorded.graph).input(types[number].clone(), Source::default()).ok()?;
        recorded.from.push(InputSource::Argument(number));
    }
    Some(())
}
