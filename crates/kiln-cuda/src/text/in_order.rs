//! Stores at places that data decide. Two points may have the same place, of which the last in the order of the grid stays.
//!
//! ```text
//!  keys[rows[i], j] = …      axes that decide the place: i         axes that do not: j, always in parallel
//!  few points along i        every point runs by itself, reads the places of all others, and stores where no later one has its place
//!  many                      the points along i are one thread's, one after another
//! ```

use super::loops::Writer;
use super::value::{Statements, Temps};
use super::{Body, THREADS, ceil_div, decode, points, points_of_threads};
use kiln_ir::{Dim, Symbol};
use kiln_kernels::kernel::{Axis, Inst, InstKind, Place, ValueId};
use std::collections::HashSet;
use std::fmt::Write;

/// Points whose places a point compares its own with at the most.
const MOST_COMPARED: i64 = 128;

/// The axes of the grid, by number: those whose points may store to one place, and the others.
struct Split {
    serial: Vec<usize>,
    parallel: Vec<usize>,
}

/// The index that decides the place of a store, and its guard.
type Target = (ValueId, Option<ValueId>);

impl Writer<'_> {
    /// Stores at places that data decide: points that may meet are one thread's, in order, or find out which of them is the last.
    pub(super) fn pointwise_in_order(&self) -> Body {
        let split = self.split_axes();
        let few = |split: &Split| {
            points(&self.axes(&split.serial)).as_const().filter(|steps| (0..=MOST_COMPARED).contains(steps))
        };
        match (&split, split.as_ref().and_then(few)) {
            (Some(split), Some(steps)) if self.may_run_at_once(split) => self.last_stays(split, steps),
            _ => {
                let all = || Split { serial: (0..self.body.grid.len()).collect(), parallel: Vec::new() };
                self.one_after_another(&split.unwrap_or_else(all))
            }
        }
    }

    fn axes(&self, list: &[usize]) -> Vec<Axis> {
        list.iter().map(|&at| self.body.grid[at].clone()).collect()
    }

    /// Statements that give axes of the grid their positions, from a number along them.
    fn positions(&self, list: &[usize], prefix: &str, number: &str) -> String {
        let mut out = decode(&self.names, &self.axes(list), prefix, number, self.width);
        for (number, at) in list.iter().enumerate() {
            let _ = writeln!(out, "const idx g{at}={prefix}{number};");
        }
        out
    }

    /// A thread takes all points that may meet.
    fn one_after_another(&self, split: &Split) -> Body {
        let mut out = String::new();
        let parallel = points(&self.axes(&split.parallel));
        let count = self.names.text(&parallel, self.width);
        let _ = writeln!(out, "{}", points_of_threads("p", &parallel, &count));
        out.push_str(&self.positions(&split.parallel, "p", "p"));
        let steps = self.names.text(&points(&self.axes(&split.serial)), self.width);
        let _ = writeln!(out, "for(idx o=0;o<{steps};++o){{");
        out.push_str(&self.positions(&split.serial, "o", "o"));
        out.push_str(&self.point_statements(None));
        out.push_str("}}\n");
        self.finished(Vec::new(), out, ceil_div(&parallel, THREADS.into()))
    }

    /// A thread takes a point. It stores unless a later one of those that may meet it has the same index, and stores too.
    fn last_stays(&self, split: &Split, steps: i64) -> Body {
        let grid = points(&self.body.grid);
        let count = self.names.text(&grid, self.width);
        let mut out = String::new();
        let _ = writeln!(out, "{}", points_of_threads("p", &grid, &count));
        out.push_str(&decode(&self.names, &self.body.grid, "g", "p", self.width));
        let is_store = |inst: &&Inst| matches!(inst.kind, InstKind::Store { .. });
        // Indices are reported at the end: a branch would keep the loads behind it waiting for those before.
        let silent = || Statements { reports: false, ..self.statements(None, Temps::Registers) };
        let mut statements = silent();
        self.insts().filter(|inst| !is_store(inst)).for_each(|inst| statements.inst(inst));
        out.push_str(&statements.out);
        let own = split.serial.iter().fold("0".to_owned(), |number, at| {
            format!("({number}*{}+g{at})", self.names.text(&self.body.grid[*at].size, self.width))
        });
        let targets = self.targets();
        let _ = writeln!(out, "const idx o={own};");
        for (number, (index, _)) in targets.iter().enumerate() {
            let _ = writeln!(out, "const long long own{number}={};\nbool last{number}=true;", statements.value(*index));
        }
        // None of these loads depends on another.
        let _ = writeln!(out, "#pragma unroll 8\nfor(idx n=0;n<{steps};++n){{");
        out.push_str(&self.positions(&split.serial, "n", "n"));
        let mut others = silent();
        let needed = self.needed(targets.iter().flat_map(|(index, guard)| [Some(*index), *guard]).flatten());
        self.insts().filter(|inst| needed.contains(&inst.id) && !is_store(inst)).for_each(|inst| others.inst(inst));
        out.push_str(&others.out);
        for (number, (index, guard)) in targets.iter().enumerate() {
            let guard = guard.map_or(String::new(), |guard| format!("{}&&", others.value(guard)));
            let _ = writeln!(out, "if(n>o&&{guard}{}==own{number})last{number}=false;", others.value(*index));
        }
        out.push_str("}\n");
        for inst in self.insts().filter(is_store) {
            let last = target(inst).and_then(|own| targets.iter().position(|target| *target == own));
            let last = last.map(|number| format!("last{number}"));
            let mut store = self.statements(last.as_deref(), Temps::Registers);
            store.inst(inst);
            out.push_str(&store.out);
        }
        let reported = self.statements(None, Temps::Registers);
        for inst in self.insts().filter(|inst| matches!(inst.kind, InstKind::CheckIndex { .. })) {
            let _ = writeln!(out, "{};", reported.expression(inst));
        }
        out.push_str("}\n");
        self.finished(Vec::new(), out, ceil_div(&grid, THREADS.into()))
    }

    /// What decides where stores go, each once.
    fn targets(&self) -> Vec<Target> {
        let mut targets: Vec<Target> = Vec::new();
        for target in self.insts().filter_map(target) {
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        targets
    }

    /// The values that some values are computed of, and these.
    fn needed(&self, values: impl Iterator<Item = ValueId>) -> HashSet<ValueId> {
        let mut needed: HashSet<ValueId> = values.collect();
        let insts: Vec<&Inst> = self.insts().collect();
        for inst in insts.iter().rev().filter(|inst| !matches!(inst.kind, InstKind::Store { .. })) {
            if needed.contains(&inst.id) {
                needed.extend(operands(inst));
            }
        }
        needed
    }

    /// Stores of one point at places that data decide, by buffer.
    fn indirect_stores(&self) -> impl Iterator<Item = &Place> + Clone {
        self.insts().filter_map(|inst| match &inst.kind {
            InstKind::Store { place, .. } if !place.indirect.is_empty() => Some(place),
            _ => None,
        })
    }

    /// Whether points do not read what others store, and whether two stores of a buffer only meet where they are the same one.
    fn may_run_at_once(&self, split: &Split) -> bool {
        let no_load = |place: &Place| {
            !self
                .insts()
                .any(|inst| matches!(&inst.kind, InstKind::Load { place: other, .. } if other.buffer == place.buffer))
        };
        let apart = |one: &Place, other: &Place| {
            let difference = &one.offset - self.first(split, &other.offset);
            let bound = other.indirect.first().and_then(|(_, stride)| stride.as_const()).map(i64::abs);
            let spread = self.names.magnitude(&difference);
            one.indirect == other.indirect
                && one.offset != other.offset
                && spread.zip(bound).is_some_and(|(spread, bound)| spread < bound)
        };
        self.indirect_stores().enumerate().all(|(number, place)| {
            let mut before = self.indirect_stores().take(number).filter(|other| other.buffer == place.buffer);
            no_load(place) && before.all(|other| apart(place, other) && apart(other, place))
        })
    }

    /// An offset where the parallel axes are at their first positions.
    fn first(&self, split: &Split, offset: &Dim) -> Dim {
        let is_parallel = |symbol: Symbol| split.parallel.iter().any(|&at| self.body.grid[at].var == symbol);
        offset.substitute(&|symbol| is_parallel(symbol).then(|| Dim::from(0)))
    }

    /// The axes whose points may store to one place, and the others; `None` where any two points may. Two points that differ along the
    /// others never do if the place is `Σ axis·coefficient + index·stride` where the sum stays below the stride and the index does
    /// not depend on those axes.
    fn split_axes(&self) -> Option<Split> {
        let mut deciding: HashSet<Symbol> = HashSet::new();
        let depends = dependencies(self.insts());
        for place in self.indirect_stores() {
            let [(value, _)] = place.indirect.as_slice() else { return None };
            deciding.extend(depends[value.0 as usize].iter().copied());
        }
        let is_serial = |at: &usize| deciding.contains(&self.body.grid[*at].var);
        let (serial, parallel) = (0..self.body.grid.len()).partition(is_serial);
        let split = Split { serial, parallel };
        let apart = |place: &Place| {
            let offset = &place.offset;
            let bound = place.indirect.first().and_then(|(_, stride)| stride.as_const()).map(i64::abs);
            let depends_on_serial = split.serial.iter().any(|&at| offset.contains(self.body.grid[at].var));
            let spread = self.names.magnitude(&(offset - self.first(&split, offset)));
            !depends_on_serial && spread.zip(bound).is_some_and(|(spread, bound)| spread < bound)
        };
        // What is stored elsewhere never meets, unless it is in the same buffer.
        let alone = |inst: &Inst| match &inst.kind {
            InstKind::Store { place, .. } if place.indirect.is_empty() => {
                self.indirect_stores().all(|other| other.buffer != place.buffer)
            }
            _ => true,
        };
        (self.indirect_stores().all(apart) && self.insts().all(alone)).then_some(split)
    }
}

/// What decides where a store goes, if data do.
fn target(inst: &Inst) -> Option<Target> {
    match &inst.kind {
        InstKind::Store { place, guard, .. } => place.indirect.first().map(|(index, _)| (*index, *guard)),
        _ => None,
    }
}

/// The values that an instruction is computed of.
fn operands(inst: &Inst) -> Vec<ValueId> {
    match &inst.kind {
        InstKind::Load { place, guard } => place.indirect.iter().map(|(value, _)| *value).chain(*guard).collect(),
        InstKind::Unary(_, x) | InstKind::Cast(x) | InstKind::Bitcast(x) | InstKind::Round(x, _) => vec![*x],
        InstKind::Binary(_, x, y) | InstKind::Compare(_, x, y) => vec![*x, *y],
        InstKind::Select(c, x, y) => vec![*c, *x, *y],
        InstKind::CheckIndex { value, .. } => vec![*value],
        InstKind::Random { seed, .. } => vec![*seed],
        _ => Vec::new(),
    }
}

/// The axes that each value depends on, by number.
fn dependencies<'a>(insts: impl Iterator<Item = &'a Inst>) -> Vec<HashSet<Symbol>> {
    let mut all: Vec<HashSet<Symbol>> = Vec::new();
    for inst in insts {
        let mut own = HashSet::new();
        let mut add_dim = |dim: &Dim| {
            dim.visit_symbols(&mut |symbol| {
                own.insert(symbol);
            })
        };
        match &inst.kind {
            InstKind::Index(dim) => add_dim(dim),
            InstKind::InRange { expr, low, high } => [expr, low, high].into_iter().for_each(add_dim),
            InstKind::Load { place, .. } => {
                add_dim(&place.offset);
                place.indirect.iter().for_each(|(_, stride)| add_dim(stride));
            }
            InstKind::CheckIndex { size, .. } => add_dim(size),
            InstKind::Random { position, .. } => add_dim(position),
            _ => {}
        }
        for value in operands(inst) {
            if let Some(symbols) = all.get(value.0 as usize) {
                own.extend(symbols.iter().copied());
            }
        }
        let at = inst.id.0 as usize;
        if all.len() <= at {
            all.resize_with(at + 1, HashSet::new);
        }
        all[at] = own;
    }
    all
}
