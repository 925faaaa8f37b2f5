//! The result of one product that a pointwise loop, or the epilogue of another product of the same rows, reads at a few places
//! for each of its points: both become one product with a right operand a place.
//!
//! ```text
//!  y[n] = Σ x·w[n]          z[h, j] = y[h·d + j]·cos − y[h·d + j + d/2]·sin, …
//!  becomes, over (h, j):    acc₀ = Σ x·w[h·d + j],  acc₁ = Σ x·w[h·d + j + d/2],  then the loop on acc₀ and acc₁
//! ```

use super::{Arguments, Insts, can_move, count, has_own_sizes, is_temporary, moved, product, retire, users};
use crate::kernel::{Axis, Domain, Inst, InstKind, KernelBody, MatmulBody, Place, Prologue, Stage, ValueId};
use crate::schedule::{BufferId, Schedule, Step};
use kiln_ir::{BinaryOp, CompareOp, DType, Dim, Scalar, Symbol};

/// Right operands of a product at the most.
const MOST: usize = 4;
/// Rows of an index that are compared with each other at the most.
const MOST_ROWS: i64 = 16;

/// Joins products with the loops and products that read their results.
pub(super) fn join(schedule: &mut Schedule, few_rows: i64) {
    for at in 0..schedule.steps.len() {
        let Some(result) = result_of(schedule, at, few_rows) else { continue };
        let readers: Vec<usize> = users(schedule, result).into_iter().filter(|&user| user != at).collect();
        let [reader] = readers.as_slice() else { continue };
        if let Some(step) = joined(schedule, at, *reader, result, few_rows) {
            schedule.steps[*reader] = step;
            retire(&mut schedule.steps[at]);
        }
    }
}

/// The one buffer that a product writes, if it is temporary.
fn result_of(schedule: &Schedule, at: usize, few_rows: i64) -> Option<BufferId> {
    let step = &schedule.steps[at];
    let (place, _) = only_store(&product(step, few_rows)?.epilogue)?;
    let buffer = step.args[place.buffer];
    is_temporary(schedule, buffer).then_some(buffer)
}

/// The only store, without a guard, at a place that depends on no data.
fn only_store(insts: &[Inst]) -> Option<(&Place, &Inst)> {
    let mut stores = insts.iter().filter(|inst| matches!(inst.kind, InstKind::Store { .. }));
    let (inst, None) = (stores.next()?, stores.next()) else { return None };
    match &inst.kind {
        InstKind::Store { place, guard: None, .. } if place.indirect.is_empty() => Some((place, inst)),
        _ => None,
    }
}

/// What reads a product's result, point by point.
struct Reader<'a> {
    /// The axes of its points.
    axes: Vec<&'a Axis>,
    insts: &'a [Inst],
    /// The product that these instructions end, if they end one.
    product: Option<&'a MatmulBody>,
}

impl<'a> Reader<'a> {
    fn of(step: &'a Step, few_rows: i64) -> Option<Reader<'a>> {
        match &step.kernel.body {
            KernelBody::Loop(body) => {
                let [Stage { domain: Domain::Point, insts, .. }] = body.stages.as_slice() else { return None };
                let simple = body.row.is_empty() && has_own_sizes(step);
                simple.then(|| Reader { axes: body.grid.iter().collect(), insts, product: None })
            }
            KernelBody::Matmul(_) => {
                let body = product(step, few_rows)?;
                let axes = body.m.iter().chain(&body.n).collect();
                Some(Reader { axes, insts: &body.epilogue, product: Some(body) })
            }
            _ => None,
        }
    }

    /// The rows of an index that say where points store, each with the place of its index, if they are few and the points of a
    /// row store apart. Rows that have the same place are taken in the order of their indices.
    fn rows_of(&self, place: &'a Place) -> Option<Rows<'a>> {
        let define = |value: ValueId| self.insts.iter().find(|inst| inst.id == value).map(|inst| &inst.kind);
        let [(checked, stride)] = place.indirect.as_slice() else { return None };
        let Some(InstKind::CheckIndex { value, .. }) = define(*checked) else { return None };
        let Some(InstKind::Load { place: index, guard: None }) = define(*value) else { return None };
        let (own, columns): (Vec<&Axis>, Vec<&Axis>) =
            self.axes.iter().copied().partition(|axis| index.offset.contains(axis.var));
        let count = own.iter().try_fold(1i64, |n, axis| n.checked_mul(axis.size.as_const()?))?;
        Sum::of(&index.offset, &own)?;
        // Elements of a row, none of which reaches the next.
        let mut reach = 0;
        let Sum { mut terms, constant } = Sum::of(&place.offset, &columns)?;
        terms.retain(|term| term.size != 1);
        terms.sort_by_key(|term| term.step);
        let apart = terms.iter().all(|term| {
            let apart = term.step > reach;
            reach += term.step * (term.size - 1);
            apart
        });
        let all = terms.len() == columns.iter().filter(|axis| !axis.size.is_one()).count();
        let within = stride.as_const().is_some_and(|stride| constant % stride + reach < stride);
        let fits = count <= MOST_ROWS && apart && all && within && index.indirect.is_empty();
        fits.then_some(Rows { value: *value, index, axes: own })
    }

    /// Whether points may store there in any order.
    fn may_reorder(&self, place: &'a Place) -> bool {
        place.indirect.is_empty() || self.stores_apart(place) || self.rows_of(place).is_some()
    }

    /// Whether every point stores at a place of its own, whatever data say: the place is the sum of axes and of indices that are
    /// known to be in range, each of which goes further than all smaller ones together.
    fn stores_apart(&self, place: &Place) -> bool {
        let Some(Sum { mut terms, .. }) = Sum::of(&place.offset, &self.axes) else { return false };
        terms.retain(|term| term.size != 1);
        if terms.len() < self.axes.iter().filter(|axis| !axis.size.is_one()).count() {
            return false;
        }
        for (value, stride) in &place.indirect {
            let index = self.insts.iter().find(|inst| inst.id == *value);
            let size = index.and_then(|inst| match &inst.kind {
                InstKind::CheckIndex { size, .. } => size.as_const(),
                _ => None,
            });
            let (Some(size), Some(step)) = (size, stride.as_const()) else { return false };
            // Its name does not matter.
            let axis = Symbol::axis(self.axes.len());
            terms.push(Term { axis, step, size });
        }
        terms.sort_by_key(|term| term.step);
        let mut reach = 0;
        terms.iter().all(|term| {
            let apart = term.step > reach;
            reach += term.step * (term.size - 1);
            apart
        })
    }

    /// The places at which it reads a buffer, each once.
    fn places(&self, buffer: usize) -> Option<Vec<&'a Place>> {
        let mut places: Vec<&Place> = Vec::new();
        for inst in self.insts {
            match &inst.kind {
                InstKind::Load { place, .. } if places.contains(&place) => {}
                InstKind::Load { place, guard: None } if place.buffer == buffer && place.indirect.is_empty() => {
                    places.push(place);
                }
                // One point may store where another one does: a loop of these runs in order, the end of a product does not.
                InstKind::Store { place, .. } if self.product.is_none() && !self.may_reorder(place) => return None,
                kind if kind.place().is_some_and(|place| place.buffer == buffer) => return None,
                _ => {}
            }
        }
        Some(places)
    }
}

/// Rows of an index: its value at a point, where it is loaded, and the axes that count rows.
struct Rows<'a> {
    value: ValueId,
    index: &'a Place,
    axes: Vec<&'a Axis>,
}

impl Rows<'_> {
    /// Every row, as the values of the axes.
    fn all(&self) -> Vec<Point> {
        self.axes.iter().fold(vec![Point::new()], |rows, axis| {
            let size = axis.size.as_const().unwrap_or(0);
            let with = |row: &Point, value: i64| row.iter().cloned().chain([(axis.var, Dim::from(value))]).collect();
            rows.iter().flat_map(|row| (0..size).map(move |value| with(row, value))).collect()
        })
    }

    /// Adds whether no later row has the same index.
    fn is_last(&self, insts: &mut Insts, buffers: &[usize], axes: &dyn Fn(Symbol) -> Option<Dim>) -> ValueId {
        let own = insts.value(self.value);
        let position = insts.push(DType::I64, InstKind::Index(self.index.offset.substitute(axes)));
        let mut last = insts.push(DType::Bool, InstKind::Const(Scalar::int(DType::Bool, 1)));
        for row in self.all() {
            let offset = self.index.offset.substitute(&|symbol| at(&row, symbol)).substitute(axes);
            let there = insts.push(DType::I64, InstKind::Index(offset.clone()));
            let place = Place { buffer: buffers[self.index.buffer], offset, indirect: Vec::new() };
            let other = insts.push(DType::I64, InstKind::Load { place, guard: None });
            let differs = insts.push(DType::Bool, InstKind::Compare(CompareOp::Ne, other, own));
            let earlier = insts.push(DType::Bool, InstKind::Compare(CompareOp::Le, there, position));
            let harmless = insts.push(DType::Bool, InstKind::Binary(BinaryOp::Or, differs, earlier));
            last = insts.push(DType::Bool, InstKind::Binary(BinaryOp::And, last, harmless));
        }
        last
    }
}

/// The value of each axis of a product at which its result is read.
type Point = Vec<(Symbol, Dim)>;

fn at(point: &Point, symbol: Symbol) -> Option<Dim> {
    point.iter().find(|(own, _)| *own == symbol).map(|(_, value)| value.clone())
}

/// Solves `store = load` for the axes of a product, over the axes of the reader. Both are sums of axes times constants.
fn solve(body: &MatmulBody, store: &Dim, axes: &[&Axis], load: &Dim) -> Option<Point> {
    let mut own = Sum::of(store, &body.m.iter().chain(&body.n).collect::<Vec<_>>())?;
    let Sum { terms: mut rest, constant } = Sum::of(load, axes)?;
    let mut constant = Some(constant - own.constant).filter(|constant| *constant >= 0)?;
    own.terms.sort_by_key(|term| std::cmp::Reverse(term.step));
    let mut point = Point::new();
    for Term { axis: symbol, step, size } in own.terms {
        // What moves by whole steps of the axis; the rest stays below one step.
        let (whole, within): (Vec<Term>, Vec<Term>) = rest.into_iter().partition(|term| term.step % step == 0);
        let mut value = Dim::from(constant.div_euclid(step));
        let mut most = constant.div_euclid(step);
        for term in &whole {
            value += Dim::from(term.axis) * (term.step / step);
            most += term.step / step * (term.size - 1);
        }
        constant = constant.rem_euclid(step);
        let beside: i64 = within.iter().map(|term| term.step * (term.size - 1)).sum();
        if most >= size || constant + beside >= step {
            return None;
        }
        rest = within;
        point.push((symbol, value));
    }
    (rest.is_empty() && constant == 0).then_some(point)
}

/// An expression as axes times positive constants, and a constant that is not negative.
struct Sum {
    terms: Vec<Term>,
    constant: i64,
}

/// An axis of a known size, and how far one step of it goes.
struct Term {
    axis: Symbol,
    step: i64,
    size: i64,
}

impl Sum {
    fn of(dim: &Dim, axes: &[&Axis]) -> Option<Sum> {
        let mut rest = dim.clone();
        let mut terms = Vec::new();
        for axis in axes {
            let (step, other) = rest.linear_in(axis.var)?;
            let (step, size) = (step.as_const()?, axis.size.as_const()?);
            rest = other;
            if step < 0 {
                return None;
            }
            if step > 0 {
                terms.push(Term { axis: axis.var, step, size });
            }
        }
        let constant = rest.as_const().filter(|constant| *constant >= 0)?;
        Some(Sum { terms, constant })
    }
}

/// The product at `from` and what reads its result at `to` as one product.
fn joined(schedule: &Schedule, from: usize, to: usize, result: BufferId, few_rows: i64) -> Option<Step> {
    let steps = &schedule.steps;
    let body = product(&steps[from], few_rows)?;
    if to < from || !can_move(steps, from, to, from) {
        return None;
    }
    let reader = Reader::of(&steps[to], few_rows)?;
    let (store, stored) = only_store(&body.epilogue)?;
    let InstKind::Store { value, .. } = stored.kind else { return None };
    let own = steps[to].args.iter().position(|arg| *arg == result)?;
    let places = reader.places(own)?;
    let points: Vec<Point> =
        places.iter().map(|place| solve(body, &store.offset, &reader.axes, &place.offset)).collect::<Option<_>>()?;
    let first = points.first()?;
    let others = reader.product.map_or(0, |product| product.rhs.len());
    if others + points.len() * body.rhs.len() > MOST {
        return None;
    }
    // Rows stay rows; every other axis of the reader is one of columns.
    let rows: Vec<Symbol> = body
        .m
        .iter()
        .map(|axis| at(first, axis.var)?.as_symbol().filter(|row| size_of(&reader.axes, *row) == Some(&axis.size)))
        .collect::<Option<_>>()?;
    let same_rows = |point: &Point| body.m.iter().all(|axis| at(point, axis.var) == at(first, axis.var));
    let columns: Vec<&Axis> = reader.axes.iter().copied().filter(|axis| !rows.contains(&axis.var)).collect();
    let is_used = |axis: &&Axis| points.iter().any(|point| point.iter().any(|(_, value)| value.contains(axis.var)));
    let computed = columns.iter().try_fold(points.len() as i64, |n, axis| n.checked_mul(axis.size.as_const()?))?;
    if !points.iter().all(same_rows) || !columns.iter().all(is_used) || computed > count(&body.n)? {
        return None;
    }
    if let Some(product) = reader.product
        && (product.m.iter().map(|axis| axis.var).collect::<Vec<_>>() != rows || !has_same_left(steps, from, to, first))
    {
        return None;
    }
    // The names of the new axes: rows, columns, then what is summed.
    let names: Vec<(Symbol, Dim)> = rows
        .iter()
        .copied()
        .chain(columns.iter().map(|axis| axis.var))
        .enumerate()
        .map(|(n, v)| (v, Dim::axis(n)))
        .collect();
    let outer = names.len();
    let named = |symbol: Symbol| at(&names, symbol);
    let summed =
        |k: &[Axis], symbol: Symbol| k.iter().position(|axis| axis.var == symbol).map(|n| Dim::axis(outer + n));
    let mut arguments = Arguments::default();
    let (left, right) = (arguments.add(&steps[from]), arguments.add(&steps[to]));
    let mut rhs: Vec<Prologue> = Vec::new();
    if let Some(product) = reader.product {
        let axes = |symbol: Symbol| named(symbol).or_else(|| summed(&product.k, symbol));
        rhs.extend(product.rhs.iter().map(|rhs| prologue(rhs, &right, &axes)));
    }
    let mut insts = Insts::default();
    let mut values = Vec::new();
    for point in &points {
        let axes = |symbol: Symbol| {
            let value = at(point, symbol).map(|value| value.substitute(&named));
            value.or_else(|| summed(&body.k, symbol))
        };
        let first = rhs.len();
        rhs.extend(body.rhs.iter().map(|rhs| prologue(rhs, &left, &axes)));
        insts.begin();
        for inst in body.epilogue.iter().filter(|inst| inst.id != stored.id) {
            let mut inst = inst.clone();
            if let InstKind::Accumulator(number) = &mut inst.kind {
                *number += first;
            }
            insts.add(&inst, &left, &axes);
        }
        let value = insts.value(value);
        values.push(insts.stored(value, steps[from].kernel.buffers[store.buffer].dtype));
    }
    insts.begin();
    let (stores, others): (Vec<&Inst>, Vec<&Inst>) =
        reader.insts.iter().partition(|inst| matches!(inst.kind, InstKind::Store { .. }));
    for inst in others {
        let place = inst.kind.place().filter(|place| place.buffer == own);
        match place.and_then(|place| places.iter().position(|own| *own == place)) {
            Some(number) => insts.bind(inst.id, values[number]),
            None => {
                insts.add(inst, &right, &named);
            }
        }
    }
    // Points run in any order now: of the rows that have the same place the last one is stored.
    let mut lasts: Vec<(&Place, ValueId)> = Vec::new();
    let mut guards = Vec::new();
    for inst in &stores {
        let InstKind::Store { place, guard, .. } = &inst.kind else { continue };
        let ordered = reader.product.is_none() && !place.indirect.is_empty() && !reader.stores_apart(place);
        let rows = ordered.then(|| reader.rows_of(place)).flatten();
        let mut guard = guard.map(|guard| insts.value(guard));
        if let Some(rows) = rows {
            let known = lasts.iter().find(|(index, _)| *index == rows.index).map(|(_, last)| *last);
            let last = known.unwrap_or_else(|| rows.is_last(&mut insts, &right, &named));
            lasts.push((rows.index, last));
            let and = |guard| insts.push(DType::Bool, InstKind::Binary(BinaryOp::And, guard, last));
            guard = Some(guard.map_or(last, and));
        }
        guards.push(guard);
    }
    for (inst, guard) in stores.into_iter().zip(guards) {
        insts.add(inst, &right, &named);
        if let Some(InstKind::Store { guard: own, .. }) = insts.list.last_mut().map(|inst| &mut inst.kind) {
            *own = guard;
        }
    }
    let axes = |symbol: Symbol| {
        let row = at(first, symbol).map(|value| value.substitute(&named));
        row.or_else(|| summed(&body.k, symbol))
    };
    let axis = |number: usize, size: &Dim| Axis { var: Symbol::axis(number), size: size.clone() };
    let made = MatmulBody {
        batch: Vec::new(),
        m: body.m.iter().enumerate().map(|(n, own)| axis(n, &own.size)).collect(),
        n: columns.iter().enumerate().map(|(n, own)| axis(rows.len() + n, &own.size)).collect(),
        k: body.k.iter().enumerate().map(|(n, own)| axis(outer + n, &own.size)).collect(),
        before: None,
        lhs: prologue(&body.lhs, &left, &axes),
        rhs,
        acc: body.acc,
        precision: body.precision.max(reader.product.map_or(body.precision, |product| product.precision)),
        epilogue: insts.list,
    };
    Some(arguments.step(KernelBody::Matmul(made), &[&steps[from], &steps[to]], Some(result)))
}

fn size_of<'a>(axes: &[&'a Axis], symbol: Symbol) -> Option<&'a Dim> {
    axes.iter().find(|axis| axis.var == symbol).map(|axis| &axis.size)
}

fn prologue(prologue: &Prologue, buffers: &[usize], axes: &dyn Fn(Symbol) -> Option<Dim>) -> Prologue {
    let insts = prologue.insts.iter().map(|inst| moved(inst, buffers, axes)).collect();
    Prologue { insts, value: prologue.value }
}

/// Whether two products have the same left operand where the first one's rows are the second one's as `point` says.
fn has_same_left(steps: &[Step], from: usize, to: usize, point: &Point) -> bool {
    let (KernelBody::Matmul(one), KernelBody::Matmul(two)) = (&steps[from].kernel.body, &steps[to].kernel.body) else {
        return false;
    };
    let same_k = one.k.len() == two.k.len() && one.k.iter().zip(&two.k).all(|(one, two)| one.size == two.size);
    let axes = |symbol: Symbol| {
        let k = one.k.iter().position(|axis| axis.var == symbol);
        k.map(|k| Dim::from(two.k[k].var)).or_else(|| at(point, symbol))
    };
    let mut arguments = Arguments::default();
    let (left, right) = (arguments.add(&steps[from]), arguments.add(&steps[to]));
    let same = same_k && one.acc == two.acc && one.before.is_none() && two.before.is_none();
    same && prologue(&one.lhs, &left, &axes) == prologue(&two.lhs, &right, &|_| None)
}
