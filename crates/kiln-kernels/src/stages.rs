//! Assigns values to stages. A reduction ends a row stage; what depends on its result comes in a later one. Values that do not
//! depend on the row are computed once per grid point, between the row stages. A row value that several row stages need is
//! recomputed if that is cheap and kept in a row temporary otherwise.
//!
//! ```text
//!  point 0 ▸ row 0 (reductions of level 0) ▸ point 1 ▸ row 1 (reductions that use results of row 0) ▸ …
//! ```

use crate::cost;
use crate::dag::{Dag, Def, map_operands, visit_dims, visit_operands};
use crate::kernel::{Domain, Inst, InstKind, Place, Reduction, ReductionKind, Stage, ValueId};
use kiln_ir::{DType, Symbol};

/// A value to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreAt {
    /// The address.
    pub place: Place,
    /// The value that is written.
    pub value: ValueId,
}

/// Stages and row temporaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Staged {
    /// The stages, in order of execution.
    pub stages: Vec<Stage>,
    /// Types of the temporaries.
    pub temps: Vec<DType>,
}

struct Stager<'a> {
    dag: &'a Dag,
    /// The stores, and whether the address of each moves along the row.
    stores: Vec<(&'a StoreAt, bool)>,
    /// For each value: whether it depends on the row.
    row: Vec<bool>,
    /// For each value: the number of row stages that must be complete.
    level: Vec<u32>,
    /// For each value: whether some store depends on it.
    used: Vec<bool>,
    /// For each value: its temporary.
    temp: Vec<Option<usize>>,
    temps: Vec<DType>,
    /// For each value: the first row stage that computes it.
    first: Vec<u32>,
    /// New numbers of values; of row values only while their stage is built.
    ids: Vec<Option<ValueId>>,
    next: u32,
}

/// Assigns values to stages. `row` are the row's variables and `row_length` a guess of its length.
pub(crate) fn stage(dag: &Dag, row: &[Symbol], row_length: i64, stores: &[StoreAt]) -> Staged {
    let mut stager = Stager::new(dag, row, stores);
    let last = stager.row_stages();
    stager.choose_temps(last, row_length);
    let mut stages = Vec::new();
    for level in 0..=last {
        stages.extend(stager.point_stage(level));
        if level < last {
            stages.push(stager.row_stage(level));
        }
    }
    Staged { stages, temps: stager.temps }
}

/// Instructions without a row, in order; for prologues and epilogues. Returns the new number of `wanted`.
pub(crate) fn straight(dag: &Dag, stores: &[StoreAt], wanted: Option<ValueId>) -> (Vec<Inst>, Option<ValueId>) {
    let mut stager = Stager::new(dag, &[], stores);
    if let Some(wanted) = wanted {
        stager.mark_used(wanted);
    }
    let insts = stager.point_stage(0).map(|stage| stage.insts).unwrap_or_default();
    (insts, wanted.and_then(|w| stager.ids[w.0 as usize]))
}

impl<'a> Stager<'a> {
    fn new(dag: &'a Dag, row_vars: &[Symbol], stores: &'a [StoreAt]) -> Stager<'a> {
        let count = dag.values().len();
        let (mut row, mut level) = (vec![false; count], vec![0u32; count]);
        for (at, value) in dag.values().iter().enumerate() {
            match &value.def {
                Def::Inst(kind) => {
                    let (mut depends, mut after) = (false, 0);
                    if !row_vars.is_empty() {
                        visit_dims(kind, &mut |dim| depends |= row_vars.iter().any(|v| dim.contains(*v)));
                    }
                    visit_operands(kind, &mut |x| {
                        depends |= row[x.0 as usize];
                        after = after.max(level[x.0 as usize]);
                    });
                    (row[at], level[at]) = (depends, after);
                }
                Def::Reduced { value, .. } => level[at] = level[value.0 as usize] + 1,
            }
        }
        let along = |s: &StoreAt| row[s.value.0 as usize] || row_vars.iter().any(|v| s.place.offset.contains(*v));
        let listed = stores.iter().map(|s| (s, along(s))).collect();
        let (temp, first, ids) = (vec![None; count], vec![u32::MAX; count], vec![None; count]);
        let used = vec![false; count];
        let temps = Vec::new();
        let mut stager = Stager { dag, stores: listed, row, level, used, temp, temps, first, ids, next: 0 };
        for store in stores {
            stager.mark_used(store.value);
        }
        stager
    }

    fn mark_used(&mut self, value: ValueId) {
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            if !std::mem::replace(&mut self.used[value.0 as usize], true) {
                match &self.dag.value(value).def {
                    Def::Inst(kind) => visit_operands(kind, &mut |x| open.push(x)),
                    Def::Reduced { value, .. } => open.push(*value),
                }
            }
        }
    }

    /// Reductions whose operand is complete in row stage `level`.
    fn reductions(&self, level: u32) -> impl Iterator<Item = (usize, ReductionKind, ValueId)> {
        self.dag.values().iter().enumerate().filter_map(move |(at, value)| match value.def {
            Def::Reduced { kind, value } if self.used[at] && self.level[at] == level + 1 => Some((at, kind, value)),
            _ => None,
        })
    }

    /// Stores in the point stage or row stage of `level`.
    fn stores_at(&self, level: u32, along_row: bool) -> impl Iterator<Item = &'a StoreAt> {
        let level_of = |s: &StoreAt| self.level[s.value.0 as usize];
        self.stores.iter().filter(move |(s, along)| *along == along_row && level_of(s) == level).map(|(s, _)| *s)
    }

    fn row_stages(&self) -> u32 {
        let used = self.level.iter().zip(&self.used).filter(|(_, used)| **used).map(|(level, _)| *level);
        let stores = self.stores.iter().filter(|(_, along)| *along).map(|(s, _)| self.level[s.value.0 as usize] + 1);
        used.chain(stores).max().unwrap_or(0)
    }

    /// The values that row stage `level` must compute, without temporaries for other stages.
    fn row_roots(&self, level: u32) -> Vec<usize> {
        let operands = self.reductions(level).map(|(.., value)| value);
        let stored = self.stores_at(level, true).map(|s| s.value);
        operands.chain(stored).map(|v| v.0 as usize).filter(|&v| self.row[v]).collect()
    }

    fn row_operands(&self, value: usize) -> Vec<usize> {
        let mut list = Vec::new();
        if let Def::Inst(kind) = &self.dag.values()[value].def {
            visit_operands(kind, &mut |x| {
                let x = x.0 as usize;
                if self.row[x] && !list.contains(&x) {
                    list.push(x);
                }
            });
        }
        list
    }

    /// The row values that a stage computes, given its roots: everything below them down to temporaries of earlier stages.
    fn computed(&self, level: u32, roots: &[usize]) -> Vec<usize> {
        let mut seen = vec![false; self.row.len()];
        let mut open = roots.to_vec();
        let mut list = Vec::new();
        while let Some(v) = open.pop() {
            if !std::mem::replace(&mut seen[v], true) {
                list.push(v);
                if !self.is_kept(v, level) {
                    open.extend(self.row_operands(v));
                }
            }
        }
        list.sort_unstable();
        list
    }

    /// True if the value is in a temporary that an earlier stage wrote.
    fn is_kept(&self, v: usize, level: u32) -> bool {
        self.temp[v].is_some() && self.first[v] < level
    }

    fn choose_temps(&mut self, stages: u32, row_length: i64) {
        let limit = if row_length > cost::LONG_ROW { cost::EXPENSIVE + 2 * cost::TEMP } else { 2 * cost::TEMP };
        for level in 0..stages {
            let roots = self.row_roots(level);
            let mut seen = vec![false; self.row.len()];
            let mut open = roots.clone();
            while let Some(v) = open.pop() {
                if std::mem::replace(&mut seen[v], true) || self.is_kept(v, level) {
                    continue;
                }
                if self.first[v] < level && self.row_cost(v, level) > limit {
                    self.temp[v] = Some(self.temps.len());
                    self.temps.push(self.dag.values()[v].dtype);
                    continue;
                }
                open.extend(self.row_operands(v));
            }
            for v in self.computed(level, &roots) {
                self.first[v] = self.first[v].min(level);
            }
        }
    }

    /// The cost of recomputing a row value in stage `level`.
    fn row_cost(&self, value: usize, level: u32) -> u32 {
        let computed = self.computed(level, &[value]);
        computed
            .into_iter()
            .map(|v| match &self.dag.values()[v].def {
                _ if self.is_kept(v, level) => cost::TEMP,
                Def::Inst(kind) => cost::of_inst(kind),
                Def::Reduced { .. } => 0,
            })
            .sum()
    }

    fn fresh(&mut self) -> ValueId {
        let id = ValueId(self.next);
        self.next += 1;
        id
    }

    fn push(&mut self, insts: &mut Vec<Inst>, dtype: DType, mut kind: InstKind) -> ValueId {
        map_operands(&mut kind, &|x| self.ids[x.0 as usize].expect("operands are staged before their users"));
        let id = self.fresh();
        insts.push(Inst { id, dtype, kind });
        id
    }

    fn push_stores(&mut self, insts: &mut Vec<Inst>, level: u32, along_row: bool) {
        let stores: Vec<&StoreAt> = self.stores_at(level, along_row).collect();
        for store in stores {
            let dtype = self.dag.value(store.value).dtype;
            let kind = InstKind::Store { place: store.place.clone(), value: store.value, guard: None };
            self.push(insts, dtype, kind);
        }
    }

    /// The values of `level` that do not depend on the row, and their stores.
    fn point_stage(&mut self, level: u32) -> Option<Stage> {
        let mut insts = Vec::new();
        for at in 0..self.row.len() {
            if !self.used[at] || self.row[at] || self.level[at] != level || self.ids[at].is_some() {
                continue;
            }
            let value = &self.dag.values()[at];
            if let Def::Inst(kind) = &value.def {
                self.ids[at] = Some(self.push(&mut insts, value.dtype, kind.clone()));
            }
        }
        self.push_stores(&mut insts, level, false);
        (!insts.is_empty()).then_some(Stage { domain: Domain::Point, insts, reductions: Vec::new() })
    }

    fn row_stage(&mut self, level: u32) -> Stage {
        let mut roots = self.row_roots(level);
        let kept_here = |v: &usize| self.temp[*v].is_some() && self.first[*v] == level;
        roots.extend((0..self.row.len()).filter(kept_here));
        let computed = self.computed(level, &roots);
        let mut insts = Vec::new();
        for &at in &computed {
            let value = &self.dag.values()[at];
            let Def::Inst(kind) = &value.def else { continue };
            let kind = match self.temp[at] {
                Some(temp) if self.is_kept(at, level) => InstKind::LoadTemp(temp),
                _ => kind.clone(),
            };
            self.ids[at] = Some(self.push(&mut insts, value.dtype, kind));
            if let Some(temp) = self.temp[at].filter(|_| self.first[at] == level) {
                self.push(&mut insts, value.dtype, InstKind::StoreTemp(temp, ValueId(at as u32)));
            }
        }
        self.push_stores(&mut insts, level, true);
        let combined: Vec<_> = self.reductions(level).collect();
        let mut reductions = Vec::with_capacity(combined.len());
        for (at, kind, operand) in combined {
            let value = self.ids[operand.0 as usize].expect("a reduction's operand is staged before it");
            let dtype = self.dag.value(operand).dtype;
            let result = self.fresh();
            self.ids[at] = Some(result);
            reductions.push(Reduction { kind, value, dtype, result });
        }
        for at in computed {
            self.ids[at] = None;
        }
        Stage { domain: Domain::Row, insts, reductions }
    }
}
