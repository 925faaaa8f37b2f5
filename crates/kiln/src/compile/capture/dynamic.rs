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
use super::guard::{Before, Guard, Size, Strides, UNKNOWN};
use super::segment::{InputSource, SegmentGraph};
use crate::tensor::bundle::Leaf;
use crate::tensor::dim::scope::SizeSymbol;
use crate::tensor::dim::{Outcome, Predicate, Relation, Scope, scope};
use kiln_ir::dim::Factor;
use kiln_ir::{Dim, Graph, Ranges, Source, Symbol, TensorType};
use kiln_kernels::InputLayout;
use kiln_runtime::event::{self, Category, Event};
use std::cell::RefCell;
use std::sync::Arc;

/// Times a function is recorded until its equations are built in.
pub(super) const ROUNDS: usize = 32;

/// The way out where a size is read as a number.
const NUMBER_FIX: &str = "`size` gives sizes that can be computed with; a `for` over one is another graph at each, where `kiln::scan` is one for all";

/// The way out where a size is found to be a number.
const SIZE_FIX: &str =
    "another size has a program of its own; where a `for` goes over it, `kiln::scan` is one for all sizes";

/// A size that is to be a symbol.
pub(super) struct SizeRequest {
    /// Sizes of one key are one symbol.
    pub(super) key: (usize, usize),
    pub(super) name: Option<Symbol>,
    pub(super) least: usize,
    pub(super) most: Option<usize>,
}

/// Where the sizes of a type are found when a segment runs.
pub(super) type SizeHome = (InputSource, TensorType);

/// Sizes of the arguments that are symbols while a function is recorded.
#[derive(Clone, Default)]
pub(super) struct Plan {
    /// What each of the symbols it began with is by now: itself, another, a multiple of a new one, or a number.
    dims: Vec<Dim>,
    /// The symbols that are left, each with the size it comes from and what that is divided by.
    free: Vec<(SizeSymbol, usize, i64)>,
    /// What users see, by number.
    names: Vec<Symbol>,
    guards: Vec<Guard>,
    checks: Vec<Check>,
    /// By which number the guards of a program read the size of each.
    numbers: Vec<usize>,
    /// Symbols that were given up, by what they have to be.
    solved: Vec<(SizeSymbol, usize, i64, Predicate)>,
    /// The steps after which the sizes of slots are known: their numbers come after those of the arguments' sizes.
    steps: Vec<usize>,
    /// Sizes of slots that depend on data.
    of_data: Vec<Symbol>,
}

/// What sizes have to pass, each after the step of this number; nothing stands for the guards of the program.
pub(super) type PlacedChecks = Vec<(Option<usize>, Check)>;

/// Sizes of slots while a function is recorded, in the order in which it meets them.
#[derive(Default)]
pub(super) struct SlotSizes {
    /// What is known from recordings before, each after its step.
    known: Vec<(usize, Dim)>,
    /// What other sizes are at this call: one that is equal is taken for the same. Nothing where none is.
    values: Option<Vec<(Dim, i64)>>,
    /// The step of the size that was met last, and how many of it were met.
    met: (usize, usize),
    /// Those that no recording met before: each with its step, and what it is taken for.
    new: Vec<(SizeSymbol, usize, Dim, Source)>,
    first: usize,
    names: Vec<Symbol>,
}

impl SlotSizes {
    /// The size of an axis of a slot, known after a step. `most` is said of those that depend on data, `of_program` where a program has
    /// taken it for something.
    pub(super) fn meet(
        &mut self,
        size: usize,
        step: usize,
        most: Option<Option<usize>>,
        of_program: Option<&Dim>,
        at: &Source,
    ) -> Option<Dim> {
        self.met = if self.met.0 == step { (step, self.met.1 + 1) } else { (step, 1) };
        if let Some((_, dim)) = self.known.iter().filter(|(known, _)| *known == step).nth(self.met.1 - 1) {
            return Some(dim.clone());
        }
        let mut name = format!("u{}", self.first + self.known.len());
        while self.names.iter().any(|known| known.as_str() == name) {
            name.push('_');
        }
        let (symbol, now) = (Symbol::new(&name)?, i64::try_from(size).ok()?);
        // What a disabled part gives has sizes of its arguments, as a rule, and 0 and 1 mean something else.
        let (range, dim) = match most {
            Some(most) => ((0, most.and_then(|most| i64::try_from(most).ok())), Dim::from(symbol)),
            None if size < 2 => ((now, Some(now)), Dim::from(now)),
            None => {
                let values = self.values.iter().flatten();
                let mut same = values.into_iter().filter(|(_, value)| *value == now).map(|(dim, _)| dim.clone());
                let taken = of_program.filter(|dim| dim.as_const() == Some(now) || dim.as_symbol() == Some(symbol));
                let taken = taken.cloned().or_else(|| same.clone().find(|dim| Some(dim) == of_program));
                ((2, None), taken.or_else(|| same.next()).unwrap_or_else(|| Dim::from(symbol)))
            }
        };
        let size = SizeSymbol { symbol, now, range };
        if dim.as_symbol() == Some(symbol) {
            scope::add(size);
            if let Some(values) = &mut self.values {
                values.push((dim.clone(), now));
            }
        }
        self.new.push((size, step, dim.clone(), at.clone()));
        self.known.push((step, dim.clone()));
        Some(dim)
    }
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
    /// Makes a symbol for each requested size; `before` says what tensors were for an earlier program. Tensors whose strides are no functions of
    /// sizes have none.
    pub(super) fn new(
        leaves: &[Leaf<'_>],
        before: &[Before],
        wish: &dyn Fn(usize, usize, usize) -> Option<SizeRequest>,
    ) -> Option<Plan> {
        let mut plan = Plan::default();
        let mut keys: Vec<(usize, usize)> = Vec::new();
        let mut number = 0;
        for leaf in leaves {
            let mut guard = Guard::exactly(leaf);
            if let (Guard::Tensor(guard), Leaf::Tensor(tensor)) = (&mut guard, leaf) {
                let strides = Strides::of_sizes(tensor, before.get(number));
                for (axis, size) in guard.sizes.iter_mut().enumerate() {
                    let now = tensor.shape()[axis];
                    let Some(wish) = wish(number, axis, now) else { continue };
                    let Some(strides) = &strides else { continue };
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
                    guard.strides.clone_from(strides);
                }
                number += 1;
            }
            plan.guards.push(guard);
        }
        Some(plan)
    }

    /// A plan in which no size is a symbol.
    pub(super) fn without_symbols(leaves: &[Leaf<'_>]) -> Plan {
        Plan { guards: leaves.iter().map(Guard::exactly).collect(), ..Plan::default() }
    }

    /// Whether any size of the arguments is a symbol.
    pub(super) fn has_symbols(&self) -> bool {
        !self.free.is_empty()
    }

    /// How many sizes of arguments there are.
    fn own(&self) -> usize {
        self.dims.len() - self.steps.len()
    }

    /// The sizes of slots, for a recording.
    pub(super) fn slot_sizes(&self) -> SlotSizes {
        let now = |symbol: Symbol| self.free.iter().find(|(known, ..)| known.symbol == symbol).map(|(s, ..)| s.now);
        let value = |dim: &Dim| Some((dim.clone(), dim.eval(&now)?));
        SlotSizes {
            known: self.steps.iter().copied().zip(self.dims[self.own()..].iter().cloned()).collect(),
            values: Some(self.dims.iter().filter_map(value).filter(|(dim, _)| dim.as_const().is_none()).collect()),
            met: (0, 0),
            new: Vec::new(),
            first: self.own(),
            names: self.names.clone(),
        }
    }

    /// The same, where sizes of slots are taken for nothing that they only happen to be equal to.
    pub(super) fn own_slot_sizes(&self) -> SlotSizes {
        SlotSizes { values: None, ..self.slot_sizes() }
    }

    /// Takes what a recording found out about the sizes of slots.
    pub(super) fn adopt(&mut self, sizes: SlotSizes) {
        for (size, step, dim, at) in sizes.new {
            let number = self.dims.len();
            if dim.as_symbol() == Some(size.symbol) {
                self.free.push((size, number, 1));
            } else {
                let statement = Predicate::decided(size.symbol.into(), Relation::Equal, dim.clone(), true, &at);
                self.solved.push((size, number, 1, statement));
            }
            self.dims.push(dim);
            self.names.push(size.symbol);
            self.numbers.push(number);
            self.steps.push(step);
            self.of_data.extend((size.range.0 == 0).then_some(size.symbol));
        }
    }

    /// The plan as it is before anything ran.
    pub(super) fn of_arguments(mut self) -> Plan {
        let own = self.own();
        self.dims.truncate(own);
        self.names.truncate(own);
        self.numbers.truncate(own);
        self.steps.clear();
        self.solved.clear();
        self.free.retain(|(_, number, _)| *number < own);
        self
    }

    /// The scope to record in.
    pub(super) fn scope(&self) -> Scope {
        Scope::new(self.free.iter().map(|(symbol, ..)| *symbol).collect())
    }

    /// What the symbol of a name is by now.
    pub(super) fn dim(&self, name: Symbol) -> Option<&Dim> {
        self.names.iter().position(|known| *known == name).map(|number| &self.dims[number])
    }

    /// Whether a size is made of sizes that depend on data, and of nothing else.
    pub(super) fn is_of_data(&self, dim: &Dim) -> bool {
        let mut is_of_data = dim.as_const().is_none();
        dim.visit_symbols(&mut |symbol| is_of_data &= self.of_data.contains(&symbol));
        is_of_data
    }

    /// How many sizes guards look at.
    pub(super) fn count(&self) -> usize {
        self.own()
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

    /// Returns the layouts of the arguments' tensors.
    pub(super) fn layouts(&self, leaves: &[Leaf<'_>]) -> Vec<InputLayout> {
        let guards = self.guards.iter().filter_map(|guard| match guard {
            Guard::Tensor(guard) => Some(guard),
            _ => None,
        });
        let tensors = guards.zip(self.types()).zip(tensors_of(leaves));
        tensors.map(|((guard, ty), tensor)| guard.strides.layout(&ty, tensor)).collect()
    }

    /// Where the sizes of the arguments are found.
    pub(super) fn homes(&self) -> Vec<SizeHome> {
        homes(self.types())
    }

    /// Looks at what became of a recording.
    pub(super) fn judge(&mut self, scope: &Scope, graphs: Option<&[&Graph]>, at: &Source) -> Verdict {
        match (scope.outcome(), graphs) {
            (Some(Outcome::Equation(equation)), _) => self.build_in(equation),
            (Some(Outcome::NumberRead(line)), _) => {
                let line = if line.is_unknown() { at } else { line };
                let what = "sizes are read as numbers, so other sizes are checked by recording again".to_owned();
                event::emit(Category::Guards, || Event::Specialised {
                    what,
                    fix: NUMBER_FIX.to_owned(),
                    at: line.clone(),
                });
                Verdict::No
            }
            (Some(Outcome::Refused { op, at }), _) => {
                let what = format!("{op} cannot be recorded for sizes that are not known");
                event::emit(Category::Guards, || Event::Specialised { what, fix: String::new(), at: at.clone() });
                Verdict::No
            }
            (None, Some(graphs)) => Verdict::Good(scope.ranges().clone(), scope.guards(graphs)),
            (None, None) => Verdict::No,
        }
    }

    /// Makes an equation hold always, by giving up symbols.
    fn build_in(&mut self, equation: &Predicate) -> Verdict {
        let now = |symbol: Symbol| self.free.iter().find(|(known, ..)| known.symbol == symbol).map(|(s, ..)| s.now);
        let solution = equation.solution(&now);
        let own = self.own();
        if solution.is_empty() {
            return Verdict::No;
        }
        for (symbol, dim) in solution {
            let (symbol, dim) = self.later_first(symbol, dim);
            let Some(place) = self.free.iter().position(|(known, ..)| known.symbol == symbol) else {
                return Verdict::No;
            };
            let (old, number, divisor) = self.free.remove(place);
            let what = format!("{symbol} is {dim}, because {equation}");
            let fix = if dim.as_const().is_some() { SIZE_FIX } else { "" }.to_owned();
            event::emit(Category::Guards, || Event::Specialised { what, fix, at: equation.at.clone() });
            if let Some(kept) = dim.as_symbol() {
                let Some((kept, ..)) = self.free.iter_mut().find(|(known, ..)| known.symbol == kept) else {
                    return Verdict::No;
                };
                // What is known before a slot is there does not follow from its size.
                if number < own {
                    let most = [kept.range.1, old.range.1].into_iter().flatten().min();
                    kept.range = (kept.range.0.max(old.range.0), most);
                }
            } else if dim.as_const().is_none() {
                let Some((part, factor)) = multiple(&dim) else { return Verdict::No };
                if number < own {
                    self.checks.extend(Check::new(equation, &|_| Some((number, divisor))));
                }
                let range = ((old.range.0 + factor - 1).div_euclid(factor), old.range.1.map(|most| most / factor));
                let part = SizeSymbol { symbol: part, now: old.now / factor, range };
                self.free.push((part, number, divisor * factor));
            }
            let statement = Predicate::decided(symbol.into(), Relation::Equal, dim.clone(), true, &equation.at);
            self.solved.push((old, number, divisor, statement));
            let replaced = |s: Symbol| (s == symbol).then(|| dim.clone());
            for known in &mut self.dims {
                *known = known.substitute(&replaced);
            }
        }
        if self.dims.iter().all(|dim| dim.as_const().is_some()) { Verdict::No } else { Verdict::Again }
    }

    /// Of two symbols that are equal, the one that is known later is given up.
    fn later_first(&self, symbol: Symbol, dim: Dim) -> (Symbol, Dim) {
        let number = |symbol: Symbol| self.free.iter().find(|(known, ..)| known.symbol == symbol).map(|(_, n, _)| *n);
        match dim.as_symbol() {
            Some(other) if number(other).max(Some(self.own())) > number(symbol).max(Some(self.own())) => {
                (other, symbol.into())
            }
            _ => (symbol, dim),
        }
    }

    /// The guards of the arguments, and the checks of what the function decided.
    pub(super) fn finish(&mut self, predicates: &[Predicate]) -> Option<(Vec<Guard>, PlacedChecks)> {
        let own = self.own();
        let dims = &self.dims[..own];
        let first = |dim: &Dim| dims.iter().position(|known| known == dim);
        self.numbers = dims.iter().map(first).collect::<Option<_>>()?;
        self.solved.retain(|(_, number, ..)| *number >= own);
        let checks = self.checks_of(predicates)?;
        let Plan { dims, names, numbers, .. } = &*self;
        let mut guards = self.guards.clone();
        for guard in &mut guards {
            let Guard::Tensor(guard) = guard else { continue };
            for size in &mut guard.sizes {
                let Size::Symbol { number, least, most, .. } = *size else { continue };
                *size = match dims[number].as_usize() {
                    Some(n) => Size::Is(n),
                    None => {
                        let first = numbers[number];
                        Size::Symbol { number: first, symbol: names[first], least, most }
                    }
                };
            }
        }
        Some((guards, checks))
    }

    /// What has to hold beyond the guards of the program, for predicates of the function and for what was built in since.
    pub(super) fn checks_of(&mut self, predicates: &[Predicate]) -> Option<PlacedChecks> {
        // A call reads the sizes of slots in the order of its steps.
        let own = self.own();
        let mut order: Vec<usize> = (0..self.steps.len()).collect();
        order.sort_by_key(|&place| self.steps[place]);
        self.numbers.truncate(own);
        let rank = |place: usize| order.iter().position(|&other| other == place);
        self.numbers.extend((0..order.len()).filter_map(rank).map(|rank| own + rank));
        let mut checks: Vec<Check> =
            std::mem::take(&mut self.checks).into_iter().map(|check| check.renumbered(&self.numbers)).collect();
        let solved = self.solved.iter().map(|(symbol, number, divisor, _)| (symbol, number, divisor));
        let known: Vec<_> =
            self.free.iter().map(|(symbol, number, divisor)| (symbol, number, divisor)).chain(solved).collect();
        let home = |symbol: Symbol| {
            let (_, number, divisor) = known.iter().find(|(known, ..)| known.symbol == symbol)?;
            Some((self.numbers[**number], **divisor))
        };
        // Guards look at the ranges of arguments' sizes; what a part gives may have any.
        let least = |(symbol, number, _): &(SizeSymbol, usize, i64)| {
            let (least, at) = (Dim::from(symbol.range.0), Source::default());
            let says = *number >= own && symbol.range.0 > 0;
            says.then(|| Predicate::decided(least, Relation::AtMost, symbol.symbol.into(), true, &at))
        };
        let ranges: Vec<Predicate> = self.free.iter().filter_map(least).collect();
        for predicate in self.solved.iter().map(|(.., statement)| statement).chain(predicates).chain(&ranges) {
            checks.push(Check::new(predicate, &home)?);
        }
        let step = |number: usize| Some(self.steps[*order.get(number.checked_sub(own)?)?]);
        let placed = |check: Check| (check.sizes().filter_map(step).max(), check);
        Some(checks.into_iter().map(placed).collect())
    }

    /// Sets what the symbols are at a call, given the sizes that were read for the program. Gives the statements that all of them are
    /// what they are.
    pub(super) fn set_now(&mut self, sizes: &[usize]) -> Vec<Check> {
        for (symbol, number, divisor) in &mut self.free {
            let size = sizes.get(self.numbers[*number]).and_then(|&size| i64::try_from(size).ok());
            symbol.now = size.map_or(symbol.now, |size| size / *divisor);
        }
        let known = sizes.iter().enumerate().filter(|(_, size)| **size != UNKNOWN);
        known.map(|(number, &size)| Check::is(number, size)).collect()
    }
}

/// Where the sizes of the arguments' tensors are found.
pub(super) fn homes(types: Vec<TensorType>) -> Vec<SizeHome> {
    types.into_iter().enumerate().map(|(number, ty)| (InputSource::Argument(number), ty)).collect()
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

/// Adds inputs for symbols that no input of a segment has: sizes of tensors whose elements are not used.
pub(super) fn bind(recorded: &mut SegmentGraph, homes: &[SizeHome]) -> Option<()> {
    let mut used: Vec<Symbol> = Vec::new();
    for node in recorded.graph.nodes() {
        let seen = RefCell::new(&mut used);
        node.op.map_dims(&|dim| {
            dim.visit_symbols(&mut |symbol| seen.borrow_mut().push(symbol));
            dim.clone()
        });
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
        let (from, ty) = homes.iter().find(|(_, ty)| has(ty, symbol))?;
        Arc::make_mut(&mut recorded.graph).input(ty.clone(), Source::default()).ok()?;
        // Leaves are numbered after the inputs.
        let inputs = recorded.from.len();
        recorded.taped.iter_mut().flatten().filter(|source| **source >= inputs).for_each(|source| *source += 1);
        recorded.from.push(from.clone());
        recorded.bound += 1;
    }
    Some(())
}
